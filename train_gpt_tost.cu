// train_gpt_tost.cu: the Token Statistics Transformer (Wu et al., ICLR 2025, arXiv 2412.17810) in CUDA: the sections
// of train_gpt_tost.c in the same order, each kernel next to its launcher. What differs:
//
//   LayerNorm    is fused with the residual and LayerScale before it, so a layer ends with the next layer's ln_1
//   embedding    before a training pass, the host sorts the tokens: backward sums each row of dwte in a fixed order
//   sums         over rows, for gradients of vectors, go through partial sums (reduce.cuh), added by a launch per layer
//   gradients    the first pass after zero_grad overwrites them, so that they need not be cleared. dwte is first set by
//                the classifier; the embedding adds its part
//
// Precision. Matmul operands have one storage type S, float (fp32, tf32) or bf16; kernels are templates on it. Always
// float: the residual stream x and its gradient, LayerNorm statistics, TSSA's running sums (a block adds those of the
// blocks before it in pairs of floats, scan.cuh), u and Π, softmax and loss, parameter gradients, master weights, the
// moments of Adam and Muon, Muon's iterate x. Double: TSSA's sums from one pass over a sequence to the next, the sum of
// the losses, the squared norms of gradients.
//
// Determinism. Every sum has a fixed order, without floating-point atomics: a run repeats its bits on the same kind of
// GPU with the same --batch, whose default follows the free memory. On others, grids and cuBLASLt's algorithms differ.
//
// Sizes: B sequences, T tokens each, C channels, NH heads of HS = C/NH channels, V vocabulary, rows = B·T, block_size
// positions of the model (not CUDA's threads per block). Arrays are dense and row-major. Outputs come first, then saved
// tensors, inputs (const), sizes. Each backward states for each gradient whether it is overwritten (=) or accumulated
// (+=). "Minimum traffic" at a kernel is in bytes for bf16 (S = 2 bytes), with each input read once and each output
// written once.
//
// tost/cuda/common.cuh has LAUNCH, PassStates and the accesses to S as float: load_pack reads N neighboring elements,
// load_part the first `inside` of them (WHOLE: all) and zeros, add_part adds those. platform.cuh has SHARED(type, name,
// elements), UNROLL and NO_UNROLL; reduce.cuh has row_sum and block_sum, which add each element of an array over the
// threads of a row or a block, in shared memory of as many floats per warp.

#include <assert.h>
#include <math.h>

#include <type_traits>
#include <vector>

#include "tost/cuda/conv.cuh"
#include "tost/cuda/delta_rule.cuh"
#include "tost/cuda/exchange.cuh"
#include "tost/cuda/matmul.cuh"
#include "tost/cuda/reduce.cuh"
#include "tost/cuda/runtime.cuh"
#include "tost/cuda/scan.cuh"

extern "C" {
#include "tost/commands/commands.h"
#include "tost/flops.h"
}

// ---------------------------------------------------------------------------------------------
// The input of a pass (forward or backward of a chunk): a header, then int32 arrays, in device memory, so that a CUDA
// graph serves every call of its shape.

struct PassHeader {
    int32_t first;                   // position of the first token
    float   grad_scale;
    int32_t n_segments, n_big;       // of embedding_backward
};

constexpr size_t PASS_HEADER = sizeof(PassHeader) / sizeof(int32_t);
constexpr int EMBED_SEGMENT = 64;    // maximum rows of a segment in embedding_backward

// For embedding_backward, the rows are sorted by token, then by row, and cut into segments of up to EMBED_SEGMENT rows
// of one token. The sum of a token's only segment is added to dwte; a token with more segments is big, and its sums go
// to `partial` (partial sums,C), to be added to dwte in a second kernel.
struct PassInput {
    PassHeader* header;
    int32_t *inputs, *targets;        // (rows)
    int32_t *order, *start;           // (rows): the sorted rows; (segments+1): where in `order` each segment starts
    int32_t* dest;                    // (segments): the token; of a big one: -1 - index of the partial sum
    int32_t *big_token, *big_first;   // (big); (big+1): index of the first partial sum
};

// Elements of an input, at most: none of its 7 arrays has more than rows + 1.
static size_t pass_input_size(size_t rows) { return PASS_HEADER + 7 * (rows + 1); }

// Pointers into an input at `base`, on the host or on the device. A big token has more than EMBED_SEGMENT rows.
static PassInput pass_input(int32_t* base, size_t rows) {
    int32_t *inputs = base + PASS_HEADER, *targets = inputs + rows, *order = targets + rows, *start = order + rows,
            *dest = start + rows + 1, *big_token = dest + rows, *big_first = big_token + rows / EMBED_SEGMENT;
    return {(PassHeader*)base, inputs, targets, order, start, dest, big_token, big_first};
}

// ---------------------------------------------------------------------------------------------
// Embedding:  x[b,t] = wte[token[b,t]] + wpe[first + t]

// Minimum traffic per row: 4C (wte) + 4C (x); wpe comes from L2. One block per row.
__global__ void embedding_forward_kernel(float* x, const int32_t* tokens, const float* wte, const float* wpe,
                                         const PassHeader* pass, int T, int C) {
    const size_t row = blockIdx.x;
    const float* token_c = wte + (size_t)tokens[row] * C;
    const int width = wpe ? C : 0;   // 0: add_part reads nothing
    const float* position_c = wpe + ((size_t)pass->first + blockIdx.x % T) * width;
    for (int c = threadIdx.x * 4; c < C; c += blockDim.x * 4) {
        float sum[4];
        load_part<false>(sum, token_c + c, C - c);
        add_part<false>(sum, position_c + c, width - c);
        store_part<false>(x + row * C + c, sum, C - c);
    }
}

// x (B,T,C); tokens (B,T); wte (V,C); wpe (block_size,C) or NULL
static void embedding_forward(cudaStream_t stream, float* x, const int32_t* tokens, const float* wte, const float* wpe,
                              const PassHeader* pass, int B, int T, int C) {
    LAUNCH(embedding_forward_kernel, B * T, channel_threads(C), 0, stream, x, tokens, wte, wpe, pass, T, C);
}

// Sets n_segments, n_big and the arrays after targets, on the host: a counting sort of s.inputs.
static void embed_order(PassInput s, int rows, int V) {
    int at = 0, segments = 0, bigs = 0, partials = 0;
    int32_t* const next = (int32_t*)xcalloc(V, sizeof *next);   // rows of a token; then where its next one goes
    for (int row = 0; row < rows; row++) next[s.inputs[row]]++;
    for (int token = 0; token < V; token++) {
        const int n = next[token];
        const bool big = n > EMBED_SEGMENT;
        next[token] = at;
        if (big) {
            s.big_token[bigs] = token;
            s.big_first[bigs++] = partials;
        }
        for (int i = 0; i < n; i += EMBED_SEGMENT) {
            s.start[segments] = at + i;
            s.dest[segments++] = big ? -1 - partials++ : token;
        }
        at += n;
    }
    s.start[segments] = rows;
    s.big_first[bigs] = partials;
    for (int row = 0; row < rows; row++) s.order[next[s.inputs[row]]++] = row;
    free(next);
    s.header->n_segments = segments;
    s.header->n_big = bigs;
}

// Σ of dx over a segment's rows, in order; blocks loop over segments. Minimum traffic: 4C per row (dx), 8C per token.
__global__ void embedding_segment_kernel(float* dwte, float* partial, const float* dx, PassInput s, int C) {
    for (int segment = blockIdx.x; segment < s.header->n_segments; segment += gridDim.x) {
        const int begin = s.start[segment], end = s.start[segment + 1], dest = s.dest[segment];
        for (int c = threadIdx.x * 4; c < C; c += blockDim.x * 4) {
            float sum[4] = {};
            UNROLL_BY(4) for (int i = begin; i < end; i++)
                add_part<false>(sum, dx + (size_t)s.order[i] * C + c, C - c);
            float* out = dest >= 0 ? dwte + (size_t)dest * C + c : partial + (size_t)(-1 - dest) * C + c;
            if (dest >= 0) add_part<false>(sum, out, C - c);
            store_part<false>(out, sum, C - c);
        }
    }
}

// dwte += the partial sums of each big token, in order.
__global__ void embedding_big_kernel(float* dwte, const float* partial, PassInput s, int C) {
    for (int big = blockIdx.x; big < s.header->n_big; big += gridDim.x) {
        for (int c = threadIdx.x; c < C; c += blockDim.x) {
            float sum = 0.0f;
            for (int i = s.big_first[big]; i < s.big_first[big + 1]; i++)
                sum += partial[(size_t)i * C + c];
            dwte[(size_t)s.big_token[big] * C + c] += sum;
        }
    }
}

// dwpe[first + t] = Σ_b dx[b,t], and 0 at positions outside of the pass; a block per position. With add: += at those of
// the pass; a block per t. Minimum traffic per row: 4C.
__global__ void embedding_position_kernel(float* dwpe, const float* dx, const PassHeader* pass, int B, int T, int C,
                                          bool add) {
    const int t = (int)blockIdx.x - (add ? 0 : pass->first), sequences = t >= 0 && t < T ? B : 0;
    float* dwpe_t = dwpe + (size_t)(pass->first + t) * C;
    for (int c = threadIdx.x * 4; c < C; c += blockDim.x * 4) {
        float sum[4] = {};
        if (add) load_part<false>(sum, dwpe_t + c, C - c);
        UNROLL_BY(4) for (int b = 0; b < sequences; b++) add_part<false>(sum, dx + ((size_t)b * T + t) * C + c, C - c);
        store_part<false>(dwpe_t + c, sum, C - c);
    }
}

// dwte (V,C): +=, since the classifier has set it; dwpe (block_size,C): =, or with add (not the first pass after
// zero_grad) +=; or NULL. partial: of big tokens; dx (B,T,C). Kernels loop if there are more rows than blocks. Also for
// dbigram, with tokens and with pairs; the caller clears it.
static void embedding_backward(cudaStream_t stream, float* dwte, float* dwpe, float* partial, const float* dx,
                               PassInput s, bool add, int block_size, int B, int T, int C) {
    const int rows = B * T, threads = channel_threads(C);
    const int blocks = min(rows, 4096), big_blocks = min(rows / EMBED_SEGMENT + 1, 1024);
    LAUNCH(embedding_segment_kernel, blocks, threads, 0, stream, dwte, partial, dx, s, C);
    if (dwpe)
        LAUNCH(embedding_position_kernel, add ? T : block_size, threads, 0, stream, dwpe, dx, s.header, B, T, C, add);
    LAUNCH(embedding_big_kernel, big_blocks, threads, 0, stream, dwte, partial, s, C);
}

// Bigrams:  x[b,t] += bigram[token[b,t]] + bigram[pair[b,t]].  Minimum traffic per row: 16C. One block per row.
__global__ void bigram_forward_kernel(float* x, const int32_t* tokens, const int32_t* pairs, const float* bigram,
                                      int C) {   // x (rows,C); tokens, pairs (rows); bigram (V+bigrams,C)
    const size_t row = blockIdx.x;
    for (int c = threadIdx.x * 4; c < C; c += blockDim.x * 4) {
        float sum[4];
        load_part<false>(sum, x + row * C + c, C - c);
        add_part<false>(sum, bigram + (size_t)tokens[row] * C + c, C - c);
        add_part<false>(sum, bigram + (size_t)pairs[row] * C + c, C - c);
        store_part<false>(x + row * C + c, sum, C - c);
    }
}

// ---------------------------------------------------------------------------------------------
// LayerNorm, fused with the residual and LayerScale that precede it:
//     x += gamma · branch,   n = (x - mean) · rstd,   y = n · w + b,   rstd = 1/√(variance + 1e-5)
// Backward computes n from y, which the next Linear or convolution keeps as its input. So no layer keeps x.
//
// A thread holds PACKS packs of VEC neighboring channels of a row in registers, so that each byte moves once. In
// forward, a warp computes a row, or a block if C is too large for a warp's registers. In backward, a block computes
// one or two rows at once, and its threads keep their channels for the sums over rows. Kernels with VEC = 4 are for C
// divisible by 4, in backward up to 3,072; those with VEC = 1 are for any C.

constexpr int NORM_THREADS = 512;      // maximum per block
constexpr int NORM_VEC_THREADS = 768;  // the same in backward if VEC = 4: it limits a thread to 80 registers
constexpr int NORM_WARPS = 8;          // rows per block if a warp computes a row
constexpr int NORM_CHANNELS = 12 * NORM_THREADS;   // most channels: with VEC = 1, a thread has up to 12

// Threads that cover C channels with `packs` packs of `vec` channels each
static int norm_threads(int C, int vec, int packs) { return div_up(div_up(C, vec * packs), WARP) * WARP; }

// The w that forward and backward use. Backward computes n = (y - b)/w from y, which is rounded to S: if w is near 0, y
// is about b, and the rounding error, up to |b|/256 (float: |b|/2^24), is divided by w. So |w| is at least |b|/128
// (float: |b|/2^20): the error of n is then at most 1/2 (float: 1/16). This changes y by about as much as rounding it.
// Never 0, also without b.
template <typename S> __device__ inline float raised_weight(float w, float b) {
    const float least = fmaxf(fabsf(b) * (sizeof(S) == 2 ? 0x1p-7f : 0x1p-20f), 1e-15f);
    return fabsf(w) < least ? copysignf(least, w) : w;
}

template <typename S> struct NormForward {
    float* x; S* y;                  // (rows,C); x: +=
    float* rstd;                     // (rows)
    const S* branch;                 // (rows,C); NULL: x stays as it is
    const float *gamma, *w, *b;      // (C); b may be NULL
    size_t rows;
    int C;
};

// Minimum traffic per row: 8C (x) + 2C (branch) + 2C (y) = 12C. Launch bounds: the threads that NORM_CHANNELS channels
// need; blocks per multiprocessor.
template <typename S, int VEC, int PACKS>
__global__ void __launch_bounds__(NORM_CHANNELS / (VEC * PACKS), VEC == 4 ? 3 : 1)
    residual_layernorm_forward_kernel(NormForward<S> args) {
    SHARED(float, shared, WARP);
    const int C = args.C;
    const size_t row = (size_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= args.rows) return;   // a whole warp of a block of several rows, which has no barriers
    const int stride = VEC * (int)blockDim.x, c0 = threadIdx.x * VEC;
    float v[PACKS][VEC] = {}, branch[PACKS][VEC], sum[1] = {}, squares[1] = {};   // v: x, x - mean, y
    UNROLL for (int p = 0; p < PACKS; p++) {   // all loads are issued before the first use
        const int c = c0 + p * stride;
        if (c >= C) continue;
        load_pack<VEC>(v[p], args.x + row * C + c);
        if (args.branch) load_pack<VEC>(branch[p], args.branch + row * C + c);
    }
    UNROLL for (int p = 0; p < PACKS; p++) {
        const int c = c0 + p * stride;
        if (c >= C || !args.branch) continue;
        float gamma_c[VEC];
        load_pack<VEC>(gamma_c, args.gamma + c);
        UNROLL for (int i = 0; i < VEC; i++) v[p][i] += gamma_c[i] * branch[p][i];
        store_pack<VEC>(args.x + row * C + c, v[p]);
    }
    UNROLL for (int p = 0; p < PACKS; p++)
        UNROLL for (int i = 0; i < VEC; i++) sum[0] += v[p][i];
    row_sum(sum, shared);
    const float inverse_C = 1.0f / C, mean_row = sum[0] * inverse_C;
    UNROLL for (int p = 0; p < PACKS; p++) {
        if (c0 + p * stride >= C) continue;
        UNROLL for (int i = 0; i < VEC; i++) {
            v[p][i] -= mean_row;
            squares[0] += v[p][i] * v[p][i];
        }
    }
    row_sum(squares, shared);
    const float with_eps = squares[0] * inverse_C + (float)TOST_LN_EPS;
    const float rstd = rsqrtf(with_eps) + 0.0f * with_eps;   // NaN if the variance is infinite, not y = b
    UNROLL for (int p = 0; p < PACKS; p++) {
        const int c = c0 + p * stride;
        if (c >= C) continue;
        float w_c[VEC], b_c[VEC] = {};
        load_pack<VEC>(w_c, args.w + c);
        if (args.b) load_pack<VEC>(b_c, args.b + c);
        UNROLL for (int i = 0; i < VEC; i++) v[p][i] = v[p][i] * rstd * raised_weight<S>(w_c[i], b_c[i]) + b_c[i];
        store_pack<VEC>(args.y + row * C + c, v[p]);
    }
    if (threadIdx.x == 0) args.rstd[row] = rstd;
}

template <typename S> static void residual_layernorm_forward(cudaStream_t stream, const NormForward<S>& args) {
    const bool vec = args.C % 4 == 0;   // 6 packs: a warp covers 768 channels, and 3 blocks fit on a multiprocessor
    const auto residual_layernorm_forward_variant =
        vec ? residual_layernorm_forward_kernel<S, 4, 6> : residual_layernorm_forward_kernel<S, 1, 12>;
    const int threads = vec ? norm_threads(args.C, 4, 6) : norm_threads(args.C, 1, 12);
    const dim3 block(threads, threads == WARP ? NORM_WARPS : 1);
    LAUNCH(residual_layernorm_forward_variant, div_up(args.rows, block.y), block, 0, stream, args);
}

// Backward of LayerNorm and of the residual before it (gamma is NULL if there is none):
//   n = (y - b) / w,  g = dy w:   dx (+)= rstd (g - mean_c(g) - n mean_c(g n))
//   dw = Σ_rows dy n,   db = Σ_rows dy,   dbranch = gamma dx
// and, while dbranch is in registers, the bias gradient of the branch's last Linear:   dbias = Σ_rows dbranch
// Minimum traffic per row: 2C (dy) + 2C (y) + 8C (dx) + 2C (dbranch) = 14C, without partial.
template <typename S> struct NormBackward {
    float* dx; S* dbranch;           // (rows,C)
    const S *dy, *y;
    const float* rstd;               // (rows)
    const float *w, *b, *gamma;      // (C); b may be NULL
    bool accumulate;                 // dx already holds the residual's own gradient
    size_t rows;
    int C;
    float* partial;                  // (3,blocks,C): each block's sums for dw, db, dbias
};

template <int VEC, int PACKS> struct NormSums {
    float dw[PACKS][VEC], db[PACKS][VEC], dbias[PACKS][VEC];
};

// The gamma that backward uses: never 0, because dgamma is a quotient by it (gamma_backward). For gamma = 0, gradients
// that go through the branch are 1e-20 times those for gamma = 1, instead of 0.
__device__ inline float nonzero_gamma(float gamma) {
    return fabsf(gamma) < 1e-20f ? 1e-20f : gamma;
}

