// train_gpt_tost.cu: the Token Statistics Transformer (Wu et al., ICLR 2025, arXiv 2412.17810) on a GPU: the
// model of train_gpt_tost.c, its functions in its order and under its names, each kernel beside its launcher.
//
// Precision. Matmul operands have one storage type S, float (fp32, tf32) or bf16, by which the kernels are
// templates. Always float: the residual stream x and its gradient, LayerNorm's statistics, TSSA's running
// sums, u and Π, softmax and loss, gradients of parameters, master weights and moments. TSSA's scans over
// chunks, the sum of the losses and that of all gradients' squares are double.
//
// Determinism. Every sum has a fixed order: the same run gives the same bits. No floating-point atomics.
//
// Sizes: B sequences, T tokens each, C channels, NH heads of HS = C/NH channels, V vocabulary, rows = B·T.
// Arrays are dense and row-major; outputs come first, then saved tensors, inputs (const), sizes. Each
// backward says of each gradient whether it is overwritten (=) or accumulated (+=). Traffic is counted at
// each kernel in bytes a row, for bf16 (S = 2 bytes); the fewest read each input once and write each output
// once.

#include <assert.h>
#include <math.h>
#include <vector>

#include "tost/cuda_common.cuh"

extern "C" {
#include "tost/commands.h"
#include "tost/engine.h"
}

extern "C" const TostEngine tost_cuda_engine;

// Partial sums a column: rows are dealt to so many blocks, 4 a multiprocessor of an H100.
constexpr int COLUMN_BLOCKS = 528;

// What changes from call to call stands in device memory, so that a captured graph serves every call of its
// shape.
struct StepHeader {
    int32_t first;                   // position of the first token
    float   grad_scale;
    int32_t n_segments, n_big;       // of embedding_backward
    int32_t unused[28];
};

static_assert(sizeof(StepHeader) == 128, "a step's input follows its header, aligned");

static inline int div_up(size_t n, size_t by) { return (int)((n + by - 1) / by); }

// ---------------------------------------------------------------------------------------------
// Column sums, the second of two stages: out[c] += Σ of the partial sums of all blocks, in a fixed order

struct ColumnSums { float* out[4]; };   // arrays (columns); NULL: not wanted

// partial (arrays,blocks,columns). A block owns 32 columns of one array; its warps take every 16th row; then
// a fixed tree.
__global__ void column_sum_kernel(ColumnSums sums, const float* partial, int blocks, int columns) {
    __shared__ float shared[16][WARP + 1];
    float* out = sums.out[blockIdx.y];
    const int c = blockIdx.x * WARP + threadIdx.x;
    const float* partial_c = partial + (size_t)blockIdx.y * blocks * columns + c;
    float sum = 0.0f;
    if (out && c < columns) {
#pragma unroll 8
        for (int i = threadIdx.y; i < blocks; i += 16) sum += partial_c[(size_t)i * columns];
    }
    shared[threadIdx.y][threadIdx.x] = sum;
    for (int by = 8; by > 0; by /= 2) {
        __syncthreads();
        if ((int)threadIdx.y < by) shared[threadIdx.y][threadIdx.x] += shared[threadIdx.y + by][threadIdx.x];
    }
    if (threadIdx.y == 0 && out && c < columns) out[c] += shared[0][threadIdx.x];
}

static void column_sum(cudaStream_t stream, ColumnSums sums, int arrays, const float* partial, int blocks,
                       int columns) {
    LAUNCH(column_sum_kernel, dim3(div_up(columns, WARP), arrays), dim3(WARP, 16), 0, stream, sums, partial,
           blocks, columns);
}

// ---------------------------------------------------------------------------------------------
// Embedding:  x[b,t] = wte[token[b,t]] + wpe[first + t]

// Fewest bytes a row: 4C (wte) + 4C (x); wpe comes from L2. One block a row, threads over channels.
template <int VEC>
__global__ void embedding_forward_kernel(float* x, const int32_t* tokens, const float* wte, const float* wpe,
                                         const StepHeader* step, int T, int C) {
    const size_t row = blockIdx.x;
    const float* token_c = wte + (size_t)tokens[row] * C;
    const float* place_c = wpe + ((size_t)step->first + row % T) * C;
    for (int c = threadIdx.x * VEC; c < C; c += blockDim.x * VEC) {
        float a[VEC], b[VEC];
        load_pack<VEC>(a, token_c + c);
        load_pack<VEC>(b, place_c + c);
#pragma unroll
        for (int i = 0; i < VEC; i++) a[i] += b[i];
        store_pack<VEC>(x + row * C + c, a);
    }
}

// Threads over C channels, VEC a thread.
static int channel_threads(int C, int vec) { return min(256, div_up(div_up(C, vec), WARP) * WARP); }

static void embedding_forward(cudaStream_t stream, float* x, const int32_t* tokens, const float* wte,
                              const float* wpe, const StepHeader* step, int B, int T,
                              int C) {  // x (B,T,C); tokens (B,T); wte (V,C); wpe (BLOCK,C)
    const int rows = B * T;
    if (C % 4 == 0)
        LAUNCH((embedding_forward_kernel<4>), rows, channel_threads(C, 4), 0, stream, x, tokens, wte, wpe,
               step, T, C);
    else
        LAUNCH((embedding_forward_kernel<1>), rows, channel_threads(C, 1), 0, stream, x, tokens, wte, wpe,
               step, T, C);
}

// The rows of each token, made on the host as the tokens come in: `order` lists rows sorted by token, then
// row. A segment is up to EMBED_SEGMENT of them, of one token. Tokens of one segment go straight to dwte;
// those of more, the big ones, by way of a partial sum a segment.
constexpr int EMBED_SEGMENT = 64;

struct EmbedOrder {
    // (rows), (segments+1), (segments): token, or -1 - place of the partial sum
    const int32_t *order, *start, *dest;
    const int32_t *big_token, *big_first;  // (big), (big+1): first partial sum
};

// Σ of dx over a segment's rows, in order. Fewest bytes a row: 4C (dx), and 8C a token (dwte). Blocks loop
// over segments.
template <int VEC>
__global__ void embedding_segment_kernel(float* dwte, float* partial, const float* dx, EmbedOrder e,
                                         const StepHeader* step, int C) {
    for (int segment = blockIdx.x; segment < step->n_segments; segment += gridDim.x) {
        const int begin = e.start[segment], end = e.start[segment + 1], dest = e.dest[segment];
        for (int c = threadIdx.x * VEC; c < C; c += blockDim.x * VEC) {
            float sum[VEC] = {}, part[VEC];
#pragma unroll 4
            for (int i = begin; i < end; i++) {
                load_pack<VEC>(part, dx + (size_t)e.order[i] * C + c);
#pragma unroll
                for (int j = 0; j < VEC; j++) sum[j] += part[j];
            }
            float* out = dest >= 0 ? dwte + (size_t)dest * C + c : partial + (size_t)(-1 - dest) * C + c;
            if (dest >= 0) {
                load_pack<VEC>(part, out);
#pragma unroll
                for (int j = 0; j < VEC; j++) sum[j] += part[j];
            }
            store_pack<VEC>(out, sum);
        }
    }
}

// dwte of a big token += its partial sums, in order.
__global__ void embedding_big_kernel(float* dwte, const float* partial, EmbedOrder e, const StepHeader* step,
                                     int C) {
    for (int big = blockIdx.x; big < step->n_big; big += gridDim.x) {   // mutant: big_tokens_once
        for (int c = threadIdx.x; c < C; c += blockDim.x) {
            float sum = 0.0f;
            for (int i = e.big_first[big]; i < e.big_first[big + 1]; i++)   // mutant: segment_without_its_end
                sum += partial[(size_t)i * C + c];
            dwte[(size_t)e.big_token[big] * C + c] += sum;
        }
    }
}

// dwpe[t] += Σ_b dx[b,t]. One block a t. Fewest bytes a row: 4C.
template <int VEC> __global__ void embedding_place_kernel(float* dwpe, const float* dx, int B, int T, int C) {
    const size_t t = blockIdx.x;
    for (int c = threadIdx.x * VEC; c < C; c += blockDim.x * VEC) {
        float sum[VEC], part[VEC];
        load_pack<VEC>(sum, dwpe + t * C + c);
#pragma unroll 4
        for (int b = 0; b < B; b++) {
            load_pack<VEC>(part, dx + ((size_t)b * T + t) * C + c);
#pragma unroll
            for (int j = 0; j < VEC; j++) sum[j] += part[j];
        }
        store_pack<VEC>(dwpe + t * C + c, sum);
    }
}

// dwte, dwpe +=
static void embedding_backward(cudaStream_t stream, float* dwte, float* dwpe, float* partial, const float* dx,
                               EmbedOrder e, const StepHeader* step, int B, int T, int C) {
    const int rows = B * T, blocks = min(rows, 4096), big_blocks = min(rows / EMBED_SEGMENT + 1, 1024);
    if (C % 4 == 0) {
        LAUNCH((embedding_segment_kernel<4>), blocks, channel_threads(C, 4), 0, stream, dwte, partial, dx, e,
               step, C);
        LAUNCH((embedding_place_kernel<4>), T, channel_threads(C, 4), 0, stream, dwpe, dx, B, T, C);
    } else {
        LAUNCH((embedding_segment_kernel<1>), blocks, channel_threads(C, 1), 0, stream, dwte, partial, dx, e,
               step, C);
        LAUNCH((embedding_place_kernel<1>), T, channel_threads(C, 1), 0, stream, dwpe, dx, B, T, C);
    }
    LAUNCH(embedding_big_kernel, big_blocks, channel_threads(C, 1), 0, stream, dwte, partial, e, step, C);
}

// ---------------------------------------------------------------------------------------------
// LayerNorm and the residual with LayerScale before it:
//     x_out = x + gamma · branch,   y = (x_out - mean) · rstd · w + b,   rstd = 1/√(variance + 1e-5)
//
// A thread takes PACKS packs of VEC neighbouring channels of a row, which stay in registers between the sums:
// every byte is moved once. Forward a row is a warp's, or a block's where it is longer than a warp's registers or
// C is no multiple of 4; backward a block's, whose threads keep the same channels from row to row for the sums
// over rows.

constexpr int NORM_THREADS = 512;      // most a block: channels up to NORM_THREADS · PACKS · VEC
constexpr int NORM_WARPS = 8;          // rows a block, where a row is a warp's
constexpr int NORM_ROWS = 2;           // rows at once, backward, where a row is a pack a thread

// branch NULL: x_out = x, not written. Fewest bytes a row: 4C x + 2C branch + 4C x_out + 2C y = 12C, those moved.
template <typename S, int VEC, int PACKS, bool WARP_ROW>
__global__ void __launch_bounds__(WARP_ROW ? NORM_WARPS * WARP : NORM_THREADS)
    residual_layernorm_forward_kernel(float* __restrict__ x_out, S* __restrict__ y, float* mean, float* rstd,
                                      const float* __restrict__ x, const S* __restrict__ branch,
                                      const float* __restrict__ gamma, const float* __restrict__ w,
                                      const float* __restrict__ b, size_t rows, int C) {
    __shared__ float shared[WARP_ROW ? 1 : WARP];
    const size_t row = (size_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    const int stride = VEC * (WARP_ROW ? WARP : (int)blockDim.x), c0 = threadIdx.x * VEC;
    float v[PACKS][VEC] = {}, add[PACKS][VEC], sum[1] = {}, squares[1] = {};
#pragma unroll
    for (int p = 0; p < PACKS; p++) {   // all that is to be read is asked for at once
        const int c = c0 + p * stride;
        if (c >= C) continue;
        load_pack<VEC>(v[p], x + row * C + c);
        if (branch) load_pack<VEC>(add[p], branch + row * C + c);
    }
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        const int c = c0 + p * stride;
        if (c >= C) continue;
        if (branch) {
            float scale[VEC];
            load_pack<VEC>(scale, gamma + c);
#pragma unroll
            for (int i = 0; i < VEC; i++) v[p][i] += scale[i] * add[p][i];
            store_pack<VEC>(x_out + row * C + c, v[p]);
        }
#pragma unroll
        for (int i = 0; i < VEC; i++) sum[0] += v[p][i];
    }
    row_sum<WARP_ROW>(sum, shared);
    const float inverse_C = 1.0f / C, mean_row = sum[0] * inverse_C;
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        if (c0 + p * stride >= C) continue;
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            v[p][i] -= mean_row;
            squares[0] += v[p][i] * v[p][i];
        }
    }
    row_sum<WARP_ROW>(squares, shared);
    const float variance = squares[0] * inverse_C + (float)TOST_LN_EPS;
    const float scale = rsqrtf(variance) + 0.0f * variance;   // an infinite one shows as NaN, not as y = b
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        const int c = c0 + p * stride;
        if (c >= C) continue;
        float w_c[VEC], b_c[VEC] = {};
        load_pack<VEC>(w_c, w + c);
        if (b) load_pack<VEC>(b_c, b + c);
#pragma unroll
        for (int i = 0; i < VEC; i++) v[p][i] = v[p][i] * scale * w_c[i] + b_c[i];
        store_pack<VEC>(y + row * C + c, v[p]);
    }
    if (threadIdx.x == 0) mean[row] = mean_row;
    if (threadIdx.x == 0) rstd[row] = scale;
}

static int norm_threads(int C, int vec, int packs) { return div_up(div_up(C, vec * packs), WARP) * WARP; }

template <typename S>
static void
residual_layernorm_forward(cudaStream_t stream, float* x_out, S* y, float* mean, float* rstd, const float* x,
                           const S* branch, const float* gamma, const float* w, const float* b, size_t rows,
                           int C) {  // x_out, y, x, branch (rows,C); mean, rstd (rows); gamma, w, b (C)
    const dim3 warps(WARP, NORM_WARPS);
    if (C % 4 == 0 && C <= 4 * WARP * 8)
        LAUNCH((residual_layernorm_forward_kernel<S, 4, 8, true>), div_up(rows, NORM_WARPS), warps, 0, stream,
               x_out, y, mean, rstd, x, branch, gamma, w, b, rows, C);
    else if (C % 4 == 0 && C <= 4 * WARP * 16)
        LAUNCH((residual_layernorm_forward_kernel<S, 4, 16, true>), div_up(rows, NORM_WARPS), warps, 0, stream,
               x_out, y, mean, rstd, x, branch, gamma, w, b, rows, C);
    else if (C % 4 == 0)
        LAUNCH((residual_layernorm_forward_kernel<S, 4, 3, false>), (int)rows, norm_threads(C, 4, 3), 0, stream,
               x_out, y, mean, rstd, x, branch, gamma, w, b, rows, C);
    else
        LAUNCH((residual_layernorm_forward_kernel<S, 1, 8, false>), (int)rows, norm_threads(C, 1, 8), 0, stream,
               x_out, y, mean, rstd, x, branch, gamma, w, b, rows, C);
}

// LayerNorm's backward, and that of the residual below it, whose branch is NULL where there is none:
//   n = (x - mean) rstd,  g = dy w:   dx (+)= rstd (g - mean_c(g) - n mean_c(g n))
//   dw = Σ_rows dy n,   db = Σ_rows dy,   dbranch = gamma dx,   dgamma = Σ_rows dx branch
// and, since it is at hand, the bias gradient of the Linear that made the branch:   dbias = Σ_rows dbranch
// accumulate: dx holds the residual's own gradient already. partial (4,blocks,C): a block's sums for dw, db, dgamma,
// dbias. Fewest bytes a row: 2C dy + 4C x + 8C dx + 2C branch + 2C dbranch = 18C, those moved but for COLUMN_BLOCKS ·
// 16C in all.
template <typename S> struct NormBackward {
    float* dx; S* dbranch; float* partial;
    const S* dy; const float *x, *mean, *rstd, *w; const S* branch; const float* gamma;
    bool accumulate;
    size_t rows;
    int C;
};

template <int VEC, int PACKS> struct NormSums {
    float dw[PACKS][VEC], db[PACKS][VEC], dgamma[PACKS][VEC], dx[PACKS][VEC];
};

// What the residual brings to a pack: its own gradient d, and the branch.
template <typename S, int VEC>
__device__ inline void load_residual(float (&d)[VEC], float (&branch)[VEC], const NormBackward<S>& a, size_t at) {
    if (a.accumulate) load_pack<VEC>(d, a.dx + at);
    if (a.branch) load_pack<VEC>(branch, a.branch + at);
}

// The gradient d of a pack of the stream, and gamma d of the branch's; their sums over rows.
template <typename S, int VEC>
__device__ inline void store_residual(float (&dgamma)[VEC], float (&dx)[VEC], float (&d)[VEC],
                                      const float (&branch)[VEC], const float (&gamma)[VEC], const NormBackward<S>& a,
                                      size_t at) {
    store_pack<VEC>(a.dx + at, d);
    if (!a.branch) return;
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        dgamma[i] += d[i] * branch[i];
        dx[i] += d[i];
        d[i] *= gamma[i];
    }
    store_pack<VEC>(a.dbranch + at, d);
}

