// eval.c: the loss of a trained model on token shards, by the standard protocol (every token but the first
// scored once, in windows that may overlap) or by the published one (windows at random places).
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "commands.h"
#include "data.h"
#include "eval_report.h"
#include "eval_task.h"
#include "json_write.h"
#include "progress.h"
#include "rng.h"

// ---------------------------------------------------------------------------------------------
// The shards of a glob, joined in name order

typedef struct {
    Shard*    shards;
    uint64_t* before;   // tokens of the shards before each
    int       count;
    uint64_t  tokens;
    uint32_t  largest_id;
} Stream;

static void stream_close(Stream* s) {
    for (int i = 0; i < s->count; i++) shard_close(&s->shards[i]);
    free(s->shards);
    free(s->before);
}

static bool stream_open(Stream* s, const char* glob, int vocab_size, TostError* err) {
    *s = (Stream){0};
    PathList files;
    if (!expand_glob(&files, glob, err)) return false;
    s->shards = xcalloc((size_t)files.count, sizeof *s->shards);
    s->before = xcalloc((size_t)files.count, sizeof *s->before);
    bool ok = true;
    for (int i = 0; i < files.count && ok; i++) {
        ok = shard_open(&s->shards[i], files.paths[i], err);
        s->count += ok;
        ok = ok && shard_check_ids(&s->shards[i], (uint32_t)vocab_size, err);
        s->before[i] = s->tokens;
        if (ok) s->tokens += s->shards[i].n_tokens;
        if (ok && s->shards[i].largest_id > s->largest_id) s->largest_id = s->shards[i].largest_id;
    }
    free_paths(&files);
    if (ok && s->tokens < 2)
        ok = tost_error(err, "--data %s holds %llu tokens: scoring takes two at least", glob,
                        (unsigned long long)s->tokens);
    return ok;
}

// n tokens from number `first` on.
static void stream_copy(int32_t* dst, const Stream* s, uint64_t first, int n) {
    int at = 0, last = s->count - 1;
    while (at < last) {   // the last shard that begins at `first` or before: none is empty
        const int mid = at + (last - at + 1) / 2;
        if (s->before[mid] <= first) at = mid;
        else last = mid - 1;
    }
    first -= s->before[at];
    for (int i = 0; i < n; i++, first++) {
        for (; first == s->shards[at].n_tokens; first = 0) at++;
        dst[i] = (int32_t)shard_token(&s->shards[at], first);
    }
}

// ---------------------------------------------------------------------------------------------
// Windows

// T inputs from token `start` on; the targets, each one further, count from number `skip` to below `end`.
typedef struct { uint64_t start; int skip, end; } Window;

typedef struct {
    uint64_t count;
    int      T, stride;   // stride 0: at random places
    uint64_t tokens;      // of the stream
    Rng      rng;
} Windows;

static Windows windows_of(const Options* o, const Stream* s, int T) {
    Windows w = {.T = T, .tokens = s->tokens, .rng = rng_seeded((uint64_t)o->seed, 0)};
    if ((uint64_t)T > s->tokens - 1) w.T = (int)(s->tokens - 1);
    if (o->windows) {
        w.count = (uint64_t)o->windows;
        return w;
    }
    w.stride = o->stride && o->stride < w.T ? (int)o->stride : w.T;
    w.count = 1 + (s->tokens - 1 - (uint64_t)w.T + (uint64_t)w.stride - 1) / (uint64_t)w.stride;
    return w;
}

// Number i; they are asked for in order. Random: all starts that have a window are equally likely. Else each
// window counts what the one before it did not: of the first all, then the last `stride`, less at the end of
// the stream.
static Window window_at(Windows* w, uint64_t i) {
    const uint64_t targets = w->tokens - 1;
    if (!w->stride) return (Window){rng_below(&w->rng, w->tokens - (uint64_t)w->T), 0, w->T};
    const uint64_t start = i * (uint64_t)w->stride, left = targets - start;
    return (Window){start, i == 0 ? 0 : w->T - w->stride, left < (uint64_t)w->T ? (int)left : w->T};
}

