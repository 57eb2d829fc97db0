// options.c: the table of options, and parsing, defaults and checks that follow from it.
#include "options/options.h"

#include <ctype.h>
#include <unistd.h>

#include "base/crc32.h"
#include "data/vocab.h"

// ---- The table ----

static const char required[] = "required";
#define AT(field) offsetof(Options, field)

// The commands that have an option
enum {
    TRAIN = 1 << COMMAND_TRAIN, SAMPLE = 1 << COMMAND_SAMPLE, EVAL = 1 << COMMAND_EVAL,
    VOCAB = 1 << COMMAND_VOCAB, TOKENIZE = 1 << COMMAND_TOKENIZE, INFO = 1 << COMMAND_INFO,
    ALL = (1 << COMMANDS) - 1, USE = SAMPLE | EVAL, TEXT = VOCAB | TOKENIZE,   // USE a model, read TEXT
};

// Rows of the recipe, as options of train and of others
#define ROW(of, at, option, type, shown, treated, low, high, ...) \
    {.name = option, .commands = TRAIN | (of), .kind = type, .field = AT(recipe.at), .values = shown, \
     .saved = treated, .min = low, .max = high, __VA_ARGS__},
#define OF_TRAIN(...)     ROW(0, __VA_ARGS__)
#define OF_SAMPLE(...)    ROW(SAMPLE, __VA_ARGS__)
#define OF_USE(...)       ROW(USE, __VA_ARGS__)
#define OF_USE_TEXT(...)  ROW(USE | TEXT, __VA_ARGS__)
#define OF_CONFIG(at, ...) ROW(0, config.at, __VA_ARGS__)

