// examples.c: reads the files of LAMBADA, HellaSwag and the Children's Book Test.
#include "commands/examples.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/memory.h"
#include "commands/str.h"
#include "data/tokenize.h"

typedef struct {
    const char *p, *end;       // rest of the file
    const char* path;
    int         line;          // number of the last line read
    int         first;         // line of the first example
    bool        prepared;      // Examples.prepared
    const Tokenizer* tokenizer;
    TokenizerCache*  cache;
    TostError*  err;
} Reader;

const char* task_name(Task task) {
    static const char* const names[TASKS] = {"lambada", "hellaswag", "cbt"};
    return names[task];
}

// The next line without LF or CRLF; false at the end of the file.
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

// Writes the tokens of a text to e->ids, after the first `used` ids. Returns their number, or -1 on error.
static int append(Reader* r, Example* e, size_t used, Span text) {
    e->ids = xrealloc(e->ids, (used + text.n + 1) * sizeof *e->ids);
    const size_t n = tokenizer_encode_cached(r->tokenizer, r->cache, e->ids + used, text.text, text.n);
    if (used + n < INT_MAX / MAX_CHOICES) return (int)n;
    bad_line(r, "the example is too long");
    return -1;
}

// Encodes a choice after the context; *used ids are in e->ids. The text of the choice begins with white space.
static bool encode_choice(Reader* r, Example* e, size_t* used, Span context, Span choice, int i) {
    char* text = xasprintf("%.*s%.*s", (int)context.n, context.text, (int)choice.n, choice.text);
    const int whole = append(r, e, *used, (Span){text, context.n + choice.n});
    free(text);
    if (whole < 0) return false;
    e->length[i] = whole - e->context;
    if (e->length[i] < 1) return bad_line(r, "a choice has no token of its own");
    memmove(e->ids + *used, e->ids + *used + e->context, (size_t)e->length[i] * sizeof *e->ids);
    *used += (size_t)e->length[i];
    return true;
}

// Encodes the context and, with a space before it, each choice.
static bool encode_choices(Reader* r, Example* e, Span context, const Span* choices) {
    const size_t moved = text_trailing_space(context);
    const char* space = context.text + context.n - moved;
    context.n -= moved;
    if (context.n == 0) return bad_line(r, "the context is empty");
    e->context = append(r, e, 0, context);
    if (e->context < 0) return false;
    size_t used = (size_t)e->context;
    for (int i = 0; i < e->choices; i++) {
        if (choices[i].n == 0) return bad_line(r, "an ending is empty");
        e->chars[i] = text_length(choices[i]);
        char* spaced = xasprintf("%.*s %.*s", (int)moved, space, (int)choices[i].n, choices[i].text);
        const bool ok = encode_choice(r, e, &used, context, span_of(spaced), i);
        free(spaced);
        if (!ok) return false;
    }
    return true;
}

// Encodes whole texts, each after <|endoftext|>. The context is their common token prefix, shortened so that each
// choice has at least one token.
static bool encode_texts(Reader* r, Example* e, const Span* texts) {
    Example text[MAX_CHOICES] = {0};
    bool ok = true;
    for (int i = 0; i < e->choices && ok; i++) {
        text[i].ids = xmalloc(sizeof *text[i].ids);
        text[i].ids[0] = (uint32_t)tokenizer_eot(r->tokenizer);
        const int n = append(r, &text[i], 1, texts[i]);
        e->length[i] = 1 + n;
        ok = n > 0;
    }
    if (ok) {
        size_t total = 0;
        int context = e->length[0] - 1;
        for (int i = 0; i < e->choices; i++) {
            if (e->length[i] - 1 < context) context = e->length[i] - 1;
            int same = 0;
            while (same < context && text[i].ids[same] == text[0].ids[same]) same++;
            context = same;
            total += (size_t)e->length[i];
        }
        e->ids = xmalloc(total * sizeof *e->ids);
        memcpy(e->ids, text[0].ids, (size_t)context * sizeof *e->ids);
        uint32_t* to = e->ids + context;
        for (int i = 0; i < e->choices; i++) {
            e->length[i] -= context;
            memcpy(to, text[i].ids + context, (size_t)e->length[i] * sizeof *to);
            to += e->length[i];
        }
        e->context = context;
    }
    for (int i = 0; i < e->choices; i++) free(text[i].ids);
    return ok;
}

