// pieces.h: loops over pieces, for training, loss, prompts, decode and scoring. An engine's pass works on a piece, from
// one of its states to another (engine.h). --chunk is the length of a piece.
#ifndef TOST_PIECES_H
#define TOST_PIECES_H

#include "engine.h"

typedef struct { double sum; int64_t count; } LossSum;   // of losses (nats), and how many

typedef struct {
    const TostEngine* engine;
    TostModel*        model;
    int               max_piece;      // TostEngineOptions.max_piece
    int               n, position;    // sequences and next position of the decode state
    // Called by pieces_loss and pieces_train between two pieces, with the fraction that is done, unless NULL. If it
    // returns true, they stop: discard the losses with read_loss and the gradients with zero_grad.
    bool            (*done)(void* context, double part);
    void*             context;
} Pieces;

// TostEngineOptions.states for sequences of up to `seq` tokens in pieces of `max_piece`.
int pieces_states(int seq, int max_piece, bool training);

// Adds the losses of sequences (B,T) to the sum of read_loss. Returns false if the pass was abandoned.
bool pieces_loss(Pieces* p, const int32_t* inputs, const int32_t* targets, int B, int T);
// The same and the gradients of grad_scale · Σ loss, which are added to those of the part (TostEngine.backward).
// Several pieces take 4/3 of the computation: first a forward over all but the last, then forward and backward of each,
// from the last to the first. Backward passes on the gradient of the state between two pieces. Collective.
bool pieces_train(Pieces* p, const int32_t* inputs, const int32_t* targets, int B, int T, float grad_scale,
                  TostEnd end);

// The decode state, which replaces a KV cache. Training and loss passes between the calls do not change it.
// Starts n sequences without tokens.
void pieces_begin(Pieces* p, int n);
// Reads the next tokens (n,T) of each sequence; writes the logits (n,V) after the last one, unless NULL.
void pieces_read(float* logits, Pieces* p, const int32_t* tokens, int T);
// Reads tokens (n,T), T <= max_piece, and writes the losses (n,T) of the targets in nats; 0 for a target of -1.
void pieces_read_losses(double* losses, Pieces* p, const int32_t* tokens, const int32_t* targets, int T);
// Scores continuations without changing the decode state: tokens (n·copies,T), those of one sequence in adjacent rows;
// n·copies <= max_batch. losses (n·copies,T), as above.
void pieces_score(double* losses, Pieces* p, const int32_t* tokens, const int32_t* targets, int copies, int T);

#endif
