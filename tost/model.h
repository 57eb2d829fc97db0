// model.h: sizes, table of parameters and numerical constants of the Token Statistics Transformer (Wu et al.,
// ICLR 2025, arXiv 2412.17810). Compiled as C11 and as CUDA C++17.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"

#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "-ffast-math and -Ofast remove the checks for NaN and infinity and reorder sums: use CFLAGS=-O3"
#elif defined(__i386__) && !defined(__SSE2_MATH__)
#error "the x87 unit rounds float operations differently: use ARCH='-msse2 -mfpmath=sse'"
#endif

// ---- Numerical constants ----

#define TOST_LN_EPS     1e-5    // added to the variance in every LayerNorm
#define TOST_ENERGY_MIN 1e-12   // lower bound of the running energy S in s / max(S, 1e-12); memory: added to ‖z‖²
#define TOST_MASS_EPS   1e-8    // added to the mass D in m = N / (D + 1e-8)
#define TOST_CLIP_EPS   1e-6    // gradients are multiplied by min(1, --grad-clip / (norm + 1e-6))

// Muon (Jordan et al. 2024): the Newton-Schulz iteration X = a X + (b A + c A²) X with A = X Xᵀ
#define TOST_MUON_EPS   1e-7   // lower bound of the norm by which the update is divided before the iteration
#define TOST_MUON_STEPS 5
#define TOST_MUON_A     3.4445
#define TOST_MUON_B     (-4.7750)
#define TOST_MUON_C     2.0315
#define TOST_MUON_SCALE 0.2    // of the update, times √max(rows, columns): the size of AdamW's (arXiv 2502.16982)

// ---- Sizes ----

// TSSA's membership Π: learned, as published, or 1/heads for every head and token, an ablation: temp is 0 and has no
// gradient.
typedef enum { TOST_LEARNED, TOST_UNIFORM } TostMembership;

// wpe and denom_bias, the parameters of positions: learned, as published, or none. A trained model without them can
// read sequences of any length.
typedef enum { TOST_POSITIONS_LEARNED, TOST_POSITIONS_NONE } TostPositions;

typedef struct {
    int n_layer, n_head, n_embd;   // L, NH, C; NH divides C
    int block_size;                // maximum T; without positions, only in training
    int vocab_size;                // V
    int bias;                      // 1: every Linear but the output head, and every LayerNorm, has a bias
    int membership;                // TostMembership
    int conv;                      // TOST_CONV_WIDTH: z and ln_2 pass through convolutions over time; 0: as published
    int memory;                    // 1: each head recalls what came after similar tokens; 0: none
    int positions;                 // TostPositions
    int bigrams;                   // rows for pairs of tokens in the table bigram; 0: no table
} TostConfig;

enum { TOST_CONV_WIDTH = 4 };

// The table of TostConfig's fields. Columns: field, which is also the key in checkpoints; option; kind, and its values
// as --help shows them; whether checkpoints have it always or only if it is not 0; lowest and highest value (with
// "a|b", the only ones); the rest of the option's row. Option, key and checks expand from it (options.c, metadata.c,
// model.c).
#define TOST_CONFIG(X) \
    X(n_layer,    "layers",     INT,    "N",               ALWAYS,  1, TOST_MAX_LAYERS, .help = "number of layers") \
    X(n_head,     "heads",      INT,    "N",               ALWAYS,  1, TOST_MAX_HEADS, \
      .help = "number of heads; must divide --channels") \
    X(n_embd,     "channels",   INT,    "N",               ALWAYS,  1, TOST_MAX_CHANNELS, .help = "embedding size") \
    X(block_size, "block-size", INT,    "N",               ALWAYS,  1, TOST_MAX_BLOCK_SIZE, \
      .help = "longest sequence; with --positions none, only in training", .unit = "tokens") \
    X(vocab_size, "vocab-size", INT,    "N",               ALWAYS,  1, TOST_MAX_VOCAB_SIZE, \
      .help = "vocabulary size", .default_text = "that of the tokenizer, rounded up to a multiple of 64") \
    X(bias,       "bias",       INT,    "0|1",             ALWAYS,  0, 1, \
      .help = "1: Linear and LayerNorm layers have a bias") \
    X(membership, "membership", CHOICE, "learned|uniform", NOT_0, 0, 1, \
      .help = "membership of tokens in heads: learned as published, or uniform (1/heads), for comparison") \
    X(conv,       "conv",       INT,    "0|4",             NOT_0, 0, TOST_CONV_WIDTH, \
      .help = "4: the output of c_attn and the input of the MLP pass through causal convolutions over 4 tokens, with " \
      "one filter per channel, which start as the identity; --init can add them. 0: as published") \
    X(memory,     "memory",     INT,    "0|1",             NOT_0, 0, 1, \
      .help = "1: each head keeps a matrix, updated by the delta rule, that recalls what came after similar tokens; " \
      "it has no effect at first, and --init can add it; CUDA: for heads of at most 272 channels. 0: as published") \
    X(positions,  "positions",  CHOICE, "learned|none",    NOT_0, 0, 1, \
      .help = "position embeddings and denom_bias: learned as published, or none; without them, the trained model " \
      "can read sequences of any length") \
    X(bigrams,    "bigrams",    INT,    "N",               NOT_0, 0, TOST_MAX_VOCAB_SIZE, \
      .help = "N > 0: after the layers, add two embeddings: of the token, and of the pair of the token before and " \
      "this one, from N rows that the pairs share by a hash. Lowers the loss at little cost in time, but overfits " \
      "sooner if the data repeats; has no effect at first, and --init can add it. 0: as published")

