// recipe.h: the recipe of a training run, all that determines what it computes: one value with one table. The command
// line fills it, checkpoints keep it, and the training loop reads it.
#pragma once

#include "base/files.h"
#include "base/key_values.h"
#include "base/openmp.h"
#include "base/text.h"
#include "engine.h"
#include "model.h"
#include "schedule.h"

typedef enum { ORDER_SEQUENTIAL, ORDER_SHUFFLED } DataOrder;

// ---- A setting: a named value in a struct ----

// HELP has no value. CHOICE: "a|b|c" in values is 0, 1, 2; DURATION: in seconds
typedef enum { HELP, FLAG, INT, INT64, REAL, DURATION, STRING, LIST, CHOICE } SettingKind;

// How checkpoints and --resume treat a setting. UNSAVED: not in checkpoints. FIXED: saved; must not be changed on
// --resume, because it determines the results. OVERRIDABLE: saved; may be changed. Sizes and the values in
// metadata.c have instead: ALWAYS, in every checkpoint; NOT_0, may be absent if it has the field's default
typedef enum { UNSAVED, FIXED, OVERRIDABLE, ALWAYS, NOT_0 } SettingSaved;

typedef struct {
    const char* name;          // NULL: help is a heading of --help
    unsigned    commands;      // in options.c: bits of those that have it as an option
    SettingKind kind;
    size_t      field;         // offset in the struct that has the value: TostRecipe, Options or CheckpointInfo
    const char* values;        // of CHOICE, and for --help: what stands for the value; "": takes no value
    SettingSaved saved;
    const char* help;          // NULL: only in checkpoints
    double      min, max;      // inclusive range of numbers
    double      value;         // default of a number; that of a recipe's setting is in the presets
    const char* unit;          // of the default value, in --help
    const char* default_text;  // the default in words; NULL: the default value, if any
    const char *not_with, *needs;   // options that must not or must be given too
} Setting;

// The value as on a command line, those of a list with bytes 0x1f between them. NULL: no string or an empty list, an
// integer or choice below its range (not set), a flag that is off or UNSAVED. base: the struct. free()
char* setting_text(const void* base, const Setting* row);
// Sets the value, or adds one to a list. Strings are copied; setting_clear frees them. Fails, naming the setting.
bool  setting_parse(void* base, const Setting* row, const char* text, TostError* err);
void  setting_set(void* base, const Setting* row, double value);   // of a number or a choice
void  setting_clear(void* base, const Setting* row);
char* shown_value(const char* text);   // for people: with spaces between the values of a list; free()
TextLine choice_name(const char* choices, int n);   // the nth name in "a|b|c"; empty: none

// ---- The recipe ----

#define TOST_MAX_COUNT 1e9                 // of steps, windows, samples
#define TOST_MAX_PARTS 65536
#define TOST_MAX_SEED  9007199254740991    // 2^53 - 1: checked as a double
#define TOST_BITS      "Changing it on --resume may change the last bits of the results"
#define TOST_DTYPES    "fp32|tf32|bf16"    // in the order of TostDtype
#define TOST_PRESETS   "starter|small|tost-base|tost-medium|tost-large"   // in the order of tost_presets

// The table of TostRecipe's fields, besides the sizes. Columns, as in TOST_CONFIG: field; option of train, which is also
// the key in checkpoints, after "option."; kind, and its values as --help shows them; how checkpoints and --resume treat
// it; lowest and highest value; the rest of the setting. The struct, options, keys, and the check and the line "changed"
// of --resume expand from it. It has parts, because options that are not settings of a recipe stand between them in
// --help, and because other commands have some of them.
#define RECIPE_PRESET(X) \
    X(preset, "preset", CHOICE, TOST_PRESETS, FIXED, 0, 0, .help = "model size and hyperparameters")

#define RECIPE_START(X) \
    X(keep_optimizer, "keep-optimizer", FLAG, "", FIXED, 0, 0, \
      .help = "with --init: also start from the optimizer's moments, and correct their bias for the number of " \
      "updates that they contain; steps, schedule and data start from the beginning", .needs = "init")