// ROWS rows from row0 on, all of them there if FULL. Where registers allow, all that is to be read is asked for
// at once.
template <bool FULL, typename S, int VEC, int PACKS, int ROWS>
__device__ inline void layernorm_backward_rows(NormSums<VEC, PACKS>& total, const NormBackward<S>& a, size_t row0,
                                               float* shared) {
    constexpr bool AT_ONCE = PACKS == 1;
    const int C = a.C, c0 = threadIdx.x * VEC, stride = blockDim.x * VEC;
    const int there = FULL ? ROWS : (int)min((size_t)ROWS, a.rows - row0);
    const float inverse_C = 1.0f / C;
    float g[ROWS][PACKS][VEC] = {}, n[ROWS][PACKS][VEC] = {}, d[ROWS][PACKS][VEC] = {}, branch[ROWS][PACKS][VEC] = {};
    float scale[ROWS], sums[2 * ROWS] = {};   // sums: of g, g n
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        const int c = c0 + p * stride;
        if (c >= C) break;
        const size_t at = row0 * C + c;
        float w_c[VEC];
        load_pack<VEC>(w_c, a.w + c);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r >= there) break;
            load_pack<VEC>(g[r][p], a.dy + at + r * C);
            load_pack<VEC>(n[r][p], a.x + at + r * C);
            if (AT_ONCE) load_residual(d[r][p], branch[r][p], a, at + r * C);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r >= there) break;
            scale[r] = a.rstd[row0 + r];
            const float shift = -a.mean[row0 + r] * scale[r];
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                n[r][p][i] = n[r][p][i] * scale[r] + shift;
                total.dw[p][i] += g[r][p][i] * n[r][p][i];
                total.db[p][i] += g[r][p][i];
                g[r][p][i] *= w_c[i];
                sums[2 * r] += g[r][p][i];
                sums[2 * r + 1] += g[r][p][i] * n[r][p][i];
            }
        }
    }
    block_sum<2 * ROWS>(sums, shared);
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        const int c = c0 + p * stride;
        if (c >= C) break;
        const size_t at = row0 * C + c;
        float gamma_c[VEC] = {};
        if (a.branch) load_pack<VEC>(gamma_c, a.gamma + c);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r >= there) break;
            if (!AT_ONCE) load_residual(d[r][p], branch[r][p], a, at + r * C);
            const float mean_g = sums[2 * r] * inverse_C, mean_gn = sums[2 * r + 1] * inverse_C;
#pragma unroll
            for (int i = 0; i < VEC; i++) d[r][p][i] += scale[r] * (g[r][p][i] - mean_g - n[r][p][i] * mean_gn);
            store_residual(total.dgamma[p], total.dx[p], d[r][p], branch[r][p], gamma_c, a, at + r * C);
        }
    }
}

template <typename S, int VEC, int PACKS, int ROWS, int THREADS>
__global__ void __launch_bounds__(THREADS, THREADS <= 256 ? 3 : 1)
    layernorm_residual_backward_kernel(NormBackward<S> a) {
    __shared__ float shared[WARP * 2 * ROWS];
    NormSums<VEC, PACKS> total = {};
    for (size_t row0 = (size_t)blockIdx.x * ROWS; row0 < a.rows; row0 += (size_t)gridDim.x * ROWS) {
        if (ROWS == 1 || row0 + ROWS <= a.rows)
            layernorm_backward_rows<true, S, VEC, PACKS, ROWS>(total, a, row0, shared);
        else
            layernorm_backward_rows<false, S, VEC, PACKS, ROWS>(total, a, row0, shared);
    }
    const size_t array = (size_t)gridDim.x * a.C;
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        const int c = (threadIdx.x + p * blockDim.x) * VEC;
        if (c >= a.C) break;
        float gamma_c[VEC] = {}, *partial_c = a.partial + (size_t)blockIdx.x * a.C + c;
        if (a.branch) load_pack<VEC>(gamma_c, a.gamma + c);
#pragma unroll
        for (int i = 0; i < VEC; i++) total.dx[p][i] *= gamma_c[i];   // mutant: bias_of_the_branch_unscaled
        store_pack<VEC>(partial_c, total.dw[p]);
        store_pack<VEC>(partial_c + array, total.db[p]);
        store_pack<VEC>(partial_c + 2 * array, total.dgamma[p]);
        store_pack<VEC>(partial_c + 3 * array, total.dx[p]);
    }
}

// dx = or, with accumulate, +=; dbranch =; dw, db, dgamma, dbias += (db, dbias may be NULL; branch, dbranch and dgamma
// together).
template <typename S>
static void layernorm_residual_backward(cudaStream_t stream, float* dx, S* dbranch, float* dw, float* db,
                                        float* dgamma, float* dbias, float* partial, const S* dy, const float* x,
                                        const float* mean, const float* rstd, const float* w, const S* branch,
                                        const float* gamma, bool accumulate, size_t rows, int C) {
    // partial (4,COLUMN_BLOCKS,C)
    const bool narrow = C % 4 == 0 && C <= 4 * 256;
    const int at_once = norm_threads(C, 4, 1) <= 192 ? COLUMN_BLOCKS : COLUMN_BLOCKS / 4 * 3;   // as registers allow
    const int blocks = min(div_up(rows, narrow ? NORM_ROWS : 1), at_once);
    const NormBackward<S> a = {dx, dbranch, partial, dy, x, mean, rstd, w, branch, gamma, accumulate, rows, C};
    if (narrow)
        LAUNCH((layernorm_residual_backward_kernel<S, 4, 1, NORM_ROWS, 256>), blocks, norm_threads(C, 4, 1), 0,
               stream, a);
    else if (C % 4 == 0)
        LAUNCH((layernorm_residual_backward_kernel<S, 4, 3, 1, NORM_THREADS>), blocks, norm_threads(C, 4, 3), 0,
               stream, a);
    else
        LAUNCH((layernorm_residual_backward_kernel<S, 1, 8, 1, NORM_THREADS>), blocks, norm_threads(C, 1, 8), 0,
               stream, a);
    column_sum(stream, {{dw, db, dgamma, dbias}}, 4, partial, blocks, C);
}

// ---------------------------------------------------------------------------------------------
// Matrix products, by cuBLASLt: the algorithm is chosen once a shape

constexpr size_t MATMUL_WORKSPACE = (size_t)32 << 20;

// c (M,N) = op(a) (M,K) · op(b) (K,N) + bias (N) + beta c, row-major; ld: elements from row to row as stored.
// With at, a is stored (K,M); with bt, b is stored (N,K). O, the type of c, is S or float.
template <typename S, typename O> struct Product {
    O* c; const S* a; const S* b;
    bool at, bt;
    int M, N, K;
    int64_t ldc, lda, ldb;
    float beta;
    const O* bias;                   // or NULL
};

struct MatmulPlan {
    int64_t key[12];
    bool found;                      // false: cuBLASLt has no algorithm for this shape and alignment
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t first, second, out;
    cublasLtMatmulAlgo_t algo;
};

struct Matmul {
    cublasLtHandle_t handle;
    cudaStream_t stream;
    void* workspace;                 // MATMUL_WORKSPACE bytes
    bool tf32;
    std::vector<MatmulPlan> plans;
};

static inline cudaDataType cuda_type(const float*) { return CUDA_R_32F; }
static inline cudaDataType cuda_type(const bf16*) { return CUDA_R_16BF; }

// The largest power of two up to 64 that divides all three addresses. Tensors start at multiples of 32 elements,
// so that the like products of all layers, and their biases, have the same.
static int common_alignment(const void* a, const void* b, const void* c) {
    const uintptr_t bits = (uintptr_t)a | (uintptr_t)b | (uintptr_t)c | 64;
    return (int)(bits & (0 - bits));
}

// cuBLASLt is column-major: it computes cᵀ (N,M) = op(b)ᵀ · op(a)ᵀ, so that b comes first, and its bias, one
// number a row, is ours, one a column.
template <typename S, typename O>
static MatmulPlan matmul_plan(const Matmul* mm, const Product<S, O>& p, int alignment) {
    MatmulPlan plan = {};
    const cublasOperation_t first = p.bt ? CUBLAS_OP_T : CUBLAS_OP_N,
                            second = p.at ? CUBLAS_OP_T : CUBLAS_OP_N;
    CUBLAS_CHECK(cublasLtMatmulDescCreate(
        &plan.desc, mm->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
    CUBLAS_CHECK(
        cublasLtMatmulDescSetAttribute(plan.desc, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
    CUBLAS_CHECK(
        cublasLtMatmulDescSetAttribute(plan.desc, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second));
    if (p.bias) {
        const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(plan.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                                    sizeof epilogue));
        CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p.bias,
                                                    sizeof p.bias));
    }
    CUBLAS_CHECK(
        cublasLtMatrixLayoutCreate(&plan.first, cuda_type(p.b), p.bt ? p.K : p.N, p.bt ? p.N : p.K, p.ldb));
    CUBLAS_CHECK(
        cublasLtMatrixLayoutCreate(&plan.second, cuda_type(p.a), p.at ? p.M : p.K, p.at ? p.K : p.M, p.lda));
    CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&plan.out, cuda_type(p.c), p.N, p.M, p.ldc));

    cublasLtMatmulPreference_t preference;
    const size_t workspace = MATMUL_WORKSPACE;
    const uint32_t aligned = (uint32_t)alignment;
    const uint32_t sums =
        sizeof(O) == sizeof(float) ? CUBLASLT_REDUCTION_SCHEME_MASK : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
    CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                      &workspace, sizeof workspace));
    // parts of a product that is split along K are added in float, never in bf16
    CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &sums, sizeof sums));
    for (cublasLtMatmulPreferenceAttributes_t which :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
        CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, which, &aligned, sizeof aligned));
    cublasLtMatmulHeuristicResult_t best = {};
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        mm->handle, plan.desc, plan.first, plan.second, plan.out, plan.out, preference, 1, &best, &count);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) CUBLAS_CHECK(status);
    plan.found = status == CUBLAS_STATUS_SUCCESS && count > 0 && best.state == CUBLAS_STATUS_SUCCESS;
    plan.algo = best.algo;
    CUBLAS_CHECK(cublasLtMatmulPreferenceDestroy(preference));
    return plan;
}

// The product where cuBLASLt has no algorithm, as it may be for rows of bf16 that are not multiples of 16
// bytes: tiles of 16 by 16 outputs, a thread each.
constexpr int PLAIN_TILE = 16;

template <typename S, typename O> __device__ inline void plain_matmul_tile(const Product<S, O>& p, int i0, int j0) {
    __shared__ float a_tile[PLAIN_TILE][PLAIN_TILE + 1], b_tile[PLAIN_TILE][PLAIN_TILE + 1];
    const int i = i0 + threadIdx.y, j = j0 + threadIdx.x;
    float sum = 0.0f;
    for (int k0 = 0; k0 < p.K; k0 += PLAIN_TILE) {
        const int ka = k0 + threadIdx.x, kb = k0 + threadIdx.y;
        a_tile[threadIdx.y][threadIdx.x] =
            i < p.M && ka < p.K ? to_float(p.a[p.at ? (size_t)ka * p.lda + i : (size_t)i * p.lda + ka])
                                : 0.0f;
        b_tile[threadIdx.y][threadIdx.x] =
            j < p.N && kb < p.K ? to_float(p.b[p.bt ? (size_t)j * p.ldb + kb : (size_t)kb * p.ldb + j])
                                : 0.0f;
        __syncthreads();
        for (int k = 0; k < PLAIN_TILE; k++) sum += a_tile[threadIdx.y][k] * b_tile[k][threadIdx.x];
        __syncthreads();
    }
    if (i >= p.M || j >= p.N) return;
    O* c = p.c + (size_t)i * p.ldc + j;
    if (p.bias) sum += to_float(p.bias[j]);
    if (p.beta != 0.0f) sum += p.beta * to_float(*c);
    *c = from_float<O>(sum);
}

template <typename S, typename O> __global__ void plain_matmul_kernel(Product<S, O> p) {
    for (int64_t i0 = (int64_t)blockIdx.y * PLAIN_TILE; i0 < p.M;
         i0 += (int64_t)gridDim.y * PLAIN_TILE)   // mutant: plain_rows_once
        plain_matmul_tile(p, (int)i0, blockIdx.x * PLAIN_TILE);
}

template <typename S, typename O> static void matmul(Matmul* mm, const Product<S, O>& p) {
    const int alignment = common_alignment(p.a, p.b, p.c);
    const int64_t key[12] = {cuda_type(p.a), cuda_type(p.c), p.at,  p.bt,           p.M,      p.N, p.K,
                             p.ldc,          p.lda,          p.ldb, p.bias != NULL, alignment};
    size_t i = 0;
    while (i < mm->plans.size() && memcmp(mm->plans[i].key, key, sizeof key) != 0) i++;
    if (i == mm->plans.size()) {
        mm->plans.push_back(matmul_plan(mm, p, alignment));
        memcpy(mm->plans[i].key, key, sizeof key);
    }
    const MatmulPlan& plan = mm->plans[i];
    if (!plan.found) {
        LAUNCH((plain_matmul_kernel<S, O>), dim3(div_up(p.N, PLAIN_TILE), min(div_up(p.M, PLAIN_TILE), 65535)),
               dim3(PLAIN_TILE, PLAIN_TILE), 0, mm->stream, p);
        return;
    }
    if (p.bias)
        CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p.bias,
                                                    sizeof p.bias));
    const float one = 1.0f;
    CUBLAS_CHECK(cublasLtMatmul(mm->handle, plan.desc, &one, p.b, plan.first, p.a, plan.second, &p.beta, p.c,
                                plan.out, p.c, plan.out, &plan.algo, mm->workspace, MATMUL_WORKSPACE,
                                mm->stream));
}

static void matmul_free(Matmul* mm) {
    for (MatmulPlan& plan : mm->plans) {
        CUBLAS_CHECK(cublasLtMatrixLayoutDestroy(plan.first));
        CUBLAS_CHECK(cublasLtMatrixLayoutDestroy(plan.second));
        CUBLAS_CHECK(cublasLtMatrixLayoutDestroy(plan.out));
        CUBLAS_CHECK(cublasLtMatmulDescDestroy(plan.desc));
    }
    if (mm->handle) CUBLAS_CHECK(cublasLtDestroy(mm->handle));
}

// ---------------------------------------------------------------------------------------------
// Linear:  y = x · wᵀ + b

template <typename S>
static void linear_forward(Matmul* mm, S* y, const S* x, const S* w, const S* b, size_t rows, int IN,
                           int OUT) {
    // y (rows,OUT); x (rows,IN); w (OUT,IN); b (OUT) or NULL
    matmul(mm, Product<S, S>{y, x, w, false, true, (int)rows, OUT, IN, OUT, IN, IN, 0.0f, b});
}

// partial (blocks,N): Σ of dy over a block's rows, which are every gridDim.x-th. Fewest bytes a row: 2N.
template <typename S, int VEC>
__global__ void bias_backward_kernel(float* partial, const S* dy, size_t rows, int N) {
    for (int c = (blockIdx.y * blockDim.x + threadIdx.x) * VEC; c < N; c += gridDim.y * blockDim.x * VEC) {
        float sum[VEC] = {}, part[VEC];
#pragma unroll 4
        for (size_t row = blockIdx.x; row < rows; row += gridDim.x) {
            load_pack<VEC>(part, dy + row * N + c);
#pragma unroll
            for (int i = 0; i < VEC; i++) sum[i] += part[i];
        }
        store_pack<VEC>(partial + (size_t)blockIdx.x * N + c, sum);
    }
}

// dx =; dw +=.   dx = dy · w,   dw = dyᵀ · x
template <typename S>
static void linear_backward(Matmul* mm, S* dx, float* dw, const S* dy, const S* x, const S* w, size_t rows, int IN,
                            int OUT) {
    matmul(mm, Product<S, S>{dx, dy, w, false, false, (int)rows, IN, OUT, IN, OUT, IN, 0.0f, NULL});
    matmul(mm, Product<S, float>{dw, dy, x, true, false, OUT, IN, (int)rows, IN, OUT, IN,
                                 1.0f, NULL});   // mutant: no_accumulation
}

