// delta_rule.c: the memory; a thread takes a head of a sequence. Training and long texts go by chunks of 16 tokens, of
// which delta_rule.h has the equations; decoding goes token by token. Rows in working space have `width` floats, HS
// rounded up to a multiple of 16, and are zero past HS and past the last token.
#include "cpu/delta_rule.h"

#include <string.h>

#include "base/vector_math.h"
#include "cpu/threads.h"
#include "cpu/vectors.h"
#include "engine.h"

enum { TOKENS = 16 };   // of a chunk

typedef struct { float *G, *k, *o; } HeadState;   // of a head; the array G holds Gᵀ in a state, and dG in an adjoint

static HeadState head_state(const DeltaRule* args, const float* states, int b, int h) {
    float* at = (float*)states + b * args->stride;
    return (HeadState){at + (size_t)h * args->HS * args->HS, at + (size_t)args->C * args->HS + h * args->HS,
                         at + (size_t)args->C * (args->HS + 1) + h * args->HS};
}

static int width_of(int HS) { return ceil_div(HS, TOKENS) * TOKENS; }
static float* scratch_of(const DeltaRule* args) {
    return args->scratch + thread_index() * delta_rule_scratch_size(args->HS);
}

// row = x, HS floats, or zeros if x is NULL, then zeros
INLINE void set_row(float* row, const float* x, int HS, int width) {
    int d = 0;
    for (; x && d + LANES <= HS; d += LANES) *(VecU*)(row + d) = *(const VecU*)(x + d);
    for (; d < width; d++) row[d] = x && d < HS ? x[d] : 0;
}

INLINE float dot(const float* x, const float* y, int width) {
    Vec sum = {0};
    for (int d = 0; d < width; d += LANES) sum = fma_vec(*(const VecU*)(x + d), *(const VecU*)(y + d), sum);
    return sum_lanes(sum);
}

// k = factor · z, or zeros if z is NULL. Returns the factor, 1/√(‖z‖² + 1e-12).
INLINE float set_key(float* k, const float* z, int HS, int width) {
    set_row(k, z, HS, width);
    const float factor = (float)(1.0 / sqrt(dot(k, k, width) + TOST_ENERGY_MIN));
    for (int d = 0; d < width; d += LANES) *(VecU*)(k + d) *= factor;
    return factor;
}

// ---------------------------------------------------------------------------------------------
// A few tokens of inference, one after the other: the bits of a token do not depend on how many come at once.

enum { COLUMNS = 16 };   // at once, with their sums in registers

// For `columns` columns of Gᵀ, the array G: Gᵀ += k_before eᵀ, then o = G k
static inline void update_columns(float* restrict G, float* restrict o, const float* restrict e,
                                  const float* restrict k_before, const float* restrict k, int HS, int columns) {
    float sum[COLUMNS] = {0};
    for (int i = 0; i < HS; i++) {
        float* restrict G_i = G + (size_t)i * HS;
        #pragma omp simd   // without it, gcc unrolls the loop and uses no vectors
        for (int d = 0; d < columns; d++) {
            G_i[d] = fma_f32(k_before[i], e[d], G_i[d]);
            sum[d] = fma_f32(k[i], G_i[d], sum[d]);
        }
    }
    memcpy(o, sum, columns * sizeof *o);
}

static void head_by_token(const DeltaRule* args, int b, int h) {
    const int HS = args->HS;
    const HeadState s = head_state(args, args->state, b, h);
    float *k = scratch_of(args), *e = k + width_of(HS);
    for (int t = 0; t < args->T; t++) {
        const size_t at = ((size_t)b * args->T + t) * args->C + h * HS;
        const float pi = args->pi[((size_t)b * args->NH + h) * args->T + t];
        for (int d = 0; d < HS; d++) e[d] = pi * (args->z[at + d] - s.o[d]);
        set_key(k, args->z + at, HS, width_of(HS));
        int d = 0;
        for (; d + COLUMNS <= HS; d += COLUMNS)
            update_columns(s.G + d, s.o + d, e + d, s.k, k, HS, COLUMNS);
        if (d < HS) update_columns(s.G + d, s.o + d, e + d, s.k, k, HS, HS - d);
        memcpy(s.k, k, HS * sizeof *k);
        memcpy(args->o + at, s.o, HS * sizeof *k);
    }
}

