#include "data/dataset.h"

#include <inttypes.h>

#include "base/crc32.h"
#include "base/memory.h"
#include "base/rng.h"

// ---- The data set ----

struct DataSet {
    ShardStream stream;
    int       T;
    DataOrder order;
    uint64_t  seed;
    uint64_t  samples;           // per epoch
    uint32_t  crc;
    int       n_sources;         // of a mixture, which only has T, samples, crc and these; else 0
    struct DataSet** source;
    double*   weight;            // of a source; their sum is 1

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
        if (d->order == ORDER_SHUFFLED && shard_samples(d, s) > UINT32_MAX)
            return tost_error(err, "%s: more than %" PRIu32 " samples of --seq %d, the limit of a shuffled shard: use "
                              "a longer --seq or --order sequential", d->stream.shards[s].path, UINT32_MAX, d->T);
    }
    d->samples = d->order == ORDER_SEQUENTIAL ? (tokens - 1) / T : in_shards;
    return d->samples > 0
        || tost_error(err, "%s: %" PRIu64 " tokens in %d shard%s, but --seq %d needs at least %" PRIu64 "%s", glob,
                      tokens, d->stream.count, d->stream.count == 1 ? "" : "s", d->T, T + 1,
                      tokens > T ? " in one of them: use a shorter --seq or --order sequential" : "");
}

static DataSet* open_source(const PathList* globs, int T, uint32_t vocab_size, DataOrder order, uint64_t seed,
                            TostError* err) {
    DataSet* d = xcalloc(1, sizeof *d);
    *d = (DataSet){.T = T, .order = order, .seed = seed, .epoch = NO_EPOCH, .at = -1};
    if (stream_open(&d->stream, globs, vocab_size, err) && count_samples(d, globs->paths[0], err)
        && stream_crc(&d->crc, &d->stream, err)) return d;
    data_close(d);
    return NULL;
}

PathList data_globs(double* weight, const PathList* globs) {
    PathList out = {0};
    for (int k = 0; k < globs->count; k++) {
        char *glob = xstrdup(globs->paths[k]), *colon = path_exists(glob) ? NULL : strrchr(glob, ':'), *end = colon;
        const double value = colon ? strtod(colon + 1, &end) : 0;
        const bool weighted = value > 0 && value < 1e300 && !*end;
        if (weighted) *colon = 0;
        if (weight) weight[k] = weighted ? value : 0;
        add_path(&out, glob);
    }
    return out;
}

DataSet* data_open(const PathList* globs, int T, uint32_t vocab_size, DataOrder order, uint64_t seed,
                   TostError* err) {
    const int n = globs->count;
    DataSet* d = xcalloc(1, sizeof *d);
    *d = (DataSet){.T = T, .source = xcalloc((size_t)n, sizeof d), .weight = xcalloc((size_t)n, sizeof *d->weight)};
    PathList plain = data_globs(d->weight, globs);
    double sum = 0;
    int weighted = 0;
    for (int k = 0; k < n; sum += d->weight[k++]) weighted += d->weight[k] > 0;
    bool ok = weighted == 0 || weighted == n
        || tost_error(err, "%s …: %d of %d have a weight: give one above 0 to each or to none, and quote patterns, so "
                      "that the shell does not expand them", globs->paths[0], weighted, n);
    for (int k = 0; ok && weighted > 1 && k < n; k++, d->n_sources++) {
        if (d->weight[k] < 0x1p-31 * sum)   // source_of counts in multiples of 2^-32
            tost_error(err, "%s: a weight below 5e-10 of the total is never drawn: give a larger one", globs->paths[k]);
        else d->source[k] = open_source(&(PathList){1, &plain.paths[k]}, T, vocab_size, order, seed, err);
        if (!(ok = d->source[k])) break;
        d->samples += d->source[k]->samples;
        d->weight[k] /= sum;
        d->crc = crc32_update(d->crc, &d->weight[k], sizeof d->weight[k]);
        d->crc = crc32_update(d->crc, &d->source[k]->crc, sizeof d->crc);
    }
    if (!ok || weighted < 2) {
        data_close(d);
        d = ok ? open_source(&plain, T, vocab_size, order, seed, err) : NULL;
    }
    free_paths(&plain);
    return d;
}

void data_close(DataSet* d) {
    if (!d) return;
    for (int k = 0; k < d->n_sources; k++) data_close(d->source[k]);
    free(d->source);
    free(d->weight);
    stream_close(&d->stream);
    free(d->turn);
    free(d->turn_start);
    free(d->perm);
    free(d);
}

uint64_t data_samples(const DataSet* d) { return d->samples; }
uint32_t data_crc(const DataSet* d) { return d->crc; }
int data_sources(const DataSet* d) { return d->n_sources ? d->n_sources : 1; }

DataSource data_source(const DataSet* d, int k) {
    const DataSet* s = d->n_sources ? d->source[k] : d;
    int unused = 0;
    for (int i = 0; i < s->stream.count; i++) unused += s->order == ORDER_SHUFFLED && shard_samples(s, i) == 0;
    return (DataSource){&s->stream, unused, s->samples, d->n_sources ? d->weight[k] : 1};
}

// ---- Samples ----

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
    const size_t n = (size_t)d->stream.count;
    d->epoch = epoch;
    d->at = -1;
    d->turn = xrealloc(d->turn, n * sizeof *d->turn);
    d->turn_start = xrealloc(d->turn_start, (n + 1) * sizeof *d->turn_start);
    Rng r = shuffle_rng(d, 0);
    permute(d->turn, n, &r);
    d->turn_start[0] = 0;
    for (size_t k = 0; k < n; k++) d->turn_start[k + 1] = d->turn_start[k] + shard_samples(d, (int)d->turn[k]);
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

// round(n·share), computed in multiples of 2^-32
static uint64_t quota(uint64_t n, double share) {
    const uint64_t x = (uint64_t)(share * 0x1p32 + 0.5);
    return (n >> 32) * x + (((n & UINT32_MAX) * x + (1u << 31)) >> 32);
}

// The source of a mixture's sample *i, which becomes its number among the samples of that source.
static DataSet* source_of(uint64_t* i, const DataSet* d) {
    double rest = 1;
    int k = 0;
    for (; k + 1 < d->n_sources; rest -= d->weight[k++]) {
        const uint64_t before = quota(*i, d->weight[k] / rest), after = quota(*i + 1, d->weight[k] / rest);
        *i = after > before ? before : *i - before;
        if (after > before) break;
    }
    return d->source[k];
}

bool data_batch(DataSet* d, int32_t* inputs, int32_t* targets, uint64_t first, int B, TostError* err) {
    const size_t T = (size_t)d->T;
    for (size_t b = 0; b < (size_t)B; b++) {
        uint64_t i = first + b;
        DataSet* source = d->n_sources ? source_of(&i, d) : d;
        const uint64_t start = sample_start(source, i);
        if (!stream_pairs(inputs + b * T, targets + b * T, &source->stream, start, T, err)) return false;
    }
    return true;
}
