// slices.c: buckets, slices and parts of the ranks, and the tree sum.
#include "ranks/slices.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/memory.h"

static size_t min_size(size_t a, size_t b) { return a < b ? a : b; }

// The first element of each layer and of what follows the last one, from the end: where the gradients become complete.
// The last entry is 0. free()
static size_t* completed_from(int* n, const TostTensors* t) {
    size_t* from = xmalloc(((size_t)t->count + 1) * sizeof *from);
    *n = 0;
    for (int i = t->count - 1; i > 0; i--)
        if (t->tensor[i].layer != t->tensor[i - 1].layer) from[(*n)++] = t->tensor[i].offset;
    from[(*n)++] = 0;
    return from;
}

// Cuts the units [start, end) into buckets, from the end. Returns their number; bucket NULL: only counts.
static int cut(Range* bucket, size_t start, size_t end, size_t elements) {
    const size_t n = (end - start + BUCKET_UNITS - 1) / BUCKET_UNITS;
    for (size_t k = 0; bucket && k < n; k++) {
        const size_t first = start + (end - start) * (n - 1 - k) / n, last = start + (end - start) * (n - k) / n;
        bucket[k] = (Range){first * SLICE_UNIT, min_size(last * SLICE_UNIT, elements)};
    }
    return (int)n;
}

static int cut_all(Range* bucket, const TostTensors* t) {
    int stages, buckets = 0;
    size_t *from = completed_from(&stages, t), end = (t->flat_size + SLICE_UNIT - 1) / SLICE_UNIT;
    for (int i = 0; i < stages; i++) {
        const size_t start = min_size((from[i] + SLICE_UNIT - 1) / SLICE_UNIT, end);
        buckets += cut(bucket ? bucket + buckets : NULL, start, end, t->flat_size);
        end = start;
    }
    free(from);
    return buckets;
}

Slices slices_new(const TostTensors* tensors, int ranks) {
    Slices s = {.ranks = ranks, .buckets = ranks > 1 ? cut_all(NULL, tensors) : 1};
    s.bucket = xmalloc((size_t)s.buckets * sizeof *s.bucket);
    s.packed = xmalloc((size_t)ranks * s.buckets * sizeof *s.packed);
    s.total = xcalloc((size_t)ranks, sizeof *s.total);
    if (ranks > 1) cut_all(s.bucket, tensors);
    else s.bucket[0] = (Range){0, tensors->flat_size};
    for (int r = 0; r < ranks; r++) {
        for (int k = s.buckets - 1; k >= 0; k--) {
            s.packed[(size_t)r * s.buckets + k] = s.total[r];
            s.total[r] += range_size(slices_of(&s, r, k));
        }
    }
    return s;
}

void slices_free(Slices* s) {
    free(s->bucket);
    free(s->packed);
    free(s->total);
    *s = (Slices){0};
}

Range slices_of(const Slices* s, int rank, int k) {
    const Range b = s->bucket[k];
    const size_t units = (range_size(b) + SLICE_UNIT - 1) / SLICE_UNIT, ranks = (size_t)s->ranks, r = (size_t)rank;
    return (Range){min_size(b.start + units * r / ranks * SLICE_UNIT, b.end),
                   min_size(b.start + units * (r + 1) / ranks * SLICE_UNIT, b.end)};
}

int slices_complete(const Slices* s, size_t from) {
    int k = 0;
    while (k < s->buckets && s->bucket[k].start >= from) k++;   // mutant: bucket_left_out
    return k;
}

// ---------------------------------------------------------------------------------------------
// Parts

static bool fits(int64_t parts, int ranks) {
    const int64_t each = parts / ranks;
    return parts > 0 && (ranks == 1 || (parts % ranks == 0 && (each & (each - 1)) == 0));
}

bool parts_check(int parts, int ranks, TostError* err) {
    if (fits(parts, ranks)) return true;
    int64_t below = parts, above = parts;
    while (below > 0 && !fits(below, ranks)) below--;
    while (!fits(above, ranks)) above++;
    char lower[24] = "";
    if (below > 0) snprintf(lower, sizeof lower, "%lld or ", (long long)below);
    return tost_error(err, "--parts %d cannot be divided among %d ranks: use --parts %s%lld (a power of two per rank) "
                      "or a number of ranks that divides %d", parts, ranks, lower, (long long)above, parts);
}

void tree_add(float* dst, const float* left, const float* right, size_t n) {
    #pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < n; i++) dst[i] = left[i] + right[i];
}

void tree_sum(float* const* row, int n, size_t size) {
    for (int step = 1; step < n; step *= 2)
        for (int i = 0; i + step < n; i += 2 * step)
            tree_add(row[i], row[i], row[i + step], size);   // mutant: wrong_tree
}
