// test_gemm.c: gemm and gemm_builtin against sums in double precision, with sizes around every block size.
#include "check.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "bf16.h"
#include "gemm.h"
#include "gemm_partition.h"
#include "rng.h"
#include "threads.h"
#include "util.h"

typedef void Gemm(float* c, const float* a, bool at, const float* b, bool bt,
                  int M, int N, int K, float beta);
static const struct { const char* name; Gemm* gemm; } variants[] = {
    { "gemm", gemm }, { "gemm_builtin", gemm_builtin },
};

// One product: operands, the initial c, and c, which is followed by GUARDS values that must not change.
enum { GUARDS = 64 };
static const float GUARD = 12345.678f;

typedef struct { int M, N, K; bool at, bt; float beta; float *a, *b, *before, *c; } Case;

static float* random_floats(Rng* rng, size_t n) {
    float* x = xmalloc((n + 1) * sizeof(float));
    for (size_t i = 0; i < n; i++) x[i] = (float)(2 * rng_uniform(rng) - 1);
    return x;
}

static Case new_case(Rng* rng, int M, int N, int K, bool at, bool bt, float beta) {
    Case t = { M, N, K, at, bt, beta, NULL, NULL, NULL, NULL };
    t.a = random_floats(rng, (size_t)M*K);
    t.b = random_floats(rng, (size_t)K*N);
    t.before = random_floats(rng, (size_t)M*N);
    t.c = xmalloc(((size_t)M*N + GUARDS) * sizeof(float));
    return t;
}

static void free_case(Case* t) {
    free(t->a);
    free(t->b);
    free(t->before);
    free(t->c);
}

static void run_case(Case* t, Gemm* multiply) {
    size_t n = (size_t)t->M * t->N;
    for (size_t i = 0; i < n; i++) t->c[i] = t->beta == 0 ? NAN : t->before[i];
    for (size_t i = n; i < n + GUARDS; i++) t->c[i] = GUARD;
    multiply(t->c, t->a, t->at, t->b, t->bt, t->M, t->N, t->K, t->beta);
}

// The largest |c - exact|, relative to its bound FLT_EPSILON · (2 + sqrt(K)) · (sum of |a||b| + |beta · before|).
// Rounding errors of K terms of random sign grow as sqrt(K); a wrong, missing or repeated term is far above the bound.
static double worst_error(const Case* t) {
    double worst = 0;
    for (int i = 0; i < t->M; i++)
        for (int j = 0; j < t->N; j++) {
            size_t at_c = (size_t)i*t->N + j;
            double sum = t->beta == 0 ? 0 : (double)t->beta * t->before[at_c], size = fabs(sum);
            for (int k = 0; k < t->K; k++) {
                double x = t->a[t->at ? (size_t)k*t->M + i : (size_t)i*t->K + k];
                double y = t->b[t->bt ? (size_t)j*t->K + k : (size_t)k*t->N + j];
                sum += x * y;
                size += fabs(x * y);
            }
            double error = fabs(t->c[at_c] - sum) / (FLT_EPSILON * (2 + sqrt(t->K)) * size + DBL_MIN);
            if (isnan(error)) return NAN;   // the comparison below would ignore it
            if (error > worst) worst = error;
        }
    return worst;
}

static bool guards_intact(const Case* t) {
    const float* end = t->c + (size_t)t->M * t->N;
    for (int i = 0; i < GUARDS; i++) if (end[i] != GUARD) return false;
    return true;
}

// worst_error must report a NaN at any position.
static void test_measure(Checks* c, Rng* rng) {
    Case t = new_case(rng, 3, 4, 5, false, false, 0);
    for (int i = 0; i < t.M * t.N; i++) {
        run_case(&t, gemm_builtin);
        check(c, worst_error(&t) <= 1, "worst_error of a correct product: got %g", worst_error(&t));
        t.c[i] = NAN;
        check(c, !(worst_error(&t) <= 1), "worst_error with NaN at %d: got %g", i, worst_error(&t));
    }
    free_case(&t);
}

static void check_case(Checks* c, Rng* rng, int M, int N, int K, bool at, bool bt, float beta) {
    Case t = new_case(rng, M, N, K, at, bt, beta);
    for (size_t w = 0; w < countof(variants); w++) {
        run_case(&t, variants[w].gemm);
        double error = worst_error(&t);
        check(c, error <= 1, "%s M %d N %d K %d at %d bt %d beta %g: error %.3g of its bound",
              variants[w].name, M, N, K, at, bt, beta, error);
        check(c, guards_intact(&t), "%s M %d N %d K %d at %d bt %d beta %g: wrote past the end of c",
              variants[w].name, M, N, K, at, bt, beta);
    }
    free_case(&t);
}

