// test_base.c: error, text, memory, files, folders, rng and json: known values and invalid input.
#include <inttypes.h>
#include <math.h>

#include "base/crc32.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/rng.h"
#include "base/terminal.h"
#include "base/text.h"
#include "dev/test/scratch.h"

// ---- Errors, text, memory -------------------------------------------------------------------------------------------

static void test_errors(Checks* c) {
    TostError err;
    check(c, !tost_error(&err, "%s: %d", "file", 7) && strcmp(err.text, "file: 7") == 0, "tost_error: %s", err.text);
    tost_error(&err, "outer: %s", err.text);
    check(c, strcmp(err.text, "outer: file: 7") == 0, "an error may contain its own earlier text: %s", err.text);
    tost_error(&err, "a\nb\x1b[31m%s", "\x7f");
    check(c, strcmp(err.text, "a\\nb\\x1b[31m\\x7f") == 0, "control characters: %s", err.text);
    for (int shift = 0; shift < 3; shift++) {   // characters of three bytes must not be split
        char text[3004] = "file ";
        for (int i = 0; i < 990; i++) strcat(text, "…");
        tost_error(&err, "%s%s: what is wrong", &"ab"[2 - shift], text);
        const size_t n = strlen(err.text);
        int whole = 0;
        for (const char* p = err.text; (p = strstr(p, "…")); p += 3) whole++;
        check(c, n > sizeof err.text - 6 && n == 22 + (size_t)shift + 3 * (size_t)whole
              && strncmp(err.text + shift, "file …", 8) == 0 && strcmp(err.text + n - 15, ": what is wrong") == 0,
              "a long error keeps its ends and complete characters: %s", err.text);
    }
}

