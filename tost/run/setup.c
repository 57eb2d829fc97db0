// setup.c: starts or resumes a training run. Finds its checkpoint, opens data and tokenizer, creates the model and
// the run folder.
#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <math.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/files.h"
#include "base/folder.h"
#include "base/limits.h"
#include "base/memory.h"
#include "base/text.h"
#include "init.h"
#include "run/run.h"

enum { CPU_TOKENS = 4096, GPU_TOKENS = 65536 };   // most tokens of a micro-batch that is not given

// ---- Where the run starts ----

bool run_is_finished(const Run* r) {
    return r->args->resume && r->info.step >= r->recipe.steps && r->recipe.epochs == 0 && !r->info.row;
}

static bool run_exists(const Run* r, TostError* err) {
    return tost_error(err, "--out %s already contains a run: --resume continues it from its newest checkpoint, "
                      "--overwrite renames it and starts a new one", r->out.text);
}

// Adds the way out to the error of a checkpoint that cannot be loaded, or only its moments. Always returns false.
static bool not_loaded(const Run* r, bool only_moments, TostError* err) {
    Path newest;
    if (r->args->resume && checkpoint_newest(&newest, r->out.text))
        return tost_error(err, "%s; move %s away to resume from an older checkpoint, or start a new run with "
                          "--overwrite", err->text, newest.text);
    if (r->args->resume) return tost_error(err, "%s; --overwrite starts a new run", err->text);
    return only_moments
           ? tost_error(err, "%s; --keep-optimizer needs a checkpoint whose run had the same --optimizer, --conv and "
                        "--memory: leave it out", err->text) : false;
}

// Opens the weights to start from and reads their metadata.
static bool open_weights(CheckpointInfo* info, Run* r, TostError* err) {
    if (!checkpoint_open(&r->weights_file, info, r->args->resume ? r->out.text : r->args->init, err))
        return not_loaded(r, false, err);
    r->weights = path_text("%s", r->weights_file.path);
    return true;
}

// The newest checkpoint in --out. Its options apply unless the command line gives them.
static bool find_resumed(Run* r, TostError* err) {
    TostRecipe* recipe = &r->recipe;
    const char *out = r->out.text, *weights = r->weights.text;
    if (comm_rank(r->comm) == 0 && !checkpoint_is_run(out))
        return tost_error(err, "--resume --out %s: there is no run in this folder; leave out --resume to start one",
                          out);
    if (!open_weights(&r->info, r, err)) return false;
    r->resumed = r->info.options;
    r->info.options = (KeyValues){0};
    r->saved_step = r->info.step;
    if (r->resumed.count == 0)
        return tost_error(err, "%s contains no training options and cannot be resumed; --init %s starts a run "
                          "from its weights", weights, weights);
    if (!recipe_read(recipe, &r->resumed, weights, err)) return false;
    if (!recipe->data.count) return tost_error(err, "%s does not contain the option data: give --data GLOB", weights);
    if (!r->engine->supports((TostDtype)recipe->dtype))
        return tost_error(err, "the run in %s was trained with a --dtype that the %s engine does not support: give "
                          "another --dtype", out, r->engine->name);
    return options_take_config(recipe, r->args, &r->info.config, weights, err);
}

// With --init, settings that are not given are taken from its run: the optimizer, the sequence length, defaults for
// batch and tokens per step, and the last learning rate, or the peak if the run took no step. A higher rate could
// destroy what the model has learned.
static bool inherit(Run* r, TostError* err) {
    TostRecipe *recipe = &r->recipe, before = recipe_copy(tost_preset_at(0));
    bool ok = recipe_read(&before, &r->init.options, r->weights.text, err)
              && recipe_inherit(recipe, &before, RECIPE_optimizer, err)
              && recipe_inherit(recipe, &before, RECIPE_seq, err);
    if (recipe->keep_optimizer) r->info.earlier_updates = r->init.earlier_updates + r->init.step - r->init.skipped;
    recipe->init_file = xstrdup(r->weights.text);
    const int most = recipe->seq > 0 && recipe->seq < CPU_TOKENS ? CPU_TOKENS / recipe->seq : 1;   // a GPU used more
    if (!recipe_given(recipe, RECIPE_batch) && recipe_given(&before, RECIPE_batch))
        recipe->batch = before.batch < most ? before.batch : most;
    if (!recipe_given(recipe, RECIPE_total_batch) && recipe_given(&before, RECIPE_total_batch))
        recipe->total_batch = before.total_batch;
    if (ok && !recipe_given(recipe, RECIPE_lr)) {
        const double lr = !recipe_given(&before, RECIPE_lr) ? 0
                        : r->init.step > 0 ? schedule_lr(schedule_of(&before), r->init.step) : before.lr;
        if (lr > 0) recipe->lr = lr;
        else ok = recipe->steps == 0 || tost_error(err, "--init %s: its last learning rate is 0 or unknown: give --lr",
                                                   r->args->init);
    }
    recipe_free(&before);
    return ok;
}