// ROWS rows from row0 on. AT_ONCE, if registers allow: all loads are issued before the first use.
template <int ROWS, typename S, int VEC, int PACKS>
__device__ inline void layernorm_backward_rows(NormSums<VEC, PACKS>& total, const NormBackward<S>& args, size_t row0,
                                               float* shared) {
    constexpr bool AT_ONCE = PACKS == 1;
    const int C = args.C, c0 = threadIdx.x * VEC, stride = blockDim.x * VEC;
    const int valid = (int)min((size_t)ROWS, args.rows - row0);
    const float inverse_C = 1.0f / C;
    float g[ROWS][PACKS][VEC] = {}, n[ROWS][PACKS][VEC] = {}, dx[ROWS][PACKS][VEC] = {};
    float rstd[ROWS], sums[2 * ROWS] = {};   // sums: of g, g n
    UNROLL for (int p = 0; p < PACKS; p++) {
        const int c = c0 + p * stride;
        if (c >= C) break;
        const size_t at = row0 * C + c;
        float w_c[VEC], b_c[VEC] = {};
        load_pack<VEC>(w_c, args.w + c);
        if (args.b) load_pack<VEC>(b_c, args.b + c);
        UNROLL for (int i = 0; i < VEC; i++) w_c[i] = raised_weight<S>(w_c[i], b_c[i]);
        UNROLL for (int r = 0; r < ROWS; r++) {
            if (r >= valid) break;
            load_pack<VEC>(g[r][p], args.dy + at + r * C);
            load_pack<VEC>(n[r][p], args.y + at + r * C);
            if (AT_ONCE && args.accumulate) load_pack<VEC>(dx[r][p], args.dx + at + r * C);
        }
        UNROLL for (int r = 0; r < ROWS; r++) {
            if (r >= valid) break;
            rstd[r] = args.rstd[row0 + r];
            UNROLL for (int i = 0; i < VEC; i++) {
                n[r][p][i] = (n[r][p][i] - b_c[i]) * reciprocal(w_c[i]);
                total.dw[p][i] += g[r][p][i] * n[r][p][i];
                total.db[p][i] += g[r][p][i];
                g[r][p][i] *= w_c[i];
                sums[2 * r] += g[r][p][i];
                sums[2 * r + 1] += g[r][p][i] * n[r][p][i];
            }
        }
    }
    block_sum<2 * ROWS>(sums, shared);
    UNROLL for (int p = 0; p < PACKS; p++) {
        const int c = c0 + p * stride;
        if (c >= C) break;
        const size_t at = row0 * C + c;
        float gamma_c[VEC] = {};
        if (args.gamma) load_pack<VEC>(gamma_c, args.gamma + c);
        UNROLL for (int r = 0; r < ROWS; r++) {
            if (r >= valid) break;
            if (!AT_ONCE && args.accumulate) load_pack<VEC>(dx[r][p], args.dx + at + r * C);
            const float mean_g = sums[2 * r] * inverse_C, mean_gn = sums[2 * r + 1] * inverse_C;
            UNROLL for (int i = 0; i < VEC; i++) dx[r][p][i] += rstd[r] * (g[r][p][i] - mean_g - n[r][p][i] * mean_gn);
            store_pack<VEC>(args.dx + at + r * C, dx[r][p]);
            if (!args.gamma) continue;
            UNROLL for (int i = 0; i < VEC; i++) {
                total.dbias[p][i] += dx[r][p][i];   // the kernel multiplies the sum by gamma
                dx[r][p][i] *= nonzero_gamma(gamma_c[i]);   // now dbranch
            }
            store_pack<VEC>(args.dbranch + at + r * C, dx[r][p]);
        }
    }
}

template <typename S, int VEC, int PACKS, int ROWS>
__global__ void __launch_bounds__(VEC == 4 ? NORM_VEC_THREADS : NORM_THREADS)
    layernorm_residual_backward_kernel(NormBackward<S> args) {
    SHARED(float, shared, WARP * 2 * ROWS);
    NormSums<VEC, PACKS> total = {};
    for (size_t row0 = (size_t)blockIdx.x * ROWS; row0 < args.rows; row0 += (size_t)gridDim.x * ROWS)
        layernorm_backward_rows<ROWS>(total, args, row0, shared);
    const size_t array = (size_t)gridDim.x * args.C;   // elements of each of the 3 in partial
    UNROLL for (int p = 0; p < PACKS; p++) {
        const int c = (threadIdx.x + p * blockDim.x) * VEC;
        if (c >= args.C) break;
        float gamma_c[VEC] = {}, *partial_c = args.partial + (size_t)blockIdx.x * args.C + c;
        if (args.gamma) load_pack<VEC>(gamma_c, args.gamma + c);
        UNROLL for (int i = 0; i < VEC; i++)
            total.dbias[p][i] *= nonzero_gamma(gamma_c[i]);
        store_pack<VEC>(partial_c, total.dw[p]);
        store_pack<VEC>(partial_c + array, total.db[p]);
        store_pack<VEC>(partial_c + 2 * array, total.dbias[p]);
    }
}

// Sets dx, or with accumulate adds to it. If gamma is not NULL, also sets dbranch. Puts dw, db, dbias (C), of which all
// but dw may be NULL, on the list `pending` (reduce.cuh), of whose space the partial sums take (3,blocks,C).
// vector_gradients adds them at the end of the layer: =, or with add +=.
template <typename S>
static void layernorm_residual_backward(cudaStream_t stream, float* dw, float* db, float* dbias, ColumnSums* pending,
                                        NormBackward<S> args) {
    const int C = args.C;
    const bool vec = C % 4 == 0 && C <= 4 * NORM_VEC_THREADS;
    const int threads = vec ? norm_threads(C, 4, 1) : norm_threads(C, 1, 12);
    const auto layernorm_residual_backward_variant =
        vec ? layernorm_residual_backward_kernel<S, 4, 1, 2> : layernorm_residual_backward_kernel<S, 1, 12, 1>;
    const int blocks = column_blocks(layernorm_residual_backward_variant, threads, div_up(args.rows, vec ? 2 : 1), 1);
    args.partial = column_sums(pending, {dw, db, dbias}, blocks, C);
    LAUNCH(layernorm_residual_backward_variant, blocks, threads, 0, stream, args);
}

// ---------------------------------------------------------------------------------------------
// Linear:  y = x · wᵀ + b
//
// dense_product(c, a, b, layout, M, N, K) describes c (M,N) = A · B, with the layouts of gemm in train_gpt_tost.c;
// matmul (tost/cuda/matmul.cuh) runs it by cuBLASLt.

// y (rows,OUT); x (rows,IN); w (OUT,IN); b (OUT) or NULL
template <typename S>
static void linear_forward(Matmul* mm, S* y, const S* x, const S* w, const S* b, size_t rows, int IN, int OUT) {
    Product<S, S> p = dense_product(y, x, w, PRODUCT_NT, (int)rows, OUT, IN);
    p.bias = b;
    matmul(mm, p);
}

// dx =; dw =, or with add +=.   dx = dy · w,   dw = dyᵀ · x. dx is last: L2 may hold its end for the next kernel.
template <typename S>
static void linear_backward(Matmul* mm, S* dx, float* dw, const S* dy, const S* x, const S* w, size_t rows, int IN,
                            int OUT, bool add) {
    Product<S, float> p = dense_product(dw, dy, x, PRODUCT_TN, OUT, IN, (int)rows);
    p.beta = add ? 1.0f : 0.0f;
    matmul(mm, p);
    matmul(mm, dense_product(dx, dy, w, PRODUCT_NN, (int)rows, IN, OUT));
}

// dgamma (C) of the LayerScale after a Linear y with weight w (C,IN) and bias b (C) or NULL. With dx, the gradient of
// the residual stream, dy = gamma dx, so that neither y nor dx is needed:
//   dgamma = Σ_rows dx y = (Σ_rows dy y) / gamma,   (Σ_rows dy y)[c] = Σ_i dw[c,i] w[c,i] + db[c] b[c]
// Called when dw and db have the sums over all passes of a step's part; dgamma =. A block computes a channel. Minimum
// traffic per weight: 4 + 2.
template <typename S> __global__ void gamma_backward_kernel(float* dgamma, const float* gamma, const float* dw,
                                                            const float* db, const S* w, const S* b, int IN) {
    SHARED(float, shared, WARP);
    const size_t c = blockIdx.x;
    float sum[1] = {};
    for (int i = threadIdx.x * 4; i < IN; i += blockDim.x * 4) {
        float dw_i[4], w_i[4];
        load_part<false>(dw_i, dw + c * IN + i, IN - i);
        load_part<false>(w_i, w + c * IN + i, IN - i);
        UNROLL for (int j = 0; j < 4; j++) sum[0] += dw_i[j] * w_i[j];
    }
    block_sum<1>(sum, shared);
    if (db) sum[0] += db[c] * to_float(b[c]);
    if (threadIdx.x == 0) dgamma[c] = sum[0] / nonzero_gamma(gamma[c]);
}

template <typename S>
static void gamma_backward(cudaStream_t stream, float* dgamma, const float* gamma, const float* dw, const float* db,
                           const S* w, const S* b, int C, int IN) {
    LAUNCH((gamma_backward_kernel<S>), C, channel_threads(IN), 0, stream, dgamma, gamma, dw, db, w, b, IN);
}

// partial (blocks,N): Σ of dy over every gridDim.x-th row. Minimum traffic per row: 2N.
template <typename S> __global__ void bias_backward_kernel(float* partial, const S* dy, size_t rows, int N) {
    for (int c = (blockIdx.y * blockDim.x + threadIdx.x) * 4; c < N; c += gridDim.y * blockDim.x * 4) {
        float sum[4] = {};
        UNROLL_BY(4) for (size_t row = blockIdx.x; row < rows; row += gridDim.x)
            add_part<false>(sum, dy + row * N + c, N - c);
        store_part<false>(partial + (size_t)blockIdx.x * N + c, sum, N - c);
    }
}

// Puts db = Σ_rows dy on the list `pending`, of whose space it takes (blocks,OUT); does nothing if db is NULL. Only for
// c_attn: the kernels of LayerNorm and GELU compute the other bias gradients.
template <typename S>
static void bias_backward(cudaStream_t stream, float* db, ColumnSums* pending, const S* dy, size_t rows, int OUT) {
    if (!db) return;
    const int across = div_up(OUT, 256 * 4), blocks = column_blocks(bias_backward_kernel<S>, 256, rows, across);
    float* const partial = column_sums(pending, {db}, blocks, OUT);
    LAUNCH((bias_backward_kernel<S>), dim3(blocks, across), 256, 0, stream, partial, dy, rows, OUT);
}

// ---------------------------------------------------------------------------------------------
// TSSA, token statistics self-attention: train_gpt_tost.c has the formulas, their backward, and the stages below. In
// templates on the storage type S, the running sum S is `energy`; M is `mass`.
//
// A block computes a run of 32 tokens of one sequence, all heads, each by one warp. A stage with running sums adds up
// the run; then a scan (scan.cuh: decoupled look-back) gives the sum over the runs before it, in backward over those
// after it; then the stage goes over the run again:
//
//   stage                  adds up       scan      computes
//   energy_forward         s             S         u
//   membership_forward                             Π; the heads of a token meet in shared memory
//   statistics_forward     s Π, Π        N, D      y
//   statistics_backward    dN, dD        RN, RD    dΠ
//   membership_backward                            dscore, du
//   energy_backward        dS            RS        dz, all of it
//
// A warp takes 64 channels of its head at a time, in one of two ways:
//
//   tile       a lane has 8 channels of 8 tokens; 8 lanes share the channels, 4 groups of lanes the run. Loads are
//              wide; the sums over the channels of 8 tokens take 7 shuffles together; running sums first go from group
//              to group (tile_scan)
//   columns    a lane has 2 channels and goes through all tokens of the run, so no sums between groups are
//              needed: most of backward
//
// Either way, lane l gets the sum over the head's channels at token l. With the template parameter WHOLE, a function
// checks no bounds: the run has all 32 tokens and HS is a multiple of 64, the usual case.

constexpr int TSSA_RUN = 32;         // tokens per block, one per lane
constexpr int TSSA_WARPS = 7;        // maximum per block; with more heads, a warp takes several
constexpr int TSSA_BLOCKS = 4;       // per multiprocessor: others work while one waits; compared by bench_tssa
constexpr int TSSA_WIDTH = 64;       // channels of a head that a warp takes at once
constexpr int TSSA_VEC = 8;          // channels and tokens of a lane in a tile
constexpr int TSSA_LANES = TSSA_WIDTH / TSSA_VEC;    // lanes that share the channels of a tile
constexpr int TSSA_GROUPS = WARP / TSSA_LANES;       // groups of lanes that share its tokens
constexpr int TSSA_ROWS = 4;         // in columns: tokens in registers at once
static_assert(TSSA_GROUPS * TSSA_VEC == TSSA_RUN, "a tile covers a run");

// In a tile: tokens in registers at once, as many as fit
template <bool WHOLE, typename S> constexpr int TILE_ROWS = !WHOLE ? 1 : sizeof(S) > 2 ? 2 : TSSA_VEC;

// Sizes, set by tssa_sizes, and arguments, set by the caller
template <typename S> struct Tssa {
    int B, T, C, NH, HS, runs;
    int energy_stride, ND_stride;     // floats of the sums S (C), and of N (C) and D (NH), padded for the scans
    int slots;                        // of a scan in a sequence: one for each run, each 8 runs, … (scan.cuh)
    int warps;                        // of a block
    int start_log;                    // log2 of the tokens between the sums that backward keeps (TssaStarts)
    const S* z;                       // (B,T,C): the projection, or its convolution
    const float *temp, *denom_bias;   // (NH); (NH,block_size) or NULL
    int block_size;
    const PassHeader* pass;
    float *u, *pi;                    // (B,NH,T)
    S* y;                             // (B,T,C)
    PassStates state;                 // S, N and D before the pass (start) and after it (end)
    size_t state_size;                // doubles of a sequence's states: S, N, D, and those of --conv and --memory
    float* saved;                     // (B,runs,energy_stride + ND_stride): S, N and D before each run
    float* totals;                    // (B,slots,energy_stride), (B,slots,ND_stride): of the scans
    int* sync;                        // tssa_sync_size: ticket, flags of two scans; zero before the launch
    // backward only
    const S* dy;                      // (B,T,C)
    S* dz;                            // (B,T,C)
    float *dscore, *dtemp_run;        // (B,NH,T); (NH,B,runs): dtemp of each run
    float *dtemp, *ddenom_bias;       // (NH); (NH,block_size) or NULL: set by vector_gradients
    bool fixed_temp;                  // temp has no gradient: membership is uniform
    bool with_memory;                 // dscore and dz have the memory's parts of dΠ and dz on entry
    PassStates adjoint;               // RS, RN and RD after the pass (start) and before it (end)
    float* saved_adjoint;             // like saved: RS, RN and RD after each run
};

// Doubles of S, N and D of a sequence; floats of a run in `saved`; ints of `sync`
__host__ __device__ inline size_t tssa_state_size(size_t C, size_t NH) { return 2 * C + NH; }
static size_t tssa_sums_size(int C, int NH) { return (size_t)scan_stride(C) + scan_stride(C + NH); }
static size_t tssa_sync_size(size_t B, size_t T) { return 1 + 2 * B * scan_slots(div_up(T, TSSA_RUN)); }

// In shared memory: floats for the scores temp u of a token, an odd number of packs of 4, so that 8 lanes read those of
// 8 tokens without bank conflicts; and HS rounded up, for a head's sums over the tokens of the first 1, 2 and 3 groups
// of lanes (tile_scan).
__host__ __device__ inline int tssa_scores_stride(int NH) { return (div_up(NH, 4) | 1) * 4; }
__host__ __device__ inline int tssa_padded_HS(int HS) { return div_up(HS, TSSA_VEC) * TSSA_VEC; }

// Bytes of shared memory. Forward: scores and Π of the run's tokens, then the sums of the groups of lanes. Backward:
// three arrays (NH,32) (TssaTokens), then S and M + N (TssaStarts).
static size_t tssa_forward_shared(int C, int NH) {
    return (TSSA_RUN * (tssa_scores_stride(NH) + NH) + (TSSA_GROUPS - 1) * (size_t)NH * tssa_padded_HS(C / NH)) *
           sizeof(float);
}
static size_t tssa_backward_shared(int C, int NH, int start_log) {
    return (3 * NH * TSSA_RUN + 2 * ((size_t)TSSA_RUN >> start_log) * C) * sizeof(float);
}

// Backward keeps S and M + N before every (1 << start_log)-th token of a run (TssaStarts) and recomputes those between.
// start_log starts at 2. It grows up to 4 while `blocks` blocks need more than 3/4 of a multiprocessor's shared memory
// (the rest is L1), and up to 5 while one block exceeds its limit.
static int tssa_start_log(int C, int NH, int blocks) {
    const size_t all = device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    int log = 2;
    while (log < 4 && 4 * blocks * (tssa_backward_shared(C, NH, log) + EXTRA_SHARED) > 3 * all) log++;
    while (TSSA_RUN >> log > 1 && tssa_backward_shared(C, NH, log) > MAX_ALLOWED_SHARED) log++;
    return log;
}

// A block has a warp per head or, with more than `most_warps` heads, as few warps as give none more than
// ⌈NH/most_warps⌉ heads. In both cases it has more, up to `most_warps`, if a scan would have more than SCAN_VEC columns
// for each thread.
template <typename S>
static Tssa<S> tssa_sizes(int B, int T, int C, int NH, int most_warps = TSSA_WARPS, int blocks = TSSA_BLOCKS) {
    Tssa<S> args = {};
    args.B = B, args.T = T, args.C = C, args.NH = NH, args.HS = C / NH, args.runs = div_up(T, TSSA_RUN);
    args.energy_stride = scan_stride(C), args.ND_stride = scan_stride(C + NH), args.slots = (int)scan_slots(args.runs);
    args.warps = max(div_up(NH, div_up(NH, most_warps)), min(most_warps, div_up(C + NH, WARP * SCAN_VEC)));
    args.start_log = tssa_start_log(C, NH, blocks);
    return args;
}

// The block's work: tokens t0 to t0 + n - 1 of sequence b. Numbers of rows and runs fit in 32 bits; as unsigned, a
// product or quotient takes few instructions.
struct TssaRun { int b, t0, n; };

// Takes the next run in the order of the scans, over all sequences (scan.cuh). *run is in shared memory: each stage
// reads it again and computes its addresses from it, so that no registers hold them during the scans.
template <bool BACKWARD, typename S> __device__ inline void tssa_take_run(TssaRun* run, const Tssa<S>& args) {
    scan_ticket(args.sync, [&](int unit) {
        const int place = (unsigned)unit / (unsigned)args.B, t0 = (BACKWARD ? args.runs - 1 - place : place) * TSSA_RUN;
        *run = {unit - place * args.B, t0, min(args.T - t0, TSSA_RUN)};
    });
}

