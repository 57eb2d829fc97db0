// test_core.c: initial values, floating-point operations, number of threads, times.
#include "base/openmp.h"
#include "base/rng.h"
#include "cpu/threads.h"
#include "dev/test/unit/fake_engine.h"
#include "flops.h"
#include "init.h"
#include "recipe.h"

// ---- Initial values -------------------------------------------------------------------------------------------------

static TostModel* fake_init(TostConfig config, uint64_t seed) {
    TostModel* m = fake_create(&config, NULL, NULL);
    init_params(&fake, m, &m->tensors, config.n_layer, seed);
    return m;
}

static const float* param(const TostModel* m, const char* name) {
    const TostTensor* t = m->tensors.tensor;
    while (strcmp(t->name, name) != 0) must(++t < m->tensors.tensor + m->tensors.count, name, NULL);
    return m->state[TOST_PARAM] + t->offset;
}

static void check_values(Checks* c, const TostModel* m, const TostTensor* t) {
    const double residual = 0.02 / sqrt(2.0 * m->config.n_layer);
    const double std = t->init == TOST_NORMAL ? 0.02 : t->init == TOST_RESIDUAL ? residual : 0;
    const bool identity = t->init == TOST_IDENTITY;
    const double constant = t->init == TOST_ONE ? 1 : t->init == TOST_GAMMA ? 1e-5f : 0, n = (double)t->size;
    const float* x = m->state[TOST_PARAM] + t->offset;
    double sum = 0, squares = 0, inside = 0;
    for (size_t i = 0; i < t->size; i++) {
        const double off = x[i] - (identity ? i % TOST_CONV_WIDTH == TOST_CONV_WIDTH - 1 : constant);
        sum += off;
        squares += off * off;
        inside += fabs(off) < std;
    }
    if (std == 0) {
        check(c, squares == 0, "%s: expected %s", t->name, identity ? "the identity" : text_line("%g", constant).text);
        check(c, !identity || t->decay == TOST_NO_DECAY, "%s decays", t->name);
        return;
    }
    // Five standard errors of the mean, the variance, and the fraction within one standard deviation
    check(c, fabs(sum / n) < 5 * std / sqrt(n), "%s: mean %g of N(0, %g)", t->name, sum / n, std);
    check(c, fabs(squares / n / (std * std) - 1) < 5 * sqrt(2 / n), "%s: standard deviation %g, expected %g",
          t->name, sqrt(squares / n), std);
    check(c, fabs(inside / n - 0.682689) < 5 * sqrt(0.2166 / n), "%s: a fraction of %g within one deviation",
          t->name, inside / n);
}

static void test_init(Checks* c) {
    const TostConfig config = {.n_layer = 2, .n_head = 4, .n_embd = 64, .block_size = 32, .vocab_size = 1200,
                               .conv = TOST_CONV_WIDTH};
    TostConfig biased = config, deep = config;
    biased.bias = 1;
    deep.n_layer = 8;
    const int threads = threads_max();
    threads_set(1);
    TostModel* a = fake_init(config, 7);
    threads_set(3);
    TostModel* again = fake_init(config, 7);
    threads_set(threads);
    TostModel *other = fake_init(config, 8), *b = fake_init(biased, 7), *d = fake_init(deep, 7);
    for (int i = 0; i < a->tensors.count; i++) check_values(c, a, &a->tensors.tensor[i]);
    check(c, memcmp(a->state[TOST_PARAM], again->state[TOST_PARAM], a->tensors.flat_size * sizeof(float)) == 0,
          "init_params: 3 threads give other values than 1");
    const char *wte = "transformer.wte.weight", *proj = "transformer.h.1.attn.c_proj.weight";
    const char *q0 = "transformer.h.0.attn.c_attn.weight", *q1 = "transformer.h.1.attn.c_attn.weight";
    check(c, param(a, wte)[0] != param(other, wte)[0], "init_params: seeds 7 and 8 give the same wte");
    check(c, memcmp(param(a, q1), param(b, q1), 64 * 64 * sizeof(float)) == 0,
          "init_params: bias tensors change c_attn");
    check(c, param(a, q0)[0] != param(a, q1)[0], "init_params: two layers have the same values");
    check(c, fabsf(param(a, proj)[5] / param(d, proj)[5] - 2) < 1e-5f,
          "init_params: residual projections of 2 and 8 layers: expected the ratio 2, got %g",
          param(a, proj)[5] / param(d, proj)[5]);
    // Stream numbers, FNV-1a of name and block index, computed by another program.
    static const struct { size_t at; uint64_t stream; } blocks[] = {
        {0, 0xfe332bd6eea0110e}, {65536, 0x1d2df2dff98f5b2f}};
    for (size_t i = 0; i < countof(blocks); i++) {
        Rng rng = rng_seeded(7, blocks[i].stream);
        const float wanted = (float)(0.02 * rng_normal(&rng)), is = param(a, wte)[blocks[i].at];
        check(c, fabsf(is - wanted) < 1e-8f, "init_params: wte[%zu]: expected %.9g, got %.9g", blocks[i].at,
              wanted, is);
    }
    TostModel* all[] = {a, again, other, b, d};
    for (size_t i = 0; i < countof(all); i++) fake_destroy(all[i]);
}

