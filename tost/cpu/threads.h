// threads.h: OpenMP's thread count and index, with single-thread versions for builds without OpenMP; and the number of
// threads of an engine, which adapts to other processes.
#ifndef TOST_THREADS_H
#define TOST_THREADS_H

#include <stdbool.h>

enum { THREADS_LIMIT = 4096 };   // of --threads and OMP_NUM_THREADS; creating more takes minutes

#ifdef _OPENMP
#include <omp.h>
enum { THREADS_MANY = 1 };   // true if this build can run more than one thread
static inline void threads_set(int n) { omp_set_num_threads(n); }
static inline int  threads_max(void) {
    const int n = omp_get_max_threads(), limit = omp_get_thread_limit();   // OMP_NUM_THREADS, OMP_THREAD_LIMIT
    return n < limit ? n : limit;
}
static inline int  thread_index(void) { return omp_get_thread_num(); }     // in a parallel region
#else
enum { THREADS_MANY = 0 };
static inline void threads_set(int n) { (void)n; }
static inline int  threads_max(void) { return 1; }
static inline int  thread_index(void) { return 0; }
#endif

// The passes of an engine use `now` of `max` threads. Threads wait for each other in every layer, so if another process
// takes the core of one thread, all wait for it. If the threads of a pass get too little processor time, the next
// passes use fewer; after a pause, they use all again. Results do not depend on the number of threads, except with a
// BLAS library: there the number is fixed. It is also fixed if the environment configures OpenMP (OMP_*, GOMP_*,
// KMP_*).
typedef struct {
    int    max, now;
    bool   fixed, decided;          // decided: at least once
    double wall, cpu;               // seconds, in passes since the last decision
    double began, cpu_began;        // of the current pass
    double retry, pause;            // when to use all threads again; seconds from the decision to retry
} Threads;

// n threads, 0: the default number. In all threads, including those that start later, subnormal numbers become zero
// (on x86-64 and aarch64): they can make arithmetic more than ten times slower.
Threads threads_start(int n);
void    threads_begin(Threads* t);   // around each pass
void    threads_end(Threads* t);

#endif
