// scan.cuh: prefix sums over runs of time within one launch (decoupled look-back). Blocks draw tickets, so that
// the runs before a block's own belong to blocks that have started. Each block publishes its run's totals; the last
// of every 8 runs publishes the total of the 8, the last of 64 that of the 64, and so on. The prefix at run k is a
// sum of at most 7 totals per level, selected by the octal digits of k. A chain of waits has at most one wait per
// octal digit of k. The tree of sums is fixed, so every launch gives the same bits.
//
// Totals are stored level by level, (slots,stride), at slot `level base + index`; stride is scan_stride(width), so
// that a thread reads and writes 4 neighboring columns at once. flags (slots) are zero before the launch.
#pragma once

#include "tost/cuda/common.cuh"

constexpr int SCAN_RADIX = 8;
constexpr int SCAN_VEC = 4;          // neighboring columns of a thread

__host__ __device__ inline size_t scan_slots(size_t runs) {
    size_t slots = 0;
    for (; runs > 0; runs /= SCAN_RADIX) slots += runs;
    return slots;
}

// Floats from one row of totals to the next. The columns past `width` are not used.
__host__ __device__ inline int scan_stride(int width) { return (width + SCAN_VEC - 1) / SCAN_VEC * SCAN_VEC; }

// A running sum of floats: two floats whose sum hi + lo has about 48 bits, so that long sequences lose no precision.
// Not a double, whose additions run at 1/64 of the rate of floats on many GPUs.
struct FloatPair { float hi, lo; };

__device__ inline float  to_float(FloatPair sum) { return __fadd_rn(sum.hi, sum.lo); }
__device__ inline double to_double(FloatPair sum) { return (double)sum.hi + sum.lo; }

// sum += x. hi becomes the rounded sum of hi and x; the rounding error, which a float represents exactly, is added to
// lo (Knuth's TwoSum). nvcc never contracts these intrinsics into fused multiply-adds, which would change the error.
__device__ inline void sum_add(FloatPair& sum, float x) {
    const float hi = __fadd_rn(sum.hi, x), of_x = __fsub_rn(hi, sum.hi), of_hi = __fsub_rn(hi, of_x);
    const float error = __fadd_rn(__fsub_rn(sum.hi, of_hi), __fsub_rn(x, of_x));
    sum = {hi, __fadd_rn(sum.lo, error)};
}

// Thread 0 calls f with the block's unit of work: 0, 1, 2, ... in the order in which blocks start. What f writes to
// shared memory is visible to all threads. *ticket is zero before the launch.
template <typename F> __device__ inline void scan_ticket(int* ticket, F f) {
    if (threadIdx.x == 0) f(atomicAdd(ticket, 1));
    __syncthreads();
}

// Waits for the totals that precede position k in its group, at the level whose flags start at `flags`.
__device__ inline void scan_wait_level(const int* flags, unsigned k) {
    if (threadIdx.x < k % SCAN_RADIX) wait_flag(flags + k / SCAN_RADIX * SCAN_RADIX + threadIdx.x);
    __syncthreads();
}

// Waits for the totals that precede position k in its groups at all levels. 8 threads of a warp wait for each level, so
// that the waits of up to 4 levels overlap.
__device__ inline void scan_wait_levels(const int* flags, unsigned k, unsigned runs) {
    const unsigned threads = min((int)blockDim.x, WARP);
    NO_UNROLL while (threadIdx.x < threads && k > 0) {
        const int* flag = NULL;
        NO_UNROLL for (unsigned first = 0; first < threads && k > 0; first += SCAN_RADIX) {
            const unsigned i = threadIdx.x - first;
            if (i < k % SCAN_RADIX) flag = flags + k / SCAN_RADIX * SCAN_RADIX + i;
            flags += runs;
            runs /= SCAN_RADIX;
            k /= SCAN_RADIX;
        }
        if (flag) wait_flag(flag);
    }
    __syncthreads();
}

