// gemm_kernels.h: packing and the kernel of the matrix product, private to gemm.c. The vectors of vectors.h
// express them for any processor; AVX-512 BF16 adds one instruction.
#pragma once

#include <string.h>

#include "base/bf16.h"
#include "cpu/vectors.h"

// A tile of c, MR x NR sums, takes 2·MR vector registers; two more hold a row of b.
#ifdef __AVX512F__
enum { MR = 12 };
#define KERNEL_NAME "AVX-512"
#elif defined(__AVX__)
enum { MR = 6 };
#define KERNEL_NAME "AVX"
#elif defined(__aarch64__)
enum { MR = 12 };
#define KERNEL_NAME "NEON"
#else
enum { MR = 6 };
#define KERNEL_NAME "128-bit vectors"
#endif

enum { NR = 2 * LANES, CACHE_LINE = 64 };

// bf16_from_float in the upper half of each word; the lower half is zero.
INLINE VecWord round_words(VecWord x) {
#ifdef __AVX512BF16__   // takes subnormal numbers as zero
    return (VecWord)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)x)), 16);
#else
    const VecWord nan = (VecWord)((Vec)x != (Vec)x);
    return ((nan & (x | 0x400000)) | (~nan & BF16_ROUND(x))) & 0xffff0000;
#endif
}

// pair_neighbors: pairs of neighbors in x, y. pair_words: pairs with the lower halves from x and the upper from y.
#ifdef __AVX512BF16__
INLINE VecWord pair_neighbors(VecWord x, VecWord y) {
    return (VecWord)_mm512_cvtne2ps_pbh((__m512)y, (__m512)x);
}
INLINE VecWord pair_words(VecWord x, VecWord y) {
    const VecWord apart = pair_neighbors(x, y);
    typedef uint16_t Halves __attribute__((vector_size(sizeof(VecWord))));
    const VecWord lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return (VecWord)_mm512_permutexvar_epi16((__m512i)(lane | (lane + LANES) << 16), (__m512i)(Halves)apart);
}
#else
INLINE VecWord pair_words(VecWord x, VecWord y) { return round_words(y) | round_words(x) >> 16; }
INLINE VecWord pair_neighbors(VecWord x, VecWord y) { return pair_words(evens(x, y), odds(x, y)); }
#endif

// ---------------------------------------------------------------------------------------------
// Operands: a matrix of lanes (rows of op(a) or columns of op(b)) by depth (K). Stored rows are ld elements apart; a
// stored row has all lanes at one depth if lanes_side, otherwise all depths of one lane.

typedef struct { const char* p; size_t ld; bool lanes_side, bf16; } Operand;

INLINE size_t element_size(Operand o) { return o.bf16 ? sizeof(uint16_t) : sizeof(float); }

INLINE Operand operand_at(Operand o, size_t lane, size_t k) {
    o.p += element_size(o) * (o.lanes_side ? lane + k * o.ld : lane * o.ld + k);
    return o;
}

// ---------------------------------------------------------------------------------------------
// Packing. A panel has W lanes, interleaved: panel[k * W + lane]. Missing lanes may have any values. The words are
//   FLOATS   one value each
//   PAIRS    two values rounded to bf16, of depths 2k (lower half) and 2k + 1
//   ROUNDED  one value rounded to bf16 each, of depths 1, 0, 3, 2, … Sums in this order have the bits of VDPBF16PS,
//            which adds the product of the upper halves first.

typedef enum { FLOATS, ROUNDED, PAIRS } Format;

INLINE int depth_unit(Format f) { return f == FLOATS ? 1 : 2; }
INLINE int words_of(Format f, int depth) {
    return ceil_div(depth, depth_unit(f)) * depth_unit(f) / (f == PAIRS ? 2 : 1);
}

// The bf16 value at (lane, k) in the upper half of a word; zero past the last depth.
INLINE Word upper_half(Operand o, int lane, int k, int depth) {
    if (k >= depth) return 0;
    const char* p = operand_at(o, lane, k).p;
    uint16_t half;
    float value;
    if (o.bf16) memcpy(&half, p, sizeof half);
    else memcpy(&value, p, sizeof value), half = bf16_from_float(value);
    return (Word)half << 16;
}

