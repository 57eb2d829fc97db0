// engines.h: a model under test, what an engine computes of a shape, and two engines held to each other. Read by C11
// (test_tost.c, on a GPU) and by C++17 (dev/test/cuda_on_host, without one), so that both run the same comparison.
#ifndef TOST_ENGINES_H
#define TOST_ENGINES_H

#include <math.h>
#include <string.h>

#include "check.h"

#ifdef __cplusplus
extern "C" {
#endif
#include "tost/engine.h"
#include "tost/init.h"
#include "tost/rng.h"
#ifdef __cplusplus
}
#endif

// ---------------------------------------------------------------------------------------------
// A model and what drives it

typedef struct {
    const TostEngine* engine;
    TostConfig        config;
    TostTensors       tensors;
    TostModel*        model;
} Subject;

// Without its files or memory a judge cannot go on: no closing line, which is a failure too.
static inline void die_on(bool ok, const TostError* err) {
    if (ok) return;
    printf("FAILED: %s\n", err->text);
    exit(STATUS_FAILED);
}

static inline Subject subject_open(const TostEngine* engine, TostConfig config, TostEngineOptions o) {
    TostError err;
    Subject s = {engine, config, tost_tensors(&config), NULL};
    die_on(tost_config_check(&config, &err), &err);
    s.model = engine->create(&config, &o, &err);
    die_on(s.model != NULL, &err);
    return s;
}

static inline Subject subject_of(const TostEngine* engine, TostConfig config, int B, int T, bool training,
                                 TostDtype dtype) {
    const TostEngineOptions o = {B, T, training, false, dtype, 0};
    return subject_open(engine, config, o);
}

static inline void subject_free(Subject* s) {
    s->engine->destroy(s->model);
    tost_tensors_free(&s->tensors);
}

// Every parameter away from its initial value, so that every gradient is exercised.
static inline void subject_randomise(Subject* s, uint64_t seed) {
    Rng rng = rng_seeded(seed, 1);
    for (int i = 0; i < s->tensors.count; i++) {
        const TostTensor* t = &s->tensors.tensor[i];
        const double centre = t->init == TOST_ONE ? 1.0 : t->init == TOST_GAMMA ? 0.5 : 0.0;
        const double spread = t->ndim == 1 || t->init == TOST_ONE ? 0.2 : t->init == TOST_ZERO ? 0.02 : 0.15;
        float* x = (float*)xmalloc(t->size * sizeof *x);
        for (size_t j = 0; j < t->size; j++) x[j] = (float)(centre + spread * rng_normal(&rng));
        s->engine->put(s->model, TOST_PARAM, t, x);
        free(x);
    }
}

static inline float* subject_get(const Subject* s, TostState state, const TostTensor* t) {
    float* x = (float*)xmalloc(t->size * sizeof *x);
    s->engine->get(x, s->model, state, t);
    return x;
}

