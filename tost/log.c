// log.c: log.csv for programs, lines or a live bar for people.
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

// ---------------------------------------------------------------------------------------------
// log.csv

static const char header[] = "step,tokens,train_loss,val_loss,lr,grad_norm,ms,tokens_per_s\n";
enum { COMMAS = 7 };

// The step of the row that is line[0..n), or -1 where this is no row.
static int64_t row_step(const char* line, size_t n) {
    int commas = 0;
    for (size_t i = 0; i < n; i++) commas += line[i] == ',';
    int64_t step = 0;
    size_t digits = 0;
    for (; digits < n && digits < 18 && line[digits] >= '0' && line[digits] <= '9'; digits++)
        step = step * 10 + (line[digits] - '0');
    return commas == COMMAS && digits > 0 && line[digits] == ',' ? step : -1;
}

static bool foreign_log(const char* path, TostError* err) {
    return tost_error(err, "%s: line 1 is not that of a log.csv; move the file away for a new one", path);
}

// Sets *keep to the length of what stands before the row of resume_step. Rows must be gapless up to there.
static bool find_cut(size_t* keep, const Bytes* text, int64_t resume_step, const char* path, TostError* err) {
    static const char way_out[] = "take an earlier checkpoint, or move the log away to start a new one";
    const size_t head = sizeof header - 1;
    *keep = 0;
    if (memcmp(text->data, header, text->size < head ? text->size : head) != 0)
        return foreign_log(path, err);
    if (text->size < head) return true;
    int64_t last = -1;
    size_t at = head;
    long line = 2;
    for (const char* end; (end = memchr(text->data + at, '\n', text->size - at)); line++) {
        const size_t next = (size_t)(end - text->data) + 1;
        const int64_t step = row_step(text->data + at, next - 1 - at);
        if (step >= resume_step) break;
        if (step < 0) return tost_error(err, "%s: line %ld is not a row of numbers; %s", path, line, way_out);
        if (last >= 0 && step != last + 1)
            return tost_error(err, "%s: line %ld: step %lld follows step %lld; %s", path, line,
                              (long long)step, (long long)last, way_out);
        last = step;
        at = next;
    }
    *keep = at;
    if (last >= 0 && last != resume_step - 1)
        return tost_error(err, "%s: line %ld is of step %lld, the last before step %lld, where the run goes "
                          "on; %s", path, line - 1, (long long)last, (long long)resume_step, way_out);
    return true;
}

// The first n bytes of a log: its header, or as much of it as an end in the middle left, perhaps with the zeros
// that a power cut makes of bytes on their way.
static bool begins_log(const char* head, size_t n) {
    size_t i = 0;
    while (i < n && head[i] == header[i]) i++;
    while (i < n && head[i] == 0) i++;
    return i == n;
}

bool log_check_fresh(const char* path, bool overwrite, TostError* err) {
    struct stat st;
    char head[sizeof header];
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size == 0) return true;
    if (!overwrite)
        return tost_error(err, "%s is there already: give another --log, or replace its run by --out DIR "
                          "--overwrite", path);
    FILE* file = fopen(path, "rb");
    if (!file) return tost_error(err, "%s: cannot be opened: %s", path, strerror(errno));
    const size_t n = fread(head, 1, sizeof header - 1, file);
    fclose(file);
    return begins_log(head, n) || foreign_log(path, err);
}

// Writes what waits, as far as it is taken.
static bool write_waiting(LogFile* log, TostError* err) {
    size_t done = 0;
    int why = 0;
    while (done < log->n_waiting && !why) {
        const ssize_t n = write(log->fd, log->waiting + done, log->n_waiting - done);
        if (n > 0) done += (size_t)n;
        else if (n == 0 || errno != EINTR) why = n == 0 ? ENOSPC : errno;
    }
    if (!log->regular) done = log->n_waiting;
    if (done > 0) memmove(log->waiting, log->waiting + done, log->n_waiting -= done);
    if (log->n_waiting == 0) log->rows_waiting = 0;
    return !why || tost_error(err, "%s: cannot be written: %s", log->path, strerror(why));
}

static bool write_text(LogFile* log, const char* text, TostError* err) {
    const size_t n = strlen(text);
    log->waiting = xrealloc(log->waiting, log->n_waiting + n);
    memcpy(log->waiting + log->n_waiting, text, n);
    log->n_waiting += n;
    return write_waiting(log, err);
}

