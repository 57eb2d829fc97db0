// cuda_on_host_test.cpp: tests the CUDA engine compiled for the CPU emulation against the CPU engine, on small shapes
// and several thread schedules. test_tost --cuda 0 compares it with the golden files.
//
//     cuda_on_host_test              all tests; --first-half and --second-half each run half of them
//     cuda_on_host_test --mutants    the tests of mutants.sh: all float32 shapes, three schedules
//     cuda_on_host_test --exchange   the tests of mutants.sh for several ranks
//     cuda_on_host_test --quick      the tests of `make test`: every kernel, few shapes
//
// The exit status is 0 only if every check passed.
#include "emulation_test.h"

#include <string>
#include <vector>

#include "dev/test/engine/engines.h"

extern "C" const TostEngine tost_cuda_engine, tost_cpu_engine;

namespace {

typedef CudaOnHostOptions Schedule;
const Schedule FORWARD = {CUDA_ORDER_FORWARD}, REVERSE = {CUDA_ORDER_REVERSE}, SHUFFLE = {CUDA_ORDER_SHUFFLE},
               REVERSE_LATE = {CUDA_ORDER_REVERSE, 1, 1, true}, SHUFFLE_LATE = {CUDA_ORDER_SHUFFLE, 2, 1, true},
               RESIDENT = {CUDA_ORDER_SHUFFLE, 3, 5};

// Compares the CUDA engine, which runs with this schedule from here on, with the CPU engine.
Comparison with_cpu(Checks* c, TostDtype dtype, const Schedule& schedule) {
    cuda_on_host_set(schedule);
    return {c, &tost_cuda_engine, &tost_cpu_engine, dtype};
}

// Runs the CUDA engine once per schedule.
void test_shape(Checks* c, const Shape& k, TostDtype dtype, const std::vector<Schedule>& schedules) {
    const auto before = [](const void* all, int run) { cuda_on_host_set(static_cast<const Schedule*>(all)[run]); };
    const Runs runs = {(int)schedules.size(), before, schedules.data()};
    engines_agree(with_cpu(c, dtype, schedules[0]), &k, &runs);
}

// ---------------------------------------------------------------------------------------------
// Shapes

// More rows, and runs of the convolution, than blocks; more channels than threads: kernels loop over all of them.
// Uniform membership: with a learned one, the rounding errors of so many channels are near the limits.
const Shape large_shapes[] = {{1, 1, 4, 424, 7, 1, TOST_LEARNED, 5, 417, 1, 1, CONV},
                              {1, 10, 1030, 32, 29, 1, TOST_UNIFORM, 2, 21, 1, 1, CONV},
                              {1, 7, 1029, 32, 29, 0, TOST_UNIFORM, 2, 5, 1, 1, RANDOM}};   // 4 C is no multiple of 8

// The kernels of both types are the same templates: in bf16, one schedule for all shapes but one.
void test_shapes(Checks* c, TostDtype dtype, const std::vector<Schedule>& all) {
    std::vector<Schedule> few = {REVERSE_LATE};
    if (dtype == TOST_FP32) few.push_back(FORWARD);
    for (const Shape& k : ragged_shapes) test_shape(c, k, dtype, &k == &ragged_shapes[1] ? all : few);
    for (const Shape& k : large_shapes) test_shape(c, k, dtype, {REVERSE_LATE});
}

// The channels of tost-base, with initial or random parameters.
void test_wide(Checks* c, TostDtype dtype, int values) {
    test_shape(c, {1, 12, 768, 128, 257, 0, TOST_LEARNED, 1, 100, 1, 1, values}, dtype, {FORWARD});
}

// One of the tests of engines_agree_on_all_chunks, with a shorter last chunk
void test_few_chunks(Checks* c, TostDtype dtype, int values) {
    const int T = 2 * CUDA_RUN + 9;
    const ChunksTest test = {{2, 3, 60, T + 4, 29, 1, TOST_LEARNED, 2, T, 1, 1, values}, 5, {T / 3 - 3}};
    engines_agree_on_chunks(with_cpu(c, dtype, REVERSE_LATE), &test);
}

// States of more runs of the convolution than blocks
void test_many_runs(Checks* c) {
    const ChunksTest test = {{1, 1, 4, 424, 7, 1, TOST_LEARNED, 6, 417, 1, 1, CONV}, 5, {380}};
    engines_agree_on_chunks(with_cpu(c, TOST_FP32, SHUFFLE), &test);
}

void test_stale_gradients(Checks* c) {
    cuda_on_host_set(REVERSE_LATE);
    engine_overwrites_gradients(c, &tost_cuda_engine, TOST_FP32, TOST_LEARNED);
    engine_overwrites_gradients(c, &tost_cuda_engine, TOST_BF16, TOST_UNIFORM);
}

// ---------------------------------------------------------------------------------------------
// Missing device or memory: create must fail with one line and free everything

// Device memory that the engine reserves for kernels and graphs
constexpr size_t RESERVE = (size_t)512 << 20;

const TostConfig SMALL = {1, 3, 60, 40, 257, 1, TOST_LEARNED, 0, 0, 0, 0},
                 DEEP = {4, 3, 60, 200, 257, 1, TOST_LEARNED, 0, 0, 0, 0};

size_t memory_of(const TostConfig& config, const TostEngineOptions& o) { return tost_cuda_engine.memory(&config, &o); }

// Checks that create allocates about as many bytes as memory predicts.
void test_memory(Checks* c, const TostConfig& config, const TostEngineOptions& o, double tolerance) {
    size_t free_bytes = 0, total = 0;
    cuda_on_host_set(CudaOnHostOptions());
    const size_t need = memory_of(config, o);
    Subject s = subject_open(&tost_cuda_engine, config, o);
    cudaMemGetInfo(&free_bytes, &total);
    const size_t used = total - free_bytes;
    check(c, used <= need && (double)need <= tolerance * (double)used,
          "memory predicts %zu bytes, create allocated %zu", need, used);
    subject_free(&s);
}

// create must fail on this machine with one line that contains `want`.
void test_refusal(Checks* c, const CudaOnHostOptions& machine, const TostConfig& config, const TostEngineOptions& o,
                  const char* want) {
    const int live = cuda_on_host_live();
    TostError err = {};
    cuda_on_host_set(machine);
    const TostModel* m = tost_cuda_engine.create(&config, &o, &err);
    check(c, !m && strstr(err.text, want) && !strchr(err.text, '\n'), "create: \"%s\", want \"%s\"", err.text, want);
    const cudaError_t error = cudaGetLastError();
    check(c, cuda_on_host_live() == live && error == cudaSuccess, "%s: %d CUDA objects leaked, error %d", want,
          cuda_on_host_live() - live, error);
}

// With chunks, only the memory of the states before each of them depends on the length of the sequences.
void test_chunks_memory(Checks* c, TostDtype dtype) {
    const TostConfig config = {2, 3, 60, 1 << 20, 257, 1, TOST_LEARNED, 0, 0, 0, 0};
    TostEngineOptions o = engine_options(2, 4096, true, dtype);
    const size_t one = memory_of(config, o), state = 2 * 2 * (2 * 60 + 3) * sizeof(double);
    o.states = chunks_states(1 << 20, 4096, true);
    const size_t many = memory_of(config, o);
    check(c, many > one && many < one + 256 * state + 4096, "256 chunks: %zu bytes, one: %zu", many, one);
}

void test_refusals(Checks* c) {
    const TostConfig wide = {1, 1, 6148, 40, 257, 0, TOST_LEARNED, 0, 0, 0, 0},
                     heads = {1, 4096, 4096, 40, 257, 0, TOST_LEARNED, 0, 0, 0, 0},
                     memory = {1, 1, 512, 40, 257, 0, TOST_LEARNED, 0, 1, 0, 0};
    const char* const calls[][2] = {{"cudaGetDeviceCount", "no usable GPU: out of memory; a smaller --batch"},
                                    {"cudaSetDevice", "no usable GPU: out of memory"},
                                    {"cudaGetDeviceProperties", "no usable GPU: out of memory"},
                                    {"cudaMemGetInfo", "of GPU memory cannot be allocated: out of memory"},
                                    {"cuda_on_host_malloc", "of GPU memory cannot be allocated: out of memory"}};
    const TostEngineOptions o = engine_options(8, 33, false, TOST_BF16),
                            training = engine_options(2, 33, true, TOST_FP32);
    CudaOnHostOptions machine;
    TostError err = {};
    char text[256];
    TostEngineOptions muon = training;
    muon.optimizer = TOST_MUON;
    test_memory(c, SMALL, training, 1.25);
    test_memory(c, SMALL, muon, 1.25);
    test_memory(c, DEEP, engine_options(8, 200, true, TOST_BF16), 1.01);
    for (const auto& call : calls) {
        machine.failing = call[0];
        test_refusal(c, machine, SMALL, o, call[1]);
    }
    machine.failing = nullptr;
    machine.major = 7;
    test_refusal(c, machine, SMALL, o, "compute capability 7.0; 8.0 or later is needed");
    machine.major = 8;
    machine.memory = RESERVE + memory_of(SMALL, o) - 1;
    test_refusal(c, machine, SMALL, o, "lower --batch, --seq, --chunk or --samples, or");
    machine.memory = (size_t)64 << 30;
    cuda_on_host_set(machine);
    check(c, tost_cuda_engine.usable_memory(nullptr) == machine.memory / 16 * 15 - RESERVE, "free memory of 64 GiB");
    machine.memory = 1000;
    test_refusal(c, machine, SMALL, training, "use --chunk, or use a smaller model");
    test_refusal(c, CudaOnHostOptions(), wide, o, "--channels 6148: the CUDA engine takes up to 6144");
    test_refusal(c, CudaOnHostOptions(), heads, o, "heads");
    test_refusal(c, CudaOnHostOptions(), memory, o, "--memory 1: heads of 512 channels do not fit");
    check(c, tost_cuda_engine.describe(text, sizeof text, &o, &err), "describe: \"%s\"", err.text);
    machine.devices = 0;
    test_refusal(c, machine, SMALL, o, "no GPU was found");
    check(c, !tost_cuda_engine.describe(text, sizeof text, &o, &err) && err.text[0], "describe without a device");
    for (const TostDtype dtype : {TOST_FP32, TOST_TF32, TOST_BF16})
        check(c, tost_cuda_engine.supports(dtype), "%s is not supported", dtype_name(dtype));
    cuda_on_host_set(CudaOnHostOptions());
}

// The peak rate is from the data sheet, unless the GPU is unknown or a part of one.
void test_peak(Checks* c) {
    const struct { const char* name; int multiprocessors; TostDtype dtype; double want; } cases[] = {
        {"cuda_on_host", 3, TOST_FP32, 0}, {"NVIDIA H200", 132, TOST_BF16, 989.4e12},
        {"NVIDIA H200", 132, TOST_TF32, 494.7e12}, {"NVIDIA H200 MIG 1g.18gb", 3, TOST_BF16, 0},
    };
    for (const auto& k : cases) {
        CudaOnHostOptions machine;
        machine.name = k.name;
        machine.multiprocessors = k.multiprocessors;
        cuda_on_host_set(machine);
        Subject s = subject_of(&tost_cuda_engine, SMALL, 1, 8, true, k.dtype, 0);
        const double peak = tost_cuda_engine.peak_flops(s.model);
        check(c, fabs(peak - k.want) <= 1e-3 * k.want, "peak of %s: %g, want %g", k.name, peak, k.want);
        subject_free(&s);
    }
}

// Runs the same steps in a child process, on the default emulated machine and on this one. The status is 0 if the
// results are equal.
RankEnd compare_in_child(const CudaOnHostOptions& machine, TostDtype dtype, const char* no_graphs = "0") {
    return run_child([&] {
        Checks child = {"cuda_on_host", 0, 0, 0};
        cuda_on_host_set(CudaOnHostOptions());
        const Record want = mixed_record(&tost_cuda_engine, nullptr, dtype);
        cuda_on_host_set(machine);
        setenv("TOST_NO_GRAPHS", no_graphs, 1);
        const Record got = mixed_record(&tost_cuda_engine, nullptr, dtype);
        records_same(&child, dtype_name(dtype), &got, &want, "on this machine");
        _exit(child.failed != 0);
    });
}

// cuBLASLt refuses algorithms that it has proposed: another one gives the same bits; if there is none, the error names
// the product.
void test_refused_products(Checks* c) {
    for (const int refused : {2, 3}) {
        CudaOnHostOptions machine;
        machine.refused = refused;
        const auto [status, text] = compare_in_child(machine, TOST_BF16);
        const bool named = text.find("product of (") != std::string::npos && text.find("in bf16") != std::string::npos;
        check(c, refused == 2 ? status == 0 : named && status, "%d algorithms refused: \"%s\"", refused, text.c_str());
    }
}

// If a graph cannot be captured, one warning and the same bits; with TOST_NO_GRAPHS=1, no graph.
void test_graphs(Checks* c) {
    CudaOnHostOptions machine;
    for (const char* call : {"cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiate", "launch"}) {
        machine.failing = call;
        const RankEnd end = compare_in_child(machine, TOST_FP32);
        exits(c, end, 0, "TOST_NO_GRAPHS=1: ");
        check(c, end.text.find(machine.failing == std::string("launch") ? "kernel" : call) != std::string::npos,
              "%s: \"%s\"", call, end.text.c_str());
    }
    const auto [status, text] = compare_in_child(machine, TOST_FP32, "1");
    check(c, status == 0 && text.empty(), "TOST_NO_GRAPHS=1: \"%s\"", text.c_str());
}

// ---------------------------------------------------------------------------------------------

// A few shapes, which together launch every kernel.
void test_quick(Checks* c) {
    const int run = CUDA_RUN, block = 2 * run + 8;
    test_emulation(c);
    cuda_on_host_set(SHUFFLE);
    test_kernels(c, 4);
    for (const TostDtype dtype : {TOST_FP32, TOST_BF16}) {
        engines_agree_on_mixed_shapes(with_cpu(c, dtype, SHUFFLE_LATE));
        engines_agree_on_muon(with_cpu(c, dtype, SHUFFLE_LATE), &muon_shapes[0]);
        engine_keeps_low_rank(c, &tost_cuda_engine, dtype);
    }
    test_shape(c, {2, 3, 60, block, 257, 1, TOST_LEARNED, 1, run + 1, 1, 2, RANDOM}, TOST_FP32, {SHUFFLE_LATE});
    test_shape(c, {1, 3, 60, block, 29, 1, TOST_LEARNED, 2, 2 * run + 6, 1, 1, FAINT}, TOST_BF16, {REVERSE_LATE});
    test_shape(c, {1, 1, 64, block, 29, 0, TOST_UNIFORM, 1, run + 6, 1, 1, RANDOM}, TOST_FP32, {SHUFFLE});
    test_shape(c, {2, 3, 60, 3, 29, 1, TOST_LEARNED, 2, run + 6, 1, 2, NO_POSITIONS}, TOST_FP32, {SHUFFLE});
    test_shape(c, {2, 3, 60, block, 29, 1, TOST_LEARNED, 2, run + 6, 1, 2, CONV}, TOST_BF16, {SHUFFLE});
    test_shape(c, large_shapes[0], TOST_FP32, {SHUFFLE});
    test_few_chunks(c, TOST_FP32, CONV_MEMORY);
    test_stale_gradients(c);
    test_peak(c);
    test_refusals(c);
    test_exchange(c, EXCHANGE_QUICK);
}

// All float32 shapes
void test_float32(Checks* c, const std::vector<Schedule>& schedules) {
    for (const TostDtype dtype : {TOST_FP32, TOST_BF16})
        engines_agree_on_mixed_shapes(with_cpu(c, dtype, SHUFFLE_LATE));
    for (const Shape& k : muon_shapes) engines_agree_on_muon(with_cpu(c, TOST_FP32, SHUFFLE_LATE), &k);
    test_shapes(c, TOST_FP32, schedules);
    for (const Shape& k : {long_shape, long_memory}) test_shape(c, k, TOST_FP32, {REVERSE});
}

void test_mutants(Checks* c) {
    test_kernels(c, 12);
    test_stale_gradients(c);
    for (const int values : {RANDOM, CONV, NO_POSITIONS, CONV_MEMORY}) test_few_chunks(c, TOST_FP32, values);
    test_float32(c, {FORWARD, REVERSE, SHUFFLE_LATE, RESIDENT});
}

// The tests are divided into two halves that take about the same time, so that they can run in parallel.
void test_first_half(Checks* c) {
    test_emulation(c);
    cuda_on_host_set(SHUFFLE);
    test_kernels(c, 16);
    test_float32(c, {SHUFFLE_LATE, RESIDENT});
    engines_agree_on_all_chunks(with_cpu(c, TOST_FP32, RESIDENT), CUDA_RUN);
    test_many_runs(c);
    test_peak(c);
    test_refusals(c);
    test_graphs(c);
    test_refused_products(c);
    test_chunks_memory(c, TOST_BF16);
    test_exchange(c, EXCHANGE_ALL);
}

void test_second_half(Checks* c) {
    cuda_on_host_set(SHUFFLE);
    for (const Shape& k : muon_shapes)
        for (const TostDtype dtype : {TOST_TF32, TOST_BF16})
            engines_agree_on_muon(with_cpu(c, dtype, SHUFFLE_LATE), &k);
    engines_agree_on_all_chunks(with_cpu(c, TOST_BF16, SHUFFLE_LATE), CUDA_RUN);
    test_shapes(c, TOST_BF16, {REVERSE, SHUFFLE_LATE});
    test_shape(c, {1, 3, 60, 40, 257, 1, TOST_LEARNED, 2, 37, 2, 2, 0}, TOST_TF32, {FORWARD});
    for (const int values : {FRESH, RANDOM}) test_wide(c, TOST_BF16, values);
    test_wide(c, TOST_TF32, RANDOM);
    test_stale_gradients(c);
}

}  // namespace

int main(int argc, char** argv) {
    Checks c = {"cuda_on_host", 0, 0, 0};
    const std::string mode = argc == 1 ? "" : argc == 2 ? argv[1] : "?";
    const bool all = mode.empty(), first = mode == "--first-half", second = mode == "--second-half";
    if (!all && !first && !second && mode != "--quick" && mode != "--mutants" && mode != "--exchange") {
        fprintf(stderr, "usage: cuda_on_host_test [--first-half | --second-half | --quick | --mutants | --exchange]\n");
        return STATUS_USAGE;
    }
    setvbuf(stdout, nullptr, _IOLBF, 0);
    cuda_on_host_set(SHUFFLE);
    if (mode == "--quick") test_quick(&c);
    else if (mode == "--mutants") test_mutants(&c);
    else if (mode == "--exchange") test_exchange(&c, EXCHANGE_MUTANTS);
    if (all || first) test_first_half(&c);
    if (all || second) test_second_half(&c);
    check(&c, cuda_on_host_live() == 0, "%d CUDA objects leaked", cuda_on_host_live());
    return checks_verdict(&c);
}
