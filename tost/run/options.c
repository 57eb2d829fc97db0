// options.c: the command line. One table describes every option: type, range, default, help.
#include "run/options.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "cpu/threads.h"
#include "ranks/comm.h"
#include "ranks/slices.h"
#include "run/outlier.h"

// ---------------------------------------------------------------------------------------------
// The table

enum {
    TRAIN = 1 << COMMAND_TRAIN, SAMPLE = 1 << COMMAND_SAMPLE, EVAL = 1 << COMMAND_EVAL,
    TOKENIZE = 1 << COMMAND_TOKENIZE, INFO = 1 << COMMAND_INFO,
    INSPECT = 1 << COMMAND_INSPECT, ALL = (1 << COMMANDS) - 1,
};

typedef enum { MODEL, FILES, TRAINING, EVALUATION, REPORTS, SAMPLING, MACHINE, GROUPS } Group;

static const char* const group_titles[GROUPS] = {
    "Model", "Files", "Training", "Evaluation", "Validation, samples and checkpoints", "Sampling", "Machine and output",
};

// CHOICE: "a|b|c" in metavar is 0, 1, 2; DURATION: a double, in seconds
typedef enum { HELP, FLAG, INT, INT64, REAL, DURATION, STRING, CHOICE, PRESET } Kind;

// How checkpoints and --resume treat the option.
typedef enum {
    NOT_SAVED,
    OVERRIDABLE,   // saved; may be changed on --resume
    FIXED,         // saved; must not be changed on --resume, because it determines the results
} Saved;

typedef struct {
    const char* name;
    unsigned    commands;      // bit mask; 0: not an option, only saved in checkpoints
    Group       group;
    Kind        kind;
    size_t      field;         // offset in Options
    Saved       saved;
    const char* metavar;
    double      min, max;      // inclusive range of numbers
    double      value;         // default of numbers, unless the preset has one
    const char* unit;          // of the default value, in --help
    const char* default_text;  // the default in words; NULL: the default value, if any
    const char* help;
} Row;

#define AT(field) offsetof(Options, field)
#define TOKEN_TEXT(x) #x
#define NUMBER_TEXT(macro) TOKEN_TEXT(macro)
#define DTYPES "fp32|tf32|bf16"   // in the order of TostDtype
#define MAX_COUNT 1e9                 // of steps, windows, samples
#define MAX_PARTS 65536
#define MAX_SEED  9007199254740992    // 2^53: checked as a double

