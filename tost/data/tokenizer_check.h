// tokenizer_check.h: which tokenizer belongs to weights and shards.
#pragma once

#include "data/shards.h"
#include "data/tokenizer.h"

// Opens a tokenizer for a model with a vocabulary of `rows`; NULL on error. hash: the CRC-32 that it must have; NULL:
// any. weights: the model's file for messages, NULL for a new model.
Tokenizer* model_tokenizer(const char* path, int rows, const uint32_t* hash, const char* weights, TostError* err);

// Warns if the tokenizer is probably not the one that the weights, of a vocabulary of `rows`, were trained with. trained,
// hash: the path and CRC-32 of that one; NULL: unknown
void warn_of_tokenizer(const Tokenizer* tokenizer, const char* weights, int rows, const char* trained, uint32_t hash);
// Fails if the shards were made with another tokenizer than that of this CRC-32 and size (0: unknown): a different one
// is beside a shard, or an id is not below size.
bool check_shards(const ShardStream* shards, const char* tokenizer, uint32_t hash, int size, TostError* err);
// Warns if all checked ids of a shard are in the lower half of a vocabulary, or if its last, <|endoftext|>, is missing.
void warn_of_ids(const ShardStream* shards, int size, bool has_eot);
