// sampler_bench.c: milliseconds of processor time to draw a token from the logits of GPT-2's vocabulary, by mode: the
// least of many draws. The logits are those of a random model (nearly flat) and of a trained one (a few likely tokens).
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "rng.h"
#include "sampler.h"
#include "util.h"

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

int main(void) {
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
    return 0;
}
