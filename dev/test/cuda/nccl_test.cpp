// nccl_test.cpp: tests the NCCL emulation. Correct calls must work; calls that do not match, and misuse, must abort.
#include "ranks_on_host.h"

namespace {

constexpr size_t N = 100;

struct Rank {
    int rank, size;
    ncclComm_t comm;
    cudaStream_t stream;
    float *in, *out;   // (N); in[i] = 1000 rank + i
    Rank(int r, int n) : rank(r), size(n) {
        cuda_on_host_set({CUDA_ORDER_FORWARD, 1, 1, true, ~0u, n});
        nccl_on_host_set({-1, 2});   // seconds
        cudaSetDevice(r);
        ncclUniqueId id;
        ncclConfig_t config = {0};
        ncclGetUniqueId(&id);
        ncclCommInitRankConfig(&comm, n, id, r, &config);
        settle();
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        cudaMalloc(&in, N * sizeof *in);
        cudaMalloc(&out, N * sizeof *out);
        std::vector<float> x(N);
        for (size_t i = 0; i < N; i++) x[i] = (float)(1000 * r) + (float)i;
        cudaMemcpy(in, x.data(), N * sizeof(float), cudaMemcpyHostToDevice);
    }
    void settle() {
        ncclResult_t state = ncclInProgress;
        while (state == ncclInProgress) ncclCommGetAsyncError(comm, &state);
    }
    void exchange(int to, int from, size_t sent = N, size_t received = N) {
        ncclGroupStart();
        ncclSend(in, sent, ncclFloat, to, comm, stream);
        ncclRecv(out, received, ncclFloat, from, comm, stream);
        ncclGroupEnd();
    }
    // Ends the process unless element i of x is `want`.
    void expect(const char* what, const float* x, size_t i, int want) {
        float got;
        settle();
        cudaStreamSynchronize(stream);
        cudaMemcpy(&got, x + i, sizeof got, cudaMemcpyDeviceToHost);
        if (got == (float)want) return;
        fprintf(stderr, "%s: %g instead of %d on rank %d\n", what, got, want, rank);
        _exit(1);
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

void all_calls(int rank, int size) {
    Rank r(rank, size);
    const int last = (rank + size - 1) % size;
    r.exchange((rank + 1) % size, last);
    r.expect("ncclSend and ncclRecv", r.out, 5, 1000 * last + 5);
    ncclBroadcast(r.in, r.in, N, ncclFloat, size - 1, r.comm, r.stream);
    r.expect("ncclBroadcast", r.in, 9, 1000 * (size - 1) + 9);
    r.close();
    if (nccl_on_host_live() + cuda_on_host_live() != 0) _exit(2);
}

// Mistakes of two ranks, at least one of which must abort with the message.
const struct { const char* message; void (*make)(Rank& r); } mistakes[] = {
    {"ncclSend of 200 bytes", [](Rank& r) { r.exchange(1 - r.rank, 1 - r.rank, r.rank ? 50 : N); }},
    {"overlaps", [](Rank& r) {
        r.out = r.in + N - 1;
        r.exchange(1 - r.rank, 1 - r.rank, N, 1);
    }},
};

}  // namespace

void test_nccl_emulation(Checks* c) {
    for (int size = 1; size <= 3; size++)
        for (const RankEnd& end : run_ranks(size, [&](int rank) { all_calls(rank, size); }))
            check(c, end.status == 0, "%d ranks: status %d: %s", size, end.status, end.text.c_str());
    for (const auto& mistake : mistakes) {
        bool found = false;
        std::string texts;
        for (const RankEnd& end : run_ranks(2, [&](int rank) {
                 Rank r(rank, 2);
                 mistake.make(r);
                 r.settle();
                 cudaStreamSynchronize(r.stream);
             })) {
            found = found || (WIFSIGNALED(end.status) && end.text.find(mistake.message) != std::string::npos);
            texts += end.text;
        }
        check(c, found, "want \"%s\", got \"%s\"", mistake.message, texts.c_str());
    }
}
