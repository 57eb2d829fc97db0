// util.c: error messages, printable text, memory, files and paths, time, checksums.
#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "comm.h"

static void* or_exit(void* p, size_t bytes) {
    if (!p) {
        fprintf(stderr, "%sout of memory: %zu bytes could not be allocated\n", comm_launch_prefix().text, bytes);
        comm_exit(STATUS_FAILED);
    }
    return p;
}

// ---------------------------------------------------------------------------------------------
// Errors

// Copies the text, or its beginning and end if it is too long, cut between UTF-8 characters.
static void fit_text(char* out, size_t cap, const char* text) {
    static const char gap[] = " … ";
    const size_t n = strlen(text), half = (cap - sizeof gap) / 2;
    size_t head = half, tail = n - half;
    if (n < cap) {
        memcpy(out, text, n + 1);
        return;
    }
    while (head > 0 && ((unsigned char)text[head] & 0xC0) == 0x80) head--;
    while (((unsigned char)text[tail] & 0xC0) == 0x80) tail++;
    snprintf(out, cap, "%.*s%s%s", (int)head, text, gap, text + tail);
}

static char* vformat(const char* fmt, va_list ap) {
    char* text = NULL;
    const int n = vasprintf(&text, fmt, ap);
    return or_exit(n < 0 ? NULL : text, strlen(fmt));
}

bool tost_error(TostError* err, const char* fmt, ...) {
    const int saved_errno = errno;
    va_list ap;
    va_start(ap, fmt);
    char* text = vprintable_text(fmt, ap);
    va_end(ap);
    fit_text(err->text, sizeof err->text, text);
    free(text);
    errno = saved_errno;
    return false;
}

// ---------------------------------------------------------------------------------------------
// Text

int utf8_length(const char* p, const char* end) {
    const unsigned char* u = (const unsigned char*)p;
    size_t left = (size_t)(end - p);
    if (!left) return 0;
    int n = u[0] < 0x80 ? 1 : u[0] < 0xc2 ? 0 : u[0] < 0xe0 ? 2 : u[0] < 0xf0 ? 3 : u[0] < 0xf5 ? 4 : 0;
    if ((size_t)n > left) return 0;
    for (int i = 1; i < n; i++) {
        if ((u[i] & 0xc0) != 0x80) return 0;
    }
    bool overlong = (u[0] == 0xe0 && u[1] < 0xa0) || (u[0] == 0xf0 && u[1] < 0x90);
    bool surrogate = u[0] == 0xed && u[1] > 0x9f, too_large = u[0] == 0xf4 && u[1] > 0x8f;  // over U+10FFFF
    return overlong || surrogate || too_large ? 0 : n;
}

int utf8_encode(char out[4], uint32_t c) {
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    int n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)((0xf00 >> n & 0xff) | c);  // n ones, then a zero: 110…, 1110…, 11110…
    return n;
}

// True for a UTF-8 character of n bytes that a terminal interprets instead of showing: C0 and C1 control characters,
// line and paragraph separators, and marks that change the direction of text. False for an invalid one, n = 0.
static bool is_control(const unsigned char* u, int n) {
    if (n == 1) return u[0] < 0x20 || u[0] == 0x7f;
    if (n == 2) return u[0] == 0xc2 && u[1] < 0xa0;                                     // U+0080 to U+009F
    if (n != 3 || u[0] != 0xe2) return false;
    if (u[1] == 0x80) return u[2] == 0x8e || u[2] == 0x8f || (u[2] >= 0xa8 && u[2] <= 0xae);   // U+200E, U+2028, …
    return u[1] == 0x81 && u[2] >= 0xa6 && u[2] <= 0xa9;                                // U+2066 to U+2069
}

// Backslashes are not escaped, so that printable text stays as it is when it becomes part of another text.
char* printable_text(const char* text) {
    static const char from[] = "\n\r\t", to[] = "nrt";
    const char* end = text + strlen(text);
    char *escaped = xmalloc(4 * (size_t)(end - text) + 1), *p = escaped;
    while (text < end) {
        const int n = utf8_length(text, end);
        const bool raw = n > 0 && !is_control((const unsigned char*)text, n);
        for (int i = 0; i < (n > 0 ? n : 1); i++, text++) {
            const char* at = strchr(from, *text);
            if (raw) *p++ = *text;
            else if (at) p += sprintf(p, "\\%c", to[at - from]);
            else p += sprintf(p, "\\x%02x", (unsigned char)*text);
        }
    }
    *p = 0;
    return escaped;
}

char* vprintable_text(const char* fmt, va_list ap) {
    char *text = vformat(fmt, ap), *escaped = printable_text(text);
    free(text);
    return escaped;
}

