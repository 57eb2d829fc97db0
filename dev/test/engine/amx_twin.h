// amx_twin.h: AMX's tile instructions in plain C, after the pseudo-code of Intel's manual, under the names of the
// intrinsics. gemm.c uses them instead of the processor's if TOST_AMX_HEADER names this file.
#ifndef TOST_AMX_TWIN_H
#define TOST_AMX_TWIN_H

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct { uint8_t palette, start_row, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; } TwinConfig;
typedef struct { uint32_t word[TILE_ROWS][TILE_ROW_BYTES / 4]; } TwinTile;

// Tiles and their configuration belong to a thread. palette 0: not configured.
static _Thread_local struct { TwinConfig config; TwinTile tile[TILE_REGISTERS]; } twin;

static inline bool amx_enable(void) { return getenv("AMX_TWIN_REFUSED") == NULL; }

// The processor raises an exception.
static inline void twin_require(bool ok) { if (!ok) abort(); }

static inline void twin_loadconfig(const void* config) {
    memset(&twin, 0, sizeof twin);
    memcpy(&twin.config, config, sizeof twin.config);
    twin_require(sizeof(TwinConfig) == 64 && twin.config.palette == 1);
    for (int t = 0; t < 16; t++)
        twin_require(t < TILE_REGISTERS ? twin.config.rows[t] <= TILE_ROWS && twin.config.bytes[t] <= TILE_ROW_BYTES
                                        : twin.config.rows[t] == 0 && twin.config.bytes[t] == 0);
}

static inline void twin_release(void) { memset(&twin, 0, sizeof twin); }

static inline void twin_zero(int t) {
    twin_require(twin.config.palette == 1 && twin.config.rows[t] > 0);
    memset(&twin.tile[t], 0, sizeof twin.tile[t]);
}

static inline void twin_loadd(int t, const void* base, size_t stride) {
    twin_zero(t);
    for (int i = 0; i < twin.config.rows[t]; i++)
        memcpy(twin.tile[t].word[i], (const char*)base + i*stride, twin.config.bytes[t]);
}

static inline void twin_stored(int t, void* base, size_t stride) {
    twin_require(twin.config.palette == 1);
    for (int i = 0; i < twin.config.rows[t]; i++)
        memcpy((char*)base + i*stride, twin.tile[t].word[i], twin.config.bytes[t]);
}

static inline float twin_flush(float x) { return fabsf(x) < FLT_MIN ? copysignf(0, x) : x; }

static inline float twin_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return twin_flush(x);
}

// The product of two bf16 is exact in float32, so the multiply-add rounds once.
static inline float twin_fma(uint32_t x, uint32_t y, float sum) {
    return twin_flush(twin_float(x) * twin_float(y) + sum);
}

// d (m,n) += a (m,k) · b (k,n), where a and b have pairs of bf16. Even and odd depths are summed apart.
static inline void twin_dpbf16ps(int d, int a, int b) {
    const TwinConfig* c = &twin.config;
    const int words = c->bytes[a] / 4, lanes = c->bytes[d] / 4;
    twin_require(c->palette == 1 && d != a && d != b && a != b);
    twin_require(c->rows[a] == c->rows[d] && c->bytes[b] == c->bytes[d] && words == c->rows[b]);
    for (int m = 0; m < c->rows[d]; m++) {
        float even[TILE_ROW_BYTES / 4] = {0}, odd[TILE_ROW_BYTES / 4] = {0};
        for (int k = 0; k < words; k++)
            for (int n = 0; n < lanes; n++) {
                const uint32_t x = twin.tile[a].word[m][k], y = twin.tile[b].word[k][n];
                even[n] = twin_fma(x << 16, y << 16, even[n]);
                odd[n] = twin_fma(x & 0xffff0000, y & 0xffff0000, odd[n]);
            }
        for (int n = 0; n < lanes; n++) {
            const float sum = twin_flush(twin_float(twin.tile[d].word[m][n]) + twin_flush(even[n] + odd[n]));
            memcpy(&twin.tile[d].word[m][n], &sum, sizeof sum);
        }
    }
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig twin_loadconfig
#define _tile_release    twin_release
#define _tile_zero       twin_zero
#define _tile_loadd      twin_loadd
#define _tile_stored     twin_stored
#define _tile_dpbf16ps   twin_dpbf16ps

#endif
