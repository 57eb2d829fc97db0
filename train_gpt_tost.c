// train_gpt_tost.c: the Token Statistics Transformer (ToST, Wu et al., ICLR 2025, arXiv 2412.17810) on the CPU.
//
// ToST is GPT-2 with LayerScale and another attention, TSSA (token statistics self-attention):
//
//     x = wte[token] + wpe[position]
//     for each layer:   x = x + gamma1 · tssa(ln_1(x))          gamma1, gamma2: LayerScale, a factor per channel
//                       x = x + gamma2 · c_proj(gelu(c_fc(ln_2(x))))
//     logits = ln_f(x) · wteᵀ,   loss = mean of -log softmax(logits)[target]
//
//     tssa(a):  z = c_attn(a), one projection in place of query, key and value; head h of NH owns HS = C/NH channels.
//     For each sequence and head h, with d a channel of the head and t time:
//         s[t,d] = z[t,d]²,   S[t,d] = Σ_{t'≤t} s[t',d]                        energy, and its running sum
//         u[h,t] = Σ_d (s[t,d] / max(S[t,d], 1e-12) + denom_bias[h,t])
//         Π[h,t] = softmax over the HEADS h of  temp[h] · u[h,t]                membership
//         N[t,d] = Σ_{t'≤t} s[t',d] Π[h,t'],   D[h,t] = Σ_{t'≤t} Π[h,t']        running sums weighted by Π
//         y[t,d] = -z[t,d] Π[h,t] M[h,t] / (M[h,t] + N[t,d]),   M = D + 1e-8
//     and the output is c_proj(y). temp (per head) and denom_bias (per head and position) are learned; they start at 1
//     and 0. As in the published code, and despite its name, denom_bias is added to a ratio, once per channel.
//
// What TSSA does. s/S is the token's share of the energy that all tokens so far have in a channel. The sum u of these
// shares over a head's channels is about HS/(t+1) for a token of average size, and more for a larger one. A softmax
// over the heads turns the u into memberships Π, which add up to 1. m[d] = N[d]/M is the mean energy of the tokens so
// far in a channel, weighted by their membership in its head, and y = -zΠ/(1+m): about -zΠ for a small m, about 0 for a
// large one.
//
// Suppose that the rows of c_attn's weight are orthonormal, that c_proj's weight is its transpose and that neither has
// a bias, as in the paper's derivation. Then a + tssa(a) is a, with its part along each row multiplied by 1 - Π/(1+m):
// for Π = ½, by 0.5 at m = 0 and by 0.995 at m = 100. So a token shrinks along the directions in which the tokens of a
// head are small, and stays as it is along those in which they are large. In the paper, this is a step that lowers a
// coding rate, a measure of how far the tokens of a head spread: y is -M times the derivative of ½ Σ_d log(1+m[d]) with
// respect to z, for constant Π and M. The model does not compute this sum.
//
// Tokens are not compared pairwise: the past acts only through S, N and D, which are 2C + NH numbers per layer and
// sequence at any length. Time and memory are linear in T, and decoding needs no KV cache.
//
// Five options change the paper's model:
//     --conv 4               convolutions over time (tost/cpu/conv.h), so that a token also sees the three before it:
//                            z is the convolution of `projected` = c_attn(a). c_fc reads `mlp_in`, the convolution of
//                            ln_2(x)
//     --memory 1             a matrix per head predicts, from the z of a token, that of the next, and y +=
//                            memory_scale · prediction; Π is the rate of its updates (tost/cpu/delta_rule.h)
//     --membership uniform   temp is 0 and not trained, so Π = 1/NH
//     --positions none       wpe and denom_bias do not exist (NULL)
//     --bigrams N            x = x + bigram[token] + bigram[pair] after the layers; pair is the row of the token before
//                            and this one (tost/engine.h). So the layers need not learn which token often follows two
// Without --conv, `projected` is the array z, and `mlp_in` is the array ln_2.
//
// One training step, through the engine's functions (tost/engine.h), is
//
//     zero_grad(model)
//     for each micro-batch:
//         train_forward(model, {inputs, targets, B, T}, from, 1 / (number of targets in the step))
//         train_backward(model, after, before, TOST_MORE)
//     read_loss(&sum, &count, model)                            loss = sum / count
//     norm = grad_norm(model)
//     update(model, {lr, …, clip})                              clip = min(1, --grad-clip / (norm + 1e-6))
//
// train_forward also runs the classifier's backward; both functions add to the gradients of the mean loss.
//
// from, after and before are indices of states (see "States" below), here TOST_NO_STATE: the sequences begin and end
// with this batch. The last train_backward of a step gets TOST_STEP_ENDS instead of TOST_MORE: with several processes
// ("ranks", tost/ranks), the gradients of all are then summed. In `update`, each rank does a part of the work and sends
// its results to the others.
//
// A long sequence can be processed in chunks (--chunk, tost/chunks.c). The state between two chunks is S, N and D, and
// the states of the options. First, `forward` on each chunk but the last stores the state after it. Then, from the last
// chunk to the first, train_forward computes a chunk from the state before it, and train_backward starts from the
// gradient of the state after it, which the next chunk left. This is exact, because the state is all that later tokens
// use of earlier ones. Decoding is `forward` over chunks of one token.
//
// The file, in order: each layer's forward next to its backward (Embedding, LayerNorm, Linear, TSSA, Residual, GELU,
// Classifier); the arrays of a model; states; a layer; the model; AdamW; row-wise RMSProp; Muon; the update. The rest
// is what a trainer needs around it: memory, the functions of the engine. tost/model.h has the table of parameters,
// tost/cpu/gemm.c the matrix product, tost/run/train.c the training loop.
//
// To add a layer: write its forward and backward in a section of its own before "The arrays of a model", or, like the
// convolutions and the memory, in a file of tost/cpu. Add its parameters to TOST_PARAMS (tost/model.h), its activations
// to LAYER_ACTIVATIONS and its other buffers to SHARED_BUFFERS. Call it in layer_forward and, in reverse order, in
// layer_backward. dev/README.md has the tests and the other files that need the layer.
//
// Precision: float32, and double where the code says so. With --dtype bf16, parameters are float32 with a copy in bf16
// for matrix products, and these values are rounded to bf16:
//     the operands of matrix products
//     the outputs of Linear, and its biases before they are added; but not the logits of cpu_logits and cpu_last_logits
//     the inputs and outputs of the convolutions
//     in backward, the gradients of: z, the inputs of Linear, the inputs of the convolutions, the output of c_fc, and
//     the logits
// All else is as in float32: residual stream, statistics, softmax, loss, parameter gradients, moments.
//
// Sizes: B sequences, T tokens of each in the chunk, `first` the position of the first one, C channels, NH heads of
// HS = C/NH channels, V vocabulary, rows = B·T; block_size is the number of positions, as in nanoGPT. Arrays are dense
// and row-major. Arguments: outputs, saved tensors, inputs (const), sizes. dx is the gradient of the loss with respect
// to x. A comment at each backward says which gradients are overwritten (=) and which accumulated (+=). x_c points to a
// row of x whose elements have the index c.

#include <assert.h>

#include "tost/base/bf16.h"
#include "tost/base/processor.h"
#include "tost/base/vector_math.h"
#include "tost/commands/commands.h"
#include "tost/cpu/conv.h"
#include "tost/cpu/delta_rule.h"
#include "tost/cpu/gemm.h"
#include "tost/cpu/threads.h"
#include "tost/cpu/tssa_stages.h"
#include "tost/engine.h"
#include "tost/ranks/exchange.h"

// Sums over rows: a thread takes CHANNELS neighboring channels at a time and adds the rows in order, so the bits do not
// depend on the number of threads. Some of these functions are compiled twice: for CHANNELS channels, with the sums in
// registers, and for those that are left.
#define ALWAYS_INLINE static inline __attribute__((always_inline))
enum { CHANNELS = 32 };

// Layers, except the classifier, over at most SERIAL_ROWS rows (tost/cpu/threads.h) or 1 << 14 elements use one thread
// in forward, because waking the others takes longer. Training has more rows, so backward does not check.

// ---------------------------------------------------------------------------------------------
// Embedding:  x[b,t] = wte[token[b,t]] + wpe[first + t]

static void embedding_forward(float* x, const int32_t* tokens, const float* wte, const float* wpe, int first,
                              int B, int T, int C) {   // x (B,T,C); tokens (B,T); wte (V,C); wpe (block_size,C) or NULL
    #pragma omp parallel for schedule(static) if ((size_t)B * T > SERIAL_ROWS)
    for (size_t row = 0; row < (size_t)B * T; row++) {
        const float* token_c = wte + (size_t)tokens[row] * C;
        const float* position_c = wpe ? wpe + ((size_t)first + row % T) * C : NULL;
        float* x_c = x + row * C;
        for (int c = 0; c < C; c++) x_c[c] = position_c ? token_c[c] + position_c[c] : token_c[c];
    }
}

// dwte, dwpe += (dwpe may be NULL). A token can occur in many rows, so this is a sum over rows, too.
static void embedding_backward(float* dwte, float* dwpe, const float* dx, const int32_t* tokens, int first,
                               int B, int T, int C) {
    enum { LINE = 16 };   // channels of a thread at a time: one cache line
    #pragma omp parallel for schedule(static)
    for (int c0 = 0; c0 < C; c0 += LINE) {
        const int width = C - c0 < LINE ? C - c0 : LINE;
        for (size_t row = 0; row < (size_t)B * T; row++) {
            const float* dx_c = dx + row * C + c0;
            float* dtoken_c = dwte + (size_t)tokens[row] * C + c0;
            for (int c = 0; c < width; c++) dtoken_c[c] += dx_c[c];
            if (!dwpe) continue;
            float* dposition_c = dwpe + ((size_t)first + row % T) * C + c0;
            for (int c = 0; c < width; c++) dposition_c[c] += dx_c[c];
        }
    }
}

// Bigrams:  x[b,t] += bigram[token[b,t]] + bigram[pair[b,t]].  Backward is embedding_backward for both.

// x (rows,C); tokens, pairs (rows); bigram (V+bigrams,C)
static void bigram_forward(float* x, const int32_t* tokens, const int32_t* pairs, const float* bigram, size_t rows,
                           int C) {
    #pragma omp parallel for schedule(static) if (rows > SERIAL_ROWS)
    for (size_t row = 0; row < rows; row++) {
        const float *token_c = bigram + (size_t)tokens[row] * C, *pair_c = bigram + (size_t)pairs[row] * C;
        float* x_c = x + row * C;
        for (int c = 0; c < C; c++) x_c[c] += token_c[c] + pair_c[c];
    }
}

// ---------------------------------------------------------------------------------------------
// LayerNorm:  y = (x - mean) · rstd · w + b,   rstd = 1/√(variance + 1e-5)