// ---------------------------------------------------------------------------------------------
// JSONL

typedef struct {
    char *text, *ctx, *ctx_a, *ctx_b, *activity, *endings[MAX_CHOICES];
    int n_endings;
    int64_t label;
} Fields;

static bool read_text(Json* j, char** out, size_t cap) {
    free(*out);
    *out = xmalloc(cap);
    size_t n;
    if (!json_string(j, *out, cap, &n)) return false;
    return strlen(*out) == n || tost_error(j->err, "byte %zu: a text contains NUL", (size_t)(j->p - j->start));
}

// A number or, in some editions, a one-digit string. Invalid labels become MAX_CHOICES.
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
    char key[32];
    if (!json_enter(j, JSON_OBJECT)) return false;
    while ((more = json_next(j)) == 1) {
        const char* at = j->p;
        if (!json_key(j, NULL, 0, NULL)) return false;
        key[0] = 0;
        if ((size_t)(j->p - at) < sizeof key) {   // longer keys are not used
            j->p = at;
            if (!json_key(j, key, sizeof key, NULL)) return false;
        }
        const bool ok = strcmp(key, "text") == 0    ? read_text(j, &f->text, cap)
                      : strcmp(key, "ctx") == 0     ? read_text(j, &f->ctx, cap)
                      : strcmp(key, "ctx_a") == 0   ? read_text(j, &f->ctx_a, cap)
                      : strcmp(key, "ctx_b") == 0   ? read_text(j, &f->ctx_b, cap)
                      : strcmp(key, "activity_label") == 0 ? read_text(j, &f->activity, cap)
                      : strcmp(key, "label") == 0   ? read_label(j, &f->label)
                      : strcmp(key, "endings") == 0 ? read_endings(j, f, cap)
                                                    : json_skip(j);
        if (!ok) return false;
    }
    return more == 0 && json_at_end(j);
}

// Splits a text at its last space; sets e->word.
static bool split_last_word(Reader* r, Example* e, Span* context, Span* word, Span text) {
    size_t space = text.n;
    while (space > 0 && text.text[space - 1] != ' ') space--;
    if (space < 2) return bad_line(r, "the text has no word before its last one");
    *context = (Span){text.text, space - 1};
    *word = (Span){text.text + space, text.n - space};
    e->choices = 1;
    e->word = xasprintf("%.*s", (int)word->n, word->text);
    return true;
}

// The prompt of the published script, with the word after it.
static bool take_prompt(Reader* r, Example* e, Span text) {
    Span context = {0}, word = {0};
    if (!split_last_word(r, e, &context, &word, text)) return false;
    e->context = append(r, e, 0, context);
    e->length[0] = e->context < 0 ? -1 : append(r, e, (size_t)e->context, (Span){word.text - 1, word.n + 1});
    e->chars[0] = text_length(word);
    e->greedy = WITHIN;
    return e->length[0] > 0;
}

static bool take_lambada(Reader* r, Example* e, const Fields* f) {
    if (!f->text) return bad_line(r, "no \"text\"; LAMBADA is JSONL of {\"text\": …}");
    const Span text = span_of(f->text);
    Span context = {0}, word = {0};
    if (!split_last_word(r, e, &context, &word, (Span){text.text, text.n - text_trailing_space(text)})
        || !encode_choices(r, e, context, &word)) return false;
    e->greedy = e->length[0];
    Bytes left = text_replace(text_strip(text), "“", "\"");
    Bytes both = text_replace((Span){left.data, left.size}, "”", "\"");
    char* prompt = xasprintf("\n%s", both.data);
    const bool ok = take_prompt(r, e + 1, span_of(prompt));
    free(left.data);
    free(both.data);
    free(prompt);
    return ok;
}

// A text of the original HellaSwag file as lm-evaluation-harness prepares it: WikiHow's "[title]" ends a sentence,
// other marks in brackets are removed, and so is one of two spaces. free()
static char* prepare_text(Span text) {
    Bytes titles = text_replace(text_strip(text), " [title]", ". ");
    char *to = titles.data, *from = to;
    for (char *end = from + titles.size, *close; from < end; ) {
        const size_t line = strcspn(from, "\n");   // a mark does not continue on the next line
        close = *from == '[' ? memchr(from, ']', line) : NULL;
        if (close) from = close + 1;
        else *to++ = *from++;
    }
    Bytes out = text_replace((Span){titles.data, (size_t)(to - titles.data)}, "  ", " ");
    free(titles.data);
    return out.data;
}

