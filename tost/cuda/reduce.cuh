// reduce.cuh: sums over a warp, a block and the rows of a matrix, in a fixed order. All threads of the warp
// or block take part.
#pragma once

#include <assert.h>

#include <initializer_list>

#include "tost/cuda/common.cuh"

constexpr unsigned FULL_WARP = 0xffffffffu;

__device__ inline int lane_index() { return threadIdx.x % WARP; }
__device__ inline int warp_index() { return threadIdx.x / WARP; }
__device__ inline int block_warps() { return (blockDim.x + WARP - 1) / WARP; }

// Sum over a group of LANES neighboring lanes, the same in each of them. All lanes of the warp take part.
template <int LANES> __device__ inline float group_sum(float x) {
    UNROLL for (int by = LANES / 2; by > 0; by /= 2) x += __shfl_xor_sync(FULL_WARP, x, by);
    return x;
}
__device__ inline float warp_sum(float x) { return group_sum<WARP>(x); }

__device__ inline float warp_scan(float x, int lane) {   // Σ of lanes 0…lane
    UNROLL for (int by = 1; by < WARP; by *= 2) {
        const float below = __shfl_up_sync(FULL_WARP, x, by);
        if (lane >= by) x += below;
    }
    return x;
}

__device__ inline float warp_max(float x) {   // the same in every lane
    UNROLL for (int by = 16; by > 0; by /= 2) x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, by));
    return x;
}

// One step of group_transposed_sum: lanes HALF apart exchange halves of their values; each adds up the half it keeps.
template <int HALF, int N> __device__ inline void warp_fold(float (&v)[N], int lane) {
    const bool upper = lane & HALF;
    UNROLL for (int i = 0; i < HALF; i++) {
        const float give = upper ? v[i] : v[i + HALF], keep = upper ? v[i + HALF] : v[i];
        v[i] = keep + __shfl_xor_sync(FULL_WARP, give, HALF);
    }
    if constexpr (HALF > 1) warp_fold<HALF / 2>(v, lane);
}

// Lane l receives the sum of v[l % N] over its group of LANES neighboring lanes; N and LANES are powers of two, N at
// most LANES. Overwrites v. For N = 8 and a warp, it takes 9 shuffles where N calls of warp_sum take 40.
template <int LANES, int N> __device__ inline float group_transposed_sum(float (&v)[N], int lane) {
    if constexpr (N > 1) warp_fold<N / 2>(v, lane);
    UNROLL for (int by = N; by < LANES; by *= 2) v[0] += __shfl_xor_sync(FULL_WARP, v[0], by);
    return v[0];
}

// v[i] = Σ of v[i] over the block, the same in every thread; N: a power of two. shared (32,N): free at the next barrier
template <int N> __device__ inline void block_sum(float (&v)[N], float* shared) {
    const int lane = lane_index();
    const float mine = group_transposed_sum<WARP>(v, lane);
    __syncthreads();   // shared may hold sums that others still read
    if (lane < N) shared[warp_index() * N + lane] = mine;
    __syncthreads();
    float sum = 0.0f;   // of v[lane % N], over every (32/N)-th warp
    NO_UNROLL for (int i = lane; i < block_warps() * N; i += WARP) sum += shared[i];
    UNROLL for (int by = N; by < WARP; by *= 2) sum += __shfl_xor_sync(FULL_WARP, sum, by);
    UNROLL for (int i = 0; i < N; i++) v[i] = __shfl_sync(FULL_WARP, sum, i);
}

// Sum over the threads of a row: a warp or the whole block.
__device__ inline void row_sum(float (&v)[1], float* shared) {
    if (blockDim.x == WARP) v[0] = warp_sum(v[0]);
    else block_sum<1>(v, shared);
}

// Σ of x over the block, whose size is a power of two, in a fixed tree; the same in every thread.
template <typename X> __device__ inline X block_tree_sum(X x, X* shared) {   // shared (blockDim.x)
    shared[threadIdx.x] = x;
    __syncthreads();
    for (int by = blockDim.x / 2; by > 0; by /= 2) {
        if ((int)threadIdx.x < by) shared[threadIdx.x] += shared[threadIdx.x + by];
        __syncthreads();
    }
    return shared[0];
}

// ---------------------------------------------------------------------------------------------
// Column sums in two stages: kernels with a row loop write one partial sum per block and column; a later launch adds
// those of all blocks in a fixed order, for several arrays at once:   out[c] = Σ_blocks partial[block,c], or +=

constexpr int COLUMN_BLOCKS = 768;   // most blocks of such a kernel: 4 for each of 192 multiprocessors
constexpr int SUM_WARPS = 16, SUM_THREADS = SUM_WARPS * WARP;

struct ColumnSum { float* out; const float* partial; int blocks, columns; };   // (columns), (blocks,columns)

// Column sums collected for one launch, and the memory of their partial sums: for a layer and ln_f, C columns each, but
// 4C for fc_b, conv·C for each convolution, and none for the memory
struct ColumnSums {
    static constexpr int MOST = 14;
    float *space, *end;              // the unused part
    int n;
    ColumnSum sum[MOST];
};

// gridDim.x of such a kernel, whose gridDim.y is `across`: as many blocks as run on the device at once, at most one per
// row, and at most COLUMN_BLOCKS, rounded down to a multiple of the multiprocessors.
template <typename K> static int column_blocks(K* kernel, int threads, size_t rows, int across) {
    const int device = device_attribute(cudaDevAttrMultiProcessorCount);
    int each;   // of a multiprocessor
    CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, 0));
    const int resident = min(max(device * each / across, 1), COLUMN_BLOCKS / device * device);
    return (int)min(rows, (size_t)resident);
}

// Adds a sum to the list, unless out is NULL.
static void column_sum(ColumnSums* sums, float* out, const float* partial, int blocks, int columns) {
    if (!out) return;
    assert(sums->n < ColumnSums::MOST);
    sums->sum[sums->n++] = {out, partial, blocks, columns};
}

// Adds the sums of `outs` to the list. Returns space for their partial sums (outs,blocks,columns), aligned to 16 bytes.
static float* column_sums(ColumnSums* sums, std::initializer_list<float*> outs, int blocks, int columns) {
    float *const space = sums->space, *partial = space;
    for (float* out : outs) {
        column_sum(sums, out, partial, blocks, columns);
        partial += (size_t)blocks * columns;
    }
    sums->space += (partial - space + 3) / 4 * 4;
    assert(sums->space <= sums->end);
    return space;
}

__host__ __device__ inline int column_sum_blocks(const ColumnSum& s) { return (s.columns + WARP - 1) / WARP; }

// Columns 32 `block` to 32 `block` + 31 of s, by SUM_THREADS threads: each warp sums every 16th row, then a tree sums
// over the warps. shared (SUM_THREADS)
__device__ inline void column_sum_block(const ColumnSum& s, int block, bool add, float* shared) {
    const int c = block * WARP + lane_index();
    float sum = 0.0f;
    if (c < s.columns) {
        UNROLL_BY(8) for (int i = warp_index(); i < s.blocks; i += SUM_WARPS)
            sum += s.partial[(size_t)i * s.columns + c];
    }
    shared[threadIdx.x] = sum;
    for (int by = SUM_THREADS / 2; by >= WARP; by /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < by) shared[threadIdx.x] += shared[threadIdx.x + by];
    }
    if (warp_index() == 0 && c < s.columns)
        s.out[c] = (add ? s.out[c] : 0.0f) + shared[lane_index()];
}
