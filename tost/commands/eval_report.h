// eval_report.h: evaluation metrics with 95 % confidence intervals.
#pragma once

#include <stdint.h>

// The ratio Σx / Σy over independent samples: nats per token; a sample is a window or an example.
typedef struct { double n, x, y, xx, xy, yy; } Ratio;

void   ratio_add(Ratio* r, double x, double y);
double ratio_value(const Ratio* r);
// Half the width of the 95 % confidence interval, by the delta method; NAN for fewer than two samples.
double ratio_error(const Ratio* r);

// Wilson's 95 % confidence interval of a proportion: accurate for few examples and near 0 and 1.
typedef struct { double low, high; } Interval;

Interval share_interval(int64_t hits, int64_t n);   // n > 0
