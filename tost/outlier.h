// outlier.h: whether an update may reach the parameters: its loss and gradient norm must be finite and, where
// that is asked for, no outliers among the last updates that were made.
#ifndef TOST_GUARD_H
#define TOST_GUARD_H

#include "util.h"

#define OUTLIER_WINDOW 128   // a macro: --help shows its number

// The last values, oldest first from value[next] once it is full.
typedef struct { int count, next; double value[OUTLIER_WINDOW]; } OutlierWindow;

typedef struct {
    OutlierWindow loss, norm;          // of updates that were made
    int64_t     skipped, in_a_row;   // updates that were not: in all, and since the last that was
} OutlierDetector;

// (x - mean) / standard deviation of a full window; 0 before it is full, and where all its values are equal.
// The sums are taken oldest first: a resumed run, whose ring begins elsewhere, finds the same bits.
double outlier_z(const OutlierWindow* w, double x);
void   outlier_accept(OutlierDetector* g, double loss, double norm);   // an update that was made
void   outlier_skip(OutlierDetector* g);

// For a checkpoint: the values oldest first, each in 17 digits, with a space between. free()
char* outlier_window_text(const OutlierWindow* w);
// False where the text is not that.
bool  outlier_window_parse(OutlierWindow* w, const char* text);

#endif
