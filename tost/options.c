// options.c: the command line. One table says everything about a flag: who takes it, how it is read, what it
// may be, whether a checkpoint remembers it, and how --help words it.
#include "options.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "outlier.h"
#include "threads.h"

// ---------------------------------------------------------------------------------------------
// The table

enum {
    TRAIN = 1 << COMMAND_TRAIN, SAMPLE = 1 << COMMAND_SAMPLE, EVAL = 1 << COMMAND_EVAL,
    TOKENIZE = 1 << COMMAND_TOKENIZE, INFO = 1 << COMMAND_INFO,
    INSPECT = 1 << COMMAND_INSPECT, ALL = (1 << COMMANDS) - 1,
};

typedef enum { SIZES, DATA, UPDATES, REPORTS, TEXT, MACHINE, GROUPS } Group;

static const char* const group_titles[GROUPS] = {
    "Model", "Files", "Training", "Validation, samples and checkpoints of a run", "Sampled text", "Machine",
};

typedef enum { HELP, FLAG, INT, INT64, REAL, STRING, CHOICE, PRESET } Kind;   // CHOICE: of "a|b|c", 0, 1, 2

typedef enum {
    FORGOTTEN,   // not in a checkpoint
    KEPT,        // a resumed run takes it from the checkpoint unless it is given anew
    FIXED,       // the same, and it may not change: it decides what the run computes
} Memory;

typedef struct {
    const char* name;
    unsigned    commands;      // bit mask; 0: a fact of the run that only checkpoints carry
    Group       group;
    Kind        kind;
    size_t      field;         // offset in Options
    double      least, most;   // of numbers, both allowed
    Memory      memory;
    const char* metavar;
    const char* unit;          // of the default, in --help
    const char* otherwise;     // default in words; NULL: the value, if there is one
    const char* help;
} Row;

#define AT(field) offsetof(Options, field)
#define TOKEN_TEXT(x) #x
#define NUMBER_TEXT(macro) TOKEN_TEXT(macro)

