// commands.c: what the commands share: their one line of error, texts given as options, and trained models.
#include "commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------------------------------------
// Errors and texts

void print_error(const Options* o, const TostError* err) {
    TostError program;
    tost_error(&program, "%s", options_program(o));   // it too comes from outside
    fflush(stdout);
    fprintf(stderr, "%s: %s\n", program.text, err->text);
}

int command_failed(const Options* o, const TostError* err) {
    print_error(o, err);
    return STATUS_FAILED;
}

bool read_text(Bytes* text, const char* option, const char* value, const char* way_out, TostError* err) {
    const bool from_file = value[0] == '@', from_stdin = strcmp(value, "-") == 0;
    *text = (Bytes){0};
    if (!from_file && !from_stdin) {
        *text = (Bytes){xstrdup(value), strlen(value)};
        return true;
    }
    if (from_file && !value[1]) return tost_error(err, "%s @ names no file: give @FILE", option);
    if (!read_file(text, from_file ? value + 1 : value, err)) {
        *text = (Bytes){0};
        return false;
    }
    return text->size > 0 || tost_error(err, "%s %s is empty%s", option, value, way_out);
}

// ---------------------------------------------------------------------------------------------
// A model

ModelSummary model_summary(const TostConfig* c, const TostTensors* tensors) {
    const size_t n = tensors->n_params, positions = (size_t)c->block_size * c->n_embd;
    char all[32], without[32];
    ModelSummary words;
    snprintf(words.sizes, sizeof words.sizes,
             "%d layers, %d heads, %d channels, block size %d, vocabulary %d, %s bias%s", c->n_layer, c->n_head,
             c->n_embd, c->block_size, c->vocab_size, c->bias ? "with" : "no",
             c->membership == TOST_UNIFORM ? ", uniform membership" : "");
    snprintf(words.parameters, sizeof words.parameters, "%s (%s without wpe)", human_count(all, (double)n),
             human_count(without, (double)(n - positions)));
    return words;
}

Tokenizer* model_tokenizer(const CheckpointInfo* info, const char* path, bool same, const char* weights,
                           TostError* err) {
    Tokenizer* tokenizer = tokenizer_open(path, err);
    if (!tokenizer) return NULL;
    const uint32_t hash = tokenizer_hash(tokenizer);
    const int size = tokenizer_size(tokenizer), rows = info->config.vocab_size;
    if (same && hash != info->tokenizer_hash)
        tost_error(err, "%s was trained with a tokenizer of CRC-32 %08x, but %s has %08x: give the one it had as "
                   "--tokenizer", weights, (unsigned)info->tokenizer_hash, path, (unsigned)hash);
    else if (size > rows)
        tost_error(err, "the tokenizer %s has %d tokens, more than the vocabulary of %d: %s", path, size, rows,
                   weights ? "give the --tokenizer of the weights" : "raise --vocab-size");
    else return tokenizer;
    tokenizer_free(tokenizer);
    return NULL;
}

static const char other_text[] = "where their ids differ, the model meets other text than it learned";

void warn_of_tokenizer(const Options* o, const CheckpointInfo* info, const char* weights, const Tokenizer* tokenizer) {
    TostError line;
    const char* path = tokenizer_path(tokenizer);
    const int size = tokenizer_size(tokenizer), rows = info->config.vocab_size;
    const uint32_t hash = tokenizer_hash(tokenizer);
    if (info->tokenizer && hash != info->tokenizer_hash)
        tost_error(&line, "%s was trained with the tokenizer %s of CRC-32 %08x, and %s has %08x: %s", weights,
                   info->tokenizer, (unsigned)info->tokenizer_hash, path, (unsigned)hash, other_text);
    else if (!info->tokenizer && size < rows / 2)   // more than what sizes are rounded up by
        tost_error(&line, "the tokenizer %s has %d tokens, the vocabulary of %s %d: if it was trained with another, %s",
                   path, size, weights, rows, other_text);
    else return;
    print_error(o, &line);
}

