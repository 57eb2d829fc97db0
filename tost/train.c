// train.c: a training run: set up, one update after another, validation, samples, checkpoints, signals. All
// of it is a function of the options, the seed and the update's number, so that a resumed run computes what a
// straight one does.
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint.h"
#include "commands.h"
#include "data.h"
#include "outlier.h"
#include "init.h"
#include "lock.h"
#include "log.h"
#include "sampler.h"
#include "schedule.h"

typedef struct {
    const Options*    asked;           // the command line
    Options           o;               // and, where it is silent, what a checkpoint or a file says
    const TostEngine* engine;
    TostEngineOptions engine_options;
    TostModel*        model;
    TostTensors       tensors;
    CheckpointInfo    info;            // where the run stands: what the next checkpoint says
    CheckpointInfo    init;            // of the weights of --init
    StMeta*           resumed;         // options of the resumed run: strings that o points to
    int               n_resumed;
    char*             weights;         // model.safetensors to start from, or NULL
    char *            out, *val_glob, *log_path;
    Lock              lock;            // on out
    DataSet *         data, *val;      // val: NULL where nothing is validated
    Tokenizer*        tokenizer;       // NULL where there is none
    int32_t *         inputs, *targets;   // (batch, seq)
    LogFile           log;
    bool              log_waits;       // it could not be written, and that was said
    Progress          progress;
    double            val_loss;        // the last measured; NAN before
    int64_t           saved_step;      // of the newest checkpoint; -1 where there is none
    bool              saved_open;      // that checkpoint has an open row
    int64_t           failed_saves;
} Run;

// ---------------------------------------------------------------------------------------------
// Signals. The first asks for a stop after the update in hand, the second leaves at once; but a terminal that goes
// sends its SIGHUP more than once, by the kernel and by the shell.

static volatile sig_atomic_t stop_signal;   // 0: none came

static void on_signal(int number) {
    const int kept = errno;   // of the code that is interrupted
    static const char note[] = "\nstopping after the update in hand; once more to leave at once\n";
    if (stop_signal && number == SIGHUP) return;
    if (stop_signal) _exit(128 + number);
    stop_signal = number;
    const ssize_t told = write(STDERR_FILENO, note, sizeof note - 1);   // if nobody reads it, it stops all the same
    (void)told;
    errno = kept;
}

static void catch_signals(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    struct sigaction before;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN)   // else nohup
        sigaction(SIGHUP, &action, NULL);
}

// A reader of stdout that leaves and a file that may not grow are errors of the writes that meet them, no end of a run.
static void survive_writes(void) {
    struct sigaction action = {.sa_handler = SIG_IGN};
    sigemptyset(&action.sa_mask);
    sigaction(SIGPIPE, &action, NULL);
    sigaction(SIGXFSZ, &action, NULL);
}

// ---------------------------------------------------------------------------------------------
// Words

// A word as a shell reads it back. free()
static char* shell_word(const char* word) {
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./,:=+@%";
    if (*word && word[strspn(word, plain)] == 0) return xstrdup(word);
    char *quoted = xmalloc(4 * strlen(word) + 3), *q = quoted;
    *q++ = '\'';
    for (const char* p = word; *p; p++) {
        if (*p == '\'') q = memcpy(q, "'\\'", 3), q += 3;
        *q++ = *p;
    }
    memcpy(q, "'", 2);
    return quoted;
}

// One line: a command of this program on this run. `rest` follows the folder.
static void suggest(Run* r, const char* label, const char* command, const char* rest) {
    char *program = shell_word(r->o.program), *out = shell_word(r->out);
    progress_text(&r->progress, "%-11s%s %s %s%s", label, program, command, out, rest);
    free(program);
    free(out);
}

// A line on stderr about what does not end the run.
static void warn(Run* r, const char* fmt, ...) PRINTF_LIKE(2, 3);

static void warn(Run* r, const char* fmt, ...) {
    char text[sizeof((TostError*)NULL)->text];
    TostError line;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    tost_error(&line, "%s", text);   // one line, whatever names are in it
    progress_end(&r->progress);
    print_error(r->asked, &line);
}

// Said once: what else would have been printed is not.
static void tell_lost_output(Run* r) {
    if (!r->progress.failed) return;
    warn(r, "stdout cannot be written: %s; the run goes on without telling of it, log and checkpoints are "
         "written all the same", strerror(r->progress.failed));
    r->progress.failed = 0;
    if (!freopen("/dev/null", "w", stdout)) clearerr(stdout);   // what is buffered would fail again at the end
}