// Number of the run in its sequence; then offsets: of channel c of its token t in (B,T,C), of its first token at head h
// in (B,NH,T), of its sums in `saved`.
__device__ inline unsigned run_index(TssaRun k) { return (unsigned)k.t0 / TSSA_RUN; }
template <typename S> __device__ inline size_t tssa_row(int t, int c, TssaRun k, const Tssa<S>& args) {
    return (size_t)(unsigned)(k.b * args.T + k.t0 + t) * (unsigned)args.C + (unsigned)c;
}
template <typename S> __device__ inline size_t tssa_head(int h, TssaRun k, const Tssa<S>& args) {
    return (size_t)(unsigned)(k.b * args.NH + h) * (unsigned)args.T + (unsigned)k.t0;
}
template <typename S> __device__ inline size_t tssa_saved(TssaRun k, const Tssa<S>& args) {
    return (size_t)(k.b * args.runs + run_index(k)) * (unsigned)(args.energy_stride + args.ND_stride);
}

// The place of a run in the order of a scan, and the totals at this place: of N and D if ND, else of S.
template <bool BACKWARD, typename S> __device__ inline int tssa_scan_place(TssaRun k, const Tssa<S>& args) {
    return BACKWARD ? args.runs - 1 - (int)run_index(k) : (int)run_index(k);
}
template <bool ND, typename S> __device__ inline float* tssa_totals(int b, unsigned place, const Tssa<S>& args) {
    const size_t slot = b * args.slots + place;
    return ND ? args.totals + (size_t)(unsigned)(args.B * args.slots) * (unsigned)args.energy_stride +
                      slot * (unsigned)args.ND_stride
                : args.totals + slot * (unsigned)args.energy_stride;
}

// Calls function<WHOLE>(...) for head h of run k; uses `k` and `args` of the caller.
template <typename S> __device__ inline bool tssa_whole(TssaRun k, const Tssa<S>& args) {
    return k.n == TSSA_RUN && args.HS % TSSA_WIDTH == 0;
}
#define TSSA_CALL(function, ...) (tssa_whole(k, args) ? function<true>(__VA_ARGS__) : function<false>(__VA_ARGS__))

// Scans N and D if ND, else S; BACKWARD: their adjoints, from the last run to the first. Saves the sums before the run
// and, in the last run, those after the pass. The start state is added last, in double.
template <bool ND, bool BACKWARD, typename S>
__device__ inline void tssa_scan(const TssaRun* run, const Tssa<S>& args) {
    const auto scanned = [&](int c, const FloatPair (&sum)[SCAN_VEC]) {
        const TssaRun k = *run;
        const PassStates states = BACKWARD ? args.adjoint : args.state;
        float* saved = (BACKWARD ? args.saved_adjoint : args.saved) + tssa_saved(k, args)
                       + (ND ? args.energy_stride : 0) + c;
        float before[SCAN_VEC];
        if (!states.start && !states.end) {
            UNROLL for (int n = 0; n < SCAN_VEC; n++) before[n] = to_float(sum[n]);
            return store_pack<SCAN_VEC>(saved, before);
        }
        const int place = tssa_scan_place<BACKWARD>(k, args), columns = (ND ? args.C + args.NH : args.C) - c;
        const size_t at = k.b * args.state_size + (ND ? args.C : 0) + c;
        const bool last = states.end && place == args.runs - 1;
        const float* totals = tssa_totals<ND>(k.b, place, args) + c;
        UNROLL for (int n = 0; n < SCAN_VEC; n++) {
            double first = 0.0;
            if (states.start && n < columns) first = states.start[at + n];
            before[n] = (float)(first + to_double(sum[n]));
            if (last && n < columns)
                states.end[at + n] = first + (to_double(sum[n]) + totals[n]);
        }
        store_pack<SCAN_VEC>(saved, before);
    };
    scan_columns(tssa_totals<ND>(run->b, 0, args),
                 args.sync + 1 + ((ND != BACKWARD ? args.B : 0) + run->b) * args.slots,
                 ND ? args.ND_stride : args.energy_stride, tssa_scan_place<BACKWARD>(*run, args), args.runs, scanned);
}

// A tile of head h as a lane sees it: its group of lanes and first token; its first channel in the head and in the row,
// and how many channels the head has from there on.
struct TssaTile {
    int group, t, d, c, inside;
    __device__ TssaTile(int h, int d0, int HS)
        : group(lane_index() / TSSA_LANES), t(group * TSSA_VEC), d(d0 + lane_index() % TSSA_LANES * TSSA_VEC),
          c(h * HS + d), inside(HS - d) {}
};

// N channels from c on of ROWS rows of an array (B,T,C) from token t on. Zeros past the run's end and from channel
// `inside` on.
template <bool WHOLE, int ROWS, int N, typename S>
__device__ inline void tssa_load(float (&x)[ROWS][N], const S* p, int t, int c, int inside, TssaRun k,
                                 const Tssa<S>& args) {
    p += tssa_row(t, c, k, args);
    UNROLL for (int j = 0; j < ROWS; j++)
        load_part<WHOLE>(x[j], p + (size_t)j * (unsigned)args.C, t + j < k.n ? inside : 0);
}

// The sums up to and including a group of lanes. groups (TSSA_GROUPS-1,NH,padded HS): in shared memory
template <typename S>
__device__ inline float* tssa_group(float* groups, int group, int h, TssaTile tile, const Tssa<S>& args) {
    return groups + (group * args.NH + h) * tssa_padded_HS(args.HS) + tile.d;
}

// sum: the lane's sum over its tokens. Sets `groups` and the run's totals.
template <bool WHOLE, typename S>
__device__ inline void tile_scan(float* totals, float* groups, float (&sum)[TSSA_VEC], int h, TssaTile tile,
                                 const Tssa<S>& args) {
    UNROLL for (int by = TSSA_LANES; by < WARP; by *= 2)
        UNROLL for (int i = 0; i < TSSA_VEC; i++) {
            const float before = __shfl_up_sync(FULL_WARP, sum[i], by);
            if (lane_index() >= by) sum[i] += before;
        }
    if (tile.group == TSSA_GROUPS - 1) store_part<WHOLE>(totals + tile.c, sum, tile.inside);
    else if (WHOLE || tile.inside > 0) store_pack<TSSA_VEC>(tssa_group(groups, tile.group, h, tile, args), sum);
}

// Sums before the lane's first token: before the run, saved (C), and over the groups before the lane's.
template <bool WHOLE, typename S>
__device__ inline void tile_start(float (&sum)[TSSA_VEC], const float* saved, float* groups, int h, TssaTile tile,
                                  const Tssa<S>& args) {
    float before[TSSA_VEC] = {};
    load_part<WHOLE>(sum, saved + tile.c, tile.inside);
    if (tile.group > 0 && (WHOLE || tile.inside > 0))
        load_pack<TSSA_VEC>(before, tssa_group(groups, tile.group - 1, h, tile, args));
    UNROLL for (int i = 0; i < TSSA_VEC; i++) sum[i] += before[i];
}

// mine += Σ over the head's channels of x[j], for the lane of token t0 + j of the lane's group.
template <int ROWS> __device__ inline void tile_add_channels(float& mine, float (&x)[ROWS], int t0) {
    const float sum = group_transposed_sum<TSSA_LANES>(x, lane_index());
    if (lane_index() % TSSA_VEC / ROWS == t0 / ROWS) mine += sum;
}

// Sums of head h over the run: of s Π, with Π in pi (32), or of s if pi is nullptr.
template <bool WHOLE, typename S, typename Pi>
__device__ inline void tssa_run_totals(float* totals, float* groups, Pi pi, int h, TssaRun k, const Tssa<S>& args) {
    constexpr int ROWS = TILE_ROWS<WHOLE, S>;
    constexpr bool WEIGHTED = !std::is_null_pointer<Pi>::value;
    for (int d0 = 0; d0 < args.HS; d0 += TSSA_WIDTH) {
        const TssaTile tile(h, d0, args.HS);
        float sum[TSSA_VEC] = {};
        NO_UNROLL for (int t0 = 0; t0 < TSSA_VEC; t0 += ROWS) {
            float z[ROWS][TSSA_VEC], pi_t[ROWS];
            tssa_load<WHOLE>(z, args.z, tile.t + t0, tile.c, tile.inside, k, args);
            if constexpr (WEIGHTED) load_pack<ROWS>(pi_t, pi + tile.t + t0);
            UNROLL for (int j = 0; j < ROWS; j++) {
                UNROLL for (int i = 0; i < TSSA_VEC; i++)
                    sum[i] += z[j][i] * (WEIGHTED ? z[j][i] * pi_t[j] : z[j][i]);
            }
        }
        tile_scan<WHOLE>(totals, groups, sum, h, tile, args);
    }
}

// Lane t returns Σ_d s/max(S, 1e-12) of head h at token t.
template <bool WHOLE, typename S>
__device__ inline float tssa_energy_ratios(float* groups, int h, TssaRun k, const Tssa<S>& args) {
    constexpr int ROWS = TILE_ROWS<WHOLE, S>;
    float mine = 0.0f;
    for (int d0 = 0; d0 < args.HS; d0 += TSSA_WIDTH) {
        const TssaTile tile(h, d0, args.HS);
        float energy[TSSA_VEC];
        tile_start<WHOLE>(energy, args.saved + tssa_saved(k, args), groups, h, tile, args);
        NO_UNROLL for (int t0 = 0; t0 < TSSA_VEC; t0 += ROWS) {
            float z[ROWS][TSSA_VEC], ratios[ROWS] = {};
            tssa_load<WHOLE>(z, args.z, tile.t + t0, tile.c, tile.inside, k, args);
            UNROLL for (int j = 0; j < ROWS; j++) {
                UNROLL for (int i = 0; i < TSSA_VEC; i++) {
                    const float s = z[j][i] * z[j][i];
                    energy[i] += s;
                    ratios[j] += s * reciprocal(fmaxf(energy[i], (float)TOST_ENERGY_MIN));
                }
            }
            tile_add_channels(mine, ratios, t0);
        }
    }
    return mine;
}

// S and u. scores (32,tssa_scores_stride): temp u of each token's heads; -infinity past the last head
template <typename S>
__device__ inline void tssa_energy_forward(float* scores, float* groups, const TssaRun* run, const Tssa<S>& args) {
    TssaRun k = *run;
    for (int h = warp_index(); h < args.NH; h += args.warps)
        TSSA_CALL(tssa_run_totals, tssa_totals<false>(k.b, run_index(k), args), groups, nullptr, h, k, args);
    tssa_scan<false, false>(run, args);
    k = *run;
    const int stride = tssa_scores_stride(args.NH), lane = lane_index();
    for (int h = warp_index(); h < args.NH; h += args.warps) {
        const float ratios = TSSA_CALL(tssa_energy_ratios, groups, h, k, args);
        const bool inside = lane < k.n;
        const size_t bias =
            (size_t)(unsigned)h * (unsigned)args.block_size + (unsigned)(args.pass->first + k.t0 + lane);
        const float u_t = ratios + args.HS * (inside && args.denom_bias ? args.denom_bias[bias] : 0.0f);
        if (inside) args.u[tssa_head(h, k, args) + lane] = u_t;
        scores[lane * stride + h] = args.temp[h] * u_t;
    }
    NO_UNROLL for (int h = args.NH + warp_index(); h < stride; h += args.warps) scores[lane * stride + h] = -INFINITY;
    __syncthreads();
}

// Π[h], softmax over the heads. scores (NH): of a token. In bf16, computes 1 / Σ_h' e^(score[h'] - score[h]), without
// the maximum: if the sum overflows, the result is 0.
template <typename S> __device__ inline float softmax_over_heads(const float* scores, int h, int NH) {
    constexpr bool FLOAT = std::is_same<S, float>::value;
    const float own = scores[h];
    float top = own, sum = 0.0f, part[4];
    for (int i = 0; FLOAT && i < NH; i++) top = fmaxf(top, scores[i]);
    for (int i = 0; i < NH; i += 4) {
        load_pack<4>(part, scores + i);
        UNROLL for (int j = 0; j < 4; j++)
            sum += FLOAT ? expf(part[j] - top) : power_of_2(LOG2_E * (part[j] - top));
    }
    return (FLOAT ? expf(own - top) : 1.0f) * (1.0f / sum);   // exactly 1/NH if all scores are equal
}

// pi (NH,32): Π, 0 past the run's end
template <typename S>
__device__ inline void tssa_membership_forward(float* pi, const float* scores, const TssaRun* run,
                                               const Tssa<S>& args) {
    const TssaRun k = *run;
    const int lane = lane_index(), stride = tssa_scores_stride(args.NH);
    for (int h = warp_index(); h < args.NH; h += args.warps) {
        const float pi_t = softmax_over_heads<S>(scores + lane * stride, h, args.NH);
        if (lane < k.n) args.pi[tssa_head(h, k, args) + lane] = pi_t;
        pi[h * WARP + lane] = lane < k.n ? pi_t : 0.0f;
    }
    __syncthreads();
}

// y = -z Π M/(M + N) of head h, as -z Π / (1 + N/M). pi, inverse_mass (32): Π and 1/M
template <bool WHOLE, typename S>
__device__ inline void tssa_shrink(float* groups, const float* pi, const float* inverse_mass, int h, TssaRun k,
                                   const Tssa<S>& args) {
    constexpr int ROWS = TILE_ROWS<WHOLE, S>;
    for (int d0 = 0; d0 < args.HS; d0 += TSSA_WIDTH) {
        const TssaTile tile(h, d0, args.HS);
        float N[TSSA_VEC];
        tile_start<WHOLE>(N, args.saved + tssa_saved(k, args) + args.energy_stride, groups, h, tile, args);
        NO_UNROLL for (int t0 = 0; t0 < TSSA_VEC; t0 += ROWS) {
            const int t = tile.t + t0;
            float z[ROWS][TSSA_VEC], pi_t[ROWS], inverse_t[ROWS];
            S* y = args.y + tssa_row(t, tile.c, k, args);
            tssa_load<WHOLE>(z, args.z, t, tile.c, tile.inside, k, args);
            load_pack<ROWS>(pi_t, pi + t);
            load_pack<ROWS>(inverse_t, inverse_mass + t);
            UNROLL for (int j = 0; j < ROWS; j++) {
                UNROLL for (int i = 0; i < TSSA_VEC; i++) {
                    const float z_pi = z[j][i] * pi_t[j];
                    N[i] += z[j][i] * z_pi;
                    z[j][i] = -z_pi * reciprocal(1.0f + N[i] * inverse_t[j]);
                }
                store_part<WHOLE>(y + (size_t)j * (unsigned)args.C, z[j], t + j < k.n ? tile.inside : 0);
            }
        }
    }
}

// N, D and y. mass (NH,32): working space
template <typename S>
__device__ inline void tssa_statistics_forward(float* mass, float* groups, const float* pi, const TssaRun* run,
                                               const Tssa<S>& args) {
    TssaRun k = *run;
    float* totals = tssa_totals<true>(k.b, run_index(k), args);
    for (int h = warp_index(); h < args.NH; h += args.warps) {
        const float mass_t = warp_scan(pi[h * WARP + lane_index()], lane_index());
        if (lane_index() == WARP - 1) totals[args.C + h] = mass_t;
        mass[h * WARP + lane_index()] = mass_t;
        TSSA_CALL(tssa_run_totals, totals, groups, pi + h * WARP, h, k, args);
    }
    tssa_scan<true, false>(run, args);
    k = *run;
    for (int h = warp_index(); h < args.NH; h += args.warps) {
        const float before = args.saved[tssa_saved(k, args) + args.energy_stride + args.C + h];
        float* mass_t = mass + h * WARP + lane_index();
        *mass_t = reciprocal(before + *mass_t + (float)TOST_MASS_EPS);
        __syncwarp();
        TSSA_CALL(tssa_shrink, groups, pi + h * WARP, mass + h * WARP, h, k, args);
    }
}

// Minimum traffic per row: 2C (z) + 2C (y). Also moved: saved and totals, (4 + 8) (2C + NH)/32 = 0.75C; u, pi, 8 NH.
template <typename S, int WARPS, int BLOCKS>
__global__ void __launch_bounds__(WARPS* WARP, BLOCKS) tssa_forward_kernel(Tssa<S> args) {
    DYNAMIC_SHARED(float, scores);            // (32,stride): scores, then 1/M; (NH,32): Π; then groups
    SHARED(TssaRun, run, 1);
    float *const pi = scores + WARP * tssa_scores_stride(args.NH), *const groups = pi + args.NH * WARP;
    tssa_take_run<false>(run, args);
    tssa_energy_forward(scores, groups, run, args);
    tssa_membership_forward(pi, scores, run, args);
    tssa_statistics_forward(scores, groups, pi, run, args);
}

template <int WARPS = TSSA_WARPS, int BLOCKS = TSSA_BLOCKS, typename S>
static void tssa_forward(cudaStream_t stream, const Tssa<S>& args) {
    const size_t shared = tssa_forward_shared(args.C, args.NH);
    prefer_shared(tssa_forward_kernel<S, WARPS, BLOCKS>, shared, BLOCKS);
    LAUNCH((tssa_forward_kernel<S, WARPS, BLOCKS>), args.B * args.runs, args.warps * WARP, shared, stream, args);
}

// Arrays (NH,32) in shared memory, with an element per head and token of the run: Π and Π M. mass, dpi and du are the
// same array, which holds M = D + 1e-8, then dΠ, then du.
struct TssaTokens { float *pi, *pi_mass, *mass, *dpi, *du; };

// S and A = M + N before some of the run's tokens, each (32 >> start_log,C) in shared memory, for the last stage, which
// goes backward in time. See tssa_start_log.
struct TssaStarts { float *energy, *A; };

// Stores x, the sums before token t, among the starts of the lane's channels, from `inside` of which on there are none.
template <bool WHOLE, typename S>
__device__ inline void tssa_store_start(float* starts, int t, float (&x)[2], int c, int inside, const Tssa<S>& args) {
    if (t >> args.start_log << args.start_log == t)
        store_part<WHOLE>(starts + (t >> args.start_log) * args.C + c, x, inside);
}

// Sets Π, M and Π M. Past the run's end, Π is zero and M stays positive.
template <typename S> __device__ inline void tssa_backward_tokens(TssaTokens tokens, TssaRun k, const Tssa<S>& args) {
    const float* mass = args.saved + tssa_saved(k, args) + args.energy_stride + args.C;   // D before the run
    for (int h = warp_index(); h < args.NH; h += args.warps) {
        const int at = h * WARP + lane_index();
        const float pi = lane_index() < k.n ? args.pi[tssa_head(h, k, args) + lane_index()] : 0.0f;
        tokens.pi[at] = pi;
        tokens.mass[at] = mass[h] + warp_scan(pi, lane_index()) + (float)TOST_MASS_EPS;
        tokens.pi_mass[at] = pi * tokens.mass[at];
    }
    __syncwarp();
}

