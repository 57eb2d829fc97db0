// options.h: the command line: one row a flag: name, commands, type, range, default, help. Parsed with
// getopt_long.
#ifndef TOST_OPTIONS_H
#define TOST_OPTIONS_H

#include "engine.h"
#include "data.h"
#include "safetensors.h"

typedef enum {
    COMMAND_TRAIN, COMMAND_SAMPLE, COMMAND_EVAL, COMMAND_TOKENIZE, COMMAND_INFO, COMMAND_INSPECT, COMMANDS
} Command;

typedef enum { SAVE_ERROR_STOP, SAVE_ERROR_CONTINUE } OnSaveError;

enum { OPTION_ROWS_MAX = 128 };

typedef struct {
    Command     command;
    const char* program;                   // argv[0], for messages and the commands that they suggest
    // model
    const char* preset;
    TostConfig  config;
    const char *model, *init, *tokenizer;  // NULL where not given
    // data
    const char *data, *val_data, *out, *log;
    int         order;                     // DataOrder
    int64_t     data_tokens, data_crc;     // of a run that is resumed: its shards' tokens and CRC; else 0
    // training
    int     batch, seq;
    int64_t total_batch, steps, warmup;
    double  lr, min_lr_frac, weight_decay, beta1, beta2, eps, grad_clip;
    double  skip_loss_z, skip_grad_z;      // 0: no outlier is skipped
    int64_t max_skipped;
    int64_t seed;
    int64_t val_every, val_batches, sample_every, sample_tokens, save_every, keep;
    int     on_save_error;                 // OnSaveError
    bool    resume, overwrite, quiet;
    int     dtype, threads;                // TostDtype; 0: as many as OpenMP gives
    bool    recompute;
    // sampling
    const char* prompt;
    int64_t     tokens, samples;
    double      temperature, top_p;
    int         top_k;
    // evaluation
    int         task, stride;              // Task, where --task is given; 0: windows that do not overlap
    int64_t     windows;                   // 0: every token is scored once
    const char* json;
    // inspection
    const char* text;
    // tokenizing
    double      val_frac;
    int64_t     shard_tokens;
    bool        jsonl;
    // operands, in their order; the strings are argv's
    int    n_files;
    char** files;
    // rows of the table that the user gave, or a resumed run; the other defaults follow from them
    bool given[OPTION_ROWS_MAX];
} Options;

// Fills *o from argv: command, preset's values, then what the user gave. On --help it prints to stdout and
// sets *help. False with one line in *err (status STATUS_USAGE) on anything misspelt, out of range,
// contradictory or left over. No file is looked at. options_free in every case.
bool options_parse(Options* o, bool* help, int argc, char** argv, const TostEngine* engine, TostError* err);
void options_free(Options* o);
const char* options_program(const Options* o);   // the program's name, without its folder
bool option_given(const Options* o, const char* name);
// Of the options that ask train for samples or shape them, the name of the first that was given; NULL: none.
const char* sample_option_given(const Options* o);
// Whether batch × seq tokens can be one pass: they are counted in an int.
bool options_check_pass(int batch, int seq, TostError* err);

// Where the sizes come from a file: false, naming the first size that was given and differs from it; else the
// file's sizes are o's, and batch, sequence and update follow from them where they were not given.
bool options_take_config(Options* o, const TostConfig* config, const char* file, TostError* err);

// The options of a training run as key and value, for its checkpoints: *n of them. st_free_meta
StMeta* options_echo(const Options* o, int* n);
// On resume: what was not given takes the saved run's value (and then counts as given). False, naming the
// first option that was given, differs and may not change because it decides the result. `run` names the run
// in the message. *o points into saved afterwards.
bool options_resume(Options* o, const StMeta* saved, int n_saved, const char* run, TostError* err);
// After options_resume: "--steps 9 instead of 6: …", with what that costs, where the saved option was given anew
// with another value; else NULL. free()
char* options_changed(const Options* o, const StMeta* saved);

#endif
