// plan.c: chooses settings for this machine: with --for, all that is not given, from the time, the text and the
// measured speed, and adjusts the steps to the clock during the run; on a GPU, the micro-batch.
#include "run/plan.h"

#include <limits.h>
#include <math.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/rng.h"
#include "init.h"
#include "run/ngram.h"
#include "run/run.h"

// ---- The law. dev/results/budget.md: how each constant was measured, and its error ----

// Layers, classifier, embedding. Within 4 % in bf16 on Zen 5, for 1 to 8 layers of 64 to 384 channels and vocabularies
// of 1,024 to 8,192
double plan_cost(const TostConfig* c) {
    const double L = c->n_layer, C = c->n_embd, V = c->vocab_size;
    return L * C * (C + 67) + V * (0.043 * C + 5) + 14 * C;
}

static double layer_weights(const TostConfig* c) { return 10.0 * c->n_layer * c->n_embd * c->n_embd; }

// Repeated tokens count less: U + 15.4 U (1 - exp(-(e - 1) / 15.4)) for e epochs of U tokens (arXiv 2305.16264).
double plan_loss(const TostConfig* c, double tokens, double unique) {
    const double U = fmin(tokens, unique), repeats = tokens / U - 1;
    const double D = (U + 15.4 * U * (1 - exp(-repeats / 15.4))) / 4e6;
    const double N = 1e-5 * pow(c->n_layer, 0.7) * c->n_embd * c->n_embd;
    return 0.093 + 2.601 * pow(N, -0.08) + 1.009 * pow(D, -0.30) * pow(N, 0.12);
}

// The most tokens to train on, from a text of `unique` tokens: 5 epochs up to 0.3M tokens, 9 of 3M
static double most_tokens(double unique) { return 5 * unique * fmax(1, pow(unique / 3e5, 0.25)); }

static const double LONG_RUN = 8e6;   // from so many tokens on, larger steps and a higher learning rate were better

int plan_vocabulary(double bytes, double cost) {
    const double size = fmin(fmin(2048 * pow(bytes / 1e6, 0.55), 5000 * sqrt(cost / 5.8e11)), 8192);
    return (int)fmax(size, 320) / 64 * 64;
}

static void set(TostRecipe* r, RecipeRow row, double value) {
    if (!recipe_given(r, row)) setting_set(r, &recipe_table[row], value);
}

// Tries a list of sizes, of which those up to 3 × 320 were measured. For fewer than SHORT tokens of text, for which the
// law gives too small a model, it takes the size for SHORT tokens.
void plan_sizes(TostRecipe* r, double seconds, double speed, double unique) {
    static const struct { int layers, channels; } sizes[] = {
        {1, 128}, {2, 128}, {3, 128}, {2, 192}, {3, 192}, {2, 256}, {3, 256}, {3, 320}, {3, 384}, {4, 384},
        {4, 448}, {4, 512}, {6, 512}, {6, 640}, {8, 640}, {8, 768}, {8, 1024}};
    enum { HEAD = 64, SHORT = 200000 };   // channels of a head; tokens
    const double scale = fmax(1, SHORT / unique), most_weights = fmax(15 * unique, 2e6);
    const bool preset = recipe_given(r, RECIPE_preset);   // gives the sizes
    double best = INFINITY, tokens = 0;
    TostConfig chosen = r->config;
    for (size_t i = 0; i < countof(sizes); i++) {
        TostConfig c = r->config;
        if (!preset && !recipe_given(r, RECIPE_n_layer)) c.n_layer = sizes[i].layers;
        if (!preset && !recipe_given(r, RECIPE_n_embd)) c.n_embd = sizes[i].channels;
        if (!preset && !recipe_given(r, RECIPE_positions)) c.positions = TOST_POSITIONS_NONE;
        if (!preset && !recipe_given(r, RECIPE_n_head)) c.n_head = c.n_embd % HEAD == 0 ? c.n_embd / HEAD : 1;
        const double D = fmin(seconds * speed / plan_cost(&c), most_tokens(unique));
        const double loss = plan_loss(&c, D * scale, unique * scale);
        const bool large = best < INFINITY && layer_weights(&c) > most_weights;
        if (c.n_embd % c.n_head != 0 || large || !(loss < best)) continue;
        best = loss;
        tokens = D;
        chosen = c;
    }
    r->config = chosen;
    // The power of two that is nearest to a thousandth of the tokens, rounded up to sequences; more in long runs
    const double unit = (double)r->seq * r->parts, least = tokens < 1.5e5 ? 512 : 1024;
    const double total = tokens > LONG_RUN ? 8192 : fmin(fmax(exp2(round(log2(tokens / 1000))), least), 4096);
    set(r, RECIPE_total_batch, ceil(total / unit) * unit);
    if (!preset) set(r, RECIPE_bigrams, fmin(64 * (double)r->total_batch, 131072));
}

