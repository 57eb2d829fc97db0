// outlier.h: detects steps whose loss or gradient norm is an outlier among the last accepted steps.
#pragma once

#include "base/error.h"

#define OUTLIER_WINDOW 128   // a macro, because --help prints its value

typedef struct { int count; double value[OUTLIER_WINDOW]; } OutlierWindow;   // oldest first

typedef struct {
    OutlierWindow loss, norm;          // of accepted steps
    int64_t       skipped, in_a_row;   // skipped steps: in total, and since the last accepted step
} OutlierDetector;

// (x - mean) / standard deviation of a full window; 0 if it is not full or all its values are equal.
double outlier_z(const OutlierWindow* w, double x);
void   outlier_accept(OutlierDetector* d, double loss, double norm);
void   outlier_skip(OutlierDetector* d);

// For checkpoints: the values, oldest first, with 17 digits, separated by spaces. free()
char* outlier_window_text(const OutlierWindow* w);
bool  outlier_window_parse(OutlierWindow* w, const char* text);   // false if the text is malformed