// db += (may be NULL).   db = Σ_rows dy, where no other kernel that has dy in its hands makes it
template <typename S>
static void bias_backward(Matmul* mm, float* db, float* partial, const S* dy, size_t rows, int OUT) {
    // partial (COLUMN_BLOCKS,OUT)
    if (!db) return;
    const int blocks = (int)min(rows, (size_t)COLUMN_BLOCKS);
    if (OUT % 4 == 0)
        LAUNCH((bias_backward_kernel<S, 4>), dim3(blocks, div_up(OUT, 1024)), 256, 0, mm->stream, partial, dy,
               rows, OUT);
    else
        LAUNCH((bias_backward_kernel<S, 1>), dim3(blocks, div_up(OUT, 256)), 256, 0, mm->stream, partial, dy,
               rows, OUT);
    column_sum(mm->stream, {{db}}, 1, partial, blocks, OUT);
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
// Time is cut into chunks of 32 steps, a block each, all heads of one sequence. A warp takes a head, its
// lanes P neighbouring channels each (a wider head in slices), and walks over the chunk's time; where
// something is summed over the head's channels, lane l ends up with time step l. Chunks meet in scans
// (cuda_common.cuh), the heads at one t in shared memory. The block reads its piece of w again in each phase:
// 32 rows, which a cache still holds, so that w crosses device memory once. Before the first scan's wait that is the
// multiprocessor's own; the fence after a wait empties it, and L2 gives them again.
//
// All that the past leaves behind is S, N and D: 2C + NH numbers a sequence, here called a state.

constexpr int TSSA_CHUNK = 32;       // time steps a block: as many as lanes
constexpr int TSSA_PIECE = 8;        // time steps that a warp has in registers at once
constexpr int TSSA_BACK = 4;         // and where it walks backward over them
constexpr int TSSA_WARPS = 12;       // most a block; with more heads, warps take several
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int TSSA_BLOCKS =
    1;  // at least so many on a multiprocessor: for these, two leave too few registers
#else
[[maybe_unused]] constexpr int TSSA_BLOCKS = 2;       // one works while another waits
#endif
constexpr size_t TSSA_SHARED = DYNAMIC_SHARED_MOST;
constexpr int TSSA_MAX_HEADS = TSSA_SHARED / (4 * WARP * sizeof(float));   // four arrays (NH,32) of floats

struct TssaSize { int B, T, C, NH, HS, chunks, slots; };   // slots: of a sequence's scan

static TssaSize tssa_size(int B, int T, int C, int NH) {
    const int chunks = div_up(T, TSSA_CHUNK);
    return {B, T, C, NH, C / NH, chunks, (int)scan_slots(chunks)};
}
static int      tssa_threads(int NH) { return WARP * div_up(NH, div_up(NH, TSSA_WARPS)); }
static size_t   tssa_state_size(size_t C, size_t NH) { return 2 * C + NH; }
static size_t   tssa_sync_size(size_t B, size_t T) { return 1 + 2 * B * scan_slots(div_up(T, TSSA_CHUNK)); }

struct TssaChunk { int b, t0, n; };   // that a block works on: steps t0 to t0 + n of sequence b

template <bool BACKWARD> __device__ inline TssaChunk tssa_chunk(int* sync, TssaSize z) {
    const int unit = scan_ticket(sync), place = unit / z.B,
              t0 = (BACKWARD ? z.chunks - 1 - place : place) * TSSA_CHUNK;
    return {unit % z.B, t0, min(z.T - t0, TSSA_CHUNK)};
}

// Most of a pass is whole tiles: chunks of all 32 steps, heads whose channels fill the lanes. WHOLE says so, and spares
// every access its test.
template <int P> __device__ inline bool tssa_whole(TssaChunk k, TssaSize z) {
    return k.n == TSSA_CHUNK && z.HS % (WARP * P) == 0;   // mutant: whole_tile_unasked
}
#define TSSA_TILE(function, ...) \
    (tssa_whole<P>(k, z) ? function<true, S, P>(__VA_ARGS__) : function<false, S, P>(__VA_ARGS__))

// P channels of N rows, C apart, from step t0 on; zeros, the identity of every sum here, past the chunk's end and where
// the lane is not inside its head.
template <bool WHOLE, int N, int P, typename S>
__device__ inline void tssa_load(float (&x)[N][P], const S* p, int t0, bool inside, TssaChunk k, TssaSize z) {
#pragma unroll
    for (int j = 0; j < N; j++) {
        if (WHOLE || (inside && t0 + j < k.n)) {
            load_pack<P>(x[j], p + (size_t)j * (unsigned)z.C);
        } else {
#pragma unroll
            for (int i = 0; i < P; i++) x[j][i] = 0.0f;
        }
    }
}

// The same for floats that stand at any multiple of 4 bytes.
template <int P> __device__ inline void tssa_load_floats(float (&x)[P], const float* p, bool inside) {
#pragma unroll
    for (int i = 0; i < P; i++) x[i] = inside ? p[i] : 0.0f;
}

// The states of a pass. start: (B/copies,2C+NH), each for `copies` sequences side by side, or NULL: every
// sequence starts from nothing. end: (B,2C+NH), written at the sequences' ends, or NULL. Only where one chunk
// is all may the two be the same: the last of several writes while others still read.
struct TssaStates {
    const double* start;
    double* end;
    int copies;
};

constexpr TssaStates NO_STATES = {NULL, NULL, 1};

// The scan of `width` columns: carry = start + Σ over the chunks before, in the order of the scan. totals
// (slots,width), of the sequence; its level 0 holds the chunks' own totals. start, end (width): of the
// sequence, or NULL.
__device__ inline void tssa_scan(float* carry, double* end, const double* start, float* totals, int* flags,
                                 int width, int place, int chunks) {
    scan_publish_and_wait(flags, place, chunks);
    for (int first = threadIdx.x; first < width; first += SCAN_COLUMNS * blockDim.x) {
        double own[SCAN_COLUMNS], prefix[SCAN_COLUMNS];
#pragma unroll
        for (int n = 0; n < SCAN_COLUMNS; n++) {
            const int c = first + n * (int)blockDim.x;
            own[n] = c < width ? scan_load(totals + (size_t)place * width + c) : 0.0f;
        }
        scan_prefix(prefix, totals, first, width, place, chunks, own);
#pragma unroll
        for (int n = 0; n < SCAN_COLUMNS; n++) {
            const int c = first + n * (int)blockDim.x;
            if (c >= width) continue;
            const double before = (start ? start[c] : 0.0) + prefix[n];   // mutant: state_not_continued
            carry[c] = (float)before;   // mutant: dropped_carry
            if (end && place == chunks - 1) end[c] = before + own[n];
        }
    }
    scan_publish_groups(flags, place, chunks);
    __syncthreads();   // the carries are written   // mutant: carries_unsynchronised
}

// Totals of the chunk: Σ_t s, or, where pi (NH,32) is given, Σ_t s Π.
template <bool WHOLE, typename S, int P>
__device__ inline void tssa_chunk_totals(float* totals, const float* pi, const S* w, TssaChunk k, TssaSize z) {
    for (int h = warp_index(); h < z.NH; h += block_warps()) {
        for (int d = lane_index() * P; d < z.HS; d += WARP * P) {
            const S* w_t = w + h * z.HS + d;
            float sum[P] = {};
#pragma unroll 1
            for (int t0 = 0; t0 < TSSA_CHUNK; t0 += TSSA_PIECE, w_t += (size_t)TSSA_PIECE * z.C) {
                float x[TSSA_PIECE][P], pi_t[TSSA_PIECE];
                tssa_load<WHOLE>(x, w_t, t0, true, k, z);
                if (pi) load_pack<TSSA_PIECE>(pi_t, pi + h * WARP + t0);
#pragma unroll
                for (int j = 0; j < TSSA_PIECE; j++) {
#pragma unroll
                    for (int i = 0; i < P; i++) sum[i] += x[j][i] * (pi ? x[j][i] * pi_t[j] : x[j][i]);
                }
            }
#pragma unroll
            for (int i = 0; i < P; i++) totals[h * z.HS + d + i] = sum[i];
        }
    }
}

// Lane t receives Σ_d s/max(S, 1e-12) of head h at step t; carry: S before the chunk.
template <bool WHOLE, typename S, int P>
__device__ inline float tssa_energy_ratios(const float* carry, const S* w, int h, TssaChunk k, TssaSize z) {
    float mine = 0.0f;
    for (int d = lane_index() * P; d - lane_index() * P < z.HS; d += WARP * P) {
        const bool inside = WHOLE || d < z.HS;
        const S* w_t = w + h * z.HS + d;
        float sum[P];
        tssa_load_floats(sum, carry + h * z.HS + d, inside);
#pragma unroll 1
        for (int t0 = 0; t0 < k.n; t0 += TSSA_PIECE, w_t += (size_t)TSSA_PIECE * z.C) {
            float x[TSSA_PIECE][P], ratios[TSSA_PIECE] = {};
            tssa_load<WHOLE>(x, w_t, t0, inside, k, z);
#pragma unroll
            for (int j = 0; j < TSSA_PIECE; j++) {
#pragma unroll
                for (int i = 0; i < P; i++) {
                    sum[i] += x[j][i] * x[j][i];
                    ratios[j] += x[j][i] * x[j][i] * reciprocal(fmaxf(sum[i], (float)TOST_ENERGY_MIN));
                }
            }
            const float piece = warp_transposed_sum(ratios, lane_index());
            if (lane_index() / TSSA_PIECE == t0 / TSSA_PIECE) mine += piece;
        }
    }
    return mine;
}

// x (NH,32) becomes its softmax over the heads, column by column; scratch (NH,32). A warp's rows are final
// for that warp.
__device__ inline void membership_forward(float* x, float* scratch, int NH) {
    __syncthreads();   // mutant: softmax_unsynchronised
    float top = -INFINITY;
    for (int h = 0; h < NH; h++) top = fmaxf(top, x[h * WARP + lane_index()]);
    for (int h = warp_index(); h < NH; h += block_warps())
        scratch[h * WARP + lane_index()] = expf(x[h * WARP + lane_index()] - top);
    __syncthreads();
    float sum = 0.0f;
    for (int h = 0; h < NH; h++) sum += scratch[h * WARP + lane_index()];   // mutant: softmax_over_time
    for (int h = warp_index(); h < NH; h += block_warps())
        x[h * WARP + lane_index()] = scratch[h * WARP + lane_index()] / sum;
    __syncthreads();
}

// x (NH,32) = 1/NH. S, which only a learned membership reads, is zero: carry (C), and end (C) or NULL.
__device__ inline void membership_uniform(float* x, float* carry, double* end, TssaSize z) {
    for (int i = threadIdx.x; i < z.NH * WARP; i += blockDim.x) x[i] = 1.0f / z.NH;
    for (int c = threadIdx.x; c < z.C; c += blockDim.x) {
        carry[c] = 0.0f;
        if (end) end[c] = 0.0;
    }
    __syncthreads();
}

// u of the chunk, and x (NH,32): Π; scratch (NH,32). The scan of S as of tssa_scan.
template <typename S, int P>
__device__ inline void membership_learned(float* x, float* scratch, float* u, float* carry, double* end,
                                          const double* start, float* totals, int* flags, const S* w,
                                          const float* temp, const float* denom_bias, int block_size,
                                          TssaChunk k, TssaSize z) {
    const int place = k.t0 / TSSA_CHUNK;
    TSSA_TILE(tssa_chunk_totals, totals + (size_t)place * z.C, NULL, w, k, z);
    tssa_scan(carry, end, start, totals, flags, z.C, place, z.chunks);
    for (int h = warp_index(); h < z.NH; h += block_warps()) {
        const float ratios = TSSA_TILE(tssa_energy_ratios, carry, w, h, k, z);
        const bool inside = lane_index() < k.n;   // mutant: chunk_edge_forward
        const float u_t = ratios + z.HS * (inside ? denom_bias[(size_t)h * block_size + lane_index()] : 0.0f);
        if (inside) u[((size_t)k.b * z.NH + h) * z.T + k.t0 + lane_index()] = u_t;
        x[h * WARP + lane_index()] = temp[h] * u_t;
    }
    membership_forward(x, scratch, z.NH);
}

// y = -w Π (D + 1e-8) / (D + 1e-8 + N) of head h. pi, mass (32): Π and D + 1e-8 at each step; carry: N before the
// chunk.
template <bool WHOLE, typename S, int P>
__device__ inline void tssa_forward_moments(S* y, const float* carry, const float* pi, const float* mass,
                                            const S* w, int h, TssaChunk k, TssaSize z) {
    for (int d = lane_index() * P; d < z.HS; d += WARP * P) {
        const S* w_t = w + h * z.HS + d;
        S* y_t = y + h * z.HS + d;
        float N[P];
        tssa_load_floats(N, carry + h * z.HS + d, true);
#pragma unroll 1
        for (int t0 = 0; t0 < k.n; t0 += TSSA_PIECE) {
            float x[TSSA_PIECE][P], pi_t[TSSA_PIECE], mass_t[TSSA_PIECE];
            tssa_load<WHOLE>(x, w_t, t0, true, k, z);
            load_pack<TSSA_PIECE>(pi_t, pi + t0);
            load_pack<TSSA_PIECE>(mass_t, mass + t0);
#pragma unroll
            for (int j = 0; j < TSSA_PIECE; j++) {
#pragma unroll
                for (int i = 0; i < P; i++) {
                    N[i] += x[j][i] * (x[j][i] * pi_t[j]);
                    x[j][i] *= -pi_t[j] * mass_t[j] * reciprocal(mass_t[j] + N[i]);
                }
                if (WHOLE || t0 + j < k.n) store_pack<P>(y_t + (size_t)j * (unsigned)z.C, x[j]);
            }
            w_t += (size_t)TSSA_PIECE * z.C;
            y_t += (size_t)TSSA_PIECE * z.C;
        }
    }
}

// Fewest bytes a row: 2C (w) + 2C (y). Moved besides: carries and totals, (4 + 8) (2C + NH)/32 = 0.75C, and u
// and pi, 8 NH. sync: ticket, flags of S, flags of N and D; all zero before.
template <typename S, int P, bool UNIFORM>
__global__ void __launch_bounds__(TSSA_WARPS* WARP, TSSA_BLOCKS)
    tssa_forward_kernel(S* __restrict__ y, float* u, float* pi, float* saved, TssaStates states,
                        float* totals, int* sync, const S* __restrict__ w, const float* __restrict__ temp,
                        const float* __restrict__ denom_bias, const StepHeader* __restrict__ step,
                        int block_size, TssaSize z) {
    DYNAMIC_SHARED(float, shared);   // (2,NH,32)
    float *x = shared, *scratch = x + z.NH * WARP;
    const TssaChunk k = tssa_chunk<false>(sync, z);
    const int place = k.t0 / TSSA_CHUNK, wide = z.C + z.NH;
    const size_t row = (size_t)k.b * z.T + k.t0, state_size = z.C + wide;
    int* flags = sync + 1 + k.b * z.slots;
    float* energy_totals = totals + (size_t)k.b * z.slots * z.C;
    float* moment_totals = totals + (size_t)z.B * z.slots * z.C + (size_t)k.b * z.slots * wide;
    float* carry = saved + ((size_t)k.b * z.chunks + place) * state_size;   // S (C), N (C), D (NH)
    const double* start = states.start ? states.start + k.b / states.copies * state_size : NULL;
    double* end = states.end ? states.end + k.b * state_size : NULL;
    w += row * z.C;

    if constexpr (UNIFORM)
        membership_uniform(x, carry, place == z.chunks - 1 ? end : NULL, z);
    else
        membership_learned<S, P>(x, scratch, u, carry, end, start, energy_totals, flags, w, temp,
                                 denom_bias + step->first + k.t0, block_size, k, z);
    for (int h = warp_index(); h < z.NH; h += block_warps()) {
        const float pi_t = lane_index() < k.n ? x[h * WARP + lane_index()] : 0.0f;
        if (lane_index() < k.n) pi[((size_t)k.b * z.NH + h) * z.T + k.t0 + lane_index()] = pi_t;
        const float mass = warp_sum(pi_t);
        if (lane_index() == 0) moment_totals[(size_t)place * wide + z.C + h] = mass;
    }
    TSSA_TILE(tssa_chunk_totals, moment_totals + (size_t)place * wide, x, w, k, z);
    tssa_scan(carry + z.C, end ? end + z.C : NULL, start ? start + z.C : NULL, moment_totals,
              flags + z.B * z.slots, wide, place, z.chunks);
    for (int h = warp_index(); h < z.NH; h += block_warps()) {
        const float pi_t = lane_index() < k.n ? x[h * WARP + lane_index()] : 0.0f;
        scratch[h * WARP + lane_index()] = carry[2 * z.C + h] + warp_scan(pi_t, lane_index()) + (float)TOST_MASS_EPS;
        __syncwarp();   // mutant: mass_unsynchronised
        TSSA_TILE(tssa_forward_moments, y + row * z.C, carry + z.C, x + h * WARP, scratch + h * WARP, w, h, k, z);
    }
}

// Whether a lane can take two neighbouring channels in one access, and has use for them.
static bool tssa_pairs(TssaSize z) {
    return z.HS % 2 == 0 && z.HS > WARP && (z.HS % (2 * WARP) == 0 || z.HS % WARP != 0);
}

template <typename S>
static void tssa_forward(cudaStream_t stream, S* y, float* u, float* pi, float* saved,
                         TssaStates states, float* totals, int* sync, const S* w, const float* temp,
                         const float* denom_bias, const StepHeader* step, int membership, int block_size,
                         int B, int T, int C, int NH) {
    // y, w (B,T,C); u, pi (B,NH,T); saved (B,chunks,2C+NH); totals (B,slots,2C+NH); temp (NH);
    // denom_bias (NH,block_size)
    const TssaSize z = tssa_size(B, T, C, NH);
    const size_t shared = 2 * (size_t)NH * WARP * sizeof(float);
    const bool pairs = tssa_pairs(z);
    const auto tssa_forward_variant =
        membership == TOST_UNIFORM
            ? (pairs ? tssa_forward_kernel<S, 2, true> : tssa_forward_kernel<S, 1, true>)
            : (pairs ? tssa_forward_kernel<S, 2, false> : tssa_forward_kernel<S, 1, false>);
    LAUNCH(tssa_forward_variant, B * z.chunks, tssa_threads(NH), shared, stream, y, u, pi, saved, states,
           totals, sync, w, temp, denom_bias, step, block_size, z);
}

// Where the last phase of the way back starts anew, going backward in time: N and S before the 2nd, 3rd and 4th eight
// steps of the chunk, (3,C) each, which the first and the third phase come by. NULL where shared memory does not hold
// them: then it walks there again from the chunk's start.
constexpr int TSSA_STARTS = TSSA_CHUNK / TSSA_PIECE - 1;

struct TssaStarts { float *N, *S; };

template <int P>
__device__ inline void tssa_keep_start(float* starts, const float (&sum)[P], int t0, int c, TssaSize z) {
    if (!starts || t0 == 0 || t0 % TSSA_PIECE != 0) return;
#pragma unroll
    for (int i = 0; i < P; i++) starts[(t0 / TSSA_PIECE - 1) * z.C + c + i] = sum[i];   // mutant: start_not_kept
}

// Π and D + 1e-8 of the chunk, (NH,32) each; past its end Π is zero and the other positive.
__device__ inline void tssa_backward_masses(float* pi_s, float* mass_s, const float* pi, const float* carry,
                                            TssaChunk k, TssaSize z) {
    for (int h = warp_index(); h < z.NH; h += block_warps()) {
        const float pi_t =
            lane_index() < k.n ? pi[((size_t)k.b * z.NH + h) * z.T + k.t0 + lane_index()] : 0.0f;
        pi_s[h * WARP + lane_index()] = pi_t;
        mass_s[h * WARP + lane_index()] =
            carry[2 * z.C + h] + warp_scan(pi_t, lane_index()) + (float)TOST_MASS_EPS;
    }
    __syncwarp();
}

// First phase, through y, N and D. With M = D + 1e-8, r = 1/(M + N), e = dy w r²:
//     dN = Π M e,   dD = -Σ_d Π N e
// totals (C+NH): of dN and dD over the chunk. dpi (NH,32): what dΠ[t] = Σ_d (s RN[t] - dy w M r) + RD[t] is without the
// sums RN, RD over t' ≥ t from the chunk's start on, that is with minus those over the chunk's t' < t in their place.
template <bool WHOLE, typename S, int P>
__device__ inline void tssa_backward_moments(float* totals, float* dpi, float* starts, const float* carry,
                                             const float* pi_s, const float* mass_s, const S* dy, const S* w,
                                             TssaChunk k, TssaSize z) {
    for (int h = warp_index(); h < z.NH; h += block_warps()) {
        float mine = 0.0f, total_D = 0.0f;
        for (int d = lane_index() * P; d - lane_index() * P < z.HS; d += WARP * P) {
            const bool inside = WHOLE || d < z.HS;
            const int c = h * z.HS + d;
            const S *w_t = w + c, *dy_t = dy + c;
            float N[P], dN[P] = {}, dD = 0.0f;   // dN, -dD: sums so far, the latter this lane's part
            tssa_load_floats(N, carry + z.C + c, inside);
#pragma unroll 1
            for (int t0 = 0; t0 < TSSA_CHUNK; t0 += TSSA_BACK) {
                float x[TSSA_BACK][P], dy_d[TSSA_BACK][P], pi_t[TSSA_BACK], M[TSSA_BACK], part[TSSA_BACK];
                tssa_load<WHOLE>(x, w_t, t0, inside, k, z);
                tssa_load<WHOLE>(dy_d, dy_t, t0, inside, k, z);
                load_pack<TSSA_BACK>(pi_t, pi_s + h * WARP + t0);
                load_pack<TSSA_BACK>(M, mass_s + h * WARP + t0);
                if (inside) tssa_keep_start(starts, N, t0, c, z);
#pragma unroll
                for (int j = 0; j < TSSA_BACK; j++) {
                    float e_N = 0.0f;
                    part[j] = dD;
#pragma unroll
                    for (int i = 0; i < P; i++) {
                        const float s = x[j][i] * x[j][i];
                        N[i] += s * pi_t[j];
                        const float r = reciprocal(M[j] + N[i]), dy_w_r = dy_d[j][i] * x[j][i] * r, e = dy_w_r * r;
                        part[j] -= s * dN[i];   // mutant: moments_before_dropped
                        part[j] -= dy_w_r * M[j];
                        dN[i] += pi_t[j] * M[j] * e;
                        e_N += e * N[i];
                    }
                    dD += pi_t[j] * e_N;
                }
                const float piece = warp_transposed_sum(part, lane_index());
                if (lane_index() / TSSA_BACK == t0 / TSSA_BACK) mine += piece;
                w_t += (size_t)TSSA_BACK * z.C;
                dy_t += (size_t)TSSA_BACK * z.C;
            }
            total_D += dD;
            if (!inside) continue;
#pragma unroll
            for (int i = 0; i < P; i++) totals[c + i] = dN[i];
        }
        dpi[h * WARP + lane_index()] = mine;
        total_D = warp_sum(total_D);
        if (lane_index() == 0) totals[z.C + h] = -total_D;
    }
}

// Second phase: lane t receives what is missing of dΠ[t] of head h:   Σ_d s RN + RD, with RN, RD from the chunk's start
// on: the chunk's totals and the sums behind it, (C+NH) each.
template <bool WHOLE, typename S, int P>
__device__ inline float tssa_backward_membership(const float* totals, const float* behind, const S* w, int h,
                                                 TssaChunk k, TssaSize z) {
    float mine = behind[z.C + h] + totals[z.C + h];
    for (int d = lane_index() * P; d - lane_index() * P < z.HS; d += WARP * P) {
        const bool inside = WHOLE || d < z.HS;
        const int c = h * z.HS + d;
        const S* w_t = w + c;
        float RN[P], total[P];
        tssa_load_floats(RN, behind + c, inside);
        tssa_load_floats(total, totals + c, inside);
#pragma unroll
        for (int i = 0; i < P; i++) RN[i] += total[i];
#pragma unroll 1
        for (int t0 = 0; t0 < TSSA_CHUNK; t0 += TSSA_PIECE, w_t += (size_t)TSSA_PIECE * z.C) {
            float x[TSSA_PIECE][P], part[TSSA_PIECE] = {};
            tssa_load<WHOLE>(x, w_t, t0, inside, k, z);
#pragma unroll
            for (int j = 0; j < TSSA_PIECE; j++) {
#pragma unroll
                for (int i = 0; i < P; i++) part[j] += x[j][i] * (x[j][i] * RN[i]);
            }
            const float piece = warp_transposed_sum(part, lane_index());
            if (lane_index() / TSSA_PIECE == t0 / TSSA_PIECE) mine += piece;
        }
    }
    return mine;
}

// x (NH,32) holds dΠ: du = temp da (NH,32), da (B,NH,T) and dtemp[h,chunk] = Σ_t da u, dtemp (NH,chunks of all
// sequences), with da[h] = Π[h] (dΠ[h] - Σ_h' Π[h'] dΠ[h']).
__device__ inline void membership_backward(float* du, float* da, float* dtemp, const float* x,
                                           const float* pi_s, const float* u, const float* temp, TssaChunk k,
                                           TssaSize z) {
    __syncthreads();
    float mean = 0.0f;
    for (int h = 0; h < z.NH; h++) mean += pi_s[h * WARP + lane_index()] * x[h * WARP + lane_index()];
    for (int h = warp_index(); h < z.NH; h += block_warps()) {
        const size_t at = ((size_t)k.b * z.NH + h) * z.T + k.t0 + lane_index();
        const float da_t = pi_s[h * WARP + lane_index()] * (x[h * WARP + lane_index()] - mean);
        du[h * WARP + lane_index()] = temp[h] * da_t;
        const float sum = warp_sum(lane_index() < k.n ? da_t * u[at] : 0.0f);
        if (lane_index() == 0) dtemp[((size_t)h * z.B + k.b) * z.chunks + k.t0 / TSSA_CHUNK] = sum;
        if (lane_index() < k.n) da[at] = da_t;
    }
    __syncwarp();
}

// In the place of the second and the third phase, where membership is uniform: du (NH,32) and the sums of dS
// past the chunk, behind (C), are zero, and what S starts from has no effect.
__device__ inline void tssa_backward_uniform(float* du, float* behind, float* starts, TssaSize z) {
    for (int i = threadIdx.x; i < z.NH * WARP; i += blockDim.x) du[i] = 0.0f;
    for (int c = threadIdx.x; c < z.C; c += blockDim.x) behind[c] = 0.0f;   // mutant: uniform_behind_unset
    for (int i = threadIdx.x; starts && i < TSSA_STARTS * z.C; i += blockDim.x) starts[i] = 0.0f;
    __syncthreads();
}

// sum += Σ_t dS, with dS = -du s/S² where S > 1e-12, else 0. energy: S before the piece; past it afterwards. ABOVE: S is
// over 1e-12 in all of it, as it is but where a sequence starts with next to nothing.
template <bool ABOVE, int P>
__device__ inline void tssa_add_energies(float (&sum)[P], float (&energy)[P], const float (&x)[TSSA_PIECE][P],
                                         const float (&du_t)[TSSA_PIECE]) {
#pragma unroll
    for (int j = 0; j < TSSA_PIECE; j++) {
#pragma unroll
        for (int i = 0; i < P; i++) {
            energy[i] += x[j][i] * x[j][i];
            const float r = ABOVE || energy[i] > (float)TOST_ENERGY_MIN ? reciprocal(energy[i]) : 0.0f;
            const float w_r = x[j][i] * r;
            sum[i] -= du_t[j] * (w_r * w_r);
        }
    }
}

// Third phase: the chunk's totals of dS.
template <bool WHOLE, typename S, int P>
__device__ inline void tssa_backward_energy_totals(float* totals, float* starts, const float* carry, const float* du,
                                                   const S* w, TssaChunk k, TssaSize z) {
    for (int h = warp_index(); h < z.NH; h += block_warps()) {
        for (int d = lane_index() * P; d < z.HS; d += WARP * P) {
            const int c = h * z.HS + d;
            const S* w_t = w + c;
            float energy[P], sum[P] = {};
            tssa_load_floats(energy, carry + c, true);
#pragma unroll 1
            for (int t0 = 0; t0 < TSSA_CHUNK; t0 += TSSA_PIECE, w_t += (size_t)TSSA_PIECE * z.C) {
                float x[TSSA_PIECE][P], du_t[TSSA_PIECE];
                tssa_load<WHOLE>(x, w_t, t0, true, k, z);
                load_pack<TSSA_PIECE>(du_t, du + h * WARP + t0);
                tssa_keep_start(starts, energy, t0, c, z);
                bool above = true;
#pragma unroll
                for (int i = 0; i < P; i++)
                    above = above && energy[i] + x[0][i] * x[0][i] > (float)TOST_ENERGY_MIN;
                if (above) tssa_add_energies<true>(sum, energy, x, du_t);
                else tssa_add_energies<false>(sum, energy, x, du_t);
            }
#pragma unroll
            for (int i = 0; i < P; i++) totals[c + i] = sum[i];
        }
    }
}

// What the last phase keeps of TSSA_BACK steps, so that it can walk backward over them.
template <int P> struct TssaPiece { float x[TSSA_BACK][P], S[TSSA_BACK][P], N[TSSA_BACK][P]; };

// S and N at step t0, whose rows stand at w_t, become those past the piece, which holds all that lies between.
template <bool WHOLE, typename S, int P>
__device__ inline void tssa_piece_forward(TssaPiece<P>& piece, float (&energy)[P], float (&N)[P], const float* pi_s,
                                          const S* w_t, int t0, TssaChunk k, TssaSize z) {
    float pi_t[TSSA_BACK];
    tssa_load<WHOLE>(piece.x, w_t, t0, true, k, z);
    load_pack<TSSA_BACK>(pi_t, pi_s + t0);
#pragma unroll
    for (int j = 0; j < TSSA_BACK; j++) {
#pragma unroll
        for (int i = 0; i < P; i++) {
            const float x = piece.x[j][i];
            energy[i] += x * x;
            N[i] += x * (x * pi_t[j]);
            piece.S[j][i] = energy[i];
            piece.N[j][i] = N[i];
        }
    }
}

// Last phase, backward in time, in the terms of the first:
//     dw = 2 w (Π RN + ds) - Π M dy r,   ds = du/max(S, 1e-12) + Σ_{t'≥t} dS[t']
// The sum's own term is taken into the first: du/S - du s/S² = du S[t-1]/S², which loses no digits where S is
// almost s. RN, RS: sums of dN and dS past the piece, advanced as it goes. before: S before the piece. ABOVE: as above.
template <bool WHOLE, bool ABOVE, typename S, int P>
__device__ inline void tssa_piece_backward(S* dw_t, float (&RN)[P], float (&RS)[P], const TssaPiece<P>& piece,
                                           const float (&before)[P], const float* pi_s, const float* mass_s,
                                           const float* du_s, const S* dy_t, int t0, TssaChunk k, TssaSize z) {
    float dy[TSSA_BACK][P];
    tssa_load<WHOLE>(dy, dy_t, t0, true, k, z);
#pragma unroll
    for (int j = TSSA_BACK - 1; j >= 0; j--) {
        const float pi = pi_s[t0 + j], M = mass_s[t0 + j], du = du_s[t0 + j], pi_M = pi * M;
        float dw[P];
#pragma unroll
        for (int i = 0; i < P; i++) {
            const float x = piece.x[j][i], energy = piece.S[j][i],
                        S_last = j > 0 ? piece.S[j > 0 ? j - 1 : 0][i] : before[i];
            const float r = reciprocal(M + piece.N[j][i]), dy_r = dy[j][i] * r;
            const bool above = ABOVE || energy > (float)TOST_ENERGY_MIN;   // mutant: energy_below_its_least
            const float q = reciprocal(ABOVE ? energy : fmaxf(energy, (float)TOST_ENERGY_MIN)),
                        w_q = above ? x * q : 0.0f;
            const float ds = RS[i] + du * q * (above ? S_last * q : 1.0f);
            const float through_y = pi_M * dy_r;
            RS[i] -= du * (w_q * w_q);
            RN[i] += x * (r * through_y);
            dw[i] = 2.0f * x * (pi * RN[i] + ds) - through_y;
        }
        if (WHOLE || t0 + j < k.n) store_pack<P>(dw_t + (size_t)j * (unsigned)z.C, dw);   // mutant: chunk_edge_backward
    }
}

// S and N before step t0, from the last start before it on.
template <bool WHOLE, typename S, int P>
__device__ inline void tssa_walk_to(float (&energy)[P], float (&N)[P], int t0, TssaStarts starts, const float* carry,
                                    const float* pi_s, const S* w_d, int c, TssaChunk k, TssaSize z) {
    const int start = starts.N ? t0 / TSSA_PIECE * TSSA_PIECE : 0;
    if (start > 0) {
        tssa_load_floats(energy, starts.S + (start / TSSA_PIECE - 1) * z.C + c, true);
        tssa_load_floats(N, starts.N + (start / TSSA_PIECE - 1) * z.C + c, true);
    } else {
        tssa_load_floats(energy, carry + c, true);
        tssa_load_floats(N, carry + z.C + c, true);
    }
#pragma unroll 1
    for (int t = start; t < t0; t += TSSA_BACK) {
        TssaPiece<P> piece;
        tssa_piece_forward<WHOLE>(piece, energy, N, pi_s, w_d + t * z.C, t, k, z);
    }
}

template <bool WHOLE, typename S, int P>
__device__ inline void tssa_backward_final(S* dw, TssaStarts starts, const float* behind, const float* carry,
                                           const float* pi_s, const float* mass_s, const float* du, const S* dy,
                                           const S* w, TssaChunk k, TssaSize z) {
    for (int h = warp_index(); h < z.NH; h += block_warps()) {
        const float *pi_h = pi_s + h * WARP, *mass_h = mass_s + h * WARP, *du_h = du + h * WARP;
        for (int d = lane_index() * P; d < z.HS; d += WARP * P) {
            const int c = h * z.HS + d;
            float RN[P], RS[P];
            tssa_load_floats(RN, behind + c, true);
            tssa_load_floats(RS, behind + z.C + z.NH + c, true);
#pragma unroll 1
            for (int t0 = (k.n - 1) / TSSA_BACK * TSSA_BACK; t0 >= 0; t0 -= TSSA_BACK) {
                const int at = t0 * z.C + c;   // in the chunk
                TssaPiece<P> piece;
                float energy[P], N[P], before[P];
                tssa_walk_to<WHOLE>(energy, N, t0, starts, carry, pi_h, w + c, c, k, z);
#pragma unroll
                for (int i = 0; i < P; i++) before[i] = energy[i];
                tssa_piece_forward<WHOLE>(piece, energy, N, pi_h, w + at, t0, k, z);
                bool above = true;
#pragma unroll
                for (int i = 0; i < P; i++) above = above && piece.S[0][i] > (float)TOST_ENERGY_MIN;
                if (above)
                    tssa_piece_backward<WHOLE, true>(dw + at, RN, RS, piece, before, pi_h, mass_h, du_h, dy + at, t0,
                                                     k, z);
                else
                    tssa_piece_backward<WHOLE, false>(dw + at, RN, RS, piece, before, pi_h, mass_h, du_h, dy + at, t0,
                                                      k, z);
            }
        }
    }
}

// Fewest bytes a row: 2C (w) + 2C (dy) + 2C (dw). Moved besides: carries read, sums behind written and read,
// totals: about (4 + 8 + 8) (2C + NH)/32 = 1.25C, and 3 · 4 NH. Chunks scan from the last to the first. sync:
// ticket, flags of dN and dD, flags of dS; all zero before. back (B,chunks,2C+NH): sums past each chunk, of
// dN (C), dD (NH), dS (C).
template <typename S, int P, bool UNIFORM>
__global__ void __launch_bounds__(TSSA_WARPS* WARP, TSSA_BLOCKS)
    tssa_backward_kernel(S* __restrict__ dw, float* da, float* dtemp, float* back, float* totals, int* sync,
                         const S* __restrict__ dy, const S* __restrict__ w, const float* __restrict__ u,
                         const float* __restrict__ pi, const float* __restrict__ saved,
                         const float* __restrict__ temp, bool keep_starts, TssaSize z) {
    DYNAMIC_SHARED(float, shared);   // (4,NH,32), and (2,3,C) if keep_starts
    float *pi_s = shared, *mass_s = pi_s + z.NH * WARP, *x = mass_s + z.NH * WARP, *du = x + z.NH * WARP;
    const TssaStarts starts = keep_starts ? TssaStarts{du + z.NH * WARP, du + z.NH * WARP + TSSA_STARTS * z.C}
                                          : TssaStarts{NULL, NULL};
    const TssaChunk k = tssa_chunk<true>(sync, z);
    const int place = z.chunks - 1 - k.t0 / TSSA_CHUNK, wide = z.C + z.NH;
    const size_t row = ((size_t)k.b * z.T + k.t0) * z.C, chunk = (size_t)k.b * z.chunks + k.t0 / TSSA_CHUNK;
    const float* carry = saved + chunk * (z.C + wide);
    float *behind = back + chunk * (z.C + wide), *moment_totals = totals + (size_t)k.b * z.slots * wide;

    tssa_backward_masses(pi_s, mass_s, pi, carry, k, z);
    TSSA_TILE(tssa_backward_moments, moment_totals + (size_t)place * wide, x, starts.N, carry, pi_s, mass_s, dy + row,
              w + row, k, z);
    tssa_scan(behind, NULL, NULL, moment_totals, sync + 1 + k.b * z.slots, wide, place, z.chunks);
    if constexpr (UNIFORM) {
        tssa_backward_uniform(du, behind + wide, starts.S, z);
    } else {
        for (int h = warp_index(); h < z.NH; h += block_warps())
            x[h * WARP + lane_index()] += TSSA_TILE(
                tssa_backward_membership, moment_totals + (size_t)place * wide, behind, w + row, h, k, z);
        membership_backward(du, da, dtemp, x, pi_s, u, temp, k, z);
        float* energy_totals = totals + (size_t)z.B * z.slots * wide + (size_t)k.b * z.slots * z.C;
        TSSA_TILE(tssa_backward_energy_totals, energy_totals + (size_t)place * z.C, starts.S, carry, du, w + row, k, z);
        tssa_scan(behind + wide, NULL, NULL, energy_totals, sync + 1 + (z.B + k.b) * z.slots, z.C, place, z.chunks);
    }
    TSSA_TILE(tssa_backward_final, dw + row, starts, behind, carry, pi_s, mass_s, du, dy + row, w + row, k, z);
}

// dtemp[h] += Σ of the chunks' sums. partial (NH,chunks of all sequences); a block a head.
constexpr int TEMP_THREADS = 256;

__global__ void __launch_bounds__(TEMP_THREADS)
    temp_backward_kernel(float* dtemp, const float* partial, size_t chunks) {
    __shared__ float shared[TEMP_THREADS];
    float sum = 0.0f;
#pragma unroll 8
    for (size_t i = threadIdx.x; i < chunks; i += TEMP_THREADS)   // mutant: temp_of_the_first_chunks
        sum += partial[blockIdx.x * chunks + i];
    sum = block_tree_sum(sum, shared);
    if (threadIdx.x == 0) dtemp[blockIdx.x] += sum;
}

// ddenom_bias[h,t] += Σ_b HS temp[h] da[b,h,t], one thread a (h,t), sequences in order. Bytes a row: 4 NH, of
// L2.
__global__ void denom_bias_backward_kernel(float* ddenom_bias, const float* da, const float* temp,
                                           int block_size, TssaSize z) {
    const int t = blockIdx.x * blockDim.x + threadIdx.x, h = blockIdx.y;
    if (t >= z.T) return;
    float sum = 0.0f;
#pragma unroll 4
    for (int b = 0; b < z.B; b++) sum += da[((size_t)b * z.NH + h) * z.T + t];
    ddenom_bias[(size_t)h * block_size + t] += z.HS * temp[h] * sum;
}

// dw =; dtemp, ddenom_bias +=; da (B,NH,T), dtemp_partial (NH,B·chunks), back and totals are working space.
// Of a uniform membership there is no gradient: temp and denom_bias have none, and w has none by way of it.
template <typename S>
static void tssa_backward(cudaStream_t stream, S* dw, float* dtemp, float* ddenom_bias, float* da,
                          float* dtemp_partial, float* back, float* totals, int* sync, const S* dy,
                          const S* w, const float* u, const float* pi, const float* saved, const float* temp,
                          int membership, int block_size, int B, int T, int C, int NH) {
    const TssaSize z = tssa_size(B, T, C, NH);
    const size_t least = 4 * (size_t)NH * WARP * sizeof(float), starts = 2 * TSSA_STARTS * (size_t)C * sizeof(float);
    const bool pairs = tssa_pairs(z), keep_starts = least + starts <= TSSA_SHARED;
    const auto tssa_backward_variant =
        membership == TOST_UNIFORM
            ? (pairs ? tssa_backward_kernel<S, 2, true> : tssa_backward_kernel<S, 1, true>)
            : (pairs ? tssa_backward_kernel<S, 2, false> : tssa_backward_kernel<S, 1, false>);
    LAUNCH(tssa_backward_variant, B * z.chunks, tssa_threads(NH), least + keep_starts * starts, stream, dw, da,
           dtemp_partial, back, totals, sync, dy, w, u, pi, saved, temp, keep_starts, z);
    if (membership == TOST_UNIFORM) return;
    LAUNCH(temp_backward_kernel, NH, TEMP_THREADS, 0, stream, dtemp, dtemp_partial, (size_t)B * z.chunks);
    LAUNCH(denom_bias_backward_kernel, dim3(div_up(T, 128), NH), 128, 0, stream, ddenom_bias, da, temp,
           block_size, z);
}

// ---------------------------------------------------------------------------------------------
// GELU, the exact one:  y = x Φ(x). cuBLASLt's epilogue is the tanh form, so it stands in kernels of its own.

constexpr int GELU_PACK = 8, GELU_THREADS = 128;

// e^(-x²/2)
__device__ inline float normal_bell(float x) { return power_of_2(x * (x * -0.72134752f)); }

// Φ(x) = 1 - Φ(-x), and for z ≥ 0:  Φ(-z) = P(t) e^(-z²/2),  t = 1/(1 + z/4), P fitted for the least relative error,
// 9e-8 up to z = 9, where rounding adds as much again. It takes half of erff's instructions, and shares the bell
// with the slope.
__device__ inline float normal_cdf(float x, float bell) {
    const float t = reciprocal(1.0f + 0.25f * fabsf(x));
    float p = -9.92023535e-2f;
    p = p * t + 3.78244357e-1f;
    p = p * t - 3.40745135e-1f;
    p = p * t + 3.61256631e-1f;
    p = p * t - 2.56326757e-2f;
    p = p * t + 1.30510810e-1f;
    p = p * t + 9.52933651e-2f;
    p = (p * t + 2.75036677e-4f) * bell;
    return x < 0.0f ? p : 1.0f - p;
}

// Fewest bytes an element: 2 (x) + 2 (y).
template <typename S> __global__ void gelu_forward_kernel(S* y, const S* x, size_t n) {
    const size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * GELU_PACK;
    if (i + GELU_PACK <= n) {
        float v[GELU_PACK];
        load_pack<GELU_PACK>(v, x + i);
#pragma unroll
        for (int j = 0; j < GELU_PACK; j++) v[j] *= normal_cdf(v[j], normal_bell(v[j]));
        store_pack<GELU_PACK>(y + i, v);
    } else {
        for (size_t j = i; j < n; j++) {
            const float v = to_float(x[j]);
            y[j] = from_float<S>(v * normal_cdf(v, normal_bell(v)));
        }
    }
}

template <typename S> static void gelu_forward(cudaStream_t stream, S* y, const S* x, size_t n) {
    LAUNCH((gelu_forward_kernel<S>), div_up(n, 256 * GELU_PACK), 256, 0, stream, y, x, n);
}

// dx = dy (Φ(x) + x φ(x)), φ(x) = e^(-x²/2)/√(2π), x (rows,N); in place: dx comes in as dy. partial (blocks,N): Σ of dx
// over a block's rows, which are every gridDim.x-th. Fewest bytes an element: 4 (dx) + 2 (x).
template <typename S, int VEC>
__global__ void __launch_bounds__(GELU_THREADS)
    gelu_backward_kernel(S* __restrict__ dx, float* __restrict__ partial, const S* __restrict__ x, size_t rows, int N) {
    const int c = (blockIdx.y * GELU_THREADS + threadIdx.x) * VEC;
    if (c >= N) return;
    float sum[VEC] = {};
#pragma unroll 2
    for (size_t row = blockIdx.x; row < rows; row += gridDim.x) {
        float d[VEC], v[VEC];
        load_pack<VEC>(d, dx + row * N + c);
        load_pack<VEC>(v, x + row * N + c);
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            const float bell = normal_bell(v[i]);
            d[i] *= normal_cdf(v[i], bell) + v[i] * bell * 0.398942280f;
            sum[i] += d[i];
        }
        store_pack<VEC>(dx + row * N + c, d);
    }
    store_pack<VEC>(partial + (size_t)blockIdx.x * N + c, sum);
}

