// test_delta_rule.c: the memory of the CPU engine: passes over one or three tokens against one pass over all of them,
// and tokens of inference one by one against several at once. The golden files test its equations.
#include "tost/cpu/delta_rule.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/openmp.h"
#include "base/rng.h"
#include "dev/test/check.h"
#include "engine.h"
#include "model.h"

enum { B = 2, NH = 2 };
typedef enum { USUAL, PI_NEAR_1, PI_NEAR_0, ZERO_KEYS, VALUES } Values;
static const char* const values_names[] = {"usual", "Π near 1", "Π near 0", "keys of norm 0"};

// Arrays of a pass. state and adjoint are those before the pass, then those after it.
typedef struct { float *z, *pi, *o, *G, *state, *before, *dz, *dpi, *adjoint, *scratch; } Arrays;

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

static double error(const float* x, const float* y, size_t n) {
    double squares = 0, all = 0;
    for (size_t i = 0; i < n; i++) squares += (x[i] - y[i]) * (double)(x[i] - y[i]), all += y[i] * (double)y[i];
    return sqrt(squares / (all + DBL_MIN));
}

static void check_near(Checks* c, const char* what, const Arrays* a, const Arrays* x, int HS, int T, bool backward) {
    const size_t n = (size_t)B * T * NH * HS, rows = (size_t)B * NH * T;
    const struct { const char* name; double error; } all[] = {
        {"o", error(a->o, x->o, n)}, {"state", error(a->state, x->state, states(HS))},
        {"dz", error(a->dz, x->dz, n)}, {"dΠ", error(a->dpi, x->dpi, rows)},
        {"adjoint", error(a->adjoint, x->adjoint, states(HS))},
    };
    for (int i = 0; i < (backward ? 5 : 2); i++)
        check(c, all[i].error <= 5e-6, "%s, %d tokens, heads of %d channels: %s differs by %.2e", what, T, HS,
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

// Passes over n tokens each: forward in order, then backward from the last
static void passes(Arrays* a, int HS, int T, int n, bool backward) {
    float** before = xmalloc(T * sizeof *before);
    int t = 0;
    for (; t < T; t += n) {
        before[t] = copy(a->state, states(HS));
        part_pass(a, HS, T, t, T - t < n ? T - t : n, before[t], false);
    }
    while ((t -= n) >= 0) {
        if (backward) part_pass(a, HS, T, t, T - t < n ? T - t : n, before[t], true);
        free(before[t]);
    }
    free(before);
}

static void test_training(Checks* c, int HS, int T, Values values) {
    Arrays whole = arrays_new(HS, T, values);
    passes(&whole, HS, T, T, true);
    for (int n = 1; n <= 3; n += 2) {
        Arrays parts = arrays_new(HS, T, values);
        passes(&parts, HS, T, n, true);
        check_near(c, values_names[values], &parts, &whole, HS, T, true);
        arrays_free(&parts);
    }
    arrays_free(&whole);
}

// Without G: T tokens at once, and if they are few, with the bits of T passes over one token.
static void test_inference(Checks* c, int HS, int T, Values values) {
    Arrays trained = arrays_new(HS, T, values), a = arrays_new(HS, T, values), one = arrays_new(HS, T, values);
    passes(&trained, HS, T, T, false);
    free(a.G), free(one.G);
    a.G = one.G = NULL;
    passes(&a, HS, T, T, false);
    check_near(c, "inference", &a, &trained, HS, T, false);
    passes(&one, HS, T, 1, false);
    check_near(c, "one by one", &one, &trained, HS, T, false);
    check(c, T > TOST_FEW_ROWS || (memcmp(a.o, one.o, (size_t)B * T * NH * HS * sizeof *a.o) == 0 &&
                                   memcmp(a.state, one.state, states(HS) * sizeof *a.state) == 0),
          "%d tokens at once and one by one, heads of %d channels: other bits", T, HS);
    arrays_free(&trained);
    arrays_free(&a);
    arrays_free(&one);
}

int main(void) {
    Checks c = {.suite = "test_delta_rule"};
    static const struct { int HS, T; } shapes[] = {
        {16, 2}, {16, 50}, {16, 100}, {33, 17}, {33, 70}, {64, 17}, {128, 17}};
    for (size_t i = 0; i < countof(shapes); i++)
        for (int values = 0; values < VALUES; values++) {
            test_training(&c, shapes[i].HS, shapes[i].T, (Values)values);
            test_inference(&c, shapes[i].HS, shapes[i].T, (Values)values);
        }
    return checks_verdict(&c);
}
