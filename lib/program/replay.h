/*
 * replay.h - the ranks of a mesh, led through an entry's actions by the rules of order.h
 *
 * Nothing is computed or moved: a replay finds which transfers meet, in which order things come to
 * pass, and whether all of them do. Who watches is called at the begin and at the end of each
 * transfer. verify_ranks is a replay without a clock; one with a clock has for each begin what it
 * came after, and for each end what it met.
 *
 * A *transfer* is an op that talks to other ranks, given to its stream. It begins when what comes
 * before it on its rank is done, and is done when all whom it meets have begun theirs.
 *
 * Ranks of one class (those at one place of an axis that the mesh leaves out) run one program in
 * step and are one rank here. Rounds of a step that are known to go as those before are left out,
 * and their transfers with them.
 */
#ifndef PROGRAM_REPLAY_H
#define PROGRAM_REPLAY_H

#include "program/order.h"

#define REPLAY_NONE (-1)

/* An op of a function that is given. */
struct replay_posted_op {
    int op;
    /* Send, receive: the op that it met before, on the one rank that it has to do with. */
    const struct replay_posted_op *partner;
};

struct replay_transfer {
    int rank, function, micro_batch;
    struct replay_posted_op *posted;
    const struct op *op;
    int after[ORDER_MAX_USERS], n_after; /* transfers of its rank, on other streams */
    int number;                          /* on its channel, or in its group */
    int place;                           /* on its stream */
    int has_begun, is_done;
};

struct replay_queue {
    int *transfers; /* in order */
    int n, capacity, n_done;
};

struct replay_rank {
    const struct program *program;
    struct replay_outline *outlines; /* by function */
    struct order order;              /* of the program */
    int *users;                      /* its: the transfer given last, or REPLAY_NONE */
    struct replay_queue streams[N_STREAMS];
    int n_begun[N_AXES][N_STREAMS]; /* collectives begun */
    int n_gates, is_at_gate;        /* come to; waits there for others */
    int action, event;
};

/* Each returns 0, or -1, with which the replay ends. */
struct replay_watch {
    void *context;
    /* A transfer was given to its stream. */
    int (*on_post)(void *context, const struct replay_transfer *t);
    /* It begins. first: the transfer that began this collective, of whatever rank; else itself. */
    int (*on_begin)(void *context, const struct replay_transfer *t,
                    const struct replay_transfer *first);
    /* It is done. other: of a send its receive, and the other way round, once for the two; else
     * itself. */
    int (*on_end)(void *context, const struct replay_transfer *t,
                  const struct replay_transfer *other);
    /* Nobody can go on. */
    int (*on_deadlock)(void *context);
};

/* All zero at first but for mesh, entry and watch. */
struct replay {
    const struct mesh *mesh;
    enum entry_kind entry;
    const struct replay_watch *watch;

    struct replay_rank *list; /* by rank of the mesh */
    int n;
    int n_walked;       /* actions, of all ranks */
    int stride[N_AXES]; /* between neighbours on the axis */
    struct replay_channel *channels;
    int channels_at[N_AXES], n_channels; /* of a rank */
    struct replay_group *groups;
    struct replay_transfer *transfers;
    int n_transfers, capacity;
    struct arena arena;
};

/* programs: by rank of the mesh. in_full: without leaving out rounds. Returns 0, or -1 of the watch.
 * To be released in either case. */
int replay_run(struct replay *replay, const struct program *const *programs, int in_full);
void replay_release(struct replay *replay);

/* The rank has done all that the entry asks of it. */
int replay_is_over(const struct replay *replay, int rank);

/* A send or a receive; else a collective. */
int replay_is_point_to_point(const struct op *op);

/* It meets nobody: no collective, or one over an axis of which this mesh has one rank. */
int replay_is_local(const struct replay *replay, const struct op *op);

/* The rank of its group that is first on the axis. */
int replay_first_of(const struct replay *replay, int rank, enum mesh_axis axis);

/* Of a send or receive: the rank at the other end, and the first transfer at this end. */
int replay_other_rank(const struct replay *replay, const struct replay_transfer *t);
const struct replay_transfer *replay_first_sent(const struct replay *replay,
                                                const struct replay_transfer *t);

#endif
