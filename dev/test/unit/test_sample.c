// test_sample.c: sampler; generation with a scripted engine; text with document separators; prompt files.
#include "commands/prompts.h"
#include "dev/test/unit/fake_engine.h"
#include "data/documents.h"
#include "run/generate.h"
#include "run/sampler.h"

// ---- Sampler --------------------------------------------------------------------------------------------------------

enum { DRAWS = 20000, CASE_IDS = 6 };

#define LN2 0.69314718f

// Draws many times and compares the counts with the expected probabilities by chi-square. An id of probability 0 must
// never be drawn.
static void test_distributions(Checks* c) {
    // logits of 1 : 2 : 4 : 8 : 8 : 16, shuffled
    static const float logits[CASE_IDS] = {3 * LN2, 0, 4 * LN2, LN2, 3 * LN2, 2 * LN2};
    static const float odd[CASE_IDS] = {NAN, 0, -INFINITY, LN2, NAN, -1e30f};
    static const float infinite[CASE_IDS] = {0, INFINITY, 3, NAN, INFINITY, -INFINITY};
    static const struct {
        const char* what; const float* logits; int n; SamplerOptions o; double weight[CASE_IDS];
    } cases[] = {
        {"temperature 0.5",        logits, 6, {0.5, 0, 1},     {64, 1, 256, 4, 64, 16}},
        {"top-k 4, top-p 0.8",     logits, 6, {1, 4, 0.8},     {8, 0, 16, 0, 8, 0}},       // 24/36 < 0.8
        {"ids below the vocabulary", logits, 2, {1, 5, 1},     {8, 1}},
        {"NaN and -inf",           odd,    6, {1, 5, 1},       {0, 1, 0, 2, 0, 0}},
        {"+inf",                   infinite, 6, {1, 0, 1},     {0, 1, 0, 0, 1, 0}},
        {"tiny temperature",       logits, 6, {1e-300, 0, 1},  {0, 0, 1, 0, 0, 0}},
    };
    for (size_t i = 0; i < countof(cases); i++) {
        const int n = cases[i].n;
        int count[CASE_IDS] = {0}, impossible = 0, degrees = -1;
        double sum = 0, chi = 0;
        Sampler s = sampler_new(n);
        Rng rng = rng_seeded(1, 2);
        for (int k = 0; k < DRAWS; k++) {
            const int32_t id = sampler_draw(&s, cases[i].logits, &cases[i].o, &rng);
            if (id >= 0 && id < n && cases[i].weight[id] > 0) count[id]++;
            else impossible++;
        }
        check(c, impossible == 0, "%s: %d draws of ids of probability 0", cases[i].what, impossible);
        for (int k = 0; k < n; k++) sum += cases[i].weight[k];
        for (int k = 0; k < n; k++) {
            const double wanted = cases[i].weight[k] / sum * DRAWS;
            if (wanted == 0) continue;
            chi += (count[k] - wanted) * (count[k] - wanted) / wanted;
            degrees++;
        }
        // Five standard deviations above the mean of the distribution
        check(c, chi <= degrees + 5 * sqrt(2.0 * degrees), "%s: chi-square %.1f of %d degrees of freedom",
              cases[i].what, chi, degrees);
        sampler_free(&s);
    }
}

typedef struct { float logit; int32_t id; double weight; } Ranked;

static int compare_keys(const void* a, const void* b) {   // by decreasing logit, then by increasing id
    const Ranked *x = a, *y = b;
    return x->logit != y->logit ? (x->logit < y->logit) - (x->logit > y->logit) : (x->id > y->id) - (x->id < y->id);
}

// The ids that top-k and top-p keep, by a full sort. Returns their number.
static int sorted_cut(Ranked* r, int n, const SamplerOptions* o) {
    double total = 0, sum = 0;
    qsort(r, (size_t)n, sizeof *r, compare_keys);
    const int k = o->top_k > 0 && o->top_k < n ? o->top_k : n;
    for (int i = 0; i < k; i++) total += r[i].weight;
    if (!(o->top_p < 1)) return k;
    int kept = 0;
    do sum += r[kept++].weight; while (kept < k && sum < o->top_p * total);
    return kept;
}

