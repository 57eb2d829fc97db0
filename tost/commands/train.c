// train.c: the command train, which trains a model or continues a run with run/run.h.
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/signals.h"
#include "commands/commands.h"
#include "run/run.h"

int command_train(Options* args, TostComm* comm, const TostEngine* engine) {
    Run r = {.args = args, .o = *args, .comm = comm, .engine = engine, .began = now_seconds(),
             .saved.step = -1,
             .progress = progress_new(stdout, args->quiet || args->rank != 0)};
    TostError err;
    signals_ignore_write_errors();
    if (r.comm) r.progress.live = false;   // mpirun and srun may pass a terminal, but merge the output of all ranks
    bool ok = run_agree(&r, run_find(&r, &err), &err), finished = ok && run_is_finished(&r);
    // Rank 0 decides, because ranks may see different folders.
    comm_broadcast(r.comm, &finished, sizeof finished, 0);   // mutant: finished_not_shared
    if (finished)
        progress_text(&r.progress, "%s is finished: %lld of %lld steps; use a larger --steps to continue", r.out.text,
                      (long long)r.info.step, (long long)r.o.steps);
    else ok = ok && options_same(&r.o, r.comm, &err) && run_set_up(&r, &err) && run_train(&r, &err);
    const int signal = run_signal(&r);
    const bool out_of_time = r.stopped_by && strcmp(r.stopped_by, "--max-time") == 0 && r.info.step < r.o.steps;
    run_free(&r);
    memcpy(args->values, r.o.values, sizeof args->values);   // with those of a resumed run, for options_free
    if (!ok) return print_error(args, &err);
    if (signal) return 128 + signal;
    return out_of_time ? STATUS_RESUMABLE : 0;
}