// An option whose row differs between commands has several rows.
static const Row table[] = {
    {"preset", TRAIN, MODEL, PRESET, AT(preset), FIXED, "NAME", .help = "model size and hyperparameters:"},
    {"layers", TRAIN, MODEL, INT, AT(config.n_layer), NOT_SAVED, "N", .min = 1, .max = TOST_MAX_LAYERS,
     .help = "number of layers"},
    {"heads", TRAIN, MODEL, INT, AT(config.n_head), NOT_SAVED, "N", .min = 1, .max = TOST_MAX_HEADS,
     .help = "number of heads; must divide --channels"},
    {"channels", TRAIN, MODEL, INT, AT(config.n_embd), NOT_SAVED, "N", .min = 1, .max = TOST_MAX_CHANNELS,
     .help = "embedding size"},
    {"block-size", TRAIN, MODEL, INT, AT(config.block_size), NOT_SAVED, "N", .min = 1, .max = TOST_MAX_BLOCK_SIZE,
     .unit = "tokens", .help = "maximum sequence length"},
    {"vocab-size", TRAIN, MODEL, INT, AT(config.vocab_size), NOT_SAVED, "N", .min = 1, .max = TOST_MAX_VOCAB_SIZE,
     .default_text = "that of the tokenizer, rounded up to a multiple of 64", .help = "vocabulary size"},
    {"vocab-size", INFO, MODEL, INT, AT(config.vocab_size), NOT_SAVED, "N", .min = 1, .max = TOST_MAX_VOCAB_SIZE,
     .default_text = "that of the tokenizer next to the shard, if there is one",
     .help = "check that the ids of a shard are less than N"},
    {"bias", TRAIN, MODEL, INT, AT(config.bias), NOT_SAVED, "0|1", .max = 1,
     .help = "1: Linear and LayerNorm layers have a bias"},
    {"membership", TRAIN, MODEL, CHOICE, AT(config.membership), NOT_SAVED, "learned|uniform",
     .help = "membership of tokens in heads: learned as published, or uniform (1/heads), for comparison"},
    {"init", TRAIN, MODEL, STRING, AT(init), NOT_SAVED, "FILE", .default_text = "random weights",
     .help = "start from the weights and model sizes of a safetensors file, checkpoint or run, with a new optimizer "
             "state"},
    {"extend-block", TRAIN, MODEL, INT, AT(extend_block), NOT_SAVED, "N", .min = 1, .max = TOST_MAX_BLOCK_SIZE,
     .default_text = "the block size of --init",
     .help = "with --init: extend the position parameters (wpe and denom_bias) to N positions. The new positions are "
             "copies of the last one"},
    {"model", SAMPLE | EVAL | INFO | INSPECT, MODEL, STRING, AT(model), NOT_SAVED, "PATH",
     .default_text = "newest run in out/",
     .help = "safetensors file, checkpoint folder, or run folder (uses its newest checkpoint)"},
    {"weights", SAMPLE | EVAL | INFO | INSPECT, MODEL, CHOICE, AT(weights), NOT_SAVED, "trained|ema",
     .help = "the trained weights, or their moving average (train --ema)"},
    {"data", TRAIN, FILES, STRING, AT(data), OVERRIDABLE, "GLOB",
     .help = "token shards to train on; quote the pattern"},
    {"data", EVAL, FILES, STRING, AT(data), NOT_SAVED, "GLOB", .default_text = "none",
     .help = "token shards to evaluate; quote the pattern. Either this or --task is required"},
    {"task", EVAL, FILES, CHOICE, AT(task), NOT_SAVED, "lambada|hellaswag|cbt", .default_text = "none",
     .help = "evaluate FILE: LAMBADA or HellaSwag (JSONL), or a Children's Book Test file; see Protocols"},
    {"json", EVAL, FILES, STRING, AT(json), NOT_SAVED, "FILE", .default_text = "none",
     .help = "also write the results as JSON, including those of each window or example"},
    {"force", EVAL, FILES, FLAG, AT(force), NOT_SAVED, "",
     .help = "replace the file of --json even if it was not written by eval"},
    {"val-data", TRAIN, FILES, STRING, AT(val_data), OVERRIDABLE, "GLOB",
     .default_text = "--data with train replaced by val, if such files exist", .help = "token shards to validate on"},
    {"order", TRAIN, FILES, CHOICE, AT(order), FIXED, "sequential|shuffled",
     .help = "order of the training data; shuffled: shards and sequences are permuted in each epoch"},
    {"tokenizer", TRAIN, FILES, STRING, AT(tokenizer), NOT_SAVED, "FILE",
     .default_text = "vocab.bpe or tokenizer.json next to the shards, if there is one",
     .help = "tokenizer, a vocab.bpe, merges.txt or tokenizer.json; needed for samples"},
    {"tokenizer", SAMPLE | EVAL | INSPECT, FILES, STRING, AT(tokenizer), NOT_SAVED, "FILE",
     .default_text = "the one named in the checkpoint", .help = "tokenizer of the model, a vocab.bpe, merges.txt or "
     "tokenizer.json"},
    {"tokenizer", TOKENIZE, FILES, STRING, AT(tokenizer), NOT_SAVED, "FILE", .default_text = "required",
     .help = "vocab.bpe, merges.txt, or a tokenizer.json of byte-level BPE; an empty file makes every byte a token"},
    {"out", TRAIN, FILES, STRING, AT(out), NOT_SAVED, "DIR", .default_text = "out/PRESET-NNN, the next free number",
     .help = "run folder, for checkpoints and log.csv"},
    {"out", TOKENIZE, FILES, STRING, AT(out), NOT_SAVED, "PREFIX", .default_text = "required",
     .help = "write shards PREFIX_train_000000.bin … and PREFIX_val_000000.bin …"},
    {"text", INSPECT, FILES, STRING, AT(text), NOT_SAVED, "TEXT|@FILE|-", .default_text = "required",
     .help = "text to inspect, from the command line, a file or stdin; truncated to the model's block size. A line "
             "<|endoftext|> ends a document"},
    {"out", INSPECT, FILES, STRING, AT(out), NOT_SAVED, "FILE", .default_text = "required",
     .help = "safetensors file to write: tokens, losses, memberships (pi) and projected tokens (w), for dev/plot"},
    {"force", INSPECT, FILES, FLAG, AT(force), NOT_SAVED, "",
     .help = "replace the file of --out even if it was not written by inspect"},
    {"resume", TRAIN, FILES, FLAG, AT(resume), NOT_SAVED, "",
     .help = "continue from the newest complete checkpoint in --out, by default the newest run in out/; the results "
             "equal those of an uninterrupted run"},
    {"overwrite", TRAIN, FILES, FLAG, AT(overwrite), NOT_SAVED, "",
     .help = "start a new run in --out even if it contains one; its first checkpoint replaces the old checkpoints and "
             "log"},
    {"log", TRAIN, FILES, STRING, AT(log), OVERRIDABLE, "FILE", .default_text = "log.csv in the run folder",
     .help = "CSV log with one row per step; an existing log is only accepted with --resume or --overwrite"},
    {"val-frac", TOKENIZE, FILES, REAL, AT(val_frac), NOT_SAVED, "X", .max = 0.999999, .value = 0.01,
     .unit = "of the documents",
     .help = "fraction of the documents that goes to the validation shards; of a single document, fraction of its "
             "tokens, from its end; if given, neither split may be empty"},
    {"jsonl", TOKENIZE, FILES, FLAG, AT(jsonl), NOT_SAVED, "", .default_text = "only files named *.jsonl",
     .help = "read all input, including stdin, as JSONL: one object with a \"text\" per line"},
    {"shard-tokens", TOKENIZE, FILES, INT64, AT(shard_tokens), NOT_SAVED, "N", .min = 1, .max = INT_MAX, .value = 100e6,
     .unit = "tokens", .help = "size of each shard; the last one may be smaller"},
    {"steps", TRAIN, TRAINING, INT64, AT(steps), OVERRIDABLE, "N", .max = MAX_COUNT, .unit = "steps",
     .help = "total number of steps, including those of a resumed run; the schedule ends there"},
    {"batch", TRAIN, TRAINING, INT, AT(batch), OVERRIDABLE, "N", .min = 1, .max = TOST_MAX_BATCH, .unit = "sequences",
     .help = "micro-batch size; changing it on --resume may change the last bits of the results"},
    {"seq", TRAIN, TRAINING, INT, AT(seq), FIXED, "N", .min = 1, .max = TOST_MAX_BLOCK_SIZE, .unit = "tokens",
     .help = "sequence length, at most --block-size"},
    {"chunk", TRAIN, TRAINING, INT, AT(chunk), OVERRIDABLE, "N", .max = TOST_MAX_BLOCK_SIZE,
     .default_text = "whole sequences",
     .help = "process sequences N tokens at a time, with the memory of N tokens: exact gradients for very long --seq, "
             "with 4/3 of the computation. Changing it on --resume may change the last bits of the results"},
    {"chunk", EVAL, EVALUATION, INT, AT(chunk), NOT_SAVED, "N", .max = TOST_MAX_BLOCK_SIZE,
     .default_text = "whole sequences",
     .help = "process sequences N tokens at a time, with the memory of N tokens: for very long --seq"},
    {"total-batch", TRAIN, TRAINING, INT64, AT(total_batch), FIXED, "N", .min = 1, .max = 1e12, .unit = "tokens",
     .help = "tokens per step of all ranks, a multiple of batch × seq × parts, accumulated over micro-batches"},
    {"lr", TRAIN, TRAINING, REAL, AT(lr), OVERRIDABLE, "X", .max = 100, .help = "peak learning rate"},
    {"schedule", TRAIN, TRAINING, CHOICE, AT(schedule), OVERRIDABLE, "cosine|wsd|linear|constant",
     .help = "learning rate after the warm-up: cosine or linear decay; wsd: constant, then linear decay over the last "
             "--decay-frac of the steps; constant. A wsd run can be extended with --resume --steps N before its decay, "
             "a constant run at any time"},
    {"decay-frac", TRAIN, TRAINING, REAL, AT(decay_frac), OVERRIDABLE, "X", .max = 1, .value = 0.2,
     .unit = "of the steps", .help = "length of the decay of --schedule wsd"},
    {"warmup", TRAIN, TRAINING, INT64, AT(warmup), OVERRIDABLE, "N", .max = MAX_COUNT, .unit = "steps",
     .help = "linear warm-up of the learning rate from 0 to --lr; by default at most a tenth of --steps"},
    {"min-lr-frac", TRAIN, TRAINING, REAL, AT(min_lr_frac), OVERRIDABLE, "X", .max = 1,
     .help = "final learning rate, as a fraction of --lr"},
    {"weight-decay", TRAIN, TRAINING, REAL, AT(weight_decay), FIXED, "X", .max = 100,
     .help = "AdamW weight decay, applied to embeddings and Linear weights"},
    {"beta1", TRAIN, TRAINING, REAL, AT(beta1), FIXED, "X", .max = 0.999999,
     .help = "AdamW decay rate of the first moment"},
    {"beta2", TRAIN, TRAINING, REAL, AT(beta2), FIXED, "X", .max = 0.999999,
     .help = "AdamW decay rate of the second moment"},
    {"eps", TRAIN, TRAINING, REAL, AT(eps), FIXED, "X", .min = 1e-30, .max = 1,
     .help = "AdamW epsilon, added to the denominator"},
    {"grad-clip", TRAIN, TRAINING, REAL, AT(grad_clip), FIXED, "X", .max = 1e9,
     .help = "maximum gradient norm; 0: no clipping"},
    {"ema", TRAIN, TRAINING, REAL, AT(ema), OVERRIDABLE, "X", .max = 0.9999999, .default_text = "off",
     .help = "also keep and save an exponential moving average of the weights with this decay rate, such as 0.999; at "
             "step n the rate is at most n / (n + 9). eval --weights ema uses it"},
    {"skip-loss-z", TRAIN, TRAINING, REAL, AT(skip_loss_z), OVERRIDABLE, "X", .max = 1e9,
     .help = "skip a step if its loss is more than X standard deviations above the mean of the last "
              NUMBER_TEXT(OUTLIER_WINDOW) " accepted steps; 0: off"},
    {"skip-grad-z", TRAIN, TRAINING, REAL, AT(skip_grad_z), OVERRIDABLE, "X", .max = 1e9,
     .help = "the same for the gradient norm"},
    {"max-skipped", TRAIN, TRAINING, INT64, AT(max_skipped), OVERRIDABLE, "N", .max = MAX_COUNT, .value = 10,
     .unit = "steps",
     .help = "stop if more than N consecutive steps are skipped as outliers or because the loss or gradient is not "
             "finite"},
    {"seed", TRAIN, TRAINING, INT64, AT(seed), FIXED, "N", .max = MAX_SEED, .value = 1337,
     .help = "seed for initial weights, data order and samples"},
    {"batch", EVAL, EVALUATION, INT, AT(batch), NOT_SAVED, "N", .min = 1, .max = TOST_MAX_BATCH,
     .default_text = "8; for --task, chosen by length",
     .help = "sequences per forward pass; for --task, at least the choices of one example"},
    {"seq", EVAL, EVALUATION, INT, AT(seq), NOT_SAVED, "N", .min = 1, .max = TOST_MAX_BLOCK_SIZE,
     .default_text = "the model's block size",
     .help = "tokens per window or example; longer contexts are truncated on the left"},
    {"stride", EVAL, EVALUATION, INT, AT(stride), NOT_SAVED, "N", .min = 1, .max = TOST_MAX_BLOCK_SIZE,
     .default_text = "--seq, no overlap",
     .help = "distance between windows of --data; every token is scored once, in the first window that contains it"},
    {"windows", EVAL, EVALUATION, INT64, AT(windows), NOT_SAVED, "N", .min = 1, .max = MAX_COUNT,
     .default_text = "score every token once",
     .help = "score N windows at random positions of --data instead, as for the published figures"},
    {"by-position", EVAL, EVALUATION, FLAG, AT(by_position), NOT_SAVED, "",
     .help = "also report the loss of --data by position in the window: position n is predicted from n tokens; each "
             "bin of positions ends at a power of 2"},
    {"seed", EVAL, EVALUATION, INT64, AT(seed), NOT_SAVED, "N", .max = MAX_SEED, .value = 1337,
     .help = "seed for the positions of --windows"},
    {"val-every", TRAIN, REPORTS, INT64, AT(val_every), OVERRIDABLE, "N", .max = MAX_COUNT, .unit = "steps",
     .help = "validate every N steps and after the last; 0: never"},
    {"val-batches", TRAIN, REPORTS, INT64, AT(val_batches), OVERRIDABLE, "N", .min = 1, .max = MAX_COUNT, .value = 20,
     .unit = "micro-batches",
     .help = "validate on the first N micro-batches of --val-data; best losses are only comparable for the same N"},
    {"sample-every", TRAIN, REPORTS, INT64, AT(sample_every), OVERRIDABLE, "N", .max = MAX_COUNT,
     .unit = "steps", .help = "print a sample every N steps and after the last; 0: never"},
    {"sample-tokens", TRAIN, REPORTS, INT64, AT(sample_tokens), OVERRIDABLE, "N", .min = 1, .max = MAX_COUNT,
     .value = 128,
     .unit = "tokens", .help = "length of each sample"},
    {"save-every", TRAIN, REPORTS, INT64, AT(save_every), OVERRIDABLE, "N", .max = MAX_COUNT, .unit = "steps",
     .help = "save a checkpoint every N steps and after the last; 0: never"},
    {"keep", TRAIN, REPORTS, INT64, AT(keep), OVERRIDABLE, "N", .max = MAX_COUNT, .value = 3, .unit = "checkpoints",
     .help = "keep only the newest N checkpoints; 0: all"},
    {"keep-best", TRAIN, REPORTS, FLAG, AT(keep_best), OVERRIDABLE, "",
     .help = "also keep the checkpoint with the lowest validation loss, as best in the run folder"},
    {"stop-at-val", TRAIN, REPORTS, REAL, AT(stop_at_val), OVERRIDABLE, "LOSS", .max = 1e9, .default_text = "off",
     .help = "save and stop when the validation loss is at most LOSS"},
    {"max-time", TRAIN, REPORTS, DURATION, AT(max_time), NOT_SAVED, "TIME", .max = 10000 * 86400.0,
     .default_text = "off",
     .help = "save and stop before the next step would exceed this time, such as 90m or 2h50m: for queues with a time "
             "limit. The exit status is 75 if steps are left"},
    {"on-save-error", TRAIN, REPORTS, CHOICE, AT(on_save_error), OVERRIDABLE, "stop|continue",
     .help = "if a checkpoint or the log cannot be written: stop, or continue and try again at the next --save-every "
             "(the exit status is 1 if the last save fails)"},
    {"quiet", TRAIN, REPORTS, FLAG, AT(quiet), NOT_SAVED, "",
     .help = "print nothing on stdout; log and checkpoints are still written"},
    {"prompt", SAMPLE, SAMPLING, STRING, AT(prompt), NOT_SAVED, "TEXT|@FILE|-", .default_text = "none",
     .help = "text to continue, from the command line, a file or stdin"},
    {"prompts", SAMPLE, SAMPLING, STRING, AT(prompts), NOT_SAVED, "FILE|-", .default_text = "none",
     .help = "continue every prompt of a file or stdin and write the results as JSONL. One prompt per line or, if the "
             "name ends in .jsonl or the text begins with {, one object with a \"prompt\" per line"},
    {"tokens", SAMPLE, SAMPLING, INT64, AT(tokens), NOT_SAVED, "N", .min = 1, .max = 1e12, .value = 256,
     .unit = "tokens",
     .help = "maximum number of new tokens; stops earlier at <|endoftext|>. When the block size is reached, the "
             "second half of the context is processed again"},
    {"samples", SAMPLE, SAMPLING, INT64, AT(samples), NOT_SAVED, "N", .min = 1, .max = MAX_COUNT, .value = 1,
     .help = "number of samples of each prompt, generated together; separated by lines of ---"},
    {"stop", SAMPLE, SAMPLING, STRING, AT(stop), NOT_SAVED, "TEXT", .default_text = "none",
     .help = "end a sample before its first occurrence of TEXT"},
    {"temperature", TRAIN | SAMPLE, SAMPLING, REAL, AT(temperature), OVERRIDABLE, "X", .max = 1000, .value = 0.8,
     .help = "divide logits by X; 0: always the most likely token"},
    {"top-k", TRAIN | SAMPLE, SAMPLING, INT, AT(top_k), OVERRIDABLE, "N", .max = TOST_MAX_VOCAB_SIZE,
     .help = "sample from the N most likely tokens; 0: from all"},
    {"top-p", TRAIN | SAMPLE, SAMPLING, REAL, AT(top_p), OVERRIDABLE, "X", .min = 1e-9, .max = 1, .value = 0.95,
     .help = "sample from the smallest set of most likely tokens with total probability X; 1: from all"},
    {"seed", SAMPLE, SAMPLING, INT64, AT(seed), NOT_SAVED, "N", .max = MAX_SEED, .value = 1337,
     .help = "random seed; the same seed gives the same text"},
    {"seed", TOKENIZE, FILES, INT64, AT(seed), NOT_SAVED, "N", .max = MAX_SEED, .value = 1337,
     .help = "seed for the choice of validation documents"},
    {"dtype", TRAIN | SAMPLE | EVAL | INSPECT, MACHINE, CHOICE, AT(dtype), OVERRIDABLE, DTYPES,
     .help = "precision of matrix products; bf16: operands rounded to bf16, sums and parameters in float32; tf32: "
             "CUDA only"},
    {"threads", TRAIN | SAMPLE | EVAL | TOKENIZE | INSPECT, MACHINE, INT, AT(threads), OVERRIDABLE, "N",
     .max = THREADS_LIMIT,
     .help = "number of CPU threads; 0: OMP_NUM_THREADS, or all cores. While other programs use the cores, fewer "
             "threads work, unless the environment sets any variable OMP_*, GOMP_* or KMP_*"},
    {"parts", TRAIN, MACHINE, INT, AT(parts), OVERRIDABLE, "N", .min = 1, .max = MAX_PARTS, .value = 1,
     .default_text = "one per rank",
     .help = "divide a step into N parts, whose gradients are added in a fixed order: any number of ranks that divides "
             "N gives the same results"},
    {"reduce", TRAIN, MACHINE, CHOICE, AT(reduce), OVERRIDABLE, "ordered|fast",
     .help = "how GPUs add their gradients; ordered: the same bits for any number of ranks; fast: by NCCL, with bits "
             "that depend on the number of ranks"},
    {"rank-timeout", TRAIN | EVAL, MACHINE, REAL, AT(rank_timeout), NOT_SAVED, "X", .max = 1e6,
     .value = COMM_TIMEOUT, .unit = "seconds",
     .help = "stop if a wait for other ranks takes longer than X seconds; 0: wait forever"},
    {"recompute", TRAIN, MACHINE, FLAG, AT(recompute), NOT_SAVED, "",
     .help = "activation checkpointing: store only the input of each layer and recompute the rest in the backward "
             "pass; less memory, more time, same results"},
    {"quiet", TOKENIZE, MACHINE, FLAG, AT(quiet), NOT_SAVED, "", .help = "print nothing on stdout and no progress"},
    {"help", ALL, MACHINE, HELP, 0, NOT_SAVED, "", .help = "show this help"},
    {"version", TRAIN, MACHINE, HELP, 0, NOT_SAVED, "", .help = "print the version and the git commit"},
    {"man", TRAIN, MACHINE, HELP, 0, NOT_SAVED, "", .help = "print the man page, for all commands"},
    {"bash-completion", TRAIN, MACHINE, HELP, 0, NOT_SAVED, "",
     .help = "print the completion script for bash"},
    {"data-tokens", 0, FILES, INT64, AT(data_tokens), FIXED, "", .max = 9e15, .help = ""},
    {"data-crc", 0, FILES, INT64, AT(data_crc), FIXED, "", .max = UINT32_MAX, .help = ""},
};

