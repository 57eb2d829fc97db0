// delta_rule.cuh: the memory of --memory 1. tost/cpu/delta_rule.h has the equations and the names; its chunk of n
// tokens is here a run. Two things differ. The state has no o: O[0] is K[0] S, so dO[0] stays in the run, and only dK[0]
// goes to the run before it. And the products of keys are one symmetric matrix, K Kᵀ, so E, O, dE and dO have n + 1 rows
// like K, and row n of E and dE is 0:
//     dS = dS' + Kᵀ dO,   dK = dO Sᵀ + E dS'ᵀ + (Q + Qᵀ) K,   Q[i,j] = dO[i]·E[j] for j < i, otherwise 0
//
// A block of threads computes some columns of S, E and O, of one head of one sequence, on which the others do not
// depend. It goes through the runs of 31 tokens, which have 32 keys, with S in shared memory; only the first run loads
// S and computes O[0] from it. All sums are products of small matrices on tensor cores (tile.cuh), except in the
// triangular systems, of which a lane solves 16 rows of a column. E is computed from o as stored, rounded to the type
// of activations, so that backward gets the same E. Backward, each block writes its columns' part of dK and dΠ. A
// second kernel, parallel over tokens, adds the parts in order, and computes dz.
//
// If the heads of a pass are few, and the pass is long, its runs are divided into segments, with blocks of their own.
// With S, dS before a segment and S', dS' after it,   S' = P S + L,   dS = Pᵀ dS' + M.   L is S' for S = 0; M is dS for
// dS' = 0; P (HS,HS) is S' for S = 1, the identity, and E[i] = -Π[i] O[i]. Forward and backward have three launches
// each: the first (`local`) computes L and P, or M; from these, delta_chain_kernel computes S or dS between segments,
// one segment after the other; the last computes everything else, from S or dS. Backward takes P from forward.
// delta_rule_dz adds dK[0] of a segment to dk of the token before it.
#pragma once

#include "tost/cuda/tile.cuh"

constexpr int DELTA_RUN = 31, DELTA_ROWS = DELTA_RUN + 1;   // tokens of a run; its keys K[0] to K[n]
constexpr int DELTA_THREADS = 256;                          // most of a block: see delta_rule_threads
constexpr int DELTA_SEGMENTS = 4;                           // at least, or one: see delta_rule_segment
constexpr int DELTA_LANES = 8, DELTA_PACK = 8;              // lanes of a key; channels that each takes at once
// Blocks of DELTA_THREADS that must fit on a multiprocessor: the most for which no register spills
template <typename S, int ARCH = COMPILED_ARCH>
constexpr int DELTA_FORWARD_BLOCKS = ARCH >= 1000 ? 1 : ARCH == 900 && sizeof(S) == 2 ? 3 : 2;
template <typename S, int ARCH = COMPILED_ARCH>
constexpr int DELTA_BACKWARD_BLOCKS = ARCH >= 1000 || sizeof(S) > 2 ? 1 : 2;

template <typename S> struct DeltaRule {
    int B, T, C, NH, HS;
    int columns, parts;               // columns of a block; blocks of a head in a segment
    int segment, segments;            // tokens of each segment but the last, whole runs; segments of the pass
    bool local;                       // the first of three launches: see above
    const S* z;                       // (B,T,C)
    const float *pi, *scale;          // (B,NH,T), (C)
    S *o, *y;                         // (B,T,C): predictions; y += scale o
    float* G;                         // (segments,B,NH,HS,HS): S after each segment; then, with several, P of each.
                                      // NULL in inference with one segment
    PassStates state;
    size_t state_size, offset;        // of a sequence; of the memory's part in it
    // backward only
    const S* dy;                      // (B,T,C)
    S *dz, *dk_parts;                 // (B,T,C); (parts,B,segments+T,NH,width): each segment's part of dk, of the token
                                      // before it and of its own tokens
    float *dpi, *dpi_parts, *dscale;  // (B,NH,T); (parts,B,NH,T); (segments,B,C)
    float* dG;                        // (segments,B,NH,HS,HS): dS before each segment; unused with one segment
    PassStates adjoint;
};

// n tokens of head h of sequence b, from token t0 of the pass on; the block's columns from v0 on
struct DeltaRun { int b, h, v0, t0, n; };

// The state of a head: Gᵀ (HS,HS) and k (HS), floats. NULL: zeros, or not written
struct DeltaState { float *G, *k; };

