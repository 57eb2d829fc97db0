// checkpoint.h: runs, checkpoints and model files: found, written whole or not at all, read with distrust.
//   RUN/step_00001000/model.safetensors, optimizer.safetensors      a complete checkpoint
//   RUN/step_….tmp/                                                  one that was being written
#ifndef TOST_CHECKPOINT_H
#define TOST_CHECKPOINT_H

#include "engine.h"
#include "outlier.h"
#include "safetensors.h"

// What a checkpoint knows beside the tensors; it stands in __metadata__ of both files.
typedef struct {
    TostConfig config;
    int64_t    step;              // updates done
    int64_t    tokens;            // tokens seen in training
    uint64_t   data_sample;       // the loader's next sample
    uint64_t   seed;
    double     best_val_loss;     // nats a token; infinity where never measured
    OutlierDetector outliers;           // the last losses and norms, and how many updates were skipped
    char*      unvalidated_row;   // log row of the last step, if a signal interrupted its validation; else NULL
    char*      tokenizer;         // path as the run was given it, or NULL
    uint32_t   tokenizer_hash;    // CRC-32 of that file
    int        n_options;         // the run's options as key and value, so that a resumed run can be compared
    StMeta*    options;
} CheckpointInfo;

void checkpoint_info_free(CheckpointInfo* info);

// ---------------------------------------------------------------------------------------------
// Finding

// The model.safetensors that PATH means: such a file itself, a checkpoint folder, or a run folder (its newest
// complete checkpoint). *file is to be freed.
bool checkpoint_find(char** file, const char* path, TostError* err);
// The same for the newest run below `root` ("out"): the run whose newest complete checkpoint was written
// last.
bool checkpoint_newest(char** file, const char* root, TostError* err);
// Whether a folder holds a run: a checkpoint, complete or not, or a log.
bool checkpoint_is_run(const char* dir);
// Whether a folder is a checkpoint itself: no place for a run.
bool checkpoint_is_one(const char* dir);
// Whether a file of that name could stand where a checkpoint is to be.
bool checkpoint_is_name(const char* path);
// Removes the checkpoints of a run, complete or not, and nothing else: for --overwrite.
bool checkpoint_clear(const char* run, TostError* err);
// Whether the complete checkpoint of that step stands in a run.
bool checkpoint_stands(const char* run, int64_t step);
// "root/preset-NNN" with the next free number; not created. free()
char* checkpoint_next_run(const char* root, const char* preset);

// ---------------------------------------------------------------------------------------------
// Reading

// Config and all else from the metadata; where there is none (a file written by others), the config follows
// from names and shapes (heads from attn.temp), step, tokens and all else are 0, best_val_loss is infinity,
// and there is no tokenizer. On success names and shapes of all tensors are those of the config, so that a
// model of that size may be created. On failure nothing is to be freed.
bool checkpoint_read_info(CheckpointInfo* info, const char* model_file, TostError* err);

// Every parameter by name, with dtype, shape and (where there is one) CRC-32 checked before the first is put.
// A lm_head.weight equal to wte is accepted; any other foreign tensor is an error that names it.
bool checkpoint_load_params(const TostEngine* engine, TostModel* model, const TostTensors* tensors,
                            const char* model_file, TostError* err);
// m and v from the optimizer.safetensors beside model_file, which must be of the same step.
bool checkpoint_load_moments(const TostEngine* engine, TostModel* model, const TostTensors* tensors,
                             const char* model_file, TostError* err);
// Adds to the error of a checkpoint that could not be read the newest older one of its run that can, if there is one:
// as a value of `option` or, where that is NULL, as what --resume can go on from. Always false.
bool checkpoint_name_whole(TostError* err, const char* model_file, const char* option);

// ---------------------------------------------------------------------------------------------
// Writing

// Writes RUN/step_NNNNNNNN.tmp/, fsyncs, renames, fsyncs RUN; then removes older complete checkpoints so that
// `keep` remain (0: all) and stale .tmp folders. A checkpoint of the same step is replaced. On failure the
// earlier checkpoints stand and the .tmp is removed if possible. Where all that failed was a removal, it is true
// and *err says so; else err->text is then empty.
bool checkpoint_save(const char* run, const CheckpointInfo* info, const TostEngine* engine,
                     const TostModel* model, const TostTensors* tensors, int keep, TostError* err);

#endif
