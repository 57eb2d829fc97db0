// cuda_on_host.cpp: runs the threads of a block as fibers: schedule, barriers, shared memory.
#include "cuda_on_host.h"
#include "races.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <unordered_map>
#include <vector>

#include <sys/mman.h>

#ifdef CUDA_ON_HOST_ASAN
#include <sanitizer/common_interface_defs.h>
#define NO_ASAN __attribute__((no_sanitize_address))
#else
#define NO_ASAN
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

// ---------------------------------------------------------------------------------------------
// Fibers: each has a stack with a guard page below it and runs one function forever

namespace {

constexpr size_t STACK_BYTES = (size_t)256 << 10, PAGE = 4096;

struct Fiber {
    void* stack_pointer = nullptr;
    void* fake_stack = nullptr;  // of the address sanitizer
    const void* bottom = nullptr;
    size_t bytes = 0;
};

}  // namespace

#ifndef __x86_64__
#error "the CUDA emulation switches fibers in assembly for x86-64"
#endif
// void cuda_on_host_switch(void** save, void* load): saves the registers on the stack, the stack pointer in *save, and
// switches to the stack `load`. swapcontext would make a system call per switch.
asm(R"(
    .text
    .globl cuda_on_host_switch
    .type cuda_on_host_switch, @function
cuda_on_host_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size cuda_on_host_switch, .-cuda_on_host_switch
)");
extern "C" void cuda_on_host_switch(void** save, void* load);

namespace {

void fiber_create(Fiber* f, void (*run)()) {
    char* p = (char*)mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED || mprotect(p, PAGE, PROT_NONE) != 0) cuda_on_host_die("no memory for the stack of a fiber");
    f->bottom = p + PAGE;
    f->bytes = STACK_BYTES - PAGE;
    void** top = (void**)(p + STACK_BYTES);
    *--top = nullptr;  // return address of run; keeps its frame aligned
    *--top = (void*)run;
    f->stack_pointer = top - 6;  // six registers, zero
}

NO_ASAN void fiber_switch(Fiber* from, Fiber* to) {
#ifdef CUDA_ON_HOST_ASAN
    __sanitizer_start_switch_fiber(&from->fake_stack, to->bottom, to->bytes);
#endif
    cuda_on_host_switch(&from->stack_pointer, to->stack_pointer);
#ifdef CUDA_ON_HOST_ASAN
    __sanitizer_finish_switch_fiber(from->fake_stack, nullptr, nullptr);
#endif
}

// ---------------------------------------------------------------------------------------------
// The device

struct Thread {
    Fiber fiber;
    uint3 index;
    int line;           // source line of the barrier at which it waits
    CudaOnHostOp op;    // of a warp barrier
    uint64_t value;     // the thread's own value; after the exchange, the received one
    int source;
    int clock;          // waits for flags in the longest chain up to here
    const int* polled;  // loaded last, and its value; null: anything else happened since
    int polled_value;
    RaceThread race;
};

// Masks of the lanes that can run, that wait at a warp barrier, at a block barrier and for a flag, and that have
// returned or do not exist.
struct Warp {
    unsigned ready, at_warp, at_block, at_flag, exited;
};

// An array in shared memory
struct Shared {
    int id;
    size_t bytes;
    void* at;
};

// A place for a block that has started and not ended.
struct Block {
    std::vector<std::unique_ptr<Thread>> threads;  // enough for the largest block so far
    std::vector<RaceThread*> race_threads;
    std::vector<Warp> warps;
    uint3 index;
    bool alive = false;
    std::vector<Shared> shared;
    RaceBlock race;
};

struct Machine {
    CudaOnHostOptions options;
    uint64_t rng = 0;
    const char* kernel = nullptr;  // that runs
    const std::function<void()>* body = nullptr;
    std::vector<std::unique_ptr<Block>> blocks;
    Block* block = nullptr;        // that runs
    bool preempted = false;        // another block is to run
    int count = 0, current = -1;   // threads of a block; the thread that runs
    size_t dynamic_shared = 0;     // bytes of the launch
    std::vector<int> warp_order;
    int lane_order[32];
    Fiber main;
    std::map<const void*, int> shared_limit;  // by kernel
    std::unordered_map<const int*, int> flag_clocks;
    int longest_chain = 0;                    // of this launch
};

