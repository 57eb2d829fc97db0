// loaded_model.h: what commands share: error lines, trained models and their tokenizers.
#pragma once

#include "base/files.h"
#include "data/shards.h"
#include "data/tokenizer.h"
#include "engine.h"
#include "chunks.h"
#include "store/checkpoint.h"
#include "options/options.h"

// Prints the error on stderr as one line that begins with the program's name. Of several ranks, only rank 0 prints:
// errors are shared by comm_agree. Returns STATUS_FAILED.
int  print_error(const Options* o, const TostError* err);
void print_warning(const Options* o, const char* fmt, ...) PRINTF_LIKE(2, 3);   // in the same way

// Fails if too many bytes of a text are broken (lines.h), and warns of a few.
bool check_utf8_text(const Options* o, const char* name, const char* text, size_t n, TostError* err);

// ---- Models and their tokenizers ----

TextLine model_sizes(const TostConfig* c);   // "6 layers, …, no bias"

// Opens a tokenizer for a model with a vocabulary of `rows`; NULL on error. hash: the CRC-32 that it must have; NULL:
// any. weights: the model's file for messages, NULL for a new model.
Tokenizer* model_tokenizer(const char* path, int rows, const uint32_t* hash, const char* weights, TostError* err);

// Prints a warning on stderr if the tokenizer is probably not the one that the weights of `info` were trained with.
void warn_of_tokenizer(const Options* o, const CheckpointInfo* info, const char* weights, const Tokenizer* tokenizer);
// Fails if the shards were made with another tokenizer than that of this CRC-32 and size (0: unknown): a different one
// is beside a shard, or an id is not below size.
bool check_shards(const ShardStream* shards, const char* tokenizer, uint32_t hash, int size, TostError* err);
// Warns if all checked ids of a shard are in the lower half of a vocabulary, or if its last, <|endoftext|>, is missing.
void warn_of_ids(const Options* o, const ShardStream* shards, int size, bool has_eot);

// A trained model for sample, eval and info. loaded_model_find reads its config and metadata;
// loaded_model_create loads the parameters, once max_batch and the longest sequence are known.
typedef struct {
    const TostEngine* engine;
    TostComm*      comm;      // NULL, unless the caller sets it before loaded_model_create
    char*          file;      // path of its model.safetensors
    StFile         weights;   // the same; open from loaded_model_find to loaded_model_create
    CheckpointInfo info;
    TostTensors    tensors;
    TostModel*     model;     // NULL before loaded_model_create
    Chunks         chunks;    // of model
} LoadedModel;

// Finds the model of --model, by default that of the newest run in out/.
bool loaded_model_find(LoadedModel* m, const Options* o, const TostEngine* engine, TostError* err);
bool loaded_model_create(LoadedModel* m, const Options* o, int max_batch, int seq, TostError* err);
// Fails, naming the model, if a loss that it computed is not finite.
bool loaded_model_check_loss(const LoadedModel* m, double loss, TostError* err);
// Opens --tokenizer, or by default the checkpoint's tokenizer, whose CRC-32 must match. NULL on error.
Tokenizer* loaded_model_tokenizer(const LoadedModel* m, const Options* o, TostError* err);
void loaded_model_free(LoadedModel* m);
