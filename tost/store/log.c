// log.c: writes and reads log.csv.
#include "store/log.h"

#include <errno.h>

#include "base/folder.h"
#include "base/memory.h"
#include "base/platform.h"
#include "base/say.h"

static const char header[] = "step,tokens,train_loss,val_loss,lr,grad_norm,ms,tokens_per_s\n";
enum { COMMAS = 7 };   // in a row

static bool check_regular(const char* path, TostError* err) {
    struct stat st;
    if (stat(path, &st) != 0) return true;
    if (!S_ISREG(st.st_mode))
        return tost_error(err, "%s is not a regular file: remove it, or give another --out", path);
    return st.st_nlink == 1 || tost_error(err, "%s has other hard links, which would change, too: copy it (cp %s "
                                          "copy && mv copy %s)", path, path, path);
}

// ---- Opening ----

// Sets *keep to the number of bytes of `text` up to the row of step `done`; 0: there is no row, or not even a complete
// header. Fails if the rows before are not those of increasing steps. The first one may be of any step: the log may
// have been moved away. Warns if the last ones are missing: they could not be written. A row of step 0 has 0 tokens.
static bool find_end(size_t* keep, const char* path, Bytes text, int64_t done, TostError* err) {
    const size_t n = strlen(header);
    const char *line = text.data + n, *end;
    int64_t last = 0;
    *keep = 0;
    if (memcmp(text.data, header, text.size < n ? text.size : n) != 0)
        return tost_error(err, "%s: line 1 is not the header of a log.csv; move the file away to start a new log",
                          path);
    if (text.size <= n) return true;
    for (long long number = 2; last < done; number++, line = end) {
        LogRow row = {.step = -1};
        if (!(end = strchr(line, '\n'))) break;
        end++;
        log_row_parse(&row, line);
        if (number > 2 && row.step > done) break;
        if (row.step < (row.tokens > 0) || row.step > done || (number > 2 && row.step <= last))
            return tost_error(err, "%s: line %lld is not the row of a step %s %lld; move the file away to start a new "
                              "log", path, number, number > 2 ? "after" : "up to",
                              (long long)(number > 2 ? last : done));
        last = row.step;
    }
    if (last < done) print_warning("%s has no rows of steps %lld to %lld", path, (long long)last + 1, (long long)done);
    *keep = (size_t)(line - text.data);
    return true;
}

// Appends the rows that are not in the file, and this text. After a failure, opens the file again: on NFS, the handle
// may be stale.
static bool write_text(LogFile* log, const char* text, TostError* err) {
    struct stat st;
    Bytes* rows = &log->rows;
    const size_t more = strlen(text);
    rows->data = xrealloc(rows->data, rows->size + more + 1);
    memcpy(rows->data + rows->size, text, more + 1);
    rows->size += more;
    if (fstat(log->fd, &st) == 0 && st.st_nlink == 0) return tost_error(err, "%s was removed", log->path.text);
    const int fd = log->failed ? open(log->path.text, O_WRONLY | O_APPEND | O_CLOEXEC) : -1;
    if (fd >= 0) close(log->fd), log->fd = fd;
    log->failed = 0;
    while (rows->size > 0 && !log->failed) {
        const ssize_t n = write(log->fd, rows->data, rows->size);
        if (n <= 0) log->failed = n == 0 ? ENOSPC : errno == EINTR ? 0 : errno;
        else memmove(rows->data, rows->data + n, (rows->size -= (size_t)n) + 1);
    }
    return true;
}

bool log_open(LogFile* log, const char* path, int64_t done, TostError* err) {
    Bytes old = {0};
    size_t keep = 0;
    *log = (LogFile){0};
    if (!check_regular(path, err)) return false;
    const int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return tost_error(err, "%s: cannot be opened for writing: %s", path, strerror(errno));
    *log = (LogFile){.path = path_text("%s", path), .fd = fd};
    bool ok = done < 0 || (read_file(&old, path, err) && find_end(&keep, path, old, done, err));
    free(old.data);
    if (ok && ftruncate(fd, (off_t)keep) != 0)
        ok = tost_error(err, "%s: cannot be truncated to %zu bytes: %s", path, keep, strerror(errno));
    ok = ok && (keep > 0 || write_text(log, header, err)) && log_sync(log, err) && sync_dir(path_above(path).text, err);
    if (ok && log->failed) ok = tost_error(err, "%s: cannot be written: %s", path, strerror(log->failed));
    if (!ok) log_close(log);
    return ok;
}

// ---- Rows ----

bool log_row_parse(LogRow* row, const char* text) {
    double field[COMMAS + 1];
    const char* p = text;
    for (int i = 0; i <= COMMAS; i++) {
        const char after = i < COMMAS ? ',' : '\n';
        char* end = (char*)p;
        field[i] = *p == after ? NAN : strtod(p, &end);
        if (*end != after || (end == p && *p != after)) return false;
        p = end + 1;
    }
    if (!(field[0] >= 0 && field[0] < 1e15) || !(field[1] >= 0 && field[1] < 9e18)) return false;
    *row = (LogRow){.step = (int64_t)field[0], .tokens = strtoll(strchr(text, ',') + 1, NULL, 10),
                    .train_loss = field[2], .val_loss = field[3], .lr = field[4], .grad_norm = field[5],
                    .ms = field[6], .tokens_per_s = field[7]};
    return true;
}

char* log_row_text(const LogRow* row) {
    char val[64] = "";
    if (!isnan(row->val_loss)) snprintf(val, sizeof val, "%.9f", row->val_loss);
    if (row->step == 0) return xasprintf("0,0,,%s,,,,\n", val);
    char* text = xasprintf("%lld,%lld,%.9f,%s,%.9e,%.9f,%.3f,%.1f\n", (long long)row->step, (long long)row->tokens,
                           plain_nan(row->train_loss), val, row->lr, plain_nan(row->grad_norm), row->ms,
                           row->tokens_per_s);
    for (char* nan; (nan = strstr(text, "nan"));) memcpy(nan, "NaN", 3);   // as most programs write it
    return text;
}

bool log_row(LogFile* log, const LogRow* row, TostError* err) {
    char* text = log_row_text(row);
    const bool ok = write_text(log, text, err);
    free(text);
    return ok;
}

bool log_sync(LogFile* log, TostError* err) {
    const bool ok = write_text(log, "", err);
    if (ok && !log->failed && !sync_file(log->fd)) log->failed = errno;
    return ok;
}

void log_close(LogFile* log) {
    if (log->path.text[0]) close(log->fd);
    free(log->rows.data);
    *log = (LogFile){0};
}
