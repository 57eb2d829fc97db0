// terminal.h: the width of a terminal, and writes that do not block.
#pragma once

#include <stdbool.h>
#include <stddef.h>

int   terminal_columns(int fd);   // `fd`'s width; 0: not a terminal, or unknown
bool  terminal_is_live(int fd);   // fd is a terminal that understands escape sequences: TERM is set and not "dumb"

enum { OUTPUT_TIMEOUT = 500 };   // milliseconds

// Writes n bytes to a pipe, terminal or file. If its reader takes nothing for `timeout` milliseconds (less, a terminal
// after Ctrl-S, a full pipe), stops with errno EAGAIN. Returns the number of bytes written; if it is less than n,
// errno is the reason. May be called in a signal handler.
size_t output_write(int fd, const char* bytes, size_t n, int timeout);
