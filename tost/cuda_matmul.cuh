// cuda_matmul.cuh: matrix products by cuBLASLt, and a plain kernel for the shapes that cuBLASLt has no algorithm for.
// An algorithm is chosen once per shape: cuBLASLt's first proposal, unless a file names another one. With --autotune
// the proposals are timed, and the fastest is written to the file; runs that read it have the same results, bit for
// bit.
#ifndef TOST_CUDA_MATMUL_CUH
#define TOST_CUDA_MATMUL_CUH

#include <errno.h>

#include <array>
#include <string>
#include <vector>

#include "tost/cuda_common.cuh"

inline void cublas_check(cublasStatus_t s, const char* what, const char* file, int line) {
    if (s == CUBLAS_STATUS_SUCCESS) return;
    char error[48];
    snprintf(error, sizeof error, "cuBLASLt status %d", (int)s);
    cuda_die(what, error, "cuBLASLt must be of this build's CUDA version, and enough GPU memory free", file, line);
}
#define CUBLAS_CHECK(call) cublas_check((call), #call, __FILE__, __LINE__)

// c (M,N) = op(a) (M,K) · op(b) (K,N) + bias (N) + beta c, row-major. at: a is stored as (K,M); bt: b is stored as
// (N,K). ld: elements from one row to the next as stored. The type O of c is S or float. If a and b are fp8, at is
// false and bt true, all sizes are multiples of 16, and the product is multiplied by *a_inverse and *b_inverse.
// cuBLASLt's fast accumulation for fp8, which is less precise, is not used.
template <typename S, typename O, typename B = S> struct Product {
    O* c; const S* a; const B* b;
    bool at, bt;
    int M, N, K;
    int64_t ldc, lda, ldb;
    float beta;
    const O* bias;                   // or NULL
    const float *a_inverse = NULL, *b_inverse = NULL;   // fp8: 1/scale, in device memory
};

// Everything that determines the algorithms of a product; the columns of MATMUL_HEADER up to `algorithm`.
typedef std::array<int64_t, 13> MatmulKey;

constexpr char MATMUL_HEADER[] = "tf32,input_type,output_type,a_transposed,b_transposed,m,n,k,ldc,lda,ldb,bias,"
                                 "alignment,algorithm,microseconds,cublaslt,gpu\n";
constexpr int MATMUL_PROPOSALS = 8, MATMUL_TRIALS = 5;

struct MatmulChoice {
    MatmulKey key;
    int algorithm;                   // index in cuBLASLt's proposals
};

// What cuBLASLt needs for one shape, chosen at the first call.
struct MatmulPlan {
    MatmulKey key;
    bool found;                      // false: cuBLASLt has no algorithm for this shape and alignment
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t first, second, out;
    cublasLtMatmulAlgo_t algo;
};

struct Matmul {
    cublasLtHandle_t handle;
    cudaStream_t stream;
    void* workspace;                 // MATMUL_WORKSPACE bytes
    bool tf32, autotune;
    std::vector<MatmulPlan> plans;
    std::vector<MatmulChoice> choices;
    std::string file, machine;       // of the choices; machine: columns `cublaslt` and `gpu` of this process
};

struct MatmulProposals {
    int count;
    cublasLtMatmulHeuristicResult_t result[MATMUL_PROPOSALS];
};

static inline cudaDataType cuda_type(const float*) { return CUDA_R_32F; }
static inline cudaDataType cuda_type(const bf16*) { return CUDA_R_16BF; }
static inline cudaDataType cuda_type(const fp8_e4m3*) { return CUDA_R_8F_E4M3; }
static inline cudaDataType cuda_type(const fp8_e5m2*) { return CUDA_R_8F_E5M2; }

// The largest power of two up to 64 that divides all addresses; bias may be NULL. Tensors start at multiples of 32
// elements, so that the same product has the same alignment in all layers.
static int common_alignment(const void* a, const void* b, const void* c, const void* bias) {
    const uintptr_t bits = (uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)bias | 64;
    return (int)(bits & (0 - bits));
}