enum { ROWS = countof(table), DEFAULT_EVAL_BATCH = 8 };
_Static_assert((int)ROWS <= OPTION_ROWS_MAX, "Options.given has an element for each row");

static const CommandHelp commands[COMMANDS] = {
    {"train",    "[train] [options]", "train a model; without options, the starter model"},
    {"sample",   "sample [options]", "generate text"},
    {"eval",     "eval (--data GLOB | --task NAME FILE) [options]", "evaluate a model on token shards or on a task"},
    {"tokenize", "tokenize --tokenizer FILE --out PREFIX [options] FILE…", "convert text to token shards"},
    {"info",     "info [PATH | SHARD…]", "show what a model file, checkpoint or run contains; check token shards"},
    {"inspect",  "inspect --text TEXT --out FILE [options]", "save memberships and projected tokens for a text"},
};

// Index of a command's row with this name, or -1. COMMANDS: the first such option of any command.
static int find_row(const char* name, size_t len, Command command) {
    for (int i = 0; i < ROWS; i++) {
        const unsigned mask = table[i].commands;
        const bool fits = command == COMMANDS ? mask != 0 : mask == 0 || (mask >> command & 1);
        if (fits && strlen(table[i].name) == len && memcmp(table[i].name, name, len) == 0) return i;
    }
    return -1;
}

