// report.c: the output of a training run, except for its step lines.
#include <errno.h>
#include <time.h>

#include "base/signals.h"
#include "base/version.h"
#include "flops.h"
#include "run/generate.h"
#include "run/run.h"

// ---- Warnings and suggested commands ----

void run_warn(Run* r, const char* fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    const TextLine line = vtext_line(fmt, ap);
    va_end(ap);
    progress_end(&r->progress);
    print_warning("%s", line.text);
}

void report_lost_output(Run* r) {
    const int why = r->progress.failed;
    LogFile* log = &r->log;
    if (log->failed && log->failed != log->reported)
        run_warn(r, "%s: cannot be written: %s; training continues, and later steps try again", log->path.text,
                 strerror(log->failed));
    log->reported = log->failed;
    if (!why || why == r->progress.reported) return;
    r->progress.reported = why;
    run_warn(r, "stdout %s%s; training continues without it, log and checkpoints are still written",
             why == EAGAIN ? "is not read" : "cannot be written: ", why == EAGAIN ? "" : strerror(why));
}

void report_missing_rows(Run* r) {
    const LogFile* log = &r->log;
    if (!log->failed || log->rows.size == 0) return;
    long long first = r->info.step + 1;
    for (const char* p = log->rows.data; (p = strchr(p, '\n')); p++) first--;
    run_warn(r, "%s: rows from step %lld on could not be written: %s", log->path.text, first, strerror(log->failed));
}

// Quotes a word for the shell, if necessary. free()
static char* shell_word(const char* word) {
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./,:=+@%";
    if (*word && word[strspn(word, plain)] == 0) return xstrdup(word);
    char *quoted = xmalloc(4 * strlen(word) + 3), *q = stpcpy(quoted, "'");
    for (; *word; word++)
        if (*word == '\'') q = stpcpy(q, "'\\''");
        else *q++ = *word;
    stpcpy(q, "'");
    return quoted;
}

// LAUNCHER PROGRAM COMMAND FOLDER; the launcher, if there are several ranks and it is wanted: "mpirun -n 4"
static TextLine command_line(const Run* r, bool launched, const char* command) {
    const char* launcher = launched && r->comm ? comm_launch().launcher : NULL;
    char *program = shell_word(r->args->program), *out = shell_word(r->out.text);
    TextLine line = text_line("%s %s %s", program, command, out);
    if (launcher)
        line = text_line("%s %s %d %s", launcher, strcmp(launcher, "torchrun") == 0 ? "--no-python --nproc-per-node"
                         : "-n", comm_size(r->comm), line.text);
    free(program);
    free(out);
    return line;
}

TextLine resume_hint(const Run* r) {
    if (r->saved_step < 0) return text_line("nothing is saved yet");
    return text_line("%s continues from step %lld", command_line(r, true, "train --resume --out").text,
                     (long long)r->saved_step);
}

// ---- The plan of --for ----

// Adds " --name value" to a command line. value: NULL: nothing; "": the name alone
static void add_option(char** line, const char* name, const char* value) {
    if (!value) return;
    char *before = *line, *word = *value ? shell_word(value) : xstrdup("");
    *line = xasprintf("%s --%s%s%s", before, name, *word ? " " : "", word);
    free(before);
    free(word);
}

// The command that trains the same run without a clock: all that differs from the preset. free()
static char* plain_command(const Run* r) {
    const TostRecipe *preset = &tost_presets[r->recipe.preset], *first = &tost_presets[0];
    char* line = shell_word(r->args->program);
    for (const Setting* row = recipe_table; row < recipe_table + RECIPE_ROWS; row++) {
        const TostRecipe* defaults = row == recipe_table + RECIPE_preset ? first : preset;
        char *value = setting_text(&r->recipe, row), *usual = setting_text(defaults, row), *rest = value, *each;
        const bool shown = value && row->help && (row->kind == LIST || strcmp(value, usual ? usual : "") != 0);
        while (shown && (each = strsep(&rest, "\x1f"))) add_option(&line, row->name, row->kind == FLAG ? "" : each);
        free(value);
        free(usual);
    }
    add_option(&line, "tokenizer", r->args->tokenizer);
    add_option(&line, "init", r->args->init);
    return line;
}

