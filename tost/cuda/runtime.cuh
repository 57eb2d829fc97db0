// runtime.cuh: the device, its memory, staging buffers and CUDA graphs.
#pragma once

#include "tost/cuda/common.cuh"

extern "C" {
#include "tost/base/say.h"
#include "tost/ranks/comm.h"
}

// ---------------------------------------------------------------------------------------------
// Device

// Selects the device of a rank by its number on this host, if it can run this build's kernels. If there is only one, as
// when the launcher hides those of other ranks, takes that.
static bool device_open(cudaDeviceProp* prop, int local_rank, TostError* err) {
    int count = 0, blocks = 0;
    cudaError_t e = cudaGetDeviceCount(&count);
    if (e == cudaSuccess && count == 0) e = cudaErrorNoDevice;
    if (e == cudaSuccess && count > 1 && local_rank >= count)
        return tost_error(err, "process %d of this host, which has %d GPUs: start one process per GPU", local_rank + 1,
                          count);
    const int device = count > 1 ? local_rank : 0;
    if (e == cudaSuccess) e = cudaSetDevice(device);
    if (e == cudaSuccess) e = cudaGetDeviceProperties(prop, device);
    if (e == cudaSuccess && prop->major < 8)
        return tost_error(err, "%s has compute capability %d.%d; 8.0 or later is needed, or train_gpt_tost on the CPU",
                          prop->name, prop->major, prop->minor);
    if (e == cudaSuccess) e = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, probe_kernel, WARP, 0);
    if (e == cudaSuccess) return true;
    (void)cudaGetLastError();
    return tost_error(err, "no usable GPU: %s; %s", cudaGetErrorString(e), cuda_advice(e));
}

static bool device_describe(char* text, size_t cap, const TostEngineOptions* o, TostError* err) {
    static const char* const dtypes[] = {"float32", "tf32", "bf16"};
    cudaDeviceProp prop;
    char ranks[96] = "";
    if (!device_open(&prop, o->comm ? o->comm->place.local_rank : 0, err)) return false;
    if (o->comm) snprintf(ranks, sizeof ranks, ", %d ranks, gradients added in order", o->comm->place.size);
    snprintf(text, cap, "%s (compute capability %d.%d, %d multiprocessors, %s), %s, matmul cuBLASLt%s", prop.name,
             prop.major, prop.minor, prop.multiProcessorCount, human_bytes((double)prop.totalGlobalMem).text,
             dtypes[o->dtype], ranks);
    return true;
}

// ---------------------------------------------------------------------------------------------
// Memory

// Left for kernels, graphs, cuBLASLt and NCCL, most of which allocate at their first use
static size_t memory_reserve(const TostComm* comm) { return (size_t)(comm ? 1024 : 512) << 20; }

static size_t device_usable_memory(const TostComm* comm) {
    cudaDeviceProp prop;
    TostError ignored;
    size_t free_bytes = 0, total = 0;
    if (!device_open(&prop, comm ? comm->place.local_rank : 0, &ignored)) return 0;
    if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess) (void)cudaGetLastError();
    return free_bytes - min(free_bytes, memory_reserve(comm) + total / 16);   // a sixteenth for other programs
}

// The memory of a model of `bytes`; NULL if it does not fit.
static char* device_alloc(const TostEngineOptions* o, size_t bytes, TostError* err) {
    const size_t reserved = memory_reserve(o->comm);
    size_t free_bytes = 0, total = 0;
    char* p = NULL;
    cudaError_t e = cudaMemGetInfo(&free_bytes, &total);
    if (e == cudaSuccess && bytes + reserved <= free_bytes) e = cudaMalloc(&p, bytes);
    if (p) return p;
    (void)cudaGetLastError();
    const NumberText need = human_bytes((double)bytes);
    if (e != cudaSuccess)
        tost_error(err, "%s of GPU memory cannot be allocated: %s; %s", need.text, cudaGetErrorString(e),
                   cuda_advice(e));
    else tost_error(err, "not enough memory on the GPU: the model needs %s, its kernels up to %s, %s are free; "
                    "lower %s or use a smaller model",
                    need.text, human_bytes((double)reserved).text, human_bytes((double)free_bytes).text,
                    o->training ? "--batch or --seq, use --chunk," : "--batch, --seq, --chunk or --samples,");
    return NULL;
}

