// gemm.h: matrix products in float32, and with operands in bf16.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// An operand of a product. gemm reads f32; gemm_bf16 reads bf16, or if that is NULL, f32 and rounds it to bf16 (to
// nearest, ties to even).
typedef struct { const float* f32; const uint16_t* bf16; } Matrix;
static inline Matrix f32(const float* x) { return (Matrix){x, NULL}; }

// op(a) · op(b): which operands are transposed, in the order and the letters of BLAS. Shapes are as stored.
typedef enum {
    GEMM_NN,   // a (M,K) · b (K,N)     of a Linear with the weight w (out, in):  dx = dy · w
    GEMM_NT,   // a (M,K) · b (N,K)ᵀ                                              y = x · wᵀ
    GEMM_TN,   // a (K,M)ᵀ · b (K,N)                                              dw = dyᵀ · x
} GemmLayout;

// c = product; c += product; c = product rounded to bf16; c = product, which is symmetric: computes only one half
typedef enum { GEMM_SET, GEMM_ADD, GEMM_ROUND, GEMM_SYMMETRIC } GemmStore;

// c (M,N) = op(a) · op(b), stored as `store` says. All are dense and row-major; c does not overlap a or b.
// Sizes are at least 1. Call it outside of parallel regions: it uses all OpenMP threads. GEMM_NT of at most
// TOST_FEW_ROWS rows (engine.h, decoding) reads b once; gemm_bf16 only if b.bf16 is not NULL. Bits do not depend on the
// number of threads, and those of a row depend on M only by whether the rows are few.
typedef void Gemm(float* c, Matrix a, Matrix b, GemmLayout layout, int M, int N, int K, GemmStore store);
// Functions of this type: in float32, and of operands in bf16 with sums in float32. gemm_bf16 may take subnormal
// numbers as zero. It gives the same bits for operands in bf16 as for the same values in f32, unless the rows are few.
Gemm gemm, gemm_bf16;

bool gemm_bf16_is_fast(void);              // true if the processor has fast instructions for products in bf16
const char* gemm_library(void);            // "built in (AVX-512)", …
bool gemm_is_small(int M, int N, int K);   // true if one thread computes the product faster than several