// ---------------------------------------------------------------------------------------------

static const float betas[] = { 0, 1, 0.5f };

// Every pair of sizes as M and N, with all transposes and varying K and beta.
static void test_ragged(Checks* c, Rng* rng) {
    static const int sizes[] = { 1, 2, 3, 4, 5, 7, 15, 16, 17, 31, 33, 63, 65, 127, 129, 257 };
    int turn = 0;
    for (size_t i = 0; i < countof(sizes); i++)
        for (size_t j = 0; j < countof(sizes); j++)
            for (int transposes = 0; transposes < 4; transposes++, turn++) {
                int K = sizes[(i + 5*j + transposes) % countof(sizes)];
                check_case(c, rng, sizes[i], sizes[j], K, transposes & 1, transposes >> 1, betas[turn % 3]);
            }
}

// Sizes with several blocks of the built-in kernel in each direction, and few rows times a wide matrix.
static void test_blocks(Checks* c, Rng* rng) {
    static const int shapes[][3] = {
        { 13, 33, 383 }, { 13, 33, 384 }, { 13, 33, 385 }, { 25, 65, 769 }, { 5, 31, 1153 }, { 12, 32, 5000 },
        { 193, 257, 40 }, { 400, 520, 65 }, { 1537, 33, 20 }, { 14, 1537, 390 }, { 3100, 7, 9 },
        { 7, 3100, 9 }, { 1, 1003, 768 }, { 2, 515, 771 }, { 3, 4099, 65 }, { 4, 130, 3073 },
    };
    for (size_t s = 0; s < countof(shapes); s++)
        for (int transposes = 0; transposes < 4; transposes++)
            check_case(c, rng, shapes[s][0], shapes[s][1], shapes[s][2], transposes & 1, transposes >> 1,
                       betas[(s + transposes) % 3]);
}

// K = 0 gives beta · c; M = 0 or N = 0 changes nothing.
static void test_zero_sizes(Checks* c, Rng* rng) {
    static const int shapes[][3] = { { 0, 5, 7 }, { 5, 0, 7 }, { 0, 0, 0 }, { 3, 4, 0 }, { 17, 19, 0 } };
    for (size_t s = 0; s < countof(shapes); s++)
        for (int transposes = 0; transposes < 4; transposes++)
            for (size_t b = 0; b < countof(betas); b++)
                check_case(c, rng, shapes[s][0], shapes[s][1], shapes[s][2], transposes & 1, transposes >> 1, betas[b]);
}

// K = INT_MAX: loops over depth must not overflow. The operands are pages of zeros that take no memory. Takes half a
// minute, so only `make test_all` (QUICK is set and empty) runs it.
static void test_longest(Checks* c) {
    const char* quick = getenv("QUICK");
    const size_t bytes = (size_t)INT_MAX * sizeof(float);
    if (!quick || *quick) return;
    float* zeros = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (zeros == MAP_FAILED) {
        skip(c, "product with K = INT_MAX: no %zu bytes of address space", bytes);
        return;
    }
    float sum = 3;
    gemm_builtin(&sum, zeros, true, zeros, false, 1, 1, INT_MAX, 1);
    check(c, sum == 3, "gemm_builtin K %d of zeros, c = 3, beta 1: got %g", INT_MAX, sum);
    munmap(zeros, bytes);
}

// Sums of small integers are exact in float32.
static void test_exact(Checks* c, Rng* rng) {
    for (int transposes = 0; transposes < 4; transposes++) {
        Case t = new_case(rng, 37, 70, 800, transposes & 1, transposes >> 1, 1);
        for (int i = 0; i < t.M * t.K; i++) t.a[i] = rintf(8 * t.a[i]);
        for (int i = 0; i < t.K * t.N; i++) t.b[i] = rintf(8 * t.b[i]);
        for (int i = 0; i < t.M * t.N; i++) t.before[i] = rintf(8 * t.before[i]);
        for (size_t w = 0; w < countof(variants); w++) {
            run_case(&t, variants[w].gemm);
            double error = worst_error(&t);
            check(c, error == 0, "%s of integers, at %d bt %d: expected exact sums, error %.3g of the bound",
                  variants[w].name, t.at, t.bt, error);
        }
        free_case(&t);
    }
}