// Largest sizes, on the command line and in files.
enum {
    TOST_MAX_LAYERS     = 10000,
    TOST_MAX_HEADS      = 1 << 16,
    TOST_MAX_CHANNELS   = 1 << 20,
    TOST_MAX_BLOCK_SIZE = INT32_MAX,
    TOST_MAX_VOCAB_SIZE = 1 << 28,
    TOST_MAX_BATCH      = 1 << 20,
};

bool tost_config_check(const TostConfig* c, TostError* err);   // positive sizes, heads divide channels, no overflow

TextLine model_sizes(const TostConfig* c);                     // "6 layers, …, no bias"

// The longest sequence that a trained model can read.
static inline int tost_max_seq(const TostConfig* c) {
    return c->positions == TOST_POSITIONS_NONE ? TOST_MAX_BLOCK_SIZE : c->block_size;
}

// The table of parameters. Columns: field, place, name in a state dict (in layers, after "transformer.h.<layer>."),
// shape, initial value, weight decay, optimizer with --optimizer muon, condition for it to exist. Shapes and
// conditions may use
//   C channels, NH heads, V vocabulary size, MAX_T positions, BIAS, CONV, MEMORY, POSITIONS, BIGRAMS.
// Everything else about parameters expands from it: pointers, offsets, counts, names in checkpoints, initial values,
// decay, labels of tests. The order is that of the published state dict.

#define TOST_PARAMS(X) \
    X(wte,         EMBED,  "transformer.wte.weight",  (V, C),         NORMAL,   DECAY,    ADAMW, true) /* tied head */ \
    X(wpe,         EMBED,  "transformer.wpe.weight",  (MAX_T, C),     NORMAL,   DECAY,    ADAMW, POSITIONS) \
    X(gamma1,      LAYER,  "gamma1",                  (C),            GAMMA,    NO_DECAY, ADAMW, true) /* of TSSA */ \
    X(gamma2,      LAYER,  "gamma2",                  (C),            GAMMA,    NO_DECAY, ADAMW, true) \
    X(ln_1_w,      LAYER,  "ln_1.weight",             (C),            ONE,      NO_DECAY, ADAMW, true) \
    X(ln_1_b,      LAYER,  "ln_1.bias",               (C),            ZERO,     NO_DECAY, ADAMW, BIAS) \
    X(temp,        LAYER,  "attn.temp",               (NH, 1),        ONE,      NO_DECAY, ADAMW, true) \
    X(denom_bias,  LAYER,  "attn.denom_bias",         (NH, MAX_T, 1), ZERO,     NO_DECAY, ADAMW, POSITIONS) \
    X(attn_w,      LAYER,  "attn.c_attn.weight",      (C, C),         NORMAL,   DECAY,    MUON,  true) \
    X(attn_b,      LAYER,  "attn.c_attn.bias",        (C),            ZERO,     NO_DECAY, ADAMW, BIAS) \
    X(attn_conv,   LAYER,  "attn.conv.weight",        (C, 1, CONV),   IDENTITY, NO_DECAY, ADAMW, CONV) /* nn.Conv1d */ \
    X(memory_scale, LAYER, "attn.memory_scale",       (C),            ZERO,     NO_DECAY, ADAMW, MEMORY) \
    X(attn_proj_w, LAYER,  "attn.c_proj.weight",      (C, C),         RESIDUAL, DECAY,    MUON,  true) \
    X(attn_proj_b, LAYER,  "attn.c_proj.bias",        (C),            ZERO,     NO_DECAY, ADAMW, BIAS) \
    X(ln_2_w,      LAYER,  "ln_2.weight",             (C),            ONE,      NO_DECAY, ADAMW, true) \
    X(ln_2_b,      LAYER,  "ln_2.bias",               (C),            ZERO,     NO_DECAY, ADAMW, BIAS) \
    X(mlp_conv,    LAYER,  "mlp.conv.weight",         (C, 1, CONV),   IDENTITY, NO_DECAY, ADAMW, CONV) \
    X(fc_w,        LAYER,  "mlp.c_fc.weight",         (4 * C, C),     NORMAL,   DECAY,    MUON,  true) \
    X(fc_b,        LAYER,  "mlp.c_fc.bias",           (4 * C),        ZERO,     NO_DECAY, ADAMW, BIAS) \
    X(fc_proj_w,   LAYER,  "mlp.c_proj.weight",       (C, 4 * C),     RESIDUAL, DECAY,    MUON,  true) \
    X(fc_proj_b,   LAYER,  "mlp.c_proj.bias",         (C),            ZERO,     NO_DECAY, ADAMW, BIAS) \
    X(bigram,      HEAD,   "transformer.bigram.weight", (V + BIGRAMS, C), ZERO,     DECAY_4,  ROWWISE, BIGRAMS > 0) \
    X(ln_f_w,      HEAD,   "transformer.ln_f.weight", (C),            ONE,      NO_DECAY, ADAMW, true) \
    X(ln_f_b,      HEAD,   "transformer.ln_f.bias",   (C),            ZERO,     NO_DECAY, ADAMW, BIAS)

