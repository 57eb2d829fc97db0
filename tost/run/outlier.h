// outlier.h: detects steps whose loss or gradient norm is an outlier among the last accepted steps.
#ifndef TOST_OUTLIER_H
#define TOST_OUTLIER_H

#include "base/error.h"

#define OUTLIER_WINDOW 128   // a macro, because --help prints its value

// A ring buffer: once it is full, value[next] is the oldest.
typedef struct { int count, next; double value[OUTLIER_WINDOW]; } OutlierWindow;

typedef struct {
    OutlierWindow loss, norm;          // of accepted steps
    int64_t       skipped, in_a_row;   // skipped steps: in total, and since the last accepted step
} OutlierDetector;

// (x - mean) / standard deviation of a full window; 0 if it is not full or all its values are equal. Sums start at the
// oldest value, so a resumed run, whose ring buffer starts at another index, computes the same bits.
double outlier_z(const OutlierWindow* w, double x);
void   outlier_accept(OutlierDetector* d, double loss, double norm);
void   outlier_skip(OutlierDetector* d);

// For checkpoints: the values, oldest first, with 17 digits, separated by spaces. free()
char* outlier_window_text(const OutlierWindow* w);
bool  outlier_window_parse(OutlierWindow* w, const char* text);   // false if the text is malformed

#endif
