// sampler.c: sampling a token from logits, and generating text with a model.
#include "sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------------------------------------
// One token

int32_t argmax(const float* logits, int n) {
    int32_t best = -1;
    float max = -INFINITY;
    for (int32_t i = 0; i < n; i++) {
        if (logits[i] > max) {   // false for NaN
            best = i;
            max = logits[i];
        }
    }
    return best;
}

Sampler sampler_new(int n_ids) {
    return (Sampler){.n_ids = n_ids,
                     .prob = xmalloc((size_t)n_ids * sizeof(double)),
                     .order = xmalloc((size_t)n_ids * sizeof(int32_t))};
}

void sampler_free(Sampler* s) {
    free(s->prob);
    free(s->order);
    *s = (Sampler){0};
}

// Sorts by decreasing logit (NaN is -infinity), then by increasing id.
static bool ranks_before(const float* logits, int32_t a, int32_t b) {
    float x = isnan(logits[a]) ? -INFINITY : logits[a];
    float y = isnan(logits[b]) ? -INFINITY : logits[b];
    return x != y ? x > y : a < b;
}

static void sift_down(int32_t* heap, int n, int at, const float* logits) {
    const int32_t id = heap[at];
    for (int child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && ranks_before(logits, heap[child + 1], heap[child])) child++;
        if (!ranks_before(logits, heap[child], id)) break;
        heap[at] = heap[child];
    }
    heap[at] = id;
}

// Moves the first of n ids to the end and leaves a heap of n - 1.
static int32_t pop(int32_t* heap, int n, const float* logits) {
    int32_t first = heap[0];
    heap[0] = heap[n - 1];
    sift_down(heap, n - 1, 0, logits);
    return heap[n - 1] = first;
}

// Applies top_k, then top_p. Returns the number of ids that remain; they are at the end of s->order, most likely last.
// Partial heapsort: O(n + kept · log n).
static int select_top(Sampler* s, const float* logits, const SamplerOptions* o, double total) {
    const int n = s->n_ids;
    for (int i = 0; i < n; i++) s->order[i] = i;
    for (int i = n / 2 - 1; i >= 0; i--) sift_down(s->order, n, i, logits);
    int kept = 0;
    double sum = 0;
    if (o->top_k > 0 && o->top_k < n) {
        for (; kept < o->top_k; kept++) sum += s->prob[pop(s->order, n - kept, logits)];
        if (!(o->top_p < 1)) return kept;
        const double enough = o->top_p * sum;
        sum = kept = 0;
        do sum += s->prob[s->order[n - 1 - kept++]]; while (sum < enough && kept < o->top_k);
        return kept;
    }
    do sum += s->prob[pop(s->order, n - kept, logits)]; while (++kept < n && sum < o->top_p * total);
    return kept;
}

// The first of ids[0..n) at which the running sum of weights exceeds u · sum; ids NULL: 0 … n - 1.
static int32_t draw(const double* weight, const int32_t* ids, int n, double u) {
    double sum = 0, running = 0;
    for (int i = 0; i < n; i++) sum += weight[ids ? ids[i] : i];
    int32_t last = -1;   // with positive weight: the result if rounding keeps running <= u · sum
    for (int i = 0; i < n; i++) {
        int32_t id = ids ? ids[i] : i;
        if (weight[id] > 0) last = id;
        running += weight[id];
        if (running > u * sum) return id;
    }
    return last;
}

int32_t sampler_draw(Sampler* s, const float* logits, const SamplerOptions* o, Rng* rng) {
    const int n = s->n_ids;
    const int32_t best = argmax(logits, n);
    if (best < 0 || !(o->temperature > 0)) return best;
    const float max = logits[best];
    double total = 0;
    for (int i = 0; i < n; i++) {
        // The largest logit has weight 1, even if it is infinite (inf - inf is NaN).
        double w = logits[i] == max ? 1.0 : exp(((double)logits[i] - max) / o->temperature);
        s->prob[i] = isnan(w) ? 0.0 : w;
        total += s->prob[i];
    }
    const double u = rng_uniform(rng);   // always one random number per token, for any options
    if (!(o->top_k > 0 && o->top_k < n) && !(o->top_p < 1)) return draw(s->prob, NULL, n, u);
    const int kept = select_top(s, logits, o, total);
    return draw(s->prob, s->order + n - kept, kept, u);
}

