// openmp.h: OpenMP's thread count and index, with single-thread versions for builds without OpenMP.
#pragma once

enum { THREADS_LIMIT = 4096 };   // of --threads and OMP_NUM_THREADS; creating more takes minutes

#ifdef _OPENMP
#include <omp.h>
enum { THREADS_MANY = 1 };   // true if this build can run more than one thread
static inline void threads_set(int n) { omp_set_num_threads(n); }
// n, but no more than the processors to which OMP_PLACES, OMP_PROC_BIND or GOMP_CPU_AFFINITY bind the threads: two that
// spin on one processor take a hundred times as long as one.
static inline int  threads_bound(int n) {
    const omp_proc_bind_t bind = omp_get_proc_bind(), primary = (omp_proc_bind_t)2;   // "master" before OpenMP 5.1
    int processors = 0;
    if (bind == omp_proc_bind_false) return n;
    if (bind == primary) processors = omp_get_place_num_procs(omp_get_place_num());
    else for (int i = 0; i < omp_get_num_places(); i++) processors += omp_get_place_num_procs(i);
    return processors > 0 && processors < n ? processors : n;
}
static inline int  threads_max(void) {
    const int n = omp_get_max_threads(), limit = omp_get_thread_limit();   // OMP_NUM_THREADS, OMP_THREAD_LIMIT
    return threads_bound(n < limit ? n : limit);
}
static inline int  thread_index(void) { return omp_get_thread_num(); }     // in a parallel region
#else
enum { THREADS_MANY = 0 };
static inline void threads_set(int n) { (void)n; }
static inline int  threads_bound(int n) { return n; }
static inline int  threads_max(void) { return 1; }
static inline int  thread_index(void) { return 0; }
#endif
static inline int  threads_or_max(int n) { return n > 0 ? threads_bound(n) : threads_max(); }
