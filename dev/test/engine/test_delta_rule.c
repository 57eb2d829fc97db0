// test_delta_rule.c: the memory of the CPU engine against its equations for one token in double precision; passes over
// parts of a sequence against one pass; tokens of inference one by one against several at once.
#include "tost/cpu/delta_rule.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/openmp.h"
#include "base/rng.h"
#include "dev/test/check.h"
#include "model.h"

enum { B = 2, NH = 2 };
typedef enum { USUAL, PI_NEAR_1, PI_NEAR_0, ZERO_KEYS, VALUES } Values;
static const char* const values_names[] = {"usual", "Π near 1", "Π near 0", "keys of norm 0"};

// Arrays of a pass, in float and in double. state and adjoint are those before the pass, then those after it.
typedef struct { float *z, *pi, *o, *G, *state, *before, *dz, *dpi, *adjoint, *scratch; } Arrays;
typedef struct { double *o, *state, *dz, *dpi, *adjoint; } Exact;

static float* copy(const float* x, size_t n) { return memcpy(xmalloc((n + 1) * sizeof *x), x, n * sizeof *x); }
static float* numbers(Rng* rng, size_t n, double scale) {
    float* x = xmalloc((n + 1) * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (float)(scale * rng_normal(rng));
    return x;
}
static size_t states(int HS) { return B * delta_rule_state_size(NH * HS, HS); }

static Arrays arrays_new(int HS, int T, Values values) {
    Rng rng = rng_seeded(7, (uint64_t)(HS * 1000 + T));
    const size_t n = (size_t)B * T * NH * HS, rows = (size_t)B * NH * T;
    Arrays a = {.z = numbers(&rng, n, 0.5), .pi = numbers(&rng, rows, 1), .o = numbers(&rng, n, 1),
                .G = numbers(&rng, states(HS), 1), .state = numbers(&rng, states(HS), 0.1), .dz = numbers(&rng, n, 1),
                .dpi = numbers(&rng, rows, 1), .adjoint = numbers(&rng, states(HS), 0.1),
                .scratch = xmalloc(threads_max() * delta_rule_scratch_size(HS) * sizeof(float))};
    for (size_t i = 0; i < rows; i++)
        a.pi[i] = values == PI_NEAR_1 ? 0.999999f : values == PI_NEAR_0 ? 1e-6f : (float)rng_uniform(&rng);
    for (size_t i = 0; values == ZERO_KEYS && i < n; i++) a.z[i] *= (i / HS) % 3 == 0 ? 0 : 1;
    a.before = copy(a.state, states(HS));
    return a;
}

static void arrays_free(Arrays* a) {
    float* all[] = {a->z, a->pi, a->o, a->G, a->state, a->before, a->dz, a->dpi, a->adjoint, a->scratch};
    for (size_t i = 0; i < countof(all); i++) free(all[i]);
}

static DeltaRule args_of(const Arrays* a, int HS, int T) {
    return (DeltaRule){.B = B, .T = T, .C = NH * HS, .NH = NH, .HS = HS, .z = a->z, .pi = a->pi, .o = a->o, .G = a->G,
                       .stride = delta_rule_state_size(NH * HS, HS), .state = a->state, .scratch = a->scratch,
                       .before = a->before, .d_o = a->dz, .dz = a->dz, .dpi = a->dpi, .adjoint = a->adjoint};
}

// ---- The equations for one token, of a head. G[d·HS + i]; all G, keys and errors are kept for backward. -------------

typedef struct { double *G, *k, *o, *e; } Head;   // (T+1,HS,HS), (T+1,HS) twice, from the state on; (T,HS)

static double key(double* k, const float* z, int HS) {
    double squares = TOST_ENERGY_MIN;
    for (int d = 0; d < HS; d++) squares += (double)z[d] * z[d];
    for (int d = 0; d < HS; d++) k[d] = z[d] / sqrt(squares);
    return 1 / sqrt(squares);
}

static void exact_forward(const Head* x, const float* z, const float* pi, int C, int HS, int T) {
    for (int t = 0; t < T; t++, z += C) {
        const size_t before = (size_t)t * HS, now = before + HS;
        key(x->k + now, z, HS);
        for (int d = 0; d < HS; d++) {
            x->e[before + d] = pi[t] * (z[d] - x->o[before + d]);
            x->o[now + d] = 0;
            for (int i = 0; i < HS; i++) {
                const double G = x->G[(before + d) * HS + i] + x->e[before + d] * x->k[before + i];
                x->G[(now + d) * HS + i] = G;
                x->o[now + d] += G * x->k[now + i];
            }
        }
    }
}

// dG, dk, do_after: the adjoint. dz: do, then dz
static void exact_backward(const Head* x, double* dG, double* dk, double* do_after, double* dz, double* dpi,
                           const float* z, const float* pi, int C, int HS, int T) {
    double *k = xcalloc(HS, sizeof *k), *dk_before = xcalloc(HS, sizeof *k);
    for (int t = T - 1; t >= 0; t--) {
        const size_t before = (size_t)t * HS, now = before + HS, at = (size_t)t * C;
        const double factor = key(k, z + at, HS);
        double k_dk = 0;
        dpi[t] = 0;
        memset(dk_before, 0, HS * sizeof *dk_before);
        for (int d = 0; d < HS; d++) {
            double de = 0, do_d = dz[at + d] + do_after[d];
            for (int i = 0; i < HS; i++) {
                dk[i] += do_d * x->G[(now + d) * HS + i];
                dG[d * HS + i] += do_d * k[i];
                dk_before[i] += x->e[before + d] * dG[d * HS + i];
                de += dG[d * HS + i] * x->k[before + i];
            }
            dpi[t] += de * (z[at + d] - x->o[before + d]);
            do_after[d] = -pi[t] * de;
        }
        for (int i = 0; i < HS; i++) k_dk += k[i] * dk[i];
        for (int d = 0; d < HS; d++) dz[at + d] = factor * (dk[d] - k[d] * k_dk) - do_after[d];
        memcpy(dk, dk_before, HS * sizeof *dk);
    }
    free(k);
    free(dk_before);
}

static double* doubles(const float* x, size_t n) {
    double* y = xmalloc((n + 1) * sizeof *y);
    for (size_t i = 0; i < n; i++) y[i] = x[i];
    return y;
}

// From the arrays as they are before forward and backward
static Exact exact_new(const Arrays* a, int HS, int T) {
    const int C = NH * HS;
    const size_t n = (size_t)B * T * C, square = (size_t)HS * HS;
    const Exact x = {doubles(a->o, n), doubles(a->state, states(HS)), doubles(a->dz, n),
                     doubles(a->dpi, (size_t)B * NH * T), doubles(a->adjoint, states(HS))};
    Head head = {xcalloc((T + 1) * square, sizeof(double)), xcalloc((size_t)(T + 1) * HS, sizeof(double)),
                 xcalloc((size_t)(T + 1) * HS, sizeof(double)), xcalloc((size_t)T * HS, sizeof(double))};
    for (int i = 0; i < B * NH; i++) {
        const int b = i / NH, h = i % NH;
        double *state = x.state + b * delta_rule_state_size(C, HS), *adjoint = x.adjoint + (state - x.state);
        double *G = state + h * square, *k = state + (size_t)C * HS + h * HS, *o = k + C;
        const size_t at = (size_t)b * T * C + h * HS, row = (size_t)i * T;
        for (int d = 0; d < HS * HS; d++) head.G[d] = G[d % HS * HS + d / HS];
        memcpy(head.k, k, HS * sizeof *k);
        memcpy(head.o, o, HS * sizeof *o);
        exact_forward(&head, a->z + at, a->pi + row, C, HS, T);
        for (int d = 0; d < HS * HS; d++) G[d % HS * HS + d / HS] = head.G[T * square + d];
        memcpy(k, head.k + (size_t)T * HS, HS * sizeof *k);
        memcpy(o, head.o + (size_t)T * HS, HS * sizeof *o);
        for (int t = 0; t < T; t++) memcpy(x.o + at + (size_t)t * C, head.o + (t + 1) * HS, HS * sizeof *o);
        double* dk = adjoint + (size_t)C * HS + h * HS;
        exact_backward(&head, adjoint + h * square, dk, dk + C, x.dz + at, x.dpi + row, a->z + at, a->pi + row, C, HS,
                       T);
    }
    double* all[] = {head.G, head.k, head.o, head.e};
    for (size_t i = 0; i < countof(all); i++) free(all[i]);
    return x;
}

static double error(const float* x, const double* y, size_t n) {
    double squares = 0, all = 0;
    for (size_t i = 0; i < n; i++) squares += (x[i] - y[i]) * (x[i] - y[i]), all += y[i] * y[i];
    return sqrt(squares / (all + DBL_MIN));
}

static void check_errors(Checks* c, const char* what, const Arrays* a, const Exact* x, int HS, int T, bool backward) {
    const size_t n = (size_t)B * T * NH * HS, rows = (size_t)B * NH * T;
    const struct { const char* name; double error; } all[] = {
        {"o", error(a->o, x->o, n)}, {"state", error(a->state, x->state, states(HS))},
        {"dz", error(a->dz, x->dz, n)}, {"dΠ", error(a->dpi, x->dpi, rows)},
        {"adjoint", error(a->adjoint, x->adjoint, states(HS))},
    };
    for (int i = 0; i < (backward ? 5 : 2); i++)
        check(c, all[i].error <= 3e-6, "%s, %d tokens, heads of %d channels: relative L2 error of %s %.2e", what, T, HS,
              all[i].name, all[i].error);
}

// Forward and backward over the tokens from t on, with arrays of all T tokens
static void part_pass(const Arrays* all, int HS, int T, int t, int n, float* before, bool backward) {
    const int C = NH * HS;
    Arrays a = *all;
    a.z = xmalloc((size_t)B * n * C * sizeof(float)), a.o = xmalloc((size_t)B * n * C * sizeof(float));
    a.dz = xmalloc((size_t)B * n * C * sizeof(float));
    a.pi = xmalloc((size_t)B * NH * n * sizeof(float)), a.dpi = xmalloc((size_t)B * NH * n * sizeof(float));
    const size_t row = (size_t)n * C * sizeof(float), heads = (size_t)n * sizeof(float);
    for (int b = 0; b < B; b++) {
        memcpy(a.z + (size_t)b * n * C, all->z + ((size_t)b * T + t) * C, row);
        memcpy(a.dz + (size_t)b * n * C, all->dz + ((size_t)b * T + t) * C, row);
    }
    for (int i = 0; i < B * NH; i++) memcpy(a.pi + (size_t)i * n, all->pi + (size_t)i * T + t, heads);
    a.before = before;
    a.state = copy(before, states(HS));
    const DeltaRule args = args_of(&a, HS, n);
    delta_rule_forward(&args);
    if (backward) delta_rule_backward(&args);
    else memcpy(all->state, a.state, states(HS) * sizeof(float));
    for (int b = 0; b < B; b++) {
        memcpy(all->o + ((size_t)b * T + t) * C, a.o + (size_t)b * n * C, row);
        memcpy(all->dz + ((size_t)b * T + t) * C, a.dz + (size_t)b * n * C, row);
    }
    for (int i = 0; backward && i < B * NH; i++) memcpy(all->dpi + (size_t)i * T + t, a.dpi + (size_t)i * n, heads);
    float* own[] = {a.z, a.o, a.dz, a.pi, a.dpi, a.state};
    for (size_t i = 0; i < countof(own); i++) free(own[i]);
}

static void test_training(Checks* c, int HS, int T, Values values) {
    Arrays a = arrays_new(HS, T, values), parts = arrays_new(HS, T, values);
    const Exact x = exact_new(&a, HS, T);
    const DeltaRule args = args_of(&a, HS, T);
    delta_rule_forward(&args);
    delta_rule_backward(&args);
    check_errors(c, values_names[values], &a, &x, HS, T, true);
    const int first = T * 2 / 3;
    if (first > 0) {
        part_pass(&parts, HS, T, 0, first, parts.before, false);
        float* between = copy(parts.state, states(HS));
        part_pass(&parts, HS, T, first, T - first, between, false);
        part_pass(&parts, HS, T, first, T - first, between, true);
        part_pass(&parts, HS, T, 0, first, parts.before, true);
        check_errors(c, "in two passes", &parts, &x, HS, T, true);
        free(between);
    }
    double* exact[] = {x.o, x.state, x.dz, x.dpi, x.adjoint};
    for (size_t i = 0; i < countof(exact); i++) free(exact[i]);
    arrays_free(&a);
    arrays_free(&parts);
}

// Without G: T tokens at once, and if they are few, with the bits of T passes over one token.
static void test_inference(Checks* c, int HS, int T) {
    Arrays a = arrays_new(HS, T, USUAL), one = arrays_new(HS, T, USUAL);
    const Exact x = exact_new(&a, HS, T);
    const size_t n = (size_t)B * T * NH * HS;
    free(a.G), free(one.G);
    a.G = one.G = NULL;
    const DeltaRule args = args_of(&a, HS, T);
    delta_rule_forward(&args);
    check_errors(c, "inference", &a, &x, HS, T, false);
    for (int t = 0; t < T; t++) {
        float* before = copy(one.state, states(HS));
        part_pass(&one, HS, T, t, 1, before, false);
        free(before);
    }
    check_errors(c, "one by one", &one, &x, HS, T, false);
    check(c, T > 32 || (memcmp(a.o, one.o, n * sizeof *a.o) == 0 &&
                        memcmp(a.state, one.state, states(HS) * sizeof *a.state) == 0),
          "%d tokens at once and one by one, heads of %d channels: other bits", T, HS);
    double* exact[] = {x.o, x.state, x.dz, x.dpi, x.adjoint};
    for (size_t i = 0; i < countof(exact); i++) free(exact[i]);
    arrays_free(&a);
    arrays_free(&one);
}

int main(void) {
    Checks c = {.suite = "test_delta_rule"};
    static const int sizes[] = {3, 5, 15, 16, 32, 33, 64, 96, 128}, lengths[] = {1, 2, 15, 16, 17, 31, 32, 33, 100};
    for (size_t i = 0; i < countof(sizes); i++)
        for (size_t j = 0; j < countof(lengths); j++) {
            for (int values = 0; values < (sizes[i] < 40 ? VALUES : 1); values++)
                test_training(&c, sizes[i], lengths[j], (Values)values);
            test_inference(&c, sizes[i], lengths[j]);
        }
    return checks_verdict(&c);
}
