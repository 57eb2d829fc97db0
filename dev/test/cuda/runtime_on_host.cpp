// runtime_on_host.cpp: the CUDA runtime: memory, streams, events and graphs. Misuse aborts; a missing device or too
// little memory is returned as an error.
#include "cuda_on_host.h"
#include "races.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include <unistd.h>

#ifdef CUDA_ON_HOST_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

typedef std::function<void()> Work;

// Work that can start when `ready` returns true, or at once if there is no such function.
struct Item {
    Work work;
    std::function<bool()> ready;
};

struct CudaOnHostGraph {
    std::vector<Work> nodes;
};

struct CudaOnHostStream {
    bool alive = true, prompt = false;   // prompt: runs work at once, also with the option late
    bool asking = false;                 // the first item's `ready` is running
    std::deque<Item> queue;
    uint64_t queued = 0, done = 0;       // number of work items since its creation
    CudaOnHostGraph* capture = nullptr;  // the graph it records into
};

struct CudaOnHostEvent {
    CudaOnHostStream* stream = nullptr;  // null: not recorded yet
    uint64_t mark = 0;                   // work items before it in the stream
};

namespace {

struct Runtime {
    CudaOnHostOptions options;
    std::map<char*, size_t> device, pinned;  // allocations: address, bytes
    std::vector<std::pair<char*, size_t>> redzones;
    size_t used = 0;
    std::vector<std::unique_ptr<CudaOnHostStream>> streams;  // including destroyed ones, to which events may refer
    int events = 0, graphs = 0;   // that exist
    CudaOnHostStream default_stream;
    cudaError_t last_error = cudaSuccess;
    int captures = 0, device_index = 0;
};

Runtime runtime;

cudaError_t fail(cudaError_t error) { return runtime.last_error = error; }

#define NEED_DEVICE()                                                                                        \
    do {                                                                                                     \
        if (runtime.options.devices == 0) return fail(cudaErrorNoDevice);                                    \
        if (runtime.options.failing && strcmp(runtime.options.failing, __func__) == 0)                       \
            return fail(cudaErrorMemoryAllocation);                                                          \
    } while (0)

// Device memory is accessible while an object of this type exists.
struct DeviceOpen {
    DeviceOpen() {
        for (auto& a : runtime.device) ASAN_UNPOISON_MEMORY_REGION(a.first, a.second);
        for (auto& g : runtime.redzones) ASAN_POISON_MEMORY_REGION(g.first, g.second);
    }
    ~DeviceOpen() {
        for (auto& a : runtime.device) ASAN_POISON_MEMORY_REGION(a.first, a.second);
    }
};

// The allocation that contains p, or null.
const std::pair<char* const, size_t>* find_allocation(const std::map<char*, size_t>& all, const void* p) {
    auto after = all.upper_bound((char*)p);
    if (after == all.begin()) return nullptr;
    --after;
    return (const char*)p < after->first + after->second ? &*after : nullptr;
}

CudaOnHostStream* stream_of(const char* call, cudaStream_t s) {
    if (!s) return &runtime.default_stream;
    for (auto& known : runtime.streams)
        if (known.get() == s && s->alive) return s;
    cuda_on_host_die("%s: no such stream", call);
}

bool is_prompt(const CudaOnHostStream* s) { return s->prompt || !runtime.options.late; }

bool is_ready(CudaOnHostStream* s) {
    if (!s->queue.front().ready) return true;
    s->asking = true;
    const bool ready = s->queue.front().ready();
    s->asking = false;
    return ready;
}

// Runs the first n work items of the stream, those that are ready. Returns true if all have run. An item can run
// others, so it is removed from the queue first.
bool try_until(CudaOnHostStream* s, uint64_t n) {
    while (s->done < n && !s->queue.empty()) {
        if (s->asking || !is_ready(s)) return false;
        const Work work = std::move(s->queue.front().work);
        s->queue.pop_front();
        s->done++;
        if (work) work();
    }
    return true;
}

void run_until(CudaOnHostStream* s, uint64_t n) {
    while (!try_until(s, n)) {
        cuda_on_host_progress();
        usleep(50);
    }
}

void run_all() {
    run_until(&runtime.default_stream, runtime.default_stream.queued);
    for (size_t i = 0; i < runtime.streams.size(); i++)
        run_until(runtime.streams[i].get(), runtime.streams[i]->queued);
}

void wait_for(const char* call, CudaOnHostStream* s) {
    if (s->capture) cuda_on_host_die("%s of a stream that is capturing", call);
    run_until(s, s->queued);
}

void enqueue(CudaOnHostStream* s, Work work, std::function<bool()> ready = nullptr) {
    if (s->capture) {
        if (ready) cuda_on_host_die("a capturing stream waits for work outside of the graph");
        s->capture->nodes.push_back(std::move(work));
        return;
    }
    s->queue.push_back({std::move(work), std::move(ready)});
    s->queued++;
    if (is_prompt(s)) try_until(s, s->queued);
}

}  // namespace

