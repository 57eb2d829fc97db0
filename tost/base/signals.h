// signals.h: SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 and SIGXCPU stop a run after the current micro-batch, and end
// vocab, tokenize and eval, which then have no result.
#pragma once

#include <stdbool.h>

// last: what the program does until it stops, for the line on stderr when a signal arrives; NULL: no line
void signals_catch(const char* last);
int  signals_received(void);             // number of the first signal caught, or 0
const char* signals_name(int number);    // its name, or NULL
// Makes a write to a closed pipe or beyond the file size limit return an error instead of killing the process.
void signals_ignore_write_errors(void);
