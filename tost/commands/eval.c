// eval.c: computes the loss of a trained model on token shards: every token but the first is scored once, in
// windows that may overlap, or windows at random positions are scored. --task is in eval_task.c.
#include <ctype.h>

#include "base/clock.h"
#include "base/json_write.h"
#include "base/rng.h"
#include "base/signals.h"
#include "commands/commands.h"
#include "commands/intervals.h"
#include "data/shards.h"
#include "run/progress.h"

// ---- Windows ----

// T inputs starting at token `start`; only targets skip … end - 1 are scored.
typedef struct { uint64_t start; int skip, end; } Window;

// Positions in a window are counted from 1: position n is predicted from n tokens. Bin k has 2^(k-1) < n <= 2^k.
enum { POSITION_BINS = 32 };

// Text in targets: its bytes, the words that begin in it, after white space or at the beginning of a document, and the
// loss of its tokens. <|endoftext|> and ids that the tokenizer does not have are no text.
typedef struct { double bytes, words, nats; } TextLoss;

// Losses of a window: their sum, and sum and count in each bin.
typedef struct { double nats, bin_nats[POSITION_BINS], bin_tokens[POSITION_BINS]; TextLoss text; } WindowLoss;

typedef struct {
    LoadedModel*     model;
    const Options*   o;
    ShardStream*     data;
    Tokenizer*       tokenizer;      // NULL: do not count bytes
    uint64_t         count;          // windows
    int              T, stride;      // of windows; stride 0: random positions
    Rng              rng;
    int              batch;          // windows in memory at a time
    Progress         progress;
    // results so far
    Ratio            loss, position[POSITION_BINS];   // windows as samples
    TextLoss         text;
    LossSum*         shard;          // (shards); a window counts for the shard of its first scored target
} Evaluation;

static void plan_windows(Evaluation* e) {
    const Options* o = e->o;
    const int T = o->recipe.seq ? o->recipe.seq : e->model->info.config.block_size;
    const uint64_t targets = stream_tokens(e->data) - 1;
    e->rng = rng_seeded((uint64_t)o->recipe.seed, 0);
    e->T = (uint64_t)T > targets ? (int)targets : T;
    if (!o->windows) e->stride = o->stride && o->stride < e->T ? o->stride : e->T;
    e->count = e->stride ? 1 + (targets - (uint64_t)e->T + (uint64_t)e->stride - 1) / (uint64_t)e->stride
                         : (uint64_t)o->windows;
    if (o->limit && (uint64_t)o->limit < e->count) e->count = (uint64_t)o->limit;
    e->batch = (uint64_t)o->recipe.batch < e->count ? o->recipe.batch : (int)e->count;
}

// Window i; call it in order of i, since random positions come from one generator. With a stride, the first window
// scores all its targets and each later one only its last `stride` targets, or fewer at the end of the data.
static Window next_window(Evaluation* e, uint64_t i) {
    const uint64_t T = (uint64_t)e->T, targets = stream_tokens(e->data) - 1;
    if (!e->stride) return (Window){rng_below(&e->rng, targets + 1 - T), 0, e->T};
    const uint64_t start = i * (uint64_t)e->stride, left = targets - start;
    return (Window){start, i == 0 ? 0 : e->T - e->stride, left < T ? (int)left : e->T};
}

// ---- Scoring ----

// Fills inputs, targets (T) for the T tokens of a window from position `first` on. Targets that are not scored are -1;
// inputs past the end of the data are 0.
static bool fill_chunk(int32_t* inputs, int32_t* targets, ShardStream* s, const Window* w, int first, int T,
                       TostError* err) {
    const int n = w->end < first ? 0 : w->end - first < T ? w->end - first : T;
    if (!stream_pairs(inputs, targets, s, w->start + (uint64_t)first, (size_t)n, err)) return false;
    for (int t = 0; t < T; t++) {
        if (t >= n) inputs[t] = 0;
        if (t >= n || first + t < w->skip) targets[t] = -1;
    }
    return true;
}

// The text of a token; *n is 0 if it has none.
static const char* text_of(size_t* n, const Tokenizer* tokenizer, int32_t id) {
    const char* text = tokenizer_piece(tokenizer, (uint32_t)id, n);
    if (id == tokenizer_eot(tokenizer)) *n = 0;
    return text;
}

