// inspect.c: one forward over a text, and a file of what the heads made of it.
#include "command_inspect.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"

// ---------------------------------------------------------------------------------------------
// The text

size_t encode_documents(uint32_t* ids, const Tokenizer* tokenizer, const char* text, size_t n) {
    size_t n_ids = 0, from = 0, end, next;
    for (; document_ends(&end, &next, text, from, n, true); from = next) {
        n_ids += tokenizer_encode(tokenizer, ids + n_ids, text + from, end - from);
        ids[n_ids++] = (uint32_t)tokenizer_eot(tokenizer);
    }
    return n_ids + tokenizer_encode(tokenizer, ids + n_ids, text + from, n - from);
}

// The tokens that are looked at, and their bytes one after another.
typedef struct {
    int      T;
    int32_t* ids;
    int32_t* offsets;   // (T+1)
    char*    bytes;
    size_t   all;       // tokens of the whole text
} Tokens;

static void tokens_free(Tokens* k) {
    free(k->ids);
    free(k->offsets);
    free(k->bytes);
}

// The first block_size tokens of the text, or all if they are fewer.
static Tokens take_tokens(const Tokenizer* tokenizer, const Bytes* text, int block_size) {
    uint32_t* ids = xmalloc((text->size + 1) * sizeof *ids);
    Tokens k = {.all = encode_documents(ids, tokenizer, text->data, text->size)};
    k.T = k.all < (size_t)block_size ? (int)k.all : block_size;
    k.ids = xmalloc((size_t)k.T * sizeof *k.ids);
    k.offsets = xcalloc((size_t)k.T + 1, sizeof *k.offsets);
    for (int t = 0; t < k.T; t++) {
        size_t len;
        const char* piece = tokenizer_piece(tokenizer, ids[t], &len);
        k.ids[t] = (int32_t)ids[t];
        k.offsets[t + 1] = k.offsets[t] + (int32_t)len;
        k.bytes = xrealloc(k.bytes, (size_t)k.offsets[t + 1] + 1);
        memcpy(k.bytes + k.offsets[t], piece, len);
    }
    free(ids);
    return k;
}

// ---------------------------------------------------------------------------------------------
// The model

// loss (T) of each token, given those before it. Returns their sum, the first left out.
static double score_tokens(float* loss, const LoadedModel* t, const Tokens* k) {
    double sum = 0, *nats = xmalloc((size_t)k->T * sizeof *nats);
    if (k->T > 1) {
        t->engine->decode_begin(NULL, t->model, NULL, 1, 0);
        t->engine->decode_score(nats, t->model, k->ids, k->ids + 1, 1, k->T - 1);
    }
    loss[0] = NAN;
    for (int i = 1; i < k->T; i++) {
        loss[i] = (float)nats[i - 1];
        sum += nats[i - 1];
    }
    free(nats);
    return sum;
}

// ---------------------------------------------------------------------------------------------
// The file

enum { TENSORS = 6, META = 16 };

static void declare(StTensor tensors[TENSORS], const TostConfig* c, const Tokens* k) {
    const int64_t T = k->T;
    const StTensor all[TENSORS] = {
        {.name = "tokens",  .dtype = ST_I32, .ndim = 1, .shape = {T}},
        {.name = "offsets", .dtype = ST_I32, .ndim = 1, .shape = {T + 1}},
        {.name = "loss",    .dtype = ST_F32, .ndim = 1, .shape = {T}},
        {.name = "pi",      .dtype = ST_F32, .ndim = 3, .shape = {c->n_layer, c->n_head, T}},
        {.name = "w",       .dtype = ST_F32, .ndim = 3, .shape = {c->n_layer, T, c->n_embd}},
        {.name = "text",    .dtype = ST_U8,  .ndim = 1, .shape = {k->offsets[T]}},
    };
    memcpy(tensors, all, sizeof all);
}

static StMeta* describe(int* n, const LoadedModel* t, const Tokenizer* tokenizer, const Tokens* k) {
    const TostConfig* c = &t->info.config;
    const struct { const char* key; long long value; } numbers[] = {
        {"n_layer", c->n_layer}, {"n_head", c->n_head}, {"n_embd", c->n_embd}, {"block_size", c->block_size},
        {"vocab_size", c->vocab_size}, {"bias", c->bias}, {"step", t->info.step},
        {"text_tokens", (long long)k->all}};
    const struct { const char *key, *value; } words[] = {
        {"format", "pt"}, {"content", "inspect"}, {"model", t->file}, {"tokenizer", tokenizer_path(tokenizer)},
        {"membership", c->membership == TOST_UNIFORM ? "uniform" : "learned"}};
    _Static_assert(countof(numbers) + countof(words) <= META, "META has a place for each");
    StMeta* meta = xcalloc(META, sizeof *meta);
    *n = 0;
    for (size_t i = 0; i < countof(words); i++)
        meta[(*n)++] = (StMeta){xstrdup(words[i].key), xstrdup(words[i].value)};
    for (size_t i = 0; i < countof(numbers); i++)
        meta[(*n)++] = (StMeta){xstrdup(numbers[i].key), xasprintf("%lld", numbers[i].value)};
    return meta;
}

