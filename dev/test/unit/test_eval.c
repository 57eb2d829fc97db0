// test_eval.c: confidence intervals, JSON output, and reading valid and invalid examples of the three tasks.
#include "base/error.h"
#include "base/files.h"
#include "base/memory.h"
#include "dev/test/scratch.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "commands/eval_report.h"
#include "base/json.h"
#include "base/json_write.h"
#include "commands/examples.h"
#include "commands/str.h"

static void check_near(Checks* c, double got, double want, const char* what) {
    check(c, fabs(got - want) <= 1e-9 * (1 + fabs(want)), "%s: expected %.12g, got %.12g", what, want, got);
}

// ---------------------------------------------------------------------------------------------
// Intervals

// Wilson intervals from R's prop.test(x, n, correct = FALSE).
static void test_share(Checks* c) {
    static const struct { int64_t hits, n; double low, high; } cases[] = {
        {0, 10, 0.0, 0.277532799862889},
        {5, 10, 0.236593090512564, 0.763406909487436},
        {10, 10, 0.722467200137111, 1.0},
        {1, 3, 0.0614919447203962, 0.792340399197023},
    };
    for (size_t i = 0; i < countof(cases); i++) {
        const Interval got = share_interval(cases[i].hits, cases[i].n);
        check_near(c, got.low, cases[i].low, "lower end of an interval");
        check_near(c, got.high, cases[i].high, "upper end of an interval");
    }
}

static void test_ratio(Checks* c) {
    // Equal weights: the interval of a mean, 1.96 · s/√n. {1, 2, 3, 6} has mean 3, s² = 14/3.
    Ratio mean = {0};
    const double x[] = {1, 2, 3, 6};
    for (size_t i = 0; i < countof(x); i++) ratio_add(&mean, x[i] * 5, 5);
    check_near(c, ratio_value(&mean), 3, "mean");
    check_near(c, ratio_error(&mean), 1.959963984540054 * sqrt(14.0 / 3 / 4), "error of a mean");
    // Unequal weights: ratio 12/6 = 2, residuals 2, -2, 0.
    Ratio ratio = {0};
    ratio_add(&ratio, 4, 1);
    ratio_add(&ratio, 2, 2);
    ratio_add(&ratio, 6, 3);
    check_near(c, ratio_value(&ratio), 2, "ratio");
    check_near(c, ratio_error(&ratio), 1.959963984540054 * sqrt(3.0 / 2 * 8) / 6, "error of a ratio");
    Ratio one = {0};
    ratio_add(&one, 1, 1);
    check(c, isnan(ratio_error(&one)), "the error of one sample is NaN");
}

// ---------------------------------------------------------------------------------------------
// JSON

// Which files may be replaced: PATH and PATH.tmp with these contents (NULL: no file), by a file with content "test".
static void test_json_replaces(Checks* c, const char* path, const char* tmp) {
    static const char ours[] = "{\n  \"content\": \"test\",\n";
    static const struct { const char *path, *tmp; bool replaced; } cases[] = {
        {NULL, NULL, true}, {"", NULL, true}, {ours, NULL, true}, {ours, ours, true}, {NULL, "", true},
        {"text", NULL, false}, {"{\n  \"content\": \"eval\"", NULL, false}, {"{", NULL, false}, {ours, "text", false},
    };
    for (size_t i = 0; i < countof(cases); i++) {
        for (int force = 0; force < 2; force++) {
            TostError err;
            JsonFile out;
            unlink(path);
            unlink(tmp);
            if (cases[i].path) write_text(path, cases[i].path);
            if (cases[i].tmp) write_text(tmp, cases[i].tmp);
            const bool ok = json_file_open(&out, path, "test", force, &err);
            if (!cases[i].replaced && !force) check_refused(c, ok, &err, "--force", "replacing another file");
            else check(c, ok, "JSON file %zu, force %d: %s", i, force, err.text);
            if (ok) check(c, json_file_close(&out, true, &err) && !path_exists(tmp), "closing: %s", err.text);
            if (!ok) check(c, path_exists(path) && path_exists(tmp) == (cases[i].tmp != NULL), "both files remain");
        }
    }
    TostError err;
    JsonFile out;
    struct stat st;
    unlink(path);
    must(rename(tmp, path) == 0 || errno == ENOENT, "rename", NULL);
    write_text(tmp, ours);
    must(symlink(tmp, path) == 0, "symlink", NULL);
    check(c, json_file_open(&out, path, "test", false, &err) && json_file_close(&out, true, &err)
          && lstat(path, &st) == 0 && S_ISLNK(st.st_mode), "a link is followed: %s", err.text);
    unlink(path);
    unlink(tmp);
}

