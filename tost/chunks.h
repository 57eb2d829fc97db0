// chunks.h: what chunks of sequences tell each other: in one process one after another (--chunk), or each on a rank of
// its own (--seq-ranks). With --seq-ranks K, the ranks form groups of K consecutive ones. A group holds the same
// sequences: rank q of a group has the q-th of K equal chunks of each.
//
// All sums over chunks are taken in one order, so K ranks and K chunks in one process compute the same bits: a chunk's
// own sum is computed from zero, and these sums are added from the first chunk to the last (TSSA's S, N and D, losses
// without gradients) or from the last to the first (TSSA's RS, RN and RD, gradients, losses in training).
#ifndef TOST_CHUNKS_H
#define TOST_CHUNKS_H

#include "comm.h"
#include "engine_memory.h"
#include "slices.h"

typedef enum { CHUNKS_FROM_FIRST, CHUNKS_FROM_LAST } ChunkOrder;

typedef struct {
    TostComm*   comm;
    int         ranks, rank;   // K and q; 1 and 0 without --seq-ranks
    TostTensors tensors;       // layout of grad
    float*      grad;          // of the current chunk alone: embedding, one layer, the last LayerNorm. The gradients of
                               // wpe and denom_bias are not in it: a position occurs in one chunk only
    float*      received;      // (ranks): other ranks' gradients of a piece of it
    bool*       cuts;          // (ranks,B): whether a document starts in a chunk of a sequence, so that sums end there
} Chunks;

Chunks chunks_new(const TostConfig* c, TostComm* comm, int ranks);
void   chunks_layout(Chunks* x, Arena* arena, int max_batch);   // places the buffers
void   chunks_free(Chunks* x);

// The pointers through which backward adds the gradients of a chunk of layer l. whole: the same for gradients of whole
// sequences.
TostParams chunks_grads(const Chunks* x, const TostParams* whole);
// grad += the chunk's gradients of layer l, of the last LayerNorm if l is the last layer, or of the embedding (l < 0);
// then clears them. On ranks (collective, within a group), adds those of all chunks, each element on one of the ranks:
// the sum over the ranks is grad.
void chunks_add_grads(Chunks* x, float* grad, const TostTensors* tensors, int l, int layers);
void chunks_clear_grads(Chunks* x);              // after a pass that was not completed

// Collective within a group, before the sums of a pass. tokens: (B,T), of this rank's chunk.
void chunks_find_cuts(Chunks* x, const int32_t* tokens, int B, int T, int document_token);
// Collective within a group: sums (B,n) = those of the chunks before this one, in the given order. own: this chunk's.
void chunks_sum_before(double* sums, const double* own, int B, size_t n, const Chunks* x, ChunkOrder order);
// *sum += the chunks' sums; *count likewise.
void chunks_add_loss(double* sum, int64_t* count, double own, int64_t own_count, const Chunks* x, ChunkOrder order);

#endif
