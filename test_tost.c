// test_tost.c: the judge. Holds an engine to float64 truth (golden files), to a recorded loss curve, to finite differences,
// and to itself: causality, decode against forward, the same bits twice, linear memory; and on a GPU the CUDA engine to
// the CPU engine, in every type.
//
//     test_tost                  everything; what is absent is said and counted as skipped
//     test_tost --golden DIR     only the pairs NAME.params.safetensors, NAME.expect.safetensors of a folder
//
// The exit status is the verdict.

#define TOST_NO_MAIN
#include "train_gpt_tost.c"

#include "dev/test/check.h"
#include "dev/test/engines.h"
#include "tost/data.h"
#include "tost/init.h"
#include "tost/rng.h"
#include "tost/safetensors.h"
#include "tost/schedule.h"

// Limits of relative L2 error, float32 against float64 truth.
#define LIMIT_LOGITS 1e-5
#define LIMIT_GRADS  1e-4
#define LIMIT_PARAMS 1e-5
#define LIMIT_LOSS   1e-5    // absolute, nats
#define LIMIT_CURVE  5e-4    // absolute, nats, at every step of the recorded run
#define LIMIT_DECODE 1e-5

// ---------------------------------------------------------------------------------------------
// Tools

static double* widen(const float* x, size_t n) {
    double* y = xmalloc(n * sizeof *y);
    for (size_t i = 0; i < n; i++) y[i] = x[i];
    return y;
}

// |a - b| / |b| over n elements; where b is zero, |a|. NaN where either holds one.
static double relative_l2(const float* a, const double* b, size_t n) {
    double* wide = widen(a, n);
    const double error = relative_distance(wide, b, n);
    free(wide);
    return error;
}

// The larger error; NaN is larger than all and stays.
static double worse(double worst, double error) { return isnan(worst) || error <= worst ? worst : error; }

static Subject subject_new(const TostEngine* engine, TostConfig config, int B, int T, bool training) {
    return subject_of(engine, config, B, T, training, TOST_FP32);
}

static int32_t* random_ids(size_t n, int vocab_size, uint64_t seed) {
    Rng rng = rng_seeded(seed, 2);
    int32_t* ids = xmalloc(n * sizeof *ids);
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)rng_below(&rng, vocab_size);
    return ids;
}

// Forward, backward, clipping and AdamW, as the training loop does them; returns the loss, and the norm before clipping.
static double train_step(double* norm, Subject* s, const int32_t* inputs, const int32_t* targets, int B, int T,
                         TostAdamW a, double clip) {
    int64_t count = 0;
    for (int i = 0; i < B * T; i++) count += targets[i] >= 0;
    s->engine->zero_grad(s->model);
    s->engine->forward_train(s->model, inputs, targets, B, T, 1.0f / (float)count);
    s->engine->backward(s->model);
    *norm = subject_update(s, a, clip);
    return mean_loss(s);
}

// ---------------------------------------------------------------------------------------------
// Golden files

static double meta_number(const StFile* f, const char* key) {
    TostError err;
    const char* value = st_meta(f, key);
    char* end = NULL;
    const double x = value ? strtod(value, &end) : NAN;
    die_on(end != value && *end == '\0' && fabs(x) < 1e9, (tost_error(&err, "%s: %s is not a number in its metadata", f->path, key), &err));
    return x;
}
static int meta_int(const StFile* f, const char* key) { return (int)meta_number(f, key); }

static TostConfig meta_config(const StFile* f) {
    return (TostConfig){meta_int(f, "n_layer"), meta_int(f, "n_head"), meta_int(f, "n_embd"), meta_int(f, "block_size"),
                        meta_int(f, "vocab_size"), meta_int(f, "bias"), TOST_LEARNED};
}

// Compares one tensor with the file's `prefix``name`, prints its error, and counts the verdict.
static void judge(Checks* c, const StFile* expect, const char* prefix, const char* name, const float* got, size_t n, double limit) {
    char full[ST_NAME_MAX];
    TostError err;
    snprintf(full, sizeof full, "%s%s", prefix, name);
    const StTensor* t = st_find(expect, full);
    if (!check(c, t && t->count == n, "%s: %s is absent or of another size", expect->path, full)) return;
    double* want = xmalloc(n * sizeof *want);
    die_on(st_read_f64(expect, t, want, &err), &err);
    const double error = relative_l2(got, want, n);
    printf("    %-52s %9.2e\n", full, error);
    check(c, error <= limit, "%s: %s: relative L2 error %.3e, limit %.0e", expect->path, full, error, limit);
    free(want);
}

static void judge_tensors(Checks* c, Subject* s, TostState state, const StFile* expect, const char* prefix, double limit) {
    for (int i = 0; i < s->tensors.count; i++) {
        const TostTensor* t = &s->tensors.tensor[i];
        float* got = subject_get(s, state, t);
        judge(c, expect, prefix, t->name, got, t->size, limit);
        free(got);
    }
}

static void read_params(Subject* s, const StFile* f) {
    TostError err;
    for (int i = 0; i < s->tensors.count; i++) {
        const TostTensor* t = &s->tensors.tensor[i];
        const StTensor* x = st_find(f, t->name);
        float* values = xmalloc(t->size * sizeof *values);
        die_on((x && x->count == t->size) || tost_error(&err, "%s: %s is absent or of another size", f->path, t->name), &err);
        die_on(st_read_f32(f, x, values, &err), &err);
        s->engine->put(s->model, TOST_PARAM, t, values);
        free(values);
    }
}

static double* read_doubles(const StFile* f, const char* name, size_t n) {
    TostError err;
    const StTensor* t = st_find(f, name);
    double* x = xmalloc(n * sizeof *x);
    die_on((t && t->count == n) || tost_error(&err, "%s: %s is absent or not of %zu numbers", f->path, name, n), &err);
    die_on(st_read_f64(f, t, x, &err), &err);
    return x;
}

