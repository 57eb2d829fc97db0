// ptx_launch.cpp: runs the emulation's launches with the kernels of a PTX module, and compares their results with those
// of the C++ kernels.
#include "ptx_run.h"

#include <array>
#include <cmath>
#include <memory>

#include <dlfcn.h>

#include "dev/test/cuda_on_host/races.h"

namespace {

// Limits per block on all GPUs of compute capability 8.0 and later
constexpr size_t SHARED_WITHOUT_ASKING = 48 << 10, SHARED_AT_MOST = 99 << 10;
constexpr unsigned MAX_REGISTERS = 255, REGISTERS_OF_BLOCK = 65536;

// ---------------------------------------------------------------------------------------------
// Which memory a launch writes, and its contents before

constexpr size_t PIECE = 64;
typedef std::array<char, PIECE> Piece;

struct Writes {
    const std::vector<PtxRange>* ranges = nullptr;
    PtxRange last = {nullptr, nullptr};
    std::map<char*, Piece> before;   // by the piece's address, a multiple of PIECE

    const PtxRange* range_of(const char* p) const {
        const auto after = std::upper_bound(ranges->begin(), ranges->end(), p,
                                            [](const char* x, const PtxRange& r) { return x < r.begin; });
        return after == ranges->begin() || p >= (after - 1)->end ? nullptr : &*(after - 1);
    }
    // Copies memory at p to `piece` or, if `back`, from it: only the bytes that belong to range r.
    static void copy(Piece* piece, char* p, const PtxRange& r, bool back) {
        char* const begin = std::max(p, r.begin);
        const size_t n = (size_t)(std::min(p + PIECE, r.end) - begin), at = (size_t)(begin - p);
        if (back) memcpy(begin, piece->data() + at, n);
        else memcpy(piece->data() + at, begin, n);
    }
    void add(const char* p, size_t bytes) {
        if (p < last.begin || p >= last.end) {
            const PtxRange* r = range_of(p);
            if (!r) return;
            last = *r;
        }
        for (char* q = (char*)((uintptr_t)p & ~(PIECE - 1)); q < p + bytes; q += PIECE) {
            const auto added = before.emplace(q, Piece());
            if (added.second) copy(&added.first->second, q, last, false);
        }
    }
};

Writes* recording = nullptr;

void record(Writes* w) {   // starts recording writes in w; null: stops
    recording = w;
    race_on_write = [](const void* p, size_t bytes) { if (recording) recording->add((const char*)p, bytes); };
}

// ---------------------------------------------------------------------------------------------
// The difference of two versions of an array, whose type is that of the stores to it. PTX_BITS: float if the lower
// halves of the words do not look like bf16; else bf16 or fp8, whichever gives the least difference.

struct Distance {
    double difference = 0, norm = 0;
    void add(double a, double b, bool same) {
        if (std::isfinite(a)) norm += a * a;
        if (!same) difference += std::isfinite(a) && std::isfinite(b) ? (a - b) * (a - b) : INFINITY;
    }
    double relative() const { return difference == 0 ? 0 : norm == 0 ? INFINITY : sqrt(difference / norm); }
};

template <typename V> V at(const char* p) {
    V v;
    memcpy(&v, p, sizeof v);
    return v;
}
double float_of(const char* p) { return at<float>(p); }
double double_of(const char* p) { return at<double>(p); }
double bf16_of(const char* p) { return __uint_as_float((unsigned)at<uint16_t>(p) << 16); }
double e4m3_of(const char* p) { return cuda_on_host_from_fp8(at<unsigned char>(p), 3, 7); }
double e5m2_of(const char* p) { return cuda_on_host_from_fp8(at<unsigned char>(p), 2, 15); }

const struct {
    PtxType stored;
    size_t bytes;
    double (*value)(const char* p);
} types[] = {{PTX_F32, 4, float_of}, {PTX_F64, 8, double_of}, {PTX_BITS, 2, bf16_of},
             {PTX_BITS, 1, e4m3_of}, {PTX_BITS, 1, e5m2_of}};
constexpr size_t TYPES = sizeof types / sizeof *types;

// ---------------------------------------------------------------------------------------------

struct Runner : CudaOnHostRunner {
    const PtxModule* module = nullptr;
    bool compare = false;
    const PtxLaunch* launched = nullptr;             // the launch that is being interpreted
    std::map<const void*, const PtxKernel*> found;   // by address of the C++ kernel; null: not in the module
    std::map<std::string, PtxReport> reports;        // by kernel
    std::map<std::string, size_t> others;            // launches by kernel, of kernels that are not in the module

