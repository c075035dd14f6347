/*
 * comm_mpi.c - ranks that are processes under MPI
 *
 * One communicator per group and channel; data-moving calls only. Every call first waits until its
 * peers are there too, asking MPI now and then and sleeping in between, and only then makes the
 * blocking call: Open MPI's own waiting spins, and on CPUs the cores that the comm threads would
 * burn are the ones that compute. The same wait gives sends the rendezvous that the contract asks
 * for.
 *
 * Counts are ints in MPI, so long transfers go in pieces; a gather's pieces land at stride n_bytes
 * by a datatype of that extent.
 */
#ifndef LMTRAIN_MPI
#define LMTRAIN_MPI 1
#endif

#include "comm/comm_impl.h"

#if LMTRAIN_MPI

#include <mpi.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/num.h"

enum {
    PIECE_BYTES = 1 << 28,
    POLLS_BEFORE_SLEEP = 50, /* some ten microseconds */
    SLEEP_MIN_NS = 10 * 1000,
    SLEEP_MAX_NS = 200 * 1000,
    LEAVE_SECONDS = 3,          /* how long comm_destroy waits for the others to come */
    LEAVE_TOGETHER_SECONDS = 6, /* and, when all have come, for all to know it */
    TAG_HELLO = 1,
    TAG_DATA = 2,
};

struct mpi_comm {
    struct comm base;
    size_t piece_bytes;
    int failed; /* some call failed: others may be gone, so don't wait for them at the end */
};

struct mpi_group {
    struct comm_group base;
    MPI_Comm comm; /* MPI_COMM_NULL until opened */
};

static struct mpi_comm *mpi_comm(const struct comm_group *group)
{
    return (struct mpi_comm *)group->comm;
}

static MPI_Comm handle(const struct comm_group *group)
{
    return ((const struct mpi_group *)group)->comm;
}

/* 0, or -1 with MPI's words for status. */
static int check(struct mpi_comm *comm, int status, const char *call, struct err *err)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;

    if (status == MPI_SUCCESS)
        return 0;
    comm->failed = 1;
    MPI_Error_string(status, text, &length);
    return err_set(err, ERR_PEER, "%s: %s", call, text);
}

/*
 * Wait without burning the core: some quick polls for peers that are nearly there, then sleeps that
 * grow. Gives MPI's status; *done tells whether it was in time (deadline 0: wait for ever).
 */
static int wait_passively(MPI_Request *requests, int n, double deadline, int *done)
{
    struct timespec pause = { 0, SLEEP_MIN_NS };

    for (int polls = 0;; polls++) {
        int status = MPI_Testall(n, requests, done, MPI_STATUSES_IGNORE);

        if (status != MPI_SUCCESS || *done)
            return status;
        if (polls < POLLS_BEFORE_SLEEP) {
            sched_yield();
            continue;
        }
        if (deadline > 0 && clock_seconds() > deadline)
            return MPI_SUCCESS;
        nanosleep(&pause, NULL);
        pause.tv_nsec = pause.tv_nsec * 5 / 4;
        if (pause.tv_nsec > SLEEP_MAX_NS)
            pause.tv_nsec = SLEEP_MAX_NS;
    }
}

/* Until all of the group are here. */
static int gather_all(struct comm_group *group, struct err *err)
{
    MPI_Request request;
    int done;
    int status = MPI_Ibarrier(handle(group), &request);

    if (status == MPI_SUCCESS)
        status = wait_passively(&request, 1, 0, &done);
    return check(mpi_comm(group), status, "MPI_Ibarrier", err);
}

/* Until the peer is here with its half of a send and receive. */
static int meet_peer(struct comm_group *group, int peer, struct err *err)
{
    MPI_Request requests[2];
    int done;
    int status = MPI_Irecv(NULL, 0, MPI_BYTE, peer, TAG_HELLO, handle(group), &requests[0]);

    if (status == MPI_SUCCESS)
        status = MPI_Isend(NULL, 0, MPI_BYTE, peer, TAG_HELLO, handle(group), &requests[1]);
    if (status == MPI_SUCCESS)
        status = wait_passively(requests, 2, 0, &done);
    return check(mpi_comm(group), status, "waiting for a peer", err);
}

static size_t piece_at(const struct comm_group *group, size_t offset, size_t n_bytes)
{
    size_t piece = mpi_comm(group)->piece_bytes;

    return n_bytes - offset < piece ? n_bytes - offset : piece;
}

