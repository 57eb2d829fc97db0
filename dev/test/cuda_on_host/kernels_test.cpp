// kernels_test.cpp: the CUDA engine as it stands, and tests of launchers at sizes that no little model
// reaches.
#define TOST_NO_MAIN
#include "train_gpt_tost.cu"

#include "shim_test.h"

namespace {

typedef std::vector<float> Floats;

// An array in device memory that starts as a copy of the host's.
struct DeviceArray {
    float* p = nullptr;
    size_t n;
    explicit DeviceArray(const Floats& x) : n(x.size()) {
        cudaMalloc(&p, n * sizeof *p);
        cudaMemcpy(p, x.data(), n * sizeof *p, cudaMemcpyHostToDevice);
    }
    ~DeviceArray() { cudaFree(p); }
    Floats get() const {
        Floats x(n);
        cudaMemcpy(x.data(), p, n * sizeof *p, cudaMemcpyDeviceToHost);
        return x;
    }
};

// Numbers of no pattern in [-1, 1].
Floats numbers(size_t n, unsigned seed) {
    Floats x(n);
    for (float& v : x) {
        seed = seed * 1664525u + 1013904223u;
        v = (float)(seed >> 8) / (float)(1 << 23) - 1.0f;
    }
    return x;
}

void near(Checks* c, const char* name, int C, const Floats& got, const std::vector<double>& want) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < want.size(); i++) {
        difference += (got[i] - want[i]) * (got[i] - want[i]);
        norm += want[i] * want[i];
    }
    check(c, difference <= 1e-10 * norm, "%s of %d channels: relative L2 error %.3e", name, C,
          sqrt(difference / norm));
}

// The residual's LayerNorm and the way back through it, against the formulas in double.
struct NormTruth {
    std::vector<double> x_out, y, mean, rstd, dx, dbranch, dw, db, dgamma, dbias;
    NormTruth(const Floats& x, const Floats& branch, const Floats& gamma, const Floats& w, const Floats& b,
              const Floats& dy, const Floats& dx_in, size_t rows, size_t C)
        : x_out(rows * C), y(rows * C), mean(rows), rstd(rows), dx(rows * C), dbranch(rows * C), dw(C, 1.0),
          db(C, 1.0), dgamma(C, 1.0), dbias(C, 1.0) {
        for (size_t r = 0; r < rows; r++) {
            double variance = 0, mean_g = 0, mean_gn = 0;
            const size_t at = r * C;
            for (size_t i = 0; i < C; i++) {
                x_out[at + i] = x[at + i] + (double)gamma[i] * branch[at + i];
                mean[r] += x_out[at + i] / (double)C;
            }
            for (size_t i = 0; i < C; i++) variance += pow(x_out[at + i] - mean[r], 2) / (double)C;
            rstd[r] = 1 / sqrt(variance + TOST_LN_EPS);
            for (size_t i = 0; i < C; i++) {
                const double n = (x_out[at + i] - mean[r]) * rstd[r], g = (double)dy[at + i] * w[i];
                y[at + i] = n * w[i] + b[i];
                mean_g += g / (double)C;
                mean_gn += g * n / (double)C;
            }
            for (size_t i = 0; i < C; i++) {
                const double n = (x_out[at + i] - mean[r]) * rstd[r], g = (double)dy[at + i] * w[i];
                dx[at + i] = dx_in[at + i] + rstd[r] * (g - mean_g - n * mean_gn);
                dbranch[at + i] = gamma[i] * dx[at + i];
                dw[i] += dy[at + i] * n;
                db[i] += dy[at + i];
                dgamma[i] += dx[at + i] * branch[at + i];
                dbias[i] += dbranch[at + i];
            }
        }
    }
};

void test_norm(Checks* c, int C, size_t rows) {
    const size_t n = rows * (size_t)C;
    const Floats x = numbers(n, 1), branch = numbers(n, 2), gamma = numbers((size_t)C, 3);
    const Floats w = numbers((size_t)C, 4), b = numbers((size_t)C, 5), dy = numbers(n, 6), dx = numbers(n, 7);
    const NormTruth truth(x, branch, gamma, w, b, dy, dx, rows, (size_t)C);
    const DeviceArray on_x(x), on_branch(branch), on_gamma(gamma), on_w(w), on_b(b), on_dy(dy), on_dx(dx);
    const DeviceArray x_out{Floats(n)}, y{Floats(n)}, mean{Floats(rows)}, rstd{Floats(rows)},
        dbranch{Floats(n)};
    const Floats ones((size_t)C, 1.0f);
    const DeviceArray dw(ones), db(ones), dgamma(ones), dbias(ones),
        partial{Floats((size_t)COLUMN_BLOCKS * 4 * (size_t)C)};
    residual_layernorm_forward(nullptr, x_out.p, y.p, mean.p, rstd.p, on_x.p, on_branch.p, on_gamma.p, on_w.p,
                               on_b.p, rows, C);
    layernorm_residual_backward(nullptr, on_dx.p, dbranch.p, dw.p, db.p, dgamma.p, dbias.p, partial.p,
                                on_dy.p, x_out.p, mean.p, rstd.p, on_w.p, on_branch.p, on_gamma.p, true, rows, C);
    near(c, "residual", C, x_out.get(), truth.x_out);
    near(c, "layernorm", C, y.get(), truth.y);
    near(c, "mean", C, mean.get(), truth.mean);
    near(c, "rstd", C, rstd.get(), truth.rstd);
    near(c, "dx", C, on_dx.get(), truth.dx);
    near(c, "dbranch", C, dbranch.get(), truth.dbranch);
    near(c, "dw", C, dw.get(), truth.dw);
    near(c, "db", C, db.get(), truth.db);
    near(c, "dgamma", C, dgamma.get(), truth.dgamma);
    near(c, "dbias", C, dbias.get(), truth.dbias);
}

