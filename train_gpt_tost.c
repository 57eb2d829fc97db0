// train_gpt_tost.c: the Token Statistics Transformer (Wu et al., ICLR 2025, arXiv 2412.17810) on a CPU, in float32.
//
//     x = wte[token] + wpe[position]
//     for each layer:   x = x + gamma1 · tssa(ln_1(x))          gamma: LayerScale
//                       x = x + gamma2 · c_proj(gelu(c_fc(ln_2(x))))
//     logits = ln_f(x) · wteᵀ,   loss = mean of -log softmax(logits)[target]
//
// Every layer's forward stands beside its backward; then the model's memory, the passes over it, AdamW, and the table of
// functions (tost/engine.h) through which the front in tost/ trains, samples and evaluates.
//
// Sizes: B sequences, T tokens each, C channels, NH heads of HS = C/NH channels, V vocabulary, rows = B·T.
// Arrays are dense and row-major. Outputs come first, then saved tensors, inputs (const), sizes. Each backward says of
// each gradient whether it is overwritten (=) or accumulated (+=).

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tost/commands.h"
#include "tost/engine.h"
#include "tost/gemm.h"
#include "tost/threads.h"

// Up to so many rows (a step of decoding) a loop over them is not worth waking the other threads for.
enum { FEW_ROWS = 8 };

// ---------------------------------------------------------------------------------------------
// Scalar functions, free of branches and of library calls, so that loops over them vectorise

// e^x to 2 ulp for x in [-87, 88], clamped to those ends; NaN stays NaN.
// x = n ln2 + r, |r| <= ln2/2; a minimax polynomial for e^r (relative error 2e-9); 2^n through the exponent's bits.
static inline float exp_f32(float x) {
    const float shift = 0x1.8p23f;   // adding it rounds to an integer, which then stands in the low bits
    union { float f; uint32_t u; } n, two_n;
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    n.f = x * 1.442695041f + shift;
    const float whole = n.f - shift;
    const float r = (x - whole * 0.693145752f) - whole * 1.428606820e-6f;   // ln2 in two parts, so that products are exact
    float p = 1.383684558e-3f;
    p = p * r + 8.374815802e-3f;
    p = p * r + 4.166822558e-2f;
    p = p * r + 1.666642017e-1f;
    p = p * r + 4.999999208e-1f;
    p = p * r + 1.000000036f;
    p = p * r + 1.0f;
    two_n.u = (n.u + 127u) << 23;
    return p * two_n.f;
}

// Φ(x), the standard normal distribution, and with it e^(-x²/2).
// Φ(-|x|) = e^(-x²/2) · t · R(t), t = 1/(1 + |x|/4); R is a minimax polynomial (relative error 3e-8), so that the tail
// is exact in relative terms too.
static inline float normal_cdf(float* exp_half_square, float x) {
    const float t = 1.0f / (1.0f + 0.25f * fabsf(x));
    const float e = exp_f32(-0.5f * x * x);
    float r = 1.981245595e-2f;
    r = r * t - 8.101188733e-2f;
    r = r * t + 9.584573089e-2f;
    r = r * t - 3.196671583e-2f;
    r = r * t + 6.384616728e-2f;
    r = r * t + 5.892324058e-2f;
    r = r * t + 8.161374777e-2f;
    r = r * t + 9.346518926e-2f;
    r = r * t + 9.973648893e-2f;
    r = r * t + 9.973556591e-2f;
    const float tail = e * t * r;
    *exp_half_square = e;
    return x > 0.0f ? 1.0f - tail : tail;
}

// ---------------------------------------------------------------------------------------------
// Embedding:  x[b,t] = wte[token[b,t]] + wpe[first + t]

static void embedding_forward(float* x, const int32_t* tokens, const float* wte, const float* wpe, int first,
                              int B, int T, int C) {   // x (B,T,C); tokens (B,T); wte (V,C); wpe (BLOCK,C)
    #pragma omp parallel for schedule(static) if ((size_t)B * T > FEW_ROWS)
    for (size_t row = 0; row < (size_t)B * T; row++) {
        const float* token_c = wte + (size_t)tokens[row] * C;
        const float* place_c = wpe + ((size_t)first + row % T) * C;
        float* x_c = x + row * C;
        for (int c = 0; c < C; c++) x_c[c] = token_c[c] + place_c[c];
    }
}

// dwte, dwpe +=. A token may stand in many rows: each thread owns a block of channels and takes the rows in order.
static void embedding_backward(float* dwte, float* dwpe, const float* dx, const int32_t* tokens, int B, int T, int C) {
    enum { BLOCK = 16 };   // channels: one cache line
    #pragma omp parallel for schedule(static)
    for (int c0 = 0; c0 < C; c0 += BLOCK) {
        const int width = C - c0 < BLOCK ? C - c0 : BLOCK;
        for (size_t row = 0; row < (size_t)B * T; row++) {
            const float* dx_c = dx + row * C + c0;
            float* dtoken_c = dwte + (size_t)tokens[row] * C + c0;
            float* dplace_c = dwpe + row % T * C + c0;
            for (int c = 0; c < width; c++) {
                dtoken_c[c] += dx_c[c];
                dplace_c[c] += dx_c[c];
            }
        }
    }
}

// ---------------------------------------------------------------------------------------------
// LayerNorm:  y = (x - mean) · rstd · w + b,   rstd = 1/√(variance + 1e-5)

static void layernorm_forward(float* y, float* mean, float* rstd, const float* x, const float* w, const float* b,
                              size_t rows, int C) {   // y, x (rows,C); mean, rstd (rows); w, b (C), b may be NULL
    #pragma omp parallel for schedule(static) if (rows > FEW_ROWS)
    for (size_t row = 0; row < rows; row++) {
        const float* x_c = x + row * C;
        float* y_c = y + row * C;
        double sum = 0, squares = 0;
        #pragma omp simd reduction(+ : sum)
        for (int c = 0; c < C; c++) sum += x_c[c];
        const float m = (float)(sum / C);
        #pragma omp simd reduction(+ : squares)
        for (int c = 0; c < C; c++) squares += (double)(x_c[c] - m) * (x_c[c] - m);
        const float r = (float)(1.0 / sqrt(squares / C + TOST_LN_EPS));
        for (int c = 0; c < C; c++) y_c[c] = (x_c[c] - m) * r * w[c];
        if (b) for (int c = 0; c < C; c++) y_c[c] += b[c];
        mean[row] = m;
        rstd[row] = r;
    }
}