// A new run, from random weights or those of --init.
static bool find_fresh(Run* r, TostError* err) {
    const Options* args = r->args;
    if (args->out && comm_rank(r->comm) == 0 && !args->overwrite && checkpoint_is_run(r->out.text))
        return run_exists(r, err);
    return !args->init
        || (open_weights(&r->init, r, err) && inherit(r, err)
            && options_take_config(&r->recipe, args, &r->init.config, r->weights.text, err));
}

// Only rank 0 uses the folder; the others read checkpoints.
bool run_find(Run* r, TostError* err) {
    const char* out = r->out.text;   // empty: claim_folder chooses a numbered folder
    if (r->args->out) r->out = path_text("%s", r->args->out);
    else if (r->args->resume && !checkpoint_newest_run(&r->out, "out", "--out DIR", err)) return false;
    if (*out && checkpoint_is_folder(out))
        return tost_error(err, "--out %s is a checkpoint, not a run: give the folder of its run, or a new one; "
                          "--init %s starts a run from its weights", out, out);
    const bool locks = *out && comm_rank(r->comm) == 0 && is_dir(out);
    if (locks && lock_take(&r->lock, out, err) != LOCK_TAKEN) return false;
    return r->args->resume ? find_resumed(r, err) : find_fresh(r, err);
}

// ---- Data and tokenizer ----

// The patterns with the last "train" of the file name replaced by "val", without those that match no file. free_paths
static PathList find_val_data(const PathList* data) {
    PathList found = {0}, patterns = data_globs(NULL, data);
    for (int i = 0; i < patterns.count; i++) {
        const char *glob = patterns.paths[i], *name = strrchr(glob, '/'), *at = NULL;
        PathList files;
        TostError ignored;
        for (const char* p = name ? name : glob; (p = strstr(p, "train")); p++) at = p;
        char* val = at ? xasprintf("%.*sval%s", (int)(at - glob), glob, at + strlen("train")) : NULL;
        if (val && expand_glob(&files, &(PathList){1, &val}, &ignored)) {
            add_path(&found, val);
            free_paths(&files);
        } else free(val);
    }
    free_paths(&patterns);
    return found;
}

// Finds --tokenizer, the tokenizer beside the weights, or the first beside a shard.
static bool find_tokenizer(Path* path, Run* r) {
    PathList files, globs;
    TostError ignored;
    *path = path_text("%s", r->args->tokenizer ? r->args->tokenizer : "");
    if (r->args->tokenizer) return true;
    bool found = r->weights.text[0] && tokenizer_beside(path, r->weights.text);
    if (found && r->args->init && r->init.tokenizer) {   // keeps its name
        r->info.tokenizer = xstrdup(r->init.tokenizer);
        r->info.tokenizer_hash = r->init.tokenizer_hash;
    }
    globs = data_globs(NULL, &r->recipe.data);
    for (int k = 0; !found && k < globs.count; k++) {
        expand_glob(&files, &(PathList){1, &globs.paths[k]}, &ignored);   // data_open reports it
        for (int i = 0; !found && i < files.count; i++) found = tokenizer_beside(path, files.paths[i]);
        free_paths(&files);
    }
    free_paths(&globs);
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
    if (found) r->tokenizer = model_tokenizer(path.text, rows, hash, weights, err);
    if (r->tokenizer) {
        if (r->args->tokenizer || !r->info.tokenizer) {
            free(r->info.tokenizer);
            r->info.tokenizer = xstrdup(path.text);
        }
        r->info.vocabulary = tokenizer_file(r->tokenizer);
        r->info.tokenizer_hash = tokenizer_hash(r->tokenizer);
        if (resize) recipe->config.vocab_size = (tokenizer_size(r->tokenizer) + MULTIPLE - 1) / MULTIPLE * MULTIPLE;
        if (r->args->init)
            warn_of_tokenizer(r->tokenizer, weights, r->init.config.vocab_size, r->init.tokenizer,
                              r->init.tokenizer_hash);
    }
    r->info.config = recipe->config;
    if (found && !r->tokenizer) return false;
    if (!r->tokenizer && recipe->sample_every > 0 && recipe_given(&r->args->recipe, RECIPE_sample_every))
        return tost_error(err, "--sample-every needs a tokenizer: give --tokenizer FILE");
    return tost_config_check(&recipe->config, err);
}

