// eval_task.c: scores examples in batches and prints accuracy and loss.
#include "base/clock.h"
#include "base/json_write.h"
#include "base/signals.h"
#include "commands/commands.h"
#include "commands/intervals.h"
#include "commands/examples.h"
#include "data/documents.h"
#include "run/progress.h"
#include "run/sampler.h"

enum { WITHIN = 10 };   // tokens generated after the context of an example with one choice

// All zero on the ranks that have not computed it.
typedef struct {
    double   nats[MAX_CHOICES];   // negative log-likelihood of each choice
    int      exact;               // 1: greedy decoding gives the only choice
    int      written;             // number of tokens generated after the context
    uint32_t text[WITHIN];        // these tokens
} Score;

// Choices of an example that follow the same context tokens. Sorted by these fields.
typedef struct { int choices, context, longest, index, first; } Key;

typedef struct {
    LoadedModel*     model;
    const Options*   o;
    Tokenizer*       tokenizer;
    Examples         examples;
    bool             single;       // examples have one choice
    Score*           score;        // (examples)
    Key*             key;          // (n_keys) in the order of processing
    size_t           n_keys;
    int              limit;        // longest sequence in tokens
    int              batch;        // examples per pass
    int              max_seq;
} TaskRun;

static const Example* example_of(const TaskRun* task, const Key* key) { return &task->examples.example[key->index]; }

// ---- Order of processing: examples with contexts of equal length are batched, so that contexts need no padding ----

static int compare_keys(const void* x, const void* y) {
    const int *a = x, *b = y;
    size_t i = 0;
    while (i + 1 < sizeof(Key) / sizeof *a && a[i] == b[i]) i++;
    return (a[i] > b[i]) - (a[i] < b[i]);
}

// Adds choices first … first + choices - 1 of an example. Truncates the context on the left so that it and the longest
// of them fit in `limit`: the last context token is an input of the scoring pass, since it predicts the first token of
// each choice; so a sequence has context - 1 + longest positions.
static bool add_key(TaskRun* task, int index, int first, int choices, TostError* err) {
    const Example* e = &task->examples.example[index];
    int longest = 0;
    for (int i = first; i < first + choices; i++) longest = e->length[i] > longest ? e->length[i] : longest;
    if (longest > task->limit)
        return tost_error(err, "%s line %d: a choice of %d tokens, but sequences have at most %d; use a longer --seq "
                          "or another model", task->o->task, e->line, longest, task->limit);
    const int room = task->limit - longest + 1, context = e->context < room ? e->context : room;
    // As in lm-evaluation-harness, each choice follows as much of the context as fits with it.
    if (context < e->context && choices > 1) {
        for (int i = first; i < first + choices; i++)
            if (!add_key(task, index, i, 1, err)) return false;
        return true;
    }
    task->key[task->n_keys++] = (Key){choices, context, longest, index, first};
    const int seq = context - 1 > longest ? context - 1 : longest;
    task->max_seq = seq > task->max_seq ? seq : task->max_seq;
    return true;
}

static bool plan(TaskRun* task, TostError* err) {
    const Examples* e = &task->examples;
    task->single = e->choices == 1;
    task->score = xcalloc(e->count, sizeof *task->score);
    task->key = xcalloc(e->count * (size_t)e->choices, sizeof *task->key);
    task->max_seq = 1;
    for (size_t i = 0; i < e->count; i++)
        if (!add_key(task, (int)i, 0, e->example[i].choices, err)) return false;
    qsort(task->key, task->n_keys, sizeof *task->key, compare_keys);
    // Default batch: enough rows for efficient matrix products at moderate memory use.
    enum { ROWS = 8192, MAX_BATCH = 64 };
    const int by_rows = ROWS / task->max_seq < MAX_BATCH ? ROWS / task->max_seq : MAX_BATCH;
    const int sequences = recipe_given(&task->o->recipe, RECIPE_batch) ? task->o->recipe.batch : by_rows;
    task->batch = sequences > e->choices ? sequences / e->choices : 1;
    if ((size_t)task->batch > e->count) task->batch = (int)e->count;
    return recipe_check_pass(task->batch * e->choices, task->max_seq, 0, err);
}

// Size of the batch that starts with key `first`: contexts of equal length, equal numbers of choices.
static int batch_size(const TaskRun* task, size_t first) {
    int n = 1;
    const Key* key = &task->key[first];
    while (n < task->batch && first + n < task->n_keys && key[n].context == key->context
           && key[n].choices == key->choices) n++;
    return n;
}

// ---- Scoring a batch of n keys ----

