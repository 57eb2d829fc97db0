#include "run/ngram.h"

#include <math.h>

#include "base/memory.h"

// The different sequences of `order` tokens, as numbers in base V, sorted; start[i] of all sequences are less than key[i]
typedef struct { int order; size_t n; uint64_t* key; size_t* start; } Counts;

static int by_value(const void* a, const void* b) {
    const uint64_t x = *(const uint64_t*)a, y = *(const uint64_t*)b;
    return (x > y) - (x < y);
}

static uint64_t number(const int32_t* ids, int order, uint64_t V) {
    uint64_t key = 0;
    for (int i = 0; i < order; i++) key = key * V + (uint64_t)ids[i];
    return key;
}

static Counts counts_of(const int32_t* text, size_t n, int order, int V) {
    const size_t all = n < (size_t)order ? 0 : n - (size_t)order + 1;
    Counts c = {order, 0, xmalloc((all + 1) * sizeof *c.key), xmalloc((all + 1) * sizeof *c.start)};
    for (size_t i = 0; i < all; i++) c.key[i] = number(text + i, order, (uint64_t)V);
    qsort(c.key, all, sizeof *c.key, by_value);
    for (size_t i = 0; i < all; i++) {
        if (i > 0 && c.key[i] == c.key[c.n - 1]) continue;
        c.start[c.n] = i;
        c.key[c.n++] = c.key[i];
    }
    c.start[c.n] = all;
    return c;
}

// The first different sequence that is not less than key
static size_t find(const Counts* c, uint64_t key) {
    size_t low = 0, high = c->n;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (c->key[middle] < key) low = middle + 1;
        else high = middle;
    }
    return low;
}

// P(last token of `ids` | the order - 1 tokens before it), given that with a shorter context
static double probability(const Counts* c, const int32_t* ids, uint64_t V, double shorter) {
    static const double d = 0.75;
    const uint64_t key = number(ids - (c->order - 1), c->order, V), context = key - key % V;
    const size_t from = find(c, context), to = find(c, context + V), at = find(c, key);
    const double all = (double)(c->start[to] - c->start[from]), types = (double)(to - from);
    const double count = at < c->n && c->key[at] == key ? (double)(c->start[at + 1] - c->start[at]) : 0;
    return all == 0 ? shorter : (fmax(count - d, 0) + d * types * shorter) / all;
}

double ngram_loss(const int32_t* text, size_t n, const int32_t* val, size_t m, int V, int order) {
    enum { MOST = 3 };
    Counts counts[MOST + 1];
    double sum = 0;
    for (int k = 1; k <= order; k++) counts[k] = counts_of(text, n, k, V);
    for (size_t i = MOST - 1; i < m; i++) {
        double p = 1.0 / V;
        for (int k = 1; k <= order; k++) p = probability(&counts[k], val + i, (uint64_t)V, p);
        sum -= log(p);
    }
    for (int k = 1; k <= order; k++) {
        free(counts[k].key);
        free(counts[k].start);
    }
    return sum / (double)(m - (MOST - 1));
}
