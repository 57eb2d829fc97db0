// start.c: where a training run starts: at a checkpoint that it resumes, at the weights of --init or at random weights.
#include "init.h"
#include "run/run.h"

bool run_is_finished(const Run* r) {
    return r->args->resume && r->info.step >= r->recipe.steps && r->recipe.epochs == 0 && !r->info.unvalidated_row;
}

// Adds the way out to the error of a checkpoint that cannot be loaded, or only its moments. Always returns false.
static bool not_loaded(const Run* r, bool only_moments, TostError* err) {
    Path newest;
    if (r->args->resume && checkpoint_newest(&newest, r->out.text))
        return tost_error(err, "%s; move %s away to resume from an older checkpoint, or start a new run with "
                          "--overwrite", err->text, newest.text);
    if (r->args->resume) return tost_error(err, "%s; --overwrite starts a new run", err->text);
    return only_moments
        && tost_error(err, "%s; --keep-optimizer needs a checkpoint whose run had the same --optimizer, --conv, "
                      "--memory and --bigrams: leave it out", err->text);
}

// Opens the weights to start from and reads their metadata.
static bool open_weights(CheckpointInfo* info, Run* r, TostError* err) {
    if (!(r->args->resume ? checkpoint_open(&r->weights_file, info, r->out.text, err)
                          : checkpoint_open_best(&r->weights_file, info, r->args->init, err)))
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
    r->saved_step = r->info.step;
    if (r->info.options.count == 0)
        return tost_error(err, "%s contains no training options and cannot be resumed; --init %s starts a run "
                          "from its weights", weights, weights);
    if (!recipe_read(recipe, &r->info.options, weights, err)) return false;
    if (!recipe->data.count) return tost_error(err, "%s does not contain the option data: give --data GLOB", weights);
    if (!r->engine->supports((TostDtype)recipe->dtype))
        return tost_error(err, "the run in %s was trained with a --dtype that the %s engine does not support: give "
                          "another --dtype", out, r->engine->name);
    return recipe_set_config(recipe, &r->info.config, r->args->ranks, true, weights, err);
}

// With --init, settings that are not given are taken from its run: the optimizer, the sequence length, defaults for
// batch and tokens per step, and the last learning rate, or the peak if the run took no step. A higher rate could
// destroy what the model has learned.
static bool inherit(Run* r, TostError* err) {
    enum { CPU_TOKENS = 4096 };   // most tokens of the micro-batch
    static const double AFTER_ZERO = 0.1;   // of the peak: the rate if the last one is 0
    TostRecipe *recipe = &r->recipe, before = tost_presets[0];
    bool ok = recipe_read(&before, &r->init.options, r->weights.text, err);
    before.given &= ~recipe->given;   // what the command line does not give
    if (recipe_given(&before, RECIPE_optimizer)) recipe->optimizer = before.optimizer;
    if (recipe_given(&before, RECIPE_seq)) recipe->seq = before.seq;
    recipe->given |= before.given & ((uint64_t)1 << RECIPE_optimizer | (uint64_t)1 << RECIPE_seq);
    if (recipe->keep_optimizer) r->info.earlier_updates = r->init.earlier_updates + r->init.step - r->init.skipped;
    recipe->init_file = xstrdup(r->weights.text);
    const int most = recipe->seq < CPU_TOKENS ? CPU_TOKENS / recipe->seq : 1;   // that run may have been on a GPU
    if (recipe_given(&before, RECIPE_batch)) recipe->batch = before.batch < most ? before.batch : most;
    if (recipe_given(&before, RECIPE_total_batch)) recipe->total_batch = before.total_batch;
    if (ok && !recipe_given(recipe, RECIPE_lr)) {
        const double peak = recipe_given(&before, RECIPE_lr) ? before.lr : 0;
        const double last = r->init.step > 0 ? schedule_lr(schedule_of(&before), r->init.step) : peak;
        if (peak > 0) recipe->lr = last > 0 ? last : AFTER_ZERO * peak;
        else ok = recipe->steps == 0 || tost_error(err, "--init %s: its learning rate is 0 or unknown: give --lr",
                                                   r->args->init);
    }
    recipe_free(&before);
    return ok;
}

// A new run, from random weights or those of --init.
static bool find_fresh(Run* r, TostError* err) {
    const Options* args = r->args;
    if (args->out && comm_rank(r->comm) == 0 && !args->overwrite && !run_folder_is_new(r, err)) return false;
    return !args->init
        || (open_weights(&r->init, r, err) && inherit(r, err)
            && recipe_set_config(&r->recipe, &r->init.config, args->ranks, false, r->weights.text, err));
}

