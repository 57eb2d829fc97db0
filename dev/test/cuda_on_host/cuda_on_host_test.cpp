// cuda_on_host_test.cpp: holds the CUDA engine, compiled for the host, to float64 truth (golden files), to
// the CPU engine and to itself, on ragged little shapes under every schedule of its threads. The exit status
// is the verdict.
//
//     cuda_on_host_test            everything
//     cuda_on_host_test --quick    what the mutants are judged by: the shapes in float32, under three
//     schedules
#include "shim_test.h"

#include <algorithm>
#include <string>
#include <vector>

#include "cuda_on_host.h"
#include "dev/test/engines.h"

extern "C" {
#include "tost/safetensors.h"
extern const TostEngine tost_cpu_engine, tost_cuda_engine;
}

namespace {

struct Schedule {
    CudaOnHostOrder order;
    uint64_t seed;
    bool late;
};
const Schedule FORWARD = {CUDA_ORDER_FORWARD, 0, false},
               LATE = {CUDA_ORDER_FORWARD, 0, true};
const Schedule REVERSE = {CUDA_ORDER_REVERSE, 0, false},
               REVERSE_LATE = {CUDA_ORDER_REVERSE, 0, true};
const Schedule SHUFFLE = {CUDA_ORDER_SHUFFLE, 1, false},
               SHUFFLE_LATE = {CUDA_ORDER_SHUFFLE, 2, true};

void set_schedule(const Schedule& s, uint32_t matmul_alignment = 1) {
    CudaOnHostOptions o;
    o.order = s.order;
    o.seed = s.seed;
    o.late = s.late;
    o.matmul_alignment = matmul_alignment;
    cuda_on_host_set(o);
}

// Each run of the CUDA engine under a schedule of its own.
void test_shape(Checks* c, const Shape& k, TostDtype dtype, const std::vector<Schedule>& schedules) {
    const auto before = [](const void* all, int run) { set_schedule(static_cast<const Schedule*>(all)[run]); };
    const Runs runs = {(int)schedules.size(), before, schedules.data()};
    engines_agree(c, &tost_cuda_engine, &tost_cpu_engine, &k, dtype, &runs);
}

// ---------------------------------------------------------------------------------------------
// Shapes

void test_shapes(Checks* c, TostDtype dtype, bool quick) {
    const std::vector<Schedule> all =
        quick ? std::vector<Schedule>{FORWARD, REVERSE, SHUFFLE_LATE}
              : std::vector<Schedule>{FORWARD, LATE, REVERSE_LATE, SHUFFLE, SHUFFLE_LATE};
    const std::vector<Schedule> two = {FORWARD, REVERSE_LATE};
    Shape shapes[RAGGED_SHAPES];
    ragged_shapes(shapes, chunk_of_source());
    for (int i = 0; i < RAGGED_SHAPES; i++) test_shape(c, shapes[i], dtype, i == 1 ? all : two);
}

// Channels of published size, with parameters as a run begins or with random ones.
void test_wide(Checks* c, TostDtype dtype, int values) {
    test_shape(c, {1, 12, 768, 128, 257, 0, TOST_LEARNED, 1, 100, 1, 1, values}, dtype, {FORWARD});
}

void test_scores(Checks* c, TostDtype dtype) {
    set_schedule(REVERSE_LATE);
    engines_agree_on_scores(c, &tost_cuda_engine, &tost_cpu_engine, dtype, chunk_of_source());
}

void test_course(Checks* c, TostDtype dtype) {
    set_schedule(SHUFFLE_LATE);
    engines_agree_on_a_course(c, &tost_cuda_engine, &tost_cpu_engine, dtype);
}

// Where cuBLASLt has no algorithm for rows that are not aligned.
void test_plain_products(Checks* c, TostDtype dtype) {
    const Shape k = {1, 3, 15, 40, 29, 1, TOST_LEARNED, 2, 37, 1, 2, 0};
    const auto before = [](const void*, int) { set_schedule(FORWARD, 16); };
    const Runs runs = {1, before, nullptr};
    engines_agree(c, &tost_cuda_engine, &tost_cpu_engine, &k, dtype, &runs);
}

// ---------------------------------------------------------------------------------------------
// Golden files

double meta_number(const StFile& f, const char* key) {
    const char* value = st_meta(&f, key);
    return value ? strtod(value, nullptr) : NAN;
}

std::vector<double> read_doubles(const StFile& f, const char* name) {
    TostError err;
    const StTensor* t = st_find(&f, name);
    die_on(t || tost_error(&err, "%s: %s is absent", f.path, name), &err);
    std::vector<double> x(t->count);
    die_on(st_read_f64(&f, t, x.data(), &err), &err);
    return x;
}

std::vector<int32_t> read_ids(const StFile& f, const char* name) {
    TostError err;
    const StTensor* t = st_find(&f, name);
    die_on(t || tost_error(&err, "%s: %s is absent", f.path, name), &err);
    std::vector<int32_t> x(t->count);
    die_on(st_read_i32(&f, t, x.data(), &err), &err);
    return x;
}

// What the file says of every result that `got` holds.
Record read_record(const StFile& f, const Record& got) {
    Record want = {};
    for (int i = 0; i < got.count; i++) {
        const Piece& p = got.piece[i];
        const std::vector<double> x = read_doubles(f, p.name);
        std::copy(x.begin(), x.end(), record_add(&want, p.kind, x.size(), "", p.name));
    }
    return want;
}

Record golden_run(Subject* s, const StFile& f, int B, int T) {
    Record r = {};
    const std::vector<int32_t> inputs = read_ids(f, "inputs"), targets = read_ids(f, "targets");
    const size_t rows = (size_t)B * (size_t)T, steps = inputs.size() / rows;
    std::vector<double> losses, norms;
    record_logits(&r, "logits", s, inputs.data(), B, T);
    for (size_t i = 0; i < steps; i++) {
        const int32_t* y = targets.data() + i * rows;
        const auto count = std::count_if(y, y + rows, [](int32_t id) { return id >= 0; });
        TostAdamW a = {};
        a.lr = meta_number(f, "lr");
        a.beta1 = meta_number(f, "beta1");
        a.beta2 = meta_number(f, "beta2");
        a.eps = meta_number(f, "eps");
        a.weight_decay = meta_number(f, "weight_decay");
        a.step = (int64_t)i + 1;
        s->engine->zero_grad(s->model);
        s->engine->forward_train(s->model, inputs.data() + i * rows, y, B, T, 1.0f / (float)count);
        s->engine->backward(s->model);
        if (i == 0) record_state(&r, s, TOST_GRAD, PIECE_GRAD, "grad.");
        norms.push_back(subject_update(s, a, meta_number(f, "grad_clip")));
        losses.push_back(mean_loss(s));
    }
    record_state(&r, s, TOST_PARAM, PIECE_PARAM, "after.");
    std::copy(losses.begin(), losses.end(), record_add(&r, PIECE_LOSS, steps, "", "losses"));
    std::copy(norms.begin(), norms.end(), record_add(&r, PIECE_GRAD, steps, "", "grad_norms"));
    return r;
}

void test_golden_pair(Checks* c, const std::string& params_path) {
    TostError err;
    StFile params, expect;
    const std::string stem = params_path.substr(0, params_path.size() - strlen(".params.safetensors"));
    die_on(st_open(&params, params_path.c_str(), &err) &&
               st_open(&expect, (stem + ".expect.safetensors").c_str(), &err),
           &err);
    const auto size = [&](const char* key) { return (int)meta_number(expect, key); };
    const TostConfig config = {size("n_layer"),    size("n_head"),     size("n_embd"),
                               size("block_size"), size("vocab_size"), size("bias"), TOST_LEARNED};
    const int B = size("B"), T = size("T");
    Subject s = subject_of(&tost_cuda_engine, config, B, T, true, TOST_FP32);
    for (int i = 0; i < s.tensors.count; i++) {
        const std::vector<double> x = read_doubles(params, s.tensors.tensor[i].name);
        const std::vector<float> narrow(x.begin(), x.end());
        s.engine->put(s.model, TOST_PARAM, &s.tensors.tensor[i], narrow.data());
    }
    Record got = golden_run(&s, expect, B, T), want = read_record(expect, got);
    records_near(c, stem.c_str(), &got, &want, limits_of(TOST_FP32));
    record_free(&got);
    record_free(&want);
    subject_free(&s);
    st_close(&params);
    st_close(&expect);
}

void test_golden(Checks* c, const char* dir) {
    TostError err;
    PathList list;
    die_on(expand_glob(&list, (std::string(dir) + "/*.params.safetensors").c_str(), &err), &err);
    for (int i = 0; i < list.count; i++) {
        set_schedule(i % 2 ? SHUFFLE : REVERSE_LATE);
        test_golden_pair(c, list.paths[i]);
    }
    free_paths(&list);
}

// ---------------------------------------------------------------------------------------------
// A machine that lacks something: one line, nothing left behind

// What the engine leaves free for kernels and graphs
constexpr size_t RESERVE = (size_t)512 << 20;

// The engine takes what memory says, with and without recompute; where that is too much, the line names what
// fits, and that does.
void test_ways_out(Checks* c) {
    const TostConfig config = {4, 3, 60, 200, 257, 1, TOST_LEARNED};
    const struct {
        const char* want;
        bool recompute;
    } ways[] = {{"--recompute or --batch", true}, {"--recompute --batch", true}, {"seq", false}};
    TostEngineOptions o = {};
    o.max_batch = 8;
    o.max_seq = 200;
    o.training = true;
    o.dtype = TOST_BF16;
    size_t need[2], batch_of_one;
    for (const bool recompute : {false, true}) {
        size_t free_bytes = 0, total = 0;
        TostError err = {};
        o.recompute = recompute;
        cuda_on_host_set(CudaOnHostOptions());
        need[recompute] = tost_cuda_engine.memory(&config, &o);
        TostModel* m = tost_cuda_engine.create(&config, &o, &err);
        cudaMemGetInfo(&free_bytes, &total);
        check(c, m && total - free_bytes <= need[recompute] && need[recompute] < 1.01 * (double)(total - free_bytes),
              "memory says %zu bytes, create took %zu", need[recompute], total - free_bytes);
        if (m) tost_cuda_engine.destroy(m);
    }
    check(c, need[true] < need[false], "recompute: %zu bytes, without %zu", need[true], need[false]);
    TostEngineOptions one = o;
    one.max_batch = 1;
    one.recompute = false;
    batch_of_one = tost_cuda_engine.memory(&config, &one);
    const size_t memories[] = {need[true], batch_of_one - 1, batch_of_one / 2};
    o.recompute = false;
    for (int i = 0; i < 3; i++) {
        CudaOnHostOptions machine;
        TostError err = {};
        machine.memory = memories[i] + RESERVE;
        cuda_on_host_set(machine);
        TostModel* m = tost_cuda_engine.create(&config, &o, &err);
        check(c, !m && strstr(err.text, ways[i].want) && !strchr(err.text, '\n'),
              "%zu bytes where %zu are needed: \"%s\"", memories[i], need[false], err.text);
        TostEngineOptions out = o;
        const char* named = strstr(err.text, "--recompute --batch ");
        out.recompute = ways[i].recompute;
        if (named) out.max_batch = atoi(named + strlen("--recompute --batch "));
        m = ways[i].recompute ? tost_cuda_engine.create(&config, &out, &err) : nullptr;
        check(c, m || !ways[i].recompute, "the way out does not fit: \"%s\"", err.text);
        if (m) tost_cuda_engine.destroy(m);
        cudaGetLastError();
    }
    cuda_on_host_set(CudaOnHostOptions());
}

// create on that machine says so, in one line, of which one part is `want`.
void test_refusal(Checks* c, const CudaOnHostOptions& machine, const TostConfig& config, const TostEngineOptions& o,
                  const char* want) {
    const int live = cuda_on_host_live();
    TostError err = {};
    cuda_on_host_set(machine);
    TostModel* m = tost_cuda_engine.create(&config, &o, &err);
    check(c, !m && strstr(err.text, want) && !strchr(err.text, '\n'), "create: \"%s\", want \"%s\"", err.text, want);
    if (m) tost_cuda_engine.destroy(m);
    check(c, cuda_on_host_live() == live && cudaPeekAtLastError() == cudaSuccess,
          "%s: %d objects of CUDA are left, error %d", want, cuda_on_host_live() - live, cudaPeekAtLastError());
    cuda_on_host_set(CudaOnHostOptions());
}

void test_refusals(Checks* c) {
    const TostConfig config = {1, 3, 60, 40, 257, 1, TOST_LEARNED}, wide = {1, 1, 6148, 40, 257, 0, TOST_LEARNED},
                     odd = {1, 1, 4097, 40, 257, 0, TOST_LEARNED};
    const char* const calls[][2] = {{"cudaGetDeviceCount", "no usable GPU: cudaGetDeviceCount: out of memory"},
                                    {"cudaSetDevice", "no usable GPU: cudaSetDevice: out of memory"},
                                    {"cudaGetDeviceProperties", "no usable GPU: cudaGetDeviceProperties: out of"},
                                    {"cudaMemGetInfo", "cudaMemGetInfo: out of memory; a smaller --batch"},
                                    {"cuda_on_host_malloc", ": out of memory; a smaller --batch"}};
    for (const TostDtype dtype : {TOST_FP32, TOST_BF16}) {
        TostEngineOptions o = {}, again = {};
        o.max_batch = 8;
        o.max_seq = 33;
        o.dtype = dtype;
        again = o;
        again.recompute = true;
        const size_t need = tost_cuda_engine.memory(&config, &o);
        check(c, tost_cuda_engine.memory(&config, &again) == need, "recompute without training takes other memory");
        for (const auto& call : calls) {
            CudaOnHostOptions machine;
            machine.failing = call[0];
            test_refusal(c, machine, config, o, call[1]);
        }
        CudaOnHostOptions old, little;
        old.major = 7;
        test_refusal(c, old, config, o, "compute capability 7.0; 8.0 or later is needed");
        little.memory = RESERVE + need - 1;
        test_refusal(c, little, config, o, "free; --batch 7 fits");
        test_refusal(c, CudaOnHostOptions(), wide, o, "--channels 6148: the CUDA engine takes up to 4096, in");
        test_refusal(c, CudaOnHostOptions(), odd, o, "--channels 4097: the CUDA engine takes up to 4096, in");
        check(c, tost_cuda_engine.supports(dtype), "%s is not supported", dtype_name(dtype));
    }
    check(c, tost_cuda_engine.supports(TOST_TF32) && !tost_cuda_engine.supports((TostDtype)3), "supports");
}

void test_lacking(Checks* c) {
    const TostConfig config = {1, 3, 60, 40, 257, 1, TOST_LEARNED};
    TostEngineOptions o = {};
    o.max_batch = 2;
    o.max_seq = 33;
    o.training = true;
    o.dtype = TOST_FP32;
    const int live = cuda_on_host_live();
    CudaOnHostOptions machine;
    TostError err = {};
    char text[256];
    cuda_on_host_set(machine);
    const size_t need = tost_cuda_engine.memory(&config, &o);
    TostModel* m = tost_cuda_engine.create(&config, &o, &err);
    size_t free_bytes = 0, total = 0;
    cudaMemGetInfo(&free_bytes, &total);
    check(c, m && total - free_bytes <= need && need <= (total - free_bytes) + (total - free_bytes) / 4,
          "memory says %zu bytes, create took %zu", need, total - free_bytes);
    if (m) tost_cuda_engine.destroy(m);
    for (const size_t memory : {RESERVE + need - 1, need, (size_t)1000}) {
        machine.memory = memory;
        cuda_on_host_set(machine);
        err.text[0] = '\0';
        m = tost_cuda_engine.create(&config, &o, &err);
        check(c, !m && strstr(err.text, "memory") && !strchr(err.text, '\n'),
              "%zu bytes where %zu are needed: \"%s\"", memory, need, err.text);
        if (m) tost_cuda_engine.destroy(m);
        cudaGetLastError();
    }
    machine.devices = 0;
    cuda_on_host_set(machine);
    err.text[0] = '\0';
    check(c, !tost_cuda_engine.create(&config, &o, &err) && err.text[0] && !strchr(err.text, '\n'),
          "create without a device: \"%s\"", err.text);
    err.text[0] = '\0';
    check(c, !tost_cuda_engine.describe(text, sizeof text, &o, &err) && err.text[0],
          "describe without a device: \"%s\"", err.text);
    cuda_on_host_set(CudaOnHostOptions());
    const TostConfig too_many = {1, 4096, 4096, 40, 257, 0, TOST_LEARNED};
    err.text[0] = '\0';
    check(c, !tost_cuda_engine.create(&too_many, &o, &err) && strstr(err.text, "heads"), "4096 heads: \"%s\"",
          err.text);
    check(c, tost_cuda_engine.describe(text, sizeof text, &o, &err), "describe: \"%s\"", err.text);
    check(c, cuda_on_host_live() == live, "%d objects of CUDA are left", cuda_on_host_live() - live);
}

}  // namespace

