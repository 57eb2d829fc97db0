// progress.h: progress display. On a terminal, one live line is redrawn in place below all other output; elsewhere,
// plain lines are written.
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
    int64_t steps_done;    // number of calls of progress_step
    double  smoothed_ms;   // moving average of the time per training step; 0 before the first step
    int     failed;        // errno of the first failed write, after which nothing is printed; 0: none
} Progress;

Progress progress_new(FILE* out, bool quiet);
// Shows one of `steps` training steps: a live line with bar, tokens/s and ETA, or a plain line. Steps are counted from
// 1 (row->step + 1). The validation loss is not shown.
void     progress_step(Progress* p, const LogRow* row, int64_t steps);
// Shows the progress of other work. `done` is the fraction completed, 0 to 1, for percentage and ETA; NAN if unknown.
// May be called often: live lines are at least 0.25 s apart, plain lines 30 s.
void     progress_show(Progress* p, double done, const char* fmt, ...) PRINTF_LIKE(3, 4);
// Prints a line above the live line; adds the newline.
void     progress_text(Progress* p, const char* fmt, ...) PRINTF_LIKE(2, 3);
// End the live line, if there is one: progress_end leaves it on the screen, progress_erase removes it.
void     progress_end(Progress* p);
void     progress_erase(Progress* p);

#endif
