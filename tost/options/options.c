// options.c: the command line. One table describes every option; parsing, checks, help and defaults expand from it.
#include "options/options.h"

#include <ctype.h>
#include <math.h>

#include "base/crc32.h"
#include "base/openmp.h"
#include "base/text.h"
#include "chunks.h"
#include "data/tokenizer.h"
#include "data/vocab.h"
#include "ranks/comm.h"
#include "ranks/slices.h"

// ---- The table ----

enum {
    TRAIN = 1 << COMMAND_TRAIN, SAMPLE = 1 << COMMAND_SAMPLE, EVAL = 1 << COMMAND_EVAL,
    VOCAB = 1 << COMMAND_VOCAB, TOKENIZE = 1 << COMMAND_TOKENIZE, INFO = 1 << COMMAND_INFO,
    ALL = FIXED - 1, USE = SAMPLE | EVAL, TEXT = VOCAB | TOKENIZE,
};

static const char required[] = "required";
static const char separator[] = "\x1f";   // between the values of a list in a checkpoint
#define AT(field) offsetof(Options, field)
#define DTYPES "fp32|tf32|bf16"        // in the order of TostDtype
#define BITS   "Changing it on --resume may change the last bits of the results"
#define MAX_COUNT 1e9                 // of steps, windows, samples
#define MAX_PARTS 65536
#define MAX_SEED  9007199254740991    // 2^53 - 1: checked as a double

