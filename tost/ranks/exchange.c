// exchange.c: sums gradients over parts and ranks, and gathers parameters, moments and sums of squares.
#include "ranks/exchange.h"

#include <assert.h>
#include <math.h>

// ---- Host memory ----

static void host_add(Exchange* x, float* dst, const float* left, const float* right, size_t n) {
    (void)x;
    #pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < n; i++) dst[i] = left[i] + right[i];
}

static void host_end_part(Exchange* x, float* sum) {
    float* grad = x->grad;
    #pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < x->size; i++) {
        sum[i] = grad[i];
        grad[i] = 0.0f;
    }
}

static double sum_of_squares(const float* values, size_t n) {
    double sum = 0;
    #pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++) sum += (double)values[i] * values[i];
    return sum;
}

// Σ grad² of a unit. Of the table of bigrams, reads only touched rows; the others would add zeros.
static double unit_squares(const Exchange* x, Range unit) {
    const TostTensor* t = x->touched ? x->table : NULL;
    const Range table = t ? range_meet(unit, (Range){t->offset, t->offset + t->size}) : (Range){0, 0};
    if (range_size(table) == 0) return sum_of_squares(x->grad + unit.start, range_size(unit));
    const size_t C = (size_t)t->shape[1];
    double sum = sum_of_squares(x->grad + unit.start, table.start - unit.start);
    for (size_t start = table.start, end; start < table.end; start = end) {
        const size_t row = (start - t->offset) / C;
        end = min_size(t->offset + (row + 1) * C, table.end);
        if (x->touched[row]) sum += sum_of_squares(x->grad + start, end - start);
    }
    return sum + sum_of_squares(x->grad + table.end, unit.end - table.end);
}

static void host_squares(Exchange* x, double* sums, Range range) {
    #pragma omp parallel for schedule(static)
    for (size_t i = range.start; i < range.end; i += SLICE_UNIT)
        sums[(i - range.start) / SLICE_UNIT] = unit_squares(x, (Range){i, min_size(i + SLICE_UNIT, range.end)});
}

static void host_copy(const Exchange* x, void* dst, const void* src, size_t bytes) {
    (void)x;
    memcpy(dst, src, bytes);
}

static CommRequest* host_start(Exchange* x, const CommMessage* messages) { return x->comm->start(x->comm, messages); }

static CommRequest* host_gather(Exchange* x, float* flat, int k) {
    const Range own = exchange_slice(x, k);
    for (int r = 0; r < x->ranks; r++) {
        const Range theirs = slices_of(&x->slices, r, k);
        x->messages[r] = (CommMessage){flat + own.start, flat + theirs.start, range_size(own) * sizeof(float),
                                       range_size(theirs) * sizeof(float)};
    }
    return host_start(x, x->messages);
}

static const ExchangeMemory host_memory = {host_add, host_end_part, host_squares, host_copy, host_copy, host_start,
                                           host_gather, false};

static bool is_row_v(const Exchange* x, TostArray a, const TostTensor* t) {
    return a == TOST_V && tost_optimizer(t, x->optimizer) == TOST_ROWWISE;
}

// Finds what this rank owns of each tensor. m and v are packed in the same order, without the tensors that have none.
static void find_owned(Exchange* x, const TostTensors* tensors) {
    enum { ALIGN = 32 };   // elements: as in the flat array
    x->owned = xcalloc((size_t)tensors->count + (size_t)x->slices.buckets, sizeof *x->owned);
    for (int k = 0; k < x->slices.buckets; k++) {
        const Range slice = exchange_slice(x, k);
        for (int i = 0; i < tensors->count; i++) {
            const TostTensor* t = &tensors->tensor[i];
            const Range own = range_meet(slice, (Range){t->offset, t->offset + t->size});
            if (range_size(own) == 0) continue;
            const size_t size = (range_size(own) + ALIGN - 1) / ALIGN * ALIGN;
            const TostOptimizer optimizer = tost_optimizer(t, x->optimizer);
            x->owned[x->n_owned++] = (Owned){t, optimizer, k, range_size(own), own.start, x->m_size, x->v_size};
            if (optimizer != TOST_ROWWISE) x->m_size += size;
            if (optimizer == TOST_ADAMW) x->v_size += size;
        }
    }
    x->row_v = x->v_size;
    for (int i = 0; i < tensors->count; i++)
        if (tensors->tensor[i].row == TOST_ROW_bigram) x->table = &tensors->tensor[i];
    if (x->table && is_row_v(x, TOST_V, x->table)) x->v_size += (size_t)x->table->shape[0];
}

