// sampler.c: top-k and top-p do not sort: a search, bit by bit, finds the last token that is kept.
#include "run/sampler.h"

#include <float.h>

#include "base/memory.h"
#include "base/vector_math.h"

Sampler sampler_new(int n_ids) {
    return (Sampler){.n_ids = n_ids,
                     .weight = xmalloc((size_t)n_ids * sizeof(float)),
                     .key = xmalloc((size_t)n_ids * sizeof(uint32_t)),
                     .id = xmalloc((size_t)n_ids * sizeof(int32_t)),
                     .tied = xmalloc((size_t)n_ids * sizeof(int32_t))};
}

void sampler_free(Sampler* s) {
    free(s->weight);
    free(s->key);
    free(s->id);
    free(s->tied);
}

int32_t argmax(const float* logits, int n) {
    float max = -INFINITY;
    int32_t best = -1;
    for (int i = 0; i < n; i++) {
        if (!(logits[i] > max)) continue;   // also NaN
        max = logits[i];
        best = i;
    }
    return best;
}

// ---- Candidates: first all ids, then those that top-k and top-p keep, in increasing order of their ids. ----

// weight[i] = e^((logit - max) / temperature), at most 1. The largest logit has weight 1, even if it is infinite.
static void weigh(float* restrict weight, const float* restrict logits, int n, float max, double temperature) {
    const float least = -87.0f, scale = (float)fmin(1.0 / temperature, FLT_MAX);
    #pragma omp simd
    for (int i = 0; i < n; i++) {
        const float x = (logits[i] - max) * scale;
        const float w = x > least ? exp_f32(x) : 0.0f;   // NaN gives 0
        weight[i] = logits[i] == max ? 1.0f : w;
    }
}

static void begin_ranking(Sampler* s, const float* restrict logits) {
    uint32_t* restrict key = s->key;
    int32_t* restrict id = s->id;
    #pragma omp simd
    for (int i = 0; i < s->n_ids; i++) {
        union { float f; uint32_t u; } x = {logits[i] > -INFINITY ? logits[i] + 0.0f : -INFINITY};   // -0 becomes 0
        key[i] = x.u ^ ((uint32_t)-(int32_t)(x.u >> 31) | 0x80000000);   // negative numbers: all bits are flipped
        id[i] = i;
    }
}

// Keeps the candidates whose key is above `last`, and the first `ties_kept` of those whose key is `last`.
static void keep_above(Sampler* s, uint32_t last, int ties_kept) {
    int kept = 0, ties = 0;
    for (int i = 0; i < s->n; i++) {
        const uint32_t key = s->key[i];
        const bool tie = key == last;
        s->key[kept] = key;   // overwritten unless kept
        s->weight[kept] = s->weight[i];
        s->id[kept] = s->id[i];
        kept += (key > last) | (tie & (ties < ties_kept));
        ties += tie;
    }
    s->n = kept;
}

// Keeps the most likely candidates whose number (weight NULL) or total weight reaches the target, at least one. Finds
// the smallest key among them bit by bit, from the highest: s->tied has the candidates with the bits found so far, and
// `above` is the sum of those with larger ones.
static void keep_top(Sampler* s, const float* weight, double target) {
    double above = 0;
    uint32_t key = 0;
    int n = s->n;
    for (int i = 0; i < n; i++) s->tied[i] = i;
    for (int bit = 31; bit >= 0; bit--) {
        double sum = 0;
        int ones = 0, kept = 0;
        for (int j = 0; j < n; j++) {
            const int32_t i = s->tied[j];
            const bool one = s->key[i] >> bit & 1;
            sum += one ? (weight ? (double)weight[i] : 1.0) : 0.0;
            ones += one;
        }
        const uint32_t found = ones == n || (ones > 0 && above + sum >= target);
        if (!found) above += sum;
        key = key << 1 | found;
        for (int j = 0; j < n; j++) {
            const int32_t i = s->tied[j];
            s->tied[kept] = i;   // overwritten unless kept
            kept += (s->key[i] >> bit & 1) == found;
        }
        n = kept;
    }
    const double ties = ceil((target - above) / (weight ? (double)weight[s->tied[0]] : 1.0));
    keep_above(s, key, ties < 1 ? 1 : ties > n ? n : (int)ties);
}

// ---- A draw ----

static double sum_of(const float* weight, int n) {
    double sum = 0;
    #pragma omp simd reduction(+ : sum)
    for (int i = 0; i < n; i++) sum += (double)weight[i];
    return sum;
}

// The first of n candidates at which the running sum of weights exceeds u times their sum. Adds up whole blocks before
// it looks at candidates.
static int draw(const float* weight, int n, double u) {
    enum { BLOCK = 256 };
    double sum = 0, running = 0;
    for (int i = 0; i < n; i += BLOCK) sum += sum_of(weight + i, n - i < BLOCK ? n - i : BLOCK);
    int first = 0;
    for (; n - first > BLOCK; first += BLOCK) {
        const double after = running + sum_of(weight + first, BLOCK);
        if (after > u * sum) break;
        running = after;
    }
    int last = 0;   // with positive weight: the result if rounding keeps running <= u · sum
    for (int i = first; i < n; i++) {
        if (weight[i] > 0) last = i;
        running += (double)weight[i];
        if (running > u * sum) return i;
    }
    return last;
}

int32_t sampler_draw(Sampler* s, const float* logits, const SamplerOptions* o, Rng* rng) {
    const int n = s->n = s->n_ids;
    const int32_t best = argmax(logits, n);
    if (best < 0 || !(o->temperature > 0)) return best;
    weigh(s->weight, logits, n, logits[best], o->temperature);
    const double u = rng_uniform(rng);   // always one random number per token, for any options
    const bool top_k = o->top_k > 0 && o->top_k < n, top_p = o->top_p < 1;
    if (!top_k && !top_p) return draw(s->weight, n, u);
    begin_ranking(s, logits);
    if (top_k) keep_top(s, NULL, o->top_k);
    if (top_p) keep_top(s, s->weight, o->top_p * sum_of(s->weight, s->n));
    return s->id[draw(s->weight, s->n, u)];
}