// sum += the first ROWS rows of `totals`. All loads are issued before the first addition.
template <int ROWS>
__device__ inline void scan_add_rows(FloatPair (&sum)[SCAN_VEC], const float* totals, unsigned stride) {
    float x[ROWS][SCAN_VEC];
    UNROLL for (int j = 0; j < ROWS; j++) load_from_L2(x[j], totals + (size_t)j * stride);
    UNROLL for (int j = 0; j < ROWS; j++)
        UNROLL for (int n = 0; n < SCAN_VEC; n++) sum_add(sum[n], x[j][n]);
}

// sum += the totals that precede position k at each level below that at which the group of k has number `end`; 0: at
// all levels. totals: at the thread's columns. A branch for each number of rows takes fewer instructions than a
// predicated load for each row, which also needs its registers cleared.
__device__ inline void scan_add(FloatPair (&sum)[SCAN_VEC], const float* totals, unsigned stride, unsigned k,
                                unsigned end, unsigned runs) {
    static_assert(SCAN_RADIX == 8, "a case for each digit");
    NO_UNROLL for (; k != end; k /= SCAN_RADIX, runs /= SCAN_RADIX) {
        const unsigned digit = k % SCAN_RADIX;
        const float* row = totals + (size_t)(k / SCAN_RADIX * SCAN_RADIX) * stride;
        switch (digit) {
        case 1: scan_add_rows<1>(sum, row, stride); break;
        case 2: scan_add_rows<2>(sum, row, stride); break;
        case 3: scan_add_rows<3>(sum, row, stride); break;
        case 4: scan_add_rows<4>(sum, row, stride); break;
        case 5: scan_add_rows<5>(sum, row, stride); break;
        case 6: scan_add_rows<6>(sum, row, stride); break;
        case 7: scan_add_rows<7>(sum, row, stride); break;
        }
        totals += (size_t)runs * stride;
    }
}

// Publishes the totals of the block's run k, which its threads have written, and those of the groups that it ends,
// from the lowest level up: a group's total as soon as those of the level below are known.
__device__ inline void scan_publish(float* totals, int* flags, unsigned stride, unsigned k, unsigned runs) {
    __syncthreads();
    if (threadIdx.x == 0) raise_flag(flags + k);
    unsigned level = 0;
    NO_UNROLL for (unsigned i = k, size = runs; i % SCAN_RADIX == SCAN_RADIX - 1;) {
        scan_wait_level(flags + level, i);
        level += size;
        size /= SCAN_RADIX;
        i /= SCAN_RADIX;
        NO_UNROLL for (unsigned c = threadIdx.x * SCAN_VEC; c < stride; c += blockDim.x * SCAN_VEC) {
            float of_group[SCAN_VEC];
            load_from_L2(of_group, totals + (size_t)k * stride + c);
            FloatPair sum[SCAN_VEC] = {};
            UNROLL for (int n = 0; n < SCAN_VEC; n++) sum_add(sum[n], of_group[n]);
            scan_add(sum, totals + c, stride, k, i, runs);
            UNROLL for (int n = 0; n < SCAN_VEC; n++) of_group[n] = to_float(sum[n]);
            store_pack<SCAN_VEC>(totals + (size_t)(level + i) * stride + c, of_group);
        }
        __syncthreads();
        if (threadIdx.x == 0) raise_flag(flags + level + i);
    }
}

// Scans columns. totals (slots,stride) of the sequence, aligned to SCAN_VEC floats, with the runs' own totals at
// level 0. Calls f(c, sum) for every SCAN_VEC columns from c on, with Σ over the runs that precede `place`, the
// run's position in scan order. f's writes are visible to the block afterwards.
template <typename F>
__device__ inline void scan_columns(float* totals, int* flags, unsigned stride, unsigned place, unsigned runs, F f) {
    scan_publish(totals, flags, stride, place, runs);
    scan_wait_levels(flags, place, runs);
    NO_UNROLL for (unsigned c = threadIdx.x * SCAN_VEC; c < stride; c += blockDim.x * SCAN_VEC) {
        FloatPair sum[SCAN_VEC] = {};
        scan_add(sum, totals + c, stride, place, 0, runs);
        f(c, sum);
    }
    __syncthreads();
}