Exchange exchange_new(const TostTensors* tensors, TostOptimizer optimizer, TostComm* comm, int parts) {
    Exchange x = {.memory = &host_memory, .comm = comm, .rank = comm_rank(comm), .ranks = comm_size(comm),
                  .parts = parts > 1 ? parts : 1, .optimizer = optimizer, .size = tensors->flat_size};
    x.slices = slices_new(tensors, x.ranks);
    x.gathers = xcalloc((size_t)x.slices.buckets, sizeof *x.gathers);
    x.messages = xcalloc((size_t)x.ranks, sizeof *x.messages);
    x.row = xcalloc((size_t)x.ranks, sizeof *x.row);
    find_owned(&x, tensors);
    return x;
}

size_t exchange_elements(const Exchange* x, TostArray a) {
    return a < TOST_M ? x->size : a == TOST_V ? x->v_size : x->m_size;
}

void exchange_layout(Exchange* x, Arena* arena, float* grad) {
    size_t largest = 0;
    for (int k = 0; k < x->slices.buckets; k++) largest = max_size(largest, range_size(exchange_slice(x, k)));
    x->grad = grad;
    for (int j = 0; (x->parts - 1) >> j > 0; j++) x->level[j] = arena_alloc(arena, x->size * sizeof(float));
    for (int i = 0; x->ranks > 1 && i < EXCHANGE_UNDER_WAY; i++)
        x->received[i] = arena_alloc(arena, (size_t)x->ranks * largest * sizeof(float));
    x->squares = arena_alloc(arena, slice_units(exchange_owned(x)) * sizeof(double));
}

void exchange_free(Exchange* x) {
    free(x->slices.bucket);
    free(x->gathers);
    free(x->messages);
    free(x->row);
    free(x->owned);
}

void exchange_begin(Exchange* x) {
    x->part = x->ready = x->started = x->summed = 0;
    x->from = x->size;
}

// ---- Gradients ----

// Adds the gradients of a complete part to those of the parts before it: like a binary counter, in which level j holds
// the sum of 2^j parts. Then starts the next part.
static void finish_part(Exchange* x) {
    int j = 0;
    for (; x->part >> j & 1; j++) x->memory->add(x, x->grad, x->level[j], x->grad, x->size);
    x->memory->end_part(x, x->level[j]);
    x->part++;
}

// Completes this rank's sum over its parts from element `from` on. grad holds those of the last part.
static void add_parts(Exchange* x, size_t from) {
    float* grad = x->grad + from;
    for (int j = 0; x->part >> j > 0; j++)
        if (x->part >> j & 1) x->memory->add(x, grad, x->level[j] + from, grad, x->from - from);
    x->from = from;
}

static float* row_of(const Exchange* x, int k, int rank) {
    const Range own = exchange_slice(x, k);
    return rank == x->rank ? x->grad + own.start : x->received[k % EXCHANGE_UNDER_WAY] + rank * range_size(own);
}

// Sends each rank its slice of the bucket and receives the other ranks' gradients of this rank's slice.
static void start_bucket(Exchange* x, int k) {
    const size_t bytes = range_size(exchange_slice(x, k)) * sizeof(float);
    for (int r = 0; r < x->ranks; r++) {
        const Range theirs = slices_of(&x->slices, r, k);
        x->messages[r] = (CommMessage){x->grad + theirs.start, row_of(x, k, r), range_size(theirs) * sizeof(float),
                                       bytes};
    }
    x->under_way[k % EXCHANGE_UNDER_WAY] = x->memory->start(x, x->messages);
}

// The tree over the rows of the ranks (slices.h). The result is in this rank's row, the others are overwritten.
static void sum_bucket(Exchange* x, int k) {
    const size_t size = range_size(exchange_slice(x, k));
    float **row = x->row, *own = row_of(x, k, x->rank);
    if (size == 0) return;
    for (int r = 0; r < x->ranks; r++) row[r] = row_of(x, k, r);
    for (int step = 1; step < x->ranks; step *= 2)
        for (int i = 0; i + step < x->ranks; i += 2 * step) {
            float *left = row[i], *right = row[i + step];
            row[i] = right == own ? own : left;
            x->memory->add(x, row[i], left, right, size);
        }
}

// Starts and sums buckets as far as it can without waiting. wait: until all ready ones are summed.
static void advance(Exchange* x, bool wait) {
    for (;;) {
        while (x->started < x->ready && x->started < x->summed + EXCHANGE_UNDER_WAY) start_bucket(x, x->started++);
        if (x->summed == x->started) return;
        CommRequest** oldest = &x->under_way[x->summed % EXCHANGE_UNDER_WAY];
        if (wait) comm_wait(x->comm, oldest);
        else if (*oldest && !x->comm->test(x->comm, oldest, NULL)) return;
        sum_bucket(x, x->summed++);
    }
}

void exchange_gradients(Exchange* x, TostEnd end, size_t from) {
    if (end == TOST_PART_ENDS && from == 0) finish_part(x);
    if (end != TOST_STEP_ENDS) return;
    add_parts(x, from);
    if (x->ranks == 1) return;
    while (x->ready < x->slices.buckets && x->slices.bucket[x->ready].start >= from) x->ready++;
    advance(x, from == 0);
}

