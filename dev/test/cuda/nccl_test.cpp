// nccl_test.cpp: tests the NCCL emulation. Correct calls must work; calls that do not match, and misuse, must abort.
#include "ranks_on_host.h"

namespace {

constexpr size_t N = 100;

struct Rank {
    int rank, size;
    ncclComm_t comm;
    cudaStream_t stream;
    float *in, *out;   // (size, N) each
    Rank(int r, int n) : rank(r), size(n) {
        CudaOnHostOptions o;
        o.devices = n;
        o.late = true;
        o.prompt = ~0u;
        cuda_on_host_set(o);
        nccl_on_host_set({-1, 2});   // seconds
        cudaSetDevice(r);
        ncclUniqueId id;
        ncclConfig_t config = {0};
        ncclGetUniqueId(&id);
        ncclCommInitRankConfig(&comm, n, id, r, &config);
        settle();
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        cudaMalloc(&in, (size_t)n * N * sizeof *in);
        cudaMalloc(&out, (size_t)n * N * sizeof *out);
        std::vector<float> x((size_t)n * N);
        for (size_t i = 0; i < x.size(); i++) x[i] = (float)(1000 * r) + (float)i;
        cudaMemcpy(in, x.data(), x.size() * sizeof(float), cudaMemcpyHostToDevice);
    }
    void settle() {
        ncclResult_t state = ncclInProgress;
        while (state == ncclInProgress) ncclCommGetAsyncError(comm, &state);
    }
    std::vector<float> result() {
        std::vector<float> x((size_t)size * N);
        cudaStreamSynchronize(stream);
        cudaMemcpy(x.data(), out, x.size() * sizeof(float), cudaMemcpyDeviceToHost);
        return x;
    }
    void close() {
        ncclCommFinalize(comm);
        settle();
        ncclCommDestroy(comm);
        cudaStreamDestroy(stream);
        cudaFree(in);
        cudaFree(out);
    }
};

[[noreturn]] void wrong(const char* what, int rank) {
    fprintf(stderr, "%s: wrong on rank %d\n", what, rank);
    _exit(1);
}

void all_calls(int rank, int size) {
    Rank r(rank, size);
    const int next = (rank + 1) % size, last = (rank + size - 1) % size;
    ncclGroupStart();
    ncclSend(r.in, N, ncclFloat, next, r.comm, r.stream);
    ncclRecv(r.out, N, ncclFloat, last, r.comm, r.stream);
    ncclGroupEnd();
    r.settle();
    if (r.result()[5] != (float)(1000 * last + 5)) wrong("ncclSend and ncclRecv", rank);
    ncclAllGather(r.in, r.out, N, ncclFloat, r.comm, r.stream);
    r.settle();
    for (int i = 0; i < size; i++)
        if (r.result()[(size_t)i * N + 7] != (float)(1000 * i + 7)) wrong("ncclAllGather", rank);
    ncclBroadcast(r.in, r.out, N, ncclFloat, size - 1, r.comm, r.stream);
    r.settle();
    if (r.result()[9] != (float)(1000 * (size - 1) + 9)) wrong("ncclBroadcast", rank);
    const float sum = (float)(1000 * size * (size - 1) / 2);
    ncclReduceScatter(r.in, r.out, N, ncclFloat, ncclSum, r.comm, r.stream);
    r.settle();
    if (r.result()[3] != sum + (float)(size * (rank * (int)N + 3))) wrong("ncclReduceScatter", rank);
    ncclReduce(r.in, r.out, N, ncclFloat, ncclSum, 0, r.comm, r.stream);
    r.settle();
    if (rank == 0 && r.result()[3] != sum + (float)(3 * size)) wrong("ncclReduce", rank);
    cudaStreamSynchronize(r.stream);
    r.close();
    if (nccl_on_host_live() + cuda_on_host_live() != 0) wrong("nccl_on_host_live", rank);
}

// Runs f on two ranks; at least one must abort with the message.
template <typename F> void dies(Checks* c, const char* message, F f) {
    bool found = false;
    std::string texts;
    for (const RankEnd& end : run_ranks(2, [&](int rank) {
             Rank r(rank, 2);
             f(r);
             r.settle();
             cudaStreamSynchronize(r.stream);
         })) {
        found = found || (WIFSIGNALED(end.status) && end.text.find(message) != std::string::npos);
        texts += end.text;
    }
    check(c, found, "want \"%s\", got \"%s\"", message, texts.c_str());
}

void exchange(Rank& r, size_t sent, size_t received) {
    ncclGroupStart();
    ncclSend(r.in, sent, ncclFloat, 1 - r.rank, r.comm, r.stream);
    ncclRecv(r.out, received, ncclFloat, 1 - r.rank, r.comm, r.stream);
    ncclGroupEnd();
}

void test_misuse(Checks* c) {
    dies(c, "ncclSend of 50 elements", [](Rank& r) { exchange(r, r.rank ? 50 : N, N); });
    dies(c, "no call that belongs to it", [](Rank& r) {
        if (r.rank == 0) exchange(r, N, N);
        else ncclSend(r.in, N, ncclFloat, 0, r.comm, r.stream);
    });
    dies(c, "ncclBroadcast of 100 elements of type 7, peer or root 0; rank 0: ncclAllGather", [](Rank& r) {
        if (r.rank == 0) ncclAllGather(r.in, r.out, N, ncclFloat, r.comm, r.stream);
        else ncclBroadcast(r.in, r.out, N, ncclFloat, 0, r.comm, r.stream);
    });
    dies(c, "other ranks have not made a call", [](Rank& r) {
        if (r.rank == 0) exchange(r, N, N);
    });
    dies(c, "overlaps", [](Rank& r) {
        ncclGroupStart();
        ncclSend(r.in, N, ncclFloat, 1 - r.rank, r.comm, r.stream);
        ncclRecv(r.in + N - 1, N, ncclFloat, 1 - r.rank, r.comm, r.stream);
        ncclGroupEnd();
    });
    dies(c, "is not device memory", [](Rank& r) {
        float host[N] = {};
        ncclBroadcast(host, host, N, ncclFloat, 0, r.comm, r.stream);
    });
    dies(c, "ncclCommFinalize while 1 groups have not ended", [](Rank& r) {
        if (r.rank == 0) exchange(r, N, N);
        r.settle();
        r.close();
    });
    dies(c, "ncclCommGetAsyncError was not asked", [](Rank& r) {
        exchange(r, N, N);
        exchange(r, N, N);
    });
}

}  // namespace

void test_nccl_emulation(Checks* c) {
    for (int size = 1; size <= 3; size++) {
        const std::vector<RankEnd> ends = run_ranks(size, [&](int rank) { all_calls(rank, size); });
        for (const RankEnd& end : ends)
            check(c, end.status == 0, "%d ranks: status %d: %s", size, end.status, end.text.c_str());
    }
    test_misuse(c);
}
