// str.h: text functions with the results of Python's str methods, for evaluation protocols that are defined in Python.
// A byte that is not part of UTF-8 counts as one character, which no function changes.
#ifndef TOST_STR_H
#define TOST_STR_H

#include "base/files.h"

typedef struct { const char* text; size_t n; } Span;

Span span_of(const char* text);                   // up to the NUL

// Without the white space at both ends: str.strip.
Span text_strip(Span s);
size_t text_trailing_space(Span s);               // bytes of white space at the end
int  text_length(Span s);                         // characters: len(str)

// str.replace: all occurrences, from left to right. free(data)
Bytes text_replace(Span s, const char* from, const char* to);
// str.lower, except that a final sigma is lowered to σ as any other. free(data)
Bytes text_lower(Span s);
// str.capitalize: the first character in upper case if it has one of a single code point, the rest in lower case.
Bytes text_capitalize(Span s);

#endif
