// test_eval.c: what evaluations stand on: intervals, JSON files, and the examples of three tasks, whole and
// broken.
#include "scratch.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "eval_report.h"
#include "json.h"
#include "json_write.h"
#include "examples.h"

static void check_near(Checks* c, double got, double want, const char* what) {
    check(c, fabs(got - want) <= 1e-9 * (1 + fabs(want)), "%s: %.12g wanted, %.12g came", what, want, got);
}

// ---------------------------------------------------------------------------------------------
// Intervals

// Wilson's, from R's prop.test(x, n, correct = FALSE).
static void test_share(Checks* c) {
    static const struct { int64_t hits, n; double low, high; } cases[] = {
        {0, 10, 0.0, 0.277532799862889},
        {5, 10, 0.236593090512564, 0.763406909487436},
        {10, 10, 0.722467200137111, 1.0},
        {1, 3, 0.0614919447203962, 0.792340399197023},
    };
    for (size_t i = 0; i < countof(cases); i++) {
        const Interval got = share_interval(cases[i].hits, cases[i].n);
        check_near(c, got.low, cases[i].low, "lower end of a share");
        check_near(c, got.high, cases[i].high, "upper end of a share");
    }
}

static void test_ratio(Checks* c) {
    // Equal weights: the interval of a mean, 1.96 · s/√n. {1, 2, 3, 6}: mean 3, s² = 14/3
    Ratio mean = {0};
    const double x[] = {1, 2, 3, 6};
    for (size_t i = 0; i < countof(x); i++) ratio_add(&mean, x[i] * 5, 5);
    check_near(c, ratio_value(&mean), 3, "a mean");
    check_near(c, ratio_error(&mean), 1.959963984540054 * sqrt(14.0 / 3 / 4), "error of a mean");
    // Unequal weights: by the definition. Ratio 12/6 = 2, residuals 2, -2, 0
    Ratio ratio = {0};
    ratio_add(&ratio, 4, 1);
    ratio_add(&ratio, 2, 2);
    ratio_add(&ratio, 6, 3);
    check_near(c, ratio_value(&ratio), 2, "a ratio");
    check_near(c, ratio_error(&ratio), 1.959963984540054 * sqrt(3.0 / 2 * 8) / 6, "error of a ratio");
    Ratio one = {0};
    ratio_add(&one, 1, 1);
    check(c, isnan(ratio_error(&one)), "one sample has no error");
}

// ---------------------------------------------------------------------------------------------
// JSON

static void test_json(Checks* c, const char* dir) {
    static const char text[] = "a\"\\\n\x01\xc3\xa9\xff\xc3z";
    static const char want[] = "a\"\\\n\x01\xc3\xa9\xef\xbf\xbd\xef\xbf\xbdz";
    char *path = path_join(dir, "x.json"), *tmp = path_join(dir, "x.json.tmp"), got[64], key[16];
    TostError err;
    JsonFile out;
    must(json_file_open(&out, path, &err), "json_file_open", &err);
    json_put_open(&out, NULL, '{');
    json_put_bytes(&out, "text", text, sizeof text - 1);
    json_put_real(&out, "third", 1.0 / 3);
    json_put_real(&out, "nan", NAN);
    json_put_open(&out, "list", '[');
    json_put_int(&out, NULL, 7);
    json_put_bool(&out, NULL, true);
    json_put_close(&out, ']');
    json_put_close(&out, '}');
    check(c, !path_exists(path) && path_exists(tmp), "a JSON file does not stand before it is whole");
    check(c, json_file_close(&out, true, &err) && path_exists(path) && !path_exists(tmp),
          "a JSON file stands");

    Bytes file;
    must(read_file(&file, path, &err), "read_file", &err);
    Json j = json_open(file.data, file.size, &err);
    double third = 0;
    uint64_t seven = 0;
    bool ok = json_enter(&j, JSON_OBJECT) && json_next(&j) == 1 && json_key(&j, key, sizeof key, NULL) &&
              json_string(&j, got, sizeof got, NULL) && json_next(&j) == 1 &&
              json_key(&j, key, sizeof key, NULL) && json_double(&j, &third) && json_next(&j) == 1 &&
              json_key(&j, key, sizeof key, NULL) && json_peek(&j) == JSON_NULL && json_skip(&j) &&
              json_next(&j) == 1 && json_key(&j, key, sizeof key, NULL) && json_enter(&j, JSON_ARRAY) &&
              json_next(&j) == 1 && json_u64(&j, &seven) && json_next(&j) == 1 &&
              json_peek(&j) == JSON_TRUE && json_skip(&j) && json_next(&j) == 0 && json_next(&j) == 0 &&
              json_at_end(&j);
    check(c, ok, "the JSON that was written is read: %s", ok ? "" : err.text);
    check(c, strcmp(got, want) == 0, "text comes back, foreign bytes as U+FFFD: %s", got);
    check(c, third == 1.0 / 3 && seven == 7, "numbers come back");
    free(file.data);

    must(json_file_open(&out, tmp, &err), "json_file_open", &err);
    json_put_open(&out, NULL, '{');
    check(c, json_file_close(&out, false, &err) && !path_exists(tmp),
          "a JSON file that is given up leaves nothing");
    check(c, !json_file_open(&out, "/nowhere/x", &err) && strstr(err.text, "--json /nowhere/x"),
          "a folder that is not there");
    check(c, !json_file_open(&out, dir, &err) && strstr(err.text, "is a folder"), "a folder is no file");
    check(c, json_file_open(&out, NULL, &err) && json_file_close(&out, true, &err),
          "no path: nothing is done");
    struct stat st;
    check(c, symlink("/dev/null", tmp) == 0 && json_file_open(&out, tmp, &err), "a device: %s", err.text);
    json_put_open(&out, NULL, '{');
    json_put_close(&out, '}');
    check(c, json_file_close(&out, true, &err) && lstat(tmp, &st) == 0 && S_ISLNK(st.st_mode),
          "a device is written, not replaced");
    unlink(tmp);
    free(path);
    free(tmp);
}

