/*
 * comm.h - communication between ranks
 *
 * A comm is one rank's endpoint of a world of world_size ranks. A group is an ordered subset of
 * these ranks, and all communication uses groups. Calls block as in NCCL: a collective returns when
 * this rank's part is done, and a send may wait for its receive, on every implementation (no hidden
 * buffering). All ranks of a group must make the same calls in the same order with equal sizes.
 *
 * Calls only transfer bytes: reductions are transfers plus additions in a fixed tree (reduce.h),
 * because the order of sums is part of a run's numerics (design.md §5); a library computes them
 * only if a job allows it (parallel.reductions: fast, comm_enqueue_sum).
 *
 * One thread at a time may use a comm and its groups; in a training rank that is the comm thread
 * (worker.h), because transfers progress only inside calls. It may have several calls
 * in flight (comm_start, comm_test), one per group and, of sends and receives, one per peer and
 * direction: none of them waits for another.
 *
 * Implementations: comm_self (world size 1), comm_thread (ranks are threads of one process, for
 * tests), comm_mpi (ranks are processes under MPI), comm_tcp (ranks are processes, over sockets),
 * comm_nccl (one of these for host memory, and NCCL for GPU memory).
 */
#ifndef COMM_COMM_H
#define COMM_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/err.h"

struct comm;
struct comm_group;

int comm_world_rank(const struct comm *comm);
int comm_world_size(const struct comm *comm);

/* Local: does not wait for other ranks; destroys the groups of the comm, too. */
void comm_destroy(struct comm *comm);

/*
 * The group of these world ranks, in this order (they must be distinct and contain the caller).
 * Collective over the group's ranks. channel separates traffic: calls of two groups with the same
 * ranks on different channels never match each other. Returns 0, or -1 and ERR_PEER.
 */
int comm_group_create(struct comm_group **group, struct comm *comm, const int *ranks, int n_ranks,
                      int channel, struct err *err);
int comm_group_rank(const struct comm_group *group);
int comm_group_size(const struct comm_group *group);
struct comm *comm_of_group(const struct comm_group *group);

/*
 * All of the following: collective over the group (but send and receive), blocking; buffers of
 * different ranks and send and receive buffers don't overlap unless stated. They return 0, or -1
 * and ERR_PEER if a peer has exited or the library fails.
 */

/* receive[i * n_bytes ..] = rank i's send[0 .. n_bytes). send may be the own part of receive. */
int comm_all_gather(struct comm_group *group, const void *send, void *receive, size_t n_bytes,
                    struct err *err);

/* receive[i * n_bytes ..] = rank i's send[me * n_bytes ..]. n_bytes is per pair. */
int comm_all_to_all(struct comm_group *group, const void *send, void *receive, size_t n_bytes,
                    struct err *err);

int comm_broadcast(struct comm_group *group, void *buffer, size_t n_bytes, int root,
                   struct err *err);
int comm_send(struct comm_group *group, const void *buffer, size_t n_bytes, int to,
              struct err *err);
int comm_receive(struct comm_group *group, void *buffer, size_t n_bytes, int from, struct err *err);
/* Both at once, neither waiting for the other: n_bytes each. The two peers may be one, but not the
 * caller. */
int comm_send_receive(struct comm_group *group, const void *send, int to, void *receive, int from,
                      size_t n_bytes, struct err *err);
int comm_barrier(struct comm_group *group, struct err *err);

/* The same calls, asynchronous (comm_start, comm_test). Fields that a kind does not need are
 * ignored. */
enum comm_kind {
    COMM_ALL_GATHER,
    COMM_ALL_TO_ALL,
    COMM_BROADCAST, /* receive is the buffer, peer the root */
    COMM_SEND,
    COMM_RECEIVE,
    COMM_BARRIER,
    /* receive = send of the rank `peer` further along the group, cyclically: peer is +1 or -1, the
     * same on all ranks. A call of all: each sends to the other neighbour at once, neither waiting
     * for the other. */
    COMM_ROTATE,
    /* Other bytes to and from each rank: send is a struct comm_part for each rank of the group,
     * which lives until the call is done; receive is ignored. n_bytes: the same on all ranks, and
     * no part is larger. What this rank sends itself is not moved. */
    COMM_EXCHANGE,
};

/* What one rank and another send each other: the other one receives as many bytes as are sent. */
struct comm_part {
    const void *send;
    size_t send_bytes;
    void *receive;
    size_t receive_bytes;
};

struct comm_call {
    enum comm_kind kind;
    const void *send;
    void *receive;
    size_t n_bytes;
    int peer;
};

/* A call in flight: memory of the caller, content of the implementation. */
struct comm_request {
    struct comm_group *group; /* NULL: done */
    struct comm_call call;
    int phase;
    size_t offset;
    uint64_t number;
    void *handles[2];
};

/*
 * Start a call; does not wait for other ranks. All ranks of a group start its calls in the same
 * order, and each call is tested until it has completed before the next one is started (for sends
 * and receives: the next one to or from that peer). Returns 0, or -1 and ERR_PEER.
 */
int comm_start(struct comm_request *request, struct comm_group *group, const struct comm_call *call,
               struct err *err);

/*
 * Progress of a call: COMM_DONE when it has completed; COMM_WAITING while peers have not reached it
 * (the caller may sleep), COMM_MOVING while data are transferred (call again soon: some transports
 * progress only inside this call). -1 and ERR_PEER on failure.
 */
enum comm_progress { COMM_DONE, COMM_WAITING, COMM_MOVING };
int comm_test(struct comm_request *request, struct err *err);