// The same sizes and number of threads give the same bits, at any address of the operands.
static void test_same_bits(Checks* c, Rng* rng) {
    static const int shapes[][3] = { { 257, 300, 800 }, { 64, 1000, 130 }, { 3, 1001, 771 }, { 20, 20, 20 } };
    for (size_t s = 0; s < countof(shapes); s++)
        for (size_t w = 0; w < countof(variants); w++) {
            Case t = new_case(rng, shapes[s][0], shapes[s][1], shapes[s][2], false, true, 0.5f);
            size_t n = (size_t)t.M * t.N, n_a = (size_t)t.M * t.K;
            float *first = xmalloc(n * sizeof(float)), *moved = xmalloc((n_a + 3) * sizeof(float)), *a = t.a;
            run_case(&t, variants[w].gemm);
            memcpy(first, t.c, n * sizeof(float));
            memcpy(moved + 3, a, n_a * sizeof(float));
            t.a = moved + 3;
            run_case(&t, variants[w].gemm);
            t.a = a;
            check(c, memcmp(first, t.c, n * sizeof(float)) == 0,
                  "%s M %d N %d K %d: different bits on the second call", variants[w].name, t.M, t.N, t.K);
            free(first);
            free(moved);
            free_case(&t);
        }
}

// The built-in kernel sums a row in the same order for any number of rows and threads.
static void test_builtin_bits(Checks* c, Rng* rng) {
    Case t = new_case(rng, 151, 333, 1000, false, true, 1);
    size_t n = (size_t)t.M * t.N;
    float* whole = xmalloc(n * sizeof(float));
    int threads = threads_max();
    run_case(&t, gemm_builtin);
    memcpy(whole, t.c, n * sizeof(float));

    for (int set = 1; set <= 5; set++) {
        threads_set(set);
        run_case(&t, gemm_builtin);
        check(c, memcmp(whole, t.c, n * sizeof(float)) == 0, "gemm_builtin: different bits with %d threads", set);
    }
    threads_set(threads);

    for (int rows = GEMM_FEW_ROWS + 1; rows < 151; rows += 29) {
        t.M = rows;
        run_case(&t, gemm_builtin);
        check(c, memcmp(whole, t.c, (size_t)rows * t.N * sizeof(float)) == 0,
              "gemm_builtin: different bits with %d rows and with 151", rows);
    }
    t.M = GEMM_FEW_ROWS;
    run_case(&t, gemm_builtin);
    memcpy(whole, t.c, (size_t)t.M * t.N * sizeof(float));
    t.M = 1;
    run_case(&t, gemm_builtin);
    check(c, memcmp(whole, t.c, t.N * sizeof(float)) == 0, "gemm_builtin: different bits in one row than in few");
    t.M = 151;
    free(whole);
    free_case(&t);
}

// ---------------------------------------------------------------------------------------------
// Partition

typedef struct { int M, N, K; } Size;

// The products of tost-base with 1024 rows, and of the starter with 2048
static const Size sizes_of_base[] = {
    { 1024, 768, 768 }, { 1024, 3072, 768 }, { 1024, 768, 3072 }, { 768, 768, 1024 }, { 3072, 768, 1024 },
    { 768, 3072, 1024 }, { 1024, 50304, 768 }, { 1024, 768, 50304 }, { 50304, 768, 1024 },
};
static const int units[][2] = { { 12, 32 }, { 6, 16 }, { 12, 8 }, { 6, 8 } };   // of the kernels: MR, NR

