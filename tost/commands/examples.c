// examples.c: reads the examples of eval --task.
#include "commands/examples.h"

#include "base/json.h"
#include "base/memory.h"
#include "data/documents.h"

#define FORMAT "an example is {\"context\": text, \"choices\": [texts], \"answer\": index of a choice, from 0}; " \
               "dev/data/evalset.py writes such files"

typedef struct {
    Bytes    context, choice[MAX_CHOICES];
    int      choices;
    uint64_t answer;
    bool     has_context, has_choices, has_answer;
} Fields;

// Decodes the next string to *at, which has room for as many bytes as the JSON that is left.
static bool read_text(Json* j, Bytes* out, char** at) {
    out->data = *at;
    if (!json_string(j, *at, (size_t)(j->end - j->p) + 1, &out->size)) return false;
    *at += out->size + 1;
    return true;
}

// Fails if the next value begins with none of the characters in `first`. Invalid JSON passes: the parser reports it.
static bool check_value(const Json* j, const char* key, const char* first, const char* wanted) {
    Json value = *j;
    value.err = &(TostError){0};
    while (value.p < value.end && memchr(" \t\r\n", *value.p, 4)) value.p++;
    const char* from = value.p;
    if (from == value.end || strchr(first, *from) || !json_skip(&value)) return true;
    return tost_error(j->err, "\"%s\" is %.*s, not %s: " FORMAT, key,
                      value.p - from < 60 ? (int)(value.p - from) : 60, from, wanted);
}

static bool read_choices(Json* j, Fields* f, char** at) {
    f->choices = 0;
    if (!check_value(j, "choices", "[", "an array of texts")) return false;
    json_enter(j, "[]");
    while (json_next(j, "[]")) {
        if (f->choices == MAX_CHOICES) return tost_error(j->err, "more than %d choices", MAX_CHOICES);
        if (!check_value(j, "a choice", "\"", "a text") || !read_text(j, &f->choice[f->choices++], at)) return false;
    }
    return !j->failed;
}

static bool read_fields(Json* j, Fields* f, char* at) {
    json_enter(j, "{}");
    while (json_field(j, at, (size_t)(j->end - j->p) + 1, NULL)) {
        const char* key = at;   // overwritten by the next text
        const bool context = strcmp(key, "context") == 0, choices = strcmp(key, "choices") == 0;
        const bool ok = context ? json_once(j, &f->has_context, key) && check_value(j, key, "\"", "a text")
                                  && read_text(j, &f->context, &at)
                      : choices ? json_once(j, &f->has_choices, key) && read_choices(j, f, &at)
                      : strcmp(key, "answer") == 0
                        ? json_once(j, &f->has_answer, key) && check_value(j, key, "0123456789", "an index")
                          && json_u64(j, &f->answer) : json_skip(j);
        if (!ok) return false;
    }
    if (j->failed || !json_at_end(j)) return false;
    const char* missing = !f->has_context ? "context" : !f->has_choices ? "choices" : !f->has_answer ? "answer" : NULL;
    if (missing) return tost_error(j->err, "no \"%s\": " FORMAT, missing);
    return f->answer < (uint64_t)f->choices
        || tost_error(j->err, "\"answer\" is %llu, but there are %d \"choices\": " FORMAT,
                      (unsigned long long)f->answer, f->choices);
}

// Characters of a choice without one space at its beginning.
static int count_chars(Bytes s) {
    int chars = 0;
    for (size_t i = s.size > 0 && s.data[0] == ' '; i < s.size; i++) chars += ((uint8_t)s.data[i] & 0xc0) != 0x80;
    return chars;
}

// text: room for the context and each of the choices
static bool encode(Example* e, const Fields* f, char* text, const Tokenizer* t, TostError* err) {
    size_t n = f->context.size;
    memcpy(text, f->context.data, n);
    while (n > 0 && strchr(" \t\r\n", text[n - 1])) n--;
    e->ids = xmalloc((n + 1) * sizeof *e->ids);
    const size_t shared = encode_documents(e->ids, t, text, n);   // ids at the beginning of each choice's text
    if (shared == 0) *e->ids = (uint32_t)tokenizer_eot(t);
    size_t used = shared > 0 ? shared : 1;
    e->context = (int)used;
    for (int i = 0; i < f->choices; i++) {
        const size_t whole = f->context.size + f->choice[i].size;
        memcpy(text + f->context.size, f->choice[i].data, f->choice[i].size);
        e->ids = xrealloc(e->ids, (used + whole + 1) * sizeof *e->ids);
        uint32_t* ids = e->ids + used;
        e->chars[i] = count_chars(f->choice[i]);
        e->length[i] = (int)encode_documents(ids, t, text, whole) - (int)shared;
        if (e->chars[i] <= 0 || e->length[i] <= 0) return tost_error(err, "choice %d is empty", i);
        memmove(ids, ids + shared, (size_t)e->length[i] * sizeof *ids);
        e->inside = e->inside || end_of_text_inside(text, whole);
        used += (size_t)e->length[i];
    }
    return true;
}

static bool read_example(Example* e, const char* line, size_t n, const Tokenizer* t, TostError* err) {
    char *decoded = xmalloc(n + 1), *text = xmalloc(n + 1);   // decoded strings are not longer than encoded ones
    Fields f = {0};
    Json j = json_open(line, n, err);
    bool ok = read_fields(&j, &f, decoded);
    e->choices = f.choices;
    e->answer = (int)f.answer;
    ok = ok && encode(e, &f, text, t, err);
    free(decoded);
    free(text);
    return ok;
}

static bool read_all(Examples* e, Lines* lines, const char* path, const Tokenizer* t, TostError* err) {
    const char* text;
    for (size_t n; next_line(&text, &n, lines);) {
        if (is_blank(text, n)) continue;
        e->example = xgrow(e->example, e->count, sizeof *e->example);
        Example* next = &e->example[e->count++];
        *next = (Example){.line = (int)lines->number};
        if (!read_example(next, text, n, t, err))
            return tost_error(err, "%s line %d: %s", path, next->line, err->text);
        if ((next->choices == 1) != (e->example->choices == 1))
            return tost_error(err, "%s line %d: %d choices, but the first example has %d: all must have one, or all "
                              "several", path, next->line, next->choices, e->example->choices);
        e->choices = next->choices > e->choices ? next->choices : e->choices;
    }
    return e->count > 0 || tost_error(err, "%s has no example", path);
}

bool examples_read(Examples* e, const char* path, const Tokenizer* tokenizer, TostError* err) {
    Bytes file;
    Lines lines;
    *e = (Examples){0};
    if (!read_lines(&file, &lines, path, err))
        return tost_error(err, "--task %s; dev/data/evalset.py writes such files", err->text);
    const bool ok = read_all(e, &lines, path, tokenizer, err);
    free(file.data);
    if (!ok) examples_free(e);
    return ok;
}

void examples_free(Examples* e) {
    for (size_t i = 0; i < e->count; i++) free(e->example[i].ids);
    free(e->example);
    *e = (Examples){0};
}
