// eval.c: the loss of a trained model on token shards, every token but the first scored once.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "commands.h"
#include "data.h"

// ---------------------------------------------------------------------------------------------
// The shards of a glob, joined in name order and read from the first token to the last

typedef struct {
    Shard*   shards;
    int      count, at;      // shard that next stands in
    uint64_t next;           // token within it
    uint64_t tokens, left;   // in all; not yet read
} Stream;

static void stream_close(Stream* s) {
    for (int i = 0; i < s->count; i++) shard_close(&s->shards[i]);
    free(s->shards);
}

static bool stream_open(Stream* s, const char* glob, int vocab_size, TostError* err) {
    *s = (Stream){0};
    PathList files;
    if (!expand_glob(&files, glob, err)) return false;
    s->shards = xcalloc((size_t)files.count, sizeof *s->shards);
    bool ok = true;
    for (int i = 0; i < files.count && ok; i++) {
        ok = shard_open(&s->shards[i], files.paths[i], err);
        s->count += ok;
        ok = ok && shard_check_ids(&s->shards[i], (uint32_t)vocab_size, err);
        if (ok) s->tokens += s->shards[i].n_tokens;
    }
    free_paths(&files);
    s->left = s->tokens;
    if (ok && s->tokens < 2)
        ok = tost_error(err, "--data %s holds %llu tokens: scoring takes two at least", glob,
                        (unsigned long long)s->tokens);
    return ok;
}

static int32_t stream_read(Stream* s) {
    while (s->next == s->shards[s->at].n_tokens) {
        s->at++;
        s->next = 0;
    }
    s->left--;
    return (int32_t)shard_token(&s->shards[s->at], s->next++);
}

// ---------------------------------------------------------------------------------------------
// Scoring

typedef struct { double nats; int64_t tokens; uint64_t bytes; double seconds; } Score;

// Fills rows of windows that follow one another; each begins with the token the last one ended on. What the
// last window has no tokens for is padded with targets that do not count. Returns the rows with a target.
static int fill_batch(int32_t* inputs, int32_t* targets, Stream* s, int32_t* last, int B, int T) {
    int rows = 0;
    for (; rows < B && s->left > 0; rows++) {
        for (int t = 0; t < T; t++) {
            const size_t i = (size_t)rows * T + t;
            inputs[i] = *last;
            targets[i] = s->left > 0 ? stream_read(s) : -1;
            if (targets[i] >= 0) *last = targets[i];
        }
    }
    return rows;
}

// Bytes of text that the targets stand for; <|endoftext|> and rows past the tokenizer stand for none.
static uint64_t count_bytes(const Tokenizer* tokenizer, const int32_t* targets, size_t n) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        size_t len;
        if (targets[i] < 0 || targets[i] >= tokenizer_eot(tokenizer)) continue;
        if (tokenizer_piece(tokenizer, (uint32_t)targets[i], &len)) bytes += len;
    }
    return bytes;
}

static void score(Score* r, Trained* t, Stream* s, const Tokenizer* tokenizer, int B, int T) {
    int32_t* inputs = xmalloc((size_t)B * T * sizeof *inputs);
    int32_t* targets = xmalloc((size_t)B * T * sizeof *targets);
    const bool live = isatty(STDERR_FILENO);
    const double start = now_seconds();
    double shown = start;
    int32_t last = stream_read(s);
    for (int rows; (rows = fill_batch(inputs, targets, s, &last, B, T)) > 0;) {
        double nats;
        int64_t count;
        t->engine->forward(t->model, inputs, targets, rows, T, 0);
        t->engine->read_loss(&nats, &count, t->model);
        r->nats += nats;
        r->tokens += count;
        if (tokenizer) r->bytes += count_bytes(tokenizer, targets, (size_t)rows * T);
        if (live && now_seconds() - shown > 0.5) {
            shown = now_seconds();
            fprintf(stderr, "\r%5.1f%%  loss %.4f", 100.0 * (double)r->tokens / (double)(s->tokens - 1),
                    r->nats / (double)r->tokens);
        }
    }
    if (shown > start) fprintf(stderr, "\r\033[K");
    r->seconds = now_seconds() - start;
    free(inputs);
    free(targets);
}

static void print_score(const Score* r) {
    const double loss = r->nats / (double)r->tokens;
    printf("loss        %.6f nats/token\n", loss);
    printf("perplexity  %.4f\n", exp(loss));
    if (r->bytes) printf("bits/byte   %.6f\n", r->nats / log(2) / (double)r->bytes);
    printf("tokens      %lld\n", (long long)r->tokens);
    printf("speed       %.0f tokens/s\n", r->seconds > 0 ? (double)r->tokens / r->seconds : 0);
}

// The tokenizer that gives bits a byte: --tokenizer, or the checkpoint's where it is at hand, or none. False
// where --tokenizer was given and is wrong.
static bool find_tokenizer(Tokenizer** tokenizer, const Trained* t, const Options* o, TostError* err) {
    *tokenizer = trained_tokenizer(t, o, err);
    return *tokenizer || !o->tokenizer;
}

static bool evaluate(Trained* t, const Options* o, Stream* s, TostError* err) {
    const int block = t->info.config.block_size;
    int T = o->seq ? o->seq : block;
    if (T > block)
        return tost_error(err, "--seq %d is longer than the block size %d of %s", T, block, t->file);
    if (!stream_open(s, o->data, t->info.config.vocab_size, err)) return false;
    if ((uint64_t)T > s->tokens - 1) T = (int)(s->tokens - 1);
    const uint64_t windows = (s->tokens - 2) / (uint64_t)T + 1;
    const int B = (uint64_t)o->batch < windows ? o->batch : (int)windows;

    Tokenizer* tokenizer;
    if (!find_tokenizer(&tokenizer, t, o, err)) return false;
    Score r = {0};
    bool ok = trained_create(t, o, B, T, err);
    if (ok) {
        fprintf(stderr, "%s, step %lld, on %d shards, windows of %d tokens\n", t->file,
                (long long)t->info.step, s->count, T);
        score(&r, t, s, tokenizer, B, T);
        if (isfinite(r.nats)) print_score(&r);
        else ok = tost_error(err, "%s: the loss is not finite: the weights have diverged", t->file);
    }
    if (tokenizer) tokenizer_free(tokenizer);
    return ok;
}

int command_eval(const Options* o, const TostEngine* engine) {
    TostError err;
    Trained t;
    Stream stream = {0};
    const bool ok = trained_find(&t, o, engine, &err) && evaluate(&t, o, &stream, &err);
    stream_close(&stream);
    trained_free(&t);
    return ok ? 0 : command_failed(&err);
}
