// log.c: log.csv.
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char header[] = "step,tokens,train_loss,val_loss,lr,grad_norm,ms,tokens_per_s\n";
enum { COMMAS = 7 };

// The step of the row line[0..n), or -1 if it is not a row.
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
    return tost_error(err, "%s: line 1 is not the header of a log.csv; move the file away to start a new log", path);
}

// Sets *keep to the number of bytes before the row of resume_step. The rows before it must have no gaps.
static bool find_end(size_t* keep, const Bytes* text, int64_t resume_step, const char* path, TostError* err) {
    static const char remedy[] = "use an earlier checkpoint, or move the log away to start a new one";
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
        if (step < 0) return tost_error(err, "%s: line %ld is not a row of numbers; %s", path, line, remedy);
        if (last >= 0 && step != last + 1)
            return tost_error(err, "%s: line %ld: step %lld follows step %lld; %s", path, line,
                              (long long)step, (long long)last, remedy);
        last = step;
        at = next;
    }
    *keep = at;
    if (last >= 0 && last != resume_step - 1)
        return tost_error(err, "%s: line %ld is step %lld, but the run resumes at step %lld: rows are missing; %s",
                          path, line - 1, (long long)last, (long long)resume_step, remedy);
    return true;
}

// True if the n bytes are a complete or truncated header, possibly followed by zeros: a power failure can leave zeros
// in place of bytes that did not reach the disk.
static bool starts_log(const char* head, size_t n) {
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
        return tost_error(err, "%s already exists: give another --log, or replace its run with --out DIR --overwrite",
                          path);
    FILE* file = fopen(path, "rb");
    if (!file) return tost_error(err, "%s: cannot be opened: %s", path, strerror(errno));
    const size_t n = fread(head, 1, sizeof header - 1, file);
    const bool busy = flock(fileno(file), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    fclose(file);
    if (busy) return tost_error(err, "%s is being written by another run: give another --log", path);
    return starts_log(head, n) || foreign_log(path, err);
}

// Writes as many pending bytes as possible.
static bool write_pending(LogFile* log, TostError* err) {
    size_t done = 0;
    int error = 0;
    while (done < log->n_pending && !error) {
        const ssize_t n = write(log->fd, log->pending + done, log->n_pending - done);
        if (n > 0) done += (size_t)n;
        else if (n == 0 || errno != EINTR) error = n == 0 ? ENOSPC : errno;
    }
    if (!log->regular) done = log->n_pending;
    if (done > 0) memmove(log->pending, log->pending + done, log->n_pending -= done);
    if (log->n_pending == 0) log->pending_rows = 0;
    return !error || tost_error(err, "%s: cannot be written: %s", log->path, strerror(error));
}

static bool write_text(LogFile* log, const char* text, TostError* err) {
    const size_t n = strlen(text);
    log->pending = xrealloc(log->pending, log->n_pending + n);
    memcpy(log->pending + log->n_pending, text, n);
    log->n_pending += n;
    return write_pending(log, err);
}

// Truncates the file to the rows before resume_step, or to nothing if resume_step is -1. *empty: no header is left.
static bool truncate_log(bool* empty, LogFile* log, int64_t resume_step, TostError* err) {
    size_t keep = 0;
    if (resume_step >= 0) {
        Bytes text;
        if (!read_file(&text, log->path, err)) return false;
        const bool ok = find_end(&keep, &text, resume_step, log->path, err);
        free(text.data);
        if (!ok) return false;
    }
    *empty = keep == 0;
    log->synced = (int64_t)keep;
    return (ftruncate(log->fd, (off_t)keep) == 0 && lseek(log->fd, 0, SEEK_END) >= 0)
        || tost_error(err, "%s: cannot be truncated to %zu bytes: %s", log->path, keep, strerror(errno));
}

static bool start(LogFile* log, int64_t resume_step, TostError* err) {
    bool empty = true;
    if (log->regular && flock(log->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return tost_error(err, "%s is being written by another run: give another --log", log->path);
    if (log->regular && !truncate_log(&empty, log, resume_step, err)) return false;
    if (empty && !write_text(log, header, err)) return false;
    if (!log->regular) return true;
    char* dir = path_dir(log->path);
    const bool ok = sync_dir(dir, err);   // so that the file's name survives a power failure
    free(dir);
    return ok;
}

static void drop(LogFile* log) {
    free(log->path);
    free(log->pending);
    *log = (LogFile){0};
}

bool log_open(LogFile* log, const char* path, int64_t resume_step, TostError* err) {
    struct stat st;
    const bool regular = stat(path, &st) != 0 || S_ISREG(st.st_mode);
    const int fd = open(path, O_CREAT | O_CLOEXEC | (regular ? O_RDWR : O_WRONLY | O_APPEND), 0666);
    *log = (LogFile){0};
    if (fd < 0) return tost_error(err, "%s: cannot be opened for writing: %s", path, strerror(errno));
    *log = (LogFile){.path = xstrdup(path), .fd = fd, .regular = regular};
    if (start(log, resume_step, err)) return true;
    close(fd);
    drop(log);
    return false;
}

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
    log->pending_rows++;
    const bool ok = write_text(log, text, err);
    free(text);
    return ok;
}

// After a failed fsync the kernel may mark unwritten pages as clean. Rewrites the rows since the last successful sync,
// so that the next fsync writes them to disk.
static bool rewrite_unsynced(LogFile* log) {
    char block[1 << 16];
    ssize_t n;
    for (off_t at = log->synced; (n = pread(log->fd, block, sizeof block, at)) > 0; at += n)
        if (pwrite(log->fd, block, (size_t)n, at) != n) return false;
    return n == 0;
}

bool log_sync(LogFile* log, TostError* err) {
    if (!write_pending(log, err)) return false;
    if (!log->regular) return true;   // a device or a pipe cannot be synced
    const bool ok = (!log->sync_failed || rewrite_unsynced(log)) && fsync(log->fd) == 0;
    log->sync_failed = !ok;
    if (!ok) return tost_error(err, "%s: cannot be synced: %s", log->path, strerror(errno));
    log->synced = lseek(log->fd, 0, SEEK_END);
    return true;
}

bool log_close(LogFile* log, TostError* err) {
    if (!log->path) return true;
    bool ok = write_pending(log, err);
    if (close(log->fd) != 0 && ok)
        ok = tost_error(err, "%s: cannot be closed: %s", log->path, strerror(errno));
    drop(log);
    return ok;
}
