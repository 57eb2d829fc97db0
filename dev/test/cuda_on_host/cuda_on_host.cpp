// cuda_on_host.cpp: runs the threads of a block as fibers: schedule, barriers, shared memory.
#include "cuda_on_host.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <unordered_map>
#include <vector>

#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#ifndef __x86_64__
#include <ucontext.h>
#endif

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
#ifdef __x86_64__
    void* stack_pointer = nullptr;
#else
    ucontext_t context;
#endif
    void* fake_stack = nullptr;  // of the address sanitizer
    const void* bottom = nullptr;
    size_t bytes = 0;
};

}  // namespace

#ifdef __x86_64__
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
#endif

namespace {

void fiber_create(Fiber* f, void (*run)()) {
    char* p = (char*)mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED || mprotect(p, PAGE, PROT_NONE) != 0)
        cuda_on_host_die("no memory for the stack of a fiber");
    f->bottom = p + PAGE;
    f->bytes = STACK_BYTES - PAGE;
#ifdef __x86_64__
    void** top = (void**)(p + STACK_BYTES);
    *--top = nullptr;  // return address of run; keeps its frame aligned
    *--top = (void*)run;
    f->stack_pointer = top - 6;  // six registers, zero
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = p + PAGE;
    f->context.uc_stack.ss_size = f->bytes;
    makecontext(&f->context, run, 0);
#endif
}

NO_ASAN void fiber_switch(Fiber* from, Fiber* to) {
#ifdef CUDA_ON_HOST_ASAN
    __sanitizer_start_switch_fiber(&from->fake_stack, to->bottom, to->bytes);
#endif
#ifdef __x86_64__
    cuda_on_host_switch(&from->stack_pointer, to->stack_pointer);
#else
    swapcontext(&from->context, &to->context);
#endif
#ifdef CUDA_ON_HOST_ASAN
    __sanitizer_finish_switch_fiber(from->fake_stack, nullptr, nullptr);
#endif
}

// ---------------------------------------------------------------------------------------------
// The device: runs one block at a time

struct Thread {
    Fiber fiber;
    uint3 index;
    const char* place;  // the barrier at which it waits
    int line;           // source line of that barrier
    CudaOnHostOp op;    // of a warp barrier
    unsigned mask;
    uint64_t value;     // the thread's own value; after the exchange, the received one
    int source;
    int clock;          // waits for flags in the longest chain up to here
};

// Masks of the lanes that can run, that wait at a warp barrier, that wait at a block barrier, and that have returned or
// do not exist.
struct Warp {
    unsigned ready, at_warp, at_block, exited;
};

struct Bytes {
    char* at;
    size_t count;
};

struct Machine {
    CudaOnHostOptions options;
    uint64_t rng = 0;
    const char* kernel = nullptr;  // that runs
    const std::function<void()>* body = nullptr;
    void* dynamic_shared = nullptr;
    std::vector<Bytes> static_shared;
    std::vector<std::unique_ptr<Thread>> threads;  // enough for the largest block so far
    int count = 0, current = -1;                   // threads of this block; the thread that runs
    std::vector<Warp> warps;
    std::vector<int> warp_order;
    int lane_order[32], lane_after[32];  // schedule; cyclic successor of each lane
    Fiber main;
    std::map<const void*, int> shared_limit;  // by kernel
    std::unordered_map<const int*, int> flag_clocks;
    int longest_chain = 0;                    // of this launch
};

Machine machine;

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

Thread* current_thread() { return machine.threads[machine.current].get(); }
Warp* current_warp() { return &machine.warps[machine.current / 32]; }
unsigned current_bit() { return 1u << (machine.current & 31); }

void go(Fiber* from, int to) {
    machine.current = to;
    threadIdx = current_thread()->index;
    fiber_switch(from, &current_thread()->fiber);
}

// Switches to the next ready thread of the warp, or to the scheduler.
void yield() {
    const int first = machine.current & ~31;
    const unsigned ready = current_warp()->ready;
    Fiber* from = &current_thread()->fiber;
    int l = machine.lane_after[machine.current & 31];
    if (!ready) {
        fiber_switch(from, &machine.main);
        return;
    }
    while (!(ready >> l & 1)) l = machine.lane_after[l];
    go(from, first + l);
}

