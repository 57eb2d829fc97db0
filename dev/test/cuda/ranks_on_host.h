// ranks_on_host.h: the tests of several ranks, and memory that these share.
#ifndef RANKS_ON_HOST_H
#define RANKS_ON_HOST_H

#include <sys/mman.h>

#include "dev/test/cuda/emulation_test.h"
#include "nccl_on_host.h"

void test_nccl_emulation(Checks* c);
enum ExchangeTests { EXCHANGE_QUICK, EXCHANGE_MUTANTS, EXCHANGE_ALL };   // each includes those before it
void test_exchange(Checks* c, ExchangeTests tests);   // the engine on several ranks

// Memory that the ranks share with the test.
template <typename T> struct Shared {
    T* p;
    size_t n;
    explicit Shared(size_t size) : n(size) {
        p = (T*)mmap(nullptr, n * sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    ~Shared() { munmap(p, n * sizeof(T)); }
    Shared(const Shared&) = delete;
};

#endif
