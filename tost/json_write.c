// json_write.c: JSON out. Objects and arrays of depth 1 and 2 have a line for each element, deeper ones are
// one line.
#include "json_write.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "json.h"

// The number of the standard stream that path is (/dev/stdout, wherever that goes), or -1.
static int standard_stream(const char* path) {
    struct stat named, open;
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO && stat(path, &named) == 0; fd++)
        if (fstat(fd, &open) == 0 && open.st_dev == named.st_dev && open.st_ino == named.st_ino) return fd;
    return -1;
}

// A file is written beside and renamed when it is whole; a pipe or device is written as it is. A standard stream is
// written through its own descriptor: opened anew, a file would begin again at its first byte.
bool json_file_open(JsonFile* j, const char* path, TostError* err) {
    struct stat st;
    *j = (JsonFile){0};
    if (!path) return true;
    const int stream = standard_stream(path);
    const bool beside = stream < 0 && (stat(path, &st) != 0 || S_ISREG(st.st_mode));
    j->path = xstrdup(path);
    j->tmp = beside ? xasprintf("%s.tmp", path) : xstrdup(path);
    if (is_dir(path)) tost_error(err, "--json %s is a folder: name a file", path);
    else if ((j->file = stream < 0 ? fopen(j->tmp, "w") : fdopen(dup(stream), "w"))) return true;
    else tost_error(err, "--json %s cannot be written: %s", path, strerror(errno));
    free(j->path);
    free(j->tmp);
    *j = (JsonFile){0};
    return false;
}

bool json_file_close(JsonFile* j, bool keep, TostError* err) {
    if (!j->path) return true;
    if (j->file && keep) fputc('\n', j->file);
    const bool beside = strcmp(j->tmp, j->path) != 0;
    bool ok = fflush(j->file) == 0 && !ferror(j->file) && (!keep || !beside || fsync(fileno(j->file)) == 0);
    ok = fclose(j->file) == 0 && ok;
    ok = ok && (!keep || !beside || rename(j->tmp, j->path) == 0);
    if (!ok && keep) tost_error(err, "--json %s cannot be written: %s", j->path, strerror(errno));
    if (beside && (!ok || !keep)) unlink(j->tmp);
    free(j->path);
    free(j->tmp);
    *j = (JsonFile){0};
    return ok || !keep;
}

static void put_quoted(JsonFile* j, const char* text, size_t n) {
    const char* end = text + n;
    fputc('"', j->file);
    while (text < end) {
        const unsigned char c = (unsigned char)*text;
        const int bytes = utf8_length(text, end);
        if (c == '"' || c == '\\') fprintf(j->file, "\\%c", c);
        else if (c < 0x20 || c == 0x7f) fprintf(j->file, "\\u%04x", c);
        else if (bytes > 0) fwrite(text, 1, (size_t)bytes, j->file);
        else fputs("\xef\xbf\xbd", j->file);
        text += bytes > 0 ? bytes : 1;
    }
    fputc('"', j->file);
}

// Comma, line and key: what goes before any value. False where nothing is written.
static bool begin_value(JsonFile* j, const char* key) {
    if (!j->file) return false;
    if (!j->fresh && j->depth > 0) fputs(j->depth > 2 ? ", " : ",", j->file);
    if (j->depth > 0 && j->depth <= 2) fprintf(j->file, "\n%*s", 2 * j->depth, "");
    j->fresh = false;
    if (key) {
        put_quoted(j, key, strlen(key));
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
    if (begin_value(j, key)) put_quoted(j, text, n);
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