// Where a run that stops goes on from, as the end of a message. free()
static char* way_on(const Run* r) {
    if (r->saved_step < 0) return xstrdup("nothing is saved yet");
    char* out = shell_word(r->out);
    char* way = xasprintf("train --resume --out %s%s goes on from step %lld", out, r->o.recompute ? " --recompute" : "",
                          (long long)r->saved_step);
    free(out);
    return way;
}

// The same of one whose numbers went wrong; `helps`: what may help too. free()
static char* way_on_diverged(const Run* r, const char* helps) {
    char* on = way_on(r);
    char* way = xasprintf("%s; %sa new run%s with a lower --lr may help", on, helps,
                          r->saved_step < 0 ? "" : " from --init");
    free(on);
    return way;
}

// Sampled text, indented; bytes that could steer a terminal are shown as '?'.
static void print_text(Run* r, char* text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7F) text[i] = '?';
    }
    for (size_t at = 0; at < n;) {
        const char* end = memchr(text + at, '\n', n - at);
        const size_t len = end ? (size_t)(end - text) - at : n - at;
        progress_text(&r->progress, "  | %.*s", (int)len, text + at);
        at += len + 1;
    }
}

// ---------------------------------------------------------------------------------------------
// Set-up: where the run begins

// Where the log is. free()
static char* find_log(const Run* r) { return r->o.log ? xstrdup(r->o.log) : path_join(r->out, "log.csv"); }

// Whether a resumed run has nothing left to do.
static bool is_finished(const Run* r) {
    return r->o.resume && r->info.step >= r->o.steps && !r->info.open_row;
}

static bool holds_run(const char* out, TostError* err) {
    return tost_error(err, "--out %s holds a run already: --resume goes on with it, --overwrite replaces it", out);
}

// A run does not go into a checkpoint, nor a log where one is to stand.
static bool check_places(const Run* r, TostError* err) {
    const Options* o = &r->o;
    if (o->out && checkpoint_is_folder(o->out) && !checkpoint_is_name(o->out))
        return tost_error(err, "--out %s holds weights, but no run: --init %s starts one from them, dev/reference/convert.py "
                          "--run makes one of a PyTorch checkpoint", o->out, o->out);
    if (o->out && checkpoint_is_folder(o->out)) {
        char* run = path_dir(o->out);
        tost_error(err, "--out %s is a checkpoint: name its run, which is %s, or a new folder", o->out, run);
        free(run);
        return false;
    }
    return !o->log || !checkpoint_is_name(o->log)
           || tost_error(err, "--log %s: checkpoints are called so: give another name", o->log);
}

// From the newest checkpoint in --out: what it says holds, where the command line is silent.
static bool find_resumed(Run* r, TostError* err) {
    Options* o = &r->o;
    r->out = xstrdup(o->out);
    if (is_dir(r->out) && access(r->out, R_OK | X_OK) != 0)
        return tost_error(err, "--resume: %s: the folder cannot be read: %s", r->out, strerror(errno));
    if (!checkpoint_is_run(r->out))
        return tost_error(err, "--resume: %s holds no run to go on with; leave --resume out to start one",
                          r->out);
    TostError unlocked;
    const LockResult got = lock_take(&r->lock, r->out, &unlocked);
    if (got == LOCK_BUSY) return tost_error(err, "%s", unlocked.text);
    CheckpointInfo info;
    if (!checkpoint_find(&r->weights, r->out, err)) {
        r->weights = NULL;
        return tost_error(err, "%s; --overwrite begins the run anew", err->text);
    }
    if (!checkpoint_read_info(&info, r->weights, err)) return checkpoint_suggest_older(err, r->weights, NULL);
    r->info = info;
    r->resumed = info.options;
    r->n_resumed = info.n_options;
    r->info.options = NULL;
    r->info.n_options = 0;
    r->saved_step = info.step;
    r->saved_open = info.open_row != NULL;
    if (r->n_resumed == 0)
        return tost_error(err, "%s does not say how it was trained and cannot be resumed; --init %s starts "
                          "from its weights", r->weights, r->weights);
    if (!options_resume(o, r->resumed, r->n_resumed, r->out, err)) return false;
    if (got == LOCK_FAILED && !is_finished(r)) return tost_error(err, "%s", unlocked.text);
    if (!r->engine->supports((TostDtype)o->dtype))
        return tost_error(err, "the run in %s computes in a --dtype that the %s engine has not: give another",
                          r->out, r->engine->name);
    r->log_path = find_log(r);
    return options_take_config(o, &info.config, r->weights, err);
}

