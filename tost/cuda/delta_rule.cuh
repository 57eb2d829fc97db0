// delta_rule.cuh: the memory of --memory 1; tost/cpu/delta_rule.h has its equations for one token. Here a run of n
// tokens is processed at once. Its tokens are numbered from 0. K[i] is the direction k, and O[i] the prediction o, of
// the token before token i: K[0] and O[0] belong to the token before the run, K[n] and O[n] to the last token. E[i] is
// e of token i. With G before the run and dG after it:
//     O[i] = G K[i] + Σ_{j<i} (K[i]·K[j]) E[j],   E[i] = Π[i] (z[i] - O[i]),   G after the run = G + Σ_i E[i] K[i]ᵀ
//     dE[j] = dG K[j] + Σ_{i>j} (K[i]·K[j]) dO[i],   dΠ[j] = dE[j]·(z[j] - O[j])
//     dz[j] = Π[j] dE[j],   dO[j] -= Π[j] dE[j]
//     dK[i] = Gᵀ dO[i] + dGᵀ E[i] + Σ_{j<i} (dO[i]·E[j]) K[j] + Σ_{j>i} (dO[j]·E[i]) K[j]
//     dG before the run = dG + Σ_i dO[i] K[i]ᵀ,   dK[n] += dK[0] of the next run
//     dz[i] += (dk - k (k·dk)) / √(‖z[i]‖² + 1e-12)   with k = K[i+1] and dk = dK[i+1]
//
// A block of threads computes one head of one sequence: it goes through the runs of 32 tokens, with G in shared
// memory. There are B·NH blocks, so with few sequences, multiprocessors are idle. All sums are products of small
// matrices, except in the triangular systems, of which a thread solves the columns of one channel. E is computed from o
// as stored, rounded to S, so that backward gets the same E, and the G before a run from the one after it:
// G - Σ E[i] K[i]ᵀ. Only the first run of a pass loads G, and computes O[0] from it, not rounded.
//
// Arrays in shared memory have rows of HS | 1 floats: an odd stride has no bank conflicts along either axis.
#ifndef TOST_CUDA_DELTA_RULE_CUH
#define TOST_CUDA_DELTA_RULE_CUH

#include "tost/cuda/reduce.cuh"

extern "C" {
#include "tost/model.h"
}

constexpr int DELTA_RUN = 32, DELTA_ROWS = DELTA_RUN + 1;   // tokens of a run; its keys K[0] to K[n]
constexpr int DELTA_THREADS = 256, DELTA_TILE = 4;

template <typename S> struct DeltaRule {
    int B, T, C, NH, HS;
    const S* z;                       // (B,T,C)
    const float *pi, *scale;          // (B,NH,T), (C)
    S *o, *y;                         // (B,T,C): predictions; y += scale o
    float* G;                         // (B,NH,HS,HS): after the pass, transposed; NULL in inference
    PassStates state;
    size_t state_size, offset;        // of a sequence; of the memory's part in it
    // backward only
    const S* dy;                      // (B,T,C)
    S* dz;                            // (B,T,C)
    float *dpi, *dscale;              // (B,NH,T); (B,C): of each sequence
    PassStates adjoint;
};

// n tokens of head h of sequence b, from token t0 of the pass on
struct DeltaRun { int b, h, t0, n; };

// The state of a head: Gᵀ (HS,HS) and k (HS), floats. NULL: zeros, or not written
struct DeltaState { float *G, *k; };

// Arrays in shared memory: G, dG (HS,HS), transposed; K, E, O, dK, dE (33,HS), O with dO in backward; pairs, dpairs
// (33,33); inverse_norm (33): 1/√(‖z‖² + 1e-12); dk (HS): dK[0] of the next run. Forward has those up to
// inverse_norm.
struct DeltaShared { float *G, *K, *E, *O, *pairs, *inverse_norm, *dG, *dK, *dE, *dpairs, *dk; };

__host__ __device__ inline int delta_stride(int HS) { return HS | 1; }
static size_t delta_rule_state_size(size_t C, size_t HS) { return (C * (HS + 1) + 1) / 2; }   // in doubles

__host__ __device__ inline DeltaShared delta_arrays(float* shared, int HS) {
    const int row = delta_stride(HS), rows = DELTA_ROWS * row, pairs = DELTA_ROWS * DELTA_ROWS;
    DeltaShared x = {};
    x.G = shared, x.K = x.G + HS * row, x.E = x.K + rows, x.O = x.E + rows, x.pairs = x.O + rows;
    x.inverse_norm = x.pairs + pairs, x.dG = x.inverse_norm + DELTA_ROWS, x.dK = x.dG + HS * row, x.dE = x.dK + rows;
    x.dpairs = x.dE + rows, x.dk = x.dpairs + pairs;
    return x;
}

