// races.h: finds data races of the emulated kernels by the order of their synchronizations, not by their results: two
// accesses of one address, at least one of them a write, must be ordered by barriers, or by a flag that is stored with
// release and loaded with acquire. If they are not, the emulation aborts, in whichever order they happened to run: on a
// GPU, where a store is visible to other blocks only once it is released, and a load may return an old value until
// something is acquired, they could run in the other order.
//
// The compiler reports each load and store of code compiled with -fsanitize=thread; this file replaces the sanitizer's
// library. In other builds nothing is reported, and no race is found.
//
//   __syncthreads      orders all accesses of the block's threads before it before those after it
//   __syncwarp         the same for the lanes in its mask; shuffles order nothing
//   store, release     publishes what is ordered before it; load, acquire: orders that before what follows
//   atomics            race with plain accesses only
#ifndef RACES_H
#define RACES_H

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

// A point in the execution of a thread: how many barriers of its block, syncs of its warp and own releases precede it.
struct RaceStamp {
    uint32_t block = 0;   // counted over all launches, from 1; 0: none
    uint32_t barriers = 0, syncs = 0;
    uint16_t thread = 0, releases = 0;
};

// What a thread knows of other blocks: everything before barrier `barriers[block]`, and more of single threads.
struct RaceKnowledge {
    std::vector<uint32_t> barriers;   // by block of the launch
    std::vector<RaceStamp> threads;   // everything before these points
    void learn(const RaceKnowledge& other);
    bool covers(const RaceStamp& event) const;
};

typedef std::shared_ptr<const RaceKnowledge> RaceMessage;

struct RaceBlock {
    uint32_t id = 0, barriers = 0;
    RaceKnowledge known;             // to all its threads
};

struct RaceThread {
    RaceBlock* block = nullptr;
    uint16_t thread = 0, releases = 0;
    uint32_t syncs = 0;
    std::vector<RaceMessage> acquired;   // since the last barrier
};

// The thread that runs; null outside of kernels.
extern RaceThread* race_current;

void race_memory(const void* p, size_t bytes, bool shared);   // device memory, or shared memory
void race_memory_freed(const void* p);
void race_launch(uint32_t blocks);
void race_block_starts(RaceBlock* block, uint32_t index);
void race_thread_starts(RaceThread* thread, RaceBlock* block, uint16_t index);
void race_barrier(RaceBlock* block, RaceThread* const* threads, size_t n);   // all threads of the block, or those of a
void race_sync_warp(RaceThread* const* threads, size_t n);                   // warp that take part
void race_load(RaceThread* thread, const void* p, bool acquire);             // atomics
void race_store(RaceThread* thread, const void* p, bool release);
void race_add(const void* p);

#endif
