// cuda_platform.cuh: everything that differs between nvcc and the CUDA emulation on a CPU (TOST_CUDA_ON_HOST,
// dev/test/cuda_on_host). The emulation's version of each function comes first; nvcc's is documented.
#ifndef TOST_CUDA_PLATFORM_CUH
#define TOST_CUDA_PLATFORM_CUH

#include <stdint.h>
#include <string.h>

#ifdef TOST_CUDA_ON_HOST
#include "dev/test/cuda_on_host/cuda_on_host.h"   // also CUDA_REDZONE_BYTES and cuda_on_host_poison
#ifdef TOST_NCCL
#include "dev/test/nccl_on_host/nccl_on_host.h"
#endif
#else
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#ifdef TOST_NCCL
#include <nccl.h>
#endif
#endif

typedef __nv_bfloat16 bf16;
struct fp8_e4m3 { unsigned char bits; };
struct fp8_e5m2 { unsigned char bits; };

// The compute capability that this pass compiles for, e.g. 900 for 9.0; 0 for the host
#ifdef __CUDA_ARCH__
constexpr int COMPILED_ARCH = __CUDA_ARCH__;
#else
[[maybe_unused]] constexpr int COMPILED_ARCH = 0;
#endif

constexpr size_t BLOCK_SHARED = 1024;   // bytes of shared memory that CUDA reserves per block

// The compute capability that the kernels in use were compiled for, e.g. 90 for 9.0. It is lower than the device's if
// the build has no code for the device's own. 0 if it is unknown.
static __global__ void probe_kernel() {}
inline int kernel_arch() {
    cudaFuncAttributes a;
    return cudaFuncGetAttributes(&a, probe_kernel) == cudaSuccess ? a.ptxVersion : 0;
}

// __restrict__ for kernel parameters, only below compute capability 9.0. From 9.0 on, a kernel may start while the
// previous kernel still writes its inputs (programmatic dependent launch). There, nvcc would read const __restrict__
// parameters with ld.global.nc, which may return stale data, and could move loads before dependency_wait.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define RESTRICT __restrict__
#else
#define RESTRICT
#endif

// True if additions of doubles may run at 1/64 of the rate of floats. They are fast on compute capability 8.0, 9.0 and
// 10.0, but code for 8.0 also runs on 8.6 and 8.9, where they are slow. Sums of two floats instead of doubles (ScanSum)
// take 4 % more instructions in TSSA's forward kernel. There is no separate code for 8.6, which would add 3.5 MB to the
// program and as much compile time as any other architecture.
constexpr bool SLOW_DOUBLES = COMPILED_ARCH != 0 && COMPILED_ARCH != 900 && COMPILED_ARCH != 1000;

// UNROLL for (...): unrolls the loop; UNROLL_BY(n): n times; NO_UNROLL: not at all.
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
#define UNROLL_BY(n) UNROLL_PRAGMA(unroll n)
#define UNROLL_PRAGMA(text) _Pragma(#text)

#ifdef TOST_CUDA_ON_HOST

constexpr size_t MATMUL_WORKSPACE = 4096;

#define PLATFORM_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    CUDA_ON_HOST_LAUNCH_EARLY(kernel, grid, block, shared_bytes, stream, ##__VA_ARGS__)
__device__ inline void dependency_wait() { cuda_on_host_dependency_wait(); }
#define DYNAMIC_SHARED(type, name) type* name = static_cast<type*>(cuda_on_host_dynamic_shared())

inline size_t multiprocessor_shared() { return 228 << 10; }

template <size_t BYTES> __device__ inline void load_word(void* out, const void* p) {
    cuda_on_host_aligned(p, BYTES);
    memcpy(out, p, BYTES);
}
template <size_t BYTES> __device__ inline void store_word(void* p, const void* in) {
    cuda_on_host_aligned(p, BYTES);
    memcpy(p, in, BYTES);
}
__device__ inline void load_from_L2(float (&out)[4], const float* p) {
    cuda_on_host_aligned(p, sizeof out);
    for (int i = 0; i < 4; i++) out[i] = __ldcg(p + i);
}
__device__ inline void unpack_pair(float* out, const bf16* pair) {
    for (int i = 0; i < 2; i++) out[i] = __bfloat162float(pair[i]);
}

__device__ inline void fp8_pair(fp8_e4m3* out, float a, float b) {
    out[0].bits = cuda_on_host_to_fp8(a, 3, 7, 448.0f), out[1].bits = cuda_on_host_to_fp8(b, 3, 7, 448.0f);
}
__device__ inline void fp8_pair(fp8_e5m2* out, float a, float b) {
    out[0].bits = cuda_on_host_to_fp8(a, 2, 15, 57344.0f), out[1].bits = cuda_on_host_to_fp8(b, 2, 15, 57344.0f);
}

__device__ inline float reciprocal(float x) { return cuda_on_host_flush(1.0f / cuda_on_host_flush(x)); }
__device__ inline float power_of_2(float x) { return cuda_on_host_flush(exp2f(x)); }
__device__ inline void  store_release(int* p, int value) { cuda_on_host_store(p, value, true); }
__device__ inline int   load_relaxed(const int* p) { return cuda_on_host_load(p, false); }
__device__ inline int   load_acquire(const int* p) { return cuda_on_host_load(p, true); }

#else