// Three of four channels of w become next to nothing, or nothing, so that their energy stays below its least.
static inline void subject_weaken(Subject* s) {
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

// Of the numbers that have as many bits of mantissa as dtype: of tf32 the next towards zero, since tensor cores ignore the
// bits below where nobody rounded them before; of bf16 the nearest.
static inline float rounded(float x, TostDtype dtype) {
    const int dropped = dtype == TOST_BF16 ? 16 : dtype == TOST_TF32 ? 13 : 0;
    uint32_t bits;
    if (dropped == 0) return x;
    memcpy(&bits, &x, sizeof bits);
    if (dtype == TOST_BF16) bits += 1u << (dropped - 1);
    bits = bits >> dropped << dropped;
    memcpy(&x, &bits, sizeof bits);
    return x;
}

// A dtype whose bits weights are rounded to, and on which of several grids as fine as its own: draws by which they err
// independently.
typedef struct { TostDtype dtype; int draw; } Rounding;

enum { ROUNDING_DRAWS = 3 };
static const Rounding EXACT = {TOST_FP32, 0};

// Rounds the weights of embeddings and products, which are those that decay.
static inline void subject_round(Subject* s, Rounding r) {
    const float grid = 1.0f + 0.3f * (float)r.draw;
    for (int i = 0; i < s->tensors.count; i++) {
        const TostTensor* t = &s->tensors.tensor[i];
        if (t->decay != TOST_DECAY || r.dtype == TOST_FP32) continue;
        float* x = subject_get(s, TOST_PARAM, t);
        for (size_t j = 0; j < t->size; j++) x[j] = rounded(grid * x[j], r.dtype) / grid;
        s->engine->put(s->model, TOST_PARAM, t, x);
        free(x);
    }
}

static inline float* logits_of(Subject* s, const int32_t* inputs, int B, int T) {   // (B,T,V)
    float* x = (float*)xmalloc((size_t)B * T * s->config.vocab_size * sizeof *x);
    s->engine->forward(s->model, inputs, B, T);
    s->engine->logits(x, s->model);
    return x;
}

static inline double mean_loss(Subject* s) {
    double sum;
    int64_t count;
    s->engine->read_loss(&sum, &count, s->model);
    return sum / (double)count;
}

// Clipping and AdamW, as the training loop does them; returns the norm before clipping.
static inline double subject_update(Subject* s, TostAdamW a, double clip) {
    const double norm = s->engine->grad_norm(s->model);
    a.grad_scale = fmin(1.0, clip / (norm + TOST_CLIP_EPS));
    s->engine->update(s->model, &a);
    return norm;
}

// ---------------------------------------------------------------------------------------------
// What an engine computed: pieces, each with a name and the limit of its kind

typedef enum { PIECE_LOGITS, PIECE_GRAD, PIECE_PARAM, PIECE_LOSS, PIECE_KINDS } PieceKind;

typedef struct {
    char      name[TOST_NAME_MAX + 32];
    PieceKind kind;
    size_t    n;
    double*   values;
    double    yardstick;   // see Limits; 0: none
} Piece;

typedef struct {
    Piece* piece;
    int    count;
} Record;

// A new piece of n numbers, for the caller to fill.
static inline double* record_add(Record* r, PieceKind kind, size_t n, const char* prefix, const char* name) {
    r->piece = (Piece*)xrealloc(r->piece, (size_t)(r->count + 1) * sizeof *r->piece);
    Piece* p = &r->piece[r->count++];
    snprintf(p->name, sizeof p->name, "%s%s", prefix, name);
    p->kind = kind;
    p->n = n;
    p->yardstick = 0;
    return p->values = (double*)xmalloc(n * sizeof *p->values);
}

static inline void record_floats(Record* r, PieceKind kind, const char* prefix, const char* name, const float* x,
                                 size_t n) {
    double* values = record_add(r, kind, n, prefix, name);
    for (size_t i = 0; i < n; i++) values[i] = x[i];
}

static inline void record_number(Record* r, PieceKind kind, const char* name, double x) {
    *record_add(r, kind, 1, "", name) = x;
}

static inline void record_logits(Record* r, const char* name, Subject* s, const int32_t* inputs, int B, int T) {
    float* x = logits_of(s, inputs, B, T);
    record_floats(r, PIECE_LOGITS, "", name, x, (size_t)B * T * s->config.vocab_size);
    free(x);
}

static inline void record_state(Record* r, const Subject* s, TostState state, PieceKind kind, const char* prefix) {
    for (int i = 0; i < s->tensors.count; i++) {
        float* x = subject_get(s, state, &s->tensors.tensor[i]);
        record_floats(r, kind, prefix, s->tensors.tensor[i].name, x, s->tensors.tensor[i].size);
        free(x);
    }
}

static inline void record_free(Record* r) {
    for (int i = 0; i < r->count; i++) free(r->piece[i].values);
    free(r->piece);
    r->piece = NULL;
    r->count = 0;
}

// ---------------------------------------------------------------------------------------------
// Two records

// Limits by kind of piece, of relative L2 error against the CPU engine or against truth. How far few bits move a
// result is a matter of the parameters: the gradient through s/S goes with 1/w, which is anything where a w is near 0
// early in a text. So tf32 and bf16 have a yardstick beside it: how far the CPU engine's own result, in float32, moves
// when nothing but its weights is rounded to as many bits, at most of a few draws. An engine, which rounds activations
// too, may err by YARDSTICKS times that, or by the kind's limit where that is more, since a number may happen to lie
// still; never by half.
typedef struct { double of[PIECE_KINDS]; } Limits;

#define YARDSTICKS 3.0
#define LIMIT_MAX  0.5

static inline Limits limits_of(TostDtype dtype) {
    const Limits fp32 = {{1e-5, 1e-4, 1e-4, 1e-5}}, tf32 = {{5e-3, 1e-2, 5e-3, 5e-3}},   // cut off: half of bf16
                 bf16 = {{1e-2, 2e-2, 1e-2, 1e-2}};
    return dtype == TOST_BF16 ? bf16 : dtype == TOST_TF32 ? tf32 : fp32;
}

static inline const char* dtype_name(TostDtype dtype) {
    return dtype == TOST_BF16 ? "bf16" : dtype == TOST_TF32 ? "tf32" : "fp32";
}

// |a - b| / |b| over n numbers; where b is zero, |a|. NaN where either holds one.
static inline double relative_distance(const double* a, const double* b, size_t n) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        norm += b[i] * b[i];
    }
    return norm > 0 ? sqrt(difference / norm) : sqrt(difference);
}

