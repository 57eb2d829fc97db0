// ptx_test.cpp: runs the tests of the CUDA engine with the PTX that nvcc makes of its kernels.
//
//     ptx_test FILE.ptx              all tests
//     ptx_test FILE.ptx SUITE...     interpreter, kernels, engine, mutants
//
// The exit status is 0 only if every check passed.
#include <cstdio>
#include <fstream>
#include <sstream>

#include "dev/test/cuda_on_host/emulation_test.h"
#include "dev/test/engines.h"
#include "dev/test/fp8.h"
#include "dev/test/golden.h"
#include "dev/test/nccl_on_host/ranks_on_host.h"
#include "ptx_test.h"

extern "C" const TostEngine tost_cuda_engine;

namespace {

void set_schedule(CudaOnHostOrder order, uint64_t seed, int resident = 1, bool late = false) {
    CudaOnHostOptions o;
    o.order = order;
    o.seed = seed;
    o.resident = resident;
    o.late = late;
    cuda_on_host_set(o);
}

// ---------------------------------------------------------------------------------------------
// The engine

Shape edges() {   // a second chunk of one step
    const int chunk = chunk_of_source();
    return {2, 3, 60, 2 * chunk + 8, 257, 1, TOST_LEARNED, 1, chunk + 1, 1, 2, RANDOM};
}

void test_shape(Checks* c, const Shape& k, TostDtype dtype) {
    const auto before = [](const void*, int run) { set_schedule(CUDA_ORDER_SHUFFLE, (uint64_t)run, run ? 5 : 1); };
    const Runs runs = {1, before, nullptr};
    engines_agree(c, &tost_cuda_engine, &tost_cpu_engine, &k, dtype, &runs);
}

// Training, evaluation, decode, scores and chunks in all dtypes, with documents and with several ranks
void test_engine(Checks* c) {
    const int chunk = chunk_of_source();
    const TostEngine *cuda = &tost_cuda_engine, *cpu = &tost_cpu_engine;
    const Shape uniform = {1, 1, 64, 2 * chunk + 8, 29, 0, TOST_UNIFORM, 1, chunk + 6, 1, 1, RANDOM},
                documents = {2, 3, 60, 2 * chunk + 8, 60, 1, TOST_LEARNED, 2, 2 * chunk + 5, 1, 1, DOCUMENTS};
    for (const TostDtype dtype : {TOST_FP32, TOST_BF16}) {
        test_shape(c, edges(), dtype);
        test_shape(c, uniform, dtype);
        test_shape(c, documents, dtype);
        engines_agree_on_mixed_shapes(c, cuda, cpu, dtype);
        engines_agree_on_scores(c, cuda, cpu, dtype, {7, 3, chunk + 5});
    }
    const ChunkTest chunks = {{2, 3, 60, 2 * chunk + 13, 29, 1, TOST_LEARNED, 2, 2 * chunk + 9, 1, 1, RANDOM},
                              chunk - 3, 5, false};
    ChunkTest without = chunks;
    without.chunk = 0;
    Record whole = chunks_record(cuda, &without, TOST_FP32, EXACT);
    engines_agree_on_chunks(c, cuda, cpu, TOST_FP32, &chunks, &whole);
    record_free(&whole);
    fp8_test_jump(c, cuda, cpu);
    test_golden(c, cuda, "dev/test/golden", nullptr, [](int pair) { set_schedule(CUDA_ORDER_SHUFFLE, (uint64_t)pair); });
    test_exchange(c, EXCHANGE_QUICK);
}

// ---------------------------------------------------------------------------------------------
// Mutants: the PTX with one line changed must fail

struct Mutant {
    const char *name, *kernel, *line, *replacement;   // kernel: a part of its name; line: a part of an instruction
    int which;                                        // of these lines in the kernel, from 0
};

const char FORWARD[] = "tssa_forward_kernelIfLb0ELb0E", NORM[] = "residual_layernorm_forward_kernelIfLi4ELi3";

const Mutant mutants[] = {
    {"no_wait", FORWARD, "griddepcontrol.wait;", "", 0},
    {"no_barrier", FORWARD, "bar.sync", "", 0},
    {"no_barrier", FORWARD, "bar.sync", "", 1},
    {"no_barrier", FORWARD, "bar.sync", "", 2},
    {"no_barrier", NORM, "bar.sync", "", 0},
    {"no_release", FORWARD, "st.release.gpu.global.s32", "st.relaxed.gpu.global.s32", 0},
    {"no_acquire", FORWARD, "ld.acquire.gpu.global.s32", "ld.relaxed.gpu.global.s32", 0},
    {"misaligned", NORM, "ld.global.nc.v4", "", 0},
    {"other_lane", FORWARD, "shfl.sync.bfly.b32", "shfl.sync.idx.b32", 0},
};

// The text with the mutant's line changed; empty if there is no such line
std::string mutate(const std::string& text, const Mutant& m) {
    size_t at = text.find(m.kernel, text.find(".entry"));
    const size_t end = text.find("\n}", at);
    std::string changed = text;
    for (int n = 0; at != std::string::npos; n++, at++) {
        at = text.find(m.line, at);
        if (at == std::string::npos || at > end) return "";
        if (n == m.which) break;
    }
    if (at == std::string::npos) return "";
    const size_t start = text.rfind('\n', at) + 1, stop = text.find('\n', at);
    std::string line = text.substr(start, stop - start);
    if (strcmp(m.name, "misaligned") == 0) line.insert(line.rfind(']'), line.find('+') == std::string::npos ? "+4" : "4");
    else if (!m.replacement[0]) line.clear();
    else line.replace(line.find(m.line), strlen(m.line), m.replacement);
    return changed.replace(start, stop - start, line);
}

void test_mutants(Checks* c, const std::string& text) {
    for (const Mutant& m : mutants) {
        const std::string changed = mutate(text, m);
        if (!check(c, !changed.empty(), "mutant %s %d: %s has no such line", m.name, m.which, m.kernel)) continue;
        int status = 0;
        const std::string said = child_stderr(c, &status, [&] {
            const PtxModule module(changed);
            Checks inner = {"mutant", 0, 0, 0};
            freopen("/dev/null", "w", stdout);
            ptx_start(&module, false);
            for (int run = 0; run < 3 && inner.failed == 0; run++) {
                set_schedule(CUDA_ORDER_SHUFFLE, (uint64_t)run, 1 + 2 * run);
                test_shape(&inner, edges(), TOST_FP32);
            }
            if (inner.failed > 0) fprintf(stderr, "%d checks failed\n", inner.failed);
            _exit(inner.failed > 0);
        });
        printf("%s %d: %s", m.name, m.which, said.empty() ? "\n" : said.c_str());
        check(c, status != 0, "mutant %s %d of %s passes the test", m.name, m.which, m.kernel);
    }
}

// ---------------------------------------------------------------------------------------------

void print_reports() {
    printf("%9s %9s %9s %9s %9s  kernel\n", "launches", "reached", "different", "floats", "bits");
    for (const auto& r : ptx_reports())
        printf("%9zu %8.1f%% %8.3f%% %9.1e %9.1e  %s\n", r.second.launches,
               100.0 * (double)r.second.reached / (double)r.second.instructions,
               r.second.words ? 100.0 * (double)r.second.different / (double)r.second.words : 0.0, r.second.floats,
               r.second.bits, r.first.c_str());
    for (const auto& o : ptx_not_interpreted()) printf("%9zu not in the PTX: %s\n", o.second, o.first.c_str());
}

}  // namespace

int main(int argc, char** argv) {
    Checks c = {"ptx", 0, 0, 0};
    std::stringstream text;
    std::vector<std::string> suites(argv + (argc > 2 ? 2 : argc), argv + argc);
    if (suites.empty()) suites = {"interpreter", "kernels", "engine", "mutants"};
    if (argc < 2) {
        fprintf(stderr, "usage: ptx_test FILE.ptx [interpreter] [kernels] [engine] [mutants]\n");
        return STATUS_USAGE;
    }
    text << std::ifstream(argv[1]).rdbuf();
    setvbuf(stdout, nullptr, _IOLBF, 0);
    set_schedule(CUDA_ORDER_SHUFFLE, 1);
    const PtxModule module(text.str());
    for (const std::string& suite : suites) {
        if (suite == "interpreter") {
            test_interpreter(&c);
        } else if (suite == "mutants") {
            test_mutants(&c, text.str());
        } else {
            ptx_start(&module, true);
            if (suite == "kernels") test_kernels(&c, 2);
            else test_engine(&c);
            ptx_stop();
            print_reports();
        }
    }
    check(&c, cuda_on_host_live() == 0, "%d CUDA objects leaked", cuda_on_host_live());
    return checks_verdict(&c);
}
