// shard_writer.h: writes PREFIX_000000.bin, PREFIX_000001.bin, … of shard_tokens tokens each: llm.c's uint16 format if
// vocab_size <= 65536, else uint32. The files are written in the folder PREFIX.tmp, which is locked, and renamed when
// the writer is closed. A folder left by a killed process is reused.
#ifndef TOST_SHARD_WRITER_H
#define TOST_SHARD_WRITER_H

#include "base/error.h"

typedef struct ShardWriter ShardWriter;

// Creates PREFIX.tmp and the folders above it. Fails if a PREFIX_NNNNNN.bin exists or another process writes shards
// with this prefix. 1 <= shard_tokens < 2^31.
ShardWriter* shard_writer_open(const char* prefix, uint32_t vocab_size, uint64_t shard_tokens,
                               TostError* err);
bool shard_writer_append(ShardWriter* w, const uint32_t* ids, size_t n, TostError* err);  // ids < vocab_size
// Moves the last n tokens of `from` to the end of `to`. Nothing can be appended to `from` afterwards.
bool shard_writer_move_tail(ShardWriter* to, ShardWriter* from, uint64_t n, TostError* err);
// Syncs and renames the shards (none if there are no tokens). Frees w in any case; on failure removes all shards.
bool shard_writer_close(ShardWriter* w, uint64_t* tokens, int* shards, TostError* err);
void shard_writer_abandon(ShardWriter* w);      // removes the shards, frees w; NULL is ignored

#endif
