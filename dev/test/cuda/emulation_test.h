// emulation_test.h: helpers for the tests that run in the CUDA emulation.
#ifndef EMULATION_TEST_H
#define EMULATION_TEST_H

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "cuda_on_host.h"
#include "dev/test/check.h"

void test_emulation(Checks* c);  // the emulation itself
// Single kernels and launch functions of the engine; those whose blocks communicate with as many schedules.
void test_kernels(Checks* c, int seeds);
enum ExchangeTests { EXCHANGE_QUICK, EXCHANGE_MUTANTS, EXCHANGE_ALL };   // each includes those before it
void test_exchange(Checks* c, ExchangeTests tests);   // the engine on several ranks

// An array in device memory, filled with NaN bytes or with x converted to T.
template <typename T> struct Device {
    T* p = nullptr;
    size_t n;
    explicit Device(size_t size) : n(size) { cudaMalloc(&p, n * sizeof *p); }
    template <typename X> explicit Device(const std::vector<X>& x) : Device(x.size()) {
        const std::vector<T> converted(x.begin(), x.end());
        cudaMemcpy(p, converted.data(), n * sizeof *p, cudaMemcpyHostToDevice);
    }
    ~Device() { cudaFree(p); }
    std::vector<float> get() const {
        std::vector<T> x(n);
        cudaMemcpy(x.data(), p, n * sizeof *p, cudaMemcpyDeviceToHost);
        return std::vector<float>(x.begin(), x.end());
    }
};

struct RankEnd {
    int status;         // wait status
    std::string text;   // of stderr
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

// Runs f in a child process.
template <typename F> RankEnd run_child(F f) {
    return run_ranks(1, [&](int) { f(); })[0];
}

// The call must abort with a message.
template <typename F> void dies(Checks* c, const char* what, const char* message, F misuse) {
    const RankEnd end = run_child(misuse);
    check(c, end.status != 0 && end.text.find(message) != std::string::npos, "%s: status %d, \"%.200s\", want \"%s\"",
          what, end.status, end.text.c_str(), message);
}

// The process must have exited with this status and one line that contains `want`.
inline void exits(Checks* c, const RankEnd& end, int status, const char* want) {
    check(c, WIFEXITED(end.status) && WEXITSTATUS(end.status) == status && end.text.find(want) != std::string::npos &&
                 end.text.find('\n') == end.text.size() - 1,
          "status %d, \"%s\"; want %d, one line with \"%s\"", end.status, end.text.c_str(), status, want);
}

#endif
