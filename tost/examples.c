// examples.c: three formats of examples to tokens.
#include "examples.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"

typedef struct {
    const char *p, *end;       // what is left of the file
    const char* path;
    int         line;          // of the file, the last one taken
    const Tokenizer* tokenizer;
    TokenizerCache*  cache;
    TostError*  err;
} Reader;

typedef struct { const char* text; size_t n; } Span;

const char* task_name(Task task) {
    static const char* const names[TASKS] = {"lambada", "hellaswag", "cbt"};
    return names[task];
}

// The next line without its end (LF or CRLF); false at the end of the file.
static bool next_line(Reader* r, Span* line) {
    if (r->p == r->end) return false;
    const char* lf = memchr(r->p, '\n', (size_t)(r->end - r->p));
    *line = (Span){r->p, (size_t)((lf ? lf : r->end) - r->p)};
    r->p = lf ? lf + 1 : r->end;
    r->line++;
    if (line->n > 0 && line->text[line->n - 1] == '\r') line->n--;
    return true;
}

static bool bad_line(const Reader* r, const char* what) {
    return tost_error(r->err, "%s line %d: %s", r->path, r->line, what);
}

static bool blank(Span s) {
    for (size_t i = 0; i < s.n; i++)
        if (!strchr(" \t\r", s.text[i]) || s.text[i] == 0) return false;
    return true;
}

// ---------------------------------------------------------------------------------------------
// Tokens

// Appends the tokens of a text to p->ids, of which `used` are there; returns how many, or -1 with an error.
static int append(Reader* r, Example* p, size_t used, Span text) {
    p->ids = xrealloc(p->ids, (used + text.n + 1) * sizeof *p->ids);
    const size_t n = tokenizer_encode_cached(r->tokenizer, r->cache, p->ids + used, text.text, text.n);
    if (used + n < INT_MAX / MAX_CHOICES) return (int)n;
    bad_line(r, "the example is too long");
    return -1;
}

// The context, and each ending after a space, encoded apart: a space begins a word of its own.
static bool encode_apart(Reader* r, Example* p, Span context, const Span* endings) {
    if (context.n == 0) return bad_line(r, "the context is empty");
    p->shared = append(r, p, 0, context);
    size_t used = (size_t)p->shared;
    for (int e = 0; e < p->endings; e++) {
        if (endings[e].n == 0) return bad_line(r, "an ending is empty");
        char* spaced = xasprintf(" %.*s", (int)endings[e].n, endings[e].text);
        const int n = p->shared < 0 ? -1 : append(r, p, used, (Span){spaced, endings[e].n + 1});
        free(spaced);
        if (n < 0) return false;
        p->length[e] = n;
        p->bytes[e] = (int)endings[e].n;
        used += (size_t)n;
    }
    return true;
}

// Whole texts: what they share at the start, a token of each left over at least, stands once.
static bool encode_whole(Reader* r, Example* p, const Span* texts) {
    Example each[MAX_CHOICES] = {0};
    bool ok = true;
    for (int e = 0; e < p->endings && ok; e++) ok = (p->length[e] = append(r, &each[e], 0, texts[e])) > 0;
    if (ok) {
        size_t total = 0;
        int shared = p->length[0] - 1;
        for (int e = 0; e < p->endings; e++) {
            if (p->length[e] - 1 < shared) shared = p->length[e] - 1;
            int same = 0;
            while (same < shared && each[e].ids[same] == each[0].ids[same]) same++;
            shared = same;
            total += (size_t)p->length[e];
        }
        ok = shared > 0 || bad_line(r, "the candidates' passages share no beginning");
        p->ids = xmalloc(total * sizeof *p->ids);
        memcpy(p->ids, each[0].ids, (size_t)shared * sizeof *p->ids);
        uint32_t* to = p->ids + shared;
        for (int e = 0; e < p->endings; e++) {
            p->length[e] -= shared;
            memcpy(to, each[e].ids + shared, (size_t)p->length[e] * sizeof *to);
            to += p->length[e];
        }
        p->shared = shared;
    }
    for (int e = 0; e < p->endings; e++) free(each[e].ids);
    return ok;
}

// ---------------------------------------------------------------------------------------------
// JSONL

typedef struct { char *text, *ctx, *endings[MAX_CHOICES]; int n_endings; int64_t label; } Fields;

static bool read_text(Json* j, char** out, size_t cap) {
    free(*out);
    *out = xmalloc(cap);
    size_t n;
    if (!json_string(j, *out, cap, &n)) return false;
    return strlen(*out) == n || tost_error(j->err, "byte %zu: a NUL in a text", (size_t)(j->p - j->start));
}

