// check.h: what every test program shares: count, say what failed and what was skipped, close on one line.
#ifndef TOST_CHECK_H
#define TOST_CHECK_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct { const char* suite; int passed, failed, skipped; } Checks;

// One check. The message says what was wanted and what came; it is printed only where ok is false.
__attribute__((format(printf, 3, 4)))
static inline bool check(Checks* c, bool ok, const char* fmt, ...) {
    if (ok) { c->passed++; return true; }
    c->failed++;
    printf("FAILED %s: ", c->suite);
    va_list ap;
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    printf("\n");
    return false;
}

__attribute__((format(printf, 2, 3)))
static inline void skip(Checks* c, const char* fmt, ...) {
    c->skipped++;
    printf("skipped %s: ", c->suite);
    va_list ap;
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    printf("\n");
}

// The closing line, and the exit status of the program: 0 only if nothing failed and something ran.
static inline int checks_verdict(const Checks* c) {
    printf("%s: %d passed, %d failed, %d skipped\n", c->suite, c->passed, c->failed, c->skipped);
    return c->failed != 0 || c->passed + c->skipped == 0;
}

// PATH below the folder of shared truth and text ($TOST_SHARED, default ../shared), or NULL where it is absent. free()
static inline char* shared_path(const char* path) {
    const char* root = getenv("TOST_SHARED");
    size_t n = (size_t)snprintf(NULL, 0, "%s/%s", root ? root : "../shared", path) + 1;
    char* full = (char*)malloc(n);   // read by C++ too
    snprintf(full, n, "%s/%s", root ? root : "../shared", path);
    if (access(full, R_OK) == 0) return full;
    free(full);
    return NULL;
}

#endif