static int32_t* read_ids(const StFile* f, const char* name, size_t n) {
    TostError err;
    const StTensor* t = st_find(f, name);
    int32_t* ids = xmalloc(n * sizeof *ids);
    die_on((t && t->count == n) || tost_error(&err, "%s: %s is absent or not of %zu ids", f->path, name, n), &err);
    die_on(st_read_i32(f, t, ids, &err), &err);
    return ids;
}

static float* subject_activation(Subject* s, TostActivation what, int layer, size_t n) {
    float* x = xmalloc(n * sizeof *x);
    s->engine->activation(x, s->model, what, layer);
    return x;
}

// The projection of layer 0: the file's tssa_in times c_attn.
static void judge_projection(Checks* c, Subject* s, const StFile* expect, size_t rows, size_t C) {
    const TostTensor* weight = tost_tensor_find(&s->tensors, "transformer.h.0.attn.c_attn.weight");
    const TostTensor* bias = tost_tensor_find(&s->tensors, "transformer.h.0.attn.c_attn.bias");
    double *in = read_doubles(expect, "layer0.tssa_in", rows * C), *want = xmalloc(rows * C * sizeof *want);
    float *w = subject_get(s, TOST_PARAM, weight), *b = bias ? subject_get(s, TOST_PARAM, bias) : NULL;
    float* got = subject_activation(s, TOST_W, 0, rows * C);
    for (size_t i = 0; i < rows * C; i++) {
        want[i] = b ? b[i % C] : 0;
        for (size_t j = 0; j < C; j++) want[i] += in[i / C * C + j] * w[i % C * C + j];
    }
    const double error = relative_l2(got, want, rows * C);
    check(c, error <= LIMIT_LOGITS, "%s: w of layer 0: relative L2 error %.3e", expect->path, error);
    free(in); free(want); free(w); free(b); free(got);
}

// The inside of layer 0's attention: what the seam shows, and what only the CPU engine lets a test see.
static void judge_layer0(Checks* c, Subject* s, const StFile* expect, int B, int T) {
    const size_t rows = (size_t)B * T, C = s->config.n_embd, NH = s->config.n_head;
    if (!st_find(expect, "layer0.pi")) return;
    float* pi = subject_activation(s, TOST_PI, 0, rows * NH);
    judge(c, expect, "layer0.", "pi", pi, rows * NH, LIMIT_LOGITS);
    free(pi);
    judge_projection(c, s, expect, rows, C);
    if (s->engine != &tost_cpu_engine) return;
    const LayerActivations* a = &s->model->layer[0];
    judge(c, expect, "layer0.", "tssa_in", a->ln_1, rows * C, LIMIT_LOGITS);
    judge(c, expect, "layer0.", "tssa_out", a->attn_out, rows * C, LIMIT_LOGITS);
}

static void golden_steps(Checks* c, Subject* s, const StFile* expect, int B, int T, int steps) {
    const size_t rows = (size_t)B * T;
    int32_t* inputs = read_ids(expect, "inputs", steps * rows);
    int32_t* targets = read_ids(expect, "targets", steps * rows);
    double *losses = read_doubles(expect, "losses", steps), *norms = read_doubles(expect, "grad_norms", steps), norm;
    float* logits = logits_of(s, inputs, B, T);
    judge(c, expect, "", "logits", logits, rows * s->config.vocab_size, LIMIT_LOGITS);
    judge_layer0(c, s, expect, B, T);
    for (int i = 0; i < steps; i++) {
        const TostAdamW a = {.lr = meta_number(expect, "lr"), .beta1 = meta_number(expect, "beta1"),
                             .beta2 = meta_number(expect, "beta2"), .eps = meta_number(expect, "eps"),
                             .weight_decay = meta_number(expect, "weight_decay"), .step = i + 1};
        const double loss = train_step(&norm, s, inputs + i * rows, targets + i * rows, B, T, a, meta_number(expect, "grad_clip"));
        check(c, fabs(loss - losses[i]) <= LIMIT_LOSS, "%s: loss of step %d: %.9f, want %.9f", expect->path, i, loss, losses[i]);
        check(c, fabs(norm / norms[i] - 1) <= LIMIT_GRADS, "%s: gradient norm of step %d: %.9f, want %.9f", expect->path, i,
              norm, norms[i]);
        if (i == 0) judge_tensors(c, s, TOST_GRAD, expect, "grad.", LIMIT_GRADS);
    }
    judge_tensors(c, s, TOST_PARAM, expect, "after.",
                  s->engine == &tost_cpu_engine ? LIMIT_PARAMS : limits_of(TOST_FP32).of[PIECE_PARAM]);
    free(logits); free(losses); free(norms); free(inputs); free(targets);
}

static void test_golden_pair(Checks* c, const TostEngine* engine, const char* params_path) {
    TostError err;
    StFile params, expect;
    char* expect_path = xasprintf("%.*s.expect.safetensors", (int)(strlen(params_path) - strlen(".params.safetensors")), params_path);
    die_on(st_open(&params, params_path, &err) && st_open(&expect, expect_path, &err), &err);
    printf("golden %s (%s)\n", params_path, engine->name);
    const int B = meta_int(&expect, "B"), T = meta_int(&expect, "T");
    Subject s = subject_new(engine, meta_config(&expect), B, T, true);
    read_params(&s, &params);
    golden_steps(c, &s, &expect, B, T, meta_int(&expect, "steps"));
    subject_free(&s);
    st_close(&params);
    st_close(&expect);
    free(expect_path);
}

static void test_golden(Checks* c, const TostEngine* engine, const char* dir) {
    TostError err;
    PathList list;
    char* pattern = path_join(dir, "*.params.safetensors");
    die_on(expand_glob(&list, pattern, &err), &err);
    for (int i = 0; i < list.count; i++) test_golden_pair(c, engine, list.paths[i]);
    free_paths(&list);
    free(pattern);
}

// ---------------------------------------------------------------------------------------------
// A recorded run: batch s is tokens [s·B·T, (s+1)·B·T] of the shard

