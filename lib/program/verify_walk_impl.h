/*
 * verify_walk_impl.h - the state of a walk over an entry's actions (verify.c), and rounds of it
 * that can be skipped (verify_rounds.c)
 */
#ifndef PROGRAM_VERIFY_WALK_IMPL_H
#define PROGRAM_VERIFY_WALK_IMPL_H

#include <stdbool.h>

#include "program/order.h"
#include "program/verify_impl.h"

#define NEVER 0
#define WRITTEN 1

/* Times are counted from 1, so that 0 is never. The contents of slots are checked by
 * verify_stash.c. */
struct verify_walk {
    const struct program *program;
    struct err *err;
    enum entry_kind entry;
    int micro_batch, first; /* of the action at hand */
    int run;                /* functions run so far */
    int *written;           /* by base value: WRITTEN; pass values: the run */
    int *once;              /* by value: the run that wrote it last */
    int *accumulated;       /* by value: last micro-batch added + 2 */
    int *started;           /* by value: 1 + reductions of its base when it last started over */
    int *reduced;           /* by base value: reductions over ranks so far */
    int *last_started; /* by base value: the newest sum of one micro-batch not yet reduced, or 0 */
    int *started_before;   /* by value: the one before it */
    unsigned char *spread; /* by base value and axis: as last written */
    int *gathered;         /* by base value: the bucket (value.bucket) gathered there last */
    int *unsaved;          /* by base value with a home: the run that wrote it, until it is sent */
    int *unsaved_before;   /* and the one written before it in this run */
    int last_unsaved;      /* of this run, or 0 */
    int *owners;           /* by base value: that whose home it is, or 0 */
    int *first_at_home, *next_at_home; /* by base home: the values whose home it, or a part, is */
    int64_t *n_filled; /* by base value with a home: elements that are here, in this run */
    int *parts_at;     /* by base value with parts: the number of its first, counted from 1; or 0 */
    int *part_run;     /* by part: the run that wrote it last */
    int64_t *n_written; /* by part: elements, in that run */
};

/* verify_home.c: tables of a walk. */
void verify_open_stays(struct verify_walk *walk, struct arena *arena);

/* Whether the op moves a value with a home there or back, and the check of that. 0,
 * or -1 and the walk's error. */
bool verify_comes_or_goes(const struct verify_walk *walk, const struct op *op);
int verify_move(struct verify_walk *walk, const struct function *function, const struct op *op);

/* A home, or a part of one, is touched ("is read"): it has what the value has. Results likewise. */
int verify_at_home(const struct verify_walk *walk, const struct function *function,
                   const struct op *op, int id, const char *what);

/* verify_parts.c: tables of a walk; a value with parts is read (0, or -1 and the walk's error) or
 * written. */
void verify_open_parts(struct verify_walk *walk, struct arena *arena);
int verify_parts(const struct verify_walk *walk, const struct function *function,
                 const struct op *op, int id);
void verify_note_parts(const struct verify_walk *walk, int id);
/* At the end of a function: of what it writes a part of it writes all. */
int verify_all_parts(const struct verify_walk *walk, const struct function *function);

/* Anything is written, by an op of a kernel or a collective; and at the function's end. */
int verify_note_write(struct verify_walk *walk, const struct function *function,
                      const struct op *op, int id);
int verify_all_saved(struct verify_walk *walk, const struct function *function);

/* The state of the walk before a round. */
struct rounds {
    struct arena *arena;
    const struct order_rounds *parts; /* of the entry, from the one at hand on */
    struct verify_walk then;
    int action, n_actions; /* the round; n_actions 0: there is none */
};

/*
 * Called before action i, for actions in increasing order. Returns how many actions from i on need
 * not be walked, because none of them can be refused and the state after them is known; *walk is
 * then that state. *rounds is initially zero except arena and parts; its arrays are in the arena.
 */
int rounds_to_skip(struct rounds *rounds, struct verify_walk *walk, int i);

#endif
