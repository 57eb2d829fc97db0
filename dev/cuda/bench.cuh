// bench.cuh: shared by the kernel benches. A bench includes the engine without its main, runs its launch functions on
// random numbers at the size of a tost-base step, and prints time, GB/s and the copy bandwidth of the same run. GB/s
// count the minimal bytes: each input read once, each output written once.
//
//     make bench_cuda && build/cuda/bench_tssa
#ifndef TOST_BENCH_CUH
#define TOST_BENCH_CUH

#define TOST_NO_MAIN
#define TOST_NO_ENGINE               // nvcc compiles only the kernels that the benchmark launches
#pragma nv_diag_suppress 177         // unused functions
#pragma GCC diagnostic ignored "-Wunused-function"
#include "train_gpt_tost.cu"

#include <algorithm>

constexpr size_t BENCH_ROUNDS = 50;
constexpr double BENCH_WARM_MS = 100;

__device__ inline uint32_t hashed(uint64_t x) {   // the output function of splitmix64
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return (uint32_t)((x ^ (x >> 31)) >> 32);
}

// Uniform in (centre - √3 spread, centre + √3 spread), whose standard deviation is spread.
template <typename S>
__global__ void random_kernel(S* x, size_t n, uint64_t seed, float centre, float spread) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        x[i] =
            from_float<S>(centre + spread * 3.46410162f *
                                       ((hashed(seed + i * 0x9e3779b97f4a7c15ull) >> 8) * 0x1p-24f - 0.5f));
}

struct Bench {
    cudaStream_t stream;
    cudaEvent_t start, stop;
    double copy_rate;                // bytes/s, read plus written
    uint64_t seed;
    std::vector<void*> buffers;
};

template <typename T> static T* bench_buffer(Bench* bench, size_t n) {   // zeroed
    T* p;
    CUDA_CHECK(cudaMalloc(&p, n * sizeof(T)));
    CUDA_CHECK(cudaMemsetAsync(p, 0, n * sizeof(T), bench->stream));
    bench->buffers.push_back(p);
    return p;
}

template <typename S> static S* bench_random(Bench* bench, size_t n, float centre, float spread) {
    S* p = bench_buffer<S>(bench, n);
    LAUNCH((random_kernel<S>), 1024, 256, 0, bench->stream, p, n, bench->seed++ << 40, centre, spread);
    return p;
}

static int32_t* bench_upload(Bench* bench, const std::vector<int32_t>& host) {
    int32_t* p = bench_buffer<int32_t>(bench, host.size());
    CUDA_CHECK(cudaMemcpyAsync(p, host.data(), host.size() * sizeof(int32_t), cudaMemcpyHostToDevice,
                               bench->stream));
    CUDA_CHECK(cudaStreamSynchronize(bench->stream));
    return p;
}

static void bench_free_buffers(Bench* bench) {
    CUDA_CHECK(cudaStreamSynchronize(bench->stream));
    for (void* p : bench->buffers) CUDA_CHECK(cudaFree(p));
    bench->buffers.clear();
}

// Median seconds of one call, after BENCH_WARM_MS of warm-up. An untimed call before each timed one hides the launch
// latency.
template <typename F> static double bench_seconds(Bench* bench, F f) {
    std::vector<double> seconds;
    for (double warm = 0; seconds.size() < BENCH_ROUNDS;) {
        float ms;
        f();
        CUDA_CHECK(cudaEventRecord(bench->start, bench->stream));
        f();
        CUDA_CHECK(cudaEventRecord(bench->stop, bench->stream));
        CUDA_CHECK(cudaEventSynchronize(bench->stop));
        CUDA_CHECK(cudaEventElapsedTime(&ms, bench->start, bench->stop));
        if (warm >= BENCH_WARM_MS) seconds.push_back(ms * 1e-3);
        warm += 2 * ms;
    }
    std::nth_element(seconds.begin(), seconds.begin() + BENCH_ROUNDS / 2, seconds.end());
    return seconds[BENCH_ROUNDS / 2];
}

// Also prints the time relative to that of the minimal bytes at copy bandwidth.
template <typename F>
static void bench_report(Bench* bench, const char* name, const char* size, double minimal_bytes, F f) {
    const double s = bench_seconds(bench, f);
    printf("%-28s %-30s %9.1f us %8.0f GB/s %8.0f GB/s copy %6.2f times the minimum\n", name, size, s * 1e6,
           minimal_bytes / s * 1e-9, bench->copy_rate * 1e-9, s * bench->copy_rate / minimal_bytes);
}

static Bench bench_open() {
    Bench bench = {};
    TostError err;
    char text[512];
    TostEngineOptions o = {};
    o.max_batch = o.max_chunk = 1;
    o.dtype = TOST_BF16;
    setvbuf(stdout, NULL, _IOLBF, 0);   // a program that is stopped has printed its rows
    if (!device_describe(text, sizeof text, &o, &err)) {
        fprintf(stderr, "%s\n", err.text);
        exit(STATUS_FAILED);
    }
    CUDA_CHECK(cudaStreamCreateWithFlags(&bench.stream, cudaStreamNonBlocking));
    CUDA_CHECK(cudaEventCreate(&bench.start));
    CUDA_CHECK(cudaEventCreate(&bench.stop));
    const size_t n = (size_t)1 << 28;
    float *from = bench_random<float>(&bench, n, 0, 1), *to = bench_buffer<float>(&bench, n);
    const double s = bench_seconds(&bench, [&] {
        CUDA_CHECK(cudaMemcpyAsync(to, from, n * sizeof(float), cudaMemcpyDeviceToDevice, bench.stream));
    });
    bench.copy_rate = 2.0 * n * sizeof(float) / s;
    bench_free_buffers(&bench);
    printf("%s; copy %.0f GB/s\n", text, bench.copy_rate * 1e-9);
    return bench;
}

static void bench_close(Bench* bench) {
    CUDA_CHECK(cudaEventDestroy(bench->start));
    CUDA_CHECK(cudaEventDestroy(bench->stop));
    CUDA_CHECK(cudaStreamDestroy(bench->stream));
}

template <typename S> static const char* bench_type() { return sizeof(S) == 2 ? "bf16" : "float"; }

#endif
