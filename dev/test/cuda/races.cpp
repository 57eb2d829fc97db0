// races.cpp: the order of synchronizations, and the last accesses of each address.
#include "races.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include <sys/mman.h>

#include "cuda_on_host.h"

RaceThread* race_current = nullptr;

// ---------------------------------------------------------------------------------------------
// Cells: the last accesses of each 2 bytes, the smallest unit that the engine stores

// Readers: one thread, or threads of one warp or block between the same barriers
enum RaceReaders : uint8_t { READ_BY_THREAD, READ_BY_WARP, READ_BY_BLOCK };

struct RaceCell {
    RaceStamp written, read[2];   // reads of two blocks; of more, only the last
    RaceReaders readers[2];
    bool written_atomically, read_atomically;
};

namespace {

constexpr size_t UNIT = 2, MAX_BLOCKS = 4096;   // larger grids are not checked

struct Memory {
    const char* begin;
    size_t bytes;
    bool shared;   // by the threads of one block at a time
    RaceCell* cells;   // null: not accessed yet
};

struct Races {
    std::map<const char*, Memory> memory;
    Memory last = {};                          // the one found last
    uint32_t first = 1, blocks = 0, next = 1;  // block ids of this launch: first + index
    bool checked = false;                      // this launch
    std::map<const void*, RaceMessage> messages;   // at flags and counters
};

Races races;

// Zero bytes, which take no memory until they are used.
RaceCell* new_cells(size_t bytes) {
    void* p = mmap(nullptr, (bytes / UNIT + 1) * sizeof(RaceCell), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) cuda_on_host_die("no memory to find races");
    return (RaceCell*)p;
}

bool contains(const Memory& m, const char* p) { return p >= m.begin && p < m.begin + m.bytes; }

// The memory that contains p; cells are null if it is neither device nor shared memory.
Memory memory_of(const char* p) {
    if (contains(races.last, p)) return races.last;
    const auto after = races.memory.upper_bound(p);
    if (after == races.memory.begin()) return {};
    Memory& m = std::prev(after)->second;
    if (!contains(m, p)) return {};
    if (!m.cells) m.cells = new_cells(m.bytes);
    return races.last = m;
}

// ---------------------------------------------------------------------------------------------
// Order

bool same_warp(uint16_t a, uint16_t b) { return a / 32 == b / 32; }

// Everything before `point` includes the event, of the same block.
bool precedes(const RaceStamp& event, const RaceStamp& point) {
    return event.barriers < point.barriers || (event.thread == point.thread && event.releases < point.releases) ||
           (same_warp(event.thread, point.thread) && event.syncs < point.syncs);
}

RaceStamp now(const RaceThread& t) { return {t.block->id, t.block->barriers, t.syncs, t.thread, t.releases}; }

bool ordered(const RaceStamp& event, const RaceThread& t, RaceReaders readers = READ_BY_THREAD) {
    if (event.block < races.first) return true;   // an earlier launch
    if (event.block == t.block->id) {
        if (event.barriers < t.block->barriers) return true;
        if (readers == READ_BY_THREAD && event.thread == t.thread) return true;
        if (readers != READ_BY_BLOCK && same_warp(event.thread, t.thread) && event.syncs < t.syncs) return true;
    }
    RaceStamp of_all = event;
    if (readers != READ_BY_THREAD) of_all.thread = of_all.releases = UINT16_MAX;   // only a barrier covers them
    if (t.block->known.covers(of_all)) return true;
    for (const RaceMessage& m : t.acquired)
        if (m->covers(of_all)) return true;
    return false;
}

RaceMessage published(RaceThread* t) {
    auto m = std::make_shared<RaceKnowledge>(t->block->known);
    for (const RaceMessage& got : t->acquired) m->learn(*got);
    t->releases++;
    RaceKnowledge own;
    own.barriers.resize(races.blocks);
    own.barriers[t->block->id - races.first] = t->block->barriers;
    own.threads.push_back(now(*t));
    m->learn(own);
    return m;
}

void report(const RaceThread& t, const char* does, size_t bytes, const RaceStamp& other, const char* did) {
    const uint32_t index = other.block - races.first;
    cuda_on_host_die("race: thread %d %s %zu bytes that thread %d of block %u of %u %s (%u and %u barriers before); no "
                     "barrier or flag orders them",
                     t.thread, does, bytes, other.thread, index, races.blocks, did, t.block->barriers, other.barriers);
}

void record_read(RaceCell* c, const RaceThread& t, bool atomic) {
    const RaceStamp s = now(t);
    int at = 0;
    while (at < 2 && c->read[at].block != s.block && !ordered(c->read[at], t, c->readers[at])) at++;
    if (at == 2) at = 1;
    RaceStamp& r = c->read[at];
    RaceReaders readers = READ_BY_THREAD;
    if (r.block == s.block && r.barriers == s.barriers) {   // with the earlier readers
        readers = c->readers[at];
        if (!same_warp(r.thread, s.thread)) readers = READ_BY_BLOCK;
        else if (r.thread != s.thread) readers = std::max(readers, READ_BY_WARP);
    }
    const uint32_t syncs = readers == READ_BY_THREAD ? s.syncs : std::max(r.syncs, s.syncs);
    r = s;
    r.syncs = syncs;
    c->readers[at] = readers;
    c->read_atomically = atomic;
}

void access(const void* p, size_t bytes, bool write, bool atomic) {
    RaceThread* t = race_current;
    if (!t || !races.checked) return;
    const Memory m = memory_of((const char*)p);
    if (!m.cells) return;
    RaceCell* c = m.cells + (size_t)((const char*)p - m.begin) / UNIT;
    for (RaceCell* end = c + (bytes + UNIT - 1) / UNIT; c < end; c++) {
        if (m.shared && c->written.block != t->block->id && c->read[0].block != t->block->id) *c = RaceCell();
        if (c->written.block >= races.first && !(atomic && c->written_atomically) && !ordered(c->written, *t))
            report(*t, write ? "writes" : "reads", bytes, c->written, "wrote");
        if (!write) {
            record_read(c, *t, atomic);
            continue;
        }
        for (int i = 0; i < 2; i++)
            if (c->read[i].block >= races.first && !(atomic && c->read_atomically) &&
                !ordered(c->read[i], *t, c->readers[i]))
                report(*t, "writes", bytes, c->read[i], "read");
        c->written = now(*t);
        c->written_atomically = atomic;
        c->read[0] = c->read[1] = RaceStamp();
    }
}

}  // namespace

