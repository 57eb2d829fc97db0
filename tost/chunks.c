// chunks.c: sums over the chunks of a sequence.
#include "chunks.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 23 };   // maximum elements of grad exchanged at a time

Chunks chunks_new(const TostConfig* c, TostComm* comm, int ranks) {
    TostConfig one_layer = *c;
    one_layer.n_layer = one_layer.block_size = 1;
    const int size = ranks > 1 ? ranks : 1;
    return (Chunks){.comm = comm, .ranks = size, .rank = comm_rank(comm) % size, .tensors = tost_tensors(&one_layer)};
}

void chunks_free(Chunks* x) { tost_tensors_free(&x->tensors); }

void chunks_layout(Chunks* x, Arena* arena, int max_batch) {
    const size_t size = x->tensors.flat_size, piece = size < PIECE ? size : PIECE;
    x->grad = arena_alloc(arena, size * sizeof(float));
    if (x->ranks == 1) return;
    x->received = arena_alloc(arena, (piece + (size_t)x->ranks) * sizeof(float));
    x->cuts = arena_alloc(arena, (size_t)x->ranks * (size_t)max_batch * sizeof *x->cuts);
}

// ---------------------------------------------------------------------------------------------
// Gradients

TostParams chunks_grads(const Chunks* x, const TostParams* whole) {
    TostParams grads = tost_params(&x->tensors, x->grad, 0);
    grads.wpe = whole->wpe;
    grads.denom_bias = whole->denom_bias;
    return grads;
}

// Sends each rank its share of the elements r and receives this rank's share from the others. Returns this share;
// row[q]: its gradients of chunk q.
static Range exchange_piece(const float** row, Chunks* x, Range r) {
    CommMessage* messages = xcalloc((size_t)comm_size(x->comm), sizeof *messages);
    const size_t n = range_size(r), K = (size_t)x->ranks, q = (size_t)x->rank;
    const Range own = {r.start + n * q / K, r.start + n * (q + 1) / K};
    for (size_t k = 0; k < K; k++) {
        const Range theirs = {r.start + n * k / K, r.start + n * (k + 1) / K};
        float* received = x->received + k * range_size(own);
        messages[(size_t)comm_rank(x->comm) - q + k] =
            (CommMessage){x->grad + theirs.start, received, range_size(theirs) * sizeof(float),
                          range_size(own) * sizeof(float)};
        row[k] = k == q ? x->grad + own.start : received;
    }
    comm_exchange(x->comm, messages);
    free(messages);
    return own;
}

// dst[i] += row[k][at + i] for all rows k, the last chunk's first
static void add_rows(float* dst, const float* const* row, size_t at, size_t n, int rows) {
    #pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < n; i++) {
        float sum = dst[i];
        for (int k = rows - 1; k >= 0; k--) sum += row[k][at + i];   // mutant: chunks_from_first
        dst[i] = sum;
    }
}

void chunks_add_grads(Chunks* x, float* grad, const TostTensors* tensors, int l, int layers) {
    const size_t layer = tost_row_offset(&x->tensors, TOST_ROW_gamma1, 0), all = x->tensors.flat_size;
    const size_t start = l < 0 ? 0 : layer, head = tost_row_offset(&x->tensors, TOST_ROW_ln_f_w, 0);
    const size_t end = l < 0 ? layer : l + 1 < layers ? head : all;
    const float** row = xmalloc((size_t)x->ranks * sizeof *row);
    for (Range r = {start, 0}; r.start < end; r.start = r.end) {
        r.end = end - r.start < PIECE ? end : r.start + PIECE;
        Range own = r;
        row[0] = x->grad + r.start;
        if (x->ranks > 1) own = exchange_piece(row, x, r);
        for (int i = 0; i < x->tensors.count; i++) {
            const TostTensor* t = &x->tensors.tensor[i];
            const Range part = range_meet(own, (Range){t->offset, t->offset + t->size});
            if (range_size(part) == 0 || t->row == TOST_ROW_wpe || t->row == TOST_ROW_denom_bias) continue;
            add_rows(grad + tost_row_offset(tensors, t->row, l) + (part.start - t->offset), row,
                     part.start - own.start, range_size(part), x->ranks);
        }
    }
    free(row);
    memset(x->grad + start, 0, (end - start) * sizeof *x->grad);
}

void chunks_clear_grads(Chunks* x) {
    if (x->grad) memset(x->grad, 0, x->tensors.flat_size * sizeof *x->grad);
}

// ---------------------------------------------------------------------------------------------
// Sums

void chunks_find_cuts(Chunks* x, const int32_t* tokens, int B, int T, int document_token) {
    bool* own = xcalloc((size_t)B, sizeof *own);
    for (int b = 0; b < B; b++)
        for (int t = 0; t < T; t++) own[b] = own[b] || tokens[(size_t)b * T + t] == document_token;
    comm_group_gather(x->comm, x->ranks, x->cuts, own, (size_t)B * sizeof *own);
    free(own);
}

void chunks_sum_before(double* sums, const double* own, int B, size_t n, const Chunks* x, ChunkOrder order) {
    const size_t size = (size_t)B * n;
    double* all = xmalloc((size_t)x->ranks * size * sizeof *all);
    comm_group_gather(x->comm, x->ranks, all, own, size * sizeof *own);
    memset(sums, 0, size * sizeof *sums);
    const int step = order == CHUNKS_FROM_FIRST ? 1 : -1;
    for (int k = step > 0 ? 0 : x->ranks - 1; k != x->rank; k += step) {   // mutant: adjoint_not_sent
        for (int b = 0; b < B; b++) {
            double* sum = sums + b * n;
            if (x->cuts[k * B + b]) memset(sum, 0, n * sizeof *sum);   // mutant: cut_ignored
            for (size_t i = 0; i < n; i++) sum[i] += all[k * size + b * n + i];
        }
    }
    free(all);
}

void chunks_add_loss(double* sum, int64_t* count, double own, int64_t own_count, const Chunks* x, ChunkOrder order) {
    typedef struct { double sum; int64_t count; } Loss;
    const Loss mine = {own, own_count};
    Loss* all = xmalloc((size_t)x->ranks * sizeof *all);
    comm_group_gather(x->comm, x->ranks, all, &mine, sizeof mine);
    for (int i = 0; i < x->ranks; i++) {
        const Loss* loss = &all[order == CHUNKS_FROM_FIRST ? i : x->ranks - 1 - i];
        *sum += loss->sum;
        *count += loss->count;
    }
    free(all);
}
