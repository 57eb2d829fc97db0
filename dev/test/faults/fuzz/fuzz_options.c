// fuzz_options.c: the command line, with arguments separated by zero bytes. Accepted options of train must be accepted
// again when read from a checkpoint.
#include "tost/base/error.h"
#include "tost/base/memory.h"
#include "fuzz.h"

#include "tost/options/options.h"

extern const TostEngine tost_cpu_engine;

enum { ARGUMENTS = 24 };

static void check_round_trip(const Options* o) {
    TostError err = {0};
    KeyValues echo = options_echo(o);
    Options again = *o;
    must_hold(options_resume(&again, &echo, "a run", &err), "options of a checkpoint are rejected");
    key_values_free(&echo);
    for (int i = 0; i < option_count; i++)   // the others belong to o
        if (again.values[i].paths != o->values[i].paths) free_paths(&again.values[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    char *text = xmalloc(size + 1), *argv[ARGUMENTS + 2] = {"train_gpt_tost"};
    memcpy(text, data, size);
    text[size] = 0;
    int argc = 1;
    for (size_t at = 0; at < size && argc <= ARGUMENTS; at += strlen(text + at) + 1) argv[argc++] = text + at;
    TostError err = {0};
    Options o = {.program = *argv, .ranks = 1};
    if (!options_parse(&o, argc, argv, &tost_cpu_engine, &err)) check_message(&err);
    else if (!o.page && o.command == COMMAND_TRAIN) check_round_trip(&o);
    options_free(&o);
    free(text);
    return 0;
}
