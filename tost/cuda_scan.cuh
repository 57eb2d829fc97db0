// cuda_scan.cuh: prefix sums over chunks of time within one launch (decoupled look-back). Blocks draw tickets, so that the
// chunks before a block's own belong to blocks that have started. Each block publishes its chunk's totals; the last of
// every 8 chunks publishes the total of the 8, the last of 64 that of the 64, and so on. The prefix at chunk k is a sum of
// at most 7 totals per level, selected by the octal digits of k. No block waits for a chain of others, and the tree of sums
// is fixed, so every run gives the same bits. Sums across chunks are double: long sequences lose no precision.
//
// Totals are stored level by level, (slots,width), at slot `level base + index`. flags (slots) are zero before the launch.
#ifndef TOST_CUDA_SCAN_CUH
#define TOST_CUDA_SCAN_CUH

#include "tost/cuda_common.cuh"

constexpr int SCAN_RADIX_LOG = 3, SCAN_RADIX = 1 << SCAN_RADIX_LOG;

__host__ __device__ inline size_t scan_slots(size_t chunks) {
    size_t slots = 0;
    for (; chunks > 0; chunks >>= SCAN_RADIX_LOG) slots += chunks;
    return slots;
}

// Values that other blocks wrote: read from L2, since L1 is not coherent.
__device__ inline float scan_load(const float* p) { return __ldcg(p); }
__device__ inline int   scan_load_flag(const int* p) { return *(const volatile int*)p; }

// The block's unit of work: 0, 1, 2, ... in the order in which blocks start. *ticket is zero before the launch.
__device__ inline int scan_ticket(int* ticket) {
    __shared__ int drawn;
    if (threadIdx.x == 0) drawn = atomicAdd(ticket, 1);
    __syncthreads();   // mutant: ticket_read_early
    return drawn;
}

// Publishes the totals of the block's chunk k (level 0), which its threads have written, then waits for all the totals
// that the prefix at k needs.
__device__ inline void scan_publish_and_wait(int* flags, int k, int chunks) {
    __syncthreads();
    if (threadIdx.x == 0) raise_flag(flags + k);
    int level = 0;
    for (int i = k; i > 0; i >>= SCAN_RADIX_LOG) {
        const int digit = i % SCAN_RADIX;
        if ((int)threadIdx.x < digit) {
            while (scan_load_flag(flags + level + i - digit + threadIdx.x) == 0) {}
        }
        level += chunks;
        chunks >>= SCAN_RADIX_LOG;
    }
    if (threadIdx.x < SCAN_RADIX) fence_device();   // the threads that may have waited
    __syncthreads();
}

// Columns per thread and call, blockDim.x apart: their loads overlap.
constexpr int SCAN_COLUMNS = 2;

// prefix: Σ over the chunks before k, for columns c, c + blockDim.x, ... below width. own: totals of chunk k. If k ends
// a group, also writes the group's totals; scan_publish_groups publishes them once all columns are done.
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
        raise_flag(flags + level + (i >> SCAN_RADIX_LOG));
    }
}

#endif
