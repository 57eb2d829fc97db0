// help.c: --help, from the table of options, and --version.
#include "commands/commands.h"

#include "base/version.h"

enum { NAME_COLUMN = 32, PAGE_WIDTH = 80 };

// Prints text that begins in column `indent`, wrapped at spaces; lines after the first are indented.
static void print_wrapped(const char* text, int indent) {
    for (int column = indent; *text; text += *text == ' ') {
        const int word = (int)strcspn(text, " ");
        if (column > indent && column + 1 + word > PAGE_WIDTH) column = printf("\n%*s", indent, "") - 1;
        column += printf("%s%.*s", column > indent ? " " : "", word, text);
        text += word;
    }
    printf("\n");
}

static void print_option(const Options* o, const Setting* row) {
    int column = printf("  --%s%s%s", row->name, *row->values ? " " : "", row->values);
    if (column >= NAME_COLUMN) column = printf("\n") - 1;
    printf("%*s", NAME_COLUMN - column, "");
    print_wrapped(option_text(o, row).text, NAME_COLUMN);
}

static void print_options(const Options* o) {
    const char *group = NULL, *printed = NULL;
    for (const Setting* row = option_table; row < option_table + OPTION_ROWS; row++) {
        if (!row->name) group = row->help;
        if (!option_belongs(row, o->command)) continue;
        if (group != printed) printf("\n%s\n", printed = group);
        print_option(o, row);
    }
}

static void print_examples(void) {
    static const struct { const char *about, *arguments; } examples[] = {
        {"the starter model, on the stories in data/starter: half a minute", ""},
        {"the best model for your own text in ten minutes", " --text books.txt web.jsonl --for 10m --out out/mine"},
        {"continue that run after an interruption", " --resume --out out/mine"},
    };
    printf("\nExamples\n");
    for (size_t i = 0; i < countof(examples); i++) {
        printf("  # %s\n", examples[i].about);
        print_line(stdout, "  %s%s", say_program(), examples[i].arguments);
    }
}

void print_page(const Options* o, const TostEngine* engine) {
    if (strcmp(o->page, "version") == 0) {
        printf("train_gpt_tost %s, %s engine\n", tost_version(), engine->name);
        return;
    }
    for (int c = 0; c < COMMANDS; c++) {
        if (o->named && c != (int)o->command) continue;
        const char* usage = c == 0 || o->named ? "usage:" : "      ";
        print_line(stdout, "%s %s %s", usage, say_program(), command_table[c].usage);
        printf("           %s\n", command_table[c].about);
    }
    if (o->command == COMMAND_TRAIN) print_examples();
    if (!o->named) printf("\nCOMMAND --help lists the options of a command. Options of train:\n");
    if (o->command == COMMAND_TRAIN)
        print_wrapped("Options with * may be changed on --resume; those that are not given keep the values of the run, "
                      "except --max-time, --quiet and --rank-timeout.", printf("\n") - 1);
    print_options(o);
    const char* resumable = o->command == COMMAND_TRAIN ? "75 stopped by --max-time or the loss of a rank (--resume "
                            "continues), " : o->command == COMMAND_EVAL ? "75 stopped by the loss of a rank, " : "";
    print_wrapped(text_line("0 success, 1 failure, 2 invalid command line, %s128 + N stopped by signal N.",
                            resumable).text, printf("\nExit status: ") - 1);
}
