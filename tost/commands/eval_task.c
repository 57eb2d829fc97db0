// eval_task.c: scores the examples of a task in batches with the recurrent decode and prints accuracy and loss.
#include "commands/eval_task.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/json_write.h"
#include "base/memory.h"
#include "base/text.h"
#include "commands/eval_report.h"
#include "commands/examples.h"
#include "commands/str.h"
#include "run/progress.h"
#include "run/sampler.h"

typedef struct {
    int       context;             // context tokens used for the longest choice
    double    nats[MAX_CHOICES];   // negative log-likelihood of each choice
    uint32_t* generated;           // (greedy) tokens
} Outcome;

// Choices of an example that follow the same context tokens.
typedef struct { int context, longest; size_t index; int first, choices; } Key;

typedef struct {
    LoadedModel*     model;
    TostComm*        comm;         // ranks share the batches
    Task             task;
    const Tokenizer* tokenizer;
    Examples         examples;
    size_t           n;            // examples.count * examples.per
    Outcome*         outcome;      // (n)
    Key*             key;          // (n_keys) in the order of processing
    size_t           n_keys;
    int              choices;      // of every example
    int              limit;        // longest sequence in tokens
    int              batch;        // examples per pass
    int              max_seq;
} TaskRun;

// ---------------------------------------------------------------------------------------------
// Order of processing: examples with contexts of equal length are batched, so that contexts need no padding

static int compare_keys(const void* x, const void* y) {
    const Key *a = x, *b = y;
    if (a->choices != b->choices) return a->choices < b->choices ? -1 : 1;
    if (a->context != b->context) return a->context < b->context ? -1 : 1;
    if (a->longest != b->longest) return a->longest < b->longest ? -1 : 1;
    if (a->index != b->index) return a->index < b->index ? -1 : 1;
    return a->first < b->first ? -1 : a->first > b->first;
}

// Adds choices first … first + choices - 1 of an example. Truncates the context on the left so that it and the longest
// of them fit in `limit`: the last context token is an input of the scoring pass, since it predicts the first token of
// each choice; so a sequence has context - 1 + longest positions.
static bool add_key(TaskRun* r, size_t index, int first, int choices, const Options* o, TostError* err) {
    const Example* e = &r->examples.example[index];
    int longest = 0;
    for (int i = first; i < first + choices; i++) longest = e->length[i] > longest ? e->length[i] : longest;
    const int after = longest > e->greedy ? longest : e->greedy;
    if (after > r->limit)
        return tost_error(err, "%s line %d: %d tokens after the context, but sequences have at most %d; use a longer "
                          "--seq or another model", o->files[0], e->line, after, r->limit);
    const int room = r->limit + 1 - after, context = e->context < room ? e->context : room;
    // As in lm-evaluation-harness, each choice follows as much of the context as fits with it.
    if (context < e->context && choices > 1) {
        for (int i = first; i < first + choices; i++)
            if (!add_key(r, index, i, 1, o, err)) return false;
        r->outcome[index].context = context;
        return true;
    }
    r->outcome[index].context = context;
    r->key[r->n_keys++] = (Key){context, longest, index, first, choices};
    if (context - 1 > r->max_seq) r->max_seq = context - 1;
    if (longest > r->max_seq) r->max_seq = longest;
    return true;
}

static bool plan(TaskRun* r, const Options* o, TostError* err) {
    r->n = r->examples.count * (size_t)r->examples.per;
    r->choices = r->examples.example[0].choices;
    r->outcome = xcalloc(r->n, sizeof *r->outcome);
    r->key = xcalloc(r->n * (size_t)r->choices, sizeof *r->key);
    r->max_seq = 1;
    for (size_t i = 0; i < r->n; i++)
        if (!add_key(r, i, 0, r->choices, o, err)) return false;
    qsort(r->key, r->n_keys, sizeof *r->key, compare_keys);
    // Default batch: enough rows for efficient matrix products at moderate memory use.
    enum { ROWS = 8192, MAX_BATCH = 64 };
    const int by_rows = ROWS / r->max_seq < MAX_BATCH ? ROWS / r->max_seq : MAX_BATCH;
    const int sequences = option_given(o, "batch") ? o->batch : by_rows;
    r->batch = sequences > r->choices ? sequences / r->choices : 1;
    if ((size_t)r->batch > r->n) r->batch = (int)r->n;
    return options_check_pass(r->batch * r->choices, r->max_seq, 0, err);
}