Machine machine;
const char* const op_names[] = {"__syncwarp", "a shuffle"};

uint64_t random_u64() {  // splitmix64
    uint64_t z = machine.rng += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

// order = 0 … n-1, ordered by the schedule.
void draw_order(int* order, int n) {
    std::iota(order, order + n, 0);
    for (int i = n - 1; i > 0 && machine.options.order == CUDA_ORDER_SHUFFLE; i--)
        std::swap(order[i], order[random_u64() % (uint64_t)(i + 1)]);
    for (int i = 0; i < n / 2 && machine.options.order == CUDA_ORDER_REVERSE; i++)
        std::swap(order[i], order[n - 1 - i]);
}

Thread* current_thread() { return machine.block->threads[machine.current].get(); }
Warp* current_warp() { return &machine.block->warps[machine.current / 32]; }
unsigned current_bit() { return 1u << (machine.current & 31); }

// Runs a thread until it calls yield.
void go(int thread) {
    machine.current = thread;
    threadIdx = current_thread()->index;
    race_current = &current_thread()->race;
    fiber_switch(&machine.main, &current_thread()->fiber);
}

void yield() { fiber_switch(&current_thread()->fiber, &machine.main); }

// The thread stops being ready and is in this mask of its warp.
void wait_in(unsigned Warp::*mask) {
    current_warp()->ready &= ~current_bit();
    current_warp()->*mask |= current_bit();
    yield();
}

// If several blocks run at once, sometimes lets another one run.
void may_switch() {
    if (machine.options.resident == 1 || random_u64() % 2) return;
    machine.preempted = true;
    yield();
}

// Runs the thread's part of one block after another.
NO_ASAN void thread_main() {
#ifdef CUDA_ON_HOST_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &machine.main.bottom, &machine.main.bytes);
#endif
    for (;;) {
        (*machine.body)();
        wait_in(&Warp::exited);
    }
}

// Every lane of the warp waits or has returned: exchanges the values and makes the lanes ready.
void complete_warp(int warp) {
    Warp* w = &machine.block->warps[warp];
    Thread* lanes[32];
    uint64_t given[32];
    RaceThread* synced[32];
    int clock = 0;
    size_t n = 0;
    for (int l = 0; l < 32; l++) {
        if (!(w->at_warp >> l & 1)) continue;
        Thread* t = machine.block->threads[warp * 32 + l].get();
        lanes[n] = t;
        synced[n++] = &t->race;
        given[l] = t->value;
        clock = max(clock, t->clock);
        if (t->op != lanes[0]->op)
            cuda_on_host_die("a thread waits at %s (line %d) but thread %d of its warp at %s (line %d)",
                             op_names[lanes[0]->op], lanes[0]->line, warp * 32 + l, op_names[t->op], t->line);
    }
    if (w->at_block)
        cuda_on_host_die("deadlock: threads wait at %s (line %d), lanes 0x%x of their warp at __syncthreads",
                         op_names[lanes[0]->op], lanes[0]->line, w->at_block);
    if (lanes[0]->op == CUDA_OP_SYNC) race_sync_warp(synced, n);
    for (size_t i = 0; i < n; i++) {
        const int source = lanes[i]->source & 31;
        lanes[i]->clock = clock;
        lanes[i]->value = w->at_warp >> source & 1 ? given[source] : ~(uint64_t)0;
    }
    w->ready = w->at_warp;
    w->at_warp = 0;
}

// Runs the threads of a warp until each waits for a block barrier or a flag or has returned, or another block is to
// run.
void run_warp(int warp) {
    Warp* w = &machine.block->warps[warp];
    do {
        for (int l : machine.lane_order)
            if (w->ready >> l & 1 && !machine.preempted) go(warp * 32 + l);
        race_current = nullptr;
        if (machine.preempted) return;
        if (!w->ready && w->at_warp && !w->at_flag) complete_warp(warp);
    } while (w->ready);
}

// Releases the block barrier, at which every thread that has not returned waits. Returns false if all have returned.
bool release_block() {
    Block* b = machine.block;
    const Thread* first = nullptr;
    int clock = 0;
    for (int i = 0; i < machine.count; i++) {
        const Thread& t = *b->threads[i];
        clock = max(clock, t.clock);
        if (!(b->warps[i / 32].at_block >> (i & 31) & 1)) continue;
        if (!first) first = &t;
        if (t.line != first->line)
            cuda_on_host_die("threads of a block wait at different __syncthreads: lines %d and %d (thread %d)",
                             first->line, t.line, i);
    }
    machine.longest_chain = max(machine.longest_chain, clock);
    for (int i = 0; i < machine.count; i++) b->threads[i]->clock = clock;
    race_barrier(&b->race, b->race_threads.data(), b->race_threads.size());
    for (Warp& w : b->warps) {
        w.ready = w.at_block;
        w.at_block = 0;
    }
    return first != nullptr;
}

// Starts the block with this number in a free place.
void start_block(Block* b, unsigned number) {
    b->alive = true;
    b->index = {number % gridDim.x, number / gridDim.x % gridDim.y, number / gridDim.x / gridDim.y};
    for (const Shared& s : b->shared) memset(s.at, 0xff, s.bytes);
    for (Warp& w : b->warps) w = {~0u, 0, 0, 0, 0};
    if (machine.count % 32) b->warps.back() = {~(~0u << machine.count % 32), 0, 0, 0, ~0u << machine.count % 32};
    race_block_starts(&b->race, number);
    for (int i = 0; i < machine.count; i++) {
        b->threads[i]->clock = 0;
        b->threads[i]->polled = nullptr;
        race_thread_starts(&b->threads[i]->race, &b->race, (uint16_t)i);
    }
}

bool can_run(const Block& b) {
    unsigned at_flag = 0;
    for (const Warp& w : b.warps) {
        if (w.ready) return true;
        at_flag |= w.at_flag;
    }
    return !at_flag;
}

// Runs the block until it ends or waits for another block, or another one is to run.
void run_block(Block* b) {
    machine.block = b;
    blockIdx = b->index;
    machine.preempted = false;
    while (!machine.preempted && can_run(*b)) {
        draw_order(machine.warp_order.data(), (int)machine.warp_order.size());
        draw_order(machine.lane_order, 32);
        for (int w : machine.warp_order)
            if (!machine.preempted) run_warp(w);
        bool waiting = machine.preempted;
        for (const Warp& w : b->warps) waiting = waiting || w.ready || w.at_flag;
        if (waiting) continue;
        b->alive = release_block();
        if (!b->alive) return;
        machine.preempted = machine.options.resident > 1 && random_u64() % 4 == 0;
    }
}

void check_launch(const char* name, const void* kernel, dim3 grid, dim3 block, size_t shared_bytes) {
    const uint64_t threads = (uint64_t)block.x * block.y * block.z;
    // static shared memory counts too: 64 bytes are reserved for it
    const auto limit = machine.shared_limit.find(kernel);
    const size_t most = limit != machine.shared_limit.end() ? (size_t)limit->second : (48 << 10) - 64;
    if (threads == 0 || threads > 1024 || block.z > 64)
        cuda_on_host_die("launch of %s: a block of (%u,%u,%u) threads", name, block.x, block.y, block.z);
    if (grid.x == 0 || grid.x > INT32_MAX || grid.y == 0 || grid.y > 65535 || grid.z == 0 || grid.z > 65535)
        cuda_on_host_die("launch of %s: a grid of (%u,%u,%u) blocks", name, grid.x, grid.y, grid.z);
    if (shared_bytes > most)
        cuda_on_host_die("launch of %s: %zu bytes of shared memory, at most %zu", name, shared_bytes, most);
}

// Makes a place for a block of this launch.
void prepare_place(Block* b, dim3 block) {
    while ((int)b->threads.size() < machine.count) {
        b->threads.emplace_back(new Thread());
        fiber_create(&b->threads.back()->fiber, thread_main);
    }
    b->race_threads.clear();
    for (unsigned i = 0; i < (unsigned)machine.count; i++) {
        b->threads[i]->index = {i % block.x, i / block.x % block.y, i / block.x / block.y};
        b->race_threads.push_back(&b->threads[i]->race);
    }
    b->warps.resize((size_t)(machine.count + 31) / 32);
}

void run_grid(const char* name, dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& body) {
    machine.kernel = name;
    machine.body = &body;
    machine.count = (int)(block.x * block.y * block.z);
    machine.warp_order.resize((size_t)(machine.count + 31) / 32);
    gridDim = grid;
    blockDim = block;
    machine.flag_clocks.clear();
    machine.longest_chain = 0;
    machine.dynamic_shared = shared_bytes;
    std::vector<int> order((size_t)grid.x * grid.y * grid.z);
    draw_order(order.data(), (int)order.size());
    const size_t places = min((size_t)machine.options.resident, order.size());
    while (machine.blocks.size() < places) machine.blocks.emplace_back(new Block());
    for (size_t i = 0; i < places; i++) prepare_place(machine.blocks[i].get(), block);
    race_launch((uint32_t)order.size());
    for (size_t started = 0;;) {
        std::vector<Block*> able;   // to run, or to start a block
        for (size_t i = 0; i < places; i++) {
            Block* b = machine.blocks[i].get();
            if (b->alive ? can_run(*b) : started < order.size()) able.push_back(b);
        }
        if (able.empty()) break;
        Block* b = able[able.size() == 1 ? 0 : random_u64() % able.size()];
        if (!b->alive) start_block(b, (unsigned)order[started++]);
        run_block(b);
    }
    for (size_t i = 0; i < places; i++) {
        Block* b = machine.blocks[i].get();
        if (b->alive)
            cuda_on_host_die("deadlock: all blocks wait for flags, and no thread that could store them can run");
        for (const Shared& s : b->shared) {
            race_memory_freed(s.at);
            free(s.at);
        }
        b->shared.clear();
    }
    machine.kernel = nullptr;
}

}  // namespace

