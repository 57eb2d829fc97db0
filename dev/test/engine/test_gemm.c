// test_gemm.c: matrix products in float32 and bf16, with every kernel of this machine, against sums in double
// precision; their bits; how a product is divided among threads.
#include "tost/cpu/gemm.c"

#include <float.h>
#include <math.h>

#include "base/error.h"
#include "base/rng.h"
#include "dev/test/check.h"
#include "engine.h"

// gemm or gemm_bf16, or if that is NULL, the product in a format. bf16: which operands are stored in bf16
typedef struct { const char* name; Gemm* gemm; Format format; bool bf16_a, bf16_b; } Variant;
static const Variant variants[] = {
    { "gemm", gemm, FLOATS, false, false },
    { "gemm_bf16", gemm_bf16, ROUNDED, false, false },   // chooses a format itself
    { "rounded", NULL, ROUNDED, false, false }, { "rounded, a in bf16", NULL, ROUNDED, true, false },
    { "rounded, b in bf16", NULL, ROUNDED, false, true }, { "rounded, both in bf16", NULL, ROUNDED, true, true },
    { "pairs", NULL, PAIRS, false, false }, { "pairs, a in bf16", NULL, PAIRS, true, false },
    { "pairs, b in bf16", NULL, PAIRS, false, true }, { "pairs, both in bf16", NULL, PAIRS, true, true },
};

// x (n) as an operand. in_bf16: a rounded copy. It starts at an odd element if x does, so moving x in test_same_bits
// also moves the copy. free(*memory)
static Matrix operand(uint16_t** memory, const float* x, size_t n, bool in_bf16) {
    *memory = NULL;
    if (!in_bf16) return f32(x);
    *memory = xmalloc((n + 2) * sizeof **memory);
    uint16_t* rounded = *memory + (uintptr_t)x / sizeof *x % 2;
    for (size_t i = 0; i < n; i++) rounded[i] = bf16_from_float(x[i]);
    return (Matrix){NULL, rounded};
}

static bool has(Format f) {
#ifdef __AVX512BF16__
    (void)f;
    return true;
#else
    return f != PAIRS;
#endif
}

// The next variant of this machine and build, from v on; NULL after the last.
static const Variant* variant_from(const Variant* v) {
    while (v < variants + countof(variants) && !has(v->format)) v++;
    return v < variants + countof(variants) ? v : NULL;
}
#define EACH_VARIANT(v) const Variant* v = variant_from(variants); v; v = variant_from(v + 1)

// ---- One product: operands, the initial c, and c, which is followed by GUARDS values that must not change -----------

enum { GUARDS = 64 };
static const float GUARD = 12345.678f;

enum { LAYOUTS = GEMM_TN + 1 };
static const char* const layout_names[LAYOUTS] = { "NN", "NT", "TN" };

typedef struct { int M, N, K; GemmLayout layout; bool add; float *a, *b, *before, *c; } Case;