static void report_command(Run* r) {
    char* line = plain_command(r);
    progress_fact(&r->progress, "command", "%s", line);
    free(line);
}

void report_plan(Run* r, double seconds, double epochs, double expected) {
    const TostRecipe* recipe = &r->recipe;
    const TostConfig* c = &recipe->config;
    const time_t end = time(NULL) + (time_t)seconds;
    char clock[32] = "";
    TextLine loss = {""};
    strftime(clock, sizeof clock, "%a %H:%M:%S", localtime(&end));
    if (expected > 0) loss = text_line("; expected loss %.2f ± %.2f", expected, 0.1 * expected);
    progress_fact(&r->progress, "plan", "%d layer%s, %d channels, %lld steps, %s tokens, %.3g epochs, until %s%s%s",
                  c->n_layer, plural(c->n_layer), c->n_embd, (long long)recipe->steps,
                  human_count(epochs * (double)recipe->data_tokens).text, epochs, clock, loss.text,
                  r->engine->usable_memory ? "; on a GPU, the choice of the size is extrapolated" : "");
    report_command(r);
}

void report_new_steps(Run* r, bool repeatable) {
    progress_end(&r->progress);
    progress_fact(&r->progress, "steps", "the speed has changed: the run now ends after step %lld",
                  (long long)r->recipe.steps);
    if (repeatable) report_command(r);
}

// ---- At the start ----

static void report_schedule(Run* r) {
    static const char* const kinds[] = {"cosine decay", "constant, linear decay", "linear decay", "then constant"};
    const TostRecipe* recipe = &r->recipe;
    char last[64] = "", start[64] = "";
    if (recipe->schedule != SCHEDULE_CONSTANT) snprintf(last, sizeof last, " to %g", recipe->lr * recipe->min_lr_frac);
    if (recipe->schedule == SCHEDULE_WSD)
        snprintf(start, sizeof start, " from step %lld", (long long)schedule_decay_start(schedule_of(recipe)));
    progress_fact(&r->progress, "optimizer", "%s, lr %g, %lld warm-up step%s, %s%s%s; weight decay %g",
                  recipe->optimizer != TOST_MUON ? "AdamW" : recipe->config.bigrams ? "Muon, RMSProp and AdamW"
                  : "Muon and AdamW", recipe->lr, (long long)recipe->warmup,
                  plural(recipe->warmup), kinds[recipe->schedule], last, start, recipe->weight_decay);
}

static void report_model(Run* r) {
    Progress* p = &r->progress;
    const TostRecipe* recipe = &r->recipe;
    progress_fact(p, "model", "%s", model_sizes(&recipe->config).text);
    progress_fact(p, "parameters", "%s, %s of memory", human_count((double)r->tensors.n_params).text,
                  human_bytes((double)r->engine->memory(&recipe->config, &r->engine_options)).text);
    if (r->weights.text[0])
        progress_fact(p, r->args->resume ? "resumed" : "weights", "%s%s", r->weights.text,
                      r->args->init && recipe->keep_optimizer ? ", with the optimizer's state" : "");
    progress_fact(p, "steps", "%lld (%lld done); seed %lld", (long long)recipe->steps, (long long)r->info.step,
                  (long long)recipe->seed);
    const int64_t micro_batches = recipe->total_batch / ((int64_t)recipe->batch * recipe->seq);
    const bool chosen = r->engine->usable_memory && !recipe_given(recipe, RECIPE_batch);   // by run_choose_batch
    progress_fact(p, "", "%lld token%s per step: %lld micro-batch%s × %d sequence%s × %d token%s%s",
                  (long long)recipe->total_batch, plural(recipe->total_batch), (long long)micro_batches,
                  micro_batches == 1 ? "" : "es", recipe->batch, plural(recipe->batch), recipe->seq,
                  plural(recipe->seq), chosen ? "; --batch is chosen for this GPU" : "");
    if (recipe->chunk > 0 && recipe->chunk < recipe->seq)
        progress_fact(p, "chunks", "%d of up to %d tokens per sequence; 4/3 of the computation",
                      recipe->seq / recipe->chunk + (recipe->seq % recipe->chunk != 0), recipe->chunk);
    report_schedule(r);
}

