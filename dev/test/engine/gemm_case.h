// gemm_case.h: random matrix products and their errors, for the tests of gemm.h.
#ifndef TOST_GEMM_CASE_H
#define TOST_GEMM_CASE_H

#include <float.h>
#include <math.h>
#include <stdbool.h>

#include "base/memory.h"
#include "cpu/gemm.h"
#include "base/rng.h"

// One product: operands, the initial c, and c, which is followed by GUARDS values that must not change.
enum { GUARDS = 64 };
static const float GUARD = 12345.678f;

typedef struct { int M, N, K; bool at, bt; float beta; float *a, *b, *before, *c; } Case;

static inline float* random_floats(Rng* rng, size_t n) {
    float* x = xmalloc((n + 1) * sizeof(float));
    for (size_t i = 0; i < n; i++) x[i] = (float)(2 * rng_uniform(rng) - 1);
    return x;
}

static inline Case new_case(Rng* rng, int M, int N, int K, bool at, bool bt, float beta) {
    Case t = { M, N, K, at, bt, beta, NULL, NULL, NULL, NULL };
    t.a = random_floats(rng, (size_t)M*K);
    t.b = random_floats(rng, (size_t)K*N);
    t.before = random_floats(rng, (size_t)M*N);
    t.c = xmalloc(((size_t)M*N + GUARDS) * sizeof(float));
    return t;
}

static inline void free_case(Case* t) {
    free(t->a);
    free(t->b);
    free(t->before);
    free(t->c);
}

static inline void run_case(Case* t, Gemm* multiply) {
    size_t n = (size_t)t->M * t->N;
    for (size_t i = 0; i < n; i++) t->c[i] = t->beta == 0 ? NAN : t->before[i];
    for (size_t i = n; i < n + GUARDS; i++) t->c[i] = GUARD;
    multiply(t->c, t->a, t->at, t->b, t->bt, t->M, t->N, t->K, t->beta);
}

// The largest |c - exact|, relative to its bound FLT_EPSILON · (2 + sqrt(K)) · (sum of |a||b| + |beta · before|).
// Rounding errors of K terms of random sign grow as sqrt(K); a wrong, missing or repeated term is far above the bound.
static inline double worst_error(const Case* t) {
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

static inline bool guards_intact(const Case* t) {
    const float* end = t->c + (size_t)t->M * t->N;
    for (int i = 0; i < GUARDS; i++) if (end[i] != GUARD) return false;
    return true;
}

#endif