// Replaces ctx and endings by those that lm-evaluation-harness makes from the fields of the original file.
static void prepare_hellaswag(Fields* f) {
    Bytes b = text_capitalize(span_of(f->ctx_b));
    char* whole = xasprintf("%s: %s %s", f->activity, f->ctx_a, b.data);
    free(f->ctx);
    f->ctx = prepare_text(span_of(whole));
    for (int i = 0; i < f->n_endings; i++) {
        char* ending = prepare_text(span_of(f->endings[i]));
        free(f->endings[i]);
        f->endings[i] = ending;
    }
    free(whole);
    free(b.data);
}

static bool take_hellaswag(Reader* r, Example* e, Fields* f) {
    enum { ENDINGS = 4 };
    const bool original = f->activity && f->ctx_a && f->ctx_b;
    if ((!f->ctx && !original) || f->n_endings == 0 || f->label < 0)
        return bad_line(r, "HellaSwag is JSONL of {\"ctx\": …, \"endings\": [4 strings], \"label\": 0 to 3}");
    if (f->n_endings != ENDINGS)
        return tost_error(r->err, "%s line %d: %d endings instead of 4", r->path, r->line, f->n_endings);
    if (f->label >= ENDINGS) return bad_line(r, "the label is not in the range 0 to 3");
    if (r->line == r->first) r->prepared = original;
    if (original != r->prepared)
        return bad_line(r, "some lines have \"activity_label\", \"ctx_a\" and \"ctx_b\" and some do not; use the "
                        "original file, or one in which all lines are prepared");
    if (original) prepare_hellaswag(f);
    Span endings[ENDINGS];
    for (int i = 0; i < ENDINGS; i++) endings[i] = span_of(f->endings[i]);
    e->choices = ENDINGS;
    e->label = (int)f->label;
    return encode_choices(r, e, span_of(f->ctx), endings);
}

static bool take_json_line(Reader* r, Example* e, Task task, Span line) {
    TostError inner;
    Fields f = {.label = -1};
    Json j = json_open(line.text, line.n, &inner);
    const bool read = read_fields(&j, &f, line.n + 1);
    if (!read)
        tost_error(r->err, "%s line %d, %s: not an example of %s", r->path, r->line, inner.text,
                   task_name(task));
    const bool ok = read && (task == TASK_LAMBADA ? take_lambada(r, e, &f) : take_hellaswag(r, e, &f));
    for (int i = 0; i < f.n_endings; i++) free(f.endings[i]);
    free(f.text);
    free(f.ctx);
    free(f.ctx_a);
    free(f.ctx_b);
    free(f.activity);
    return ok;
}

// ---------------------------------------------------------------------------------------------
// The Children's Book Test

enum { CBT_LINES = 20 };
#define GAP "XXXXX"   // for the missing word in a query

// Removes "N " from a line that must have number n.
static bool take_number(const Reader* r, Span* line, int n) {
    const size_t digits = n < 10 ? 1 : 2;
    int value = 0;
    for (size_t i = 0; i < digits && i < line->n; i++) value = 10 * value + (line->text[i] - '0');
    if (line->n <= digits || value != n || line->text[digits] != ' ')
        return tost_error(r->err, "%s line %d: does not begin with '%d '; an example of CBT is 20 numbered lines "
                          "and a query numbered 21", r->path, r->line, n);
    *line = (Span){line->text + digits + 1, line->n - digits - 1};
    return true;
}

// Splits *rest at the first `mark`. Returns the text before it, or all of *rest if there is none.
static Span split(Span* rest, char mark) {
    const char* at = memchr(rest->text, mark, rest->n);
    const Span head = {rest->text, at ? (size_t)(at - rest->text) : rest->n};
    *rest = at ? (Span){at + 1, rest->n - head.n - 1} : (Span){rest->text + rest->n, 0};
    return head;
}