// Through y = -z Π M/(M + N), with A = M + N = 1e-8 + Σ_{t'≤t} Π (1 + s) and r = 1/A:
//     dN = Π M dy z r²,   dD = -Σ_d Π N dy z r² = Σ_d (dN - Π dy z r)
// The last form takes fewer instructions, but is less exact if N is much smaller than M. EXACT: uses the first.
// totals (C+NH): Σ of dN and of dD over the run. With RN and RD, the sums of dN and dD over t' ≥ t,
//     dΠ[t] = Σ_d (s RN[t] - dy z M r) + RD[t]
// This sets tokens.dpi to dΠ with RN and RD replaced by minus the sums of dN and dD over earlier tokens of the run.
template <bool WHOLE, typename S>
__device__ inline void tssa_statistics_totals(float* totals, TssaTokens tokens, TssaStarts starts, int h, TssaRun k,
                                              const Tssa<S>& args) {
    constexpr bool EXACT = sizeof(S) > 2;   // float32
    constexpr int ROWS = TSSA_ROWS;
    const float* saved = args.saved + tssa_saved(k, args) + args.energy_stride;
    const float mass = saved[args.C + h] + (float)TOST_MASS_EPS;
    float mine = 0.0f, total_D = 0.0f;
    for (int d0 = 0; d0 < args.HS; d0 += TSSA_WIDTH) {
        const int d = d0 + 2 * lane_index(), c = h * args.HS + d, inside = args.HS - d;
        // less_D: minus this lane's part of the sum of dD; unless EXACT, without the terms that are in dN
        float A[2], N[2], dN[2] = {}, less_D = 0.0f;
        load_part<WHOLE>(N, saved + c, inside);
        UNROLL for (int i = 0; i < 2; i++) A[i] = N[i] + mass;
        NO_UNROLL for (int t0 = 0; t0 < TSSA_RUN; t0 += ROWS) {
            float z[ROWS][2], dy[ROWS][2], pi[ROWS], M[ROWS], pi_M[ROWS], part[ROWS];
            tssa_load<WHOLE>(z, args.z, t0, c, inside, k, args);
            tssa_load<WHOLE>(dy, args.dy, t0, c, inside, k, args);
            load_pack<ROWS>(pi, tokens.pi + h * WARP + t0);
            load_pack<ROWS>(M, tokens.mass + h * WARP + t0);
            load_pack<ROWS>(pi_M, tokens.pi_mass + h * WARP + t0);
            tssa_store_start<WHOLE>(starts.A, t0, A, c, inside, args);
            UNROLL for (int j = 0; j < ROWS; j++) {
                float sum = 0.0f, sum_N = 0.0f;   // over the lane's channels
                part[j] = less_D;
                UNROLL for (int i = 0; i < 2; i++) {
                    const float s = z[j][i] * z[j][i];
                    A[i] += (s + 1.0f) * pi[j];
                    const float r = reciprocal(A[i]), dy_z_r = dy[j][i] * r * z[j][i];
                    sum += dy_z_r;
                    if constexpr (EXACT) {
                        N[i] += s * pi[j];
                        sum_N += dy_z_r * r * N[i];
                    }
                    part[j] -= (EXACT ? s : s + 1.0f) * dN[i];
                    dN[i] += pi_M[j] * (dy_z_r * r);
                }
                part[j] -= sum * M[j];
                less_D += pi[j] * (EXACT ? sum_N : sum);
            }
            const float sums = group_transposed_sum<WARP>(part, lane_index());
            if ((unsigned)(lane_index() - t0) < ROWS) mine += sums;
        }
        UNROLL for (int i = 0; i < 2 && !EXACT; i++) total_D += dN[i];
        total_D -= less_D;
        store_part<WHOLE>(totals + c, dN, inside);
    }
    total_D = warp_sum(total_D);
    __syncwarp();   // dpi overwrites M
    tokens.dpi[h * WARP + lane_index()] = mine;
    if (lane_index() == 0) totals[args.C + h] = total_D;
}

// Lane t returns the rest of dΠ[t] of head h:   Σ_d s RN + RD, with RN and RD at the start of the run: the run's
// totals plus the sums over later runs.
template <bool WHOLE, typename S>
__device__ inline float tssa_later_statistics(const float* totals, int h, TssaRun k, const Tssa<S>& args) {
    constexpr int ROWS = TILE_ROWS<WHOLE, S>;
    const float* adjoint = args.saved_adjoint + tssa_saved(k, args) + args.energy_stride;
    float mine = adjoint[args.C + h] + totals[args.C + h];
    for (int d0 = 0; d0 < args.HS; d0 += TSSA_WIDTH) {
        const TssaTile tile(h, d0, args.HS);
        float RN[TSSA_VEC];
        load_part<WHOLE>(RN, adjoint + tile.c, tile.inside);
        add_part<WHOLE>(RN, totals + tile.c, tile.inside);
        NO_UNROLL for (int t0 = 0; t0 < TSSA_VEC; t0 += ROWS) {
            float z[ROWS][TSSA_VEC], of_z[ROWS] = {};
            tssa_load<WHOLE>(z, args.z, tile.t + t0, tile.c, tile.inside, k, args);
            UNROLL for (int j = 0; j < ROWS; j++) {
                UNROLL for (int i = 0; i < TSSA_VEC; i++) of_z[j] += z[j][i] * (z[j][i] * RN[i]);
            }
            tile_add_channels(mine, of_z, t0);
        }
    }
    return mine;
}

// Through y, N and D: tokens.dpi becomes dΠ.
template <typename S>
__device__ inline void tssa_statistics_backward(TssaTokens tokens, TssaStarts starts, const TssaRun* run,
                                                const Tssa<S>& args) {
    TssaRun k = *run;
    tssa_backward_tokens(tokens, k, args);
    for (int h = warp_index(); h < args.NH; h += args.warps)
        TSSA_CALL(tssa_statistics_totals, tssa_totals<true>(k.b, tssa_scan_place<true>(k, args), args), tokens, starts,
                  h, k, args);
    tssa_scan<true, true>(run, args);
    k = *run;
    for (int h = warp_index(); h < args.NH; h += args.warps) {
        float* const dpi = tokens.dpi + h * WARP + lane_index();
        *dpi +=
            TSSA_CALL(tssa_later_statistics, tssa_totals<true>(k.b, tssa_scan_place<true>(k, args), args), h, k, args);
        if (args.with_memory && lane_index() < k.n)
            *dpi += args.dscore[tssa_head(h, k, args) + lane_index()];
    }
    __syncthreads();
}

// From dΠ:   dscore[h] = Π[h] (dΠ[h] - Σ_h' Π[h'] dΠ[h']),   du = temp dscore,   dtemp[h,run] = Σ_t dscore u
template <typename S>
__device__ inline void tssa_membership_backward(TssaTokens tokens, const TssaRun* run, const Tssa<S>& args) {
    const TssaRun k = *run;
    const int lane = lane_index();
    float mean = 0.0f;
    for (int h = 0; h < args.NH; h++) mean += tokens.pi[h * WARP + lane] * tokens.dpi[h * WARP + lane];
    __syncthreads();   // du overwrites dpi
    for (int h = warp_index(); h < args.NH; h += args.warps) {
        const size_t at = tssa_head(h, k, args) + lane;
        const float dscore = tokens.pi[h * WARP + lane] * (tokens.dpi[h * WARP + lane] - mean);
        tokens.du[h * WARP + lane] = args.temp[h] * dscore;
        const float sum = warp_sum(lane < k.n ? dscore * args.u[at] : 0.0f);
        if (lane == 0) args.dtemp_run[(size_t)(unsigned)(h * args.B + k.b) * (unsigned)args.runs + run_index(k)] = sum;
        if (lane < k.n) args.dscore[at] = dscore;
    }
    __syncwarp();
}

// The run's totals of dS of head h, with dS = -du s/S² if S > 1e-12, else 0
template <bool WHOLE, typename S>
__device__ inline void tssa_energy_totals(float* totals, TssaTokens tokens, TssaStarts starts, int h, TssaRun k,
                                          const Tssa<S>& args) {
    for (int d = 2 * lane_index(); d < args.HS; d += TSSA_WIDTH) {
        const int c = h * args.HS + d, inside = args.HS - d;
        float energy[2], sum[2] = {};
        load_part<WHOLE>(energy, args.saved + tssa_saved(k, args) + c, inside);
        NO_UNROLL for (int t0 = 0; t0 < TSSA_RUN; t0 += TSSA_ROWS) {
            float z[TSSA_ROWS][2], du[TSSA_ROWS];
            tssa_load<WHOLE>(z, args.z, t0, c, inside, k, args);
            load_pack<TSSA_ROWS>(du, tokens.du + h * WARP + t0);
            tssa_store_start<WHOLE>(starts.energy, t0, energy, c, inside, args);
            UNROLL for (int j = 0; j < TSSA_ROWS; j++) {
                UNROLL for (int i = 0; i < 2; i++) {
                    energy[i] += z[j][i] * z[j][i];
                    const float r = energy[i] > (float)TOST_ENERGY_MIN ? reciprocal(energy[i]) : 0.0f;
                    const float z_r = z[j][i] * r;
                    sum[i] -= du[j] * (z_r * z_r);
                }
            }
        }
        store_part<WHOLE>(totals + c, sum, inside);
    }
}

// S and A of the lane's channels before token t0: from the start before it, advanced.
template <bool WHOLE, typename S>
__device__ inline void tssa_walk_to(float (&energy)[2], float (&A)[2], int t0, const float* pi, TssaStarts starts,
                                    int c, int inside, TssaRun k, const Tssa<S>& args) {
    const int first = t0 >> args.start_log;
    load_part<WHOLE>(energy, starts.energy + first * args.C + c, inside);
    load_part<WHOLE>(A, starts.A + first * args.C + c, inside);
    NO_UNROLL for (int t = first << args.start_log; t < t0; t++) {
        float z[1][2];
        tssa_load<WHOLE>(z, args.z, t, c, inside, k, args);
        UNROLL for (int i = 0; i < 2; i++) {
            const float s = z[0][i] * z[0][i];
            energy[i] += s;
            A[i] += (s + 1.0f) * pi[t];
        }
    }
}

// Replaces dy by dz for TSSA_ROWS tokens, in the terms of tssa_statistics_totals:
//     dz = 2 z (Π RN + ds) - Π M dy r,   ds = du/max(S, 1e-12) + Σ_{t'≥t} dS[t']
// The sum's own term is merged with the first one: du/S - du s/S² = du S[t-1]/S², without cancellation if S is close to
// s. at: offset of the head and the first token in the arrays of `tokens`. RN, RS: sums of dN and dS past these,
// advanced to their start. energy, A: S and A before them.
__device__ inline void tssa_rows_backward(float (&dy)[TSSA_ROWS][2], float (&RN)[2], float (&RS)[2],
                                          const float (&energy)[2], const float (&A)[2],
                                          const float (&z)[TSSA_ROWS][2], TssaTokens tokens, int at) {
    float pi[TSSA_ROWS], pi_M[TSSA_ROWS], du[TSSA_ROWS];
    load_pack<TSSA_ROWS>(pi, tokens.pi + at);
    load_pack<TSSA_ROWS>(pi_M, tokens.pi_mass + at);
    load_pack<TSSA_ROWS>(du, tokens.du + at);
    UNROLL for (int i = 0; i < 2; i++) {
        float S_next = energy[i], A_next = A[i], S_last[TSSA_ROWS], S[TSSA_ROWS], A_t[TSSA_ROWS];
        UNROLL for (int j = 0; j < TSSA_ROWS; j++) {
            S_last[j] = S_next;
            S[j] = S_next += z[j][i] * z[j][i];
            A_t[j] = A_next += (z[j][i] * z[j][i] + 1.0f) * pi[j];
        }
        UNROLL for (int j = TSSA_ROWS - 1; j >= 0; j--) {
            const float r = reciprocal(A_t[j]), through_y = pi_M[j] * (dy[j][i] * r);
            const bool above = S[j] > (float)TOST_ENERGY_MIN;
            const float q = reciprocal(above ? S[j] : (float)TOST_ENERGY_MIN), du_q = du[j] * q, du_q_q = du_q * q;
            const float ds = RS[i] + (above ? du_q_q * S_last[j] : du_q);
            if (above) RS[i] -= du_q_q * z[j][i] * z[j][i];
            RN[i] += z[j][i] * (r * through_y);
            dy[j][i] = 2.0f * z[j][i] * (pi[j] * RN[i] + ds) - through_y;
        }
    }
}

// dz of head h, backward in time
template <bool WHOLE, typename S>
__device__ inline void tssa_dz(TssaTokens tokens, TssaStarts starts, int h, TssaRun k, const Tssa<S>& args) {
    for (int d = 2 * lane_index(); d < args.HS; d += TSSA_WIDTH) {
        const int c = h * args.HS + d, inside = args.HS - d;
        const float* adjoint = args.saved_adjoint + tssa_saved(k, args);
        float RN[2], RS[2];
        load_part<WHOLE>(RN, adjoint + args.energy_stride + c, inside);
        load_part<WHOLE>(RS, adjoint + c, inside);
        NO_UNROLL for (int t0 = ((WHOLE ? TSSA_RUN : k.n) - 1) / TSSA_ROWS * TSSA_ROWS; t0 >= 0; t0 -= TSSA_ROWS) {
            float energy[2], A[2], z[TSSA_ROWS][2], dy[TSSA_ROWS][2];
            S* dz = args.dz + tssa_row(t0, c, k, args);
            tssa_load<WHOLE>(z, args.z, t0, c, inside, k, args);
            tssa_load<WHOLE>(dy, args.dy, t0, c, inside, k, args);
            tssa_walk_to<WHOLE>(energy, A, t0, tokens.pi + h * WARP, starts, c, inside, k, args);
            tssa_rows_backward(dy, RN, RS, energy, A, z, tokens, h * WARP + t0);
            if (args.with_memory) {
                float of_memory[TSSA_ROWS][2];
                tssa_load<WHOLE>(of_memory, args.dz, t0, c, inside, k, args);
                UNROLL for (int j = 0; j < TSSA_ROWS; j++)
                    UNROLL for (int i = 0; i < 2; i++) dy[j][i] += of_memory[j][i];
            }
            UNROLL for (int j = 0; j < TSSA_ROWS; j++)
                store_part<WHOLE>(dz + (size_t)j * (unsigned)args.C, dy[j], t0 + j < k.n ? inside : 0);
        }
    }
}

// Through u and S, and from all gradients to dz.
template <typename S>
__device__ inline void tssa_energy_backward(TssaTokens tokens, TssaStarts starts, const TssaRun* run,
                                            const Tssa<S>& args) {
    TssaRun k = *run;
    for (int h = warp_index(); h < args.NH; h += args.warps)
        TSSA_CALL(tssa_energy_totals, tssa_totals<false>(k.b, tssa_scan_place<true>(k, args), args), tokens, starts, h,
                  k, args);
    tssa_scan<false, true>(run, args);
    k = *run;
    for (int h = warp_index(); h < args.NH; h += args.warps) TSSA_CALL(tssa_dz, tokens, starts, h, k, args);
}

// Minimum traffic per row: 2C (z) + 2C (dy) + 2C (dz), and 2C (dz) with memory. Moved in addition: saved and its
// adjoint, totals, about (4 + 8 + 8) (2C + NH)/32 = 1.25C, and 3 · 4 NH. The scans run from the last run to the first.
template <typename S, int WARPS, int BLOCKS>
__global__ void __launch_bounds__(WARPS* WARP, BLOCKS) tssa_backward_kernel(Tssa<S> args) {
    DYNAMIC_SHARED(float, shared);
    SHARED(TssaRun, run, 1);
    float *const mass = shared + 2 * args.NH * WARP, *const kept = mass + args.NH * WARP;
    const TssaTokens tokens = {shared, shared + args.NH * WARP, mass, mass, mass};
    const TssaStarts starts = {kept, kept + (TSSA_RUN >> args.start_log) * args.C};
    tssa_take_run<true>(run, args);
    tssa_statistics_backward(tokens, starts, run, args);
    tssa_membership_backward(tokens, run, args);
    tssa_energy_backward(tokens, starts, run, args);
}

// Sets dz, and what vector_gradients needs for the gradients of temp and denom_bias.
template <int WARPS = TSSA_WARPS, int BLOCKS = TSSA_BLOCKS, typename S>
static void tssa_backward(cudaStream_t stream, const Tssa<S>& args) {
    const size_t shared = tssa_backward_shared(args.C, args.NH, args.start_log);
    prefer_shared(tssa_backward_kernel<S, WARPS, BLOCKS>, shared, BLOCKS);
    LAUNCH((tssa_backward_kernel<S, WARPS, BLOCKS>), args.B * args.runs, args.warps * WARP, shared, stream, args);
}

// dtemp[h] = Σ_runs dtemp_run[h,run]. The first TEMP_THREADS threads of SUM_THREADS take part.
constexpr int TEMP_THREADS = 256;

template <typename S> __device__ inline void tssa_temp_backward(const Tssa<S>& args, int h, bool add, float* shared) {
    const int runs = args.B * args.runs;
    float sum = 0.0f;
    if (threadIdx.x < TEMP_THREADS && !args.fixed_temp) {
        UNROLL_BY(8) for (int i = threadIdx.x; i < runs; i += TEMP_THREADS)
            sum += args.dtemp_run[(size_t)h * runs + i];
    }
    sum = block_tree_sum(sum, shared);
    if (threadIdx.x == 0) args.dtemp[h] = (add ? args.dtemp[h] : 0.0f) + sum;
}

// dtemp, and ddenom_bias[h,first+t] = Σ_b HS temp[h] dscore[b,h,t]: =, with 0 at other positions; with add +=. The
// first NH blocks compute dtemp; the others, if any, ddenom_bias, one thread per head and position, with add only those
// of this pass. Traffic per row: 4 NH, from L2.
template <typename S>
__device__ inline void tssa_params_backward(const Tssa<S>& args, int block, bool add, float* shared) {
    const int h = block % args.NH, i = (block / args.NH - 1) * SUM_THREADS + threadIdx.x,
              t = add ? i : i - args.pass->first;
    const bool inside = t >= 0 && t < args.T;
    if (block < args.NH) return tssa_temp_backward(args, h, add, shared);
    if (add ? !inside : i >= args.block_size) return;
    float sum = 0.0f;
    UNROLL_BY(4) for (int b = 0; inside && b < args.B; b++) sum += args.dscore[((size_t)b * args.NH + h) * args.T + t];
    float* out = args.ddenom_bias + (size_t)h * args.block_size + args.pass->first + t;
    *out = (add ? *out : 0.0f) + args.HS * args.temp[h] * sum;
}