// Copies n elements to the host and waits until they are there; bf16 becomes float.
template <typename T> static void copy_to_host(T* dst, const T* src, size_t n, cudaStream_t stream) {
    CUDA_CHECK(cudaMemcpyAsync(dst, src, n * sizeof(T), cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
}
static inline void copy_to_host(float* dst, const bf16* src, size_t n, cudaStream_t stream) {
    bf16* const x = (bf16*)xmalloc(n * sizeof *x);
    copy_to_host(x, src, n, stream);
    for (size_t i = 0; i < n; i++) dst[i] = to_float(x[i]);
    free(x);
}

// ---------------------------------------------------------------------------------------------
// Staging: host-to-device copies from two pinned buffers in turn. The host fills one while the other is being copied.

struct Staging {
    void*       buffer[2];
    cudaEvent_t copied[2];
    int         turn;
};

static void staging_init(Staging* s, size_t bytes) {
    for (int i = 0; i < 2; i++) {
        CUDA_CHECK(cudaMallocHost(&s->buffer[i], bytes));
        CUDA_CHECK(cudaEventCreateWithFlags(&s->copied[i], cudaEventDisableTiming));
    }
}

// The buffer to fill. Waits until its last copy is done; it is, unless the host is two steps ahead of the device.
static void* staging_begin(Staging* s) {
    CUDA_CHECK(cudaEventSynchronize(s->copied[s->turn]));
    return s->buffer[s->turn];
}

static void staging_copy(Staging* s, void* device, size_t bytes, cudaStream_t stream) {
    CUDA_CHECK(cudaMemcpyAsync(device, s->buffer[s->turn], bytes, cudaMemcpyHostToDevice, stream));
    CUDA_CHECK(cudaEventRecord(s->copied[s->turn], stream));
    s->turn = 1 - s->turn;
}

static void staging_free(Staging* s) {
    for (int i = 0; i < 2; i++) {
        if (s->copied[i]) CUDA_CHECK(cudaEventDestroy(s->copied[i]));
        if (s->buffer[i]) CUDA_CHECK(cudaFreeHost(s->buffer[i]));
    }
}

// ---------------------------------------------------------------------------------------------
// Graphs: a pass as one launch. The first call of a shape launches its kernels one by one, which loads them and chooses
// matmul algorithms; the second captures them as a graph; later calls launch the graph. If that fails, or with the
// environment variable TOST_NO_GRAPHS=1, for timing and debugging, all calls launch kernels one by one.

struct PassGraph {
    int B, T;                        // shape of the last call; 0: none yet
    cudaGraphExec_t exec;            // NULL: not captured
};

static void graph_free(PassGraph* g) {
    if (g->exec) CUDA_CHECK(cudaGraphExecDestroy(g->exec));
}

// Sets g->exec. If that fails, the program runs without graphs from here on.
template <typename Pass> static void graph_capture(PassGraph* g, cudaStream_t stream, Pass pass) {
    cudaGraph_t graph = NULL;
    TostError err = {};
    capture_error = &err;
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    if (!err.text[0]) {
        pass();
        CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    }
    if (!err.text[0]) CUDA_CHECK(cudaGraphInstantiate(&g->exec, graph, 0));
    capture_error = NULL;
    if (graph) CUDA_CHECK(cudaGraphDestroy(graph));
    if (!err.text[0]) return;
    (void)cudaGetLastError();
    print_warning("no CUDA graphs, kernels are launched one by one, as with TOST_NO_GRAPHS=1: %s", err.text);
    setenv("TOST_NO_GRAPHS", "1", 1);
}

// Runs pass(), which only launches on `stream` and whose launches depend on nothing but the shape.
template <typename Pass> static void graph_run(PassGraph* g, cudaStream_t stream, int B, int T, Pass pass) {
    const char* no_graphs = getenv("TOST_NO_GRAPHS");
    if ((no_graphs && strcmp(no_graphs, "1") == 0) || g->B != B || g->T != T) {
        graph_free(g);
        *g = {B, T, NULL};
        return pass();
    }
    if (!g->exec) graph_capture(g, stream, pass);
    return g->exec ? CUDA_CHECK(cudaGraphLaunch(g->exec, stream)) : pass();
}