// A number, or (in some editions) a string of one digit.
static bool read_label(Json* j, int64_t* label) {
    char text[8];
    uint64_t value;
    if (json_peek(j) == JSON_STRING) {
        if (!json_string(j, text, sizeof text, NULL)) return false;
        *label = text[0] >= '0' && text[0] <= '9' && !text[1] ? text[0] - '0' : MAX_CHOICES;
        return true;
    }
    if (!json_u64(j, &value)) return false;
    *label = value < MAX_CHOICES ? (int64_t)value : MAX_CHOICES;
    return true;
}

static bool read_endings(Json* j, Fields* f, size_t cap) {
    int more;
    if (!json_enter(j, JSON_ARRAY)) return false;
    while ((more = json_next(j)) == 1) {
        if (f->n_endings == MAX_CHOICES)
            return tost_error(j->err, "byte %zu: more than %d endings", (size_t)(j->p - j->start),
                              MAX_CHOICES);
        if (!read_text(j, &f->endings[f->n_endings++], cap)) return false;
    }
    return more == 0;
}

static bool read_fields(Json* j, Fields* f, size_t cap) {
    int more;
    char key[16];
    if (!json_enter(j, JSON_OBJECT)) return false;
    while ((more = json_next(j)) == 1) {
        const char* at = j->p;
        if (!json_key(j, NULL, 0, NULL)) return false;
        key[0] = 0;
        if ((size_t)(j->p - at) < sizeof key) {   // a longer one is none of ours
            j->p = at;
            if (!json_key(j, key, sizeof key, NULL)) return false;
        }
        const bool ok = strcmp(key, "text") == 0    ? read_text(j, &f->text, cap)
                      : strcmp(key, "ctx") == 0     ? read_text(j, &f->ctx, cap)
                      : strcmp(key, "label") == 0   ? read_label(j, &f->label)
                      : strcmp(key, "endings") == 0 ? read_endings(j, f, cap)
                                                    : json_skip(j);
        if (!ok) return false;
    }
    return more == 0 && json_at_end(j);
}

static bool take_lambada(Reader* r, Example* p, const Fields* f) {
    if (!f->text) return bad_line(r, "no \"text\": LAMBADA is JSONL of {\"text\": …}");
    size_t n = strlen(f->text);
    while (n > 0 && strchr(" \t\r\n", f->text[n - 1])) n--;
    size_t space = n;
    while (space > 0 && f->text[space - 1] != ' ') space--;
    if (space < 2) return bad_line(r, "the text has no word before its last");
    const Span word = {f->text + space, n - space};
    p->endings = 1;
    p->word = xasprintf("%.*s", (int)word.n, word.text);
    return encode_apart(r, p, (Span){f->text, space - 1}, &word);
}

static bool take_hellaswag(Reader* r, Example* p, const Fields* f) {
    enum { ENDINGS = 4 };
    if (!f->ctx || f->n_endings == 0 || f->label < 0)
        return bad_line(r, "HellaSwag is JSONL of {\"ctx\": …, \"endings\": [4], \"label\": 0 to 3}");
    if (f->n_endings != ENDINGS)
        return tost_error(r->err, "%s line %d: %d endings, 4 wanted", r->path, r->line, f->n_endings);
    if (f->label >= ENDINGS) return bad_line(r, "the label is none of 0 to 3");
    Span endings[ENDINGS];
    for (int e = 0; e < ENDINGS; e++) endings[e] = (Span){f->endings[e], strlen(f->endings[e])};
    p->endings = ENDINGS;
    p->label = (int)f->label;
    return encode_apart(r, p, (Span){f->ctx, strlen(f->ctx)}, endings);
}

static bool take_json_line(Reader* r, Example* p, Task task, Span line) {
    TostError inner;
    Fields f = {.label = -1};
    Json j = json_open(line.text, line.n, &inner);
    p->line = r->line;
    const bool read = read_fields(&j, &f, line.n + 1);
    if (!read)
        tost_error(r->err, "%s line %d, %s: not an example of %s", r->path, r->line, inner.text,
                   task_name(task));
    const bool ok = read && (task == TASK_LAMBADA ? take_lambada(r, p, &f) : take_hellaswag(r, p, &f));
    for (int e = 0; e < f.n_endings; e++) free(f.endings[e]);
    free(f.text);
    free(f.ctx);
    return ok;
}

// ---------------------------------------------------------------------------------------------
// The Children's Book Test

enum { CBT_LINES = 20 };

