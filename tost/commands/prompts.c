#include "commands/prompts.h"

#include "base/json.h"
#include "data/lines.h"
#include "store/loaded_model.h"

static bool read_all(Prompts* p, Lines* lines, const Options* o, TostError* err) {
    const char* path = o->prompts;
    const char* line;
    const bool jsonl = named_jsonl(path) || begins_json(lines->at, lines->end, '{');
    if (lines->at == lines->end) return tost_error(err, "--prompts %s is empty: give one prompt per line", path);
    if (!jsonl && !check_utf8_text(o, path, lines->at, (size_t)(lines->end - lines->at), err)) return false;
    for (size_t n; next_line(&line, &n, lines);) {
        if (is_blank(line, n)) continue;
        p->prompt = xgrow(p->prompt, p->count, sizeof *p->prompt);
        Prompt* next = &p->prompt[p->count++];
        TostError inner;
        *next = (Prompt){lines->number, xmalloc(n + 1), n, NULL};
        if (!jsonl) memcpy(next->text, line, n);
        else if (!json_text_field(next->text, &next->n, &next->id, line, n, "prompt", &inner))
            return tost_error(err, "--prompts %s: line %zu: %s", path, next->line, inner.text);
    }
    return true;
}

bool prompts_read(Prompts* p, const Options* o, TostError* err) {
    Bytes file;
    Lines lines;
    *p = (Prompts){0};
    if (!read_lines(&file, &lines, o->prompts, err)) return false;
    const bool ok = read_all(p, &lines, o, err);
    free(file.data);
    return ok;
}

void prompts_free(Prompts* p) {
    for (size_t i = 0; i < p->count; i++) free(p->prompt[i].text), free(p->prompt[i].id);
    free(p->prompt);
    *p = (Prompts){0};
}
