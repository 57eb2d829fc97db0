// gemm.h: matrix products in float32, and with operands in bf16.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// op(a) · op(b): which operands are transposed, in the order and the letters of BLAS. Shapes are as stored.
typedef enum {
    GEMM_NN,   // a (M,K) · b (K,N)     of a Linear with the weight w (out, in):  dx = dy · w
    GEMM_NT,   // a (M,K) · b (N,K)ᵀ                                              y = x · wᵀ
    GEMM_TN,   // a (K,M)ᵀ · b (K,N)                                              dw = dyᵀ · x
} GemmLayout;

typedef enum { GEMM_SET, GEMM_ADD, GEMM_ROUND } GemmStore;   // c = product; c += product; c = product rounded to bf16

// c (M,N) = op(a) · op(b), stored as `store` says. All are dense and row-major; c does not overlap a or b.
// Sizes are at least 1. Call it outside of parallel regions: it uses all OpenMP threads. GEMM_NT of at most
// TOST_FEW_ROWS rows (engine.h, decoding) reads b once. Bits do not depend on the number of threads, and those of a row
// depend on M only by whether the rows are few.
typedef void Gemm(float* c, const float* a, const float* b, GemmLayout layout, int M, int N, int K, GemmStore store);
void gemm(float* c, const float* a, const float* b, GemmLayout layout, int M, int N, int K, GemmStore store);

// The same product with both operands rounded to bf16 (to nearest, ties to even). Sums are in float32 and may take
// subnormal products as zero.
void gemm_bf16(float* c, const float* a, const float* b, GemmLayout layout, int M, int N, int K, GemmStore store);

// c (M,N) = a (M,K) · b (N,K)ᵀ, where the weight b is stored in bf16 and a is rounded to bf16. If M is above
// TOST_FEW_ROWS, gives the bits of gemm_bf16.
void gemm_bf16_weight(float* c, const float* a, const uint16_t* b, int M, int N, int K, GemmStore store);

bool gemm_bf16_is_fast(void);              // true if the processor has fast instructions for products in bf16
const char* gemm_library(void);            // "built in (AVX-512)", …
bool gemm_is_small(int M, int N, int K);   // true if one thread computes the product faster than several