// Takes "N " off a line that must be numbered n.
static bool take_number(const Reader* r, Span* line, int n) {
    const size_t digits = n < 10 ? 1 : 2;
    int value = 0;
    for (size_t i = 0; i < digits && i < line->n; i++) value = 10 * value + (line->text[i] - '0');
    if (line->n <= digits || value != n || line->text[digits] != ' ')
        return tost_error(r->err, "%s line %d: a line that begins with '%d ' wanted: CBT has 20 numbered "
                          "lines and a query 21", r->path, r->line, n);
    *line = (Span){line->text + digits + 1, line->n - digits - 1};
    return true;
}

// Cuts off what stands before the first `mark`; without one all of it.
static Span cut(Span* rest, char mark) {
    const char* at = memchr(rest->text, mark, rest->n);
    const Span head = {rest->text, at ? (size_t)(at - rest->text) : rest->n};
    *rest = at ? (Span){at + 1, rest->n - head.n - 1} : (Span){rest->text + rest->n, 0};
    return head;
}

static bool same_span(Span a, Span b) { return a.n == b.n && memcmp(a.text, b.text, a.n) == 0; }

static bool take_query(Reader* r, Example* p, const char* context, Span line) {
    const Span query = cut(&line, '\t'), answer = cut(&line, '\t');
    cut(&line, '\t');   // empty in all editions
    const char* hole = memmem(query.text, query.n, "XXXXX", 5);
    if (!hole) return bad_line(r, "the query has no XXXXX to fill");
    char* text[MAX_CHOICES];
    Span whole[MAX_CHOICES];
    int n = 0;
    p->label = -1;
    for (; line.n > 0 && n < MAX_CHOICES; n++) {
        const Span candidate = cut(&line, '|');
        const size_t after = (size_t)(hole - query.text) + 5;
        text[n] = xasprintf("%s%.*s%.*s%.*s", context, (int)(hole - query.text), query.text, (int)candidate.n,
                            candidate.text, (int)(query.n - after), query.text + after);
        whole[n] = (Span){text[n], strlen(text[n])};
        p->bytes[n] = (int)candidate.n;
        if (p->label < 0 && same_span(candidate, answer)) p->label = n;
    }
    p->endings = n;
    const bool whole_line = n == MAX_CHOICES && line.n == 0 && p->label >= 0;
    const bool ok = whole_line ? encode_whole(r, p, whole)
                               : bad_line(r, "query<tab>answer<tab><tab>ten candidates between | wanted, the "
                                          "answer among them");
    for (int e = 0; e < n; e++) free(text[e]);
    return ok;
}

// `line` is the first of an example.
static bool take_cbt(Reader* r, Example* p, Span line) {
    char* context = xstrdup("");
    p->line = r->line;
    bool ok = true;
    for (int n = 1; ok && n <= CBT_LINES; n++) {
        ok = take_number(r, &line, n);
        if (!ok) break;
        char* longer = xasprintf("%s%.*s ", context, (int)line.n, line.text);
        free(context);
        context = longer;
        if (next_line(r, &line)) continue;
        ok = tost_error(r->err, "%s line %d: the file ends within the example that begins on line %d: is it "
                        "cut?", r->path, r->line, p->line);
    }
    ok = ok && take_number(r, &line, CBT_LINES + 1) && take_query(r, p, context, line);
    free(context);
    return ok;
}

// ---------------------------------------------------------------------------------------------
// Files

static bool read_all(Reader* r, Examples* p, Task task) {
    size_t room = 0;
    Span line;
    while (next_line(r, &line)) {
        if (blank(line)) continue;
        if (memchr(line.text, 0, line.n)) return bad_line(r, "a NUL byte: this is no text file");
        if (p->count == room) p->passage = xrealloc(p->passage, (room = 2 * room + 64) * sizeof *p->passage);
        Example* next = &p->passage[p->count++];
        *next = (Example){0};
        if (!(task == TASK_CBT ? take_cbt(r, next, line) : take_json_line(r, next, task, line))) return false;
    }
    return p->count > 0 || tost_error(r->err, "%s holds no example of %s", r->path, task_name(task));
}

bool examples_read(Examples* p, Task task, const char* path, const Tokenizer* tokenizer, TostError* err) {
    *p = (Examples){0};
    Bytes file;
    if (!read_file(&file, path, err)) return false;
    Reader r = {.p = file.data, .end = file.data + file.size, .path = path, .tokenizer = tokenizer,
                .cache = tokenizer_cache_new(), .err = err};
    const bool ok = read_all(&r, p, task);
    tokenizer_cache_free(r.cache);
    free(file.data);
    if (!ok) examples_free(p);
    return ok;
}

void examples_free(Examples* p) {
    for (size_t i = 0; i < p->count; i++) {
        free(p->passage[i].word);
        free(p->passage[i].ids);
    }
    free(p->passage);
    *p = (Examples){0};
}
