// output.h: writes to stdout and stderr that do not block if the reader has stopped.
#ifndef TOST_OUTPUT_H
#define TOST_OUTPUT_H

#include <stddef.h>

enum { OUTPUT_TIMEOUT = 500 };   // milliseconds

// Writes n bytes to a pipe, terminal or file. If its reader takes nothing for `timeout` milliseconds (less, a terminal
// after Ctrl-S, a full pipe), stops with errno EAGAIN. Returns the number of bytes written; if it is less than n,
// errno is the reason. May be called in a signal handler.
size_t output_write(int fd, const char* bytes, size_t n, int timeout);

#endif
