/*
 * verify_ranks_impl.h - the parts of verify_ranks: what one rank does, where ranks meet, and what
 * they need not be walked through because it is known
 *
 * A *transfer* is an op that talks to other ranks, handed to its stream: a collective, a send or a
 * receive. It begins when what comes before it on its rank is done, and is done when all whom it
 * meets have begun theirs.
 */
#ifndef PROGRAM_VERIFY_RANKS_IMPL_H
#define PROGRAM_VERIFY_RANKS_IMPL_H

#include "program/order.h"
#include "program/verify_impl.h"

#define NONE (-1)

enum event_kind { EVENT_GIVE, EVENT_TOUCH, EVENT_DRAIN };

/* What happens in a function, in order, as far as transfers are concerned. */
struct event {
    enum event_kind kind;
    int what; /* an index in givens; a base value that an op touches; a set of streams */
};

/* An op of a function that is handed over, bound to as many sets of slots as run binds it to. */
struct given {
    int op;
    int *last; /* [n_variants]: the transfer that it was last, or NONE */
    /* Send, receive: the op that it met before, on the one rank that it has to do with. */
    const struct given *partner;
};

struct outline {
    struct event *events;
    int n_events, events_capacity;
    struct given *givens;
    int n_givens;
    int n_variants;
};

struct transfer {
    int rank, function, micro_batch;
    struct given *given;
    const struct op *op;
    int after[ORDER_MAX_AFTER], n_after; /* transfers */
    int number;                          /* on its channel, or in its group */
    int place;                           /* on its stream */
    int has_begun, is_done;
};

struct queue {
    int *transfers; /* in order */
    int n, capacity, n_done;
};

/* All sends from one rank to another over one communicator, and the receives that they meet. */
struct channel {
    struct queue ends[2]; /* receives, sends */
    enum stream streams[2];
};

/* The n-th collective of the ranks of a group, over one communicator. */
struct meeting {
    int first; /* the transfer that began it */
    int n_begun;
};

struct group {
    struct meeting *meetings;
    int n, capacity;
};

struct rank {
    const struct program *program;
    struct outline *outlines; /* by function */
    struct order order;       /* of the program */
    int *users;               /* its: the transfer given last, or NONE */
    struct queue streams[N_STREAMS];
    int n_met[N_AXES][N_STREAMS]; /* collectives begun */
    int n_gates, is_at_gate;      /* come to; waits there for others */
    int action, event;
};

/* Communicators of sends and receives: as run_group_of has them, forward, backward and others. */
enum { N_WAYS = 3 };

struct ranks {
    struct rank *list;
    int n;
    const struct mesh *mesh;
    int is_whole;       /* the mesh is the programs' own */
    int stride[N_AXES]; /* between neighbours on the axis */
    struct channel *channels;
    int channels_at[N_AXES], n_channels; /* of a rank */
    struct group *groups;
    struct transfer *transfers;
    int n_transfers, capacity;
    enum entry_kind entry;
    struct arena arena;
    struct err *err;
};

/* All that is going on among ranks, as numbers, seen from a micro-batch. */
struct story {
    struct arena *arena;
    int *numbers, n, capacity;
    int n_places; /* the first of the numbers: where ranks are */
    int micro_batch;
};

/* An earlier time, to hold the present against. All zero at first. */
struct ranks_rounds {
    struct story then, now;
    int *actions; /* by rank: where it was then */
    int n_left, n_patience;
};

static inline int is_transfer_of_two(const struct op *op)
{
    return op->kind == OP_SEND || op->kind == OP_RECEIVE;
}

/* ---- verify_ranks.c ---- */

void queue_push(struct arena *arena, struct queue *q, int transfer);

/* The rank has done all that the entry asks of it. */
int is_rank_over(const struct ranks *r, int rank);

/* ---- verify_meetings.c ---- */

/* Tables of channels and groups, empty, for r's mesh. */
void meetings_open(struct ranks *r);

/* A transfer was handed to its stream: sends and receives have their place from then on. */
int meetings_join(struct ranks *r, struct transfer *t);

/* What comes before the transfer on its rank is done. Returns 0, or -1 if it meets another kind. */
int meetings_begin(struct ranks *r, struct transfer *t);

/* Whether it is done: sets is_done. Returns 0 or -1. */
int meetings_poll(struct ranks *r, struct transfer *t);

/* How far the other end of its channel is from the transfer, or its group once it has begun. */
int meetings_distance(const struct ranks *r, const struct transfer *t);

/* How far the rank is from those it meets: its channels, groups, and who has begun what is not done. */
void meetings_tell(const struct ranks *r, int rank, struct story *story);

/* Nobody can go on: say who waits in what for whom. */
int meetings_fail_stuck(const struct ranks *r);

/* The transfer is wrong by itself. */
int meetings_fail(const struct ranks *r, const struct transfer *t, const char *what);

/* ---- verify_ranks_rounds.c ---- */

/* Between two rounds of turns: puts the ranks as far on as is known where they come. */
void ranks_skip_rounds(struct ranks *r, struct ranks_rounds *rounds);

/* Add a number to what is told. */
void story_add(struct story *story, int number);

#endif