void plan_steps(TostRecipe* r, double most, double unique) {
    const double steps = floor(fmin(most, most_tokens(unique) / (double)r->total_batch));
    const double tokens = steps * (double)r->total_batch, every = fmax(ceil(steps / 5), 1);
    r->steps = (int64_t)fmax(steps, 1);
    const double lr = 0.02 * fmin(pow(tokens / 4e6, -0.4), 1) * sqrt(128 / fmax(r->config.n_embd, 64));
    set(r, RECIPE_lr, tokens > LONG_RUN ? 1.25 * lr : lr);
    // From 3 epochs on, weights decay to 1/e, at the peak rate, in 1/1.75 of the text (arXiv 2405.13698); up to one
    // epoch, in 1/0.58 of the run. The limit 0.25 / lr: a step removes at most all of a bigram, which decays 4 times.
    const double over = tokens < unique ? 3 * tokens : fmax(unique, 3 * unique * unique / tokens);
    const double most_decay = r->optimizer == TOST_MUON ? fmin(0.25 / r->lr, 100) : 1;   // AdamW: more was worse
    set(r, RECIPE_weight_decay, fmin(1.75 * (double)r->total_batch / (r->lr * over), most_decay));
    if (r->optimizer == TOST_MUON) {
        set(r, RECIPE_momentum, 0.9);
        set(r, RECIPE_beta1, 0.6);   // of embeddings and vectors
        set(r, RECIPE_beta2, 0.99);
    }
    set(r, RECIPE_schedule, SCHEDULE_WSD);
    set(r, RECIPE_decay_frac, 0.75);
    set(r, RECIPE_min_lr_frac, 0);
    set(r, RECIPE_warmup, round(0.04 * steps));
    set(r, RECIPE_val_every, every);
    set(r, RECIPE_sample_every, every);
    set(r, RECIPE_save_every, every);
    set(r, RECIPE_val_windows, fmin(fmax(0.01 * tokens / r->seq, 32), 480));
}

// ---- Memory: the micro-batch of a GPU ----

// The largest number of sequences, up to `most`, that divides those of a part, has up to GPU_TOKENS tokens in a pass
// (of --chunk, or else --seq) and fits in the memory of each rank's GPU. False: --batch is given, or there is no GPU
bool run_choose_batch(Run* r, int most) {
    enum { GPU_TOKENS = 65536 };
    TostRecipe* recipe = &r->recipe;
    if (!r->engine->usable_memory || recipe_given(recipe, RECIPE_batch)) return false;
    const size_t free_bytes = r->engine->usable_memory(r->comm);
    const int64_t sequences = recipe->total_batch / recipe->seq / recipe->parts;
    int *all = xmalloc((size_t)comm_size(r->comm) * sizeof *all), batch = 1;
    for (int b = 1; b <= sequences && b <= most && free_bytes > 0; b++) {
        const TostEngineOptions e = recipe_engine(recipe, b, recipe->seq, run_own_parts(r), r->comm);
        if ((int64_t)b * e.max_chunk > GPU_TOKENS || (int64_t)b * recipe->seq > INT_MAX) break;
        if (sequences % b == 0 && r->engine->memory(&recipe->config, &e) <= free_bytes) batch = b;
    }
    comm_allgather(r->comm, all, &batch, sizeof batch);
    for (int i = 0; i < comm_size(r->comm); i++) batch = all[i] < batch ? all[i] : batch;
    free(all);
    recipe->batch = batch;
    return true;
}

