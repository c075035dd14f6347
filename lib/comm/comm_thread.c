/*
 * comm_thread.c - ranks that are threads of one process
 *
 * A room is where the ranks of one group meet: they leave their buffer's address, and when all are
 * there copy what they need straight out of each other's buffers, and are done when all have
 * copied. A send leaves its buffer in the pair's mailbox and is done when the receiver took it, so
 * that a program that counts on buffering hangs here as it would under NCCL. Unequal calls are bugs
 * and are CHECKed.
 *
 * A collective is two meetings of the room, counted by n_meetings (of ranks 0 and 1, call number
 * 6):
 *   1. rank 0  leaves its addresses, n_arrived = 1                               (meeting 6)
 *   2. rank 1  leaves its addresses, n_arrived = 2: all are here, n_meetings = 7
 *   3. both    see n_meetings > 6, and copy out of each other's buffers without the lock
 *   4. rank 1  has copied and arrives again                                      (meeting 7)
 *   5. rank 0  has copied, arrives, n_meetings = 8: only now may either use its buffers again
 * Rank 1 may come with its next call between 5 and the moment that rank 0 sees 8: that is meeting
 * 8, and overwrites addresses that no rank reads any more.
 *
 * An end that is destroyed while others wait for it fails them with ERR_PEER and breaks the room.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm_impl.h"

enum mailbox_state { MAILBOX_EMPTY, MAILBOX_FULL, MAILBOX_TAKEN };

struct mailbox {
    enum mailbox_state state;
    const void *buffer;
    size_t n_bytes;
};

struct room {
    struct room *next;
    int size, channel;
    int *ranks;
    int nth;             /* groups of equal ranks and channel are told apart by their order */
    int n_arrived;       /* at the meeting now going on */
    uint64_t n_meetings; /* that all have come to */
    int broken;
    struct comm_call *visits;  /* size: what each rank brings */
    struct mailbox *mailboxes; /* size * size: from * size + to */
    pthread_cond_t changed;
};

struct comm_hub {
    int world_size;
    pthread_mutex_t lock; /* guards all of the rooms but the buffers they point to */
    struct room *rooms;
    unsigned char *left; /* world_size: this end is gone */
};

struct thread_comm {
    struct comm base;
    struct comm_hub *hub;
};

struct thread_group {
    struct comm_group base;
    struct comm_hub *hub;
    struct room *room;
};

static struct thread_group *thread_group(struct comm_group *group)
{
    return (struct thread_group *)group;
}

int comm_hub_create(struct comm_hub **hub, int world_size, struct err *err)
{
    struct comm_hub *made = calloc(1, sizeof *made);

    CHECK(world_size > 0);
    if (!made || !(made->left = calloc((size_t)world_size, 1))) {
        free(made);
        return err_set(err, ERR_DEVICE, "no memory for a hub of %d ranks", world_size);
    }
    made->world_size = world_size;
    pthread_mutex_init(&made->lock, NULL);
    *hub = made;
    return 0;
}

void comm_hub_destroy(struct comm_hub *hub)
{
    if (!hub)
        return;
    while (hub->rooms) {
        struct room *room = hub->rooms;

        hub->rooms = room->next;
        pthread_cond_destroy(&room->changed);
        free(room->mailboxes);
        free(room->visits);
        free(room->ranks);
        free(room);
    }
    pthread_mutex_destroy(&hub->lock);
    free(hub->left);
    free(hub);
}

static int same_ranks(const struct comm_group *group, int size, int channel, const int *ranks)
{
    return group->size == size && group->channel == channel &&
           !memcmp(group->ranks, ranks, sizeof *ranks * (size_t)size);
}

/* Which of this end's groups with equal ranks and channel this one is. */
static int count_equal_groups(const struct comm_group *group)
{
    int n = 0;

    for (const struct comm_group *other = group->comm->groups; other; other = other->next)
        n += same_ranks(group, other->size, other->channel, other->ranks);
    return n;
}

static struct room *room_create(const struct comm_group *group, int nth)
{
    size_t size = (size_t)group->size;
    struct room *room = calloc(1, sizeof *room);

    CHECK(room);
    room->size = group->size;
    room->channel = group->channel;
    room->nth = nth;
    room->ranks = malloc(sizeof *room->ranks * size);
    room->visits = calloc(size, sizeof *room->visits);
    room->mailboxes = calloc(size * size, sizeof *room->mailboxes);
    CHECK(room->ranks);
    CHECK(room->visits);
    CHECK(room->mailboxes);
    memcpy(room->ranks, group->ranks, sizeof *room->ranks * size);
    pthread_cond_init(&room->changed, NULL);
    return room;
}

