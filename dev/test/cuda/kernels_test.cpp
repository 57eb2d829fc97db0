// kernels_test.cpp: includes the CUDA engine and tests its kernels one by one, with sizes that small models do not use.
#define TOST_NO_MAIN
#include "train_gpt_tost.cu"

#include <sys/resource.h>

#include "dev/test/engine/engines.h"
#include "emulation_test.h"

extern "C" {
#include "dev/test/cuda/cpu_layers.h"
}

static_assert((int)TSSA_RUN == (int)CUDA_RUN, "engines.h tests sizes at the boundaries of runs");

namespace {

typedef std::vector<double> Doubles;
typedef std::vector<float> Floats;
typedef Device<float> DeviceArray;

// Pseudorandom numbers in [-1, 1), rounded to S
template <typename S = float> Floats numbers(size_t n, unsigned seed) {
    Floats x(n);
    for (float& v : x) {
        seed = seed * 1664525u + 1013904223u;
        v = to_float(S((float)(seed >> 8) / (float)(1 << 23) - 1.0f));
    }
    return x;
}

// Limits of relative L2 error: of float sums; of results rounded to S
constexpr double SUMS = 1e-5;
template <typename S> double stored() { return sizeof(S) == sizeof(float) ? SUMS : 0x1p-8; }

// The error of each of `columns` interleaved columns counts alike, however small its values are.
template <typename Want>
void near(Checks* c, const char* name, int C, const Floats& got, const Want& want, double limit = SUMS,
          size_t columns = 1) {
    Doubles difference(columns), norm(columns);
    double mean = 0;
    for (size_t i = 0; i < want.size(); i++) {
        difference[i % columns] += pow((double)got[i] - want[i], 2);
        norm[i % columns] += pow(want[i], 2);
    }
    for (size_t i = 0; i < columns; i++)
        mean += (norm[i] > 0 ? difference[i] / norm[i] : difference[i]) / (double)columns;
    check(c, mean <= limit * limit, "%s of %d channels: relative L2 error %.3e", name, C, sqrt(mean));
}

// The input of x + gamma branch and its LayerNorm. Without a branch (empty), there is no earlier gradient of x, either.
// Gradients of parameters start at `before` and are added to; if before is 0, they are overwritten.
struct NormInput { size_t rows; Floats x, branch, gamma, w, b, dy, dx; float before; };
struct NormOutput { Floats x, y, mean, rstd, dx, dbranch, dw, db, dgamma, dbias; };

NormOutput norm_on_cpu(const NormInput& k) {
    const Floats none(k.x.size()), zeros(k.w.size()), before(k.w.size(), k.before);
    const bool bare = k.branch.empty();
    NormOutput r = {none, none, Floats(k.rows), Floats(k.rows), bare ? none : k.dx,
                    none, before, before, zeros, before};
    const CpuNorm cpu = {k.x.data(), (bare ? none : k.branch).data(), (bare ? zeros : k.gamma).data(), k.w.data(),
                         (k.b.empty() ? zeros : k.b).data(), k.dy.data(), r.x.data(), r.y.data(), r.mean.data(),
                         r.rstd.data(), r.dx.data(), r.dbranch.data(), r.dw.data(), r.db.data(), r.dgamma.data()};
    cpu_norm(&cpu, k.rows, (int)k.w.size());
    for (size_t i = 0; i < r.dbranch.size(); i++) r.dbias[i % k.w.size()] += r.dbranch[i];
    return r;
}

// Without mean and dgamma. The pointers of empty arrays are null.
template <typename S> NormOutput norm_on_gpu(const NormInput& k) {
    const int C = (int)k.w.size();
    const bool whole = !k.branch.empty(), add = k.before != 0;
    const float before = add ? k.before : NAN;
    const Device<S> branch(k.branch), dy(k.dy), y(k.x.size()), dbranch(k.branch.size());
    const DeviceArray x(k.x), gamma(k.gamma), w(k.w), b(k.b), rstd(k.rows), dx(whole ? k.dx : Floats(k.x.size(), NAN)),
        dw(Floats(k.w.size(), before)), db(Floats(k.b.size(), before)), dbias(Floats(whole ? k.w.size() : 0, before)),
        partial(COLUMN_BLOCKS * 3 * k.w.size());
    ColumnSums sums = {partial.p, partial.p + partial.n, 0, {}};
    residual_layernorm_forward<S>(nullptr, {x.p, y.p, rstd.p, branch.p, gamma.p, w.p, b.p, k.rows, C});
    layernorm_residual_backward<S>(nullptr, dw.p, db.p, dbias.p, &sums, {
        dx.p, dbranch.p, dy.p, y.p, rstd.p, w.p, b.p, gamma.p, whole, k.rows, C, nullptr});
    vector_gradients<S>(nullptr, sums, {}, add);
    return {x.get(), y.get(), {}, rstd.get(), dx.get(), dbranch.get(), dw.get(), db.get(), {}, dbias.get()};
}

// bare: without a branch, biases and an earlier gradient of x. In bf16, all gradients but db have the error of n: the
// rounding error of y, divided by w.
template <typename S> void test_norm(Checks* c, int C, size_t rows, bool bare = false) {
    const size_t n = rows * (size_t)C, width = (size_t)C;
    constexpr size_t IN = 7;   // of the Linear that computes the branch
    const Floats in = numbers<S>(rows * IN, 2), linear_w = numbers<S>(width * IN, 8), linear_b = numbers<S>(width, 9);
    NormInput k = {rows, numbers(n, 1), Floats(bare ? 0 : n), numbers(bare ? 0 : width, 3), numbers(width, 4),
                   numbers(bare ? 0 : width, 5), numbers<S>(n, 6), numbers(n, 7), 1.0f};
    for (size_t i = 0; i < k.branch.size(); i++) {
        k.branch[i] = linear_b[i % width];
        for (size_t j = 0; j < IN; j++) k.branch[i] += linear_w[i % width * IN + j] * in[i / width * IN + j];
        k.branch[i] = to_float(S(k.branch[i]));
    }
    if (!bare) k.gamma[0] = 0.0f;
    const NormOutput want = norm_on_cpu(k), got = norm_on_gpu<S>(k);
    near(c, "layernorm", C, got.y, want.y, stored<S>());
    near(c, "rstd", C, got.rstd, want.rstd);
    near(c, "dx", C, got.dx, want.dx, stored<S>());
    near(c, "dw", C, got.dw, want.dw, 8 * stored<S>());
    if (bare) return;
    near(c, "residual", C, got.x, want.x);
    near(c, "dbranch", C, got.dbranch, want.dbranch, stored<S>());
    near(c, "db", C, got.db, want.db);
    near(c, "dbias", C, got.dbias, want.dbias, stored<S>());
    Floats linear_dw(width * IN), linear_db(width);
    for (size_t i = 0; i < n; i++) {
        linear_db[i % width] += got.dbranch[i];
        for (size_t j = 0; j < IN; j++) linear_dw[i % width * IN + j] += got.dbranch[i] * in[i / width * IN + j];
    }
    const Device<S> on_linear_w(linear_w), on_linear_b(linear_b);
    const DeviceArray gamma(k.gamma), on_linear_dw(linear_dw), on_linear_db(linear_db), dgamma(width);
    gamma_backward(nullptr, dgamma.p, gamma.p, on_linear_dw.p, on_linear_db.p, on_linear_w.p, on_linear_b.p, C, IN);
    near(c, "dgamma", C, dgamma.get(), want.dgamma, stored<S>());
}

// Gradients with weights so small that y holds little of n, or nothing. dw: each channel's error has the same share.
template <typename S> void test_small_weights(Checks* c, bool bias, double limit_dx, double limit_dw) {
    constexpr int C = 60, ROWS = 1200;
    NormInput k = {ROWS, numbers(ROWS * C, 1), {}, {}, numbers(C, 2), numbers(bias ? C : 0, 3), numbers(ROWS * C, 4),
                   {}, 0.0f};
    for (int i = 0; i < ROWS * C; i++) k.dy[i] = to_float(S(k.dy[i] + k.x[i]));
    for (float& w : k.w) w = 1.5f + w;
    k.w[0] = 0.0f, k.w[1] = 1e-3f, k.w[2] = -1e-9f;
    for (int i = 0; bias && i < 3; i++) k.b[i] = 0.3f;
    const NormOutput want = norm_on_cpu(k), got = norm_on_gpu<S>(k);
    near(c, bias ? "dx of small weights with biases" : "dx of small weights", C, got.dx, want.dx, limit_dx);
    near(c, bias ? "dw of small weights with biases" : "dw of small weights", C, got.dw, want.dw, limit_dw, C);
}

// ---------------------------------------------------------------------------------------------
// The memory

// out (16,16) = a (16,depth) · b (depth,16)
template <typename S> __global__ void tile_kernel(float* out, const float* a, const float* b, int depth) {
    Tile<S> tile;
    tile.add(Operand<true, false>{a, depth, 0}, Operand<false, false>{b, TILE, 0}, depth);
    tile.each([&](int i, int j, float (&v)[4]) { store_pack<4>(out + i * TILE + j, v); });
}

// Operands of type S must have no error but that of float sums.
template <typename S> void test_tile(Checks* c) {
    constexpr int DEPTH = 4 * TILE;
    const Floats a = numbers<S>(TILE * DEPTH, 1), b = numbers<S>(DEPTH * TILE, 2);
    Doubles want(TILE * TILE);
    for (int i = 0; i < TILE * TILE; i++)
        for (int k = 0; k < DEPTH; k++)
            want[i] += (double)a[i / TILE * DEPTH + k] * b[k * TILE + i % TILE];
    const DeviceArray on_a(a), on_b(b), out(TILE * TILE);
    LAUNCH((tile_kernel<S>), 1, WARP, 0, nullptr, out.p, on_a.p, on_b.p, DEPTH);
    near(c, "tile", DEPTH, out.get(), want, 1e-6);
}

// Results of T tokens, with blocks of this many columns and segments of this many tokens: o, y, the state after and G,
// which do not depend on the columns; then the gradients, if `training`
template <typename S>
std::vector<Floats> delta_results(int columns, int HS, int T, int segment, bool training = true) {
    const int B = 2, NH = 2, C = NH * HS, segments = div_up(T, segment);
    const size_t rows = (size_t)B * T, n = rows * C, size = delta_rule_state_size((size_t)C, (size_t)HS),
                 kept = B * size, matrices = (size_t)segments * B * C * HS;
    const Device<S> z(numbers(n, 1)), dy(numbers(n, 2)), o(n), y(numbers(n, 3)), dz(n);
    const DeviceArray pi(Floats(rows * NH, 0.7f)), scale(numbers(C, 4)), G(2 * matrices), dG(matrices), dpi(rows * NH),
        dscale((size_t)segments * B * C), before(numbers(2 * kept, 5)), after(Floats(2 * kept)),
        dafter(numbers(2 * kept, 6)), dbefore(Floats(2 * kept));
    const size_t parts = (size_t)div_up((size_t)HS, (size_t)columns);
    DeltaRule<S> a = {B, T, C, NH, HS, columns, (int)parts, segment, segments, false, z.p, pi.p, scale.p, o.p, y.p, G.p,
                      {}, size, 0, dy.p, dz.p, nullptr, dpi.p, nullptr, dscale.p, dG.p, {}};
    const Device<S> dk_parts(parts * (rows + (size_t)segments * B) * NH * parts * columns);
    const DeviceArray dpi_parts(parts * rows * NH);
    a.state = {(const double*)before.p, (double*)after.p}, a.adjoint = {(const double*)dafter.p, (double*)dbefore.p};
    a.dk_parts = dk_parts.p, a.dpi_parts = dpi_parts.p;
    delta_rule_forward(nullptr, a);
    if (!training) return {o.get(), y.get(), after.get()};
    ColumnSums sums = {};
    delta_rule_backward(nullptr, nullptr, &sums, a);
    delta_rule_dz(nullptr, a);
    const Floats all_G = G.get(), all_dscale = dscale.get();
    const size_t last = matrices / segments;
    Floats after_all(all_G.begin() + (ptrdiff_t)(matrices - last), all_G.begin() + (ptrdiff_t)matrices), dscale_sum(C);
    for (size_t i = 0; i < all_dscale.size(); i++) dscale_sum[i % C] += all_dscale[i];
    return {o.get(), y.get(), after.get(), after_all, dz.get(), dpi.get(), dscale_sum, dbefore.get()};
}

// Blocks of 32 columns, which small models do not have, against those of 16; several segments, the last of them
// shorter, against one
template <typename S> void test_delta_rule(Checks* c, int HS) {
    const double limit = sizeof(S) > 2 ? SUMS : 1e-2;
    for (int segment = DELTA_RUN; segment <= 2 * DELTA_RUN; segment += DELTA_RUN) {
        const int T = 4 * segment + 9;
        const std::vector<Floats> one = delta_results<S>(TILE, HS, T, 5 * segment),
                                  narrow = delta_results<S>(TILE, HS, T, segment),
                                  wide = delta_results<S>(2 * TILE, HS, T, segment);
        for (size_t i = 0; i < 4; i++)
            check(c, wide[i] == narrow[i], "memory, columns: result %zu of %d channels", i, HS);
        for (size_t i = 4; i < 8; i++) near(c, "memory, columns", HS, wide[i], narrow[i], limit);
        for (size_t i = 0; i < 8; i++) near(c, "memory, segments", HS, wide[i], one[i], limit);
    }
}

// The widest heads that fit in inference
void test_wide_heads(Checks* c) {
    constexpr int HS = 432, T = 2 * DELTA_RUN;
    const std::vector<Floats> one = delta_results<bf16>(TILE, HS, T, T, false),
                              two = delta_results<bf16>(TILE, HS, T, DELTA_RUN, false);
    check(c, delta_rule_shared(HS + TILE, TILE, false) > MAX_ALLOWED_SHARED, "wider heads than %d fit", HS);
    for (size_t i = 0; i < one.size(); i++) near(c, "memory, wide heads", HS, two[i], one[i], 1e-2);
}

// ---------------------------------------------------------------------------------------------
// The convolution

// The first and last runs of a pass, which a thread takes channel by channel if the pass has a state
template <typename S> void test_conv(Checks* c) {
    const int B = 2, C = 12, state = CONV_BEFORE * C;
    for (int T = 1; T <= 3 * CONV_RUN + 1; T++) {
        const size_t n = (size_t)(B * T * C);
        const Floats x = numbers<S>(n, 1), weight = numbers(C * CONV_WIDTH, 2);
        Doubles want(n);
        for (int i = 0; i < (int)n; i++)
            for (int k = 0; k < CONV_WIDTH; k++)
                if (i / C % T + k >= CONV_BEFORE)
                    want[i] += (double)weight[i % C * CONV_WIDTH + k] * x[i + (k - CONV_BEFORE) * C];
        const Device<S> on_x(x), y(n), again(n);
        const DeviceArray on_weight(weight);
        const Device<double> before(Doubles((size_t)(B * state))), after(Doubles((size_t)(B * state), 1.0));
        Conv<S> a = {B, T, C, y.p, on_x.p, on_weight.p, {}, (size_t)state, 0, nullptr, nullptr, {}, nullptr};
        conv_forward(nullptr, a);
        near(c, "convolution", C, y.get(), want, stored<S>());
        a.y = again.p, a.state = {before.p, after.p};
        conv_forward(nullptr, a);
        check(c, again.get() == y.get(), "convolution of %d tokens: other bits with a state of zeros", T);
        const Floats end = after.get();   // copies of x, so exact
        for (int i = 0; i < B * state; i++) {
            const int t = T - CONV_BEFORE + i % state / C;
            check(c, end[i] == (t < 0 ? 0 : x[(size_t)((i / state * T + t) * C + i % C)]), "state after %d tokens", T);
        }
    }
}

// ---------------------------------------------------------------------------------------------
// TSSA

// A PassHeader for the position `first`
std::vector<int32_t> step_at(size_t first) {
    std::vector<int32_t> step(PASS_HEADER);
    step[0] = (int32_t)first;
    return step;
}

// faint: 1: z is tiny in some channels; 2: z is small, and tiny in the first steps
struct TssaCase { int C, NH, B, T; bool uniform; int faint; };

template <typename S> void test_tssa(Checks* c, const TssaCase& k) {
    const size_t B = (size_t)k.B, T = (size_t)k.T, C = (size_t)k.C, NH = (size_t)k.NH, first = 3, block = T + first,
                 heads = B * NH * T, runs = (size_t)div_up(T, TSSA_RUN), sums = tssa_sums_size(k.C, k.NH);
    const float weights[] = {1, 0, 1e-7f, 5e-7f};   // energies below TOST_ENERGY_MIN
    const Floats dy = numbers<S>(B * T * C, 2);
    Floats z = numbers(B * T * C, 1), temp = numbers(NH, 3), bias = numbers(NH * block, 4);
    for (size_t i = 0; i < z.size(); i++)
        z[i] = to_float(S(z[i] * (k.faint == 1   ? weights[i % C % 4]
                                  : k.faint == 2 ? i / C % T < 16 ? 1e-6f : 3e-2f
                                                 : 1.0f)));
    for (float& x : temp) x = k.uniform ? 0.0f : 1.0f + 0.3f * x;
    for (float& x : bias) x *= 0.05f;
    Floats want_u(heads), want_pi(heads), want_y(z), want_dz(z), want_dtemp(NH, 1.0f), want_dbias(NH * block, 1.0f);
    const CpuTssa cpu = {k.B, k.T, k.C, k.NH, (int)block, z.data(), dy.data(), temp.data(), bias.data() + first,
                         want_u.data(), want_pi.data(), want_y.data(), want_dz.data(),
                         k.uniform ? nullptr : want_dtemp.data(), want_dbias.data() + first};
    cpu_tssa(&cpu);
    const Device<S> on_z(z), on_dy(dy), y(z.size()), dz(z.size());
    const DeviceArray on_temp(temp), on_bias(bias), u(heads), pi(heads), dscore(heads), saved(B * runs * sums),
        back(saved.n), totals(B * scan_slots(runs) * sums), partial(NH * B * runs), dtemp(Floats(NH, 1.0f)),
        dbias(Floats(NH * block, 1.0f));
    const Device<int> step(step_at(first));
    Tssa<S> a = tssa_sizes<S>(k.B, k.T, k.C, k.NH);
    a.z = on_z.p, a.temp = on_temp.p, a.denom_bias = on_bias.p, a.block_size = (int)block;
    a.pass = (const PassHeader*)step.p, a.u = u.p, a.pi = pi.p, a.y = y.p, a.saved = saved.p, a.totals = totals.p;
    a.fixed_temp = k.uniform;
    a.dy = on_dy.p, a.dz = dz.p, a.dscore = dscore.p, a.dtemp_run = partial.p, a.dtemp = dtemp.p,
    a.ddenom_bias = dbias.p;
    a.saved_adjoint = back.p;
    const auto run = [&] {
        const Device<int> sync(std::vector<int>(tssa_sync_size(B, T))), again(std::vector<int>(sync.n));
        a.sync = sync.p;
        tssa_forward(nullptr, a);
        a.sync = again.p;
        tssa_backward(nullptr, a);
        return std::vector<Floats>{y.get(), dz.get(), u.get(), pi.get(), dscore.get(), partial.get()};
    };
    const std::vector<Floats> results = run();
    vector_gradients(nullptr, {}, a, true);
    near(c, "pi", k.C, pi.get(), want_pi);
    near(c, "y", k.C, y.get(), want_y, stored<S>(), C);
    near(c, "dz", k.C, dz.get(), want_dz, fmax(k.faint == 1 ? 1e-4 : 2e-5, stored<S>()), C);
    near(c, "dtemp", k.C, dtemp.get(), want_dtemp);
    near(c, "ddenom_bias", k.C, dbias.get(), want_dbias);
    near(c, "u", k.C, u.get(), want_u);
    a.warps = a.warps > 2 ? 2 : 1, a.start_log = a.start_log < 4 ? 4 : 3;
    if (k.B > 1) check(c, run() == results, "TSSA of %d channels: other bits with other warps and starts", k.C);
}

template <typename S> void test_tssa_variants(Checks* c) {
    const int whole = TSSA_RUN, ragged = TSSA_RUN + 9;
    const TssaCase cases[] = {
        {1536, 24, 1, ragged, false, 0},      // heads of 64; S and A kept before every 16th step
        {768, 12, 1, ragged, false, 0},       // every 8th step
        {768, 12, 1, 2 * whole, false, 1},
        {1258, 37, 1, whole, false, 0},       // heads of 34, not a multiple of a pack
        {1248, 39, 1, ragged, false, 0},      // heads of 32, of which a tile has idle lanes
        {99, 3, 1, ragged, false, 0},         // an odd number of channels
        {96, 3, 2, ragged, true, 0},
        {136, 4, 2, ragged, false, 1},
        {320, 5, 2, 4 * whole, false, 1},
        {192, 3, 2, 3 * whole, true, 0},
        {832, 13, 1, 2 * whole, false, 1},    // more heads than warps
        {384, 12, 1, whole, false, 2},
    };
    for (const TssaCase& k : cases) test_tssa<S>(c, k);
}

// shared: shared memory of a multiprocessor, KiB; blocks: how many blocks of backward fit in it
void test_start_log(Checks* c) {
    const struct { int shared, C, want; size_t blocks; } cases[] = {
        {100, 192, 2, 7}, {100, 768, 4, 5}, {100, 1024, 4, 4}, {100, 1280, 4, 3}, {164, 768, 3, 5}, {164, 1024, 4, 7},
        {164, 1280, 4, 5}, {228, 768, 3, 7}, {228, 1024, 3, 5}, {228, 1280, 4, 7}, {100, 6144, 5, 1}};
    const CudaOnHostOptions before = cuda_on_host_options();
    for (const auto& k : cases) {
        CudaOnHostOptions machine;
        machine.shared = k.shared;
        cuda_on_host_set(machine);
        const int log = tssa_sizes<bf16>(1, TSSA_RUN, k.C, k.C / 64).start_log;
        const size_t blocks = ((size_t)k.shared << 10) / (tssa_backward_shared(k.C, k.C / 64, log) + 1024 + 16);
        check(c, log == k.want && blocks == k.blocks, "%d KiB, C = %d: start_log %d, %zu blocks", k.shared, k.C, log,
              blocks);
    }
    cuda_on_host_set(before);
}

// The totals of a scan. COUNTS: small integers. CANCELLING: integers of which the large ones cancel within each group
// of 8, so that all sums are exact if a running sum has 48 bits. RANDOM: random numbers over 20 powers of 2.
enum ScanData { SCAN_COUNTS, SCAN_CANCELLING, SCAN_RANDOM };

__host__ __device__ inline float scan_total(int data, unsigned place, unsigned c) {
    const unsigned hash = (place * 2654435761u + c * 40503u) * 2246822519u;
    if (data == SCAN_COUNTS) return (float)((place + c) % 5);
    const float small = (float)(hash >> 24) - 100.0f, large = (float)(1 + (place / 8 + c) % 50) * 0x1p40f;
    if (data == SCAN_CANCELLING) return place % 8 == 1 ? large : place % 8 == 6 ? -large : small;
    return ldexpf((float)(hash >> 8) * 0x1p-24f - 0.4f, (int)(hash % 20));
}

// Scans `width` columns of scan_total.
__global__ void scan_kernel(float* carry, float* totals, int* sync, int data, int width, int runs) {
    SHARED(int, unit, 1);
    scan_ticket(sync, [&](int first) { *unit = first; });
    const int stride = scan_stride(width), place = *unit;
    float *own = totals + (size_t)place * stride, *own_carry = carry + (size_t)place * stride;
    for (int c = threadIdx.x; c < width; c += blockDim.x) own[c] = scan_total(data, place, c);
    scan_columns(totals, sync + 1, stride, place, runs, [&](int c, const FloatPair (&sum)[SCAN_VEC]) {
        for (int n = 0; n < SCAN_VEC; n++) own_carry[c + n] = to_float(sum[n]);
    });
}

// Checks the carries and the length of the longest chain of waits: one per octal digit of the last run's number.
void test_scan(Checks* c, int T, int threads, int width, ScanData data = SCAN_COUNTS) {
    const int runs = div_up((size_t)T, TSSA_RUN);
    const size_t columns = (size_t)scan_stride(width);
    const DeviceArray carry((size_t)runs * columns), totals(scan_slots((size_t)runs) * columns);
    const Device<int> sync(std::vector<int>(1 + scan_slots((size_t)runs)));
    LAUNCH(scan_kernel, runs, threads, 0, nullptr, carry.p, totals.p, sync.p, data, width, runs);
    const Floats got = carry.get();
    std::vector<long double> sum(columns), size(columns);   // size: sum of the terms' magnitudes
    int digits = 0, wrong = 0;
    for (int i = runs - 1; i > 0; i /= SCAN_RADIX) digits++;
    for (int place = 0; place < runs; place++)
        for (int i = 0; i < width; i++) {
            long double &before = sum[(size_t)i], &of_terms = size[(size_t)i];
            // A carry is rounded to float. So are the totals of groups at each level, unless they are exact.
            const long double limit = 0x1p-24l * (data == SCAN_RANDOM ? digits * of_terms : fabsl(before));
            wrong += !(fabsl(got[(size_t)place * columns + (size_t)i] - before) <= limit);
            before += scan_total(data, (unsigned)place, (unsigned)i);
            of_terms += fabsf(scan_total(data, (unsigned)place, (unsigned)i));
        }
    check(c, wrong == 0, "scan of %d runs and %d columns, totals %d: %d wrong carries", runs, width, data, wrong);
    check(c, cuda_on_host_longest_chain() == digits, "scan of %d runs: %d waits in a chain, want %d", runs,
          cuda_on_host_longest_chain(), digits);
}

// Lengths up to a million tokens; one pass over the columns, and several.
void test_scans(Checks* c) {
    for (const int T : {33, 256, 257, 1024, 1 << 14, 1 << 16}) test_scan(c, T, 8, 5);
    test_scan(c, 513 * TSSA_RUN, 32, 70);
    test_scan(c, 513 * TSSA_RUN, 32, 203);
    test_scan(c, 1 << 14, 32, 9, SCAN_RANDOM);
    test_scan(c, 1 << 20, 8, 5, SCAN_CANCELLING);
}

// Kernels whose blocks communicate, with several blocks at once.
void test_concurrent(Checks* c, int seeds) {
    const CudaOnHostOptions before = cuda_on_host_options();
    for (int seed = 1; seed <= seeds; seed++) {
        cuda_on_host_set({CUDA_ORDER_SHUFFLE, (uint64_t)seed, 2 + seed % 9});
        test_scan(c, (seed % 3 ? 80 : 600) * TSSA_RUN, 64, 5);
        test_scan(c, (9 + seed) * TSSA_RUN, 32, 70, SCAN_CANCELLING);
        const int T = (8 + seed % 4) * TSSA_RUN + 1 + seed % TSSA_RUN;
        const TssaCase small = {6, 2, 1 + seed % 2, T, seed % 4 == 3, 0};
        test_tssa<float>(c, small);
        if (seed % 2) test_tssa<bf16>(c, small);
    }
    cuda_on_host_set(before);
}

// More runs than threads; more positions than threads, and a pass over only some of the positions.
void test_vector_gradients(Checks* c, bool add) {
    const size_t heads = 3, runs = 2 * TEMP_THREADS + 88, T = SUM_THREADS + 9, first = 5, block = first + T + 600;
    const float before = add ? 1.0f : NAN;
    const Floats x = numbers(heads * runs, 1), dscore = numbers(2 * heads * T, 2), temp = numbers(heads, 3);
    Doubles want(heads, add ? 1.0 : 0.0), bias(heads * block, add ? 1.0 : 0.0);
    for (size_t i = 0; i < x.size(); i++) want[i / runs] += x[i];
    for (size_t i = 0; i < dscore.size(); i++)
        bias[i / T % heads * block + first + i % T] += 4.0 * temp[i / T % heads] * dscore[i];
    const DeviceArray partial(x), on_dscore(dscore), on_temp(temp), dtemp(Floats(heads, before)),
        dbias(Floats(heads * block, before));
    const Device<int> header(step_at(first));
    Tssa<float> a = tssa_sizes<float>(2, (int)T, 4 * (int)heads, (int)heads);
    a.temp = on_temp.p, a.pass = (const PassHeader*)header.p, a.block_size = (int)block, a.runs = (int)runs / 2;
    a.dscore = on_dscore.p, a.dtemp_run = partial.p, a.dtemp = dtemp.p, a.ddenom_bias = dbias.p;
    vector_gradients(nullptr, {}, a, add);
    near(c, "dtemp of many runs", (int)heads, dtemp.get(), want);
    near(c, "ddenom_bias of some positions", (int)heads, dbias.get(), bias);
}

// ---------------------------------------------------------------------------------------------
// Embedding

struct EmbedCase { int C, B, T, V; };

void test_embedding_backward(Checks* c, const EmbedCase& k, const std::vector<int32_t>& tokens) {
    const size_t C = (size_t)k.C, T = (size_t)k.T, rows = tokens.size(), first = 2;
    const Floats dx = numbers(rows * C, 1);
    Doubles dwte((size_t)k.V * C, 1.0), dwpe((first + T) * C, 1.0);
    for (size_t i = 0; i < dx.size(); i++) {
        dwte[(size_t)tokens[i / C] * C + i % C] += dx[i];
        dwpe[(first + i / C % T) * C + i % C] += dx[i];
    }
    std::vector<int32_t> input(pass_input_size(rows));
    const PassInput s = pass_input(input.data(), rows);
    s.header->first = (int32_t)first;
    std::copy(tokens.begin(), tokens.end(), s.inputs);
    embed_order(s, (int)rows, k.V);
    const Device<int32_t> on_input(input);
    const DeviceArray on_dx(dx), on_dwte(Floats(dwte.size(), 1.0f)), on_dwpe(Floats(dwpe.size(), 1.0f)),
        partial((rows / (EMBED_SEGMENT / 2) + 1) * C);
    embedding_backward(nullptr, on_dwte.p, on_dwpe.p, partial.p, on_dx.p, pass_input(on_input.p, rows), true,
                       (int)(first + T), k.B, k.T, k.C);
    near(c, "dwte", k.C, on_dwte.get(), dwte);
    near(c, "dwpe", k.C, on_dwpe.get(), dwpe);
}

// More channels than threads, tokens with several segments, more tokens and segments than blocks.
void test_embeddings(Checks* c) {
    for (const EmbedCase& k : {EmbedCase{3, 2, 90, 5}, EmbedCase{259, 1, 70, 3}, EmbedCase{1028, 1, 70, 3}}) {
        std::vector<int32_t> tokens((size_t)k.B * (size_t)k.T);
        for (size_t row = 0; row < tokens.size(); row++) tokens[row] = (int32_t)(row * row % (size_t)k.V);
        test_embedding_backward(c, k, tokens);
    }
    const EmbedCase many = {4, 700, 99, 3380};
    const size_t bigs = 1030, rows_of_big = bigs * (EMBED_SEGMENT + 1);
    std::vector<int32_t> tokens((size_t)many.B * (size_t)many.T);
    for (size_t row = 0; row < tokens.size(); row++)
        tokens[row] = (int32_t)(row < rows_of_big ? row % bigs : bigs + row - rows_of_big);
    test_embedding_backward(c, many, tokens);
}

// ---------------------------------------------------------------------------------------------
// Batches of products, Muon

// Of cuBLASLt; without a stream, products run at once.
struct TestMatmul {
    const DeviceArray workspace;
    Matmul mm = {};
    TestMatmul() : workspace(MATMUL_WORKSPACE / sizeof(float)) { matmul_init(&mm, nullptr, workspace.p, false); }
    ~TestMatmul() { matmul_free(&mm); }
};

// cuBLASLt must not be given overlapping matrices or more than its memory.
void test_batch_misuse(Checks* c) {
    constexpr int COUNT = 3, N = 8, SIZE = N * N;
    const DeviceArray a(COUNT * SIZE), b(COUNT * SIZE), out((COUNT + 1) * SIZE);
    TestMatmul t;
    Product<float, float> p = dense_product(out.p, a.p, b.p, PRODUCT_NN, N, N, N);
    p.count = COUNT, p.a_step = p.b_step = SIZE, p.beta = 1.0f;
    const auto refused = [&](const char* message, const float* source, int64_t step) {
        p.source = source, p.c_step = step;
        dies(c, "batch of products", message, [&] { matmul(&t.mm, p); });
    };
    refused("C overlaps D", out.p + SIZE, SIZE);
    refused("the matrices of the batch D overlap", out.p, N);
    refused("of an allocation of", out.p, 2 * SIZE);
}

// More units than threads, whose sums are all `square`
void test_normalize(Checks* c, float square) {
    constexpr size_t UNITS = SQUARES_THREADS + 44, SIZE = 37, STEP = 64;
    const Floats u = numbers(STEP, 1);
    Floats want(u.begin(), u.begin() + SIZE);
    for (float& v : want) v /= fmaxf(sqrtf((float)UNITS * square), 1e-7f);
    const DeviceArray on_u(u), x(STEP);
    const Device<double> sums(Floats(UNITS, square));
    const MuonMatrices a = {1, 1, (int)SIZE, SIZE, STEP, STEP};
    LAUNCH(muon_normalize_kernel, (int)UNITS, SQUARES_THREADS, 0, nullptr, x.p, sums.p, on_u.p, a);
    near(c, "muon_normalize", (int)SIZE, x.get(), want);
}

// ---------------------------------------------------------------------------------------------
// Other functions

// normal_cdf and normal_bell at every bf16 number.
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
          "normal_cdf: error %.2e, relative in the lower tail %.2e; normal_bell: error %.2e", cdf_worst, tail_worst,
          bell_worst);
}

