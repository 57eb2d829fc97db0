// matmul.cuh: matrix products by cuBLASLt. For each shape, one of the algorithms that its heuristic proposes. The
// choice depends on the shape and the GPU, not on measured times, so that results are reproducible.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "tost/cuda/common.cuh"

inline void cublas_check(cublasStatus_t s, const char* what, const char* file, int line) {
    if (s == CUBLAS_STATUS_SUCCESS) return;
    char error[48];
    snprintf(error, sizeof error, "cuBLASLt status %d", (int)s);
    const char* advice = s == CUBLAS_STATUS_NOT_SUPPORTED
                             ? "it has no algorithm for these sizes: give --channels and --heads multiples of 8"
                             : "cuBLASLt must be of this build's CUDA version; free GPU memory or set TOST_NO_GRAPHS=1";
    cuda_die(what, error, advice, file, line);
}
#define CUBLAS_CHECK(call) cublas_check((call), #call, __FILE__, __LINE__)

// c (M,N) = alpha op(a) (M,K) · op(b) (K,N) + bias (N) + beta source, row-major. at: a is stored as (K,M); bt: b is
// stored as (N,K). ld: elements from one row to the next as stored. The type O of c is S or float. count: a batch of
// such products, without bias; step: elements from one matrix to the next.
// source: stored like c; dense_product sets it to c.
template <typename S, typename O> struct Product {
    O* c; const S *a, *b;
    bool at, bt;
    int M, N, K;
    int64_t ldc, lda, ldb;
    float beta;
    const O* bias;                   // or NULL
    float alpha = 1.0f;
    const O* source;
    int count = 1;
    int64_t c_step = 0, a_step = 0, b_step = 0;
};

// c (M,N) = op(a) · op(b) of dense matrices. In a layout's name, N: as stored, T: transposed. The caller may set more.
enum ProductLayout { PRODUCT_NN, PRODUCT_NT, PRODUCT_TN };

template <typename S, typename O>
static Product<S, O> dense_product(O* c, const S* a, const S* b, ProductLayout layout, int M, int N, int K) {
    Product<S, O> p = {};
    p.c = c, p.source = c, p.a = a, p.b = b, p.M = M, p.N = N, p.K = K;
    p.at = layout == PRODUCT_TN, p.bt = layout == PRODUCT_NT;
    p.ldc = N, p.lda = p.at ? M : K, p.ldb = p.bt ? K : N;
    return p;
}

// Everything that determines the algorithm of a product
typedef std::array<int64_t, 17> MatmulKey;

// What cuBLASLt needs for one shape, chosen at the first call.
struct MatmulPlan {
    static constexpr int PROPOSALS = 8;
    MatmulKey key;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t first, second, out;
    cublasLtMatmulHeuristicResult_t proposal[PROPOSALS];   // see matmul_choice
    int n_proposals, current;
    cublasStatus_t status;           // of the heuristic
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

// The largest power of two up to 64 that divides all addresses and the steps in bytes. Tensors start at multiples of
// 32 elements, so that the same product has the same alignment in all layers.
template <typename P> static int common_alignment(const P& p) {
    const uintptr_t first = (uintptr_t)p.a | (uintptr_t)p.b | (uintptr_t)p.c | (uintptr_t)p.source | (uintptr_t)p.bias,
                    steps = p.a_step * sizeof *p.a | p.b_step * sizeof *p.b | p.c_step * sizeof *p.c,
                    bits = first | steps | 64;
    return (int)(bits & (0 - bits));
}

template <typename T> static void matmul_set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t which, T value) {
    CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(desc, which, &value, sizeof value));
}
template <typename T>
static void matmul_set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t which, T value) {
    CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, which, &value, sizeof value));
}
template <typename T>
static void matmul_set(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t which, T value) {
    CUBLAS_CHECK(cublasLtMatrixLayoutSetAttribute(layout, which, &value, sizeof value));
}

// A column-major matrix, or `count` of them.
static cublasLtMatrixLayout_t matmul_layout(cudaDataType type, int rows, int columns, int64_t ld, int count,
                                            int64_t step) {
    cublasLtMatrixLayout_t layout;
    CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&layout, type, rows, columns, ld));
    if (count == 1) return layout;
    matmul_set(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, (int32_t)count);
    matmul_set(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, step);
    return layout;
}

// Reduction schemes that cuBLASLt may use for a product that is split along K. In-place reduction is excluded, because
// it adds partial sums in the order in which they arrive, so that results are not reproducible. Partial sums are added
// in float, never in bf16. A product whose K is not a multiple of SPLIT_TILE is not split: cuBLASLt 12.8 and 13.1 are
// reported to omit the elements after the last whole tile.
constexpr int SPLIT_TILE = 128;      // a multiple of the tile size along K of every kernel