static size_t delta_rule_shared(int HS, bool backward) {
    float* const start = (float*)sizeof(float);
    const DeltaShared x = delta_arrays(start, HS);
    return (backward ? x.dk + HS - start : x.dG - start) * sizeof(float);
}

template <typename S> __device__ inline DeltaState delta_state(const double* states, int b, int h,
                                                               const DeltaRule<S>& args) {
    if (!states) return {NULL, NULL};
    float* const at = (float*)const_cast<double*>(states + b * args.state_size + args.offset);
    return {at + (size_t)h * args.HS * args.HS, at + (size_t)args.C * args.HS + h * args.HS};
}

// Offset in (B,T,C) of token i of the run, at the head's first channel
template <typename S> __device__ inline size_t delta_row(DeltaRun r, int i, const DeltaRule<S>& args) {
    return ((size_t)r.b * args.T + r.t0 + i) * args.C + r.h * args.HS;
}

// Copies a matrix (HS,HS) from or to device memory, where its rows are HS floats apart. src NULL: zeros
__device__ inline void delta_load(float* dst, const float* src, int HS) {
    for (int i = threadIdx.x; i < HS * HS; i += blockDim.x)
        dst[i / HS * delta_stride(HS) + i % HS] = src ? src[i] : 0.0f;
}
__device__ inline void delta_store(float* dst, const float* src, int HS) {
    for (int i = threadIdx.x; i < HS * HS; i += blockDim.x) dst[i] = src[i / HS * delta_stride(HS) + i % HS];
}

// An operand of a product, in shared memory. TRANSPOSED: its element (i,j) is p[j · stride + i]
template <bool TRANSPOSED> struct Operand {
    const float* p;
    int stride;
    __device__ float at(int i, int j) const { return TRANSPOSED ? p[j * stride + i] : p[i * stride + j]; }
};

// A thread's part of a product: the elements at some rows and columns
struct ProductTile {
    int row[DELTA_TILE], column[DELTA_TILE];
    float sum[DELTA_TILE][DELTA_TILE];
};

// tile.sum += x · y; depth: columns of x
template <bool X, bool Y>
__device__ inline void tile_product(ProductTile& tile, Operand<X> x, Operand<Y> y, int depth) {
    UNROLL_BY(2) for (int l = 0; l < depth; l++) {
        float u[DELTA_TILE], v[DELTA_TILE];
        UNROLL for (int i = 0; i < DELTA_TILE; i++) u[i] = x.at(tile.row[i], l);
        UNROLL for (int i = 0; i < DELTA_TILE; i++) v[i] = y.at(l, tile.column[i]);
        UNROLL for (int i = 0; i < DELTA_TILE; i++)
            UNROLL for (int j = 0; j < DELTA_TILE; j++) tile.sum[i][j] += u[i] * v[j];
    }
}

// Computes a matrix (m,n): add(tile) adds the products to a tile; store(i, j, sum) takes each element. Neighboring
// threads take neighboring columns.
template <typename Add, typename Store> __device__ inline void each_tile(int m, int n, Add add, Store store) {
    const int tile_rows = div_up(m, DELTA_TILE), tile_columns = div_up(n, DELTA_TILE);
    for (int k = threadIdx.x; k < tile_rows * tile_columns; k += blockDim.x) {
        const int i0 = k / tile_columns, j0 = k % tile_columns;
        ProductTile tile = {};
        UNROLL for (int i = 0; i < DELTA_TILE; i++) {
            tile.row[i] = min(i0 + i * tile_rows, m - 1);
            tile.column[i] = min(j0 + i * tile_columns, n - 1);
        }
        add(tile);
        UNROLL for (int i = 0; i < DELTA_TILE; i++)
            UNROLL for (int j = 0; j < DELTA_TILE; j++)
                if (i0 + i * tile_rows < m && j0 + j * tile_columns < n)
                    store(tile.row[i], tile.column[j], tile.sum[i][j]);
    }
}