    const PtxKernel* kernel_of(const void* kernel) {
        const auto known = found.find(kernel);
        if (known != found.end()) return known->second;
        Dl_info info;
        const PtxKernel* k = nullptr;
        if (dladdr(kernel, &info) && info.dli_saddr == kernel) {
            const auto of_name = module->kernels.find(info.dli_sname);
            if (of_name != module->kernels.end()) k = &of_name->second;
        }
        return found[kernel] = k;
    }

    static void check_launch(const CudaOnHostLaunch& l, const PtxKernel& k) {
        const unsigned threads = l.block.x * l.block.y * l.block.z,
                       most = k.max_threads ? k.max_threads : REGISTERS_OF_BLOCK / (MAX_REGISTERS + 1);
        const size_t shared = k.shared_bytes + l.shared_bytes,
                     limit = l.shared_limit ? SHARED_AT_MOST : SHARED_WITHOUT_ASKING;
        if (threads > most)
            cuda_on_host_die("launch of %s: a block of %u threads; %u at most%s", l.name, threads, most,
                             k.max_threads ? " by its .maxntid" : " have enough registers without .maxntid");
        if (shared > limit)
            cuda_on_host_die("launch of %s: %zu bytes of shared memory, %zu of them static; at most %zu", l.name,
                             shared, k.shared_bytes, limit);
        if (l.arguments.size() != k.params.size())
            cuda_on_host_die("launch of %s: %zu arguments for %zu parameters", l.name, l.arguments.size(),
                             k.params.size());
        for (size_t i = 0; i < k.params.size(); i++)
            if (l.arguments[i].size() != k.params[i].bytes)
                cuda_on_host_die("launch of %s: argument %zu has %zu bytes, the parameter %zu", l.name, i,
                                 l.arguments[i].size(), k.params[i].bytes);
    }

    void launch(const CudaOnHostLaunch& l, void (*run)(const CudaOnHostLaunch& l)) override {
        const PtxKernel* k = kernel_of(l.kernel);
        if (!k) {
            others[l.name]++;
            return run(l);
        }
        check_launch(l, *k);
        const bool early = l.early && module->target >= 90;   // earlier GPUs have no early launches
        PtxLaunch p = {module, k, std::vector<char>(k->param_bytes), {}, k->shared_bytes + l.shared_bytes, early,
                       {}, nullptr};
        for (size_t i = 0; i < k->params.size(); i++)
            std::copy(l.arguments[i].begin(), l.arguments[i].end(), p.params.begin() + (long)k->params[i].at);
        cuda_on_host_ranges([&](char* begin, char* end) { p.ranges.push_back({begin, end}); });
        p.stored.resize(p.ranges.size());
        CudaOnHostLaunch interpreted = l;
        interpreted.shared_bytes = 2 * p.shared_bytes;
        interpreted.early = early;
        interpreted.body = [&p] { ptx_run_thread(&p); };
        PtxReport* report = &reports[k->name];
        report->launches++;
        report->threads += (size_t)l.grid.x * l.grid.y * l.grid.z * l.block.x * l.block.y * l.block.z;
        Writes by_source;
        if (compare) by_source = run_source(p, l, run);
        launched = &p;
        if (compare) compare_with(report, p, by_source, interpreted, run);
        else run(interpreted);
        launched = nullptr;
    }

    std::string place() const override {
        if (!launched || !launched->now) return "";
        const PtxInstruction& i = *launched->now;
        return ", PTX line " + std::to_string(i.line) + " (" + i.opcode + "; " + module->source_of(i) + ")";
    }

