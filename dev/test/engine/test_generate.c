// test_generate.c: texts generated together with the CPU engine equal those generated alone.
#define TOST_NO_MAIN
#include "tost/base/crc32.h"
#include "tost/base/error.h"
#include "tost/base/files.h"
#include "tost/base/memory.h"
#include "train_gpt_tost.c"

#include "dev/test/scratch.h"

#include "tost/run/generate.h"
#include "tost/base/rng.h"

typedef struct { char data[256]; size_t n; } Output;

static bool take_text(void* context, const char* bytes, size_t n) {
    Output* out = context;
    must(out->n + n <= sizeof out->data, "the text fits", NULL);
    memcpy(out->data + out->n, bytes, n);
    out->n += n;
    return true;
}

// ---- Texts together -------------------------------------------------------------------------------------------------

enum { BLOCK_SIZE = 144, BYTES = 257, LONGEST = 160, MAX_TOKENS = 120 };

// The CPU engine, but the logits of each sequence are replaced by those that choose one token, a hash of their bits: a
// text then depends on every bit of all logits before it.
static void bits_logits(float* logits, TostModel* m) {
    const int V = m->config.vocab_size;
    tost_cpu_engine.last_logits(logits, m);
    for (int i = 0; i < m->chunk.B; i++) {
        float* row = logits + (size_t)i * V;
        const uint32_t choice = crc32_update(0, row, (size_t)V * sizeof *row) % BYTES;
        for (int v = 0; v < V; v++) row[v] = v == (int)choice;
    }
}

static TostModel* new_model(const TostConfig* config, int threads) {
    const TostEngineOptions o = {.max_batch = MAX_TEXTS_TOGETHER, .max_chunk = config->block_size, .states = 1,
                                 .threads = threads};
    TostError err;
    TostModel* m = tost_cpu_engine.create(config, &o, &err);
    must(m != NULL, "create", &err);
    Rng rng = rng_seeded(3, 0);
    for (size_t i = 0; i < m->tensors.flat_size; i++) m->array[TOST_PARAM][i] = (float)(0.3 * rng_normal(&rng));
    return m;
}

typedef struct { size_t n_prompt; uint32_t prompt[LONGEST]; Output out; } Case;

static void make_case(Case* k, size_t n_prompt, Rng* rng) {
    *k = (Case){.n_prompt = n_prompt};
    for (size_t i = 0; i < n_prompt; i++) k->prompt[i] = (uint32_t)rng_below(rng, BYTES - 1);
}

static void check_group(Checks* c, const Generator* g, Case* cases, int n) {
    TostError err;
    Text texts[MAX_TEXTS_TOGETHER];
    double seconds = 0;
    bool any_end = false;
    for (int i = 0; i < n; i++) {
        cases[i].out.n = 0;
        texts[i] = (Text){.prompt = cases[i].prompt, .n_prompt = cases[i].n_prompt, .context = &cases[i].out};
    }
    const bool ok = generate(texts, n, &seconds, g, MAX_TOKENS, &err);
    check(c, ok, "%d texts together: %s", n, ok ? "" : err.text);
    for (int i = 0; i < n; i++) {
        Output alone = {.n = 0};
        Text one = {.prompt = cases[i].prompt, .n_prompt = cases[i].n_prompt, .context = &alone};
        must(generate(&one, 1, &seconds, g, MAX_TOKENS, &err), "generate", &err);
        const bool same = alone.n == cases[i].out.n && memcmp(alone.data, cases[i].out.data, alone.n) == 0;
        check(c, same && one.tokens == texts[i].tokens,
              "text %d of %d together, with a prompt of %zu tokens, differs from the same text alone", i, n,
              cases[i].n_prompt);
        any_end |= texts[i].finish == FINISH_END_OF_TEXT;
    }
    check(c, n < 16 || any_end, "at least one of %d texts must end before the others", n);
}

static void test_together(Checks* c, const Tokenizer* tokenizer, int threads) {
    const TostConfig config = {.n_layer = 2, .n_head = 3, .n_embd = 60, .block_size = BLOCK_SIZE, .vocab_size = 260,
                               .memory = 1};
    static const size_t groups[][6] = {   // lengths of prompts of one group, repeated for more prompts
        {0, 1, 2, 5, 63, 64}, {65, 79, 72, 66, 78, 65}, {80, 95, 82, 94, 87, 81}, {112, 118, 127, 112, 113, 114},
        {144, 144, 144, 144, 144, 144}, {145, 154, 72, 73, 79, 149},
    };
    static const int counts[] = {MAX_TEXTS_TOGETHER, 17, 2};
    TostEngine engine = tost_cpu_engine;
    engine.last_logits = bits_logits;
    TostModel* m = new_model(&config, threads);
    Chunks chunks = {.engine = &engine, .model = m, .max_chunk = config.block_size};
    const Generator g = {.chunks = &chunks, .config = &config, .tokenizer = tokenizer,
                         .options = {.temperature = 0}, .sink = take_text};
    Case* cases = xmalloc(MAX_TEXTS_TOGETHER * sizeof *cases);
    Rng rng = rng_seeded(5, (uint64_t)threads);
    for (size_t i = 0; i < countof(groups); i++)
        for (size_t k = i > 0 || threads > 1; k < countof(counts); k++) {   // the most texts in one group only
            for (int j = 0; j < counts[k]; j++) {
                make_case(&cases[j], groups[i][j % 6], &rng);
                check(c, generate_group(&config, cases[j].n_prompt) == generate_group(&config, groups[i][0]),
                      "a prompt of %zu tokens is in the group of one of %zu", cases[j].n_prompt, groups[i][0]);
            }
            check_group(c, &g, cases, counts[k]);
        }
    free(cases);
    tost_cpu_engine.destroy(m);
}

int main(void) {
    Checks c = {.suite = "generate"};
    Tokenizer* tokenizer = byte_tokenizer();
    test_together(&c, tokenizer, 1);
    if (THREADS_MANY) test_together(&c, tokenizer, 3);
    tokenizer_free(tokenizer);
    return checks_verdict(&c);
}
