// test_files.c: error, text, files, rng, json and safetensors: known values, invalid input, writing and reading back.
#include "base/crc32.h"
#include "base/error.h"
#include "base/files.h"
#include "base/memory.h"
#include "base/text.h"
#include "dev/test/scratch.h"

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/json.h"
#include "base/rng.h"
#include "run/safetensors.h"

// ---------------------------------------------------------------------------------------------
// util

static void test_errors(Checks* c) {
    TostError err;
    check(c, !tost_error(&err, "%s: %d", "file", 7) && strcmp(err.text, "file: 7") == 0, "tost_error: got %s",
          err.text);
    tost_error(&err, "outer: %s", err.text);
    check(c, strcmp(err.text, "outer: file: 7") == 0, "an error may contain its own earlier text: got %s", err.text);
    tost_error(&err, "a\nb\x1b[31m%s", "\x7f");
    check(c, strcmp(err.text, "a\\nb\\x1b[31m\\x7f") == 0, "control characters must not reach the terminal: got %s",
          err.text);
    char* lengthy = xasprintf("%03000d", 1);
    tost_error(&err, "%s", lengthy);
    check(c, strlen(err.text) == sizeof err.text - 1, "a long error is truncated: got %zu bytes", strlen(err.text));
    free(lengthy);
    for (int shift = 0; shift < 3; shift++) {   // characters of three bytes must not be split
        char text[3004] = "file ";
        for (int i = 0; i < 990; i++) strcat(text, "…");
        tost_error(&err, "%s%s: what is wrong", &"ab"[2 - shift], text);
        const size_t n = strlen(err.text);
        int whole = 0;
        for (const char* p = err.text; (p = strstr(p, "…")); p += 3) whole++;
        check(c, n > sizeof err.text - 6 && n == 22 + (size_t)shift + 3 * (size_t)whole
              && strncmp(err.text + shift, "file …", 8) == 0 && strcmp(err.text + n - 15, ": what is wrong") == 0,
              "a long error keeps its ends and complete characters: got %s", err.text);
    }
}

static void test_printable_text(Checks* c) {
    static const struct { const char *text, *printed; } cases[] = {
        {"", ""}, {"plain \\ text", "plain \\ text"}, {"é … 😀 ×", "é … 😀 ×"}, {"a\tb\r\n", "a\\tb\\r\\n"},
        {"\x1b]0;title\x07\x7f", "\\x1b]0;title\\x07\\x7f"}, {"caf\xe9", "caf\\xe9"}, {"\xe2\x80", "\\xe2\\x80"},
        {"\xc2\x9b" "31m\xc2\xa0", "\\xc2\\x9b31m\xc2\xa0"},                            // U+009B is CSI
        {"\xe2\x80\xae" "cod\xe2\x81\xa6", "\\xe2\\x80\\xaecod\\xe2\\x81\\xa6"},          // right to left
        {"\xe2\x80\xa8\xe2\x80\xaf", "\\xe2\\x80\\xa8\xe2\x80\xaf"},                     // line separator, space
        {"\xed\xa0\x80\xc0\xaf", "\\xed\\xa0\\x80\\xc0\\xaf"},                         // surrogate, overlong
    };
    for (size_t i = 0; i < countof(cases); i++) {
        char *once = printable_text(cases[i].text), *twice = printable_text(once);
        check(c, strcmp(once, cases[i].printed) == 0 && strcmp(once, twice) == 0, "printable text: got %s, want %s",
              once, cases[i].printed);
        free(once);
        free(twice);
    }
}

static void test_memory(Checks* c) {
    static const size_t sizes[] = {0, 1, 4095, 4096, 4097, (4 << 20) - 1, 4 << 20, (6 << 20) + 5};
    for (size_t i = 0; i < countof(sizes); i++) {
        unsigned char* p = alloc_pages(sizes[i]);
        size_t align = sizes[i] >= 4 << 20 ? 2 << 20 : 64;
        if (!check(c, p && (uintptr_t)p % align == 0, "alloc_pages(%zu): %p is not aligned to %zu", sizes[i],
                   (void*)p, align)) {
            continue;
        }
        size_t dirty = 0;
        for (size_t k = 0; k < sizes[i]; k++) dirty += p[k] != 0;
        check(c, dirty == 0, "alloc_pages(%zu): %zu bytes are not zero", sizes[i], dirty);
        if (sizes[i]) p[sizes[i] - 1] = 1;
        free_pages(p, sizes[i]);
    }
    check(c, !alloc_pages(SIZE_MAX) && !alloc_pages(SIZE_MAX / 2),
          "alloc_pages of half the address space must fail");
    free_pages(NULL, 0);
    free(xmalloc(0));
    free(xcalloc(0, 8));
}

static void test_crc(Checks* c) {
    uint32_t crc = crc32_update(0, "123456789", 9);
    check(c, crc == 0xcbf43926, "CRC-32 of 123456789: expected cbf43926, got %08" PRIx32, crc);
    check(c, crc32_update(0, NULL, 0) == 0, "CRC-32 of nothing is 0");
    enum { N = 5000 };
    unsigned char data[N];
    for (int i = 0; i < N; i++) data[i] = (unsigned char)(i * 7 + i / 256);
    crc = crc32_update(0, data, N);
    check(c, crc == 0xa4f08d8e, "CRC-32 of 5000 bytes: expected zlib's a4f08d8e, got %08" PRIx32, crc);
    for (int cut = 0; cut <= N; cut += 613) {  // pieces below and above the length at which the algorithm changes
        uint32_t joined = crc32_update(crc32_update(0, data, (size_t)cut), data + cut, (size_t)(N - cut));
        check(c, joined == crc, "CRC-32 in two pieces cut at %d: expected %08" PRIx32 ", got %08" PRIx32, cut,
              crc, joined);
    }
}

static void test_human(Checks* c) {
    static const struct { double n; const char *count, *bytes; } cases[] = {
        {0, "0", "0 B"}, {999, "999", "999 B"}, {1000, "1.0K", "1000 B"}, {1024, "1.0K", "1.00 KiB"},
        {109604352, "109.6M", "104.53 MiB"}, {2684354560, "2.7B", "2.50 GiB"},
        {999949, "999.9K", "976.51 KiB"},
        {999960, "1.0M", "976.52 KiB"}, {1048575, "1.0M", "1.00 MiB"}, {1.5e12, "1.5T", "1.36 TiB"},
    };
    for (size_t i = 0; i < countof(cases); i++) {
        char count[32], bytes[32];
        human_count(count, cases[i].n);
        human_bytes(bytes, cases[i].n);
        check(c, strcmp(count, cases[i].count) == 0, "human_count(%g): expected %s, got %s", cases[i].n,
              cases[i].count, count);
        check(c, strcmp(bytes, cases[i].bytes) == 0, "human_bytes(%g): expected %s, got %s", cases[i].n,
              cases[i].bytes, bytes);
    }
}

