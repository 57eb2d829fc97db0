// vectors.h: vectors of floats of any processor, as GCC's vector extensions, for matrix products and the delta rule.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __AVX__
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

// A vector has LANES floats.
#ifdef __AVX512F__
enum { LANES = 16 };
#elif defined(__AVX__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif

typedef uint32_t Word __attribute__((may_alias));        // a float, or two bf16
typedef float FloatWord __attribute__((may_alias));
typedef float Vec __attribute__((vector_size(LANES * sizeof(float)), may_alias));
typedef float VecU __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float)), may_alias));
typedef Word VecWord __attribute__((vector_size(LANES * sizeof(Word)), may_alias));
typedef Word VecWordU __attribute__((vector_size(LANES * sizeof(Word)), aligned(2), may_alias));

#define INLINE static inline __attribute__((always_inline))

INLINE int min_int(int a, int b) { return a < b ? a : b; }
INLINE int ceil_div(int a, int b) { return a / b + (a % b != 0); }

// Like fma_f32 of vector_math.h
INLINE Vec fma_vec(Vec a, Vec b, Vec c) {
#if defined(__FMA__) && defined(__AVX512F__)
    return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (Vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}
INLINE Vec broadcast(float x) { return x - (Vec){0}; }

INLINE float sum_lanes(Vec v) {
    typedef float Quad __attribute__((vector_size(16)));
    union { Vec v; Quad q[LANES / 4]; } u = {v};
    Quad q = u.q[0];
    #pragma GCC unroll 4
    for (int i = 1; i < LANES / 4; i++) q += u.q[i];
    return (q[0] + q[1]) + (q[2] + q[3]);
}

// ---------------------------------------------------------------------------------------------
// Shuffles

#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (VecWord){__VA_ARGS__})
#endif

#ifdef __AVX512F__
#define LOW_HALVES  0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH_HALVES 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#define EVENS       0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define ODDS        1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#elif defined(__AVX__)
#define LOW_HALVES  0, 8, 1, 9, 2, 10, 3, 11
#define HIGH_HALVES 4, 12, 5, 13, 6, 14, 7, 15
#define EVENS       0, 2, 4, 6, 8, 10, 12, 14
#define ODDS        1, 3, 5, 7, 9, 11, 13, 15
#else
#define LOW_HALVES  0, 4, 1, 5
#define HIGH_HALVES 2, 6, 3, 7
#define EVENS       0, 2, 4, 6
#define ODDS        1, 3, 5, 7
#endif

// Interleaves the low or the high halves of a and b.
INLINE VecWord zip_low(VecWord a, VecWord b) { return SHUFFLE(a, b, LOW_HALVES); }
INLINE VecWord zip_high(VecWord a, VecWord b) { return SHUFFLE(a, b, HIGH_HALVES); }
INLINE VecWord evens(VecWord a, VecWord b) { return SHUFFLE(a, b, EVENS); }
INLINE VecWord odds(VecWord a, VecWord b) { return SHUFFLE(a, b, ODDS); }

// Lane i of the result is the sum of the lanes of x[i], for n <= LANES vectors, which are overwritten. Neighbors are
// added first: the order of a sum does not depend on n.
INLINE Vec sums_of_lanes(Vec* x, int n) {
    #pragma GCC unroll 4
    for (int lanes = LANES; lanes > 1; lanes /= 2) {
        const int pairs = ceil_div(n, 2);
        #pragma GCC unroll 8
        for (int i = 0; i < pairs; i++) {
            const VecWord a = (VecWord)x[2 * i], b = (VecWord)x[2 * i + (2 * i + 1 < n)];
            x[i] = (Vec)evens(a, b) + (Vec)odds(a, b);
        }
        n = pairs;
    }
    return x[0];
}

// LANES x LANES: every pass moves one bit of the row number to the column number.
INLINE void transpose(VecWord x[LANES]) {
    #pragma GCC unroll 4
    for (int bit = 1; bit < LANES; bit *= 2) {
        VecWord y[LANES];
        #pragma GCC unroll 8
        for (int i = 0; i < LANES / 2; i++) {
            y[2 * i] = zip_low(x[i], x[i + LANES / 2]);
            y[2 * i + 1] = zip_high(x[i], x[i + LANES / 2]);
        }
        #pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) x[i] = y[i];
    }
}

// LANES rows of `to`, to_row apart, = the transpose of those of `from`
INLINE void transpose_rows(float* to, size_t to_row, const float* from, size_t from_row) {
    VecWord x[LANES];
    #pragma GCC unroll 16
    for (int l = 0; l < LANES; l++) x[l] = *(const VecWordU*)(from + l * from_row);
    transpose(x);
    #pragma GCC unroll 16
    for (int l = 0; l < LANES; l++) *(VecWordU*)(to + l * to_row) = x[l];
}
