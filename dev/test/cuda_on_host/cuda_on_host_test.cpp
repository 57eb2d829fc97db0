// cuda_on_host_test.cpp: holds the CUDA engine, compiled for the host, to float64 truth (golden files), to
// the CPU engine and to itself, on ragged little shapes under every schedule of its threads. The exit status
// is the verdict.
//
//     cuda_on_host_test            everything
//     cuda_on_host_test --quick    what the mutants are judged by: the shapes in float32, under three
//     schedules
#include "shim_test.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "cuda_on_host.h"

extern "C" {
#include "tost/engine.h"
#include "tost/rng.h"
#include "tost/safetensors.h"
extern const TostEngine tost_cpu_engine, tost_cuda_engine;
}

namespace {

// Limits of relative L2 error against the CPU engine (float32) and against truth. In bf16 the gradients of ln_1
// and c_attn err most, up to 3e-2, and not by the kernels: through s/S they go with 1/w, so that in float32 too
// they move as far when only the weights are rounded to bf16, and those of c_fc by less than 1e-2.
struct Limits {
    double logits, grads, params, loss;
};
const Limits FP32 = {1e-5, 1e-4, 1e-4, 1e-5}, BF16 = {1e-2, 3e-2, 1e-2, 1e-2},
             TF32 = {2e-3, 5e-3, 2e-3, 2e-3};

const Limits& limits_of(TostDtype dtype) {
    return dtype == TOST_BF16 ? BF16 : dtype == TOST_TF32 ? TF32 : FP32;
}
const char* name_of(TostDtype dtype) {
    return dtype == TOST_BF16 ? "bf16" : dtype == TOST_TF32 ? "tf32" : "fp32";
}

struct Schedule {
    const char* name;
    CudaOnHostOrder order;
    uint64_t seed;
    bool late;
};
const Schedule FORWARD = {"forward", CUDA_ORDER_FORWARD, 0, false},
               LATE = {"late", CUDA_ORDER_FORWARD, 0, true};
const Schedule REVERSE = {"reverse", CUDA_ORDER_REVERSE, 0, false},
               REVERSE_LATE = {"reverse late", CUDA_ORDER_REVERSE, 0, true};
const Schedule SHUFFLE = {"shuffle", CUDA_ORDER_SHUFFLE, 1, false},
               SHUFFLE_LATE = {"shuffle late", CUDA_ORDER_SHUFFLE, 2, true};

void set_schedule(const Schedule& s, uint32_t matmul_alignment = 1) {
    CudaOnHostOptions o;
    o.order = s.order;
    o.seed = s.seed;
    o.late = s.late;
    o.matmul_alignment = matmul_alignment;
    cuda_on_host_set(o);
}

void die_on(bool ok, const TostError& err) {
    if (ok) return;
    printf("FAILED cuda_on_host: %s\ncuda_on_host: 0 passed, 1 failed, 0 skipped\n", err.text);
    exit(STATUS_FAILED);
}

// |a - b| / |b|; where b is zero, |a|. NaN where either holds one.
double relative_l2(const std::vector<double>& a, const std::vector<double>& b) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < b.size(); i++) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        norm += b[i] * b[i];
    }
    return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

// ---------------------------------------------------------------------------------------------
// A model and what it computed

class Subject {
  public:
    const TostEngine* engine;
    TostConfig config;
    TostTensors tensors;
    TostModel* model;

    Subject(const TostEngine* e, TostConfig c, int B, int T, bool training, TostDtype dtype,
            bool recompute = false)
        : engine(e), config(c) {
        TostError err;
        TostEngineOptions o = {};
        o.max_batch = B;
        o.max_seq = T;
        o.training = training;
        o.recompute = recompute;
        o.dtype = dtype;
        o.threads = 1;   // of the CPU engine: more only wait for each other on models so small
        die_on(tost_config_check(&config, &err), err);
        tensors = tost_tensors(&config);
        model = engine->create(&config, &o, &err);
        die_on(model != nullptr, err);
    }
    ~Subject() {
        engine->destroy(model);
        tost_tensors_free(&tensors);
    }
    Subject(const Subject&) = delete;
    Subject& operator=(const Subject&) = delete;