// ---------------------------------------------------------------------------------------------
// Called by kernels and launches

void cuda_on_host_sync_threads(int line) {
    current_thread()->polled = nullptr;
    current_thread()->line = line;
    wait_in(&Warp::at_block);
}

int cuda_on_host_lane(void) { return machine.current & 31; }

uint64_t cuda_on_host_warp(CudaOnHostOp op, uint64_t value, int source, int line) {
    Thread* t = current_thread();
    t->polled = nullptr;
    t->line = line;
    t->op = op;
    t->value = value;
    t->source = source;
    wait_in(&Warp::at_warp);
    return t->value;
}

// Lane 4g + t has words for the rows g and g + 8 of a, at t and after it, and for the column g of b; and the sums of
// these rows at columns 2t and 2t + 1. A word is two bf16 numbers, or one in tf32, of which the upper 19 bits count.
void cuda_on_host_mma(bool is_bf16, float* sum, const unsigned* a, const unsigned* b) {
    struct Words { const unsigned *a, *b; } all[32];
    const auto shared = reinterpret_cast<Words*>(cuda_on_host_warp(CUDA_OP_SHUFFLE, (uintptr_t)all, 0, __LINE__));
    const int lane = cuda_on_host_lane();
    shared[lane] = {a, b};
    cuda_on_host_warp(CUDA_OP_SHUFFLE, 0, lane, __LINE__);
    float next[4];
    for (int i = 0; i < 4; i++) {
        const int row = i / 2, column = lane % 4 * 2 + i % 2;
        next[i] = sum[i];
        for (int word = 0; word < 8; word++) {   // along the depth
            const unsigned x = shared[lane / 4 * 4 + word % 4].a[word / 4 * 2 + row],
                           y = shared[column * 4 + word % 4].b[word / 4];
            if (!is_bf16) next[i] += __uint_as_float(x & ~0x1fffu) * __uint_as_float(y & ~0x1fffu);
            else for (int half = 0; half < 32; half += 16)
                next[i] += bf16_to_float((uint16_t)(x >> half)) * bf16_to_float((uint16_t)(y >> half));
        }
    }
    cuda_on_host_warp(CUDA_OP_SHUFFLE, 0, lane, __LINE__);
    memcpy(sum, next, sizeof next);
}

