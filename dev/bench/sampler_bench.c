// sampler_bench.c: speed of sampling.
//
//     sampler_bench draw                   milliseconds of processor time to draw a token from logits of GPT-2's
//                                          vocabulary: the least of many draws. The logits are those of a random model
//                                          (nearly flat) and of a trained one (a few likely tokens)
//     sampler_bench together [THREADS]     tokens/s of texts that tost-base generates together, and the ratio to one
//                                          text alone; measured in turns, the best of each
#define TOST_NO_MAIN
#include "tost/base/error.h"
#include "tost/base/memory.h"
#include "train_gpt_tost.c"

#include <time.h>

#include "tost/run/generate.h"
#include "tost/init.h"

enum { V = 50304, DRAWS = 200 };

static double thread_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double least_ms(Sampler* s, const float* logits, SamplerOptions o) {
    Rng rng = rng_seeded(1, 1);
    double least = INFINITY;
    for (int i = 0; i < DRAWS; i++) {
        const double start = thread_seconds();
        sampler_draw(s, logits, &o, &rng);
        const double seconds = thread_seconds() - start;
        if (seconds < least) least = seconds;
    }
    return 1e3 * least;
}

static void bench_draw(void) {
    static const struct { const char* name; double spread; } models[] = {{"random", 0.5}, {"trained", 3.0}};
    static const struct { const char* name; SamplerOptions o; } modes[] = {
        {"greedy", {0, 0, 1}}, {"temperature", {0.8, 0, 1}}, {"top-k 40", {0.8, 40, 1}},
        {"top-k 5000", {0.8, 5000, 1}}, {"top-p 0.95", {0.8, 0, 0.95}}, {"top-k 40, top-p 0.95", {0.8, 40, 0.95}},
        {"top-k 40000, top-p 0.95", {0.8, 40000, 0.95}},
    };
    float* logits = xmalloc(V * sizeof *logits);
    Sampler s = sampler_new(V);
    for (size_t m = 0; m < countof(models); m++) {
        Rng rng = rng_seeded(2, m);
        for (int i = 0; i < V; i++) logits[i] = (float)(models[m].spread * rng_normal(&rng));
        for (size_t i = 0; i < countof(modes); i++)
            printf("%-8s %-24s %8.3f ms\n", models[m].name, modes[i].name, least_ms(&s, logits, modes[i].o));
    }
    sampler_free(&s);
    free(logits);
}

// ---------------------------------------------------------------------------------------------
// Texts together

static bool count_bytes(void* context, const char* bytes, size_t n) {
    (void)bytes;
    *(size_t*)context += n;
    return true;
}

static double tokens_per_s(const Generator* g, int n) {
    enum { TOKENS = 8 };
    static const uint32_t prompt[] = {0};   // a random model repeats it, and hardly ever ends the text
    Text texts[MAX_TEXTS_TOGETHER];
    size_t bytes = 0;
    double seconds = 0;
    int64_t tokens = 0;
    TostError err;
    for (int i = 0; i < n; i++) texts[i] = (Text){prompt, 1, rng_seeded(1, (uint64_t)i), &bytes, 0, FINISH_LENGTH};
    if (!generate_together(texts, n, &seconds, g, TOKENS, &err)) {
        fprintf(stderr, "sampler_bench: %s\n", err.text);
        exit(STATUS_FAILED);
    }
    for (int i = 0; i < n; i++) tokens += texts[i].tokens;
    return (double)(tokens - n) / seconds;   // the first token comes from the prompt
}

static void bench_together(int threads) {
    enum { ROUNDS = 8 };
    static const int counts[] = {1, 2, 4, 8, 16, 32};
    const TostConfig config = tost_preset_find("tost-base")->config;
    const TostEngineOptions o = {.max_batch = MAX_TEXTS_TOGETHER, .max_seq = 1, .threads = threads};
    TostError err;
    Tokenizer* tokenizer = tokenizer_open("../shared/data/gpt2/vocab.bpe", &err);
    TostModel* m = tokenizer ? tost_cpu_engine.create(&config, &o, &err) : NULL;
    if (!m) {
        fprintf(stderr, "sampler_bench: %s\n", err.text);
        exit(STATUS_FAILED);
    }
    init_params(&tost_cpu_engine, m, &m->tensors, config.n_layer, 1);
    const Generator g = {.engine = &tost_cpu_engine, .model = m, .config = &config, .tokenizer = tokenizer,
                         .options = {0.8, 0, 0.95}, .piece = count_bytes};
    double best[countof(counts)] = {0};
    for (int round = 0; round < ROUNDS; round++)
        for (size_t i = 0; i < countof(counts); i++) {
            const double rate = tokens_per_s(&g, counts[i]);
            if (rate > best[i]) best[i] = rate;
        }
    for (size_t i = 0; i < countof(counts); i++)
        printf("%2d together %8.1f tokens/s %6.2f x one\n", counts[i], best[i], best[i] / best[0]);
    tost_cpu_engine.destroy(m);
    tokenizer_free(tokenizer);
}

int main(int argc, char** argv) {
    if (argc == 2 && strcmp(argv[1], "draw") == 0) bench_draw();
    else if (argc >= 2 && argc <= 3 && strcmp(argv[1], "together") == 0) bench_together(argc > 2 ? atoi(argv[2]) : 0);
    else {
        fprintf(stderr, "usage: sampler_bench draw | together [THREADS]\n");
        return STATUS_USAGE;
    }
    return 0;
}