// Lengthens the yardsticks of a record to how far another is from it.
static inline void record_measure(Record* want, const Record* moved) {
    for (int i = 0; i < want->count; i++) {
        Piece* p = &want->piece[i];
        p->yardstick = fmax(p->yardstick, relative_distance(moved->piece[i].values, p->values, p->n));
    }
}

// Each piece within its limit; prints error and limit of that piece of each kind which is nearest to its limit. `what`
// has no spaces.
static inline void records_near(Checks* c, const char* what, const Record* got, const Record* want, Limits limits) {
    double worst[PIECE_KINDS] = {0}, limit_of_worst[PIECE_KINDS] = {1, 1, 1, 1};
    const char* worst_name[PIECE_KINDS] = {0};
    if (!check(c, got->count == want->count, "%s: %d results, want %d", what, got->count, want->count)) return;
    for (int i = 0; i < got->count; i++) {
        const Piece *g = &got->piece[i], *w = &want->piece[i];
        if (!check(c, g->n == w->n && strcmp(g->name, w->name) == 0, "%s: %zu of %s, want %zu of %s", what, g->n,
                   g->name, w->n, w->name)) continue;
        const double error = relative_distance(g->values, w->values, w->n),
                     limit = fmin(fmax(limits.of[g->kind], YARDSTICKS * w->yardstick), LIMIT_MAX);
        check(c, error <= limit, "%s: %s: relative L2 error %.3e, limit %.1e", what, g->name, error, limit);
        if (worst_name[g->kind] && error / limit <= worst[g->kind] / limit_of_worst[g->kind]) continue;
        worst[g->kind] = error;
        limit_of_worst[g->kind] = limit;
        worst_name[g->kind] = g->name;
    }
    for (int kind = 0; kind < PIECE_KINDS; kind++)
        if (worst_name[kind])
            printf("    %s:%-40s %9.2e of %.1e\n", what, worst_name[kind], worst[kind], limit_of_worst[kind]);
}

static inline void records_same(Checks* c, const char* what, const Record* got, const Record* first, const char* run) {
    if (!check(c, got->count == first->count, "%s: run %s has %d results, want %d", what, run, got->count,
               first->count))
        return;
    for (int i = 0; i < got->count; i++)
        check(c, got->piece[i].n == first->piece[i].n && strcmp(got->piece[i].name, first->piece[i].name) == 0
              && memcmp(got->piece[i].values, first->piece[i].values, first->piece[i].n * sizeof(double)) == 0,
              "%s: %s: run %s gives other bits than the first", what, got->piece[i].name, run);
}

// ---------------------------------------------------------------------------------------------
// One shape, through everything that an engine does

// Parameters: random ones everywhere; the published initial values, as a run begins; random but for a faint w
enum { RANDOM, FRESH, FAINT };

typedef struct {
    int layers, heads, channels, block, vocab, bias, membership;
    int B, T;
    int updates, micros;   // micro-batches an update
    int values;            // of the parameters: RANDOM, FRESH or FAINT
} Shape;

