// schedule.h: the learning rate.
#ifndef TOST_SCHEDULE_H
#define TOST_SCHEDULE_H

#include <stdint.h>

// Learning rate of `step`, counted from 0: linear warm-up peak · step / warmup while step < warmup, then the cosine
//   min + (peak - min) · (1 + cos(π (step - warmup) / (steps - warmup))) / 2,   min = min_frac · peak,
// from peak to min at step = steps, as in the published code. From `steps` on: min.
double schedule_lr(int64_t step, int64_t steps, int64_t warmup, double peak, double min_frac);

#endif