// Size of the batch that starts with key `first`: contexts of equal length, equal numbers of choices.
static int batch_size(const TaskRun* r, size_t first) {
    int n = 1;
    const Key* key = &r->key[first];
    while (n < r->batch && first + n < r->n_keys && key[n].context == key->context && key[n].choices == key->choices)
        n++;
    return n;
}

// ---------------------------------------------------------------------------------------------
// Scoring a batch of n keys

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
    const int E = key->choices;
    int T = 0;
    for (int i = 0; i < n; i++) T = key[i].longest > T ? key[i].longest : T;
    const size_t rows = (size_t)n * E * T;
    int32_t *tokens = xcalloc(rows, sizeof *tokens), *targets = xmalloc(rows * sizeof *targets);
    double* losses = xmalloc(rows * sizeof *losses);
    for (size_t row = 0; row < rows; row++) targets[row] = -1;
    for (int i = 0; i < n; i++) {
        const Example* e = &r->examples.example[key[i].index];
        const uint32_t* ids = e->ids + e->context;
        for (int c = 0; c < key[i].first; c++) ids += e->length[c];
        for (int c = 0; c < E; c++) {
            const size_t row = ((size_t)i * E + c) * T;
            const int length = e->length[key[i].first + c];
            tokens[row] = (int32_t)e->ids[e->context - 1];
            for (int k = 1; k < length; k++) tokens[row + k] = (int32_t)ids[k - 1];
            for (int k = 0; k < length; k++) targets[row + k] = (int32_t)ids[k];
            ids += length;
        }
    }
    r->model->engine->decode_score(losses, r->model->model, tokens, targets, E, T);
    bool finite = true;
    for (size_t row = 0; row < rows; row++) {
        const Key* of = &key[row / T / E];
        r->outcome[of->index].nats[of->first + row / T % E] += losses[row];
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
        r->outcome[key[i].index].generated = xcalloc((size_t)e->greedy, sizeof(uint32_t));
        steps = e->greedy > steps ? e->greedy : steps;
        tokens[i] = (int32_t)e->ids[e->context - 1];
    }
    for (int s = 0; s < steps && finite; s++) {
        r->model->engine->decode_step(logits, r->model->model, tokens);
        for (int i = 0; i < n; i++) {
            tokens[i] = argmax(logits + (size_t)i * V, n_ids);
            finite = finite && tokens[i] >= 0;
            if (s < r->examples.example[key[i].index].greedy)
                r->outcome[key[i].index].generated[s] = (uint32_t)tokens[i];
        }
    }
    free(logits);
    free(tokens);
    return finite;
}

static int work_of(const Key* key) { return key->context + key->choices * key->longest; }