int cuda_on_host_load(const int* p, bool acquire) {
    Thread* t = current_thread();
    may_switch();
    if (!acquire && t->polled == p && t->polled_value == *p) wait_in(&Warp::at_flag);
    t->polled = acquire ? nullptr : p;
    t->polled_value = *p;
    race_load(&t->race, p, acquire);
    const auto clock = machine.flag_clocks.find(p);
    if (clock != machine.flag_clocks.end()) t->clock = max(t->clock, clock->second + 1);
    return *p;
}

// Lets the threads run that wait for another value of *p.
static void wake(const void* p) {
    for (const auto& b : machine.blocks) {
        for (int i = 0; b->alive && i < machine.count; i++) {
            Warp* w = &b->warps[i / 32];
            const unsigned bit = 1u << (i & 31);
            if (!(w->at_flag & bit) || b->threads[i]->polled != p) continue;
            w->at_flag &= ~bit;
            w->ready |= bit;
        }
    }
}

void cuda_on_host_store(int* p, int value, bool release) {
    Thread* t = current_thread();
    may_switch();
    t->polled = nullptr;
    race_store(&t->race, p, release);
    *p = value;
    machine.flag_clocks[p] = t->clock;
    wake(p);
    may_switch();
}

uint64_t cuda_on_host_add(void* p, size_t bytes, uint64_t value) {
    Thread* t = current_thread();
    uint64_t before = 0;
    may_switch();
    t->polled = nullptr;
    memcpy(&before, p, bytes);   // little-endian
    const uint64_t sum = before + value;
    race_add(p);
    memcpy(p, &sum, bytes);
    wake(p);
    may_switch();
    return before;
}