const char* options_program(const Options* o) {
    const char* slash = strrchr(o->program, '/');
    return slash && slash[1] ? slash + 1 : o->program;
}

bool option_given(const Options* o, const char* name) {
    const int row = find_row(name, strlen(name), o->command);
    return row >= 0 && o->given[row];
}

const char* sample_option_given(const Options* o) {
    static const char* const names[] = {"sample-every", "sample-tokens", "temperature", "top-k", "top-p"};
    for (size_t i = o->sample_every == 0; i < countof(names); i++)   // --sample-every 0 disables samples
        if (option_given(o, names[i])) return names[i];
    return NULL;
}

// ---------------------------------------------------------------------------------------------
// Values

static void* field_of(Options* o, const Row* row) { return (char*)o + row->field; }
static const void* const_field_of(const Options* o, const Row* row) { return (const char*)o + row->field; }

// A copy of the nth name in "a|b|c", or NULL. free()
static char* choice_name(const char* choices, int n) {
    const char* start = choices;
    for (; n > 0; n--) {
        start = strchr(start, '|');
        if (!start) return NULL;
        start++;
    }
    return xasprintf("%.*s", (int)strcspn(start, "|"), start);
}

// The shortest text with 15 to 17 digits that parses to the same double. free()
static char* real_text(double x) {
    for (int digits = 15;; digits++) {
        char* text = xasprintf("%.*g", digits, x);
        if (digits == 17 || strtod(text, NULL) == x) return text;
        free(text);
    }
}

// The value as written on a command line, or NULL. free()
static char* value_text(const Options* o, const Row* row) {
    const void* field = const_field_of(o, row);
    switch (row->kind) {
        case HELP: return NULL;
        case FLAG: return row->saved != NOT_SAVED && *(const bool*)field ? xstrdup("1") : NULL;
        case INT: return xasprintf("%d", *(const int*)field);
        case INT64: return xasprintf("%lld", (long long)*(const int64_t*)field);
        case REAL:
        case DURATION: return real_text(*(const double*)field);
        case CHOICE: return choice_name(row->metavar, *(const int*)field);
        case STRING:
        case PRESET: break;
    }
    const char* text = *(const char* const*)field;
    return text ? xstrdup(text) : NULL;
}

static bool not_in_range(const Row* row, const char* text, TostError* err) {
    char *min = real_text(row->min), *max = real_text(row->max);
    tost_error(err, "--%s '%.200s' is not %s from %s to %s", row->name, text,
               row->kind == REAL ? "a number" : "an integer", min, max);
    free(min);
    free(max);
    return false;
}

// A number in decimal notation at the beginning of the text; *end = text if there is none.
static double decimal(const char* text, const char** end) {
    char* stop = (char*)text;
    const bool hex = text[0] == '0' && tolower((unsigned char)text[1]) == 'x';
    const bool begins = isdigit((unsigned char)*text) || *text == '.' || *text == '-';
    const double value = begins && !hex ? strtod(text, &stop) : 0;
    *end = stop;
    return value;
}

// An integer in digits or as 1e3 or 0.5M; the units k, M, G (or B) and T are powers of 1000.
static bool integer(long long* value, const char* text) {
    static const char units[] = "kMGT";
    char* stop;
    errno = 0;
    *value = strtoll(text, &stop, 10);
    if (stop != text && !*stop && !isspace((unsigned char)*text)) return errno == 0;
    const char *end, *unit;
    double x = decimal(text, &end);
    if (end == text) return false;
    if (*end && (unit = strchr(units, *end == 'K' ? 'k' : *end == 'B' ? 'G' : *end))) {
        for (const char* u = units; u <= unit; u++) x *= 1000;
        end++;
    }
    if (*end || !(fabs(x) <= 9e15)) return false;   // 1e400 is infinite
    *value = llround(x);
    return fabs(x - (double)*value) <= 1e-12 * fabs(x);   // 0.3M is not exactly 300000 in binary
}

static bool parse_integer(Options* o, const Row* row, const char* text, TostError* err) {
    long long value;
    if (!integer(&value, text) || value < (long long)row->min || value > (long long)row->max)
        return not_in_range(row, text, err);
    if (row->kind == INT) *(int*)field_of(o, row) = (int)value;
    else *(int64_t*)field_of(o, row) = value;
    return true;
}

static bool parse_real(Options* o, const Row* row, const char* text, TostError* err) {
    const char* end;
    const double value = decimal(text, &end);
    if (end == text || *end || !(value >= row->min && value <= row->max)) return not_in_range(row, text, err);
    *(double*)field_of(o, row) = value;
    return true;
}

