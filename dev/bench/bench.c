// bench.c: benchmark of the CPU engine, and of the machine's limits in the same run. Prints one line per result:
// `key value unit`.
//
//     bench limits             sgemm (large square product), memory reads
//     bench train              training steps of tost-base: tokens/s, matrix products alone, memory
//     bench decode             decode steps of tost-base at several positions, compared with memory reads
//     bench small              training starter and small without their options: one and all threads, PyTorch compiled
//     bench dtypes             train and decode in float32 and in bf16
//     bench tssa               TSSA forward + backward at several lengths T, with the same B·T
//     bench products           matrix products of training by shape: one thread against the peak of the FMA units, and
//                              up to 4 threads on one product against a product per thread
//     bench rows               matrix products of decoding 1 to 64 texts, on one thread, against their two bounds
//     bench memory             the delta rule of --memory 1, on one thread, against the peak of the FMA units
//     bench optimizers         AdamW and Muon: time and share of a training step
//
// Times are medians; the rates of `products` and `rows` are the highest of several runs. Measurements that are compared
// alternate, because other programs may use the machine.

#define TOST_NO_MAIN
#include "tost/base/clock.h"
#include "tost/base/error.h"
#include "tost/base/memory.h"
#include "train_gpt_tost.c"

#include <sys/resource.h>
#include <time.h>

#include "tost/init.h"
#include "tost/recipe.h"
#include "tost/chunks.h"
#include "tost/base/rng.h"

// ---------------------------------------------------------------------------------------------
// Helpers

enum { RUNS = 5 };   // of each measurement

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
    printf("%-28s %s\n", "matmul_library", gemm_library());
}

