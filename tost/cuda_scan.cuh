// cuda_scan.cuh: prefix sums over chunks of time within one launch (decoupled look-back). Blocks draw tickets, so that
// the chunks before a block's own belong to blocks that have started. Each block publishes its chunk's totals; the last
// of every 8 chunks publishes the total of the 8, the last of 64 that of the 64, and so on. The prefix at chunk k is a
// sum of at most 7 totals per level, selected by the octal digits of k. A group's total is published as soon as the
// totals of the level below are known, so a chain of waits is at most as long as k has octal digits. The tree of sums
// is fixed, so every run gives the same bits. Sums across chunks are double: long sequences lose no precision.
//
// In a segmented scan, sums restart inside some chunks. The total of such a chunk is its sum after the last restart;
// the total of a group is its sum after the last restart in the group. `from` of a position: the last chunk before it
// in which sums restart; -1: none.
//
// Totals are stored level by level, (slots,stride), at slot `level base + index`; stride is scan_stride(width), so
// that a thread reads and writes 4 neighboring columns at once. flags (slots) are zero before the launch.
#ifndef TOST_CUDA_SCAN_CUH
#define TOST_CUDA_SCAN_CUH

#include <limits.h>

#include "tost/cuda_common.cuh"

constexpr int SCAN_RADIX_LOG = 3, SCAN_RADIX = 1 << SCAN_RADIX_LOG;

__host__ __device__ inline size_t scan_slots(size_t chunks) {
    size_t slots = 0;
    for (; chunks > 0; chunks >>= SCAN_RADIX_LOG) slots += chunks;
    return slots;
}

constexpr int SCAN_VEC = 4;          // neighboring columns of a thread

// Floats from one row of totals to the next. The columns past `width` are not used.
__host__ __device__ inline int scan_stride(int width) { return (width + SCAN_VEC - 1) / SCAN_VEC * SCAN_VEC; }

// Thread 0 calls f with the block's unit of work: 0, 1, 2, ... in the order in which blocks start. What f writes to
// shared memory is visible to all threads. *ticket is zero before the launch.
template <typename F> __device__ inline void scan_ticket(int* ticket, F f) {
    if (threadIdx.x == 0) f(atomicAdd(ticket, 1));   // mutant: ticket_of_the_grid
    __syncthreads();   // mutant: ticket_read_early
}

// Waits for the totals that precede position i in its group, at a level of `size` positions whose flags start at
// `flags`. With `all`, waits at all higher levels too.
__device__ inline void scan_wait(const int* flags, int i, int size, bool all) {
    if (threadIdx.x < SCAN_RADIX) {
        do {
            const int digit = i % SCAN_RADIX;
            if ((int)threadIdx.x < digit) wait_flag(flags + i - digit + threadIdx.x);
            flags += size;
            size >>= SCAN_RADIX_LOG;
            i >>= SCAN_RADIX_LOG;
        } while (all && i > 0);
    }
    __syncthreads();   // mutant: wait_unsynchronized
}

// sum += the totals of `digit` positions, the first of them at `totals`; SEGMENTED: without the first `skipped`. All
// loads are issued before the first addition.
template <bool SEGMENTED>
__device__ inline void scan_add_level(double (&sum)[SCAN_VEC], const float* totals, int stride, int digit,
                                      int skipped) {
    float x[SCAN_RADIX - 1][SCAN_VEC] = {};
    UNROLL for (int j = 0; j < SCAN_RADIX - 1; j++)
        if (j < digit && (!SEGMENTED || j >= skipped))   // mutant: before_the_start
            load_from_L2(x[j], totals + j * stride);
    UNROLL for (int j = 0; j < SCAN_RADIX - 1; j++) {
        if (j >= digit) break;   // mutant: dropped_group
        UNROLL for (int n = 0; n < SCAN_VEC; n++) sum[n] += x[j][n];
    }
}

