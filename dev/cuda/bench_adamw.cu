// bench_adamw.cu: AdamW and the gradient norm with the parameter count of tost-base.
#include "bench.cuh"

template <typename S> static void bench_adamw(Bench* bench, size_t n) {
    const cudaStream_t stream = bench->stream;
    float *p = bench_random<float>(bench, n, 0, 0.02f), *m = bench_random<float>(bench, n, 0, 1e-4f);
    float *v = bench_random<float>(bench, n, 2e-8f, 1e-8f), *g = bench_random<float>(bench, n, 0, 1e-4f);
    const int units = div_up(n, SLICE_UNIT);
    double* sums = bench_buffer<double>(bench, units);
    S* weights = sizeof(S) == sizeof(float) ? NULL : bench_buffer<S>(bench, n);
    const uint8_t* decays = bench_buffer<uint8_t>(bench, n / DECAY_GROUP);
    const AdamWFactors f = {{1.0f, 1.0f, 1.0f}, 1.0f, 0.9f, 0.95f, 0.1f, 0.05f, 1e-4f, 1.0f, 1e-8f};
    char size[64];
    snprintf(size, sizeof size, "%s %.1fM parameters", bench_type<S>(), n * 1e-6);
    bench_report(bench, "adamw", size, (double)n * (28 + (weights ? sizeof(S) : 0)), [&] {
        LAUNCH((adamw_kernel<S>), div_up(n, 4 * 256), 256, 0, stream, p, m, v, weights, g, decays, n, f);
    });
    bench_report(bench, "grad_norm", size, 4.0 * n, [&] {
        LAUNCH(squares_kernel, units, SQUARES_THREADS, 0, stream, sums, g, n, 0);
    });
    bench_free_buffers(bench);
}

int main() {
    Bench bench = bench_open();
    bench_adamw<bf16>(&bench, (size_t)110390784);
    bench_adamw<float>(&bench, (size_t)110390784);
    bench_close(&bench);
    return 0;
}
