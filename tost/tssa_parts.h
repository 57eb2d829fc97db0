// tssa_parts.h: how TSSA divides its work among threads. As many sequences as threads form a group and are computed at
// once. If there are fewer sequences than threads, each is divided into parts: ranges of heads.
#ifndef TOST_TSSA_PARTS_H
#define TOST_TSSA_PARTS_H

#include "threads.h"

typedef struct { int b0, sequences, parts, T, NH; } TssaGroup;   // sequences b0, b0 + 1, …; parts: of each sequence
typedef struct { int b, h0, h1, t0, t1; } TssaPart;              // sequence b, heads [h0,h1), tokens [t0,t1)

static inline TssaGroup tssa_group(int b0, int B, int T, int NH) {
    const int threads = threads_max(), n = B - b0 < threads ? B - b0 : threads, parts = threads / n;
    return (TssaGroup){b0, n, parts < NH ? parts : NH, T, NH};
}

// Part i < sequences · parts of the group, for up to n tokens from t0 on.
static inline TssaPart tssa_part(const TssaGroup* g, int i, int t0, int n) {
    const int k = i % g->parts, t1 = g->T - t0 < n ? g->T : t0 + n;
    return (TssaPart){g->b0 + i / g->parts, k * g->NH / g->parts, (k + 1) * g->NH / g->parts, t0, t1};
}

#endif
