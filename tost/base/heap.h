// heap.h: a priority queue.
#pragma once

#include "base/memory.h"

// The smallest `first` is taken first; of equal ones, the smallest `second`.
typedef struct { uint64_t first, second; } HeapKey;
typedef struct { HeapKey* keys; size_t count, cap; } Heap;   // zeroed: empty; free(keys)

static inline bool heap_less(HeapKey a, HeapKey b) {
    return a.first != b.first ? a.first < b.first : a.second < b.second;
}

static inline void heap_push(Heap* h, HeapKey key) {
    if (h->count == h->cap) h->keys = xrealloc(h->keys, (h->cap = h->cap * 2 + 1024) * sizeof *h->keys);
    size_t i = h->count++;
    for (; i > 0 && heap_less(key, h->keys[(i - 1) / 2]); i = (i - 1) / 2) h->keys[i] = h->keys[(i - 1) / 2];
    h->keys[i] = key;
}

static inline HeapKey heap_pop(Heap* h) {   // count > 0
    HeapKey top = h->keys[0], key = h->keys[--h->count];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < h->count; i = child) {
        if (child + 1 < h->count && heap_less(h->keys[child + 1], h->keys[child])) child++;
        if (!heap_less(h->keys[child], key)) break;
        h->keys[i] = h->keys[child];
    }
    h->keys[i] = key;
    return top;
}
