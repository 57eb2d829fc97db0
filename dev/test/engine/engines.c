// engines.c: records the results of engines and compares them.
#include "dev/test/engine/engines.h"

#include <math.h>
#include <string.h>

#include "tost/base/memory.h"
#include "tost/base/rng.h"
#include "tost/init.h"

// ---- A model under test ---------------------------------------------------------------------------------------------

void require(bool ok, const TostError* err) {
    if (ok) return;
    printf("FAILED: %s\n", err->text);
    exit(STATUS_FAILED);
}

Subject subject_open(const TostEngine* engine, TostConfig config, TostEngineOptions o) {
    TostError err;
    Subject s = {.engine = engine, .config = config, .tensors = tost_tensors(&config), .optimizer = o.optimizer};
    require(tost_config_check(&config, &err), &err);
    s.model = engine->create(&config, &o, &err);
    require(s.model != NULL, &err);
    s.chunks = (Chunks){.engine = engine, .model = s.model, .max_chunk = o.max_chunk};
    return s;
}

TostEngineOptions engine_options(int B, int T, bool training, TostDtype dtype) {
    return (TostEngineOptions){.max_batch = B, .max_chunk = T, .states = chunks_states(T, T, training),
                               .training = training, .dtype = dtype};
}

void subject_free(Subject* s) {
    s->engine->destroy(s->model);
    tost_tensors_free(&s->tensors);
}

void subject_randomize(Subject* s, uint64_t seed) {
    Rng rng = rng_seeded(seed, 1);
    for (int i = 0; i < s->tensors.count; i++) {
        const TostTensor* t = &s->tensors.tensor[i];
        const double centre = t->init == TOST_ONE ? 1.0 : t->init == TOST_GAMMA ? 0.5 : 0.0;
        const bool fixed = s->config.membership == TOST_UNIFORM && t->row == TOST_ROW_temp;
        const double spread = fixed ? 0 : t->ndim == 1 || t->init == TOST_ONE ? 0.2
                                                       : t->init == TOST_ZERO ? 0.02 : 0.15;
        float* x = xmalloc(t->size * sizeof *x);
        for (size_t j = 0; j < t->size; j++) x[j] = (float)(centre + spread * rng_normal(&rng));
        s->engine->put(s->model, TOST_PARAM, t, x);
        free(x);
    }
}

Subject subject_of(const TostEngine* engine, TostConfig config, int B, int T, bool training, TostDtype dtype,
                   uint64_t seed) {
    Subject s = subject_open(engine, config, engine_options(B, T, training, dtype));
    subject_randomize(&s, seed);
    return s;
}

const TostTensor* subject_tensor(const Subject* s, const char* name) {
    for (int i = 0; i < s->tensors.count; i++)
        if (strcmp(s->tensors.tensor[i].name, name) == 0) return &s->tensors.tensor[i];
    return NULL;
}

float* subject_get(const Subject* s, TostArray state, const TostTensor* t) {
    float* x = xmalloc(t->size * sizeof *x);
    s->engine->get(x, s->model, state, t);
    return x;
}

float* subject_array(const Subject* s, TostArray array) {
    float* all = xcalloc(s->tensors.flat_size, sizeof *all);
    for (int i = 0; i < s->tensors.count; i++)
        s->engine->get(all + s->tensors.tensor[i].offset, s->model, array, &s->tensors.tensor[i]);
    return all;
}

void subject_copy(Subject* to, const Subject* from) {
    static const TostArray arrays[] = {TOST_PARAM, TOST_M, TOST_V};
    for (int i = 0; i < to->tensors.count; i++)
        for (int j = 0; j < 3; j++) {
            const TostTensor* t = &to->tensors.tensor[i];
            if (tost_elements(t, arrays[j], to->optimizer) == 0) continue;
            float* x = subject_get(from, arrays[j], subject_tensor(from, t->name));
            to->engine->put(to->model, arrays[j], t, x);
            free(x);
        }
}

// Scales three of four channels of z to zero or almost zero, so that their energy stays below TOST_ENERGY_MIN.
static void subject_make_faint(Subject* s) {
    static const float scales[4] = {1, 0, 1e-7f, 5e-7f};
    for (int i = 0; i < s->tensors.count; i++) {
        const TostTensor* t = &s->tensors.tensor[i];
        if (t->row != TOST_ROW_attn_w && t->row != TOST_ROW_attn_b) continue;
        const size_t width = t->size / (size_t)t->shape[0];
        float* x = subject_get(s, TOST_PARAM, t);
        for (size_t j = 0; j < t->size; j++) x[j] *= scales[j / width % 4];
        s->engine->put(s->model, TOST_PARAM, t, x);
        free(x);
    }
}

// Raises the temperatures, so that most memberships are near 0 or 1.
static void subject_make_sharp(Subject* s) {
    for (int i = 0; i < s->tensors.count; i++) {
        const TostTensor* t = &s->tensors.tensor[i];
        if (t->row != TOST_ROW_temp) continue;
        float* x = subject_get(s, TOST_PARAM, t);
        for (size_t j = 0; j < t->size; j++) x[j] *= 20;
        s->engine->put(s->model, TOST_PARAM, t, x);
        free(x);
    }
}

