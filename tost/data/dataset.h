// dataset.h: training samples from token shards: T inputs and the T targets that follow them.
#pragma once

#include "data/shards.h"
#include "recipe.h"

// DataOrder:
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
//
// If the globs have weights w, GLOB:WEIGHT, each is a source in this order; without weights, all are one source. Of
// the first i samples, source 0 has round(i·w_0 / Σw); of the i' others, source 1 has round(i'·w_1 / (Σw - w_0)), and
// so on, with quotients in multiples of 2^-32. The path of a file has no weight.
typedef struct {
    ShardStream stream;          // also for reports, as are samples, unused and weight
    int       T;
    DataOrder order;
    uint64_t  seed;
    uint64_t  samples;           // per epoch
    int       unused;            // shards without a sample
    uint32_t  crc;
    double    weight;            // share of all samples: the weights of a data set add up to 1

    // Shuffled order: state of the current epoch and its current shard.
    uint64_t  epoch;             // UINT64_MAX before the first sample
    uint32_t* turn;              // (shards) order of the shards: the k-th one is shard turn[k]
    uint64_t* turn_start;        // (shards + 1) first sample of turn k within the epoch
    int       at;                // the turn of perm and offset, or -1
    uint64_t  offset;            // token where the shard's first sample starts
    uint32_t* perm;              // position within the turn -> sample of the shard
} DataSource;

typedef struct { int n; DataSource* source; } DataSet;   // n >= 1

DataSet* data_open(const StringList* globs, int T, uint32_t vocab_size, DataOrder order, uint64_t seed, TostError* err);
void     data_close(DataSet* d);
uint64_t data_samples(const DataSet* d);        // per epoch, at least 1; the sum over the sources
uint32_t data_crc(const DataSet* d);            // see stream_crc; of several sources, also of the weights
// The globs without their weights; free_strings. weight (globs): 0 for a glob without one; may be NULL
StringList data_globs(double* weight, const StringList* globs);

// inputs, targets (B,T) of samples first … first + B - 1. An id >= vocab_size is an error.
bool data_batch(DataSet* d, int32_t* inputs, int32_t* targets, uint64_t first, int B, TostError* err);
