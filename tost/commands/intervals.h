// intervals.h: means and shares with 95 % confidence intervals.
#pragma once

#include <math.h>
#include <stdint.h>

static const double z95 = 1.959963984540054;   // two-sided 95 % quantile of the normal distribution

// The ratio Σx / Σy over independent samples: nats per token; a sample is a window or an example.
typedef struct { double n, x, y, xx, xy, yy; } Ratio;

static inline void ratio_add(Ratio* sum, double x, double y) {
    sum->n++;
    sum->x += x;
    sum->y += y;
    sum->xx += x * x;
    sum->xy += x * y;
    sum->yy += y * y;
}

static inline double ratio_value(const Ratio* sum) { return sum->x / sum->y; }

// Half the width of the interval; NAN for fewer than two samples.
// Delta method: the variance of Σx/Σy is n/(n-1) · Σ (x - ratio·y)² / (Σy)².
static inline double ratio_error(const Ratio* sum) {
    if (sum->n < 2) return NAN;
    const double ratio = sum->x / sum->y;
    const double squares = fmax(0.0, sum->xx - 2 * ratio * sum->xy + ratio * ratio * sum->yy);
    return z95 * sqrt(sum->n / (sum->n - 1) * squares) / sum->y;
}

typedef struct { double low, high; } Interval;

// Of a proportion, n > 0: Wilson's interval, accurate for few examples and near 0 and 1.
static inline Interval share_interval(int64_t hits, int64_t n) {
    const double p = (double)hits / (double)n, zz = z95 * z95 / (double)n;
    const double middle = (p + zz / 2) / (1 + zz);
    const double half = z95 / (1 + zz) * sqrt((p * (1 - p) + zz / 4) / (double)n);
    return (Interval){hits == 0 ? 0 : middle - half, hits == n ? 1 : middle + half};
}