static void test_curve(Checks* c, const TostEngine* engine, const char* dir) {
    TostError err;
    StFile init;
    char *init_path = path_join(dir, "wiki.init.safetensors"), *shard_path = path_join(dir, "wiki.shard.bin");
    char* csv_path = path_join(dir, "wiki.curve.csv");
    die_on(st_open(&init, init_path, &err), &err);
    const TostConfig config = meta_config(&init);
    const int B = meta_int(&init, "B"), T = meta_int(&init, "T"), steps = meta_int(&init, "steps");
    Subject s = subject_new(engine, config, B, T, true);
    read_params(&s, &init);
    DataSet* data = data_open(shard_path, T, (uint32_t)config.vocab_size, ORDER_SEQUENTIAL, 0, &err);
    die_on(data != NULL, &err);
    FILE* csv = fopen(csv_path, "r");
    char line[256] = "";
    int32_t *inputs = xmalloc((size_t)B * T * sizeof *inputs), *targets = xmalloc((size_t)B * T * sizeof *targets);
    double worst = 0, worst_norm = 0;
    check(c, csv && fgets(line, sizeof line, csv) != NULL, "%s: no header", csv_path);
    for (int i = 0; i < steps && csv; i++) {
        int step;
        double loss, norm, lr, got_norm;
        if (!check(c, fgets(line, sizeof line, csv) && sscanf(line, "%d,%lf,%lf,%lf", &step, &loss, &norm, &lr) == 4 && step == i,
                   "%s: no row of step %d", csv_path, i)) break;
        die_on(data_batch(data, inputs, targets, (uint64_t)i * B, B, &err), &err);
        const double rate = schedule_lr(i, steps, meta_int(&init, "warmup"), meta_number(&init, "lr"),
                                        meta_number(&init, "min_lr_frac"));
        const TostAdamW a = {.lr = rate, .beta1 = meta_number(&init, "beta1"), .beta2 = meta_number(&init, "beta2"),
                             .eps = meta_number(&init, "eps"), .weight_decay = meta_number(&init, "weight_decay"), .step = i + 1};
        const double got = train_step(&got_norm, &s, inputs, targets, B, T, a, meta_number(&init, "grad_clip"));
        check(c, fabs(rate - lr) <= 1e-9 * fabs(lr) + 1e-15, "learning rate of step %d: %.12g, want %.12g", i, rate, lr);
        check(c, fabs(got - loss) <= LIMIT_CURVE, "loss of step %d: %.6f, want %.6f", i, got, loss);
        worst = worse(worst, fabs(got - loss));
        worst_norm = worse(worst_norm, fabs(got_norm / norm - 1));
    }
    printf("curve %s (%s): %d steps, largest difference of loss %.2e, of gradient norm %.2e relative\n", dir, engine->name,
           steps, worst, worst_norm);
    if (csv) fclose(csv);
    data_close(data);
    st_close(&init);
    subject_free(&s);
    free(inputs); free(targets); free(init_path); free(shard_path); free(csv_path);
}

// ---------------------------------------------------------------------------------------------
// Finite differences, for a tensor of every row of the table: along the gradient itself, and along a random direction

// (L(p + e d) - L(p - e d)) / 2e along direction d (unit length), for tensor t.
static double slope(Subject* s, const TostTensor* t, const float* p, const double* d, double e, const int32_t* inputs,
                    const int32_t* targets, int B, int T) {
    float* moved = xmalloc(t->size * sizeof *moved);
    double loss[2];
    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; i < t->size; i++) moved[i] = (float)(p[i] + (side ? -e : e) * d[i]);
        s->engine->put(s->model, TOST_PARAM, t, moved);
        s->engine->forward_loss(s->model, inputs, targets, B, T);
        loss[side] = mean_loss(s);
    }
    s->engine->put(s->model, TOST_PARAM, t, p);
    free(moved);
    return (loss[0] - loss[1]) / (2 * e);
}

static void difference_one(Checks* c, Subject* s, const TostTensor* t, const int32_t* inputs, const int32_t* targets,
                           int B, int T) {
    float *p = subject_get(s, TOST_PARAM, t), *g = subject_get(s, TOST_GRAD, t);
    double *along = widen(g, t->size), *random = xmalloc(t->size * sizeof *random), norm = 0, length = 0, along_random = 0;
    Rng rng = rng_seeded(7, (uint64_t)t->row);
    for (size_t i = 0; i < t->size; i++) {
        norm += along[i] * along[i];
        random[i] = rng_normal(&rng);
        length += random[i] * random[i];
    }
    norm = sqrt(norm);
    const bool idle = s->config.membership == TOST_UNIFORM &&
                      (t->row == TOST_ROW_temp || t->row == TOST_ROW_denom_bias);
    if (idle) memcpy(along, random, t->size * sizeof *along);
    for (size_t i = 0; i < t->size && !idle; i++) {
        along[i] /= norm;
        random[i] /= sqrt(length);
        along_random += random[i] * g[i];
    }
    const double e = 1e-2;
    const double got = slope(s, t, p, along, e, inputs, targets, B, T), got_random = slope(s, t, p, random, e, inputs, targets, B, T);
    check(c, idle ? norm == 0 && got == 0 : norm > 0 && fabs(got / norm - 1) <= 1e-2,
          "%s: slope along the gradient %.6g, want its norm %.6g", t->name, got, norm);
    check(c, fabs(got_random - along_random) <= 1e-2 * fabs(along_random) + 2e-3 * norm,
          "%s: slope along a random direction %.6g, want %.6g", t->name, got_random, along_random);
    free(p); free(g); free(along); free(random);
}

