// tokenizer_check.c: which tokenizer belongs to weights and shards.
#include "data/tokenizer_check.h"

#include <string.h>

#include "base/say.h"

Tokenizer* model_tokenizer(const char* path, int rows, const uint32_t* hash, const char* weights, TostError* err) {
    Tokenizer* tokenizer = tokenizer_open(path, err);
    if (!tokenizer) return NULL;
    const int size = tokenizer_size(tokenizer);
    if (hash && *hash != tokenizer_hash(tokenizer))
        tost_error(err, "%s was trained with a tokenizer of CRC-32 %08x, but %s has %08x; give the original file as "
                   "--tokenizer", weights, (unsigned)*hash, path, (unsigned)tokenizer_hash(tokenizer));
    else if (size > rows)
        tost_error(err, "the tokenizer %s has %d tokens, more than the vocabulary of %d; %s", path, size, rows,
                   weights ? "give the tokenizer of these weights as --tokenizer" : "raise --vocab-size");
    else return tokenizer;
    tokenizer_free(tokenizer);
    return NULL;
}

static const char warning[] = "the ids may not mean what the model was trained on";

void warn_of_tokenizer(const Tokenizer* tokenizer, const char* weights, int rows, const char* trained, uint32_t hash) {
    const char* path = tokenizer_path(tokenizer);
    const int size = tokenizer_size(tokenizer);
    if (trained && tokenizer_hash(tokenizer) != hash)
        print_warning("%s was trained with the tokenizer %s of CRC-32 %08x, but %s has %08x: %s", weights, trained,
                      (unsigned)hash, path, (unsigned)tokenizer_hash(tokenizer), warning);
    else if (!trained && size < rows / 2)   // a vocabulary may be padded, but not doubled
        print_warning("the tokenizer %s has %d tokens, but the vocabulary of %s has %d: if it is not the original "
                      "tokenizer, %s", path, size, weights, rows, warning);
}

bool check_shards(const ShardStream* shards, const char* tokenizer, uint32_t hash, int size, TostError* err) {
    bool same = true;
    Path path, before = {""};   // before: that of the last shard
    for (int k = 0; same && k < shards->count; k++) {
        if (!tokenizer_beside(&path, shards->shards[k].path) || strcmp(path.text, before.text) == 0) continue;
        Tokenizer* other = tokenizer_open(path.text, &(TostError){0});
        if (other && tokenizer_hash(other) != hash)
            same = tost_error(err, "%s next to the shards has CRC-32 %08x, but the tokenizer %s has %08x: give shards "
                              "that were made with %s, or --tokenizer %s", path.text, (unsigned)tokenizer_hash(other),
                              tokenizer, (unsigned)hash, tokenizer, path.text);
        tokenizer_free(other);
        before = path;
    }
    if (!same || !size || shards->largest_id < (uint32_t)size) return same;
    return tost_error(err, "the shards contain the id %u, but the tokenizer %s has only %d tokens: give shards that "
                      "were made with this tokenizer, or the tokenizer of the shards as --tokenizer",
                      (unsigned)shards->largest_id, tokenizer, size);
}

void warn_of_ids(const ShardStream* shards, int size, bool has_eot) {
    enum { ENOUGH = 4096, MANY = 10000000 };   // tokens
    uint64_t checked = 0;
    for (int k = 0; k < shards->count; k++) {
        const Shard* s = &shards->shards[k];
        checked += s->largest_id ? s->n_tokens : 0;
        if (!s->largest_id || s->n_tokens < ENOUGH || s->largest_id >= (uint32_t)size / 2) continue;
        print_warning("%s: the largest id is %u, but the vocabulary has %d: if the shards were made with another "
                      "tokenizer, give it as --tokenizer", s->path, (unsigned)s->largest_id, size);
        return;
    }
    if (has_eot && checked >= MANY && shards->largest_id + 1 < (uint32_t)size)
        print_warning("%s: " END_OF_TEXT " (id %d) does not occur in %llu tokens: the model cannot learn where "
                      "documents end", shards->shards[0].path, size - 1, (unsigned long long)checked);
}
