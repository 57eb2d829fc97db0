// data.h: opens and checks token shards, reads training samples of T + 1 tokens, writes new shards.
#ifndef TOST_DATA_H
#define TOST_DATA_H

#include "util.h"

// ---------------------------------------------------------------------------------------------
// One shard: llm.c's uint16 format, uint32 with a header, or raw uint16. The format is detected from the content.

typedef struct {
    char*          path;
    const uint8_t* map;          // the whole file, mapped read-only
    uint64_t       map_bytes;
    uint64_t       first;        // byte offset of token 0
    uint64_t       n_tokens;
    int            width;        // bytes per token: 2 or 4
    uint32_t       largest_id;   // set by shard_check_ids, else 0
} Shard;

bool     shard_begins(const char* head, size_t n);   // true if a file's first n bytes are those of a shard header
bool     shard_open(Shard* s, const char* path, TostError* err);
void     shard_close(Shard* s);
uint32_t shard_token(const Shard* s, uint64_t i);                           // i < n_tokens
bool     shard_check_ids(Shard* s, uint32_t vocab_size, TostError* err);   // the error states position and value

// ---------------------------------------------------------------------------------------------
// The shards of a glob, concatenated in name order

typedef struct {
    int       count;
    Shard*    shards;
    uint64_t* start;        // (count + 1) position of each shard's first token; start[count] is the total
    uint32_t  vocab_size;
    char*     dir;          // folder of the first shard
} ShardStream;

// Checks the ids of the shards in the first GiB; stream_read checks the ids that it reads.
bool     stream_open(ShardStream* s, const char* glob, uint32_t vocab_size, TostError* err);
void     stream_close(ShardStream* s);                          // does nothing if zeroed
uint64_t stream_tokens(const ShardStream* s);
uint32_t stream_largest_id(const ShardStream* s);               // among the ids checked when opening
// Copies n tokens starting at position `first`; first + n <= stream_tokens. An id >= vocab_size is an error.
bool     stream_read(int32_t* out, const ShardStream* s, uint64_t first, uint64_t n, TostError* err);

// ---------------------------------------------------------------------------------------------
// Training samples: T inputs and the T targets that follow them

typedef enum { ORDER_SEQUENTIAL, ORDER_SHUFFLED } DataOrder;

//   sequential: sample i is tokens [i·T, i·T + T] of the stream; the last sample is followed by the first
//   shuffled:   each epoch permutes the shards and, within a shard, its samples; samples start at a random offset
//               so that epochs split the text at different positions; shards of fewer than T + 1 tokens are skipped
// Sample i is a pure function of (files, T, order, seed, i), so a run resumes by starting at another i.
//
// The shuffled order, exactly: shard s (0-based, in name order) with n_s tokens has k_s = (n_s - 1) / T
// samples; an epoch has N = Σ k_s; sample i is number i mod N of epoch e = i / N. Random numbers come from
// rng_seeded(seed, 0xda7a·2^48 + e·2^24 + slot):
//   slot 0      permute all shards
//   slot 1 + s  o = rng_below(n_s - k_s·T), then permute the samples 0 … k_s - 1;
//               sample j is tokens [o + j·T, o + j·T + T]
// Permuting n entries: for i = n - 1 down to 1, swap entries i and rng_below(i + 1).
typedef struct DataSet DataSet;

DataSet* data_open(const char* glob, int T, uint32_t vocab_size, DataOrder order, uint64_t seed,
                   TostError* err);
void     data_close(DataSet* d);
int      data_shards(const DataSet* d);
uint64_t data_tokens(const DataSet* d);
uint64_t data_samples(const DataSet* d);        // per epoch, at least 1
const char* data_dir(const DataSet* d);         // folder of the first shard
uint32_t data_largest_id(const DataSet* d);     // among the ids checked when opening
// A cheap fingerprint of the data: CRC-32 over each shard's length and its first and last DATA_CRC_TOKENS tokens.
// It does not depend on the shard format.
enum { DATA_CRC_TOKENS = 2048 };
uint32_t data_crc(const DataSet* d);

// inputs, targets (B,T) of samples first … first + B - 1. An id >= vocab_size is an error.
bool data_batch(DataSet* d, int32_t* inputs, int32_t* targets, uint64_t first, int B, TostError* err);

// ---------------------------------------------------------------------------------------------
// Writing PREFIX_000000.bin, PREFIX_000001.bin, … of shard_tokens tokens each: llm.c's uint16 format if
// vocab_size <= 65536, else uint32. Files are named .tmp until the writer is closed.

typedef struct ShardWriter ShardWriter;

// Creates PREFIX's folder. Fails if a PREFIX_NNNNNN.bin exists. 1 <= shard_tokens < 2^31.
ShardWriter* shard_writer_open(const char* prefix, uint32_t vocab_size, uint64_t shard_tokens,
                               TostError* err);
bool shard_writer_append(ShardWriter* w, const uint32_t* ids, size_t n, TostError* err);  // ids < vocab_size
// Syncs and renames the shards (none if there are no tokens). Frees w in any case; on failure removes all shards.
bool shard_writer_close(ShardWriter* w, uint64_t* tokens, int* shards, TostError* err);
void shard_writer_abandon(ShardWriter* w);      // removes the shards, frees w; NULL is ignored

#endif
