// progress.c: live and plain progress lines.
#include "progress.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { TEXT_CAP = 256 };   // bytes of progress_show's text

Progress progress_new(FILE* out, bool quiet) {
    const char* term = getenv("TERM");
    const bool live = isatty(fileno(out)) && term && strcmp(term, "dumb") != 0;
    const double now = now_seconds();
    return (Progress){.out = out, .live = live, .quiet = quiet, .started = now, .shown = now};
}

// ---------------------------------------------------------------------------------------------
// Lines

// If out cannot be written (closed pipe, full disk), the work continues without progress output.
static void flush_out(Progress* p) {
    if (fflush(p->out) == 0 && !ferror(p->out)) return;
    p->failed = errno ? errno : EIO;
    p->quiet = true;
    p->line_open = false;
}

void progress_erase(Progress* p) {
    if (!p->line_open) return;
    fputs("\r\033[K", p->out);
    p->line_open = false;
}

void progress_end(Progress* p) {
    if (!p->line_open) return;
    fputc('\n', p->out);
    p->line_open = false;
    flush_out(p);
}

void progress_text(Progress* p, const char* fmt, ...) {
    progress_erase(p);
    if (p->quiet) return;
    va_list ap;
    va_start(ap, fmt);
    char* line = vprintable_text(fmt, ap);
    va_end(ap);
    fprintf(p->out, "%s\n", line);
    free(line);
    flush_out(p);
}

static int terminal_width(FILE* out) {
    struct winsize size;
    return ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

static bool terminal_is_utf8(void) {
    const char* value = getenv("LC_ALL");
    if (!value || !*value) value = getenv("LC_CTYPE");
    if (!value || !*value) value = getenv("LANG");
    return value && (strcasestr(value, "UTF-8") || strcasestr(value, "UTF8"));
}

static void format_duration(char* out, size_t cap, double seconds) {
    if (!(seconds >= 0 && seconds < 1e9)) {
        snprintf(out, cap, "?");
        return;
    }
    const long s = lround(seconds);
    if (s < 60) snprintf(out, cap, "%lds", s);
    else if (s < 3600) snprintf(out, cap, "%ldm%02lds", s / 60, s % 60);
    else if (s < 86400) snprintf(out, cap, "%ldh%02ldm", s / 3600, s / 60 % 60);
    else snprintf(out, cap, "%ldd%02ldh", s / 86400, s / 3600 % 24);
}

void progress_show(Progress* p, double done, const char* fmt, ...) {
    char text[TEXT_CAP], percent[16] = "", left[32], eta[48] = "";
    const double now = now_seconds();
    if (p->quiet || now - p->shown < (p->live ? 0.25 : 30)) return;
    p->shown = now;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!isnan(done)) {
        format_duration(left, sizeof left, (now - p->started) * (1 - done) / done);
        snprintf(percent, sizeof percent, "%5.1f%%  ", 100 * done);
        snprintf(eta, sizeof eta, "  ETA %s", left);
    }
    progress_erase(p);
    char *shown = printable_text(text), *line = xasprintf("%s%s%s", percent, shown, eta);
    if (p->live) fprintf(p->out, "%.*s", terminal_width(p->out) - 1, line);   // a longer line would wrap
    else fprintf(p->out, "%s\n", line);
    free(shown);
    free(line);
    p->line_open = p->live;
    flush_out(p);
}

// ---------------------------------------------------------------------------------------------
// Training steps

// A progress bar of `columns` columns, including its ends; drawn in eighths of a column if the terminal supports UTF-8.
static void print_bar(FILE* out, int columns, double done) {
    static const char* const eighths[] = {" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"};
    const bool utf8 = terminal_is_utf8();
    const int filled = (int)(done * (columns - 2) * 8);
    fputs(utf8 ? " ▕" : " [", out);
    for (int i = 0; i < columns - 2; i++) {
        const int part = filled - 8 * i;
        fputs(utf8 ? eighths[part < 0 ? 0 : part > 8 ? 8 : part] : part >= 8 ? "#" : " ", out);
    }
    fputs(utf8 ? "▏" : "]", out);
}