void RaceKnowledge::learn(const RaceKnowledge& other) {
    if (barriers.size() < other.barriers.size()) barriers.resize(other.barriers.size());
    for (size_t i = 0; i < other.barriers.size(); i++) barriers[i] = std::max(barriers[i], other.barriers[i]);
    for (const RaceStamp& s : other.threads) {
        const auto same = std::find_if(threads.begin(), threads.end(), [&](const RaceStamp& known) {
            return known.block == s.block && known.thread == s.thread;
        });
        if (same == threads.end()) threads.push_back(s);
        else if (precedes(*same, s)) *same = s;
    }
    const auto old = [&](const RaceStamp& s) { return s.barriers < barriers[s.block - races.first]; };
    threads.erase(std::remove_if(threads.begin(), threads.end(), old), threads.end());
}

bool RaceKnowledge::covers(const RaceStamp& event) const {
    const size_t index = event.block - races.first;
    if (index < barriers.size() && event.barriers < barriers[index]) return true;
    for (const RaceStamp& s : threads)
        if (s.block == event.block && precedes(event, s)) return true;
    return false;
}

// ---------------------------------------------------------------------------------------------
// Memory, launches, synchronizations

void race_memory(const void* p, size_t bytes, bool shared) {
    races.memory[(const char*)p] = {(const char*)p, bytes, shared, nullptr};
}

void race_memory_freed(const void* p) {
    const auto m = races.memory.find((const char*)p);
    if (m == races.memory.end()) return;
    if (m->second.cells) munmap(m->second.cells, (m->second.bytes / UNIT + 1) * sizeof(RaceCell));
    races.memory.erase(m);
    races.last = {};
}

void race_launch(uint32_t blocks) {
    races.first = races.next;
    races.next += blocks;
    races.blocks = blocks;
    races.checked = blocks <= MAX_BLOCKS;
    races.messages.clear();
}

void race_block_starts(RaceBlock* block, uint32_t index) {
    block->id = races.first + index;
    block->barriers = 0;
    block->known = RaceKnowledge();
}

void race_thread_starts(RaceThread* thread, RaceBlock* block, uint16_t index) {
    *thread = RaceThread();
    thread->block = block;
    thread->thread = index;
}

void race_barrier(RaceBlock* block, RaceThread* const* threads, size_t n) {
    if (!races.checked) return;
    for (size_t i = 0; i < n; i++) {
        for (const RaceMessage& m : threads[i]->acquired) block->known.learn(*m);
        threads[i]->acquired.clear();
    }
    block->barriers++;
}

void race_sync_warp(RaceThread* const* threads, size_t n) {
    uint32_t syncs = 0;
    std::vector<RaceMessage> acquired;
    for (size_t i = 0; i < n; i++) {
        syncs = std::max(syncs, threads[i]->syncs);
        acquired.insert(acquired.end(), threads[i]->acquired.begin(), threads[i]->acquired.end());
    }
    for (size_t i = 0; i < n; i++) {
        threads[i]->syncs = syncs + 1;
        threads[i]->acquired = acquired;
    }
}

void race_load(RaceThread* t, const void* p, bool acquire) {
    access(p, sizeof(int), false, true);
    const auto m = races.messages.find(p);
    if (!races.checked || m == races.messages.end()) return;
    if (acquire) t->acquired.push_back(m->second);
}

void race_store(RaceThread* t, const void* p, bool release) {
    access(p, sizeof(int), true, true);
    if (!races.checked) return;
    if (release) races.messages[p] = published(t);
    else races.messages.erase(p);
}

void race_add(const void* p) { access(p, sizeof(int), true, true); }

// ---------------------------------------------------------------------------------------------
// Called by code that is compiled with -fsanitize=thread

#define READ(n) access(p, n, false, false)
#define WRITE(n) access(p, n, true, false)
#define CALLS(n) \
    void __tsan_read##n(void* p) { READ(n); } \
    void __tsan_write##n(void* p) { WRITE(n); } \
    void __tsan_unaligned_read##n(void* p) { READ(n); } \
    void __tsan_unaligned_write##n(void* p) { WRITE(n); }
extern "C" {
CALLS(1)
CALLS(2)
CALLS(4)
CALLS(8)
CALLS(16)
void __tsan_init(void) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit(void) {}
void __tsan_read_range(void* p, long n) { READ((size_t)n); }
void __tsan_write_range(void* p, long n) { WRITE((size_t)n); }
void __tsan_vptr_read(void*) {}
void __tsan_vptr_update(void**, void*) {}
void* __tsan_memcpy(void* to, const void* from, size_t n) {
    access(from, n, false, false);
    access(to, n, true, false);
    return memcpy(to, from, n);
}
void* __tsan_memmove(void* to, const void* from, size_t n) {
    access(from, n, false, false);
    access(to, n, true, false);
    return memmove(to, from, n);
}
void* __tsan_memset(void* p, int byte, size_t n) {
    WRITE(n);
    return memset(p, byte, n);
}
}
