// generate.c: continues prompts with a model. Texts that are generated together are rows of the engine's decode state,
// all at the same position. While one row reads the rest of its prompt, another may already be past its own.
//
// A text must not depend on the other rows. Products of at most TOST_FEW_ROWS rows have one order of summation and
// larger ones another, so the kind of each product depends only on the text's prompt:
//   up to TOST_FEW_ROWS tokens   products of few rows: one pass if all rows together are few, or else token by token
//   more                         passes over up to MAX_PASS tokens, together a multiple of BEGIN_MULTIPLE, then token
//                                by token
// The multiple lets prompts of different lengths begin together.
#include "run/generate.h"

#include "base/clock.h"
#include "base/memory.h"

enum { BEGIN_MULTIPLE = 16, MAX_PASS = 4096 };   // MAX_PASS bounds the memory for a long prompt

typedef struct {
    Text*           text;
    int32_t*        ids;       // its prompt, then its tokens in the decode state up to block_size, to rebuild it
    int             length;    // of the prompt; 0 when the decode state was rebuilt
    Sampler         sampler;
    char*           held;      // (n_held) bytes not passed to the sink yet, which may begin the stop text
    size_t          n_held;
} BatchRow;

typedef struct {
    const Generator* g;
    int64_t  max_tokens;
    int      n, count;         // rows; tokens of each in the decode state
    BatchRow* rows;
    int32_t* tokens;           // for the engine: (n) the next token of each row, or (n,T) a pass of batch_begin
    float*   logits;           // (n,V) after the last token
} Batch;

// ---- Lengths ----

static int tokens_to_keep(int block_size) { return block_size / 2 > 1 ? block_size / 2 : 1; }

// Tokens of a prompt that are used: an empty one is <|endoftext|>.
static int prompt_length(const TostConfig* c, size_t n_prompt) {
    if (n_prompt > (size_t)tost_max_seq(c)) return tokens_to_keep(c->block_size);
    return n_prompt > 0 ? (int)n_prompt : 1;
}

int generate_group(const TostConfig* c, size_t n_prompt) {
    const int length = prompt_length(c, n_prompt);
    return length <= TOST_FEW_ROWS ? 0 : length - length % BEGIN_MULTIPLE;
}

int generate_max_seq(const TostConfig* c, size_t n_prompt, int64_t max_tokens) {
    const int length = prompt_length(c, n_prompt), group = generate_group(c, n_prompt);
    const int first = group ? group : length, again = length + max_tokens > tost_max_seq(c)
                                                      ? tokens_to_keep(c->block_size) : 1;
    const int seq = first > again ? first : again;
    return seq < MAX_PASS ? seq : MAX_PASS;
}

// ---- The decode state ----

// Starts the decode state with the first T ids of each row.
static void batch_begin(Batch* b, int T) {
    b->count = T;
    chunks_begin(b->g->chunks, b->n);
    const int step = T > TOST_FEW_ROWS || b->n * T <= TOST_FEW_ROWS ? T : 1;   // tokens of a pass
    for (int t = 0; t < T; t += step) {
        for (int r = 0; r < b->n; r++)
            memcpy(b->tokens + (size_t)r * step, b->rows[r].ids + t, (size_t)step * sizeof *b->tokens);
        chunks_read(b->logits, b->g->chunks, b->tokens, step);
    }
}

// Appends the next token of each row, or rebuilds the decode state from the last ones if all positions are used.
static void batch_append(Batch* b) {
    const int block = b->g->config->block_size;
    if (b->count < tost_max_seq(b->g->config)) {
        for (int r = 0; r < b->n && b->count < block; r++) b->rows[r].ids[b->count] = b->tokens[r];
        b->count++;
        chunks_read(b->logits, b->g->chunks, b->tokens, 1);
        return;
    }
    const int keep = tokens_to_keep(block);
    for (int r = 0; r < b->n; r++) {
        int32_t* ids = b->rows[r].ids;
        memmove(ids, ids + block - (keep - 1), (size_t)(keep - 1) * sizeof *ids);
        ids[keep - 1] = b->tokens[r];
        b->rows[r].length = 0;
    }
    batch_begin(b, keep);
}

// ---- Rows ----

// Its tokens are no longer used.
static bool is_done(const BatchRow* row) { return row->text->finish != FINISH_NONE; }

// Passes the bytes of a token to the sink, up to the stop text. Holds back those that may begin it.
static void row_write(BatchRow* row, const Generator* g, const char* bytes, size_t n) {
    row->held = xrealloc(row->held, row->n_held + n + 1);
    memcpy(row->held + row->n_held, bytes, n);
    row->n_held += n;
    const char* found = NULL;
    size_t hold = 0;
    for (int i = 0; i < g->stop.count; i++) {
        const char* stop = g->stop.strings[i];
        const size_t n_stop = strlen(stop);
        const char* at = memmem(row->held, row->n_held, stop, n_stop);
        if (at && (!found || at < found)) found = at;
        for (size_t k = row->n_held < n_stop ? row->n_held : n_stop - 1; k > hold; k--)
            if (memcmp(row->held + row->n_held - k, stop, k) == 0) hold = k;
    }
    if (found) {
        row->text->finish = FINISH_STOP;
        hold = 0;
    }
    const size_t ready = found ? (size_t)(found - row->held) : row->n_held - hold;
    if (!g->sink(row->text->context, row->held, ready) && !found) row->text->finish = FINISH_SINK;
    memmove(row->held, row->held + ready, hold);
    row->n_held = hold;
}