// ---------------------------------------------------------------------------------------------
// Products of small matrices, whose sizes are multiples of ROWS by LANES

#if defined(__AVX512F__) || defined(__aarch64__)
enum { ROWS = 8 };   // of a tile of ROWS x 2·LANES sums, which are in registers
#else
enum { ROWS = 4 };
#endif

typedef struct { float* p; size_t row; } Matrix;   // element (i,j) is p[i·row + j]
typedef enum { SET, ADD, SUBTRACT } Store;

INLINE Matrix part(Matrix m, int i, int j) { return (Matrix){m.p + i * m.row + j, m.row}; }
INLINE float* row_of(Matrix m, int i) { return m.p + i * m.row; }

// Element (i,l) of a is a[i·row + l·step]. vectors is a constant at every call.
INLINE void tile(float* c, size_t c_row, const float* a, size_t row, size_t step, const float* b, size_t b_row,
                 int depth, Store store, int vectors) {
    Vec sum[ROWS][2] = {0};
    for (int l = 0; l < depth; l++) {
        Vec y[2];
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) y[v] = *(const VecU*)(b + l * b_row + v * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) sum[i][v] = fma_vec(broadcast(a[i * row + l * step]), y[v], sum[i][v]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) {
            VecU* at = (VecU*)(c + i * c_row + v * LANES);
            if (store == ADD) *at += sum[i][v];
            else if (store == SUBTRACT) *at -= sum[i][v];
            else *at = sum[i][v];
        }
}

INLINE void tiles(Matrix c, const float* a, size_t row, size_t step, Matrix b, int M, int N, int depth, Store store) {
    int j = 0;
    for (; j + 2 * LANES <= N; j += 2 * LANES)
        for (int i = 0; i < M; i += ROWS)
            tile(row_of(c, i) + j, c.row, a + i * row, row, step, b.p + j, b.row, depth, store, 2);
    for (int i = 0; j < N && i < M; i += ROWS)
        tile(row_of(c, i) + j, c.row, a + i * row, row, step, b.p + j, b.row, depth, store, 1);
}

// c (M,N) = a (M,depth) · b (depth,N), or += or -=
static void product(Matrix c, Matrix a, Matrix b, int M, int N, int depth, Store store) {
    tiles(c, a.p, a.row, 1, b, M, N, depth, store);
}

// The same with aᵀ, a (depth,M)
static void product_transposed(Matrix c, Matrix a, Matrix b, int M, int N, int depth, Store store) {
    tiles(c, a.p, 1, a.row, b, M, N, depth, store);
}

// to (N,M) = from (M,N)ᵀ
static void transpose_to(Matrix to, Matrix from, int M, int N) {
    for (int i = 0; i < M; i += LANES)
        for (int j = 0; j < N; j += LANES) transpose_rows(row_of(to, j) + i, to.row, row_of(from, i) + j, from.row);
}

// ---------------------------------------------------------------------------------------------
// The working space of a thread, with names as in delta_rule.h

typedef struct {
    int width;
    Matrix G, dG;               // (width,width); in forward, G is Gᵀ
    Matrix K, O, dK;            // (TOKENS+1,width); in backward, O is dO
    Matrix E, dE, errors;       // (TOKENS,width); errors: z - O, in forward z
    Matrix columns;             // (width,TOKENS): Kwᵀ, then Eᵀ
    Matrix pairs, dpairs;       // (TOKENS,TOKENS): B and Q
    float pi[TOKENS], factor[TOKENS];
} Work;

size_t delta_rule_scratch_size(int HS) {
    const size_t width = width_of(HS), n = TOKENS;
    return 2 * width * width + (9 * n + 4) * width + 2 * n * n;
}

// The matrix at *at, which is moved behind it
static Matrix next(float** at, int rows, int width) {
    const Matrix m = {*at, width};
    *at += (size_t)rows * width;
    return m;
}