static void test_json(Checks* c, const char* dir) {
    static const char text[] = "a\"\\\n\x01\xc3\xa9\xff\xc3z";
    static const char want[] = "a\"\\\n\x01\xc3\xa9\xef\xbf\xbd\xef\xbf\xbdz";
    char *path = path_join(dir, "x.json"), *tmp = path_join(dir, "x.json.tmp"), got[64], key[16];
    TostError err;
    JsonFile out;
    must(json_file_open(&out, path, "test", false, &err), "json_file_open", &err);
    json_put_bytes(&out, "text", text, sizeof text - 1);
    json_put_real(&out, "third", 1.0 / 3);
    json_put_real(&out, "nan", NAN);
    json_put_open(&out, "list", '[');
    json_put_int(&out, NULL, 7);
    json_put_bool(&out, NULL, true);
    json_put_close(&out, ']');
    check(c, !path_exists(path) && path_exists(tmp), "the file must not exist before it is closed");
    check(c, json_file_close(&out, true, &err) && path_exists(path) && !path_exists(tmp),
          "the file exists after closing");

    Bytes file;
    must(read_file(&file, path, &err), "read_file", &err);
    Json j = json_open(file.data, file.size, &err);
    double third = 0;
    uint64_t seven = 0;
    bool ok = json_enter(&j, JSON_OBJECT) && json_next(&j) == 1 && json_key(&j, key, sizeof key, NULL) &&
              json_skip(&j) && json_next(&j) == 1 && json_key(&j, key, sizeof key, NULL) &&
              json_string(&j, got, sizeof got, NULL) && json_next(&j) == 1 &&
              json_key(&j, key, sizeof key, NULL) && json_double(&j, &third) && json_next(&j) == 1 &&
              json_key(&j, key, sizeof key, NULL) && json_peek(&j) == JSON_NULL && json_skip(&j) &&
              json_next(&j) == 1 && json_key(&j, key, sizeof key, NULL) && json_enter(&j, JSON_ARRAY) &&
              json_next(&j) == 1 && json_u64(&j, &seven) && json_next(&j) == 1 &&
              json_peek(&j) == JSON_TRUE && json_skip(&j) && json_next(&j) == 0 && json_next(&j) == 0 &&
              json_at_end(&j);
    check(c, ok, "reading the written JSON: %s", ok ? "" : err.text);
    check(c, strcmp(got, want) == 0, "text must be read back, invalid UTF-8 as U+FFFD: %s", got);
    check(c, third == 1.0 / 3 && seven == 7, "numbers must be read back exactly");
    free(file.data);

    must(json_file_open(&out, tmp, "test", false, &err), "json_file_open", &err);
    check(c, json_file_close(&out, false, &err) && !path_exists(tmp),
          "an abandoned file is removed");
    check(c, !json_file_open(&out, "/nowhere/x", "test", false, &err) && strstr(err.text, "--json /nowhere/x"),
          "missing folder");
    check(c, !json_file_open(&out, dir, "test", true, &err) && strstr(err.text, "folder"), "folder instead of a file");
    check(c, json_file_open(&out, NULL, "test", false, &err) && json_file_close(&out, true, &err),
          "no path: nothing is written");
    struct stat st;
    check(c, symlink("/dev/null", tmp) == 0 && json_file_open(&out, tmp, "test", false, &err), "device: %s", err.text);
    check(c, json_file_close(&out, true, &err) && lstat(tmp, &st) == 0 && S_ISLNK(st.st_mode),
          "a device must be written, not replaced");
    unlink(tmp);
    test_json_replaces(c, path, tmp);
    free(path);
    free(tmp);
}

