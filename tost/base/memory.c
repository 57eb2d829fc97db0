#include "base/memory.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/files.h"

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

// ---- Limits: /proc/meminfo and cgroups ----

// The number after `key` in a file. UINT64_MAX if there is none: the limit "max", no such file.
static uint64_t read_number(const char* path, const char* key) {
    Bytes text;
    TostError ignored;
    uint64_t number = UINT64_MAX;
    if (!read_file(&text, path, &ignored)) return number;
    char *at = strstr(text.data, key), *end = at;
    if (at) number = strtoull(at += strlen(key), &end, 10);
    if (end == at) number = UINT64_MAX;
    free(text.data);
    return number;
}

// The least of `least` and the numbers in the files of this name in the folders from mount/group up to mount.
static uint64_t least_limit(uint64_t least, const char* mount, const char* group, const char* name) {
    Path folder = path_text("%s%s", mount, group);
    for (char* end = strchr(folder.text, 0); end;
         end = strlen(folder.text) > strlen(mount) ? strrchr(folder.text, '/') : NULL) {
        *end = 0;
        const uint64_t limit = read_number(path_in(folder.text, name).text, "");
        least = limit < least ? limit : least;
    }
    return least;
}

// A line is ID:CONTROLLERS:GROUP. Version 1 has a tree of folders for the controller "memory"; version 2 has 0::GROUP.
uint64_t cgroup_memory(const char* groups, const char* mount) {
    uint64_t least = UINT64_MAX;
    Bytes text;
    TostError ignored;
    if (!read_file(&text, groups, &ignored)) return least;
    char* rest = text.data;
    for (char *line, *v1; (line = strsep(&rest, "\n"));) {
        if ((v1 = strstr(line, ":memory:/")))
            least = least_limit(least, path_in(mount, "memory").text, v1 + strlen(":memory:"), "memory.limit_in_bytes");
        else if (strncmp(line, "0::/", 4) == 0) least = least_limit(least, mount, line + 3, "memory.max");
    }
    free(text.data);
    return least;
}

uint64_t meminfo_bytes(const char* key) {
    const uint64_t kib = read_number("/proc/meminfo", key);
    return kib == UINT64_MAX ? kib : 1024 * kib;
}
