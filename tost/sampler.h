// sampler.h: sampling a token from logits, and generating text with a model.
#ifndef TOST_SAMPLER_H
#define TOST_SAMPLER_H

#include "engine.h"
#include "rng.h"
#include "tokenizer.h"

// Index of the largest of n logits, the lowest index on ties. NaN counts as -infinity. -1 if all are -infinity.
int32_t argmax(const float* logits, int n);

typedef struct {
    double temperature;   // 0: greedy
    int    top_k;         // 0: all tokens
    double top_p;         // 1: all tokens
} SamplerOptions;

// Buffers for n_ids tokens. n_ids is the tokenizer's size: ids of a padded vocabulary (>= n_ids) are never sampled.
typedef struct { int n_ids; double* prob; int32_t* order; } Sampler;

Sampler sampler_new(int n_ids);
void    sampler_free(Sampler* s);
// Samples an id < n_ids from softmax(logits / temperature), restricted to the top_k most likely tokens and then to the
// smallest set of the most likely ones whose share of the remaining probability reaches top_p. On ties the lowest ids
// are kept. NaN counts as -infinity. Returns -1 if all logits are -infinity.
int32_t sampler_draw(Sampler* s, const float* logits, const SamplerOptions* o, Rng* rng);

// Receives the raw bytes of each generated token (a UTF-8 character may span several tokens); returns false to stop.
typedef bool (*PieceSink)(void* context, const char* bytes, size_t n);

typedef struct {
    const TostEngine* engine;
    TostModel*        model;
    const TostConfig* config;
    const Tokenizer*  tokenizer;
    SamplerOptions    options;
    PieceSink         piece;
    void*             context;   // passed to piece
} Generator;

typedef struct { int64_t tokens; double seconds; } GenerateResult;   // seconds: excluding the prompt

// Generates up to max_tokens tokens after a prompt with the recurrent decode. Stops at <|endoftext|>, which is neither
// passed to piece nor counted. An empty prompt starts from <|endoftext|>.
// A prompt longer than block_size is truncated to its last max(1, block_size/2) tokens. When all block_size positions
// are used, the next token rebuilds the decode state from the last max(1, block_size/2) tokens including itself. So the
// model's max_seq must be at least block_size, or the length of the prompt (at least 1) if prompt and max_tokens
// together fit in block_size.
// Fails if the tokenizer is larger than the vocabulary, the prompt has invalid ids, or all logits are NaN or -infinity.
bool generate(GenerateResult* result, const Generator* g, const uint32_t* prompt, size_t n_prompt, int64_t max_tokens,
              Rng* rng, TostError* err);

#endif