// The first switch to a fiber only records the scheduler's stack; after that it runs one block after another.
NO_ASAN void thread_main() {
    Fiber* fiber = &machine.threads.back()->fiber;
#ifdef CUDA_ON_HOST_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &machine.main.bottom, &machine.main.bytes);
#endif
    fiber_switch(fiber, &machine.main);
    for (;;) {
        (*machine.body)();
        current_warp()->ready &= ~current_bit();
        current_warp()->exited |= current_bit();
        yield();
    }
}

// If every lane in the mask of thread i has arrived or returned, exchanges the values, makes the lanes ready and
// returns true.
bool complete_warp(int i) {
    const int first = i & ~31;
    const Thread& t = *machine.threads[i];
    const unsigned mask = t.mask;
    Warp* warp = &machine.warps[i / 32];
    if ((mask & ~(warp->at_warp | warp->exited)) != 0) return false;
    const unsigned part = mask & warp->at_warp;
    uint64_t given[32], ballot = 0;
    int clock = 0;
    for (int l = 0; l < 32; l++) {
        if (!(part >> l & 1)) continue;
        const Thread& other = *machine.threads[first + l];
        if (other.mask != mask) return false;
        if (other.op != t.op)
            cuda_on_host_die("thread %d waits at %s (line %d) but thread %d in its mask at %s (line %d)", i,
                             t.place, t.line, first + l, other.place, other.line);
        given[l] = other.value;
        ballot |= (uint64_t)(other.value != 0) << l;
        clock = max(clock, other.clock);
    }
    for (int l = 0; l < 32; l++) {
        if (!(part >> l & 1)) continue;
        Thread& other = *machine.threads[first + l];
        const int source = other.source & 31;
        other.clock = clock;
        other.value = other.op == CUDA_OP_BALLOT ? ballot : part >> source & 1 ? given[source] : ~(uint64_t)0;
    }
    warp->at_warp &= ~part;
    warp->ready |= part;
    return true;
}

// No lane of the warp can run, and some wait at a warp barrier.
[[noreturn]] void abort_deadlock(int first, const Warp& w) {
    const int i = first + __builtin_ctz(w.at_warp);
    const Thread& t = *machine.threads[i];
    if (t.mask & w.at_block) {
        const int other = first + __builtin_ctz(t.mask & w.at_block);
        cuda_on_host_die(
            "deadlock: thread %d waits at %s (line %d) but thread %d in its mask at __syncthreads (line %d)", i,
            t.place, t.line, other, machine.threads[other]->line);
    }
    cuda_on_host_die("deadlock: thread %d waits at %s (line %d) for lanes 0x%x, which use other masks", i,
                     t.place, t.line, t.mask);
}

// Runs the threads of a warp until each waits at a block barrier or has returned.
void run_warp(int warp) {
    Warp* w = &machine.warps[warp];
    do {
        for (int l : machine.lane_order)
            if (w->ready >> l & 1) go(&machine.main, warp * 32 + l);
        for (int l = 0; l < 32 && !w->ready; l++)
            if (w->at_warp >> l & 1) complete_warp(warp * 32 + l);  // the lanes it waits for may have returned
    } while (w->ready);
    if (w->at_warp) abort_deadlock(warp * 32, *w);
}

// Releases the block barrier, at which every thread that has not returned waits. Returns false if all have returned.
bool release_block() {
    const Thread* first = nullptr;
    int clock = 0;
    for (int i = 0; i < machine.count; i++) {
        const Thread& t = *machine.threads[i];
        clock = max(clock, t.clock);
        if (!(machine.warps[i / 32].at_block >> (i & 31) & 1)) continue;
        if (!first) first = &t;
        if (t.line != first->line)
            cuda_on_host_die("threads of a block wait at different __syncthreads: lines %d and %d (thread %d)",
                             first->line, t.line, i);
    }
    machine.longest_chain = max(machine.longest_chain, clock);
    for (int i = 0; i < machine.count; i++) machine.threads[i]->clock = clock;
    for (Warp& w : machine.warps) {
        w.ready = w.at_block;
        w.at_block = 0;
    }
    return first != nullptr;
}

