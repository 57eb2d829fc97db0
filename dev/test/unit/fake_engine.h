// fake_engine.h: an engine for tests of the trainer. A token's loss is 0.01 · id + 0.001 · (sum of the parameters), its
// gradient goes to one parameter. A token BAD makes loss and gradient NaN. Decode gives the tokens of a script.
// Hooks run at a chosen pass or tensor copy.
#pragma once

#include <math.h>
#include <signal.h>

#include "dev/test/scratch.h"
#include "engine.h"

enum { BAD = 200, WRONG_TENSOR = 3, MAX_CALLS = 64, MAX_IDS = 16 };

typedef struct { int T, from; int32_t ids[MAX_IDS]; } Call;   // a forward over T ids, from a state

struct TostModel {
    TostConfig     config;
    TostTensors    tensors;
    float*         state[TOST_ARRAYS];   // flat
    TostChunk      chunk;                // of the last forward with targets
    double         loss;
    int64_t        count;
    const int32_t* script;               // id with the largest logit, by call; -1: all logits are NaN
    int            at, n_calls;          // position in the script; length of calls
    Call           calls[MAX_CALLS];
};

typedef enum { TRAINING, EVALUATING, GET, PUT, EVENTS } Event;

typedef struct {
    Event event;
    int   at;                       // runs at this event of its kind, counted from 1
    void (*action)(TostModel* m);   // NULL: none
} Hook;

static Hook hooks[2];
static int  events[EVENTS];         // events of this process, by kind

static inline void kill_process(TostModel* m) { (void)m, raise(SIGKILL); }

static inline void trigger(Event event, const TostModel* m) {
    events[event]++;
    for (size_t i = 0; i < countof(hooks); i++)
        if (hooks[i].action && hooks[i].event == event && hooks[i].at == events[event]) hooks[i].action((TostModel*)m);
}

static inline TostDtype fake_default_dtype(bool training) { return (void)training, TOST_FP32; }
static inline bool fake_supports(TostDtype dtype) { return dtype == TOST_FP32; }

static inline bool fake_describe(char* text, size_t cap, const TostEngineOptions* o, TostError* err) {
    (void)o, (void)err;
    return snprintf(text, cap, "a fake") > 0;
}

static inline size_t fake_memory(const TostConfig* c, const TostEngineOptions* o) { return (void)c, (void)o, 1; }

static inline TostModel* fake_create(const TostConfig* c, const TostEngineOptions* o, TostError* err) {
    (void)o, (void)err;
    TostModel* m = xcalloc(1, sizeof *m);
    m->config = *c;
    m->tensors = tost_tensors(c);
    for (int s = 0; s < TOST_ARRAYS; s++) m->state[s] = xcalloc(m->tensors.flat_size, sizeof(float));
    return m;
}

static inline void fake_destroy(TostModel* m) {
    for (int s = 0; s < TOST_ARRAYS; s++) free(m->state[s]);
    tost_tensors_free(&m->tensors);
    free(m);
}

static inline void fake_put(TostModel* m, TostArray s, const TostTensor* t, const float* src) {
    trigger(PUT, m);
    memcpy(m->state[s] + t->offset, src, t->size * sizeof *src);
}

static inline void fake_get(float* dst, const TostModel* m, TostArray s, const TostTensor* t) {
    trigger(GET, m);
    memcpy(dst, m->state[s] + t->offset, t->size * sizeof *dst);
}

// losses (B,T): of each token; may be NULL
static inline void add_losses(double* losses, TostModel* m, const int32_t* inputs, int B, int T, float scale) {
    const size_t wrong = m->tensors.tensor[WRONG_TENSOR].offset;
    double sum = 0;
    for (size_t i = 0; i < m->tensors.flat_size; i++) sum += 1e-3 * m->state[TOST_PARAM][i];
    for (int i = 0; i < B * T; i++) {
        const int id = inputs[i];
        const double loss = id == BAD ? NAN : 0.01 * id;
        m->loss += loss + sum;
        if (losses) losses[i] = loss + sum;
        float* grad = m->state[TOST_GRAD] + (id == BAD ? wrong : (size_t)id % m->tensors.flat_size);
        *grad += scale * (float)(loss + 0.5 * sum);
    }
    m->count += B * T;
}

