// error.c: error messages.
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>

#include "base/text.h"

bool tost_error(TostError* err, const char* fmt, ...) {
    const int saved_errno = errno;
    va_list ap;
    va_start(ap, fmt);
    *err = vtext_line(fmt, ap);
    va_end(ap);
    errno = saved_errno;
    return false;
}
