// scratch.h: what the tests that write files share: a folder to write in, files, and errors looked at.
#ifndef TOST_SCRATCH_H
#define TOST_SCRATCH_H

#include "check.h"

#include <string.h>

#include "util.h"

// Checks that a call failed, and that its one line says what was expected of it.
static inline void check_refused(Checks* c, bool ok, const TostError* err, const char* expected, const char* what) {
    check(c, !ok && strstr(err->text, expected) && !strchr(err->text, '\n'),
          "%s: wanted an error with \"%s\", got %s%s", what, expected, ok ? "none" : "", ok ? "" : err->text);
}

// The scaffold of a test must stand: ends the program where it does not.
static inline void must(bool ok, const char* what, const TostError* err) {
    if (ok) return;
    printf("the test itself failed: %s: %s\n", what, err ? err->text : "no");
    exit(1);
}

static inline void write_bytes(const char* path, const void* data, size_t n) {
    FILE* f = fopen(path, "wb");
    must(f && fwrite(data, 1, n, f) == n && fclose(f) == 0, path, NULL);
}

static inline void write_text(const char* path, const char* text) { write_bytes(path, text, strlen(text)); }

// A new empty folder, in memory where that can be had: saves wait for the disk. Remove with drop_folder.
static inline char* new_folder(void) {
    const char* base = getenv("TMPDIR");
    if (!base || !base[0]) base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    char* path = xasprintf("%s/tost_test_XXXXXX", base);
    must(mkdtemp(path) != NULL, "mkdtemp", NULL);
    return path;
}

static inline void drop_folder(char* path) {
    TostError err;
    must(remove_tree(path, &err), "remove_tree", &err);
    free(path);
}

#endif
