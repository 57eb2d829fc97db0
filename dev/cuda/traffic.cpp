// traffic.cpp: counts on the CPU how many bytes of device memory one optimizer step of tost-base moves. The kernels of
// train_gpt_tost.cu run in the CUDA emulation, compiled so that each load and store calls the counter below. It records
// which sectors of 32 bytes each kernel touches:
//
//   unlimited L2    a sector counts once per launch if it is read and once if it is written; reading a sector that the
//                   same launch wrote is free. This is the traffic that must cross device memory.
//   only L1         the same per block, summed over blocks: each block has its own unlimited cache, without an L2.
//   no cache        the bytes of all accesses.
//
// cuBLASLt's matrix products count by their shapes: operands read once, the result written once. They are not computed
// and leave NaN. This is safe: of the data in device memory, only tokens, targets and the flags of the scans determine
// addresses, and those are real.
//
// A step is counted at the T of the table for two batch sizes, each with one layer and with two, and extrapolated to
// the size in the table: at one T, traffic is linear in rows and layers. Exits with 1 if a kernel moves more than its
// row of `minimums` allows or has no row, or if the counter fails a check.
//
//     make traffic
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "cuda_on_host.h"
#include "tost/engine.h"
#include "tost/ranks/slices.h"

extern "C" const TostEngine tost_cuda_engine;

namespace {

// ---------------------------------------------------------------------------------------------
// Minimal traffic. rows = B·T; flat: number of parameters

struct Size { double rows, T, L, C, NH, V, flat; };

constexpr double STATS = 8;            // bytes of mean and rstd per row
constexpr double EMBED_SEGMENT = 64;   // rows of one token per partial sum
constexpr int COMMON = 4;              // one row in COMMON has token 0

// Blocks of rows: at most 2^30 logits (2 GiB) each, in whole tiles of 128 rows.
double classifier_blocks(const Size& z) { return ceil(z.rows / (floor(exp2(30) / z.V / 128) * 128)); }

// Forward, gradient of the input, and gradient of the weights, which is written to a float32 array; each block of
// rows after the first adds to it.
double linear_bytes(double rows, double in, double out, double blocks) {
    return 3 * 2 * rows * (in + out) + (blocks * (2 * 2 + 8) - 4) * in * out;
}

double matmul_bytes(const Size& z) {
    return z.L * (2 * linear_bytes(z.rows, z.C, z.C, 1) + 2 * linear_bytes(z.rows, z.C, 4 * z.C, 1)) +
           linear_bytes(z.rows, z.C, z.V, classifier_blocks(z));
}

// Per kernel: the minimal bytes of a step in bf16, see the comments at the kernels, and the allowed ratio to it with an
// unlimited L2 (statistics, carries and partial sums come on top) and with only L1 (each block loads shared data).
struct Minimum {
    const char *name, *unit;         // unit: of the bytes in the table
    double allowed, allowed_l1;
    const char* formula;
    double (*bytes)(const Size& z);
};

#define MINIMUM(name, unit, allowed, allowed_l1, expression) \
    {#name, unit, allowed, allowed_l1, #expression, [](const Size& z) -> double { \
        const double rows = z.rows, T = z.T, L = z.L, C = z.C, NH = z.NH, V = z.V, flat = z.flat, \
                     common = rows / COMMON, distinct = rows - common + 1, norms = 2 * L + 1; \
        (void)rows, (void)T, (void)L, (void)C, (void)NH, (void)V, (void)flat, (void)distinct, (void)norms; \
        return expression; }}

