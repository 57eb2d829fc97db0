// schedule.c: the learning rate of each step.
#include "schedule.h"

#include <math.h>

int64_t schedule_decay_start(Schedule s) {
    if (s.kind == SCHEDULE_CONSTANT) return INT64_MAX;
    const int64_t start = s.steps - (int64_t)llround(s.decay_frac * (double)s.steps);
    return s.kind == SCHEDULE_WSD && start > s.warmup ? start : s.warmup;
}

double schedule_lr(Schedule s, int64_t step) {
    const double pi = 3.14159265358979323846;
    const double min = s.min_lr_frac * s.lr;
    const int64_t start = schedule_decay_start(s);
    if (step >= s.steps && s.kind != SCHEDULE_CONSTANT) return min;
    if (step < s.warmup) return s.lr * (double)step / (double)s.warmup;
    if (step < start) return s.lr;
    const double done = (double)(step - start) / (double)(s.steps - start);   // start <= step < steps: never 0 / 0
    return min + (s.lr - min) * (s.kind == SCHEDULE_COSINE ? 0.5 * (1.0 + cos(pi * done)) : 1.0 - done);
}