// ---------------------------------------------------------------------------------------------
// Examples, with a byte tokenizer: each token is one byte of the text

// '^' is <|endoftext|>.
static char* text_of(const Tokenizer* t, const uint32_t* ids, int n) {
    char* text = xcalloc((size_t)n + 1, 1);
    for (int i = 0; i < n; i++) {
        size_t len;
        text[i] = ids[i] == (uint32_t)tokenizer_eot(t) ? '^' : tokenizer_piece(t, ids[i], &len)[0];
    }
    return text;
}

// The example as "context|choice|choice…". free()
static char* example_text(const Tokenizer* t, const Example* e) {
    char* text = text_of(t, e->ids, e->context);
    const uint32_t* ids = e->ids + e->context;
    for (int i = 0; i < e->choices; ids += e->length[i++]) {
        char* choice = text_of(t, ids, e->length[i]);
        text = append_text(text, "|%s", choice);
        free(choice);
    }
    return text;
}

static bool read_text(Examples* p, Task task, const char* path, const char* text, const Tokenizer* t,
                      TostError* err) {
    write_text(path, text);
    return examples_read(p, task, path, t, err);
}

static void check_example(Checks* c, const Tokenizer* t, const Example* e, int line, int label,
                          const char* want) {
    char* got = example_text(t, e);
    check(c, e->line == line && e->label == label && strcmp(got, want) == 0,
          "expected line %d, label %d, '%s'; got %d, %d, '%s'", line, label, want, e->line, e->label, got);
    free(got);
}

// An example of CBT: twenty lines "N aN." and a query line. free()
static char* cbt_text(const char* query) {
    char* text = xstrdup("");
    for (int n = 1; n <= 20; n++) text = append_text(text, "%d a%d.\n", n, n);
    return append_text(text, "%s", query);
}