template <typename T> static void matmul_set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t which, T value) {
    CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(desc, which, &value, sizeof value));
}
template <typename T>
static void matmul_set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t which, T value) {
    CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, which, &value, sizeof value));
}

// What may differ from product to product of one plan
template <typename P> static void matmul_set_pointers(cublasLtMatmulDesc_t desc, const P& p) {
    if (p.bias) matmul_set(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    if (p.a_inverse) matmul_set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.a_inverse);
    if (p.b_inverse) matmul_set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.b_inverse);   // mutant: fp8_unscaled
}

// Reduction schemes that cuBLASLt may use for a product that is split along K. In-place reduction is excluded, because
// it adds partial sums in the order in which they arrive, so that results are not reproducible. Partial sums are added
// in float, never in bf16. A product whose K is not a multiple of SPLIT_TILE is not split: cuBLASLt 12.8 and 13.1 are
// reported to omit the elements after the last whole tile.
constexpr int SPLIT_TILE = 128;      // a multiple of the tile size along K of every kernel

template <typename P> static uint32_t matmul_reductions(const P& p) {
    const uint32_t output_type = sizeof *p.c == sizeof(float) ? CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE : 0;
    if (p.K % SPLIT_TILE) return CUBLASLT_REDUCTION_SCHEME_NONE;   // mutant: split_anywhere
    return output_type | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;   // mutant: split_in_place
}

// cuBLASLt is column-major and computes cᵀ (N,M) = op(b)ᵀ · op(a)ᵀ: b is its first operand, and its bias, one number
// per row, is one per column of c.
template <typename P>
static MatmulPlan matmul_plan(MatmulProposals* proposals, const Matmul* mm, const P& p, int alignment) {
    MatmulPlan plan = {};
    CUBLAS_CHECK(cublasLtMatmulDescCreate(
        &plan.desc, mm->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
    matmul_set(plan.desc, CUBLASLT_MATMUL_DESC_TRANSA, p.bt ? CUBLAS_OP_T : CUBLAS_OP_N);
    matmul_set(plan.desc, CUBLASLT_MATMUL_DESC_TRANSB, p.at ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (p.bias) matmul_set(plan.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    matmul_set_pointers(plan.desc, p);
    // The heuristic does not read the bias, but derives its alignment from the pointer. Biases of different layers have
    // different addresses, so the pointer is set to an address that has only the alignment common to all of them.
    const uintptr_t bias = p.bias ? alignment : 0;   // mutant: bias_of_the_first_layer
    matmul_set(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    CUBLAS_CHECK(
        cublasLtMatrixLayoutCreate(&plan.first, cuda_type(p.b), p.bt ? p.K : p.N, p.bt ? p.N : p.K, p.ldb));
    CUBLAS_CHECK(
        cublasLtMatrixLayoutCreate(&plan.second, cuda_type(p.a), p.at ? p.M : p.K, p.at ? p.K : p.M, p.lda));
    CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&plan.out, cuda_type(p.c), p.N, p.M, p.ldc));

    cublasLtMatmulPreference_t preference;
    CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
    matmul_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, MATMUL_WORKSPACE);
    matmul_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, matmul_reductions(p));
    for (cublasLtMatmulPreferenceAttributes_t which :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
        matmul_set(preference, which, (uint32_t)alignment);
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        mm->handle, plan.desc, plan.first, plan.second, plan.out, plan.out, preference, MATMUL_PROPOSALS,
        proposals->result, &proposals->count);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) CUBLAS_CHECK(status);
    plan.found = status == CUBLAS_STATUS_SUCCESS && proposals->count > 0
                 && proposals->result[0].state == CUBLAS_STATUS_SUCCESS;
    plan.algo = proposals->result[0].algo;
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
    dependency_wait();
    for (int64_t i0 = (int64_t)blockIdx.y * PLAIN_TILE; i0 < p.M;
         i0 += (int64_t)gridDim.y * PLAIN_TILE)   // mutant: plain_rows_once
        plain_matmul_tile(p, (int)i0, blockIdx.x * PLAIN_TILE);
}