static void test_paths(Checks* c) {
    static const char* const dirs[][2] = {
        {"a/b", "a"}, {"b", "."}, {"/b", "/"}, {"a/b/", "a"}, {"a//b", "a"}, {"/", "/"}, {"", "."},
    };
    for (size_t i = 0; i < countof(dirs); i++) {
        char* dir = path_dir(dirs[i][0]);
        check(c, strcmp(dir, dirs[i][1]) == 0, "path_dir(%s): expected %s, got %s", dirs[i][0],
              dirs[i][1], dir);
        free(dir);
    }
    char* joined = path_join("a/", "b");
    check(c, strcmp(joined, "a/b") == 0, "path_join(a/, b): got %s", joined);
    free(joined);
}

static void test_folders(Checks* c, const char* tmp) {
    TostError err;
    char* deep = path_join(tmp, "x/y//z/");
    char* top = path_join(tmp, "x");
    char* file = path_join(tmp, "x/y/file");
    char* below_file = path_join(tmp, "x/y/file/z");
    char* outside = path_join(tmp, "outside");
    char* link = path_join(tmp, "x/link");
    check(c, make_dirs(deep, &err) && is_dir(deep), "make_dirs(%s)", deep);
    check(c, make_dirs(deep, &err), "make_dirs of an existing folder: %s", err.text);
    write_bytes(file, "hello\0you", 9);
    check_refused(c, make_dirs(below_file, &err), &err, "x/y/file: the folder cannot be created",
                  "make_dirs below a file");
    char *made = path_join(top, "made/here"), *vast = xasprintf("%s/%0300d", made, 0);
    check_refused(c, make_dirs(vast, &err), &err, "ame too long", "make_dirs with a name of 300 bytes");
    check(c, existing_dirs(made) == strlen(top), "make_dirs must remove what it made: %zu", existing_dirs(made));
    check(c, existing_dirs(deep) == strlen(deep), "existing_dirs: %zu", existing_dirs(deep));
    remove_new_dirs(deep, strlen(top));
    check(c, is_dir(top), "remove_new_dirs keeps what existed");
    must(make_dirs(deep, &err), "make_dirs", &err);
    free(made);
    free(vast);
    check(c, sync_dir(top, &err), "sync_dir: %s", err.text);
    check_refused(c, sync_dir(file, &err), &err, "cannot be opened", "sync_dir of a file");
    make_dirs(outside, &err);
    check(c, symlink(outside, link) == 0, "symlink");
    check(c, remove_tree(top, &err) && !path_exists(top), "remove_tree(%s)", top);
    check(c, is_dir(outside), "remove_tree must not follow links");
    check(c, remove_tree(top, &err), "remove_tree of an absent folder");
    remove_tree(outside, &err);
    free(deep), free(top), free(file), free(below_file), free(outside), free(link);
}

static void test_read_file(Checks* c, const char* tmp) {
    TostError err;
    Bytes b;
    char* path = path_join(tmp, "content");
    write_bytes(path, "hello\0you", 9);
    check(c, read_file(&b, path, &err) && b.size == 9 && memcmp(b.data, "hello\0you", 10) == 0, "read_file");
    free(b.data);
    check(c, read_file(&b, "/dev/null", &err) && b.size == 0 && b.data[0] == 0, "read_file of nothing");
    free(b.data);
    check_refused(c, read_file(&b, tmp, &err), &err, "is a folder", "read_file of a folder");
    unlink(path);
    check_refused(c, read_file(&b, path, &err), &err, "content: cannot be opened",
                  "read_file of an absent file");
    int pipe_ends[2], kept = dup(STDIN_FILENO);
    if (check(c, pipe(pipe_ends) == 0, "pipe")) {
        check(c, write(pipe_ends[1], "piped", 5) == 5, "write to a pipe");
        close(pipe_ends[1]);
        dup2(pipe_ends[0], STDIN_FILENO);
        close(pipe_ends[0]);
        check(c, read_file(&b, "-", &err) && b.size == 5 && strcmp(b.data, "piped") == 0,
              "read_file of stdin");
        free(b.data);
        if (kept >= 0) dup2(kept, STDIN_FILENO);
    }
    if (kept >= 0) close(kept);
    free(path);
}

static void test_glob(Checks* c, const char* tmp) {
    static const char* const names[] = {"g_2.bin", "g_10.bin", "g_1.bin", "g[1].bin", "G_1.bin"};
    static const char* const sorted[] = {"g_1.bin", "g_10.bin", "g_2.bin"};
    TostError err;
    PathList list;
    for (size_t i = 0; i < countof(names); i++) {
        char* path = path_join(tmp, names[i]);
        write_text(path, "x");
        free(path);
    }
    char* pattern = path_join(tmp, "g_*.bin");
    check(c, expand_glob(&list, pattern, &err) && list.count == 3, "expand_glob: %d files", list.count);
    for (int i = 0; i < list.count && i < 3; i++) {
        check(c, strcmp(strrchr(list.paths[i], '/') + 1, sorted[i]) == 0, "expand_glob %d: expected %s, got %s",
              i, sorted[i],
              list.paths[i]);
    }
    free_paths(&list);
    free(pattern);
    pattern = path_join(tmp, "g[1].bin");
    check(c, expand_glob(&list, pattern, &err) && list.count == 1 && strcmp(list.paths[0], pattern) == 0,
          "a file name with brackets");
    free_paths(&list);
    free(pattern);
    pattern = path_join(tmp, "none_*.bin");
    check_refused(c, expand_glob(&list, pattern, &err), &err, "none_*.bin: no file matches",
                  "a glob without a match");
    free(pattern);
}

// ---------------------------------------------------------------------------------------------
// rng: expected values were computed by another program from the papers' definitions

