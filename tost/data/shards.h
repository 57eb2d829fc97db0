// shards.h: opens, checks and reads token shards. Files are read, never mapped: a shard that changes while a run
// reads it causes a read error that names it, not a signal.
#pragma once

#include <sys/stat.h>

#include "base/files.h"

// ---- One shard: llm.c's uint16 format, uint32 with a header, or raw uint16, detected from the content ----

typedef struct {
    char*     path;
    int       fd;            // -1: closed; reading opens it again
    int       width;         // bytes per token: 2 or 4
    struct stat file;        // when it was opened first
    uint64_t  first;         // byte offset of token 0
    uint64_t  n_tokens;
    uint32_t  largest_id;    // set by shard_check_ids, else 0
} Shard;

enum {
    SHARD_MAGIC_U16 = 20240520, SHARD_VERSION_U16 = 1,
    SHARD_MAGIC_U32 = 20240801, SHARD_VERSION_U32 = 7,
    SHARD_HEADER_BYTES = 1024,   // 256 int32: magic, version, number of tokens, zeros
    SHARD_CRC_TOKENS = 2048, SHARD_CRC_BLOCKS = 64,   // see stream_crc
    SHARD_DIGITS = 6,            // of the number in a name, as in PREFIX_000000.bin
};

bool shard_begins(const char* head, size_t n);   // true if a file's first n bytes are those of a shard header
// Finds a file in a folder, named START followed by train_NNNNNN.bin or val_NNNNNN.bin. *found: "" if there is none
bool shard_find(Path* found, const char* folder, const char* start, TostError* err);
Path shard_prefix(const char* path);   // OUT of OUT_train_000000.bin
bool shard_open(Shard* s, const char* path, TostError* err);
void shard_close(Shard* s);
// Copies tokens first … first + n - 1; first + n <= n_tokens. A file whose size or time has changed since shard_open is
// an error.
bool shard_read(uint32_t* ids, Shard* s, uint64_t first, size_t n, TostError* err);

// Reads all tokens and sets largest_id. Fails if ids are >= vocab_size: the error has the first and its position.
bool shard_check_ids(Shard* s, uint32_t vocab_size, TostError* err);

// ---- The shards of a glob, concatenated in name order. Only the one read last has an open file. ----

typedef struct {
    int       count;
    Shard*    shards;
    uint64_t* start;         // (count + 1) position of each shard's first token; start[count] is the total
    uint32_t  vocab_size;
    uint32_t  largest_id;    // among the ids checked when opening
    int       current;       // the shard read last
} ShardStream;

// Fails if a tokenize was killed while it renamed these shards. Checks the ids of the first GiB of shards; stream_read
// checks the ids that it reads.
bool     stream_open(ShardStream* s, const StringList* globs, uint32_t vocab_size, TostError* err);
void     stream_close(ShardStream* s);                          // does nothing if zeroed
uint64_t stream_tokens(const ShardStream* s);
// Copies n tokens starting at position `first`; first + n <= stream_tokens. An id >= vocab_size is an error.
bool     stream_read(int32_t* out, ShardStream* s, uint64_t first, size_t n, TostError* err);
// The same for n inputs, and the targets: the n tokens one position later
bool     stream_pairs(int32_t* inputs, int32_t* targets, ShardStream* s, uint64_t first, size_t n, TostError* err);
// CRC-32 over the length of each shard and SHARD_CRC_BLOCKS blocks of SHARD_CRC_TOKENS tokens, evenly spread over it, in
// any format. It misses changes of a few tokens in shards of more than 131,072, but none of 1/63 of a shard in a row.
bool     stream_crc(uint32_t* crc, ShardStream* s, TostError* err);
// The last k with start[k] <= x. start (n + 1) is sorted, and start[0] <= x < start[n].
int      find_interval(const uint64_t* start, int n, uint64_t x);
