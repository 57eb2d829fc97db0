// command_eval.c: computes the loss of a trained model on token shards: every token but the first is scored once, in
// windows that may overlap, or windows at random positions are scored. --task is in eval_task.c.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "eval_report.h"
#include "eval_task.h"
#include "json_write.h"
#include "progress.h"
#include "rng.h"
#include "shards.h"
#include "signals.h"

// ---------------------------------------------------------------------------------------------
// Windows

// T inputs starting at token `start`; only targets skip … end - 1 are scored.
typedef struct { uint64_t start; int skip, end; } Window;

typedef struct {
    uint64_t count;
    int      T, stride;   // stride 0: random positions
    uint64_t tokens;      // in the shards
    Rng      rng;
} Windows;

static Windows make_windows(const Options* o, uint64_t tokens, int T) {
    Windows w = {.T = T, .tokens = tokens, .rng = rng_seeded((uint64_t)o->seed, 0)};
    if ((uint64_t)T > tokens - 1) w.T = (int)(tokens - 1);
    if (o->windows) {
        w.count = (uint64_t)o->windows;
        return w;
    }
    w.stride = o->stride && o->stride < w.T ? (int)o->stride : w.T;
    w.count = 1 + (tokens - 1 - (uint64_t)w.T + (uint64_t)w.stride - 1) / (uint64_t)w.stride;
    return w;
}

// Window i; call it in order of i, since random positions come from one generator. With a stride, the first window
// scores all its targets and each later one only its last `stride` targets, or fewer at the end of the data.
static Window next_window(Windows* w, uint64_t i) {
    const uint64_t targets = w->tokens - 1;
    if (!w->stride) return (Window){rng_below(&w->rng, w->tokens - (uint64_t)w->T), 0, w->T};
    const uint64_t start = i * (uint64_t)w->stride, left = targets - start;
    return (Window){start, i == 0 ? 0 : w->T - w->stride, left < (uint64_t)w->T ? (int)left : w->T};
}

// ---------------------------------------------------------------------------------------------
// Scoring

typedef struct { Ratio loss; int64_t tokens; uint64_t bytes; double seconds; } Score;

// Fills inputs, targets (T). Targets that are not scored are -1; inputs past the end of the data are 0.
static bool fill_window(int32_t* inputs, int32_t* targets, ShardStream* s, const Window* w, int T, TostError* err) {
    const size_t n = (size_t)w->end;
    if (!stream_read(targets, s, w->start + 1, n, err) || !stream_read(inputs, s, w->start, 1, err)) return false;
    memcpy(inputs + 1, targets, (n - 1) * sizeof *inputs);
    for (int t = w->end; t < T; t++) inputs[t] = 0;
    for (int t = 0; t < T; t++)
        if (t < w->skip || t >= w->end) targets[t] = -1;
    return true;
}

// Bytes of text in the targets. <|endoftext|> and ids outside the tokenizer's vocabulary count as 0.
static uint64_t count_bytes(const Tokenizer* tokenizer, const int32_t* targets, size_t n) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        size_t len;
        if (targets[i] < 0 || targets[i] == tokenizer_eot(tokenizer)) continue;
        if (tokenizer_piece(tokenizer, (uint32_t)targets[i], &len)) bytes += len;
    }
    return bytes;
}