// Arrays in shared memory: E, O, dO, errors (32,COLUMNS), O with dE in backward; gram: K Kᵀ, its lower and diagonal
// tiles (32,32); Q: Q + Qᵀ (32,32); pi (32); scale (COLUMNS); K (32,width); S, dS (width,COLUMNS); dk (2,width): dK[0]
// of this run and of the next. Rows past n and channels past HS are zero. Forward has no dS, dO, errors, Q and dk.
// With 32 columns, the matrices are swizzled (tile.cuh); with 16, their rows are padded.
template <int COLUMNS> struct DeltaShared {
    static constexpr bool swizzle = COLUMNS == 2 * TILE;
    static constexpr int columns = COLUMNS, padding = swizzle ? 0 : 4;
    static constexpr int row = COLUMNS + padding, gram_row = DELTA_ROWS + padding;   // strides of matrices
    typedef Operand<true, swizzle> Along;
    typedef Operand<false, swizzle> Across;
    int width, key_row;               // HS rounded up to a multiple of COLUMNS; stride of K
    float *E, *O, *gram, *pi, *scale, *K, *S, *dO, *errors, *Q, *dS, *dk, *end;

    __host__ __device__ DeltaShared(float* shared, int HS, bool backward) {
        constexpr int part = DELTA_ROWS * row, square = DELTA_ROWS * gram_row;
        width = div_up(HS, COLUMNS) * COLUMNS, key_row = width + padding;
        E = shared, O = E + part, gram = O + part, pi = gram + square, scale = pi + DELTA_ROWS, dO = scale + COLUMNS;
        errors = dO + part, Q = errors + part, K = backward ? Q + square : dO, S = K + DELTA_ROWS * key_row;
        dS = S + width * row, dk = dS + width * row, end = backward ? dk + 2 * width : dS;
    }
    size_t bytes() const { return (end - E) * sizeof(float); }

    // Element (i,j) of a matrix with `columns` columns, of one of (32,32), and of K
    __device__ float* at(float* p, int i, int j) const { return p + i * row + swizzled<swizzle>(i, j); }
    __device__ float* pair(float* p, int i, int j) const { return p + i * gram_row + swizzled<swizzle>(i, j); }
    __device__ float* key(int i, int j) const { return K + i * key_row + swizzled<swizzle>(i, j); }
};

static size_t delta_rule_state_size(size_t C, size_t HS) { return (C * (HS + 1) + 1) / 2; }   // in doubles

static size_t delta_rule_shared(int HS, int columns, bool backward) {
    float* const any = (float*)sizeof(float);
    return columns == TILE ? DeltaShared<TILE>(any, HS, backward).bytes()
                           : DeltaShared<2 * TILE>(any, HS, backward).bytes();
}

// Tokens of a segment. Segments take about three times the work, so there are several only if there would be fewer
// blocks than multiprocessors: then as many as give each multiprocessor 4 blocks, but of at least 16 runs each, except
// for the last. If these are fewer than DELTA_SEGMENTS, there is one segment.
static int delta_rule_segment(int B, int T, int NH, int HS) {
    const int blocks = B * NH * div_up(HS, 2 * TILE), device = device_attribute(cudaDevAttrMultiProcessorCount);
    const int runs = div_up(T, DELTA_RUN), segments = min(4 * device / blocks, runs / 16);
    return div_up(runs, blocks < device && segments >= DELTA_SEGMENTS ? segments : 1) * DELTA_RUN;
}

// Columns of a block: 32, or 16 if that keeps more multiprocessors busy or if 32 do not fit.
static int delta_rule_columns(int B, int T, int NH, int HS) {
    const size_t blocks = (size_t)div_up(T, delta_rule_segment(B, T, NH, HS)) * B * NH * div_up(HS, 2 * TILE);
    const bool few = HS <= TILE || blocks < (size_t)device_attribute(cudaDevAttrMultiProcessorCount);
    return few || delta_rule_shared(HS, 2 * TILE, true) > MAX_ALLOWED_SHARED ? TILE : 2 * TILE;
}

// Threads of each of `blocks` blocks: half of DELTA_THREADS, if each multiprocessor gets more than 2 blocks and 4 fit
// in its shared memory. While one of them waits at a barrier, others run.
static int delta_rule_threads(int blocks, size_t shared) {
    const size_t all = device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    const bool many = blocks > 2 * device_attribute(cudaDevAttrMultiProcessorCount);
    return many && 4 * (shared + EXTRA_SHARED) <= all ? DELTA_THREADS / 2 : DELTA_THREADS;
}

// A row of dk_parts: the given segment's part of dk of token i - 1 of the pass
template <typename S>
__device__ inline S* delta_dk(const DeltaRule<S>& args, int part, int b, int h, int i, int segment) {
    const size_t row = ((size_t)part * args.B + b) * (args.T + args.segments) + i + segment;
    return args.dk_parts + (row * args.NH + h) * args.parts * args.columns;
}

template <typename S> __device__ inline DeltaState delta_state(const double* states, int b, int h,
                                                               const DeltaRule<S>& args) {
    if (!states) return {NULL, NULL};
    float* const at = (float*)const_cast<double*>(states + b * args.state_size + args.offset);
    return {at + (size_t)h * args.HS * args.HS, at + (size_t)args.C * args.HS + h * args.HS};
}

// The block's columns, and its segment's first token; no tokens yet
template <typename S> __device__ inline DeltaRun delta_run(const DeltaRule<S>& args) {
    const int head = blockIdx.x / args.parts, sequence = head / args.NH;
    return {sequence % args.B, head % args.NH, (int)blockIdx.x % args.parts * args.columns,
            sequence / args.B * args.segment, 0};
}

// The matrix of the block's head in an array (segments,B,NH,HS,HS), `ahead` segments after the block's own
template <typename S> __device__ inline float* delta_matrix(float* matrices, int ahead, const DeltaRule<S>& args) {
    const ptrdiff_t head = (ptrdiff_t)(blockIdx.x / args.parts) + (ptrdiff_t)ahead * args.B * args.NH;
    return matrices + head * args.HS * args.HS;
}