// Numbers with units from the largest to the smallest, such as 1h30m; or one number without a unit, in seconds.
static bool parse_duration(Options* o, const Row* row, const char* text, TostError* err) {
    static const struct { char name; double seconds; } units[] = {{'d', 86400}, {'h', 3600}, {'m', 60}, {'s', 1}};
    double total = 0;
    size_t next = 0;   // the largest unit that may follow
    const char *at = text, *end;
    bool ok = true;
    do {
        const double value = decimal(at, &end);
        size_t u = next;
        while (u < countof(units) && units[u].name != *end) u++;
        const bool seconds = at == text && !*end;
        ok = end != at && value >= 0 && (seconds || u < countof(units));
        if (!ok) break;
        total += value * (seconds ? 1 : units[u].seconds);
        next = u + 1;
        at = end + !seconds;
    } while (*at);
    if (!ok || !(total > 0 && total <= row->max))
        return tost_error(err, "--%s '%.200s' is not a time above 0 and up to %gd, such as 45s, 90m, 3h or 1h30m",
                          row->name, text, row->max / units[0].seconds);
    *(double*)field_of(o, row) = total;
    return true;
}

static bool parse_choice(Options* o, const Row* row, const char* text, TostError* err) {
    for (int i = 0;; i++) {
        char* name = choice_name(row->metavar, i);
        if (!name) return tost_error(err, "--%s '%.200s' is not one of %s", row->name, text, row->metavar);
        const bool same = strcmp(name, text) == 0;
        free(name);
        if (!same) continue;
        *(int*)field_of(o, row) = i;
        return true;
    }
}

// Appends a name to a list; frees the old list.
static char* append(char* list, const char* separator, const char* name) {
    char* longer = xasprintf("%s%s%s", list, *list ? separator : "", name);
    free(list);
    return longer;
}

// "starter, tost-base, …". free()
static char* preset_names(void) {
    char* names = xstrdup("");
    for (int i = 0; tost_preset_at(i); i++) names = append(names, ", ", tost_preset_at(i)->name);
    return names;
}

static bool parse_preset(Options* o, const char* text, TostError* err) {
    const TostPreset* preset = tost_preset_find(text);
    if (preset) {
        o->preset = preset->name;
        return true;
    }
    char* names = preset_names();
    tost_error(err, "--preset '%.200s' is not one of %s", text, names);
    free(names);
    return false;
}

static bool parse_value(Options* o, const Row* row, const char* text, TostError* err) {
    switch (row->kind) {
        case HELP: return true;
        case FLAG: *(bool*)field_of(o, row) = true; return true;
        case INT:
        case INT64: return parse_integer(o, row, text, err);
        case REAL: return parse_real(o, row, text, err);
        case DURATION: return parse_duration(o, row, text, err);
        case CHOICE: return parse_choice(o, row, text, err);
        case PRESET: return parse_preset(o, text, err);
        case STRING: break;
    }
    if (!*text) {
        const char* hint = row->field == AT(prompt) ? "; leave it out to start without a prompt" : "";
        return tost_error(err, "--%s is empty: give a value%s", row->name, hint);
    }
    if (strcmp(text, "-") == 0 && !strstr(row->metavar, "|-") && row->field != AT(stop))
        return tost_error(err, "--%s -: give a name (./- for a file named -)", row->name);
    *(const char**)field_of(o, row) = text;
    return true;
}

// ---------------------------------------------------------------------------------------------
// Spelling

// Levenshtein distance between the first n bytes of a, in lower case, and b.
static int distance(const char* a, size_t n, const char* b) {
    enum { LONGEST = 32 };
    const size_t m = strlen(b);
    if (n > LONGEST || m > LONGEST) return LONGEST;
    int row[LONGEST + 1];
    for (size_t j = 0; j <= m; j++) row[j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            const int above = row[j];
            int best = diagonal + (tolower((unsigned char)a[i - 1]) != b[j - 1]);
            if (above + 1 < best) best = above + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
            diagonal = above;
        }
    }
    return row[m];
}

// The option name to suggest for a misspelt one: one with a common prefix, or else with the smallest edit distance,
// preferring options of the command; NULL if none is close.
static const char* nearest_name(const char* name, size_t len, Command command) {
    const char* best = NULL;
    int best_score = 0;
    for (int i = 0; i < ROWS; i++) {
        if (!table[i].commands || len == 0) continue;
        const size_t common = strlen(table[i].name) < len ? strlen(table[i].name) : len;
        const bool prefix = common >= 2 && strncmp(table[i].name, name, common) == 0;
        const int edits = prefix ? 0 : distance(name, len, table[i].name);
        if (edits > (len < 4 ? 1 : len < 8 ? 2 : 3)) continue;
        const int score = 2 * edits + !(table[i].commands >> command & 1);
        if (!best || score < best_score) {
            best = table[i].name;
            best_score = score;
        }
    }
    return best;
}

// Options of nanoGPT and llm.c.
static const struct { const char *name, *hint; } foreign[] = {
    {"batch_size", "use --batch"}, {"block_size", "use --block-size"}, {"dataset", "use --data GLOB, the token shards"},
    {"eval_interval", "use --val-every"}, {"eval_iters", "use --val-batches"}, {"grad_clip", "use --grad-clip"},
    {"gradient_accumulation_steps", "use --total-batch, the tokens per step"},
    {"init_from", "use --init FILE or --resume"}, {"learning_rate", "use --lr"},
    {"lr_decay_iters", "use --steps, the end of the schedule"}, {"max_iters", "use --steps"},
    {"max_new_tokens", "use sample --tokens"}, {"min_lr", "use --min-lr-frac, a fraction of --lr"},
    {"n_embd", "use --channels"}, {"n_head", "use --heads"}, {"n_layer", "use --layers"},
    {"num_iterations", "use --steps"}, {"num_samples", "use sample --samples"}, {"out_dir", "use --out"},
    {"start", "use sample --prompt"}, {"top_k", "use --top-k"}, {"total_batch_size", "use --total-batch"},
    {"train_data", "use --data"}, {"val_loss_every", "use --val-every"}, {"warmup_iters", "use --warmup"},
    {"wandb_log", "use log.csv and dev/plot/export_log.py"}, {"weight_decay", "use --weight-decay"},
    {"always_save_checkpoint", "use --save-every"}, {"decay_lr", "use --schedule"},
    {"eval_only", "use the command eval"}, {"backend", "start the program with mpirun"},
    {"device", "train_gpt_tost uses the CPU, train_gpt_tostcu the GPU"}, {"compile", "the program is compiled"},
    {"dropout", "the model has no dropout"}, {"log_interval", "log.csv has a row for every step"},
    {"b", "use --batch"}, {"c", "use --weight-decay"}, {"d", "use --total-batch"}, {"e", "use --init"},
    {"g", "use --sample-tokens"}, {"i", "use --data"}, {"j", "use --val-data"}, {"k", "use --schedule"},
    {"l", "use --lr"}, {"m", "use --val-batches"}, {"n", "use --save-every"}, {"o", "use --out"},
    {"q", "use --min-lr-frac"}, {"r", "use --recompute"}, {"s", "use --sample-every"}, {"sg", "use --skip-grad-z"},
    {"sl", "use --skip-loss-z"}, {"t", "use --seq"}, {"u", "use --warmup"}, {"v", "use --val-every"},
    {"x", "use --steps"}, {"y", "use --resume"},
    // options of earlier versions
    {"autotune", "cuBLASLt chooses the algorithms: leave it out"},
    {"seq-ranks", "use --chunk, which saves memory in one process"},
    {"mask-across-documents", "documents are not masked, as in the published model"},
};

// '-' and '_' are equal.
static const char* foreign_hint(const char* name, size_t len) {
    for (size_t i = 0; i < countof(foreign); i++) {
        const char* other = foreign[i].name;
        size_t same = 0;
        while (same < len && (other[same] == name[same] || (other[same] == '_' && name[same] == '-'))) same++;
        if (same == len && !other[same]) return foreign[i].hint;
    }
    return NULL;
}

