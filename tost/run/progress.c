// progress.c: live and plain progress lines.
#include "run/progress.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/output.h"
#include "base/terminal.h"
#include "base/text.h"

enum { TEXT_CAP = 256, LINE_CAP = 1024 };   // bytes of progress_show's text and of a line
static const double LIVE_INTERVAL = 0.25, LIVE_STEP_INTERVAL = 0.1;           // seconds
static const double PLAIN_INTERVAL = 5, PLAIN_SLOWEST = 60, STDERR_INTERVAL = 30;
static const double PLAIN_FRACTION = 0.01;   // of the elapsed time, so that a long run has few lines
static const double STEP_IS_LONG = 1;        // seconds after which the micro-batches of a step are shown
static const double ANNOUNCE_AFTER = 3;      // seconds of training after which its duration is printed

Progress progress_new(FILE* out, bool quiet) {
    const int fd = fileno(out);
    const bool live = terminal_is_live(fd);
    const double now = now_seconds();
    return (Progress){.fd = fd, .live = live, .quiet = quiet, .began = now, .shown = now, .started = now,
                      .interval = fd == STDERR_FILENO ? STDERR_INTERVAL : PLAIN_INTERVAL, .last.step = -1};
}

void progress_start(Progress* p) { p->started = now_seconds(); }

// ---------------------------------------------------------------------------------------------
// Output