// Makes the file empty, or cuts it back to what stands before resume_step. *empty: not even the header is left.
static bool cut_back(bool* empty, LogFile* log, int64_t resume_step, TostError* err) {
    size_t keep = 0;
    if (resume_step >= 0) {
        Bytes text;
        if (!read_file(&text, log->path, err)) return false;
        const bool ok = find_cut(&keep, &text, resume_step, log->path, err);
        free(text.data);
        if (!ok) return false;
    }
    *empty = keep == 0;
    log->synced = (int64_t)keep;
    return (ftruncate(log->fd, (off_t)keep) == 0 && lseek(log->fd, 0, SEEK_END) >= 0)
        || tost_error(err, "%s: cannot be cut back to %zu bytes: %s", log->path, keep, strerror(errno));
}

static bool begin(LogFile* log, int64_t resume_step, TostError* err) {
    bool empty = true;
    if (log->regular && flock(log->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return tost_error(err, "%s is being written by another run: give another --log", log->path);
    if (log->regular && !cut_back(&empty, log, resume_step, err)) return false;
    if (empty && !write_text(log, header, err)) return false;
    if (!log->regular) return true;
    char* dir = path_dir(log->path);
    const bool ok = sync_dir(dir, err);   // the file's name must outlast a power cut as its rows do
    free(dir);
    return ok;
}

static void drop(LogFile* log) {
    free(log->path);
    free(log->waiting);
    *log = (LogFile){0};
}

bool log_open(LogFile* log, const char* path, int64_t resume_step, TostError* err) {
    struct stat st;
    const bool regular = stat(path, &st) != 0 || S_ISREG(st.st_mode);
    const int fd = open(path, O_CREAT | O_CLOEXEC | (regular ? O_RDWR : O_WRONLY | O_APPEND), 0666);
    *log = (LogFile){0};
    if (fd < 0) return tost_error(err, "%s: cannot be opened for writing: %s", path, strerror(errno));
    *log = (LogFile){.path = xstrdup(path), .fd = fd, .regular = regular};
    if (begin(log, resume_step, err)) return true;
    close(fd);
    drop(log);
    return false;
}

// NaN without the sign that printf may give it.
static double plain_nan(double x) { return isnan(x) ? NAN : x; }

char* log_row_text(const LogRow* row) {
    char val[64] = "";
    if (!isnan(row->val_loss)) snprintf(val, sizeof val, "%.9f", row->val_loss);
    return xasprintf("%lld,%lld,%.9f,%s,%.9e,%.9f,%.3f,%.1f\n", (long long)row->step, (long long)row->tokens,
                     plain_nan(row->train_loss), val, row->lr, plain_nan(row->grad_norm), row->ms,
                     row->tokens_per_s);
}

bool log_row_parse(LogRow* row, const char* text) {
    double field[COMMAS + 1];
    const char* p = text;
    for (int i = 0; i <= COMMAS; i++) {
        char* end;
        field[i] = *p == ',' ? NAN : strtod(p, &end);
        if (*p != ',' && (end == p || *end != (i < COMMAS ? ',' : '\n'))) return false;
        p = *p == ',' ? p + 1 : end + 1;
    }
    if (*p || row_step(text, strlen(text)) < 0 || !(field[1] >= 0 && field[1] < 9e18)) return false;
    *row = (LogRow){.step = row_step(text, strlen(text)), .tokens = strtoll(strchr(text, ',') + 1, NULL, 10),
                    .train_loss = field[2], .val_loss = field[3], .lr = field[4], .grad_norm = field[5],
                    .ms = field[6], .tokens_per_s = field[7]};
    return true;
}

bool log_row(LogFile* log, const LogRow* row, TostError* err) {
    char* text = log_row_text(row);
    log->rows_waiting++;
    const bool ok = write_text(log, text, err);
    free(text);
    return ok;
}

// After a sync that failed the kernel may hold unwritten pages for written: the rows since the last good one
// are put into the file again, so that the next sync has them to write.
static bool write_again(LogFile* log) {
    char block[1 << 16];
    ssize_t n;
    for (off_t at = log->synced; (n = pread(log->fd, block, sizeof block, at)) > 0; at += n)
        if (pwrite(log->fd, block, (size_t)n, at) != n) return false;
    return n == 0;
}

bool log_sync(LogFile* log, TostError* err) {
    if (!write_waiting(log, err)) return false;
    if (!log->regular) return true;   // a device or a pipe has no need of it
    const bool ok = (!log->sync_failed || write_again(log)) && fsync(log->fd) == 0;
    log->sync_failed = !ok;
    if (!ok) return tost_error(err, "%s: cannot be synced: %s", log->path, strerror(errno));
    log->synced = lseek(log->fd, 0, SEEK_END);
    return true;
}

bool log_close(LogFile* log, TostError* err) {
    if (!log->path) return true;
    bool ok = write_waiting(log, err);
    if (close(log->fd) != 0 && ok)
        ok = tost_error(err, "%s: cannot be closed: %s", log->path, strerror(errno));
    drop(log);
    return ok;
}

// ---------------------------------------------------------------------------------------------
// Progress

static const char erase_line[] = "\r\033[K";

Progress progress_new(int64_t first_step, int64_t steps, bool quiet) {
    const char* term = getenv("TERM");
    bool live = isatty(STDOUT_FILENO) && term && strcmp(term, "dumb") != 0;
    return (Progress){.out = stdout, .live = live, .quiet = quiet, .first_step = first_step, .steps = steps,
                      .started = now_seconds()};
}

static int terminal_width(FILE* out) {
    struct winsize size;
    return ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

static bool terminal_is_utf8(void) {
    const char* names[] = {"LC_ALL", "LC_CTYPE", "LANG"};   // the first that is set decides
    for (size_t i = 0; i < countof(names); i++) {
        const char* value = getenv(names[i]);
        if (value && value[0]) return strcasestr(value, "UTF-8") || strcasestr(value, "UTF8");
    }
    return false;
}

static void format_duration(char* out, size_t cap, double seconds) {
    if (!(seconds >= 0 && seconds < 1e9)) {
        snprintf(out, cap, "?");
        return;
    }
    const long s = (long)(seconds + 0.5);
    if (s < 60) snprintf(out, cap, "%lds", s);
    else if (s < 3600) snprintf(out, cap, "%ldm%02lds", s / 60, s % 60);
    else if (s < 86400) snprintf(out, cap, "%ldh%02ldm", s / 3600, s / 60 % 60);
    else snprintf(out, cap, "%ldd%02ldh", s / 86400, s / 3600 % 24);
}

// tokens/s with a unit: "950", "12.3k", "1.25M".
static void format_rate(char* out, size_t cap, double rate) {
    if (rate < 1e3) snprintf(out, cap, "%.0f", rate);
    else if (rate < 1e6) snprintf(out, cap, "%.1fk", rate / 1e3);
    else snprintf(out, cap, "%.2fM", rate / 1e6);
}

// A bar between two marks, `columns` wide in all, in eighths of a column where the terminal knows UTF-8.
static void format_bar(char* out, size_t cap, int columns, double done, bool utf8) {
    static const char* const eighths[] = {" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"};
    const int inner = columns - 2;
    const int filled = (int)(done * inner * 8);
    size_t n = (size_t)snprintf(out, cap, "%s", utf8 ? "▕" : "[");
    for (int i = 0; i < inner && n < cap; i++) {
        int part = filled - 8 * i;
        part = part < 0 ? 0 : part > 8 ? 8 : part;
        n += (size_t)snprintf(out + n, cap - n, "%s", utf8 ? eighths[part] : part == 8 ? "#" : " ");
    }
    if (n < cap) snprintf(out + n, cap - n, "%s", utf8 ? "▏" : "]");
}

// Model FLOPs utilisation in percent; 0 where the peak is not known.
static double utilisation(const Progress* p, double tokens_per_s) {
    return p->peak_flops > 0 ? 100 * p->flops_per_token * tokens_per_s / p->peak_flops : 0;
}

// What the live line says after the step, in the order shown. A line that reached the terminal's edge would
// wrap and could not be erased: what does not fit is left out, the least wanted first.
enum { F_BAR, F_LOSS, F_LR, F_NORM, F_RATE, F_MFU, F_ETA, FIELDS };
enum { FIELD_CAP = 128, BAR_MIN = 6, BAR_MAX = 24 };   // bytes; columns
static const int left_out_first[FIELDS] = {F_MFU, F_LR, F_NORM, F_RATE, F_BAR, F_ETA, F_LOSS};

// Each field with its leading blank; the bar as long as it is at least.
static void format_fields(char fields[FIELDS][FIELD_CAP], const Progress* p, const LogRow* row) {
    const int64_t done = row->step + 1 - p->first_step, left = p->steps - row->step - 1;
    char rate[32], eta[32];
    const double tokens_per_s = row->tokens_per_s * (row->ms > 0 ? row->ms / p->smoothed_ms : 1);
    const double a_step = done > 0 ? (now_seconds() - p->started) / (double)done : NAN;   // validation too
    format_rate(rate, sizeof rate, tokens_per_s);
    format_duration(eta, sizeof eta, a_step * (double)left);
    snprintf(fields[F_BAR], FIELD_CAP, " %*s", BAR_MIN, "");
    snprintf(fields[F_LOSS], FIELD_CAP, " loss %.4f", plain_nan(row->train_loss));
    snprintf(fields[F_LR], FIELD_CAP, "  lr %.1e", row->lr);
    snprintf(fields[F_NORM], FIELD_CAP, "  |g| %.2f", plain_nan(row->grad_norm));
    snprintf(fields[F_RATE], FIELD_CAP, "  %s tok/s", rate);
    fields[F_MFU][0] = 0;
    if (p->peak_flops > 0) snprintf(fields[F_MFU], FIELD_CAP, "  MFU %.0f%%", utilisation(p, tokens_per_s));
    snprintf(fields[F_ETA], FIELD_CAP, "  ETA %s", eta);
}

// step 120/800 ▕███   ▏ loss 3.2145  lr 2.9e-03  |g| 0.81  12.3k tok/s  ETA 1m32s
static void print_live(Progress* p, const LogRow* row) {
    char head[64], fields[FIELDS][FIELD_CAP];
    const int room = terminal_width(p->out) - 1;
    format_fields(fields, p, row);
    int used = snprintf(head, sizeof head, "step %lld/%lld", (long long)(row->step + 1), (long long)p->steps);
    for (int i = 0; i < FIELDS; i++) used += (int)strlen(fields[i]);
    for (int i = 0; i < FIELDS && used > room; i++) {
        used -= (int)strlen(fields[left_out_first[i]]);
        fields[left_out_first[i]][0] = 0;
    }
    if (fields[F_BAR][0]) {
        const int columns = BAR_MIN + room - used < BAR_MAX ? BAR_MIN + room - used : BAR_MAX;
        const double done = (double)(row->step + 1) / (double)p->steps;
        format_bar(fields[F_BAR] + 1, FIELD_CAP - 1, columns, done < 1 ? done : 1, terminal_is_utf8());
    }
    fprintf(p->out, "%s%.*s", p->line_open ? erase_line : "", room, head);
    for (int i = 0; i < FIELDS; i++) fputs(fields[i], p->out);
    p->line_open = true;
    if (row->step + 1 >= p->steps) progress_end(p);
}

static void print_line(const Progress* p, const LogRow* row) {
    const int digits = snprintf(NULL, 0, "%lld", (long long)p->steps);
    fprintf(p->out, "step %*lld/%lld  loss %9.6f  |g| %8.4f  lr %.3e  %8.1f ms  %9.0f tok/s", digits,
            (long long)(row->step + 1), (long long)p->steps, plain_nan(row->train_loss),
            plain_nan(row->grad_norm), row->lr, row->ms, row->tokens_per_s);
    if (p->peak_flops > 0) fprintf(p->out, "  MFU %4.1f%%", utilisation(p, row->tokens_per_s));
    fputc('\n', p->out);
}

// Where out takes no more (a reader that left, a full disk), the work it tells of goes on unseen.
static void flush_out(Progress* p) {
    if (fflush(p->out) == 0 && !ferror(p->out)) return;
    p->failed = errno ? errno : EIO;
    p->quiet = true;
    p->line_open = false;
}

void progress_step(Progress* p, const LogRow* row) {
    p->smoothed_ms = p->smoothed_ms > 0 ? 0.9 * p->smoothed_ms + 0.1 * row->ms : row->ms;
    if (p->quiet) return;
    if (p->live) print_live(p, row);
    else print_line(p, row);
    flush_out(p);
}

void progress_text(Progress* p, const char* fmt, ...) {
    if (p->quiet) return;
    if (p->line_open) fputs(erase_line, p->out);
    p->line_open = false;
    va_list ap;
    va_start(ap, fmt);
    vfprintf(p->out, fmt, ap);
    va_end(ap);
    fputc('\n', p->out);
    flush_out(p);
}

void progress_end(Progress* p) {
    if (!p->line_open) return;
    fputc('\n', p->out);
    flush_out(p);
    p->line_open = false;
}
