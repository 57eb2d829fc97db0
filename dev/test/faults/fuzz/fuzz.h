// fuzz.h: shared by the fuzz targets: checks and temporary files.
#pragma once

#include "dev/test/scratch.h"

// Called by libFuzzer with arbitrary bytes; returns 0.
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

static inline void must_hold(bool holds, const char* what) {
    if (holds) return;
    fprintf(stderr, "broken: %s\n", what);
    abort();
}

// An error message must be one non-empty line without control characters.
static inline void check_message(const TostError* err) {
    must_hold(err->text[0] != 0, "empty error message");
    for (const char* p = err->text; *p; p++)
        must_hold((unsigned char)*p >= 0x20 && *p != 0x7F, "control character in an error message");
}

// Writes a file into this process's folder in TMPDIR and returns its path. free()
static inline char* fuzz_file(const char* name, const uint8_t* data, size_t size) {
    const char* base = getenv("TMPDIR");
    char* folder = xasprintf("%s/tost_fuzz_%ld", base ? base : "/tmp", (long)getpid());
    char* path = xasprintf("%s/%s", folder, name);
    TostError err;
    must_hold(make_dirs(folder, &err), "cannot make the input folder");
    write_bytes(path, data, size);
    free(folder);
    return path;
}

// Removes and returns the first byte of the input; 0 if it is empty.
static inline uint8_t take_byte(const uint8_t** data, size_t* size) {
    if (*size == 0) return 0;
    (*size)--;
    return *(*data)++;
}