// Writes text, or drops it if the reader has stopped. If fd cannot be written (closed pipe, full disk), the work
// continues without progress output.
static void emit(Progress* p, const char* text) {
    char note[96] = "";
    if (p->quiet) return;
    if (p->missing > 0)
        snprintf(note, sizeof note, "%s(%lld line%s missing here: the output was not read)\n", p->cut ? "\n" : "",
                 (long long)p->missing, p->missing == 1 ? " is" : "s are");
    char* all = xasprintf("%s%s", note, text);
    const size_t n = strlen(all), written = output_write(p->fd, all, n, p->stopped ? 0 : OUTPUT_TIMEOUT);
    p->stopped = written < n;
    if (p->stopped) {
        p->failed = errno;
        p->quiet = p->failed != EAGAIN;
        p->missing += text[0] != '\n' && strchr(text, '\n');   // not a live line or its end
        p->cut = p->cut || written > 0;
    } else {
        p->missing = 0;
        p->cut = false;
    }
    free(all);
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

// The columns that a live line may use.
static int terminal_room(const Progress* p) {
    const int columns = terminal_columns(p->fd);
    return (columns > 0 ? columns : 80) - 1;
}

// The line as the terminal shows it: wrapped and with colors. free()
static char* styled_line(const Progress* p, const char* text) {
    static const struct { const char *indent, *color; } styles[] = {
        [PROGRESS_PLAIN] = {NULL, ""},
        [PROGRESS_FACT] = {"           ", "\033[2m"},
        [PROGRESS_SAMPLE] = {"  | ", ""},
        [PROGRESS_RESULT] = {"  ", "\033[1m"},
    };
    const char *indent = styles[p->style].indent, *color = terminal_color() ? styles[p->style].color : "";
    if (!p->live || !indent) return xstrdup(text);
    char* wrapped = wrap_text(text, 0, terminal_room(p), indent);
    char* line = xasprintf("%s%s%s", color, wrapped, *color ? "\033[0m" : "");
    free(wrapped);
    return line;
}

void progress_text(Progress* p, const char* fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    char* text = vprintable_text(fmt, ap);
    if (!p->quiet) {
        char *styled = styled_line(p, text), *line = xasprintf("%s%s\n", eraser(p), styled);
        emit(p, line);
        free(line);
        free(styled);
    }
    free(text);
    va_end(ap);
}

// Shows a progress line. On a terminal it must not reach the edge: it would wrap and could not be erased.
static void show(Progress* p, const char* line) {
    char* text = p->live ? xasprintf("%s%s", eraser(p), line) : xasprintf("%s\n", line);
    emit(p, text);
    p->line_open = p->live;
    free(text);
}

// True if the next progress line is due. If so, it counts as shown now.
static bool is_due(Progress* p, double live_interval) {
    const double now = now_seconds();
    const double plain_interval = fmax(p->interval, fmin(PLAIN_FRACTION * (now - p->began), PLAIN_SLOWEST));
    if (p->quiet || now - p->shown < (p->live ? live_interval : plain_interval)) return false;
    p->shown = now;
    return true;
}

static bool terminal_is_utf8(void) {
    const char* value = getenv("LC_ALL");
    if (!value || !*value) value = getenv("LC_CTYPE");
    if (!value || !*value) value = getenv("LANG");
    return value && (strcasestr(value, "UTF-8") || strcasestr(value, "UTF8"));
}

typedef struct { char text[32]; } Duration;

static Duration duration(double seconds) {
    Duration d = {"?"};
    if (!(seconds >= 0 && seconds < 1e15)) return d;
    const long long s = llround(seconds), day = 86400, year = 365 * day;
    if (s < 60) snprintf(d.text, sizeof d.text, "%llds", s);
    else if (s < 3600) snprintf(d.text, sizeof d.text, "%lldm%02llds", s / 60, s % 60);
    else if (s < day) snprintf(d.text, sizeof d.text, "%lldh%02lldm", s / 3600, s / 60 % 60);
    else if (s < year) snprintf(d.text, sizeof d.text, "%lldd%02lldh", s / day, s / 3600 % 24);
    else snprintf(d.text, sizeof d.text, "%lldy%03lldd", s / year, s / day % 365);
    return d;
}

void progress_show(Progress* p, double done, const char* fmt, ...) {
    char text[TEXT_CAP], percent[16] = "", eta[48] = "", line[LINE_CAP];
    if (!is_due(p, LIVE_INTERVAL)) return;
    va_list ap;
    va_start(ap, fmt);
    char* shown = vprintable_text(fmt, ap);
    va_end(ap);
    snprintf(text, sizeof text, "%s", shown);
    free(shown);
    if (!isnan(done)) snprintf(percent, sizeof percent, "%5.1f%%  ", 100 * done);
    if (done > 0) snprintf(eta, sizeof eta, "  ETA %s", duration((p->shown - p->started) * (1 - done) / done).text);
    const int room = p->live ? terminal_room(p) : LINE_CAP - 1;
    if ((int)(strlen(percent) + strlen(text) + strlen(eta)) > room) eta[0] = 0;
    snprintf(line, (size_t)(room < LINE_CAP ? room + 1 : LINE_CAP), "%s%s%s", percent, text, eta);
    show(p, line);
}

// ---------------------------------------------------------------------------------------------
// Training steps

void progress_train(Progress* p, int64_t first, int64_t steps, int64_t micro_batches, int64_t tokens) {
    p->first = p->step = first;
    p->steps = steps;
    p->micro_batches = micro_batches;
    p->tokens = tokens;
}

// Completed steps of the run, including the completed part of the current one.
static double steps_done(const Progress* p) { return (double)p->step + p->done / (double)p->micro_batches; }

// Mean time of a step since this process started, with its validation, sample and save.
static double seconds_per_step(const Progress* p) {
    return (now_seconds() - p->run_started) / (steps_done(p) - (double)p->first);
}

static Duration run_eta(const Progress* p) {
    return duration(seconds_per_step(p) * ((double)p->steps - steps_done(p)));
}

// A progress bar of `columns` columns, including its ends; drawn in eighths of a column if the terminal supports UTF-8.
static int format_bar(char* out, size_t cap, int columns, double done) {
    static const char* const eighths[] = {" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"};
    const bool utf8 = terminal_is_utf8();
    const int filled = (int)(done * (columns - 2) * 8);
    int n = snprintf(out, cap, "%s", utf8 ? " ▕" : " [");
    for (int i = 0; i < columns - 2; i++) {
        const int part = filled - 8 * i;
        n += snprintf(out + n, cap - (size_t)n, "%s",
                      utf8 ? eighths[part < 0 ? 0 : part > 8 ? 8 : part] : part >= 8 ? "#" : " ");
    }
    return n + snprintf(out + n, cap - (size_t)n, "%s", utf8 ? "▏" : "]");
}

// The fields of a live line, in display order. Those that do not fit are dropped, the least important first.
enum { F_MICRO_BATCH, F_BAR, F_LOSS, F_LR, F_NORM, F_RATE, F_MFU, F_STEP_ETA, F_ETA, FIELDS };
enum { FIELD_CAP = 64, BAR_MIN = 6, BAR_MAX = 24 };   // bytes; columns
static const int dropped_first[FIELDS] = {F_LR, F_NORM, F_MFU, F_RATE, F_BAR, F_STEP_ETA, F_ETA, F_LOSS, F_MICRO_BATCH};

// "  38.2% MFU", or nothing if the peak is unknown.
static void format_mfu(char* out, size_t cap, const Progress* p, double tokens_per_s) {
    out[0] = 0;
    if (p->peak_tokens_per_s > 0) snprintf(out, cap, "  %.1f%% MFU", 100 * tokens_per_s / p->peak_tokens_per_s);
}

// Formats the fields after a step, each with its leading spaces. The bar is a placeholder of minimum width.
static void format_step(char fields[FIELDS][FIELD_CAP], const Progress* p) {
    char rate[32];
    const LogRow* row = &p->last;
    const double tokens_per_s = row->tokens_per_s * (row->ms > 0 ? row->ms / p->smoothed_ms : 1);
    snprintf(fields[F_BAR], FIELD_CAP, " %*s", BAR_MIN, "");
    snprintf(fields[F_LOSS], FIELD_CAP, " loss %.4f", plain_nan(row->train_loss));
    snprintf(fields[F_LR], FIELD_CAP, "  lr %.1e", row->lr);
    snprintf(fields[F_NORM], FIELD_CAP, "  |g| %.2f", plain_nan(row->grad_norm));
    snprintf(fields[F_RATE], FIELD_CAP, "  %s tok/s", human_count(rate, tokens_per_s));
    format_mfu(fields[F_MFU], FIELD_CAP, p, tokens_per_s);
    snprintf(fields[F_ETA], FIELD_CAP, "  ETA %s", run_eta(p).text);
}

// Formats the fields within a step. The loss is that of the previous step.
static void format_micro_batch(char fields[FIELDS][FIELD_CAP], const Progress* p) {
    char rate[32];
    const double seconds = now_seconds() - p->step_started, done = p->done / (double)p->micro_batches;
    snprintf(fields[F_MICRO_BATCH], FIELD_CAP, "  micro-batch %.*f/%lld", p->done == floor(p->done) ? 0 : 2, p->done,
             (long long)p->micro_batches);
    snprintf(fields[F_BAR], FIELD_CAP, " %*s", BAR_MIN, "");
    if (p->last.step >= 0) snprintf(fields[F_LOSS], FIELD_CAP, "  loss %.4f", plain_nan(p->last.train_loss));
    snprintf(fields[F_RATE], FIELD_CAP, "  %s tok/s", human_count(rate, done * (double)p->tokens / seconds));
    snprintf(fields[F_STEP_ETA], FIELD_CAP, "  step ETA %s", duration(seconds * (1 - done) / done).text);
    snprintf(fields[F_ETA], FIELD_CAP, "  run ETA %s", run_eta(p).text);
}

// step 120/800 ▕███   ▏ loss 3.2145  lr 2.9e-03  |g| 0.81  12.3K tok/s  38.2% MFU  ETA 1m32s
static void show_live(Progress* p, int64_t step, char fields[FIELDS][FIELD_CAP]) {
    char line[LINE_CAP];
    const int room = terminal_room(p);
    int used = snprintf(line, sizeof line, "step %lld/%lld", (long long)step, (long long)p->steps), n = used;
    for (int i = 0; i < FIELDS; i++) used += (int)strlen(fields[i]);
    for (int i = 0; i < FIELDS && used > room; i++) {
        used -= (int)strlen(fields[dropped_first[i]]);
        fields[dropped_first[i]][0] = 0;
    }
    if (n > room) line[n = room] = 0;
    const int columns = BAR_MIN + room - used < BAR_MAX ? BAR_MIN + room - used : BAR_MAX;
    for (int i = 0; i < FIELDS; i++) {
        const size_t cap = sizeof line - (size_t)n;
        const double done = fmin(steps_done(p) / (double)p->steps, 1);
        if (i == F_BAR && fields[i][0]) n += format_bar(line + n, cap, columns, done);
        else n += snprintf(line + n, cap, "%s", fields[i]);
    }
    show(p, line);
}

// Prints once, after the first steps, how long the run will take.
static void announce(Progress* p) {
    const double seconds = seconds_per_step(p), left = (double)p->steps - steps_done(p);
    const double micro_batches = (steps_done(p) - (double)p->first) * (double)p->micro_batches;
    char each[32];
    if (p->announced || now_seconds() - p->run_started < ANNOUNCE_AFTER || micro_batches < 3) return;
    p->announced = true;
    if (seconds * left < ANNOUNCE_AFTER) return;
    if (seconds < 10) snprintf(each, sizeof each, "%.3g s", seconds);
    else snprintf(each, sizeof each, "%s", duration(seconds).text);
    p->style = PROGRESS_FACT;
    progress_text(p, "%-11sabout %s for %lld steps, %s each", "time",
                  duration(seconds * (double)(p->steps - p->first)).text, (long long)(p->steps - p->first), each);
    p->style = PROGRESS_PLAIN;
}

void progress_micro_batch(Progress* p, double done) {
    char fields[FIELDS][FIELD_CAP] = {{0}}, line[LINE_CAP];
    const double now = now_seconds();
    p->done = done;
    if (done == 0) p->step_started = now;
    if (p->run_started == 0) p->run_started = now;
    if (done == 0 || done == (double)p->micro_batches || now - p->step_started < STEP_IS_LONG) return;
    announce(p);
    if (!is_due(p, LIVE_INTERVAL)) return;
    format_micro_batch(fields, p);
    if (p->live) {
        show_live(p, p->step + 1, fields);
        return;
    }
    snprintf(line, sizeof line, "step %lld/%lld%s%s%s%s", (long long)(p->step + 1), (long long)p->steps,
             fields[F_MICRO_BATCH], fields[F_RATE], fields[F_STEP_ETA], fields[F_ETA]);
    show(p, line);
}

static void show_plain_step(Progress* p) {
    char line[LINE_CAP], eta[48] = "", mfu[32];
    const LogRow* row = &p->last;
    const int digits = snprintf(NULL, 0, "%lld", (long long)p->steps);
    if (p->step < p->steps) snprintf(eta, sizeof eta, "  ETA %s", run_eta(p).text);
    format_mfu(mfu, sizeof mfu, p, row->tokens_per_s);
    snprintf(line, sizeof line, "step %*lld/%lld  loss %9.6f  |g| %8.4f  lr %.3e  %8.1f ms  %9.0f tok/s%s%s", digits,
             (long long)p->step, (long long)p->steps, plain_nan(row->train_loss), plain_nan(row->grad_norm), row->lr,
             row->ms, row->tokens_per_s, mfu, eta);
    show(p, line);
}

void progress_step(Progress* p, const LogRow* row) {
    char fields[FIELDS][FIELD_CAP] = {{0}};
    const bool first = p->last.step < 0, last = row->step + 1 >= p->steps;
    p->last = *row;
    p->step = row->step + 1;
    p->done = 0;
    p->smoothed_ms = first ? row->ms : 0.9 * p->smoothed_ms + 0.1 * row->ms;
    announce(p);
    if (first || last) p->shown = -INFINITY;
    if (!is_due(p, LIVE_STEP_INTERVAL)) return;
    if (p->live) {
        format_step(fields, p);
        show_live(p, p->step, fields);
    } else show_plain_step(p);
    if (last) progress_end(p);
}
