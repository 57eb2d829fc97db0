// error.c: error messages.
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

// Copies the text, or its beginning and end if it is too long, cut between UTF-8 characters.
static void fit_text(char* out, size_t cap, const char* text) {
    static const char gap[] = " … ";
    const size_t n = strlen(text), half = (cap - sizeof gap) / 2;
    size_t head = half, tail = n - half;
    if (n < cap) {
        memcpy(out, text, n + 1);
        return;
    }
    while (head > 0 && ((unsigned char)text[head] & 0xC0) == 0x80) head--;
    while (((unsigned char)text[tail] & 0xC0) == 0x80) tail++;
    snprintf(out, cap, "%.*s%s%s", (int)head, text, gap, text + tail);
}

bool tost_error(TostError* err, const char* fmt, ...) {
    const int saved_errno = errno;
    va_list ap;
    va_start(ap, fmt);
    char* text = vprintable_text(fmt, ap);
    va_end(ap);
    fit_text(err->text, sizeof err->text, text);
    free(text);
    errno = saved_errno;
    return false;
}