// Fails if this rank's memory cannot fit in the machine or its cgroup. Other ranks of the host need as much; they are
// not counted. All swap counts as memory, because its limits are not read.
static bool check_memory(const Run* r, const TostEngineOptions* o, TostError* err) {
    const double need = (double)r->engine->memory(&r->recipe.config, o);
    const double cgroup = (double)cgroup_memory("/proc/self/cgroup", "/sys/fs/cgroup");
    const double limit = fmin(cgroup, (double)meminfo_bytes("MemTotal:"));
    return r->engine->usable_memory || need <= limit + (double)meminfo_bytes("SwapTotal:")
        || r->info.step >= r->recipe.steps
        || tost_error(err, "not enough memory: the run needs %s, but %s %s: lower --batch or --seq, or use --chunk or "
                      "a smaller model", human_bytes(need).text, limit == cgroup
                      ? "the limit of its cgroup is" : "the machine has", human_bytes(limit).text);
}

TostModel* run_create_model(Run* r, TostEngineOptions* o, TostError* err) {
    const int batch = r->recipe.batch;
    TostModel* m = check_memory(r, o, err) ? r->engine->create(&r->recipe.config, o, err) : NULL;
    if (run_agree(r, m, err) || batch == 1) return m;
    if (m) r->engine->destroy(m);   // another rank has no memory
    if (!run_choose_batch(r, batch - 1)) return NULL;
    *o = recipe_engine(&r->recipe, r->recipe.batch, r->recipe.seq, run_own_parts(r), r->comm);
    m = r->engine->create(&r->recipe.config, o, err);
    if (m) print_warning("no memory for --batch %d: continuing with --batch %d", batch, r->recipe.batch);
    return m;
}

// ---- Measuring ----

enum { VALIDATIONS = 7, TRIES = 4 };           // before step 1, five times, and for bits per byte; models to time
static const double END_SECONDS = 0.5;         // reserved for the last save and sample
static const double VALIDATION_COST = 0.4;     // time to validate a token / time to train on it
static const double TIMING_SHARE = 0.01;       // of the time, for timing steps of a model
static const double FIRST_SPEED = 2e9;         // plan_cost per second, a guess for the first model that is timed

static double seconds_left(const Run* r) { return r->args->run_for - (now_seconds() - r->progress.began); }

// A step as in train.c, on the same tokens in all micro-batches, without log, signals and progress
static void one_step(Run* r, TostModel* model, Chunks* chunks, const int32_t* ids, int64_t number) {
    const TostRecipe* recipe = &r->recipe;
    const Share share = run_step_share(r);
    double loss;
    int64_t count;
    r->engine->zero_grad(model);
    for (int64_t i = 0; i < share.n; i++)
        chunks_train(chunks, ids, ids + 1, recipe->batch, recipe->seq, 1.0f / (float)recipe->total_batch,
                     share_micro_batch(&share, i).end);
    const TostUpdate update = recipe_update(recipe, 1e-3, r->engine->grad_norm(model), number);
    r->engine->read_loss(&loss, &count, model);
    r->engine->update(model, &update);
}

// Mean seconds of a step, by the clock of rank 0, after one that touches the memory first. Random weights and tokens:
// only the update of the bigrams depends on them, a little. 0: failed, see *err
static double time_step(Run* r, TostError* err) {
    enum { FEWEST = 3, MOST = 30 };
    const TostRecipe* recipe = &r->recipe;
    const size_t n = (size_t)recipe->batch * (size_t)recipe->seq + 1;
    TostEngineOptions o = recipe_engine(recipe, recipe->batch, recipe->seq, run_own_parts(r), r->comm);
    TostModel* model = run_create_model(r, &o, err);
    if (!run_agree(r, model, err)) return 0;
    TostTensors tensors = tost_tensors(&recipe->config);
    Chunks chunks = {.engine = r->engine, .model = model, .max_chunk = o.max_chunk};
    int32_t* ids = xmalloc(n * sizeof *ids);
    Rng rng = rng_seeded(0, 0);
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)rng_below(&rng, (uint64_t)recipe->config.vocab_size);
    init_params(r->engine, model, &tensors, recipe->config.n_layer, 0);
    one_step(r, model, &chunks, ids, 1);
    const double start = now_seconds();
    double seconds;
    int done = 0;
    for (bool more = true; more; comm_broadcast(r->comm, &more, sizeof more, 0)) {
        one_step(r, model, &chunks, ids, ++done + 1);
        seconds = now_seconds() - start;
        more = done < FEWEST || (done < MOST && seconds < TIMING_SHARE * r->args->run_for);
    }
    seconds /= done;
    comm_broadcast(r->comm, &seconds, sizeof seconds, 0);
    r->engine->destroy(model);
    tost_tensors_free(&tensors);
    free(ids);
    return seconds;
}

