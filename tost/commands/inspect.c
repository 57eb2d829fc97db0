// inspect.c: runs a model on a text and writes its activations to a safetensors file for plotting:
//   tokens   I32 (T)        ids of the text
//   offsets  I32 (T+1)      token t is text[offsets[t] .. offsets[t+1])
//   loss     F32 (T)        -log p(token t | tokens before it), nats; NaN for the first
//   pi       F32 (L,NH,T)   membership of each token in each head
//   w        F32 (L,T,C)    TSSA's z, the tokens projected to the heads' subspaces: head h has channels [h·C/NH, (h+1)·C/NH)
//   text     U8  (bytes)
// __metadata__ has the model's config with the keys of a checkpoint, content "inspect", model, step, tokenizer and
// text_tokens: the number of tokens in the whole text; only the first T are used: T = min(block_size, text_tokens), or
// text_tokens if the model has no positions.
#include <math.h>
#include <sys/stat.h>

#include "base/files.h"
#include "base/folder.h"
#include "base/memory.h"
#include "base/text.h"
#include "commands/commands.h"

// ---- The text ----

typedef struct {
    int      T;
    int32_t* ids;       // (T)
    int32_t* offsets;   // (T+1)
    char*    bytes;     // of the T tokens
    size_t   total;     // tokens in the whole text
} Tokens;

static void tokens_free(Tokens* k) {
    free(k->ids);
    free(k->offsets);
    free(k->bytes);
}