static inline const char* shape_words(char* text, size_t cap, const Shape* k, TostDtype dtype) {
    snprintf(text, cap, "%s,B=%d,T=%d,L=%d,nh=%d,C=%d,V=%d%s%s%s", dtype_name(dtype), k->B, k->T, k->layers,
             k->heads, k->channels, k->vocab, k->bias ? ",bias" : "", k->membership == TOST_UNIFORM ? ",uniform" : "",
             k->values == FRESH ? ",fresh" : k->values == FAINT ? ",faint" : "");
    return text;
}

// Ids of a micro-batch: inputs, then targets. One token in eight is token 3, so that a row of wte gathers many; some
// targets do not count.
static inline int32_t* shape_ids(const Shape* k, uint64_t seed) {
    Rng rng = rng_seeded(seed, 2);
    const size_t rows = (size_t)k->B * k->T;
    int32_t* ids = (int32_t*)xmalloc(2 * rows * sizeof *ids);
    for (size_t i = 0; i < rows; i++) {
        ids[i] = rng_below(&rng, 8) == 0 ? 3 : (int32_t)rng_below(&rng, (uint64_t)k->vocab);
        ids[rows + i] = rng_below(&rng, 5) == 0 ? -1 : (int32_t)rng_below(&rng, (uint64_t)k->vocab);
    }
    ids[2 * rows - 1] = 1;
    return ids;
}

// What each layer computed in the last forward; the first comes last, far from where backward starts.
static inline void record_activations(Record* r, const Subject* s, const Shape* k) {
    static const TostActivation kinds[] = {TOST_W, TOST_PI, TOST_X};
    static const char* const names[] = {"w", "pi", "x"};
    const size_t rows = (size_t)k->B * k->T;
    float* x = (float*)xmalloc(rows * (size_t)(k->channels > k->heads ? k->channels : k->heads) * sizeof *x);
    char layer[16];
    for (int l = k->layers; l >= 0; l--)
        for (int i = 0; i < 3; i++) {
            if (l == k->layers && kinds[i] != TOST_X) continue;
            s->engine->activation(x, s->model, kinds[i], l);
            snprintf(layer, sizeof layer, ".%d", l);
            record_floats(r, PIECE_LOGITS, names[i], layer, x,
                          rows * (size_t)(kinds[i] == TOST_PI ? k->heads : k->channels));
        }
    free(x);
}

static inline void record_updates(Record* r, Subject* s, const Shape* k, const int32_t* ids) {
    const size_t rows = (size_t)k->B * k->T;
    char name[32];
    for (int i = 0; i < k->updates; i++) {
        s->engine->zero_grad(s->model);
        for (int micro = 0; micro < k->micros; micro++) {
            int32_t* batch = shape_ids(k, (uint64_t)(100 + k->micros * i + micro));
            s->engine->forward_train(s->model, batch, batch + rows, k->B, k->T, 1.0f / (float)(k->micros * k->B * k->T));
            memset(batch, 0, 2 * rows * sizeof *batch);   // the caller's arrays are free again
            if (i > 0) record_activations(r, s, k);       // which backward does not notice
            s->engine->backward(s->model);
            free(batch);
        }
        if (i == 0) {
            record_state(r, s, TOST_GRAD, PIECE_GRAD, "grad.");
            record_activations(r, s, k);
        }
        const TostAdamW a = {1e-3, 0.9, 0.95, 1e-8, 0.1, 1.0, i + 1};
        const double norm = subject_update(s, a, 1.0);
        if (i == 0) record_number(r, PIECE_GRAD, "gradient_norm", norm);
        if (i == 0) record_logits(r, "logits_of_a_shorter_batch", s, ids, 1, (k->T + 1) / 2);
        snprintf(name, sizeof name, "loss_of_update_%d", i);
        record_number(r, PIECE_LOSS, name, mean_loss(s));
    }
    if (k->updates > 0) record_state(r, s, TOST_PARAM, PIECE_PARAM, "after.");
}

