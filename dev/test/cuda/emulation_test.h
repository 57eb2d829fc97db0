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
    T at(size_t i) const {
        T x;
        cudaMemcpy(&x, p + i, sizeof x, cudaMemcpyDeviceToHost);
        return x;
    }
    void put(size_t i, T x) { cudaMemcpy(p + i, &x, sizeof x, cudaMemcpyHostToDevice); }
};

// Runs f in a child process. Returns its stderr and, in *status, its wait status.
template <typename F> std::string child_stderr(Checks* c, int* status, F f) {
    int ends[2];
    char part[4096];
    std::string text;
    fflush(stdout);
    if (!check(c, pipe(ends) == 0, "pipe failed")) return text;
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(ends[1], STDERR_FILENO);
        f();
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t n; (n = read(ends[0], part, sizeof part)) > 0;) text.append(part, (size_t)n);
    close(ends[0]);
    waitpid(child, status, 0);
    return text;
}

#endif
