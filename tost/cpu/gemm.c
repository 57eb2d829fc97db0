// gemm.c: matrix products. Products of few rows with a weight are dot products that read the weight once. All others
// use the packed and cache-blocked kernel below, which follows Goto and van de Geijn, "Anatomy of high-performance
// matrix multiplication" (2008), or cblas_sgemm if the build names a BLAS (TOST_BLAS).
#include "cpu/gemm.h"

#include <stdio.h>
#include <stdlib.h>

#ifdef TOST_BLAS
#include TOST_BLAS_HEADER
#endif

#include "base/memory.h"
#include "base/openmp.h"
#include "cpu/gemm_kernels.h"
#include "cpu/gemm_partition.h"

enum {
    KC = 384,                          // depth of a pass (twice that with AMX): a panel of a (KC x MR) fits in L1
    BLOCK_M = 192, BLOCK_N = 256,      // block of c: its panels of a and b for one pass fit in 1 MiB of L2
    PACKED_M = 1152,                   // rows of a packed at a time: at most 1.8 MB per thread, for L2 or L3
};

INLINE int round_up(int a, int b) { return ceil_div(a, b) * b; }
INLINE Word* next_cache_line(void* p) { return (Word*)((char*)p + (CACHE_LINE - (uintptr_t)p % CACHE_LINE)); }

// All threads or one. One core takes about 5 us for 2^18 multiply-adds, as long as it takes to wake the others. Never a
// number in between: libgomp ends the threads that a smaller team does not use and has to start them again.
bool gemm_is_small(int M, int N, int K) { return (double)M * N * K <= 1 << 18; }
static int threads_for(int M, int N, int K) { return gemm_is_small(M, N, K) ? 1 : threads_max(); }

// ---------------------------------------------------------------------------------------------
// The product that one thread computes: c (M,N) = a · b, or += with add.

typedef struct { float* c; size_t ldc; Operand a, b; int M, N, K; bool add; Format format; } Product;

// One pass over a block, with panels starting at pa and pb. A panel of a stays in L1, the panels of b in L2.
static void multiply_block(Block all, const Word* pa, const Word* pb, Format f, int words) {
    const int rows = rows_of_kernel(f);
    for (int i = 0; i < all.m; i += rows)
        for (int j = 0; j < all.n; j += NR) {
            float* c = all.c + i*all.ldc + j;
            const Block t = { c, all.ldc, min_int(rows, all.m - i), min_int(NR, all.n - j), all.add };
            const Word *a = pa + (size_t)i*words, *b = pb + (size_t)j*words;
            if (t.m == rows && t.n == NR) tile(t, a, b, f, words);
            else tile_ragged(t, a, b, f, words);
        }
}

static void product_packed(const Product* p) {
    const int deepest = p->format == TILES ? 2*KC : KC;              // with AMX, a word holds two values
    const int even = ceil_div(p->K, ceil_div(p->K, deepest));        // passes of nearly equal depth
    const int kc = round_up(even, depth_unit(p->format));
    const size_t mp = round_up(min_int(p->M, PACKED_M), rows_of_kernel(p->format));
    const size_t np = round_up(min_int(p->N, BLOCK_N), NR);
    const size_t a_words = mp * words_of(p->format, kc), b_words = np * words_of(p->format, kc);
    void* memory = xmalloc((b_words + a_words) * sizeof(Word) + 2*CACHE_LINE);   // pack_a may write LANES words more
    Word *pb = next_cache_line(memory), *pa = pb + b_words;
    if (p->format == TILES) amx_begin();
    for (size_t i = 0; i < (size_t)p->M; i += PACKED_M)
        for (size_t k = 0; k < (size_t)p->K; k += kc) {
            const int m = min_int(PACKED_M, p->M - (int)i), depth = min_int(kc, p->K - (int)k);
            const int words = words_of(p->format, depth);
            pack_a(pa, operand_at(p->a, i, k), p->format, m, depth);
            for (size_t j = 0; j < (size_t)p->N; j += BLOCK_N) {
                const int n = min_int(BLOCK_N, p->N - (int)j);
                pack_b(pb, operand_at(p->b, j, k), p->format, n, depth);
                for (int from = 0; from < m; from += BLOCK_M) {
                    float* c = p->c + (i + from)*p->ldc + j;
                    const Block block = { c, p->ldc, min_int(BLOCK_M, m - from), n, p->add || k > 0 };
                    multiply_block(block, pa + (size_t)from*words, pb, p->format, words);
                }
            }
        }
    if (p->format == TILES) amx_end();
    free(memory);
}

// ---------------------------------------------------------------------------------------------
// Threads: each computes one slice of c, with the kernel or with cblas.

typedef void Multiply(const Product*);