// How a step is divided among ranks and parts.
static void report_ranks(Run* r) {
    const TostRecipe* recipe = &r->recipe;
    const int size = comm_size(r->comm), threads = threads_max();
    int hosts = 0;
    if (size > 1) {
        for (int i = 0; i < size; i++) hosts += r->comm->places[i].local_rank == 0;
        progress_fact(&r->progress, "ranks", "%d × %d thread%s on %d host%s (%s), %lld tokens a rank", size, threads,
                      plural(threads), hosts, plural(hosts), r->comm->library, (long long)(recipe->total_batch / size));
    }
    if (recipe->parts > 1)
        progress_fact(&r->progress, "parts", "%d × %lld tokens", recipe->parts,
                      (long long)(recipe->total_batch / recipe->parts));
}

// What to change if a run reads little of a source, or reads it often and it has few tokens for the model. The largest
// published model read 9 billion tokens, 12 per parameter, 33 times.
static void judge_epochs(Run* r, const DataSource* s) {
    const TostRecipe* recipe = &r->recipe;
    const double once = epoch_steps(recipe, s), epochs = (double)recipe->steps / once;
    const double tokens = (double)s->samples * recipe->seq;
    if (r->args->run_for > 0) return;   // run_plan has judged them
    if (epochs > MANY_EPOCHS && tokens < 10 * (double)r->tensors.n_params)
        progress_fact(&r->progress, "warning", "%.0f epochs of %s tokens will probably overfit: --steps %.0f makes %d",
                      epochs, human_count(tokens).text, fmax(1, floor(FEW_EPOCHS * once)), FEW_EPOCHS);
    if (epochs < 0.5 && r->data->n == 1 && !recipe_given(recipe, RECIPE_steps) && recipe->epochs == 0)
        progress_fact(&r->progress, "", "--epochs 1 reads all of it: %.0f steps", ceil(once));
}

// A line for each source. "N of M tokens": what an epoch or a validation reads, unless it is all.
static void report_shards(Run* r, const char* label, const StringList* globs, const DataSet* data) {
    const TostRecipe* recipe = &r->recipe;
    StringList names = data_globs(NULL, globs);
    for (int k = 0; k < data->n; k++) {
        const DataSource* s = &data->source[k];
        const uint64_t most = data == r->val ? (uint64_t)recipe->val_windows : 0;
        const uint64_t reads = most && most < s->samples ? most : s->samples;
        const NumberText read = human_count((double)reads * recipe->seq);
        const NumberText tokens = human_count((double)stream_tokens(&s->stream));
        const bool all = strcmp(read.text, tokens.text) == 0;
        char unused[64] = "", share[48] = "", epochs[64] = "";
        if (s->unused) snprintf(unused, sizeof unused, " (%d unused: fewer than --seq + 1 tokens)", s->unused);
        if (data->n > 1) snprintf(share, sizeof share, ", %.4g%% of the samples", 100 * s->weight);
        if (data == r->data)
            snprintf(epochs, sizeof epochs, ", %.2f epochs, %s", (double)recipe->steps / epoch_steps(recipe, s),
                     recipe->order == ORDER_SHUFFLED ? "shuffled" : "sequential");
        progress_fact(&r->progress, k == 0 ? label : "", "%s%s: %d shard%s%s, %s%s%s tokens%s%s", names.strings[k],
                      data->n < names.count ? " …" : "", s->stream.count, plural(s->stream.count), unused,
                      all ? "" : read.text, all ? "" : " of ", tokens.text, share, epochs);
        if (data == r->data) judge_epochs(r, s);
    }
    free_strings(&names);
}