INLINE Word word_at(Operand o, Format f, int lane, int w, int depth) {
    Word word;
    if (f == ROUNDED) return upper_half(o, lane, w ^ 1, depth);
    if (f == PAIRS) return upper_half(o, lane, 2 * w + 1, depth) | upper_half(o, lane, 2 * w, depth) >> 16;
    memcpy(&word, operand_at(o, lane, w).p, sizeof word);
    return word;
}

// LANES stored values, those in bf16 in the upper halves of words
INLINE VecWord values_at(const char* p, bool bf16) {
    typedef uint16_t Halves __attribute__((vector_size(LANES * sizeof(uint16_t)), aligned(2), may_alias));
#ifdef __AVX512F__   // gcc converts half a vector at a time
    if (bf16) return (VecWord)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i_u*)p)) << 16;
#endif
    if (bf16) return __builtin_convertvector(*(const Halves*)p, VecWord) << 16;
    return *(const VecWordU*)p;
}

// LANES words of one lane, if depth is contiguous.
INLINE VecWord words_at(Operand o, Format f, int lane, int w) {
    const char* p = operand_at(o, lane, f == PAIRS ? 2 * w : w).p;
    const VecWordU* from = (const VecWordU*)p;
    if (f == FLOATS || (f == PAIRS && o.bf16)) return from[0];
    if (f == PAIRS) return pair_neighbors(from[0], from[1]);
    const VecWord words = o.bf16 ? values_at(p, true) : round_words(from[0]);
    return zip_low(odds(words, words), evens(words, words));
}

// For contiguous depth: packs the words of a panel that can be read as whole vectors. Uses one cache line of each lane
// at a time: if ld is a multiple of the page size, the lines of all lanes compete for a few sets of L1.
INLINE void pack_transpose(Word* dst, Operand o, Format f, int lanes, int words, int W) {
    enum { RUN = CACHE_LINE / sizeof(Word) };
    for (int run = 0; run < words; run += RUN)
        for (int lane = 0; lane < W; lane += LANES)
            for (int w = run; w < run + RUN; w += LANES) {
                VecWord x[LANES];
                const int stored = W - lane < LANES ? W - lane : LANES;
                #pragma GCC unroll 16
                for (int i = 0; i < LANES; i++)
                    x[i] = i < stored && lane + i < lanes ? words_at(o, f, lane + i, w) : (VecWord){0};
                transpose(x);
                #pragma GCC unroll 16
                for (int i = 0; i < LANES; i++) {
                    Word* at = dst + (size_t)(w + i) * W + lane;
                    if (W < LANES) *(VecWordU*)at = x[i];       // the rest of it is overwritten by the next words
                    else memcpy(at, &x[i], stored * sizeof(Word));
                }
            }
}

INLINE void pack_words(Word* dst, Operand o, Format f, int lanes, int from, int depth, int W) {
    for (int w = from; w < words_of(f, depth); w++)
        for (int i = 0; i < W; i++) dst[(size_t)w * W + i] = i < lanes ? word_at(o, f, i, w, depth) : 0;
}

INLINE void pack_by_lane(Word* dst, Operand o, Format f, int lanes, int depth, int W) {
    enum { RUN = CACHE_LINE / sizeof(Word) };
    const size_t panel = (size_t)words_of(f, depth) * W;
    const int whole = (f == FLOATS ? depth : f == PAIRS ? depth / 2 : depth / 2 * 2) / RUN * RUN;
    for (int i = 0; i < lanes; i += W, dst += panel) {
        const Operand first = operand_at(o, i, 0);
        if (lanes - i >= W) pack_transpose(dst, first, f, W, whole, W);
        else pack_transpose(dst, first, f, lanes - i, whole, W);
        pack_words(dst, first, f, min_int(W, lanes - i), whole, depth, W);
    }
}

enum { PACK_LANES = 192, ROWS_AHEAD = 8 };   // lanes packed at a time, a multiple of MR and NR; rows prefetched ahead

