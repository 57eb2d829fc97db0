// chunks.h: sums over the chunks of a sequence. One process computes the chunks one after another (--chunk), or each of
// several ranks computes one (--seq-ranks). With --seq-ranks K, every K consecutive ranks form a group. The ranks of a
// group share the same sequences: rank q of the group has the q-th of K equal chunks of each sequence.
//
// Sums over chunks are taken in a fixed order, so K ranks compute the same bits as K chunks in one process. Each
// chunk's own sum starts from zero. These sums are then added, from the first chunk to the last (TSSA's S, N and D,
// losses without gradients) or from the last to the first (TSSA's RS, RN and RD, gradients, losses in training).
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
    float*      grad;          // gradients of the current chunk: embedding, one layer, the last LayerNorm; without wpe
                               // and denom_bias, because each position occurs in only one chunk
    float*      received;      // (ranks): the other ranks' gradients of one piece of grad
    bool*       cuts;          // (ranks,B): true if a document starts in that rank's chunk, so that sums restart there
} Chunks;

Chunks chunks_new(const TostConfig* c, TostComm* comm, int ranks);
void   chunks_layout(Chunks* x, Arena* arena, int max_batch);   // places the buffers
void   chunks_free(Chunks* x);

// Pointers to which backward adds the gradients of one chunk of a layer: into x->grad, for wpe and denom_bias as in
// `whole`, the pointers to the gradients of whole sequences.
TostParams chunks_grads(const Chunks* x, const TostParams* whole);
// Adds x->grad to grad and clears it: for layer l (the last layer: also the last LayerNorm) or, if l < 0, the
// embedding. With several ranks (collective in the group), adds the gradients of all chunks, but each element on only
// one of the ranks: the total gradient is the sum of grad over the ranks.
void chunks_add_grads(Chunks* x, float* grad, const TostTensors* tensors, int l, int layers);
void chunks_clear_grads(Chunks* x);              // after a pass that was not completed

// Sets cuts, before the sums of a pass. Collective in the group. tokens: (B,T), this rank's chunk.
void chunks_find_cuts(Chunks* x, const int32_t* tokens, int B, int T, int document_token);
// sums (B,n) = Σ of own over the chunks before this one in the given order. Collective in the group. own: (B,n), this
// chunk's sums.
void chunks_sum_before(double* sums, const double* own, int B, size_t n, const Chunks* x, ChunkOrder order);
// Adds own and own_count of all chunks to *sum and *count. Collective in the group.
void chunks_add_loss(double* sum, int64_t* count, double own, int64_t own_count, const Chunks* x, ChunkOrder order);

#endif