static void report_data(Run* r) {
    Progress* p = &r->progress;
    const TostRecipe* recipe = &r->recipe;
    report_shards(r, "data", &recipe->data, r->data);
    if (r->val) report_shards(r, "validation", &recipe->val_data, r->val);
    else if (recipe->val_every > 0) progress_fact(p, "validation", "off (no --val-data)");
    if (recipe->keep_best && !recipe_given(recipe, RECIPE_keep_best))
        progress_fact(p, "best", "kept, as with --keep-best: %s", r->args->run_for > 0 ? "the default of --for"
                      : text_line("the run reads data more than %d times", FEW_EPOCHS).text);
    if (r->tokenizer)
        progress_fact(p, "tokenizer", "%s: %d tokens", tokenizer_path(r->tokenizer), tokenizer_size(r->tokenizer));
    else progress_fact(p, "tokenizer", "none found: give --tokenizer FILE, or `sample` reads and prints ids");
}

// Says if another schedule or --steps raises the learning rate, and which --lr keeps it: rates are proportional to
// --lr.
static TextLine rise_of_rate(const Run* r) {
    TostRecipe before = tost_presets[0];
    recipe_read(&before, &r->resumed, r->weights.text, &(TostError){0});
    const Schedule old = schedule_of(&before), new = schedule_of(&r->recipe);
    const double last = schedule_lr(old, r->info.step - 1), next = schedule_lr(new, r->info.step);
    recipe_free(&before);
    return r->info.step == 0 || new.lr != old.lr || next <= fmax(last, schedule_lr(old, r->info.step)) ? (TextLine){""}
         : text_line("; the learning rate rises from %g to %g: --lr %g keeps it", last, next, new.lr * last / next);
}

void report_settings(Run* r, const char* device) {
    const TextLine changed = recipe_changed(&r->recipe, &r->resumed);
    const char *version = tost_version(), *saved = r->info.program ? strchr(r->info.program, ' ') : NULL;
    const bool other = saved && strcmp(saved + 1, version) != 0;
    progress_fact(&r->progress, "version", "%s%s%s", version,
                  other ? "; results may differ in the last bits from those of" : "", other ? saved : "");
    progress_fact(&r->progress, "device", "%s", device);
    report_ranks(r);
    report_model(r);
    report_data(r);
    if (changed.text[0])
        progress_fact(&r->progress, "changed", "%s%s", changed.text, rise_of_rate(r).text);
    if (r->best_reset) progress_fact(&r->progress, "best", "reset: %s", r->best_reset);
}

void report_flops(Run* r) {
    static const char* const dtypes[] = {"float32", "tf32", "bf16"};
    if (r->progress.quiet) return;
    const double per_token = flops_per_token(&r->recipe.config);
    const double peak = r->engine->peak_flops ? r->engine->peak_flops(r->model) * comm_size(r->comm) : 0;
    TextLine mfu = {""};
    r->progress.peak_tokens_per_s = peak / per_token;
    if (peak > 0)
        mfu = text_line("; 100%% MFU: %s tokens/s, %.4g TFLOP/s in %s (data sheet)",
                        human_count(peak / per_token).text, peak * 1e-12, dtypes[r->recipe.dtype]);
    progress_fact(&r->progress, "compute", "%.4g MFLOP per token%s", per_token * 1e-6, mfu.text);
}

// ---- During training ----

void report_validation(Run* r) {
    const CheckpointInfo* i = &r->info;
    const TextLine error = text_line(" ± %.4f (95%%)", r->val_error);
    progress_text(&r->progress, "validation after step %lld: loss %.6f%s, perplexity %.2f, best %.6f after step %lld",
                  (long long)i->val_step, i->val_loss, isfinite(r->val_error) ? error.text : "", exp(i->val_loss),
                  i->best_val_loss, (long long)i->best_val_step);
}

static bool append_token(void* text, const char* bytes, size_t n) {
    fwrite(bytes, 1, n, text);
    return !signals_received();
}

