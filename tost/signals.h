// signals.h: SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGXCPU stop a run after the current micro-batch, and tokenize.
// A second SIGINT or SIGTERM quits immediately.
#ifndef TOST_SIGNALS_H
#define TOST_SIGNALS_H

void signals_catch(void);
int  signals_received(void);     // number of the first signal caught, or 0
const char* signals_name(void);  // its name, or NULL
// Makes a write to a closed pipe or beyond the file size limit return an error instead of killing the process.
void signals_ignore_write_errors(void);

#endif
