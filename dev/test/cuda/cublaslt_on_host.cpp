// cublaslt_on_host.cpp: matrix products with float32 sums, and checks of the arguments that cuBLASLt does not check.
#include "cuda_on_host.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

struct CublasOnHostHandle {
    int unused;
};
struct CublasOnHostDesc {
    cublasComputeType_t compute;
    bool transposed[2];
    cublasLtEpilogue_t epilogue;
    void* bias;
};
struct CublasOnHostLayout {
    cudaDataType type;
    uint64_t rows, cols;
    int64_t ld;
    int32_t count = 1;
    int64_t step = 0;   // elements from one of `count` matrices to the next
};
struct CublasOnHostPreference {
    size_t workspace;
    uint32_t align[4], reductions;   // reductions: mask of schemes for split-K; 0: no split-K
};

namespace {

int live_handles = 0;

template <typename T> cublasStatus_t create(T** p, const T& value) {
    *p = new T(value);
    live_handles++;
    return CUBLAS_STATUS_SUCCESS;
}
template <typename T> cublasStatus_t destroy(T* p) {
    delete p;
    live_handles--;
    return CUBLAS_STATUS_SUCCESS;
}

constexpr int PROPOSALS = 3;
unsigned in_place = 0;   // number of products with in-place reduction

// Aborts unless `ok`.
#define NEED(ok, ...) \
    do { \
        if (!(ok)) cuda_on_host_die("cuBLASLt: " __VA_ARGS__); \
    } while (0)

template <typename T> T attribute(const void* value, size_t bytes) {
    T x;
    NEED(bytes == sizeof x, "attribute of %zu bytes, want %zu", bytes, sizeof x);
    memcpy(&x, value, sizeof x);
    return x;
}

size_t size_of(cudaDataType type) { return type == CUDA_R_32F ? 4 : 2; }
size_t elements_of(const CublasOnHostLayout& l) { return (size_t)l.ld * (l.cols - 1) + l.rows; }   // of a matrix
size_t bytes_of(const CublasOnHostLayout& l) {
    return ((size_t)l.step * ((size_t)l.count - 1) + elements_of(l)) * size_of(l.type);
}

float element(const void* x, cudaDataType type, size_t at) {
    return type == CUDA_R_32F ? ((const float*)x)[at] : (float)((const __nv_bfloat16*)x)[at];
}

float to_tf32(float x) {  // 10 mantissa bits, rounded towards zero like a tensor core
    return __uint_as_float(__float_as_uint(x) & ~0x1fffu);
}

// op(X) as floats, column-major without gaps.
std::vector<float> read_operand(const void* x, const CublasOnHostLayout& l, bool transposed, bool tf32) {
    std::vector<float> out(l.rows * l.cols);
    for (uint64_t j = 0; j < l.cols; j++) {
        for (uint64_t i = 0; i < l.rows; i++) {
            const float v = element(x, l.type, (size_t)l.ld * j + i);
            out[transposed ? i * l.cols + j : j * l.rows + i] = tf32 ? to_tf32(v) : v;
        }
    }
    return out;
}

enum Matrix { A, B, C, D };

struct Product {
    CublasOnHostDesc desc;
    CublasOnHostLayout layout[4];   // by Matrix
    void* at[4];
    float alpha, beta;
    uint32_t reductions;
};

// Writes element (i,j) of D, given its sum over k.
void finish(const Product& p, uint64_t i, uint64_t j, float sum) {
    const CublasOnHostLayout& out = p.layout[D];
    const size_t at = (size_t)out.ld * j + i;
    float v = p.alpha * sum;
    if (p.beta != 0) v += p.beta * element(p.at[C], out.type, (size_t)p.layout[C].ld * j + i);
    if (p.desc.epilogue == CUBLASLT_EPILOGUE_BIAS) v += element(p.desc.bias, out.type, i);
    if (out.type == CUDA_R_32F) ((float*)p.at[D])[at] = v;
    else ((__nv_bfloat16*)p.at[D])[at] = __nv_bfloat16(v);
}

// sum[i] += a[i] · b. Not sanitized, for speed: the operands are buffers of this file.
__attribute__((no_sanitize_address)) void add_column(float* sum, const float* a, float b, size_t n) {
    for (size_t i = 0; i < n; i++) sum[i] += a[i] * b;
}

// Products that may be split along K behave like the worst that is reported of cuBLASLt: with in-place reduction, the
// order of the sum changes from call to call; elements after the last whole tile are omitted.
void run_product(const Product& p) {
    constexpr uint64_t TILE = 64;
    const bool tf32 = p.desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    const std::vector<float> a = read_operand(p.at[A], p.layout[A], p.desc.transposed[A], tf32);
    const std::vector<float> b = read_operand(p.at[B], p.layout[B], p.desc.transposed[B], tf32);
    const uint64_t m = p.layout[D].rows, n = p.layout[D].cols, k = a.size() / m;
    const uint64_t used = p.reductions && k > TILE ? k - k % TILE : k,
                   part = p.reductions & CUBLASLT_REDUCTION_SCHEME_INPLACE ? in_place++ % 8 : 0;
    std::vector<float> sum(m);
    for (uint64_t j = 0; j < n; j++) {
        std::fill(sum.begin(), sum.end(), 0.0f);
        for (uint64_t i = 0, l = used * part / 8; i < used; i++, l = l + 1 < used ? l + 1 : 0)
            add_column(sum.data(), a.data() + l * m, b[j * k + l], m);
        for (uint64_t i = 0; i < m; i++) finish(p, i, j, sum[i]);
    }
}

// Product i of a batch.
Product product_of(Product p, int i) {
    for (int k = A; k <= D; k++)
        p.at[k] = (char*)p.at[k] + (size_t)i * (size_t)p.layout[k].step * size_of(p.layout[k].type);
    return p;
}

bool overlap(const void* x, size_t nx, const void* y, size_t ny) {
    return (const char*)x < (const char*)y + ny && (const char*)y < (const char*)x + nx;
}

void check_shapes(const CublasOnHostDesc& desc, const CublasOnHostLayout* layout) {
    const CublasOnHostLayout &a = layout[A], &b = layout[B], &c = layout[C], &d = layout[D];
    const uint64_t m = desc.transposed[0] ? a.cols : a.rows, k = desc.transposed[0] ? a.rows : a.cols;
    const uint64_t k_b = desc.transposed[1] ? b.cols : b.rows, n = desc.transposed[1] ? b.rows : b.cols;
    NEED(k == k_b && m == d.rows && n == d.cols && c.rows == d.rows && c.cols == d.cols,
         "(%zu,%zu) by (%zu,%zu) into (%zu,%zu)", (size_t)m, (size_t)k, (size_t)k_b, (size_t)n, (size_t)d.rows,
         (size_t)d.cols);
    NEED(a.type == b.type && c.type == d.type && (a.type != CUDA_R_32F || d.type == CUDA_R_32F) &&
             (desc.compute != CUBLAS_COMPUTE_32F_FAST_TF32 || a.type == CUDA_R_32F),
         "unsupported combination of types");
    for (int i = A; i <= D; i++)
        NEED(layout[i].count == d.count, "a batch of %d matrices in one of %d", layout[i].count, d.count);
    NEED(d.count == 1 || (d.step >= (int64_t)elements_of(d) && desc.epilogue == CUBLASLT_EPILOGUE_DEFAULT),
         "the matrices of the batch D overlap, or it has a bias, which is not emulated");
    if (desc.epilogue == CUBLASLT_EPILOGUE_BIAS)
        NEED(desc.bias && (uintptr_t)desc.bias % 16 == 0, "the bias at %p is not aligned to 16 bytes", desc.bias);
}

// The alignment that cuBLASLt assumes of a pointer: the largest power of two up to 256 that divides it.
uint32_t alignment_of(const void* p) {
    const uintptr_t bits = (uintptr_t)p | 256;
    return (uint32_t)(bits & (0 - bits));
}

// Hash of the problem for which a heuristic result is valid: everything except the pointers.
uint64_t shape_hash(const CublasOnHostDesc& desc, const CublasOnHostLayout* layout) {
    uint64_t h =
        (uint64_t)desc.compute * 64 + (uint64_t)desc.epilogue * 4 + desc.transposed[0] * 2u + desc.transposed[1];
    for (const CublasOnHostLayout* l = layout; l < layout + 4; l++)
        for (const uint64_t x :
             {(uint64_t)l->type, l->rows, l->cols, (uint64_t)l->ld, (uint64_t)l->count, (uint64_t)l->step})
            h = h * 1000003u + x;
    return h;
}

}  // namespace