// Only rank 0 uses the folder; the others read checkpoints.
bool run_find(Run* r, TostError* err) {
    const char* out = r->out.text;   // empty: run_claim_folder chooses a numbered folder
    if (r->args->out) r->out = path_text("%s", r->args->out);
    else if (r->args->resume && !checkpoint_newest_run(&r->out, "out", "--out DIR", err)) return false;
    if (*out && checkpoint_is_folder(out))
        return tost_error(err, "--out %s is a checkpoint, not a run: give the folder of its run, or a new one; "
                          "--init %s starts a run from its weights", out, out);
    const bool locks = *out && comm_rank(r->comm) == 0 && is_dir(out);
    if (locks && lock_take(&r->lock, out, err) != LOCK_TAKEN) return false;
    return r->args->resume ? find_resumed(r, err) : find_fresh(r, err);
}

// ---- Once the data is known ----

static bool differs(const KeyValues* a, const KeyValues* b, const char* key) {
    const char *x = key_values_find(a, key), *y = key_values_find(b, key);
    return x && y ? strcmp(x, y) != 0 : x != y;
}

// Whether the losses of a checkpoint were measured on other tokens: compares the CRC of the validation shards or, if the
// run does not validate or the checkpoint is of an earlier version, their names.
static bool other_validation(const Run* r, const KeyValues* then) {
    const bool known = r->val && key_values_find(then, "val-blocks-crc");
    return differs(then, &r->info.options, known ? "val-blocks-crc" : "val-data")
        || differs(then, &r->info.options, "val-windows");
}

// Takes the best validation loss from the model saved as best: a killed run may have saved a better one after its last
// checkpoint. Forgets losses that were measured on other tokens.
static void find_best(Run* r) {
    CheckpointInfo best = {0}, *info = &r->info;
    StFile f = {0};
    const Path path = path_in(r->out.text, BEST_FOLDER);
    const bool saved = r->recipe.keep_best && checkpoint_open(&f, &best, path.text, &(TostError){0});
    // Of the first validation, only the weights of --init are saved as best.
    const bool lost = r->recipe.keep_best && !checkpoint_is_folder(path.text)
                      && (info->best_val_step > 0 || r->recipe.init_file);
    const bool other = lost || other_validation(r, saved ? &best.options : &r->resumed);
    if (other && isfinite(info->best_val_loss))
        r->best_reset = lost ? "the best weights were not saved" : "the validation data or the number of windows changed";
    if (lost || other_validation(r, &r->resumed)) info->val_loss = INFINITY, info->val_step = 0;
    if (other || (saved && best.best_val_loss < info->best_val_loss)) {
        info->best_val_loss = other ? INFINITY : best.best_val_loss;
        info->best_val_step = other ? 0 : best.best_val_step;
    }
    st_close(&f);
    checkpoint_info_free(&best);
}

void run_begin_info(Run* r) {
    r->info.config = r->recipe.config;
    if (!r->args->resume) {
        r->info.seed = (uint64_t)r->recipe.seed;
        r->info.val_loss = r->info.best_val_loss = INFINITY;
    }
    r->older_best = INFINITY;
    r->resumed = r->info.options;
    r->info.options = recipe_write(&r->recipe);
    if (r->args->resume) find_best(r);
    const char* lr = key_values_find(&r->resumed, "lr");
    if (lr && differs(&r->resumed, &r->info.options, "lr")) {
        char* before = r->info.earlier_lr;
        r->info.earlier_lr = xasprintf("%s%s,", before ? before : "", lr);
        free(before);
    }
}

bool run_load_weights(Run* r, TostError* err) {
    const TostRecipe* recipe = &r->recipe;
    const TostConfig* config = r->args->resume ? &recipe->config : &r->init.config;   // of the file; zero without one
    if (memcmp(config, &recipe->config, sizeof *config) != 0)   // what --init adds is not in its file
        init_params(r->engine, r->model, &r->tensors, recipe->config.n_layer, (uint64_t)recipe->seed);
    if (!r->weights.text[0]) return true;
    const CheckpointModel m = {r->engine, r->model, &r->tensors, (TostOptimizer)recipe->optimizer, NULL};
    const bool loaded = checkpoint_load_params(&m, &r->weights_file, err);
    const bool ok = loaded && ((!r->args->resume && !recipe->keep_optimizer)
                               || checkpoint_load_moments(&m, &r->weights_file, err));
    st_close(&r->weights_file);   // so that its disk space can be freed
    return ok || not_loaded(r, loaded, err);
}