static void layernorm_forward(float* y, float* mean, float* rstd, const float* x, const float* w, const float* b,
                              size_t rows, int C) {   // y, x (rows,C); mean, rstd (rows); w, b (C), b may be NULL
    #pragma omp parallel for schedule(static) if (rows > SERIAL_ROWS)
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

// dw, db of `width` neighboring channels
ALWAYS_INLINE void layernorm_channels(float* dw, float* db, const float* dy, const float* x, const float* mean,
                                      const float* rstd, size_t rows, int C, const int width) {
    double dw_sum[CHANNELS] = {0}, db_sum[CHANNELS] = {0};
    for (size_t row = 0; row < rows; row++) {
        const float *dy_c = dy + row * C, *x_c = x + row * C;
        const float m = mean[row], r = rstd[row];
        for (int c = 0; c < width; c++) dw_sum[c] += dy_c[c] * ((x_c[c] - m) * r);
        if (db) for (int c = 0; c < width; c++) db_sum[c] += dy_c[c];
    }
    for (int c = 0; c < width; c++) dw[c] += (float)dw_sum[c];
    if (db) for (int c = 0; c < width; c++) db[c] += (float)db_sum[c];
}

// dx += (on entry the gradient of the residual connection, or 0 for ln_f); dw, db += (db may be NULL).
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
    #pragma omp parallel for schedule(static)
    for (int c0 = 0; c0 < C; c0 += CHANNELS) {
        float *dw_c = dw + c0, *db_c = db ? db + c0 : NULL;
        if (C - c0 >= CHANNELS) layernorm_channels(dw_c, db_c, dy + c0, x + c0, mean, rstd, rows, C, CHANNELS);
        else layernorm_channels(dw_c, db_c, dy + c0, x + c0, mean, rstd, rows, C, C - c0);
    }
}

// ---------------------------------------------------------------------------------------------
// Linear:  y = x · wᵀ + b
//
// gemm(c, a, b, layout, M, N, K, store): c = A · B, for A (M,K), B (K,N), c (M,N). GEMM_NN: a is A and b is B; GEMM_NT:
// b is Bᵀ, stored (N,K); GEMM_TN: a is Aᵀ, stored (K,M). store: GEMM_SET; GEMM_ADD: c +=; GEMM_ROUND: rounds c to bf16;
// GEMM_SYMMETRIC: the caller knows that c = cᵀ, so half of it is computed and then copied.
// a and b are a Matrix {f32, bf16}: gemm reads f32; gemm_bf16, which has the same type, Gemm, reads bf16 or, if that is
// NULL, rounds f32 to bf16. f32(a) is the Matrix {a, NULL}. The weight decides: if its bf16 is NULL, all products of a
// Linear are in float32.

static void round_bf16(float* x, size_t n) {
    #pragma omp parallel for simd schedule(static) if (n > 1 << 14)
    for (size_t i = 0; i < n; i++) x[i] = rounded_bf16(x[i]);
}

static float matrix_at(Matrix x, size_t i) { return x.bf16 ? bf16_to_float(x.bf16[i]) : x.f32[i]; }

// y = x · wᵀ
static void times_weight(float* y, Matrix x, Matrix w, size_t rows, int IN, int OUT, GemmStore store) {
    Gemm* product = w.bf16 ? gemm_bf16 : gemm;
    product(y, x, w, GEMM_NT, (int)rows, OUT, IN, store);
}

static void linear_forward(float* y, Matrix x, Matrix w, const float* b,
                           size_t rows, int IN, int OUT) {   // y (rows,OUT); x (rows,IN); w (OUT,IN); b (OUT) or NULL
    times_weight(y, x, w, rows, IN, OUT, w.bf16 && !b ? GEMM_ROUND : GEMM_SET);
    if (!b) return;
    #pragma omp parallel for schedule(static) if (rows > SERIAL_ROWS)
    for (size_t row = 0; row < rows; row++) {
        float* y_o = y + row * OUT;
        if (!w.bf16) for (int o = 0; o < OUT; o++) y_o[o] += b[o];
        else for (int o = 0; o < OUT; o++) y_o[o] = rounded_bf16(y_o[o] + rounded_bf16(b[o]));
    }
}

// dx =; dw, db += (db may be NULL).   dx = dy · w,   dw = dyᵀ · x,   db = Σ_rows dy
static void linear_backward(float* dx, float* dw, float* db, Matrix dy, Matrix x, Matrix w,
                            size_t rows, int IN, int OUT) {
    Gemm* product = w.bf16 ? gemm_bf16 : gemm;
    product(dx, dy, w, GEMM_NN, (int)rows, IN, OUT, w.bf16 ? GEMM_ROUND : GEMM_SET);
    product(dw, dy, x, GEMM_TN, OUT, IN, (int)rows, GEMM_ADD);
    if (!db) return;
    #pragma omp parallel for schedule(static)
    for (int o0 = 0; o0 < OUT; o0 += CHANNELS) {
        const int width = OUT - o0 < CHANNELS ? OUT - o0 : CHANNELS;
        double sum[CHANNELS] = {0};
        for (size_t row = 0; row < rows; row++)
            for (int o = 0; o < width; o++) sum[o] += matrix_at(dy, row * OUT + o0 + o);
        for (int o = 0; o < width; o++) db[o0 + o] += (float)sum[o];
    }
}

// ---------------------------------------------------------------------------------------------
// TSSA, token statistics self-attention. Forward has three stages: the first computes S and u, the second Π, the
// softmax over the heads, the last N, D and y. Backward runs the same stages in reverse.
//
// The stages work on blocks of 64 tokens, so that z is still in cache in the last one. Forward saves S, N and D as they
// are before each block; backward starts from these and recomputes them within the block. tost/cpu/tssa_stages.h has
// the loop over blocks.
//
// A call of a stage gets a TssaRange: tokens t0 to t1 - 1 of the chunk, and heads h0 to h1 - 1 of sequence b. The first
// and the last stage go through the tokens of a block in order, and threads divide its heads. In the second stage, each
// token needs all heads, and threads divide the tokens.
//
// Sums over time are added in the order of t, so the bits do not depend on the number of threads, and in double: a
// float sum stops growing when its terms are smaller than its last bit.

// The state of a sequence is its running sums S, N (C) and D (NH), one after another. Its adjoint, the gradient with
// respect to it (RS, RN and RD, sums from the end: see Backward below), is laid out alike.
struct Tssa {   // the type Tssa is declared in tssa_stages.h
    int B, T, C, NH, HS;
    const float *z;                   // (B,T,C): the projection, or its convolution
    const float *temp, *denom_bias;   // (NH); (NH,block_size), from the position of the first token on, or NULL
    int block_size;
    float *u, *pi, *y;                // (B,NH,T) twice; (B,T,C)
    size_t stride;                    // floats from the start of a sequence's state to that of the next one: after
                                      // S, N and D come the floats of --conv and --memory (see States)
    double *state;                    // (B; 2C+NH every `stride` floats): S, N, D before these tokens, then after them
    double *saved;                    // (B,blocks,2C+NH): S, N and D before each block; NULL if no backward follows
    double *scratch;                  // (threads,tssa_scratch_size)
    // backward only
    const float *dy;                  // (B,T,C)
    float *dz;                        // (B,T,C)
    float *dpi, *dscore;              // (B,NH,T) twice, may be one array. dpi: dΠ; on entry the memory's part, or 0
    float *dtemp, *ddenom_bias;       // (NH), NULL if membership is uniform; (NH,block_size) or NULL: +=
    double *adjoint;                  // like state: RS, RN and RD after these tokens, then before them
};

static size_t tssa_state_size(int C, int NH) { return 2 * (size_t)C + NH; }
// Doubles of scratch per thread. tssa_statistics_backward uses most: N, D, and g, dD, Π/M of each token of a block.
static size_t tssa_scratch_size(int C, int NH) { return (TSSA_BLOCK + 1) * ((size_t)C + 2 * NH); }

// S, N and D in a state; RS, RN and RD in an adjoint
typedef struct { double *S, *N, *D; } TssaState;
static TssaState tssa_split(const Tssa* args, double* S) { return (TssaState){S, S + args->C, S + 2 * args->C}; }
// Of sequence b in `states`
static TssaState tssa_state(const Tssa* args, double* states, int b) {
    return tssa_split(args, (double*)((float*)states + b * args->stride));
}
// Of sequence b, as saved before the block of token t
static TssaState tssa_saved(const Tssa* args, int b, int t) {
    const size_t block = (size_t)b * tssa_blocks(args->T) + t / TSSA_BLOCK;
    return tssa_split(args, args->saved + block * tssa_state_size(args->C, args->NH));
}

// Offsets: of the channels of head h in a (B,T,C) array; of t = 0 of head h in a (B,NH,T) array
static size_t tssa_row(const Tssa* args, int b, int t, int h) {
    return ((size_t)b * args->T + t) * args->C + h * args->HS;
}
static size_t tssa_head(const Tssa* args, int b, int h) { return ((size_t)b * args->NH + h) * args->T; }

static double* tssa_scratch(const Tssa* args) {   // of the calling thread
    return args->scratch + thread_index() * tssa_scratch_size(args->C, args->NH);
}

// Copies the sums of the range's heads: `width` numbers of each.
static void tssa_copy(double* dst, const double* src, TssaRange range, int width) {
    memcpy(dst + range.h0 * width, src + range.h0 * width, (size_t)((range.h1 - range.h0) * width) * sizeof *dst);
}

// S and u. HS is a parameter so that it can be a constant (TSSA_STAGE below).
ALWAYS_INLINE void tssa_energy_forward_heads(const Tssa* args, TssaRange range, const int HS) {
    double* S = tssa_state(args, args->state, range.b).S;
    if (args->saved) tssa_copy(tssa_saved(args, range.b, range.t0).S, S, range, HS);
    for (int t = range.t0; t < range.t1; t++) {
        for (int h = range.h0; h < range.h1; h++) {
            const float* z = args->z + tssa_row(args, range.b, t, h);
            double* restrict S_d = S + h * HS;
            double ratios = 0;
            #pragma omp simd reduction(+ : ratios)
            for (int d = 0; d < HS; d++) {
                const double s = (double)z[d] * z[d];
                S_d[d] += s;
                ratios += s / (S_d[d] > TOST_ENERGY_MIN ? S_d[d] : TOST_ENERGY_MIN);
            }
            const double bias = args->denom_bias ? args->denom_bias[(size_t)h * args->block_size + t] : 0;
            args->u[tssa_head(args, range.b, h) + t] = (float)(ratios + HS * bias);
        }
    }
}

// Defines stage `name` from name_heads, which is compiled twice: for any HS, and for 8, as 8 doubles fill one vector.
// With C = 128, forward then takes 1.04 instead of 1.64 ms for 4,096 tokens, backward 2.1 instead of 4.2.
#define TSSA_STAGE(name) \
    static void name(const Tssa* args, TssaRange range) { \
        if (args->HS == 8) name##_heads(args, range, 8); \
        else name##_heads(args, range, args->HS); \
    }
