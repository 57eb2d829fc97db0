// scratch.h: temporary files and folders for tests, and checks of error messages.
#pragma once

#include "base/error.h"
#include "base/memory.h"
#include "dev/test/check.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/crc32.h"
#include "base/files.h"
#include "base/folder.h"
#include "base/text.h"
#include "data/tokenizer.h"

// Checks that a call failed with a one-line message that contains `expected`.
static inline void check_refused(Checks* c, bool ok, const TostError* err, const char* expected, const char* what) {
    check(c, !ok && strstr(err->text, expected) && !strchr(err->text, '\n'),
          "%s: want an error that contains \"%s\", got %s%s", what, expected, ok ? "none" : "", ok ? "" : err->text);
}

// Exits if the test's own set-up fails.
static inline void must(bool ok, const char* what, const TostError* err) {
    if (ok) return;
    printf("test set-up failed: %s: %s\n", what, err ? err->text : strerror(errno));
    exit(1);
}

static inline void write_bytes(const char* path, const void* data, size_t n) {
    FILE* f = fopen(path, "wb");
    must(f && fwrite(data, 1, n, f) == n && fclose(f) == 0, path, NULL);
}

static inline void write_text(const char* path, const char* text) { write_bytes(path, text, strlen(text)); }

// Appends formatted text to `text`, which is freed. Returns the longer text; free()
__attribute__((format(printf, 2, 3)))
static inline char* append_text(char* text, const char* fmt, ...) {
    char* more = NULL;
    va_list ap;
    va_start(ap, fmt);
    must(vasprintf(&more, fmt, ap) >= 0, "vasprintf", NULL);
    va_end(ap);
    char* longer = xasprintf("%s%s", text, more);
    free(text);
    free(more);
    return longer;
}

// Limits the size of files, which simulates a full disk; RLIM_INFINITY removes the limit.
static inline void limit_file_size(rlim_t bytes) {
    struct rlimit limit;
    must(getrlimit(RLIMIT_FSIZE, &limit) == 0, "getrlimit", NULL);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    must(setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit", NULL);
}

// Like rm -rf.
static inline void remove_tree(const char* path) {
    struct stat st;
    StringList names = {0};
    TostError err;
    if (lstat(path, &st) != 0) {
        must(errno == ENOENT, path, NULL);
        return;
    }
    if (S_ISDIR(st.st_mode)) must(folder_list(&names, path, &err), path, &err);
    for (int i = 0; i < names.count; i++) {
        char* child = xasprintf("%s/%s", path, names.strings[i]);
        remove_tree(child);
        free(child);
    }
    free_strings(&names);
    must(remove(path) == 0, path, NULL);
}

// Creates an empty folder, in /dev/shm if possible because saves call fsync. free()
static inline char* new_folder(void) {
    const char* base = getenv("TMPDIR");
    if (!base || !base[0]) base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    char* path = xasprintf("%s/tost_test_XXXXXX", base);
    must(mkdtemp(path) != NULL, "mkdtemp", NULL);
    return path;
}

// Runs tests in a new folder. Returns the exit status.
typedef void Test(Checks* c);
static inline int run_tests(const char* suite, Test* const* tests, size_t n) {
    Checks c = {.suite = suite};
    char* dir = new_folder();
    must(chdir(dir) == 0, "chdir", NULL);
    for (size_t i = 0; i < n; i++) tests[i](&c);
    remove_tree(dir);
    free(dir);
    return checks_verdict(&c);
}
#define RUN_TESTS(suite, ...) \
    run_tests(suite, (Test* const[]){__VA_ARGS__}, sizeof (Test* const[]){__VA_ARGS__} / sizeof(Test*))

static inline Bytes bytes_of(const char* path) {
    TostError err;
    Bytes b;
    must(read_file(&b, path, &err), "read_file", &err);
    return b;
}

static inline void check_file(Checks* c, const char* path, const char* wanted, const char* what) {
    Bytes is = bytes_of(path);
    check(c, strcmp(is.data, wanted) == 0, "%s: expected %s, got %s", what, wanted, is.data);
    free(is.data);
}

// Replaces a text that a file has by one of the same length.
static inline void replace_in_file(const char* path, const char* from, const char* to) {
    const Bytes b = bytes_of(path);
    char* at = memmem(b.data, b.size, from, strlen(from));
    must(at && strlen(from) == strlen(to), from, NULL);
    memcpy(at, to, strlen(to));
    if ((at = memmem(b.data, b.size, "\"header_crc32\":\"", 16))) {   // of a checkpoint: then its checksum is right
        const TextLine crc = text_line("%08x", (unsigned)crc32_update(0, b.data + 8, (size_t)(at - b.data) - 8));
        memcpy(at + 16, crc.text, 8);
    }
    write_bytes(path, b.data, b.size);
    free(b.data);
}

// A tokenizer whose tokens are the 256 bytes and <|endoftext|>.
static inline Tokenizer* byte_tokenizer(void) {
    TostError err;
    char *dir = new_folder(), *path = xasprintf("%s/bytes.bpe", dir);
    write_text(path, "#version: 0.2\n");
    Tokenizer* tokenizer = tokenizer_open(path, &err);
    must(tokenizer != NULL, "tokenizer_open", &err);
    free(path);
    remove_tree(dir);
    free(dir);
    return tokenizer;
}

// The text of n of its tokens, with ^ for <|endoftext|>. free()
static inline char* byte_text(const Tokenizer* t, const uint32_t* ids, size_t n) {
    char* text = xcalloc(n + 1, 1);
    for (size_t i = 0; i < n; i++) {
        size_t len;
        text[i] = ids[i] == (uint32_t)tokenizer_eot(t) ? '^' : tokenizer_piece(t, ids[i], &len)[0];
    }
    return text;
}

// True if the tokens have the n bytes of the text.
static inline bool decodes_to(const Tokenizer* t, const uint32_t* ids, size_t count, const char* text, size_t n) {
    size_t at = 0;
    for (size_t i = 0, len; i < count; i++, at += len) {
        const char* piece = tokenizer_piece(t, ids[i], &len);
        if (!piece || len > n - at || memcmp(text + at, piece, len) != 0) return false;
    }
    return at == n;
}

static inline void set_waiting(int fd, bool waiting) {
    const int flags = fcntl(fd, F_GETFL);
    must(flags >= 0 && fcntl(fd, F_SETFL, waiting ? flags & ~O_NONBLOCK : flags | O_NONBLOCK) == 0, "fcntl", NULL);
}

// Makes a pipe that nobody reads full, and empty again.
static inline void fill_pipe(int fd) {
    static const char zeros[4096];
    set_waiting(fd, false);
    for (size_t n = sizeof zeros; n > 0; n /= 2)
        while (write(fd, zeros, n) > 0) {}
    set_waiting(fd, true);
}

static inline void empty_pipe(int fd) {
    char block[4096];
    set_waiting(fd, false);
    while (read(fd, block, sizeof block) > 0) {}
    set_waiting(fd, true);
}
