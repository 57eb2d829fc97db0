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