    std::vector<double> get(TostState state, const TostTensor& t) const {
        std::vector<float> x(t.size);
        engine->get(x.data(), model, state, &t);
        return std::vector<double>(x.begin(), x.end());
    }

    // Every parameter away from its initial value, so that every gradient is exercised.
    void randomise(uint64_t seed) {
        Rng rng = rng_seeded(seed, 1);
        for (int i = 0; i < tensors.count; i++) {
            const TostTensor& t = tensors.tensor[i];
            const double centre = t.init == TOST_ONE ? 1.0 : t.init == TOST_GAMMA ? 0.5 : 0.0;
            const double spread = t.ndim == 1 || t.init == TOST_ONE ? 0.2 : t.init == TOST_ZERO ? 0.02 : 0.15;
            std::vector<float> x(t.size);
            for (float& value : x) value = (float)(centre + spread * rng_normal(&rng));
            engine->put(model, TOST_PARAM, &t, x.data());
        }
    }

    std::vector<double> logits(const int32_t* inputs, int B, int T) {
        std::vector<float> x((size_t)B * (size_t)T * (size_t)config.vocab_size);
        engine->forward(model, inputs, nullptr, B, T, 0.0f);
        engine->logits(x.data(), model);
        return std::vector<double>(x.begin(), x.end());
    }

    double mean_loss() {
        double sum;
        int64_t count;
        engine->read_loss(&sum, &count, model);
        return sum / (double)count;
    }

    // Clipping and AdamW, as the training loop does them; returns the norm before clipping.
    double update(TostAdamW a, double clip) {
        const double norm = engine->grad_norm(model);
        a.grad_scale = std::min(1.0, clip / (norm + TOST_CLIP_EPS));
        engine->update(model, &a);
        return norm;
    }
};

enum Kind { LOGITS, GRAD, PARAM, LOSS };

struct Piece {
    std::string name;
    Kind kind;
    std::vector<double> values;
};

typedef std::vector<Piece> Record;

void record_state(Record* r, const Subject& s, TostState state, Kind kind, const char* prefix) {
    for (int i = 0; i < s.tensors.count; i++)
        r->push_back(
            {prefix + std::string(s.tensors.tensor[i].name), kind, s.get(state, s.tensors.tensor[i])});
}

double limit_of(Kind kind, const Limits& l) {
    return kind == LOGITS ? l.logits : kind == GRAD ? l.grads : kind == PARAM ? l.params : l.loss;
}

// Each piece within its limit; prints the worst of each kind.
void compare(Checks* c, const char* what, const Record& got, const Record& want, const Limits& limits) {
    double worst[4] = {};
    const char* worst_name[4] = {"", "", "", ""};
    if (!check(c, got.size() == want.size(), "%s: %zu results, want %zu", what, got.size(), want.size()))
        return;
    for (size_t i = 0; i < got.size(); i++) {
        const Kind kind = got[i].kind;
        const double error = relative_l2(got[i].values, want[i].values);
        check(c, error <= limit_of(kind, limits), "%s: %s: relative L2 error %.3e, limit %.0e", what,
              got[i].name.c_str(), error, limit_of(kind, limits));
        if (error <= worst[kind]) continue;
        worst[kind] = error;
        worst_name[kind] = got[i].name.c_str();
    }
    printf("%s: logits %.1e, loss %.1e, gradients %.1e (%s), parameters %.1e (%s)\n", what, worst[LOGITS],
           worst[LOSS], worst[GRAD], worst_name[GRAD], worst[PARAM], worst_name[PARAM]);
}

// ---------------------------------------------------------------------------------------------
// One shape, through everything that an engine does

struct Case {
    int layers, heads, channels, block, vocab, bias;
    int B, T;
    int updates, micros;  // micro-batches an update
    TostDtype dtype;
    int membership = TOST_LEARNED;
    bool recompute = false;
};

