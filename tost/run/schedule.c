// schedule.c: linear warm-up, then a constant rate, a decay, or both.
#include "run/schedule.h"

#include <math.h>

int64_t schedule_decay_start(const Options* o) {
    if (o->schedule == SCHEDULE_CONSTANT) return INT64_MAX;
    const int64_t start = o->steps - (int64_t)llround(o->decay_frac * (double)o->steps);
    return o->schedule == SCHEDULE_WSD && start > o->warmup ? start : o->warmup;
}

double schedule_lr(const Options* o, int64_t step) {
    const double pi = 3.14159265358979323846;
    const double min = o->min_lr_frac * o->lr;
    const int64_t start = schedule_decay_start(o);
    if (step >= o->steps && o->schedule != SCHEDULE_CONSTANT) return min;
    if (step < o->warmup) return o->lr * (double)step / (double)o->warmup;
    if (step < start) return o->lr;
    const double done = (double)(step - start) / (double)(o->steps - start);   // start <= step < steps: never 0 / 0
    return min + (o->lr - min) * (o->schedule == SCHEDULE_COSINE ? 0.5 * (1.0 + cos(pi * done)) : 1.0 - done);
}
