// comm_mpi.c: messages through MPI, in builds with MPI=1. MPI is only initialized if a launcher started the process as
// one of several.
#ifdef TOST_MPI
#include "base/error.h"
#include "base/memory.h"
#include "ranks/comm.h"

#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CommRequest {
    int          count, left;     // MPI requests; those that are not complete
    MPI_Request* request;         // (count)
    int*         rank;            // (count): of the other side
    int*         index;           // (count): working space of test, like status
    MPI_Status*  status;
    int*         open;            // (size): requests with a rank that are not complete
};

// rank: the peer, or -1
static void check(TostComm* c, int result, int rank) {
    if (result == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING] = "", *stack;
    int length;
    TostError why;
    MPI_Error_string(result, text, &length);
    text[strcspn(text, "\n")] = '\0';
    if ((stack = strstr(text, ", error stack"))) *stack = '\0';   // MPICH appends it on further lines
    if (rank < 0) tost_error(&why, "communication with the other ranks failed: %s", text);
    else tost_error(&why, "communication with rank %d on %s failed: %s", rank, c->places[rank].host, text);
    comm_fail(c, &why);
}

static void request_free(CommRequest* r) {
    free(r->request);
    free(r->rank);
    free(r->index);
    free(r->status);
    free(r->open);
    free(r);
}

static CommRequest* mpi_start(TostComm* c, const CommMessage* messages) {
    const size_t size = (size_t)c->place.size;
    CommRequest* r = xcalloc(1, sizeof *r);
    r->request = xmalloc(2 * size * sizeof *r->request);
    r->rank = xmalloc(2 * size * sizeof *r->rank);
    r->index = xmalloc(2 * size * sizeof *r->index);
    r->status = xmalloc(2 * size * sizeof *r->status);
    r->open = xcalloc(size, sizeof *r->open);
    for (int step = 1; step < c->place.size; step++) {   // each rank starts with another one
        const int other = (c->place.rank + step) % c->place.size;
        const CommMessage* m = &messages[other];
        for (int way = 0; way < 2; way++) {
            const size_t bytes = way == 0 ? m->receive_bytes : m->send_bytes;
            if (bytes == 0) continue;
            if (bytes > INT_MAX) check(c, MPI_ERR_COUNT, other);
            MPI_Request* request = &r->request[r->count];
            check(c, way == 0 ? MPI_Irecv(m->receive, (int)bytes, MPI_BYTE, other, 0, MPI_COMM_WORLD, request)
                              : MPI_Isend(m->send, (int)bytes, MPI_BYTE, other, 0, MPI_COMM_WORLD, request),
                  other);
            r->rank[r->count++] = other;
            r->open[other]++;
        }
    }
    r->left = r->count;
    return r;
}

static bool mpi_test(TostComm* c, CommRequest** request, bool* arrived) {
    CommRequest* r = *request;
    int n = 0;
    const int result = r->left > 0 ? MPI_Testsome(r->count, r->request, &n, r->index, r->status) : MPI_SUCCESS;
    for (int i = 0; i < n && result == MPI_ERR_IN_STATUS; i++)
        check(c, r->status[i].MPI_ERROR, r->rank[r->index[i]]);
    check(c, result, -1);
    for (int i = 0; i < n; i++) r->open[r->rank[r->index[i]]]--;
    r->left -= n > 0 ? n : 0;
    for (int k = 0; arrived && k < c->place.size; k++) arrived[k] = r->open[k] == 0;
    if (r->left > 0) return false;
    request_free(r);
    *request = NULL;
    return true;
}

static void mpi_abort(TostComm* c, int status) {
    (void)c;
    MPI_Abort(MPI_COMM_WORLD, status);
}

void comm_abort_mpi(int status) {
    int begun, ended;
    if (MPI_Initialized(&begun) == MPI_SUCCESS && begun && MPI_Finalized(&ended) == MPI_SUCCESS && !ended)
        MPI_Abort(MPI_COMM_WORLD, status);
}

static void mpi_close(TostComm* c) {
    (void)c;
    MPI_Finalize();
}

// "Open MPI 4.1.4" or "MPICH 4.0.2", from the library's longer text.
static void find_library(char* out, size_t cap) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "", *at;
    int length;
    MPI_Get_library_version(text, &length);
    const bool open_mpi = strncmp(text, "Open MPI", 8) == 0, mpich = strncmp(text, "MPICH", 5) == 0;
    const char* name = open_mpi ? "Open MPI" : mpich ? "MPICH" : "MPI";
    at = text + strcspn(text, "0123456789");
    snprintf(out, cap, "%s %.*s", name, (int)strspn(at, "0123456789."), at);
}

bool comm_open_mpi(TostComm** comm, const CommLaunch* launch, TostError* err) {
    int provided, size;
    *comm = NULL;
    // Two TCP connections per pair of ranks, in Open MPI and in MPICH with UCX. On a single connection, the handshake
    // of a large message waits behind data in the other direction, so sending and receiving do not overlap.
    setenv("OMPI_MCA_btl_tcp_links", "2", 0);
    setenv("UCX_MAX_EAGER_LANES", "2", 0);
    // No backtrace from UCX when it accesses the memory of a rank that has ended: the launcher reports what happened.
    setenv("UCX_HANDLE_ERRORS", "none", 0);
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS)
        return tost_error(err, "MPI cannot be initialized: check that %s belongs to the MPI library of this program",
                          launch->launcher);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    TostComm* c = xcalloc(1, sizeof *c);
    *c = (TostComm){.place = launch->place, .timeout = COMM_TIMEOUT, .start = mpi_start,
                    .test = mpi_test, .abort = mpi_abort, .close = mpi_close};
    find_library(c->library, sizeof c->library);
    MPI_Comm_rank(MPI_COMM_WORLD, &c->place.rank);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    *comm = c;
    if (size == launch->place.size) return true;
    tost_error(err, "%s started %d processes, but %s sees %d: use the mpirun of that library, or srun --mpi=pmix (or "
               "pmi2)", launch->launcher, launch->place.size, c->library, size);
    *comm = NULL;
    free(c);
    MPI_Finalize();
    return false;
}
#endif