// Every number of the outcomes was computed by one rank and is 0 on the others: adds them up.
static void share_outcomes(TaskRun* r) {
    const int ranks = comm_size(r->comm);
    size_t tokens = 0, at = 0;
    if (ranks == 1) return;
    for (size_t i = 0; i < r->n; i++) tokens += (size_t)r->examples.example[i].greedy;
    const size_t n = r->n * MAX_CHOICES, bytes = n * sizeof(double) + tokens * sizeof(uint32_t);
    char *own = xcalloc(bytes + 1, 1), *all = xmalloc((size_t)ranks * bytes + 1);
    for (size_t i = 0; i < r->n; i++) {
        Outcome* out = &r->outcome[i];
        const size_t greedy = (size_t)r->examples.example[i].greedy;
        memcpy(own + i * sizeof out->nats, out->nats, sizeof out->nats);
        if (out->generated) memcpy(own + n * sizeof(double) + at, out->generated, greedy * sizeof(uint32_t));
        else if (greedy) out->generated = xcalloc(greedy, sizeof(uint32_t));
        at += greedy * sizeof(uint32_t);
    }
    comm_allgather(r->comm, all, own, bytes);
    for (int k = 0; k < ranks; k++) {
        const char *nats = all + (size_t)k * bytes, *generated = nats + n * sizeof(double);
        if (k == comm_rank(r->comm)) continue;
        for (size_t i = 0; i < r->n; i++) {
            Outcome* out = &r->outcome[i];
            double theirs[MAX_CHOICES];
            memcpy(theirs, nats + i * sizeof theirs, sizeof theirs);
            for (int c = 0; c < MAX_CHOICES; c++) out->nats[c] += theirs[c];
            for (int g = 0; g < r->examples.example[i].greedy; g++, generated += sizeof(uint32_t)) {
                uint32_t token;
                memcpy(&token, generated, sizeof token);
                out->generated[g] += token;
            }
        }
    }
    free(own);
    free(all);
}

static bool score_all(TaskRun* r, TostError* err) {
    const int rank = comm_rank(r->comm), ranks = comm_size(r->comm);
    double work = 0, done = 0;
    for (size_t i = 0; i < r->n_keys; i++) work += work_of(&r->key[i]);
    Progress progress = progress_new(stderr, rank != 0);
    Ratio loss = {0};
    bool finite = true;
    int turn = 0;
    for (size_t first = 0; first < r->n_keys && finite; turn = (turn + 1) % ranks) {
        const Key* key = &r->key[first];
        const int n = batch_size(r, first);
        first += (size_t)n;
        if (turn != rank) continue;
        read_contexts(r, key, n);
        finite = score_choices(r, key, n) && (r->task != TASK_LAMBADA || generate_greedily(r, key, n));
        for (int i = 0; i < n; i++) {
            const Example* e = &r->examples.example[key[i].index];
            if (e->label >= key[i].first && e->label < key[i].first + key[i].choices)
                ratio_add(&loss, r->outcome[key[i].index].nats[e->label], e->length[e->label]);
            done += work_of(&key[i]);
        }
        progress_show(&progress, fmin(1, done * ranks / work), "loss %.4f", ratio_value(&loss));
    }
    progress_erase(&progress);
    if (!finite)
        tost_error(err, "%s: the loss is not finite; the weights have diverged: use an earlier checkpoint",
                   r->model->file);
    if (!comm_agree(r->comm, finite, err)) return false;
    share_outcomes(r);
    return true;
}

// ---------------------------------------------------------------------------------------------
// Metrics

// How an example is judged to be correct.
typedef enum { WORD_EXACT, WORD_WITHIN, BY_TOKEN, BY_CHAR, BY_SUM } Rule;
enum { MAX_METRICS = 3 };

typedef struct { const char* name; Rule rule; const char* about; } Metric;

static const struct { int n; Metric metric[MAX_METRICS]; } metrics[TASKS] = {
    [TASK_LAMBADA] = {2, {
        {"accuracy", WORD_EXACT, "greedy decoding gives the last word (lm-evaluation-harness: acc)"},
        {"accuracy_within_10", WORD_WITHIN, "10 greedy tokens contain the last word (ToST's eval_lambada.py)"}}},
    [TASK_HELLASWAG] = {3, {
        {"acc", BY_SUM, "highest log-likelihood (lm-evaluation-harness: acc)"},
        {"acc_norm", BY_CHAR, "highest log-likelihood per character (lm-evaluation-harness: acc_norm)"},
        {"acc_token", BY_TOKEN, "highest log-likelihood per token (llm.c, build-nanogpt)"}}},
    [TASK_CBT] = {1, {
        {"accuracy", BY_SUM, "highest log-likelihood of the text (ToST's eval_cbt.py)"}}},
};