TSSA_STAGE(tssa_energy_forward)

// Π[h,t] = softmax over h of temp[h] · u[h,t]
static void tssa_membership_forward(const Tssa* args, TssaRange range) {
    const size_t T = args->T;
    double* e = tssa_scratch(args);   // (NH)
    for (int t = range.t0; t < range.t1; t++) {
        const float* u = args->u + tssa_head(args, range.b, 0) + t;   // of head h: u[h * T]
        float* pi = args->pi + tssa_head(args, range.b, 0) + t;
        double largest = -INFINITY, sum = 0;
        for (int h = 0; h < args->NH; h++) {
            const double score = (double)args->temp[h] * u[h * T];
            largest = score > largest ? score : largest;
        }
        for (int h = 0; h < args->NH; h++) {
            e[h] = exp((double)args->temp[h] * u[h * T] - largest);
            sum += e[h];
        }
        for (int h = 0; h < args->NH; h++) pi[h * T] = (float)(e[h] / sum);
    }
}

// N, D and y
static void tssa_statistics_forward(const Tssa* args, TssaRange range) {
    const int HS = args->HS;
    const TssaState sums = tssa_state(args, args->state, range.b);
    double* D = tssa_scratch(args);   // (NH), a copy: in `state`, heads of several threads share a cache line
    tssa_copy(D, sums.D, range, 1);
    if (args->saved) {
        tssa_copy(tssa_saved(args, range.b, range.t0).N, sums.N, range, HS);
        tssa_copy(tssa_saved(args, range.b, range.t0).D, D, range, 1);
    }
    for (int t = range.t0; t < range.t1; t++) {
        for (int h = range.h0; h < range.h1; h++) {
            const float* z = args->z + tssa_row(args, range.b, t, h);
            float* restrict y = args->y + tssa_row(args, range.b, t, h);
            double* restrict N_d = sums.N + h * HS;
            const double pi = args->pi[tssa_head(args, range.b, h) + t];
            D[h] += pi;
            const double M = D[h] + TOST_MASS_EPS;
            for (int d = 0; d < HS; d++) {   // y = -z Π M / (M + N)
                N_d[d] += (double)z[d] * z[d] * pi;
                y[d] = (float)(-z[d] * (pi * M) / (M + N_d[d]));
            }
        }
    }
    tssa_copy(sums.D, D, range, 1);
}

// Sets u, Π, y and `saved`, and advances the state by these tokens. T = 1 is a decode step. The first stage uses no
// result of the others. So if several threads share a sequence, they form a pipeline: while some run the last stage on
// a block, others run the first stage on a later one. first_cost : last_cost, the ratio of the two stages' times per
// head (measured), tells tssa_run how many heads to give to each thread, so that all end at the same time.
static void tssa_forward(const Tssa* args) {
    const TssaStages stages = {.first = tssa_energy_forward, .first_cost = 5, .second = tssa_membership_forward,
                               .last = tssa_statistics_forward, .last_cost = 4,
                               .B = args->B, .T = args->T, .NH = args->NH};
    const bool in_parallel = (size_t)args->B * args->T > SERIAL_ROWS;
    const bool ascending = true;   // in time
    tssa_run(&stages, args, ascending, in_parallel);
}

// Backward, from dy to dz. y[t] uses the running sums N[t] and D[t], and u[t] uses S[t]; dN[t], dD[t] and dS[t] are the
// gradients through y[t] and u[t] alone. Token t's terms s Π, Π and s are in the sums N, D and S at t and later, so the
// gradients of these terms are RN[t], RD[t] and RS[t]: dN, dD and dS, summed over t and later. Let m = N/M and
// g = 1/(1+m). First through y = -z Π M/(M + N) = -z Π g:
//     dz = -Π g dy,   dΠ = -Σ_d z g dy,   dN = Π M dy z / (M + N)² = dy z g² Π/M,   dD = -Σ_d dN m
//     RN[t] = Σ_{t'≥t} dN[t'],   RD[t] = Σ_{t'≥t} dD[t'],   ds = Π RN,   dΠ += RD + Σ_d s RN
// Then through the softmax over heads of score = temp · u:
//     dscore[h] = Π[h] (dΠ[h] - Σ_h' Π[h'] dΠ[h']),   du = temp dscore,   dtemp[h] = Σ_{b,t} dscore u
// Last through u = Σ_d (s/max(S, 1e-12) + denom_bias):
//     ddenom_bias[h,t] = Σ_b HS du,   dS = -du s/S²  (0 if S ≤ 1e-12),   RS[t] = Σ_{t'≥t} dS[t'],
//     ds = du/max(S, 1e-12) + RS
// Each of these two parts of ds gives, by s = z², dz += 2 z ds. The adjoint of the state, its gradient, is RS, RN, RD.

// Through y, N and D. Sets dz; adds to dpi, which on entry holds the memory's part of dΠ, or 0. Recomputes N and D
// forward in time and stores g, dD and Π/M; then goes backward in time for RN and RD.
ALWAYS_INLINE void tssa_statistics_backward_heads(const Tssa* args, TssaRange range, const int HS) {
    const int C = args->C, NH = args->NH;
    const TssaState adjoint = tssa_state(args, args->adjoint, range.b);   // N, D: RN, RD of the tokens that follow
    double* N = tssa_scratch(args);                           // (C), followed by
    double* D = N + C;                                        // (NH)
    double* g = D + NH;                                       // (TSSA_BLOCK,C)
    double* dD = g + TSSA_BLOCK * (size_t)C;                  // (TSSA_BLOCK,NH)
    double* pi_over_M = dD + TSSA_BLOCK * (size_t)NH;         // (TSSA_BLOCK,NH)
    memcpy(N, tssa_saved(args, range.b, range.t0).N, (C + NH) * sizeof *N);   // and D, which follows N
    for (int t = range.t0; t < range.t1; t++) {
        for (int h = range.h0; h < range.h1; h++) {
            const int i = (t - range.t0) * NH + h;
            const float *z = args->z + tssa_row(args, range.b, t, h), *dy = args->dy + tssa_row(args, range.b, t, h);
            double *restrict N_d = N + h * HS, *restrict g_d = g + (size_t)i * HS;
            double dD_h = 0;
            const double pi = args->pi[tssa_head(args, range.b, h) + t];
            D[h] += pi;
            const double inverse = 1.0 / (D[h] + TOST_MASS_EPS);   // 1/M
            #pragma omp simd reduction(+ : dD_h)
            for (int d = 0; d < HS; d++) {
                N_d[d] += (double)z[d] * z[d] * pi;
                const double m = N_d[d] * inverse;
                g_d[d] = 1.0 / (1.0 + m);
                dD_h -= (double)dy[d] * z[d] * g_d[d] * g_d[d] * (pi * inverse) * m;
            }
            dD[i] = dD_h;
            pi_over_M[i] = pi * inverse;
        }
    }
    double* RD = D;   // D is no longer needed
    tssa_copy(RD, adjoint.D, range, 1);
    for (int t = range.t1 - 1; t >= range.t0; t--) {
        for (int h = range.h0; h < range.h1; h++) {
            const int i = (t - range.t0) * NH + h;
            const float *z = args->z + tssa_row(args, range.b, t, h), *dy = args->dy + tssa_row(args, range.b, t, h);
            float* restrict dz = args->dz + tssa_row(args, range.b, t, h);
            const double* restrict g_d = g + (size_t)i * HS;
            const double pi_over_M_i = pi_over_M[i], pi = args->pi[tssa_head(args, range.b, h) + t];
            double* restrict RN = adjoint.N + h * HS;
            double dpi = 0;
            #pragma omp simd reduction(+ : dpi)
            for (int d = 0; d < HS; d++) {
                const double dy_z_g = (double)dy[d] * z[d] * g_d[d];
                RN[d] += dy_z_g * g_d[d] * pi_over_M_i;
                dpi += (double)z[d] * z[d] * RN[d] - dy_z_g;
                dz[d] = (float)(pi * (2.0 * z[d] * RN[d] - dy[d] * g_d[d]));
            }
            RD[h] += dD[i];
            float* dpi_t = args->dpi + tssa_head(args, range.b, h) + t;
            *dpi_t = (float)(*dpi_t + dpi + RD[h]);
        }
    }
    tssa_copy(adjoint.D, RD, range, 1);
}
TSSA_STAGE(tssa_statistics_backward)

// From dΠ to dscore
static void tssa_membership_backward(const Tssa* args, TssaRange range) {
    const size_t T = args->T;
    for (int t = range.t0; t < range.t1; t++) {
        const float* pi = args->pi + tssa_head(args, range.b, 0) + t;
        const float* dpi = args->dpi + tssa_head(args, range.b, 0) + t;
        float* dscore = args->dscore + tssa_head(args, range.b, 0) + t;
        double mean = 0;
        for (int h = 0; h < args->NH; h++) mean += (double)pi[h * T] * dpi[h * T];
        for (int h = 0; h < args->NH; h++) dscore[h * T] = (float)(pi[h * T] * (dpi[h * T] - mean));
    }
}

// Through u and S: dz +=. Recomputes S forward in time, then goes backward in time for RS. S[0] is the sum before the
// block, and S[i + 1] that with its token i; only the channels of the range's heads are used.
static void tssa_energy_backward(const Tssa* args, TssaRange range) {
    const int C = args->C, HS = args->HS, at = range.h0 * HS, width = (range.h1 - range.h0) * HS;
    double* RS = tssa_state(args, args->adjoint, range.b).S;
    double* S = tssa_scratch(args);   // (TSSA_BLOCK+1,C)
    memcpy(S + at, tssa_saved(args, range.b, range.t0).S + at, width * sizeof *S);
    for (int t = range.t0; t < range.t1; t++) {
        const float* z = args->z + tssa_row(args, range.b, t, range.h0);
        double *restrict S_t = S + (size_t)(t - range.t0) * C + at, *restrict S_next = S_t + C;
        for (int c = 0; c < width; c++) S_next[c] = S_t[c] + (double)z[c] * z[c];
    }
    for (int t = range.t1 - 1; t >= range.t0; t--) {
        for (int h = range.h0; h < range.h1; h++) {
            const float* z = args->z + tssa_row(args, range.b, t, h);
            float* restrict dz = args->dz + tssa_row(args, range.b, t, h);
            const double* restrict S_d = S + (size_t)(t - range.t0 + 1) * C + h * HS;
            const double du = (double)args->temp[h] * args->dscore[tssa_head(args, range.b, h) + t];
            double* restrict RS_d = RS + h * HS;
            for (int d = 0; d < HS; d++) {
                const bool above = S_d[d] > TOST_ENERGY_MIN;
                const double inverse = 1.0 / (above ? S_d[d] : TOST_ENERGY_MIN);
                const double dS = -du * z[d] * z[d] * inverse * inverse;
                RS_d[d] += above ? dS : 0.0;
                dz[d] += (float)(2.0 * z[d] * (du * inverse + RS_d[d]));
            }
        }
    }
}

