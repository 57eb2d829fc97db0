// test_slices.c: the bits of a result do not depend on where it is in memory. Threads divide arrays at any element, so
// each kernel of the CPU engine runs on slices of all starts and lengths, or on arrays that are moved by some floats.
#define TOST_NO_MAIN
#include "train_gpt_tost.c"

#include "base/rng.h"
#include "dev/test/check.h"

enum { ARRAYS = 8, LENGTH = 400, SHIFTS = 17, LONGEST = 70 };   // floats; SHIFTS: all offsets in a vector of AVX-512

// Outputs and inputs; wide: for sums in double. Each has LENGTH elements, of which a kernel uses the first ones.
typedef struct { float* x[ARRAYS]; double* wide[2]; } Arrays;
typedef void Kernel(Arrays a, int n);

// ---- pointwise kernels: element i of an output depends only on the elements i of the inputs -------------------------
static void run_round_bf16(Arrays a, int n) { round_bf16(a.x[0], n); }
static void run_linear_bias(Arrays a, int n) {
    const float x = 1;
    linear_forward(a.x[0], f32(&x), f32(a.x[1]), a.x[2], 1, 1, n);
}
static void run_residual_forward(Arrays a, int n) { residual_forward(a.x[0], a.x[1], a.x[2], a.x[3], 1, n); }
static void run_residual_backward(Arrays a, int n) { residual_backward(a.x[0], a.x[1], a.x[2], a.x[3], a.x[4], 1, n); }
static void run_combine(Arrays a, int n) { combine(a.x[0], 0.3, a.x[1], 0.7, n); }
static void run_gelu_forward(Arrays a, int n) {
    uint16_t in_bf16[LENGTH];
    memcpy(a.x[2], a.x[1], n * sizeof(float));
    gelu_forward(a.x[0], NULL, a.x[1], n);
    gelu_forward(NULL, in_bf16, a.x[2], n);
    for (int i = 0; i < n; i++) a.x[3][i] = bf16_to_float(in_bf16[i]);
}
static void run_gelu_backward(Arrays a, int n) {
    uint16_t in_bf16[LENGTH];
    gelu_backward(a.x[1], in_bf16, a.x[2], n);
    for (int i = 0; i < n; i++) a.x[0][i] = bf16_to_float(in_bf16[i]);
    gelu_backward(a.x[1], NULL, a.x[2], n);
}
static void run_muon_momentum(Arrays a, int n) {
    muon_momentum(a.x[0], a.x[1], n, &(TostUpdate){.momentum = 0.95, .clip = 0.9});
}
static void run_adamw(Arrays a, int n) {
    const TostUpdate update = {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .clip = 0.7, .step = 3};
    for (int i = 0; i < n; i++) a.x[2][i] = fabsf(a.x[2][i]);   // v
    adamw(a.x[0], a.x[1], a.x[2], a.x[3], n, 0.1, &update);
}
static void run_conv_forward(Arrays a, int n) {   // of one token: x[1] to x[4] are the weights, x[5] is the input
    float weight[4 * LENGTH], before[3 * LENGTH];
    for (int i = 0; i < 4 * n; i++) weight[i] = a.x[1 + i % 4][i / 4];
    for (int i = 0; i < 3 * n; i++) before[i] = a.x[6][i % n];
    conv_forward(a.x[0], before, a.x[5], &(Conv){.B = 1, .T = 1, .C = n, .weight = weight});
}

// ---- kernels with sums over n elements, at T tokens -----------------------------------------------------------------
enum { T = 5 };

static void run_layernorm_forward(Arrays a, int n) {
    layernorm_forward(a.x[0], a.x[1], a.x[2], a.x[3], a.x[4], a.x[5], T, n);
}
static void run_layernorm_backward(Arrays a, int n) {
    float mean[T], rstd[T];
    for (int t = 0; t < T; t++) mean[t] = 0.1f * t, rstd[t] = 1.1f;
    layernorm_backward(a.x[0], a.x[1], a.x[2], a.x[3], a.x[4], mean, rstd, a.x[5], T, n);
}
static void run_cross_entropy(Arrays a, int n) {
    cross_entropy(a.wide[0], a.x[0], NULL, (int32_t[T]){0, n - 1, 0, -1, n / 2}, true, 0.3f, T, n);
}
static void run_conv_backward(Arrays a, int n) {
    const Conv args = {.B = 1, .T = T, .C = n, .weight = a.x[3], .stride = 3 * (size_t)n};
    conv_backward(a.x[0], a.x[1], a.x[2], a.x[4], a.x[5], &args);
}
static void set_pi(float* pi, float* u, int n) {
    for (int i = 0; i < n; i++) pi[i] = 0.1f + 0.7f * i / n, u[i] = 2.0f / (i + 1);
}
static Tssa tssa_args(Arrays a, int n, float* pi, float* u, double* scratch) {
    static const float temp[1] = {0.8f};
    set_pi(pi, u, T);
    for (int i = 0; i < 2 * n + 1; i++) a.wide[0][i] = fabs(a.wide[0][i]);
    return (Tssa){.B = 1, .T = T, .C = n, .NH = 1, .HS = n, .z = a.x[1], .temp = temp, .u = u, .pi = pi, .y = a.x[0],
                  .stride = 2 * (2 * (size_t)n + 1), .state = a.wide[0], .scratch = scratch};
}
static void run_tssa_forward(Arrays a, int n) {
    float pi[T], u[T];
    double scratch[(TSSA_BLOCK + 1) * (LONGEST + 2)];
    const Tssa args = tssa_args(a, n, pi, u, scratch);
    tssa_forward(&args);
    memcpy(a.x[2], u, sizeof u);
}
static void run_tssa_backward(Arrays a, int n) {
    float pi[T], u[T], dtemp = 0;
    double scratch[(TSSA_BLOCK + 1) * (LONGEST + 2)];
    Tssa args = tssa_args(a, n, pi, u, scratch);
    args.saved = a.wide[0];
    args.adjoint = a.wide[1];
    args.dy = a.x[2];
    args.dz = a.x[3];
    args.dpi = args.dscore = a.x[4];
    args.dtemp = &dtemp;
    tssa_backward(&args);
    a.x[5][0] = dtemp;
}
// The memory, with a head of n channels: its state, G and adjoint have n·n + 2n floats.
static void run_delta_rule(Arrays a, int n) {
    enum { MOST = LONGEST * (LONGEST + 2) };
    static float state[MOST], G[MOST], before[MOST], adjoint[MOST];
    float pi[T], u[T], *scratch = xmalloc(delta_rule_scratch_size(n) * sizeof *scratch);
    for (int i = 0; i < n * (n + 2); i++) {
        state[i] = before[i] = 0.1f * a.x[0][i % LENGTH];
        adjoint[i] = 0.1f * a.x[1][i % LENGTH];
    }
    set_pi(pi, u, T);
    const DeltaRule args = {.B = 1, .T = T, .C = n, .NH = 1, .HS = n, .z = a.x[2], .pi = pi, .o = a.x[3], .G = G,
                            .stride = (size_t)n * (n + 2), .state = state, .scratch = scratch, .before = before,
                            .d_o = a.x[4], .dz = a.x[4], .dpi = a.x[5], .adjoint = adjoint};
    delta_rule_forward(&args);
    delta_rule_backward(&args);
    memcpy(a.x[6], adjoint, n * sizeof *adjoint);
    free(scratch);
}

