// ptx_test.cpp: runs tests of the CUDA engine on the PTX that nvcc generates for its kernels.
//
//     ptx_test FILE.ptx              all suites except barriers
//     ptx_test FILE.ptx SUITE...     interpreter, kernels, steps, engine, mutants, barriers (removes one barrier at a
//                                    time and prints which removals the tests detect)
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

// target: the compute capability of the PTX, e.g. 90; resident: number of blocks that run concurrently
void set_schedule(int target, uint64_t seed, int resident) {
    CudaOnHostOptions o;
    o.order = CUDA_ORDER_SHUFFLE;
    o.seed = seed;
    o.resident = resident;
    o.major = target / 10;
    cuda_on_host_set(o);
}

// ---------------------------------------------------------------------------------------------
// The engine

Shape edges() {   // a second chunk of one step
    const int chunk = chunk_of_source();
    return {2, 3, 60, 2 * chunk + 8, 257, 1, TOST_LEARNED, 1, chunk + 1, 1, 2, RANDOM};
}

void test_shape(Checks* c, const Shape& k, TostDtype dtype) {
    const Runs runs = {1, nullptr, nullptr};
    engines_agree(c, &tost_cuda_engine, &tost_cpu_engine, &k, dtype, &runs);
}

// Every kernel of training and evaluation, on few shapes
void test_steps(Checks* c, int target) {
    for (const TostDtype dtype : {TOST_FP32, TOST_BF16}) test_shape(c, edges(), dtype);
    test_shape(c, {1, 1, 64, 40, 29, 0, TOST_UNIFORM, 1, 38, 1, 1, RANDOM}, TOST_BF16);
    if (target >= 90) fp8_test_jump(c, &tost_cuda_engine, &tost_cpu_engine);
}

// Documents, changing shapes, decode, scores, chunks, resuming in fp8, golden files and several ranks
void test_engine(Checks* c, int target) {
    const int chunk = chunk_of_source();
    const TostEngine *cuda = &tost_cuda_engine, *cpu = &tost_cpu_engine;
    const Shape documents = {2, 3, 60, 2 * chunk + 8, 60, 1, TOST_LEARNED, 2, 2 * chunk + 5, 1, 1, DOCUMENTS};
    const ChunkTest chunks = {{2, 3, 60, 2 * chunk, 29, 1, TOST_LEARNED, 2, chunk + 9, 1, 1, RANDOM},
                              chunk / 2 + 3, 5, false};
    ChunkTest without = chunks;
    for (const TostDtype dtype : {TOST_FP32, TOST_BF16}) test_shape(c, documents, dtype);
    engines_agree_on_mixed_shapes(c, cuda, cpu, TOST_FP32);
    engines_agree_on_scores(c, cuda, cpu, TOST_BF16, {7, 3, chunk + 5});
    without.chunk = 0;
    Record whole = chunks_record(cuda, &without, TOST_FP32, EXACT);
    engines_agree_on_chunks(c, cuda, cpu, TOST_FP32, &chunks, &whole);
    record_free(&whole);
    if (target >= 90) fp8_test_resume(c, cuda);
    test_golden(c, cuda, "dev/test/golden", nullptr, nullptr);
    test_exchange(c, EXCHANGE_QUICK);
}

// ---------------------------------------------------------------------------------------------
// Mutants: with some instructions changed, the tests must fail

struct Mutant {
    const char *kernel, *part, *replacement;   // parts of the kernel's name and of the lines; null: removes these lines
};

const char FORWARD[] = "tssa_forward_kernelIfLb0ELb0ELb0E", BACKWARD[] = "tssa_backward_kernelIfLi1ELb0ELb0E",
           NORM[] = "residual_layernorm_forward_kernelIfLi4ELi8", LOSS[] = "cross_entropy_kernelIf";

const Mutant mutants[] = {
    {FORWARD, "griddepcontrol.wait", nullptr},
    {FORWARD, "bar.sync", nullptr},
    {BACKWARD, "bar.sync", nullptr},
    {BACKWARD, "bar.warp.sync", nullptr},
    {LOSS, "bar.sync", nullptr},
    {FORWARD, "st.release.gpu.global.s32", "st.relaxed.gpu.global.s32"},
    {FORWARD, "ld.acquire.gpu.global.s32", nullptr},
    {FORWARD, "shfl.sync.bfly.b32", "shfl.sync.idx.b32"},
    {NORM, "rsqrt.approx.f32", "rcp.rn.f32"},
};

// Changes all lines of the kernel that contain `part`. Returns the number of these lines.
int mutate(std::string* text, const Mutant& m) {
    int lines = 0;
    for (size_t at = text->find(m.kernel, text->find(".entry"));; lines++) {
        const size_t end = text->find("\n}", at);
        at = text->find(m.part, at);
        if (at >= end) return lines;
        const size_t stop = m.replacement ? at + strlen(m.part) : text->find('\n', at);
        if (!m.replacement) at = text->rfind('\n', at) + 1;
        text->replace(at, stop - at, m.replacement ? m.replacement : "");
        at++;
    }
}

