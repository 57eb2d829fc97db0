// run.h: the state of a training run and what its parts share. run_setup.c starts or resumes a run, train.c is the
// loop, run_save.c writes log and checkpoints, run_report.c prints.
#ifndef TOST_RUN_H
#define TOST_RUN_H

#include "checkpoint.h"
#include "commands.h"
#include "data.h"
#include "lock.h"
#include "log.h"
#include "progress.h"

typedef struct {
    const Options*    args;            // the command line
    Options           o;               // args, completed from the checkpoint and the data
    const TostEngine* engine;
    TostEngineOptions engine_options;
    TostModel*        model;
    TostTensors       tensors;
    CheckpointInfo    info;            // state of the run: what the next checkpoint will say
    CheckpointInfo    init;            // of the weights of --init
    StMeta*           resumed;         // options saved by the resumed run; strings in o point into them
    int               n_resumed;
    char*             weights;         // model.safetensors to start from, or NULL
    char *            out, *val_glob, *log_path;
    Lock              lock;            // on out
    DataSet *         data, *val;      // val: NULL without validation
    Tokenizer*        tokenizer;       // or NULL
    int32_t *         inputs, *targets;   // (batch, seq)
    LogFile           log;
    bool              log_failing;     // the last row could not be written, and a warning says so
    Progress          progress;
    double            val_loss;        // last measured, or NAN
    int64_t           saved_step;      // of the newest checkpoint, or -1
    bool              saved_unvalidated;   // that checkpoint has an unvalidated_row
} Run;

// ---- run_setup.c ----
// Finds the checkpoint to start from and completes the options. Writes nothing but the lock of an existing folder.
bool run_find(Run* r, TostError* err);
bool run_is_finished(const Run* r);          // a resumed run that has nothing left to do
// Opens the data, creates the model, then the folder and its log; prints the settings.
bool run_set_up(Run* r, TostError* err);
void run_free(Run* r);

// ---- run_save.c ----
// Mean loss (nats per token) of the forward passes since the last call. Waits for the device.
double run_mean_loss(Run* r);
// Saves a checkpoint unless the newest one is of this step. On failure --on-save-error decides whether the run
// continues, unless `last`: no step follows.
bool run_save(Run* r, bool last, TostError* err);
// Writes the log row of the last step. A row that cannot be written is kept for later or lost, with one warning, or
// ends the run, as --on-save-error says.
bool run_log_step(Run* r, const LogRow* row, TostError* err);

// ---- run_report.c ----
typedef TostError Hint;   // one line of text, for the end of a message
void run_warn(Run* r, const char* fmt, ...) PRINTF_LIKE(2, 3);   // one line on stderr
Hint resume_hint(const Run* r);                                  // the command that resumes the run, and its step
Hint divergence_hint(const Run* r, const char* remedy);          // the same, then `remedy` and a lower --lr
void report_settings(Run* r, const char* device);
void report_validation(Run* r);
void report_sample(Run* r, char* text, size_t n);
void report_finished(Run* r);                                    // resumed, but nothing is left to do
void report_end(Run* r);
void report_lost_output(Run* r);                                 // warns once if stdout cannot be written

#endif
