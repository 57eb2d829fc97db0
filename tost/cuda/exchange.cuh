// exchange.cuh: the exchange between ranks (ranks/exchange.h) in device memory, with NCCL. It has a stream of its own,
// so that the exchange of a layer overlaps with the backward pass below it.
#pragma once

#include "tost/cuda/reduce.cuh"
#include "tost/cuda/runtime.cuh"

extern "C" {
#include "tost/ranks/exchange.h"
}

#ifdef TOST_NCCL
#include "tost/cuda/nccl.cuh"
#endif

struct DeviceExchange : Exchange {
    struct NcclLink* link;           // NULL: one rank
    cudaStream_t compute, stream;    // the engine's; the exchange's, if there are several ranks
    cudaEvent_t  forked, joined;     // the engine's work that the exchange waits for, and the other way around
    bool         under_way;          // the engine's stream does not wait yet for the end of the exchange
};

static DeviceExchange* device_exchange(const Exchange* x) {
    return static_cast<DeviceExchange*>(const_cast<Exchange*>(x));
}

// ---------------------------------------------------------------------------------------------
// Order between the engine's stream, the exchange's and the host

// The exchange starts only when the engine's work so far is done.
static void exchange_fork(DeviceExchange* x) {
    if (!x->comm) return;
    CUDA_CHECK(cudaEventRecord(x->forked, x->compute));
    CUDA_CHECK(cudaStreamWaitEvent(x->stream, x->forked, 0));
    x->under_way = true;
}

// The engine continues only when the exchange so far has ended.
static void exchange_join(DeviceExchange* x) {
    if (!x->under_way) return;
    CUDA_CHECK(cudaEventRecord(x->joined, x->stream));
    CUDA_CHECK(cudaStreamWaitEvent(x->compute, x->joined, 0));
    x->under_way = false;
}

// Waits on the host for the exchange. To be called before every other wait for the engine's stream, which would never
// end if another rank has failed.
static void exchange_settle(DeviceExchange* x) {
    exchange_join(x);
#ifdef TOST_NCCL
    if (x->joined) nccl_event_wait(x->link, x->joined, "the exchange of a step");
#endif
}

// ---------------------------------------------------------------------------------------------
// Device memory

__global__ void tree_add_kernel(float* dst, const float* left, const float* right, size_t n) {
    const size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (i >= n) return;
    float sum[4];
    load_pack<4>(sum, left + i);
    add_part<true>(sum, right + i, 4);
    store_pack<4>(dst + i, sum);
}

constexpr int SQUARES_THREADS = 256;

