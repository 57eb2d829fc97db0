// examples.c: reads and tokenizes JSONL files of examples.
#include "commands/examples.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/memory.h"
#include "data/tokenize.h"

typedef struct { const char* text; size_t n; } Span;

typedef struct {
    Span     context, choice[MAX_CHOICES];
    int      choices;   // 0: no "choices"
    uint64_t answer;    // MAX_CHOICES: no "answer"
    char*    buffer;    // of the texts; as long as the line, since decoded strings are not longer than encoded ones
    size_t   used, cap;
} Fields;

static bool read_text(Json* j, Fields* f, Span* out) {
    out->text = f->buffer + f->used;
    if (!json_string(j, f->buffer + f->used, f->cap - f->used, &out->n)) return false;
    f->used += out->n + 1;
    return true;
}

static bool read_choices(Json* j, Fields* f) {
    int more;
    f->choices = 0;
    if (!json_enter(j, JSON_ARRAY)) return false;
    while ((more = json_next(j)) == 1) {
        if (f->choices == MAX_CHOICES) return tost_error(j->err, "more than %d choices", MAX_CHOICES);
        if (!read_text(j, f, &f->choice[f->choices++])) return false;
    }
    return more == 0;
}

static bool read_fields(Json* j, Fields* f) {
    int more;
    if (!json_enter(j, JSON_OBJECT)) return false;
    while ((more = json_next(j)) == 1) {
        char* key = f->buffer + f->used;   // overwritten by the next text
        if (!json_key(j, key, f->cap - f->used, NULL)) return false;
        const bool ok = strcmp(key, "context") == 0 ? read_text(j, f, &f->context)
                      : strcmp(key, "choices") == 0 ? read_choices(j, f)
                      : strcmp(key, "answer") == 0  ? json_u64(j, &f->answer)
                                                    : json_skip(j);
        if (!ok) return false;
    }
    if (more != 0 || !json_at_end(j)) return false;
    if (!f->context.text || f->choices == 0 || f->answer >= (uint64_t)f->choices)
        return tost_error(j->err, "an example is {\"context\": text, \"choices\": [texts], \"answer\": index of a "
                          "choice}; dev/data writes LAMBADA, HellaSwag and CBT in this format");
    return true;
}

// Characters of a choice without one space at its beginning.
static int count_chars(Span s) {
    int chars = 0;
    for (size_t i = s.n > 0 && s.text[0] == ' '; i < s.n; i++) chars += ((unsigned char)s.text[i] & 0xc0) != 0x80;
    return chars;
}

static bool encode(Example* e, const Fields* f, const Tokenizer* t, TostError* err) {
    size_t n = f->context.n, used = 0;
    char* text = xmalloc(f->cap);
    memcpy(text, f->context.text, n);
    while (n > 0 && strchr(" \t\r\n", text[n - 1])) n--;
    e->ids = xmalloc((n + 1) * sizeof *e->ids);
    used = encode_documents(e->ids, t, text, n);
    e->context = (int)used;
    bool ok = used > 0 || tost_error(err, "the context is empty");
    for (int i = 0; ok && i < f->choices; i++) {
        const size_t whole = f->context.n + f->choice[i].n;
        memcpy(text + f->context.n, f->choice[i].text, f->choice[i].n);
        e->ids = xrealloc(e->ids, (used + whole + 1) * sizeof *e->ids);
        uint32_t* ids = e->ids + used;
        e->chars[i] = count_chars(f->choice[i]);
        e->length[i] = (int)encode_documents(ids, t, text, whole) - e->context;
        ok = (e->chars[i] > 0 && e->length[i] > 0) || tost_error(err, "choice %d is empty", i);
        if (!ok) break;
        memmove(ids, ids + e->context, (size_t)e->length[i] * sizeof *ids);
        used += (size_t)e->length[i];
    }
    free(text);
    return ok;
}

static bool read_example(Example* e, const char* line, size_t n, const Tokenizer* t, TostError* err) {
    Fields f = {.answer = MAX_CHOICES, .buffer = xmalloc(n + 1), .cap = n + 1};
    Json j = json_open(line, n, err);
    const bool ok = read_fields(&j, &f);
    e->choices = f.choices;
    e->answer = (int)f.answer;
    const bool encoded = ok && encode(e, &f, t, err);
    free(f.buffer);
    return encoded;
}

static bool blank(const char* s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (s[i] != ' ' && s[i] != '\t' && s[i] != '\r') return false;
    return true;
}

static bool read_lines(Examples* e, const char* at, const char* end, const char* path, const Tokenizer* t,
                       TostError* err) {
    for (int line = 1; at < end; line++) {
        const char* feed = memchr(at, '\n', (size_t)(end - at));
        const char* text = at;
        const size_t n = (size_t)((feed ? feed : end) - at);
        at = feed ? feed + 1 : end;
        if (blank(text, n)) continue;
        if ((e->count & (e->count - 1)) == 0)
            e->example = xrealloc(e->example, (2 * e->count + 1) * sizeof *e->example);
        Example* next = &e->example[e->count++];
        TostError inner;
        *next = (Example){.line = line};
        if (!read_example(next, text, n, t, &inner)) return tost_error(err, "%s line %d: %s", path, line, inner.text);
        if ((next->choices == 1) != (e->example->choices == 1))
            return tost_error(err, "%s line %d: %d choices, but the first example has %d: all must have one, or all "
                              "several", path, line, next->choices, e->example->choices);
        e->choices = next->choices > e->choices ? next->choices : e->choices;
    }
    return e->count > 0 || tost_error(err, "%s has no example", path);
}

bool examples_read(Examples* e, const char* path, const Tokenizer* tokenizer, TostError* err) {
    Bytes file;
    size_t skip = 0;
    *e = (Examples){0};
    if (!read_file(&file, path, err))
        return tost_error(err, "--task %s; dev/data/evalset.py writes such files", err->text);
    const size_t head = file.size < TEXT_HEAD_BYTES ? file.size : TEXT_HEAD_BYTES;
    const bool ok = text_check_head(&skip, path, file.data, head, err)
                    && read_lines(e, file.data + skip, file.data + file.size, path, tokenizer, err);
    free(file.data);
    if (!ok) examples_free(e);
    return ok;
}

void examples_free(Examples* e) {
    for (size_t i = 0; i < e->count; i++) free(e->example[i].ids);
    free(e->example);
    *e = (Examples){0};
}
