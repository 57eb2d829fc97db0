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

// The commands, here because a setting names those that have it as an option
typedef enum {
    COMMAND_TRAIN, COMMAND_SAMPLE, COMMAND_EVAL, COMMAND_VOCAB, COMMAND_TOKENIZE, COMMAND_INFO, COMMANDS
} Command;

// How checkpoints and --resume treat a setting (UNSAVED: it is not in checkpoints), and the commands with the option
enum {
    UNSAVED = 0,
    FIXED = 1 << 16,         // saved; must not be changed on --resume, because it determines the results
    OVERRIDABLE = 2 << 16,   // saved; may be changed on --resume
    TRAIN = 1 << COMMAND_TRAIN, SAMPLE = 1 << COMMAND_SAMPLE, EVAL = 1 << COMMAND_EVAL,
    VOCAB = 1 << COMMAND_VOCAB, TOKENIZE = 1 << COMMAND_TOKENIZE, INFO = 1 << COMMAND_INFO,
    ALL = FIXED - 1, USE = SAMPLE | EVAL, TEXT = VOCAB | TOKENIZE,   // USE a model, read TEXT
};

typedef struct {
    const char* name;          // NULL: help is a heading of --help
    unsigned    flags;         // of the enum above
    SettingKind kind;
    size_t      field;         // offset in TostRecipe; in options.c, in Options
    const char* values;        // of CHOICE, and for --help: what stands for the value; "": takes no value
    const char* help;          // NULL: only in checkpoints
    double      min, max;      // inclusive range of numbers
    double      value;         // default of a number; that of a recipe's setting is in the presets
    const char* unit;          // of the default value, in --help
    const char* default_text;  // the default in words; NULL: the default value, if any
    const char *not_with, *needs;   // options that must not or must be given too
} Setting;

// The value as on a command line, those of a list with bytes 0x1f between them. NULL: no string or an empty list, an
// integer below its range (not set), a flag that is off or UNSAVED. base: the struct. free()
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

// The table of TostRecipe's fields, besides the sizes (TOST_CONFIG). Columns: field; option of train, which is also the
// key in checkpoints, after "option."; how checkpoints and --resume treat it, and other commands that have it; kind,
// and its values as --help shows them; lowest and highest value; the rest of the setting. The struct, options, keys,
// the check and the line "changed" of --resume, and the differences that `info RUN RUN` shows expand from it. It has
// parts, because options that are not settings of a recipe stand between them in --help.
#define RECIPE_PRESET(X) \
    X(preset, "preset", FIXED, CHOICE, TOST_PRESETS, 0, 0, .help = "model size and hyperparameters")

#define RECIPE_START(X) \
    X(keep_optimizer, "keep-optimizer", FIXED, FLAG, "", 0, 0, \
      .help = "with --init: also start from the optimizer's moments, and correct their bias for the number of " \
      "updates that they contain; steps, schedule and data start from the beginning", .needs = "init")

#define RECIPE_DATA(X) \
    X(data, "data", OVERRIDABLE, LIST, "GLOB", 0, 0, .help = "token shards to train on. Several GLOB:WEIGHT " \
      "are mixed in proportion to their weights, whatever the sum") \
    X(val_data, "val-data", OVERRIDABLE, LIST, "GLOB", 0, 0, .help = "token shards to validate on", \
      .default_text = "--data with train replaced by val, if such files exist") \
    X(order, "order", FIXED, CHOICE, "sequential|shuffled", 0, 0, /* in the order of DataOrder */ \
      .help = "order of the training data; shuffled: shards and sequences are permuted in each epoch")