// Bytes of cuBLASLt's workspace. Weight gradients are split along K: a partial sum of (768,3072) floats takes 9 MiB.
constexpr size_t MATMUL_WORKSPACE = (size_t)128 << 20;

// True if a kernel may be launched while the one before it in its stream still runs (programmatic dependent launch),
// which hides the launch latency. dependency_wait has an effect only in code for compute capability 9.0 or later, and
// graphs support these launches from CUDA 12.3 on.
inline bool launches_early() {
    static const bool early = [] {
        int driver = 0;
        return kernel_arch() >= 90 && cudaDriverGetVersion(&driver) == cudaSuccess && driver >= 12030 &&
               CUDART_VERSION >= 12030;
    }();
    return early;
}

// Bytes of shared memory per multiprocessor of this device. Each block takes BLOCK_SHARED in addition to its own.
inline size_t multiprocessor_shared() {
    static const int bytes = [] {
        int device = 0, value = 0;
        const bool known =
            cudaGetDevice(&device) == cudaSuccess &&
            cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device) == cudaSuccess;
        return known ? value : 0;
    }();
    return (size_t)bytes;
}

template <typename... Params, typename... Args>
inline void platform_launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                            Args... args) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = launches_early();
    (void)cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);   // cudaGetLastError returns its error
}
#define PLATFORM_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    platform_launch(kernel, grid, block, shared_bytes, stream, ##__VA_ARGS__)

// The first statement of every kernel: waits until all earlier kernels of the stream have ended and their writes are
// visible. Then allows the next kernel to be launched, which waits in the same way.
__device__ inline void dependency_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The shared_bytes of the launch, as an array of `type`.
#define DYNAMIC_SHARED(type, name) \
    extern __shared__ __align__(16) unsigned char tost_dynamic_shared[]; \
    type* name = reinterpret_cast<type*>(tost_dynamic_shared)

// Bytes after each array that no kernel may touch, and the call that marks them: for the emulation only.
#define CUDA_REDZONE_BYTES 0
inline void cuda_on_host_poison(void*, size_t) {}

// One access of BYTES bytes, to which p is aligned; out and in are register arrays.
template <size_t BYTES> struct Word;
template <> struct Word<2>  { typedef unsigned short type; };
template <> struct Word<4>  { typedef unsigned type; };
template <> struct Word<8>  { typedef uint2 type; };
template <> struct Word<16> { typedef uint4 type; };

template <size_t BYTES> __device__ inline void load_word(void* out, const void* p) {
    typedef typename Word<BYTES>::type Access;
    *reinterpret_cast<Access*>(out) = *reinterpret_cast<const Access*>(p);
}
template <size_t BYTES> __device__ inline void store_word(void* p, const void* in) {
    typedef typename Word<BYTES>::type Access;
    *reinterpret_cast<Access*>(p) = *reinterpret_cast<const Access*>(in);
}

// Values that other blocks wrote: read from L2, since L1 is not coherent.
__device__ inline void load_from_L2(float (&out)[4], const float* p) {
    const float4 four = __ldcg(reinterpret_cast<const float4*>(p));
    out[0] = four.x, out[1] = four.y, out[2] = four.z, out[3] = four.w;
}

// Two bf16 as floats, whose upper halves they are, in one instruction each.
__device__ inline void unpack_pair(float* out, const bf16* pair) {
    const unsigned two = *reinterpret_cast<const unsigned*>(pair);
    out[0] = __uint_as_float(two << 16);
    out[1] = __uint_as_float(two & 0xffff0000u);
}

// Two numbers rounded to nearest even; those out of range become the largest number, NaN stays NaN. out: aligned to 2
// bytes. Only from compute capability 9.0 on.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define FP8_PAIR(format) \
    unsigned short two; \
    asm("cvt.rn.satfinite." format "x2.f32 %0, %1, %2;" : "=h"(two) : "f"(b), "f"(a)); \
    *reinterpret_cast<unsigned short*>(out) = two
#else
#define FP8_PAIR(format) (void)out, (void)a, (void)b
#endif
__device__ inline void fp8_pair(fp8_e4m3* out, float a, float b) { FP8_PAIR("e4m3"); }
__device__ inline void fp8_pair(fp8_e5m2* out, float a, float b) { FP8_PAIR("e5m2"); }
#undef FP8_PAIR

// 1/x to 1 ulp and 2^x to 2 ulp in one instruction each; subnormal arguments and results count as zero.
__device__ inline float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ inline float power_of_2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ inline void store_release(int* p, int value) {
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
}
__device__ inline int load_relaxed(const int* p) {
    int value;
    asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
    return value;
}
__device__ inline int load_acquire(const int* p) {
    int value;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
    return value;
}

#endif

// *flag = 1 with release semantics: a thread that has waited for the flag, and threads that then synchronize with it,
// see all earlier writes of this thread and of the threads that it has synchronized with.
__device__ inline void raise_flag(int* flag) { store_release(flag, 1); }   // mutant: flag_not_released

// Waits until *flag is not 0. Only the last read has acquire semantics: it invalidates L1 of the whole multiprocessor.
__device__ inline void wait_flag(const int* flag) {
    while (!load_relaxed(flag)) {}   // mutant: flag_not_awaited
    load_acquire(flag);   // mutant: flag_not_acquired
}

#endif