// Rows of one name belong to different commands.
static const Row table[] = {
    {"preset", TRAIN, SIZES, PRESET, AT(preset), 0, 0, FIXED, "NAME", "", NULL,
     "sizes and hyper-parameters:"},
    {"layers", TRAIN, SIZES, INT, AT(config.n_layer), 1, 10000, FORGOTTEN, "N", "", NULL,
     "layers"},
    {"heads", TRAIN, SIZES, INT, AT(config.n_head), 1, 65536, FORGOTTEN, "N", "", NULL,
     "heads; they divide the channels"},
    {"channels", TRAIN, SIZES, INT, AT(config.n_embd), 1, 1 << 20, FORGOTTEN, "N", "", NULL,
     "width of the residual stream"},
    {"block-size", TRAIN, SIZES, INT, AT(config.block_size), 1, 1 << 28, FORGOTTEN, "N", "tokens", NULL,
     "longest sequence the model knows positions for"},
    {"vocab-size", TRAIN, SIZES, INT, AT(config.vocab_size), 1, 1 << 28, FORGOTTEN, "N", "tokens", NULL,
     "rows of the vocabulary; at least the tokenizer's size"},
    {"bias", TRAIN, SIZES, INT, AT(config.bias), 0, 1, FORGOTTEN, "0|1", "", NULL,
     "1: every Linear and LayerNorm has a bias"},
    {"membership", TRAIN, SIZES, CHOICE, AT(config.membership), 0, 0, FORGOTTEN, "learned|uniform", "", NULL,
     "how the heads share a token: learned as published, or 1/heads each, to see what membership is worth"},
    {"init", TRAIN, SIZES, STRING, AT(init), 0, 0, FORGOTTEN, "FILE", "", "random",
     "start from the weights of a safetensors file (or of a checkpoint or run folder), whose sizes hold; the "
     "optimiser starts afresh"},
    {"model", SAMPLE | EVAL | INFO | INSPECT, SIZES, STRING, AT(model), 0, 0, FORGOTTEN, "PATH", "",
     "newest run in out/", "a safetensors file, a checkpoint folder, or a run folder (its newest one)"},

    {"data", TRAIN, DATA, STRING, AT(data), 0, 0, KEPT, "GLOB", "", NULL,
     "shards to train on; a quoted pattern is expanded here"},
    {"data", EVAL, DATA, STRING, AT(data), 0, 0, FORGOTTEN, "GLOB", "", "this or --task",
     "shards to score; a quoted pattern is expanded here"},
    {"task", EVAL, DATA, CHOICE, AT(task), 0, 0, FORGOTTEN, "lambada|hellaswag|cbt", "", "this or --data",
     "score FILE: LAMBADA or HellaSwag (JSONL), or a file of the Children's Book Test"},
    {"json", EVAL, DATA, STRING, AT(json), 0, 0, FORGOTTEN, "FILE", "", "none",
     "write the figures, and each window or example, as JSON"},
    {"val-data", TRAIN, DATA, STRING, AT(val_data), 0, 0, KEPT, "GLOB", "",
     "--data with val for train, if there", "shards to validate on"},
    {"order", TRAIN, DATA, CHOICE, AT(order), 0, 0, FIXED, "sequential|shuffled", "", NULL,
     "sequential: the shards in name order; shuffled: a seeded permutation of shards and samples each epoch"},
    {"tokenizer", TRAIN, DATA, STRING, AT(tokenizer), 0, 0, FORGOTTEN, "FILE", "",
     "vocab.bpe beside the shards, if there", "vocab.bpe for samples in training; checkpoints name it"},
    {"tokenizer", SAMPLE | EVAL | INSPECT, DATA, STRING, AT(tokenizer), 0, 0, FORGOTTEN, "FILE", "",
     "the one the checkpoint names", "vocab.bpe (or merges.txt) of the model"},
    {"tokenizer", TOKENIZE, DATA, STRING, AT(tokenizer), 0, 0, FORGOTTEN, "FILE", "", "required",
     "vocab.bpe (or merges.txt); a file without merges makes every byte a token"},
    {"out", TRAIN, DATA, STRING, AT(out), 0, 0, FORGOTTEN, "DIR", "", "out/PRESET-NNN, the next free number",
     "run folder: checkpoints and log.csv"},
    {"out", TOKENIZE, DATA, STRING, AT(out), 0, 0, FORGOTTEN, "PREFIX", "", "required",
     "shards are PREFIX_train_000000.bin … and PREFIX_val_000000.bin …"},
    {"text", INSPECT, DATA, STRING, AT(text), 0, 0, FORGOTTEN, "TEXT|@FILE|-", "", "required",
     "what to look at: as given, from a file, or from stdin; a line <|endoftext|> ends a document. Of "
     "more tokens than the model's block size the first are taken"},
    {"out", INSPECT, DATA, STRING, AT(out), 0, 0, FORGOTTEN, "FILE", "", "required",
     "safetensors of tokens, losses, memberships (pi) and the heads' tokens (w), for dev/plot"},
    {"resume", TRAIN, DATA, FLAG, AT(resume), 0, 0, FORGOTTEN, "", "", NULL,
     "go on from the newest complete checkpoint in --out, bit for bit; options not given are the run's"},
    {"overwrite", TRAIN, DATA, FLAG, AT(overwrite), 0, 0, FORGOTTEN, "", "", NULL,
     "begin a new run in --out even where one stands: its checkpoints are removed, its log begins anew"},
    {"log", TRAIN, DATA, STRING, AT(log), 0, 0, KEPT, "FILE", "", "log.csv in the run folder",
     "one row an update: losses, rate, norm, speed; only --resume and --overwrite take a file that holds a log"},
    {"val-frac", TOKENIZE, DATA, REAL, AT(val_frac), 0, 0.999999, FORGOTTEN, "X", "of the documents", NULL,
     "share that goes to the validation shards; where it is given, they must not stay empty"},
    {"jsonl", TOKENIZE, DATA, FLAG, AT(jsonl), 0, 0, FORGOTTEN, "", "", "by name: *.jsonl",
     "every input is JSONL, one object with a \"text\" a line; for stdin"},
    {"shard-tokens", TOKENIZE, DATA, INT64, AT(shard_tokens), 1, 2147483647, FORGOTTEN, "N", "tokens", NULL,
     "size of a shard; the last holds what is left"},

    {"steps", TRAIN, UPDATES, INT64, AT(steps), 0, 1e9, KEPT, "N", "updates", NULL,
     "length of the run, counted from its beginning"},
    {"batch", TRAIN, UPDATES, INT, AT(batch), 1, 1 << 20, KEPT, "N", "sequences", NULL,
     "micro-batch: sequences in one pass"},
    {"batch", EVAL, UPDATES, INT, AT(batch), 1, 1 << 20, FORGOTTEN, "N", "", "8; of a task, by its lengths",
     "sequences in one pass; of a task, the endings of one example at least"},
    {"seq", TRAIN, UPDATES, INT, AT(seq), 1, 1 << 28, FIXED, "N", "tokens", NULL,
     "length of a sequence, up to --block-size"},
    {"seq", EVAL, UPDATES, INT, AT(seq), 1, 1 << 28, FORGOTTEN, "N", "", "the model's block size",
     "length of a window in tokens, and of an example: of a longer one the beginning is left out"},
    {"stride", EVAL, UPDATES, INT, AT(stride), 1, 1 << 28, FORGOTTEN, "N", "", "--seq: no overlap",
     "tokens from window to window of --data; every token is scored once, by the first window that has it"},
    {"windows", EVAL, UPDATES, INT64, AT(windows), 1, 1e9, FORGOTTEN, "N", "windows", "every token once",
     "score N windows at random places of --data instead, as the published figures were"},
    {"seed", EVAL, UPDATES, INT64, AT(seed), 0, 9007199254740992, FORGOTTEN, "N", "", NULL,
     "of the places of --windows"},
    {"total-batch", TRAIN, UPDATES, INT64, AT(total_batch), 1, 1e12, FIXED, "N", "tokens", NULL,
     "tokens of an update: a multiple of batch × seq, over which gradients accumulate"},
    {"lr", TRAIN, UPDATES, REAL, AT(lr), 0, 100, FIXED, "X", "", NULL,
     "peak learning rate"},
    {"warmup", TRAIN, UPDATES, INT64, AT(warmup), 0, 1e9, FIXED, "N", "updates", NULL,
     "linear rise from 0 to the peak; where not given, at most a tenth of --steps"},
    {"min-lr-frac", TRAIN, UPDATES, REAL, AT(min_lr_frac), 0, 1, FIXED, "X", "of the peak", NULL,
     "learning rate at the end of the cosine"},
    {"weight-decay", TRAIN, UPDATES, REAL, AT(weight_decay), 0, 100, FIXED, "X", "", NULL,
     "AdamW's decoupled decay of embeddings and Linear weights"},
    {"beta1", TRAIN, UPDATES, REAL, AT(beta1), 0, 0.999999, FIXED, "X", "", NULL,
     "AdamW's memory of the gradient"},
    {"beta2", TRAIN, UPDATES, REAL, AT(beta2), 0, 0.999999, FIXED, "X", "", NULL,
     "AdamW's memory of its square"},
    {"eps", TRAIN, UPDATES, REAL, AT(eps), 1e-30, 1, FIXED, "X", "", NULL,
     "AdamW's floor under the root of the second moment"},
    {"grad-clip", TRAIN, UPDATES, REAL, AT(grad_clip), 0, 1e9, FIXED, "X", "", NULL,
     "largest norm of the gradient; 0: not clipped"},
    {"skip-loss-z", TRAIN, UPDATES, REAL, AT(skip_loss_z), 0, 1e9, KEPT, "X", "", NULL,
     "skip an update whose loss is more than X standard deviations above the mean of the last "
     NUMBER_TEXT(OUTLIER_WINDOW) " made; 0: none is"},
    {"skip-grad-z", TRAIN, UPDATES, REAL, AT(skip_grad_z), 0, 1e9, KEPT, "X", "", NULL,
     "the same of the gradient's norm"},
    {"max-skipped", TRAIN, UPDATES, INT64, AT(max_skipped), 0, 1e9, KEPT, "N", "updates", NULL,
     "may be skipped in a row, as outliers or because loss or gradient is not finite; one more stops the run"},
    {"seed", TRAIN, UPDATES, INT64, AT(seed), 0, 9007199254740992, FIXED, "N", "", NULL,
     "of the initial weights, the order of the data and the samples"},

    {"val-every", TRAIN, REPORTS, INT64, AT(val_every), 0, 1e9, KEPT, "N", "updates", NULL,
     "validate each N updates and after the last; 0: never"},
    {"val-batches", TRAIN, REPORTS, INT64, AT(val_batches), 1, 1e9, KEPT, "N", "micro-batches", NULL,
     "length of a validation: the first N of the shards, or all there are"},
    {"sample-every", TRAIN, REPORTS, INT64, AT(sample_every), 0, 1e9, KEPT, "N", "updates", NULL,
     "write a sample each N updates and after the last; 0: never"},
    {"sample-tokens", TRAIN, REPORTS, INT64, AT(sample_tokens), 1, 1e9, KEPT, "N", "tokens", NULL,
     "length of such a sample"},
    {"save-every", TRAIN, REPORTS, INT64, AT(save_every), 0, 1e9, KEPT, "N", "updates", NULL,
     "save each N updates and after the last; 0: never"},
    {"keep", TRAIN, REPORTS, INT64, AT(keep), 0, 1e9, KEPT, "N", "checkpoints", NULL,
     "the newest N are kept; 0: all"},
    {"on-save-error", TRAIN, REPORTS, CHOICE, AT(on_save_error), 0, 0, KEPT, "stop|continue", "", NULL,
     "where a checkpoint or the log cannot be written: stop with status 1, or train on, try again at the next "
     "--save-every, and end with status 1 if the last save failed too"},
    {"quiet", TOKENIZE, MACHINE, FLAG, AT(quiet), 0, 0, FORGOTTEN, "", "", NULL,
     "nothing on stdout, no progress"},
    {"quiet", TRAIN, REPORTS, FLAG, AT(quiet), 0, 0, FORGOTTEN, "", "", NULL,
     "nothing on stdout; log and checkpoints are written all the same"},

    {"prompt", SAMPLE, TEXT, STRING, AT(prompt), 0, 0, FORGOTTEN, "TEXT|@FILE|-", "", "none: a new text",
     "what the text begins with: as given, from a file, or from stdin"},
    {"tokens", SAMPLE, TEXT, INT64, AT(tokens), 1, 1e12, FORGOTTEN, "N", "tokens", NULL,
     "longest text after the prompt; <|endoftext|> ends it sooner. Where the text fills the block size, the model's "
     "state is read again from the last half of it"},
    {"samples", SAMPLE, TEXT, INT64, AT(samples), 1, 1e9, FORGOTTEN, "N", "texts", NULL,
     "texts, with a line --- between them"},
    {"temperature", TRAIN | SAMPLE, TEXT, REAL, AT(temperature), 0, 1000, KEPT, "X", "", NULL,
     "divides the logits; 0: always the likeliest token"},
    {"top-k", TRAIN | SAMPLE, TEXT, INT, AT(top_k), 0, 1 << 28, KEPT, "N", "tokens", NULL,
     "draw from the N likeliest; 0: from all"},
    {"top-p", TRAIN | SAMPLE, TEXT, REAL, AT(top_p), 1e-9, 1, KEPT, "X", "", NULL,
     "draw from the likeliest whose probabilities reach X; 1: from all"},
    {"seed", SAMPLE, TEXT, INT64, AT(seed), 0, 9007199254740992, FORGOTTEN, "N", "", NULL,
     "the same seed writes the same texts"},

    {"seed", TOKENIZE, DATA, INT64, AT(seed), 0, 9007199254740992, FORGOTTEN, "N", "", NULL,
     "of the choice of validation documents"},

    {"dtype", TRAIN | SAMPLE | EVAL | INSPECT, MACHINE, CHOICE, AT(dtype), 0, 0, KEPT, "fp32|tf32|bf16", "", NULL,
     "of matrix products"},
    {"threads", TRAIN | SAMPLE | EVAL | TOKENIZE | INSPECT, MACHINE, INT, AT(threads), 0, 4096, KEPT, "N", "",
     "0: OMP_NUM_THREADS, else one for each core", "CPU threads"},
    {"recompute", TRAIN, MACHINE, FLAG, AT(recompute), 0, 0, FORGOTTEN, "", "", NULL,
     "keep no more of a layer than its input and compute the rest again in backward: less memory, more time, the "
     "same numbers; not remembered: give it to --resume again"},
    {"help", ALL, MACHINE, HELP, 0, 0, 0, FORGOTTEN, "", "", NULL,
     "this list"},

    {"data-tokens", 0, DATA, INT64, AT(data_tokens), 0, 9e15, FIXED, "", "", NULL, ""},
    {"data-crc", 0, DATA, INT64, AT(data_crc), 0, 4294967295, FIXED, "", "", NULL, ""},
};

