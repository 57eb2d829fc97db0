// text.c: UTF-8, printable text, numbers for people.
#include "base/text.h"

#include <errno.h>
#include <math.h>

#include "base/memory.h"

int utf8_encode(char out[4], uint32_t c) {
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    int n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)((0xf00 >> n & 0xff) | c);  // n ones, then a zero: 110…, 1110…, 11110…
    return n;
}

// True for a character that a terminal interprets instead of showing: C0 and C1 control characters, line and paragraph
// separators, and marks that change the direction of text.
static bool is_control(uint32_t c) {
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x200e || c == 0x200f || (c >= 0x2028 && c <= 0x202e)
        || (c >= 0x2066 && c <= 0x2069);
}

// Backslashes are not escaped, so that printable text stays as it is when it becomes part of another text.
char* printable_text(const char* text) {
    static const char from[] = "\n\r\t", to[] = "nrt";
    const char* end = text + strlen(text);
    char *escaped = xmalloc(4 * (size_t)(end - text) + 1), *p = escaped;
    while (text < end) {
        int n;
        const uint32_t c = utf8_decode(&n, text, end);
        const bool raw = c != UTF8_INVALID && !is_control(c);
        for (int i = 0; i < n; i++, text++) {
            const char* at = strchr(from, *text);
            if (raw) *p++ = *text;
            else if (at) p += sprintf(p, "\\%c", to[at - from]);
            else p += sprintf(p, "\\x%02x", (unsigned char)*text);
        }
    }
    *p = 0;
    return escaped;
}

char* vprintable_text(const char* fmt, va_list ap) {
    char *text = xvasprintf(fmt, ap), *escaped = printable_text(text);
    free(text);
    return escaped;
}

TextLine vtext_line(const char* fmt, va_list ap) {
    static const char gap[] = " … ";
    TextLine line;
    char* text = vprintable_text(fmt, ap);
    const size_t n = strlen(text), half = (sizeof line.text - sizeof gap) / 2;
    const bool fits = n < sizeof line.text;
    size_t head = fits ? n : half, tail = fits ? n : n - half;   // cut between UTF-8 characters
    while (head > 0 && ((unsigned char)text[head] & 0xC0) == 0x80) head--;
    while (((unsigned char)text[tail] & 0xC0) == 0x80) tail++;
    snprintf(line.text, sizeof line.text, "%.*s%s%s", (int)head, text, fits ? "" : gap, text + tail);
    free(text);
    return line;
}

TextLine text_line(const char* fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    const TextLine line = vtext_line(fmt, ap);
    va_end(ap);
    return line;
}

bool tost_error(TostError* err, const char* fmt, ...) {
    const int saved_errno = errno;
    va_list ap;
    va_start(ap, fmt);
    *err = vtext_line(fmt, ap);
    va_end(ap);
    errno = saved_errno;
    return false;
}

void print_line(FILE* out, const char* fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    char* line = vprintable_text(fmt, ap);
    va_end(ap);
    fprintf(out, "%s\n", line);
    free(line);
}

// n in the largest of the units that leaves it at least 1. Digits after the point: `plain` in the first unit, `digits`
// in the others.
static NumberText scaled(double n, double step, const char* const* units, int n_units, int digits, int plain) {
    NumberText text;
    double end = step;
    int u = 0;
    for (; fabs(n) >= end && u + 1 < n_units; u++) {
        n /= step;
        end = step - 0.5 * pow(10, -digits);   // would be printed as step
    }
    snprintf(text.text, sizeof text.text, "%.*f%s", u == 0 ? plain : digits, n, units[u]);
    return text;
}

NumberText human_count(double n) {
    static const char* const units[] = {"", "K", "M", "B", "T"};
    return scaled(n, 1000, units, countof(units), 1, n != floor(n));
}

NumberText human_bytes(double n) {
    static const char* const units[] = {" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"};
    return scaled(n, 1024, units, countof(units), 2, 0);
}