// Starts decoding with all but the last token of each context.
static void read_contexts(const TaskRun* task, const Key* key, int n) {
    const int T = key->context - 1;
    int32_t* prompts = xmalloc(((size_t)n * T + 1) * sizeof *prompts);
    for (int i = 0; i < n; i++) {
        const Example* e = example_of(task, &key[i]);
        memcpy(prompts + (size_t)i * T, e->ids + e->context - key->context, (size_t)T * sizeof *prompts);
    }
    chunks_begin(&task->model->chunks, n);
    chunks_read(NULL, &task->model->chunks, prompts, T);
    free(prompts);
}

// Inputs: the last context token and all but the last token of the choice; shorter choices are padded.
static bool score_choices(TaskRun* task, const Key* key, int n) {
    const int E = key->choices;
    int T = 0;
    for (int i = 0; i < n; i++) T = key[i].longest > T ? key[i].longest : T;
    const size_t rows = (size_t)n * E * T;
    int32_t *tokens = xcalloc(rows, sizeof *tokens), *targets = xmalloc(rows * sizeof *targets);
    double* losses = xmalloc(rows * sizeof *losses);
    for (size_t row = 0; row < rows; row++) targets[row] = -1;
    for (int i = 0; i < n; i++) {
        const Example* e = example_of(task, &key[i]);
        const uint32_t* ids = e->ids + e->context;
        for (int c = 0; c < key[i].first; c++) ids += e->length[c];
        for (int c = 0; c < E; ids += e->length[key[i].first + c++]) {
            const size_t row = ((size_t)i * E + c) * T, length = (size_t)e->length[key[i].first + c];
            tokens[row] = (int32_t)e->ids[e->context - 1];
            memcpy(tokens + row + 1, ids, (length - 1) * sizeof *ids);
            memcpy(targets + row, ids, length * sizeof *ids);
        }
    }
    chunks_score(losses, &task->model->chunks, tokens, targets, E, T);
    bool finite = true;
    for (size_t row = 0; row < rows; row++) {
        const Key* of = &key[row / T / E];
        task->score[of->index].nats[of->first + row / T % E] += losses[row];
        finite = finite && isfinite(losses[row]);
    }
    free(tokens);
    free(targets);
    free(losses);
    return finite;
}

// Decodes greedily, starting with the last token of each context. Returns false if the logits are NaN.
static bool generate_greedily(TaskRun* task, const Key* key, int n) {
    const int V = task->model->info.config.vocab_size, n_ids = tokenizer_size(task->tokenizer);
    const int room = task->limit - (key->context - 1);
    float* logits = xmalloc((size_t)n * V * sizeof *logits);
    int32_t* tokens = xmalloc((size_t)n * sizeof *tokens);
    int steps = WITHIN;
    bool finite = true;
    for (int i = 0; i < n; i++) {
        const Example* e = example_of(task, &key[i]);
        task->score[key[i].index].exact = 1;
        steps = key[i].longest > steps ? key[i].longest : steps;
        tokens[i] = (int32_t)e->ids[e->context - 1];
    }
    for (int s = 0; s < steps && s < room && finite; s++) {
        chunks_read(logits, &task->model->chunks, tokens, 1);
        for (int i = 0; i < n; i++) {
            const Example* e = example_of(task, &key[i]);
            Score* out = &task->score[key[i].index];
            tokens[i] = argmax(logits + (size_t)i * V, n_ids);
            finite = finite && tokens[i] >= 0;
            if (s < WITHIN) out->text[out->written++] = (uint32_t)tokens[i];
            if (s < key[i].longest && (uint32_t)tokens[i] != e->ids[e->context + s]) out->exact = 0;
        }
    }
    free(logits);
    free(tokens);
    return finite;
}

// Every byte of the scores was computed by one rank and is 0 on the others.
static void share_scores(TaskRun* task) {
    const size_t ranks = (size_t)comm_size(task->model->comm), bytes = task->examples.count * sizeof *task->score;
    uint8_t *all = xmalloc(ranks * bytes), *own = (uint8_t*)task->score;
    comm_allgather(task->model->comm, all, own, bytes);
    for (size_t i = 0; i < ranks * bytes; i++) own[i % bytes] |= all[i];
    free(all);
}

