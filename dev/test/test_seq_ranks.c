// test_seq_ranks.c: one sequence on several ranks (--seq-ranks), which are threads of this process. K ranks must
// compute the same bits as one process with K chunks.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOST_NO_MAIN
#include "train_gpt_tost.c"

#include "check.h"
#include "chunks.h"
#include "comm_threads.h"
#include "init.h"
#include "rng.h"

enum { B = 2, STEPS = 2, PER_PART = 2, PARTS_MAX = 4 };

typedef struct {
    const char* what;
    TostConfig  config;
    TostDtype   dtype;
    bool        recompute;
    int         parts, seq_ranks;   // of the whole step; K
} Case;

typedef struct { double norm[STEPS], loss[STEPS], validation[STEPS]; float* state[TOST_STATES]; } Outcome;

// What the ranks of one run share. ranks 1: one process, in chunks
typedef struct {
    const Case* of;
    TostTensors tensors;
    int         ranks, first, steps;
    const Outcome* start;           // state to continue from, or NULL
    Outcome     out;
} Run;

static float initial_value(const TostTensor* t, Rng* rng) {
    const float about = t->init == TOST_ONE ? 1.0f : t->init == TOST_GAMMA ? 0.5f : 0.0f;
    return about + 0.4f * (float)(rng_uniform(rng) - 0.5);
}

static void put_initial(TostModel* m, const TostTensors* tensors) {
    Rng rng = rng_seeded(21, 0);
    for (int i = 0; i < tensors->count; i++) {
        const TostTensor* t = &tensors->tensor[i];
        float* values = xmalloc(t->size * sizeof *values);
        for (size_t j = 0; j < t->size; j++) values[j] = initial_value(t, &rng);
        tost_cpu_engine.put(m, TOST_PARAM, t, values);
        free(values);
    }
}

// Columns [first, first + n) of a random micro-batch: inputs, targets (B,n). Some targets do not count.
static void random_columns(int32_t* inputs, int32_t* targets, const TostConfig* c, uint64_t number, int first, int n) {
    Rng rng = rng_seeded(11, number);
    for (int b = 0; b < B; b++) {
        for (int t = 0; t < c->block_size; t++) {
            const int32_t input = (int32_t)rng_below(&rng, (uint64_t)c->vocab_size);
            const int32_t target = t % 5 == 3 ? -1 : (int32_t)rng_below(&rng, (uint64_t)c->vocab_size);
            if (t < first || t >= first + n) continue;
            inputs[b * n + t - first] = input;
            targets[b * n + t - first] = target;
        }
    }
}

static TostModel* new_model(const Case* k, TostComm* comm, int ranks, int parts) {
    const int T = k->config.block_size, K = ranks > 1 ? k->seq_ranks : 1;
    const TostEngineOptions o = {.max_batch = B, .max_seq = T, .chunk = T / k->seq_ranks, .training = true,
                                 .dtype = k->dtype, .recompute = k->recompute, .threads = 1, .comm = comm,
                                 .parts = parts, .seq_ranks = K};
    TostError err;
    TostModel* m = tost_cpu_engine.create(&k->config, &o, &err);
    if (!m) abort();
    return m;
}

// Adds the losses of all parts, in order.
static double add_parts(TostComm* comm, const double* own, int n, const Run* r) {
    double all[PARTS_MAX * PARTS_MAX * 4], sum = 0;
    const int K = r->ranks > 1 ? r->of->seq_ranks : 1;
    comm_allgather(comm, all, own, (size_t)n * sizeof *own);
    for (int p = 0; p < r->of->parts; p++) sum += all[p / n * K * n + p % n];
    return sum;
}

static void step_on_rank(TostModel* m, Run* r, TostComm* comm, int step) {
    const Case* k = r->of;
    const int T = k->config.block_size, K = r->ranks > 1 ? k->seq_ranks : 1, n = T / K;
    const int groups = r->ranks / K, own = k->parts / groups, group = comm_rank(comm) / K, q = comm_rank(comm) % K;
    int32_t *inputs = xmalloc((size_t)B * n * sizeof *inputs), *targets = xmalloc((size_t)B * n * sizeof *targets);
    double losses[PARTS_MAX], unused[PARTS_MAX];
    int64_t count = 0;
    tost_cpu_engine.zero_grad(m);
    for (int i = 0; i < own * PER_PART; i++) {
        const bool ends = i % PER_PART == PER_PART - 1;
        random_columns(inputs, targets, &k->config, (uint64_t)((step * k->parts + group * own) * PER_PART + i), q * n, n);
        tost_cpu_engine.forward_train(m, inputs, targets, B, n, 1.0f / (float)(k->parts * PER_PART * B * T));
        tost_cpu_engine.backward(m, !ends ? TOST_MORE : i + 1 < own * PER_PART ? TOST_PART_ENDS : TOST_STEP_ENDS);
        if (ends) tost_cpu_engine.read_loss(&losses[i / PER_PART], &count, m);
    }
    const double loss = add_parts(comm, losses, own, r), norm = tost_cpu_engine.grad_norm(m);
    const TostAdamW adamw = {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1,
                             .grad_scale = norm > 1 ? 1 / norm : 1, .step = step + 1};
    for (int i = 0; step + 1 == r->steps && i < r->tensors.count; i++)
        tost_cpu_engine.get(comm_rank(comm) == 0 ? r->out.state[TOST_GRAD] + r->tensors.tensor[i].offset : NULL, m,
                            TOST_GRAD, &r->tensors.tensor[i]);
    tost_cpu_engine.update(m, &adamw);
    tost_cpu_engine.forward_loss(m, inputs, targets, 1, n);   // of one sequence
    tost_cpu_engine.read_loss(unused, &count, m);
    if (comm_rank(comm) == 0) {
        r->out.loss[step] = loss;
        r->out.norm[step] = norm;
        if (groups == 1) r->out.validation[step] = unused[0] / (double)count;
    }
    free(inputs);
    free(targets);
}

