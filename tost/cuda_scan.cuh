// cuda_scan.cuh: prefix sums over chunks of time within one launch (decoupled look-back). Blocks draw tickets, so that
// the chunks before a block's own belong to blocks that have started. Each block publishes its chunk's totals; the last
// of every 8 chunks publishes the total of the 8, the last of 64 that of the 64, and so on. The prefix at chunk k is a
// sum of at most 7 totals per level, selected by the octal digits of k. A group's total is published as soon as the
// totals of the level below are known, so a chain of waits is at most as long as k has octal digits. The tree of sums
// is fixed, so every run gives the same bits. Sums across chunks are double: long sequences lose no precision.
//
// Totals are stored level by level, (slots,width), at slot `level base + index`. flags (slots) are zero before the
// launch.
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

// A value that another block wrote: read from L2, since L1 is not coherent.
__device__ inline float scan_load(const float* p) { return __ldcg(p); }

// The block's unit of work: 0, 1, 2, ... in the order in which blocks start. *ticket is zero before the launch.
__device__ inline int scan_ticket(int* ticket) {
    __shared__ int drawn;
    if (threadIdx.x == 0) drawn = atomicAdd(ticket, 1);   // mutant: ticket_of_the_grid
    __syncthreads();   // mutant: ticket_read_early
    return drawn;
}

// Waits for the totals that precede position i in its group, at a level of `size` positions whose flags start at
// `flags`. With `all`, waits at all higher levels too.
__device__ inline void scan_wait(const int* flags, int i, int size, bool all) {
    do {
        const int digit = i % SCAN_RADIX;
        if ((int)threadIdx.x < digit) wait_flag(flags + i - digit + threadIdx.x);
        flags += size;
        size >>= SCAN_RADIX_LOG;
        i >>= SCAN_RADIX_LOG;
    } while (all && i > 0);
    __syncthreads();   // mutant: wait_unsynchronized
}

// Loads in flight per thread: as many as registers allow.
constexpr int SCAN_LOADS = 21;

// sum[n] += the totals of the `digit` positions from `totals` on, for columns c + n · blockDim.x below width.
template <int COLUMNS>
__device__ inline void scan_add_level(double (&sum)[COLUMNS], const float* totals, int c, int width, int digit) {
    constexpr int BATCH = COLUMNS * (SCAN_RADIX - 1) <= SCAN_LOADS ? SCAN_RADIX - 1 : SCAN_LOADS / COLUMNS;
    double of_level[COLUMNS] = {};
    totals += c;
    NO_UNROLL for (int first = 0; first < digit; first += BATCH) {
        float x[BATCH][COLUMNS];
        UNROLL for (int j = 0; j < BATCH; j++) {
            UNROLL for (int n = 0; n < COLUMNS; n++) {
                const bool inside = first + j < digit && c + n * (int)blockDim.x < width;
                x[j][n] = inside ? scan_load(totals + n * blockDim.x) : 0.0f;
            }
            totals += width;
        }
        UNROLL for (int j = 0; j < BATCH; j++) {
            if (first + j >= digit) break;   // mutant: dropped_group
            UNROLL for (int n = 0; n < COLUMNS; n++) of_level[n] += x[j][n];
        }
    }
    UNROLL for (int n = 0; n < COLUMNS; n++) sum[n] += of_level[n];
}

// sum[n] += the totals that precede position k, of the first `levels` levels.
template <int COLUMNS>
__device__ inline void scan_add(double (&sum)[COLUMNS], const float* totals, int c, int width, int k, int chunks,
                                int levels) {
    int level = 0;
    NO_UNROLL for (int i = k; i > 0 && levels > 0; i >>= SCAN_RADIX_LOG, levels--) {
        const int digit = i % SCAN_RADIX;
        scan_add_level(sum, totals + (size_t)(level + i - digit) * width, c, width, digit);
        level += chunks;
        chunks >>= SCAN_RADIX_LOG;
    }
}

// Publishes the totals of the block's chunk k, which its threads have written, and those of the groups that it ends,
// from the lowest level up: a group's total as soon as those of the level below are known.
template <int COLUMNS>
__device__ inline void scan_publish(float* totals, int* flags, int width, int k, int chunks) {
    __syncthreads();   // mutant: flag_raised_early
    if (threadIdx.x == 0) raise_flag(flags + k);   // mutant: flag_not_raised
    int level = 0;
    NO_UNROLL for (int i = k, size = chunks, levels = 1; i % SCAN_RADIX == SCAN_RADIX - 1; levels++) {
        scan_wait(flags + level, i, size, false);   // mutant: serial_chain, group_not_awaited
        level += size;
        size >>= SCAN_RADIX_LOG;
        i >>= SCAN_RADIX_LOG;
        NO_UNROLL for (int first = threadIdx.x; first < width; first += COLUMNS * blockDim.x) {
            double sum[COLUMNS];
            UNROLL for (int n = 0; n < COLUMNS; n++) {
                const int c = first + n * (int)blockDim.x;
                sum[n] = c < width ? scan_load(totals + (size_t)k * width + c) : 0.0f;   // mutant: group_without_itself
            }
            scan_add(sum, totals, first, width, k, chunks, levels);
            UNROLL for (int n = 0; n < COLUMNS; n++) {
                const int c = first + n * (int)blockDim.x;
                if (c < width) totals[(size_t)(level + i) * width + c] = (float)sum[n];
            }
        }
        __syncthreads();   // mutant: group_flag_raised_early
        if (threadIdx.x == 0) raise_flag(flags + level + i);   // mutant: group_flag_not_raised
    }
}

// Scans `width` columns: carry = start + Σ over the chunks that precede `place`, the chunk's position in scan order.
// totals (slots,width) of the sequence, with the chunks' own totals at level 0; start, end (width) of the sequence, or
// NULL. COLUMNS: a thread's columns per pass; one pass suffices if COLUMNS · blockDim.x is at least `width`.
template <int COLUMNS>
__device__ inline void scan_columns(float* carry, double* end, const double* start, float* totals, int* flags,
                                    int width, int place, int chunks) {
    scan_publish<COLUMNS>(totals, flags, width, place, chunks);
    scan_wait(flags, place, chunks, true);   // mutant: prefix_not_awaited
    NO_UNROLL for (int first = threadIdx.x; first < width; first += COLUMNS * blockDim.x) {
        double prefix[COLUMNS] = {};
        scan_add(prefix, totals, first, width, place, chunks, INT_MAX);
        UNROLL for (int n = 0; n < COLUMNS; n++) {
            const int c = first + n * (int)blockDim.x;
            if (c >= width) continue;
            const double before = (start ? start[c] : 0.0) + prefix[n];   // mutant: state_not_continued
            carry[c] = (float)before;   // mutant: dropped_carry
            if (end && place == chunks - 1) end[c] = before + scan_load(totals + (size_t)place * width + c);
        }
    }
    __syncthreads();   // the carries are written   // mutant: carries_unsynchronized
}

#endif
