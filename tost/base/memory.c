// memory.c: allocation.
#include "base/memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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
    bool empty = !count || !size;
    return or_exit(empty ? calloc(1, 1) : calloc(count, size), count * size);
}

void* xrealloc(void* p, size_t bytes) { return or_exit(realloc(p, bytes ? bytes : 1), bytes); }

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
void poison_redzone(void* p) { __asan_poison_memory_region(p, REDZONE_BYTES); }
#else
enum { HUGE_PAGE = 2 << 20, HUGE_FROM = 4 << 20 };

// Size of the mapping for an allocation: whole pages, or huge pages if large; 0 on overflow.
static size_t mapped_size(size_t bytes) {
    size_t unit = bytes >= HUGE_FROM ? HUGE_PAGE : (size_t)sysconf(_SC_PAGESIZE);
    if (bytes > SIZE_MAX - 2 * unit) return 0;
    return ((bytes ? bytes : 1) + unit - 1) / unit * unit;
}

void* alloc_pages(size_t bytes) {
    size_t size = mapped_size(bytes);
    size_t slack = bytes >= HUGE_FROM ? HUGE_PAGE : 0;  // extra room to align the mapping to a huge page
    if (!size) return NULL;
    char* raw = mmap(NULL, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) return NULL;
    if (!slack) return raw;
    size_t head = (HUGE_PAGE - (uintptr_t)raw % HUGE_PAGE) % HUGE_PAGE;
    if (head) munmap(raw, head);
    if (slack - head) munmap(raw + head + size, slack - head);
#ifdef MADV_HUGEPAGE
    madvise(raw + head, size, MADV_HUGEPAGE);  // a hint, which may fail
#endif
    return raw + head;
}

void free_pages(void* p, size_t bytes) {
    if (p) munmap(p, mapped_size(bytes));
}
#endif