// In the order of --help. An option whose row differs between commands has several rows.
const Setting option_table[OPTION_ROWS] = {
    {.help = "Model"},
    RECIPE_PRESET(OF_TRAIN)
    TOST_CONFIG(OF_CONFIG)
    {"vocab-size", INFO, INT, AT(recipe.config.vocab_size), "N",
     .help = "check that the ids of a shard are less than N", .min = 1, .max = TOST_MAX_VOCAB_SIZE,
     .default_text = "that of the tokenizer next to the shard"},
    {"init", TRAIN, STRING, AT(init), "FILE",
     .help = "start from the weights and sizes of a model file, checkpoint or run, with a new optimizer state; its "
     "--optimizer, --seq, --total-batch and, on a CPU, --batch up to 4,096 tokens are the defaults",
     .default_text = "random weights", .not_with = "resume"},
    RECIPE_START(OF_TRAIN)
    {"model", USE | INFO, STRING, AT(model), "PATH",
     .help = "safetensors file, checkpoint folder, or run folder (its newest checkpoint; for sample and eval, best, if "
     "its validation loss is lower)",
     .default_text = "newest run in out/"},
    {.help = "Files"},
    {"text", TRAIN, LIST, AT(text), "GLOB", .help = "text or JSONL files to train on: learns a vocabulary, writes "
     "token shards to the run folder, and trains on them. For more control, run vocab and tokenize, and give --data",
     .not_with = "data", .needs = "for"},
    RECIPE_DATA(OF_TRAIN)
    {"data", EVAL, LIST, AT(recipe.data), "GLOB",
     .help = "token shards to evaluate. Either this or --task is required"},
    {"task", EVAL, STRING, AT(task), "FILE",
     .help = "examples to evaluate, JSONL of {\"context\", \"choices\", \"answer\"}",
     .not_with = "data"},
    {"json", EVAL, STRING, AT(json), "FILE", .help = "also write all results as JSON"},
    {"json", INFO, STRING, AT(json), "FILE", .help = "also write the table of a folder of runs as JSON"},
    {"tokenizer", TRAIN, STRING, AT(tokenizer), "FILE",
     .help = "tokenizer, a vocab.bpe or merges.txt; needed for samples",
     .default_text = "that of --init or --resume, or PREFIX_vocab.bpe or vocab.bpe beside the shards"},
    {"tokenizer", USE, STRING, AT(tokenizer), "FILE", .help = "tokenizer of the model, a vocab.bpe or merges.txt",
     .default_text = "vocab.bpe in the checkpoint"},
    {"tokenizer", TOKENIZE, STRING, AT(tokenizer), "FILE|RUN",
     .help = "vocab.bpe or merges.txt, or the run or checkpoint that has it; an empty file makes every byte a token",
     .default_text = required},
    {"out", TRAIN, STRING, AT(out), "DIR", .help = "run folder, for checkpoints and log.csv, which has a row per step",
     .default_text = "out/PRESET-NNN, the next free number"},
    {"size", VOCAB, INT, AT(size), "N",
     .help = "number of tokens: the 256 bytes, <|endoftext|>, and N - 257 learned from the text",
     .min = VOCAB_MIN_SIZE, .max = TOKENIZER_MAX_FILE / 4, .default_text = required},
    {"out", VOCAB, STRING, AT(out), "FILE", .help = "vocab.bpe to write", .default_text = required},
    {"out", TOKENIZE, STRING, AT(out), "PREFIX",
     .help = "write shards PREFIX_train_000000.bin … and PREFIX_val_000000.bin …, and PREFIX_vocab.bpe for train",
     .default_text = required},
    {"resume", TRAIN, FLAG, AT(resume), "[auto]",
     .help = "continue from the newest checkpoint in --out (by default the newest run in out/); bit-identical with the "
     "same version on the same kind of processor. auto: start a new run if there is none, so that one command starts "
     "and restarts a job", .not_with = "overwrite"},
    {"overwrite", TRAIN, FLAG, AT(overwrite), "",
     .help = "if --out has a run: rename its folder to DIR.1, DIR.2, …, and start a new one", .needs = "out"},
    {"val-frac", TOKENIZE, REAL, AT(val_frac), "X",
     .help = "fraction of the documents for validation, chosen by their first 1,024 bytes, so that copies stay "
     "together; if that is none of them, the last tokens",
     .min = 0, .max = 0.999999, .value = 0.01, .unit = "of the documents"},
    {"jsonl", TEXT, FLAG, AT(jsonl), "", .help = "read all input as JSONL: one object with a \"text\" per line",
     .default_text = "files named *.jsonl, and input whose first line is a JSON object"},
    {"plain", TEXT, FLAG, AT(plain), "",
     .help = "read all input as plain text, whatever its first line; <|endoftext|> inside lines is text",
     .not_with = "jsonl"},
    {"lines", TRAIN | TEXT, FLAG, AT(lines), "", .help = "treat each line of plain text as a document",
     .not_with = "jsonl", .needs = "text"},
    {"files-from", TEXT, STRING, AT(files_from), "FILE|-",
     .help = "also read the files named in FILE or on stdin, one name per line, as find prints them"},
    {"text-field", TEXT, STRING, AT(text_field), "NAME", .help = "the field of JSONL that has the text",
     .default_text = "text", .not_with = "plain"},
    {"skip-bad-lines", TEXT, FLAG, AT(skip_bad_lines), "",
     .help = "skip and count lines of JSONL that are not an object with a text", .not_with = "plain"},
    {"shard-tokens", TOKENIZE, INT64, AT(shard_tokens), "N", .help = "size of each shard; the last one may be smaller",
     .min = 1, .max = INT_MAX, .value = 100e6, .unit = "tokens"},
    {"seed", TOKENIZE, INT64, AT(recipe.seed), "N", .help = "seed for the choice of validation documents",
     .min = 0, .max = TOST_MAX_SEED, .value = 1337},
    {.help = "Training"},
    {"for", TRAIN, DURATION, AT(run_for), "TIME",
     .help = "train for about this long, such as 10m: chooses model size, batch, steps and optimizer settings for the "
     "lowest expected loss, and keeps options that are given. Prints the same run as a command without --for. If the "
     "speed changes, so do the steps, with --schedule wsd, which it chooses. --resume continues to the planned step",
     .min = 1, .max = 10000 * 86400.0, .default_text = "off", .not_with = "steps"},
    RECIPE_TRAINING(OF_TRAIN)
    {.help = "Evaluation"},
    {"batch", EVAL, INT, AT(recipe.batch), "N",
     .help = "sequences per forward pass; for --task, at least the choices of one example",
     .min = 1, .max = TOST_MAX_BATCH, .value = 8, .default_text = "8; for --task, chosen by length"},
    {"seq", EVAL, INT, AT(recipe.seq), "N",
     .help = "tokens per window or example; longer contexts are truncated on the left. N may exceed the "
     "block size only for models without positions",
     .min = 1, .max = TOST_MAX_BLOCK_SIZE, .default_text = "the model's block size"},
    {"chunk", EVAL, INT, AT(recipe.chunk), "N",
     .help = "process sequences N tokens at a time, with the memory of N tokens: for very long --seq",
     .min = 0, .max = TOST_MAX_BLOCK_SIZE, .default_text = "whole sequences"},
    {"stride", EVAL, INT, AT(stride), "N",
     .help = "distance between windows of --data; every token is scored once, in the first window that contains it",
     .min = 1, .max = TOST_MAX_BLOCK_SIZE, .default_text = "--seq, no overlap", .needs = "data"},
    {"windows", EVAL, INT64, AT(windows), "N",
     .help = "score N windows at random positions of --data instead, as for the published figures",
     .min = 1, .max = TOST_MAX_COUNT, .default_text = "score every token once", .not_with = "stride", .needs = "data"},
    {"limit", EVAL, INT64, AT(limit), "N", .help = "only the first N examples of --task, or windows of --data",
     .min = 1, .max = TOST_MAX_COUNT, .default_text = "all"},
    {"by-position", EVAL, FLAG, AT(by_position), "",
     .help = "also report the loss of --data by position in the window, in bins that end at powers of 2",
     .needs = "data"},
    {"seed", EVAL, INT64, AT(recipe.seed), "N", .help = "seed for the positions of --windows",
     .min = 0, .max = TOST_MAX_SEED, .value = 1337, .needs = "windows"},
    {.help = "Validation, samples and checkpoints"},
    RECIPE_VALIDATION(OF_TRAIN)
    {"max-time", TRAIN, DURATION, AT(max_time), "TIME",
     .help = "stop and save before the next step would exceed this time, such as 2.5h; status 75 if steps are "
     "left",
     .min = 0.001, .max = 10000 * 86400.0, .default_text = "off"},
    {.help = "Sampling"},
    {"prompt", SAMPLE, STRING, AT(prompt), "TEXT|@FILE|-",
     .help = "text to continue, from the command line, or from a file or stdin without its final line end"},
    {"prompts", SAMPLE, STRING, AT(prompts), "FILE|-",
     .help = "continue every prompt of a file or, as they arrive, of stdin, and write the results as JSONL. One prompt "
     "per line or, if the name ends in .jsonl or the text begins with a JSON object, one object per line: its "
     "\"prompt\" is continued, its \"id\" is copied to the results",
     .not_with = "prompt"},
    {"tokens", SAMPLE, INT64, AT(tokens), "N",
     .help = "maximum number of new tokens; ends at <|endoftext|>. A full context is cut to its second half",
     .min = 1, .max = 1e12, .value = 256, .unit = "tokens"},
    {"samples", SAMPLE, INT64, AT(samples), "N",
     .help = "number of samples of each prompt, generated together; separated by lines of ---",
     .min = 1, .max = TOST_MAX_COUNT, .value = 1},
    {"stop", SAMPLE, LIST, AT(stop), "TEXT",
     .help = "end a sample before its first occurrence of TEXT; may be repeated"},
    RECIPE_SAMPLING(OF_SAMPLE)
    {"seed", SAMPLE, INT64, AT(recipe.seed), "N",
     .help = "random seed. A text depends on it, on the \"id\" of its prompt or else the prompt's place, not counting "
     "blank lines, and on the number of the sample, but not on the other prompts",
     .min = 0, .max = TOST_MAX_SEED, .value = 1337},
    {.help = "Machine and output"},
    RECIPE_DTYPE(OF_USE) RECIPE_THREADS(OF_USE_TEXT) RECIPE_PARTS(OF_TRAIN)
    {"rank-timeout", TRAIN | EVAL, REAL, AT(rank_timeout), "X",
     .help = "stop if a wait for other ranks takes longer than X seconds; 0: wait forever",
     .min = 0, .max = 1e6, .value = COMM_TIMEOUT, .unit = "seconds"},
    {"quiet", TRAIN | TEXT, FLAG, AT(quiet), "", .help = "print nothing on stdout and no progress"},
    {"help", ALL, HELP, 0, "", .help = "show this help"},
    {"version", TRAIN, HELP, 0, "", .help = "print the version and the git commit"},
};

