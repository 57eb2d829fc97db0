// commands.h: what a user can ask for. Each command returns the exit status of the process, after one line on
// stderr if it failed.
#ifndef TOST_COMMANDS_H
#define TOST_COMMANDS_H

#include "engine.h"

#ifdef __cplusplus
extern "C" {
#endif

int tost_main(int argc, char** argv, const TostEngine* engine);

#ifdef __cplusplus
}
#else

#include "checkpoint.h"
#include "options.h"
#include "tokenizer.h"

int command_train(const Options* o, const TostEngine* engine);
int command_sample(const Options* o, const TostEngine* engine);
int command_eval(const Options* o, const TostEngine* engine);
int command_tokenize(const Options* o);
int command_info(const Options* o);
int command_inspect(const Options* o, const TostEngine* engine);

// ---------------------------------------------------------------------------------------------
// What they share

// Prints the error as the one line on stderr, after the program's name.
void print_error(const Options* o, const TostError* err);
// The same; returns STATUS_FAILED.
int command_failed(const Options* o, const TostError* err);

// The bytes that a value TEXT|@FILE|- of `option` means: as given, of a file, or of stdin. An empty file is an error,
// which ends on `way_out`. free(text->data) in every case
bool read_text(Bytes* text, const char* option, const char* value, const char* way_out, TostError* err);

// A model in words: "6 layers, …, no bias" and "1.6M (1.5M without wpe)".
typedef struct { char sizes[160], parameters[96]; } ModelSummary;

ModelSummary model_summary(const TostConfig* c, const TostTensors* tensors);

// Opens the tokenizer of a model of info's vocabulary; `same`: it must be the file that info names by CRC-32.
// weights: the model's file for messages, NULL where it is new. NULL on error.
Tokenizer* model_tokenizer(const CheckpointInfo* info, const char* path, bool same, const char* weights,
                           TostError* err);

// What may not fit together, and what nobody can be sure of, is said in a line on stderr and goes on:
// a tokenizer that is not the one which the weights of `info` were trained with
void warn_of_tokenizer(const Options* o, const CheckpointInfo* info, const char* weights, const Tokenizer* tokenizer);
// shards in `dir` beside which another vocab.bpe stands than a tokenizer of that CRC-32, which ids up to largest_id
// do not fit (size 0: not known)
void warn_of_shards(const Options* o, const char* dir, uint32_t largest_id, const char* tokenizer, uint32_t hash,
                    int size);

// A trained model for sample, eval and info: found by --model or as the newest run, then made once the
// lengths are known.
typedef struct {
    const TostEngine* engine;
    char*          file;      // its model.safetensors
    CheckpointInfo info;
    TostTensors    tensors;
    TostModel*     model;     // NULL before loaded_model_create
} LoadedModel;

bool loaded_model_find(LoadedModel* t, const Options* o, const TostEngine* engine, TostError* err);
// keep_layers: the engine keeps what each layer made, as it does for training.
bool loaded_model_create(LoadedModel* t, const Options* o, int max_batch, int max_seq, bool keep_layers, TostError* err);
// --tokenizer, or the checkpoint's, which must be the file it was trained with. NULL on error.
Tokenizer* loaded_model_tokenizer(const LoadedModel* t, const Options* o, TostError* err);
void loaded_model_free(LoadedModel* t);

#endif
#endif
