// traffic.cpp: the bytes of device memory that an update of tost-base moves, counted on a CPU. The kernels of
// train_gpt_tost.cu run there (dev/test/cuda_on_host), compiled so that each load and store calls the counter
// below, which keeps, by kernel, the sectors of 32 bytes that it touches:
//
//   an L2 that holds all   a sector counts once if a launch reads it and once if it writes it; a read after the
//                          launch's own write is none: what has to cross device memory
//   an L1 alone            the same for each block apart, summed over blocks: as if each had a cache to itself,
//                          as large as it needs, and nothing stood between that and device memory
//   asked for              every access, as if there were no cache
//
// The products of cuBLASLt count by their shape, operands read once, the result written once. They are not
// computed, and leave NaN: of what kernels read from device memory only tokens, targets and the scans' flags
// decide on an address, and those are real.
//
// An update is counted at three (B,T) with one layer and with two. What it moves is linear in rows, T and
// layers, which gives it for the size in the table; a longer T is counted too, to be foretold by it. Exit
// status 1: a kernel moves more than its row of FEWEST allows or has none, or the counter fails a check of
// its own.
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

extern "C" const TostEngine tost_cuda_engine;

namespace {

// ---------------------------------------------------------------------------------------------
// What should be moved. rows = B·T; flat: parameters

struct Size { double rows, T, L, C, NH, V, flat; };

constexpr double STATS = 8;            // bytes of mean and rstd
constexpr double EMBED_SEGMENT = 64;   // rows of one token in a partial sum
constexpr int COMMON = 4;              // one row in so many holds the same token

// Of rows, by 2^29 logits, 1 GiB, at most in whole tiles of 128 rows.
double classifier_chunks(const Size& z) { return ceil(z.rows / (floor(exp2(29) / z.V / 128) * 128)); }

// Forward, its input's gradient and its weights', which are added to float32.
double linear_bytes(double rows, double in, double out, double chunks) {
    return 3 * 2 * rows * (in + out) + chunks * (2 * 2 + 8) * in * out;
}

double matmul_bytes(const Size& z) {
    return z.L * (2 * linear_bytes(z.rows, z.C, z.C, 1) + 2 * linear_bytes(z.rows, z.C, 4 * z.C, 1)) +
           linear_bytes(z.rows, z.C, z.V, classifier_chunks(z));
}

double matmul_flops(const Size& z) { return 6 * z.rows * (z.L * 10 * z.C * z.C + z.C * z.V); }

// The launches of a kernel: the fewest bytes of an update in bf16, by the kernels' comments; and how many times
// those it may move with an L2 that holds all (statistics, carries and partial sums are over the fewest) and
// with an L1 alone (what blocks share comes to each of them). Numbers are given a row, parameter or launch.
struct Fewest {
    const char *name, *unit;
    double allowed, allowed_l1;
    const char* formula;
    double (*bytes)(const Size& z);
};

#define FEWEST(name, unit, allowed, allowed_l1, expression) \
    {#name, unit, allowed, allowed_l1, #expression, [](const Size& z) -> double { \
        const double rows = z.rows, T = z.T, L = z.L, C = z.C, NH = z.NH, V = z.V, flat = z.flat, \
                     common = rows / COMMON, distinct = rows - common + 1, norms = 2 * L + 1; \
        (void)rows, (void)T, (void)L, (void)C, (void)NH, (void)V, (void)flat, (void)distinct, (void)norms; \
        return expression; }}

