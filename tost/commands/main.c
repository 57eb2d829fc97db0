// main.c: parses the command line and runs a command.
#include "base/processor.h"
#include "commands/commands.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

// Sets the number of threads of all parallel regions: --threads or, up to the same limit, OMP_NUM_THREADS. By default,
// ranks that share cores divide them.
static void set_threads(const Options* o, const TostComm* comm) {
    const int sharing = getenv("OMP_NUM_THREADS") ? 1 : comm_sharing_cores(comm);
    const int own = threads_max() / sharing > 0 ? threads_max() / sharing : 1;
    const int threads = o->recipe.threads ? threads_or_max(o->recipe.threads) : own;
    threads_set(threads < THREADS_LIMIT ? threads : THREADS_LIMIT);
}

static int run_command(Options* o, TostComm* comm, const TostEngine* engine) {
    switch (o->command) {
        case COMMAND_TRAIN: return command_train(o, comm, engine);
        case COMMAND_SAMPLE: return command_sample(o, engine);
        case COMMAND_EVAL: return command_eval(o, comm, engine);
        case COMMAND_VOCAB: return command_vocab(o);
        case COMMAND_TOKENIZE: return command_tokenize(o);
        case COMMAND_INFO: return command_info(o);
        case COMMANDS: break;
    }
    return STATUS_FAILED;
}

// If a standard stream is closed, the next file opened would get its descriptor and receive the program's output. Opens
// /dev/null instead, with the opposite access mode, so that using the stream still fails.
static void reserve_standard_streams(void) {
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd) return;
}

int tost_main(int argc, char** argv, const TostEngine* engine) {
    processor_check();
    reserve_standard_streams();
    CommLaunch launch = comm_launch();
    Options o = {.program = argc > 0 && *argv[0] ? argv[0] : "train_gpt_tost", .ranks = launch.place.size};
    TostError err, why;
    TostComm* comm;
    int status = 0;
    say_as(o.program, launch.place.rank);
    const bool valid = options_parse(&o, argc, argv, engine, &err);
    // Commands that need no other ranks run alone on each, even if variables of a pod or job name several.
    if (o.page || (o.command != COMMAND_TRAIN && o.command != COMMAND_EVAL)) launch.place = (CommPlace){.size = 1};
    if (!comm_open(&comm, &launch, engine, valid ? o.rank_timeout : COMM_TIMEOUT, &why)) {
        if (launch.place.rank > 0) sleep(2);   // if all have the error, the launcher ends them after the first
        say_as(o.program, 0);                  // there may be no other rank
        tost_error(&err, "%s%s (%s=%s; if no launcher is meant: env -u %s)", comm_prefix(&launch.place).text, why.text,
                   launch.variable, getenv(launch.variable), launch.variable);
        print_error(&err);
        options_free(&o);
        return STATUS_USAGE;
    }
    say_as(o.program, comm_rank(comm));
    if (!comm_agree(comm, valid, &err) || !options_same(&o, &o.recipe, comm, &err)) {
        print_error(&err);
        status = STATUS_USAGE;
    } else if (o.page) {
        print_page(&o, engine);
    } else {
        if (comm) comm->timeout = o.rank_timeout;
        set_threads(&o, comm);
        status = run_command(&o, comm, engine);
    }
    options_free(&o);
    if (status == 0 && (fflush(stdout) != 0 || ferror(stdout))) {
        tost_error(&err, "stdout cannot be written: %s", strerror(errno));
        status = print_error(&err);
    }
    comm_close(comm);
    return status;
}
