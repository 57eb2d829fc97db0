// bench_classifier.cu: softmax, loss and in-place gradient on one block of logits.
#include "bench.cuh"

template <typename S> static void bench_classifier(Bench* bench, int V) {
    const int ld = (int)logits_ld(V);
    const size_t rows = classifier_rows(65536, V, sizeof(S));
    S* logits = bench_random<S>(bench, rows * ld, 0, 2);
    float* loss = bench_buffer<float>(bench, rows);
    std::vector<int32_t> ids(rows);
    for (size_t i = 0; i < rows; i++) ids[i] = (int32_t)(i * 7919 % V);
    const int32_t* targets = bench_upload(bench, ids);
    PassHeader header = {};
    header.grad_scale = 1.0f;   // each round overwrites the logits with gradients, which stay in (-1, 1)
    std::vector<int32_t> words(PASS_HEADER);
    memcpy(words.data(), &header, sizeof header);
    const PassHeader* pass = (const PassHeader*)bench_upload(bench, words);
    const int threads = classifier_threads(V);
    prefer_shared(cross_entropy_kernel<S>, 0, 2 * CLASSIFIER_THREADS / threads);   // as in classify
    char size[64];
    snprintf(size, sizeof size, "%s rows %zu V %d", bench_type<S>(), rows, V);
    bench_report(bench, "cross_entropy", size, 2.0 * rows * V * sizeof(S), [&] {
        LAUNCH((cross_entropy_kernel<S>), (int)rows, threads, 0, bench->stream, loss, logits, targets,
               pass, true, V, ld);
    });
    bench_report(bench, "cross_entropy_loss", size, 1.0 * rows * V * sizeof(S), [&] {
        LAUNCH((cross_entropy_kernel<S>), (int)rows, threads, 0, bench->stream, loss, logits, targets,
               pass, false, V, ld);
    });
    bench_free_buffers(bench);
}

int main() {
    Bench bench = bench_open();
    for (int V : {50304, 50257, 2304}) bench_classifier<bf16>(&bench, V);
    bench_classifier<float>(&bench, 50304);
    bench_close(&bench);
    return 0;
}
