// tokenizer_json.c: reads a tokenizer.json. Whatever would make its ids differ from GPT-2's algorithm is an error.
#include "data/tokenizer_json.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/memory.h"

enum { KEY = 40, MAX_ID = (1 << 24) - 1 };

typedef struct {
    Json           json;
    TokenizerJson* out;
    const char*    path;
    char*          text;   // (cap) for strings
    size_t         cap;
    bool           model;  // whether "model" was read
    TostError*     err;
} Reader;

// A vocab.bpe may begin with the merge of '{' and '"', but then the line ends after them.
bool tokenizer_json_detect(const char* text, size_t n) {
    size_t at = 0;
    while (at < n && strchr(" \t\r\n", text[at]) && text[at]) at++;
    if (at == n || text[at++] != '{') return false;
    while (at < n && strchr(" \t\r\n", text[at]) && text[at]) at++;
    return at + 1 < n && text[at] == '"' && text[at + 1] != '\n' && text[at + 1] != '\r';
}

static bool refuse(Reader* r, const char* what, const char* found, const char* wanted) {
    return tost_error(r->err, "%s: the %s is %.40s, not %s: only a tokenizer.json of byte-level BPE with GPT-2's "
                      "pattern is supported", r->path, what, found, wanted);
}

static size_t room_for(size_t n) {
    size_t room = 1;
    while (room < n) room *= 2;
    return room;
}

static void append(Bytes* out, const char* text, size_t n) {
    const size_t room = room_for(out->size + n + 1);
    if (room > room_for(out->size + 1)) out->data = xrealloc(out->data, room);
    memcpy(out->data + out->size, text, n);
    out->size += n;
    out->data[out->size] = 0;
}

static void add_id(Reader* r, IdList* list, const char* name, size_t n, uint64_t id) {
    if ((list->count & (list->count + 1)) == 0)   // full at 0, 1, 3, 7, …
        list->id = xrealloc(list->id, (2 * list->count + 2) * sizeof *list->id);
    list->id[list->count++] = (NamedId){r->out->names.size, n, (uint32_t)id};
    append(&r->out->names, name, n);
}

static bool read_id(Reader* r, uint64_t* id) {
    return json_u64(&r->json, id)
           && (*id <= MAX_ID
               || tost_error(r->err, "an id of %llu, but ids are at most %d", (unsigned long long)*id, MAX_ID));
}

// The value at the cursor for an error message: a string, a word, or a kind.
static bool read_value(Reader* r, char found[KEY]) {
    json_peek(&r->json);   // skips white space
    const char* start = r->json.p;
    if (!json_skip(&r->json)) return false;
    const size_t n = (size_t)(r->json.p - start);
    snprintf(found, KEY, "%.*s", (int)(n < KEY ? n : KEY - 1), start);
    return true;
}

// A value that must be one of the words, written as in JSON.
static bool check_value(Reader* r, const char* what, const char* words) {
    char found[KEY], word[KEY + 2];
    if (!read_value(r, found)) return false;
    snprintf(word, sizeof word, "|%s|", found);
    return strstr(words, word) || refuse(r, what, found, "null");
}

// ---------------------------------------------------------------------------------------------
// Parts of the file

static bool next_key(Reader* r, char key[KEY], int* more) {
    *more = json_next(&r->json);
    if (*more != 1) return *more == 0;
    size_t n;
    if (!json_key(&r->json, r->text, r->cap, &n)) return false;
    snprintf(key, KEY, "%s", n < KEY ? r->text : "");
    return true;
}

static bool read_vocab(Reader* r) {
    int more;
    if (!json_enter(&r->json, JSON_OBJECT)) return false;
    while ((more = json_next(&r->json)) == 1) {
        size_t n;
        uint64_t id;
        if (!json_key(&r->json, r->text, r->cap, &n) || !read_id(r, &id)) return false;
        add_id(r, &r->out->vocab, r->text, n, id);
    }
    return more == 0;
}

// Appends a part of a merge or, in older files, both with a space between them.
static bool read_merge_text(Reader* r) {
    size_t n;
    if (!json_string(&r->json, r->text, r->cap, &n)) return false;
    if (memchr(r->text, '\n', n) || memchr(r->text, 0, n))
        return tost_error(r->err, "a merge contains a line break or NUL");
    append(&r->out->merges, r->text, n);
    return true;
}

static bool read_merges(Reader* r) {
    int more, parts;
    if (!json_enter(&r->json, JSON_ARRAY)) return false;
    while ((more = json_next(&r->json)) == 1) {
        if (json_peek(&r->json) == JSON_ARRAY) {
            if (!json_enter(&r->json, JSON_ARRAY)) return false;
            for (parts = 0; (more = json_next(&r->json)) == 1; parts++) {
                if (parts > 0) append(&r->out->merges, " ", 1);
                if (!read_merge_text(r)) return false;
            }
            if (more < 0) return false;
        } else if (!read_merge_text(r)) return false;
        append(&r->out->merges, "\n", 1);
    }
    return more == 0;
}

