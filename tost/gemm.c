// gemm.c: float32 matrix products. Products of few rows with a weight are dot products that read the weight once. All
// others use cblas_sgemm (TOST_BLAS), or the packed and cache-blocked kernel below, which follows Goto and van de
// Geijn, "Anatomy of high-performance matrix multiplication" (2008).
#include "gemm.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef TOST_BLAS
#include <cblas.h>
#endif

#include "bf16.h"
#include "threads.h"
#include "util.h"

// A vector has LANES floats. A tile of c, MR x NR sums, takes 2·MR vector registers; two more hold a row of b.
#if defined(__AVX512F__)
enum { LANES = 16, MR = 12 };
#define KERNEL_NAME "built in (AVX-512)"
#elif defined(__AVX__)
enum { LANES = 8, MR = 6 };
#define KERNEL_NAME "built in (AVX)"
#elif defined(__aarch64__)
enum { LANES = 4, MR = 12 };
#define KERNEL_NAME "built in (NEON)"
#else
enum { LANES = 4, MR = 6 };
#define KERNEL_NAME "built in (128-bit vectors)"
#endif

enum { GROUP_ROWS = 4 };      // rows of a few-row product that are multiplied together

enum {
    NR = 2 * LANES,
    KC = 384,                          // depth of a pass: a panel of a (KC x MR) fits in L1
    CHUNK_M = 192, CHUNK_N = 256,      // chunk of c: with its packed operands it fits in 1 MiB of L2
    BLOCK_M = 1536, BLOCK_N = 1536,    // rows of a and columns of b packed at a time,
    BLOCK_PASSES = 3,                  // for this many passes: at most 14 MB per thread
    PACK_LANES = 192,                  // lanes packed at a time. All sizes but KC are multiples of MR and NR
    CACHE_LINE = 64,
};

typedef float Vec __attribute__((vector_size(LANES * sizeof(float)), may_alias));
typedef float VecU __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float)), may_alias));

static inline int min_int(int a, int b) { return a < b ? a : b; }
static inline int ceil_div(int a, int b) { return a / b + (a % b != 0); }
static inline int round_up(int a, int b) { return ceil_div(a, b) * b; }

// All threads or one. One core takes about 5 us for 2^18 multiply-adds, as long as it takes to wake the others. Never a
// number in between: libgomp ends the threads that a smaller team does not use and has to start them again.
static int threads_for(int M, int N, int K) {
    return (double)M * N * K > 1 << 18 ? threads_max() : 1;
}

// ---------------------------------------------------------------------------------------------
// The product that one thread computes: c (M,N) = a · b + beta · c. An operand is a matrix of lanes (rows of op(a) or
// columns of op(b)) by depth (K). Stored rows are ld elements apart; a stored row has all lanes at one depth if
// lanes_side, otherwise all depths of one lane.

typedef struct { const float* p; size_t ld; bool lanes_side; } Operand;
typedef struct { float* c; size_t ldc; Operand a, b; int M, N, K; float beta; } Product;

static inline Operand operand_at(Operand o, int lane, int k) {
    o.p += o.lanes_side ? lane + k*o.ld : lane*o.ld + k;
    return o;
}

// ---------------------------------------------------------------------------------------------
// Packing. A panel has W lanes, interleaved: panel[k*W + lane]. Missing lanes are zero.

// lanes_side: copies one stored row into many panels at a time, so that the source is read in long runs.
static inline void pack_copy(float* dst, Operand o, int panels, int kc, int W) {
    for (int k = 0; k < kc; k++)
        for (int p = 0; p < panels; p++)
            memcpy(dst + ((size_t)p*kc + k)*W, o.p + k*o.ld + (size_t)p*W, W * sizeof(float));
}

// Otherwise: transposes one cache line of each lane at a time. If ld is a multiple of the page size, the lines of all
// lanes compete for a few sets of L1, so all of a line is used before the next one of its lane is read.
static inline void pack_transpose(float* dst, Operand o, int kc, int W) {
    enum { RUN = CACHE_LINE / sizeof(float) };
    int k = 0;
    for (; k + RUN <= kc; k += RUN)
        for (int i = 0; i < W; i++)
            for (int r = 0; r < RUN; r++)
                dst[(size_t)(k + r)*W + i] = o.p[i*o.ld + k + r];
    for (; k < kc; k++)
        for (int i = 0; i < W; i++)
            dst[(size_t)k*W + i] = o.p[i*o.ld + k];
}

static inline void pack_ragged(float* dst, Operand o, int lanes, int kc, int W) {
    memset(dst, 0, (size_t)kc*W * sizeof(float));
    for (int k = 0; k < kc; k++)
        for (int i = 0; i < lanes; i++)
            dst[(size_t)k*W + i] = *operand_at(o, i, k).p;
}

