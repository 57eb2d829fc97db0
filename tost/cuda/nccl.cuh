// nccl.cuh: NCCL communicators, and host messages over NCCL for builds without MPI. NCCL never blocks the host:
// communicators are nonblocking, and every wait asks for errors and ends after the timeout of the ranks.
#pragma once

#include <unistd.h>

#include <vector>

#include "tost/cuda/runtime.cuh"

// ---------------------------------------------------------------------------------------------
// Link: a communicator of all ranks. Each has one GPU.

struct LinkMemory { char *device, *host; size_t bytes; };   // host is pinned

struct NcclLink {
    TostComm*    comm;
    ncclComm_t   nccl;
    cudaStream_t stream;             // of host messages
    cudaEvent_t  done;               // the last ones have arrived
    std::vector<LinkMemory> memory;  // of host messages: the last is used; cudaFree would wait for NCCL's kernels
};

static ncclResult_t nccl_state(const NcclLink* l) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t e = ncclCommGetAsyncError(l->nccl, &state);
    return e == ncclSuccess ? state : e;
}

[[noreturn]] static void nccl_die(const NcclLink* l, const char* what, ncclResult_t e) {
    TostError why;
    tost_error(&why, "%s: %s; NCCL_DEBUG=WARN prints the cause", what, ncclGetErrorString(e));
    comm_let_first_speak(l->comm);   // NCCL reports a lost rank on all others
    comm_fail(l->comm, &why);
}

// Checks the result of a call. Waits until the call is queued on its stream, for which NCCL may need other ranks.
static void nccl_check(const NcclLink* l, ncclResult_t result, const char* what) {
    for (CommWait w = comm_wait_begin(l->comm); result == ncclInProgress; result = nccl_state(l))
        if (!comm_wait_more(&w)) comm_timed_out(l->comm, NULL, what);
    if (result != ncclSuccess) nccl_die(l, what, result);
}

// For calls inside of a group, which are queued only by ncclGroupEnd.
static void nccl_add(const NcclLink* l, ncclResult_t result, const char* what) {
    if (result != ncclSuccess && result != ncclInProgress) nccl_die(l, what, result);
}
#define NCCL_ADD(link, call) nccl_add(link, call, #call)
static void nccl_group_end(const NcclLink* l) { nccl_check(l, ncclGroupEnd(), "ncclGroupEnd"); }

// Starts messages (ranks) in device memory; the own entry is ignored.
static void nccl_send(const NcclLink* l, const CommMessage* messages, cudaStream_t stream) {
    NCCL_ADD(l, ncclGroupStart());
    for (int r = 0; r < l->comm->place.size; r++) {
        const CommMessage& m = messages[r];
        if (r == l->comm->place.rank) continue;
        if (m.send_bytes) NCCL_ADD(l, ncclSend(m.send, m.send_bytes, ncclInt8, r, l->nccl, stream));
        if (m.receive_bytes) NCCL_ADD(l, ncclRecv(m.receive, m.receive_bytes, ncclInt8, r, l->nccl, stream));
    }
    nccl_group_end(l);
}

// Ends the process if NCCL reports an error, as when another rank has failed.
static void nccl_event_wait(const NcclLink* l, cudaEvent_t event, const char* what) {
    CommWait w = comm_wait_begin(l->comm);
    for (cudaError_t e; (e = cudaEventQuery(event)) != cudaSuccess;) {
        if (e != cudaErrorNotReady) CUDA_CHECK(e);
        (void)cudaGetLastError();   // "not ready" counts as an error
        nccl_add(l, nccl_state(l), "NCCL");
        if (!comm_wait_more(&w)) comm_timed_out(l->comm, NULL, what);
    }
}

// Connects the ranks. Fails on all of them, or waits until the timeout for those that are missing. NULL: *err says why
static NcclLink* link_open(TostComm* comm, const ncclUniqueId* id, TostError* err) {
    NcclLink* l = new NcclLink();
    l->comm = comm;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    CommWait w = comm_wait_begin(comm);
    ncclResult_t e = ncclCommInitRankConfig(&l->nccl, comm->place.size, *id, comm->place.rank, &config);
    while (e == ncclInProgress && comm_wait_more(&w)) e = nccl_state(l);
    if (e == ncclSuccess) {
        CUDA_CHECK(cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking));
        CUDA_CHECK(cudaEventCreateWithFlags(&l->done, cudaEventDisableTiming));
        return l;
    }
    if (l->nccl) (void)ncclCommAbort(l->nccl);
    delete l;
    if (e == ncclInProgress)
        tost_error(err, "NCCL: not all of %d ranks connected within %g s (--rank-timeout)", comm->place.size,
                   comm->timeout);
    else tost_error(err, "NCCL cannot connect %d ranks: %s; %s", comm->place.size, ncclGetErrorString(e),
                    e == ncclInvalidUsage ? "every process needs a GPU of its own"
                                          : "NCCL_DEBUG=WARN prints the cause");
    return NULL;
}

