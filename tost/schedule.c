// schedule.c: linear warm-up, then cosine decay.
#include "schedule.h"

#include <math.h>

double schedule_lr(int64_t step, int64_t steps, int64_t warmup, double peak, double min_frac) {
    const double pi = 3.14159265358979323846;
    const double min = min_frac * peak;
    if (step >= steps) return min;
    if (step < warmup) return peak * (double)step / (double)warmup;
    double done = (double)(step - warmup) / (double)(steps - warmup);   // warmup <= step < steps: never 0 / 0
    return min + (peak - min) * 0.5 * (1.0 + cos(pi * done));
}