static Work work_of(const DeltaRule* args) {
    const int n = TOKENS, width = width_of(args->HS);
    float* at = scratch_of(args);
    return (Work){.width = width, .G = next(&at, width, width), .dG = next(&at, width, width),
                  .K = next(&at, n + 1, width), .O = next(&at, n + 1, width), .dK = next(&at, n + 1, width),
                  .E = next(&at, n, width), .dE = next(&at, n, width), .errors = next(&at, n, width),
                  .columns = next(&at, width, n), .pairs = next(&at, n, n), .dpairs = next(&at, n, n)};
}

static void set_matrix(Matrix m, const float* x, int HS, int width) {
    for (int i = 0; i < width; i++) set_row(row_of(m, i), i < HS ? x + (size_t)i * HS : NULL, HS, width);
}
static void store_matrix(float* x, Matrix m, int HS) {
    for (int i = 0; i < HS; i++) memcpy(x + (size_t)i * HS, row_of(m, i), HS * sizeof *x);
}

// Tokens t to t + n - 1 of head h of sequence b
typedef struct { int b, h, t, n; } Tokens;

static size_t row_at(const DeltaRule* args, Tokens tokens, int i) {   // of token t + i
    return ((size_t)tokens.b * args->T + tokens.t + i) * args->C + tokens.h * args->HS;
}

// Reads a row of the chunk `ahead` tokens further, which is used soon, into the cache.
INLINE void prefetch(const float* row, const DeltaRule* args, int ahead) {
    for (int d = 0; d < args->HS; d += LANES) __builtin_prefetch(row + (ptrdiff_t)ahead * args->C + d);
}

// Sets K, B = Kr Kwᵀ and the tokens' Π and z. start: the state before all tokens
static void set_chunk(Work* w, const DeltaRule* args, Tokens tokens, HeadState start, int ahead) {
    const int HS = args->HS, width = w->width;
    const float* pi = args->pi + ((size_t)tokens.b * args->NH + tokens.h) * args->T + tokens.t;
    if (tokens.t > 0) set_key(w->K.p, args->z + row_at(args, tokens, -1), HS, width);
    else set_row(w->K.p, start.k, HS, width);
    for (int i = 0; i < TOKENS; i++) {
        const float* z = i < tokens.n ? args->z + row_at(args, tokens, i) : NULL;
        prefetch(args->z + row_at(args, tokens, i), args, ahead);
        w->factor[i] = set_key(row_of(w->K, i + 1), z, HS, width);
        set_row(row_of(w->errors, i), z, HS, width);
        w->pi[i] = z ? pi[i] : 0;
    }
    transpose_to(w->columns, w->K, TOKENS, width);
    product(w->pairs, part(w->K, 1, 0), w->columns, TOKENS, TOKENS, width, SET);
}

// ---------------------------------------------------------------------------------------------
// Forward

// On entry O = Kr S. For i from 0 on: E[i] = Π[i] (z[i] - O[i]), O[j+1] += (K[j+1]·K[i]) E[i] for all j ≥ i
static void solve(const Work* w) {
    const float *pairs = w->pairs.p, *pi = w->pi;
    const size_t width = w->width;
    for (size_t d = 0; d < width; d += LANES) {
        float *O = w->O.p + d, *E = w->E.p + d, *z = w->errors.p + d;
        Vec o[TOKENS + 1];
#pragma GCC unroll 17
        for (int i = 0; i <= TOKENS; i++) o[i] = *(const VecU*)(O + i * width);
#pragma GCC unroll 16
        for (int i = 0; i < TOKENS; i++) {
            const Vec e = pi[i] * (*(const VecU*)(z + i * width) - o[i]);
            *(VecU*)(E + i * width) = e;
#pragma GCC unroll 16
            for (int j = i; j < TOKENS; j++) o[j + 1] = fma_vec(broadcast(pairs[j * TOKENS + i]), e, o[j + 1]);
            *(VecU*)(O + (i + 1) * width) = o[i + 1];
        }
    }
}

