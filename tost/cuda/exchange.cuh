// exchange.cuh: gradients and parameters that the ranks of the CUDA engine exchange in a step (slices.h), like
// exchange.h for the CPU engine. With one rank and one part, every function does nothing or works on the whole arrays.
// NCCL works on a stream of its own, so that the exchange of a layer overlaps with the backward pass below it.
#ifndef TOST_CUDA_EXCHANGE_CUH
#define TOST_CUDA_EXCHANGE_CUH

#include <vector>

#include "tost/cuda/reduce.cuh"
#include "tost/cuda/runtime.cuh"

extern "C" {
#include "tost/ranks/comm.h"
#include "tost/engine.h"
#include "tost/ranks/slices.h"
}

#ifdef TOST_NCCL
#include "tost/cuda/nccl.cuh"
#else
struct NcclLink;
#endif

enum { EXCHANGE_LEVELS = 31 };

struct Exchange {
    TostComm* comm;                  // NULL: one rank
    int       rank, ranks, parts;    // parts of this rank
    bool      fast;                  // TostEngineOptions.fast_reduce
    Slices    slices;
    size_t    size, most_units;      // elements of the flat arrays; most units of a rank
    float*    grad;
    float*    level[EXCHANGE_LEVELS];   // level[j]: the sum of 2^j parts, if bit j of `part` is set
    float*    received;              // (ranks-1, slice) of a bucket
    double*   unit_sums;             // (ranks, most_units): Σ g² of each unit
    int32_t*  unit_place;            // (units): a unit's index in unit_sums
    int       part, started;         // of this step: parts that are complete, buckets that are under way

    NcclLink*    link;               // NULL: one rank
    bool         own_link;
    cudaStream_t compute, stream;    // the engine's; the exchange's, the same with one rank
    cudaEvent_t  forked, joined;     // the engine's work that the exchange waits for, and the other way around
    bool         under_way;          // the engine's stream does not wait yet for the end of the exchange
    bool         unsettled;          // the host does not know yet that the exchange has ended
};

static Exchange exchange_new(const TostTensors* tensors, const TostEngineOptions* o) {
    Exchange x = {};
    x.comm = o->training ? o->comm : NULL;
    x.rank = comm_rank(x.comm);
    x.ranks = comm_size(x.comm);
    x.parts = o->parts > 1 ? o->parts : 1;
    x.fast = o->fast_reduce;
    x.size = tensors->flat_size;
    x.slices = slices_new(tensors, x.ranks);
    for (int r = 0; r < x.ranks; r++)
        x.most_units = max(x.most_units, (x.slices.total[r] + SLICE_UNIT - 1) / SLICE_UNIT);
    return x;
}

static size_t exchange_owned(const Exchange* x) { return x->slices.total[x->rank]; }
static Range  exchange_slice(const Exchange* x, int k) { return slices_of(&x->slices, x->rank, k); }
static size_t exchange_packed(const Exchange* x, int rank, int k) {
    return x->slices.packed[(size_t)rank * x->slices.buckets + k];
}
static int range_units(Range r) { return div_up(range_size(r), SLICE_UNIT); }

static void exchange_layout(Exchange* x, Arena* arena, float* grad) {
    size_t largest = 0;
    x->grad = grad;
    for (int k = 0; k < x->slices.buckets; k++)
        for (int r = 0; r < x->ranks; r++) largest = max(largest, range_size(slices_of(&x->slices, r, k)));
    for (int j = 0; (x->parts - 1) >> j > 0; j++)
        x->level[j] = (float*)arena_alloc(arena, x->size * sizeof(float));
    if (x->ranks > 1)
        x->received = (float*)arena_alloc(arena, (size_t)(x->ranks - 1) * largest * sizeof(float));
    x->unit_sums = (double*)arena_alloc(arena, x->ranks * x->most_units * sizeof(double));
    x->unit_place = (int32_t*)arena_alloc(arena, (size_t)div_up(x->size, SLICE_UNIT) * sizeof(int32_t));
}

