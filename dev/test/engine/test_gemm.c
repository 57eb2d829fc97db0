// test_gemm.c: gemm and gemm_builtin against sums in double precision, with sizes around every block size.
#include "base/error.h"
#include "base/memory.h"
#include "base/openmp.h"
#include "dev/test/check.h"

#include <limits.h>
#include <string.h>
#include <sys/mman.h>

#include "gemm_case.h"
#include "cpu/gemm_partition.h"
#include "model.h"

_Static_assert((int)GEMM_FEW_ROWS == TOST_FEW_ROWS, "generate.c divides its rows by the order of summation");

static const struct { const char* name; Gemm* gemm; } variants[] = {
    { "gemm", gemm }, { "gemm_builtin", gemm_builtin },
};

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

// Rows and NR of the kernels, and the largest share of a thread that is allowed, relative to the mean
static const struct { int m, n; double share; } units[] = {
    { 12, 32, 1.15 }, { 6, 16, 1.15 }, { 12, 8, 1.15 }, { 6, 8, 1.15 }, { 16, 32, 1.19 },
};

// Every element of c is in one slice; the largest share of a thread is at most `share` of the mean; and the
// bytes that are packed are at most 1.5 of those of equal squares, or, if c is too narrow for squares, of equal slices
// of its longer side.
static void check_partition(Checks* c, Size s, int unit_m, int unit_n, double share, int threads) {
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
    check(c, shared <= share, "M %d N %d, %d threads: the largest share of a thread is %.3f of the mean",
          s.M, s.N, threads, shared);
    check(c, bytes <= bound, "M %d N %d K %d, %d threads: packs %.0f bytes, expected at most %.0f",
          s.M, s.N, s.K, threads, bytes, bound);
}

static void test_partition(Checks* c) {
    for (size_t s = 0; s < countof(sizes_of_base); s++)
        for (size_t u = 0; u < countof(units); u++)
            for (int threads = 1; threads <= 64; threads++)
                check_partition(c, sizes_of_base[s], units[u].m, units[u].n, units[u].share, threads);
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
    check(&c, threads_max() == threads, "%d OpenMP threads before the products, %d after",
          threads, threads_max());
    char name[64] = "", cut[4];
    check(&c, *gemm_library(name, sizeof name, false) != '\0', "gemm_library: expected a name, got none");
    check(&c, strlen(gemm_library(cut, sizeof cut, false)) <= 3, "gemm_library: expected at most 3 characters, got %s",
          cut);
    return checks_verdict(&c);
}
