// emulation_test.cpp: tests that the CUDA emulation detects one mistake of each kind. mutants.sh tests it with mistakes
// in the kernels of the engine.
#include "emulation_test.h"

namespace {

constexpr int THREADS = 96;

__global__ void reverse(int* out) {   // out[i] = THREADS-1-i, without the barrier that this needs
    SHARED(int, x, THREADS);
    x[threadIdx.x] = (int)threadIdx.x;
    out[threadIdx.x] = x[THREADS - 1 - threadIdx.x];
}

// A missing barrier must be reported as a race or, in other builds, give wrong results.
void test_missing_barrier(Checks* c) {
    const Device<int> out(THREADS);
    const auto launch = [&] { PLATFORM_LAUNCH(reverse, 1, THREADS, 0, nullptr, out.p); };
#ifdef CUDA_ON_HOST_RACES
    dies(c, "missing barrier", "race: ", launch);
#else
    std::vector<float> reversed(THREADS);
    for (int i = 0; i < THREADS; i++) reversed[(size_t)i] = (float)(THREADS - 1 - i);
    launch();
    check(c, out.get() != reversed, "missing barrier: not detected");
#endif
}

[[maybe_unused]] __global__ void write_in_all_blocks(int* out) { *out = (int)blockIdx.x; }
__global__ void wait_for_each_other(int* flags) {
    while (!cuda_on_host_load(flags + 1 - blockIdx.x, false)) {}
    cuda_on_host_store(flags + blockIdx.x, 1, true);
}

void test_blocks(Checks* c) {
    const Device<int> x(std::vector<int>(2));
    cuda_on_host_set({CUDA_ORDER_SHUFFLE, 1, 2});
    dies(c, "two blocks wait for each other", "deadlock: all blocks wait for flags",
         [&] { PLATFORM_LAUNCH(wait_for_each_other, 2, 1, 0, nullptr, x.p); });
#ifdef CUDA_ON_HOST_RACES
    for (int resident : {1, 2}) {   // one block after another, too: races do not depend on the schedule
        cuda_on_host_set({CUDA_ORDER_FORWARD, 1, resident});
        dies(c, "two blocks write", "race: thread 0 writes 4 bytes",
             [&] { PLATFORM_LAUNCH(write_in_all_blocks, 2, 1, 0, nullptr, x.p); });
    }
#endif
}

__global__ void different_barriers() {
    if (threadIdx.x < 32) __syncthreads();
    else __syncthreads();
}
__global__ void part_of_a_warp() { __shfl_sync(1u, 0, 0); }
[[maybe_unused]] __global__ void write_at(float* p, int i) { p[i] = 1.0f; }
[[maybe_unused]] __global__ void write_shared(int i) {
    SHARED(float, x, 64);
    x[i] = 1.0f;
}

void test_misuse(Checks* c) {
    Device<float> x(64);
    float host[64];
    const struct { const char* message; void (*kernel)(); unsigned threads; } kernels[] = {
        {"k.kernel, block (0,0,0): threads of a block wait at different __syncthreads", different_barriers, 64},
        {"only whole warps are emulated", part_of_a_warp, 1},
        {"a block of (1025,1,1)", part_of_a_warp, 1025},
    };
    for (const auto& k : kernels)
        dies(c, "kernel", k.message, [&] { PLATFORM_LAUNCH(k.kernel, 1, k.threads, 0, nullptr); });
    dies(c, "shared memory without the attribute", "49152 bytes of shared memory, at most 49088",
         [] { PLATFORM_LAUNCH(different_barriers, 1, 32, 48 << 10, nullptr); });
    dies(c, "copy too long", "an allocation of 256",
         [&] { cudaMemcpy(host, x.p + 1, sizeof host, cudaMemcpyDeviceToHost); });
    dies(c, "free twice", "is not from cudaMalloc", [&] {
        cudaFree(x.p);
        cudaFree(x.p);
    });
    dies(c, "allocation in a capture", "allocation while", [] {
        cudaStream_t s;
        cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
        cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
        Device<float>(1);
    });
#ifdef CUDA_ON_HOST_ASAN
    const char* const found = "AddressSanitizer";
    dies(c, "write past the end", found, [&] { PLATFORM_LAUNCH(write_at, 1, 1, 0, nullptr, x.p, 64); });
    dies(c, "write past shared memory", found, [] { PLATFORM_LAUNCH(write_shared, 1, 1, 0, nullptr, 64); });
    dies(c, "write after free", found, [&] {
        cudaFree(x.p);
        PLATFORM_LAUNCH(write_at, 1, 1, 0, nullptr, x.p, 0);
    });
    dies(c, "the host reads device memory", found, [&] { host[0] = *(volatile float*)x.p; });
#else
    skip(c, "overruns: built without the address sanitizer");
#endif
}

}  // namespace

void test_emulation(Checks* c) {
    for (const CudaOnHostOrder order : {CUDA_ORDER_FORWARD, CUDA_ORDER_REVERSE, CUDA_ORDER_SHUFFLE}) {
        cuda_on_host_set({order});
        test_missing_barrier(c);
    }
    test_blocks(c);
    cuda_on_host_set({CUDA_ORDER_FORWARD});
    test_misuse(c);
}
