// tokenize.h: tokenizes text files into shards, streaming and in parallel. The output does not depend on the number of
// threads.
#pragma once

#include "data/documents.h"
#include "data/shard_writer.h"

typedef struct {
    TextCount  read;
    uint64_t   tokens;             // written; including an <|endoftext|> after each document
    ShardCount written[SPLITS];    // in the end
} TokenizeResult;

typedef struct {
    TextInput    in;
    const char*  tokenizer;      // path of a vocab.bpe
    const char*  out;            // writes OUT_train_000000.bin …, OUT_val_000000.bin … and OUT_vocab.bpe
    double       val_frac;       // probability that a document goes to the validation shards, [0, 1); not the first
                                 // and its copies. If none does, this fraction of the tokens, the last ones
    uint64_t     seed;           // a document's split depends only on seed and TextPart.head, so copies share a split
    uint64_t     shard_tokens;   // tokens per shard
    // Called with in.context after each batch, unless NULL.
    void       (*progress)(void* context, const TokenizeResult* so_far);
} TokenizeOptions;

// Fails like documents_read and shard_writer.h. On failure all shards are removed.
bool tokenize_files(const TokenizeOptions* o, TokenizeResult* result, TostError* err);
