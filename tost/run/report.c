// report.c: the output of a training run, except for its step lines.
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/files.h"
#include "base/memory.h"
#include "base/openmp.h"
#include "base/text.h"
#include "base/version.h"
#include "flops.h"
#include "run/run.h"

// ---------------------------------------------------------------------------------------------
// Warnings and suggested commands

void run_warn(Run* r, const char* fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    const TextLine line = vtext_line(fmt, ap);
    va_end(ap);
    progress_end(&r->progress);
    print_warning(r->args, "%s", line.text);
}

void report_lost_output(Run* r) {
    const int why = r->progress.failed;
    if (!why || why == r->progress.reported) return;
    r->progress.reported = why;
    if (why == EAGAIN)
        run_warn(r, "stdout is not read: training continues and lines are dropped until it is; log and checkpoints are "
                 "still written");
    else run_warn(r, "stdout cannot be written: %s; training continues without it, log and checkpoints are still "
                  "written", strerror(why));
}

// Quotes a word for the shell as "$(printf '…')", with octal escapes for all but printable ASCII. free()
static char* escaped_word(const char* word) {
    char *escaped = xmalloc(4 * strlen(word) + 1), *p = escaped;
    for (; *word; word++) {
        const unsigned char c = (unsigned char)*word;
        if (c < 0x20 || c > 0x7e || strchr("'\\%", c)) p += sprintf(p, "\\%03o", c);
        else *p++ = *word;
    }
    *p = 0;
    char* text = xasprintf("\"$(printf '%s')\"", escaped);
    free(escaped);
    return text;
}

// Quotes a word for the shell, if necessary. free()
static char* shell_word(const char* word) {
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./,:=+@%";
    if (*word && word[strspn(word, plain)] == 0) return xstrdup(word);
    char* shown = printable_text(word);
    const bool printable = strcmp(shown, word) == 0;
    free(shown);
    if (!printable) return escaped_word(word);
    char *quoted = xmalloc(4 * strlen(word) + 3), *q = quoted;
    *q++ = '\'';
    for (; *word; *q++ = *word++)
        if (*word == '\'') q = stpcpy(q, "'\\'");
    stpcpy(q, "'");
    return quoted;
}

// Prints a suggested command: PROGRAM COMMAND FOLDER REST.
static void suggest(Run* r, const char* label, const char* command, const char* rest) {
    char *program = shell_word(r->o.program), *out = shell_word(r->out);
    progress_text(&r->progress, "%-11s%s %s %s%s", label, program, command, out, rest);
    free(program);
    free(out);
}

// Options of this start that a command with --resume must repeat, because checkpoints do not contain them.
static const char* options_to_repeat(const Run* r) { return r->o.recompute ? " --recompute" : ""; }

TextLine resume_hint(const Run* r) {
    if (r->saved_step < 0) return text_line("nothing is saved yet");
    char* out = shell_word(r->out);
    const TextLine hint = text_line("train --resume --out %s%s continues from step %lld", out, options_to_repeat(r),
                                    (long long)r->saved_step);
    free(out);
    return hint;
}

TextLine divergence_hint(const Run* r, const char* remedy) {
    return text_line("%s; %sa new run%s with a lower --lr may help", resume_hint(r).text, remedy,
                     r->saved_step < 0 ? "" : " from --init");
}

// ---------------------------------------------------------------------------------------------
// At the start

// "cosine decay to 6e-05". free()
static char* schedule_text(const Options* o) {
    const double last = o->lr * o->min_lr_frac;
    const Schedule s = options_schedule(o);
    switch (s.kind) {
        case SCHEDULE_COSINE: return xasprintf("cosine decay to %g", last);
        case SCHEDULE_LINEAR: return xasprintf("linear decay to %g", last);
        case SCHEDULE_WSD:
            return xasprintf("constant, linear decay to %g from step %lld", last, (long long)schedule_decay_start(&s));
        case SCHEDULE_CONSTANT: break;
    }
    return xstrdup("then constant");
}

// For --chunk: the pieces, and the memory of the parameters that grow with the block size.
static void report_pieces(Run* r) {
    const Options* o = &r->o;
    if (o->chunk == 0 || o->chunk >= o->seq) return;
    double positions = 0;   // parameters, gradients and both moments
    char memory[32];
    for (int i = 0; i < r->tensors.count; i++) {
        const TostTensor* t = &r->tensors.tensor[i];
        if (t->row == TOST_ROW_wpe || t->row == TOST_ROW_denom_bias)
            positions += 4.0 * sizeof(float) * (double)t->size;
    }
    progress_text(&r->progress, "%-11s%d of up to %d tokens per sequence; 4/3 of the computation; %s of the memory is "
                  "for wpe and denom_bias, which grow with the block size", "pieces",
                  o->seq / o->chunk + (o->seq % o->chunk != 0), o->chunk, human_bytes(memory, positions));
}