// Which ids of a large vocabulary are kept, against a full sort: with many ties, NaN and zeros of both signs.
static void test_cut(Checks* c) {
    enum { N = 50304 };
    static const struct { const char* what; double spread, step; } kinds[] = {
        {"a random model", 0.3, 0}, {"a trained model", 3, 0}, {"many ties", 2, 0.5}, {"all equal", 0, 1},
        {"tiny numbers", 1e-42, 0}, {"wide", 60, 0.25},
    };
    static const SamplerOptions options[] = {
        {1, 1, 1}, {1, 40, 1}, {0.8, 5000, 1}, {1, N - 1, 1}, {1, 0, 0.95}, {0.7, 0, 0.5}, {1, 0, 1e-9},
        {1, 0, 0.999999}, {1, 40, 0.9}, {1.5, 40000, 0.6}, {1000, 100, 0.37}, {0.01, 0, 0.9},
    };
    float* logits = xmalloc(N * sizeof *logits);
    Ranked* r = xmalloc(N * sizeof *r);
    Sampler s = sampler_new(N);
    Rng rng = rng_seeded(7, 7);
    for (size_t k = 0; k < countof(kinds); k++) {
        for (int i = 0; i < N; i++) {
            const double x = kinds[k].spread * rng_normal(&rng);
            logits[i] = (float)(kinds[k].step > 0 ? kinds[k].step * rint(x / kinds[k].step) : x);
            if (i % 1000 == 999) logits[i] = i % 2000 == 999 ? NAN : -INFINITY;
        }
        for (size_t j = 0; j < countof(options); j++) {
            const double temperature = options[j].temperature;
            const float max = logits[argmax(logits, N)];
            for (int i = 0; i < N; i++) {
                const float logit = isnan(logits[i]) ? -INFINITY : logits[i];
                r[i] = (Ranked){logit, i, exp(((double)logit - max) / temperature)};
            }
            const int32_t id = sampler_draw(&s, logits, &options[j], &rng);
            const int kept = sorted_cut(r, N, &options[j]);
            // Probabilities in float32 may move the cut of top-p, but by no more than their error
            const double off = abs(s.n - kept) / (double)kept;
            bool *in = xcalloc(N, 1), same = id >= 0;
            for (int i = 0; i < s.n; i++) in[r[i].id] = true;
            for (int i = 0; i < s.n; i++) same &= in[s.id[i]] && (i == 0 || s.id[i] > s.id[i - 1]);
            check(c, same && (options[j].top_p < 1 ? off <= 1e-4 : s.n == kept) && in[id],
                  "%s, temperature %g, top-k %d, top-p %g: %d ids kept, %d by sorting; %s", kinds[k].what, temperature,
                  options[j].top_k, options[j].top_p, s.n, kept, same ? "the most likely" : "others");
            free(in);
        }
    }
    sampler_free(&s);
    free(r);
    free(logits);
}

static void test_greedy(Checks* c) {
    static const struct { const char* what; float logits[5]; int n; int32_t id; } cases[] = {
        {"ties: the lowest id", {1, 5, 3, 5, 5}, 5, 1},
        {"past the ids",        {1, 2, 3, 4, 9}, 3, 2},
        {"a NaN is the lowest", {NAN, -3, NAN, -2, -4}, 5, 3},
        {"infinite",            {1, INFINITY, 2, INFINITY, 0}, 5, 1},
        {"no number",           {NAN, NAN, -INFINITY, NAN, NAN}, 5, -1},
    };
    Rng a = rng_seeded(9, 9), b = a;
    for (size_t i = 0; i < countof(cases); i++) {
        Sampler s = sampler_new(cases[i].n);
        const int32_t id = sampler_draw(&s, cases[i].logits, &(SamplerOptions){0, 3, 0.5}, &a);
        check(c, id == cases[i].id, "greedy, %s: expected %d, got %d", cases[i].what, (int)cases[i].id, (int)id);
        sampler_free(&s);
    }
    Sampler s = sampler_new(5);
    for (int i = 0; i < 3; i++) sampler_draw(&s, cases[0].logits, &(SamplerOptions){1, i, 0.9}, &a);
    for (int i = 0; i < 3; i++) rng_u64(&b);
    check(c, rng_u64(&a) == rng_u64(&b), "a draw takes one random number for any top-k and top-p, none if greedy");
    check(c, sampler_draw(&s, cases[4].logits, &(SamplerOptions){1, 2, 0.5}, &a) == -1, "drawing from no number");
    sampler_free(&s);
}

// ---- Generation -----------------------------------------------------------------------------------------------------

typedef struct { char text[64]; size_t n, stop_at; } Sink;   // stops generation after stop_at bytes; 0: never

