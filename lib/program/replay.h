/*
 * replay.h - symbolic execution of an entry by all ranks of a mesh, by the rules of order.h
 *
 * Nothing is computed or moved: a replay determines which transfers meet, in which order events
 * happen, and whether all of them do. The watch's functions are called when a transfer is posted,
 * begins and ends. verify_ranks is a replay without a clock. A simulation of time keeps clocks of
 * its own (struct replay_clock): an event's time follows from those of the events that it comes
 * after, all of which have happened.
 *
 * A *transfer* is an async op that was posted to its stream. It begins when what it comes after on
 * its rank is complete, and completes when all ranks that it meets have begun their transfer.
 *
 * Ranks that differ only on an axis that the mesh leaves out run one program in lockstep and are
 * one rank here. Rounds of a step that are known to repeat the round before are skipped, with their
 * transfers (replay_rounds.c).
 */
#ifndef PROGRAM_REPLAY_H
#define PROGRAM_REPLAY_H

#include "program/order.h"

#define REPLAY_NONE (-1)

/* An async op of a function. */
struct replay_posted_op {
    int op;
    /* Send, receive: the op that it met before, on the one rank that it exchanges with. */
    const struct replay_posted_op *partner;
};

struct replay_transfer {
    int rank, function, micro_batch;
    struct replay_posted_op *posted;
    const struct op *op;
    /* Transfers of its rank, on other streams; beyond ORDER_MAX_AFTER they are counted alone, and
     * verify_ranks refuses the program. */
    int after[ORDER_MAX_AFTER], n_after;
    int number; /* on its channel, or in its group */
    int place;  /* on its stream */
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
    int *users;                      /* of order: the transfer posted last, or REPLAY_NONE */
    struct replay_queue streams[N_STREAMS];
    int n_begun[N_GROUP_AXES][N_STREAMS]; /* collectives begun */
    int n_gates, is_at_gate; /* gates reached; at the last one, waiting for other ranks */
    int action, event;
};

/* Called on events. Each returns 0, or -1, which ends the replay. */
struct replay_watch {
    void *context;
    /* A transfer was posted to its stream. */
    int (*on_post)(void *context, const struct replay_transfer *t);
    /* It begins. first: the transfer, of any rank, that began this collective first; otherwise t
     * itself. */
    int (*on_begin)(void *context, const struct replay_transfer *t,
                    const struct replay_transfer *first);
    /* It is complete. other: of a send its receive, and vice versa, one call for the two; otherwise
     * t itself. */
    int (*on_end)(void *context, const struct replay_transfer *t,
                  const struct replay_transfer *other);
    /* Deadlock: no rank can advance. */
    int (*on_deadlock)(void *context);
};

struct replay_snapshot;

/* What else a simulation of time learns, each before it takes effect. Times that differ make
 * snapshots differ, so rounds are skipped only where their time repeats, too. */
struct replay_clock {
    void *context;
    /* The ranks are open: their orders are known. */
    void (*on_open)(void *context);
    /* The rank runs the ops begin..end-1 of the action's function, but for async ones. */
    void (*on_run)(void *context, int rank, const struct action *a, int begin, int end);
    /* The rank has waited for this user (order.h), if there is one. */
    void (*on_wait)(void *context, int rank, int user);
    /* It has waited for all that was posted to this set of streams. */
    void (*on_drain)(void *context, int rank, unsigned streams);
    /* It reaches its n-th gate, its streams drained; it passes it, which all ranks have reached. */
    void (*on_reach)(void *context, int rank, int n);
    void (*on_pass)(void *context, int rank, int n);
    /* Add the rank's times, relative to those of rank 0, to the snapshot. *kept is the watch's, one
     * a snapshot, NULL at first. */
    void (*on_snapshot)(void *context, int rank, struct replay_snapshot *snapshot, void **kept);
    /* n_rounds more rounds like the one since the snapshot of kept are skipped, each with
     * micro-batches `shift` later. */
    void (*on_skip)(void *context, int n_rounds, int shift, void *kept);
};

/* Append a number to the snapshot; a micro-batch, relative to the snapshot's. */
void replay_snapshot_add(struct replay_snapshot *snapshot, int number);
void replay_snapshot_add_micro_batch(struct replay_snapshot *snapshot, int micro_batch);

/* All zero at first but for mesh, entry, watch and, if there is one, clock. */
struct replay {
    const struct mesh *mesh;
    enum entry_kind entry;
    const struct replay_watch *watch;
    const struct replay_clock *clock;

    struct replay_rank *list; /* by rank of the mesh */
    int n;
    int n_walked;                /* actions, of all ranks */
    int *first_of[N_GROUP_AXES]; /* by rank: the first of its group; NULL: each is alone */
    struct replay_channel *channels;
    int channels_at[N_GROUP_AXES], n_channels; /* of a rank */
    struct replay_group *groups;
    /* By number, from n_dropped on: with a clock, the first ones that are done are not kept. */
    struct replay_transfer *transfers;
    int n_transfers, n_dropped, capacity;
    struct arena arena;
};

/* programs: by rank of the mesh. in_full: skip no rounds. Returns 0, or -1 of the watch. *replay
 * must be released in either case. */
int replay_run(struct replay *replay, const struct program *const *programs, int in_full);
void replay_release(struct replay *replay);

/* The transfer of a number that is kept; and the number of one. */
static inline struct replay_transfer *replay_at(const struct replay *replay, int number)
{
    return &replay->transfers[number - replay->n_dropped];
}

static inline int replay_number(const struct replay *replay, const struct replay_transfer *t)
{
    return (int)(t - replay->transfers) + replay->n_dropped;
}

/* Whether the rank has completed all actions of the entry. */
int replay_is_over(const struct replay *replay, int rank);

/* Whether it is a send or a receive; else it is a collective. */
int replay_is_point_to_point(const struct op *op);

/* Whether it meets no other rank: it is not a collective, or the mesh has one rank on its axis. */
int replay_is_local(const struct replay *replay, const struct op *op);

/* The rank of its group that is first on the axis. */
int replay_first_of(const struct replay *replay, int rank, enum mesh_axis axis);

/* Of a send or receive: the rank at the other end, and the first transfer at this end. */
int replay_other_rank(const struct replay *replay, const struct replay_transfer *t);
const struct replay_transfer *replay_first_sent(const struct replay *replay,
                                                const struct replay_transfer *t);

#endif
