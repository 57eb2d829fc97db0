// bench.c: benchmark of the CPU engine, and of the machine's limits in the same run. Prints one line per result:
// `key value unit`.
//
//     bench limits             sgemm (large square product), memory reads
//     bench train [B T]        training steps of tost-base: tokens/s, matrix products alone, memory (default 1 1024)
//     bench decode             decode steps of tost-base at several positions, compared with memory reads
//     bench dtypes             training and decode steps of tost-base in bf16 and in float32, alternating
//     bench tssa               TSSA forward + backward at several lengths T, with the same B·T
//
// Times are medians. Measurements that are compared alternate, because other programs may use the machine.

#define TOST_NO_MAIN
#include "tost/base/clock.h"
#include "tost/base/error.h"
#include "tost/base/memory.h"
#include "train_gpt_tost.c"

#include <sys/resource.h>

#include "tost/init.h"
#include "tost/pieces.h"
#include "tost/base/rng.h"

// ---------------------------------------------------------------------------------------------
// Helpers

static int compare_doubles(const void* a, const void* b) {
    const double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

static double median(double* x, int n) {
    qsort(x, n, sizeof *x, compare_doubles);
    return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

static void report(const char* key, double value, const char* unit) {
    printf("%-28s %12.4g %s\n", key, value, unit);
    fflush(stdout);
}

static void report_library(void) {
    char name[64];
    printf("%-28s %s\n", "matmul_library", gemm_library(name, sizeof name, false));
}

static float* random_floats(size_t n, double scale) {
    Rng rng = rng_seeded(1, n);
    float* x = alloc_pages(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (float)(scale * (rng_uniform(&rng) - 0.5));
    return x;
}

static TostModel* new_base(int B, int T, bool training, TostDtype dtype) {
    const TostPreset* preset = tost_preset_find("tost-base");
    const TostEngineOptions o = {.max_batch = B, .max_piece = T, .states = 1, .training = training, .dtype = dtype};
    TostConfig config = preset->config;
    TostError err;
    if (T > config.block_size) config.block_size = T;
    TostModel* m = tost_cpu_engine.create(&config, &o, &err);
    if (!m) { fprintf(stderr, "bench: %s\n", err.text); exit(STATUS_FAILED); }
    init_params(&tost_cpu_engine, m, &m->tensors, config.n_layer, 1);
    return m;
}

// ---------------------------------------------------------------------------------------------
// Limits

// GB/s of summing a buffer larger than any cache, with all threads.
static double read_bandwidth(const float* x, size_t n) {
    const double start = now_seconds();
    double total = 0;
    #pragma omp parallel for simd schedule(static) reduction(+ : total)
    for (size_t i = 0; i < n; i++) total += x[i];
    const double seconds = now_seconds() - start;
    volatile double sink = total;   // prevents the compiler from removing the sum
    (void)sink;
    return n * sizeof *x / seconds / 1e9;
}

static void bench_limits(void) {
    enum { N = 3072, RUNS = 5 };
    const size_t n = (size_t)1 << 27;
    const size_t size = (size_t)N * N;
    float *a = random_floats(size, 1), *b = random_floats(size, 1), *c = random_floats(size, 1);
    float* x = random_floats(n, 1);
    double gflops[RUNS], gbs[RUNS];
    gemm(c, a, false, b, true, N, N, N, 0.0f);
    for (int i = 0; i < RUNS; i++) {
        const double start = now_seconds();
        gemm(c, a, false, b, true, N, N, N, 0.0f);
        gflops[i] = 2.0 * N * N * N / (now_seconds() - start) / 1e9;
        gbs[i] = read_bandwidth(x, n);
    }
    report_library();
    report("sgemm", median(gflops, RUNS), "GFLOP/s");
    report("memory_read", median(gbs, RUNS), "GB/s");
}

// ---------------------------------------------------------------------------------------------
// Training

// Seconds for the matrix products of one training step alone, on the model's buffers and weights.
static double matmuls_alone(TostModel* m, size_t rows) {
    const TostConfig* c = &m->config;
    const int C = c->n_embd, V = c->vocab_size;
    const size_t block = even_block(rows, m->logits_rows);
    const Buffers* b = &m->buf;
    const double start = now_seconds();
    for (int l = 0; l < c->n_layer; l++) {
        const TostParams p = model_params(m, TOST_PARAM, l), g = model_params(m, TOST_GRAD, l);
        const LayerActivations* a = &m->layer[l];
        linear_forward(b->scratch_btc, a->ln_1, weight(m, p.attn_w), NULL, rows, C, C);
        linear_forward(b->scratch_btc, a->y, weight(m, p.attn_proj_w), NULL, rows, C, C);
        linear_forward(b->scratch_bt4c, a->ln_2, weight(m, p.fc_w), NULL, rows, C, 4 * C);
        linear_forward(b->scratch_btc, a->gelu, weight(m, p.fc_proj_w), NULL, rows, 4 * C, C);
        linear_backward(b->scratch_bt4c, g.fc_proj_w, NULL, b->dbranch, a->gelu, weight(m, p.fc_proj_w), rows, 4 * C,
                        C);
        linear_backward(b->scratch_btc, g.fc_w, NULL, b->scratch_bt4c, a->ln_2, weight(m, p.fc_w), rows, C, 4 * C);
        linear_backward(b->scratch_btc, g.attn_proj_w, NULL, b->dbranch, a->y, weight(m, p.attn_proj_w), rows, C, C);
        linear_backward(b->scratch_btc, g.attn_w, NULL, b->dbranch, a->ln_1, weight(m, p.attn_w), rows, C, C);
    }
    const TostParams g = model_params(m, TOST_GRAD, 0);
    for (size_t row = 0; row < rows; row += block) {
        const size_t n = rows - row < block ? rows - row : block;
        linear_forward(b->logits, b->ln_f, classifier_weight(m), NULL, n, C, V);
        linear_backward(b->scratch_btc, g.wte, NULL, b->logits, b->ln_f, classifier_weight(m), n, C, V);
    }
    return now_seconds() - start;
}

static double one_step(TostModel* m, const int32_t* ids, int B, int T, int step) {
    const TostEngine* e = &tost_cpu_engine;
    const TostAdamW a = {.lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.01,
                         .grad_scale = 1, .step = step};
    const TostPiece piece = {ids, ids + 1, B, T, 0};
    double sum;
    int64_t count;
    const double start = now_seconds();
    e->zero_grad(m);
    e->train(m, &piece, TOST_NO_STATE, 1.0f / (float)(B * T));
    e->backward(m, TOST_NO_STATE, TOST_NO_STATE, TOST_STEP_ENDS);
    e->grad_norm(m);
    e->update(m, &a);
    e->read_loss(&sum, &count, m);
    return now_seconds() - start;
}

static void bench_train(int B, int T) {
    enum { RUNS = 5 };
    TostModel* m = new_base(B, T, true, TOST_FP32);
    const size_t rows = (size_t)B * T;
    double step[RUNS], matmul[RUNS], share[RUNS];
    Rng rng = rng_seeded(2, 0);
    int32_t* ids = xmalloc((rows + 1) * sizeof *ids);
    for (size_t i = 0; i <= rows; i++) ids[i] = (int32_t)rng_below(&rng, 50257);
    one_step(m, ids, B, T, 1);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    for (int i = 0; i < RUNS; i++) {
        step[i] = one_step(m, ids, B, T, 2 + i);
        matmul[i] = matmuls_alone(m, rows);
        share[i] = matmul[i] / step[i];
    }
    report_library();
    report("train", rows / median(step, RUNS), "tokens/s");
    report("train_matmuls_alone", rows / median(matmul, RUNS), "tokens/s");
    report("train_share_of_matmuls", median(share, RUNS), "");
    report("train_memory", usage.ru_maxrss / 1e6 * 1.024, "GB");
    free(ids);
    tost_cpu_engine.destroy(m);
}

// ---------------------------------------------------------------------------------------------
// Decode

static void bench_decode(void) {
    enum { STEPS = 24 };
    const int positions[] = {10, 128, 500, 1000};
    TostModel* m = new_base(1, 1000, false, TOST_FP32);
    const double bytes = (m->tensors.n_params - (double)m->config.block_size * m->config.n_embd) * sizeof(float);
    float* logits = xmalloc(m->config.vocab_size * sizeof *logits);
    int32_t* prompt = xcalloc(1000, sizeof *prompt);
    for (size_t i = 0; i < countof(positions); i++) {
        double seconds[STEPS], gbs[STEPS];
        char key[32];
        Pieces pieces = {.engine = &tost_cpu_engine, .model = m, .max_piece = 1000};
        pieces_begin(&pieces, 1);
        pieces_read(logits, &pieces, prompt, positions[i] - STEPS / 2 < 1 ? 1 : positions[i] - STEPS / 2);
        for (int j = 0; j < STEPS; j++) {
            const double start = now_seconds();
            pieces_read(logits, &pieces, prompt, 1);
            seconds[j] = now_seconds() - start;
            gbs[j] = read_bandwidth(m->array[TOST_PARAM], m->tensors.flat_size);
        }
        const double rate = 1 / median(seconds, STEPS);
        snprintf(key, sizeof key, "decode_at_%d", positions[i]);
        report(key, rate, "tokens/s");
        snprintf(key, sizeof key, "decode_bandwidth_at_%d", positions[i]);
        report(key, rate * bytes / 1e9 / median(gbs, STEPS), "of memory_read");
    }
    free(prompt);
    free(logits);
    tost_cpu_engine.destroy(m);
}

// ---------------------------------------------------------------------------------------------
// bf16 against float32

enum { DTYPE_RUNS = 5 };
static const struct { const char* name; TostDtype dtype; } dtypes[] = {{"fp32", TOST_FP32}, {"bf16", TOST_BF16}};

// seconds (2,DTYPE_RUNS) of the two dtypes, which alternate
static void report_dtypes(const char* what, double seconds[2][DTYPE_RUNS], double tokens) {
    double ratio[DTYPE_RUNS];
    char key[64];
    for (int i = 0; i < DTYPE_RUNS; i++) ratio[i] = seconds[0][i] / seconds[1][i];
    for (int d = 0; d < 2; d++) {
        snprintf(key, sizeof key, "%s_%s", what, dtypes[d].name);
        report(key, tokens / median(seconds[d], DTYPE_RUNS), "tokens/s");
    }
    snprintf(key, sizeof key, "%s_bf16_against_fp32", what);
    report(key, median(ratio, DTYPE_RUNS), "x");
}

static void bench_dtypes_train(int B, int T) {
    const size_t rows = (size_t)B * T;
    double seconds[2][DTYPE_RUNS], matmuls[2][DTYPE_RUNS];
    TostModel* m[2];
    int32_t* ids = xmalloc((rows + 1) * sizeof *ids);
    Rng rng = rng_seeded(2, 0);
    for (size_t i = 0; i <= rows; i++) ids[i] = (int32_t)rng_below(&rng, 50257);
    for (int d = 0; d < 2; d++) {
        m[d] = new_base(B, T, true, dtypes[d].dtype);
        one_step(m[d], ids, B, T, 1);
    }
    for (int run = 0; run < DTYPE_RUNS; run++)
        for (int d = 0; d < 2; d++) {
            seconds[d][run] = one_step(m[d], ids, B, T, 2 + run);
            matmuls[d][run] = matmuls_alone(m[d], rows);
        }
    report_dtypes("train", seconds, (double)rows);
    report_dtypes("matmuls_alone", matmuls, (double)rows);
    for (int d = 0; d < 2; d++) tost_cpu_engine.destroy(m[d]);
    free(ids);
}

static void bench_dtypes_decode(void) {
    enum { STEPS = 16 };
    double seconds[2][DTYPE_RUNS];
    TostModel* m[2];
    const int32_t token = 1;
    for (int d = 0; d < 2; d++) m[d] = new_base(1, 128, false, dtypes[d].dtype);
    float* logits = xmalloc(m[0]->config.vocab_size * sizeof *logits);
    for (int run = 0; run < DTYPE_RUNS; run++)
        for (int d = 0; d < 2; d++) {
            Pieces pieces = {.engine = &tost_cpu_engine, .model = m[d], .max_piece = 1};
            pieces_begin(&pieces, 1);
            pieces_read(logits, &pieces, &token, 1);
            const double start = now_seconds();
            for (int i = 0; i < STEPS; i++) pieces_read(logits, &pieces, &token, 1);
            seconds[d][run] = now_seconds() - start;
        }
    report_dtypes("decode", seconds, STEPS);
    for (int d = 0; d < 2; d++) tost_cpu_engine.destroy(m[d]);
    free(logits);
}

// ---------------------------------------------------------------------------------------------
// TSSA

// Seconds of one forward and backward pass, with dy in scratch_btc.
static double tssa_once(TostModel* m, int B, int T) {
    m->piece = (TostPiece){.B = B, .T = T};
    Tssa tssa = layer_tssa_grads(m, 0, start_state(m, TOST_NO_STATE, TOST_NO_STATE, 0));
    tssa.state = tssa.adjoint;
    const double start = now_seconds();
    tssa_forward(&tssa);
    tssa_backward(&tssa);
    return now_seconds() - start;
}

static void bench_tssa(void) {
    enum { RUNS = 9, TOKENS = 65536 };
    const int lengths[] = {1024, 4096, 16384, 65536};
    TostModel* m[countof(lengths)];
    double seconds[countof(lengths)][RUNS];
    for (size_t i = 0; i < countof(lengths); i++) {   // one layer of tost-base; B·T = TOKENS
        const int T = lengths[i], B = TOKENS / T;
        const TostConfig c = {.n_layer = 1, .n_head = 12, .n_embd = 768, .block_size = T, .vocab_size = 64};
        const TostEngineOptions o = {.max_batch = B, .max_piece = T, .training = true};
        TostError err;
        m[i] = tost_cpu_engine.create(&c, &o, &err);
        if (!m[i]) { fprintf(stderr, "bench: %s\n", err.text); exit(STATUS_FAILED); }
        init_params(&tost_cpu_engine, m[i], &m[i]->tensors, 1, 1);
        Rng rng = rng_seeded(3, 0);
        for (size_t j = 0; j < (size_t)TOKENS * c.n_embd; j++) {
            m[i]->layer[0].w[j] = (float)(rng_uniform(&rng) - 0.5);
            m[i]->buf.scratch_btc[j] = (float)(rng_uniform(&rng) - 0.5);
        }
        tssa_once(m[i], B, T);
    }
    for (int run = 0; run < RUNS; run++)
        for (size_t i = 0; i < countof(lengths); i++)
            seconds[i][run] = tssa_once(m[i], TOKENS / lengths[i], lengths[i]);
    for (size_t i = 0; i < countof(lengths); i++) {
        char key[32];
        snprintf(key, sizeof key, "tssa_at_%d", lengths[i]);
        report(key, median(seconds[i], RUNS) * 1e6 / TOKENS, "us/token");
        tost_cpu_engine.destroy(m[i]);
    }
}

int main(int argc, char** argv) {
    if (argc == 2 && strcmp(argv[1], "limits") == 0) bench_limits();
    else if (argc == 2 && strcmp(argv[1], "train") == 0) bench_train(1, 1024);
    else if (argc == 4 && strcmp(argv[1], "train") == 0) bench_train(atoi(argv[2]), atoi(argv[3]));
    else if (argc == 2 && strcmp(argv[1], "decode") == 0) bench_decode();
    else if (argc == 2 && strcmp(argv[1], "dtypes") == 0) bench_dtypes_train(1, 1024), bench_dtypes_decode();
    else if (argc == 2 && strcmp(argv[1], "tssa") == 0) bench_tssa();
    else {
        fprintf(stderr, "usage: bench limits | train [B T] | decode | dtypes | tssa\n");
        return STATUS_USAGE;
    }
    return 0;
}
