/*
 * stash_impl.h - how many micro-batches of what are held at one time
 */
#ifndef PROGRAM_STASH_IMPL_H
#define PROGRAM_STASH_IMPL_H

#include "base/num.h"
#include "program/passes.h"

#define PLACE_FILE_ALIGNMENT ((size_t)4096) /* what direct transfers of a disk take */

/* What a value takes in its segment, so that the next one is aligned. */
static inline size_t placed_bytes(const struct program *program, int id)
{
    return align_up(program_value_bytes(program, id), program->values[id].space == SPACE_FILE
                                                          ? PLACE_FILE_ALIGNMENT
                                                          : PLACE_ALIGNMENT);
}

/* The functions that touch a value, or any value of a stash; whether LOAD does; and its space. */
struct touchers {
    uint64_t *functions; /* bits */
    int loaded;
    enum space space;
};

/* The first and last action that touch a micro-batch, counted from 1; 0: none does. */
struct stash_life {
    int first, last;
};

/* The lifetimes of all stashes in one entry. */
struct stash_lives {
    int n_micro_batches;
    struct stash_life *of; /* [n_stashes][n_micro_batches] */
};

/* The stashes that a function, or LOAD, touches. */
struct touched {
    int *stashes, n;
};

struct dividing {
    struct program *program;
    const char *marked;
    struct arena *arena; /* scratch, released when the stashes exist */
    int n_words;
    struct touchers *of_value, *of_stash;
    struct touched *by_function, loaded;
    struct stash_lives lives[N_ENTRIES];
};

/*
 * stash.c: put the marked values (bases; by id) into stashes, by space and the functions that touch
 * them, and count each one's slots from the entries' actions: the smallest n with which no two
 * micro-batches that differ by a multiple of n live at one time, from the first action that touches
 * them to the last. Then share_stashes. Sets the values' stash and place_bytes and the program's
 * stashes, and adds the stashes' bytes to their segments, which are 0 before.
 */
void divide_stash(struct program *program, const char *marked);

/*
 * stash_share.c: let the chunks of a rank share slots if that takes less memory. d has the
 * program's stashes with their slots and bytes, and their lifetimes.
 */
void share_stashes(struct dividing *d);

/* stash.c: the lifetime of a micro-batch in a stash. */
static inline struct stash_life *life_of(const struct stash_lives *lives, int stash,
                                         int micro_batch)
{
    return &lives->of[(size_t)stash * (size_t)lives->n_micro_batches + (size_t)micro_batch];
}

#endif