static void test_differences(Checks* c, const TostEngine* engine, int bias, int membership) {
    const TostConfig config = {.n_layer = 2, .n_head = 3, .n_embd = 15, .block_size = 80, .vocab_size = 29,
                               .bias = bias, .membership = membership};
    const int B = 2, T = 70;
    Subject s = subject_new(engine, config, B, T, true);
    subject_randomise(&s, 11);
    int32_t *inputs = random_ids((size_t)B * T, 29, 1), *targets = random_ids((size_t)B * T, 29, 2);
    targets[3] = -1;
    engine->zero_grad(s.model);
    engine->forward_train(s.model, inputs, targets, B, T, 1.0f / (B * T - 1));
    engine->backward(s.model);
    mean_loss(&s);
    for (int i = 0; i < s.tensors.count; i++)
        if (s.tensors.tensor[i].layer <= 0) difference_one(c, &s, &s.tensors.tensor[i], inputs, targets, B, T);
    subject_free(&s);
    free(inputs); free(targets);
}

// ---------------------------------------------------------------------------------------------
// The engine against itself

static const TostConfig odd = {.n_layer = 2, .n_head = 3, .n_embd = 60, .block_size = 200, .vocab_size = 257, .bias = 1};

static void test_causality(Checks* c, const TostEngine* engine) {
    enum { B = 1, T = 150 };
    Subject s = subject_new(engine, odd, B, T, false);
    subject_randomise(&s, 3);
    int32_t* ids = random_ids(T, odd.vocab_size, 4);
    float* before = logits_of(&s, ids, B, T);
    const int places[] = {0, 1, 63, 64, 65, 149};
    for (size_t i = 0; i < countof(places); i++) {
        const int t = places[i];
        const size_t row = odd.vocab_size;
        ids[t] = (ids[t] + 1) % odd.vocab_size;
        float* after = logits_of(&s, ids, B, T);
        check(c, memcmp(before, after, t * row * sizeof *before) == 0, "a change at t = %d moved an earlier logit", t);
        check(c, memcmp(before + t * row, after + t * row, row * sizeof *before) != 0, "a change at t = %d moved nothing there", t);
        check(c, t == T - 1 || memcmp(before + (T - 1) * row, after + (T - 1) * row, row * sizeof *before) != 0,
              "a change at t = %d did not reach the end", t);
        ids[t] = (ids[t] + odd.vocab_size - 1) % odd.vocab_size;
        free(after);
    }
    free(before);
    free(ids);
    subject_free(&s);
}

// Prompts of several lengths by one forward, then token by token: the logits of the full forward at every position.
static void test_decode(Checks* c, const TostEngine* engine, int membership) {
    enum { B = 2, T = 140 };
    const int prompts[] = {1, 2, 64, 100, T - 1};
    const size_t V = odd.vocab_size;
    TostConfig config = odd;
    config.membership = membership;
    Subject s = subject_new(engine, config, B, T, false);
    subject_randomise(&s, 5);
    int32_t *ids = random_ids((size_t)B * T, odd.vocab_size, 6), *part = xmalloc((size_t)B * T * sizeof *part);
    float *full = logits_of(&s, ids, B, T), *step = xmalloc(B * V * sizeof *step);
    for (size_t i = 0; i < countof(prompts); i++) {
        const int n = prompts[i];
        double worst = 0;
        for (int b = 0; b < B; b++) memcpy(part + (size_t)b * n, ids + (size_t)b * T, n * sizeof *part);
        engine->decode_begin(step, s.model, part, B, n);
        for (int t = n - 1; t < T; t++) {
            for (int b = 0; b < B; b++) {
                double* want = widen(full + ((size_t)b * T + t) * V, V);
                worst = worse(worst, relative_l2(step + b * V, want, V));
                free(want);
            }
            if (t + 1 == T) break;
            const int32_t next[B] = {ids[t + 1], ids[T + t + 1]};
            engine->decode_step(step, s.model, next);
        }
        check(c, worst <= LIMIT_DECODE, "decode after a prompt of %d: relative L2 error %.3e", n, worst);
    }
    free(full); free(step); free(ids); free(part);
    subject_free(&s);
}

// Losses of continuations after prompts of several lengths, none among them: the full forward's, with some targets left
// out; and the states stand as they were.
static void test_decode_score(Checks* c, const TostEngine* engine, int membership) {
    enum { N = 2, COPIES = 3, B = N * COPIES, T = 40, MORE = 17 };
    const int prompts[] = {0, 1, T - MORE};
    const size_t V = odd.vocab_size;
    TostConfig config = odd;
    config.membership = membership;
    Subject s = subject_new(engine, config, B, T, false);
    subject_randomise(&s, 15);
    for (size_t i = 0; i < countof(prompts); i++) {
        const int n = prompts[i];
        int32_t *ids = random_ids((size_t)B * T, odd.vocab_size, 16), *targets = random_ids((size_t)B * MORE, odd.vocab_size, 17);
        int32_t *part = xmalloc(N * T * sizeof *part), *more = xmalloc(B * MORE * sizeof *more);
        for (int b = 0; b < B; b++) {
            memcpy(ids + (size_t)b * T, ids + (size_t)b / COPIES * COPIES * T, n * sizeof *ids);   // one prompt for its copies
            memcpy(part + (size_t)b / COPIES * n, ids + (size_t)b * T, n * sizeof *ids);
            memcpy(more + (size_t)b * MORE, ids + (size_t)b * T + n, MORE * sizeof *ids);
        }
        for (int row = 0; row < B * MORE; row += 5) targets[row] = -1;
        double losses[2][B * MORE], worst = 0;
        float* full = logits_of(&s, ids, B, T);
        engine->decode_begin(NULL, s.model, part, N, n);
        for (int again = 0; again < 2; again++) engine->decode_score(losses[again], s.model, more, targets, COPIES, MORE);
        for (int row = 0; row < B * MORE; row++) {
            const float* l = full + ((size_t)(row / MORE) * T + n + row % MORE) * V;
            double sum = 0;
            for (size_t v = 0; v < V; v++) sum += exp(l[v]);
            const double want = targets[row] < 0 ? 0 : log(sum) - l[targets[row]], error = fabs(losses[0][row] - want);
            worst = error > worst || isnan(error) ? error : worst;
        }
        check(c, worst <= LIMIT_DECODE, "decode_score after a prompt of %d: error %.3e", n, worst);
        check(c, memcmp(losses[0], losses[1], sizeof losses[0]) == 0, "decode_score leaves the states as they were");
        free(full); free(ids); free(targets); free(part); free(more);
    }
    subject_free(&s);
}