// Φ and the bell of GELU at every bf16 number
void test_normal(Checks* c) {
    double cdf_worst = 0, tail_worst = 0, bell_worst = 0;
    bool finite = true;
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float x;
        const uint32_t word = bits << 16;
        memcpy(&x, &word, sizeof x);
        if (std::isnan(x)) continue;
        const float bell = normal_bell(x), cdf = normal_cdf(x, bell);
        const double truth = 0.5 * erfc(-(double)x / sqrt(2.0));
        finite = finite && std::isfinite(cdf) && std::isfinite(bell);
        cdf_worst = fmax(cdf_worst, fabs(cdf - truth));
        if (x > -9 && x < 0) tail_worst = fmax(tail_worst, fabs(cdf / truth - 1));
        bell_worst = fmax(bell_worst, fabs(bell - exp(-0.5 * (double)x * x)));
    }
    check(c, finite && cdf_worst < 4e-7 && tail_worst < 5e-6 && bell_worst < 4e-7,
          "normal_cdf: off by %.2e, in its lower tail by %.2e of itself; normal_bell by %.2e", cdf_worst, tail_worst,
          bell_worst);
}

// Losses and gradients of the classifier over 300 rows, in chunks of so many.
struct ClassifierResult { std::vector<double> loss, dx, dwte; };

ClassifierResult classified(size_t chunk) {
    const size_t rows = 300;
    const int C = 8, V = 43;
    const Floats x = numbers(rows * C, 1), wte = numbers((size_t)V * C, 2);
    StepHeader header = {};
    header.grad_scale = 0.25f;
    Floats step(sizeof header / sizeof(float)), targets(rows);
    memcpy(step.data(), &header, sizeof header);
    for (size_t row = 0; row < rows; row++) {
        const int32_t target = row % 7 == 3 ? -1 : (int32_t)(row % (size_t)V);
        memcpy(&targets[row], &target, sizeof target);
    }
    const DeviceArray on_x(x), on_wte(wte), on_step(step), on_targets(targets), loss{Floats(rows)},
        dx{Floats(rows * C)}, dwte{Floats((size_t)V * C)}, logits{Floats(chunk * logits_ld(V))},
        workspace{Floats(MATMUL_WORKSPACE / sizeof(float))};
    Matmul mm = {};
    cublasLtCreate(&mm.handle);
    mm.workspace = workspace.p;
    classifier_forward_backward(&mm, (double*)nullptr, loss.p, dx.p, dwte.p, logits.p, on_x.p, on_wte.p,
                                (const int32_t*)on_targets.p, (const StepHeader*)on_step.p, rows, chunk, V, C);
    const auto doubles = [](const Floats& f) { return std::vector<double>(f.begin(), f.end()); };
    const ClassifierResult result = {doubles(loss.get()), doubles(dx.get()), doubles(dwte.get())};
    matmul_free(&mm);
    return result;
}

void test_classifier_chunks(Checks* c) {
    const ClassifierResult whole = classified(300), parts = classified(128);
    const auto floats = [](const std::vector<double>& d) { return Floats(d.begin(), d.end()); };
    near(c, "losses in chunks", 8, floats(parts.loss), whole.loss);
    near(c, "dx in chunks", 8, floats(parts.dx), whole.dx);
    near(c, "dwte in chunks", 8, floats(parts.dwte), whole.dwte);
}

}  // namespace

void test_kernels(Checks* c) {
    test_classifier_chunks(c);
    test_normal(c);
    // at and just beyond what each of the kernels holds, in packs of 4 and alone
    for (const int C : {3, 768, 1024, 1028, 2048, 2049, 2052}) test_norm(c, C, 5);
    // more rows than blocks: each goes round
    for (const int C : {3, 60, 1028}) test_norm(c, C, 1200);
}
