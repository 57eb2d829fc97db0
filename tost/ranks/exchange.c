// exchange.c: sums gradients over parts and ranks, and gathers parameters, moments and block sums.
#include "ranks/exchange.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

static size_t block_count(Range r) { return (range_size(r) + SLICE_UNIT - 1) / SLICE_UNIT; }

Exchange exchange_new(const TostTensors* tensors, TostComm* comm, int parts) {
    Exchange x = {.comm = comm, .rank = comm_rank(comm), .ranks = comm_size(comm), .parts = parts > 1 ? parts : 1,
                  .size = tensors->flat_size};
    x.slices = slices_new(tensors, x.ranks);
    x.gathers = xcalloc((size_t)x.slices.buckets, sizeof *x.gathers);
    return x;
}

void exchange_layout(Exchange* x, Arena* arena, float* grad) {
    size_t largest = 0;
    for (int k = 0; k < x->slices.buckets; k++) {
        const size_t slice = range_size(exchange_slice(x, k));
        if (slice > largest) largest = slice;
    }
    x->grad = grad;
    for (int j = 0; (x->parts - 1) >> j > 0; j++) x->level[j] = arena_alloc(arena, x->size * sizeof(float));
    for (int i = 0; x->ranks > 1 && i < EXCHANGE_UNDER_WAY; i++)
        x->received[i] = arena_alloc(arena, (size_t)x->ranks * largest * sizeof(float));
}

void exchange_free(Exchange* x) {
    slices_free(&x->slices);
    free(x->gathers);
}

void exchange_begin(Exchange* x) {
    x->part = x->ready = x->started = x->summed = 0;
    x->from = x->size;
}

// ---------------------------------------------------------------------------------------------
// Gradients

// Adds the gradients of a complete part to those of the parts before it: like a binary counter, in which level j holds
// the sum of 2^j parts. Then starts the next part.
static void finish_part(Exchange* x) {
    float* grad = x->grad;
    int j = 0;
    for (; x->part >> j & 1; j++) tree_add(grad, x->level[j], grad, x->size);   // mutant: parts_in_a_row
    float* sum = x->level[j];
    #pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < x->size; i++) {
        sum[i] = grad[i];
        grad[i] = 0.0f;
    }
    x->part++;
}

// Completes this rank's sum over its parts from element `from` on. grad holds those of the last part.
static void add_parts(Exchange* x, size_t from) {
    for (int j = 0; x->part >> j > 0; j++)
        if (x->part >> j & 1) tree_add(x->grad + from, x->level[j] + from, x->grad + from, x->from - from);
    x->from = from;
}

static float* row_of(const Exchange* x, int k, int rank) {
    const Range own = exchange_slice(x, k);
    return rank == x->rank ? x->grad + own.start : x->received[k % EXCHANGE_UNDER_WAY] + rank * range_size(own);
}

// Sends each rank its slice of the bucket and receives the other ranks' gradients of this rank's slice.
static void start_bucket(Exchange* x, int k) {
    const size_t bytes = range_size(exchange_slice(x, k)) * sizeof(float);
    CommMessage* messages = xcalloc((size_t)x->ranks, sizeof *messages);
    for (int r = 0; r < x->ranks; r++) {
        const Range theirs = slices_of(&x->slices, r, k);   // mutant: wrong_slice
        messages[r] = (CommMessage){x->grad + theirs.start, row_of(x, k, r), range_size(theirs) * sizeof(float), bytes};
    }
    x->under_way[k % EXCHANGE_UNDER_WAY] = x->comm->start(x->comm, messages);
    free(messages);
}

static void sum_bucket(Exchange* x, int k) {
    const Range own = exchange_slice(x, k);
    float** row = xmalloc((size_t)x->ranks * sizeof *row);
    for (int r = 0; r < x->ranks; r++) row[r] = row_of(x, k, r);
    tree_sum(row, x->ranks, range_size(own));
    if (x->rank != 0) memcpy(x->grad + own.start, row[0], range_size(own) * sizeof(float));
    free(row);
}

// Starts and sums the buckets that can be. wait: until all ready ones are summed.
static void advance(Exchange* x, bool wait) {
    for (;;) {
        while (x->started < x->ready && x->started < x->summed + EXCHANGE_UNDER_WAY) start_bucket(x, x->started++);
        if (x->summed == x->started) return;
        CommRequest** oldest = &x->under_way[x->summed % EXCHANGE_UNDER_WAY];
        if (wait) comm_wait(x->comm, oldest);   // mutant: missing_wait
        else if (!x->comm->test(x->comm, oldest, NULL)) return;
        sum_bucket(x, x->summed++);
    }
}

void exchange_gradients(Exchange* x, TostEnd end, size_t from) {
    if (end == TOST_PART_ENDS && from == 0) finish_part(x);
    if (end != TOST_STEP_ENDS) return;
    add_parts(x, from);
    if (x->ranks == 1) return;
    x->ready = slices_complete(&x->slices, from);
    advance(x, from == 0);
}

// ---------------------------------------------------------------------------------------------
// Gathering