const Fewest fewest[] = {
    FEWEST(matmul,                      "row",       1.00, 1.00, matmul_bytes(z)),
    FEWEST(embedding_forward,           "row",       1.02, 1.80, 4*C*rows + 4*C*distinct),
    FEWEST(residual_layernorm_forward,  "row",       1.01, 1.40, (12*C*2*L + 6*C + STATS*norms) * rows),
    FEWEST(tssa_forward,                "row",       1.25, 1.50, 4*C*L * rows),
    FEWEST(gelu_forward,                "row",       1.01, 1.01, 16*C*L * rows),
    FEWEST(cross_entropy,               "row",       1.01, 1.01, 4*V * rows),
    FEWEST(loss_sum,                    "row",       1.01, 1.01, 4*rows),
    FEWEST(layernorm_residual_backward, "row",       1.02, 1.02, (18*C*2*L + 10*C + STATS*norms) * rows),
    FEWEST(gelu_backward,               "row",       1.02, 1.02, 24*C*L * rows),
    FEWEST(tssa_backward,               "row",       1.25, 1.40, 6*C*L * rows),
    FEWEST(denom_bias_backward,         "row",       1.02, 1.02, 4*NH*L * rows + 8*NH*L * T),
    FEWEST(embedding_segment,           "row",       1.02, 1.03,
           4*C*rows + 8*C*distinct + 4*C*common/EMBED_SEGMENT),
    FEWEST(embedding_place,             "row",       1.01, 1.01, 4*C*rows + 8*C*T),
    FEWEST(embedding_big,               "row",       1.02, 1.10, 4*C*common/EMBED_SEGMENT + 8*C),
    FEWEST(column_sum,                  "launch",    1.05, 1.05, 528*4*C * (2*norms - 1)),
    FEWEST(temp_backward,               "row",       1.10, 1.10, 4*NH*L * rows/32),
    FEWEST(memset,                      "parameter", 1.01, 1.01, 4*flat),
    FEWEST(grad_norm,                   "parameter", 1.01, 1.01, 4*flat),
    FEWEST(grad_norm_total,             "launch",    1.01, 1.01, 8*1024),
    FEWEST(adamw,                       "parameter", 1.01, 1.01, 30*flat),
};

const Fewest* fewest_of(const std::string& name) {   // null: it has no row
    for (const Fewest& f : fewest)
        if (name == f.name) return &f;
    return nullptr;
}

// ---------------------------------------------------------------------------------------------
// The counter. The compiler's calls carry no context: hence the one object.

// Bytes asked for, bytes with an L2 that holds all, bytes with an L1 alone; launches.
enum { LOADED, STORED, READ, WRITTEN, BLOCKS, LAUNCHES, QUANTITIES };
typedef std::array<double, QUANTITIES> Count;
typedef std::map<std::string, Count> Counts;

constexpr size_t SECTOR = 32;

struct Sector { uint32_t read, written; };   // the last block that did so; numbers go on from launch to launch

struct Counter : CudaOnHostObserver {
    bool on = false;
    uintptr_t arena = 0;
    size_t bytes = 0;
    std::vector<Sector> sectors;
    uint32_t block = 0, first = 0;   // that runs; the first of its launch
    uint3 index = {0, 0, 0};
    Count* kernel = nullptr;         // that runs; null: none is counted
    Counts counts;
    double flops = 0;