static int mpi_group_open(struct comm_group *base, struct err *err)
{
    struct mpi_group *group = (struct mpi_group *)base;
    MPI_Group world, mine;
    int status;

    group->comm = MPI_COMM_NULL;
    status = MPI_Comm_group(MPI_COMM_WORLD, &world);
    if (check(mpi_comm(base), status, "MPI_Comm_group", err))
        return -1;
    status = MPI_Group_incl(world, base->size, base->ranks, &mine);
    MPI_Group_free(&world);
    if (check(mpi_comm(base), status, "MPI_Group_incl", err))
        return -1;
    status = MPI_Comm_create_group(MPI_COMM_WORLD, mine, base->channel, &group->comm);
    MPI_Group_free(&mine);
    if (check(mpi_comm(base), status, "MPI_Comm_create_group", err))
        return -1;
    status = MPI_Comm_set_errhandler(group->comm, MPI_ERRORS_RETURN);
    return check(mpi_comm(base), status, "MPI_Comm_set_errhandler", err);
}

/*
 * A datatype of n_bytes bytes, one of which starts every stride bytes.
 */
static int strided_type(size_t n_bytes, size_t stride, MPI_Datatype *type)
{
    MPI_Datatype bytes;
    int status = MPI_Type_contiguous((int)n_bytes, MPI_BYTE, &bytes);

    if (status != MPI_SUCCESS)
        return status;
    status = MPI_Type_create_resized(bytes, 0, (MPI_Aint)stride, type);
    MPI_Type_free(&bytes);
    return status == MPI_SUCCESS ? MPI_Type_commit(type) : status;
}

static int gather_piece(struct comm_group *group, const void *send, void *receive, size_t n_bytes,
                        size_t stride)
{
    MPI_Datatype type;
    int status = strided_type(n_bytes, stride, &type);

    if (status != MPI_SUCCESS)
        return status;
    status = MPI_Allgather(send, (int)n_bytes, MPI_BYTE, receive, 1, type, handle(group));
    MPI_Type_free(&type);
    return status;
}

static int mpi_all_gather(struct comm_group *group, const void *send, void *receive, size_t n_bytes,
                          struct err *err)
{
    const unsigned char *from = send;
    unsigned char *to = receive;
    int in_place = from == to + n_bytes * (size_t)group->rank;
    int status = MPI_SUCCESS;

    if (gather_all(group, err))
        return -1;
    if (n_bytes <= mpi_comm(group)->piece_bytes) {
        status = MPI_Allgather(in_place ? MPI_IN_PLACE : send, (int)n_bytes, MPI_BYTE, receive,
                               (int)n_bytes, MPI_BYTE, handle(group));
        return check(mpi_comm(group), status, "MPI_Allgather", err);
    }
    for (size_t offset = 0; offset < n_bytes && status == MPI_SUCCESS;) {
        size_t piece = piece_at(group, offset, n_bytes);

        status = gather_piece(group, in_place ? MPI_IN_PLACE : from + offset, to + offset, piece,
                              n_bytes);
        offset += piece;
    }
    return check(mpi_comm(group), status, "MPI_Allgather", err);
}

static int exchange_piece(struct comm_group *group, const void *send, void *receive, size_t n_bytes,
                          size_t stride)
{
    MPI_Datatype type;
    int status = strided_type(n_bytes, stride, &type);

    if (status != MPI_SUCCESS)
        return status;
    status = MPI_Alltoall(send, 1, type, receive, 1, type, handle(group));
    MPI_Type_free(&type);
    return status;
}

static int mpi_all_to_all(struct comm_group *group, const void *send, void *receive, size_t n_bytes,
                          struct err *err)
{
    const unsigned char *from = send;
    unsigned char *to = receive;
    int status = MPI_SUCCESS;

    if (gather_all(group, err))
        return -1;
    if (n_bytes <= mpi_comm(group)->piece_bytes) {
        status = MPI_Alltoall(send, (int)n_bytes, MPI_BYTE, receive, (int)n_bytes, MPI_BYTE,
                              handle(group));
        return check(mpi_comm(group), status, "MPI_Alltoall", err);
    }
    for (size_t offset = 0; offset < n_bytes && status == MPI_SUCCESS;) {
        size_t piece = piece_at(group, offset, n_bytes);

        status = exchange_piece(group, from + offset, to + offset, piece, n_bytes);
        offset += piece;
    }
    return check(mpi_comm(group), status, "MPI_Alltoall", err);
}

static int mpi_broadcast(struct comm_group *group, void *buffer, size_t n_bytes, int root,
                         struct err *err)
{
    int status = MPI_SUCCESS;

    if (gather_all(group, err))
        return -1;
    for (size_t offset = 0; offset < n_bytes && status == MPI_SUCCESS;) {
        size_t piece = piece_at(group, offset, n_bytes);

        status =
            MPI_Bcast((unsigned char *)buffer + offset, (int)piece, MPI_BYTE, root, handle(group));
        offset += piece;
    }
    return check(mpi_comm(group), status, "MPI_Bcast", err);
}

