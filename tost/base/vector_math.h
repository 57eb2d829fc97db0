// vector_math.h: e^x, its sum over a row, and the normal distribution function in float32, without branches or library
// calls, so that loops over them vectorize.
#pragma once

#include <math.h>
#include <stdint.h>

// a·b + c, rounded once if the processor has an instruction for it. Compilers must not fuse products and sums on their
// own (-ffp-contract=off): some do it differently in the vectorized body of a loop and in its remainder.
static inline float fma_f32(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

// e^x for x in [-87, 88], to 2 ulp. Values below are clamped to -87; NaN gives NaN.
// x = n ln2 + r with |r| <= ln2/2; ln2 in two parts. e^r is a minimax polynomial (relative error 2e-9); 2^n is written
// into the exponent bits.
static inline float exp_split(float* power, float x) {   // power: 2^n; returns r
    const float shift = 0x1.8p23f;   // x + shift is rounded to an integer, which is then in the low bits
    union { float f; uint32_t u; } n, two_n;
    x = x < -87.0f ? -87.0f : x;
    n.f = fma_f32(x, 1.442695041f, shift);
    const float whole = n.f - shift;
    two_n.u = (n.u + 127u) << 23;
    *power = two_n.f;
    return fma_f32(whole, -1.428606820e-6f, x - whole * 0.693145752f);   // the first product is exact
}

static inline float exp_join(float power, float r) {
    float p = 1.383684558e-3f;
    p = fma_f32(p, r, 8.374815802e-3f);
    p = fma_f32(p, r, 4.166822558e-2f);
    p = fma_f32(p, r, 1.666642017e-1f);
    p = fma_f32(p, r, 4.999999208e-1f);
    p = fma_f32(p, r, 1.000000036f);
    p = fma_f32(p, r, 1.0f);
    return p * power;
}

static inline float exp_f32(float x) {
    float power, r = exp_split(&power, x);
    return exp_join(power, r);
}

// x[i] = e^(x[i] - largest) for i < n. Returns the sum: groups of four are added in float, and these in double. EXPS
// values at a time, with exp_split for all before exp_join, because out-of-order execution does not reach far enough to
// overlap whole calls of exp_f32. Prefetches the row after x.
static inline double exp_row(float* x, float largest, int n) {
    enum { SUMS = 16, EXPS = 4 * SUMS };
    double sums[SUMS] = {0}, total = 0;
    for (int at = 0; at + EXPS <= n; at += EXPS) {
        float e[EXPS], power[EXPS], *row = x + at;
        for (int i = 0; i < EXPS; i += 16) __builtin_prefetch(row + n + i, 1);
        #pragma omp simd
        for (int i = 0; i < EXPS; i++) e[i] = exp_split(&power[i], row[i] - largest);
        #pragma omp simd
        for (int i = 0; i < EXPS; i++) row[i] = e[i] = exp_join(power[i], e[i]);
        #pragma omp simd
        for (int i = 0; i < SUMS; i++) sums[i] += (e[i] + e[SUMS + i]) + (e[2 * SUMS + i] + e[3 * SUMS + i]);
    }
    for (int i = n / EXPS * EXPS; i < n; i++) total += x[i] = exp_f32(x[i] - largest);
    for (int i = 0; i < SUMS; i++) total += sums[i];
    return total;
}

static inline float normal_bell(float x) { return exp_f32(-0.5f * x * x); }   // e^(-x²/2)

// Φ(x), the distribution function of the standard normal. bell: normal_bell(x)
// Φ(-|x|) = e^(-x²/2) · t · R(t) with t = 1/(1 + |x|/4) and R a minimax polynomial (relative error 3e-8), so the lower
// tail is accurate in relative terms too.
static inline float normal_cdf(float x, float bell) {
    const float t = 1.0f / (1.0f + 0.25f * fabsf(x));
    float r = 1.981245595e-2f;
    r = fma_f32(r, t, -8.101188733e-2f);
    r = fma_f32(r, t, 9.584573089e-2f);
    r = fma_f32(r, t, -3.196671583e-2f);
    r = fma_f32(r, t, 6.384616728e-2f);
    r = fma_f32(r, t, 5.892324058e-2f);
    r = fma_f32(r, t, 8.161374777e-2f);
    r = fma_f32(r, t, 9.346518926e-2f);
    r = fma_f32(r, t, 9.973648893e-2f);
    r = fma_f32(r, t, 9.973556591e-2f);
    const float tail = bell * t * r;
    return x > 0.0f ? 1.0f - tail : tail;
}