// Sets dz, adds to dtemp and ddenom_bias, and moves the adjoint of the state from the end of these tokens to the start.
static void tssa_backward(const Tssa* args) {
    const TssaStages stages = {.first = tssa_statistics_backward, .first_cost = 4, .second = tssa_membership_backward,
                               .last = tssa_energy_backward, .last_cost = 3,
                               .B = args->B, .T = args->T, .NH = args->NH};
    const bool in_parallel = true, ascending = false;
    tssa_run(&stages, args, ascending, in_parallel);
    #pragma omp parallel for schedule(static)
    for (int h = 0; h < args->NH; h++) {
        double dtemp = 0;
        for (int b = 0; b < args->B; b++) {
            const float *dscore = args->dscore + tssa_head(args, b, h), *u = args->u + tssa_head(args, b, h);
            for (int t = 0; t < args->T; t++) dtemp += (double)dscore[t] * u[t];
            if (!args->ddenom_bias) continue;
            float* ddenom_bias = args->ddenom_bias + (size_t)h * args->block_size;
            for (int t = 0; t < args->T; t++)
                ddenom_bias[t] += (float)((double)args->HS * args->temp[h] * dscore[t]);
        }
        if (args->dtemp) args->dtemp[h] += (float)dtemp;
    }
}

// ---------------------------------------------------------------------------------------------
// Residual with LayerScale:  x_out = x + gamma · branch

static void residual_forward(float* x_out, const float* x, const float* branch, const float* gamma,
                             size_t rows, int C) {   // x_out, x, branch (rows,C), x_out may be x; gamma (C)
    #pragma omp parallel for schedule(static) if (rows > SERIAL_ROWS)
    for (size_t row = 0; row < rows; row++)
        for (int c = 0; c < C; c++) x_out[row * C + c] = x[row * C + c] + gamma[c] * branch[row * C + c];
}

ALWAYS_INLINE void residual_channels(float* restrict dbranch, float* dgamma, const float* dx, const float* branch,
                                     const float* gamma, size_t rows, int C, const int width) {
    double sum[CHANNELS] = {0};
    for (size_t row = 0; row < rows; row++)
        for (int c = 0; c < width; c++) {
            const size_t at = row * C + c;
            sum[c] += dx[at] * branch[at];
            dbranch[at] = gamma[c] * dx[at];
        }
    for (int c = 0; c < width; c++) dgamma[c] += (float)sum[c];
}

// dbranch =; dgamma +=. dx, the gradient of x_out, stays as it is: it is also what x gets through the skip connection.
//   dbranch = gamma dx,   dgamma = Σ_rows dx branch
static void residual_backward(float* dbranch, float* dgamma, const float* dx, const float* branch, const float* gamma,
                              size_t rows, int C) {
    #pragma omp parallel for schedule(static)
    for (int i = 0; i < C; i += CHANNELS)
        if (C - i >= CHANNELS)
            residual_channels(dbranch + i, dgamma + i, dx + i, branch + i, gamma + i, rows, C, CHANNELS);
        else residual_channels(dbranch + i, dgamma + i, dx + i, branch + i, gamma + i, rows, C, C - i);
}

// ---------------------------------------------------------------------------------------------
// GELU, the exact form:  y = x Φ(x),   Φ the distribution function of the standard normal

// Returns y. x becomes the derivative, for backward:   Φ(x) + x φ(x),   φ(x) = e^(-x²/2)/√(2π)
static inline float gelu_of(float* x) {
    const float bell = normal_bell(*x), cdf = normal_cdf(*x, bell), y = *x * cdf;   // bell: e^(-x²/2)
    *x = cdf + *x * bell * 0.398942280f;
    return y;
}

// Sets y_bf16 if it is not NULL, otherwise y. x becomes the derivative.
static void gelu_forward(float* y, uint16_t* y_bf16, float* x, size_t n) {
    if (y_bf16) {
        #pragma omp parallel for simd schedule(static) if (n > 1 << 14)
        for (size_t i = 0; i < n; i++) y_bf16[i] = bf16_from_float(gelu_of(&x[i]));
    } else {
        #pragma omp parallel for simd schedule(static) if (n > 1 << 14)
        for (size_t i = 0; i < n; i++) y[i] = gelu_of(&x[i]);
    }
}

// dx =, in place: holds dy on entry. If dx_bf16 is not NULL, it gets the result, and dx keeps dy.
static void gelu_backward(float* dx, uint16_t* dx_bf16, const float* derivative, size_t n) {
    if (dx_bf16) {
        #pragma omp parallel for simd schedule(static)
        for (size_t i = 0; i < n; i++) dx_bf16[i] = bf16_from_float(dx[i] * derivative[i]);
    } else {
        #pragma omp parallel for simd schedule(static)
        for (size_t i = 0; i < n; i++) dx[i] *= derivative[i];
    }
}

// ---------------------------------------------------------------------------------------------
// Classifier, softmax and cross-entropy:  loss[row] = log Σ_v e^logit[row,v] - logit[row,target]

// The loss of one row. The logits become e^(logit - largest logit), and *sum their sum.
static inline double cross_entropy_row(double* sum, float* logits, int32_t target, int V) {
    const double target_logit = logits[target];
    float largest = logits[0];
    #pragma omp simd reduction(max : largest)
    for (int v = 0; v < V; v++) largest = logits[v] > largest ? logits[v] : largest;
    *sum = exp_row(logits, largest, V);
    return log(*sum) + largest - target_logit;
}

// loss, targets (rows); logits (rows,V) are overwritten. A target of -1 has the loss 0. With `gradient` the logits
// become their gradient, 0 in a row whose target is -1:   dlogits = grad_scale (softmax(logits) - onehot(target))
// If dlogits_bf16 (rows,V) is not NULL, it gets the gradient instead.
static void cross_entropy(double* loss, float* logits, uint16_t* dlogits_bf16, const int32_t* targets, bool gradient,
                          float grad_scale, size_t rows, int V) {
    #pragma omp parallel for schedule(static)
    for (size_t row = 0; row < rows; row++) {
        float* logits_v = logits + row * V;
        uint16_t* dlogits_v = dlogits_bf16 ? dlogits_bf16 + row * V : NULL;
        loss[row] = 0.0;
        if (targets[row] < 0) {
            if (dlogits_v) memset(dlogits_v, 0, V * sizeof *dlogits_v);
            else memset(logits_v, 0, V * sizeof *logits_v);
            continue;
        }
        double sum;
        loss[row] = cross_entropy_row(&sum, logits_v, targets[row], V);
        if (!gradient) continue;
        const float scale = (float)(grad_scale / sum), dtarget = logits_v[targets[row]] * scale - grad_scale;
        if (dlogits_v) for (int v = 0; v < V; v++) dlogits_v[v] = bf16_from_float(logits_v[v] * scale);
        else for (int v = 0; v < V; v++) logits_v[v] *= scale;
        if (dlogits_v) dlogits_v[targets[row]] = bf16_from_float(dtarget);
        else logits_v[targets[row]] = dtarget;
    }
}

typedef struct {
    double* loss;             // (rows): =
    float *dx, *dwte;         // (rows,C): =; (V,C): +=; NULL: no gradients
    float grad_scale;         // the gradients are those of grad_scale · Σ loss
    float* logits;            // (block,V): working space for one block of rows
    uint16_t* dlogits_bf16;   // (block,V): gradient of the logits; NULL: it replaces the logits
    const float* x;           // (rows,C)
    Matrix wte;               // (V,C)
    const int32_t* targets;   // (rows)
    size_t rows, block;       // all rows, and those of a block
    int V, C;
} Classifier;

// Rows per block if `rows` are divided into the fewest blocks of at most `most` rows, of nearly equal size.
static size_t even_block(size_t rows, size_t most) {
    const size_t blocks = (rows + most - 1) / most;
    return (rows + blocks - 1) / blocks;
}

// Rows per block of logits, the smaller of two numbers. wanted: as many as fit in 8 MiB of cache, but at least 768,
// because each block reads all of wte and dwte. allowed: as many as fit in 128 MiB, but at least 64.
static size_t classifier_rows(size_t rows, int V) {
    const size_t cached = ((size_t)8 << 20) / (V * sizeof(float)), fit = ((size_t)128 << 20) / (V * sizeof(float));
    const size_t wanted = max_size(cached, 768), allowed = max_size(fit, 64);
    return even_block(rows, min_size(wanted, allowed));
}

// Losses and, unless dwte is NULL, gradients, one block of rows after the other, because all logits would be too many
static void classify(const Classifier* args) {
    const int V = args->V, C = args->C;
    for (size_t row = 0; row < args->rows; row += args->block) {
        const size_t n = args->rows - row < args->block ? args->rows - row : args->block;
        const Matrix x = f32(args->x + row * C), dlogits = {args->logits, args->dlogits_bf16};
        linear_forward(args->logits, x, args->wte, NULL, n, C, V);
        cross_entropy(args->loss + row, args->logits, args->dlogits_bf16, args->targets + row, args->dwte != NULL,
                      args->grad_scale, n, V);
        if (args->dwte) linear_backward(args->dx + row * C, args->dwte, NULL, dlogits, x, args->wte, n, C, V);
    }
}

// ---------------------------------------------------------------------------------------------
// The arrays of a model: one allocation (layout_buffers). Parameters, gradients and the optimizer's moments are flat
// arrays laid out by the table in tost/model.h; activations and buffers follow the tables below. A training model keeps
// the activations of every layer for backward. For inference, all layers share one set: a layer's x_out is then
// the array of its input, which was last read for x_mid.

// A row: field, type, elements. Each table is expanded twice: to a struct, below, and in layout_buffers to the arrays'
// allocation, with these variables: C, NH, V; L layers; B and rows = B·T, of the largest chunk; the numbers of states
// and of threads; logits_rows, the rows of a block of logits; conv, memory, bigrams, train, muon, fp32 and bf16, which
// are 1, or 0 to leave the array out (NULL); c and o, the model's config and options.
#define LAYER_ACTIVATIONS(X) \
    X(ln_1,       float,  rows * C)                     /* ln_1(x) */ \
    X(mean_1,     float,  rows) \
    X(rstd_1,     float,  rows) \
    X(projected,  float,  conv * rows * C)              /* c_attn(ln_1) */ \
    X(z,          float,  rows * C)                     /* convolution of projected; without --conv the same array */ \
    X(u,          float,  rows * NH)                    /* (B,NH,T) */ \
    X(pi,         float,  rows * NH)                    /* (B,NH,T) */ \
    X(tssa_saved, double, train * B * tssa_blocks(o->max_chunk) * tssa_state_size(C, NH)) /* Tssa.saved */ \
    X(y,          float,  rows * C) \
    X(predicted,  float,  memory * rows * C)            /* the memory's predictions */ \
    X(memory_G,   float,  memory * train * B * C * (C / NH)) /* (B,C·HS): the heads' matrices after the chunk */ \
    X(attn_out,   float,  rows * C)                     /* c_proj(y) */ \
    X(x_mid,      float,  rows * C)                     /* x + gamma1 attn_out */ \
    X(ln_2,       float,  rows * C)                     /* ln_2(x_mid) */ \
    X(mean_2,     float,  rows) \
    X(rstd_2,     float,  rows) \
    X(mlp_in,     float,  conv * rows * C)              /* convolution of ln_2; without --conv the same array */ \
    X(fc,         float,  rows * 4 * C)                 /* gelu_forward puts GELU's derivative there */ \
    X(gelu,       float,  fp32 * rows * 4 * C) \
    X(gelu_bf16,  uint16_t, bf16 * rows * 4 * C)        /* with --dtype bf16 in place of gelu */ \
    X(mlp_out,    float,  rows * C) \
    X(x_out,      float,  rows * C)                     /* x_mid + gamma2 mlp_out */