// ---------------------------------------------------------------------------------------------
// Scoring

typedef struct { Ratio loss; int64_t tokens; uint64_t bytes; double seconds; } Score;

// inputs, targets (T) of a window; what does not count is -1, what the stream has no tokens for is padded.
static void fill_window(int32_t* inputs, int32_t* targets, const Stream* s, const Window* w, int T) {
    stream_copy(inputs, s, w->start, w->end);
    stream_copy(targets, s, w->start + 1, w->end);
    for (int t = w->end; t < T; t++) inputs[t] = 0;
    for (int t = 0; t < T; t++)
        if (t < w->skip || t >= w->end) targets[t] = -1;
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

// Adds a window's losses (T) to the score and to the JSON file.
static void count_window(Score* r, JsonFile* json, const double* losses, const Window* w) {
    double nats = 0;
    for (int t = w->skip; t < w->end; t++) nats += losses[t];
    ratio_add(&r->loss, nats, w->end - w->skip);
    r->tokens += w->end - w->skip;
    json_put_open(json, NULL, '{');
    json_put_int(json, "start", (int64_t)w->start);
    json_put_int(json, "skip", w->skip);
    json_put_int(json, "tokens", w->end - w->skip);
    json_put_real(json, "nats", nats);
    json_put_close(json, '}');
}

static void score(Score* r, JsonFile* json, LoadedModel* t, const Stream* s, Windows* w,
                  const Tokenizer* tokenizer, int B) {
    const int T = w->T;
    int32_t* inputs = xmalloc((size_t)B * T * sizeof *inputs);
    int32_t* targets = xmalloc((size_t)B * T * sizeof *targets);
    double* losses = xmalloc((size_t)B * T * sizeof *losses);
    Window* window = xmalloc((size_t)B * sizeof *window);
    Progress progress = progress_new(stderr, false);
    for (uint64_t first = 0; first < w->count;) {
        const int n = w->count - first < (uint64_t)B ? (int)(w->count - first) : B;
        for (int i = 0; i < n; i++) {
            window[i] = window_at(w, first + (uint64_t)i);
            fill_window(inputs + (size_t)i * T, targets + (size_t)i * T, s, &window[i], T);
        }
        t->engine->decode_begin(NULL, t->model, NULL, n, 0);
        t->engine->decode_score(losses, t->model, inputs, targets, 1, T);
        for (int i = 0; i < n; i++) count_window(r, json, losses + (size_t)i * T, &window[i]);
        if (tokenizer) r->bytes += count_bytes(tokenizer, targets, (size_t)n * T);
        first += (uint64_t)n;
        progress_show(&progress, (double)first / (double)w->count, "loss %.4f", ratio_value(&r->loss));
    }
    progress_erase(&progress);
    r->seconds = now_seconds() - progress.started;
    free(inputs);
    free(targets);
    free(losses);
    free(window);
}

static void print_score(const Score* r) {
    const double loss = ratio_value(&r->loss), error = ratio_error(&r->loss);
    printf("loss        %.6f nats/token", loss);
    if (isfinite(error)) printf(" ± %.6f (95%%, windows as samples)", error);
    printf("\nperplexity  %.4f\n", exp(loss));
    if (r->bytes) printf("bits/byte   %.6f\n", r->loss.x / log(2) / (double)r->bytes);
    printf("tokens      %lld\n", (long long)r->tokens);
    printf("speed       %.0f tokens/s\n", r->seconds > 0 ? (double)r->tokens / r->seconds : 0);
}

static void begin_json(JsonFile* json, const LoadedModel* t, const Options* o, const Windows* w) {
    json_put_open(json, NULL, '{');
    json_put_text(json, "data", o->data);
    json_put_text(json, "model", t->file);
    json_put_int(json, "step", t->info.step);
    json_put_text(json, "protocol", w->stride ? "every token once" : "random windows");
    json_put_int(json, "seq", w->T);
    if (w->stride) json_put_int(json, "stride", w->stride);
    else json_put_int(json, "seed", o->seed);
    json_put_open(json, "window", '[');
}

static void end_json(JsonFile* json, const Score* r) {
    json_put_close(json, ']');
    json_put_int(json, "tokens", r->tokens);
    json_put_real(json, "loss", ratio_value(&r->loss));
    json_put_real(json, "loss_95", ratio_error(&r->loss));
    json_put_real(json, "perplexity", exp(ratio_value(&r->loss)));
    json_put_real(json, "bits_per_byte", r->bytes ? r->loss.x / log(2) / (double)r->bytes : NAN);
    json_put_close(json, '}');
}

// The tokenizer that gives bits a byte: --tokenizer, or the checkpoint's where it is at hand, or none. False
// where --tokenizer was given and is wrong.
static bool find_tokenizer(Tokenizer** tokenizer, const LoadedModel* t, const Options* o, const Stream* s, TostError* err) {
    *tokenizer = loaded_model_tokenizer(t, o, err);
    if (!*tokenizer && o->tokenizer) return false;
    if (!*tokenizer) fprintf(stderr, "no bits/byte: %s\n", err->text);
    char* dir = path_dir(s->shards[0].path);
    if (*tokenizer)
        warn_of_shards(o, dir, s->largest_id, tokenizer_path(*tokenizer), tokenizer_hash(*tokenizer),
                       tokenizer_size(*tokenizer));
    else if (t->info.tokenizer)
        warn_of_shards(o, dir, s->largest_id, t->info.tokenizer, t->info.tokenizer_hash, 0);
    free(dir);
    return true;
}

static bool eval_data(LoadedModel* t, const Options* o, Stream* s, TostError* err) {
    const int block = t->info.config.block_size, T = o->seq ? o->seq : block;
    if (T > block)
        return tost_error(err, "--seq %d is longer than the block size %d of %s", T, block, t->file);
    if (o->stride > T)
        return tost_error(err, "--stride %d is longer than the window of %d tokens", o->stride, T);
    if (!stream_open(s, o->data, t->info.config.vocab_size, err)) return false;
    Windows w = windows_of(o, s, T);
    const int B = (uint64_t)o->batch < w.count ? o->batch : (int)w.count;
    if (!options_check_pass(B, w.T, err)) return false;

    Tokenizer* tokenizer;
    JsonFile json = {0};
    Score r = {0};
    if (!find_tokenizer(&tokenizer, t, o, s, err)) return false;
    bool ok = loaded_model_create(t, o, B, w.T, false, err) && json_file_open(&json, o->json, err);
    if (ok) {
        fprintf(stderr, "%s, step %lld; shards: %d; windows: %llu of %d tokens\n", t->file,
                (long long)t->info.step, s->count, (unsigned long long)w.count, w.T);
        begin_json(&json, t, o, &w);
        score(&r, &json, t, s, &w, tokenizer, B);
        end_json(&json, &r);
        ok = isfinite(r.loss.x)
             || tost_error(err, "%s: the loss is not finite: the weights have diverged", t->file);
    }
    ok = json_file_close(&json, ok, err) && ok;
    if (ok) print_score(&r);
    if (tokenizer) tokenizer_free(tokenizer);
    return ok;
}

int command_eval(const Options* o, const TostEngine* engine) {
    TostError err;
    LoadedModel t;
    Stream stream = {0};
    const bool ok = loaded_model_find(&t, o, engine, &err)
                    && (o->data ? eval_data(&t, o, &stream, &err) : eval_task(&t, o, &err));
    stream_close(&stream);
    loaded_model_free(&t);
    return ok ? 0 : command_failed(o, &err);
}
