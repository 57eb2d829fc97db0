// tssa_parts.h: how TSSA divides its work among threads. As many sequences as threads are worked on at once; if there are
// fewer sequences than threads, each is divided by heads.
#ifndef TOST_TSSA_PARTS_H
#define TOST_TSSA_PARTS_H

#include "threads.h"

typedef struct { int b, h0, h1, t0, t1; } TssaPart;   // heads [h0,h1) of sequence b for tokens [t0,t1)
typedef struct { int b0, sequences, parts, NH; } TssaGroup;   // sequences from b0 on, each in so many parts

static inline TssaGroup tssa_group(int b0, int B, int NH) {
    const int threads = threads_max(), n = B - b0 < threads ? B - b0 : threads, parts = threads / n;
    return (TssaGroup){b0, n, parts < NH ? parts : NH, NH};
}
static inline TssaPart tssa_part(const TssaGroup* g, int i, int t0, int t1) {   // i < sequences · parts
    const int k = i % g->parts;
    return (TssaPart){g->b0 + i / g->parts, k * g->NH / g->parts, (k + 1) * g->NH / g->parts, t0, t1};
}

#endif
