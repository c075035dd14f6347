/*
 * comm.h - moving bytes between ranks
 *
 * A comm is one rank's end of a world of world_size ranks. A group is an ordered set of its ranks,
 * and all communication goes over groups. Calls block as NCCL's do: a collective returns when this
 * rank's part is done, a send may wait for its receive; so what passes here does not hang on a
 * cluster. All ranks of a group must make the same calls in the same order with equal sizes.
 *
 * Only bytes are moved: sums are built from moved data and adds in a fixed tree (reduce.h), because
 * their order is part of a run's numerics (design.md §5); a library adds them only where a job asks
 * for that (comm_enqueue_sum).
 *
 * One thread at a time may use a comm and its groups; in a training rank that is the comm thread
 * (worker.h), because bytes move only inside calls. It may have several calls under
 * way (comm_start, comm_test), one per group and, of sends and receives, one per peer and
 * direction: none of them waits for another.
 *
 * Implementations: comm_self (world size 1), comm_thread (ranks are threads of one process, for
 * tests), comm_mpi (ranks are processes under MPI), comm_tcp (ranks are processes, over sockets),
 * comm_nccl (one of these, and GPUs).
 */
#ifndef COMM_COMM_H
#define COMM_COMM_H

#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/err.h"

struct comm;
struct comm_group;

int comm_world_rank(const struct comm *comm);
int comm_world_size(const struct comm *comm);

/* Local: waits for nobody; groups go with their comm. */
void comm_destroy(struct comm *comm);

/*
 * The group of these world ranks, in this order (they must be distinct and contain the caller).
 * Collective over the group's ranks. channel separates traffic: two groups of equal ranks on
 * different channels never meet. Returns 0, or -1 and ERR_PEER.
 */
int comm_group_create(struct comm_group **group, struct comm *comm, const int *ranks, int n_ranks,
                      int channel, struct err *err);
int comm_group_rank(const struct comm_group *group);
int comm_group_size(const struct comm_group *group);

/*
 * All of the following: collective over the group (but send and receive), blocking; buffers of
 * different ranks and send and receive buffers don't overlap unless stated. They return 0, or -1
 * and ERR_PEER when a peer is gone or the library fails.
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
int comm_barrier(struct comm_group *group, struct err *err);

/* The same calls, begun and asked after. Fields that a kind doesn't need are ignored. */
enum comm_kind {
    COMM_ALL_GATHER,
    COMM_ALL_TO_ALL,
    COMM_BROADCAST, /* receive is the buffer, peer the root */
    COMM_SEND,
    COMM_RECEIVE,
    COMM_BARRIER,
};

struct comm_call {
    enum comm_kind kind;
    const void *send;
    void *receive;
    size_t n_bytes;
    int peer;
};

/* A call under way: the caller's memory, the implementation's content. */
struct comm_request {
    struct comm_group *group; /* NULL: done */
    struct comm_call call;
    int phase;
    size_t offset;
    uint64_t number;
    void *handles[2];
};

/*
 * Begin. Waits for nobody; calls over one group are begun in one order by all its ranks, and each
 * is tested until it is done before the next is begun (of sends and receives: the next to or from
 * that peer). Returns 0, or -1 and ERR_PEER.
 */
int comm_start(struct comm_request *request, struct comm_group *group, const struct comm_call *call,
               struct err *err);

/*
 * COMM_DONE when it is done. Else how soon it wants to be asked again: COMM_WAITING while peers are
 * not there (some time may be slept), COMM_MOVING while bytes flow, which on some transports they
 * do only inside this call. -1 and ERR_PEER on failure.
 */
enum comm_progress { COMM_DONE, COMM_WAITING, COMM_MOVING };
int comm_test(struct comm_request *request, struct err *err);

/*
 * ---- calls that a device's queue makes in its turn ----
 *
 * On memory of the device that the comm was made for, and without waiting: a call begins when the
 * queue comes to it, and what the queue is given later begins when it is done. Within a group calls
 * together come in one order on all ranks, on one queue; sends and receives of neighbours have a
 * channel each way, and no two of these wait for each other if their queues don't.
 *
 * Another thread may make these calls than the others of the comm.
 */
int comm_enqueues(const struct comm *comm); /* whether this comm can */

/* What a group is used for, by bits. Next and previous are cyclic in the group's order; sums are
 * comm_enqueue_sum's, and together. */