// The fields of the live line, in display order. A line that reaches the terminal's edge would wrap and could not be
// erased, so fields that do not fit are dropped, the least important first.
enum { F_BAR, F_LOSS, F_LR, F_NORM, F_RATE, F_ETA, FIELDS };
enum { FIELD_CAP = 64, BAR_MIN = 6, BAR_MAX = 24 };   // bytes; columns
static const int dropped_first[FIELDS] = {F_LR, F_NORM, F_RATE, F_BAR, F_ETA, F_LOSS};

// Formats each field with its leading spaces. The bar is a placeholder of minimum width.
static void format_fields(char fields[FIELDS][FIELD_CAP], const Progress* p, const LogRow* row, int64_t steps) {
    char rate[32], eta[32];
    const double seconds_per_step = (now_seconds() - p->started) / (double)p->steps_done;   // validation and saves too
    const double tokens_per_s = row->tokens_per_s * (row->ms > 0 ? row->ms / p->smoothed_ms : 1);
    format_duration(eta, sizeof eta, seconds_per_step * (double)(steps - row->step - 1));
    snprintf(fields[F_BAR], FIELD_CAP, " %*s", BAR_MIN, "");
    snprintf(fields[F_LOSS], FIELD_CAP, " loss %.4f", plain_nan(row->train_loss));
    snprintf(fields[F_LR], FIELD_CAP, "  lr %.1e", row->lr);
    snprintf(fields[F_NORM], FIELD_CAP, "  |g| %.2f", plain_nan(row->grad_norm));
    snprintf(fields[F_RATE], FIELD_CAP, "  %s tok/s", human_count(rate, tokens_per_s));
    snprintf(fields[F_ETA], FIELD_CAP, "  ETA %s", eta);
}

// step 120/800 ▕███   ▏ loss 3.2145  lr 2.9e-03  |g| 0.81  12.3K tok/s  ETA 1m32s
static void print_live_step(Progress* p, const LogRow* row, int64_t steps) {
    char head[64], fields[FIELDS][FIELD_CAP];
    const int room = terminal_width(p->out) - 1;
    format_fields(fields, p, row, steps);
    int used = snprintf(head, sizeof head, "step %lld/%lld", (long long)(row->step + 1), (long long)steps);
    for (int i = 0; i < FIELDS; i++) used += (int)strlen(fields[i]);
    for (int i = 0; i < FIELDS && used > room; i++) {
        used -= (int)strlen(fields[dropped_first[i]]);
        fields[dropped_first[i]][0] = 0;
    }
    const int columns = BAR_MIN + room - used < BAR_MAX ? BAR_MIN + room - used : BAR_MAX;
    progress_erase(p);
    fprintf(p->out, "%.*s", room, head);
    if (fields[F_BAR][0]) print_bar(p->out, columns, fmin((double)(row->step + 1) / (double)steps, 1));
    for (int i = F_BAR + 1; i < FIELDS; i++) fputs(fields[i], p->out);
    p->line_open = true;
}

static void print_plain_step(const Progress* p, const LogRow* row, int64_t steps) {
    const int digits = snprintf(NULL, 0, "%lld", (long long)steps);
    fprintf(p->out, "step %*lld/%lld  loss %9.6f  |g| %8.4f  lr %.3e  %8.1f ms  %9.0f tok/s\n", digits,
            (long long)(row->step + 1), (long long)steps, plain_nan(row->train_loss), plain_nan(row->grad_norm),
            row->lr, row->ms, row->tokens_per_s);
}

void progress_step(Progress* p, const LogRow* row, int64_t steps) {
    if (p->steps_done++ == 0) p->started = now_seconds() - 1e-3 * row->ms;
    p->smoothed_ms = p->smoothed_ms > 0 ? 0.9 * p->smoothed_ms + 0.1 * row->ms : row->ms;
    if (p->quiet) return;
    if (p->live) print_live_step(p, row, steps);
    else print_plain_step(p, row, steps);
    flush_out(p);
    if (row->step + 1 >= steps) progress_end(p);
}