// The first blocks compute column sums, the others tssa_params_backward.
template <typename S>
__global__ void __launch_bounds__(SUM_THREADS) vector_gradients_kernel(ColumnSums columns, Tssa<S> tssa, bool add) {
    SHARED(float, shared, SUM_THREADS);
    int block = blockIdx.x;
    for (int i = 0; i < columns.n; i++) {
        const int blocks = column_sum_blocks(columns.sum[i]);
        if (block < blocks) return column_sum_block(columns.sum[i], block, add, shared);
        block -= blocks;
    }
    tssa_params_backward(tssa, block, add, shared);
}

// The gradients of a layer's vectors from `columns`, and of temp and denom_bias from dscore and dtemp_run. add: +=
template <typename S>
static void vector_gradients(cudaStream_t stream, const ColumnSums& columns, const Tssa<S>& tssa, bool add) {
    const int positions = !tssa.ddenom_bias ? 0 : add ? tssa.T : tssa.block_size;
    int blocks = tssa.NH * (1 + div_up(positions, SUM_THREADS));
    for (int i = 0; i < columns.n; i++) blocks += column_sum_blocks(columns.sum[i]);
    LAUNCH((vector_gradients_kernel<S>), blocks, SUM_THREADS, 0, stream, columns, tssa, add);
}

// ---------------------------------------------------------------------------------------------
// GELU, the exact form:  y = x Φ(x). Not a cuBLASLt epilogue: that computes the tanh form. Backward also sums the bias
// gradient of the Linear before it.

constexpr int GELU_PACK = 8, GELU_THREADS = 128;

// Minimum traffic per element: 2 (x) + 2 (y).
template <typename S> __global__ void gelu_forward_kernel(S* y, const S* x, size_t n) {
    const size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * GELU_PACK;
    if (i >= n) return;
    const int inside = (int)min(n - i, (size_t)GELU_PACK);
    float v[GELU_PACK];
    load_part<false>(v, x + i, inside);
    UNROLL for (int j = 0; j < GELU_PACK; j++) v[j] *= normal_cdf(v[j], normal_bell(v[j]));
    store_part<false>(y + i, v, inside);
}

template <typename S> static void gelu_forward(cudaStream_t stream, S* y, const S* x, size_t n) {
    LAUNCH((gelu_forward_kernel<S>), div_up(n, 256 * GELU_PACK), 256, 0, stream, y, x, n);
}

// dx = dy (Φ(x) + x φ(x)), φ(x) = e^(-x²/2)/√(2π), in place: dx holds dy on entry. dx, x (rows,N); partial (blocks,N):
// Σ of dx over every gridDim.x-th row. WHOLE: GELU_PACK divides N. Minimum traffic per element: 4 (dx) + 2 (x).
template <typename S, bool WHOLE> __global__ void __launch_bounds__(GELU_THREADS, WHOLE && sizeof(S) == 2 ? 10 : 4)
    gelu_backward_kernel(S* dx, float* partial, const S* x, size_t rows, int N) {
    const int c = (blockIdx.y * GELU_THREADS + threadIdx.x) * GELU_PACK, inside = N - c;
    float sum[GELU_PACK] = {};
    UNROLL_BY(2) for (size_t after = blockIdx.x; inside > 0 && after < rows; after += gridDim.x) {
        const size_t row = rows - 1 - after;   // the last rows of dx first, since L2 may hold them
        float d[GELU_PACK], v[GELU_PACK];
        load_part<WHOLE>(d, dx + row * N + c, inside);
        load_part<WHOLE>(v, x + row * N + c, inside);
        UNROLL for (int i = 0; i < GELU_PACK; i++) {
            const float bell = normal_bell(v[i]);
            d[i] *= normal_cdf(v[i], bell) + v[i] * bell * 0.398942280f;
            sum[i] += d[i];
        }
        store_part<WHOLE>(dx + row * N + c, d, inside);
    }
    if (inside > 0) store_part<WHOLE>(partial + (size_t)blockIdx.x * N + c, sum, inside);
}

// Sets dx (in place of dy). Puts db = Σ_rows dx on the list `sums`, of whose space it takes (COLUMN_BLOCKS,N).
template <typename S>
static void gelu_backward(cudaStream_t stream, S* dx, float* db, ColumnSums* pending, const S* x, size_t rows, int N) {
    const bool whole = N % GELU_PACK == 0;
    const int across = div_up(N, GELU_THREADS * GELU_PACK);
    const auto gelu_backward_variant = whole ? gelu_backward_kernel<S, true> : gelu_backward_kernel<S, false>;
    const int blocks = column_blocks(gelu_backward_variant, GELU_THREADS, rows, across);
    float* const partial = column_sums(pending, {db}, blocks, N);
    LAUNCH(gelu_backward_variant, dim3(blocks, across), GELU_THREADS, 0, stream, dx, partial, x, rows, N);
}

// ---------------------------------------------------------------------------------------------
// Classifier, softmax and cross-entropy:  loss[row] = log Σ_v e^logit[row,v] - logit[row,target]

// Rows of logits are `ld` elements apart, a multiple of LOGIT_PACK, so that packs are aligned for any V. The elements
// past V are not read by the matmuls; the kernel masks them and writes zeros.
constexpr int LOGIT_PACK = 8, CLASSIFIER_THREADS = 1024;   // the most threads for a row

// Threads of a row: a pack each, up to the maximum.
static int classifier_threads(int V) { return min(CLASSIFIER_THREADS, div_up(V, LOGIT_PACK * WARP) * WARP); }

static size_t logits_ld(int V) { return ((size_t)V + LOGIT_PACK - 1) / LOGIT_PACK * LOGIT_PACK; }

// The pack of logits at v; with MASKED, elements past V are -inf.
template <bool MASKED, typename S>
__device__ inline void load_logits(float (&x)[LOGIT_PACK], const S* l, int v, int V) {
    load_pack<LOGIT_PACK>(x, l + v);
    UNROLL for (int j = 0; MASKED && j < LOGIT_PACK; j++)
        if (v + j >= V) x[j] = -INFINITY;
}

// top: the largest logit; sum: Σ e^(logit - top)
struct SoftmaxStatistics { float top, sum; };

// Includes the pack of logits at v. MASKED: see load_logits
template <bool MASKED, typename S>
__device__ inline void softmax_add(SoftmaxStatistics& mine, const S* logits, int v, int V) {
    float x[LOGIT_PACK], top = mine.top;
    load_logits<MASKED>(x, logits, v, V);
    UNROLL for (int j = 0; j < LOGIT_PACK; j++) top = fmaxf(top, x[j]);
    mine.sum *= power_of_2((mine.top - top) * LOG2_E);
    mine.top = top;
    UNROLL for (int j = 0; j < LOGIT_PACK; j++) mine.sum += power_of_2(x[j] * LOG2_E - top * LOG2_E);
}

// The statistics of this thread's packs. Only the last pack can reach past V.
template <typename S> __device__ inline SoftmaxStatistics softmax_statistics(const S* logits, int V) {
    SoftmaxStatistics mine = {-INFINITY, 0.0f};
    int v = threadIdx.x * LOGIT_PACK;
    UNROLL_BY(2) for (; v + LOGIT_PACK <= V; v += blockDim.x * LOGIT_PACK) softmax_add<false>(mine, logits, v, V);
    if (v < V) softmax_add<true>(mine, logits, v, V);
    return mine;
}

// Combines the statistics of all lanes. A lane without logits has sum 0.
__device__ inline SoftmaxStatistics softmax_merge(SoftmaxStatistics mine) {
    const float top = warp_max(mine.top);
    return {top, warp_sum(mine.sum == 0.0f ? 0.0f : mine.sum * power_of_2((mine.top - top) * LOG2_E))};
}

// Blocks of CLASSIFIER_THREADS per multiprocessor: it has 2,048 threads on sm_80, sm_90 and sm_10x, 1,536 on others.
[[maybe_unused]] constexpr int CLASSIFIER_BLOCKS =
    COMPILED_ARCH == 800 || COMPILED_ARCH == 900 || COMPILED_ARCH / 100 == 10 ? 2 : 1;

// The pack at v of a row's gradient:  x = share 2^(x log2(e) + shift), minus scale at the target
template <bool MASKED, typename S>
__device__ inline void softmax_gradient(S* l, int v, int V, int target, float shift, float share, float scale) {
    float x[LOGIT_PACK];
    load_logits<MASKED>(x, l, v, V);
    UNROLL for (int j = 0; j < LOGIT_PACK; j++) x[j] = power_of_2(x[j] * LOG2_E + shift) * share;
    if (target - v >= 0 && target - v < LOGIT_PACK) {
        UNROLL for (int j = 0; j < LOGIT_PACK; j++)
            x[j] -= v + j == target ? scale : 0.0f;
    }
    store_pack<LOGIT_PACK>(l + v, x);
}

// Losses of a block of rows; with `gradient` the logits become their gradient,
//   dlogits = grad_scale (softmax(logits) - onehot(target)),   0 if the target is -1.
// One block per row. The second pass over a row starts with what the first read last, which L1 still holds. Minimum
// traffic per row: 2V read, 2V written.
template <typename S> __global__ void __launch_bounds__(CLASSIFIER_THREADS, CLASSIFIER_BLOCKS)
    cross_entropy_kernel(float* loss, S* logits, const int32_t* targets, const PassHeader* pass, bool gradient, int V,
                         int ld) {
    SHARED(SoftmaxStatistics, shared, CLASSIFIER_THREADS / WARP);
    S* l = logits + (size_t)blockIdx.x * ld;
    const int target = targets[blockIdx.x], stride = blockDim.x * LOGIT_PACK;
    const float scale = pass->grad_scale;
    if (target < 0) {
        const float zeros[LOGIT_PACK] = {};
        if (threadIdx.x == 0) loss[blockIdx.x] = 0.0f;
        if (gradient)
            for (int v = threadIdx.x * LOGIT_PACK; v < ld; v += stride) store_pack<LOGIT_PACK>(l + v, zeros);
        return;
    }
    const float target_logit = to_float(l[target]);
    const SoftmaxStatistics of_warp = softmax_merge(softmax_statistics(l, V));
    if (lane_index() == 0) shared[warp_index()] = of_warp;
    __syncthreads();   // also: all threads have read target_logit, which is overwritten below
    const bool has_warp = lane_index() < block_warps();
    const SoftmaxStatistics row = softmax_merge(has_warp ? shared[lane_index()] : SoftmaxStatistics{-INFINITY, 0.0f});
    if (threadIdx.x == 0) loss[blockIdx.x] = logf(row.sum) + (row.top - target_logit);
    if (!gradient) return;
    const float shift = -row.top * LOG2_E, share = scale / row.sum;
    const int last = threadIdx.x * LOGIT_PACK + (ld - 1) / stride * stride;
    int v = last < ld ? last : last - stride;
    if (v >= 0 && v + LOGIT_PACK > V) {
        softmax_gradient<true>(l, v, V, target, shift, share, scale);
        v -= stride;
    }
    UNROLL_BY(2) for (; v >= 0; v -= stride) softmax_gradient<false>(l, v, V, target, shift, share, scale);
}

// total += Σ of the losses, in double and in a fixed order. One block.
constexpr int LOSS_THREADS = 1024;

__global__ void __launch_bounds__(LOSS_THREADS) loss_sum_kernel(double* total, const float* loss, size_t rows) {
    SHARED(double, shared, LOSS_THREADS);
    double sum = 0.0;
    for (size_t row = threadIdx.x; row < rows; row += LOSS_THREADS) sum += loss[row];
    sum = block_tree_sum(sum, shared);
    if (threadIdx.x == 0) *total += sum;
}

template <typename S> struct Classifier {
    double* total;                   // += Σ of the losses
    float* loss;                     // (rows)
    S* dx = NULL;                    // (rows,C): =
    float* dwte = NULL;              // (V,C): =, or with add +=; NULL: no gradients
    bool add = false;
    S* logits;                       // (block,ld): working space, for `block` rows at a time
    const S *x, *wte;                // (rows,C), (V,C)
    const int32_t* targets;          // (rows)
    const PassHeader* pass;
    size_t rows, block;
    int V, C;
};

// Works on blocks of rows: the (rows,V) logits are never materialized.
template <typename S> static void classify(Matmul* mm, const Classifier<S>& args) {
    const int V = args.V, C = args.C, ld = (int)logits_ld(V), threads = classifier_threads(V);
    // Little memory is for `shared`; the rest is L1, which holds rows of logits for the second pass over them.
    prefer_shared(cross_entropy_kernel<S>, 0, 2 * CLASSIFIER_THREADS / threads);
    for (size_t row = 0; row < args.rows; row += args.block) {
        const int n = (int)min(args.rows - row, args.block);
        const S* x = args.x + row * C;
        Product<S, S> logits = dense_product(args.logits, x, args.wte, PRODUCT_NT, n, V, C);
        logits.ldc = ld;
        matmul(mm, logits);
        LAUNCH((cross_entropy_kernel<S>), n, threads, 0, mm->stream, args.loss + row, args.logits, args.targets + row,
               args.pass, args.dwte != NULL, V, ld);
        if (!args.dwte) continue;
        Product<S, S> dx = dense_product(args.dx + row * C, args.logits, args.wte, PRODUCT_NN, n, C, V);
        Product<S, float> dwte = dense_product(args.dwte, args.logits, x, PRODUCT_TN, V, C, n);
        dx.lda = dwte.lda = ld;
        dwte.beta = args.add || row > 0 ? 1.0f : 0.0f;
        matmul(mm, dx);
        matmul(mm, dwte);
    }
    LAUNCH(loss_sum_kernel, 1, LOSS_THREADS, 0, mm->stream, args.total, args.loss, args.rows);
}

// ---------------------------------------------------------------------------------------------
// The arrays of a model: parameters, gradients and Adam's moments as flat arrays under the table of model.h, for bf16
// also a copy of the parameters; activations and buffers under the tables below. A training model keeps the activations
// of every layer; otherwise all layers share one set.

// A row: field, type, elements, in the variables of layout_buffers; rows = B·T of the largest chunk.
#define LAYER_ACTIVATIONS(X) \
    X(ln_1,         S,       rows * C)                     /* ln_1(x) */ \
    X(rstd_1,       float,   rows) \
    X(projected,    S,       conv * rows * C)              /* c_attn(ln_1) */ \
    X(z,            S,       rows * C)                     /* convolution of projected; without --conv the same */ \
    X(u,            float,   rows * NH)                    /* (B,NH,T) */ \
    X(pi,           float,   rows * NH)                    /* (B,NH,T) */ \
    X(tssa_saved,   float,   B * runs * tssa_sums_size(C, NH)) \
    X(y,            S,       rows * C) \
    X(predicted,    S,       memory * rows * C)            /* o of the memory */ \
    X(memory_G,     float,   (two_level ? 2 : train) * memory_matrices)   /* see DeltaRule */ \
    X(ln_2,         S,       rows * C)                     /* ln_2(x + gamma1 c_proj(y)) */ \
    X(rstd_2,       float,   rows) \
    X(mlp_in,       S,       conv * rows * C)              /* convolution of ln_2; without --conv the same array */ \
    X(fc,           S,       rows * 4 * C) \
    X(gelu,         S,       rows * 4 * C)

#define SHARED_BUFFERS(X) \
    X(input,        int32_t, (1 + bigrams) * pass_input_size(rows))   /* of tokens, and of pairs of them */ \
    X(decays,       uint8_t, train * m->tensors.flat_size / DECAY_GROUP) \
    X(x,            float,   rows * C)                     /* the residual stream: embedding + all branches so far */ \
    X(branch,       S,       rows * C)                     /* c_proj(y), or the output of the MLP */ \
    X(ln_f,         S,       rows * C) \
    X(rstd_f,       float,   rows) \
    X(logits,       char,    m->logits_bytes)              /* a block of rows, of S or of float */ \
    X(losses,       float,   rows) \
    X(loss_sum,     double,  1)                            /* since the last read_loss */ \
    X(states,       double,  m->options.states * state)    /* see state_size; or their gradients */ \
    X(before,       double,  state)                        /* the state that a pass reads */ \
    X(after,        double,  state)                        /* and the one that it leaves: fixed, for graphs */ \
    X(dafter,       double,  train * state)                /* the gradient of the state after the chunk */ \
    X(dbefore,      double,  train * state)                /* and of the state before it */ \
    X(totals,       float,   B * scan_slots(runs) * tssa_sums_size(C, NH)) \
    X(tssa_sync,    int,     L * tssa_sync_size(B, T)) \
    X(dx,           float,   train * rows * C)             /* gradient of the residual stream */ \
    X(dbranch,      S,       train * rows * C) \
    X(scratch_btc,  S,       train * rows * C)             /* gradients of ln_f, ln_2, y and ln_1 in turn */ \
    X(scratch_bt4c, S,       train * rows * 4 * C)         /* gradients of gelu, of fc, and with --conv of z */ \
    X(dscore,       float,   train * rows * NH) \
    X(dtemp,        float,   train * B * runs * NH) \
    X(dmemory_scale, float,  memory * train * segments * B * C)   /* this and the next 3: see DeltaRule */ \
    X(memory_dG,    float,   two_level * train * memory_matrices) \
    X(memory_dk,    S,       memory * train * parts * (rows + segments * B) * NH * parts * columns) \
    X(memory_dpi,   float,   memory * train * parts * rows * NH) \
    X(tssa_adjoint, float,   train * B * runs * tssa_sums_size(C, NH)) \
    X(columns,      float,   train * COLUMN_BLOCKS * ((ColumnSums::MOST + 2 * c->conv) * C + 4))  /* see ColumnSums */ \
    X(embed,        float,   train * (rows / (EMBED_SEGMENT / 2) + 1) * C) \
    X(muon_squares, double,  muon * L * slice_units(4 * C * C))   /* see orthogonalize */ \
    X(muon_x,       float,   muon * L * padded_size(4 * C * C)) \
    X(muon_rounded, S,       muon * L * padded_size(4 * C * C)) \
    X(muon_gram,    S,       muon * L * padded_size(C * C)) \
    X(muon_poly,    S,       muon * L * padded_size(C * C)) \
    X(workspace,    char,    MATMUL_WORKSPACE)

constexpr int DECAY_GROUP = 32;      // elements per byte of decays: tensors start at multiples of it
// Elements of a tensor of n elements and of the gap after it
static size_t padded_size(size_t n) { return (n + DECAY_GROUP - 1) / DECAY_GROUP * DECAY_GROUP; }

