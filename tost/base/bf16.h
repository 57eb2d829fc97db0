// bf16.h: bfloat16, the upper half of a float32.
#ifndef TOST_BF16_H
#define TOST_BF16_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline float bf16_to_float(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

// Rounds to nearest, ties to even. A NaN stays a NaN.
static inline uint16_t bf16_from_float(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1), quiet_nan = bits | 0x400000;
    return (uint16_t)((f == f ? rounded : quiet_nan) >> 16);
}

static inline void bf16_from_floats(uint16_t* out, const float* x, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = bf16_from_float(x[i]);
}

#endif