// Not memset, which the sanitizer would check; volatile, because compilers would replace the loop by memset.
NO_ASAN void fill_nan(char* p, size_t n) {
    size_t i = 0;
    for (; (uintptr_t)p % 8 == 0 && i + 8 <= n; i += 8) *(volatile uint64_t*)(p + i) = ~(uint64_t)0;
    for (; i < n; i++) *(volatile char*)(p + i) = (char)0xff;
}

void run_block(size_t shared_bytes) {
    for (const Bytes& b : machine.static_shared) fill_nan(b.at, b.count);
    if (shared_bytes) memset(machine.dynamic_shared, 0xff, shared_bytes);
    for (Warp& w : machine.warps) w = {~0u, 0, 0, 0};
    for (int i = 0; i < machine.count; i++) machine.threads[i]->clock = 0;
    if (machine.count % 32)
        machine.warps.back() = {~(~0u << machine.count % 32), 0, 0, ~0u << machine.count % 32};
    do {
        draw_order(machine.warp_order.data(), (int)machine.warp_order.size());
        draw_order(machine.lane_order, 32);
        for (int l = 0; l < 32; l++)
            machine.lane_after[machine.lane_order[l]] = machine.lane_order[(l + 1) % 32];
        for (int w : machine.warp_order) run_warp(w);
    } while (release_block());
}

// ---------------------------------------------------------------------------------------------
// Static shared memory: uninitialized static variables of C++ functions, found in the program's symbol table

void add_shared(const char* file, const ElfW(Ehdr) * head, uintptr_t base) {
    const ElfW(Shdr)* sections = (const ElfW(Shdr)*)(file + head->e_shoff);
    const char* section_names = file + sections[head->e_shstrndx].sh_offset;
    for (int i = 0; i < head->e_shnum; i++) {
        if (sections[i].sh_type != SHT_SYMTAB) continue;
        const char* names = file + sections[sections[i].sh_link].sh_offset;
        const ElfW(Sym)* symbols = (const ElfW(Sym)*)(file + sections[i].sh_offset);
        for (size_t j = 0; j < sections[i].sh_size / sizeof *symbols; j++) {
            const ElfW(Sym)& s = symbols[j];
            const char* name = names + s.st_name;
            if ((s.st_info & 15) != STT_OBJECT || strncmp(name, "_ZZ", 3) != 0 || s.st_shndx >= head->e_shnum)
                continue;
            const ElfW(Shdr)& home = sections[s.st_shndx];
            if (CUDA_ON_HOST_SHARED_NAMED ? strcmp(section_names + home.sh_name, "cuda.shared") == 0
                                          : home.sh_type == SHT_NOBITS)
                machine.static_shared.push_back({(char*)(base + s.st_value), s.st_size});
        }
    }
}

void find_shared() {
    uintptr_t base = 0;  // load address of the program: the first object
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* out) {
            *(uintptr_t*)out = info->dlpi_addr;
            return 1;
        },
        &base);
    std::vector<char> file;
    char part[1 << 16];
    FILE* f = fopen("/proc/self/exe", "rb");
    for (size_t n; f && (n = fread(part, 1, sizeof part, f)) > 0;) file.insert(file.end(), part, part + n);
    if (f) fclose(f);
    if (file.size() < sizeof(ElfW(Ehdr)))
        cuda_on_host_die("cannot read /proc/self/exe to find shared memory");
    add_shared(file.data(), (const ElfW(Ehdr)*)file.data(), base);
}

void check_launch(const char* name, const void* kernel, dim3 grid, dim3 block, size_t shared_bytes) {
    const uint64_t threads = (uint64_t)block.x * block.y * block.z;
    const auto limit = machine.shared_limit.find(kernel);
    // static shared memory counts too: 64 bytes are reserved for it
    const size_t most = limit == machine.shared_limit.end() ? (48 << 10) - 64 : (size_t)limit->second;
    if (threads == 0 || threads > 1024 || block.z > 64)
        cuda_on_host_die("launch of %s: a block of (%u,%u,%u) threads", name, block.x, block.y, block.z);
    if (grid.x == 0 || grid.x > INT32_MAX || grid.y == 0 || grid.y > 65535 || grid.z == 0 || grid.z > 65535)
        cuda_on_host_die("launch of %s: a grid of (%u,%u,%u) blocks", name, grid.x, grid.y, grid.z);
    if (shared_bytes > most)
        cuda_on_host_die("launch of %s: %zu bytes of shared memory, at most %zu", name, shared_bytes, most);
}