// In the order of --help. An option whose row differs between commands has several rows.
const Option option_table[] = {
    {.group = "Model"},
    {"preset", TRAIN | FIXED, CHOICE, AT(preset), TOST_PRESETS, .help = "model size and hyperparameters"},
#define X(field, name, kind, values, saved, low, high, ...) \
    {name, TRAIN, kind, AT(config.field), values, .min = low, .max = high, __VA_ARGS__},
    TOST_CONFIG(X)
#undef X
    {"vocab-size", INFO, INT, AT(config.vocab_size), "N", .help = "check that the ids of a shard are less than N",
     1, TOST_MAX_VOCAB_SIZE, .default_text = "that of the tokenizer next to the shard"},
    {"init", TRAIN, STRING, AT(init), "FILE",
     .help = "start from the weights and sizes of a model file, checkpoint or run, with a new optimizer state; its "
     "--optimizer, --seq, --total-batch and, on a CPU, --batch up to 4,096 tokens are the defaults",
     .default_text = "random weights", .not_with = "resume"},
    {"keep-optimizer", TRAIN | FIXED, FLAG, AT(keep_optimizer), "",
     .help = "with --init: also start from the optimizer's moments, and correct their bias for the number of updates "
     "that they contain; steps, schedule and data start from the beginning",
     .needs = "init"},
    {"model", USE | INFO, STRING, AT(model), "PATH",
     .help = "safetensors file, checkpoint folder, or run folder (its newest checkpoint)",
     .default_text = "newest run in out/"},
    {.group = "Files"},
    {"data", TRAIN | OVERRIDABLE, LIST, AT(data), "GLOB", .help = "token shards to train on. Several GLOB:WEIGHT "
     "are mixed in proportion to their weights, whatever the sum"},
    {"data", EVAL, LIST, AT(data), "GLOB",
     .help = "token shards to evaluate. Either this or --task is required"},
    {"task", EVAL, STRING, AT(task), "FILE",
     .help = "examples to evaluate, JSONL of {\"context\", \"choices\", \"answer\"}",
     .not_with = "data"},
    {"json", EVAL, STRING, AT(json), "FILE", .help = "also write all results as JSON"},
    {"json", INFO, STRING, AT(json), "FILE", .help = "also write the table of a folder of runs as JSON"},
    {"force", EVAL | INFO, FLAG, AT(force), "",
     .help = "replace the file of --json even if it was not written by this command", .needs = "json"},
    {"val-data", TRAIN | OVERRIDABLE, LIST, AT(val_data), "GLOB", .help = "token shards to validate on",
     .default_text = "--data with train replaced by val, if such files exist"},
    {"order", TRAIN | FIXED, CHOICE, AT(order), "sequential|shuffled",
     .help = "order of the training data; shuffled: shards and sequences are permuted in each epoch",
     .value = ORDER_SHUFFLED},
    {"tokenizer", TRAIN, STRING, AT(tokenizer), "FILE",
     .help = "tokenizer, a vocab.bpe or merges.txt; needed for samples",
     .default_text = "that of --init or --resume, or PREFIX_vocab.bpe or vocab.bpe beside the shards"},
    {"tokenizer", USE, STRING, AT(tokenizer), "FILE", .help = "tokenizer of the model, a vocab.bpe or merges.txt",
     .default_text = "vocab.bpe in the checkpoint"},
    {"tokenizer", TOKENIZE, STRING, AT(tokenizer), "FILE",
     .help = "vocab.bpe or merges.txt; an empty file makes every byte a token", .default_text = required},
    {"out", TRAIN, STRING, AT(out), "DIR", .help = "run folder, for checkpoints and log.csv, which has a row per step",
     .default_text = "out/PRESET-NNN, the next free number"},
    {"size", VOCAB, INT, AT(size), "N",
     .help = "number of tokens: the 256 bytes, <|endoftext|>, and N - 257 learned from the text",
     VOCAB_MIN_SIZE, TOKENIZER_MAX_FILE / 4, .default_text = required},
    {"out", VOCAB, STRING, AT(out), "FILE", .help = "vocab.bpe to write", .default_text = required},
    {"out", TOKENIZE, STRING, AT(out), "PREFIX",
     .help = "write shards PREFIX_train_000000.bin … and PREFIX_val_000000.bin …, and PREFIX_vocab.bpe for train",
     .default_text = required},
    {"resume", TRAIN, FLAG, AT(resume), "",
     .help = "continue from the newest checkpoint in --out (by default the newest run in out/), bit by bit",
     .not_with = "overwrite"},
    {"overwrite", TRAIN, FLAG, AT(overwrite), "",
     .help = "if --out has a run: rename its folder to DIR.1, DIR.2, …, and start a new one", .needs = "out"},
    {"val-frac", TOKENIZE, REAL, AT(val_frac), "X",
     .help = "fraction of the documents for validation; of a single document, its last tokens",
     0, 0.999999, 0.01, "of the documents"},
    {"jsonl", TEXT, FLAG, AT(jsonl), "", .help = "read all input as JSONL: one object with a \"text\" per line",
     .default_text = "files named *.jsonl, and input whose first line is a JSON object"},
    {"plain", TEXT, FLAG, AT(plain), "",
     .help = "read all input as plain text, whatever its first line; <|endoftext|> inside lines is text",
     .not_with = "jsonl"},
    {"text-field", TEXT, STRING, AT(text_field), "NAME", .help = "the field of JSONL that has the text",
     .default_text = "text", .not_with = "plain"},
    {"skip-bad-lines", TEXT, FLAG, AT(skip_bad_lines), "",
     .help = "skip and count lines of JSONL that are not an object with a text", .not_with = "plain"},
    {"shard-tokens", TOKENIZE, INT64, AT(shard_tokens), "N", .help = "size of each shard; the last one may be smaller",
     1, INT_MAX, 100e6, "tokens"},
    {"seed", TOKENIZE, INT64, AT(seed), "N", .help = "seed for the choice of validation documents", 0, MAX_SEED, 1337},
    {.group = "Training"},
    {"steps", TRAIN | OVERRIDABLE, INT64, AT(steps), "N",
     .help = "total number of steps, including those of a resumed run; the schedule ends there", 0, MAX_COUNT,
     .unit = "steps"},
    {"epochs", TRAIN, REAL, AT(epochs), "X", .help = "set the steps to X passes over the training data; with "
     "weights, X times the samples of all sources", 1e-6, 1e6,
     .default_text = "--steps", .not_with = "steps"},
    {"batch", TRAIN | OVERRIDABLE, INT, AT(batch), "N",
     .help = "micro-batch size, in sequences. The last bits of losses, gradients and weights depend on it", 1,
     TOST_MAX_BATCH, .default_text = "that of the preset; on a GPU, the largest that divides the step, has up to "
     "65,536 tokens and fits in memory"},
    {"seq", TRAIN | FIXED, INT, AT(seq), "N", .help = "sequence length, at most --block-size", 1, TOST_MAX_BLOCK_SIZE,
     .unit = "tokens"},
    {"chunk", TRAIN | OVERRIDABLE, INT, AT(chunk), "N",
     .help = "process sequences N tokens at a time, with the memory of N tokens and 4/3 of the computation. " BITS,
     0, TOST_MAX_BLOCK_SIZE, .default_text = "whole sequences"},
    {"total-batch", TRAIN | FIXED, INT64, AT(total_batch), "N",
     .help = "tokens per step of all ranks, a multiple of batch × seq × parts, accumulated over micro-batches", 1, 1e12,
     .unit = "tokens"},
    {"optimizer", TRAIN | FIXED, CHOICE, AT(optimizer), "adamw|muon",   // in the order of TostOptimizer
     .help = "muon: for the weights of Linear in the layers, with AdamW for the rest; needs fewer tokens for the same "
     "loss. adamw: as published"},
    {"lr", TRAIN | OVERRIDABLE, REAL, AT(lr), "X",
     .help = "peak learning rate; with --init, by default the last learning rate of its run", 0, 100},
    {"schedule", TRAIN | OVERRIDABLE, CHOICE, AT(schedule), "cosine|wsd|linear|constant",
     .help = "learning rate after the warm-up; wsd: constant, then linear decay over the last --decay-frac of the "
     "steps. A wsd run can be extended with --resume --steps N before its decay, a constant one at any time"},
    {"decay-frac", TRAIN | OVERRIDABLE, REAL, AT(decay_frac), "X", .help = "length of the decay of --schedule wsd",
     0, 1, 0.2, "of the steps"},
    {"warmup", TRAIN | OVERRIDABLE, INT64, AT(warmup), "N",
     .help = "linear warm-up of the learning rate from 0 to --lr; by default at most a tenth of --steps", 0, MAX_COUNT,
     .unit = "steps"},
    {"min-lr-frac", TRAIN | OVERRIDABLE, REAL, AT(min_lr_frac), "X",
     .help = "final learning rate, as a fraction of --lr", 0, 1},
    {"weight-decay", TRAIN | FIXED, REAL, AT(weight_decay), "X",
     .help = "weight decay of embeddings and Linear weights", 0, 100},
    {"beta1", TRAIN | FIXED, REAL, AT(beta1), "X", .help = "AdamW decay rate of the first moment", 0, 0.999999},
    {"beta2", TRAIN | FIXED, REAL, AT(beta2), "X", .help = "AdamW decay rate of the second moment", 0, 0.999999},
    {"eps", TRAIN | FIXED, REAL, AT(eps), "X", .help = "AdamW epsilon, added to the denominator", 1e-30, 1},
    {"grad-clip", TRAIN | FIXED, REAL, AT(grad_clip), "X", .help = "maximum gradient norm; 0: no clipping", 0, 1e9},
    {"max-skipped", TRAIN | OVERRIDABLE, INT64, AT(max_skipped), "N",
     .help = "stop after more than N consecutive steps are skipped because loss or gradient is not finite",
     0, MAX_COUNT, 10, "steps"},
    {"seed", TRAIN | FIXED, INT64, AT(seed), "N", .help = "seed for initial weights, data order and samples",
     0, MAX_SEED, 1337},
    {.group = "Evaluation"},
    {"batch", EVAL, INT, AT(batch), "N",
     .help = "sequences per forward pass; for --task, at least the choices of one example", 1, TOST_MAX_BATCH, 8,
     .default_text = "8; for --task, chosen by length"},
    {"seq", EVAL, INT, AT(seq), "N",
     .help = "tokens per window or example; longer contexts are truncated on the left. N may exceed the "
     "block size only for models without positions",
     1, TOST_MAX_BLOCK_SIZE, .default_text = "the model's block size"},
    {"chunk", EVAL, INT, AT(chunk), "N",
     .help = "process sequences N tokens at a time, with the memory of N tokens: for very long --seq",
     0, TOST_MAX_BLOCK_SIZE, .default_text = "whole sequences"},
    {"stride", EVAL, INT, AT(stride), "N",
     .help = "distance between windows of --data; every token is scored once, in the first window that contains it",
     1, TOST_MAX_BLOCK_SIZE, .default_text = "--seq, no overlap", .needs = "data"},
    {"windows", EVAL, INT64, AT(windows), "N",
     .help = "score N windows at random positions of --data instead, as for the published figures", 1, MAX_COUNT,
     .default_text = "score every token once", .not_with = "stride", .needs = "data"},
    {"limit", EVAL, INT64, AT(limit), "N", .help = "only the first N examples of --task, or windows of --data",
     1, MAX_COUNT, .default_text = "all"},
    {"by-position", EVAL, FLAG, AT(by_position), "",
     .help = "also report the loss of --data by position in the window, in bins that end at powers of 2",
     .needs = "data"},
    {"seed", EVAL, INT64, AT(seed), "N", .help = "seed for the positions of --windows", 0, MAX_SEED, 1337,
     .needs = "windows"},
    {.group = "Validation, samples and checkpoints"},
    {"val-every", TRAIN | OVERRIDABLE, INT64, AT(val_every), "N",
     .help = "validate every N steps and after the last; 0: never", 0, MAX_COUNT, .unit = "steps"},
    {"val-windows", TRAIN | OVERRIDABLE, INT64, AT(val_windows), "N",
     .help = "validate on N windows of --seq tokens, spread evenly over --val-data, always the same ones; 0: on all",
     0, MAX_COUNT, 480, "windows"},
    {"sample-every", TRAIN | OVERRIDABLE, INT64, AT(sample_every), "N",
     .help = "print a sample every N steps and after the last; 0: never", 0, MAX_COUNT, .unit = "steps"},
    {"sample-tokens", TRAIN | OVERRIDABLE, INT64, AT(sample_tokens), "N", .help = "length of each sample",
     1, MAX_COUNT, 128, "tokens"},
    {"save-every", TRAIN | OVERRIDABLE, INT64, AT(save_every), "N",
     .help = "save a checkpoint every N steps and after the last; 0: never", 0, MAX_COUNT, .unit = "steps"},
    {"keep", TRAIN | OVERRIDABLE, INT64, AT(keep), "N", .help = "keep only the newest N checkpoints; 0: all",
     0, MAX_COUNT, 3, "checkpoints"},
    {"keep-best", TRAIN | OVERRIDABLE, FLAG, AT(keep_best), "",
     .help = "also keep the checkpoint of the best validation, as best in the run folder"},
    {"stop-at-val", TRAIN | OVERRIDABLE, REAL, AT(stop_at_val), "LOSS",
     .help = "save and stop when the validation loss is at most LOSS; 0: never", 0, 1e9, .default_text = "off"},
    {"max-time", TRAIN, DURATION, AT(max_time), "TIME",
     .help = "save and stop before the next step would exceed this time, such as 2.5h; status 75 if steps are left",
     0.001, 10000 * 86400.0, .default_text = "off"},
    {.group = "Sampling"},
    {"prompt", SAMPLE, STRING, AT(prompt), "TEXT|@FILE|-",
     .help = "text to continue, from the command line, or from a file or stdin without its final line end"},
    {"prompts", SAMPLE, STRING, AT(prompts), "FILE|-",
     .help = "continue every prompt of a file or stdin and write the results as JSONL. One prompt per line or, if the "
     "name ends in .jsonl or the text begins with a JSON object, one object per line: its \"prompt\" is continued, its "
     "\"id\" is copied to the results",
     .not_with = "prompt"},
    {"tokens", SAMPLE, INT64, AT(tokens), "N",
     .help = "maximum number of new tokens; ends at <|endoftext|>. A full context is cut to its second half",
     1, 1e12, 256, "tokens"},
    {"samples", SAMPLE, INT64, AT(samples), "N",
     .help = "number of samples of each prompt, generated together; separated by lines of ---", 1, MAX_COUNT, 1},
    {"stop", SAMPLE, LIST, AT(stop), "TEXT",
     .help = "end a sample before its first occurrence of TEXT; may be repeated"},
    {"temperature", TRAIN | SAMPLE | OVERRIDABLE, REAL, AT(temperature), "X",
     .help = "divide logits by X; 0: always the most likely token", 0, 1000, 0.8},
    {"top-k", TRAIN | SAMPLE | OVERRIDABLE, INT, AT(top_k), "N",
     .help = "sample from the N most likely tokens; 0: from all", 0, TOST_MAX_VOCAB_SIZE},
    {"top-p", TRAIN | SAMPLE | OVERRIDABLE, REAL, AT(top_p), "X",
     .help = "after --temperature and --top-k, sample from the smallest set of most likely tokens with total "
     "probability X; 1: from all", 1e-9, 1, 0.95},
    {"seed", SAMPLE, INT64, AT(seed), "N",
     .help = "random seed. A text depends on it, on the \"id\" of its prompt or else the prompt's place, not counting "
     "blank lines, and on the number of the sample, but not on the other prompts", 0, MAX_SEED, 1337},
    {.group = "Machine and output"},
    {"dtype", TRAIN | USE | OVERRIDABLE, CHOICE, AT(dtype), DTYPES,
     .help = "operands of matrix products; sums and parameters are always float32; tf32: CUDA only. By default "
     "bf16 on a GPU and, to train, on an AMD CPU with AVX-512 BF16"},
    {"threads", TRAIN | USE | TEXT | OVERRIDABLE, INT, AT(threads), "N",
     .help = "CPU threads; 0: OMP_NUM_THREADS, or all cores, and fewer while other programs use them",
     0, THREADS_LIMIT},
    {"parts", TRAIN | OVERRIDABLE, INT, AT(parts), "N",
     .help = "divide a step into N parts, added in a fixed order: the same results on one rank, or on R ranks "
     "if N / R is a power of two. " BITS, 1, MAX_PARTS, 1, .default_text = "one per rank"},
    {"rank-timeout", TRAIN | EVAL, REAL, AT(rank_timeout), "X",
     .help = "stop if a wait for other ranks takes longer than X seconds; 0: wait forever",
     0, 1e6, COMM_TIMEOUT, "seconds"},
    {"quiet", TRAIN | TEXT, FLAG, AT(quiet), "", .help = "print nothing on stdout and no progress"},
    {"help", ALL, HELP, 0, "", .help = "show this help"},
    {"version", TRAIN, HELP, 0, "", .help = "print the version and the git commit"},
    {"init-file", FIXED, STRING, AT(init_file), "", .help = ""},
    {"data-tokens", FIXED, INT64, AT(data_tokens), "", .help = "", 0, 9e15},
    {"data-blocks-crc", FIXED, INT64, AT(data_crc), "", .help = "", 0, UINT32_MAX},
};

