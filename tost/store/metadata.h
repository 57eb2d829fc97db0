// metadata.h: everything in a checkpoint except the tensors; stored in __metadata__ of its files.
#pragma once

#include "model.h"
#include "store/safetensors.h"

typedef struct {
    TostConfig config;
    int64_t    step;              // steps done
    int64_t    tokens;            // tokens seen in training
    uint64_t   data_sample;       // next sample of the data loader
    uint64_t   seed;
    double     val_loss, best_val_loss;   // the last and the best, in nats per token; infinity if never measured
    int64_t    val_step, best_val_step;   // steps done when they were measured
    int64_t    earlier_updates;   // of the moments that --keep-optimizer took, before the first step; else 0
    int64_t    skipped, skipped_in_a_row;   // skipped steps: in total, and since the last step that was not
    char*      unvalidated_row;   // this step's row of log.csv, until its validation is complete; else NULL
    char*      earlier_lr;        // the values of --lr before the last one, each with a comma; or NULL
    char*      program;           // that wrote the file, with its version; NULL: unknown. Not for writing
    char*      tokenizer;         // path of the tokenizer used in training, or NULL
    uint32_t   tokenizer_hash;    // CRC-32 of that file
    const Bytes* tokenizer_file;  // write it as vocab.bpe; NULL: none. Not stored
    KeyValues options;           // of the run, to compare with those of a resumed run
} CheckpointInfo;

KeyValues metadata_list(const CheckpointInfo* info);   // key_values_free
// Reads what the file has into *info, whose config has the sizes of the file's tensors. Files from other programs may
// have no metadata: then val_loss and best_val_loss are infinity, and everything else is 0 or NULL.
bool metadata_read(CheckpointInfo* info, const StFile* f, TostError* err);   // free info on failure, too
// Compares the checksum of the tensors with the one in the metadata, which a file from another program may lack.
bool metadata_check_crc(const StFile* f, TostError* err);
void checkpoint_info_free(CheckpointInfo* info);