// sums (gridDim.y,units) = Σ g² over each unit of n elements, of arrays `stride` apart. Minimum traffic per element: 4.
__global__ void __launch_bounds__(SQUARES_THREADS)
    squares_kernel(double* sums, const float* grad, size_t n, size_t stride) {
    SHARED(double, shared, SQUARES_THREADS);
    const size_t start = (size_t)blockIdx.x * SLICE_UNIT;
    const int size = (int)min((size_t)SLICE_UNIT, n - start);
    double sum = 0.0;
    UNROLL_BY(4) for (int i = threadIdx.x * 4; i < size; i += SQUARES_THREADS * 4) {
        float g[4];
        load_pack<4>(g, grad + blockIdx.y * stride + start + i);
        UNROLL for (int j = 0; j < 4; j++) sum += (double)g[j] * g[j];
    }
    sum = block_tree_sum(sum, shared);
    if (threadIdx.x == 0) sums[blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

// Where the next work belongs: to the exchange, if it is under way.
static cudaStream_t exchange_stream(const DeviceExchange* x) { return x->under_way ? x->stream : x->compute; }

static void device_add(Exchange* x, float* dst, const float* left, const float* right, size_t n) {
    LAUNCH(tree_add_kernel, div_up(n, 4 * 256), 256, 0, exchange_stream(device_exchange(x)), dst, left, right, n);
}

// The first pass of the next part overwrites the gradients.
static void device_end_part(Exchange* x, float* sum) {
    CUDA_CHECK(cudaMemcpyAsync(sum, x->grad, x->size * sizeof(float), cudaMemcpyDeviceToDevice,
                               exchange_stream(device_exchange(x))));
}

static void device_squares(Exchange* x, double* sums, Range range) {
    const size_t n = range_size(range);
    LAUNCH(squares_kernel, (int)slice_units(n), SQUARES_THREADS, 0, exchange_stream(device_exchange(x)), sums,
           x->grad + range.start, n, 0);
}

static void device_to_host(const Exchange* x, void* dst, const void* src, size_t bytes) {
    exchange_settle(device_exchange(x));
    copy_to_host((char*)dst, (const char*)src, bytes, device_exchange(x)->compute);
}

static void device_from_host(const Exchange* x, void* dst, const void* src, size_t bytes) {
    CUDA_CHECK(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, device_exchange(x)->compute));
}

#ifdef TOST_NCCL
static CommRequest* device_start(Exchange* x, const CommMessage* messages) {
    exchange_fork(device_exchange(x));
    nccl_send(device_exchange(x)->link, messages, device_exchange(x)->stream);
    return NULL;
}

// One broadcast of each rank's slice of the bucket, in a group.
static CommRequest* device_gather(Exchange* e, float* flat, int k) {
    DeviceExchange* x = device_exchange(e);
    exchange_fork(x);
    NCCL_ADD(x->link, ncclGroupStart());
    for (int r = 0; r < x->ranks; r++) {
        const Range s = slices_of(&x->slices, r, k);
        float* at = flat + s.start;
        if (range_size(s))
            NCCL_ADD(x->link, ncclBroadcast(at, at, range_size(s), ncclFloat, r, x->link->nccl, x->stream));
    }
    nccl_group_end(x->link);
    return NULL;
}
#else
constexpr auto device_start = nullptr, device_gather = nullptr, nccl_open_comm = nullptr;
#endif

static const ExchangeMemory device_memory = {device_add, device_end_part, device_squares, device_to_host,
                                             device_from_host, device_start, device_gather, true};

// ---------------------------------------------------------------------------------------------
// Start and end

#ifdef TOST_NCCL
// Uses the link of the host messages, if NCCL transports them; else connects the ranks.
static bool open_link(DeviceExchange* x, TostError* err) {
    ncclUniqueId id = {};
    x->link = link_of(x->comm);
    if (x->link) return true;
    const ncclResult_t e = x->rank == 0 ? ncclGetUniqueId(&id) : ncclSuccess;
    const bool ok = e == ncclSuccess || tost_error(err, "NCCL: %s; NCCL_DEBUG=WARN prints the cause",
                                                   ncclGetErrorString(e));
    if (!comm_agree(x->comm, ok, err)) return false;
    comm_broadcast(x->comm, &id, sizeof id, 0);
    x->link = link_open(x->comm, &id, err);
    return comm_agree(x->comm, x->link != NULL, err);
}

// Collective, after layout with device memory.
static bool exchange_open(DeviceExchange* x, TostError* err) {
    if (!x->comm) return true;
    if (!open_link(x, err)) return false;
    int lowest, highest;   // so that the exchange starts beside the kernels of backward, not after them
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    CUDA_CHECK(cudaStreamCreateWithPriority(&x->stream, cudaStreamNonBlocking, highest));
    CUDA_CHECK(cudaEventCreateWithFlags(&x->forked, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventCreateWithFlags(&x->joined, cudaEventDisableTiming));
    return true;
}
#else
static bool exchange_open(DeviceExchange*, TostError*) { return true; }   // there are no ranks (comm_open)
#endif

// Collective, except before exchange_open.
static void exchange_close(DeviceExchange* x) {
    if (x->forked) {
        exchange_settle(x);
        CUDA_CHECK(cudaEventDestroy(x->forked));
        CUDA_CHECK(cudaEventDestroy(x->joined));
        CUDA_CHECK(cudaStreamDestroy(x->stream));
    }
#ifdef TOST_NCCL
    if (x->link && x->link != link_of(x->comm)) link_close(x->link);
#endif
    exchange_free(x);
}