static void test_rng(Checks* c) {
    Rng known = {{1, 2, 3, 4}};
    static const uint64_t published[] = {
        41943041, 58720359, 3588806011781223, 3591011842654386, 9228616714210784205u, 9973669472204895162u,
    };
    for (size_t i = 0; i < countof(published); i++) {
        uint64_t x = rng_u64(&known);
        check(c, x == published[i], "xoshiro256++ %zu: expected %" PRIu64 ", got %" PRIu64, i, published[i], x);
    }
    static const struct { uint64_t seed, stream, first[4]; } seeds[] = {
        {0, 0, {0x3ed1653f0682083a, 0x852cecd8e7418ff7, 0x8deb058ebaf6ffc3, 0x5d6618916da2d0f5}},
        {1234, 0, {0xd06b7457bb069ce3, 0xa495eb4fad032cda, 0x886d17b12c8b4b74, 0xd82e1819fd28cc06}},
        {1234, 7, {0x13ea4fd4caab36e4, 0x25f6db5e615ba12d, 0x5337d570ab6dbeff, 0x0d17ca3e4a9bcf92}},
        {UINT64_MAX, UINT64_MAX,
         {0x31295067a409d2da, 0x5dff231d5e61c914, 0x03564769c9816b66, 0x842725f2ca34f9cb}},
    };
    for (size_t i = 0; i < countof(seeds); i++) {
        Rng r = rng_seeded(seeds[i].seed, seeds[i].stream);
        for (int k = 0; k < 4; k++) {
            uint64_t x = rng_u64(&r);
            check(c, x == seeds[i].first[k],
                  "seed %" PRIu64 ", stream %" PRIu64 ", number %d: expected %" PRIx64 ", got %"
                  PRIx64, seeds[i].seed, seeds[i].stream, k, seeds[i].first[k], x);
        }
    }
}

static void test_rng_ranges(Checks* c) {
    static const uint64_t digits[] = {8, 5, 4, 1, 1, 4, 2, 3, 4, 7, 1, 0};
    static const uint64_t wide[] = {0x7fdf8aad5431ed59, 0x437cbe153f853db1, 0x8f64130728822433,
                                    0x7a98f557e024db5e};
    static const double uniform[] = {0.4453467333079868, 0.6477713910386264, 0.8117194497908141};
    static const double normal[] = {2.3004035930789857, -0.8021940445935899, -0.39664555680986013};
    Rng r = rng_seeded(42, 1);
    for (size_t i = 0; i < countof(digits); i++) {
        uint64_t x = rng_below(&r, 10);
        check(c, x == digits[i], "rng_below(10) %zu: expected %" PRIu64 ", got %" PRIu64, i, digits[i], x);
    }
    r = rng_seeded(42, 1);
    for (size_t i = 0; i < countof(wide); i++) {  // a quarter of all numbers is rejected
        uint64_t x = rng_below(&r, 3ull << 62);
        check(c, x == wide[i], "rng_below(3·2^62) %zu: expected %" PRIx64 ", got %" PRIx64, i, wide[i], x);
    }
    r = rng_seeded(42, 2);
    for (size_t i = 0; i < countof(uniform); i++) {
        double x = rng_uniform(&r);
        check(c, x == uniform[i], "rng_uniform %zu: expected %.17g, got %.17g", i, uniform[i], x);
    }
    r = rng_seeded(42, 3);
    for (size_t i = 0; i < countof(normal); i++) {
        double x = rng_normal(&r);
        check(c, fabs(x - normal[i]) <= 1e-14, "rng_normal %zu: expected %.17g, got %.17g", i, normal[i], x);
    }
    check(c, rng_below(&r, 1) == 0, "rng_below(1) is 0");
    double sum = 0, squares = 0;
    enum { N = 100000 };
    for (int i = 0; i < N; i++) {
        double x = rng_normal(&r);
        sum += x;
        squares += x * x;
    }
    check(c, fabs(sum / N) < 0.013, "rng_normal: mean %g of %d, expected 0 within 4 sigma", sum / N, N);
    check(c, fabs(squares / N - 1) < 0.018, "rng_normal: variance %g of %d, expected 1 within 4 sigma",
          squares / N, N);
}

// ---------------------------------------------------------------------------------------------
// json

static bool accepts(const char* text, size_t n, TostError* err) {
    char* exact = xmalloc(n);  // exact size, so that a sanitizer detects reads past the end
    memcpy(exact, text, n);
    Json j = json_open(exact, n, err);
    bool ok = json_skip(&j) && json_at_end(&j);
    free(exact);
    return ok;
}

static void test_json_accepts(Checks* c) {
    static const char* const good[] = {
        "{}", "[]", " [ ] ", "0", "-0", "1e5", "-1.5E-3", "\"\"", "true", "false", "null", "[1,2 , 3]",
        "\t{\"a\":[{}]}\r\n",
        "\"\\u0000\\ud83d\\ude00\\ud800\"", "\"h\xc3\xa9 \xf0\x9f\x98\x80\"", "[[],{},[[]]]",
        "{\"\":0,\"\":0}",
        "123456789012345678901234567890", "\"\x7f\"",
    };
    TostError err;
    for (size_t i = 0; i < countof(good); i++) {
        check(c, accepts(good[i], strlen(good[i]), &err), "json %s: %s", good[i], err.text);
    }
    char deep[2 * JSON_MAX_DEPTH];
    memset(deep, '[', JSON_MAX_DEPTH);
    memset(deep + JSON_MAX_DEPTH, ']', JSON_MAX_DEPTH);
    check(c, accepts(deep, sizeof deep, &err), "json nested %d deep: %s", JSON_MAX_DEPTH, err.text);
}