static void gemm_sliced(Multiply* multiply, const Product* all) {
    const int threads = threads_for(all->M, all->N, all->K);
    const Partition parts = partition_of(all->M, all->N, rows_of_panel(all->format), NR, threads);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int t = 0; t < threads; t++) {
        const Slice s = partition_slice(&parts, t);
        Product slice = *all;
        slice.c = all->c + s.i*all->ldc + s.j;
        slice.a = operand_at(all->a, s.i, 0);
        slice.b = operand_at(all->b, s.j, 0);
        slice.M = s.m;
        slice.N = s.n;
        if (s.m > 0 && s.n > 0) multiply(&slice);
    }
}

// ---------------------------------------------------------------------------------------------
// Few rows: c (M,N) = a (M,K) · b (N,K)ᵀ, or += with add, limited by reading b. Each thread reads one contiguous part
// of b, in vectors of LANES words. a is stored to match, in parts: FLOATS: a vector of floats. PAIRS: a vector of
// pairs. ROUNDED, for pairs of b: a vector of the upper halves and one of the lower halves, as floats.

enum { VECTOR_BYTES = LANES * sizeof(Word), GROUP_ROWS = 4, GROUP_COLS = MR / 2 };

typedef struct {
    float* c;
    const Word* a;      // (M, parts of a row, words of a part)
    const char* b;      // (N, row_bytes)
    size_t row_bytes;
    int M, N;
    bool add;
} FewRows;

// Rows of a and columns of b that are multiplied together
typedef struct { Format format; int rows, cols; } Group;

INLINE int words_of_part(Format f) { return f == ROUNDED ? 2*LANES : LANES; }
INLINE int parts_of_row(size_t row_bytes) { return (int)((row_bytes + VECTOR_BYTES - 1) / VECTOR_BYTES); }

static void row_parts(Word* out, const float* a, Format f, int K, int parts) {
    if (f == FLOATS) memcpy(out, a, K * sizeof *a);
    if (f == PAIRS) bf16_from_floats((uint16_t*)out, a, K);
    if (f == ROUNDED)
        for (int t = 0; t < parts; t++)
            for (int i = 0; i < LANES; i++) {
                const size_t part = (size_t)t*2*LANES, k = part + 2*i;
                out[part + i] = k + 1 < (size_t)K ? (Word)bf16_from_float(a[k + 1]) << 16 : 0;
                out[part + LANES + i] = k < (size_t)K ? (Word)bf16_from_float(a[k]) << 16 : 0;
            }
}

// free(*memory)
static Word* few_rows_operand(void** memory, const float* a, Format f, int M, int K, int parts) {
    const size_t words = (size_t)parts * words_of_part(f);
    *memory = xcalloc(M * words + CACHE_LINE, sizeof(Word));
    Word* out = next_cache_line(*memory);
    for (int i = 0; i < M; i++) row_parts(out + i*words, a + (size_t)i*K, f, K, parts);
    return out;
}

// Adds the products of one part of each row of a with vectors of b. ROUNDED: of the upper (half 0) or lower halves.
INLINE void add_half(Vec sum[][GROUP_COLS][2], int u, Group g, const Word* a, size_t stride, const VecWord* b,
                     int half) {
    VecWord bv[GROUP_COLS];
#pragma GCC unroll 6
    for (int col = 0; col < g.cols; col++) {
        bv[col] = b[col];
        if (g.format == ROUNDED && half == 0) bv[col] &= 0xffff0000;
        if (g.format == ROUNDED && half == 1) bv[col] <<= 16;
    }
#pragma GCC unroll 6
    for (int row = 0; row < g.rows; row++) {
        const VecWord av = *(const VecWord*)(a + row*stride + half*LANES);
#pragma GCC unroll 6
        for (int col = 0; col < g.cols; col++) {
            if (g.format == PAIRS) sum[row][col][u] = dot_pairs(sum[row][col][u], av, bv[col]);
            else sum[row][col][u] += (Vec)av * (Vec)bv[col];
        }
    }
}

INLINE void add_part(Vec sum[][GROUP_COLS][2], int u, Group g, const Word* a, size_t stride, const VecWord* b) {
    add_half(sum, u, g, a, stride, b, 0);
    if (g.format == ROUNDED) add_half(sum, u, g, a, stride, b, 1);
}