void subject_forward(Subject* s, const int32_t* inputs, int B, int T) {
    const TostChunk chunk = {inputs, NULL, B, T, 0};
    s->engine->forward(s->model, &chunk, TOST_NO_STATE, TOST_NO_STATE);
}

void subject_begin(float* logits, Subject* s, const int32_t* prompts, int n, int T) {
    chunks_begin(&s->chunks, n);
    if (T > 0) chunks_read(logits, &s->chunks, prompts, T);
}

float* logits_of(Subject* s, const int32_t* inputs, int B, int T) {
    float* x = xmalloc((size_t)B * T * s->config.vocab_size * sizeof *x);
    subject_forward(s, inputs, B, T);
    s->engine->logits(x, s->model);
    return x;
}

double mean_loss(Subject* s) {
    double sum;
    int64_t count;
    s->engine->read_loss(&sum, &count, s->model);
    return sum / (double)count;
}

double subject_step(Subject* s, TostUpdate a, double clip) {
    const double norm = s->engine->grad_norm(s->model);
    a.clip = fmin(1.0, clip / (norm + TOST_CLIP_EPS));
    s->engine->update(s->model, &a);
    return norm;
}

// ---- Results of an engine -------------------------------------------------------------------------------------------

// Adds a result of n numbers, which the caller fills.
static double* record_add(Record* r, ResultKind kind, size_t n, const char* prefix, const char* name) {
    r->result = xrealloc(r->result, (size_t)(r->count + 1) * sizeof *r->result);
    Result* p = &r->result[r->count++];
    snprintf(p->name, sizeof p->name, "%s%s", prefix, name);
    p->kind = kind;
    p->n = n;
    return p->values = xmalloc(n * sizeof *p->values);
}

static void record_floats(Record* r, ResultKind kind, const char* prefix, const char* name, const float* x, size_t n) {
    double* values = record_add(r, kind, n, prefix, name);
    for (size_t i = 0; i < n; i++) values[i] = x[i];
}

static void record_number(Record* r, ResultKind kind, const char* name, double x) {
    *record_add(r, kind, 1, "", name) = x;
}

static void record_logits(Record* r, const char* name, Subject* s, const int32_t* inputs, int B, int T) {
    float* x = logits_of(s, inputs, B, T);
    record_floats(r, RESULT_LOGITS, "", name, x, (size_t)B * T * s->config.vocab_size);
    free(x);
}

void record_state(Record* r, const Subject* s, TostArray state, ResultKind kind, const char* prefix) {
    for (int i = 0; i < s->tensors.count; i++) {
        const TostTensor* t = &s->tensors.tensor[i];
        const size_t n = tost_elements(t, state, s->optimizer);
        float* x = n > 0 ? subject_get(s, state, t) : NULL;
        if (x) record_floats(r, kind, prefix, t->name, x, n);
        free(x);
    }
}

void record_free(Record* r) {
    for (int i = 0; i < r->count; i++) free(r->result[i].values);
    free(r->result);
    r->result = NULL;
    r->count = 0;
}

// ---- Comparing two records ------------------------------------------------------------------------------------------

Limits limits_of(TostDtype dtype, bool loose) {
    const Limits fp32 = {{1e-5, 1e-4, 1e-4, 1e-5}, {1e-5, 1e-4, 1e-4, 1e-5}},
                 tf32 = {{3e-2, 5e-2, 1e-2, 5e-3}, {5e-3, 1e-2, 5e-3, 5e-3}},
                 bf16 = {{loose ? 6e-2 : 3e-2, loose ? 6e-2 : 3e-2, 1e-2, 3e-3}, {7e-3, 9e-3, 2e-3, 2e-3}};
    return dtype == TOST_BF16 ? bf16 : dtype == TOST_TF32 ? tf32 : fp32;
}

const char* dtype_name(TostDtype dtype) {
    static const char* const names[] = {"fp32", "tf32", "bf16"};
    return names[dtype];
}

double relative_distance(const double* a, const double* b, size_t n) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        norm += b[i] * b[i];
    }
    return norm > 0 ? sqrt(difference / norm) : sqrt(difference);
}