// The ranks take batches in turn. Fails after a signal.
static bool score_all(TaskRun* task, TostError* err) {
    TostComm* comm = task->model->comm;
    const int rank = comm_rank(comm), ranks = comm_size(comm);
    Progress progress = progress_new(stderr, rank != 0);
    bool finite = true;
    size_t first = 0;
    for (int turn = 0; first < task->n_keys; turn = (turn + 1) % ranks) {
        if (turn == 0 && comm_any(comm, !finite || signals_received())) break;
        const Key* key = &task->key[first];
        const int n = batch_size(task, first);
        first += (size_t)n;
        if (turn != rank) continue;
        read_contexts(task, key, n);
        finite = score_choices(task, key, n) && (!task->single || generate_greedily(task, key, n));
        progress_show(&progress, (double)first / (double)task->n_keys, "contexts of %d tokens", key->context);
    }
    progress_erase(&progress);
    if (!comm_agree(comm, loaded_model_check_loss(task->model, finite ? 0 : NAN, err), err)) return false;
    if (first < task->n_keys) return tost_error(err, "interrupted: there is no result");
    share_scores(task);
    return true;
}

// ---- Metrics ----

typedef enum { EXACT, CONTAINED, BY_SUM, BY_CHAR, BY_TOKEN } Rule;   // how an example is judged to be correct

static const struct { const char* name; bool single; Rule rule; const char* about; } metrics[] = {
    {"accuracy", true, EXACT, "greedy decoding gives the choice (lm-evaluation-harness: acc of LAMBADA)"},
    {"accuracy_within_10", true, CONTAINED, "10 greedy tokens contain it (ToST's eval_lambada.py)"},
    {"acc", false, BY_SUM, "highest log-likelihood (lm-evaluation-harness: acc)"},
    {"acc_norm", false, BY_CHAR, "highest log-likelihood per character (lm-evaluation-harness: acc_norm)"},
    {"acc_token", false, BY_TOKEN, "highest log-likelihood per token (llm.c, build-nanogpt)"},
};

// The choice with the smallest loss; the first one on ties.
static int best_choice(const Example* e, const Score* out, Rule rule) {
    int best = 0;
    double least = INFINITY;
    for (int i = 0; i < e->choices; i++) {
        const double loss = out->nats[i] / (rule == BY_TOKEN ? e->length[i] : rule == BY_CHAR ? e->chars[i] : 1);
        if (loss < least) {
            least = loss;
            best = i;
        }
    }
    return best;
}

static Bytes text_of(const TaskRun* task, const uint32_t* ids, int n) {
    Bytes text;
    FILE* out = open_memstream(&text.data, &text.size);
    for (int i = 0; i < n; i++) {
        size_t len;
        const char* piece = tokenizer_piece(task->tokenizer, ids[i], &len);
        fwrite(piece, 1, len, out);
    }
    fclose(out);
    return text;
}

// As in the published script, upper and lower case (of ASCII) are the same, and the text of <|endoftext|> counts.
static bool contains_word(const TaskRun* task, const Example* e, const Score* out) {
    Bytes text = text_of(task, out->text, out->written), word = text_of(task, e->ids + e->context, e->length[0]);
    const bool found = strcasestr(text.data, word.data + strspn(word.data, " \t\r\n")) != NULL;
    free(text.data);
    free(word.data);
    return found;
}

static bool is_correct(const TaskRun* task, size_t i, Rule rule) {
    const Example* e = &task->examples.example[i];
    const Score* out = &task->score[i];
    if (rule == EXACT) return out->exact;
    return rule == CONTAINED ? contains_word(task, e, out) : best_choice(e, out, rule) == e->answer;
}

static void write_example(JsonFile* json, const TaskRun* task, size_t i) {
    const Example* e = &task->examples.example[i];
    const Score* out = &task->score[i];
    json_put_open(json, NULL, '{');
    json_put_int(json, "line", e->line);
    json_put_int(json, "context", e->context);
    json_put_int(json, "answer", e->answer);
    json_put_open(json, "tokens", '[');
    for (int c = 0; c < e->choices; c++) json_put_int(json, NULL, e->length[c]);
    json_put_close(json, ']');
    json_put_open(json, "nats", '[');
    for (int c = 0; c < e->choices; c++) json_put_real(json, NULL, out->nats[c]);
    json_put_close(json, ']');
    if (task->single) {
        Bytes text = text_of(task, out->text, out->written);
        json_put_bytes(json, "written", text.data, text.size);
        free(text.data);
    }
    for (size_t m = 0; m < countof(metrics); m++)
        if (metrics[m].single == task->single)
            json_put_bool(json, metrics[m].name, is_correct(task, i, metrics[m].rule));
    json_put_close(json, '}');
}

