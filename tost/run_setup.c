// run_setup.c: starts or resumes a training run. Finds its checkpoint, opens data and tokenizer, creates the model and
// the run folder.
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "init.h"
#include "run.h"

// ---------------------------------------------------------------------------------------------
// Where the run starts

static char* log_path(const Run* r) { return r->o.log ? xstrdup(r->o.log) : path_join(r->out, "log.csv"); }   // free()

bool run_is_finished(const Run* r) {
    return r->o.resume && r->info.step >= r->o.steps && !r->info.unvalidated_row;
}

static bool run_exists(const char* out, TostError* err) {
    return tost_error(err, "--out %s already contains a run: --resume continues it, --overwrite replaces it", out);
}

// Rejects --out if it is a checkpoint folder, and --log if it has the name of a checkpoint.
static bool check_paths(const Options* o, TostError* err) {
    if (o->out && checkpoint_is_folder(o->out)) {
        char* run = path_dir(o->out);
        if (checkpoint_is_name(o->out))
            tost_error(err, "--out %s is a checkpoint: give the folder of its run, %s, or a new one", o->out, run);
        else tost_error(err, "--out %s contains weights but no run: --init %s starts a run from them; "
                        "dev/reference/convert.py --run converts a PyTorch checkpoint to a run", o->out, o->out);
        free(run);
        return false;
    }
    return !o->log || !checkpoint_is_name(o->log)
           || tost_error(err, "--log %s is the name of a checkpoint: give another name", o->log);
}

// Finds the weights to start from and reads their metadata.
static bool read_weights(CheckpointInfo* info, Run* r, TostError* err) {
    const Options* o = &r->o;
    if (!checkpoint_find(&r->weights, o->resume ? r->out : o->init, err)) {
        r->weights = NULL;
        return o->resume ? tost_error(err, "%s; --overwrite starts the run over", err->text) : false;
    }
    if (checkpoint_read_info(info, r->weights, err)) return true;
    *info = (CheckpointInfo){0};
    return checkpoint_suggest_older(err, r->weights, o->resume ? NULL : "--init");
}

// The newest checkpoint in --out. Its options apply unless the command line gives them.
static bool find_resumed(Run* r, TostError* err) {
    Options* o = &r->o;
    if (is_dir(r->out) && access(r->out, R_OK | X_OK) != 0)
        return tost_error(err, "--resume --out %s: the folder cannot be read: %s", r->out, strerror(errno));
    if (!checkpoint_is_run(r->out))
        return tost_error(err, "--resume --out %s: there is no run in this folder; leave out --resume to start one",
                          r->out);
    if (!read_weights(&r->info, r, err)) return false;
    r->resumed = r->info.options;
    r->n_resumed = r->info.n_options;
    r->info.options = NULL;
    r->info.n_options = 0;
    r->saved_step = r->info.step;
    r->saved_unvalidated = r->info.unvalidated_row != NULL;
    if (r->n_resumed == 0)
        return tost_error(err, "%s contains no training options and cannot be resumed; --init %s starts a run "
                          "from its weights", r->weights, r->weights);
    if (!options_resume(o, r->resumed, r->n_resumed, r->out, err)) return false;
    if (!r->engine->supports((TostDtype)o->dtype))
        return tost_error(err, "the run in %s was trained with a --dtype that the %s engine does not support: give "
                          "another --dtype", r->out, r->engine->name);
    r->log_path = log_path(r);
    return options_take_config(o, &r->info.config, r->weights, err);
}

// A new run, from random weights or those of --init.
static bool find_fresh(Run* r, TostError* err) {
    Options* o = &r->o;
    if (o->out && !o->overwrite && checkpoint_is_run(o->out)) return run_exists(o->out, err);
    if (o->out || o->log) r->log_path = log_path(r);
    if (r->log_path && !log_check_fresh(r->log_path, o->overwrite, err)) return false;
    return !o->init || (read_weights(&r->init, r, err) && options_take_config(o, &r->init.config, r->weights, err));
}

bool run_find(Run* r, TostError* err) {
    const char* out = r->o.out;
    TostError lock_error;
    if (!check_paths(&r->o, err)) return false;
    if (out) r->out = xstrdup(out);   // otherwise claim_folder chooses a numbered folder
    const LockResult lock = out && is_dir(out) ? lock_take(&r->lock, out, &lock_error) : LOCK_TAKEN;
    if (lock == LOCK_BUSY) return tost_error(err, "%s", lock_error.text);
    if (!(r->o.resume ? find_resumed(r, err) : find_fresh(r, err))) return false;
    return lock == LOCK_TAKEN || run_is_finished(r) || tost_error(err, "%s", lock_error.text);
}