static inline void record_decode(Record* r, Subject* s, const Shape* k, const int32_t* ids) {
    const size_t n = (size_t)k->B * k->vocab, rows = (size_t)k->B * k->T;
    float* logits = (float*)xmalloc(n * sizeof *logits);
    int32_t* tokens = (int32_t*)xmalloc((size_t)k->B * sizeof *tokens);
    s->engine->decode_begin(logits, s->model, ids, k->B, k->T);
    record_floats(r, PIECE_LOGITS, "decode.", "prompt", logits, n);
    for (int i = 0; i < 3 && k->T + i < k->block; i++) {
        for (int b = 0; b < k->B; b++) tokens[b] = ids[(size_t)(b + i) % rows];
        s->engine->decode_step(logits, s->model, tokens);
        record_floats(r, PIECE_LOGITS, "decode.", "step", logits, n);
        if (i > 0 || k->updates == 0) continue;   // a forward in between does not disturb the state
        record_logits(r, "logits_between_two_tokens", s, ids, 1, k->T);
    }
    free(logits);
    free(tokens);
}

// Losses of as many tokens as the second half has, after the first half (none where T = 1), twice: the states stay.
static inline void record_scores(Record* r, Subject* s, const Shape* k, const int32_t* ids) {
    const int prompt = k->T / 2, T = k->T - prompt, copies = k->B > 1 ? 2 : 1;
    const size_t rows = (size_t)k->B * copies * T, n = (size_t)k->B * k->T;
    int32_t* tokens = (int32_t*)xmalloc(2 * rows * sizeof *tokens);
    for (size_t i = 0; i < rows; i++) {
        tokens[i] = ids[i * 7 % n];
        tokens[rows + i] = ids[n + i * 5 % n];
    }
    s->engine->decode_begin(NULL, s->model, ids, k->B, prompt);
    for (int again = 0; again < 2; again++) {
        double* losses = record_add(r, PIECE_LOSS, rows, "scores", again ? "_again" : "");
        s->engine->decode_score(losses, s->model, tokens, tokens + rows, copies, T);
    }
    free(tokens);
}

static inline Record shape_record(const TostEngine* engine, const Shape* k, TostDtype dtype, bool recompute,
                                  Rounding weights) {
    const TostConfig config = {k->layers, k->heads, k->channels, k->block, k->vocab, k->bias, k->membership};
    // One sequence fills the engine's buffers, so that what lies beyond is no one's; several leave room.
    const int more = k->B > 1 ? 5 : 0, T = k->T + more < k->block ? k->T + more : k->block;
    const TostEngineOptions o = {k->B + more, T, k->updates > 0, recompute, dtype, 0};
    Record r = {NULL, 0};
    Subject s = subject_open(engine, config, o);
    int32_t* ids = shape_ids(k, 99);
    if (k->values == FRESH) init_params(engine, s.model, &s.tensors, k->layers, 7);
    else subject_randomise(&s, 7);
    if (k->values == FAINT) subject_weaken(&s);
    subject_round(&s, weights);
    record_logits(&r, "logits", &s, ids, k->B, k->T);
    record_decode(&r, &s, k, ids);
    record_scores(&r, &s, k, ids);
    record_updates(&r, &s, k, ids);
    if (k->updates > 0) record_logits(&r, "logits_after_updates", &s, ids, k->B, k->T);
    free(ids);
    subject_free(&s);
    return r;
}

// ---------------------------------------------------------------------------------------------
// Two engines

// What the runs of the second engine differ in, if in anything: called before each.
typedef struct {
    int         runs;
    void      (*before)(const void* context, int run);
    const void* context;
} Runs;

// An engine's results near the other's in float32, see Limits, and the same bits on every run and with recompute.
static inline void engines_agree(Checks* c, const TostEngine* engine, const TostEngine* truth, const Shape* k,
                                 TostDtype dtype, const Runs* runs) {
    char what[160], run[16];
    Record want = shape_record(truth, k, TOST_FP32, false, EXACT), first = {NULL, 0};
    shape_words(what, sizeof what, k, dtype);
    for (int draw = 0; draw < ROUNDING_DRAWS && dtype != TOST_FP32; draw++) {
        const Rounding weights = {dtype, draw};
        Record moved = shape_record(truth, k, TOST_FP32, false, weights);
        record_measure(&want, &moved);
        record_free(&moved);
    }
    for (int i = 0; i < runs->runs; i++) {
        if (runs->before) runs->before(runs->context, i);
        Record got = shape_record(engine, k, dtype, false, EXACT);
        if (i == 0) {
            records_near(c, what, &got, &want, limits_of(dtype));
            first = got;
            continue;
        }
        snprintf(run, sizeof run, "%d", i);
        records_same(c, what, &got, &first, run);
        record_free(&got);
    }
    if (k->layers > 1 && k->updates > 0) {
        Record again = shape_record(engine, k, dtype, true, EXACT);
        records_same(c, what, &again, &first, "with recompute");
        record_free(&again);
    }
    record_free(&first);
    record_free(&want);
}

