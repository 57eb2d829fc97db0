// tile.cuh: products of small matrices of floats in shared memory, by warps with tensor cores. Operands are rounded to
// S = bf16, or for S = float to the sum of two tf32 numbers, which is exact to 2^-23. Sums are float.
#pragma once

#include "tost/cuda/reduce.cuh"

constexpr int TILE = 16;   // rows and columns of a tile, and the step along the depth of a product

// Where a column is stored in a row of 32 · n floats. Blocks of 8 columns change places with others, in a pattern that
// depends on the row and repeats every 16 rows, so that a warp reads and writes tiles without bank conflicts.
template <bool SWIZZLED> __device__ inline int swizzled(int row, int column) {
    return SWIZZLED ? column ^ (row << 1 & 24) ^ (row << 3 & 16) : column;
}

// An operand of a product. p: row 0, 16, 32… of a matrix in shared memory, aligned to 16 bytes. Element l of the
// operand's row r is at row r, column first + l from there if ALONG; otherwise, transposed, at row l, column first + r.
// For few bank conflicts, stride is a multiple of 32 if SWIZZLED, else an odd multiple of 4.
template <bool ALONG, bool SWIZZLED> struct Operand {
    const float* p;
    int stride, first;
    // Elements l to l + 3 of the rows r and r + 1. r is even, l a multiple of 4.
    __device__ void load(float (&x)[2][4], int r, int l) const {
        if constexpr (ALONG) {
            UNROLL for (int i = 0; i < 2; i++)
                load_pack<4>(x[i], p + (r + i) * stride + swizzled<SWIZZLED>(r + i, first + l));
        } else {
            UNROLL for (int i = 0; i < 4; i++) {
                float pair[2];
                load_pack<2>(pair, p + (l + i) * stride + swizzled<SWIZZLED>(l + i, first + r));
                x[0][i] = pair[0], x[1][i] = pair[1];
            }
        }
    }
};

// A lane's part of an operand's tile, as words of mma: 4 elements of two rows. Any order of the depth is right if both
// operands have it, so these are neighbors, and so are the two rows.
template <typename S> struct Fragment;

template <> struct Fragment<bf16> {
    unsigned word[2][2];
    __device__ explicit Fragment(const float (&x)[2][4]) {
        UNROLL for (int i = 0; i < 4; i++) word[i / 2][i % 2] = bf16_pair(x[i / 2][i % 2 * 2], x[i / 2][i % 2 * 2 + 1]);
    }
};

template <> struct Fragment<float> {
    unsigned word[2][4], rest[2][4];   // their sum is x, to 2^-23
    __device__ explicit Fragment(const float (&x)[2][4]) {
        UNROLL for (int i = 0; i < 8; i++) {
            const float v = x[i / 4][i % 4];
            word[i / 4][i % 4] = tf32_bits(v);
            rest[i / 4][i % 4] = tf32_bits(v - __uint_as_float(word[i / 4][i % 4]));
        }
    }
};

__device__ inline void multiply(float (&sum)[2][4], const Fragment<bf16>& a, const Fragment<bf16>& b) {
    const unsigned x[4] = {a.word[0][0], a.word[1][0], a.word[0][1], a.word[1][1]};
    UNROLL for (int i = 0; i < 2; i++) mma_bf16(sum[i], x, b.word[i]);
}

__device__ inline void multiply_words(float (&sum)[2][4], const unsigned (&a)[2][4], const unsigned (&b)[2][4]) {
    UNROLL for (int l = 0; l < 4; l += 2) {
        const unsigned x[4] = {a[0][l], a[1][l], a[0][l + 1], a[1][l + 1]};
        UNROLL for (int i = 0; i < 2; i++) {
            const unsigned y[2] = {b[i][l], b[i][l + 1]};
            mma_tf32(sum[i], x, y);
        }
    }
}
__device__ inline void multiply(float (&sum)[2][4], const Fragment<float>& a, const Fragment<float>& b) {
    multiply_words(sum, a.rest, b.rest);
    multiply_words(sum, a.rest, b.word);
    multiply_words(sum, a.word, b.rest);
    multiply_words(sum, a.word, b.word);
}

// A tile of sums. Lane 4g + t has rows 2g and 2g + 1 at columns 4t to 4t + 3.
template <typename S> struct Tile {
    float sum[2][4] = {};   // as mma has them: those of the even columns, then of the odd ones

    // += a · bᵀ. a, b (16,depth); depth: a multiple of 16
    template <typename A, typename B> __device__ void add(A a, B b, int depth) {
        const int lane = opaque(lane_index()), r = lane / 4 * 2;
        NO_UNROLL for (int l = lane % 4 * 4; l < depth; l += TILE) {
            float x[2][4], y[2][4];
            a.load(x, r, l);
            b.load(y, r, l);
            multiply(sum, Fragment<S>(x), Fragment<S>(y));
        }
    }

    // f(row, column, v): 4 sums from there on, of each of the lane's rows
    template <typename F> __device__ void each(F f) const {
        const int lane = opaque(lane_index());
        UNROLL for (int i = 0; i < 2; i++) {
            float v[4];
            UNROLL for (int j = 0; j < 4; j++) v[j] = sum[j % 2][2 * i + j / 2];
            f(lane / 4 * 2 + i, lane % 4 * 4, v);
        }
    }
};

// Calls f(i, j) for the first row and column of the tiles of a matrix (rows,columns). Warps take turns, and warp
// `first`, modulo their number, begins. The block has 2^n warps.
template <typename F> __device__ inline void each_tile(int rows, int columns, int first, F f) {
    const int warps = block_warps();
    int i = 0, j = ((opaque(warp_index()) - first) & (warps - 1)) * TILE;
    NO_UNROLL for (;; j += warps * TILE) {
        NO_UNROLL for (; j >= columns; j -= columns) i += TILE;
        if (i >= rows) return;
        f(i, j);
    }
}

// p[0…3] += factor · v, aligned to 16 bytes
__device__ inline void add_four(float* p, float factor, const float (&v)[4]) {
    float x[4];
    load_pack<4>(x, p);
    UNROLL for (int i = 0; i < 4; i++) x[i] += factor * v[i];
    store_pack<4>(p, x);
}