// With targets: keeps the chunk for fake_losses. Without: records the call.
static inline void fake_forward(TostModel* m, const TostChunk* chunk, int from, int to) {
    (void)to;
    if (chunk->targets) {
        trigger(EVALUATING, m);
        m->chunk = *chunk;
        return;
    }
    must(chunk->B == 1 && chunk->T >= 1 && chunk->first + chunk->T <= tost_max_seq(&m->config)
         && chunk->T <= MAX_IDS && m->n_calls < MAX_CALLS, "forward", NULL);
    Call* call = &m->calls[m->n_calls++];
    *call = (Call){.T = chunk->T, .from = from};
    memcpy(call->ids, chunk->inputs, (size_t)chunk->T * sizeof *chunk->inputs);
}

static inline void fake_losses(double* dst, TostModel* m) {
    add_losses(dst, m, m->chunk.inputs, m->chunk.B, m->chunk.T, 0);
}

static inline void fake_train(TostModel* m, const TostChunk* chunk, int from, float scale) {
    (void)from;
    trigger(TRAINING, m);
    add_losses(NULL, m, chunk->inputs, chunk->B, chunk->T, scale);
}

static inline void fake_backward(TostModel* m, int after, int before, TostEnd end) {
    (void)m, (void)after, (void)before, (void)end;
}

static inline void fake_read_loss(double* sum, int64_t* count, TostModel* m) {
    *sum = m->loss;
    *count = m->count;
    m->loss = 0;
    m->count = 0;
}

static inline void fake_zero_grad(TostModel* m) {
    memset(m->state[TOST_GRAD], 0, m->tensors.flat_size * sizeof(float));
}

static inline double fake_grad_norm(TostModel* m) {
    double sum = 0;
    for (size_t i = 0; i < m->tensors.flat_size; i++) sum += pow(m->state[TOST_GRAD][i], 2);
    return sqrt(sum);
}

// Adam; appends a line "step lr" to the file optimizer_steps.
static inline void fake_update(TostModel* m, const TostUpdate* a) {
    FILE* f = fopen("optimizer_steps", "a");
    must(f && fprintf(f, "%lld %.9e\n", (long long)a->step, a->lr) > 0 && fclose(f) == 0, "optimizer_steps", NULL);
    for (size_t i = 0; i < m->tensors.flat_size; i++) {
        const double g = a->clip * m->state[TOST_GRAD][i];
        const double first = m->state[TOST_M][i] = (float)(a->beta1 * m->state[TOST_M][i] + (1 - a->beta1) * g);
        const double second = m->state[TOST_V][i] = (float)(a->beta2 * m->state[TOST_V][i] + (1 - a->beta2) * g * g);
        const double m_hat = first / (1 - pow(a->beta1, (double)a->step));
        const double v_hat = second / (1 - pow(a->beta2, (double)a->step));
        m->state[TOST_PARAM][i] -= (float)(a->lr * m_hat / (sqrt(v_hat) + a->eps));
    }
}

static inline void fake_logits(float* logits, TostModel* m) {
    const int32_t id = m->script ? m->script[m->at++] : 0;
    for (int i = 0; i < m->config.vocab_size; i++) logits[i] = id < 0 ? NAN : (float)-i;
    if (id >= 0) logits[id] = 10;
    if (m->config.vocab_size > 257) logits[257] = 1e9f;   // not a token of the tokenizer: must never be drawn
}

static const TostEngine fake = {
    .name = "fake", .default_dtype = fake_default_dtype, .supports = fake_supports, .describe = fake_describe,
    .memory = fake_memory, .create = fake_create, .destroy = fake_destroy, .put = fake_put, .get = fake_get,
    .forward = fake_forward, .losses = fake_losses, .train_forward = fake_train, .train_backward = fake_backward,
    .read_loss = fake_read_loss, .zero_grad = fake_zero_grad, .grad_norm = fake_grad_norm, .update = fake_update,
    .last_logits = fake_logits,
};
