// gemm.c: matrix products. Products of few rows with a weight are dot products that read the weight once. All others use
// the packed and cache-blocked kernel below, which follows Goto and van de Geijn, "Anatomy of high-performance matrix
// multiplication" (2008), or cblas_sgemm in builds with BLAS (TOST_BLAS).
#include "gemm.h"

#include <stdio.h>
#include <stdlib.h>

#ifdef TOST_BLAS
#include <cblas.h>
#endif

#include "gemm_kernels.h"
#include "threads.h"
#include "util.h"

enum {
    KC = 384,                          // depth of a pass: a panel of a (KC x MR) fits in L1
    CHUNK_M = 192, CHUNK_N = 256,      // chunk of c: with its packed operands it fits in 1 MiB of L2
    BLOCK_M = 1536, BLOCK_N = 1536,    // rows of a and columns of b packed at a time,
    BLOCK_PASSES = 3,                  // for this many passes: at most 14 MB per thread
};

INLINE int round_up(int a, int b) { return ceil_div(a, b) * b; }

// All threads or one. One core takes about 5 us for 2^18 multiply-adds, as long as it takes to wake the others. Never a
// number in between: libgomp ends the threads that a smaller team does not use and has to start them again.
static int threads_for(int M, int N, int K) {
    return (double)M * N * K > 1 << 18 ? threads_max() : 1;
}

// ---------------------------------------------------------------------------------------------
// The product that one thread computes: c (M,N) = a · b + beta · c.

typedef struct { float* c; size_t ldc; Operand a, b; int M, N, K; float beta; Format format; } Product;

// Packed operands. Words of all panels up to depth k, a multiple of the depth of a pass: k words per lane.
typedef struct { const Word *a, *b; int m, n, depth, kc; Format format; } Packed;

// One pass over a chunk of c (m,n), with panels starting at pa and pb. A panel of a stays in L1, the panels of b in L2.
static void chunk(float* c, size_t ldc, const Word* pa, const Word* pb, Format f, int m, int n, int words, float beta) {
    for (int i = 0; i < m; i += MR)
        for (int j = 0; j < n; j += NR) {
            float* at = c + i*ldc + j;
            const Word *a = pa + (size_t)i*words, *b = pb + (size_t)j*words;
            if (i + MR <= m && j + NR <= n) tile(at, ldc, a, b, f, words, beta);
            else tile_ragged(at, ldc, a, b, f, words, beta, min_int(MR, m - i), min_int(NR, n - j));
        }
}

// A block of c (m,n) from packed operands. Each chunk goes through all passes while it is in L2.
static void block(float* c, size_t ldc, const Packed* p, float beta) {
    const size_t mp = round_up(p->m, MR), np = round_up(p->n, NR);
    for (int j = 0; j < p->n; j += CHUNK_N)
        for (int i = 0; i < p->m; i += CHUNK_M)
            for (int k = 0; k < p->depth; k += p->kc) {
                const int before = words_of(p->format, k), words = words_of(p->format, min_int(p->kc, p->depth - k));
                chunk(c + i*ldc + j, ldc, p->a + before*mp + (size_t)i*words, p->b + before*np + (size_t)j*words,
                      p->format, min_int(CHUNK_M, p->m - i), min_int(CHUNK_N, p->n - j), words, k == 0 ? beta : 1);
            }
}