typedef enum { TOST_EMBED, TOST_LAYER, TOST_HEAD } TostPlace;
typedef enum {
    TOST_NORMAL,     // N(0, 0.02)
    TOST_RESIDUAL,   // N(0, 0.02 / sqrt(2·layers)): projections added to the residual stream
    TOST_ONE,
    TOST_ZERO,
    TOST_GAMMA,      // 1e-5
    TOST_IDENTITY    // of a convolution: the last tap is 1, the others are 0
} TostInit;
// DECAY_4: 4 times --weight-decay, for a table whose rows are seldom updated: it memorizes text (dev/results/budget.md)
typedef enum { TOST_NO_DECAY, TOST_DECAY, TOST_DECAY_4 } TostDecay;
static const double tost_decay_factors[] = {0, 1, 4};
typedef enum { TOST_ADAMW, TOST_MUON, TOST_ROWWISE } TostOptimizer;   // ROWWISE: RMSProp with one v per row

#define X(field, place, name, shape, init, decay, optimizer, when) TOST_ROW_##field,
typedef enum { TOST_PARAMS(X) TOST_ROWS } TostRow;
#undef X

enum { TOST_MAX_DIMS = 3, TOST_NAME_MAX = 64 };

// One tensor of a model: a row of the table and, in layers, the layer.
typedef struct {
    char      name[TOST_NAME_MAX];     // full name in a state dict
    TostRow   row;
    int       layer;                   // -1 outside layers
    int       ndim, shape[TOST_MAX_DIMS];
    TostInit  init;
    TostDecay decay;
    TostOptimizer optimizer;           // with --optimizer muon: see tost_optimizer
    size_t    size;                    // elements
    size_t    offset;                  // of the first element in the flat array of all parameters
} TostTensor;

// All tensors of a model in state-dict order. In the flat array, tensors start at multiples of 32 elements; gaps are
// zero.
typedef struct {
    int         count;
    TostTensor* tensor;
    size_t      n_params;              // elements, without gaps
    size_t      flat_size;             // elements, with gaps
    size_t      row_offset[TOST_ROWS]; // of a row's first tensor; SIZE_MAX if absent
    size_t      row_stride[TOST_ROWS]; // from its tensor in a layer to that in the next; 0 outside layers
} TostTensors;

// What updates tensor t in a run with this --optimizer
static inline TostOptimizer tost_optimizer(const TostTensor* t, TostOptimizer run) {
    return run == TOST_MUON ? t->optimizer : TOST_ADAMW;
}

TostTensors tost_tensors(const TostConfig* c);     // requires tost_config_check(c)
void        tost_tensors_free(TostTensors* t);

// Offset of a row's first element in the flat array for a layer (ignored outside layers); SIZE_MAX if absent.
size_t tost_row_offset(const TostTensors* t, TostRow row, int layer);
size_t tost_layer_offset(const TostTensors* t, int layer);   // of the layer's first tensor

// ---- Pointers ----

// Pointers into one flat array of parameters, gradients or moments: the tensors outside of the layers and those
// of one layer, one field per row of the table; NULL if this config has no such tensor.

#define X_SET(field, place, name, shape, init, decay, optimizer, when) { \
        const size_t offset = tost_row_offset(tensors, TOST_ROW_##field, layer); \
        p.field = offset == SIZE_MAX ? NULL : flat + offset; }
#ifdef __cplusplus
extern "C++" {
#define X(field, place, name, shape, init, decay, optimizer, when) T* field;
template <typename T> struct TostParams { TOST_PARAMS(X) };
#undef X

template <typename T> static inline TostParams<T> tost_params(const TostTensors* tensors, T* flat, int layer) {
    TostParams<T> p;
    TOST_PARAMS(X_SET)
    return p;
}
}
#else
#define X(field, place, name, shape, init, decay, optimizer, when) float* field;
typedef struct { TOST_PARAMS(X) } TostParams;
#undef X

static inline TostParams tost_params(const TostTensors* tensors, float* flat, int layer) {
    TostParams p;
    TOST_PARAMS(X_SET)
    return p;
}
#endif
#undef X_SET