static void report_model(Run* r) {
    Progress* p = &r->progress;
    const Options* o = &r->o;
    char memory[32];
    const ModelSummary summary = model_summary(&o->config, &r->tensors);
    progress_text(p, "%-11s%s", "model", summary.sizes);
    progress_text(p, "%-11s%s, %s of memory", "parameters", summary.parameters,
                  human_bytes(memory, (double)r->engine->memory(&o->config, &r->engine_options)));
    if (r->weights) progress_text(p, "%-11s%s", o->resume ? "resumed" : "weights", r->weights);
    const int old = r->init.config.block_size;
    if (o->extend_block)
        progress_text(p, "%-11spositions %d to %d are copies of position %d", "extended", old + 1, o->extend_block,
                      old);
    progress_text(p, "%-11s%lld (%lld done); seed %lld", "steps", (long long)o->steps, (long long)r->info.step,
                  (long long)o->seed);
    const long long micro_batches = (long long)(o->total_batch / ((int64_t)o->batch * o->seq));
    progress_text(p, "%-11s%lld tokens per step: %lld micro-batch%s × %d sequence%s × %d tokens", "",
                  (long long)o->total_batch, micro_batches, micro_batches == 1 ? "" : "es", o->batch,
                  o->batch == 1 ? "" : "s", o->seq);
    report_pieces(r);
    char* schedule = schedule_text(o);
    progress_text(p, "%-11slr %g, %lld warm-up step%s, %s; weight decay %g", "", o->lr, (long long)o->warmup,
                  o->warmup == 1 ? "" : "s", schedule, o->weight_decay);
    free(schedule);
}

// How a step is divided among ranks and parts, and what a rank sends to and receives from the others.
static void report_ranks(Run* r) {
    const Options* o = &r->o;
    const int size = comm_size(r->comm), threads = threads_max();
    char bytes[32];
    int hosts = 0;
    if (size > 1) {
        const double moved = sizeof(float) * (double)r->tensors.n_params * 2.0 * (size - 1) / size;
        for (int i = 0; i < size; i++) hosts += r->comm->places[i].local_rank == 0;
        progress_text(&r->progress, "%-11s%d × %d thread%s on %d host%s (%s), %lld tokens a rank, %s sent and received "
                      "by each in a step", "ranks", size, threads, threads == 1 ? "" : "s", hosts,
                      hosts == 1 ? "" : "s", r->comm->library, (long long)(o->total_batch / size),
                      human_bytes(bytes, moved));
    }
    if (o->parts > 1)
        progress_text(&r->progress, "%-11s%d × %lld tokens; the results %s", "parts", o->parts,
                      (long long)(o->total_batch / o->parts),
                      r->engine_options.fast_reduce
                          ? "depend on the number of ranks (--reduce fast)"
                          : "are the same on any number of ranks that divides the number of parts");
}

static void report_data(Run* r) {
    Progress* p = &r->progress;
    const Options* o = &r->o;
    char tokens[32];
    const double epoch = (double)data_samples(r->data) * o->seq;
    progress_text(p, "%-11s%s: %d shard%s, %s tokens, %.2f epochs, %s", "data", o->data, data_shards(r->data),
                  data_shards(r->data) == 1 ? "" : "s", human_count(tokens, (double)data_tokens(r->data)),
                  (double)o->steps * (double)o->total_batch / epoch,
                  o->order == ORDER_SHUFFLED ? "shuffled" : "sequential");
    if (r->val)
        progress_text(p, "%-11s%s: %d shard%s, %s tokens", "validation", o->val_data, data_shards(r->val),
                      data_shards(r->val) == 1 ? "" : "s", human_count(tokens, (double)data_tokens(r->val)));
    else if (o->val_every > 0) progress_text(p, "%-11soff (no --val-data)", "validation");
    if (r->tokenizer)
        progress_text(p, "%-11s%s: %d tokens", "tokenizer", tokenizer_path(r->tokenizer),
                      tokenizer_size(r->tokenizer));
    else if (o->sample_every > 0) progress_text(p, "%-11soff (no --tokenizer)", "samples");
}

// The options that --resume changes, and the jump of the learning rate, if it has one.
static void report_changes(Run* r) {
    const char* label = "changed";
    Options before = options_default(COMMAND_TRAIN, r->engine);
    TostError ignored;
    for (int i = 0; i < r->n_resumed; i++) {
        char* note = options_changed(&r->o, &r->resumed[i]);
        if (!note) continue;
        progress_text(&r->progress, "%-11s%s", label, note);
        label = "";
        free(note);
    }
    if (!*label && options_resume(&before, r->resumed, r->n_resumed, r->out, &ignored)) {
        const Schedule was = options_schedule(&before), is = options_schedule(&r->o);
        const double lr_was = schedule_lr(&was, r->info.step), lr_is = schedule_lr(&is, r->info.step);
        if (fabs(lr_is - lr_was) > 1e-12 * lr_was)
            progress_text(&r->progress, "%-11slearning rate of the next step: %g instead of %g", "", lr_is, lr_was);
    }
}