// Losses, dx and dwte of the classifier for 300 rows in blocks
std::vector<Floats> classified(size_t block) {
    const size_t rows = 300;
    const int C = 8, V = 43;
    std::vector<int32_t> step = step_at(0), targets(rows);
    ((PassHeader*)step.data())->grad_scale = 0.25f;
    for (size_t row = 0; row < rows; row++) targets[row] = row % 7 == 3 ? -1 : (int32_t)(row % (size_t)V);
    const Device<int32_t> on_step(step), on_targets(targets);
    const DeviceArray x(numbers(rows * C, 1)), wte(numbers((size_t)V * C, 2)), loss{Floats(rows)},
        dx{Floats(rows * C)}, dwte{Floats((size_t)V * C)}, logits{Floats(block * logits_ld(V))};
    const Device<double> total(std::vector<double>(1));
    TestMatmul t;
    classify<float>(&t.mm, {total.p, loss.p, dx.p, dwte.p, true, logits.p, x.p, wte.p, on_targets.p,
                                               (const PassHeader*)on_step.p, rows, block, V, C});
    return {loss.get(), dx.get(), dwte.get()};
}

void test_classifier_blocks(Checks* c) {
    const std::vector<Floats> whole = classified(300), parts = classified(128);
    for (size_t i = 0; i < 3; i++) near(c, "losses, dx or dwte in blocks", 8, parts[i], whole[i]);
}