static void run_rank(TostComm* comm, void* context) {
    Run* r = context;
    const int K = r->ranks > 1 ? r->of->seq_ranks : 1;
    TostModel* m = new_model(r->of, comm, r->ranks, r->of->parts / (r->ranks / K));
    if (!r->start) put_initial(m, &r->tensors);
    for (int s = 0; r->start && s < TOST_EMA; s++)
        for (int i = 0; i < r->tensors.count && s != TOST_GRAD; i++)
            tost_cpu_engine.put(m, (TostState)s, &r->tensors.tensor[i],
                                r->start->state[s] + r->tensors.tensor[i].offset);
    for (int step = r->first; step < r->steps; step++) step_on_rank(m, r, comm, step);
    for (int s = 0; s < TOST_EMA; s++)
        for (int i = 0; i < r->tensors.count && s != TOST_GRAD && (s != TOST_PARAM || comm_rank(comm) == 0); i++)
            tost_cpu_engine.get(comm_rank(comm) == 0 ? r->out.state[s] + r->tensors.tensor[i].offset : NULL, m,
                                (TostState)s, &r->tensors.tensor[i]);
    tost_cpu_engine.destroy(m);
}

static Run run(Checks* c, const Case* k, int ranks, int first, int steps, const Outcome* start) {
    Run r = {.of = k, .tensors = tost_tensors(&k->config), .ranks = ranks, .first = first, .steps = steps,
             .start = start};
    for (int s = 0; s < TOST_EMA; s++) r.out.state[s] = xcalloc(r.tensors.flat_size, sizeof(float));
    const int lost = run_ranks(ranks, run_rank, &r);
    check(c, lost == 0, "%s, %d ranks: %d messages are lost", k->what, ranks, lost);
    return r;
}

static void run_free(Run* r) {
    for (int s = 0; s < TOST_EMA; s++) free(r->out.state[s]);
    tost_tensors_free(&r->tensors);
}

static void compare(Checks* c, const Run* chunks, const Run* ranks, const char* how) {
    static const char* const names[] = {"parameters", "gradients", "m", "v"};
    const Case* k = chunks->of;
    for (int s = 0; s < TOST_EMA; s++)
        for (int i = 0; i < chunks->tensors.count; i++) {
            const TostTensor* t = &chunks->tensors.tensor[i];
            check(c, memcmp(chunks->out.state[s] + t->offset, ranks->out.state[s] + t->offset,
                            t->size * sizeof(float)) == 0,
                  "%s, %d ranks%s: %s of %s differ from those of chunks", k->what, ranks->ranks, how, names[s],
                  t->name);
        }
    for (int step = ranks->first; step < ranks->steps; step++) {
        const Outcome *a = &chunks->out, *b = &ranks->out;
        check(c, a->norm[step] == b->norm[step] && a->loss[step] == b->loss[step],
              "%s, %d ranks%s, step %d: norm %.17g, loss %.17g; chunks: %.17g, %.17g", k->what, ranks->ranks, how, step,
              b->norm[step], b->loss[step], a->norm[step], a->loss[step]);
        check(c, ranks->ranks > k->seq_ranks || k->parts > 1 || a->validation[step] == b->validation[step],
              "%s, %d ranks%s, step %d: validation %.17g, chunks %.17g", k->what, ranks->ranks, how, step,
              b->validation[step], a->validation[step]);
    }
}