// Sum of one number per block of SLICE_UNIT elements, in the order of the blocks. own: the numbers of this rank's
// blocks, in the order in which its slices are packed.
static double sum_blocks(const Exchange* x, const double* own) {
    const int buckets = x->slices.buckets;
    double **sums = xcalloc((size_t)x->ranks, sizeof *sums), total = 0;
    CommMessage* messages = xcalloc((size_t)x->ranks, sizeof *messages);
    const size_t bytes = (exchange_owned(x) + SLICE_UNIT - 1) / SLICE_UNIT * sizeof(double);
    for (int r = 0; r < x->ranks; r++) {
        const size_t theirs = (x->slices.total[r] + SLICE_UNIT - 1) / SLICE_UNIT * sizeof(double);
        sums[r] = xmalloc(theirs + 1);
        messages[r] = (CommMessage){own, sums[r], bytes, theirs};
    }
    memcpy(sums[x->rank], own, bytes);
    if (x->ranks > 1) comm_exchange(x->comm, messages);
    size_t* next = xcalloc((size_t)x->ranks, sizeof *next);
    for (int k = buckets - 1; k >= 0; k--)   // in the order of the flat array
        for (int r = 0; r < x->ranks; r++)
            for (size_t i = block_count(slices_of(&x->slices, r, k)); i > 0; i--) total += sums[r][next[r]++];
    for (int r = 0; r < x->ranks; r++) free(sums[r]);
    free(next);
    free(messages);
    free(sums);
    return total;
}

static double sum_of_squares(const float* values, size_t n) {
    double sum = 0;
    #pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++) sum += (double)values[i] * values[i];
    return sum;
}

double exchange_norm(const Exchange* x) {
    double* sums = xmalloc((exchange_owned(x) / SLICE_UNIT + 1) * sizeof *sums);   // gaps between tensors are zero
    size_t n = 0;
    for (int k = x->slices.buckets - 1; k >= 0; k--) {
        const Range own = exchange_slice(x, k);
        const size_t blocks = block_count(own);
        #pragma omp parallel for schedule(static)
        for (size_t i = 0; i < blocks; i++) {
            const size_t start = own.start + i * SLICE_UNIT;
            const Range block = range_meet(own, (Range){start, start + SLICE_UNIT});
            sums[n + i] = sum_of_squares(x->grad + block.start, range_size(block));
        }
        n += blocks;
    }
    const double total = sum_blocks(x, sums);
    free(sums);
    return sqrt(total);
}

// Starts sending this rank's slice of bucket k of a flat array to all; the other slices are overwritten.
static void gather_bucket(Exchange* x, float* flat, int k) {
    if (x->ranks == 1) return;
    const Range own = exchange_slice(x, k);
    CommMessage* messages = xcalloc((size_t)x->ranks, sizeof *messages);
    for (int r = 0; r < x->ranks; r++) {
        const Range theirs = slices_of(&x->slices, r, k);
        messages[r] = (CommMessage){flat + own.start, flat + theirs.start, range_size(own) * sizeof(float),
                                    range_size(theirs) * sizeof(float)};
    }
    x->gathers[k] = x->comm->start(x->comm, messages);
    free(messages);
}

// What this rank owns of tensor t in bucket k: its start in the flat arrays and in the array of its slices.
typedef struct { size_t at, packed, size; } Owned;
static Owned own_range(const Exchange* x, int k, const TostTensor* t) {
    const Range own = exchange_slice(x, k), r = range_meet(own, (Range){t->offset, t->offset + t->size});
    return (Owned){r.start, exchange_packed(x, k) + r.start - own.start, range_size(r)};
}

void exchange_update(Exchange* x, float* params, const TostTensors* tensors, SliceUpdate* update, TostModel* model,
                     const void* step) {
    for (int k = 0; k < x->slices.buckets; k++) {
        for (int i = 0; i < tensors->count; i++) {
            const Owned own = own_range(x, k, &tensors->tensor[i]);
            if (own.size > 0) update(model, step, &tensors->tensor[i], own.at, own.packed, own.size);
        }
        gather_bucket(x, params, k);
    }
    for (int k = 0; x->ranks > 1 && k < x->slices.buckets; k++)
        comm_wait(x->comm, &x->gathers[k]);   // mutant: gather_not_awaited
}

void exchange_put(const Exchange* x, float* slices, const TostTensor* t, const float* src) {
    for (int k = 0; k < x->slices.buckets; k++) {
        const Owned own = own_range(x, k, t);
        if (own.size > 0) memcpy(slices + own.packed, src + (own.at - t->offset), own.size * sizeof *src);
    }
}

void exchange_collect(float* dst, const Exchange* x, const float* array, bool packed, const TostTensor* t) {
    const Range tensor = {t->offset, t->offset + t->size};
    CommMessage* messages = xcalloc((size_t)x->ranks, sizeof *messages);
    for (int k = 0; k < x->slices.buckets; k++) {
        if (range_size(range_meet(x->slices.bucket[k], tensor)) == 0) continue;
        const Owned own = own_range(x, k, t);
        const float* from = array + (packed ? own.packed : own.at);
        memset(messages, 0, (size_t)x->ranks * sizeof *messages);
        for (int r = 1; r < x->ranks && x->rank == 0; r++) {
            const Range theirs = range_meet(slices_of(&x->slices, r, k), tensor);
            messages[r] = (CommMessage){.receive = dst + (theirs.start - tensor.start),
                                        .receive_bytes = range_size(theirs) * sizeof(float)};
        }
        if (x->rank == 0) memcpy(dst + (own.at - t->offset), from, own.size * sizeof(float));
        else messages[0] = (CommMessage){.send = from, .send_bytes = own.size * sizeof(float)};
        if (x->ranks > 1) comm_exchange(x->comm, messages);
    }
    free(messages);
}