static int compare_errors(const void* a, const void* b) {
    const double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

static void median_near(Checks* c, const char* what, ResultKind kind, double* errors, int n, double limit) {
    static const char* const names[RESULT_KINDS] = {"logits", "gradients", "parameters", "losses"};
    qsort(errors, (size_t)n, sizeof *errors, compare_errors);
    check(c, errors[n / 2] <= limit, "%s: median of %s: relative L2 error %.3e, limit %.1e", what, names[kind],
          errors[n / 2], limit);
    printf("    %s: median of %-30s %9.2e of %.1e\n", what, names[kind], errors[n / 2], limit);
}

// Checks each result against its limit. Prints for each kind the largest error and the median.
static void records_near(Checks* c, const char* what, const Record* got, const Record* want, Limits limits) {
    double worst[RESULT_KINDS] = {0};
    const char* worst_name[RESULT_KINDS] = {0};
    if (!check(c, got->count == want->count, "%s: %d results, want %d", what, got->count, want->count)) return;
    double* errors = xmalloc((size_t)RESULT_KINDS * (size_t)want->count * sizeof *errors);
    int n[RESULT_KINDS] = {0};
    for (int i = 0; i < got->count; i++) {
        const Result *g = &got->result[i], *w = &want->result[i];
        if (!check(c, g->n == w->n && strcmp(g->name, w->name) == 0, "%s: %zu of %s, want %zu of %s", what, g->n,
                   g->name, w->n, w->name)) continue;
        const double error = relative_distance(g->values, w->values, w->n), limit = limits.of[g->kind];
        check(c, error <= limit, "%s: %s: relative L2 error %.3e, limit %.1e", what, g->name, error, limit);
        errors[g->kind * want->count + n[g->kind]++] = error;
        if (worst_name[g->kind] && error <= worst[g->kind]) continue;
        worst[g->kind] = error;
        worst_name[g->kind] = g->name;
    }
    for (int kind = 0; kind < RESULT_KINDS; kind++) {
        if (n[kind] == 0) continue;
        printf("    %s:%-40s %9.2e of %.1e\n", what, worst_name[kind], worst[kind], limits.of[kind]);
        median_near(c, what, (ResultKind)kind, errors + kind * want->count, n[kind], limits.median[kind]);
    }
    free(errors);
}

void records_same(Checks* c, const char* what, const Record* got, const Record* first, const char* run) {
    if (!check(c, got->count == first->count, "%s: run %s has %d results, want %d", what, run, got->count,
               first->count)) return;
    for (int i = 0; i < got->count; i++)
        check(c, got->result[i].n == first->result[i].n && strcmp(got->result[i].name, first->result[i].name) == 0
              && memcmp(got->result[i].values, first->result[i].values, first->result[i].n * sizeof(double)) == 0,
              "%s: %s: run %s is not bit-identical to the first run", what, got->result[i].name, run);
}

// ---- One shape: every function of an engine with one model and batch size -------------------------------------------

static bool has_memory(const Shape* k) { return k->values == CONV_MEMORY || k->values == MEMORY || k->values == SHARP; }

TostConfig shape_config(const Shape* k) {
    const bool conv = k->values == CONV || k->values == CONV_MEMORY;
    return (TostConfig){k->layers, k->heads, k->channels, k->block, k->vocab, k->bias, k->membership,
                        conv ? TOST_CONV_WIDTH : 0, has_memory(k),
                        k->values == NO_POSITIONS ? TOST_POSITIONS_NONE : TOST_POSITIONS_LEARNED,
                        k->values == NO_POSITIONS ? 100 : 0};
}

static void shape_label(char* text, size_t cap, const Shape* k, TostDtype dtype, const char* test) {
    static const char* const values[] = {"", ",fresh", ",faint", ",conv", ",conv,memory", ",memory",
                                         ",no positions,bigrams", ",memory,sharp"};
    snprintf(text, cap, "%s,B=%d,T=%d,L=%d,nh=%d,C=%d,V=%d%s%s%s%s", dtype_name(dtype), k->B, k->T, k->layers,
             k->heads, k->channels, k->vocab, k->bias ? ",bias" : "", k->membership == TOST_UNIFORM ? ",uniform" : "",
             values[k->values], test);
}

// With memory, the limits are three times as large: errors pass through its recurrence, and in bf16 the CUDA engine
// rounds o, and rounds y before it adds o. Adam's first steps depend on the sign of a gradient alone. In a fresh model,
// some gradients are as small as their rounding errors, so parameters that start at zero differ, and then the logits.
static Limits shape_limits(const Shape* k, TostDtype dtype) {
    Limits limits = limits_of(dtype, k->bias || k->channels < 16 || k->values == FAINT);
    for (int i = 0; has_memory(k) && i < RESULT_KINDS; i++) limits.of[i] *= 3, limits.median[i] *= 3;
    if (k->values == FRESH) limits.of[RESULT_LOGITS] *= 4, limits.of[RESULT_PARAM] *= dtype == TOST_BF16 ? 30 : 3;
    return limits;
}

int32_t* shape_ids(const Shape* k, uint64_t seed) {
    Rng rng = rng_seeded(seed, 2);
    const size_t rows = (size_t)k->B * k->T;
    int32_t* ids = xmalloc(2 * rows * sizeof *ids);
    for (size_t i = 0; i < rows; i++) {
        ids[i] = rng_below(&rng, 8) == 0 ? 3 : (int32_t)rng_below(&rng, (uint64_t)k->vocab);
        ids[rows + i] = rng_below(&rng, 5) == 0 ? -1 : (int32_t)rng_below(&rng, (uint64_t)k->vocab);
    }
    ids[2 * rows - 1] = 1;
    return ids;
}

void subject_train(Subject* s, const Shape* k, uint64_t seed, float grad_scale, TostEnd end) {
    int32_t* ids = shape_ids(k, seed);
    chunks_train(&s->chunks, ids, ids + (size_t)k->B * k->T, k->B, k->T, grad_scale, end);
    free(ids);
}

// Activations of the last forward
static void record_activations(Record* r, const Subject* s, const Shape* k) {
    static const TostActivation kinds[] = {TOST_Z, TOST_PI, TOST_X};
    static const char* const names[] = {"z", "pi", "x"};
    const size_t rows = (size_t)k->B * k->T;
    float* x = xmalloc(rows * (size_t)(k->channels > k->heads ? k->channels : k->heads) * sizeof *x);
    char layer[16];
    for (int l = 0; l <= k->layers; l++)
        for (int i = 0; i < 3; i++) {
            if (l == k->layers && kinds[i] != TOST_X) continue;
            s->engine->activation(x, s->model, kinds[i], l);
            snprintf(layer, sizeof layer, ".%d", l);
            record_floats(r, RESULT_LOGITS, names[i], layer, x,
                          rows * (size_t)(kinds[i] == TOST_PI ? k->heads : k->channels));
        }
    free(x);
}

static void record_steps(Record* r, Subject* s, const Shape* k, const int32_t* ids) {
    const size_t rows = (size_t)k->B * k->T;
    char name[32];
    for (int i = 0; i < k->steps; i++) {
        s->engine->zero_grad(s->model);
        for (int micro = 0; micro < k->micros; micro++) {
            int32_t* batch = shape_ids(k, (uint64_t)(100 + k->micros * i + micro));
            const TostChunk chunk = {batch, batch + rows, k->B, k->T, 0};
            s->engine->train_forward(s->model, &chunk, TOST_NO_STATE, 1.0f / (float)(k->micros * k->B * k->T));
            if (i > 0) record_activations(r, s, k);       // must not change backward
            s->engine->train_backward(s->model, TOST_NO_STATE, TOST_NO_STATE, TOST_STEP_ENDS);
            free(batch);
        }
        if (i == 0) {
            record_state(r, s, TOST_GRAD, RESULT_GRAD, "grad.");
            record_activations(r, s, k);
        }
        const TostUpdate a = {1e-3, 0.9, 0.95, 1e-8, 0.1, 1.0, i + 1, 0.9};
        const double norm = subject_step(s, a, 1.0);
        if (i == 0) record_number(r, RESULT_GRAD, "gradient_norm", norm);
        if (i == 0) record_logits(r, "logits_of_a_shorter_batch", s, ids, 1, (k->T + 1) / 2);
        snprintf(name, sizeof name, "loss_of_step_%d", i);
        record_number(r, RESULT_LOSS, name, mean_loss(s));
    }
    if (k->steps > 0) record_state(r, s, TOST_PARAM, RESULT_PARAM, "after.");
}

// T: length of a forward pass between two decode steps
static void record_decode(Record* r, Subject* s, const Shape* k, const int32_t* ids, int T) {
    const size_t n = (size_t)k->B * k->vocab, rows = (size_t)k->B * k->T;
    float* logits = xmalloc(n * sizeof *logits);
    int32_t* tokens = xmalloc((size_t)k->B * sizeof *tokens);
    subject_begin(logits, s, ids, k->B, k->T);
    record_floats(r, RESULT_LOGITS, "decode.", "prompt", logits, n);
    for (int i = 0; i < 3 && k->T + i < tost_max_seq(&s->config); i++) {
        for (int b = 0; b < k->B; b++) tokens[b] = ids[(size_t)(b + i) % rows];
        chunks_read(logits, &s->chunks, tokens, 1);
        record_floats(r, RESULT_LOGITS, "decode.", "step", logits, n);
        if (i > 0 || k->steps == 0) continue;   // a forward must not change the decode state
        record_logits(r, "logits_between_two_tokens", s, ids, 1, T);
    }
    free(logits); free(tokens);
}

// Scores continuations of the first half of each sequence, or of none, twice: scoring must not change the decode state.
static void record_scores(Record* r, Subject* s, const Shape* k, const int32_t* ids) {
    const int prompt = k->T < 8 ? 0 : k->T / 2, T = k->T - prompt, copies = k->B > 1 ? 2 : 1;
    const size_t rows = (size_t)k->B * copies * T, n = (size_t)k->B * k->T;
    int32_t* tokens = xmalloc(2 * rows * sizeof *tokens);
    for (size_t i = 0; i < rows; i++) {
        tokens[i] = ids[i * 7 % n];
        tokens[rows + i] = ids[n + i * 5 % n];
    }
    subject_begin(NULL, s, ids, k->B, prompt);
    for (int again = 0; again < 2; again++) {
        double* losses = record_add(r, RESULT_LOSS, rows, "scores", again ? "_again" : "");
        chunks_score(losses, &s->chunks, tokens, tokens + rows, copies, T);
    }
    free(tokens);
}

// Reads tokens with their losses, then the next one.
static void record_reading(Record* r, Subject* s, const Shape* k, const int32_t* ids) {
    const size_t rows = (size_t)k->B * k->T, n = (size_t)k->B * k->vocab;
    float* logits = xmalloc(n * sizeof *logits);
    chunks_begin(&s->chunks, k->B);
    for (int t = 0, T = k->T / 2; t < k->T - 1; t += T, T = k->T - 1 - t) {
        double* losses = record_add(r, RESULT_LOSS, (size_t)k->B * T, "", "losses_of_reading");
        chunks_read_losses(losses, &s->chunks, ids + k->B * t, ids + rows + k->B * t, T);
    }
    chunks_read(logits, &s->chunks, ids, 1);
    record_floats(r, RESULT_LOGITS, "", "logits_after_reading", logits, n);
    free(logits);
}

static Record shape_record(const TostEngine* engine, const void* test, TostDtype dtype) {
    const Shape* k = test;
    const TostConfig config = shape_config(k);
    // With B = 1 the buffers are exactly full, so that an overrun is detected; otherwise they are larger than needed.
    const int more = k->B > 1 ? 5 : 0, longest = tost_max_seq(&config);
    const int T = k->T + more < longest ? k->T + more : longest;
    Record r = {NULL, 0};
    Subject s = subject_of(engine, config, k->B + more, T, k->steps > 0, dtype, 7);
    int32_t* ids = shape_ids(k, 99);
    if (k->values == FRESH) init_params(engine, s.model, &s.tensors, k->layers, 7);
    if (k->values == FAINT) subject_make_faint(&s);
    record_logits(&r, "logits", &s, ids, k->B, k->T);
    record_decode(&r, &s, k, ids, k->T);
    record_scores(&r, &s, k, ids);
    record_reading(&r, &s, k, ids);
    record_steps(&r, &s, k, ids);
    if (k->steps > 0) record_logits(&r, "logits_after_steps", &s, ids, k->B, k->T);
    free(ids);
    subject_free(&s);
    return r;
}

// ---- Comparing two engines ------------------------------------------------------------------------------------------

typedef Record Recorder(const TostEngine* engine, const void* test, TostDtype dtype);

// Checks results against those of the reference engine: in dtype or, if it does not support it, in float32.
static void reference_near(Comparison x, const char* what, const Record* got, Recorder* run, const void* test,
                           Limits limits) {
    Record want = run(x.reference, test, x.reference->supports(x.dtype) ? x.dtype : TOST_FP32);
    records_near(x.c, what, got, &want, limits);
    record_free(&want);
}

static void records_agree(Comparison x, const char* what, Recorder* run, const void* test, Limits limits) {
    Record got = run(x.engine, test, x.dtype);
    reference_near(x, what, &got, run, test, limits);
    record_free(&got);
}

void engines_agree(Comparison x, const Shape* k, const Runs* runs) {
    char what[160], run[16];
    shape_label(what, sizeof what, k, x.dtype, "");
    if (runs->before) runs->before(runs->context, 0);
    Record first = shape_record(x.engine, k, x.dtype);
    if (x.reference) reference_near(x, what, &first, shape_record, k, shape_limits(k, x.dtype));
    for (int i = 1; i < runs->runs; i++) {
        if (runs->before) runs->before(runs->context, i);
        Record again = shape_record(x.engine, k, x.dtype);
        snprintf(run, sizeof run, "%d", i);
        records_same(x.c, what, &again, &first, run);
        record_free(&again);
    }
    record_free(&first);
}

static Record chunks_record(const TostEngine* engine, const void* test, TostDtype dtype) {
    const ChunksTest* t = test;
    const Shape* k = &t->shape;
    const TostConfig config = shape_config(k);
    const size_t rows = (size_t)k->B * k->T;
    TostEngineOptions o = engine_options(k->B > 1 ? 2 * k->B : 1, k->T, true, dtype);   // record_scores has 2 copies
    if (t->chunks[0] > 0) o.max_chunk = t->chunks[0];
    o.states = chunks_states(k->T, o.max_chunk, true);
    Record r = {NULL, 0};
    Subject s = subject_open(engine, config, o);
    subject_randomize(&s, 7);
    if (k->values == SHARP) subject_make_sharp(&s);
    int32_t* ids = shape_ids(k, 99);
    chunks_loss(NULL, &s.chunks, ids, ids + rows, k->B, k->T);
    record_number(&r, RESULT_LOSS, "loss_of_evaluation", mean_loss(&s));
    record_logits(&r, "logits_of_a_short_sequence", &s, ids, 1, t->fits);
    record_decode(&r, &s, k, ids, t->fits);
    record_scores(&r, &s, k, ids);
    engine->zero_grad(s.model);
    for (int micro = 0; micro < k->micros; micro++)
        subject_train(&s, k, (uint64_t)(100 + micro), 1.0f / (float)(k->micros * k->B * k->T),
                      micro + 1 < k->micros ? TOST_MORE : TOST_STEP_ENDS);
    record_number(&r, RESULT_LOSS, "loss_of_training", mean_loss(&s));
    record_state(&r, &s, TOST_GRAD, RESULT_GRAD, "grad.");
    record_number(&r, RESULT_GRAD, "gradient_norm", s.engine->grad_norm(s.model));
    free(ids);
    subject_free(&s);
    return r;
}

void engines_agree_on_chunks(Comparison x, const ChunksTest* test) {
    static const Limits own = {{5e-6, 1e-5, 5e-6, 5e-6}, {5e-6, 5e-6, 5e-6, 5e-6}};
    const Limits limits = shape_limits(&test->shape, x.dtype);
    char chunk[32], what[192];
    ChunksTest one = {test->shape, test->fits, {0}};
    Record whole = chunks_record(x.engine, &one, x.dtype);
    for (int i = 0; i < MOST_CHUNKS && test->chunks[i] > 0; i++) {
        one.chunks[0] = test->chunks[i];
        snprintf(chunk, sizeof chunk, ",chunk=%d", one.chunks[0]);
        shape_label(what, sizeof what, &test->shape, x.dtype, chunk);
        Record got = chunks_record(x.engine, &one, x.dtype);
        if (x.reference) reference_near(x, what, &got, chunks_record, &one, limits);
        records_near(x.c, what, &got, &whole, x.reference ? limits : own);
        record_free(&got);
    }
    record_free(&whole);
}

void engines_agree_on_all_chunks(Comparison x, int run) {
    const int T = 2 * run + 9;
    const ChunksTest tests[] = {
        {{2, 3, 60, T + 4, 257, 1, TOST_LEARNED, 2, T, 1, 2, RANDOM}, 5, {run, run + 3, T - 1, 2 * run}},
        {{2, 3, 60, T + 4, 29, 0, TOST_UNIFORM, 1, T, 1, 1, RANDOM}, 5, {run + 3}},
        {{2, 3, 60, 16, 29, 1, TOST_LEARNED, 3, 7, 1, 1, RANDOM}, 1, {1, 3}},
        {{2, 3, 60, T + 4, 29, 1, TOST_LEARNED, 2, T, 1, 2, CONV}, 5, {run + 3}},
        {{2, 3, 15, 16, 29, 0, TOST_LEARNED, 3, 7, 1, 1, CONV}, 1, {1, 2, 3}},
        {{2, 3, 60, T + 4, 29, 1, TOST_LEARNED, 2, T, 1, 2, CONV_MEMORY}, 5, {run + 3}},
        {{2, 3, 15, 16, 29, 0, TOST_LEARNED, 3, 7, 1, 1, MEMORY}, 1, {1, 3}},
        {{1, 2, 66, 71, 29, 0, TOST_LEARNED, 1, 70, 1, 1, MEMORY}, 5, {17, 48}},
        {{1, 1, 128, 40, 29, 0, TOST_LEARNED, 2, 37, 1, 1, MEMORY}, 3, {3, 16}},
        {{2, 2, 66, 74, 29, 0, TOST_LEARNED, 2, 70, 1, 1, SHARP}, 1, {1, 3}},
        // on a GPU, the memory has several segments in each chunk
        {{1, 2, 6, 120 * run, 7, 0, TOST_LEARNED, 1, 119 * run + 5, 1, 1, MEMORY}, 5, {64 * run}},
        {{2, 3, 60, 1, 29, 1, TOST_LEARNED, 2, T, 1, 2, NO_POSITIONS}, 5, {run + 3}},
    };
    if (!x.reference && getenv("CUDA_ON_HOST_INEXACT")) {
        skip(x.c, "chunks against whole sequences: in the emulation, cuda_on_host tests them");
        return;
    }
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)   // a high temperature amplifies the rounding of bf16
        if (tests[i].shape.values != SHARP || x.dtype == TOST_FP32) engines_agree_on_chunks(x, &tests[i]);
}

