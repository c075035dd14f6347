/*
 * comm_mpi.c - ranks that are processes under MPI
 *
 * One communicator per group and channel; data-moving calls only. Every call first finds out that
 * its peers are there too, which may take long and sleep in between, and only then moves bytes,
 * which wants to be asked all the time: Open MPI moves them inside MPI_Test. The same meeting gives
 * sends the rendezvous that the contract asks for.
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
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "comm/pause.h"

enum {
    PIECE_BYTES = 1 << 28,
    LEAVE_SECONDS = 3,          /* how long comm_destroy waits for the others to come */
    LEAVE_TOGETHER_SECONDS = 6, /* and, when all have come, for all to know it */
    TAG_SENDER = 1,             /* "I would send", to who receives */
    TAG_RECEIVER = 2,
    TAG_DATA = 3,
    TAG_ROTATE = 4, /* data of a call of all, beside sends and receives */
    TAG_EXCHANGE = 5,
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
 * Until all of the group are here, asleep rather than in MPI, whose blocking calls poll: on fewer
 * cores than ranks those that came first would keep off the core whom they wait for. Dissemination:
 * in round k each hears, indirectly, from 2^(k+1) ranks before it.
 */
static int gather_ranks(struct comm_group *group)
{
    int n = group->size, status = MPI_SUCCESS;

    for (int distance = 1; distance < n && status == MPI_SUCCESS; distance *= 2) {
        int to = group->ranks[(group->rank + distance) % n];
        int from = group->ranks[(group->rank - distance + n) % n];
        MPI_Request requests[2];
        struct comm_pause pause;
        int done = 0;

        status = MPI_Irecv(NULL, 0, MPI_BYTE, from, group->channel, MPI_COMM_WORLD, &requests[0]);
        if (status == MPI_SUCCESS)
            status = MPI_Isend(NULL, 0, MPI_BYTE, to, group->channel, MPI_COMM_WORLD, &requests[1]);
        comm_pause_begin(&pause);
        while (status == MPI_SUCCESS &&
               (status = MPI_Testall(2, requests, &done, MPI_STATUSES_IGNORE)) == MPI_SUCCESS &&
               !done)
            comm_pause(&pause, COMM_WAITING);
    }
    return status;
}

