// str.c: strip, replace, lower case and capitalize for UTF-8.
#include "commands/str.h"

#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/unicode_lower.h"

enum { NOT_UTF8 = 0x110000, DOTTED_I = 0x130, DOT_ABOVE = 0x307, UTF8_BYTES = 4 };

Span span_of(const char* text) { return (Span){text, strlen(text)}; }

// The character at p < end and its length in bytes.
static uint32_t decode(int* bytes, const char* p, const char* end) {
    const unsigned char* u = (const unsigned char*)p;
    *bytes = utf8_length(p, end);
    switch (*bytes) {
        case 1: return u[0];
        case 2: return (u[0] & 0x1fu) << 6 | (u[1] & 0x3fu);
        case 3: return (u[0] & 0x0fu) << 12 | (u[1] & 0x3fu) << 6 | (u[2] & 0x3fu);
        case 4: return (u[0] & 0x07u) << 18 | (u[1] & 0x3fu) << 12 | (u[2] & 0x3fu) << 6 | (u[3] & 0x3fu);
        default: *bytes = 1; return NOT_UTF8;
    }
}

// str.isspace
static bool is_space(uint32_t c) {
    return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680
           || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

size_t text_trailing_space(Span s) {
    const char *end = s.text + s.n, *last = s.text;   // the end of the last character that is not white space
    int bytes;
    for (const char* p = s.text; p < end; p += bytes)
        if (!is_space(decode(&bytes, p, end))) last = p + bytes;
    return (size_t)(end - last);
}

Span text_strip(Span s) {
    int bytes;
    s.n -= text_trailing_space(s);
    while (s.n > 0 && is_space(decode(&bytes, s.text, s.text + s.n))) s = (Span){s.text + bytes, s.n - (size_t)bytes};
    return s;
}

int text_length(Span s) {
    int length = 0, bytes;
    for (const char *p = s.text, *end = p + s.n; p < end; p += bytes, length++) decode(&bytes, p, end);
    return length;
}

static void append(Bytes* out, const char* text, size_t n) {
    out->data = xrealloc(out->data, out->size + n + 1);
    memcpy(out->data + out->size, text, n);
    out->size += n;
    out->data[out->size] = 0;
}

static void append_char(Bytes* out, uint32_t c) {
    char bytes[UTF8_BYTES];
    const int n = utf8_encode(bytes, c);
    append(out, bytes, (size_t)n);
}

Bytes text_replace(Span s, const char* from, const char* to) {
    Bytes out = {xstrdup(""), 0};
    const size_t n = strlen(from);
    const char *p = s.text, *end = p + s.n;
    for (const char* at; (at = memmem(p, (size_t)(end - p), from, n)); p = at + n) {
        append(&out, p, (size_t)(at - p));
        append(&out, to, strlen(to));
    }
    append(&out, p, (size_t)(end - p));
    return out;
}

static uint32_t lower(uint32_t c) {
    size_t low = 0, high = sizeof lower_runs / sizeof *lower_runs;   // binary search: low <= the run of c < high
    while (low < high) {
        const size_t middle = (low + high) / 2;
        const LowerRun* run = &lower_runs[middle];
        if (c < run->first) high = middle;
        else if (c > run->last) low = middle + 1;
        else return (c - run->first) % (uint32_t)run->step == 0 ? (uint32_t)((int32_t)c + run->offset) : c;
    }
    return c;
}

// The first letter whose lower case is c, or c.
static uint32_t upper(uint32_t c) {
    for (size_t i = 0; i < sizeof lower_runs / sizeof *lower_runs; i++) {
        const LowerRun* run = &lower_runs[i];
        const uint32_t from = (uint32_t)((int32_t)c - run->offset);
        if (from >= run->first && from <= run->last && (from - run->first) % (uint32_t)run->step == 0) return from;
    }
    return c;
}

static void append_lower(Bytes* out, Span s) {
    int bytes;
    for (const char *p = s.text, *end = p + s.n; p < end; p += bytes) {
        const uint32_t c = decode(&bytes, p, end);
        if (c == NOT_UTF8) append(out, p, 1);
        else if (c == DOTTED_I) append_char(out, 'i'), append_char(out, DOT_ABOVE);
        else append_char(out, lower(c));
    }
}

Bytes text_lower(Span s) {
    Bytes out = {xstrdup(""), 0};
    append_lower(&out, s);
    return out;
}

Bytes text_capitalize(Span s) {
    Bytes out = {xstrdup(""), 0};
    if (s.n == 0) return out;
    int bytes;
    const uint32_t c = decode(&bytes, s.text, s.text + s.n);
    if (c == NOT_UTF8) append(&out, s.text, 1);
    else append_char(&out, upper(c));
    append_lower(&out, (Span){s.text + bytes, s.n - (size_t)bytes});
    return out;
}
