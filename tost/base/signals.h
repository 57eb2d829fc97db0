// signals.h: SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGXCPU stop a run after the current micro-batch, and end vocab,
// tokenize and eval, which then have no result.
#pragma once

#include <stdbool.h>

void signals_catch(bool announce);       // announce: print a line on stderr when one arrives
int  signals_received(void);             // number of the first signal caught, or 0
const char* signals_name(int number);    // its name, or NULL
// Makes a write to a closed pipe or beyond the file size limit return an error instead of killing the process.
void signals_ignore_write_errors(void);