static void test_json_refuses(Checks* c) {
    static const char* const bad[][2] = {
        {"", "byte 0: expected a value, found the end"}, {"   ", "byte 3: expected a value"},
        {"\xef\xbb\xbf{}", "byte 0"},
        {"{", "byte 1: expected a \"key\""}, {"[", "byte 1: expected a value"},
        {"[1", "byte 2: expected ',' or ']'"},
        {"[1,]", "byte 3: expected a value, found ']'"}, {"[,1]", "byte 1: expected a value"},
        {"[1 2]", "byte 3: expected ',' or ']'"},
        {"[1}", "byte 2: expected ',' or ']', found '}'"},
        {"{\"a\":1]", "byte 6: expected ',' or '}', found ']'"},
        {"{\"a\"}", "byte 4: expected ':'"}, {"{\"a\":}", "byte 5: expected a value"},
        {"{\"a\":1,}", "byte 7: expected a \"key\""},
        {"{a:1}", "byte 1: expected a \"key\", found 'a'"}, {"{1:1}", "byte 1: expected a \"key\""},
        {"{'a':1}", "byte 1: expected a \"key\""},
        {"]", "byte 0: expected a value, found ']'"}, {"{}{}", "byte 2: expected the end of the text"},
        {"1 2", "byte 2: expected the end of the text"},
        {"tru", "byte 0: expected true, false or null"}, {"nulL", "byte 0: expected true, false or null"},
        {"trues", "byte 4: expected the end of the text"},
        {"NaN", "byte 0: expected a value, found 'N'"}, {"Infinity", "byte 0: expected a value"},
        {"-Infinity", "byte 1: expected a digit"},
        {"01", "byte 1: expected no digit after a leading 0"}, {"-", "byte 1: expected a digit"},
        {"+1", "byte 0: expected a value, found '+'"},
        {".5", "byte 0: expected a value"}, {"1.", "byte 2: expected a digit after the point"},
        {"1.e3", "byte 2: expected a digit after the point"},
        {"1e", "byte 2: expected a digit in the exponent"}, {"1e+-2", "byte 3: expected a digit in the exponent"},
        {"0x10", "byte 1: expected the end"},
        {"\"", "byte 1: expected the closing quote"}, {"\"abc", "byte 4: expected the closing quote"},
        {"\"a\nb\"", "byte 2: expected an escape instead"},
        {"\"\\x41\"", "byte 2: expected one of"}, {"\"\\", "byte 2: expected one of"},
        {"\"\\u12", "byte 5: expected a hexadecimal digit"},
        {"\"\\u12g4\"", "byte 5: expected a hexadecimal digit, found 'g'"},
        {"\"\\ud800\\u00z0\"", "byte 11: expected a hexadecimal digit"},
        {"\"\xff\"", "byte 1: expected valid UTF-8, found byte 0xff"}, {"\"\xc0\x80\"", "byte 1: expected valid UTF-8"},
        {"\"\xc3\"", "byte 1: expected valid UTF-8"}, {"\"\xe0\x80\x80\"", "byte 1: expected valid UTF-8"},
        {"\"\xed\xa0\x80\"", "byte 1: expected valid"},
        {"\"\xf4\x90\x80\x80\"", "byte 1: expected valid UTF-8"}, {"\"\xf0\x9f\x98", "byte 1: expected valid UTF-8"},
        {"// x\n1", "byte 0: expected a value"},
    };
    TostError err;
    for (size_t i = 0; i < countof(bad); i++) {
        bool ok = accepts(bad[i][0], strlen(bad[i][0]), &err);
        check_refused(c, ok, &err, bad[i][1], bad[i][0]);
    }
    check_refused(c, accepts("\"a\0\"", 4, &err), &err, "byte 2: expected an escape", "a NUL in a string");
    check_refused(c, accepts("1\0", 2, &err), &err, "byte 1: expected the end of the text, found byte 0x00",
                  "a NUL after a number");
    enum { DEEP = 100000 };
    char* deep = xmalloc(DEEP);
    memset(deep, '[', DEEP);
    check_refused(c, accepts(deep, DEEP, &err), &err, "byte 64: nested deeper than 64", "100000 brackets");
    for (int i = 0; i + 5 <= DEEP; i += 5) memcpy(deep + i, "{\"a\":", 5);
    check_refused(c, accepts(deep, DEEP, &err), &err, "byte 320: nested deeper than 64", "20000 braces");
    free(deep);
}

static void test_json_strings(Checks* c) {
    static const struct { const char *text, *decoded; size_t len; } cases[] = {
        {"\"\"", "", 0}, {"\"plain\"", "plain", 5}, {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t", 8},
        {"\"\\u0041\\u00e9\\u20AC\"", "A\xc3\xa9\xe2\x82\xac", 6},
        {"\"\\ud83d\\ude00\"", "\xf0\x9f\x98\x80", 4},
        {"\"\\ud800\"", "\xef\xbf\xbd", 3}, {"\"\\udc00x\"", "\xef\xbf\xbdx", 4},
        {"\"a\\u0000b\"", "a\0b", 3},
        {"\"\\ud800\\u0041\"", "\xef\xbf\xbd" "A", 4},
        {"\"\\ud800\\ud83d\\ude00\"", "\xef\xbf\xbd\xf0\x9f\x98\x80", 7},
        {"\"\\udbff\\udfff\"", "\xf4\x8f\xbf\xbf", 4}, {"\"\xe2\x82\xac\"", "\xe2\x82\xac", 3},
    };
    TostError err = {{0}};
    for (size_t i = 0; i < countof(cases); i++) {
        char out[32];
        size_t len = 99;
        Json j = json_open(cases[i].text, strlen(cases[i].text), &err);
        bool ok = json_string(&j, out, sizeof out, &len) && json_at_end(&j);
        check(c, ok && len == cases[i].len && memcmp(out, cases[i].decoded, len + 1) == 0,
              "json string %s: got %zu bytes %s",
              cases[i].text, len, ok ? out : err.text);
        if (!ok || len == 0) continue;
        j = json_open(cases[i].text, strlen(cases[i].text), &err);
        check_refused(c, json_string(&j, out, len, &len), &err, "byte 0: a string longer than",
                      "a string in too small a buffer");
    }
}

static void test_json_write_string(Checks* c) {
    static const char text[] = "a\"\\/\n\r\t\0\x1f\x7f\xc3\xa9\xff";
    static const char expected[] = "\"a\\\"\\\\/\\n\\r\\t\\u0000\\u001f\x7f\xc3\xa9\xef\xbf\xbd\"";
    char* written = NULL;
    size_t n = 0;
    FILE* out = open_memstream(&written, &n);
    json_write_string(out, text, sizeof text - 1);
    fclose(out);
    check(c, strcmp(written, expected) == 0, "json_write_string: expected %s, got %s", expected, written);
    free(written);
}

static void test_json_numbers(Checks* c) {
    static const struct { const char* text; uint64_t value; const char* error; } whole[] = {
        {"0", 0, NULL}, {"18446744073709551615", UINT64_MAX, NULL}, {" 42 ", 42, NULL},
        {"18446744073709551616", 0, "byte 0: an integer over 2^64 - 1"},
        {"99999999999999999999999", 0, "over 2^64"},
        {"-1", 0, "expected a non-negative integer, found '-'"}, {"1.0", 0, "without fraction"},
        {"1e3", 0, "without fraction"},
        {"\"1\"", 0, "a non-negative integer"}, {"007", 0, "no digit after a leading 0"},
        {"", 0, "found the end"},
    };
    static const struct { const char* text; double value; const char* error; } real[] = {
        {"0", 0, NULL}, {"-1.25e2", -125, NULL}, {"4.9e-324", 4.9e-324, NULL}, {"1e-999", 0, NULL},
        {"0.1", 0.1, NULL},
        {"1e999", 0, "outside the range"}, {"-", 0, "expected a digit"}, {"nan", 0, "expected a number"},
        {"inf", 0, "a number"},
    };
    TostError err;
    for (size_t i = 0; i < countof(whole); i++) {
        uint64_t v = 7;
        Json j = json_open(whole[i].text, strlen(whole[i].text), &err);
        bool ok = json_u64(&j, &v);
        if (whole[i].error) check_refused(c, ok, &err, whole[i].error, whole[i].text);
        else check(c, ok && v == whole[i].value, "json_u64 %s: got %" PRIu64, whole[i].text, v);
    }
    for (size_t i = 0; i < countof(real); i++) {
        double v = 7;
        Json j = json_open(real[i].text, strlen(real[i].text), &err);
        bool ok = json_double(&j, &v);
        if (real[i].error) check_refused(c, ok, &err, real[i].error, real[i].text);
        else check(c, ok && v == real[i].value, "json_double %s: got %g", real[i].text, v);
    }
    char digits[1000];
    memset(digits, '1', sizeof digits);
    double v;
    Json j = json_open(digits, sizeof digits, &err);
    check_refused(c, json_double(&j, &v), &err, "more than 400 characters", "a number of 1000 digits");
}

static void test_json_walk(Checks* c) {
    const char text[] = "{\"endings\": [\"a\", \"b\"], \"skip\": {\"x\": [1, {}]}, \"label\": 3}";
    TostError err = {{0}};
    Json j = json_open(text, sizeof text - 1, &err);
    char key[16], value[16];
    int endings = 0;
    uint64_t label = 0;
    bool ok = json_peek(&j) == JSON_OBJECT && json_enter(&j, JSON_OBJECT);
    while (ok && json_next(&j) == 1) {
        ok = json_key(&j, key, sizeof key, NULL);
        if (ok && strcmp(key, "endings") == 0) {
            ok = json_enter(&j, JSON_ARRAY);
            while (ok && json_next(&j) == 1) {
                ok = json_string(&j, value, sizeof value, NULL) && value[0] == 'a' + endings;
                endings++;
            }
        } else if (ok) {
            ok = strcmp(key, "label") == 0 ? json_u64(&j, &label) : json_skip(&j);
        }
    }
    check(c, ok && json_at_end(&j) && endings == 2 && label == 3, "walking an object: %s", err.text);
    j = json_open("[1]", 3, &err);
    check_refused(c, json_enter(&j, JSON_OBJECT), &err, "byte 0: expected an object, found '['",
                  "entering the wrong kind");
    check(c, json_enter(&j, JSON_ARRAY) && json_next(&j) == 1 && json_peek(&j) == JSON_NUMBER,
          "entering the right kind");
    check_refused(c, json_at_end(&j), &err, "the end of an object or array", "json_at_end inside an array");
}

// ---------------------------------------------------------------------------------------------
// safetensors

// Writes a file: `length` in 8 bytes, the header of n bytes, `data` zero bytes.
static void make_st(const char* path, const char* header, size_t n, size_t data, uint64_t length) {
    char* bytes = xcalloc(1, 8 + n + data);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, n);
    write_bytes(path, bytes, 8 + n + data);
    free(bytes);
}