// S before the block's segment; NULL: zeros, or P is computed
template <typename S> __device__ inline const float* delta_before(DeltaRun run, const DeltaRule<S>& args) {
    const float* before = run.t0 > 0 ? delta_matrix(args.G, -1, args)
                                     : delta_state(args.state.start, run.b, run.h, args).G;
    return blockIdx.y > 0 || (args.local && run.t0 > 0) ? NULL : before;
}

// Offset in (B,T,C) of token i of the run, at the head's first channel
template <typename S> __device__ inline size_t delta_row(DeltaRun run, int i, const DeltaRule<S>& args) {
    return ((size_t)run.b * args.T + run.t0 + i) * args.C + run.h * args.HS;
}

// Calls f(i, d) for each 4 columns, from d on, of the rows of a matrix (rows,columns). A thread always gets the same d.
template <typename F> __device__ inline void each_pack(int rows, int columns, F f) {
    NO_UNROLL for (int k = opaque(threadIdx.x); k < rows * columns / 4; k += blockDim.x)
        f(k / (columns / 4), k % (columns / 4) * 4);
}

// Hides from the compiler how x and run were computed: it then computes addresses again instead of keeping them in
// registers, of which none are free.
template <typename X> __device__ inline void delta_forget(X& x, DeltaRun& run) {
    run = {opaque(run.b), opaque(run.h), opaque(run.v0), opaque(run.t0), opaque(run.n)};
    x.width = opaque(x.width), x.key_row = opaque(x.key_row);
}

// Copies the block's columns of a matrix (HS,HS) from or to device memory. src NULL: zeros
template <typename X> __device__ inline void delta_load(float* dst, const float* src, X x, int v0, int HS) {
    each_pack(x.width, x.columns, [&](int i, int d) {
        float v[4];
        const bool inside = src && i < HS;
        load_part<false>(v, inside ? src + (size_t)i * HS + v0 + d : NULL, inside ? HS - v0 - d : 0);
        store_pack<4>(x.at(dst, i, d), v);
    });
}
template <typename X> __device__ inline void delta_store(float* dst, float* src, X x, int v0, int HS) {
    each_pack(HS, x.columns, [&](int i, int d) {
        float v[4];
        load_pack<4>(v, x.at(src, i, d));
        store_part<false>(dst + (size_t)i * HS + v0 + d, v, HS - v0 - d);
    });
}

// Sets K and pi of the run, and E[i] = z[i] in the block's columns (if it computes P: 0); zeros past the run
template <typename S, typename X>
__device__ inline void delta_keys(X x, DeltaRun run, const DeltaRule<S>& args) {
    const int HS = args.HS, lane = threadIdx.x % DELTA_LANES, first = lane * DELTA_PACK;
    NO_UNROLL for (int i = threadIdx.x / DELTA_LANES; i < DELTA_ROWS; i += blockDim.x / DELTA_LANES) {
        const bool early = run.t0 + i == 0;   // its key is in the state
        const S* z = args.z + (early || i > run.n ? 0 : delta_row(run, i - 1, args));
        float squares = 0.0f, v[DELTA_PACK];
        NO_UNROLL for (int c = first; c < x.width && !early; c += DELTA_LANES * DELTA_PACK) {
            load_part<false>(v, z + c, i <= run.n ? HS - c : 0);
            store_pack<DELTA_PACK>(x.key(i, c), v);
            UNROLL for (int j = 0; j < DELTA_PACK; j++) squares += v[j] * v[j];
            if (i == 0 || c < run.v0 || c >= run.v0 + x.columns) continue;
            UNROLL for (int j = 0; j < DELTA_PACK; j++) v[j] = blockIdx.y > 0 ? 0.0f : v[j];
            store_pack<DELTA_PACK>(x.at(x.E, i - 1, c - run.v0), v);
        }
        const float inverse_norm = rsqrtf(group_sum<DELTA_LANES>(squares) + (float)TOST_ENERGY_MIN);
        NO_UNROLL for (int c = first; c < x.width && !early; c += DELTA_LANES * DELTA_PACK) {
            load_pack<DELTA_PACK>(v, x.key(i, c));
            UNROLL for (int j = 0; j < DELTA_PACK; j++) v[j] *= inverse_norm;
            store_pack<DELTA_PACK>(x.key(i, c), v);
        }
        const float* k = delta_state(args.state.start, run.b, run.h, args).k;
        NO_UNROLL for (int c = lane; c < x.width && early; c += DELTA_LANES) *x.key(i, c) = k && c < HS ? k[c] : 0.0f;
    }
    const float* pi = args.pi + ((size_t)run.b * args.NH + run.h) * args.T + run.t0;
    if (threadIdx.x < DELTA_ROWS) x.pi[threadIdx.x] = (int)threadIdx.x < run.n ? pi[threadIdx.x] : 0.0f;
}

// Sets scale, and E[31] to zeros.
template <typename S, typename X> __device__ inline void delta_prepare(X x, DeltaRun run, const DeltaRule<S>& args) {
    const int d = threadIdx.x;
    if (d >= x.columns) return;
    x.scale[d] = run.v0 + d < args.HS ? args.scale[run.h * args.HS + run.v0 + d] : 0.0f;
    *x.at(x.E, DELTA_RUN, d) = 0.0f;
}