static bool take_text(void* context, const char* bytes, size_t n) {
    Sink* s = context;
    must(s->n + n < sizeof s->text, "sink", NULL);
    memcpy(s->text + s->n, bytes, n);
    s->n += n;
    return s->n != s->stop_at;
}

// The decode calls as text: "|begin abc|step d". free()
static char* calls_text(const TostModel* m, const Tokenizer* tokenizer) {
    char* text = xstrdup("");
    for (int i = 0; i < m->n_calls; i++) {
        const Call* call = &m->calls[i];
        char* read = byte_text(tokenizer, (const uint32_t*)call->ids, (size_t)call->T);
        text = append_text(text, "|%s %s", call->from == TOST_NO_STATE ? "begin" : "step", read);
        free(read);
    }
    return text;
}

typedef struct {
    const char* what;
    int         block_size;        // negative: that of a model without positions
    const char *prompt, *script;   // script: the model's output; '.' for <|endoftext|>, '?' for NaN logits
    int         max_tokens;
    size_t      stop_at;
    const char *text, *calls;
    int         tokens;
    const char* error;
} GenerateCase;

static const GenerateCase generate_cases[] = {
    {"an empty prompt", 8, "", "abc", 3, 0, "abc", "|begin ^|step a|step b", 3, NULL},
    {"a prompt", 8, "xyz", "ab", 2, 0, "ab", "|begin xyz|step a", 2, NULL},
    {"no tokens", 8, "xyz", "a", 0, 0, "", "", 0, NULL},
    {"the end of text", 8, "xyz", "ab.cd", 5, 0, "ab", "|begin xyz|step a|step b", 2, NULL},
    {"the end at once", 8, "xyz", ".abc", 4, 0, "", "|begin xyz", 0, NULL},
    {"a sink that stops", 8, "xyz", "abcd", 4, 2, "ab", "|begin xyz|step a", 2, NULL},
    {"more tokens than the block size", 8, "uvwxyz", "abcdefghij", 10, 0, "abcdefghij",
     "|begin uvwxyz|step a|step b|begin zabc|step d|step e|step f|step g|begin efgh|step i", 10, NULL},
    {"a prompt of the block size", 8, "stuvwxyz", "abc", 3, 0, "abc", "|begin stuvwxyz|begin xyza|step b", 3, NULL},
    {"a prompt longer than the block size", 8, "rstuvwxyz", "abc", 3, 0, "abc", "|begin wxyz|step a|step b", 3, NULL},
    {"an odd block size", 5, "xyz", "abcdef", 6, 0, "abcdef",
     "|begin xyz|step a|step b|begin bc|step d|step e", 6, NULL},
    {"a block size of 1", 1, "xyz", "abc", 3, 0, "abc", "|begin z|begin a|begin b", 3, NULL},
    {"no positions, more tokens than the block size", -4, "xyz", "abcdef", 6, 0, "abcdef",
     "|begin xyz|step a|step b|step c|step d|step e", 6, NULL},
    {"no positions, a prompt longer than the block size", -4, "uvwxyz", "abc", 3, 0, "abc",
     "|begin uvwxyz|step a|step b", 3, NULL},
    {"logits of NaN", 8, "xyz", "a?", 3, 0, "a", "|begin xyz|step a", 1, "not numbers"},
};

// The ids of a script: '.' is <|endoftext|>, '?' -1.
static const int32_t* read_script(int32_t* ids, const Tokenizer* tokenizer, const char* script) {
    uint32_t id;
    for (size_t i = 0; script[i]; i++) {
        must(tokenizer_encode(tokenizer, NULL, &id, &script[i], 1) == 1, "tokenizer_encode", NULL);
        ids[i] = script[i] == '.' ? tokenizer_eot(tokenizer) : script[i] == '?' ? -1 : (int32_t)id;
    }
    return ids;
}

// Continues a prompt with the ids of a script, greedily. m: the model, with its calls; fake_destroy(m)
typedef struct { bool ok; TostError err; TostModel* m; Text text; Sink sink; } Generated;

static Generated generated(Generator g, Text text, const int32_t* script, size_t stop_at, int max_tokens) {
    Generated r = {.m = fake_create(g.config, NULL, NULL), .text = text, .sink = {.stop_at = stop_at}};
    Chunks chunks = {.engine = &fake, .model = r.m, .max_chunk = MAX_IDS};
    double seconds = 0;
    r.m->script = script;
    r.text.context = &r.sink;
    g.chunks = &chunks;
    g.options = (SamplerOptions){0, 0, 1};
    r.ok = generate(&r.text, 1, &seconds, &g, max_tokens, &r.err);
    return r;
}

