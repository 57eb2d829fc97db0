// text.h: UTF-8, printable text, numbers for people.
#pragma once

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"

// Text. File names, metadata and arguments may contain any bytes. The program prints them only through these functions
// and tost_error, so that they cannot control the terminal or add lines.

enum { UTF8_INVALID = 0x110000 };

// The character at p < end; sets *n to its length in bytes. If it is invalid (also if it is overlong, a surrogate, or
// truncated at end), UTF8_INVALID and 1.
static inline uint32_t utf8_decode(int* n, const char* p, const char* end) {
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};   // smaller ones are overlong
    const unsigned char* u = (const unsigned char*)p;
    *n = 1;
    if (u[0] < 0x80) return u[0];
    const int bytes = u[0] < 0xc2 ? 0 : u[0] < 0xe0 ? 2 : u[0] < 0xf0 ? 3 : u[0] < 0xf5 ? 4 : 0;
    if (bytes == 0 || end - p < bytes) return UTF8_INVALID;
    uint32_t c = u[0] & (0x7f >> bytes);
    for (int i = 1; i < bytes; i++) {
        if ((u[i] & 0xc0) != 0x80) return UTF8_INVALID;
        c = c << 6 | (u[i] & 0x3f);
    }
    if (c < least[bytes] || (c >= 0xd800 && c < 0xe000) || c >= UTF8_INVALID) return UTF8_INVALID;
    *n = bytes;
    return c;
}
int   utf8_encode(char out[4], uint32_t c);   // writes a code point; returns the number of bytes
// A copy with control characters and bytes that are not UTF-8 written as \n, \r, \t or \xHH. free()
char* printable_text(const char* text);
char* vprintable_text(const char* fmt, va_list ap) PRINTF_LIKE(1, 0);   // of a formatted text; free()
void  print_line(FILE* out, const char* fmt, ...) PRINTF_LIKE(2, 3);    // one printable line and a line break

// A printable text, with the middle of a long one replaced by an ellipsis.
TextLine text_line(const char* fmt, ...) PRINTF_LIKE(1, 2);
TextLine vtext_line(const char* fmt, va_list ap) PRINTF_LIKE(1, 0);

static inline const char* plural(int64_t n) { return n == 1 ? "" : "s"; }
typedef struct { char text[32]; } NumberText;
NumberText human_count(double n);   // 109604352 -> "109.6M"
NumberText human_bytes(double n);   // 2684354560 -> "2.50 GiB"