// to (32,columns) = K from (width,columns), and K Kᵀ
template <typename S, typename X> __device__ inline void delta_keys_products(X x, float* to, const float* from) {
    typedef typename X::Along Along;
    const int key_row = x.key_row, tiles = DELTA_ROWS / TILE * (x.columns / TILE);
    each_tile(DELTA_ROWS, x.columns, 0, [&](int i, int j) {
        Tile<S> tile;
        tile.add(Along{x.K + i * key_row, key_row, 0}, typename X::Across{from, x.row, j}, x.width);
        tile.each([&](int di, int dj, float (&v)[4]) { store_pack<4>(x.at(to, i + di, j + dj), v); });
    });
    each_tile(DELTA_ROWS, DELTA_ROWS, tiles, [&](int i, int j) {
        if (j > i) return;
        Tile<S> tile;
        tile.add(Along{x.K + i * key_row, key_row, 0}, Along{x.K + j * key_row, key_row, 0}, x.width);
        tile.each([&](int di, int dj, float (&v)[4]) { store_pack<4>(x.pair(x.gram, i + di, j + dj), v); });
    });
}

// S (width,columns) += factor · Kᵀ y; y (32,columns)
template <typename S, typename X> __device__ inline void delta_update(X x, float* to, const float* y, float factor) {
    typedef typename X::Across Across;
    each_tile(x.width, x.columns, 0, [&](int i, int j) {
        Tile<S> tile;
        tile.add(Across{x.K, x.key_row, i}, Across{y, x.row, j}, DELTA_ROWS);
        tile.each([&](int di, int dj, float (&v)[4]) { add_four(x.at(to, i + di, j + dj), factor, v); });
    });
}

// Row i of the tile on the diagonal of K Kᵀ from (i0,i0) on. The tile is symmetric.
template <typename X> __device__ inline void delta_gram_row(float (&row)[TILE], X x, int i0, int i) {
    UNROLL for (int j = 0; j < TILE; j += 4) load_word<16>(row + j, x.pair(x.gram, i0 + i, i0 + j));
}

// Rows i0 to i0 + 15 of O and E, a lane for a column. On entry, O is without Σ over these rows, and E has z.
// o_before: O[0], unless it is computed here; then the last row of O
template <typename S, typename X> __device__ inline void delta_solve(X x, int i0, bool first, float* o_before) {
    if (lane_index() >= x.columns) return;
    float o[TILE], row[TILE];
    UNROLL for (int i = 0; i < TILE; i++) o[i] = *x.at(x.O, i0 + i, lane_index());
    if (i0 == 0 && !first) o[0] = *o_before;
    UNROLL for (int i = 0; i < TILE; i++) {
        float *const O = x.at(x.O, i0 + i, lane_index()), *const E = x.at(x.E, i0 + i, lane_index());
        delta_gram_row(row, x, i0, i);
        *o_before = to_float(from_float<S>(o[i]));
        const float e = x.pi[i0 + i] * (*E - *o_before);
        *O = *o_before;
        *E = e;
        UNROLL for (int j = i + 1; j < TILE; j++) o[j] += row[j] * e;
    }
}

// Solves for O and E of the run, by one warp: 16 rows, then the product of these with K Kᵀ for the other rows.
template <typename S, typename X> __device__ inline void delta_predict(X x, bool first, float* o_before) {
    NO_UNROLL for (int i0 = 0; i0 < DELTA_ROWS; i0 += TILE) {
        __syncwarp();
        for (int j = 0; j < x.columns && i0 > 0; j += TILE) {
            Tile<S> tile;
            tile.add(typename X::Along{x.pair(x.gram, TILE, 0), x.gram_row, 0},
                     typename X::Across{x.E, x.row, j}, TILE);
            tile.each([&](int di, int dj, float (&v)[4]) { add_four(x.at(x.O, TILE + di, j + dj), 1.0f, v); });
        }
        __syncwarp();
        delta_solve<S>(x, i0, first, o_before);
    }
}

// Stores o, and adds to y.
template <typename S, typename X> __device__ inline void delta_outputs(X x, DeltaRun run, const DeltaRule<S>& args) {
    each_pack(run.n, x.columns, [&](int i, int d) {
        const size_t at = delta_row(run, i, args) + run.v0 + d;
        const int inside = args.HS - run.v0 - d;
        float o[4], y[4];
        load_pack<4>(o, x.at(x.O, i + 1, d));
        load_part<false>(y, args.y + at, inside);
        UNROLL for (int j = 0; j < 4; j++) y[j] += x.scale[d + j] * o[j];
        store_part<false>(args.o + at, o, inside);
        store_part<false>(args.y + at, y, inside);
    });
}