static bool find_fresh(Run* r, TostError* err) {
    Options* o = &r->o;
    TostError unlocked;
    if (o->out) r->out = xstrdup(o->out);   // a default one is numbered when it is made
    const LockResult got = o->out && is_dir(o->out) ? lock_take(&r->lock, o->out, &unlocked) : LOCK_TAKEN;
    if (got == LOCK_BUSY) return tost_error(err, "%s", unlocked.text);
    if (o->out && !o->overwrite && checkpoint_is_run(o->out)) return holds_run(o->out, err);
    if (got == LOCK_FAILED) return tost_error(err, "%s", unlocked.text);
    if (o->out || o->log) r->log_path = find_log(r);
    if (r->log_path && !log_check_fresh(r->log_path, o->overwrite, err)) return false;
    if (!o->init) return true;
    if (!checkpoint_find(&r->weights, o->init, err)) {
        r->weights = NULL;
        return false;
    }
    CheckpointInfo info;
    if (!checkpoint_read_info(&info, r->weights, err)) return checkpoint_suggest_older(err, r->weights, "--init");
    r->init = info;
    return options_take_config(o, &info.config, r->weights, err);
}

// ---------------------------------------------------------------------------------------------
// Set-up: data and tokenizer

// "…train…" with the last "train" of its file name as "val", if such files are there; else NULL. free()
static char* val_beside(const char* glob) {
    const char* name = strrchr(glob, '/');
    const char* at = NULL;
    for (const char* p = name ? name : glob; (p = strstr(p, "train")); p++) at = p;
    if (!at) return NULL;
    char* val = xasprintf("%.*sval%s", (int)(at - glob), glob, at + strlen("train"));
    PathList files;
    TostError none;
    if (expand_glob(&files, val, &none)) {
        free_paths(&files);
        return val;
    }
    free(val);
    return NULL;
}

static bool open_data(Run* r, TostError* err) {
    Options* o = &r->o;
    if (!option_given(o, "data") && !is_dir("data/starter"))
        return tost_error(err, "data/starter is not here: run from the folder of the program's source, or "
                          "give --data GLOB");
    const uint32_t V = (uint32_t)o->config.vocab_size;
    r->data = data_open(o->data, o->seq, V, (DataOrder)o->order, (uint64_t)o->seed, err);
    if (!r->data) return false;
    const int64_t tokens = (int64_t)data_tokens(r->data);
    if (o->data_tokens && o->data_tokens != tokens)
        return tost_error(err, "--data %s holds %lld tokens, but the run in %s was trained on %lld: resume "
                          "with the same shards", o->data, (long long)tokens, r->out,
                          (long long)o->data_tokens);
    const int64_t crc = (int64_t)data_crc(r->data);
    if (o->data_crc && o->data_crc != crc)
        return tost_error(err, "--data %s holds as many tokens as the run in %s was trained on, but others: resume "
                          "with the same shards", o->data, r->out);
    o->data_tokens = tokens;
    o->data_crc = crc;

    if (!o->val_data) o->val_data = r->val_glob = val_beside(o->data);
    if (!o->val_data && o->val_every > 0 && option_given(r->asked, "val-every"))
        return tost_error(err, "--val-every needs shards to validate on: give --val-data GLOB");
    if (!o->val_data || o->val_every == 0) return true;
    r->val = data_open(o->val_data, o->seq, V, ORDER_SEQUENTIAL, 0, err);
    return r->val != NULL;
}