void run_grid(const char* name, dim3 grid, dim3 block, size_t shared_bytes,
              const std::function<void()>& body) {
    machine.kernel = name;
    machine.body = &body;
    if (machine.options.observer) machine.options.observer->launched(name);
    machine.count = (int)(block.x * block.y * block.z);
    while ((int)machine.threads.size() < machine.count) {
        machine.threads.emplace_back(new Thread());
        fiber_create(&machine.threads.back()->fiber, thread_main);
        fiber_switch(&machine.main, &machine.threads.back()->fiber);
    }
    machine.warps.resize((size_t)(machine.count + 31) / 32);
    machine.warp_order.resize(machine.warps.size());
    machine.dynamic_shared = malloc(shared_bytes);
    for (unsigned i = 0; i < (unsigned)machine.count; i++)
        machine.threads[i]->index = {i % block.x, i / block.x % block.y, i / block.x / block.y};
    gridDim = grid;
    blockDim = block;
    machine.flag_clocks.clear();
    machine.longest_chain = 0;
    std::vector<int> blocks((size_t)grid.x * grid.y * grid.z);
    draw_order(blocks.data(), (int)blocks.size());
    for (int b : blocks) {
        const unsigned u = (unsigned)b;
        blockIdx = {u % grid.x, u / grid.x % grid.y, u / grid.x / grid.y};
        run_block(shared_bytes);
    }
    free(machine.dynamic_shared);
    machine.kernel = nullptr;
}

}  // namespace

// ---------------------------------------------------------------------------------------------
// Called by kernels and launches

void cuda_on_host_sync_threads(int line) {
    current_thread()->place = "__syncthreads";
    current_thread()->line = line;
    current_warp()->ready &= ~current_bit();
    current_warp()->at_block |= current_bit();
    yield();
}

int cuda_on_host_lane(void) { return machine.current & 31; }

uint64_t cuda_on_host_warp(CudaOnHostOp op, unsigned mask, uint64_t value, int source, int line) {
    static const char* const places[] = {"__syncwarp", "a shuffle", "a ballot"};
    Thread* t = current_thread();
    if (!(mask & current_bit()))
        cuda_on_host_die("line %d: thread %d is not in its own mask 0x%x", line, machine.current, mask);
    t->place = places[op];
    t->line = line;
    t->op = op;
    t->mask = mask;
    t->value = value;
    t->source = source;
    current_warp()->ready &= ~current_bit();
    current_warp()->at_warp |= current_bit();
    if (!complete_warp(machine.current)) yield();
    return t->value;
}

void cuda_on_host_raise(int* flag) {
    *flag = 1;
    machine.flag_clocks[flag] = current_thread()->clock;
}

void cuda_on_host_wait(const int* flag) {
    Thread* t = current_thread();
    if (*flag == 0) cuda_on_host_die("thread %d waits for a flag that no earlier block has raised", machine.current);
    t->clock = max(t->clock, machine.flag_clocks[flag] + 1);
}

int cuda_on_host_longest_chain(void) { return machine.longest_chain; }

void* cuda_on_host_dynamic_shared(void) { return machine.dynamic_shared; }

cudaError_t cuda_on_host_attribute(const void* kernel, cudaFuncAttribute attribute, int value) {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || value > 227 << 10) return cudaErrorInvalidValue;
    machine.shared_limit[kernel] = value;
    return cudaSuccess;
}

void cuda_on_host_launch(const char* name, const void* kernel, dim3 grid, dim3 block, size_t shared_bytes,
                         cudaStream_t stream, std::function<void()> body) {
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
    if (machine.static_shared.empty()) find_shared();
    machine.options = options;
    machine.rng = options.seed;
}