// dx +=, since the residual's own gradient is there already; dw, db += (db may be NULL).
//   n = (x - mean) rstd,  g = dy w:   dx = rstd (g - mean_c(g) - n mean_c(g n)),   dw = Σ_rows dy n,   db = Σ_rows dy
static void layernorm_backward(float* dx, float* dw, float* db, const float* dy, const float* x, const float* mean,
                               const float* rstd, const float* w, size_t rows, int C) {
    #pragma omp parallel for schedule(static)
    for (size_t row = 0; row < rows; row++) {
        const float* dy_c = dy + row * C;
        const float* x_c = x + row * C;
        float* dx_c = dx + row * C;
        const float m = mean[row], r = rstd[row];
        double sum_g = 0, sum_gn = 0;
        #pragma omp simd reduction(+ : sum_g, sum_gn)
        for (int c = 0; c < C; c++) {
            const float g = dy_c[c] * w[c];
            sum_g += g;
            sum_gn += (double)g * ((x_c[c] - m) * r);
        }
        const float mean_g = (float)(sum_g / C), mean_gn = (float)(sum_gn / C);
        for (int c = 0; c < C; c++) dx_c[c] += r * (dy_c[c] * w[c] - mean_g - (x_c[c] - m) * r * mean_gn);
    }
    enum { BLOCK = 32 };   // channels a thread sums over all rows, in order
    #pragma omp parallel for schedule(static)
    for (int c0 = 0; c0 < C; c0 += BLOCK) {
        const int width = C - c0 < BLOCK ? C - c0 : BLOCK;
        double dw_sum[BLOCK] = {0}, db_sum[BLOCK] = {0};
        for (size_t row = 0; row < rows; row++) {
            const float* dy_c = dy + row * C + c0;
            const float* x_c = x + row * C + c0;
            const float m = mean[row], r = rstd[row];
            for (int c = 0; c < width; c++) {
                dw_sum[c] += dy_c[c] * ((x_c[c] - m) * r);
                db_sum[c] += dy_c[c];
            }
        }
        for (int c = 0; c < width; c++) dw[c0 + c] += (float)dw_sum[c];
        if (db) for (int c = 0; c < width; c++) db[c0 + c] += (float)db_sum[c];
    }
}

// ---------------------------------------------------------------------------------------------
// Linear:  y = x · wᵀ + b

static void linear_forward(float* y, const float* x, const float* w, const float* b,
                           size_t rows, int IN, int OUT) {   // y (rows,OUT); x (rows,IN); w (OUT,IN); b (OUT) or NULL
    gemm(y, x, false, w, true, (int)rows, OUT, IN, 0.0f);
    if (!b) return;
    #pragma omp parallel for schedule(static) if (rows > FEW_ROWS)
    for (size_t row = 0; row < rows; row++) {
        float* y_o = y + row * OUT;
        for (int o = 0; o < OUT; o++) y_o[o] += b[o];
    }
}

// dx =; dw, db += (db may be NULL).   dx = dy · w,   dw = dyᵀ · x,   db = Σ_rows dy
static void linear_backward(float* dx, float* dw, float* db, const float* dy, const float* x, const float* w,
                            size_t rows, int IN, int OUT) {
    gemm(dx, dy, false, w, false, (int)rows, IN, OUT, 0.0f);
    gemm(dw, dy, true, x, false, OUT, IN, (int)rows, 1.0f);
    if (!db) return;
    enum { BLOCK = 32 };
    #pragma omp parallel for schedule(static)
    for (int o0 = 0; o0 < OUT; o0 += BLOCK) {
        const int width = OUT - o0 < BLOCK ? OUT - o0 : BLOCK;
        double sum[BLOCK] = {0};
        for (size_t row = 0; row < rows; row++)
            for (int o = 0; o < width; o++) sum[o] += dy[row * OUT + o0 + o];
        for (int o = 0; o < width; o++) db[o0 + o] += (float)sum[o];
    }
}

// ---------------------------------------------------------------------------------------------
// TSSA, token statistics self-attention. For each sequence and head, d over the head's channels:
//
//     s[t,d] = w[t,d]²,   S[t,d] = Σ_{t'≤t} s[t',d]                        running energy
//     u[t]   = Σ_d s[t,d] / max(S[t,d], 1e-12) + HS · denom_bias[h,t]
//     Π[h,t] = softmax over the HEADS h of temp[h] · u[h,t]                 membership
//     N[t,d] = Σ_{t'≤t} s[t',d] Π[t'],   D[t] = Σ_{t'≤t} Π[t']              running second moment and mass
//     y[t,d] = -w[t,d] Π[t] / (1 + m[t,d]),   m[t,d] = N[t,d] / (D[t] + 1e-8)
//
// All that the past leaves behind is the state (S, N, D): 2C + NH numbers a sequence, whatever its length. Time runs
// outermost, so the cost is linear in T; running sums are double, since at long T a float sum stalls.
// One softmax couples the heads at one t, so each direction makes two sweeps over time with the softmax between them.

enum { TSSA_CHUNK = 32 };   // time steps between saved states, from which backward recomputes S, N and D
enum { TSSA_AHEAD = 4 };    // time steps before its turn that a sweep asks for a row

typedef struct { double *S, *N, *D; } TssaState;   // of one sequence: S, N (C), D (NH)

static inline size_t tssa_state_size(int C, int NH) { return 2 * (size_t)C + NH; }
static inline size_t tssa_scratch_size(int C, int NH) { return (TSSA_CHUNK + 2) * ((size_t)C + NH); }
static inline int    tssa_chunks(int T) { return (T + TSSA_CHUNK - 1) / TSSA_CHUNK; }
static inline TssaState tssa_state(const double* states, size_t i, int C, int NH) {   // the i-th of an array of states
    double* S = (double*)states + i * tssa_state_size(C, NH);
    return (TssaState){S, S + C, S + 2 * (size_t)C};
}

// The unit of parallel work: some heads of one sequence, side by side in memory, over all of time. Heads do not meet in a
// sweep, so the split moves no bit.
typedef struct { int b, h0, h1; } TssaSpan;

static inline int tssa_groups(int B, int NH) {   // of heads, a sequence
    const int threads = threads_max();
    return B % threads == 0 ? 1 : threads < NH ? threads : NH;
}
static inline TssaSpan tssa_span(int unit, int groups, int NH) {
    const int g = unit % groups;
    return (TssaSpan){unit / groups, g * NH / groups, (g + 1) * NH / groups};
}

// Asks for a head's part of a row before it is due: the hardware looks ahead along memory, not from one row to the part
// of the next that a span owns, nor well in reverse. Into the second cache: measured, asking for it in the first
// gained far less. Forward, spans of whole rows do without.
static inline void tssa_prefetch(const float* x, int n) {   // n floats from x on, a cache line at a time
    for (int i = 0; i < n; i += 16) __builtin_prefetch(x + i, 0, 2);
}

// One step of S for one head; returns Σ_d s/max(S, 1e-12).
static inline double tssa_energy_step(double* S, const float* w, int HS) {   // S, w (HS)
    double ratios = 0;
    #pragma omp simd reduction(+ : ratios)
    for (int d = 0; d < HS; d++) {
        const double s = (double)w[d] * w[d];
        S[d] += s;
        ratios += s / (S[d] > TOST_ENERGY_MIN ? S[d] : TOST_ENERGY_MIN);
    }
    return ratios;
}

// One step of N and D for one head.
static inline void tssa_moment_step(double* N, double* D, const float* w, double pi, int HS) {   // N, w (HS); D (1)
    *D += pi;
    for (int d = 0; d < HS; d++) N[d] += (double)w[d] * w[d] * pi;
}

// First sweep forward: u, and S as it goes. saved (chunks,2C+NH) or NULL and state belong to the span's sequence.
static void tssa_forward_energy(float* u, double* saved, TssaState state, const float* w, const float* denom_bias, TssaSpan p,
                                int block_size, int T, int C, int NH) {
    const int HS = C / NH, at = p.h0 * HS, width = (p.h1 - p.h0) * HS;
    for (int t = 0; t < T; t++) {
        const float* w_t = w + ((size_t)p.b * T + t) * C;
        if (saved && t % TSSA_CHUNK == 0)
            memcpy(tssa_state(saved, t / TSSA_CHUNK, C, NH).S + at, state.S + at, width * sizeof(double));
        for (int h = p.h0; h < p.h1; h++) {
            if (width < C && t + TSSA_AHEAD < T) tssa_prefetch(w_t + h * HS + TSSA_AHEAD * C, HS);
            const double ratios = tssa_energy_step(state.S + h * HS, w_t + h * HS, HS);
            u[((size_t)p.b * NH + h) * T + t] = (float)(ratios + (double)HS * denom_bias[(size_t)h * block_size + t]);
        }
    }
}