// ---- comparison -----------------------------------------------------------------------------------------------------
typedef struct { float x[ARRAYS][LENGTH + SHIFTS]; double wide[2][LENGTH + SHIFTS]; } Memory;

static Arrays arrays_at(Memory* m, int shift) {
    Arrays a;
    for (int i = 0; i < ARRAYS; i++) a.x[i] = m->x[i] + shift;
    for (int i = 0; i < 2; i++) a.wide[i] = m->wide[i] + shift;
    return a;
}

// Random numbers, the same at any shift: elements `from` and later of the arrays
static void fill(Arrays a, int from) {
    for (int k = 0; k < ARRAYS + 2; k++) {
        Rng rng = rng_seeded(5, k);
        for (int i = 0; i < LENGTH; i++) {
            const double value = rng_normal(&rng);
            if (i < from) continue;
            if (k < ARRAYS) a.x[k][i - from] = (float)value;
            else a.wide[k - ARRAYS][i - from] = value;
        }
    }
}

// Elements of all arrays whose bits differ
static int differing(Arrays a, Arrays b, int n) {
    int count = 0;
    for (int k = 0; k < ARRAYS; k++)
        for (int i = 0; i < n; i++) count += memcmp(a.x[k] + i, b.x[k] + i, sizeof(float)) != 0;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < n; i++) count += memcmp(a.wide[k] + i, b.wide[k] + i, sizeof(double)) != 0;
    return count;
}

// The kernel on n elements from `start` on gives the same bits as on all of them.
static void check_slices(Checks* c, const char* name, Kernel* kernel) {
    static Memory all, slice;
    int wrong = 0;
    fill(arrays_at(&all, 0), 0);
    kernel(arrays_at(&all, 0), SHIFTS + LONGEST);
    for (int start = 0; start < SHIFTS; start++)
        for (int n = 1; n <= LONGEST; n++) {
            fill(arrays_at(&slice, start), start);
            kernel(arrays_at(&slice, start), n);
            wrong += differing(arrays_at(&slice, start), arrays_at(&all, start), n);
        }
    check(c, wrong == 0, "%s: %d elements of slices differ in bits from those of the whole", name, wrong);
}

// The kernel gives the same bits if all arrays are moved.
static void check_moved(Checks* c, const char* name, Kernel* kernel) {
    static Memory first, moved;
    int wrong = 0;
    for (int n = 1; n <= LONGEST; n += n < 20 ? 1 : 5) {
        fill(arrays_at(&first, 0), 0);
        kernel(arrays_at(&first, 0), n);
        for (int shift = 1; shift < SHIFTS; shift++) {
            fill(arrays_at(&moved, shift), 0);
            kernel(arrays_at(&moved, shift), n);
            wrong += differing(arrays_at(&moved, shift), arrays_at(&first, 0), LENGTH);
        }
    }
    check(c, wrong == 0, "%s: %d elements differ in bits if the arrays are moved", name, wrong);
}

int main(void) {
    Checks c = {.suite = "slices"};
    threads_set(1);   // the slices are those of any number of threads
#define SLICES(name) check_slices(&c, #name, run_##name);
#define MOVED(name) check_moved(&c, #name, run_##name);
    SLICES(round_bf16) SLICES(linear_bias) SLICES(residual_forward) SLICES(residual_backward) SLICES(combine)
    SLICES(gelu_forward) SLICES(gelu_backward) SLICES(muon_momentum) SLICES(adamw) SLICES(conv_forward)
    MOVED(layernorm_forward) MOVED(layernorm_backward) MOVED(cross_entropy) MOVED(conv_backward)
    MOVED(tssa_forward) MOVED(tssa_backward) MOVED(delta_rule)
    return checks_verdict(&c);
}
