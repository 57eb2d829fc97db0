// json_write.h: writes a JSON file value by value.
#pragma once

#include <stdio.h>

#include "base/files.h"

// If the path is NULL, all functions do nothing. Must not be moved while it is open.
typedef struct {
    Path   path;
    FILE*  file;      // in memory: text (n); NULL: none
    char*  text;
    size_t n;
    int    depth;     // open objects and arrays
    bool   fresh;     // the innermost one has no element yet
} JsonFile;

// Begins the outermost object with "content": content. Fails if PATH or PATH.tmp is a file with data but not with this
// content. Call it before the computation to report errors early.
bool json_file_open(JsonFile* j, const char* path, const char* content, TostError* err);
// If `keep`, ends the object and writes the file, see replace_file. A zeroed JsonFile may be closed.
bool json_file_close(JsonFile* j, bool keep, TostError* err);

// key NULL: an element of an array.
void json_put_open(JsonFile* j, const char* key, char bracket);           // '{' or '['
void json_put_close(JsonFile* j, char bracket);                           // '}' or ']'
// Bytes that are not UTF-8 become U+FFFD.
void json_put_bytes(JsonFile* j, const char* key, const char* text, size_t n);
void json_put_text(JsonFile* j, const char* key, const char* text);
void json_put_int(JsonFile* j, const char* key, int64_t value);
void json_put_real(JsonFile* j, const char* key, double value);  // exact; null if not finite
void json_put_bool(JsonFile* j, const char* key, bool value);
// A figure of a report: the same, and returns it as text by fmt, which has one conversion of the value (%lld, %f). The
// text of NaN is empty.
TextLine json_figure_int(JsonFile* j, const char* key, int64_t value, const char* fmt) PRINTF_LIKE(4, 0);
TextLine json_figure_real(JsonFile* j, const char* key, double value, const char* fmt) PRINTF_LIKE(4, 0);
