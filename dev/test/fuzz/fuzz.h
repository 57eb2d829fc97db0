// fuzz.h: what the fuzz targets share: a file in memory that holds the input, and properties that must hold.
#ifndef TOST_FUZZ_H
#define TOST_FUZZ_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tost/util.h"

// Called by libFuzzer: any bytes, never anything but 0.
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

static inline void must_hold(bool holds, const char* what) {
    if (holds) return;
    fprintf(stderr, "broken: %s\n", what);
    abort();
}

// A refusal says why, in one line without control characters.
static inline void must_say(const TostError* err) {
    must_hold(err->text[0] != 0, "a refusal without a word");
    for (const char* p = err->text; *p; p++)
        must_hold((unsigned char)*p >= 0x20 && *p != 0x7F, "a control character in a message");
}

// The folder of this process, below TMPDIR. free()
static inline char* fuzz_folder(void) {
    const char* base = getenv("TMPDIR");
    char* path = xasprintf("%s/tost_fuzz_%ld", base ? base : "/tmp", (long)getpid());
    TostError err;
    must_hold(make_dirs(path, &err), "the folder of the inputs");
    return path;
}

// Writes a file of that folder; its path, free()
static inline char* fuzz_file(const char* name, const uint8_t* data, size_t size) {
    char *folder = fuzz_folder(), *path = path_join(folder, name);
    FILE* f = fopen(path, "wb");
    must_hold(f && fwrite(data, 1, size, f) == size && fclose(f) == 0, "the file of the input");
    free(folder);
    return path;
}

// The first byte of an input, taken off it; 0 where there is none.
static inline uint8_t take_byte(const uint8_t** data, size_t* size) {
    if (*size == 0) return 0;
    (*size)--;
    return *(*data)++;
}

#endif