enum { ROWS = countof(table), NAME_COLUMN = 32, PAGE_WIDTH = 100, DEFAULT_EVAL_BATCH = 8 };
_Static_assert((int)ROWS <= OPTION_ROWS_MAX, "Options.given has a place for each row");

// What it costs to resume a run with another value than it had.
static const struct { const char *name, *cost; } change_costs[] = {
    {"steps", "the cosine ends there, so that the rest of the learning rates are others"},
    {"batch", "sums are taken in another order, which may move the last bit; a validation has another length"},
    {"threads", "sums may be taken in another order, which may move the last bit"},
    {"dtype", "matrix products are rounded otherwise from here on"},
    {"val-data", "the best validation loss so far is of other text"},
    {"val-batches", "the best validation loss so far is of another length of text"},
    {"skip-loss-z", "other updates may be skipped from here on"},
    {"skip-grad-z", "other updates may be skipped from here on"},
};

static const struct { const char *name, *usage, *about; } commands[COMMANDS] = {
    {"train",    "[train] [options]", "train a model; without options the starter model, at once"},
    {"sample",   "sample [options]", "write text with a trained model"},
    {"eval",     "eval (--data GLOB | --task NAME FILE) [options]", "score a model on shards or on a task"},
    {"tokenize", "tokenize --tokenizer FILE --out PREFIX [options] FILE…", "make token shards out of text"},
    {"info",     "info [PATH]", "what a model file, checkpoint or run holds"},
    {"inspect",  "inspect --text TEXT --out FILE [options]", "what each layer's heads make of a text"},
};