// Sets sizes and tokens per step, and times them, until the measured speed leads to the same ones again, or `tries`
// times. unique: tokens of the text; left: seconds. Returns the seconds of a step; 0: failed, see *err
static double choose_sizes(Run* r, double unique, double left, int tries, TostError* err) {
    TostRecipe* recipe = &r->recipe;
    double seconds = 0;
    if (r->speed == 0) r->speed = FIRST_SPEED;
    for (int i = 0; i < tries; i++) {
        const TostRecipe before = *recipe;
        if (!r->args->init) plan_sizes(recipe, left, r->speed, unique);
        const bool same = memcmp(&before.config, &recipe->config, sizeof before.config) == 0
                          && before.total_batch == recipe->total_batch;
        if (seconds > 0 && same) break;
        if (!r->args->init && !recipe_given(recipe, RECIPE_batch)) recipe->batch = tost_presets[recipe->preset].batch;
        const bool ok = tost_config_check(&recipe->config, err) && recipe_derive(recipe, r->args->ranks, false, err);
        if (!run_agree(r, ok, err)) return 0;
        run_choose_batch(r, TOST_MAX_BATCH);
        if ((seconds = time_step(r, err)) == 0) return 0;
        r->speed = plan_cost(&recipe->config) * (double)recipe->total_batch / seconds;
    }
    return seconds;
}

int run_plan_vocabulary(Run* r, double bytes, TostError* err) {
    const TostRecipe before = r->recipe;
    r->recipe.config.vocab_size = 4096;   // as in most measurements, with about 3 bytes per token
    const bool ok = choose_sizes(r, bytes / 3, r->args->run_for, 1, err) > 0;
    r->recipe = before;
    return ok ? plan_vocabulary(bytes, r->args->run_for * r->speed) : 0;
}

// Up to n tokens of a stream, in blocks evenly spread over it. Returns how many; free(*ids)
static size_t spread_tokens(int32_t** ids, ShardStream* s, uint64_t n) {
    enum { BLOCK = 4096 };
    const uint64_t all = stream_tokens(s), blocks = n / BLOCK, some = all < n ? all : blocks * BLOCK;
    *ids = xmalloc((size_t)some * sizeof **ids);
    bool ok = true;
    if (all < n) ok = stream_read(*ids, s, 0, (size_t)all, &(TostError){0});
    for (uint64_t i = 0; ok && all >= n && i < blocks; i++)
        ok = stream_read(*ids + i * BLOCK, s, (uint64_t)part_start((int64_t)(all - BLOCK), (int64_t)i, (int64_t)blocks),
                         BLOCK, &(TostError){0});
    return ok ? (size_t)some : 0;
}

// How hard the text is to predict, as a multiple of plan_loss, from the losses of counting models (ngram.h) after as
// many tokens as the run reads, at most TEXT_TOKENS. 0: unknown. dev/results/budget.md has the fit and its error.
static double difficulty(Run* r, double tokens) {
    enum { TEXT_TOKENS = 1 << 22, VAL_TOKENS = 1 << 17 };
    if (!r->val) return 0;
    int32_t *text, *val;
    const size_t n = spread_tokens(&text, &r->data->source[0].stream, (uint64_t)fmin(tokens, TEXT_TOKENS));
    const size_t m = spread_tokens(&val, &r->val->source[0].stream, VAL_TOKENS);
    double losses[2] = {0};
    if (n > 0 && m > 1) ngram_losses(losses, text, n, val, m, r->recipe.config.vocab_size);
    free(text);
    free(val);
    return losses[0] > 0 ? exp(-2.69) * pow(losses[0], 0.19) * pow(losses[1], 1.52) : 0;
}