// A batch smaller than the largest may be cut into larger chunks of logits: they must not run over what lies behind.
static void test_few_rows(Checks* c, const TostEngine* engine) {
    enum { T = 65 };   // at this vocabulary a row more than one chunk holds
    const TostConfig wide = {.n_layer = 1, .n_head = 2, .n_embd = 4, .block_size = T, .vocab_size = 1 << 19, .bias = 0};
    Subject s = subject_new(engine, wide, 1, T, false);
    subject_randomise(&s, 18);
    const size_t V = wide.vocab_size;
    int32_t* ids = random_ids(T + 1, wide.vocab_size, 19);
    float *want = xmalloc(V * sizeof *want), *got = xmalloc(V * sizeof *got);
    for (int disturbed = 0; disturbed < 2; disturbed++) {
        engine->decode_begin(got, s.model, ids, 1, 2);
        if (disturbed) engine->forward_loss(s.model, ids, ids + 1, 1, T - 1);
        engine->decode_step(disturbed ? got : want, s.model, ids + 2);
    }
    check(c, memcmp(got, want, V * sizeof *got) == 0, "a forward of %d rows of %d disturbs the recurrent state", T - 1, T);
    free(want); free(got); free(ids);
    subject_free(&s);
}

// Whether both models show the same numbers; *moved: whether they are not all one.
static bool same_activation(Subject* a, Subject* b, TostActivation what, int layer_a, int layer_b, size_t n,
                            bool* moved) {
    float *x = subject_activation(a, what, layer_a, n), *y = subject_activation(b, what, layer_b, n);
    const bool same = memcmp(x, y, n * sizeof *x) == 0;
    *moved = false;
    for (size_t i = 1; i < n; i++) *moved |= x[i] != x[0];
    free(x);
    free(y);
    return same;
}

// Each layer's activations are those of the model that ends with this layer; they stand after backward too, and are of
// the last batch, smaller than the largest. Layer 0 reads the embeddings; over the heads Π sums to 1.
static void test_activation(Checks* c, const TostEngine* engine) {
    enum { B = 2, T = 70, ROWS = B * T, C = 60, NH = 3, L = 3 };
    TostConfig config = odd;
    config.n_layer = L;
    Subject whole = subject_new(engine, config, B + 1, T + 5, true);
    subject_randomise(&whole, 21);
    int32_t *ids = random_ids(ROWS, config.vocab_size, 22), *targets = random_ids(ROWS, config.vocab_size, 23);
    engine->forward_train(whole.model, ids, targets, B, T, 1.0f / ROWS);
    engine->backward(whole.model);
    for (int l = 0; l < L; l++) {
        config.n_layer = l + 1;
        Subject cut = subject_new(engine, config, B, T, true);
        for (int i = 0; i < cut.tensors.count; i++) {
            float* x = subject_get(&whole, TOST_PARAM, tost_tensor_find(&whole.tensors, cut.tensors.tensor[i].name));
            engine->put(cut.model, TOST_PARAM, &cut.tensors.tensor[i], x);
            free(x);
        }
        engine->forward(cut.model, ids, B, T);
        const struct { const char* name; TostActivation what; int layer; size_t n; } shown[] = {
            {"w", TOST_W, l, ROWS * C}, {"pi", TOST_PI, l, ROWS * NH}, {"x before it", TOST_X, l, ROWS * C},
            {"x after it", TOST_X, l + 1, ROWS * C},
        };
        for (size_t i = 0; i < countof(shown); i++) {
            bool moved;
            const bool same = same_activation(&whole, &cut, shown[i].what, shown[i].layer, shown[i].layer, shown[i].n,
                                              &moved);
            check(c, same && moved, "%s of layer %d is not that of the model of %d layers", shown[i].name, l, l + 1);
            check(c, l == 0 ||
                  !same_activation(&whole, &whole, shown[i].what, shown[i].layer, shown[i].layer - 1, shown[i].n,
                                   &moved),
                  "%s of layer %d is that of the layer before", shown[i].name, l);
        }
        subject_free(&cut);
    }
    float* x = subject_activation(&whole, TOST_X, 0, ROWS * C);
    float* pi = subject_activation(&whole, TOST_PI, L - 1, ROWS * NH);
    float *wte = subject_get(&whole, TOST_PARAM, &whole.tensors.tensor[0]);
    float *wpe = subject_get(&whole, TOST_PARAM, &whole.tensors.tensor[1]);
    int bad = 0;
    for (int i = 0; i < ROWS * C; i++) bad += x[i] != wte[ids[i / C] * C + i % C] + wpe[i / C % T * C + i % C];
    check(c, bad == 0, "%d of %d numbers of x before layer 0 are not the embeddings' sums", bad, ROWS * C);
    for (int i = 0; i < ROWS; i++) {
        const float* pi_t = pi + i / T * NH * T + i % T;
        bad += !(fabs(pi_t[0] + pi_t[T] + pi_t[2 * T] - 1) <= 1e-6);
    }
    check(c, bad == 0, "over the heads, pi does not sum to 1 at %d of %d places", bad, ROWS);
    free(x); free(pi); free(wte); free(wpe); free(ids); free(targets);
    subject_free(&whole);
}