// One process with chunks, one group of ranks, and a group per part.
static void test_same_bits(Checks* c, const Case* k) {
    Run chunks = run(c, k, 1, 0, STEPS, NULL);
    for (int groups = 1; groups <= k->parts; groups *= 2) {
        Run ranks = run(c, k, groups * k->seq_ranks, 0, STEPS, NULL);
        compare(c, &chunks, &ranks, "");
        run_free(&ranks);
    }
    Run half = run(c, k, k->seq_ranks, 0, 1, NULL), rest = run(c, k, 1, 1, STEPS, &half.out);
    compare(c, &chunks, &rest, ", continued in chunks");
    run_free(&half);
    run_free(&rest);
    half = run(c, k, 1, 0, 1, NULL);
    rest = run(c, k, k->seq_ranks, 1, STEPS, &half.out);
    compare(c, &chunks, &rest, ", continued on ranks");
    check(c, isfinite(chunks.out.loss[STEPS - 1]) && chunks.out.loss[0] != chunks.out.loss[1], "%s: no training",
          k->what);
    run_free(&half);
    run_free(&rest);
    run_free(&chunks);
}

// ---------------------------------------------------------------------------------------------
// Across the cut

// The loss of the targets of one rank, the last or the first, and its gradient, after wpe was moved along `move`.
typedef struct {
    const Case* of;
    bool        last;          // only the targets of the last rank count; false: only those of the first
    int         changed;       // position whose input is changed, or -1
    const float* move;         // (BLOCK,C), or NULL
    double      step, loss;
    float*      dwpe;          // (BLOCK,C), or NULL
} Probe;

static void probe_rank(TostComm* comm, void* context) {
    Probe* p = context;
    const Case* k = p->of;
    const int K = k->seq_ranks, n = k->config.block_size / K, q = comm_rank(comm);
    TostTensors tensors = tost_tensors(&k->config);
    const TostTensor* wpe = tost_tensor_find(&tensors, "transformer.wpe.weight");
    TostModel* m = new_model(k, comm, K, 1);
    int32_t *inputs = xmalloc((size_t)B * n * sizeof *inputs), *targets = xmalloc((size_t)B * n * sizeof *targets);
    float* values = xmalloc(wpe->size * sizeof *values);
    int64_t count;
    double loss;
    put_initial(m, &tensors);
    tost_cpu_engine.get(values, m, TOST_PARAM, wpe);
    for (size_t i = 0; p->move && i < wpe->size; i++) values[i] += (float)(p->step * p->move[i]);
    tost_cpu_engine.put(m, TOST_PARAM, wpe, values);
    random_columns(inputs, targets, &k->config, 5, q * n, n);
    for (int i = 0; i < B * n; i++)
        if (q != (p->last ? K - 1 : 0)) targets[i] = -1;
    if (p->changed / n == q && p->changed >= 0) inputs[p->changed % n] ^= 1;
    tost_cpu_engine.zero_grad(m);
    tost_cpu_engine.forward_train(m, inputs, targets, B, n, 1.0f);
    tost_cpu_engine.backward(m, TOST_STEP_ENDS);
    tost_cpu_engine.read_loss(&loss, &count, m);
    if (p->dwpe) tost_cpu_engine.get(q == 0 ? p->dwpe : NULL, m, TOST_GRAD, wpe);
    if (q == 0) p->loss = loss;
    free(inputs);
    free(targets);
    free(values);
    tost_tensors_free(&tensors);
    tost_cpu_engine.destroy(m);
}

static double probe(const Case* k, bool last, int changed, const float* move, double step, float* dwpe) {
    Probe p = {k, last, changed, move, step, 0, dwpe};
    run_ranks(k->seq_ranks, probe_rank, &p);
    return p.loss;
}

// The last rank's losses must depend on the first rank's positions, which is possible only through the sums that are
// sent and the adjoints that are sent back. The first rank's losses must not depend on later positions.
static void test_across_cut(Checks* c, const Case* k) {
    const int T = k->config.block_size, n = T / k->seq_ranks;
    const size_t C = (size_t)k->config.n_embd, size = (size_t)T * C, first = (size_t)n * C;
    float *dwpe = xcalloc(size, sizeof *dwpe), *move = xcalloc(size, sizeof *move);
    double squares = 0, after = 0;
    probe(k, true, -1, NULL, 0, dwpe);
    for (size_t i = 0; i < first; i++) squares += (double)dwpe[i] * dwpe[i];
    const double norm = sqrt(squares), step = 0.02;
    for (size_t i = 0; i < first; i++) move[i] = (float)(dwpe[i] / norm);
    const double slope = (probe(k, true, -1, move, step, NULL) - probe(k, true, -1, move, -step, NULL)) / (2 * step);
    check(c, fabs(slope - norm) <= 0.01 * norm, "%s: gradient %.6g across the cut, finite difference %.6g", k->what,
          norm, slope);
    probe(k, false, -1, NULL, 0, dwpe);
    for (size_t i = first; i < size; i++) after += fabs(dwpe[i]);
    check(c, after == 0, "%s: the losses of the first rank have gradients at later positions", k->what);
    const double before = probe(k, false, -1, NULL, 0, NULL);
    check(c, before == probe(k, false, T - 1, NULL, 0, NULL) && before == probe(k, false, n, NULL, 0, NULL),
          "%s: the losses of the first rank depend on later tokens", k->what);
    check(c, before != probe(k, false, n - 1, NULL, 0, NULL), "%s: a token has no effect", k->what);
    check(c, probe(k, true, -1, NULL, 0, NULL) != probe(k, true, 0, NULL, 0, NULL),
          "%s: the first token has no effect on the last rank", k->what);
    free(dwpe);
    free(move);
}