// pi[b,:,t] = softmax_h(temp[h] · u[b,h,t])
static void membership_forward(float* pi, const float* u, const float* temp, int B, int T, int NH) {   // pi, u (B,NH,T)
    #pragma omp parallel for schedule(static) if ((size_t)B * T > FEW_ROWS)
    for (size_t row = 0; row < (size_t)B * T; row++) {
        const float* u_h = u + row / T * NH * T + row % T;   // [b,0,t]; the next head is T further on
        float* pi_h = pi + (u_h - u);
        double largest = -INFINITY, sum = 0;
        for (int h = 0; h < NH; h++) largest = fmax(largest, (double)temp[h] * u_h[(size_t)h * T]);
        for (int h = 0; h < NH; h++) sum += exp((double)temp[h] * u_h[(size_t)h * T] - largest);
        for (int h = 0; h < NH; h++) {
            const size_t i = (size_t)h * T;
            pi_h[i] = (float)(exp((double)temp[h] * u_h[i] - largest) / sum);
        }
    }
}

// pi = 1/NH
static void membership_uniform(float* pi, int B, int T, int NH) {
    for (size_t i = 0; i < (size_t)B * NH * T; i++) pi[i] = (float)(1.0 / NH);
}

// Second sweep forward: y, and N and D as it goes.
static void tssa_forward_moments(float* y, double* saved, TssaState state, const float* w, const float* pi, TssaSpan p,
                                 int T, int C, int NH) {
    const int HS = C / NH, at = p.h0 * HS, width = (p.h1 - p.h0) * HS;
    for (int t = 0; t < T; t++) {
        const size_t row = ((size_t)p.b * T + t) * C;
        if (saved && t % TSSA_CHUNK == 0) {
            const TssaState start = tssa_state(saved, t / TSSA_CHUNK, C, NH);
            memcpy(start.N + at, state.N + at, width * sizeof(double));
            memcpy(start.D + p.h0, state.D + p.h0, (p.h1 - p.h0) * sizeof(double));
        }
        for (int h = p.h0; h < p.h1; h++) {
            const float* w_d = w + row + h * HS;
            float* y_d = y + row + h * HS;
            if (width < C && t + TSSA_AHEAD < T) {
                tssa_prefetch(w_d + TSSA_AHEAD * C, HS);
                tssa_prefetch(y_d + TSSA_AHEAD * C, HS);
            }
            double* N = state.N + h * HS;
            const double pi_t = pi[((size_t)p.b * NH + h) * T + t];
            tssa_moment_step(N, &state.D[h], w_d, pi_t, HS);
            const double mass = state.D[h] + TOST_MASS_EPS;   // y = -w Π / (1 + N/mass) = -w Π mass / (mass + N)
            for (int d = 0; d < HS; d++) y_d[d] = (float)(-w_d[d] * (pi_t * mass) / (mass + N[d]));
        }
    }
}

// Continues every sequence from its state at position `first` and leaves its state after T more tokens. A state of zeros
// at first = 0 is the start of a text; T = 1 is a step of decoding. A uniform membership has no use for u and S.
static void tssa_forward(float* y, float* u, float* pi, double* saved, double* state, const float* w, const float* temp,
                         const float* denom_bias, int membership, int first, int block_size, int B, int T, int C,
                         int NH) {
    // y, w (B,T,C); u, pi (B,NH,T); saved (B,chunks,2C+NH) or NULL; state (B,2C+NH); temp (NH); denom_bias (NH,block_size)
    const int groups = tssa_groups(B, NH);
    const size_t saved_size = tssa_chunks(T) * tssa_state_size(C, NH);
    const int energy_units = membership == TOST_UNIFORM ? 0 : B * groups;
    #pragma omp parallel for schedule(static) if ((size_t)B * T > FEW_ROWS)
    for (int unit = 0; unit < energy_units; unit++) {
        const TssaSpan p = tssa_span(unit, groups, NH);
        tssa_forward_energy(u, saved ? saved + p.b * saved_size : NULL, tssa_state(state, p.b, C, NH), w, denom_bias + first, p,
                            block_size, T, C, NH);
    }
    if (membership == TOST_UNIFORM) membership_uniform(pi, B, T, NH);
    else membership_forward(pi, u, temp, B, T, NH);
    #pragma omp parallel for schedule(static) if ((size_t)B * T > FEW_ROWS)
    for (int unit = 0; unit < B * groups; unit++) {
        const TssaSpan p = tssa_span(unit, groups, NH);
        tssa_forward_moments(y, saved ? saved + p.b * saved_size : NULL, tssa_state(state, p.b, C, NH), w, pi, p, T, C, NH);
    }
}

// First sweep backward, through y, N and D. With g = 1/(1+m):
//   dm = dy w Π g²,   dN = dm/(D+1e-8),   dD = -Σ_d dm m/(D+1e-8),   RN, RD = their sums over t' ≥ t
//   dw = -dy Π g + 2 w Π RN  (the part through N),   dΠ = Σ_d (-dy w g + s RN) + RD
static void tssa_backward_moments(float* dw, float* dpi, double* scratch, const float* dy, const float* w, const float* pi,
                                  const double* saved, TssaSpan p, int T, int C, int NH) {
    // dw, dy, w (B,T,C) and dpi, pi (B,NH,T), whole; saved (chunks,2C+NH), of the sequence
    const int HS = C / NH, at = p.h0 * HS, heads = p.h1 - p.h0, width = heads * HS;
    double *m = scratch, *inverse = m + (size_t)TSSA_CHUNK * width;   // (TSSA_CHUNK,width): m; (TSSA_CHUNK,heads): 1/(D+1e-8)
    double *N = inverse + TSSA_CHUNK * heads, *D = N + width, *RN = D + heads, *RD = RN + width;
    memset(RN, 0, (width + heads) * sizeof(double));
    for (int chunk = tssa_chunks(T) - 1; chunk >= 0; chunk--) {
        const int t0 = chunk * TSSA_CHUNK, n = T - t0 < TSSA_CHUNK ? T - t0 : TSSA_CHUNK;
        const TssaState start = tssa_state(saved, chunk, C, NH);
        memcpy(N, start.N + at, width * sizeof(double));
        memcpy(D, start.D + p.h0, heads * sizeof(double));
        for (int i = 0; i < n * heads; i++) {
            const int h = i % heads, t = t0 + i / heads;
            const double pi_t = pi[((size_t)p.b * NH + p.h0 + h) * T + t];
            if (t >= TSSA_CHUNK) tssa_prefetch(w + ((size_t)p.b * T + t - TSSA_CHUNK) * C + at + h * HS, HS);
            tssa_moment_step(N + h * HS, D + h, w + ((size_t)p.b * T + t) * C + at + h * HS, pi_t, HS);
            inverse[i] = 1.0 / (D[h] + TOST_MASS_EPS);
            for (int d = 0; d < HS; d++) m[(size_t)i * HS + d] = N[h * HS + d] * inverse[i];
        }
        for (int i = n * heads - 1; i >= 0; i--) {
            const int h = i % heads, t = t0 + i / heads;
            const size_t cell = ((size_t)p.b * T + t) * C + at + h * HS, pair = ((size_t)p.b * NH + p.h0 + h) * T + t;
            const float *dy_d = dy + cell, *w_d = w + cell;
            if (t >= TSSA_AHEAD) {
                tssa_prefetch(dy_d - TSSA_AHEAD * C, HS);
                tssa_prefetch(dw + cell - TSSA_AHEAD * C, HS);
            }
            const double *m_d = m + (size_t)i * HS, pi_t = pi[pair], scale = pi_t * inverse[i];
            double *RN_d = RN + h * HS, dD = 0, dpi_t = 0;
            #pragma omp simd reduction(+ : dD, dpi_t)
            for (int d = 0; d < HS; d++) {
                const double g = 1.0 / (1.0 + m_d[d]), dy_w_g = (double)dy_d[d] * w_d[d] * g;
                const double dN = dy_w_g * g * scale;
                RN_d[d] += dN;
                dD -= dN * m_d[d];
                dpi_t += (double)w_d[d] * w_d[d] * RN_d[d] - dy_w_g;
                dw[cell + d] = (float)(pi_t * (2.0 * w_d[d] * RN_d[d] - dy_d[d] * g));
            }
            RD[h] += dD;
            dpi[pair] = (float)(dpi_t + RD[h]);
        }
    }
}

