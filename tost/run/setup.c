// setup.c: data, vocabulary, model and memory of a training run.
#include <fnmatch.h>

#include "run/run.h"

// ---- Data and tokenizer ----

// The patterns with the last "train" of the file name replaced by "val", without those that match no file. free_strings
static StringList find_val_data(const StringList* data) {
    StringList found = {0}, patterns = data_globs(NULL, data);
    for (int i = 0; i < patterns.count; i++) {
        const char *glob = patterns.strings[i], *name = strrchr(glob, '/'), *at = NULL;
        StringList files;
        for (const char* p = name ? name : glob; (p = strstr(p, "train")); p++) at = p;
        char* val = at ? xasprintf("%.*sval%s", (int)(at - glob), glob, at + strlen("train")) : NULL;
        if (val && expand_glob(&files, &(StringList){1, &val}, &(TostError){0})) {
            add_string(&found, val);
            free_strings(&files);
        } else free(val);
    }
    free_strings(&patterns);
    return found;
}

// Finds --tokenizer, the tokenizer beside the weights, or the first beside a shard.
static bool find_tokenizer(Path* path, Run* r) {
    StringList files, globs;
    *path = path_text("%s", r->args->tokenizer ? r->args->tokenizer : "");
    if (r->args->tokenizer) return true;
    bool found = r->weights.text[0] && tokenizer_beside(path, r->weights.text);
    if (found && r->args->init && r->init.tokenizer) {   // keeps its name
        r->info.tokenizer = xstrdup(r->init.tokenizer);
        r->info.tokenizer_hash = r->init.tokenizer_hash;
    }
    globs = data_globs(NULL, &r->recipe.data);
    for (int k = 0; !found && k < globs.count; k++) {
        expand_glob(&files, &(StringList){1, &globs.strings[k]}, &(TostError){0});   // data_open reports it
        for (int i = 0; !found && i < files.count; i++) found = tokenizer_beside(path, files.strings[i]);
        free_strings(&files);
    }
    free_strings(&globs);
    return found;
}

// A new model has the vocabulary size of the tokenizer, unless --vocab-size is given, rounded up to a multiple of 64,
// which makes matrix products faster. The data has none of the extra ids.
static bool open_tokenizer(Run* r, TostError* err) {
    enum { MULTIPLE = 64 };
    TostRecipe* recipe = &r->recipe;
    Path path;
    const bool found = find_tokenizer(&path, r);
    const char* weights = r->weights.text[0] ? r->weights.text : NULL;
    const bool resize = found && !weights && !recipe_given(recipe, RECIPE_vocab_size);
    const int rows = resize ? TOST_MAX_VOCAB_SIZE : recipe->config.vocab_size;
    const uint32_t* hash = r->info.tokenizer ? &r->info.tokenizer_hash : NULL;
    if (found && !(r->tokenizer = model_tokenizer(path.text, rows, hash, weights, err))) return false;
    if (found) {
        if (r->args->tokenizer || !r->info.tokenizer) {
            free(r->info.tokenizer);
            r->info.tokenizer = xstrdup(path.text);
        }
        r->info.tokenizer_file = tokenizer_file(r->tokenizer);
        r->info.tokenizer_hash = tokenizer_hash(r->tokenizer);
        if (resize) recipe->config.vocab_size = (tokenizer_size(r->tokenizer) + MULTIPLE - 1) / MULTIPLE * MULTIPLE;
        if (r->args->init)
            warn_of_tokenizer(r->tokenizer, weights, r->init.config.vocab_size, r->init.tokenizer,
                              r->init.tokenizer_hash);
    }
    if (!found && recipe->sample_every > 0 && recipe_given(&r->args->recipe, RECIPE_sample_every))
        return tost_error(err, "--sample-every needs a tokenizer: give --tokenizer FILE");
    return tost_config_check(&recipe->config, err);
}

