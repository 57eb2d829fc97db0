// platform.cuh: what nvcc and the CUDA emulation on a CPU (TOST_CUDA_ON_HOST) define differently: nvcc's definitions,
// with documentation. The emulation's are in dev/test/cuda/cuda_on_host.h.
#pragma once

#include <stdint.h>
#include <string.h>

#ifdef TOST_CUDA_ON_HOST
#include "dev/test/cuda/cuda_on_host.h"
#ifdef TOST_NCCL
#include "dev/test/cuda/nccl_on_host.h"
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

// The compute capability that this pass compiles for, e.g. 900 for 9.0; 0 for the host
#ifdef __CUDA_ARCH__
constexpr int COMPILED_ARCH = __CUDA_ARCH__;
static_assert(COMPILED_ARCH >= 800, "give -arch=sm_80 or later; -arch=native without a GPU stands for an older one");
#else
[[maybe_unused]] constexpr int COMPILED_ARCH = 0;
#endif

static __global__ void probe_kernel() {}   // to find out whether this build has code for the device

// UNROLL for (...): unrolls the loop; UNROLL_BY(n): n times; NO_UNROLL: not at all.
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
#define UNROLL_BY(n) UNROLL_PRAGMA(unroll n)
#define UNROLL_PRAGMA(text) _Pragma(#text)

#ifndef TOST_CUDA_ON_HOST

// Bytes of cuBLASLt's workspace. Weight gradients are split along K: a partial sum of (768,3072) floats takes 9 MiB.
constexpr size_t MATMUL_WORKSPACE = (size_t)128 << 20;

#define PLATFORM_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    kernel<<<grid, block, shared_bytes, stream>>>(__VA_ARGS__)

// n elements of the block's shared memory
#define SHARED(type, name, n) __shared__ type name[n]

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

// x, of which the compiler knows nothing: it cannot compute what depends on x before a loop, and keep it in registers.
__device__ inline int opaque(int x) {
    asm volatile("" : "+r"(x));
    return x;
}

// Two floats rounded to bf16, and a float rounded to tf32, as operands of mma
__device__ inline unsigned bf16_pair(float low, float high) {
    unsigned two;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
    return two;
}
__device__ inline unsigned tf32_bits(float x) {
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}

// sum (16,8) += a (16,depth) · b (depth,8) by a warp, with depth 16 in bf16 and 8 in tf32. PTX's documentation of
// mma.m16n8k16 and mma.m16n8k8 says which elements a lane has.
__device__ inline void mma_bf16(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};" : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ inline void mma_tf32(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};" : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// 1/x to 1 ulp and 2^x to 2 ulp (2^0 = 1) in one instruction each; subnormal arguments and results count as zero.
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
__device__ inline void raise_flag(int* flag) { store_release(flag, 1); }

// Waits until *flag is not 0. Only the last read has acquire semantics: it invalidates L1 of the whole multiprocessor.
__device__ inline void wait_flag(const int* flag) {
    while (!load_relaxed(flag)) {}
    load_acquire(flag);
}
