// comm.c: how the program was launched, and collective operations on host memory, built on the transport's messages.
#include "ranks/comm.h"

#include <sched.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32.h"
#include "base/memory.h"
#include "base/say.h"
#include "base/terminal.h"
#include "base/signals.h"

// ---- Launchers ----

static int env_number(const char* name, int otherwise) {
    const char* text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

// The variables of launchers for rank, number of processes and rank on this host, and one that only this launcher sets.
// The first one that started several processes counts: srun may have started torchrun, once per host. A batch script or
// shell of Slurm has SLURM_PROCID and SLURM_NTASKS too, but only processes of srun have SLURM_STEP_NUM_TASKS.
static const struct { const char *launcher, *rank, *size, *local_rank, *own; } launchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", NULL},
    {"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", NULL},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", NULL},
};

CommLaunch comm_launch(void) {
    CommLaunch launch = {.place = {.size = 1}};
    for (size_t i = 0; i < countof(launchers); i++) {
        const int rank = env_number(launchers[i].rank, -1), size = env_number(launchers[i].size, -1);
        if (rank < 0 || size < 2 || rank >= size || (launchers[i].own && !getenv(launchers[i].own))) continue;
        launch.launcher = launchers[i].launcher;
        launch.variable = launchers[i].size;
        launch.place = (CommPlace){.rank = rank, .size = size, .local_rank = env_number(launchers[i].local_rank, 0)};
        break;
    }
    gethostname(launch.place.host, sizeof launch.place.host - 1);
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) launch.place.cores = crc32_update(0, &set, sizeof set);
#endif
    return launch;
}

#ifndef TOST_MPI
bool comm_open_mpi(TostComm** comm, const CommLaunch* launch, double timeout, TostError* err) {
    (void)comm, (void)timeout;
    return tost_error(err, "started as one of %d processes by %s, but built without MPI: build with make MPI=1 and use "
                      "mpirun or srun --mpi=pmix", launch->place.size, launch->launcher);
}

void comm_abort_mpi(TostComm* c, int status) { (void)c, (void)status; }
#endif

// With several ranks, all must end.
static void out_of_memory(size_t bytes) {
    const CommPlace place = comm_launch().place;
    fprintf(stderr, "%s: %sout of memory: %zu bytes could not be allocated\n", say_program(),
            comm_prefix(&place).text, bytes);
    if (place.size > 1) comm_abort_mpi(NULL, STATUS_FAILED);
    exit(STATUS_FAILED);
}

bool comm_open(TostComm** comm, const CommLaunch* launch, const TostEngine* engine, double timeout, TostError* err) {
    memory_on_failure(out_of_memory);
    *comm = NULL;
    if (launch->place.size == 1) return true;
#ifdef TOST_MPI
    const bool own = strcmp(launch->launcher, "torchrun") == 0;
#else
    const bool own = true;
#endif
    if (strcmp(engine->name, "cuda") == 0 && !engine->open_comm)
        return tost_error(err, "started as one of %d processes by %s, but built without NCCL: build with make NCCL=1",
                          launch->place.size, launch->launcher);
    if (!(own && engine->open_comm ? engine->open_comm(comm, err) : comm_open_mpi(comm, launch, timeout, err)))
        return false;
    comm_find_places(*comm);
    return true;
}

void comm_close(TostComm* c) {
    if (!c) return;
    c->close(c);
    free(c->places);
    free(c);
}

void comm_find_places(TostComm* c) {
    c->places = xcalloc((size_t)c->place.size, sizeof *c->places);
    comm_allgather(c, c->places, &c->place, sizeof c->place);
    for (int r = 0; r < c->place.size; r++) {
        CommPlace* p = &c->places[r];
        p->local_rank = 0;
        for (int other = 0; other < r; other++) p->local_rank += strcmp(c->places[other].host, p->host) == 0;
    }
    c->place = c->places[c->place.rank];
}

int comm_sharing_cores(const TostComm* c) {
    int sharing = c ? 0 : 1;
    for (int r = 0; c && r < c->place.size; r++)
        sharing += c->places[r].cores == c->place.cores && strcmp(c->places[r].host, c->place.host) == 0;
    return sharing;
}

// ---- Failures ----

CommPrefix comm_prefix(const CommPlace* place) {
    CommPrefix prefix = {""};
    if (place->rank > 0) snprintf(prefix.text, sizeof prefix.text, "rank %d on %s: ", place->rank, place->host);
    return prefix;
}

void comm_fail(TostComm* c, const TostError* why) {
    char* text = xasprintf("%s: %s%s%s%s\n", say_program(), comm_prefix(&c->place).text, why->text,
                           c->hint.text[0] ? "; " : "", c->hint.text);
    output_write(STDERR_FILENO, text, strlen(text), OUTPUT_TIMEOUT);
    free(text);
    c->abort(c, STATUS_RESUMABLE);
    _exit(STATUS_RESUMABLE);
}