static void test_examples(Checks* c, const Tokenizer* t, const char* path) {
    TostError err;
    Examples p;
    must(read_text(&p, TASK_LAMBADA, path,
                   "{\"text\": \"one two \\u00e9t\\u00e9 \"}\r\n\n{\"id\": [1], \"text\": \"a b\"}", t, &err),
         "lambada", &err);
    check(c, p.count == 2 && p.per == 2, "two examples, each with the prompt of the published script");
    check_example(c, t, &p.example[0], 1, 0, "one two| \xc3\xa9t\xc3\xa9");
    check(c, strcmp(p.example[0].word, "\xc3\xa9t\xc3\xa9") == 0 && p.example[0].chars[0] == 3
          && p.example[0].greedy == 6, "last word, its characters and tokens");
    check_example(c, t, &p.example[1], 1, 0, "\none two| \xc3\xa9t\xc3\xa9");
    check_example(c, t, &p.example[2], 3, 0, "a| b");
    check(c, p.example[3].greedy == WITHIN, "10 tokens after the prompt of the published script");
    examples_free(&p);
    // Two spaces and a line break before the word: lm-evaluation-harness moves the white space to the choice.
    must(read_text(&p, TASK_LAMBADA, path, "{\"text\": \" \\u201ca\\u201d \\u2019b\\n \\u201cC\\u201d \"}", t, &err),
         "lambada", &err);
    check_example(c, t, &p.example[0], 1, 0, " “a” ’b|\n “C”");
    check_example(c, t, &p.example[1], 1, 0, "\n\"a\" ’b\n| \"C\"");
    check(c, strcmp(p.example[1].word, "\"C\"") == 0, "the word of the published prompt has straight quotes");
    examples_free(&p);

    must(read_text(&p, TASK_HELLASWAG, path,
                   "{\"a key that is far too long\": {}, \"ctx\": \"He\", \"label\": 3, \"endings\": "
                   "[\"a\", \"b c\", \"d\", \"e\"]}\n{\"ctx\": \"x\", \"label\": \"1\", \"endings\": [\"a\", "
                   "\"b\", \"c\", \"d\"]}\n",
                   t, &err),
         "hellaswag", &err);
    check_example(c, t, &p.example[0], 1, 3, "He| a| b c| d| e");
    check(c, p.example[0].chars[1] == 3 && !p.prepared, "characters of a choice exclude its space");
    check_example(c, t, &p.example[1], 2, 1, "x| a| b| c| d");
    examples_free(&p);

    must(read_text(&p, TASK_HELLASWAG, path,
                   "{\"ctx\": \"unused\", \"activity_label\": \"Run\", \"ctx_a\": \"[header] Go [title] Now. \", "
                   "\"ctx_b\": \"éa BC\", \"label\": 0, "
                   "\"endings\": [\" a [step]\", \"b [title] c\", \"[x\\ny] d\", \"e    f\"]}\n"
                   "{\"activity_label\": \"Run\", \"ctx_a\": \"Go [step]\", \"ctx_b\": \"\", \"label\": 0, "
                   "\"endings\": [\"a\", \"b\", \"c\", \"d\"]}",
                   t, &err), "hellaswag", &err);
    check(c, p.prepared && p.example[0].chars[0] == 2, "the original file is recognized");
    check_example(c, t, &p.example[0], 1, 0, "Run: Go. Now. Éa bc| a | b. c| [x\ny] d| e  f");
    check_example(c, t, &p.example[1], 2, 0, "Run: Go|  a|  b|  c|  d");
    examples_free(&p);

    char* text = cbt_text("21 the XXXXX ran .\tcab\t\tcat|car|cab|cap|cub|can|cow|cry|cup|cue\n\n");
    must(read_text(&p, TASK_CBT, path, text, t, &err), "cbt", &err);
    check_example(c, t, &p.example[0], 1, 2,
                  "^a1. a2. a3. a4. a5. a6. a7. a8. a9. a10. a11. a12. a13. a14. a15. a16. a17. "
                  "a18. a19. a20. the c|at ran .|ar ran .|ab ran .|ap ran .|ub ran .|an ran .|ow ran .|ry "
                  "ran .|up ran .|ue ran .");
    examples_free(&p);
    free(text);
    // A candidate that is a prefix of another: each choice still has at least one token.
    text = cbt_text("21 XXXXX\tcats\t\tcat|cats|cata|cat|cat|cat|cat|cat|cat|cat");
    must(read_text(&p, TASK_CBT, path, text, t, &err), "cbt", &err);
    check(c, p.example[0].label == 1 && p.example[0].length[0] == 1 && p.example[0].length[1] == 2,
          "one candidate is a prefix of another");
    examples_free(&p);
    free(text);
}

// Expected values from Python's str methods.
static void test_text(Checks* c) {
    static const struct { const char *text, *strip, *lower, *capitalize; } cases[] = {
        {"", "", "", ""},
        {" \t\x1c\u3000Ab \u00a0\u2029\n", "Ab", " \t\x1c\u3000ab \u00a0\u2029\n",
         " \t\x1c\u3000ab \u00a0\u2029\n"},
        {"the LADY", "the LADY", "the lady", "The lady"},
        {"éCOLE ÄÖ", "éCOLE ÄÖ", "école äö", "École äö"},
        {"İI ĀāĹ Ÿ Σx Ѐ Ա Ⴀ Ꭰ Ａ \U00010400", "İI ĀāĹ Ÿ Σx Ѐ Ա Ⴀ Ꭰ Ａ \U00010400", "i̇i āāĺ ÿ σx ѐ ա ⴀ ꭰ ａ \U00010428",
         "İi āāĺ ÿ σx ѐ ա ⴀ ꭰ ａ \U00010428"},
        {"\xff" "A\xe2\x80", "\xff" "A\xe2\x80", "\xff" "a\xe2\x80", "\xff" "a\xe2\x80"},
    };
    for (size_t i = 0; i < countof(cases); i++) {
        const Span s = span_of(cases[i].text), strip = text_strip(s), want = span_of(cases[i].strip);
        Bytes lower = text_lower(s), capitalize = text_capitalize(s);
        check(c, strip.n == want.n && memcmp(strip.text, want.text, want.n) == 0, "text %zu stripped: '%.*s'", i,
              (int)strip.n, strip.text);
        check(c, strcmp(lower.data, cases[i].lower) == 0, "text %zu in lower case: '%s'", i, lower.data);
        check(c, strcmp(capitalize.data, cases[i].capitalize) == 0, "text %zu capitalized: '%s'", i, capitalize.data);
        free(lower.data);
        free(capitalize.data);
    }
    Bytes replaced = text_replace(span_of("aaaXa"), "aa", "b");
    check(c, strcmp(replaced.data, "baXa") == 0, "replaced from left to right: '%s'", replaced.data);
    free(replaced.data);
}