enum { MIXED_BATCHES = 8 };

// Losses of the first of these batches
static void mixed_forwards(Record* r, Subject* s, const Shape* k, bool train, int batches) {
    static const int shapes[MIXED_BATCHES][2] = {{2, 33}, {2, 33}, {2, 33}, {2, 5}, {2, 5}, {2, 7}, {1, 7}, {2, 33}};
    const char* name = train ? "loss_of_training" : "loss_of_evaluation";
    for (int i = 0; i < batches; i++) {
        Shape of = *k;
        of.B = shapes[i][0];
        of.T = shapes[i][1];
        int32_t* ids = shape_ids(&of, (uint64_t)(50 + i));
        const int rows = of.B * of.T;
        if (train) chunks_train(&s->chunks, ids, ids + rows, of.B, of.T, 1.0f / (float)rows, TOST_STEP_ENDS);
        else chunks_loss(NULL, &s->chunks, ids, ids + rows, of.B, of.T);
        free(ids);
        record_number(r, RESULT_LOSS, name, mean_loss(s));
    }
}

static void mixed_decode(Record* r, Subject* s, const Shape* k) {
    const int sequences[] = {2, 1, 2};
    float* logits = xmalloc(2 * (size_t)k->vocab * sizeof *logits);
    int32_t* ids = shape_ids(k, 60);
    for (int i = 0; i < 3; i++) {
        const int n = sequences[i];
        subject_begin(NULL, s, ids, n, 4 + i);
        for (int step = 0; step < 3; step++) {
            chunks_read(logits, &s->chunks, ids + 20 + step, 1);
            record_floats(r, RESULT_LOGITS, "", "decoded_token", logits, (size_t)n * k->vocab);
        }
    }
    int32_t ignored[2 * 5];
    for (int i = 0; i < 2 * 5; i++) ignored[i] = -1;
    double* losses = record_add(r, RESULT_LOSS, 2 * 5, "", "scores_without_targets");
    for (int i = 0; i < 2 * 5; i++) losses[i] = 1;
    chunks_score(losses, &s->chunks, ids, ignored, 1, 5);
    free(ids); free(logits);
}

