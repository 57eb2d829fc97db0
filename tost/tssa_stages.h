// tssa_stages.h: the arguments of TSSA on the CPU, and how its stages are divided among threads.
#ifndef TOST_TSSA_STAGES_H
#define TOST_TSSA_STAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "chunks.h"
#include "threads.h"

// Tokens per chunk. Forward saves the running sums before each chunk and backward recomputes them from there; all
// stages pass over a chunk while it is in cache.
enum { TSSA_CHUNK = 64 };

typedef struct {
    int B, T, C, NH, HS;
    const float *w;                   // (B,T,C): the projection
    const float *temp, *denom_bias;   // (NH); (NH,block_size), from the position of the first token on
    int block_size;
    bool uniform;                     // Π = 1/NH; temp and denom_bias have no effect and no gradient
    const int32_t* tokens;            // (B,T)
    int document_token;               // resets the sums; -1: none
    float *u, *pi, *y;                // (B,NH,T) twice; (B,T,C)
    const Chunks *ranks;              // ranks with the other chunks; then TSSA computes start and after. Or NULL
    double *start;                    // (B,2C+NH): S, N and D before the first token of each sequence
    double *before;                   // (B,2C+NH): working copy of start
    double *sums;                     // (B,2C+NH): sums over these tokens: of S, N and D; in backward of RS, RN and RD
    double *saved;                    // (B,chunks,2C+NH): S, N and D before each chunk; NULL if no backward follows
    // backward only
    const float *dy;                  // (B,T,C)
    float *dw;                        // (B,T,C)
    float *da;                        // (B,NH,T): dΠ, then da
    float *dtemp, *ddenom_bias;       // (NH), (NH,block_size): +=
    double *after;                    // (B,2C+NH): RS, RN and RD after the last token, laid out as S, N and D
    double *scratch;                  // (threads,tssa_scratch_size)
} Tssa;

typedef struct { double *S, *N, *D; } TssaState;   // running sums of one sequence: S, N (C); D (NH)

static inline size_t tssa_state_size(int C, int NH) { return 2 * (size_t)C + NH; }
static inline size_t tssa_scratch_size(int C, int NH) { return (TSSA_CHUNK + 1) * ((size_t)C + 2 * NH); }
static inline size_t tssa_states_bytes(const Tssa* a) { return a->B * tssa_state_size(a->C, a->NH) * sizeof(double); }
static inline int    tssa_chunks(int T) { return T / TSSA_CHUNK + (T % TSSA_CHUNK != 0); }
static inline TssaState tssa_state(double* states, size_t i, const Tssa* a) {   // the i-th of an array of states
    double* S = states + i * tssa_state_size(a->C, a->NH);
    return (TssaState){S, S + a->C, S + 2 * (size_t)a->C};
}
static inline TssaState tssa_saved(const Tssa* a, int b, int t) {   // before the chunk of token t
    return tssa_state(a->saved, (size_t)b * tssa_chunks(a->T) + t / TSSA_CHUNK, a);
}
static inline double* tssa_scratch(const Tssa* a) {   // of the calling thread
    return a->scratch + thread_index() * tssa_scratch_size(a->C, a->NH);
}
// Offsets: of the channels of head h in a (B,T,C) array, and of t = 0 of head h in a (B,NH,T) array.
static inline size_t tssa_row(const Tssa* a, int b, int t, int h) { return ((size_t)b * a->T + t) * a->C + h * a->HS; }
static inline size_t tssa_head(const Tssa* a, int b, int h) { return ((size_t)b * a->NH + h) * a->T; }

// Whether token t starts a document: there the sums of forward restart, and the suffix sums of backward end.
static inline bool tssa_starts_document(const Tssa* a, int b, int t) {
    return a->tokens[(size_t)b * a->T + t] == a->document_token;
}

// Work of one thread in a stage: heads [h0,h1) of sequence b for the tokens [t0,t1) of a chunk.
typedef struct { int b, h0, h1, t0, t1; } TssaPart;

typedef struct {
    void (*run)(const Tssa* a, TssaPart p);
    bool all_heads;   // each part has all heads and some of the tokens; else all tokens of the chunk and some heads
} TssaStage;

// Runs the stages on every chunk, the first chunk first or last. Each thread works on one sequence at a time. If there
// are fewer sequences than threads, each is divided into parts, and a stage starts when all threads have finished the
// previous one.
static inline void tssa_run(const TssaStage* stages, int n_stages, const Tssa* a, bool first_to_last, bool parallel) {
    const int threads = threads_max(), chunks = tssa_chunks(a->T);
    (void)parallel;   // unused without OpenMP
    #pragma omp parallel if (parallel)
    for (int b0 = 0; b0 < a->B; b0 += threads) {
        const int sequences = a->B - b0 < threads ? a->B - b0 : threads, parts = threads / sequences;
        for (int k = 0; k < chunks * n_stages; k++) {
            const TssaStage stage = stages[k % n_stages];
            const int chunk = first_to_last ? k / n_stages : chunks - 1 - k / n_stages, t0 = chunk * TSSA_CHUNK;
            const int n = a->T - t0 < TSSA_CHUNK ? a->T - t0 : TSSA_CHUNK, width = stage.all_heads ? n : a->NH;
            #pragma omp for schedule(static) nowait
            for (int i = 0; i < sequences * parts; i++) {
                const int from = i % parts * width / parts, to = (i % parts + 1) * width / parts, b = b0 + i / parts;
                stage.run(a, stage.all_heads ? (TssaPart){b, 0, a->NH, t0 + from, t0 + to}
                                             : (TssaPart){b, from, to, t0, t0 + n});
            }
            if (parts > 1) {
                #pragma omp barrier
            }
        }
    }
}

#endif