enum comm_use { COMM_TOGETHER = 1, COMM_TO_NEXT = 2, COMM_TO_PREVIOUS = 4, COMM_SUMS = 8 };

/*
 * Before the first comm_enqueue over the group, once. Collective over the group `all`, of whose ranks
 * the group is some: several groups without a rank in common are connected by one call, with uses of
 * their own, and ranks that are in none give NULL. `all` itself need not be connected, and may be the
 * group. Returns 0, or -1 and ERR_PEER.
 */
int comm_connect(struct comm_group *all, struct comm_group *group, unsigned uses, struct err *err);

/* queue: of the device (device/device.h). All kinds but COMM_BARRIER. 0, or -1 and ERR_PEER. */
int comm_enqueue(struct comm_group *group, const struct comm_call *call, int queue,
                 struct err *err);

/*
 * Sums over ranks in whatever order the library likes, rounded as often as it likes: of n elements in
 * all_reduce, whose send and receive are equal or don't overlap; in reduce_scatter receive[i] of rank
 * r = the sum of all send[r * n + i], and receive is the own part of send or doesn't overlap it.
 * Otherwise as comm_enqueue. dtype: DTYPE_F32 or DTYPE_BF16.
 */
struct comm_sum {
    int is_scattered;
    enum dtype dtype;
    const void *send;
    void *receive;
    int64_t n;
};
int comm_sums(const struct comm *comm); /* whether this comm can */
int comm_enqueue_sum(struct comm_group *group, const struct comm_sum *sum, int queue,
                     struct err *err);

/* Whether all goes well with what was enqueued: for who waits for it. 0, or -1 and ERR_PEER: then
 * what is under way was given up, and its results are worth nothing. */
int comm_check(struct comm *comm, struct err *err);

/*
 * Settle what may differ: *value becomes the largest (COMM_MAX) or smallest of all ranks' values.
 * For "did anybody fail?" and "do we all stop after this step?".
 */
enum comm_choice { COMM_MAX, COMM_MIN };
int comm_agree(struct comm_group *group, enum comm_choice choice, int64_t *value, struct err *err);

/*
 * Whether all ranks of the group hold the same value. Returns 0 if so; else -1 and ERR_CONFIG
 * naming what and the first rank that differs from the group's rank 0 (the same text on all ranks).
 */
int comm_agree_equal(struct comm_group *group, const char *what, uint64_t value, struct err *err);

int comm_self_create(struct comm **comm, struct err *err);

/* The meeting place of n threads, and the end of rank `rank` in it. The hub outlives its ends. */
struct comm_hub;
int comm_hub_create(struct comm_hub **hub, int world_size, struct err *err);
void comm_hub_destroy(struct comm_hub *hub);
int comm_thread_create(struct comm **comm, struct comm_hub *hub, int rank, struct err *err);

/*
 * Ranks with a GPU each (device: device_cuda_open's): comm_enqueue is NCCL's; all the rest, over
 * host memory, is host's. Takes host over; destroys it, also on failure. ERR_DEVICE where there is
 * no NCCL, ERR_FAILED in builds without CUDA. Local.
 */
struct device;
/* The multiprocessors that an enqueued call may take from the kernels beside it. */
enum { COMM_BLOCKS_TOGETHER = 16, COMM_BLOCKS_PAIR = 4 };
int comm_nccl_is_there(void); /* whether this process finds NCCL */
int comm_nccl_create(struct comm **comm, struct comm *host, struct device *device, struct err *err);

/* MPI_Init_thread (SERIALIZED) once a process; comm_destroy finalizes. ERR_FAILED in builds without
 * MPI. */
int comm_mpi_create(struct comm **comm, struct err *err);

/*
 * Who this rank is, and how ranks tell each other a few bytes before they are connected: what
 * launch.h has. put, fence and get are called in this order, the fence once and by all ranks; get also
 * later, when a rank is first needed. It outlives the comm.
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
 * interface or a network, ADDRESS/BITS; else on all that are up), connected as they are needed; both
 * ends prove that they have the job's key, which rank 0 draws. Collective: the wireup's fence. Returns 0,
 * or -1 and ERR_PEER, ERR_CONFIG (the interface) or ERR_FAILED.
 */
int comm_tcp_create(struct comm **comm, const struct comm_wireup *wireup, struct err *err);

#endif