/*
 * ---- calls that are enqueued on a device queue (a CUDA stream) ----
 *
 * They operate on memory of the device that the comm was created for, and only enqueue: a call
 * starts in queue order, and later work of the queue starts after it. All ranks enqueue the
 * collectives of a group in one order, on one queue; sends and receives between neighbours have a
 * channel per direction, and do not wait for each other unless their queues do.
 *
 * These calls may be made by another thread than the other calls of the comm.
 */
int comm_enqueues(const struct comm *comm); /* whether this comm supports them */

/* What a group is used for, by bits. Next and previous are cyclic in the group's order; sums are
 * comm_enqueue_sum's, and together. */
enum comm_use { COMM_TOGETHER = 1, COMM_TO_NEXT = 2, COMM_TO_PREVIOUS = 4, COMM_SUMS = 8 };

/*
 * Connect a group, once, before the first comm_enqueue over it. Collective over the group `all`, a
 * superset of the group: one call connects several disjoint groups, each with its own uses, and
 * ranks that are in none of them pass NULL. `all` itself need not be connected, and may be the same
 * as the group. Returns 0, or -1 and ERR_PEER.
 */
int comm_connect(struct comm_group *all, struct comm_group *group, unsigned uses, struct err *err);

/*
 * Undo comm_connect for a group, whose enqueued calls are done: the device memory of its
 * communicators is free again, and the group may be connected again. No-op where it is not
 * connected. Local.
 */
void comm_disconnect(struct comm_group *group);

/* queue: of the device (device/device.h). All kinds but COMM_BARRIER. 0, or -1 and ERR_PEER. */
int comm_enqueue(struct comm_group *group, const struct comm_call *call, int queue,
                 struct err *err);

/*
 * Reduction over ranks in an order, and with intermediate roundings, chosen by the library: of n
 * elements in all_reduce, whose send and receive are equal or don't overlap; in reduce_scatter
 * receive[i] of rank r = the sum of all send[r * n + i], and receive is the own part of send or
 * doesn't overlap it. Otherwise as comm_enqueue. dtype: DTYPE_F32 or DTYPE_BF16.
 */
struct comm_sum {
    bool is_scattered;
    enum dtype dtype;
    const void *send;
    void *receive;
    int64_t n;
};
int comm_sums(const struct comm *comm); /* whether this comm supports it */
int comm_enqueue_sum(struct comm_group *group, const struct comm_sum *sum, int queue,
                     struct err *err);

/* Check the enqueued calls for errors while waiting for them. 0, or -1 and ERR_PEER: then all calls
 * in flight were aborted, and their results are undefined. */
int comm_check(struct comm *comm, struct err *err);

/*
 * Agree on a value: *value becomes the maximum (COMM_MAX) or minimum over all ranks.
 * For "has any rank failed?" and "do all ranks stop after this step?".
 */
enum comm_choice { COMM_MAX, COMM_MIN };
int comm_agree(struct comm_group *group, enum comm_choice choice, int64_t *value, struct err *err);

/*
 * Whether all ranks of the group hold the same value. Returns 0 if so; else -1 and ERR_CONFIG
 * naming what and the first rank that differs from the group's rank 0 (the same text on all ranks).
 */
int comm_agree_equal(struct comm_group *group, const char *what, uint64_t value, struct err *err);

int comm_self_create(struct comm **comm, struct err *err);

/* The shared state of n rank threads, and the comm of rank `rank`. The hub outlives its comms. */
struct comm_hub;
int comm_hub_create(struct comm_hub **hub, int world_size, struct err *err);
void comm_hub_destroy(struct comm_hub *hub);
int comm_thread_create(struct comm **comm, struct comm_hub *hub, int rank, struct err *err);

/*
 * Ranks with a GPU each (device: device_cuda_open's): comm_enqueue is NCCL's; all the rest, over
 * host memory, is host's. Takes ownership of host, also on failure. ERR_DEVICE without
 * NCCL, ERR_FAILED in builds without CUDA. Local.
 */
struct device;
/* Multiprocessors (SMs) that an enqueued call may take from concurrent kernels. */
enum { COMM_BLOCKS_TOGETHER = 16, COMM_BLOCKS_PAIR = 4 };
int comm_nccl_is_there(void); /* whether libnccl can be loaded */
int comm_nccl_create(struct comm **comm, struct comm *host, struct device *device, struct err *err);

/* MPI_Init_thread (SERIALIZED) once a process; comm_destroy finalizes. ERR_FAILED in builds without
 * MPI. */
int comm_mpi_create(struct comm **comm, struct err *err);

/*
 * The identity of this rank, and the exchange of a few bytes between ranks before they are
 * connected, as provided by launch.h (PMIx). put, fence and get are called in this order, the fence
 * once and by all ranks; get also later, when a rank is first needed. It outlives the comm.
 */
struct comm_wireup {
    int world_rank, world_size, local_size; /* local: ranks on this machine */
    int (*put)(const char *key, const void *value, size_t n_bytes, struct err *err);
    int (*fence)(double timeout_seconds, struct err *err);
    int (*get)(const char *key, int rank, void *value, size_t *n_bytes, double timeout_seconds,
               struct err *err);
};

/*
 * Unix sockets within a machine, TCP between machines (on $LMTRAIN_COMM_INTERFACE, the name of an
 * interface or a network, ADDRESS/BITS; else on all that are up), connected on demand; both ends
 * prove that they know the job's random key, which rank 0 generates. Collective (the wireup's
 * fence). Returns 0, or -1 and ERR_PEER, ERR_CONFIG (the interface) or ERR_FAILED.
 */
int comm_tcp_create(struct comm **comm, const struct comm_wireup *wireup, struct err *err);

#endif
