// threads.c: the number of threads that a pass uses, and flushing of subnormal numbers to zero.
#include "cpu/threads.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "base/clock.h"

// Subnormal operands and results become zero. Other processors keep them, which only costs time.
static void flush_subnormals(void) {
#if defined(__x86_64__)
    enum { FLUSH_TO_ZERO = 1 << 15, DENORMALS_ARE_ZERO = 1 << 6 };
    _mm_setcsr(_mm_getcsr() | FLUSH_TO_ZERO | DENORMALS_ARE_ZERO);
#elif defined(__aarch64__)
    const uint64_t flush_to_zero = (uint64_t)1 << 24;   // of results and operands
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    __asm__ volatile("msr fpcr, %0" : : "r"(control | flush_to_zero));
#endif
}

Threads threads_start(int n) {
    const int max = threads_or_max(n);
    // Fixed if the user has set how threads wait: those that sleep use no processor time, which looks like time lost to
    // other processes.
    const bool fixed = getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT") || getenv("KMP_BLOCKTIME")
                       || getenv("KMP_LIBRARY");
    threads_set(max);
    flush_subnormals();   // threads that start later inherit it
    #pragma omp parallel
    flush_subnormals();
    return (Threads){.max = max, .now = max, .pass = max, .fixed = fixed};
}

void threads_begin(Threads* t, bool small) {
    t->began = now_seconds();
    if (t->now < t->max && t->began >= t->retry) {
        t->now = t->max;
        t->cpu = t->wall = 0;
    }
    t->pass = small && !t->fixed ? 1 : t->now;
    threads_set(t->pass);
    t->cpu_began = clock_seconds(CLOCK_PROCESS_CPUTIME_ID);
}

void threads_end(Threads* t) {
    const double window = t->decided ? 0.25 : 0.05;       // seconds; short at first, for short programs
    const double first_pause = 2, longest_pause = 64;     // seconds
    const double trial = 1.0 / 16;                        // most of the time in which all threads are tried again
    const double lost = 0.35;                             // of a thread's time
    if (t->fixed || t->pass == 1) return;
    const double now = now_seconds(), cpu = clock_seconds(CLOCK_PROCESS_CPUTIME_ID);
    t->wall += now - t->began;
    t->cpu += cpu - t->cpu_began;
    t->began = now;
    t->cpu_began = cpu;
    if (t->wall < window) return;
    t->decided = true;
    const double missing = t->now - t->cpu / t->wall, tried = t->wall;
    t->cpu = t->wall = 0;
    if (missing < lost) {
        if (t->began >= t->retry + t->pause) t->pause = 0;
        return;
    }
    t->pass = t->now = missing < t->now - 1 ? t->now - (int)ceil(missing) : 1;
    t->pause = fmin(t->pause == 0 ? fmax(first_pause, tried / trial) : 2 * t->pause, longest_pause);
    t->retry = t->began + t->pause;
    threads_set(t->now);
}