// c: instead of p.c.
template <typename P, typename O> static void matmul_run(const Matmul* mm, const MatmulPlan& plan, const P& p, O* c) {
    matmul_set_pointers(plan.desc, p);
    const float one = 1.0f;
    CUBLAS_CHECK(cublasLtMatmul(mm->handle, plan.desc, &one, p.b, plan.first, p.a, plan.second, &p.beta, c, plan.out, c,
                                plan.out, &plan.algo, mm->workspace, MATMUL_WORKSPACE, mm->stream));
}

// The least milliseconds of MATMUL_TRIALS runs, after one that is not timed. Writes to c.
template <typename P, typename O>
static float matmul_time(const Matmul* mm, const MatmulPlan& plan, const P& p, O* c) {
    float least = INFINITY, ms;
    cudaEvent_t start, stop;
    CUDA_CHECK(cudaEventCreate(&start));
    CUDA_CHECK(cudaEventCreate(&stop));
    for (int i = 0; i <= MATMUL_TRIALS; i++) {
        CUDA_CHECK(cudaEventRecord(start, mm->stream));
        matmul_run(mm, plan, p, c);
        CUDA_CHECK(cudaEventRecord(stop, mm->stream));
        CUDA_CHECK(cudaEventSynchronize(stop));
        CUDA_CHECK(cudaEventElapsedTime(&ms, start, stop));
        if (i > 0 && ms < least) least = ms;
    }
    CUDA_CHECK(cudaEventDestroy(start));
    CUDA_CHECK(cudaEventDestroy(stop));
    return least;
}

static void matmul_write_choice(const Matmul* mm, const MatmulChoice& choice, float ms) {
    FILE* f = fopen(mm->file.c_str(), "a");
    bool ok = f != NULL;
    for (size_t i = 0; ok && i < choice.key.size(); i++) ok = fprintf(f, "%lld,", (long long)choice.key[i]) > 0;
    ok = ok && fprintf(f, "%d,%.3f,%s\n", choice.algorithm, ms * 1e3, mm->machine.c_str()) > 0;
    if (f && fclose(f) != 0) ok = false;
    if (ok) return;
    fprintf(stderr, "%s: cannot write the algorithms of --autotune: %s; free space there, or leave out --autotune\n",
            mm->file.c_str(), strerror(errno));
    exit(STATUS_FAILED);
}

// Times the proposals on the operands of p, writes the fastest to the file and returns it. The result goes to a copy: p
// may add to its own.
template <typename S, typename O, typename B>
static MatmulChoice matmul_choose(const Matmul* mm, const MatmulKey& key, MatmulPlan plan,
                                  const MatmulProposals& proposals, const Product<S, O, B>& p) {
    MatmulChoice best = {key, 0};
    float least = INFINITY;
    O* c;
    const size_t bytes = ((size_t)p.ldc * (p.M - 1) + p.N) * sizeof(O);
    CUDA_CHECK(cudaMalloc(&c, bytes));
    CUDA_CHECK(cudaMemsetAsync(c, 0, bytes, mm->stream));
    for (int i = 0; i < proposals.count; i++) {
        if (proposals.result[i].state != CUBLAS_STATUS_SUCCESS) continue;
        plan.algo = proposals.result[i].algo;
        const float ms = matmul_time(mm, plan, p, c);
        if (ms >= least) continue;
        least = ms;
        best.algorithm = i;
    }
    CUDA_CHECK(cudaFree(c));
    matmul_write_choice(mm, best, least);
    return best;
}