// ---------------------------------------------------------------------------------------------
// Sums

typedef struct { double before[4], after[4]; bool loss[4], cut; } Sums;   // cut: a document starts in chunk 2

// Numbers whose sum depends on the order.
static void sum_rank(TostComm* comm, void* context) {
    static const double own[] = {1e16, 1.0, -1e16, 3.0};
    Sums* s = context;
    const TostConfig config = {.n_layer = 1, .n_head = 1, .n_embd = 4, .block_size = 8, .vocab_size = 4,
                               .document_token = -1};
    Chunks x = chunks_new(&config, comm, 4);
    const int q = comm_rank(comm);
    const int32_t tokens[] = {1, q == 2 ? 3 : 2};
    double up = 5, down = 5;
    int64_t n = 1;
    bool cuts[4];
    x.cuts = cuts;
    chunks_find_cuts(&x, tokens, 1, 2, s->cut ? 3 : -1);
    chunks_sum_before(&s->before[q], &own[q], 1, 1, &x, CHUNKS_FROM_FIRST);
    chunks_sum_before(&s->after[q], &own[q], 1, 1, &x, CHUNKS_FROM_LAST);
    chunks_add_loss(&up, &n, own[q], q, &x, CHUNKS_FROM_FIRST);
    chunks_add_loss(&down, &n, own[q], q, &x, CHUNKS_FROM_LAST);
    s->loss[q] = up == 5 + 1e16 + 1.0 - 1e16 + 3.0 && down == 5 + 3.0 - 1e16 + 1.0 + 1e16 && n == 13;
    chunks_free(&x);
}

static void test_sums(Checks* c, bool cut) {
    const double before[] = {0, 1e16, 1e16 + 1.0, cut ? -1e16 : 1e16 + 1.0 - 1e16};
    const double after[] = {(cut ? 0 : 3.0) - 1e16 + 1.0, (cut ? 0 : 3.0) - 1e16, 3.0, 0};
    Sums s = {.cut = cut};
    check(c, run_ranks(4, sum_rank, &s) == 0, "sums: messages are lost");
    for (int q = 0; q < 4; q++) {
        check(c, s.before[q] == before[q], "rank %d: sum %.17g of the chunks before it, want %.17g", q, s.before[q],
              before[q]);
        check(c, s.after[q] == after[q], "rank %d: sum %.17g of the chunks after it, want %.17g", q, s.after[q],
              after[q]);
        check(c, s.loss[q], "rank %d: losses", q);
    }
}

// ---------------------------------------------------------------------------------------------

int main(void) {
    Checks c = {.suite = "test_seq_ranks"};
    test_sums(&c, false);
    test_sums(&c, true);
    const TostConfig plain = {.n_layer = 2, .n_head = 4, .n_embd = 64, .block_size = 160, .vocab_size = 257,
                              .document_token = -1};
    const TostConfig odd = {.n_layer = 3, .n_head = 3, .n_embd = 51, .block_size = 39, .vocab_size = 101, .bias = 1,
                            .document_token = -1};
    const TostConfig uniform = {.n_layer = 1, .n_head = 2, .n_embd = 30, .block_size = 12, .vocab_size = 40,
                                .membership = TOST_UNIFORM, .document_token = -1};
    TostConfig documents = plain;
    documents.vocab_size = 60;
    documents.document_token = 7;   // half of the chunks have one
    const Case cases[] = {
        {"2 chunks", plain, TOST_FP32, false, 2, 2},
        {"4 chunks, recompute", plain, TOST_FP32, true, 1, 4},
        {"3 chunks, biases", odd, TOST_FP32, false, 4, 3},
        {"2 chunks, uniform membership", uniform, TOST_FP32, false, 1, 2},
        {"4 chunks, documents", documents, TOST_FP32, true, 2, 4},
        {"12 chunks of a token", uniform, TOST_FP32, false, 1, 12},
        {"2 chunks, bf16", plain, TOST_BF16, false, 1, 2},
    };
    for (size_t i = 0; i < countof(cases); i++) test_same_bits(&c, &cases[i]);
    test_across_cut(&c, &cases[0]);
    test_across_cut(&c, &cases[2]);
    return checks_verdict(&c);
}
