// conv.c: convolutions over time. Backward divides the channels among the threads, and sums over time in order.
#include "cpu/conv.h"

#include <string.h>

#include "cpu/threads.h"
#include "cpu/vectors.h"

enum { WIDTH = TOST_CONV_WIDTH, CHANNELS = 64, SUMS = 16 };   // taps; channels of a thread, and of a loop, in backward

// The input of token t >= -3 of a sequence
static const float* input(const float* x, const float* before, int t, int C) {
    return t < 0 ? before + (size_t)(t + CONV_BEFORE) * C : x + (size_t)t * C;
}

void conv_forward(float* y, float* before, const float* x, const Conv* args) {
    const int B = args->B, T = args->T, C = args->C;
    #pragma omp parallel for schedule(static) if ((size_t)B * T > SERIAL_ROWS)
    for (size_t row = 0; row < (size_t)B * T; row++) {
        const int t = (int)(row % T);
        const float *x_b = x + (row - t) * C, *before_b = before + row / T * args->stride, *x3 = x + row * C;
        const float *x0 = input(x_b, before_b, t - 3, C), *x1 = input(x_b, before_b, t - 2, C);
        const float* x2 = input(x_b, before_b, t - 1, C);
        float* restrict y_c = y + row * C;
        for (int c = 0; c < C; c++) {
            const float* tap = args->weight + (size_t)c * WIDTH;
            y_c[c] = tap[0] * x0[c] + tap[1] * x1[c] + tap[2] * x2[c] + tap[3] * x3[c];
        }
    }
    for (int b = 0; b < B; b++)
        for (int i = 0; i < CONV_BEFORE; i++)
            memcpy(before + b * args->stride + (size_t)i * C,
                   input(x + (size_t)b * T * C, before + b * args->stride, T - CONV_BEFORE + i, C), C * sizeof *x);
}

// The functions below work on `width` neighboring channels of a sequence. dy (T,C), x (T,C), before (3,C)

// sum[k] += x[t] dy[t+3-k]
INLINE void token_backward(double sum[WIDTH][CHANNELS], const float* dy, const float* x_t, int t, int T, int C,
                           const int width) {
    for (int k = 0; k < WIDTH; k++) {
        const int at = t + CONV_BEFORE - k;
        if (at < 0 || at >= T) continue;
        for (int c = 0; c < width; c++) sum[k][c] += (double)dy[(size_t)at * C + c] * x_t[c];
    }
}

// The same for all tokens with three tokens after them, of n <= SUMS channels from c0 on. A constant n keeps the sums
// in registers.
INLINE void tokens_backward(double sum[WIDTH][CHANNELS], const float* dy, const float* x, int T, int C, int c0,
                            const int n) {
    double all[WIDTH][SUMS];
    for (int k = 0; k < WIDTH; k++) memcpy(all[k], sum[k] + c0, n * sizeof **all);
    for (int t = 0; t < T - CONV_BEFORE; t++) {
        const float *x_t = x + (size_t)t * C + c0, *dy_t = dy + (size_t)t * C + c0;
        for (int c = 0; c < n; c++) {
            const double x_c = x_t[c];
            for (int k = 0; k < WIDTH; k++) all[k][c] += dy_t[(size_t)(CONV_BEFORE - k) * C + c] * x_c;
        }
    }
    for (int k = 0; k < WIDTH; k++) memcpy(sum[k] + c0, all[k], n * sizeof **all);
}

// sum[k] += Σ_t x[t] dy[t+3-k]
INLINE void weight_backward(double sum[WIDTH][CHANNELS], const float* dy, const float* x, const float* before,
                            int T, int C, const int width) {
    for (int t = before ? -CONV_BEFORE : 0; t < 0; t++)
        token_backward(sum, dy, input(x, before, t, C), t, T, C, width);
    for (int c = 0; c < width; c += SUMS)
        if (width - c >= SUMS) tokens_backward(sum, dy, x, T, C, c, SUMS);
        else tokens_backward(sum, dy, x, T, C, c, width - c);
    for (int t = T > CONV_BEFORE ? T - CONV_BEFORE : 0; t < T; t++)
        token_backward(sum, dy, x + (size_t)t * C, t, T, C, width);
}

// dx[t] = Σ_k tap[k] dy[t+3-k], in place of dy: dy[t] is not needed after dx[t]. start: the first t, -3 or 0
INLINE void input_backward(float* dx, float* adjoint, const float tap[WIDTH][CHANNELS], int start, int T, int C,
                           const int width) {
    float after[CONV_BEFORE][CHANNELS];
    for (int i = 0; i < CONV_BEFORE; i++) memcpy(after[i], adjoint + (size_t)i * C, width * sizeof **after);
    for (int t = start; t < T; t++) {
        float dx_t[CHANNELS] = {0};
        if (t + CONV_BEFORE >= T) memcpy(dx_t, after[t + CONV_BEFORE - T], width * sizeof *dx_t);
        for (int k = 0; k < WIDTH; k++) {
            const int at = t + CONV_BEFORE - k;
            if (at < 0 || at >= T) continue;
            for (int c = 0; c < width; c++) dx_t[c] += tap[k][c] * dx[(size_t)at * C + c];
        }
        memcpy(t < 0 ? adjoint + (size_t)(t + CONV_BEFORE) * C : dx + (size_t)t * C, dx_t, width * sizeof *dx_t);
    }
}

// All sequences, for the channels from c0 on
INLINE void channels_backward(float* dx, float* dweight, float* adjoint, const float* x, const float* before,
                              const Conv* args, int c0, const int width) {
    const int T = args->T, C = args->C;
    const float* weight = args->weight + (size_t)c0 * WIDTH;
    float tap[WIDTH][CHANNELS];
    double sum[WIDTH][CHANNELS] = {{0}};
    for (int i = 0; i < width * WIDTH; i++) tap[i % WIDTH][i / WIDTH] = weight[i];
    for (int b = 0; b < args->B; b++) {
        const size_t at = (size_t)b * T * C + c0, at_before = b * args->stride + c0;
        const float* before_b = before ? before + at_before : NULL;
        weight_backward(sum, dx + at, x + at, before_b, T, C, width);
        input_backward(dx + at, adjoint + at_before, tap, before ? -CONV_BEFORE : 0, T, C, width);
    }
    for (int i = 0; i < width * WIDTH; i++) dweight[(size_t)c0 * WIDTH + i] += (float)sum[i % WIDTH][i / WIDTH];
}

void conv_backward(float* dx, float* dweight, float* adjoint, const float* x, const float* before, const Conv* args) {
    #pragma omp parallel for schedule(static)
    for (int c = 0; c < args->C; c += CHANNELS)   // a constant width makes whole vectors
        if (args->C - c >= CHANNELS) channels_backward(dx, dweight, adjoint, x, before, args, c, CHANNELS);
        else channels_backward(dx, dweight, adjoint, x, before, args, c, args->C - c);
}
