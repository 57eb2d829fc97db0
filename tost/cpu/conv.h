// conv.h: convolutions over time on the CPU, with --conv 4: a filter of 4 taps for each channel,
//     y[t,c] = Σ_k weight[c,k] x[t-3+k,c]
// The inputs of the three tokens before a chunk are part of its state: `before` (B,3,C).
#pragma once

#include <stddef.h>

#include "model.h"

enum { CONV_BEFORE = TOST_CONV_WIDTH - 1 };   // tokens of a chunk's `before`

typedef struct {
    int B, T, C;
    const float* weight;   // (C,4)
    size_t stride;         // floats from `before` of a sequence to that of the next
} Conv;

// Sets y, and `before` for the next chunk.  y, x (B,T,C)
void conv_forward(float* y, float* before, const float* x, const Conv* args);

// dx =, in place: holds dy on entry; dweight +=.   dx[t] = Σ_k weight[k] dy[t+3-k],   dweight[k] = Σ_t x[t] dy[t+3-k]
// adjoint: on entry the gradient of the next chunk's `before`, on return that of this one's. before NULL: it is zero,
// and adjoint is not written.
void conv_backward(float* dx, float* dweight, float* adjoint, const float* x, const float* before, const Conv* args);
