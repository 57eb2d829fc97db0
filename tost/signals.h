// signals.h: SIGINT, SIGTERM and SIGHUP stop a run after the current step; a second signal quits immediately.
#ifndef TOST_SIGNALS_H
#define TOST_SIGNALS_H

void signals_catch(void);
int  signals_received(void);   // number of the first signal caught, or 0
// Makes a write to a closed pipe or beyond the file size limit return an error instead of killing the process.
void signals_ignore_write_errors(void);

#endif