// A plan for the shape of p, with the algorithm of mm->choices.
template <typename P>
static MatmulPlan matmul_new_plan(Matmul* mm, const MatmulKey& key, const P& p, int alignment) {
    MatmulProposals proposals = {};
    MatmulPlan plan = matmul_plan(&proposals, mm, p, alignment);
    plan.key = key;
    size_t i = 0;
    while (i < mm->choices.size() && mm->choices[i].key != key) i++;
    if (i == mm->choices.size() && mm->autotune && plan.found)
        mm->choices.push_back(matmul_choose(mm, key, plan, proposals, p));
    if (i == mm->choices.size()) return plan;
    const int algorithm = mm->choices[i].algorithm;   // mutant: choice_not_used
    if (algorithm < proposals.count && proposals.result[algorithm].state == CUBLAS_STATUS_SUCCESS)
        plan.algo = proposals.result[algorithm].algo;
    return plan;
}

// Returns the plan for the shape of p. The first call for a shape chooses the plan and must not be in a graph capture.
template <typename P> static const MatmulPlan& matmul_plan_of(Matmul* mm, const P& p) {
    const int alignment = common_alignment(p.a, p.b, p.c, p.bias);
    const MatmulKey key = {mm->tf32, cuda_type(p.a), cuda_type(p.c), p.at,  p.bt,           p.M,      p.N,
                           p.K,      p.ldc,          p.lda,          p.ldb, p.bias != NULL, alignment};
    size_t i = 0;
    while (i < mm->plans.size() && mm->plans[i].key != key) i++;
    if (i == mm->plans.size()) mm->plans.push_back(matmul_new_plan(mm, key, p, alignment));
    return mm->plans[i];
}

// Runs p on the stream, with the plan for its shape.
template <typename S, typename O, typename B> static void matmul(Matmul* mm, const Product<S, O, B>& p) {
    const MatmulPlan& plan = matmul_plan_of(mm, p);
    if (plan.found) return matmul_run(mm, plan, p, p.c);
    if constexpr (sizeof(S) == 1)
        cuda_die("cublasLtMatmulAlgoGetHeuristic", "no product in fp8 for this size", "use --dtype bf16", __FILE__,
                 __LINE__);
    else LAUNCH((plain_matmul_kernel<S, O>), dim3(div_up(p.N, PLAIN_TILE), min(div_up(p.M, PLAIN_TILE), 65535)),
           dim3(PLAIN_TILE, PLAIN_TILE), 0, mm->stream, p);
}

// Reads a line of the file. False for the header and for lines of another GPU or version of cuBLASLt.
static bool matmul_read_choice(MatmulChoice* choice, const char* line, const std::string& machine) {
    char* end;
    for (int64_t& x : choice->key) {
        x = strtoll(line, &end, 10);
        if (end == line || *end != ',') return false;
        line = end + 1;
    }
    choice->algorithm = (int)strtol(line, &end, 10);
    const char* of = end > line && *end == ',' ? strchr(end + 1, ',') : NULL;
    return of && choice->algorithm >= 0 && of + 1 == machine;
}

// Sets the file of the choices, before the first product: reads it if it exists, or starts a new one with autotune.
static bool matmul_tune(Matmul* mm, const char* file, bool autotune, TostError* err) {
    mm->file = file;
    mm->machine = std::to_string(cublasLtGetVersion()) + "," + current_device().name;
    mm->autotune = autotune;
    FILE* f = fopen(file, autotune ? "w" : "r");
    if (!f && !autotune && errno == ENOENT) return true;
    if (!f) return tost_error(err, "%s: %s", file, strerror(errno));
    bool ok = true;
    if (autotune) {
        ok = fputs(MATMUL_HEADER, f) >= 0;
    } else {
        char line[512];
        MatmulChoice choice;
        while (fgets(line, sizeof line, f)) {
            line[strcspn(line, "\r\n")] = '\0';
            if (matmul_read_choice(&choice, line, mm->machine)) mm->choices.push_back(choice);
        }
    }
    ok = (fclose(f) == 0) && ok;
    return ok || tost_error(err, "%s: %s", file, strerror(errno));
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