// da (in the place of dpi): da[h] = Π[h] (dΠ[h] - Σ_h' Π[h'] dΠ[h']), a = temp · u
static void membership_backward(float* dpi, const float* pi, int B, int T, int NH) {   // (B,NH,T)
    #pragma omp parallel for schedule(static)
    for (size_t row = 0; row < (size_t)B * T; row++) {
        const size_t at = row / T * NH * T + row % T;
        double mean = 0;
        for (int h = 0; h < NH; h++) mean += (double)pi[at + (size_t)h * T] * dpi[at + (size_t)h * T];
        for (int h = 0; h < NH; h++) {
            const size_t i = at + (size_t)h * T;
            dpi[i] = (float)(pi[i] * (dpi[i] - mean));
        }
    }
}

// Second sweep backward, through u and S. With du = temp · da:
//   dS = -du s/S² where S > 1e-12, else 0;   ds = du / max(S, 1e-12) + Σ_{t'≥t} dS[t'];   dw += 2 w ds
static void tssa_backward_energy(float* dw, double* scratch, const float* da, const float* w, const double* saved,
                                 const float* temp, TssaSpan p, int T, int C, int NH) {
    const int HS = C / NH, at = p.h0 * HS, heads = p.h1 - p.h0, width = heads * HS;
    double *S = scratch, *sum = S + (size_t)TSSA_CHUNK * width, *RS = sum + width;   // S (TSSA_CHUNK,width)
    memset(RS, 0, width * sizeof(double));
    for (int chunk = tssa_chunks(T) - 1; chunk >= 0; chunk--) {
        const int t0 = chunk * TSSA_CHUNK, n = T - t0 < TSSA_CHUNK ? T - t0 : TSSA_CHUNK;
        memcpy(sum, tssa_state(saved, chunk, C, NH).S + at, width * sizeof(double));
        for (int i = 0; i < n; i++) {
            const float* w_d = w + ((size_t)p.b * T + t0 + i) * C + at;
            if (chunk > 0) tssa_prefetch(w_d - TSSA_CHUNK * C, width);
            for (int d = 0; d < width; d++) {
                sum[d] += (double)w_d[d] * w_d[d];
                S[(size_t)i * width + d] = sum[d];
            }
        }
        for (int i = n * heads - 1; i >= 0; i--) {
            const int h = i % heads, t = t0 + i / heads;
            const size_t cell = ((size_t)p.b * T + t) * C + at + h * HS;
            const double du = (double)temp[p.h0 + h] * da[((size_t)p.b * NH + p.h0 + h) * T + t];
            if (t >= TSSA_AHEAD) tssa_prefetch(dw + cell - TSSA_AHEAD * C, HS);
            const double* S_d = S + (size_t)i * HS;
            double* RS_d = RS + h * HS;
            for (int d = 0; d < HS; d++) {
                const double w_td = w[cell + d];
                const bool above = S_d[d] > TOST_ENERGY_MIN;
                const double inverse = 1.0 / (above ? S_d[d] : TOST_ENERGY_MIN);
                const double dS = -du * w_td * w_td * inverse * inverse;
                RS_d[d] += above ? dS : 0.0;
                dw[cell + d] += (float)(2.0 * w_td * (du * inverse + RS_d[d]));
            }
        }
    }
}

// dw =; dtemp, ddenom_bias +=; da (B,NH,T) and scratch (threads,tssa_scratch_size) are working space. Of a uniform
// membership there is no gradient: temp and denom_bias have none, and w has none by way of it.
static void tssa_backward(float* dw, float* dtemp, float* ddenom_bias, float* da, double* scratch, const float* dy,
                          const float* w, const float* u, const float* pi, const double* saved, const float* temp,
                          int membership, int block_size, int B, int T, int C, int NH) {
    const int HS = C / NH, groups = tssa_groups(B, NH);
    const size_t scratch_size = tssa_scratch_size(C, NH), saved_size = tssa_chunks(T) * tssa_state_size(C, NH);
    #pragma omp parallel for schedule(static)
    for (int unit = 0; unit < B * groups; unit++) {
        const TssaSpan p = tssa_span(unit, groups, NH);
        tssa_backward_moments(dw, da, scratch + thread_index() * scratch_size, dy, w, pi, saved + p.b * saved_size, p, T, C, NH);
    }
    if (membership == TOST_UNIFORM) return;
    membership_backward(da, pi, B, T, NH);
    #pragma omp parallel for schedule(static)
    for (int unit = 0; unit < B * groups; unit++) {
        const TssaSpan p = tssa_span(unit, groups, NH);
        tssa_backward_energy(dw, scratch + thread_index() * scratch_size, da, w, saved + p.b * saved_size, temp, p, T, C, NH);
    }
    #pragma omp parallel for schedule(static)
    for (int h = 0; h < NH; h++) {   // dtemp[h] = Σ da u,   ddenom_bias[h,t] = Σ_b HS temp[h] da
        double dtemp_h = 0;
        for (int b = 0; b < B; b++) {
            for (int t = 0; t < T; t++) {
                const size_t i = ((size_t)b * NH + h) * T + t;
                dtemp_h += (double)da[i] * u[i];
                ddenom_bias[(size_t)h * block_size + t] += (float)((double)HS * temp[h] * da[i]);
            }
        }
        dtemp[h] += (float)dtemp_h;
    }
}

// ---------------------------------------------------------------------------------------------
// Residual with LayerScale:  x_out = x + gamma · branch

static void residual_forward(float* x_out, const float* x, const float* branch, const float* gamma,
                             size_t rows, int C) {   // x_out, x, branch (rows,C), x_out may be x; gamma (C)
    #pragma omp parallel for schedule(static) if (rows > FEW_ROWS)
    for (size_t row = 0; row < rows; row++)
        for (int c = 0; c < C; c++) x_out[row * C + c] = x[row * C + c] + gamma[c] * branch[row * C + c];
}

