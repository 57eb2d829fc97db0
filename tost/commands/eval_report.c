#include "commands/eval_report.h"

#include <math.h>

static const double z95 = 1.959963984540054;   // two-sided 95 % quantile of the normal distribution

void ratio_add(Ratio* r, double x, double y) {
    r->n++;
    r->x += x;
    r->y += y;
    r->xx += x * x;
    r->xy += x * y;
    r->yy += y * y;
}

double ratio_value(const Ratio* r) { return r->x / r->y; }

// Delta method: the variance of Σx/Σy is n/(n-1) · Σ (x - ratio·y)² / (Σy)².
double ratio_error(const Ratio* r) {
    if (r->n < 2) return NAN;
    const double ratio = r->x / r->y;
    const double squares = fmax(0.0, r->xx - 2 * ratio * r->xy + ratio * ratio * r->yy);
    return z95 * sqrt(r->n / (r->n - 1) * squares) / r->y;
}

Interval share_interval(int64_t hits, int64_t n) {
    const double p = (double)hits / (double)n, zz = z95 * z95 / (double)n;
    const double middle = (p + zz / 2) / (1 + zz);
    const double half = z95 / (1 + zz) * sqrt((p * (1 - p) + zz / 4) / (double)n);
    return (Interval){hits == 0 ? 0 : middle - half, hits == n ? 1 : middle + half};
}