    // Runs the C++ kernel, then restores the memory that it wrote. Returns what it wrote.
    static Writes run_source(const PtxLaunch& p, const CudaOnHostLaunch& l, void (*run)(const CudaOnHostLaunch& l)) {
        Writes by_source;
        by_source.ranges = &p.ranges;
        record(&by_source);
        run(l);
        record(nullptr);
        for (auto& w : by_source.before) {
            const PtxRange& r = *by_source.range_of(std::max(w.first, first_byte(p.ranges, w.first)));
            Piece written = Piece();
            Writes::copy(&written, w.first, r, false);
            Writes::copy(&w.second, w.first, r, true);
            w.second = written;
        }
        return by_source;
    }

    static void compare_with(PtxReport* report, const PtxLaunch& p, const Writes& by_source,
                             const CudaOnHostLaunch& interpreted, void (*run)(const CudaOnHostLaunch& l)) {
        Writes by_ptx;
        by_ptx.ranges = &p.ranges;
        record(&by_ptx);
        run(interpreted);
        record(nullptr);
        std::map<char*, Piece> wanted = by_source.before;
        for (const auto& b : by_ptx.before) wanted.insert(b);   // memory that only the PTX wrote
        measure(report, p, wanted);
    }

    // The first byte of a piece that is in a range
    static char* first_byte(const std::vector<PtxRange>& ranges, char* piece) {
        const auto r = std::upper_bound(ranges.begin(), ranges.end(), piece,
                                        [](const char* x, const PtxRange& range) { return x < range.end; });
        return r == ranges.end() ? piece : r->begin;
    }

    static void measure(PtxReport* report, const PtxLaunch& launch, const std::map<char*, Piece>& wanted) {
        auto w = wanted.begin();
        for (size_t i = 0; i < launch.ranges.size(); i++) {
            const PtxRange& r = launch.ranges[i];
            Distance distance[TYPES];
            size_t words = 0, like_bf16 = 0;
            for (; w != wanted.end() && w->first < r.end; ++w) {
                char *const begin = std::max(w->first, r.begin), *const end = std::min(w->first + PIECE, r.end);
                const auto want = [&](const char* p) { return w->second.data() + (p - w->first); };   // from C++
                for (char* p = begin; p + 4 <= end; p += 4) {
                    const int exponent = at<uint16_t>(p) >> 7 & 255;
                    words++;
                    like_bf16 += exponent == 0 || (exponent > 90 && exponent < 140);
                    report->different += memcmp(p, want(p), 4) != 0;
                }
                for (size_t t = 0; t < TYPES; t++)
                    for (char* p = begin; p + types[t].bytes <= end; p += types[t].bytes)
                        distance[t].add(types[t].value(want(p)), types[t].value(p),
                                        memcmp(p, want(p), types[t].bytes) == 0);
            }
            report->words += words;
            const bool packed_floats = launch.stored[i] & PTX_BITS && like_bf16 < words / 2;
            add_distance(report, distance, packed_floats ? (uint8_t)PTX_F32 : launch.stored[i]);
        }
    }

    static void add_distance(PtxReport* report, const Distance (&distance)[TYPES], uint8_t stored) {
        double least = INFINITY;
        for (size_t t = 0; t < TYPES; t++)
            if (stored & types[t].stored || (!stored && distance[t].difference == 0))
                least = std::min(least, distance[t].relative());
        double* most = stored & PTX_BITS ? &report->bits : &report->floats;
        *most = std::max(*most, least);
    }
};

Runner runner;

}  // namespace

void ptx_start(const PtxModule* module, bool compare) {
    runner.module = module;
    runner.compare = compare;
    runner.found.clear();
    cuda_on_host_set_runner(&runner);
}

void ptx_stop() { cuda_on_host_set_runner(nullptr); }

const std::map<std::string, PtxReport>& ptx_reports() {
    for (auto& r : runner.reports) {
        const auto k = runner.module->kernels.find(r.first);
        if (k == runner.module->kernels.end()) continue;
        r.second.instructions = k->second.code.size();
        r.second.reached = 0;
        for (const PtxInstruction& i : k->second.code) r.second.reached += i.reached;
    }
    return runner.reports;
}

const std::map<std::string, size_t>& ptx_not_interpreted() { return runner.others; }
