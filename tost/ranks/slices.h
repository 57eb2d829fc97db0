// slices.h: how the ranks of a run share the work of a step. Pure functions for both engines, without communication.
//
// Gradients and parameters are flat arrays (tost/model.h). Each is cut into units of SLICE_UNIT elements, the blocks of
// the gradient norm. Backward completes the gradients from the end of the flat array to its start, layer by layer. The
// units completed by one layer form buckets; each rank owns an equal slice of every bucket: exchange.c sums its
// gradients, and the rank keeps their moments and updates its parameters (with Muon, every rank updates whole matrices
// and the table of bigrams). So the exchange of a layer is spread over all ranks and may start while backward is still
// at the layers below.
#pragma once

#include "engine.h"

enum {
    SLICE_UNIT = 1 << 14,          // elements
    BUCKET_UNITS = 512,            // most units per bucket: 32 MiB of float32
};

typedef struct { size_t start, end; } Range;   // elements start … end - 1 of the flat array

typedef struct {
    int    ranks, buckets;
    Range* bucket;    // (buckets), in the order in which backward completes them: from the end of the array
} Slices;

// For one rank: one bucket with everything, whose packed array is the flat array.
Slices slices_new(const TostTensors* tensors, int ranks);   // free(bucket)
// What a rank owns of bucket k.
Range  slices_of(const Slices* s, int rank, int k);
// Where that starts in the array of the rank's slices, packed in the order of the flat array. k = -1: the array's size
size_t slices_packed(const Slices* s, int rank, int k);

static inline size_t min_size(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t max_size(size_t a, size_t b) { return a > b ? a : b; }
static inline size_t slice_units(size_t elements) { return (elements + SLICE_UNIT - 1) / SLICE_UNIT; }
static inline size_t range_size(Range range) { return range.end - range.start; }
static inline Range range_meet(Range a, Range b) {   // empty: start = end
    const size_t start = max_size(a.start, b.start);
    const Range meet = {start, max_size(start, min_size(a.end, b.end))};
    return meet;
}

// Parts. The micro-batches of a step form `parts` equal runs. The gradients of a part are accumulated one after
// another; exchange.c adds those of the parts in a fixed tree, whatever the number of ranks:
//
//     tree(n parts) = tree(first p) + tree(other n - p),   p: the largest power of two below n
//
// A rank computes parts/ranks consecutive parts: a power of two, unless there is one rank, so its sum is a subtree.
// Validation divides its windows in the same way.

// The first of n items of part p, if the parts divide them as equally as possible.
static inline int64_t part_start(int64_t n, int64_t p, int64_t parts) {
    return n / parts * p + (n % parts) * p / parts;
}

// What a rank computes of the samples of a step or of the windows of a validation: [start,end), in micro-batches.
typedef struct {
    int64_t all, start, end;           // samples; all: of all ranks
    int64_t n, each;                   // micro-batches: of the rank and of a part; the same on all ranks
    int     batch, parts, first_part;
} Share;
typedef struct { int64_t start; int rows, part; TostEnd end; } MicroBatch;   // rows: 0 if the part has none left

Share      share_of(int64_t samples, int batch, int parts, int rank, int ranks);
MicroBatch share_micro_batch(const Share* s, int64_t i);
