// test_gemm_bf16.c: gemm_bf16 with every kernel of this machine against sums in double precision; bits. The build
// test_gemm_amx runs the same tests with AMX's instructions in plain C (amx_twin.h), on any processor.
#include "base/error.h"
#include "base/memory.h"
#include "base/openmp.h"
#include "dev/test/check.h"

#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bf16.h"
#include "gemm_case.h"

#ifdef TOST_AMX_HEADER
enum { TWIN = 1 };
#else
enum { TWIN = 0 };
#endif

static float from_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
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
        uint16_t got = bf16_from_float(from_bits(cases[i].bits));
        check(c, got == cases[i].nearest, "bf16 of the float with bits %08x: got %04x, expected %04x",
              cases[i].bits, got, cases[i].nearest);
    }
    check(c, bf16_to_float(0xc049) == -3.140625f, "bf16 c049: got %g, expected -3.140625", bf16_to_float(0xc049));
}

// ---------------------------------------------------------------------------------------------
// Kernels

#define BY(name, kernel) \
    static void name(float* c, const float* a, bool at, const float* b, bool bt, int M, int N, int K, float beta) { \
        gemm_bf16_by(kernel, c, a, at, b, bt, M, N, K, beta); \
    }
BY(by_fma, GEMM_FMA)
BY(by_vdpbf16ps, GEMM_VDPBF16PS)
BY(by_amx, GEMM_AMX)
#undef BY

static const struct { const char* name; GemmBf16 kernel; Gemm* gemm; } variants[] = {
    { "FMA", GEMM_FMA, by_fma }, { "VDPBF16PS", GEMM_VDPBF16PS, by_vdpbf16ps }, { "AMX", GEMM_AMX, by_amx },
    { "gemm_bf16", GEMM_FMA, gemm_bf16 },   // chooses a kernel itself
};

// gemm_bf16 gives the product of the rounded operands, and gemm_bf16_weight the same bits.
static void check_case(Checks* c, Rng* rng, int M, int N, int K, bool at, bool bt, float beta) {
    Case t = new_case(rng, M, N, K, at, bt, beta);
    size_t n = (size_t)M*N, n_a = (size_t)M*K, n_b = (size_t)K*N;
    float *a = random_floats(rng, n_a), *b = random_floats(rng, n_b), *rounded_a = t.a, *rounded_b = t.b;
    uint16_t* weight = xmalloc((n_b + 1) * sizeof *weight);
    bf16_from_floats(weight, b, n_b);
    for (size_t i = 0; i < n_a; i++) rounded_a[i] = bf16_to_float(bf16_from_float(a[i]));
    for (size_t i = 0; i < n_b; i++) rounded_b[i] = bf16_to_float(weight[i]);
    for (size_t v = 0; v < countof(variants); v++) {
        if (!gemm_has(variants[v].kernel)) continue;
        t.a = a, t.b = b;
        run_case(&t, variants[v].gemm);
        t.a = rounded_a, t.b = rounded_b;
        double error = worst_error(&t);
        check(c, error <= 1, "%s M %d N %d K %d at %d bt %d beta %g: error %.3g of its bound",
              variants[v].name, M, N, K, at, bt, beta, error);
        check(c, guards_intact(&t), "%s M %d N %d K %d at %d bt %d: wrote past the end of c",
              variants[v].name, M, N, K, at, bt);
    }
    if (!at && bt) {
        float* stored = xmalloc((n + 1) * sizeof *stored);
        memcpy(stored, t.before, n * sizeof *stored);
        gemm_bf16_weight(stored, a, weight, M, N, K, beta);
        check(c, memcmp(stored, t.c, n * sizeof *stored) == 0,
              "gemm_bf16_weight M %d N %d K %d beta %g: other bits than gemm_bf16", M, N, K, beta);
        free(stored);
    }
    free(a);
    free(b);
    free(weight);
    free_case(&t);
}