enum { ROWS = countof(option_table) };
_Static_assert((int)ROWS <= OPTION_ROWS_MAX, "Options.given has an element for each row");
const int option_count = ROWS;

const CommandHelp command_table[COMMANDS] = {
    {"train", "[train] [options]", "train a model; without options, the starter model",
     "train takes only options, and the command comes first"},
    {"sample", "sample [options]", "generate text", "give the text as --prompt TEXT"},
    {"eval", "eval (--data GLOB | --task FILE) [options]", "evaluate a model on token shards or examples",
     "--task takes a FILE of examples, which dev/data/evalset.py writes"},
    {"vocab", "vocab --size N --out FILE [options] FILE…", "learn a vocabulary of N tokens from text", NULL},
    {"tokenize", "tokenize --tokenizer FILE --out PREFIX [options] FILE…", "convert text to token shards", NULL},
    {"info", "info [PATH | RUN RUN | SHARD…]",
     "show a model, run or folder of runs; compare two runs; check shards",
     "info takes one PATH, two runs, or shards"},
};

bool option_belongs(const Option* row, Command command) { return row->commands >> command & 1; }

// The row of a command's option, or of one that is only saved; COMMANDS: the first of any command. NULL: none.
static const Option* find_row(const char* name, size_t len, Command command) {
    for (const Option* row = option_table; row < option_table + ROWS; row++) {
        const bool fits = command == COMMANDS ? row->commands & ALL
                                              : row->commands == FIXED || option_belongs(row, command);
        if (fits && strlen(row->name) == len && memcmp(row->name, name, len) == 0) return row;
    }
    return NULL;
}