// Offsets of the last run of the largest arrays, without memory behind them: the engine allows 2^31 - 1 tokens.
void test_offsets(Checks* c) {
    for (const int T : {1 << 12, 1 << 28}) {
        const int B = (INT_MAX - T) / T, C = 1536, NH = 24;
        const Tssa<bf16> a = tssa_sizes<bf16>(B, T, C, NH);
        const TssaRun k = {B - 1, (a.runs - 1) * TSSA_RUN, TSSA_RUN};
        const size_t b = (size_t)k.b, t0 = (size_t)k.t0, run = b * (size_t)a.runs + t0 / TSSA_RUN,
                     scans = (size_t)B * (size_t)a.slots, slot = b * (size_t)a.slots + 5;
        const float* const none = nullptr;
        check(c, tssa_row(7, C - 1, k, a) == (b * (size_t)T + t0 + 7) * (size_t)C + (size_t)C - 1, "tssa_row, T = %d",
              T);
        check(c, tssa_head(NH - 1, k, a) == (b * NH + NH - 1) * (size_t)T + t0, "tssa_head, T = %d", T);
        check(c, tssa_saved(k, a) == run * (size_t)(a.energy_stride + a.ND_stride), "tssa_saved, T = %d", T);
        check(c, (size_t)(tssa_totals<false>(k.b, 5, a) - none) == slot * (size_t)a.energy_stride, "totals of S, T = %d",
              T);
        check(c, (size_t)(tssa_totals<true>(k.b, 5, a) - none) ==
                     scans * (size_t)a.energy_stride + slot * (size_t)a.ND_stride, "totals of N and D, T = %d", T);
    }
}

