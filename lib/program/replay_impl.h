/*
 * replay_impl.h - the parts of a replay: the events of one rank, rendezvous of ranks, and skipping
 * of rounds
 */
#ifndef PROGRAM_REPLAY_IMPL_H
#define PROGRAM_REPLAY_IMPL_H

#include "program/replay.h"

enum replay_event_kind { EVENT_POST, EVENT_TOUCH, EVENT_DRAIN };

/* An event of a function that concerns transfers. */
struct replay_event {
    enum replay_event_kind kind;
    int what; /* POST: an index in posted_ops; TOUCH: a base value, or a view of one with parts; DRAIN: a set of streams */
    int op;   /* of the function, before which it is */
};

struct replay_outline {
    struct replay_event *events;
    int n_events, events_capacity;
    struct replay_posted_op *posted_ops;
    int n_posted_ops;
    struct order_variants variants;
};

/* All sends from one rank to another over one communicator, and their receives. */
struct replay_channel {
    struct replay_queue ends[2]; /* receives, sends */
};

/* The n-th collective of the ranks of a group, over one communicator. */
struct replay_rendezvous {
    int first; /* the transfer that began it */
    int n_begun;
};

struct replay_group {
    struct replay_rendezvous *rendezvous;
    int n, capacity;
};

/* Communicators of sends and receives: order_group_of for forward, backward and others. */
enum { N_WAYS = 3 };

/* The state of all ranks as numbers, with micro-batches relative to one of them
 * (replay_rounds.c). */
struct replay_snapshot {
    struct arena *arena;
    int *numbers, n, capacity;
    int n_places; /* of the numbers, those of the ranks' positions, which come first */
    int micro_batch;
    void *kept; /* the clock's */
};

/* An earlier snapshot, with which the present one is compared. Initially all zero. */
struct replay_rounds {
    struct replay_snapshot previous, current;
    int *actions; /* by rank: its action at the previous snapshot */
    int n_left, n_patience;
};

/* ---- replay.c ---- */

void replay_queue_push(struct arena *arena, struct replay_queue *q, int transfer);

/* ---- replay_rendezvous.c ---- */

/* Tables of channels and groups, empty, for the mesh. */
void replay_open_rendezvous(struct replay *r);

/* A transfer was posted to its stream: sends and receives get their number on the channel. */
void replay_join(struct replay *r, struct replay_transfer *t);

/* What the transfer comes after is complete: it begins. Returns 0 or -1. */
int replay_begin(struct replay *r, struct replay_transfer *t);

/* Sets is_done if the transfer is complete. Returns 0 or -1. */
int replay_poll(struct replay *r, struct replay_transfer *t);

/* By how many transfers the other end of its channel, or its group, differs from the transfer. */
int replay_distance(const struct replay *r, const struct replay_transfer *t);

/* Add the rank's distances from the ranks that it meets: its channels, its groups, and the
 * collectives in its groups that have begun and are not complete. */
void replay_snapshot_peers(const struct replay *r, int rank, struct replay_snapshot *snapshot);

/* ---- replay_rounds.c ---- */

/* Called when each rank has been advanced once: skips the rounds whose result is known. */
void replay_skip_rounds(struct replay *r, struct replay_rounds *rounds);

#endif