// n values per layer of one activation of the last forward.
static bool append_layers(StWriter* w, const LoadedModel* t, TostActivation what, size_t n, TostError* err) {
    float* values = xmalloc(n * sizeof *values);
    bool ok = true;
    for (int l = 0; ok && l < t->info.config.n_layer; l++) {
        t->engine->activation(values, t->model, what, l);
        ok = st_append(w, values, n * sizeof *values, err);
    }
    free(values);
    return ok;
}

static bool append_all(StWriter* w, const LoadedModel* t, const Tokens* k, const float* loss, TostError* err) {
    const TostConfig* c = &t->info.config;
    const size_t T = (size_t)k->T;
    return st_append(w, k->ids, T * sizeof *k->ids, err)
        && st_append(w, k->offsets, (T + 1) * sizeof *k->offsets, err)
        && st_append(w, loss, T * sizeof *loss, err)
        && append_layers(w, t, TOST_PI, c->n_head * T, err)
        && append_layers(w, t, TOST_W, c->n_embd * T, err)
        && st_append(w, k->bytes, (size_t)k->offsets[T], err);
}

// Runs the model and writes the file under a name of its own; on failure nothing is left. *sum: see score_tokens.
static bool write_beside(double* sum, const char* beside, const LoadedModel* t, const Tokenizer* tokenizer,
                         const Tokens* k, TostError* err) {
    StTensor tensors[TENSORS];
    int n_meta;
    StMeta* meta = describe(&n_meta, t, tokenizer, k);
    declare(tensors, &t->info.config, k);
    StWriter w;
    bool ok = st_begin(&w, beside, tensors, TENSORS, meta, n_meta, err);
    float* loss = xmalloc((size_t)k->T * sizeof *loss);
    if (ok) {
        *sum = score_tokens(loss, t, k);
        t->engine->forward(t->model, k->ids, 1, k->T);
        ok = (isfinite(*sum)
              || tost_error(err, "%s: the loss is not finite: the weights have diverged", t->file))
             && append_all(&w, t, k, loss, err);
    }
    if (!ok) st_abandon(&w);
    ok = ok && st_finish(&w, err);
    free(loss);
    st_free_meta(meta, n_meta);
    return ok;
}

// Nothing is there, or an earlier inspection: a model or a text is not what anybody wants replaced.
static bool may_replace(const char* out, TostError* err) {
    if (is_dir(out)) return tost_error(err, "--out %s is a folder: name a file", out);
    if (!path_exists(out)) return true;
    StFile f;
    TostError ignored;
    bool ours = st_open(&f, out, &ignored);
    if (ours) {
        const char* content = st_meta(&f, "content");
        ours = content && strcmp(content, "inspect") == 0;
        st_close(&f);
    }
    return ours || tost_error(err, "--out %s is there already and is none of inspect's files: name another", out);
}

static bool write_inspection(double* sum, const LoadedModel* t, const Tokenizer* tokenizer, const Tokens* k,
                             const char* out, TostError* err) {
    char* beside = xasprintf("%s.tmp", out);
    bool ok = write_beside(sum, beside, t, tokenizer, k, err);
    if (ok && rename(beside, out) != 0) {
        ok = tost_error(err, "--out %s cannot be written: %s", out, strerror(errno));
        unlink(beside);
    }
    free(beside);
    return ok;
}

// ---------------------------------------------------------------------------------------------

static bool inspect(LoadedModel* t, const Tokenizer* tokenizer, const Options* o, const Bytes* text,
                    TostError* err) {
    if (!may_replace(o->out, err)) return false;
    Tokens k = take_tokens(tokenizer, text, t->info.config.block_size);
    double sum = 0;
    bool ok = loaded_model_create(t, o, 1, k.T, true, err);
    if (ok) {
        fprintf(stderr, "%s, step %lld\n", t->file, (long long)t->info.step);
        if (k.all > (size_t)k.T)
            fprintf(stderr, "the text has %zu tokens: the first %d, which is the model's block size, are taken\n",
                    k.all, k.T);
        ok = write_inspection(&sum, t, tokenizer, &k, o->out, err);
    }
    if (ok) {
        printf("%-12s%d\n", "tokens", k.T);
        if (k.T > 1) printf("%-12s%.6f nats/token, the first not counted\n", "loss", sum / (k.T - 1));
        printf("%-12s%s\n", "written", o->out);
    }
    tokens_free(&k);
    return ok;
}

int command_inspect(const Options* o, const TostEngine* engine) {
    TostError err;
    LoadedModel t;
    Bytes text = {0};
    Tokenizer* tokenizer = NULL;
    const bool ok = loaded_model_find(&t, o, engine, &err) && (tokenizer = loaded_model_tokenizer(&t, o, &err))
                    && read_text(&text, "--text", o->text, "", &err) && inspect(&t, tokenizer, o, &text, &err);
    free(text.data);
    if (tokenizer) tokenizer_free(tokenizer);
    loaded_model_free(&t);
    return ok ? 0 : command_failed(o, &err);
}