static bool check_run_shards(const Run* r, const DataSet* data, TostError* err) {
    bool ok = true;
    for (int k = 0; ok && r->tokenizer && k < data_sources(data); k++)
        ok = check_shards(data_source(data, k).shards, r->info.tokenizer, r->info.tokenizer_hash,
                          tokenizer_size(r->tokenizer), err);
    return ok;
}

// Fails if --data is not given and there is no starter data.
static bool check_data(const Run* r, TostError* err) {
    return recipe_given(&r->recipe, RECIPE_data) || is_dir("data/starter")
           || tost_error(err, "data/starter not found: run in the repository root, or give --data GLOB");
}

// A resumed run must have the data with which it was started.
static bool check_same_data(Run* r, TostError* err) {
    TostRecipe* recipe = &r->recipe;
    int64_t tokens = 0, crc = (int64_t)data_crc(r->data);
    for (int k = 0; k < data_sources(r->data); k++) tokens += (int64_t)stream_tokens(data_source(r->data, k).shards);
    if ((recipe->data_tokens && recipe->data_tokens != tokens) || (recipe->data_crc && recipe->data_crc != crc))
        return tost_error(err, "--data %s has %lld tokens (CRC-32 %08llx), but the run in %s was trained on %lld "
                          "(%08llx): resume with the same shards and weights of --data, or start a new run with "
                          "--init and --keep-optimizer", recipe->data.paths[0], (long long)tokens, (long long)crc,
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
    recipe_take_samples(recipe, data_samples(r->data));
    const int ids = r->tokenizer ? tokenizer_size(r->tokenizer) : recipe->config.vocab_size;
    for (int k = 0; k < data_sources(r->data); k++)
        warn_of_ids(data_source(r->data, k).shards, ids, r->tokenizer);
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
    if (!r->val) return tost_error(err, "%s; --val-every 0 trains without validation", err->text);
    if (data_sources(r->val) > 1)
        return tost_error(err, "--val-data %s: validation has no weights: leave them out", recipe->val_data.paths[0]);
    return check_run_shards(r, r->val, err);
}

// Fails if a new run validates on a shard that it trains on. Warns of one named like validation data.
static bool check_split(const Run* r, TostError* err) {
    const ShardStream* val = r->val && !r->args->resume ? data_source(r->val, 0).shards : NULL;
    const char* named = NULL;
    for (int k = 0; k < data_sources(r->data); k++) {
        const ShardStream* data = data_source(r->data, k).shards;
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

// ---- Model and folder ----

static bool create_model(Run* r, TostError* err) {
    const size_t tokens = (size_t)r->recipe.batch * (size_t)r->recipe.seq;
    r->inputs = xmalloc(tokens * sizeof *r->inputs);
    r->targets = xmalloc(tokens * sizeof *r->targets);
    r->part_loss = xcalloc((size_t)run_own_parts(r), sizeof *r->part_loss);
    r->model = r->engine->create(&r->recipe.config, &r->engine_options, err);
    r->chunks = (Chunks){.engine = r->engine, .model = r->model, .max_chunk = r->engine_options.max_chunk,
                         .should_stop = run_should_stop, .context = r};
    if (!r->model) return false;
    const TostConfig* config = r->args->resume ? &r->recipe.config : &r->init.config;
    const TostConfig* now = &r->recipe.config;   // what --init adds is not in its file
    if (!r->weights.text[0] || memcmp(config, now, sizeof *now) != 0)
        init_params(r->engine, r->model, &r->tensors, r->recipe.config.n_layer, (uint64_t)r->recipe.seed);
    if (!r->weights.text[0]) return true;
    const CheckpointModel m = {r->engine, r->model, &r->tensors, (TostOptimizer)r->recipe.optimizer, NULL};
    TostTensors stored = tost_tensors(config);
    const bool loaded = checkpoint_load_params(&m, &stored, &r->weights_file, err);
    const bool ok = loaded && ((!r->args->resume && !r->recipe.keep_optimizer)
                               || checkpoint_load_moments(&m, &r->weights_file, err));
    tost_tensors_free(&stored);
    st_close(&r->weights_file);   // so that its disk space can be freed
    return ok || not_loaded(r, loaded, err);
}

// --overwrite: renames the folder of the old run to OUT.N.
static bool rename_old(Run* r, TostError* err) {
    char* real = strstr(r->out.text, "/../") ? realpath(r->out.text, NULL) : NULL;   // A/.. vanishes if A is renamed
    r->old = free_name(real ? real : r->out.text, ".");
    free(real);
    if (!rename_synced(r->out.text, r->old.text, err)) {
        if (!path_exists(r->old.text)) r->old.text[0] = 0;
        return tost_error(err, "--overwrite: %s; give another --out", err->text);
    }
    lock_moved(&r->lock, r->old.text);
    lock_release(&r->lock);
    return true;
}

// Creates and locks the folder. A default folder gets the next free number, even if two runs start at the same time.
static bool claim_folder(Run* r, TostError* err) {
    const bool numbered = !r->out.text[0];
    for (;;) {
        if (numbered) r->out = checkpoint_next_run("out", tost_preset_name(r->recipe.preset).text);
        if (!make_dirs(r->out.text, err)) return false;
        const LockResult lock = r->lock.path.text[0] ? LOCK_TAKEN : lock_take(&r->lock, r->out.text, err);
        if (lock == LOCK_FAILED) return false;
        if (lock == LOCK_TAKEN && (r->args->resume || !checkpoint_is_run(r->out.text))) return true;
        if (lock == LOCK_TAKEN && r->args->overwrite && !r->old.text[0]) {
            if (!rename_old(r, err)) return false;
        } else if (!numbered) return lock == LOCK_TAKEN ? run_exists(r, err) : false;
        else lock_release(&r->lock);
    }
}

// Fails if the disk has no space for a checkpoint.
static bool check_disk(Run* r, TostError* err) {
    const TostRecipe* recipe = &r->recipe;
    struct statvfs fs;
    char text[32];
    double size = 0;
    if ((recipe->save_every == 0 && !recipe->keep_best) || statvfs(r->out.text, &fs) != 0 || fs.f_blocks == 0)
        return true;
    for (int i = 0; i < r->tensors.count; i++) {
        const TostTensor* t = &r->tensors.tensor[i];   // weights, m, v
        size += 4.0 * (double)t->size * (3 - tost_uses_muon(t, (TostOptimizer)recipe->optimizer));
    }
    return size <= (double)fs.f_bavail * (double)fs.f_frsize
        || tost_error(err, "--out %s: %s: a checkpoint needs %s: free more, or give another --out%s", r->out.text,
                      strerror(ENOSPC), human_bytes(text, size), recipe->keep_best ? "" : " or --save-every 0");
}

// Opens folder and log, last, so that a run that cannot start writes nothing.
static bool open_folder(Run* r, TostError* err) {
    if (comm_rank(r->comm) != 0) return true;
    const bool existed = r->out.text[0] && is_dir(r->out.text);
    bool ok = claim_folder(r, err);
    if (ok && r->lock.unsupported)
        run_warn(r, "%s: %s: the file system does not support locks: make sure that no other run writes here",
                 r->lock.path.text, strerror(r->lock.unsupported));
    const char *out = r->out.text, *old = r->old.text;
    const int64_t rows = r->args->resume ? r->info.step - (r->info.row != NULL) : -1;
    ok = ok && check_disk(r, err) && log_open(&r->log, path_in(out, LOG_FILE).text, rows, err);
    if (ok && *old) progress_fact(&r->progress, "overwrite", "the old run is now in %s", old);
    if (ok) progress_fact(&r->progress, "out", "%s", out);
    else {   // remove a new folder, which is empty
        lock_release(&r->lock);
        if (!existed || *old) rmdir(out);   // fails if it is not empty
        if (*old) tost_error(err, "%s; the old run is in %s", err->text, old);
    }
    return ok;
}

// Fails if this rank's memory cannot fit in the machine or its cgroup. Other ranks of the host need as much; they are
// not counted. All swap counts as memory, because its limits are not read.
static bool check_memory(Run* r, TostError* err) {
    char need_text[32], limit_text[32];
    const double need = (double)r->engine->memory(&r->recipe.config, &r->engine_options);
    const double cgroup = (double)cgroup_memory("/proc/self/cgroup", "/sys/fs/cgroup");
    const double limit = fmin(cgroup, (double)meminfo_bytes("MemTotal:"));
    return r->engine->free_memory || need <= limit + (double)meminfo_bytes("SwapTotal:")
        || r->info.step >= r->recipe.steps
        || tost_error(err, "not enough memory: the run needs %s, but %s %s: lower --batch or --seq, or use --chunk or "
                      "a smaller model", human_bytes(need_text, need), limit == cgroup
                      ? "the limit of its cgroup is" : "the machine has", human_bytes(limit_text, limit));
}

static TostEngineOptions run_engine_options(const Run* r, int batch) {
    TostEngineOptions e = recipe_engine(&r->recipe, batch, r->recipe.seq, true, r->comm);
    e.optimizer = (TostOptimizer)r->recipe.optimizer;
    e.parts = run_own_parts(r);
    return e;
}

// Chooses the micro-batch on a GPU, unless --batch is given or the run is resumed: the largest number of sequences that
// divides those of a part, has up to GPU_TOKENS tokens in a pass (of --chunk, or else --seq) and fits in the memory of
// each rank's GPU.
static void choose_batch(Run* r) {
    TostRecipe* recipe = &r->recipe;
    if (!r->engine->free_memory || recipe_given(recipe, RECIPE_batch)) return;
    const size_t free_bytes = r->engine->free_memory(r->comm);
    const int64_t sequences = recipe->total_batch / recipe->seq / recipe->parts;
    int *all = xmalloc((size_t)comm_size(r->comm) * sizeof *all), batch = 1;
    for (int b = 1; b <= sequences && b <= TOST_MAX_BATCH; b++) {
        const TostEngineOptions e = run_engine_options(r, b);
        if ((int64_t)b * e.max_chunk > GPU_TOKENS || (int64_t)b * recipe->seq > INT_MAX) break;
        if (r->engine->memory(&recipe->config, &e) > free_bytes) break;
        if (sequences % b == 0) batch = b;
    }
    comm_allgather(r->comm, all, &batch, sizeof batch);
    for (int i = 0; i < comm_size(r->comm); i++) batch = all[i] < batch ? all[i] : batch;
    free(all);
    recipe->batch = batch;
    r->batch_chosen = true;
}

static bool differs(const KeyValues* a, const KeyValues* b, const char* key) {
    const char *x = key_values_find(a, key), *y = key_values_find(b, key);
    return x && y ? strcmp(x, y) != 0 : x != y;
}

// Takes the best validation loss from the model saved as best: a killed run may have saved a better one after its last
// checkpoint. Resets the loss if it was measured on other tokens.
static void find_best(Run* r) {
    CheckpointInfo best, *info = &r->info;
    StFile f;
    TostError ignored;
    const bool saved = r->recipe.keep_best
                       && checkpoint_open(&f, &best, path_in(r->out.text, BEST_FOLDER).text, &ignored);
    const KeyValues *then = saved ? &best.options : &r->resumed, *now = &info->options;
    const bool windows = key_values_find(then, "val-windows");   // not in checkpoints with the option val-batches
    const bool other = differs(then, now, "val-data") || (windows && differs(then, now, "val-windows"));
    r->best_reset = other && isfinite(info->best_val_loss);
    if (other || (saved && best.best_val_loss < info->best_val_loss)) {
        info->best_val_loss = other ? INFINITY : best.best_val_loss;
        info->best_val_step = other ? 0 : best.best_val_step;
    }
    if (!saved) return;
    st_close(&f);
    checkpoint_info_free(&best);
}

// The state of a run that has its data.
static void fill_in(Run* r) {
    const TostRecipe* recipe = &r->recipe;
    if (!r->args->resume) {
        r->info.seed = (uint64_t)recipe->seed;
        r->info.val_loss = r->info.best_val_loss = INFINITY;
    }
    r->info.options = recipe_write(recipe);
    if (r->args->resume) find_best(r);
    const char* lr = key_values_find(&r->resumed, "lr");
    if (lr && differs(&r->resumed, &r->info.options, "lr")) {
        char* before = r->info.earlier_lr;
        r->info.earlier_lr = xasprintf("%s%s,", before ? before : "", lr);
        free(before);
    }
    r->tensors = tost_tensors(&recipe->config);
    r->engine_options = run_engine_options(r, recipe->batch);
}

bool run_set_up(Run* r, TostError* err) {
    char device[256];
    const bool ready = check_data(r, err) && open_tokenizer(r, err) && open_data(r, err) && open_val_data(r, err)
                       && check_split(r, err);
    if (!run_agree(r, ready, err)) return false;
    choose_batch(r);
    fill_in(r);
    if (!run_agree(r, r->engine->describe(device, sizeof device, &r->engine_options, err), err)) return false;
    report_settings(r, device);
    if (!run_agree(r, check_memory(r, err), err) || !run_agree(r, create_model(r, err), err) || !run_compare(r, err)
        || !run_agree(r, open_folder(r, err), err)) return false;
    comm_broadcast(r->comm, &r->out, sizeof r->out, 0);   // for messages
    run_share_saved(r);
    report_flops(r);
    return true;
}

void run_free(Run* r) {
    lock_release(&r->lock);
    if (r->weights_file.path) st_close(&r->weights_file);
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