static bool check_run_shards(const Run* r, const DataSet* data, TostError* err) {
    bool ok = true;
    for (int k = 0; ok && r->tokenizer && k < data->n; k++)
        ok = check_shards(&data->source[k].stream, r->info.tokenizer, r->info.tokenizer_hash,
                          tokenizer_size(r->tokenizer), err);
    return ok;
}

// A resumed run must have the data with which it was started.
static bool check_same_data(Run* r, TostError* err) {
    TostRecipe* recipe = &r->recipe;
    int64_t tokens = 0, crc = (int64_t)data_crc(r->data);
    for (int k = 0; k < r->data->n; k++) tokens += (int64_t)stream_tokens(&r->data->source[k].stream);
    if ((recipe->data_tokens && recipe->data_tokens != tokens) || (recipe->data_crc && recipe->data_crc != crc))
        return tost_error(err, "--data %s has %lld tokens (CRC-32 %08llx), but the run in %s was trained on %lld "
                          "(%08llx): resume with the same shards and weights of --data, or start a new run with "
                          "--init and --keep-optimizer", recipe->data.strings[0], (long long)tokens, (long long)crc,
                          r->out.text, (long long)recipe->data_tokens, (long long)recipe->data_crc);
    recipe->data_tokens = tokens;
    recipe->data_crc = crc;
    return true;
}

static bool open_data(Run* r, TostError* err) {
    TostRecipe* recipe = &r->recipe;
    r->data = data_open(&recipe->data, recipe->seq, (uint32_t)recipe->config.vocab_size, (DataOrder)recipe->order,
                        (uint64_t)recipe->seed, err);
    if (!r->data || !check_run_shards(r, r->data, err)) return false;
    recipe_set_samples(recipe, data_samples(r->data));
    if (recipe->epochs > 0 && recipe->steps < r->info.step)
        return tost_error(err, "--epochs %g ends at step %lld, but %s is at step %lld: give a larger value",
                          recipe->epochs, (long long)recipe->steps, r->out.text, (long long)r->info.step);
    const int ids = r->tokenizer ? tokenizer_size(r->tokenizer) : recipe->config.vocab_size;
    for (int k = 0; k < r->data->n; k++)
        warn_of_ids(&r->data->source[k].stream, ids, r->tokenizer);
    return check_same_data(r, err);
}

static bool open_val_data(Run* r, TostError* err) {
    static const RecipeRow validating[] = {RECIPE_val_every, RECIPE_keep_best, RECIPE_stop_at_val};
    TostRecipe* recipe = &r->recipe;
    if (!recipe->val_data.count) recipe->val_data = find_val_data(&recipe->data);
    for (size_t i = 0; i < countof(validating); i++)
        if (recipe_given(&r->args->recipe, validating[i])
            && (recipe->val_every > 0 ? !recipe->val_data.count : i == 1 || (i == 2 && recipe->stop_at_val > 0)))
            return tost_error(err, "--%s needs %s", recipe_table[validating[i]].name, recipe->val_every > 0
                              ? "shards to validate on: give --val-data GLOB"
                              : "validation, but --val-every is 0: give --val-every N");
    if (!recipe->val_data.count || recipe->val_every == 0) return true;
    r->val = data_open(&recipe->val_data, recipe->seq, (uint32_t)recipe->config.vocab_size, ORDER_SEQUENTIAL, 0, err);
    if (r->val && r->val->n > 1)
        return tost_error(err, "--val-data %s: validation has no weights: leave them out", recipe->val_data.strings[0]);
    if (r->val) recipe->val_crc = (int64_t)data_crc(r->val);
    return r->val && check_run_shards(r, r->val, err);
}

// A new run that repeats its data keeps its best weights; run_plan keeps those of --for.
static void choose_keep_best(Run* r) {
    TostRecipe* recipe = &r->recipe;
    for (int k = 0; r->val && k < r->data->n && !r->args->resume && recipe->save_every > 0; k++)
        recipe->keep_best |= (double)recipe->steps > FEW_EPOCHS * epoch_steps(recipe, &r->data->source[k]);
}