#define FIFTY "01234567890123456789012345678901234567890123456789"
#define T_(name, dtype, shape, from, to) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" from "," to "]}"

static const struct { const char* header; size_t data; const char* error; } invalid_headers[] = {
    {"[]", 0, "no '{' at offset 8"}, {"  {}", 0, "no '{' at offset 8"},
    {"{}x", 0, "byte 2: expected the end of the text"},
    {"{\"a\":1}", 0, "tensor 'a': byte 5: expected an object"},
    {"{\"a\":{}}", 0, "tensor 'a': dtype is missing"},
    {"{\"a\":{\"dtype\":\"F32\"}}", 0, "shape is missing"}, {"{ ", 0, "found the end"},
    {"{\"a", 0, "closing quote"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}", 0, "data_offsets is missing"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", 0, "dtype appears twice"},
    {"{\"a\":{\"dtype\":7}}", 0, "expected a string"},
    {"{" T_("a", "Q8", "", "0", "4") "}", 4, "tensor 'a': dtype 'Q8'"},
    {"{" T_("a", "f32", "", "0", "4") "}", 4, "dtype 'f32'"},
    {"{" T_("a", "F32", "-1", "0", "4") "}", 4, "found '-'"},
    {"{" T_("a", "F32", "1.0", "0", "4") "}", 4, "without fraction"},
    {"{" T_("a", "F32", "1,1,1,1,1,1,1,1,1", "0", "4") "}", 4, "more than 8 dimensions"},
    {"{" T_("a", "F32", "9223372036854775808", "0", "4") "}", 4, "over 2^63 - 1"},
    {"{" T_("a", "F32", "4294967296,4294967296", "0", "4") "}", 4, "more bytes than 64 bits"},
    {"{" T_("a", "F64", "2305843009213693952", "0", "0") "}", 0, "more bytes than 64 bits"},
    {"{" T_("a", "F32", "4611686018427387904,2,2", "0", "0") "}", 0, "more bytes than 64 bits"},
    {"{" T_("a", "F32", "2", "0", "4") "}", 4, "dtype and shape, which take 8 bytes"},
    {"{" T_("a", "F32", "1", "4", "0") "}", 4, "data_offsets [4, 0]"},
    {"{" T_("a", "F32", "1", "0", "18446744073709551616") "}", 4, "over 2^64 - 1"},
    {"{" T_("a", "F32", "1", "18446744073709551612", "0") "}", 4,
     "data_offsets [18446744073709551612, 0]"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "expected two numbers"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, "expected two numbers"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":4,\"data_offsets\":[0,4]}}", 4, "expected an array, found '4'"},
    {"{" T_("a", "F32", "2", "0", "8") "}", 4,
     "truncated: tensor 'a' has 8 bytes at 0 of the data, which has 4"},
    {"{" T_("a", "F32", "1", "0", "4") "}", 5, "1 extra bytes after the last tensor"},
    {"{}", 1, "1 extra bytes after the last"},
    {"{" T_("a", "F32", "1", "4", "8") "}", 8,
     "tensor 'a' starts at byte 4 of the data, but the one before it ends at 0: gap"},
    {"{" T_("a", "F32", "1", "0", "4") "," T_("b", "F32", "1", "8", "12") "}", 12,
     "tensor 'b' starts at byte 8"},
    {"{" T_("a", "F32", "2", "0", "8") "," T_("b", "F32", "1", "4", "8") "}", 8, "overlap"},
    {"{" T_("a", "F32", "1", "0", "4") "," T_("b", "F32", "1", "0", "4") "}", 4,
     "tensor 'b' starts at byte 0"},
    {"{" T_("a", "F32", "1", "0", "4") "," T_("a", "F32", "1", "4", "8") "}", 8,
     "tensor 'a' appears twice"},
    {"{" T_("a", "F32", "0", "0", "0") "," T_("\\u0061", "F32", "0", "0", "0") "}", 0,
     "'a' appears twice"},
    {"{" T_("a\\u0000b", "F32", "", "0", "4") "}", 4, "a NUL in the name 'a'"},
    {"{\"__metadata__\":{\"k\":1}}", 0, "expected a string"},
    {"{\"__metadata__\":null}", 0, "expected an object"},
    {"{\"__metadata__\":{\"k\":\"v\\u0000\"}}", 0, "a NUL in 'v'"},
    {"{\"__metadata__\":{\"k\":\"v\\u0000w\"}}", 0, "a NUL in 'v'"},
    {"{\"__metadata__\":{\"k\":\"v\\u0000\\u007f\"}}", 0, "a NUL in 'v'"},
    {"{\"__metadata__\":{\"k\":\"v\\u0000\\u0100\"}}", 0, "a NUL in 'v'"},
    {"{\"__metadata__\":{}", 0, "found the end"},
    {"{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, "__metadata__ 'k' appears twice"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__ appears twice"},
    {"{\"a\":{\"x\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", 0,
     "nested deeper"},
    {"{" T_(FIFTY FIFTY FIFTY "0123456789", "F32", "", "0", "4") "}", 4, "longer than 159 bytes"},
};