static void report_metric(JsonFile* json, const TaskRun* task, size_t m) {
    const int64_t n = (int64_t)task->examples.count;
    int64_t hits = 0;
    for (int64_t i = 0; i < n; i++) hits += is_correct(task, (size_t)i, metrics[m].rule);
    const Interval interval = share_interval(hits, n);
    const TextLine share = json_figure_real(json, metrics[m].name, (double)hits / (double)n, "%.4f");
    json_put_open(json, text_line("%s_95", metrics[m].name).text, '[');
    const TextLine low = json_figure_real(json, NULL, interval.low, "%.4f"),
                   high = json_figure_real(json, NULL, interval.high, "%.4f");
    json_put_close(json, ']');
    printf("%-20s  %s  (95%%: %s to %s)  %s\n", metrics[m].name, share.text, low.text, high.text, metrics[m].about);
}

static void report_perplexity(JsonFile* json, const char* name, const char* key, const Ratio* ratio,
                              const char* about) {
    const double value = ratio_value(ratio), error = ratio_error(ratio);
    printf("%-20s  %s", name, json_figure_real(json, key, exp(value), "%.6g").text);
    if (isfinite(error)) printf("  (95%%: %.6g to %.6g)", exp(value - error), exp(value + error));
    printf("%s\n", about);
}

static void report_loss(JsonFile* json, const TaskRun* task) {
    Ratio by_token = {0}, by_word = {0};
    for (size_t i = 0; i < task->examples.count; i++) {
        const Example* e = &task->examples.example[i];
        ratio_add(&by_token, task->score[i].nats[e->answer], e->length[e->answer]);
        ratio_add(&by_word, task->score[i].nats[e->answer], 1);
    }
    const TextLine loss = json_figure_real(json, "loss", ratio_value(&by_token), "%.4f"),
                   error = json_figure_real(json, "loss_95", ratio_error(&by_token), " ± %.4f");
    printf("%-20s  %s%s nats/token of the %s\n", "loss", loss.text, error.text,
           task->single ? "choice" : "correct choice");
    if (task->single)
        report_perplexity(json, "perplexity per word", "perplexity_word", &by_word,
                          "  (lm-evaluation-harness: perplexity)");
    report_perplexity(json, "perplexity per token", "perplexity_token", &by_token, "");
}

static void report(JsonFile* json, const TaskRun* task, double seconds) {
    json_put_text(json, "file", task->o->task);
    json_put_text(json, "model", task->model->file);
    json_put_int(json, "step", task->model->info.step);
    json_put_text(json, "tokenizer", tokenizer_path(task->tokenizer));
    json_put_int(json, "seq", task->limit);
    const TextLine examples = json_figure_int(json, "examples", (int64_t)task->examples.count, "%lld");
    for (size_t m = 0; m < countof(metrics); m++)
        if (metrics[m].single == task->single) report_metric(json, task, m);
    report_loss(json, task);
    printf("%-20s  %s in %.1f s\n", "examples", examples.text, seconds);
    json_put_open(json, "example", '[');
    for (size_t i = 0; i < task->examples.count; i++) write_example(json, task, i);
    json_put_close(json, ']');
}

bool eval_task(LoadedModel* model, const Options* o, TostError* err) {
    const bool first = comm_rank(model->comm) == 0;   // the rank that writes
    TaskRun task = {.model = model, .o = o, .limit = o->recipe.seq ? o->recipe.seq : model->info.config.block_size,
                 .tokenizer = loaded_model_tokenizer(model, o->tokenizer, err)};
    JsonFile json = {0};
    bool ok = task.tokenizer && examples_read(&task.examples, o->task, task.tokenizer, err);
    while (o->limit && task.examples.count > (size_t)o->limit) free(task.examples.example[--task.examples.count].ids);
    ok = ok && plan(&task, err)
              && loaded_model_create(model, &o->recipe, task.batch * task.examples.choices, task.max_seq, err)
              && json_file_open(&json, first ? o->json : NULL, "eval", err);
    ok = comm_agree(model->comm, ok, err)
         && comm_same(model->comm, task.n_keys, "the file of --task differs from that of rank 0: give all hosts the "
                      "same file", err);
    if (ok && first)
        print_line(stderr, "%s, step %lld; examples in %s: %zu", model->file, (long long)model->info.step, o->task,
                   task.examples.count);
    for (size_t i = 0, found = 0; ok && i < task.examples.count && !found; i++)
        if ((found = task.examples.example[i].inside))
            print_warning("%s line %d has " INSIDE_LINE, o->task, task.examples.example[i].line);
    const double start = now_seconds();
    ok = ok && score_all(&task, err);
    if (ok && first) report(&json, &task, now_seconds() - start);
    ok = json_file_close(&json, ok, err) && ok;
    free(task.score);
    free(task.key);
    examples_free(&task.examples);
    tokenizer_free(task.tokenizer);
    return ok;
}