static int mpi_send(struct comm_group *group, const void *buffer, size_t n_bytes, int to,
                    struct err *err)
{
    int status = MPI_SUCCESS;

    if (meet_peer(group, to, err))
        return -1;
    for (size_t offset = 0; offset < n_bytes && status == MPI_SUCCESS;) {
        size_t piece = piece_at(group, offset, n_bytes);

        status = MPI_Send((const unsigned char *)buffer + offset, (int)piece, MPI_BYTE, to,
                          TAG_DATA, handle(group));
        offset += piece;
    }
    return check(mpi_comm(group), status, "MPI_Send", err);
}

static int mpi_receive(struct comm_group *group, void *buffer, size_t n_bytes, int from,
                       struct err *err)
{
    int status = MPI_SUCCESS;

    if (meet_peer(group, from, err))
        return -1;
    for (size_t offset = 0; offset < n_bytes && status == MPI_SUCCESS;) {
        size_t piece = piece_at(group, offset, n_bytes);

        status = MPI_Recv((unsigned char *)buffer + offset, (int)piece, MPI_BYTE, from, TAG_DATA,
                          handle(group), MPI_STATUS_IGNORE);
        offset += piece;
    }
    return check(mpi_comm(group), status, "MPI_Recv", err);
}

static int mpi_barrier(struct comm_group *group, struct err *err)
{
    return gather_all(group, err);
}

/* Whether all ranks came here within this time. */
static int all_come(double seconds)
{
    MPI_Request request;
    int done = 0;

    return MPI_Ibarrier(MPI_COMM_WORLD, &request) == MPI_SUCCESS &&
           wait_passively(&request, 1, clock_seconds() + seconds, &done) == MPI_SUCCESS && done;
}

/*
 * MPI_Finalize waits for all ranks, a comm's end must not: so come together first, with a deadline.
 * A rank that is alone in leaving (it failed, or the others did) skips MPI's end; its process ends
 * soon. One barrier is not enough: whoever comes late, after the others' deadline, still finds that
 * they entered it. Only who finds all in the second one as well knows that nobody gave up.
 */
static void mpi_destroy(struct comm *base)
{
    struct mpi_comm *comm = (struct mpi_comm *)base;

    if (!comm->failed && all_come(LEAVE_SECONDS) && all_come(LEAVE_TOGETHER_SECONDS))
        MPI_Finalize();
    free(comm);
}

static const struct comm_ops mpi_ops = {
    .group_bytes = sizeof(struct mpi_group),
    .group_open =
        mpi_group_open, /* no close: MPI_Comm_free is collective, MPI_Finalize frees all */
    .destroy = mpi_destroy,
    .all_gather = mpi_all_gather,
    .all_to_all = mpi_all_to_all,
    .broadcast = mpi_broadcast,
    .send = mpi_send,
    .receive = mpi_receive,
    .barrier = mpi_barrier,
};

int comm_mpi_create_pieces(struct comm **comm, size_t piece_bytes, struct err *err)
{
    struct mpi_comm *made = calloc(1, sizeof *made);
    int provided = MPI_THREAD_SINGLE, initialized = 0;

    CHECK(piece_bytes > 0);
    CHECK(piece_bytes <= PIECE_BYTES);
    if (!made)
        return err_set(err, ERR_DEVICE, "no memory for a communicator");
    made->base.ops = &mpi_ops;
    made->piece_bytes = piece_bytes;
    MPI_Initialized(&initialized);
    CHECK(!initialized);
    if (check(made, MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided),
              "MPI_Init_thread", err))
        goto failed;
    if (provided < MPI_THREAD_SERIALIZED) {
        err_set(err, ERR_FAILED, "this MPI lets only the main thread make calls");
        goto failed;
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &made->base.world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &made->base.world_size);
    *comm = &made->base;
    return 0;
failed:
    free(made);
    return -1;
}

int comm_mpi_create(struct comm **comm, struct err *err)
{
    return comm_mpi_create_pieces(comm, PIECE_BYTES, err);
}

#else

int comm_mpi_create_pieces(struct comm **comm, size_t piece_bytes, struct err *err)
{
    (void)comm;
    (void)piece_bytes;
    return err_set(err, ERR_FAILED,
                   "built without MPI: more than one rank needs it "
                   "(hint: make MPI=1)");
}

int comm_mpi_create(struct comm **comm, struct err *err)
{
    return comm_mpi_create_pieces(comm, 1, err);
}

#endif