// Where each unit's sum is, in the order of the flat array.
static void put_unit_places(const Exchange* x) {
    std::vector<int32_t> place;
    for (int k = x->slices.buckets - 1; k >= 0; k--)
        for (int r = 0; r < x->ranks; r++)
            for (int i = 0; i < range_units(slices_of(&x->slices, r, k)); i++)
                place.push_back((int32_t)(r * x->most_units + exchange_packed(x, r, k) / SLICE_UNIT + i));
    CUDA_CHECK(cudaMemcpyAsync(x->unit_place, place.data(), place.size() * sizeof(int32_t), cudaMemcpyHostToDevice,
                               x->compute));
    CUDA_CHECK(cudaStreamSynchronize(x->compute));
}

// ---------------------------------------------------------------------------------------------
// Order between the engine's stream, the exchange's and the host

// The exchange starts only when the engine's work so far is done.
static void exchange_fork(Exchange* x) {
    if (!x->comm) return;
    CUDA_CHECK(cudaEventRecord(x->forked, x->compute));
    CUDA_CHECK(cudaStreamWaitEvent(x->stream, x->forked, 0));   // mutant: sent_before_computed
    x->under_way = true;
}

// The engine continues only when the exchange so far has ended.
static void exchange_join(Exchange* x) {
    if (!x->under_way) return;
    CUDA_CHECK(cudaEventRecord(x->joined, x->stream));
    CUDA_CHECK(cudaStreamWaitEvent(x->compute, x->joined, 0));   // mutant: used_before_received
    x->under_way = false;
    x->unsettled = true;
}

// Waits on the host for the exchange. To be called before every other wait for the engine's stream, which would never
// end if another rank has failed.
static void exchange_settle(Exchange* x) {
    exchange_join(x);
#ifdef TOST_NCCL
    if (x->unsettled) nccl_event_wait(x->link, x->joined, "the exchange of a step");
#endif
    x->unsettled = false;
}

// ---------------------------------------------------------------------------------------------
// Parts:   dst = left + right

__global__ void tree_add_kernel(float* dst, const float* left, const float* right, size_t n) {
    const size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (i >= n) return;
    float a[4], b[4];
    load_pack<4>(a, left + i);
    load_pack<4>(b, right + i);
    UNROLL for (int j = 0; j < 4; j++) a[j] += b[j];
    store_pack<4>(dst + i, a);
}

static void tree_add_on_device(cudaStream_t stream, float* dst, const float* left, const float* right, size_t n) {
    LAUNCH(tree_add_kernel, div_up(n, 4 * 256), 256, 0, stream, dst, left, right, n);
}

static void exchange_begin(Exchange* x) {
    exchange_join(x);
    x->part = x->started = 0;
}

// Adds the gradients of a complete part to those of the parts before it: like a binary counter, in which level j holds
// the sum of 2^j parts. The caller starts the next part with zero gradients.
static void finish_part(Exchange* x) {
    int j = 0;
    for (; x->part >> j & 1; j++) tree_add_on_device(x->compute, x->grad, x->level[j], x->grad, x->size);
    CUDA_CHECK(cudaMemcpyAsync(x->level[j], x->grad, x->size * sizeof(float), cudaMemcpyDeviceToDevice, x->compute));
    x->part++;
}

// Completes this rank's sum over its parts, of the elements r. grad holds the last part.
static void add_parts(Exchange* x, Range r) {
    for (int j = 0; x->part >> j > 0; j++)
        if (x->part >> j & 1)   // mutant: level_not_set
            tree_add_on_device(x->compute, x->grad + r.start, x->level[j] + r.start, x->grad + r.start, range_size(r));
}

// ---------------------------------------------------------------------------------------------
// Gradients:   grad[i] = tree over the ranks of their grad[i], for the elements of this rank's slice

// own (n): row `rank`; received (ranks-1, n): the other rows. Rows are added in the order of slices.h's tree, by the
// binary counter above, here in registers. Minimum traffic per element: 4 ranks + 4.
constexpr int RANK_LEVELS = 10;      // ranks < 2^RANK_LEVELS

