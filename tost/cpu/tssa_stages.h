// tssa_stages.h: the arguments of TSSA on the CPU, and how its stages are divided among threads.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "cpu/threads.h"

// Tokens per block: all stages pass over a block while it is in cache.
enum { TSSA_BLOCK = 64 };

// The state of a sequence is its running sums S, N (C) and D (NH), one after another. Its adjoint is laid out alike.
typedef struct {
    int B, T, C, NH, HS;
    const float *z;                   // (B,T,C): the projection, or its convolution
    const float *temp, *denom_bias;   // (NH); (NH,block_size), from the position of the first token on, or NULL
    int block_size;
    float *u, *pi, *y;                // (B,NH,T) twice; (B,T,C)
    size_t stride;                    // from the state of a sequence to the next
    double *state;                    // (B,2C+NH): S, N and D before these tokens, then after them
    double *saved;                    // (B,blocks,2C+NH): S, N and D before each block; NULL if no backward follows
    double *scratch;                  // (threads,tssa_scratch_size)
    // backward only
    const float *dy;                  // (B,T,C)
    float *dz;                        // (B,T,C)
    float *dpi, *dscore;              // (B,NH,T): one array, dΠ (on entry that of the memory, or 0), then dscore
    float *dtemp, *ddenom_bias;       // (NH), NULL if membership is uniform; (NH,block_size) or NULL: +=
    double *adjoint;                  // (B,2C+NH): RS, RN and RD after these tokens, then at the first one
} Tssa;

typedef struct { double *S, *N, *D; } TssaState;

static inline size_t tssa_state_size(int C, int NH) { return 2 * (size_t)C + NH; }
static inline size_t tssa_scratch_size(int C, int NH) { return (TSSA_BLOCK + 1) * ((size_t)C + 2 * NH); }
static inline int    tssa_blocks(int T) { return T / TSSA_BLOCK + (T % TSSA_BLOCK != 0); }
static inline TssaState tssa_split(double* S, const Tssa* args) {
    return (TssaState){S, S + args->C, S + 2 * (size_t)args->C};
}
static inline TssaState tssa_state(double* states, int b, const Tssa* args) {
    return tssa_split(states + b * args->stride, args);
}
static inline TssaState tssa_saved(const Tssa* args, int b, int t) {   // before the block of token t
    return tssa_split(
        args->saved + ((size_t)b * tssa_blocks(args->T) + t / TSSA_BLOCK) * tssa_state_size(args->C, args->NH), args);
}
static inline double* tssa_scratch(const Tssa* args) {   // of the calling thread
    return args->scratch + thread_index() * tssa_scratch_size(args->C, args->NH);
}
// Offsets: of the channels of head h in a (B,T,C) array, and of t = 0 of head h in a (B,NH,T) array.
static inline size_t tssa_row(const Tssa* args, int b, int t, int h) {
    return ((size_t)b * args->T + t) * args->C + h * args->HS;
}
static inline size_t tssa_head(const Tssa* args, int b, int h) { return ((size_t)b * args->NH + h) * args->T; }

// Work of one thread in a stage: heads [h0,h1) of sequence b for the tokens [t0,t1) of a block.
typedef struct { int b, h0, h1, t0, t1; } TssaRange;

// Copies the sums of the range's heads, each of `width` numbers.
static inline void tssa_copy(double* dst, const double* src, TssaRange r, int width) {
    memcpy(dst + r.h0 * width, src + r.h0 * width, (size_t)((r.h1 - r.h0) * width) * sizeof *dst);
}

// Forward and backward have three stages. A range of the first and the last stage has some heads and all tokens of the
// block, one of the second stage all heads and some of the tokens.
typedef void TssaStage(const Tssa* args, TssaRange r);
typedef struct {
    TssaStage *first, *second, *last;
    int first_cost, last_cost;   // times of a head in these stages; only their ratio counts
} TssaStages;

// Runs a thread's share of the first or the last stage. All heads of the first stage and then all heads of the last one
// are put in a row, which is cut into `shares` pieces of equal time; this runs the heads of one stage that lie in piece
// number `share`. cost: time of a head in this stage; before, after: in the other one, if that is in front of this one
// in the row or behind it; otherwise 0
static inline void tssa_run_heads(TssaStage* run, const Tssa* args, TssaRange r, int share, int shares, int before,
                                  int cost, int after) {
    const int all = (before + cost + after) * args->NH;
    int h[2];
    for (int i = 0; i < 2; i++) {
        const int head = ((share + i) * all / shares - before * args->NH + cost / 2) / cost;
        h[i] = head < 0 ? 0 : head < args->NH ? head : args->NH;
    }
    if (r.t0 < r.t1 && h[0] < h[1]) run(args, (TssaRange){r.b, h[0], h[1], r.t0, r.t1});
}

static inline void tssa_run_tokens(TssaStage* run, const Tssa* args, TssaRange r, int share, int shares) {
    const int n = r.t1 - r.t0;
    run(args, (TssaRange){r.b, 0, args->NH, r.t0 + share * n / shares, r.t0 + (share + 1) * n / shares});
}

// The tokens of a block, or none if there is no such block.
static inline TssaRange tssa_block(const Tssa* args, int b, int block) {
    const int t0 = block * TSSA_BLOCK, t1 = t0 + TSSA_BLOCK < args->T ? t0 + TSSA_BLOCK : args->T;
    return block < 0 || t0 >= args->T ? (TssaRange){b, 0, 0, 0, 0} : (TssaRange){b, 0, args->NH, t0, t1};
}

// Runs the stages on every block, from the first block to the last or in reverse. With at most half as many sequences
// as threads, several threads share a sequence, as a pipeline; otherwise a thread takes whole sequences. Between two
// barriers of the pipeline, each stage works on the block that the stage before it has finished. Each thread takes some
// heads of the first and the last stage, so that all take equally long, and some tokens of the second. With at least as
// many sequences as threads, the sequences of a thread are neighbors, as its rows are in the other layers, so most of
// them are in its cache.
static inline void tssa_run(const TssaStages* stages, const Tssa* args, bool ascending, bool parallel) {
    const int threads = threads_max(), blocks = tssa_blocks(args->T), rounds = args->B / threads;
    (void)parallel;   // unused without OpenMP
    #pragma omp parallel if (parallel)
    for (int b0 = 0; b0 < args->B; b0 += threads) {
        const int sequences = args->B - b0 < threads ? args->B - b0 : threads, shares = threads / sequences;
        const int lag = shares > 1, step = ascending ? 1 : -1;
        for (int k = 0; k < blocks + 2 * lag; k++) {
            #pragma omp for schedule(static) nowait
            for (int i = 0; i < sequences * shares; i++) {
                const int share = i % shares, block = ascending ? k : blocks - 1 - k;
                const int b = b0 / threads < rounds ? i * rounds + b0 / threads : b0 + i / shares;
                const TssaRange first = tssa_block(args, b, block), last = tssa_block(args, b, block - 2 * lag * step);
                const TssaRange second = tssa_block(args, b, block - lag * step);
                tssa_run_heads(stages->first, args, first, share, shares, 0, stages->first_cost, stages->last_cost);
                tssa_run_tokens(stages->second, args, second, share, shares);
                tssa_run_heads(stages->last, args, last, share, shares, stages->first_cost, stages->last_cost, 0);
            }
            if (shares > 1) {
                #pragma omp barrier
            }
        }
    }
}
