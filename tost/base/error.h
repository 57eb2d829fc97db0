// error.h: error messages, which text.c formats, and exit statuses.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define countof(a) (sizeof(a) / sizeof((a)[0]))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))

// Errors. A function that can fail on user input returns false (or NULL) and writes one line to *err that names the
// option or file, the value and the fix. Only commands print it and choose the exit status. A caller that ignores the
// error passes &(TostError){0}.

typedef struct { char text[1024]; } TextLine, TostError;   // printable, see text.h

// Sets err->text to a printable text (below), with the middle of a long one replaced by an ellipsis. err->text may be
// an argument. Always returns false.
bool tost_error(TostError* err, const char* fmt, ...) PRINTF_LIKE(2, 3);

// exit statuses: run-time error; invalid command line; the run can be resumed (EX_TEMPFAIL)
enum { STATUS_FAILED = 1, STATUS_USAGE = 2, STATUS_RESUMABLE = 75 };
