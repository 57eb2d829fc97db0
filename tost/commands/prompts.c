#include "commands/prompts.h"

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
        || !check_utf8_text(from_file ? path : "standard input", text->data, text->size, err)) return false;
    text->size = (size_t)(lines.end - lines.at);
    memmove(text->data, lines.at, text->size);
    const bool feed = text->size > 0 && text->data[text->size - 1] == '\n';
    text->size -= feed + (feed && text->size > 1 && text->data[text->size - 2] == '\r');
    text->data[text->size] = 0;
    return text->size > 0
        || tost_error(err, "--prompt %s is empty; leave it out to start without a prompt", value);
}

static bool read_all(Prompts* p, Lines* lines, const Options* o, TostError* err) {
    const char *path = o->prompts, *line;
    const bool jsonl = has_suffix(path, ".jsonl") || begins_json(lines->at, lines->end, '{');
    if (lines->at == lines->end) return tost_error(err, "--prompts %s is empty: give one prompt per line", path);
    if (!jsonl && !check_utf8_text(path, lines->at, (size_t)(lines->end - lines->at), err)) return false;
    for (size_t n; next_line(&line, &n, lines);) {
        if (is_blank(line, n)) continue;
        p->prompt = xgrow(p->prompt, p->count, sizeof *p->prompt);
        Prompt* next = &p->prompt[p->count++];
        *next = (Prompt){.line = lines->number, .text = xcalloc(n + 1, 1), .n = n};
        if (!jsonl) memcpy(next->text, line, n);
        else if (!json_text_field(next->text, &next->n, &next->id, line, n, "prompt", err))
            return tost_error(err, "--prompts %s: line %zu: %s", path, next->line, err->text);
    }
    return true;
}

bool prompts_read(Prompts* p, const Options* o, TostError* err) {
    Bytes file = {0};
    Lines lines;
    *p = (Prompts){0};
    if (!o->prompts) {
        const bool ok = read_prompt(&file, o, err);
        p->prompt = xgrow(NULL, p->count++, sizeof *p->prompt);
        p->prompt[0] = (Prompt){.line = 1, .text = file.data, .n = file.size};
        return ok;
    }
    if (!read_lines(&file, &lines, o->prompts, err)) return false;
    const bool ok = read_all(p, &lines, o, err);
    free(file.data);
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
    *p = (Prompts){0};
}
