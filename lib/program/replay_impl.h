/*
 * replay_impl.h - the parts of a replay: what one rank does, where ranks meet, and what they need
 * not be led through because it is known
 */
#ifndef PROGRAM_REPLAY_IMPL_H
#define PROGRAM_REPLAY_IMPL_H

#include "program/replay.h"

enum replay_event_kind { EVENT_POST, EVENT_TOUCH, EVENT_DRAIN };

/* What happens in a function, in order, as far as transfers are concerned. */
struct replay_event {
    enum replay_event_kind kind;
    int what; /* an index in posted_ops; a base value that an op touches; a set of streams */
};

struct replay_outline {
    struct replay_event *events;
    int n_events, events_capacity;
    struct replay_posted_op *posted_ops;
    int n_posted_ops;
    struct order_variants variants;
};

/* All sends from one rank to another over one communicator, and the receives that they meet. */
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

/* All that is going on among ranks, as numbers, seen from a micro-batch. */
struct replay_snapshot {
    struct arena *arena;
    int *numbers, n, capacity;
    int n_places; /* the first of the numbers: where ranks are */
    int micro_batch;
};

/* An earlier time, to hold the present against. All zero at first. */
struct replay_rounds {
    struct replay_snapshot previous, current;
    int *actions; /* by rank: where it was then */
    int n_left, n_patience;
};

/* ---- replay.c ---- */

void replay_queue_push(struct arena *arena, struct replay_queue *q, int transfer);

/* ---- replay_rendezvous.c ---- */

/* Tables of channels and groups, empty, for the mesh. */
void replay_open_rendezvous(struct replay *r);

/* A transfer was given to its stream: sends and receives have their place from then on. */
void replay_join(struct replay *r, struct replay_transfer *t);

/* What comes before the transfer on its rank is done. Returns 0 or -1. */
int replay_begin(struct replay *r, struct replay_transfer *t);

/* Whether it is done: sets is_done. Returns 0 or -1. */
int replay_poll(struct replay *r, struct replay_transfer *t);

/* How far the other end of its channel is from the transfer, or its group once it has begun. */
int replay_distance(const struct replay *r, const struct replay_transfer *t);

/* How far the rank is from those it meets: its channels, groups, and who has begun what is not done. */
void replay_snapshot_peers(const struct replay *r, int rank, struct replay_snapshot *snapshot);

/* ---- replay_rounds.c ---- */

/* Between two rounds of turns: puts the ranks as far on as is known where they come. */
void replay_skip_rounds(struct replay *r, struct replay_rounds *rounds);

/* Add a number to what is told. */
void replay_snapshot_add(struct replay_snapshot *snapshot, int number);

#endif