// dbranch =; dgamma +=. The gradient of x is that of x_out.   dbranch = gamma dx,   dgamma = Σ_rows dx branch
static void residual_backward(float* dbranch, float* dgamma, const float* dx, const float* branch, const float* gamma,
                              size_t rows, int C) {
    enum { BLOCK = 32 };
    #pragma omp parallel for schedule(static)
    for (int c0 = 0; c0 < C; c0 += BLOCK) {
        const int width = C - c0 < BLOCK ? C - c0 : BLOCK;
        double sum[BLOCK] = {0};
        for (size_t row = 0; row < rows; row++) {
            const size_t at = row * C + c0;
            for (int c = 0; c < width; c++) {
                sum[c] += dx[at + c] * branch[at + c];
                dbranch[at + c] = gamma[c0 + c] * dx[at + c];
            }
        }
        for (int c = 0; c < width; c++) dgamma[c0 + c] += (float)sum[c];
    }
}

// ---------------------------------------------------------------------------------------------
// GELU, the exact one:  y = x Φ(x)

static void gelu_forward(float* y, const float* x, size_t n) {
    #pragma omp parallel for simd schedule(static) if (n > 1 << 14)
    for (size_t i = 0; i < n; i++) {
        float e;
        y[i] = x[i] * normal_cdf(&e, x[i]);
    }
}

// dx = dy (Φ(x) + x φ(x)), φ(x) = e^(-x²/2)/√(2π); in place: dx comes in as dy
static void gelu_backward(float* dx, const float* x, size_t n) {
    #pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < n; i++) {
        float e;
        const float cdf = normal_cdf(&e, x[i]);
        dx[i] *= cdf + x[i] * e * 0.398942280f;
    }
}

// ---------------------------------------------------------------------------------------------
// Classifier, softmax and cross-entropy:  loss[row] = log Σ_v e^logit[row,v] - logit[row,target]

// Losses of a chunk of rows; with grad_scale != 0 the logits become their gradient,
//   dlogits = grad_scale (softmax(logits) - onehot(target)),   0 where the target is -1.
static void cross_entropy(double* loss, float* logits, const int32_t* targets, float grad_scale,
                          size_t rows, int V) {   // loss, targets (rows); logits (rows,V)
    #pragma omp parallel for schedule(static)
    for (size_t row = 0; row < rows; row++) {
        float* l = logits + row * V;
        const int32_t target = targets[row];
        loss[row] = 0.0;
        if (target < 0) {
            if (grad_scale != 0.0f) memset(l, 0, V * sizeof *l);
            continue;
        }
        float top = l[0];
        #pragma omp simd reduction(max : top)
        for (int v = 1; v < V; v++) top = l[v] > top ? l[v] : top;
        const double target_logit = l[target];
        double sum = 0;
        #pragma omp simd reduction(+ : sum)
        for (int v = 0; v < V; v++) {
            const float e = exp_f32(l[v] - top);
            if (grad_scale != 0.0f) l[v] = e;
            sum += e;
        }
        loss[row] = log(sum) + top - target_logit;
        if (grad_scale == 0.0f) continue;
        const float scale = (float)(grad_scale / sum);
        for (int v = 0; v < V; v++) l[v] *= scale;
        l[target] -= grad_scale;
    }
}

// Chunks of rows, so that (rows,V) logits never stand whole. With grad_scale != 0: dx =; dwte +=.
static void classifier_forward_backward(double* loss, float* dx, float* dwte, float* logits, const float* x, const float* wte,
                                        const int32_t* targets, float grad_scale, size_t rows, size_t chunk, int V, int C) {
    // loss, targets (rows); dx, x (rows,C); dwte, wte (V,C); logits (chunk,V): working space
    for (size_t row = 0; row < rows; row += chunk) {
        const int n = (int)(rows - row < chunk ? rows - row : chunk);
        gemm(logits, x + row * C, false, wte, true, n, V, C, 0.0f);
        cross_entropy(loss + row, logits, targets + row, grad_scale, n, V);
        if (grad_scale == 0.0f) continue;
        gemm(dx + row * C, logits, false, wte, false, n, C, V, 0.0f);
        gemm(dwte, logits, true, x + row * C, false, V, C, n, 1.0f);
    }
}

// ---------------------------------------------------------------------------------------------
// The model's memory: parameters, gradients and moments as flat arrays under the one table; activations under the two
// tables below. With gradients each layer keeps its own activations, else all layers share one set; so they do where
// backward computes them again, from what each layer keeps.

#define X(field, place, name, shape, init, decay, when) float* field;
typedef struct { TOST_PARAMS(X) } TostParams;   // the tensors outside of the layers, and one layer's; NULL where absent
#undef X

// Rows: field, type, elements; rows = B·T.
#define LAYER_ACTIVATIONS(X) \
    X(ln_1,      float,  rows * C)                      /* ln_1(x) */ \
    X(mean_1,    float,  rows) \
    X(rstd_1,    float,  rows) \
    X(w,         float,  rows * C)                      /* c_attn(ln_1) */ \
    X(u,         float,  rows * NH)                     /* (B,NH,T) */ \
    X(pi,        float,  rows * NH)                     /* (B,NH,T) */ \
    X(tssa_saved, double, (rows / TSSA_CHUNK + B) * tssa_state_size(C, NH)) \
    X(y,         float,  rows * C) \
    X(attn_out,  float,  rows * C)                      /* c_proj(y) */ \
    X(x_mid,     float,  rows * C)                      /* x + gamma1 attn_out */ \
    X(ln_2,      float,  rows * C) \
    X(mean_2,    float,  rows) \
    X(rstd_2,    float,  rows) \
    X(fc,        float,  rows * 4 * C) \
    X(gelu,      float,  rows * 4 * C) \
    X(mlp_out,   float,  rows * C)

#define LAYER_RESIDENT(X) \
    X(x_out,     float,  rows * C)                      /* x_mid + gamma2 mlp_out */

#define SHARED_BUFFERS(X) \
    X(inputs,     int32_t, rows) \
    X(targets,    int32_t, rows)                        /* those that count, of decode_score */ \
    X(x,          float,  rows * C)                     /* embedding: the input of layer 0 */ \
    X(ln_f,       float,  rows * C) \
    X(mean_f,     float,  rows) \
    X(rstd_f,     float,  rows) \
    X(logits,     float,  logits_rows * V)              /* a chunk of rows */ \
    X(losses,     double, rows) \
    X(tssa_now,   double, B * tssa_state_size(C, NH))   /* one layer's running sums during a pass */ \
    X(decode,     double, L * B * tssa_state_size(C, NH)) \
    X(dx,         float,  train * rows * C)             /* gradient of the residual stream */ \
    X(dbranch,    float,  train * rows * C) \
    X(scratch_btc,    float,  train * rows * C)             /* of y, w and the LayerNorms' outputs in turn, ln_f's first */ \
    X(scratch_bt4c,      float,  train * rows * 4 * C)         /* of gelu, then of fc */ \
    X(da,         float,  train * rows * NH) \
    X(scratch,    double, train * threads * tssa_scratch_size(C, NH))

#define X(field, type, elements) type* field;
typedef struct { LAYER_ACTIVATIONS(X) LAYER_RESIDENT(X) } LayerActivations;
typedef struct { SHARED_BUFFERS(X) } Buffers;
#undef X