static void test_sizes(Checks* c, Rng* rng) {
    static const float betas[] = { 0, 1, 0.5f };
    static const int sizes[] = { 1, 2, 3, 5, 16, 17, 33, 65, 130 };
    int turn = 0;
    for (size_t i = 0; i < countof(sizes); i++)
        for (size_t j = 0; j < countof(sizes); j++)
            for (int transposes = 0; transposes < 4; transposes++, turn++) {
                int K = sizes[(i + 5*j + transposes) % countof(sizes)];
                check_case(c, rng, sizes[i], sizes[j], K, transposes & 1, transposes >> 1, betas[turn % 3]);
            }
    static const int shapes[][3] = {
        { 13, 33, 767 }, { 25, 65, 769 }, { 5, 31, 1153 }, { 193, 257, 40 }, { 1537, 33, 21 }, { 14, 1537, 390 },
        { 1, 1003, 768 }, { 3, 515, 771 }, { 33, 130, 3073 }, { 0, 4, 5 }, { 4, 0, 5 }, { 3, 4, 0 }, { 48, 96, 385 },
        { 64, 64, 64 }, { 49, 31, 1300 },
    };
    for (size_t s = 0; s < countof(shapes); s++)
        for (int transposes = 0; transposes < 4; transposes++)
            check_case(c, rng, shapes[s][0], shapes[s][1], shapes[s][2], transposes & 1, transposes >> 1,
                       betas[(s + transposes) % 3]);
}

// ---------------------------------------------------------------------------------------------
// Bits

#if defined(__FP_FAST_FMAF) || defined(__FMA__) || defined(__aarch64__)
enum { FAST_FMAF = 1 };
#else
enum { FAST_FMAF = 0 };
#endif

// Up to ONE_PASS depths: with FMA and VDPBF16PS, every processor adds the products of a pair of depths to the sum, the
// odd one first.
enum { ONE_PASS = 384 };
static float sum_in_order(const float* a, const float* b, int K) {
    float sum = 0;
    for (int n = 0; n < K + K % 2; n++)
        if ((n ^ 1) < K) sum = fmaf(a[n ^ 1], b[n ^ 1], sum);
    return sum;
}

// TDPBF16PS sums the even and the odd ones of 32 depths, and adds both to the sum.
static float sum_of_tiles(const float* a, const float* b, int K) {
    enum { DEPTH = 32 };
    float sum = 0;
    for (int from = 0; from < K; from += DEPTH) {
        float half[2] = { 0, 0 };
        for (int k = from; k < K && k < from + DEPTH; k++) half[k % 2] = fmaf(a[k], b[k], half[k % 2]);
        sum += half[0] + half[1];
    }
    return sum;
}

static int wrong_sums(const Case* t, float (*sum)(const float* a, const float* b, int K)) {
    float *a = xmalloc(t->K * sizeof *a), *b = xmalloc(t->K * sizeof *b);
    int wrong = 0;
    for (int i = 0; i < t->M; i++)
        for (int j = 0; j < t->N; j++) {
            for (int k = 0; k < t->K; k++) {
                a[k] = bf16_to_float(bf16_from_float(t->a[t->at ? k*t->M + i : i*t->K + k]));
                b[k] = bf16_to_float(bf16_from_float(t->b[t->bt ? j*t->K + k : k*t->N + j]));
            }
            const float expected = sum(a, b, t->K);
            wrong += memcmp(&expected, &t->c[i*t->N + j], sizeof expected) != 0;
        }
    free(a);
    free(b);
    return wrong;
}