static void report_unused(Run* r) {
    char* line;
    for (int i = 0; (line = options_unused(r->args, &r->o, i)); i++) {
        run_warn(r, "%s", line);
        free(line);
    }
    if (r->o.warmup >= r->o.steps && r->o.steps > 0)
        run_warn(r, "--warmup %lld is not less than --steps %lld: the learning rate never reaches --lr %g",
                 (long long)r->o.warmup, (long long)r->o.steps, r->o.lr);
}

void report_settings(Run* r, const char* device) {
    r->progress.style = PROGRESS_FACT;
    progress_text(&r->progress, "%-11s%s", "version", tost_version());
    progress_text(&r->progress, "%-11s%s", "device", device);
    report_ranks(r);
    report_model(r);
    report_data(r);
    report_changes(r);
    r->progress.style = PROGRESS_PLAIN;
    report_unused(r);
}

void report_flops(Run* r) {
    static const char* const dtypes[] = {"float32", "tf32", "bf16", "bf16"};
    if (r->progress.quiet) return;
    bool measured = false;
    const double per_token = flops_per_token(&r->o.config);
    const double peak =
        r->engine->peak_flops ? r->engine->peak_flops(r->model, &measured) * comm_size(r->comm) : 0;
    char text[128] = "", rate[32];
    r->progress.peak_tokens_per_s = peak / per_token;
    if (peak > 0)
        snprintf(text, sizeof text, "; 100%% MFU: %s tokens/s, %.4g TFLOP/s in %s (%s)",
                 human_count(rate, peak / per_token), peak * 1e-12, dtypes[r->o.dtype],
                 measured ? "measured" : "data sheet");
    progress_text(&r->progress, "%-11s%.4g MFLOP per token%s", "compute", per_token * 1e-6, text);
}

// ---------------------------------------------------------------------------------------------
// During training

void report_validation(Run* r) {
    const CheckpointInfo* i = &r->info;
    r->progress.style = PROGRESS_RESULT;
    progress_text(&r->progress, "validation after step %lld: loss %.6f, perplexity %.2f, best %.6f after step %lld",
                  (long long)i->val_step, i->val_loss, exp(i->val_loss), i->best_val_loss, (long long)i->best_val_step);
    r->progress.style = PROGRESS_PLAIN;
}

// Prints the text indented, with '?' for NULs.
void report_sample(Run* r, char* text, size_t n, bool interrupted) {
    progress_text(&r->progress, "sample after step %lld:%s", (long long)r->info.step,
                  interrupted ? " interrupted" : n == 0 ? " empty, <|endoftext|> is its first token" : "");
    for (size_t i = 0; i < n; i++)
        if (!text[i]) text[i] = '?';
    r->progress.style = PROGRESS_SAMPLE;
    for (size_t at = 0; at < n;) {
        const char* end = memchr(text + at, '\n', n - at);
        const size_t len = end ? (size_t)(end - text) - at : n - at;
        progress_text(&r->progress, "  | %.*s", (int)len, text + at);
        at += len + 1;
    }
    r->progress.style = PROGRESS_PLAIN;
}

// ---------------------------------------------------------------------------------------------
// At the end

void report_finished(Run* r) {
    progress_text(&r->progress, "%s is finished: %lld of %lld steps; use a larger --steps to continue", r->out,
                  (long long)r->info.step, (long long)r->o.steps);
}

void report_end(Run* r) {
    Progress* p = &r->progress;
    const bool stopped = r->info.step < r->o.steps;
    const long long step = (long long)r->info.step, steps = (long long)r->o.steps;
    char* best = path_join(r->out, "best");
    const bool has_best = r->o.keep_best && checkpoint_is_folder(best);
    if (stopped)
        progress_text(p, "stopped by %s after step %lld of %lld", run_signal(r) ? run_signal_name(r) : r->stopped_by,
                      step, steps);
    else progress_text(p, "done: %lld step%s, %lld tokens", step, step == 1 ? "" : "s", (long long)r->info.tokens);
    if (r->info.outliers.skipped > 0)
        progress_text(p, "%-11s%lld of %lld steps (rows with lr 0 in the log)", "skipped",
                      (long long)r->info.outliers.skipped, step);
    if (isfinite(r->info.val_loss))
        progress_text(p, "%-11s%.6f after step %lld, best %.6f after step %lld%s", "val loss", r->info.val_loss,
                      (long long)r->info.val_step, r->info.best_val_loss, (long long)r->info.best_val_step,
                      has_best && r->best_saved == r->info.best_val_loss ? " (best)" : "");
    if (r->saved_step < 0) progress_text(p, "%-11s%s (--save-every 0)", "saved", has_best ? best : "nothing");
    free(best);
    if (r->saved_step < 0) return;
    progress_text(p, "%-11s%s/step_%08lld", "saved", r->out, (long long)r->saved_step);
    if (r->tokenizer && !stopped) suggest(r, "sample", "sample --model", " --prompt 'Once upon a time'");
    const char* options = options_to_repeat(r);
    char* rest = stopped ? xstrdup(options) : xasprintf(" --steps %lld%s", 2 * (steps > 0 ? steps : 1), options);
    suggest(r, "continue", "train --resume --out", rest);
    free(rest);
}
