// string_set.c: a hash table of byte strings.
#include "base/string_set.h"

#include "base/memory.h"

static uint32_t hash_of(const char* bytes, size_t n) {
    uint64_t h = n;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)bytes[i]) * 0x9e3779b97f4a7c15;
    return (uint32_t)(h >> 32);
}

static void grow_slots(StringSet* s) {
    const StringSet old = *s;
    s->mask = old.slots ? 2 * old.mask + 1 : 1023;
    s->slots = xcalloc(s->mask + 1, sizeof *s->slots);
    for (size_t i = 0; old.slots && i <= old.mask; i++) {
        size_t to = old.slots[i].hash & s->mask;
        while (s->slots[to].end) to = (to + 1) & s->mask;
        s->slots[to] = old.slots[i];
    }
    free(old.slots);
}

uint32_t string_set_add(StringSet* s, const char* bytes, size_t n, uint64_t times) {
    if (2 * s->n >= s->mask) grow_slots(s);
    const uint32_t hash = hash_of(bytes, n);
    size_t i = hash & s->mask;
    for (; s->slots[i].end; i = (i + 1) & s->mask) {
        String* found = s->strings + s->slots[i].end - 1;
        if (s->slots[i].hash != hash || found->n != n || memcmp(s->bytes + found->first, bytes, n) != 0) continue;
        found->count += times;
        return s->slots[i].end - 1;
    }
    if (s->cap - s->used < n) s->bytes = xrealloc(s->bytes, s->cap = 2 * s->cap + n);
    memcpy(s->bytes + s->used, bytes, n);
    s->strings = xgrow(s->strings, s->n, sizeof *s->strings);
    s->strings[s->n++] = (String){s->used, n, times};
    s->used += n;
    s->slots[i] = (StringSlot){hash, (uint32_t)s->n};
    return (uint32_t)s->n - 1;
}

void string_set_free(StringSet* s) {
    free(s->bytes);
    free(s->strings);
    free(s->slots);
    *s = (StringSet){0};
}
