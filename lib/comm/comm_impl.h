/*
 * comm_impl.h - what an implementation of comm provides
 *
 * The front door (comm.c) checks arguments, keeps the groups and answers groups of one rank and
 * empty transfers itself, so an implementation sees neither. It embeds struct comm and struct
 * comm_group as the first members of its own structs.
 */
#ifndef COMM_COMM_IMPL_H
#define COMM_COMM_IMPL_H

#include "comm/comm.h"

struct comm_ops {
    size_t group_bytes; /* of the implementation's group struct */

    /* group is zeroed and its common part filled. Collective over the group. */
    int (*group_open)(struct comm_group *group, struct err *err);
    void (*group_close)(
        struct comm_group *group);      /* local; also after a failed open; may be NULL */
    void (*destroy)(struct comm *comm); /* after all groups were closed; frees comm */

    /* request is zeroed but for group and call. */
    int (*start)(struct comm_request *request, struct err *err);
    int (*test)(struct comm_request *request, struct err *err); /* an enum comm_progress, or -1 */

    /* Optional, all or none. Groups of one rank are connected and enqueue their copies, too. */
    int (*connect)(struct comm_group *all, struct comm_group *group, unsigned uses,
                   struct err *err);
    void (*disconnect)(struct comm_group *group);
    int (*enqueue)(struct comm_group *group, const struct comm_call *call, int queue,
                   struct err *err);
    int (*check)(struct comm *comm, struct err *err);
    /* Optional also where those are. */
    int (*enqueue_sum)(struct comm_group *group, const struct comm_sum *sum, int queue,
                       struct err *err);
};

struct comm {
    const struct comm_ops *ops;
    int world_rank, world_size;
    struct comm_group *groups; /* newest first */
};

struct comm_group {
    struct comm *comm;
    struct comm_group *next;
    int rank, size;
    int channel;
    int *ranks; /* size world ranks */
};

/* The rank of the group that is so much further on, cyclically; distance may be negative, but no
 * more than the group's size. */
static inline int group_rank_at(const struct comm_group *group, int distance)
{
    return (group->rank + distance + group->size) % group->size;
}

/* What an exchange moves, by rank. */
static inline const struct comm_part *comm_parts_of(const struct comm_call *call)
{
    return (const struct comm_part *)call->send;
}

/*
 * comm_mpi_create with transfers cut into pieces of at most piece_bytes (MPI counts are ints);
 * tests make it small.
 */
int comm_mpi_create_pieces(struct comm **comm, size_t piece_bytes, struct err *err);

/* comm_tcp_create in frames of at most piece_bytes, and, also within a machine, over networks. */
struct tcp_settings {
    size_t piece_bytes;
    int no_unix;
};
int comm_tcp_create_as(struct comm **comm, const struct comm_wireup *wireup,
                       const struct tcp_settings *settings, struct err *err);

#endif