const char* options_program(const Options* o) {
    const char* slash = strrchr(o->program, '/');
    return slash && slash[1] ? slash + 1 : o->program;
}

bool option_given(const Options* o, const char* name) {
    const Option* row = find_row(name, strlen(name), o->command);
    return row && o->given[row - option_table];
}

// ---- Values ----

static void* field_of(const Options* o, const Option* row) { return (char*)o + row->field; }
static bool is_saved(const Option* row) { return row->commands & (FIXED | OVERRIDABLE); }

// The nth name in "a|b|c" and its length, or NULL.
static const char* choice_name(size_t* len, const char* choices, int n) {
    for (; n > 0 && choices; n--) choices = strchr(choices, '|') ? strchr(choices, '|') + 1 : NULL;
    *len = choices ? strcspn(choices, "|") : 0;
    return choices;
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
static char* value_text(const Options* o, const Option* row) {
    const void* field = field_of(o, row);
    const char* text = NULL;
    size_t n;
    switch (row->kind) {
        case HELP: break;
        case FLAG: text = is_saved(row) && *(const bool*)field ? "1" : NULL; break;
        case INT: return *(const int*)field < row->min ? NULL : xasprintf("%d", *(const int*)field);   // NULL: unset
        case INT64: return xasprintf("%lld", (long long)*(const int64_t*)field);
        case REAL:
        case DURATION: return real_text(*(const double*)field);
        case CHOICE:
            text = choice_name(&n, row->metavar, *(const int*)field);
            return xasprintf("%.*s", (int)n, text);
        case STRING: text = *(const char* const*)field; break;
        case LIST: return ((const PathList*)field)->count ? join_paths(field, *separator) : NULL;
    }
    return text ? xstrdup(text) : NULL;
}

static void set_number(Options* o, const Option* row, double value) {
    if (row->kind == REAL || row->kind == DURATION) *(double*)field_of(o, row) = value;
    else if (row->kind == INT64) *(int64_t*)field_of(o, row) = (int64_t)value;
    else *(int*)field_of(o, row) = (int)value;
}

// A decimal number with a unit: of integers k, M, G (or B) and T, the powers of 1000; of times s, m, h and d.
static bool with_unit(double* value, const char* text, OptionKind kind) {
    static const struct { char name; bool time; double factor; } units[] = {
        {'k', false, 1e3}, {'K', false, 1e3}, {'M', false, 1e6}, {'G', false, 1e9}, {'B', false, 1e9},
        {'T', false, 1e12}, {'s', true, 1}, {'m', true, 60}, {'h', true, 3600}, {'d', true, 86400}};
    char* end;
    double exact = strtod(text, &end);
    if (end == text || strspn(text, "0123456789.eE+-") < (size_t)(end - text)) return false;   // nan, hexadecimal
    for (size_t i = 0; kind != REAL && i < countof(units); i++) {
        if (units[i].name != *end || units[i].time != (kind == DURATION)) continue;
        exact *= units[i].factor;
        end++;
        break;
    }
    *value = kind == INT || kind == INT64 ? round(exact) : exact;   // 0.3M is not exactly 300000 in binary
    return !*end && fabs(*value) < INFINITY && fabs(exact - *value) <= 1e-12 * fabs(exact);
}

static bool parse_number(Options* o, const Option* row, const char* text, TostError* err) {
    static const char time[] = "a time such as 90m or 2.5h, or a number of seconds";
    const char* what = row->kind == DURATION ? time : row->kind == REAL ? "a number" : "an integer";
    double value;
    if (with_unit(&value, text, row->kind) && value >= row->min && value <= row->max) {
        set_number(o, row, value);
        return true;
    }
    char *min = real_text(row->min), *max = real_text(row->max);
    tost_error(err, "--%s '%.200s' is not %s from %s to %s", row->name, text, what, min, max);
    free(min);
    free(max);
    return false;
}

static bool parse_choice(Options* o, const Option* row, const char* text, TostError* err) {
    size_t n;
    const char* name;
    if (strcmp(text, "bfloat16") == 0) text = "bf16";
    for (int i = 0; (name = choice_name(&n, row->metavar, i)); i++) {
        if (strlen(text) != n || memcmp(text, name, n) != 0) continue;
        set_number(o, row, i);
        return true;
    }
    return tost_error(err, "--%s '%.200s' is not one of %s", row->name, text, row->metavar);
}

static bool parse_value(Options* o, const Option* row, const char* text, TostError* err) {
    switch (row->kind) {
        case HELP: return true;
        case FLAG: *(bool*)field_of(o, row) = true; return true;
        case INT:
        case INT64:
        case REAL:
        case DURATION: return parse_number(o, row, text, err);
        case CHOICE: return parse_choice(o, row, text, err);
        case STRING:
        case LIST: break;
    }
    if (!*text) return tost_error(err, "--%s is empty: give a value, or leave it out", row->name);
    if (strcmp(text, "-") == 0 && !strstr(row->metavar, "|-") && row->field != AT(stop))
        return tost_error(err, "--%s -: give a name (./- for a file named -)", row->name);
    if ((row->commands & TRAIN) && (strpbrk(text, separator) || count_broken(&(uint64_t){0}, text, strlen(text))))
        return tost_error(err, "--%s %s: the name has a byte 0x1f or is not UTF-8; rename it", row->name, text);
    if (row->kind == STRING) *(const char**)field_of(o, row) = text;
    return true;
}

// The values of one option, if it has any; only a list has several.
static bool parse_values(Options* o, const Option* row, TostError* err) {
    const PathList* values = &o->values[row - option_table];
    bool ok = true;
    for (int i = 0; ok && i < values->count; i++) ok = parse_value(o, row, values->paths[i], err);
    if (values->count && row->kind == LIST) *(PathList*)field_of(o, row) = *values;
    return ok;
}

char* option_text(const Options* o, const Option* row) {
    char *raw = value_text(o, row), *value = raw ? printable_text(raw) : NULL;   // may be from the command line
    const char *shown = row->default_text ? row->default_text : value, *unit = row->default_text ? NULL : row->unit;
    const char* label = row->default_text == required ? "" : "default: ";
    const char* mark = o->command == COMMAND_TRAIN && (row->commands & OVERRIDABLE) ? " *" : "";
    char* text = !shown ? xasprintf("%s%s", row->help, mark)
                        : xasprintf("%s (%s%s%s%s)%s", row->help, label, shown, unit ? " " : "", unit ? unit : "",
                                    mark);
    free(raw);
    free(value);
    return text;
}

// ---- Spelling ----

// The Levenshtein distance of two words; more than `limit` if it is larger.
static int distance(const char* a, const char* b, int limit) {
    while (*a && *a == *b) a++, b++;
    if (!*a || !*b || limit < 0) return (int)(strlen(a) + strlen(b));
    const int replaced = distance(a + 1, b + 1, limit - 1), removed = distance(a + 1, b, limit - 1);
    const int added = distance(a, b + 1, limit - 1), least = replaced < removed ? replaced : removed;
    return 1 + (added < least ? added : least);
}

// The option to suggest for a misspelt one: one with a common prefix, or else with the smallest edit distance,
// preferring options of the command; NULL if none is close.
static const char* nearest_name(const char* name, Command command) {
    const size_t len = strlen(name);
    const int limit = len < 4 ? 1 : len < 8 ? 2 : 3;
    const char* best = NULL;
    int best_score = 2 * limit + 2;
    for (const Option* row = option_table; row < option_table + ROWS && len > 0; row++) {
        if (!(row->commands & ALL)) continue;
        const size_t common = strlen(row->name) < len ? strlen(row->name) : len;
        const bool prefix = common >= 2 && strncmp(row->name, name, common) == 0;
        if (!prefix && *row->name != *name && distance(name, row->name, 1) > 1) continue;   // not --eps for --gpus
        const int score = (prefix ? 0 : 2 * distance(name, row->name, limit)) + !option_belongs(row, command);
        if (score >= best_score) continue;
        best = row->name;
        best_score = score;
    }
    return best;
}

// Options of nanoGPT, llm.c and other trainers whose names do not suggest ours.
static const struct { const char* name; unsigned commands; const char* hint; } foreign[] = {
    {"learning-rate", TRAIN, "use --lr"}, {"max-iters", TRAIN, "use --steps"}, {"max-steps", TRAIN, "use --steps"},
    {"num-iterations", TRAIN, "use --steps"}, {"lr-decay-iters", TRAIN, "use --steps"},
    {"n-layer", TRAIN, "use --layers"}, {"n-head", TRAIN, "use --heads"}, {"n-embd", TRAIN, "use --channels"},
    {"dropout", TRAIN, "the model has no dropout"}, {"min-lr", TRAIN, "use --min-lr-frac"},
    {"eval-interval", TRAIN, "use --val-every"}, {"eval-iters", TRAIN, "use --val-windows"},
    {"val-batches", TRAIN, "use --val-windows, which counts sequences"},
    {"init-from", TRAIN, "use --init or --resume"}, {"init-from", USE, "use --model"}, {"out-dir", USE, "use --model"},
    {"gradient-accumulation-steps", TRAIN, "use --total-batch, the tokens per step"}, {"bf16", ALL, "use --dtype bf16"},
    {"gradient-checkpointing", TRAIN, "use --chunk"}, {"recompute", TRAIN, "use --chunk"},
    {"context-length", TRAIN, "use --block-size"}, {"start", SAMPLE, "use --prompt"},
    {"num-samples", SAMPLE, "use --samples"}, {"max-new-tokens", SAMPLE, "use --tokens"},
    {"max-tokens", SAMPLE, "use --tokens"}, {"n-predict", SAMPLE, "use --tokens"}, {"n", SAMPLE, "use --tokens"},
    {"device", ALL, "train_gpt_tost runs on the CPU, train_gpt_tostcu on a GPU"},
    {"wandb", TRAIN, "dev/plot/export_log.py sends log.csv to Weights & Biases"},
    {"mask-across-documents", TRAIN, "documents are not masked, as in the published model"},
};

static bool unknown_option(const char* arg, Command command, TostError* err) {
    char name[40];   // truncated, with '-' for '_'
    const int shown = (int)strcspn(arg, "=");
    snprintf(name, sizeof name, "%.*s", shown, arg + strspn(arg, "-"));
    name[strcspn(name, "=")] = 0;
    for (char* p = name; *p; p++) *p = *p == '_' ? '-' : (char)tolower((unsigned char)*p);
    for (size_t i = 0; i < countof(foreign); i++)
        if ((foreign[i].commands >> command & 1) && strcmp(foreign[i].name, name) == 0)
            return tost_error(err, "unknown option %.*s: %s", shown, arg, foreign[i].hint);
    const char* meant = nearest_name(name, command);
    return meant ? tost_error(err, "unknown option %.*s: did you mean --%s?", shown, arg, meant)
                 : tost_error(err, "unknown option %.*s: see %s --help", shown, arg, command_table[command].name);
}

// "train, sample": the commands with an option of this name; NULL: all commands.
static TextLine command_names(const char* option) {
    TextLine names = {""};
    for (int c = 0; c < COMMANDS; c++)
        if (!option || find_row(option, strlen(option), (Command)c))
            names = text_line("%s%s%s", names.text, names.text[0] ? ", " : "", command_table[c].name);
    return names;
}

static bool other_command(const char* name, Command command, TostError* err) {
    return tost_error(err, "--%s is an option of %s, not of %s", name, command_names(name).text,
                      command_table[command].name);
}

static bool find_command(Options* o, const char* name, TostError* err) {
    for (int c = 0; c < COMMANDS; c++) {
        if (strcmp(name, command_table[c].name) != 0) continue;
        o->command = (Command)c;
        return true;
    }
    return tost_error(err, "unknown command '%.200s': the commands are %s; see --help", name,
                      command_names(NULL).text);
}

// ---- Defaults that depend on others ----

bool options_check_pass(int batch, int seq, int chunk, TostError* err) {
    const int length = chunk > 0 && chunk < seq ? chunk : seq;
    const int64_t pass = (int64_t)batch * length;
    return pass <= INT_MAX || tost_error(err, "--batch %d × %d tokens is %lld tokens per pass, the limit is %d: lower "
                                         "--batch, --seq or --chunk", batch, length, (long long)pass, INT_MAX);
}

TostEngineOptions options_engine(const Options* o, int max_batch, int seq, bool training, TostComm* comm) {
    const int max_chunk = o->chunk && o->chunk < seq ? o->chunk : seq;
    return (TostEngineOptions){.max_batch = max_batch, .max_chunk = max_chunk, .training = training,
                               .states = chunks_states(seq, max_chunk, training), .dtype = (TostDtype)o->dtype,
                               .threads = o->threads, .comm = comm};
}

static void derive_warmup(Options* o) {
    const int64_t preset = tost_preset_at(o->preset)->warmup;
    if (!option_given(o, "warmup")) o->warmup = preset < o->steps / 10 ? preset : o->steps / 10;
}

// Derives sequence length, micro-batch size, tokens per step and warm-up from sizes and preset, unless given.
static bool derive_defaults(Options* o, TostError* err) {
    const TostPreset* preset = tost_preset_at(o->preset);
    const int block = o->config.block_size;
    if (!option_given(o, "seq")) o->seq = block == preset->config.block_size ? preset->seq : block;
    if (o->seq > block) return tost_error(err, "--seq %d is longer than the block size %d", o->seq, block);

    // A checkpoint without the option is of one part.
    if (!option_given(o, "parts")) o->parts = o->resume ? 1 : o->ranks;
    if (!parts_check(o->parts, o->ranks, err)) return false;
    const bool total_given = option_given(o, "total-batch");   // otherwise, batch and total_batch have their defaults
    const int64_t part_seq = (int64_t)o->seq * o->parts, wanted = o->total_batch;
    if (!option_given(o, "batch") && (total_given || o->parts > 1 || wanted != preset->total_batch)
        && wanted % part_seq == 0)
        while (wanted / part_seq % o->batch != 0) o->batch--;
    if (!options_check_pass(o->batch, o->seq, 0, err)) return false;
    const int64_t pass = o->batch * part_seq, passes = wanted / pass, rest = wanted % pass;
    if (!total_given) o->total_batch = (passes + (rest > 0)) * pass;
    else if (rest != 0)
        return tost_error(err, "--total-batch %lld is not a multiple of batch × seq × parts = %d × %d × %d: use %lld",
                          (long long)wanted, o->batch, o->seq, o->parts, (long long)((passes + 1) * pass));
    derive_warmup(o);
    return true;
}

void options_take_samples(Options* o, uint64_t samples) {
    if (o->epochs > 0)
        o->steps = (int64_t)fmin(MAX_COUNT, ceil(o->epochs * (double)samples * o->seq / (double)o->total_batch));
    derive_warmup(o);
}

static void set_defaults(Options* o, const TostEngine* engine) {
    for (const Option* row = option_table; row < option_table + ROWS; row++) {
        const bool number = row->kind > FLAG && row->kind != STRING && row->kind != LIST;
        if (number && option_belongs(row, o->command)) set_number(o, row, row->value);
    }
    o->dtype = (int)engine->default_dtype(o->command == COMMAND_TRAIN);
}

static void set_preset(Options* o) {
    static char* starter[] = {"data/starter/starter_train_*.bin"};
    if (o->command != COMMAND_TRAIN) return;
    const TostPreset* p = tost_preset_at(o->preset);
#define SET(field) o->field = p->field;
    SET(config) SET(optimizer) SET(lr) SET(min_lr_frac) SET(weight_decay) SET(beta1) SET(beta2) SET(eps)
    SET(grad_clip) SET(warmup) SET(steps) SET(batch) SET(seq) SET(total_batch) SET(val_every) SET(sample_every)
    SET(save_every)
#undef SET
    if (o->preset == 0) o->data = (PathList){1, starter};
}

Options options_default(const TostEngine* engine) {
    Options o = {.command = COMMAND_TRAIN, .ranks = 1, .program = "train_gpt_tost"};
    set_defaults(&o, engine);
    set_preset(&o);
    return o;
}

// ---- Checks of combinations ----

static bool check_operands(Options* o, TostError* err) {
    const bool info = o->command == COMMAND_INFO;
    const char* instead = info && !o->model ? NULL : command_table[o->command].no_operands;
    for (int i = 0; i < o->n_files; i++)
        if (!*o->files[i]) return tost_error(err, "an argument is empty: give a file name, or leave it out");
    if (o->n_files && instead) return tost_error(err, "unexpected argument '%.200s': %s", o->files[0], instead);
    if (info && o->n_files == 1) o->model = o->files[0];
    return true;
}

// Options that are required, exclude each other or need each other.
static bool check_pairs(const Options* o, TostError* err) {
    for (int i = 0; i < ROWS; i++) {
        const Option* row = &option_table[i];
        if (!option_belongs(row, o->command)) continue;
        if (row->default_text == required && !o->given[i])
            return tost_error(err, "%s needs --%s %s", command_table[o->command].name, row->name, row->metavar);
        if (o->given[i] && row->not_with && option_given(o, row->not_with))
            return tost_error(err, "--%s and --%s: give one of them", row->name, row->not_with);
        if (o->given[i] && row->needs && !option_given(o, row->needs))
            return tost_error(err, "--%s needs --%s %s", row->name, row->needs,
                              find_row(row->needs, strlen(row->needs), o->command)->metavar);
    }
    return true;
}

static bool check_train(Options* o, TostError* err) {
    if (!o->data.count && !o->resume)
        return tost_error(err, "--preset %s needs --data GLOB: token shards made with tokenize",
                          tost_preset_at(o->preset)->name);
    if (o->resume || o->init) return true;   // sizes come from a file and are checked by options_take_config
    return tost_config_check(&o->config, err) && derive_defaults(o, err);
}

static bool check_eval(const Options* o, TostError* err) {
    if (!o->data.count && !o->task)
        return tost_error(err, "eval needs --data GLOB (token shards) or --task FILE (examples)");
    if (o->seq && o->stride > o->seq)
        return tost_error(err, "--stride %d is longer than --seq %d: it would skip tokens", o->stride, o->seq);
    return options_check_pass(o->batch, o->seq, o->chunk, err);
}

// tokenize and vocab
static bool check_text(const Options* o, TostError* err) {
    const bool vocab = o->command == COMMAND_VOCAB;
    if (!o->n_files && (!vocab || o->size > VOCAB_MIN_SIZE))
        return tost_error(err, "%s needs a FILE of text or JSONL; - is stdin", command_table[o->command].name);
    const char *slash = strrchr(o->out, '/'), *name = slash ? slash + 1 : o->out;
    return (*name && strcmp(name, ".") != 0 && strcmp(name, "..") != 0)
        || tost_error(err, "--out %s is a folder: give a name in it, such as %s%smy%s", o->out, o->out,
                      *name ? "/" : "", vocab ? ".bpe" : "");
}

static bool check_together(Options* o, const TostEngine* engine, TostError* err) {
    size_t n;
    const char* dtype = choice_name(&n, DTYPES, o->dtype);
    if (!engine->supports((TostDtype)o->dtype))
        return tost_error(err, "--dtype %.*s is not supported by the %s engine: use fp32%s", (int)n, dtype,
                          engine->name, engine->supports(TOST_BF16) ? " or bf16" : "");
    if (!THREADS_MANY && o->threads > 1)
        return tost_error(err, "--threads %d: the program was built without OpenMP: leave it out", o->threads);
    if (!check_operands(o, err) || !check_pairs(o, err)) return false;
    return o->command == COMMAND_TRAIN ? check_train(o, err)
         : o->command == COMMAND_EVAL ? check_eval(o, err) : !(1 << o->command & TEXT) || check_text(o, err);
}

// ---- Parsing ----

// A pattern that the shell may have expanded.
static bool is_glob(const Option* row) { return strcmp(row->metavar, "GLOB") == 0; }

static void add_value(Options* o, const Option* row, const char* value) {
    add_path(&o->values[row - option_table], xstrdup(value));
}

// Handles the option **at and moves *at to its value, if that is an argument of its own. Values are parsed later.
static bool take_option(Options* o, char* const** at, TostError* err) {
    const char *arg = **at, *next = (*at)[1];
    const bool help = strcmp(arg, "-h") == 0, dashes = strncmp(arg, "--", 2) == 0;
    const char *name = help ? "help" : dashes ? arg + 2 : "", *equals = strchr(name, '=');
    const size_t len = strcspn(name, "=");
    const Option *row = find_row(name, len, o->command), *any = find_row(name, len, COMMANDS);
    if (!any) return unknown_option(arg, o->command, err);
    if (!row) return other_command(any->name, o->command, err);
    const bool valued = row->kind > FLAG;
    if (!valued && equals) return tost_error(err, "--%s takes no value: %.200s", row->name, arg);
    // If the value is the name of an option, the value was forgotten. --name=--value is accepted.
    const bool forgotten = valued && !equals && next && strncmp(next, "--", 2) == 0
                           && find_row(next + 2, strcspn(next + 2, "="), COMMANDS);
    if (forgotten || (valued && !equals && !next))
        return tost_error(err, "--%s needs a value: %s%s%.200s", row->name, row->metavar, next ? ", not " : "",
                          next ? next : "");
    bool* given = &o->given[row - option_table];
    if (row->kind == HELP) o->page = row->name;
    else if (*given && row->kind != LIST) return tost_error(err, "--%s is given twice", row->name);
    *given = true;
    add_value(o, row, !valued ? "" : equals ? equals + 1 : next);
    *at += valued && !equals;
    for (; valued && is_glob(row) && (*at)[1] && (*at)[1][0] != '-'; ++*at) add_value(o, row, (*at)[1]);
    return true;
}

// Options and operands come in any order; after --, all are operands.
static bool collect(Options* o, char* const* arg, TostError* err) {
    for (bool options = true; *arg; arg++) {
        if (options && strcmp(*arg, "--") == 0) options = false;
        else if (!options || (*arg)[0] != '-' || !(*arg)[1]) o->files[o->n_files++] = *arg;
        else if (!take_option(o, &arg, err)) return false;
    }
    return true;
}

// The value of an option that belongs to a run, or NULL. free()
static char* run_value(const Options* o, const Option* row) {
    const bool size = row->field >= AT(config) && row->field < AT(config) + sizeof o->config;
    const bool start = row->field == AT(tokenizer) || row->field == AT(init);
    const bool shown = option_belongs(row, COMMAND_TRAIN) && (size || start || is_saved(row));
    return shown ? value_text(o, row) : NULL;
}

char* saved_value_text(const char* value) {
    char* text = xstrdup(value);
    for (char* p = text; (p = strchr(p, *separator));) *p = ' ';
    return text;
}

void options_print_changes(const Options* a, const Options* b) {
    for (const Option* row = option_table; row < option_table + ROWS; row++) {
        char *first = run_value(a, row), *second = run_value(b, row);
        if (first && second ? strcmp(first, second) != 0 : first != second) {
            char *left = saved_value_text(first ? first : "-"), *right = saved_value_text(second ? second : "-");
            print_line(stdout, "%-14s %s | %s", row->name, left, right);
            free(left);
            free(right);
        }
        free(first);
        free(second);
    }
}

// The preset comes first, because it sets other options.
static bool apply(Options* o, TostError* err) {
    for (int i = 0; i < ROWS; i++) {
        if (!parse_values(o, &option_table[i], err)) return false;
        if (option_table[i].field == AT(preset)) set_preset(o);
    }
    return true;
}

bool options_parse(Options* o, int argc, char** argv, const TostEngine* engine, TostError* err) {
    *o = (Options){.command = COMMAND_TRAIN, .program = o->program, .rank = o->rank, .ranks = o->ranks};
    o->files = xcalloc((size_t)argc + 1, sizeof *o->files);
    o->named = argc > 1 && argv[1][0] != '-';
    if (o->named && !find_command(o, argv[1], err)) return false;
    set_defaults(o, engine);
    if (argc > 0 && !collect(o, argv + 1 + o->named, err)) return false;
    return apply(o, err) && (o->page || check_together(o, engine, err));
}

void options_free(Options* o) {
    free(o->files);
    o->files = NULL;
    for (int i = 0; i < ROWS; i++) free_paths(&o->values[i]);
}

bool options_same(const Options* o, TostComm* comm, TostError* err) {
    uint32_t own[ROWS], first[ROWS];
    int i = 0;
    for (; i < ROWS; i++) {
        // --dtype also if not given: its default depends on the processor, unless a checkpoint has it
        const bool compared = o->given[i] || (option_table[i].field == AT(dtype) && !o->resume);
        char* value = compared ? value_text(o, &option_table[i]) : NULL;
        own[i] = first[i] = value ? crc32_update(1, value, strlen(value)) : o->given[i];
        free(value);
    }
    comm_broadcast(comm, first, sizeof first, 0);
    for (i = 0; i < ROWS && own[i] == first[i]; i++) {}
    if (i < ROWS)
        tost_error(err, "--%s differs from that of rank 0: give all ranks the same command line%s",
                   option_table[i].name, option_table[i].field == AT(dtype) ? ", with --dtype" : "");
    return comm_agree(comm, i == ROWS, err);
}

// ---- Sizes and options from files ----

// Fails if the value of an option differs from that of a file or run.
static bool check_same(const Options* o, const Option* row, const char* loaded, const char* where, TostError* err) {
    char* value = value_text(o, row);
    const bool same = strcmp(value, loaded) == 0;
    if (!same)
        tost_error(err, "--%s %.200s differs from %.200s in %.500s: leave it out%s%s", row->name, value, loaded, where,
                   row->commands & FIXED ? ", or start a new run from its weights with --init" : "",
                   row->commands & FIXED && row->field != AT(optimizer) ? " and --keep-optimizer" : "");
    free(value);
    return same;
}

bool options_take_config(Options* o, const TostConfig* config, const char* file, TostError* err) {
    const Options given = *o;
    bool same = true;
    o->config = *config;
    if (o->init && !config->conv && option_given(o, "conv")) o->config.conv = given.config.conv;
    if (o->init && !config->memory && option_given(o, "memory")) o->config.memory = given.config.memory;
    for (int i = 0; i < ROWS && same; i++) {
        const Option* row = &option_table[i];
        if (!o->given[i] || row->field < AT(config) || row->field >= AT(config) + sizeof o->config) continue;
        char* loaded = value_text(o, row);
        same = check_same(&given, row, loaded, file, err);
        free(loaded);
    }
    return same && (derive_defaults(o, err) || tost_error(err, "%s; defaults are from %s", err->text, file));
}

// The row of train's option that is saved under this name, or NULL.
static const Option* saved_row(const char* key) {
    const Option* row = find_row(key, strlen(key), COMMAND_TRAIN);
    return row && is_saved(row) ? row : NULL;
}

KeyValues options_echo(const Options* o) {
    KeyValues echo = {0};
    for (int i = 0; i < ROWS; i++) {
        char* value = is_saved(&option_table[i]) ? value_text(o, &option_table[i]) : NULL;
        if (value) key_values_add(&echo, xstrdup(option_table[i].name), value);
    }
    return echo;
}

bool options_resume(Options* o, const KeyValues* saved, const char* file, TostError* err) {
    for (int i = 0; i < saved->count; i++) {
        const Option* row = saved_row(saved->entry[i].key);
        if (!row) continue;
        bool* given = &o->given[row - option_table];
        char *copy = *given ? NULL : xstrdup(saved->entry[i].value), *rest = copy;
        for (char* value; (value = strsep(&rest, separator));) add_value(o, row, value);
        free(copy);
        if (*given && (row->commands & FIXED) && !check_same(o, row, saved->entry[i].value, file, err)) return false;
        if (!*given && !parse_values(o, row, err))
            return tost_error(err, "%s: __metadata__ 'option.%s': %s: the file is damaged; use another checkpoint",
                              file, saved->entry[i].key, err->text);
        *given = true;
    }
    return true;
}

// An option of another version, not at its default. data-crc: a fingerprint of the shards, replaced by data-blocks-crc
static bool is_ignored(const KeyValue* e) {
    static const char defaults[] = " ema=0 on-save-error=stop reduce=ordered skip-grad-z=0 skip-loss-z=0 ";
    return !saved_row(e->key) && strcmp(e->key, "data-crc") != 0
        && !strstr(defaults, text_line(" %s=%s ", e->key, e->value).text);
}

TextLine options_changed(const Options* o, const KeyValues* saved) {
    TextLine all = {""};
    for (int i = 0; i < saved->count; i++) {
        const KeyValue* e = &saved->entry[i];
        const Option* row = saved_row(e->key);
        char* value = row && (row->commands & OVERRIDABLE) ? value_text(o, row) : NULL;
        if (value ? strcmp(value, e->value) != 0 : is_ignored(e))
            all = text_line("%s%s--%s %s %s%s", all.text, all.text[0] ? ", " : "", e->key, value ? value : e->value,
                            value ? "instead of " : "(not in this version)", value ? e->value : "");
        free(value);
    }
    for (char* p = all.text; (p = strchr(p, *separator));) *p = ' ';
    return all;
}
