// nccl_on_host.cpp: communicators in memory that the processes of all ranks share.
//
// The calls of a group are one step of a rank. Its partners are the ranks that it sends to or receives from; all ranks
// in a collective. Once the work before it in its stream is done, the rank copies what it sends to its part of the
// shared memory and publishes its list of calls. When all partners have published theirs, it compares the lists, copies
// what it receives and acknowledges it. When all partners have acknowledged, the step ends. Between two ranks, the n-th
// step of one belongs to the n-th of the other.
#include "nccl_on_host.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace {

enum Kind { SEND, RECV, BROADCAST, ALL_GATHER, REDUCE, REDUCE_SCATTER };
const char* const kind_names[] = {"ncclSend",      "ncclRecv",   "ncclBroadcast",
                                  "ncclAllGather", "ncclReduce", "ncclReduceScatter"};

constexpr int MAX_RANKS = 16, MAX_CALLS = 1024;
constexpr size_t DATA_BYTES = (size_t)64 << 20;   // of a rank and step; only touched pages take memory

struct Call {
    Kind kind;
    int peer;   // or root; -1: none
    ncclDataType_t type;
    size_t count, sent_at, sent_bytes;   // in the rank's data
    const char* in;
    char* out;
};

struct SharedRank {
    std::atomic<int> attached;
    std::atomic<uint64_t> published[MAX_RANKS], read[MAX_RANKS];   // steps with each partner
    int device, calls;
    Call call[MAX_CALLS];
    char host[64];
};

struct Clique {
    std::atomic<int> attached;
    SharedRank rank[MAX_RANKS];
    alignas(4096) char data[MAX_RANKS][DATA_BYTES];
};

size_t bytes_of(ncclDataType_t type) { return type == ncclFloat64 ? 8 : type == ncclFloat32 ? 4 : 1; }

double seconds(void) {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

}  // namespace

struct NcclOnHostComm {
    Clique* clique;
    std::string path;
    int rank, size;
    bool initialized, finalized, aborted, failed;
    int polls;                       // until ncclCommGetAsyncError reports the end of the last call
    std::vector<Call> held;          // calls to be queued at that time
    cudaStream_t held_stream, stream;   // of those, and of the last step
    cudaEvent_t order;
    uint64_t queued, done;           // steps
    int stage;                       // of the current step: to be published, read, ended
    double waits_since;
    SharedRank& mine() { return clique->rank[rank]; }
};

