// run.h: the state of a training run, shared by the files of this folder.
#pragma once

#include "store/checkpoint.h"
#include "data/dataset.h"
#include "base/lock.h"
#include "chunks.h"
#include "base/say.h"
#include "data/tokenizer_check.h"
#include "options/options.h"
#include "ranks/slices.h"
#include "store/log.h"
#include "run/progress.h"

// The step or validation that is running, for should_stop in train.c: how many of its micro-batches or, in validation,
// windows are done, and how many are in the current micro-batch; 0 of 0 is neither shown nor abandoned.
typedef struct { bool validation; int64_t done, all; int current; } RunWork;

typedef struct {
    const Options*    args;            // the command line
    TostRecipe        recipe;          // that of args, completed from the checkpoint and the data
    TostComm*         comm;            // NULL: one process
    int               signal;          // with several ranks: a signal that one of them received, or 0; see run_signal
    const TostEngine* engine;
    TostEngineOptions engine_options;
    TostModel*        model;
    Chunks            chunks;          // of model
    TostTensors       tensors;
    double            val_error;       // of info.val_loss, see validate in train.c
    double            bits_per_byte;   // of the last step's weights on the windows of validation; 0: not measured
    CheckpointInfo    info;            // run state, saved in checkpoints
    CheckpointInfo    init;            // metadata of the --init weights
    KeyValues         resumed;         // options saved in the resumed checkpoint; empty before run_begin_info
    Path              weights;         // model.safetensors to start from; this and other paths: empty if there is none
    StFile            weights_file;    // the same, open until the model has its parameters
    Path              out;
    Path              old;             // --overwrite: where the old run is now
    Lock              lock;            // on out
    DataSet *         data, *val;      // val: NULL without validation
    Tokenizer*        tokenizer;       // or NULL
    int32_t *         inputs, *targets;   // (batch, seq)
    LossSum*          part_loss;       // of this rank's parts
    RunWork           work;
    LogFile           log;
    Progress          progress;
    double            step_seconds[8][2];   // for --max-time: of the last two steps of each kind; see is_out_of_time
    double            speed;           // with --for: plan_cost per second, measured last or guessed; 0: neither
    double            timed_at;        // now_seconds() when run_adjust_steps last compared the clock, before timed_step
    int64_t           timed_step;
    const char*       stopped_by;      // option that ends the run early, or NULL
    int64_t           saved_step;      // of the newest checkpoint, or -1; the same on all ranks
    int64_t           unsaved_since;   // the step since which saves have failed, or 0
    double            older_best;      // loss and step of the previous best, restored if the best cannot be saved
    int64_t           older_best_step;
    bool              best_lost;       // the last best could not be saved
    const char*       best_reset;      // why a resumed run forgets the best loss, or NULL
} Run;

// Losses of the forward passes since the last call. Synchronizes with the device.
static inline LossSum run_read_loss(Run* r) {
    LossSum loss = {0};
    r->engine->read_loss(&loss.sum, &loss.count, r->model);
    return loss;
}

// ---- start.c ----
// Finds the checkpoint to start from and completes the recipe. Writes only the lock file of an existing folder.
bool run_find(Run* r, TostError* err);
bool run_is_finished(const Run* r);          // resumed, but no step and no validation is left
void run_begin_info(Run* r);                 // completes info, once the recipe is complete
bool run_load_weights(Run* r, TostError* err);   // into the new model; without weights, initializes it

// ---- setup.c ----
// Steps that read a source once. Repeated up to about 4 times, data is nearly as good as new (Muennighoff et al., 2023,
// arXiv 2305.16264): above, a new run keeps its best weights.
enum { FEW_EPOCHS = 4, MANY_EPOCHS = 10 };
static inline double epoch_steps(const TostRecipe* recipe, const DataSource* s) {
    return (double)s->samples * recipe->seq / (double)recipe->total_batch / s->weight;
}
// Opens the data, creates the model, then the folder and its log; prints the settings.
bool run_set_up(Run* r, TostError* err);
void run_free(Run* r);