#define SHARED_BUFFERS(X) \
    X(x,            float,  rows * C)                   /* embedding: the input of layer 0 */ \
    X(ln_f,         float,  rows * C) \
    X(mean_f,       float,  rows) \
    X(rstd_f,       float,  rows) \
    X(logits,       float,  logits_rows * V)            /* of a block of rows */ \
    X(dlogits_bf16, uint16_t, train * bf16 * logits_rows * V) /* gradient of the logits; float32: in their place */ \
    X(losses,       double, rows) \
    X(gathered,     float,  rows * C)                   /* rows of ln_f: the last ones, or those with targets */ \
    X(gathered_targets, int32_t, rows)                  /* their targets */ \
    X(pairs,        int32_t, bigrams * rows)            /* rows of bigram */ \
    X(touched,      bool,    bigrams * train * (V + c->bigrams)) /* rows of bigram with a gradient in this step */ \
    X(last,         int32_t, bigrams * states * B)      /* the last token of each sequence in each state */ \
    X(states,       float,  states * L * B * state_size(c)) /* or gradients of states */ \
    X(layer_state,  float,  B * state_size(c))          /* of one layer, if the pass does not set a state */ \
    X(tssa_scratch, double, threads * tssa_scratch_size(C, NH)) \
    X(memory_scratch, float, memory * threads * delta_rule_scratch_size(C / NH)) \
    X(dpredicted,   float,  memory * train * rows * C)  /* gradient of predicted, then the memory's part of dz */ \
    X(dx,           float,  train * rows * C)           /* gradient of the residual stream */ \
    X(dbranch,      float,  train * rows * C)           /* in turn, gradients of mlp_out, attn_out, z, projected */ \
    X(scratch_btc,  float,  train * rows * C)           /* in turn, gradients of ln_f, mlp_in, ln_2, y, ln_1 */ \
    X(scratch_bt4c, float,  train * rows * 4 * C)       /* gradients of gelu and, with --dtype fp32, fc */ \
    X(dfc_bf16,     uint16_t, train * bf16 * rows * 4 * C) /* gradient of fc */ \
    X(dscore,       float,  train * rows * NH)          /* (B,NH,T): dΠ, which TSSA's backward replaces by dscore */ \
    X(muon,         float,  train * muon * 6 * C * C)   /* see orthogonalize */

#define X(field, type, elements) type* field;
typedef struct { LAYER_ACTIVATIONS(X) } LayerActivations;
typedef struct { SHARED_BUFFERS(X) } Buffers;
#undef X

struct TostModel {
    TostConfig        config;
    TostEngineOptions options;
    TostTensors       tensors;
    float*            array[TOST_ARRAYS];  // parameters, gradients (tensors.flat_size elements); m and v (of the
                                           // parts that this rank updates)
    uint16_t*         params_bf16;         // with --dtype bf16: a copy of all parameters but bigram; otherwise NULL
    LayerActivations* layer;               // (L)
    Buffers           buf;
    void*             arena;               // the one allocation
    size_t            arena_bytes;
    size_t            logits_rows;         // rows in a block of logits, at most
    Exchange          exchange;            // of gradients and parameters with other ranks
    Threads           threads;             // threads_begin and threads_end measure the time of a pass: if other
                                           // programs use the cores, later passes get fewer threads
    TostChunk         chunk;               // of the last pass
    int               from;                // the state from which it started
    double            loss_sum;            // since the last read_loss
    int64_t           loss_count;
};

// Pointers to the parameters of layer l and to those outside of the layers; or to their gradients.
static TostParams model_params(const TostModel* model, TostArray array, int l) {
    return tost_params(&model->tensors, model->array[array], l);
}

// A parameter as the operand of a matrix product.
static Matrix weight(const TostModel* model, const float* param) {
    return (Matrix){param, model->params_bf16 ? model->params_bf16 + (param - model->array[TOST_PARAM]) : NULL};
}

static size_t chunk_rows(const TostModel* model) { return (size_t)model->chunk.B * model->chunk.T; }

// The input of layer l; l = L: the output of the last layer.
static const float* layer_input(const TostModel* model, int l) {
    return l > 0 ? model->layer[l - 1].x_out : model->buf.x;
}

// ---------------------------------------------------------------------------------------------
// States: all that a chunk uses of earlier tokens. buf.states has options.states of them, each for all layers and
// sequences; with --bigrams, buf.last has the last token of each sequence. from, to, after and before are indices of
// states, or TOST_NO_STATE. Forward reads state `from` and writes state `to`. Backward goes through the chunks in
// reverse: it reads the gradient of the state after a chunk from `after`, and writes that of the state before the chunk
// to `before`, which must be another one than `from`.

// Floats in the state of a sequence in a layer: S, N and D, which are doubles; the inputs of the last three tokens for
// each convolution; the state of the memory. An even number, so that the doubles of the next state are aligned.
static size_t state_size(const TostConfig* c) {
    const int C = c->n_embd, HS = C / c->n_head;
    const size_t floats = (c->conv ? 2 * CONV_BEFORE * (size_t)C : 0) + (c->memory ? delta_rule_state_size(C, HS) : 0);
    return 2 * tssa_state_size(C, c->n_head) + (floats + 1) / 2 * 2;
}

// State number `state` of layer l, from sequence b on
static float* model_state(const TostModel* model, int state, int l, int b) {
    const size_t i = ((size_t)state * model->config.n_layer + l) * model->options.max_batch + b;
    return model->buf.states + i * state_size(&model->config);
}

// The parts of a layer's state, or of its gradient, for sequence 0; those of the next are state_size floats further.
typedef struct { double* tssa; float *attn_conv, *mlp_conv, *memory; } LayerState;

static LayerState layer_state(const TostModel* model, float* state) {
    const TostConfig* c = &model->config;
    const size_t conv_floats = c->conv ? CONV_BEFORE * (size_t)c->n_embd : 0;
    float* attn_conv = state + 2 * tssa_state_size(c->n_embd, c->n_head);
    return (LayerState){.tssa = (double*)state, .attn_conv = attn_conv, .mlp_conv = attn_conv + conv_floats,
                        .memory = attn_conv + 2 * conv_floats};
}

// The state of layer l before the pass; NULL for zeros
static LayerState state_from(const TostModel* model, int l) {
    return model->from == TOST_NO_STATE ? (LayerState){0} : layer_state(model, model_state(model, model->from, l, 0));
}

// Copies layer l of state `from`, or zeros, to where the pass updates it in place: state `to`, or buf.layer_state if
// `to` is TOST_NO_STATE. Backward calls it with `after` and `before`, for the gradients.
static LayerState start_state(const TostModel* model, int from, int to, int l) {
    const size_t bytes = model->chunk.B * state_size(&model->config) * sizeof(float);
    float* state = to == TOST_NO_STATE ? model->buf.layer_state : model_state(model, to, l, 0);
    if (from == TOST_NO_STATE) memset(state, 0, bytes);
    else if (from != to) memcpy(state, model_state(model, from, l, 0), bytes);
    return layer_state(model, state);
}

// Sequence i of state `to` becomes sequence i / copies (rounded down) of state `from`, for i < n; to is not from.
static void cpu_copy_state(TostModel* model, int to, int from, int n, int copies) {
    const size_t bytes = state_size(&model->config) * sizeof(float), most = model->options.max_batch;
    int32_t* last = model->buf.last;
    for (int i = 0; last && i < n; i++) last[to * most + i] = last[from * most + i / copies];
    for (int l = 0; l < model->config.n_layer; l++)
        for (int i = 0; i < n; i++)
            memcpy(model_state(model, to, l, i), model_state(model, from, l, i / copies), bytes);
}

// ---------------------------------------------------------------------------------------------
// A layer: without --conv, convolve does nothing; without --memory, remember does nothing, and remember_backward only
// sets dΠ to 0.

// The arguments of TSSA in a layer. Forward needs the state, backward the adjoint; the other may be NULL. Where dy and
// dz are is explained in layer_backward.
static Tssa layer_tssa(const TostModel* model, int l, double* state, double* adjoint) {
    const TostConfig* c = &model->config;
    const LayerActivations* act = &model->layer[l];
    const Buffers* buf = &model->buf;
    const TostParams p = model_params(model, TOST_PARAM, l);
    const TostParams g = adjoint ? model_params(model, TOST_GRAD, l) : (TostParams){0};
    const int first = model->chunk.first;
    return (Tssa){.B = model->chunk.B, .T = model->chunk.T, .C = c->n_embd, .NH = c->n_head,
                  .HS = c->n_embd / c->n_head, .z = act->z, .temp = p.temp,
                  .denom_bias = p.denom_bias ? p.denom_bias + first : NULL, .block_size = c->block_size, .u = act->u,
                  .pi = act->pi, .y = act->y, .stride = state_size(c), .state = state, .saved = act->tssa_saved,
                  .scratch = buf->tssa_scratch, .dy = buf->scratch_btc, .dz = buf->dbranch, .dpi = buf->dscore,
                  .dscore = buf->dscore, .dtemp = c->membership == TOST_UNIFORM ? NULL : g.temp,
                  .ddenom_bias = g.denom_bias ? g.denom_bias + first : NULL, .adjoint = adjoint};
}

static Conv layer_conv(const TostModel* model, const float* weight) {
    return (Conv){.B = model->chunk.B, .T = model->chunk.T, .C = model->config.n_embd, .weight = weight,
                  .stride = state_size(&model->config)};
}

// y = the convolution of x; with --dtype bf16, x and y are rounded. Does nothing without --conv (weight is NULL).
static void convolve(const TostModel* model, float* y, float* state, float* x, const float* weight) {
    const Conv conv = layer_conv(model, weight);
    if (!weight) return;
    if (model->params_bf16) round_bf16(x, chunk_rows(model) * conv.C);
    conv_forward(y, state, x, &conv);
    if (model->params_bf16) round_bf16(y, chunk_rows(model) * conv.C);
}

