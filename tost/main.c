// main.c: from the command line to a command.
#include "commands.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tokenize.h"

// ---------------------------------------------------------------------------------------------
// Commands

int command_tokenize(const Options* o) {
    const TokenizeOptions options = {
        .tokenizer = o->tokenizer, .out = o->out, .files = o->files, .n_files = o->n_files,
        .val_frac = o->val_frac, .val_required = option_given(o, "val-frac"), .seed = (uint64_t)o->seed,
        .shard_tokens = (uint64_t)o->shard_tokens, .threads = o->threads, .jsonl = o->jsonl,
        .quiet = o->quiet};
    TokenizeResult r;
    TostError err;
    if (!tokenize_files(&options, &r, &err)) return command_failed(o, &err);
    if (o->quiet) return 0;
    char bytes[32];
    printf("%llu documents, %s: %llu tokens\n", (unsigned long long)r.documents,
           human_bytes(bytes, (double)r.bytes), (unsigned long long)r.tokens);
    printf("%s_train_*.bin: %llu tokens, shards: %d\n", o->out, (unsigned long long)r.train_tokens,
           r.train_shards);
    if (r.val_shards > 0)
        printf("%s_val_*.bin: %llu tokens, shards: %d\n", o->out, (unsigned long long)r.val_tokens,
               r.val_shards);
    else if (o->val_frac > 0)
        printf("no validation shards: of so few documents none fell to --val-frac %g\n", o->val_frac);
    return 0;
}

static int run_command(const Options* o, const TostEngine* engine) {
    switch (o->command) {
        case COMMAND_TRAIN: return command_train(o, engine);
        case COMMAND_SAMPLE: return command_sample(o, engine);
        case COMMAND_EVAL: return command_eval(o, engine);
        case COMMAND_TOKENIZE: return command_tokenize(o);
        case COMMAND_INFO: return command_info(o);
        case COMMAND_INSPECT: return command_inspect(o, engine);
        case COMMANDS: break;
    }
    return STATUS_FAILED;
}

// The next file opened would take the number of a standard stream that is closed, and get what is printed. /dev/null
// takes it, opened so that the stream still fails.
static void hold_closed_streams(void) {
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd) return;
}

int tost_main(int argc, char** argv, const TostEngine* engine) {
    hold_closed_streams();
    Options o;
    bool help;
    TostError err;
    int status = 0;
    if (!options_parse(&o, &help, argc, argv, engine, &err)) {
        print_error(&o, &err);
        status = STATUS_USAGE;
    } else if (!help) status = run_command(&o, engine);
    options_free(&o);
    if (status == 0 && (fflush(stdout) != 0 || ferror(stdout))) {
        tost_error(&err, "stdout cannot be written: %s", strerror(errno));
        status = command_failed(&o, &err);
    }
    return status;
}
