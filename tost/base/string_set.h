// string_set.h: different byte strings, numbered from 0 in the order in which they are added, with counts.
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct { size_t first, n; uint64_t count; } String;   // bytes[first .. first + n) of its set
typedef struct { uint32_t hash, end; } StringSlot;            // end: number of a string plus 1; 0: free

typedef struct {   // zeroed: empty
    char*       bytes;     // (used) of all strings, one after another
    String*     strings;   // (n)
    size_t      used, cap, n;
    StringSlot* slots;     // (mask + 1) hash table
    size_t      mask;
} StringSet;

// The number of a string, which is added if the set does not have it; adds `times` to its count, modulo 2^64.
uint32_t string_set_add(StringSet* s, const char* bytes, size_t n, uint64_t times);
void     string_set_free(StringSet* s);   // and empties it