void cuda_on_host_enqueue(cudaStream_t stream, Work work) {
    if (runtime.options.devices == 0) cuda_on_host_die("launch without a device");
    if (runtime.captures && runtime.options.failing && strcmp(runtime.options.failing, "launch") == 0)
        fail(cudaErrorStreamCaptureUnsupported);
    enqueue(stream_of("launch", stream), [work] {
        const DeviceOpen open;
        work();
    });
}

void cuda_on_host_enqueue_when(cudaStream_t stream, std::function<bool()> ready) {
    enqueue(stream_of("enqueue", stream), nullptr, std::move(ready));
}

void cuda_on_host_progress(void) {
    for (size_t i = 0; i < runtime.streams.size(); i++)
        if (is_prompt(runtime.streams[i].get())) try_until(runtime.streams[i].get(), UINT64_MAX);
}

void cuda_on_host_copy(void* dst, const void* src, size_t bytes) {
    const DeviceOpen open;
    memcpy(dst, src, bytes);
}

// ---------------------------------------------------------------------------------------------
// Control

void cuda_on_host_set(const CudaOnHostOptions& options) {
    run_all();
    runtime.options = options;
    runtime.last_error = cudaSuccess;
    cuda_on_host_scheduler_set(options);
}

const CudaOnHostOptions& cuda_on_host_options(void) { return runtime.options; }

bool cuda_on_host_capturing(void) { return runtime.captures > 0; }

int cuda_on_host_live(void) {
    int streams = 0;
    for (auto& s : runtime.streams) streams += s->alive;
    return (int)(runtime.device.size() + runtime.pinned.size()) + runtime.events + runtime.graphs + streams +
           cublaslt_on_host_live();
}

void cuda_on_host_poison(void* device, size_t bytes) {
    cuda_on_host_check_range("cuda_on_host_poison", device, bytes);
    const uintptr_t skip = -(uintptr_t)device & 7;  // to the next group of 8 bytes, the sanitizer's unit
    if (bytes > skip) runtime.redzones.push_back({(char*)device + skip, bytes - skip});
}

void cuda_on_host_check_range(const char* call, const void* p, size_t bytes) {
    const auto* a = find_allocation(runtime.device, p);
    if (!a) cuda_on_host_die("%s: %p is not device memory", call, p);
    if ((const char*)p + bytes > a->first + a->second)
        cuda_on_host_die("%s: %zu bytes at offset %zu of an allocation of %zu bytes", call, bytes,
                         (size_t)((const char*)p - a->first), a->second);
}

// ---------------------------------------------------------------------------------------------
// Device and errors