#define RECIPE_DATA(X) \
    X(data, "data", LIST, "GLOB", OVERRIDABLE, 0, 0, .help = "token shards to train on. Several GLOB:WEIGHT " \
      "are mixed in proportion to their weights, whatever the sum") \
    X(val_data, "val-data", LIST, "GLOB", OVERRIDABLE, 0, 0, .help = "token shards to validate on", \
      .default_text = "--data with train replaced by val, if such files exist") \
    X(order, "order", CHOICE, "sequential|shuffled", FIXED, 0, 0, /* in the order of DataOrder */ \
      .help = "order of the training data; shuffled: shards and sequences are permuted in each epoch")

#define RECIPE_TRAINING(X) \
    X(steps, "steps", INT64, "N", OVERRIDABLE, 0, TOST_MAX_COUNT, \
      .help = "total number of steps, including those of a resumed run; the schedule ends there", .unit = "steps") \
    X(epochs, "epochs", REAL, "X", UNSAVED, 1e-6, 1e6, /* 0: not given */ \
      .help = "set the steps to X passes over the training data; with weights, X times the samples of all sources", \
      .default_text = "--steps", .not_with = "steps") \
    X(batch, "batch", INT, "N", OVERRIDABLE, 1, TOST_MAX_BATCH, \
      .help = "micro-batch size, in sequences. The last bits of losses, gradients and weights depend on it", \
      .default_text = "that of the preset; on a GPU, the largest that divides the step, has up to 65,536 tokens and " \
      "fits in memory") \
    X(seq, "seq", INT, "N", FIXED, 1, TOST_MAX_BLOCK_SIZE, .help = "sequence length, at most --block-size", \
      .unit = "tokens") \
    X(chunk, "chunk", INT, "N", OVERRIDABLE, 0, TOST_MAX_BLOCK_SIZE, \
      .help = "process sequences N tokens at a time, with the memory of N tokens and 4/3 of the computation. " \
      TOST_BITS, .default_text = "whole sequences") \
    X(total_batch, "total-batch", INT64, "N", FIXED, 1, 1e12, \
      .help = "tokens per step of all ranks, a multiple of batch × seq × parts, accumulated over micro-batches", \
      .unit = "tokens") \
    X(optimizer, "optimizer", CHOICE, "adamw|muon", FIXED, 0, 0, /* in the order of TostOptimizer */ \
      .help = "muon: for the weights of Linear in the layers, with row-wise RMSProp for bigrams and AdamW for the " \
      "rest; needs fewer tokens for the same loss. adamw: as published") \
    X(lr, "lr", REAL, "X", OVERRIDABLE, 0, 100, \
      .help = "peak learning rate; with --init, by default the last of its run or, if that is 0, a tenth of the peak") \
    X(schedule, "schedule", CHOICE, "cosine|wsd|linear|constant", OVERRIDABLE, 0, 0, /* order: ScheduleKind */ \
      .help = "learning rate after the warm-up; wsd: constant, then linear decay over the last --decay-frac of the " \
      "steps. A wsd run can be extended with --resume --steps N before its decay, a constant one at any time") \
    X(decay_frac, "decay-frac", REAL, "X", OVERRIDABLE, 0, 1, .help = "length of the decay of --schedule wsd", \
      .unit = "of the steps") \
    X(warmup, "warmup", INT64, "N", OVERRIDABLE, 0, TOST_MAX_COUNT, \
      .help = "linear warm-up of the learning rate from 0 to --lr; by default at most a tenth of --steps", \
      .unit = "steps") \
    X(min_lr_frac, "min-lr-frac", REAL, "X", OVERRIDABLE, 0, 1, \
      .help = "final learning rate, as a fraction of --lr") \
    X(weight_decay, "weight-decay", REAL, "X", FIXED, 0, 100, \
      .help = "weight decay of embeddings and Linear weights; of bigrams, 4 times as much") \
    X(momentum, "momentum", REAL, "X", FIXED, 0, 0.999999, .help = "decay rate of Muon's momentum") \
    X(beta1, "beta1", REAL, "X", FIXED, 0, 0.999999, .help = "AdamW decay rate of the first moment") \
    X(beta2, "beta2", REAL, "X", FIXED, 0, 0.999999, .help = "decay rate of the second moment of AdamW and RMSProp") \
    X(eps, "eps", REAL, "X", FIXED, 1e-30, 1, .help = "epsilon of AdamW and RMSProp, added to the denominator") \
    X(grad_clip, "grad-clip", REAL, "X", FIXED, 0, 1e9, .help = "maximum gradient norm; 0: no clipping") \
    X(max_skipped, "max-skipped", INT64, "N", OVERRIDABLE, 0, TOST_MAX_COUNT, \
      .help = "stop after more than N consecutive steps are skipped because loss or gradient is not finite", \
      .unit = "steps") \
    X(seed, "seed", INT64, "N", FIXED, 0, TOST_MAX_SEED, .help = "seed for initial weights, data order and samples")

