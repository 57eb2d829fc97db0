// files.c: paths, globs, reading whole files, replacing files.
#include "base/files.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <libgen.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"

// Reads fd to its end or just past MAX_FILE_BYTES. The buffer grows, since the size of a pipe or /proc file is unknown.
static bool read_all(Bytes* out, int fd) {
    for (size_t cap = 0; out->size <= MAX_FILE_BYTES;) {
        if (cap - out->size < 2) out->data = xrealloc(out->data, cap = cap ? 2 * cap : 65536);
        const ssize_t n = read(fd, out->data + out->size, cap - out->size - 1);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN && fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK) == 0) continue;
        if (n < 0) return false;
        if (n == 0) break;
        out->size += (size_t)n;
    }
    out->data[out->size] = 0;
    return true;
}

ssize_t read_at(int fd, void* out, size_t n, uint64_t offset) {
    size_t done = 0;
    while (done < n) {
        const ssize_t got = pread(fd, (char*)out + done, n - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) break;
        done += (size_t)got;
    }
    return (ssize_t)done;
}

size_t read_head(char* head, size_t n, const char* path) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);   // do not wait on a FIFO
    const ssize_t got = fd < 0 ? -1 : read_at(fd, head, n, 0);
    if (fd >= 0) close(fd);
    return got > 0 ? (size_t)got : 0;
}

bool read_file(Bytes* out, const char* path, TostError* err) {
    const bool is_stdin = strcmp(path, "-") == 0;
    const char* name = is_stdin ? "standard input" : path;
    *out = (Bytes){0};
    const int fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return tost_error(err, "%s: cannot be opened: %s", path, strerror(errno));
    bool ok = read_all(out, fd);
    if (!ok && errno == EISDIR) tost_error(err, "%s: is a folder: give a file name", name);
    else if (!ok) tost_error(err, "%s: cannot be read after %zu bytes: %s", name, out->size, strerror(errno));
    else if (out->size > MAX_FILE_BYTES)
        ok = tost_error(err, "%s: larger than %d bytes: give a smaller file", name, MAX_FILE_BYTES);
    if (!ok) {
        free(out->data);
        *out = (Bytes){0};
    }
    if (!is_stdin) close(fd);
    return ok;
}

int standard_stream(const char* path) {
    struct stat named, open;
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO && stat(path, &named) == 0; fd++)
        if (fstat(fd, &open) == 0 && open.st_dev == named.st_dev && open.st_ino == named.st_ino) return fd;
    return 0;
}

static mode_t mode_of(const char* path) {   // 0: there is no such file
    struct stat st;
    return stat(path, &st) == 0 ? st.st_mode : 0;
}

bool path_exists(const char* path) { return mode_of(path) != 0; }
bool is_dir(const char* path) { return S_ISDIR(mode_of(path)); }
bool is_file(const char* path) { return S_ISREG(mode_of(path)); }

Path path_text(const char* fmt, ...) {
    Path path;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(path.text, sizeof path.text, fmt, ap);
    va_end(ap);
    return path;
}

Path path_in(const char* dir, const char* name) {
    const size_t n = strlen(dir);
    return path_text("%s%s%s", dir, n && dir[n - 1] == '/' ? "" : "/", name);
}

Path path_above(const char* path) {
    Path copy = path_text("%s", path);
    return path_text("%s", dirname(copy.text));
}

// ---- Lists and globs ----

void add_string(StringList* list, char* string) {
    list->strings = xgrow(list->strings, (size_t)list->count, sizeof *list->strings);
    list->strings[list->count++] = string;
}

void free_strings(StringList* list) {
    for (int i = 0; i < list->count; i++) free(list->strings[i]);
    free(list->strings);
    *list = (StringList){0};
}

char* join_strings(const StringList* list, char separator) {
    char* text;
    size_t n;
    FILE* out = open_memstream(&text, &n);
    for (int i = 0; i < list->count; i++) fprintf(out, "%.*s%s", i > 0, &separator, list->strings[i]);
    fclose(out);
    return text;
}

// Takes brackets literally if a file then matches, because folder names may contain them; otherwise as a pattern.
static int find_matches(glob_t* g, const char* pattern) {
    char *literal = xmalloc(2 * strlen(pattern) + 1), *to = literal;
    for (const char* p = pattern; *p; *to++ = *p++)
        if (*p == '[') *to++ = '\\';
    *to = 0;
    const int rc = glob(literal, GLOB_TILDE, NULL, g);
    free(literal);
    return rc == GLOB_NOMATCH ? glob(pattern, GLOB_TILDE, NULL, g) : rc;
}

static bool add_matches(StringList* out, const char* pattern, TostError* err) {
    glob_t g = {0};
    if (path_exists(pattern)) {   // a file name may contain any of *?[
        add_string(out, xstrdup(pattern));
        return true;
    }
    if (strstr(pattern, "**"))
        return tost_error(err, "%s: ** does not descend into folders: give a pattern for each depth, such as 'a/*.bin' "
                          "'a/*/*.bin'", pattern);
    if (find_matches(&g, pattern) != 0) return tost_error(err, "%s: no file matches%s", pattern, strchr(pattern, ':')
        ? "; a weight must be a decimal number above 0, and is only for --data of train" : "");
    for (size_t i = 0; i < g.gl_pathc; i++) add_string(out, xstrdup(g.gl_pathv[i]));
    globfree(&g);
    return true;
}

bool expand_glob(StringList* out, const StringList* patterns, TostError* err) {
    *out = (StringList){0};
    bool ok = true;
    for (int i = 0; ok && i < patterns->count; i++) ok = add_matches(out, patterns->strings[i], err);
    if (!ok) free_strings(out);
    return ok;
}
