// bench_tssa.cu: TSSA forward and backward of tost-base with 65,536 tokens, from many short sequences to one long one.
#include "bench.cuh"

template <typename S> static void bench_tssa(Bench* bench, int B, int T) {
    const int C = 768, NH = 12, chunks = div_up(T, TSSA_CHUNK);
    const size_t rows = (size_t)B * T, states = (size_t)B * chunks * tssa_sums_size(C, NH),
                 sync_size = tssa_sync_size(B, T);
    const cudaStream_t stream = bench->stream;
    const S *w = bench_random<S>(bench, rows * C, 0, 0.5f), *dy = bench_random<S>(bench, rows * C, 0, 1e-3f);
    const float *temp = bench_random<float>(bench, NH, 1, 0.1f),
                *denom_bias = bench_random<float>(bench, (size_t)NH * T, 0, 0.01f);
    const StepInput step = step_input(bench_buffer<int32_t>(bench, step_input_size(rows)), rows);
    S *y = bench_buffer<S>(bench, rows * C), *dw = bench_buffer<S>(bench, rows * C);
    float *u = bench_buffer<float>(bench, rows * NH), *pi = bench_buffer<float>(bench, rows * NH),
          *da = bench_buffer<float>(bench, rows * NH);
    float *saved = bench_buffer<float>(bench, states), *back = bench_buffer<float>(bench, states);
    float *totals = bench_buffer<float>(bench, B * scan_slots(chunks) * tssa_sums_size(C, NH));
    float *dtemp = bench_buffer<float>(bench, NH), *ddenom_bias = bench_buffer<float>(bench, (size_t)NH * T);
    float* partial = bench_buffer<float>(bench, (size_t)B * chunks * NH);
    int* sync = bench_buffer<int>(bench, sync_size);
    char size[64];
    snprintf(size, sizeof size, "%s B %d T %d C %d", bench_type<S>(), B, T, C);
    const double unit = (double)rows * C * sizeof(S);
    bench_report(bench, "tssa_forward", size, 2 * unit, [&] {
        CUDA_CHECK(cudaMemsetAsync(sync, 0, sync_size * sizeof *sync, stream));
        tssa_forward(stream, y, u, pi, saved, NO_STATES, totals, sync, w, temp, denom_bias, step,
                     TOST_LEARNED, T, B, T, C, NH);
    });
    bench_report(bench, "tssa_backward", size, 3 * unit, [&] {
        CUDA_CHECK(cudaMemsetAsync(sync, 0, sync_size * sizeof *sync, stream));
        tssa_backward(stream, dw, da, partial, back, NO_STATES, totals, sync, dy, w, u, pi, saved, temp, step,
                      TOST_LEARNED, B, T, C, NH);
        layer_sums(stream, {}, {dtemp, ddenom_bias, da, partial, temp, step.header, TOST_LEARNED, T, B, T, C / NH, NH,
                                B * chunks}, false);
    });
    bench_free_buffers(bench);
}

int main() {
    Bench bench = bench_open();
    for (int T = 1024; T <= 65536; T *= 4) bench_tssa<bf16>(&bench, 65536 / T, T);
    for (int T = 1024; T <= 65536; T *= 4) bench_tssa<float>(&bench, 65536 / T, T);
    bench_close(&bench);
    return 0;
}