bool run_plan(Run* r, TostError* err) {
    TostRecipe* recipe = &r->recipe;
    if (!r->args->run_for) return true;
    const double unique = (double)recipe->data_tokens;
    if (r->args->init)   // keep the rate that find_fresh chose; a stronger decay would erase the old weights
        recipe->given |= (uint64_t)1 << RECIPE_lr | (uint64_t)1 << RECIPE_weight_decay;
    double left = seconds_left(r);
    comm_broadcast(r->comm, &left, sizeof left, 0);
    if (left <= END_SECONDS)
        return tost_error(err, "--for %g s: no time is left after reading the text: give a longer time",
                          r->args->run_for);
    const double step = choose_sizes(r, unique, left, TRIES, err);
    if (step == 0) return false;
    double most = (seconds_left(r) - END_SECONDS) / step;
    comm_broadcast(r->comm, &most, sizeof most, 0);
    plan_steps(recipe, most, unique);   // for val_windows; the steps are fewer by the time of validation
    const double windows = !r->val ? 0 : (double)data_samples(r->val), wanted = (double)recipe->val_windows;
    const double validation = VALIDATIONS * VALIDATION_COST * (wanted > 0 ? fmin(wanted, windows) : windows);
    most -= validation * recipe->seq / (double)recipe->total_batch;
    if (most < 1)
        return tost_error(err, "--for %g s: a step takes %.3g s, too long for the time that is left: give a longer "
                          "time", r->args->run_for, step);
    plan_steps(recipe, most, unique);
    recipe->keep_best |= r->val && recipe->save_every > 0;
    const double tokens = (double)recipe->steps * (double)recipe->total_batch;
    const bool known = !r->args->init && recipe->optimizer == TOST_MUON && recipe->config.conv && recipe->config.memory
                       && recipe->config.bigrams && r->data->n == 1 && tokens > 1e6;   // not measured with fewer
    const double loss = known ? plan_loss(&recipe->config, tokens, unique) * difficulty(r, tokens) : 0;
    report_plan(r, step * (double)recipe->steps + seconds_left(r) - most * step, tokens / unique, loss);
    return true;
}

// ---- During training ----

// Changes the last step of a wsd run at `step`, at least its warm-up. The rate stays continuous and decays to the same
// final rate.
void plan_new_steps(TostRecipe* r, int64_t step, int64_t steps) {
    const Schedule s = schedule_of(r);
    const double lr = schedule_lr(s, step), from_now = 1 - (double)step / (double)steps;
    r->decay_frac = step < schedule_decay_start(s) ? fmin(r->decay_frac, from_now) : from_now;
    r->min_lr_frac *= r->lr / lr;
    r->lr = lr;
    r->steps = steps;
}

void run_adjust_steps(Run* r) {
    static const double TOLERANCE = 0.02;   // of the time
    TostRecipe* recipe = &r->recipe;
    const int64_t step = r->info.step, from = r->timed_step;
    const bool can_follow = recipe->schedule == SCHEDULE_WSD && step >= recipe->warmup && recipe->lr > 0;
    // With a validation, if there are any; more often near the end, which may have been set too early
    const int64_t usual = recipe->val_every > 0 ? recipe->val_every : recipe->steps / 5;
    const int64_t half = (recipe->steps - from) / 2, after = half < 1 ? 1 : half < usual ? half : usual;
    if (r->args->run_for == 0 || (step > 0 && step < from + after)) return;
    const double before = r->timed_at, now = r->timed_at = now_seconds();
    r->timed_step = step;
    if (step == from || !can_follow) return;
    const double each = (now - before) / (double)(step - from), left = seconds_left(r) - END_SECONDS;
    const double most = most_tokens((double)recipe->data_tokens) / (double)recipe->total_batch;
    double steps = (double)recipe->steps;
    if (fabs(left - each * (steps - (double)step)) > TOLERANCE * r->args->run_for)
        steps = floor(fmin((double)step + fmax(left / each, 1), fmax(most, steps)));
    comm_broadcast(r->comm, &steps, sizeof steps, 0);
    if ((int64_t)steps == recipe->steps) return;
    const bool in_decay = step > schedule_decay_start(schedule_of(recipe));
    plan_new_steps(recipe, step, (int64_t)steps);
    r->progress.steps = recipe->steps;
    key_values_free(&r->info.options);
    r->info.options = recipe_write(recipe);
    report_new_steps(r, !in_decay);
}
