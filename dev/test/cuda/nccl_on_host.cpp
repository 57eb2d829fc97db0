// nccl_on_host.cpp: communicators in memory that the processes of all ranks share.
//
// The calls of a group are one step of a rank. Its partners are the ranks that it sends to or receives from; all ranks
// in a collective. Once the work before it in its stream is done, the rank copies what it sends to its part of the
// shared memory and publishes its list of calls. When all partners have published theirs, it compares the lists, copies
// what it receives and acknowledges it. When all partners have acknowledged, the step ends. Between two ranks, the n-th
// step of one belongs to the n-th of the other.
#include "nccl_on_host.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tost/base/clock.h"

namespace {

enum Kind { SEND, RECV, BROADCAST };
const char* const kind_names[] = {"ncclSend", "ncclRecv", "ncclBroadcast"};

constexpr int MAX_RANKS = 16, MAX_CALLS = 1024;
constexpr size_t DATA_BYTES = (size_t)64 << 20;   // of a rank and step; only touched pages take memory

struct Call {
    Kind kind;
    int peer;   // or root
    ncclDataType_t type;
    char* buffer;
    size_t bytes, sent_at;   // sent_at: in the rank's data
};

struct SharedRank {
    std::atomic<int> attached;
    std::atomic<uint64_t> published[MAX_RANKS], read[MAX_RANKS];   // steps with each partner
    int device, calls;
    Call call[MAX_CALLS];
};

struct Clique {
    std::atomic<int> attached;
    SharedRank rank[MAX_RANKS];
    alignas(4096) char data[MAX_RANKS][DATA_BYTES];
};

}  // namespace

