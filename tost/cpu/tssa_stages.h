// tssa_stages.h: how the stages of TSSA on the CPU are divided among threads.
#pragma once

#include "cpu/threads.h"

// Tokens per block: all stages pass over a block while it is in cache.
enum { TSSA_BLOCK = 64 };

static inline int tssa_blocks(int T) { return T / TSSA_BLOCK + (T % TSSA_BLOCK != 0); }

typedef struct Tssa Tssa;   // the arguments of TSSA; see train_gpt_tost.c

// Work of one thread in a stage: heads [h0,h1) of sequence b for the tokens [t0,t1) of a block.
typedef struct { int b, h0, h1, t0, t1; } TssaRange;

// Forward and backward have three stages. A range of the first and the last stage has some heads and all tokens of the
// block, one of the second stage all heads and some of the tokens.
typedef void TssaStage(const Tssa* args, TssaRange range);
typedef struct {
    TssaStage *first, *second, *last;
    int first_cost, last_cost;   // times of a head in these stages; only their ratio counts
    int B, T, NH;
} TssaStages;

// Runs a thread's share of the first or the last stage. All heads of the first stage and then all heads of the last one
// are put in a row, which is cut into `shares` pieces of equal time; this runs the heads of one stage that lie in piece
// number `share`. cost: time of a head in this stage; before, after: in the other one, if that is in front of this one
// in the row or behind it; otherwise 0
static inline void tssa_run_heads(TssaStage* run, const Tssa* args, int NH, TssaRange range, int share, int shares,
                                  int before, int cost, int after) {
    const int all = (before + cost + after) * NH;
    int h[2];
    for (int i = 0; i < 2; i++) {
        const int head = ((share + i) * all / shares - before * NH + cost / 2) / cost;
        h[i] = head < 0 ? 0 : head < NH ? head : NH;
    }
    if (range.t0 < range.t1 && h[0] < h[1]) run(args, (TssaRange){range.b, h[0], h[1], range.t0, range.t1});
}

static inline void tssa_run_tokens(TssaStage* run, const Tssa* args, TssaRange range, int share, int shares) {
    const int n = range.t1 - range.t0;
    run(args, (TssaRange){range.b, range.h0, range.h1, range.t0 + share * n / shares,
                          range.t0 + (share + 1) * n / shares});
}

// The tokens of a block, or none if there is no such block.
static inline TssaRange tssa_block(const TssaStages* s, int b, int block) {
    const int t0 = block * TSSA_BLOCK, t1 = t0 + TSSA_BLOCK < s->T ? t0 + TSSA_BLOCK : s->T;
    return block < 0 || t0 >= s->T ? (TssaRange){b, 0, 0, 0, 0} : (TssaRange){b, 0, s->NH, t0, t1};
}

// Runs the stages on every block, from the first block to the last or in reverse. With at most half as many sequences
// as threads, several threads share a sequence, as a pipeline; otherwise a thread takes whole sequences. Between two
// barriers of the pipeline, each stage works on the block that the stage before it has finished. Each thread takes some
// heads of the first and the last stage, so that all take equally long, and some tokens of the second. With at least as
// many sequences as threads, the sequences of a thread are neighbors, as its rows are in the other layers, so most of
// them are in its cache.
static inline void tssa_run(const TssaStages* s, const Tssa* args, bool ascending, bool parallel) {
    const int threads = threads_max(), blocks = tssa_blocks(s->T), rounds = s->B / threads;
    (void)parallel;   // unused without OpenMP
    #pragma omp parallel if (parallel)
    for (int b0 = 0; b0 < s->B; b0 += threads) {
        const int sequences = s->B - b0 < threads ? s->B - b0 : threads, shares = threads / sequences;
        const int lag = shares > 1, step = ascending ? 1 : -1;
        for (int k = 0; k < blocks + 2 * lag; k++) {
            #pragma omp for schedule(static) nowait
            for (int i = 0; i < sequences * shares; i++) {
                const int share = i % shares, block = ascending ? k : blocks - 1 - k;
                const int b = b0 / threads < rounds ? i * rounds + b0 / threads : b0 + i / shares;
                const TssaRange first = tssa_block(s, b, block), last = tssa_block(s, b, block - 2 * lag * step);
                const TssaRange second = tssa_block(s, b, block - lag * step);
                tssa_run_heads(s->first, args, s->NH, first, share, shares, 0, s->first_cost, s->last_cost);
                tssa_run_tokens(s->second, args, second, share, shares);
                tssa_run_heads(s->last, args, s->NH, last, share, shares, s->first_cost, s->last_cost, 0);
            }
            if (shares > 1) {
                #pragma omp barrier
            }
        }
    }
}
