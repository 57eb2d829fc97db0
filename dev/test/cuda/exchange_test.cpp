// exchange_test.cpp: the CUDA engine on several ranks, with emulated NCCL. Gradients, norm, parameters and moments must
// have the same bits for every number of ranks.
#include "emulation_test.h"

#include <sys/mman.h>

#include "dev/test/engine/engines.h"
#include "nccl_on_host.h"

extern "C" {
#include "tost/ranks/comm.h"
extern const TostEngine tost_cuda_engine;
}

namespace {

constexpr int STEPS = 3;
constexpr size_t MOST = 1 << 18;   // elements of a model

// Memory that the ranks share with the test
template <typename T> struct Shared {
    T* p;
    size_t n;
    explicit Shared(size_t size) : n(size) {
        p = (T*)mmap(nullptr, n * sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    ~Shared() { munmap(p, n * sizeof(T)); }
};

// Which streams run late: the one that is not prompt must be waited for by events. Streams in the order of creation:
// NCCL's messages, the engine, if `own_link` the engine's communicator's, and the exchange.
struct Order {
    const char* name;
    bool late;
    unsigned prompt;
};
const Order AT_ONCE = {"at once", false, 0}, LATE = {"late", true, 0}, COMPUTE_FIRST = {"compute first", true, 0x3u},
            EXCHANGE_FIRST = {"exchange first", true, 0x5u}, OWN_EXCHANGE_FIRST = {"exchange first", true, 0x9u};

struct Setup {
    const char* name;
    Shape shape;
    TostDtype dtype;
    int parts, micros;   // of a step; of a part
    bool own_link = false;
    int chunk = 0;       // tokens of a chunk; 0: whole sequences
    TostOptimizer optimizer = TOST_ADAMW;
};

struct Results {
    double norm[STEPS];
    float array[TOST_ARRAYS][MOST];   // on ranks other than 0 only the parameters
};

// The rank's parts of a few steps.
void train(Results* out, Subject* s, const Setup& u, int rank, int ranks) {
    const Shape& k = u.shape;
    const int micros = u.parts / ranks * u.micros;   // of this rank
    const float scale = 1.0f / (float)(u.parts * u.micros * k.B * k.T);
    int64_t count;
    double loss;
    subject_randomize(s, 5);
    for (int step = 0; step < STEPS; step++) {
        s->engine->zero_grad(s->model);
        for (int i = 1; i <= micros; i++) {
            const TostEnd end = i == micros ? TOST_STEP_ENDS : i % u.micros ? TOST_MORE : TOST_PART_ENDS;
            subject_train(s, &k, (uint64_t)(1000 * step + rank * micros + i), scale, end);
        }
        out->norm[step] = subject_step(s, {1e-2, 0.9, 0.95, 1e-8, 0.1, 1.0, step + 1, 0.9}, 1.0);
        s->engine->read_loss(&loss, &count, s->model);
    }
    for (int a = 0; a < TOST_ARRAYS; a++)
        for (int i = 0; i < s->tensors.count; i++) {
            const TostTensor* t = &s->tensors.tensor[i];
            if (a == TOST_GRAD && u.optimizer == TOST_MUON) continue;   // overwritten
            if (tost_elements(t, (TostArray)a, u.optimizer) == 0) continue;
            s->engine->get(out->array[a] + t->offset, s->model, (TostArray)a, t);
        }
}

Subject open_subject(const Setup& u, TostComm* comm, int ranks) {
    const Shape& k = u.shape;
    TostEngineOptions o = engine_options(k.B, u.chunk ? u.chunk : k.T, true, u.dtype);
    o.states = chunks_states(k.T, o.max_chunk, true);
    o.comm = comm;
    o.parts = u.parts / ranks;
    o.optimizer = u.optimizer;
    return subject_open(&tost_cuda_engine, shape_config(&k), o);
}

void set_order(const Order& order, int devices) {
    cuda_on_host_set({CUDA_ORDER_FORWARD, 1, 1, order.late, order.prompt, devices});
    nccl_on_host_set(NcclOnHostOptions());
}

// ---------------------------------------------------------------------------------------------
// Ranks

TostComm* open_comm(bool own_link, double timeout) {
    TostComm* comm = nullptr;
    TostError err;
    if (!tost_cuda_engine.open_comm(&comm, &err)) {
        fprintf(stderr, "%s\n", err.text);
        _exit(1);
    }
    comm->timeout = timeout;
    comm_find_places(comm);
    if (!own_link) return comm;
    // Like MPI: the engine must connect its own communicator.
    static TostComm* inner = comm;
    unsetenv("NCCL_COMM_ID");
    TostComm* outer = (TostComm*)malloc(sizeof *outer);
    *outer = *comm;
    outer->places = nullptr;
    outer->start = [](TostComm*, const CommMessage* m) { return inner->start(inner, m); };
    outer->abort = [](TostComm*, int status) { _exit(status); };
    outer->close = [](TostComm*) { comm_close(inner); };
    return outer;
}

// Runs f(rank, comm) on some ranks. Returns false if a rank fails or leaks.
template <typename F>
bool run(Checks* c, const char* name, int ranks, const Order& order, bool own_link, F f) {
    const std::vector<RankEnd> ends = run_ranks(ranks, [&](int rank) {
        set_order(order, ranks);
        TostComm* comm = open_comm(own_link, 30);
        f(rank, comm);
        comm_close(comm);
        if (cuda_on_host_live() + nccl_on_host_live() == 0) return;
        fprintf(stderr, "%d CUDA objects, %d communicators leaked\n", cuda_on_host_live(), nccl_on_host_live());
        _exit(1);
    });
    bool ok = true;
    for (const RankEnd& end : ends)
        ok = check(c, end.status == 0, "%s, %d ranks, %s: a rank ends with status %d: %s", name, ranks, order.name,
                   end.status, end.text.c_str()) && ok;
    return ok;
}

// ---------------------------------------------------------------------------------------------

// Compares ranks with one rank without NCCL, bit by bit.
void test_bits(Checks* c, const Setup& u, const std::vector<int>& numbers, const std::vector<Order>& orders) {
    Shared<Results> want(1);
    const auto train_model = [&](Results* out, TostComm* comm, int rank, int ranks) {
        Subject s = open_subject(u, comm, ranks);
        train(out, &s, u, rank, ranks);
        subject_free(&s);
    };
    set_order(AT_ONCE, 1);
    train_model(want.p, nullptr, 0, 1);
    for (const int ranks : numbers)
        for (const Order& order : orders) {
            Shared<Results> out((size_t)ranks);
            const auto of_rank = [&](int rank, TostComm* comm) { train_model(&out.p[rank], comm, rank, ranks); };
            if (!run(c, u.name, ranks, order, u.own_link, of_rank)) continue;
            for (int r = 0; r < ranks; r++)
                check(c, memcmp(&out.p[r], want.p, r ? offsetof(Results, array[1]) : sizeof(Results)) == 0,
                      "%s, %d ranks, %s: rank %d has other norms, gradients, parameters or moments", u.name, ranks,
                      order.name, r);
        }
}

// Several layers, so that there are several buckets; slices of the same and of different sizes, and empty ones.
const Shape THREE_LAYERS = {3, 2, 64, 40, 257, 1, TOST_LEARNED, 1, 35, 1, 1, RANDOM},
            ONE_LAYER = {1, 2, 64, 40, 257, 0, TOST_LEARNED, 2, 20, 1, 1, RANDOM};
const Setup DEEP = {"deep", THREE_LAYERS, TOST_FP32, 4, 2},
            LINKED = {"own communicator, bf16", ONE_LAYER, TOST_BF16, 2, 1, true},
            SIX = {"six parts", ONE_LAYER, TOST_FP32, 6, 1},
            CHUNKED = {"in chunks of 16 of 35 tokens", THREE_LAYERS, TOST_FP32, 2, 1, false, 16},
            MUON = {"Muon", THREE_LAYERS, TOST_BF16, 4, 1, false, 0, TOST_MUON};

// Large host messages.
void test_messages(Checks* c) {
    run(c, "host messages", 2, LATE, false, [](int rank, TostComm* comm) {
        constexpr size_t N = (size_t)3 << 20;
        std::vector<char> sent(N, (char)(1 + rank)), received(N), want(N, (char)(2 - rank));
        CommMessage messages[2] = {};
        messages[1 - rank] = {sent.data(), received.data(), N, N};
        for (int round = 0; round < 3; round++) comm_exchange(comm, messages);
        if (received != want) _exit(1);
    });
}

// ---------------------------------------------------------------------------------------------
// Failures: one line and status 75

void test_failures(Checks* c) {
    const auto fail = [](int rank, double timeout, const NcclOnHostOptions& o, bool gone) {
        set_order(LATE, 2);
        TostComm* comm = open_comm(false, timeout);
        Subject s = open_subject(SIX, comm, 2);
        if (gone) _exit(0);
        nccl_on_host_set(o);
        train(new Results(), &s, SIX, rank, 2);
    };
    std::vector<RankEnd> ends = run_ranks(2, [&](int rank) { fail(rank, rank ? 30 : 0.5, {-1, 5}, rank == 1); });
    exits(c, ends[0], STATUS_RESUMABLE, "other ranks did not respond for 0.5 s (--rank-timeout)");
    ends = run_ranks(2, [&](int rank) { fail(rank, 30, {5, 60}, false); }, true);
    exits(c, ends[0], STATUS_RESUMABLE, "remote process exited or there was a");
    check(c, ends[1].text.empty(), "rank 1 also prints an error that all ranks notice: \"%s\"", ends[1].text.c_str());
    ends = run_ranks(2, [&](int) {
        set_order(LATE, 1);   // both on the only device
        open_comm(false, 30);
    });
    for (const RankEnd& end : ends) exits(c, end, 1, "invalid usage; every process needs a GPU of its own");
    ends = run_ranks(3, [&](int rank) {
        set_order(LATE, 2);
        if (rank == 2) open_comm(false, 30);
    });
    exits(c, ends[2], 1, "process 3 of this host, which has 2 GPUs: start one process per GPU");
}

}  // namespace

void test_exchange(Checks* c, ExchangeTests tests) {
    test_messages(c);
    test_bits(c, LINKED, {2}, {OWN_EXCHANGE_FIRST});
    test_bits(c, MUON, {2}, {COMPUTE_FIRST});
    if (tests == EXCHANGE_QUICK) return;
    test_bits(c, LINKED, {2}, {COMPUTE_FIRST});
    test_bits(c, DEEP, {2}, {COMPUTE_FIRST});
    test_bits(c, DEEP, {4}, {EXCHANGE_FIRST});
    test_bits(c, CHUNKED, {2}, {EXCHANGE_FIRST});
    test_failures(c);
    if (tests == EXCHANGE_MUTANTS) return;
    test_bits(c, DEEP, {2}, {AT_ONCE, LATE, EXCHANGE_FIRST});
    test_bits(c, DEEP, {1, 4}, {COMPUTE_FIRST});
    test_bits(c, LINKED, {2}, {AT_ONCE, LATE});
    test_bits(c, LINKED, {1}, {OWN_EXCHANGE_FIRST});
    test_bits(c, MUON, {4}, {EXCHANGE_FIRST, COMPUTE_FIRST});
    test_bits(c, MUON, {1}, {LATE});
    test_bits(c, SIX, {1, 3, 6}, {EXCHANGE_FIRST});
}