static float* random_floats(Rng* rng, size_t n) {
    float* x = xmalloc((n + 1) * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (float)(2 * rng_uniform(rng) - 1);
    return x;
}

static Case new_case(Rng* rng, const int size[3], GemmLayout layout, bool add) {
    const int M = size[0], N = size[1], K = size[2];
    return (Case){ M, N, K, layout, add, random_floats(rng, (size_t)M*K), random_floats(rng, (size_t)K*N),
                   random_floats(rng, (size_t)M*N), xmalloc(((size_t)M*N + GUARDS) * sizeof(float)) };
}

static void free_case(Case* t) {
    free(t->a);
    free(t->b);
    free(t->before);
    free(t->c);
}

static void multiply(float* c, const Case* t, const Variant* v, GemmStore store) {
    uint16_t* memory[2];
    const Matrix a = operand(&memory[0], t->a, (size_t)t->M * t->K, v->bf16_a);
    const Matrix b = operand(&memory[1], t->b, (size_t)t->K * t->N, v->bf16_b);
    if (v->gemm) v->gemm(c, a, b, t->layout, t->M, t->N, t->K, store);
    else gemm_in(v->format, c, a, b, t->layout, t->M, t->N, t->K, store);
    for (int i = 0; i < 2; i++) free(memory[i]);
}

static void run_case(Case* t, const Variant* v) {
    const size_t n = (size_t)t->M * t->N;
    for (size_t i = 0; i < n; i++) t->c[i] = t->add ? t->before[i] : NAN;
    for (size_t i = n; i < n + GUARDS; i++) t->c[i] = GUARD;
    multiply(t->c, t, v, t->add ? GEMM_ADD : GEMM_SET);
}

// GEMM_ROUND gives the rounded bits of GEMM_SET.
static bool rounds(Case* t, const Variant* v) {
    const size_t n = (size_t)t->M * t->N;
    float* rounded = xmalloc(n * sizeof *rounded);
    multiply(rounded, t, v, GEMM_ROUND);
    multiply(t->c, t, v, GEMM_SET);
    for (size_t i = 0; i < n; i++) t->c[i] = rounded_bf16(t->c[i]);
    const bool equal = memcmp(t->c, rounded, n * sizeof *rounded) == 0;
    free(rounded);
    return equal;
}

static bool guards_intact(const Case* t) {
    const float* end = t->c + (size_t)t->M * t->N;
    for (int i = 0; i < GUARDS; i++) if (end[i] != GUARD) return false;
    return true;
}

// All depths of one lane of an operand, in double; rounded to bf16 or not. A lane is a row of op(a) or a column of
// op(b).
static void depths_of(double* x, const float* p, bool contiguous, int lane, int lanes, int K, bool bf16) {
    for (int k = 0; k < K; k++) {
        const float value = p[contiguous ? (size_t)lane*K + k : (size_t)k*lanes + lane];
        x[k] = bf16 ? rounded_bf16(value) : value;
    }
}
static void depths_of_a(double* x, const Case* t, int i, bool bf16) {
    depths_of(x, t->a, t->layout != GEMM_TN, i, t->M, t->K, bf16);
}
static void depths_of_b(double* x, const Case* t, int j, bool bf16) {
    depths_of(x, t->b, t->layout == GEMM_NT, j, t->N, t->K, bf16);
}

// Sets, for each element of c, the exact product and the allowed error
// FLT_EPSILON · (2 + sqrt(K)) · (sum of |a||b| + |before|). Rounding errors of K terms of random sign grow as
// sqrt(K); a wrong, missing or repeated term is far above the bound.
static void exact_product(double* exact, double* allowed, const Case* t, bool bf16) {
    double *x = xmalloc(((size_t)t->K + 1) * sizeof *x), *y = xmalloc(((size_t)t->N * t->K + 1) * sizeof *y);
    for (int j = 0; j < t->N; j++) depths_of_b(y + (size_t)j*t->K, t, j, bf16);
    for (int i = 0; i < t->M; i++) {
        depths_of_a(x, t, i, bf16);
        for (int j = 0; j < t->N; j++) {
            const size_t at = (size_t)i*t->N + j;
            const double* y_j = y + (size_t)j*t->K;
            double sum = t->add ? t->before[at] : 0, size = fabs(sum);
            for (int k = 0; k < t->K; k++) {
                sum += x[k] * y_j[k];
                size += fabs(x[k] * y_j[k]);
            }
            exact[at] = sum;
            allowed[at] = FLT_EPSILON * (2 + sqrt(t->K)) * size + DBL_MIN;
        }
    }
    free(x);
    free(y);
}

// All formats give the same bits, unless the rows are few.
static void check_case(Checks* c, Rng* rng, const int size[3], GemmLayout layout, bool add) {
    Case t = new_case(rng, size, layout, add);
    const size_t n = (size_t)t.M * t.N;
    double *exact = xmalloc((n + 1) * sizeof *exact), *allowed = xmalloc((n + 1) * sizeof *allowed);
    float* first = xmalloc((n + 1) * sizeof *first);
    const bool few = t.M <= TOST_FEW_ROWS && layout == GEMM_NT;
    for (EACH_VARIANT(v)) {
        const bool bf16 = v->format != FLOATS;
        if (v == variants || bf16 != (v[-1].format != FLOATS)) exact_product(exact, allowed, &t, bf16);
        run_case(&t, v);
        size_t wrong = 0;
        for (size_t i = 0; i < n; i++) wrong += !(fabs(t.c[i] - exact[i]) <= allowed[i]);
        check(c, wrong == 0 && guards_intact(&t), "%s %s M %d N %d K %d add %d: %zu sums are wrong%s", v->name,
              layout_names[layout], t.M, t.N, t.K, t.add, wrong, guards_intact(&t) ? "" : ", wrote past the end of c");
        if (v->gemm == gemm_bf16) memcpy(first, t.c, n * sizeof *first);
        check(c, !bf16 || few || memcmp(first, t.c, n * sizeof *first) == 0, "%s %s M %d N %d K %d: not the bits of "
              "gemm_bf16", v->name, layout_names[layout], t.M, t.N, t.K);
        check(c, rounds(&t, v), "%s %s M %d N %d K %d: GEMM_ROUND differs from rounding", v->name,
              layout_names[layout], t.M, t.N, t.K);
    }
    free(exact);
    free(allowed);
    free(first);
    free_case(&t);
}

static void test_sizes(Checks* c, Rng* rng) {
    static const int sizes[] = { 1, 2, 3, 4, 5, 7, 15, 16, 17, 31, 33, 63, 65, 127, 130, 257 };
    static const int blocks[][3] = {
        { 13, 33, 383 }, { 13, 33, 384 }, { 13, 33, 385 }, { 25, 65, 769 }, { 5, 31, 1153 }, { 12, 32, 5000 },
        { 193, 257, 40 }, { 400, 520, 65 }, { 1537, 33, 21 }, { 14, 1537, 390 }, { 3100, 7, 9 }, { 7, 3100, 9 },
        { 1, 1003, 768 }, { 2, 515, 771 }, { 3, 4099, 65 }, { 4, 130, 3073 }, { 33, 130, 3073 }, { 48, 96, 385 },
        { 49, 31, 1300 }, { 64, 64, 64 },
    };
    const int count = countof(sizes);
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++)
            for (int layout = 0; layout < LAYOUTS; layout++) {
                const int size[3] = { sizes[i], sizes[j], sizes[(i + 5*j + layout) % count] };
                check_case(c, rng, size, layout, (i * count + j + layout) % 2);
            }
    for (size_t s = 0; s < countof(blocks); s++)
        for (int layout = 0; layout < LAYOUTS; layout++)
            check_case(c, rng, blocks[s], layout, (s + layout) % 2);
}