// Adds the losses (T) of a window to the score and writes them to the JSON file.
static void add_window(Score* r, JsonFile* json, const double* losses, const Window* w) {
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

typedef struct {
    LoadedModel*       model;
    ShardStream*       data;
    const Tokenizer*   tokenizer;   // NULL: do not count bytes
    Windows            windows;
    int                batch;
    TostComm*          comm;        // ranks share the windows
    Progress           progress;
    uint64_t           first;       // window of the current batch
    int                n;           // windows in it
    double             loss;        // so far
} Evaluation;

// TostEngineOptions.chunk_done
static bool show_chunk(void* context, double part) {
    Evaluation* e = context;
    comm_works(e->comm);
    progress_show(&e->progress, ((double)e->first + e->n * part) / (double)e->windows.count, "loss %.4f", e->loss);
    return false;
}

// Fills and scores n windows: losses (n,T).
static bool score_batch(double* losses, uint64_t* bytes, Evaluation* e, const Window* window, int n, TostError* err) {
    const size_t T = (size_t)e->windows.T, size = (size_t)n * T;
    int32_t *inputs = xmalloc(size * sizeof *inputs), *targets = xmalloc(size * sizeof *targets);
    bool ok = true;
    stream_recheck(e->data);
    for (int i = 0; i < n && ok; i++)
        ok = fill_window(inputs + i * T, targets + i * T, e->data, &window[i], e->windows.T, err);
    if (ok) {
        e->model->engine->decode_begin(NULL, e->model->model, NULL, n, 0);
        e->model->engine->decode_score(losses, e->model->model, inputs, targets, 1, e->windows.T);
        if (e->tokenizer) *bytes += count_bytes(e->tokenizer, targets, size);
    }
    free(inputs);
    free(targets);
    return ok;
}

// The next windows of all ranks, at most a batch for each, are scored together and added in order: so the result does
// not depend on the number of ranks.
static bool score(Score* r, JsonFile* json, Evaluation* e, TostError* err) {
    Windows* w = &e->windows;
    const int rank = comm_rank(e->comm), ranks = comm_size(e->comm);
    const size_t T = (size_t)w->T, size = (size_t)e->batch * T;
    double *own = xcalloc(size, sizeof *own), *losses = xmalloc((size_t)ranks * size * sizeof *losses);
    Window* window = xmalloc((size_t)ranks * e->batch * sizeof *window);
    uint64_t bytes = 0;
    bool ok = true;
    progress_start(&e->progress);
    for (uint64_t first = 0; ok && first < w->count;) {
        const uint64_t left = w->count - first, most = (uint64_t)ranks * (uint64_t)e->batch;
        const int n = left < most ? (int)left : (int)most, start = rank * e->batch;
        const int mine = n - start < e->batch ? n - start : e->batch;
        e->first = first;
        e->n = n;
        for (int i = 0; i < n; i++) window[i] = next_window(w, first + (uint64_t)i);
        ok = mine <= 0 || score_batch(own, &bytes, e, window + start, mine, err);
        if (!(ok = comm_agree(e->comm, ok, err))) break;
        comm_allgather(e->comm, losses, own, size * sizeof *own);
        for (int i = 0; i < n; i++) add_window(r, json, losses + i * T, &window[i]);
        first += (uint64_t)n;
        e->loss = ratio_value(&r->loss);
        progress_show(&e->progress, (double)first / (double)w->count, "loss %.4f", e->loss);
    }
    progress_erase(&e->progress);
    uint64_t* all = xmalloc((size_t)ranks * sizeof *all);
    if (ok) comm_allgather(e->comm, all, &bytes, sizeof bytes);
    for (int i = 0; ok && i < ranks; i++) r->bytes += all[i];
    r->seconds = now_seconds() - e->progress.started;
    free(all);
    free(own);
    free(losses);
    free(window);
    return ok;
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

static void begin_json(JsonFile* json, const LoadedModel* model, const Options* o, const Windows* w) {
    json_put_text(json, "data", o->data);
    json_put_text(json, "model", model->file);
    json_put_int(json, "step", model->info.step);
    if (model->info.config.document_token >= 0) json_put_int(json, "document_token", model->info.config.document_token);
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
}

// Opens the tokenizer for bits/byte: --tokenizer, or the checkpoint's. Without either, prints the reason and sets
// *tokenizer to NULL. Fails only if --tokenizer is given and cannot be used, or --mask-across-documents needs it.
static bool find_tokenizer(Tokenizer** tokenizer, const LoadedModel* model, const Options* o, const ShardStream* data,
                           TostError* err) {
    const CheckpointInfo* info = &model->info;
    const uint32_t largest = stream_largest_id(data);
    *tokenizer = loaded_model_tokenizer(model, o, err);
    if (!*tokenizer && (o->tokenizer || (o->mask_documents && info->config.document_token < 0))) return false;
    if (!*tokenizer && comm_rank(o->comm) == 0) print_line(stderr, "no bits/byte: %s", err->text);
    if (*tokenizer)
        warn_of_shards(o, data->dir, largest, tokenizer_path(*tokenizer), tokenizer_hash(*tokenizer),
                       tokenizer_size(*tokenizer));
    else if (info->tokenizer) warn_of_shards(o, data->dir, largest, info->tokenizer, info->tokenizer_hash, 0);
    return true;
}

static bool eval_data(LoadedModel* model, const Options* o, ShardStream* data, TostError* err) {
    const int block = model->info.config.block_size, T = o->seq ? o->seq : block;
    if (stream_tokens(data) < 2)
        return tost_error(err, "--data %s: %llu tokens; eval needs at least two", o->data,
                          (unsigned long long)stream_tokens(data));
    Evaluation e = {.model = model, .data = data, .comm = o->comm, .windows = make_windows(o, stream_tokens(data), T)};
    const Windows* w = &e.windows;
    e.batch = (uint64_t)o->batch < w->count ? o->batch : (int)w->count;
    if (!options_check_pass(e.batch, w->T, err)) return false;

    Tokenizer* tokenizer = NULL;
    JsonFile json = {0};
    Score r = {0};
    const bool first = comm_rank(o->comm) == 0;   // the rank that writes
    model->chunk_done = show_chunk;
    model->context = &e;
    e.progress = progress_new(stderr, !first);
    e.loss = NAN;
    bool ok = find_tokenizer(&tokenizer, model, o, data, err);
    if (tokenizer) loaded_model_mask(model, o, tokenizer);
    ok = ok && loaded_model_create(model, o, e.batch, w->T, false, err)
         && json_file_open(&json, first ? o->json : NULL, "eval", o->force, err);
    e.tokenizer = tokenizer;
    ok = comm_agree(o->comm, ok, err);
    if (ok) {
        if (first) print_line(stderr, "%s, step %lld; shards: %d; windows: %llu of %d tokens%s", model->file,
                   (long long)model->info.step, data->count, (unsigned long long)w->count, w->T,
                   model->info.config.document_token >= 0 ? ", masked across documents" : "");
        begin_json(&json, model, o, w);
        ok = score(&r, &json, &e, err);
        end_json(&json, &r);
        ok = ok && (isfinite(r.loss.x)
                    || tost_error(err, "%s: the loss is not finite; the weights have diverged: use an "
                                  "earlier checkpoint", model->file));
    }
    ok = json_file_close(&json, ok, err) && ok;
    if (ok && first) print_score(&r);
    tokenizer_free(tokenizer);
    return ok;
}

static bool check_lengths(const LoadedModel* model, const Options* o, TostError* err) {
    const int block = model->info.config.block_size, T = o->seq ? o->seq : block;
    if (T > block)
        return tost_error(err, "--seq %d is longer than the block size %d of %s", T, block, model->file);
    return o->stride <= T || tost_error(err, "--stride %d is longer than the window of %d tokens", o->stride, T);
}

int command_eval(const Options* o, const TostEngine* engine) {
    TostError err;
    LoadedModel model;
    ShardStream data = {0};
    signals_ignore_write_errors();
    uint32_t crc = 0;
    bool ok = loaded_model_find(&model, o, engine, &err) && check_lengths(&model, o, &err);
    if (ok && o->data)
        ok = stream_open(&data, o->data, (uint32_t)model.info.config.vocab_size, &err) && stream_crc(&crc, &data, &err);
    ok = comm_agree(o->comm, ok, &err)
         && comm_same(o->comm, crc, "the shards of --data differ from those of rank 0: give all hosts the same files",
                      &err)
         && comm_same(o->comm, (uint64_t)model.info.step, "the checkpoint of --model is of another step than on rank "
                      "0: all hosts must see the same files", &err)
         && (o->data ? eval_data(&model, o, &data, &err) : eval_task(&model, o, &err));
    ok = comm_agree(o->comm, ok, &err);
    stream_close(&data);
    loaded_model_free(&model);
    return ok ? 0 : command_failed(o, &err);
}
