// ranks_on_host.h: runs a function in several processes, the ranks of a test.
#ifndef RANKS_ON_HOST_H
#define RANKS_ON_HOST_H

#include <sys/mman.h>

#include "dev/test/cuda/emulation_test.h"
#include "nccl_on_host.h"

struct RankEnd {
    int status;         // wait status
    std::string text;   // of stderr
};

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

// Runs f(rank) in a process per rank, with the variables of torchrun and the address of an unused communicator.
// launcher: ends the other ranks with SIGTERM when rank 0 has ended, as torchrun does.
template <typename F> std::vector<RankEnd> run_ranks(int size, F f, bool launcher = false) {
    static int runs = 0;
    std::vector<pid_t> child((size_t)size);
    std::vector<FILE*> text((size_t)size);
    std::vector<RankEnd> ends((size_t)size);
    const std::string id = std::to_string(getpid()) + "." + std::to_string(runs++);
    fflush(stdout);
    for (int r = 0; r < size; r++) {
        text[(size_t)r] = tmpfile();
        child[(size_t)r] = fork();
        if (child[(size_t)r] != 0) continue;
        signal(SIGABRT, SIG_DFL);
        dup2(fileno(text[(size_t)r]), STDERR_FILENO);
        setenv("NCCL_COMM_ID", id.c_str(), 1);
        setenv("RANK", std::to_string(r).c_str(), 1);
        setenv("LOCAL_RANK", std::to_string(r).c_str(), 1);
        setenv("WORLD_SIZE", std::to_string(size).c_str(), 1);
        setenv("LOCAL_WORLD_SIZE", std::to_string(size).c_str(), 1);
        f(r);
        fflush(stdout);
        _exit(0);
    }
    for (int r = 0; r < size; r++) {
        char part[4096];
        if (launcher && r > 0) kill(child[(size_t)r], SIGTERM);
        waitpid(child[(size_t)r], &ends[(size_t)r].status, 0);
        rewind(text[(size_t)r]);
        for (size_t n; (n = fread(part, 1, sizeof part, text[(size_t)r])) > 0;) ends[(size_t)r].text.append(part, n);
        fclose(text[(size_t)r]);
    }
    return ends;
}

#endif