#define X(field, type, elements) type* field;
template <typename S> struct LayerActivations { LAYER_ACTIVATIONS(X) };
template <typename S> struct Buffers { SHARED_BUFFERS(X) };
#undef X

// The first passes of a part overwrite the gradients (FIRST), so that they need not be cleared; later ones add.
enum { PASS_FORWARD, PASS_TRAIN_FIRST, PASS_TRAIN, PASS_BACKWARD_FIRST, PASS_BACKWARD, PASSES };

struct TostModel {
    TostConfig        config;
    TostEngineOptions options;
    TostTensors       tensors;
    float*            array[TOST_ARRAYS];  // params, grads (flat_size); m and v (this rank's slices)
    DeviceExchange    exchange;            // of gradients and parameters with other ranks
    char*             arena;               // all device memory, one allocation
    size_t            logits_rows, logits_bytes;
    cudaStream_t      stream;
    Matmul            mm;
    Staging           staging;             // of Buffers.input
    PassGraph         graph[PASSES * 8];   // see run_pass
    bool              grads_stale;         // to be overwritten by the next pass
    TostChunk         chunk;               // of the last pass
    std::vector<int32_t> last;             // (states,max_batch): the last token of each sequence, for bigram_rows
    PassStates        states, adjoints;    // of layer 0, in the last pass and in its backward
    int64_t           loss_count;          // since the last read_loss
};

template <typename S> struct TypedModel : TostModel {
    S*                   weights;          // the parameters as matmul operands; for float, array[TOST_PARAM] itself
    std::vector<LayerActivations<S>> layer;   // (L); one set without training
    Buffers<S>           buf;
};

// The storage type's copy of the parameters from `at` on; NULL if they are matmul operands themselves.
template <typename S> static S* weights_copy(TypedModel<S>* m, size_t at) {
    return (void*)m->weights == m->array[TOST_PARAM] ? NULL : m->weights + at;
}

static TostParams<float> model_params(const TostModel* m, TostArray array, int l) {
    return tost_params(&m->tensors, m->array[array], l);
}
template <typename S> static TostParams<S> model_weights(const TypedModel<S>* m, int l) {
    return tost_params(&m->tensors, m->weights, l);
}

// Rows per block if `rows` are divided into the fewest blocks of at most `most` rows, of nearly equal size. A multiple
// of ROW_TILE, as is `most`, unless there is only one block.
constexpr size_t ROW_TILE = 128;     // of a matrix product

static size_t even_block(size_t rows, size_t most) {
    const size_t blocks = (rows + most - 1) / most, even = (rows + blocks - 1) / blocks;
    return blocks == 1 ? rows : (even + ROW_TILE - 1) / ROW_TILE * ROW_TILE;
}

// Rows per block of at most 2 GiB of logits. Large blocks, because the matrix products of a small one leave
// multiprocessors idle in their last wave, and because each block reads and writes dwte once.
static size_t classifier_rows(size_t rows, int V, size_t logit_bytes) {
    const size_t most = ((size_t)1 << 31) / (logit_bytes * (size_t)V) / ROW_TILE * ROW_TILE;
    return even_block(rows, most > 2 * ROW_TILE ? most : 2 * ROW_TILE);
}

// The state of a sequence in a layer, in doubles: TSSA's running sums; with --conv, the inputs of TSSA's convolution at
// the last three tokens, (3,C), and those of the MLP's; with --memory, as floats, Gᵀ of each head and the last k.
static size_t state_size(const TostConfig* c) {
    return tssa_state_size(c->n_embd, c->n_head) + (c->conv ? 2 * CONV_BEFORE * (size_t)c->n_embd : 0)
           + (c->memory ? delta_rule_state_size(c->n_embd, c->n_embd / c->n_head) : 0);
}

// Sets every pointer into the arena and returns its size in bytes. base NULL: only computes the size.
template <typename S> static size_t layout_buffers(TypedModel<S>* m, char* base) {
    const TostConfig* c = &m->config;
    const size_t C = c->n_embd, NH = c->n_head, V = c->vocab_size, L = c->n_layer, B = m->options.max_batch,
                 T = m->options.max_chunk, rows = B * T, runs = div_up(T, TSSA_RUN), train = m->options.training;
    const size_t conv = c->conv != 0, memory = c->memory != 0, bigrams = c->bigrams != 0, state = L * B * state_size(c);
    const size_t muon = train && m->options.optimizer == TOST_MUON;
    const size_t segments = div_up(T, delta_rule_segment(B, T, NH, C / NH)), two_level = segments > 1,
                 columns = delta_rule_columns(B, T, NH, C / NH), parts = div_up(C / NH, columns),
                 memory_matrices = memory * segments * B * C * (C / NH);
    m->logits_rows = classifier_rows(rows, c->vocab_size, sizeof(S));
    m->logits_bytes = max(m->logits_rows * logits_ld(c->vocab_size) * sizeof(S), B * V * sizeof(float));
    Arena arena = {base, 0, 256, CUDA_REDZONE_BYTES, cuda_on_host_poison};
    for (int s = 0; s < (train ? TOST_ARRAYS : 1); s++)
        m->array[s] = (float*)arena_alloc(&arena, exchange_elements(&m->exchange, (TostArray)s) * sizeof(float));
    if (train) exchange_layout(&m->exchange, &arena, m->array[TOST_GRAD]);
    m->weights = (S*)m->array[TOST_PARAM];
    if (sizeof(S) != sizeof(float)) m->weights = (S*)arena_alloc(&arena, m->tensors.flat_size * sizeof(S));
#define X(field, type, elements) m->buf.field = (type*)arena_alloc(&arena, (elements) * sizeof(type));
    SHARED_BUFFERS(X)
#undef X
    for (size_t l = 0; l < L; l++) {
#define X(field, type, elements) m->layer[l].field = (type*)arena_alloc(&arena, (elements) * sizeof(type));
        if (l > 0 && !train) m->layer[l] = m->layer[0];
        else { LAYER_ACTIVATIONS(X) }
#undef X
        if (!conv) m->layer[l].projected = m->layer[l].z, m->layer[l].mlp_in = m->layer[l].ln_2;
    }
    return arena.used;
}

template <typename S> static TypedModel<S>* model_new(const TostConfig* c, const TostEngineOptions* o) {
    TypedModel<S>* m = new TypedModel<S>();
    m->config = *c;
    m->options = *o;
    m->tensors = tost_tensors(c);
    (Exchange&)m->exchange = exchange_new(&m->tensors, o->optimizer, o->training ? o->comm : NULL, o->parts);
    m->exchange.memory = &device_memory;
    m->layer.resize(c->n_layer);
    return m;
}

template <typename S> static void model_free(TypedModel<S>* m) {
    exchange_close(&m->exchange);
    if (m->stream) CUDA_CHECK(cudaStreamSynchronize(m->stream));
    for (PassGraph& g : m->graph) graph_free(&g);
    matmul_free(&m->mm);
    staging_free(&m->staging);
    if (m->arena) CUDA_CHECK(cudaFree(m->arena));
    if (m->stream) CUDA_CHECK(cudaStreamDestroy(m->stream));
    tost_tensors_free(&m->tensors);
    delete m;
}

// ---------------------------------------------------------------------------------------------
// Passes over the model. A residual is added by the LayerNorm after it: layer_forward starts from a finished ln_1 and
// ends with the LayerNorm that follows the layer; layer_backward mirrors it.

static size_t chunk_rows(const TostModel* m) { return (size_t)m->chunk.B * m->chunk.T; }

template <typename S> static PassInput model_input(const TypedModel<S>* m) {
    return pass_input(m->buf.input, chunk_rows(m));
}

// With --bigrams, the input of pairs follows that of tokens. Its `inputs` are rows of bigram.
static PassInput pairs_input(PassInput tokens, size_t rows) {
    return pass_input((int32_t*)tokens.header + pass_input_size(rows), rows);
}
template <typename S> static PassInput model_pairs(const TypedModel<S>* m) {
    return pairs_input(model_input(m), chunk_rows(m));
}

// The LayerNorm that follows layer l (-1: the embedding): ln_1 of the next layer, or ln_f. layer_forward also adds the
// MLP's branch.
template <typename S> static NormForward<S> next_norm(const TypedModel<S>* m, int l) {
    const bool last = l + 1 == m->config.n_layer;
    const LayerActivations<S>* next = &m->layer[last ? 0 : l + 1];
    const TostParams<float> p = model_params(m, TOST_PARAM, last ? 0 : l + 1);
    return {.x = m->buf.x, .y = last ? m->buf.ln_f : next->ln_1, .rstd = last ? m->buf.rstd_f : next->rstd_1,
            .branch = NULL, .gamma = NULL, .w = last ? p.ln_f_w : p.ln_1_w, .b = last ? p.ln_f_b : p.ln_1_b,
            .rows = chunk_rows(m), .C = m->config.n_embd};
}

// State `state` of layer l, from sequence b on
template <typename S> static double* model_state(const TypedModel<S>* m, int state, int l, int b) {
    const size_t i = ((size_t)state * m->config.n_layer + l) * m->options.max_batch + b;
    return m->buf.states + i * state_size(&m->config);
}

// The states of layer l. first: those of layer 0, or two NULL pointers
static PassStates layer_states(const TostModel* m, PassStates first, int l) {
    const size_t at = (size_t)l * m->options.max_batch * state_size(&m->config);
    return first.start ? PassStates{first.start + at, first.end + at} : first;
}

// dst = src, or zeros if src is NULL; of all layers
template <typename S> static void copy_states(TypedModel<S>* m, double* dst, const double* src) {
    const size_t bytes = (model_state(m, 1, 0, 0) - m->buf.states) * sizeof(double);
    if (src) CUDA_CHECK(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, m->stream));
    else CUDA_CHECK(cudaMemsetAsync(dst, 0, bytes, m->stream));
}

// Copies state `from`, or zeros, to `before`. Returns the states of the pass, or two NULL pointers, copying
// nothing, if it neither reads nor writes one.
template <typename S>
static PassStates read_state(TypedModel<S>* m, double* before, double* after, int from, int to) {
    if (from == TOST_NO_STATE && to == TOST_NO_STATE) return {};
    copy_states(m, before, from == TOST_NO_STATE ? NULL : model_state(m, from, 0, 0));
    return {before, after};
}

template <typename S> static void write_state(TypedModel<S>* m, int to, const double* sums) {
    if (to != TOST_NO_STATE) copy_states(m, model_state(m, to, 0, 0), sums);
}

enum ConvPlace { ATTN_CONV, MLP_CONV };

// A convolution of layer l. Backward, TSSA's goes from scratch_bt4c to dbranch, the MLP's from dbranch to scratch_btc.
template <typename S> static Conv<S> layer_conv(const TypedModel<S>* m, ConvPlace place, int l) {
    const LayerActivations<S>* act = &m->layer[l];
    const TostParams<float> p = model_params(m, TOST_PARAM, l);
    const bool attn = place == ATTN_CONV;
    const int C = m->config.n_embd;
    return {.B = m->chunk.B, .T = m->chunk.T, .C = C, .y = attn ? act->z : act->mlp_in,
            .x = attn ? act->projected : act->ln_2, .weight = attn ? p.attn_conv : p.mlp_conv,
            .state = layer_states(m, m->states, l), .state_size = state_size(&m->config),
            .offset = tssa_state_size(C, m->config.n_head) + place * (size_t)CONV_BEFORE * C,
            .dx = attn ? m->buf.dbranch : m->buf.scratch_btc, .dy = attn ? m->buf.scratch_bt4c : m->buf.dbranch,
            .adjoint = layer_states(m, m->adjoints, l), .partial = NULL};
}

// TSSA of layer l. Backward: from scratch_btc to dbranch, or before a convolution to scratch_bt4c.
template <typename S> static Tssa<S> layer_tssa(const TypedModel<S>* m, int l) {
    const LayerActivations<S>* act = &m->layer[l];
    const TostParams<float> p = model_params(m, TOST_PARAM, l);
    Tssa<S> tssa = tssa_sizes<S>(m->chunk.B, m->chunk.T, m->config.n_embd, m->config.n_head);
    tssa.z = act->z, tssa.y = act->y, tssa.u = act->u, tssa.pi = act->pi, tssa.saved = act->tssa_saved;
    tssa.temp = p.temp, tssa.denom_bias = p.denom_bias, tssa.block_size = m->config.block_size;
    tssa.pass = model_input(m).header;
    tssa.state = layer_states(m, m->states, l), tssa.state_size = state_size(&m->config);
    tssa.totals = m->buf.totals;
    tssa.sync = m->buf.tssa_sync + l * tssa_sync_size(m->chunk.B, m->chunk.T);
    tssa.dy = m->buf.scratch_btc, tssa.dz = m->config.conv ? m->buf.scratch_bt4c : m->buf.dbranch;
    tssa.dscore = m->buf.dscore, tssa.dtemp_run = m->buf.dtemp, tssa.saved_adjoint = m->buf.tssa_adjoint;
    tssa.fixed_temp = m->config.membership == TOST_UNIFORM, tssa.with_memory = m->config.memory;
    tssa.adjoint = layer_states(m, m->adjoints, l);
    return tssa;
}

// The memory of layer l, with the arguments of its backward: from scratch_btc to TSSA's dz, and dΠ in dscore
template <typename S> static DeltaRule<S> layer_memory(const TypedModel<S>* m, int l) {
    const LayerActivations<S>* act = &m->layer[l];
    const int C = m->config.n_embd, NH = m->config.n_head, HS = C / NH, B = m->options.max_batch,
              most = m->options.max_chunk, columns = delta_rule_columns(B, most, NH, HS),
              segment = delta_rule_segment(B, most, NH, HS), segments = div_up(m->chunk.T, segment);
    return {.B = m->chunk.B, .T = m->chunk.T, .C = C, .NH = NH, .HS = HS, .columns = columns,
            .parts = div_up(HS, columns), .segment = segment, .segments = segments, .local = false, .z = act->z,
            .pi = act->pi, .scale = model_params(m, TOST_PARAM, l).memory_scale, .o = act->predicted, .y = act->y,
            .G = m->options.training || segments > 1 ? act->memory_G : NULL, .state = layer_states(m, m->states, l),
            .state_size = state_size(&m->config), .offset = state_size(&m->config) - delta_rule_state_size(C, HS),
            .dy = m->buf.scratch_btc, .dz = m->config.conv ? m->buf.scratch_bt4c : m->buf.dbranch,
            .dk_parts = m->buf.memory_dk, .dpi = m->buf.dscore, .dpi_parts = m->buf.memory_dpi,
            .dscale = m->buf.dmemory_scale, .dG = m->buf.memory_dG, .adjoint = layer_states(m, m->adjoints, l)};
}

template <typename S> static void layer_forward(TypedModel<S>* m, int l) {
    const LayerActivations<S>* act = &m->layer[l];
    const TostParams<float> p = model_params(m, TOST_PARAM, l);
    const TostParams<S> w = model_weights(m, l);
    const int C = m->config.n_embd;
    const size_t rows = chunk_rows(m);
    Matmul* mm = &m->mm;
    linear_forward(mm, act->projected, act->ln_1, w.attn_w, w.attn_b, rows, C, C);
    if (p.attn_conv) conv_forward(m->stream, layer_conv(m, ATTN_CONV, l));
    tssa_forward(m->stream, layer_tssa(m, l));
    if (p.memory_scale) delta_rule_forward(m->stream, layer_memory(m, l));
    linear_forward(mm, m->buf.branch, act->y, w.attn_proj_w, w.attn_proj_b, rows, C, C);
    residual_layernorm_forward<S>(m->stream, {
        .x = m->buf.x, .y = act->ln_2, .rstd = act->rstd_2, .branch = m->buf.branch, .gamma = p.gamma1,
        .w = p.ln_2_w, .b = p.ln_2_b, .rows = rows, .C = C});
    if (p.mlp_conv) conv_forward(m->stream, layer_conv(m, MLP_CONV, l));
    linear_forward(mm, act->fc, act->mlp_in, w.fc_w, w.fc_b, rows, C, 4 * C);
    gelu_forward(m->stream, act->gelu, act->fc, rows * 4 * C);
    linear_forward(mm, m->buf.branch, act->gelu, w.fc_proj_w, w.fc_proj_b, rows, 4 * C, C);
    NormForward<S> next = next_norm(m, l);
    next.branch = m->buf.branch, next.gamma = p.gamma2;
    if (p.bigram && l + 1 == m->config.n_layer)
        LAUNCH(bigram_forward_kernel, (int)rows, channel_threads(C), 0, m->stream, m->buf.x, model_input(m).inputs,
               model_pairs(m).inputs, p.bigram, C);
    residual_layernorm_forward(m->stream, next);
}

// Backward of the LayerNorm after layer l, and of the residual of the layer's MLP. l = -1: there is no residual.
template <typename S> static void norm_backward(TypedModel<S>* m, ColumnSums* pending, int l) {
    const NormForward<S> norm = next_norm(m, l);
    const bool last = l + 1 == m->config.n_layer;
    const TostParams<float> g = model_params(m, TOST_GRAD, last ? 0 : l + 1);
    float* const dbias = l < 0 ? NULL : model_params(m, TOST_GRAD, l).fc_proj_b;
    layernorm_residual_backward<S>(m->stream, last ? g.ln_f_w : g.ln_1_w, last ? g.ln_f_b : g.ln_1_b, dbias, pending, {
        .dx = m->buf.dx, .dbranch = m->buf.dbranch, .dy = m->buf.scratch_btc, .y = norm.y, .rstd = norm.rstd,
        .w = norm.w, .b = norm.b, .gamma = l < 0 ? NULL : model_params(m, TOST_PARAM, l).gamma2, .accumulate = !last,
        .rows = norm.rows, .C = norm.C, .partial = NULL});
}