// The random numbers of a sample depend only on seed and step.
bool report_sample(Run* r, TostError* err) {
    enum { SAMPLE_STREAM = 0x5A3 };
    const TostRecipe* recipe = &r->recipe;
    if (!r->tokenizer || recipe->sample_every == 0 || r->progress.quiet || signals_received()) return true;
    char* text = NULL;
    double seconds = 0;
    size_t n = 0;
    FILE* sample = open_memstream(&text, &n);
    const Generator generator = {.chunks = &r->chunks, .config = &recipe->config,
                                 .tokenizer = r->tokenizer,
                                 .options = {recipe->temperature, recipe->top_k, recipe->top_p},
                                 .sink = append_token};
    Text continued = {.context = sample, .rng = rng_seeded((uint64_t)recipe->seed, (uint64_t)SAMPLE_STREAM << 48
                                                                               | (uint64_t)r->info.step)};
    const bool ok = generate(&continued, 1, &seconds, &generator, recipe->sample_tokens, err);
    fclose(sample);
    if (ok) progress_text(&r->progress, "sample after step %lld:", (long long)r->info.step);
    for (size_t i = 0; i < n; i++)
        if (!text[i]) text[i] = '?';   // %s ends at a NUL
    for (char *line = text, *end; ok && line < text + n; line = end + 1) {
        end = line + strcspn(line, "\n");
        progress_text(&r->progress, "  | %.*s", (int)(end - line), line);
    }
    free(text);
    return ok;
}

// ---- At the end ----

// The last validation loss is above the best by more than 1 %; on the same windows, noise is usually less. best: its
// folder, or NULL. Without repeated data, the cause is another one than overfitting.
static void report_rise(Run* r, const char* best) {
    const CheckpointInfo* i = &r->info;
    const long long step = (long long)i->best_val_step;
    const bool repeats = i->data_sample > data_samples(r->data);
    const TextLine instead = best ? text_line("use %s, as sample, eval and --init do", best)
        : repeats && step > 0 ? text_line("--steps %lld or --keep-best would have given a better model", step)
        : text_line("a lower --lr may help");
    progress_fact(&r->progress, repeats ? "overfit" : "worse", "the validation loss rose after step %lld: %s", step,
                  instead.text);
}

void report_end(Run* r) {
    Progress* p = &r->progress;
    const bool stopped = r->info.step < r->recipe.steps, rose = r->info.val_loss > 1.01 * r->info.best_val_loss;
    const long long step = (long long)r->info.step, steps = (long long)r->recipe.steps;
    const Path best = path_in(r->out.text, BEST_FOLDER);
    const bool has_best = r->recipe.keep_best && checkpoint_is_folder(best.text);
    if (stopped)
        progress_text(p, "stopped by %s after step %lld of %lld",
                      run_signal(r) ? signals_name(run_signal(r)) : r->stopped_by, step, steps);
    else progress_text(p, "done: %lld step%s, %lld token%s", step, plural(step), (long long)r->info.tokens,
                       plural(r->info.tokens));
    if (r->info.skipped > 0)
        progress_fact(p, "skipped", "%lld of %lld steps (rows with lr 0 in the log)", (long long)r->info.skipped, step);
    if (isfinite(r->info.val_loss))
        progress_fact(p, "val loss", "%.6f after step %lld, best %.6f after step %lld%s", r->info.val_loss,
                      (long long)r->info.val_step, r->info.best_val_loss, (long long)r->info.best_val_step,
                      has_best ? " (best)" : "");
    if (r->bits_per_byte > 0)
        progress_fact(p, "bits/byte", "%.4f of the last weights, on the windows of validation", r->bits_per_byte);
    if (rose) report_rise(r, has_best ? best.text : NULL);
    if (r->saved_step < 0) progress_fact(p, "saved", "%s (--save-every 0)", has_best ? best.text : "nothing");
    if (r->saved_step < 0) return;
    progress_fact(p, "saved", "%s", checkpoint_name(r->out.text, r->saved_step).text);
    if (r->tokenizer && !stopped)
        progress_fact(p, "sample", "%s --prompt 'Once upon a time'", command_line(r, false, "sample --model").text);
    if (rose && !stopped) return;   // no advice to train longer
    const TextLine more = text_line(" --steps %lld", 2 * (steps > 0 ? steps : 1));
    progress_fact(p, "continue", "%s%s", command_line(r, true, "train --resume --out").text, stopped ? "" : more.text);
}