static int mpi_group_open(struct comm_group *base, struct err *err)
{
    struct mpi_group *group = (struct mpi_group *)base;
    MPI_Group world, mine;
    int status;

    group->comm = MPI_COMM_NULL;
    if (check(mpi_comm(base), gather_ranks(base), "connecting to other ranks", err))
        return -1;
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

/* ---- calls ---- */

enum mpi_phase { PHASE_MEET, PHASE_MOVE };

_Static_assert(sizeof(MPI_Request) <= sizeof(void *), "a request's handle has room in comm's");

static void keep_requests(struct comm_request *request, const MPI_Request requests[2])
{
    for (int i = 0; i < 2; i++)
        memcpy(&request->handles[i], &requests[i], sizeof *requests);
}

/* MPI's status; *done when both are. */
static int test_requests(struct comm_request *request, int *done)
{
    MPI_Request requests[2];

    for (int i = 0; i < 2; i++)
        memcpy(&requests[i], &request->handles[i], sizeof *requests);
    int status = MPI_Testall(2, requests, done, MPI_STATUSES_IGNORE);
    keep_requests(request, requests);
    return status;
}

static bool is_pairwise(const struct comm_request *request)
{
    return request->call.kind == COMM_SEND || request->call.kind == COMM_RECEIVE;
}

/* Ask for all of the group, or for the peer with its half of a send and receive. */
static int meet(struct comm_request *request, struct err *err)
{
    MPI_Request requests[2] = { MPI_REQUEST_NULL, MPI_REQUEST_NULL };
    MPI_Comm comm = handle(request->group);
    int peer = request->call.peer, status;

    if (is_pairwise(request)) {
        /* A hello of its own each way: there may be a send and a receive between the same two. */
        bool is_send = request->call.kind == COMM_SEND;

        status = MPI_Irecv(NULL, 0, MPI_BYTE, peer, is_send ? TAG_RECEIVER : TAG_SENDER, comm,
                           &requests[0]);
        if (status == MPI_SUCCESS)
            status = MPI_Isend(NULL, 0, MPI_BYTE, peer, is_send ? TAG_SENDER : TAG_RECEIVER, comm,
                               &requests[1]);
    } else {
        status = MPI_Ibarrier(comm, &requests[0]);
    }
    request->phase = PHASE_MEET;
    keep_requests(request, requests);
    return check(mpi_comm(request->group), status, "connecting to other ranks", err);
}

/* One piece of every rank's part. Short ones need no datatype. */
static int move_parts(struct comm_request *request, size_t piece, MPI_Request *mpi)
{
    const struct comm_call *call = &request->call;
    const unsigned char *send = call->send;
    unsigned char *receive = call->receive;
    MPI_Comm comm = handle(request->group);
    int gathers = call->kind == COMM_ALL_GATHER, is_whole = piece == call->n_bytes;
    size_t own = call->n_bytes * (size_t)request->group->rank;
    const void *from = gathers && send == receive + own ? MPI_IN_PLACE : send + request->offset;
    MPI_Datatype type = MPI_BYTE;
    int n = (int)piece, status = MPI_SUCCESS;

    if (!is_whole) {
        status = strided_type(piece, call->n_bytes, &type);
        n = 1;
    }
    if (status != MPI_SUCCESS)
        return status;
    receive += request->offset;
    if (gathers)
        status = MPI_Iallgather(from, (int)piece, MPI_BYTE, receive, n, type, comm, mpi);
    else
        status = MPI_Ialltoall(from, n, type, receive, n, type, comm, mpi);
    if (!is_whole)
        MPI_Type_free(&type);
    return status;
}

/* One piece from a neighbour, and one to the other. */
static int move_rotated(const struct comm_request *request, size_t piece, MPI_Request mpi[2])
{
    const struct comm_call *call = &request->call;
    unsigned char *to = (unsigned char *)call->receive + request->offset;
    const unsigned char *from = (const unsigned char *)call->send + request->offset;
    MPI_Comm comm = handle(request->group);
    int status = MPI_Irecv(to, (int)piece, MPI_BYTE, group_rank_at(request->group, call->peer),
                           TAG_ROTATE, comm, &mpi[0]);

    if (status != MPI_SUCCESS)
        return status;
    return MPI_Isend(from, (int)piece, MPI_BYTE, group_rank_at(request->group, -call->peer),
                     TAG_ROTATE, comm, &mpi[1]);
}

/* A piece of n_bytes from the offset on, and how long it is. */
static size_t piece_at(const struct comm_request *request, size_t n_bytes)
{
    size_t most = mpi_comm(request->group)->piece_bytes;
    size_t left = n_bytes > request->offset ? n_bytes - request->offset : 0;

    return left < most ? left : most;
}

/* Whether pieces are left of an exchange, whose rounds are counted by `number`: in round k each
 * sends to the rank k further along, and receives from the one k before. */
static bool has_round(struct comm_request *request)
{
    const struct comm_group *group = request->group;
    const struct comm_part *parts = comm_parts_of(&request->call);

    while (request->number < (uint64_t)group->size) {
        int k = (int)request->number;

        if (k && (piece_at(request, parts[group_rank_at(group, k)].send_bytes) ||
                  piece_at(request, parts[group_rank_at(group, -k)].receive_bytes)))
            return true;
        request->number++;
        request->offset = 0;
    }
    return false;
}

static int move_round(const struct comm_request *request, MPI_Request mpi[2])
{
    const struct comm_group *group = request->group;
    int k = (int)request->number, to = group_rank_at(group, k), from = group_rank_at(group, -k);
    const struct comm_part *ours = &comm_parts_of(&request->call)[to],
                           *theirs = &comm_parts_of(&request->call)[from];
    size_t sent = piece_at(request, ours->send_bytes);
    size_t received = piece_at(request, theirs->receive_bytes);
    int status = MPI_SUCCESS;

    if (received)
        status = MPI_Irecv((unsigned char *)theirs->receive + request->offset, (int)received,
                           MPI_BYTE, from, TAG_EXCHANGE, handle(group), &mpi[0]);
    if (sent && status == MPI_SUCCESS)
        status = MPI_Isend((const unsigned char *)ours->send + request->offset, (int)sent, MPI_BYTE,
                           to, TAG_EXCHANGE, handle(group), &mpi[1]);
    return status;
}

/* The next piece begins to move. */
static int move(struct comm_request *request, struct err *err)
{
    const struct comm_call *call = &request->call;
    size_t left = call->n_bytes - request->offset, most = mpi_comm(request->group)->piece_bytes;
    size_t piece = left < most ? left : most;
    MPI_Request requests[2] = { MPI_REQUEST_NULL, MPI_REQUEST_NULL };
    MPI_Comm comm = handle(request->group);
    unsigned char *to = call->receive;
    const unsigned char *from = call->send;
    int status = MPI_SUCCESS;

    to = to ? to + request->offset : NULL;
    from = from ? from + request->offset : NULL;
    if (call->kind == COMM_SEND)
        status = MPI_Isend(from, (int)piece, MPI_BYTE, call->peer, TAG_DATA, comm, requests);
    else if (call->kind == COMM_RECEIVE)
        status = MPI_Irecv(to, (int)piece, MPI_BYTE, call->peer, TAG_DATA, comm, requests);
    else if (call->kind == COMM_BROADCAST)
        status = MPI_Ibcast(to, (int)piece, MPI_BYTE, call->peer, comm, requests);
    else if (call->kind == COMM_ROTATE)
        status = move_rotated(request, piece, requests);
    else if (call->kind == COMM_EXCHANGE)
        status = move_round(request, requests);
    else
        status = move_parts(request, piece, requests);
    request->phase = PHASE_MOVE;
    request->offset += piece;
    keep_requests(request, requests);
    return check(mpi_comm(request->group), status, "transferring data between ranks", err);
}

static bool has_moved(struct comm_request *request)
{
    if (request->call.kind == COMM_EXCHANGE)
        return !has_round(request);
    return request->call.kind == COMM_BARRIER || request->offset == request->call.n_bytes;
}

static int mpi_test(struct comm_request *request, struct err *err)
{
    int done, status = test_requests(request, &done);

    if (check(mpi_comm(request->group), status, "MPI_Testall", err))
        return -1;
    if (!done)
        return request->phase == PHASE_MEET ? COMM_WAITING : COMM_MOVING;
    if (has_moved(request))
        return COMM_DONE;
    return move(request, err) ? -1 : COMM_MOVING;
}

/* Whether all ranks came here within this time. */
static int all_come(double seconds)
{
    double deadline = clock_seconds() + seconds;
    struct comm_pause pause;
    MPI_Request request;
    int done = 0;

    if (MPI_Ibarrier(MPI_COMM_WORLD, &request) != MPI_SUCCESS)
        return 0;
    comm_pause_begin(&pause);
    while (MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done &&
           clock_seconds() < deadline)
        comm_pause(&pause, COMM_WAITING);
    return done;
}

/*
 * MPI_Finalize waits for all ranks, a comm's end must not: so come together first, with a deadline.
 * A rank that is alone in leaving (it failed, or the others did) skips MPI's end; its process ends
 * soon. One barrier is not enough: a rank that is late, after the others' deadline, still finds
 * that they entered it. Only a rank that finds all in the second one as well knows that none gave
 * up.
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
    .start = meet,
    .test = mpi_test,
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
        err_set(err, ERR_FAILED, "this MPI allows calls only from the main thread");
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
                   "this lmtrain was built without MPI (hint: LMTRAIN_COMM=tcp, or make MPI=1)");
}

int comm_mpi_create(struct comm **comm, struct err *err)
{
    return comm_mpi_create_pieces(comm, 1, err);
}

#endif