static void test_generate(Checks* c) {
    Tokenizer* tokenizer = byte_tokenizer();
    for (const GenerateCase* s = generate_cases; s < generate_cases + countof(generate_cases); s++) {
        const TostConfig config = {1, 1, 1, abs(s->block_size), 260, 0, TOST_LEARNED, 0, 0,
                                   s->block_size < 0 ? TOST_POSITIONS_NONE : TOST_POSITIONS_LEARNED, 0};
        uint32_t prompt[MAX_IDS];
        int32_t script[MAX_IDS];
        const size_t n = tokenizer_encode(tokenizer, NULL, prompt, s->prompt, strlen(s->prompt));
        Generated r = generated((Generator){.config = &config, .tokenizer = tokenizer, .sink = take_text},
                                (Text){.prompt = prompt, .n_prompt = n}, read_script(script, tokenizer, s->script),
                                s->stop_at, s->max_tokens);
        if (s->error) check_refused(c, r.ok, &r.err, s->error, s->what);
        else check(c, r.ok, "%s: %s", s->what, r.err.text);
        check(c, strcmp(r.sink.text, s->text) == 0, "%s: expected '%s', got '%s'", s->what, s->text, r.sink.text);
        check(c, r.text.tokens == s->tokens, "%s: expected %d tokens, got %d", s->what, s->tokens, (int)r.text.tokens);
        char* calls = calls_text(r.m, tokenizer);
        check(c, strcmp(calls, s->calls) == 0, "%s: expected the calls %s, got %s", s->what, s->calls, calls);
        free(calls);
        fake_destroy(r.m);
    }
    tokenizer_free(tokenizer);
}

static const TostConfig of_bytes = {1, 1, 1, 64, 257, 0, TOST_LEARNED, 0, 0, 0, 0};

// Collects the text, with a '|' after each call.
static bool take_marked(void* context, const char* bytes, size_t n) {
    take_text(context, bytes, n);
    return take_text(context, "|", 1);
}

static void test_stop(Checks* c) {
    Tokenizer* tokenizer = byte_tokenizer();
    static const struct {
        char *stop, *also; const char* script; int max_tokens; const char* text; int tokens; Finish finish;
    } cases[] = {
        {NULL, NULL, "abcd", 3, "a|b|c|", 3, FINISH_LENGTH},
        {"bc", NULL, "abcd", 9, "a|||", 3, FINISH_STOP},                 // one call per token, also without bytes
        {"aab", NULL, "xaaaab", 9, "x|||a|a||", 6, FINISH_STOP},
        {"abab", NULL, "ababac", 4, "||||", 4, FINISH_STOP},
        {"abac", NULL, "abababacx", 9, "|||ab||ab|||", 8, FINISH_STOP},
        {"abc", NULL, "xabd", 4, "x|||abd|", 4, FINISH_LENGTH},
        {"abc", NULL, "xab", 3, "x|||ab|", 3, FINISH_LENGTH},            // held bytes are written at the end
        {"abc", NULL, "xab.", 9, "x|||ab|", 3, FINISH_END_OF_TEXT},
        {"a", NULL, "abc", 9, "|", 1, FINISH_STOP},
        {"c", NULL, "abc", 3, "a|b||", 3, FINISH_STOP},                  // in the last token that is allowed
        {"b\x1f" "c", "x", "abcx", 9, "a||bc||", 4, FINISH_STOP},
        {"\x1f", "cx", "abcd", 4, "a|b||cd|", 4, FINISH_LENGTH},
        // without a tokenizer, texts are ids, none of which ends them
        {"65 6", NULL, "ab.bcd", 9, " 64| |65 25|6 ||", 5, FINISH_STOP},
    };
    for (size_t i = 0; i < countof(cases); i++) {
        int32_t script[MAX_IDS];
        char* stops[] = {cases[i].stop, cases[i].also};
        const Generator g = {.config = &of_bytes, .tokenizer = i + 1 < countof(cases) ? tokenizer : NULL,
                             .sink = take_marked, .stop = {(stops[0] != NULL) + (stops[1] != NULL), stops}};
        const Text text = {.prompt = (uint32_t[]){5}, .n_prompt = 1};
        Generated r = generated(g, text, read_script(script, tokenizer, cases[i].script), 0, cases[i].max_tokens);
        check(c, r.ok && strcmp(r.sink.text, cases[i].text) == 0, "stop %s in %s: expected %s, got %s", cases[i].stop,
              cases[i].script, cases[i].text, r.sink.text);
        check(c, r.text.tokens == cases[i].tokens && r.text.finish == cases[i].finish,
              "stop %s in %s: expected %d tokens and finish %d, got %d and %d", cases[i].stop, cases[i].script,
              cases[i].tokens, cases[i].finish, (int)r.text.tokens, r.text.finish);
        fake_destroy(r.m);
    }
    tokenizer_free(tokenizer);
}

