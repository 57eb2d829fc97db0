// gemm.h: the float32 matrix product, through cblas_sgemm where the build found one, else built in.
#ifndef TOST_GEMM_H
#define TOST_GEMM_H

#include <stdbool.h>
#include <stddef.h>

// c (M,N) = op(a) · op(b) + beta · c, all dense and row-major, c apart from a and b.
//   op(a) is (M,K): a is stored (M,K), or (K,M) with at = true
//   op(b) is (K,N): b is stored (K,N), or (N,K) with bt = true (a Linear weight (out, in))
// beta 0 overwrites c, whatever it held (NaN too). Zero sizes are fine. Uses the OpenMP threads; called from
// outside of parallel regions. The same sizes and threads give the same bits. Up to GEMM_FEW_ROWS rows of c,
// with bt and not at, take a path that streams b once.
void gemm(float* c, const float* a, bool at, const float* b, bool bt, int M, int N, int K, float beta);

enum { GEMM_FEW_ROWS = 4 };

// The same without cblas: for builds that have none, and to test and time one beside the other. Its bits do
// not depend on the number of threads. Those of a row do not depend on M, except that few rows are summed in
// another order than many.
void gemm_builtin(float* c, const float* a, bool at, const float* b, bool bt,
                  int M, int N, int K, float beta);

// "OpenBLAS 0.3.21", "built in (AVX-512)", … for the start line; returns name
char* gemm_library(char* name, size_t cap);

#endif