    void allocated(const void* device, size_t n) override {
        arena = (uintptr_t)device;
        bytes = n;
        sectors.assign(n / SECTOR + 1, {0, 0});
    }
    // The family of "(name_kernel<S, 4>)" or "name_variant".
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
    bool product(double read, double written, double m, double n, double k) override {
        by_shape("matmul", read, written);
        flops += 2 * m * n * k;
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
            if (last != block && (store || x.read != block)) c[BLOCKS] += SECTOR;
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
void* traffic_memcpy(void* to, const void* from, size_t n) {   // load_pack and store_pack: one access
    counter.touch(from, n, false);
    counter.touch(to, n, true);
    return memcpy(to, from, n);
}
}

namespace {

// ---------------------------------------------------------------------------------------------
// Runs

struct Run { Size size; Counts counts; double flops; };

TostConfig base_config() { return tost_preset_find("tost-base")->config; }

Size size_of(const TostConfig& c, double B, double T) {
    TostTensors t = tost_tensors(&c);
    const Size z = {B * T, T, (double)c.n_layer, (double)c.n_embd, (double)c.n_head, (double)c.vocab_size,
                    (double)t.flat_size};
    tost_tensors_free(&t);
    return z;
}

// One micro-step and its update. One row in COMMON holds token 0, every other a token of its own: more than
// text has, and so an upper bound of what the embedding moves.
Run counted(int B, int T, int layers, int block_size) {
    TostConfig c = base_config();
    c.n_layer = layers;
    c.block_size = block_size;
    const TostEngineOptions o = {B, T, true, false, TOST_BF16, 0};
    TostError err;
    TostModel* m = tost_cuda_engine.create(&c, &o, &err);
    if (!m) cuda_on_host_die("%s", err.text);
    std::vector<int32_t> tokens((size_t)B * T), targets(tokens.size());
    for (size_t i = 0; i < tokens.size(); i++) {
        tokens[i] = i % COMMON == 0 ? 0 : (int32_t)(i * 7919 % (size_t)(c.vocab_size - 1)) + 1;
        targets[i] = (int32_t)(i * 104729 % (size_t)c.vocab_size);
    }
    const TostAdamW a = {1e-3, 0.9, 0.95, 1e-8, 0.1, 1.0, 1};
    counter.counts.clear();
    counter.flops = 0;
    counter.on = true;
    tost_cuda_engine.zero_grad(m);
    tost_cuda_engine.forward(m, tokens.data(), targets.data(), B, T, 1.0f);
    tost_cuda_engine.backward(m);
    tost_cuda_engine.grad_norm(m);
    tost_cuda_engine.update(m, &a);
    counter.on = false;
    counter.kernel = nullptr;
    tost_cuda_engine.destroy(m);
    return {size_of(c, B, T), counter.counts, counter.flops};
}

// (B,T): the second has other rows than the first at the same T, the third another T and the same rows; enough for all
// COLUMN_BLOCKS to have some.
constexpr int shapes[3][2] = {{3, 512}, {5, 512}, {2, 768}};
static_assert(shapes[0][1] == shapes[1][1] && shapes[0][0] * shapes[0][1] == shapes[2][0] * shapes[2][1], "");

// The plane through one quantity at the three shapes, at (rows, T).
double plane(const double q[3], double rows, double T) {
    const double rows0 = shapes[0][0] * shapes[0][1], rows1 = shapes[1][0] * shapes[1][1];
    const double a_row = (q[1] - q[0]) / (rows1 - rows0), a_t = (q[2] - q[0]) / (shapes[2][1] - shapes[0][1]);
    return q[0] + a_row * (rows - rows0) + a_t * (T - shapes[0][1]);
}

// runs: by shape, of one layer and of two.
Counts foretold(const Run runs[3][2], const Size& z) {
    Counts out;
    for (const auto& entry : runs[0][1].counts) {
        for (int q = 0; q < QUANTITIES; q++) {
            double one[3], more[3];
            for (int s = 0; s < 3; s++) {
                one[s] = runs[s][0].counts.at(entry.first)[q];
                more[s] = runs[s][1].counts.at(entry.first)[q] - one[s];
            }
            out[entry.first][q] = plane(one, z.rows, z.T) + (z.L - 1) * plane(more, z.rows, z.T);
        }
    }
    out["matmul"] = {matmul_bytes(z), 0, matmul_bytes(z), 0, matmul_bytes(z),
                     out["matmul"][LAUNCHES] + 3 * (classifier_chunks(z) - 1)};
    out["cross_entropy"][LAUNCHES] += classifier_chunks(z) - 1;
    return out;
}

double compulsory(const Count& c) { return c[READ] + c[WRITTEN]; }

// ---------------------------------------------------------------------------------------------
// Checks: each failure is a line

bool near(const char* what, double got, double want, double tolerance) {
    const bool ok = fabs(got - want) <= tolerance * fabs(want);
    if (!ok) printf("FAILED: %s: %.0f, want %.0f\n", what, got, want);
    return ok;
}

// Kernels whose bytes are known exactly.
bool counter_is_right(const Run& r) {
    const Size& z = r.size;
    const double norms = 2 * z.L + 1, branches = 2 * z.L;
    const Count norm = r.counts.at("residual_layernorm_forward"), adamw = r.counts.at("adamw");
    bool ok = near("LayerNorm, stored", norm[STORED], z.rows * (z.C * (6 * branches + 2) + STATS * norms), 0);
    ok &= near("LayerNorm, sectors", compulsory(norm),
               z.rows * (z.C * (12 * branches + 6) + STATS * norms) + 4 * z.C * (2 * branches + 1), 0);
    ok &= near("AdamW, loaded", adamw[LOADED], (16 + 1 / 4.0) * z.flat, 0);   // a byte for four elements: their decay
    ok &= near("AdamW, stored", adamw[STORED], 14 * z.flat, 0);
    ok &= near("AdamW, sectors", compulsory(adamw), (30 + 1 / 32.0) * z.flat, 1e-6);
    ok &= near("products, bytes", compulsory(r.counts.at("matmul")), matmul_bytes(z), 0);
    return near("products, FLOPs", r.flops, matmul_flops(z), 0) && ok;
}

// The scan of TSSA looks back at more chunks in a longer sequence, by their logarithm: hence the second tolerance.
bool foretells(const Run runs[3][2], const Run& longer) {
    bool ok = true;
    for (const auto& entry : foretold(runs, longer.size)) {
        const Fewest* f = fewest_of(entry.first);
        if (!f || strcmp(f->unit, "parameter") == 0) continue;   // the longer T has other parameters
        const Count& c = longer.counts.at(entry.first);
        ok &= near((entry.first + " foretold for the longer T").c_str(), compulsory(entry.second), compulsory(c), 0.02);
        ok &= near((entry.first + " so foretold, L1 alone").c_str(), entry.second[BLOCKS], c[BLOCKS], 0.10);
    }
    return ok;
}

bool fewest_hold(const Counts& counts, const Size& z) {
    bool ok = true;
    for (const auto& entry : counts) {
        const Fewest* f = fewest_of(entry.first);
        if (!f) {
            printf("FAILED: %s: no row in FEWEST\n", entry.first.c_str());
            ok = false;
            continue;
        }
        const double over = compulsory(entry.second) / f->bytes(z), l1 = entry.second[BLOCKS] / f->bytes(z);
        if (over <= f->allowed && l1 <= f->allowed_l1) continue;
        printf("FAILED: %s moves %.3f times the fewest, %.3f with an L1 alone; %.2f and %.2f are allowed\n",
               f->name, over, l1, f->allowed, f->allowed_l1);
        ok = false;
    }
    for (const Fewest& f : fewest) {
        if (counts.count(f.name)) continue;
        printf("FAILED: %s: a row in FEWEST, but no launch\n", f.name);
        ok = false;
    }
    return ok;
}

// ---------------------------------------------------------------------------------------------
// The tables

constexpr double COPY = 4.3e12, PRODUCTS = 790e12;   // an H200's bytes and FLOPs a second, quoted

// only: a prefix of names; "": all.
void print_table(const Counts& counts, const Size& z, const char* only) {
    printf("| kernel | launches | bytes | fewest | L2 holds all | over fewest | L1 alone | over fewest | "
           "asked for | GB | ms | fewest bytes of an update |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (const Fewest& f : fewest) {
        const auto found = counts.find(f.name);
        if (found == counts.end() || strncmp(f.name, only, strlen(only)) != 0) continue;
        const Count& c = found->second;
        const double bytes = f.bytes(z), l2 = compulsory(c);
        const double units = f.unit[0] == 'p' ? z.flat : c[LAUNCHES] * (f.unit[0] == 'r' ? z.rows : 1);
        printf("| %s | %.0f | a %s | %.0f | %.0f | %.3f | %.0f | %.3f | %.0f | %.2f | %.2f | `%s` |\n", f.name,
               c[LAUNCHES], f.unit, bytes / units, l2 / units, l2 / bytes, c[BLOCKS] / units, c[BLOCKS] / bytes,
               (c[LOADED] + c[STORED]) / units, l2 * 1e-9, l2 / COPY * 1e3, f.formula);
    }
}

void print_sums(const Counts& counts, const Size& z) {
    double moved = 0, with_l1 = 0;
    for (const auto& entry : counts) {
        if (entry.first == "matmul") continue;
        moved += compulsory(entry.second);
        with_l1 += entry.second[BLOCKS];
    }
    const double products = matmul_flops(z) / PRODUCTS * 1e3;
    printf("\n| an update | | at the quoted rates |\n|---|---|---|\n");
    printf("| all but products, L2 holds all | %.1f GB | %.1f ms |\n", moved * 1e-9, moved / COPY * 1e3);
    printf("| all but products, L1 alone | %.1f GB | %.1f ms |\n", with_l1 * 1e-9, with_l1 / COPY * 1e3);
    printf("| products, bytes | %.1f GB | %.1f ms |\n", matmul_bytes(z) * 1e-9, matmul_bytes(z) / COPY * 1e3);
    printf("| products, 6·N·rows FLOPs | %.1f TFLOP | %.1f ms |\n", matmul_flops(z) * 1e-12, products);
    printf("| (products' FLOPs + the rest's bytes) / products' FLOPs | | %.2f; L1 alone: %.2f |\n",
           1 + moved / COPY * 1e3 / products, 1 + with_l1 / COPY * 1e3 / products);
}

}  // namespace

int main(int argc, char** argv) {
    CudaOnHostOptions o;
    o.observer = &counter;
    cuda_on_host_set(o);
    const TostConfig c = base_config();
    const Size z = size_of(c, 64, 1024);
    Run runs[3][2];
    for (int s = 0; s < 3; s++)
        for (int l = 0; l < 2; l++) runs[s][l] = counted(shapes[s][0], shapes[s][1], l + 1, c.block_size);
    const Run longer = counted(1, 4096, 1, 4096);
    const Counts counts = foretold(runs, z);
    printf("# Bytes that an update of tost-base moves, counted on a CPU\n\n`make traffic`, of the kernels at commit "
           "%s. No GPU ran: what the kernels' loads and stores touch in bf16, in sectors of 32 bytes, as "
           "dev/cuda/traffic.cpp says. Caches have no limit here: what a GPU's cannot hold comes again, up to what is "
           "asked for. Milliseconds are bytes over %.1f TB/s and FLOPs over %.0f TFLOP/s, which are "
           "quoted for an H200 and were not measured here.\n\n", argc > 1 ? argv[1] : "unknown", COPY * 1e-12,
           PRODUCTS * 1e-12);
    printf("One micro-step of B %.0f, T %.0f (%.0f rows) with %.0f layers, C %.0f, V %.0f, and its update. Counted "
           "were one and two layers at (B,T)", z.rows / z.T, z.T, z.rows, z.L, z.C, z.V);
    for (const auto& shape : shapes) printf(" (%d,%d)", shape[0], shape[1]);
    printf("; the table is their plane in rows, T and layers at this size:\n\n");
    print_table(counts, z, "");
    print_sums(counts, z);
    printf("\nThe scans in one long sequence, B 1, T %.0f, one layer:\n\n", longer.size.T);
    print_table(longer.counts, longer.size, "tssa");
    bool ok = fewest_hold(counts, z);
    ok &= foretells(runs, longer);
    for (const auto& shape : runs)
        for (const Run& r : shape) ok &= counter_is_right(r);
    return ok ? 0 : 1;
}