// ---------------------------------------------------------------------------------------------
// Text

// The tokens in the decode state, which is rebuilt from the last of them when all positions are used.
typedef struct {
    const Generator* g;
    int              count;     // tokens in the decode state
    int32_t*         ids;       // (block_size) these tokens
    float*           logits;    // (V), after the last token
} Window;

static int tokens_to_keep(int block_size) { return block_size / 2 > 1 ? block_size / 2 : 1; }

static void window_begin(Window* w, const uint32_t* prompt, size_t n) {
    const int block = w->g->config->block_size;
    const size_t keep = n > (size_t)block ? (size_t)tokens_to_keep(block) : n;
    for (size_t i = 0; i < keep; i++) w->ids[i] = (int32_t)prompt[n - keep + i];
    w->count = (int)keep;
    w->g->engine->decode_begin(w->logits, w->g->model, w->ids, 1, w->count);
}

static void window_append(Window* w, int32_t id) {
    const int block = w->g->config->block_size;
    if (w->count < block) {
        w->ids[w->count++] = id;
        w->g->engine->decode_step(w->logits, w->g->model, &id);
        return;
    }
    const int keep = tokens_to_keep(block);
    memmove(w->ids, w->ids + w->count - (keep - 1), (size_t)(keep - 1) * sizeof *w->ids);
    w->ids[keep - 1] = id;
    w->count = keep;
    w->g->engine->decode_begin(w->logits, w->g->model, w->ids, 1, w->count);
}

static bool check_prompt(const Generator* g, const uint32_t* prompt, size_t n, TostError* err) {
    const int size = tokenizer_size(g->tokenizer), rows = g->config->vocab_size;
    if (size > rows)
        return tost_error(err, "%s: %d tokens, but the model's vocabulary has %d; give the tokenizer it was "
                          "trained with as --tokenizer FILE", tokenizer_path(g->tokenizer), size, rows);
    for (size_t i = 0; i < n; i++)
        if (prompt[i] >= (uint32_t)size)
            return tost_error(err, "prompt: token %zu has the id %u, but %s has ids 0 to %d", i, prompt[i],
                              tokenizer_path(g->tokenizer), size - 1);
    return true;
}

static bool generate_tokens(GenerateResult* result, Window* w, Sampler* sampler, int64_t max_tokens, Rng* rng,
                            TostError* err) {
    const Generator* g = w->g;
    for (;;) {
        const int32_t id = sampler_draw(sampler, w->logits, &g->options, rng);
        if (id < 0)
            return tost_error(err, "the logits after %lld tokens are not numbers; the weights have diverged: use an "
                              "earlier checkpoint (--model)", (long long)result->tokens);
        if (id == tokenizer_eot(g->tokenizer)) return true;
        size_t n;
        const char* bytes = tokenizer_piece(g->tokenizer, (uint32_t)id, &n);
        result->tokens++;
        if (!g->piece(g->context, bytes, n) || result->tokens >= max_tokens) return true;
        window_append(w, id);
    }
}

bool generate(GenerateResult* result, const Generator* g, const uint32_t* prompt, size_t n_prompt, int64_t max_tokens,
              Rng* rng, TostError* err) {
    *result = (GenerateResult){0};
    if (!check_prompt(g, prompt, n_prompt, err)) return false;
    if (max_tokens <= 0) return true;
    const uint32_t eot = (uint32_t)tokenizer_eot(g->tokenizer);
    Sampler sampler = sampler_new(tokenizer_size(g->tokenizer));
    Window w = {.g = g, .ids = xmalloc((size_t)g->config->block_size * sizeof(int32_t)),
                .logits = xmalloc((size_t)g->config->vocab_size * sizeof(float))};
    if (n_prompt > 0) window_begin(&w, prompt, n_prompt);
    else window_begin(&w, &eot, 1);
    const double start = now_seconds();
    bool ok = generate_tokens(result, &w, &sampler, max_tokens, rng, err);
    result->seconds = now_seconds() - start;
    free(w.ids);
    free(w.logits);
    sampler_free(&sampler);
    return ok;
}
