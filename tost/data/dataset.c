// dataset.c: sequential and shuffled training samples from token shards.
#include "data/dataset.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/rng.h"
#include "data/shards.h"

// ---------------------------------------------------------------------------------------------
// The data set

struct DataSet {
    ShardStream stream;
    int       T;
    DataOrder order;
    uint64_t  seed;
    uint64_t  samples;           // per epoch
    uint32_t  crc;
    int32_t*  tokens;            // (tokens_cap + 1) consecutive samples of a batch
    size_t    tokens_cap;

    // Shuffled order: state of the current epoch and its current shard.
    uint64_t  epoch;             // NO_EPOCH before the first sample
    uint32_t* turn;              // (shards) order of the shards: the k-th one is shard turn[k]
    uint64_t* turn_start;        // (shards + 1) first sample of turn k within the epoch
    int       at;                // the turn of perm and offset, or -1
    uint64_t  offset;            // token where the shard's first sample starts
    uint32_t* perm;              // position within the turn -> sample of the shard
};

static const uint64_t NO_EPOCH = UINT64_MAX;

static uint64_t shard_samples(const DataSet* d, int s) {
    return (d->stream.shards[s].n_tokens - 1) / (uint64_t)d->T;
}

// Counts the samples of an epoch; no samples are an error.
static bool count_samples(DataSet* d, const char* glob, TostError* err) {
    const uint64_t T = (uint64_t)d->T, tokens = stream_tokens(&d->stream);
    uint64_t in_shards = 0;
    for (int s = 0; s < d->stream.count; s++) {
        in_shards += shard_samples(d, s);
        if (d->order == ORDER_SHUFFLED && shard_samples(d, s) > UINT32_MAX) {
            return tost_error(err, "%s: %" PRIu64 " samples of --seq %d, but a shuffled shard has at most %" PRIu32
                              ": use a longer --seq or --order sequential", d->stream.shards[s].path,
                              shard_samples(d, s), d->T, UINT32_MAX);
        }
    }
    if (tokens < T + 1) {
        return tost_error(err, "%s: %" PRIu64 " tokens in %d shard%s, but --seq %d needs at least %" PRIu64,
                          glob, tokens, d->stream.count, d->stream.count == 1 ? "" : "s", d->T, T + 1);
    }
    d->samples = d->order == ORDER_SEQUENTIAL ? (tokens - 1) / T : in_shards;
    return d->samples > 0
        || tost_error(err, "%s: no shard has the %" PRIu64 " tokens that --seq %d needs: use a shorter "
                      "--seq or --order sequential", glob, T + 1, d->T);
}

DataSet* data_open(const PathList* globs, int T, uint32_t vocab_size, DataOrder order, uint64_t seed,
                   TostError* err) {
    assert(T > 0);
    DataSet* d = xcalloc(1, sizeof *d);
    *d = (DataSet){.T = T, .order = order, .seed = seed, .epoch = NO_EPOCH, .at = -1};
    if (stream_open(&d->stream, globs, vocab_size, err) && count_samples(d, globs->paths[0], err)
        && stream_crc(&d->crc, &d->stream, err)) return d;
    data_close(d);
    return NULL;
}

void data_close(DataSet* d) {
    if (!d) return;
    stream_close(&d->stream);
    free(d->turn);
    free(d->turn_start);
    free(d->perm);
    free(d->tokens);
    free(d);
}

const ShardStream* data_stream(const DataSet* d) { return &d->stream; }
uint64_t data_samples(const DataSet* d) { return d->samples; }
uint32_t data_crc(const DataSet* d) { return d->crc; }

// ---------------------------------------------------------------------------------------------
// Samples

static Rng shuffle_rng(const DataSet* d, uint64_t slot) {
    return rng_seeded(d->seed, ((uint64_t)0xda7a << 48) + (d->epoch << 24) + slot);
}

// 0 … n - 1 in random order (Fisher-Yates)
static void permute(uint32_t* out, uint64_t n, Rng* r) {
    for (uint64_t i = 0; i < n; i++) out[i] = (uint32_t)i;
    for (uint64_t i = n; i-- > 1;) {
        uint64_t j = rng_below(r, i + 1);
        uint32_t swap = out[i];
        out[i] = out[j];
        out[j] = swap;
    }
}

static void enter_epoch(DataSet* d, uint64_t epoch) {
    if (d->epoch == epoch) return;
    size_t n = (size_t)d->stream.count;
    d->epoch = epoch;
    d->at = -1;
    d->turn = xrealloc(d->turn, n * sizeof *d->turn);
    d->turn_start = xrealloc(d->turn_start, (n + 1) * sizeof *d->turn_start);
    Rng r = shuffle_rng(d, 0);
    permute(d->turn, n, &r);
    d->turn_start[0] = 0;
    for (size_t k = 0; k < n; k++) {
        d->turn_start[k + 1] = d->turn_start[k] + shard_samples(d, (int)d->turn[k]);
    }
}

static void enter_turn(DataSet* d, int k) {
    if (d->at == k) return;
    uint32_t s = d->turn[k];
    uint64_t samples = shard_samples(d, (int)s);
    d->at = k;
    d->perm = xrealloc(d->perm, (size_t)samples * sizeof *d->perm);
    Rng r = shuffle_rng(d, 1 + (uint64_t)s);
    d->offset = rng_below(&r, d->stream.shards[s].n_tokens - samples * (uint64_t)d->T);
    permute(d->perm, samples, &r);
}

// Position of sample i's first token in the stream.
static uint64_t sample_start(DataSet* d, uint64_t i) {
    const uint64_t T = (uint64_t)d->T, in_epoch = i % d->samples;
    if (d->order == ORDER_SEQUENTIAL) return in_epoch * T;
    enter_epoch(d, i / d->samples);
    int k = find_interval(d->turn_start, d->stream.count, in_epoch);
    enter_turn(d, k);
    return d->stream.start[d->turn[k]] + d->offset + d->perm[in_epoch - d->turn_start[k]] * T;
}

bool data_batch(DataSet* d, int32_t* inputs, int32_t* targets, uint64_t first, int B, TostError* err) {
    const size_t T = (size_t)d->T;
    for (size_t b = 0, samples; b < (size_t)B; b += samples) {
        const uint64_t i = first + b, start = sample_start(d, i);
        // Samples from i on whose tokens follow each other in the stream
        const uint64_t left = d->order == ORDER_SEQUENTIAL ? d->samples - i % d->samples : 1;
        samples = left < (size_t)B - b ? (size_t)left : (size_t)B - b;
        const size_t n = samples * T;
        if (n > d->tokens_cap) d->tokens = xrealloc(d->tokens, ((d->tokens_cap = n) + 1) * sizeof *d->tokens);
        if (!stream_read(d->tokens, &d->stream, start, n + 1, err)) return false;
        memcpy(inputs + b * T, d->tokens, n * sizeof *inputs);
        memcpy(targets + b * T, d->tokens + 1, n * sizeof *targets);
    }
    return true;
}
