// cuda_fp8.cuh: operands of matrix products in 8-bit floating point: e4m3 (numbers up to 448, 3 mantissa bits) for
// activations and weights, e5m2 (up to 57,344, 2 mantissa bits) for gradients. The kernel that computes a tensor also
// writes its copy in fp8, multiplied by the tensor's scale, and records the largest absolute value.
//
// Scales are powers of two, so that scaling is exact, and delayed: the scale of a step follows from the largest values
// of the FP8_HISTORY steps before it, and leaves room for values up to 1.75 times as large. Larger ones saturate; the
// next step's scale has room for them. A maximum does not depend on any order, so the scales are deterministic.
#ifndef TOST_CUDA_FP8_CUH
#define TOST_CUDA_FP8_CUH

#include "tost/cuda_common.cuh"
#include "tost/cuda_reduce.cuh"

constexpr int FP8_HISTORY = 16;      // steps
constexpr int FP8_SLOTS = 64, FP8_SLOT = 8;   // slots per tensor, ints per slot: each has its own 32-byte sector

// A scale maps the largest recorded value below 2^FP8_TOP.
template <typename Q> constexpr int FP8_TOP = 0;
template <> constexpr int FP8_TOP<fp8_e4m3> = 8;
template <> constexpr int FP8_TOP<fp8_e5m2> = 15;

struct Fp8Scale { float scale, inverse; };

// The scale of a tensor whose largest absolute value is `most`, which must be finite; 1 if `most` is 0.
__device__ inline Fp8Scale fp8_scale(float most, int top) {
    const int exponent = max((int)(__float_as_uint(most) >> 23) - 126, -100);   // most < 2^exponent
    if (most == 0.0f) return {1.0f, 1.0f};
    return {__uint_as_float((unsigned)(127 + top - exponent) << 23),
            __uint_as_float((unsigned)(127 - top + exponent) << 23)};
}

// N neighboring elements, scaled and rounded to nearest even; those out of range become the largest number.
template <int N, typename Q> __device__ inline void store_fp8(Q* p, const float (&in)[N], float scale) {
    alignas(N) Q part[N];
    UNROLL for (int i = 0; i < N; i += 2) fp8_pair(part + i, in[i] * scale, in[i + 1] * scale);
    store_word<N>(p, part);
}

// ---------------------------------------------------------------------------------------------
// The fp8 copy that a kernel writes in addition to a tensor

struct NoCopy { static constexpr bool ACTIVE = false; };

template <typename Q> struct Fp8Copy {
    static constexpr bool ACTIVE = true;
    Q* out;                          // NULL: only the largest value is recorded
    const Fp8Scale* scale;
    int* slots;                      // (FP8_SLOTS,FP8_SLOT): bits of the largest values, zero before the step
};

// Writes one thread's part of the copy. All threads of a warp must call end.
template <typename Copy> struct CopyWriter {
    __device__ explicit CopyWriter(NoCopy) {}
    template <int N> __device__ void store(size_t, const float (&)[N]) {}
    __device__ void end() {}
};

template <typename Q> struct CopyWriter<Fp8Copy<Q>> {
    Fp8Copy<Q> copy;
    float scale, most = 0.0f;

    __device__ explicit CopyWriter(Fp8Copy<Q> c) : copy(c), scale(c.scale->scale) {}
    template <int N> __device__ void store(size_t at, const float (&x)[N]) {
        UNROLL for (int i = 0; i < N; i++) most = fmaxf(most, fabsf(x[i]));
        if (copy.out) store_fp8<N>(copy.out + at, x, scale);
    }
    __device__ void end() {
        const float of_warp = warp_max(most);
        if (lane_index() == 0)
            atomicMax(copy.slots + blockIdx.x % FP8_SLOTS * FP8_SLOT, (int)__float_as_uint(of_warp));
    }
};

constexpr int CAST_PACK = 8, CAST_THREADS = 256;