// decode_score alone, of two prompts of `prompt` tokens, for several copies of each; then a token more from the states,
// which it left as they were, and read_loss, which it does not concern.
static inline Record scores_record(const TostEngine* engine, TostDtype dtype, Rounding weights, int prompt, int copies,
                                   int T) {
    enum { N = 2 };
    const Shape k = {2, 3, 60, 64, 257, 1, TOST_LEARNED, N * copies, T + prompt, 0, 0, 0};
    const TostConfig config = {k.layers, k.heads, k.channels, k.block, k.vocab, k.bias, k.membership};
    const size_t rows = (size_t)k.B * k.T;
    const int32_t tokens[N] = {5, 6};
    Record r = {NULL, 0};
    Subject s = subject_of(engine, config, k.B, k.T, false, dtype);
    subject_randomise(&s, 8);
    subject_round(&s, weights);
    int32_t* ids = shape_ids(&k, 98);
    float* logits = (float*)xmalloc((size_t)N * k.vocab * sizeof *logits);
    engine->decode_begin(NULL, s.model, prompt ? ids : NULL, N, prompt);
    double* losses = record_add(&r, PIECE_LOSS, (size_t)k.B * T, "", "scores");
    engine->decode_score(losses, s.model, ids + N * prompt, ids + rows + N * prompt, copies, T);
    engine->decode_step(logits, s.model, tokens);
    record_floats(&r, PIECE_LOGITS, "", "a_token_more", logits, (size_t)N * k.vocab);
    double sum;
    int64_t count;
    engine->read_loss(&sum, &count, s.model);
    record_number(&r, PIECE_LOSS, "sum_of_losses", sum);
    record_number(&r, PIECE_LOSS, "count_of_losses", (double)count);
    free(ids);
    free(logits);
    subject_free(&s);
    return r;
}

// Texts within a chunk of the scans and past it, after no tokens and after some.
static inline void engines_agree_on_scores(Checks* c, const TostEngine* engine, const TostEngine* truth,
                                           TostDtype dtype, int chunk) {
    const int lengths[] = {1, 5, chunk + 5};
    char what[96];
    for (int prompt = 0; prompt <= 7; prompt += 7)
        for (int copies = 1; copies <= 3; copies += 2)
            for (int i = 0; i < 3; i++) {
                Record got = scores_record(engine, dtype, EXACT, prompt, copies, lengths[i]);
                Record want = scores_record(truth, TOST_FP32, EXACT, prompt, copies, lengths[i]);
                for (int draw = 0; draw < ROUNDING_DRAWS && dtype != TOST_FP32; draw++) {
                    const Rounding weights = {dtype, draw};
                    Record moved = scores_record(truth, TOST_FP32, weights, prompt, copies, lengths[i]);
                    record_measure(&want, &moved);
                    record_free(&moved);
                }
                snprintf(what, sizeof what, "%s,decode_score,prompt=%d,copies=%d,T=%d", dtype_name(dtype), prompt,
                         copies, lengths[i]);
                records_near(c, what, &got, &want, limits_of(dtype));
                record_free(&got);
                record_free(&want);
            }
}

// A run whose shapes change: batches of several shapes in turn, each of them several times, evaluated and trained on;
// a restart from its parameters and moments; decode of several and of one; texts of which nothing counts.
enum { COURSE_BATCHES = 7 };

static inline void course_forwards(Record* r, Subject* s, const Shape* k, bool train, int batches) {
    static const int shapes[COURSE_BATCHES][2] = {{2, 33}, {2, 33}, {2, 33}, {2, 5}, {2, 5}, {1, 5}, {2, 33}};
    const char* name = train ? "loss_of_training" : "loss_of_evaluation";
    for (int i = 0; i < batches; i++) {
        Shape of = *k;
        of.B = shapes[i][0];
        of.T = shapes[i][1];
        int32_t* ids = shape_ids(&of, (uint64_t)(50 + i));
        const size_t rows = (size_t)of.B * of.T;
        if (train) {
            s->engine->forward_train(s->model, ids, ids + rows, of.B, of.T, 1.0f / (float)rows);
            s->engine->backward(s->model);
        } else {
            s->engine->forward_loss(s->model, ids, ids + rows, of.B, of.T);
        }
        free(ids);
        record_number(r, PIECE_LOSS, name, mean_loss(s));
    }
}

