// dataset.c: samples of token shards, in order or shuffled, from weighted sources.
#include "data/dataset.h"

#include <inttypes.h>

#include "base/crc32.h"
#include "base/rng.h"

// ---- Sources ----

static uint64_t shard_samples(const DataSource* s, int shard) {
    return (s->stream.shards[shard].n_tokens - 1) / (uint64_t)s->T;
}

// Counts the samples of an epoch; no samples are an error.
static bool count_samples(DataSource* s, const char* glob, TostError* err) {
    const uint64_t T = (uint64_t)s->T, tokens = stream_tokens(&s->stream);
    uint64_t in_shards = 0;
    for (int i = 0; i < s->stream.count; i++) {
        in_shards += shard_samples(s, i);
        s->unused += s->order == ORDER_SHUFFLED && shard_samples(s, i) == 0;
        if (s->order == ORDER_SHUFFLED && shard_samples(s, i) > UINT32_MAX)
            return tost_error(err, "%s: more than %" PRIu32 " samples of --seq %d, the limit of a shuffled shard: use "
                              "a longer --seq or --order sequential", s->stream.shards[i].path, UINT32_MAX, s->T);
    }
    s->samples = s->order == ORDER_SEQUENTIAL ? (tokens - 1) / T : in_shards;
    return s->samples > 0
        || tost_error(err, "%s: %" PRIu64 " tokens in %d shard%s, but --seq %d needs at least %" PRIu64 "%s", glob,
                      tokens, s->stream.count, s->stream.count == 1 ? "" : "s", s->T, T + 1,
                      tokens > T ? " in one of them: use a shorter --seq or --order sequential" : tokens < 2 ? "" :
                      text_line(": tokenize more text, for validation with a larger --val-frac, or give --seq %" PRIu64,
                                tokens - 1).text);
}

// ---- The data set ----

StringList data_globs(double* weight, const StringList* globs) {
    StringList out = {0};
    for (int k = 0; k < globs->count; k++) {
        char *glob = xstrdup(globs->strings[k]), *colon = path_exists(glob) ? NULL : strrchr(glob, ':'), *end = colon;
        const bool decimal = colon && !colon[1 + strspn(colon + 1, "0123456789.eE+-")];
        const double value = decimal ? strtod(colon + 1, &end) : 0;
        const bool weighted = value > 0 && value < 1e300 && !*end;
        if (weighted) *colon = 0;
        if (weight) weight[k] = weighted ? value : 0;
        add_string(&out, glob);
    }
    return out;
}

DataSet* data_open(const StringList* globs, int T, uint32_t vocab_size, DataOrder order, uint64_t seed, TostError* err) {
    double *weight = xmalloc((size_t)globs->count * sizeof *weight), sum = 0;
    StringList plain = data_globs(weight, globs);
    int weighted = 0;
    for (int k = 0; k < globs->count; sum += weight[k++]) weighted += weight[k] > 0;
    bool ok = weighted == 0 || weighted == globs->count
        || tost_error(err, "%s …: %d of %d have a weight: give one above 0 to each or to none, and quote patterns, so "
                      "that the shell does not expand them", globs->strings[0], weighted, globs->count);
    DataSet* d = xcalloc(1, sizeof *d);
    d->source = xcalloc((size_t)globs->count, sizeof *d->source);
    while (ok && d->n < (weighted ? weighted : 1)) {   // without weights, all globs are one source
        const int k = d->n++;
        const double share = weighted ? weight[k] / sum : 1;
        const StringList own = weighted ? (StringList){1, &plain.strings[k]} : plain;
        DataSource* s = &d->source[k];
        *s = (DataSource){.T = T, .order = order, .seed = seed, .weight = share, .epoch = UINT64_MAX, .at = -1};
        ok = (share >= 0x1p-31   // source_of counts in multiples of 2^-32
              || tost_error(err, "%s: a weight below 5e-10 of the total is never drawn: give a larger one",
                            globs->strings[k]))
            && stream_open(&s->stream, &own, vocab_size, err) && count_samples(s, own.strings[0], err)
            && stream_crc(&s->crc, &s->stream, err);
    }
    free(weight);
    free_strings(&plain);
    if (ok) return d;
    data_close(d);
    return NULL;
}

void data_close(DataSet* d) {
    for (int k = 0; d && k < d->n; k++) {
        stream_close(&d->source[k].stream);
        free(d->source[k].turn);
        free(d->source[k].turn_start);
        free(d->source[k].perm);
    }
    if (d) free(d->source);
    free(d);
}

