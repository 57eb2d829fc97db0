// common.cuh: error checks, kernel launches, and packed access to float and bf16 arrays.
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tost/cuda/platform.cuh"

extern "C" {
#include "tost/base/error.h"
#include "tost/base/memory.h"
#include "tost/base/text.h"
#include "tost/model.h"
}

// ---------------------------------------------------------------------------------------------
// Error checks. A failed call prints where and what failed and what to do, in one line, and exits with STATUS_FAILED;
// while a graph is captured, it sets *capture_error instead.
inline TostError* capture_error;   // NULL: no capture

// What to do about an error.
inline const char* cuda_advice(cudaError_t e) {
    switch (e) {
    case cudaErrorMemoryAllocation: return "a smaller --batch or --seq needs less memory";
    case cudaErrorInsufficientDriver:
    case cudaErrorUnsupportedPtxVersion: return "install an NVIDIA driver as new as the CUDA version of this build";
    case cudaErrorNoDevice: return "no GPU was found; train_gpt_tost runs on the CPU";
    case cudaErrorNoKernelImageForDevice:
        return "this build has no code for this GPU; build it with a newer CUDA toolkit";
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure: return "an earlier kernel failed; compute-sanitizer shows which one";
    default: return "check the GPU and its driver with nvidia-smi";
    }
}

inline void cuda_die(const char* what, const char* error, const char* advice, const char* file, int line) {
    if (capture_error) return (void)(capture_error->text[0] || tost_error(capture_error, "%s: %s", what, error));
    fprintf(stderr, "%s:%d: %s: %s; %s\n", file, line, what, error, advice);
    exit(STATUS_FAILED);
}

inline void cuda_check(cudaError_t e, const char* what, const char* file, int line) {
    if (e != cudaSuccess) cuda_die(what, cudaGetErrorString(e), cuda_advice(e), file, line);
}
#define CUDA_CHECK(call) cuda_check((call), #call, __FILE__, __LINE__)

inline int device_attribute(cudaDeviceAttr attribute) {
    int device, value;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, device));
    return value;
}

// Most dynamic shared memory of a block without an attribute: 48 KiB minus the static one of the kernels that use it.
constexpr size_t MAX_DYNAMIC_SHARED = (48 << 10) - 64;
// With the attribute: 99 KiB, which every GPU since compute capability 8.0 has.
constexpr size_t MAX_ALLOWED_SHARED = (99 << 10) - 64;
constexpr size_t EXTRA_SHARED = 2 << 10;   // per block: 1 KiB that CUDA uses, and static shared memory

// LAUNCH(kernel, grid, block, shared_bytes, stream, arguments...): a template instance needs parentheses.
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    do { \
        if ((size_t)(shared_bytes) > MAX_DYNAMIC_SHARED) \
            CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes)); \
        PLATFORM_LAUNCH(kernel, grid, block, shared_bytes, stream, ##__VA_ARGS__); \
        cuda_check(cudaGetLastError(), #kernel, __FILE__, __LINE__); \
    } while (0)

__host__ __device__ constexpr int div_up(size_t n, size_t by) { return (int)((n + by - 1) / by); }

// For launches of `kernel` with `bytes` of dynamic shared memory: asks for a carve-out of shared memory in which
// `blocks` blocks fit on a multiprocessor. The rest is L1.
template <typename K> inline void prefer_shared(K* kernel, size_t bytes, int blocks) {
    const size_t all = device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    const int percent = min(100, div_up(100 * blocks * (bytes + EXTRA_SHARED), all));
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, percent));
}

// (B,state_size). Forward: the state before a pass (start) and the one after it (end). Backward: the gradient of the
// state after the pass (start) and that of the state before it (end). start NULL: zeros; end NULL: not written. They
// must not overlap: the last block writes while others read.
struct PassStates {
    const double* start;
    double* end;
};

// ---------------------------------------------------------------------------------------------
// Storage types: arrays hold float or bf16, arithmetic is float.

constexpr int WARP = 32;

// Kernels over rows of C channels: a thread takes packs of 4 channels, or of the rest of a row.
static int channel_threads(int C) { return min(256, div_up(div_up(C, 4), WARP) * WARP); }

