// check.h: counts checks, prints failed and skipped ones, and ends every test program with the same closing line.
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct { const char* suite; int passed, failed, skipped; } Checks;

static inline void print_check(const Checks* c, const char* result, const char* fmt, va_list ap) {
    printf("%s %s: ", result, c->suite);
    vprintf(fmt, ap);
    printf("\n");
}

// Counts one check and returns ok. The message, printed only if ok is false, gives the actual and the expected value.
__attribute__((format(printf, 3, 4)))
static inline bool check(Checks* c, bool ok, const char* fmt, ...) {
    if (ok) { c->passed++; return true; }
    c->failed++;
    va_list ap;
    va_start(ap, fmt);
    print_check(c, "FAILED", fmt, ap);
    va_end(ap);
    return false;
}

__attribute__((format(printf, 2, 3)))
static inline void skip(Checks* c, const char* fmt, ...) {
    c->skipped++;
    va_list ap;
    va_start(ap, fmt);
    print_check(c, "skipped", fmt, ap);
    va_end(ap);
}

// Prints the closing line and returns the exit status: 0 only if nothing failed and something ran or was skipped.
static inline int checks_verdict(const Checks* c) {
    printf("%s: %d passed, %d failed, %d skipped\n", c->suite, c->passed, c->failed, c->skipped);
    return c->failed != 0 || c->passed + c->skipped == 0;
}

// A StringList with one path, or pattern.
#define ONE_PATH(path) (&(StringList){1, (char*[]){(char*)(path)}})

// PATH in the folder of shared test data ($TOST_SHARED, default ../shared), or NULL if it does not exist. Caller frees.
static inline char* shared_path(const char* path) {
    const char* root = getenv("TOST_SHARED");
    size_t n = (size_t)snprintf(NULL, 0, "%s/%s", root ? root : "../shared", path) + 1;
    char* full = (char*)malloc(n);
    snprintf(full, n, "%s/%s", root ? root : "../shared", path);
    if (access(full, R_OK) == 0) return full;
    free(full);
    return NULL;
}