// ---------------------------------------------------------------------------------------------
// Examples. The tokenizer has bytes as tokens, so that tokens can be read back as text.

static char* text_of(const Tokenizer* t, const uint32_t* ids, int n) {
    char* text = xcalloc((size_t)n + 1, 1);
    for (int i = 0; i < n; i++) {
        size_t len;
        text[i] = tokenizer_piece(t, ids[i], &len)[0];
    }
    return text;
}

// The whole example as "shared|ending|ending…".
static char* joined(const Tokenizer* t, const Example* p) {
    char* text = text_of(t, p->ids, p->shared);
    const uint32_t* ids = p->ids + p->shared;
    for (int e = 0; e < p->endings; ids += p->length[e++]) {
        char *ending = text_of(t, ids, p->length[e]), *longer = xasprintf("%s|%s", text, ending);
        free(ending);
        free(text);
        text = longer;
    }
    return text;
}

static bool read_text(Examples* p, Task task, const char* path, const char* text, const Tokenizer* t,
                      TostError* err) {
    write_bytes(path, text, strlen(text));
    return examples_read(p, task, path, t, err);
}

static void check_passage(Checks* c, const Tokenizer* t, const Example* p, int line, int label,
                          const char* want) {
    char* got = joined(t, p);
    check(c, p->line == line && p->label == label && strcmp(got, want) == 0,
          "line %d, label %d, '%s' wanted: %d, %d, '%s' came", line, label, want, p->line, p->label, got);
    free(got);
}

// An example of CBT: twenty lines "N aN." and the query given, from its number on.
static char* cbt_text(const char* query) {
    char* text = xstrdup("");
    for (int n = 1; n <= 20; n++) {
        char* longer = xasprintf("%s%d a%d.\n", text, n, n);
        free(text);
        text = longer;
    }
    char* whole = xasprintf("%s%s", text, query);
    free(text);
    return whole;
}

