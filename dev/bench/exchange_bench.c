// exchange_bench.c: rate of the exchange between ranks, with the messages of tost/ranks/comm.h. Started by mpirun.
//
//     mpirun -n N exchange_bench BYTES ROUNDS
//
// In each round every rank sends BYTES to and receives BYTES from each other rank. Rank 0 prints the median time of a
// round, and the rate at which a rank sends; it receives as much at the same time.
#include <stdio.h>
#include <stdlib.h>

#include "tost/base/clock.h"
#include "tost/base/error.h"
#include "tost/base/memory.h"
#include "tost/ranks/comm.h"

static int compare_doubles(const void* a, const void* b) {
    const double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

// The time of the slowest rank.
static double one_round(TostComm* c, const CommMessage* messages, double* all) {
    comm_any(c, false);   // all are ready
    const double start = now_seconds();
    comm_exchange(c, messages);
    double seconds = now_seconds() - start;
    comm_allgather(c, all, &seconds, sizeof seconds);
    for (int rank = 0; rank < comm_size(c); rank++)
        if (all[rank] > seconds) seconds = all[rank];
    return seconds;
}

int main(int argc, char** argv) {
    static const TostEngine no_engine = {.name = "none"};
    const size_t bytes = argc == 3 ? strtoull(argv[1], NULL, 10) : 0;
    const int rounds = argc == 3 ? atoi(argv[2]) : 0;
    TostComm* c = NULL;
    TostError err;
    if (bytes == 0 || rounds <= 0) { fprintf(stderr, "usage: mpirun -n N exchange_bench BYTES ROUNDS\n"); return 2; }
    const CommLaunch launch = comm_launch();
    if (!comm_open(&c, &launch, &no_engine, argv[0], COMM_TIMEOUT, &err)) {
        fprintf(stderr, "exchange_bench: %s\n", err.text);
        return 1;
    }
    const int n = comm_size(c);
    if (n < 2) { fprintf(stderr, "exchange_bench: start it with mpirun -n 2 or more\n"); return 2; }

    CommMessage* messages = xcalloc((size_t)n, sizeof *messages);
    double *times = xmalloc((size_t)rounds * sizeof *times), *all = xmalloc((size_t)n * sizeof *all);
    char *send = xcalloc(bytes, 1), *receive = xcalloc((size_t)n, bytes);
    for (int rank = 0; rank < n; rank++)
        if (rank != comm_rank(c)) messages[rank] = (CommMessage){send, receive + (size_t)rank * bytes, bytes, bytes};
    one_round(c, messages, all);   // warm-up: opens the connections
    for (int i = 0; i < rounds; i++) times[i] = one_round(c, messages, all);
    qsort(times, (size_t)rounds, sizeof *times, compare_doubles);
    if (comm_rank(c) == 0)
        printf("round %.6g s\nrate %.6g GB/s\nlibrary %s\n", times[rounds / 2],
               (double)bytes * (n - 1) / times[rounds / 2] / 1e9, c->library);
    free(send);
    free(receive);
    free(messages);
    free(times);
    free(all);
    comm_close(c);
    return 0;
}
