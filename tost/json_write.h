// json_write.h: a JSON file, written value by value, that stands whole or not at all.
#ifndef TOST_JSON_WRITE_H
#define TOST_JSON_WRITE_H

#include <stdio.h>
#include "util.h"

// Without a path every call does nothing, so that callers need not ask.
typedef struct {
    char* path;
    char* tmp;        // PATH.tmp, renamed at the end
    FILE* file;
    int   depth;      // open objects and arrays
    bool  fresh;      // no element of the innermost one yet
} JsonFile;

// Opens PATH.tmp, so that a path that cannot be written is known before the work; a device or pipe is opened itself.
bool json_file_open(JsonFile* j, const char* path, TostError* err);
// keep: closes and renames to PATH. Else, and on failure, nothing is left. A zeroed JsonFile may be closed.
bool json_file_close(JsonFile* j, bool keep, TostError* err);

// key NULL: an element of an array, or the outermost value.
void json_put_open(JsonFile* j, const char* key, char bracket);           // '{' or '['
void json_put_close(JsonFile* j, char bracket);                           // '}' or ']'
// Bytes that are not UTF-8 become U+FFFD.
void json_put_bytes(JsonFile* j, const char* key, const char* text, size_t n);
void json_put_text(JsonFile* j, const char* key, const char* text);       // NULL: null
void json_put_int(JsonFile* j, const char* key, int64_t value);
void json_put_real(JsonFile* j, const char* key, double value);  // reads back the same; not finite: null
void json_put_bool(JsonFile* j, const char* key, bool value);

#endif