// Adds the text of a target that follows `input`.
static void add_text(TextLoss* sum, const Tokenizer* tokenizer, int32_t input, int32_t target, double nats) {
    size_t n;
    const char* text = text_of(&n, tokenizer, input);
    bool space = n == 0 || isspace((uint8_t)text[n - 1]);
    text = text_of(&n, tokenizer, target);
    sum->bytes += (double)n;
    if (n > 0) sum->nats += nats;
    for (size_t i = 0; i < n; space = isspace((uint8_t)text[i++])) sum->words += space && !isspace((uint8_t)text[i]);
}

// Adds the losses (T) of such a chunk to those of its window.
static void add_chunk(WindowLoss* sum, const double* losses, const int32_t* inputs, const int32_t* targets, int first,
                      int T, const Tokenizer* tokenizer) {
    int bin = 0;
    for (int t = 0; t < T; t++) {
        if (targets[t] < 0) continue;
        while ((int64_t)1 << bin < (int64_t)first + t + 1) bin++;
        sum->nats += losses[t];
        sum->bin_nats[bin] += losses[t];
        sum->bin_tokens[bin]++;
        if (tokenizer) add_text(&sum->text, tokenizer, inputs[t], targets[t], losses[t]);
    }
}

// Adds a window to the results and writes it to the JSON file.
static void add_window(Evaluation* e, JsonFile* json, const WindowLoss* sum, const Window* w) {
    ratio_add(&e->loss, sum->nats, w->end - w->skip);
    for (int k = 0; k < POSITION_BINS; k++)
        if (sum->bin_tokens[k] > 0) ratio_add(&e->position[k], sum->bin_nats[k], sum->bin_tokens[k]);
    e->text.bytes += sum->text.bytes;
    e->text.words += sum->text.words;
    e->text.nats += sum->text.nats;
    LossSum* shard = e->shard + find_interval(e->data->start, e->data->count, w->start + (uint64_t)w->skip + 1);
    shard->sum += sum->nats;
    shard->count += w->end - w->skip;
    json_put_open(json, NULL, '{');
    json_put_int(json, "start", (int64_t)w->start);
    json_put_int(json, "skip", w->skip);
    json_put_int(json, "tokens", w->end - w->skip);
    json_put_real(json, "nats", sum->nats);
    json_put_close(json, '}');
}

// Scores n windows, chunk by chunk. done, all: number of windows before and in this batch, on all ranks, for progress.
static bool score_batch(WindowLoss* sum, Evaluation* e, const Window* window, int n, uint64_t done, int all,
                        TostError* err) {
    const int chunk = e->model->chunks.max_chunk;
    const size_t size = (size_t)n * chunk;
    int32_t *inputs = xmalloc(size * sizeof *inputs), *targets = xmalloc(size * sizeof *targets);
    double* losses = xmalloc(size * sizeof *losses);
    int end = 0;
    bool ok = true;
    for (int i = 0; i < n; i++) {
        sum[i] = (WindowLoss){0};
        end = window[i].end > end ? window[i].end : end;
    }
    chunks_begin(&e->model->chunks, n);
    for (int first = 0, T; ok && first < end; first += T) {
        T = e->T - first < chunk ? e->T - first : chunk;
        for (int i = 0; i < n && ok; i++)
            ok = fill_chunk(inputs + (size_t)i * T, targets + (size_t)i * T, e->data, &window[i], first, T, err);
        if (!ok) break;
        chunks_read_losses(losses, &e->model->chunks, inputs, targets, T);
        for (int i = 0; i < n; i++)
            add_chunk(&sum[i], losses + (size_t)i * T, inputs + (size_t)i * T, targets + (size_t)i * T, first, T,
                      e->tokenizer);
        const double windows = (double)done + (double)all * (first + T) / e->T;
        progress_show(&e->progress, windows / (double)e->count, "loss %.4f", plain_nan(ratio_value(&e->loss)));
    }
    free(inputs);
    free(targets);
    free(losses);
    return ok;
}