// dx =, in place of dy; db += (may be NULL): Σ_rows dx, the bias gradient of the Linear that made x.
template <typename S>
static void gelu_backward(cudaStream_t stream, S* dx, float* db, float* partial, const S* x, size_t rows, int N) {
    // dx, x (rows,N), N a multiple of 4; partial (COLUMN_BLOCKS,N)
    const int blocks = (int)min(rows, (size_t)COLUMN_BLOCKS);
    if (N % GELU_PACK == 0)
        LAUNCH((gelu_backward_kernel<S, GELU_PACK>), dim3(blocks, div_up(N, GELU_THREADS * GELU_PACK)), GELU_THREADS, 0,
               stream, dx, partial, x, rows, N);
    else
        LAUNCH((gelu_backward_kernel<S, 4>), dim3(blocks, div_up(N, GELU_THREADS * 4)), GELU_THREADS, 0, stream, dx,
               partial, x, rows, N);
    if (db) column_sum(stream, {{db}}, 1, partial, blocks, N);
}

// ---------------------------------------------------------------------------------------------
// Classifier, softmax and cross-entropy:  loss[row] = log Σ_v e^logit[row,v] - logit[row,target]

// Logits of a row stand `ld` apart, a multiple of 8 elements: packs are aligned whatever V is. What lies past
// V is not read by the matmuls; it is kept out of the sums and written as zero.
constexpr int LOGIT_PACK = 8, CLASSIFIER_THREADS = 1024, CLASSIFIER_STRIDE = CLASSIFIER_THREADS * LOGIT_PACK;