void print_line(FILE* out, const char* fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    char* line = vprintable_text(fmt, ap);
    va_end(ap);
    fprintf(out, "%s\n", line);
    free(line);
}

// ---------------------------------------------------------------------------------------------
// Memory

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

char* xasprintf(const char* fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    char* s = vformat(fmt, ap);
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

// ---------------------------------------------------------------------------------------------
// Files and paths

// Reads fd to its end or just past MAX_FILE_BYTES. The buffer grows, since the size of a pipe or /proc file is unknown.
static bool read_all(Bytes* out, int fd) {
    struct stat st;
    size_t cap = 65536;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0)
        cap = (size_t)(st.st_size < MAX_FILE_BYTES ? st.st_size : MAX_FILE_BYTES) + 2;
    out->data = xmalloc(cap);
    out->size = 0;
    while (out->size <= MAX_FILE_BYTES) {
        if (cap - out->size < 2) out->data = xrealloc(out->data, cap *= 2);
        ssize_t n = read(fd, out->data + out->size, cap - out->size - 1);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN && fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK) == 0) continue;
        if (n < 0) return false;
        if (n == 0) break;
        out->size += (size_t)n;
    }
    out->data[out->size] = 0;
    return true;
}

static bool is_fifo(int fd) {
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode);
}

ssize_t read_at(int fd, void* out, size_t n, uint64_t offset) {
    size_t done = 0;
    while (done < n) {
        const ssize_t got = pread(fd, (char*)out + done, n - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) break;
        done += (size_t)got;
    }
    return (ssize_t)done;
}

// A FIFO that no process writes to is an error; it is opened with O_NONBLOCK, because open would wait for a writer.
bool read_file(Bytes* out, const char* path, TostError* err) {
    bool is_stdin = strcmp(path, "-") == 0;
    *out = (Bytes){0};
    int fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return tost_error(err, "%s: cannot be opened: %s", path, strerror(errno));
    bool ok = read_all(out, fd);
    if (!ok && errno == EISDIR) tost_error(err, "%s: is a folder: give a file name", path);
    else if (!ok)
        tost_error(err, "%s: cannot be read after %zu bytes: %s", is_stdin ? "standard input" : path,
                   out->size, strerror(errno));
    if (ok && out->size == 0 && !is_stdin && is_fifo(fd))
        ok = tost_error(err, "%s: a FIFO that no process writes to: give a regular file", path);
    if (ok && out->size > MAX_FILE_BYTES)
        ok = tost_error(err, "%s: larger than %d bytes: give a smaller file",
                        is_stdin ? "standard input" : path, MAX_FILE_BYTES);
    if (!ok) {
        free(out->data);
        *out = (Bytes){0};
    }
    if (!is_stdin) close(fd);
    return ok;
}

bool file_is_ours(const char* path, long offset, const char* text) {
    struct stat st;
    char head[256];
    if (lstat(path, &st) != 0) return errno == ENOENT;
    if (!S_ISREG(st.st_mode)) return false;
    if (st.st_size == 0) return true;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const ssize_t n = fd < 0 ? -1 : read_at(fd, head, sizeof head, (uint64_t)offset);
    if (fd >= 0) close(fd);
    return n >= (ssize_t)strlen(text) && memcmp(head, text, strlen(text)) == 0;
}

bool path_exists(const char* path) {
    struct stat st;
    return stat(path, &st) == 0;
}

bool is_dir(const char* path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

char* path_join(const char* dir, const char* name) {
    size_t n = strlen(dir);
    return xasprintf("%s%s%s", dir, n && dir[n - 1] == '/' ? "" : "/", name);
}

char* path_dir(const char* path) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;  // "a/b/" is "a/b"
    while (n && path[n - 1] != '/') n--;
    if (!n) return xstrdup(".");
    while (n > 1 && path[n - 1] == '/') n--;
    return xasprintf("%.*s", (int)n, path);
}

// argv[0] contains a slash, or is the name of a file in a folder of PATH.
char* program_path(const char* argv0) {
    if (strchr(argv0, '/')) return realpath(argv0, NULL);
    const char* folders = getenv("PATH");
    while (folders) {
        const size_t n = strcspn(folders, ":");
        char *dir = xasprintf("%.*s", (int)n, folders), *path = path_join(n ? dir : ".", argv0);
        char* found = access(path, X_OK) == 0 && !is_dir(path) ? realpath(path, NULL) : NULL;
        free(dir);
        free(path);
        if (found) return found;
        folders = folders[n] ? folders + n + 1 : NULL;
    }
    return NULL;
}

// ---------------------------------------------------------------------------------------------
// Globs