#define RECIPE_TRAINING(X) \
    X(steps, "steps", OVERRIDABLE, INT64, "N", 0, TOST_MAX_COUNT, \
      .help = "total number of steps, including those of a resumed run; the schedule ends there", .unit = "steps") \
    X(epochs, "epochs", UNSAVED, REAL, "X", 1e-6, 1e6, /* 0: not given */ \
      .help = "set the steps to X passes over the training data; with weights, X times the samples of all sources", \
      .default_text = "--steps", .not_with = "steps") \
    X(batch, "batch", OVERRIDABLE, INT, "N", 1, TOST_MAX_BATCH, \
      .help = "micro-batch size, in sequences. The last bits of losses, gradients and weights depend on it", \
      .default_text = "that of the preset; on a GPU, the largest that divides the step, has up to 65,536 tokens and " \
      "fits in memory") \
    X(seq, "seq", FIXED, INT, "N", 1, TOST_MAX_BLOCK_SIZE, .help = "sequence length, at most --block-size", \
      .unit = "tokens") \
    X(chunk, "chunk", OVERRIDABLE, INT, "N", 0, TOST_MAX_BLOCK_SIZE, \
      .help = "process sequences N tokens at a time, with the memory of N tokens and 4/3 of the computation. " \
      TOST_BITS, .default_text = "whole sequences") \
    X(total_batch, "total-batch", FIXED, INT64, "N", 1, 1e12, \
      .help = "tokens per step of all ranks, a multiple of batch × seq × parts, accumulated over micro-batches", \
      .unit = "tokens") \
    X(optimizer, "optimizer", FIXED, CHOICE, "adamw|muon", 0, 0, /* in the order of TostOptimizer */ \
      .help = "muon: for the weights of Linear in the layers, with AdamW for the rest; needs fewer tokens for the " \
      "same loss. adamw: as published") \
    X(lr, "lr", OVERRIDABLE, REAL, "X", 0, 100, \
      .help = "peak learning rate; with --init, by default the last of its run or, if that is 0, a tenth of the peak") \
    X(schedule, "schedule", OVERRIDABLE, CHOICE, "cosine|wsd|linear|constant", 0, 0, /* order: ScheduleKind */ \
      .help = "learning rate after the warm-up; wsd: constant, then linear decay over the last --decay-frac of the " \
      "steps. A wsd run can be extended with --resume --steps N before its decay, a constant one at any time") \
    X(decay_frac, "decay-frac", OVERRIDABLE, REAL, "X", 0, 1, .help = "length of the decay of --schedule wsd", \
      .unit = "of the steps") \
    X(warmup, "warmup", OVERRIDABLE, INT64, "N", 0, TOST_MAX_COUNT, \
      .help = "linear warm-up of the learning rate from 0 to --lr; by default at most a tenth of --steps", \
      .unit = "steps") \
    X(min_lr_frac, "min-lr-frac", OVERRIDABLE, REAL, "X", 0, 1, \
      .help = "final learning rate, as a fraction of --lr") \
    X(weight_decay, "weight-decay", FIXED, REAL, "X", 0, 100, \
      .help = "weight decay of embeddings and Linear weights") \
    X(momentum, "momentum", FIXED, REAL, "X", 0, 0.999999, .help = "decay rate of Muon's momentum") \
    X(beta1, "beta1", FIXED, REAL, "X", 0, 0.999999, .help = "AdamW decay rate of the first moment") \
    X(beta2, "beta2", FIXED, REAL, "X", 0, 0.999999, .help = "AdamW decay rate of the second moment") \
    X(eps, "eps", FIXED, REAL, "X", 1e-30, 1, .help = "AdamW epsilon, added to the denominator") \
    X(grad_clip, "grad-clip", FIXED, REAL, "X", 0, 1e9, .help = "maximum gradient norm; 0: no clipping") \
    X(max_skipped, "max-skipped", OVERRIDABLE, INT64, "N", 0, TOST_MAX_COUNT, \
      .help = "stop after more than N consecutive steps are skipped because loss or gradient is not finite", \
      .unit = "steps") \
    X(seed, "seed", FIXED, INT64, "N", 0, TOST_MAX_SEED, .help = "seed for initial weights, data order and samples")

#define RECIPE_VALIDATION(X) \
    X(val_every, "val-every", OVERRIDABLE, INT64, "N", 0, TOST_MAX_COUNT, \
      .help = "validate every N steps and after the last; 0: never", .unit = "steps") \
    X(val_windows, "val-windows", OVERRIDABLE, INT64, "N", 0, TOST_MAX_COUNT, \
      .help = "validate on N windows of --seq tokens, spread evenly over --val-data, always the same ones; 0: on all", \
      .unit = "windows") \
    X(sample_every, "sample-every", OVERRIDABLE, INT64, "N", 0, TOST_MAX_COUNT, \
      .help = "print a sample every N steps and after the last; 0: never", .unit = "steps") \
    X(sample_tokens, "sample-tokens", OVERRIDABLE, INT64, "N", 1, TOST_MAX_COUNT, .help = "length of each sample", \
      .unit = "tokens") \
    X(save_every, "save-every", OVERRIDABLE, INT64, "N", 0, TOST_MAX_COUNT, \
      .help = "save a checkpoint every N steps and after the last; 0: never", .unit = "steps") \
    X(keep, "keep", OVERRIDABLE, INT64, "N", 0, TOST_MAX_COUNT, .help = "keep only the newest N checkpoints; 0: all", \
      .unit = "checkpoints") \
    X(keep_best, "keep-best", OVERRIDABLE, FLAG, "", 0, 0, \
      .help = "also keep the checkpoint of the best validation, as best in the run folder", \
      .default_text = "off; on with --for, and in a new run that reads data more than 4 times") \
    X(stop_at_val, "stop-at-val", OVERRIDABLE, REAL, "LOSS", 0, 1e9, \
      .help = "save and stop when the validation loss is at most LOSS; 0: never", .default_text = "off")

