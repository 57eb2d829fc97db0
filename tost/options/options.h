// options.h: the command line, from one table of options.
#pragma once

#include "base/key_values.h"
#include "data/dataset.h"
#include "engine.h"
#include "schedule.h"

typedef enum {
    COMMAND_TRAIN, COMMAND_SAMPLE, COMMAND_EVAL, COMMAND_VOCAB, COMMAND_TOKENIZE, COMMAND_INFO, COMMANDS
} Command;

enum { OPTION_ROWS_MAX = 128 };

typedef struct {
    Command     command;
    bool        named;                     // the user named it; otherwise it is train
    int         rank, ranks;               // this process, of how many
    const char* program;                   // argv[0], for messages and suggested commands
    const char* page;                      // the option that asks for --help or --version, or NULL
    // model
    int         preset;                    // tost_preset_at
    TostConfig  config;
    const char *model, *init, *tokenizer;  // NULL: not given
    bool        keep_optimizer;
    const char* init_file;                 // the model file of --init, also of a resumed run; NULL: none
    // data
    PathList    data, val_data;            // empty: not given
    const char* out;
    int         order;                     // DataOrder
    int64_t     data_tokens, data_crc;     // tokens and CRC of a resumed run's shards; else 0
    // training
    int     batch, seq, chunk;             // chunk 0: whole sequences
    int64_t total_batch, steps, warmup;
    int     schedule;                      // ScheduleKind
    int     optimizer;                     // TostOptimizer
    double  lr, min_lr_frac, decay_frac, weight_decay, beta1, beta2, eps, grad_clip;
    double  epochs;                        // 0: not given
    int64_t max_skipped;
    int64_t seed;
    int64_t val_every, val_windows, sample_every, sample_tokens, save_every, keep;
    double  stop_at_val, max_time;         // 0: off; nats per token; seconds
    bool    resume, overwrite, quiet, keep_best;
    int     dtype, threads;                // TostDtype; 0: OpenMP's default
    int     parts;                         // of a step, over all ranks (slices.h)
    double  rank_timeout;                  // seconds; 0: none
    // sampling
    const char *prompt, *prompts;          // NULL: not given
    PathList    stop;
    int64_t     tokens, samples;
    double      temperature, top_p;
    int         top_k;
    // evaluation
    const char* task;                      // NULL: not given
    int         stride;                    // 0: no overlap
    int64_t     windows;                   // 0: score every token once
    int64_t     limit;                     // 0: all
    const char* json;
    bool        by_position;
    bool        force;
    // vocabulary, tokenizing
    int         size;
    double      val_frac;
    int64_t     shard_tokens;
    bool        jsonl, plain, skip_bad_lines;
    const char* text_field;                // NULL: not given
    // operands, pointing into argv
    int    n_files;
    char** files;
    PathList values[OPTION_ROWS_MAX];      // as given, by row
    bool     given[OPTION_ROWS_MAX];       // options set by the user or a resumed run, by row of the table
} Options;

static inline Schedule schedule_of(const Options* o) {
    return (Schedule){(ScheduleKind)o->schedule, o->steps, o->warmup, o->lr, o->min_lr_frac, o->decay_frac};
}

// Parses argv into *o, which has program, rank and ranks. Returns false with one line in *err (exit with STATUS_USAGE)
// for an unknown, malformed, out-of-range, unexpected or, unless o->page is set, contradictory argument. Opens no file.
// Call options_free in any case.
bool options_parse(Options* o, int argc, char** argv, const TostEngine* engine, TostError* err);
void options_free(Options* o);
// Fails on all ranks, naming the option, if an option of any rank differs from that of rank 0. Ranks with different
// options would exchange different messages.
bool options_same(const Options* o, TostComm* comm, TostError* err);
const char* options_program(const Options* o);   // the program's name, without its folder
bool option_given(const Options* o, const char* name);
// batch × seq, or batch × chunk if that is less and not 0, must fit in an int.
bool options_check_pass(int batch, int seq, int chunk, TostError* err);
// The engine's options for max_batch sequences of seq tokens. setup.c adds those that only training has.
TostEngineOptions options_engine(const Options* o, int max_batch, int seq, bool training, TostComm* comm);

// The table of options, also for --help.
typedef enum { HELP, FLAG, INT, INT64, REAL, DURATION, STRING, LIST, CHOICE } OptionKind;

// How checkpoints and --resume treat an option; neither: it is not saved.
enum {
    FIXED = 1 << COMMANDS,         // saved; must not be changed on --resume, because it determines the results
    OVERRIDABLE = 2 << COMMANDS,   // saved; may be changed on --resume
};

typedef struct {
    const char* name;          // NULL: a heading of --help
    unsigned    commands;      // bit mask, with FIXED or OVERRIDABLE; no command: only saved in checkpoints
    OptionKind  kind;          // CHOICE: "a|b|c" in metavar is 0, 1, 2; DURATION: a double, in seconds
    size_t      field;         // offset in Options
    const char* metavar;       // "": takes no value
    const char* help;
    double      min, max;      // inclusive range of numbers
    double      value;         // default of numbers, unless the preset has one
    const char* unit;          // of the default value, in --help
    const char* default_text;  // the default in words; NULL: the default value, if any
    const char *not_with, *needs;   // options that must not or must be given too
    const char* group;         // of a heading
} Option;

typedef struct { const char *name, *usage, *about, *no_operands; } CommandHelp;   // no_operands: what to give instead

extern const Option option_table[];
extern const int option_count;
extern const CommandHelp command_table[COMMANDS];
bool option_belongs(const Option* row, Command command);
// Help and default, which is o's value; an asterisk if --resume may change it. free()
char* option_text(const Options* o, const Option* row);
Options options_default(const TostEngine* engine);   // of train, without files; nothing to free

// Prints the options and sizes of a run that differ from those of another run.
void options_print_changes(const Options* a, const Options* b);
char* saved_value_text(const char* value);   // for people: the values of a list with spaces between them; free()

// Takes the sizes from a model file and derives batch size and sequence length from them, unless given. Fails, naming
// the option, if a given size differs.
bool options_take_config(Options* o, const TostConfig* config, const char* file, TostError* err);

// The options of a training run that its checkpoints save. key_values_free
KeyValues options_echo(const Options* o);
// For --resume: options not given get the saved values and then count as given. Fails, naming the option, if a given
// value differs and must not change, or a saved one is malformed. `file` has the saved values. options_free
bool options_resume(Options* o, const KeyValues* saved, const char* file, TostError* err);
// Sets the steps of --epochs, and what depends on them, for data with this many samples.
void options_take_samples(Options* o, uint64_t samples);
// After options_resume: "--steps 9 instead of 6, …", the saved options that were overridden or are not in this version
TextLine options_changed(const Options* o, const KeyValues* saved);
