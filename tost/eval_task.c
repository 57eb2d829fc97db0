// eval_task.c: examples in batches through the recurrent decode, and what comes of them.
#include "eval_task.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval_report.h"
#include "json_write.h"
#include "examples.h"
#include "progress.h"

enum { GREEDY = 10 };   // tokens written after a LAMBADA context: the published protocol

typedef struct {
    int       shared;              // tokens of context that are read
    double    nats[MAX_CHOICES];   // -log likelihood of each ending
    int       n_written;           // LAMBADA: greedy tokens, GREEDY of them or the word's if it has more
    uint32_t* written;
} Outcome;

typedef struct { int shared, longest; size_t index; } Key;   // of an example; sorted, equals stand together

typedef struct {
    LoadedModel*         t;
    Task             task;
    const Tokenizer* tokenizer;
    Examples         passages;
    Outcome*         outcome;      // of each passage
    Key*             key;
    int              endings;      // of every passage of the task
    int              limit;        // longest text in tokens
    int              contexts;     // a pass
    int              max_seq;
} TaskRun;

static int longest_ending(const Example* p) {
    int longest = 0;
    for (int e = 0; e < p->endings; e++) longest = p->length[e] > longest ? p->length[e] : longest;
    return longest;
}

static int greedy_tokens(const TaskRun* r, const Example* p) {
    if (r->task != TASK_LAMBADA) return 0;
    return p->length[0] > GREEDY ? p->length[0] : GREEDY;
}

// ---------------------------------------------------------------------------------------------
// Order: examples of one length are read side by side, without padding