// A block computes columns of a segment, or, with blockIdx.y = 1, of its P. Minimum traffic per row: 2C (z) + 4C (y) +
// 2C (o).
template <typename S, int COLUMNS>
__global__ void __launch_bounds__(DELTA_THREADS, DELTA_FORWARD_BLOCKS<S>)
    delta_rule_forward_kernel(DeltaRule<S> args) {
    DYNAMIC_SHARED(float, shared);
    const int HS = args.HS;
    DeltaShared<COLUMNS> x(shared, HS, false);
    DeltaRun run = delta_run(args);
    float o_before = 0.0f;
    // delta_chain_kernel reads neither L and P of the last segment nor P of the first.
    if (args.local && (run.t0 + args.segment >= args.T || (blockIdx.y > 0 && run.t0 == 0))) return;
    delta_load(x.S, delta_before(run, args), x, run.v0, HS);
    delta_prepare(x, run, args);
    if (blockIdx.y > 0) {
        __syncthreads();
        if ((int)threadIdx.x < x.columns) *x.at(x.S, run.v0 + threadIdx.x, threadIdx.x) = 1.0f;
    }
    do {
        run.n = min(args.T - run.t0, DELTA_RUN);
        delta_forget(x, run);
        __syncthreads();
        delta_keys(x, run, args);
        __syncthreads();
        delta_forget(x, run);
        delta_keys_products<S>(x, x.O, x.S);
        __syncthreads();
        if (warp_index() == 0) delta_predict<S>(x, run.t0 % args.segment == 0, &o_before);
        __syncthreads();
        delta_forget(x, run);
        if (!args.local) delta_outputs(x, run, args);
        delta_update<S>(x, x.S, x.E, 1.0f);
        run.t0 += DELTA_RUN;
    } while (run.t0 < args.T && run.t0 % args.segment > 0);
    __syncthreads();
    if (!args.local && run.t0 < args.T) return;   // delta_chain_kernel has set S after it
    if (args.G) delta_store(delta_matrix(args.G, blockIdx.y * args.segments, args), x.S, x, run.v0, HS);
    const DeltaState after = delta_state(args.state.end, run.b, run.h, args);
    if (args.local || !after.G) return;
    delta_store(after.G, x.S, x, run.v0, HS);
    for (int d = run.v0 + threadIdx.x; d < min(HS, run.v0 + x.columns); d += blockDim.x)
        after.k[d] = *x.key(run.n, d);
}

// matrices[s] += P[s] matrices[s - 1], from the second segment to the one before the last. BACKWARD: matrices[s] +=
// P[s]ᵀ matrices[s + 1], from the one before the last to the second. A block computes 16 columns of a head.
template <bool BACKWARD>
__global__ void __launch_bounds__(DELTA_THREADS)
    delta_chain_kernel(float* matrices, const float* P, int segments, int HS) {
    DYNAMIC_SHARED(float, shared);   // (2,HS,16): of the segment before and of this one
    const int v0 = blockIdx.y * TILE;
    NO_UNROLL for (int n = 0; n < segments - 1; n++) {
        const float* const before = shared + (n & 1) * HS * TILE;
        float* const after = shared + (~n & 1) * HS * TILE;
        const size_t at = ((size_t)(BACKWARD ? segments - 1 - n : n) * gridDim.x + blockIdx.x) * HS * HS;
        __syncthreads();
        each_pack(HS, TILE, [&](int i, int d) {
            float* const to = matrices + at + (size_t)i * HS + v0 + d;
            float sum[4], x[4];
            load_part<false>(sum, to, HS - v0 - d);
            for (int l = 0; l < HS && n > 0; l++) {
                const float p = P[at + (size_t)(BACKWARD ? l : i) * HS + (BACKWARD ? i : l)];
                load_pack<4>(x, before + l * TILE + d);
                UNROLL for (int j = 0; j < 4; j++) sum[j] += p * x[j];
            }
            store_pack<4>(after + i * TILE + d, sum);
            store_part<false>(to, sum, HS - v0 - d);
        });
    }
}

// The first two launches, if there are several segments: `kernel` with local set, and delta_chain_kernel.
template <bool BACKWARD, typename S, typename K>
static void delta_rule_segments(cudaStream_t stream, K* kernel, dim3 blocks, int threads, size_t shared,
                                DeltaRule<S> args) {
    const size_t heads = (size_t)args.B * args.NH, P = heads * args.segments * args.HS * args.HS;
    args.local = true;
    LAUNCH(kernel, blocks, threads, shared, stream, args);
    LAUNCH(delta_chain_kernel<BACKWARD>, dim3(heads, div_up(args.HS, TILE)), DELTA_THREADS,
           2 * args.HS * TILE * sizeof(float), stream, BACKWARD ? args.dG : args.G, args.G + P, args.segments, args.HS);
}

// Sets o, adds to y, and writes the state after the pass.
template <typename S> static void delta_rule_forward(cudaStream_t stream, const DeltaRule<S>& args) {
    const size_t shared = delta_rule_shared(args.HS, args.columns, false);
    const auto delta_rule_forward_variant =
        args.columns == TILE ? delta_rule_forward_kernel<S, TILE> : delta_rule_forward_kernel<S, 2 * TILE>;
    const int blocks = args.segments * args.B * args.NH * args.parts, threads = delta_rule_threads(blocks, shared);
    // as many as on compute capability 9.0: host code does not know COMPILED_ARCH
    prefer_shared(delta_rule_forward_variant, shared, DELTA_FORWARD_BLOCKS<bf16, 900> * DELTA_THREADS / threads);
    if (args.segments > 1)
        delta_rule_segments<false>(stream, delta_rule_forward_variant, dim3(blocks, 2), threads, shared, args);
    LAUNCH(delta_rule_forward_variant, blocks, threads, shared, stream, args);
}

// O[0] of the first run of a pass, at 4 channels
template <typename S>
__device__ inline void delta_start_prediction(float (&o)[4], DeltaState start, int channel, int HS) {
    NO_UNROLL for (int l = 0; l < HS && start.G; l++) {
        float g[4];
        load_part<false>(g, start.G + (size_t)l * HS + channel, HS - channel);
        UNROLL for (int j = 0; j < 4; j++) o[j] += start.k[l] * g[j];
    }
    UNROLL for (int j = 0; j < 4; j++) o[j] = to_float(from_float<S>(o[j]));
}

