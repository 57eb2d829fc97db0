// error.c: error messages.
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "base/text.h"

_Static_assert(sizeof(TostError) == sizeof(TextLine), "an error is a line");

bool tost_error(TostError* err, const char* fmt, ...) {
    const int saved_errno = errno;
    va_list ap;
    va_start(ap, fmt);
    const TextLine line = vtext_line(fmt, ap);
    va_end(ap);
    memcpy(err->text, line.text, sizeof err->text);
    errno = saved_errno;
    return false;
}