// The next windows of all ranks, at most a batch for each, are scored together and added in order: so the result does
// not depend on the number of ranks.
static bool score(Evaluation* e, JsonFile* json, TostError* err) {
    TostComm* comm = e->model->comm;
    const int start = comm_rank(comm) * e->batch, most = comm_size(comm) * e->batch;
    WindowLoss *own = xcalloc((size_t)e->batch, sizeof *own), *sum = xmalloc((size_t)most * sizeof *sum);
    Window* window = xmalloc((size_t)most * sizeof *window);
    bool ok = true;
    progress_start(&e->progress);
    for (uint64_t first = 0; ok && first < e->count;) {
        const int n = e->count - first < (uint64_t)most ? (int)(e->count - first) : most;
        const int mine = n - start < e->batch ? n - start : e->batch;
        for (int i = 0; i < n; i++) window[i] = next_window(e, first + (uint64_t)i);
        ok = mine <= 0 || score_batch(own, e, window + start, mine, first, n, err);
        if (!(ok = comm_agree(comm, ok, err))) break;
        comm_allgather(comm, sum, own, (size_t)e->batch * sizeof *own);
        for (int i = 0; i < n; i++) add_window(e, json, &sum[i], &window[i]);
        first += (uint64_t)n;
        if (first < e->count && comm_any(comm, signals_received()))
            ok = tost_error(err, "interrupted: there is no result");
    }
    progress_erase(&e->progress);
    free(own);
    free(sum);
    free(window);
    return ok;
}

static void report_positions(JsonFile* json, const Evaluation* e) {
    printf("\n%-21s  %10s  %-9s  %s\n", "position", "nats/token", "± (95%)", "tokens");
    json_put_open(json, "position", '[');
    for (int k = 0; k < POSITION_BINS; k++) {
        const Ratio* p = &e->position[k];
        const int64_t first = k == 0 ? 1 : ((int64_t)1 << (k - 1)) + 1, end = (int64_t)1 << k;
        const int64_t last = e->T < end ? e->T : end;
        if (p->n == 0) continue;
        json_put_open(json, NULL, '{');
        const TextLine from = json_figure_int(json, "first", first, "%lld"),
                       to = json_figure_int(json, "last", last, "-%lld"),
                       tokens = json_figure_int(json, "tokens", (int64_t)p->y, "%lld"),
                       loss = json_figure_real(json, "loss", ratio_value(p), "%.6f"),
                       error = json_figure_real(json, "loss_95", ratio_error(p), "%.6f");
        json_put_close(json, '}');
        printf("%-21s  %10s  %-8s  %s\n", text_line("%s%s", from.text, k < 2 ? "" : to.text).text, loss.text,
               error.text, tokens.text);
    }
    json_put_close(json, ']');
}

// A line for each shard, if there are several.
static void report_shards(JsonFile* json, const Evaluation* e) {
    json_put_open(json, "shard", '[');
    for (int k = 0; k < e->data->count; k++) {
        const LossSum* sum = &e->shard[k];
        const char* path = e->data->shards[k].path;
        json_put_open(json, NULL, '{');
        json_put_text(json, "file", path);
        const TextLine tokens = json_figure_int(json, "tokens", sum->count, "%lld"),   // 0: the loss is NaN
                       loss = json_figure_real(json, "loss", sum->sum / (double)sum->count, "%.6f");
        json_put_close(json, '}');
        if (e->data->count > 1 && sum->count > 0)
            print_line(stdout, "shard       %s nats/token, %s tokens in windows that begin in %s", loss.text,
                       tokens.text, path);
    }
    json_put_close(json, ']');
}

static void report(JsonFile* json, const Evaluation* e, double seconds) {
    const double value = ratio_value(&e->loss), bits = e->text.nats / log(2) / e->text.bytes;
    const TextLine tokens = json_figure_int(json, "tokens", (int64_t)e->loss.y, "%lld"),
                   loss = json_figure_real(json, "loss", value, "%.6f nats/token"),
                   error = json_figure_real(json, "loss_95", ratio_error(&e->loss),
                                            " ± %.6f (95%%, windows as samples)"),
                   perplexity = json_figure_real(json, "perplexity", exp(value), value < 20 ? "%.4f" : "%.4g"),
                   per_byte = json_figure_real(json, "bits_per_byte", bits, "%.6f");
    json_put_int(json, "bytes", (int64_t)e->text.bytes);
    json_put_int(json, "words", (int64_t)e->text.words);
    printf("loss        %s%s\nperplexity  %s%s%s\ntokens      %s\nspeed       %.0f tokens/s\n", loss.text, error.text,
           perplexity.text, isnan(bits) ? "" : "\nbits/byte   ", per_byte.text, tokens.text,
           seconds > 0 ? e->loss.y / seconds : 0);
    report_shards(json, e);
    if (e->o->by_position) report_positions(json, e);
}

static void begin_json(JsonFile* json, const Evaluation* e) {
    char* data = join_strings(&e->o->recipe.data, ' ');
    json_put_text(json, "data", data);
    free(data);
    json_put_text(json, "model", e->model->file);
    json_put_int(json, "step", e->model->info.step);
    json_put_text(json, "protocol", e->stride ? "every token once" : "random windows");
    json_put_int(json, "seq", e->T);
    json_put_int(json, e->stride ? "stride" : "seed", e->stride ? e->stride : e->o->recipe.seed);
    json_put_open(json, "window", '[');
}

