// schedule.h: the learning rate of an update.
#ifndef TOST_SCHEDULE_H
#define TOST_SCHEDULE_H

#include <stdint.h>

// Rate of update `step`, counted from 0: peak · step/warmup while step < warmup, then the cosine
//   min + (peak - min) · (1 + cos(π (step - warmup) / (steps - warmup))) / 2,   min = min_frac · peak,
// which starts at peak and reaches min at step = steps, as in the published code. At or past `steps`: min.
double schedule_lr(int64_t step, int64_t steps, int64_t warmup, double peak, double min_frac);

#endif
