// test_modules.c: schedule, initial values, sampler, log, progress, checkpoints and generation, with a fake engine.
#include "base/error.h"
#include "base/files.h"
#include "base/memory.h"
#include "base/openmp.h"
#include "dev/test/scratch.h"

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "run/checkpoint.h"
#include "cpu/gemm.h"
#include "flops.h"
#include "run/generate.h"
#include "init.h"
#include "base/lock.h"
#include "run/log.h"
#include "run/options.h"
#include "run/progress.h"
#include "commands/prompts.h"
#include "run/schedule.h"
#include "base/terminal.h"

static Bytes bytes_of(const char* path) {
    TostError err;
    Bytes b;
    must(read_file(&b, path, &err), "read_file", &err);
    return b;
}

// ---------------------------------------------------------------------------------------------
// The fake engine: stores tensors, and generates the tokens of a script

enum { MAX_CALLS = 64, MAX_IDS = 16 };

typedef struct { int T; int32_t ids[MAX_IDS]; } Call;   // T = 0: decode_step(ids[0]); else decode_begin with T ids

struct TostModel {
    TostConfig     config;
    TostTensors    tensors;
    float*         state[TOST_STATES];        // flat, by TostState
    int            puts, gets;
    int            die_at_get;      // kill the process at this get; 0: never
    const int32_t* script;          // id with the largest logit, by decode call; -1: all logits are NaN
    int            at, n_calls;     // position in the script; length of calls
    Call           calls[MAX_CALLS];
};

static TostModel* fake_new(TostConfig config) {
    TostModel* m = xcalloc(1, sizeof *m);
    m->config = config;
    m->tensors = tost_tensors(&config);
    for (int s = 0; s < TOST_STATES; s++) m->state[s] = xcalloc(m->tensors.flat_size, sizeof(float));
    return m;
}

static void fake_free(TostModel* m) {
    for (int s = 0; s < TOST_STATES; s++) free(m->state[s]);
    tost_tensors_free(&m->tensors);
    free(m);
}

static void fake_put(TostModel* m, TostState s, const TostTensor* t, const float* src) {
    memcpy(m->state[s] + t->offset, src, t->size * sizeof *src);
    m->puts++;
}

static void fake_get(float* dst, const TostModel* m, TostState s, const TostTensor* t) {
    int* gets = (int*)&m->gets;   // the model is const, but counts its gets
    if (++*gets == m->die_at_get) kill(getpid(), SIGKILL);
    memcpy(dst, m->state[s] + t->offset, t->size * sizeof *dst);
}

static void fake_logits(float* logits, TostModel* m) {
    const int32_t id = m->script ? m->script[m->at++] : 0;
    for (int i = 0; i < m->config.vocab_size; i++) logits[i] = id < 0 ? NAN : (float)-i;
    if (id >= 0) logits[id] = 10;
    if (m->config.vocab_size > 257) logits[257] = 1e9f;   // not a token of the tokenizer: must never be drawn
}

static void fake_begin(float* logits, TostModel* m, const int32_t* prompts, int n, int T) {
    must(n == 1 && T >= 1 && T <= m->config.block_size && T <= MAX_IDS && m->n_calls < MAX_CALLS, "begin", NULL);
    Call* call = &m->calls[m->n_calls++];
    call->T = T;
    memcpy(call->ids, prompts, (size_t)T * sizeof *prompts);
    fake_logits(logits, m);
}

static void fake_step(float* logits, TostModel* m, const int32_t* tokens) {
    must(m->n_calls < MAX_CALLS, "step", NULL);
    m->calls[m->n_calls++] = (Call){.T = 0, .ids = {tokens[0]}};
    fake_logits(logits, m);
}

static bool fake_supports(TostDtype dtype) { return dtype == TOST_FP32; }

static const TostEngine fake = {
    .name = "fake", .supports = fake_supports, .put = fake_put, .get = fake_get, .decode_begin = fake_begin,
    .decode_step = fake_step,
};

static const TostConfig tiny = {
    .n_layer = 2, .n_head = 2, .n_embd = 4, .block_size = 3, .vocab_size = 7, .bias = 1,
};

// Fills all four states with different numbers.
static void fake_fill(TostModel* m, float salt) {
    for (int s = 0; s < TOST_STATES; s++)
        for (int i = 0; i < m->tensors.count; i++) {
            const TostTensor* t = &m->tensors.tensor[i];
            for (size_t k = 0; k < t->size; k++)
                m->state[s][t->offset + k] = salt + (float)s + 0.001f * (float)(t->offset + k);
        }
}

static bool same_state(const TostModel* a, const TostModel* b, TostState s) {
    return memcmp(a->state[s], b->state[s], a->tensors.flat_size * sizeof(float)) == 0;
}

static bool same_moments(const TostModel* a, const TostModel* b) {
    return same_state(a, b, TOST_M) && same_state(a, b, TOST_V);
}

// ---------------------------------------------------------------------------------------------
// Schedule

static void test_schedule(Checks* c) {
    enum { COSINE = SCHEDULE_COSINE, WSD = SCHEDULE_WSD, LINEAR = SCHEDULE_LINEAR, CONSTANT = SCHEDULE_CONSTANT };
    static const struct { int kind; int64_t step, steps, warmup; double peak, frac, decay, lr; } cases[] = {
        {COSINE, 0, 110, 10, 1.0, 0.1, 0, 0.0},    {COSINE, 5, 110, 10, 1.0, 0.1, 0, 0.5},
        {COSINE, 9, 110, 10, 2.0, 0.1, 0, 1.8},    {COSINE, 10, 110, 10, 1.0, 0.1, 0, 1.0},
        {COSINE, 60, 110, 10, 1.0, 0.1, 0, 0.55},  {COSINE, 110, 110, 10, 1.0, 0.1, 0, 0.1},
        {COSINE, 35, 110, 10, 1.0, 0.1, 0, 0.868198051533946},   // 0.1 + 0.9 (1 + cos(pi/4)) / 2
        {COSINE, 1000, 110, 10, 3.0, 0.5, 0, 1.5}, {COSINE, 0, 10, 0, 2.0, 0.0, 0, 2.0},
        {COSINE, 10, 10, 10, 1.0, 0.25, 0, 0.25},  {COSINE, 5, 10, 20, 1.0, 0.1, 0, 0.25},
        {COSINE, 0, 0, 0, 1.0, 0.1, 0, 0.1},       {COSINE, 9, 10, 10, 1.0, 0.1, 0, 0.9},
        {LINEAR, 5, 110, 10, 1.0, 0.1, 0, 0.5},    {LINEAR, 10, 110, 10, 1.0, 0.1, 0, 1.0},
        {LINEAR, 35, 110, 10, 1.0, 0.1, 0, 0.775}, {LINEAR, 110, 110, 10, 1.0, 0.1, 0, 0.1},
        {CONSTANT, 5, 110, 10, 1.0, 0.1, 0, 0.5},  {CONSTANT, 500, 110, 10, 1.0, 0.1, 0, 1.0},
        {WSD, 5, 100, 10, 1.0, 0.1, 0.2, 0.5},     {WSD, 10, 100, 10, 1.0, 0.1, 0.2, 1.0},
        {WSD, 80, 100, 10, 1.0, 0.1, 0.2, 1.0},    {WSD, 90, 100, 10, 1.0, 0.1, 0.2, 0.55},
        {WSD, 100, 100, 10, 1.0, 0.1, 0.2, 0.1},   {WSD, 99, 100, 10, 1.0, 0.1, 0.0, 1.0},
        {WSD, 55, 100, 10, 1.0, 0.1, 1.0, 0.55},   // the decay cannot begin before the end of the warm-up
    };
    for (size_t i = 0; i < countof(cases); i++) {
        const Schedule s = {(ScheduleKind)cases[i].kind, cases[i].steps, cases[i].warmup, cases[i].peak, cases[i].frac,
                            cases[i].decay};
        const double lr = schedule_lr(&s, cases[i].step);
        check(c, fabs(lr - cases[i].lr) < 1e-14, "schedule_lr, case %zu: expected %.15g, got %.15g", i,
              cases[i].lr, lr);
    }
    const Schedule curve = {SCHEDULE_COSINE, 150, 20, 3e-3, 0.1, 0};
    char* path = shared_path("curve/wiki.curve.csv");
    if (!path) {
        skip(c, "curve/wiki.curve.csv not found: learning rates not compared with the published schedule");
        return;
    }
    FILE* f = fopen(path, "r");
    long step;
    double loss, norm, lr;
    int rows = 0;
    must(f && fscanf(f, "%*[^\n]") == 0, path, NULL);
    for (; fscanf(f, "%ld,%lf,%lf,%lf", &step, &loss, &norm, &lr) == 4; rows++) {
        double ours = schedule_lr(&curve, step);
        check(c, fabs(ours - lr) <= 1e-9 * lr, "learning rate of step %ld: expected %.9e, got %.9e", step, lr,
              ours);
    }
    check(c, rows == 150, "%s: expected 150 rows, got %d", path, rows);
    fclose(f);
    free(path);
}

// ---------------------------------------------------------------------------------------------
// Initial values

static TostModel* fake_init(TostConfig config, uint64_t seed) {
    TostModel* m = fake_new(config);
    init_params(&fake, m, &m->tensors, config.n_layer, seed);
    return m;
}

static const float* param(const TostModel* m, const char* name) {
    const TostTensor* t = tost_tensor_find(&m->tensors, name);
    must(t != NULL, name, NULL);
    return m->state[TOST_PARAM] + t->offset;
}