const CommandHelp command_table[COMMANDS] = {
    {"train", "[train] [options]", "train a model; without options, the starter model",
     "train takes only options, and the command comes first"},
    {"sample", "sample [options]", "generate text", "give the text as --prompt TEXT"},
    {"eval", "eval (--data GLOB | --task FILE) [options]", "evaluate a model on token shards or examples",
     "--task takes a FILE of examples, which dev/data/evalset.py writes"},
    {"vocab", "vocab --size N --out FILE [options] FILE…", "learn a vocabulary of N tokens from text", NULL},
    {"tokenize", "tokenize --tokenizer FILE --out PREFIX [options] FILE…", "convert text to token shards", NULL},
    {"info", "info [PATH | SHARD…]", "show a model, run or folder of runs, or check shards",
     "info takes one PATH, or shards"},
};

bool option_belongs(const Setting* row, Command command) { return row->commands >> command & 1; }

// The row of a command's option; COMMANDS: the first of any command. NULL: none.
static const Setting* find_row(const char* name, size_t len, Command command) {
    for (const Setting* row = option_table; row < option_table + OPTION_ROWS; row++) {
        const bool fits = command == COMMANDS ? row->commands != 0 : option_belongs(row, command);
        if (fits && strlen(row->name) == len && memcmp(row->name, name, len) == 0) return row;
    }
    return NULL;
}

