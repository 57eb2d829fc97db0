// schedule.h: the learning rate.
#ifndef TOST_SCHEDULE_H
#define TOST_SCHEDULE_H

#include <stdint.h>

// wsd: warm-up, stable, decay. In the order of --schedule.
typedef enum { SCHEDULE_COSINE, SCHEDULE_WSD, SCHEDULE_LINEAR, SCHEDULE_CONSTANT } ScheduleKind;

typedef struct {
    ScheduleKind kind;
    int64_t      steps, warmup;
    double       peak, min_frac;   // the final rate is min_frac · peak
    double       decay_frac;       // wsd: fraction of the steps that decay
} Schedule;

// Learning rate of `step`, counted from 0. Warm-up: peak · step / warmup while step < warmup. Then, with
// x = (step - start) / (steps - start) and min = min_frac · peak,
//   cosine     min + (peak - min) · (1 + cos(π x)) / 2,   start = warmup, as in the published code
//   linear     min + (peak - min) · (1 - x),              start = warmup
//   wsd        peak until start = schedule_decay_start, then as linear
//   constant   peak
// From `steps` on: min, or peak if constant.
double schedule_lr(const Schedule* s, int64_t step);

// The step at which the decay begins: the rate before it does not depend on `steps`. INT64_MAX if there is no decay.
int64_t schedule_decay_start(const Schedule* s);

#endif