static void test_invalid(Checks* c, const Tokenizer* t, const char* path) {
    char* no_blank = cbt_text("21 the x\ta\t\ta|b|c|d|e|f|g|h|i|j\n");
    char* nine = cbt_text("21 XXXXX x\ta\t\ta|b|c|d|e|f|g|h|i\n");
    char* eleven = cbt_text("21 XXXXX x\ta\t\ta|b|c|d|e|f|g|h|i|j|k\n");
    char* no_answer = cbt_text("21 XXXXX x\tz\t\ta|b|c|d|e|f|g|h|i|j\n");
    char* no_query = cbt_text("1 next\n");
    char* cut = cbt_text("");
    const struct { Task task; const char *text, *says; } cases[] = {
        {TASK_LAMBADA, "", "has no example of lambada"},
        {TASK_LAMBADA, "\n \n", "has no example"},
        {TASK_LAMBADA, "{\"text\": \"a b\"}\n{\"text\": \"a b", "line 2, byte 13"},
        {TASK_LAMBADA, "{\"text\": \"a b\"} x", "line 1, byte 16"},
        {TASK_LAMBADA, "1 plain text", "line 1, byte 0"},
        {TASK_LAMBADA, "{\"text\": \"\xff b\"}", "UTF-8"},
        {TASK_LAMBADA, "{\"text\": \"a\\u0000 b\"}", "a text contains NUL"},
        {TASK_LAMBADA, "{\"text\": \"word\"}", "line 1: the text has no word before its last"},
        {TASK_LAMBADA, "{\"text\": \"\"}", "line 1: the text has no word"},
        {TASK_LAMBADA, "{\"ctx\": \"a b\"}", "line 1: no \"text\""},
        {TASK_HELLASWAG, "{\"text\": \"a b\"}", "line 1: HellaSwag is JSONL of"},
        {TASK_HELLASWAG, "{\"ctx\": \"a\", \"label\": 0, \"endings\": [\"a\", \"b\", \"c\"]}",
         "line 1: 3 endings instead of 4"},
        {TASK_HELLASWAG, "{\"ctx\": \"a\", \"label\": 4, \"endings\": [\"a\", \"b\", \"c\", \"d\"]}",
         "not in the range 0 to 3"},
        {TASK_HELLASWAG, "{\"ctx\": \"a\", \"label\": \"x\", \"endings\": [\"a\", \"b\", \"c\", \"d\"]}",
         "not in the range 0 to 3"},
        {TASK_HELLASWAG, "{\"ctx\": \"a\", \"label\": -1, \"endings\": []}", "line 1, byte 22"},
        {TASK_HELLASWAG, "{\"ctx\": \"a\", \"label\": 0, \"endings\": [\"a\", \"b\", \"c\", \"\"]}",
         "an ending is empty"},
        {TASK_HELLASWAG, "{\"ctx\": \"\", \"label\": 0, \"endings\": [\"a\", \"b\", \"c\", \"d\"]}",
         "the context is empty"},
        {TASK_HELLASWAG, "{\"endings\": [1]}", "string"},
        {TASK_HELLASWAG, "{\"ctx\": \"a\", \"label\": 0, \"endings\": [\"a\", \"b\", \"c\", \"d\"]}\n"
         "{\"activity_label\": \"a\", \"ctx_a\": \"a\", \"ctx_b\": \"b\", \"label\": 0, "
         "\"endings\": [\"a\", \"b\", \"c\", \"d\"]}",
         "line 2: some lines have \"activity_label\""},
        {TASK_CBT, "{\"text\": \"a b\"}", "line 1: does not begin with '1 '"},
        {TASK_CBT, "1 a\n3 b\n", "line 2: does not begin with '2 '"},
        {TASK_CBT, "1 a\n2 b\n",
         "line 2: the file ends within the example that begins on line 1"},
        {TASK_CBT, cut, "line 20: the file ends within"},
        {TASK_CBT, no_query, "line 21: does not begin with '21 '"},
        {TASK_CBT, no_blank, "line 21: the query has no XXXXX"},
        {TASK_CBT, nine, "line 21: not query<tab>answer"},
        {TASK_CBT, eleven, "line 21: not query<tab>answer"},
        {TASK_CBT, no_answer, "line 21: not query<tab>answer"},
    };
    for (size_t i = 0; i < countof(cases); i++) {
        TostError err = {""};
        Examples p;
        const bool ok = read_text(&p, cases[i].task, path, cases[i].text, t, &err);
        check(c, !ok && strstr(err.text, cases[i].says) && strstr(err.text, path) && !strchr(err.text, '\n'),
              "%s '%.60s': expected an error with '%s', got '%s'", task_name(cases[i].task), cases[i].text,
              cases[i].says, err.text);
        if (ok) examples_free(&p);
    }
    free(no_blank); free(nine); free(eleven); free(no_answer); free(no_query); free(cut);
}

