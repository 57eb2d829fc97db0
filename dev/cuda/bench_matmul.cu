// bench_matmul.cu: the matrix products of one tost-base step of 65,536 tokens, called as the engine does, and a large
// square product as the upper limit.
#include "bench.cuh"

static void report_flops(Bench* bench, const char* name, const char* size, double flops, double seconds) {
    printf("%-28s %-30s %9.1f us %8.1f TFLOP/s\n", name, size, seconds * 1e6, flops / seconds * 1e-12);
    bench_free_buffers(bench);
}

static Matmul matmul_open(Bench* bench) {
    Matmul mm = {};
    CUBLAS_CHECK(cublasLtCreate(&mm.handle));
    mm.stream = bench->stream;
    mm.workspace = bench_buffer<char>(bench, MATMUL_WORKSPACE);
    return mm;
}

template <typename S> static void bench_step(Bench* bench, int rows) {
    enum { LAYERS = 12, C = 768, V = 50304 };
    const int chunk = (int)classifier_rows(rows, V, sizeof(S));
    const struct { int in, out; } linear[] = {{C, C}, {C, C}, {C, 4 * C}, {4 * C, C}};
    Matmul mm = matmul_open(bench);
    const size_t n = (size_t)rows * 4 * C;
    S *x = bench_random<S>(bench, n, 0, 1), *w = bench_random<S>(bench, (size_t)V * C, 0, 0.02f);
    S *y = bench_random<S>(bench, n, 0, 1e-3f), *dx = bench_buffer<S>(bench, n),
      *logits = bench_random<S>(bench, (size_t)chunk * V, 0, 1e-3f);
    float* dw = bench_buffer<float>(bench, (size_t)V * C);
    const double seconds = bench_seconds(bench, [&] {
        for (int l = 0; l < LAYERS; l++)
            for (const auto& k : linear) {
                linear_forward(&mm, dx, x, w, (const S*)NULL, rows, k.in, k.out);
                linear_backward(&mm, dx, dw, y, x, w, rows, k.in, k.out, false);
            }
        for (int row = 0; row < rows; row += chunk) {
            const int n = min(chunk, rows - row);
            linear_forward(&mm, logits, x, w, (const S*)NULL, n, C, V);
            linear_backward(&mm, dx, dw, logits, x, w, n, C, V, row > 0);
        }
    });
    char size[64];
    snprintf(size, sizeof size, "%s %d rows", bench_type<S>(), rows);
    report_flops(bench, "step_matmuls", size, 6.0 * rows * ((double)LAYERS * 10 * C * C + (double)V * C), seconds);
    matmul_free(&mm);
}

template <typename S> static void bench_square(Bench* bench, int n) {
    Matmul mm = matmul_open(bench);
    const size_t size = (size_t)n * n;
    S *x = bench_random<S>(bench, size, 0, 1), *w = bench_random<S>(bench, size, 0, 1);
    S* y = bench_buffer<S>(bench, size);
    const double seconds = bench_seconds(bench, [&] { linear_forward(&mm, y, x, w, (const S*)NULL, n, n, n); });
    char words[64];
    snprintf(words, sizeof words, "%s %d x %d", bench_type<S>(), n, n);
    report_flops(bench, "square_matmul", words, 2.0 * size * n, seconds);
    matmul_free(&mm);
}

int main() {
    Bench bench = bench_open();
    bench_square<bf16>(&bench, 8192);
    bench_step<bf16>(&bench, 65536);
    bench_close(&bench);
    return 0;
}