static void test_examples(Checks* c, const Tokenizer* t, const char* path) {
    TostError err;
    Examples p;
    must(read_text(&p, TASK_LAMBADA, path,
                   "{\"text\": \"one two \\u00e9t\\u00e9 \"}\r\n\n{\"id\": [1], \"text\": \"a b\"}", t, &err),
         "lambada", &err);
    check(c, p.count == 2, "two examples");
    check_passage(c, t, &p.passage[0], 1, 0, "one two| \xc3\xa9t\xc3\xa9");
    check(c, strcmp(p.passage[0].word, "\xc3\xa9t\xc3\xa9") == 0 && p.passage[0].bytes[0] == 5,
          "the word and its bytes");
    check_passage(c, t, &p.passage[1], 3, 0, "a| b");
    examples_free(&p);

    must(read_text(&p, TASK_HELLASWAG, path,
                   "{\"a key that is far too long\": {}, \"ctx\": \"He\", \"label\": 3, \"endings\": "
                   "[\"a\", \"b c\", \"d\", \"e\"]}\n{\"ctx\": \"x\", \"label\": \"1\", \"endings\": [\"a\", "
                   "\"b\", \"c\", \"d\"]}\n",
                   t, &err),
         "hellaswag", &err);
    check_passage(c, t, &p.passage[0], 1, 3, "He| a| b c| d| e");
    check(c, p.passage[0].bytes[1] == 3, "bytes of an ending do not count its space");
    check_passage(c, t, &p.passage[1], 2, 1, "x| a| b| c| d");
    examples_free(&p);

    char* text = cbt_text("21 the XXXXX ran .\tcab\t\tcat|car|cab|cap|cub|can|cow|cry|cup|cue\n\n");
    must(read_text(&p, TASK_CBT, path, text, t, &err), "cbt", &err);
    check_passage(c, t, &p.passage[0], 1, 2,
                  "a1. a2. a3. a4. a5. a6. a7. a8. a9. a10. a11. a12. a13. a14. a15. a16. a17. "
                  "a18. a19. a20. the c|at ran .|ar ran .|ab ran .|ap ran .|ub ran .|an ran .|ow ran .|ry "
                  "ran .|up ran .|ue ran .");
    examples_free(&p);
    free(text);
    // A candidate that begins another, at the end of the query: each keeps a token of its own.
    text = cbt_text("21 XXXXX\tcats\t\tcat|cats|cata|cat|cat|cat|cat|cat|cat|cat");
    must(read_text(&p, TASK_CBT, path, text, t, &err), "cbt", &err);
    check(c, p.passage[0].label == 1 && p.passage[0].length[0] == 1 && p.passage[0].length[1] == 2,
          "one begins another");
    examples_free(&p);
    free(text);
}