uint64_t data_samples(const DataSet* d) {
    uint64_t samples = 0;
    for (int k = 0; k < d->n; k++) samples += d->source[k].samples;
    return samples;
}

uint32_t data_crc(const DataSet* d) {
    uint32_t crc = 0;
    for (int k = 0; k < d->n; k++) {
        crc = crc32_update(crc, &d->source[k].weight, sizeof d->source[k].weight);
        crc = crc32_update(crc, &d->source[k].crc, sizeof crc);
    }
    return d->n == 1 ? d->source[0].crc : crc;
}

// ---- Samples ----

static Rng shuffle_rng(const DataSource* s, uint64_t slot) {
    return rng_seeded(s->seed, ((uint64_t)0xda7a << 48) + (s->epoch << 24) + slot);
}

// 0 … n - 1 in random order (Fisher-Yates)
static void permute(uint32_t* out, uint64_t n, Rng* rng) {
    for (uint64_t i = 0; i < n; i++) out[i] = (uint32_t)i;
    for (uint64_t i = n; i-- > 1;) {
        uint64_t j = rng_below(rng, i + 1);
        uint32_t swap = out[i];
        out[i] = out[j];
        out[j] = swap;
    }
}

static void enter_epoch(DataSource* s, uint64_t epoch) {
    if (s->epoch == epoch) return;
    const size_t n = (size_t)s->stream.count;
    s->epoch = epoch;
    s->at = -1;
    s->turn = xrealloc(s->turn, n * sizeof *s->turn);
    s->turn_start = xrealloc(s->turn_start, (n + 1) * sizeof *s->turn_start);
    Rng rng = shuffle_rng(s, 0);
    permute(s->turn, n, &rng);
    s->turn_start[0] = 0;
    for (size_t k = 0; k < n; k++) s->turn_start[k + 1] = s->turn_start[k] + shard_samples(s, (int)s->turn[k]);
}

static void enter_turn(DataSource* s, int k) {
    if (s->at == k) return;
    const uint32_t shard = s->turn[k];
    const uint64_t samples = shard_samples(s, (int)shard);
    s->at = k;
    s->perm = xrealloc(s->perm, (size_t)samples * sizeof *s->perm);
    Rng rng = shuffle_rng(s, 1 + (uint64_t)shard);
    s->offset = rng_below(&rng, s->stream.shards[shard].n_tokens - samples * (uint64_t)s->T);
    permute(s->perm, samples, &rng);
}

// Position of sample i's first token in the stream.
static uint64_t sample_start(DataSource* s, uint64_t i) {
    const uint64_t T = (uint64_t)s->T, in_epoch = i % s->samples;
    if (s->order == ORDER_SEQUENTIAL) return in_epoch * T;
    enter_epoch(s, i / s->samples);
    int k = find_interval(s->turn_start, s->stream.count, in_epoch);
    enter_turn(s, k);
    return s->stream.start[s->turn[k]] + s->offset + s->perm[in_epoch - s->turn_start[k]] * T;
}

// round(n·share), computed in multiples of 2^-32
static uint64_t quota(uint64_t n, double share) {
    const uint64_t x = (uint64_t)(share * 0x1p32 + 0.5);
    return (n >> 32) * x + (((n & UINT32_MAX) * x + (1u << 31)) >> 32);
}

// The source of sample *i, which becomes its number among the samples of that source.
static DataSource* source_of(uint64_t* i, const DataSet* d) {
    double rest = 1;
    int k = 0;
    for (; k + 1 < d->n; rest -= d->source[k++].weight) {
        const double share = d->source[k].weight / rest;
        const uint64_t before = quota(*i, share), after = quota(*i + 1, share);
        *i = after > before ? before : *i - before;
        if (after > before) break;
    }
    return &d->source[k];
}

bool data_batch(DataSet* d, int32_t* inputs, int32_t* targets, uint64_t first, int B, TostError* err) {
    const size_t T = (size_t)d->source->T;
    for (size_t b = 0; b < (size_t)B; b++) {
        uint64_t i = first + b;
        DataSource* source = source_of(&i, d);
        const uint64_t start = sample_start(source, i);
        if (!stream_pairs(inputs + b * T, targets + b * T, &source->stream, start, T, err)) return false;
    }
    return true;
}