// Fails if a new run validates on a shard that it trains on. Warns of one named like validation data.
static bool check_split(const Run* r, TostError* err) {
    const ShardStream* val = r->val && !r->args->resume ? &r->val->source[0].stream : NULL;
    const char* named = NULL;
    for (int k = 0; k < r->data->n; k++) {
        const ShardStream* data = &r->data->source[k].stream;
        for (const Shard* s = data->shards; s < data->shards + data->count; s++) {
            for (const Shard* v = val ? val->shards : NULL; val && v < val->shards + val->count; v++)
                if (s->file.st_dev == v->file.st_dev && s->file.st_ino == v->file.st_ino)
                    return tost_error(err, "%s is both in --data and --val-data: leave it out of --data, as in "
                                      "--data 'NAME_train_*.bin', or give --val-every 0", s->path);
            const char* name = strrchr(s->path, '/');
            if (!named && fnmatch("*[_/]val[_.]*", name ? name : path_text("/%s", s->path).text, 0) == 0)
                named = s->path;
        }
    }
    if (named)
        print_warning("--data: %s is named like validation data, but the run trains on it: leave it "
                      "out, as in --data 'NAME_train_*.bin', if that is not meant", named);
    return true;
}

// ---- Model ----

static bool create_model(Run* r, TostError* err) {
    const size_t tokens = (size_t)r->recipe.batch * (size_t)r->recipe.seq;
    r->inputs = xmalloc(tokens * sizeof *r->inputs);
    r->targets = xmalloc(tokens * sizeof *r->targets);
    r->part_loss = xcalloc((size_t)run_own_parts(r), sizeof *r->part_loss);
    r->model = run_create_model(r, &r->engine_options, err);
    key_values_free(&r->info.options);
    r->info.options = recipe_write(&r->recipe);   // the micro-batch may be smaller
    r->chunks = (Chunks){.engine = r->engine, .model = r->model, .max_chunk = r->engine_options.max_chunk};
    return r->model != NULL;
}

bool run_set_up(Run* r, TostError* err) {
    char device[256];
    const bool has_data = recipe_given(&r->recipe, RECIPE_data) || is_dir(path_above(r->recipe.data.strings[0]).text)
        || tost_error(err, "data/starter not found: run in the repository root, make install, or give --data GLOB");
    const bool ready = has_data && open_tokenizer(r, err) && open_data(r, err) && open_val_data(r, err)
                       && check_split(r, err);
    if (!run_agree(r, ready, err)) return false;
    if (!run_plan(r, err)) return false;
    choose_keep_best(r);
    run_choose_batch(r, TOST_MAX_BATCH);
    run_begin_info(r);
    r->tensors = tost_tensors(&r->recipe.config);
    r->engine_options = recipe_engine(&r->recipe, r->recipe.batch, r->recipe.seq, run_own_parts(r), r->comm);
    if (!run_agree(r, r->engine->describe(device, sizeof device, &r->engine_options, err), err)) return false;
    report_settings(r, device);
    if (!run_agree(r, create_model(r, err) && run_load_weights(r, err), err) || !run_compare(r, err)
        || !run_agree(r, run_open_folder(r, err), err)) return false;
    FILE* file = comm_rank(r->comm) == 0 ? fopen(path_in(r->out.text, "device.txt").text, "a") : NULL;
    if (file) fprintf(file, "%s\n", device), fclose(file);   // for dev/plot/report.py
    comm_broadcast(r->comm, &r->out, sizeof r->out, 0);   // for messages
    run_share_saved(r);
    report_flops(r);
    return true;
}

void run_free(Run* r) {
    lock_release(&r->lock);
    st_close(&r->weights_file);
    if (r->model) r->engine->destroy(r->model);
    if (r->data) data_close(r->data);
    if (r->val) data_close(r->val);
    if (r->tokenizer) tokenizer_free(r->tokenizer);
    tost_tensors_free(&r->tensors);
    checkpoint_info_free(&r->info);
    checkpoint_info_free(&r->init);
    key_values_free(&r->resumed);
    recipe_free(&r->recipe);
    free(r->part_loss);
    free(r->inputs);
    free(r->targets);
}