__global__ void slice_sum_kernel(float* own, const float* received, int rank, int ranks, size_t n) {
    const size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (i >= n) return;
    float level[RANK_LEVELS][4], sum[4];
    for (int r = 0; r < ranks; r++) {
        bool carry = true;
        const int row = r < rank ? r : r - 1;   // mutant: row_of_another_rank
        load_pack<4>(sum, (r == rank ? own : received + (size_t)row * n) + i);
        UNROLL for (int l = 0; l < RANK_LEVELS; l++) {
            if (!carry) continue;
            const bool full = r >> l & 1;
            UNROLL for (int j = 0; j < 4; j++) {
                if (full) sum[j] = level[l][j] + sum[j];
                else level[l][j] = sum[j];
            }
            carry = full;
        }
    }
    bool first = true;   // the levels that are set, from the smallest
    UNROLL for (int l = 0; l < RANK_LEVELS; l++) {
        if (!(ranks >> l & 1)) continue;
        UNROLL for (int j = 0; j < 4; j++) sum[j] = first ? level[l][j] : level[l][j] + sum[j];
        first = false;
    }
    store_pack<4>(own + i, sum);
}

#ifdef TOST_NCCL
static bool equal_slices(const Exchange* x, int k) {
    const size_t size = range_size(exchange_slice(x, k));
    return size > 0 && size * x->ranks == range_size(x->slices.bucket[k]) &&
           range_size(slices_of(&x->slices, 0, k)) == size;
}

// Sends each rank its slice of the bucket, receives the other ranks' gradients of this rank's slice, and adds all in
// the order of the tree.
static void sum_bucket_ordered(Exchange* x, int k) {
    const NcclLink* l = x->link;
    const Range own = exchange_slice(x, k);
    const size_t n = range_size(own);
    float* row = x->received;
    NCCL_ADD(l, ncclGroupStart());
    for (int r = 0; r < x->ranks; r++) {
        const Range theirs = slices_of(&x->slices, r, k);   // mutant: wrong_slice
        if (r == x->rank) continue;
        if (range_size(theirs))
            NCCL_ADD(l, ncclSend(x->grad + theirs.start, range_size(theirs), ncclFloat, r, l->nccl, x->stream));
        if (n) NCCL_ADD(l, ncclRecv(row, n, ncclFloat, r, l->nccl, x->stream));   // mutant: wrong_count
        row += n;
    }
    nccl_group_end(l);
    if (n == 0) return;
    LAUNCH(slice_sum_kernel, div_up(n, 4 * 256), 256, 0, x->stream, x->grad + own.start, x->received, x->rank, x->ranks,
           n);
}

// NCCL adds the slices, in an order that depends on the number of ranks and how they are connected.
static void sum_bucket_fast(Exchange* x, int k) {
    const NcclLink* l = x->link;
    const Range own = exchange_slice(x, k);
    if (equal_slices(x, k)) {
        nccl_check(l, ncclReduceScatter(x->grad + x->slices.bucket[k].start, x->grad + own.start, range_size(own),
                                        ncclFloat, ncclSum, l->nccl, x->stream), "ncclReduceScatter");
        return;
    }
    NCCL_ADD(l, ncclGroupStart());
    for (int r = 0; r < x->ranks; r++) {
        const Range s = slices_of(&x->slices, r, k);
        float* at = x->grad + s.start;
        if (range_size(s)) NCCL_ADD(l, ncclReduce(at, at, range_size(s), ncclFloat, ncclSum, r, l->nccl, x->stream));
    }
    nccl_group_end(l);
}

static void start_buckets(Exchange* x, int end) {
    exchange_fork(x);
    for (; x->started < end; x->started++)
        if (x->fast) sum_bucket_fast(x, x->started);
        else sum_bucket_ordered(x, x->started);   // mutant: bucket_left_out
}
#endif

// During the backward pass: its gradients from element `from` on are complete. After the last part of a step, starts
// the exchange of the buckets that are complete; after all of them, this rank's slices are sums over all parts.
static void exchange_gradients(Exchange* x, TostEnd end, size_t from) {
    if (end == TOST_PART_ENDS && from == 0) finish_part(x);
    if (end != TOST_STEP_ENDS) return;
    const int ready = slices_complete(&x->slices, from);
    if (ready == x->started) return;
    add_parts(x, {x->slices.bucket[ready - 1].start, x->slices.bucket[x->started].end});
#ifdef TOST_NCCL
    if (x->comm) start_buckets(x, ready);
#endif
    x->started = ready;
}

// ---------------------------------------------------------------------------------------------
// The gradient norm, from one sum per unit of SLICE_UNIT elements: its bits do not depend on the number of ranks