// A uniform membership is the learned one at temp = 0, where no gradient passes through it but that of temp.
static void test_uniform(Checks* c, const TostEngine* engine) {
    enum { B = 2, T = 70, ROWS = B * T, NH = 3 };
    TostConfig config = odd;
    config.membership = TOST_UNIFORM;
    Subject cold = subject_new(engine, odd, B, T, true), uniform = subject_new(engine, config, B, T, true);
    int32_t *ids = random_ids(ROWS, odd.vocab_size, 31), *targets = random_ids(ROWS, odd.vocab_size, 32);
    subject_randomise(&cold, 33);
    subject_randomise(&uniform, 33);
    for (int i = 0; i < cold.tensors.count; i++)
        if (cold.tensors.tensor[i].row == TOST_ROW_temp)
            engine->put(cold.model, TOST_PARAM, &cold.tensors.tensor[i], (const float[NH]){0});
    float *want = logits_of(&cold, ids, B, T), *got = logits_of(&uniform, ids, B, T);
    check(c, memcmp(got, want, (size_t)ROWS * odd.vocab_size * sizeof *got) == 0,
          "uniform: the logits are others than at temp 0");
    engine->forward_train(cold.model, ids, targets, B, T, 1.0f / ROWS);
    engine->forward_train(uniform.model, ids, targets, B, T, 1.0f / ROWS);
    engine->backward(cold.model);
    engine->backward(uniform.model);
    float* pi = subject_activation(&uniform, TOST_PI, 1, ROWS * NH);
    int bad = 0;
    for (int i = 0; i < ROWS * NH; i++) bad += pi[i] != 1.0f / NH;
    check(c, bad == 0, "uniform: %d numbers of pi are not 1/%d", bad, NH);
    for (int i = 0; i < cold.tensors.count; i++) {
        const TostTensor* t = &cold.tensors.tensor[i];
        float *a = subject_get(&uniform, TOST_GRAD, t), *b = subject_get(&cold, TOST_GRAD, t);
        size_t differ = 0, zero = 0;
        for (size_t j = 0; j < t->size; j++) {
            differ += a[j] != b[j];
            zero += a[j] == 0;
        }
        const bool idle = t->row == TOST_ROW_temp || t->row == TOST_ROW_denom_bias;
        check(c, idle ? zero == t->size : differ == 0 && zero < t->size,
              "uniform: %s: %zu gradients of %zu are others than at temp 0, %zu are zero", t->name, differ, t->size,
              zero);
        free(a); free(b);
    }
    subject_free(&cold);
    subject_free(&uniform);
    free(want); free(got); free(pi); free(ids); free(targets);
}

// Gradients of two batches of different shapes, with activations looked at in between where `look`. free()
static float* gradients_of(Subject* s, bool look) {
    const size_t n = (size_t)s->tensors.flat_size;
    const struct { int B, T; } batches[] = {{2, 70}, {3, 33}};
    float* all = xcalloc(n, sizeof *all);
    for (size_t i = 0; i < countof(batches); i++) {
        const int B = batches[i].B, T = batches[i].T, rows = B * T;
        int32_t* ids = random_ids(rows, s->config.vocab_size, 41 + i);
        s->engine->forward_train(s->model, ids, ids, B, T, 1.0f / rows);
        if (look) free(subject_activation(s, TOST_PI, 0, (size_t)rows * s->config.n_head));
        s->engine->backward(s->model);
        free(ids);
    }
    for (int i = 0; i < s->tensors.count; i++)
        s->engine->get(all + s->tensors.tensor[i].offset, s->model, TOST_GRAD, &s->tensors.tensor[i]);
    return all;
}

// Computing activations again takes less memory and moves no bit, whoever looks at them.
static void test_recompute(Checks* c, const TostEngine* engine) {
    const TostConfig config = {.n_layer = 4, .n_head = 3, .n_embd = 60, .block_size = 70, .vocab_size = 257, .bias = 1};
    TostEngineOptions o = {.max_batch = 3, .max_seq = 70, .training = true};
    Subject kept = subject_open(engine, config, o);
    const size_t full = engine->memory(&config, &o);
    o.recompute = true;
    Subject again = subject_open(engine, config, o), looked = subject_open(engine, config, o);
    const size_t less = engine->memory(&config, &o), n = kept.tensors.flat_size;
    const size_t x = (size_t)3 * 70 * 60 * sizeof(float);   // of each layer but one, at least 10 arrays like x
    check(c, less + 3 * 10 * x < full, "recompute: %zu bytes, without %zu", less, full);
    o.training = false;
    const size_t decode = engine->memory(&config, &o);
    o.recompute = false;
    check(c, decode == engine->memory(&config, &o), "recompute: without training it makes a difference");
    subject_randomise(&kept, 40);
    subject_randomise(&again, 40);
    subject_randomise(&looked, 40);
    float *want = gradients_of(&kept, false), *got = gradients_of(&again, false), *seen = gradients_of(&looked, true);
    check(c, memcmp(got, want, n * sizeof *got) == 0, "recompute: other gradients");
    check(c, memcmp(seen, want, n * sizeof *got) == 0, "recompute: other gradients after a look at the activations");
    for (int l = 0; l <= config.n_layer; l++) {
        for (int what = TOST_W; what <= TOST_X; what++) {
            bool moved;
            if (l == config.n_layer && what != TOST_X) continue;
            const size_t size = 3 * 33 * (what == TOST_PI ? 3 : 60);
            check(c, same_activation(&kept, &again, (TostActivation)what, l, l, size, &moved) && moved,
                  "recompute: other activations (%d) of layer %d", what, l);
        }
    }
    subject_free(&kept);
    subject_free(&again);
    subject_free(&looked);
    free(want); free(got); free(seen);
}

// Logits of a sequence alone, cut short, and in a batch are those of the sequence in full.
static void test_shapes(Checks* c, const TostEngine* engine) {
    enum { B = 3, T = 130 };
    const int lengths[] = {1, 2, 63, 64, 65, 128, 129, 130};
    const size_t V = odd.vocab_size;
    Subject s = subject_new(engine, odd, B, T, false);
    subject_randomise(&s, 8);
    int32_t* ids = random_ids((size_t)B * T, odd.vocab_size, 9);
    float* full = logits_of(&s, ids, B, T);
    for (size_t i = 0; i < countof(lengths); i++) {
        const size_t n = lengths[i];
        float* alone = logits_of(&s, ids + 2 * T, 1, (int)n);
        double* want = widen(full + 2 * T * V, n * V);
        const double error = relative_l2(alone, want, n * V);
        check(c, error <= LIMIT_DECODE, "T = %zu alone against the batch of T = %d: relative L2 error %.3e", n, T, error);
        free(alone);
        free(want);
    }
    free(full);
    free(ids);
    subject_free(&s);
}