static float* random_floats(size_t n, double scale) {
    Rng rng = rng_seeded(1, n);
    float* x = alloc_pages(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (float)(scale * (rng_uniform(&rng) - 0.5));
    return x;
}

static TostModel* new_model(const TostConfig* config, int B, int T, bool training, TostDtype dtype,
                            TostOptimizer optimizer) {
    const TostEngineOptions o = {.max_batch = B, .max_chunk = T, .states = 1, .training = training, .dtype = dtype,
                                 .optimizer = optimizer};
    TostError err;
    TostModel* m = tost_cpu_engine.create(config, &o, &err);
    if (!m) { fprintf(stderr, "bench: %s\n", err.text); exit(STATUS_FAILED); }
    init_params(&tost_cpu_engine, m, &m->tensors, config->n_layer, 1);
    return m;
}

// T: at most the block size, 1,024
static TostModel* new_base(int B, int T, bool training, TostDtype dtype) {
    return new_model(&tost_presets[2].config, B, T, training, dtype, TOST_ADAMW);   // tost-base
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
    enum { N = 3072 };
    const size_t n = (size_t)1 << 27;
    const size_t size = (size_t)N * N;
    float *a = random_floats(size, 1), *b = random_floats(size, 1), *c = random_floats(size, 1);
    float* x = random_floats(n, 1);
    double gflops[RUNS], gbs[RUNS];
    gemm(c, f32(a), f32(b), GEMM_NT, N, N, N, GEMM_SET);
    for (int i = 0; i < RUNS; i++) {
        const double start = now_seconds();
        gemm(c, f32(a), f32(b), GEMM_NT, N, N, N, GEMM_SET);
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
    const Matrix ln_f = f32(b->ln_f), dlogits = {b->logits, b->dlogits_bf16}, dbranch = f32(b->dbranch);
    const Matrix dfc = {b->scratch_bt4c, b->dfc_bf16};
    const double start = now_seconds();
    for (int l = 0; l < c->n_layer; l++) {
        const TostParams p = model_params(m, TOST_PARAM, l), g = model_params(m, TOST_GRAD, l);
        const LayerActivations* a = &m->layer[l];
        const Matrix x = f32(a->ln_1), y = f32(a->y), mlp_in = f32(a->mlp_in), gelu = {a->gelu, a->gelu_bf16};
        linear_forward(b->scratch_btc, x, weight(m, p.attn_w), NULL, rows, C, C);
        linear_forward(b->scratch_btc, y, weight(m, p.attn_proj_w), NULL, rows, C, C);
        linear_forward(b->scratch_bt4c, mlp_in, weight(m, p.fc_w), NULL, rows, C, 4 * C);
        linear_forward(b->scratch_btc, gelu, weight(m, p.fc_proj_w), NULL, rows, 4 * C, C);
        linear_backward(b->scratch_bt4c, g.fc_proj_w, NULL, dbranch, gelu, weight(m, p.fc_proj_w), rows, 4 * C,
                        C);
        linear_backward(b->scratch_btc, g.fc_w, NULL, dfc, mlp_in, weight(m, p.fc_w), rows, C, 4 * C);
        linear_backward(b->scratch_btc, g.attn_proj_w, NULL, dbranch, y, weight(m, p.attn_proj_w), rows, C, C);
        linear_backward(b->scratch_btc, g.attn_w, NULL, dbranch, x, weight(m, p.attn_w), rows, C, C);
    }
    const TostParams g = model_params(m, TOST_GRAD, 0);
    const Matrix wte = weight(m, model_params(m, TOST_PARAM, 0).wte);
    for (size_t row = 0; row < rows; row += block) {
        const size_t n = rows - row < block ? rows - row : block;
        linear_forward(b->logits, ln_f, wte, NULL, n, C, V);
        linear_backward(b->scratch_btc, g.wte, NULL, dlogits, ln_f, wte, n, C, V);
    }
    return now_seconds() - start;
}

static TostUpdate update_of(int step) {
    return (TostUpdate){.lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.01, .clip = 1,
                        .step = step};
}

static double one_step(TostModel* m, const int32_t* ids, int B, int T, int step) {
    const TostEngine* e = &tost_cpu_engine;
    const TostUpdate a = update_of(step);
    const TostChunk chunk = {ids, ids + 1, B, T, 0};
    double sum;
    int64_t count;
    const double start = now_seconds();
    e->zero_grad(m);
    e->train_forward(m, &chunk, TOST_NO_STATE, 1.0f / (float)(B * T));
    e->train_backward(m, TOST_NO_STATE, TOST_NO_STATE, TOST_STEP_ENDS);
    e->grad_norm(m);
    e->update(m, &a);
    e->read_loss(&sum, &count, m);
    return now_seconds() - start;
}

// seconds (2,RUNS): float32, then bf16 if dtypes is 2
static void report_seconds(const char* what, double seconds[2][RUNS], int dtypes, double tokens) {
    double ratio[RUNS];
    char key[64];
    for (int i = 0; i < RUNS; i++) ratio[i] = dtypes == 2 ? seconds[0][i] / seconds[1][i] : 0;
    for (int d = 0; d < dtypes; d++) {
        snprintf(key, sizeof key, "%s%s", what, d ? "_bf16" : "");
        report(key, tokens / median(seconds[d], RUNS), "tokens/s");
    }
    snprintf(key, sizeof key, "%s_bf16_against_fp32", what);
    if (dtypes == 2) report(key, median(ratio, RUNS), "x");
}

static void bench_train(int dtypes) {
    enum { B = 1, T = 1024, rows = B * T };
    TostModel* m[2];
    double step[2][RUNS], matmul[2][RUNS], share[RUNS];
    Rng rng = rng_seeded(2, 0);
    int32_t* ids = xmalloc((rows + 1) * sizeof *ids);
    for (int i = 0; i <= rows; i++) ids[i] = (int32_t)rng_below(&rng, 50257);
    for (int d = 0; d < dtypes; d++) {
        m[d] = new_base(B, T, true, d ? TOST_BF16 : TOST_FP32);
        one_step(m[d], ids, B, T, 1);
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    for (int i = 0; i < RUNS; i++) {
        for (int d = 0; d < dtypes; d++) {
            step[d][i] = one_step(m[d], ids, B, T, 2 + i);
            matmul[d][i] = matmuls_alone(m[d], rows);
        }
        share[i] = matmul[0][i] / step[0][i];
    }
    report_library();
    report_seconds("train", step, dtypes, rows);
    report_seconds("train_matmuls_alone", matmul, dtypes, rows);
    report("train_share_of_matmuls", median(share, RUNS), "");
    report("train_memory", usage.ru_maxrss / 1e6 * 1.024, "GB");
    for (int d = 0; d < dtypes; d++) tost_cpu_engine.destroy(m[d]);
    free(ids);
}

// Sets the tokens/s of PyTorch compiled, in float32 and bf16, if PYTHON has it
static void peer_rates(double* fp32, double* bf16, const TostRecipe* p) {
    const TostConfig* c = &p->config;
    const char* python = getenv("PYTHON");
    char command[512], line[128];
    snprintf(command, sizeof command,
             "%s dev/bench/peers.py compiled compiled_bf16 --sizes %d %d %d %d --seq %d --tokens %d --runs 9 2>/dev/null",
             python ? python : "python3", c->n_layer, c->n_head, c->n_embd, c->vocab_size, p->seq, p->batch * p->seq);
    FILE* peers = popen(command, "r");
    while (peers && fgets(line, sizeof line, peers)) {
        sscanf(line, "compiled_tokens_per_s %lf", fp32);
        sscanf(line, "compiled_bf16_tokens_per_s %lf", bf16);
    }
    if (peers) pclose(peers);
}

static double train_rate(TostModel* m, const int32_t* ids, const TostRecipe* p, int threads) {
    enum { STEPS = 5 };
    m->threads.now = m->threads.max = threads;
    one_step(m, ids, p->batch, p->seq, 1);
    const double start = now_seconds();
    for (int i = 0; i < STEPS; i++) one_step(m, ids, p->batch, p->seq, 2 + i);
    return STEPS * (double)(p->batch * p->seq) / (now_seconds() - start);
}

// A preset as --conv 0 --memory 0 --optimizer adamw with one micro-batch per step
static void bench_small_preset(const TostRecipe* p) {
    enum { ROUNDS = 3 };
    const int tokens = p->batch * p->seq;
    TostConfig config = p->config;
    config.conv = config.memory = 0;
    TostModel* m[2];
    double one[2][ROUNDS], all[2][ROUNDS], gain[2][ROUNDS], peer[2][ROUNDS] = {{0}}, against[2][ROUNDS];
    Rng rng = rng_seeded(2, 0);
    int32_t* ids = xmalloc((tokens + 1) * sizeof *ids);
    for (int i = 0; i <= tokens; i++) ids[i] = (int32_t)rng_below(&rng, (uint64_t)config.vocab_size);
    for (int d = 0; d < 2; d++)
        m[d] = new_model(&config, p->batch, p->seq, true, d ? TOST_BF16 : TOST_FP32, TOST_ADAMW);
    const int threads = m[0]->threads.max;
    for (int r = 0; r < ROUNDS; r++) {
        peer_rates(&peer[0][r], &peer[1][r], p);
        for (int d = 0; d < 2; d++) {
            one[d][r] = train_rate(m[d], ids, p, 1);
            all[d][r] = train_rate(m[d], ids, p, threads);
            gain[d][r] = all[d][r] / one[d][r];
            against[d][r] = peer[d][r] > 0 ? all[d][r] / peer[d][r] : 0;
        }
    }
    for (int d = 0; d < 2; d++) {
        printf("%-8s %s  %8.0f tokens/s with 1 thread, %8.0f with %d (%.2f x); ",
               choice_name(TOST_PRESETS, p->preset).text, d ? "bf16" : "fp32",
               median(one[d], ROUNDS), median(all[d], ROUNDS), threads, median(gain[d], ROUNDS));
        if (peer[d][0] > 0) printf("PyTorch %.0f (%.2f x)\n", median(peer[d], ROUNDS), median(against[d], ROUNDS));
        else printf("no PyTorch\n");
        fflush(stdout);
        tost_cpu_engine.destroy(m[d]);
    }
    free(ids);
}

// Seconds of an optimizer step, and its share of a training step of the preset. A step computes total_batch tokens, so
// the time of a micro-batch is multiplied.
static void bench_optimizer(const TostRecipe* p, TostOptimizer optimizer, TostDtype dtype) {
    const int B = p->batch, T = p->seq;
    TostModel* m = new_model(&p->config, B, T, true, dtype, optimizer);
    Rng rng = rng_seeded(2, 0);
    int32_t* ids = xmalloc(((size_t)B * T + 1) * sizeof *ids);
    for (int i = 0; i <= B * T; i++) ids[i] = (int32_t)rng_below(&rng, (uint64_t)p->config.vocab_size);
    double update[RUNS], share[RUNS];
    one_step(m, ids, B, T, 1);
    for (int i = 0; i < RUNS; i++) {
        const double both = one_step(m, ids, B, T, 2 + i), start = now_seconds();
        const TostUpdate a = update_of(2 + RUNS + i);
        tost_cpu_engine.update(m, &a);
        update[i] = now_seconds() - start;
        share[i] = update[i] / ((both - update[i]) * (double)p->total_batch / ((double)B * T) + update[i]);
    }
    printf("%-12s %-6s %-5s %10.2f ms  %6.3f %% of a step of %lld tokens\n",
           choice_name(TOST_PRESETS, p->preset).text, optimizer == TOST_MUON ? "Muon" : "AdamW",
           dtype == TOST_BF16 ? "bf16" : "fp32",
           1e3 * median(update, RUNS), 100 * median(share, RUNS), (long long)p->total_batch);
    fflush(stdout);
    tost_cpu_engine.destroy(m);
    free(ids);
}

static void bench_optimizers(void) {
    for (int i = 0; i < 3; i++)   // starter, small, tost-base
        for (int dtype = TOST_FP32; dtype <= TOST_BF16; dtype += TOST_BF16 - TOST_FP32)
            for (int optimizer = TOST_ADAMW; optimizer <= TOST_MUON; optimizer++)
                bench_optimizer(&tost_presets[i], (TostOptimizer)optimizer, (TostDtype)dtype);
}

// ---------------------------------------------------------------------------------------------
// Decode

static void bench_decode(int dtypes) {
    enum { STEPS = 5, LENGTH = 1000 };   // steps of a run
    const int positions[] = {10, 128, 500, 1000};
    TostModel* m[2];
    for (int d = 0; d < dtypes; d++) m[d] = new_base(1, LENGTH, false, d ? TOST_BF16 : TOST_FP32);
    const TostConfig* c = &m[0]->config;
    const double bytes = (m[0]->tensors.n_params - (double)c->block_size * c->n_embd) * sizeof(float);
    float* logits = xmalloc(c->vocab_size * sizeof *logits);
    int32_t* prompt = xcalloc(LENGTH, sizeof *prompt);
    for (size_t p = 0; p < countof(positions); p++) {
        const int before = positions[p] - STEPS * RUNS / 2;
        double seconds[2][RUNS], gbs[RUNS];
        char key[32];
        Chunks chunks[2];
        for (int d = 0; d < dtypes; d++) {
            chunks[d] = (Chunks){.engine = &tost_cpu_engine, .model = m[d], .max_chunk = LENGTH};
            chunks_begin(&chunks[d], 1);
            chunks_read(logits, &chunks[d], prompt, before < 1 ? 1 : before);
        }
        for (int i = 0; i < RUNS; i++) {
            for (int d = 0; d < dtypes; d++) {
                const double start = now_seconds();
                for (int j = 0; j < STEPS; j++) chunks_read(logits, &chunks[d], prompt, 1);
                seconds[d][i] = now_seconds() - start;
            }
            gbs[i] = read_bandwidth(m[0]->array[TOST_PARAM], m[0]->tensors.flat_size);
        }
        snprintf(key, sizeof key, "decode_at_%d", positions[p]);
        report_seconds(key, seconds, dtypes, STEPS);
        snprintf(key, sizeof key, "decode_bandwidth_at_%d", positions[p]);
        report(key, STEPS / median(seconds[0], RUNS) * bytes / 1e9 / median(gbs, RUNS), "of memory_read");
    }
    for (int d = 0; d < dtypes; d++) tost_cpu_engine.destroy(m[d]);
    free(prompt);
    free(logits);
}

// ---------------------------------------------------------------------------------------------
// TSSA

// Seconds of one forward and backward pass, with dy in scratch_btc.
static double tssa_once(TostModel* m, int B, int T) {
    m->chunk = (TostChunk){.B = B, .T = T};
    double* state = start_state(m, TOST_NO_STATE, TOST_NO_STATE, 0).tssa;   // and adjoint
    const Tssa tssa = layer_tssa(m, 0, state, state);
    const double start = now_seconds();
    tssa_forward(&tssa);
    tssa_backward(&tssa);
    return now_seconds() - start;
}

static void bench_tssa(void) {
    enum { PASSES = 9, TOKENS = 65536 };
    const int lengths[] = {1024, 4096, 16384, 65536};
    TostModel* m[countof(lengths)];
    double seconds[countof(lengths)][PASSES];
    for (size_t i = 0; i < countof(lengths); i++) {   // one layer of tost-base; B·T = TOKENS
        const int T = lengths[i], B = TOKENS / T;
        const TostConfig c = {.n_layer = 1, .n_head = 12, .n_embd = 768, .block_size = T, .vocab_size = 64};
        m[i] = new_model(&c, B, T, true, TOST_FP32, TOST_ADAMW);
        Rng rng = rng_seeded(3, 0);
        for (size_t j = 0; j < (size_t)TOKENS * c.n_embd; j++) {
            m[i]->layer[0].z[j] = (float)(rng_uniform(&rng) - 0.5);
            m[i]->buf.scratch_btc[j] = (float)(rng_uniform(&rng) - 0.5);
        }
        tssa_once(m[i], B, T);
    }
    for (int run = 0; run < PASSES; run++)
        for (size_t i = 0; i < countof(lengths); i++)
            seconds[i][run] = tssa_once(m[i], TOKENS / lengths[i], lengths[i]);
    for (size_t i = 0; i < countof(lengths); i++) {
        char key[32];
        snprintf(key, sizeof key, "tssa_at_%d", lengths[i]);
        report(key, median(seconds[i], PASSES) * 1e6 / TOKENS, "us/token");
        tost_cpu_engine.destroy(m[i]);
    }
}

// ---------------------------------------------------------------------------------------------
// Matrix products: GFLOP/s of thread CPU time, the most of the repetitions

typedef struct { int M, N, K; GemmLayout layout; } Shape;

static const struct { const char* what; int in, out; } layers[] = {   // of 1,024 rows
    {"base attention", 768, 768}, {"base fc", 768, 3072}, {"base fc_proj", 3072, 768}, {"base classifier", 768, 50304},
    {"starter attention", 128, 128}, {"starter fc", 128, 512}, {"starter fc_proj", 512, 128},
};

static double thread_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

// The widest vectors of the build, and as many independent sums as its registers hold.
#ifdef __AVX512F__
enum { LANES = 16, SUMS = 24 };
#define IN_REGISTER "+v"
#elif defined(__aarch64__)
enum { LANES = 4, SUMS = 12 };
#define IN_REGISTER "+w"
#else
enum { LANES = 8, SUMS = 12 };
#define IN_REGISTER "+x"
#endif
typedef float Vec __attribute__((vector_size(LANES * sizeof(float))));

// Multiply-adds on registers only: GFLOP/s of one thread
static double fma_peak(void) {
    enum { ROUNDS = 20000 };
    const Vec half = (Vec){0} + 0.5f;
    Vec x[SUMS];
#pragma GCC unroll 24
    for (int i = 0; i < SUMS; i++) x[i] = half;
    const double start = thread_seconds();
    for (int round = 0; round < ROUNDS; round++)
#pragma GCC unroll 24
        for (int i = 0; i < SUMS; i++) {
            x[i] = x[i] * half + half;
            __asm__ volatile("" : IN_REGISTER(x[i]));   // each is computed
        }
    return 2.0 * ROUNDS * SUMS * LANES / (thread_seconds() - start) / 1e9;
}

// Operands are in float32. In bf16 they are rounded, as training does with those that it does not store in bf16.
static double product_gflops(bool bf16, const Shape* p, float* c, const float* a, const float* b) {
    const double flop = 2.0 * p->M * p->N * p->K;
    const int inner = flop < 1e8 ? (int)(1e8 / flop) + 1 : 1;
    const double start = thread_seconds();
    for (int i = 0; i < inner; i++)
        (bf16 ? gemm_bf16 : gemm)(c, f32(a), f32(b), p->layout, p->M, p->N, p->K, p->layout == GEMM_TN);
    return flop * inner / (thread_seconds() - start) / 1e9;
}

// GFLOP/s by wall time of `inner` products, one after the other. apart: each thread computes its own products alone;
// otherwise all threads share each product. Sharing is measured outside of a parallel region, even of one thread,
// because OpenMP would start new threads for every product in it.
static double wall_gflops(int threads, bool apart, const Shape* p, float* const* c, float* const* a, float* const* b) {
    const double flop = 2.0 * p->M * p->N * p->K;
    const int inner = (int)fmax(1, 4e8 / flop);
    const double start = now_seconds();
    if (apart) {
        #pragma omp parallel for schedule(static) num_threads(threads)
        for (int t = 0; t < threads; t++)
            for (int i = 0; i < inner; i++)
                gemm(c[t], f32(a[t]), f32(b[t]), p->layout, p->M, p->N, p->K, p->layout == GEMM_TN);
    } else {
        for (int i = 0; i < inner; i++) gemm(*c, f32(*a), f32(*b), p->layout, p->M, p->N, p->K, p->layout == GEMM_TN);
    }
    return (apart ? threads : 1) * flop * inner / (now_seconds() - start) / 1e9;
}

static void bench_products(void) {
    enum { MOST = 4 };   // operands of the largest shape take 600 MB
    const int threads = threads_max() < MOST ? threads_max() : MOST;
    float *a[MOST], *b[MOST], *c[MOST];
    for (int t = 0; t < threads; t++) {
        const size_t n = (size_t)1024 * 50304;
        a[t] = random_floats(n, 2), b[t] = random_floats(n, 2), c[t] = random_floats(n, 2);
    }
    report_library();
    printf("%-18s %6s %6s %6s    1 thread  of peak      bf16  bf16/float32   %d threads  of %d products at once\n",
           "GFLOP/s", "M", "N", "K", threads, threads);
    for (size_t s = 0; s < 3 * countof(layers); s++) {
        const int rows = 1024, in = layers[s / 3].in, out = layers[s / 3].out;
        const Shape shapes[] = {
            {rows, out, in, GEMM_NT}, {rows, in, out, GEMM_NN}, {out, in, rows, GEMM_TN}};
        const Shape* p = &shapes[s % 3];   // forward, gradient of the input, gradient of the weights
        double best[2] = {0}, peak = 0, together = 0, apart = 0;
        const double repeats = fmin(60, fmax(5, 1e11 / p->M / p->N / p->K));
        threads_set(1);
        for (int r = 0; r < repeats; r++) {
            peak = fmax(peak, fma_peak());
            for (int bf16 = 0; bf16 < 2; bf16++)
                best[bf16] = fmax(best[bf16], product_gflops(bf16, p, *c, *a, *b));
        }
        threads_set(threads);
        for (int r = 0; r < repeats; r++) {
            together = fmax(together, wall_gflops(threads, false, p, c, a, b));
            apart = fmax(apart, wall_gflops(threads, true, p, c, a, b));
        }
        printf("%-18s %6d %6d %6d     %7.1f  %7.2f   %7.1f       %7.2f     %7.1f  %7.2f\n", layers[s / 3].what, p->M,
               p->N, p->K, best[0], best[0] / peak, best[1], best[1] / best[0], together, together / apart);
    }
}

// ---------------------------------------------------------------------------------------------
// Products of few rows with the weights of one layer of tost-base after the other, as when several texts are decoded, on
// one thread. The bounds: reading the weights at the rate of one row, and arithmetic at the rate of a square product.

static double weights_gflops(TostModel* m, float* y, const float* x, int rows) {
    const int C = m->config.n_embd, L = m->config.n_layer;
    const double start = thread_seconds();
    for (int l = 0; l < L; l++) {
        const TostParams p = model_params(m, TOST_PARAM, l);
        times_weight(y, f32(x), weight(m, p.attn_w), rows, C, C, GEMM_SET);
        times_weight(y, f32(x), weight(m, p.attn_proj_w), rows, C, C, GEMM_SET);
        times_weight(y, f32(x), weight(m, p.fc_w), rows, C, 4 * C, GEMM_SET);
        times_weight(y, f32(x), weight(m, p.fc_proj_w), rows, 4 * C, C, GEMM_SET);
    }
    return 2.0 * rows * L * 10 * C * C / (thread_seconds() - start) / 1e9;
}

static void bench_rows(void) {
    enum { REPEATS = 15 };
    const int counts[] = {1, 2, 4, 8, 16, 32, 64};
    const Shape square = {768, 768, 768, GEMM_NT};
    float *x = random_floats(768 * 768, 1), *y = random_floats(768 * 768, 1), *c = random_floats(768 * 768, 1);
    TostModel* m[2] = {new_base(1, 1, false, TOST_FP32), new_base(1, 1, false, TOST_BF16)};
    double best[2][countof(counts)] = {{0}}, arithmetic[2] = {0};
    threads_set(1);
    for (int r = 0; r < REPEATS; r++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            arithmetic[bf16] = fmax(arithmetic[bf16], product_gflops(bf16, &square, c, x, y));
            for (size_t i = 0; i < countof(counts); i++)
                best[bf16][i] = fmax(best[bf16][i], weights_gflops(m[bf16], c, x, counts[i]));
        }
    printf("%-18s float32  of bound      bf16  of bound\n", "GFLOP/s, 1 thread");
    for (size_t i = 0; i < countof(counts); i++) {
        printf("%4d rows     ", counts[i]);
        for (int d = 0; d < 2; d++)
            printf("  %10.1f  %8.2f", best[d][i], best[d][i] / fmin(arithmetic[d], counts[i] * best[d][0]));
        printf("\n");
    }
}

// ---------------------------------------------------------------------------------------------
// The delta rule: us of thread CPU time per token and head, and its share of the peak, counting the 7 products of a
// vector with a matrix (HS,HS) that forward and backward need, 14 HS² operations

// Forward and backward from the zero state. Sets the seconds of each.
static void memory_once(double seconds[2], TostModel* m, int B, int T) {
    m->chunk = (TostChunk){.B = B, .T = T};
    float* state = start_state(m, TOST_NO_STATE, TOST_NO_STATE, 0).memory;
    const DeltaRule memory = layer_delta_rule(m, 0, state, NULL, state);
    const double start = thread_seconds();
    delta_rule_forward(&memory);
    seconds[0] = thread_seconds() - start;
    start_state(m, TOST_NO_STATE, TOST_NO_STATE, 0);   // 0 again, now as the adjoint
    for (size_t i = 0; i < (size_t)B * T * memory.C; i++) m->buf.dpredicted[i] = memory.z[i];
    const double middle = thread_seconds();
    delta_rule_backward(&memory);
    seconds[1] = thread_seconds() - middle;
}

static void bench_memory(void) {
    enum { B = 16, T = 256, HEADS = 2, PASSES = 15 };
    const int sizes[] = {16, 32, 64, 96, 128};
    printf("us per token and head, 1 thread    forward   backward   of peak\n");
    for (size_t i = 0; i < countof(sizes); i++) {
        const int HS = sizes[i];
        const TostConfig c = {.n_layer = 1, .n_head = HEADS, .n_embd = HEADS * HS, .block_size = T, .vocab_size = 64,
                              .memory = 1};
        TostModel* m = new_model(&c, B, T, true, TOST_FP32, TOST_ADAMW);
        threads_set(1);
        Rng rng = rng_seeded(3, 0);
        for (size_t j = 0; j < (size_t)B * T * c.n_embd; j++) m->layer[0].z[j] = (float)(rng_uniform(&rng) - 0.5);
        for (size_t j = 0; j < (size_t)B * T * HEADS; j++) m->layer[0].pi[j] = (float)rng_uniform(&rng);
        double forward[PASSES], backward[PASSES], share[PASSES];
        for (int run = 0; run < PASSES; run++) {
            double seconds[2];
            const double peak = fma_peak();
            memory_once(seconds, m, B, T);
            forward[run] = seconds[0] * 1e6 / (B * T * HEADS);
            backward[run] = seconds[1] * 1e6 / (B * T * HEADS);
            share[run] = 14.0 * HS * HS / 1e3 / (forward[run] + backward[run]) / peak;
        }
        printf("heads of %3d channels %22.3f %10.3f %9.2f\n", HS, median(forward, PASSES), median(backward, PASSES),
               median(share, PASSES));
        tost_cpu_engine.destroy(m);
    }
}

int main(int argc, char** argv) {
    const char* part = argc == 2 ? argv[1] : "";
    if (strcmp(part, "limits") == 0) bench_limits();
    else if (strcmp(part, "train") == 0) bench_train(1);
    else if (strcmp(part, "decode") == 0) bench_decode(1);
    else if (strcmp(part, "small") == 0) bench_small_preset(&tost_presets[0]), bench_small_preset(&tost_presets[1]);
    else if (strcmp(part, "dtypes") == 0) bench_train(2), bench_decode(2);
    else if (strcmp(part, "tssa") == 0) bench_tssa();
    else if (strcmp(part, "products") == 0) bench_products();
    else if (strcmp(part, "rows") == 0) bench_rows();
    else if (strcmp(part, "memory") == 0) bench_memory();
    else if (strcmp(part, "optimizers") == 0) bench_optimizers();
    else {
        fprintf(stderr, "usage: bench limits | train | small | decode | dtypes | tssa | products | rows | memory | "
                        "optimizers\n");
        return STATUS_USAGE;
    }
    return 0;
}