#define RECIPE_SAMPLING(X) \
    X(temperature, "temperature", OVERRIDABLE | SAMPLE, REAL, "X", 0, 1000, \
      .help = "divide logits by X; 0: always the most likely token") \
    X(top_k, "top-k", OVERRIDABLE | SAMPLE, INT, "N", 0, TOST_MAX_VOCAB_SIZE, \
      .help = "sample from the N most likely tokens; 0: from all") \
    X(top_p, "top-p", OVERRIDABLE | SAMPLE, REAL, "X", 1e-9, 1, \
      .help = "after --temperature and --top-k, sample from the smallest set of most likely tokens with total " \
      "probability X; 1: from all")

#define RECIPE_MACHINE(X) \
    X(dtype, "dtype", OVERRIDABLE | USE, CHOICE, TOST_DTYPES, 0, 0, \
      .help = "operands of matrix products; sums and parameters are always float32; tf32: CUDA only. By default " \
      "bf16 on a GPU and, to train, on an AMD CPU with AVX-512 BF16") \
    X(threads, "threads", OVERRIDABLE | USE | TEXT, INT, "N", 0, THREADS_LIMIT, \
      .help = "CPU threads; 0: OMP_NUM_THREADS, or all cores, and fewer while other programs use them") \
    X(parts, "parts", OVERRIDABLE, INT, "N", 1, TOST_MAX_PARTS, \
      .help = "divide a step into N parts, added in a fixed order: the same results on one rank, or on R ranks " \
      "if N / R is a power of two. " TOST_BITS, .default_text = "one per rank")

#define RECIPE_FILES(X)      /* known after the start; not options */ \
    X(init_file, "init-file", FIXED, STRING, "", 0, 0)   /* the model file of --init; NULL: none */ \
    X(data_tokens, "data-tokens", FIXED, INT64, "", 0, 9e15)   /* of the training shards; 0: not known */ \
    X(data_crc, "data-blocks-crc", FIXED, INT64, "", 0, UINT32_MAX) \
    X(val_crc, "val-blocks-crc", FIXED, INT64, "", 0, UINT32_MAX)

#define TOST_RECIPE(X) \
    RECIPE_PRESET(X) RECIPE_START(X) RECIPE_DATA(X) RECIPE_TRAINING(X) RECIPE_VALIDATION(X) \
    RECIPE_SAMPLING(X) RECIPE_MACHINE(X) RECIPE_FILES(X)

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
#define X(field, name, saved, kind, ...) TYPE_##kind field;
    TOST_RECIPE(X)
#undef X
    uint64_t given;   // bits of recipe_given
} TostRecipe;

// The rows of recipe_table, sizes first
typedef enum {
#define X(field, ...) RECIPE_##field,
    TOST_CONFIG(X) RECIPE_SIZES, RECIPE_before = RECIPE_SIZES - 1, TOST_RECIPE(X)
#undef X
    RECIPE_ROWS
} RecipeRow;
_Static_assert((int)RECIPE_ROWS <= 64, "TostRecipe.given has a bit for each row");
extern const Setting recipe_table[RECIPE_ROWS];

// Whether the value is from the user or from the run of --resume or --init; otherwise it is a default.
static inline bool recipe_given(const TostRecipe* r, RecipeRow row) { return r->given >> row & 1; }

static inline Schedule schedule_of(const TostRecipe* r) {
    return (Schedule){(ScheduleKind)r->schedule, r->steps, r->warmup, r->lr, r->min_lr_frac, r->decay_frac};
}

extern const TostRecipe tost_presets[];   // in the order of TOST_PRESETS, with all defaults; no strings or lists
// Sets what is not given to the values of a preset. Strings and lists that are not given must be empty.
void recipe_fill(TostRecipe* r, const TostRecipe* preset);
TostRecipe recipe_copy(const TostRecipe* r);
void recipe_free(TostRecipe* r);

// The saved settings, as keys and values. key_values_free
KeyValues recipe_write(const TostRecipe* r);
// Reads the settings of a run: those that are not given get the saved values and then count as given. Fails, naming the
// setting, if a given value differs and is FIXED, or a saved one is malformed. file: where they are saved, for messages
bool recipe_read(TostRecipe* r, const KeyValues* saved, const char* file, TostError* err);
// After recipe_read: "--steps 9 instead of 6, …", settings that were changed, or that the file or this version lacks
TextLine recipe_changed(const TostRecipe* r, const KeyValues* saved);
// Takes the sizes from a model file. Fails, naming the size, if a given one differs; with `extend`, the given --conv
// and --memory are added to a model without them.
bool recipe_take_config(TostRecipe* r, const TostConfig* config, bool extend, const char* file, TostError* err);
// Sets the steps of --epochs for data with this many samples, and the warm-up, unless it is given.
void recipe_take_samples(TostRecipe* r, uint64_t samples);
// batch × seq, or batch × chunk if that is less and not 0, must fit in an int.
bool recipe_check_pass(int batch, int seq, int chunk, TostError* err);
// The engine's options for max_batch sequences of seq tokens. parts: of a step on this rank; 0: not for training
TostEngineOptions recipe_engine(const TostRecipe* r, int max_batch, int seq, int parts, TostComm* comm);