static void test_st_refuses(Checks* c, const char* tmp) {
    TostError err;
    StFile f;
    char* path = path_join(tmp, "invalid.safetensors");
    for (size_t i = 0; i < countof(invalid_headers); i++) {
        size_t n = strlen(invalid_headers[i].header);
        make_st(path, invalid_headers[i].header, n, invalid_headers[i].data, n);
        bool ok = st_open(&f, path, &err);
        check_refused(c, ok, &err, invalid_headers[i].error, invalid_headers[i].header);
        check(c, ok || strstr(err.text, "invalid.safetensors: "), "the error must name the file: %s",
              err.text);
        if (ok) st_close(&f);
    }
    free(path);
}

static void test_st_refuses_files(Checks* c, const char* tmp) {
    static const struct { uint64_t length; const char* error; } cases[] = {
        {0, "header of 0 bytes"}, {1, "header of 1 bytes"},
        {3, "truncated: header of 3 bytes in a file of 10"},
        {100000000, "truncated: header of 100000000"},
        {100000001, "header of 100000001 bytes, expected 2 to 100000000"},
        {UINT64_MAX, "header of 18446744073709551615 bytes"},
        {UINT64_MAX - 7, "header of 18446744073709551608"},
    };
    TostError err;
    StFile f;
    char* path = path_join(tmp, "length.safetensors");
    for (size_t i = 0; i < countof(cases); i++) {
        make_st(path, "{}", 2, 0, cases[i].length);
        check_refused(c, st_open(&f, path, &err), &err, cases[i].error, "a wrong header length");
    }
    for (size_t n = 0; n < 8; n++) {
        write_bytes(path, "\2\0\0\0\0\0\0\0", n);
        check_refused(c, st_open(&f, path, &err), &err, "truncated", "a file of less than 8 bytes");
    }
    unlink(path);
    check_refused(c, st_open(&f, path, &err), &err, "length.safetensors: cannot be opened", "an absent file");
    check_refused(c, st_open(&f, tmp, &err), &err, "a folder, not a safetensors file", "a folder");
    check_refused(c, st_open(&f, "/dev/zero", &err), &err, "not a regular file", "a device");
    free(path);
}

static void test_st_accepts(Checks* c, const char* tmp) {
    static const struct { const char* header; size_t data; int tensors; } cases[] = {
        {"{}", 0, 0}, {"{}      ", 0, 0}, {"{\"__metadata__\":{}}", 0, 0},
        {"{" T_("a", "F32", "", "0", "4") "}", 4, 1},
        {"{" T_("a", "F32", "0,9", "0", "0") "}", 0, 1}, {"{" T_("", "U8", "1", "0", "1") "}", 1, 1},
        {"{" T_("b", "F32", "1", "4", "8") "," T_("a", "I32", "1", "0", "4") "}", 8, 2},
        {"{" T_("b", "F32", "1", "0", "4") "," T_("a", "I32", "0", "0", "0") "}", 4, 2},
        {"{\"a\":{\"note\":[1,{}],\"data_offsets\":[0,2],\"shape\":[1,1],\"dtype\":\"BF16\"}}", 2, 1},
    };
    TostError err;
    StFile f;
    char* path = path_join(tmp, "good.safetensors");
    for (size_t i = 0; i < countof(cases); i++) {
        size_t n = strlen(cases[i].header);
        make_st(path, cases[i].header, n, cases[i].data, n);
        bool ok = st_open(&f, path, &err);
        if (!check(c, ok, "safetensors %s: %s", cases[i].header, err.text)) continue;
        check(c, f.n_tensors == cases[i].tensors, "%s: %d tensors", cases[i].header, f.n_tensors);
        for (int k = 1; k < f.n_tensors; k++) {
            check(c, f.tensors[k - 1].offset <= f.tensors[k].offset, "%s: not in file order",
                  cases[i].header);
        }
        st_close(&f);
    }
    free(path);
}

// Bits and values of F16 and BF16
static const struct { uint16_t bits; double value; } half[] = {
    {0x0000, 0}, {0x3c00, 1}, {0xc000, -2}, {0x3555, 0.333251953125}, {0x7bff, 65504}, {0x0400, 0x1p-14},
    {0x03ff, 1023 * 0x1p-24}, {0x0001, 0x1p-24}, {0x8001, -0x1p-24}, {0x7c00, INFINITY},
    {0xfc00, -INFINITY},
};
static const struct { uint16_t bits; double value; } brain[] = {
    {0x0000, 0}, {0x3f80, 1}, {0xc000, -2}, {0x3eab, 0.333984375}, {0x7f7f, 0x1.fep127},
    {0x0001, 0x1p-133},
    {0x7f80, INFINITY},
};