// buf.dx: the gradient of the layer's output becomes that of its input. buf.dbranch: the gradient of the output of its
// MLP becomes that of the MLP of the layer below. Parameters: =, or with add +=; not gamma1 and gamma2.
template <typename S> static void layer_backward(TypedModel<S>* m, ColumnSums* pending, int l, bool add) {
    const LayerActivations<S>* act = &m->layer[l];
    const Buffers<S>* buf = &m->buf;
    const TostParams<float> p = model_params(m, TOST_PARAM, l), g = model_params(m, TOST_GRAD, l);
    const TostParams<S> w = model_weights(m, l);
    Tssa<S> tssa = layer_tssa(m, l);
    const int C = m->config.n_embd;
    const size_t rows = chunk_rows(m);
    Matmul* mm = &m->mm;
    linear_backward(mm, buf->scratch_bt4c, g.fc_proj_w, buf->dbranch, act->gelu, w.fc_proj_w, rows, 4 * C, C, add);
    gelu_backward(m->stream, buf->scratch_bt4c, g.fc_b, pending, act->fc, rows, 4 * C);
    linear_backward(mm, p.mlp_conv ? buf->dbranch : buf->scratch_btc, g.fc_w, buf->scratch_bt4c, act->mlp_in,
                    w.fc_w, rows, C, 4 * C, add);
    if (p.mlp_conv) conv_backward(m->stream, g.mlp_conv, pending, layer_conv(m, MLP_CONV, l));
    layernorm_residual_backward<S>(m->stream, g.ln_2_w, g.ln_2_b, g.attn_proj_b, pending, {
        .dx = buf->dx, .dbranch = buf->dbranch, .dy = buf->scratch_btc, .y = act->ln_2,
        .rstd = act->rstd_2, .w = p.ln_2_w, .b = p.ln_2_b, .gamma = p.gamma1, .accumulate = true, .rows = rows,
        .C = C, .partial = NULL});
    linear_backward(mm, buf->scratch_btc, g.attn_proj_w, buf->dbranch, act->y, w.attn_proj_w, rows, C, C, add);
    if (p.memory_scale) {
        delta_rule_backward(m->stream, g.memory_scale, pending, layer_memory(m, l));
        delta_rule_dz(m->stream, layer_memory(m, l));
    }
    tssa_backward(m->stream, tssa);
    if (p.attn_conv) conv_backward(m->stream, g.attn_conv, pending, layer_conv(m, ATTN_CONV, l));
    linear_backward(mm, buf->scratch_btc, g.attn_w, buf->dbranch, act->ln_1, w.attn_w, rows, C, C, add);
    bias_backward(m->stream, g.attn_b, pending, buf->dbranch, rows, C);
    norm_backward(m, pending, l - 1);
    tssa.dtemp = g.temp, tssa.ddenom_bias = g.denom_bias;
    vector_gradients(m->stream, *pending, tssa, add);
}

// Gradients of gamma1 and gamma2 of layer l: =, from those of the Linear before each, when the part's are complete.
template <typename S> static void gammas_backward(TypedModel<S>* m, int l) {
    const TostParams<float> p = model_params(m, TOST_PARAM, l), g = model_params(m, TOST_GRAD, l);
    const TostParams<S> w = model_weights(m, l);
    const int C = m->config.n_embd;
    gamma_backward(m->stream, g.gamma1, p.gamma1, g.attn_proj_w, g.attn_proj_b, w.attn_proj_w, w.attn_proj_b, C, C);
    gamma_backward(m->stream, g.gamma2, p.gamma2, g.fc_proj_w, g.fc_proj_b, w.fc_proj_w, w.fc_proj_b, C, 4 * C);
}

template <typename S> static void clear_sync(TypedModel<S>* m) {
    const size_t flags = m->config.n_layer * tssa_sync_size(m->chunk.B, m->chunk.T);
    CUDA_CHECK(cudaMemsetAsync(m->buf.tssa_sync, 0, flags * sizeof(int), m->stream));
}

// Embedding and the first `layers` layers, with the LayerNorm after them
template <typename S> static void model_forward(TypedModel<S>* m, int layers) {
    const TostParams<float> p = model_params(m, TOST_PARAM, 0);
    const PassInput s = model_input(m);
    clear_sync(m);
    embedding_forward(m->stream, m->buf.x, s.inputs, p.wte, p.wpe, s.header, m->chunk.B, m->chunk.T, m->config.n_embd);
    residual_layernorm_forward(m->stream, next_norm(m, -1));
    for (int l = 0; l < layers; l++) layer_forward(m, l);
}

// The exchange of complete gradients starts after each layer, in the pass that ends a step.
template <typename S> static void model_backward(TypedModel<S>* m, TostEnd end, bool add) {
    const int last = m->config.n_layer - 1, C = m->config.n_embd;
    const TostParams<float> g = model_params(m, TOST_GRAD, last);
    const ColumnSums none = {m->buf.columns, m->buf.embed, 0, {}};   // embed: the buffer after columns
    ColumnSums pending = none;
    clear_sync(m);
    norm_backward(m, &pending, last);
    if (g.bigram) {
        const size_t size = (size_t)(m->config.vocab_size + m->config.bigrams) * C;
        if (!add) CUDA_CHECK(cudaMemsetAsync(g.bigram, 0, size * sizeof(float), m->stream));
        for (const PassInput& s : {model_input(m), model_pairs(m)})
            embedding_backward(m->stream, g.bigram, NULL, m->buf.embed, m->buf.dx, s, add, m->config.block_size,
                               m->chunk.B, m->chunk.T, C);
    }
    for (int l = last; l >= 0; l--) {
        layer_backward(m, &pending, l, add);
        pending = none;
        if (end == TOST_STEP_ENDS) gammas_backward(m, l);
        if (end == TOST_STEP_ENDS) exchange_fork(&m->exchange);
        exchange_gradients(&m->exchange, end, tost_layer_offset(&m->tensors, l));
    }
    embedding_backward(m->stream, g.wte, g.wpe, m->buf.embed, m->buf.dx, model_input(m), add, m->config.block_size,
                       m->chunk.B, m->chunk.T, C);
}

// The classifier over n rows of x, which has a row per target, without gradients
template <typename S> static Classifier<S> model_classifier(const TypedModel<S>* m, const S* x, size_t n) {
    const PassInput s = model_input(m);
    return {.total = m->buf.loss_sum, .loss = m->buf.losses, .logits = (S*)m->buf.logits, .x = x,
            .wte = model_weights(m, 0).wte, .targets = s.targets, .pass = s.header, .rows = n,
            .block = even_block(n, m->logits_rows), .V = m->config.vocab_size, .C = m->config.n_embd};
}

// Begins the input of a pass. Returns the host copy, to be completed and sent.
template <typename S> static PassInput start_pass(TypedModel<S>* m, const TostChunk* chunk, int from, int to) {
    const size_t rows = (size_t)chunk->B * chunk->T, bytes = rows * sizeof(int32_t);
    assert(chunk->B <= m->options.max_batch && chunk->T <= m->options.max_chunk);
    assert(chunk->T <= tost_max_seq(&m->config) - chunk->first);
    const PassInput s = pass_input((int32_t*)staging_begin(&m->staging), rows);
    m->chunk = *chunk;
    m->states = read_state(m, m->buf.before, m->buf.after, from, to);
    m->adjoints = {};
    *s.header = {};
    s.header->first = chunk->first;
    memcpy(s.inputs, chunk->inputs, bytes);
    if (chunk->targets) memcpy(s.targets, chunk->targets, bytes);
    if (m->config.bigrams)
        bigram_rows(pairs_input(s, rows).inputs, m->last.data(), m->options.max_batch, &m->config, chunk, from, to);
    return s;
}

// Copies the input to the device. order: sorts it for embedding_backward first.
template <typename S> static void input_send(TypedModel<S>* m, PassInput s, bool order) {
    const size_t rows = chunk_rows(m);
    const int V = m->config.vocab_size, bigrams = m->config.bigrams;
    const PassInput last = bigrams ? pairs_input(s, rows) : s;
    if (order) embed_order(s, (int)rows, V);
    if (order && bigrams) embed_order(last, (int)rows, V + bigrams);
    const int32_t* end = order ? last.big_first + last.header->n_big + 1
                               : bigrams || !m->chunk.targets ? last.targets : last.order;
    exchange_settle(&m->exchange);
    staging_copy(&m->staging, m->buf.input, (const char*)end - (const char*)s.header, m->stream);
}

// Runs pass() over the chunk of the last start_pass. Chunks of max_chunk tokens have a graph of their own, which passes
// over other lengths, such as that of the last chunk, do not replace.
template <typename Pass> static void run_pass(TostModel* m, int which, Pass pass) {
    const bool whole = m->chunk.T == m->options.max_chunk, states = m->states.start, adjoints = m->adjoints.start;
    const int variant = states + 2 * adjoints + 4 * whole;
    graph_run(&m->graph[which * 8 + variant], m->stream, m->chunk.B, m->chunk.T, pass);
}

template <typename S> static void cuda_forward(TypedModel<S>* m, const TostChunk* chunk, int from, int to) {
    const PassInput s = start_pass(m, chunk, from, to);
    input_send(m, s, false);
    run_pass(m, PASS_FORWARD, [=] { model_forward(m, m->config.n_layer); });
    write_state(m, to, m->buf.after);
}

template <typename S> static void cuda_copy_state(TypedModel<S>* m, int to, int from, int n, int copies) {
    const size_t bytes = state_size(&m->config) * sizeof(double);
    const int most = m->options.max_batch;
    for (int i = 0; i < n; i++) m->last[to * most + i] = m->last[from * most + i / copies];
    for (int l = 0; l < m->config.n_layer; l++)
        for (int i = 0; i < n; i++)
            CUDA_CHECK(cudaMemcpyAsync(model_state(m, to, l, i), model_state(m, from, l, i / copies), bytes,
                                       cudaMemcpyDeviceToDevice, m->stream));
}

// The classifier's backward runs here, because logits exist for a few rows at a time. It leaves the gradient of ln_f in
// scratch_btc.
template <typename S>
static void cuda_train_forward(TypedModel<S>* m, const TostChunk* chunk, int from, float grad_scale) {
    const PassInput s = start_pass(m, chunk, from, TOST_NO_STATE);
    const bool add = !m->grads_stale;
    assert(m->options.training);
    s.header->grad_scale = grad_scale;
    for (size_t row = 0; row < chunk_rows(m); row++) m->loss_count += chunk->targets[row] >= 0;
    input_send(m, s, true);
    run_pass(m, add ? PASS_TRAIN : PASS_TRAIN_FIRST, [=] {
        model_forward(m, m->config.n_layer);
        Classifier<S> classifier = model_classifier(m, m->buf.ln_f, chunk_rows(m));
        classifier.dx = m->buf.scratch_btc, classifier.dwte = model_params(m, TOST_GRAD, 0).wte, classifier.add = add;
        classify(&m->mm, classifier);
    });
}

// To be called before gradients are read or set: clears them if no pass has overwritten them since zero_grad.
static void settle_gradients(TostModel* m) {
    if (!m->grads_stale) return;
    CUDA_CHECK(cudaMemsetAsync(m->array[TOST_GRAD], 0, m->tensors.flat_size * sizeof(float), m->stream));
    m->grads_stale = false;
}

// NCCL's calls are not in a graph.
template <typename S> static void cuda_train_backward(TypedModel<S>* m, int after, int before, TostEnd end) {
    const bool add = !m->grads_stale;
    m->adjoints = read_state(m, m->buf.dafter, m->buf.dbefore, after, before);
    if (m->exchange.comm && end == TOST_STEP_ENDS) model_backward(m, end, add);
    else {
        run_pass(m, add ? PASS_BACKWARD : PASS_BACKWARD_FIRST, [=] { model_backward(m, TOST_MORE, add); });
        for (int l = 0; end != TOST_MORE && l < m->config.n_layer; l++) gammas_backward(m, l);
    }
    write_state(m, before, m->buf.dbefore);
    if (end == TOST_STEP_ENDS) exchange_fork(&m->exchange);
    exchange_gradients(&m->exchange, end, 0);
    m->grads_stale = end == TOST_PART_ENDS;
}

template <typename S> static void cuda_read_loss(double* sum, int64_t* count, TypedModel<S>* m) {
    exchange_settle(&m->exchange);
    copy_to_host(sum, m->buf.loss_sum, 1, m->stream);
    CUDA_CHECK(cudaMemsetAsync(m->buf.loss_sum, 0, sizeof(double), m->stream));
    *count = m->loss_count;
    m->loss_count = 0;
}

// (n,V) float logits of n rows of ln_f, `stride` rows apart, computed in blocks in the logits buffer.
template <typename S> static void copy_logits(float* dst, TypedModel<S>* m, const S* rows, int n, int stride) {
    const int C = m->config.n_embd, V = m->config.vocab_size,
              most = (int)min(m->logits_bytes / (V * sizeof(float)), (size_t)n);
    float* logits = (float*)m->buf.logits;
    const S* wte = model_weights(m, 0).wte;
    for (int i = 0; i < n; i += most) {
        const int some = min(most, n - i);
        Product<S, float> p = dense_product(logits, rows + (size_t)i * stride * C, wte, PRODUCT_NT, some, V, C);
        p.lda = (int64_t)stride * C;
        matmul(&m->mm, p);
        copy_to_host(dst + (size_t)i * V, logits, (size_t)some * V, m->stream);
    }
}

template <typename S> static void cuda_logits(float* dst, TypedModel<S>* m) {
    copy_logits(dst, m, m->buf.ln_f, m->chunk.B * m->chunk.T, 1);
}

template <typename S> static void cuda_last_logits(float* dst, TypedModel<S>* m) {
    copy_logits(dst, m, m->buf.ln_f + (size_t)(m->chunk.T - 1) * m->config.n_embd, m->chunk.B, m->chunk.T);
}

// y[i] = x[order[i]]; rows of C. Minimum traffic per row: 2C + 2C.
template <typename S> __global__ void gather_rows_kernel(S* y, const S* x, const int32_t* order, int C) {
    const S* x_row = x + (size_t)order[blockIdx.x] * C;
    for (int c = threadIdx.x * 4; c < C; c += blockDim.x * 4) {
        float v[4];
        load_part<false>(v, x_row + c, C - c);
        store_part<false>(y + (size_t)blockIdx.x * C + c, v, C - c);
    }
}

// Adds the number of rows that have a target to loss_count, and lists them in order and targets (rows), padded to a
// whole tile of the classifier's product: the padding costs nothing, and fewer shapes need a matmul plan. Returns the
// padded number.
static size_t counted_rows(int32_t* targets, int32_t* order, TostModel* m) {
    const size_t rows = chunk_rows(m);
    size_t counted = 0;
    for (size_t row = 0; row < rows; row++) {
        if (m->chunk.targets[row] < 0) continue;
        targets[counted] = m->chunk.targets[row];
        order[counted++] = (int32_t)row;
    }
    m->loss_count += counted;
    for (; counted < rows && counted % ROW_TILE; counted++) {
        targets[counted] = -1;
        order[counted] = 0;
    }
    return counted;
}

// The rows with a target are copied to layer 0's ln_1, which is no longer needed: the others need no logits.
template <typename S> static void cuda_losses(double* dst, TypedModel<S>* m) {
    const int C = m->config.n_embd;
    const size_t rows = chunk_rows(m);
    const PassInput s = model_input(m);
    int32_t* host = (int32_t*)staging_begin(&m->staging);
    const size_t counted = counted_rows(host, host + rows, m);
    if (counted > 0) {
        S* x = m->layer[0].ln_1;
        staging_copy(&m->staging, s.targets, 2 * rows * sizeof(int32_t), m->stream);   // targets, then order
        LAUNCH((gather_rows_kernel<S>), (int)counted, channel_threads(C), 0, m->stream, x, m->buf.ln_f, s.order, C);
        classify(&m->mm, model_classifier(m, x, counted));
    }
    if (!dst) return;
    float* const losses = (float*)xmalloc(counted * sizeof *losses);
    copy_to_host(losses, m->buf.losses, counted, m->stream);
    for (size_t row = 0, i = 0; row < rows; row++) dst[row] = m->chunk.targets[row] < 0 ? 0.0 : losses[i++];
    free(losses);
}

// The input x of a layer is not kept: another forward pass over the layers before it computes it again.
template <typename S> static void cuda_activation(float* dst, TypedModel<S>* m, TostActivation what, int layer) {
    const size_t rows = chunk_rows(m), C = m->config.n_embd, NH = m->config.n_head;
    assert(m->options.training && layer >= 0 && layer < m->config.n_layer + (what == TOST_X));
    if (what == TOST_X) model_forward(m, layer);
    if (what == TOST_X) copy_to_host(dst, m->buf.x, rows * C, m->stream);
    else if (what == TOST_Z) copy_to_host(dst, m->layer[layer].z, rows * C, m->stream);
    else copy_to_host(dst, m->layer[layer].pi, rows * NH, m->stream);
}

// ---------------------------------------------------------------------------------------------
// Gradients and AdamW

template <typename S> static void cuda_zero_grad(TypedModel<S>* m) {
    exchange_join(&m->exchange);
    exchange_begin(&m->exchange);
    m->grads_stale = true;
}

template <typename S> static double cuda_grad_norm(TypedModel<S>* m) {
    settle_gradients(m);
    exchange_fork(&m->exchange);
    return exchange_norm(&m->exchange);
}

struct AdamWFactors { float keep[3], scale, b1, b2, c1, c2, rate, root, eps; };   // keep: by TostDecay

static AdamWFactors adamw_factors(const TostUpdate* update) {
    const double b1 = update->beta1, b2 = update->beta2, step = (double)update->step;
    const double decay = update->lr * update->weight_decay, *factor = tost_decay_factors;
    return {.keep = {1.0f, (float)(1.0 - factor[1] * decay), (float)(1.0 - factor[2] * decay)},
            .scale = (float)update->clip, .b1 = (float)b1, .b2 = (float)b2, .c1 = (float)(1.0 - b1),
            .c2 = (float)(1.0 - b2), .rate = (float)(update->lr / (1.0 - pow(b1, step))),
            .root = (float)(1.0 / sqrt(1.0 - pow(b2, step))), .eps = (float)update->eps};
}

// p = p (1 - lr wd);   m = β1 m + (1-β1) g;   v = β2 v + (1-β2) g²;   p = p - lr (m/(1-β1^s)) / (√(v/(1-β2^s)) + eps)
// weights: the parameters' copy of type S, written in the same pass; NULL if there is none. decays: a TostDecay per
// group of DECAY_GROUP elements. Minimum traffic per element: 16 bytes read, 12 + 2 written.
template <typename S>
__global__ void adamw_kernel(float* param, float* moment, float* variance, S* weights, const float* grad,
                             const uint8_t* decays, size_t n, AdamWFactors factors) {
    const size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (i >= n) return;
    float p[4], m[4], v[4], g[4];
    load_pack<4>(p, param + i);
    load_pack<4>(m, moment + i);
    load_pack<4>(v, variance + i);
    load_pack<4>(g, grad + i);
    const float keep = factors.keep[decays[i / DECAY_GROUP]];
    UNROLL for (int j = 0; j < 4; j++) {
        g[j] *= factors.scale;
        m[j] = factors.b1 * m[j] + factors.c1 * g[j];
        v[j] = factors.b2 * v[j] + factors.c2 * g[j] * g[j];
        p[j] = p[j] * keep - factors.rate * m[j] / (sqrtf(v[j]) * factors.root + factors.eps);
    }
    store_pack<4>(param + i, p);
    store_pack<4>(moment + i, m);
    store_pack<4>(variance + i, v);
    if (weights) store_pack<4>(weights + i, p);
}