std::string describe(const Case& k) {
    char text[160];
    snprintf(text, sizeof text, "%s B=%d T=%d L=%d nh=%d C=%d V=%d%s%s", name_of(k.dtype), k.B, k.T,
             k.layers, k.heads, k.channels, k.vocab, k.bias ? " bias" : "",
             k.membership == TOST_UNIFORM ? " uniform" : "");
    return text;
}

// Ids of one micro-batch; one token in eight is token 3, so that some rows of wte gather many; some targets
// do not count.
void draw_batch(std::vector<int32_t>* inputs, std::vector<int32_t>* targets, const Case& k, uint64_t seed) {
    Rng rng = rng_seeded(seed, 2);
    const size_t rows = (size_t)k.B * (size_t)k.T;
    inputs->resize(rows);
    targets->resize(rows);
    for (size_t i = 0; i < rows; i++) {
        (*inputs)[i] = rng_below(&rng, 8) == 0 ? 3 : (int32_t)rng_below(&rng, (uint64_t)k.vocab);
        (*targets)[i] = rng_below(&rng, 5) == 0 ? -1 : (int32_t)rng_below(&rng, (uint64_t)k.vocab);
    }
    (*targets)[rows - 1] = 1;
}

// What each layer computed in the last forward, of B·T rows; the first comes last, far from where backward starts.
void record_activations(Record* r, const Subject& s, const Case& k) {
    const size_t rows = (size_t)k.B * (size_t)k.T;
    for (int l = k.layers; l >= 0; l--)
        for (const TostActivation what : {TOST_W, TOST_PI, TOST_X}) {
            if (l == k.layers && what != TOST_X) continue;
            std::vector<float> x(rows * (size_t)(what == TOST_PI ? k.heads : k.channels));
            s.engine->activation(x.data(), s.model, what, l);
            const char* name = what == TOST_W ? "w" : what == TOST_PI ? "pi" : "x";
            r->push_back({name + std::to_string(l), LOGITS, {x.begin(), x.end()}});
        }
}

void run_updates(Record* r, Subject* s, const Case& k, const std::vector<int32_t>& ids) {
    std::vector<int32_t> inputs, targets;
    for (int i = 0; i < k.updates; i++) {
        s->engine->zero_grad(s->model);
        for (int micro = 0; micro < k.micros; micro++) {
            draw_batch(&inputs, &targets, k, (uint64_t)(100 + k.micros * i + micro));
            s->engine->forward(s->model, inputs.data(), targets.data(), k.B, k.T,
                               1.0f / (float)(k.micros * k.B * k.T));
            std::fill(inputs.begin(), inputs.end(), 0);  // the caller's arrays are free again
            std::fill(targets.begin(), targets.end(), 0);
            if (i > 0) record_activations(r, *s, k);  // which backward does not notice
            s->engine->backward(s->model);
        }
        if (i == 0) record_state(r, *s, TOST_GRAD, GRAD, "grad.");
        if (i == 0) record_activations(r, *s, k);
        TostAdamW a = {};
        a.lr = 1e-3;
        a.beta1 = 0.9;
        a.beta2 = 0.95;
        a.eps = 1e-8;
        a.weight_decay = 0.1;
        a.step = i + 1;
        const double norm = s->update(a, 1.0);
        if (i == 0) r->push_back({"gradient norm", GRAD, {norm}});
        if (i == 0)
            r->push_back({"logits of a shorter batch", LOGITS, s->logits(ids.data(), 1, (k.T + 1) / 2)});
        r->push_back({"loss of update " + std::to_string(i), LOSS, {s->mean_loss()}});
    }
    if (k.updates > 0) record_state(r, *s, TOST_PARAM, PARAM, "after.");
}