static int compare_names(const void* a, const void* b) {
    return strcmp(*(char* const*)a, *(char* const*)b);
}

bool expand_glob(PathList* out, const char* pattern, TostError* err) {
    *out = (PathList){0};
    if (path_exists(pattern)) {  // a file name may contain brackets
        out->paths = xmalloc(sizeof *out->paths);
        out->paths[out->count++] = xstrdup(pattern);
        return true;
    }
    glob_t g;
    int rc = glob(pattern, GLOB_NOSORT | GLOB_TILDE, NULL, &g);
    if (rc == 0) {
        out->paths = xmalloc(g.gl_pathc * sizeof *out->paths);
        out->count = (int)g.gl_pathc;
        for (int i = 0; i < out->count; i++) out->paths[i] = xstrdup(g.gl_pathv[i]);
        qsort(out->paths, g.gl_pathc, sizeof *out->paths, compare_names);  // by bytes, independent of the locale
        globfree(&g);
        return true;
    }
    if (rc == GLOB_NOMATCH) return tost_error(err, "%s: no file matches", pattern);
    return tost_error(err, "%s: cannot be expanded: %s", pattern,
                      rc == GLOB_NOSPACE ? "out of memory" : "read error");
}

void free_paths(PathList* list) {
    for (int i = 0; i < list->count; i++) free(list->paths[i]);
    free(list->paths);
    *list = (PathList){0};
}

// ---------------------------------------------------------------------------------------------
// Numbers

double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// zlib's CRC-32: reflected polynomial 0xEDB88320. Short data is processed four bits at a time, long data 16 bytes at a
// time with slicing (Kounavis and Berry 2005); its tables are built on the stack in 3 us, so there is no global state.
enum { CRC_SLICES = 16, CRC_SLICED_FROM = 1024 };
typedef struct { uint32_t t[CRC_SLICES][256]; } CrcTables;  // t[k][b]: effect of byte b after k more bytes

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little-endian and read without conversion");

static uint32_t crc32_short(uint32_t c, const uint8_t* p, size_t n) {
    static const uint32_t nibble[16] = {
        0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
        0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c,
    };
    for (size_t i = 0; i < n; i++) {
        c ^= p[i];
        c = nibble[c & 15] ^ (c >> 4);
        c = nibble[c & 15] ^ (c >> 4);
    }
    return c;
}

static void crc32_make_tables(CrcTables* tables) {
    for (int b = 0; b < 256; b++) tables->t[0][b] = crc32_short(0, &(uint8_t){(uint8_t)b}, 1);
    for (int k = 1; k < CRC_SLICES; k++) {
        for (int b = 0; b < 256; b++) {
            uint32_t c = tables->t[k - 1][b];
            tables->t[k][b] = tables->t[0][c & 255] ^ (c >> 8);
        }
    }
}

uint32_t crc32_update(uint32_t crc, const void* data, size_t n) {
    const uint8_t* p = data;
    uint32_t c = ~crc;
    if (n >= CRC_SLICED_FROM) {
        CrcTables tables;
        crc32_make_tables(&tables);
        for (; n >= CRC_SLICES; p += CRC_SLICES, n -= CRC_SLICES) {
            uint64_t lo, hi;
            memcpy(&lo, p, 8);
            memcpy(&hi, p + 8, 8);
            lo ^= c;
            c = 0;
            for (int k = 0; k < 8; k++) {
                c ^= tables.t[15 - k][lo >> 8 * k & 255] ^ tables.t[7 - k][hi >> 8 * k & 255];
            }
        }
    }
    return ~crc32_short(c, p, n);
}

char* human_count(char buf[32], double n) {
    static const char units[] = "KMBT";
    if (!(fabs(n) >= 1000)) {
        snprintf(buf, 32, n == floor(n) ? "%.0f" : "%.1f", n);
        return buf;
    }
    int u = 0;
    for (n /= 1000; fabs(n) >= 999.95 && u < 3; u++) n /= 1000;  // 999.95 would be printed as 1000.0
    snprintf(buf, 32, fabs(n) < 1e9 ? "%.1f%c" : "%.3g%c", n, units[u]);
    return buf;
}

char* human_bytes(char buf[32], double n) {
    static const char units[] = "KMGTPE";
    if (!(fabs(n) >= 1024)) {
        snprintf(buf, 32, "%.0f B", n);
        return buf;
    }
    int u = 0;
    for (n /= 1024; fabs(n) >= 1023.995 && u < 5; u++) n /= 1024;
    snprintf(buf, 32, fabs(n) < 1e9 ? "%.2f %ciB" : "%.3g %ciB", n, units[u]);
    return buf;
}
