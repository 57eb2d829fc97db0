// bf16.h: bfloat16, the upper half of a float32.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline float bf16_to_float(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

// The bits of a float32, or a vector of them, with the upper half rounded to nearest, ties to even. Not for NaN.
#define BF16_ROUND(bits) ((bits) + 0x7fff + ((bits) >> 16 & 1))

// x rounded to bf16. A NaN stays a NaN.
static inline float rounded_bf16(float x) {
    union { float f; uint32_t u; } bits = {.f = x}, r;
    r.u = BF16_ROUND(bits.u) & 0xffff0000u;
    return x == x ? r.f : x;
}

static inline uint16_t bf16_from_float(float x) {
    union { float f; uint32_t u; } bits = {.f = x};
    return (uint16_t)((x == x ? BF16_ROUND(bits.u) : bits.u | 0x400000) >> 16);
}