void run_decode(Record* r, Subject* s, const Case& k, const std::vector<int32_t>& ids) {
    const size_t n = (size_t)k.B * (size_t)k.vocab;
    std::vector<float> logits(n);
    std::vector<double> all;
    std::vector<int32_t> tokens((size_t)k.B);
    s->engine->decode_begin(logits.data(), s->model, ids.data(), k.B, k.T);
    all.insert(all.end(), logits.begin(), logits.end());
    for (int i = 0; i < 3 && k.T + i < k.block; i++) {
        for (int b = 0; b < k.B; b++) tokens[(size_t)b] = ids[(size_t)(b + i) % ids.size()];
        s->engine->decode_step(logits.data(), s->model, tokens.data());
        all.insert(all.end(), logits.begin(), logits.end());
        if (i > 0 || k.updates == 0) continue;  // a forward in between does not disturb the state
        const std::vector<double> between = s->logits(ids.data(), 1, k.T);
        r->push_back({"logits between two tokens", LOGITS, between});
    }
    r->push_back({"decode", LOGITS, all});
}

// Losses of the second half of the ids after their first half (none of them where T = 1), twice: the states
// stay.
void run_score(Record* r, Subject* s, const Case& k, const std::vector<int32_t>& ids,
               const std::vector<int32_t>& targets) {
    const int prompt = k.T / 2, T = k.T - prompt, copies = k.B > 1 ? 2 : 1;
    const size_t rows = (size_t)(k.B * copies * T);
    std::vector<int32_t> tokens(rows), wanted(rows);
    std::vector<double> losses(rows);
    for (size_t i = 0; i < rows; i++) {
        tokens[i] = ids[i * 7 % ids.size()];
        wanted[i] = targets[i * 5 % targets.size()];
    }
    s->engine->decode_begin(nullptr, s->model, ids.data(), k.B, prompt);
    for (const char* name : {"scores", "scores again"}) {
        s->engine->decode_score(losses.data(), s->model, tokens.data(), wanted.data(), copies, T);
        r->push_back({name, LOSS, losses});
    }
}

Record run_case(const TostEngine* engine, const Case& k) {
    const TostConfig config = {k.layers, k.heads, k.channels, k.block, k.vocab, k.bias, k.membership};
    Record r;
    std::vector<int32_t> ids, targets;
    // One sequence fills the engine's buffers, so that what lies beyond is no one's; several leave room.
    const int more = k.B > 1 ? 5 : 0;
    Subject s(engine, config, k.B + more, std::min(k.block, k.T + more), k.updates > 0,
              engine == &tost_cpu_engine ? TOST_FP32 : k.dtype, k.recompute);
    s.randomise(7);
    draw_batch(&ids, &targets, k, 99);
    r.push_back({"logits", LOGITS, s.logits(ids.data(), k.B, k.T)});
    run_decode(&r, &s, k, ids);
    if (tost_cuda_engine.decode_score) run_score(&r, &s, k, ids, targets);
    run_updates(&r, &s, k, ids);
    if (k.updates > 0) r.push_back({"logits after updates", LOGITS, s.logits(ids.data(), k.B, k.T)});
    return r;
}

void same_bits(Checks* c, const char* what, const Record& a, const Record& b, const char* how_a,
               const char* how_b) {
    for (size_t i = 0; i < a.size(); i++) {
        const size_t bytes = a[i].values.size() * sizeof(double);
        check(c, memcmp(a[i].values.data(), b[i].values.data(), bytes) == 0, "%s: %s: other bits %s than %s",
              what, a[i].name.c_str(), how_a, how_b);
    }
}

// The CPU engine's results within the limits, and the same bits under every schedule and with recompute.
void test_case(Checks* c, const Case& k, const std::vector<Schedule>& schedules) {
    const std::string what = describe(k);
    const Record want = run_case(&tost_cpu_engine, k);
    Record first;
    for (size_t i = 0; i < schedules.size(); i++) {
        set_schedule(schedules[i]);
        const Record got = run_case(&tost_cuda_engine, k);
        if (i == 0) compare(c, what.c_str(), first = got, want, limits_of(k.dtype));
        if (i > 0) same_bits(c, what.c_str(), got, first, schedules[i].name, schedules[0].name);
    }
    if (k.layers == 1 || k.updates == 0) return;
    Case again = k;
    again.recompute = true;
    same_bits(c, what.c_str(), run_case(&tost_cuda_engine, again), first, "with recompute", "without");
}

