// prompts.c: reads the prompts of sample.
#include "commands/prompts.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include "base/json.h"
#include "data/lines.h"

// --prompt. Removes one line end of a file, which editors and echo add.
static bool read_prompt(Bytes* text, const Options* o, TostError* err) {
    const char* value = o->prompt ? o->prompt : "";
    const bool from_file = value[0] == '@';
    const char* path = value + from_file;
    Lines lines;
    if (!from_file && strcmp(value, "-") != 0) {
        *text = (Bytes){xstrdup(value), strlen(value)};
        return true;
    }
    if (!*path) return tost_error(err, "--prompt @ names no file; give @FILE");
    if (!read_lines(text, &lines, path, err)
        || !check_utf8_text(from_file ? path : "standard input", 0, text->data, text->size, err)) return false;
    text->size = (size_t)(lines.end - lines.at);
    memmove(text->data, lines.at, text->size);
    const bool feed = text->size > 0 && text->data[text->size - 1] == '\n';
    text->size -= feed + (feed && text->size > 1 && text->data[text->size - 2] == '\r');
    text->data[text->size] = 0;
    return text->size > 0
        || tost_error(err, "--prompt %s is empty; leave it out to start without a prompt", value);
}

// Waits for a line of stdin, and reads those that have arrived. Unbuffered, because poll does not see a buffer.
static bool read_arrived(Bytes* text, Prompts* p, TostError* err) {
    FILE* out = open_memstream(&text->data, &text->size);
    int c;
    if (!p->lines) setvbuf(stdin, NULL, _IONBF, 0);
    do if ((c = getchar()) != EOF) putc(c, out);
    while (c != EOF && (c != '\n' || poll(&(struct pollfd){STDIN_FILENO, POLLIN, 0}, 1, 0) > 0));
    fclose(out);
    p->end = c == EOF;
    return !ferror(stdin) || tost_error(err, "standard input: cannot be read: %s", strerror(errno));
}

static bool read_more(Prompts* p, const char* path, TostError* err) {
    const bool standard = strcmp(path, "-") == 0, first = !p->lines;
    const char *line, *name = standard ? "standard input" : path;
    Bytes file = {0};
    size_t skip = 0;
    bool ok = (standard ? read_arrived(&file, p, err) : (p->end = read_file(&file, path, err)))
        && (!first || text_check_head(&skip, name, file.data, file.size, err));
    Lines lines = {file.data + skip, file.data + file.size, p->lines};
    if (ok && p->read == 0) p->jsonl = has_suffix(path, ".jsonl") || begins_json(lines.at, lines.end, '{');
    if (ok && first && lines.at == lines.end)
        ok = tost_error(err, "--prompts %s is empty: give one prompt per line", path);
    ok = ok && (p->jsonl || check_utf8_text(name, p->bytes, file.data, file.size, err));
    for (size_t n; ok && next_line(&line, &n, &lines);) {
        if (is_blank(line, n)) continue;
        p->prompt = xgrow(p->prompt, p->count, sizeof *p->prompt);
        Prompt* next = &p->prompt[p->count++];
        *next = (Prompt){.line = lines.number, .place = p->read++, .text = xcalloc(n + 1, 1), .n = n};
        if (!p->jsonl) memcpy(next->text, line, n);
        else ok = json_text_field(next->text, &next->n, &next->id, line, n, "prompt", err)
            || tost_error(err, "--prompts %s: line %zu: %s", path, next->line, err->text);
    }
    p->lines = lines.number;
    p->bytes += file.size;
    free(file.data);
    return ok;
}

bool prompts_read(Prompts* p, const Options* o, TostError* err) {
    bool ok = true;
    prompts_free(p);
    while (ok && o->prompts && !p->count && !p->end) ok = read_more(p, o->prompts, err);
    if (o->prompts) return ok;
    Bytes text = {0};
    ok = read_prompt(&text, o, err);
    p->prompt = xgrow(NULL, p->count++, sizeof *p->prompt);
    p->prompt[0] = (Prompt){.line = 1, .text = text.data, .n = text.size};
    p->end = true;
    return ok;
}

void prompts_free(Prompts* p) {
    for (size_t i = 0; i < p->count; i++) {
        free(p->prompt[i].text);
        free(p->prompt[i].id);
        free(p->prompt[i].ids);
        free(p->prompt[i].output.data);
    }
    free(p->prompt);
    p->prompt = NULL;
    p->count = 0;
}
