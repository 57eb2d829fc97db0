// exchange.h: the gradients and parameters that the ranks exchange in a step, for both engines. With one rank and one
// part, every function does nothing or works on the whole arrays. Collective, except where noted.
#pragma once

#include "base/memory.h"
#include "engine.h"
#include "ranks/comm.h"
#include "ranks/slices.h"

enum { EXCHANGE_LEVELS = 31, EXCHANGE_UNDER_WAY = 2 };

typedef struct Exchange Exchange;

// The operations of an engine on its own memory, the machine's or a GPU's. Except for to_host, a call may return before
// its work is done; the work of all calls is done in the order of the calls. start and gather return a request to wait
// for, or NULL if their messages are sent in that order, too.
typedef struct {
    void (*add)(Exchange* x, float* dst, const float* left, const float* right, size_t n);   // dst = left + right
    void (*end_part)(Exchange* x, float* sum);                  // sum = grad; the next part starts with zero gradients
    void (*squares)(Exchange* x, double* sums, Range range);   // Σ grad² of each unit of SLICE_UNIT elements of the range
    void (*to_host)(const Exchange* x, void* dst, const void* src, size_t bytes);   // waits
    void (*from_host)(const Exchange* x, void* dst, const void* src, size_t bytes);
    CommRequest* (*start)(Exchange* x, const CommMessage* messages);
    // Starts sending this rank's slice of bucket k of a flat array to all; the other slices are overwritten.
    CommRequest* (*gather)(Exchange* x, float* flat, int k);
    bool merges;   // update is called once for adjacent tensors with the same optimizer
} ExchangeMemory;

// What this rank owns of a tensor in a bucket
typedef struct {
    const TostTensor* tensor;
    TostOptimizer optimizer;
    int    bucket;
    size_t size;                             // elements
    size_t flat_offset, m_offset, v_offset;  // its start in the flat arrays, in m, and in v, if it has them
} Owned;

struct Exchange {
    const ExchangeMemory* memory;
    TostComm* comm;                          // NULL: one rank
    int       rank, ranks, parts;            // parts of this rank
    Slices    slices;
    Owned*    owned;                         // (n_owned), in the order of the buckets
    int       n_owned;
    TostOptimizer optimizer;                 // --optimizer
    size_t    m_size, v_size;                // elements of m and v
    size_t    row_v;                         // where v starts that has one element per row: all of it on every rank
    size_t    size;                          // elements of the flat arrays
    float*    grad;
    const TostTensor* table;                 // of bigrams; or NULL
    const bool* touched;                     // (rows of the table) false: grad is zero in the row; NULL: not known
    float*    level[EXCHANGE_LEVELS];        // level[j]: the sum of 2^j parts, if bit j of `part` is set
    int       part;                          // parts of this step that are complete
    size_t    from;                          // the sums of this rank's parts are complete from this element on
    int       ready, started, summed;        // buckets that are complete on this rank, sent, and summed over the ranks
    float*    received[EXCHANGE_UNDER_WAY];  // (ranks, slice) of a bucket
    CommRequest* under_way[EXCHANGE_UNDER_WAY];
    double*   squares;                       // (units of this rank's slices)
    CommRequest** gathers;                   // (buckets)
    CommMessage*  messages;                  // (ranks)
    float**       row;                       // (ranks)
};

// Not collective.
Exchange exchange_new(const TostTensors* tensors, TostOptimizer optimizer, TostComm* comm, int parts);   // on the host
void     exchange_layout(Exchange* x, Arena* arena, float* grad);   // places the buffers; grad: the flat array
void     exchange_free(Exchange* x);
static inline size_t exchange_owned(const Exchange* x) { return slices_packed(&x->slices, x->rank, -1); }
// Elements of an array on this rank: all of the parameters and gradients; m and v of its slices, and all of v per row
size_t   exchange_elements(const Exchange* x, TostArray a);
static inline Range  exchange_slice(const Exchange* x, int k) { return slices_of(&x->slices, x->rank, k); }

// The step starts.
void exchange_begin(Exchange* x);
// During the backward pass: its gradients from element `from` on are complete. Starts the exchange of complete buckets
// after the last part; when from is 0, waits for all of them: then this rank's slices of grad are sums over all parts.
void exchange_gradients(Exchange* x, TostEnd end, size_t from);
// √ Σ grad². Each rank sums the squares of its slices in blocks of SLICE_UNIT elements; the sums of blocks are added in
// the order of the array, so the bits depend neither on the number of threads nor on that of ranks.
double   exchange_norm(Exchange* x);
// Calls update for everything that this rank owns. Then all ranks get all of `gathered`, a flat array. With
// memory->merges, one call covers adjacent tensors and the gaps between them, which are zero; own->tensor is the first.
typedef void OwnedUpdate(TostModel* model, const TostUpdate* a, const Owned* own);
void     exchange_update(Exchange* x, float* gathered, OwnedUpdate* update, TostModel* model, const TostUpdate* a);
// Copies what this rank has of a tensor, tost_elements, to an array of its slices. Not collective.
void     exchange_put(const Exchange* x, TostArray a, float* array, const TostTensor* t, const float* src);
// Copies one tensor of an array, tost_elements, to dst on rank 0; other ranks may pass NULL.
void     exchange_collect(float* dst, const Exchange* x, TostArray a, const float* array, const TostTensor* t);
