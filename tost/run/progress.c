// progress.c: shows the progress of a run.
#include "run/progress.h"

#include <errno.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/terminal.h"
#include "base/text.h"

static const double LIVE_INTERVAL = 0.25, LIVE_STEP_INTERVAL = 0.1;           // seconds
static const double PLAIN_INTERVAL = 5, PLAIN_SLOWEST = 60, STDERR_INTERVAL = 30;
static const double PLAIN_FRACTION = 0.01;   // of the elapsed time, so that a long run has few lines
static const double STEP_IS_LONG = 1;        // seconds after which the micro-batches of a step are shown

Progress progress_new(FILE* out, bool quiet) {
    const int fd = fileno(out);
    const bool live = terminal_is_live(fd);
    const double now = now_seconds();
    return (Progress){.fd = fd, .live = live, .quiet = quiet, .began = now, .shown = now, .started = now,
                      .interval = fd == STDERR_FILENO ? STDERR_INTERVAL : PLAIN_INTERVAL, .last.step = -1};
}

void progress_start(Progress* p) { p->started = now_seconds(); }

// ---- Output ----

// Writes text, or drops it if the reader has stopped. If fd cannot be written (closed pipe, full disk), the work
// continues without progress output.
static void emit(Progress* p, const char* text) {
    if (p->quiet) return;
    const size_t n = strlen(text);
    p->stopped = output_write(p->fd, text, n, p->stopped ? 0 : OUTPUT_TIMEOUT) < n;
    if (p->stopped) p->failed = errno;
    p->quiet = p->failed && p->failed != EAGAIN;
}

// The text that removes the live line, if there is one.
static const char* eraser(Progress* p) {
    const bool open = p->line_open;
    p->line_open = false;
    return open ? "\r\033[K" : "";
}

void progress_erase(Progress* p) {
    if (p->line_open) emit(p, eraser(p));
}

void progress_end(Progress* p) {
    if (p->line_open) emit(p, "\n");
    p->line_open = false;
}

void progress_text(Progress* p, const char* fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    char* text = vprintable_text(fmt, ap);
    va_end(ap);
    char* line = xasprintf("%s%s\n", eraser(p), text);
    emit(p, line);
    free(line);
    free(text);
}

void progress_fact(Progress* p, const char* label, const char* fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    char* fact = vprintable_text(fmt, ap);
    va_end(ap);
    progress_text(p, "%-11s%s", label, fact);
    free(fact);
}

// Shows a progress line. A live one must not reach the edge of the terminal: it would wrap and could not be erased.
static void show(Progress* p, const char* line) {
    const int columns = p->live ? terminal_columns(p->fd) : 0;
    char* text = p->live ? xasprintf("%s%.*s", eraser(p), columns > 0 ? columns - 1 : 79, line)
                         : xasprintf("%s\n", line);
    emit(p, text);
    p->line_open = p->live;
    free(text);
}

// True if the next progress line is due. If so, it counts as shown now.
static bool line_is_due(Progress* p, double live_interval) {
    const double now = now_seconds();
    const double plain_interval = fmax(p->interval, fmin(PLAIN_FRACTION * (now - p->began), PLAIN_SLOWEST));
    if (p->quiet || now - p->shown < (p->live ? live_interval : plain_interval)) return false;
    p->shown = now;
    return true;
}

static TextLine duration(double seconds) {
    if (!(seconds >= 0 && seconds < 1e15)) return text_line("?");
    const long long s = llround(seconds), day = 86400;
    if (s < 60) return text_line("%llds", s);
    if (s < 3600) return text_line("%lldm%02llds", s / 60, s % 60);
    if (s < day) return text_line("%lldh%02lldm", s / 3600, s / 60 % 60);
    return text_line("%lldd%02lldh", s / day, s / 3600 % 24);
}