// --tokenizer, else the resumed run's where it still is, else vocab.bpe beside the shards where there is one.
static bool open_tokenizer(Run* r, TostError* err) {
    const Options* o = &r->o;
    char* beside = path_join(data_dir(r->data), "vocab.bpe");
    const char* path = o->tokenizer ? o->tokenizer : r->info.tokenizer ? r->info.tokenizer : beside;
    bool ok = true;
    if (o->tokenizer || path_exists(path)) {
        r->tokenizer = model_tokenizer(&r->info, path, r->info.tokenizer != NULL, r->weights, err);
        ok = r->tokenizer != NULL;
    } else if (o->sample_every > 0 && sample_option_given(r->asked))
        ok = tost_error(err, "--%s needs a tokenizer: give --tokenizer FILE", sample_option_given(r->asked));
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
// Set-up: what is said at the start

static void announce_model(Run* r) {
    Progress* p = &r->progress;
    const Options* o = &r->o;
    char memory[32];
    const ModelSummary words = model_summary(&o->config, &r->tensors);
    progress_text(p, "%-11s%s", "model", words.sizes);
    progress_text(p, "%-11s%s, %s of memory", "parameters", words.parameters,
                  human_bytes(memory, (double)r->engine->memory(&o->config, &r->engine_options)));
    if (r->weights) progress_text(p, "%-11s%s", o->resume ? "resumed" : "weights", r->weights);
    progress_text(p, "%-11s%lld tokens each: %lld × batch %d × seq %d", "updates", (long long)o->total_batch,
                  (long long)(o->total_batch / ((int64_t)o->batch * o->seq)), o->batch, o->seq);
    progress_text(p, "%-11s%lld in all, %lld done; seed %lld", "", (long long)o->steps,
                  (long long)r->info.step, (long long)o->seed);
    progress_text(p, "%-11slr %g, warm-up %lld, down to %g; weight decay %g", "", o->lr, (long long)o->warmup,
                  o->lr * o->min_lr_frac, o->weight_decay);
}

static void announce_data(Run* r) {
    Progress* p = &r->progress;
    const Options* o = &r->o;
    char tokens[32];
    const double epoch = (double)data_samples(r->data) * o->seq;
    progress_text(p, "%-11s%s: shards: %d, %s tokens, %.2f epochs, %s", "data", o->data, data_shards(r->data),
                  human_count(tokens, (double)data_tokens(r->data)),
                  (double)o->steps * (double)o->total_batch / epoch,
                  o->order == ORDER_SHUFFLED ? "shuffled" : "in sequence");
    if (r->val)
        progress_text(p, "%-11s%s: shards: %d, %s tokens", "validation", o->val_data, data_shards(r->val),
                      human_count(tokens, (double)data_tokens(r->val)));
    else if (o->val_every > 0) progress_text(p, "%-11soff: no --val-data", "validation");
    if (r->tokenizer)
        progress_text(p, "%-11s%s: %d tokens", "tokenizer", tokenizer_path(r->tokenizer),
                      tokenizer_size(r->tokenizer));
    else if (o->sample_every > 0) progress_text(p, "%-11soff: no --tokenizer", "samples");
}

// What a resumed run does otherwise than it did.
static void announce_changes(Run* r) {
    const char* label = "changed";
    for (int i = 0; i < r->n_resumed; i++) {
        char* note = options_changed(&r->o, &r->resumed[i]);
        if (!note) continue;
        progress_text(&r->progress, "%-11s%s", label, note);
        label = "";
        free(note);
    }
}

// ---------------------------------------------------------------------------------------------
// Set-up: model and folder

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

// Makes the folder and keeps it for this run; a default one takes the next number where another run was faster.
static bool claim_folder(Run* r, TostError* err) {
    const Options* o = &r->o;
    for (;;) {
        if (!r->out) r->out = checkpoint_next_run("out", o->preset);
        if (!make_dirs(r->out, err)) return false;
        const LockResult got = r->lock.path ? LOCK_TAKEN : lock_take(&r->lock, r->out, err);
        if (got == LOCK_FAILED) return false;
        const bool theirs = !o->resume && !o->overwrite && checkpoint_is_run(r->out);
        if (got == LOCK_TAKEN && !theirs) return true;
        if (o->out) return theirs && got == LOCK_TAKEN ? holds_run(r->out, err) : false;
        lock_release(&r->lock);
        free(r->out);
        r->out = NULL;
    }
}

// The first thing written, once nothing else can go wrong. While old checkpoints stand, so does their log.
static bool open_folder(Run* r, TostError* err) {
    const bool stood = r->out && path_exists(r->out);
    if (!claim_folder(r, err)) return false;
    if (r->lock.unsupported)
        warn(r, "%s: %s: this file system has no locks, see to it that no other run writes here", r->lock.path,
             strerror(r->lock.unsupported));
    if (!r->log_path) r->log_path = find_log(r);
    const int64_t next_row = r->info.step - (r->info.open_row != NULL);
    const bool ok = (!r->o.overwrite || checkpoint_clear(r->out, err))
                    && log_open(&r->log, r->log_path, r->o.resume ? next_row : -1, err);
    if (ok) progress_text(&r->progress, "%-11s%s", "out", r->out);
    else if (!stood) {   // made for nothing, and empty
        lock_release(&r->lock);
        rmdir(r->out);
    }
    return ok;
}

static bool set_up(Run* r, TostError* err) {
    Options* o = &r->o;
    r->info.config = o->config;
    if (!open_data(r, err) || !open_tokenizer(r, err)) return false;
    if (!o->resume) {
        r->info.seed = (uint64_t)o->seed;
        r->info.best_val_loss = INFINITY;
    }
    r->info.options = options_echo(o, &r->info.n_options);
    r->tensors = tost_tensors(&o->config);
    // A sample that outgrows the positions is primed again from half of them.
    const bool outgrows = r->tokenizer && o->sample_every > 0 && o->sample_tokens >= o->config.block_size;
    r->engine_options = (TostEngineOptions){
        .max_batch = o->batch, .max_seq = outgrows ? o->config.block_size : o->seq, .training = true,
        .recompute = o->recompute, .dtype = (TostDtype)o->dtype, .threads = o->threads};
    char device[256];
    if (!r->engine->describe(device, sizeof device, &r->engine_options, err)) return false;
    progress_text(&r->progress, "%-11s%s", "device", device);
    announce_model(r);
    announce_data(r);
    announce_changes(r);
    r->inputs = xmalloc((size_t)o->batch * o->seq * sizeof *r->inputs);
    r->targets = xmalloc((size_t)o->batch * o->seq * sizeof *r->targets);
    return create_model(r, err) && open_folder(r, err);
}

static void tear_down(Run* r) {
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
    free(r->val_glob);
    free(r->log_path);
    free(r->inputs);
    free(r->targets);
}

// ---------------------------------------------------------------------------------------------
// One update

static bool all_finite(const Run* r, TostState state, const TostTensor* t) {
    float* values = xmalloc(t->size * sizeof *values);
    r->engine->get(values, r->model, state, t);
    size_t k = 0;
    while (k < t->size && isfinite(values[k])) k++;
    free(values);
    return k == t->size;
}

// The first tensor with a value that is not finite: of the parameters, else of their gradients.
static void first_wrong(char* text, size_t cap, const Run* r) {
    static const struct { TostState state; const char* of; } states[] = {
        {TOST_PARAM, "the parameter"}, {TOST_GRAD, "the gradient of"}};
    for (size_t s = 0; s < countof(states); s++) {
        for (int i = 0; i < r->tensors.count; i++) {
            const TostTensor* t = &r->tensors.tensor[i];
            if (all_finite(r, states[s].state, t)) continue;
            snprintf(text, cap, "first in %s %s", states[s].of, t->name);
            return;
        }
    }
    snprintf(text, cap, "in no tensor by itself");
}

// Why an update must not be made: a loss or norm that is not finite, or an outlier. free(); NULL: it may be.
static char* objection(const Run* r, double loss, double norm) {
    const Options* o = &r->o;
    char where[ST_NAME_MAX + 64];
    if (!isfinite(loss) || !isfinite(norm)) {
        first_wrong(where, sizeof where, r);
        return xasprintf("loss %g, gradient norm %g, %s", fabs(loss), fabs(norm), where);
    }
    const struct { const char *what, *option; double value, z, limit; } tests[] = {
        {"loss", "skip-loss-z", loss, outlier_z(&r->info.outliers.loss, loss), o->skip_loss_z},
        {"gradient norm", "skip-grad-z", norm, outlier_z(&r->info.outliers.norm, norm), o->skip_grad_z},
    };
    for (size_t i = 0; i < countof(tests); i++)
        if (tests[i].limit > 0 && tests[i].z > tests[i].limit)
            return xasprintf("%s %g is %.1f standard deviations above the mean of the last %d, more than --%s %g",
                             tests[i].what, tests[i].value, tests[i].z, OUTLIER_WINDOW, tests[i].option,
                             tests[i].limit);
    return NULL;
}

// Passes over an update that must not be made; false where that is one too many in a row.
static bool pass_over(Run* r, const char* why, TostError* err) {
    OutlierDetector* g = &r->info.outliers;
    const long long number = (long long)r->info.step + 1;
    if (g->in_a_row >= r->o.max_skipped) {
        char* on = way_on_diverged(r, "a higher --max-skipped or ");
        tost_error(err, "update %lld: %s: stopped before it reached the parameters, after %lld skipped in a row "
                   "(--max-skipped); %s", number, why, (long long)g->in_a_row, on);
        free(on);
        return false;
    }
    outlier_skip(g);
    warn(r, "update %lld is skipped: %s (skipped so far: %lld, in a row %lld of at most %lld)", number, why,
         (long long)g->skipped, (long long)g->in_a_row, (long long)r->o.max_skipped);
    return true;
}

// Gradients of total_batch tokens, accumulated over micro-batches.
static bool accumulate(Run* r, TostError* err) {
    const Options* o = &r->o;
    const int64_t samples = o->total_batch / o->seq;
    r->engine->zero_grad(r->model);
    for (int64_t first = 0; first < samples; first += o->batch) {
        const uint64_t at = r->info.data_sample + (uint64_t)first;
        if (!data_batch(r->data, r->inputs, r->targets, at, o->batch, err)) return false;
        r->engine->forward_train(r->model, r->inputs, r->targets, o->batch, o->seq, 1.0f / (float)o->total_batch);
        r->engine->backward(r->model);
    }
    return true;
}

// Of the tokens since the last call: mean, nats a token.
static double mean_loss(Run* r) {
    double sum;
    int64_t count;
    r->engine->read_loss(&sum, &count, r->model);
    return sum / (double)count;
}

// Adam's bias correction counts the updates that reached the moments: they alone are in the sums it corrects.
static double make_update(Run* r, double norm) {
    const Options* o = &r->o;
    const int64_t step = r->info.step;
    const double clip = o->grad_clip / (norm + TOST_CLIP_EPS);
    const TostAdamW adamw = {
        .lr = schedule_lr(step, o->steps, o->warmup, o->lr, o->min_lr_frac),
        .beta1 = o->beta1, .beta2 = o->beta2, .eps = o->eps, .weight_decay = o->weight_decay,
        .grad_scale = o->grad_clip > 0 && clip < 1 ? clip : 1, .step = step + 1 - r->info.outliers.skipped};
    r->engine->update(r->model, &adamw);
    return adamw.lr;
}

// One update, made or passed over: its data is seen, its row in the log says rate 0, the schedule goes on.
static bool update(Run* r, LogRow* row, TostError* err) {
    const Options* o = &r->o;
    const double start = now_seconds();
    double lr = 0;
    if (!accumulate(r, err)) return false;
    const double norm = r->engine->grad_norm(r->model), loss = mean_loss(r);   // the loss comes with the norm: one wait
    char* why = objection(r, loss, norm);
    const bool ok = !why || pass_over(r, why, err);
    if (!why) {
        lr = make_update(r, norm);
        outlier_accept(&r->info.outliers, loss, norm);
    }
    free(why);
    if (!ok) return false;
    const int64_t step = r->info.step++;
    r->info.tokens += o->total_batch;
    r->info.data_sample += (uint64_t)(o->total_batch / o->seq);
    const double seconds = now_seconds() - start;
    *row = (LogRow){.step = step, .tokens = r->info.tokens, .train_loss = loss, .val_loss = NAN,
                    .lr = lr, .grad_norm = norm, .ms = 1e3 * seconds,
                    .tokens_per_s = (double)o->total_batch / seconds};
    return true;
}

// ---------------------------------------------------------------------------------------------
// Between updates

// Mean loss over the first val_batches micro-batches of the validation shards, or over all if they are fewer.
// *whole: no signal cut it short, and val_loss holds it.
static bool validate(Run* r, bool* whole, TostError* err) {
    const Options* o = &r->o;
    const uint64_t B = (uint64_t)o->batch, wanted = (uint64_t)o->val_batches * B, held = data_samples(r->val);
    const uint64_t samples = wanted < held ? wanted : held;
    uint64_t first = 0;
    for (; first < samples && !stop_signal; first += B) {
        const int rows = (int)(samples - first < B ? samples - first : B);
        if (!data_batch(r->val, r->inputs, r->targets, first, rows, err)) return false;
        r->engine->forward_loss(r->model, r->inputs, r->targets, rows, o->seq);
    }
    double sum;
    int64_t count;
    r->engine->read_loss(&sum, &count, r->model);
    *whole = first >= samples;
    if (!*whole) return true;
    r->val_loss = sum / (double)count;
    if (!isfinite(r->val_loss)) {
        char* on = way_on_diverged(r, "");
        tost_error(err, "after update %lld the validation loss is %g: stopped; %s", (long long)r->info.step,
                   fabs(r->val_loss), on);
        free(on);
        return false;
    }
    if (r->val_loss < r->info.best_val_loss) r->info.best_val_loss = r->val_loss;
    return true;
}

typedef struct { char* bytes; size_t n, cap; } Text;

static bool collect_piece(void* context, const char* bytes, size_t n) {
    Text* text = context;
    if (text->n + n > text->cap) {
        text->cap = 2 * (text->n + n);
        text->bytes = xrealloc(text->bytes, text->cap);
    }
    memcpy(text->bytes + text->n, bytes, n);
    text->n += n;
    return !stop_signal;
}

// A new text, from numbers that depend on seed and update alone and that nothing else draws.
static bool write_sample(Run* r, TostError* err) {
    enum { SAMPLE_STREAM = 0x5A3 };
    const Options* o = &r->o;
    const SamplerOptions how = {.temperature = o->temperature, .top_k = o->top_k, .top_p = o->top_p};
    Rng rng = rng_seeded((uint64_t)o->seed, (uint64_t)SAMPLE_STREAM << 48 | (uint64_t)r->info.step);
    GenerateResult made;
    Text text = {0};
    const bool ok = generate(&made, r->engine, r->model, &o->config, r->tokenizer, NULL, 0, o->sample_tokens,
                             &how, &rng, collect_piece, &text, err);
    if (ok) {
        progress_text(&r->progress, "sample after update %lld:", (long long)r->info.step);
        print_text(r, text.bytes, text.n);
    }
    free(text.bytes);
    return ok;
}

// Since the last update the parameters have met no data: a micro-batch must show a finite loss before a checkpoint
// of them may push an older one out. The next, or, should that be what is wrong, the first that the update saw.
static bool check_parameters(Run* r, double* loss, TostError* err) {
    const Options* o = &r->o;
    const uint64_t seen = r->info.step > 0 ? (uint64_t)(o->total_batch / o->seq) : 0;
    for (uint64_t back = 0;; back = seen) {
        int64_t count;
        if (!data_batch(r->data, r->inputs, r->targets, r->info.data_sample - back, o->batch, err)) return false;
        r->engine->forward_loss(r->model, r->inputs, r->targets, o->batch, o->seq);
        r->engine->read_loss(loss, &count, r->model);
        if (isfinite(*loss) || back == seen) return true;
    }
}

// What follows from a log or a checkpoint that could not be written; `why` says what failed.
static bool write_failed(Run* r, const TostError* why, bool last, TostError* err) {
    const bool stops = r->o.on_save_error == SAVE_ERROR_STOP || last;
    char* on = way_on(r);
    if (stops && r->failed_saves > 1)
        tost_error(err, "%s; saves that failed: %lld; %s", why->text, (long long)r->failed_saves, on);
    else if (stops) tost_error(err, "%s; stopped; %s", why->text, on);
    else warn(r, "%s; training goes on, the next save tries again (saves that failed: %lld); until then %s", why->text,
              (long long)r->failed_saves, on);
    free(on);
    return !stops;
}

// A checkpoint; `last`: there is no update after it. A resumed run goes on from the rows that the log has.
static bool save(Run* r, bool last, TostError* err) {
    const bool open = r->info.open_row != NULL;
    const long long step = (long long)r->info.step;
    TostError why;
    double loss;
    if (r->saved_step == r->info.step && r->saved_open == open) return true;
    if (!check_parameters(r, &loss, err)) return false;
    if (!isfinite(loss)) {
        char* on = last ? way_on_diverged(r, "") : way_on(r);
        if (last) tost_error(err, "after update %lld the loss is %g: stopped, and not saved; %s", step, fabs(loss), on);
        else warn(r, "after update %lld the loss is %g: not saved; %s", step, fabs(loss), on);
        free(on);
        return !last;
    }
    const bool ok = log_sync(&r->log, &why)
                    && checkpoint_save(r->out, &r->info, r->engine, r->model, &r->tensors, (int)r->o.keep, &why);
    if (ok || (r->saved_step != r->info.step && checkpoint_exists(r->out, r->info.step))) {
        r->saved_step = r->info.step;
        r->saved_open = open;
    }
    if (ok && why.text[0]) warn(r, "%s", why.text);
    if (ok) return true;
    r->failed_saves++;
    return write_failed(r, &why, last, err);
}

// The row of the last update. Where it has to wait, that is said once, and again when it no longer does.
static bool write_row(Run* r, const LogRow* row, TostError* err) {
    TostError why;
    const int64_t waited = r->log.rows_waiting;
    if (log_row(&r->log, row, &why)) {
        if (r->log_waits)
            warn(r, "%s is written again, with the %lld rows that waited", r->log_path, (long long)waited);
        r->log_waits = false;
        return true;
    }
    const bool said = r->log_waits;
    r->log_waits = true;
    if (r->o.on_save_error == SAVE_ERROR_STOP) return write_failed(r, &why, false, err);
    if (!said)
        warn(r, "%s; training goes on, and %s", why.text, r->log.regular ? "rows wait until they can be written"
                                                                         : "rows that it does not take are lost");
    return true;
}

static bool due(const Run* r, int64_t every) {
    return every > 0 && (r->info.step % every == 0 || r->info.step == r->o.steps);
}

// Whether there is something to sample with, and somebody to show it to.
static bool wants_sample(const Run* r) {
    return r->tokenizer && r->o.sample_every > 0 && !r->progress.quiet && !stop_signal;
}

static void print_validation(Run* r) {
    progress_text(&r->progress, "validation after update %lld: loss %.6f, perplexity %.2f, best %.6f",
                  (long long)r->info.step, r->val_loss, exp(r->val_loss), r->info.best_val_loss);
}

// A validation that a signal cut short is made up for by the resumed run: until then the checkpoint keeps the row.
static bool leave_open(Run* r, const LogRow* row) {
    r->info.open_row = log_row_text(row);
    progress_text(&r->progress, "validation after update %lld is left to --resume", (long long)r->info.step);
    return true;
}

// All that is due after an update is done before the next or a stop: a resumed run begins with an update, or
// with the rest of what was due.
static bool after_update(Run* r, LogRow* row, TostError* err) {
    if (r->val && due(r, r->o.val_every)) {
        bool whole;
        if (!validate(r, &whole, err)) return false;
        if (whole) row->val_loss = r->val_loss;
        else if (r->o.save_every > 0) return leave_open(r, row);
    }
    if (!write_row(r, row, err)) return false;
    progress_step(&r->progress, row);
    if (!isnan(row->val_loss)) print_validation(r);
    if (wants_sample(r) && due(r, r->o.sample_every) && !write_sample(r, err)) return false;
    tell_lost_output(r);
    return !due(r, r->o.save_every) || r->info.step == r->o.steps || save(r, false, err);
}

// What was due after the update that the resumed checkpoint ends with.
static bool finish_open_row(Run* r, TostError* err) {
    if (!r->info.open_row) return true;
    LogRow row;
    if (!log_row_parse(&row, r->info.open_row) || row.step != r->info.step - 1)
        return tost_error(err, "%s: __metadata__ 'open_row' is no row of step %lld: the file is damaged; take another "
                          "checkpoint", r->weights, (long long)r->info.step - 1);
    free(r->info.open_row);
    r->info.open_row = NULL;
    return after_update(r, &row, err);
}

// What an untrained model loses and writes, so that progress shows.
static bool before_first(Run* r, TostError* err) {
    if (r->val) {
        bool whole;
        if (!validate(r, &whole, err)) return false;
        if (whole) print_validation(r);
    }
    return !wants_sample(r) || write_sample(r, err);
}

static bool train(Run* r, TostError* err) {
    if (r->info.step == 0 && !before_first(r, err)) return false;
    if (!finish_open_row(r, err)) return false;
    r->progress.started = now_seconds();
    while (r->info.step < r->o.steps && !stop_signal) {
        LogRow row;
        if (!update(r, &row, err) || !after_update(r, &row, err)) return false;
    }
    return r->o.save_every == 0 || save(r, true, err);   // of a run that was stopped, or has no updates
}

// ---------------------------------------------------------------------------------------------
// The end

static void print_end(Run* r) {
    Progress* p = &r->progress;
    const bool stopped = r->info.step < r->o.steps;
    const char* by = stop_signal == SIGINT ? "SIGINT" : stop_signal == SIGTERM ? "SIGTERM" : "SIGHUP";
    const long long step = (long long)r->info.step, tokens = (long long)r->info.tokens;
    if (stopped) progress_text(p, "stopped by %s after update %lld of %lld", by, step, (long long)r->o.steps);
    else progress_text(p, "done: %lld updates, %lld tokens", step, tokens);
    if (r->info.outliers.skipped > 0)
        progress_text(p, "%-11s%lld updates of %lld: the rows of the log with rate 0", "skipped",
                      (long long)r->info.outliers.skipped, step);
    if (!isnan(r->val_loss))
        progress_text(p, "%-11s%.6f, best %.6f", "val loss", r->val_loss, r->info.best_val_loss);
    if (r->saved_step < 0) {
        progress_text(p, "%-11snothing, because of --save-every 0", "saved");
        return;
    }
    progress_text(p, "%-11s%s/step_%08lld", "saved", r->out, (long long)r->saved_step);
    if (r->tokenizer && !stopped) suggest(r, "sample", "sample --model", " --prompt 'Once upon a time'");
    const long long more = 2 * (long long)(r->o.steps > 0 ? r->o.steps : 1);
    const char* again = r->o.recompute ? " --recompute" : "";
    char* rest = stopped ? xstrdup(again) : xasprintf(" --steps %lld%s", more, again);
    suggest(r, "go on", "train --resume --out", rest);
    free(rest);
}

static bool already_finished(Run* r) {
    if (!is_finished(r)) return false;
    progress_text(&r->progress, "%s is finished: %lld updates of %lld; a larger --steps goes on", r->out,
                  (long long)r->info.step, (long long)r->o.steps);
    return true;
}

// Trains from where the run stands to its end or to a signal.
static bool run(Run* r, TostError* err) {
    tell_lost_output(r);
    r->progress = progress_new(r->info.step, r->o.steps, r->progress.quiet);
    catch_signals();
    bool ok = train(r, err);
    progress_end(&r->progress);
    TostError closing;
    if (!log_close(&r->log, ok ? err : &closing)) ok = false;
    if (ok) print_end(r);
    tell_lost_output(r);
    return ok;
}

int command_train(const Options* asked, const TostEngine* engine) {
    Run r = {.asked = asked, .o = *asked, .engine = engine, .val_loss = NAN, .saved_step = -1};
    TostError err;
    stop_signal = 0;
    survive_writes();
    r.progress = progress_new(0, asked->steps, asked->quiet);
    bool ok = check_places(&r, &err) && (asked->resume ? find_resumed(&r, &err) : find_fresh(&r, &err));
    if (ok && !already_finished(&r)) ok = set_up(&r, &err) && run(&r, &err);
    tear_down(&r);
    if (!ok) return command_failed(asked, &err);
    return stop_signal ? 128 + stop_signal : 0;
}