// ---------------------------------------------------------------------------------------------
// Data and tokenizer

// The glob with the last "train" of its file name replaced by "val", if it matches files; else NULL. free()
static char* find_val_data(const char* glob) {
    const char* name = strrchr(glob, '/');
    const char* at = NULL;
    for (const char* p = name ? name : glob; (p = strstr(p, "train")); p++) at = p;
    if (!at) return NULL;
    char* val = xasprintf("%.*sval%s", (int)(at - glob), glob, at + strlen("train"));
    PathList files;
    TostError ignored;
    if (expand_glob(&files, val, &ignored)) {
        free_paths(&files);
        return val;
    }
    free(val);
    return NULL;
}

// The starter data of "make install", in PREFIX/share for a program in PREFIX/bin; NULL if there is none. free()
static char* installed_data(const char* program) {
    char* path = program_path(program);
    if (!path) return NULL;
    char *bin = path_dir(path), *prefix = path_dir(bin);
    char* data = path_join(prefix, "share/train_gpt_tost/starter/starter_train_000000.bin");
    free(prefix);
    free(bin);
    free(path);
    if (path_exists(data)) return data;
    free(data);
    return NULL;
}

static bool open_data(Run* r, TostError* err) {
    Options* o = &r->o;
    if (!option_given(o, "data") && !is_dir("data/starter")) {
        r->installed = installed_data(o->program);
        if (!r->installed)
            return tost_error(err, "data/starter not found: run in the repository root or after make install, or give "
                              "--data GLOB");
        o->data = r->installed;
    }
    const uint32_t V = (uint32_t)o->config.vocab_size;
    r->data = data_open(o->data, o->seq, V, (DataOrder)o->order, (uint64_t)o->seed, err);
    if (!r->data) return false;
    const int64_t tokens = (int64_t)data_tokens(r->data), crc = (int64_t)data_crc(r->data);
    if ((o->data_tokens && o->data_tokens != tokens) || (o->data_crc && o->data_crc != crc))
        return tost_error(err, "--data %s has %lld tokens (CRC-32 %08llx), but the run in %s was trained on %lld "
                          "(%08llx): resume with the same shards", o->data, (long long)tokens, (long long)crc, r->out,
                          (long long)o->data_tokens, (long long)o->data_crc);
    o->data_tokens = tokens;
    o->data_crc = crc;

    if (!o->val_data) o->val_data = r->val_glob = find_val_data(o->data);
    if (!o->val_data && o->val_every > 0 && option_given(r->args, "val-every"))
        return tost_error(err, "--val-every needs shards to validate on: give --val-data GLOB");
    if (!o->val_data || o->val_every == 0) return true;
    r->val = data_open(o->val_data, o->seq, V, ORDER_SEQUENTIAL, 0, err);
    return r->val != NULL;
}

// --tokenizer, else the resumed run's tokenizer if it still exists, else vocab.bpe next to the shards if it exists.
static bool open_tokenizer(Run* r, TostError* err) {
    const Options* o = &r->o;
    char* beside = path_join(data_dir(r->data), "vocab.bpe");
    const char* path = o->tokenizer ? o->tokenizer : r->info.tokenizer ? r->info.tokenizer : beside;
    bool ok = true;
    if (o->tokenizer || path_exists(path)) {
        r->tokenizer = model_tokenizer(&r->info, path, r->info.tokenizer != NULL, r->weights, err);
        ok = r->tokenizer != NULL;
    } else if (o->sample_every > 0 && sample_option_given(r->args))
        ok = tost_error(err, "--%s needs a tokenizer: give --tokenizer FILE", sample_option_given(r->args));
    if (r->tokenizer) {
        if (o->init) warn_of_tokenizer(o, &r->init, r->weights, r->tokenizer);
        warn_of_shards(o, data_dir(r->data), data_largest_id(r->data), path, tokenizer_hash(r->tokenizer),
                       tokenizer_size(r->tokenizer));
        r->info.tokenizer_hash = tokenizer_hash(r->tokenizer);
        free(r->info.tokenizer);
        r->info.tokenizer = xstrdup(tokenizer_path(r->tokenizer));
    }
    free(beside);
    return ok;
}

