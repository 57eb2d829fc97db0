// loaded_model.h: a trained model, for the commands sample, eval and info.
#pragma once

#include "chunks.h"
#include "data/tokenizer_check.h"
#include "recipe.h"
#include "store/checkpoint.h"

// loaded_model_find reads its config and metadata;
// loaded_model_create loads the parameters, once max_batch and the longest sequence are known.
typedef struct {
    const TostEngine* engine;
    TostComm*      comm;      // NULL, unless the caller sets it before loaded_model_create
    char*          file;      // path of its model.safetensors
    StFile         weights;   // the same; open from loaded_model_find to loaded_model_create
    CheckpointInfo info;
    TostTensors    tensors;
    Chunks         chunks;    // zeroed before loaded_model_create
} LoadedModel;

// model: a file, checkpoint or run; NULL: the newest run in out/. engine: NULL for info, which describes the newest
// checkpoint of a run; else see checkpoint_open_best
bool loaded_model_find(LoadedModel* m, const char* model, const TostEngine* engine, TostError* err);
// recipe: has dtype, threads and chunk
bool loaded_model_create(LoadedModel* m, const TostRecipe* recipe, int max_batch, int seq, TostError* err);
// Fails, naming the model, if a loss that it computed is not finite.
bool loaded_model_check_loss(const LoadedModel* m, double loss, TostError* err);
// Opens the given tokenizer or, for NULL, that of the checkpoint, whose CRC-32 must match. NULL on error.
Tokenizer* loaded_model_tokenizer(const LoadedModel* m, const char* given, TostError* err);
void loaded_model_free(LoadedModel* m);