static size_t logits_ld(int V) { return ((size_t)V + LOGIT_PACK - 1) / LOGIT_PACK * LOGIT_PACK; }

constexpr float LOG2_E = 1.44269504f;

// Packs of a row that end past V hold numbers of no meaning there.
__device__ inline void mask_tail(float (&x)[LOGIT_PACK], int v, int V) {
    if (v + LOGIT_PACK <= V) return;
#pragma unroll
    for (int j = 0; j < LOGIT_PACK; j++)
        if (v + j >= V) x[j] = -INFINITY;
}

// top, the largest, and sum, Σ e^(x - top)
struct SoftmaxStatistics { float top, sum; };

template <typename S>
__device__ inline SoftmaxStatistics softmax_statistics(const S* logits, int V) {  // of this thread's packs
    SoftmaxStatistics mine = {-INFINITY, 0.0f};
    for (int v = threadIdx.x * LOGIT_PACK; v < V; v += CLASSIFIER_STRIDE) {
        float x[LOGIT_PACK], top = mine.top;
        load_pack<LOGIT_PACK>(x, logits + v);
        mask_tail(x, v, V);
#pragma unroll
        for (int j = 0; j < LOGIT_PACK; j++) top = fmaxf(top, x[j]);
        mine.sum *= power_of_2((mine.top - top) * LOG2_E);
        mine.top = top;
#pragma unroll
        for (int j = 0; j < LOGIT_PACK; j++) mine.sum += power_of_2(x[j] * LOG2_E - top * LOG2_E);
    }
    return mine;
}

// The statistics of all lanes together. A lane that has seen no number has sum 0.
__device__ inline SoftmaxStatistics softmax_merge(SoftmaxStatistics mine) {
    const float top = warp_max(mine.top);
    return {top, warp_sum(mine.sum == 0.0f ? 0.0f : mine.sum * power_of_2((mine.top - top) * LOG2_E))};
}

// Losses of a chunk of rows; with `gradient` the logits become theirs,
//   dlogits = grad_scale (softmax(logits) - onehot(target)),   0 where the target is -1.
// A block a row, two on a multiprocessor, whose cache holds both rows for the second reading: it starts with what was
// read last. Fewest bytes a row: 2V read, 2V written.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
constexpr int CLASSIFIER_BLOCKS = 1;   // these hold 1,536 threads
#else
[[maybe_unused]] constexpr int CLASSIFIER_BLOCKS = 2;
#endif

template <typename S>
__global__ void __launch_bounds__(CLASSIFIER_THREADS, CLASSIFIER_BLOCKS)
    cross_entropy_kernel(float* loss, S* logits, const int32_t* targets, const StepHeader* step,
                         bool gradient, int V, int ld) {
    __shared__ SoftmaxStatistics shared[CLASSIFIER_THREADS / WARP];
    S* l = logits + (size_t)blockIdx.x * ld;
    const int target = targets[blockIdx.x];
    const float scale = step->grad_scale;
    if (target < 0) {
        const float zeros[LOGIT_PACK] = {};
        if (threadIdx.x == 0) loss[blockIdx.x] = 0.0f;
        if (gradient)
            for (int v = threadIdx.x * LOGIT_PACK; v < ld; v += CLASSIFIER_STRIDE)
                store_pack<LOGIT_PACK>(l + v, zeros);
        return;
    }
    const float target_logit = to_float(l[target]);
    const SoftmaxStatistics of_warp = softmax_merge(softmax_statistics(l, V));
    if (lane_index() == 0) shared[warp_index()] = of_warp;
    __syncthreads();   // the target's logit too has been read by all, before it is overwritten
    const bool holds = lane_index() < CLASSIFIER_THREADS / WARP;
    const SoftmaxStatistics row =
        softmax_merge(holds ? shared[lane_index()] : SoftmaxStatistics{-INFINITY, 0.0f});
    if (threadIdx.x == 0) loss[blockIdx.x] = logf(row.sum) + (row.top - target_logit);
    if (!gradient) return;
    const float shift = -row.top * LOG2_E, share = scale / row.sum;
    const int last = threadIdx.x * LOGIT_PACK + (ld - 1) / CLASSIFIER_STRIDE * CLASSIFIER_STRIDE;
    for (int v = last < ld ? last : last - CLASSIFIER_STRIDE; v >= 0; v -= CLASSIFIER_STRIDE) {
        float x[LOGIT_PACK];
        load_pack<LOGIT_PACK>(x, l + v);
        mask_tail(x, v, V);
#pragma unroll
        for (int j = 0; j < LOGIT_PACK; j++) x[j] = power_of_2(x[j] * LOG2_E + shift) * share;
        if (target - v >= 0 && target - v < LOGIT_PACK) {
#pragma unroll
            for (int j = 0; j < LOGIT_PACK; j++)
                x[j] -= v + j == target ? scale : 0.0f;   // mutant: target_not_subtracted
        }
        store_pack<LOGIT_PACK>(l + v, x);
    }
}

// total += Σ of the losses, in double and in a fixed order; one block
constexpr int LOSS_THREADS = 1024;

__global__ void __launch_bounds__(LOSS_THREADS)
    loss_sum_kernel(double* total, const float* loss, size_t rows) {
    __shared__ double shared[LOSS_THREADS];
    double sum = 0.0;
    for (size_t row = threadIdx.x; row < rows; row += LOSS_THREADS) sum += loss[row];
    sum = block_tree_sum(sum, shared);
    if (threadIdx.x == 0) *total += sum;
}

// Chunks of rows, so that (rows,V) logits never stand whole. The sum of the losses is added to *total,
// unless that is NULL; dwte NULL: no gradients, else dx =; dwte +=.
template <typename S>
static void classifier_forward_backward(Matmul* mm, double* total, float* loss, S* dx, float* dwte, S* logits,
                                        const S* x, const S* wte, const int32_t* targets,
                                        const StepHeader* step, size_t rows, size_t chunk, int V, int C) {
    // loss, targets (rows); dx, x (rows,C); dwte, wte (V,C); logits (chunk,ld): working space
    const int ld = (int)logits_ld(V);
    for (size_t row = 0; row < rows; row += chunk) {
        const int n = (int)(rows - row < chunk ? rows - row : chunk);
        matmul(mm, Product<S, S>{logits, x + row * C, wte, false, true, n, V, C, ld, C, C, 0.0f, NULL});
        LAUNCH((cross_entropy_kernel<S>), n, CLASSIFIER_THREADS, 0, mm->stream, loss + row, logits,
               targets + row, step, dwte != NULL, V, ld);
        if (!dwte) continue;
        matmul(mm, Product<S, S>{dx + row * C, logits, wte, false, false, n, C, V, C, ld, C, 0.0f, NULL});
        matmul(mm, Product<S, float>{dwte, logits, x + row * C, true, false, V, C, n, C, ld, C, 1.0f, NULL});
    }
    if (total) LAUNCH(loss_sum_kernel, 1, LOSS_THREADS, 0, mm->stream, total, loss, rows);
}