struct TostModel {
    TostConfig        config;
    TostEngineOptions options;
    TostTensors       tensors;
    float*            state[4];            // by TostState: params, grads, m, v; each tensors.flat_size
    LayerActivations* layer;               // (L); without gradients all alike, with recompute all but for what is kept
    Buffers           buf;
    void*             arena;               // all of the above, one allocation
    size_t            arena_bytes, logits_rows;
    int               B, T;                // of the last forward
    int               held;                // with recompute: the layer whose activations stand
    int               n_decode, position;  // sequences and next position of the recurrent decode
    double            loss_sum;            // since the last read_loss
    int64_t           loss_count;
};

// Chunks of equal size of at most `most` rows.
static size_t even_chunk(size_t rows, size_t most) {
    const size_t chunks = (rows + most - 1) / most;
    return (rows + chunks - 1) / chunks;
}

// Rows of logits worked on at once: up to 128 MiB of them.
static size_t classifier_rows(size_t rows, int V) {
    const size_t most = ((size_t)1 << 25) / (size_t)V;
    return even_chunk(rows, most > 64 ? most : 64);
}

// The next `bytes` of the arena; with base NULL it only counts, up to a sum that no machine has.
static void* carve(char* base, size_t* used, size_t bytes) {
    const size_t size = (bytes + 127) / 128 * 128, most = SIZE_MAX / 4;
    char* p = base ? base + *used : NULL;
    if (base) poison_redzone(p + size);
    *used = bytes > most || *used > most ? most : *used + size + REDZONE_BYTES;
    return p;
}

// Lays everything out in one arena; returns the bytes it takes. base NULL: counts, and writes pointers no one may use.
static size_t lay_out(TostModel* m, char* base) {
    const TostConfig* c = &m->config;
    const size_t C = c->n_embd, NH = c->n_head, V = c->vocab_size, L = c->n_layer, B = m->options.max_batch;
    const size_t rows = B * m->options.max_seq, train = m->options.training, threads = m->options.threads;
    const size_t logits_rows = m->logits_rows = classifier_rows(rows, c->vocab_size);
    size_t used = 0;
    for (int s = 0; s < (m->options.training ? 4 : 1); s++)
        m->state[s] = carve(base, &used, m->tensors.flat_size * sizeof(float));
#define X(field, type, elements) m->buf.field = carve(base, &used, (elements) * sizeof(type));
    SHARED_BUFFERS(X)
#undef X
    for (size_t l = 0; l < L; l++) {
#define X(field, type, elements) m->layer[l].field = carve(base, &used, (elements) * sizeof(type));
        if (l > 0 && (!train || m->options.recompute)) m->layer[l] = m->layer[0];
        else { LAYER_ACTIVATIONS(X) }
        if (l == 0 || train) { LAYER_RESIDENT(X) }
#undef X
    }
    return used;
}

static TostModel* model_new(const TostConfig* c, const TostEngineOptions* o) {
    TostModel* m = xcalloc(1, sizeof *m);
    m->config = *c;
    m->options = *o;
    m->options.recompute = o->recompute && o->training;
    if (m->options.threads == 0) m->options.threads = threads_max();   // OMP_NUM_THREADS, else one for each core
    m->tensors = tost_tensors(c);
    m->layer = xcalloc(c->n_layer, sizeof *m->layer);
    m->arena_bytes = lay_out(m, NULL);
    return m;
}

static void model_free(TostModel* m) {
    if (m->arena) free_pages(m->arena, m->arena_bytes);
    tost_tensors_free(&m->tensors);
    free(m->layer);
    free(m);
}

// Pointers into one state: the tensors outside of the layers, and those of layer l.
static TostParams tost_layer(const TostModel* m, TostState s, int l) {
    TostParams p;
#define X(field, place, name, shape, init, decay, when) { \
        const size_t offset = tost_row_offset(&m->tensors, TOST_ROW_##field, l); \
        p.field = offset == SIZE_MAX ? NULL : m->state[s] + offset; }
    TOST_PARAMS(X)
#undef X
    return p;
}

// ---------------------------------------------------------------------------------------------
// The passes

// One layer over rows = B·T. saved NULL: no backward will follow. state: the sequences' running sums, updated.
static void layer_forward(const LayerActivations* a, const float* x, const TostParams* p, const TostConfig* c, double* saved,
                          double* state, int first, int B, int T) {
    const int C = c->n_embd;
    const size_t rows = (size_t)B * T;
    layernorm_forward(a->ln_1, a->mean_1, a->rstd_1, x, p->ln_1_w, p->ln_1_b, rows, C);
    linear_forward(a->w, a->ln_1, p->attn_w, p->attn_b, rows, C, C);
    tssa_forward(a->y, a->u, a->pi, saved, state, a->w, p->temp, p->denom_bias, c->membership, first,
                 c->block_size, B, T, C, c->n_head);
    linear_forward(a->attn_out, a->y, p->attn_proj_w, p->attn_proj_b, rows, C, C);
    residual_forward(a->x_mid, x, a->attn_out, p->gamma1, rows, C);

    layernorm_forward(a->ln_2, a->mean_2, a->rstd_2, a->x_mid, p->ln_2_w, p->ln_2_b, rows, C);
    linear_forward(a->fc, a->ln_2, p->fc_w, p->fc_b, rows, C, 4 * C);
    gelu_forward(a->gelu, a->fc, rows * 4 * C);
    linear_forward(a->mlp_out, a->gelu, p->fc_proj_w, p->fc_proj_b, rows, 4 * C, C);
    residual_forward(a->x_out, a->x_mid, a->mlp_out, p->gamma2, rows, C);
}

// buf->dx: the gradient of x_out becomes that of x.
static void layer_backward(const Buffers* buf, const TostParams* g, const LayerActivations* a, const float* x,
                           const TostParams* p, const TostConfig* c, int B, int T) {
    const int C = c->n_embd, NH = c->n_head;
    const size_t rows = (size_t)B * T;
    residual_backward(buf->dbranch, g->gamma2, buf->dx, a->mlp_out, p->gamma2, rows, C);
    linear_backward(buf->scratch_bt4c, g->fc_proj_w, g->fc_proj_b, buf->dbranch, a->gelu, p->fc_proj_w, rows, 4 * C, C);
    gelu_backward(buf->scratch_bt4c, a->fc, rows * 4 * C);
    linear_backward(buf->scratch_btc, g->fc_w, g->fc_b, buf->scratch_bt4c, a->ln_2, p->fc_w, rows, C, 4 * C);
    layernorm_backward(buf->dx, g->ln_2_w, g->ln_2_b, buf->scratch_btc, a->x_mid, a->mean_2, a->rstd_2, p->ln_2_w, rows, C);

    residual_backward(buf->dbranch, g->gamma1, buf->dx, a->attn_out, p->gamma1, rows, C);
    linear_backward(buf->scratch_btc, g->attn_proj_w, g->attn_proj_b, buf->dbranch, a->y, p->attn_proj_w, rows, C, C);
    tssa_backward(buf->dbranch, g->temp, g->denom_bias, buf->da, buf->scratch, buf->scratch_btc, a->w, a->u, a->pi,
                  a->tssa_saved, p->temp, c->membership, c->block_size, B, T, C, NH);
    linear_backward(buf->scratch_btc, g->attn_w, g->attn_b, buf->dbranch, a->ln_1, p->attn_w, rows, C, C);
    layernorm_backward(buf->dx, g->ln_1_w, g->ln_1_b, buf->scratch_btc, x, a->mean_1, a->rstd_1, p->ln_1_w, rows, C);
}