static bool read_model(Reader* r) {
    char key[KEY], found[KEY];
    int more;
    bool merges = false;
    if (json_peek(&r->json) != JSON_OBJECT) return read_value(r, found) && refuse(r, "model", found, "an object");
    if (!json_enter(&r->json, JSON_OBJECT)) return false;
    while (next_key(r, key, &more) && more) {
        bool ok;
        if (strcmp(key, "type") == 0)
            ok = read_value(r, found) && (strcmp(found, "\"BPE\"") == 0 || refuse(r, "model", found, "BPE"));
        else if (strcmp(key, "vocab") == 0 && json_peek(&r->json) == JSON_OBJECT) ok = read_vocab(r);
        else if (strcmp(key, "merges") == 0) ok = merges = read_merges(r);
        else if (strcmp(key, "dropout") == 0) ok = check_value(r, "model's dropout", "|null|0.0|0|");
        else if (strcmp(key, "continuing_subword_prefix") == 0 || strcmp(key, "end_of_word_suffix") == 0)
            ok = check_value(r, "model's prefix or suffix of subwords", "|null|\"\"|");
        else if (strcmp(key, "byte_fallback") == 0 || strcmp(key, "ignore_merges") == 0)
            ok = check_value(r, strcmp(key, "byte_fallback") ? "model's ignore_merges" : "model's byte_fallback",
                             "|null|false|");
        else ok = json_skip(&r->json);
        if (!ok) return false;
    }
    if (more != 0) return false;
    return merges || tost_error(r->err, "%s: the model has no merges: only byte-level BPE is supported", r->path);
}

// normalizer, pre_tokenizer or post_processor: null (if allowed), or an object of type ByteLevel (if allowed).
static bool read_stage(Reader* r, const char* what, bool null_allowed, bool bytes_allowed) {
    const char* wanted = bytes_allowed ? "ByteLevel" : "null";
    char key[KEY], found[KEY];
    int more;
    bool typed = false;
    if (json_peek(&r->json) != JSON_OBJECT) {
        if (!read_value(r, found)) return false;
        return (null_allowed && strcmp(found, "null") == 0)
               || refuse(r, what, found, null_allowed ? "null" : "ByteLevel");
    }
    if (!json_enter(&r->json, JSON_OBJECT)) return false;
    while (next_key(r, key, &more) && more) {
        bool ok;
        if (strcmp(key, "type") == 0)
            ok = typed = read_value(r, found) && ((bytes_allowed && strcmp(found, "\"ByteLevel\"") == 0)
                                                  || refuse(r, what, found, wanted));
        else if (strcmp(key, "add_prefix_space") == 0 && !null_allowed)
            ok = read_value(r, found) && (strcmp(found, "false") == 0 || refuse(r, "add_prefix_space", found, "false"));
        else if (strcmp(key, "use_regex") == 0 && !null_allowed)
            ok = read_value(r, found) && (strcmp(found, "true") == 0 || refuse(r, "use_regex", found, "true"));
        else ok = json_skip(&r->json);
        if (!ok) return false;
    }
    return more == 0 && (typed || refuse(r, what, "an object without a type", wanted));
}

static bool read_added(Reader* r) {
    char key[KEY];
    int each, more;
    if (!json_enter(&r->json, JSON_ARRAY)) return false;
    while ((each = json_next(&r->json)) == 1) {
        uint64_t id = 0;
        size_t n = 0;
        char* content = NULL;
        bool ok = json_enter(&r->json, JSON_OBJECT);
        while (ok && (ok = next_key(r, key, &more)) && more) {
            if (strcmp(key, "id") == 0) ok = read_id(r, &id);
            else if (strcmp(key, "content") == 0 && !content) {
                ok = json_string(&r->json, r->text, r->cap, &n);
                content = ok ? xstrdup(r->text) : NULL;
            } else ok = json_skip(&r->json);
        }
        if (ok && content) add_id(r, &r->out->added, content, strlen(content), id);
        free(content);
        if (!ok) return false;
    }
    return each == 0;
}

static bool read_file_object(Reader* r) {
    char key[KEY];
    int more;
    bool split = false;
    if (!json_enter(&r->json, JSON_OBJECT)) return false;
    while (next_key(r, key, &more) && more) {
        bool ok;
        if (strcmp(key, "model") == 0) ok = r->model = read_model(r);
        else if (strcmp(key, "added_tokens") == 0) ok = read_added(r);
        else if (strcmp(key, "normalizer") == 0) ok = read_stage(r, key, true, false);
        else if (strcmp(key, "pre_tokenizer") == 0) ok = split = read_stage(r, key, false, true);
        else if (strcmp(key, "post_processor") == 0) ok = read_stage(r, key, true, true);
        else ok = json_skip(&r->json);
        if (!ok) return false;
    }
    if (more != 0 || !json_at_end(&r->json)) return false;
    if (!r->model)
        return tost_error(r->err, "%s: JSON without a \"model\": not a tokenizer.json; give a vocab.bpe, merges.txt or "
                          "tokenizer.json", r->path);
    return split || refuse(r, "pre_tokenizer", "missing", "ByteLevel");
}

bool tokenizer_json_read(TokenizerJson* out, const char* path, const Bytes* file, TostError* err) {
    TostError inner = {""};
    *out = (TokenizerJson){.merges = {xstrdup(""), 0}, .names = {xstrdup(""), 0}};
    Reader r = {.json = json_open(file->data, file->size, &inner), .out = out, .path = path,
                .text = xmalloc(file->size + 1), .cap = file->size + 1, .err = &inner};
    const bool ok = read_file_object(&r);
    free(r.text);
    if (ok) return true;
    if (strncmp(inner.text, path, strlen(path)) == 0) *err = inner;
    else tost_error(err, "%s, %s: not a tokenizer.json", path, inner.text);
    tokenizer_json_free(out);
    return false;
}

void tokenizer_json_free(TokenizerJson* t) {
    free(t->merges.data);
    free(t->names.data);
    free(t->vocab.id);
    free(t->added.id);
    *t = (TokenizerJson){0};
}
