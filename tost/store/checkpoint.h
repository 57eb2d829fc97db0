// checkpoint.h: opens, loads and saves the files of checkpoints, and model files; checkpoint_folders.h finds them.
#pragma once

#include "engine.h"
#include "ranks/comm.h"
#include "store/checkpoint_folders.h"
#include "store/metadata.h"

typedef struct {
    const TostEngine*  engine;
    TostModel*         model;
    const TostTensors* tensors;
    TostOptimizer      optimizer;
    TostComm*          comm;     // the ranks that have the moments; NULL: one process
} CheckpointModel;

// ---- Reading ----

// Opens the model.safetensors of PATH: a file, a checkpoint folder, or a run folder, whose newest complete checkpoint
// is taken. If another process removes it meanwhile, opening it fails; an open file stays readable. Reads the
// metadata and checks names, types and shapes of all tensors. On failure there is nothing to close or free.
bool checkpoint_open(StFile* model_file, CheckpointInfo* info, const char* path, TostError* err);
// To use a model: of a run folder, opens best, and says so, if its validation loss is lower than the newest one's.
bool checkpoint_open_best(StFile* model_file, CheckpointInfo* info, const char* path, TostError* err);

// Loads all parameters, after checking the CRC-32 (if present). model_file: from checkpoint_open. It may have an
// lm_head.weight equal to wte, and may lack convolutions, memory and bigrams, which keep their values.
bool checkpoint_load_params(const CheckpointModel* m, const StFile* model_file, TostError* err);
// Loads the moments m and v from the optimizer.safetensors next to model_file; it must belong to the same checkpoint.
bool checkpoint_load_moments(const CheckpointModel* m, const StFile* model_file, TostError* err);

// ---- Writing ----

// Writes RUN/step_NNNNNNNN or RUN/best: a .tmp folder, fsyncs, renames, fsyncs RUN. Replaces a checkpoint of the same
// name. On failure earlier checkpoints remain.
bool checkpoint_save(const char* run, bool best, const CheckpointInfo* info, const CheckpointModel* m, TostError* err);
// Of several ranks, only rank 0 saves. The others meanwhile send it their moments, until it calls checkpoint_end_save.
void checkpoint_send_moments(const CheckpointModel* m);
void checkpoint_end_save(TostComm* comm);