Record mixed_record(const TostEngine* engine, const void* test, TostDtype dtype) {
    (void)test;
    const Shape k = {1, 3, 60, 64, 29, 1, TOST_LEARNED, 2, 33, 0, 0, RANDOM};
    const TostConfig config = shape_config(&k);
    Record r = {NULL, 0};
    Subject s = subject_of(engine, config, k.B, k.T, true, dtype, 7);
    TostUpdate a = {1e-3, 0.9, 0.95, 1e-8, 0.1, 1.0, 1, 0.9};
    mixed_forwards(&r, &s, &k, false, MIXED_BATCHES);
    s.engine->zero_grad(s.model);
    mixed_forwards(&r, &s, &k, true, MIXED_BATCHES);
    record_state(&r, &s, TOST_GRAD, RESULT_GRAD, "grad.");
    subject_step(&s, a, 1.0);
    mixed_decode(&r, &s, &k);
    Subject again = subject_of(engine, config, k.B, k.T, true, dtype, 0);
    subject_copy(&again, &s);
    subject_free(&s);
    a.step = 2;
    mixed_forwards(&r, &again, &k, true, 1);
    subject_step(&again, a, 1.0);
    mixed_forwards(&r, &again, &k, false, 1);
    record_state(&r, &again, TOST_PARAM, RESULT_PARAM, "after.");
    subject_free(&again);
    return r;
}

