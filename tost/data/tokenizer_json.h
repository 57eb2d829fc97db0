// tokenizer_json.h: reads the tokenizer.json of Hugging Face tokenizers, if it is GPT-2's byte-level BPE.
#ifndef TOST_TOKENIZER_JSON_H
#define TOST_TOKENIZER_JSON_H

#include "base/error.h"
#include "base/files.h"

typedef struct { size_t text, n; uint32_t id; } NamedId;   // the name is names.data[text .. text + n)
typedef struct { NamedId* id; size_t count; } IdList;

typedef struct {
    Bytes  merges;   // lines "left right", as in a vocab.bpe
    Bytes  names;
    IdList vocab;    // of the model
    IdList added;    // added tokens
} TokenizerJson;

bool tokenizer_json_detect(const char* text, size_t n);   // whether it is JSON and not a vocab.bpe
// file: the contents of `path`. Any other tokenizer is an error, which says what was found. On failure there is nothing
// to free.
bool tokenizer_json_read(TokenizerJson* out, const char* path, const Bytes* file, TostError* err);
void tokenizer_json_free(TokenizerJson* t);

#endif
