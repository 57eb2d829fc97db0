// tssa_state.h: the bookkeeping of TSSA: arrays of states, and how the threads of a parallel region divide the work. A
// thread gets whole sequences; if they do not divide evenly, a team of threads shares each sequence, and every thread
// of it gets some of the heads.
#ifndef TOST_TSSA_STATE_H
#define TOST_TSSA_STATE_H

#include <stddef.h>
#include <string.h>

#include "threads.h"

enum {
    TSSA_CHUNK = 32,     // tokens between two saved states, and in the time block of a single thread: fits the L2 cache
    TSSA_BLOCK = 1024,   // tokens in the time block of a team, which waits twice per block; a multiple of TSSA_CHUNK
};

typedef struct { double *S, *N, *D; } TssaState;   // running sums of one sequence: S, N (C); D (NH)

static inline size_t tssa_state_size(int C, int NH) { return (2 * (size_t)C + NH + 7) / 8 * 8; }   // whole cache lines
static inline size_t tssa_scratch_size(int C, int NH) { return (TSSA_CHUNK + 2) * tssa_state_size(C, NH); }
static inline int    tssa_chunks(int T) { return (T + TSSA_CHUNK - 1) / TSSA_CHUNK; }
static inline TssaState tssa_state(double* states, size_t i, int C, int NH) {   // the i-th of an array of states
    double* S = states + i * tssa_state_size(C, NH);
    return (TssaState){S, S + C, S + 2 * (size_t)C};
}

// Heads [h0,h1) and tokens [t0,t1) of one sequence, and the sizes.
typedef struct { int h0, h1, t0, t1, T, C, NH, HS; } TssaPart;

static inline void tssa_copy_heads(double* to, const double* from, TssaPart p, int n) {   // n numbers per head
    memcpy(to + p.h0 * n, from + p.h0 * n, (p.h1 - p.h0) * n * sizeof(double));
}

// What one thread works on: sequences [b0,b1), heads [h0,h1) of each, `block` tokens at a time.
typedef struct { int b0, b1, h0, h1, rank, team, block; } TssaShare;   // rank: its index in a team of `team` threads

// Called by every thread of a parallel region. Every team gets the same number of sequences.
static inline TssaShare tssa_share(int B, int NH) {
    const int threads = thread_count(), thread = thread_index();
    int team = 1;
    while (threads % team || B % (threads / team)) team++;
    const int sequences = B / (threads / team), b0 = thread / team * sequences, rank = thread % team;
    return (TssaShare){b0, b0 + sequences, rank * NH / team, (rank + 1) * NH / team, rank, team,
                       team == 1 ? TSSA_CHUNK : TSSA_BLOCK};
}

// The thread's heads of the tokens from t0 on, up to n of them.
static inline TssaPart tssa_part(const TssaShare* mine, int t0, int n, int T, int C, int NH) {
    return (TssaPart){mine->h0, mine->h1, t0, T - t0 < n ? T : t0 + n, T, C, NH, C / NH};
}

// Instead of some heads of all tokens, all heads of some tokens: the thread's share of the same block.
static inline TssaPart tssa_part_by_token(const TssaShare* mine, TssaPart p) {
    const int n = p.t1 - p.t0, t0 = p.t0 + n * mine->rank / mine->team, t1 = p.t0 + n * (mine->rank + 1) / mine->team;
    return (TssaPart){0, p.NH, t0, t1, p.T, p.C, p.NH, p.HS};
}

// Waits until the whole team gets here. All teams do the same number of blocks, so one barrier serves them all.
static inline void tssa_wait(const TssaShare* mine) {
    if (mine->team == 1) return;
    #pragma omp barrier
}

#endif