static int compare_keys(const void* x, const void* y) {
    const Key *a = x, *b = y;
    if (a->shared != b->shared) return a->shared < b->shared ? -1 : 1;
    if (a->longest != b->longest) return a->longest < b->longest ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

// Cuts contexts to what fits before their endings, and sorts. The last token of the context is read with the
// endings, whose first token it foretells: shared - 1 + longest positions in all.
static bool plan(TaskRun* r, const Options* o, TostError* err) {
    const size_t n = r->passages.count;
    r->outcome = xcalloc(n, sizeof *r->outcome);
    r->key = xcalloc(n, sizeof *r->key);
    r->max_seq = 1;
    for (size_t i = 0; i < n; i++) {
        const Example* p = &r->passages.passage[i];
        const int longest = longest_ending(p), greedy = greedy_tokens(r, p);
        const int after = longest > greedy ? longest : greedy;
        if (after > r->limit)
            return tost_error(err, "%s line %d: %d tokens after the context, but a text holds %d: a longer "
                              "--seq, or another model, is needed", o->files[0], p->line, after, r->limit);
        const int room = r->limit + 1 - after, shared = p->shared < room ? p->shared : room;
        r->outcome[i].shared = shared;
        r->key[i] = (Key){shared, longest, i};
        if (shared - 1 > r->max_seq) r->max_seq = shared - 1;
        if (longest > r->max_seq) r->max_seq = longest;
    }
    qsort(r->key, n, sizeof *r->key, compare_keys);
    r->endings = r->passages.passage[0].endings;
    // Without --batch: enough rows for long matrix products, few enough for the memory of a small machine.
    enum { ROWS = 8192, MOST = 64 };
    const int by_rows = ROWS / r->max_seq < MOST ? ROWS / r->max_seq : MOST;
    const int batch = option_given(o, "batch") ? o->batch : by_rows;
    r->contexts = batch > r->endings ? batch / r->endings : 1;
    if ((size_t)r->contexts > n) r->contexts = (int)n;
    return options_check_pass(r->contexts * r->endings, r->max_seq, err);
}

// Keys from the first that one pass reads: as long as the first, and at most `contexts`.
static int group_size(const TaskRun* r, size_t first) {
    int n = 1;
    const Key* key = &r->key[first];
    while (n < r->contexts && first + n < r->passages.count && key[n].shared == key->shared) n++;
    return n;
}

// ---------------------------------------------------------------------------------------------
// Scoring

// The key->shared tokens that are read.
static const uint32_t* context_of(const TaskRun* r, const Key* key) {
    const Example* p = &r->passages.passage[key->index];
    return p->ids + (p->shared - key->shared);
}

// States after all of n contexts but their last token.
static void read_contexts(const TaskRun* r, const Key* key, int n) {
    const size_t T = (size_t)key->shared - 1;
    int32_t* prompts = xmalloc((n * T + 1) * sizeof *prompts);
    for (int i = 0; i < n; i++)
        for (size_t t = 0; t < T; t++) prompts[i * T + t] = (int32_t)context_of(r, &key[i])[t];
    r->t->engine->decode_begin(NULL, r->t->model, prompts, n, (int)T);
    free(prompts);
}

// From the context's last token to the token before the ending's last; shorter endings are padded.
static void score_endings(TaskRun* r, const Key* key, int n) {
    const int E = r->endings;
    int T = 0;
    for (int i = 0; i < n; i++) T = key[i].longest > T ? key[i].longest : T;
    const size_t rows = (size_t)n * E * T;
    int32_t *tokens = xcalloc(rows, sizeof *tokens), *targets = xmalloc(rows * sizeof *targets);
    double* losses = xmalloc(rows * sizeof *losses);
    for (size_t row = 0; row < rows; row++) targets[row] = -1;
    for (int i = 0; i < n; i++) {
        const Example* p = &r->passages.passage[key[i].index];
        const uint32_t* ids = p->ids + p->shared;
        for (int e = 0; e < E; ids += p->length[e++]) {
            const size_t row = ((size_t)i * E + e) * T;
            tokens[row] = (int32_t)p->ids[p->shared - 1];
            for (int k = 1; k < p->length[e]; k++) tokens[row + k] = (int32_t)ids[k - 1];
            for (int k = 0; k < p->length[e]; k++) targets[row + k] = (int32_t)ids[k];
        }
    }
    r->t->engine->decode_score(losses, r->t->model, tokens, targets, E, T);
    for (size_t row = 0; row < rows; row++)
        r->outcome[key[row / T / E].index].nats[row / T % E] += losses[row];
    free(tokens);
    free(targets);
    free(losses);
}

// The likeliest token of the tokenizer's; the first of equals.
static uint32_t likeliest(const float* logits, int n) {
    uint32_t best = 0;
    for (int i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = (uint32_t)i;
    return best;
}

// Goes on from the contexts' last tokens, always with the likeliest.
static void write_on(TaskRun* r, const Key* key, int n) {
    const int V = r->t->info.config.vocab_size, n_ids = tokenizer_size(r->tokenizer);
    float* logits = xmalloc((size_t)n * V * sizeof *logits);
    int32_t* tokens = xmalloc((size_t)n * sizeof *tokens);
    int steps = 0;
    for (int i = 0; i < n; i++) {
        const Example* p = &r->passages.passage[key[i].index];
        Outcome* out = &r->outcome[key[i].index];
        out->n_written = greedy_tokens(r, p);
        out->written = xmalloc((size_t)out->n_written * sizeof *out->written);
        steps = out->n_written > steps ? out->n_written : steps;
        tokens[i] = (int32_t)p->ids[p->shared - 1];
    }
    for (int s = 0; s < steps; s++) {
        r->t->engine->decode_step(logits, r->t->model, tokens);
        for (int i = 0; i < n; i++) {
            Outcome* out = &r->outcome[key[i].index];
            tokens[i] = (int32_t)likeliest(logits + (size_t)i * V, n_ids);
            if (s < out->n_written) out->written[s] = (uint32_t)tokens[i];
        }
    }
    free(logits);
    free(tokens);
}

static bool score_all(TaskRun* r, TostError* err) {
    const size_t count = r->passages.count;
    double work = 0, done = 0;
    for (size_t i = 0; i < count; i++) work += r->key[i].shared + r->endings * r->key[i].longest;
    Progress progress = progress_new(stderr, false);
    Ratio loss = {0};
    bool finite = true;
    for (size_t first = 0; first < count && finite;) {
        const Key* key = &r->key[first];
        const int n = group_size(r, first);
        read_contexts(r, key, n);
        score_endings(r, key, n);
        if (r->task == TASK_LAMBADA) write_on(r, key, n);
        for (int i = 0; i < n; i++) {
            const Example* p = &r->passages.passage[key[i].index];
            for (int e = 0; e < p->endings; e++)
                finite = finite && isfinite(r->outcome[key[i].index].nats[e]);
            ratio_add(&loss, r->outcome[key[i].index].nats[p->label], p->length[p->label]);
            done += key[i].shared + r->endings * key[i].longest;
        }
        first += (size_t)n;
        progress_show(&progress, done / work, "loss %.4f", ratio_value(&loss));
    }
    progress_erase(&progress);
    return finite || tost_error(err, "%s: the loss is not finite: the weights have diverged", r->t->file);
}

// ---------------------------------------------------------------------------------------------
// Figures

// How an example counts as solved.
typedef enum { WORD_EXACT, WORD_WITHIN, BY_TOKEN, BY_BYTE, BY_SUM } Rule;
enum { MAX_FIGURES = 3 };

typedef struct { const char* name; Rule rule; const char* about; } Figure;

static const struct { int n; Figure figure[MAX_FIGURES]; } figures[TASKS] = {
    [TASK_LAMBADA] = {2, {
        {"accuracy", WORD_EXACT, "greedy decode gives the tokens of the last word"},
        {"accuracy_within_10", WORD_WITHIN, "the word stands in 10 greedy tokens, ASCII case apart"}}},
    [TASK_HELLASWAG] = {3, {
        {"accuracy", BY_TOKEN, "by log-likelihood a token of the ending"},
        {"accuracy_byte", BY_BYTE, "by log-likelihood a byte of the ending"},
        {"accuracy_sum", BY_SUM, "by log-likelihood of the ending"}}},
    [TASK_CBT] = {1, {
        {"accuracy", BY_SUM, "by log-likelihood of the passage"}}},
};

// The ending of the least loss; the first of equals.
static int choice(const Example* p, const Outcome* out, Rule rule) {
    int best = 0;
    double least = INFINITY;
    for (int e = 0; e < p->endings; e++) {
        const int size = rule == BY_TOKEN ? p->length[e] : rule == BY_BYTE ? p->bytes[e] : 1;
        const double loss = out->nats[e] / size;
        if (loss < least) {
            least = loss;
            best = e;
        }
    }
    return best;
}

// The text of the first n written tokens; <|endoftext|> has none. free()
static Bytes written_text(const TaskRun* r, const Outcome* out, int n) {
    Bytes text = {xstrdup(""), 0};
    for (int i = 0; i < n; i++) {
        size_t len;
        if ((int)out->written[i] == tokenizer_eot(r->tokenizer)) continue;
        const char* piece = tokenizer_piece(r->tokenizer, out->written[i], &len);
        text.data = xrealloc(text.data, text.size + len + 1);
        memcpy(text.data + text.size, piece, len);
        text.size += len;
    }
    text.data[text.size] = 0;
    return text;
}

static bool stands_within(const TaskRun* r, const Example* p, const Outcome* out) {
    Bytes text = written_text(r, out, GREEDY);
    const size_t n = strlen(p->word);
    bool found = false;
    for (size_t at = 0; at + n <= text.size && !found; at++) {
        size_t i = 0;
        while (i < n && tolower((unsigned char)text.data[at + i]) == tolower((unsigned char)p->word[i])) i++;
        found = i == n;
    }
    free(text.data);
    return found;
}

static bool solved(const TaskRun* r, size_t i, Rule rule) {
    const Example* p = &r->passages.passage[i];
    const Outcome* out = &r->outcome[i];
    if (rule == WORD_EXACT)
        return memcmp(out->written, p->ids + p->shared, (size_t)p->length[0] * sizeof *p->ids) == 0;
    if (rule == WORD_WITHIN) return stands_within(r, p, out);
    return choice(p, out, rule) == p->label;
}

static void write_example(JsonFile* json, const TaskRun* r, size_t i) {
    const Example* p = &r->passages.passage[i];
    const Outcome* out = &r->outcome[i];
    json_put_open(json, NULL, '{');
    json_put_int(json, "line", p->line);
    json_put_int(json, "context", out->shared);
    if (p->word) {
        Bytes text = written_text(r, out, GREEDY);
        json_put_text(json, "word", p->word);
        json_put_bytes(json, "written", text.data, text.size);
        free(text.data);
    } else json_put_int(json, "label", p->label);
    json_put_open(json, "tokens", '[');
    for (int e = 0; e < p->endings; e++) json_put_int(json, NULL, p->length[e]);
    json_put_close(json, ']');
    json_put_open(json, "nats", '[');
    for (int e = 0; e < p->endings; e++) json_put_real(json, NULL, out->nats[e]);
    json_put_close(json, ']');
    for (int f = 0; f < figures[r->task].n; f++)
        json_put_bool(json, figures[r->task].figure[f].name, solved(r, i, figures[r->task].figure[f].rule));
    json_put_close(json, '}');
}

static void report_figure(JsonFile* json, const TaskRun* r, const Figure* f) {
    int64_t hits = 0;
    for (size_t i = 0; i < r->passages.count; i++) hits += solved(r, i, f->rule);
    const double share = (double)hits / (double)r->passages.count;
    const Interval interval = share_interval(hits, (int64_t)r->passages.count);
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
    for (size_t i = 0; i < r->passages.count; i++) {
        const Example* p = &r->passages.passage[i];
        ratio_add(&ratio, r->outcome[i].nats[p->label], p->length[p->label]);
    }
    const double loss = ratio_value(&ratio), error = ratio_error(&ratio);
    const char* of = r->task == TASK_LAMBADA ? "the last word" : "the right ending";
    json_put_open(json, NULL, '{');
    json_put_text(json, "task", task_name(r->task));
    json_put_text(json, "file", o->files[0]);
    json_put_text(json, "model", r->t->file);
    json_put_int(json, "step", r->t->info.step);
    json_put_text(json, "tokenizer", tokenizer_path(r->tokenizer));
    json_put_int(json, "seq", r->limit);
    json_put_int(json, "examples", (int64_t)r->passages.count);
    for (int f = 0; f < figures[r->task].n; f++) report_figure(json, r, &figures[r->task].figure[f]);
    printf("%-18s  %.4f ± %.4f nats/token of %s\n", "loss", loss, error, of);
    printf("%-18s  %.4f  (95%%: %.4f to %.4f)\n", "perplexity", exp(loss), exp(loss - error),
           exp(loss + error));
    printf("%-18s  %zu in %.1f s\n", "examples", r->passages.count, seconds);
    json_put_real(json, "loss", loss);
    json_put_real(json, "loss_95", error);
    json_put_real(json, "perplexity", exp(loss));
    json_put_open(json, "example", '[');
    for (size_t i = 0; i < r->passages.count; i++) write_example(json, r, i);
    json_put_close(json, ']');
    json_put_close(json, '}');
}

// ---------------------------------------------------------------------------------------------

static void task_free(TaskRun* r) {
    for (size_t i = 0; r->outcome && i < r->passages.count; i++) free(r->outcome[i].written);
    free(r->outcome);
    free(r->key);
    examples_free(&r->passages);
}

bool eval_task(LoadedModel* t, const Options* o, TostError* err) {
    const int block = t->info.config.block_size;
    if (o->seq > block)
        return tost_error(err, "--seq %d is longer than the block size %d of %s", o->seq, block, t->file);
    TaskRun r = {.t = t, .task = (Task)o->task, .limit = o->seq ? o->seq : block};
    JsonFile json = {0};
    Tokenizer* tokenizer = loaded_model_tokenizer(t, o, err);
    r.tokenizer = tokenizer;
    bool ok = tokenizer && examples_read(&r.passages, r.task, o->files[0], tokenizer, err)
              && plan(&r, o, err) && loaded_model_create(t, o, r.contexts * r.endings, r.max_seq, false, err)
              && json_file_open(&json, o->json, err);
    if (ok) {
        fprintf(stderr, "%s, step %lld; examples of %s in %s: %zu\n", t->file, (long long)t->info.step,
                task_name(r.task), o->files[0], r.passages.count);
        const double start = now_seconds();
        ok = score_all(&r, err);
        if (ok) report(&json, &r, o, now_seconds() - start);
    }
    ok = json_file_close(&json, ok, err) && ok;
    task_free(&r);
    if (tokenizer) tokenizer_free(tokenizer);
    return ok;
}
