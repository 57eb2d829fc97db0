// sampler.h: draws one token from logits. generate.h makes texts with it.
#pragma once

#include <stdint.h>

#include "base/rng.h"

// Index of the largest of n logits, the lowest index on ties. NaN counts as -infinity. -1 if all are -infinity.
int32_t argmax(const float* logits, int n);

typedef struct {
    double temperature;   // 0: greedy
    int    top_k;         // 0: all tokens
    double top_p;         // 1: all tokens
} SamplerOptions;

// Buffers for n_ids tokens. n_ids is the tokenizer's size: ids of a padded vocabulary (>= n_ids) are never sampled.
typedef struct {
    int       n_ids;
    int       n;          // candidates: the ids that top_k and top_p keep
    float*    weight;     // of the candidates
    uint32_t* key;        // their logits as integers that compare in the same order
    int32_t*  id;         // increasing
    int32_t*  tied;       // candidates whose keys begin with the same bits
} Sampler;

Sampler sampler_new(int n_ids);
void    sampler_free(Sampler* s);
// Samples an id < n_ids from softmax(logits / temperature), restricted to the top_k most likely tokens and then to the
// smallest set of the most likely ones whose share of the remaining probability reaches top_p. On ties the lowest ids
// are kept. NaN counts as -infinity. Probabilities have the precision of float32; those below e^-87 times the largest
// are zero. Takes one random number unless the temperature is 0. Returns -1 if all logits are -infinity.
int32_t sampler_draw(Sampler* s, const float* logits, const SamplerOptions* o, Rng* rng);
