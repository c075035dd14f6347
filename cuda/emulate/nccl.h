/*
 * nccl.h - the part of NCCL that cuda/nccl*.cu use, for ranks that are threads of one process
 *
 * Calls are done when their stream comes to them, and as late as NCCL may: who sends is done when
 * it was received, who gathers when all have what they came for. Calls over a communicator come one
 * after the other, whatever their streams. Ranks that call with unequal kinds, sizes or roots are
 * told (ncclInvalidArgument, and ncclInvalidUsage as the others' asynchronous error); real NCCL
 * hangs or writes beyond buffers. Sums go round the ring from the rank behind the one that gets the
 * part, and are rounded at each, as NCCL's rings do: another order than that of comm/reduce.h.
 *
 * LMTRAIN_EMULATE_NCCL_LOG names a file to which each rank adds what it makes: `id`, `init RANK of
 * N`, and `split COLOR: RANK of N` for each communicator that it gets. LMTRAIN_EMULATE_NCCL is the
 * version.
 */
#ifndef EMULATE_NCCL_H
#define EMULATE_NCCL_H

#include "cuda_runtime.h"

extern "C" {

#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef struct emulate_nccl *ncclComm_t;

typedef enum {
    ncclSuccess = 0,
    ncclSystemError = 2,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclInProgress = 7,
} ncclResult_t;

typedef enum { ncclUint8 = 1, ncclFloat32 = 7, ncclBfloat16 = 9 } ncclDataType_t;
typedef enum { ncclSum = 0 } ncclRedOp_t;

typedef struct {
    int blocking, maxCTAs, splitShare;
} ncclConfig_t;
#define NCCL_CONFIG_INITIALIZER \
    { \
        1, 32, 0 \
    }
#define NCCL_SPLIT_NOCOLOR -1

ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int n_ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config);
/* Called by all ranks of the communicator, which has nothing under way; each waits for the
 * others. */
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *new_comm,
                           ncclConfig_t *config);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error);
const char *ncclGetErrorString(ncclResult_t result);
const char *ncclGetLastError(ncclComm_t comm);
ncclResult_t ncclGetVersion(int *version);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclRecv(void *receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream);
}

#endif
