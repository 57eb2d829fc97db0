// bench_matmul.cu: the matrix products of one tost-base step of 65,536 tokens by shape, called as the engine does, with
// the algorithms that cuBLASLt's heuristic proposes first, a large square product as the upper limit, and Muon's.
#include "bench.cuh"

static int algo_value(const cublasLtMatmulAlgo_t* algo, cublasLtMatmulAlgoConfigAttributes_t which) {
    int value = 0;
    CUBLAS_CHECK(cublasLtMatmulAlgoConfigGetAttribute(algo, which, &value, sizeof value, NULL));
    return value;
}

// Seconds of p with the first proposal; prints them, what it is, and the best of all proposals.
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
    for (int choice = 0; choice < plan.n_proposals; choice = plan.used + 1) {
        plan.used = choice;   // matmul goes on to the next if cuBLASLt refuses this one
        const double s = bench_seconds(bench, [&] { matmul(&mm, p); });
        const cublasLtMatmulHeuristicResult_t* used = &plan.proposal[plan.used];
        if (choice == 0) {
            first = best = s;
            printf("%-28s %-30s %9.1f us %8.1f TFLOP/s, algorithm %d, split-K %d, %zu bytes", name, size, s * 1e6,
                   flops / s * 1e-12, algo_value(&used->algo, CUBLASLT_ALGO_CONFIG_ID),
                   algo_value(&used->algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM), used->workspaceSize);
        }
        if (s < best) best = s, fastest = plan.used;
    }
    matmul_free(&mm);
    printf("; proposal %d is best: %.1f us\n", fastest + 1, best * 1e6);
    return first;
}

// Seconds of the three products of a linear layer.
static double bench_linear(Bench* bench, int rows, int in, int out) {
    typedef Product<bf16, bf16> Narrow;
    typedef Product<bf16, float> Wide;
    const size_t nx = (size_t)rows * in, ny = (size_t)rows * out, nw = (size_t)out * in;
    bf16 *x = bench_random<bf16>(bench, nx, 0, 1), *y = bench_random<bf16>(bench, ny, 0, 1e-3f),
         *w = bench_random<bf16>(bench, nw, 0, 0.02f), *dx = bench_buffer<bf16>(bench, nx);
    float* dw = bench_buffer<float>(bench, nw);
    double s = bench_product(bench, "dx", Narrow{dx, y, w, false, false, rows, in, out, in, out, in, 0.0f, NULL});
    s += bench_product(bench, "dw", Wide{dw, y, x, true, false, out, in, rows, in, out, in, 0.0f, NULL});
    s += bench_product(bench, "y", Narrow{y, x, w, false, true, rows, out, in, out, in, in, 0.0f, NULL});
    bench_free_buffers(bench);
    return s;
}

// Seconds of a step of Muon's iteration for matrices (rows,C), rows at least C. Those of (C,rows) have the same shapes.
static double bench_muon(Bench* bench, int layers, int rows, int C) {
    typedef Product<bf16, bf16> Batch;
    const int64_t n = (int64_t)rows * C, square = (int64_t)C * C;
    bf16 *x = bench_random<bf16>(bench, layers * n, 0, 0.02f), *y = bench_buffer<bf16>(bench, layers * n),
         *A = bench_buffer<bf16>(bench, layers * square), *P = bench_buffer<bf16>(bench, layers * square);
    double s = bench_product(bench, "muon A", Batch{A, x, x, rows > C, rows <= C, C, C, rows, C, C, C, 0.0f, NULL, 1.0f,
                                                    NULL, layers, square, n, n});
    s += bench_product(bench, "muon polynomial", Batch{P, A, A, false, false, C, C, C, C, C, C, 1.0f, NULL, 1.0f, A,
                                                       layers, square, square, square});
    s += bench_product(bench, "muon x", Batch{y, x, P, false, false, rows, C, C, C, C, C, 1.0f, NULL, 1.0f, x,
                                              layers, n, n, square});
    bench_free_buffers(bench);
    return s;
}

int main() {
    enum { LAYERS = 12, C = 768, V = 50304, ROWS = 65536, N = 8192 };
    Bench bench = bench_open();
    bf16 *x = bench_random<bf16>(&bench, (size_t)N * N, 0, 1), *y = bench_buffer<bf16>(&bench, (size_t)N * N);
    bench_product(&bench, "square", Product<bf16, bf16>{y, x, x, false, true, N, N, N, N, N, N, 0.0f, NULL});
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