const Minimum minimums[] = {
    MINIMUM(matmul,                      "row",       1.00, 1.00, matmul_bytes(z)),
    MINIMUM(embedding_forward,           "row",       1.02, 1.80, 4*C*rows + 4*C*distinct),
    MINIMUM(residual_layernorm_forward,  "row",       1.01, 1.40, (12*C*2*L + 6*C + STATS*norms) * rows),
    MINIMUM(tssa_forward,                "row",       1.25, 1.50, 4*C*L * rows),
    MINIMUM(gelu_forward,                "row",       1.01, 1.01, 16*C*L * rows),
    MINIMUM(cross_entropy,               "row",       1.01, 1.01, 4*V * rows),
    MINIMUM(loss_sum,                    "row",       1.01, 1.01, 4*rows),
    MINIMUM(layernorm_residual_backward, "row",       1.02, 1.02, (18*C*2*L + 10*C + STATS*norms) * rows),
    MINIMUM(gelu_backward,               "row",       1.02, 1.02, 24*C*L * rows),
    MINIMUM(tssa_backward,               "row",       1.25, 1.40, 6*C*L * rows),
    MINIMUM(conv,                        "row",       1.02, 1.25, 20*C*L * rows),
    MINIMUM(embedding_segment,           "row",       1.02, 1.03,
           4*C*rows + 8*C*distinct + 4*C*common/EMBED_SEGMENT),
    MINIMUM(embedding_place,             "row",       1.01, 1.01, 4*C*rows + 4*C*T),
    MINIMUM(embedding_big,               "row",       1.02, 1.10, 4*C*common/EMBED_SEGMENT + 8*C),
    MINIMUM(layer_sums,                  "launch",    1.05, 1.05,
           528*4*C * (2*norms - 1) + 4*NH*L * (rows/32 + rows + T)),
    MINIMUM(memset,                      "row",       1.10, 1.10, 2*4*L * 2*8/7 * rows/32),
    MINIMUM(grad_norm,                   "parameter", 1.01, 1.01, 4*flat),
    MINIMUM(adamw,                       "parameter", 1.01, 1.01, 30*flat),
};

const Minimum* minimum_of(const std::string& name) {   // null: no row
    for (const Minimum& f : minimums)
        if (name == f.name) return &f;
    return nullptr;
}

// ---------------------------------------------------------------------------------------------
// The counter: one global object, because the compiler's callbacks take no context

// Bytes of all accesses, with an unlimited L2, with only L1; launches
enum { LOADED, STORED, READ, WRITTEN, ONLY_L1, LAUNCHES, QUANTITIES };
typedef std::array<double, QUANTITIES> Count;
typedef std::map<std::string, Count> Counts;

constexpr size_t SECTOR = 32;

struct Sector { uint32_t read, written; };   // number of the last block that did, counted over all launches

struct Counter : CudaOnHostObserver {
    bool on = false;
    uintptr_t arena = 0;
    size_t bytes = 0;
    std::vector<Sector> sectors;
    uint32_t block = 0, first = 0;   // current block; first block of the launch
    uint3 index = {0, 0, 0};
    Count* kernel = nullptr;         // current kernel, or null if not counting
    Counts counts;

    void allocated(const void* device, size_t n) override {
        arena = (uintptr_t)device;
        bytes = n;
        sectors.assign(n / SECTOR + 1, {0, 0});
    }
    // text: "name_kernel", "(name_kernel<S, 4>)" or with "_variant"
    void launched(const char* text) override {
        std::string name = text + (text[0] == '(');
        name = name.substr(0, name.find_first_of("<)"));
        for (const char* end : {"_kernel", "_variant"}) name = name.substr(0, name.find(end));
        kernel = on ? &counts[name] : nullptr;
        if (kernel) (*kernel)[LAUNCHES]++;
        first = block + 1;
        index.x = ~0u;
    }
    void filled(size_t n) override { by_shape("memset", 0, (double)n); }
    bool product(double read, double written) override {
        by_shape("matmul", read, written);
        return false;
    }
    void by_shape(const char* name, double read, double written) {
        const Count c = {read, written, read, written, read + written, 1};
        if (on)
            for (int q = 0; q < QUANTITIES; q++) counts[name][q] += c[q];
    }
    void touch(const void* p, size_t n, bool store) {
        const size_t from = (uintptr_t)p - arena;
        if (from >= bytes || !kernel) return;
        if (memcmp(&index, &blockIdx, sizeof index) != 0) {
            index = blockIdx;
            block++;
        }
        Count& c = *kernel;
        c[store ? STORED : LOADED] += (double)n;
        for (size_t s = from / SECTOR; s <= (from + n - 1) / SECTOR; s++) {
            Sector& x = sectors[s];
            const uint32_t last = store ? x.written : std::max(x.read, x.written);
            if (last < first) c[store ? WRITTEN : READ] += SECTOR;
            if (last != block && (store || x.read != block)) c[ONLY_L1] += SECTOR;
            (store ? x.written : x.read) = block;
        }
    }
};

Counter counter;

}  // namespace