// The residual stream that enters layer l; l = L: that leaves the last.
static const float* layer_input(const TostModel* m, int l) { return l > 0 ? m->layer[l - 1].x_out : m->buf.x; }

// The activations of layer l stand: with recompute they are computed again, unless no other layer's came after them.
static void hold_layer(TostModel* m, int l) {
    if (!m->options.recompute || m->held == l) return;
    const TostConfig* c = &m->config;
    const TostParams p = tost_layer(m, TOST_PARAM, l);
    memset(m->buf.tssa_now, 0, m->B * tssa_state_size(c->n_embd, c->n_head) * sizeof(double));
    layer_forward(&m->layer[l], layer_input(m, l), &p, c, m->layer[l].tssa_saved, m->buf.tssa_now, 0, m->B, m->T);
    m->held = l;
}

// Embedding, layers and ln_f at positions `first` and on. decode: the running sums (L,B/copies,2C+NH) that the sequences
// start from, each for `copies` of them, or for one (copies = 0) and then updated; NULL: they start from nothing.
static void model_forward(TostModel* m, const int32_t* inputs, double* decode, int copies, int first, int B, int T) {
    const TostConfig* c = &m->config;
    const int C = c->n_embd;
    const size_t rows = (size_t)B * T, one_state = tssa_state_size(C, c->n_head), state_size = B * one_state;
    TostParams p = tost_layer(m, TOST_PARAM, 0);
    assert(B <= m->options.max_batch && T <= m->options.max_seq && first + T <= c->block_size);
    threads_set(m->options.threads);
    m->B = B;
    m->T = T;
    m->held = c->n_layer - 1;
    memcpy(m->buf.inputs, inputs, rows * sizeof *inputs);
    embedding_forward(m->buf.x, inputs, p.wte, p.wpe, first, B, T, C);
    for (int l = 0; l < c->n_layer; l++) {
        double* state = decode && !copies ? decode + l * state_size : m->buf.tssa_now;
        if (!decode) memset(state, 0, state_size * sizeof *state);
        for (int b = 0; copies && b < B; b++)
            memcpy(state + b * one_state, decode + l * (state_size / copies) + b / copies * one_state, one_state * sizeof *state);
        p = tost_layer(m, TOST_PARAM, l);
        double* saved = decode || !m->options.training ? NULL : m->layer[l].tssa_saved;
        layer_forward(&m->layer[l], layer_input(m, l), &p, c, saved, state, first, B, T);
    }
    layernorm_forward(m->buf.ln_f, m->buf.mean_f, m->buf.rstd_f, layer_input(m, c->n_layer), p.ln_f_w, p.ln_f_b, rows,
                      C);
}

static void cpu_forward(TostModel* m, const int32_t* inputs, int B, int T) { model_forward(m, inputs, NULL, 0, 0, B, T); }

static void classifier_pass(TostModel* m, const int32_t* targets, float grad_scale) {
    const size_t rows = (size_t)m->B * m->T;
    // logits stand only chunk by chunk: where gradients are wanted, that of ln_f is made with them and waits in scratch_btc
    const float* wte = tost_layer(m, TOST_PARAM, 0).wte;
    float* dwte = grad_scale != 0.0f ? tost_layer(m, TOST_GRAD, 0).wte : NULL;
    classifier_forward_backward(m->buf.losses, m->buf.scratch_btc, dwte, m->buf.logits, m->buf.ln_f, wte, targets, grad_scale,
                                rows, even_chunk(rows, m->logits_rows), m->config.vocab_size, m->config.n_embd);
    for (size_t row = 0; row < rows; row++) {
        m->loss_sum += m->buf.losses[row];
        m->loss_count += targets[row] >= 0;
    }
}

static void cpu_forward_loss(TostModel* m, const int32_t* inputs, const int32_t* targets, int B, int T) {
    model_forward(m, inputs, NULL, 0, 0, B, T);
    classifier_pass(m, targets, 0.0f);
}

static void cpu_forward_train(TostModel* m, const int32_t* inputs, const int32_t* targets, int B, int T, float grad_scale) {
    assert(m->options.training);
    model_forward(m, inputs, NULL, 0, 0, B, T);
    classifier_pass(m, targets, grad_scale);
}

static void cpu_backward(TostModel* m) {
    const TostConfig* c = &m->config;
    const int B = m->B, T = m->T, C = c->n_embd, last = c->n_layer - 1;
    const size_t rows = (size_t)B * T;
    threads_set(m->options.threads);
    TostParams p = tost_layer(m, TOST_PARAM, last), g = tost_layer(m, TOST_GRAD, last);
    memset(m->buf.dx, 0, rows * C * sizeof(float));
    layernorm_backward(m->buf.dx, g.ln_f_w, g.ln_f_b, m->buf.scratch_btc, layer_input(m, last + 1), m->buf.mean_f,
                       m->buf.rstd_f, p.ln_f_w, rows, C);
    for (int l = last; l >= 0; l--) {
        p = tost_layer(m, TOST_PARAM, l);
        g = tost_layer(m, TOST_GRAD, l);
        hold_layer(m, l);
        layer_backward(&m->buf, &g, &m->layer[l], layer_input(m, l), &p, c, B, T);
    }
    embedding_backward(g.wte, g.wpe, m->buf.dx, m->buf.inputs, B, T, C);
}

static void cpu_read_loss(double* sum, int64_t* count, TostModel* m) {
    *sum = m->loss_sum;
    *count = m->loss_count;
    m->loss_sum = 0;
    m->loss_count = 0;
}

static void cpu_logits(float* dst, TostModel* m) {
    const float* wte = tost_layer(m, TOST_PARAM, 0).wte;
    gemm(dst, m->buf.ln_f, false, wte, true, m->B * m->T, m->config.vocab_size, m->config.n_embd, 0.0f);
}

static void cpu_activation(float* dst, TostModel* m, TostActivation what, int layer) {
    const size_t rows = (size_t)m->B * m->T, C = m->config.n_embd, NH = m->config.n_head;
    assert(m->options.training && layer >= 0 && layer < m->config.n_layer + (what == TOST_X));
    threads_set(m->options.threads);
    if (what != TOST_X) hold_layer(m, layer);
    if (what == TOST_X) memcpy(dst, layer_input(m, layer), rows * C * sizeof *dst);
    else if (what == TOST_W) memcpy(dst, m->layer[layer].w, rows * C * sizeof *dst);
    else memcpy(dst, m->layer[layer].pi, rows * NH * sizeof *dst);
}

// ---------------------------------------------------------------------------------------------
// Recurrent decode: a forward of one token a sequence that continues from the states

static void decode_logits(float* logits, TostModel* m) {   // (n,V), of the last row of each sequence
    const int C = m->config.n_embd, T = m->T;
    const float* wte = tost_layer(m, TOST_PARAM, 0).wte;
    for (int b = 0; b < m->B; b++)
        memmove(m->buf.ln_f + (size_t)b * C, m->buf.ln_f + ((size_t)b * T + T - 1) * C, C * sizeof(float));
    gemm(logits, m->buf.ln_f, false, wte, true, m->B, m->config.vocab_size, C, 0.0f);
}