// dx =: holds the gradient of y on entry; dweight +=. from: the state before the chunk
static void convolve_backward(const TostModel* model, float* dx, float* dweight, float* adjoint, const float* x,
                              const float* from, const float* weight) {
    const Conv conv = layer_conv(model, weight);
    if (!weight) return;
    conv_backward(dx, dweight, adjoint, x, from, &conv);
    if (model->params_bf16) round_bf16(dx, chunk_rows(model) * conv.C);
}

// Forward needs the state, and saves the matrices after the chunk as G. Backward undoes the updates from G on (how:
// tost/cpu/delta_rule.h), and needs the adjoint and, for the token before the chunk, the state `from` (NULL: zeros).
// d_o, predicted's gradient, becomes dz.
static DeltaRule layer_delta_rule(const TostModel* model, int l, float* state, const float* from, float* adjoint) {
    const TostConfig* c = &model->config;
    const LayerActivations* act = &model->layer[l];
    return (DeltaRule){.B = model->chunk.B, .T = model->chunk.T, .C = c->n_embd, .NH = c->n_head,
                       .HS = c->n_embd / c->n_head, .z = act->z, .pi = act->pi, .o = act->predicted,
                       .G = act->memory_G, .stride = state_size(c), .state = state,
                       .scratch = model->buf.memory_scratch, .before = from, .d_o = model->buf.dpredicted,
                       .dz = model->buf.dpredicted, .dpi = model->buf.dscore, .adjoint = adjoint};
}

// y += scale · predicted. Does nothing without --memory (scale is NULL).
static void remember(const TostModel* model, int l, float* y, const float* scale, LayerState state) {
    const DeltaRule memory = layer_delta_rule(model, l, state.memory, NULL, NULL);
    if (!scale) return;
    delta_rule_forward(&memory);
    residual_forward(y, y, memory.o, scale, chunk_rows(model), memory.C);
}

// dscale +=. Sets dpredicted to the memory's part of dz, and dpi to that of dΠ, which is 0 without --memory: TSSA's
// backward adds to it. from: the state before the chunk
static void remember_backward(const TostModel* model, int l, float* dscale, const float* dy, const float* scale,
                              LayerState from, LayerState adjoint) {
    const DeltaRule memory = layer_delta_rule(model, l, NULL, from.memory, adjoint.memory);
    const size_t rows = chunk_rows(model);
    if (!scale) {
        memset(memory.dpi, 0, rows * memory.NH * sizeof *memory.dpi);
        return;
    }
    residual_backward(model->buf.dpredicted, dscale, dy, memory.o, scale, rows, memory.C);
    delta_rule_backward(&memory);
}

// Layer l, from its input to x_out
static void layer_forward(TostModel* model, int l, int from, int to) {
    const LayerActivations* act = &model->layer[l];
    const TostParams p = model_params(model, TOST_PARAM, l);
    const int C = model->config.n_embd;
    const size_t rows = chunk_rows(model);
    const float* x = layer_input(model, l);
    const Matrix gelu = {act->gelu, act->gelu_bf16};
    const LayerState state = start_state(model, from, to, l);
    const Tssa tssa = layer_tssa(model, l, state.tssa, NULL);
    layernorm_forward(act->ln_1, act->mean_1, act->rstd_1, x, p.ln_1_w, p.ln_1_b, rows, C);
    linear_forward(act->projected, f32(act->ln_1), weight(model, p.attn_w), p.attn_b, rows, C, C);
    convolve(model, act->z, state.attn_conv, act->projected, p.attn_conv);
    tssa_forward(&tssa);
    remember(model, l, act->y, p.memory_scale, state);
    linear_forward(act->attn_out, f32(act->y), weight(model, p.attn_proj_w), p.attn_proj_b, rows, C, C);
    residual_forward(act->x_mid, x, act->attn_out, p.gamma1, rows, C);

    layernorm_forward(act->ln_2, act->mean_2, act->rstd_2, act->x_mid, p.ln_2_w, p.ln_2_b, rows, C);
    convolve(model, act->mlp_in, state.mlp_conv, act->ln_2, p.mlp_conv);
    linear_forward(act->fc, f32(act->mlp_in), weight(model, p.fc_w), p.fc_b, rows, C, 4 * C);
    gelu_forward(act->gelu, act->gelu_bf16, act->fc, rows * 4 * C);
    linear_forward(act->mlp_out, gelu, weight(model, p.fc_proj_w), p.fc_proj_b, rows, 4 * C, C);
    residual_forward(act->x_out, act->x_mid, act->mlp_out, p.gamma2, rows, C);
}

// out = a x + b out; x may be out
static void combine(float* out, double a, const float* x, double b, size_t n) {
    const float a32 = (float)a, b32 = (float)b;
    #pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < n; i++) out[i] = a32 * x[i] + b32 * out[i];
}

// buf.dx holds the gradient of x_out on entry and that of the layer's input on return. Parameter gradients +=
static void layer_backward(TostModel* model, int l, int after, int before) {
    const LayerActivations* act = &model->layer[l];
    const Buffers* buf = &model->buf;
    const TostParams p = model_params(model, TOST_PARAM, l), g = model_params(model, TOST_GRAD, l);
    const int C = model->config.n_embd;
    const size_t rows = chunk_rows(model);
    const LayerState from = state_from(model, l), adjoint = start_state(model, after, before, l);
    const Tssa tssa = layer_tssa(model, l, NULL, adjoint.tssa);
    // Gradients that are not needed at the same time share a buffer. convolve_backward works in place, from dmlp_in to
    // dln_2 and from dz to dprojected; so does gelu_backward in float32, from dgelu to dfc.
    float *dx = buf->dx, *dmlp_out = buf->dbranch, *dattn_out = buf->dbranch, *dz = buf->dbranch, *dprojected = dz;
    float *dmlp_in = buf->scratch_btc, *dln_2 = dmlp_in, *dy = buf->scratch_btc, *dln_1 = buf->scratch_btc;
    float* dgelu = buf->scratch_bt4c;
    const Matrix gelu = {act->gelu, act->gelu_bf16}, dfc = {dgelu, buf->dfc_bf16};
    residual_backward(dmlp_out, g.gamma2, dx, act->mlp_out, p.gamma2, rows, C);
    linear_backward(dgelu, g.fc_proj_w, g.fc_proj_b, f32(dmlp_out), gelu, weight(model, p.fc_proj_w), rows, 4 * C, C);
    gelu_backward(dgelu, buf->dfc_bf16, act->fc, rows * 4 * C);
    linear_backward(dmlp_in, g.fc_w, g.fc_b, dfc, f32(act->mlp_in), weight(model, p.fc_w), rows, C, 4 * C);
    convolve_backward(model, dmlp_in, g.mlp_conv, adjoint.mlp_conv, act->ln_2, from.mlp_conv, p.mlp_conv);
    layernorm_backward(dx, g.ln_2_w, g.ln_2_b, dln_2, act->x_mid, act->mean_2, act->rstd_2, p.ln_2_w, rows, C);

    residual_backward(dattn_out, g.gamma1, dx, act->attn_out, p.gamma1, rows, C);
    linear_backward(dy, g.attn_proj_w, g.attn_proj_b, f32(dattn_out), f32(act->y), weight(model, p.attn_proj_w), rows,
                    C, C);
    remember_backward(model, l, g.memory_scale, dy, p.memory_scale, from, adjoint);
    tssa_backward(&tssa);   // from dy to dz
    if (model->config.memory) combine(dz, 1.0, buf->dpredicted, 1.0, rows * C);
    if (model->params_bf16) round_bf16(dz, rows * C);
    convolve_backward(model, dz, g.attn_conv, adjoint.attn_conv, act->projected, from.attn_conv, p.attn_conv);
    linear_backward(dln_1, g.attn_w, g.attn_b, f32(dprojected), f32(act->ln_1), weight(model, p.attn_w), rows, C, C);
    layernorm_backward(dx, g.ln_1_w, g.ln_1_b, dln_1, layer_input(model, l), act->mean_1, act->rstd_1, p.ln_1_w, rows,
                       C);
}

// ---------------------------------------------------------------------------------------------
// The model: a pass over a chunk. from, to, after and before are indices of states ("States" above).

static void cpu_forward(TostModel* model, const TostChunk* chunk, int from, int to) {
    const TostParams p = model_params(model, TOST_PARAM, 0);
    const int C = model->config.n_embd, L = model->config.n_layer, V = model->config.vocab_size;
    const int B = chunk->B, T = chunk->T;
    assert(B <= model->options.max_batch && T <= model->options.max_chunk);
    assert(T <= tost_max_seq(&model->config) - chunk->first);
    // Chooses the number of threads, also for the classifier and backward: one if all products of the pass are small.
    threads_begin(&model->threads, gemm_is_small(B * T, V > 4 * C ? V : 4 * C, C));
    model->chunk = *chunk;
    model->from = from;
    embedding_forward(model->buf.x, chunk->inputs, p.wte, p.wpe, chunk->first, B, T, C);
    for (int l = 0; l < L; l++) layer_forward(model, l, from, to);
    if (p.bigram) {
        bigram_rows(model->buf.pairs, model->buf.last, model->options.max_batch, &model->config, chunk, from, to);
        bigram_forward(model->layer[L - 1].x_out, chunk->inputs, model->buf.pairs, p.bigram, chunk_rows(model), C);
    }
    layernorm_forward(model->buf.ln_f, model->buf.mean_f, model->buf.rstd_f, layer_input(model, L), p.ln_f_w, p.ln_f_b,
                      chunk_rows(model), C);
    threads_end(&model->threads);
}

// The classifier on x, which is ln_f or some of its rows: sets buf.losses and adds them to the sum of read_loss. If dx
// is not NULL, also sets dx and adds to the gradient of wte.
static void model_classify(TostModel* model, float* dx, float grad_scale, const float* x, const int32_t* targets,
                           size_t rows) {
    const Classifier classifier = {
        .loss = model->buf.losses, .dx = dx, .dwte = dx ? model_params(model, TOST_GRAD, 0).wte : NULL,
        .grad_scale = grad_scale, .logits = model->buf.logits, .dlogits_bf16 = model->buf.dlogits_bf16, .x = x,
        .wte = weight(model, model_params(model, TOST_PARAM, 0).wte), .targets = targets, .rows = rows,
        .block = even_block(rows, model->logits_rows), .V = model->config.vocab_size, .C = model->config.n_embd};
    classify(&classifier);
    for (size_t row = 0; row < rows; row++) {
        model->loss_sum += model->buf.losses[row];
        model->loss_count += targets[row] >= 0;
    }
}

// The classifier's backward runs here, because the logits of only one block of rows exist at a time. The gradient of
// ln_f stays in scratch_btc for cpu_train_backward.
static void cpu_train_forward(TostModel* model, const TostChunk* chunk, int from, float grad_scale) {
    assert(model->options.training);
    cpu_forward(model, chunk, from, TOST_NO_STATE);
    float* dln_f = model->buf.scratch_btc;
    model_classify(model, dln_f, grad_scale, model->buf.ln_f, chunk->targets, chunk_rows(model));
}