void warn_of_shards(const Options* o, const char* dir, uint32_t largest_id, const char* tokenizer, uint32_t hash,
                    int size) {
    TostError line = {""}, ignored;
    char* path = path_join(dir, "vocab.bpe");
    Tokenizer* beside = path_exists(path) ? tokenizer_open(path, &ignored) : NULL;
    if (beside && tokenizer_hash(beside) != hash)
        tost_error(&line, "beside the shards stands %s of CRC-32 %08x, and the tokenizer %s has %08x: if the shards "
                   "are made with the former, %s", path, (unsigned)tokenizer_hash(beside), tokenizer, (unsigned)hash,
                   other_text);
    else if (size && largest_id >= (uint32_t)size)
        tost_error(&line, "the shards hold the id %u, and the tokenizer %s has %d: if they are made with another, %s",
                   (unsigned)largest_id, tokenizer, size, other_text);
    if (line.text[0]) print_error(o, &line);
    if (beside) tokenizer_free(beside);
    free(path);
}

bool loaded_model_find(LoadedModel* t, const Options* o, const TostEngine* engine, TostError* err) {
    *t = (LoadedModel){.engine = engine};
    if (!(o->model ? checkpoint_find(&t->file, o->model, err) : checkpoint_newest(&t->file, "out", err))) {
        t->file = NULL;
        return false;
    }
    if (!checkpoint_read_info(&t->info, t->file, err)) {
        t->info = (CheckpointInfo){0};
        return checkpoint_suggest_older(err, t->file, "--model");
    }
    t->tensors = tost_tensors(&t->info.config);
    return true;
}

bool loaded_model_create(LoadedModel* t, const Options* o, int max_batch, int max_seq, bool keep_layers, TostError* err) {
    const TostEngineOptions options = {.max_batch = max_batch, .max_seq = max_seq, .training = keep_layers,
                                       .dtype = (TostDtype)o->dtype, .threads = o->threads};
    t->model = t->engine->create(&t->info.config, &options, err);
    return t->model && (checkpoint_load_params(t->engine, t->model, &t->tensors, t->file, err)
                        || checkpoint_suggest_older(err, t->file, "--model"));
}

// The tokenizer that the checkpoint names: as it was given to the run, or as seen from a folder above the checkpoint, since
// a run may be used from elsewhere than where it was started. NULL where there is none. free()
static char* named_tokenizer(const LoadedModel* t) {
    const char* name = t->info.tokenizer;
    if (path_exists(name)) return xstrdup(name);
    char* above = path_dir(t->file);
    while (name[0] != '/') {
        char *path = path_join(above, name), *next = path_dir(above);
        const bool found = path_exists(path), top = strcmp(next, above) == 0;
        free(above);
        above = next;
        if (found) {
            free(above);
            return path;
        }
        free(path);
        if (top) break;
    }
    free(above);
    return NULL;
}

Tokenizer* loaded_model_tokenizer(const LoadedModel* t, const Options* o, TostError* err) {
    if (!o->tokenizer && !t->info.tokenizer) {
        tost_error(err, "%s names no tokenizer: give --tokenizer FILE, the vocab.bpe it was trained with",
                   t->file);
        return NULL;
    }
    char* path = o->tokenizer ? xstrdup(o->tokenizer) : named_tokenizer(t);
    if (!path) {
        tost_error(err, "%s was trained with the tokenizer %s, which is not there: give --tokenizer FILE",
                   t->file, t->info.tokenizer);
        return NULL;
    }
    Tokenizer* tokenizer = model_tokenizer(&t->info, path, !o->tokenizer, t->file, err);
    if (tokenizer) warn_of_tokenizer(o, &t->info, t->file, tokenizer);
    free(path);
    return tokenizer;
}

void loaded_model_free(LoadedModel* t) {
    if (t->model) t->engine->destroy(t->model);
    tost_tensors_free(&t->tensors);
    checkpoint_info_free(&t->info);
    free(t->file);
}