static void head_forward(const DeltaRule* args, int b, int h) {
    const int HS = args->HS;
    const HeadState s = head_state(args, args->state, b, h);
    Work w = work_of(args);
    const Matrix Kr = part(w.K, 1, 0), Or = part(w.O, 1, 0);
    set_matrix(w.G, s.G, HS, w.width);
    set_row(w.O.p, s.o, HS, w.width);
    Tokens tokens = {b, h, 0, 0};
    for (; tokens.t < args->T; tokens.t += tokens.n) {
        tokens.n = min_int(TOKENS, args->T - tokens.t);
        set_chunk(&w, args, tokens, s, TOKENS);
        product(Or, Kr, w.G, TOKENS, w.width, w.width, SET);
        solve(&w);
        product_transposed(w.G, w.K, w.E, w.width, w.width, TOKENS, ADD);
        for (int i = 0; i < tokens.n; i++) {
            set_row(args->o + row_at(args, tokens, i), row_of(Or, i), HS, HS);
            prefetch(args->o + row_at(args, tokens, i), args, TOKENS);
        }
        set_row(w.O.p, row_of(w.O, tokens.n), HS, w.width);
    }
    store_matrix(s.G, w.G, HS);
    memcpy(s.k, row_of(w.K, args->T - (args->T - 1) / TOKENS * TOKENS), HS * sizeof *s.k);
    memcpy(s.o, w.O.p, HS * sizeof *s.o);
    if (!args->G) return;
    transpose_to(w.dG, w.G, w.width, w.width);
    store_matrix(args->G + ((size_t)b * args->C + h * HS) * HS, w.dG, HS);
}

void delta_rule_forward(const DeltaRule* args) {
    const bool few = !args->G && args->T <= TOST_FEW_ROWS;
    #pragma omp parallel for schedule(static) if ((size_t)args->B * args->T > SERIAL_ROWS)
    for (int i = 0; i < args->B * args->NH; i++)
        (few ? head_by_token : head_forward)(args, i / args->NH, i % args->NH);
}

// ---------------------------------------------------------------------------------------------
// Backward

// Sets the errors, E, and dO from d_o. do_after: gradient of the last o from the next tokens
static void set_errors(const Work* w, const DeltaRule* args, Tokens tokens, const float* o_start,
                       const float* do_after) {
    const int HS = args->HS, width = w->width;
    for (int i = 0; i < TOKENS; i++) {
        const size_t at = row_at(args, tokens, i < tokens.n ? i : 0);
        const float *o_before = tokens.t + i > 0 ? args->o + at - args->C : o_start;
        float *error = row_of(w->errors, i), *e = row_of(w->E, i);
        prefetch(args->o + at, args, -TOKENS - 1);
        prefetch(args->d_o + at, args, -TOKENS);
        set_row(row_of(w->O, i + 1), i < tokens.n ? args->d_o + at : NULL, HS, width);
        set_row(e, i < tokens.n ? o_before : NULL, HS, width);
        for (int d = 0; d < width; d += LANES) {
            *(VecU*)(error + d) -= *(VecU*)(e + d);
            *(VecU*)(e + d) = w->pi[i] * *(VecU*)(error + d);
        }
    }
    set_row(w->O.p, NULL, 0, width);
    for (int d = 0; d < HS; d++) row_of(w->O, tokens.n)[d] += do_after[d];
}

// On entry dE = Kw dGᵀ. For i from n - 1 down: dE[j] += (K[i+1]·K[j]) dO[i+1] for all j ≤ i, dO[i] -= Π[i] dE[i]
static void solve_backward(const Work* w) {
    const float *pairs = w->pairs.p, *pi = w->pi;
    const size_t width = w->width;
    for (size_t d = 0; d < width; d += LANES) {
        float *dO = w->O.p + d, *dE = w->dE.p + d;
        Vec de[TOKENS], do_after = *(const VecU*)(dO + TOKENS * width);
#pragma GCC unroll 16
        for (int i = 0; i < TOKENS; i++) de[i] = *(const VecU*)(dE + i * width);
#pragma GCC unroll 16
        for (int i = TOKENS - 1; i >= 0; i--) {
#pragma GCC unroll 16
            for (int j = 0; j <= i; j++) de[j] = fma_vec(broadcast(pairs[i * TOKENS + j]), do_after, de[j]);
            *(VecU*)(dE + i * width) = de[i];
            do_after = *(VecU*)(dO + i * width) = fma_vec(broadcast(-pi[i]), de[i], *(VecU*)(dO + i * width));
        }
    }
}

