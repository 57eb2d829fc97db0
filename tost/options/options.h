// options.h: the command line. One table describes every option; parsing, checks, help and defaults expand from it.
#pragma once

#include "engine.h"
#include "ranks/comm.h"
#include "recipe.h"

typedef enum {
    COMMAND_TRAIN, COMMAND_SAMPLE, COMMAND_EVAL, COMMAND_VOCAB, COMMAND_TOKENIZE, COMMAND_INFO, COMMANDS
} Command;

enum { OPTION_ROWS = 128 };   // of the table, or more; the compiler warns if it has more

typedef struct {
    Command     command;
    bool        named;                     // the user named it; otherwise it is train
    int         ranks;                     // processes of the run
    const char* program;                   // argv[0], for messages and suggested commands
    const char* page;                      // the option that asks for --help or --version, or NULL
    TostRecipe  recipe;                    // of train; other commands set and use a few fields of it
    double      max_time, run_for;         // seconds; 0: off
    StringList  text;                      // files to train on; empty: none
    bool        resume, resume_auto, overwrite, quiet;
    double      rank_timeout;              // seconds; 0: none
    char       *model, *init, *tokenizer, *out;   // NULL: not given
    // sampling
    char       *prompt, *prompts;          // NULL: not given
    StringList  stop;
    int64_t     tokens, samples;
    // evaluation
    char*       task;                      // NULL: not given
    int         stride;                    // 0: no overlap
    int64_t     windows;                   // 0: score every token once
    int64_t     limit;                     // 0: all
    char*       json;
    bool        by_position;
    // vocabulary, tokenizing
    int         size;
    double      val_frac;
    int64_t     shard_tokens;
    bool        jsonl, plain, lines, skip_bad_lines;
    char       *text_field, *files_from;   // NULL: not given
    // operands, pointing into argv
    int         n_files;
    char**      files;
    bool        given[OPTION_ROWS];        // by the user, by row of the table
} Options;

// Parses argv into *o, which has only program and ranks. Returns false with one line in *err (exit with STATUS_USAGE)
// for an unknown, malformed, out-of-range, unexpected or, unless o->page is set, contradictory argument. Opens no file.
// Call options_free in any case.
bool options_parse(Options* o, int argc, char** argv, const TostEngine* engine, TostError* err);
void options_free(Options* o);
// Fails on all ranks, naming the option, if an option of any rank, on its command line or in its recipe, differs from
// that of rank 0. Ranks with different options would exchange different messages.
bool options_same(const Options* o, const TostRecipe* recipe, TostComm* comm, TostError* err);

typedef struct { const char *name, *usage, *about, *no_operands; } CommandHelp;   // no_operands: what to give instead

// The table of options, also for --help: rows of the recipe and rows of the commands. `field` is an offset in Options.
// The last rows are zero.
extern const Setting option_table[OPTION_ROWS];
extern const CommandHelp command_table[COMMANDS];
bool option_belongs(const Setting* row, Command command);
// Help and default, which is o's value; an asterisk if --resume may change it
TextLine option_text(const Options* o, const Setting* row);
