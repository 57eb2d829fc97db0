// log.c: log.csv.
#include "run/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files.h"
#include "base/folder.h"
#include "base/memory.h"
#include "base/output.h"
#include "base/platform.h"
#include "base/signals.h"

static const char header[] = "step,tokens,train_loss,val_loss,lr,grad_norm,ms,tokens_per_s\n";
enum { COMMAS = 7, BLOCK = 1 << 20 };   // BLOCK: bytes read at a time

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

static bool read_failed(const LogFile* log, TostError* err) {
    return tost_error(err, "%s: cannot be read: %s", log->path, strerror(errno));
}

// The number of the line at byte `end`, counted from 1.
static long long line_number(const LogFile* log, int64_t end) {
    char* text = xmalloc(BLOCK);
    long long line = 1;
    ssize_t n = 1;
    for (int64_t at = 0; at < end && n > 0; at += n) {
        n = read_at(log->fd, text, end - at < BLOCK ? (size_t)(end - at) : BLOCK, (uint64_t)at);
        for (ssize_t i = 0; i < n; i++) line += text[i] == '\n';
    }
    free(text);
    return line;
}

// The end of the log: text[0] is at byte `at` of the file. text[begin] begins a line.
typedef struct { char* text; size_t size, begin; int64_t at; } Tail;

// Reads the last n of `size` bytes, or all if there are fewer.
static bool read_tail(Tail* tail, const LogFile* log, int64_t size, int64_t n, TostError* err) {
    tail->at = size > n ? size - n : 0;
    tail->size = (size_t)(size - tail->at);
    tail->text = xmalloc(tail->size);
    if (read_at(log->fd, tail->text, tail->size, (uint64_t)tail->at) != (ssize_t)tail->size) {
        free(tail->text);
        return read_failed(log, err);
    }
    const char* end = memchr(tail->text, '\n', tail->size);
    tail->begin = tail->at == 0 ? sizeof header - 1 : end ? (size_t)(end - tail->text) + 1 : tail->size;
    return true;
}

// True if the tail begins with the row of an earlier step.
static bool reaches(const Tail* tail, int64_t resume_step) {
    const char* line = tail->text + tail->begin;
    const char* end = memchr(line, '\n', tail->size - tail->begin);
    const int64_t step = end ? row_step(line, (size_t)(end - line)) : -1;
    return step >= 0 && step < resume_step;
}

// Sets *keep to the number of bytes before the row of resume_step. The rows of the tail before it must have no gaps.
static bool scan_tail(int64_t* keep, const Tail* tail, const LogFile* log, int64_t resume_step, TostError* err) {
    static const char remedy[] = "use an earlier checkpoint, or move the log away to start a new one";
    int64_t last = -1, last_at = 0;
    size_t at = tail->begin;
    for (const char* end; (end = memchr(tail->text + at, '\n', tail->size - at));) {
        const size_t next = (size_t)(end - tail->text) + 1;
        const int64_t step = row_step(tail->text + at, next - 1 - at), here = tail->at + (int64_t)at;
        if (step >= resume_step) break;
        if (step < 0)
            return tost_error(err, "%s: line %lld is not a row of numbers; %s", log->path, line_number(log, here),
                              remedy);
        if (last >= 0 && step != last + 1)
            return tost_error(err, "%s: line %lld: step %lld follows step %lld; %s", log->path,
                              line_number(log, here), (long long)step, (long long)last, remedy);
        last = step;
        last_at = here;
        at = next;
    }
    *keep = tail->at + (int64_t)at;
    if (last >= 0 && last != resume_step - 1)
        return tost_error(err, "%s: line %lld is step %lld, but the run resumes at step %lld: rows are missing; %s",
                          log->path, line_number(log, last_at), (long long)last, (long long)resume_step, remedy);
    return true;
}