extern "C" {
#define CALLS(n, type) \
    void __sanitizer_cov_load##n(type* p) { counter.touch(p, n, false); } \
    void __sanitizer_cov_store##n(type* p) { counter.touch(p, n, true); }
CALLS(1, uint8_t)
CALLS(2, uint16_t)
CALLS(4, uint32_t)
CALLS(8, uint64_t)
CALLS(16, __int128)
void* traffic_memcpy(void* to, const void* from, size_t n) {   // one access of load_pack or store_pack
    counter.touch(from, n, false);
    counter.touch(to, n, true);
    return memcpy(to, from, n);
}
}

namespace {

// ---------------------------------------------------------------------------------------------
// Runs

TostConfig base_config() { return tost_preset_at(2)->config; }   // tost-base

Size size_of(const TostConfig& c, double B, double T) {
    TostTensors t = tost_tensors(&c);
    const Size z = {B * T, T, (double)c.n_layer, (double)c.n_embd, (double)c.n_head, (double)c.vocab_size,
                    (double)t.flat_size};
    tost_tensors_free(&t);
    return z;
}

// Counts one optimizer step of one micro-batch. One row in COMMON has token 0, all others are distinct: more distinct
// tokens than in text, so an upper bound for the embedding.
Counts counted(int B, int T, int layers, int conv) {
    TostConfig c = base_config();
    c.conv = conv;
    if (conv) c.vocab_size = 256;   // faster; convolutions do not depend on it
    c.n_layer = layers;
    c.block_size = T;
    TostEngineOptions o = {};
    o.max_batch = B;
    o.max_chunk = T;
    o.training = true;
    o.dtype = TOST_BF16;
    TostError err;
    TostModel* m = tost_cuda_engine.create(&c, &o, &err);
    if (!m) cuda_on_host_die("%s", err.text);
    std::vector<int32_t> tokens((size_t)B * T), targets(tokens.size());
    for (size_t i = 0; i < tokens.size(); i++) {
        tokens[i] = i % COMMON == 0 ? 0 : (int32_t)(i * 7919 % (size_t)(c.vocab_size - 1)) + 1;
        targets[i] = (int32_t)(i * 104729 % (size_t)c.vocab_size);
    }
    const TostUpdate a = {1e-3, 0.9, 0.95, 1e-8, 0.1, 1.0, 1, 0.0};
    counter.counts.clear();
    counter.on = true;
    tost_cuda_engine.zero_grad(m);
    const TostChunk chunk = {tokens.data(), targets.data(), B, T, 0};
    tost_cuda_engine.train_forward(m, &chunk, TOST_NO_STATE, 1.0f);
    tost_cuda_engine.train_backward(m, TOST_NO_STATE, TOST_NO_STATE, TOST_STEP_ENDS);
    tost_cuda_engine.grad_norm(m);
    tost_cuda_engine.update(m, &a);
    counter.on = false;
    counter.kernel = nullptr;
    tost_cuda_engine.destroy(m);
    return counter.counts;
}

// Batch sizes: more than 2 COLUMN_BLOCKS rows, and more than COLUMN_BLOCKS runs of a convolution
constexpr int T = 1024, BATCH = 2, CONV_BATCH = 5;

// From the batch sizes B and B + 1
Counts extrapolated(const Size& z, int B, int conv) {
    Counts runs[2][2];   // by batch, with one and two layers
    for (int b = 0; b < 2; b++)
        for (int l = 0; l < 2; l++) runs[b][l] = counted(B + b, T, l + 1, conv);
    const double more = z.rows / T - B;
    Counts out;
    for (const auto& entry : runs[0][1]) {
        for (int q = 0; q < QUANTITIES; q++) {
            double of_layers[2];
            for (int l = 0; l < 2; l++) {
                const double few = runs[0][l].at(entry.first)[q], many = runs[1][l].at(entry.first)[q];
                of_layers[l] = few + more * (many - few);
            }
            out[entry.first][q] = of_layers[0] + (z.L - 1) * (of_layers[1] - of_layers[0]);
        }
    }
    out["matmul"] = {matmul_bytes(z), 0, matmul_bytes(z), 0, matmul_bytes(z),
                     out["matmul"][LAUNCHES] + 3 * (classifier_blocks(z) - 1)};
    out["cross_entropy"][LAUNCHES] += classifier_blocks(z) - 1;
    return out;
}

double l2_bytes(const Count& c) { return c[READ] + c[WRITTEN]; }

// One line per failure. A kernel that seems to move less than the minimum is counted wrongly.
bool within_limits(const Counts& counts, const Size& z) {
    bool ok = true;
    for (const auto& entry : counts) {
        const Minimum* f = minimum_of(entry.first);
        if (!f) {
            printf("FAILED: %s: no row in minimums\n", entry.first.c_str());
            ok = false;
            continue;
        }
        const double over = l2_bytes(entry.second) / f->bytes(z), l1 = entry.second[ONLY_L1] / f->bytes(z);
        if (over >= 0.98 && over <= f->allowed && l1 <= f->allowed_l1) continue;
        printf("FAILED: %s moves %.3f times the minimum, %.3f with only L1; allowed are %.2f and %.2f\n",
               f->name, over, l1, f->allowed, f->allowed_l1);
        ok = false;
    }
    for (const Minimum& f : minimums) {
        if (counts.count(f.name)) continue;
        printf("FAILED: %s: in minimums, but never launched\n", f.name);
        ok = false;
    }
    return ok;
}

// ---------------------------------------------------------------------------------------------
// The table

void print_table(const Counts& counts, const Size& z) {
    double moved = 0;
    printf("| kernel | launches | bytes per | minimum | unlimited L2 | ratio | only L1 | ratio | no cache | GB | "
           "minimum per step |\n|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (const Minimum& f : minimums) {
        const auto found = counts.find(f.name);
        if (found == counts.end()) continue;
        const Count& c = found->second;
        const double bytes = f.bytes(z), l2 = l2_bytes(c);
        const double units = f.unit[0] == 'p' ? z.flat : c[LAUNCHES] * (f.unit[0] == 'r' ? z.rows : 1);
        printf("| %s | %.0f | %s | %.0f | %.0f | %.3f | %.0f | %.3f | %.0f | %.2f | `%s` |\n", f.name,
               c[LAUNCHES], f.unit, bytes / units, l2 / units, l2 / bytes, c[ONLY_L1] / units, c[ONLY_L1] / bytes,
               (c[LOADED] + c[STORED]) / units, l2 * 1e-9, f.formula);
        moved += l2;
    }
    printf("\nSum with an unlimited L2: %.1f GB, of which matrix products %.1f GB.\n", moved * 1e-9,
           matmul_bytes(z) * 1e-9);
}

void print_conv(const Count& c, const Size& z) {
    const Minimum& f = *minimum_of("conv");
    printf("\nWith --conv 4, %.0f launches of the convolutions, forward and backward, move %.1f GB more: %.3f times the "
           "minimum `%s`, %.3f with only L1.\n", c[LAUNCHES], l2_bytes(c) * 1e-9, l2_bytes(c) / f.bytes(z), f.formula,
           c[ONLY_L1] / f.bytes(z));
}

}  // namespace

