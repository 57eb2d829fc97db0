// gemm_bench.c: benchmark of the matrix product.
// For products of training, by shape, on one thread: GFLOP/s of gemm() in float32, as a share of what the FMA units can
// do, and of gemm_bf16(). Thread CPU time, the least of the repetitions; peak and products alternate.
// For decoding: GB/s at which the weight is read, compared with only reading the same amount of memory.
//   gemm_bench [repetitions]      (default 15: about a minute on 2 cores)
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "cpu/gemm.h"
#include "base/openmp.h"

enum { MAX_REPETITIONS = 101, CACHE_LINE_FLOATS = 16 };

typedef struct { double best, median; } Time;   // seconds

static int compare_doubles(const void* a, const void* b) {
    double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

static Time time_of(double* seconds, int n) {
    qsort(seconds, n, sizeof(double), compare_doubles);
    return (Time) { seconds[0], seconds[n / 2] };
}

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

// ---------------------------------------------------------------------------------------------
// Decoding: one row or a few. Cycles through many weights, so that each is read from memory and not from a cache.

// Sums n floats. Each thread reads one contiguous part.
static float read_all(const float* x, size_t n) {
    int threads = threads_max();
    size_t run = n / threads / CACHE_LINE_FLOATS * CACHE_LINE_FLOATS;
    float total = 0;
#pragma omp parallel for schedule(static) reduction(+:total)
    for (int t = 0; t < threads; t++) {
        float sum[4 * CACHE_LINE_FLOATS] = {0};
        const float* from = x + t * run;
        for (size_t i = 0; i + countof(sum) <= run; i += countof(sum))
            for (size_t k = 0; k < countof(sum); k++) sum[k] += from[i + k];
        for (size_t k = 0; k < countof(sum); k++) total += sum[k];
    }
    return total;
}

static void bench_rows(int reps) {
    static const int weights[][2] = { { 50304, 768 }, { 3072, 768 }, { 768, 3072 }, { 768, 768 } };
    static const int rows[] = { 1, 2, 4 };
    enum { READ = countof(rows) };
    size_t pool = (size_t)2 * 50304 * 768, next = 0;
    float *w = random_floats(pool), *x = random_floats(4 * 3072), *y = random_floats((size_t)4 * 50304), total = 0;
    printf("\n%-18s        read: best  median        1 row              2 rows              4 rows     %s\n",
           "GB/s of a weight", "ratio");
    for (size_t s = 0; s < countof(weights); s++) {
        int N = weights[s][0], K = weights[s][1], inner = 50304 / N / 4 + 1;
        size_t size = (size_t)N * K, count = pool / size;
        double seconds[READ + 1][MAX_REPETITIONS], bytes = (double)size * sizeof(float) * inner;
        for (int r = 0; r < reps; r++)
            for (int k = READ; k >= 0; k--) {
                double start = now_seconds();
                for (int i = 0; i < inner; i++) {
                    const float* at = w + next++ % count * size;
                    if (k == READ) total += read_all(at, size);
                    else gemm(y, x, false, at, true, rows[k], N, K, 0);
                }
                seconds[k][r] = now_seconds() - start;
            }
        Time t[READ + 1];
        printf("%6d x %-6d      ", N, K);
        for (int k = 0; k <= READ; k++) t[k] = time_of(seconds[k], reps);
        printf("    %7.1f %7.1f", bytes / t[READ].best / 1e9, bytes / t[READ].median / 1e9);
        for (int k = 0; k < READ; k++)
            printf("    %7.1f %7.1f", bytes / t[k].best / 1e9, bytes / t[k].median / 1e9);
        printf("    %5.2f\n", t[READ].best / t[0].best);
    }
    if (total == 1) printf("\n");    // prevents the compiler from removing the sums
    free_pages(w, pool * sizeof(float));
    free_pages(x, 4 * 3072 * sizeof(float));
    free_pages(y, (size_t)4 * 50304 * sizeof(float));
}

static void bench_fork(void) {
    enum { FORKS = 1000 };
    double start = now_seconds();
    for (int r = 0; r < FORKS; r++) {
#pragma omp parallel for schedule(static)
        for (int t = 0; t < threads_max(); t++) (void)t;
    }
    printf("\nfork and join: %.2f us\n", (now_seconds() - start) / FORKS * 1e6);
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
    bench_rows(reps);
    bench_fork();
    return 0;
}
