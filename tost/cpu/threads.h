// threads.h: the number of threads of an engine, which adapts to other processes.
#pragma once

#include <stdbool.h>

#include "base/openmp.h"

// Up to this many rows (a decode step), threading a loop over rows costs more than it saves.
enum { SERIAL_ROWS = 8 };

// A pass of an engine uses `now` threads, at most `max`. A small pass, in which threads would cost more than they save,
// uses one. Its backward and all else up to the next pass use as many as the pass. Threads wait for each other in every
// layer, so if another process takes the core of one thread, all wait for it. Therefore, if the threads of a pass get
// too little processor time, the next passes use fewer; after a pause, they use all again. Results do not depend on the
// number of threads. A pass always uses `max` threads if the environment says how threads wait (OMP_WAIT_POLICY,
// GOMP_SPINCOUNT, KMP_BLOCKTIME, KMP_LIBRARY).
typedef struct {
    int    max, now, pass;          // pass: of the current one
    bool   fixed, decided;          // decided: at least once
    double wall, cpu;               // seconds, in passes since the last decision
    double began, cpu_began;        // of the current pass
    double retry, pause;            // when to use all threads again; seconds from the decision to retry
} Threads;

// n threads, 0: the default number. In all threads, including those that start later, subnormal numbers become zero
// (on x86-64 and aarch64): they can make arithmetic more than ten times slower.
Threads threads_start(int n);
void    threads_begin(Threads* t, bool small);   // around each pass
void    threads_end(Threads* t);                 // may be called again after more work of the pass
