// sample.c: the command sample, which generates text with run/generate.h. Texts go to stdout, all else to stderr. A
// single sample is printed token by token; several are generated together and printed in order.
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/text.h"
#include "commands/commands.h"
#include "commands/prompts.h"
#include "run/generate.h"

// A prompt and its samples
typedef struct {
    const Prompt* prompt;
    uint32_t*     ids;
    size_t        n_ids;
    int           group;      // generate_group
    int64_t       next;       // the first sample that is not generated yet
    Bytes         output;     // of samples not printed yet
} Work;

typedef struct {
    const Options* o;
    Generator      generator;
    Work*          work;
    size_t         n_work;
    size_t         first;     // the first prompt that is not printed completely
    int            together;  // texts generated together
    int64_t        tokens;
    double         seconds;
} Sampling;

// A sample that is being generated
typedef struct { size_t at; int64_t sample; Bytes text; } Sample;

// ---------------------------------------------------------------------------------------------
// Output

static bool write_text(void* context, const char* bytes, size_t n) {
    (void)context;
    return n == 0 || (fwrite(bytes, 1, n, stdout) == n && fflush(stdout) == 0);
}

static bool collect_text(void* context, const char* bytes, size_t n) {
    Bytes* text = context;
    text->data = xrealloc(text->data, text->size + n + 1);
    memcpy(text->data + text->size, bytes, n);
    text->size += n;
    return true;
}

static bool flush_stdout(TostError* err) {
    return (fflush(stdout) == 0 && !ferror(stdout)) || tost_error(err, "stdout cannot be written");
}

static void write_json(FILE* out, const Prompt* prompt, const Sample* s, const Text* text) {
    static const char* const reasons[] = {
        [FINISH_LENGTH] = "length", [FINISH_END_OF_TEXT] = "end_of_text", [FINISH_STOP] = "stop"};
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
    fwrite(s->text.data, 1, s->text.size, out);
    fputc('\n', out);
}

static void keep_output(Sampling* s, const Sample* sample, const Text* text) {
    Work* w = &s->work[sample->at];
    char* data = NULL;
    size_t n = 0;
    FILE* stream = open_memstream(&data, &n);
    if (s->o->prompts) write_json(stream, w->prompt, sample, text);
    else write_plain(stream, w->prompt, sample);
    fclose(stream);
    collect_text(&w->output, data, n);
    free(data);
}

// Prints the output of finished prompts, and of the first unfinished one: the order is that of the prompts.
static bool print_output(Sampling* s, TostError* err) {
    for (; s->first < s->n_work; s->first++) {
        Work* w = &s->work[s->first];
        fwrite(w->output.data, 1, w->output.size, stdout);
        free(w->output.data);
        w->output = (Bytes){0};
        if (w->next < s->o->samples) break;
    }
    return flush_stdout(err);
}

// ---------------------------------------------------------------------------------------------
// Generation

// The random numbers depend only on the seed, the line of the prompt and the number of the sample.
static Text new_text(const Sampling* s, size_t at, int64_t sample, void* context) {
    const Work* w = &s->work[at];
    const uint64_t stream = (uint64_t)(w->prompt->line - 1) << 32 | (uint64_t)sample;
    return (Text){.prompt = w->ids, .n_prompt = w->n_ids, .rng = rng_seeded((uint64_t)s->o->seed, stream),
                  .context = context};
}

static bool write_one(Sampling* s, TostError* err) {
    const Prompt* prompt = s->work[0].prompt;
    Text text = new_text(s, 0, 0, NULL);
    s->generator.take = write_text;
    write_text(NULL, prompt->text, prompt->n);
    const bool ok = generate(&text, 1, &s->seconds, &s->generator, s->o->tokens, err);
    putchar('\n');
    s->tokens += text.tokens;
    return ok && flush_stdout(err);
}

// Chooses the next samples to generate together: of the first prompt that is not finished, and of later ones of its
// group. Returns their number.
static int choose_samples(Sample* samples, Sampling* s) {
    int n = 0;
    for (size_t i = s->first, begin = SIZE_MAX; i < s->n_work && n < s->together; i++) {
        Work* w = &s->work[i];
        if (w->next < s->o->samples && begin == SIZE_MAX) begin = i;
        if (begin == SIZE_MAX || w->group != s->work[begin].group) continue;
        while (w->next < s->o->samples && n < s->together) samples[n++] = (Sample){.at = i, .sample = w->next++};
    }
    return n;
}

