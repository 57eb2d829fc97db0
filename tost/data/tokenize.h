// tokenize.h: tokenizes text files into shards, streaming and in parallel. The output does not depend on the number of
// threads.
#ifndef TOST_TOKENIZE_H
#define TOST_TOKENIZE_H

#include "base/error.h"
#include "data/shard_writer.h"

typedef struct {
    uint64_t   bytes;              // read
    uint64_t   documents, tokens;  // written; tokens include an <|endoftext|> after each document
    ShardCount written[SPLITS];
} TokenizeResult;

typedef struct {
    const char*  tokenizer;      // path of a vocab.bpe
    const char*  out;            // writes OUT_train_000000.bin …, OUT_val_000000.bin … and OUT_vocab.bpe
    char* const* files;          // "-" is standard input
    int          n_files;
    double       val_frac;       // probability that a document goes to the validation shards, [0, 1); the first one
                                 // never does. A lone document gives this fraction of its tokens, the last ones
    bool         val_required;   // fail if there are no validation documents
    uint64_t     seed;           // a document's split depends only on seed and document number
    uint64_t     shard_tokens;   // tokens per shard
    int          threads;        // 0: OpenMP's default
    size_t       batch_bytes;    // input bytes read at a time, 0: 16 MiB; does not affect the output
    bool         jsonl;          // read every input as JSONL, for any file name
    // Called, unless NULL, after each batch, and when a FIFO has no process that writes to it.
    void       (*progress)(void* context, const TokenizeResult* so_far);
    void       (*waiting)(void* context, const char* name);
    void*        context;
} TokenizeOptions;

// Input files are plain text with documents separated by lines of <|endoftext|> (see document_ends), or, if named
// *.jsonl or *.JSONL, JSON objects, one per line, with the document in "text"; blank lines are skipped. A document ends
// at the end of its file. Empty documents are skipped. See text_check_head for what is rejected.
// A signal (signals.h) stops it with an error.
// Fails if the training shards would be empty. On failure all shards are removed.
bool tokenize_files(const TokenizeOptions* o, TokenizeResult* r, TostError* err);

#endif
