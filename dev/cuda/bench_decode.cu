// bench_decode.cu: one decode step of tost-base near the start of a sequence and far into it, including the
// copy of its logits to the host.
#define BENCH_ENGINE
#include "bench.cuh"

#include <chrono>

extern "C" {
#include "tost/init.h"
}

static void bench_decode(TostModel* m, int batch, int position) {
    enum { V = 50304, STEPS = 41 };
    std::vector<int32_t> ids((size_t)batch * position);
    std::vector<float> logits((size_t)batch * V);
    std::vector<double> seconds;
    for (size_t i = 0; i < ids.size(); i++) ids[i] = (int32_t)(i * 7919 % V);
    Pieces pieces = {};
    pieces.engine = &tost_cuda_engine;
    pieces.model = m;
    pieces.max_piece = 1000;
    pieces_begin(&pieces, batch);
    pieces_read(logits.data(), &pieces, ids.data(), position);
    for (int i = -5; i < STEPS; i++) {
        const auto start = std::chrono::steady_clock::now();
        pieces_read(logits.data(), &pieces, ids.data(), 1);
        const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
        if (i >= 0) seconds.push_back(spent.count());
    }
    std::nth_element(seconds.begin(), seconds.begin() + STEPS / 2, seconds.end());
    const double s = seconds[STEPS / 2];
    char size[64];
    snprintf(size, sizeof size, "bf16 B %d position %d", batch, position);
    printf("%-28s %-30s %9.1f us %8.0f tokens/s\n", "decode", size, s * 1e6, batch / s);
}

int main() {
    Bench bench = bench_open();
    TostConfig config = tost_preset_find("tost-base")->config;
    config.block_size = 2048;   // beyond the last position
    TostEngineOptions o = {};
    o.max_batch = 16;
    o.max_piece = 1000;
    o.states = 1;
    o.dtype = TOST_BF16;
    TostTensors tensors = tost_tensors(&config);
    TostError err;
    TostModel* m = tost_cuda_engine.create(&config, &o, &err);
    if (!m) {
        fprintf(stderr, "%s\n", err.text);
        return STATUS_FAILED;
    }
    init_params(&tost_cuda_engine, m, &tensors, config.n_layer, 1);
    for (int batch : {1, 16})
        for (int position : {10, 1000}) bench_decode(m, batch, position);
    tost_cuda_engine.destroy(m);
    tost_tensors_free(&tensors);
    bench_close(&bench);
    return 0;
}