// K[i] and inverse_norm[i] = 1/√(‖z‖² + 1e-12), first <= i <= n, of the tokens i - 1 of the run. A warp takes a token.
// before: for the key of the token before the pass
template <typename S>
__device__ inline void delta_keys(DeltaShared x, int first, DeltaRun r, DeltaState before, const DeltaRule<S>& args) {
    for (int i = first + warp_index(); i <= r.n; i += block_warps()) {
        const bool early = r.t0 + i == 0;
        const S* z = args.z + (early ? 0 : delta_row(r, i - 1, args));
        float *K = x.K + i * delta_stride(args.HS), squares = 0.0f;
        for (int d = lane_index(); d < args.HS; d += WARP) {
            const float v = !early ? to_float(z[d]) : before.k ? before.k[d] : 0.0f;
            K[d] = v;
            squares += v * v;
        }
        const float inverse_norm = early ? 1.0f : rsqrtf(warp_sum(squares) + (float)TOST_ENERGY_MIN);
        for (int d = lane_index(); d < args.HS; d += WARP) K[d] *= inverse_norm;
        if (lane_index() == 0) x.inverse_norm[i] = inverse_norm;
    }
}

// pairs[i,j] = x[i]·y[j] for j < i <= n, otherwise 0; x, y (33,HS)
__device__ inline void delta_pairs(float* pairs, const float* x, const float* y, int n, int HS) {
    const int row = delta_stride(HS);
    each_tile(n + 1, n + 1, [&](ProductTile& tile) {
        tile_product(tile, Operand<false>{x, row}, Operand<true>{y, row}, HS);
    }, [&](int i, int j, float sum) { pairs[i * DELTA_ROWS + j] = j < i ? sum : 0.0f; });   // mutant: memory_pairs
}

// G += factor · Σ_i x[i] y[i]ᵀ over n rows
__device__ inline void delta_add(float* G, const float* x, const float* y, float factor, int n, int HS) {
    const int row = delta_stride(HS);
    each_tile(HS, HS, [&](ProductTile& tile) {
        tile_product(tile, Operand<true>{x, row}, Operand<false>{y, row}, n);
    }, [&](int i, int j, float sum) { G[i * row + j] += factor * sum; });
}

// Solves for O and E of the run: a thread takes a column. On entry, x.O has G K[i]
template <typename S>
__device__ inline void delta_predict(DeltaShared x, const float* pi, DeltaRun r, const DeltaRule<S>& args) {
    const int row = delta_stride(args.HS);
    for (int d = threadIdx.x; d < args.HS; d += blockDim.x) {
        for (int i = 0; i <= r.n; i++) {
            float o = x.O[i * row + d];
            for (int j = 0; j < i; j++) o += x.pairs[i * DELTA_ROWS + j] * x.E[j * row + d];
            if (i > 0) o = to_float(from_float<S>(o));
            x.O[i * row + d] = o;
            if (i < r.n) x.E[i * row + d] = pi[i] * (to_float(args.z[delta_row(r, i, args) + d]) - o);
        }
    }
}

// Minimum traffic per row: 2C (z) + 4C (y) + 2C (o).
template <typename S> __global__ void __launch_bounds__(DELTA_THREADS, 3) delta_rule_forward_kernel(DeltaRule<S> args) {
    DYNAMIC_SHARED(float, shared);
    const int b = blockIdx.x / args.NH, h = blockIdx.x % args.NH, HS = args.HS, row = delta_stride(HS);
    const DeltaShared x = delta_arrays(shared, HS);
    const DeltaState before = delta_state(args.state.start, b, h, args),
                      after = delta_state(args.state.end, b, h, args);
    const float* pi = args.pi + ((size_t)b * args.NH + h) * args.T;
    delta_load(x.G, before.G, HS);
    delta_keys(x, 0, DeltaRun{b, h, 0, 0}, before, args);
    for (int t0 = 0; t0 < args.T; t0 += DELTA_RUN) {
        const int n = min(args.T - t0, DELTA_RUN), first = t0 > 0;   // 1: the run before set O[0]
        const DeltaRun run = {b, h, t0, n};
        __syncthreads();
        delta_keys(x, 1, run, before, args);
        __syncthreads();
        each_tile(n + 1 - first, HS, [&](ProductTile& tile) {
            tile_product(tile, Operand<false>{x.K + first * row, row}, Operand<false>{x.G, row}, HS);
        }, [&](int i, int d, float sum) { x.O[(i + first) * row + d] = sum; });
        delta_pairs(x.pairs, x.K, x.K, n, HS);
        __syncthreads();
        delta_predict(x, pi + t0, run, args);
        __syncthreads();
        for (int i = threadIdx.x; i < n * HS; i += blockDim.x) {
            const int d = i % HS;
            const size_t at = delta_row(run, i / HS, args) + d;
            const float o = x.O[(i / HS + 1) * row + d];
            args.o[at] = from_float<S>(o);
            args.y[at] = from_float<S>(to_float(args.y[at]) + args.scale[h * HS + d] * o);
        }
        delta_add(x.G, x.K, x.E, 1.0f, n, HS);
        __syncthreads();
        for (int d = threadIdx.x; d < HS; d += blockDim.x) {
            x.K[d] = x.K[n * row + d];
            x.O[d] = x.O[n * row + d];
        }
    }
    if (args.G) delta_store(args.G + ((size_t)b * args.NH + h) * HS * HS, x.G, HS);
    if (!after.G) return;
    delta_store(after.G, x.G, HS);
    for (int d = threadIdx.x; d < HS; d += blockDim.x) after.k[d] = x.K[d];   // mutant: memory_key_not_passed
}

