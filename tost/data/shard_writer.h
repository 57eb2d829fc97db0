// shard_writer.h: writes OUT_train_000000.bin, … and OUT_val_000000.bin, … of shard_tokens tokens each: llm.c's uint16
// format if vocab_size <= 65536, else uint32. The files are written in the folder OUT.tmp, which is locked, and renamed
// when the writer is closed. A folder left by a killed process is reused.
#pragma once

#include "base/files.h"

typedef struct ShardWriter ShardWriter;
typedef enum { SPLIT_TRAIN, SPLIT_VAL, SPLITS } Split;
typedef struct { uint64_t tokens; int shards; } ShardCount;

// Fails if such a shard exists or another process writes shards with this prefix. 1 <= shard_tokens < 2^31, because the
// header's count is an int32. `out` must stay valid.
ShardWriter* shard_writer_open(const char* out, uint32_t vocab_size, uint64_t shard_tokens, TostError* err);
bool shard_writer_append(ShardWriter* w, Split split, const uint32_t* ids, size_t n, TostError* err);  // < vocab_size
// Moves the last n tokens of the training shards to the validation shards, which must have none.
bool shard_writer_move_tail(ShardWriter* w, uint64_t n, TostError* err);
// Writes tokenizer, unless NULL, as OUT_vocab.bpe. Syncs and renames the shards (none if there are no tokens). Frees w
// in any case; on failure removes all shards.
bool shard_writer_close(ShardWriter* w, const Bytes* tokenizer, ShardCount written[SPLITS], TostError* err);
void shard_writer_abandon(ShardWriter* w);      // removes the shards, frees w; NULL is ignored
