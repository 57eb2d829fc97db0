// json.h: a pull parser for untrusted JSON (RFC 8259) in memory; writes JSON strings.
#pragma once

#include <stdio.h>

#include "base/error.h"

typedef struct {
    const char* start;    // the whole text
    const char* p;        // next byte
    const char* end;
    bool        failed;   // json_enter, json_next or json_field found an error
    bool        strict;   // lone surrogates are errors, not U+FFFD
    TostError*  err;      // gets the byte offset and what was expected
} Json;

Json json_open(const char* text, size_t n, TostError* err);
// Objects, "{}", and arrays, "[]": call json_enter once, then json_next before each element until it returns false: at
// the end, or if `failed`. json_field does what json_next does in an object, and reads "key" and the colon.
bool json_enter(Json* j, const char brackets[2]);
bool json_next(Json* j, const char brackets[2]);
bool json_field(Json* j, char* key, size_t cap, size_t* len);   // as json_string
// Decodes a string into out (cap bytes) and appends a NUL. Strings of more than cap - 1 bytes and invalid UTF-8 are
// errors. Lone surrogates become U+FFFD, unless strict. The decoded text is never longer than the encoded text.
// len: may be NULL
bool json_string(Json* j, char* out, size_t cap, size_t* len);
bool json_u64(Json* j, uint64_t* out);             // a non-negative integer without fraction or exponent
// To be called before the value of a known key: an error if the object had it before. *seen: false at first
bool json_once(Json* j, bool* seen, const char* key);
bool json_skip(Json* j);                           // any value; its contents are not checked
bool json_null(Json* j);                           // true if a null is next, and takes it
bool json_at_end(Json* j);                         // error if anything follows, except white space

// Decodes the string `name` of an object, json (n), to text (n + 1). id: NULL, or gets the value of "id" as it is
// written, a string or a number; NULL if there is none. free(*id) also on error
bool json_text_field(char* text, size_t* n_text, char** id, const char* json, size_t n, const char* name,
                     TostError* err);

// Writes a quoted string of n bytes. Bytes that are not UTF-8 become U+FFFD.
void json_write_string(FILE* out, const char* text, size_t n);