constexpr int NORM_UNIT_THREADS = 256, NORM_TOTAL_THREADS = 1024;

// sums[unit] = Σ g²; the gaps between tensors are zero. Minimum traffic per element: 4.
__global__ void __launch_bounds__(NORM_UNIT_THREADS) grad_norm_kernel(double* sums, const float* grad, size_t n) {
    SHARED(double, shared, NORM_UNIT_THREADS);
    const size_t start = (size_t)blockIdx.x * SLICE_UNIT;
    const int size = (int)min((size_t)SLICE_UNIT, n - start);
    double sum = 0.0;
    UNROLL_BY(4) for (int i = threadIdx.x * 4; i < size; i += NORM_UNIT_THREADS * 4) {
        float g[4];
        load_pack<4>(g, grad + start + i);
        UNROLL for (int j = 0; j < 4; j++) sum += (double)g[j] * g[j];
    }
    sum = block_tree_sum(sum, shared);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(NORM_TOTAL_THREADS)
    grad_norm_total_kernel(double* total, const double* sums, const int32_t* place, int units) {
    SHARED(double, shared, NORM_TOTAL_THREADS);
    double sum = 0.0;
    for (int i = threadIdx.x; i < units; i += NORM_TOTAL_THREADS) sum += sums[place[i]];   // mutant: norm_by_rank
    sum = block_tree_sum(sum, shared);
    if (threadIdx.x == 0) *total = sum;
}

// *total = Σ g² over all parts and ranks.
static void exchange_norm(Exchange* x, double* total) {
    double* mine = x->unit_sums + x->rank * x->most_units;
    exchange_fork(x);
    for (int k = 0; k < x->slices.buckets; k++) {
        const Range own = exchange_slice(x, k);
        if (range_size(own) == 0) continue;
        LAUNCH(grad_norm_kernel, range_units(own), NORM_UNIT_THREADS, 0, x->stream,
               mine + exchange_packed(x, x->rank, k) / SLICE_UNIT, x->grad + own.start, range_size(own));
    }
#ifdef TOST_NCCL
    if (x->comm)
        nccl_check(x->link, ncclAllGather(mine, x->unit_sums, x->most_units, ncclFloat64, x->link->nccl, x->stream),
                   "ncclAllGather");
#endif
    LAUNCH(grad_norm_total_kernel, 1, NORM_TOTAL_THREADS, 0, x->stream, total, x->unit_sums, x->unit_place,
           div_up(x->size, SLICE_UNIT));
    exchange_join(x);
}

// ---------------------------------------------------------------------------------------------
// Gathering

// Sends this rank's slices of a flat array to all ranks; the other slices are overwritten.
static void exchange_gather(Exchange* x, float* flat) {
#ifdef TOST_NCCL
    const NcclLink* l = x->link;
    if (!x->comm) return;
    exchange_fork(x);
    NCCL_ADD(l, ncclGroupStart());
    for (int k = x->slices.buckets - 1; k >= 0; k--) {
        const Range own = exchange_slice(x, k);
        if (equal_slices(x, k)) {
            NCCL_ADD(l, ncclAllGather(flat + own.start, flat + x->slices.bucket[k].start, range_size(own), ncclFloat,
                                      l->nccl, x->stream));
            continue;
        }
        for (int r = 0; r < x->ranks; r++) {
            const Range s = slices_of(&x->slices, r, k);
            if (range_size(s) == 0) continue;
            NCCL_ADD(l, ncclBroadcast(flat + s.start, flat + s.start, range_size(s), ncclFloat, r, l->nccl, x->stream));
        }
    }
    nccl_group_end(l);
    exchange_join(x);
#else
    (void)x, (void)flat;
#endif
}

#ifdef TOST_NCCL
// Copies tensor t of bucket k to dst on rank 0. array: this rank's slices, packed, or a flat array.
static void collect_bucket(float* dst, Exchange* x, const float* array, bool packed, Range t, int k) {
    const NcclLink* l = x->link;
    const Range own = exchange_slice(x, k), mine = range_meet(own, t);
    const float* from = array + (packed ? exchange_packed(x, x->rank, k) + (mine.start - own.start) : mine.start);
    float* row = x->received;
    exchange_fork(x);
    NCCL_ADD(l, ncclGroupStart());
    for (int r = 1; r < x->ranks && x->rank == 0; r++) {
        const size_t n = range_size(range_meet(slices_of(&x->slices, r, k), t));
        if (n) NCCL_ADD(l, ncclRecv(row, n, ncclFloat, r, l->nccl, x->stream));
        row += n;
    }
    if (x->rank > 0 && range_size(mine))
        NCCL_ADD(l, ncclSend(from, range_size(mine), ncclFloat, 0, l->nccl, x->stream));
    nccl_group_end(l);
    exchange_settle(x);
    if (x->rank > 0) return;
    if (range_size(mine)) copy_to_host(dst + (mine.start - t.start), from, range_size(mine), x->compute);
    row = x->received;
    for (int r = 1; r < x->ranks; r++) {
        const Range theirs = range_meet(slices_of(&x->slices, r, k), t);
        if (range_size(theirs)) copy_to_host(dst + (theirs.start - t.start), row, range_size(theirs), x->compute);
        row += range_size(theirs);
    }
}
#endif

// Copies one tensor to dst on rank 0.
static void exchange_collect(float* dst, Exchange* x, const float* array, bool packed, const TostTensor* t) {
    exchange_settle(x);
#ifdef TOST_NCCL
    const Range tensor = {t->offset, t->offset + t->size};
    for (int k = 0; x->comm && k < x->slices.buckets; k++)
        if (range_size(range_meet(x->slices.bucket[k], tensor))) collect_bucket(dst, x, array, packed, tensor, k);
    if (x->comm) return;
#endif
    (void)packed;
    copy_to_host(dst, array + t->offset, t->size, x->compute);
}

// ---------------------------------------------------------------------------------------------
// Start and end

#ifdef TOST_NCCL
// Uses the link of the host messages, if NCCL transports them; else connects the ranks.
static bool connect(Exchange* x, TostError* err) {
    ncclUniqueId id = {};
    x->link = link_of(x->comm);
    if (x->link) return true;
    const ncclResult_t e = x->rank == 0 ? ncclGetUniqueId(&id) : ncclSuccess;
    const bool ok = e == ncclSuccess || tost_error(err, "NCCL: %s; NCCL_DEBUG=WARN prints the cause",
                                                   ncclGetErrorString(e));
    if (!comm_agree(x->comm, ok, err)) return false;
    comm_broadcast(x->comm, &id, sizeof id, 0);
    x->link = new NcclLink();
    x->own_link = link_open(x->link, x->comm, &id, err);
    if (comm_agree(x->comm, x->own_link, err)) return true;
    if (x->own_link) link_close(x->link);
    delete x->link;
    x->link = NULL;
    return x->own_link = false;
}
#endif

// Collective, after layout with device memory.
static bool exchange_open(Exchange* x, cudaStream_t compute, TostError* err) {
    x->compute = x->stream = compute;
    put_unit_places(x);
    if (!x->comm) return true;
#ifdef TOST_NCCL
    if (x->ranks >= 1 << RANK_LEVELS)
        return tost_error(err, "%d ranks: the CUDA engine takes up to %d", x->ranks, (1 << RANK_LEVELS) - 1);
    if (!connect(x, err)) return false;
    int lowest, highest;   // so that the exchange starts beside the kernels of backward, not after them
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    CUDA_CHECK(cudaStreamCreateWithPriority(&x->stream, cudaStreamNonBlocking, highest));
    CUDA_CHECK(cudaEventCreateWithFlags(&x->forked, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventCreateWithFlags(&x->joined, cudaEventDisableTiming));
    return true;
#else
    return tost_error(err, "%d processes, but train_gpt_tostcu was built without NCCL: build it with make NCCL=1",
                      x->ranks);
#endif
}

// Collective, except before exchange_open.
static void exchange_free(Exchange* x) {
    if (x->forked) {
        exchange_settle(x);
        CUDA_CHECK(cudaEventDestroy(x->forked));
        CUDA_CHECK(cudaEventDestroy(x->joined));
        CUDA_CHECK(cudaStreamDestroy(x->stream));
    }
#ifdef TOST_NCCL
    if (x->own_link) {
        link_close(x->link);
        delete x->link;
    }
#endif
    slices_free(&x->slices);
}

#endif