// ---- Bits -----------------------------------------------------------------------------------------------------------

static void check_bits(Checks* c, Case* t, const Variant* v, const float* want, const char* what, int n) {
    run_case(t, v);
    check(c, memcmp(want, t->c, (size_t)t->M * t->N * sizeof *want) == 0, "%s: different bits with %s %d", v->name,
          what, n);
}

// The bits of a row do not depend on the address of the operands, the number of threads, or the number of rows, which
// may be few or more.
static void test_same_bits(Checks* c, Rng* rng) {
    enum { ROWS = 151 };
    const int threads = threads_max(), size[3] = { ROWS, 333, 1000 };
    for (EACH_VARIANT(v)) {
        Case t = new_case(rng, size, GEMM_NT, true);
        const size_t bytes_a = (size_t)t.M * t.K * sizeof(float);
        float *whole = xmalloc((size_t)t.M * t.N * sizeof *whole), *moved = xmalloc(bytes_a + 3 * sizeof *moved);
        float* a = t.a;
        run_case(&t, v);
        memcpy(whole, t.c, (size_t)t.M * t.N * sizeof *whole);
        t.a = memcpy(moved + 3, a, bytes_a);
        check_bits(c, &t, v, whole, "a moved by floats:", 3);
        t.a = a;
        for (int set = 1; set <= 5; set++) {
            threads_set(set);
            check_bits(c, &t, v, whole, "threads:", set);
        }
        threads_set(threads);
        for (t.M = TOST_FEW_ROWS + 1; t.M < ROWS; t.M += 29) check_bits(c, &t, v, whole, "rows:", t.M);
        t.M = TOST_FEW_ROWS;
        run_case(&t, v);
        memcpy(whole, t.c, (size_t)t.M * t.N * sizeof *whole);
        for (t.M = 1; t.M < TOST_FEW_ROWS; t.M += 5) check_bits(c, &t, v, whole, "rows:", t.M);
        free(whole);
        free(moved);
        free_case(&t);
    }
}

