// help.c: --help, --version, the man page and the completion for bash, from the table of options.
#include "commands/help.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/terminal.h"
#include "base/text.h"
#include "base/version.h"

enum { NAME_COLUMN = 32, PAGE_WIDTH = 100, PAGE_NARROW = 60 };

typedef struct { const char *about, *arguments; } Example;

static const Example train_examples[] = {
    {"the starter model, on the stories in data/starter: one to two minutes", ""},
    {"the published model on your own text, converted with tokenize",
     " --preset tost-base --data 'data/mine_train_*.bin' --out out/mine"},
    {"continue that run after an interruption", " --resume --out out/mine"},
};

static const char exit_status[] = "0 success, 1 failure, 2 invalid command line, 75 stopped by --max-time or the loss "
                                  "of a rank (--resume continues), 128 + N stopped by signal N.";

static const char on_resume[] = "* may be changed on --resume. Options that are not given keep the values of the run, "
                                "except --max-time, --quiet, --rank-timeout and --recompute.";

// Help and default of an option; an asterisk if --resume may change it. free()
static char* help_text(const Options* o, const Option* row) {
    char *text = option_text(o, row), *marked = NULL;
    if (o->command != COMMAND_TRAIN || row->saved != OVERRIDABLE) return text;
    marked = xasprintf("%s *", text);
    free(text);
    return marked;
}

// ---------------------------------------------------------------------------------------------
// --help

// Columns of the page: those of the terminal, if stdout is one.
static int page_width(void) {
    const int columns = terminal_columns(STDOUT_FILENO);
    return columns == 0 || columns > PAGE_WIDTH ? PAGE_WIDTH : columns < PAGE_NARROW ? PAGE_NARROW : columns;
}

// Prints text that begins in column `indent`, wrapped; lines after the first are indented.
static void print_wrapped(const char* text, int indent) {
    char *spaces = xasprintf("%*s", indent, ""), *wrapped = wrap_text(text, indent, page_width(), spaces);
    printf("%s\n", wrapped);
    free(wrapped);
    free(spaces);
}

static void print_option(const Options* o, const Option* row) {
    int column = printf("  --%s%s%s", row->name, *row->metavar ? " " : "", row->metavar);
    if (column >= NAME_COLUMN) column = printf("\n") - 1;
    printf("%*s", NAME_COLUMN - column, "");
    char* text = help_text(o, row);
    print_wrapped(text, NAME_COLUMN);
    free(text);
}

// How the results of eval compare with those of other programs.
typedef struct { const char *name, *text; } Protocol;
static const Protocol protocols[] = {
    {"examples",
     "dev/data/evalset.py writes LAMBADA, HellaSwag and CBT. As in lm-evaluation-harness, a context is truncated on "
     "the left for each choice, and white space at its end belongs to the choice. Unlike there, generated ids are "
     "those of the tokenizer, without padding rows, and a choice longer than --seq is refused, not truncated."},
    {"one choice",
     "accuracy (greedy decoding gives it) and perplexity per word are acc and perplexity of LAMBADA in the harness. "
     "accuracy_within_10: up to 10 greedy tokens contain it, in lower or upper case; on lambada_published.jsonl as "
     "eval_lambada.py of the ToST code. The loss in the paper's table is that of dev/data/published.py lambada."},
    {"several",
     "acc and acc_norm as in the harness: highest log-likelihood, and highest per character. acc_token: highest per "
     "token, as in llm.c. CBT: acc, as eval_cbt.py of the ToST code; the paper uses the validation sets."},
    {"shards",
     "--data scores every token but the first once; --windows scores windows at random positions, as nanoGPT and the "
     "paper do (16,000 windows of 1,024 tokens; shards of OpenWebText from dev/data/openwebtext.py, the others "
     "from dev/data/published.py, which encodes each line alone)."},
};

static void print_protocols(void) {
    enum { TEXT_COLUMN = 14 };
    printf("\nProtocols\n");
    for (size_t i = 0; i < sizeof protocols / sizeof *protocols; i++) {
        printf("  %-*s", TEXT_COLUMN - 2, protocols[i].name);
        print_wrapped(protocols[i].text, TEXT_COLUMN);
    }
}

static void print_examples(const Options* o) {
    printf("\nExamples\n");
    for (size_t i = 0; i < countof(train_examples); i++) {
        printf("  # %s\n", train_examples[i].about);
        print_line(stdout, "  %s%s", options_program(o), train_examples[i].arguments);
    }
}

static void print_help(const Options* o, bool all_commands) {
    for (int c = 0; c < COMMANDS; c++) {
        if (!all_commands && c != (int)o->command) continue;
        const CommandHelp* command = &command_table[c];
        print_line(stdout, "%s %s %s", c == 0 || !all_commands ? "usage:" : "      ", options_program(o),
                   command->usage);
        printf("           %s\n", command->about);
    }
    if (o->command == COMMAND_TRAIN) print_examples(o);
    if (all_commands) printf("\nCOMMAND --help lists the options of a command. Options of train:\n");
    const char* group = NULL;
    for (const Option* row = option_table; row < option_table + option_count; row++) {
        if (!option_belongs(row, o->command)) continue;
        if (row->group != group) printf("\n%s\n", group = row->group);
        print_option(o, row);
    }
    if (o->command == COMMAND_TRAIN) {
        printf("\n");
        print_wrapped(on_resume, 0);
    }
    if (o->command == COMMAND_EVAL) print_protocols();
    print_wrapped(exit_status, printf("\nExit status: ") - 1);
}

