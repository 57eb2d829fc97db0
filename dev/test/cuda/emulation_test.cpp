// emulation_test.cpp: tests the CUDA emulation with small kernels. Correct kernels must work; missing synchronization,
// overruns and misuse of the API must be detected.
#include "emulation_test.h"

namespace {

constexpr int THREADS = 96, BLOCKS = 7;

// A missing synchronization must be reported as a race or, in other builds, give wrong results, for which f returns
// false.
template <typename F> void misses(Checks* c, const char* what, F f) {
#ifdef CUDA_ON_HOST_RACES
    dies(c, what, "race: ", f);
#else
    check(c, !f(), "missing %s: not detected", what);
#endif
}

// ---------------------------------------------------------------------------------------------
// Barriers, shuffles, memory

enum Sync { NO_SYNC, SYNC_WARP, SYNC_BLOCK };

template <Sync S> __global__ void reverse(int* out) {   // out[i] = blockDim-1-i
    SHARED(int, x, THREADS);
    x[threadIdx.x] = (int)threadIdx.x;
    if (S == SYNC_WARP) __syncwarp();
    if (S == SYNC_BLOCK) __syncthreads();
    out[threadIdx.x] = x[blockDim.x - 1 - threadIdx.x];
}

bool reverses(void (*kernel)(int*), int threads) {
    Device<int> out(THREADS);
    PLATFORM_LAUNCH(kernel, 1, (unsigned)threads, 0, nullptr, out.p);
    bool ok = true;
    for (int i = 0; i < threads; i++) ok = ok && out.at((size_t)i) == threads - 1 - i;
    return ok;
}

template <Sync S> __global__ void sum_twice(int* out) {   // reuses the memory of the partial sums
    SHARED(int, partial, THREADS / 32);
    for (int round = 0; round < 2; round++) {
        int x = (int)threadIdx.x + round;
        for (int d = 16; d; d /= 2) x += __shfl_xor_sync(~0u, x, d);
        if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
        __syncthreads();
        x = 0;
        for (int w = 0; w < THREADS / 32; w++) x += partial[w];
        out[round * THREADS + (int)threadIdx.x] = x;
        if (S == SYNC_BLOCK) __syncthreads();
    }
}

bool sums_twice(void (*kernel)(int*)) {
    Device<int> out(2 * THREADS);
    PLATFORM_LAUNCH(kernel, 1, THREADS, 0, nullptr, out.p);
    bool ok = true;
    for (int i = 0; i < 2 * THREADS; i++)
        ok = ok && out.at((size_t)i) == THREADS * (THREADS - 1) / 2 + i / THREADS * THREADS;
    return ok;
}

__global__ void early_exit(int* out) {   // half of the threads return before the barrier
    SHARED(int, x, THREADS);
    if (threadIdx.x % 2) return;
    x[threadIdx.x] = (int)threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = x[(threadIdx.x + 2) % THREADS];
}

void test_barriers(Checks* c) {
    check(c, reverses(reverse<SYNC_BLOCK>, THREADS), "__syncthreads: a thread passed too early");
    check(c, reverses(reverse<SYNC_WARP>, 32), "__syncwarp: a lane passed too early");
    check(c, sums_twice(sum_twice<SYNC_BLOCK>), "two reductions: wrong sum");
    misses(c, "__syncthreads before a read", [] { return reverses(reverse<NO_SYNC>, THREADS); });
    misses(c, "__syncwarp", [] { return reverses(reverse<NO_SYNC>, 32); });
    misses(c, "__syncthreads before memory is reused", [] { return sums_twice(sum_twice<NO_SYNC>); });
    Device<int> out(THREADS);
    PLATFORM_LAUNCH(early_exit, 1, THREADS, 0, nullptr, out.p);
    check(c, out.at(0) == 2 && out.at(THREADS - 2) == 0, "barrier after half of the threads returned");
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

void test_shuffles(Checks* c) {
    Device<float> out(128);
    PLATFORM_LAUNCH(shuffles, 1, 32, 0, nullptr, out.p);
    int bad = 0;
    for (int l = 0; l < 32; l++) {
        const float want[] = {5, (float)(l < 3 ? l : l - 3), (float)(l ^ 1)};
        for (int i = 0; i < 3; i++) bad += out.at((size_t)(i * 32 + l)) != want[i];
        if (l < 16) bad += out.at((size_t)(96 + l)) != (float)(15 - l);
        if (l < 16) bad += !std::isnan(out.at((size_t)(112 + l)));
    }
    check(c, bad == 0, "shuffles: %d wrong values", bad);
}

__global__ void poison(float* out, const float* in) {
    SHARED(float, x, 4);
    DYNAMIC_SHARED(float, y);
    const float seen[] = {x[0], y[3], in[0]};
    for (int i = 0; i < 3; i++) out[blockIdx.x * 3 + (unsigned)i] = seen[i];
    x[0] = y[3] = 1.0f;
}

void test_poison(Checks* c) {
    Device<float> out(9), in(1);
    PLATFORM_LAUNCH(poison, 3, 1, 16, nullptr, out.p, in.p);
    for (const float x : out.get()) check(c, std::isnan(x), "shared or device memory did not start as NaN");
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

[[maybe_unused]] __global__ void write_in_all_blocks(int* out) { *out = (int)blockIdx.x; }
__global__ void wait_for_each_other(int* flags) {
    while (!cuda_on_host_load(flags + 1 - blockIdx.x, false)) {}
    cuda_on_host_store(flags + blockIdx.x, 1, true);
}

bool hands_over(void (*kernel)(int*, int*, int*)) {
    const Device<int> out(BLOCKS * THREADS), data(THREADS), flag(std::vector<int>(1));
    PLATFORM_LAUNCH(kernel, BLOCKS, THREADS, 0, nullptr, out.p, data.p, flag.p);
    bool ok = true;
    for (int i = 0; i < (BLOCKS - 1) * THREADS; i++)
        ok = ok && out.at((size_t)(THREADS + i)) == THREADS - 1 - i % THREADS;
    return ok && cuda_on_host_longest_chain() == 1;
}

void test_blocks(Checks* c) {
    const Device<int> x(std::vector<int>(2));
    const char* const deadlock = "deadlock: all blocks wait for flags";
    for (uint64_t seed = 1; seed <= 20; seed++) {
        cuda_on_host_set({CUDA_ORDER_SHUFFLE, seed, BLOCKS});
        check(c, hands_over(hand_over<NOTHING>), "flag, seed %d: wrong values", (int)seed);
    }
    cuda_on_host_set({CUDA_ORDER_REVERSE});
    dies(c, "block 0 does not fit beside those that wait for it", deadlock, [] { hands_over(hand_over<NOTHING>); });
    cuda_on_host_set({CUDA_ORDER_SHUFFLE, 1, 2});
    dies(c, "two blocks wait for each other", deadlock,
         [&] { PLATFORM_LAUNCH(wait_for_each_other, 2, 1, 0, nullptr, x.p); });
#ifdef CUDA_ON_HOST_RACES
    cuda_on_host_set({CUDA_ORDER_REVERSE});
    dies(c, "hand_over without waiting", "race: thread", [] { hands_over(hand_over<WAIT>); });
    for (int resident : {1, BLOCKS}) {   // one block after another, too: races do not depend on the schedule
        cuda_on_host_set({resident == 1 ? CUDA_ORDER_FORWARD : CUDA_ORDER_SHUFFLE, 1, resident});
        for (const auto& kernel : {hand_over<BARRIER_BEFORE>, hand_over<RELEASE>, hand_over<ACQUIRE>,
                                   hand_over<BARRIER_AFTER>})
            dies(c, "hand_over", "race: thread", [&] { hands_over(kernel); });
        dies(c, "two blocks write", "race: thread 0 writes 4 bytes",
             [&] { PLATFORM_LAUNCH(write_in_all_blocks, 2, 1, 0, nullptr, x.p); });
    }
#endif
}

// ---------------------------------------------------------------------------------------------
// Streams

__global__ void add_one(int* p) { *p += 1; }

void test_streams(Checks* c) {
    cuda_on_host_set({CUDA_ORDER_FORWARD, 1, 1, true});
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
    PLATFORM_LAUNCH(add_one, 1, 1, 0, a, x.p);
    cudaEventRecord(event, a);
    PLATFORM_LAUNCH(add_one, 1, 1, 0, a, x.p);
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
}

// ---------------------------------------------------------------------------------------------
// Misuse must abort with a message

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
[[maybe_unused]] __global__ void write_at(float* p, int i) { p[i] = 1.0f; }
[[maybe_unused]] __global__ void write_shared(int i) {
    SHARED(float, x, 64);
    x[i] = 1.0f;
}
[[maybe_unused]] __global__ void write_dynamic(int i) {
    DYNAMIC_SHARED(float, x);
    x[i] = 1.0f;
}

void test_misuse(Checks* c) {
    Device<float> x(64);
    float host[64];
    const struct { const char* message; void (*kernel)(); unsigned threads; } kernels[] = {
        {"k.kernel, block (0,0,0): threads of a block wait at different __syncthreads", different_barriers, 64},
        {"k.kernel, block (0,0,0): deadlock", barrier_and_shuffle, 64},
        {"is not in its own mask", not_in_mask, 1},
        {"in its mask at", different_operations, 32},
        {"a block of (1025,1,1)", not_in_mask, 1025},
    };
    for (const auto& k : kernels)
        dies(c, "kernel", k.message, [&] { PLATFORM_LAUNCH(k.kernel, 1, k.threads, 0, nullptr); });
    dies(c, "shared memory", "49153 bytes of shared",
         [] { PLATFORM_LAUNCH(not_in_mask, 1, 1, 49153, nullptr); });
    check(c, cudaFuncSetAttribute(add_one, cudaFuncAttributeMaxDynamicSharedMemorySize, 99 << 10) != cudaSuccess,
          "more shared memory than GPUs of compute capability 8.6 have");
    check(c, cudaFuncSetAttribute(add_one, cudaFuncAttributePreferredSharedMemoryCarveout, 101) != cudaSuccess,
          "a carve-out of over 100 %%");
    dies(c, "copy too long", "an allocation of 256",
         [&] { cudaMemcpy(host, x.p + 1, sizeof host, cudaMemcpyDeviceToHost); });
    dies(c, "free twice", "is not from cudaMalloc", [&] {
        cudaFree(x.p);
        cudaFree(x.p);
    });
    const auto in_capture = [&](const char* message, std::function<void(cudaStream_t)> misuse) {
        dies(c, "in a capture", message, [&] {
            cudaStream_t s;
            cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
            cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal);
            misuse(s);
        });
    };
    in_capture("pageable", [&](cudaStream_t s) { cudaMemcpyAsync(x.p, host, 4, cudaMemcpyHostToDevice, s); });
    in_capture("allocation while", [](cudaStream_t) { Device<float>(1); });
    in_capture("is capturing", [](cudaStream_t s) { cudaStreamSynchronize(s); });
#ifdef CUDA_ON_HOST_ASAN
    const char* const found = "AddressSanitizer";
    Device<char> poisoned(1024);
    cuda_on_host_poison(poisoned.p + 256, 256);
    dies(c, "write past the end", found, [&] { PLATFORM_LAUNCH(write_at, 1, 1, 0, nullptr, x.p, 64); });
    dies(c, "write past shared memory", found, [] { PLATFORM_LAUNCH(write_shared, 1, 1, 0, nullptr, 64); });
    dies(c, "write past dynamic memory", found, [] { PLATFORM_LAUNCH(write_dynamic, 1, 1, 256, nullptr, 64); });
    dies(c, "write into a red zone", found,
         [&] { PLATFORM_LAUNCH(write_at, 1, 1, 0, nullptr, (float*)poisoned.p, 64); });
    dies(c, "the host reads device memory", found, [&] { host[0] = *(volatile float*)x.p; });
#else
    skip(c, "overruns: built without the address sanitizer");
#endif
}

}  // namespace

void test_emulation(Checks* c) {
    const int live = cuda_on_host_live();
    for (const CudaOnHostOrder order : {CUDA_ORDER_FORWARD, CUDA_ORDER_REVERSE, CUDA_ORDER_SHUFFLE}) {
        cuda_on_host_set({order});
        test_barriers(c);
        test_shuffles(c);
        test_poison(c);
    }
    test_blocks(c);
    test_streams(c);
    cuda_on_host_set({CUDA_ORDER_FORWARD});
    test_misuse(c);
    check(c, cuda_on_host_live() == live, "%d CUDA objects leaked", cuda_on_host_live() - live);
}
