// cpu_layers.h: layers of the CPU engine, with which kernels_test.cpp compares the kernels. Gradients of parameters are
// added.
#ifndef CPU_LAYERS_H
#define CPU_LAYERS_H

#include <stddef.h>

// Forward and backward; denom_bias and ddenom_bias from the first token on
typedef struct {
    int B, T, C, NH, block_size;
    const float *z, *dy, *temp, *denom_bias;
    float *u, *pi, *y, *dz, *dtemp, *ddenom_bias;   // dtemp NULL: membership is uniform
} CpuTssa;

void cpu_tssa(const CpuTssa* k);

// x_out = x + gamma branch and its LayerNorm, forward and backward; dx has the residual's own gradient. (rows,C), (C)
typedef struct {
    const float *x, *branch, *gamma, *w, *b, *dy;
    float *x_out, *y, *mean, *rstd, *dx, *dbranch, *dw, *db, *dgamma;
} CpuNorm;

void cpu_norm(const CpuNorm* k, size_t rows, int C);

#endif