cudaError_t cudaGetDeviceCount(int* count) {
    *count = runtime.options.devices;
    NEED_DEVICE();
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    NEED_DEVICE();
    if (device < 0 || device >= runtime.options.devices) return fail(cudaErrorInvalidDevice);
    runtime.device_index = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
    *device = runtime.device_index;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int device) {
    NEED_DEVICE();
    if (device != runtime.device_index) return fail(cudaErrorInvalidDevice);
    *prop = {"", runtime.options.memory, runtime.options.major, 0, runtime.options.multiprocessors};
    snprintf(prop->name, sizeof prop->name, "%s", runtime.options.name);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    NEED_DEVICE();
    if (device != runtime.device_index) return fail(cudaErrorInvalidDevice);
    *value = attribute == cudaDevAttrMultiProcessorCount      ? runtime.options.multiprocessors
             : attribute == cudaDevAttrComputeCapabilityMajor ? runtime.options.major
                                                              : runtime.options.shared << 10;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void) {
    const cudaError_t error = runtime.last_error;
    runtime.last_error = cudaSuccess;
    return error;
}

const char* cudaGetErrorString(cudaError_t error) {
    return error == cudaErrorMemoryAllocation ? "out of memory"
           : error == cudaErrorNoDevice       ? "no CUDA-capable device is detected"
                                              : "invalid argument";
}

// ---------------------------------------------------------------------------------------------
// Memory

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
    NEED_DEVICE();
    *total = runtime.options.memory;
    *free_bytes = runtime.used < *total ? *total - runtime.used : 0;
    return cudaSuccess;
}

cudaError_t cuda_on_host_malloc(void** p, size_t bytes, bool on_device) {
    NEED_DEVICE();
    if (runtime.captures) cuda_on_host_die("allocation while a stream is capturing");
    if (bytes == 0) {
        *p = nullptr;
        return cudaSuccess;
    }
    if (on_device && bytes > runtime.options.memory - runtime.used) return fail(cudaErrorMemoryAllocation);
    if (posix_memalign(p, 256, bytes) != 0) return fail(cudaErrorMemoryAllocation);
    memset(*p, 0xff, bytes);
    (on_device ? runtime.device : runtime.pinned)[(char*)*p] = bytes;
    if (!on_device) return cudaSuccess;
    runtime.used += bytes;
    race_memory(*p, bytes, false);
    ASAN_POISON_MEMORY_REGION(*p, bytes);
    return cudaSuccess;
}

// Frees p, one of `allocations`, and returns how many bytes it had.
static size_t release(const char* call, std::map<char*, size_t>* allocations, void* p) {
    const auto a = allocations->find((char*)p);
    if (a == allocations->end()) cuda_on_host_die("%s of %p, which is not from cudaMalloc", call, p);
    if (runtime.captures) cuda_on_host_die("%s while a stream is capturing", call);
    run_all();
    const size_t bytes = a->second;
    ASAN_UNPOISON_MEMORY_REGION(p, bytes);
    allocations->erase(a);
    free(p);
    return bytes;
}

cudaError_t cudaFreeHost(void* p) {
    if (p) release("cudaFreeHost", &runtime.pinned, p);
    return cudaSuccess;
}

cudaError_t cudaFree(void* p) {
    if (!p) return cudaSuccess;
    const size_t bytes = release("cudaFree", &runtime.device, p);
    const auto inside = [&](const std::pair<char*, size_t>& zone) {
        return zone.first >= (char*)p && zone.first < (char*)p + bytes;
    };
    auto& zones = runtime.redzones;
    zones.erase(std::remove_if(zones.begin(), zones.end(), inside), zones.end());
    runtime.used -= bytes;
    race_memory_freed(p);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    if (bytes == 0) return cudaSuccess;
    const bool from = find_allocation(runtime.device, src), to = find_allocation(runtime.device, dst);
    const cudaMemcpyKind found = from ? (to ? cudaMemcpyDeviceToDevice : cudaMemcpyDeviceToHost)
                                      : (to ? cudaMemcpyHostToDevice : cudaMemcpyHostToHost);
    if (kind != found) cuda_on_host_die("cudaMemcpyAsync: kind %d, but the pointers are of kind %d", kind, found);
    if (from) cuda_on_host_check_range("cudaMemcpyAsync", src, bytes);
    if (to) cuda_on_host_check_range("cudaMemcpyAsync", dst, bytes);
    CudaOnHostStream* s = stream_of("cudaMemcpyAsync", stream);
    const bool pageable =
        (!from && !find_allocation(runtime.pinned, src)) || (!to && !find_allocation(runtime.pinned, dst));
    if (pageable && s->capture)
        cuda_on_host_die("cudaMemcpyAsync: pageable memory in a capture; the graph would read it later");
    if (pageable && !from) {  // the caller may reuse the source when the call returns
        const std::vector<char> copy((const char*)src, (const char*)src + bytes);
        enqueue(s, [=] { cuda_on_host_copy(dst, copy.data(), bytes); });
    } else {
        enqueue(s, [=] { cuda_on_host_copy(dst, src, bytes); });
    }
    if (pageable && !to) wait_for("cudaMemcpyAsync", s);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind) {
    const cudaError_t error = cudaMemcpyAsync(dst, src, bytes, kind, nullptr);
    if (error == cudaSuccess) wait_for("cudaMemcpy", &runtime.default_stream);
    return error;
}

