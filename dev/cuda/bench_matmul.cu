// bench_matmul.cu: the matrix products of one tost-base step of 65,536 tokens by shape, called as the engine does, with
// the algorithm that it chooses, a large square product as the upper limit, and Muon's.
#include "bench.cuh"

static int algo_value(const cublasLtMatmulAlgo_t* algo, cublasLtMatmulAlgoConfigAttributes_t which) {
    int value = 0;
    CUBLAS_CHECK(cublasLtMatmulAlgoConfigGetAttribute(algo, which, &value, sizeof value, NULL));
    return value;
}

// Seconds of p with the engine's choice, the first proposal; prints them, what it is, and the best of all proposals.
template <typename S, typename O> static double bench_product(Bench* bench, const char* name, const Product<S, O>& p) {
    double first = 0, best = 0;
    int fastest = 0;
    const double flops = 2.0 * p.count * p.M * p.N * p.K;
    char *space = bench_buffer<char>(bench, MATMUL_WORKSPACE), size[64], batch[16] = "";
    if (p.count > 1) snprintf(batch, sizeof batch, " x %d", p.count);
    snprintf(size, sizeof size, "%s M %d N %d K %d%s", bench_type<S>(), p.M, p.N, p.K, batch);
    Matmul mm = {};
    matmul_init(&mm, bench->stream, space, false);
    MatmulPlan& plan = matmul_plan_of(&mm, p);
    CUBLAS_CHECK(plan.status);
    for (int choice = 0; choice < plan.n_proposals; choice = plan.current + 1) {
        plan.current = choice;   // matmul goes on to the next if cuBLASLt refuses this one
        const double s = bench_seconds(bench, [&] { matmul(&mm, p); });
        const cublasLtMatmulHeuristicResult_t* used = &plan.proposal[plan.current];
        if (choice == 0) {
            first = best = s;
            printf("%-28s %-30s %9.1f us %8.1f TFLOP/s, algorithm %d, split-K %d, %zu bytes", name, size, s * 1e6,
                   flops / s * 1e-12, algo_value(&used->algo, CUBLASLT_ALGO_CONFIG_ID),
                   algo_value(&used->algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM), used->workspaceSize);
        }
        if (s < best) best = s, fastest = plan.current;
    }
    matmul_free(&mm);
    printf("; proposal %d is best: %.1f us\n", fastest + 1, best * 1e6);
    return first;
}

// Seconds of the three products of a linear layer.
static double bench_linear(Bench* bench, int rows, int in, int out) {
    const size_t nx = (size_t)rows * in, ny = (size_t)rows * out, nw = (size_t)out * in;
    bf16 *x = bench_random<bf16>(bench, nx, 0, 1), *y = bench_random<bf16>(bench, ny, 0, 1e-3f),
         *w = bench_random<bf16>(bench, nw, 0, 0.02f), *dx = bench_buffer<bf16>(bench, nx);
    float* dw = bench_buffer<float>(bench, nw);
    double s = bench_product(bench, "dx", dense_product(dx, y, w, PRODUCT_NN, rows, in, out));
    s += bench_product(bench, "dw", dense_product(dw, y, x, PRODUCT_TN, out, in, rows));
    s += bench_product(bench, "y", dense_product(y, x, w, PRODUCT_NT, rows, out, in));
    bench_free_buffers(bench);
    return s;
}

// Seconds of a step of Muon's iteration for matrices (rows,C), rows at least C. Those of (C,rows) have the same shapes.
static double bench_muon(Bench* bench, int layers, int rows, int C) {
    const int64_t n = (int64_t)rows * C, square = (int64_t)C * C;
    bf16 *x = bench_random<bf16>(bench, layers * n, 0, 0.02f), *y = bench_buffer<bf16>(bench, layers * n),
         *A = bench_buffer<bf16>(bench, layers * square), *P = bench_buffer<bf16>(bench, layers * square);
    Product<bf16, bf16> gram = dense_product(A, x, x, rows > C ? PRODUCT_TN : PRODUCT_NT, C, C, rows),
                        sum = dense_product(P, A, A, PRODUCT_NN, C, C, C),
                        next = dense_product(y, x, P, PRODUCT_NN, rows, C, C);
    gram.count = sum.count = next.count = layers;
    gram.c_step = sum.c_step = sum.a_step = sum.b_step = next.b_step = square;
    gram.a_step = gram.b_step = next.c_step = next.a_step = n;
    sum.beta = next.beta = 1.0f, sum.source = A, next.source = x;
    double s = bench_product(bench, "muon A", gram);
    s += bench_product(bench, "muon polynomial", sum);
    s += bench_product(bench, "muon x", next);
    bench_free_buffers(bench);
    return s;
}

int main() {
    enum { LAYERS = 12, C = 768, V = 50304, ROWS = 65536, N = 8192 };
    Bench bench = bench_open();
    bf16 *x = bench_random<bf16>(&bench, (size_t)N * N, 0, 1), *y = bench_buffer<bf16>(&bench, (size_t)N * N);
    bench_product(&bench, "square", dense_product(y, x, x, PRODUCT_NT, N, N, N));
    bench_free_buffers(&bench);
    const int rows = (int)classifier_rows(ROWS, V, sizeof(bf16));
    const double step = LAYERS * (2 * bench_linear(&bench, ROWS, C, C) + bench_linear(&bench, ROWS, C, 4 * C) +
                                  bench_linear(&bench, ROWS, 4 * C, C)) +
                        bench_linear(&bench, rows, C, V) * ROWS / rows;
    printf("%-28s %-30s %9.1f us from the sum of its products\n", "step_matmuls", "bf16 65536 rows", step * 1e6);
    const double muon = TOST_MUON_STEPS * 2 * (bench_muon(&bench, LAYERS, C, C) + bench_muon(&bench, LAYERS, 4 * C, C));
    printf("%-28s %-30s %9.1f us from the sum of its products\n", "muon_matmuls", "bf16", muon * 1e6);
    bench_close(&bench);
    return 0;
}
