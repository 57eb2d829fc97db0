// gemm_partition.h: how a matrix product is divided among threads.
//
// c (M,N) is cut into bands of rows, each computed by some of the threads in slices of columns. The height of a band
// is proportional to its number of threads, so any number of threads gets equal shares. Each slice is its own product.
// Neighboring slices pack some of the same data, which costs less than synchronizing.
#pragma once

#include <float.h>
#include <stdint.h>

typedef struct { int M, N, unit_m, unit_n, threads, bands; } Partition;   // slices begin at multiples of the units
typedef struct { int i, j, m, n; } Slice;                                 // m or n may be 0

static inline int64_t partition_units(int n, int unit) { return n / unit + (n % unit != 0); }

// Start of part i, if n is divided into `parts` at multiples of unit.
static inline int partition_cut(int n, int unit, int i, int parts) {
    const int64_t at = partition_units(n, unit) * i / parts * unit;
    return at < n ? (int)at : n;
}

// Time of the largest slice in multiply-adds, or any time above limit if it is above that. Packing an element costs as
// much as 32 multiply-adds.
static inline double partition_time(const Partition* x, int bands, double limit) {
    enum { PACK = 32 };
    double time = 0;
    for (int band = 0; band < bands && time < limit; band++) {
        const int first = (int)((int64_t)x->threads * band / bands);
        const int next = (int)((int64_t)x->threads * (band + 1) / bands);
        const double m = partition_cut(x->M, x->unit_m, next, x->threads) -
                         partition_cut(x->M, x->unit_m, first, x->threads);
        const double n = (double)((partition_units(x->N, x->unit_n) + next - first - 1) / (next - first) * x->unit_n);
        if (m * n + PACK * (m + n) > time) time = m * n + PACK * (m + n);
    }
    return time;
}

static inline Partition partition_of(int M, int N, int unit_m, int unit_n, int threads) {
    Partition x = { M, N, unit_m, unit_n, threads, 1 };
    double best = DBL_MAX;
    for (int bands = 1; bands <= threads; bands++) {
        const double time = partition_time(&x, bands, best);
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
