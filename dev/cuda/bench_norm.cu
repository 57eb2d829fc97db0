// bench_norm.cu: residual + LayerScale + LayerNorm, GELU and convolution, forward and backward, with 65,536 rows.
#include "bench.cuh"

template <typename S> static void bench_norm(Bench* bench, int C) {
    const size_t rows = 65536;
    const cudaStream_t stream = bench->stream;
    const float* gamma = bench_random<float>(bench, C, 0.5f, 0.1f);
    const float* w = bench_random<float>(bench, C, 1, 0.1f);
    const S *branch = bench_random<S>(bench, rows * C, 0, 1), *dy = bench_random<S>(bench, rows * C, 0, 1);
    float *x = bench_random<float>(bench, rows * C, 0, 1), *dx = bench_random<float>(bench, rows * C, 0, 1e-3f);
    float* rstd = bench_buffer<float>(bench, rows);
    float *dw = bench_buffer<float>(bench, C), *dbias = bench_buffer<float>(bench, 4 * C),
          *dweight = bench_buffer<float>(bench, C * CONV_WIDTH);
    const size_t n_partial = (size_t)COLUMN_BLOCKS * 4 * C;
    float* partial = bench_buffer<float>(bench, n_partial);
    S *y = bench_buffer<S>(bench, rows * C), *dbranch = bench_buffer<S>(bench, rows * C);
    NormForward<S> norm = {};
    norm.x = x, norm.y = y, norm.rstd = rstd, norm.branch = branch, norm.gamma = gamma, norm.w = w;
    norm.rows = rows, norm.C = C;
    NormBackward<S> norm_backward = {};
    norm_backward.dx = dx, norm_backward.dbranch = dbranch, norm_backward.dy = dy, norm_backward.y = y;
    norm_backward.rstd = rstd, norm_backward.w = w;
    norm_backward.gamma = gamma, norm_backward.accumulate = true, norm_backward.rows = rows, norm_backward.C = C;
    Conv<S> conv = {};
    conv.B = 64, conv.T = (int)rows / 64, conv.C = C, conv.y = y, conv.x = branch, conv.weight = x;
    conv.dx = dbranch, conv.dy = dy;
    const auto backward = [&](auto f) {   // with the sums over rows
        ColumnSums sums = {partial, partial + n_partial, 0, {}};
        f(&sums);
        vector_gradients<S>(stream, sums, {}, false);
    };
    char size[64];
    snprintf(size, sizeof size, "%s rows %zu C %d", bench_type<S>(), rows, C);
    const double cells = (double)rows * C;
    bench_report(bench, "residual_layernorm_forward", size, cells * (8 + 2 * sizeof(S)), [&] {
        residual_layernorm_forward(stream, norm);
    });
    bench_report(bench, "layernorm_residual_backward", size, cells * (8 + 3 * sizeof(S)), [&] {
        backward([&](ColumnSums* sums) {
            layernorm_residual_backward(stream, dw, NULL, dbias, sums, norm_backward);
        });
    });
    bench_report(bench, "conv_forward", size, cells * 2 * sizeof(S), [&] { conv_forward(stream, conv); });
    bench_report(bench, "conv_backward", size, cells * 3 * sizeof(S), [&] {
        backward([&](ColumnSums* sums) { conv_backward(stream, dweight, sums, conv); });
    });
    snprintf(size, sizeof size, "%s rows %zu channels %d", bench_type<S>(), rows / 4, 4 * C);   // as in the MLP
    bench_report(bench, "gelu_forward", size, cells * 2 * sizeof(S),
                 [&] { gelu_forward(stream, y, branch, rows * C); });
    bench_report(bench, "gelu_backward", size, cells * 3 * sizeof(S), [&] {
        backward([&](ColumnSums* sums) { gelu_backward(stream, dbranch, dbias, sums, branch, rows / 4, 4 * C); });
    });
    bench_free_buffers(bench);
}

int main() {
    Bench bench = bench_open();
    for (int C : {768, 1024, 1280}) bench_norm<bf16>(&bench, C);
    bench_norm<float>(&bench, 768);
    bench_close(&bench);
    return 0;
}