/* The first end of the room that is gone, as a world rank, or -1. */
static int first_left(const struct comm_hub *hub, const struct room *room)
{
    for (int i = 0; i < room->size; i++)
        if (hub->left[room->ranks[i]])
            return room->ranks[i];
    return -1;
}

/*
 * Fail, for good and for all in the room, if gone (the first of those needed that has left) is a
 * rank. Lock held.
 */
static int check_room(struct comm_hub *hub, struct room *room, int gone, struct err *err)
{
    if (gone < 0 && room->broken)
        gone = first_left(hub, room);
    if (gone < 0)
        return 0;
    room->broken = 1;
    pthread_cond_broadcast(&room->changed);
    return err_set(err, ERR_PEER, "rank %d has left", gone);
}

/*
 * Come to the next meeting: its number, which room->n_meetings exceeds when all have come. visit,
 * if any, is left for the others to see. Lock held.
 */
static int arrive(struct thread_group *group, const struct comm_call *visit, uint64_t *number,
                  struct err *err)
{
    struct room *room = group->room;

    /* Before being counted: a count that was left behind by a failed meeting must not complete one.
     */
    if (check_room(group->hub, room, first_left(group->hub, room), err))
        return -1;
    if (visit)
        room->visits[group->base.rank] = *visit;
    *number = room->n_meetings;
    if (++room->n_arrived == room->size) {
        room->n_arrived = 0;
        room->n_meetings++;
        pthread_cond_broadcast(&room->changed);
    }
    return 0;
}

/* 1 when all have come; who came, did his part and left since is no failure. Lock held. */
static int have_met(struct thread_group *group, uint64_t number, struct err *err)
{
    if (group->room->n_meetings > number)
        return 1;
    return check_room(group->hub, group->room, first_left(group->hub, group->room), err);
}

static int arrive_and_wait(struct thread_group *group, struct err *err)
{
    uint64_t number;
    int met;

    if (arrive(group, NULL, &number, err))
        return -1;
    while (!(met = have_met(group, number, err)))
        pthread_cond_wait(&group->room->changed, &group->hub->lock);
    return met < 0 ? -1 : 0;
}

static int thread_group_open(struct comm_group *base, struct err *err)
{
    struct thread_group *group = thread_group(base);
    struct comm_hub *hub = ((struct thread_comm *)base->comm)->hub;
    int nth = count_equal_groups(base);

    group->hub = hub;
    pthread_mutex_lock(&hub->lock);
    struct room *room = hub->rooms;
    while (room && !(room->nth == nth && same_ranks(base, room->size, room->channel, room->ranks)))
        room = room->next;
    if (!room) {
        room = room_create(base, nth);
        room->next = hub->rooms;
        hub->rooms = room;
    }
    group->room = room;
    int status = arrive_and_wait(group, err);
    pthread_mutex_unlock(&hub->lock);
    return status;
}

static void thread_destroy(struct comm *base)
{
    struct thread_comm *comm = (struct thread_comm *)base;
    struct comm_hub *hub = comm->hub;

    pthread_mutex_lock(&hub->lock);
    hub->left[base->world_rank] = 1;
    for (struct room *room = hub->rooms; room; room = room->next)
        pthread_cond_broadcast(&room->changed);
    pthread_mutex_unlock(&hub->lock);
    free(comm);
}

/* ---- collectives ---- */

enum meeting_phase { PHASE_MEET, PHASE_LEAVE };

static void check_visits(const struct thread_group *group, const struct comm_call *own)
{
    for (int i = 0; i < group->base.size; i++) {
        const struct comm_call *other = &group->room->visits[i];

        CHECK(other->kind == own->kind);
        CHECK(other->n_bytes == own->n_bytes);
        if (own->kind == COMM_BROADCAST || own->kind == COMM_ROTATE)
            CHECK(other->peer == own->peer);
    }
}

/* Of an exchange. */
static void copy_parts(const struct thread_group *group, const struct comm_call *call)
{
    for (int i = 0; i < group->base.size; i++) {
        const struct comm_part *own = &comm_parts_of(call)[i];
        const struct comm_part *theirs = &comm_parts_of(&group->room->visits[i])[group->base.rank];

        if (i == group->base.rank)
            continue;
        CHECK(own->receive_bytes == theirs->send_bytes);
        if (own->receive_bytes)
            memcpy(own->receive, theirs->send, own->receive_bytes);
    }
}

