// cuda_matmul.cuh: matrix products by cuBLASLt, which chooses an algorithm once per shape, and a plain kernel for the
// shapes that cuBLASLt has no algorithm for.
#ifndef TOST_CUDA_MATMUL_CUH
#define TOST_CUDA_MATMUL_CUH

#include <vector>

#include "tost/cuda_common.cuh"

inline void cublas_check(cublasStatus_t s, const char* what, const char* file, int line) {
    if (s == CUBLAS_STATUS_SUCCESS) return;
    char error[48];
    snprintf(error, sizeof error, "cuBLASLt status %d", (int)s);
    cuda_die(what, error, "cuBLASLt must be of this build's CUDA version, and enough GPU memory free", file, line);
}
#define CUBLAS_CHECK(call) cublas_check((call), #call, __FILE__, __LINE__)

// Weight gradients are split along K: a partial sum of (768,3072) floats takes 9 MiB.
constexpr size_t MATMUL_WORKSPACE = (size_t)128 << 20;

// c (M,N) = op(a) (M,K) · op(b) (K,N) + bias (N) + beta c, row-major. at: a is stored as (K,M); bt: b is stored as
// (N,K). ld: elements from one row to the next as stored. The type O of c is S or float.
template <typename S, typename O> struct Product {
    O* c; const S* a; const S* b;
    bool at, bt;
    int M, N, K;
    int64_t ldc, lda, ldb;
    float beta;
    const O* bias;                   // or NULL
};

// What cuBLASLt needs for one shape, chosen at the first call.
struct MatmulPlan {
    int64_t key[12];
    bool found;                      // false: cuBLASLt has no algorithm for this shape and alignment
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t first, second, out;
    cublasLtMatmulAlgo_t algo;
};

struct Matmul {
    cublasLtHandle_t handle;
    cudaStream_t stream;
    void* workspace;                 // MATMUL_WORKSPACE bytes
    bool tf32;
    std::vector<MatmulPlan> plans;
};

static inline cudaDataType cuda_type(const float*) { return CUDA_R_32F; }
static inline cudaDataType cuda_type(const bf16*) { return CUDA_R_16BF; }

// The largest power of two up to 64 that divides all three addresses. Tensors start at multiples of 32 elements, so
// that the same product has the same alignment in all layers.
static int common_alignment(const void* a, const void* b, const void* c) {
    const uintptr_t bits = (uintptr_t)a | (uintptr_t)b | (uintptr_t)c | 64;
    return (int)(bits & (0 - bits));
}

template <typename T> static void matmul_set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t which, T value) {
    CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(desc, which, &value, sizeof value));
}
template <typename T>
static void matmul_set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t which, T value) {
    CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, which, &value, sizeof value));
}

