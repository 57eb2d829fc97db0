// exchange_test.cpp: the CUDA engine on several ranks, with emulated NCCL. Gradients, norm, parameters and moments must
// have the same bits for every number of ranks, and be close to those of the CPU engine.
#include "ranks_on_host.h"

#include "dev/test/engine/engines.h"

extern "C" {
#include "tost/ranks/comm.h"
#include "tost/ranks/slices.h"
extern const TostEngine tost_cuda_engine, tost_cpu_engine;
}

namespace {

constexpr size_t RESULT_BYTES = (size_t)64 << 20;
constexpr int STEPS = 3;

// Which streams run late: the one that is not prompt must be waited for by events. Streams in the order of creation:
// NCCL's messages, the engine, if `own_link` the engine's communicator's, and the exchange.
struct Order {
    const char* name;
    bool late;
    unsigned prompt;
};
const Order AT_ONCE = {"at once", false, 0}, LATE = {"late", true, 0};
const Order exchange_first(bool own_link) { return {"exchange first", true, own_link ? 0x9u : 0x5u}; }
const Order compute_first(void) { return {"compute first", true, 0x3u}; }

struct Setup {
    Shape shape;
    TostDtype dtype;
    int parts, micros;   // of a step; of a part
    bool fast, own_link, recompute;
    int piece = 0;       // tokens of a piece; 0: whole sequences
};

// Doubles of all results of one rank, in shared memory.
struct Results {
    size_t count;
    double values[RESULT_BYTES / sizeof(double)];
    void add(double x) { values[count++] = x; }
};

void add_state(Results* out, Subject* s, TostArray state, bool wanted) {
    for (int i = 0; i < s->tensors.count; i++) {
        const TostTensor* t = &s->tensors.tensor[i];
        float* x = subject_get(s, state, t);
        for (size_t j = 0; j < t->size && wanted; j++) out->add(x[j]);
        free(x);
    }
}

// The rank's parts of a few steps; writes the norms, then the states that this rank can read.
void train(Results* out, Subject* s, const Setup& u, int rank, int ranks) {
    const Shape& k = u.shape;
    const size_t rows = (size_t)k.B * k.T;
    const int mine = u.parts / ranks;
    const float scale = 1.0f / (float)((size_t)(u.parts * u.micros) * rows);
    int64_t count;
    double loss;
    subject_randomize(s, 5);
    for (int step = 0; step < STEPS; step++) {
        s->engine->zero_grad(s->model);
        for (int i = 0; i < mine * u.micros; i++) {
            const int micro = rank * mine * u.micros + i;
            int32_t* ids = shape_ids(&k, (uint64_t)(1000 * step + micro));
            const TostEnd end = i + 1 == mine * u.micros ? TOST_STEP_ENDS
                                : (i + 1) % u.micros     ? TOST_MORE
                                                         : TOST_PART_ENDS;
            subject_train(s, ids, ids + rows, k.B, k.T, scale, end);
            free(ids);
        }
        if (step + 1 == STEPS) add_state(out, s, TOST_GRAD, rank == 0);
        const TostAdamW a = {1e-2, 0.9, 0.95, 1e-8, 0.1, 1.0, step + 1, 0.2};
        out->add(subject_step(s, a, 1.0));
        s->engine->read_loss(&loss, &count, s->model);
    }
    add_state(out, s, TOST_PARAM, true);
    for (const TostArray state : {TOST_M, TOST_V, TOST_EMA}) add_state(out, s, state, rank == 0);
}

TostEngineOptions options_of(const Setup& u, TostComm* comm, int ranks) {
    TostEngineOptions o = {};
    o.max_batch = u.shape.B;
    o.max_piece = u.piece ? u.piece : u.shape.T;
    o.states = pieces_states(u.shape.T, o.max_piece, true);
    o.training = true;
    o.recompute = u.recompute;
    o.dtype = u.dtype;
    o.comm = comm;
    o.parts = u.parts / ranks;
    o.fast_reduce = u.fast;
    o.ema = true;
    return o;
}

TostConfig config_of(const Shape& k) {
    return {k.layers, k.heads, k.channels, k.block, k.vocab, k.bias, k.membership};
}

void set_order(const Order& order, int devices) {
    CudaOnHostOptions o;
    o.order = CUDA_ORDER_FORWARD;
    o.late = order.late;
    o.prompt = order.prompt;
    o.devices = devices;
    cuda_on_host_set(o);
    nccl_on_host_set(NcclOnHostOptions());
}

// ---------------------------------------------------------------------------------------------
// Ranks

TostComm* inner;   // not in the function, where the emulation would take it for shared memory

TostComm* open_comm(bool own_link, double timeout) {
    TostComm* comm = nullptr;
    TostError err;
    if (!tost_cuda_engine.open_comm(&comm, &err)) {
        fprintf(stderr, "%s\n", err.text);
        _exit(1);
    }
    comm->program = "exchange_test";
    comm->timeout = timeout;
    comm_find_places(comm);
    if (!own_link) return comm;
    // Like MPI: the engine must connect its own communicator.
    inner = comm;
    unsetenv("NCCL_COMM_ID");
    TostComm* outer = new TostComm(*comm);
    outer->start = [](TostComm*, const CommMessage* m) { return inner->start(inner, m); };
    outer->test = [](TostComm*, CommRequest** q, bool* arrived) { return inner->test(inner, q, arrived); };
    outer->abort = [](TostComm*, int status) { _exit(status); };
    outer->close = [](TostComm*) { comm_close(inner); };
    return outer;
}

void close_comm(TostComm* comm, bool own_link) {
    if (!own_link) {
        comm_close(comm);
        return;
    }
    comm->close(comm);
    delete comm;
}

// Runs the setup on some ranks. Returns false if a rank fails; its results are in out[rank].
bool run(Checks* c, Shared<Results>& out, const Setup& u, int ranks, const Order& order, const char* what) {
    const std::vector<RankEnd> ends = run_ranks(ranks, [&](int rank) {
        set_order(order, ranks);
        TostComm* comm = open_comm(u.own_link, 30);
        Subject s = subject_open(&tost_cuda_engine, config_of(u.shape), options_of(u, comm, ranks));
        out.p[rank].count = 0;
        train(&out.p[rank], &s, u, rank, ranks);
        subject_free(&s);
        close_comm(comm, u.own_link);
        if (cuda_on_host_live() + nccl_on_host_live() == 0) return;
        fprintf(stderr, "%d CUDA objects, %d communicators leaked\n", cuda_on_host_live(), nccl_on_host_live());
        _exit(1);
    });
    bool ok = true;
    for (int r = 0; r < ranks; r++)
        ok = check(c, ends[(size_t)r].status == 0, "%s, %d ranks, %s: rank %d ends with status %d: %s", what, ranks,
                   order.name, r, ends[(size_t)r].status, ends[(size_t)r].text.c_str()) && ok;
    return ok;
}

bool same(const double* a, const double* b, size_t n) { return memcmp(a, b, n * sizeof *a) == 0; }

// Compares with the results of one rank without NCCL. n_params: elements of the model.
void run_same(Checks* c, const Results* want, const Setup& u, int ranks, const Order& order, const char* what) {
    Shared<Results> out((size_t)ranks);
    if (!run(c, out, u, ranks, order, what)) return;
    TostConfig config = config_of(u.shape);
    TostTensors t = tost_tensors(&config);
    const size_t n = t.n_params;
    tost_tensors_free(&t);
    const Results* zero = &out.p[0];
    check(c, zero->count == 5 * n + STEPS && want->count == zero->count, "%s: %zu results, want %zu", what, zero->count,
          want->count);
    const double* norms = zero->values + STEPS - 1;   // the last one follows the gradients
    check(c, same(zero->values, want->values, STEPS - 1) && norms[n] == want->values[STEPS - 1 + n],
          "%s, %d ranks, %s: gradient norms differ: %.17g, want %.17g", what, ranks, order.name, norms[n],
          want->values[STEPS - 1 + n]);
    check(c, same(norms, want->values + STEPS - 1, n), "%s, %d ranks, %s: gradients differ", what, ranks, order.name);
    check(c, same(norms + n + 1, want->values + STEPS + n, n), "%s, %d ranks, %s: parameters differ", what, ranks,
          order.name);
    check(c, same(norms + 2 * n + 1, want->values + STEPS + 2 * n, 3 * n),
          "%s, %d ranks, %s: moments or averages differ", what, ranks, order.name);
    for (int r = 1; r < ranks; r++)
        check(c, out.p[r].count == n + STEPS && same(out.p[r].values + STEPS, norms + n + 1, n),
              "%s, %d ranks, %s: rank %d has other parameters", what, ranks, order.name, r);
}

void run_alone(Results* out, const TostEngine* engine, const Setup& u) {
    set_order(AT_ONCE, 1);
    Subject s = subject_open(engine, config_of(u.shape), options_of(u, nullptr, 1));
    out->count = 0;
    train(out, &s, u, 0, 1);
    subject_free(&s);
}

// a (count) must be as close to b as the limits of parameters say.
void check_near(Checks* c, const char* what, const Results* a, const Results* b, double limit) {
    const double error = relative_distance(a->values, b->values, a->count);
    check(c, a->count == b->count && error <= limit, "%s: relative L2 error %.3e, limit %.1e", what, error, limit);
}

// ---------------------------------------------------------------------------------------------

// Several layers, so that there are several buckets; slices of the same and of different sizes, and empty ones.
const Shape DEEP = {3, 2, 64, 40, 257, 1, TOST_LEARNED, 1, 35, 1, 1, RANDOM},
            SMALL = {1, 2, 64, 40, 257, 0, TOST_LEARNED, 2, 20, 1, 1, RANDOM},
            EVEN = {2, 2, 64, 40, 257, 0, TOST_LEARNED, 2, 24, 1, 1, RANDOM};

void test_bits(Checks* c, const Setup& u, const std::vector<int>& ranks, const std::vector<Order>& orders,
               const char* what) {
    Shared<Results> want(2);
    run_alone(&want.p[0], &tost_cuda_engine, u);
    for (const int n : ranks)
        for (const Order& order : orders) run_same(c, &want.p[0], u, n, order, what);
    if (u.dtype != TOST_FP32) return;
    run_alone(&want.p[1], &tost_cpu_engine, u);
    check_near(c, what, &want.p[0], &want.p[1], limits_of(TOST_FP32).of[RESULT_GRAD]);
}

// NCCL's own order of sums: close, and the same on all ranks.
void test_fast(Checks* c, Setup u, int ranks, const Order& order) {
    Shared<Results> out((size_t)ranks), want(1);
    run_alone(&want.p[0], &tost_cuda_engine, u);
    u.fast = true;
    if (!run(c, out, u, ranks, order, "fast")) return;
    check_near(c, "fast", &out.p[0], &want.p[0], 1e-4);
}

// Large host messages. Their memory is used again: freeing it would wait for NCCL's kernels.
void test_messages(Checks* c) {
    const std::vector<RankEnd> ends = run_ranks(2, [&](int rank) {
        set_order(LATE, 2);
        TostComm* comm = open_comm(false, 30);
        constexpr size_t N = (size_t)3 << 20;
        std::vector<char> sent(N, (char)(1 + rank)), received(N);
        int live = 0;
        for (int round = 0; round < 3; round++) {
            CommMessage messages[2] = {};
            messages[1 - rank] = {sent.data(), received.data(), N, N};
            comm_exchange(comm, messages);
            if (round == 0) live = cuda_on_host_live();
        }
        for (const char x : received)
            if (x != 2 - rank) _exit(1);
        if (cuda_on_host_live() != live) _exit(2);
        comm_close(comm);
        _exit(cuda_on_host_live() + nccl_on_host_live() == 0 ? 0 : 3);
    });
    for (const RankEnd& end : ends)
        check(c, end.status == 0, "host messages: status %d: %s", end.status, end.text.c_str());
}

// ---------------------------------------------------------------------------------------------
// Failures: one line and status 75

void check_failure(Checks* c, const RankEnd& end, int status, const char* want) {
    check(c, WIFEXITED(end.status) && WEXITSTATUS(end.status) == status && end.text.find(want) != std::string::npos &&
                 end.text.find('\n') == end.text.size() - 1,
          "status %d, \"%s\"; want %d, one line with \"%s\"", end.status, end.text.c_str(), status, want);
}

void test_failures(Checks* c) {
    const Setup u = {SMALL, TOST_FP32, 2, 1, false, false, false};
    std::vector<RankEnd> ends = run_ranks(2, [&](int rank) {
        set_order(LATE, 2);
        TostComm* comm = open_comm(false, rank ? 30 : 0.5);
        Subject s = subject_open(&tost_cuda_engine, config_of(u.shape), options_of(u, comm, 2));
        if (rank == 1) _exit(0);   // gone
        nccl_on_host_set({-1, 5});
        train(new Results(), &s, u, rank, 2);
    });
    check_failure(c, ends[0], STATUS_RESUMABLE, "other ranks did not respond for 0.5 s (--rank-timeout)");
    ends = run_ranks(2, [&](int rank) {
        set_order(LATE, 2);
        TostComm* comm = open_comm(false, 30);
        Subject s = subject_open(&tost_cuda_engine, config_of(u.shape), options_of(u, comm, 2));
        nccl_on_host_set({5, 60});
        train(new Results(), &s, u, rank, 2);
    }, true);
    check_failure(c, ends[0], STATUS_RESUMABLE, "remote process exited or there was a");
    check(c, ends[1].text.empty(), "rank 1 also prints an error that all ranks notice: \"%s\"", ends[1].text.c_str());
    ends = run_ranks(2, [&](int) {
        set_order(LATE, 1);   // both on the only device
        open_comm(false, 30);
    });
    for (const RankEnd& end : ends) check_failure(c, end, 1, "invalid usage; every process needs a GPU of its own");
    ends = run_ranks(3, [&](int rank) {
        set_order(LATE, 2);
        if (rank == 2) open_comm(false, 30);
    });
    check_failure(c, ends[2], 1, "process 3 of this host, which has 2 GPUs: start one process per GPU");
}

}  // namespace