static void test_st_dtypes(Checks* c, const char* tmp) {
    enum { NH = countof(half), NB = countof(brain), MANY = 20000 };
    StTensor tensors[] = {
        {.name = "half", .dtype = ST_F16, .ndim = 1, .shape = {NH}},
        {.name = "brain", .dtype = ST_BF16, .ndim = 1, .shape = {NB}},
        {.name = "nan", .dtype = ST_F16, .ndim = 0},
        {.name = "wide", .dtype = ST_I64, .ndim = 1, .shape = {3}},
        {.name = "many", .dtype = ST_F64, .ndim = 2, .shape = {MANY / 8, 8}},
        {.name = "u8", .dtype = ST_U8, .ndim = 1, .shape = {3}},
        {.name = "none", .dtype = ST_F32, .ndim = 2, .shape = {0, 5}},
    };
    const int64_t wide[3] = {INT32_MAX, INT32_MIN, (int64_t)INT32_MAX + 1};
    uint16_t bits[NH + NB + 1];
    for (int i = 0; i < NH; i++) bits[i] = half[i].bits;
    for (int i = 0; i < NB; i++) bits[NH + i] = brain[i].bits;
    bits[NH + NB] = 0x7e00;
    double* many = xmalloc(MANY * sizeof *many);
    float* back = xmalloc(MANY * sizeof *back);
    for (int i = 0; i < MANY; i++) many[i] = (i - MANY / 2) / 3.0;
    char* path = path_join(tmp, "dtypes.safetensors");
    TostError err = {{0}};
    StWriter w;
    bool ok = st_begin(&w, path, tensors, countof(tensors), NULL, 0, &err)
        && st_append(&w, bits, sizeof bits, &err)
        && st_append(&w, wide, sizeof wide, &err) && st_append(&w, many, MANY * sizeof *many, &err)
        && st_append(&w, "abc", 3, &err) && st_finish(&w, &err);
    StFile f;
    if (check(c, ok && st_open(&f, path, &err), "writing all dtypes: %s", err.text)) {
        double v[NH + NB] = {0};
        int32_t ints[3];
        check(c, st_read_f64(&f, st_find(&f, "half"), v, &err)
              && st_read_f64(&f, st_find(&f, "brain"), v + NH, &err),
              "reading halves: %s", err.text);
        for (int i = 0; i < NH; i++) check(c, v[i] == half[i].value, "F16 %04x: got %g", half[i].bits, v[i]);
        for (int i = 0; i < NB; i++) {
            check(c, v[NH + i] == brain[i].value, "BF16 %04x: got %g", brain[i].bits, v[NH + i]);
        }
        check(c, st_read_f64(&f, st_find(&f, "nan"), v, &err) && v[0] != v[0], "F16 NaN: got %g", v[0]);
        check(c, st_read_f32(&f, st_find(&f, "half"), back, &err) && back[3] == 0.333251953125f,
              "F16 as float");
        check(c, st_read_f32(&f, st_find(&f, "many"), back, &err), "F64 as float: %s", err.text);
        size_t wrong = 0;
        for (int i = 0; i < MANY; i++) wrong += back[i] != (float)many[i];
        check(c, wrong == 0, "F64 as float: %zu of %d values are wrong", wrong, MANY);
        check(c, st_read_f32(&f, st_find(&f, "none"), NULL, &err), "an empty tensor: %s", err.text);
        check_refused(c, st_read_i32(&f, st_find(&f, "wide"), ints, &err), &err, "element 2 is 2147483648",
                      "a wide I64");
        check(c, ints[0] == INT32_MAX && ints[1] == INT32_MIN, "I64 as int32: got %d, %d", ints[0], ints[1]);
        check_refused(c, st_read_f32(&f, st_find(&f, "wide"), back, &err), &err, "'wide' is I64",
                      "I64 as float");
        check_refused(c, st_read_f64(&f, st_find(&f, "u8"), v, &err), &err, "'u8' is U8", "U8 as double");
        check_refused(c, st_read_i32(&f, st_find(&f, "half"), ints, &err), &err, "'half' is F16",
                      "F16 as int");
        st_close(&f);
    }
    free(path), free(many), free(back);
}

static void test_st_round_trip(Checks* c, const char* tmp) {
    static char* const nasty = "\"quote\" \\ \n\t\x01 \xc3\xa9 \xf0\x9f\x98\x80";
    static const float values[6] = {1, -2, 3.5f, 0, 1e-30f, 6};
    static const int32_t id = -7;
    const StMeta meta[] = {{"step", "12"}, {"nasty \"key\"", nasty}, {"crc32", "stale"},
                           {"bad \xfe", "a\xff\x80\xc0" "b\xc3"}};
    const StTensor tensors[] = {
        {.name = "transformer.wte.weight", .dtype = ST_F32, .ndim = 2, .shape = {2, 3}},
        {.name = "sc\"alar", .dtype = ST_I32, .ndim = 0},
    };
    char* path = path_join(tmp, "round.safetensors");
    TostError err = {{0}};
    StWriter w;
    StFile f;
    bool ok = st_begin(&w, path, tensors, 2, meta, 4, &err) && st_append(&w, values, 8, &err)
        && st_append(&w, values + 2, 16, &err) && st_append(&w, &id, 4, &err) && st_finish(&w, &err);
    if (!check(c, ok && st_open(&f, path, &err), "round trip: %s", err.text)) return;
    float back[6];
    int32_t id_back = 0;
    uint32_t crc = 0;
    char digits[16];
    check(c, f.data_start % 8 == 0, "tensor data starts at %" PRIu64 ", not at a multiple of 8",
          f.data_start);
    const StTensor* t = st_find(&f, "transformer.wte.weight");
    check(c, t && t->ndim == 2 && t->shape[0] == 2 && t->shape[1] == 3 && t->count == 6 && t->bytes == 24,
          "shape");
    check(c, t && st_read_f32(&f, t, back, &err) && memcmp(back, values, sizeof back) == 0, "values: %s",
          err.text);
    t = st_find(&f, "sc\"alar");
    check(c, t && t->ndim == 0 && st_read_i32(&f, t, &id_back, &err) && id_back == id, "scalar: got %d",
          id_back);
    check(c, !st_find(&f, "absent") && !st_meta(&f, "absent"), "absent names are not found");
    check(c, strcmp(st_meta(&f, "step"), "12") == 0 && strcmp(st_meta(&f, "nasty \"key\""), nasty) == 0,
          "metadata");
    check(c, strcmp(st_meta(&f, "bad \xfe"), "a\xff\x80\xc0" "b\xc3") == 0, "bytes that are not UTF-8: got %s",
          st_meta(&f, "bad \xfe"));
    check(c, st_crc32(&f, &crc, &err), "st_crc32: %s", err.text);
    uint32_t direct = crc32_update(crc32_update(0, values, sizeof values), &id, sizeof id);
    snprintf(digits, sizeof digits, "%08" PRIx32, direct);
    check(c, crc == direct && strcmp(st_meta(&f, "crc32"), digits) == 0,
          "crc32: expected %s, in the file %s, computed %08" PRIx32,
          digits, st_meta(&f, "crc32"), crc);
    check(c, truncate(path, (off_t)f.file_size - 8) == 0, "truncate");
    check_refused(c, st_read_f32(&f, &f.tensors[0], back, &err), &err, "the file was truncated",
                  "a file truncated while open");
    check_refused(c, st_crc32(&f, &crc, &err), &err, "the file was truncated",
                  "the CRC of a file truncated while open");
    st_close(&f);
    free(path);
}