// Every element of c is in one slice; the largest share of a thread is at most 1.165 of the mean (61 threads); and the
// bytes that are packed are at most 1.5 of those of equal squares, or, if c is too narrow for squares, of equal slices
// of its longer side.
static void check_partition(Checks* c, Size s, int unit_m, int unit_n, int threads) {
    const Partition x = partition_of(s.M, s.N, unit_m, unit_n, threads);
    double area = 0, largest = 0, lanes = 0;
    int overlaps = 0;
    for (int t = 0; t < threads; t++) {
        const Slice a = partition_slice(&x, t);
        area += (double)a.m * a.n;
        lanes += a.m > 0 && a.n > 0 ? a.m + a.n : 0;
        if ((double)a.m * a.n > largest) largest = (double)a.m * a.n;
        if (a.i < 0 || a.j < 0 || a.m < 0 || a.n < 0 || a.i + a.m > s.M || a.j + a.n > s.N) overlaps++;
        for (int u = 0; u < t; u++) {
            const Slice b = partition_slice(&x, u);
            overlaps += a.i < b.i + b.m && b.i < a.i + a.m && a.j < b.j + b.n && b.j < a.j + a.n;
        }
    }
    const double shared = largest * threads / area, least = 2 * sqrt((double)s.M * s.N * threads);
    const double slices = fmin((double)s.M * threads + s.N, (double)s.N * threads + s.M);
    const double bytes = 4.0 * lanes * s.K, bound = 1.5 * 4.0 * s.K * fmin(fmax(least, s.M + s.N), slices);
    check(c, overlaps == 0 && area == (double)s.M * s.N, "M %d N %d, %d threads: slices overlap or leave gaps",
          s.M, s.N, threads);
    check(c, shared <= 1.165, "M %d N %d, %d threads: the largest share of a thread is %.3f of the mean",
          s.M, s.N, threads, shared);
    check(c, bytes <= bound, "M %d N %d K %d, %d threads: packs %.0f bytes, expected at most %.0f",
          s.M, s.N, s.K, threads, bytes, bound);
}

static void test_partition(Checks* c) {
    for (size_t s = 0; s < countof(sizes_of_base); s++)
        for (size_t u = 0; u < countof(units); u++)
            for (int threads = 1; threads <= 64; threads++)
                check_partition(c, sizes_of_base[s], units[u][0], units[u][1], threads);
}

// ---------------------------------------------------------------------------------------------
// bf16

static float from_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

// Bits of a float32 and of the nearest bf16
static void test_bf16_rounding(Checks* c) {
    static const struct { uint32_t bits; uint16_t nearest; } cases[] = {
        { 0x3f800000, 0x3f80 }, { 0x3f807fff, 0x3f80 }, { 0x3f808000, 0x3f80 }, { 0x3f808001, 0x3f81 },
        { 0x3f818000, 0x3f82 }, { 0xbf818000, 0xbf82 }, { 0x00000000, 0x0000 }, { 0x80000000, 0x8000 },
        { 0x7f800000, 0x7f80 }, { 0xff800000, 0xff80 }, { 0x7f7fffff, 0x7f80 }, { 0x7fc00000, 0x7fc0 },
        { 0x7f800001, 0x7fc0 }, { 0xffffffff, 0xffff }, { 0x3fffffff, 0x4000 },
    };
    for (size_t i = 0; i < countof(cases); i++) {
        uint16_t got = bf16_from_float(from_bits(cases[i].bits));
        check(c, got == cases[i].nearest, "bf16 of the float with bits %08x: got %04x, expected %04x",
              cases[i].bits, got, cases[i].nearest);
    }
    check(c, bf16_to_float(0xc049) == -3.140625f, "bf16 c049: got %g, expected -3.140625", bf16_to_float(0xc049));
}

// gemm_bf16 gives the product of the rounded operands, and gemm_bf16_weight the same bits.
static void check_bf16(Checks* c, Rng* rng, int M, int N, int K, bool at, bool bt, float beta) {
    Case t = new_case(rng, M, N, K, at, bt, beta);
    size_t n = (size_t)M*N, n_a = (size_t)M*K, n_b = (size_t)K*N;
    run_case(&t, gemm_bf16);
    for (size_t i = 0; i < n_a; i++) t.a[i] = bf16_to_float(bf16_from_float(t.a[i]));
    uint16_t* weight = xmalloc((n_b + 1) * sizeof *weight);
    bf16_from_floats(weight, t.b, n_b);
    for (size_t i = 0; i < n_b; i++) t.b[i] = bf16_to_float(weight[i]);
    double error = worst_error(&t);
    check(c, error <= 1, "gemm_bf16 M %d N %d K %d at %d bt %d beta %g: error %.3g of its bound",
          M, N, K, at, bt, beta, error);
    check(c, guards_intact(&t), "gemm_bf16 M %d N %d K %d at %d bt %d: wrote past the end of c", M, N, K, at, bt);
    if (!at && bt) {
        float* stored = xmalloc((n + 1) * sizeof *stored);
        memcpy(stored, t.before, n * sizeof *stored);
        gemm_bf16_weight(stored, t.a, weight, M, N, K, beta);
        check(c, memcmp(stored, t.c, n * sizeof *stored) == 0,
              "gemm_bf16_weight M %d N %d K %d beta %g: other bits than gemm_bf16", M, N, K, beta);
        free(stored);
    }
    free(weight);
    free_case(&t);
}