// In the last pass of a step, the gradients become complete layer by layer, from the end of the flat array to its
// start. exchange_gradients gets the offset from which they are complete, and starts to add them up over the ranks.
static void cpu_train_backward(TostModel* model, int after, int before, TostEnd end) {
    const TostChunk* chunk = &model->chunk;
    const int C = model->config.n_embd, L = model->config.n_layer;
    const size_t rows = chunk_rows(model);
    const TostParams p = model_params(model, TOST_PARAM, 0), g = model_params(model, TOST_GRAD, 0);
    const Buffers* buf = &model->buf;
    const float* dln_f = buf->scratch_btc;
    threads_set(model->threads.pass);   // another model may have run since the forward pass
    memset(buf->dx, 0, rows * C * sizeof(float));
    layernorm_backward(buf->dx, g.ln_f_w, g.ln_f_b, dln_f, layer_input(model, L), buf->mean_f, buf->rstd_f, p.ln_f_w,
                       rows, C);
    if (g.bigram) {
        embedding_backward(g.bigram, NULL, buf->dx, chunk->inputs, chunk->first, chunk->B, chunk->T, C);
        embedding_backward(g.bigram, NULL, buf->dx, buf->pairs, chunk->first, chunk->B, chunk->T, C);
        for (size_t i = 0; i < rows; i++) buf->touched[chunk->inputs[i]] = buf->touched[buf->pairs[i]] = true;
    }
    for (int l = L - 1; l >= 0; l--) {
        layer_backward(model, l, after, before);
        exchange_gradients(&model->exchange, end, tost_layer_offset(&model->tensors, l));
    }
    embedding_backward(g.wte, g.wpe, buf->dx, chunk->inputs, chunk->first, chunk->B, chunk->T, C);
    exchange_gradients(&model->exchange, end, 0);
}

// ---------------------------------------------------------------------------------------------
// AdamW

// One AdamW step, number s, with decoupled weight decay wd:
//   g = clip · gradient,   m = β1 m + (1-β1) g,   v = β2 v + (1-β2) g²
//   p = p (1 - lr wd) - lr (m/(1-β1^s)) / (√(v/(1-β2^s)) + eps)
static void adamw(float* restrict p, float* restrict m, float* restrict v, const float* restrict grad, size_t n,
                  double weight_decay, const TostUpdate* update) {
    const float keep = (float)(1.0 - update->lr * weight_decay), clip = (float)update->clip;
    const float b1 = (float)update->beta1, c1 = (float)(1.0 - update->beta1);
    const float b2 = (float)update->beta2, c2 = (float)(1.0 - update->beta2);
    const float rate = (float)(update->lr / (1.0 - pow(update->beta1, (double)update->step))), eps = (float)update->eps;
    const float root = (float)(1.0 / sqrt(1.0 - pow(update->beta2, (double)update->step)));
    #pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < n; i++) {
        const float g = grad[i] * clip;
        m[i] = b1 * m[i] + c1 * g;
        v[i] = b2 * v[i] + c2 * g * g;
        p[i] = p[i] * keep - rate * m[i] / (sqrtf(v[i]) * root + eps);
    }
}

// ---------------------------------------------------------------------------------------------
// Row-wise RMSProp, with --optimizer muon for the table of bigrams, of which a step reads few rows. v (rows): one
// second moment per row; no m, so that a row without a gradient only decays:
//   v = β2 v + (1-β2) mean(g²),   p = p (1 - lr wd) - lr g / (√(v/(1-β2^s)) + eps)        g and s as for AdamW

// p, grad (rows,C); v (rows); touched (rows): false where grad is zero
static void rowwise(float* p, float* v, const float* grad, const bool* touched, size_t rows, int C, double weight_decay,
                    const TostUpdate* update) {
    const float keep = (float)(1.0 - update->lr * weight_decay), lr = (float)update->lr, clip = (float)update->clip;
    const float b2 = (float)update->beta2, c2 = (float)(1.0 - update->beta2);
    const float root = (float)(1.0 / sqrt(1.0 - pow(update->beta2, (double)update->step))), eps = (float)update->eps;
    #pragma omp parallel for schedule(static)
    for (size_t row = 0; row < rows; row++) {
        float *p_c = p + row * C, squares = 0;
        const float* g_c = grad + row * C;
        v[row] *= b2;
        if (touched[row]) {
            #pragma omp simd reduction(+ : squares)
            for (int c = 0; c < C; c++) squares += (g_c[c] * clip) * (g_c[c] * clip);
            v[row] += c2 * squares / C;
            const float rate = lr / (sqrtf(v[row]) * root + eps);
            for (int c = 0; c < C; c++) p_c[c] = p_c[c] * keep - rate * (g_c[c] * clip);
        } else for (int c = 0; c < C; c++) p_c[c] *= keep;
    }
}

// ---------------------------------------------------------------------------------------------
// Muon (Jordan et al. 2024), with --optimizer muon for the weights of Linear in the layers. The update of a weight
// (rows,columns) is, approximately, the orthogonal matrix nearest to its momentum: with the same singular vectors, but
// all singular values near 1, so that directions in which the gradient is small are learned as fast as the others.
//   m = μ m + (1-μ) g,   u = (1-μ) g + μ m    Nesterov: u is m one step ahead, if g stays; g as for AdamW
//   x = u / ‖u‖                               Frobenius norm
//   five times:  A = x xᵀ,   x = a x + (b A + c A²) x     singular values of x above 0.002 end in 0.68 to 1.21
//   p = p (1 - lr wd) - lr 0.2 √max(rows,columns) x       RMS of 0.2, about AdamW's (arXiv 2502.16982): both use --lr
// Dividing by ‖u‖ leaves all singular values at most 1. An iteration keeps the singular vectors and replaces a singular
// value σ by aσ + bσ³ + cσ⁵, which drives it towards 1. The constants are in tost/model.h.

// u =, in place: holds the gradient on entry. m: momentum
static void muon_momentum(float* restrict u, float* restrict m, size_t n, const TostUpdate* update) {
    const float mu = (float)update->momentum, rest = (float)(1.0 - update->momentum), clip = (float)update->clip;
    #pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < n; i++) {
        const float g = u[i] * clip;
        m[i] = mu * m[i] + rest * g;
        u[i] = rest * g + mu * m[i];
    }
}

// Replaces x (rows,columns) by the nearest orthogonal matrix, approximately. scratch: rows · columns + 2 side² floats,
// side = min(rows, columns). With more rows than columns, A = xᵀ x, which is smaller, and the polynomial multiplies x
// from the right; except for rounding, the result is the same.
static void orthogonalize(float* x, float* scratch, int rows, int columns, Gemm* product) {
    const bool tall = rows > columns;
    const int side = tall ? columns : rows;
    const size_t n = (size_t)rows * columns, square = (size_t)side * side;
    float *y = scratch, *A = y + n, *polynomial = A + square;
    double squares = 0;
    #pragma omp simd reduction(+ : squares)
    for (size_t i = 0; i < n; i++) squares += (double)x[i] * x[i];
    combine(x, 0.0, x, 1.0 / fmax(sqrt(squares), TOST_MUON_EPS), n);   // x / ‖x‖ (0 x + x / ‖x‖)
    for (int step = 0; step < TOST_MUON_STEPS; step++) {
        const GemmLayout layout = tall ? GEMM_TN : GEMM_NT;
        product(A, f32(x), f32(x), layout, side, side, tall ? rows : columns, GEMM_SYMMETRIC);
        product(polynomial, f32(A), f32(A), GEMM_NN, side, side, side, GEMM_SYMMETRIC);
        combine(polynomial, TOST_MUON_B, A, TOST_MUON_C, square);      // b A + c A²
        if (tall) product(y, f32(x), f32(polynomial), GEMM_NN, rows, columns, columns, GEMM_SET);
        else product(y, f32(polynomial), f32(x), GEMM_NN, rows, columns, rows, GEMM_SET);
        combine(x, 1.0, y, TOST_MUON_A, n);                            // a x + y
    }
}

// ---------------------------------------------------------------------------------------------
// The update. exchange_update calls update_owned for each part of a tensor that this rank owns, then sends these parts
// of one flat array to the other ranks: with AdamW alone, of the parameters. Muon needs whole matrices, so with Muon
// it is the array of gradients: update_owned puts u there, keeps the gradient of the table of bigrams and, with
// several ranks, puts the new parameters of the other tensors there. Then update_whole, on every rank, orthogonalizes
// and applies u, updates the table, or copies the new parameters.

static double decay_of(const TostTensor* t, const TostUpdate* update) {
    return tost_decay_factors[t->decay] * update->weight_decay;
}

// own: what this rank owns of a tensor
static void update_owned(TostModel* model, const TostUpdate* update, const Owned* own) {
    float *p = model->array[TOST_PARAM] + own->flat_offset, *grad = model->array[TOST_GRAD] + own->flat_offset;
    float* m = model->array[TOST_M] + own->m_offset;
    if (own->optimizer == TOST_MUON) muon_momentum(grad, m, own->size, update);
    if (own->optimizer != TOST_ADAMW) return;
    adamw(p, m, model->array[TOST_V] + own->v_offset, grad, own->size, decay_of(own->tensor, update), update);
    if (model->options.optimizer == TOST_MUON && model->exchange.ranks > 1) memcpy(grad, p, own->size * sizeof *p);
}

// The rest of the update with Muon, after the exchange
static void update_whole(TostModel* model, const TostUpdate* update, const TostTensor* t) {
    float *p = model->array[TOST_PARAM] + t->offset, *received = model->array[TOST_GRAD] + t->offset;
    const int rows = t->shape[0], columns = t->shape[1];
    if (t->optimizer == TOST_ROWWISE)
        rowwise(p, model->array[TOST_V] + model->exchange.row_v, received, model->buf.touched, (size_t)rows, columns,
                decay_of(t, update), update);
    else if (t->optimizer == TOST_MUON) {
        orthogonalize(received, model->buf.muon, rows, columns, model->params_bf16 ? gemm_bf16 : gemm);
        const double longer = rows > columns ? rows : columns;
        combine(p, -update->lr * TOST_MUON_SCALE * sqrt(longer), received, 1.0 - update->lr * decay_of(t, update),
                t->size);
    } else if (model->exchange.ranks > 1) memcpy(p, received, t->size * sizeof *p);
}

// Copies a tensor of parameters to params_bf16, which the products read. No product reads the table of bigrams.
static void copy_in_bf16(TostModel* model, const TostTensor* t) {
    if (!model->params_bf16 || t->row == TOST_ROW_bigram) return;
    const float* p = model->array[TOST_PARAM] + t->offset;
    uint16_t* copy = model->params_bf16 + t->offset;
    #pragma omp parallel for simd schedule(static) if (t->size > 1 << 14)
    for (size_t i = 0; i < t->size; i++) copy[i] = bf16_from_float(p[i]);
}