// ---------------------------------------------------------------------------------------------
// Row-wise RMSProp, for the table of bigrams with --optimizer muon; the formulas are in train_gpt_tost.c.

// One block per row. Minimum traffic per row: 8C read, 4C written.
__global__ void rowwise_kernel(float* param, float* variance, const float* grad, int C, float lr,
                               AdamWFactors factors) {   // param, grad (rows,C); variance (rows)
    SHARED(float, shared, WARP);
    const size_t row = blockIdx.x;
    const float before = factors.b2 * variance[row];
    float squares[1] = {}, p[4], g[4];
    for (int c = threadIdx.x * 4; c < C; c += blockDim.x * 4) {
        load_part<false>(g, grad + row * C + c, C - c);
        UNROLL for (int j = 0; j < 4; j++) squares[0] += (g[j] * factors.scale) * (g[j] * factors.scale);
    }
    row_sum(squares, shared);
    const float v = before + factors.c2 * squares[0] / C;
    const float rate = lr / (sqrtf(v) * factors.root + factors.eps);
    for (int c = threadIdx.x * 4; c < C; c += blockDim.x * 4) {
        load_part<false>(p, param + row * C + c, C - c);
        load_part<false>(g, grad + row * C + c, C - c);
        UNROLL for (int j = 0; j < 4; j++) p[j] = p[j] * factors.keep[TOST_DECAY_4] - rate * (g[j] * factors.scale);
        store_part<false>(param + row * C + c, p, C - c);
    }
    __syncthreads();   // every thread has read variance[row]; in a block of one warp, row_sum has no barrier
    if (threadIdx.x == 0) variance[row] = v;
}

// ---------------------------------------------------------------------------------------------
// Muon: the update of a weight matrix is the orthogonal matrix nearest to its momentum; the formulas are in
// train_gpt_tost.c. The matrices of a row of the table are orthogonalized for all layers at once.

// u =, in place: holds the gradient on entry. rest: 1 - μ. Minimum traffic per element: 8 bytes read, 8 written.
__global__ void muon_momentum_kernel(float* u, float* moment, size_t n, float mu, float rest, float clip) {
    const size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (i >= n) return;
    float g[4], m[4];
    load_pack<4>(g, u + i);
    load_pack<4>(m, moment + i);
    UNROLL for (int j = 0; j < 4; j++) {
        g[j] *= clip;
        m[j] = mu * m[j] + rest * g[j];
        g[j] = rest * g[j] + mu * m[j];
    }
    store_pack<4>(u + i, g);
    store_pack<4>(moment + i, m);
}

// A matrix (rows,columns) of each of `count` layers. In elements: size of a matrix; stride from one matrix to the next
// in a flat array; step from one to the next in the buffers.
struct MuonMatrices { int count, rows, columns; size_t size, stride, step; };

// x = u / ‖u‖ for each matrix. Minimum traffic per element: 4 bytes read, 4 written.
__global__ void __launch_bounds__(SQUARES_THREADS)
    muon_normalize_kernel(float* x, const double* sums, const float* u, MuonMatrices args) {
    SHARED(double, shared, SQUARES_THREADS);
    double sum = 0.0;
    for (unsigned unit = threadIdx.x; unit < gridDim.x; unit += SQUARES_THREADS)
        sum += sums[blockIdx.y * gridDim.x + unit];
    sum = block_tree_sum(sum, shared);
    const float scale = (float)(1.0 / fmax(sqrt(sum), TOST_MUON_EPS));
    const size_t start = (size_t)blockIdx.x * SLICE_UNIT, end = min(start + SLICE_UNIT, args.size);
    UNROLL_BY(4) for (size_t i = start + threadIdx.x * 4; i < end; i += SQUARES_THREADS * 4) {
        float v[4];
        load_pack<4>(v, u + blockIdx.y * args.stride + i);
        UNROLL for (int j = 0; j < 4; j++) v[j] *= scale;
        store_pack<4>(x + blockIdx.y * args.step + i, v);
    }
}

// y = x, rounded to S. Minimum traffic per element: 4 bytes read, 2 written.
template <typename S> __global__ void convert_kernel(S* y, const float* x, size_t n) {
    const size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (i >= n) return;
    const int inside = (int)min(n - i, (size_t)4);
    float v[4];
    load_part<false>(v, x + i, inside);
    store_part<false>(y + i, v, inside);
}

template <typename S> static void convert(cudaStream_t stream, S* y, const float* x, size_t n) {
    LAUNCH((convert_kernel<S>), div_up(n, 4 * 256), 256, 0, stream, y, x, n);
}

// Sets x (count,rows,columns), the buffer muon_x. u: in a flat array. A, polynomial (count,side,side), in the buffers
// muon_gram and muon_poly; with more rows than columns, A = xᵀ x, and the polynomial is on the right of x. Only the
// operands of products are rounded: rounding x would give it full rank, and each step multiplies its small singular
// values by 3.4.
template <typename S>
static void orthogonalize(Matmul* mm, const Buffers<S>& buf, const float* u, const MuonMatrices& args) {
    const bool tall = args.rows > args.columns;
    const int rows = args.rows, columns = args.columns, side = min(rows, columns), length = max(rows, columns);
    const int64_t n = args.step, square = padded_size((size_t)side * side);
    const dim3 blocks((unsigned)slice_units(args.size), args.count);
    S *x = buf.muon_rounded, *A = buf.muon_gram, *polynomial = buf.muon_poly;
    LAUNCH(squares_kernel, blocks, SQUARES_THREADS, 0, mm->stream, buf.muon_squares, u, args.size, args.stride);
    LAUNCH(muon_normalize_kernel, blocks, SQUARES_THREADS, 0, mm->stream, buf.muon_x, buf.muon_squares, u, args);
    for (int step = 0; step < TOST_MUON_STEPS; step++) {
        convert(mm->stream, x, buf.muon_x, (size_t)(args.count * n));
        Product<S, S> gram = dense_product(A, x, x, tall ? PRODUCT_TN : PRODUCT_NT, side, side, length);
        gram.count = args.count, gram.c_step = square, gram.a_step = gram.b_step = n;
        matmul(mm, gram);
        Product<S, S> sum = dense_product(polynomial, A, A, PRODUCT_NN, side, side, side);
        sum.alpha = (float)TOST_MUON_C, sum.beta = (float)TOST_MUON_B, sum.source = A;
        sum.count = args.count, sum.c_step = sum.a_step = sum.b_step = square;
        matmul(mm, sum);
        Product<S, float> next = dense_product(buf.muon_x, tall ? x : polynomial, tall ? polynomial : x, PRODUCT_NN,
                                               rows, columns, side);
        next.beta = (float)TOST_MUON_A;
        next.count = args.count, next.c_step = n, next.a_step = tall ? n : square, next.b_step = tall ? square : n;
        matmul(mm, next);
    }
}

// p = p keep - rate x, in flat arrays. weights: see adamw_kernel. Minimum traffic per element: 8 bytes read, 6 written.
template <typename S>
__global__ void muon_update_kernel(float* param, S* weights, const float* x, MuonMatrices all, float keep, float rate) {
    const size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * 4, at = blockIdx.y * all.stride + i;
    if (i >= all.size) return;
    float p[4], v[4];
    load_pack<4>(p, param + at);
    load_part<false>(v, x + blockIdx.y * all.step + i, (int)min(all.size - i, (size_t)4));   // 0 in the gap after it
    UNROLL for (int j = 0; j < 4; j++) p[j] = p[j] * keep - rate * v[j];
    store_pack<4>(param + at, p);
    if (weights) store_pack<4>(weights + at, p);
}

// ---------------------------------------------------------------------------------------------
// The update. For its slices, each rank runs AdamW or, on Muon's matrices, computes u. With Muon, one exchange, in the
// array of gradients, sends u, the gradient of the table of bigrams and the parameters of AdamW to all ranks. Then
// every rank updates all matrices and the table.

template <typename S> static void update_owned(TostModel* model, const TostUpdate* update, const Owned* own) {
    TypedModel<S>* m = static_cast<TypedModel<S>*>(model);
    float *p = m->array[TOST_PARAM] + own->flat_offset, *grad = m->array[TOST_GRAD] + own->flat_offset;
    float* moment = m->array[TOST_M] + own->m_offset;
    const int blocks = div_up(own->size, 4 * 256);
    if (own->optimizer == TOST_MUON)
        LAUNCH(muon_momentum_kernel, blocks, 256, 0, m->stream, grad, moment, own->size, (float)update->momentum,
               (float)(1.0 - update->momentum), (float)update->clip);
    if (own->optimizer != TOST_ADAMW) return;
    LAUNCH((adamw_kernel<S>), blocks, 256, 0, m->stream, p, moment, m->array[TOST_V] + own->v_offset,
           weights_copy(m, own->flat_offset), grad, m->buf.decays + own->flat_offset / DECAY_GROUP, own->size,
           adamw_factors(update));
    if (m->options.optimizer == TOST_MUON && m->exchange.ranks > 1)
        CUDA_CHECK(cudaMemcpyAsync(grad, p, own->size * sizeof *p, cudaMemcpyDeviceToDevice, m->stream));
}

// Finishes the update of a tensor after the exchange. The call for layer 0 updates a matrix of Muon in all layers.
template <typename S> static void update_whole(TypedModel<S>* m, const TostUpdate* update, const TostTensor* t) {
    float *p = m->array[TOST_PARAM] + t->offset, *u = m->array[TOST_GRAD] + t->offset;
    const int layers = m->config.n_layer, rows = t->shape[0], columns = t->shape[1];
    if (t->optimizer == TOST_ROWWISE)
        LAUNCH(rowwise_kernel, rows, channel_threads(columns), 0, m->stream, p,
               m->array[TOST_V] + m->exchange.row_v, u, columns, (float)update->lr, adamw_factors(update));
    else if (t->optimizer == TOST_ADAMW && m->exchange.ranks > 1)
        CUDA_CHECK(cudaMemcpyAsync(p, u, t->size * sizeof *p, cudaMemcpyDeviceToDevice, m->stream));
    if (t->optimizer != TOST_MUON || t->layer > 0) return;
    const MuonMatrices all = {layers, rows, columns, t->size, m->tensors.row_stride[t->row], padded_size(t->size)};
    orthogonalize(&m->mm, m->buf, u, all);
    const double scale = TOST_MUON_SCALE * sqrt(max(rows, columns));
    LAUNCH((muon_update_kernel<S>), dim3(div_up(t->size, 4 * 256), layers), 256, 0, m->stream, p,
           weights_copy(m, t->offset), m->buf.muon_x, all, (float)(1.0 - update->lr * update->weight_decay),
           (float)(update->lr * scale));
}

// Copies parameters to the weights, if these are a copy.
template <typename S> static void convert_weights(TypedModel<S>* m, size_t at, size_t n) {
    if (weights_copy(m, at)) convert(m->stream, m->weights + at, m->array[TOST_PARAM] + at, n);
}

template <typename S> static void cuda_update(TypedModel<S>* m, const TostUpdate* update) {
    const bool muon = m->options.optimizer == TOST_MUON;
    settle_gradients(m);
    exchange_join(&m->exchange);
    exchange_update(&m->exchange, m->array[muon ? TOST_GRAD : TOST_PARAM], update_owned<S>, m, update);
    exchange_join(&m->exchange);
    for (int i = 0; muon && i < m->tensors.count; i++) update_whole(m, update, &m->tensors.tensor[i]);
    if (m->exchange.comm) convert_weights(m, 0, m->tensors.flat_size);
}

// ---------------------------------------------------------------------------------------------
// The engine

// TYPED(f): the interface's function that calls f with its TostModel* cast to the TypedModel of the model's dtype.
template <typename S, typename T> static T typed(T x) { return x; }
template <typename S> static TypedModel<S>* typed(TostModel* m) { return static_cast<TypedModel<S>*>(m); }
template <typename T> static bool is_bf16(T) { return false; }
static bool is_bf16(TostModel* m) { return m->options.dtype == TOST_BF16; }
#define TYPED(f) [](auto... a) { return (is_bf16(a) || ...) ? f(typed<bf16>(a)...) : f(typed<float>(a)...); }

static TostModel* cuda_new(const TostConfig* c, const TostEngineOptions* o) {
    return o->dtype == TOST_BF16 ? (TostModel*)model_new<bf16>(c, o) : model_new<float>(c, o);
}

static void cuda_destroy(TostModel* m) { TYPED(model_free)(m); }

static size_t cuda_memory(const TostConfig* c, const TostEngineOptions* o) {
    TostModel* m = cuda_new(c, o);
    const size_t bytes = TYPED(layout_buffers)(m, (char*)NULL);
    cuda_destroy(m);
    return bytes;
}

// True if the blocks and shared memory of the kernels can hold a row.
static bool fits_kernels(const TostConfig* c, bool training, TostError* err) {
    if (c->n_embd > NORM_CHANNELS)
        return tost_error(err, "--channels %d: the CUDA engine takes up to %d", c->n_embd, NORM_CHANNELS);
    if (max(tssa_forward_shared(c->n_embd, c->n_head), tssa_backward_shared(c->n_embd, c->n_head, 5)) >
        MAX_ALLOWED_SHARED)
        return tost_error(err, "--heads %d: %d heads of %d channels do not fit in the shared memory of the CUDA "
                          "engine; give fewer heads or channels", c->n_head, c->n_head, c->n_embd / c->n_head);
    if (c->memory && delta_rule_shared(c->n_embd / c->n_head, TILE, training) > MAX_ALLOWED_SHARED)
        return tost_error(err, "--memory 1: heads of %d channels do not fit in the shared memory of the CUDA engine; "
                          "train with more --heads, or use train_gpt_tost", c->n_embd / c->n_head);
    return true;
}

template <typename S> static void put_decays(TypedModel<S>* m) {
    for (int i = 0; i < m->tensors.count; i++) {
        const TostTensor* t = &m->tensors.tensor[i];
        CUDA_CHECK(cudaMemsetAsync(m->buf.decays + t->offset / DECAY_GROUP, t->decay,
                                   padded_size(t->size) / DECAY_GROUP, m->stream));
    }
}

// Allocates and initialises the device's side of a model from model_new.
template <typename S> static bool model_open(TypedModel<S>* m, TostError* err) {
    const size_t rows = (size_t)m->options.max_batch * m->options.max_chunk;
    m->arena = device_alloc(&m->options, layout_buffers(m, NULL), err);
    if (!comm_agree(m->exchange.comm, m->arena != NULL, err)) return false;
    layout_buffers(m, m->arena);
    CUDA_CHECK(cudaStreamCreateWithFlags(&m->stream, cudaStreamNonBlocking));
    m->exchange.compute = m->stream;
    matmul_init(&m->mm, m->stream, m->buf.workspace, m->options.dtype == TOST_TF32);
    staging_init(&m->staging, (m->config.bigrams ? 2 : 1) * pass_input_size(rows) * sizeof(int32_t));
    m->last.resize(m->options.states * m->options.max_batch);
    for (int s = 0; s < (m->options.training ? TOST_ARRAYS : 1); s++)
        CUDA_CHECK(cudaMemsetAsync(m->array[s], 0, exchange_elements(&m->exchange, (TostArray)s) * sizeof(float),
                                   m->stream));
    if (weights_copy(m, 0)) CUDA_CHECK(cudaMemsetAsync(m->weights, 0, m->tensors.flat_size * sizeof(S), m->stream));
    CUDA_CHECK(cudaMemsetAsync(m->buf.loss_sum, 0, sizeof(double), m->stream));
    if (!m->options.training) return true;
    put_decays(m);
    return exchange_open(&m->exchange, err);
}

// Collective if it trains with other ranks: fails on all of them if it does on one.
static TostModel* cuda_create(const TostConfig* c, const TostEngineOptions* o, TostError* err) {
    cudaDeviceProp prop;
    const bool ok = fits_kernels(c, o->training, err)
                    && device_open(&prop, o->comm ? o->comm->place.local_rank : 0, err);
    if (!comm_agree(o->training ? o->comm : NULL, ok, err)) return NULL;
    TostModel* m = cuda_new(c, o);
    if (TYPED(model_open)(m, err)) return m;
    cuda_destroy(m);
    return NULL;
}

static double cuda_peak_flops(const TostModel* m) {
    cudaDeviceProp prop;
    int device;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaGetDeviceProperties(&prop, device));
    return flops_peak_of(prop.name, prop.multiProcessorCount, m->options.dtype);
}

template <typename S> static void cuda_put(TypedModel<S>* m, TostArray array, const TostTensor* t, const float* src) {
    exchange_settle(&m->exchange);
    if (array == TOST_GRAD) settle_gradients(m);
    if (array < TOST_M) device_from_host(&m->exchange, m->array[array] + t->offset, src, t->size * sizeof *src);
    else exchange_put(&m->exchange, array, m->array[array], t, src);
    if (array == TOST_PARAM) convert_weights(m, t->offset, t->size);
    CUDA_CHECK(cudaStreamSynchronize(m->stream));
}

static void cuda_get(float* dst, const TostModel* model, TostArray array, const TostTensor* t) {
    TostModel* m = const_cast<TostModel*>(model);   // its observable state does not change
    exchange_settle(&m->exchange);
    if (array == TOST_GRAD) settle_gradients(m);
    if (array == TOST_PARAM) copy_to_host(dst, m->array[array] + t->offset, t->size, m->stream);
    else exchange_collect(dst, &m->exchange, array, m->array[array], t);
}

#ifndef TOST_NO_ENGINE
extern "C" const TostEngine tost_cuda_engine = {
    .name = "cuda",
    .usable_memory = device_usable_memory,
    .default_dtype = [](bool) { return TOST_BF16; },
    .supports = [](TostDtype dtype) { return dtype >= TOST_FP32 && dtype <= TOST_BF16; },
    .describe = device_describe,
    .memory = cuda_memory,
    .create = cuda_create,
    .destroy = cuda_destroy,
    .peak_flops = cuda_peak_flops,
    .put = TYPED(cuda_put),
    .get = cuda_get,
    .forward = TYPED(cuda_forward),
    .copy_state = TYPED(cuda_copy_state),
    .logits = TYPED(cuda_logits),
    .last_logits = TYPED(cuda_last_logits),
    .losses = TYPED(cuda_losses),
    .activation = TYPED(cuda_activation),
    .train_forward = TYPED(cuda_train_forward),
    .train_backward = TYPED(cuda_train_backward),
    .read_loss = TYPED(cuda_read_loss),
    .zero_grad = TYPED(cuda_zero_grad),
    .grad_norm = TYPED(cuda_grad_norm),
    .update = TYPED(cuda_update),
    .open_comm = nccl_open_comm,
};
#endif

#ifndef TOST_NO_MAIN
int main(int argc, char** argv) { return tost_main(argc, argv, &tost_cuda_engine); }
#endif
