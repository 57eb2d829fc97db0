// chunks.h: loops over chunks, for training, loss, prompts, decode and scoring. An engine's pass works on a chunk, from
// one of its states to another (engine.h). --chunk is the length of a chunk.
#pragma once

#include "engine.h"

// Of losses (nats): their sum and number; in validation, Σ x² over windows, where x is the sum of a window's losses, and
// the bytes of the targets, if they are counted
typedef struct { double sum; int64_t count; double squares, bytes; } LossSum;

typedef struct {
    const TostEngine* engine;
    TostModel*        model;
    int               max_chunk;      // TostEngineOptions.max_chunk
    int               n, position;    // sequences and next position of the decode state
    // Called by chunks_loss and chunks_train between two chunks, with the fraction that is done, unless NULL. If it
    // returns true, they stop, and the caller must discard the losses (read_loss) and the gradients (zero_grad).
    bool            (*should_stop)(void* context, double fraction);
    void*             context;
} Chunks;

// TostEngineOptions.states for sequences of up to `seq` tokens in chunks of `max_chunk`.
int chunks_states(int seq, int max_chunk, bool training);

// Adds the losses of sequences (B,T) to the sum of read_loss. sums (B): the sum of each sequence; may be NULL. Returns
// false if the pass was abandoned.
bool chunks_loss(double* sums, Chunks* p, const int32_t* inputs, const int32_t* targets, int B, int T);
// The same and the gradients of grad_scale · Σ loss, which are added to those of the part (TostEngine.train_backward).
// Several chunks take 4/3 of the computation: first a forward over all but the last, then forward and backward of each,
// from the last to the first. Collective.
bool chunks_train(Chunks* p, const int32_t* inputs, const int32_t* targets, int B, int T, float grad_scale,
                  TostEnd end);

// The decode state, which replaces a KV cache. Training and loss passes between the calls do not change it.
// Starts n sequences without tokens.
void chunks_begin(Chunks* p, int n);
// Reads the next tokens (n,T) of each sequence; writes the logits (n,V) after the last one, unless NULL.
void chunks_read(float* logits, Chunks* p, const int32_t* tokens, int T);
// Reads tokens (n,T), T <= max_chunk, and writes the losses (n,T) of the targets in nats; 0 for a target of -1.
void chunks_read_losses(double* losses, Chunks* p, const int32_t* tokens, const int32_t* targets, int T);
// Scores continuations without changing the decode state: tokens (n·copies,T), those of one sequence in adjacent rows;
// n·copies <= max_batch. losses (n·copies,T), as above.
void chunks_score(double* losses, Chunks* p, const int32_t* tokens, const int32_t* targets, int copies, int T);
