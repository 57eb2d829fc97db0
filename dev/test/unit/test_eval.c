// test_eval.c: confidence intervals, JSON output, and reading valid and invalid examples.
#include <math.h>

#include "base/json_write.h"
#include "commands/intervals.h"
#include "commands/examples.h"
#include "dev/test/scratch.h"

static void check_near(Checks* c, double got, double want, const char* what) {
    check(c, fabs(got - want) <= 1e-9 * (1 + fabs(want)), "%s: expected %.12g, got %.12g", what, want, got);
}

// ---- Intervals ------------------------------------------------------------------------------------------------------

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

// ---- JSON -----------------------------------------------------------------------------------------------------------

// Which files may be replaced (NULL: no file), by a file with content "test".
static void test_json_replaces(Checks* c, const char* path) {
    static const struct { const char* before; bool replaced; } cases[] = {
        {NULL, true}, {"", true}, {"{\n  \"content\": \"test\",\n", true},
        {"text", false}, {"{\n  \"content\": \"eval\"", false}, {"{", false},
    };
    for (size_t i = 0; i < countof(cases); i++) {
        TostError err;
        JsonFile out;
        unlink(path);
        if (cases[i].before) write_text(path, cases[i].before);
        const bool ok = json_file_open(&out, path, "test", &err);
        if (!cases[i].replaced) check_refused(c, ok, &err, "remove it", "replacing another file");
        else check(c, ok && json_file_close(&out, true, &err), "JSON file %zu: %s", i, err.text);
        if (!ok) check_file(c, path, cases[i].before, "the other file");
    }
}

static void test_json(Checks* c) {
    static const char text[] = "a\"\\/\n\r\t\0\x1f\x7f\xc3\xa9\xff\xc3z", want[] =
        "{\n  \"content\": \"test\",\n"
        "  \"text\": \"a\\\"\\\\/\\n\\r\\t\\u0000\\u001f\x7f\xc3\xa9\xef\xbf\xbd\xef\xbf\xbdz\",\n"
        "  \"third\": 0.33333333333333331,\n  \"nan\": null,\n  \"list\": [\n    7,\n    true\n  ]\n}\n";
    static const char path[] = "x.json", tmp[] = "x.json.tmp";
    TostError err;
    JsonFile out;
    struct stat st;
    must(json_file_open(&out, path, "test", &err), "json_file_open", &err);
    json_put_bytes(&out, "text", text, sizeof text - 1);
    json_put_real(&out, "third", 1.0 / 3);
    json_put_real(&out, "nan", NAN);
    json_put_open(&out, "list", '[');
    json_put_int(&out, NULL, 7);
    json_put_bool(&out, NULL, true);
    json_put_close(&out, ']');
    check(c, !path_exists(path), "the file must not exist before it is closed");
    check(c, json_file_close(&out, true, &err) && !path_exists(tmp), "the file exists after closing");
    check_file(c, path, want, "the JSON file");
    check(c, json_file_open(&out, tmp, "test", &err) && json_file_close(&out, false, &err) && !path_exists(tmp),
          "an abandoned file is removed");
    must(symlink("/dev/null", tmp) == 0, "symlink", NULL);
    check(c, json_file_open(&out, tmp, "test", &err) && json_file_close(&out, true, &err)
          && lstat(tmp, &st) == 0 && S_ISLNK(st.st_mode), "a device must be written, not replaced");
    unlink(tmp);
    test_json_replaces(c, path);
}

// ---- Examples, with a byte tokenizer: each token is one byte of the text --------------------------------------------

// With " for each '.
static bool read_text(Examples* p, const char* text, const Tokenizer* t, TostError* err) {
    char* json = xstrdup(text);
    for (char* at = json; (at = strchr(at, '\'')); at++) *at = '"';
    write_text("examples", json);
    free(json);
    return examples_read(p, "examples", t, err);
}

// "LINE ANSWER CONTEXT|CHOICE:CHARACTERS|…\n", with ! before the line if <|endoftext|> is inside a line. free()
static char* example_text(char* text, const Tokenizer* t, const Example* e) {
    const uint32_t* ids = e->ids + e->context;
    char* context = byte_text(t, e->ids, (size_t)e->context);
    text = append_text(text, "%s%d %d %s", e->inside ? "!" : "", e->line, e->answer, context);
    free(context);
    for (int i = 0; i < e->choices; ids += e->length[i++]) {
        char* choice = byte_text(t, ids, (size_t)e->length[i]);
        text = append_text(text, "|%s:%d", choice, (int)e->chars[i]);
        free(choice);
    }
    return append_text(text, "\n");
}

