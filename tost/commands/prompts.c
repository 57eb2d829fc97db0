// prompts.c: reads the prompts of a file, plain text or JSONL.
#include "commands/prompts.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/memory.h"
#include "data/tokenize.h"

static bool take_line(Prompts* p, size_t number, const char* line, size_t n, bool jsonl, TostError* err) {
    Prompt prompt = {.line = number, .text = xmalloc(n + 1)};
    if (!jsonl) memcpy(prompt.text, line, prompt.n = n);
    else if (!json_text_field(prompt.text, &prompt.n, line, n, "prompt", err)) {
        free(prompt.text);
        return false;
    }
    if ((p->count & (p->count - 1)) == 0) p->prompt = xrealloc(p->prompt, (2 * p->count + 1) * sizeof *p->prompt);
    p->prompt[p->count++] = prompt;
    return true;
}

static bool blank(const char* s, size_t n) {
    size_t i = 0;
    while (i < n && (s[i] == ' ' || s[i] == '\t')) i++;
    return i == n;
}

static bool is_jsonl(const char* path, const char* text, const char* end) {
    const size_t n = strlen(path), suffix = strlen(".jsonl");
    if (n >= suffix && strcasecmp(path + n - suffix, ".jsonl") == 0) return true;
    while (text < end && strchr(" \t\r\n", *text)) text++;
    return text < end && *text == '{';
}

// Reads text that is not empty. *skip: the length of its byte order mark.
static bool read_lines(Bytes* file, size_t* skip, const char* path, TostError* err) {
    if (!read_file(file, path, err)) return false;
    const size_t head = file->size < TEXT_HEAD_BYTES ? file->size : TEXT_HEAD_BYTES;
    bool ok = text_check_head(skip, strcmp(path, "-") == 0 ? "standard input" : path, file->data, head, err);
    if (ok && file->size == *skip) ok = tost_error(err, "--prompts %s is empty: give one prompt per line", path);
    if (!ok) free(file->data);
    return ok;
}

bool prompts_read(Prompts* p, size_t* bad, const char* path, LineErrors report, void* context, TostError* err) {
    Bytes file;
    *p = (Prompts){0};
    *bad = 0;
    size_t skip;
    if (!read_lines(&file, &skip, path, err)) return false;
    const char *at = file.data + skip, *end = file.data + file.size;
    const bool jsonl = is_jsonl(path, at, end);
    for (size_t number = 1; at < end; number++) {
        const char* feed = memchr(at, '\n', (size_t)(end - at));
        size_t n = (size_t)((feed ? feed : end) - at);
        if (feed && n > 0 && at[n - 1] == '\r') n--;
        TostError e;
        if (!(jsonl && blank(at, n)) && !take_line(p, number, at, n, jsonl, &e)) {
            tost_error(&e, "--prompts %s: line %zu: %s", path, number, e.text);
            report(context, &e);
            ++*bad;
        }
        at = feed ? feed + 1 : end;
    }
    free(file.data);
    return true;
}

void prompts_free(Prompts* p) {
    for (size_t i = 0; i < p->count; i++) free(p->prompt[i].text);
    free(p->prompt);
    *p = (Prompts){0};
}
