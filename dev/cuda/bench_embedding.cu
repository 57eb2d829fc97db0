// bench_embedding.cu: embedding forward and backward with 65,536 tokens distributed by Zipf's law.
#include "bench.cuh"

static void bench_embedding(Bench* bench, int B, int T) {
    const int C = 768, V = 50304, rows = B * T;
    const cudaStream_t stream = bench->stream;
    std::vector<int32_t> input(step_input_size(rows)), counts(V);
    StepHeader header = {};
    const StepInput host = step_input(input.data(), rows);
    uint64_t state = 1;
    for (int i = 0; i < rows; i++) {   // id = V^u - 1 with u uniform: probability about 1/(id + 1)
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        host.inputs[i] = (int32_t)std::min((double)V - 1, pow((double)V, (state >> 11) * 0x1p-53) - 1);
    }
    embed_order(&header, host, counts.data(), rows, V);
    memcpy(input.data(), &header, sizeof header);
    int32_t* device = bench_upload(bench, input);
    const StepInput s = step_input(device, rows);
    const StepHeader* step = (const StepHeader*)device;
    const float *wte = bench_random<float>(bench, (size_t)V * C, 0, 1),
                *wpe = bench_random<float>(bench, (size_t)T * C, 0, 1);
    const float* dx = bench_random<float>(bench, (size_t)rows * C, 0, 1e-3f);
    float *x = bench_buffer<float>(bench, (size_t)rows * C),
          *dwte = bench_buffer<float>(bench, (size_t)V * C);
    float *dwpe = bench_buffer<float>(bench, (size_t)T * C),
          *partial = bench_buffer<float>(bench, (size_t)(rows / (EMBED_SEGMENT / 2) + 1) * C);
    size_t distinct = 0, row_bytes = C * sizeof(float);
    std::vector<char> seen(V);
    for (int i = 0; i < rows; i++) {
        distinct += !seen[host.inputs[i]];
        seen[host.inputs[i]] = 1;
    }
    char size[64];
    snprintf(size, sizeof size, "B %d T %d, %zu tokens", B, T, distinct);
    bench_report(bench, "embedding_forward", size, (double)row_bytes * (rows + distinct + T),
                 [&] { embedding_forward(stream, x, s.inputs, wte, wpe, step, B, T, C); });
    bench_report(bench, "embedding_backward", size, (double)row_bytes * (rows + 2 * distinct + T), [&] {
        embedding_backward(stream, dwte, dwpe, partial, dx,
                           {s.order, s.start, s.dest, s.big_token, s.big_first}, step, T, B, T, C, false);
    });
    bench_free_buffers(bench);
}

int main() {
    Bench bench = bench_open();
    bench_embedding(&bench, 64, 1024);
    bench_embedding(&bench, 1, 65536);
    bench_close(&bench);
    return 0;
}