// ---------------------------------------------------------------------------------------------
// The model's memory: parameters, gradients and moments as flat arrays under the one table, for bf16 a copy
// of the parameters too; activations under the tables below. With gradients each layer keeps its own
// activations, else all layers share one set; so they do where backward computes them again, from what each
// layer keeps.

#define X(field, place, name, shape, init, decay, when) T* field;
template <typename T> struct TostParams {
    TOST_PARAMS(X)
};  // the tensors outside of the layers, and one layer's; NULL where absent
#undef X

// Rows: field, type, elements; rows = B·T.
#define LAYER_ACTIVATIONS(X) \
    X(ln_1,       S,       rows * C)                     /* ln_1(x) */ \
    X(w,          S,       rows * C)                     /* c_attn(ln_1) */ \
    X(u,          float,   rows * NH)                    /* (B,NH,T) */ \
    X(pi,         float,   rows * NH)                    /* (B,NH,T) */ \
    X(tssa_saved, float,   B * chunks * tssa_state_size(C, NH)) \
    X(y,          S,       rows * C) \
    X(attn_out,   S,       rows * C)                     /* c_proj(y) */ \
    X(x_mid,      float,   rows * C)                     /* x + gamma1 attn_out */ \
    X(ln_2,       S,       rows * C) \
    X(mean_2,     float,   rows) \
    X(rstd_2,     float,   rows) \
    X(fc,         S,       rows * 4 * C) \
    X(gelu,       S,       rows * 4 * C) \
    X(mlp_out,    S,       rows * C)

#define LAYER_RESIDENT(X) \
    X(mean_1,     float,   rows)                         /* of ln_1 */ \
    X(rstd_1,     float,   rows) \
    X(x_out,      float,   rows * C)                     /* x_mid + gamma2 mlp_out */

#define SHARED_BUFFERS(X) \
    X(input,      int32_t, step_input_size(rows))        /* StepHeader and StepInput */ \
    X(decays,     uint8_t, train * m->tensors.flat_size / DECAY_GROUP) \
    X(x,          float,   rows * C)                     /* embedding: the input of layer 0 */ \
    X(ln_f,       S,       rows * C) \
    X(mean_f,     float,   rows) \
    X(rstd_f,     float,   rows) \
    X(logits,     char,    logits_bytes)                 /* a chunk of rows, of S or of float */ \
    X(losses,     float,   rows) \
    X(scalars,    double,  2)                            /* sum of losses since the last read_loss; Σ g² */ \
    X(norm,       double,  train * NORM_BLOCKS) \
    X(decode,     double,  L * B * tssa_state_size(C, NH)) \
    X(totals,     float,   B * scan_slots(chunks) * tssa_state_size(C, NH)) \
    X(tssa_sync,  int,     (1 + m->options.recompute) * L * tssa_sync_size(B, T)) \
    X(dx,         float,   train * rows * C)             /* gradient of the residual stream */ \
    X(dbranch,    S,       train * rows * C) \
    X(scratch_btc,    S,       train * rows * C)             /* of y, w and the LayerNorms' outputs in turn */ \
    X(scratch_bt4c,      S,       train * rows * 4 * C)         /* of gelu, then of fc */ \
    X(da,         float,   train * rows * NH) \
    X(dtemp,      float,   train * B * chunks * NH) \
    X(back,       float,   train * B * chunks * tssa_state_size(C, NH)) \
    X(columns,    float,   train * COLUMN_BLOCKS * 4 * C) /* sums of blocks of rows */ \
    X(embed,      float,   train * (rows / (EMBED_SEGMENT / 2) + 1) * C) \
    X(workspace,  char,    MATMUL_WORKSPACE)

constexpr int DECAY_GROUP = 32;      // elements: tensors start at multiples of it
constexpr int NORM_BLOCKS = 1024;

#define X(field, type, elements) type* field;
template <typename S> struct LayerActivations { LAYER_ACTIVATIONS(X) LAYER_RESIDENT(X) };
template <typename S> struct Buffers { SHARED_BUFFERS(X) };
#undef X

// A pass over the model as a captured graph. A shape's first call runs as it is, which loads kernels and
// chooses algorithms; its second is captured.
struct PassGraph {
    int B, T;                        // 0: none yet
    cudaGraphExec_t exec;            // NULL: not captured yet
};

enum { PASS_TRAIN, PASS_EVAL, PASS_BACKWARD, PASS_DECODE, PASSES };

struct TostModel {
    TostConfig        config;
    TostEngineOptions options;
    TostTensors       tensors;
    float*            state[4];            // by TostState: params, grads, m, v; each tensors.flat_size
    char*             arena;               // all device memory, one allocation
    size_t            arena_bytes, logits_rows, logits_bytes;
    cudaStream_t      stream;
    Matmul            mm;
    int32_t*          staging[2];          // pinned copies of Buffers.input, filled in turn
    cudaEvent_t       staged[2];           // its copy to the device is done
    int               turn;
    double*           host_scalars;        // pinned copy of Buffers.scalars
    bool              scalars_read;        // and it holds what they are
    int32_t*          token_counts;        // (V)
    PassGraph         graph[PASSES];
    int               B, T;                // of the last forward
    int               held;                // with recompute: the layer whose activations stand
    int               n_decode, position;  // sequences and next position of the recurrent decode
    int64_t           loss_count;          // since the last read_loss
};

template <typename S> struct TypedModel : TostModel {
    S* weights;  // the parameters as matmul operands; for float, state[TOST_PARAM] itself
    // (L); without gradients all alike, with recompute all but for what is kept
    LayerActivations<S>* layer;
    Buffers<S>           buf;
};

// Where the parts of a step's input stand, in int32 elements from the header on: the same on the host and on
// the device.
struct StepInput { int32_t *inputs, *targets, *order, *start, *dest, *big_token, *big_first; };

constexpr size_t STEP_HEADER = sizeof(StepHeader) / sizeof(int32_t);

static size_t step_input_size(size_t rows) {
    return STEP_HEADER + 5 * rows + 1 + 2 * (rows / EMBED_SEGMENT) + 3;
}
static StepInput step_input(int32_t* base, size_t rows) {
    StepInput s;
    s.inputs = base + STEP_HEADER;
    s.targets = s.inputs + rows;
    s.order = s.targets + rows;
    s.start = s.order + rows;
    s.dest = s.start + rows + 1;
    s.big_token = s.dest + rows;
    s.big_first = s.big_token + rows / EMBED_SEGMENT + 1;
    return s;
}

// `rows` in chunks of equal size, none over `most`; several are multiples of ROW_TILE, as `most` then is.
constexpr size_t ROW_TILE = 128;     // of a matrix product

static size_t even_chunk(size_t rows, size_t most) {
    const size_t chunks = (rows + most - 1) / most, even = (rows + chunks - 1) / chunks;
    return chunks == 1 ? rows : (even + ROW_TILE - 1) / ROW_TILE * ROW_TILE;
}

// Rows of logits worked on at once: up to 1 GiB of them; more save little, since each chunk reads and writes dwte once.
static size_t classifier_chunk(size_t rows, int V, size_t logit_bytes) {
    const size_t most = ((size_t)1 << 30) / (logit_bytes * (size_t)V) / ROW_TILE * ROW_TILE;
    return even_chunk(rows, most > 2 * ROW_TILE ? most : 2 * ROW_TILE);
}

// The next `bytes` of the arena; with base NULL it only counts.
static void* carve(char* base, size_t* used, size_t bytes) {
    const size_t size = (bytes + 255) / 256 * 256 + CUDA_REDZONE_BYTES;
    char* p = base ? base + *used : NULL;
    *used += size;
    if (p) cuda_on_host_poison(p + size - CUDA_REDZONE_BYTES, CUDA_REDZONE_BYTES);
    return p;
}

// Lays everything out in one arena; returns the bytes it takes. base NULL: counts, and writes pointers no one
// may use.
template <typename S> static size_t lay_out(TypedModel<S>* m, char* base) {
    const TostConfig* c = &m->config;
    const size_t C = c->n_embd, NH = c->n_head, V = c->vocab_size, L = c->n_layer, B = m->options.max_batch,
                 T = m->options.max_seq;
    const size_t rows = B * T, chunks = div_up(T, TSSA_CHUNK), train = m->options.training,
                 flat = m->tensors.flat_size;
    const size_t logits_rows = m->logits_rows = classifier_chunk(rows, c->vocab_size, sizeof(S));
    const size_t logits_bytes = m->logits_bytes =
        max(logits_rows * logits_ld(c->vocab_size) * sizeof(S), B * V * sizeof(float));
    size_t used = 0;
    for (int s = 0; s < (m->options.training ? 4 : 1); s++)
        m->state[s] = (float*)carve(base, &used, flat * sizeof(float));
    m->weights =
        sizeof(S) == sizeof(float) ? (S*)m->state[TOST_PARAM] : (S*)carve(base, &used, flat * sizeof(S));
#define X(field, type, elements) m->buf.field = (type*)carve(base, &used, (elements) * sizeof(type));
    SHARED_BUFFERS(X)
#undef X
    for (size_t l = 0; l < L; l++) {
#define X(field, type, elements) m->layer[l].field = (type*)carve(base, &used, (elements) * sizeof(type));
        if (l > 0 && (!train || m->options.recompute)) m->layer[l] = m->layer[0];
        else { LAYER_ACTIVATIONS(X) }
        if (l == 0 || train) { LAYER_RESIDENT(X) }
#undef X
    }
    return used;
}

template <typename S> static TypedModel<S>* model_new(const TostConfig* c, const TostEngineOptions* o) {
    TypedModel<S>* m = new TypedModel<S>();
    m->config = *c;
    m->options = *o;
    m->options.recompute = o->recompute && o->training;
    m->tensors = tost_tensors(c);
    m->layer = (LayerActivations<S>*)xcalloc(c->n_layer, sizeof *m->layer);
    m->token_counts = (int32_t*)xcalloc(c->vocab_size, sizeof(int32_t));
    m->arena_bytes = lay_out(m, (char*)NULL);
    return m;
}

// What model_new took, and, where there is a device, what model_open took.
template <typename S> static void model_free(TypedModel<S>* m) {
    if (m->stream) CUDA_CHECK(cudaStreamSynchronize(m->stream));
    for (PassGraph& g : m->graph)
        if (g.exec) CUDA_CHECK(cudaGraphExecDestroy(g.exec));
    matmul_free(&m->mm);
    for (int i = 0; i < 2; i++) {
        if (m->staged[i]) CUDA_CHECK(cudaEventDestroy(m->staged[i]));
        if (m->staging[i]) CUDA_CHECK(cudaFreeHost(m->staging[i]));
    }
    if (m->host_scalars) CUDA_CHECK(cudaFreeHost(m->host_scalars));
    if (m->arena) CUDA_CHECK(cudaFree(m->arena));
    if (m->stream) CUDA_CHECK(cudaStreamDestroy(m->stream));
    tost_tensors_free(&m->tensors);
    free(m->layer);
    free(m->token_counts);
    delete m;
}

// Pointers into one flat array: the tensors outside of the layers, and those of layer l.
template <typename T> static TostParams<T> tost_layer(const TostTensors* tensors, T* base, int l) {
    TostParams<T> p;
#define X(field, place, name, shape, init, decay, when) { \
        const size_t offset = tost_row_offset(tensors, TOST_ROW_##field, l); \
        p.field = offset == SIZE_MAX ? NULL : base + offset; }
    TOST_PARAMS(X)
#undef X
    return p;
}

// ---------------------------------------------------------------------------------------------
// A step's input: filled on the host, copied once, ahead of the pass that reads it

