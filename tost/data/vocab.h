// vocab.h: learns the vocabulary of a tokenizer from text: byte-level BPE with GPT-2's pattern.
#pragma once

#include "data/documents.h"

enum { VOCAB_MIN_SIZE = 257, VOCAB_FREQUENT = 10 };   // 256 bytes and <|endoftext|>; see VocabResult

typedef struct {
    TextCount read;
    uint64_t  words;             // different ones; 0 until all text is read
    int       merges, wanted;    // there are fewer if the text has no more pairs
    int       frequent;          // merges whose pair occurs VOCAB_FREQUENT times or more: the first ones
} VocabResult;

typedef struct {
    TextInput   in;
    int         size;            // number of tokens; VOCAB_MIN_SIZE needs no files
    const char* out;             // the vocab.bpe to write; must not exist
    void      (*progress)(void* context, const VocabResult* so_far);   // NULL, or called with in.context
} VocabOptions;

// Merges the most frequent pair of adjacent tokens in a word (pattern_end) into a new token, again and again. Of
// equally frequent pairs, that with the lower left id is first, then that with the lower right id. The result does not
// depend on the number of threads; memory grows with the number of different words.
bool vocab_learn(const VocabOptions* o, VocabResult* result, TostError* err);
