// bench_tssa.cu: TSSA forward and backward of tost-base with 65,536 tokens, from many short sequences to one long one,
// and of the channels of the larger presets: with TSSA_WARPS and TSSA_BLOCKS and with other numbers of warps and
// blocks, each also with twice as many TssaStarts as tssa_start_log chooses, if they fit in shared memory.
#include "bench.cuh"

template <typename S, int WARPS = TSSA_WARPS, int BLOCKS = TSSA_BLOCKS>
static void bench_tssa(Bench* bench, int B, int T, int C, bool more_starts = false) {
    const int NH = C / 64;
    const size_t rows = (size_t)B * T, sync_size = tssa_sync_size(B, T);
    const cudaStream_t stream = bench->stream;
    Tssa<S> a = tssa_sizes<S>(B, T, C, NH, WARPS, BLOCKS);
    const size_t all = device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    if (more_starts && (--a.start_log < 2 || BLOCKS * (tssa_backward_shared(C, NH, a.start_log) + EXTRA_SHARED) > all))
        return;
    const size_t states = (size_t)B * a.runs * tssa_sums_size(C, NH);
    a.z = bench_random<S>(bench, rows * C, 0, 0.5f);
    a.dy = bench_random<S>(bench, rows * C, 0, 1e-3f);
    a.temp = bench_random<float>(bench, NH, 1, 0.1f);
    a.denom_bias = bench_random<float>(bench, (size_t)NH * T, 0, 0.01f);
    a.block_size = T;
    a.pass = pass_input(bench_buffer<int32_t>(bench, pass_input_size(rows)), rows).header;
    a.y = bench_buffer<S>(bench, rows * C);
    a.dz = bench_buffer<S>(bench, rows * C);
    for (float** p : {&a.u, &a.pi, &a.dscore}) *p = bench_buffer<float>(bench, rows * NH);
    for (float** p : {&a.saved, &a.saved_adjoint}) *p = bench_buffer<float>(bench, states);
    a.totals = bench_buffer<float>(bench, (size_t)B * a.slots * tssa_sums_size(C, NH));
    a.dtemp = bench_buffer<float>(bench, NH);
    a.ddenom_bias = bench_buffer<float>(bench, (size_t)NH * T);
    a.dtemp_run = bench_buffer<float>(bench, (size_t)B * a.runs * NH);
    a.sync = bench_buffer<int>(bench, sync_size);
    char size[80];
    snprintf(size, sizeof size, "%s B %d T %d C %d, %d of %d warps x %d, %d starts", bench_type<S>(), B, T, C, a.warps,
             WARPS, BLOCKS, TSSA_RUN >> a.start_log);
    const double unit = (double)rows * C * sizeof(S);
    bench_report(bench, "tssa_forward", size, 2 * unit, [&] {
        CUDA_CHECK(cudaMemsetAsync(a.sync, 0, sync_size * sizeof *a.sync, stream));
        tssa_forward<WARPS, BLOCKS>(stream, a);
    });
    bench_report(bench, "tssa_backward", size, 3 * unit, [&] {
        CUDA_CHECK(cudaMemsetAsync(a.sync, 0, sync_size * sizeof *a.sync, stream));
        tssa_backward<WARPS, BLOCKS>(stream, a);
        vector_gradients(stream, {}, a, false);
    });
    bench_free_buffers(bench);
}

// The presets' channels with 64 sequences, and one sequence
template <int WARPS, int BLOCKS> static void bench_choice(Bench* bench) {
    for (const bool more_starts : {false, true}) {
        for (int C : {768, 1024, 1280}) bench_tssa<bf16, WARPS, BLOCKS>(bench, 64, 1024, C, more_starts);
        bench_tssa<bf16, WARPS, BLOCKS>(bench, 1, 65536, 768, more_starts);
    }
}

int main() {
    Bench bench = bench_open();
    for (int T = 1024; T <= 65536; T *= 4) bench_tssa<bf16>(&bench, 65536 / T, T, 768);
    for (int T = 1024; T <= 65536; T *= 4) bench_tssa<float>(&bench, 65536 / T, T, 768);
    bench_choice<TSSA_WARPS, TSSA_BLOCKS>(&bench);
    bench_choice<6, 4>(&bench);
    bench_choice<7, 3>(&bench);
    bench_choice<8, 3>(&bench);
    bench_choice<12, 2>(&bench);
    bench_close(&bench);
    return 0;
}