// The row of that name for a command (COMMANDS: for any, and the user's); -1 if there is none.
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
    for (size_t i = o->sample_every == 0; i < countof(names); i++)   // --sample-every 0 asks for none
        if (option_given(o, names[i])) return names[i];
    return NULL;
}

// ---------------------------------------------------------------------------------------------
// Values

static void* field_of(Options* o, const Row* row) { return (char*)o + row->field; }
static const void* const_field_of(const Options* o, const Row* row) { return (const char*)o + row->field; }

// The number n of a metavar "a|b|c", copied; NULL past the last.
static char* choice_name(const char* choices, int n) {
    const char* start = choices;
    for (; n > 0; n--) {
        start = strchr(start, '|');
        if (!start) return NULL;
        start++;
    }
    return xasprintf("%.*s", (int)strcspn(start, "|"), start);
}

// A number in the fewest of 15 to 17 digits that read back as the same double.
static char* real_text(double x) {
    for (int digits = 15;; digits++) {
        char* text = xasprintf("%.*g", digits, x);
        if (digits == 17 || strtod(text, NULL) == x) return text;
        free(text);
    }
}

// The value of a row as it is written on a command line; NULL where there is none. free()
static char* value_text(const Options* o, const Row* row) {
    const void* field = const_field_of(o, row);
    switch (row->kind) {
        case HELP:
        case FLAG: return NULL;
        case INT: return xasprintf("%d", *(const int*)field);
        case INT64: return xasprintf("%lld", (long long)*(const int64_t*)field);
        case REAL: return real_text(*(const double*)field);
        case CHOICE: return choice_name(row->metavar, *(const int*)field);
        case STRING:
        case PRESET: break;
    }
    const char* text = *(const char* const*)field;
    return text ? xstrdup(text) : NULL;
}

static bool out_of_range(const Row* row, const char* text, TostError* err) {
    char *least = real_text(row->least), *most = real_text(row->most);
    tost_error(err, "--%s %.200s is out of range: %s to %s", row->name, text, least, most);
    free(least);
    free(most);
    return false;
}

static bool parse_whole(Options* o, const Row* row, const char* text, TostError* err) {
    char* end;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (end == text || *end || isspace((unsigned char)*text))
        return tost_error(err, "--%s '%.200s' is not a whole number", row->name, text);
    if (errno == ERANGE || value < (long long)row->least || value > (long long)row->most)
        return out_of_range(row, text, err);
    if (row->kind == INT) *(int*)field_of(o, row) = (int)value;
    else *(int64_t*)field_of(o, row) = value;
    return true;
}

static bool parse_real(Options* o, const Row* row, const char* text, TostError* err) {
    char* end;
    const double value = strtod(text, &end);   // which knows hexadecimal too
    if (end == text || *end || isspace((unsigned char)*text) || strpbrk(text, "xX"))
        return tost_error(err, "--%s '%.200s' is not a number", row->name, text);
    if (!(value >= row->least && value <= row->most)) return out_of_range(row, text, err);
    *(double*)field_of(o, row) = value;
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

// "starter, tost-base, …". free()
static char* preset_names(void) {
    char* names = xstrdup("");
    for (int i = 0; tost_preset_at(i); i++) {
        char* longer = xasprintf("%s%s%s", names, i ? ", " : "", tost_preset_at(i)->name);
        free(names);
        names = longer;
    }
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
        case INT64: return parse_whole(o, row, text, err);
        case REAL: return parse_real(o, row, text, err);
        case CHOICE: return parse_choice(o, row, text, err);
        case PRESET: return parse_preset(o, text, err);
        case STRING: break;
    }
    if (!*text) {
        const char* hint = row->field == AT(prompt) ? "; leave it out to start a new text" : "";
        return tost_error(err, "--%s must not be empty%s", row->name, hint);
    }
    if (strcmp(text, "-") == 0 && !strstr(row->metavar, "|-"))
        return tost_error(err, "--%s - names nothing: give a name; ./- if that is it", row->name);
    *(const char**)field_of(o, row) = text;
    return true;
}

