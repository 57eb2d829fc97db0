// scan.cuh: prefix sums over chunks of time within one launch (decoupled look-back). Blocks draw tickets, so that
// the chunks before a block's own belong to blocks that have started. Each block publishes its chunk's totals; the last
// of every 8 chunks publishes the total of the 8, the last of 64 that of the 64, and so on. The prefix at chunk k is a
// sum of at most 7 totals per level, selected by the octal digits of k. A group's total is published as soon as the
// totals of the level below are known, so a chain of waits is at most as long as k has octal digits. The tree of sums
// is fixed, so every run gives the same bits. Sums across chunks have about 48 bits of precision or more (ScanSum), so
// long sequences lose no precision.
//
// In a segmented scan, sums restart inside some chunks. The total of such a chunk is its sum after the last restart;
// the total of a group is its sum after the last restart in the group. `from` of a position: the last chunk before it
// in which sums restart; -1: none.
//
// Totals are stored level by level, (slots,stride), at slot `level base + index`; stride is scan_stride(width), so
// that a thread reads and writes 4 neighboring columns at once. flags (slots) are zero before the launch.
#ifndef TOST_CUDA_SCAN_CUH
#define TOST_CUDA_SCAN_CUH

#include <type_traits>

#include "tost/cuda/common.cuh"

constexpr int SCAN_RADIX_LOG = 3, SCAN_RADIX = 1 << SCAN_RADIX_LOG;

__host__ __device__ inline size_t scan_slots(size_t chunks) {
    size_t slots = 0;
    for (; chunks > 0; chunks >>= SCAN_RADIX_LOG) slots += chunks;
    return slots;
}

constexpr int SCAN_VEC = 4;          // neighboring columns of a thread

// A running sum of floats: a double or, where doubles are slow, two floats whose sum hi + lo has about 48 bits.
struct FloatPair { float hi, lo; };
typedef std::conditional_t<SLOW_DOUBLES, FloatPair, double> ScanSum;

__device__ inline float  to_float(double sum) { return (float)sum; }
__device__ inline float  to_float(FloatPair sum) { return __fadd_rn(sum.hi, sum.lo); }
__device__ inline double to_double(double sum) { return sum; }
__device__ inline double to_double(FloatPair sum) { return (double)sum.hi + sum.lo; }

// sum += x. FloatPair: hi becomes the rounded sum of hi and x; the rounding error, which a float represents exactly, is
// added to lo (Knuth's TwoSum). nvcc never contracts these intrinsics into fused multiply-adds, which would change the
// error.
__device__ inline void sum_add(double& sum, float x) { sum += x; }
__device__ inline void sum_add(FloatPair& sum, float x) {
    const float hi = __fadd_rn(sum.hi, x), of_x = __fsub_rn(hi, sum.hi), of_hi = __fsub_rn(hi, of_x);
    const float error = __fadd_rn(__fsub_rn(sum.hi, of_hi), __fsub_rn(x, of_x));
    sum = {hi, __fadd_rn(sum.lo, error)};   // mutant: low_part_dropped
}

// Floats from one row of totals to the next. The columns past `width` are not used.
__host__ __device__ inline int scan_stride(int width) { return (width + SCAN_VEC - 1) / SCAN_VEC * SCAN_VEC; }

// Thread 0 calls f with the block's unit of work: 0, 1, 2, ... in the order in which blocks start. What f writes to
// shared memory is visible to all threads. *ticket is zero before the launch.
template <typename F> __device__ inline void scan_ticket(int* ticket, F f) {
    if (threadIdx.x == 0) f(atomicAdd(ticket, 1));   // mutant: ticket_of_the_grid
    __syncthreads();   // mutant: ticket_read_early
}

// Waits for the totals that precede position k in its group, at the level whose flags start at `flags`.
__device__ inline void scan_wait_level(const int* flags, unsigned k) {
    if (threadIdx.x < k % SCAN_RADIX) wait_flag(flags + k / SCAN_RADIX * SCAN_RADIX + threadIdx.x);
    __syncthreads();   // mutant: group_wait_unsynchronized
}

// Waits for the totals that precede position k in its groups at all levels. 8 threads of a warp wait for each level, so
// that the waits of up to 4 levels overlap.
__device__ inline void scan_wait_levels(const int* flags, unsigned k, unsigned chunks) {
    const unsigned threads = min((int)blockDim.x, WARP);
    NO_UNROLL while (threadIdx.x < threads && k > 0) {
        const int* flag = NULL;
        NO_UNROLL for (unsigned first = 0; first < threads && k > 0; first += SCAN_RADIX) {
            const unsigned i = threadIdx.x - first;
            if (i < k % SCAN_RADIX) flag = flags + k / SCAN_RADIX * SCAN_RADIX + i;
            flags += chunks;
            chunks /= SCAN_RADIX;
            k /= SCAN_RADIX;
        }
        if (flag) wait_flag(flag);
    }
    __syncthreads();   // mutant: wait_unsynchronized
}