namespace {

NcclOnHostOptions options;
std::set<ncclComm_t> comms;
std::vector<std::unique_ptr<NcclOnHostComm>> all_comms;   // including destroyed ones, to which queued steps refer
std::vector<Call> group;
ncclComm_t group_comm;
cudaStream_t group_stream;
int group_depth;

[[noreturn]] void die(ncclComm_t c, const char* format, ...) __attribute__((format(printf, 2, 3)));
void die(ncclComm_t c, const char* format, ...) {
    char text[512];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    if (c) cuda_on_host_die("NCCL, rank %d of %d, step %llu: %s", c->rank, c->size, (unsigned long long)c->done, text);
    cuda_on_host_die("NCCL: %s", text);
}

void check_comm(const char* call, ncclComm_t c) {
    if (!comms.count(c)) die(nullptr, "%s: no such communicator", call);
    if (c->aborted) die(c, "%s of a communicator that was aborted", call);
    if (c->polls) die(c, "%s while an earlier call is in progress; ncclCommGetAsyncError was not asked", call);
}

std::string describe(const Call& c) {
    char text[160];
    snprintf(text, sizeof text, "%s of %zu elements of type %d, peer or root %d", kind_names[c.kind], c.count, c.type,
             c.peer);
    return text;
}

// ---------------------------------------------------------------------------------------------
// Checks of one rank's group

struct Range {
    const char* at;
    size_t bytes;
    bool written;
};

// What a call reads and writes on this rank.
std::vector<Range> ranges_of(const Call& call, const NcclOnHostComm* c) {
    const size_t bytes = call.count * bytes_of(call.type), all = bytes * (size_t)c->size;
    switch (call.kind) {
    case SEND: return {{call.in, bytes, false}};
    case RECV: return {{call.out, bytes, true}};
    case ALL_GATHER:
        if (call.in == call.out + (size_t)c->rank * bytes) return {{call.out, all, true}};
        return {{call.in, bytes, false}, {call.out, all, true}};
    case REDUCE_SCATTER:
        if (call.out == call.in + (size_t)c->rank * bytes) return {{call.in, all, true}};
        return {{call.in, all, false}, {call.out, bytes, true}};
    default:
        if (call.in == call.out) return {{call.out, bytes, true}};
        if (c->rank != call.peer && call.kind == REDUCE) return {{call.in, bytes, false}};
        if (c->rank != call.peer) return {{call.out, bytes, true}};
        return {{call.in, bytes, false}, {call.out, bytes, true}};
    }
}

void check_memory(ncclComm_t c, const std::vector<Call>& calls) {
    std::vector<Range> all;
    for (const Call& call : calls) {
        for (const Range& r : ranges_of(call, c)) {
            if (r.bytes == 0) continue;
            cuda_on_host_check_range(kind_names[call.kind], r.at, r.bytes);
            for (const Range& other : all)
                if ((r.written || other.written) && r.at < other.at + other.bytes && other.at < r.at + r.bytes)
                    die(c, "%s: a buffer overlaps with another one of the group", describe(call).c_str());
            all.push_back(r);
        }
    }
}

// ---------------------------------------------------------------------------------------------
// A step

// Copies what this rank sends to shared memory.
void publish(ncclComm_t c, const std::vector<Call>& calls) {
    SharedRank& mine = c->mine();
    size_t used = 0;
    mine.calls = (int)calls.size();
    for (size_t i = 0; i < calls.size(); i++) {
        Call call = calls[i];
        const size_t bytes = call.count * bytes_of(call.type);
        const bool sends = call.kind != RECV && (call.kind != BROADCAST || call.peer == c->rank);
        call.sent_at = used;
        call.sent_bytes = !sends ? 0 : call.kind == REDUCE_SCATTER ? bytes * (size_t)c->size : bytes;
        if (used + call.sent_bytes > DATA_BYTES) die(c, "more than %zu bytes in a group", DATA_BYTES);
        if (call.sent_bytes) cuda_on_host_copy(c->clique->data[c->rank] + used, call.in, call.sent_bytes);
        used += call.sent_bytes;
        mine.call[i] = call;
    }
}

bool is_partner(const std::vector<Call>& calls, int rank) {
    for (const Call& call : calls)
        if (call.kind > RECV || call.peer == rank) return true;
    return false;
}

// The i-th call of the wanted kind for `rank` in the list of rank `from`; NULL if there is none.
const Call* find_call(const SharedRank& from, Kind kind, int rank, int i) {
    for (int j = 0; j < from.calls; j++)
        if (from.call[j].kind == kind && from.call[j].peer == rank && i-- == 0) return &from.call[j];
    return nullptr;
}

void check_pairs(ncclComm_t c, int with) {
    const SharedRank &mine = c->mine(), &other = c->clique->rank[with];
    for (const auto& [here, there] : {std::pair<Kind, Kind>{SEND, RECV}, {RECV, SEND}}) {
        for (int i = 0;; i++) {
            const Call *a = find_call(mine, here, with, i), *b = find_call(other, there, c->rank, i);
            if (!a && !b) break;
            if (!a || !b || a->count != b->count || a->type != b->type)
                die(c, "%s; rank %d: %s", a ? describe(*a).c_str() : "no call", with,
                    b ? describe(*b).c_str() : "no call that belongs to it");
        }
    }
}

void check_collectives(ncclComm_t c, int with) {
    const SharedRank &mine = c->mine(), &other = c->clique->rank[with];
    std::vector<const Call*> a, b;
    for (int i = 0; i < mine.calls; i++)
        if (mine.call[i].kind > RECV) a.push_back(&mine.call[i]);
    for (int i = 0; i < other.calls; i++)
        if (other.call[i].kind > RECV) b.push_back(&other.call[i]);
    for (size_t i = 0; i < a.size() || i < b.size(); i++) {
        if (i < a.size() && i < b.size() && a[i]->kind == b[i]->kind && a[i]->count == b[i]->count &&
            a[i]->type == b[i]->type && a[i]->peer == b[i]->peer)
            continue;
        die(c, "%s; rank %d: %s", i < a.size() ? describe(*a[i]).c_str() : "no call", with,
            i < b.size() ? describe(*b[i]).c_str() : "no call");
    }
}

// out = Σ over the ranks, of each rank's bytes at `at` behind its call's start, beginning with the rank after `last`.
void reduce(ncclComm_t c, size_t index, size_t at, int last) {
    const Call& call = c->mine().call[index];
    if (call.type != ncclFloat32) die(c, "%s: only float32 is emulated", kind_names[call.kind]);
    std::vector<float> sum(call.count, 0.0f);
    for (int i = 1; i <= c->size; i++) {
        const int rank = (last + i) % c->size;
        const Call& theirs = c->clique->rank[rank].call[index];
        const float* x = (const float*)(c->clique->data[rank] + theirs.sent_at + at);
        for (size_t j = 0; j < call.count; j++) sum[j] = i == 1 ? x[j] : sum[j] + x[j];
    }
    cuda_on_host_copy(call.out, sum.data(), call.count * sizeof(float));
}

void receive(ncclComm_t c) {
    SharedRank& mine = c->mine();
    std::vector<int> received((size_t)c->size, 0);
    for (int i = 0; i < mine.calls; i++) {
        const Call& call = mine.call[i];
        const size_t bytes = call.count * bytes_of(call.type);
        if (call.kind == RECV) {
            const Call* from = find_call(c->clique->rank[call.peer], SEND, c->rank, received[(size_t)call.peer]++);
            cuda_on_host_copy(call.out, c->clique->data[call.peer] + from->sent_at, bytes);
        } else if (call.kind == BROADCAST) {
            const Call& root = c->clique->rank[call.peer].call[i];
            cuda_on_host_copy(call.out, c->clique->data[call.peer] + root.sent_at, bytes);
        } else if (call.kind == ALL_GATHER) {
            for (int r = 0; r < c->size; r++)
                cuda_on_host_copy(call.out + (size_t)r * bytes,
                                  c->clique->data[r] + c->clique->rank[r].call[i].sent_at, bytes);
        } else if (call.kind == REDUCE_SCATTER) {
            reduce(c, (size_t)i, (size_t)c->rank * bytes, c->rank);
        } else if (call.kind == REDUCE && call.peer == c->rank) {
            reduce(c, (size_t)i, 0, c->rank);
        }
    }
}

// Makes progress with a step; true when it has ended.
bool advance(ncclComm_t c, uint64_t step, const std::vector<Call>& calls) {
    if (c->aborted) return true;
    if (c->waits_since == 0) c->waits_since = seconds();
    if (seconds() - c->waits_since > options.patience)
        die(c, "%s: other ranks have not made a call for %.0f s", describe(calls[0]).c_str(), options.patience);
    if (options.failing_call >= 0 && step >= (uint64_t)options.failing_call) c->failed = true;
    if (c->failed) return false;
    SharedRank& mine = c->mine();
    std::vector<int> partners;
    for (int r = 0; r < c->size; r++)
        if (is_partner(calls, r)) partners.push_back(r);
    if (c->stage == 0) {
        publish(c, calls);
        for (const int r : partners) mine.published[r]++;
        c->stage = 1;
    }
    if (c->stage == 1) {
        for (const int r : partners)
            if (c->clique->rank[r].published[c->rank] < mine.published[r]) return false;
        for (const int r : partners) {
            check_pairs(c, r);
            check_collectives(c, r);
        }
        receive(c);
        for (const int r : partners) mine.read[r]++;
        c->stage = 2;
    }
    for (const int r : partners)
        if (c->clique->rank[r].read[c->rank] < mine.published[r]) return false;
    c->stage = 0;
    c->done++;
    c->waits_since = 0;
    return true;
}

void queue_step(ncclComm_t c) {
    const std::vector<Call> calls = std::move(c->held);
    const uint64_t step = c->queued++;
    if (step > 0 && c->stream != c->held_stream) {   // steps run in order, whatever their streams
        cudaEventRecord(c->order, c->stream);
        cudaStreamWaitEvent(c->held_stream, c->order);
    }
    c->stream = c->held_stream;
    cuda_on_host_enqueue_when(c->stream, [=] { return advance(c, step, calls); });
    c->held.clear();
}

ncclResult_t add_call(ncclComm_t c, cudaStream_t stream, Call call) {
    check_comm(kind_names[call.kind], c);
    if (!c->initialized || c->finalized)
        die(c, "%s before the communicator is ready or after its end", kind_names[call.kind]);
    if (call.peer >= c->size || call.peer < -1) die(c, "%s: there is no such rank", describe(call).c_str());
    if (!group.empty() && (group_comm != c || group_stream != stream))
        die(c, "%s: the group has calls of another communicator or stream", describe(call).c_str());
    if (group.size() == MAX_CALLS) die(c, "more than %d calls in a group", MAX_CALLS);
    group_comm = c;
    group_stream = stream;
    ncclGroupStart();
    group.push_back(call);
    return ncclGroupEnd();
}

}  // namespace