// Word w of LANES lanes. x, y: their values at its depth, or at its pair of depths; bf16: they are stored in bf16
INLINE VecWord words_of_depths(VecWord x, VecWord y, Format f, bool bf16, int w) {
    if (f == FLOATS) return x;
    if (f == PAIRS && bf16) return y | x >> 16;
    if (f == PAIRS) return pair_words(x, y);
    if (w % 2) y = x;   // of depths 1, 0, 3, 2, …
    return bf16 ? y : round_words(y);
}

// lanes_side: reads a stored row, or a pair of them, from end to end, and writes to many panels. Reads whole vectors,
// also past the last lane, so rows near the end of the matrix are copied first. Writes whole vectors, too: the next row
// of the panel overwrites what exceeds W lanes.
INLINE void pack_by_depth(Word* dst, Operand o, Format f, int lanes, int depth, int W) {
    const int words = words_of(f, depth), panels = ceil_div(lanes, W), unit = depth_unit(f);
    const size_t size = element_size(o);
    VecWord copy[2][PACK_LANES / LANES + 2], v;   // v is not in the loop: gcc 12's AddressSanitizer reports it there
    for (int w = 0; w < words; w++) {
        const int k = f == PAIRS ? 2 * w : w / unit * unit, stored = min_int(unit, depth - k);
        const char* row[2] = {(const char*)copy[0], (const char*)copy[1]};
        const bool near_end = (depth - k - stored) * o.ld < MR + NR;
        if (near_end) memset(copy, 0, sizeof copy);
        for (int i = 0; i < stored; i++) {
            const char* from = operand_at(o, 0, k + i).p;
            for (size_t at = 0; at <= lanes * size; at += CACHE_LINE)
                __builtin_prefetch(from + ROWS_AHEAD * o.ld * size + at);
            if (near_end) memcpy(copy[i], from, lanes * size);
            else row[i] = from;
        }
        for (int p = 0; p < panels; p++)
            for (int i = 0; i < W; i += LANES) {
                const size_t at = (p * W + i) * size;
                const VecWord x = values_at(row[0] + at, o.bf16), y = values_at(row[unit - 1] + at, o.bf16);
                v = words_of_depths(x, y, f, o.bf16, w);
                Word* to = dst + ((size_t)p * words + w) * W + i;
                if (i + LANES <= W || w + 1 < words) *(VecWordU*)to = v;
                else memcpy(to, &v, (W - i) * sizeof(Word));
            }
    }
}

// With formats that are constants in its loops
INLINE void pack_by_depth_in(Word* dst, Operand o, Format f, int lanes, int depth, int W) {
    const Operand floats = {o.p, o.ld, true, false}, halves = {o.p, o.ld, true, true};
    if (f == PAIRS && o.bf16) pack_by_depth(dst, halves, PAIRS, lanes, depth, W);
    else if (f == PAIRS) pack_by_depth(dst, floats, PAIRS, lanes, depth, W);
    else if (f == FLOATS) pack_by_depth(dst, floats, FLOATS, lanes, depth, W);
    else pack_by_depth(dst, o, ROUNDED, lanes, depth, W);
}

// dst (panels, words, W)
INLINE void pack(Word* dst, Operand o, Format f, int lanes, int depth, int W) {
    for (int i = 0; i < lanes; i += PACK_LANES) {
        const int n = min_int(PACK_LANES, lanes - i);
        if (o.lanes_side) pack_by_depth_in(dst, operand_at(o, i, 0), f, n, depth, W);
        else pack_by_lane(dst, operand_at(o, i, 0), f, n, depth, W);
        dst += (size_t)ceil_div(n, W) * W * words_of(f, depth);
    }
}

static __attribute__((noinline)) void pack_a(Word* dst, Operand o, Format f, int lanes, int depth) {
    pack(dst, o, f, lanes, depth, MR);
}

static __attribute__((noinline)) void pack_b(Word* dst, Operand o, Format f, int lanes, int depth) {
    pack(dst, o, f, lanes, depth, NR);
}

// ---------------------------------------------------------------------------------------------
// The kernels: c (MR,NR) = MR rows of a · pb (words,NR), or += with add. Elements are summed in word order.

