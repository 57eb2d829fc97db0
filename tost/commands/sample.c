// sample.c: the command sample, which generates text with run/generate.h. Texts go to stdout, all else to stderr. A
// single sample is printed token by token; several are generated together and printed in order.
#include <assert.h>
#include <unistd.h>

#include "base/crc32.h"
#include "base/json.h"
#include "commands/commands.h"
#include "commands/prompts.h"
#include "data/documents.h"
#include "run/generate.h"

// Texts go to a pipe as they are, and to a terminal with control characters escaped, except line breaks and tabs. cut:
// the first bytes of a character that is not complete yet
typedef struct { bool terminal; char cut[4]; size_t n_cut; } TextOutput;

typedef struct {
    const Options* o;
    TextOutput     out;
    Generator      generator;
    Prompt*        prompt;    // (count)
    size_t         count;
    size_t         first;     // the first prompt that is not printed completely
    int            together;  // texts generated together
    int64_t        tokens;
    double         seconds;
} Sampling;

// A sample that is being generated
typedef struct { size_t at; int64_t sample; Bytes text; } Sample;

// ---- Output ----

// Prints a character, or a byte that belongs to none, on a terminal.
static void put_character(const char* p, int n) {
    char copy[5] = "";
    memcpy(copy, p, (size_t)n);
    char* escaped = printable_text(copy);
    if (*p && strchr("\n\t\\", *p)) putchar(*p);
    else fputs(*p ? escaped : "\\x00", stdout);
    free(escaped);
}

// Prints text, whose last character may be completed by the next call unless this is the last.
static bool put_text(TextOutput* out, const char* bytes, size_t n, bool last) {
    if (!out->terminal) return n == 0 || (fwrite(bytes, 1, n, stdout) == n && fflush(stdout) == 0);
    char *text = xmalloc(out->n_cut + n + 1), *end = text + out->n_cut + n, *p = text;
    memcpy(text, out->cut, out->n_cut);
    if (n > 0) memcpy(text + out->n_cut, bytes, n);
    for (int length; p < end; p += length) {
        const bool valid = utf8_decode(&length, p, end) != UTF8_INVALID;
        if (!valid && !last && end - p < 4 && (unsigned char)*p >= 0xc2) break;
        put_character(p, length);
    }
    memcpy(out->cut, p, out->n_cut = (size_t)(end - p));
    free(text);
    return fflush(stdout) == 0 && !ferror(stdout);
}

static bool collect_text(void* context, const char* bytes, size_t n) {
    Bytes* text = context;
    text->data = xrealloc(text->data, text->size + n + 1);
    memcpy(text->data + text->size, bytes, n);
    text->size += n;
    return true;
}

static bool write_text(void* context, const char* bytes, size_t n) { return put_text(context, bytes, n, false); }

static bool flush_stdout(TostError* err) {
    return (fflush(stdout) == 0 && !ferror(stdout)) || tost_error(err, "stdout cannot be written");
}

static void write_json(FILE* out, const Prompt* prompt, const Sample* s, const Text* text) {
    static const char* const reasons[] = {
        [FINISH_LENGTH] = "length", [FINISH_END_OF_TEXT] = "end_of_text", [FINISH_STOP] = "stop"};
    assert(text->finish < countof(reasons));   // the text is finished, and not by its sink
    fprintf(out, "{\"index\": %zu, \"sample\": %lld, ", prompt->line - 1, (long long)s->sample);
    if (prompt->id) fprintf(out, "\"id\": %s, ", prompt->id);
    fputs("\"prompt\": ", out);
    json_write_string(out, prompt->text, prompt->n);
    fputs(", \"text\": ", out);
    json_write_string(out, s->text.data, s->text.size);
    fprintf(out, ", \"tokens\": %lld, \"finish_reason\": \"%s\"}\n", (long long)text->tokens, reasons[text->finish]);
}

static void write_plain(FILE* out, const Prompt* prompt, const Sample* s) {
    if (s->sample > 0) fputs("---\n", out);
    fwrite(prompt->text, 1, prompt->n, out);
    if (s->text.size > 0) fwrite(s->text.data, 1, s->text.size, out);
    fputc('\n', out);
}

static void keep_output(Sampling* s, const Sample* sample, const Text* text) {
    Prompt* p = &s->prompt[sample->at];
    char* data = NULL;
    size_t n = 0;
    FILE* stream = open_memstream(&data, &n);
    if (s->o->prompts) write_json(stream, p, sample, text);
    else write_plain(stream, p, sample);
    fclose(stream);
    collect_text(&p->output, data, n);
    free(data);
}