double exchange_norm(Exchange* x) {
    const Slices* s = &x->slices;
    size_t most = 0;   // units of a rank
    for (int r = 0; r < x->ranks; r++) most = max_size(most, slice_units(slices_packed(s, r, -1)));
    double total = 0, *all = xcalloc(x->ranks * most, sizeof *all), *mine = all + x->rank * most;
    for (int k = 0; k < s->buckets; k++) {   // gaps between tensors are zero
        const Range own = exchange_slice(x, k);
        if (range_size(own) > 0)
            x->memory->squares(x, x->squares + slices_packed(s, x->rank, k) / SLICE_UNIT, own);
    }
    x->memory->to_host(x, mine, x->squares, slice_units(exchange_owned(x)) * sizeof *mine);
    comm_allgather(x->comm, all, mine, most * sizeof *all);
    for (int k = s->buckets - 1; k >= 0; k--)   // in the order of the flat array
        for (int r = 0; r < x->ranks; r++) {
            const double* sums = all + r * most + slices_packed(s, r, k) / SLICE_UNIT;
            const size_t units = slice_units(range_size(slices_of(s, r, k)));
            for (size_t i = 0; i < units; i++) total += sums[i];
        }
    free(all);
    return sqrt(total);
}

// ---- Tensors ----

static size_t start_in(const Owned* own, TostArray a) {
    return a < TOST_M ? own->flat_offset : a == TOST_V ? own->v_offset : own->m_offset;
}

void exchange_update(Exchange* x, float* gathered, OwnedUpdate* update, TostModel* model, const TostUpdate* a) {
    for (int k = 0, i = 0; k < x->slices.buckets; k++) {
        while (i < x->n_owned && x->owned[i].bucket == k) {
            Owned run = x->owned[i++];
            for (const Owned* next; x->memory->merges && i < x->n_owned; i++) {
                next = &x->owned[i];
                if (next->bucket != k || next->optimizer != run.optimizer) break;
                run.size = next->flat_offset + next->size - run.flat_offset;
            }
            update(model, a, &run);
        }
        if (x->ranks > 1) x->gathers[k] = x->memory->gather(x, gathered, k);
    }
    for (int k = 0; x->ranks > 1 && k < x->slices.buckets; k++)
        comm_wait(x->comm, &x->gathers[k]);
}

void exchange_put(const Exchange* x, TostArray a, float* array, const TostTensor* t, const float* src) {
    assert(tost_elements(t, a, x->optimizer) > 0);
    if (is_row_v(x, a, t)) x->memory->from_host(x, array + x->row_v, src, (size_t)t->shape[0] * sizeof *src);
    else for (const Owned* own = x->owned; own < x->owned + x->n_owned; own++)
        if (own->tensor->offset == t->offset)
            x->memory->from_host(x, array + start_in(own, a), src + (own->flat_offset - t->offset),
                                 own->size * sizeof *src);
}

void exchange_collect(float* dst, const Exchange* x, TostArray a, const float* array, const TostTensor* t) {
    const Range tensor = {t->offset, t->offset + t->size};
    assert(tost_elements(t, a, x->optimizer) > 0);
    if (is_row_v(x, a, t)) {
        if (x->rank == 0) x->memory->to_host(x, dst, array + x->row_v, (size_t)t->shape[0] * sizeof *dst);
        return;
    }
    float* host = x->rank == 0 ? dst : xmalloc(t->size * sizeof *host);   // other ranks set what they own
    for (const Owned* own = x->owned; own < x->owned + x->n_owned; own++) {
        if (own->tensor->offset != t->offset) continue;
        float* mine = host + (own->flat_offset - t->offset);
        x->memory->to_host(x, mine, array + start_in(own, a), own->size * sizeof *mine);
    }
    for (int k = 0; x->ranks > 1 && k < x->slices.buckets; k++) {
        if (range_size(range_meet(x->slices.bucket[k], tensor)) == 0) continue;
        memset(x->messages, 0, (size_t)x->ranks * sizeof *x->messages);
        for (int r = 1; r < x->ranks; r++) {
            const Range part = range_meet(slices_of(&x->slices, r, k), tensor);
            float* values = host + (range_size(part) > 0 ? part.start - tensor.start : 0);
            const size_t bytes = range_size(part) * sizeof *values;
            if (x->rank == r) x->messages[0] = (CommMessage){.send = values, .send_bytes = bytes};
            if (x->rank == 0) x->messages[r] = (CommMessage){.receive = values, .receive_bytes = bytes};
        }
        comm_exchange(x->comm, x->messages);
    }
    if (x->rank > 0) free(host);
}
