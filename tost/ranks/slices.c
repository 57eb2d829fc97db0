// slices.c: buckets, slices and parts of the ranks.
#include "ranks/slices.h"

#include "base/memory.h"

// Cuts the units [start, end) into buckets, from the end.
static void cut(Slices* s, size_t start, size_t end, size_t elements) {
    const size_t n = (end - start + BUCKET_UNITS - 1) / BUCKET_UNITS;
    for (size_t k = n; k > 0; k--) {
        const size_t first = start + (end - start) * (k - 1) / n, last = start + (end - start) * k / n;
        s->bucket[s->buckets++] = (Range){first * SLICE_UNIT, min_size(last * SLICE_UNIT, elements)};
    }
}

Slices slices_new(const TostTensors* t, int ranks) {
    Slices s = {.ranks = ranks};
    size_t end = slice_units(t->flat_size);
    s.bucket = xmalloc((end / BUCKET_UNITS + (size_t)t->count + 1) * sizeof *s.bucket);
    if (ranks == 1) s.bucket[s.buckets++] = (Range){0, t->flat_size};
    // Gradients become complete up to the first element of each layer and of what follows the last one.
    for (int i = t->count - 1; i >= 0 && ranks > 1; i--) {
        if (i > 0 && t->tensor[i].layer == t->tensor[i - 1].layer) continue;
        const size_t start = i > 0 ? min_size(slice_units(t->tensor[i].offset), end) : 0;
        cut(&s, start, end, t->flat_size);
        end = start;
    }
    return s;
}

Range slices_of(const Slices* s, int rank, int k) {
    const Range b = s->bucket[k];
    const size_t units = slice_units(range_size(b)), ranks = (size_t)s->ranks, r = (size_t)rank;
    return (Range){min_size(b.start + units * r / ranks * SLICE_UNIT, b.end),
                   min_size(b.start + units * (r + 1) / ranks * SLICE_UNIT, b.end)};
}

size_t slices_packed(const Slices* s, int rank, int k) {
    size_t packed = 0;
    for (int other = s->buckets - 1; other > k; other--) packed += range_size(slices_of(s, rank, other));
    return packed;
}

// ---- Parts ----

Share share_of(int64_t samples, int batch, int parts, int rank, int ranks) {
    const int own = parts / ranks, first = rank * own;
    const int64_t longest = (samples + parts - 1) / parts, each = (longest + batch - 1) / batch;
    return (Share){samples, part_start(samples, first, parts), part_start(samples, first + own, parts), own * each, each,
                   batch, parts, first};
}

MicroBatch share_micro_batch(const Share* s, int64_t i) {
    const int64_t part = s->first_part + i / s->each;
    const int64_t start = part_start(s->all, part, s->parts) + i % s->each * s->batch;
    const int64_t left = part_start(s->all, part + 1, s->parts) - start;
    return (MicroBatch){start, (int)(left < s->batch ? left : s->batch), (int)(i / s->each),
                        i + 1 == s->n ? TOST_STEP_ENDS : (i + 1) % s->each == 0 ? TOST_PART_ENDS : TOST_MORE};
}