// Sets *keep to the number of bytes before the row of resume_step; 0: no header. Reads only the end of a long log.
static bool find_end(int64_t* keep, const LogFile* log, int64_t resume_step, TostError* err) {
    char head[sizeof header - 1];
    const int64_t size = lseek(log->fd, 0, SEEK_END);
    const ssize_t n = size < 0 ? -1 : read_at(log->fd, head, sizeof head, 0);
    *keep = 0;
    if (n < 0) return read_failed(log, err);
    if (memcmp(head, header, (size_t)n) != 0) return foreign_log(log->path, err);
    if (n < (ssize_t)sizeof head) return true;
    Tail tail;
    int64_t tail_bytes = BLOCK;
    if (!read_tail(&tail, log, size, tail_bytes, err)) return false;
    while (tail.at > 0 && !reaches(&tail, resume_step)) {
        free(tail.text);
        if (!read_tail(&tail, log, size, tail_bytes *= 4, err)) return false;
    }
    const bool ok = scan_tail(keep, &tail, log, resume_step, err);
    free(tail.text);
    return ok;
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

// What other programs did to the log file. LOG_RENAMED: its path no longer leads to it. LOG_CHANGED: it was removed or
// its size changed.
typedef enum { LOG_INTACT, LOG_RENAMED, LOG_CHANGED } LogState;

static LogState state_of(const LogFile* log) {
    struct stat st, named;
    if (!log->regular || fstat(log->fd, &st) != 0) return LOG_INTACT;
    if (st.st_nlink == 0 || st.st_size != log->end) return LOG_CHANGED;
    const bool found = stat(log->path, &named) == 0;
    if (!found && errno != ENOENT) return LOG_INTACT;
    return found && named.st_dev == st.st_dev && named.st_ino == st.st_ino ? LOG_INTACT : LOG_RENAMED;
}

static bool sync_name(const LogFile* log, TostError* err) {   // so that the file's name survives a power failure
    char* dir = path_dir(log->path);
    const bool ok = sync_dir(dir, err);
    free(dir);
    return ok;
}

// Inserts text into the pending bytes.
static void add_pending(LogFile* log, size_t at, const char* text) {
    const size_t n = strlen(text);
    log->pending = xrealloc(log->pending, log->n_pending + n);
    memmove(log->pending + at + n, log->pending + at, log->n_pending - at);
    memcpy(log->pending + at, text, n);
    log->n_pending += n;
}

// Creates a new log at the path of the old one or, if that exists, at PATH.2, PATH.3, … Sets log->moved. If a renamed
// log's folder no longer exists, the folder was renamed: keeps the log.
static bool continue_elsewhere(LogFile* log, bool renamed, TostError* err) {
    char* path = xstrdup(log->path);
    int fd = -1;
    for (int k = 2; (fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0666)) < 0 && errno == EEXIST; k++) {
        free(path);
        path = xasprintf("%s.%d", log->path, k);
    }
    if (fd < 0) {
        const bool gone = errno == ENOENT, kept = renamed && gone;
        if (gone && !kept) tost_error(err, "%s and its folder were removed by another program", log->path);
        else if (!kept)
            tost_error(err, "%s was removed or changed by another program, and %s cannot be created: %s", log->path,
                       path, strerror(errno));
        free(path);
        return kept;
    }
    tost_error(&log->moved, "%s was %s by another program: the rows from here on are in %s%s", log->path,
               renamed ? "renamed or removed" : "removed or changed", strcmp(path, log->path) == 0 ? "a new " : "",
               path);
    flock(fd, LOCK_EX | LOCK_NB);
    close(log->fd);
    free(log->path);
    log->path = path;
    log->fd = fd;
    log->end = log->synced = 0;
    log->written = 0;
    log->sync_failed = false;
    if (log->pending[0] != header[0]) add_pending(log, 0, header);
    return sync_name(log, err);
}

// Removes from `pending` the rows that are completely written.
static void drop_written(LogFile* log) {
    size_t rows = log->written;
    while (rows > 0 && log->pending[rows - 1] != '\n') rows--;
    log->n_pending -= rows;
    memmove(log->pending, log->pending + rows, log->n_pending);
    log->written -= rows;
    if (log->n_pending == 0) log->pending_rows = 0;
}

