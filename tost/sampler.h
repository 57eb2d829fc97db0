// sampler.h: one token out of logits, and text out of a model.
#ifndef TOST_SAMPLER_H
#define TOST_SAMPLER_H

#include "engine.h"
#include "rng.h"
#include "tokenizer.h"

typedef struct {
    double temperature;   // 0: greedy
    int    top_k;         // 0: all
    double top_p;         // 1: all; the smallest set of tokens whose probabilities reach top_p
} SamplerOptions;

// Draws one id below n_ids (the tokenizer's size: rows of the vocabulary past it are never drawn) with the
// probability softmax(logits / temperature), first cut to the top_k largest, then to the smallest set of the
// likeliest of these whose share of what is left reaches top_p (at least one). Ties go to the lowest id.
// A NaN counts as -infinity.
typedef struct { int n_ids; double* prob; int32_t* order; } Sampler;   // scratch for n_ids numbers and ids

Sampler sampler_new(int n_ids);
void    sampler_free(Sampler* s);
// -1 where no logit is a number above -infinity.
int32_t sampler_draw(Sampler* s, const float* logits, const SamplerOptions* o, Rng* rng);

// Writes up to max_tokens of text after a prompt, token by token through the recurrent decode. Stops at
// <|endoftext|> (neither written nor counted). piece is called with the raw bytes of each token as it is made
// (a character of UTF-8 may span several) and may return false to stop. An empty prompt starts from
// <|endoftext|>.
// The window: a prompt longer than block_size keeps its last max(1, block_size/2) tokens; where the state
// holds block_size tokens and one more comes, it is primed again from the last max(1, block_size/2), that one
// included. The model's max_seq must hold what decode_begin sees: block_size, or the prompt alone (at least
// 1) where it and max_tokens fit in block_size.
// Fails where the tokenizer is larger than the vocabulary, the prompt has foreign ids, or the logits are not
// numbers.
typedef bool (*PieceSink)(void* context, const char* bytes, size_t n);

typedef struct { int64_t tokens; double seconds; } GenerateResult;   // made, and time for them alone

bool generate(GenerateResult* result, const TostEngine* engine, TostModel* model, const TostConfig* config,
              const Tokenizer* tokenizer, const uint32_t* prompt, size_t n_prompt, int64_t max_tokens,
              const SamplerOptions* o, Rng* rng, PieceSink piece, void* context, TostError* err);

#endif