// Adds a sampled token to its text. If the text ends without the stop text, passes on the bytes held back for it.
static void row_add_token(BatchRow* row, const Batch* b, int32_t id) {
    const Generator* g = b->g;
    if (g->tokenizer && id == tokenizer_eot(g->tokenizer)) {
        row->text->finish = FINISH_END_OF_TEXT;
    } else {
        char number[16];
        size_t n = (size_t)snprintf(number, sizeof number, " %d", (int)id);
        const char* bytes = g->tokenizer ? tokenizer_piece(g->tokenizer, (uint32_t)id, &n) : number;
        row->text->tokens++;
        row_write(row, g, bytes, n);
        if (!is_done(row) && row->text->tokens >= b->max_tokens) row->text->finish = FINISH_LENGTH;
    }
    if (is_done(row) && row->text->finish != FINISH_SINK && row->n_held > 0)
        g->sink(row->text->context, row->held, row->n_held);
}

// ---- The loop ----

// True if the row's next token is sampled, not part of its prompt.
static bool samples_next(const Batch* b, const BatchRow* row) { return !is_done(row) && b->count >= row->length; }

// Chooses the next token of each row: from its prompt, or sampled. The token of a row that is done is not used.
static void choose_tokens(Batch* b) {
    const size_t V = (size_t)b->g->config->vocab_size;
    #pragma omp parallel for schedule(static) if (b->n > 1)
    for (int r = 0; r < b->n; r++) {
        BatchRow* row = &b->rows[r];
        if (samples_next(b, row))
            b->tokens[r] = sampler_draw(&row->sampler, b->logits + r * V, &b->g->options, &row->text->rng);
        else b->tokens[r] = b->count < row->length ? row->ids[b->count] : 0;
    }
}

// Adds the sampled tokens to the texts. Returns whether there was one.
static bool add_tokens(Batch* b, bool* ok, TostError* err) {
    bool sampled = false;
    for (int r = 0; r < b->n && *ok; r++) {
        BatchRow* row = &b->rows[r];
        if (!samples_next(b, row)) continue;
        sampled = true;
        if (b->tokens[r] >= 0) row_add_token(row, b, b->tokens[r]);
        else *ok = tost_error(err, "the logits after %lld tokens are not numbers; the weights have diverged: use an "
                              "earlier checkpoint (--model)", (long long)row->text->tokens);
    }
    return sampled;
}

static int rows_left(const Batch* b) {
    int left = 0;
    for (int r = 0; r < b->n; r++) left += !is_done(&b->rows[r]);
    return left;
}

static bool batch_run(Batch* b, double* seconds, TostError* err) {
    bool ok = true;
    while (ok && rows_left(b) > 0) {
        const double start = now_seconds();
        choose_tokens(b);
        const bool sampled = add_tokens(b, &ok, err);
        if (ok && rows_left(b) > 0) batch_append(b);
        if (sampled) *seconds += now_seconds() - start;
    }
    return ok;
}

// ---- Set-up ----

static void row_start(BatchRow* row, const Generator* g, Text* text, int64_t max_tokens) {
    const int length = prompt_length(g->config, text->n_prompt), block = g->config->block_size;
    const int n_ids = g->tokenizer ? tokenizer_size(g->tokenizer) : g->config->vocab_size;
    *row = (BatchRow){.text = text, .length = length, .sampler = sampler_new(n_ids),
                 .ids = xmalloc((size_t)(length > block ? length : block) * sizeof *row->ids)};
    if (text->n_prompt == 0) row->ids[0] = tokenizer_eot(g->tokenizer);
    else for (int i = 0; i < length; i++)
        row->ids[i] = (int32_t)text->prompt[text->n_prompt - (size_t)length + (size_t)i];
    text->tokens = 0;
    text->finish = max_tokens > 0 ? FINISH_NONE : FINISH_LENGTH;
}

bool generate(Text* texts, int n, double* seconds, const Generator* g, int64_t max_tokens, TostError* err) {
    const size_t V = (size_t)g->config->vocab_size;
    Batch b = {.g = g, .max_tokens = max_tokens, .n = n, .rows = xmalloc((size_t)n * sizeof *b.rows),
               .logits = xmalloc((size_t)n * V * sizeof *b.logits)};
    const int again = tokens_to_keep(g->config->block_size), group = generate_group(g->config, texts[0].n_prompt);
    int first = group;   // tokens of each prompt with which the decode state begins; group 0: of the shortest
    for (int i = 0; i < n; i++) {
        row_start(&b.rows[i], g, &texts[i], max_tokens);
        if (!group && (i == 0 || b.rows[i].length < first)) first = b.rows[i].length;
    }
    b.tokens = xmalloc((size_t)n * (size_t)(first > again ? first : again) * sizeof *b.tokens);
    if (max_tokens > 0) batch_begin(&b, first);
    const bool ok = batch_run(&b, seconds, err);
    for (int i = 0; i < n; i++) {
        sampler_free(&b.rows[i].sampler);
        free(b.rows[i].ids);
        free(b.rows[i].held);
    }
    free(b.logits);
    free(b.tokens);
    free(b.rows);
    return ok;
}