// ---------------------------------------------------------------------------------------------
// Spelling

// Levenshtein's distance between the first n bytes of a, in lower case, and all of b; names are short.
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

// The name a user may have meant: one that begins alike, or the nearest, the command's own before others'.
// NULL if there is none.
static const char* nearest_name(const char* name, size_t len, Command command) {
    const char* best = NULL;
    int best_score = 0;
    for (int i = 0; i < ROWS; i++) {
        if (!table[i].commands || len == 0) continue;
        const size_t shorter = strlen(table[i].name) < len ? strlen(table[i].name) : len;
        const bool begins = shorter >= 2 && strncmp(table[i].name, name, shorter) == 0;
        const int apart = begins ? 0 : distance(name, len, table[i].name);
        if (apart > (len < 4 ? 1 : len < 8 ? 2 : 3)) continue;
        const int score = 2 * apart + !(table[i].commands >> command & 1);
        if (!best || score < best_score) {
            best = table[i].name;
            best_score = score;
        }
    }
    return best;
}

static bool unknown_option(const char* arg, Command command, TostError* err) {
    const char* name = arg + strspn(arg, "-");
    const size_t len = strcspn(name, "=");
    const char* meant = nearest_name(name, len, command);
    const int shown = (int)strcspn(arg, "=");
    if (meant && strlen(meant) == len && memcmp(meant, name, len) == 0)
        return tost_error(err, "%.*s: options begin with two dashes: --%s", shown, arg, meant);
    if (meant) return tost_error(err, "unknown option %.*s: did you mean --%s?", shown, arg, meant);
    return tost_error(err, "unknown option %.*s: %s --help lists those there are", shown, arg,
                      commands[command].name);
}

typedef struct { char text[128]; } CommandList;

// "train, sample and eval": the commands that have an option of that name; all where it is NULL.
static CommandList command_list(const char* option) {
    CommandList list = {""};
    const char* last = NULL;
    for (int c = 0; c < COMMANDS; c++) {
        if (option && find_row(option, strlen(option), (Command)c) < 0) continue;
        const size_t used = strlen(list.text);
        if (last) snprintf(list.text + used, sizeof list.text - used, "%s%s", used ? ", " : "", last);
        last = commands[c].name;
    }
    const size_t used = strlen(list.text);
    if (last) snprintf(list.text + used, sizeof list.text - used, "%s%s", used ? " and " : "", last);
    return list;
}

static bool foreign_option(const char* name, Command command, TostError* err) {
    return tost_error(err, "--%s belongs to %s, not to %s", name, command_list(name).text, commands[command].name);
}

static bool unknown_command(const char* name, TostError* err) {
    for (int c = 0; c < COMMANDS; c++)
        if (distance(name, strlen(name), commands[c].name) <= 2)
            return tost_error(err, "unknown command '%.200s': did you mean %s?", name, commands[c].name);
    return tost_error(err, "unknown command '%.200s': there are %s; --help tells more", name, command_list(NULL).text);
}

// ---------------------------------------------------------------------------------------------
// --help

// Words of text in lines that begin at `indent`, where the cursor stands; a character of UTF-8 is one column.
static void print_wrapped(const char* text, int indent) {
    int column = indent;
    for (const char* p = text; *p;) {
        const size_t bytes = strcspn(p, " ");
        int width = 0;
        for (size_t i = 0; i < bytes; i++) width += ((unsigned char)p[i] & 0xC0) != 0x80;
        const bool first = column == indent;
        if (!first && column + 1 + width > PAGE_WIDTH) {
            printf("\n%*s", indent, "");
            column = indent;
        } else if (!first) column += printf(" ");
        printf("%.*s", (int)bytes, p);
        column += width;
        p += bytes + (p[bytes] == ' ');
    }
    putchar('\n');
}

static void print_row(const Options* o, const Row* row) {
    int column = printf("  --%s%s%s", row->name, *row->metavar ? " " : "", row->metavar);
    if (column >= NAME_COLUMN) {
        putchar('\n');
        column = 0;
    }
    printf("%*s", NAME_COLUMN - column, "");
    char* names = row->kind == PRESET ? preset_names() : xstrdup("");
    char* value = row->otherwise ? xstrdup(row->otherwise) : value_text(o, row);
    const char* label = value && strcmp(value, "required") != 0 ? "default: " : "";
    char* text = !value ? xasprintf("%s", row->help)
                        : xasprintf("%s%s%s (%s%s%s%s)", row->help, *names ? " " : "", names, label, value,
                                    *row->unit ? " " : "", row->unit);
    print_wrapped(text, NAME_COLUMN);
    free(text);
    free(value);
    free(names);
}

// Which options --resume lets change, and at what cost.
static void print_changes(void) {
    char* names = xstrdup("");
    for (int i = 0; i < ROWS; i++) {
        if (!(table[i].commands & TRAIN) || table[i].memory != KEPT) continue;
        char* longer = xasprintf("%s%s--%s", names, *names ? ", " : "", table[i].name);
        free(names);
        names = longer;
    }
    char* text = xasprintf("Options not given to --resume are the run's, but --quiet and --recompute, which are given "
                           "each time. These may be given anew: %s. Whatever else the run had, another value is "
                           "refused.", names);
    printf("\n");
    print_wrapped(text, 0);
    printf("What that costs:\n");
    for (size_t i = 0; i < countof(change_costs); i++) {
        printf("    %-*s", NAME_COLUMN - 4, change_costs[i].name);
        print_wrapped(change_costs[i].cost, NAME_COLUMN);
    }
    free(text);
    free(names);
}