// GEMM_SYMMETRIC gives the bits of GEMM_SET, with any number of threads.
static void test_symmetric(Checks* c, Rng* rng) {
    static const int sizes[][3] = { { 33, 33, 50 }, { 65, 65, 401 }, { 128, 128, 64 }, { 203, 203, 90 },
                                    { 530, 530, 33 } };
    const int threads = threads_max();
    for (EACH_VARIANT(v))
        for (size_t s = 0; s < countof(sizes); s++)
            for (GemmLayout layout = GEMM_NT; layout <= GEMM_TN; layout++) {
                Case t = new_case(rng, sizes[s], layout, false);
                const size_t n = (size_t)t.M * t.N;
                float* want = xmalloc(n * sizeof *want);
                memcpy(t.b, t.a, (size_t)t.M * t.K * sizeof *t.b);
                multiply(want, &t, v, GEMM_SET);
                for (int set = 1; set <= 5; set += 2) {
                    threads_set(set);
                    for (size_t i = 0; i < n; i++) t.c[i] = NAN;
                    multiply(t.c, &t, v, GEMM_SYMMETRIC);
                    check(c, memcmp(want, t.c, n * sizeof *want) == 0, "%s %s N %d threads %d: GEMM_SYMMETRIC differs",
                          v->name, layout_names[layout], t.N, set);
                }
                threads_set(threads);
                free(want);
                free_case(&t);
            }
}

// Bits of a float32 and of the nearest bf16
static void test_rounding(Checks* c) {
    static const struct { uint32_t bits; uint16_t nearest; } cases[] = {
        { 0x3f800000, 0x3f80 }, { 0x3f807fff, 0x3f80 }, { 0x3f808000, 0x3f80 }, { 0x3f808001, 0x3f81 },
        { 0x3f818000, 0x3f82 }, { 0xbf818000, 0xbf82 }, { 0x00000000, 0x0000 }, { 0x80000000, 0x8000 },
        { 0x7f800000, 0x7f80 }, { 0xff800000, 0xff80 }, { 0x7f7fffff, 0x7f80 }, { 0x7fc00000, 0x7fc0 },
        { 0x7f800001, 0x7fc0 }, { 0xffffffff, 0xffff }, { 0x3fffffff, 0x4000 },
    };
    for (size_t i = 0; i < countof(cases); i++) {
        float x;
        memcpy(&x, &cases[i].bits, sizeof x);
        check(c, bf16_from_float(x) == cases[i].nearest, "bf16 of the float with bits %08x: got %04x, expected %04x",
              cases[i].bits, bf16_from_float(x), cases[i].nearest);
    }
}

// ---- Partition ------------------------------------------------------------------------------------------------------

// Every element of c is in one slice, and the largest share of a thread is at most 1.15 of the mean.
static void check_partition(Checks* c, int M, int N, int unit_m, int unit_n, int threads) {
    const Partition x = partition_of(M, N, unit_m, unit_n, threads);
    double area = 0, largest = 0;
    int overlaps = 0;
    for (int t = 0; t < threads; t++) {
        const Slice a = partition_slice(&x, t);
        area += (double)a.m * a.n;
        largest = fmax(largest, (double)a.m * a.n);
        overlaps += a.i < 0 || a.j < 0 || a.m < 0 || a.n < 0 || a.i + a.m > M || a.j + a.n > N;
        for (int u = 0; u < t; u++) {
            const Slice b = partition_slice(&x, u);
            overlaps += a.i < b.i + b.m && b.i < a.i + a.m && a.j < b.j + b.n && b.j < a.j + a.n;
        }
    }
    const double share = largest * threads / area;
    check(c, overlaps == 0 && area == (double)M * N && share <= 1.15, "M %d N %d, %d threads: %d slices overlap or "
          "leave c, area %.0f, the largest share of a thread is %.3f of the mean", M, N, threads, overlaps, area, share);
}

static void test_partition(Checks* c) {
    static const int sizes[][2] = {   // the products of tost-base with 1024 rows
        { 1024, 768 }, { 1024, 3072 }, { 768, 768 }, { 3072, 768 }, { 768, 3072 }, { 1024, 50304 }, { 50304, 768 },
    };
    static const int units[][2] = {{12, 32}, {6, 16}, {12, 8}, {6, 8}};   // rows and NR of the kernels
    for (size_t s = 0; s < countof(sizes); s++)
        for (size_t u = 0; u < countof(units); u++)
            for (int threads = 1; threads <= 64; threads++)
                check_partition(c, sizes[s][0], sizes[s][1], units[u][0], units[u][1], threads);
}

int main(void) {
    Checks c = { .suite = "gemm" };
    const int threads = threads_max();
    Rng rng = rng_seeded(1337, 0);
    test_sizes(&c, &rng);
    test_symmetric(&c, &rng);
    test_same_bits(&c, &rng);
    test_rounding(&c);
    test_partition(&c);
    check(&c, threads_max() == threads, "%d OpenMP threads before the products, %d after", threads, threads_max());
    return checks_verdict(&c);
}