// ---------------------------------------------------------------------------------------------
// The man page

// Prints text so that roff does not change it.
static void print_roff(const char* text) {
    if (*text == '.' || *text == '\'') printf("\\&");
    for (; *text; text++) {
        if (*text == '\\') printf("\\e");
        else if (*text == '-') printf("\\-");
        else putchar(*text);
    }
}

static void print_paragraph(const char* macro, const char* text) {
    printf("%s\n", macro);
    print_roff(text);
    putchar('\n');
}

static void print_synopsis(void) {
    printf(".SH SYNOPSIS\n.nf\n");
    for (int c = 0; c < COMMANDS; c++) {
        printf("\\fBtrain_gpt_tost\\fR ");
        print_roff(command_table[c].usage);
        putchar('\n');
    }
    printf(".fi\n");
}

static void print_manual_options(const Options* o) {
    const char* group = NULL;
    for (const Option* row = option_table; row < option_table + option_count; row++) {
        if (!option_belongs(row, o->command)) continue;
        if (row->group != group) printf(".SS %s\n", group = row->group);
        printf(".TP\n\\fB\\-\\-");
        print_roff(row->name);
        printf("\\fR%s\\fI", *row->metavar ? " " : "");
        char* text = help_text(o, row);
        print_roff(row->metavar);
        printf("\\fR\n");
        print_roff(text);
        putchar('\n');
        free(text);
    }
    if (o->command == COMMAND_TRAIN) print_paragraph(".PP", on_resume);
}

static void print_manual(const TostEngine* engine) {
    printf(".TH TRAIN_GPT_TOST 1\n.SH NAME\ntrain_gpt_tost \\- train and use the Token Statistics Transformer\n");
    print_synopsis();
    print_paragraph(".SH DESCRIPTION", "Trains the Token Statistics Transformer (Wu et al., ICLR 2025), a language "
                    "model with attention in linear time. Without arguments, trains a small model on the starter "
                    "data in data/starter or, if that folder does not exist, on the installed copy. Checkpoints and "
                    "log.csv are written to a new folder in out/.");
    for (int c = 0; c < COMMANDS; c++) {
        print_paragraph(".TP\n.B", command_table[c].name);
        print_roff(command_table[c].about);
        putchar('\n');
    }
    for (int c = 0; c < COMMANDS; c++) {
        const Options o = options_default((Command)c, engine);
        printf(".SH OPTIONS OF %s\n", command_table[c].name);
        print_manual_options(&o);
    }
    print_paragraph(".SH EXIT STATUS", exit_status);
    printf(".SH EXAMPLES\n.nf\n");
    for (size_t i = 0; i < countof(train_examples); i++) {
        char* example = xasprintf("# %s\ntrain_gpt_tost%s\n", train_examples[i].about, train_examples[i].arguments);
        print_roff(example);
        free(example);
    }
    print_roff("# generate text; show what a run contains\n");
    print_roff("train_gpt_tost sample --model out/mine --prompt \"Once upon a time\"\n");
    print_roff("train_gpt_tost info out/mine\n");
    printf(".fi\n");
}

// ---------------------------------------------------------------------------------------------
// Completion for bash

static void print_command_completion(Command command) {
    printf("        %s)\n            options='", command_table[command].name);
    const char* space = "";
    for (const Option* row = option_table; row < option_table + option_count; row++) {
        if (!option_belongs(row, command)) continue;
        printf("%s--%s", space, row->name);
        space = " ";
    }
    printf("'\n            case $option in\n");
    for (const Option* row = option_table; row < option_table + option_count; row++)
        if (option_belongs(row, command) && *row->metavar)
            printf("                --%s) value=1 words='%s' ;;\n", row->name,
                   row->kind == OPT_CHOICE ? row->metavar : "");
    printf("            esac ;;\n");
}

// Values that are not words are completed as file names.
static void print_completion(void) {
    printf("# Completion for bash, written by train_gpt_tost --bash-completion\n"
           "_train_gpt_tost() {\n"
           "    local word=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD-1]} command=train\n"
           "    local commands='");
    for (int c = 0; c < COMMANDS; c++) printf("%s%s", c ? " " : "", command_table[c].name);
    printf("' options value words\n"
           "    [ \"$word\" = = ] && word=''                                        # --option=\n"
           "    [ \"$option\" = = ] && option=${COMP_WORDS[COMP_CWORD-2]}           # --option=word\n"
           "    case \" $commands \" in\n"
           "        *\" ${COMP_WORDS[1]} \"*) [ \"$COMP_CWORD\" -eq 1 ] || command=${COMP_WORDS[1]} ;;\n"
           "    esac\n"
           "    case $command in\n");
    for (int c = 0; c < COMMANDS; c++) print_command_completion((Command)c);
    printf("    esac\n"
           "    [ \"$COMP_CWORD\" -eq 1 ] && options=\"$commands $options\"\n"
           "    [ \"$value\" ] && options=${words//|/ }\n"
           "    COMPREPLY=($(compgen -W \"$options\" -- \"$word\"))\n"
           "}\n"
           "complete -o default -F _train_gpt_tost train_gpt_tost train_gpt_tostcu\n");
}

void print_page(const Options* o, const TostEngine* engine) {
    if (strcmp(o->page, "man") == 0) print_manual(engine);
    else if (strcmp(o->page, "bash-completion") == 0) print_completion();
    else if (strcmp(o->page, "version") == 0) printf("train_gpt_tost %s, %s engine\n", tost_version(), engine->name);
    else print_help(o, !o->named);
}