// Sets o, adds to y, and writes the state after the pass.
template <typename S> static void delta_rule_forward(cudaStream_t stream, const DeltaRule<S>& args) {
    const size_t shared = delta_rule_shared(args.HS, false);
    set_shared(delta_rule_forward_kernel<S>, shared, 3);
    LAUNCH((delta_rule_forward_kernel<S>), args.B * args.NH, DELTA_THREADS, shared, stream, args);
}

// Sets K, inverse_norm and E of the run, x.dE to the errors z - O, and x.O to dO: dO[0] = 0,
// dO[i+1] = scale dy[i]. In the first run, also sets G. Adds to dscale of the head.
template <typename S>
__device__ inline void delta_errors(DeltaShared x, float* dscale, const float* pi, DeltaRun r, DeltaState before,
                                    const DeltaRule<S>& args) {
    const int HS = args.HS, row = delta_stride(HS);
    delta_keys(x, 0, r, before, args);
    if (r.t0 == 0) delta_load(x.G, before.G, HS);
    __syncthreads();
    for (int d = threadIdx.x; d < HS; d += blockDim.x) {
        float o = 0.0f, sum = 0.0f;   // o: O[0]
        if (r.t0 > 0) o = to_float(args.o[delta_row(r, -1, args) + d]);
        else for (int l = 0; l < HS; l++) o += x.K[l] * x.G[l * row + d];
        x.O[d] = 0.0f;
        for (int i = 0; i < r.n; i++) {
            const size_t at = delta_row(r, i, args) + d;
            const float dy = to_float(args.dy[at]);
            x.dE[i * row + d] = to_float(args.z[at]) - o;
            x.E[i * row + d] = pi[i] * x.dE[i * row + d];
            o = to_float(args.o[at]);
            sum += dy * o;
            x.O[(i + 1) * row + d] = args.scale[r.h * HS + d] * dy;
        }
        x.E[r.n * row + d] = 0.0f;
        dscale[d] += sum;
    }
    __syncthreads();
}

// x.dK: dG K on entry, dE on return. Subtracts Π dE from dO in x.O. A thread takes a column.
__device__ inline void delta_errors_backward(DeltaShared x, const float* pi, int n, int HS) {
    const int row = delta_stride(HS);
    for (int d = threadIdx.x; d < HS; d += blockDim.x) {
        for (int j = n - 1; j >= 0; j--) {
            float dE = x.dK[j * row + d];
            for (int i = j + 1; i <= n; i++) dE += x.pairs[i * DELTA_ROWS + j] * x.O[i * row + d];
            x.dK[j * row + d] = dE;
            x.O[j * row + d] -= pi[j] * dE;
        }
    }
}

// Sets dΠ of the run's tokens, and copies dE from x.dK to x.dE. A warp takes a token.
__device__ inline void delta_membership_backward(float* dpi, DeltaShared x, int n, int HS) {
    const int row = delta_stride(HS);
    for (int i = warp_index(); i < n; i += block_warps()) {
        float sum = 0.0f;
        for (int d = lane_index(); d < HS; d += WARP) {
            sum += x.dE[i * row + d] * x.dK[i * row + d];
            x.dE[i * row + d] = x.dK[i * row + d];
        }
        sum = warp_sum(sum);
        if (lane_index() == 0) dpi[i] = sum;
    }
}

// dK, from dO in x.O, E, G before the run and dG after it
__device__ inline void delta_keys_backward(DeltaShared x, int n, int HS) {
    const int row = delta_stride(HS);
    each_tile(n + 1, HS, [&](ProductTile& tile) {
        tile_product(tile, Operand<false>{x.O, row}, Operand<true>{x.G, row}, HS);
        tile_product(tile, Operand<false>{x.E, row}, Operand<true>{x.dG, row}, HS);
        tile_product(tile, Operand<false>{x.dpairs, DELTA_ROWS}, Operand<false>{x.K, row}, n + 1);
        tile_product(tile, Operand<true>{x.dpairs, DELTA_ROWS}, Operand<false>{x.K, row}, n + 1);
    }, [&](int i, int d, float sum) { x.dK[i * row + d] = sum + (i == n ? x.dk[d] : 0.0f); });
}

