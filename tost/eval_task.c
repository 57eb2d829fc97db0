// eval_task.c: scores the examples of a task in batches with the recurrent decode and prints accuracy and loss.
#include "eval_task.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval_report.h"
#include "examples.h"
#include "json_write.h"
#include "progress.h"
#include "sampler.h"

enum { GREEDY = 10 };   // tokens generated after a LAMBADA context, as in the published protocol

typedef struct {
    int       context;             // context tokens used
    double    nats[MAX_CHOICES];   // negative log-likelihood of each choice
    int       n_generated;         // LAMBADA: max(GREEDY, tokens of the word)
    uint32_t* generated;
} Outcome;

typedef struct { int context, longest; size_t index; } Key;   // of an example, for sorting

typedef struct {
    LoadedModel*     model;
    Task             task;
    const Tokenizer* tokenizer;
    Examples         examples;
    Outcome*         outcome;      // (examples)
    Key*             key;          // (examples) in the order of processing
    int              choices;      // of every example
    int              limit;        // longest sequence in tokens
    int              batch;        // examples per pass
    int              max_seq;
} TaskRun;

static int longest_choice(const Example* e) {
    int longest = 0;
    for (int i = 0; i < e->choices; i++) longest = e->length[i] > longest ? e->length[i] : longest;
    return longest;
}

static int greedy_tokens(const TaskRun* r, const Example* e) {
    if (r->task != TASK_LAMBADA) return 0;
    return e->length[0] > GREEDY ? e->length[0] : GREEDY;
}

// ---------------------------------------------------------------------------------------------
// Order of processing: examples with contexts of equal length are batched, so that contexts need no padding