static void test_st_writer_failures(Checks* c, const char* tmp) {
    const StTensor one = {.name = "a", .dtype = ST_F32, .ndim = 1, .shape = {2}};
    const StTensor vast = {.name = "vast", .dtype = ST_F32, .ndim = 2, .shape = {INT64_MAX, 8}};
    const float values[3] = {1, 2, 3};
    char* path = path_join(tmp, "fail.safetensors");
    char* nowhere = path_join(tmp, "no/such/folder.safetensors");
    TostError err = {{0}};
    StWriter w;
    check(c, st_begin(&w, path, &one, 1, NULL, 0, &err) && st_append(&w, values, 4, &err), "begin: %s",
          err.text);
    check_refused(c, st_append(&w, values, 8, &err), &err, "8 bytes of tensors were declared, but 8 follow",
                  "too many bytes");
    st_abandon(&w);
    st_abandon(&w);
    check(c, !path_exists(path), "st_abandon removes the file");
    check(c, st_begin(&w, path, &one, 1, NULL, 0, &err) && st_append(&w, values, 4, &err), "begin again: %s",
          err.text);
    check_refused(c, st_finish(&w, &err), &err, "8 bytes of tensors were declared, but 4 written", "too few bytes");
    check(c, !path_exists(path), "a failed st_finish removes the file");
    check_refused(c, st_begin(&w, nowhere, &one, 1, NULL, 0, &err), &err,
                  "folder.safetensors: cannot be created", "no folder");
    st_abandon(&w);
    check_refused(c, st_begin(&w, path, &vast, 1, NULL, 0, &err), &err, "'vast' has more bytes",
                  "a vast tensor");
    st_abandon(&w);
    if (access("/dev/full", W_OK) != 0) {
        skip(c, "a full disk: no /dev/full");
    } else if (check(c, symlink("/dev/full", path) == 0, "symlink")) {
        bool ok = st_begin(&w, path, &one, 1, NULL, 0, &err) && st_append(&w, values, 8, &err)
            && st_finish(&w, &err);
        check_refused(c, ok, &err, "fail.safetensors: cannot be written", "a full disk");
        st_abandon(&w);
        check(c, !path_exists(path), "no file is left after a full disk");
    }
    free(path), free(nowhere);
}

// The reference implementation's files must be complete and contain only finite values.
static int synced;

int fsync(int fd) {   // instead of libc's
    (void)fd;
    synced++;
    return 0;
}

// A large file is also synced while it is written.
static void test_st_syncs(Checks* c, const char* tmp) {
    enum { BYTES = 16 << 20, TIMES = 17 };
    const StTensor large = {.name = "large", .dtype = ST_U8, .ndim = 2, .shape = {TIMES, BYTES}};
    char *path = path_join(tmp, "large.safetensors"), *data = xcalloc(BYTES, 1);
    StWriter w;
    TostError err;
    bool ok = st_begin(&w, path, &large, 1, NULL, 0, &err);
    synced = 0;
    for (int i = 0; ok && i < TIMES; i++) ok = st_append(&w, data, BYTES, &err);
    check(c, ok && synced == 2, "272 MiB: %d times synced before the end, want 2: %s", synced, ok ? "" : err.text);
    if (ok) st_finish(&w, &err);
    check(c, synced == 3, "272 MiB: %d times synced, want 3", synced);
    unlink(path);
    free(data);
    free(path);
}

static void test_st_shared(Checks* c) {
    static const char* const files[] = {
        "golden/tiny.params.safetensors", "golden/tiny.expect.safetensors", "golden/bias.params.safetensors",
        "golden/bias.expect.safetensors", "golden/short.params.safetensors",
        "golden/short.expect.safetensors",
        "curve/wiki.init.safetensors",
    };
    for (size_t i = 0; i < countof(files); i++) {
        TostError err = {{0}};
        StFile f;
        char* path = shared_path(files[i]);
        if (!path) {
            skip(c, "%s: not found", files[i]);
            continue;
        }
        if (check(c, st_open(&f, path, &err), "%s", err.text)) {
            check(c, f.n_tensors > 0 && st_meta(&f, "n_layer"), "%s: %d tensors, no n_layer", files[i],
                  f.n_tensors);
            for (int k = 0; k < f.n_tensors; k++) {
                const StTensor* t = &f.tensors[k];
                double* v = xcalloc((size_t)t->count, sizeof *v);
                bool is_int = t->dtype == ST_I32 || t->dtype == ST_I64;
                bool ok = is_int ? st_read_i32(&f, t, (int32_t*)v, &err) : st_read_f64(&f, t, v, &err);
                size_t wild = 0;
                for (uint64_t e = 0; !is_int && e < t->count; e++) wild += !isfinite(v[e]);
                check(c, ok && wild == 0, "%s %s: %zu values are not finite: %s", files[i], t->name, wild,
                      err.text);
                free(v);
            }
            st_close(&f);
        }
        free(path);
    }
}

int main(void) {
    Checks c = {.suite = "files"};
    char* tmp = new_folder();
    test_errors(&c);
    test_printable_text(&c);
    test_memory(&c);
    test_crc(&c);
    test_human(&c);
    test_paths(&c);
    test_folders(&c, tmp);
    test_read_file(&c, tmp);
    test_glob(&c, tmp);
    test_rng(&c);
    test_rng_ranges(&c);
    test_json_accepts(&c);
    test_json_refuses(&c);
    test_json_strings(&c);
    test_json_write_string(&c);
    test_json_numbers(&c);
    test_json_walk(&c);
    test_st_refuses(&c, tmp);
    test_st_refuses_files(&c, tmp);
    test_st_accepts(&c, tmp);
    test_st_dtypes(&c, tmp);
    test_st_round_trip(&c, tmp);
    test_st_writer_failures(&c, tmp);
    test_st_syncs(&c, tmp);
    test_st_shared(&c);
    drop_folder(tmp);
    return checks_verdict(&c);
}