static void cpu_update(TostModel* model, const TostUpdate* update) {
    const bool muon = model->options.optimizer == TOST_MUON;
    exchange_update(&model->exchange, model->array[muon ? TOST_GRAD : TOST_PARAM], update_owned, model, update);
    for (int i = 0; i < model->tensors.count; i++) {
        if (muon) update_whole(model, update, &model->tensors.tensor[i]);
        copy_in_bf16(model, &model->tensors.tensor[i]);
    }
}

// ---------------------------------------------------------------------------------------------
// What a trainer needs around it: memory, and the functions of the engine (tost/engine.h)

static void* array_alloc(Arena* arena, size_t elements, size_t size) {
    return elements > 0 ? arena_alloc(arena, elements * size) : NULL;
}

// Sets every pointer into the arena and returns its size in bytes. base NULL: only computes the size.
static size_t layout_buffers(TostModel* model, void* base) {
    const TostConfig* c = &model->config;
    const TostEngineOptions* o = &model->options;
    const size_t C = c->n_embd, NH = c->n_head, V = c->vocab_size, L = c->n_layer, B = o->max_batch;
    const size_t rows = B * o->max_chunk, states = o->states, train = o->training, threads = o->threads;
    const size_t fp32 = o->dtype != TOST_BF16, bf16 = !fp32;
    const size_t conv = c->conv != 0, memory = c->memory != 0, bigrams = c->bigrams != 0,
                 muon = o->optimizer == TOST_MUON;
    const size_t logits_rows = classifier_rows(rows, c->vocab_size);
    Arena arena = {.base = base, .alignment = 128, .redzone = REDZONE_BYTES, .poison = poison_redzone};   // memory.h
    model->logits_rows = logits_rows;
    for (int array = 0; array < (train ? TOST_ARRAYS : 1); array++)
        model->array[array] =
            arena_alloc(&arena, exchange_elements(&model->exchange, (TostArray)array) * sizeof(float));
    if (train) exchange_layout(&model->exchange, &arena, model->array[TOST_GRAD]);
#define X(field, type, elements) model->buf.field = array_alloc(&arena, elements, sizeof(type));
    SHARED_BUFFERS(X)
#undef X
    model->exchange.touched = model->buf.touched;
    model->params_bf16 = array_alloc(&arena, bf16 * model->tensors.flat_size, sizeof *model->params_bf16);
#define X(field, type, elements) model->layer[l].field = array_alloc(&arena, elements, sizeof(type));
    for (size_t l = 0; l < (train ? L : 1); l++) {
        LAYER_ACTIVATIONS(X)
        if (!conv) model->layer[l].projected = model->layer[l].z, model->layer[l].mlp_in = model->layer[l].ln_2;
    }
#undef X
    for (size_t l = 1; l < L && !train; l++) model->layer[l] = model->layer[0];
    return arena.used;
}

static TostModel* model_new(const TostConfig* c, const TostEngineOptions* o) {
    TostModel* model = xcalloc(1, sizeof *model);
    model->config = *c;
    model->options = *o;
    model->options.threads = threads_or_max(o->threads);   // 0: OMP_NUM_THREADS, or one per core
    model->tensors = tost_tensors(c);
    model->exchange = exchange_new(&model->tensors, o->optimizer, o->comm, o->parts);
    model->layer = xcalloc(c->n_layer, sizeof *model->layer);
    model->arena_bytes = layout_buffers(model, NULL);
    return model;
}

static void model_free(TostModel* model) {
    if (model->arena) free_pages(model->arena, model->arena_bytes);
    exchange_free(&model->exchange);
    tost_tensors_free(&model->tensors);
    free(model->layer);
    free(model);
}

static size_t cpu_memory(const TostConfig* c, const TostEngineOptions* o) {
    TostModel* model = model_new(c, o);
    const size_t bytes = model->arena_bytes;
    model_free(model);
    return bytes;
}

static TostModel* cpu_create(const TostConfig* c, const TostEngineOptions* o, TostError* err) {
    TostModel* model = model_new(c, o);
    model->threads = threads_start(model->options.threads);
    model->arena = alloc_pages(model->arena_bytes);
    if (!model->arena) {
        tost_error(err, "not enough memory: the model needs %s; use a smaller model, --batch, --seq or --chunk",
                   human_bytes((double)model->arena_bytes).text);
        model_free(model);
        return NULL;
    }
    layout_buffers(model, model->arena);
    return model;
}

// ---------------------------------------------------------------------------------------------
// The engine

// logits (rows,V) of x (rows,C), not rounded to bf16. In a decode step, this is most of the work, so threads_end
// measures it, too.
static void classifier_logits(float* logits, TostModel* model, const float* x, size_t rows) {
    const Matrix wte = weight(model, model_params(model, TOST_PARAM, 0).wte);
    times_weight(logits, f32(x), wte, rows, model->config.n_embd, model->config.vocab_size, GEMM_SET);
    threads_end(&model->threads);
}

static void cpu_logits(float* dst, TostModel* model) {
    classifier_logits(dst, model, model->buf.ln_f, chunk_rows(model));
}

static void cpu_last_logits(float* dst, TostModel* model) {
    const int B = model->chunk.B, T = model->chunk.T, C = model->config.n_embd;
    float* last = model->buf.gathered;
    for (int b = 0; b < B; b++)
        memcpy(last + (size_t)b * C, model->buf.ln_f + ((size_t)b * T + T - 1) * C, C * sizeof *last);
    classifier_logits(dst, model, last, B);
}

// Only the rows with a target need logits. dst NULL: only the sum of read_loss
static void cpu_losses(double* dst, TostModel* model) {
    const int32_t* targets = model->chunk.targets;
    const Buffers* buf = &model->buf;
    const size_t rows = chunk_rows(model), C = model->config.n_embd;
    size_t n = 0, i = 0;
    for (size_t row = 0; row < rows; row++) {
        if (targets[row] < 0) continue;
        memcpy(buf->gathered + n * C, buf->ln_f + row * C, C * sizeof *buf->gathered);
        buf->gathered_targets[n++] = targets[row];
    }
    if (n > 0) model_classify(model, NULL, 0, buf->gathered, buf->gathered_targets, n);
    for (size_t row = 0; dst && row < rows; row++) dst[row] = targets[row] < 0 ? 0.0 : buf->losses[i++];
}

static void cpu_read_loss(double* sum, int64_t* count, TostModel* model) {
    *sum = model->loss_sum;
    *count = model->loss_count;
    model->loss_sum = 0;
    model->loss_count = 0;
}

static void cpu_activation(float* dst, TostModel* model, TostActivation what, int layer) {
    const size_t rows = chunk_rows(model), C = model->config.n_embd, NH = model->config.n_head;
    assert(model->options.training && layer >= 0 && layer < model->config.n_layer + (what == TOST_X));
    if (what == TOST_X) memcpy(dst, layer_input(model, layer), rows * C * sizeof *dst);
    else if (what == TOST_Z) memcpy(dst, model->layer[layer].z, rows * C * sizeof *dst);
    else memcpy(dst, model->layer[layer].pi, rows * NH * sizeof *dst);
}

static size_t table_rows(const TostConfig* c) { return c->bigrams ? (size_t)c->vocab_size + c->bigrams : 0; }

static void set_touched(TostModel* model, bool touched) {
    if (model->config.bigrams) memset(model->buf.touched, touched, table_rows(&model->config));
}

static void zero(float* x, size_t n) {
    #pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < n; i++) x[i] = 0.0f;
}

// Of the table of bigrams, clears only the rows that are touched.
static void cpu_zero_grad(TostModel* model) {
    const size_t C = model->config.n_embd, rows = table_rows(&model->config);
    float *start = model->array[TOST_GRAD], *end = start + model->tensors.flat_size;
    float *bigram = model_params(model, TOST_GRAD, 0).bigram, *table = bigram ? bigram : end, *after = table + rows * C;
    zero(start, (size_t)(table - start));
    zero(after, (size_t)(end - after));
    #pragma omp parallel for schedule(static)
    for (size_t row = 0; row < rows; row++)
        if (model->buf.touched[row]) memset(table + row * C, 0, C * sizeof *table);
    set_touched(model, model->exchange.ranks > 1);   // the other ranks' gradients come with the exchange
    exchange_begin(&model->exchange);
}

static double cpu_grad_norm(TostModel* model) { return exchange_norm(&model->exchange); }

static void cpu_put(TostModel* model, TostArray array, const TostTensor* t, const float* src) {
    if (array == TOST_PARAM || array == TOST_GRAD) memcpy(model->array[array] + t->offset, src, t->size * sizeof *src);
    else exchange_put(&model->exchange, array, model->array[array], t, src);
    if (array == TOST_PARAM) copy_in_bf16(model, t);
    if (array == TOST_GRAD) set_touched(model, true);
}

// The ranks own parts of m and v, and after a step's last backward also of the summed gradients.
static void cpu_get(float* dst, const TostModel* model, TostArray array, const TostTensor* t) {
    if (array == TOST_PARAM) memcpy(dst, model->array[array] + t->offset, t->size * sizeof *dst);
    else exchange_collect(dst, &model->exchange, array, model->array[array], t);
}

static TostDtype cpu_default_dtype(bool training) { return training && gemm_bf16_is_fast() ? TOST_BF16 : TOST_FP32; }

static bool cpu_supports(TostDtype dtype) { return dtype == TOST_FP32 || dtype == TOST_BF16; }

static bool cpu_describe(char* text, size_t cap, const TostEngineOptions* o, TostError* err) {
    (void)err;
    const int threads = threads_or_max(o->threads);
    // processor_unused: vector extensions that the build leaves out
    snprintf(text, cap, "CPU, %d thread%s, %s, matmul %s%s", threads, threads == 1 ? "" : "s",
             o->dtype == TOST_BF16 ? "bf16" : "float32", gemm_library(), processor_unused());
    return true;
}

const TostEngine tost_cpu_engine = {
    .name = "cpu",
    .default_dtype = cpu_default_dtype,
    .supports = cpu_supports,
    .describe = cpu_describe,
    .memory = cpu_memory,
    .create = cpu_create,
    .destroy = model_free,
    .put = cpu_put,
    .get = cpu_get,
    .forward = cpu_forward,
    .copy_state = cpu_copy_state,
    .logits = cpu_logits,
    .last_logits = cpu_last_logits,
    .losses = cpu_losses,
    .activation = cpu_activation,
    .train_forward = cpu_train_forward,
    .train_backward = cpu_train_backward,
    .read_loss = cpu_read_loss,
    .zero_grad = cpu_zero_grad,
    .grad_norm = cpu_grad_norm,
    .update = cpu_update,
};

#ifndef TOST_NO_MAIN
int main(int argc, char** argv) { return tost_main(argc, argv, &tost_cpu_engine); }
#endif