// Two halves of a batch, accumulated, give the gradient of the whole.
static void test_accumulation(Checks* c, const TostEngine* engine) {
    enum { B = 4, T = 33 };
    Subject whole = subject_new(engine, odd, B, T, true), halves = subject_new(engine, odd, B, T, true);
    int32_t *inputs = random_ids(B * T, odd.vocab_size, 12), *targets = random_ids(B * T, odd.vocab_size, 13);
    const float scale = 1.0f / (B * T);
    subject_randomise(&whole, 14);
    subject_randomise(&halves, 14);
    engine->forward_train(whole.model, inputs, targets, B, T, scale);
    engine->backward(whole.model);
    for (int i = 0; i < 2; i++) {
        engine->forward_train(halves.model, inputs + i * B / 2 * T, targets + i * B / 2 * T, B / 2, T, scale);
        engine->backward(halves.model);
    }
    check(c, fabs(mean_loss(&whole) - mean_loss(&halves)) <= 1e-6, "loss of two halves is not that of the whole");
    for (int i = 0; i < whole.tensors.count; i++) {
        const TostTensor* t = &whole.tensors.tensor[i];
        float *a = subject_get(&halves, TOST_GRAD, t), *b = subject_get(&whole, TOST_GRAD, t);
        double* want = widen(b, t->size);
        const double error = relative_l2(a, want, t->size);
        check(c, error <= LIMIT_PARAMS, "%s: gradient of two halves, relative L2 error %.3e", t->name, error);
        free(a); free(b); free(want);
    }
    subject_free(&whole);
    subject_free(&halves);
    free(inputs); free(targets);
}

// The whole state after some updates, started from init_params. free()
static float* state_after(const TostEngine* engine, int steps, size_t* n) {
    enum { B = 3, T = 100 };
    Subject s = subject_new(engine, odd, B, T, true);
    init_params(engine, s.model, &s.tensors, odd.n_layer, 42);
    for (int i = 0; i < steps; i++) {
        int32_t *inputs = random_ids(B * T, odd.vocab_size, 100 + i), *targets = random_ids(B * T, odd.vocab_size, 200 + i);
        const TostAdamW a = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = i + 1};
        double norm;
        train_step(&norm, &s, inputs, targets, B, T, a, 1.0);
        free(inputs);
        free(targets);
    }
    float* all = xcalloc(4 * s.tensors.flat_size, sizeof *all);
    for (int state = 0; state < 4; state++)
        for (int i = 0; i < s.tensors.count; i++)
            engine->get(all + state * s.tensors.flat_size + s.tensors.tensor[i].offset, s.model, (TostState)state, &s.tensors.tensor[i]);
    *n = 4 * s.tensors.flat_size;
    subject_free(&s);
    return all;
}

static void test_same_bits(Checks* c, const TostEngine* engine) {
    size_t n;
    float *a = state_after(engine, 4, &n), *b = state_after(engine, 4, &n), *fewer = state_after(engine, 3, &n);
    check(c, memcmp(a, b, n * sizeof *a) == 0, "two runs of 4 updates differ");
    check(c, memcmp(a, fewer, n * sizeof *a) != 0, "the fourth update changed nothing");
    free(a); free(b); free(fewer);
}

// What the table says of the published models: their sizes; embeddings and Linear weights decay, and nothing else does.
static void test_table(Checks* c) {
    const struct { const char* preset; double millions; } published[] = {
        {"tost-base", 109.6}, {"tost-medium", 303.7}, {"tost-large", 655.1},
    };
    for (size_t i = 0; i < countof(published); i++) {
        const TostPreset* p = tost_preset_find(published[i].preset);
        TostTensors t = tost_tensors(&p->config);
        const double got = ((double)t.n_params - (double)p->config.block_size * p->config.n_embd) / 1e6;
        check(c, fabs(got - published[i].millions) < 0.05, "%s: %.2fM parameters without wpe, published %.1fM", p->name, got,
              published[i].millions);
        for (int j = 0; j < t.count; j++) {
            const TostTensor* x = &t.tensor[j];
            const bool matrix = strstr(x->name, ".wte.") || strstr(x->name, ".wpe.") || strstr(x->name, ".c_");
            check(c, (x->decay == TOST_DECAY) == matrix, "%s %s", x->name, matrix ? "does not decay" : "decays");
            check(c, tost_row_offset(&t, x->row, x->layer) == x->offset, "%s: its row's offset is another's", x->name);
        }
        tost_tensors_free(&t);
    }
}

// Memory is linear in T: as much more from T to 2T as from 2T to 3T, but for rounding to whole lines and chunks.
static void test_memory(Checks* c, const TostEngine* engine) {
    const double T = 4096;
    double bytes[3];
    for (int i = 0; i < 3; i++) {
        TostConfig config = tost_preset_find("starter")->config;
        config.block_size = (int)(T * 3);
        const TostEngineOptions o = {.max_batch = 1, .max_seq = (int)(T * (i + 1)), .training = true, .dtype = TOST_FP32, .threads = 1};
        bytes[i] = (double)engine->memory(&config, &o);
    }
    const double first = bytes[1] - bytes[0], second = bytes[2] - bytes[1];
    check(c, first > 0 && fabs(second / first - 1) < 1e-3, "memory grows by %.0f bytes from T to 2T, by %.0f from 2T to 3T", first, second);
}

// ---------------------------------------------------------------------------------------------
// Scalar functions against libm in double