// ---------------------------------------------------------------------------------------------
// Communicators

ncclResult_t ncclGetVersion(int* version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
    return result == ncclSuccess        ? "no error"
           : result == ncclRemoteError  ? "remote process exited or there was a network error"
           : result == ncclInvalidUsage ? "invalid usage"
           : result == ncclSystemError  ? "unhandled system error"
           : result == ncclInProgress   ? "NCCL operation in progress"
                                        : "internal error";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    static int made = 0;
    const char* from = getenv("NCCL_COMM_ID");
    memset(id, 0, sizeof *id);
    if (from) snprintf(id->internal, sizeof id->internal, "/tmp/nccl_on_host.%s", from);
    else snprintf(id->internal, sizeof id->internal, "/tmp/nccl_on_host.%ld.%d", (long)getpid(), made++);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
    if (size < 1 || size > MAX_RANKS || rank < 0 || rank >= size)
        die(nullptr, "ncclCommInitRankConfig: rank %d of %d", rank, size);
    const int file = open(id.internal, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, sizeof(Clique)) != 0) die(nullptr, "cannot create %s", id.internal);
    void* p = mmap(nullptr, sizeof(Clique), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    close(file);
    if (p == MAP_FAILED) die(nullptr, "cannot map %s", id.internal);
    all_comms.emplace_back(new NcclOnHostComm());
    ncclComm_t c = all_comms.back().get();
    c->clique = (Clique*)p;
    c->path = id.internal;
    c->rank = rank;
    c->size = size;
    if (config->blocking) die(c, "a blocking communicator");
    cudaGetDevice(&c->mine().device);
    cudaEventCreateWithFlags(&c->order, cudaEventDisableTiming);
    comms.insert(c);
    *comm = c;
    if (c->mine().attached++) die(c, "two processes with this rank");
    if (++c->clique->attached == size) unlink(id.internal);   // all have it open
    c->polls = 2;
    return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t* error) {
    if (!comms.count(c)) die(nullptr, "ncclCommGetAsyncError: no such communicator");
    cuda_on_host_progress();
    *error = c->failed ? ncclRemoteError : ncclInProgress;
    if (c->failed || (!c->initialized && c->clique->attached < c->size)) return ncclSuccess;
    for (int r = 0; r < c->size && !c->initialized; r++)
        for (int other = 0; other < r; other++)
            if (c->clique->rank[r].device == c->clique->rank[other].device) c->failed = true;
    if (c->failed) *error = ncclInvalidUsage;
    if (c->failed || (c->polls > 0 && --c->polls > 0)) return ncclSuccess;
    c->initialized = true;
    if (!c->held.empty()) queue_step(c);
    *error = ncclSuccess;
    return ncclSuccess;
}