// Example i of the file, and LAMBADA's prompt of the published script
static size_t at_example(const TaskRun* r, size_t i) { return i * (size_t)r->examples.per; }
static size_t at_prompt(const TaskRun* r, size_t i) { return at_example(r, i) + (size_t)r->examples.per - 1; }

// The choice with the smallest loss; the first one on ties.
static int best_choice(const Example* e, const Outcome* out, Rule rule) {
    int best = 0;
    double least = INFINITY;
    for (int i = 0; i < e->choices; i++) {
        const int size = rule == BY_TOKEN ? e->length[i] : rule == BY_CHAR ? e->chars[i] : 1;
        const double loss = out->nats[i] / size;
        if (loss < least) {
            least = loss;
            best = i;
        }
    }
    return best;
}

// The text of the tokens generated after a prompt. free()
static Bytes generated_text(const TaskRun* r, size_t at) {
    Bytes text = {xstrdup(""), 0};
    for (int i = 0; i < r->examples.example[at].greedy; i++) {
        size_t len;
        const char* piece = tokenizer_piece(r->tokenizer, r->outcome[at].generated[i], &len);
        text.data = xrealloc(text.data, text.size + len + 1);
        memcpy(text.data + text.size, piece, len);
        text.size += len;
    }
    text.data[text.size] = 0;
    return text;
}

// As in the published script, the text of <|endoftext|> counts, and both are lowered.
static bool contains_word(const TaskRun* r, size_t at) {
    Bytes text = generated_text(r, at), lower = text_lower((Span){text.data, text.size});
    Bytes word = text_lower(span_of(r->examples.example[at].word));
    const bool found = memmem(lower.data, lower.size, word.data, word.size) != NULL;
    free(text.data);
    free(lower.data);
    free(word.data);
    return found;
}

static bool is_correct(const TaskRun* r, size_t i, Rule rule) {
    const size_t at = at_example(r, i);
    const Example* e = &r->examples.example[at];
    const Outcome* out = &r->outcome[at];
    if (rule == WORD_EXACT)
        return memcmp(out->generated, e->ids + e->context, (size_t)e->length[0] * sizeof *e->ids) == 0;
    if (rule == WORD_WITHIN) return contains_word(r, at_prompt(r, i));
    return best_choice(e, out, rule) == e->label;
}