// ---------------------------------------------------------------------------------------------
// Shapes

// The number of time steps in a chunk of the scans, as the engine's source states it.
int chunk_of_source(Checks* c) {
    char line[512];
    int chunk = 0;
    FILE* f = fopen("train_gpt_tost.cu", "r");
    while (f && fgets(line, sizeof line, f)) {
        const char* p = strstr(line, "constexpr int TSSA_CHUNK = ");
        if (p) chunk = atoi(p + strlen("constexpr int TSSA_CHUNK = "));
    }
    if (f) fclose(f);
    check(c, chunk > 1 && chunk <= 256,
          "train_gpt_tost.cu: no line `constexpr int TSSA_CHUNK = N;` (run from the root)");
    return chunk;
}

void test_shapes(Checks* c, TostDtype dtype, bool quick) {
    const int chunk = chunk_of_source(c), block = 8 * chunk + 40;
    const std::vector<Schedule> all =
        quick ? std::vector<Schedule>{FORWARD, REVERSE, SHUFFLE_LATE}
              : std::vector<Schedule>{FORWARD, LATE, REVERSE_LATE, SHUFFLE, SHUFFLE_LATE};
    const std::vector<Schedule> two = {FORWARD, REVERSE_LATE};
    test_case(c, {2, 3, 60, block, 257, 1, 1, chunk + 1, 10, 2, dtype}, two);  // 3 heads of 20 channels
    test_case(c, {2, 3, 60, block, 257, 1, 3, chunk + 1, 2, 2, dtype}, all);
    test_case(c, {2, 3, 60, block, 257, 0, 1, 1, 2, 5, dtype}, two);
    test_case(c, {1, 3, 60, block, 257, 1, 3, chunk - 1, 1, 2, dtype}, two);
    test_case(c, {1, 3, 60, block, 257, 0, 1, chunk, 1, 2, dtype}, two);
    test_case(c, {1, 2, 4, block, 11, 1, 2, 8 * chunk + 37, 1, 2, dtype},
              two);  // several chunks, the last one ragged
    test_case(c, {1, 3, 15, 2 * chunk, 29, 1, 3, chunk + 5, 1, 2, dtype},
              two);  // channels that no vector divides
    test_case(c, {1, 17, 34, 2 * chunk, 29, 0, 1, chunk + 3, 1, 2, dtype}, two);  // more heads than warps
    test_case(c, {1, 96, 96, 2 * chunk, 29, 0, 1, chunk + 3, 1, 2, dtype}, two);  // the most heads
    test_case(c, {1, 4, 136, 2 * chunk, 29, 0, 1, chunk + 3, 1, 2, dtype},
              two);  // heads wider than a warp: 34 channels
    test_case(c, {1, 1, 70, 2 * chunk, 29, 0, 1, chunk + 3, 1, 2, dtype}, two);  // one head, of 70 channels
    test_case(c, {1, 3, 129, 2 * chunk, 29, 1, 1, 7, 1, 2, dtype}, two);  // heads of 43: several warps
    test_case(c, {3, 3, 60, block, 257, 1, 2, 3 * chunk + 5, 2, 2, dtype, TOST_UNIFORM}, two);
    if (dtype == TOST_FP32)  // deeper, in bf16, the weights' own rounding moves gradients past the limit
        test_case(c, {4, 3, 60, block, 29, 0, 2, chunk + 5, 3, 3, dtype}, two);
    test_case(c, {1, 2, 16, 8, 9001, 0, 1, 5, 1, 2, dtype}, two);  // a vocabulary that threads go round in
}