// Sets E, from z there, the errors z - O, and dO: dO[0] = 0, dO[i+1] = scale dy[i]. dscale: += dy o of the
// thread's rows, for its 4 channels
template <typename S, typename X>
__device__ inline void delta_errors(X x, float (&dscale)[4], DeltaRun run, const DeltaRule<S>& args) {
    const int HS = args.HS;
    each_pack(DELTA_ROWS, x.columns, [&](int i, int d) {
        const int channel = run.v0 + d, inside = i < run.n ? HS - channel : 0;
        const size_t at = inside > 0 ? delta_row(run, i, args) + channel : 0;
        float z[4], o[4] = {}, dy[4];
        if (run.t0 + i > 0) load_part<false>(o, args.o + at - (inside > 0 ? args.C : 0), inside);
        else delta_start_prediction<S>(o, delta_state(args.state.start, run.b, run.h, args), channel, HS);
        load_pack<4>(z, x.at(x.E, i, d));
        load_part<false>(dy, args.dy + at, inside);
        UNROLL for (int j = 0; j < 4; j++) z[j] -= o[j];
        store_pack<4>(x.at(x.errors, i, d), z);
        UNROLL for (int j = 0; j < 4; j++) z[j] *= x.pi[i];
        store_pack<4>(x.at(x.E, i, d), z);
        load_part<false>(o, args.o + at, inside);
        UNROLL for (int j = 0; j < 4; j++) {
            dscale[j] += dy[j] * o[j];
            dy[j] *= x.scale[d + j];
        }
        store_pack<4>(x.at(x.dO, (i + 1) % DELTA_ROWS, d), dy);
    });
}

// Rows i0 + 15 to i0 of dE, in x.O, and of dO, a lane for a column. On entry, dE is without Σ over these rows.
template <typename X> __device__ inline void delta_solve_backward(X x, int i0) {
    if (lane_index() >= x.columns) return;
    float de[TILE], row[TILE];
    UNROLL for (int i = 0; i < TILE; i++) de[i] = *x.at(x.O, i0 + i, lane_index());
    UNROLL for (int i = TILE - 1; i >= 0; i--) {
        float* const dO = x.at(x.dO, i0 + i, lane_index());
        delta_gram_row(row, x, i0, i);
        const float of_o = *dO - x.pi[i0 + i] * de[i];
        *x.at(x.O, i0 + i, lane_index()) = de[i];
        *dO = of_o;
        UNROLL for (int j = 0; j < i; j++) de[j] += row[j] * of_o;
    }
}

// Solves for dE and dO of the run, by one warp: as delta_predict, in reverse.
template <typename S, typename X> __device__ inline void delta_errors_backward(X x) {
    typedef typename X::Across Across;
    NO_UNROLL for (int i0 = TILE; i0 >= 0; i0 -= TILE) {
        __syncwarp();
        for (int j = 0; j < x.columns && i0 == 0; j += TILE) {
            Tile<S> tile;
            tile.add(Across{x.pair(x.gram, TILE, 0), x.gram_row, 0}, Across{x.at(x.dO, TILE, 0), x.row, j}, TILE);
            tile.each([&](int di, int dj, float (&v)[4]) { add_four(x.at(x.O, di, j + dj), 1.0f, v); });
        }
        __syncwarp();
        delta_solve_backward(x, i0);
    }
}

// dz = Π dE, and the columns' part of dΠ
template <typename S, typename X>
__device__ inline void delta_membership_backward(X x, DeltaRun run, const DeltaRule<S>& args) {
    const int part = run.v0 / x.columns;
    float* dpi = args.dpi_parts + (((size_t)part * args.B + run.b) * args.NH + run.h) * args.T + run.t0;
    each_pack(DELTA_ROWS, x.columns, [&](int i, int d) {
        float de[4], errors[4], sum = 0.0f;
        load_pack<4>(de, x.at(x.O, i, d));
        load_pack<4>(errors, x.at(x.errors, i, d));
        UNROLL for (int j = 0; j < 4; j++) {
            sum += de[j] * errors[j];
            de[j] *= x.pi[i];
        }
        sum = group_sum<X::columns / 4>(sum);
        if (i >= run.n) return;
        store_part<false>(args.dz + delta_row(run, i, args) + run.v0 + d, de, args.HS - run.v0 - d);
        if (d == 0) dpi[i] = sum;
    });
}

// Q + Qᵀ
template <typename S, typename X> __device__ inline void delta_dpairs(X x) {
    typedef typename X::Along Along;
    each_tile(DELTA_ROWS, DELTA_ROWS, 0, [&](int i0, int j0) {
        if (j0 > i0) return;
        Tile<S> tile;
        tile.add(Along{x.at(x.dO, i0, 0), x.row, 0}, Along{x.at(x.E, j0, 0), x.row, 0}, x.columns);
        tile.each([&](int di, int dj, float (&v)[4]) {
            UNROLL for (int n = 0; n < 4; n++) {
                const int i = i0 + di, j = j0 + dj + n;
                if (j <= i) *x.pair(x.Q, i, j) = *x.pair(x.Q, j, i) = j < i ? v[n] : 0.0f;
            }
        });
    });
}

