// memory.c: allocation, which exits with an error if there is no memory.
#include "base/memory.h"

#include <stdio.h>
#include <sys/mman.h>

static void print_and_exit(size_t bytes) {
    fprintf(stderr, "out of memory: %zu bytes could not be allocated\n", bytes);
    exit(STATUS_FAILED);
}

static OutOfMemory* out_of_memory = print_and_exit;

void memory_on_failure(OutOfMemory* f) { out_of_memory = f; }

static void* or_exit(void* p, size_t bytes) {
    if (!p) out_of_memory(bytes);
    return p;
}

void* xmalloc(size_t bytes) { return or_exit(malloc(bytes ? bytes : 1), bytes); }

void* xcalloc(size_t count, size_t size) {
    return or_exit(calloc(count ? count : 1, size ? size : 1), count * size);
}

void* xrealloc(void* p, size_t bytes) { return or_exit(realloc(p, bytes ? bytes : 1), bytes); }

void* xgrow(void* p, size_t n, size_t size) {   // doubles
    return (n & (n - 1)) == 0 ? xrealloc(p, (2 * n + 1) * size) : p;
}

char* xstrdup(const char* s) {
    size_t n = strlen(s) + 1;
    return memcpy(xmalloc(n), s, n);
}

char* xvasprintf(const char* fmt, va_list ap) {
    char* text = NULL;
    const int n = vasprintf(&text, fmt, ap);
    return or_exit(n < 0 ? NULL : text, strlen(fmt));
}

char* xasprintf(const char* fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    char* s = xvasprintf(fmt, ap);
    va_end(ap);
    return s;
}

#ifdef TOST_SANITIZE
void __asan_poison_memory_region(void const volatile* p, size_t n);
void __asan_unpoison_memory_region(void const volatile* p, size_t n);

// From the heap, so that the address sanitizer checks the bounds.
void* alloc_pages(size_t bytes) {
    void* p;
    if (bytes > (size_t)1 << 40) return NULL;   // the sanitizer's allocator would abort
    if (posix_memalign(&p, bytes >= 4 << 20 ? 2 << 20 : 64, bytes ? bytes : 1) != 0) return NULL;
    return memset(p, 0, bytes);
}
void free_pages(void* p, size_t bytes) {
    __asan_unpoison_memory_region(p, bytes);
    free(p);
}
void poison_redzone(void* p, size_t bytes) { __asan_poison_memory_region(p, bytes); }
#else
void* alloc_pages(size_t bytes) {
    const size_t size = bytes ? bytes : 1;   // the kernel rounds it up to whole pages
    void* p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
#ifdef MADV_HUGEPAGE
    madvise(p, size, MADV_HUGEPAGE);   // a hint, which may fail
#endif
    return p;
}

void free_pages(void* p, size_t bytes) {
    if (p) munmap(p, bytes ? bytes : 1);
}
#endif