// Every processor sums the products of a pair of depths in one order, the odd one first, as VDPBF16PS does. So the bits
// are those of fmaf, if the processor has such an instruction.
static void test_bf16_bits(Checks* c, Rng* rng) {
#if defined(__FP_FAST_FMAF) || defined(__FMA__) || defined(__aarch64__)
    static const int shapes[][3] = { { 40, 70, 384 }, { 61, 33, 101 }, { 33, 129, 1 } };
    for (size_t s = 0; s < countof(shapes); s++)
        for (int transposes = 0; transposes < 4; transposes++) {
            Case t = new_case(rng, shapes[s][0], shapes[s][1], shapes[s][2], transposes & 1, transposes >> 1, 0);
            run_case(&t, gemm_bf16);
            int wrong = 0;
            for (int i = 0; i < t.M; i++)
                for (int j = 0; j < t.N; j++) {
                    float sum = 0;
                    for (int n = 0; n < t.K + t.K % 2; n++) {
                        const int k = n ^ 1;
                        if (k >= t.K) continue;
                        sum = fmaf(bf16_to_float(bf16_from_float(t.a[t.at ? k*t.M + i : i*t.K + k])),
                                   bf16_to_float(bf16_from_float(t.b[t.bt ? j*t.K + k : k*t.N + j])), sum);
                    }
                    wrong += memcmp(&sum, &t.c[i*t.N + j], sizeof sum) != 0;
                }
            check(c, wrong == 0, "gemm_bf16 M %d N %d K %d at %d bt %d: %d of %d sums differ in bits from fmaf's",
                  t.M, t.N, t.K, t.at, t.bt, wrong, t.M * t.N);
            free_case(&t);
        }
#else
    (void)rng;
    skip(c, "bits of gemm_bf16: no fast fmaf on this processor");
#endif
}

static void test_bf16(Checks* c, Rng* rng) {
    static const int sizes[] = { 1, 2, 3, 5, 16, 17, 33, 65, 130 };
    int turn = 0;
    for (size_t i = 0; i < countof(sizes); i++)
        for (size_t j = 0; j < countof(sizes); j++)
            for (int transposes = 0; transposes < 4; transposes++, turn++) {
                int K = sizes[(i + 5*j + transposes) % countof(sizes)];
                check_bf16(c, rng, sizes[i], sizes[j], K, transposes & 1, transposes >> 1, betas[turn % 3]);
            }
    static const int shapes[][3] = {
        { 13, 33, 767 }, { 25, 65, 769 }, { 5, 31, 1153 }, { 193, 257, 40 }, { 1537, 33, 21 }, { 14, 1537, 390 },
        { 1, 1003, 768 }, { 3, 515, 771 }, { 33, 130, 3073 }, { 0, 4, 5 }, { 4, 0, 5 }, { 3, 4, 0 },
    };
    for (size_t s = 0; s < countof(shapes); s++)
        for (int transposes = 0; transposes < 4; transposes++)
            check_bf16(c, rng, shapes[s][0], shapes[s][1], shapes[s][2], transposes & 1, transposes >> 1,
                       betas[(s + transposes) % 3]);
}

int main(void) {
    Checks c = { .suite = "gemm" };
    int threads = threads_max();
    Rng rng = rng_seeded(1337, 0);
    test_measure(&c, &rng);
    test_ragged(&c, &rng);
    test_blocks(&c, &rng);
    test_zero_sizes(&c, &rng);
    test_exact(&c, &rng);
    test_same_bits(&c, &rng);
    test_builtin_bits(&c, &rng);
    test_longest(&c);
    test_partition(&c);
    test_bf16_rounding(&c);
    test_bf16(&c, &rng);
    test_bf16_bits(&c, &rng);
    check(&c, threads_max() == threads, "%d OpenMP threads before the products, %d after",
          threads, threads_max());
    char name[64] = "", cut[4];
    check(&c, *gemm_library(name, sizeof name) != '\0', "gemm_library: expected a name, got none");
    check(&c, strlen(gemm_library(cut, sizeof cut)) <= 3, "gemm_library: expected at most 3 characters, got %s", cut);
    return checks_verdict(&c);
}