// Runs a small model with this PTX in a child process, with three schedules. Returns its error message, or "" if its
// checks pass.
std::string run_mutant(Checks* c, const std::string& text) {
    int status = 0;
    const std::string said = child_stderr(c, &status, [&] {
        const PtxModule module(text);
        Checks inner = {"mutant", 0, 0, 0};
        if (!freopen("/dev/null", "w", stdout)) _exit(1);
        ptx_start(&module, false);
        for (int run = 0; run < 3 && inner.failed == 0; run++) {
            set_schedule(module.target, (uint64_t)run, 1 + 2 * run);
            test_shape(&inner, edges(), TOST_FP32);
        }
        if (inner.failed > 0) fprintf(stderr, "%d checks failed\n", inner.failed);
        _exit(inner.failed > 0);
    });
    return status == 0 ? "" : said.empty() ? "no message" : said.substr(0, said.find('\n'));
}

void test_mutants(Checks* c, const std::string& text) {
    for (const Mutant& m : mutants) {
        std::string changed = text;
        const int lines = mutate(&changed, m);
        if (!check(c, lines > 0, "mutant: %s has no %s", m.kernel, m.part)) continue;
        const std::string said = run_mutant(c, changed);
        printf("%s, %d times %s: %.150s\n", m.kernel, lines, m.part, said.c_str());
        check(c, !said.empty(), "mutant: %s with its %s changed passes the tests", m.kernel, m.part);
    }
}

// Removes each barrier that the small model reaches, one at a time, and prints how the tests fail, or that they pass.
void test_barriers(Checks* c, const std::string& text) {
    const PtxModule module(text);
    set_schedule(module.target, 0, 3);
    ptx_start(&module, false);
    test_shape(c, edges(), TOST_FP32);
    ptx_stop();
    for (const auto& k : module.kernels)
        for (const PtxInstruction& i : k.second.code) {
            if (!i.reached || strncmp(i.opcode, "bar.", 4) != 0) continue;
            std::string changed = text;
            size_t at = 0;
            for (int line = 1; line < i.line; line++) at = changed.find('\n', at) + 1;
            changed.replace(at, changed.find('\n', at) - at, "");
            const std::string said = run_mutant(c, changed);
            printf("%s, PTX line %d (%s): %s\n", k.first.c_str(), i.line, module.source_of(i).c_str(),
                   said.empty() ? "not detected" : said.c_str());
        }
}

// ---------------------------------------------------------------------------------------------
// Comparison of PTX and C++ over all launches

// Where the last bit may differ. Floats: most for the sums of dD in TSSA, small differences of large sums.
constexpr double LIMIT_FLOATS = 2e-4, LIMIT_BF16 = 1e-3, LIMIT_FP8 = 3e-2;

// Columns: reached: share of the kernel's instructions that ran; different: share of the words it writes that differ
void check_reports(Checks* c, const PtxModule& module) {
    printf("%9s %9s %9s %9s %9s  kernel\n", "launches", "reached", "different", "floats", "bits");
    for (const auto& k : module.kernels) {
        const auto found = ptx_reports().find(k.first);
        if (found == ptx_reports().end()) {
            printf("%9d %49s\n", 0, k.first.c_str());
            continue;
        }
        const PtxReport& r = found->second;
        printf("%9zu %8.1f%% %8.3f%% %9.1e %9.1e  %s\n", r.launches,
               100.0 * (double)r.reached / (double)r.instructions,
               r.words ? 100.0 * (double)r.different / (double)r.words : 0.0, r.floats, r.bits, k.first.c_str());
        const bool fp8 = k.first.find("fp8") != std::string::npos;
        check(c, r.floats <= LIMIT_FLOATS && r.bits <= (fp8 ? LIMIT_FP8 : LIMIT_BF16),
              "%s: PTX and C++ differ by %.1e (floats), %.1e (others)", k.first.c_str(), r.floats, r.bits);
    }
    for (const auto& o : ptx_not_interpreted())
        printf("%9zu launches of %s, not in the PTX\n", o.second, o.first.c_str());
}

}  // namespace

int main(int argc, char** argv) {
    Checks c = {"ptx", 0, 0, 0};
    std::stringstream text;
    std::vector<std::string> suites(argv + (argc > 2 ? 2 : argc), argv + argc);
    if (suites.empty()) suites = {"interpreter", "kernels", "steps", "engine", "mutants"};
    if (argc < 2) {
        fprintf(stderr, "usage: ptx_test FILE.ptx [interpreter] [kernels] [steps] [engine] [mutants] [barriers]\n");
        return STATUS_USAGE;
    }
    text << std::ifstream(argv[1]).rdbuf();
    setvbuf(stdout, nullptr, _IOLBF, 0);
    set_schedule(90, 1, 1);
    const PtxModule module(text.str());
    bool launched = false;
    for (const std::string& suite : suites) {
        if (suite == "interpreter") {
            test_interpreter(&c);
        } else if (suite == "mutants") {
            test_mutants(&c, text.str());
        } else if (suite == "barriers") {
            test_barriers(&c, text.str());
        } else {
            set_schedule(module.target, 2, 5);
            ptx_start(&module, suite != "engine");
            if (suite == "kernels") test_kernels(&c, 2);
            else if (suite == "steps") test_steps(&c, module.target);
            else test_engine(&c, module.target);
            ptx_stop();
            launched = true;
        }
    }
    if (launched) check_reports(&c, module);
    check(&c, cuda_on_host_live() == 0, "%d CUDA objects leaked", cuda_on_host_live());
    return checks_verdict(&c);
}