static int compare_keys(const void* x, const void* y) {
    const Key *a = x, *b = y;
    if (a->context != b->context) return a->context < b->context ? -1 : 1;
    if (a->longest != b->longest) return a->longest < b->longest ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

// Truncates contexts on the left so that context and continuation fit in `limit`, and sorts the examples. The last
// context token is an input of the scoring pass, since it predicts the first token of each choice; so a sequence has
// context - 1 + longest positions.
static bool plan(TaskRun* r, const Options* o, TostError* err) {
    const size_t n = r->examples.count;
    r->outcome = xcalloc(n, sizeof *r->outcome);
    r->key = xcalloc(n, sizeof *r->key);
    r->max_seq = 1;
    for (size_t i = 0; i < n; i++) {
        const Example* e = &r->examples.example[i];
        const int longest = longest_choice(e), greedy = greedy_tokens(r, e);
        const int after = longest > greedy ? longest : greedy;
        if (after > r->limit)
            return tost_error(err, "%s line %d: %d tokens after the context, but sequences have at most %d; use a "
                              "longer --seq or another model", o->files[0], e->line, after, r->limit);
        const int room = r->limit + 1 - after, context = e->context < room ? e->context : room;
        r->outcome[i].context = context;
        r->key[i] = (Key){context, longest, i};
        if (context - 1 > r->max_seq) r->max_seq = context - 1;
        if (longest > r->max_seq) r->max_seq = longest;
    }
    qsort(r->key, n, sizeof *r->key, compare_keys);
    r->choices = r->examples.example[0].choices;
    // Default batch: enough rows for efficient matrix products at moderate memory use.
    enum { ROWS = 8192, MAX_BATCH = 64 };
    const int by_rows = ROWS / r->max_seq < MAX_BATCH ? ROWS / r->max_seq : MAX_BATCH;
    const int sequences = option_given(o, "batch") ? o->batch : by_rows;
    r->batch = sequences > r->choices ? sequences / r->choices : 1;
    if ((size_t)r->batch > n) r->batch = (int)n;
    return options_check_pass(r->batch * r->choices, r->max_seq, err);
}

// Size of the batch that starts with key `first`: examples with contexts of equal length.
static int batch_size(const TaskRun* r, size_t first) {
    int n = 1;
    const Key* key = &r->key[first];
    while (n < r->batch && first + n < r->examples.count && key[n].context == key->context) n++;
    return n;
}

// ---------------------------------------------------------------------------------------------
// Scoring a batch of n examples

// Starts decoding with all but the last token of each context.
static void read_contexts(const TaskRun* r, const Key* key, int n) {
    const int T = key->context - 1;
    int32_t* prompts = xmalloc(((size_t)n * T + 1) * sizeof *prompts);
    for (int i = 0; i < n; i++) {
        const Example* e = &r->examples.example[key[i].index];
        for (int t = 0; t < T; t++) prompts[(size_t)i * T + t] = (int32_t)e->ids[e->context - key->context + t];
    }
    r->model->engine->decode_begin(NULL, r->model->model, prompts, n, T);
    free(prompts);
}

// Inputs: the last context token and all but the last token of the choice; shorter choices are padded.
static bool score_choices(TaskRun* r, const Key* key, int n) {
    const int E = r->choices;
    int T = 0;
    for (int i = 0; i < n; i++) T = key[i].longest > T ? key[i].longest : T;
    const size_t rows = (size_t)n * E * T;
    int32_t *tokens = xcalloc(rows, sizeof *tokens), *targets = xmalloc(rows * sizeof *targets);
    double* losses = xmalloc(rows * sizeof *losses);
    for (size_t row = 0; row < rows; row++) targets[row] = -1;
    for (int i = 0; i < n; i++) {
        const Example* e = &r->examples.example[key[i].index];
        const uint32_t* ids = e->ids + e->context;
        for (int c = 0; c < E; ids += e->length[c++]) {
            const size_t row = ((size_t)i * E + c) * T;
            tokens[row] = (int32_t)e->ids[e->context - 1];
            for (int k = 1; k < e->length[c]; k++) tokens[row + k] = (int32_t)ids[k - 1];
            for (int k = 0; k < e->length[c]; k++) targets[row + k] = (int32_t)ids[k];
        }
    }
    r->model->engine->decode_score(losses, r->model->model, tokens, targets, E, T);
    bool finite = true;
    for (size_t row = 0; row < rows; row++) {
        r->outcome[key[row / T / E].index].nats[row / T % E] += losses[row];
        finite = finite && isfinite(losses[row]);
    }
    free(tokens);
    free(targets);
    free(losses);
    return finite;
}

// Decodes greedily, starting with the last token of each context. Returns false if the logits are NaN.
static bool generate_greedily(TaskRun* r, const Key* key, int n) {
    const int V = r->model->info.config.vocab_size, n_ids = tokenizer_size(r->tokenizer);
    float* logits = xmalloc((size_t)n * V * sizeof *logits);
    int32_t* tokens = xmalloc((size_t)n * sizeof *tokens);
    int steps = 0;
    bool finite = true;
    for (int i = 0; i < n; i++) {
        const Example* e = &r->examples.example[key[i].index];
        Outcome* out = &r->outcome[key[i].index];
        out->n_generated = greedy_tokens(r, e);
        out->generated = xcalloc((size_t)out->n_generated, sizeof *out->generated);
        steps = out->n_generated > steps ? out->n_generated : steps;
        tokens[i] = (int32_t)e->ids[e->context - 1];
    }
    for (int s = 0; s < steps && finite; s++) {
        r->model->engine->decode_step(logits, r->model->model, tokens);
        for (int i = 0; i < n; i++) {
            Outcome* out = &r->outcome[key[i].index];
            tokens[i] = argmax(logits + (size_t)i * V, n_ids);
            finite = finite && tokens[i] >= 0;
            if (s < out->n_generated) out->generated[s] = (uint32_t)tokens[i];
        }
    }
    free(logits);
    free(tokens);
    return finite;
}

static bool score_all(TaskRun* r, TostError* err) {
    const size_t count = r->examples.count;
    double work = 0, done = 0;
    for (size_t i = 0; i < count; i++) work += r->key[i].context + r->choices * r->key[i].longest;
    Progress progress = progress_new(stderr, false);
    Ratio loss = {0};
    bool finite = true;
    for (size_t first = 0; first < count && finite;) {
        const Key* key = &r->key[first];
        const int n = batch_size(r, first);
        read_contexts(r, key, n);
        finite = score_choices(r, key, n) && (r->task != TASK_LAMBADA || generate_greedily(r, key, n));
        for (int i = 0; i < n; i++) {
            const Example* e = &r->examples.example[key[i].index];
            ratio_add(&loss, r->outcome[key[i].index].nats[e->label], e->length[e->label]);
            done += key[i].context + r->choices * key[i].longest;
        }
        first += (size_t)n;
        progress_show(&progress, done / work, "loss %.4f", ratio_value(&loss));
    }
    progress_erase(&progress);
    return finite || tost_error(err, "%s: the loss is not finite; the weights have diverged: use an earlier checkpoint",
                                r->model->file);
}

// ---------------------------------------------------------------------------------------------
// Metrics

// How an example is judged to be correct.
typedef enum { WORD_EXACT, WORD_WITHIN, BY_TOKEN, BY_BYTE, BY_SUM } Rule;
enum { MAX_METRICS = 3 };

typedef struct { const char* name; Rule rule; const char* about; } Metric;

static const struct { int n; Metric metric[MAX_METRICS]; } metrics[TASKS] = {
    [TASK_LAMBADA] = {2, {
        {"accuracy", WORD_EXACT, "greedy decoding gives the tokens of the last word"},
        {"accuracy_within_10", WORD_WITHIN, "10 greedy tokens contain the last word, ignoring ASCII case"}}},
    [TASK_HELLASWAG] = {3, {
        {"accuracy", BY_TOKEN, "highest log-likelihood per token"},
        {"accuracy_byte", BY_BYTE, "highest log-likelihood per byte"},
        {"accuracy_sum", BY_SUM, "highest log-likelihood of the choice"}}},
    [TASK_CBT] = {1, {
        {"accuracy", BY_SUM, "highest log-likelihood of the text"}}},
};

// The choice with the smallest loss; the first one on ties.
static int best_choice(const Example* e, const Outcome* out, Rule rule) {
    int best = 0;
    double least = INFINITY;
    for (int i = 0; i < e->choices; i++) {
        const int size = rule == BY_TOKEN ? e->length[i] : rule == BY_BYTE ? e->bytes[i] : 1;
        const double loss = out->nats[i] / size;
        if (loss < least) {
            least = loss;
            best = i;
        }
    }
    return best;
}

// The text of the first n generated tokens, without <|endoftext|>. free()
static Bytes generated_text(const TaskRun* r, const Outcome* out, int n) {
    Bytes text = {xstrdup(""), 0};
    for (int i = 0; i < n; i++) {
        size_t len;
        if ((int)out->generated[i] == tokenizer_eot(r->tokenizer)) continue;
        const char* piece = tokenizer_piece(r->tokenizer, out->generated[i], &len);
        text.data = xrealloc(text.data, text.size + len + 1);
        memcpy(text.data + text.size, piece, len);
        text.size += len;
    }
    text.data[text.size] = 0;
    return text;
}

static bool contains_word(const TaskRun* r, const Example* e, const Outcome* out) {
    Bytes text = generated_text(r, out, GREEDY);
    const size_t n = strlen(e->word);
    bool found = false;
    for (size_t at = 0; at + n <= text.size && !found; at++) {
        size_t i = 0;
        while (i < n && tolower((unsigned char)text.data[at + i]) == tolower((unsigned char)e->word[i])) i++;
        found = i == n;
    }
    free(text.data);
    return found;
}

static bool is_correct(const TaskRun* r, size_t i, Rule rule) {
    const Example* e = &r->examples.example[i];
    const Outcome* out = &r->outcome[i];
    if (rule == WORD_EXACT)
        return memcmp(out->generated, e->ids + e->context, (size_t)e->length[0] * sizeof *e->ids) == 0;
    if (rule == WORD_WITHIN) return contains_word(r, e, out);
    return best_choice(e, out, rule) == e->label;
}

static void write_example(JsonFile* json, const TaskRun* r, size_t i) {
    const Example* e = &r->examples.example[i];
    const Outcome* out = &r->outcome[i];
    json_put_open(json, NULL, '{');
    json_put_int(json, "line", e->line);
    json_put_int(json, "context", out->context);
    if (e->word) {
        Bytes text = generated_text(r, out, GREEDY);
        json_put_text(json, "word", e->word);
        json_put_bytes(json, "written", text.data, text.size);
        free(text.data);
    } else json_put_int(json, "label", e->label);
    json_put_open(json, "tokens", '[');
    for (int c = 0; c < e->choices; c++) json_put_int(json, NULL, e->length[c]);
    json_put_close(json, ']');
    json_put_open(json, "nats", '[');
    for (int c = 0; c < e->choices; c++) json_put_real(json, NULL, out->nats[c]);
    json_put_close(json, ']');
    for (int f = 0; f < metrics[r->task].n; f++)
        json_put_bool(json, metrics[r->task].metric[f].name, is_correct(r, i, metrics[r->task].metric[f].rule));
    json_put_close(json, '}');
}

static void report_metric(JsonFile* json, const TaskRun* r, const Metric* f) {
    int64_t hits = 0;
    for (size_t i = 0; i < r->examples.count; i++) hits += is_correct(r, i, f->rule);
    const double share = (double)hits / (double)r->examples.count;
    const Interval interval = share_interval(hits, (int64_t)r->examples.count);
    printf("%-18s  %.4f  (95%%: %.4f to %.4f)  %s\n", f->name, share, interval.low, interval.high, f->about);
    char* key = xasprintf("%s_95", f->name);
    json_put_real(json, f->name, share);
    json_put_open(json, key, '[');
    json_put_real(json, NULL, interval.low);
    json_put_real(json, NULL, interval.high);
    json_put_close(json, ']');
    free(key);
}

static void report(JsonFile* json, const TaskRun* r, const Options* o, double seconds) {
    Ratio ratio = {0};
    for (size_t i = 0; i < r->examples.count; i++) {
        const Example* e = &r->examples.example[i];
        ratio_add(&ratio, r->outcome[i].nats[e->label], e->length[e->label]);
    }
    const double loss = ratio_value(&ratio), error = ratio_error(&ratio);
    const char* of = r->task == TASK_LAMBADA ? "the last word" : "the correct choice";
    json_put_text(json, "task", task_name(r->task));
    json_put_text(json, "file", o->files[0]);
    json_put_text(json, "model", r->model->file);
    json_put_int(json, "step", r->model->info.step);
    json_put_text(json, "tokenizer", tokenizer_path(r->tokenizer));
    json_put_int(json, "seq", r->limit);
    json_put_int(json, "examples", (int64_t)r->examples.count);
    for (int f = 0; f < metrics[r->task].n; f++) report_metric(json, r, &metrics[r->task].metric[f]);
    if (isfinite(error)) {
        printf("%-18s  %.4f ± %.4f nats/token of %s\n", "loss", loss, error, of);
        printf("%-18s  %.4f  (95%%: %.4f to %.4f)\n", "perplexity", exp(loss), exp(loss - error),
               exp(loss + error));
    } else {
        printf("%-18s  %.4f nats/token of %s\n", "loss", loss, of);
        printf("%-18s  %.4f\n", "perplexity", exp(loss));
    }
    printf("%-18s  %zu in %.1f s\n", "examples", r->examples.count, seconds);
    json_put_real(json, "loss", loss);
    json_put_real(json, "loss_95", error);
    json_put_real(json, "perplexity", exp(loss));
    json_put_open(json, "example", '[');
    for (size_t i = 0; i < r->examples.count; i++) write_example(json, r, i);
    json_put_close(json, ']');
}

// ---------------------------------------------------------------------------------------------

static void task_free(TaskRun* r) {
    for (size_t i = 0; r->outcome && i < r->examples.count; i++) free(r->outcome[i].generated);
    free(r->outcome);
    free(r->key);
    examples_free(&r->examples);
}

bool eval_task(LoadedModel* model, const Options* o, TostError* err) {
    TaskRun r = {.model = model, .task = (Task)o->task, .limit = o->seq ? o->seq : model->info.config.block_size};
    JsonFile json = {0};
    Tokenizer* tokenizer = loaded_model_tokenizer(model, o, err);
    r.tokenizer = tokenizer;
    bool ok = tokenizer && examples_read(&r.examples, r.task, o->files[0], tokenizer, err) && plan(&r, o, err)
              && loaded_model_create(model, o, r.batch * r.choices, r.max_seq, false, err)
              && json_file_open(&json, o->json, "eval", o->force, err);
    if (ok) {
        print_line(stderr, "%s, step %lld; examples of %s in %s: %zu", model->file, (long long)model->info.step,
                   task_name(r.task), o->files[0], r.examples.count);
        if (r.examples.mark) print_line(stderr, "%s: skipped the byte order mark at its beginning", o->files[0]);
        const double start = now_seconds();
        ok = score_all(&r, err);
        if (ok) report(&json, &r, o, now_seconds() - start);
    }
    ok = json_file_close(&json, ok, err) && ok;
    task_free(&r);
    tokenizer_free(tokenizer);
    return ok;
}
