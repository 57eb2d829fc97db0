// ngram.c: the loss of counting models.
#include "run/ngram.h"

#include <math.h>

#include "base/memory.h"

// The different sequences of `order` tokens, as numbers in base V, sorted. start[i]: how many sequences, with
// repetitions, are less than key[i]
typedef struct { int order; size_t n; uint64_t* key; size_t* start; } Counts;

// Sorts n numbers, 16 bits at a time from the lowest. other (n): scratch
static void sort(uint64_t* key, uint64_t* other, size_t n, uint64_t largest) {
    enum { BITS = 16, DIGITS = 1 << BITS };
    size_t* at = xmalloc((DIGITS + 1) * sizeof *at);
    for (int shift = 0; shift < 64 && largest >> shift; shift += BITS) {
        memset(at, 0, (DIGITS + 1) * sizeof *at);
        for (size_t i = 0; i < n; i++) at[(key[i] >> shift) % DIGITS + 1]++;
        for (int d = 1; d < DIGITS; d++) at[d] += at[d - 1];
        for (size_t i = 0; i < n; i++) other[at[(key[i] >> shift) % DIGITS]++] = key[i];
        memcpy(key, other, n * sizeof *key);
    }
    free(at);
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
    uint64_t* scratch = xmalloc((all + 1) * sizeof *scratch), largest = 0;
    for (size_t i = 0; i < all; i++) largest = c.key[i] > largest ? c.key[i] : largest;
    sort(c.key, scratch, all, largest);
    free(scratch);
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

static double discounted(double count, double types, double all, double shorter) {
    static const double d = 0.75;
    return all == 0 ? shorter : (fmax(count - d, 0) + d * types * shorter) / all;
}

// P(last token of `ids` | the order - 1 tokens before it) in the text, given that with a shorter context
static double in_text(const Counts* c, const int32_t* ids, uint64_t V, double shorter) {
    const uint64_t key = number(ids - (c->order - 1), c->order, V), context = key - key % V;
    const size_t from = find(c, context), to = find(c, context + V), at = find(c, key);
    const bool known = at < c->n && c->key[at] == key;
    return discounted(known ? (double)(c->start[at + 1] - c->start[at]) : 0, (double)(to - from),
                      (double)(c->start[to] - c->start[from]), shorter);
}

// The same for window[at] after window[at - 1], from the tokens before them
static double in_window(const int32_t* window, int at, double shorter) {
    double count = 0, types = 0, all = 0;
    for (int i = 1; i < at; i++) {
        if (window[i - 1] != window[at - 1]) continue;
        int before = i - 1;
        while (before > 0 && !(window[before - 1] == window[at - 1] && window[before] == window[i])) before--;
        types += before == 0;
        count += window[i] == window[at];
        all++;
    }
    return discounted(count, types, all, shorter);
}

void ngram_losses(double losses[2], const int32_t* text, size_t n, const int32_t* val, size_t m, int V) {
    enum { WINDOW = 256 };
    Counts tokens = counts_of(text, n, 1, V), pairs = counts_of(text, n, 2, V);
    double predicted = 0;
    losses[0] = losses[1] = 0;
    for (size_t i = 0; i < m; i++) {
        const size_t at = i % WINDOW;
        if (at == 0) continue;
        const double p = in_text(&tokens, val + i, (uint64_t)V, 1.0 / V);
        losses[0] -= log(p);
        losses[1] -= log(in_window(val + i - at, (int)at, in_text(&pairs, val + i, (uint64_t)V, p)));
        predicted++;
    }
    for (int k = 0; k < 2; k++) losses[k] /= predicted;
    free(tokens.key);
    free(tokens.start);
    free(pairs.key);
    free(pairs.start);
}