// Two ranks send each other the first `sent` bytes of an array, and receive others from place `at` on.
void send_bytes(int rank, size_t sent, size_t received, size_t at) {
    cuda_on_host_set({CUDA_ORDER_FORWARD, 1, 1, true, ~0u, 2});
    const Device<char> x(200);
    TostComm* comm;
    TostError err;
    CommMessage messages[2] = {};
    messages[1 - rank] = {x.p, x.p + at, sent, received};
    if (nccl_open_comm(&comm, &err)) nccl_send(link_of(comm), messages, nullptr);
    cudaStreamSynchronize(nullptr);
}

// NCCL must not be given messages that do not match or overlap.
void test_nccl_misuse(Checks* c) {
    const auto refused = [&](const char* message, auto misuse) {
        for (const RankEnd& end : run_ranks(2, misuse))
            check(c, WIFSIGNALED(end.status) && end.text.find(message) != std::string::npos, "want \"%s\", got \"%s\"",
                  message, end.text.c_str());
    };
    refused("ncclSend of 50 bytes", [](int rank) { send_bytes(rank, rank ? 50 : 100, 100, 100); });
    refused("overlaps", [](int rank) { send_bytes(rank, 100, 1, 99); });
}

void test_errors(Checks* c) {
    const auto fatal = [&](const char* want, void (*call)()) { exits(c, run_child(call), STATUS_FAILED, want); };
    fatal(": cudaErrorMemoryAllocation: out of memory; a smaller --batch or --seq needs less memory",
          [] { CUDA_CHECK(cudaErrorMemoryAllocation); });
    fatal(": CUBLAS_STATUS_ALLOC_FAILED: cuBLASLt status 3; cuBLASLt must be",
          [] { CUBLAS_CHECK(CUBLAS_STATUS_ALLOC_FAILED); });
    dies(c, "column sums past their space", "sums->space <= sums->end", [] {
        float space[8], out[1];
        ColumnSums sums = {space, space + 8, 0, {}};
        column_sums(&sums, {out, out, out}, 4, 1);
    });
#ifndef CUDA_ON_HOST_ASAN
    fatal("out of memory: ", [] {
        const rlimit few = {(rlim_t)4 << 30, (rlim_t)4 << 30};
        setrlimit(RLIMIT_AS, &few);
        embed_order({}, 0, INT_MAX);
    });
#endif
    fatal("status 15; it has no algorithm for these sizes", [] { CUBLAS_CHECK(CUBLAS_STATUS_NOT_SUPPORTED); });
}

