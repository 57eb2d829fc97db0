// cpu_layers.c: the CPU engine, with some of its layers as functions.
#include "train_gpt_tost.c"

#include "dev/test/cuda/cpu_layers.h"

void cpu_tssa(const CpuTssa* k) {
    const size_t state = tssa_state_size(k->C, k->NH) * sizeof(double);
    float* dpi = (float*)xcalloc((size_t)k->B * k->NH * k->T, sizeof *dpi);
    const Tssa args = {
        .B = k->B, .T = k->T, .C = k->C, .NH = k->NH, .HS = k->C / k->NH, .block_size = k->block_size,
        .z = k->z, .temp = k->temp, .denom_bias = k->denom_bias, .u = k->u, .pi = k->pi, .y = k->y,
        .stride = 2 * tssa_state_size(k->C, k->NH),
        .state = (double*)xcalloc(k->B, state), .adjoint = (double*)xcalloc(k->B, state),
        .saved = (double*)xcalloc(k->B * tssa_blocks(k->T), state),
        .scratch = (double*)xcalloc(tssa_scratch_size(k->C, k->NH), sizeof(double)), .dy = k->dy, .dz = k->dz,
        .dpi = dpi, .dscore = dpi, .dtemp = k->dtemp,
        .ddenom_bias = k->ddenom_bias};
    tssa_forward(&args);
    tssa_backward(&args);
    free(args.state);
    free(args.adjoint);
    free(args.saved);
    free(args.scratch);
    free(dpi);
}

void cpu_norm(const CpuNorm* k, size_t rows, int C) {
    residual_forward(k->x_out, k->x, k->branch, k->gamma, rows, C);
    layernorm_forward(k->y, k->mean, k->rstd, k->x_out, k->w, k->b, rows, C);
    layernorm_backward(k->dx, k->dw, k->db, k->dy, k->x_out, k->mean, k->rstd, k->w, rows, C);
    residual_backward(k->dbranch, k->dgamma, k->dx, k->branch, k->gamma, rows, C);
}