static ncclResult_t comm_free(ncclComm_t c) {
    comms.erase(c);
    cudaEventDestroy(c->order);
    if (c->clique->attached < c->size) unlink(c->path.c_str());
    c->aborted = true;   // queued steps, which still refer to it, do nothing
    munmap(c->clique, sizeof *c->clique);
    return ncclSuccess;
}

static void check_ended(const char* call, ncclComm_t c) {
    check_comm(call, c);
    if (c->done < c->queued)
        die(c, "%s while %llu groups have not ended", call, (unsigned long long)(c->queued - c->done));
}

ncclResult_t ncclCommFinalize(ncclComm_t c) {
    check_ended("ncclCommFinalize", c);
    c->finalized = true;
    c->polls = 2;
    return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t c) {
    check_ended("ncclCommDestroy", c);
    if (!c->finalized) die(c, "ncclCommDestroy without ncclCommFinalize");
    return comm_free(c);
}

ncclResult_t ncclCommAbort(ncclComm_t c) {
    if (!comms.count(c)) die(nullptr, "ncclCommAbort: no such communicator");
    return comm_free(c);
}

// ---------------------------------------------------------------------------------------------
// Groups and calls

ncclResult_t ncclGroupStart(void) {
    group_depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void) {
    if (group_depth == 0) die(nullptr, "ncclGroupEnd without ncclGroupStart");
    if (--group_depth > 0 || group.empty()) return ncclSuccess;
    ncclComm_t c = group_comm;
    check_memory(c, group);
    c->held = std::move(group);
    c->held_stream = group_stream;
    group.clear();
    c->polls = 2;
    return ncclInProgress;
}

ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t stream) {
    return add_call(c, stream, {SEND, peer, type, count, 0, 0, (const char*)in, nullptr});
}
ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t stream) {
    return add_call(c, stream, {RECV, peer, type, count, 0, 0, nullptr, (char*)out});
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t c,
                           cudaStream_t stream) {
    return add_call(c, stream, {BROADCAST, root, type, count, 0, 0, (const char*)in, (char*)out});
}
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t c,
                           cudaStream_t stream) {
    return add_call(c, stream, {ALL_GATHER, -1, type, count, 0, 0, (const char*)in, (char*)out});
}
ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t, int root,
                        ncclComm_t c, cudaStream_t stream) {
    return add_call(c, stream, {REDUCE, root, type, count, 0, 0, (const char*)in, (char*)out});
}
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t, ncclComm_t c,
                               cudaStream_t stream) {
    return add_call(c, stream, {REDUCE_SCATTER, -1, type, count, 0, 0, (const char*)in, (char*)out});
}

// ---------------------------------------------------------------------------------------------

void nccl_on_host_set(const NcclOnHostOptions& o) { options = o; }
int nccl_on_host_live(void) { return (int)comms.size(); }
