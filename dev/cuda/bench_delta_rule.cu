// bench_delta_rule.cu: the memory of --memory 1, forward and backward, for tost-base with 65,536 tokens in many short
// sequences and in one long one, and with heads of 128 and 256 channels.
#include "bench.cuh"

template <typename S> static void bench_delta_rule(Bench* bench, int B, int T, int NH) {
    const int C = 768, HS = C / NH;
    const size_t rows = (size_t)B * T;
    const cudaStream_t stream = bench->stream;
    DeltaRule<S> a = {};
    a.B = B, a.T = T, a.C = C, a.NH = NH, a.HS = HS, a.columns = delta_rule_columns(B, NH, HS);
    const size_t parts = a.parts = div_up(HS, a.columns), width = parts * a.columns;
    a.z = bench_random<S>(bench, rows * C, 0, 0.5f);
    a.dy = bench_random<S>(bench, rows * C, 0, 1e-3f);
    a.pi = bench_random<float>(bench, rows * NH, 1.0f / NH, 0.01f);
    a.scale = bench_random<float>(bench, C, 0, 1e-3f);
    a.o = bench_buffer<S>(bench, rows * C);
    a.y = bench_buffer<S>(bench, rows * C);
    a.dz = bench_buffer<S>(bench, rows * C);
    a.G = bench_buffer<float>(bench, (size_t)B * C * HS);
    a.dpi = bench_buffer<float>(bench, rows * NH);
    a.dscale = bench_buffer<float>(bench, (size_t)B * C);
    a.dk_parts = bench_buffer<S>(bench, parts * (rows + B) * NH * width);
    a.dpi_parts = bench_buffer<float>(bench, parts * rows * NH);
    char size[64];
    snprintf(size, sizeof size, "%s B %d T %d C %d NH %d", bench_type<S>(), B, T, C, NH);
    const double unit = (double)rows * C * sizeof(S);   // each part of dk is one
    bench_report(bench, "delta_rule_forward", size, 4 * unit, [&] { delta_rule_forward(stream, a); });
    bench_report(bench, "delta_rule_backward", size, (4 + parts) * unit,
                 [&] { delta_rule_backward(stream, NULL, NULL, a); });
    bench_report(bench, "delta_rule_dz", size, (3 + parts) * unit, [&] { delta_rule_dz(stream, a); });
    bench_free_buffers(bench);
}

int main() {
    Bench bench = bench_open();
    for (int T = 1024; T <= 65536; T *= 64) bench_delta_rule<bf16>(&bench, 65536 / T, T, 12);
    for (int NH = 6; NH >= 3; NH /= 2) bench_delta_rule<bf16>(&bench, 64, 1024, NH);
    bench_delta_rule<float>(&bench, 64, 1024, 12);
    bench_close(&bench);
    return 0;
}