// Adds the parts t with from <= t % 2 < to. Prefetches the share of these rows in the next columns of b, so that memory
// is read all the time, not only for the first rows.
INLINE void add_parts(Vec sum[][GROUP_COLS][2], const FewRows* p, Group g, int i, int j, int from, int to) {
    const int parts = parts_of_row(p->row_bytes), whole = (int)(p->row_bytes / VECTOR_BYTES);
    const size_t words = words_of_part(g.format), stride = parts * words;
    const Word* a = p->a + i*stride;
    const char* b = p->b + j*p->row_bytes;
    const char* next = b + g.cols*p->row_bytes + p->row_bytes * (2*i + from*g.rows) / (2*p->M);
    const size_t next_step = (to - from)*VECTOR_BYTES * g.rows / p->M + 1;
    VecWord bv[GROUP_COLS];
    for (int t = 0; t + 2 <= whole; t += 2, next += next_step)
#pragma GCC unroll 2
        for (int u = from; u < to; u++) {
#pragma GCC unroll 6
            for (int col = 0; col < g.cols; col++) {
                bv[col] = *(const VecWordU*)(b + col*p->row_bytes + (size_t)(t + u)*VECTOR_BYTES);
                if (p->M > g.rows && u == from) __builtin_prefetch(next + col*p->row_bytes);
            }
            add_part(sum, u, g, a + (t + u)*words, stride, bv);
        }
    for (int t = whole / 2 * 2; from == 0 && t < parts; t++) {    // at most one whole vector and a partial one
        const size_t bytes = t < whole ? VECTOR_BYTES : p->row_bytes % VECTOR_BYTES;
#pragma GCC unroll 6
        for (int col = 0; col < g.cols; col++) {
            bv[col] = (VecWord) {0};
            memcpy(&bv[col], b + col*p->row_bytes + (size_t)t*VECTOR_BYTES, bytes);
        }
        add_part(sum, 0, g, a + t*words, stride, bv);
    }
}