#define RECIPE_VALIDATION(X) \
    X(val_every, "val-every", INT64, "N", OVERRIDABLE, 0, TOST_MAX_COUNT, \
      .help = "validate every N steps and after the last; 0: never", .unit = "steps") \
    X(val_windows, "val-windows", INT64, "N", OVERRIDABLE, 0, TOST_MAX_COUNT, \
      .help = "validate on N windows of --seq tokens, spread evenly over --val-data, always the same ones; 0: on all", \
      .unit = "windows") \
    X(sample_every, "sample-every", INT64, "N", OVERRIDABLE, 0, TOST_MAX_COUNT, \
      .help = "print a sample every N steps and after the last; 0: never", .unit = "steps") \
    X(sample_tokens, "sample-tokens", INT64, "N", OVERRIDABLE, 1, TOST_MAX_COUNT, .help = "length of each sample", \
      .unit = "tokens") \
    X(save_every, "save-every", INT64, "N", OVERRIDABLE, 0, TOST_MAX_COUNT, \
      .help = "save a checkpoint every N steps and after the last; 0: never", .unit = "steps") \
    X(keep, "keep", INT64, "N", OVERRIDABLE, 0, TOST_MAX_COUNT, .help = "keep only the newest N checkpoints; 0: all", \
      .unit = "checkpoints") \
    X(keep_best, "keep-best", FLAG, "", OVERRIDABLE, 0, 0, \
      .help = "also keep the checkpoint of the best validation, as best in the run folder", \
      .default_text = "off; on with --for, and in a new run that reads data more than 4 times") \
    X(stop_at_val, "stop-at-val", REAL, "LOSS", OVERRIDABLE, 0, 1e9, \
      .help = "save and stop when the validation loss is at most LOSS; 0: never", .default_text = "off")

#define RECIPE_SAMPLING(X) \
    X(temperature, "temperature", REAL, "X", OVERRIDABLE, 0, 1000, \
      .help = "divide logits by X; 0: always the most likely token") \
    X(top_k, "top-k", INT, "N", OVERRIDABLE, 0, TOST_MAX_VOCAB_SIZE, \
      .help = "sample from the N most likely tokens; 0: from all") \
    X(top_p, "top-p", REAL, "X", OVERRIDABLE, 1e-9, 1, \
      .help = "after --temperature and --top-k, sample from the smallest set of most likely tokens with total " \
      "probability X; 1: from all")

#define RECIPE_DTYPE(X) \
    X(dtype, "dtype", CHOICE, TOST_DTYPES, OVERRIDABLE, 0, 0, \
      .help = "operands of matrix products; sums and parameters are always float32; tf32: CUDA only. By default " \
      "bf16 on a GPU and, to train, on an AMD CPU with AVX-512 BF16")

#define RECIPE_THREADS(X) \
    X(threads, "threads", INT, "N", OVERRIDABLE, 0, THREADS_LIMIT, \
      .help = "CPU threads; 0: OMP_NUM_THREADS, or all cores, and fewer while other programs use them")

#define RECIPE_PARTS(X) \
    X(parts, "parts", INT, "N", OVERRIDABLE, 1, TOST_MAX_PARTS, \
      .help = "divide a step into N parts, added in a fixed order: the same results on one rank, or on R ranks " \
      "if N / R is a power of two. " TOST_BITS, .default_text = "one per rank")

#define RECIPE_FILES(X)      /* known after the start; not options. .help = NULL: the last column must not be empty */ \
    X(init_file, "init-file", STRING, "", FIXED, 0, 0, .help = NULL)   /* the model file of --init; NULL: none */ \
    X(data_tokens, "data-tokens", INT64, "", FIXED, 0, 9e15, .help = NULL)   /* of the training shards; 0: not known */ \
    X(data_crc, "data-blocks-crc", INT64, "", FIXED, 0, UINT32_MAX, .help = NULL) \
    X(val_crc, "val-blocks-crc", INT64, "", FIXED, 0, UINT32_MAX, .help = NULL)