float cuda_on_host_approximate(float exact) {
    static const bool off = getenv("CUDA_ON_HOST_INEXACT");
    const float y = cuda_on_host_flush(exact);
    const unsigned bits = __float_as_uint(y), hash = bits * 2654435761u;
    if (!off || !std::isnormal(y) || hash >> 30) return y;
    return __uint_as_float(hash >> 29 & 1 ? bits + 1 : bits - 1);
}

int cuda_on_host_longest_chain(void) { return machine.longest_chain; }

// The first thread that asks for an array allocates it.
void* cuda_on_host_shared(int id, size_t bytes) {
    for (const Shared& s : machine.block->shared)
        if (s.id == id) return s.at;
    void* at = malloc(bytes);
    memset(at, 0xff, bytes);
    race_memory(at, bytes, true);
    machine.block->shared.push_back({id, bytes, at});
    return at;
}

void* cuda_on_host_dynamic_shared(void) { return cuda_on_host_shared(-1, machine.dynamic_shared); }

cudaError_t cuda_on_host_attribute(const void* kernel, cudaFuncAttribute attribute, int value) {
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout)
        return value < -1 || value > 100 ? cudaErrorInvalidValue : cudaSuccess;
    if (value < 0 || value > (99 << 10) - 64) return cudaErrorInvalidValue;   // the limit of compute capability 8.6
    machine.shared_limit[kernel] = value;
    return cudaSuccess;
}

void cuda_on_host_launch(const char* name, const void* kernel, dim3 grid, dim3 block, size_t shared_bytes,
                         cudaStream_t stream, const std::function<void()>& body) {
    check_launch(name, kernel, grid, block, shared_bytes);
    cuda_on_host_enqueue(stream, [=] { run_grid(name, grid, block, shared_bytes, body); });
}

// ---------------------------------------------------------------------------------------------
// Control

void cuda_on_host_die(const char* format, ...) {
    va_list ap;
    fflush(stdout);
    fprintf(stderr, "cuda_on_host: ");
    if (machine.kernel)
        fprintf(stderr, "%s, block (%u,%u,%u): ", machine.kernel, blockIdx.x, blockIdx.y, blockIdx.z);
    va_start(ap, format);
    vfprintf(stderr, format, ap);
    va_end(ap);
    fprintf(stderr, "\n");
    abort();
}

void cuda_on_host_scheduler_set(const CudaOnHostOptions& options) {
    machine.options = options;
    machine.rng = options.seed;
}