// cuBLASLt is column-major and computes cᵀ (N,M) = op(b)ᵀ · op(a)ᵀ: b is its first operand, and its bias, one number
// per row, is one per column of c.
template <typename S, typename O>
static MatmulPlan matmul_plan(const Matmul* mm, const Product<S, O>& p, int alignment) {
    MatmulPlan plan = {};
    CUBLAS_CHECK(cublasLtMatmulDescCreate(
        &plan.desc, mm->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
    matmul_set(plan.desc, CUBLASLT_MATMUL_DESC_TRANSA, p.bt ? CUBLAS_OP_T : CUBLAS_OP_N);
    matmul_set(plan.desc, CUBLASLT_MATMUL_DESC_TRANSB, p.at ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (p.bias) {
        matmul_set(plan.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
        matmul_set(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    }
    CUBLAS_CHECK(
        cublasLtMatrixLayoutCreate(&plan.first, cuda_type(p.b), p.bt ? p.K : p.N, p.bt ? p.N : p.K, p.ldb));
    CUBLAS_CHECK(
        cublasLtMatrixLayoutCreate(&plan.second, cuda_type(p.a), p.at ? p.M : p.K, p.at ? p.K : p.M, p.lda));
    CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&plan.out, cuda_type(p.c), p.N, p.M, p.ldc));

    cublasLtMatmulPreference_t preference;
    CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
    matmul_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, MATMUL_WORKSPACE);
    // partial sums of a product that is split along K are added in float, never in bf16
    matmul_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
               (uint32_t)(sizeof(O) == sizeof(float) ? CUBLASLT_REDUCTION_SCHEME_MASK
                                                     : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    for (cublasLtMatmulPreferenceAttributes_t which :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
        matmul_set(preference, which, (uint32_t)alignment);
    cublasLtMatmulHeuristicResult_t best = {};
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        mm->handle, plan.desc, plan.first, plan.second, plan.out, plan.out, preference, 1, &best, &count);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) CUBLAS_CHECK(status);
    plan.found = status == CUBLAS_STATUS_SUCCESS && count > 0 && best.state == CUBLAS_STATUS_SUCCESS;
    plan.algo = best.algo;
    CUBLAS_CHECK(cublasLtMatmulPreferenceDestroy(preference));
    return plan;
}

// Used if cuBLASLt has no algorithm, as for bf16 rows whose length is not a multiple of 16 bytes. A block computes
// tiles of 16 x 16 outputs, one per thread.
constexpr int PLAIN_TILE = 16;

template <typename S, typename O> __device__ inline void plain_matmul_tile(const Product<S, O>& p, int i0, int j0) {
    __shared__ float a_tile[PLAIN_TILE][PLAIN_TILE + 1], b_tile[PLAIN_TILE][PLAIN_TILE + 1];
    const int i = i0 + threadIdx.y, j = j0 + threadIdx.x;
    float sum = 0.0f;
    for (int k0 = 0; k0 < p.K; k0 += PLAIN_TILE) {
        const int ka = k0 + threadIdx.x, kb = k0 + threadIdx.y;
        a_tile[threadIdx.y][threadIdx.x] =
            i < p.M && ka < p.K ? to_float(p.a[p.at ? (size_t)ka * p.lda + i : (size_t)i * p.lda + ka]) : 0.0f;
        b_tile[threadIdx.y][threadIdx.x] =
            j < p.N && kb < p.K ? to_float(p.b[p.bt ? (size_t)j * p.ldb + kb : (size_t)kb * p.ldb + j]) : 0.0f;
        __syncthreads();
        for (int k = 0; k < PLAIN_TILE; k++) sum += a_tile[threadIdx.y][k] * b_tile[k][threadIdx.x];
        __syncthreads();
    }
    if (i >= p.M || j >= p.N) return;
    O* c = p.c + (size_t)i * p.ldc + j;
    if (p.bias) sum += to_float(p.bias[j]);
    if (p.beta != 0.0f) sum += p.beta * to_float(*c);
    *c = from_float<O>(sum);
}

template <typename S, typename O> __global__ void plain_matmul_kernel(Product<S, O> p) {
    for (int64_t i0 = (int64_t)blockIdx.y * PLAIN_TILE; i0 < p.M;
         i0 += (int64_t)gridDim.y * PLAIN_TILE)   // mutant: plain_rows_once
        plain_matmul_tile(p, (int)i0, blockIdx.x * PLAIN_TILE);
}

// Runs p on the stream, with the plan for its shape.
template <typename S, typename O> static void matmul(Matmul* mm, const Product<S, O>& p) {
    const int alignment = common_alignment(p.a, p.b, p.c);
    const int64_t key[12] = {cuda_type(p.a), cuda_type(p.c), p.at,  p.bt,           p.M,      p.N, p.K,
                             p.ldc,          p.lda,          p.ldb, p.bias != NULL, alignment};
    size_t i = 0;
    while (i < mm->plans.size() && memcmp(mm->plans[i].key, key, sizeof key) != 0) i++;
    if (i == mm->plans.size()) {
        mm->plans.push_back(matmul_plan(mm, p, alignment));
        memcpy(mm->plans[i].key, key, sizeof key);
    }
    const MatmulPlan& plan = mm->plans[i];
    if (!plan.found) {
        LAUNCH((plain_matmul_kernel<S, O>), dim3(div_up(p.N, PLAIN_TILE), min(div_up(p.M, PLAIN_TILE), 65535)),
               dim3(PLAIN_TILE, PLAIN_TILE), 0, mm->stream, p);
        return;
    }
    if (p.bias) matmul_set(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    const float one = 1.0f;
    CUBLAS_CHECK(cublasLtMatmul(mm->handle, plan.desc, &one, p.b, plan.first, p.a, plan.second, &p.beta, p.c, plan.out,
                                p.c, plan.out, &plan.algo, mm->workspace, MATMUL_WORKSPACE, mm->stream));
}

static void matmul_init(Matmul* mm, cudaStream_t stream, void* workspace, bool tf32) {
    CUBLAS_CHECK(cublasLtCreate(&mm->handle));
    mm->stream = stream;
    mm->workspace = workspace;
    mm->tf32 = tf32;
}

static void matmul_free(Matmul* mm) {
    for (MatmulPlan& plan : mm->plans) {
        CUBLAS_CHECK(cublasLtMatrixLayoutDestroy(plan.first));
        CUBLAS_CHECK(cublasLtMatrixLayoutDestroy(plan.second));
        CUBLAS_CHECK(cublasLtMatrixLayoutDestroy(plan.out));
        CUBLAS_CHECK(cublasLtMatmulDescDestroy(plan.desc));
    }
    if (mm->handle) CUBLAS_CHECK(cublasLtDestroy(mm->handle));
}

#endif