// ---------------------------------------------------------------------------------------------
// Model and folder

static bool create_model(Run* r, TostError* err) {
    r->model = r->engine->create(&r->o.config, &r->engine_options, err);
    if (!r->model) return false;
    if (!r->weights) {
        init_params(r->engine, r->model, &r->tensors, r->o.config.n_layer, (uint64_t)r->o.seed);
        return true;
    }
    const bool ok = checkpoint_load_params(r->engine, r->model, &r->tensors, r->weights, err)
                    && (!r->o.resume || checkpoint_load_moments(r->engine, r->model, &r->tensors, r->weights, err));
    return ok || checkpoint_suggest_older(err, r->weights, r->o.resume ? NULL : "--init");
}

// Creates and locks the folder. A default folder gets the next free number, even if two runs start at the same time.
static bool claim_folder(Run* r, TostError* err) {
    const Options* o = &r->o;
    for (;;) {
        if (!r->out) r->out = checkpoint_next_run("out", o->preset);
        if (!make_dirs(r->out, err)) return false;
        const LockResult lock = r->lock.path ? LOCK_TAKEN : lock_take(&r->lock, r->out, err);
        if (lock == LOCK_FAILED) return false;
        const bool taken = !o->resume && !o->overwrite && checkpoint_is_run(r->out);
        if (lock == LOCK_TAKEN && !taken) return true;
        if (o->out) return lock == LOCK_TAKEN ? run_exists(r->out, err) : false;
        lock_release(&r->lock);
        free(r->out);
        r->out = NULL;
    }
}

// Opens folder and log, last, so that a run that cannot start writes nothing. --overwrite removes the old checkpoints
// before the old log.
static bool open_folder(Run* r, TostError* err) {
    const bool existed = r->out && path_exists(r->out);
    if (!claim_folder(r, err)) return false;
    if (r->lock.unsupported)
        run_warn(r, "%s: %s: the file system does not support locks: make sure that no other run writes here",
                 r->lock.path, strerror(r->lock.unsupported));
    if (!r->log_path) r->log_path = log_path(r);
    const int64_t next_row = r->info.step - (r->info.unvalidated_row != NULL);
    const bool ok = (!r->o.overwrite || checkpoint_clear(r->out, err))
                    && log_open(&r->log, r->log_path, r->o.resume ? next_row : -1, err);
    if (ok) progress_text(&r->progress, "%-11s%s", "out", r->out);
    else if (!existed) {   // remove the empty folder
        lock_release(&r->lock);
        rmdir(r->out);
    }
    return ok;
}

bool run_set_up(Run* r, TostError* err) {
    Options* o = &r->o;
    r->info.config = o->config;
    if (!open_data(r, err) || !open_tokenizer(r, err)) return false;
    if (!o->resume) {
        r->info.seed = (uint64_t)o->seed;
        r->info.best_val_loss = INFINITY;
    }
    r->info.options = options_echo(o, &r->info.n_options);
    r->tensors = tost_tensors(&o->config);
    // Sampling beyond the block size processes half a block again, which may be longer than --seq.
    const bool long_sample = r->tokenizer && o->sample_every > 0 && o->sample_tokens >= o->config.block_size;
    r->engine_options = (TostEngineOptions){
        .max_batch = o->batch, .max_seq = long_sample ? o->config.block_size : o->seq, .training = true,
        .recompute = o->recompute, .dtype = (TostDtype)o->dtype, .threads = o->threads};
    char device[256];
    if (!r->engine->describe(device, sizeof device, &r->engine_options, err)) return false;
    report_settings(r, device);
    r->inputs = xmalloc((size_t)o->batch * o->seq * sizeof *r->inputs);
    r->targets = xmalloc((size_t)o->batch * o->seq * sizeof *r->targets);
    return create_model(r, err) && open_folder(r, err);
}

void run_free(Run* r) {
    lock_release(&r->lock);
    if (r->model) r->engine->destroy(r->model);
    if (r->data) data_close(r->data);
    if (r->val) data_close(r->val);
    if (r->tokenizer) tokenizer_free(r->tokenizer);
    tost_tensors_free(&r->tensors);
    checkpoint_info_free(&r->info);
    checkpoint_info_free(&r->init);
    st_free_meta(r->resumed, r->n_resumed);
    free(r->weights);
    free(r->out);
    free(r->installed);
    free(r->val_glob);
    free(r->log_path);
    free(r->inputs);
    free(r->targets);
}