// The order of rows by token that embedding_backward sums in: a counting sort. counts (V): working space.
static void embed_order(StepHeader* header, StepInput s, int32_t* counts, int rows, int V) {
    int at = 0, segments = 0, bigs = 0, partials = 0;
    memset(counts, 0, V * sizeof *counts);
    for (int row = 0; row < rows; row++) counts[s.inputs[row]]++;
    for (int token = 0; token < V; token++) {
        const int n = counts[token];
        const bool big = n > EMBED_SEGMENT;
        counts[token] = at;
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
    for (int row = 0; row < rows; row++) s.order[counts[s.inputs[row]]++] = row;
    header->n_segments = segments;
    header->n_big = bigs;
}

// Two staging buffers in turn: the copy of the last but one has to be done, which it is unless the host is
// two steps ahead.
static int32_t* stage_begin(TostModel* m) {
    const int turn = m->turn;
    CUDA_CHECK(cudaEventSynchronize(m->staged[turn]));   // mutant: input_overwritten
    return m->staging[turn];
}

static void stage_end(TostModel* m, int32_t* device, const StepHeader* header, size_t used) {
    int32_t* base = m->staging[m->turn];
    memcpy(base, header, sizeof *header);
    CUDA_CHECK(cudaMemcpyAsync(device, base, used * sizeof *base, cudaMemcpyHostToDevice, m->stream));
    CUDA_CHECK(cudaEventRecord(m->staged[m->turn], m->stream));
    m->turn = 1 - m->turn;
}

static void stage_input(TostModel* m, int32_t* device, const int32_t* inputs, const int32_t* targets,
                        int first, int B, int T, float grad_scale) {
    const size_t rows = (size_t)B * T;
    const StepInput s = step_input(stage_begin(m), rows);
    StepHeader header = {};
    header.first = first;
    header.grad_scale = grad_scale;
    memcpy(s.inputs, inputs, rows * sizeof *inputs);
    if (targets) {
        memcpy(s.targets, targets, rows * sizeof *targets);
        for (size_t row = 0; row < rows; row++) m->loss_count += targets[row] >= 0;
    }
    const bool train = grad_scale != 0.0f;
    if (train) embed_order(&header, s, m->token_counts, (int)rows, m->config.vocab_size);
    stage_end(m, device, &header,
              train ? step_input_size(rows) : STEP_HEADER + (targets ? 2 : 1) * rows);
}

// Runs `pass`, which only launches on the model's stream and depends on nothing but the shape, or its graph.
template <typename Pass> static void run_pass(TostModel* m, int which, int B, int T, Pass pass) {
    PassGraph* g = &m->graph[which];
    if (g->B != B || g->T != T) {   // mutant: graph_of_another_shape
        if (g->exec) CUDA_CHECK(cudaGraphExecDestroy(g->exec));
        *g = {B, T, NULL};
        pass();
        return;
    }
    if (!g->exec) {
        cudaGraph_t graph;
        CUDA_CHECK(cudaStreamBeginCapture(m->stream, cudaStreamCaptureModeThreadLocal));
        pass();
        CUDA_CHECK(cudaStreamEndCapture(m->stream, &graph));
        CUDA_CHECK(cudaGraphInstantiate(&g->exec, graph, 0));
        CUDA_CHECK(cudaGraphDestroy(graph));
    }
    CUDA_CHECK(cudaGraphLaunch(g->exec, m->stream));
}

// ---------------------------------------------------------------------------------------------
// The passes. A residual is added where the next LayerNorm reads it: layer_forward starts from a finished
// ln_1 and ends with the LayerNorm that follows the layer; layer_backward mirrors it.

// The LayerNorm after a layer: the next layer's ln_1, or ln_f.
template <typename S> struct NextNorm { S* y; float *mean, *rstd; const float *w, *b; };

template <typename S>
static NextNorm<S> next_norm(const TypedModel<S>* m, int l) {  // after layer l; -1: after the embedding
    const TostParams<float> p =
        tost_layer(&m->tensors, m->state[TOST_PARAM], l + 1 < m->config.n_layer ? l + 1 : 0);
    if (l + 1 == m->config.n_layer) return {m->buf.ln_f, m->buf.mean_f, m->buf.rstd_f, p.ln_f_w, p.ln_f_b};
    const LayerActivations<S>* a = &m->layer[l + 1];
    return {a->ln_1, a->mean_1, a->rstd_1, p.ln_1_w, p.ln_1_b};
}

// The residual stream that enters layer l; l = L: that leaves the last.
template <typename S> static const float* layer_input(const TypedModel<S>* m, int l) {
    return l > 0 ? m->layer[l - 1].x_out : m->buf.x;
}

// The branches of layer l over rows = B·T, up to mlp_out; states: of this layer, sync: its flags, zero.
template <typename S>
static void layer_branches(TypedModel<S>* m, int l, TssaStates states, int* sync, int B, int T) {
    const LayerActivations<S>* a = &m->layer[l];
    const TostParams<float> p = tost_layer(&m->tensors, m->state[TOST_PARAM], l);
    const TostParams<S> w = tost_layer(&m->tensors, m->weights, l);
    const int C = m->config.n_embd, NH = m->config.n_head;
    const size_t rows = (size_t)B * T;
    Matmul* mm = &m->mm;
    linear_forward(mm, a->w, a->ln_1, w.attn_w, w.attn_b, rows, C, C);
    tssa_forward(m->stream, a->y, a->u, a->pi, a->tssa_saved, states, m->buf.totals, sync, a->w, p.temp,
                 p.denom_bias, (const StepHeader*)m->buf.input, m->config.membership, m->config.block_size, B, T,
                 C, NH);
    linear_forward(mm, a->attn_out, a->y, w.attn_proj_w, w.attn_proj_b, rows, C, C);
    residual_layernorm_forward(m->stream, a->x_mid, a->ln_2, a->mean_2, a->rstd_2, layer_input(m, l),
                               a->attn_out, p.gamma1, p.ln_2_w, p.ln_2_b, rows, C);
    linear_forward(mm, a->fc, a->ln_2, w.fc_w, w.fc_b, rows, C, 4 * C);
    gelu_forward(m->stream, a->gelu, a->fc, rows * 4 * C);
    linear_forward(mm, a->mlp_out, a->gelu, w.fc_proj_w, w.fc_proj_b, rows, 4 * C, C);
}

template <typename S> static void layer_forward(TypedModel<S>* m, int l, TssaStates states, int B, int T) {
    const LayerActivations<S>* a = &m->layer[l];
    const TostParams<float> p = tost_layer(&m->tensors, m->state[TOST_PARAM], l);
    const NextNorm<S> next = next_norm(m, l);
    layer_branches(m, l, states, m->buf.tssa_sync + l * tssa_sync_size(B, T), B, T);
    residual_layernorm_forward(m->stream, a->x_out, next.y, next.mean, next.rstd, a->x_mid, a->mlp_out,
                               p.gamma2, next.w, next.b, (size_t)B * T, m->config.n_embd);
}

// The LayerNorm of the stream x that enters layer l + 1, or ln_f.
template <typename S> static void norm_forward(TypedModel<S>* m, int l, const float* x, size_t rows) {
    const NextNorm<S> next = next_norm(m, l);
    residual_layernorm_forward(m->stream, (float*)NULL, next.y, next.mean, next.rstd, x, (const S*)NULL,
                               (const float*)NULL, next.w, next.b, rows, m->config.n_embd);
}

// With recompute: the activations of layer l once more, the flags of its scans being those of the second half.
template <typename S> static void layer_again(TypedModel<S>* m, int l, int B, int T) {
    norm_forward(m, l - 1, layer_input(m, l), (size_t)B * T);
    layer_branches(m, l, NO_STATES, m->buf.tssa_sync + (m->config.n_layer + l) * tssa_sync_size(B, T), B, T);
}

// buf.dx: the gradient of x_out becomes that of x; buf.dbranch: that of this layer's mlp_out becomes that of
// the one below, whose activations then stand, with recompute in the place of this layer's.
template <typename S> static void layer_backward(TypedModel<S>* m, int l, int B, int T) {
    const LayerActivations<S>* a = &m->layer[l];
    const Buffers<S>* buf = &m->buf;
    const TostParams<float> p = tost_layer(&m->tensors, m->state[TOST_PARAM], l),
                            g = tost_layer(&m->tensors, m->state[TOST_GRAD], l);
    const TostParams<S> w = tost_layer(&m->tensors, m->weights, l);
    const int C = m->config.n_embd, NH = m->config.n_head;
    const size_t rows = (size_t)B * T;
    Matmul* mm = &m->mm;
    float* columns = buf->columns;
    linear_backward(mm, buf->scratch_bt4c, g.fc_proj_w, buf->dbranch, a->gelu, w.fc_proj_w, rows, 4 * C, C);
    gelu_backward(m->stream, buf->scratch_bt4c, g.fc_b, columns, a->fc, rows, 4 * C);
    linear_backward(mm, buf->scratch_btc, g.fc_w, buf->scratch_bt4c, a->ln_2, w.fc_w, rows, C, 4 * C);
    layernorm_residual_backward(m->stream, buf->dx, buf->dbranch, g.ln_2_w, g.ln_2_b, g.gamma1, g.attn_proj_b, columns,
                                buf->scratch_btc, a->x_mid, a->mean_2, a->rstd_2, p.ln_2_w, a->attn_out, p.gamma1,
                                true, rows, C);

    linear_backward(mm, buf->scratch_btc, g.attn_proj_w, buf->dbranch, a->y, w.attn_proj_w, rows, C, C);
    tssa_backward(m->stream, buf->dbranch, g.temp, g.denom_bias, buf->da, buf->dtemp, buf->back, buf->totals,
                  buf->tssa_sync + l * tssa_sync_size(B, T), buf->scratch_btc, a->w, a->u, a->pi, a->tssa_saved,
                  p.temp, m->config.membership, m->config.block_size, B, T, C, NH);
    linear_backward(mm, buf->scratch_btc, g.attn_w, buf->dbranch, a->ln_1, w.attn_w, rows, C, C);
    bias_backward(mm, g.attn_b, columns, buf->dbranch, rows, C);
    if (l > 0 && m->options.recompute) layer_again(m, l - 1, B, T);
    const TostParams<float> below = tost_layer(&m->tensors, m->state[TOST_PARAM], l > 0 ? l - 1 : 0);
    const TostParams<float> dbelow = tost_layer(&m->tensors, m->state[TOST_GRAD], l > 0 ? l - 1 : 0);
    layernorm_residual_backward(m->stream, buf->dx, buf->dbranch, g.ln_1_w, g.ln_1_b,
                                l > 0 ? dbelow.gamma2 : NULL, l > 0 ? dbelow.fc_proj_b : NULL, columns,
                                buf->scratch_btc, layer_input(m, l),
                                a->mean_1, a->rstd_1, p.ln_1_w, l > 0 ? m->layer[l - 1].mlp_out : (S*)NULL,
                                below.gamma2, true, rows, C);
}

static void clear_sync(TostModel* m, int* sync, int B, int T) {   // of all layers
    const size_t flags = (1 + m->options.recompute) * m->config.n_layer * tssa_sync_size(B, T);
    CUDA_CHECK(cudaMemsetAsync(sync, 0, flags * sizeof *sync, m->stream));
}

// The activations of layer l stand: with recompute they are computed again, unless no other layer's came after
// them.
template <typename S> static void hold_layer(TypedModel<S>* m, int l) {
    if (!m->options.recompute || m->held == l) return;
    clear_sync(m, m->buf.tssa_sync, m->B, m->T);
    layer_again(m, l, m->B, m->T);
    m->held = l;
}

// Embedding, layers and ln_f. states: of layer 0, those of the others behind.
template <typename S> static void model_forward(TypedModel<S>* m, TssaStates states, int B, int T) {
    const int C = m->config.n_embd;
    const size_t rows = (size_t)B * T, state_size = B * tssa_state_size(C, m->config.n_head);
    const TostParams<float> p = tost_layer(&m->tensors, m->state[TOST_PARAM], 0);
    const StepHeader* step = (const StepHeader*)m->buf.input;
    clear_sync(m, m->buf.tssa_sync, B, T);
    embedding_forward(m->stream, m->buf.x, step_input(m->buf.input, rows).inputs, p.wte, p.wpe, step, B, T,
                      C);
    norm_forward(m, -1, m->buf.x, rows);
    for (int l = 0; l < m->config.n_layer; l++) {
        layer_forward(m, l, states, B, T);
        if (states.start) states.start += state_size / states.copies;
        if (states.end) states.end += state_size;
    }
}

template <typename S>
static void typed_forward(TypedModel<S>* m, const int32_t* inputs, const int32_t* targets, int B, int T,
                          float grad_scale) {
    assert(B <= m->options.max_batch && T <= m->options.max_seq && T <= m->config.block_size);
    assert(grad_scale == 0.0f || m->options.training);
    const size_t rows = (size_t)B * T;
    const bool train = targets && grad_scale != 0.0f;
    m->B = B;
    m->T = T;
    m->held = m->config.n_layer - 1;
    m->scalars_read = false;
    stage_input(m, m->buf.input, inputs, targets, 0, B, T, train ? grad_scale : 0.0f);
    if (!targets) {
        model_forward(m, NO_STATES, B, T);
        return;
    }
    run_pass(m, train ? PASS_TRAIN : PASS_EVAL, B, T, [=] {
        model_forward(m, NO_STATES, B, T);
        float* dwte = train ? tost_layer(&m->tensors, m->state[TOST_GRAD], 0).wte : NULL;
        classifier_forward_backward(
            &m->mm, m->buf.scalars, m->buf.losses, m->buf.scratch_btc, dwte, (S*)m->buf.logits, m->buf.ln_f,
            tost_layer(&m->tensors, m->weights, 0).wte, step_input(m->buf.input, rows).targets,
            (const StepHeader*)m->buf.input, rows, even_chunk(rows, m->logits_rows), m->config.vocab_size,
            m->config.n_embd);
    });
}

template <typename S> static void model_backward(TypedModel<S>* m, int B, int T) {
    const int C = m->config.n_embd, last = m->config.n_layer - 1;
    const size_t rows = (size_t)B * T;
    const Buffers<S>* buf = &m->buf;
    const TostParams<float> p = tost_layer(&m->tensors, m->state[TOST_PARAM], last),
                            g = tost_layer(&m->tensors, m->state[TOST_GRAD], last);
    clear_sync(m, buf->tssa_sync, B, T);
    layernorm_residual_backward(m->stream, buf->dx, buf->dbranch, g.ln_f_w, g.ln_f_b, g.gamma2, g.fc_proj_b,
                                buf->columns, buf->scratch_btc, m->layer[last].x_out, buf->mean_f, buf->rstd_f, p.ln_f_w,
                                m->layer[last].mlp_out, p.gamma2, false, rows, C);
    for (int l = last; l >= 0; l--) layer_backward(m, l, B, T);
    const StepInput s = step_input(buf->input, rows);
    embedding_backward(m->stream, g.wte, g.wpe, buf->embed, buf->dx,
                       {s.order, s.start, s.dest, s.big_token, s.big_first}, (const StepHeader*)buf->input, B,
                       T, C);
}

template <typename S> static void typed_backward(TypedModel<S>* m) {
    const int B = m->B, T = m->T;
    hold_layer(m, m->config.n_layer - 1);
    run_pass(m, PASS_BACKWARD, B, T, [=] { model_backward(m, B, T); });
    m->held = 0;
}

// The one place where an update waits for the device: both scalars, the loss and the norm, come at once.
static void read_scalars(TostModel* m, const double* device) {
    CUDA_CHECK(cudaMemcpyAsync(m->host_scalars, device, 2 * sizeof(double), cudaMemcpyDeviceToHost, m->stream));
    CUDA_CHECK(cudaStreamSynchronize(m->stream));
    m->scalars_read = true;
}

template <typename S> static void typed_read_loss(TypedModel<S>* m, double* sum, int64_t* count) {
    if (!m->scalars_read) read_scalars(m, m->buf.scalars);
    CUDA_CHECK(cudaMemsetAsync(m->buf.scalars, 0, sizeof(double), m->stream));
    m->scalars_read = false;
    *sum = m->host_scalars[0];
    *count = m->loss_count;
    m->loss_count = 0;
}

// (n,V) float logits of n rows of ln_f, `stride` rows apart, by way of the logits' buffer in chunks
template <typename S>
static void copy_logits(float* dst, TypedModel<S>* m, const S* rows, int n, int stride) {
    const int C = m->config.n_embd, V = m->config.vocab_size,
              most = (int)min(m->logits_bytes / (V * sizeof(float)), (size_t)n);
    float* logits = (float*)m->buf.logits;
    const S* wte = tost_layer(&m->tensors, m->weights, 0).wte;
    for (int i = 0; i < n; i += most) {
        const int some = min(most, n - i);
        matmul(&m->mm, Product<S, float>{logits, rows + (size_t)i * stride * C, wte, false, true, some, V, C,
                                         V, (int64_t)stride * C, C, 0.0f, NULL});
        CUDA_CHECK(cudaMemcpyAsync(dst + (size_t)i * V, logits, (size_t)some * V * sizeof(float),
                                   cudaMemcpyDeviceToHost, m->stream));
        CUDA_CHECK(cudaStreamSynchronize(m->stream));
    }
}

template <typename S> static void typed_logits(TypedModel<S>* m, float* dst) {
    copy_logits(dst, m, m->buf.ln_f, m->B * m->T, 1);
}

template <typename S>
static void copy_activation(float* dst, const S* src, size_t n, cudaStream_t stream) {
    std::vector<S> x(n);
    CUDA_CHECK(cudaMemcpyAsync(x.data(), src, n * sizeof(S), cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    for (size_t i = 0; i < n; i++) dst[i] = to_float(x[i]);
}

template <typename S>
static void typed_activation(TypedModel<S>* m, float* dst, TostActivation what, int layer) {
    const size_t rows = (size_t)m->B * m->T, C = m->config.n_embd, NH = m->config.n_head;
    assert(m->options.training && layer >= 0 && layer < m->config.n_layer + (what == TOST_X));
    if (what != TOST_X) hold_layer(m, layer);
    if (what == TOST_X) copy_activation(dst, layer_input(m, layer), rows * C, m->stream);
    else if (what == TOST_W) copy_activation(dst, m->layer[layer].w, rows * C, m->stream);
    else copy_activation(dst, m->layer[layer].pi, rows * NH, m->stream);
}

// ---------------------------------------------------------------------------------------------
// Recurrent decode: a forward of one token a sequence that continues from the states

template <typename S>
static void decode_logits(float* logits, TypedModel<S>* m) {  // (n,V), of the last row of each sequence
    copy_logits(logits, m, m->buf.ln_f + (size_t)(m->T - 1) * m->config.n_embd, m->B, m->T);
}

template <typename S>
static void typed_decode_begin(TypedModel<S>* m, float* logits, const int32_t* prompts, int n, int T) {
    assert(n <= m->options.max_batch && T <= m->options.max_seq && T <= m->config.block_size);
    const size_t size = (size_t)m->config.n_layer * n * tssa_state_size(m->config.n_embd, m->config.n_head);
    m->n_decode = n;
    m->position = T;
    if (T == 0) {
        CUDA_CHECK(cudaMemsetAsync(m->buf.decode, 0, size * sizeof(double), m->stream));
        return;
    }
    m->B = n;
    m->T = T;
    stage_input(m, m->buf.input, prompts, NULL, 0, n, T, 0.0f);
    model_forward(m, {NULL, m->buf.decode, 1}, n, T);
    if (logits) decode_logits(logits, m);
}

template <typename S> static void typed_decode_step(TypedModel<S>* m, float* logits, const int32_t* tokens) {
    const int n = m->n_decode;
    assert(m->position < m->config.block_size);
    m->B = n;
    m->T = 1;
    stage_input(m, m->buf.input, tokens, NULL, m->position++, n, 1, 0.0f);
    run_pass(m, PASS_DECODE, n, 1, [=] { model_forward(m, {m->buf.decode, m->buf.decode, 1}, n, 1); });
    decode_logits(logits, m);
}

// y[i] = x[order[i]]; rows of C. Fewest bytes a row: 2C + 2C.
template <typename S, int VEC>
__global__ void gather_rows_kernel(S* y, const S* x, const int32_t* order, int C) {
    const S* x_row = x + (size_t)order[blockIdx.x] * C;
    for (int c = threadIdx.x * VEC; c < C; c += blockDim.x * VEC) {
        float v[VEC];
        load_pack<VEC>(v, x_row + c);
        store_pack<VEC>(y + (size_t)blockIdx.x * C + c, v);
    }
}

// Stages the texts of decode_score. `order` and `targets` list the rows that have a target; returns their
// number, up to a whole tile of the classifier's product: the rows added cost it nothing, and fewer shapes
// need a plan.
static size_t stage_texts(TostModel* m, int32_t* device, const int32_t* tokens, const int32_t* targets,
                          size_t rows) {
    const StepInput s = step_input(stage_begin(m), rows);
    StepHeader header = {};
    size_t counted = 0;
    header.first = m->position;
    memcpy(s.inputs, tokens, rows * sizeof *tokens);
    for (size_t row = 0; row < rows; row++) {
        if (targets[row] < 0) continue;
        s.targets[counted] = targets[row];
        s.order[counted++] = (int32_t)row;
    }
    for (; counted < rows && counted % ROW_TILE; counted++) {
        s.targets[counted] = -1;
        s.order[counted] = 0;
    }
    stage_end(m, device, &header, STEP_HEADER + 3 * rows);
    return counted;
}

// (counted) losses of those rows. Layer 0 has no more use for its ln_1, which takes their ln_f.
template <typename S> static void decode_losses(float* losses, TypedModel<S>* m, size_t counted) {
    const int C = m->config.n_embd;
    const StepInput s = step_input(m->buf.input, (size_t)m->B * m->T);
    S* rows = m->layer[0].ln_1;
    if (C % 4 == 0)
        LAUNCH((gather_rows_kernel<S, 4>), (int)counted, channel_threads(C, 4), 0, m->stream, rows,
               m->buf.ln_f, s.order, C);
    else
        LAUNCH((gather_rows_kernel<S, 1>), (int)counted, channel_threads(C, 1), 0, m->stream, rows,
               m->buf.ln_f, s.order, C);
    classifier_forward_backward(&m->mm, (double*)NULL, m->buf.losses, (S*)NULL, (float*)NULL,
                                (S*)m->buf.logits, rows, tost_layer(&m->tensors, m->weights, 0).wte,
                                s.targets, (const StepHeader*)m->buf.input, counted,
                                even_chunk(counted, m->logits_rows), m->config.vocab_size, C);
    CUDA_CHECK(cudaMemcpyAsync(losses, m->buf.losses, counted * sizeof *losses, cudaMemcpyDeviceToHost,
                               m->stream));
    CUDA_CHECK(cudaStreamSynchronize(m->stream));
}

template <typename S>
static void typed_decode_score(TypedModel<S>* m, double* losses, const int32_t* tokens,
                               const int32_t* targets, int copies, int T) {
    const int B = m->n_decode * copies;
    const size_t rows = (size_t)B * T;
    assert(B <= m->options.max_batch && T <= m->options.max_seq && m->position + T <= m->config.block_size);
    m->B = B;
    m->T = T;
    const size_t counted = stage_texts(m, m->buf.input, tokens, targets, rows);
    model_forward(m, {m->buf.decode, NULL, copies}, B, T);
    std::vector<float> loss(counted);
    if (counted > 0) decode_losses(loss.data(), m, counted);   // mutant: nothing_to_score
    for (size_t row = 0, i = 0; row < rows; row++) losses[row] = targets[row] < 0 ? 0.0 : loss[i++];
}

// ---------------------------------------------------------------------------------------------
// Gradients and AdamW

static void model_zero_grad(TostModel* m) {
    CUDA_CHECK(cudaMemsetAsync(m->state[TOST_GRAD], 0, m->tensors.flat_size * sizeof(float), m->stream));
}

// sums[block] = Σ g² over every gridDim.x-th piece; the gaps between tensors are zero. Fewest bytes an
// element: 4.
constexpr int NORM_BLOCK_THREADS = 256;

__global__ void __launch_bounds__(NORM_BLOCK_THREADS)
    grad_norm_kernel(double* sums, const float* grad, size_t n) {
    __shared__ double shared[NORM_BLOCK_THREADS];
    double sum = 0.0;
#pragma unroll 4
    for (size_t i = ((size_t)blockIdx.x * NORM_BLOCK_THREADS + threadIdx.x) * 4; i < n;
         i += (size_t)gridDim.x * NORM_BLOCK_THREADS * 4) {
        float g[4];
        load_pack<4>(g, grad + i);
#pragma unroll
        for (int j = 0; j < 4; j++) sum += (double)g[j] * g[j];
    }
    sum = block_tree_sum(sum, shared);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(NORM_BLOCKS)
    grad_norm_total_kernel(double* total, const double* sums, int blocks) {
    __shared__ double shared[NORM_BLOCKS];
    const double sum = block_tree_sum((int)threadIdx.x < blocks ? sums[threadIdx.x] : 0.0, shared);
    if (threadIdx.x == 0) *total = sum;
}

template <typename S> static double typed_grad_norm(TypedModel<S>* m) {
    const size_t n = m->tensors.flat_size;
    const int blocks = min(NORM_BLOCKS, div_up(n, 4 * NORM_BLOCK_THREADS));
    LAUNCH(grad_norm_kernel, blocks, NORM_BLOCK_THREADS, 0, m->stream, m->buf.norm, m->state[TOST_GRAD], n);
    LAUNCH(grad_norm_total_kernel, 1, NORM_BLOCKS, 0, m->stream, m->buf.scalars + 1, m->buf.norm, blocks);
    read_scalars(m, m->buf.scalars);
    return sqrt(m->host_scalars[1]);
}

struct AdamWFactors { float decay, scale, b1, b2, c1, c2, rate, root, eps; };   // decay: 1 - lr wd

// p = p (1 - lr wd);   m = β1 m + (1-β1) g;   v = β2 v + (1-β2) g²;   p = p - lr (m/(1-β1^s)) /
// (√(v/(1-β2^s)) + eps) weights: the parameters' copy of type S, written in the same pass; NULL where there
// is none. decays: one byte a group of DECAY_GROUP elements. Fewest bytes an element: 16 read, 12 + 2
// written.
template <typename S>
__global__ void adamw_kernel(float* param, float* moment, float* variance, S* weights, const float* grad,
                             const uint8_t* decays, size_t n, AdamWFactors a) {
    const size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (i >= n) return;
    float p[4], m[4], v[4], g[4];
    load_pack<4>(p, param + i);
    load_pack<4>(m, moment + i);
    load_pack<4>(v, variance + i);
    load_pack<4>(g, grad + i);
    const float keep = decays[i / DECAY_GROUP] ? a.decay : 1.0f;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        g[j] *= a.scale;
        m[j] = a.b1 * m[j] + a.c1 * g[j];
        v[j] = a.b2 * v[j] + a.c2 * g[j] * g[j];
        p[j] = p[j] * keep - a.rate * m[j] / (sqrtf(v[j]) * a.root + a.eps);
    }
    store_pack<4>(param + i, p);
    store_pack<4>(moment + i, m);
    store_pack<4>(variance + i, v);
    if (weights) store_pack<4>(weights + i, p);
}

template <typename S> static S* weights_copy(TypedModel<S>* m) {
    return (void*)m->weights == m->state[TOST_PARAM] ? NULL : m->weights;
}

template <typename S> static void typed_update(TypedModel<S>* m, const TostAdamW* a) {
    AdamWFactors f;
    f.decay = (float)(1.0 - a->lr * a->weight_decay);
    f.scale = (float)a->grad_scale;
    f.b1 = (float)a->beta1;
    f.b2 = (float)a->beta2;
    f.c1 = (float)(1.0 - a->beta1);
    f.c2 = (float)(1.0 - a->beta2);
    f.rate = (float)(a->lr / (1.0 - pow(a->beta1, (double)a->step)));
    f.root = (float)(1.0 / sqrt(1.0 - pow(a->beta2, (double)a->step)));
    f.eps = (float)a->eps;
    const size_t n = m->tensors.flat_size;
    LAUNCH((adamw_kernel<S>), div_up(n, 4 * 256), 256, 0, m->stream, m->state[TOST_PARAM], m->state[TOST_M],
           m->state[TOST_V], weights_copy(m), m->state[TOST_GRAD], m->buf.decays, n, f);
}

// ---------------------------------------------------------------------------------------------
// The engine. Its functions dispatch on the storage type.

#define TYPED(m, function, ...) \
    ((m)->options.dtype == TOST_BF16 ? function(static_cast<TypedModel<bf16>*>(m), ##__VA_ARGS__) \
                                     : function(static_cast<TypedModel<float>*>(m), ##__VA_ARGS__))

static bool cuda_supports(TostDtype dtype) {
    return dtype == TOST_FP32 || dtype == TOST_TF32 || dtype == TOST_BF16;
}

// The first device, if it can run this build's kernels.
static bool open_device(cudaDeviceProp* prop, TostError* err) {
    int count = 0, blocks = 0;
    const char* call = "cudaGetDeviceCount";
    cudaError_t e = cudaGetDeviceCount(&count);
    if (e == cudaSuccess && count == 0) e = cudaErrorNoDevice;
    if (e == cudaSuccess) e = (call = "cudaSetDevice", cudaSetDevice(0));
    if (e == cudaSuccess) e = (call = "cudaGetDeviceProperties", cudaGetDeviceProperties(prop, 0));
    if (e == cudaSuccess && prop->major < 8)
        return tost_error(
            err, "%s has compute capability %d.%d; 8.0 or later is needed: train_gpt_tost runs on the CPU",
            prop->name, prop->major, prop->minor);
    if (e == cudaSuccess)
        e = (call = "loading a kernel",
             cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, grad_norm_total_kernel, NORM_BLOCKS, 0));
    if (e == cudaSuccess) return true;
    (void)cudaGetLastError();
    return tost_error(err, "no usable GPU: %s: %s; %s", call, cudaGetErrorString(e), cuda_advice(e));
}

static bool cuda_describe(char* text, size_t cap, const TostEngineOptions* o, TostError* err) {
    static const char* const dtypes[] = {"float32", "tf32", "bf16"};
    cudaDeviceProp prop;
    char memory[32];
    if (!open_device(&prop, err)) return false;
    snprintf(text, cap, "%s (compute capability %d.%d, %d multiprocessors, %s), %s, matmul cuBLASLt",
             prop.name, prop.major, prop.minor, prop.multiProcessorCount,
             human_bytes(memory, (double)prop.totalGlobalMem), dtypes[o->dtype]);
    return true;
}

template <typename S> static size_t model_bytes(const TostConfig* c, const TostEngineOptions* o) {
    TypedModel<S>* m = model_new<S>(c, o);
    const size_t bytes = m->arena_bytes;
    model_free(m);
    return bytes;
}

static size_t cuda_memory(const TostConfig* c, const TostEngineOptions* o) {
    return o->dtype == TOST_BF16 ? model_bytes<bf16>(c, o) : model_bytes<float>(c, o);
}

// What the kernels' blocks and shared memory hold.
static bool fits_kernels(const TostConfig* c, TostError* err) {
    const int channels = c->n_embd % 4 == 0 ? 12 * NORM_THREADS : 8 * NORM_THREADS;
    if (c->n_head > TSSA_MAX_HEADS)
        return tost_error(err, "--heads %d: the CUDA engine takes up to %d", c->n_head, TSSA_MAX_HEADS);
    if (c->n_embd > channels)
        return tost_error(err, "--channels %d: the CUDA engine takes up to %d, in multiples of 4 up to %d",
                          c->n_embd, 8 * NORM_THREADS, 12 * NORM_THREADS);
    return true;
}

// The largest batch whose model fits, found in steps of a sixteenth; 0: none.
static int largest_batch(const TostConfig* c, const TostEngineOptions* o, bool recompute, size_t available) {
    TostEngineOptions less = *o;
    less.recompute = recompute;
    while (less.max_batch > 0 && cuda_memory(c, &less) > available)
        less.max_batch -= (less.max_batch + 15) / 16;
    return less.max_batch;
}

// What kernels, graphs and cuBLASLt take besides the arena, most of it when they are first used.
constexpr size_t MEMORY_RESERVE = (size_t)512 << 20;

static bool fits_memory(const TostConfig* c, const TostEngineOptions* o, size_t bytes, TostError* err) {
    size_t available = 0, total = 0;
    const cudaError_t e = cudaMemGetInfo(&available, &total);
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        return tost_error(err, "cudaMemGetInfo: %s; %s", cudaGetErrorString(e), cuda_advice(e));
    }
    const size_t free_bytes = available;
    available -= min(available, MEMORY_RESERVE);
    if (bytes <= available) return true;
    const int batch = largest_batch(c, o, o->recompute, available),
              again = o->training ? largest_batch(c, o, true, available) : batch;
    char need[32], reserve[32], have[32], way_out[96] = "a smaller model or --seq needs less", or_batch[32] = "";
    if (batch > 0) snprintf(or_batch, sizeof or_batch, " or --batch %d", batch);
    if (again == o->max_batch) snprintf(way_out, sizeof way_out, "--recompute%s fits", or_batch);
    else if (again > batch) snprintf(way_out, sizeof way_out, "--recompute --batch %d%s fits", again, or_batch);
    else if (batch > 0) snprintf(way_out, sizeof way_out, "--batch %d fits", batch);
    return tost_error(err, "not enough memory on the GPU: the model needs %s, its kernels up to %s, %s are free; %s",
                      human_bytes(need, (double)bytes), human_bytes(reserve, (double)MEMORY_RESERVE),
                      human_bytes(have, (double)free_bytes), way_out);
}

// The device's side of a model that model_new has laid out.
template <typename S> static bool model_open(TypedModel<S>* m, TostError* err) {
    const size_t input = step_input_size((size_t)m->options.max_batch * m->options.max_seq) * sizeof(int32_t);
    if (!fits_memory(&m->config, &m->options, m->arena_bytes, err)) return false;
    const cudaError_t e = cudaMalloc(&m->arena, m->arena_bytes);
    if (e != cudaSuccess) {
        char need[32];
        (void)cudaGetLastError();
        m->arena = NULL;
        return tost_error(err, "cudaMalloc of %s: %s; %s", human_bytes(need, (double)m->arena_bytes),
                          cudaGetErrorString(e), cuda_advice(e));
    }
    lay_out(m, m->arena);
    CUDA_CHECK(cudaStreamCreateWithFlags(&m->stream, cudaStreamNonBlocking));
    CUBLAS_CHECK(cublasLtCreate(&m->mm.handle));
    m->mm.stream = m->stream;
    m->mm.workspace = m->buf.workspace;
    m->mm.tf32 = m->options.dtype == TOST_TF32;
    for (int i = 0; i < 2; i++) {
        CUDA_CHECK(cudaMallocHost(&m->staging[i], input));
        CUDA_CHECK(cudaEventCreateWithFlags(&m->staged[i], cudaEventDisableTiming));
    }
    CUDA_CHECK(cudaMallocHost(&m->host_scalars, 2 * sizeof(double)));
    const size_t flat = m->tensors.flat_size;
    for (int s = 0; s < (m->options.training ? 4 : 1); s++)
        CUDA_CHECK(cudaMemsetAsync(m->state[s], 0, flat * sizeof(float), m->stream));
    if (weights_copy(m)) CUDA_CHECK(cudaMemsetAsync(m->weights, 0, flat * sizeof(S), m->stream));
    CUDA_CHECK(cudaMemsetAsync(m->buf.scalars, 0, 2 * sizeof(double), m->stream));
    if (!m->options.training) return true;
    uint8_t* decays = (uint8_t*)xcalloc(flat / DECAY_GROUP, 1);
    for (int i = 0; i < m->tensors.count; i++) {
        const TostTensor* t = &m->tensors.tensor[i];
        memset(decays + t->offset / DECAY_GROUP, t->decay == TOST_DECAY,   // mutant: decay_everywhere
               (t->size + DECAY_GROUP - 1) / DECAY_GROUP);
    }
    CUDA_CHECK(cudaMemcpyAsync(m->buf.decays, decays, flat / DECAY_GROUP, cudaMemcpyHostToDevice, m->stream));
    CUDA_CHECK(cudaStreamSynchronize(m->stream));
    free(decays);
    return true;
}

template <typename S>
static TostModel* model_create(const TostConfig* c, const TostEngineOptions* o, TostError* err) {
    TypedModel<S>* m = model_new<S>(c, o);
    if (model_open(m, err)) return m;
    model_free(m);
    return NULL;
}

static TostModel* cuda_create(const TostConfig* c, const TostEngineOptions* o, TostError* err) {
    cudaDeviceProp prop;
    if (!fits_kernels(c, err) || !open_device(&prop, err)) return NULL;
    return o->dtype == TOST_BF16 ? model_create<bf16>(c, o, err) : model_create<float>(c, o, err);
}

static void cuda_destroy(TostModel* m) { TYPED(m, model_free); }

template <typename S> __global__ void convert_kernel(S* y, const float* x, size_t n) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = from_float<S>(x[i]);
}

template <typename S>
static void typed_put(TypedModel<S>* m, TostState s, const TostTensor* t, const float* src) {
    float* dst = m->state[s] + t->offset;
    CUDA_CHECK(cudaMemcpyAsync(dst, src, t->size * sizeof *src, cudaMemcpyHostToDevice, m->stream));
    if (s == TOST_PARAM && weights_copy(m))   // mutant: moments_into_the_weights
        LAUNCH((convert_kernel<S>), div_up(t->size, 256), 256, 0, m->stream, m->weights + t->offset, dst,
               t->size);
    CUDA_CHECK(cudaStreamSynchronize(m->stream));
}

static void cuda_put(TostModel* m, TostState s, const TostTensor* t, const float* src) {
    TYPED(m, typed_put, s, t, src);
}

static void cuda_get(float* dst, const TostModel* m, TostState s, const TostTensor* t) {
    CUDA_CHECK(cudaMemcpyAsync(dst, m->state[s] + t->offset, t->size * sizeof *dst, cudaMemcpyDeviceToHost,
                               m->stream));
    CUDA_CHECK(cudaStreamSynchronize(m->stream));
}

static void cuda_forward(TostModel* m, const int32_t* inputs, int B, int T) {
    TYPED(m, typed_forward, inputs, NULL, B, T, 0.0f);
}
static void cuda_forward_loss(TostModel* m, const int32_t* inputs, const int32_t* targets, int B, int T) {
    TYPED(m, typed_forward, inputs, targets, B, T, 0.0f);
}
static void cuda_forward_train(TostModel* m, const int32_t* inputs, const int32_t* targets, int B, int T, float grad_scale) {
    TYPED(m, typed_forward, inputs, targets, B, T, grad_scale);
}
static void cuda_backward(TostModel* m) { TYPED(m, typed_backward); }
static void cuda_read_loss(double* sum, int64_t* count, TostModel* m) {
    TYPED(m, typed_read_loss, sum, count);
}
static void cuda_logits(float* dst, TostModel* m) { TYPED(m, typed_logits, dst); }
static void cuda_activation(float* dst, TostModel* m, TostActivation what, int layer) {
    TYPED(m, typed_activation, dst, what, layer);
}
static double cuda_grad_norm(TostModel* m) { return TYPED(m, typed_grad_norm); }
static void cuda_update(TostModel* m, const TostAdamW* a) { TYPED(m, typed_update, a); }
static void cuda_decode_begin(float* logits, TostModel* m, const int32_t* prompts, int n, int T) {
    TYPED(m, typed_decode_begin, logits, prompts, n, T);
}
static void cuda_decode_step(float* logits, TostModel* m, const int32_t* tokens) {
    TYPED(m, typed_decode_step, logits, tokens);
}
static void cuda_decode_score(double* losses, TostModel* m, const int32_t* tokens, const int32_t* targets,
                              int copies, int T) {
    TYPED(m, typed_decode_score, losses, tokens, targets, copies, T);
}

extern "C" const TostEngine tost_cuda_engine = {
    "cuda",
    TOST_BF16,
    cuda_supports,
    cuda_describe,
    cuda_memory,
    cuda_create,
    cuda_destroy,
    cuda_put,
    cuda_get,
    cuda_forward,
    cuda_forward_loss,
    cuda_forward_train,
    cuda_backward,
    cuda_read_loss,
    cuda_logits,
    cuda_activation,
    model_zero_grad,
    cuda_grad_norm,
    cuda_update,
    cuda_decode_begin,
    cuda_decode_step,
    cuda_decode_score,
};

#ifndef TOST_NO_MAIN
int main(int argc, char** argv) { return tost_main(argc, argv, &tost_cuda_engine); }
#endif
