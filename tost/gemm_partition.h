// gemm_partition.h: how a matrix product is divided among threads.
//
// c (M,N) is cut into bands of rows, each computed by some of the threads in slices of columns. The height of a band
// is proportional to its number of threads, so any number of threads gets equal shares. Each slice is its own product.
// Neighboring slices pack some of the same data, which costs less than synchronizing.
#ifndef TOST_GEMM_PARTITION_H
#define TOST_GEMM_PARTITION_H

#include <stdint.h>

typedef struct { int M, N, unit_m, unit_n, threads, bands; } Partition;   // slices begin at multiples of the units
typedef struct { int i, j, m, n; } Slice;                                 // m or n may be 0

static inline int64_t partition_units(int n, int unit) { return n / unit + (n % unit != 0); }

// Start of part i, if n is divided into `parts` at multiples of unit.
static inline int partition_cut(int n, int unit, int i, int parts) {
    const int64_t at = partition_units(n, unit) * i / parts * unit;
    return at < n ? (int)at : n;
}

// Time of the largest slice if a band has p threads, in multiply-adds. Packing an element costs as much as 16 of them.
static inline double partition_time(const Partition* x, int p) {
    enum { PACK = 16 };
    const double m = (double)((partition_units(x->M, x->unit_m) * p + x->threads - 1) / x->threads * x->unit_m);
    const double n = (double)((partition_units(x->N, x->unit_n) + p - 1) / p * x->unit_n);
    return m * n + PACK * (m + n);
}

static inline Partition partition_of(int M, int N, int unit_m, int unit_n, int threads) {
    Partition x = { M, N, unit_m, unit_n, threads, 1 };
    double best = partition_time(&x, threads);
    for (int bands = 2; bands <= threads; bands++) {
        const double few = partition_time(&x, threads / bands), many = partition_time(&x, (threads - 1) / bands + 1);
        const double time = few > many ? few : many;
        if (time < best) best = time, x.bands = bands;
    }
    return x;
}

static inline Slice partition_slice(const Partition* x, int t) {
    const int band = (int)((((int64_t)t + 1) * x->bands - 1) / x->threads);
    const int first = (int)((int64_t)x->threads * band / x->bands);
    const int next = (int)((int64_t)x->threads * (band + 1) / x->bands);
    Slice s = { partition_cut(x->M, x->unit_m, first, x->threads),
                partition_cut(x->N, x->unit_n, t - first, next - first), 0, 0 };
    s.m = partition_cut(x->M, x->unit_m, next, x->threads) - s.i;
    s.n = partition_cut(x->N, x->unit_n, t - first + 1, next - first) - s.j;
    return s;
}

#endif
