// memory.h: allocation.
#pragma once

#include <stdarg.h>
#include <stdlib.h>   // free
#include <string.h>   // memcpy

#include "base/error.h"

// If memory runs out, the x functions print one line and exit with STATUS_FAILED.
void* xmalloc(size_t bytes);
void* xcalloc(size_t count, size_t size);          // zeroed
void* xrealloc(void* p, size_t bytes);
void* xgrow(void* p, size_t n, size_t size);       // p: n elements, grown by xgrow only. Room for one more
char* xstrdup(const char* s);
char* xasprintf(const char* fmt, ...) PRINTF_LIKE(1, 2);
char* xvasprintf(const char* fmt, va_list ap) PRINTF_LIKE(1, 0);
void* alloc_pages(size_t bytes);                   // zeroed, 64-byte aligned, huge pages if possible; or NULL
void  free_pages(void* p, size_t bytes);           // bytes: as for alloc_pages

// Sanitizer builds put REDZONE_BYTES of inaccessible memory between the parts of one allocation.
#ifdef TOST_SANITIZE
enum { REDZONE_BYTES = 128 };
void poison_redzone(void* p, size_t bytes);
#else
enum { REDZONE_BYTES = 0 };
static inline void poison_redzone(void* p, size_t bytes) { (void)p; (void)bytes; }
#endif

// Replaces what the x functions do if memory runs out. The function must not return.
typedef void OutOfMemory(size_t bytes);
void memory_on_failure(OutOfMemory* f);

// ---- Arena ----
// With base NULL it only counts: one function first measures the allocation, then fills in the pointers.

typedef struct {
    char*  base;                             // the allocation, or NULL
    size_t used;                             // bytes handed out so far, alignment and red zones included
    size_t alignment;                        // of every array, in bytes
    size_t redzone;                          // bytes after each array that must not be accessed; 0 without a sanitizer
    void (*poison)(void* p, size_t bytes);   // marks a red zone; unused if redzone is 0
} Arena;

// The next `bytes` of the arena; NULL while it only counts. The count saturates far above what any machine has.
static inline void* arena_alloc(Arena* a, size_t bytes) {
    const size_t most = SIZE_MAX / 4;
    if (bytes > most || a->used > most) {
        a->used = most;
        return NULL;
    }
    const size_t size = (bytes + a->alignment - 1) / a->alignment * a->alignment;
    char* p = a->base ? a->base + a->used : NULL;
    if (p && a->redzone) a->poison(p + size, a->redzone);
    a->used += size + a->redzone;
    return p;
}
