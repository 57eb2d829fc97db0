// schedule.h: the learning rate of each step.
#pragma once

#include <stdint.h>

// wsd: warm-up, stable, decay. In the order of --schedule.
typedef enum { SCHEDULE_COSINE, SCHEDULE_WSD, SCHEDULE_LINEAR, SCHEDULE_CONSTANT } ScheduleKind;
typedef struct { ScheduleKind kind; int64_t steps, warmup; double lr, min_lr_frac, decay_frac; } Schedule;

// Learning rate of `step`, counted from 0. Warm-up: lr · step / warmup while step < warmup. Then, with
// x = (step - start) / (steps - start) and min = min_lr_frac · lr,
//   cosine     min + (lr - min) · (1 + cos(π x)) / 2,   start = warmup, as in the published code
//   linear     min + (lr - min) · (1 - x),              start = warmup
//   wsd        lr until start = schedule_decay_start, then as linear
//   constant   lr
// From `steps` on: min, or lr if constant.
double schedule_lr(Schedule s, int64_t step);

// The step at which the decay begins: the rate before it does not depend on `steps`. INT64_MAX if there is no decay.
int64_t schedule_decay_start(Schedule s);
