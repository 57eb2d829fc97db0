// checkpoint_folders.h: finds, names, publishes and removes the checkpoints in the folders of runs.
//   RUN/step_00001000/model.safetensors, optimizer.safetensors      a complete checkpoint; if the run has a tokenizer:
//                                                                    vocab.bpe
//   RUN/step_….tmp/                                                  an incomplete one
//   RUN/best/                                                        with --keep-best
// A checkpoint is written to a .tmp folder that is renamed when it is complete, and is renamed to .tmp again before it
// is removed.
#pragma once

#include "base/files.h"

#define MODEL_FILE     "model.safetensors"
#define OPTIMIZER_FILE "optimizer.safetensors"
#define LOG_FILE       "log.csv"
#define BEST_FOLDER    "best"

bool checkpoint_is_run(const char* run);       // true if a folder contains a checkpoint, complete or not, or a log
bool checkpoint_is_folder(const char* dir);    // true if a folder contains a model file itself
bool checkpoint_exists(const char* run, int64_t step);   // true if the run has a complete checkpoint of this step
bool checkpoint_newest(Path* found, const char* run);    // the newest complete checkpoint; false if there is none
// Finds the run in `root` ("out"), which may itself be a run, whose newest complete checkpoint was written last.
// `option` names the alternative in the message.
bool checkpoint_newest_run(Path* run, const char* root, const char* option, TostError* err);

Path checkpoint_name(const char* run, int64_t step);   // RUN/step_NNNNNNNN
// Renames a finished folder; it replaces one that has the name.
bool checkpoint_publish(const char* finished, const char* name, TostError* err);
// After saving `step`, removes stale folders and all but the newest `keep` complete checkpoints (0: keeps all).
bool checkpoint_prune(const char* run, int64_t step, int keep, TostError* err);
// Removes a checkpoint, complete or not. If its folder has other files, renames it, to NAME.kept-N, and returns false.
bool checkpoint_remove(const char* path, TostError* err);