static void test_scalars(Checks* c) {
    double worst_exp = 0, worst_cdf = 0, worst_tail = 0;
    for (int i = -87000; i <= 88000; i++) {
        const float x = (float)i / 1000.0f;
        worst_exp = worse(worst_exp, fabs(exp_f32(x) / exp((double)x) - 1));
    }
    for (int i = -40000; i <= 40000; i++) {
        float e;
        const float x = (float)i / 4000.0f, got = normal_cdf(&e, x);
        const double want = 0.5 * erfc(-(double)x / sqrt(2.0));
        worst_cdf = worse(worst_cdf, fabs(got - want));
        if (x <= 0) worst_tail = worse(worst_tail, fabs(got / want - 1));
    }
    printf("scalars: exp %.1e relative, normal_cdf %.1e absolute, %.1e relative below 0\n", worst_exp, worst_cdf, worst_tail);
    check(c, worst_exp <= 2.5e-7, "exp_f32: relative error %.3e", worst_exp);
    check(c, worst_cdf <= 2.5e-7, "normal_cdf: error %.3e", worst_cdf);
    check(c, worst_tail <= 4e-6, "normal_cdf: relative error %.3e for x <= 0", worst_tail);
    check(c, isnan(exp_f32(NAN)) && isnan(normal_cdf(&(float){0}, NAN)), "NaN was swallowed");
}

// ---------------------------------------------------------------------------------------------

static void test_engine(Checks* c, const TostEngine* engine) {
    char *golden = shared_path("golden"), *curve = shared_path("curve");
    test_golden(c, engine, "dev/test/golden");
    if (golden) test_golden(c, engine, golden);
    else skip(c, "golden files of ../shared/golden: absent");
    if (curve) test_curve(c, engine, curve);
    else skip(c, "the recorded run of ../shared/curve: absent");
    test_differences(c, engine, 0, TOST_LEARNED);
    test_differences(c, engine, 1, TOST_LEARNED);
    test_differences(c, engine, 1, TOST_UNIFORM);
    test_uniform(c, engine);
    test_causality(c, engine);
    for (int membership = TOST_LEARNED; membership <= TOST_UNIFORM; membership++) {
        test_decode(c, engine, membership);
        test_decode_score(c, engine, membership);
    }
    test_few_rows(c, engine);
    test_activation(c, engine);
    test_recompute(c, engine);
    test_shapes(c, engine);
    test_accumulation(c, engine);
    test_same_bits(c, engine);
    test_memory(c, engine);
    free(golden);
    free(curve);
}

// ---------------------------------------------------------------------------------------------
// CPU against CUDA

#ifdef TOST_NO_CUDA   // why make left the CUDA engine out
static const TostEngine* const cuda_engine = NULL;
static const char why_no_cuda[] = TOST_NO_CUDA;
#else
extern const TostEngine tost_cuda_engine;
static const TostEngine* const cuda_engine = &tost_cuda_engine;
static const char why_no_cuda[] = "";
#endif

// Logits, losses, gradients, parameters after updates, decode and scores, twice.
static void test_cuda_dtype(Checks* c, TostDtype dtype) {
    const int chunk = chunk_of_source();
    // Channels and vocabularies of published size, with parameters as a run begins and with random ones.
    const Shape wide[] = {{2, 12, 768, 1024, 50304, 0, TOST_LEARNED, 1, 300, 2, 1, FRESH},
                          {1, 12, 768, 1024, 50304, 0, TOST_LEARNED, 1, 300, 2, 1, RANDOM},
                          {1, 12, 768, 64, 50257, 1, TOST_LEARNED, 1, 30, 1, 1, RANDOM},
                          {1, 48, 768, 320, 1000, 0, TOST_LEARNED, 1, 150, 2, 1, RANDOM}};
    const Shape longest = long_shape(chunk);
    const Runs twice = {.runs = 2};
    Shape ragged[RAGGED_SHAPES];
    ragged_shapes(ragged, chunk);
    for (int i = 0; i < RAGGED_SHAPES; i++) engines_agree(c, cuda_engine, &tost_cpu_engine, &ragged[i], dtype, &twice);
    // tf32 has the kernels of fp32 and other products: one of these does
    for (size_t i = dtype == TOST_TF32 ? countof(wide) - 1 : 0; i < countof(wide); i++)
        engines_agree(c, cuda_engine, &tost_cpu_engine, &wide[i], dtype, &twice);
    engines_agree(c, cuda_engine, &tost_cpu_engine, &longest, dtype, &twice);
    engines_agree_on_scores(c, cuda_engine, &tost_cpu_engine, dtype, chunk);
    engines_agree_on_a_course(c, cuda_engine, &tost_cpu_engine, dtype);
}

static void test_cuda(Checks* c) {
    static const char what[] = "CPU against CUDA (logits, losses, gradients, parameters after updates, decode)";
    const TostEngineOptions o = {.max_batch = 1, .max_seq = 1, .dtype = TOST_FP32};
    TostError err;
    char text[256];
    if (!cuda_engine) {
        skip(c, "%s: %s", what, why_no_cuda);
        return;
    }
    if (!cuda_engine->describe(text, sizeof text, &o, &err)) {
        skip(c, "%s: %s", what, err.text);
        return;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);   // this takes minutes: what failed is told at once, also where it is cut short
    printf("CUDA: %s\n", text);
    test_engine(c, cuda_engine);
    for (TostDtype dtype = TOST_FP32; dtype <= TOST_BF16; dtype++) test_cuda_dtype(c, dtype);
}

int main(int argc, char** argv) {
    Checks c = {.suite = "test_tost"};
    if (argc == 3 && strcmp(argv[1], "--golden") == 0) {
        test_golden(&c, &tost_cpu_engine, argv[2]);
        return checks_verdict(&c);
    }
    if (argc != 1) {
        fprintf(stderr, "usage: test_tost [--golden DIR]\n");
        return STATUS_USAGE;
    }
    test_table(&c);
    test_scalars(&c);
    test_engine(&c, &tost_cpu_engine);
    test_cuda(&c);
    return checks_verdict(&c);
}