#define TOST_RECIPE(X) \
    RECIPE_PRESET(X) RECIPE_START(X) RECIPE_DATA(X) RECIPE_TRAINING(X) RECIPE_VALIDATION(X) \
    RECIPE_SAMPLING(X) RECIPE_DTYPE(X) RECIPE_THREADS(X) RECIPE_PARTS(X) RECIPE_FILES(X)

#define TYPE_FLAG     bool
#define TYPE_INT      int
#define TYPE_CHOICE   int
#define TYPE_INT64    int64_t
#define TYPE_REAL     double
#define TYPE_STRING   char*
#define TYPE_LIST     StringList

// Its strings are owned: recipe_free
typedef struct {
    TostConfig config;
#define X(field, name, kind, ...) TYPE_##kind field;
    TOST_RECIPE(X)
#undef X
    uint64_t given;   // bits of recipe_given
} TostRecipe;

// The rows of recipe_table, sizes first
typedef enum {
#define X(field, ...) RECIPE_##field,
    TOST_CONFIG(X) TOST_RECIPE(X)
#undef X
    RECIPE_ROWS, RECIPE_SIZES = RECIPE_preset   // the first row after the sizes
} RecipeRow;
_Static_assert((int)RECIPE_ROWS <= 64, "TostRecipe.given has a bit for each row");
extern const Setting recipe_table[RECIPE_ROWS];

// Whether the value is from the user or from the run of --resume or --init; otherwise it is a default.
static inline bool recipe_given(const TostRecipe* recipe, RecipeRow row) { return recipe->given >> row & 1; }

static inline Schedule schedule_of(const TostRecipe* recipe) {
    return (Schedule){(ScheduleKind)recipe->schedule, recipe->steps, recipe->warmup, recipe->lr, recipe->min_lr_frac,
                      recipe->decay_frac};
}

extern const TostRecipe tost_presets[];   // in the order of TOST_PRESETS, with all defaults; no strings or lists
// Sets what is not given to the values of a preset. Strings and lists that are not given must be empty.
void recipe_fill(TostRecipe* recipe, const TostRecipe* preset);
TostRecipe recipe_copy(const TostRecipe* recipe);
void recipe_free(TostRecipe* recipe);

// The saved settings, as keys and values. key_values_free
KeyValues recipe_write(const TostRecipe* recipe);
// Reads the settings of a run: those that are not given get the saved values and then count as given. Fails, naming the
// setting, if a given value differs and is FIXED, or a saved one is malformed. file: where they are saved, for messages
bool recipe_read(TostRecipe* recipe, const KeyValues* saved, const char* file, TostError* err);
// After recipe_read: "--steps 9 instead of 6, …", settings that were changed, or that the file or this version lacks
TextLine recipe_changed(const TostRecipe* recipe, const KeyValues* saved);
// Derives sequence length, parts, micro-batch size and tokens per step from the sizes, unless given. Fails if those
// given do not fit together or on this number of ranks.
bool recipe_derive(TostRecipe* recipe, int ranks, bool resumed, TostError* err);
// Takes the sizes from a model file, then recipe_derive. Fails, naming the setting, if a given size differs; a new run
// adds the given --conv, --memory and --bigrams to a model without them.
bool recipe_set_config(TostRecipe* recipe, const TostConfig* config, int ranks, bool resumed, const char* file,
                        TostError* err);
// Sets the steps of --epochs for data with this many samples, and the warm-up, unless it is given.
void recipe_set_samples(TostRecipe* recipe, uint64_t samples);
// batch × seq, or batch × chunk if that is less and not 0, must fit in an int.
bool recipe_check_pass(int batch, int seq, int chunk, TostError* err);
// The engine's options for max_batch sequences of seq tokens. parts: of a step on this rank; 0: not for training
TostEngineOptions recipe_engine(const TostRecipe* recipe, int max_batch, int seq, int parts, TostComm* comm);
// The settings of an update. norm: of the gradients, for --grad-clip; number: which update of the moments, from 1
TostUpdate        recipe_update(const TostRecipe* recipe, double lr, double norm, int64_t number);