struct NcclOnHostComm {
    Clique* clique;
    std::string path;
    int rank, size;
    bool initialized, finalized, ended, failed;
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
std::vector<std::unique_ptr<NcclOnHostComm>> comms;   // including destroyed ones, to which queued steps refer
std::vector<Call> group;
ncclComm_t group_comm;
cudaStream_t group_stream;
int group_depth;

void check_comm(const char* call, ncclComm_t c) {
    if (c->polls)
        cuda_on_host_die("%s while an earlier call is in progress; ncclCommGetAsyncError was not asked", call);
}

std::string describe(const Call& c) {
    char text[160];
    snprintf(text, sizeof text, "%s of %zu bytes, peer or root %d", kind_names[c.kind], c.bytes, c.peer);
    return text;
}

// The buffers of a group are device memory, and none is written that another call uses.
void check_memory(const std::vector<Call>& calls) {
    for (const Call& call : calls) {
        if (call.bytes) cuda_on_host_check_range(kind_names[call.kind], call.buffer, call.bytes);
        for (const Call* other = calls.data(); other != &call; other++)
            if ((call.kind != SEND || other->kind != SEND) && call.buffer < other->buffer + other->bytes &&
                other->buffer < call.buffer + call.bytes)
                cuda_on_host_die("%s: a buffer overlaps with another one of the group", describe(call).c_str());
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
        call.sent_at = used;
        if (call.kind == SEND || (call.kind == BROADCAST && call.peer == c->rank)) {
            if (used + call.bytes > DATA_BYTES) cuda_on_host_die("more than %zu bytes in a group", DATA_BYTES);
            cuda_on_host_copy(c->clique->data[c->rank] + used, call.buffer, call.bytes);
            used += call.bytes;
        }
        mine.call[i] = call;
    }
}

bool is_partner(const std::vector<Call>& calls, int rank) {
    for (const Call& call : calls)
        if (call.kind > RECV || call.peer == rank) return true;
    return false;
}

// The calls of one kind in the list of a rank, of ncclSend and ncclRecv those with `peer`.
std::vector<const Call*> calls_of(ncclComm_t c, int rank, Kind kind, int peer) {
    std::vector<const Call*> found;
    const SharedRank& list = c->clique->rank[rank];
    for (const Call* call = list.call; call < list.call + list.calls; call++)
        if (call->kind == kind && (kind > RECV || call->peer == peer)) found.push_back(call);
    return found;
}

void check_partner(ncclComm_t c, int with) {
    const std::pair<Kind, Kind> kinds[] = {{SEND, RECV}, {RECV, SEND}, {BROADCAST, BROADCAST}};
    for (const auto& [here, there] : kinds) {
        const std::vector<const Call*> a = calls_of(c, c->rank, here, with), b = calls_of(c, with, there, c->rank);
        for (size_t i = 0; i < a.size() || i < b.size(); i++) {
            if (i < a.size() && i < b.size() && a[i]->bytes == b[i]->bytes && a[i]->type == b[i]->type &&
                (here <= RECV || a[i]->peer == b[i]->peer))
                continue;
            cuda_on_host_die("%s; rank %d: %s", i < a.size() ? describe(*a[i]).c_str() : "no call", with,
                i < b.size() ? describe(*b[i]).c_str() : "no call that belongs to it");
        }
    }
}

void receive(ncclComm_t c) {
    std::map<std::pair<Kind, int>, size_t> done;   // calls of a kind; of ncclRecv, with a peer
    const SharedRank& mine = c->mine();
    for (const Call* call = mine.call; call < mine.call + mine.calls; call++) {
        const size_t i = done[{call->kind, call->kind == RECV ? call->peer : -1}]++;
        if (call->kind != RECV && (call->kind != BROADCAST || call->peer == c->rank)) continue;
        const Call* from = calls_of(c, call->peer, call->kind == RECV ? SEND : BROADCAST, c->rank)[i];
        cuda_on_host_copy(call->buffer, c->clique->data[call->peer] + from->sent_at, call->bytes);
    }
}

// Makes progress with a step; true when it has ended.
bool advance(ncclComm_t c, uint64_t step, const std::vector<Call>& calls) {
    if (c->ended) return true;
    if (c->waits_since == 0) c->waits_since = now_seconds();
    if (now_seconds() - c->waits_since > options.patience)
        cuda_on_host_die("%s: other ranks have not made a call for %.0f s", describe(calls[0]).c_str(),
                         options.patience);
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
        for (const int r : partners) check_partner(c, r);
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
    if (step > 0 && c->stream != c->held_stream)   // steps run in order, whatever their streams
        cudaStreamWaitEvent(c->held_stream, c->order);
    c->stream = c->held_stream;
    cuda_on_host_enqueue_when(c->stream, [=] { return advance(c, step, calls); });
    cudaEventRecord(c->order, c->stream);
    c->held.clear();
}

ncclResult_t add_call(Kind kind, const void* in, void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t c,
                      cudaStream_t stream) {
    const Call call = {kind, peer, type, (char*)out, count * (type == ncclFloat ? sizeof(float) : 1), 0};
    check_comm(kind_names[kind], c);
    if (!c->initialized || c->finalized)
        cuda_on_host_die("%s before the communicator is ready or after its end", kind_names[kind]);
    if (in != out) cuda_on_host_die("%s: only emulated in place", kind_names[kind]);
    if (!group.empty() && (group_comm != c || group_stream != stream))
        cuda_on_host_die("%s: the group has calls of another communicator or stream", describe(call).c_str());
    if (group.size() == MAX_CALLS) cuda_on_host_die("more than %d calls in a group", MAX_CALLS);
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
    return result == ncclInvalidUsage  ? "invalid usage"
           : result == ncclRemoteError ? "remote process exited or there was a network error"
                                       : "NCCL operation in progress";
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
    const int file = open(id.internal, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, sizeof(Clique)) != 0) cuda_on_host_die("cannot create %s", id.internal);
    void* p = mmap(nullptr, sizeof(Clique), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    close(file);
    if (p == MAP_FAILED) cuda_on_host_die("cannot map %s", id.internal);
    comms.emplace_back(new NcclOnHostComm());
    ncclComm_t c = comms.back().get();
    c->clique = (Clique*)p;
    c->path = id.internal;
    c->rank = rank;
    c->size = size;
    if (config->blocking) cuda_on_host_die("a blocking communicator");
    cudaGetDevice(&c->mine().device);
    cudaEventCreateWithFlags(&c->order, cudaEventDisableTiming);
    *comm = c;
    if (c->mine().attached++) cuda_on_host_die("two processes with this rank");
    if (++c->clique->attached == size) unlink(id.internal);   // all have it open
    c->polls = 2;
    return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t* error) {
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
    cudaEventDestroy(c->order);
    if (c->clique->attached < c->size) unlink(c->path.c_str());
    c->ended = true;   // queued steps, which still refer to it, do nothing
    munmap(c->clique, sizeof *c->clique);
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t c) {
    check_comm("ncclCommFinalize", c);
    if (c->done < c->queued)
        cuda_on_host_die("ncclCommFinalize while %d groups have not ended", (int)(c->queued - c->done));
    c->finalized = true;
    c->polls = 2;
    return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t c) {
    check_comm("ncclCommDestroy", c);
    if (!c->finalized) cuda_on_host_die("ncclCommDestroy without ncclCommFinalize");
    return comm_free(c);
}

ncclResult_t ncclCommAbort(ncclComm_t c) {
    return comm_free(c);
}

// ---------------------------------------------------------------------------------------------
// Groups and calls

ncclResult_t ncclGroupStart(void) {
    group_depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void) {
    if (--group_depth > 0 || group.empty()) return ncclSuccess;
    ncclComm_t c = group_comm;
    check_memory(group);
    c->held = std::move(group);
    c->held_stream = group_stream;
    group.clear();
    c->polls = 2;
    return ncclInProgress;
}

ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t stream) {
    return add_call(SEND, in, const_cast<void*>(in), count, type, peer, c, stream);
}
ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t stream) {
    return add_call(RECV, out, out, count, type, peer, c, stream);
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t c,
                           cudaStream_t stream) {
    return add_call(BROADCAST, in, out, count, type, root, c, stream);
}

// ---------------------------------------------------------------------------------------------

void nccl_on_host_set(const NcclOnHostOptions& o) { options = o; }
int nccl_on_host_live(void) {
    return (int)std::count_if(comms.begin(), comms.end(), [](const auto& c) { return !c->ended; });
}
