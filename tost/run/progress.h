// progress.h: progress display. On a terminal, one live line is redrawn in place below all other output; elsewhere,
// plain lines are written. If the reader of the output stops, lines are dropped: the work never waits for it.
#pragma once

#include <stdio.h>
#include "store/log.h"

typedef struct {
    int     fd;            // stdout for train, stderr for eval and tokenize
    bool    live, quiet;   // live: fd is a terminal; quiet: print nothing
    bool    line_open;     // a live line is on the screen
    double  interval;      // seconds between plain progress lines, at first
    double  began, shown;  // now_seconds() at progress_new, from where --max-time counts; when progress was last shown
    double  started;       // now_seconds() at progress_start
    // training
    int64_t first, steps;             // step at which this process started; steps of the whole run
    int64_t micro_batches, tokens;    // per step
    double  peak_tokens_per_s;        // at the peak rate of the device: MFU 100%; 0: unknown
    int64_t step;                     // current step, counted from 0
    double  done;                     // its completed micro-batches
    double  run_started, step_started;   // now_seconds(); 0 before the first step
    LogRow  last;                     // the last completed step, or step -1
    bool    stopped;       // the reader has stopped: the last text was not written
    int     failed;        // errno of the last failed write: EAGAIN if the reader had stopped; after any other, nothing
                           // is printed
    int     reported;      // the last errno that report_lost_output warned of
} Progress;

Progress progress_new(FILE* out, bool quiet);

// A training run starts or continues at step `first`; micro-batches and tokens per step.
void     progress_train(Progress* p, int64_t first, int64_t steps, int64_t micro_batches, int64_t tokens);
// Shows that `done` micro-batches of the current step are completed, also a part of one; 0 starts a step. May be called
// often.
void     progress_micro_batch(Progress* p, double done);
// Shows a completed step, unless one was shown shortly before; the first and the last are always shown.
void     progress_step(Progress* p, const LogRow* row);

// Shows the progress of other work. `done` is the fraction completed, 0 to 1, for percentage and ETA; NAN if unknown.
// May be called often.
void     progress_show(Progress* p, double done, const char* fmt, ...) PRINTF_LIKE(3, 4);
void     progress_start(Progress* p);   // call when the work that progress_show shows begins
// Prints a line above the live line; adds the newline.
void     progress_text(Progress* p, const char* fmt, ...) PRINTF_LIKE(2, 3);
void     progress_fact(Progress* p, const char* label, const char* fmt, ...) PRINTF_LIKE(3, 4);   // label: 11 columns
// End the live line, if there is one: progress_end leaves it on the screen, progress_erase removes it.
void     progress_end(Progress* p);
void     progress_erase(Progress* p);
