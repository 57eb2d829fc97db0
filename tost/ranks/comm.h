// comm.h: communication between the processes ("ranks") of one run. A launcher (mpirun, srun, torchrun) starts them;
// MPI or, for small messages of the CUDA engine, NCCL transports the bytes. All buffers are in host memory. A TostComm*
// of NULL is a single process: then the functions do nothing but copy.
//
// All ranks call the same functions in the same order ("collective"). They do not return errors: if the transport fails
// or a wait lasts longer than the timeout, the process prints one line, ends all ranks and exits with STATUS_RESUMABLE,
// after which --resume continues.
#pragma once

#include "base/text.h"
#include "engine.h"

enum { COMM_HOST_MAX = 64, COMM_TIMEOUT = 600 };   // default of --rank-timeout, in seconds

// What one rank sends to and receives from another one. 0 bytes: nothing.
typedef struct { const void* send; void* receive; size_t send_bytes, receive_bytes; } CommMessage;

typedef struct CommRequest CommRequest;   // messages under way; belongs to the transport

// local_rank: among those on this host; cores: CRC-32 of the set of cores to which it is bound
typedef struct { int rank, size, local_rank; uint32_t cores; char host[COMM_HOST_MAX]; } CommPlace;

struct TostComm {
    CommPlace   place;
    CommPlace*  places;           // (size), of all ranks
    char        library[64];      // "Open MPI v4.1.4"
    double      timeout;          // longest wait, in seconds; 0: forever
    TextLine    hint;             // appended to the line that a failed rank causes: how to resume
    bool        in_order;         // NCCL: a message waits for all that were started before it
    void*       transport;        // data of the functions below

    // Starts one message to and one from each rank (messages: (size); the own entry is ignored). Messages between two
    // ranks arrive in the order in which they were started. Buffers must stay valid until test returns true. NULL: they
    // are complete, and there is no test.
    CommRequest* (*start)(TostComm* c, const CommMessage* messages);
    // Transports what it can without waiting. True if all messages have arrived and were sent; then it frees *request
    // and sets it to NULL. arrived (size), unless NULL: sets the entries of the ranks whose message is complete.
    bool (*test)(TostComm* c, CommRequest** request, bool* arrived);
    void (*abort)(TostComm* c, int status);   // ends all ranks; does not return
    void (*close)(TostComm* c);               // after the last message; frees transport
};

static inline int comm_rank(const TostComm* c) { return c ? c->place.rank : 0; }
static inline int comm_size(const TostComm* c) { return c ? c->place.size : 1; }

// Ranks of this host that may run on the same cores as this one, itself included.
int comm_sharing_cores(const TostComm* c);

// What the environment says about the launcher. size 1: none, or a single process.
typedef struct { CommPlace place; const char *launcher, *variable; } CommLaunch;   // variable: the number of processes
CommLaunch comm_launch(void);

// *comm = NULL for a single process. An error if a launcher started several but the program was built without the
// library: otherwise each would train a run of its own. timeout: of MPI_Init, in seconds; 0: none.
bool comm_open(TostComm** comm, const CommLaunch* launch, const TostEngine* engine, double timeout, TostError* err);
void comm_close(TostComm* c);

// Opens the MPI transport; an error in builds without MPI=1.
bool comm_open_mpi(TostComm** comm, const CommLaunch* launch, double timeout, TostError* err);
void comm_abort_mpi(TostComm* c, int status);   // ends all ranks, also without c; returns if MPI is not in use
// Fills in places, with messages between the ranks. comm_open calls it; tests call it for transports of their own.
void comm_find_places(TostComm* c);

// Waits until all messages are complete.
void comm_wait(TostComm* c, CommRequest** request);
void comm_exchange(TostComm* c, const CommMessage* messages);                        // start and wait
void comm_allgather(TostComm* c, void* all, const void* mine, size_t bytes);         // all: (size, bytes)
void comm_broadcast(TostComm* c, void* data, size_t bytes, int root);
// Returns true if all ranks pass true. Otherwise returns false on all of them, with the *err of the lowest rank that
// passed false, which begins with its rank and host unless it is rank 0.
bool comm_agree(TostComm* c, bool ok, TostError* err);
// Fails, on all ranks, if they pass different values. what: names it in the message of the first rank that differs from
// rank 0, as in "the shards of --data differ".
bool comm_same(TostComm* c, uint64_t value, const char* what, TostError* err);
// True on all ranks if any passes true.
bool comm_any(TostComm* c, bool own);

// How long this rank has waited for others, without the time in which the process was stopped.
typedef struct { TostComm* comm; double waited, last; } CommWait;
CommWait comm_wait_begin(TostComm* c);
// To be called until the wait is over; pauses if it has lasted a while. False: timeout.
bool     comm_wait_more(CommWait* w);
// After a timeout: ends all ranks. arrived (size): those that were not waited for; NULL: unknown. what: "" or its name
__attribute__((noreturn)) void comm_timed_out(TostComm* c, const bool* arrived, const char* what);
// How many seconds a rank waits, so that those before it can report an error that all ranks notice; rank 0: none
int      comm_turn(const CommPlace* place);
// To be called before printing an error that all ranks notice, so that only one prints it: returns at once on rank 0.
// The other ranks wait until the launcher ends them after rank 0, and return if it does not.
void     comm_let_first_speak(const TostComm* c);

// Ends all ranks. Prints `why`, with this rank and host, before the hint.
__attribute__((noreturn)) void comm_fail(TostComm* c, const TostError* why);
// "rank 2 on node7: "; empty for rank 0 and for a single process
typedef struct { char text[COMM_HOST_MAX + 32]; } CommPrefix;
CommPrefix comm_prefix(const CommPlace* place);