cudaError_t cudaMemsetAsync(void* dst, int byte, size_t bytes, cudaStream_t stream) {
    if (bytes == 0) return cudaSuccess;
    cuda_on_host_check_range("cudaMemsetAsync", dst, bytes);
    enqueue(stream_of("cudaMemsetAsync", stream), [=] {
        const DeviceOpen open;
        memset(dst, byte, bytes);
    });
    return cudaSuccess;
}

// ---------------------------------------------------------------------------------------------
// Streams and events

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
    unsigned before = 0;
    for (auto& s : runtime.streams) before += s->alive;
    runtime.streams.emplace_back(new CudaOnHostStream());
    runtime.streams.back()->prompt = before < 32 && (runtime.options.prompt >> before & 1);
    *stream = runtime.streams.back().get();
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
    return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
    *lowest = *highest = 0;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    wait_for("cudaStreamDestroy", stream_of("cudaStreamDestroy", stream));
    stream->alive = false;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    wait_for("cudaStreamSynchronize", stream_of("cudaStreamSynchronize", stream));
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
    *event = new CudaOnHostEvent();
    runtime.events++;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    runtime.events--;
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    CudaOnHostStream* s = stream_of("cudaEventRecord", stream);
    if (s->capture) cuda_on_host_die("cudaEventRecord in a capture");
    *event = {s, s->queued};
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    if (event->stream) run_until(event->stream, event->mark);
    return cudaSuccess;
}

// A host that asks again and again lets all streams make progress.
cudaError_t cudaEventQuery(cudaEvent_t event) {
    return !event->stream || try_until(event->stream, event->mark) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    CudaOnHostStream* s = stream_of("cudaStreamWaitEvent", stream);
    const CudaOnHostEvent e = *event;
    if (!e.stream) return cudaSuccess;
    if (s->capture) cuda_on_host_die("cudaStreamWaitEvent: a capturing stream waits for work outside the capture");
    if (e.stream != s) enqueue(s, nullptr, [e] { return try_until(e.stream, e.mark); });
    return cudaSuccess;
}

// ---------------------------------------------------------------------------------------------
// Graphs: the recorded work, in order

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    NEED_DEVICE();
    CudaOnHostStream* s = stream_of("cudaStreamBeginCapture", stream);
    s->capture = new CudaOnHostGraph();
    runtime.graphs++;
    runtime.captures++;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    CudaOnHostStream* s = stream_of("cudaStreamEndCapture", stream);
    *graph = s->capture;
    s->capture = nullptr;
    runtime.captures--;
    NEED_DEVICE();
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
    NEED_DEVICE();
    *exec = new CudaOnHostGraph(*graph);
    runtime.graphs++;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    const std::vector<Work> nodes = exec->nodes;
    enqueue(stream_of("cudaGraphLaunch", stream), [nodes] {
        for (const Work& node : nodes) node();
    });
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    runtime.graphs--;
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return cudaGraphDestroy(exec); }
