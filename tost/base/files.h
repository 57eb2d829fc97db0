// files.h: files, paths and globs.
#pragma once

#include <limits.h>
#include <sys/types.h>

#include "base/error.h"

typedef struct { char* data; size_t size; } Bytes;  // data is followed by a NUL, not counted in size

enum { MAX_FILE_BYTES = 1 << 30 };                                 // limit of read_file: /dev/zero has no end
bool  read_file(Bytes* out, const char* path, TostError* err);     // all of it; "-" is stdin. free(out->data)
// Like pread, but returns fewer than n bytes only at the end of the file.
ssize_t read_at(int fd, void* out, size_t n, uint64_t offset);
size_t read_head(char* head, size_t n, const char* path);          // up to n bytes; 0 if it cannot be read
int   standard_stream(const char* path);                           // 1 or 2 if it is stdout or stderr; otherwise 0
bool  path_exists(const char* path);
bool  is_dir(const char* path);
bool  is_file(const char* path);                                   // a regular one

// A path by value. A longer one is cut to PATH_MAX bytes, which system calls refuse with ENAMETOOLONG.
typedef struct { char text[PATH_MAX + 1]; } Path;
Path  path_text(const char* fmt, ...) PRINTF_LIKE(1, 2);
Path  path_in(const char* dir, const char* name);                  // DIR/NAME
Path  path_above(const char* path);                                // "a/b" -> "a", "b" -> "."

typedef struct { int count; char** strings; } StringList;
void  add_string(StringList* list, char* string);                   // takes ownership
void  free_strings(StringList* list);
char* join_strings(const StringList* list, char separator);        // free()
// The files of each pattern, sorted; an error if nothing matches one.
bool  expand_glob(StringList* out, const StringList* patterns, TostError* err);