// A sequence of more chunks than two levels of the scan's tree hold.
void test_long(Checks* c) {
    const int chunk = chunk_of_source(c), T = 66 * chunk + 5;
    test_case(c, {1, 2, 4, T + 3, 7, 0, 1, T, 1, 2, TOST_FP32}, {REVERSE});
}

// decode_score alone, from prompts of no tokens and of some, for several copies of a state, within a chunk of
// the scans and past it; then a token more from the states, which it left as they were, and read_loss, which
// it does not concern.
Record run_scores(const TostEngine* engine, TostDtype dtype, int prompt, int copies, int T) {
    const int N = 2;
    const Case k = {2, 3, 60, 64, 257, 1, N * copies, T + prompt, 0, 0, dtype};
    std::vector<int32_t> ids, targets, tokens = {5, 6};
    std::vector<double> losses((size_t)(N * copies * T));
    std::vector<float> logits((size_t)(N * k.vocab));
    Subject s(engine, {k.layers, k.heads, k.channels, k.block, k.vocab, k.bias, TOST_LEARNED}, k.B, k.T, false, dtype);
    s.randomise(8);
    draw_batch(&ids, &targets, k, 98);
    engine->decode_begin(nullptr, s.model, prompt ? ids.data() : nullptr, N, prompt);
    engine->decode_score(losses.data(), s.model, ids.data() + N * prompt, targets.data() + N * prompt, copies,
                         T);
    engine->decode_step(logits.data(), s.model, tokens.data());
    double sum;
    int64_t count;
    engine->read_loss(&sum, &count, s.model);
    return {{"scores", LOSS, losses}, {"a token more", LOGITS, {logits.begin(), logits.end()}},
            {"sum and count of losses", LOSS, {sum, (double)count}}};
}

void test_scores(Checks* c, TostDtype dtype) {
    const int longer = chunk_of_source(c) + 5;
    set_schedule(REVERSE_LATE);
    for (const int prompt : {0, 7})
        for (const int copies : {1, 3})
            for (const int T : {1, 5, longer}) {
                char what[96];
                snprintf(what, sizeof what, "%s decode_score prompt %d copies %d T %d", name_of(dtype),
                         prompt, copies, T);
                compare(c, what, run_scores(&tost_cuda_engine, dtype, prompt, copies, T),
                        run_scores(&tost_cpu_engine, TOST_FP32, prompt, copies, T), limits_of(dtype));
            }
}

// Where cuBLASLt has no algorithm for rows that are not aligned.
void test_plain_products(Checks* c) {
    const Case k = {1, 3, 15, 40, 29, 1, 2, 37, 1, 2, TOST_BF16};
    const Record want = run_case(&tost_cpu_engine, k);
    set_schedule(FORWARD, 16);
    compare(c, "products without cuBLASLt", run_case(&tost_cuda_engine, k), want, BF16);
}

// ---------------------------------------------------------------------------------------------
// Golden files

double meta_number(const StFile& f, const char* key) {
    const char* value = st_meta(&f, key);
    return value ? strtod(value, nullptr) : NAN;
}

std::vector<double> read_doubles(const StFile& f, const std::string& name) {
    TostError err;
    const StTensor* t = st_find(&f, name.c_str());
    die_on(t || tost_error(&err, "%s: %s is absent", f.path, name.c_str()), err);
    std::vector<double> x(t->count);
    die_on(st_read_f64(&f, t, x.data(), &err), err);
    return x;
}

std::vector<int32_t> read_ids(const StFile& f, const char* name) {
    TostError err;
    const StTensor* t = st_find(&f, name);
    die_on(t || tost_error(&err, "%s: %s is absent", f.path, name), err);
    std::vector<int32_t> x(t->count);
    die_on(st_read_i32(&f, t, x.data(), &err), err);
    return x;
}

// What the file says of every result that `got` holds.
Record read_record(const StFile& f, const Record& got) {
    Record want;
    for (const Piece& p : got) want.push_back({p.name, p.kind, read_doubles(f, p.name)});
    return want;
}

