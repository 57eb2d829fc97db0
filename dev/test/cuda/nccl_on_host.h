// nccl_on_host.h: NCCL emulation on the CPU for the part of NCCL that the engine uses. Ranks are processes, each with a
// CUDA emulation of its own (dev/test/cuda); memory that they share carries the data. Misuse aborts:
//
//   order        all ranks must make the same collective calls in the same order, with the same types, counts and
//                roots; each ncclSend needs an ncclRecv. Stricter than NCCL: of the groups with calls between two
//                ranks, the n-th on one of them must match the n-th on the other.
//   memory       buffers must be device memory; those of a group must not overlap. Collective calls must be in place.
//   streams      a call reads its inputs when the work before it in its stream is done, and not earlier; it ends when
//                all ranks have made it. So without an event between two streams, values are read too early or too
//                late.
//   nonblocking  after a call that returned ncclInProgress, ncclCommGetAsyncError must have reported its end before the
//                next call, and nothing is queued on the stream until then.
//   lifetime     ncclCommFinalize or ncclCommDestroy with unfinished calls abort; nccl_on_host_live counts what was not
//                destroyed.
#ifndef NCCL_ON_HOST_H
#define NCCL_ON_HOST_H

#include <climits>

#include "dev/test/cuda/cuda_on_host.h"

#define NCCL_VERSION_CODE 22800
#define NCCL_UNIQUE_ID_BYTES 128
#define NCCL_CONFIG_INITIALIZER {1}

typedef struct NcclOnHostComm* ncclComm_t;
typedef struct { char internal[NCCL_UNIQUE_ID_BYTES]; } ncclUniqueId;
typedef struct { int blocking; } ncclConfig_t;
enum ncclResult_t { ncclSuccess = 0, ncclInvalidUsage = 5, ncclRemoteError = 6, ncclInProgress = 7 };
enum ncclDataType_t { ncclInt8 = 0, ncclFloat = 7 };

ncclResult_t ncclGetVersion(int* version);
const char* ncclGetErrorString(ncclResult_t result);
// With NCCL_COMM_ID in the environment, the same id in all processes that have the same value.
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error);
ncclResult_t ncclCommFinalize(ncclComm_t comm);   // after the last call
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);   // calls that have not ended never will; their streams continue

ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream);

// ---------------------------------------------------------------------------------------------
// For tests

struct NcclOnHostOptions {
    int64_t failing_call = -1;   // the first call from this number on whose end is asked for ends with ncclRemoteError
    double patience = 60;        // seconds after which a call that waits for other ranks aborts
};

void nccl_on_host_set(const NcclOnHostOptions& options);
int nccl_on_host_live(void);                      // communicators not yet destroyed

#endif