static void cpu_decode_begin(float* logits, TostModel* m, const int32_t* prompts, int n, int T) {
    const size_t size = (size_t)m->config.n_layer * n * tssa_state_size(m->config.n_embd, m->config.n_head);
    memset(m->buf.decode, 0, size * sizeof(double));
    if (T > 0) model_forward(m, prompts, m->buf.decode, 0, 0, n, T);
    if (T > 0 && logits) decode_logits(logits, m);
    m->n_decode = n;
    m->position = T;
}

static void cpu_decode_step(float* logits, TostModel* m, const int32_t* tokens) {
    model_forward(m, tokens, m->buf.decode, 0, m->position, m->n_decode, 1);
    decode_logits(logits, m);
    m->position++;
}

static void cpu_decode_score(double* losses, TostModel* m, const int32_t* tokens, const int32_t* targets, int copies, int T) {
    const int C = m->config.n_embd, V = m->config.vocab_size;
    const size_t rows = (size_t)m->n_decode * copies * T;
    model_forward(m, tokens, m->buf.decode, copies, m->position, m->n_decode * copies, T);
    size_t counted = 0;   // rows with a target, moved to the front: the others need no logits
    for (size_t row = 0; row < rows; row++) {
        if (targets[row] < 0) continue;
        memmove(m->buf.ln_f + counted * C, m->buf.ln_f + row * C, C * sizeof(float));
        m->buf.targets[counted++] = targets[row];
    }
    if (counted)
        classifier_forward_backward(m->buf.losses, NULL, NULL, m->buf.logits, m->buf.ln_f, tost_layer(m, TOST_PARAM, 0).wte,
                                    m->buf.targets, 0.0f, counted, even_chunk(counted, m->logits_rows), V, C);
    for (size_t row = 0, i = 0; row < rows; row++) losses[row] = targets[row] < 0 ? 0.0 : m->buf.losses[i++];
}

// ---------------------------------------------------------------------------------------------
// Gradients and AdamW

static void cpu_zero_grad(TostModel* m) {
    float* grad = m->state[TOST_GRAD];
    #pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < m->tensors.flat_size; i++) grad[i] = 0.0f;
}

// √ Σ g², summed in double over blocks of a fixed size, and over the blocks in order: the same for any thread count.
static double cpu_grad_norm(TostModel* m) {
    enum { BLOCK = 1 << 14 };
    const size_t n = m->tensors.flat_size, blocks = (n + BLOCK - 1) / BLOCK;   // the gaps between tensors are zero
    double* sums = xmalloc(blocks * sizeof *sums);
    #pragma omp parallel for schedule(static)
    for (size_t i = 0; i < blocks; i++) {
        const size_t end = (i + 1) * BLOCK < n ? (i + 1) * BLOCK : n;
        double sum = 0;
        #pragma omp simd reduction(+ : sum)
        for (size_t j = i * BLOCK; j < end; j++) sum += (double)m->state[TOST_GRAD][j] * m->state[TOST_GRAD][j];
        sums[i] = sum;
    }
    double total = 0;
    for (size_t i = 0; i < blocks; i++) total += sums[i];
    free(sums);
    return sqrt(total);
}

// p = p (1 - lr wd);   m = β1 m + (1-β1) g;   v = β2 v + (1-β2) g²;   p = p - lr (m/(1-β1^s)) / (√(v/(1-β2^s)) + eps)
static void adamw(float* restrict p, float* restrict m, float* restrict v, const float* restrict grad, size_t n,
                  double weight_decay, const TostAdamW* a) {
    const float keep = (float)(1.0 - a->lr * weight_decay), scale = (float)a->grad_scale;
    const float b1 = (float)a->beta1, b2 = (float)a->beta2, c1 = (float)(1.0 - a->beta1), c2 = (float)(1.0 - a->beta2);
    const float rate = (float)(a->lr / (1.0 - pow(a->beta1, (double)a->step))), eps = (float)a->eps;
    const float root = (float)(1.0 / sqrt(1.0 - pow(a->beta2, (double)a->step)));
    #pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < n; i++) {
        const float g = grad[i] * scale;
        m[i] = b1 * m[i] + c1 * g;
        v[i] = b2 * v[i] + c2 * g * g;
        p[i] = p[i] * keep - rate * m[i] / (sqrtf(v[i]) * root + eps);
    }
}

static void cpu_update(TostModel* m, const TostAdamW* a) {
    for (int i = 0; i < m->tensors.count; i++) {
        const TostTensor* t = &m->tensors.tensor[i];
        adamw(m->state[TOST_PARAM] + t->offset, m->state[TOST_M] + t->offset, m->state[TOST_V] + t->offset,
              m->state[TOST_GRAD] + t->offset, t->size, t->decay == TOST_DECAY ? a->weight_decay : 0.0, a);
    }
}

// ---------------------------------------------------------------------------------------------
// The engine

static bool cpu_supports(TostDtype dtype) { return dtype == TOST_FP32; }

static bool cpu_describe(char* text, size_t cap, const TostEngineOptions* o, TostError* err) {
    (void)err;
    const int threads = o->threads ? o->threads : threads_max();
    char library[64];
    snprintf(text, cap, "CPU, %d thread%s, float32, matmul %s", threads, threads == 1 ? "" : "s",
             gemm_library(library, sizeof library));
    return true;
}

static size_t cpu_memory(const TostConfig* c, const TostEngineOptions* o) {
    TostModel* m = model_new(c, o);
    const size_t bytes = m->arena_bytes;
    model_free(m);
    return bytes;
}

static TostModel* cpu_create(const TostConfig* c, const TostEngineOptions* o, TostError* err) {
    TostModel* m = model_new(c, o);
    threads_set(m->options.threads);
    m->arena = alloc_pages(m->arena_bytes);
    if (!m->arena) {
        char need[32];
        tost_error(err, "not enough memory: the model needs %s; a smaller model, --batch or --seq needs less%s",
                   human_bytes(need, (double)m->arena_bytes), o->training && !o->recompute ? ", --recompute too" : "");
        model_free(m);
        return NULL;
    }
    lay_out(m, m->arena);
    return m;
}

static void cpu_put(TostModel* m, TostState s, const TostTensor* t, const float* src) {
    memcpy(m->state[s] + t->offset, src, t->size * sizeof *src);
}

static void cpu_get(float* dst, const TostModel* m, TostState s, const TostTensor* t) {
    memcpy(dst, m->state[s] + t->offset, t->size * sizeof *dst);
}

const TostEngine tost_cpu_engine = {
    .name = "cpu",
    .default_dtype = TOST_FP32,
    .supports = cpu_supports,
    .describe = cpu_describe,
    .memory = cpu_memory,
    .create = cpu_create,
    .destroy = model_free,
    .put = cpu_put,
    .get = cpu_get,
    .forward = cpu_forward,
    .forward_loss = cpu_forward_loss,
    .forward_train = cpu_forward_train,
    .backward = cpu_backward,
    .read_loss = cpu_read_loss,
    .logits = cpu_logits,
    .activation = cpu_activation,
    .zero_grad = cpu_zero_grad,
    .grad_norm = cpu_grad_norm,
    .update = cpu_update,
    .decode_begin = cpu_decode_begin,
    .decode_step = cpu_decode_step,
    .decode_score = cpu_decode_score,
};

#ifndef TOST_NO_MAIN
int main(int argc, char** argv) { return tost_main(argc, argv, &tost_cpu_engine); }
#endif
