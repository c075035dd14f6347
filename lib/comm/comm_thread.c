/*
 * comm_thread.c - ranks that are threads of one process
 *
 * A room is where the ranks of one group meet: they leave their buffer's address, wait until all
 * are there, copy what they need straight out of each other's buffers, and wait until all have
 * copied. A send leaves its buffer in the pair's mailbox and waits until the receiver took it, so
 * that a program that counts on buffering hangs here as it would under NCCL. Unequal calls are bugs
 * and are CHECKed.
 *
 * An end that is destroyed while others wait for it fails them with ERR_PEER and breaks the room.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm_impl.h"

enum call { CALL_BARRIER, CALL_ALL_GATHER, CALL_ALL_TO_ALL, CALL_BROADCAST };

/* What a rank brings to a collective. */
struct visit {
    enum call call;
    const void *send;
    size_t n_bytes;
    int root;
};

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
    struct visit *visits;      /* size */
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
 * Sleep until something changes in the room. Called with the lock held and in a loop over the
 * condition waited for, so somebody who came, did his part and left is no failure.
 */
static int room_wait(struct comm_hub *hub, struct room *room, int gone, struct err *err)
{
    if (check_room(hub, room, gone, err))
        return -1;
    pthread_cond_wait(&room->changed, &hub->lock);
    return 0;
}

/* Come together; visit, if any, is left for the others to see. Lock held. */
static int meet(struct thread_group *group, const struct visit *visit, struct err *err)
{
    struct room *room = group->room;
    uint64_t meeting = room->n_meetings;

    /* Before being counted: a count that was left behind by a failed meeting must not complete one.
     */
    if (check_room(group->hub, room, first_left(group->hub, room), err))
        return -1;
    if (visit)
        room->visits[group->base.rank] = *visit;
    if (++room->n_arrived == room->size) {
        room->n_arrived = 0;
        room->n_meetings++;
        pthread_cond_broadcast(&room->changed);
        return 0;
    }
    while (room->n_meetings == meeting)
        if (room_wait(group->hub, room, first_left(group->hub, room), err))
            return -1;
    return 0;
}

static int meet_locked(struct thread_group *group, const struct visit *visit, struct err *err)
{
    pthread_mutex_lock(&group->hub->lock);
    int status = meet(group, visit, err);
    pthread_mutex_unlock(&group->hub->lock);
    return status;
}

/* Enter a collective: on return every rank's visit is there, until leave. */
static int enter(struct thread_group *group, struct visit visit, struct err *err)
{
    if (meet_locked(group, &visit, err))
        return -1;
    for (int i = 0; i < group->base.size; i++) {
        const struct visit *other = &group->room->visits[i];

        CHECK(other->call == visit.call);
        CHECK(other->n_bytes == visit.n_bytes);
        CHECK(other->root == visit.root);
    }
    return 0;
}

static int leave(struct thread_group *group, struct err *err)
{
    return meet_locked(group, NULL, err);
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
    int status = meet(group, NULL, err);
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

static int thread_all_gather(struct comm_group *base, const void *send, void *receive,
                             size_t n_bytes, struct err *err)
{
    struct thread_group *group = thread_group(base);
    unsigned char *to = receive;

    if (enter(group, (struct visit){ CALL_ALL_GATHER, send, n_bytes, 0 }, err))
        return -1;
    for (int i = 0; i < base->size; i++, to += n_bytes)
        if (group->room->visits[i].send != to)
            memcpy(to, group->room->visits[i].send, n_bytes);
    return leave(group, err);
}

static int thread_all_to_all(struct comm_group *base, const void *send, void *receive,
                             size_t n_bytes, struct err *err)
{
    struct thread_group *group = thread_group(base);
    unsigned char *to = receive;
    size_t own_offset = n_bytes * (size_t)base->rank;

    if (enter(group, (struct visit){ CALL_ALL_TO_ALL, send, n_bytes, 0 }, err))
        return -1;
    for (int i = 0; i < base->size; i++, to += n_bytes)
        memcpy(to, (const unsigned char *)group->room->visits[i].send + own_offset, n_bytes);
    return leave(group, err);
}

static int thread_broadcast(struct comm_group *base, void *buffer, size_t n_bytes, int root,
                            struct err *err)
{
    struct thread_group *group = thread_group(base);

    if (enter(group, (struct visit){ CALL_BROADCAST, buffer, n_bytes, root }, err))
        return -1;
    if (base->rank != root)
        memcpy(buffer, group->room->visits[root].send, n_bytes);
    return leave(group, err);
}

static int thread_barrier(struct comm_group *base, struct err *err)
{
    struct thread_group *group = thread_group(base);

    if (enter(group, (struct visit){ CALL_BARRIER, NULL, 0, 0 }, err))
        return -1;
    return leave(group, err);
}

/* Wait for the peer, a rank of the group, to bring the mailbox to state. Lock held. */
static int wait_for_state(struct thread_group *group, const struct mailbox *mailbox,
                          enum mailbox_state state, int peer, struct err *err)
{
    int world_rank = group->base.ranks[peer];

    while (mailbox->state != state)
        if (room_wait(group->hub, group->room, group->hub->left[world_rank] ? world_rank : -1, err))
            return -1;
    return 0;
}

static int thread_send(struct comm_group *base, const void *buffer, size_t n_bytes, int to,
                       struct err *err)
{
    struct thread_group *group = thread_group(base);
    struct mailbox *mailbox = &group->room->mailboxes[base->rank * base->size + to];

    pthread_mutex_lock(&group->hub->lock);
    *mailbox = (struct mailbox){ MAILBOX_FULL, buffer, n_bytes };
    pthread_cond_broadcast(&group->room->changed);
    int status = wait_for_state(group, mailbox, MAILBOX_TAKEN, to, err);
    mailbox->state = MAILBOX_EMPTY;
    pthread_mutex_unlock(&group->hub->lock);
    return status;
}

static int thread_receive(struct comm_group *base, void *buffer, size_t n_bytes, int from,
                          struct err *err)
{
    struct thread_group *group = thread_group(base);
    struct mailbox *mailbox = &group->room->mailboxes[from * base->size + base->rank];

    pthread_mutex_lock(&group->hub->lock);
    int status = wait_for_state(group, mailbox, MAILBOX_FULL, from, err);
    if (!status) {
        /* Under the lock: a sender that fails in a broken room takes its buffer back. */
        CHECK(mailbox->n_bytes == n_bytes);
        memcpy(buffer, mailbox->buffer, n_bytes);
        mailbox->state = MAILBOX_TAKEN;
        pthread_cond_broadcast(&group->room->changed);
    }
    pthread_mutex_unlock(&group->hub->lock);
    return status;
}

static const struct comm_ops thread_ops = {
    .group_bytes = sizeof(struct thread_group),
    .group_open = thread_group_open,
    .destroy = thread_destroy,
    .all_gather = thread_all_gather,
    .all_to_all = thread_all_to_all,
    .broadcast = thread_broadcast,
    .send = thread_send,
    .receive = thread_receive,
    .barrier = thread_barrier,
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
