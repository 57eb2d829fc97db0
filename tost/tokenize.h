// tokenize.h: text files to token shards, streaming, on all cores; the same bytes for any number of threads.
#ifndef TOST_TOKENIZE_H
#define TOST_TOKENIZE_H

#include "util.h"

typedef struct {
    const char*  tokenizer;      // path of a vocab.bpe
    const char*  out;            // shards are OUT_train_000000.bin … and OUT_val_000000.bin …
    char* const* files;          // "-" is standard input
    int          n_files;
    double       val_frac;       // chance of a document to go to the validation shards, [0, 1)
    bool         val_required;   // an error where none goes there
    uint64_t     seed;           // of that choice, which depends on it and on the document's number only
    uint64_t     shard_tokens;   // tokens a shard
    int          threads;        // 0: as many as OpenMP gives
    size_t       batch_bytes;    // of input at a time, 0: 16 MiB; changes memory and speed, not the result
    bool         jsonl;          // every input is JSONL, whatever its name (for standard input)
    bool         quiet;          // no progress on a terminal
} TokenizeOptions;

typedef struct {
    uint64_t bytes;              // read
    uint64_t documents, tokens;  // written; <|endoftext|> follows each document, and counts
    uint64_t train_tokens, val_tokens;
    int      train_shards, val_shards;
    double   seconds;
} TokenizeResult;

// Plain text: documents are separated by lines that are exactly <|endoftext|>, ended by LF or CRLF; neither
// that line nor the line end before it belongs to a document. Files named *.jsonl or *.JSONL: one JSON object a line,
// its "text" is a document; blank lines are skipped. The end of a file ends a document. Documents without a
// byte are skipped. A compressed file, or one of another known kind that is no text, is refused. On an error,
// and where the training shards would be left without tokens, no file is left behind.
bool tokenize_files(const TokenizeOptions* o, TokenizeResult* r, TostError* err);

#endif
