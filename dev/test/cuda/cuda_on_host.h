// cuda_on_host.h: CUDA emulation on the CPU for the part of CUDA that the engine uses. It runs the kernels under the
// sanitizers, without a GPU. It checks CUDA's rules and does not simulate any hardware: undefined behavior aborts with
// the kernel's name or gives NaN.
//
//   threads    fibers. A schedule orders them between two synchronizations: the threads of a warp run as far as they
//              can before those of the next warp. Lanes do not run in lockstep, so if a synchronization is missing,
//              values are read too early or too late.
//   barriers   released when every thread that has not returned has arrived. A deadlock, or threads that wait at
//              different source lines, abort.
//   shuffles   barriers of the warp's threads. The mask must be full. A lane that has returned gives NaN bytes.
//   blocks     one after another or, with the option `resident`, several at once: at atomics, flags and barriers a
//              seeded scheduler switches between them and starts others. A deadlock aborts.
//   races      accesses that no barrier or flag orders abort, in builds that report them (races.h).
//   memory     device and shared memory start as NaN bytes. The host must not access device memory.
//   streams    run work immediately, or (option late) only when something waits for it.
//
// The functions that replace nvcc's, such as load_word, mma_bf16 and reciprocal, are documented in
// tost/cuda/platform.cuh.
#ifndef CUDA_ON_HOST_H
#define CUDA_ON_HOST_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tost/base/bf16.h"

#if defined(__SANITIZE_ADDRESS__)
#define CUDA_ON_HOST_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CUDA_ON_HOST_ASAN 1
#endif
#endif

// ---------------------------------------------------------------------------------------------
// Options for tests

enum CudaOnHostOrder { CUDA_ORDER_FORWARD, CUDA_ORDER_REVERSE, CUDA_ORDER_SHUFFLE };

struct CudaOnHostOptions {
    CudaOnHostOrder order = CUDA_ORDER_FORWARD;  // of lanes, warps and blocks
    uint64_t seed = 1;                           // for SHUFFLE and for switches between blocks
    int resident = 1;                            // most blocks that run at once
    bool late = false;                           // streams run work only when something waits for it
    unsigned prompt = 0;                         // but not these: a bit per stream, in the order of their creation
    int devices = 1;                             // 0: no device
    size_t memory = (size_t)8 << 30;             // bytes of device memory
    int major = 9;                  // compute capability
    const char* name = "cuda_on_host";   // name of the device
    int multiprocessors = 4;        // few, so that grid-stride loops have several iterations
    int shared = 228;               // shared memory of a multiprocessor, KiB
    const char* failing = nullptr;  // this call returns cudaErrorMemoryAllocation; "launch": launches in a capture fail
    int refused = 0;                // number of its first proposals for a product that cuBLASLt refuses
};

void cuda_on_host_set(const CudaOnHostOptions& options);
// Length of the longest chain of waits in the last launch, each for a flag that was raised after the previous wait.
int cuda_on_host_longest_chain(void);
const CudaOnHostOptions& cuda_on_host_options(void);
// Objects (allocations, streams, events, graphs, cuBLASLt handles) not yet destroyed.
int cuda_on_host_live(void);
[[noreturn]] void cuda_on_host_die(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Bytes between two buffers of one allocation; poisoned, so that a kernel that touches them aborts.
#define CUDA_REDZONE_BYTES 256
void cuda_on_host_poison(void* device, size_t bytes);

constexpr size_t MATMUL_WORKSPACE = 4096;   // bytes

// Internal to the emulation
void cuda_on_host_scheduler_set(const CudaOnHostOptions& options);
int cublaslt_on_host_live(void);
bool cuda_on_host_capturing(void);   // whether a stream is capturing
// Aborts if the range is not inside one device allocation.
void cuda_on_host_check_range(const char* call, const void* device, size_t bytes);

// ---------------------------------------------------------------------------------------------
// Language

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

// Shared memory of the block that runs, filled with NaN bytes: n elements, and the shared_bytes of the launch
void* cuda_on_host_shared(int id, size_t bytes);
void* cuda_on_host_dynamic_shared(void);
#define SHARED(type, name, n) \
    type* const name = static_cast<type*>(cuda_on_host_shared(__COUNTER__, (n) * sizeof(type)))
#define DYNAMIC_SHARED(type, name) type* const name = static_cast<type*>(cuda_on_host_dynamic_shared())

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

void cuda_on_host_sync_threads(int line);
int cuda_on_host_lane(void);
// A barrier of the warp's threads, which must all use the same operation. Returns the value of lane `source`, or NaN
// bytes if that lane has returned.
enum CudaOnHostOp { CUDA_OP_SYNC, CUDA_OP_SHUFFLE };
uint64_t cuda_on_host_warp(CudaOnHostOp op, uint64_t value, int source, int line);

inline void __syncthreads(int line = __builtin_LINE()) { cuda_on_host_sync_threads(line); }
inline void __syncwarp(int line = __builtin_LINE()) { cuda_on_host_warp(CUDA_OP_SYNC, 0, 0, line); }

template <typename T> T cuda_on_host_shuffle(unsigned mask, T value, int source, int line) {
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value, "shuffles carry 8 bytes at most");
    if (~mask) cuda_on_host_die("line %d: a shuffle of lanes 0x%x; only whole warps are emulated", line, mask);
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = cuda_on_host_warp(CUDA_OP_SHUFFLE, bits, source, line);
    memcpy(&value, &bits, sizeof value);
    return value;
}
template <typename T> T __shfl_sync(unsigned mask, T v, int source, int line = __builtin_LINE()) {
    return cuda_on_host_shuffle(mask, v, source & 31, line);
}
template <typename T> T __shfl_up_sync(unsigned mask, T v, unsigned by, int line = __builtin_LINE()) {
    const int lane = cuda_on_host_lane(), from = lane - (int)by;
    return cuda_on_host_shuffle(mask, v, from < 0 ? lane : from, line);
}
template <typename T> T __shfl_xor_sync(unsigned mask, T v, int bits, int line = __builtin_LINE()) {
    return cuda_on_host_shuffle(mask, v, cuda_on_host_lane() ^ bits, line);
}