static bool unknown_option(const char* arg, Command command, TostError* err) {
    const char* name = arg + strspn(arg, "-");
    const size_t len = strcspn(name, "=");
    const char* hint = foreign_hint(name, len);
    if (hint) return tost_error(err, "unknown option %.*s: %s", (int)strcspn(arg, "="), arg, hint);
    const char* meant = nearest_name(name, len, command);
    const int shown = (int)strcspn(arg, "=");
    if (meant && strlen(meant) == len && memcmp(meant, name, len) == 0)
        return tost_error(err, "%.*s: options begin with two dashes: --%s", shown, arg, meant);
    if (meant) return tost_error(err, "unknown option %.*s: did you mean --%s?", shown, arg, meant);
    return tost_error(err, "unknown option %.*s: see %s --help", shown, arg, commands[command].name);
}

// "train, sample and eval": the commands with an option of this name; NULL: all commands. free()
static char* command_names(const char* option) {
    char* names = xstrdup("");
    const char* last = NULL;
    for (int c = 0; c < COMMANDS; c++) {
        if (option && find_row(option, strlen(option), (Command)c) < 0) continue;
        if (last) names = append(names, ", ", last);
        last = commands[c].name;
    }
    return append(names, " and ", last);
}

static bool other_command(const char* name, Command command, TostError* err) {
    char* names = command_names(name);
    tost_error(err, "--%s is an option of %s, not of %s", name, names, commands[command].name);
    free(names);
    return false;
}

static bool unknown_command(const char* name, TostError* err) {
    for (int c = 0; c < COMMANDS; c++)
        if (distance(name, strlen(name), commands[c].name) <= 2)
            return tost_error(err, "unknown command '%.200s': did you mean %s?", name, commands[c].name);
    char* names = command_names(NULL);
    tost_error(err, "unknown command '%.200s': the commands are %s; see --help", name, names);
    free(names);
    return false;
}

// ---------------------------------------------------------------------------------------------
// Help

const CommandHelp* command_help(Command command) { return &commands[command]; }

// The help of an option and its default value. free()
static char* help_text(const Options* o, const Row* row) {
    char* names = row->kind == PRESET ? preset_names() : xstrdup("");
    char *raw = value_text(o, row), *value = raw ? printable_text(raw) : NULL;   // may be from the command line
    const char* shown = row->default_text ? row->default_text : value;
    const bool unit = !row->default_text && row->unit;
    const char* label = shown && strcmp(shown, "required") != 0 ? "default: " : "";
    char* text = !shown ? xstrdup(row->help)
                        : xasprintf("%s%s%s (%s%s%s%s)", row->help, *names ? " " : "", names, label, shown,
                                    unit ? " " : "", unit ? row->unit : "");
    free(raw);
    free(value);
    free(names);
    return text;
}

// The words that are values of an option, or NULL. free()
static char* value_words(const Row* row) {
    if (row->kind == CHOICE) return xstrdup(row->metavar);
    if (row->kind != PRESET) return NULL;
    char* names = xstrdup("");
    for (int i = 0; tost_preset_at(i); i++) names = append(names, "|", tost_preset_at(i)->name);
    return names;
}

OptionHelpList options_help(const Options* o) {
    OptionHelpList list = {.option = xcalloc(ROWS, sizeof *list.option)};
    for (int g = 0; g < GROUPS; g++) {
        for (int i = 0; i < ROWS; i++) {
            const Row* row = &table[i];
            if (row->group != (Group)g || !(row->commands >> o->command & 1)) continue;
            list.option[list.count++] = (OptionHelp){
                .group = group_titles[g], .name = row->name, .metavar = row->metavar, .file = row->kind == STRING,
                .overridable = row->saved == OVERRIDABLE, .values = value_words(row), .text = help_text(o, row)};
        }
    }
    return list;
}

void option_help_free(OptionHelpList* list) {
    for (int i = 0; i < list->count; i++) {
        free(list->option[i].values);
        free(list->option[i].text);
    }
    free(list->option);
}

// ---------------------------------------------------------------------------------------------
// Defaults that depend on others

bool options_check_pass(int batch, int seq, int chunk, TostError* err) {
    const bool chunks = chunk > 0 && chunk < seq;
    const char* name = chunks ? "chunk" : "seq";
    const int64_t length = chunks ? chunk : seq, pass = batch * length;
    return pass <= INT_MAX || tost_error(err, "--batch %d × --%s %lld is %lld tokens per pass, the limit is %d: lower "
                                         "--batch or --%s", batch, name, (long long)length, (long long)pass, INT_MAX,
                                         name);
}

// Derives sequence length, micro-batch size, tokens per step and warm-up from sizes and preset, unless given.
static bool derive_defaults(Options* o, TostError* err) {
    const TostPreset* preset = tost_preset_find(o->preset);
    const int block = o->config.block_size;
    if (!option_given(o, "seq")) o->seq = block == preset->config.block_size ? preset->seq : block;
    if (o->seq > block) return tost_error(err, "--seq %d is longer than the block size %d", o->seq, block);

    const int ranks = comm_size(o->comm);
    // A run from before the option had one part.
    if (!option_given(o, "parts")) o->parts = o->resume ? 1 : ranks;
    if (!parts_check(o->parts, ranks, err)) return false;
    const bool total_given = option_given(o, "total-batch");
    const int64_t part_seq = (int64_t)o->seq * o->parts, wanted = total_given ? o->total_batch : preset->total_batch;
    if (!option_given(o, "batch")) {
        o->batch = preset->batch;
        if ((total_given || o->parts > 1) && wanted >= part_seq && wanted % part_seq == 0)
            while (wanted / part_seq % o->batch != 0) o->batch--;
    }
    if (!options_check_pass(o->batch, o->seq, 0, err)) return false;
    const int64_t pass = o->batch * part_seq;
    char parts[24] = "", product[80];
    if (o->parts > 1) snprintf(parts, sizeof parts, " × %d", o->parts);
    snprintf(product, sizeof product, "batch × seq%s = %d × %d%s", *parts ? " × parts" : "", o->batch, o->seq, parts);
    if (!total_given) o->total_batch = (preset->total_batch + pass - 1) / pass * pass;
    const int64_t below = o->total_batch / pass * pass;
    if (below == 0)
        return tost_error(err, "--total-batch %lld is less than %s: give at least %lld", (long long)o->total_batch,
                          product, (long long)pass);
    if (below != o->total_batch)
        return tost_error(err, "--total-batch %lld is not a multiple of %s: use %lld or %lld",
                          (long long)o->total_batch, product, (long long)below, (long long)(below + pass));
    if (!option_given(o, "warmup")) {
        o->warmup = preset->warmup;
        if (o->warmup > o->steps / 10) o->warmup = o->steps / 10;
    }
    return true;
}

static void set_defaults(Options* o, const TostEngine* engine) {
    for (int i = 0; i < ROWS; i++) {
        void* field = field_of(o, &table[i]);
        if (table[i].kind == INT) *(int*)field = (int)table[i].value;
        if (table[i].kind == INT64) *(int64_t*)field = (int64_t)table[i].value;
        if (table[i].kind == REAL) *(double*)field = table[i].value;
    }
    o->preset = "starter";
    o->order = ORDER_SHUFFLED;
    o->dtype = (int)engine->default_dtype;
}

