// util.h: error messages, printable text, memory, files and paths, time, checksums.
#ifndef TOST_UTIL_H
#define TOST_UTIL_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#define countof(a) (sizeof(a) / sizeof((a)[0]))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))

// ---------------------------------------------------------------------------------------------
// Errors. A function that can fail on user input returns false (or NULL) and writes one line to *err that names the
// option or file, the value and the fix. Only commands print it and choose the exit status.

typedef struct { char text[1024]; } TostError;

// Sets err->text to a printable text (below), with the middle of a long one replaced by an ellipsis. err->text may be
// an argument. Always returns false.
bool tost_error(TostError* err, const char* fmt, ...) PRINTF_LIKE(2, 3);

// exit statuses: run-time error; invalid command line; the run can be resumed (EX_TEMPFAIL)
enum { STATUS_FAILED = 1, STATUS_USAGE = 2, STATUS_RESUMABLE = 75 };

// ---------------------------------------------------------------------------------------------
// Text. File names, metadata and arguments may contain any bytes. The program prints them only through these functions
// and tost_error, so that they cannot control the terminal or add lines.

// Length of the UTF-8 character at p, 1 to 4 bytes; 0 if it is invalid (surrogates and overlong encodings included) or
// truncated at end.
int   utf8_length(const char* p, const char* end);
int   utf8_encode(char out[4], uint32_t c);   // writes a code point; returns the number of bytes
// A copy with control characters and bytes that are not UTF-8 written as \n, \r, \t or \xHH. free()
char* printable_text(const char* text);
char* vprintable_text(const char* fmt, va_list ap) PRINTF_LIKE(1, 0);   // of a formatted text; free()
void  print_line(FILE* out, const char* fmt, ...) PRINTF_LIKE(2, 3);    // one printable line and a line break

// ---------------------------------------------------------------------------------------------
// Memory. The x functions print one line and exit with STATUS_FAILED if memory runs out.

void* xmalloc(size_t bytes);
void* xcalloc(size_t count, size_t size);          // zeroed
void* xrealloc(void* p, size_t bytes);
char* xstrdup(const char* s);
char* xasprintf(const char* fmt, ...) PRINTF_LIKE(1, 2);
void* alloc_pages(size_t bytes);                   // zeroed, 64-byte aligned, huge pages if large; or NULL
void  free_pages(void* p, size_t bytes);           // bytes: as for alloc_pages

// Sanitizer builds put REDZONE_BYTES of inaccessible memory between the parts of one allocation.
#ifdef TOST_SANITIZE
enum { REDZONE_BYTES = 128 };
void poison_redzone(void* p);
#else
enum { REDZONE_BYTES = 0 };
static inline void poison_redzone(void* p) { (void)p; }
#endif

// ---------------------------------------------------------------------------------------------
// Files and paths.

typedef struct { char* data; size_t size; } Bytes;  // data is followed by a NUL, not counted in size

enum { MAX_FILE_BYTES = 1 << 30 };                                 // limit of read_file: /dev/zero has no end
bool  read_file(Bytes* out, const char* path, TostError* err);     // all of it; "-" is stdin. free(out->data)
// Like pread, but returns fewer than n bytes only at the end of the file.
ssize_t read_at(int fd, void* out, size_t n, uint64_t offset);
// True if nothing is lost when the file is replaced: it does not exist, or it is a regular file that is empty or has
// this text at this offset, which shows who wrote it. Links are not followed.
bool  file_is_ours(const char* path, long offset, const char* text);
bool  path_exists(const char* path);
bool  is_dir(const char* path);
char* path_join(const char* dir, const char* name);                // free()
char* program_path(const char* argv0);                             // resolved, or NULL if not found; free()
char* path_dir(const char* path);                                  // "a/b" -> "a", "b" -> "."; free()

typedef struct { int count; char** paths; } PathList;
bool expand_glob(PathList* out, const char* pattern, TostError* err);  // an error if nothing matches
void free_paths(PathList* list);

// ---------------------------------------------------------------------------------------------
// Numbers.

double   now_seconds(void);                                        // monotonic
uint32_t crc32_update(uint32_t crc, const void* data, size_t n);   // zlib's CRC-32; start from 0
char*    human_count(char buf[32], double n);                      // 109604352 -> "109.6M"; returns buf
char*    human_bytes(char buf[32], double n);                      // 2684354560 -> "2.50 GiB"; returns buf

#endif