// Sets dK. G and dG become those before the chunk.
static void keys_backward(const Work* w) {
    const int n = TOKENS, width = w->width;
    const Matrix Kr = part(w->K, 1, 0), dOr = part(w->O, 1, 0), dKr = part(w->dK, 1, 0);
    transpose_to(w->columns, w->E, n, width);
    product(w->dpairs, dOr, w->columns, n, n, width, SET);
    for (int i = 0; i < n; i++)
        for (int j = i + 1; j < n; j++) row_of(w->dpairs, i)[j] = 0;
    product_transposed(w->G, w->E, w->K, width, width, n, SUBTRACT);
    product(dKr, dOr, w->G, n, width, width, SET);
    set_row(w->dK.p, NULL, 0, width);
    product(w->dK, w->E, w->dG, n, width, width, ADD);
    product_transposed(w->dG, dOr, Kr, width, width, n, ADD);
    for (int i = 0; i < n; i += ROWS) {
        product(part(dKr, i, 0), part(w->dpairs, i, 0), w->K, ROWS, width, i + ROWS, ADD);
        product_transposed(part(w->dK, i, 0), part(w->dpairs, i, i), part(Kr, i, 0), ROWS, width, n - i, ADD);
    }
}

// From dK and dE to dz and dΠ
static void store_gradients(const Work* w, const DeltaRule* args, Tokens tokens) {
    float* dpi = args->dpi + ((size_t)tokens.b * args->NH + tokens.h) * args->T + tokens.t;
    for (int i = 0; i < tokens.n; i++) {
        const float *k = row_of(w->K, i + 1), *dk = row_of(w->dK, i + 1), *de = row_of(w->dE, i);
        const float k_dk = dot(k, dk, w->width), pi = w->pi[i], factor = w->factor[i];
        float* restrict dz = args->dz + row_at(args, tokens, i);
        dpi[i] = dot(de, row_of(w->errors, i), w->width);
        for (int d = 0; d < args->HS; d++) dz[d] = pi * de[d] + factor * (dk[d] - k[d] * k_dk);
    }
}

static void head_backward(const DeltaRule* args, int b, int h) {
    const int HS = args->HS;
    const HeadState start = args->before ? head_state(args, args->before, b, h) : (HeadState){0};
    const HeadState adjoint = head_state(args, args->adjoint, b, h);
    Work w = work_of(args);
    const Matrix dE_columns = {w.dK.p, TOKENS};   // (width,TOKENS); dK is set later
    set_matrix(w.G, args->G + ((size_t)b * args->C + h * HS) * HS, HS, w.width);
    set_matrix(w.dG, adjoint.G, HS, w.width);
    for (int t = (args->T - 1) / TOKENS * TOKENS; t >= 0; t -= TOKENS) {
        const Tokens tokens = {b, h, t, min_int(TOKENS, args->T - t)};
        set_chunk(&w, args, tokens, start, -TOKENS);
        set_errors(&w, args, tokens, start.o, adjoint.o);
        product(dE_columns, w.dG, w.columns, w.width, TOKENS, w.width, SET);
        transpose_to(w.dE, dE_columns, w.width, TOKENS);
        solve_backward(&w);
        keys_backward(&w);
        for (int d = 0; d < HS; d++) row_of(w.dK, tokens.n)[d] += adjoint.k[d];
        store_gradients(&w, args, tokens);
        memcpy(adjoint.k, w.dK.p, HS * sizeof *adjoint.k);
        memcpy(adjoint.o, w.O.p, HS * sizeof *adjoint.o);
    }
    store_matrix(adjoint.G, w.dG, HS);
}

void delta_rule_backward(const DeltaRule* args) {
    #pragma omp parallel for schedule(static)
    for (int i = 0; i < args->B * args->NH; i++) head_backward(args, i / args->NH, i % args->NH);
}