void progress_show(Progress* p, double done, const char* fmt, ...) {
    TextLine percent = {""}, eta = {""};
    if (!line_is_due(p, LIVE_INTERVAL)) return;
    va_list ap;
    va_start(ap, fmt);
    const TextLine text = vtext_line(fmt, ap);
    va_end(ap);
    if (!isnan(done)) percent = text_line("%5.1f%%  ", 100 * done);
    if (done > 0) eta = text_line("  ETA %s", duration((p->shown - p->started) * (1 - done) / done).text);
    show(p, text_line("%s%s%s", percent.text, text.text, eta.text).text);
}

// ---- Training steps ----

void progress_train(Progress* p, int64_t first, int64_t steps, int64_t micro_batches, int64_t tokens) {
    p->first = p->step = first;
    p->steps = steps;
    p->micro_batches = micro_batches;
    p->tokens = tokens;
}

// Completed steps of the run, including the completed part of the current one.
static double steps_done(const Progress* p) { return (double)p->step + p->done / (double)p->micro_batches; }

// From the mean time of a step since this process started, with its validation, sample and save.
static TextLine run_eta(const Progress* p) {
    const double seconds = (now_seconds() - p->run_started) / (steps_done(p) - (double)p->first);
    return duration(seconds * ((double)p->steps - steps_done(p)));
}

// Shows the current step. The bar is only shown on a terminal.
static void show_step(Progress* p, const char* micro_batch, const char* rest) {
    enum { BAR = 8 };
    const int filled = (int)(fmin(steps_done(p) / (double)p->steps, 1) * BAR);
    const TextLine bar = text_line(" [%.*s%*s]", filled, "########", BAR - filled, "");
    show(p, text_line("step %lld/%lld%s%s%s", (long long)p->step + (p->done > 0), (long long)p->steps, micro_batch,
                      p->live ? bar.text : "", rest).text);
}

void progress_micro_batch(Progress* p, double done) {
    char loss[32] = "";
    const double now = now_seconds(), all = (double)p->micro_batches;
    p->done = done;
    if (done == 0) p->step_started = now;
    if (p->run_started == 0) p->run_started = now;
    const double seconds = now - p->step_started;
    if (done == 0 || done == all || seconds < STEP_IS_LONG || !line_is_due(p, LIVE_INTERVAL)) return;
    const TextLine micro_batch = text_line("  micro-batch %.6g/%lld", done, (long long)p->micro_batches);
    if (p->last.step >= 0) snprintf(loss, sizeof loss, "  loss %.4f", plain_nan(p->last.train_loss));
    const TextLine rest = text_line("%s  step ETA %s  run ETA %s  %s tok/s", loss,
                                    duration(seconds * (all - done) / done).text, run_eta(p).text,
                                    human_count(done / all * (double)p->tokens / seconds).text);
    show_step(p, micro_batch.text, rest.text);
}

// step 120/800 [##      ]  loss 3.214512  ETA 1m32s  12.3K tok/s  38.2% MFU  333.0 ms  lr 2.900e-03  |g| 0.8143
void progress_step(Progress* p, const LogRow* row) {
    char mfu[32] = "";
    const bool first = p->last.step < 0, last = row->step >= p->steps;
    p->last = *row;
    p->step = row->step;
    p->done = 0;
    if (first || last) p->shown = -INFINITY;
    if (!line_is_due(p, LIVE_STEP_INTERVAL)) return;
    if (p->peak_tokens_per_s > 0)
        snprintf(mfu, sizeof mfu, "  %.1f%% MFU", 100 * row->tokens_per_s / p->peak_tokens_per_s);
    const TextLine rest = text_line("  loss %.6f  ETA %s  %s tok/s%s  %.1f ms  lr %.3e  |g| %.4f",
                                    plain_nan(row->train_loss), run_eta(p).text, human_count(row->tokens_per_s).text,
                                    mfu, row->ms, row->lr, plain_nan(row->grad_norm));
    show_step(p, "", rest.text);
    if (last) progress_end(p);
}