static void print_help(const Options* o, bool all_commands) {
    const char* program = options_program(o);
    for (int c = 0; c < COMMANDS; c++) {
        if (!all_commands && c != (int)o->command) continue;
        printf("%s %s %s\n           %s\n", c == 0 || !all_commands ? "usage:" : "      ", program,
               commands[c].usage, commands[c].about);
    }
    if (all_commands) printf("\nCOMMAND --help lists the options of a command. Those of train:\n");
    for (int g = 0; g < GROUPS; g++) {
        bool titled = false;
        for (int i = 0; i < ROWS; i++) {
            if (table[i].group != (Group)g || !(table[i].commands >> o->command & 1)) continue;
            if (!titled) printf("\n%s\n", group_titles[g]);
            titled = true;
            print_row(o, &table[i]);
        }
    }
    if (o->command == COMMAND_TRAIN) print_changes();
    printf("\nExit status: 0 done, 1 failed, 2 wrong command line, 129, 130 or 143 stopped by a signal.\n");
}

// ---------------------------------------------------------------------------------------------
// Defaults that depend on others

bool options_check_pass(int batch, int seq, TostError* err) {
    const int64_t pass = (int64_t)batch * seq;
    return pass <= INT_MAX || tost_error(err, "--batch %d × --seq %d makes %lld tokens in one pass, and %d are "
                                         "possible: lower --batch or --seq", batch, seq, (long long)pass, INT_MAX);
}

// Length, micro-batch, tokens of an update and warm-up, where not given, follow from sizes and preset.
static bool settle(Options* o, TostError* err) {
    const TostPreset* preset = tost_preset_find(o->preset);
    const int block = o->config.block_size;
    if (!option_given(o, "seq")) o->seq = block == preset->config.block_size ? preset->seq : block;
    if (o->seq > block) return tost_error(err, "--seq %d is longer than the block size %d", o->seq, block);

    const bool total_given = option_given(o, "total-batch");
    if (!option_given(o, "batch")) {
        o->batch = preset->batch;
        if (total_given && o->total_batch % o->seq == 0)
            while (o->total_batch / o->seq % o->batch != 0) o->batch--;
    }
    if (!options_check_pass(o->batch, o->seq, err)) return false;
    const int64_t pass = (int64_t)o->batch * o->seq;
    if (!total_given) o->total_batch = (preset->total_batch + pass - 1) / pass * pass;
    const int64_t below = o->total_batch / pass * pass;
    if (below == 0)
        return tost_error(err, "--total-batch %lld is less than batch × seq = %d × %d: the least is %lld",
                          (long long)o->total_batch, o->batch, o->seq, (long long)pass);
    if (below != o->total_batch)
        return tost_error(err, "--total-batch %lld is no multiple of batch × seq = %d × %d: the nearest are "
                          "%lld and %lld", (long long)o->total_batch, o->batch, o->seq, (long long)below,
                          (long long)(below + pass));
    if (!option_given(o, "warmup")) {
        o->warmup = preset->warmup;
        if (o->warmup > o->steps / 10) o->warmup = o->steps / 10;
    }
    return true;
}

