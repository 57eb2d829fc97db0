// clock.h: time.
#ifndef TOST_CLOCK_H
#define TOST_CLOCK_H

#include <time.h>

static inline double now_seconds(void) {   // monotonic
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