static bool same_span(Span a, Span b) { return a.n == b.n && memcmp(a.text, b.text, a.n) == 0; }

static bool take_query(Reader* r, Example* e, const char* context, Span line) {
    const Span query = split(&line, '\t'), answer = split(&line, '\t');
    split(&line, '\t');   // empty in all editions
    if (!memmem(query.text, query.n, GAP, sizeof GAP - 1)) return bad_line(r, "the query has no " GAP);
    char* text[MAX_CHOICES];
    Span span[MAX_CHOICES];
    int n = 0;
    e->label = -1;
    for (; line.n > 0 && n < MAX_CHOICES; n++) {
        const Span candidate = split(&line, '|');
        char* word = xasprintf("%.*s", (int)candidate.n, candidate.text);
        Bytes filled = text_replace(query, GAP, word);
        text[n] = xasprintf("%s%s", context, filled.data);
        span[n] = span_of(text[n]);
        e->chars[n] = text_length(candidate);
        free(word);
        free(filled.data);
        if (e->label < 0 && same_span(candidate, answer)) e->label = n;
    }
    e->choices = n;
    const bool valid = n == MAX_CHOICES && line.n == 0 && e->label >= 0;
    const bool ok = valid ? encode_texts(r, e, span)
                          : bad_line(r, "not query<tab>answer<tab><tab>ten candidates separated by |, one of which is "
                                     "the answer");
    for (int i = 0; i < n; i++) free(text[i]);
    return ok;
}

// `line` is the first line of an example.
static bool take_cbt(Reader* r, Example* e, Span line) {
    char* context = xstrdup("");
    bool ok = true;
    for (int n = 1; ok && n <= CBT_LINES; n++) {
        ok = take_number(r, &line, n);
        if (!ok) break;
        char* longer = xasprintf("%s%.*s ", context, (int)line.n, line.text);
        free(context);
        context = longer;
        if (next_line(r, &line)) continue;
        ok = tost_error(r->err, "%s line %d: the file ends within the example that begins on line %d", r->path,
                        r->line, e->line);
    }
    ok = ok && take_number(r, &line, CBT_LINES + 1) && take_query(r, e, context, line);
    free(context);
    return ok;
}

// ---------------------------------------------------------------------------------------------
// Files

static bool read_all(Reader* r, Examples* e, Task task) {
    const size_t per = (size_t)e->per;
    size_t room = 0;
    Span line;
    while (next_line(r, &line)) {
        if (blank(line)) continue;
        if (memchr(line.text, 0, line.n)) return bad_line(r, "contains a NUL byte; not a text file");
        if (e->count == room) e->example = xrealloc(e->example, (room = 2 * room + 64) * per * sizeof *e->example);
        Example* next = &e->example[e->count++ * per];
        for (size_t i = 0; i < per; i++) next[i] = (Example){.line = r->line};
        if (e->count == 1) r->first = r->line;
        if (!(task == TASK_CBT ? take_cbt(r, next, line) : take_json_line(r, next, task, line))) return false;
    }
    return e->count > 0 || tost_error(r->err, "%s has no example of %s", r->path, task_name(task));
}

bool examples_read(Examples* e, Task task, const char* path, const Tokenizer* tokenizer, TostError* err) {
    *e = (Examples){.per = task == TASK_LAMBADA ? 2 : 1};
    Bytes file;
    if (!read_file(&file, path, err)) return false;
    size_t skip;
    const size_t head = file.size < TEXT_HEAD_BYTES ? file.size : TEXT_HEAD_BYTES;
    bool ok = text_check_head(&skip, path, file.data, head, err);
    Reader r = {.p = file.data + (ok ? skip : 0), .end = file.data + file.size, .path = path, .tokenizer = tokenizer,
                .cache = tokenizer_cache_new(), .err = err};
    ok = ok && read_all(&r, e, task);
    e->mark = ok && skip > 0;
    e->prepared = r.prepared;
    tokenizer_cache_free(r.cache);
    free(file.data);
    if (!ok) examples_free(e);
    return ok;
}

void examples_free(Examples* e) {
    for (size_t i = 0; i < e->count * (size_t)e->per; i++) {
        free(e->example[i].word);
        free(e->example[i].ids);
    }
    free(e->example);
    *e = (Examples){0};
}