// sum += the first ROWS rows of `totals`. All loads are issued before the first addition.
template <int ROWS, typename Sum>
__device__ inline void scan_add_rows(Sum (&sum)[SCAN_VEC], const float* totals, unsigned stride) {
    float x[ROWS][SCAN_VEC];
    UNROLL for (int j = 0; j < ROWS; j++) load_from_L2(x[j], totals + (size_t)j * stride);
    UNROLL for (int j = 0; j < ROWS; j++)
        UNROLL for (int n = 0; n < SCAN_VEC; n++) sum_add(sum[n], x[j][n]);
}

// scan_add_rows for a number of rows that is known only at run time. A branch for each number takes fewer instructions
// than a predicated load for each row, which also needs its registers cleared.
template <typename Sum>
__device__ inline void scan_add_level(Sum (&sum)[SCAN_VEC], const float* totals, unsigned stride, unsigned rows) {
    static_assert(SCAN_RADIX == 8, "a case for each digit");
    switch (rows) {
    case 1: return scan_add_rows<1>(sum, totals, stride);
    case 2: return scan_add_rows<2>(sum, totals, stride);
    case 3: return scan_add_rows<3>(sum, totals, stride);
    case 4: return scan_add_rows<4>(sum, totals, stride);
    case 5: return scan_add_rows<5>(sum, totals, stride);
    case 6: return scan_add_rows<6>(sum, totals, stride);
    case 7: return scan_add_rows<7>(sum, totals, stride);
    }
}

// sum += the totals that precede position k at each level below that at which the group of k has number `end`; 0: at
// all levels. totals: at the thread's columns. SEGMENTED: at each level, only the totals from position `from`, or from
// the group that contains it, on. GROUP: at each of these levels, k is the last position of its group.
template <bool SEGMENTED, bool GROUP, typename Sum>
__device__ inline void scan_add(Sum (&sum)[SCAN_VEC], const float* totals, unsigned stride, unsigned k, unsigned end,
                                unsigned chunks, int from) {
    NO_UNROLL for (; k != end; k /= SCAN_RADIX, chunks /= SCAN_RADIX, from >>= SCAN_RADIX_LOG) {
        const unsigned digit = k % SCAN_RADIX, first = k - digit;
        const unsigned skipped = SEGMENTED ? max(from - (int)first, 0) : 0;   // mutant: before_the_start
        const float* row = totals + (size_t)(first + skipped) * stride;
        if constexpr (GROUP && !SEGMENTED) scan_add_rows<SCAN_RADIX - 1>(sum, row, stride);
        else scan_add_level(sum, row, stride, digit - skipped);   // mutant: dropped_group
        totals += (size_t)chunks * stride;
    }
}

// Publishes the totals of the block's chunk k, which its threads have written, and those of the groups that it ends,
// from the lowest level up: a group's total as soon as those of the level below are known. from: see scan_columns.
template <bool SEGMENTED, typename Sum, typename From>
__device__ inline void scan_publish(float* totals, int* flags, unsigned stride, unsigned k, unsigned chunks,
                                    From from) {
    __syncthreads();   // mutant: flag_raised_early
    if (threadIdx.x == 0) raise_flag(flags + k);   // mutant: flag_not_raised
    unsigned level = 0;
    NO_UNROLL for (unsigned i = k, size = chunks; i % SCAN_RADIX == SCAN_RADIX - 1;) {
        scan_wait_level(flags + level, i);   // mutant: serial_chain, group_not_awaited
        level += size;
        size /= SCAN_RADIX;
        i /= SCAN_RADIX;
        NO_UNROLL for (unsigned c = threadIdx.x * SCAN_VEC; c < stride; c += blockDim.x * SCAN_VEC) {
            float of_group[SCAN_VEC];
            load_from_L2(of_group, totals + (size_t)k * stride + c);
            Sum sum[SCAN_VEC] = {};
            UNROLL for (int n = 0; n < SCAN_VEC; n++) sum_add(sum[n], of_group[n]);   // mutant: group_without_itself
            const int first = from(true);   // mutant: group_of_all_segments
            scan_add<SEGMENTED, true>(sum, totals + c, stride, k, i, chunks, first);
            UNROLL for (int n = 0; n < SCAN_VEC; n++) of_group[n] = to_float(sum[n]);
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
template <bool SEGMENTED, typename Sum = ScanSum, typename From, typename F>
__device__ inline void scan_columns(float* totals, int* flags, unsigned stride, unsigned place, unsigned chunks,
                                    From from, F f) {
    scan_publish<SEGMENTED, Sum>(totals, flags, stride, place, chunks, from);
    scan_wait_levels(flags, place, chunks);   // mutant: prefix_not_awaited
    NO_UNROLL for (unsigned c = threadIdx.x * SCAN_VEC; c < stride; c += blockDim.x * SCAN_VEC) {
        Sum sum[SCAN_VEC] = {};
        scan_add<SEGMENTED, false>(sum, totals + c, stride, place, 0, chunks, from(false));
        f(c, sum);
    }
    __syncthreads();   // mutant: carries_unsynchronized
}

template <typename Sum> __device__ inline void scan_store(float* carry, const Sum (&sum)[SCAN_VEC]) {
    float x[SCAN_VEC];
    UNROLL for (int n = 0; n < SCAN_VEC; n++) x[n] = to_float(sum[n]);   // mutant: dropped_carry
    store_pack<SCAN_VEC>(carry, x);
}

#endif