static void test_examples(Checks* c) {
    // Characters of a choice exclude the space before it.
    static const struct { const char* text; int choices; const char* want; } cases[] = {
        {"\xef\xbb\xbf{'context': 'one two ', 'choices': [' \\u00e9t\\u00e9'], 'answer': 0}\r\n\n"
         "{'a key that is far too long': [1], 'answer': 0, 'choices': ['b'], 'context': 'a'}", 1,
         "1 0 one two|  \xc3\xa9t\xc3\xa9:3\n3 0 a|b:1\n"},
        {"{'context': '<|endoftext|>\\nHe', 'choices': [' a', ' b c', '  d'], 'answer': 2}\n"
         "{'context': '<|endoftext|>\\n', 'choices': ['x', 'y'], 'answer': 1}\n", 3,
         "1 2 ^He| a:1| b c:3|  d:2\n2 1 ^|x:1|y:1\n"},
        {"{'context': '', 'choices': ['It is.', ' They is'], 'answer': 0}\n"
         "{'context': ' \\n', 'choices': ['<|endoftext|>', 'y'], 'answer': 1}\n"
         "{'context': 'a <|endoftext|>', 'choices': ['x', 'y'], 'answer': 1}\n", 2,
         "1 0 ^|It is.:6| They is:7\n2 1 ^| ^:13| \ny:1\n!3 1 a <|endoftext|>|x:1|y:1\n"},
    };
    Tokenizer* t = byte_tokenizer();
    for (size_t i = 0; i < countof(cases); i++) {
        TostError err;
        Examples p;
        char* got = xstrdup("");
        must(read_text(&p, cases[i].text, t, &err), cases[i].text, &err);
        for (int k = 0; k < (int)p.count; k++) got = example_text(got, t, &p.example[k]);
        check(c, p.choices == cases[i].choices && strcmp(got, cases[i].want) == 0, "%d choices: expected %s, got %s",
              p.choices, cases[i].want, got);
        free(got);
        examples_free(&p);
    }
    tokenizer_free(t);
}

static void test_invalid(Checks* c) {
    Tokenizer* t = byte_tokenizer();
#define EXAMPLE(context, choices, answer) "{'context': " context ", 'choices': " choices ", 'answer': " answer "}\n"
    static const struct { const char *text, *says; } cases[] = {
        {"", "has no example"}, {"\n \n", "has no example"},
        {EXAMPLE("'a'", "['b']", "0") "{'context': 'a b", "line 2: byte 16"}, {"1 plain text", "line 1: byte 0"},
        {EXAMPLE("'a'", "['b']", "0") "{} x", "line 2: byte 3"}, {EXAMPLE("'\xff'", "['b']", "0"), "UTF-8"},
        {EXAMPLE("1", "['b']", "0"), "\"context\" is 1, not a text"},
        {EXAMPLE("'a'", "['b', ' ']", "0"), "choice 1 is empty"}, {EXAMPLE("'a'", "[]", "0"), "choices"},
        {EXAMPLE("'a'", "['b']", "1"), "index of a choice"}, {EXAMPLE("'a'", "['b', 3]", "1"), "\"a choice\" is 3"},
        {EXAMPLE("'a'", "['b']", "99999999999"), "\"answer\" is 99999999999, but there are 1"},
        {EXAMPLE("'a'", "['b']", ""), "expected a non-neg"}, {"{'context': 'a', 'answer': 0}", "no \"choices\""},
        {"{'context': 'a', 'choices': ['b']}", "index of a choice"}, {"{'text': 'a b'}", "dev/data"},
        {EXAMPLE("'a'", "['1','2','3','4','5','6','7','8','9','0','1','2','3','4','5','6','7']", "0"), "more than 16"},
        {EXAMPLE("'a'", "['b']", "0") EXAMPLE("'a'", "['b', 'c']", "0"), "line 2: 2 choices"},
    };
    for (size_t i = 0; i < countof(cases); i++) {
        TostError err = {""};
        Examples p;
        const bool ok = read_text(&p, cases[i].text, t, &err);
        check_refused(c, ok, &err, cases[i].says, cases[i].text);
        if (ok) examples_free(&p);
    }
    tokenizer_free(t);
}

int main(void) {
    return RUN_TESTS("eval", test_share, test_ratio, test_json, test_examples, test_invalid);
}
