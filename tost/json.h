// json.h: a strict pull parser for untrusted JSON (RFC 8259), over memory, without allocation.
#ifndef TOST_JSON_H
#define TOST_JSON_H

#include "util.h"

typedef struct {
    const char* start;    // the whole text
    const char* p;        // next byte
    const char* end;
    int         depth;    // open objects and arrays, JSON_MAX_DEPTH at most
    uint64_t    objects;  // bit d: what is open at depth d is an object
    bool        fresh;    // just entered: no comma before the next element
    TostError*  err;      // says byte offset and what was expected
} Json;

enum { JSON_MAX_DEPTH = 64 };

typedef enum {
    JSON_OBJECT, JSON_ARRAY, JSON_STRING, JSON_NUMBER, JSON_TRUE, JSON_FALSE, JSON_NULL, JSON_BAD
} JsonKind;

Json     json_open(const char* text, size_t n, TostError* err);
JsonKind json_peek(Json* j);                       // the value ahead; JSON_BAD at the end or on garbage

// Objects and arrays: call enter once, then next until it returns 0. next: 1 another, 0 closed, -1 error.
bool json_enter(Json* j, JsonKind object_or_array);
int  json_next(Json* j);                           // in an array, or in an object before json_key

bool json_key(Json* j, char* out, size_t cap, size_t* len);    // reads "key" and the colon, as json_string
// Decoded bytes (escapes, surrogate pairs to UTF-8; a lone surrogate becomes U+FFFD) into out, of cap bytes;
// more than cap - 1 are an error. The decoded text is never longer than its encoded form. A NUL is appended,
// not counted. Without out the string is only checked. Bytes that are not UTF-8 are an error.
bool json_string(Json* j, char* out, size_t cap, size_t* len);
bool json_u64(Json* j, uint64_t* out);             // a non-negative integer without fraction or exponent
bool json_double(Json* j, double* out);            // finite
bool json_skip(Json* j);                           // any value
bool json_at_end(Json* j);                         // all is closed, only white space is left; else an error

// Bytes of the UTF-8 character at p (1 to 4, no surrogates, nothing overlong), 0 if there is none before end.
int  utf8_length(const char* p, const char* end);

#endif
