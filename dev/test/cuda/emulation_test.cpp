// emulation_test.cpp: tests the CUDA emulation with small kernels. Correct kernels must work; missing synchronization,
// overruns and misuse of the API must be detected.
#include "emulation_test.h"

namespace {

constexpr int THREADS = 96;

const CudaOnHostOrder orders[] = {CUDA_ORDER_FORWARD, CUDA_ORDER_REVERSE, CUDA_ORDER_SHUFFLE};

void set_order(CudaOnHostOrder order, bool late = false) {
    CudaOnHostOptions o;
    o.order = order;
    o.late = late;
    cuda_on_host_set(o);
}

// ---------------------------------------------------------------------------------------------
// Kernels

template <bool SYNC> __global__ void reverse_block(int* out) {  // out[i] = THREADS-1-i
    __shared__ int x[THREADS];
    x[threadIdx.x] = (int)threadIdx.x;
    if (SYNC) __syncthreads();
    out[threadIdx.x] = x[THREADS - 1 - threadIdx.x];
}

template <bool SYNC> __global__ void sum_twice(int* out) {  // reuses the memory of the partial sums
    __shared__ int partial[THREADS / 32];
    for (int round = 0; round < 2; round++) {
        int x = (int)threadIdx.x + round;
        for (int d = 16; d; d /= 2) x += __shfl_xor_sync(~0u, x, d);
        if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
        __syncthreads();
        x = 0;
        for (int w = 0; w < THREADS / 32; w++) x += partial[w];
        out[round * THREADS + (int)threadIdx.x] = x;
        if (SYNC) __syncthreads();
    }
}

template <bool SYNC> __global__ void reverse_warp(int* out) {
    __shared__ int x[32];
    x[threadIdx.x] = (int)threadIdx.x;
    if (SYNC) __syncwarp();
    out[threadIdx.x] = x[31 - threadIdx.x];
}

__global__ void early_exit(int* out) {  // half of the threads return before the barrier
    __shared__ int x[THREADS];
    if (threadIdx.x % 2) return;
    x[threadIdx.x] = (int)threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = x[(threadIdx.x + 2) % THREADS];
}

__global__ void shuffles(float* out) {
    const int lane = (int)threadIdx.x;
    const float x = (float)lane;
    out[lane] = __shfl_sync(~0u, x, 5);
    out[32 + lane] = __shfl_up_sync(~0u, x, 3);
    out[64 + lane] = __shfl_xor_sync(~0u, x, 1);
    if (lane >= 16) return;
    out[96 + lane] = __shfl_sync(0xffffu, x, 15 - lane);
    out[112 + lane] = __shfl_sync(0xffffu, x, 20);  // from a lane that returned
}

__global__ void poison(float* out, const float* in) {
    __shared__ float x[4];
    float* y = static_cast<float*>(cuda_on_host_dynamic_shared());
    const float seen[] = {x[0], y[3], in[0]};
    for (int i = 0; i < 3; i++) out[blockIdx.x * 3 + (unsigned)i] = seen[i];
    x[0] = y[3] = 1.0f;
}

__global__ void different_barriers() {
    if (threadIdx.x < 32) __syncthreads();
    else __syncthreads();
}
__global__ void barrier_and_shuffle() {
    if (threadIdx.x == 0) __syncthreads();
    else __shfl_sync(~0u, 1.0f, 0);
}
__global__ void not_in_mask() { __syncwarp(2u); }
__global__ void different_operations() {
    if (threadIdx.x == 3) __shfl_sync(~0u, 1.0f, 0);
    else __syncwarp();
}
#ifdef CUDA_ON_HOST_ASAN
__global__ void write_at(float* p, int i) { p[i] = 1.0f; }
#endif
__global__ void write_shared(int i) { static_cast<float*>(cuda_on_host_dynamic_shared())[i] = 1.0f; }
__global__ void add_one(int* p) { *p += 1; }

// The launch must abort with a message.
template <typename F> void dies(Checks* c, const char* what, const char* message, F misuse) {
    int status = 0;
    const std::string text = child_stderr(&status, misuse);
    check(c, status != 0 && text.find(message) != std::string::npos, "%s: status %d, \"%.200s\", want \"%s\"", what,
          status, text.c_str(), message);
}

// ---------------------------------------------------------------------------------------------
// Blocks that communicate

enum Omitted { NOTHING, BARRIER_BEFORE, RELEASE, WAIT, ACQUIRE, BARRIER_AFTER };

// Block 0 hands data to all others by a flag: out[block,i] = THREADS-1-i.
template <Omitted O> __global__ void hand_over(int* out, int* data, int* flag) {
    if (blockIdx.x == 0) {
        data[threadIdx.x] = (int)threadIdx.x;
        if (O != BARRIER_BEFORE) __syncthreads();
        if (threadIdx.x == 0) cuda_on_host_store(flag, 1, O != RELEASE);
        return;
    }
    if (threadIdx.x == 0) {
        while (O != WAIT && !cuda_on_host_load(flag, false)) {}
        if (O != ACQUIRE) cuda_on_host_load(flag, true);
    }
    if (O != BARRIER_AFTER) __syncthreads();
    out[blockIdx.x * THREADS + threadIdx.x] = data[THREADS - 1 - threadIdx.x];
}

#ifdef CUDA_ON_HOST_RACES
__global__ void write_in_all_blocks(int* out) { *out = (int)blockIdx.x; }
#endif
__global__ void wait_for_each_other(int* flags) {
    while (!cuda_on_host_load(flags + 1 - blockIdx.x, false)) {}
    cuda_on_host_store(flags + blockIdx.x, 1, true);
}

void set_resident(int resident, uint64_t seed) {
    CudaOnHostOptions o;
    o.order = CUDA_ORDER_SHUFFLE;
    o.resident = resident;
    o.seed = seed;
    cuda_on_host_set(o);
}

constexpr int BLOCKS = 7;

bool hands_over(void (*kernel)(int*, int*, int*)) {
    const Device<int> out(BLOCKS * THREADS), data(THREADS), flag(std::vector<int>(1));
    CUDA_ON_HOST_LAUNCH(kernel, BLOCKS, THREADS, 0, nullptr, out.p, data.p, flag.p);
    bool ok = true;
    for (int i = 0; i < (BLOCKS - 1) * THREADS; i++)
        ok = ok && out.at((size_t)(THREADS + i)) == THREADS - 1 - i % THREADS;
    return ok && cuda_on_host_longest_chain() == 1;
}

void test_blocks(Checks* c) {
    const Device<int> x(std::vector<int>(2));
    for (uint64_t seed = 1; seed <= 20; seed++) {
        set_resident(BLOCKS, seed);
        check(c, hands_over(hand_over<NOTHING>), "flag, seed %d: wrong values", (int)seed);
    }
    set_order(CUDA_ORDER_REVERSE);
    dies(c, "block 0 does not fit beside those that wait for it", "deadlock: thread 0 waits for a flag",
         [] { hands_over(hand_over<NOTHING>); });
    set_resident(2, 1);
    dies(c, "two blocks wait for each other", "deadlock: thread 0 waits for a flag",
         [&] { CUDA_ON_HOST_LAUNCH(wait_for_each_other, 2, 1, 0, nullptr, x.p); });
#ifdef CUDA_ON_HOST_RACES
    void (*const flags[])(int*, int*, int*) = {hand_over<BARRIER_BEFORE>, hand_over<RELEASE>, hand_over<ACQUIRE>,
                                               hand_over<BARRIER_AFTER>};
    set_order(CUDA_ORDER_REVERSE);
    dies(c, "hand_over without waiting", "race: thread", [] { hands_over(hand_over<WAIT>); });
    for (int resident : {1, BLOCKS}) {   // one block after another, too: races do not depend on the schedule
        for (uint64_t seed = 1; seed <= 3; seed++) {
            set_resident(resident, seed);
            if (resident == 1) set_order(CUDA_ORDER_FORWARD);
            for (const auto& kernel : flags) dies(c, "hand_over", "race: thread", [&] { hands_over(kernel); });
            dies(c, "two blocks write", "race: thread 0 writes 4 bytes",
                 [&] { CUDA_ON_HOST_LAUNCH(write_in_all_blocks, 2, 1, 0, nullptr, x.p); });
        }
    }
#endif
    set_order(CUDA_ORDER_FORWARD);
}

// ---------------------------------------------------------------------------------------------
// Barriers, shuffles, memory

bool reverses(void (*kernel)(int*), int threads) {
    Device<int> out(THREADS);
    CUDA_ON_HOST_LAUNCH(kernel, 1, (unsigned)threads, 0, nullptr, out.p);
    bool ok = true;
    for (int i = 0; i < threads; i++) ok = ok && out.at((size_t)i) == threads - 1 - i;
    return ok;
}

bool sums_twice(void (*kernel)(int*)) {
    Device<int> out(2 * THREADS);
    CUDA_ON_HOST_LAUNCH(kernel, 1, THREADS, 0, nullptr, out.p);
    bool ok = true;
    for (int i = 0; i < 2 * THREADS; i++)
        ok = ok && out.at((size_t)i) == THREADS * (THREADS - 1) / 2 + i / THREADS * THREADS;
    return ok;
}

void test_barriers(Checks* c) {
    int block = 0, warp = 0, twice = 0;
    for (CudaOnHostOrder order : orders) {
        set_order(order);
        check(c, reverses(reverse_block<true>, THREADS), "__syncthreads, order %d: a thread passed too early",
              order);
        check(c, reverses(reverse_warp<true>, 32), "__syncwarp, order %d: a lane passed too early", order);
        check(c, sums_twice(sum_twice<true>), "two reductions, order %d: wrong sum", order);
#ifdef CUDA_ON_HOST_RACES
        dies(c, "missing __syncthreads before a read", "race: ", [] { reverses(reverse_block<false>, THREADS); });
        dies(c, "missing __syncwarp", "race: ", [] { reverses(reverse_warp<false>, 32); });
        dies(c, "missing __syncthreads before memory is reused", "race: ", [] { sums_twice(sum_twice<false>); });
#else
        block += reverses(reverse_block<false>, THREADS);
        warp += reverses(reverse_warp<false>, 32);
        twice += sums_twice(sum_twice<false>);
#endif
        Device<int> out(THREADS);
        CUDA_ON_HOST_LAUNCH(early_exit, 1, THREADS, 0, nullptr, out.p);
        check(c, out.at(0) == 2 && out.at(THREADS - 2) == 0,
              "barrier after half of the threads returned, order %d", order);
    }
    check(c, block == 0, "missing __syncthreads before a read not detected in %d orders", block);
    check(c, warp == 0, "missing __syncwarp not detected in %d orders", warp);
    check(c, twice == 0, "missing __syncthreads before memory is reused not detected in %d orders", twice);
}

void test_shuffles(Checks* c) {
    Device<float> out(128);
    CUDA_ON_HOST_LAUNCH(shuffles, 1, 32, 0, nullptr, out.p);
    int bad = 0;
    for (int l = 0; l < 32; l++) {
        const float want[] = {5, (float)(l < 3 ? l : l - 3), (float)(l ^ 1)};
        for (int i = 0; i < 3; i++) bad += out.at((size_t)(i * 32 + l)) != want[i];
        if (l < 16) bad += out.at((size_t)(96 + l)) != (float)(15 - l);
        if (l < 16) bad += !std::isnan(out.at((size_t)(112 + l)));
    }
    check(c, bad == 0, "shuffles: %d wrong values", bad);
}

void test_poison(Checks* c) {
    Device<float> out(9), in(1);
    CUDA_ON_HOST_LAUNCH(poison, 3, 1, 16, nullptr, out.p, in.p);
    for (size_t i = 0; i < 9; i++)
        check(c, std::isnan(out.at(i)), "%s memory of block %zu did not start as NaN",
              i % 3 ? i % 3 == 1 ? "dynamic shared" : "device" : "static shared", i / 3);
}

// ---------------------------------------------------------------------------------------------
// Streams

void test_streams(Checks* c) {
    set_order(CUDA_ORDER_FORWARD, true);
    cudaStream_t a, b;
    cudaEvent_t event;
    int* pinned;
    cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    cudaMallocHost(&pinned, 2 * sizeof *pinned);
    Device<int> x(1);
    pinned[0] = 7;
    pinned[1] = 0;
    cudaMemcpyAsync(x.p, pinned, sizeof(int), cudaMemcpyHostToDevice, a);
    pinned[0] = 8;  // read by the copy, which has not run yet
    CUDA_ON_HOST_LAUNCH(add_one, 1, 1, 0, a, x.p);
    cudaEventRecord(event, a);
    CUDA_ON_HOST_LAUNCH(add_one, 1, 1, 0, a, x.p);
    cudaStreamWaitEvent(b, event);
    cudaMemcpyAsync(pinned + 1, x.p, sizeof(int), cudaMemcpyDeviceToHost, b);
    check(c, pinned[1] == 0, "a late stream ran before anything waited for it");
    cudaStreamSynchronize(b);
    check(c, pinned[1] == 9, "wait for an event of another stream: %d, want 9", pinned[1]);
    cudaStreamSynchronize(a);
    check(c, x.at(0) == 10, "work after the event: %d, want 10", x.at(0));
    cudaFreeHost(pinned);
    cudaEventDestroy(event);
    cudaStreamDestroy(a);
    cudaStreamDestroy(b);
    set_order(CUDA_ORDER_FORWARD);
}

// ---------------------------------------------------------------------------------------------
// Misuse must abort with a message

void test_misuse(Checks* c) {
    Device<float> x(64);
    Device<char> poisoned(1024);
    float host[64];
    cuda_on_host_poison(poisoned.p + 256, 256);
    dies(c, "two barriers",
         "different_barriers, block (0,0,0): threads of a block wait at different __syncthreads",
         [] { CUDA_ON_HOST_LAUNCH(different_barriers, 1, 64, 0, nullptr); });
    dies(c, "barrier and shuffle", "barrier_and_shuffle, block (0,0,0): deadlock",
         [] { CUDA_ON_HOST_LAUNCH(barrier_and_shuffle, 1, 64, 0, nullptr); });
    dies(c, "not in its mask", "is not in its own mask",
         [] { CUDA_ON_HOST_LAUNCH(not_in_mask, 1, 1, 0, nullptr); });
    dies(c, "two operations", "in its mask at",
         [] { CUDA_ON_HOST_LAUNCH(different_operations, 1, 32, 0, nullptr); });
    dies(c, "large block", "a block of (1025,1,1)",
         [&] { CUDA_ON_HOST_LAUNCH(add_one, 1, 1025, 0, nullptr, (int*)x.p); });
    dies(c, "no blocks", "a grid of (0,1,1)",
         [&] { CUDA_ON_HOST_LAUNCH(add_one, 0, 1, 0, nullptr, (int*)x.p); });
    dies(c, "shared memory", "49153 bytes of shared",
         [] { CUDA_ON_HOST_LAUNCH(write_shared, 1, 1, 49153, nullptr, 0); });
    dies(c, "copy too long", "an allocation of 256",
         [&] { cudaMemcpy(host, x.p + 1, sizeof host, cudaMemcpyDeviceToHost); });
    dies(c, "copy's kind", "kind 1", [&] { cudaMemcpy(host, x.p, 4, cudaMemcpyHostToDevice); });
    dies(c, "free twice", "is not from cudaMalloc", [&] {
        cudaFree(x.p);
        cudaFree(x.p);
    });
    dies(c, "leading dimension", "leading dimension 3", [] {
        cublasLtMatrixLayout_t l;
        cublasLtMatrixLayoutCreate(&l, CUDA_R_32F, 4, 2, 3);
    });
    check(c, cudaFuncSetAttribute(add_one, cudaFuncAttributeMaxDynamicSharedMemorySize, 99 << 10) != cudaSuccess,
          "more shared memory than GPUs of compute capability 8.6 have");
    dies(c, "times of events without timing", "have no timing", [] {
        cudaEvent_t e;
        float ms;
        cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
        cudaEventRecord(e);
        cudaEventElapsedTime(&ms, e, e);
    });
    const auto in_capture = [&](const char* what, const char* message, std::function<void(cudaStream_t)> misuse) {
        dies(c, what, message, [&] {
            cudaStream_t s;
            cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
            cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal);
            misuse(s);
        });
    };
    float* pinned;
    cudaMallocHost(&pinned, sizeof host);
    in_capture("pageable copy in a capture", "pageable",
               [&](cudaStream_t s) { cudaMemcpyAsync(x.p, host, sizeof host, cudaMemcpyHostToDevice, s); });
    in_capture("allocation in a capture", "allocation while", [](cudaStream_t) {
        float* p;
        cudaMalloc(&p, 4);
    });
    in_capture("cudaFreeHost in a capture", "cudaFreeHost while", [&](cudaStream_t) { cudaFreeHost(pinned); });
    in_capture("waiting in a capture", "is capturing", [](cudaStream_t s) { cudaStreamSynchronize(s); });
    cudaFreeHost(pinned);
#ifdef CUDA_ON_HOST_ASAN
    dies(c, "write past the end", "AddressSanitizer",
         [&] { CUDA_ON_HOST_LAUNCH(write_at, 1, 1, 0, nullptr, x.p, 64); });
    dies(c, "write past shared memory", "AddressSanitizer",
         [] { CUDA_ON_HOST_LAUNCH(write_shared, 1, 1, 256, nullptr, 64); });
    dies(c, "write into a red zone", "AddressSanitizer",
         [&] { CUDA_ON_HOST_LAUNCH(write_at, 1, 1, 0, nullptr, (float*)poisoned.p, 64); });
    dies(c, "the host reads device memory", "AddressSanitizer", [&] { host[0] = *(volatile float*)x.p; });
#else
    skip(c, "overruns: built without the address sanitizer");
#endif
}

}  // namespace

void test_emulation(Checks* c) {
    const int live = cuda_on_host_live();
    test_barriers(c);
    test_blocks(c);
    for (CudaOnHostOrder order : orders) {
        set_order(order);
        test_shuffles(c);
        test_poison(c);
    }
    test_streams(c);
    test_misuse(c);
    check(c, cuda_on_host_live() == live, "%d CUDA objects leaked", cuda_on_host_live() - live);
}