/* Take what is ours out of the others' buffers. */
static void copy(const struct thread_group *group, const struct comm_call *call)
{
    const struct comm_call *visits = group->room->visits;
    size_t n_bytes = call->n_bytes, own = n_bytes * (size_t)group->base.rank;
    unsigned char *to = call->receive;

    if (call->kind == COMM_BROADCAST && call->peer != group->base.rank)
        memcpy(to, visits[call->peer].receive, n_bytes);
    if (call->kind == COMM_ROTATE)
        memcpy(to, visits[group_rank_at(&group->base, call->peer)].send, n_bytes);
    if (call->kind == COMM_EXCHANGE)
        copy_parts(group, call);
    if (call->kind != COMM_ALL_GATHER && call->kind != COMM_ALL_TO_ALL)
        return;
    for (int i = 0; i < group->base.size; i++, to += n_bytes) {
        const unsigned char *from = visits[i].send;

        if (call->kind == COMM_ALL_TO_ALL)
            from += own;
        if (from != to)
            memcpy(to, from, n_bytes);
    }
}

static int test_collective(struct thread_group *group, struct comm_request *request,
                           struct err *err)
{
    pthread_mutex_t *lock = &group->hub->lock;

    pthread_mutex_lock(lock);
    int met = have_met(group, request->number, err);
    pthread_mutex_unlock(lock);
    if (met <= 0)
        return met < 0 ? -1 : COMM_WAITING;
    if (request->phase == PHASE_LEAVE)
        return COMM_DONE;
    check_visits(group, &request->call);
    copy(group, &request->call);
    request->phase = PHASE_LEAVE;
    pthread_mutex_lock(lock);
    int status = arrive(group, NULL, &request->number, err);
    int all_left = !status && group->room->n_meetings > request->number;
    pthread_mutex_unlock(lock);
    if (status)
        return -1;
    return all_left ? COMM_DONE : COMM_WAITING;
}

/* ---- sends and receives ---- */

static struct mailbox *mailbox_of(struct thread_group *group, const struct comm_call *call)
{
    int from = call->kind == COMM_SEND ? group->base.rank : call->peer;
    int to = call->kind == COMM_SEND ? call->peer : group->base.rank;

    return &group->room->mailboxes[from * group->base.size + to];
}

/* Lock held. */
static int test_pair(struct thread_group *group, const struct comm_call *call, struct err *err)
{
    struct mailbox *mailbox = mailbox_of(group, call);
    int is_send = call->kind == COMM_SEND, peer = group->base.ranks[call->peer];

    if (mailbox->state == (is_send ? MAILBOX_TAKEN : MAILBOX_FULL)) {
        if (!is_send) {
            /* Under the lock: a sender that fails in a broken room takes its buffer back. */
            CHECK(mailbox->n_bytes == call->n_bytes);
            memcpy(call->receive, mailbox->buffer, call->n_bytes);
        }
        mailbox->state = is_send ? MAILBOX_EMPTY : MAILBOX_TAKEN;
        return COMM_DONE;
    }
    if (!check_room(group->hub, group->room, group->hub->left[peer] ? peer : -1, err))
        return COMM_WAITING;
    if (is_send)
        mailbox->state = MAILBOX_EMPTY;
    return -1;
}

static int thread_start(struct comm_request *request, struct err *err)
{
    struct thread_group *group = thread_group(request->group);
    const struct comm_call *call = &request->call;
    int status = 0;

    pthread_mutex_lock(&group->hub->lock);
    if (call->kind == COMM_SEND)
        *mailbox_of(group, call) = (struct mailbox){ MAILBOX_FULL, call->send, call->n_bytes };
    else if (call->kind != COMM_RECEIVE)
        status = arrive(group, call, &request->number, err);
    pthread_mutex_unlock(&group->hub->lock);
    return status;
}

static int thread_test(struct comm_request *request, struct err *err)
{
    struct thread_group *group = thread_group(request->group);

    if (request->call.kind != COMM_SEND && request->call.kind != COMM_RECEIVE)
        return test_collective(group, request, err);
    pthread_mutex_lock(&group->hub->lock);
    int progress = test_pair(group, &request->call, err);
    pthread_mutex_unlock(&group->hub->lock);
    return progress;
}

static const struct comm_ops thread_ops = {
    .group_bytes = sizeof(struct thread_group),
    .group_open = thread_group_open,
    .destroy = thread_destroy,
    .start = thread_start,
    .test = thread_test,
};

int comm_thread_create(struct comm **comm, struct comm_hub *hub, int rank, struct err *err)
{
    struct thread_comm *made = calloc(1, sizeof *made);

    CHECK(rank >= 0);
    CHECK(rank < hub->world_size);
    if (!made)
        return err_set(err, ERR_DEVICE, "no memory for a communicator");
    made->base.ops = &thread_ops;
    made->base.world_rank = rank;
    made->base.world_size = hub->world_size;
    made->hub = hub;
    *comm = &made->base;
    return 0;
}