// Opens the tokenizer for bits/byte: --tokenizer, or the checkpoint's. Without either, prints the reason. Fails if
// --tokenizer is given and cannot be used, or if the shards were made with another.
static bool find_tokenizer(Evaluation* e, TostError* err) {
    const CheckpointInfo* info = &e->model->info;
    const Tokenizer* t = e->tokenizer = loaded_model_tokenizer(e->model, e->o->tokenizer, err);
    if (!t && e->o->tokenizer) return false;
    if (!t && comm_rank(e->model->comm) == 0) print_line(stderr, "no bits/byte: %s", err->text);
    warn_of_ids(e->data, t ? tokenizer_size(t) : info->config.vocab_size, t);
    if (t) return check_shards(e->data, tokenizer_path(t), tokenizer_hash(t), tokenizer_size(t), err);
    return !info->tokenizer || check_shards(e->data, info->tokenizer, info->tokenizer_hash, 0, err);
}

static bool eval_data(LoadedModel* model, const Options* o, ShardStream* data, TostError* err) {
    if (stream_tokens(data) < 2)
        return tost_error(err, "--data %s: %llu tokens; eval needs at least two", o->recipe.data.strings[0],
                          (unsigned long long)stream_tokens(data));
    const bool first = comm_rank(model->comm) == 0;   // the rank that writes
    Evaluation e = {.model = model, .o = o, .data = data, .progress = progress_new(stderr, !first)};
    plan_windows(&e);
    if (!recipe_check_pass(e.batch, e.T, o->recipe.chunk, err)) return false;

    JsonFile json = {0};
    e.shard = xcalloc((size_t)data->count, sizeof *e.shard);
    bool ok = find_tokenizer(&e, err) && loaded_model_create(model, &o->recipe, e.batch, e.T, err)
              && json_file_open(&json, first ? o->json : NULL, "eval", err);
    ok = comm_agree(model->comm, ok, err);
    if (ok) {
        if (first) print_line(stderr, "%s, step %lld; shards: %d; windows: %llu of %d tokens", model->file,
                   (long long)model->info.step, data->count, (unsigned long long)e.count, e.T);
        begin_json(&json, &e);
        ok = score(&e, &json, err) && loaded_model_check_loss(model, e.loss.x, err);
        json_put_close(&json, ']');
    }
    if (ok && first) report(&json, &e, now_seconds() - e.progress.started);
    ok = json_file_close(&json, ok, err) && ok;
    tokenizer_free(e.tokenizer);
    free(e.shard);
    return ok;
}

static bool check_lengths(const LoadedModel* model, const Options* o, TostError* err) {
    const int block = model->info.config.block_size, T = o->recipe.seq ? o->recipe.seq : block;
    if (T > tost_max_seq(&model->info.config))
        return tost_error(err, "--seq %d is longer than the block size %d of %s", T, block, model->file);
    return o->stride <= T || tost_error(err, "--stride %d is longer than the window of %d tokens", o->stride, T);
}

int command_eval(const Options* o, TostComm* comm, const TostEngine* engine) {
    TostError err;
    LoadedModel model;
    ShardStream data = {0};
    signals_ignore_write_errors();
    uint32_t crc = 0;
    bool ok = loaded_model_find(&model, o->model, engine, &err) && check_lengths(&model, o, &err);
    model.comm = comm;
    signals_catch(NULL);
    if (ok && o->recipe.data.count)
        ok = stream_open(&data, &o->recipe.data, (uint32_t)model.info.config.vocab_size, &err)
             && stream_crc(&crc, &data, &err);
    ok = comm_agree(comm, ok, &err)
         && comm_same(comm, crc, "the shards of --data differ from those of rank 0: give all hosts the same files",
                      &err)
         && comm_same(comm, (uint64_t)model.info.step, "the checkpoint of --model is of another step than on rank "
                      "0: all hosts must see the same files", &err)
         && (o->recipe.data.count ? eval_data(&model, o, &data, &err) : eval_task(&model, o, &err));
    ok = comm_agree(comm, ok, &err);
    stream_close(&data);
    loaded_model_free(&model);
    const int status = ok ? 0 : print_error(&err);
    return signals_received() ? 128 + signals_received() : status;
}