// At most the first max_seq tokens.
static Tokens first_tokens(const Tokenizer* tokenizer, const Bytes* text, int max_seq) {
    uint32_t* ids = xmalloc((text->size + 1) * sizeof *ids);
    Tokens k = {.total = encode_documents(ids, tokenizer, text->data, text->size)};
    k.T = k.total < (size_t)max_seq ? (int)k.total : max_seq;
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

// ---- The model ----

// loss (T) of each token given the tokens before it; NaN for the first. Returns the sum over the others.
static double score_tokens(float* loss, LoadedModel* m, const Tokens* k) {
    double sum = 0, *nats = xmalloc((size_t)k->T * sizeof *nats);
    if (k->T > 1) {
        chunks_begin(&m->chunks, 1);
        chunks_read_losses(nats, &m->chunks, k->ids, k->ids + 1, k->T - 1);
    }
    loss[0] = NAN;
    for (int i = 1; i < k->T; i++) {
        loss[i] = (float)nats[i - 1];
        sum += nats[i - 1];
    }
    free(nats);
    return sum;
}

// ---- The file ----

static KeyValues make_metadata(const LoadedModel* m, const Tokenizer* tokenizer, const Tokens* k) {
    const struct { const char *key, *value; } strings[] = {
        {"format", "pt"}, {"content", "inspect"}, {"model", m->file}, {"tokenizer", tokenizer_path(tokenizer)}};
    KeyValues meta = {0};
    for (size_t i = 0; i < countof(strings); i++)
        key_values_add(&meta, xstrdup(strings[i].key), xstrdup(strings[i].value));
    metadata_add_config(&meta, &m->info.config);   // without membership if it is learned, as in a checkpoint
    if (m->info.config.membership == TOST_LEARNED) key_values_add(&meta, xstrdup("membership"), xstrdup("learned"));
    key_values_add(&meta, xstrdup("step"), xasprintf("%lld", (long long)m->info.step));
    key_values_add(&meta, xstrdup("text_tokens"), xasprintf("%zu", k->total));
    return meta;
}

// A tensor of the file: its declaration and its data; NULL: an activation of every layer.
typedef struct { StTensor declared; const void* data; size_t bytes; TostActivation activation; } Array;

static bool append_array(StWriter* w, const LoadedModel* m, const Array* a, TostError* err) {
    if (a->data) return st_append(w, a->data, a->bytes, err);
    float* values = xmalloc(a->bytes);
    bool ok = true;
    for (int l = 0; ok && l < m->info.config.n_layer; l++) {
        m->engine->activation(values, m->model, a->activation, l);
        ok = st_append(w, values, a->bytes, err);
    }
    free(values);
    return ok;
}

// Runs the model and writes the file. *sum: see score_tokens.
static bool write_file(double* sum, const char* path, LoadedModel* m, const Tokenizer* tokenizer, const Tokens* k,
                       TostError* err) {
    const TostConfig* c = &m->info.config;
    const int64_t T = k->T, L = c->n_layer, text = k->offsets[T];
    const size_t four = 4 * (size_t)T;   // bytes of T numbers
    float* loss = xmalloc(four);
    const Array arrays[] = {
        {{.name = "tokens",  .dtype = ST_I32, .ndim = 1, .shape = {T}}, k->ids, four, 0},
        {{.name = "offsets", .dtype = ST_I32, .ndim = 1, .shape = {T + 1}}, k->offsets, four + 4, 0},
        {{.name = "loss",    .dtype = ST_F32, .ndim = 1, .shape = {T}}, loss, four, 0},
        {{.name = "pi",      .dtype = ST_F32, .ndim = 3, .shape = {L, c->n_head, T}}, NULL, c->n_head * four, TOST_PI},
        {{.name = "w",       .dtype = ST_F32, .ndim = 3, .shape = {L, T, c->n_embd}}, NULL, c->n_embd * four, TOST_Z},
        {{.name = "text",    .dtype = ST_U8,  .ndim = 1, .shape = {text}}, k->bytes, (size_t)text, 0},
    };
    StTensor tensors[countof(arrays)];
    KeyValues meta = make_metadata(m, tokenizer, k);
    for (size_t i = 0; i < countof(arrays); i++) tensors[i] = arrays[i].declared;
    StWriter w;
    bool ok = st_begin(&w, path, tensors, countof(arrays), &meta, err);
    if (ok) {
        *sum = score_tokens(loss, m, k);
        const TostChunk whole = {.inputs = k->ids, .B = 1, .T = k->T};
        m->engine->forward(m->model, &whole, TOST_NO_STATE, TOST_NO_STATE);
        ok = loaded_model_check_loss(m, *sum, err);
    }
    for (size_t i = 0; ok && i < countof(arrays); i++) ok = append_array(&w, m, &arrays[i], err);
    ok = st_end(&w, ok, err);
    free(loss);
    key_values_free(&meta);
    return ok;
}

// Only a file written by inspect may be overwritten, never a model or a text.
static bool check_out(const char* out, bool force, TostError* err) {
    static const char begin[] = "{\"__metadata__\":{\"format\":\"pt\",\"content\":\"inspect\"";
    struct stat st;
    if (lstat(out, &st) == 0 && !S_ISREG(st.st_mode))   // renaming would replace the device or link
        return tost_error(err, "--out %s is %s; choose another file", out,
                          S_ISDIR(st.st_mode) ? "a folder" : "not a regular file");
    return force || check_replaceable(out, 8, begin, err) || tost_error(err, "--out %s", err->text);
}

static bool inspect(LoadedModel* m, const Tokenizer* tokenizer, const Options* o, const Bytes* text,
                    TostError* err) {
    if (text->size > INT32_MAX)
        return tost_error(err, "--text: %zu bytes, the limit is %d", text->size, INT32_MAX);
    const Path tmp = path_text("%s.tmp", o->out);
    Tokens k = first_tokens(tokenizer, text, tost_max_seq(&m->info.config));
    double sum = 0;
    bool ok = check_out(o->out, o->force, err) && loaded_model_create(m, o, 1, k.T, true, err);
    if (ok) {
        print_line(stderr, "%s, step %lld", m->file, (long long)m->info.step);
        if (k.total > (size_t)k.T)
            fprintf(stderr, "the text has %zu tokens; only the first %d (the block size) are used\n", k.total, k.T);
        ok = write_file(&sum, tmp.text, m, tokenizer, &k, err) && rename_synced(tmp.text, o->out, err);
    }
    if (ok) {
        printf("%-12s%d\n", "tokens", k.T);
        if (k.T > 1) printf("%-12s%.6f nats/token, excluding the first token\n", "loss", sum / (k.T - 1));
        print_line(stdout, "%-12s%s", "written", o->out);
    }
    tokens_free(&k);
    return ok;
}

int command_inspect(const Options* o, const TostEngine* engine) {
    TostError err;
    LoadedModel m;
    Bytes text = {0};
    Tokenizer* tokenizer = NULL;
    const bool ok = loaded_model_find(&m, o, engine, &err) && (tokenizer = loaded_model_tokenizer(&m, o, &err))
                    && read_text(&text, o, "--text", o->text, "", &err) && inspect(&m, tokenizer, o, &text, &err);
    free(text.data);
    tokenizer_free(tokenizer);
    loaded_model_free(&m);
    return ok ? 0 : print_error(o, &err);
}