// mma.m16n8k16 in bf16 or mma.m16n8k8 in tf32, by all lanes of a warp, with the elements of each lane as in PTX's
// documentation. Like a shuffle, it orders no accesses to memory.
void cuda_on_host_mma(bool is_bf16, float* sum, const unsigned* a, const unsigned* b);
inline void mma_bf16(float* sum, const unsigned* a, const unsigned* b) { cuda_on_host_mma(true, sum, a, b); }
inline void mma_tf32(float* sum, const unsigned* a, const unsigned* b) { cuda_on_host_mma(false, sum, a, b); }

// Atomics, and a logical clock: a flag has the clock of the thread that stores it, the clock of a thread that loads it
// becomes at least one more, and barriers pass on the latest clock. A thread that loads the same value again waits
// until another thread stores there; if none can run, it is a deadlock.
int cuda_on_host_load(const int* p, bool acquire);
void cuda_on_host_store(int* p, int value, bool release);
uint64_t cuda_on_host_add(void* p, size_t bytes, uint64_t value);   // returns the integer before
inline void store_release(int* p, int value) { cuda_on_host_store(p, value, true); }
inline int load_relaxed(const int* p) { return cuda_on_host_load(p, false); }
inline int load_acquire(const int* p) { return cuda_on_host_load(p, true); }
template <typename T> T atomicAdd(T* p, T v) {
    static_assert(std::is_integral<T>::value, "floating-point atomics are not deterministic");
    return (T)cuda_on_host_add(p, sizeof v, (uint64_t)v);
}

inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
// Subnormals to zero
inline float cuda_on_host_flush(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }
// The result of one of the GPU's approximate instructions. With CUDA_ON_HOST_INEXACT in the environment, a quarter of
// them are off by one unit in the last place.
float cuda_on_host_approximate(float exact);
inline float __uint_as_float(unsigned x) {
    float y;
    memcpy(&y, &x, sizeof y);
    return y;
}
inline unsigned __float_as_uint(float x) {
    unsigned y;
    memcpy(&y, &x, sizeof y);
    return y;
}
inline float reciprocal(float x) { return cuda_on_host_approximate(1.0f / cuda_on_host_flush(x)); }
inline float power_of_2(float x) { return x == 0 ? 1.0f : cuda_on_host_approximate(exp2f(x)); }
inline unsigned tf32_bits(float x) { return (__float_as_uint(x) + 0x1000u) & ~0x1fffu; }
inline unsigned bf16_pair(float low, float high) {
    return bf16_from_float(low) | (unsigned)bf16_from_float(high) << 16;
}
inline int opaque(int x) { return x; }
template <typename T> constexpr T min(T a, T b) { return b < a ? b : a; }
template <typename T> constexpr T max(T a, T b) { return a < b ? b : a; }

