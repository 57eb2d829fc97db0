// checkpoint.h: finds, reads and writes runs, checkpoints and model files.
//   RUN/step_00001000/model.safetensors, optimizer.safetensors      a complete checkpoint; with --ema: ema.safetensors
//   RUN/step_….tmp/                                                  an incomplete one
//   RUN/best/                                                        with --keep-best
//   RUN/step_….new/                                                  the first one of a run that replaces another
#ifndef TOST_CHECKPOINT_H
#define TOST_CHECKPOINT_H

#include "base/error.h"
#include "ranks/comm.h"
#include "run/outlier.h"
#include "run/safetensors.h"

// Everything in a checkpoint except the tensors; stored in __metadata__ of both files.
typedef struct {
    TostConfig config;
    int64_t    step;              // steps done
    int64_t    tokens;            // tokens seen in training
    uint64_t   data_sample;       // next sample of the data loader
    uint64_t   seed;
    double     val_loss, best_val_loss;   // the last and the lowest, in nats per token; infinity if never measured
    int64_t    val_step, best_val_step;   // steps done when they were measured
    OutlierDetector outliers;     // recent losses and gradient norms, number of skipped steps
    char*      program;           // that wrote the file, with its version; NULL: unknown
    char*      unvalidated_row;   // log row of the last step if its validation was interrupted, or NULL
    char*      tokenizer;         // path of the tokenizer used in training, or NULL
    uint32_t   tokenizer_hash;    // CRC-32 of that file
    bool       average;           // the model has an average of its parameters
    int        n_options;         // options of the run, to compare with those of a resumed run
    StMeta*    options;
    TostComm*  comm;              // the ranks whose moments are saved; NULL: one process. Not stored
} CheckpointInfo;

void checkpoint_info_free(CheckpointInfo* info);

// ---------------------------------------------------------------------------------------------
// Finding

// *is_run: whether the folder contains a checkpoint, complete or not, or a log; false if it is not open.
bool checkpoint_is_run(bool* is_run, const Folder* run, TostError* err);
bool checkpoint_is_folder(const char* dir);  // true if a folder contains a model file itself
bool checkpoint_is_name(const char* path);   // true if the last component of a path is a checkpoint's name
bool checkpoint_is_complete(const Folder* run);            // true if the run has a complete checkpoint
bool checkpoint_exists(const Folder* run, int64_t step);   // true if the run has a complete checkpoint of this step
// Finds the run in `root` ("out"), which may itself be a run, whose newest complete checkpoint was written last.
// free(*run). `option` names the alternative in the message.
bool checkpoint_newest_run(char** run, const char* root, const char* option, TostError* err);
// "root/preset-NNN" with the next free number; not created. free()
char* checkpoint_next_run(const char* root, const char* preset);

// ---------------------------------------------------------------------------------------------
// Reading

// Opens the model.safetensors of PATH: a file, a checkpoint folder, or a run folder, whose newest complete checkpoint
// is taken, by the steps in the metadata. Another process may save to the run and remove checkpoints meanwhile; an open
// file stays readable. Reads the metadata and checks names and shapes of all tensors. Files from other programs may
// have no metadata: then the config follows from names and shapes, val_loss and best_val_loss are infinity, tokenizer
// is NULL, everything else is 0. On success *err is a warning or empty. On failure there is nothing to close or free,
// and *err suggests another value for `option` or, if that is NULL, how to resume or replace the run.
bool checkpoint_open(StFile* model_file, CheckpointInfo* info, const char* path, const char* option, TostError* err);

// Loads all parameters, after checking dtypes, shapes and the CRC-32 (if present). Accepts an lm_head.weight equal to
// wte; any other unknown tensor is an error that names it.
bool checkpoint_load_params(const TostEngine* engine, TostModel* model, const TostTensors* tensors,
                            const StFile* model_file, TostError* err);
// The same for a file with fewer positions than the model: init_extend extends its tensors, `stored`.
bool checkpoint_load_extended(const TostEngine* engine, TostModel* model, const TostTensors* tensors,
                              const TostTensors* stored, const StFile* model_file, TostError* err);
// Loads Adam's m and v from the optimizer.safetensors next to model_file; it must belong to the same checkpoint.
bool checkpoint_load_moments(const TostEngine* engine, TostModel* model, const TostTensors* tensors,
                             const StFile* model_file, TostError* err);
// Loads the average of the parameters from the ema.safetensors next to model_file. *exists: whether there is one.
bool checkpoint_load_average(bool* exists, const TostEngine* engine, TostModel* model, const TostTensors* tensors,
                             const StFile* model_file, TostError* err);
// Opens the ema.safetensors next to *model_file in its place.
bool checkpoint_open_average(StFile* model_file, TostError* err);
// To be called after a read error. If the run has an older intact checkpoint, appends the newest one to *err: as the
// value of `option`, or, if option is NULL, as the checkpoint to resume from. Always returns false.
bool checkpoint_suggest_older(TostError* err, const char* model_file, const char* option);

// ---------------------------------------------------------------------------------------------
// Writing

// Writes RUN/step_NNNNNNNN.tmp/, fsyncs, renames, fsyncs RUN; then removes stale .tmp folders and all but the newest
// `keep` complete checkpoints (0: keeps all). Replaces a checkpoint of the same step. On failure earlier checkpoints
// remain. If only a removal failed, returns true and sets *err; otherwise err->text is empty on success.
bool checkpoint_save(const Folder* run, const CheckpointInfo* info, const TostEngine* engine,
                     const TostModel* model, const TostTensors* tensors, int keep, TostError* err);

// Saves RUN/best/ in the same way, which replaces the one before. It is not found as a checkpoint of the run.
bool checkpoint_save_best(const Folder* run, const CheckpointInfo* info, const TostEngine* engine,
                          const TostModel* model, const TostTensors* tensors, TostError* err);

// For --overwrite: a new run in the folder of an old one. The first checkpoint is saved as RUN/step_NNNNNNNN.new/. From
// that rename on it is the only checkpoint of the run; until then, the old run is complete.
bool checkpoint_save_replacement(const Folder* run, const CheckpointInfo* info, const TostEngine* engine,
                                 const TostModel* model, const TostTensors* tensors, TostError* err);
// Of several ranks, only rank 0 saves. The others meanwhile send it their moments, until it calls checkpoint_end_save.
void checkpoint_send_moments(TostComm* comm, const TostEngine* engine, const TostModel* model,
                             const TostTensors* tensors);
void checkpoint_end_save(TostComm* comm);
bool checkpoint_has_replacement(bool* has, const Folder* run, TostError* err);
// Removes the checkpoints of the old run and renames the new one to RUN/step_NNNNNNNN. Does nothing if there is no
// replacement. If it was interrupted, call it again.
bool checkpoint_finish_replacement(const Folder* run, TostError* err);
// Removes the checkpoints of a run, complete or not, and nothing else.
bool checkpoint_clear(const Folder* run, TostError* err);

#endif