// ---- Model FLOPs utilization ----------------------------------------------------------------------------------------

static void test_flops(Checks* c) {
    const TostConfig base = tost_presets[2].config;   // tost-base
    TostTensors t = tost_tensors(&base);
    double products = 0;
    for (int i = 0; i < t.count; i++)
        if (t.tensor[i].ndim == 2 && t.tensor[i].row != TOST_ROW_wpe && t.tensor[i].row != TOST_ROW_temp)
            products += (double)t.tensor[i].size;
    tost_tensors_free(&t);
    const double want = 6 * products + 3 * 12 * (10 * 768 + 8 * 12);
    check(c, flops_per_token(&base) == want, "flops_per_token: %.0f, want %.0f", flops_per_token(&base), want);
    TostConfig conv = base;
    conv.conv = TOST_CONV_WIDTH;
    check(c, flops_per_token(&conv) == want + 3 * 12 * 16 * 768, "flops_per_token: wrong with convolutions");
    TostConfig memory = base;
    memory.memory = 1;
    check(c, flops_per_token(&memory) == want + 3 * 12 * 768 * (4 * 64 + 7), "flops_per_token: wrong with memory");
    static const struct { const char* device; int multiprocessors; double peak[3]; } known[] = {
        {"NVIDIA H200", 132, {66.9, 494.7, 989.4}},
        {"NVIDIA H100 80GB HBM3 MIG 3g.40gb", 60, {0, 0, 0}},
        {"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 188, {126, 251.9, 503.8}},
        {"NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 188, {0, 0, 0}},
        {"NVIDIA L40S", 142, {91.6, 183, 362}},
    };
    for (size_t i = 0; i < countof(known); i++)
        for (int dtype = TOST_FP32; dtype <= TOST_BF16; dtype++) {
            const double peak = flops_peak_of(known[i].device, known[i].multiprocessors, (TostDtype)dtype) * 1e-12;
            const double want = known[i].peak[dtype];
            check(c, fabs(peak - want) < 1e-6, "peak of %s: %g TFLOP/s", known[i].device, peak);
        }
}

// ---- Threads --------------------------------------------------------------------------------------------------------

// Waiting threads that sleep look like lost processor time; the number of threads does not.
static void test_threads(Checks* c) {
    enum { THREADS = 37 };
    static const struct { const char *name, *value; bool fixed; } cases[] = {
        {"OMP_NUM_THREADS", "2", false}, {"OMP_DYNAMIC", "false", false}, {"KMP_AFFINITY", "none", false},
        {"OMP_WAIT_POLICY", "passive", true}, {"GOMP_SPINCOUNT", "0", true}, {"KMP_BLOCKTIME", "0", true},
        {"KMP_LIBRARY", "turnaround", true},
    };
    const int max = threads_max();
    char** before = environ;
    for (size_t i = 0; i < countof(cases); i++) {
        char *variable = xasprintf("%s=%s", cases[i].name, cases[i].value), *only[] = {variable, NULL};
        environ = only;
        const Threads t = threads_start(1);
        environ = before;
        check(c, t.fixed == cases[i].fixed, "%s: the number of threads is%s fixed", variable, t.fixed ? "" : " not");
        check(c, t.max == 1, "%d threads of 1", t.max);
        free(variable);
    }
#ifdef _OPENMP
    int given = 0;
    omp_set_dynamic(1);   // gives no more threads than cores
    threads_set(THREADS);
    #pragma omp parallel reduction(+ : given)
    given++;
    check(c, given == threads_or_max(THREADS), "OpenMP gives %d threads, not %d", given, threads_or_max(THREADS));
    const int levels = omp_get_max_active_levels();
    omp_set_max_active_levels(0);
    check(c, threads_or_max(2) == 1 && threads_max() == 1, "OMP_MAX_ACTIVE_LEVELS=0 gives one thread");
    omp_set_max_active_levels(levels);
#endif
    threads_set(max);
}

static void test_times(Checks* c) {
    static const struct { const char* text; double seconds; } cases[] = {   // -1: refused
        {"90", 90}, {"2.5h", 9000}, {"1e3", 1000}, {"5min", 300}, {"1h30m", 5400}, {"1d2h3min4.5s", 93784.5},
        {"", -1}, {"1h30", -1}, {"0h30", -1}, {"30:00", -1}, {"1-12", -1}, {"1h-5m", -1}, {"100ms", -1}, {"m", -1},
    };
    static const Setting time = {"time", .kind = DURATION, .max = 1e9};
    for (size_t i = 0; i < countof(cases); i++) {
        double seconds = -1;
        setting_parse(&seconds, &time, cases[i].text, &(TostError){0});
        check(c, seconds == cases[i].seconds, "time '%s': %g s", cases[i].text, seconds);
    }
}

int main(void) {
    return RUN_TESTS("core", test_init, test_flops, test_threads, test_times);
}