static void check_values(Checks* c, const TostModel* m, const TostTensor* t) {
    const double residual = 0.02 / sqrt(2.0 * m->config.n_layer);
    const double std = t->init == TOST_NORMAL ? 0.02 : t->init == TOST_RESIDUAL ? residual : 0;
    const double constant = t->init == TOST_ONE ? 1 : t->init == TOST_GAMMA ? 1e-5f : 0;
    const float* x = m->state[TOST_PARAM] + t->offset;
    double sum = 0, squares = 0, inside = 0;
    const double n = (double)t->size;
    for (size_t i = 0; i < t->size; i++) {
        sum += x[i] - constant;
        squares += (x[i] - constant) * (x[i] - constant);
        inside += fabs(x[i] - constant) < std;
    }
    if (std == 0) {
        check(c, squares == 0, "%s: expected %g everywhere", t->name, constant);
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
    const TostConfig config = {.n_layer = 2, .n_head = 4, .n_embd = 64, .block_size = 32, .vocab_size = 1200};
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
    check(c, same_state(a, again, TOST_PARAM), "init_params: 3 threads give other values than 1");
    const char *wte = "transformer.wte.weight", *proj = "transformer.h.1.attn.c_proj.weight";
    const char *q0 = "transformer.h.0.attn.c_attn.weight", *q1 = "transformer.h.1.attn.c_attn.weight";
    check(c, param(a, wte)[0] != param(other, wte)[0], "init_params: seeds 7 and 8 give the same wte");
    check(c, memcmp(param(a, q1), param(b, q1), 64 * 64 * sizeof(float)) == 0,
          "init_params: bias tensors change c_attn");
    check(c, param(a, q0)[0] != param(a, q1)[0], "init_params: two layers have the same values");
    check(c, param(a, wte)[0] != param(a, wte)[65536], "init_params: two blocks of a tensor are equal");
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
    for (size_t i = 0; i < countof(all); i++) fake_free(all[i]);
}

// Every element of an extended tensor must be as init.h defines it.
static void test_extend(Checks* c) {
    const int sizes[][2] = {{8, 8}, {8, 9}, {8, 31}, {7, 20}, {1, 5}, {2, 3}};
    for (size_t i = 0; i < countof(sizes); i++) {
        const int n = sizes[i][0], end = sizes[i][1];
        TostConfig config = {.n_layer = 1, .n_head = 3, .n_embd = 6, .block_size = n, .vocab_size = 5};
        TostTensors from = tost_tensors(&config);
        config.block_size = end;
        TostTensors to = tost_tensors(&config);
        for (int k = 0; k < to.count; k++) {
            const TostTensor* t = &to.tensor[k];
            const size_t arrays = t->row == TOST_ROW_denom_bias ? 3 : 1, old = from.tensor[k].size / arrays;
            const size_t now = t->size / arrays, width = t->row == TOST_ROW_wpe ? 6 : 1;
            const bool grows = t->row == TOST_ROW_wpe || t->row == TOST_ROW_denom_bias;
            float* values = xmalloc(t->size * sizeof *values);
            int wrong = 0;
            for (size_t j = 0; j < from.tensor[k].size; j++) values[j] = (float)j;
            init_extend(values, t, &from.tensor[k]);
            for (size_t j = 0; j < t->size; j++) {
                int at = (int)(j % now / width);
                if (grows && at >= n) at = n - 1;
                const size_t source = j / now * old + (grows ? (size_t)at * width + j % width : j % now);
                wrong += values[j] != (float)source;
            }
            check(c, wrong == 0, "init_extend of %s from %d to %d: %d elements are wrong", t->name, n, end, wrong);
            free(values);
        }
        tost_tensors_free(&from);
        tost_tensors_free(&to);
    }
}

// ---------------------------------------------------------------------------------------------
// Sampler

enum { DRAWS = 20000, CASE_IDS = 6 };

// Draws many times and compares the counts with the expected probabilities by chi-square. An id of probability 0 must
// never be drawn.
static void check_draws(Checks* c, const char* what, const float* logits, int n, SamplerOptions o,
                        const double* wanted) {
    int* count = xcalloc((size_t)n, sizeof *count);
    Sampler s = sampler_new(n);
    Rng rng = rng_seeded(1, 2);
    int impossible = 0;
    for (int i = 0; i < DRAWS; i++) {
        int32_t id = sampler_draw(&s, logits, &o, &rng);
        if (id >= 0 && id < n && wanted[id] > 0) count[id]++;
        else impossible++;
    }
    check(c, impossible == 0, "%s: %d draws of ids of probability 0", what, impossible);
    double chi = 0;
    int degrees = -1;
    for (int i = 0; i < n; i++) {
        if (wanted[i] == 0) continue;
        const double off = count[i] - wanted[i] * DRAWS;
        chi += off * off / (wanted[i] * DRAWS);
        degrees++;
    }
    // Five standard deviations above the mean of the distribution
    check(c, chi <= degrees + 5 * sqrt(2.0 * degrees), "%s: chi-square %.1f of %d degrees of freedom", what,
          chi, degrees);
    sampler_free(&s);
    free(count);
}

#define LN2 0.69314718f

static void test_distributions(Checks* c) {
    // logits of 1 : 2 : 4 : 8 : 8 : 16, shuffled
    static const float logits[CASE_IDS] = {3 * LN2, 0, 4 * LN2, LN2, 3 * LN2, 2 * LN2};
    static const float odd[CASE_IDS] = {NAN, 0, -INFINITY, LN2, NAN, -1e30f};
    static const float infinite[CASE_IDS] = {0, INFINITY, 3, NAN, INFINITY, -INFINITY};
    static const struct {
        const char* what; const float* logits; int n; SamplerOptions o; double weight[CASE_IDS];
    } cases[] = {
        {"plain",                  logits, 6, {1, 0, 1},       {8, 1, 16, 2, 8, 4}},
        {"temperature 0.5",        logits, 6, {0.5, 0, 1},     {64, 1, 256, 4, 64, 16}},
        {"temperature 2",          logits, 6, {2, 0, 1},       {2.82842712, 1, 4, 1.41421356, 2.82842712, 2}},
        {"top-k 1",                logits, 6, {1, 1, 1},       {0, 0, 1, 0, 0, 0}},
        {"top-k 2 in a tie",       logits, 6, {1, 2, 1},       {8, 0, 16, 0, 0, 0}},
        {"top-k 4",                logits, 6, {1, 4, 1},       {8, 0, 16, 0, 8, 4}},
        {"top-k of all",           logits, 6, {1, 6, 1},       {8, 1, 16, 2, 8, 4}},
        {"top-k beyond all",       logits, 6, {1, 100, 1},     {8, 1, 16, 2, 8, 4}},
        {"top-p 0.01",             logits, 6, {1, 0, 0.01},    {0, 0, 1, 0, 0, 0}},
        {"top-p 0",                logits, 6, {1, 0, 0},       {0, 0, 1, 0, 0, 0}},
        {"top-p 0.5",              logits, 6, {1, 0, 0.5},     {8, 0, 16, 0, 0, 0}},       // 24/39 > 0.5
        {"top-p 0.7",              logits, 6, {1, 0, 0.7},     {8, 0, 16, 0, 8, 0}},       // 24/39 < 0.7
        {"top-p 0.999999",         logits, 6, {1, 0, 0.999999}, {8, 1, 16, 2, 8, 4}},
        {"temperature 0.5, top-p 0.7", logits, 6, {0.5, 0, 0.7}, {64, 0, 256, 0, 0, 0}},   // 256/405 = 0.63
        {"top-k 4, top-p 0.8",     logits, 6, {1, 4, 0.8},     {8, 0, 16, 0, 8, 0}},       // 24/36 < 0.8
        {"top-k 4, top-p 0.65",    logits, 6, {1, 4, 0.65},    {8, 0, 16, 0, 0, 0}},       // 24/36 > 0.65
        {"ids below the vocabulary", logits, 2, {1, 0, 1},     {8, 1}},
        {"ids below, top-k",       logits, 2, {1, 5, 1},       {8, 1}},
        {"NaN and -inf",           odd,    6, {1, 0, 1},       {0, 1, 0, 2, 0, 0}},
        {"NaN and -inf, top-k 5",  odd,    6, {1, 5, 1},       {0, 1, 0, 2, 0, 0}},
        {"NaN and -inf, top-p",    odd,    6, {1, 0, 0.9},     {0, 1, 0, 2, 0, 0}},
        {"+inf",                   infinite, 6, {1, 0, 1},     {0, 1, 0, 0, 1, 0}},
        {"tiny temperature",       logits, 6, {1e-300, 0, 1},  {0, 0, 1, 0, 0, 0}},
    };
    for (size_t i = 0; i < countof(cases); i++) {
        double wanted[CASE_IDS], sum = 0;
        for (int k = 0; k < CASE_IDS; k++) sum += cases[i].weight[k];
        for (int k = 0; k < CASE_IDS; k++) wanted[k] = cases[i].weight[k] / sum;
        check_draws(c, cases[i].what, cases[i].logits, cases[i].n, cases[i].o, wanted);
    }
}

static int compare_descending(const void* a, const void* b) {
    const double x = *(const double*)a, y = *(const double*)b;
    return (x < y) - (x > y);
}

// Top-k and top-p of many ids against a full sort: keeps all ids at least as likely as the last selected one.
static void test_many_ids(Checks* c) {
    enum { N = 300 };
    float logits[N];
    double p[N], sorted[N], sum = 0;
    Rng rng = rng_seeded(3, 4);
    for (int i = 0; i < N; i++) sum += p[i] = exp(logits[i] = (float)(2 * rng_normal(&rng)));
    for (int i = 0; i < N; i++) sorted[i] = p[i] /= sum;
    qsort(sorted, N, sizeof *sorted, compare_descending);
    static const struct { int k; double p; } cuts[] = {{37, 1}, {0, 0.8}, {60, 0.5}, {5, 0.99}};
    for (size_t i = 0; i < countof(cuts); i++) {
        const int k = cuts[i].k ? cuts[i].k : N;
        double top = 0, reached = 0, wanted[N];
        int kept = 0;
        for (int j = 0; j < k; j++) top += sorted[j];
        while (kept < k && reached < cuts[i].p * top) reached += sorted[kept++];
        for (int j = 0; j < N; j++) wanted[j] = p[j] >= sorted[kept - 1] ? p[j] / reached : 0;
        char what[64];
        snprintf(what, sizeof what, "%d ids, top-k %d, top-p %g: %d kept", N, cuts[i].k, cuts[i].p, kept);
        check_draws(c, what, logits, N, (SamplerOptions){1, cuts[i].k, cuts[i].p}, wanted);
    }
}

typedef struct { float logit; int32_t id; double weight; } Ranked;

static int compare_keys(const void* a, const void* b) {   // by decreasing logit, then by increasing id
    const Ranked *x = a, *y = b;
    return x->logit != y->logit ? (x->logit < y->logit) - (x->logit > y->logit) : (x->id > y->id) - (x->id < y->id);
}

// The ids that top-k and top-p keep, by a full sort. Returns their number.
static int sorted_cut(Ranked* r, int n, const SamplerOptions* o) {
    double total = 0, sum = 0;
    qsort(r, (size_t)n, sizeof *r, compare_keys);
    const int k = o->top_k > 0 && o->top_k < n ? o->top_k : n;
    for (int i = 0; i < k; i++) total += r[i].weight;
    if (!(o->top_p < 1)) return k;
    int kept = 0;
    do sum += r[kept++].weight; while (kept < k && sum < o->top_p * total);
    return kept;
}

// Which ids of a large vocabulary are kept, against a full sort: with many ties, NaN and zeros of both signs.
static void test_cut(Checks* c) {
    enum { N = 50304 };
    static const struct { const char* what; double spread, step; } kinds[] = {
        {"a random model", 0.3, 0}, {"a trained model", 3, 0}, {"many ties", 2, 0.5}, {"all equal", 0, 1},
        {"tiny numbers", 1e-42, 0}, {"wide", 60, 0.25},
    };
    static const SamplerOptions options[] = {
        {1, 1, 1}, {1, 40, 1}, {0.8, 5000, 1}, {1, N - 1, 1}, {1, 0, 0.95}, {0.7, 0, 0.5}, {1, 0, 1e-9},
        {1, 0, 0.999999}, {1, 40, 0.9}, {1.5, 40000, 0.6}, {1000, 100, 0.37}, {0.01, 0, 0.9},
    };
    float* logits = xmalloc(N * sizeof *logits);
    Ranked* r = xmalloc(N * sizeof *r);
    Sampler s = sampler_new(N);
    Rng rng = rng_seeded(7, 7);
    for (size_t k = 0; k < countof(kinds); k++) {
        for (int i = 0; i < N; i++) {
            const double x = kinds[k].spread * rng_normal(&rng);
            logits[i] = (float)(kinds[k].step > 0 ? kinds[k].step * rint(x / kinds[k].step) : x);
            if (i % 1000 == 999) logits[i] = i % 2000 == 999 ? NAN : -INFINITY;
        }
        for (size_t j = 0; j < countof(options); j++) {
            const double temperature = options[j].temperature;
            const float max = logits[argmax(logits, N)];
            for (int i = 0; i < N; i++) {
                const float logit = isnan(logits[i]) ? -INFINITY : logits[i];
                r[i] = (Ranked){logit, i, exp(((double)logit - max) / temperature)};
            }
            const int32_t id = sampler_draw(&s, logits, &options[j], &rng);
            const int kept = sorted_cut(r, N, &options[j]);
            // Probabilities in float32 may move the cut of top-p, but by no more than their error
            const double off = abs(s.n - kept) / (double)kept;
            bool *in = xcalloc(N, 1), same = id >= 0;
            for (int i = 0; i < s.n; i++) in[r[i].id] = true;
            for (int i = 0; i < s.n; i++) same &= in[s.id[i]] && (i == 0 || s.id[i] > s.id[i - 1]);
            check(c, same && (options[j].top_p < 1 ? off <= 1e-4 : s.n == kept) && in[id],
                  "%s, temperature %g, top-k %d, top-p %g: %d ids kept, %d by sorting; %s", kinds[k].what, temperature,
                  options[j].top_k, options[j].top_p, s.n, kept, same ? "the most likely" : "others");
            free(in);
        }
    }
    sampler_free(&s);
    free(r);
    free(logits);
}

static void test_greedy(Checks* c) {
    static const struct { const char* what; float logits[5]; int n; int32_t id; } cases[] = {
        {"the largest",         {1, 5, 3, -2, 4}, 5, 1},
        {"ties: the lowest id", {1, 5, 3, 5, 5}, 5, 1},
        {"all equal",           {2, 2, 2, 2, 2}, 5, 0},
        {"past the ids",        {1, 2, 3, 4, 9}, 3, 2},
        {"a NaN is the lowest", {NAN, -3, NAN, -2, -4}, 5, 3},
        {"infinite",            {1, INFINITY, 2, INFINITY, 0}, 5, 1},
        {"no number",           {NAN, NAN, -INFINITY, NAN, NAN}, 5, -1},
        {"all -inf",            {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY}, 5, -1},
    };
    Rng rng = rng_seeded(1, 1);
    for (size_t i = 0; i < countof(cases); i++) {
        Sampler s = sampler_new(cases[i].n);
        int32_t id = sampler_draw(&s, cases[i].logits, &(SamplerOptions){0, 3, 0.5}, &rng);
        check(c, id == cases[i].id, "greedy, %s: expected %d, got %d", cases[i].what, (int)cases[i].id,
              (int)id);
        if (cases[i].id < 0) {
            id = sampler_draw(&s, cases[i].logits, &(SamplerOptions){1, 2, 0.5}, &rng);
            check(c, id == -1, "drawing, %s: expected -1, got %d", cases[i].what, (int)id);
        }
        sampler_free(&s);
    }
    Rng a = rng_seeded(9, 9), b = a;
    Sampler s = sampler_new(5);
    for (int i = 0; i < 3; i++) sampler_draw(&s, cases[0].logits, &(SamplerOptions){1, i, 0.9}, &a);
    for (int i = 0; i < 3; i++) rng_u64(&b);
    check(c, rng_u64(&a) == rng_u64(&b), "a draw must consume one random number for any top-k and top-p");
    sampler_free(&s);
}

// ---------------------------------------------------------------------------------------------
// log.csv

#define HEADER "step,tokens,train_loss,val_loss,lr,grad_norm,ms,tokens_per_s\n"
#define ROW(step) #step ",64,2.500000000,,1.000000000e-03,0.750000000,12.500,5120.0\n"

static LogRow row_of(int64_t step) {
    return (LogRow){.step = step, .tokens = 64, .train_loss = 2.5, .val_loss = NAN, .lr = 1e-3,
                    .grad_norm = 0.75, .ms = 12.5, .tokens_per_s = 5120};
}

static void check_file(Checks* c, const char* path, const char* wanted, const char* what) {
    Bytes is = bytes_of(path);
    check(c, strcmp(is.data, wanted) == 0, "%s: expected\n%s\ngot\n%s", what, wanted, is.data);
    free(is.data);
}

static void test_log_rows(Checks* c) {
    TostError err;
    LogFile log = {0};
    char* dir = new_folder();
    char* path = path_join(dir, "log.csv");
    write_text(path, "an old log\n");
    must(log_open(&log, path, -1, &err), "log_open", &err);
    const LogRow rows[] = {
        {0, 4096, 7.7424017, NAN, 0, 1.23456789012, 1234.56789, 3317.25},
        {1, 5000000000, 1e-7, 3.25, 2.9996e-3, 1e3, 0.5, 1e7},
        {2, 1, -NAN, INFINITY, 1, NAN, 1, 1},
    };
    for (size_t i = 0; i < countof(rows); i++) {
        check(c, log_row(&log, &rows[i], &err), "log_row: %s", err.text);
        Bytes b = bytes_of(path);
        check(c, b.size > 0 && b.data[b.size - 1] == '\n', "log_row: a row must be written immediately");
        free(b.data);
    }
    check(c, log_sync(&log, &err), "log_sync: %s", err.text);
    check(c, log_close(&log, &err) && log_close(&log, &err), "log_close: %s", err.text);
    static const char wanted[] = HEADER
        "0,4096,7.742401700,,0.000000000e+00,1.234567890,1234.568,3317.2\n"
        "1,5000000000,0.000000100,3.250000000,2.999600000e-03,1000.000000000,0.500,10000000.0\n"
        "2,1,nan,inf,1.000000000e+00,nan,1.000,1.0\n";
    check_file(c, path, wanted, "rows of log.csv");
    free(path);
    path = path_join(dir, "absent/log.csv");
    check_refused(c, log_open(&log, path, -1, &err), &err, path, "a log in an absent folder");
    if (access("/dev/full", W_OK) == 0) {
        bool ok = log_open(&log, "/dev/full", 5, &err) && log_row(&log, &rows[0], &err);
        check_refused(c, ok, &err, "/dev/full", "a log on a full disk");
        must(log_close(&log, &err), "log_close", &err);   // rows for a device do not stay pending
    } else {
        skip(c, "/dev/full not found: no log on a full disk");
    }
    free(path);
    drop_folder(dir);
}

// Disks that become full at every byte of a row: rows that did not fit stay pending.
static void test_pending_rows(Checks* c) {
    TostError err;
    LogFile log = {0}, second;
    char *dir = new_folder(), *path = path_join(dir, "log.csv");
    signal(SIGXFSZ, SIG_IGN);
    int bad = 0;
    for (rlim_t room = sizeof HEADER; room < sizeof HEADER + 160; room++) {
        must(log_open(&log, path, -1, &err), "log_open", &err);
        limit_file_size(room);
        for (int64_t step = 0; step < 4; step++) {
            const LogRow row = row_of(step);
            bad += log_row(&log, &row, &err) != (log.n_pending == 0);
        }
        bad += log.n_pending != sizeof HEADER - 1 + 4 * strlen(ROW(0)) - (size_t)room;
        bad += log_sync(&log, &err) || !strstr(err.text, "File too large");
        limit_file_size(RLIM_INFINITY);
        const LogRow row = row_of(4);
        bad += !log_row(&log, &row, &err) || log.n_pending || !log_sync(&log, &err) || !log_close(&log, &err);
        Bytes is = bytes_of(path);
        bad += strcmp(is.data, HEADER ROW(0) ROW(1) ROW(2) ROW(3) ROW(4)) != 0;
        free(is.data);
    }
    check(c, bad == 0, "a full disk: %d errors", bad);
    must(log_open(&log, path, 5, &err), "log_open", &err);
    limit_file_size(1);
    const LogRow row = row_of(5);
    check_refused(c, log_row(&log, &row, &err), &err, "log.csv: cannot be written: File too large", "no room");
    check_refused(c, log_open(&second, path, -1, &err), &err, "is being written by another run", "an open log");
    check_refused(c, log_close(&log, &err), &err, "log.csv: cannot be written", "a row that cannot be written");
    limit_file_size(RLIM_INFINITY);
    check_file(c, path, HEADER ROW(0) ROW(1) ROW(2) ROW(3) ROW(4), "a row that was not written");
    must(log_open(&log, path, 5, &err) && unlink(path) == 0, "log_open", &err);
    check_refused(c, log_row(&log, &row, &err), &err, "log.csv was removed", "a log that was removed");
    log_close(&log, &err);
    signal(SIGXFSZ, SIG_DFL);
    free(path);
    drop_folder(dir);
}

static void test_row_text(Checks* c) {
    const LogRow rows[] = {row_of(3), {7, 5000000000, NAN, NAN, 0, INFINITY, 1.5, 10}, {1, 2, 3, 4, 5, 6, 7, 8}};
    for (size_t i = 0; i < countof(rows); i++) {
        LogRow row = {0};
        char* text = log_row_text(&rows[i]);
        const bool ok = log_row_parse(&row, text);
        char* again = log_row_text(&row);
        check(c, ok && strcmp(text, again) == 0, "log_row_text: %s becomes %s", text, again);
        for (size_t n = 0; n < strlen(text); n++) {
            again[n] = 0;
            check(c, !log_row_parse(&row, again), "a cut row is parsed: %s", again);
            again[n] = text[n];
        }
        free(again);
        free(text);
    }
    static const char* const wrong[] = {"", "\n", "-1,2,3,,5,6,7,8\n", "1,2,3,,5,6,7\n", "1,2,3,,5,6,7,8,9\n",
                                        "1,x,3,,5,6,7,8\n", "1,2,3,,5,6,7,8\n1", "1,-2,3,,5,6,7,8\n",
                                        "1,1e30,3,,5,6,7,8\n"};
    LogRow row;
    for (size_t i = 0; i < countof(wrong); i++) check(c, !log_row_parse(&row, wrong[i]), "'%s' is parsed", wrong[i]);
}

static void test_log_fresh(Checks* c) {
    // error, overwriting: the error without and with --overwrite; NULL: a new log may be started
    static const struct { const char *what, *before, *error, *overwriting; } cases[] = {
        {"absent", NULL, NULL, NULL},
        {"an empty file", "", NULL, NULL},
        {"a log", HEADER ROW(0), "already exists", NULL},
        {"a log without rows", HEADER, "already exists", NULL},
        {"another file", "precious\n", "already exists", "line 1 is not the header"},
        {"a cut header", "step,tok", "already exists", NULL},
    };
    char* dir = new_folder();
    char* path = path_join(dir, "log.csv");
    for (size_t i = 0; i < countof(cases); i++) {
        for (int overwrite = 0; overwrite < 2; overwrite++) {
            TostError err = {{0}};
            const char* error = overwrite ? cases[i].overwriting : cases[i].error;
            remove(path);
            if (cases[i].before) write_text(path, cases[i].before);
            bool ok = log_check_fresh(path, overwrite, &err);
            if (error) check_refused(c, ok, &err, error, cases[i].what);
            else check(c, ok, "%s: %s", cases[i].what, err.text);
            if (cases[i].before) check_file(c, path, cases[i].before, cases[i].what);
        }
    }
    TostError err = {{0}};
    check(c, log_check_fresh("/dev/null", false, &err), "a device: %s", err.text);
    free(path);
    drop_folder(dir);
}

static void test_log_resume(Checks* c) {
    // before: the log; at: the step at which the run resumes; after: the expected log before row `at`, or NULL for an
    // error
    static const struct { const char *what, *before; int64_t at; const char *after, *error; } cases[] = {
        {"cut back", HEADER ROW(0) ROW(1) ROW(2) ROW(3), 2, HEADER ROW(0) ROW(1), NULL},
        {"nothing to cut", HEADER ROW(0) ROW(1), 2, HEADER ROW(0) ROW(1), NULL},
        {"a cut last line", HEADER ROW(0) ROW(1) "2,64,2.5000", 2, HEADER ROW(0) ROW(1), NULL},
        {"a cut line that is needed", HEADER ROW(0) "1,64,2.500", 2, NULL, "line 2 is step 0"},
        {"rows are missing", HEADER ROW(0) ROW(1), 3, NULL, "line 3 is step 1"},
        {"garbage before the end", HEADER "nonsense\n" ROW(1), 2, NULL, "line 2 is not a row"},
        {"garbage after the end is removed", HEADER ROW(0) ROW(1) ROW(2) "nonsense\n", 2, HEADER ROW(0) ROW(1), NULL},
        {"another file", "a,b,c\n1,2,3\n", 1, NULL, "line 1"},
        {"no rows", HEADER, 7, HEADER, NULL},
        {"another file, from step 0", "a,b,c\n1,2,3\n", 0, NULL, "line 1"},
        {"an empty file", "", 7, HEADER, NULL},
        {"a cut header", "step,tok", 7, HEADER, NULL},
        {"started at step 5", HEADER ROW(5) ROW(6) ROW(7), 7, HEADER ROW(5) ROW(6), NULL},
        {"absent", NULL, 7, HEADER, NULL},
    };
    char* dir = new_folder();
    char* path = path_join(dir, "log.csv");
    for (size_t i = 0; i < countof(cases); i++) {
        TostError err;
        LogFile log;
        remove(path);
        if (cases[i].before) write_text(path, cases[i].before);
        bool ok = log_open(&log, path, cases[i].at, &err);
        if (!cases[i].after) {
            check_refused(c, ok, &err, cases[i].error, cases[i].what);
            check_file(c, path, cases[i].before, cases[i].what);
            continue;
        }
        if (!check(c, ok, "%s: %s", cases[i].what, err.text)) continue;
        const LogRow row = row_of(cases[i].at);
        must(log_row(&log, &row, &err) && log_close(&log, &err), "log_row", &err);
        const char* line = cases[i].at == 2 ? ROW(2) : ROW(7);
        char* wanted = xasprintf("%s%s", cases[i].after, line);
        check_file(c, path, wanted, cases[i].what);
        free(wanted);
    }
    remove(path);
    PathList left;
    TostError err;
    char* all = path_join(dir, "*");
    check(c, !expand_glob(&left, all, &err), "log_open must not leave other files");
    free(all);
    free(path);
    drop_folder(dir);
}

// ---------------------------------------------------------------------------------------------
// Model FLOPs utilization

static void test_flops(Checks* c) {
    const TostConfig base = tost_preset_find("tost-base")->config;
    TostTensors t = tost_tensors(&base);
    double products = 0;
    for (int i = 0; i < t.count; i++)
        if (t.tensor[i].ndim == 2 && t.tensor[i].row != TOST_ROW_wpe && t.tensor[i].row != TOST_ROW_temp)
            products += (double)t.tensor[i].size;
    tost_tensors_free(&t);
    const double want = 6 * products + 3 * 12 * (10 * 768 + 8 * 12);
    check(c, flops_per_token(&base) == want, "flops_per_token: %.0f, want %.0f", flops_per_token(&base), want);
    static const struct { const char* device; int multiprocessors; double peak[3]; } known[] = {
        {"NVIDIA H200", 132, {66.9, 494.7, 989.4}},
        {"NVIDIA H200 NVL", 132, {60, 417.5, 835.5}},
        {"NVIDIA GH200 480GB", 132, {66.9, 494.7, 989.4}},
        {"NVIDIA H100 80GB HBM3", 132, {66.9, 494.7, 989.4}},
        {"NVIDIA H100 PCIe", 114, {51.2, 378, 756}},
        {"NVIDIA A100-SXM4-80GB", 108, {19.5, 156, 312}},
        {"NVIDIA L40S", 142, {91.6, 183, 362}},
        {"NVIDIA GeForce RTX 4090", 128, {82.6, 82.6, 165.2}},
        {"NVIDIA GeForce RTX 4090 D", 114, {0, 0, 0}},
        {"NVIDIA GeForce RTX 3090 Ti", 84, {0, 0, 0}},
        {"NVIDIA H100 80GB HBM3 MIG 3g.40gb", 60, {0, 0, 0}},
        {"NVIDIA GeForce GTX 1080", 20, {0, 0, 0}},
        {"NVIDIA L400", 142, {0, 0, 0}},
    };
    for (size_t i = 0; i < countof(known); i++)
        for (int dtype = TOST_FP32; dtype <= TOST_BF16; dtype++) {
            const double peak = flops_peak_of(known[i].device, known[i].multiprocessors, (TostDtype)dtype) * 1e-12;
            const double want = known[i].peak[dtype];
            check(c, fabs(peak - want) < 1e-6, "peak of %s: %g TFLOP/s", known[i].device, peak);
        }
    for (int i = 0; i < 2; i++) {
        const double rate = gemm_measure(i != 0);
        check(c, rate > 1e6 && rate < 1e15, "measured peak of the CPU: %g", rate);
    }
}

// The text written to f. free()
static char* text_of(FILE* f) {
    const size_t n = (size_t)lseek(fileno(f), 0, SEEK_END);
    char* text = xcalloc(n + 1, 1);
    must(pread(fileno(f), text, n, 0) == (ssize_t)n, "pread", NULL);
    return text;
}

// MFU 25% in live and plain lines; nothing if the peak is unknown.
static void test_mfu(Checks* c) {
    for (int kind = 0; kind < 4; kind++) {
        FILE* f = tmpfile();
        must(f != NULL, "tmpfile", NULL);
        Progress p = progress_new(f, false);
        const LogRow row = row_of(0);
        p.live = kind % 2;
        p.peak_tokens_per_s = kind < 2 ? 4 * row.tokens_per_s : 0;
        progress_train(&p, 0, 9, 1, 64);
        progress_micro_batch(&p, 0);
        progress_step(&p, &row);
        progress_end(&p);
        char* text = text_of(f);
        check(c, !strstr(text, kind < 2 ? "  25.0% MFU" : "MFU") == (kind >= 2), "kind %d: \"%s\"", kind, text);
        free(text);
        fclose(f);
    }
}

// ---------------------------------------------------------------------------------------------
// Progress

// Makes the next progress line due.
static void let_time_pass(Progress* p) { p->shown = -1e9; }

// The complete output of a progress display of the last `rows` steps. free()
static char* progress_output(bool live, bool quiet, int64_t steps, int rows) {
    FILE* f = tmpfile();
    must(f != NULL, "tmpfile", NULL);
    Progress p = progress_new(f, quiet);
    p.live = live;
    progress_train(&p, steps - rows, steps, 1, 64);
    for (int i = 0; i < rows; i++) {
        LogRow row = row_of(steps - rows + i);
        let_time_pass(&p);
        progress_micro_batch(&p, 0);
        progress_step(&p, &row);
        if (i == 0) progress_text(&p, "val %s", "3.25");
    }
    progress_end(&p);
    char* text = text_of(f);
    fclose(f);
    return text;
}

// Columns of the widest line. A carriage return starts a new line; escape sequences have no width, UTF-8 characters one
// column.
static int widest(const char* text) {
    int most = 0, columns = 0;
    for (const char* p = text; *p; p++) {
        if (*p == '\r' || *p == '\n') columns = 0;
        else if (*p == '\033') p += 2;
        else if ((*p & 0xc0) != 0x80) columns++;
        if (columns > most) most = columns;
    }
    return most;
}

static void test_progress(Checks* c) {
    setenv("LC_ALL", "C.UTF-8", 1);
    char* plain = progress_output(false, false, 800, 2);
    static const char wanted[] =
        "step 799/800  loss  2.500000  |g|   0.7500  lr 1.000e-03      12.5 ms       5120 tok/s  ETA 0s\n"
        "val 3.25\n"
        "step 800/800  loss  2.500000  |g|   0.7500  lr 1.000e-03      12.5 ms       5120 tok/s\n";
    check(c, strcmp(plain, wanted) == 0, "plain lines: got\n%s", plain);
    free(plain);
    plain = progress_output(false, false, 100, 100);
    check(c, strstr(plain, "\nstep   2/100  loss"), "aligned lines: got\n%s", plain);
    free(plain);
    plain = progress_output(true, true, 10, 3);
    check(c, plain[0] == 0, "quiet: got %s", plain);
    free(plain);
    char* live = progress_output(true, false, 800, 2);
    check(c, strncmp(live, "step 799/800 \u2595", 16) == 0, "live line: expected a bar after the step, got %s",
          live);
    check(c, strstr(live, " loss 2.5000  lr 1.0e-03  |g| 0.75  5.1K tok/s  ETA"), "live line: got %s", live);
    check(c, strstr(live, "\r\033[Kval 3.25\nstep 800/800"), "other text must replace the live line: got %s",
          live);
    check(c, live[strlen(live) - 1] == '\n' && live[strlen(live) - 2] != '\n',
          "the last live line must end with a newline: got %s", live);
    free(live);
    live = progress_output(true, false, 800, 700);
    check(c, strstr(live, "|g| 0.75  5.1K tok/s  ETA "), "a live line with all fields");
    check(c, widest(live) == 79 && strstr(live, "\r\033[Kstep 500/800"), "live lines: %d columns of 80",
          widest(live));
    int colors = 0;
    for (const char* at = live; (at = strchr(at, '\033')); at++) colors += strncmp(at, "\033[K", 3) != 0;
    check(c, colors == 0, "NO_COLOR: live lines have %d colors", colors);
    free(live);
    live = progress_output(true, false, 1000000000000000000, 2);
    check(c, widest(live) <= 79, "a live line with long numbers: %d columns of 80", widest(live));
    free(live);
    setenv("LC_ALL", "C", 1);
    live = progress_output(true, false, 800, 400);
    check(c, strstr(live, "step 800/800 [##") && !strstr(live, "\u2588"), "a bar without UTF-8: got %s",
          live);
    free(live);
    unsetenv("LC_ALL");
}

// Plain lines of a run of 9 steps of 4 micro-batches: the first and last step, and what is due between them.
static void test_progress_plain(Checks* c) {
    FILE* f = tmpfile();
    must(f != NULL, "tmpfile", NULL);
    Progress p = progress_new(f, false);
    check(c, !p.live && p.interval == 5, "a file: live %d, a line each %g s", p.live, p.interval);
    p.interval = 1e9;
    progress_train(&p, 0, 9, 4, 64);
    for (int step = 0; step < 9; step++) {
        const LogRow row = row_of(step);
        for (int done = 0; done < 4; done++) {
            if (step == 5 && done == 3) {   // a long step
                let_time_pass(&p);
                p.step_started -= 30;
                p.run_started -= 180;
            }
            progress_micro_batch(&p, done);
        }
        if (step == 2) let_time_pass(&p);
        progress_step(&p, &row);
    }
    char* text = text_of(f);
    const char *first = strstr(text, "step 1/9  loss"), *due = strstr(text, "step 3/9  loss");
    const char* within = strstr(text, "step 6/9  micro-batch 3/4  1.6 tok/s  step ETA 10s  run ETA 1m");
    const char *time = strstr(text, "time       about 4m4"), *last = strstr(text, "step 9/9  loss");
    check(c, text == first && first < due && due < time && time < within && within < last, "plain lines: got\n%s",
          text);
    int lines = 0;
    for (const char* at = text; *at; at++) lines += *at == '\n';
    check(c, lines == 5 && strstr(text, "tok/s  ETA "), "a line of every step is written:\n%s", text);
    free(text);
    fclose(f);
}

// A reader that stops: the first line waits and later ones are dropped at once; a note says how many are missing.
static void test_progress_stopped(Checks* c) {
    int ends[2];
    must(pipe(ends) == 0, "pipe", NULL);
    fill_pipe(ends[1]);
    FILE* f = fdopen(ends[1], "w");
    Progress p = progress_new(f, false);
    progress_text(&p, "first");
    progress_text(&p, "second");
    check(c, p.failed == EAGAIN && p.stopped && p.missing == 2 && !p.quiet, "two lines: %d missing, errno %d",
          (int)p.missing, p.failed);
    empty_pipe(ends[0]);
    progress_text(&p, "third");
    progress_text(&p, "fourth");
    char text[256] = "";
    check(c, read(ends[0], text, sizeof text - 1) > 0
             && strcmp(text, "(2 lines are missing here: the output was not read)\nthird\nfourth\n") == 0,
          "after the reader continues: %s", text);
    close(ends[0]);
    signal(SIGPIPE, SIG_IGN);
    progress_text(&p, "fifth");
    check(c, p.failed == EPIPE && p.quiet, "a closed pipe: errno %d", p.failed);
    signal(SIGPIPE, SIG_DFL);
    fclose(f);
}

// The output of one line of progress_text. free()
static char* styled_text(ProgressStyle style, bool live, const char* text) {
    FILE* f = tmpfile();
    must(f != NULL, "tmpfile", NULL);
    Progress p = progress_new(f, false);
    p.live = live;
    p.style = style;
    progress_text(&p, "%s", text);
    char* shown = text_of(f);
    fclose(f);
    return shown;
}

// Facts are dim, results bold; text that is wrapped has all its words, in lines that fit.
static void test_progress_styles(Checks* c) {
    static const char fact[] = "data       shards/with/a/name_*.bin: 12 shards, 1.2G tokens, 0.12 epochs of them, "
                               "shuffled";
    static const char* const no_color[] = {NULL, "", "1"};
    const char* saved = getenv("NO_COLOR");
    char* before = saved ? xstrdup(saved) : NULL;
    for (size_t i = 0; i < countof(no_color); i++) {
        const bool color = !no_color[i] || !*no_color[i];
        if (no_color[i]) setenv("NO_COLOR", no_color[i], 1);
        else unsetenv("NO_COLOR");
        char *plain = styled_text(PROGRESS_FACT, false, fact), *live = styled_text(PROGRESS_FACT, true, fact);
        char *result = styled_text(PROGRESS_RESULT, true, "loss 2"), *command = styled_text(PROGRESS_PLAIN, true, fact);
        check(c, strncmp(plain, fact, sizeof fact - 1) == 0 && plain[sizeof fact - 1] == '\n', "a fact in a file: %s",
              plain);
        check(c, strncmp(command, fact, sizeof fact - 1) == 0, "a command is not wrapped: %s", command);
        check(c, strstr(live, "\n           them, shuffled"), "a fact continues below its first word: %s", live);
        check(c, (strncmp(live, "\033[2mdata", 8) == 0) == color && (strstr(live, "\033[0m\n") != NULL) == color,
              "a fact on a terminal, color %d: %s", color, live);
        check(c, strcmp(result, color ? "\033[1mloss 2\033[0m\n" : "loss 2\n") == 0, "a result, color %d: %s", color,
              result);
        free(plain), free(live), free(result), free(command);
    }
    if (before) setenv("NO_COLOR", before, 1);
    free(before);
    static const struct { const char *text, *wanted; int width; } wraps[] = {
        {"  | one two three", "  | one\n  | two\n  | three", 9},
        {"", "", 5},
        {"  |  two  spaces ", "  |  two  spaces ", 80},
        {"alongwordthatcannotbesplit x", "alongwordthatcannotbesplit\n  | x", 10},
        {"\u00e9\u00e9\u00e9\u00e9 b", "\u00e9\u00e9\u00e9\u00e9 b", 6},
        {"\u65e5\u672c\u8a9e b", "\u65e5\u672c\u8a9e\n  | b", 7},   // two columns each
    };
    for (size_t i = 0; i < countof(wraps); i++) {
        char* wrapped = wrap_text(wraps[i].text, 0, wraps[i].width, "  | ");
        check(c, strcmp(wrapped, wraps[i].wanted) == 0, "wrapped to %d columns: got '%s', expected '%s'",
              wraps[i].width, wrapped, wraps[i].wanted);
        free(wrapped);
    }
}

// Live lines must be narrower than the terminal, at every width.
static void test_progress_width(Checks* c) {
    const int master = posix_openpt(O_RDWR | O_NOCTTY);
    const bool ready = master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0;
    const int slave = ready ? open(ptsname(master), O_RDWR | O_NOCTTY) : -1;
    if (slave < 0) {
        skip(c, "no pseudo-terminal: live lines of other widths not tested");
        if (master >= 0) close(master);
        return;
    }
    FILE* out = fdopen(slave, "w");
    must(out != NULL, "fdopen", NULL);
    Progress p = progress_new(out, false);
    p.live = true;
    p.announced = true;   // a text line may wrap
    progress_train(&p, 0, 100000, 4, 64);
    for (unsigned short width = 2; width < 200; width++) {
        struct winsize size = {.ws_row = 24, .ws_col = width};
        must(ioctl(slave, TIOCSWINSZ, &size) == 0, "TIOCSWINSZ", NULL);
        for (int kind = 0; kind < 3; kind++) {
            char text[4096];
            const LogRow row = row_of(1000 + width);
            let_time_pass(&p);
            if (kind == 0) progress_step(&p, &row);
            if (kind == 1) progress_micro_batch(&p, 0), p.step_started -= 10, progress_micro_batch(&p, 3);
            if (kind == 2) progress_show(&p, 0.25, "validation %d/%d", 5, 20);
            const ssize_t n = read(master, text, sizeof text - 1);
            must(n > 0, "read of a pseudo-terminal", NULL);
            text[n] = 0;
            check(c, widest(text) < width, "a live line of %d columns on a terminal of %d: %s", widest(text),
                  width, text);
        }
    }
    fclose(out);
    close(master);
}

// ---------------------------------------------------------------------------------------------
// Checkpoints: round trip and finding

static StMeta some_options[] = {{"lr", "0.003"}, {"data", "a \"b\"/*.bin"}};

static CheckpointInfo info_of(int64_t step) {
    return (CheckpointInfo){
        .config = tiny, .step = step, .tokens = step * 4096, .data_sample = UINT64_MAX - 1, .seed = 42,
        .best_val_loss = 3.1415926535897931, .tokenizer = "data/starter/vocab.bpe",
        .outliers = {.loss = {.count = 2, .next = 2, .value = {0.1, 1e-300}}, .skipped = step, .in_a_row = step / 2},
        .unvalidated_row = "999,64,2.5,,1e-3,0.75,12.5,5120\n", .tokenizer_hash = 0x00c0ffee,
        .n_options = countof(some_options), .options = some_options,
    };
}

static CheckpointModel model_of(const TostModel* m) {
    return (CheckpointModel){&fake, (TostModel*)m, &m->tensors, NULL};
}

static bool save_info(const char* run, const CheckpointInfo* info, const TostModel* m, int keep, TostError* err) {
    const CheckpointModel model = model_of(m);
    return make_dirs(run, err) && checkpoint_save(run, SAVE_STEP, info, &model, err)
           && checkpoint_prune(run, info->step, keep, err);
}

static void save(const char* run, const TostModel* m, int64_t step, int keep) {
    TostError err;
    CheckpointInfo info = info_of(step);
    must(save_info(run, &info, m, keep, &err), "checkpoint_save", &err);
}

static bool read_info(CheckpointInfo* info, const char* path, TostError* err) {
    StFile f;
    const bool ok = checkpoint_open(&f, info, path, "--model", err);
    if (ok) st_close(&f);
    return ok;
}

static bool load_params(TostModel* m, const char* file, TostError* err) {
    StFile f;
    if (!st_open(&f, file, err)) return false;
    const CheckpointModel model = model_of(m);
    const bool ok = checkpoint_load_params(&model, &m->tensors, &f, err);
    st_close(&f);
    return ok;
}

static bool load_moments(TostModel* m, const char* file, TostError* err) {
    StFile f;
    if (!st_open(&f, file, err)) return false;
    const CheckpointModel model = model_of(m);
    const bool ok = checkpoint_load_moments(&model, &f, err);
    st_close(&f);
    return ok;
}

static char* step_path(const char* run, int64_t step, const char* file) {
    return xasprintf("%s/step_%08" PRId64 "/%s", run, step, file);
}

// Checks that `path` leads to the checkpoint of that step, and that it loads what was saved.
static void check_found(Checks* c, const char* path, int64_t step, const TostModel* saved, const char* what) {
    TostError err;
    StFile f;
    CheckpointInfo info;
    if (!check(c, checkpoint_open(&f, &info, path, "--model", &err), "%s: expected step %d, got: %s", what, (int)step,
               err.text))
        return;
    TostModel* m = fake_new(tiny);
    const CheckpointModel model = model_of(m);
    bool ok = checkpoint_load_params(&model, &m->tensors, &f, &err) && checkpoint_load_moments(&model, &f, &err);
    if (check(c, ok, "%s: %s", what, err.text)) {
        check(c, info.step == step, "%s: expected step %d, got %d", what, (int)step, (int)info.step);
        check(c, same_state(m, saved, TOST_PARAM) && same_moments(m, saved), "%s: the loaded values differ", what);
    }
    checkpoint_info_free(&info);
    st_close(&f);
    fake_free(m);
}

static void test_round_trip(Checks* c) {
    TostError err;
    char* dir = new_folder();
    char* run = path_join(dir, "made/when/needed");
    TostModel* m = fake_new(tiny);
    fake_fill(m, 1);
    save(run, m, 1000, 0);
    check_found(c, run, 1000, m, "round trip");
    check(c, m->gets == 3 * m->tensors.count, "a save must read each tensor once: %d gets", m->gets);
    char* file = step_path(run, 1000, "model.safetensors");
    CheckpointInfo wanted = info_of(1000), is;
    if (check(c, read_info(&is, file, &err), "read_info: %s", err.text)) {
        check(c, memcmp(&is.config, &tiny, sizeof tiny) == 0, "read_info: the config differs");
        check(c, is.step == 1000 && is.tokens == 4096000 && is.data_sample == wanted.data_sample
              && is.seed == 42 && is.best_val_loss == wanted.best_val_loss, "read_info: numbers differ");
        check(c, is.tokenizer_hash == wanted.tokenizer_hash && strcmp(is.tokenizer, wanted.tokenizer) == 0,
              "read_info: the tokenizer differs");
        check(c, memcmp(&is.outliers, &wanted.outliers, sizeof is.outliers) == 0, "read_info: outlier windows");
        check(c, is.unvalidated_row && strcmp(is.unvalidated_row, wanted.unvalidated_row) == 0,
              "read_info: the unvalidated row differs");
        bool same = is.n_options == wanted.n_options;
        for (int i = 0; same && i < is.n_options; i++)
            same = strcmp(is.options[i].key, some_options[i].key) == 0
                && strcmp(is.options[i].value, some_options[i].value) == 0;
        check(c, same, "read_info: options differ");
        checkpoint_info_free(&is);
    }
    StFile f;
    must(st_open(&f, file, &err), "st_open", &err);
    bool names = f.n_tensors == m->tensors.count;
    for (int i = 0; names && i < f.n_tensors; i++)
        names = strcmp(f.tensors[i].name, m->tensors.tensor[i].name) == 0 && f.tensors[i].dtype == ST_F32;
    check(c, names && strcmp(st_meta(&f, "format"), "pt") == 0,
          "model.safetensors: the tensors of the table, F32, format pt");
    st_close(&f);
    CheckpointInfo bare = {.config = tiny, .step = 1001, .best_val_loss = INFINITY};
    must(save_info(run, &bare, m, 0, &err), "checkpoint_save", &err);
    free(file);
    file = step_path(run, 1001, "model.safetensors");
    if (check(c, read_info(&is, file, &err), "read_info: %s", err.text)) {
        check(c, isinf(is.best_val_loss) && !is.tokenizer && is.n_options == 0, "read_info without optional fields");
        checkpoint_info_free(&is);
    }
    free(file);
    free(run);
    fake_free(m);
    drop_folder(dir);
}

static void check_find_refused(Checks* c, const char* path, const char* expected) {
    TostError err;
    CheckpointInfo info;
    const bool ok = read_info(&info, path, &err);
    check_refused(c, ok, &err, expected, path);
    if (ok) checkpoint_info_free(&info);
}

static bool is_run(const char* path) {
    TostError err;
    bool result = false;
    must(checkpoint_is_run(&result, path, &err), "checkpoint_is_run", &err);
    return result;
}

static void test_find(Checks* c) {
    TostError err;
    char* dir = new_folder();
    char* run = path_join(dir, "run");
    TostModel* m = fake_new(tiny);
    fake_fill(m, 2);
    check_find_refused(c, run, "cannot be found: No such file");
    must(make_dirs(run, &err), "make_dirs", &err);
    check_find_refused(c, run, "no complete checkpoint");
    check(c, !is_run(run), "an empty folder is not a run");
    char* stale = path_join(run, "step_00000300.tmp");
    save(run, m, 300, 0);
    char* folder = path_join(run, "step_00000300");
    must(rename(folder, stale) == 0, "rename", NULL);
    check_find_refused(c, run, "no complete checkpoint");
    check_find_refused(c, stale, "incomplete checkpoint");
    check(c, is_run(run), "a folder with an unfinished checkpoint is a run");
    save(run, m, 100000000, 0);
    check(c, !path_exists(stale), "a save must remove unfinished folders");
    save(run, m, 99999999, 0);
    check_found(c, run, 100000000, m, "steps are compared as numbers");
    char* gone = step_path(run, 100000000, "optimizer.safetensors");
    must(remove(gone) == 0, "remove", NULL);
    check_found(c, run, 99999999, m, "a folder that lacks a file is ignored");
    free(folder);
    folder = path_join(run, "step_99999999/");
    check_found(c, folder, 99999999, m, "a checkpoint folder");
    free(gone);
    gone = step_path(run, 99999999, "model.safetensors");
    check_found(c, gone, 99999999, m, "the file itself");
    char* note = path_join(run, "note.txt");
    write_text(note, "mine");
    check(c, checkpoint_clear(run, &err) && !is_run(run) && path_exists(note),
          "checkpoint_clear must remove only checkpoints");
    must(remove(note) == 0, "remove", NULL);
    char* log = path_join(run, "log.csv");
    write_text(log, "");
    check(c, is_run(run), "a folder with a log is a run");
    char* paths[] = {run, stale, folder, gone, note, log};
    for (size_t i = 0; i < countof(paths); i++) free(paths[i]);
    fake_free(m);
    drop_folder(dir);
}

static void set_time(const char* file, time_t seconds, long ns) {
    const struct timespec t[2] = {{seconds, ns}, {seconds, ns}};
    must(utimensat(AT_FDCWD, file, t, 0) == 0, "utimensat", NULL);
}

static void test_newest_run(Checks* c) {
    TostError err;
    char *dir = new_folder(), *found = NULL;
    check(c, !checkpoint_newest_run(&found, dir, "--model PATH", &err) && strstr(err.text, "train"), "no run: %s",
          err.text);
    char* absent = path_join(dir, "absent");
    check(c, !checkpoint_newest_run(&found, absent, "--model PATH", &err) && strstr(err.text, "train"), "no root: %s",
          err.text);
    free(absent);
    TostModel* m = fake_new(tiny);
    static const struct { const char* name; int64_t step; time_t s; long ns; } runs[] = {
        {"b-001", 10, 5000, 7}, {"a-002", 500, 5000, 9}, {"c-003", 700, 4000, 999},
        {"d-004", 9, 5000, 9},  {"e-005", 9, 5000, 8},
    };
    for (size_t i = 0; i < countof(runs); i++) {
        char* run = path_join(dir, runs[i].name);
        save(run, m, runs[i].step, 0);
        char* file = step_path(run, runs[i].step, "model.safetensors");
        set_time(file, runs[i].s, runs[i].ns);
        const char* wanted = i == 0 ? "b-001" : i < 3 ? "a-002" : "d-004";   // equal times: the later name
        check(c, checkpoint_newest_run(&found, dir, "--model PATH", &err) && strstr(found, wanted),
              "newest of %zu runs: expected %s, got %s", i + 1, wanted, found ? found : err.text);
        free(found);
        free(file);
        free(run);
    }
    static const struct { const char *make, *preset, *next; } numbers[] = {
        {NULL, "starter", "starter-001"},       {"starter-001", "starter", "starter-002"},
        {"starter-041", "starter", "starter-042"}, {"starter-9x", "starter", "starter-042"},
        {"starter-999", "starter", "starter-1000"}, {"start-7", "starter", "starter-1000"},
        {NULL, "start", "start-008"},           {"start-99999999", "start", "start-100000000"},
        {"start-100000000", "start", "start-100000001"}, {"start-9999999999999999999", "start", "start-100000001"},
        {"start-999999999999999", "start", "start-1000000000000000"},
        {"start-1000000000000000", "start", "start-1000000000000001"},
    };
    for (size_t i = 0; i < countof(numbers); i++) {
        if (numbers[i].make) {
            char* made = path_join(dir, numbers[i].make);
            must(make_dirs(made, &err), "make_dirs", &err);
            free(made);
        }
        char *wanted = path_join(dir, numbers[i].next), *next = checkpoint_next_run(dir, numbers[i].preset);
        check(c, strcmp(next, wanted) == 0, "next run: expected %s, got %s", wanted, next);
        free(wanted);
        free(next);
    }
    fake_free(m);
    drop_folder(dir);
}

// ---------------------------------------------------------------------------------------------
// Checkpoints: saving

// The entries of a folder as "name name … ", sorted. free()
static char* listing(const char* dir) {
    TostError err;
    PathList list;
    char* all = path_join(dir, "*");
    char* text = xstrdup("");
    if (expand_glob(&list, all, &err)) {
        for (int i = 0; i < list.count; i++) text = append_text(text, "%s ", strrchr(list.paths[i], '/') + 1);
        free_paths(&list);
    }
    free(all);
    return text;
}

static void check_listing(Checks* c, const char* dir, const char* wanted, const char* what) {
    char* is = listing(dir);
    check(c, strcmp(is, wanted) == 0, "%s: expected %s, got %s", what, wanted, is);
    free(is);
}

static void test_keep(Checks* c) {
    char *dir = new_folder(), *note = path_join(dir, "step_note.txt");
    TostModel* m = fake_new(tiny);
    write_text(note, "mine");
    for (int64_t step = 1; step <= 4; step++) save(dir, m, step, 0);
    check_listing(c, dir, "step_00000001 step_00000002 step_00000003 step_00000004 step_note.txt ", "keep 0");
    save(dir, m, 5, 3);
    check_listing(c, dir, "step_00000003 step_00000004 step_00000005 step_note.txt ", "keep 3");
    save(dir, m, 4, 1);
    check_listing(c, dir, "step_00000004 step_00000005 step_note.txt ", "keep 1 removes older ones only");
    fake_fill(m, 9);
    save(dir, m, 5, 2);
    check_listing(c, dir, "step_00000004 step_00000005 step_note.txt ", "a step saved twice");
    check_found(c, dir, 5, m, "the second save of a step replaces the first");
    free(note);
    fake_free(m);
    drop_folder(dir);
}

// Kills the process while it saves tensor n, for every n: the previous checkpoint must survive.
static void test_killed(Checks* c) {
    char* dir = new_folder();
    TostModel *m = fake_new(tiny), *later = fake_new(tiny);
    fake_fill(m, 1);
    fake_fill(later, 2);
    save(dir, m, 8, 0);
    for (int n = 1; n <= 3 * m->tensors.count; n++) {
        fflush(stdout);
        pid_t child = fork();
        must(child >= 0, "fork", NULL);
        if (child == 0) {
            later->die_at_get = n;
            save(dir, later, 9, 1);
            _exit(0);
        }
        int status;
        must(waitpid(child, &status, 0) == child, "waitpid", NULL);
        check(c, WIFSIGNALED(status), "the process must be killed at tensor %d", n);
        check_listing(c, dir, "step_00000008 step_00000009.tmp ", "after a kill");
        check_found(c, dir, 8, m, "after a kill");
    }
    save(dir, later, 9, 1);
    check_listing(c, dir, "step_00000009 ", "a save after a kill");
    check_found(c, dir, 9, later, "a save after a kill");
    fake_free(m);
    fake_free(later);
    drop_folder(dir);
}

// The first checkpoint of a run that replaces another one.
static void test_replacement(Checks* c) {
    TostError err;
    char* dir = new_folder();
    TostModel *old = fake_new(tiny), *new = fake_new(tiny);
    fake_fill(old, 1);
    fake_fill(new, 2);
    for (int64_t step = 3; step <= 9; step += 6) {   // 9: the old run has a checkpoint of the same step
        const CheckpointInfo info = info_of(step);
        const CheckpointModel model = model_of(new);
        bool has;
        save(dir, old, 8, 0);
        save(dir, old, 9, 0);
        check(c, checkpoint_finish_replacement(dir, &err), "nothing to finish: %s", err.text);
        check(c, checkpoint_has_replacement(&has, dir, &err) && !has, "no replacement");
        check_found(c, dir, 9, old, "before the replacement");
        bool ok = checkpoint_save(dir, SAVE_REPLACEMENT, &info, &model, &err);
        char* listed = xasprintf("%sstep_00000008 step_00000009 %s", step < 8 ? "step_00000003.new " : "",
                                 step < 8 ? "" : "step_00000009.new ");
        check(c, ok, "save_replacement: %s", err.text);
        check_listing(c, dir, listed, "after the replacement is saved");
        free(listed);
        check_found(c, dir, step, new, "the replacement counts");
        check(c, checkpoint_has_replacement(&has, dir, &err) && has, "a replacement");
        check(c, checkpoint_finish_replacement(dir, &err), "finish: %s", err.text);
        check_listing(c, dir, step < 8 ? "step_00000003 " : "step_00000009 ", "after the replacement");
        check_found(c, dir, step, new, "after the replacement");
        check(c, checkpoint_clear(dir, &err), "clear: %s", err.text);
    }
    fake_free(old);
    fake_free(new);
    drop_folder(dir);
}

// A process saves and prunes as fast as it can: a run must always open, with the values of one checkpoint.
static void test_readers(Checks* c) {
    TostError err;
    char* dir = new_folder();
    TostModel *m = fake_new(tiny), *is = fake_new(tiny);
    fake_fill(m, 1);
    save(dir, m, 1, 1);
    fflush(stdout);
    const pid_t child = fork();
    must(child >= 0, "fork", NULL);
    if (child == 0) {
        for (int64_t step = 2; step < 1000000; step++) {
            fake_fill(m, (float)step);
            save(dir, m, step, 1);
        }
        _exit(0);
    }
    int failed = 0, differ = 0;
    char* found = NULL;
    for (int i = 0; i < 1000; i++) {
        StFile f;
        CheckpointInfo info;
        if (!checkpoint_open(&f, &info, dir, "--model", &err)) {
            failed++;
            continue;
        }
        fake_fill(m, (float)info.step);
        const CheckpointModel model = model_of(is);
        if (!checkpoint_load_params(&model, &is->tensors, &f, &err)) failed++;
        else differ += !same_state(is, m, TOST_PARAM);
        checkpoint_info_free(&info);
        st_close(&f);
        if (i % 10 == 0 && !checkpoint_newest_run(&found, dir, "--model PATH", &err)) failed++;
        else if (i % 10 == 0) free(found);
    }
    must(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child, "kill", NULL);
    check(c, failed == 0 && differ == 0, "beside a run that saves, %d of 1000 failed to open, %d differ: %s", failed,
          differ, failed ? err.text : "");
    fake_free(m);
    fake_free(is);
    drop_folder(dir);
}

static void test_save_fails(Checks* c) {
    TostError err;
    char *dir = new_folder(), *file = path_join(dir, "file"), *run = path_join(dir, "run");
    TostModel *m = fake_new(tiny), *later = fake_new(tiny);
    CheckpointInfo info = info_of(2);
    write_text(file, "x");
    bool ok = save_info(file, &info, m, 1, &err);
    check_refused(c, ok, &err, file, "a run that is a file");
    fake_fill(m, 3);
    save(run, m, 1, 0);
    // A write fails in the middle of either file.
    signal(SIGXFSZ, SIG_IGN);
    char* saved = step_path(run, 1, "model.safetensors");
    struct stat st;
    must(stat(saved, &st) == 0, "stat", NULL);
    free(saved);
    const struct { rlim_t bytes; const char* file; } limits[] = {
        {100, "model.safetensors"}, {(rlim_t)st.st_size - 1, "model.safetensors"},
        {(rlim_t)st.st_size + 1, "optimizer.safetensors"}};
    for (size_t i = 0; i < countof(limits); i++) {
        limit_file_size(limits[i].bytes);
        ok = save_info(run, &info, later, 1, &err);
        limit_file_size(RLIM_INFINITY);
        check_refused(c, ok, &err, limits[i].file, "a full disk");
        check(c, strstr(err.text, "File too large; step 2 is not saved"), "expected the reason: %s", err.text);
        check_listing(c, run, "step_00000001 ", "after a failed save");
        check_found(c, run, 1, m, "after a failed save");
    }
    signal(SIGXFSZ, SIG_DFL);
    if (geteuid() != 0) {
        must(chmod(run, 0555) == 0, "chmod", NULL);
        ok = save_info(run, &info, m, 1, &err);
        check_refused(c, ok, &err, "step_00000002.tmp", "a read-only folder");
        must(chmod(run, 0755) == 0, "chmod", NULL);
    } else {
        skip(c, "root ignores permissions: saving into a read-only folder not tested");
    }
    free(file);
    free(run);
    fake_free(m);
    fake_free(later);
    drop_folder(dir);
}

// ---------------------------------------------------------------------------------------------
// Checkpoints: damage

// A safetensors file in memory, to be modified and written with a new CRC.
typedef struct {
    int       n_tensors, n_meta;
    StTensor  tensor[128];
    float*    data[128];    // with room for 16 more numbers
    StMeta    meta[32];
} Editable;

static Editable read_editable(const char* path) {
    TostError err;
    StFile f;
    Editable l = {0};
    must(st_open(&f, path, &err), "st_open", &err);
    for (int i = 0; i < f.n_tensors; i++) {
        l.tensor[i] = f.tensors[i];
        l.data[i] = xcalloc(f.tensors[i].count + 16, sizeof(float));
        must(st_read_f32(&f, &f.tensors[i], l.data[i], &err), "st_read_f32", &err);
    }
    for (int i = 0; i < f.n_meta; i++) l.meta[i] = (StMeta){xstrdup(f.meta[i].key), xstrdup(f.meta[i].value)};
    l.n_tensors = f.n_tensors;
    l.n_meta = f.n_meta;
    st_close(&f);
    return l;
}

static void write_editable(Editable* l, const char* path) {
    TostError err;
    StWriter w;
    must(st_begin(&w, path, l->tensor, l->n_tensors, l->meta, l->n_meta, &err), "st_begin", &err);
    for (int i = 0; i < l->n_tensors; i++) {
        size_t bytes = l->tensor[i].dtype == ST_F64 ? 8 : 4;
        for (int d = 0; d < l->tensor[i].ndim; d++) bytes *= (size_t)l->tensor[i].shape[d];
        must(st_append(&w, l->data[i], bytes, &err), "st_append", &err);
        free(l->data[i]);
    }
    must(st_finish(&w, &err), "st_finish", &err);
    for (int i = 0; i < l->n_meta; i++) {
        free(l->meta[i].key);
        free(l->meta[i].value);
    }
}

static int tensor_at(const Editable* l, const char* name) {
    for (int i = 0; i < l->n_tensors; i++)
        if (strcmp(l->tensor[i].name, name) == 0) return i;
    must(false, name, NULL);
    return -1;
}

static void drop_tensor(Editable* l, const char* name) {
    const int at = tensor_at(l, name);
    free(l->data[at]);
    l->n_tensors--;
    memmove(&l->tensor[at], &l->tensor[at + 1], (size_t)(l->n_tensors - at) * sizeof *l->tensor);
    memmove(&l->data[at], &l->data[at + 1], (size_t)(l->n_tensors - at) * sizeof *l->data);
}

static void copy_tensor(Editable* l, const char* from, const char* name) {
    const int at = tensor_at(l, from), n = l->n_tensors++;
    l->tensor[n] = l->tensor[at];
    snprintf(l->tensor[n].name, sizeof l->tensor[n].name, "%s", name);
    l->data[n] = xcalloc(l->tensor[at].count + 16, sizeof(float));
    memcpy(l->data[n], l->data[at], l->tensor[at].count * sizeof(float));
}

// value = NULL removes the key; key = NULL: all keys
static void set_meta(Editable* l, const char* key, const char* value) {
    int kept = 0;
    for (int i = 0; i < l->n_meta; i++) {
        const bool match = !key || strcmp(l->meta[i].key, key) == 0;
        if (match) free(l->meta[i].value);
        if (match && value) l->meta[i].value = xstrdup(value);
        if (match && !value) free(l->meta[i].key);
        else l->meta[kept++] = l->meta[i];
    }
    l->n_meta = kept;
}

// A change of one file of a checkpoint. name: a tensor, or a metadata key; value: its new name or value. VALUE changes
// element 3 of a tensor.
typedef enum {
    NOTHING, DROP, COPY, RENAME, SHAPE, SPLIT, VALUE, TO_I32, TO_F64, META, FLIP, CUT, EMPTY, REMOVE
} Change;
typedef struct {
    const char* what;
    const char* file;          // "model" or "optimizer"
    Change      change;
    const char *name, *value;
    const char* refused_by;    // "info", "params", "moments"; NULL: accepted
    const char* error;
} Damage;

static void damage_tensor(Editable* l, const Damage* d) {
    StTensor* t = d->change == META || d->change == NOTHING ? NULL : &l->tensor[tensor_at(l, d->name)];
    switch (d->change) {
        case DROP:   drop_tensor(l, d->name); break;
        case COPY:   copy_tensor(l, d->name, d->value); break;
        case RENAME: snprintf(t->name, sizeof t->name, "%s", d->value); break;
        case SHAPE:  t->shape[0]++; break;   // data has room for it
        case SPLIT:  t->ndim++; t->shape[t->ndim - 1] = 1; break;
        case VALUE:  l->data[t - l->tensor][3] = strtof(d->value, NULL); break;
        case TO_I32: t->dtype = ST_I32; break;
        case META:   set_meta(l, d->name, d->value); break;
        default:     break;
    }
}

// Rewrites one tensor as F64 of the same values.
static void widen_tensor(Editable* l, const char* name) {
    const int at = tensor_at(l, name);
    double* wide = xcalloc(l->tensor[at].count, sizeof *wide);
    for (uint64_t i = 0; i < l->tensor[at].count; i++) wide[i] = l->data[at][i];
    free(l->data[at]);
    l->data[at] = (float*)wide;
    l->tensor[at].dtype = ST_F64;
}

static void damage_file(const char* path, const Damage* d) {
    if (d->change == REMOVE) must(remove(path) == 0, path, NULL);
    else if (d->change == EMPTY) write_text(path, "");
    else if (d->change == FLIP || d->change == CUT) {
        Bytes b = bytes_of(path);
        b.data[b.size - 1] ^= 1;
        write_bytes(path, b.data, d->change == CUT ? b.size - 1 : b.size);
        free(b.data);
    } else {
        Editable l = read_editable(path);
        if (d->change == TO_F64) widen_tensor(&l, d->name);
        else damage_tensor(&l, d);
        write_editable(&l, path);
    }
}

static void check_damage(Checks* c, const char* dir, const TostModel* saved, const Damage* d) {
    TostError err;
    CheckpointInfo info;
    char* run = path_join(dir, "damaged");
    must(remove_tree(run, &err), "remove_tree", &err);
    save(run, saved, 7, 0);
    char* file = step_path(run, 7, "model.safetensors");
    char* damaged = xasprintf("%s/step_00000007/%s.safetensors", run, d->file);
    damage_file(damaged, d);
    TostModel* m = fake_new(tiny);
    const char* stage = d->refused_by ? d->refused_by : "";
    bool ok = read_info(&info, file, &err);
    if (ok) {
        check(c, memcmp(&info.config, &tiny, sizeof tiny) == 0, "%s: the config differs", d->what);
        checkpoint_info_free(&info);
    }
    if (strcmp(stage, "info") == 0) check_refused(c, ok, &err, d->error, d->what);
    else check(c, ok, "%s: read_info: %s", d->what, err.text);
    ok = load_params(m, file, &err);
    if (strcmp(stage, "params") == 0) check_refused(c, ok, &err, d->error, d->what);
    else if (strcmp(stage, "info") != 0) check(c, ok, "%s: load_params: %s", d->what, err.text);
    const int most = d->change == VALUE ? m->tensors.count : 0;   // values are checked tensor by tensor
    check(c, ok ? same_state(m, saved, TOST_PARAM) : m->puts <= most, "%s: %d tensors were loaded", d->what, m->puts);
    m->puts = 0;
    ok = load_moments(m, file, &err);
    if (strcmp(stage, "moments") == 0) check_refused(c, ok, &err, d->error, d->what);
    else if (!stage[0] && !d->error) check(c, ok, "%s: load_moments: %s", d->what, err.text);
    check(c, ok ? same_moments(m, saved) : m->puts <= 2 * most, "%s: %d moments were loaded", d->what, m->puts);
    fake_free(m);
    free(damaged);
    free(file);
    free(run);
}

static const Damage damages[] = {
    {"rewritten unchanged", "model", NOTHING, "", "", NULL, NULL},
    {"a flipped bit", "model", FLIP, "", "", "params", "CRC-32"},
    {"the last byte missing", "model", CUT, "", "", "info", "model.safetensors"},
    {"an empty file", "model", EMPTY, "", "", "info", "model.safetensors"},
    {"no file", "model", REMOVE, "", "", "info", "model.safetensors"},
    {"a missing tensor", "model", DROP, "transformer.h.1.attn.temp", "", "info", "h.1.attn.temp' is missing"},
    {"no wte", "model", DROP, "transformer.wte.weight", "", "info", "wte.weight' is missing"},
    {"a missing bias", "model", DROP, "transformer.h.0.mlp.c_fc.bias", "", "info", "c_fc.bias' is missing"},
    {"no final bias", "model", DROP, "transformer.ln_f.bias", "", "info", "'bias' is '1', expected the size"},
    {"an unknown tensor", "model", COPY, "transformer.ln_f.bias", "head.bias",
     "info", "'head.bias' does not belong"},
    {"an extra layer", "model", COPY, "transformer.ln_f.bias", "transformer.h.2.ln_1.bias",
     "info", "'n_layer' is '2', expected the size"},
    {"a renamed tensor", "model", RENAME, "transformer.h.1.gamma1", "transformer.h.1.gamma3",
     "info", "h.1.gamma1' is missing"},
    {"a wrong shape", "model", SHAPE, "transformer.h.1.mlp.c_fc.bias", "",
     "info", "has shape (17), expected (16)"},
    {"an extra dimension", "model", SPLIT, "transformer.h.0.gamma2", "",
     "info", "has shape (4, 1), expected (4)"},
    {"wte of three dimensions", "model", SPLIT, "transformer.wte.weight", "", "info", "has shape (7, 4, 1)"},
    {"another vocabulary", "model", SHAPE, "transformer.wte.weight", "", "info", "'vocab_size' is '7', expected the size"},
    {"another block size", "model", SHAPE, "transformer.wpe.weight", "", "info", "'block_size' is '3', expected the size"},
    {"integers", "model", TO_I32, "transformer.h.1.gamma2", "", "info", "is I32"},
    {"heads that do not divide", "model", SHAPE, "transformer.h.0.attn.temp", "", "info", "'n_head' is '2', expected the size"},
    {"an equal lm_head", "model", COPY, "transformer.wte.weight", "lm_head.weight", NULL, NULL},
    {"another lm_head", "model", COPY, "transformer.wpe.weight", "lm_head.weight",
     "info", "lm_head.weight' has shape"},
    {"a newer format", "model", META, "format_version", "2", "info", "format_version 2"},
    {"another config", "model", META, "n_layer", "3", "info", "'n_layer' is '3', expected the size"},
    {"no step", "model", META, "step", NULL, "info", "no 'step'"},
    {"a negative step", "model", META, "step", "-1", "info", "'step' is '-1'"},
    {"a step with other characters", "model", META, "step", "7x", "info", "'step' is '7x'"},
    {"an empty step", "model", META, "step", "", "info", "'step' is ''"},
    {"too many tokens", "model", META, "tokens", "9223372036854775808", "info", "'tokens'"},
    {"a seed over 64 bits", "model", META, "seed", "18446744073709551616", "info", "'seed'"},
    {"no loss", "model", META, "best_val_loss", "low", "info", "'best_val_loss' is 'low'"},
    {"a negative number of skipped steps", "model", META, "skipped", "-1", "info", "'skipped' is '-1'"},
    {"more steps skipped than done", "model", META, "skipped", "99999999", "info", "more steps validated or skipped"},
    {"losses that are not numbers", "model", META, "last_losses", "1 x", "info", "'last_losses' is '1 x'"},
    {"norms that are not finite", "model", META, "last_grad_norms", "nan", "info", "'last_grad_norms'"},
    {"a malformed hash", "model", META, "tokenizer_hash", "c0ffeez", "info", "'tokenizer_hash'"},
    {"no config", "model", META, "bias", NULL, "info", "no 'bias'"},
    {"no metadata: a file of another program", "model", META, NULL, NULL, NULL, "moments are not checked"},
    {"a NaN in a position that training does not use", "model", VALUE, "transformer.wpe.weight", "nan",
     "params", "tensor 'transformer.wpe.weight' has nan at [0, 3], expected a finite number"},
    {"an infinite parameter", "model", VALUE, "transformer.h.1.mlp.c_fc.weight", "-inf",
     "params", "'transformer.h.1.mlp.c_fc.weight' has -inf at [0, 3]"},
    {"a NaN in a first moment", "optimizer", VALUE, "m.transformer.ln_f.bias", "nan",
     "moments", "'m.transformer.ln_f.bias' has nan at [3]"},
    {"a negative second moment", "optimizer", VALUE, "v.transformer.wte.weight", "-1e-30",
     "moments", "'v.transformer.wte.weight' has -1e-30 at [0, 3], expected a finite number of at least 0"},
    {"an infinite second moment", "optimizer", VALUE, "v.transformer.wpe.weight", "inf",
     "moments", "'v.transformer.wpe.weight' has inf at [0, 3]"},
    {"a tensor in double", "model", TO_F64, "transformer.h.1.attn.denom_bias", "", NULL, NULL},
    {"moments of another step", "optimizer", META, "step", "8", "moments", "different checkpoints"},
    {"moments of another run", "optimizer", META, "option.lr", "1",
     "moments", "option.lr is '1', but '0.003'"},
    {"moments without an option", "optimizer", META, "option.lr", NULL,
     "moments", "option.lr is '0.003', but ''"},
    {"moments without metadata", "optimizer", META, NULL, NULL, "moments", "different checkpoints"},
    {"flipped moments", "optimizer", FLIP, "", "", "moments", "CRC-32"},
    {"moments cut short", "optimizer", CUT, "", "", "moments", "optimizer.safetensors"},
    {"no moments", "optimizer", REMOVE, "", "", "moments", "optimizer.safetensors"},
    {"no m of a tensor", "optimizer", DROP, "m.transformer.h.0.gamma1", "",
     "moments", "'m.transformer.h.0.gamma1' is missing"},
    {"no v of a tensor", "optimizer", DROP, "v.transformer.ln_f.bias", "",
     "moments", "'v.transformer.ln_f.bias' is missing"},
    {"an unknown moment", "optimizer", COPY, "v.transformer.ln_f.bias", "w.transformer.ln_f.bias",
     "moments", "does not belong"},
    {"a wrong moment", "optimizer", SHAPE, "v.transformer.ln_f.bias", "",
     "moments", "has shape (5), expected (4)"},
    {"moments in double", "optimizer", TO_F64, "v.transformer.h.1.attn.temp", "", NULL, NULL},
};

static void test_damage(Checks* c) {
    char* dir = new_folder();
    TostModel* m = fake_new(tiny);
    fake_fill(m, 5);
    for (size_t i = 0; i < countof(damages); i++) check_damage(c, dir, m, &damages[i]);
    fake_free(m);
    drop_folder(dir);
}

// Files of other programs (without metadata), an lm_head that differs from wte, and a model of another size.
static void test_foreign_files(Checks* c) {
    TostError err;
    CheckpointInfo info;
    char *dir = new_folder(), *file = step_path(dir, 7, "model.safetensors");
    TostConfig larger = tiny;
    larger.n_embd = 8;
    TostModel *m = fake_new(tiny), *large = fake_new(larger);
    fake_fill(m, 6);
    save(dir, m, 7, 0);
    bool ok = load_params(large, file, &err);
    check_refused(c, ok, &err, "'transformer.wte.weight' has shape (7, 4), expected (7, 8)",
                  "a larger model");
    Editable l = read_editable(file);
    set_meta(&l, NULL, NULL);
    write_editable(&l, file);
    if (check(c, read_info(&info, file, &err), "without metadata: %s", err.text)) {
        check(c,
              memcmp(&info.config, &tiny, sizeof tiny) == 0 && info.step == 0 && info.tokens == 0
                  && !info.tokenizer && info.n_options == 0 && isinf(info.best_val_loss),
              "without metadata: the config follows from names and shapes");
        checkpoint_info_free(&info);
    }
    l = read_editable(file);
    copy_tensor(&l, "transformer.wte.weight", "lm_head.weight");
    l.data[l.n_tensors - 1][27] += 1;
    write_editable(&l, file);
    m->puts = 0;
    ok = load_params(m, file, &err);
    check_refused(c, ok, &err, "lm_head.weight' differs from transformer.wte.weight at element 27",
                  "an untied lm_head");
    check(c, m->puts == 0, "an untied lm_head: %d tensors put", m->puts);
    fake_free(m);
    fake_free(large);
    free(file);
    drop_folder(dir);
}

// Flips one bit in each byte of the file, then truncates it: the file must be rejected or loaded with the same values.
static void test_every_byte(Checks* c) {
    TostError err;
    CheckpointInfo info;
    char *dir = new_folder(), *file = step_path(dir, 7, "model.safetensors");
    TostModel *m = fake_new(tiny), *into = fake_new(tiny);
    fake_fill(m, 7);
    save(dir, m, 7, 0);
    Bytes good = bytes_of(file);
    int wrong = 0, accepted = 0;
    for (size_t i = 0; i < good.size; i++) {
        good.data[i] ^= 1 << i % 7;
        write_bytes(file, good.data, good.size);
        good.data[i] ^= 1 << i % 7;
        bool ok = read_info(&info, file, &err);
        if (ok) {
            wrong += memcmp(&info.config, &tiny, sizeof tiny) != 0;
            checkpoint_info_free(&info);
            ok = load_params(into, file, &err);
        }
        accepted += ok;
        wrong += ok && !same_state(into, m, TOST_PARAM);
        wrong += !ok && (strlen(err.text) == 0 || strchr(err.text, '\n'));
    }
    check(c, wrong == 0 && accepted > 0 && accepted < 1000, "%d of %zu flipped bits misread, %d accepted", wrong,
          good.size, accepted);
    for (size_t n = 0; n < good.size; n += 13) {
        write_bytes(file, good.data, n);
        wrong += load_params(into, file, &err);
    }
    check(c, wrong == 0, "%d truncated files were accepted", wrong);
    free(good.data);
    fake_free(m);
    fake_free(into);
    free(file);
    drop_folder(dir);
}

// ---------------------------------------------------------------------------------------------
// Generation

typedef struct { char text[64]; size_t n, stop_at; } Sink;   // stops generation after stop_at bytes; 0: never

static bool take_piece(void* context, const char* bytes, size_t n) {
    Sink* s = context;
    must(s->n + n < sizeof s->text, "sink", NULL);
    memcpy(s->text + s->n, bytes, n);
    s->n += n;
    return s->n != s->stop_at;
}

// The decode calls as text: "|begin abc|step d", with <> for <|endoftext|>. free()
static char* calls_text(const TostModel* m, const Tokenizer* tokenizer) {
    char* text = xstrdup("");
    for (int i = 0; i < m->n_calls; i++) {
        const Call* call = &m->calls[i];
        text = append_text(text, "%s", call->T ? "|begin " : "|step ");
        for (int k = 0; k < (call->T ? call->T : 1); k++) {
            size_t n;
            const char* piece = tokenizer_piece(tokenizer, (uint32_t)call->ids[k], &n);
            text = append_text(text, "%.*s", call->ids[k] == 256 ? 2 : (int)n, call->ids[k] == 256 ? "<>" : piece);
        }
    }
    return text;
}

static Tokenizer* byte_tokenizer(void) {
    TostError err;
    char *dir = new_folder(), *path = path_join(dir, "bytes.bpe");
    write_text(path, "#version: 0.2\n");
    Tokenizer* tokenizer = tokenizer_open(path, &err);
    must(tokenizer != NULL, "tokenizer_open", &err);
    free(path);
    drop_folder(dir);
    return tokenizer;
}

typedef struct {
    const char* what;
    int         block_size;
    const char *prompt, *script;   // script: the model's output; '.' for <|endoftext|>, '?' for NaN logits
    int         max_tokens;
    size_t      stop_at;
    const char *text, *calls;
    int         tokens;
    const char* error;
} GenerateCase;

static const GenerateCase generate_cases[] = {
    {"an empty prompt", 8, "", "abc", 3, 0, "abc", "|begin <>|step a|step b", 3, NULL},
    {"a prompt", 8, "xyz", "ab", 2, 0, "ab", "|begin xyz|step a", 2, NULL},
    {"one token", 8, "xyz", "a", 1, 0, "a", "|begin xyz", 1, NULL},
    {"no tokens", 8, "xyz", "a", 0, 0, "", "", 0, NULL},
    {"the end of text", 8, "xyz", "ab.cd", 5, 0, "ab", "|begin xyz|step a|step b", 2, NULL},
    {"the end at once", 8, "xyz", ".abc", 4, 0, "", "|begin xyz", 0, NULL},
    {"a sink that stops", 8, "xyz", "abcd", 4, 2, "ab", "|begin xyz|step a", 2, NULL},
    {"more tokens than the block size", 8, "uvwxyz", "abcdefghij", 10, 0, "abcdefghij",
     "|begin uvwxyz|step a|step b|begin zabc|step d|step e|step f|step g|begin efgh|step i", 10, NULL},
    {"a prompt of the block size", 8, "stuvwxyz", "abc", 3, 0, "abc", "|begin stuvwxyz|begin xyza|step b", 3, NULL},
    {"a prompt longer than the block size", 8, "rstuvwxyz", "abc", 3, 0, "abc", "|begin wxyz|step a|step b", 3, NULL},
    {"an odd block size", 5, "xyz", "abcdef", 6, 0, "abcdef",
     "|begin xyz|step a|step b|begin bc|step d|step e", 6, NULL},
    {"a block size of 1", 1, "xyz", "abc", 3, 0, "abc", "|begin z|begin a|begin b", 3, NULL},
    {"bytes that are not UTF-8", 8, "\xff", "\xc3\x28\x80", 3, 0, "\xc3\x28\x80",
     "|begin \xff|step \xc3|step (", 3, NULL},
    {"logits of NaN", 8, "xyz", "a?", 3, 0, "a", "|begin xyz|step a", 1, "not numbers"},
};

static void check_generate(Checks* c, const Tokenizer* tokenizer, const GenerateCase* s) {
    TostError err;
    const TostConfig config = {1, 1, 1, s->block_size, 260, 0, TOST_LEARNED};
    TostModel* m = fake_new(config);
    uint32_t prompt[MAX_IDS], id;
    int32_t script[MAX_IDS];
    for (size_t i = 0; s->script[i]; i++) {
        must(tokenizer_encode(tokenizer, &id, &s->script[i], 1) == 1, "tokenizer_encode", NULL);
        script[i] = s->script[i] == '.' ? tokenizer_eot(tokenizer) : s->script[i] == '?' ? -1 : (int32_t)id;
    }
    m->script = script;
    const size_t n = tokenizer_encode(tokenizer, prompt, s->prompt, strlen(s->prompt));
    Sink sink = {.stop_at = s->stop_at};
    GenerateResult result;
    Rng rng = rng_seeded(0, 0);
    const Generator generator = {&fake, m, &config, tokenizer, {0, 0, 1}, take_piece, &sink, NULL};
    bool ok = generate(&result, &generator, prompt, n, s->max_tokens, &rng, &err);
    if (s->error) check_refused(c, ok, &err, s->error, s->what);
    else check(c, ok, "%s: %s", s->what, err.text);
    check(c, strcmp(sink.text, s->text) == 0, "%s: expected '%s', got '%s'", s->what, s->text, sink.text);
    check(c, result.tokens == s->tokens && result.seconds >= 0, "%s: expected %d tokens, got %d", s->what,
          s->tokens, (int)result.tokens);
    char* calls = calls_text(m, tokenizer);
    check(c, strcmp(calls, s->calls) == 0, "%s: expected the calls %s, got %s", s->what, s->calls, calls);
    free(calls);
    fake_free(m);
}

static void test_generate(Checks* c) {
    TostError err;
    Tokenizer* tokenizer = byte_tokenizer();
    for (size_t i = 0; i < countof(generate_cases); i++) check_generate(c, tokenizer, &generate_cases[i]);
    TostConfig config = {1, 1, 1, 8, 260, 0, TOST_LEARNED};
    TostModel* m = fake_new(config);
    GenerateResult result;
    Rng rng = rng_seeded(0, 0);
    Sink sink = {0};
    const uint32_t unknown[] = {1, 257};
    const Generator generator = {&fake, m, &config, tokenizer, {0, 0, 1}, take_piece, &sink, NULL};
    bool ok = generate(&result, &generator, unknown, 2, 4, &rng, &err);
    check_refused(c, ok, &err, "token 1 has the id 257", "an unknown id in the prompt");
    config.vocab_size = 256;
    ok = generate(&result, &generator, unknown, 1, 4, &rng, &err);
    check_refused(c, ok, &err, "257 tokens, but the model's vocabulary has 256",
                  "a tokenizer that is too large");
    check(c, m->n_calls == 0 && sink.n == 0, "no engine call after an error");
    fake_free(m);
    tokenizer_free(tokenizer);
}

// ---------------------------------------------------------------------------------------------
// Text with document separators, as inspect reads it

static void test_documents(Checks* c) {
    // $: <|endoftext|>
    static const struct { const char *text, *ids; } cases[] = {
        {"one", "one"},
        {"one\n", "one\n"},
        {"one\n<|endoftext|>\ntwo\n", "one$two\n"},
        {"one\r\n<|endoftext|>\r\ntwo", "one$two"},
        {"one\n\n<|endoftext|>", "one\n$"},
        {"<|endoftext|>\n", "$"},
        {"<|endoftext|>\n<|endoftext|>\n\nx", "$$\nx"},
        {"one\n<|endoftext|>\r", "one\n<|endoftext|>\r"},   // neither LF nor CRLF
    };
    Tokenizer* tokenizer = byte_tokenizer();
    for (size_t i = 0; i < countof(cases); i++) {
        const size_t n = strlen(cases[i].text);
        uint32_t* ids = xmalloc(n * sizeof *ids);
        char* is = xcalloc(n + 1, 1);
        const size_t n_ids = encode_documents(ids, tokenizer, cases[i].text, n);
        for (size_t k = 0; k < n_ids; k++) {
            size_t len;
            is[k] = (int)ids[k] == tokenizer_eot(tokenizer) ? '$' : *tokenizer_piece(tokenizer, ids[k], &len);
        }
        check(c, strcmp(is, cases[i].ids) == 0, "text %zu: expected '%s', got '%s'", i, cases[i].ids, is);
        free(ids);
        free(is);
    }
    static const char inside[] = "a <|endoftext|>\n<|endoftext|> b";   // not on lines of their own
    uint32_t ids[sizeof inside];
    check(c, encode_documents(ids, tokenizer, inside, sizeof inside - 1) == sizeof inside - 1,
          "a separator within a line is ordinary text");
    tokenizer_free(tokenizer);
}

// ---------------------------------------------------------------------------------------------
// Options that depend on the build

static void test_threads(Checks* c) {
    static const struct { char* n; bool many; } cases[] = {{"0", false}, {"1", false}, {"2", true}};
    for (size_t i = 0; i < countof(cases); i++) {
        char* argv[] = {"train_gpt_tost", "sample", "--threads", cases[i].n, NULL};
        Options o;
        TostError err = {{0}};
        const bool ok = options_parse(&o, 4, argv, &fake, NULL, &err);
        if (cases[i].many && !THREADS_MANY)
            check_refused(c, ok, &err, "built without OpenMP", "more than one thread");
        else check(c, ok, "--threads %s: %s", cases[i].n, err.text);
        options_free(&o);
    }
}

int main(void) {
    Checks c = {.suite = "modules"};
    test_schedule(&c);
    test_init(&c);
    test_extend(&c);
    test_cut(&c);
    test_greedy(&c);
    test_distributions(&c);
    test_many_ids(&c);
    test_log_rows(&c);
    test_pending_rows(&c);
    test_row_text(&c);
    test_log_fresh(&c);
    test_log_resume(&c);
    test_threads(&c);
    test_flops(&c);
    test_mfu(&c);
    test_progress(&c);
    test_progress_plain(&c);
    test_progress_stopped(&c);
    test_progress_styles(&c);
    test_progress_width(&c);
    test_round_trip(&c);
    test_find(&c);
    test_newest_run(&c);
    test_keep(&c);
    test_killed(&c);
    test_replacement(&c);
    test_readers(&c);
    test_save_fails(&c);
    test_damage(&c);
    test_foreign_files(&c);
    test_every_byte(&c);
    test_generate(&c);
    test_documents(&c);
    return checks_verdict(&c);
}