static void set_preset(Options* o) {
    const TostPreset* p = tost_preset_find(o->preset);
    o->config = p->config;
    o->lr = p->lr;
    o->min_lr_frac = p->min_lr_frac;
    o->weight_decay = p->weight_decay;
    o->beta1 = p->beta1;
    o->beta2 = p->beta2;
    o->eps = p->eps;
    o->grad_clip = p->grad_clip;
    o->warmup = p->warmup;
    o->steps = p->steps;
    o->batch = p->batch;
    o->seq = p->seq;
    o->total_batch = p->total_batch;
    o->val_every = p->val_every;
    o->sample_every = p->sample_every;
    o->save_every = p->save_every;
    if (o->command == COMMAND_EVAL) {
        o->batch = DEFAULT_EVAL_BATCH;
        o->seq = 0;   // the model's block size
    }
    if (o->command == COMMAND_TRAIN && strcmp(o->preset, "starter") == 0)
        o->data = "data/starter/starter_train_*.bin";
}

Options options_default(Command command, const TostEngine* engine) {
    Options o = {.command = command, .program = "train_gpt_tost"};
    set_defaults(&o, engine);
    set_preset(&o);
    return o;
}

// ---------------------------------------------------------------------------------------------
// Checks of combinations

char* options_unused(const Options* given, const Options* o, int i) {
    const struct { const char *name, *with; bool off; } unused[] = {
        {"val-data", "val-every 0", o->val_every == 0},
        {"val-batches", "val-every 0", o->val_every == 0},
        {"keep", "save-every 0", o->save_every == 0},
        {"ema", "save-every 0", o->ema > 0 && o->save_every == 0 && !o->keep_best},
        {"keep-best", "val-every 0", o->val_every == 0},
        {"stop-at-val", "val-every 0", o->val_every == 0},
        {"decay-frac", "schedule other than wsd", o->schedule != SCHEDULE_WSD},
        {"min-lr-frac", "schedule constant", o->schedule == SCHEDULE_CONSTANT},
        {sample_option_given(given), "sample-every 0", o->sample_every == 0},
        {sample_option_given(given), "quiet", o->quiet && o->sample_every > 0},
    };
    for (size_t k = 0; k < countof(unused); k++)
        if (unused[k].off && unused[k].name && option_given(given, unused[k].name) && i-- == 0)
            return xasprintf("--%s has no effect with --%s", unused[k].name, unused[k].with);
    return NULL;
}

Schedule options_schedule(const Options* o) {
    return (Schedule){.kind = (ScheduleKind)o->schedule, .steps = o->steps, .warmup = o->warmup, .peak = o->lr,
                      .min_frac = o->min_lr_frac, .decay_frac = o->decay_frac};
}

static bool check_train(Options* o, TostError* err) {
    if (o->n_files)
        return tost_error(err, "unexpected argument '%.200s': train takes only options, and the command comes first",
                          o->files[0]);
    if (o->resume && o->overwrite)
        return tost_error(err, "--resume continues a run and --overwrite deletes it: give one of them");
    if (o->resume && o->init)
        return tost_error(err, "--resume loads weights from the run and --init from a file: give one of them");
    if (o->extend_block && !o->init)
        return tost_error(err, "--extend-block %d extends the positions of a trained model: give its weights as --init "
                          "FILE, or --block-size %d for a new model", o->extend_block, o->extend_block);
    if (o->overwrite && !o->out) return tost_error(err, "--overwrite needs --out DIR, the run to replace");
    if (!o->data && !o->resume)
        return tost_error(err, "--preset %s needs --data GLOB: token shards made with tokenize", o->preset);
    if (o->resume || o->init) return true;   // sizes come from a file and are checked by options_take_config
    return tost_config_check(&o->config, err) && derive_defaults(o, err);
}

static bool check_eval(const Options* o, TostError* err) {
    static const char* const data_options[] = {"windows", "stride", "seed", "by-position"};
    const bool task = option_given(o, "task");
    if (o->data && task) return tost_error(err, "--data evaluates token shards and --task a FILE: give one of them");
    if (!o->data && !task)
        return tost_error(err, "eval needs --data GLOB, the token shards to evaluate, or --task NAME FILE");
    if (o->data && o->n_files)
        return tost_error(err, "unexpected argument '%.200s': quote the pattern of --data", o->files[0]);
    if (task && o->n_files == 0) return tost_error(err, "--task needs a FILE of examples");
    if (task && o->n_files > 1)
        return tost_error(err, "unexpected argument '%.200s': --task takes one FILE", o->files[1]);
    for (size_t i = 0; task && i < countof(data_options); i++)
        if (option_given(o, data_options[i]))
            return tost_error(err, "--%s is for --data, not for --task", data_options[i]);
    if (o->force && !o->json)
        return tost_error(err, "--force applies only to --json: give --json FILE, or omit --force");
    if (o->windows && o->stride)
        return tost_error(err, "--windows scores random windows and --stride every token: give one of them");
    if (option_given(o, "seed") && !o->windows)
        return tost_error(err, "--seed needs --windows N: it selects the random windows");
    if (o->seq && o->stride > o->seq)
        return tost_error(err, "--stride %d is longer than --seq %d: it would skip tokens", o->stride, o->seq);
    return true;
}

static bool check_tokenize(const Options* o, TostError* err) {
    if (!o->tokenizer) return tost_error(err, "tokenize needs --tokenizer FILE, a vocab.bpe");
    if (!o->out) return tost_error(err, "tokenize needs --out PREFIX, the prefix of the shards' names");
    if (!o->n_files) return tost_error(err, "tokenize needs a FILE of text or JSONL; - is stdin");
    const char *slash = strrchr(o->out, '/'), *name = slash ? slash + 1 : o->out;
    if (*name && strcmp(name, ".") != 0 && strcmp(name, "..") != 0) return true;
    return tost_error(err, "--out %s is a folder: give a prefix such as %s%smy, which makes %s%smy_train_000000.bin",
                      o->out, o->out, *name ? "/" : "", o->out, *name ? "/" : "");
}

static bool check_together(Options* o, const TostEngine* engine, TostError* err) {
    if (!engine->supports((TostDtype)o->dtype)) {
        char* name = choice_name(DTYPES, o->dtype);
        tost_error(err, "--dtype %s is not supported by the %s engine%s%s", name, engine->name,
                   engine->supports(TOST_FP32) ? ": use fp32" : "", engine->supports(TOST_BF16) ? " or bf16" : "");
        free(name);
        return false;
    }
    if (!THREADS_MANY && o->threads > 1)
        return tost_error(err, "--threads %d: the program was built without OpenMP: leave it out", o->threads);
    if (o->reduce != 0 && !engine->open_comm)
        return tost_error(err, "--reduce fast: needs GPUs and a build with make NCCL=1: leave it out");
    for (int i = 0; i < o->n_files; i++)
        if (!*o->files[i]) return tost_error(err, "an argument is empty: give a file name, or leave it out");
    if (comm_size(o->comm) > 1 && o->command != COMMAND_TRAIN && o->command != COMMAND_EVAL)
        return tost_error(err, "%s runs in a single process, but %d were started: only train and eval use several",
                          commands[o->command].name, comm_size(o->comm));
    const char* first = o->n_files ? o->files[0] : NULL;
    switch (o->command) {
        case COMMAND_TRAIN: return check_train(o, err);
        case COMMAND_SAMPLE:
            if (o->prompt && o->prompts)
                return tost_error(err, "--prompt continues one text and --prompts each of a file: give one of them");
            return !first || tost_error(err, "unexpected argument '%.200s': give the text as --prompt TEXT", first);
        case COMMAND_EVAL: return options_check_pass(o->batch, o->seq, o->chunk, err) && check_eval(o, err);
        case COMMAND_TOKENIZE: return check_tokenize(o, err);
        case COMMAND_INFO:
            if (first && o->model)
                return tost_error(err, "unexpected argument '%.200s': info takes one PATH, or shards", first);
            if (o->n_files == 1) o->model = first;
            return true;
        case COMMAND_INSPECT:
            if (first) return tost_error(err, "unexpected argument '%.200s': give the text as --text TEXT", first);
            if (!o->text) return tost_error(err, "inspect needs --text TEXT, @FILE or - (stdin)");
            return o->out || tost_error(err, "inspect needs --out FILE, the safetensors file to write");
        case COMMANDS: break;
    }
    return true;
}

