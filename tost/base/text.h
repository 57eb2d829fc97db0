// text.h: UTF-8, printable text, numbers for people.
#ifndef TOST_TEXT_H
#define TOST_TEXT_H

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"

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


char* human_count(char buf[32], double n);   // 109604352 -> "109.6M"; returns buf
char* human_bytes(char buf[32], double n);   // 2684354560 -> "2.50 GiB"; returns buf

#endif
