// generate.h: continues prompts with a model, several together, for the command sample and for the samples of training;
// sampler.h draws each token.
#pragma once

#include "chunks.h"
#include "run/sampler.h"
#include "data/tokenizer.h"

// Receives the raw bytes of each generated token (a UTF-8 character may span several tokens); returns false to stop.
typedef bool (*TextSink)(void* context, const char* bytes, size_t n);

typedef struct {
    Chunks*           chunks;
    const TostConfig* config;
    const Tokenizer*  tokenizer; // NULL: writes ids, each after a space; no id ends a text; no prompt may be empty
    SamplerOptions    options;
    TextSink          sink;
    StringList        stop;      // a text ends before any of these texts
} Generator;

// SINK: sink returned false; NONE: not finished, also if generate failed
typedef enum { FINISH_LENGTH, FINISH_END_OF_TEXT, FINISH_STOP, FINISH_SINK, FINISH_NONE } Finish;

typedef struct {
    const uint32_t* prompt;      // (n_prompt) ids
    size_t          n_prompt;
    Rng             rng;
    void*           context;     // passed to sink
    // results
    int64_t         tokens;      // including those of the stop text
    Finish          finish;
} Text;

// Maximum number of texts generated together. In a product of up to this many rows, the bits of a row do not depend on
// the number of rows.
enum { MAX_TEXTS_TOGETHER = TOST_FEW_ROWS };

// Generates up to max_tokens tokens after each of n prompts; n is at most MAX_TEXTS_TOGETHER and
// TostEngineOptions.max_batch, and the prompts have the same generate_group. With the CPU engine, each text is the same
// as if generated alone. Stops at <|endoftext|>, which is neither passed to sink nor counted. An empty prompt starts
// from <|endoftext|>.
// A prompt longer than block_size is truncated to its last max(1, block_size/2) tokens. When all block_size positions
// are used, the next token rebuilds the decode state from the last max(1, block_size/2) tokens including itself. A
// model without positions reads prompts of any length and never rebuilds the state.
// If a stop text is given, bytes that may be its beginning are held back until it is certain that they are not.
// Fails if all logits are NaN or -infinity. The vocabulary has at least the tokens of the tokenizer.
// Adds the time, excluding the prompts, to *seconds.
bool generate(Text* texts, int n, double* seconds, const Generator* g, int64_t max_tokens, TostError* err);

// Prompts of one group can be decoded together.
int generate_group(const TostConfig* c, size_t n_prompt);
// The most tokens that generate reads in one pass for such a prompt: seq of loaded_model_create.
int generate_max_seq(const TostConfig* c, size_t n_prompt, int64_t max_tokens);