int main(int argc, char** argv) {
    Checks c = {"cuda_on_host", 0, 0, 0};
    const bool quick = argc == 2 && strcmp(argv[1], "--quick") == 0;
    if (argc != 1 && !quick) {
        fprintf(stderr, "usage: cuda_on_host_test [--quick]\n");
        return STATUS_USAGE;
    }
    setvbuf(stdout, nullptr, _IOLBF, 0);
    if (!quick) test_shim(&c);
    set_schedule(SHUFFLE);
    test_kernels(&c);
    for (const TostDtype dtype : {TOST_FP32, TOST_BF16}) test_course(&c, dtype);
    test_shapes(&c, TOST_FP32, quick);
    test_shape(&c, long_shape(chunk_of_source()), TOST_FP32, {REVERSE});
    test_scores(&c, TOST_FP32);
    test_scores(&c, TOST_BF16);
    if (quick) return checks_verdict(&c);
    test_shapes(&c, TOST_BF16, true);
    test_shape(&c, {1, 3, 60, 40, 257, 1, TOST_LEARNED, 2, 37, 2, 2, 0}, TOST_TF32, {FORWARD});
    for (const int values : {FRESH, RANDOM}) test_wide(&c, TOST_BF16, values);
    test_wide(&c, TOST_TF32, RANDOM);
    for (const TostDtype dtype : {TOST_FP32, TOST_BF16}) test_plain_products(&c, dtype);
    test_golden(&c, "dev/test/golden");
    char* shared = shared_path("golden");
    if (shared) test_golden(&c, shared);
    else skip(&c, "golden files of ../shared/golden: absent");
    free(shared);
    test_lacking(&c);
    test_refusals(&c);
    test_ways_out(&c);
    check(&c, cuda_on_host_live() == 0, "%d objects of CUDA are left at the end", cuda_on_host_live());
    return checks_verdict(&c);
}