// Reading any prefix of a valid file gives an error or only complete examples.
static void test_truncated(Checks* c, const Tokenizer* t, const char* path) {
    char* cbt = cbt_text("21 XXXXX x\ta\t\ta|b|c|d|e|f|g|h|i|j\n\n");
    const struct { Task task; const char* text; } files[] = {
        {TASK_LAMBADA, "{\"text\": \"a b\"}\n{\"text\": \"c d\"}\n"},
        {TASK_HELLASWAG, "{\"ctx\": \"a\", \"label\": 0, \"endings\": [\"a\", \"b\", \"c\", \"d\"]}\n"},
        {TASK_CBT, cbt},
    };
    for (size_t f = 0; f < countof(files); f++) {
        int read = 0;
        for (size_t n = 0; n <= strlen(files[f].text); n++) {
            TostError err;
            Examples p;
            write_bytes(path, files[f].text, n);
            if (!examples_read(&p, files[f].task, path, t, &err)) continue;
            read += (int)p.count;
            examples_free(&p);
        }
        // An example is complete after the closing brace or the last candidate, with or without the line ends.
        const int want[] = {2 + 2 * 2, 2, 3};
        check(c, read == want[f], "prefixes of %s: expected %d examples, got %d", task_name(files[f].task),
              want[f], read);
    }
    free(cbt);
}

static void test_shared(Checks* c, const char* file, Task task, const Tokenizer* t, size_t want) {
    char* path = shared_path(file);
    if (!path) {
        skip(c, "%s not found", file);
        return;
    }
    TostError err = {""};
    Examples p = {0};
    check(c, examples_read(&p, task, path, t, &err) && p.count == want,
          "%s: expected %zu examples, got %zu %s", file, want, p.count, err.text);
    examples_free(&p);
    free(path);
}

int main(void) {
    Checks c = {.suite = "eval"};
    char* dir = new_folder();
    TostError err;
    char *vocab = path_join(dir, "vocab.bpe"), *path = path_join(dir, "examples");
    write_text(vocab, "");
    Tokenizer* t = tokenizer_open(vocab, &err);
    must(t != NULL, "tokenizer_open", &err);
    test_share(&c);
    test_ratio(&c);
    test_json(&c, dir);
    test_text(&c);
    test_examples(&c, t, path);
    test_invalid(&c, t, path);
    test_truncated(&c, t, path);
    test_shared(&c, "data/eval/lambada_test.jsonl", TASK_LAMBADA, t, 5153);
    test_shared(&c, "data/eval/hellaswag_val.jsonl", TASK_HELLASWAG, t, 10042);
    tokenizer_free(t);
    free(vocab);
    free(path);
    drop_folder(dir);
    return checks_verdict(&c);
}
