// log.h: log.csv, one row a training step.
#ifndef TOST_LOG_H
#define TOST_LOG_H

#include <math.h>
#include "util.h"

typedef struct {
    int64_t step;          // 0-based update
    int64_t tokens;        // seen up to and with this update
    double  train_loss;    // nats a token, mean over the update
    double  val_loss;      // NAN where not measured
    double  lr, grad_norm;
    double  ms, tokens_per_s;
} LogRow;

// OUT/log.csv: header step,tokens,train_loss,val_loss,lr,grad_norm,ms,tokens_per_s; losses and norms with
// nine decimals, val_loss empty where not measured; written row by row. What a full disk does not take waits
// in memory and goes before the next row, so that none is missing or doubled once there is room.
typedef struct {
    char*   path;           // NULL: closed
    int     fd;
    bool    regular;        // else a device or a pipe, for which nothing waits
    char*   waiting;        // bytes not yet written
    size_t  n_waiting;
    int64_t rows_waiting;   // rows that are not whole in the file
    int64_t synced;         // length that the last sync made sure of
    bool    sync_failed;    // the last sync
} LogFile;

// Whether a fresh log may be begun at path: nothing is there, or nothing is in it, or it is no regular file
// (a device), or with `overwrite` it begins as a log does.
bool log_check_fresh(const char* path, bool overwrite, TostError* err);
// A fresh log (resume_step -1), or the old one cut back to rows before resume_step (so that a resumed run
// neither doubles nor misses a step); an error if rows before it are missing. A log that is not there, or has
// no rows, starts at resume_step. The cut makes the file shorter and touches nothing else of it; a last line
// without its newline counts as not written. A log that another run writes is refused.
bool log_open(LogFile* log, const char* path, int64_t resume_step, TostError* err);
// False where rows are left waiting; the next call tries them again.
bool log_row(LogFile* log, const LogRow* row, TostError* err);
// Before a checkpoint is saved: else a power cut could leave a checkpoint whose steps the log has lost.
bool log_sync(LogFile* log, TostError* err);
bool log_close(LogFile* log, TostError* err);      // of a closed or never opened (zeroed) log: nothing

// NaN without the sign that printf may give it.
static inline double plain_nan(double x) { return isnan(x) ? NAN : x; }

char* log_row_text(const LogRow* row);             // as it stands in the log, with its newline. free()
bool  log_row_parse(LogRow* row, const char* text);   // of such a text; false where it is none

#endif