void test_exchange(Checks* c, ExchangeTests tests) {
    const Setup deep = {DEEP, TOST_FP32, 4, 2, false, false, false},
                linked = {SMALL, TOST_BF16, 2, 1, false, true, true},
                six = {SMALL, TOST_FP32, 6, 1, false, false, false},
                even = {EVEN, TOST_BF16, 4, 1, false, false, false},
                chunked = {DEEP, TOST_FP32, 2, 1, false, false, true, 16};   // the last chunk of 35 tokens has 3
    test_messages(c);
    test_bits(c, linked, {2}, {exchange_first(true)}, "own communicator, bf16, recompute");
    if (tests == EXCHANGE_QUICK) return;
    test_bits(c, linked, {2}, {compute_first()}, "own communicator");
    test_bits(c, deep, {2}, {compute_first()}, "deep");
    test_bits(c, deep, {4}, {exchange_first(false)}, "deep");
    test_bits(c, six, {}, {}, "six parts");
    test_bits(c, even, {2}, {exchange_first(false)}, "even slices");
    test_bits(c, chunked, {2}, {exchange_first(false)}, "in chunks");
    test_failures(c);
    if (tests == EXCHANGE_MUTANTS) return;
    test_bits(c, deep, {1, 2, 4}, {AT_ONCE, LATE, exchange_first(false), compute_first()}, "deep");
    test_bits(c, linked, {1, 2}, {AT_ONCE, LATE, exchange_first(true), compute_first()}, "own communicator");
    test_bits(c, six, {1, 3, 6}, {exchange_first(false)}, "six parts");
    test_bits(c, even, {4}, {compute_first()}, "even slices");
    test_bits(c, chunked, {1, 2}, {LATE, compute_first()}, "in chunks");
    for (const int ranks : {1, 2, 4}) test_fast(c, deep, ranks, exchange_first(false));
}