// ---- Text with document separators, as eval --task reads it ---------------------------------------------------------

static void test_documents(Checks* c) {
    Tokenizer* tokenizer = byte_tokenizer();
    static const struct { const char *text, *ids; bool inside; } cases[] = {
        {"", "", false}, {"one\n\n<|endoftext|>\ntwo\n", "one\n^two\n", false},
        {"<|endoftext|>\n<|endoftext|>\n\nx", "^^\nx", false}, {"one\n<|endoftext|> \t\r", "one^", false},
        {"one\n<|endoftext|>\rtwo", "one\n<|endoftext|>\rtwo", true},
        {"<|endoftext|>\nx<|endoftext|>\n<|endoftext|> b", "^x<|endoftext|>\n<|endoftext|> b", true},
    };
    for (size_t i = 0; i < countof(cases); i++) {
        uint32_t ids[64];
        const size_t n = encode_documents(ids, tokenizer, cases[i].text, strlen(cases[i].text));
        char* is = byte_text(tokenizer, ids, n);
        check(c, strcmp(is, cases[i].ids) == 0, "text %zu: expected '%s', got '%s'", i, cases[i].ids, is);
        check(c, end_of_text_inside(cases[i].text, strlen(cases[i].text)) == cases[i].inside, "text %zu: inside", i);
        free(is);
    }
    tokenizer_free(tokenizer);
}

// ---- Prompt files ---------------------------------------------------------------------------------------------------

static void test_prompts(Checks* c) {
    // prompts: LINE=TEXT; of each. error: a part of the message, or NULL
    static const struct { const char *name, *file, *prompts, *error; } cases[] = {
        {"a.txt", "one\ntwo", "1=one;2=two;", NULL},
        {"a.txt", "one\r\n\n three \n", "1=one;3= three ;", NULL},
        {"a.txt", "\n", "", NULL},
        {"a.txt", "\xef\xbb\xbf{\"prompt\": \"one\"}", "1=one;", NULL},
        {"a.txt", "not {json}\n{\"prompt\": 1}\n", "1=not {json};2={\"prompt\": 1};", NULL},
        {"a.txt", "{\"prompt\": \"a\\nb\"}\n\n{\"x\": [1, {}], \"prompt\": \"\"}", "1=a\nb;3=;", NULL},
        {"a.txt", "\xef\xbb\xbf\n {\"prompt\": \"a\"}\n", "2=a;", NULL},
        {"A.JSONL", "{\"prompt\": \"b\"}\n{\"x\": \"c\", \"prompt\": \"dd\"}\r\n", "1=b;2=dd;", NULL},
        {"a.jsonl", "{\"prompt\": \"c\", \"prompt\": \"dd\"}\n", NULL, "appears twice"},
        {"a.jsonl", "{\"prompt\": \"b\"}\n{\"prompt\": 5}\n", NULL, "a.jsonl: line 2: byte 11: expected a string"},
    };
    for (size_t i = 0; i < countof(cases); i++) {
        char* got = xstrdup("");
        Prompts p = {0};
        TostError err;
        write_text(cases[i].name, cases[i].file);
        const bool ok = prompts_read(&p, &(Options){.program = "", .prompts = (char*)cases[i].name}, &err);
        for (size_t k = 0; k < p.count; k++)
            got = append_text(got, "%zu=%.*s;", p.prompt[k].line, (int)p.prompt[k].n, p.prompt[k].text);
        if (cases[i].error) check_refused(c, ok, &err, cases[i].error, cases[i].name);
        else check(c, ok && strcmp(got, cases[i].prompts) == 0, "prompts of case %zu: got %s", i, got);
        prompts_free(&p);
        free(got);
    }
}

int main(void) {
    return RUN_TESTS("sample", test_cut, test_greedy, test_distributions, test_generate, test_stop, test_documents,
                     test_prompts);
}
