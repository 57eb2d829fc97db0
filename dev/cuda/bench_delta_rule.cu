// bench_delta_rule.cu: the memory of --memory 1, forward and backward, for tost-base with 65,536 tokens in many short
// sequences, in a few longer ones and in one, and with heads of 128 and 256 channels. Sequences that the engine divides
// into segments are then measured in one segment, too. Where that is faster, DELTA_SEGMENTS is too small.
#include "bench.cuh"

template <typename S> static void bench_delta_rule(Bench* bench, int B, int T, int NH, bool one_segment) {
    const int C = 768, HS = C / NH;
    const size_t rows = (size_t)B * T;
    const cudaStream_t stream = bench->stream;
    DeltaRule<S> a = {};
    a.B = B, a.T = T, a.C = C, a.NH = NH, a.HS = HS, a.columns = delta_rule_columns(B, one_segment ? 1 : T, NH, HS);
    a.segment = one_segment ? T : delta_rule_segment(B, T, NH, HS);
    const size_t parts = a.parts = div_up(HS, a.columns), width = parts * a.columns,
                 segments = a.segments = div_up(T, a.segment);
    a.z = bench_random<S>(bench, rows * C, 0, 0.5f);
    a.dy = bench_random<S>(bench, rows * C, 0, 1e-3f);
    a.pi = bench_random<float>(bench, rows * NH, 1.0f / NH, 0.01f);
    a.scale = bench_random<float>(bench, C, 0, 1e-3f);
    a.o = bench_buffer<S>(bench, rows * C);
    a.y = bench_buffer<S>(bench, rows * C);
    a.dz = bench_buffer<S>(bench, rows * C);
    a.G = bench_buffer<float>(bench, 2 * segments * B * C * HS);
    a.dG = bench_buffer<float>(bench, segments * B * C * HS);
    a.dpi = bench_buffer<float>(bench, rows * NH);
    a.dscale = bench_buffer<float>(bench, segments * B * C);
    a.dk_parts = bench_buffer<S>(bench, parts * (rows + segments * B) * NH * width);
    a.dpi_parts = bench_buffer<float>(bench, parts * rows * NH);
    char size[80];
    snprintf(size, sizeof size, "%s B %d T %d C %d NH %d segments %d", bench_type<S>(), B, T, C, NH, a.segments);
    const double unit = (double)rows * C * sizeof(S);   // each part of dk is one
    bench_report(bench, "delta_rule_forward", size, 4 * unit, [&] { delta_rule_forward(stream, a); });
    bench_report(bench, "delta_rule_backward", size, (4 + parts) * unit,
                 [&] { delta_rule_backward(stream, NULL, NULL, a); });
    bench_report(bench, "delta_rule_dz", size, (3 + parts) * unit, [&] { delta_rule_dz(stream, a); });
    bench_free_buffers(bench);
    if (segments > 1) bench_delta_rule<S>(bench, B, T, NH, true);
}

int main() {
    Bench bench = bench_open();
    for (const int B : {64, 5, 4, 2, 1}) bench_delta_rule<bf16>(&bench, B, 65536 / B, 12, false);
    bench_delta_rule<bf16>(&bench, 1, 2048, 12, false);
    for (int NH = 6; NH >= 3; NH /= 2) bench_delta_rule<bf16>(&bench, 64, 1024, NH, false);
    bench_delta_rule<float>(&bench, 64, 1024, 12, false);
    bench_close(&bench);
    return 0;
}