static inline void course_decode(Record* r, Subject* s, const Shape* k) {
    const int sequences[] = {2, 1, 2};
    float* logits = (float*)xmalloc(2 * (size_t)k->vocab * sizeof *logits);
    int32_t* ids = shape_ids(k, 60);
    for (int i = 0; i < 3; i++) {
        const int n = sequences[i];
        s->engine->decode_begin(NULL, s->model, ids, n, 4 + i);
        for (int step = 0; step < 3; step++) {
            s->engine->decode_step(logits, s->model, ids + 20 + step);
            record_floats(r, PIECE_LOGITS, "", "of_a_token", logits, (size_t)n * k->vocab);
        }
    }
    int32_t nothing[2 * 5];
    for (int i = 0; i < 2 * 5; i++) nothing[i] = -1;
    double* losses = record_add(r, PIECE_LOSS, 2 * 5, "", "scores_of_nothing");
    for (int i = 0; i < 2 * 5; i++) losses[i] = 1;
    s->engine->decode_score(losses, s->model, ids, nothing, 1, 5);
    free(ids);
    free(logits);
}

static inline Record course_record(const TostEngine* engine, TostDtype dtype, Rounding weights) {
    const Shape k = {1, 3, 60, 64, 29, 1, TOST_LEARNED, 2, 33, 0, 0, RANDOM};
    const TostConfig config = {k.layers, k.heads, k.channels, k.block, k.vocab, k.bias, k.membership};
    Record r = {NULL, 0};
    Subject s = subject_of(engine, config, k.B, k.T, true, dtype);
    TostAdamW a = {1e-3, 0.9, 0.95, 1e-8, 0.1, 1.0, 1};
    subject_randomise(&s, 7);
    subject_round(&s, weights);
    course_forwards(&r, &s, &k, false, COURSE_BATCHES);
    s.engine->zero_grad(s.model);
    course_forwards(&r, &s, &k, true, COURSE_BATCHES);
    record_state(&r, &s, TOST_GRAD, PIECE_GRAD, "grad.");
    subject_update(&s, a, 1.0);
    course_decode(&r, &s, &k);
    Subject again = subject_of(engine, config, k.B, k.T, true, dtype);
    const TostState states[] = {TOST_PARAM, TOST_M, TOST_V};
    for (int i = 0; i < again.tensors.count; i++)
        for (int j = 0; j < 3; j++) {
            float* x = subject_get(&s, states[j], &s.tensors.tensor[i]);
            engine->put(again.model, states[j], &again.tensors.tensor[i], x);
            free(x);
        }
    subject_free(&s);
    a.step = 2;
    course_forwards(&r, &again, &k, true, 1);
    subject_update(&again, a, 1.0);
    course_forwards(&r, &again, &k, false, 1);
    record_state(&r, &again, TOST_PARAM, PIECE_PARAM, "after.");
    subject_free(&again);
    return r;
}

static inline void engines_agree_on_a_course(Checks* c, const TostEngine* engine, const TostEngine* truth,
                                             TostDtype dtype) {
    char what[64];
    Record got = course_record(engine, dtype, EXACT), want = course_record(truth, TOST_FP32, EXACT);
    for (int draw = 0; draw < ROUNDING_DRAWS && dtype != TOST_FP32; draw++) {
        const Rounding weights = {dtype, draw};
        Record moved = course_record(truth, TOST_FP32, weights);
        record_measure(&want, &moved);
        record_free(&moved);
    }
    snprintf(what, sizeof what, "%s,course", dtype_name(dtype));
    records_near(c, what, &got, &want, limits_of(dtype));
    record_free(&got);
    record_free(&want);
}