// Prints the output of finished prompts, and of the first unfinished one: the order is that of the prompts.
static bool print_output(Sampling* s, TostError* err) {
    for (; s->first < s->count; s->first++) {
        Prompt* p = &s->prompt[s->first];
        put_text(&s->out, p->output.data, p->output.size, true);
        free(p->output.data);
        p->output = (Bytes){0};
        if (p->next < s->o->samples) break;
    }
    return flush_stdout(err);
}

// ---- Generation ----

// The random numbers depend only on the seed, the id of the prompt or, if it has none, its place, and the number of the
// sample.
static Text new_text(const Sampling* s, size_t at, int64_t sample, void* context) {
    const Prompt* p = &s->prompt[at];
    const char* id = p->id;
    const uint64_t stream = (id ? (uint64_t)crc32_update(0, id, strlen(id)) : p->place) << 32 | (uint64_t)sample;
    return (Text){.prompt = p->ids, .n_prompt = p->n_ids, .rng = rng_seeded((uint64_t)s->o->recipe.seed, stream),
                  .context = context};
}

// What is probably a mistake in a prompt, or NULL. In the training text, a space is part of the token of the next word.
static const char* note_of(const Prompt* p) {
    if (p->n > 0 && p->text[p->n - 1] == ' ')
        return "ends in a space: leave it out, because the token of the next word begins with it";
    return end_of_text_inside(p->text, p->n) ? "has " INSIDE_LINE : NULL;
}

// Warns of the first such prompt, and of \n in --prompt or --stop.
static void note_text(const Options* o, const Prompts* prompts) {
    const char* escape = o->prompt && *o->prompt != '@' && strstr(o->prompt, "\\n") ? "prompt" : NULL;
    const Prompt *p = prompts->prompt, *end = p + prompts->count;
    for (int i = 0; i < o->stop.count; i++)
        if (strstr(o->stop.strings[i], "\\n")) escape = "stop";
    if (escape) print_warning("--%s: \\n is a backslash and an n; in bash and zsh, $'\\n' is a line break", escape);
    while (p < end && !note_of(p)) p++;
    if (p == end) return;
    print_warning("the prompt%s %s", p->line > 1 ? text_line(" in line %zu", p->line).text : "", note_of(p));
}

// Reads decimal ids. Returns their number; 0 if there is other text, or an id outside the vocabulary.
static size_t read_ids(uint32_t* ids, const char* text, int vocab_size) {
    size_t n = 0;
    for (char* end; *text; text = end + strspn(end, " \t\r\n,")) {
        const long id = strtol(text, &end, 10);
        if (end == text || id < 0 || id >= vocab_size) return 0;
        ids[n++] = (uint32_t)id;
    }
    return n;
}

// Sets p->ids and p->n_ids. Without a tokenizer, *err must say why; the error repeats it.
static bool encode(Prompt* p, const Generator* g, TostError* err) {
    p->ids = xmalloc((p->n + 1) * sizeof *p->ids);
    p->n_ids = g->tokenizer ? encode_documents(p->ids, g->tokenizer, p->text, p->n)
                            : read_ids(p->ids, p->text, g->config->vocab_size);
    return g->tokenizer || p->n_ids > 0
        || tost_error(err, "%s, or ids below %d as the prompt, such as '1 2 3'", err->text, g->config->vocab_size);
}

static bool write_one(Sampling* s, TostError* err) {
    Text text = new_text(s, 0, 0, &s->out);
    s->generator.sink = write_text;
    put_text(&s->out, s->prompt->text, s->prompt->n, false);
    const bool ok = generate(&text, 1, &s->seconds, &s->generator, s->o->tokens, err);
    put_text(&s->out, "", 0, true);
    putchar('\n');
    s->tokens += text.tokens;
    return ok && flush_stdout(err);
}

// Chooses the next samples to generate together: of the first prompt that is not finished, and of later ones of its
// group. Returns their number.
static int choose_samples(Sample* samples, Sampling* s) {
    int n = 0, group = -1;
    for (size_t i = s->first; i < s->count && n < s->together; i++) {
        Prompt* p = &s->prompt[i];
        const int own = generate_group(s->generator.config, p->n_ids);
        if (p->next < s->o->samples && group < 0) group = own;
        while (own == group && p->next < s->o->samples && n < s->together)
            samples[n++] = (Sample){.at = i, .sample = p->next++};
    }
    return n;
}

