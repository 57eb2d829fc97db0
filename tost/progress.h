// progress.h: shows how far a command is. On a terminal one live line is redrawn in place, below whatever else is
// printed; elsewhere plain lines are written.
#ifndef TOST_PROGRESS_H
#define TOST_PROGRESS_H

#include <stdio.h>
#include "log.h"

typedef struct {
    FILE*   out;           // stdout for train, stderr for eval and tokenize
    bool    live, quiet;   // live: out is a terminal; quiet: print nothing
    bool    line_open;     // a live line is on the screen
    double  started;       // now_seconds() at progress_new, or when the first training step began
    double  shown;         // now_seconds() of the last progress_show that printed
    int64_t steps_done;    // calls of progress_step
    double  smoothed_ms;   // moving average over the training steps; 0 before the first
    int     failed;        // errno of the first failed write, after which nothing is printed; 0: none
} Progress;

Progress progress_new(FILE* out, bool quiet);
// One training step of `steps`: a live line with bar, tokens/s and time left, or a plain line. It shows the number of
// steps done (row->step + 1) and no validation loss.
void     progress_step(Progress* p, const LogRow* row, int64_t steps);
// Work without a line of its own for each step: call as often as you like. `done` is its share, 0 to 1, from which the
// time left follows, or NAN. Live lines are at least 0.25 s apart, plain lines 30 s.
void     progress_show(Progress* p, double done, const char* fmt, ...) PRINTF_LIKE(3, 4);
// A line of its own (the newline is added), above the live line.
void     progress_text(Progress* p, const char* fmt, ...) PRINTF_LIKE(2, 3);
// Both end the live line, if there is one: progress_end leaves it on the screen, progress_erase does not.
void     progress_end(Progress* p);
void     progress_erase(Progress* p);

#endif
