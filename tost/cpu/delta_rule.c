// delta_rule.c: the memory, token by token; a thread takes a head of a sequence.
#include "cpu/delta_rule.h"

#include <math.h>
#include <string.h>

#include "base/openmp.h"
#include "cpu/threads.h"
#include "model.h"

typedef struct { float *G, *k, *o; } HeadState;   // of a head; the array G holds Gᵀ in a state, and dG in an adjoint

static HeadState head_state(const DeltaRule* args, const float* states, int b, int h) {
    float* at = (float*)states + b * args->stride;
    return (HeadState){at + (size_t)h * args->HS * args->HS, at + (size_t)args->C * args->HS + h * args->HS,
                         at + (size_t)args->C * (args->HS + 1) + h * args->HS};
}

// k = factor · z. Returns the factor, 1/√(‖z‖² + 1e-12).
static float set_key(float* k, const float* z, int HS) {
    double squares = TOST_ENERGY_MIN;
    #pragma omp simd simdlen(8) reduction(+ : squares)
    for (int d = 0; d < HS; d++) squares += (double)z[d] * z[d];
    const float factor = (float)(1.0 / sqrt(squares));
    for (int d = 0; d < HS; d++) k[d] = z[d] * factor;
    return factor;
}

enum { COLUMNS = 16 };   // at once, with their sums in registers

// For `width` columns of Gᵀ, the array G: Gᵀ += k_before eᵀ, then o = G k
static inline void update_columns(float* restrict G, float* restrict o, const float* restrict e,
                                  const float* restrict k_before, const float* restrict k, int HS, int width) {
    float sum[COLUMNS] = {0};
    for (int i = 0; i < HS; i++) {
        float* restrict G_i = G + (size_t)i * HS;
        #pragma omp simd   // without it, gcc unrolls the loop and uses no vectors
        for (int d = 0; d < width; d++) {
            G_i[d] += k_before[i] * e[d];
            sum[d] += k[i] * G_i[d];
        }
    }
    memcpy(o, sum, width * sizeof *o);
}

static void head_forward(const DeltaRule* args, int b, int h) {
    const int HS = args->HS;
    const HeadState s = head_state(args, args->state, b, h);
    float *e = args->scratch + thread_index() * delta_rule_scratch_size(HS), *k = e + HS;
    for (int t = 0; t < args->T; t++) {
        const size_t at = ((size_t)b * args->T + t) * args->C + h * HS;
        const float pi = args->pi[((size_t)b * args->NH + h) * args->T + t];
        for (int d = 0; d < HS; d++) e[d] = pi * (args->z[at + d] - s.o[d]);
        set_key(k, args->z + at, HS);
        int d = 0;
        for (; d + COLUMNS <= HS; d += COLUMNS)
            update_columns(s.G + d, s.o + d, e + d, s.k, k, HS, COLUMNS);
        if (d < HS) update_columns(s.G + d, s.o + d, e + d, s.k, k, HS, HS - d);
        memcpy(s.k, k, HS * sizeof *k);
        memcpy(args->o + at, s.o, HS * sizeof *k);
    }
    float* G = args->G ? args->G + ((size_t)b * args->C + h * HS) * HS : NULL;
    for (int d = 0; G && d < HS; d++)
        for (int i = 0; i < HS; i++) G[(size_t)d * HS + i] = s.G[(size_t)i * HS + d];
}

void delta_rule_forward(const DeltaRule* args) {
    #pragma omp parallel for schedule(static) if ((size_t)args->B * args->T > SERIAL_ROWS)
    for (int i = 0; i < args->B * args->NH; i++) head_forward(args, i / args->NH, i % args->NH);
}

// From do to dz, backward in time, with G[t-1] = G[t] - e[t] k[t-1]ᵀ. For t from last to first:
//     dk[t] += G[t]ᵀ do[t],   dG += do[t] k[t]ᵀ,   dk[t-1] = dGᵀ e[t],   de = dG k[t-1]
//     dΠ[t] = de · (z[t] - o[t-1]),   dz[t] = Π[t] de + (dk[t] - k[t] (k[t]·dk[t])) / √(‖z[t]‖² + 1e-12)
//     do[t-1] -= Π[t] de
static void head_backward(const DeltaRule* args, int b, int h) {
    const int HS = args->HS, C = args->C;
    const HeadState start = args->before ? head_state(args, args->before, b, h) : (HeadState){0};
    const HeadState adjoint = head_state(args, args->adjoint, b, h);
    float *G = args->G + ((size_t)b * C + h * HS) * HS, *do_after = adjoint.o;   // gradient of o[t] from token t+1
    float *k = args->scratch + thread_index() * delta_rule_scratch_size(HS), *k_before = k + HS;
    float *restrict dk = adjoint.k, *restrict dk_before = k_before + HS;
    for (int t = args->T - 1; t >= 0; t--) {
        const size_t at = ((size_t)b * args->T + t) * C + h * HS, row = ((size_t)b * args->NH + h) * args->T + t;
        const float *z = args->z + at, *o_before = t > 0 ? args->o + at - C : start.o, pi = args->pi[row];
        const float factor = set_key(k, z, HS);
        float* dz = args->dz + at;   // holds do on entry
        if (t > 0) set_key(k_before, z - C, HS);
        else if (start.k) memcpy(k_before, start.k, HS * sizeof *k_before);
        else memset(k_before, 0, HS * sizeof *k_before);
        memset(dk_before, 0, HS * sizeof *dk_before);
        double dpi = 0, k_dk = 0;
        for (int d = 0; d < HS; d++) {
            float *restrict G_d = G + (size_t)d * HS, *restrict dG_d = adjoint.G + (size_t)d * HS, de = 0;
            const float error = z[d] - (o_before ? o_before[d] : 0.0f), e = pi * error, do_d = dz[d] + do_after[d];
            #pragma omp simd simdlen(8) reduction(+ : de)
            for (int i = 0; i < HS; i++) {
                dk[i] += do_d * G_d[i];
                G_d[i] -= e * k_before[i];
                const float dG_i = dG_d[i] += do_d * k[i];
                dk_before[i] += e * dG_i;
                de += dG_i * k_before[i];
            }
            dpi += (double)de * error;
            do_after[d] = -pi * de;
        }
        #pragma omp simd simdlen(8) reduction(+ : k_dk)
        for (int i = 0; i < HS; i++) k_dk += (double)k[i] * dk[i];
        for (int d = 0; d < HS; d++) dz[d] = factor * (dk[d] - k[d] * (float)k_dk) - do_after[d];
        memcpy(dk, dk_before, HS * sizeof *dk);
        args->dpi[row] = (float)dpi;
    }
}

void delta_rule_backward(const DeltaRule* args) {
    #pragma omp parallel for schedule(static)
    for (int i = 0; i < args->B * args->NH; i++) head_backward(args, i / args->NH, i % args->NH);
}
