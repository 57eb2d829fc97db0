// data.h: token shards, found by content, checked, and dealt out as samples of T + 1 tokens.
#ifndef TOST_DATA_H
#define TOST_DATA_H

#include "util.h"

typedef struct {
    char*          path;
    const uint8_t* map;          // whole file, read-only
    uint64_t       map_bytes;
    uint64_t       first;        // byte offset of token 0
    uint64_t       n_tokens;
    int            width;        // bytes a token: 2 or 4
    uint32_t       largest_id;   // once shard_check_ids has looked, else 0
} Shard;

// One shard in any of the three formats of design: llm.c's uint16, uint32 with a header, or raw uint16.
bool     shard_begins(const char* head, size_t n);   // whether a file begins as a shard with a header does
bool     shard_open(Shard* s, const char* path, TostError* err);
void     shard_close(Shard* s);
uint32_t shard_token(const Shard* s, uint64_t i);                           // i < n_tokens
bool     shard_check_ids(Shard* s, uint32_t vocab_size, TostError* err);   // names offset and value

typedef enum { ORDER_SEQUENTIAL, ORDER_SHUFFLED } DataOrder;

// The shards of a glob as one stream of samples: T inputs and, one further on, T targets.
//   sequential: sample i is tokens [i·T, i·T + T] of the shards joined in name order; after the last, the
//               first again
//   shuffled:   each epoch a seeded permutation of the shards and, within a shard, of its samples; the grid
//               of samples starts at a seeded offset within what T leaves over, so that epochs cut the text
//               at different places; shards of fewer than T + 1 tokens are left out
// Sample i is a pure function of (files, T, order, seed, i): resuming is starting at another i.
//
// The shuffled order, exactly. Shard s (from 0, in name order) of n_s tokens has k_s = (n_s - 1) / T
// samples, an epoch N = sum of all k_s; sample i is number i mod N of epoch e = i / N. Randomness is
// rng_seeded(seed, 0xda7a·2^48 + e·2^24 + slot):
//   slot 0      permute the shards (all of them, s = 0, 1, …)
//   slot 1 + s  o = rng_below(n_s - k_s·T), then permute the samples 0 … k_s - 1;
//               sample j is tokens [o + j·T, o + j·T + T]
// and to permute a list is: for i = n - 1 down to 1, swap entries i and rng_below(i + 1).
typedef struct DataSet DataSet;

DataSet* data_open(const char* glob, int T, uint32_t vocab_size, DataOrder order, uint64_t seed,
                   TostError* err);
void     data_close(DataSet* d);
int      data_shards(const DataSet* d);
uint64_t data_tokens(const DataSet* d);
uint64_t data_samples(const DataSet* d);        // an epoch; at least 1, or data_open fails
// CRC-32 of what tells one data set from another at little cost: of each shard, in order, its length and its
// first and last DATA_CRC_TOKENS tokens, whatever the format.
enum { DATA_CRC_TOKENS = 2048 };
uint32_t data_crc(const DataSet* d);
const char* data_dir(const DataSet* d);         // the folder of the first shard
uint32_t data_largest_id(const DataSet* d);     // of those that data_open looked at

// inputs, targets (B,T): samples first … first + B - 1. An id >= vocab_size is an error that names its place.
bool data_batch(DataSet* d, int32_t* inputs, int32_t* targets, uint64_t first, int B, TostError* err);

// Writing, for tokenize: llm.c's uint16 where vocab_size <= 65536, else uint32; the header is set at the end.
// PREFIX_000000.bin, PREFIX_000001.bin, … of shard_tokens each, the last of the rest; with .tmp until close.
typedef struct ShardWriter ShardWriter;

// Makes PREFIX's folder. Fails where a PREFIX_NNNNNN.bin stands already. shard_tokens is 1 to 2^31 - 1.
ShardWriter* shard_writer_open(const char* prefix, uint32_t vocab_size, uint64_t shard_tokens,
                               TostError* err);
bool shard_writer_append(ShardWriter* w, const uint32_t* ids, size_t n, TostError* err);  // ids < vocab_size
// Syncs, renames, frees w. On failure nothing written is left, and w is freed too. No tokens: no shards.
bool shard_writer_close(ShardWriter* w, uint64_t* tokens, int* shards, TostError* err);
void shard_writer_abandon(ShardWriter* w);      // removes what was written, frees w

#endif