// The setting of the recipe that an option sets, or RECIPE_ROWS
static RecipeRow recipe_row(const Setting* option) {
    int i = 0;
    while (i < RECIPE_ROWS && recipe_table[i].field + AT(recipe) != option->field) i++;
    return (RecipeRow)i;
}

static bool option_given(const Options* o, const char* name) {
    const Setting* row = find_row(name, strlen(name), o->command);
    return row && o->given[row - option_table];
}

// ---- Values ----

static bool parse_value(Options* o, const Setting* row, const char* text, TostError* err) {
    const bool is_text = row->kind == STRING || row->kind == LIST;
    if (is_text && strcmp(text, "-") == 0 && !strstr(row->values, "|-") && row->field != AT(stop))
        return tost_error(err, "--%s -: give a name (./- for a file named -)", row->name);
    if (is_text && (row->commands & TRAIN) && (strchr(text, 0x1f) || count_broken(&(uint64_t){0}, text, strlen(text))))
        return tost_error(err, "--%s %s: the name has a byte 0x1f or is not UTF-8; rename it", row->name, text);
    return setting_parse(o, row, text, err);
}

TextLine option_text(const Options* o, const Setting* row) {
    char *raw = setting_text(o, row), *value = raw ? shown_value(raw) : NULL;
    const char *shown = row->default_text ? row->default_text : value, *unit = row->default_text ? NULL : row->unit;
    const char* label = row->default_text == required ? "" : "default: ";
    const char* mark = o->command == COMMAND_TRAIN && row->saved == OVERRIDABLE ? " *" : "";
    const TextLine text = !shown ? text_line("%s%s", row->help, mark)
        : text_line("%s (%s%s%s%s)%s", row->help, label, shown, unit ? " " : "", unit ? unit : "", mark);
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
    for (const Setting* row = option_table; row < option_table + OPTION_ROWS && len > 0; row++) {
        if (!row->commands) continue;
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

static bool find_command(Options* o, const char* name, TostError* err) {
    for (int c = 0; c < COMMANDS; c++) {
        if (strcmp(name, command_table[c].name) != 0) continue;
        o->command = (Command)c;
        return true;
    }
    return tost_error(err, "unknown command '%.200s': the commands are %s; see --help", name, command_names(NULL).text);
}

// Sets what is not given: from the preset, the engine and the table.
static void set_defaults(Options* o, const TostEngine* engine) {
    const bool train = o->command == COMMAND_TRAIN;
    if (o->run_for > 0 && !recipe_given(&o->recipe, RECIPE_preset)) o->recipe.preset = 1;   // small
    recipe_fill(&o->recipe, &tost_presets[o->recipe.preset]);
    if (!recipe_given(&o->recipe, RECIPE_dtype)) o->recipe.dtype = (int)engine->default_dtype(train);
    for (int i = 0; i < OPTION_ROWS; i++) {
        const Setting* row = &option_table[i];
        const bool number = row->kind > FLAG && row->kind != STRING && row->kind != LIST;
        const bool of_preset = recipe_row(row) < RECIPE_ROWS && (row->commands & TRAIN);   // which has the default
        if (number && !of_preset && !o->given[i] && option_belongs(row, o->command))
            setting_set(o, row, row->value);
    }
    const bool starter = o->text.count == 0 && (o->recipe.preset == 0 || o->run_for > 0);
    if (train && starter && !recipe_given(&o->recipe, RECIPE_data)) {
        Path at = {""};   // of the program, then of the data that make install copies
        const bool found = readlink("/proc/self/exe", at.text, PATH_MAX) > 0;
        at = path_text("%s/share/train_gpt_tost", path_above(path_above(at.text).text).text);
        if (!found || is_dir("data/starter") || !is_dir(at.text)) at = path_text("data/starter");
        add_string(&o->recipe.data, xasprintf("%s/starter_train_*.bin", at.text));
    }
}

// ---- Checks of combinations ----

static bool check_operands(Options* o, TostError* err) {
    const bool info = o->command == COMMAND_INFO;
    const char* instead = info && !o->model ? NULL : command_table[o->command].no_operands;
    for (int i = 0; i < o->n_files; i++)
        if (!*o->files[i]) return tost_error(err, "an argument is empty: give a file name, or leave it out");
    if (o->n_files && instead) return tost_error(err, "unexpected argument '%.200s': %s", o->files[0], instead);
    if (info && o->n_files == 1) o->model = xstrdup(o->files[0]);
    return true;
}

// Options that are required, exclude each other or need each other.
static bool check_pairs(const Options* o, TostError* err) {
    for (int i = 0; i < OPTION_ROWS; i++) {
        const Setting* row = &option_table[i];
        if (!option_belongs(row, o->command)) continue;
        if (row->default_text == required && !o->given[i])
            return tost_error(err, "%s needs --%s %s", command_table[o->command].name, row->name, row->values);
        if (o->given[i] && row->not_with && option_given(o, row->not_with))
            return tost_error(err, "--%s and --%s: give one of them", row->name, row->not_with);
        const Setting* needs = row->needs ? find_row(row->needs, strlen(row->needs), o->command) : NULL;
        if (o->given[i] && needs && !option_given(o, row->needs))
            return tost_error(err, "--%s needs --%s %s", row->name, row->needs, needs->values);
    }
    return true;
}

static bool check_train(Options* o, TostError* err) {
    if (!o->recipe.data.count && !o->text.count && !o->resume)
        return tost_error(err, "--preset %s needs --data GLOB: token shards made with tokenize",
                          choice_name(TOST_PRESETS, o->recipe.preset).text);
    if (o->resume_auto && (!o->out || o->overwrite))
        return tost_error(err, "--resume auto needs --out DIR, without --overwrite");
    if (o->run_for > 0 && (o->resume || o->recipe.epochs > 0))
        return tost_error(err, "--for chooses the steps of a new run: leave out --%s", o->resume ? "resume" : "epochs");
    if (o->run_for > 0 && o->recipe.optimizer != TOST_MUON && !recipe_given(&o->recipe, RECIPE_lr))
        return tost_error(err, "--for can choose a learning rate for Muon only: give --lr, or --optimizer muon");
    const int vocab_size = o->recipe.config.vocab_size;
    if (o->text.count && recipe_given(&o->recipe, RECIPE_vocab_size)
        && (vocab_size < VOCAB_MIN_SIZE || vocab_size > TOKENIZER_MAX_FILE / 4))
        return tost_error(err, "--vocab-size %d: with --text, give %d to %d", vocab_size, VOCAB_MIN_SIZE,
                          TOKENIZER_MAX_FILE / 4);
    if (o->resume || o->init) return true;   // sizes come from a file and are checked by recipe_set_config
    // --for has not chosen its sizes yet
    return (o->run_for > 0 || tost_config_check(&o->recipe.config, err))
           && recipe_derive(&o->recipe, o->ranks, false, err);
}

static bool check_eval(const Options* o, TostError* err) {
    if (!o->recipe.data.count && !o->task)
        return tost_error(err, "eval needs --data GLOB (token shards) or --task FILE (examples)");
    if (o->recipe.seq && o->stride > o->recipe.seq)
        return tost_error(err, "--stride %d is longer than --seq %d: it would skip tokens", o->stride, o->recipe.seq);
    return recipe_check_pass(o->recipe.batch, o->recipe.seq, o->recipe.chunk, err);
}

// tokenize and vocab
static bool check_text(const Options* o, TostError* err) {
    const bool vocab = o->command == COMMAND_VOCAB;
    if (!o->n_files && !o->files_from && (!vocab || o->size > VOCAB_MIN_SIZE))
        return tost_error(err, "%s needs a FILE of text or JSONL; - is stdin", command_table[o->command].name);
    const char *slash = strrchr(o->out, '/'), *name = slash ? slash + 1 : o->out;
    return (*name && strcmp(name, ".") != 0 && strcmp(name, "..") != 0)
        || tost_error(err, "--out %s is a folder: give a name in it, such as %s%smy%s", o->out, o->out,
                      *name ? "/" : "", vocab ? ".bpe" : "");
}

static bool check_together(Options* o, const TostEngine* engine, TostError* err) {
    if (!engine->supports((TostDtype)o->recipe.dtype))
        return tost_error(err, "--dtype %s is not supported by the %s engine: use fp32%s",
                          choice_name(TOST_DTYPES, o->recipe.dtype).text, engine->name,
                          engine->supports(TOST_BF16) ? " or bf16" : "");
    if (!THREADS_MANY && o->recipe.threads > 1)
        return tost_error(err, "--threads %d: the program was built without OpenMP: leave it out", o->recipe.threads);
    if (!check_operands(o, err) || !check_pairs(o, err)) return false;
    return o->command == COMMAND_TRAIN ? check_train(o, err)
         : o->command == COMMAND_EVAL ? check_eval(o, err) : !(1 << o->command & TEXT) || check_text(o, err);
}

// ---- Parsing ----

// Sets the option **at and moves *at to its last value, if that is an argument of its own.
static bool parse_option(Options* o, char* const** at, TostError* err) {
    const char *arg = **at, *next = (*at)[1];
    const bool help = strcmp(arg, "-h") == 0, dashes = strncmp(arg, "--", 2) == 0;
    const char *name = help ? "help" : dashes ? arg + 2 : "", *equals = strchr(name, '=');
    const size_t len = strcspn(name, "=");
    const Setting *row = find_row(name, len, o->command), *any = find_row(name, len, COMMANDS);
    if (!any) return unknown_option(arg, o->command, err);
    if (!row)
        return tost_error(err, "--%s is an option of %s, not of %s", any->name, command_names(any->name).text,
                          command_table[o->command].name);
    const char* value = equals ? equals + 1 : next ? next : "";
    const bool valued = row->kind > FLAG, automatic = row->field == AT(resume) && strcmp(value, "auto") == 0;
    if (!valued && equals && !automatic) return tost_error(err, "--%s takes no value: %.200s", row->name, arg);
    // If the value is the name of an option, the value was forgotten. --name=--value is accepted.
    const bool forgotten = valued && !equals && next && strncmp(next, "--", 2) == 0
                           && find_row(next + 2, strcspn(next + 2, "="), COMMANDS);
    if (forgotten || (valued && !equals && !next))
        return tost_error(err, "--%s needs a value: %s%s%.200s", row->name, row->values, next ? ", not " : "",
                          next ? next : "");
    bool* given = &o->given[row - option_table];
    if (row->kind == HELP) o->page = row->name;
    else if ((*given || (o->resume_auto && row->field == AT(resume))) && row->kind != LIST)
        return tost_error(err, "--%s is given twice", row->name);
    *given = !automatic;   // whether it resumes is not known yet
    o->resume_auto |= automatic;
    if (recipe_row(row) < RECIPE_ROWS) o->recipe.given |= (uint64_t)1 << recipe_row(row);
    const bool glob = strcmp(row->values, "GLOB") == 0;   // the shell may have expanded it
    bool ok = automatic || parse_value(o, row, valued ? value : "", err);
    *at += (valued || automatic) && !equals;
    for (; ok && glob && (*at)[1] && (*at)[1][0] != '-'; ++*at)
        ok = parse_value(o, row, (*at)[1], err);
    return ok;
}

bool options_parse(Options* o, int argc, char** argv, const TostEngine* engine, TostError* err) {
    o->files = xcalloc((size_t)argc + 1, sizeof *o->files);
    o->named = argc > 1 && argv[1][0] != '-';
    if (o->named && !find_command(o, argv[1], err)) return false;
    bool options = true;   // options and operands come in any order; after --, all are operands
    for (char* const* arg = argv + 1 + o->named; argc > 0 && *arg; arg++) {
        if (options && strcmp(*arg, "--") == 0) options = false;
        else if (!options || (*arg)[0] != '-' || !(*arg)[1]) o->files[o->n_files++] = *arg;
        else if (!parse_option(o, &arg, err)) return false;
    }
    set_defaults(o, engine);
    return o->page || check_together(o, engine, err);
}

void options_free(Options* o) {
    free(o->files);
    for (int i = 0; i < OPTION_ROWS; i++) setting_clear(o, &option_table[i]);
}

bool options_same(const Options* o, const TostRecipe* recipe, TostComm* comm, TostError* err) {
    uint32_t own[OPTION_ROWS], first[OPTION_ROWS];
    int i = 0;
    for (; i < OPTION_ROWS; i++) {
        const RecipeRow row = recipe_row(&option_table[i]);
        // --dtype also if not given: its default depends on the processor, unless a checkpoint has it
        const bool of_recipe = row < RECIPE_ROWS, given = of_recipe ? recipe_given(recipe, row) : o->given[i];
        const bool compared = given || (row == RECIPE_dtype && !o->resume);
        char* value = !compared ? NULL : of_recipe ? setting_text(recipe, &recipe_table[row])
                                                   : setting_text(o, &option_table[i]);
        own[i] = first[i] = value ? crc32_update(1, value, strlen(value)) : given;
        free(value);
    }
    comm_broadcast(comm, first, sizeof first, 0);
    for (i = 0; i < OPTION_ROWS && own[i] == first[i]; i++) {}
    if (i < OPTION_ROWS)
        tost_error(err, "--%s differs from that of rank 0: give all ranks the same command line%s",
                   option_table[i].name, recipe_row(&option_table[i]) == RECIPE_dtype ? ", with --dtype" : "");
    return comm_agree(comm, i == OPTION_ROWS, err);
}