int cublaslt_on_host_live(void) { return live_handles; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { return create(handle, {}); }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) { return destroy(h); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute, cudaDataType) {
    return create(desc, {compute, {false, false}, CUBLASLT_EPILOGUE_DEFAULT, nullptr});
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) { return destroy(d); }

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a,
                                              const void* value, size_t bytes) {
    if (a == CUBLASLT_MATMUL_DESC_EPILOGUE) d->epilogue = attribute<cublasLtEpilogue_t>(value, bytes);
    else if (a == CUBLASLT_MATMUL_DESC_BIAS_POINTER) d->bias = attribute<void*>(value, bytes);
    else d->transposed[a == CUBLASLT_MATMUL_DESC_TRANSB] = attribute<cublasOperation_t>(value, bytes) == CUBLAS_OP_T;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld) {
    NEED(rows > 0 && cols > 0 && ld >= (int64_t)rows, "%zu rows, %zu columns, leading dimension %lld", (size_t)rows,
         (size_t)cols, (long long)ld);
    return create(layout, {type, rows, cols, ld});
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) { return destroy(l); }

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t a,
                                                const void* value, size_t bytes) {
    if (a == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) l->count = attribute<int32_t>(value, bytes);
    else l->step = attribute<int64_t>(value, bytes);
    NEED(l->count > 0 && l->step >= 0, "%d matrices, %lld elements apart", l->count, (long long)l->step);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* p) {
    return create(p, {0, {256, 256, 256, 256}, CUBLASLT_REDUCTION_SCHEME_MASK});
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) { return destroy(p); }

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t a, const void* value,
                                                    size_t bytes) {
    if (a == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) p->workspace = attribute<uint64_t>(value, bytes);
    else if (a == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) p->reductions = attribute<uint32_t>(value, bytes);
    else p->align[a - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES] = attribute<uint32_t>(value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference,
                                              int wanted, cublasLtMatmulHeuristicResult_t* results, int* found) {
    NEED(!cuda_on_host_capturing(), "heuristic while a stream is capturing");
    const CublasOnHostLayout layouts[] = {*a, *b, *c, *d};
    check_shapes(*desc, layouts);
    *found = std::min(wanted, PROPOSALS);
    for (int i = 0; i < *found; i++) {
        cublasLtMatmulHeuristicResult_t& r = results[i];
        r = {};
        r.workspaceSize = std::min(preference->workspace, (size_t)4096);
        r.algo = {shape_hash(*desc, layouts), r.workspaceSize, {}, alignment_of(desc->bias), preference->reductions, i};
        memcpy(r.algo.align, preference->align, sizeof preference->align);
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, size_t workspace_bytes, cudaStream_t stream) {
    const Product p = {*desc, {*a_layout, *b_layout, *c_layout, *d_layout},
                       {const_cast<void*>(a), const_cast<void*>(b), const_cast<void*>(c), d}, *(const float*)alpha,
                       *(const float*)beta, algo->reductions};
    check_shapes(*desc, p.layout);
    NEED(algo->shape == shape_hash(*desc, p.layout), "the algorithm belongs to another problem");
    for (int i = A; i <= D; i++) {
        const CublasOnHostLayout& l = p.layout[i];
        if (i == C && p.beta == 0) continue;
        cuda_on_host_check_range("cublasLtMatmul", p.at[i], bytes_of(l));
        NEED(((uintptr_t)p.at[i] | (size_t)l.step * size_of(l.type)) % algo->align[i] == 0,
             "matrix %c at %p is not aligned to the %u bytes given to the heuristic", "ABCD"[i], p.at[i],
             algo->align[i]);
        NEED(i == D || (i == C && c == d && l.ld == d_layout->ld && l.step == d_layout->step) ||
                 !overlap(p.at[i], bytes_of(l), d, bytes_of(*d_layout)), "%c overlaps D", "ABC"[i]);
    }
    NEED(workspace_bytes >= algo->workspace, "less workspace than the algorithm needs");
    if (workspace_bytes) cuda_on_host_check_range("cublasLtMatmul's workspace", workspace, workspace_bytes);
    NEED((uintptr_t)workspace % 256 == 0, "the workspace at %p is not aligned to 256 bytes", workspace);
    if (p.desc.epilogue == CUBLASLT_EPILOGUE_BIAS) {
        NEED(alignment_of(p.desc.bias) >= algo->bias_align,
             "the bias at %p is not aligned to the %u bytes of the heuristic's bias", p.desc.bias, algo->bias_align);
        cuda_on_host_check_range("cublasLtMatmul's bias", p.desc.bias, d_layout->rows * size_of(d_layout->type));
    }
    if (algo->number < cuda_on_host_options().refused) return CUBLAS_STATUS_NOT_SUPPORTED;
    const size_t scribble = algo->workspace;
    cuda_on_host_enqueue(stream, [p, workspace, scribble] {
        if (scribble) memset(workspace, 0xff, scribble);
        for (int i = 0; i < p.layout[D].count; i++) run_product(product_of(p, i));
    });
    return CUBLAS_STATUS_SUCCESS;
}
