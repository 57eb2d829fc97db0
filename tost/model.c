// model.c: limits of sizes, their description, and the tensors of a model.
#include "model.h"

#include "base/memory.h"

// ---- Sizes ----

bool tost_config_check(const TostConfig* c, TostError* err) {
#define X(field, option, kind, values, saved, low, high, ...) {option, values, c->field, low, high},
    const struct { const char *option, *values; int value, low, high; } fields[] = {TOST_CONFIG(X)};
#undef X
    for (size_t i = 0; i < countof(fields); i++) {
        const bool two = strchr(fields[i].values, '|') != NULL;
        const int value = fields[i].value, low = fields[i].low, high = fields[i].high;
        if (two ? value != low && value != high : value < low || value > high)
            return tost_error(err, two ? "--%s %d is not %d or %d" : "--%s %d is not an integer from %d to %d",
                              fields[i].option, value, low, high);
    }
    return c->n_embd % c->n_head == 0 || tost_error(err, "--heads %d does not divide --channels %d: choose a divisor",
                                                    c->n_head, c->n_embd);
}

TextLine model_sizes(const TostConfig* c) {
    return text_line("%d layer%s, %d head%s, %d channel%s, block size %d, vocabulary %d, %s bias%s%s%s%s%s", c->n_layer,
                     plural(c->n_layer), c->n_head, plural(c->n_head), c->n_embd, plural(c->n_embd), c->block_size,
                     c->vocab_size, c->bias ? "with" : "no",
                     c->membership == TOST_UNIFORM ? ", uniform membership" : "", c->conv ? ", convolutions" : "",
                     c->memory ? ", memory" : "", c->positions == TOST_POSITIONS_NONE ? ", no positions" : "",
                     c->bigrams ? text_line(", %d rows for bigrams", c->bigrams).text : "");
}

// ---- Layout ----

// A row of the table for a config. tensor: what its tensors have in common, with 0 past the last dimension of shape
typedef struct { TostPlace place; const char* name; bool exists; TostTensor tensor; } ParamRow;

static void expand_rows(ParamRow rows[TOST_ROWS], const TostConfig* c) {
    const int C = c->n_embd, NH = c->n_head, V = c->vocab_size, MAX_T = c->block_size, CONV = c->conv,
              BIGRAMS = c->bigrams;
    const bool BIAS = c->bias != 0, MEMORY = c->memory != 0, POSITIONS = c->positions == TOST_POSITIONS_LEARNED;
#define SHAPE(...) {__VA_ARGS__}
#define X(field, place, name, shape, init, decay, optimizer, when) \
    rows[TOST_ROW_##field] = (ParamRow){TOST_##place, name, when, \
                                   {"", TOST_ROW_##field, -1, 0, SHAPE shape, TOST_##init, TOST_##decay, \
                                    TOST_##optimizer, 1, 0}};
    TOST_PARAMS(X)
#undef X
#undef SHAPE
    if (c->membership == TOST_UNIFORM) rows[TOST_ROW_temp].tensor.init = TOST_ZERO;
}

static void append_tensors(TostTensors* t, const ParamRow rows[TOST_ROWS], TostPlace place, int layer) {
    enum { ALIGN = 32 };   // elements: 128 bytes, two cache lines of a CPU, one memory transaction of a GPU
    for (int i = 0; i < TOST_ROWS; i++) {
        if (rows[i].place != place || !rows[i].exists) continue;
        TostTensor* x = &t->tensor[t->count++];
        if (layer <= 0) t->row_offset[i] = t->flat_size;
        if (layer == 1) t->row_stride[i] = t->flat_size - t->row_offset[i];
        *x = rows[i].tensor;
        x->layer = layer;
        x->offset = t->flat_size;
        if (layer >= 0) snprintf(x->name, sizeof x->name, "transformer.h.%d.%s", layer, rows[i].name);
        else snprintf(x->name, sizeof x->name, "%s", rows[i].name);
        for (; x->ndim < TOST_MAX_DIMS && x->shape[x->ndim] > 0; x->ndim++) x->size *= (size_t)x->shape[x->ndim];
        t->n_params += x->size;
        t->flat_size += (x->size + ALIGN - 1) / ALIGN * ALIGN;
    }
}

TostTensors tost_tensors(const TostConfig* c) {
    ParamRow rows[TOST_ROWS];
    expand_rows(rows, c);
    TostTensors t = {0};
    for (int i = 0; i < TOST_ROWS; i++) t.row_offset[i] = SIZE_MAX;
    t.tensor = xcalloc((size_t)TOST_ROWS * (size_t)(c->n_layer + 1), sizeof *t.tensor);
    append_tensors(&t, rows, TOST_EMBED, -1);
    for (int l = 0; l < c->n_layer; l++) append_tensors(&t, rows, TOST_LAYER, l);
    append_tensors(&t, rows, TOST_HEAD, -1);
    return t;
}

void tost_tensors_free(TostTensors* t) {
    free(t->tensor);
    *t = (TostTensors){0};
}

size_t tost_row_offset(const TostTensors* t, TostRow row, int layer) {
    const size_t offset = t->row_offset[row];
    return offset == SIZE_MAX ? offset : offset + (size_t)layer * t->row_stride[row];
}

size_t tost_layer_offset(const TostTensors* t, int layer) {
    int i = 0;
    while (t->tensor[i].layer != layer) i++;
    return t->tensor[i].offset;
}