template <typename P> static uint32_t matmul_reductions(const P& p) {
    const uint32_t output_type = sizeof *p.c == sizeof(float) ? CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE : 0;
    if (p.K % SPLIT_TILE) return CUBLASLT_REDUCTION_SCHEME_NONE;
    return output_type | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

// The proposal to try first; the others keep their order. In a large product with K <= SHORT_SUM, storing c takes much
// of the time. On an H100, the first proposal with tiles of at most SMALL_TILE elements takes 0.84 to 0.93 of the time
// of the heuristic's first (dev/bench/results).
constexpr int SHORT_SUM = 1024, LARGE_PRODUCT = 8;   // LARGE_PRODUCT: in waves of the heuristic's first
constexpr double SMALL_TILE = 23000;                 // 128 · 176 is less, 128 · 192 is more

template <typename P> static int matmul_choice(const MatmulPlan& plan, const P& p) {
    if (p.K > SHORT_SUM || p.count > 1 || plan.proposal[0].wavesCount < LARGE_PRODUCT ||
        device_attribute(cudaDevAttrComputeCapabilityMajor) != 9) return 0;
    const double waves = (double)p.M * p.N / SMALL_TILE / device_attribute(cudaDevAttrMultiProcessorCount);
    for (int i = 0; i < plan.n_proposals; i++)
        if (plan.proposal[i].wavesCount >= waves) return i;
    return 0;
}

// cuBLASLt is column-major and computes cᵀ (N,M) = op(b)ᵀ · op(a)ᵀ: b is its first operand, and its bias, one number
// per row, is one per column of c.
template <typename P> static MatmulPlan matmul_plan(const Matmul* mm, const MatmulKey& key, const P& p) {
    const int alignment = common_alignment(p);
    MatmulPlan plan = {};
    plan.key = key;
    CUBLAS_CHECK(cublasLtMatmulDescCreate(
        &plan.desc, mm->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
    matmul_set(plan.desc, CUBLASLT_MATMUL_DESC_TRANSA, p.bt ? CUBLAS_OP_T : CUBLAS_OP_N);
    matmul_set(plan.desc, CUBLASLT_MATMUL_DESC_TRANSB, p.at ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (p.bias) matmul_set(plan.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    // The heuristic does not read the bias, but derives its alignment from the pointer. Biases of different layers have
    // different addresses, so the pointer is set to an address that has only the alignment common to all of them.
    const uintptr_t bias = p.bias ? alignment : 0;
    matmul_set(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    plan.first = matmul_layout(cuda_type(p.b), p.bt ? p.K : p.N, p.bt ? p.N : p.K, p.ldb, p.count, p.b_step);
    plan.second = matmul_layout(cuda_type(p.a), p.at ? p.M : p.K, p.at ? p.K : p.M, p.lda, p.count, p.a_step);
    plan.out = matmul_layout(cuda_type(p.c), p.N, p.M, p.ldc, p.count, p.c_step);

    cublasLtMatmulPreference_t preference;
    CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
    matmul_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, MATMUL_WORKSPACE);
    matmul_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, matmul_reductions(p));
    for (cublasLtMatmulPreferenceAttributes_t which :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
        matmul_set(preference, which, (uint32_t)alignment);
    plan.status = cublasLtMatmulAlgoGetHeuristic(mm->handle, plan.desc, plan.first, plan.second, plan.out, plan.out,
                                                 preference, MatmulPlan::PROPOSALS, plan.proposal, &plan.n_proposals);
    CUBLAS_CHECK(cublasLtMatmulPreferenceDestroy(preference));
    const int choice = matmul_choice(plan, p);
    std::rotate(plan.proposal, plan.proposal + choice, plan.proposal + choice + 1);
    return plan;
}

// Returns the plan for the shape of p. The first call for a shape chooses the plan and must not be in a graph capture.
template <typename P> static MatmulPlan& matmul_plan_of(Matmul* mm, const P& p) {
    const MatmulKey key = {mm->tf32, cuda_type(p.a), cuda_type(p.c), p.at,     p.bt,  p.M,
                           p.N,      p.K,            p.ldc,          p.lda,    p.ldb, p.bias != NULL,
                           p.count,  p.c_step,       p.a_step,       p.b_step, common_alignment(p)};
    size_t i = 0;
    while (i < mm->plans.size() && mm->plans[i].key != key) i++;
    if (i == mm->plans.size()) mm->plans.push_back(matmul_plan(mm, key, p));
    return mm->plans[i];
}

// Runs p on the stream, with the plan for its shape. If cuBLASLt refuses an algorithm, the next one takes its place.
template <typename S, typename O> static void matmul(Matmul* mm, const Product<S, O>& p) {
    MatmulPlan& plan = matmul_plan_of(mm, p);
    cublasStatus_t s = plan.status == CUBLAS_STATUS_SUCCESS ? CUBLAS_STATUS_NOT_SUPPORTED : plan.status;
    if (p.bias) matmul_set(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    for (; plan.current < plan.n_proposals && s == CUBLAS_STATUS_NOT_SUPPORTED; plan.current++) {
        s = cublasLtMatmul(mm->handle, plan.desc, &p.alpha, p.b, plan.first, p.a, plan.second, &p.beta, p.source,
                           plan.out, p.c, plan.out, &plan.proposal[plan.current].algo, mm->workspace, MATMUL_WORKSPACE,
                           mm->stream);
        if (s == CUBLAS_STATUS_SUCCESS) return;
    }
    char what[96];
    snprintf(what, sizeof what, "product of (%d,%d) and (%d,%d) in %s, batch of %d", p.M, p.K, p.K, p.N,
             sizeof(S) == sizeof(float) ? "float32" : "bf16", p.count);
    cublas_check(s, what, __FILE__, __LINE__);
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
