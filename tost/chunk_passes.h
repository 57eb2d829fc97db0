// chunk_passes.h: how both engines divide a pass over sequences into chunks of TostEngineOptions.chunk tokens. An
// engine sets `chunk` to max_seq if sequences are not divided. Valid as C11 and as CUDA C++17.
#ifndef TOST_CHUNK_PASSES_H
#define TOST_CHUNK_PASSES_H

#include "engine.h"

// Number of chunks of a sequence of T tokens; the last one may be shorter.
static inline int chunks_of(const TostEngineOptions* o, int T) { return T / o->chunk + (T % o->chunk != 0); }

// Number of tokens in chunk k of a sequence of T tokens.
static inline int chunk_length(const TostEngineOptions* o, int k, int T) {
    const int left = T - k * o->chunk;
    return left < o->chunk ? left : o->chunk;
}

// Reports the part of a pass that is done or queued on the device. Returns true if the caller abandons the pass, whose
// results it then does not need.
static inline bool chunk_done(const TostEngineOptions* o, double part) {
    return o->chunk_done && o->chunk_done(o->context, part);
}

// The same in training. done: the finished work, in units of a forward pass over a chunk.
enum { PASSES_OF_CHUNK = 3 };   // work of forward and backward: backward takes twice the time of forward
static inline bool chunk_done_in_training(const TostEngineOptions* o, int done, int T) {
    const int chunks = chunks_of(o, T);
    return chunk_done(o, (double)done / (chunks - 1 + PASSES_OF_CHUNK * (double)chunks));
}

#endif
