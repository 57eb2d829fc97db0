// cuda_common.cuh: what every kernel of the CUDA engine stands on: checked calls, the one door for launches,
// storage types, sums and scans over a warp and a block, and the scan over chunks of time that needs no
// second launch. With TOST_CUDA_ON_HOST the same kernels are compiled for a CPU (dev/test/cuda_on_host),
// where a plain twin stands for each of the few functions that are written for the hardware.
#ifndef TOST_CUDA_COMMON_CUH
#define TOST_CUDA_COMMON_CUH

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef TOST_CUDA_ON_HOST
#include "dev/test/cuda_on_host/cuda_on_host.h"
#else
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#endif

extern "C" {
#include "tost/util.h"
}

// ---------------------------------------------------------------------------------------------
// Calls and launches. A failure exits with one line and STATUS_FAILED: it says what failed, where, and what
// to do.

inline const char* cuda_advice(cudaError_t e) {
    switch (e) {
    case cudaErrorMemoryAllocation: return "a smaller --batch or --seq needs less memory";
    case cudaErrorInsufficientDriver:
        return "the NVIDIA driver is missing or older than this build's CUDA: install a newer one";
    case cudaErrorNoDevice: return "no GPU was found: train_gpt_tost runs on the CPU";
    case cudaErrorNoKernelImageForDevice:
        return "this build has no code for this GPU: build it with a newer CUDA toolkit";
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorMisalignedAddress:
    case cudaErrorIllegalInstruction:
        return "a kernel that was launched before failed: compute-sanitizer, or CUDA_LAUNCH_BLOCKING=1, shows which";
    default:
        return "a GPU of compute capability 8.0 or later and its driver are needed; nvidia-smi shows their "
               "state";
    }
}

[[noreturn]] inline void cuda_die(const char* what, const char* error, const char* advice, const char* file,
                                  int line) {
    fprintf(stderr, "%s:%d: %s: %s; %s\n", file, line, what, error, advice);
    exit(STATUS_FAILED);
}

inline void cuda_check(cudaError_t e, const char* what, const char* file, int line) {
    if (e != cudaSuccess) cuda_die(what, cudaGetErrorString(e), cuda_advice(e), file, line);
}
#define CUDA_CHECK(call) cuda_check((call), #call, __FILE__, __LINE__)

inline void cublas_check(cublasStatus_t s, const char* what, const char* file, int line) {
    if (s == CUBLAS_STATUS_SUCCESS) return;
    char error[48];
    snprintf(error, sizeof error, "cuBLASLt status %d", (int)s);
    cuda_die(what, error, "cuBLASLt must be that of this build's CUDA, and the GPU's memory not exhausted",
             file, line);
}
#define CUBLAS_CHECK(call) cublas_check((call), #call, __FILE__, __LINE__)