void engines_agree_on_mixed_shapes(Comparison x) {
    char what[64];
    snprintf(what, sizeof what, "%s,mixed_shapes", dtype_name(x.dtype));
    records_agree(x, what, mixed_record, NULL, limits_of(x.dtype, true));
}

// Steps from step `first`. Records how the parameters change in them.
static void muon_steps(Record* r, Subject* s, const Shape* k, int first, int steps) {
    float* before = subject_array(s, TOST_PARAM);
    for (int step = first; step < first + steps; step++) {
        const TostUpdate a = {1e-2, 0.9, 0.95, 1e-2, 0.1, 1.0, step, 0.8};
        s->engine->zero_grad(s->model);
        subject_train(s, k, (uint64_t)(70 + step), 1.0f / (float)(k->B * k->T), TOST_STEP_ENDS);
        subject_step(s, a, 1.0);
        record_number(r, RESULT_LOSS, "loss", mean_loss(s));
    }
    for (int i = 0; i < s->tensors.count; i++) {
        const TostTensor* t = &s->tensors.tensor[i];
        if (t->optimizer != TOST_MUON) continue;
        float* x = subject_get(s, TOST_PARAM, t);
        for (size_t j = 0; j < t->size; j++) x[j] -= before[t->offset + j];
        record_floats(r, RESULT_GRAD, "change.", t->name, x, t->size);
        free(x);
    }
    free(before);
}