// Vector accesses; like on the device, misaligned ones abort.
inline void cuda_on_host_aligned(const void* p, size_t bytes) {
    if ((uintptr_t)p % bytes != 0) cuda_on_host_die("misaligned access of %zu bytes at %p", bytes, p);
}
template <size_t BYTES> void load_word(void* out, const void* p) {
    cuda_on_host_aligned(p, BYTES);
    memcpy(out, p, BYTES);
}
template <size_t BYTES> void store_word(void* p, const void* in) {
    cuda_on_host_aligned(p, BYTES);
    memcpy(p, in, BYTES);
}
inline void load_from_L2(float (&out)[4], const float* p) { load_word<16>(out, p); }

// ---------------------------------------------------------------------------------------------
// bfloat16

struct __nv_bfloat16 {
    unsigned short x;
    __nv_bfloat16() = default;
    __nv_bfloat16(float f) : x(bf16_from_float(f)) {}
    operator float() const { return bf16_to_float(x); }
};
inline __nv_bfloat16 __float2bfloat16(float f) { return __nv_bfloat16(f); }
inline float __bfloat162float(__nv_bfloat16 b) { return (float)b; }
inline void unpack_pair(float* out, const __nv_bfloat16* pair) { out[0] = pair[0], out[1] = pair[1]; }

// ---------------------------------------------------------------------------------------------
// Runtime API

enum cudaError_t {
    cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorMemoryAllocation = 2, cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100, cudaErrorInvalidDevice = 101, cudaErrorNoKernelImageForDevice = 209,
    cudaErrorUnsupportedPtxVersion = 222, cudaErrorNotReady = 600, cudaErrorIllegalAddress = 700,
    cudaErrorLaunchFailure = 719, cudaErrorStreamCaptureUnsupported = 900
};
enum cudaMemcpyKind {
    cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice
};
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal };
enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9
};

typedef struct CudaOnHostStream* cudaStream_t;
typedef struct CudaOnHostEvent* cudaEvent_t;
typedef struct CudaOnHostGraph* cudaGraph_t;
typedef struct CudaOnHostGraph* cudaGraphExec_t;

struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem;
    int major, minor, multiProcessorCount;
};

cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int device);
enum cudaDeviceAttr {
    cudaDevAttrMultiProcessorCount, cudaDevAttrMaxSharedMemoryPerMultiprocessor, cudaDevAttrComputeCapabilityMajor
};
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaGetLastError(void);
const char* cudaGetErrorString(cudaError_t error);

cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
cudaError_t cuda_on_host_malloc(void** p, size_t bytes, bool on_device);
cudaError_t cudaFree(void* p);
cudaError_t cudaFreeHost(void* p);
template <typename T> cudaError_t cudaMalloc(T** p, size_t n) { return cuda_on_host_malloc((void**)p, n, true); }
template <typename T> cudaError_t cudaMallocHost(T** p, size_t n) { return cuda_on_host_malloc((void**)p, n, false); }
cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemcpy(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemsetAsync(void* dst, int byte, size_t bytes, cudaStream_t stream = nullptr);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags = 0);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);

cudaError_t cuda_on_host_attribute(const void* kernel, cudaFuncAttribute attribute, int value);
template <typename F> cudaError_t cudaFuncSetAttribute(F* kernel, cudaFuncAttribute attribute, int value) {
    return cuda_on_host_attribute((const void*)kernel, attribute, value);
}
template <typename F> cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, F*, int block, size_t) {
    *blocks = 2048 / block;
    return cudaSuccess;
}

// ---------------------------------------------------------------------------------------------
// Launch

// Queues on the stream: later work waits until ready() returns true. It is called again and again.
void cuda_on_host_enqueue_when(cudaStream_t stream, std::function<bool()> ready);
void cuda_on_host_progress(void);   // runs what is ready, of the streams that do not run late
void cuda_on_host_copy(void* dst, const void* src, size_t bytes);   // memcpy from or to device memory
// Queues `work` on the stream, or records it if the stream is capturing a graph.
void cuda_on_host_enqueue(cudaStream_t stream, std::function<void()> work);

// body: runs the current thread.
void cuda_on_host_launch(const char* name, const void* kernel, dim3 grid, dim3 block, size_t shared_bytes,
                         cudaStream_t stream, const std::function<void()>& body);

template <typename... Params, typename... Args>
void cuda_on_host_call(const char* name, void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
                       cudaStream_t stream, Args... args) {
    const std::tuple<Params...> params(static_cast<Params>(args)...);
    cuda_on_host_launch(name, (const void*)kernel, grid, block, shared_bytes, stream,
                        [=] { std::apply(kernel, params); });
}
#define PLATFORM_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    cuda_on_host_call(#kernel, kernel, grid, block, shared_bytes, stream, ##__VA_ARGS__)

#include "cublaslt_on_host.h"

#endif
