// openmp.h: OpenMP's thread count and index, with single-thread versions for builds without OpenMP.
#pragma once

enum { THREADS_LIMIT = 4096 };   // of --threads and OMP_NUM_THREADS; creating more takes minutes

#ifdef _OPENMP
#include <omp.h>
enum { THREADS_MANY = 1 };   // true if this build can run more than one thread
// Not with OMP_DYNAMIC, which would give fewer: cpu/threads.c chooses the number.
static inline void threads_set(int n) { omp_set_dynamic(0), omp_set_num_threads(n); }
// n, but no more than OMP_MAX_ACTIVE_LEVELS and OMP_THREAD_LIMIT allow, nor than the processors to which OMP_PLACES,
// OMP_PROC_BIND or GOMP_CPU_AFFINITY bind the threads: two that spin on one take a hundred times as long as one thread.
static inline int  threads_bound(int n) {
    const omp_proc_bind_t bind = omp_get_proc_bind(), primary = (omp_proc_bind_t)2;   // "master" before OpenMP 5.1
    int processors = 0;
    if (omp_get_max_active_levels() == 0) return 1;
    if (n > omp_get_thread_limit()) n = omp_get_thread_limit();
    if (bind == omp_proc_bind_false) return n;
    if (bind == primary) processors = omp_get_place_num_procs(omp_get_place_num());
    else for (int i = 0; i < omp_get_num_places(); i++) processors += omp_get_place_num_procs(i);
    return processors > 0 && processors < n ? processors : n;
}
static inline int  threads_max(void) { return threads_bound(omp_get_max_threads()); }   // OMP_NUM_THREADS
static inline int  thread_index(void) { return omp_get_thread_num(); }     // in a parallel region
#else
enum { THREADS_MANY = 0 };
static inline void threads_set(int n) { (void)n; }
static inline int  threads_bound(int n) { return n; }
static inline int  threads_max(void) { return 1; }
static inline int  thread_index(void) { return 0; }
#endif
static inline int  threads_or_max(int n) { return n > 0 ? threads_bound(n) : threads_max(); }