// m x n elements of c, whose rows are ldc elements apart. add: adds to them; round: rounds the results to bf16.
typedef struct { float* c; size_t ldc; int m, n; bool add, round; } Block;

INLINE void tile_store(Block t, Vec acc[MR][2]) {
    #pragma GCC unroll 16
    for (int i = 0; i < MR; i++) {
        VecU* row = (VecU*)(t.c + i * t.ldc);
        #pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            if (t.add) acc[i][j] += row[j];
            row[j] = t.round ? (Vec)round_words((VecWord)acc[i][j]) : acc[i][j];
        }
    }
}

INLINE void tile_prefetch(Block t) {
    #pragma GCC unroll 16
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < NR; j += CACHE_LINE / sizeof(float)) __builtin_prefetch(t.c + i * t.ldc + j, 1);
}

// sum += the products of pairs.
INLINE Vec dot_pairs(Vec sum, VecWord a, VecWord b) {
#ifdef __AVX512BF16__
    return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
    (void)a;
    (void)b;
    return sum;   // never called: PAIRS is not used
#endif
}

// MR rows of a: word w of row i is p[i * row + w * step]. In a panel, row = 1 and step = MR.
typedef struct { const Word* p; size_t row, step; } Rows;

// True if the stored rows of o are words of format f, which need no packing: step = 1. ld is even, so all depths are.
INLINE bool holds_pairs(Operand o, Format f) {
    return f == PAIRS && o.bf16 && !o.lanes_side && o.ld % 2 == 0 && (uintptr_t)o.p % sizeof(Word) == 0;
}
INLINE Rows stored_rows(Operand o) { return (Rows){(const Word*)o.p, o.ld / 2, 1}; }

INLINE void tile_sums(Block t, Rows rows, const Word* pb, Format f, int words) {
    Vec acc[MR][2] = {0};
    tile_prefetch(t);
    for (int w = 0; w < words; w++, rows.p += rows.step, pb += NR) {
        const VecWord b0 = *(const VecWord*)pb, b1 = *(const VecWord*)(pb + LANES);
        #pragma GCC unroll 16
        for (int i = 0; i < MR; i++) {
            if (f == PAIRS) {
                const VecWord a = rows.p[i * rows.row] - (VecWord){0};
                acc[i][0] = dot_pairs(acc[i][0], a, b0);
                acc[i][1] = dot_pairs(acc[i][1], a, b1);
            } else {
                const FloatWord* p = (const FloatWord*)rows.p;   // row = 1; NEON multiplies by a lane of four of them
                const VecU four = MR % LANES ? (VecU){0} : *(const VecU*)(p + i / LANES * LANES);
                const Vec a = broadcast(MR % LANES ? p[i * rows.row] : four[i % LANES]);
                acc[i][0] = fma_vec(a, (Vec)b0, acc[i][0]);
                acc[i][1] = fma_vec(a, (Vec)b1, acc[i][1]);
            }
        }
    }
    tile_store(t, acc);
}

// A tile of MR x NR elements. The format and the step of a are constants at every call of tile_sums, so that the sums
// stay in registers.
static __attribute__((noinline)) void tile(Block t, Rows a, const Word* pb, Format f, int words) {
    if (f != PAIRS) tile_sums(t, (Rows){a.p, 1, MR}, pb, FLOATS, words);
    else if (a.step == MR) tile_sums(t, (Rows){a.p, 1, MR}, pb, PAIRS, words);
    else tile_sums(t, (Rows){a.p, a.row, 1}, pb, PAIRS, words);
}

// The part t of a tile that is inside of c, at its edge: computed as a whole tile, so the bits are the same.
static void tile_ragged(Block t, Rows a, const Word* pb, Format f, int words) {
    _Alignas(CACHE_LINE) float whole[MR * NR];
    if (t.add) {
        memset(whole, 0, sizeof(whole));
        for (int i = 0; i < t.m; i++) memcpy(whole + i * NR, t.c + i * t.ldc, t.n * sizeof(float));
    }
    tile((Block){whole, NR, MR, NR, t.add, t.round}, a, pb, f, words);
    for (int i = 0; i < t.m; i++) memcpy(t.c + i * t.ldc, whole + i * NR, t.n * sizeof(float));
}
