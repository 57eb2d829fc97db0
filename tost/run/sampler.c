// sampler.c: sampling a token from logits. top-k and top-p do not sort: a radix search over histograms of counts or
// probabilities finds the last token to keep.
#include "run/sampler.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/vector_math.h"

Sampler sampler_new(int n_ids) {
    return (Sampler){.n_ids = n_ids,
                     .weight = xmalloc((size_t)n_ids * sizeof(float)),
                     .key = xmalloc((size_t)n_ids * sizeof(uint32_t)),
                     .id = xmalloc((size_t)n_ids * sizeof(int32_t)),
                     .tied = xmalloc((size_t)n_ids * sizeof(int32_t)),
                     .bins = xmalloc(2 * sizeof(Bins))};
}

void sampler_free(Sampler* s) {
    free(s->weight);
    free(s->key);
    free(s->id);
    free(s->tied);
    free(s->bins);
    *s = (Sampler){0};
}

// In lanes, so that it vectorizes: a maximum by `omp simd reduction` is not defined for NaN and -infinity.
static float largest(const float* logits, int n) {
    enum { LANES = 16 };
    float max[LANES];
    int i = 0;
    for (int l = 0; l < LANES; l++) max[l] = -INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) max[l] = logits[i + l] > max[l] ? logits[i + l] : max[l];   // false for NaN
    for (; i < n; i++) max[0] = logits[i] > max[0] ? logits[i] : max[0];
    for (int l = 1; l < LANES; l++) max[0] = max[l] > max[0] ? max[l] : max[0];
    return max[0];
}

int32_t argmax(const float* logits, int n) {
    const float max = largest(logits, n);
    if (max == -INFINITY) return -1;
    int32_t best = 0;
    while (logits[best] != max) best++;
    return best;
}

// ---------------------------------------------------------------------------------------------
// Candidates: first all ids, then those that top-k and top-p keep, in increasing order of their ids.

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

// The smallest set of most likely candidates that reaches a target: those with a larger key, and the first `ties` of
// those with this key.
typedef struct { uint32_t key; int ties; } Cut;

// Adds up the candidates, by their bits key >> shift & mask: their number, or their total weight if weight is given.
// `list`: only these n. The sum of a bin is sum[0] + sum[1]; adding to one alone would wait for the last addition.
static void histogram(Bins sum[2], const uint32_t* key, const float* weight, const int32_t* list, int n,
                      int shift, uint32_t mask) {
    memset(sum, 0, 2 * sizeof *sum);
    if (list)
        for (int j = 0; j < n; j++) sum[j & 1][key[list[j]] >> shift & mask] += weight ? (double)weight[list[j]] : 1.0;
    else if (weight)
        for (int i = 0; i < n; i++) sum[i & 1][key[i] >> shift & mask] += (double)weight[i];
    else
        for (int i = 0; i < n; i++) sum[i & 1][key[i] >> shift & mask] += 1.0;
}

// The first bin, from above, at which *above plus its sum reaches the target, or else the last one that is not empty.
// *above becomes the sum of the bins above it.
static uint32_t find_bin(double* above, Bins sum[2], double target) {
    uint32_t found = 0;
    double before = *above;
    for (int b = BINS - 1; b >= 0; b--) {
        const double in_bin = sum[0][b] + sum[1][b];
        if (in_bin == 0) continue;
        found = (uint32_t)b;
        *above = before;
        before += in_bin;
        if (before >= target) break;
    }
    return found;
}

// Writes those of n candidates (in `list`, or all) whose key >> shift is `prefix`, in order. Returns their number.
static int select_prefix(int32_t* to, const uint32_t* key, const int32_t* list, int n, int shift, uint32_t prefix) {
    int count = 0;
    for (int j = 0; j < n; j++) {
        const int32_t i = list ? list[j] : j;
        to[count] = i;   // overwritten unless counted
        count += key[i] >> shift == prefix;
    }
    return count;
}

// The cut at which the number (weight NULL) or the total weight of the candidates reaches the target. At least one
// is kept. Three levels of the radix search find the 32 bits of the key.
static Cut find_cut(const Sampler* s, const float* weight, double target) {
    static const struct { int shift; uint32_t mask; } levels[] = {{21, 0x7ff}, {10, 0x7ff}, {0, 0x3ff}};
    double above = 0;
    const int32_t* list = NULL;
    uint32_t prefix = 0;
    int n = s->n;
    for (size_t l = 0; l < countof(levels); l++) {
        histogram(s->bins, s->key, weight, list, n, levels[l].shift, levels[l].mask);
        prefix = prefix * (levels[l].mask + 1) + find_bin(&above, s->bins, target);
        n = select_prefix(s->tied, s->key, list, n, levels[l].shift, prefix);
        list = s->tied;
    }
    const double ties = ceil((target - above) / (weight ? (double)weight[s->tied[0]] : 1.0));
    return (Cut){prefix, ties < 1 ? 1 : ties > n ? n : (int)ties};
}

// Removes the candidates below the cut.
static void keep_above(Sampler* s, Cut cut) {
    int kept = 0, ties = 0;
    for (int i = 0; i < s->n; i++) {
        const uint32_t key = s->key[i];
        const bool tie = key == cut.key;
        s->key[kept] = key;   // overwritten unless kept
        s->weight[kept] = s->weight[i];
        s->id[kept] = s->id[i];
        kept += (key > cut.key) | (tie & (ties < cut.ties));
        ties += tie;
    }
    s->n = kept;
}

// ---------------------------------------------------------------------------------------------
// A draw

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
    if (!(o->temperature > 0)) return argmax(logits, n);
    const float max = largest(logits, n);
    if (max == -INFINITY) return -1;
    weigh(s->weight, logits, n, max, o->temperature);
    const double u = rng_uniform(rng);   // always one random number per token, for any options
    const bool top_k = o->top_k > 0 && o->top_k < n, top_p = o->top_p < 1;
    if (!top_k && !top_p) return draw(s->weight, n, u);
    begin_ranking(s, logits);
    if (top_k) keep_above(s, find_cut(s, NULL, o->top_k));
    if (top_p) keep_above(s, find_cut(s, s->weight, o->top_p * sum_of(s->weight, s->n)));
    return s->id[draw(s->weight, s->n, u)];
}