// sum += the totals that precede position k, of the first `levels` levels. totals: at the thread's columns. SEGMENTED:
// at each level, only from position `from`, or the group that contains it, on.
template <bool SEGMENTED>
__device__ inline void scan_add(double (&sum)[SCAN_VEC], const float* totals, int stride, int k, int chunks, int levels,
                                int from) {
    int level = 0;
    NO_UNROLL for (int i = k; i > 0 && levels > 0; i >>= SCAN_RADIX_LOG, from >>= SCAN_RADIX_LOG, levels--) {
        const int digit = i % SCAN_RADIX;
        scan_add_level<SEGMENTED>(sum, totals + (size_t)(unsigned)(level + i - digit) * (unsigned)stride, stride, digit,
                                  from - (i - digit));
        level += chunks;
        chunks >>= SCAN_RADIX_LOG;
    }
}

// Publishes the totals of the block's chunk k, which its threads have written, and those of the groups that it ends,
// from the lowest level up: a group's total as soon as those of the level below are known. from: see scan_columns.
template <bool SEGMENTED, typename From>
__device__ inline void scan_publish(float* totals, int* flags, int stride, int k, int chunks, From from) {
    __syncthreads();   // mutant: flag_raised_early
    if (threadIdx.x == 0) raise_flag(flags + k);   // mutant: flag_not_raised
    int level = 0;
    NO_UNROLL for (int i = k, size = chunks, levels = 1; i % SCAN_RADIX == SCAN_RADIX - 1; levels++) {
        scan_wait(flags + level, i, size, false);   // mutant: serial_chain, group_not_awaited
        level += size;
        size >>= SCAN_RADIX_LOG;
        i >>= SCAN_RADIX_LOG;
        NO_UNROLL for (int c = threadIdx.x * SCAN_VEC; c < stride; c += blockDim.x * SCAN_VEC) {
            float of_group[SCAN_VEC];
            load_from_L2(of_group, totals + (size_t)k * stride + c);
            double sum[SCAN_VEC];
            UNROLL for (int n = 0; n < SCAN_VEC; n++) sum[n] = of_group[n];   // mutant: group_without_itself
            const int first = from(true);   // mutant: group_of_all_segments
            scan_add<SEGMENTED>(sum, totals + c, stride, k, chunks, levels, first);
            UNROLL for (int n = 0; n < SCAN_VEC; n++) of_group[n] = (float)sum[n];
            store_pack<SCAN_VEC>(totals + (size_t)(level + i) * stride + c, of_group);
        }
        __syncthreads();   // mutant: group_flag_raised_early
        if (threadIdx.x == 0) raise_flag(flags + level + i);   // mutant: group_flag_not_raised
    }
}

// Scans columns. totals (slots,stride) of the sequence, aligned to SCAN_VEC floats, with the chunks' own totals at
// level 0. Calls f(c, sum) for every SCAN_VEC columns from c on, with Σ over the chunks that precede `place`, the
// chunk's position in scan order. f's writes are visible to the block afterwards. SEGMENTED: from(false) returns `from`
// of `place`; from(true) returns `place` if the sums restart in this chunk, else the same.
template <bool SEGMENTED, typename From, typename F>
__device__ inline void scan_columns(float* totals, int* flags, int stride, int place, int chunks, From from, F f) {
    scan_publish<SEGMENTED>(totals, flags, stride, place, chunks, from);
    scan_wait(flags, place, chunks, true);   // mutant: prefix_not_awaited
    NO_UNROLL for (int c = threadIdx.x * SCAN_VEC; c < stride; c += blockDim.x * SCAN_VEC) {
        double sum[SCAN_VEC] = {};
        scan_add<SEGMENTED>(sum, totals + c, stride, place, chunks, INT_MAX, from(false));
        f(c, sum);
    }
    __syncthreads();   // mutant: carries_unsynchronized
}

__device__ inline void scan_store(float* carry, const double (&sum)[SCAN_VEC]) {
    float x[SCAN_VEC];
    UNROLL for (int n = 0; n < SCAN_VEC; n++) x[n] = (float)sum[n];   // mutant: dropped_carry
    store_pack<SCAN_VEC>(carry, x);
}

#endif