// c at rows i… and columns j…. rows, cols and the format are constants at every call, so that after inlining the sums
// stay in registers: of many columns first those of even parts, then those of odd ones. The order of a sum does not
// depend on rows and cols.
INLINE void dots(const FewRows* p, Format f, int i, int j, int rows, int cols) {
    const Group g = { f, rows, cols };
    Vec sum[GROUP_ROWS][GROUP_COLS][2] = {0};
    const bool many = cols > GROUP_COLS / 2;
    add_parts(sum, p, g, i, j, 0, many ? 1 : 2);
    if (many) add_parts(sum, p, g, i, j, 1, 2);
#pragma GCC unroll 6
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 6
        for (int col = 0; col < cols; col++) {
            float* at = p->c + (size_t)(i + row)*p->N + j + col;
            const float dot = sum_lanes(sum[row][col][0] + sum[row][col][1]);
            *at = p->add ? *at + dot : dot;
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

// All rows, and columns j to end. For one group of rows, memory is the limit: it reads one row of b at a time, a single
// stream, which is twice as fast as several. bf16 takes fewer columns: the halves of ROUNDED need registers.
INLINE void few_rows_slice(const FewRows* p, Format f, int j, int end) {
    const int cols = f == FLOATS ? GROUP_COLS : GROUP_COLS / 2;
    if (p->M > GROUP_ROWS)
        for (; j + cols <= end; j += cols) dots_of_rows(p, f, j, cols);
    for (; j < end; j++) dots_of_rows(p, f, j, 1);
}

static void few_rows_floats(const FewRows* p, int j, int end) { few_rows_slice(p, FLOATS, j, end); }
static void few_rows_rounded(const FewRows* p, int j, int end) { few_rows_slice(p, ROUNDED, j, end); }
static void few_rows_pairs(const FewRows* p, int j, int end) { few_rows_slice(p, PAIRS, j, end); }

static void gemm_few_rows(const Product* all) {
    const size_t row_bytes = all->K * element_size(all->b);
    const Format f = all->format;
    void* memory;
    const Word* a = few_rows_operand(&memory, (const float*)all->a.p, f, all->M, all->K, parts_of_row(row_bytes));
    const FewRows p = { all->c, a, all->b.p, row_bytes, all->M, all->N, all->add };
    const int threads = threads_for(all->M, all->N, all->K);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int t = 0; t < threads; t++) {
        const int j = partition_cut(p.N, GROUP_COLS, t, threads), end = partition_cut(p.N, GROUP_COLS, t + 1, threads);
        if (f == FLOATS) few_rows_floats(&p, j, end);
        else if (f == PAIRS) few_rows_pairs(&p, j, end);
        else few_rows_rounded(&p, j, end);
    }
    free(memory);
}

// ---------------------------------------------------------------------------------------------
// Entry points

// The product gemm(c, a, b, …), in float32.
static Product product_of(float* c, const float* a, const float* b, GemmLayout layout, int M, int N, int K, bool add) {
    const bool at = layout == GEMM_TN, bt = layout == GEMM_NT;
    const Operand left = { (const char*)a, at ? M : K, at, false }, right = { (const char*)b, bt ? K : N, !bt, false };
    return (Product) { c, N, left, right, M, N, K, add, FLOATS };
}

// The same of a weight b (N,K) stored in bf16, in format f.
static Product product_of_weight(float* c, const float* a, const uint16_t* b, Format f, int M, int N, int K) {
    const Operand left = { (const char*)a, K, false, false }, right = { (const char*)b, K, false, true };
    return (Product) { c, N, left, right, M, N, K, false, f };
}

// By dot products if the rows are few and read a weight, otherwise by multiply.
static void gemm_by(Multiply* multiply, const Product* p) {
    const bool nt = !p->a.lanes_side && !p->b.lanes_side;
    if (p->M <= GEMM_FEW_ROWS && nt && (p->format == FLOATS || p->b.bf16)) gemm_few_rows(p);
    else gemm_sliced(multiply, p);
}

// VDPBF16PS does the work of two FMA instructions. AMD's processors issue both at the same rate; Sapphire Rapids issues
// VDPBF16PS at a quarter of that rate. Both formats give the same bits, so a run may resume with the other.
#ifdef __AVX512BF16__
static bool pairs_are_faster(void) { return __builtin_cpu_is("amd"); }
#else
static bool pairs_are_faster(void) { return false; }
#endif

// AMX gives other bits, so it is not chosen by time: it is used wherever it is available.
static bool has_amx(void) {
    static _Atomic int known;   // 0: not asked yet, 1: no, 2: yes
    if (!known) known = 1 + amx_enable();
    return known - 1;
}

// Products of few rows are limited by memory, and their bits are those of a row alone.
static Format bf16_format(bool few) { return !few && has_amx() ? TILES : pairs_are_faster() ? PAIRS : ROUNDED; }

void gemm_bf16_weight(float* c, const float* a, const uint16_t* b, int M, int N, int K) {
    const Product p = product_of_weight(c, a, b, bf16_format(M <= GEMM_FEW_ROWS), M, N, K);
    gemm_by(product_packed, &p);
}

void gemm_bf16(float* c, const float* a, const float* b, GemmLayout layout, int M, int N, int K, bool add) {
    Product p = product_of(c, a, b, layout, M, N, K, add);
    p.format = bf16_format(false);
    gemm_by(product_packed, &p);
}

#ifdef TOST_BLAS

// Of OpenBLAS, BLIS and MKL; NULL with other libraries.
int openblas_get_parallel(void) __attribute__((weak));
void openblas_set_num_threads(int threads) __attribute__((weak));
char* openblas_get_config(void) __attribute__((weak));
void bli_thread_set_num_threads(int64_t threads) __attribute__((weak));
void MKL_Set_Num_Threads(int threads) __attribute__((weak));

static void product_blas(const Product* p) {
    cblas_sgemm(CblasRowMajor, p->a.lanes_side ? CblasTrans : CblasNoTrans,
                p->b.lanes_side ? CblasNoTrans : CblasTrans, p->M, p->N, p->K,
                1, (const float*)p->a.p, p->a.ld, (const float*)p->b.p, p->b.ld, p->add, p->c, p->ldc);
}

void gemm(float* c, const float* a, const float* b, GemmLayout layout, int M, int N, int K, bool add) {
    const Product p = product_of(c, a, b, layout, M, N, K, add);
#ifdef _OPENMP
    // Limit an OpenBLAS built on pthreads to one thread: its threads would compete with OpenMP's. One built on OpenMP
    // uses one thread inside a parallel region anyway, and setting its number of threads would change OpenMP's.
    enum { PTHREADS = 1 };
    if (openblas_get_parallel && openblas_get_parallel() == PTHREADS) openblas_set_num_threads(1);
    // BLIS would wait for threads that OpenMP does not start inside a parallel region; MKL has its own OpenMP.
    if (bli_thread_set_num_threads) bli_thread_set_num_threads(1);
    if (MKL_Set_Num_Threads) MKL_Set_Num_Threads(1);
#endif
    gemm_by(product_blas, &p);
}

#else

void gemm(float* c, const float* a, const float* b, GemmLayout layout, int M, int N, int K, bool add) {
    const Product p = product_of(c, a, b, layout, M, N, K, add);
    gemm_by(product_packed, &p);
}

#endif

char* gemm_library(char* name, size_t cap, bool bf16) {
    snprintf(name, cap, "built in (%s)", bf16 && has_amx() ? "AMX" : KERNEL_NAME);
#ifdef TOST_BLAS
    // The first two words of OpenBLAS's description: name and version. Others: the name that the build was given.
    const char* config = openblas_get_config ? openblas_get_config() : TOST_BLAS;
    const size_t word = strcspn(config, " "), rest = config[word] ? 1 + strcspn(config + word + 1, " ") : 0;
    if (!bf16) snprintf(name, cap, "%.*s", (int)(word + rest), config);
#endif
    return name;
}

void gemm_describe(char* text, size_t cap, int threads, bool bf16) {
    char library[64];
    snprintf(text, cap, "CPU, %d thread%s, %s, matmul %s", threads, threads == 1 ? "" : "s", bf16 ? "bf16" : "float32",
             gemm_library(library, sizeof library, bf16));
}
