// clock.h: time.
#pragma once

#include <time.h>

static inline double clock_seconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static inline double now_seconds(void) { return clock_seconds(CLOCK_MONOTONIC); }