__host__ __device__ inline float to_float(float x) { return x; }
__host__ __device__ inline float to_float(bf16 x) { return __bfloat162float(x); }
template <typename S> __device__ inline S from_float(float x);
template <> __device__ inline float from_float<float>(float x) { return x; }
template <> __device__ inline bf16  from_float<bf16>(float x) { return __float2bfloat16(x); }

template <int N> __device__ inline void unpack(float* out, const float (&part)[N]) {
    UNROLL for (int j = 0; j < N; j++) out[j] = part[j];
}
template <int N> __device__ inline void unpack(float* out, const bf16 (&part)[N]) {
    UNROLL for (int j = 0; j < N / 2; j++) unpack_pair(out + 2 * j, part + 2 * j);
    if (N % 2) out[N - 1] = to_float(part[N - 1]);
}

// N neighboring elements in accesses of up to 16 bytes, to which p is aligned.
template <int N, typename S> __device__ inline void load_pack(float (&out)[N], const S* p) {
    constexpr int COUNT = N * sizeof(S) > 16 ? 16 / (int)sizeof(S) : N;
    UNROLL for (int i = 0; i < N; i += COUNT) {
        alignas(16) S part[COUNT];
        load_word<sizeof part>(part, p + i);
        unpack(out + i, part);
    }
}

template <int N, typename S> __device__ inline void store_pack(S* p, const float (&in)[N]) {
    constexpr int COUNT = N * sizeof(S) > 16 ? 16 / (int)sizeof(S) : N;
    UNROLL for (int i = 0; i < N; i += COUNT) {
        alignas(16) S part[COUNT];
        UNROLL for (int j = 0; j < COUNT; j++) part[j] = from_float<S>(in[i + j]);
        store_word<sizeof part>(p + i, part);
    }
}

// True if N elements are inside of an array and in words of up to 16 bytes.
template <int N, typename S> __device__ inline bool is_pack(const S* p, int inside) {
    return inside >= N && (uintptr_t)p % (N * sizeof(S) < 16 ? N * sizeof(S) : 16) == 0;
}

// The first `inside` of N neighboring elements; load_part sets the others to 0. WHOLE: is_pack is true.
template <bool WHOLE, int N, typename S> __device__ inline void load_part(float (&out)[N], const S* p, int inside) {
    if constexpr (!WHOLE) {
        if (!is_pack<N>(p, inside)) {
            UNROLL for (int i = 0; i < N; i++) out[i] = i < inside ? to_float(p[i]) : 0.0f;
            return;
        }
    }
    load_pack<N>(out, p);
}

// sum += the first `inside` of N neighboring elements
template <bool WHOLE, int N, typename S> __device__ inline void add_part(float (&sum)[N], const S* p, int inside) {
    float part[N];
    load_part<WHOLE>(part, p, inside);
    UNROLL for (int i = 0; i < N; i++) sum[i] += part[i];
}

template <bool WHOLE, int N, typename S> __device__ inline void store_part(S* p, const float (&in)[N], int inside) {
    if constexpr (!WHOLE) {
        if (!is_pack<N>(p, inside)) {
            UNROLL for (int i = 0; i < N; i++)
                if (i < inside) p[i] = from_float<S>(in[i]);
            return;
        }
    }
    store_pack<N>(p, in);
}

// ---------------------------------------------------------------------------------------------
// Scalar functions

constexpr float LOG2_E = 1.44269504f;

// e^(-x²/2)
__device__ inline float normal_bell(float x) { return power_of_2(x * (x * -0.72134752f)); }

// Φ(x) = 1 - Φ(-x), and for z ≥ 0:  Φ(-z) = P(t) e^(-z²/2),  t = 1/(1 + z/4). P is fitted for the least relative error:
// 9e-8 up to z = 9, before rounding. Takes half the instructions of erff; the derivative also uses e^(-z²/2), `bell`.
__device__ inline float normal_cdf(float x, float bell) {
    const float t = reciprocal(1.0f + 0.25f * fabsf(x));
    float p = -9.92023535e-2f;
    p = p * t + 3.78244357e-1f;
    p = p * t - 3.40745135e-1f;
    p = p * t + 3.61256631e-1f;
    p = p * t - 2.56326757e-2f;
    p = p * t + 1.30510810e-1f;
    p = p * t + 9.52933651e-2f;
    p = (p * t + 2.75036677e-4f) * bell;
    return x < 0.0f ? p : 1.0f - p;
}