static void write_example(JsonFile* json, const TaskRun* r, size_t i) {
    const Example* e = &r->examples.example[at_example(r, i)];
    const Outcome* out = &r->outcome[at_example(r, i)];
    json_put_open(json, NULL, '{');
    json_put_int(json, "line", e->line);
    json_put_int(json, "context", out->context);
    if (e->word) {
        Bytes text = generated_text(r, at_prompt(r, i));
        json_put_text(json, "word", e->word);
        json_put_int(json, "prompt", r->outcome[at_prompt(r, i)].context);
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
    printf("%-20s  %.4f  (95%%: %.4f to %.4f)  %s\n", f->name, share, interval.low, interval.high, f->about);
    char* key = xasprintf("%s_95", f->name);
    json_put_real(json, f->name, share);
    json_put_open(json, key, '[');
    json_put_real(json, NULL, interval.low);
    json_put_real(json, NULL, interval.high);
    json_put_close(json, ']');
    free(key);
}

static void report_perplexity(JsonFile* json, const char* name, const char* key, const Ratio* r, const char* about) {
    const double value = ratio_value(r), error = ratio_error(r);
    printf("%-20s  %.4f", name, exp(value));
    if (isfinite(error)) printf("  (95%%: %.4f to %.4f)", exp(value - error), exp(value + error));
    printf("%s%s\n", *about ? "  " : "", about);
    json_put_real(json, key, exp(value));
}

static void report_loss(JsonFile* json, const TaskRun* r) {
    Ratio by_token = {0}, by_word = {0};
    for (size_t i = 0; i < r->examples.count; i++) {
        const Example* e = &r->examples.example[at_example(r, i)];
        const double nats = r->outcome[at_example(r, i)].nats[e->label];
        ratio_add(&by_token, nats, e->length[e->label]);
        ratio_add(&by_word, nats, 1);
    }
    const double error = ratio_error(&by_token);
    printf("%-20s  %.4f", "loss", ratio_value(&by_token));
    if (isfinite(error)) printf(" ± %.4f", error);
    printf(" nats/token of %s\n", r->task == TASK_LAMBADA ? "the last word" : "the correct choice");
    json_put_real(json, "loss", ratio_value(&by_token));
    json_put_real(json, "loss_95", error);
    if (r->task == TASK_LAMBADA)
        report_perplexity(json, "perplexity per word", "perplexity_word", &by_word,
                          "(lm-evaluation-harness: perplexity)");
    report_perplexity(json, "perplexity per token", "perplexity_token", &by_token, "");
}

static void report(JsonFile* json, const TaskRun* r, const Options* o, double seconds) {
    json_put_text(json, "task", task_name(r->task));
    json_put_text(json, "file", o->files[0]);
    json_put_text(json, "model", r->model->file);
    json_put_int(json, "step", r->model->info.step);
    json_put_text(json, "tokenizer", tokenizer_path(r->tokenizer));
    json_put_int(json, "seq", r->limit);
    json_put_int(json, "examples", (int64_t)r->examples.count);
    for (int f = 0; f < metrics[r->task].n; f++) report_metric(json, r, &metrics[r->task].metric[f]);
    report_loss(json, r);
    printf("%-20s  %zu in %.1f s\n", "examples", r->examples.count, seconds);
    json_put_open(json, "example", '[');
    for (size_t i = 0; i < r->examples.count; i++) write_example(json, r, i);
    json_put_close(json, ']');
}

// ---------------------------------------------------------------------------------------------

static void task_free(TaskRun* r) {
    for (size_t i = 0; r->outcome && i < r->n; i++) free(r->outcome[i].generated);
    free(r->outcome);
    free(r->key);
    examples_free(&r->examples);
}

bool eval_task(LoadedModel* model, const Options* o, TostError* err) {
    const bool first = comm_rank(o->comm) == 0;   // the rank that writes
    TaskRun r = {.model = model, .comm = o->comm, .task = (Task)o->task,
                 .limit = o->seq ? o->seq : model->info.config.block_size};
    JsonFile json = {0};
    Tokenizer* tokenizer = loaded_model_tokenizer(model, o, err);
    r.tokenizer = tokenizer;
    bool ok = tokenizer && examples_read(&r.examples, r.task, o->files[0], tokenizer, err) && plan(&r, o, err)
              && loaded_model_create(model, o, r.batch * r.choices, r.max_seq, false, err)
              && json_file_open(&json, first ? o->json : NULL, "eval", o->force, err);
    ok = comm_agree(o->comm, ok, err)
         && comm_same(o->comm, r.n_keys, "the FILE of --task differs from that of rank 0: give all hosts the same file",
                      err);
    if (ok && first) {
        print_line(stderr, "%s, step %lld; examples of %s in %s: %zu", model->file, (long long)model->info.step,
                   task_name(r.task), o->files[0], r.examples.count);
        if (r.examples.prepared)
            print_line(stderr, "%s is the original file: texts are prepared as in lm-evaluation-harness", o->files[0]);
        if (r.examples.mark) print_line(stderr, "%s: skipped the byte order mark at its beginning", o->files[0]);
    }
    const double start = now_seconds();
    ok = ok && score_all(&r, err);
    if (ok && first) report(&json, &r, o, now_seconds() - start);
    ok = json_file_close(&json, ok, err) && ok;
    task_free(&r);
    tokenizer_free(tokenizer);
    return ok;
}