static void test_bits(Checks* c, Rng* rng) {
    if (!FAST_FMAF) {
        skip(c, "bits of gemm_bf16: no fast fmaf on this processor");
        return;
    }
    static const int shapes[][3] = { { 40, 70, 384 }, { 61, 33, 101 }, { 33, 129, 1 }, { 50, 34, 801 } };
    for (size_t s = 0; s < countof(shapes); s++)
        for (int transposes = 0; transposes < 4; transposes++)
            for (size_t v = 0; v < countof(variants) - 1; v++) {
                if (!gemm_has(variants[v].kernel)) continue;
                const bool amx = variants[v].kernel == GEMM_AMX;
                if (amx ? !TWIN : shapes[s][2] > ONE_PASS) continue;   // TWIN: a processor may sum in another order
                Case t = new_case(rng, shapes[s][0], shapes[s][1], shapes[s][2], transposes & 1, transposes >> 1, 0);
                run_case(&t, variants[v].gemm);
                const int wrong = wrong_sums(&t, amx ? sum_of_tiles : sum_in_order);
                check(c, wrong == 0, "%s M %d N %d K %d at %d bt %d: %d of %d sums differ in bits from fmaf's",
                      variants[v].name, t.M, t.N, t.K, t.at, t.bt, wrong, t.M * t.N);
                free_case(&t);
            }
}

// The bits of a row do not depend on the number of threads or rows.
static void test_same_bits(Checks* c, Rng* rng) {
    const int threads = threads_max();
    for (size_t v = 0; v < countof(variants); v++) {
        if (!gemm_has(variants[v].kernel)) continue;
        Case t = new_case(rng, 151, 333, 1000, false, true, 1);
        const size_t n = (size_t)t.M * t.N;
        float* whole = xmalloc(n * sizeof *whole);
        run_case(&t, variants[v].gemm);
        memcpy(whole, t.c, n * sizeof *whole);
        for (int set = 1; set <= 5; set++) {
            threads_set(set);
            run_case(&t, variants[v].gemm);
            check(c, memcmp(whole, t.c, n * sizeof *whole) == 0, "%s: different bits with %d threads",
                  variants[v].name, set);
        }
        threads_set(threads);
        for (t.M = GEMM_FEW_ROWS + 1; t.M < 151; t.M += 29) {
            run_case(&t, variants[v].gemm);
            check(c, memcmp(whole, t.c, (size_t)t.M * t.N * sizeof *whole) == 0,
                  "%s: different bits with %d rows and with 151", variants[v].name, t.M);
        }
        free(whole);
        free_case(&t);
    }
}

// ---------------------------------------------------------------------------------------------
// The choice of a kernel

static void test_choice(Checks* c, Rng* rng, bool amx) {
    char name[64];
    check(c, gemm_has(GEMM_FMA) && gemm_has(GEMM_AMX) == amx, "AMX: expected %d, got %d", amx, gemm_has(GEMM_AMX));
    check(c, !!strstr(gemm_library(name, sizeof name, true), "(AMX)") == amx, "AMX %d: the name is %s", amx, name);
    check(c, !strstr(gemm_library(name, sizeof name, false), "AMX"), "float32: the name is %s", name);
    Case t = new_case(rng, 40, 70, 384, false, true, 0);
    float chosen[40 * 70];
    run_case(&t, gemm_bf16);
    memcpy(chosen, t.c, sizeof chosen);
    run_case(&t, amx ? by_amx : by_fma);
    check(c, memcmp(chosen, t.c, sizeof chosen) == 0, "gemm_bf16: does not use %s", amx ? "AMX" : "FMA or VDPBF16PS");
    free_case(&t);
}

// Where Linux refuses the tiles. In a process of its own, because the choice is made once.
static void test_refused(Checks* c, Rng* rng) {
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        setenv("AMX_TWIN_REFUSED", "1", 1);
        test_choice(c, rng, false);
        fflush(stdout);
        _exit(c->failed != 0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    check(c, child > 0 && status == 0, "AMX refused: the checks above failed (wait status %d)", status);
}

int main(void) {
    Checks c = { .suite = TWIN ? "gemm_amx" : "gemm_bf16" };
    Rng rng = rng_seeded(1337, 0);
    if (TWIN) test_refused(&c, &rng);
    test_choice(&c, &rng, TWIN || gemm_has(GEMM_AMX));
    test_rounding(&c);
    test_sizes(&c, &rng);
    test_bits(&c, &rng);
    test_same_bits(&c, &rng);
    return checks_verdict(&c);
}
