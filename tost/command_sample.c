// command_sample.c: generates text. The text goes to stdout token by token, everything else to stderr.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "sampler.h"

static bool write_piece(void* context, const char* bytes, size_t n) {
    (void)context;
    return n == 0 || (fwrite(bytes, 1, n, stdout) == n && fflush(stdout) == 0);
}

static bool write_samples(LoadedModel* m, const Tokenizer* tokenizer, const Options* o, const Bytes* prompt,
                          const uint32_t* ids, size_t n_ids, TostError* err) {
    const Generator generator = {.engine = m->engine, .model = m->model, .config = &m->info.config,
                                 .tokenizer = tokenizer, .options = {o->temperature, o->top_k, o->top_p},
                                 .piece = write_piece};
    int64_t tokens = 0;
    double seconds = 0;
    for (int64_t i = 0; i < o->samples; i++) {
        Rng rng = rng_seeded((uint64_t)o->seed, (uint64_t)i);
        GenerateResult result;
        if (i > 0) printf("---\n");
        write_piece(NULL, prompt->data, prompt->size);
        const bool ok = generate(&result, &generator, ids, n_ids, o->tokens, &rng, err);
        putchar('\n');
        if (!ok) return false;
        if (fflush(stdout) != 0 || ferror(stdout)) return tost_error(err, "stdout cannot be written");
        tokens += result.tokens;
        seconds += result.seconds;
    }
    const double rate = seconds > 0 ? (double)tokens / seconds : 0;
    fprintf(stderr, "%lld tokens, %.0f tokens/s\n", (long long)tokens, rate);
    return true;
}

static bool sample(LoadedModel* m, const Tokenizer* tokenizer, const Options* o, const Bytes* prompt,
                   TostError* err) {
    uint32_t* ids = xmalloc((prompt->size + 1) * sizeof *ids);
    const size_t n = tokenizer_encode(tokenizer, ids, prompt->data, prompt->size);
    // Longest input of decode_begin: the prompt, or block_size if prompt and new tokens do not fit in it.
    const size_t block = (size_t)m->info.config.block_size, first = n > 0 ? n : 1;
    const size_t longest = first + (size_t)o->tokens <= block ? first : block;
    bool ok = loaded_model_create(m, o, 1, (int)longest, false, err);
    if (ok) print_line(stderr, "%s, step %lld", m->file, (long long)m->info.step);
    ok = ok && write_samples(m, tokenizer, o, prompt, ids, n, err);
    free(ids);
    return ok;
}

int command_sample(const Options* o, const TostEngine* engine) {
    TostError err;
    LoadedModel m;
    Bytes prompt = {0};
    Tokenizer* tokenizer = NULL;
    const bool ok = loaded_model_find(&m, o, engine, &err) && (tokenizer = loaded_model_tokenizer(&m, o, &err))
                    && (!o->prompt
                        || read_text(&prompt, "--prompt", o->prompt, "; leave it out to start without a prompt", &err))
                    && sample(&m, tokenizer, o, &prompt, &err);
    free(prompt.data);
    tokenizer_free(tokenizer);
    loaded_model_free(&m);
    return ok ? 0 : command_failed(o, &err);
}