// Waits for the reader of a pipe until the run is to stop; what it has not taken by then is dropped.
static ssize_t write_unread(LogFile* log, const char* bytes, size_t n) {
    size_t done;
    do done = output_write(log->fd, bytes, n, OUTPUT_TIMEOUT);
    while (done == 0 && errno == EAGAIN && !signals_received());
    if (done > 0 || errno != EAGAIN) return done > 0 ? (ssize_t)done : -1;
    tost_error(&log->moved, "%s: its reader has stopped: the last rows are dropped", log->path);
    return (ssize_t)n;
}

// Writes as many pending bytes as possible.
static bool write_pending(LogFile* log, TostError* err) {
    int error = 0;
    if (log->n_pending == 0) return true;
    const LogState state = state_of(log);
    if (state != LOG_INTACT && !continue_elsewhere(log, state == LOG_RENAMED, err)) return false;
    while (log->written < log->n_pending && !error) {
        const char* rest = log->pending + log->written;
        const size_t size = log->n_pending - log->written;
        const ssize_t n = log->regular ? write(log->fd, rest, size) : write_unread(log, rest, size);
        if (n == 0) error = ENOSPC;
        else if (n < 0) error = errno == EINTR ? 0 : errno;
        else {
            log->written += (size_t)n;
            log->end += n;
        }
    }
    if (!log->regular) log->written = log->n_pending;
    drop_written(log);
    return !error || tost_error(err, "%s: cannot be written: %s", log->path, strerror(error));
}

static bool write_text(LogFile* log, const char* text, TostError* err) {
    add_pending(log, log->n_pending, text);
    return write_pending(log, err);
}

// Truncates the file to the rows before resume_step, or to nothing if resume_step is -1. *empty: no header is left.
static bool truncate_log(bool* empty, LogFile* log, int64_t resume_step, TostError* err) {
    int64_t keep = 0;
    if (resume_step >= 0 && !find_end(&keep, log, resume_step, err)) return false;
    *empty = keep == 0;
    log->synced = log->end = keep;
    return (ftruncate(log->fd, (off_t)keep) == 0 && lseek(log->fd, 0, SEEK_END) >= 0)
        || tost_error(err, "%s: cannot be truncated to %lld bytes: %s", log->path, (long long)keep, strerror(errno));
}

static bool start(LogFile* log, int64_t resume_step, TostError* err) {
    bool empty = true;
    if (log->regular && flock(log->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return tost_error(err, "%s is being written by another run: give another --log", log->path);
    if (log->regular && !truncate_log(&empty, log, resume_step, err)) return false;
    if (empty && !write_text(log, header, err)) return false;
    return !log->regular || sync_name(log, err);
}

static void drop(LogFile* log) {
    free(log->path);
    free(log->pending);
    *log = (LogFile){0};
}

bool log_open(LogFile* log, const char* path, int64_t resume_step, TostError* err) {
    struct stat st = {0};
    const bool regular = stat(path, &st) != 0 || S_ISREG(st.st_mode);
    const int pipe_flags = O_WRONLY | O_APPEND | O_NONBLOCK;   // do not wait for the reader of a FIFO
    const int fd = open(path, O_CREAT | O_CLOEXEC | (regular ? O_RDWR : pipe_flags), 0666);
    *log = (LogFile){0};
    if (fd < 0 && errno == ENXIO && S_ISFIFO(st.st_mode))
        return tost_error(err, "%s: a FIFO that no process reads: start its reader first, or give a file", path);
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
    char* block = xmalloc(BLOCK);
    ssize_t n;
    for (int64_t at = log->synced; (n = read_at(log->fd, block, BLOCK, (uint64_t)at)) > 0; at += n)
        if (pwrite(log->fd, block, (size_t)n, (off_t)at) != n) break;
    free(block);
    return n == 0;
}

bool log_sync(LogFile* log, TostError* err) {
    if (!write_pending(log, err)) return false;
    if (!log->regular) return true;   // a device or a pipe cannot be synced
    const bool ok = (!log->sync_failed || rewrite_unsynced(log)) && sync_file(log->fd);
    log->sync_failed = !ok;
    if (!ok) return tost_error(err, "%s: cannot be synced: %s", log->path, strerror(errno));
    log->synced = log->end;
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