// After the last message and exchange.
static void link_close(NcclLink* l) {
    nccl_check(l, ncclCommFinalize(l->nccl), "ncclCommFinalize");
    (void)ncclCommDestroy(l->nccl);
    for (const LinkMemory& m : l->memory) {
        CUDA_CHECK(cudaFreeHost(m.host));
        CUDA_CHECK(cudaFree(m.device));
    }
    CUDA_CHECK(cudaEventDestroy(l->done));
    CUDA_CHECK(cudaStreamDestroy(l->stream));
    delete l;
}

// ---------------------------------------------------------------------------------------------
// Host messages: a transport of comm.h. They pass through pinned and device memory.

static LinkMemory link_memory(NcclLink* l, size_t bytes) {
    if (l->memory.empty() || l->memory.back().bytes < bytes) {
        LinkMemory m = {NULL, NULL, (size_t)1 << 20};
        while (m.bytes < bytes) m.bytes *= 2;
        CUDA_CHECK(cudaMalloc(&m.device, m.bytes));
        CUDA_CHECK(cudaMallocHost(&m.host, m.bytes));
        l->memory.push_back(m);
    }
    return l->memory.back();
}

// Waits for the messages. In memory: what is sent to each rank, then what is received from each rank.
static CommRequest* nccl_start(TostComm* c, const CommMessage* messages) {
    NcclLink* l = (NcclLink*)c->transport;
    std::vector<CommMessage> on_device(messages, messages + c->place.size);
    size_t sent = 0, received = 0;
    on_device[c->place.rank] = {};
    for (const CommMessage& m : on_device) sent += m.send_bytes, received += m.receive_bytes;
    const LinkMemory memory = link_memory(l, sent + received);
    size_t out = 0, in = sent;
    for (CommMessage& m : on_device) {
        if (m.send_bytes) memcpy(memory.host + out, m.send, m.send_bytes);
        m.send = memory.device + out;
        m.receive = memory.device + in;
        out += m.send_bytes;
        in += m.receive_bytes;
    }
    CUDA_CHECK(cudaMemcpyAsync(memory.device, memory.host, sent, cudaMemcpyHostToDevice, l->stream));
    nccl_send(l, on_device.data(), l->stream);
    CUDA_CHECK(cudaMemcpyAsync(memory.host + sent, memory.device + sent, received, cudaMemcpyDeviceToHost, l->stream));
    CUDA_CHECK(cudaEventRecord(l->done, l->stream));
    nccl_event_wait(l, l->done, "messages");
    const char* from = memory.host + sent;
    for (int r = 0; r < c->place.size; r++) {
        if (on_device[r].receive_bytes) memcpy(messages[r].receive, from, on_device[r].receive_bytes);
        from += on_device[r].receive_bytes;
    }
    return NULL;
}

static void nccl_abort(TostComm* c, int status) {
    (void)ncclCommAbort(((NcclLink*)c->transport)->nccl);
    _exit(status);
}

static void nccl_close(TostComm* c) { link_close((NcclLink*)c->transport); }

// The link of a comm whose messages NCCL transports; NULL for others.
static NcclLink* link_of(const TostComm* c) { return c->start == nccl_start ? (NcclLink*)c->transport : NULL; }

// Where rank 0 listens, for ncclGetUniqueId: NCCL_COMM_ID, or the port after MASTER_PORT of MASTER_ADDR, since torchrun
// itself listens on MASTER_PORT. One rank needs neither.
static bool set_nccl_comm_id(int ranks, TostError* err) {
    const char *host = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT");
    if (ranks == 1 || getenv("NCCL_COMM_ID")) return true;
    if (!host || !*host || !port || !*port)
        return tost_error(err, "several processes, but no MASTER_ADDR and MASTER_PORT: set them to the host of rank 0 "
                          "and a free port, use torchrun, or build with make NCCL=1 MPI=1");
    const int number = atoi(port);
    if (number < 1 || number > 65535)
        return tost_error(err, "MASTER_PORT=%s: not a port; give a number from 1 to 65535", port);
    const bool v6 = strchr(host, ':') != NULL;
    char* id = xasprintf(v6 ? "[%s]:%d" : "%s:%d", host, number < 65535 ? number + 1 : number - 1);
    setenv("NCCL_COMM_ID", id, 1);
    free(id);
    return true;
}

// TostEngine.open_comm
static bool nccl_open_comm(TostComm** comm, TostError* err) {
    const CommLaunch launch = comm_launch();
    cudaDeviceProp prop;
    ncclUniqueId id;
    if (!set_nccl_comm_id(launch.place.size, err) || !device_open(&prop, launch.place.local_rank, err)) return false;
    const ncclResult_t e = ncclGetUniqueId(&id);
    if (e != ncclSuccess)
        return tost_error(err, "NCCL_COMM_ID=%s: %s; give HOST:PORT of rank 0", getenv("NCCL_COMM_ID"),
                          ncclGetErrorString(e));
    TostComm* c = (TostComm*)xcalloc(1, sizeof *c);
    int version = 0;
    c->place = launch.place;
    c->timeout = COMM_TIMEOUT;
    c->in_order = true;
    c->start = nccl_start;
    c->abort = nccl_abort;
    c->close = nccl_close;
    (void)ncclGetVersion(&version);
    snprintf(c->library, sizeof c->library, "NCCL %d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    c->transport = link_open(c, &id, err);
    if (!c->transport) {
        free(c);
        return false;
    }
    *comm = c;
    return true;
}