static void set_defaults(Options* o, const TostEngine* engine) {
    o->preset = "starter";
    o->order = ORDER_SHUFFLED;
    o->seed = 1337;
    o->val_batches = 20;
    o->sample_tokens = 128;
    o->keep = 3;
    o->max_skipped = 10;
    o->dtype = (int)engine->default_dtype;
    o->tokens = 256;
    o->samples = 1;
    o->temperature = 0.8;
    o->top_p = 0.95;
    o->val_frac = 0.01;
    o->shard_tokens = 100 * 1000 * 1000;
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

// ---------------------------------------------------------------------------------------------
// What must, and what must not, stand together

// What was given and could do nothing beside something else that was given.
static bool check_idle(const Options* o, TostError* err) {
    const struct { const char *name, *of; int64_t every; } idle[] = {
        {"val-data", "val-every", o->val_every},
        {"val-batches", "val-every", o->val_every},
        {"keep", "save-every", o->save_every},
        {sample_option_given(o), "sample-every", o->sample_every},
    };
    for (size_t i = 0; i < countof(idle); i++)
        if (idle[i].every == 0 && option_given(o, idle[i].of) && idle[i].name && option_given(o, idle[i].name))
            return tost_error(err, "--%s does nothing with --%s 0: give one of them", idle[i].name, idle[i].of);
    if (o->quiet && sample_option_given(o))
        return tost_error(err, "--%s does nothing with --quiet, which writes no samples: give one of them",
                          sample_option_given(o));
    return true;
}

static bool check_train(Options* o, TostError* err) {
    if (o->n_files)
        return tost_error(err, "'%.200s' is left over: train takes options only, and a command comes first",
                          o->files[0]);
    if (o->resume && o->overwrite)
        return tost_error(err, "--resume goes on with a run and --overwrite removes it: give one of them");
    if (o->resume && o->init)
        return tost_error(err, "--resume takes the checkpoint's weights and --init others: give one of them");
    if (o->resume && !o->out) return tost_error(err, "--resume needs --out DIR, the run to go on with");
    if (o->overwrite && !o->out) return tost_error(err, "--overwrite needs --out DIR, the run to replace");
    if (!o->data && !o->resume)
        return tost_error(err, "--preset %s has no data of its own: give --data GLOB, token shards that "
                          "tokenize made", o->preset);
    if (!check_idle(o, err)) return false;
    // The sizes of a file are not known yet: options_take_config checks what depends on them.
    if (o->resume || o->init) return true;
    return tost_config_check(&o->config, err) && settle(o, err);
}

static bool check_eval(const Options* o, TostError* err) {
    static const char* const of_data[] = {"windows", "stride", "seed"};
    const bool task = option_given(o, "task");
    if (o->data && task)
        return tost_error(err, "--data scores token shards and --task a FILE: give one of them");
    if (!o->data && !task)
        return tost_error(err, "eval needs --data GLOB, the token shards to score, or --task NAME FILE");
    if (o->data && o->n_files)
        return tost_error(err, "'%.200s' is left over: quote the pattern of --data", o->files[0]);
    if (task && o->n_files == 0) return tost_error(err, "--task needs the FILE of its examples");
    if (task && o->n_files > 1)
        return tost_error(err, "'%.200s' is left over: --task takes one FILE", o->files[1]);
    for (size_t i = 0; task && i < countof(of_data); i++)
        if (option_given(o, of_data[i]))
            return tost_error(err, "--%s belongs to --data, not to --task", of_data[i]);
    if (o->windows && o->stride)
        return tost_error(err, "--windows scores random windows and --stride every token once: give one of "
                          "them");
    if (option_given(o, "seed") && !o->windows)
        return tost_error(err, "--seed is of random windows: give --windows N too");
    if (o->seq && o->stride > o->seq)
        return tost_error(err, "--stride %d is longer than --seq %d: tokens between would not be scored",
                          o->stride, o->seq);
    return true;
}

// Whether a path ends in the folder itself or the one above it.
static bool names_dots(const char* path) {
    const char* slash = strrchr(path, '/');
    const char* name = slash ? slash + 1 : path;
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

static bool check_together(Options* o, const TostEngine* engine, TostError* err) {
    if (!engine->supports((TostDtype)o->dtype)) {
        char* name = choice_name("fp32|tf32|bf16", o->dtype);
        tost_error(err, "--dtype %s is not for the %s engine%s", name, engine->name,
                   engine->supports(TOST_FP32) ? ": it computes in fp32" : "");
        free(name);
        return false;
    }
    if (!THREADS_MANY && o->threads > 1)
        return tost_error(err, "--threads %d: this program was built without OpenMP, and runs one: leave it out",
                          o->threads);
    for (int i = 0; i < o->n_files; i++)
        if (!*o->files[i]) return tost_error(err, "an argument is empty: name a file, or leave it out");
    if (o->command == COMMAND_EVAL && !options_check_pass(o->batch, o->seq, err)) return false;
    switch (o->command) {
        case COMMAND_TRAIN: return check_train(o, err);
        case COMMAND_SAMPLE:
            if (o->n_files)
                return tost_error(err, "'%.200s' is left over: give the text as --prompt TEXT", o->files[0]);
            return true;
        case COMMAND_EVAL: return check_eval(o, err);
        case COMMAND_TOKENIZE:
            if (!o->tokenizer) return tost_error(err, "tokenize needs --tokenizer FILE, a vocab.bpe");
            if (!o->out) return tost_error(err, "tokenize needs --out PREFIX, how its shards' names begin");
            if (o->out[strlen(o->out) - 1] == '/')
                return tost_error(err, "--out %s ends in a slash: names are to begin with it, as with %smy, which "
                                  "makes %smy_train_000000.bin", o->out, o->out, o->out);
            if (names_dots(o->out))
                return tost_error(err, "--out %s is a folder: names are to begin with it, as with %s/my, which makes "
                                  "%s/my_train_000000.bin", o->out, o->out, o->out);
            if (!o->n_files) return tost_error(err, "tokenize needs a FILE of text or JSONL; - is stdin");
            return true;
        case COMMAND_INFO:
            if (o->n_files > 1 || (o->n_files && o->model))
                return tost_error(err, "'%.200s' is left over: info takes one PATH",
                                  o->files[o->n_files - 1]);
            if (o->n_files) o->model = o->files[0];
            return true;
        case COMMAND_INSPECT:
            if (o->n_files)
                return tost_error(err, "'%.200s' is left over: give the text as --text TEXT", o->files[0]);
            if (!o->text) return tost_error(err, "inspect needs --text TEXT, @FILE or -, what to look at");
            if (!o->out) return tost_error(err, "inspect needs --out FILE, the safetensors to write");
            return true;
        case COMMANDS: break;
    }
    return true;
}

// ---------------------------------------------------------------------------------------------
// Parsing

enum { OPERAND = 1, LONG = 2 };   // codes of getopt_long, beside 'h', '?' and ':'

// getopt_long's own list. A row is found again by its name: getopt_long accepts abbreviations, and we do not.
static void fill_long_options(struct option list[ROWS + 1]) {
    int n = 0;
    for (int i = 0; i < ROWS; i++)
        if (find_row(table[i].name, strlen(table[i].name), COMMANDS) == i)
            list[n++] = (struct option){table[i].name, table[i].kind > FLAG, NULL, LONG};
    list[n] = (struct option){0};
}

// What getopt_long made of one argument that is no operand: '?' and ':' are its complaints. Values stay text.
static bool take_option(Options* o, const char* values[ROWS], bool* help, int code, const char* arg,
                        TostError* err) {
    if (code == 'h') {
        *help = true;
        return true;
    }
    if (strncmp(arg, "--", 2) != 0) return unknown_option(arg, o->command, err);
    const char* name = arg + 2;
    const size_t len = strcspn(name, "=");
    const int any = find_row(name, len, COMMANDS);
    if (any < 0) return unknown_option(arg, o->command, err);
    const int row = find_row(name, len, o->command);
    if (row < 0) return foreign_option(table[any].name, o->command, err);
    const Row* r = &table[row];
    if (code == '?') return tost_error(err, "--%s takes no value: %.200s", r->name, arg);
    if (code == ':') return tost_error(err, "--%s needs a value: %s", r->name, r->metavar);
    if (r->kind == HELP) {
        *help = true;
        return true;
    }
    if (o->given[row]) return tost_error(err, "--%s is given twice", r->name);
    o->given[row] = true;
    // A value that is an option's name means that the value was forgotten; --name=--value says it on purpose.
    const bool has_value = r->kind != FLAG;
    if (has_value && name[len] != '=' && strncmp(optarg, "--", 2) == 0
        && find_row(optarg + 2, strcspn(optarg + 2, "="), COMMANDS) >= 0)
        return tost_error(err, "--%s needs a value: %s (before %.200s)", r->name, r->metavar, optarg);
    values[row] = has_value ? optarg : "";
    return true;
}

// argv[0] is the program or the command's name, then options and operands in any order.
static bool collect(Options* o, const char* values[ROWS], bool* help, int argc, char** argv, TostError* err) {
    struct option list[ROWS + 1];
    fill_long_options(list);
    opterr = 0;
    optind = 0;   // glibc and musl: begin anew
    for (;;) {
        const int at = optind ? optind : 1;
        // '-': operands come back in their place, so that nothing depends on POSIXLY_CORRECT
        const int code = getopt_long(argc, argv, "-:h", list, NULL);
        if (code == -1) break;
        if (code == OPERAND) o->files[o->n_files++] = optarg;
        else if (!take_option(o, values, help, code, argv[at], err)) return false;
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

bool options_parse(Options* o, bool* help, int argc, char** argv, const TostEngine* engine, TostError* err) {
    *o = (Options){.command = COMMAND_TRAIN, .program = argc > 0 && *argv[0] ? argv[0] : "train_gpt_tost"};
    o->files = xcalloc((size_t)argc + 1, sizeof *o->files);
    *help = false;
    const bool named = argc > 1 && argv[1][0] != '-';
    if (named) {
        o->command = COMMANDS;
        for (int c = 0; c < COMMANDS; c++)
            if (strcmp(argv[1], commands[c].name) == 0) o->command = (Command)c;
        if (o->command == COMMANDS) return unknown_command(argv[1], err);
    }
    set_defaults(o, engine);
    const char* values[ROWS] = {NULL};
    if (argc > 0 && !collect(o, values, help, argc - named, argv + named, err)) return false;
    if (!apply(o, values, err)) return false;
    if (!*help) return check_together(o, engine, err);
    print_help(o, !named);
    return true;
}

void options_free(Options* o) {
    free(o->files);
    o->files = NULL;
}

// ---------------------------------------------------------------------------------------------
// Sizes and options that come from files

bool options_take_config(Options* o, const TostConfig* config, const char* file, TostError* err) {
    const Options given = *o;
    o->config = *config;
    for (int i = 0; i < ROWS; i++) {
        const bool size = table[i].field >= AT(config) && table[i].field < AT(config) + sizeof o->config;
        if (!size || !o->given[i]) continue;
        char *asked = value_text(&given, &table[i]), *held = value_text(o, &table[i]);
        const bool same = strcmp(asked, held) == 0;
        if (!same)
            tost_error(err, "--%s %s differs from the %s of %.500s: leave it out", table[i].name, asked, held, file);
        free(asked);
        free(held);
        if (!same) return false;
    }
    return settle(o, err);
}

StMeta* options_echo(const Options* o, int* n) {
    StMeta* echo = xcalloc(ROWS, sizeof *echo);
    *n = 0;
    for (int i = 0; i < ROWS; i++) {
        const bool of_train = table[i].commands == 0 || (table[i].commands & TRAIN);
        if (!of_train || table[i].memory == FORGOTTEN) continue;
        char* value = value_text(o, &table[i]);
        if (value) echo[(*n)++] = (StMeta){xstrdup(table[i].name), value};
    }
    return echo;
}

bool options_resume(Options* o, const StMeta* saved, int n_saved, const char* run, TostError* err) {
    for (int i = 0; i < n_saved; i++) {
        const int row = find_row(saved[i].key, strlen(saved[i].key), COMMAND_TRAIN);
        if (row < 0 || table[row].memory == FORGOTTEN) continue;
        if (!o->given[row]) {
            if (!parse_value(o, &table[row], saved[i].value, err)) return false;
            o->given[row] = true;
            continue;
        }
        if (table[row].memory == KEPT) continue;
        char* asked = value_text(o, &table[row]);
        const bool same = strcmp(asked, saved[i].value) == 0;
        if (!same)
            tost_error(err, "--%s %.200s differs from the %.200s of the run in %.300s: leave it out, or "
                       "start a new run", table[row].name, asked, saved[i].value, run);
        free(asked);
        if (!same) return false;
    }
    return true;
}

char* options_changed(const Options* o, const StMeta* saved) {
    const int row = find_row(saved->key, strlen(saved->key), COMMAND_TRAIN);
    if (row < 0 || table[row].memory != KEPT) return NULL;
    const char* cost = NULL;
    for (size_t i = 0; i < countof(change_costs); i++)
        if (strcmp(change_costs[i].name, saved->key) == 0) cost = change_costs[i].cost;
    char *is = value_text(o, &table[row]), *note = NULL;
    if (is && strcmp(is, saved->value) != 0)
        note = xasprintf("--%s %s instead of %s%s%s", saved->key, is, saved->value, cost ? ": " : "",
                         cost ? cost : "");
    free(is);
    return note;
}