static bool write_many(Sampling* s, TostError* err) {
    Sample samples[MAX_TEXTS_TOGETHER];
    Text texts[MAX_TEXTS_TOGETHER];
    bool ok = true;
    s->generator.sink = collect_text;
    for (int n; ok && (n = choose_samples(samples, s)) > 0;) {
        for (int i = 0; i < n; i++) texts[i] = new_text(s, samples[i].at, samples[i].sample, &samples[i].text);
        ok = generate(texts, n, &s->seconds, &s->generator, s->o->tokens, err);
        for (int i = 0; i < n; i++) {
            if (ok) keep_output(s, &samples[i], &texts[i]);
            s->tokens += texts[i].tokens;
            free(samples[i].text.data);
        }
        ok = ok && print_output(s, err);
    }
    return ok;
}

// Creates the model for as many texts at a time as fit in SPARE_BYTES more than for one. more: further prompts follow
static bool create_model(Sampling* s, LoadedModel* m, bool more, TostError* err) {
    const size_t SPARE_BYTES = (size_t)1 << 30;
    const Options* o = s->o;
    const TostConfig* c = &m->info.config;
    int longest = more ? generate_max_seq(c, (size_t)tost_max_seq(c), o->tokens) : 1;
    for (size_t i = 0; i < s->count; i++) {
        const int seq = generate_max_seq(c, s->prompt[i].n_ids, o->tokens);
        longest = seq > longest ? seq : longest;
    }
    TostEngineOptions options = recipe_engine(&o->recipe, 1, longest, 0, NULL);
    const size_t one = m->engine->memory(c, &options);
    const int64_t texts = more || s->count > MAX_TEXTS_TOGETHER ? MAX_TEXTS_TOGETHER : (int64_t)s->count * o->samples;
    options.max_batch = texts < MAX_TEXTS_TOGETHER ? (int)texts : MAX_TEXTS_TOGETHER;
    while (options.max_batch > 1 && m->engine->memory(c, &options) > one + SPARE_BYTES) options.max_batch--;
    s->together = options.max_batch;
    return loaded_model_create(m, &o->recipe, s->together, longest, err);
}

// Continues the prompts that have been read.
static bool sample(Sampling* s, LoadedModel* m, Prompts* prompts, TostError* err) {
    const Options* o = s->o;
    const bool first = !m->chunks.model;
    bool ok = true;
    s->prompt = prompts->prompt;
    s->count = prompts->count;
    s->first = 0;
    for (size_t i = 0; ok && i < s->count; i++) ok = encode(&s->prompt[i], &s->generator, err);
    if (!ok || (first && !create_model(s, m, !prompts->end, err))) return false;
    if (first && s->generator.tokenizer) note_text(o, prompts);
    else if (first) print_warning("%s; prompts and samples are ids", err->text);
    if (first) print_line(stderr, "%s, step %lld", m->file, (long long)m->info.step);
    return !o->prompts && o->samples == 1 ? write_one(s, err) : write_many(s, err);
}

int command_sample(const Options* o, const TostEngine* engine) {
    TostError err;
    LoadedModel m;
    Prompts prompts = {0};
    Tokenizer* tokenizer = NULL;
    bool ok = loaded_model_find(&m, o->model, engine, &err)
              && ((tokenizer = loaded_model_tokenizer(&m, o->tokenizer, &err)) || (!o->tokenizer && !m.info.tokenizer));
    Sampling s = {.o = o, .out.terminal = isatty(STDOUT_FILENO)};
    s.generator = (Generator){.chunks = &m.chunks, .config = &m.info.config, .tokenizer = tokenizer,
                              .options = {o->recipe.temperature, o->recipe.top_k, o->recipe.top_p}, .stop = o->stop};
    while (ok && !prompts.end)
        ok = prompts_read(&prompts, o, &err) && (prompts.count == 0 || sample(&s, &m, &prompts, &err));
    if (ok && m.chunks.model)
        fprintf(stderr, "%lld token%s, %.0f tokens/s\n", (long long)s.tokens, plural(s.tokens),
                s.seconds > 0 ? (double)s.tokens / s.seconds : 0);
    prompts_free(&prompts);
    tokenizer_free(tokenizer);
    loaded_model_free(&m);
    return ok ? 0 : print_error(&err);
}
