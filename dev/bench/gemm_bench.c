// gemm_bench.c: benchmark of the matrix product.
// For products of training, by shape, on one thread: GFLOP/s of gemm() in float32, as a share of what the FMA units can
// do, and of gemm_bf16(). Thread CPU time, the least of the repetitions; peak and products alternate.
//   gemm_bench [repetitions]      (default 15: about a minute on 2 cores)
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/error.h"
#include "base/memory.h"
#include "cpu/gemm.h"
#include "base/openmp.h"

enum { MAX_REPETITIONS = 101 };

// n floats between -1 and 1, none denormal, initialized by the threads that will read them.
static float* random_floats(size_t n) {
    float* x = alloc_pages(n * sizeof(float));
    if (!x) {
        fprintf(stderr, "gemm_bench: no memory for %zu floats\n", n);
        exit(STATUS_FAILED);
    }
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++) x[i] = (float)(i * 2654435761u % 1024) / 512 - 0.999f;
    return x;
}

// ---------------------------------------------------------------------------------------------
// Products of training: 1024 rows with the sizes of GPT-2 (124M), 4096 rows with small sizes.

typedef struct { const char* what; int M, N, K; bool at, bt; } Shape;

static const Shape products[] = {
    { "forward",          1024,   768,   768, false, true  },
    { "forward",          1024,  3072,   768, false, true  },
    { "forward",          1024,   768,  3072, false, true  },
    { "classifier",       1024, 50304,   768, false, true  },
    { "backward data",    1024,   768,   768, false, false },
    { "backward data",    1024,  3072,   768, false, false },
    { "backward data",    1024,   768,  3072, false, false },
    { "classifier data",  1024,   768, 50304, false, false },
    { "backward weights",  768,   768,  1024, true,  false },
    { "backward weights", 3072,   768,  1024, true,  false },
    { "backward weights",  768,  3072,  1024, true,  false },
    { "classifier weights", 50304, 768, 1024, true,  false },
    { "starter forward",  1024,   128,   128, false, true  },
    { "starter forward",  1024,   512,   128, false, true  },
    { "starter data",     1024,   128,   512, false, false },
    { "starter weights",   512,   128,  1024, true,  false },
    { "cube",              128,   128,   128, false, true  },
    { "small forward",    4096,   128,   128, false, true  },
    { "small forward",    4096,   512,   128, false, true  },
    { "small classifier", 4096,  2048,   256, false, true  },
    { "small weights",     128,   128,  4096, true,  false },
    { "small weights",    2048,   256,  4096, true,  false },
    { "tiny",               64,    64,    64, false, true  },
    { "tiny",               17,    33,    65, false, true  },
};

typedef void Gemm(float* c, const float* a, bool at, const float* b, bool bt,
                  int M, int N, int K, float beta);

static double thread_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

// The widest vectors of the build, and as many independent sums as its registers hold.
#if defined(__AVX512F__)
enum { LANES = 16, SUMS = 24 };
#elif defined(__AVX__)
enum { LANES = 8, SUMS = 12 };
#else
enum { LANES = 4, SUMS = 12 };
#endif
typedef float Vec __attribute__((vector_size(LANES * sizeof(float))));

#ifdef __aarch64__
#define IN_REGISTER "+w"
#else
#define IN_REGISTER "+x"
#endif
#ifdef __AVX512F__
#undef IN_REGISTER
#define IN_REGISTER "+v"
#endif

// Multiply-adds on registers only: GFLOP/s of one thread
static double fma_peak(void) {
    enum { ROUNDS = 20000 };
    const Vec half = (Vec){0} + 0.5f;
    Vec x[SUMS];
#pragma GCC unroll 24
    for (int i = 0; i < SUMS; i++) x[i] = half;
    const double start = thread_seconds();
    for (int round = 0; round < ROUNDS; round++)
#pragma GCC unroll 24
        for (int i = 0; i < SUMS; i++) {
            x[i] = x[i] * half + half;
            __asm__ volatile("" : IN_REGISTER(x[i]));   // each is computed
        }
    return 2.0 * ROUNDS * SUMS * LANES / (thread_seconds() - start) / 1e9;
}

static double product_gflops(Gemm* multiply, const Shape* p, float* c, const float* a, const float* b) {
    const double flop = 2.0 * p->M * p->N * p->K;
    const int inner = flop < 1e8 ? (int)(1e8 / flop) + 1 : 1;
    const double start = thread_seconds();
    for (int i = 0; i < inner; i++) multiply(c, a, p->at, b, p->bt, p->M, p->N, p->K, p->at ? 1 : 0);
    return flop * inner / (thread_seconds() - start) / 1e9;
}

static void bench_products(int reps) {
    static Gemm* const functions[] = { gemm, gemm_bf16 };
    const int threads = threads_max();
    size_t max_floats = (size_t)1024 * 50304;
    float *a = random_floats(max_floats), *b = random_floats(max_floats), *c = random_floats(max_floats);
    threads_set(1);
    printf("%-18s %6s %6s %6s     float32  of peak      bf16   bf16/float32\n", "GFLOP/s, 1 thread", "M", "N", "K");
    for (size_t s = 0; s < countof(products); s++) {
        const Shape* p = &products[s];
        double best[countof(functions)] = {0}, peak = 0;
        for (int r = 0; r < (2.0 * p->M * p->N * p->K > 1e10 && reps > 5 ? 5 : reps); r++) {
            const double now = fma_peak();
            if (now > peak) peak = now;
            for (size_t w = 0; w < countof(functions); w++) {
                const double gflops = product_gflops(functions[w], p, c, a, b);
                if (gflops > best[w]) best[w] = gflops;
            }
        }
        printf("%-18s %6d %6d %6d     %7.1f  %7.2f   %7.1f   %7.2f\n", p->what, p->M, p->N, p->K, best[0],
               best[0] / peak, best[1], best[1] / best[0]);
    }
    threads_set(threads);
    free_pages(a, max_floats * sizeof(float));
    free_pages(b, max_floats * sizeof(float));
    free_pages(c, max_floats * sizeof(float));
}

int main(int argc, char** argv) {
    int reps = argc > 1 ? atoi(argv[1]) : 15;
    if (argc > 2 || reps < 1 || reps > MAX_REPETITIONS) {
        fprintf(stderr, "usage: gemm_bench [repetitions, 1 to %d]\n", MAX_REPETITIONS);
        return STATUS_USAGE;
    }
    char library[64];
    printf("gemm: %s, %d threads\n\n", gemm_library(library, sizeof library, false), threads_max());
    bench_products(reps);
    return 0;
}