static void test_printable_text(Checks* c) {
    static const struct { const char *text, *printed; } cases[] = {
        {"", ""}, {"plain \\ text", "plain \\ text"}, {"é … 😀 ×", "é … 😀 ×"}, {"a\tb\r\n", "a\\tb\\r\\n"},
        {"\x1b]0;title\x07\x7f", "\\x1b]0;title\\x07\\x7f"}, {"caf\xe9", "caf\\xe9"}, {"\xe2\x80", "\\xe2\\x80"},
        {"\xc2\x9b" "31m\xc2\xa0", "\\xc2\\x9b31m\xc2\xa0"},                            // U+009B is CSI
        {"\xe2\x80\xae" "cod\xe2\x81\xa6", "\\xe2\\x80\\xaecod\\xe2\\x81\\xa6"},          // right to left
        {"\xe2\x80\xa8\xe2\x80\xaf", "\\xe2\\x80\\xa8\xe2\x80\xaf"},                     // line separator, space
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
    check(c, !alloc_pages(SIZE_MAX) && !alloc_pages(SIZE_MAX / 2), "alloc_pages of half the address space must fail");
}

static void test_crc(Checks* c) {
    enum { N = 5000 };
    unsigned char data[N];
    for (int i = 0; i < N; i++) data[i] = (unsigned char)(i * 7 + i / 256);
    const uint32_t known = crc32_update(0, "123456789", 9);
    check(c, known == 0xcbf43926 && crc32_update(0, NULL, 0) == 0, "CRC-32 of 123456789: got %08" PRIx32, known);
    for (int cut = 0; cut <= N; cut += 613) {   // pieces below and above the length at which the algorithm changes
        const uint32_t joined = crc32_update(crc32_update(0, data, (size_t)cut), data + cut, (size_t)(N - cut));
        check(c, joined == 0xa4f08d8e, "CRC-32 cut at %d: expected zlib's a4f08d8e, got %08" PRIx32, cut, joined);
    }
}

static void test_human(Checks* c) {
    static const struct { double n; const char *count, *bytes; } cases[] = {
        {0, "0", "0 B"}, {999, "999", "999 B"}, {1000, "1.0K", "1000 B"}, {1024, "1.0K", "1.00 KiB"},
        {109604352, "109.6M", "104.53 MiB"}, {2684354560, "2.7B", "2.50 GiB"}, {999949, "999.9K", "976.51 KiB"},
        {999960, "1.0M", "976.52 KiB"}, {1048575, "1.0M", "1.00 MiB"}, {1.5e12, "1.5T", "1.36 TiB"},
    };
    for (size_t i = 0; i < countof(cases); i++) {
        const NumberText count = human_count(cases[i].n), bytes = human_bytes(cases[i].n);
        check(c, strcmp(count.text, cases[i].count) == 0 && strcmp(bytes.text, cases[i].bytes) == 0,
              "%g: expected %s, %s, got %s, %s", cases[i].n, cases[i].count, cases[i].bytes, count.text, bytes.text);
    }
}

// ---- Files and folders ----------------------------------------------------------------------------------------------

static void test_paths(Checks* c) {
    static const char* const dirs[][2] = {
        {"a/b", "a"}, {"b", "."}, {"/b", "/"}, {"a/b/", "a"}, {"a//b", "a"}, {"/", "/"}, {"", "."},
    };
    for (size_t i = 0; i < countof(dirs); i++) {
        const Path dir = path_above(dirs[i][0]);
        check(c, strcmp(dir.text, dirs[i][1]) == 0, "path_above(%s): expected %s, got %s", dirs[i][0], dirs[i][1],
              dir.text);
    }
    const Path joined = path_in("a/", "b"), longest = path_text("%0*d", 2 * PATH_MAX, 0);
    check(c, strcmp(joined.text, "a/b") == 0, "path_in(a/, b): got %s", joined.text);
    check(c, !path_exists(longest.text) && errno == ENAMETOOLONG, "a path that was cut must still be too long to open: %s",
          strerror(errno));
}

// The memory limit of a process that is in the group a/b of cgroups version 1 and in x/y of version 2. Each row writes
// one more file; the last one replaces "own".
static void test_cgroup_memory(Checks* c) {
    static const struct { const char *file, *text; uint64_t limit; const char* what; } rows[] = {
        {"own", "12:pids:/x/y\n4:memory:/a/b\n1:name=systemd:/\n0::/x/y\n", UINT64_MAX, "no files"},
        {"memory/memory.limit_in_bytes", "9223372036854771712\n", 9223372036854771712u, "version 1: the root's limit"},
        {"memory/a/memory.limit_in_bytes", "3000\n", 3000, "version 1: a limit of the parent group"},
        {"memory/a/b/memory.limit_in_bytes", "4000\n", 3000, "version 1: the smallest limit applies"},
        {"x/y/memory.max", "max\n", 3000, "version 2: no limit"},
        {"x/memory.max", "2000\n", 2000, "version 2: a limit of the parent group"},
        {"own", "0::/\n", UINT64_MAX, "the root of version 2 has no limit"},
    };
    TostError err;
    must(make_dirs("groups/memory/a/b", &err) && make_dirs("groups/x/y", &err), "groups", &err);
    check(c, cgroup_memory("groups/own", "groups") == UINT64_MAX, "a system without cgroups");
    for (size_t i = 0; i < countof(rows); i++) {
        write_text(path_in("groups", rows[i].file).text, rows[i].text);
        const uint64_t limit = cgroup_memory("groups/own", "groups");
        check(c, limit == rows[i].limit, "%s: got %" PRIu64, rows[i].what, limit);
    }
}

static void test_glob(Checks* c) {
    static const char* const names[] = {"g_2.bin", "g_10.bin", "g_1.bin", "g[1].bin", "G_1.bin", "a [1]/x_0.bin",
                                        "a 1/x_0.bin", "a**.bin"};
    static const struct { const char *pattern, *files, *error; } cases[] = {
        {"g_*.bin", "g_1.bin|g_10.bin|g_2.bin", NULL},
        {"g[1].bin", "g[1].bin", NULL},
        {"g_[12].bin", "g_1.bin|g_2.bin", NULL},   // no file has this name
        {"a [1]/x_*.bin", "a [1]/x_0.bin", NULL},
        {"a**.bin", "a**.bin", NULL},
        {"none_*.bin", NULL, "none_*.bin: no file matches"},
        {"**/x_0.bin", NULL, "**/x_0.bin: ** does not descend"},
    };
    TostError err;
    must(make_dirs("a [1]", &err) && make_dirs("a 1", &err), "a [1]", &err);
    for (size_t i = 0; i < countof(names); i++) write_text(names[i], "x");
    for (size_t i = 0; i < countof(cases); i++) {
        StringList list = {0};
        const bool ok = expand_glob(&list, ONE_PATH(cases[i].pattern), &err);
        char* files = join_strings(&list, '|');
        if (cases[i].error) check_refused(c, ok, &err, cases[i].error, cases[i].pattern);
        else check(c, ok && strcmp(files, cases[i].files) == 0, "%s: got %s", cases[i].pattern, ok ? files : err.text);
        free(files);
        free_strings(&list);
    }
}

// ---- rng: expected values were computed by another program from the papers' definitions -----------------------------

static void test_rng(Checks* c) {
    static const uint64_t published[] = {41943041, 58720359, 3588806011781223, 3591011842654386,
                                         9228616714210784205u, 9973669472204895162u};
    static const struct { uint64_t seed, stream, first[2]; } seeds[] = {
        {0, 0, {0x3ed1653f0682083a, 0x852cecd8e7418ff7}}, {1234, 7, {0x13ea4fd4caab36e4, 0x25f6db5e615ba12d}},
        {UINT64_MAX, UINT64_MAX, {0x31295067a409d2da, 0x5dff231d5e61c914}}};
    static const uint64_t digits[] = {8, 5, 4, 1, 1, 4, 2, 3, 4, 7, 1, 0};
    static const uint64_t wide[] = {0x7fdf8aad5431ed59, 0x437cbe153f853db1, 0x8f64130728822433, 0x7a98f557e024db5e};
    static const double uniform[] = {0.4453467333079868, 0.6477713910386264, 0.8117194497908141};
    static const double normal[] = {2.3004035930789857, -0.8021940445935899, -0.39664555680986013};
    int wrong = 0;
    Rng known = {{1, 2, 3, 4}}, below = rng_seeded(42, 1), rejecting = below, u = rng_seeded(42, 2);
    Rng g = rng_seeded(42, 3);
    for (size_t i = 0; i < countof(published); i++) wrong += rng_u64(&known) != published[i];
    for (size_t i = 0; i < countof(seeds); i++) {
        Rng r = rng_seeded(seeds[i].seed, seeds[i].stream);
        wrong += rng_u64(&r) != seeds[i].first[0] || rng_u64(&r) != seeds[i].first[1];
    }
    check(c, wrong == 0, "rng_u64: %d numbers are wrong", wrong);
    for (size_t i = 0; i < countof(digits); i++) wrong += rng_below(&below, 10) != digits[i];
    for (size_t i = 0; i < countof(wide); i++) wrong += rng_below(&rejecting, 3ull << 62) != wide[i];
    for (size_t i = 0; i < countof(uniform); i++) wrong += rng_uniform(&u) != uniform[i];
    for (size_t i = 0; i < countof(normal); i++) wrong += !(fabs(rng_normal(&g) - normal[i]) <= 1e-14);
    check(c, wrong == 0 && rng_below(&g, 1) == 0, "rng: %d numbers are wrong", wrong);
}

// ---- json -----------------------------------------------------------------------------------------------------------

// Reads {"texts": [string, …], "n": integer, …} and compares the last text and the integer.
static bool walk(char* text, size_t cap, size_t* n, uint64_t* number, const char* json, size_t length, TostError* err) {
    char *exact = xmalloc(length), key[8];   // exact size, so that a sanitizer detects reads past the end
    memcpy(exact, json, length);
    Json j = json_open(exact, length, err);
    bool ok = json_enter(&j, "{}");
    while (ok && json_field(&j, key, sizeof key, NULL)) {
        if (strcmp(key, "texts") == 0) {
            json_enter(&j, "[]");
            while (ok && json_next(&j, "[]")) ok = json_string(&j, text, cap, n);
            ok = ok && !j.failed;
        } else ok = strcmp(key, "n") == 0 ? json_u64(&j, number) : json_skip(&j);
    }
    ok = ok && !j.failed && json_at_end(&j);
    free(exact);
    return ok;
}

static void test_json(Checks* c) {
    static const char* const skipped[] = {
        "{}", "[ ]", "-1.5E-3", "true", "\"\"", "\"\\\"]}\"", "[1,[],{\"a\": [{}]}]", "\"\\u0000\"", "[[[[[]]]]]"};
    static const struct { const char *text, *decoded; size_t n; } texts[] = {
        {"\"\"", "", 0}, {"\"plain\"", "plain", 5}, {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t", 8},
        {"\"\\u0041\\u00e9\\u20AC\"", "A\xc3\xa9\xe2\x82\xac", 6}, {"\"\\ud83d\\ude00\"", "\xf0\x9f\x98\x80", 4},
        {"\"\\ud800\"", "\xef\xbf\xbd", 3}, {"\"\\udc00x\"", "\xef\xbf\xbdx", 4}, {"\"a\\u0000b\"", "a\0b", 3},
        {"\"\\ud800\\u0041\"", "\xef\xbf\xbd" "A", 4}, {"\"\xe2\x82\xac\"", "\xe2\x82\xac", 3},
        {"\"\\ud800\\ud83d\\ude00\"", "\xef\xbf\xbd\xf0\x9f\x98\x80", 7}, {"\"\\udbff\\udfff\"", "\xf4\x8f\xbf\xbf", 4},
    };
    static const struct { const char *json, *error; } bad[] = {
        {"", "byte 0: expected an object, found the end"}, {"\xef\xbb\xbf{}", "byte 0"}, {"[1]", "expected an object"},
        {"{\"a\":1]", "byte 6: expected ',' or '}', found ']'"}, {"{\"a\"}", "byte 4: expected ':'"},
        {"{\"a\":}", "byte 5: expected a value"}, {"{\"a\":1,}", "byte 7: expected a string"},
        {"{a:1}", "byte 1: expected a string, found 'a'"}, {"{}{}", "byte 2: expected the end of the text"},
        {"{\"a\":[1", "found the end"}, {"{\"a\":\"x", "closing quote"}, {"{\"a\":\"\\", "closing quote"},
        {"{\"texts\":[\"a\"", "byte 13: expected ',' or ']'"}, {"{\"texts\":[\"a\",]}", "byte 14: expected a string"},
        {"{\"texts\":[\"abc", "byte 14: expected the closing quote"}, {"{\"texts\":[\"a\nb\"]}", "byte 12: expected"},
        {"{\"texts\":[\"\\x41\"]}", "byte 12: expected one of"}, {"{\"texts\":[\"\\u12g4\"]}", "a hexadecimal digit"},
        {"{\"texts\":[\"\xff\"]}", "byte 11: expected valid UTF-8, found '\\xff'"},
        {"{\"texts\":[\"\xed\xa0\x80\"]}", "valid UTF-8"}, {"{\"texts\":[\"\xf0\x9f\x98", "valid UTF-8"},
        {"{\"texts\":[\"0123456789abcdef\"]}", "byte 10: a string longer than 15 bytes"},
        {"{\"n\":18446744073709551616}", "byte 5: an integer over 2^64 - 1"}, {"{\"n\":-1}", "a non-negative integer"},
        {"{\"n\":01}", "byte 6: expected no digit"},
        {"{\"n\":1.0}", "byte 6: expected ',' or '}'"}, {"{\"n\":\"1\"}", "a non-negative integer"},
    };
    TostError err = {{0}};
    char text[16];
    size_t n = 0;
    uint64_t number = 0;
    for (size_t i = 0; i < countof(texts); i++) {
        const char* more = skipped[i % countof(skipped)];
        char* json = xasprintf(" {\"x\":%s, \"texts\" : [%s],\"n\":18446744073709551615,\n\"y\":[%s]}\r\n", more,
                               texts[i].text, more);
        check(c, walk(text, sizeof text, &n, &number, json, strlen(json), &err) && n == texts[i].n
              && memcmp(text, texts[i].decoded, n + 1) == 0 && number == UINT64_MAX, "%s: got %s; %s", json, text,
              err.text);
        free(json);
    }
    for (size_t i = 0; i < countof(bad); i++)
        check_refused(c, walk(text, sizeof text, &n, &number, bad[i].json, strlen(bad[i].json), &err), &err,
                      bad[i].error, bad[i].json);
}

int main(void) {
    return RUN_TESTS("base", test_errors, test_printable_text, test_memory, test_crc, test_human, test_paths,
                         test_cgroup_memory, test_glob, test_rng, test_json);
}
