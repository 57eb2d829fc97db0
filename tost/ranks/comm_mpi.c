// comm_mpi.c: messages through MPI, in builds with MPI=1. MPI is only initialized if a launcher started the process as
// one of several.
#ifdef TOST_MPI
#include "base/memory.h"
#include "ranks/comm.h"

#include <limits.h>
#include <math.h>
#include <mpi.h>
#include <signal.h>
#include <unistd.h>

struct CommRequest { MPI_Request receive, send; };   // (size); null if complete

static void check(TostComm* c, int result, int rank) {
    if (result == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING] = "", *stack;
    int length;
    TostError why;
    MPI_Error_string(result, text, &length);
    text[strcspn(text, "\n")] = '\0';
    if ((stack = strstr(text, ", error stack"))) *stack = '\0';   // MPICH appends it on further lines
    tost_error(&why, "communication with rank %d on %s failed: %s", rank, c->places[rank].host, text);
    comm_fail(c, &why);
}

static CommRequest* mpi_start(TostComm* c, const CommMessage* messages) {
    const int size = c->place.size;
    CommRequest* pair = xmalloc((size_t)size * sizeof *pair);
    for (int i = 0; i < size; i++) pair[i] = (CommRequest){MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    for (int step = 1; step < size; step++) {   // each rank starts with another one
        const int other = (c->place.rank + step) % size;
        const CommMessage* m = &messages[other];
        const int in = (int)m->receive_bytes, out = (int)m->send_bytes;
        if (m->receive_bytes > INT_MAX || m->send_bytes > INT_MAX) check(c, MPI_ERR_COUNT, other);
        if (in) check(c, MPI_Irecv(m->receive, in, MPI_BYTE, other, 0, MPI_COMM_WORLD, &pair[other].receive), other);
        if (out) check(c, MPI_Isend(m->send, out, MPI_BYTE, other, 0, MPI_COMM_WORLD, &pair[other].send), other);
    }
    return pair;
}

static bool mpi_test(TostComm* c, CommRequest** request, bool* arrived) {
    CommRequest* pair = *request;
    bool all = true;
    for (int rank = 0; rank < c->place.size; rank++) {
        int received = 0, sent = 0;
        MPI_Status status;
        check(c, MPI_Test(&pair[rank].receive, &received, &status), rank);
        check(c, MPI_Test(&pair[rank].send, &sent, &status), rank);
        if (arrived) arrived[rank] = received && sent;
        all = all && received && sent;
    }
    if (!all) return false;
    free(pair);
    *request = NULL;
    return true;
}

void comm_abort_mpi(TostComm* c, int status) {
    (void)c;
    int begun, ended;
    if (MPI_Initialized(&begun) == MPI_SUCCESS && begun && MPI_Finalized(&ended) == MPI_SUCCESS && !ended)
        MPI_Abort(MPI_COMM_WORLD, status);
}

static TextLine late;   // what timed_out prints

static void timed_out(int number) {
    (void)number;
    const ssize_t ignored = write(STDERR_FILENO, late.text, strlen(late.text));
    (void)ignored;
    _exit(STATUS_RESUMABLE);
}

// MPI_Init and MPI_Finalize wait for all ranks without a limit: a timer ends this process if they do not return. If a
// rank is late, rank 0 says so or, if it is the one, rank 1.
static void limit(const char* call, const CommPlace* place, double timeout) {
    snprintf(late.text, sizeof late.text, "train_gpt_tost: %s%s: other ranks did not respond for %g s "
             "(--rank-timeout)\n", comm_prefix(place).text, call, timeout);
    signal(SIGALRM, timed_out);
    if (timeout > 0) alarm((unsigned)ceil(timeout) + (unsigned)comm_turn(place));
}

static void mpi_close(TostComm* c) {
    limit("MPI_Finalize", &c->place, c->timeout);
    MPI_Finalize();
    alarm(0);
}

static bool initialize(const CommLaunch* launch, double timeout) {
    int provided;
    limit("MPI_Init", &launch->place, timeout);
    const bool ok = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) == MPI_SUCCESS;
    alarm(0);
    signal(SIGALRM, SIG_DFL);
    return ok;
}

bool comm_open_mpi(TostComm** comm, const CommLaunch* launch, double timeout, TostError* err) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int size, length;
    // Two TCP connections per pair of ranks in Open MPI. On a single connection, the handshake of a large message waits
    // behind data in the other direction, so sending and receiving do not overlap.
    setenv("OMPI_MCA_btl_tcp_links", "2", 0);
    // No backtrace from UCX when it accesses the memory of a rank that has ended: the launcher reports what happened.
    setenv("UCX_HANDLE_ERRORS", "none", 0);
    if (!initialize(launch, timeout))
        return tost_error(err, "MPI cannot be initialized: check that %s belongs to the MPI library of this program",
                          launch->launcher);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_library_version(version, &length);
    version[strcspn(version, ",\n")] = '\0';
    if (size != launch->place.size) {
        MPI_Finalize();
        return tost_error(err, "%s started %d processes, but %s sees %d: use the mpirun of that library, or srun "
                          "--mpi=pmix (or pmi2)", launch->launcher, launch->place.size, version, size);
    }
    TostComm* c = *comm = xcalloc(1, sizeof *c);
    *c = (TostComm){.place = launch->place, .timeout = COMM_TIMEOUT, .start = mpi_start, .test = mpi_test,
                    .abort = comm_abort_mpi, .close = mpi_close};
    snprintf(c->library, sizeof c->library, "%.*s", (int)sizeof c->library - 1, version);
    MPI_Comm_rank(MPI_COMM_WORLD, &c->place.rank);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    return true;
}
#endif