int comm_turn(const CommPlace* place) {
    enum { LAUNCHER = 6 };   // seconds within which torchrun notices that a rank has ended
    return LAUNCHER * (place->rank < 2 ? place->rank : 2);
}

// When a rank has ended, launchers end the others with SIGTERM.
void comm_let_first_speak(const TostComm* c) {
    for (int i = 0; i < 10 * comm_turn(&c->place); i++) {
        if (signals_received()) _exit(STATUS_RESUMABLE);
        nanosleep(&(struct timespec){0, 100000000}, NULL);
    }
}

void comm_timed_out(TostComm* c, const bool* arrived, const char* what) {
    TextLine who = {"other ranks"};
    TostError why;
    for (int r = c->place.size - 1; arrived && r >= 0; r--)   // names the first
        if (r != c->place.rank && !arrived[r]) who = text_line("rank %d on %s", r, c->places[r].host);
    tost_error(&why, "%s%s%s did not respond for %g s (--rank-timeout)", what, what[0] ? ": " : "", who.text,
               c->timeout);
    comm_let_first_speak(c);
    comm_fail(c, &why);
}

// ---- Collective operations ----

CommWait comm_wait_begin(TostComm* c) { return (CommWait){c, 0, now_seconds()}; }

// No pause at first; then the core is free for other ranks, which may share it.
bool comm_wait_more(CommWait* w) {
    // If more than 1 s has passed, the process was stopped.
    const double now = now_seconds(), passed = now - w->last;
    w->waited += passed < 1 ? passed : 1;
    w->last = now;
    if (w->comm->timeout > 0 && w->waited > w->comm->timeout) return false;
    const struct timespec pause = {0, w->waited < 0.05 ? 20000 : 200000};
    if (w->waited > 100e-6) nanosleep(&pause, NULL);
    return true;
}

void comm_wait(TostComm* c, CommRequest** request) {
    if (!*request || c->test(c, request, NULL)) return;
    bool* arrived = xcalloc((size_t)c->place.size, sizeof *arrived);
    for (CommWait w = comm_wait_begin(c); !c->test(c, request, arrived);)
        if (!comm_wait_more(&w)) comm_timed_out(c, arrived, "");
    free(arrived);
}

void comm_exchange(TostComm* c, const CommMessage* messages) {
    CommRequest* request = c->start(c, messages);
    comm_wait(c, &request);
}

void comm_allgather(TostComm* c, void* all, const void* mine, size_t bytes) {
    char* out = all;
    const int rank = comm_rank(c), size = comm_size(c);
    memmove(out + (size_t)rank * bytes, mine, bytes);
    if (size == 1) return;
    CommMessage* messages = xcalloc((size_t)size, sizeof *messages);
    for (int r = 0; r < size; r++)
        messages[r] = (CommMessage){out + (size_t)rank * bytes, out + (size_t)r * bytes, bytes, bytes};
    comm_exchange(c, messages);
    free(messages);
}

void comm_broadcast(TostComm* c, void* data, size_t bytes, int root) {
    const int rank = comm_rank(c), size = comm_size(c);
    if (size == 1) return;
    CommMessage* messages = xcalloc((size_t)size, sizeof *messages);
    if (rank != root) messages[root] = (CommMessage){.receive = data, .receive_bytes = bytes};
    else for (int r = 0; r < size; r++) messages[r] = (CommMessage){.send = data, .send_bytes = bytes};
    comm_exchange(c, messages);
    free(messages);
}

// The lowest rank that passes true, or the number of ranks if none does.
static int first_rank(TostComm* c, bool own) {
    int first = 0;
    bool* all = xmalloc((size_t)c->place.size * sizeof *all);
    comm_allgather(c, all, &own, sizeof own);
    while (first < c->place.size && !all[first]) first++;
    free(all);
    return first;
}

bool comm_agree(TostComm* c, bool ok, TostError* err) {
    if (!c) return ok;
    const int failed = first_rank(c, !ok);
    if (failed == c->place.size) return true;
    TostError first = *err;
    comm_broadcast(c, &first, sizeof first, failed);
    return tost_error(err, "%s%s", comm_prefix(&c->places[failed]).text, first.text);
}

bool comm_same(TostComm* c, uint64_t value, const char* what, TostError* err) {
    uint64_t first = value;
    comm_broadcast(c, &first, sizeof first, 0);
    if (first != value) tost_error(err, "%s", what);
    return comm_agree(c, first == value, err);
}

bool comm_any(TostComm* c, bool own) {
    return c ? first_rank(c, own) < c->place.size : own;
}