static Record muon_record(const TostEngine* engine, const void* test, TostDtype dtype) {
    const Shape* k = test;
    const TostConfig config = shape_config(k);
    Record r = {NULL, 0};
    TostEngineOptions o = engine_options(k->B, k->T, true, dtype);
    o.optimizer = TOST_MUON;
    Subject s = subject_open(engine, config, o), again = subject_open(engine, config, o);
    subject_randomize(&s, 7);
    muon_steps(&r, &s, k, 1, k->steps);
    subject_copy(&again, &s);
    subject_free(&s);
    muon_steps(&r, &again, k, k->steps + 1, 1);
    record_state(&r, &again, TOST_PARAM, RESULT_PARAM, "after.");
    record_state(&r, &again, TOST_M, RESULT_GRAD, "m.");
    record_state(&r, &again, TOST_V, RESULT_GRAD, "v.");
    subject_free(&again);
    return r;
}

void engines_agree_on_muon(Comparison x, const Shape* k) {
    char what[192];
    Limits limits = limits_of(x.dtype, k->bias);
    shape_label(what, sizeof what, k, x.dtype, ",muon");
    // The iteration multiplies rounding errors by up to 3.4445^5 where the singular values of x are small. Largest
    // errors measured: in bf16 7.2e-2, with biases 1.7e-1, and 1.8e-2 of the median; in tf32 4.7e-2 and 5.6e-3.
    if (x.dtype != TOST_FP32) limits.of[RESULT_GRAD] = k->bias ? 2e-1 : 1.2e-1, limits.median[RESULT_GRAD] = 3e-2;
    records_agree(x, what, muon_record, k, limits);
}

// Element i of vector k of an orthonormal basis of n dimensions (DCT-II without its constant vector)
static double basis(int i, int k, int n) { return sqrt(2.0 / n) * cos(M_PI * (i + 0.5) * (k + 1) / n); }

// The share of Σ x² that is outside the space of the first `rank` columns and rows of the basis; x (rows,columns)
static double share_outside(const float* x, int rows, int columns, int rank) {
    double all = 0, inside = 0;
    for (int i = 0; i < rows * columns; i++) all += (double)x[i] * x[i];
    for (int k = 0; k < rank * rank; k++) {
        double dot = 0;
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < columns; j++)
                dot += basis(i, k / rank, rows) * x[i * columns + j] * basis(j, k % rank, columns);
        inside += dot * dot;
    }
    return 1 - inside / all;
}