static void test_broken(Checks* c, const Tokenizer* t, const char* path) {
    char* no_hole = cbt_text("21 the x\ta\t\ta|b|c|d|e|f|g|h|i|j\n");
    char* nine = cbt_text("21 XXXXX x\ta\t\ta|b|c|d|e|f|g|h|i\n");
    char* eleven = cbt_text("21 XXXXX x\ta\t\ta|b|c|d|e|f|g|h|i|j|k\n");
    char* no_answer = cbt_text("21 XXXXX x\tz\t\ta|b|c|d|e|f|g|h|i|j\n");
    char* no_query = cbt_text("1 next\n");
    char* cut = cbt_text("");
    const struct { Task task; const char *text, *says;
    } cases[] = {
        {TASK_LAMBADA, "", "holds no example of lambada"},
        {TASK_LAMBADA, "\n \n", "holds no example"},
        {TASK_LAMBADA, "{\"text\": \"a b\"}\n{\"text\": \"a b", "line 2, byte 13: expected the closing quote"},
        {TASK_LAMBADA, "{\"text\": \"a b\"} x", "line 1, byte 16: expected the end of the text"},
        {TASK_LAMBADA, "1 plain text", "line 1, byte 0: expected an object, found '1'"},
        {TASK_LAMBADA, "{\"text\": \"\xff b\"}", "expected valid UTF-8"},
        {TASK_LAMBADA, "{\"text\": \"a\\u0000 b\"}", "a NUL in a text"},
        {TASK_LAMBADA, "{\"text\": \"word\"}", "line 1: the text has no word before its last"},
        {TASK_LAMBADA, "{\"text\": \"\"}", "line 1: the text has no word"},
        {TASK_LAMBADA, "{\"ctx\": \"a b\"}", "line 1: no \"text\""},
        {TASK_HELLASWAG, "{\"text\": \"a b\"}", "line 1: HellaSwag is JSONL of"},
        {TASK_HELLASWAG, "{\"ctx\": \"a\", \"label\": 0, \"endings\": [\"a\", \"b\", \"c\"]}",
         "line 1: 3 endings, 4 wanted"},
        {TASK_HELLASWAG, "{\"ctx\": \"a\", \"label\": 4, \"endings\": [\"a\", \"b\", \"c\", \"d\"]}",
         "none of 0 to 3"},
        {TASK_HELLASWAG, "{\"ctx\": \"a\", \"label\": \"x\", \"endings\": [\"a\", \"b\", \"c\", \"d\"]}",
         "none of 0 to 3"},
        {TASK_HELLASWAG, "{\"ctx\": \"a\", \"label\": -1, \"endings\": []}", "line 1, byte 22"},
        {TASK_HELLASWAG, "{\"ctx\": \"a\", \"label\": 0, \"endings\": [\"a\", \"b\", \"c\", \"\"]}",
         "an ending is empty"},
        {TASK_HELLASWAG, "{\"ctx\": \"\", \"label\": 0, \"endings\": [\"a\", \"b\", \"c\", \"d\"]}",
         "the context is empty"},
        {TASK_HELLASWAG, "{\"endings\": [1]}", "expected a string"},
        {TASK_CBT, "{\"text\": \"a b\"}", "line 1: a line that begins with '1 ' wanted"},
        {TASK_CBT, "1 a\n3 b\n", "line 2: a line that begins with '2 ' wanted"},
        {TASK_CBT, "1 a\n2 b\n",
         "line 2: the file ends within the example that begins on line 1: is it cut?"},
        {TASK_CBT, cut, "line 20: the file ends within"},
        {TASK_CBT, no_query, "line 21: a line that begins with '21 ' wanted"},
        {TASK_CBT, no_hole, "line 21: the query has no XXXXX"},
        {TASK_CBT, nine, "line 21: query<tab>answer"},
        {TASK_CBT, eleven, "line 21: query<tab>answer"},
        {TASK_CBT, no_answer, "line 21: query<tab>answer"},
    };
    for (size_t i = 0; i < countof(cases); i++) {
        TostError err = {""};
        Examples p;
        const bool ok = read_text(&p, cases[i].task, path, cases[i].text, t, &err);
        check(c, !ok && strstr(err.text, cases[i].says) && strstr(err.text, path) && !strchr(err.text, '\n'),
              "%s '%.60s': an error with '%s' wanted, got '%s'", task_name(cases[i].task), cases[i].text,
              cases[i].says, err.text);
        if (ok) examples_free(&p);
    }
    free(no_hole); free(nine); free(eleven); free(no_answer); free(no_query); free(cut);
}

// Every prefix of a file of each kind: an error, or the examples that are whole.
static void test_cut(Checks* c, const Tokenizer* t, const char* path) {
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
        // whole: after the closing brace, or the last candidate, and the line ends that may follow
        const int want[] = {2 + 2 * 2, 2, 3};
        check(c, read == want[f], "prefixes of %s: %d examples wanted, %d came", task_name(files[f].task),
              want[f], read);
    }
    free(cbt);
}

static void test_shared(Checks* c, const char* file, Task task, const Tokenizer* t, size_t want) {
    char* path = shared_path(file);
    if (!path) {
        skip(c, "%s is not there", file);
        return;
    }
    TostError err = {""};
    Examples p = {0};
    check(c, examples_read(&p, task, path, t, &err) && p.count == want,
          "%s: %zu examples wanted, %zu came %s", file, want, p.count, err.text);
    examples_free(&p);
    free(path);
}

int main(void) {
    Checks c = {.suite = "eval"};
    char* dir = new_folder();
    TostError err;
    char *vocab = path_join(dir, "vocab.bpe"), *path = path_join(dir, "examples");
    write_bytes(vocab, "", 0);
    Tokenizer* t = tokenizer_open(vocab, &err);
    must(t != NULL, "tokenizer_open", &err);
    test_share(&c);
    test_ratio(&c);
    test_json(&c, dir);
    test_examples(&c, t, path);
    test_broken(&c, t, path);
    test_cut(&c, t, path);
    test_shared(&c, "data/eval/lambada_test.jsonl", TASK_LAMBADA, t, 5153);
    test_shared(&c, "data/eval/hellaswag_val.jsonl", TASK_HELLASWAG, t, 10042);
    tokenizer_free(t);
    free(vocab);
    free(path);
    drop_folder(dir);
    return checks_verdict(&c);
}