// Where dK[0] (width) of the run from t0 on is stored: two places alternate, for this run and the next one.
template <typename X> __device__ inline float* delta_first_dk(X x, int t0) {
    return x.dk + (t0 / DELTA_RUN & 1) * x.width;
}

// The part of dK of this block's columns, from S before the run and dS after it
template <typename S, typename X>
__device__ inline void delta_keys_backward(X x, DeltaRun run, const DeltaRule<S>& args) {
    typedef typename X::Along Along;
    S* const dk = delta_dk(args, run.v0 / x.columns, run.b, run.h, run.t0, run.t0 / args.segment);
    each_tile(DELTA_ROWS, x.width, 0, [&](int i0, int j0) {
        Tile<S> tile;
        tile.add(Along{x.at(x.dO, i0, 0), x.row, 0}, Along{x.at(x.S, j0, 0), x.row, 0}, x.columns);
        tile.add(Along{x.at(x.E, i0, 0), x.row, 0}, Along{x.at(x.dS, j0, 0), x.row, 0}, x.columns);
        tile.add(Along{x.pair(x.Q, i0, 0), x.gram_row, 0}, typename X::Across{x.K, x.key_row, j0}, DELTA_ROWS);
        tile.each([&](int di, int dj, float (&v)[4]) {
            const int i = i0 + di, j = j0 + dj;
            if (i == 0) store_pack<4>(delta_first_dk(x, run.t0) + j, v);
            if (i == run.n) add_part<true>(v, delta_first_dk(x, run.t0 + DELTA_RUN) + j, 4);
            if (i <= run.n && (i > 0 || run.t0 % args.segment == 0))   // else dK[0] is added to the run before
                store_pack<4>(dk + i * args.NH * x.width + j, v);
        });
    });
}

// The runs in reverse. Minimum traffic per row: 2C each of z, o, dy, dz and dk_parts.
template <typename S, int COLUMNS>
__global__ void __launch_bounds__(DELTA_THREADS, DELTA_BACKWARD_BLOCKS<S>)
    delta_rule_backward_kernel(DeltaRule<S> args) {
    DYNAMIC_SHARED(float, shared);
    const int HS = args.HS;
    DeltaShared<COLUMNS> x(shared, HS, true);
    DeltaRun run = delta_run(args);
    const int first = run.t0, tokens = min(args.T - first, args.segment);
    if (args.local && first == 0) return;   // delta_chain_kernel does not read M of the first segment
    DeltaState dafter = delta_state(args.adjoint.start, run.b, run.h, args);
    if (first + tokens < args.T) dafter = {args.local ? NULL : delta_matrix(args.dG, 1, args), NULL};
    const int dafter_k = run.v0 == 0 && dafter.k ? HS : 0;   // it goes to the first part
    float dscale[4] = {};
    delta_load(x.S, delta_matrix(args.G, 0, args), x, run.v0, HS);
    delta_load(x.dS, dafter.G, x, run.v0, HS);
    delta_prepare(x, run, args);
    run.t0 = first + div_up(tokens, DELTA_RUN) * DELTA_RUN;
    for (int d = threadIdx.x; d < x.width; d += blockDim.x)
        delta_first_dk(x, run.t0)[d] = d < dafter_k ? dafter.k[d] : 0.0f;
    for (run.t0 -= DELTA_RUN; run.t0 >= first; run.t0 -= DELTA_RUN) {
        run.n = min(args.T - run.t0, DELTA_RUN);
        delta_forget(x, run);
        __syncthreads();
        delta_keys(x, run, args);
        __syncthreads();
        delta_forget(x, run);
        delta_errors(x, dscale, run, args);
        delta_keys_products<S>(x, x.O, x.dS);
        __syncthreads();
        if (!args.local && run.t0 > first) delta_update<S>(x, x.S, x.E, -1.0f);
        if (!args.local && run.t0 == first) delta_load(x.S, delta_before(run, args), x, run.v0, HS);
        if (warp_index() == block_warps() - 1) delta_errors_backward<S>(x);
        __syncthreads();
        if (!args.local) {
            delta_forget(x, run);
            delta_membership_backward(x, run, args);
            delta_dpairs<S>(x);
            __syncthreads();
            delta_keys_backward(x, run, args);
            __syncthreads();
        }
        delta_update<S>(x, x.dS, x.dO, 1.0f);
    }
    __syncthreads();
    float* const dbefore = args.local ? delta_matrix(args.dG, 0, args)
                         : first == 0 ? delta_state(args.adjoint.end, run.b, run.h, args).G : NULL;
    if (dbefore) delta_store(dbefore, x.dS, x, run.v0, HS);
    if (args.local) return;
    const int rows = min((int)blockDim.x / (x.columns / 4), DELTA_ROWS);   // each thread stores its sum once
    each_pack(rows, x.columns, [&](int i, int d) { store_pack<4>(x.at(x.E, i, d), dscale); });
    __syncthreads();
    for (int d = threadIdx.x; d < min(x.columns, HS - run.v0); d += blockDim.x) {
        float sum = 0.0f;
        for (int i = 0; i < rows; i++) sum += *x.at(x.E, i, d);
        args.dscale[(size_t)(blockIdx.x / args.parts) * HS + run.v0 + d] = sum;
    }
}