static void check_low_rank(Checks* c, const TostEngine* engine, TostDtype dtype, int rank) {
    const TostConfig config = {.n_layer = 1, .n_head = 1, .n_embd = 64, .block_size = 8, .vocab_size = 29};
    const TostUpdate update = {.lr = 1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .clip = 1, .step = 1};
    TostEngineOptions o = engine_options(1, 8, true, dtype);
    o.optimizer = TOST_MUON;
    Subject s = subject_open(engine, config, o);   // the parameters are zeros
    engine->zero_grad(s.model);
    for (int t = 0; t < s.tensors.count; t++) {
        const TostTensor* tensor = &s.tensors.tensor[t];
        const int rows = tensor->shape[0], columns = tensor->shape[1];
        if (tensor->optimizer != TOST_MUON) continue;
        float* g = xcalloc(tensor->size, sizeof *g);
        for (int i = 0; i < rows * columns; i++)
            for (int k = 0; k < rank; k++)
                g[i] += (float)(basis(i / columns, k, rows) * basis(i % columns, k, columns));
        engine->put(s.model, TOST_GRAD, tensor, g);
        free(g);
    }
    engine->update(s.model, &update);
    for (int t = 0; t < s.tensors.count; t++) {
        const TostTensor* tensor = &s.tensors.tensor[t];
        if (tensor->optimizer != TOST_MUON) continue;
        float* x = subject_get(&s, TOST_PARAM, tensor);
        const double outside = share_outside(x, tensor->shape[0], tensor->shape[1], rank);
        check(c, outside <= 1e-4, "%s, %s, muon: %.1e of the update of %s is outside the space of its gradient of rank "
              "%d", engine->name, dtype_name(dtype), outside, tensor->name, rank);
        free(x);
    }
    subject_free(&s);
}

void engine_keeps_low_rank(Checks* c, const TostEngine* engine, TostDtype dtype) {
    for (int rank = 1; rank <= 8; rank += 7) check_low_rank(c, engine, dtype, rank);
}

// The sum of the gradients of two micro-batches, all tensors at their offsets. ends: the argument of each
// backward. skip: the micro-batch to leave out, or -1. free()
static float* gradients_of_two(Subject* s, const Shape* k, const TostEnd ends[2], int skip) {
    for (int i = 0; i < 2; i++)
        if (i != skip) subject_train(s, k, (uint64_t)(80 + i), 1.0f / (float)(2 * k->B * k->T), ends[i]);
    return subject_array(s, TOST_GRAD);
}

static void put_gradients(Subject* s, float value) {
    for (int i = 0; i < s->tensors.count; i++) {
        const TostTensor* t = &s->tensors.tensor[i];
        float* x = xmalloc(t->size * sizeof *x);
        for (size_t j = 0; j < t->size; j++) x[j] = value;
        s->engine->put(s->model, TOST_GRAD, t, x);
        free(x);
    }
}

void engine_overwrites_gradients(Checks* c, const TostEngine* engine, TostDtype dtype, int membership) {
    const int values = membership == TOST_UNIFORM ? NO_POSITIONS : RANDOM;   // with bigrams, or with positions
    const Shape k = {2, 3, 60, 64, 29, 1, membership, 2, 33, 1, 2, values};
    const TostConfig config = shape_config(&k);
    const TostEnd more[2] = {TOST_MORE, TOST_STEP_ENDS}, parts[2] = {TOST_PART_ENDS, TOST_STEP_ENDS},
                  ends[2] = {TOST_STEP_ENDS, TOST_STEP_ENDS};
    TostEngineOptions o = engine_options(k.B, k.T, true, dtype);
    o.parts = 2;
    Subject zero = subject_open(engine, config, o), stale = subject_open(engine, config, o);
    const size_t n = zero.tensors.flat_size;
    subject_randomize(&zero, 7);
    subject_randomize(&stale, 7);
    put_gradients(&stale, NAN);
    engine->zero_grad(stale.model);
    float *want = gradients_of_two(&zero, &k, more, -1), *got = gradients_of_two(&stale, &k, more, -1);
    check(c, memcmp(got, want, n * sizeof *got) == 0, "%s: gradients depend on those before zero_grad",
          dtype_name(dtype));
    free(got); free(want);
    engine->zero_grad(stale.model);
    const double norm = engine->grad_norm(stale.model);
    check(c, norm == 0, "%s: the gradient norm after zero_grad is %g", dtype_name(dtype), norm);
    float* part[2];
    for (int i = 0; i < 2; i++) {
        engine->zero_grad(stale.model);
        put_gradients(&stale, 0);
        part[i] = gradients_of_two(&stale, &k, ends, 1 - i);
    }
    engine->zero_grad(stale.model);
    got = gradients_of_two(&stale, &k, parts, -1);
    size_t differ = 0;
    for (size_t i = 0; i < n; i++) differ += got[i] != part[0][i] + part[1][i];
    check(c, differ == 0, "%s: %zu of %zu gradients are not the sum of two parts", dtype_name(dtype), differ, n);
    free(got); free(part[0]); free(part[1]);
    subject_free(&zero);
    subject_free(&stale);
}
