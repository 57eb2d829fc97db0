#include "store/loaded_model.h"

#include <math.h>
#include <unistd.h>

#include "base/terminal.h"
#include "data/lines.h"

// ---- Errors ----

static void print_text(const Options* o, const char* text) {
    if (o->rank != 0) return;
    char *program = printable_text(options_program(o)), *line = xasprintf("%s: %s\n", program, text);
    fflush(stdout);
    output_write(STDERR_FILENO, line, strlen(line), OUTPUT_TIMEOUT);
    free(program);
    free(line);
}

int print_error(const Options* o, const TostError* err) {
    print_text(o, err->text);
    return STATUS_FAILED;
}

void print_warning(const Options* o, const char* fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    print_text(o, vtext_line(fmt, ap).text);
    va_end(ap);
}

bool check_utf8_text(const Options* o, const char* name, const char* text, size_t n, TostError* err) {
    Broken b = {.bytes = n, .name = name};
    b.count = count_broken(&b.first, text, n);
    if (!broken_accepted(&b, n, err)) return false;
    if (b.count) print_warning(o, "%s; they are kept as they are", broken_line(&b).text);
    return true;
}

// ---- Models and their tokenizers ----

TextLine model_sizes(const TostConfig* c) {
    return text_line("%d layer%s, %d head%s, %d channel%s, block size %d, vocabulary %d, %s bias%s%s%s%s", c->n_layer,
                     plural(c->n_layer), c->n_head, plural(c->n_head), c->n_embd, plural(c->n_embd), c->block_size,
                     c->vocab_size, c->bias ? "with" : "no",
                     c->membership == TOST_UNIFORM ? ", uniform membership" : "", c->conv ? ", convolutions" : "",
                     c->memory ? ", memory" : "", c->positions == TOST_POSITIONS_NONE ? ", no positions" : "");
}

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

void warn_of_tokenizer(const Options* o, const CheckpointInfo* info, const char* weights, const Tokenizer* tokenizer) {
    const char* path = tokenizer_path(tokenizer);
    const int size = tokenizer_size(tokenizer), rows = info->config.vocab_size;
    const uint32_t hash = tokenizer_hash(tokenizer);
    if (info->tokenizer && hash != info->tokenizer_hash)
        print_warning(o, "%s was trained with the tokenizer %s of CRC-32 %08x, but %s has %08x: %s", weights,
                      info->tokenizer, (unsigned)info->tokenizer_hash, path, (unsigned)hash, warning);
    else if (!info->tokenizer && size < rows / 2)   // a vocabulary may be padded, but not doubled
        print_warning(o, "the tokenizer %s has %d tokens, but the vocabulary of %s has %d: if it is not the original "
                      "tokenizer, %s", path, size, weights, rows, warning);
}

bool check_shards(const ShardStream* shards, const char* tokenizer, uint32_t hash, int size, TostError* err) {
    bool same = true;
    Path path, before = {""};   // before: that of the last shard
    for (int k = 0; same && k < shards->count; k++) {
        TostError ignored;
        if (!tokenizer_beside(&path, shards->shards[k].path) || strcmp(path.text, before.text) == 0) continue;
        Tokenizer* other = tokenizer_open(path.text, &ignored);
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

void warn_of_ids(const Options* o, const ShardStream* shards, int size, bool has_eot) {
    enum { ENOUGH = 4096, MANY = 10000000 };   // tokens
    uint64_t checked = 0;
    for (int k = 0; k < shards->count; k++) {
        const Shard* s = &shards->shards[k];
        checked += s->largest_id ? s->n_tokens : 0;
        if (!s->largest_id || s->n_tokens < ENOUGH || s->largest_id >= (uint32_t)size / 2) continue;
        print_warning(o, "%s: the largest id is %u, but the vocabulary has %d: if the shards were made with another "
                      "tokenizer, give it as --tokenizer", s->path, (unsigned)s->largest_id, size);
        return;
    }
    if (has_eot && checked >= MANY && shards->largest_id + 1 < (uint32_t)size)
        print_warning(o, "%s: " END_OF_TEXT " (id %d) does not occur in %llu tokens: the model cannot learn where "
                      "documents end", shards->shards[0].path, size - 1, (unsigned long long)checked);
}

bool loaded_model_find(LoadedModel* m, const Options* o, const TostEngine* engine, TostError* err) {
    *m = (LoadedModel){.engine = engine};
    Path path;
    const bool ok = (o->model || checkpoint_newest_run(&path, "out", "--model PATH", err))
                    && checkpoint_open(&m->weights, &m->info, o->model ? o->model : path.text, err);
    if (!ok) return false;
    m->file = xstrdup(m->weights.path);
    m->tensors = tost_tensors(&m->info.config);
    return true;
}

bool loaded_model_create(LoadedModel* m, const Options* o, int max_batch, int seq, TostError* err) {
    const TostEngineOptions options = options_engine(&o->recipe, max_batch, seq, false, m->comm);
    m->model = m->engine->create(&m->info.config, &options, err);
    if (!m->model) return false;
    m->chunks = (Chunks){.engine = m->engine, .model = m->model, .max_chunk = options.max_chunk};
    const CheckpointModel loaded = {m->engine, m->model, &m->tensors, TOST_ADAMW, NULL};
    const bool ok = checkpoint_load_params(&loaded, &m->tensors, &m->weights, err);
    st_close(&m->weights);
    return ok;
}

bool loaded_model_check_loss(const LoadedModel* m, double loss, TostError* err) {
    return isfinite(loss)
        || tost_error(err, "%s: the loss is not finite; the weights have diverged: use an earlier checkpoint", m->file);
}

Tokenizer* loaded_model_tokenizer(const LoadedModel* m, const Options* o, TostError* err) {
    Path path = path_text("%s", o->tokenizer ? o->tokenizer : "");
    const uint32_t* hash = !o->tokenizer && m->info.tokenizer ? &m->info.tokenizer_hash : NULL;
    if (!o->tokenizer && !tokenizer_beside(&path, m->file)) {
        tost_error(err, "%s has no " TOKENIZER_FILE " beside it; give --tokenizer FILE, the one it was trained with",
                   m->file);
        return NULL;
    }
    Tokenizer* tokenizer = model_tokenizer(path.text, m->info.config.vocab_size, hash, m->file, err);
    if (tokenizer) warn_of_tokenizer(o, &m->info, m->file, tokenizer);
    return tokenizer;
}

void loaded_model_free(LoadedModel* m) {
    if (m->model) m->engine->destroy(m->model);
    tost_tensors_free(&m->tensors);
    checkpoint_info_free(&m->info);
    if (m->weights.path) st_close(&m->weights);
    free(m->file);
}
