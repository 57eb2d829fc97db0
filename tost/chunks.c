// chunks.c: cuts sequences into chunks and runs the passes of an engine over them.
#include "chunks.h"

#include "base/memory.h"

// The states of an engine: that of decoding, and the one between two chunks or, in backward, its gradient. Training in
// chunks also has the state before each chunk but the first.
enum { DECODE, PASS, BEFORE_SECOND };

static int chunks_of(int T, int max_chunk) { return T / max_chunk + (T % max_chunk != 0); }

int chunks_states(int seq, int max_chunk, bool training) {
    const int chunks = chunks_of(seq, max_chunk);
    return training && chunks > 1 ? BEFORE_SECOND + chunks - 1 : PASS + 1;
}

// Copies columns [start,start+n) of an array (B,T) to an array (B,n), unless they are all.
static const int32_t* columns(int32_t* copy, const int32_t* rows, int B, int T, int start, int n) {
    if (!rows || n == T) return rows;
    for (int b = 0; b < B; b++) memcpy(copy + (size_t)b * n, rows + (size_t)b * T + start, n * sizeof *copy);
    return copy;
}

// Chunk k of whole sequences, valid until the next call. Call it for chunk 0 first, with *memory NULL: it allocates
// space for the columns there, which the caller frees.
static TostChunk chunk(int32_t** memory, const Chunks* p, const TostChunk* all, int k) {
    const int start = k * p->max_chunk, n = all->T - start < p->max_chunk ? all->T - start : p->max_chunk;
    const size_t size = (size_t)all->B * n;
    if (!*memory) *memory = xmalloc(2 * size * sizeof **memory);   // no chunk is longer than the first
    return (TostChunk){columns(*memory, all->inputs, all->B, all->T, start, n),
                       columns(*memory + size, all->targets, all->B, all->T, start, n), all->B, n, all->first + start};
}

static bool abandoned(const Chunks* p, int passes, int all) {
    return p->should_stop && p->should_stop(p->context, (double)passes / all);
}

bool chunks_loss(double* sums, Chunks* p, const int32_t* inputs, const int32_t* targets, int B, int T) {
    const TostChunk all = {inputs, targets, B, T, 0};
    int32_t* memory = NULL;
    double* losses = sums ? xmalloc((size_t)B * p->max_chunk * sizeof *losses) : NULL;
    const int chunks = chunks_of(T, p->max_chunk);
    bool ok = true;
    for (int b = 0; sums && b < B; b++) sums[b] = 0;
    for (int k = 0; k < chunks && ok; k++) {
        const TostChunk next = chunk(&memory, p, &all, k);
        p->engine->forward(p->model, &next, k > 0 ? PASS : TOST_NO_STATE, k + 1 < chunks ? PASS : TOST_NO_STATE);
        p->engine->losses(losses, p->model);
        for (int i = 0; sums && i < B * next.T; i++) sums[i / next.T] += losses[i];
        ok = k + 1 == chunks || !abandoned(p, k + 1, chunks);
    }
    free(losses);
    free(memory);
    return ok;
}

static int state_before(int k) { return k == 0 ? TOST_NO_STATE : BEFORE_SECOND + k - 1; }

bool chunks_train(Chunks* p, const int32_t* inputs, const int32_t* targets, int B, int T, float grad_scale,
                  TostEnd end) {
    const TostChunk all = {inputs, targets, B, T, 0};
    int32_t* memory = NULL;
    const int chunks = chunks_of(T, p->max_chunk), passes = 2 * chunks - 1;
    bool ok = true;
    for (int k = 0; k + 1 < chunks && ok; k++) {
        const TostChunk next = chunk(&memory, p, &all, k);
        p->engine->forward(p->model, &next, state_before(k), state_before(k + 1));
        ok = !abandoned(p, k + 1, passes);
    }
    for (int k = chunks - 1; k >= 0 && ok; k--) {
        const TostChunk next = chunk(&memory, p, &all, k);
        const int after = k + 1 < chunks ? PASS : TOST_NO_STATE, before = k > 0 ? PASS : TOST_NO_STATE;
        p->engine->train_forward(p->model, &next, state_before(k), grad_scale);
        p->engine->train_backward(p->model, after, before, k > 0 ? TOST_MORE : end);
        ok = k == 0 || !abandoned(p, passes - k, passes);
    }
    free(memory);
    return ok;
}

void chunks_begin(Chunks* p, int n) {
    p->n = n;
    p->position = 0;
}

// Continues the decode state by T tokens per sequence.
static void read_chunk(Chunks* p, const int32_t* tokens, const int32_t* targets, int T) {
    const TostChunk next = {tokens, targets, p->n, T, p->position};
    p->engine->forward(p->model, &next, p->position > 0 ? DECODE : TOST_NO_STATE, DECODE);
    p->position += T;
}

void chunks_read(float* logits, Chunks* p, const int32_t* tokens, int T) {
    const TostChunk all = {tokens, NULL, p->n, T, p->position};
    int32_t* memory = NULL;
    for (int k = 0; k < chunks_of(T, p->max_chunk); k++) {
        const TostChunk next = chunk(&memory, p, &all, k);
        read_chunk(p, next.inputs, NULL, next.T);
    }
    if (logits) p->engine->last_logits(logits, p->model);
    free(memory);
}

void chunks_read_losses(double* losses, Chunks* p, const int32_t* tokens, const int32_t* targets, int T) {
    read_chunk(p, tokens, targets, T);
    p->engine->losses(losses, p->model);
}

void chunks_score(double* losses, Chunks* p, const int32_t* tokens, const int32_t* targets, int copies, int T) {
    const int B = p->n * copies, chunks = chunks_of(T, p->max_chunk);
    const TostChunk all = {tokens, targets, B, T, p->position};
    int32_t* memory = NULL;
    double* of_chunk = xmalloc((size_t)B * p->max_chunk * sizeof *of_chunk);
    if (p->position > 0) p->engine->copy_state(p->model, PASS, DECODE, B, copies);
    for (int k = 0; k < chunks; k++) {
        const TostChunk next = chunk(&memory, p, &all, k);
        p->engine->forward(p->model, &next, k > 0 || p->position > 0 ? PASS : TOST_NO_STATE,
                           k + 1 < chunks ? PASS : TOST_NO_STATE);
        p->engine->losses(of_chunk, p->model);
        for (int b = 0; b < B; b++)
            memcpy(losses + (size_t)b * T + (size_t)k * p->max_chunk, of_chunk + (size_t)b * next.T,
                   next.T * sizeof *losses);
    }
    free(of_chunk);
    free(memory);
}