// The number of time steps in a chunk of the CUDA engine's scans, as its source states it.
static inline int chunk_of_source(void) {
    static const char key[] = "constexpr int TSSA_CHUNK = ";
    char line[512];
    int chunk = 0;
    FILE* f = fopen("train_gpt_tost.cu", "r");
    while (f && fgets(line, sizeof line, f)) {
        const char* p = strstr(line, key);
        if (p) chunk = atoi(p + strlen(key));
    }
    if (f) fclose(f);
    TostError err;
    die_on((chunk > 1 && chunk <= 256)
               || tost_error(&err, "train_gpt_tost.cu: no line `%sN;` (run from the root)", key), &err);
    return chunk;
}

enum { RAGGED_SHAPES = 22 };

// Little shapes at the edges of chunks, warps, vectors and vocabularies.
static inline void ragged_shapes(Shape shapes[RAGGED_SHAPES], int chunk) {
    const int block = 8 * chunk + 40;
    const Shape all[RAGGED_SHAPES] = {
        {2, 3, 60, block, 257, 1, 0, 1, chunk + 1, 10, 2, RANDOM},       // 3 heads of 20 channels
        {2, 3, 60, block, 257, 1, 0, 3, chunk + 1, 2, 2, RANDOM},
        {2, 3, 60, block, 257, 0, 0, 1, 1, 2, 5, RANDOM},
        {1, 3, 60, block, 257, 1, 0, 3, chunk - 1, 1, 2, RANDOM},
        {1, 3, 60, block, 257, 0, 0, 1, chunk, 1, 2, RANDOM},
        {1, 2, 4, block, 11, 1, 0, 2, 8 * chunk + 37, 1, 2, RANDOM},     // several chunks, the last one ragged
        {1, 3, 15, 2 * chunk, 29, 1, 0, 3, chunk + 5, 1, 2, RANDOM},     // channels that no vector divides
        {1, 17, 34, 2 * chunk, 29, 0, 0, 1, chunk + 3, 1, 2, RANDOM},    // more heads than warps
        {1, 95, 95, 2 * chunk, 29, 0, 0, 1, chunk + 3, 1, 2, RANDOM},    // the most heads
        {1, 4, 136, 2 * chunk, 29, 0, 0, 1, chunk + 3, 1, 2, RANDOM},    // heads wider than a warp: 34 channels
        {1, 1, 70, 2 * chunk, 29, 0, 0, 1, chunk + 3, 1, 2, RANDOM},     // one head, of 70 channels
        {1, 3, 96, 2 * chunk, 29, 0, 0, 1, chunk + 3, 1, 2, RANDOM},     // heads that fill the lanes: 32 channels
        {1, 3, 192, 2 * chunk, 29, 1, 0, 2, chunk + 9, 1, 2, RANDOM},    // and 64, two a lane
        {1, 1, 128, 2 * chunk + 8, 29, 0, 0, 1, 2 * chunk + 6, 1, 2, RANDOM},   // two slices of whole tiles
        {1, 1, 64, 2 * chunk + 8, 29, 0, TOST_UNIFORM, 1, 2 * chunk + 6, 1, 2, RANDOM},
        {1, 95, 95, 2 * chunk, 29, 0, TOST_UNIFORM, 1, chunk + 3, 1, 2, RANDOM},
        {1, 3, 60, 2 * chunk + 8, 29, 1, 0, 2, 2 * chunk + 6, 1, 2, FAINT},
        {1, 3, 192, 2 * chunk + 8, 29, 0, 0, 1, 2 * chunk, 1, 2, FAINT},
        {1, 3, 129, 2 * chunk, 29, 1, 0, 1, 7, 1, 2, RANDOM},            // heads of 43: several warps
        {1, 2, 16, 8, 9001, 0, 0, 1, 5, 1, 2, RANDOM},                   // a vocabulary that threads go round in
        {3, 3, 60, block, 257, 1, TOST_UNIFORM, 2, 3 * chunk + 5, 2, 2, RANDOM},
        {4, 3, 60, block, 29, 0, 0, 2, chunk + 5, 3, 3, RANDOM},         // deeper
    };
    memcpy(shapes, all, sizeof all);
}

// A sequence of more chunks than two levels of the scan's tree hold.
static inline Shape long_shape(int chunk) {
    const Shape k = {1, 2, 4, 66 * chunk + 8, 7, 0, 0, 1, 66 * chunk + 5, 1, 2, RANDOM};
    return k;
}

#endif