// Adds the parts of dk and dΠ, and finishes dz; also sets k of the adjoint. 8 lanes take a token, a block 32 tokens of
// a sequence, in head blockIdx.y. WHOLE: 8 divides HS. Minimum traffic per row: 2C (z) + 4C (dz) + 2C of each part.
template <typename S, bool WHOLE>
__global__ void __launch_bounds__(DELTA_THREADS, 4) delta_rule_dz_kernel(DeltaRule<S> args) {
    const int parts = args.parts, T = args.T, HS = args.HS, lane = threadIdx.x % DELTA_LANES;
    const int blocks = div_up(T, DELTA_ROWS), b = blockIdx.x / blocks, h = blockIdx.y;
    const int t_own = blockIdx.x % blocks * DELTA_ROWS + threadIdx.x / DELTA_LANES, t = min(t_own, T - 1);
    const size_t at = ((size_t)b * T + t) * args.C + h * HS;   // in (B,T,C)
    const int segment = t / args.segment;
    const bool last = (t + 1) % args.segment == 0 && t + 1 < T;   // the next segment has a part of dk, too
    const S* const dk_parts = delta_dk(args, 0, b, h, t + 1, segment);
    const S* const dk_next = delta_dk(args, 0, b, h, t + 1, segment + 1);
    const size_t size = delta_dk(args, 1, b, h, t + 1, segment) - dk_parts;   // of a part
    const auto load = [&](float (&z)[DELTA_PACK], float (&dk)[DELTA_PACK], int c) {
        load_part<WHOLE>(z, args.z + at + c, HS - c);
        const S* from = dk_parts + c;
        load_pack<DELTA_PACK>(dk, from);
        NO_UNROLL for (int part = 1; part < parts; part++)
            add_part<true>(dk, from += size, DELTA_PACK);
        NO_UNROLL for (int part = 0; part < parts && last; part++)
            add_part<true>(dk, dk_next + part * size + c, DELTA_PACK);
    };
    float z[DELTA_PACK], dk[DELTA_PACK], dz[DELTA_PACK], squares = 0.0f, z_dk = 0.0f;
    NO_UNROLL for (int c = lane * DELTA_PACK; c < HS; c += DELTA_LANES * DELTA_PACK) {
        load(z, dk, c);
        UNROLL for (int j = 0; j < DELTA_PACK; j++) squares += z[j] * z[j], z_dk += z[j] * dk[j];
    }
    const float inverse_norm = rsqrtf(group_sum<DELTA_LANES>(squares) + (float)TOST_ENERGY_MIN);
    z_dk = group_sum<DELTA_LANES>(z_dk) * inverse_norm * inverse_norm;
    if (t_own >= T) return;
    NO_UNROLL for (int c = lane * DELTA_PACK; c < HS; c += DELTA_LANES * DELTA_PACK) {
        load(z, dk, c);
        load_part<WHOLE>(dz, args.dz + at + c, HS - c);
        UNROLL for (int j = 0; j < DELTA_PACK; j++) dz[j] += inverse_norm * (dk[j] - z[j] * z_dk);
        store_part<WHOLE>(args.dz + at + c, dz, HS - c);
    }
    float sum = 0.0f;
    NO_UNROLL for (int part = 0; part < parts && lane == 0; part++)
        sum += args.dpi_parts[(((size_t)part * args.B + b) * args.NH + h) * T + t];
    if (lane == 0) args.dpi[((size_t)b * args.NH + h) * T + t] = sum;
    float* const dbefore = t == 0 ? delta_state(args.adjoint.end, b, h, args).k : NULL;
    NO_UNROLL for (int c = lane; c < HS && dbefore; c += DELTA_LANES) {
        sum = 0.0f;
        NO_UNROLL for (int part = 0; part < parts; part++) sum += to_float(delta_dk(args, part, b, h, 0, 0)[c]);
        dbefore[c] = sum;
    }
}

// Leaves dz and dpi to delta_rule_dz, which follows. Puts the gradient of scale on the list `sums`.
template <typename S>
static void delta_rule_backward(cudaStream_t stream, float* dscale, ColumnSums* sums, const DeltaRule<S>& args) {
    const size_t shared = delta_rule_shared(args.HS, args.columns, true);
    const auto delta_rule_backward_variant =
        args.columns == TILE ? delta_rule_backward_kernel<S, TILE> : delta_rule_backward_kernel<S, 2 * TILE>;
    const int blocks = args.segments * args.B * args.NH * args.parts, threads = delta_rule_threads(blocks, shared);
    prefer_shared(delta_rule_backward_variant, shared, DELTA_BACKWARD_BLOCKS<bf16, 900> * DELTA_THREADS / threads);
    if (args.segments > 1)
        delta_rule_segments<true>(stream, delta_rule_backward_variant, blocks, threads, shared, args);
    LAUNCH(delta_rule_backward_variant, blocks, threads, shared, stream, args);
    column_sum(sums, dscale, args.dscale, args.segments * args.B, args.C);
}

template <typename S> static void delta_rule_dz(cudaStream_t stream, const DeltaRule<S>& args) {
    const auto delta_rule_dz_variant =
        args.HS % DELTA_PACK == 0 ? delta_rule_dz_kernel<S, true> : delta_rule_dz_kernel<S, false>;
    LAUNCH(delta_rule_dz_variant, dim3(args.B * div_up(args.T, DELTA_ROWS), args.NH), DELTA_THREADS, 0, stream, args);
}