// LAUNCH(kernel, grid, block, shared_bytes, stream, arguments…): the one door; a template instance stands in
// parentheses. DYNAMIC_SHARED(type, name): the block's shared_bytes. CUDA_REDZONE_BYTES: a gap after each
// buffer, which the host run guards.
#ifdef TOST_CUDA_ON_HOST
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    CUDA_ON_HOST_LAUNCH(kernel, grid, block, shared_bytes, stream, ##__VA_ARGS__)
#define DYNAMIC_SHARED(type, name) type* name = static_cast<type*>(cuda_on_host_dynamic_shared())
#else
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    do { \
        kernel<<<(grid), (block), (shared_bytes), (stream)>>>(__VA_ARGS__); \
        cuda_check(cudaGetLastError(), #kernel, __FILE__, __LINE__); \
    } while (0)
#define DYNAMIC_SHARED(type, name) \
    extern __shared__ __align__(16) unsigned char tost_dynamic_shared[]; \
    type* name = reinterpret_cast<type*>(tost_dynamic_shared)
#define CUDA_REDZONE_BYTES 0
inline void cuda_on_host_poison(void*, size_t) {}
#endif

// Of a block's 48 KiB: what the kernels that take some have of static shared memory is less than the rest.
constexpr size_t DYNAMIC_SHARED_MOST = (48 << 10) - 64;

// ---------------------------------------------------------------------------------------------
// Storage: matmul operands are float or bf16; arithmetic is float

typedef __nv_bfloat16 bf16;

constexpr unsigned FULL_WARP = 0xffffffffu;
constexpr int      WARP = 32;

__host__ __device__ inline float to_float(float x) { return x; }
__host__ __device__ inline float to_float(bf16 x) { return __bfloat162float(x); }
template <typename S> __device__ inline S from_float(float x);
template <> __device__ inline float from_float<float>(float x) { return x; }
template <> __device__ inline bf16  from_float<bf16>(float x) { return __float2bfloat16(x); }

template <size_t BYTES> struct Word;
template <> struct Word<2>  { typedef unsigned short type; };
template <> struct Word<4>  { typedef unsigned type; };
template <> struct Word<8>  { typedef uint2 type; };
template <> struct Word<16> { typedef uint4 type; };

template <int N, typename S> __device__ inline void unpack(float* out, const S (&part)[N]) {
#pragma unroll
    for (int j = 0; j < N; j++) out[j] = to_float(part[j]);
}

#ifndef TOST_CUDA_ON_HOST
// The same of an even number of bf16, which are the upper halves of floats, in one instruction each.
template <int N> __device__ inline void unpack(float* out, const bf16 (&part)[N]) {
#pragma unroll
    for (int j = 0; j < N / 2; j++) {
        const unsigned two = reinterpret_cast<const unsigned*>(part)[j];
        out[2 * j] = __uint_as_float(two << 16);
        out[2 * j + 1] = __uint_as_float(two & 0xffff0000u);
    }
    if (N % 2) out[N - 1] = to_float(part[N - 1]);
}
#endif

// N neighbours of type S in one access of up to 16 bytes; p is aligned to it. Larger packs take several.
template <int N, typename S> __device__ inline void load_pack(float (&out)[N], const S* p) {
    constexpr int COUNT = N * sizeof(S) > 16 ? 16 / (int)sizeof(S) : N;
#pragma unroll
    for (int i = 0; i < N; i += COUNT) {
        alignas(16) S part[COUNT];
#ifdef TOST_CUDA_ON_HOST
        cuda_on_host_aligned(p + i, sizeof part);
        memcpy((void*)part, p + i, sizeof part);
#else
        typedef typename Word<COUNT * sizeof(S)>::type Access;
        *reinterpret_cast<Access*>(part) = *reinterpret_cast<const Access*>(p + i);
#endif
        unpack(out + i, part);
    }
}

template <int N, typename S> __device__ inline void store_pack(S* p, const float (&in)[N]) {
    constexpr int COUNT = N * sizeof(S) > 16 ? 16 / (int)sizeof(S) : N;
#pragma unroll
    for (int i = 0; i < N; i += COUNT) {
        alignas(16) S part[COUNT];
#pragma unroll
        for (int j = 0; j < COUNT; j++) part[j] = from_float<S>(in[i + j]);
#ifdef TOST_CUDA_ON_HOST
        cuda_on_host_aligned(p + i, sizeof part);
        memcpy((void*)(p + i), part, sizeof part);
#else
        typedef typename Word<COUNT * sizeof(S)>::type Access;
        *reinterpret_cast<Access*>(p + i) = *reinterpret_cast<const Access*>(part);
#endif
    }
}

// What the hardware does in one instruction each, to 1 ulp (reciprocal) and 2 ulp (power_of_2): subnormal arguments
// and results are zero.
__device__ inline float reciprocal(float x) {
#ifdef TOST_CUDA_ON_HOST
    return cuda_on_host_flush(1.0f / cuda_on_host_flush(x));
#else
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

__device__ inline float power_of_2(float x) {
#ifdef TOST_CUDA_ON_HOST
    return cuda_on_host_flush(exp2f(x));
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

// ---------------------------------------------------------------------------------------------
// Warp and block. All threads of the warp or block take part; the order of every sum is fixed.

__device__ inline int lane_index() { return threadIdx.x % WARP; }
__device__ inline int warp_index() { return threadIdx.x / WARP; }
__device__ inline int block_warps() { return (blockDim.x + WARP - 1) / WARP; }

__device__ inline float warp_sum(float x) {   // the same in every lane
#pragma unroll
    for (int by = 16; by > 0; by /= 2) x += __shfl_xor_sync(FULL_WARP, x, by);
    return x;
}

__device__ inline float warp_scan(float x, int lane) {   // Σ of lanes 0…lane
#pragma unroll
    for (int by = 1; by < WARP; by *= 2) {   // mutant: lane_scan_too_short
        const float below = __shfl_up_sync(FULL_WARP, x, by);
        if (lane >= by) x += below;
    }
    return x;
}

__device__ inline float warp_max(float x) {   // the same in every lane
#pragma unroll
    for (int by = 16; by > 0; by /= 2) x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, by));
    return x;
}

// One step of warp_transposed_sum: lanes HALF apart exchange halves of what they hold, and each adds up the
// half it keeps.
template <int HALF, int N> __device__ inline void warp_fold(float (&v)[N], int lane) {
    const bool upper = lane & HALF;
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        const float give = upper ? v[i] : v[i + HALF], keep = upper ? v[i + HALF] : v[i];
        v[i] = keep + __shfl_xor_sync(FULL_WARP, give, HALF);
    }
    if constexpr (HALF > 1) warp_fold<HALF / 2>(v, lane);
}

// Lane l receives Σ over all lanes of their v[l % N], N a power of two: for N = 8, 9 shuffles instead of 40.
// v is used up.
template <int N> __device__ inline float warp_transposed_sum(float (&v)[N], int lane) {
    if constexpr (N > 1) warp_fold<N / 2>(v, lane);
#pragma unroll
    for (int by = N; by < WARP; by *= 2) v[0] += __shfl_xor_sync(FULL_WARP, v[0], by);
    return v[0];
}

// Each of the N values, a power of two, becomes its sum over the block, the same in every thread. shared: (32,N), free
// again at the next barrier that follows.
template <int N> __device__ inline void block_sum(float (&v)[N], float* shared) {
    const int lane = lane_index();
    const float mine = warp_transposed_sum(v, lane);
    __syncthreads();   // whoever read the sums before is done   // mutant: block_sum_reuses_early
    if (lane < N) shared[warp_index() * N + lane] = mine;
    __syncthreads();   // mutant: block_sum_reads_early
    float sum = 0.0f;   // of value lane % N, over every 32/N-th warp
#pragma unroll 1
    for (int i = lane; i < block_warps() * N; i += WARP) sum += shared[i];
#pragma unroll
    for (int by = N; by < WARP; by *= 2) sum += __shfl_xor_sync(FULL_WARP, sum, by);
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = __shfl_sync(FULL_WARP, sum, i);
}

// The sum over a row's threads, which are a warp or the whole block.
template <bool WARP_ROW> __device__ inline void row_sum(float (&v)[1], float* shared) {
    if constexpr (WARP_ROW) v[0] = warp_sum(v[0]);
    else block_sum<1>(v, shared);
}

// x of thread i, summed pairwise over the block's threads (a power of two) in a fixed tree; valid in thread
// 0.
template <typename X> __device__ inline X block_tree_sum(X x, X* shared) {   // shared (blockDim.x)
    shared[threadIdx.x] = x;
    __syncthreads();
    for (int by = blockDim.x / 2; by > 0; by /= 2) {
        if ((int)threadIdx.x < by) shared[threadIdx.x] += shared[threadIdx.x + by];
        __syncthreads();   // mutant: tree_sum_unsynchronised
    }
    return shared[0];
}

// ---------------------------------------------------------------------------------------------
// A scan over chunks of time within one launch (decoupled look-back). Blocks draw tickets, so that whoever a
// block waits for has been started before it. Each publishes the totals of its chunk; the last of every 8
// chunks publishes the total of the 8, the last of 64 that of the 64, and so on. The prefix at chunk k is
// then a sum of at most 7 totals of each level, read off the octal digits of k: no chain from chunk to chunk,
// and a tree that does not depend on who came first, so the bits are the same every run. Between levels sums
// are double: long sequences lose nothing.
//
// Totals lie level by level, (slots, width); slot `level base + index`; flags (slots) are zero before the
// launch.

constexpr int SCAN_RADIX_LOG = 3, SCAN_RADIX = 1 << SCAN_RADIX_LOG;

__host__ __device__ inline size_t scan_slots(size_t chunks) {
    size_t slots = 0;
    for (; chunks > 0; chunks >>= SCAN_RADIX_LOG) slots += chunks;
    return slots;
}

// Values of other blocks, from where all blocks see them: never from this multiprocessor's own cache.
__device__ inline float scan_load(const float* p) { return __ldcg(p); }
__device__ inline int   scan_load_flag(const int* p) { return *(const volatile int*)p; }

// Orders this thread's accesses, and those it has synchronised with, for all blocks. Acquire and release are all
// that is needed; __threadfence is more, and stalls longer.
__device__ inline void scan_fence() {
#ifdef TOST_CUDA_ON_HOST
    __threadfence();
#else
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
#endif
}

// Raises a flag: whoever sees it sees all that this thread and those it has synchronised with wrote before.
__device__ inline void scan_raise(int* flag) {
#ifdef TOST_CUDA_ON_HOST
    __threadfence();
    atomicExch(flag, 1);
#else
    asm volatile("st.release.gpu.global.s32 [%0], 1;" ::"l"(flag) : "memory");
#endif
}

// The block's next unit of work: 0, 1, 2, … in the order in which blocks start. ticket is zero before the
// launch.
__device__ inline int scan_ticket(int* ticket) {
    __shared__ int drawn;
    if (threadIdx.x == 0) drawn = atomicAdd(ticket, 1);
    __syncthreads();   // mutant: ticket_read_early
    return drawn;
}

// The block's chunk k: its totals (level 0) have been written by its threads and are shown to the others;
// then waits for all that the prefix at k needs.
__device__ inline void scan_publish_and_wait(int* flags, int k, int chunks) {
    __syncthreads();
    if (threadIdx.x == 0) scan_raise(flags + k);
    int level = 0;
    for (int i = k; i > 0; i >>= SCAN_RADIX_LOG) {
        const int digit = i % SCAN_RADIX;
        if ((int)threadIdx.x < digit) {
            while (scan_load_flag(flags + level + i - digit + threadIdx.x) == 0) {}
        }
        level += chunks;
        chunks >>= SCAN_RADIX_LOG;
    }
    if (threadIdx.x < SCAN_RADIX) scan_fence();   // those that may have waited
    __syncthreads();
}

// Columns a thread takes at once, blockDim.x apart: so many loads are under way together.
constexpr int SCAN_COLUMNS = 2;

// prefix: Σ over the chunks before k of columns c, c + blockDim.x, …, those below width. own: this chunk's totals.
// Where k ends a group, the group's totals are written; scan_publish_groups shows them once all columns are done.
__device__ inline void scan_prefix(double (&prefix)[SCAN_COLUMNS], float* totals, int c, int width, int k, int chunks,
                                   const double (&own)[SCAN_COLUMNS]) {
    double group[SCAN_COLUMNS];
#pragma unroll
    for (int n = 0; n < SCAN_COLUMNS; n++) {
        prefix[n] = 0.0;
        group[n] = own[n];   // mutant: group_without_itself
    }
    bool ends = true;
    size_t level = 0;
    for (int i = k; i > 0; i >>= SCAN_RADIX_LOG) {
        const int digit = i % SCAN_RADIX;
        const float* total = totals + (level + i - digit) * width + c;
        double sum[SCAN_COLUMNS] = {};
#pragma unroll 2
        for (int j = 0; j < digit; j++, total += width) {   // mutant: dropped_group
#pragma unroll
            for (int n = 0; n < SCAN_COLUMNS; n++)
                if (c + n * (int)blockDim.x < width) sum[n] += scan_load(total + n * blockDim.x);
        }
        ends = ends && digit == SCAN_RADIX - 1;
        level += chunks;
        chunks >>= SCAN_RADIX_LOG;
        float* of_group = totals + (level + (i >> SCAN_RADIX_LOG)) * width + c;
#pragma unroll
        for (int n = 0; n < SCAN_COLUMNS; n++) {
            prefix[n] += sum[n];
            group[n] += sum[n];
            if (ends && c + n * (int)blockDim.x < width) of_group[n * blockDim.x] = (float)group[n];
        }
    }
}

__device__ inline void scan_publish_groups(int* flags, int k, int chunks) {
    if (k % SCAN_RADIX != SCAN_RADIX - 1) return;   // the same for the whole block
    __syncthreads();
    if (threadIdx.x > 0) return;
    int level = 0;
    for (int i = k; i % SCAN_RADIX == SCAN_RADIX - 1; i >>= SCAN_RADIX_LOG) {
        level += chunks;
        chunks >>= SCAN_RADIX_LOG;
        scan_raise(flags + level + (i >> SCAN_RADIX_LOG));
    }
}

#endif