// dz of the run. A warp takes a token.
template <typename S>
__device__ inline void delta_dz(DeltaShared x, const float* pi, DeltaRun r, const DeltaRule<S>& args) {
    const int row = delta_stride(args.HS);
    for (int i = warp_index(); i < r.n; i += block_warps()) {
        const float *K = x.K + (i + 1) * row, *dK = x.dK + (i + 1) * row;
        const size_t at = delta_row(r, i, args);
        float k_dk = 0.0f;
        for (int d = lane_index(); d < args.HS; d += WARP) k_dk += K[d] * dK[d];
        k_dk = warp_sum(k_dk);
        for (int d = lane_index(); d < args.HS; d += WARP)
            args.dz[at + d] = from_float<S>(pi[i] * x.dE[i * row + d] + x.inverse_norm[i + 1] * (dK[d] - K[d] * k_dk));
    }
}

// The runs in reverse. Minimum traffic per row: 2C each of z, o, dy and dz.
template <typename S>
__global__ void __launch_bounds__(DELTA_THREADS, 2) delta_rule_backward_kernel(DeltaRule<S> args) {
    DYNAMIC_SHARED(float, shared);
    const int b = blockIdx.x / args.NH, h = blockIdx.x % args.NH, HS = args.HS, row = delta_stride(HS);
    const DeltaShared x = delta_arrays(shared, HS);
    const DeltaState before = delta_state(args.state.start, b, h, args);
    const DeltaState dafter = delta_state(args.adjoint.start, b, h, args),
                      dbefore = delta_state(args.adjoint.end, b, h, args);
    const size_t at = ((size_t)b * args.NH + h) * args.T;
    float* const dscale = args.dscale + (size_t)b * args.C + h * HS;
    delta_load(x.G, args.G + ((size_t)b * args.NH + h) * HS * HS, HS);
    delta_load(x.dG, dafter.G, HS);
    for (int d = threadIdx.x; d < HS; d += blockDim.x) {
        x.dk[d] = dafter.k ? dafter.k[d] : 0.0f;
        dscale[d] = 0.0f;
    }
    for (int t0 = (args.T - 1) / DELTA_RUN * DELTA_RUN; t0 >= 0; t0 -= DELTA_RUN) {
        const int n = min(args.T - t0, DELTA_RUN);
        const DeltaRun run = {b, h, t0, n};
        const float* pi = args.pi + at + t0;
        __syncthreads();
        delta_errors(x, dscale, pi, run, before, args);
        if (t0 > 0) delta_add(x.G, x.K, x.E, -1.0f, n, HS);   // G before the run   // mutant: memory_G_after
        delta_pairs(x.pairs, x.K, x.K, n, HS);
        each_tile(n, HS, [&](ProductTile& tile) {
            tile_product(tile, Operand<false>{x.K, row}, Operand<false>{x.dG, row}, HS);
        }, [&](int i, int d, float sum) { x.dK[i * row + d] = sum; });
        __syncthreads();
        delta_errors_backward(x, pi, n, HS);
        __syncthreads();
        delta_membership_backward(args.dpi + at + t0, x, n, HS);
        delta_pairs(x.dpairs, x.O, x.E, n, HS);
        __syncthreads();
        delta_keys_backward(x, n, HS);
        __syncthreads();
        delta_dz(x, pi, run, args);
        delta_add(x.dG, x.K, x.O, 1.0f, n + 1, HS);
        for (int d = threadIdx.x; d < HS; d += blockDim.x) x.dk[d] = x.dK[d];
    }
    __syncthreads();
    if (!dbefore.G) return;
    delta_store(dbefore.G, x.dG, HS);
    for (int d = threadIdx.x; d < HS; d += blockDim.x) dbefore.k[d] = x.dk[d];
}

// Sets dz and dpi. Puts the gradient of scale on the list `sums`.
template <typename S>
static void delta_rule_backward(cudaStream_t stream, float* dscale, ColumnSums* sums, const DeltaRule<S>& args) {
    const size_t shared = delta_rule_shared(args.HS, true);
    set_shared(delta_rule_backward_kernel<S>, shared, 2);
    LAUNCH((delta_rule_backward_kernel<S>), args.B * args.NH, DELTA_THREADS, shared, stream, args);
    column_sum(sums, dscale, args.dscale, args.B, args.C);
}

#endif
