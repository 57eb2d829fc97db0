// gemm.c: matrix products. Products of few rows with a weight are dot products that read the weight once. All others
// use the packed and cache-blocked kernel below, which follows Goto and van de Geijn, "Anatomy of high-performance
// matrix multiplication" (2008).
#include "cpu/gemm.h"

#include <float.h>
#include <math.h>

#include "base/memory.h"
#include "base/openmp.h"
#include "cpu/gemm_kernels.h"
#include "engine.h"

enum {
    KC = 384,                          // depth of a pass: a panel of a (KC x MR) fits in L1
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
// The product that one thread computes: c (M,N) = a · b, stored as `store` says.

// below: row of its first element minus the column, in a symmetric product; tiles below the diagonal are left out.
typedef struct { float* c; size_t ldc; Operand a, b; int M, N, K; GemmStore store; Format format; int below; } Product;

// One pass over a block, with panels starting at pa and pb. A panel of a stays in L1, the panels of b in L2. If a is
// stored as pairs, its whole panels are read where they are stored; only a last, smaller one is packed.
static void multiply_block(Block all, const Word* pa, Operand stored, const Word* pb, Format f, int words, int below) {
    for (int i = 0; i < all.m; i += MR) {
        const bool in_place = holds_pairs(stored, f) && all.m - i >= MR;
        const Rows a = in_place ? stored_rows(operand_at(stored, i, 0)) : (Rows){pa + (size_t)i * words, 1, MR};
        for (int j = i + below > 0 ? (i + below) / NR * NR : 0; j < all.n; j += NR) {
            const Word* b = pb + (size_t)j * words;
            // Not t.m and t.n: gcc reads both as 8 bytes, which waits until all earlier stores are in the cache.
            const int m = min_int(MR, all.m - i), n = min_int(NR, all.n - j);
            const Block t = {all.c + i * all.ldc + j, all.ldc, m, n, all.add, all.round};
            if (m == MR && n == NR) tile(t, a, b, f, words);
            else tile_ragged(t, a, b, f, words);
        }
    }
}

static void product_packed(const Product* p) {
    const int even = ceil_div(p->K, ceil_div(p->K, KC));             // passes of nearly equal depth
    const int kc = round_up(even, depth_unit(p->format));
    const size_t mp = round_up(min_int(p->M, PACKED_M), MR);
    const size_t np = round_up(min_int(p->N, BLOCK_N), NR);
    const size_t a_words = mp * words_of(p->format, kc), b_words = np * words_of(p->format, kc);
    void* memory = xmalloc((b_words + a_words) * sizeof(Word) + 2 * CACHE_LINE);   // pack_a may write LANES words more
    Word *pb = next_cache_line(memory), *pa = pb + b_words;
    for (size_t i = 0; i < (size_t)p->M; i += PACKED_M)
        for (size_t k = 0; k < (size_t)p->K; k += kc) {
            const int m = min_int(PACKED_M, p->M - (int)i), depth = min_int(kc, p->K - (int)k);
            const int words = words_of(p->format, depth);
            const int in_place = holds_pairs(p->a, p->format) ? m / MR * MR : 0;
            pack_a(pa + (size_t)in_place * words, operand_at(p->a, i + in_place, k), p->format, m - in_place, depth);
            for (size_t j = 0; j < (size_t)p->N; j += BLOCK_N) {
                const int n = min_int(BLOCK_N, p->N - (int)j);
                pack_b(pb, operand_at(p->b, j, k), p->format, n, depth);
                for (int from = 0; from < m; from += BLOCK_M) {
                    float* c = p->c + (i + from) * p->ldc + j;
                    const Block block = {c, p->ldc, min_int(BLOCK_M, m - from), n, p->store == GEMM_ADD || k > 0,
                                         p->store == GEMM_ROUND && k + depth == (size_t)p->K};
                    const int below = p->store == GEMM_SYMMETRIC ? p->below + (int)i + from - (int)j : -m;
                    multiply_block(block, pa + (size_t)from * words, operand_at(p->a, i + from, k), pb, p->format,
                                   words, below);
                }
            }
        }
    free(memory);
}

// ---------------------------------------------------------------------------------------------
// Threads. c (M,N) is cut into bands of rows, each computed by some of the threads in slices of columns. The height of
// a band is proportional to its number of threads, so any number of threads gets equal shares. Each slice is its own
// product. Neighboring slices pack some of the same data, which costs less than synchronizing.

typedef struct { int M, N, unit_m, unit_n, threads, bands; } Partition;   // slices begin at multiples of the units
typedef struct { int i, j, m, n; } Slice;                                 // m or n may be 0

static int64_t partition_units(int n, int unit) { return n / unit + (n % unit != 0); }

// Start of part i, if n is divided into `parts` at multiples of unit.
static int partition_cut(int n, int unit, int i, int parts) {
    const int64_t at = partition_units(n, unit) * i / parts * unit;
    return at < n ? (int)at : n;
}

// Time of the largest slice in multiply-adds, or any time above limit if it is above that. Packing an element costs as
// much as 32 multiply-adds.
static double partition_time(const Partition* x, int bands, double limit) {
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

static Partition partition_of(int M, int N, int unit_m, int unit_n, int threads) {
    Partition x = {M, N, unit_m, unit_n, threads, 1};
    double best = DBL_MAX;
    for (int bands = 1; bands <= threads; bands++) {
        const double time = partition_time(&x, bands, best);
        if (time < best) best = time, x.bands = bands;
    }
    return x;
}

static Slice partition_slice(const Partition* x, int t) {
    const int band = (int)((((int64_t)t + 1) * x->bands - 1) / x->threads);
    const int first = (int)((int64_t)x->threads * band / x->bands);
    const int next = (int)((int64_t)x->threads * (band + 1) / x->bands);
    Slice s = {partition_cut(x->M, x->unit_m, first, x->threads),
               partition_cut(x->N, x->unit_n, t - first, next - first), 0, 0};
    s.m = partition_cut(x->M, x->unit_m, next, x->threads) - s.i;
    s.n = partition_cut(x->N, x->unit_n, t - first + 1, next - first) - s.j;
    return s;
}

// Slice t of a symmetric product: rows, and the columns from their part of the diagonal on, with equal numbers of tiles
static Slice triangle_slice(int n, int threads, int t) {
    const int i = (int)(n * (1 - sqrt(1 - (double)t / threads))) / MR * MR;
    const int end = t + 1 < threads ? (int)(n * (1 - sqrt(1 - (t + 1.0) / threads))) / MR * MR : n;
    return (Slice){i, i / NR * NR, end - i, n - i / NR * NR};
}

// Copies what is above the diagonal blocks of LANES x LANES to below them.
static void mirror(float* c, size_t n) {
    #pragma omp parallel for schedule(dynamic) if (n > 512)
    for (size_t i = LANES; i < n; i += LANES)
        for (size_t j = 0; j < i; j += LANES)
            if (n - i >= LANES) transpose_rows(c + i * n + j, n, c + j * n + i, n);
            else for (size_t at = i * n + j; at < n * n; at += n)
                for (int l = 0; l < LANES; l++) c[at + l] = c[(j + l) * n + at / n];
}

static void gemm_sliced(const Product* all) {
    const int threads = threads_for(all->M, all->N, all->K);
    const bool symmetric = all->store == GEMM_SYMMETRIC;
    const Partition parts = partition_of(all->M, all->N, MR, NR, threads);
    #pragma omp parallel for schedule(static) num_threads(threads)
    for (int t = 0; t < threads; t++) {
        const Slice s = symmetric ? triangle_slice(all->M, threads, t) : partition_slice(&parts, t);
        Product slice = *all;
        slice.c = all->c + s.i * all->ldc + s.j;
        slice.a = operand_at(all->a, s.i, 0);
        slice.b = operand_at(all->b, s.j, 0);
        slice.M = s.m;
        slice.N = s.n;
        slice.below = s.i - s.j;
        if (s.m > 0 && s.n > 0) product_packed(&slice);
    }
    if (symmetric) mirror(all->c, all->M);
}

// ---------------------------------------------------------------------------------------------
// Few rows: c (M,N) = a (M,K) · b (N,K)ᵀ, stored as `store` says, as dot products. Each thread takes neighboring rows
// of b, the columns of c, and reads them once. A part is VECTOR_BYTES of a row of b. For each part, a has, in FLOATS, a
// vector of floats; in PAIRS, a vector of pairs; in ROUNDED, where b has pairs, a vector of the upper halves and one of
// the lower halves, as floats. The order of the sums is the same for any number of rows, so the bits of a row do not
// depend on it: the even and the odd parts apart, in LANES sums each.

enum { VECTOR_BYTES = LANES * sizeof(Word), GROUP_ROWS = 4, GROUP_COLS = MR / 2, GROUP_DOTS = GROUP_ROWS * GROUP_COLS };

typedef struct {
    float* c;
    const VecWord* a;   // (M / GROUP_ROWS, parts, vectors of a part, GROUP_ROWS), the last group with the rows left
    const char* b;      // (N, row_bytes)
    size_t row_bytes;
    int M, N, parts;
    GemmStore store;
} FewRows;

INLINE int vectors_of_part(Format f) { return f == ROUNDED ? 2 : 1; }

// Part t of a row, with zeros after its end
INLINE VecWord part_of(const char* row, size_t row_bytes, size_t t) {
    const size_t from = t * VECTOR_BYTES;
    if (from + VECTOR_BYTES <= row_bytes) return *(const VecWordU*)(row + from);
    VecWord part = {0};
    if (from < row_bytes) memcpy(&part, row + from, row_bytes - from);
    return part;
}

INLINE VecWord half_of(VecWord part, Format f, int half) {
    if (f == ROUNDED && half == 0) part &= 0xffff0000;
    if (f == ROUNDED && half == 1) part <<= 16;
    return part;
}

INLINE Vec add_products(Vec sum, VecWord a, VecWord b, Format f) {
    if (f == PAIRS) return dot_pairs(sum, a, b);
    return fma_vec((Vec)a, (Vec)b, sum);
}

// Rows of a in the layout of FewRows; free(*memory)
static const VecWord* few_rows_operand(void** memory, Operand a, Format f, int M, int K, int parts) {
    const size_t vectors = vectors_of_part(f), bytes = K * element_size(a);
    *memory = xmalloc((size_t)M * parts * vectors * VECTOR_BYTES + CACHE_LINE);
    VecWord* all = (VecWord*)next_cache_line(*memory);
    for (int i = 0; i < M; i++) {
        const int first = i / GROUP_ROWS * GROUP_ROWS, rows = min_int(GROUP_ROWS, M - first);
        const char* row = operand_at(a, i, 0).p;
        VecWord* out = all + first * parts * vectors + (i - first);
        for (int t = 0; t < parts; t++, out += rows * vectors) {
            if (f == FLOATS || (f == PAIRS && a.bf16)) out[0] = part_of(row, bytes, t);
            else if (a.bf16) {
                const VecWord pairs = part_of(row, bytes, t);
                out[0] = half_of(pairs, f, 0), out[rows] = half_of(pairs, f, 1);
            } else {
                const VecWord x = part_of(row, bytes, 2 * t), y = part_of(row, bytes, 2 * t + 1);
                if (f == PAIRS) out[0] = pair_neighbors(x, y);
                else out[0] = round_words(odds(x, y)), out[rows] = round_words(evens(x, y));
            }
        }
    }
    return all;
}

// c at rows i… and columns j… from the vectors of LANES sums, sum (rows, cols). rows and the format are constants at
// every call, here and below, so that after inlining the sums stay in registers.
INLINE void write_dots(const FewRows* p, Vec sum[GROUP_DOTS], int i, int j, int rows, int cols) {
    float dot[GROUP_DOTS + LANES];
    #pragma GCC unroll 8
    for (int from = 0; from < rows * cols; from += LANES)
        *(VecU*)(dot + from) = sums_of_lanes(sum + from, min_int(LANES, rows * cols - from));
    for (int row = 0; row < rows; row++)
        for (int col = 0; col < cols; col++) {
            float* c = p->c + (size_t)(i + row) * p->N + j + col;
            *c = p->store == GEMM_ADD ? *c + dot[row * cols + col] : dot[row * cols + col];
            if (p->store == GEMM_ROUND) *c = rounded_bf16(*c);
        }
}

// sum (rows) += the products of a part of b with the same part of each row of a (vectors of the part, rows)
INLINE void add_part(Vec* sum, Format f, const VecWord* a, VecWord part, int rows) {
    #pragma GCC unroll 2
    for (int half = 0; half < vectors_of_part(f); half++) {
        const VecWord b = half_of(part, f, half);
        #pragma GCC unroll 4
        for (int row = 0; row < rows; row++) sum[row] = add_products(sum[row], a[half * rows + row], b, f);
    }
}

enum { PREFETCHED_BYTES = 4096 };   // ahead of the read position

// One column, for a group of rows. With one group, memory is the limit, and reading one row of b at a time is twice as
// fast as several at once. Prefetching goes on into the next rows of b, where the processor's own prefetching begins
// late.
INLINE void dots_of_column(const FewRows* p, Format f, int i, int j, int rows) {
    const int whole = (int)(p->row_bytes / VECTOR_BYTES), words = vectors_of_part(f) * rows;
    const VecWord* a = p->a + (size_t)i * p->parts * vectors_of_part(f);
    const char* b = p->b + j * p->row_bytes;
    Vec even[GROUP_DOTS] = {0}, odd[GROUP_ROWS] = {0};
    int t = 0;
    for (; t + 2 <= whole; t += 2, a += 2 * words) {
        const VecWordU* parts = (const VecWordU*)(b + (size_t)t * VECTOR_BYTES);
        #pragma GCC unroll 2
        for (int k = 0; k < 2; k++) __builtin_prefetch((const char*)(parts + k) + PREFETCHED_BYTES);
        add_part(even, f, a, parts[0], rows);
        add_part(odd, f, a + words, parts[1], rows);
    }
    if (t < p->parts) add_part(even, f, a, part_of(b, p->row_bytes, t), rows);
    if (t + 1 < p->parts) add_part(odd, f, a + words, part_of(b, p->row_bytes, t + 1), rows);
    #pragma GCC unroll 4
    for (int row = 0; row < rows; row++) even[row] += odd[row];
    write_dots(p, even, i, j, rows, 1);
}

// GROUP_COLS columns, for more rows than a group. A block of their parts stays in L1, together with the same parts of a
// group of rows, until all groups are multiplied with it. It is copied first if it has halves to convert or the end of
// a row.
typedef struct {
    const char *b, *next;        // the block, and what to prefetch of the next columns
    size_t col_bytes;            // from one column of the block to the next
    int from, parts;             // the block is parts from, …, from + parts - 1
    Vec (*sums)[2][GROUP_DOTS];  // (M / GROUP_ROWS) sums of even and of odd parts, over the blocks so far
    char* copy;                  // (GROUP_COLS, BLOCK_BYTES)
} Columns;

enum { BLOCK_BYTES = 48 * VECTOR_BYTES };   // of a column; with AVX-512, 4 rows and 6 columns take 30 KB

INLINE void begin_columns(Columns* s, const FewRows* p, Format f, int j) {
    const int vectors = vectors_of_part(f);
    s->b = p->b + j * p->row_bytes + (size_t)s->from * VECTOR_BYTES;
    s->col_bytes = p->row_bytes;
    if (f != ROUNDED && (size_t)(s->from + s->parts) * VECTOR_BYTES <= p->row_bytes) return;
    s->b = s->copy;
    s->col_bytes = BLOCK_BYTES;
    for (int col = 0; col < GROUP_COLS; col++) {
        VecWord* out = (VecWord*)(s->copy + col * BLOCK_BYTES);
        for (int t = 0; t < s->parts; t++)
            for (int half = 0; half < vectors; half++)
                *out++ = half_of(part_of(p->b + (j + col) * p->row_bytes, p->row_bytes, s->from + t), f, half);
    }
}

INLINE void dots_of_columns(Columns* s, const FewRows* p, Format f, int i, int j, int rows) {
    const int vectors = vectors_of_part(f), prefetched = VECTOR_BYTES * rows / p->M;   // all groups: all parts
    const Vec zero = {0};
    Vec (*sums)[GROUP_DOTS] = s->sums[i / GROUP_ROWS];
    for (int odd = 0; odd < 2; odd++) {
        const VecWord* a = p->a + ((size_t)i * p->parts + (size_t)(s->from + odd) * rows) * vectors;
        const char* b = s->b + odd * vectors * VECTOR_BYTES;
        Vec sum[GROUP_DOTS];
        #pragma GCC unroll 24
        for (int k = 0; k < rows * GROUP_COLS; k++) sum[k] = s->from > 0 ? sums[odd][k] : zero;
        for (int t = odd; t < s->parts; t += 2, a += rows * vectors, b += vectors * VECTOR_BYTES) {
            #pragma GCC unroll 6
            for (int col = 0; col < GROUP_COLS; col++) __builtin_prefetch(s->next + col * p->row_bytes);
            s->next += prefetched;
            for (int half = 0; half < vectors; half++, a += rows, b += VECTOR_BYTES) {
                VecWord column[GROUP_COLS];
                #pragma GCC unroll 6
                for (int col = 0; col < GROUP_COLS; col++) column[col] = *(const VecWordU*)(b + col * s->col_bytes);
                #pragma GCC unroll 4
                for (int row = 0; row < rows; row++)
                    #pragma GCC unroll 6
                    for (int col = 0; col < GROUP_COLS; col++)
                        sum[row * GROUP_COLS + col] = add_products(sum[row * GROUP_COLS + col], a[row], column[col], f);
            }
        }
        #pragma GCC unroll 24
        for (int k = 0; k < rows * GROUP_COLS; k++) sums[odd][k] = sum[k];
    }
    if (s->from + s->parts < p->parts) return;
    #pragma GCC unroll 24
    for (int k = 0; k < rows * GROUP_COLS; k++) sums[0][k] += sums[1][k];
    write_dots(p, sums[0], i, j, rows, GROUP_COLS);
}

// All rows of one column, or with s the block of GROUP_COLS columns
INLINE void dots_of_rows(Columns* s, const FewRows* p, Format f, int j) {
    for (int i = 0; i < p->M; i += GROUP_ROWS)
        switch (min_int(GROUP_ROWS, p->M - i)) {
        case 1: s ? dots_of_columns(s, p, f, i, j, 1) : dots_of_column(p, f, i, j, 1); break;
        case 2: s ? dots_of_columns(s, p, f, i, j, 2) : dots_of_column(p, f, i, j, 2); break;
        case 3: s ? dots_of_columns(s, p, f, i, j, 3) : dots_of_column(p, f, i, j, 3); break;
        case 4: s ? dots_of_columns(s, p, f, i, j, 4) : dots_of_column(p, f, i, j, 4); break;
        }
}

// All rows, and columns j to end
INLINE void few_rows_slice(const FewRows* p, Format f, int j, int end) {
    if (p->M > GROUP_ROWS) {
        const int most = BLOCK_BYTES / VECTOR_BYTES / vectors_of_part(f), blocks = ceil_div(p->parts, most);
        const int parts = ceil_div(p->parts, 2 * blocks) * 2;    // even
        const size_t sums_bytes = ceil_div(p->M, GROUP_ROWS) * sizeof(Vec[2][GROUP_DOTS]);
        void* memory = xmalloc(sums_bytes + GROUP_COLS * BLOCK_BYTES + CACHE_LINE);
        Columns s = {.sums = (void*)next_cache_line(memory)};
        s.copy = (char*)s.sums + sums_bytes;
        for (; j + GROUP_COLS <= end; j += GROUP_COLS) {
            s.next = p->b + (j + GROUP_COLS) * p->row_bytes;
            for (s.from = 0; s.from < p->parts; s.from += parts) {
                s.parts = min_int(parts, p->parts - s.from);
                begin_columns(&s, p, f, j);
                dots_of_rows(&s, p, f, j);
            }
        }
        free(memory);
    }
    for (; j < end; j++) dots_of_rows(NULL, p, f, j);
}

static void few_rows_floats(const FewRows* p, int j, int end) { few_rows_slice(p, FLOATS, j, end); }
static void few_rows_rounded(const FewRows* p, int j, int end) { few_rows_slice(p, ROUNDED, j, end); }
static void few_rows_pairs(const FewRows* p, int j, int end) { few_rows_slice(p, PAIRS, j, end); }

static void gemm_few_rows(const Product* all) {
    const size_t row_bytes = all->K * element_size(all->b);
    const int parts = (int)((row_bytes + VECTOR_BYTES - 1) / VECTOR_BYTES);
    const int threads = threads_for(all->M, all->N, all->K);
    const Format f = all->format;
    void* memory;
    const VecWord* a = few_rows_operand(&memory, all->a, f, all->M, all->K, parts);
    const FewRows p = {all->c, a, all->b.p, row_bytes, all->M, all->N, parts, all->store};
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

static Operand operand_of(Matrix m, size_t ld, bool lanes_side) {
    const char* p = m.bf16 ? (const char*)m.bf16 : (const char*)m.f32;
    return (Operand){p, ld, lanes_side, m.bf16 != NULL};
}

// By dot products if the rows of a are few and b (N,K) needs no rounding
static void gemm_in(Format f, float* c, Matrix a, Matrix b, GemmLayout layout, int M, int N, int K, GemmStore store) {
    const bool at = layout == GEMM_TN, bt = layout == GEMM_NT;
    const Operand left = operand_of(a, at ? M : K, at), right = operand_of(b, bt ? K : N, !bt);
    const Product p = {c, N, left, right, M, N, K, store, f, 0};
    if (M <= TOST_FEW_ROWS && layout == GEMM_NT && (f == FLOATS || b.bf16)) gemm_few_rows(&p);
    else gemm_sliced(&p);
}

// VDPBF16PS does the work of two FMA instructions. AMD's processors issue both at the same rate; Sapphire Rapids issues
// VDPBF16PS at a quarter of that rate. Both formats give the same bits, so a run may resume with the other.
static Format bf16_format(void) {
#ifdef __AVX512BF16__
    if (__builtin_cpu_is("amd")) return PAIRS;
#endif
    return ROUNDED;
}

bool gemm_bf16_is_fast(void) { return bf16_format() == PAIRS; }

void gemm_bf16(float* c, Matrix a, Matrix b, GemmLayout layout, int M, int N, int K, GemmStore store) {
    gemm_in(bf16_format(), c, a, b, layout, M, N, K, store);
}

void gemm(float* c, Matrix a, Matrix b, GemmLayout layout, int M, int N, int K, GemmStore store) {
    gemm_in(FLOATS, c, (Matrix){a.f32, NULL}, (Matrix){b.f32, NULL}, layout, M, N, K, store);
}

const char* gemm_library(void) { return "built in (" KERNEL_NAME ")"; }