static bool write_many(Sampling* s, TostError* err) {
    Sample samples[MAX_TEXTS_TOGETHER];
    Text texts[MAX_TEXTS_TOGETHER];
    bool ok = true;
    s->generator.take = collect_text;
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

// Creates the model for as many texts at a time as fit in memory: at most SPARE_BYTES more than for one.
static bool create_model(Sampling* s, LoadedModel* m, TostError* err) {
    const size_t SPARE_BYTES = (size_t)1 << 30;
    const Options* o = s->o;
    TostEngineOptions options = {.max_batch = 1, .max_chunk = 1, .states = chunks_states(1, 1, false),
                                 .dtype = (TostDtype)o->dtype, .threads = o->threads};
    for (size_t i = 0; i < s->n_work; i++) {
        const int seq = generate_max_seq(&m->info.config, s->work[i].n_ids, o->tokens);
        if (seq > options.max_chunk) options.max_chunk = seq;
    }
    const size_t one = m->engine->memory(&m->info.config, &options);
    const int64_t texts = s->n_work < MAX_TEXTS_TOGETHER ? (int64_t)s->n_work * o->samples : MAX_TEXTS_TOGETHER;
    options.max_batch = texts < MAX_TEXTS_TOGETHER ? (int)texts : MAX_TEXTS_TOGETHER;
    while (options.max_batch > 1 && m->engine->memory(&m->info.config, &options) > one + SPARE_BYTES)
        options.max_batch--;
    s->together = options.max_batch;
    return loaded_model_create(m, o, options.max_batch, options.max_chunk, false, err);
}

static bool sample(LoadedModel* m, const Tokenizer* tokenizer, const Options* o, const Prompts* prompts,
                   TostError* err) {
    Sampling s = {.o = o, .work = xcalloc(prompts->count + 1, sizeof *s.work), .n_work = prompts->count};
    for (size_t i = 0; i < s.n_work; i++) {
        Work* w = &s.work[i];
        w->prompt = &prompts->prompt[i];
        w->ids = xmalloc((w->prompt->n + 1) * sizeof *w->ids);
        w->n_ids = tokenizer_encode(tokenizer, w->ids, w->prompt->text, w->prompt->n);
        w->group = generate_group(&m->info.config, w->n_ids);
    }
    bool ok = create_model(&s, m, err);
    if (ok) {
        print_line(stderr, "%s, step %lld", m->file, (long long)m->info.step);
        s.generator = (Generator){.chunks = &m->chunks, .config = &m->info.config,
                                  .tokenizer = tokenizer, .options = {o->temperature, o->top_k, o->top_p},
                                  .stop = o->stop};
        ok = !o->prompts && o->samples == 1 ? write_one(&s, err) : write_many(&s, err);
    }
    if (ok)
        fprintf(stderr, "%lld tokens, %.0f tokens/s\n", (long long)s.tokens,
                s.seconds > 0 ? (double)s.tokens / s.seconds : 0);
    for (size_t i = 0; i < s.n_work; i++) {
        free(s.work[i].ids);
        free(s.work[i].output.data);
    }
    free(s.work);
    return ok;
}

// ---------------------------------------------------------------------------------------------
// Prompts

// Reads --prompts, or makes --prompt the only one.
static bool read_prompts(Prompts* prompts, const Options* o, TostError* err) {
    static const char hint[] = "; leave it out to start without a prompt";
    Bytes text = {0};
    if (o->prompts) return prompts_read(prompts, o->prompts, err);
    const bool ok = !o->prompt || read_text(&text, "--prompt", o->prompt, hint, err);
    *prompts = (Prompts){.prompt = xmalloc(sizeof *prompts->prompt), .count = 1};
    prompts->prompt[0] = (Prompt){.line = 1, .text = text.data ? text.data : xstrdup(""), .n = text.size};
    return ok;
}

int command_sample(const Options* o, const TostEngine* engine) {
    TostError err;
    LoadedModel m;
    Prompts prompts = {0};
    Tokenizer* tokenizer = NULL;
    const bool ok = loaded_model_find(&m, o, engine, &err) && (tokenizer = loaded_model_tokenizer(&m, o, &err))
                    && read_prompts(&prompts, o, &err)
                    && (prompts.count == 0 || sample(&m, tokenizer, o, &prompts, &err));
    prompts_free(&prompts);
    tokenizer_free(tokenizer);
    loaded_model_free(&m);
    return ok ? 0 : print_error(o, &err);
}
