// files.c: files, paths and globs.
#include "base/files.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"

// Reads fd to its end or just past MAX_FILE_BYTES. The buffer grows, since the size of a pipe or /proc file is unknown.
static bool read_all(Bytes* out, int fd) {
    struct stat st;
    size_t cap = 65536;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0)
        cap = (size_t)(st.st_size < MAX_FILE_BYTES ? st.st_size : MAX_FILE_BYTES) + 2;
    out->data = xmalloc(cap);
    out->size = 0;
    while (out->size <= MAX_FILE_BYTES) {
        if (cap - out->size < 2) out->data = xrealloc(out->data, cap *= 2);
        ssize_t n = read(fd, out->data + out->size, cap - out->size - 1);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN && fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK) == 0) continue;
        if (n < 0) return false;
        if (n == 0) break;
        out->size += (size_t)n;
    }
    out->data[out->size] = 0;
    return true;
}

static bool is_fifo(int fd) {
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode);
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

// A FIFO that no process writes to is an error; it is opened with O_NONBLOCK, because open would wait for a writer.
bool read_file(Bytes* out, const char* path, TostError* err) {
    bool is_stdin = strcmp(path, "-") == 0;
    *out = (Bytes){0};
    int fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return tost_error(err, "%s: cannot be opened: %s", path, strerror(errno));
    bool ok = read_all(out, fd);
    if (!ok && errno == EISDIR) tost_error(err, "%s: is a folder: give a file name", path);
    else if (!ok)
        tost_error(err, "%s: cannot be read after %zu bytes: %s", is_stdin ? "standard input" : path,
                   out->size, strerror(errno));
    if (ok && out->size == 0 && !is_stdin && is_fifo(fd))
        ok = tost_error(err, "%s: a FIFO that no process writes to: give a regular file", path);
    if (ok && out->size > MAX_FILE_BYTES)
        ok = tost_error(err, "%s: larger than %d bytes: give a smaller file",
                        is_stdin ? "standard input" : path, MAX_FILE_BYTES);
    if (!ok) {
        free(out->data);
        *out = (Bytes){0};
    }
    if (!is_stdin) close(fd);
    return ok;
}

static bool has_other_data(const char* path, long offset, const char* text) {
    struct stat st;
    char head[256];
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size == 0) return false;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? -1 : read_at(fd, head, sizeof head, (uint64_t)offset);
    if (fd >= 0) close(fd);
    return n < (ssize_t)strlen(text) || memcmp(head, text, strlen(text)) != 0;
}

bool check_replaceable(const char* path, long offset, const char* text, TostError* err) {
    char* tmp = xasprintf("%s.tmp", path);
    const char* other = has_other_data(path, offset, text) ? "it" : has_other_data(tmp, offset, text) ? tmp : NULL;
    if (other)
        tost_error(err, "%s: %s was not written by this command: choose another file, or replace it with --force", path,
                   other);
    free(tmp);
    return !other;
}

bool path_exists(const char* path) {
    struct stat st;
    return stat(path, &st) == 0;
}

bool is_dir(const char* path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

char* path_join(const char* dir, const char* name) {
    size_t n = strlen(dir);
    return xasprintf("%s%s%s", dir, n && dir[n - 1] == '/' ? "" : "/", name);
}

char* path_dir(const char* path) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;  // "a/b/" is "a/b"
    while (n && path[n - 1] != '/') n--;
    if (!n) return xstrdup(".");
    while (n > 1 && path[n - 1] == '/') n--;
    return xasprintf("%.*s", (int)n, path);
}

// argv[0] contains a slash, or is the name of a file in a folder of PATH.
char* program_path(const char* argv0) {
    if (strchr(argv0, '/')) return realpath(argv0, NULL);
    const char* folders = getenv("PATH");
    while (folders) {
        const size_t n = strcspn(folders, ":");
        char *dir = xasprintf("%.*s", (int)n, folders), *path = path_join(n ? dir : ".", argv0);
        char* found = access(path, X_OK) == 0 && !is_dir(path) ? realpath(path, NULL) : NULL;
        free(dir);
        free(path);
        if (found) return found;
        folders = folders[n] ? folders + n + 1 : NULL;
    }
    return NULL;
}

// ---------------------------------------------------------------------------------------------
// Globs

static int compare_names(const void* a, const void* b) {
    return strcmp(*(char* const*)a, *(char* const*)b);
}

bool expand_glob(PathList* out, const char* pattern, TostError* err) {
    *out = (PathList){0};
    if (path_exists(pattern)) {  // a file name may contain brackets
        out->paths = xmalloc(sizeof *out->paths);
        out->paths[out->count++] = xstrdup(pattern);
        return true;
    }
    glob_t g;
    int rc = glob(pattern, GLOB_NOSORT | GLOB_TILDE, NULL, &g);
    if (rc == 0) {
        out->paths = xmalloc(g.gl_pathc * sizeof *out->paths);
        out->count = (int)g.gl_pathc;
        for (int i = 0; i < out->count; i++) out->paths[i] = xstrdup(g.gl_pathv[i]);
        qsort(out->paths, g.gl_pathc, sizeof *out->paths, compare_names);  // by bytes, independent of the locale
        globfree(&g);
        return true;
    }
    if (rc == GLOB_NOMATCH) return tost_error(err, "%s: no file matches", pattern);
    return tost_error(err, "%s: cannot be expanded: %s", pattern,
                      rc == GLOB_NOSPACE ? "out of memory" : "read error");
}

void free_paths(PathList* list) {
    for (int i = 0; i < list->count; i++) free(list->paths[i]);
    free(list->paths);
    *list = (PathList){0};
}