Record golden_run(Subject* s, const StFile& f, int B, int T) {
    Record r;
    const std::vector<int32_t> inputs = read_ids(f, "inputs"), targets = read_ids(f, "targets");
    const size_t rows = (size_t)B * (size_t)T, steps = inputs.size() / rows;
    std::vector<double> losses, norms;
    r.push_back({"logits", LOGITS, s->logits(inputs.data(), B, T)});
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
        s->engine->forward(s->model, inputs.data() + i * rows, y, B, T, 1.0f / (float)count);
        s->engine->backward(s->model);
        if (i == 0) record_state(&r, *s, TOST_GRAD, GRAD, "grad.");
        norms.push_back(s->update(a, meta_number(f, "grad_clip")));
        losses.push_back(s->mean_loss());
    }
    record_state(&r, *s, TOST_PARAM, PARAM, "after.");
    r.push_back({"losses", LOSS, losses});
    r.push_back({"grad_norms", GRAD, norms});
    return r;
}

void test_golden_pair(Checks* c, const std::string& params_path, TostDtype dtype) {
    TostError err;
    StFile params, expect;
    const std::string stem = params_path.substr(0, params_path.size() - strlen(".params.safetensors"));
    die_on(st_open(&params, params_path.c_str(), &err) &&
               st_open(&expect, (stem + ".expect.safetensors").c_str(), &err),
           err);
    const auto size = [&](const char* key) { return (int)meta_number(expect, key); };
    const TostConfig config = {size("n_layer"),    size("n_head"),     size("n_embd"),
                               size("block_size"), size("vocab_size"), size("bias"), TOST_LEARNED};
    const int B = size("B"), T = size("T");
    {
        Subject s(&tost_cuda_engine, config, B, T, true, dtype);
        for (int i = 0; i < s.tensors.count; i++) {
            const std::vector<double> x = read_doubles(params, s.tensors.tensor[i].name);
            const std::vector<float> narrow(x.begin(), x.end());
            s.engine->put(s.model, TOST_PARAM, &s.tensors.tensor[i], narrow.data());
        }
        const Record got = golden_run(&s, expect, B, T);
        compare(c, (stem + " " + name_of(dtype)).c_str(), got, read_record(expect, got), limits_of(dtype));
    }
    st_close(&params);
    st_close(&expect);
}

void test_golden(Checks* c, const char* dir) {
    TostError err;
    PathList list;
    die_on(expand_glob(&list, (std::string(dir) + "/*.params.safetensors").c_str(), &err), err);
    for (int i = 0; i < list.count; i++) {
        set_schedule(i % 2 ? SHUFFLE : REVERSE_LATE);
        test_golden_pair(c, list.paths[i], TOST_FP32);
    }
    free_paths(&list);
}

// ---------------------------------------------------------------------------------------------
// A machine that lacks something: one line, nothing left behind

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
        machine.memory = memories[i];
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
    for (const size_t memory : {need / 2, (size_t)1000}) {
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
    check(&c, tost_cuda_engine.decode_score != nullptr, "the CUDA engine has no decode_score");
    if (!quick) test_shim(&c);
    set_schedule(SHUFFLE);
    test_kernels(&c);
    test_shapes(&c, TOST_FP32, quick);
    test_long(&c);
    test_scores(&c, TOST_FP32);
    test_scores(&c, TOST_BF16);
    if (quick) return checks_verdict(&c);
    test_shapes(&c, TOST_BF16, true);
    set_schedule(FORWARD);
    test_case(&c, {1, 3, 60, 40, 257, 1, 2, 37, 2, 2, TOST_TF32}, {FORWARD});
    test_plain_products(&c);
    test_golden(&c, "dev/test/golden");
    char* shared = shared_path("golden");
    if (shared) test_golden(&c, shared);
    else skip(&c, "golden files of ../shared/golden: absent");
    free(shared);
    test_lacking(&c);
    test_ways_out(&c);
    check(&c, cuda_on_host_live() == 0, "%d objects of CUDA are left at the end", cuda_on_host_live());
    return checks_verdict(&c);
}