// Writes the copy of x (n), n % CAST_PACK = 0. Minimum traffic per element: 2 + 1.
template <typename Q> __global__ void __launch_bounds__(CAST_THREADS)
    fp8_cast_kernel(Fp8Copy<Q> copy, const bf16* x, size_t n) {
    dependency_wait();
    const size_t i = ((size_t)blockIdx.x * CAST_THREADS + threadIdx.x) * CAST_PACK;
    CopyWriter<Fp8Copy<Q>> writer(copy);
    if (i < n) {
        float v[CAST_PACK];
        load_pack<CAST_PACK>(v, x + i);
        writer.store(i, v);
    }
    writer.end();
}

template <typename Q> static void fp8_cast(cudaStream_t stream, Fp8Copy<Q> copy, const bf16* x, size_t n) {
    LAUNCH((fp8_cast_kernel<Q>), div_up(n, CAST_THREADS * CAST_PACK), CAST_THREADS, 0, stream, copy, x, n);
}

// ---------------------------------------------------------------------------------------------
// Scales of a step

// most[tensor] = the largest recorded value, 0 if it is not finite. One warp per tensor.
__global__ void fp8_recorded_kernel(float* most, const int* slots) {
    dependency_wait();
    const int* mine = slots + (size_t)blockIdx.x * FP8_SLOTS * FP8_SLOT;
    float x = 0.0f;
    for (int i = threadIdx.x; i < FP8_SLOTS; i += WARP) x = fmaxf(x, __uint_as_float((unsigned)mine[i * FP8_SLOT]));
    x = warp_max(x);
    if (threadIdx.x == 0) most[blockIdx.x] = x <= 3.4e38f ? x : 0.0f;
}

// The scale from the history (FP8_HISTORY,tensors), the latest step first. Of every `period` tensors, the first half is
// e4m3, the second half e5m2.
__device__ inline Fp8Scale fp8_scale_of(const float* history, int tensor, int tensors, int period) {
    float most = 0.0f;
    for (int i = 0; i < FP8_HISTORY; i++)   // mutant: one_step_of_fp8
        most = fmaxf(most, history[i * tensors + tensor]);
    return fp8_scale(most, tensor % period < period / 2 ? FP8_TOP<fp8_e4m3> : FP8_TOP<fp8_e5m2>);
}

// Adds a step to the history: for each tensor, the maximum of most (ranks,tensors) over the ranks. Updates the scales.
__global__ void fp8_history_kernel(Fp8Scale* scale, float* history, const float* most, int ranks, int tensors,
                                   int period) {
    dependency_wait();
    const int tensor = blockIdx.x * blockDim.x + threadIdx.x;
    if (tensor >= tensors) return;
    float x = 0.0f;
    for (int r = 0; r < ranks; r++) x = fmaxf(x, most[r * tensors + tensor]);   // mutant: fp8_of_one_rank
    for (int i = FP8_HISTORY - 1; i > 0; i--) history[i * tensors + tensor] = history[(i - 1) * tensors + tensor];
    history[tensor] = x;
    scale[tensor] = fp8_scale_of(history, tensor, tensors, period);
}

// Computes the scales from a history that was read from a file.
__global__ void fp8_scales_kernel(Fp8Scale* scale, const float* history, int tensors, int period) {
    dependency_wait();
    const int tensor = blockIdx.x * blockDim.x + threadIdx.x;
    if (tensor < tensors) scale[tensor] = fp8_scale_of(history, tensor, tensors, period);
}

// ---------------------------------------------------------------------------------------------
// Weights change only once per step, so their scales are computed from their current values. They are copied twice, as
// stored and transposed, because cuBLASLt reads both operands along K.

constexpr int WEIGHT_TILE = 64, WEIGHT_PACK = 16, WEIGHT_THREADS = WEIGHT_TILE * WEIGHT_TILE / WEIGHT_PACK;

// Weight matrices of each layer. offset: in layer 0; stride: elements from one layer to the next
struct Fp8Weights {
    static constexpr int COUNT = 4;
    size_t offset[COUNT], stride;
    int out[COUNT], in[COUNT];       // multiples of WEIGHT_PACK
};