static void product_packed(const Product* p) {
    const int even = ceil_div(p->K, ceil_div(p->K, KC));     // passes of nearly equal depth
    const int kc = p->format == FLOATS ? even : round_up(even, 2);
    const int deepest = min_int(p->K, BLOCK_PASSES * kc);
    const size_t mp = round_up(min_int(p->M, BLOCK_M), MR), np = round_up(min_int(p->N, BLOCK_N), NR);
    const size_t words = words_of(p->format, deepest);
    char* memory = xmalloc((mp + np) * words * sizeof(Word) + CACHE_LINE);
    Word* pb = (Word*)(memory + (CACHE_LINE - (uintptr_t)memory % CACHE_LINE));
    Word* pa = pb + np*words;
    for (int j = 0; j < p->N; j += BLOCK_N)
        for (size_t k = 0; k < (size_t)p->K; k += deepest) {
            Packed x = { pa, pb, 0, min_int(BLOCK_N, p->N - j), min_int(deepest, p->K - (int)k), kc, p->format };
            pack_b(pb, operand_at(p->b, j, k), p->format, x.n, x.depth, kc);
            for (int i = 0; i < p->M; i += BLOCK_M) {
                x.m = min_int(BLOCK_M, p->M - i);
                pack_a(pa, operand_at(p->a, i, k), p->format, x.m, x.depth, kc);
                block(p->c + i*p->ldc + j, p->ldc, &x, k == 0 ? p->beta : 1);
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
// Few rows: c (M,N) = a (M,K) · b (N,K)ᵀ + beta · c, limited by reading b. Each thread reads one contiguous part of b,
// in vectors of LANES words. a is stored to match, in parts: FLOATS: a vector of floats. PAIRS: a vector of pairs.
// ROUNDED, for pairs of b: a vector of the upper halves and one of the lower halves, as floats.

enum { VECTOR_BYTES = LANES * sizeof(Word), GROUP_ROWS = 4, GROUP_COLS = LANES == 8 ? 1 : 3 };

typedef struct {
    float* c;
    const Word* a;      // (M, parts of a row, words of a part)
    const char* b;      // (N, row_bytes)
    size_t row_bytes;
    int M, N;
    float beta;
    Format format;
} FewRows;

INLINE int words_of_part(Format f) { return f == ROUNDED ? 2*LANES : LANES; }
INLINE int parts_of_row(size_t row_bytes) { return (int)((row_bytes + VECTOR_BYTES - 1) / VECTOR_BYTES); }

static Word* few_rows_operand(const float* a, Format f, int M, int K, int parts) {
    const size_t words = words_of_part(f);
    Word* out = xcalloc((size_t)M * parts * words + LANES, sizeof(Word));
    for (int i = 0; i < M; i++)
        for (int k = 0; k < K; k++) {
            Word* part = out + ((size_t)i*parts + k / (f == FLOATS ? LANES : 2*LANES)) * words;
            const int lane = f == FLOATS ? k % LANES : k / 2 % LANES;
            const Word upper = (Word)bf16_from_float(a[(size_t)i*K + k]) << 16;
            if (f == FLOATS) memcpy(part + lane, a + (size_t)i*K + k, sizeof(Word));
            else if (f == PAIRS) part[lane] |= k % 2 ? upper : upper >> 16;
            else part[lane + (k % 2 ? 0 : LANES)] = upper;
        }
    return out;
}

INLINE float sum_lanes(Vec v) {
    typedef float Quad __attribute__((vector_size(16)));
    union { Vec v; Quad q[LANES/4]; } u = { v };
    Quad q = u.q[0];
#pragma GCC unroll 4
    for (int i = 1; i < LANES/4; i++) q += u.q[i];
    return (q[0] + q[1]) + (q[2] + q[3]);
}

// sum + the products of a part of a and a vector of b
INLINE Vec add_products(Vec sum, Format f, const Word* a, VecWord b) {
    const VecU* x = (const VecU*)a;
    if (f == FLOATS) return sum + x[0] * (Vec)b;
#ifdef __AVX512BF16__
    if (f == PAIRS) return dot_pairs(sum, (VecWord)x[0], b);
#endif
    sum += x[0] * (Vec)(b & 0xffff0000);
    return sum + x[1] * (Vec)(b << 16);
}

// c at rows i… and columns j…. rows, cols and the format are constants at every call, so that after inlining the sums
// stay in registers. The order of a sum does not depend on rows and cols.
INLINE void dots(const FewRows* p, Format f, int i, int j, int rows, int cols) {
    Vec sum[GROUP_ROWS][GROUP_COLS][2] = {0};
    const int parts = parts_of_row(p->row_bytes), whole = (int)(p->row_bytes / VECTOR_BYTES);
    const size_t words = words_of_part(f), stride = parts * words;
    const Word* a = p->a + i*stride;
    const char* b = p->b + j*p->row_bytes;
    for (int t = 0; t + 2 <= whole; t += 2)
#pragma GCC unroll 2
        for (int u = 0; u < 2; u++)
#pragma GCC unroll 4
            for (int col = 0; col < cols; col++) {
                const VecWord bv = *(const VecWordU*)(b + col*p->row_bytes + (size_t)(t + u)*VECTOR_BYTES);
#pragma GCC unroll 4
                for (int row = 0; row < rows; row++)
                    sum[row][col][u] = add_products(sum[row][col][u], f, a + row*stride + (t + u)*words, bv);
            }
    for (int t = whole / 2 * 2; t < parts; t++)    // at most one whole vector and one that is not
#pragma GCC unroll 4
        for (int col = 0; col < cols; col++) {
            VecWord bv = {0};
            memcpy(&bv, b + col*p->row_bytes + (size_t)t*VECTOR_BYTES,
                   t < whole ? VECTOR_BYTES : p->row_bytes % VECTOR_BYTES);
#pragma GCC unroll 4
            for (int row = 0; row < rows; row++)
                sum[row][col][0] = add_products(sum[row][col][0], f, a + row*stride + t*words, bv);
        }
#pragma GCC unroll 4
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 4
        for (int col = 0; col < cols; col++) {
            float* at = p->c + (size_t)(i + row)*p->N + j + col;
            const float dot = sum_lanes(sum[row][col][0] + sum[row][col][1]);
            *at = p->beta == 0 ? dot : p->beta * *at + dot;
        }
}

INLINE void dots_of_rows(const FewRows* p, Format f, int j, int cols) {
    int i = 0;
    for (; i + GROUP_ROWS <= p->M; i += GROUP_ROWS) dots(p, f, i, j, GROUP_ROWS, cols);
    switch (p->M - i) {
    case 1: dots(p, f, i, j, 1, cols); break;
    case 2: dots(p, f, i, j, 2, cols); break;
    case 3: dots(p, f, i, j, 3, cols); break;
    }
}

// All rows, and columns j to end. One group of rows is limited by memory, and one row of b at a time is a single
// stream, which is twice as fast as several.
INLINE void few_rows_slice(const FewRows* p, Format f, int j, int end) {
    if (p->M > GROUP_ROWS)
        for (; j + GROUP_COLS <= end; j += GROUP_COLS) dots_of_rows(p, f, j, GROUP_COLS);
    for (; j < end; j++) dots_of_rows(p, f, j, 1);
}

static void few_rows_floats(const FewRows* p, int j, int end) { few_rows_slice(p, FLOATS, j, end); }
static void few_rows_rounded(const FewRows* p, int j, int end) { few_rows_slice(p, ROUNDED, j, end); }
static void few_rows_pairs(const FewRows* p, int j, int end) { few_rows_slice(p, PAIRS, j, end); }

// b (N,K) has row_bytes a row.
static void gemm_few_rows(float* c, const float* a, const void* b, size_t row_bytes, Format f,
                          int M, int N, int K, float beta) {
    Word* operand = few_rows_operand(a, f, M, K, parts_of_row(row_bytes));
    const FewRows p = { c, operand, b, row_bytes, M, N, beta, f };
    const int threads = threads_for(M, N, K);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int t = 0; t < threads; t++) {
        const int j = cut(N, GROUP_COLS, t, threads), end = cut(N, GROUP_COLS, t + 1, threads);
        if (f == FLOATS) few_rows_floats(&p, j, end);
        else if (f == PAIRS) few_rows_pairs(&p, j, end);
        else few_rows_rounded(&p, j, end);
    }
    free(operand);
}

// ---------------------------------------------------------------------------------------------
// Entry points

static void scale(float* c, size_t n, float beta) {
    for (size_t i = 0; i < n; i++) c[i] = beta == 0 ? 0 : beta * c[i];
}

static bool few_rows(int M, bool at, bool bt) { return M <= GEMM_FEW_ROWS && bt && !at; }

static Operand float_operand(const float* p, bool lanes_side, int lanes, int depth) {
    return (Operand) { (const char*)p, lanes_side ? lanes : depth, lanes_side, false };
}

static void gemm_by(void (*multiply)(const Product*), float* c, const float* a, bool at,
                    const float* b, bool bt, int M, int N, int K, float beta) {
    if (M == 0 || N == 0) return;
    if (K == 0) scale(c, (size_t)M*N, beta);
    else if (few_rows(M, at, bt)) gemm_few_rows(c, a, b, K * sizeof(float), FLOATS, M, N, K, beta);
    else {
        const Product p = { c, N, float_operand(a, at, M, K), float_operand(b, !bt, N, K), M, N, K, beta, FLOATS };
        gemm_sliced(multiply, &p);
    }
}

void gemm_builtin(float* c, const float* a, bool at, const float* b, bool bt,
                  int M, int N, int K, float beta) {
    gemm_by(product_packed, c, a, at, b, bt, M, N, K, beta);
}

// The format for bf16. Both give the same bits.
static Format bf16_format(void) {
#ifdef __AVX512BF16__
    return PAIRS;
#else
    return ROUNDED;
#endif
}

void gemm_bf16_weight(float* c, const float* a, const uint16_t* b, int M, int N, int K, float beta) {
    if (M == 0 || N == 0) return;
    const Format f = bf16_format();
    if (K == 0) scale(c, (size_t)M*N, beta);
    else if (few_rows(M, false, true)) gemm_few_rows(c, a, b, K * sizeof *b, f, M, N, K, beta);
    else {
        const Product p = { c, N, float_operand(a, false, M, K), { (const char*)b, K, false, true }, M, N, K, beta, f };
        gemm_sliced(product_packed, &p);
    }
}

void gemm_bf16(float* c, const float* a, bool at, const float* b, bool bt, int M, int N, int K, float beta) {
    if (K > 0 && few_rows(M, at, bt)) {
        uint16_t* weight = xmalloc(((size_t)N*K + 1) * sizeof *weight);
        bf16_from_floats(weight, b, (size_t)N*K);
        gemm_bf16_weight(c, a, weight, M, N, K, beta);
        free(weight);
    } else if (K > 0 && M > 0 && N > 0) {
        const Product p = { c, N, float_operand(a, at, M, K), float_operand(b, !bt, N, K), M, N, K, beta,
                            bf16_format() };
        gemm_sliced(product_packed, &p);
    } else scale(c, (size_t)M*N, beta);
}

#ifdef TOST_BLAS

// OpenBLAS only; NULL with other libraries.
int openblas_get_parallel(void) __attribute__((weak));
void openblas_set_num_threads(int threads) __attribute__((weak));
char* openblas_get_config(void) __attribute__((weak));

static void product_blas(const Product* p) {
    cblas_sgemm(CblasRowMajor, p->a.lanes_side ? CblasTrans : CblasNoTrans,
                p->b.lanes_side ? CblasNoTrans : CblasTrans, p->M, p->N, p->K,
                1, (const float*)p->a.p, p->a.ld, (const float*)p->b.p, p->b.ld, p->beta, p->c, p->ldc);
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
    snprintf(name, cap, "built in (%s)", KERNEL_NAME);
    return name;
}

#endif