static inline void pack_panels(float* dst, Operand o, int lanes, int kc, int W) {
    int panels = lanes / W, whole = panels * W;
    if (o.lanes_side) pack_copy(dst, o, panels, kc, W);
    else for (int i = 0; i < whole; i += W) pack_transpose(dst + (size_t)i*kc, operand_at(o, i, 0), kc, W);
    if (whole < lanes) pack_ragged(dst + (size_t)whole*kc, operand_at(o, whole, 0), lanes - whole, kc, W);
}

// dst (passes, panels, kc, W). The last pass may be shallower.
static inline void pack(float* dst, Operand o, int lanes, int depth, int kc, int W) {
    int padded = round_up(lanes, W);
    for (int k = 0; k < depth; k += kc)
        for (int i = 0, deep = min_int(kc, depth - k); i < lanes; i += PACK_LANES)
            pack_panels(dst + (size_t)k*padded + (size_t)i*deep, operand_at(o, i, k),
                        min_int(PACK_LANES, lanes - i), deep, W);
}

// ---------------------------------------------------------------------------------------------
// The kernel: c (MR,NR) = pa (kc,MR)ᵀ · pb (kc,NR) + beta · c. Each element is summed in the order of k.

static inline void tile(float* c, size_t ldc, const float* pa, const float* pb, int kc, float beta) {
    Vec acc[MR][2] = {0};
    for (int k = 0; k < kc; k++, pa += MR, pb += NR) {
        const Vec b0 = *(const Vec*)pb, b1 = *(const Vec*)(pb + LANES);
#pragma GCC unroll 16
        for (int i = 0; i < MR; i++) {
            acc[i][0] += pa[i] * b0;
            acc[i][1] += pa[i] * b1;
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < MR; i++) {
        VecU* row = (VecU*)(c + i*ldc);
        if (beta != 0) { acc[i][0] += beta * row[0]; acc[i][1] += beta * row[1]; }
        row[0] = acc[i][0];
        row[1] = acc[i][1];
    }
}

// A tile at the edge of c, of which m x n is inside: computed as a whole tile, so the bits are the same.
static void tile_ragged(float* c, size_t ldc, const float* pa, const float* pb, int kc, float beta,
                        int m, int n) {
    _Alignas(CACHE_LINE) float whole[MR*NR];
    if (beta != 0) {
        memset(whole, 0, sizeof(whole));
        for (int i = 0; i < m; i++) memcpy(whole + i*NR, c + i*ldc, n * sizeof(float));
    }
    tile(whole, NR, pa, pb, kc, beta);
    for (int i = 0; i < m; i++) memcpy(c + i*ldc, whole + i*NR, n * sizeof(float));
}

// One pass over a chunk of c (m,n), with panels starting at pa and pb. A panel of a stays in L1, the panels of b in L2.
static void chunk(float* c, size_t ldc, const float* pa, const float* pb, int m, int n, int kc, float beta) {
    for (int i = 0; i < m; i += MR)
        for (int j = 0; j < n; j += NR) {
            float* at = c + i*ldc + j;
            const float *a = pa + (size_t)i*kc, *b = pb + (size_t)j*kc;
            if (i + MR <= m && j + NR <= n) tile(at, ldc, a, b, kc, beta);
            else tile_ragged(at, ldc, a, b, kc, beta, min_int(MR, m - i), min_int(NR, n - j));
        }
}

// A block of c (m,n) from packed operands. Each chunk goes through all passes while it is in L2.
static void block(float* c, size_t ldc, const float* pa, const float* pb, int m, int n, int depth, int kc,
                  float beta) {
    size_t mp = round_up(m, MR), np = round_up(n, NR);
    for (int j = 0; j < n; j += CHUNK_N)
        for (int i = 0; i < m; i += CHUNK_M)
            for (int k = 0; k < depth; k += kc) {
                int deep = min_int(kc, depth - k);
                chunk(c + i*ldc + j, ldc, pa + k*mp + (size_t)i*deep, pb + k*np + (size_t)j*deep,
                      min_int(CHUNK_M, m - i), min_int(CHUNK_N, n - j), deep, k == 0 ? beta : 1);
            }
}

static void product_packed(const Product* p) {
    int kc = ceil_div(p->K, ceil_div(p->K, KC));      // passes of nearly equal depth
    int deepest = min_int(p->K, BLOCK_PASSES * kc);
    size_t mp = round_up(min_int(p->M, BLOCK_M), MR), np = round_up(min_int(p->N, BLOCK_N), NR);
    float* memory = xmalloc((mp + np) * deepest * sizeof(float) + CACHE_LINE);
    float* pb = (float*)(((uintptr_t)memory + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE);
    float* pa = pb + np*deepest;
    for (int j = 0; j < p->N; j += BLOCK_N)
        for (int k = 0; k < p->K; k += deepest) {
            int n = min_int(BLOCK_N, p->N - j), depth = min_int(deepest, p->K - k);
            pack(pb, operand_at(p->b, j, k), n, depth, kc, NR);
            for (int i = 0; i < p->M; i += BLOCK_M) {
                int m = min_int(BLOCK_M, p->M - i);
                pack(pa, operand_at(p->a, i, k), m, depth, kc, MR);
                block(p->c + i*p->ldc + j, p->ldc, pa, pb, m, n, depth, kc, k == 0 ? p->beta : 1);
            }
        }
    free(memory);
}

// ---------------------------------------------------------------------------------------------
// Threads. c is cut into a grid of slices, one per thread, and each slice is a product of its own. Neighbouring slices
// pack some of the same data, which costs less than synchronizing, and neither cblas nor the kernel needs to know about
// threads.

// Start of part i, if n is divided into `parts` at multiples of unit.
static int cut(int n, int unit, int i, int parts) {
    return min_int(n, (int)((int64_t)ceil_div(n, unit) * i / parts) * unit);
}

// Rows of the grid of `threads` slices that packs the least: M/rows of a and N/cols of b per thread.
static int grid_rows(int M, int N, int threads) {
    int best = 1;
    double least = M + (double)N / threads;
    for (int rows = 2; rows <= threads; rows++) {
        double packed = (double)M / rows + (double)N * rows / threads;
        if (threads % rows == 0 && packed < least) best = rows, least = packed;
    }
    return best;
}

static void gemm_sliced(void (*multiply)(const Product*), const Product* all) {
    int threads = threads_for(all->M, all->N, all->K);
    int rows = grid_rows(all->M, all->N, threads), cols = threads / rows;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int t = 0; t < threads; t++) {
        int r = t % rows, i = cut(all->M, MR, r, rows), j = cut(all->N, NR, t / rows, cols);
        Product slice = *all;
        slice.c = all->c + i*all->ldc + j;
        slice.a = operand_at(all->a, i, 0);
        slice.b = operand_at(all->b, j, 0);
        slice.M = cut(all->M, MR, r + 1, rows) - i;
        slice.N = cut(all->N, NR, t / rows + 1, cols) - j;
        if (slice.M > 0 && slice.N > 0) multiply(&slice);
    }
}

// ---------------------------------------------------------------------------------------------
// Few rows: c (M,N) = a (M,K) · b (N,K)ᵀ + beta · c, limited by reading b. Each thread reads one contiguous part of b.

static inline float sum_lanes(Vec v) {
    typedef float Quad __attribute__((vector_size(16)));
    union { Vec v; Quad q[LANES/4]; } u = { v };
    Quad q = u.q[0];
#pragma GCC unroll 4
    for (int i = 1; i < LANES/4; i++) q += u.q[i];
    return (q[0] + q[1]) + (q[2] + q[3]);
}

// sum[i] = a[i] · b for M rows of a. M is a constant at every call, so that after inlining the sums stay in registers.
__attribute__((always_inline))
static inline void dots(float* sum, const float* a, const float* b, int M, int K) {
    Vec acc[GROUP_ROWS][2] = {0};
    int k = 0;
    for (; k + 2*LANES <= K; k += 2*LANES) {
        const Vec b0 = *(const VecU*)(b + k), b1 = *(const VecU*)(b + k + LANES);
#pragma GCC unroll 4
        for (int i = 0; i < M; i++) {
            const VecU* row = (const VecU*)(a + (size_t)i*K + k);
            acc[i][0] += row[0] * b0;
            acc[i][1] += row[1] * b1;
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < M; i++) {
        sum[i] = sum_lanes(acc[i][0] + acc[i][1]);
        for (int t = k; t < K; t++) sum[i] += a[(size_t)i*K + t] * b[t];
    }
}

static inline void dots_of_group(float* sum, const float* a, const float* b, int M, int K) {
    switch (M) {
    case 1: dots(sum, a, b, 1, K); break;
    case 2: dots(sum, a, b, 2, K); break;
    case 3: dots(sum, a, b, 3, K); break;
    default: dots(sum, a, b, GROUP_ROWS, K);
    }
}

// One row of b at a time: a single stream from memory is twice as fast as several.
static void gemm_few_rows(float* c, const float* a, const float* b, int M, int N, int K, float beta) {
#pragma omp parallel for schedule(static) num_threads(threads_for(M, N, K))
    for (int j = 0; j < N; j++) {
        float sum[GEMM_FEW_ROWS + GROUP_ROWS];
        for (int i = 0; i < M; i += GROUP_ROWS)
            dots_of_group(sum + i, a + (size_t)i*K, b + (size_t)j*K, M - i, K);
        for (int i = 0; i < M; i++) {
            float* at = c + (size_t)i*N + j;
            *at = beta == 0 ? sum[i] : beta * *at + sum[i];
        }
    }
}

// ---------------------------------------------------------------------------------------------
// Entry points

static void gemm_by(void (*multiply)(const Product*), float* c, const float* a, bool at,
                    const float* b, bool bt, int M, int N, int K, float beta) {
    if (K == 0) {
        for (size_t i = 0; i < (size_t)M*N; i++) c[i] = beta == 0 ? 0 : beta * c[i];
    } else if (M > 0 && M <= GEMM_FEW_ROWS && bt && !at) {
        gemm_few_rows(c, a, b, M, N, K, beta);
    } else if (M > 0 && N > 0) {
        Product p = { c, N, { a, at ? M : K, at }, { b, bt ? K : N, !bt }, M, N, K, beta };
        gemm_sliced(multiply, &p);
    }
}

void gemm_builtin(float* c, const float* a, bool at, const float* b, bool bt,
                  int M, int N, int K, float beta) {
    gemm_by(product_packed, c, a, at, b, bt, M, N, K, beta);
}

static float* rounded_to_bf16(const float* x, size_t n) {
    float* out = xmalloc((n + 1) * sizeof(float));
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++) out[i] = bf16_to_float(bf16_from_float(x[i]));
    return out;
}

void gemm_bf16(float* c, const float* a, bool at, const float* b, bool bt, int M, int N, int K, float beta) {
    float *ra = rounded_to_bf16(a, (size_t)M*K), *rb = rounded_to_bf16(b, (size_t)K*N);
    gemm_builtin(c, ra, at, rb, bt, M, N, K, beta);
    free(ra);
    free(rb);
}

void gemm_bf16_weight(float* c, const float* a, const uint16_t* b, int M, int N, int K, float beta) {
    float *ra = rounded_to_bf16(a, (size_t)M*K), *wide = xmalloc(((size_t)N*K + 1) * sizeof(float));
    for (size_t i = 0; i < (size_t)N*K; i++) wide[i] = bf16_to_float(b[i]);
    gemm_builtin(c, ra, false, wide, true, M, N, K, beta);
    free(ra);
    free(wide);
}

#ifdef TOST_BLAS

// OpenBLAS only; NULL with other libraries.
int openblas_get_parallel(void) __attribute__((weak));
void openblas_set_num_threads(int threads) __attribute__((weak));
char* openblas_get_config(void) __attribute__((weak));

static void product_blas(const Product* p) {
    cblas_sgemm(CblasRowMajor, p->a.lanes_side ? CblasTrans : CblasNoTrans,
                p->b.lanes_side ? CblasNoTrans : CblasTrans, p->M, p->N, p->K,
                1, p->a.p, p->a.ld, p->b.p, p->b.ld, p->beta, p->c, p->ldc);
}

void gemm(float* c, const float* a, bool at, const float* b, bool bt, int M, int N, int K, float beta) {
#ifdef _OPENMP
    // Limit an OpenBLAS built on pthreads to one thread: its threads would compete with OpenMP's. One built on OpenMP
    // uses one thread inside a parallel region anyway, and setting its number of threads would change OpenMP's.
    enum { PTHREADS = 1 };
    if (openblas_get_parallel && openblas_get_parallel() == PTHREADS) openblas_set_num_threads(1);
#endif
    gemm_by(product_blas, c, a, at, b, bt, M, N, K, beta);
}

// The first two words of OpenBLAS's description: name and version.
char* gemm_library(char* name, size_t cap) {
    const char* config = openblas_get_config ? openblas_get_config() : "cblas";
    const size_t word = strcspn(config, " "), rest = config[word] ? 1 + strcspn(config + word + 1, " ") : 0;
    snprintf(name, cap, "%.*s", (int)(word + rest), config);
    return name;
}

#else

void gemm(float* c, const float* a, bool at, const float* b, bool bt, int M, int N, int K, float beta) {
    gemm_builtin(c, a, at, b, bt, M, N, K, beta);
}

char* gemm_library(char* name, size_t cap) {
    snprintf(name, cap, "%s", KERNEL_NAME);
    return name;
}

#endif
