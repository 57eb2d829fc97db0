// log.h: log.csv, one row per training step, and one for the validation before the first.
#pragma once

#include <math.h>

#include "base/files.h"

typedef struct {
    int64_t step;          // counted from 1; 0: before the first, with no other value than val_loss
    int64_t tokens;        // seen in training, this step included
    double  train_loss;    // nats per token, mean over the step
    double  val_loss;      // NAN if not measured
    double  lr, grad_norm;
    double  ms, tokens_per_s;
} LogRow;

// OUT/log.csv: header step,tokens,train_loss,val_loss,lr,grad_norm,ms,tokens_per_s; losses and norms with nine
// decimals, val_loss empty if not measured. Each row is appended immediately. If that fails, it is kept, and the next
// call tries again.
typedef struct {
    Path  path;        // empty: closed
    int   fd;
    Bytes rows;        // what is not in the file yet; may begin within a row
    int   failed;      // errno of the last call, or 0
    int   reported;    // the last errno that report_lost_output warned of
} LogFile;

// Starts a new log (done: -1), or cuts an existing one after the row of step `done`. Rows that are not those of
// increasing steps up to that one are an error, and so is a device, a pipe or a file with several hard links, as after
// cp -al of the folder.
bool log_open(LogFile* log, const char* path, int64_t done, TostError* err);
// Returns false only if the file was removed, as log_sync does. If it cannot be written, they set log->failed.
bool log_row(LogFile* log, const LogRow* row, TostError* err);
// Call it before saving a checkpoint: after a power failure, the log should have the rows of its steps.
bool log_sync(LogFile* log, TostError* err);
void log_close(LogFile* log);                         // does nothing if the log is closed or zeroed

char* log_row_text(const LogRow* row);               // a line of the log; not a number is NaN, not nan. free()
bool log_row_parse(LogRow* row, const char* text);   // false if text does not begin with such a line

// Removes the sign of a NaN, which printf may print.
static inline double plain_nan(double x) { return isnan(x) ? NAN : x; }