// ---- plan.c ----
bool run_choose_batch(Run* r, int most);   // on a GPU: the micro-batch, unless it is given or the run is resumed
// Creates the model. If that fails with a chosen micro-batch, tries once more with a smaller one; sets *o.
TostModel* run_create_model(Run* r, TostEngineOptions* o, TostError* err);
// --text: the size of the vocabulary for a text of this many bytes, from the measured speed of a model. Collective. 0:
// failed, see *err
int  run_plan_vocabulary(Run* r, double bytes, TostError* err);
bool run_plan(Run* r, TostError* err);   // --for: completes the recipe, once the data is open
// Called before each step. After a validation, and more often near the end, changes the number of steps of a wsd run if
// they would not end in time; the learning rate then decays until the new end.
void run_adjust_steps(Run* r);

// ---- folder.c ----
bool run_folder_is_new(const Run* r, TostError* err);   // fails if the folder already contains a run
// Opens folder and log, last, so that a run that cannot start writes nothing but the shards of --text, which
// command_train removes.
bool run_open_folder(Run* r, TostError* err);
bool run_claim_folder(Run* r, TostError* err);   // on rank 0: creates and locks the folder, if that is not done

// ---- train.c ----
// Trains after run_set_up, until the last step, a signal or an option that ends the run.
bool run_train(Run* r, TostError* err);

// ---- agree.c: what the ranks of a run decide together; collective, except for run_signal ----
// The number of the signal that stops the run, or 0. All ranks learn of a signal in run_agree.
int  run_signal(const Run* r);
// True if all ranks pass true. Otherwise false on all, with the same *err.
bool run_agree(Run* r, bool ok, TostError* err);
// Fails, naming a rank, if the ranks do not run the same program with the same options, data and parameters.
bool run_compare(Run* r, TostError* err);
static inline int run_own_parts(const Run* r) { return r->recipe.parts / comm_size(r->comm); }
static inline Share run_share(const Run* r, int64_t samples) {   // of this rank
    return share_of(samples, r->recipe.batch, r->recipe.parts, comm_rank(r->comm), comm_size(r->comm));
}
static inline Share run_step_share(const Run* r) { return run_share(r, r->recipe.total_batch / r->recipe.seq); }
LossSum run_total_loss(const Run* r);                      // of part_loss; collective

// ---- save.c ----
// Saves a checkpoint, which replaces one of this step; with `last`, only if there is none or a save has failed. If it
// fails, or the loss of the parameters is not finite, warns, or with `last` returns false.
bool run_save(Run* r, bool last, TostError* err);
// Tells all ranks what rank 0 has saved, for run_save and for messages.
void run_share_saved(Run* r);
// --keep-best: saves the model as best, if its validation is the best so far; that of random weights does not count.
void run_save_best(Run* r);
// Writes a log row, on rank 0. Returns false if the log was removed: another run may use the folder.
bool run_log_step(Run* r, const LogRow* row, TostError* err);

// ---- report.c ----
void run_warn(Run* r, const char* fmt, ...) PRINTF_LIKE(2, 3);   // one line on stderr
TextLine resume_hint(const Run* r);                              // how to resume the run, and from which step
// seconds: until the end; expected: loss in nats per token, within 4 % (dev/results/budget.md); 0: unknown
void report_plan(Run* r, double seconds, double epochs, double expected);
void report_new_steps(Run* r, bool repeatable);                  // repeatable: one command trains the same run
void report_settings(Run* r, const char* device);
void report_flops(Run* r);                                       // and sets p->peak_tokens_per_s
void report_validation(Run* r);
// Generates and prints a sample, unless there is no tokenizer or --quiet is given. A signal interrupts it.
bool report_sample(Run* r, TostError* err);
void report_end(Run* r);
void report_lost_output(Run* r);                                 // warns once if stdout or the log cannot be written
void report_missing_rows(Run* r);                                // at the end: those that could not be written