int main() {
    CudaOnHostOptions o;
    o.observer = &counter;
    o.multiprocessors = 132;   // of an H100 and an H200
    cuda_on_host_set(o);
    const TostConfig c = base_config();
    const Size z = size_of(c, 64, T);
    Counts counts = extrapolated(z, BATCH, 0);
    printf("# Memory traffic of one optimizer step of tost-base, counted on a CPU\n\nWritten by `make traffic`, "
           "without a GPU: the bytes that the kernels load and store in bf16, in sectors of 32 bytes; "
           "dev/cuda/traffic.cpp defines the columns. `minimum` is the floor. `unlimited L2` is expected, because what "
           "blocks share at one time fits in an L2 of 50 MB; `only L1` is moved if that fails. SASS.md has the times."
           "\n\n");
    printf("One step of one micro-batch with B %.0f, T %.0f (%.0f rows), %.0f layers, C %.0f, V %.0f, extrapolated "
           "linearly in rows and layers from B %d and %d with one and two layers:\n\n", z.rows / z.T, z.T, z.rows, z.L,
           z.C, z.V, BATCH, BATCH + 1);
    print_table(counts, z);
    counts["conv"] = extrapolated(z, CONV_BATCH, TOST_CONV_WIDTH).at("conv");
    print_conv(counts["conv"], z);
    return within_limits(counts, z) ? 0 : 1;
}
