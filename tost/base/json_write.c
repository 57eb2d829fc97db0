// json_write.c: writes JSON files. Each element of the two outer levels is on its own line.
#include "base/json_write.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/platform.h"

// The file descriptor if path is stdout or stderr (such as /dev/stdout), else -1.
static int standard_stream(const char* path) {
    struct stat named, open;
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO && stat(path, &named) == 0; fd++)
        if (fstat(fd, &open) == 0 && open.st_dev == named.st_dev && open.st_ino == named.st_ino) return fd;
    return -1;
}

// True if another process is writing the file.
static bool is_busy(const char* path) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    const bool busy = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (fd >= 0) close(fd);
    return busy;
}

// Creates and locks PATH.tmp. The data of both files is lost: unless `force`, fails if one was written by another
// program.
static FILE* create_temporary(const JsonFile* j, const char* begin, bool force, TostError* err) {
    const bool ours = file_is_ours(j->path, 0, begin);
    if (!force && (!ours || !file_is_ours(j->tmp, 0, begin))) {
        tost_error(err, "--json %s: %s was not written by this command: choose another file, or replace it with "
                   "--force", j->path, ours ? j->tmp : "it");
        return NULL;
    }
    if (is_busy(j->tmp)) {
        tost_error(err, "--json %s is being written by another process: wait until it ends, or choose another file",
                   j->path);
        return NULL;
    }
    const bool removed = unlink(j->tmp) == 0 || errno == ENOENT;
    const int fd = removed ? open(j->tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666) : -1;
    if (fd < 0) tost_error(err, "--json %s cannot be written: %s", j->path, strerror(errno));
    else flock(fd, LOCK_EX | LOCK_NB);
    return fd < 0 ? NULL : fdopen(fd, "w");
}

// A standard stream is written through its own descriptor: opening it again would overwrite a redirected file from the
// start.
static FILE* open_stream(const char* path, int stream, TostError* err) {
    FILE* file = stream < 0 ? fopen(path, "w") : fdopen(dup(stream), "w");
    if (!file) tost_error(err, "--json %s cannot be written: %s", path, strerror(errno));
    return file;
}

bool json_file_open(JsonFile* j, const char* path, const char* content, bool force, TostError* err) {
    struct stat st;
    *j = (JsonFile){0};
    if (!path) return true;
    const bool exists = stat(path, &st) == 0;
    if (exists && S_ISDIR(st.st_mode)) return tost_error(err, "--json %s is a folder: give a file name", path);
    const int stream = standard_stream(path);
    const bool temporary = stream < 0 && (!exists || S_ISREG(st.st_mode));
    char* begin = xasprintf("{\n  \"content\": \"%s\"", content);
    char* target = temporary && lstat(path, &st) == 0 && S_ISLNK(st.st_mode) ? realpath(path, NULL) : NULL;
    j->path = target ? target : xstrdup(path);
    if (temporary) j->tmp = xasprintf("%s.tmp", j->path);
    j->file = temporary ? create_temporary(j, begin, force, err) : open_stream(path, stream, err);
    free(begin);
    if (j->file) {
        json_put_open(j, NULL, '{');
        json_put_text(j, "content", content);
        return true;
    }
    free(j->path);
    free(j->tmp);
    *j = (JsonFile){0};
    return false;
}

bool json_file_close(JsonFile* j, bool keep, TostError* err) {
    if (!j->path) return true;
    if (keep) {
        json_put_close(j, '}');
        fputc('\n', j->file);
    }
    bool ok = fflush(j->file) == 0 && !ferror(j->file) && (!keep || !j->tmp || sync_file(fileno(j->file)));
    ok = fclose(j->file) == 0 && ok;
    ok = ok && (!keep || !j->tmp || rename(j->tmp, j->path) == 0);
    if (!ok && keep) tost_error(err, "--json %s cannot be written: %s", j->path, strerror(errno));
    if (j->tmp && (!ok || !keep)) unlink(j->tmp);
    free(j->path);
    free(j->tmp);
    *j = (JsonFile){0};
    return ok || !keep;
}

// Writes comma, line break and key before a value. Returns false if there is no file.
static bool begin_value(JsonFile* j, const char* key) {
    if (!j->file) return false;
    if (!j->fresh && j->depth > 0) fputs(j->depth > 2 ? ", " : ",", j->file);
    if (j->depth > 0 && j->depth <= 2) fprintf(j->file, "\n%*s", 2 * j->depth, "");
    j->fresh = false;
    if (key) {
        json_write_string(j->file, key, strlen(key));
        fputs(": ", j->file);
    }
    return true;
}

void json_put_open(JsonFile* j, const char* key, char bracket) {
    if (!begin_value(j, key)) return;
    fputc(bracket, j->file);
    j->depth++;
    j->fresh = true;
}

void json_put_close(JsonFile* j, char bracket) {
    if (!j->file) return;
    j->depth--;
    if (!j->fresh && j->depth < 2) fprintf(j->file, "\n%*s", 2 * j->depth, "");
    fputc(bracket, j->file);
    j->fresh = false;
}

void json_put_bytes(JsonFile* j, const char* key, const char* text, size_t n) {
    if (begin_value(j, key)) json_write_string(j->file, text, n);
}

void json_put_text(JsonFile* j, const char* key, const char* text) {
    if (text) json_put_bytes(j, key, text, strlen(text));
    else if (begin_value(j, key)) fputs("null", j->file);
}

void json_put_int(JsonFile* j, const char* key, int64_t value) {
    if (begin_value(j, key)) fprintf(j->file, "%lld", (long long)value);
}

void json_put_real(JsonFile* j, const char* key, double value) {
    if (!begin_value(j, key)) return;
    if (isfinite(value)) fprintf(j->file, "%.17g", value);
    else fputs("null", j->file);
}

void json_put_bool(JsonFile* j, const char* key, bool value) {
    if (begin_value(j, key)) fputs(value ? "true" : "false", j->file);
}
