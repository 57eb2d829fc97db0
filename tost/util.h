// util.h: errors as one line of text, memory, paths, time, checksums. Nothing here knows of models.
#ifndef TOST_UTIL_H
#define TOST_UTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define countof(a) (sizeof(a) / sizeof((a)[0]))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))

// ---------------------------------------------------------------------------------------------
// Errors. A function that can fail on a user's input returns false (or NULL) and leaves one line in
// *err that names the thing, the place and the way out; only commands print it and choose the status.

typedef struct { char text[1024]; } TostError;

// Sets err->text, control characters replaced by '?', the middle of a long text by an ellipsis; err->text may be an
// argument. Always returns false.
bool tost_error(TostError* err, const char* fmt, ...) PRINTF_LIKE(2, 3);

enum { STATUS_FAILED = 1, STATUS_USAGE = 2 };  // exit statuses: at run time; in the command line

// ---------------------------------------------------------------------------------------------
// Memory. Exits with one line and STATUS_FAILED when there is none left: no caller could go on.

void* xmalloc(size_t bytes);
void* xcalloc(size_t count, size_t size);          // zeroed
void* xrealloc(void* p, size_t bytes);
char* xstrdup(const char* s);
char* xasprintf(const char* fmt, ...) PRINTF_LIKE(1, 2);
void* alloc_pages(size_t bytes);                   // zeroed, 64-byte aligned, large in huge pages; or NULL
void  free_pages(void* p, size_t bytes);           // bytes as given to alloc_pages

// Between the parts of one allocation: REDZONE_BYTES that a sanitizer build forbids to touch.
#ifdef TOST_SANITIZE
enum { REDZONE_BYTES = 128 };
void poison_redzone(void* p);
#else
enum { REDZONE_BYTES = 0 };
static inline void poison_redzone(void* p) { (void)p; }
#endif

// ---------------------------------------------------------------------------------------------
// Files and paths.

typedef struct { char* data; size_t size; } Bytes;  // data is followed by a NUL that size does not count

enum { FILE_MOST = 1 << 30 };                                      // bytes that read_file takes: /dev/zero has no end
bool  read_file(Bytes* out, const char* path, TostError* err);     // whole; "-" is stdin. free(out->data)
bool  make_dirs(const char* path, TostError* err);                 // like mkdir -p
bool  sync_dir(const char* path, TostError* err);                  // fsync of a folder: its renames last
bool  remove_tree(const char* path, TostError* err);               // a folder and all in it; absent is fine
bool  path_exists(const char* path);
bool  is_dir(const char* path);
char* path_join(const char* dir, const char* name);                // free()
char* path_dir(const char* path);                                  // "a/b" -> "a", "b" -> "."; free()

typedef struct { int count; char** paths; } PathList;              // sorted by name

bool expand_glob(PathList* out, const char* pattern, TostError* err);  // an error if nothing matches
void free_paths(PathList* list);

// ---------------------------------------------------------------------------------------------
// Numbers.

double   now_seconds(void);                                        // monotonic
uint32_t crc32_update(uint32_t crc, const void* data, size_t n);   // zlib's CRC-32; start from 0
char*    human_count(char buf[32], double n);                      // 109604352 -> "109.6M"; returns buf
char*    human_bytes(char buf[32], double n);                      // 2684354560 -> "2.50 GiB"; returns buf

#endif