// On 4 multiprocessors, tiles of a product of (1024,K) and (K,1024) are small if they make 11.4 waves or more.
void test_matmul_choice(Checks* c) {
    const struct { int K, count; float first; int want; } cases[] = {
        {1024, 1, 10, 2}, {1025, 1, 10, 0}, {1024, 2, 10, 0}, {1024, 1, 7, 0}};
    for (const auto& k : cases) {
        MatmulPlan plan = {};
        for (const float waves : {k.first, 11.0f, 12.0f, 15.0f}) plan.proposal[plan.n_proposals++].wavesCount = waves;
        auto p = dense_product<bf16, bf16>(nullptr, nullptr, nullptr, PRODUCT_NT, 1024, 1024, k.K);
        p.count = k.count;
        check(c, matmul_choice(plan, p) == k.want, "choice for K = %d, %d products, %g waves", k.K, k.count, k.first);
    }
}

// Of kernels that are templates
template <typename S> void test_both_types(Checks* c) {
    test_tile<S>(c);
    for (const int HS : {20, 43, 64}) test_delta_rule<S>(c, HS);
    test_conv<S>(c);
    test_tssa_variants<S>(c);
    // at and just above the maximum of each kernel variant
    for (const int C : {3, 768, 772, 1028, 2049, 3072, 3076, 6144}) test_norm<S>(c, C, 5);
    for (const int C : {768, 1028, 2049, 3076}) test_norm<S>(c, C, 5, true);
}

}  // namespace

void test_kernels(Checks* c, int seeds) {
    test_matmul_choice(c);
    test_concurrent(c, seeds);
    test_classifier_blocks(c);
    test_batch_misuse(c);
    for (const float square : {1.0f, 1e-18f}) test_normalize(c, square);   // the second norm is below the least
    test_normal(c);
    test_errors(c);
    test_nccl_misuse(c);
    test_offsets(c);
    test_wide_heads(c);
    for (const bool add : {false, true}) test_vector_gradients(c, add);
    test_embeddings(c);
    test_start_log(c);
    test_scans(c);
    test_both_types<float>(c);
    test_both_types<bf16>(c);
    test_small_weights<float>(c, false, SUMS, SUMS);
    test_small_weights<float>(c, true, 1e-2, 5e-4);
    test_small_weights<bf16>(c, false, 3e-3, 3e-4);
    test_small_weights<bf16>(c, true, 1e-1, 2e-2);
    // more rows than blocks
    for (const int C : {3, 60, 1028}) test_norm<float>(c, C, 1200);
}
