/*
 * comm.c - the front door: argument checks, the list of groups, and what needs no peer
 */
#include "comm/comm.h"

#include <stdlib.h>
#include <string.h>

#include "comm/comm_impl.h"

int comm_world_rank(const struct comm *comm)
{
    return comm->world_rank;
}

int comm_world_size(const struct comm *comm)
{
    return comm->world_size;
}

static void group_free(struct comm_group *group)
{
    if (group->size > 1 && group->comm->ops->group_close)
        group->comm->ops->group_close(group);
    free(group->ranks);
    free(group);
}

void comm_destroy(struct comm *comm)
{
    if (!comm)
        return;
    while (comm->groups) {
        struct comm_group *group = comm->groups;

        comm->groups = group->next;
        group_free(group);
    }
    comm->ops->destroy(comm);
}

/* The place of the caller in ranks, after checking that they are distinct ranks of the world. */
static int check_ranks(const struct comm *comm, const int *ranks, int n_ranks)
{
    int me = -1;
    unsigned char *seen = calloc((size_t)comm->world_size, 1);

    CHECK(seen);
    for (int i = 0; i < n_ranks; i++) {
        CHECK(ranks[i] >= 0);
        CHECK(ranks[i] < comm->world_size);
        CHECK(!seen[ranks[i]]);
        seen[ranks[i]] = 1;
        if (ranks[i] == comm->world_rank)
            me = i;
    }
    free(seen);
    CHECK(me >= 0);
    return me;
}

int comm_group_create(struct comm_group **group, struct comm *comm, const int *ranks, int n_ranks,
                      int channel, struct err *err)
{
    CHECK(n_ranks > 0);
    CHECK(channel >= 0);

    int me = check_ranks(comm, ranks, n_ranks);
    struct comm_group *made = calloc(1, comm->ops->group_bytes);
    int *copy = malloc(sizeof *copy * (size_t)n_ranks);

    CHECK(made);
    CHECK(copy);
    memcpy(copy, ranks, sizeof *copy * (size_t)n_ranks);
    made->comm = comm;
    made->rank = me;
    made->size = n_ranks;
    made->channel = channel;
    made->ranks = copy;
    if (n_ranks > 1 && comm->ops->group_open(made, err)) {
        group_free(made);
        return -1;
    }
    made->next = comm->groups;
    comm->groups = made;
    *group = made;
    return 0;
}

int comm_group_rank(const struct comm_group *group)
{
    return group->rank;
}

int comm_group_size(const struct comm_group *group)
{
    return group->size;
}

/* A copy to oneself, where source may already be the destination. */
static int copy_own(void *to, const void *from, size_t n_bytes)
{
    if (n_bytes && to != from)
        memcpy(to, from, n_bytes);
    return 0;
}

int comm_all_gather(struct comm_group *group, const void *send, void *receive, size_t n_bytes,
                    struct err *err)
{
    if (group->size == 1 || !n_bytes)
        return copy_own(receive, send, n_bytes);
    return group->comm->ops->all_gather(group, send, receive, n_bytes, err);
}

int comm_all_to_all(struct comm_group *group, const void *send, void *receive, size_t n_bytes,
                    struct err *err)
{
    if (group->size == 1 || !n_bytes)
        return copy_own(receive, send, n_bytes);
    return group->comm->ops->all_to_all(group, send, receive, n_bytes, err);
}

int comm_broadcast(struct comm_group *group, void *buffer, size_t n_bytes, int root,
                   struct err *err)
{
    CHECK(root >= 0);
    CHECK(root < group->size);
    if (group->size == 1 || !n_bytes)
        return 0;
    return group->comm->ops->broadcast(group, buffer, n_bytes, root, err);
}

int comm_send(struct comm_group *group, const void *buffer, size_t n_bytes, int to, struct err *err)
{
    CHECK(to >= 0);
    CHECK(to < group->size);
    CHECK(to != group->rank);
    if (!n_bytes)
        return 0;
    return group->comm->ops->send(group, buffer, n_bytes, to, err);
}

int comm_receive(struct comm_group *group, void *buffer, size_t n_bytes, int from, struct err *err)
{
    CHECK(from >= 0);
    CHECK(from < group->size);
    CHECK(from != group->rank);
    if (!n_bytes)
        return 0;
    return group->comm->ops->receive(group, buffer, n_bytes, from, err);
}

int comm_barrier(struct comm_group *group, struct err *err)
{
    if (group->size == 1)
        return 0;
    return group->comm->ops->barrier(group, err);
}