// most (layers,COUNT) = bits of the largest absolute values; zero before the launch. Grid: (blocks, COUNT, layers)
__global__ void fp8_weights_most_kernel(int* most, const bf16* weights, const __grid_constant__ Fp8Weights w) {
    dependency_wait();
    const bf16* matrix = weights + w.offset[blockIdx.y] + blockIdx.z * w.stride;
    const size_t n = (size_t)w.out[blockIdx.y] * w.in[blockIdx.y], stride = (size_t)gridDim.x * blockDim.x * 8;
    float largest = 0.0f;
    for (size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * 8; i < n; i += stride) {
        float v[8];
        load_pack<8>(v, matrix + i);
        UNROLL for (int j = 0; j < 8; j++) largest = fmaxf(largest, fabsf(v[j]));
    }
    largest = warp_max(largest);
    if (lane_index() == 0) atomicMax(most + blockIdx.z * Fp8Weights::COUNT + blockIdx.y, (int)__float_as_uint(largest));
}

// Writes copy (out,in) and transposed (in,out), both at the offsets of the weights, and scale (layers,COUNT). A block
// takes a tile of 64 × 64; grid: (tiles of the largest matrix, COUNT, layers)
__global__ void __launch_bounds__(WEIGHT_THREADS)
    fp8_weights_kernel(fp8_e4m3* copy, fp8_e4m3* transposed, Fp8Scale* scale, const int* most, const bf16* weights,
                       const __grid_constant__ Fp8Weights w) {
    dependency_wait();
    __shared__ fp8_e4m3 tile[WEIGHT_TILE][WEIGHT_TILE + 4];
    const int kind = blockIdx.y, out = w.out[kind], in = w.in[kind], tiles = (in + WEIGHT_TILE - 1) / WEIGHT_TILE;
    const int row0 = blockIdx.x / tiles * WEIGHT_TILE, column0 = blockIdx.x % tiles * WEIGHT_TILE;
    constexpr int PACKS = WEIGHT_TILE / WEIGHT_PACK;
    const int i = threadIdx.x / PACKS, j = threadIdx.x % PACKS * WEIGHT_PACK;
    const size_t matrix = w.offset[kind] + blockIdx.z * w.stride;
    const int at = blockIdx.z * Fp8Weights::COUNT + kind;
    const float largest = __uint_as_float((unsigned)most[at]);
    const Fp8Scale s = fp8_scale(largest <= 3.4e38f ? largest : 0.0f, FP8_TOP<fp8_e4m3>);
    if (row0 >= out) return;
    if (blockIdx.x == 0 && threadIdx.x == 0) scale[at] = s;
    if (row0 + i < out && column0 + j < in) {
        float v[WEIGHT_PACK];
        const size_t element = matrix + (size_t)(row0 + i) * in + column0 + j;
        load_pack<WEIGHT_PACK>(v, weights + element);
        store_fp8<WEIGHT_PACK>(copy + element, v, s.scale);
        UNROLL for (int k = 0; k < WEIGHT_PACK; k += 2) fp8_pair(&tile[i][j + k], v[k] * s.scale, v[k + 1] * s.scale);
    }
    __syncthreads();   // mutant: fp8_tile_read_early
    if (column0 + i < in && row0 + j < out) {
        alignas(WEIGHT_PACK) fp8_e4m3 part[WEIGHT_PACK];
        UNROLL for (int k = 0; k < WEIGHT_PACK; k++) part[k] = tile[j + k][i];
        store_word<WEIGHT_PACK>(transposed + matrix + (size_t)(column0 + i) * out + row0 + j, part);
    }
}

// most (layers,COUNT): working space
static void fp8_weights(cudaStream_t stream, fp8_e4m3* copy, fp8_e4m3* transposed, Fp8Scale* scale, int* most,
                        const bf16* weights, const Fp8Weights& w, int layers) {
    int tiles = 0;
    for (int k = 0; k < Fp8Weights::COUNT; k++)
        tiles = max(tiles, div_up(w.out[k], WEIGHT_TILE) * div_up(w.in[k], WEIGHT_TILE));
    CUDA_CHECK(cudaMemsetAsync(most, 0, (size_t)layers * Fp8Weights::COUNT * sizeof *most, stream));
    LAUNCH(fp8_weights_most_kernel, dim3(32, Fp8Weights::COUNT, layers), 256, 0, stream, most, weights, w);
    LAUNCH(fp8_weights_kernel, dim3(tiles, Fp8Weights::COUNT, layers), WEIGHT_THREADS, 0, stream, copy, transposed,
           scale, most, weights, w);
}

#endif
