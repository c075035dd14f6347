/*
 * nccl.cuh - what the files of NCCL share: comm_nccl and its groups
 */
#ifndef CUDA_NCCL_CUH
#define CUDA_NCCL_CUH

#include "cuda/library.cuh"

#include <nccl.h>

extern "C" {
#include "comm/comm_impl.h"
}

struct nccl_api {
    decltype(&ncclGetUniqueId) get_unique_id;
    decltype(&ncclCommInitRankConfig) init_rank;
    decltype(&ncclCommSplit) split;
    decltype(&ncclCommAbort) abort;
    decltype(&ncclCommGetAsyncError) get_async_error;
    decltype(&ncclGetErrorString) error_string;
    decltype(&ncclGetLastError) last_error;
    decltype(&ncclGroupStart) group_start;
    decltype(&ncclGroupEnd) group_end;
    decltype(&ncclSend) send;
    decltype(&ncclRecv) receive;
    decltype(&ncclAllGather) all_gather;
    decltype(&ncclBroadcast) broadcast;
    decltype(&ncclReduceScatter) reduce_scatter;
    decltype(&ncclAllReduce) all_reduce;
};

struct nccl_comm {
    struct comm base;
    struct comm *host;
    struct cuda_device *device;
    struct nccl_api api;
    struct err failure; /* the first; no code: none yet */
};

/* What a group's communicators are for. Pairs: rank 0 sends, rank 1 receives. */
enum nccl_link { TOGETHER, TO_NEXT, FROM_PREVIOUS, TO_PREVIOUS, FROM_NEXT, N_LINKS };

struct nccl_group {
    struct comm_group base;
    struct comm_group *host; /* NULL for one rank */
    ncclComm_t links[N_LINKS];
    ncclComm_t root; /* of the links of groups within this one; most have none */
};

static inline struct nccl_comm *nccl_comm_of(struct comm *comm)
{
    return (struct nccl_comm *)comm;
}

static inline struct nccl_group *nccl_group_of(const struct comm_group *group)
{
    return (struct nccl_group *)group;
}

static inline cudaStream_t nccl_stream(const struct nccl_comm *comm, int queue)
{
    return cuda_stream_of(comm->device, queue);
}

/* 0, or -1 with NCCL's words for the result, which is the comm's failure if it is the first.
 * link may be NULL. */
int nccl_result(struct nccl_comm *comm, ncclComm_t link, ncclResult_t result, const char *call,
                struct err *err);

/* comm_ops (nccl_connect.cu, nccl.cu) */
int nccl_connect(struct comm_group *all, struct comm_group *group, unsigned uses, struct err *err);
int nccl_enqueue(struct comm_group *base, const struct comm_call *call, int queue, struct err *err);
int nccl_enqueue_sum(struct comm_group *base, const struct comm_sum *sum, int queue,
                     struct err *err);

#endif