// ---------------------------------------------------------------------------------------------
// Parsing

enum { OPERAND = 1, LONG = 2 };   // codes returned by getopt_long, next to 'h', '?' and ':'

// The list for getopt_long. Rows are later looked up by the full name, because getopt_long accepts abbreviations.
static void fill_long_options(struct option list[ROWS + 1]) {
    int n = 0;
    for (int i = 0; i < ROWS; i++)
        if (find_row(table[i].name, strlen(table[i].name), COMMANDS) == i)
            list[n++] = (struct option){table[i].name, table[i].kind > FLAG, NULL, LONG};
    list[n] = (struct option){0};
}

// Handles one option. `code` is from getopt_long, where '?' and ':' are errors. Values are parsed later.
static bool take_option(Options* o, const char* values[ROWS], int code, const char* arg, TostError* err) {
    if (code == 'h') {
        o->page = "help";
        return true;
    }
    if (strncmp(arg, "--", 2) != 0) return unknown_option(arg, o->command, err);
    const char* name = arg + 2;
    const size_t len = strcspn(name, "=");
    const int any = find_row(name, len, COMMANDS);
    if (any < 0) return unknown_option(arg, o->command, err);
    const int row = find_row(name, len, o->command);
    if (row < 0) return other_command(table[any].name, o->command, err);
    const Row* r = &table[row];
    if (code == '?') return tost_error(err, "--%s takes no value: %.200s", r->name, arg);
    if (code == ':') return tost_error(err, "--%s needs a value: %s", r->name, r->metavar);
    if (r->kind == HELP) {
        o->page = r->name;
        return true;
    }
    if (o->given[row]) return tost_error(err, "--%s is given twice", r->name);
    o->given[row] = true;
    // If the value is the name of an option, the value was forgotten. --name=--value is accepted.
    const bool has_value = r->kind != FLAG;
    if (has_value && name[len] != '=' && strncmp(optarg, "--", 2) == 0
        && find_row(optarg + 2, strcspn(optarg + 2, "="), COMMANDS) >= 0)
        return tost_error(err, "--%s needs a value: %s, not %.200s", r->name, r->metavar, optarg);
    values[row] = has_value ? optarg : "";
    return true;
}

// argv[0] is the program or the command, followed by options and operands in any order.
static bool collect(Options* o, const char* values[ROWS], int argc, char** argv, TostError* err) {
    struct option list[ROWS + 1];
    fill_long_options(list);
    opterr = 0;
    optind = 0;   // glibc and musl: reset
    for (;;) {
        const int at = optind ? optind : 1;
        // '-': operands are returned in order, whether or not POSIXLY_CORRECT is set
        const int code = getopt_long(argc, argv, "-:h", list, NULL);
        if (code == -1) break;
        if (code == OPERAND) o->files[o->n_files++] = optarg;
        else if (!take_option(o, values, code, argv[at], err)) return false;
    }
    while (optind < argc) o->files[o->n_files++] = argv[optind++];
    return true;
}

static bool apply(Options* o, const char* values[ROWS], TostError* err) {
    for (int i = 0; i < ROWS; i++)
        if (values[i] && table[i].kind == PRESET && !parse_preset(o, values[i], err)) return false;
    set_preset(o);
    for (int i = 0; i < ROWS; i++)
        if (values[i] && table[i].kind != PRESET && !parse_value(o, &table[i], values[i], err)) return false;
    return true;
}

bool options_parse(Options* o, int argc, char** argv, const TostEngine* engine, TostComm* comm, TostError* err) {
    *o = (Options){.command = COMMAND_TRAIN, .comm = comm,
                   .program = argc > 0 && *argv[0] ? argv[0] : "train_gpt_tost"};
    o->files = xcalloc((size_t)argc + 1, sizeof *o->files);
    o->named = argc > 1 && argv[1][0] != '-';
    if (o->named) {
        o->command = COMMANDS;
        for (int c = 0; c < COMMANDS; c++)
            if (strcmp(argv[1], commands[c].name) == 0) o->command = (Command)c;
        if (o->command == COMMANDS) return unknown_command(argv[1], err);
    }
    set_defaults(o, engine);
    const char* values[ROWS] = {NULL};
    if (argc > 0 && !collect(o, values, argc - o->named, argv + o->named, err)) return false;
    return apply(o, values, err) && (o->page || check_together(o, engine, err));
}

void options_free(Options* o) {
    free(o->files);
    o->files = NULL;
}

// ---------------------------------------------------------------------------------------------
// Sizes and options from files

// Fails if the value of an option differs from that of a file or run.
static bool check_same(const Options* o, const Row* row, const char* loaded, const char* where, TostError* err) {
    char* value = value_text(o, row);
    const bool same = strcmp(value, loaded) == 0;
    if (!same)
        tost_error(err, "--%s %.200s differs from %.200s in %.500s: leave it out", row->name, value, loaded, where);
    free(value);
    return same;
}

bool options_take_config(Options* o, const TostConfig* config, const char* file, TostError* err) {
    const Options given = *o;
    bool same = true;
    o->config = *config;
    for (int i = 0; i < ROWS && same; i++) {
        const bool size = table[i].field >= AT(config) && table[i].field < AT(config) + sizeof o->config;
        if (!size || !o->given[i]) continue;
        char* loaded = value_text(o, &table[i]);
        same = check_same(&given, &table[i], loaded, file, err);
        free(loaded);
    }
    if (same && o->extend_block && o->extend_block <= config->block_size)
        same = tost_error(err, "--extend-block %d: %s has a block size of %d already: give more, or leave it out",
                          o->extend_block, file, config->block_size);
    if (same && o->extend_block) o->config.block_size = o->extend_block;
    return same && derive_defaults(o, err);
}

StMeta* options_echo(const Options* o, int* n) {
    StMeta* echo = xcalloc(ROWS, sizeof *echo);
    *n = 0;
    for (int i = 0; i < ROWS; i++) {
        const bool is_train = table[i].commands == 0 || (table[i].commands & TRAIN);
        if (!is_train || table[i].saved == NOT_SAVED) continue;
        char* value = value_text(o, &table[i]);
        if (value) echo[(*n)++] = (StMeta){xstrdup(table[i].name), value};
    }
    return echo;
}

bool options_resume(Options* o, const StMeta* saved, int n_saved, const char* run, TostError* err) {
    for (int i = 0; i < n_saved; i++) {
        const int row = find_row(saved[i].key, strlen(saved[i].key), COMMAND_TRAIN);
        if (row < 0 || table[row].saved == NOT_SAVED) continue;
        if (!o->given[row]) {
            if (!parse_value(o, &table[row], saved[i].value, err)) return false;
            o->given[row] = true;
            continue;
        }
        if (table[row].saved != OVERRIDABLE && !check_same(o, &table[row], saved[i].value, run, err)) return false;
    }
    return true;
}

char* options_changed(const Options* o, const StMeta* saved) {
    const int row = find_row(saved->key, strlen(saved->key), COMMAND_TRAIN);
    if (row < 0 || table[row].saved != OVERRIDABLE) return NULL;
    char *value = value_text(o, &table[row]), *note = NULL;
    const bool reorders = table[row].field == AT(parts) || table[row].field == AT(reduce);
    if (value && strcmp(value, saved->value) != 0)
        note = xasprintf("--%s %s instead of %s%s", saved->key, value, saved->value,
                         reorders ? ": gradients are added in another order, which changes the last bits of the results"
                                  : "");
    free(value);
    return note;
}
