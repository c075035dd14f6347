/*
 * order.h - which op waits for which when a program runs
 *
 * The rules are stated once, for run, which waits by them, for verify, which proves that there is
 * no deadlock and that nothing overwrites memory in use, and for estimates of time.
 *
 * A rank does the actions of an entry one after the other, and the ops of a function in the order
 * of the list. An *async* op (order_is_async) is posted to its stream, and the rank continues;
 * every other op runs at once, on the rank's compute stream. What waits:
 *
 *  - Ops of one stream begin and complete in the order in which they were posted.
 *  - Of ops that touch one value, each waits for the one posted last: an op that runs at once waits
 *    for it before its own work, an async one begins after it has completed. A value here is a base
 *    value, or a part of one that has parts, in the slot of its micro-batch (where stashes share
 *    slots: whatever is at its offset of the slot). For each value that async ops touch one op is
 *    stored, its *user*; as each user begins after its predecessor, completion of the last implies
 *    completion of all before.
 *  - An op that is bound to the same slots as before (order_variant) is posted again only once it
 *    has completed, and a stream takes no more than ORDER_MAX_POSTED ops that have not.
 *  - A load writes inputs: it waits for their users.
 *  - The end of a function waits for the streams whose ops are known to be complete only there and
 *    touch values that die with the function (order_drains).
 *  - A gate waits for all streams, and for all ranks to reach it.
 *  - An async op that moves bytes between memories is complete when it has run.
 *  - An async op that moves bytes between ranks is complete when all of them have begun it: the
 *    n-th collective that a rank begins over an axis and stream is that of its group's other ranks,
 *    the n-th send of a channel matches its n-th receive. Nothing is buffered.
 *
 * Slots and lifetimes follow from these rules: place.c and verify_memory.c derive lifetimes from
 * them, each in its own way.
 */
#ifndef PROGRAM_ORDER_H
#define PROGRAM_ORDER_H

#include "program/program.h"

enum {
    ORDER_NO_USER = -1,
    ORDER_N_OPERANDS = OPS_MAX_INPUTS + OPS_MAX_OUTPUTS, /* of one op */
    ORDER_MAX_USERS = ORDER_N_OPERANDS * PROGRAM_MAX_PARTS,
    ORDER_MAX_AFTER = 4 + 2 * PROGRAM_MAX_PARTS, /* ops of other streams that an async op begins
                                                    after: of two values in parts, and others */
    ORDER_MAX_POSTED = 256,                      /* as N_RING of comm/worker.c */
};

/* Whether the op is posted to a stream; else it runs at once. */
int order_is_async(const struct op *op);
int order_has_async(const struct program *program);

/*
 * The stream whose communicator the ops of this one use. All streams of forward boundaries share
 * one communicator, because a send and its receive must, and so do those of backward boundaries;
 * others have one each.
 */
enum stream order_group_of(enum stream stream);

/* Where the user of each value is stored, in an array of n_users that the caller has. */
struct order {
    const struct program *program;
    int n_micro_batches; /* of all entries */
    int n_users;
    const struct order_rounds *parts[N_ENTRIES]; /* of each entry */
    int n_parts[N_ENTRIES];
    /* By base value: the first index of its slots' users, or ORDER_NO_USER; values with one offset
     * in slots that stashes share have one. Those of part i follow those of part i - 1. */
    int *users_at;
    const int *inputs; /* that async ops touch: a load waits for their users */
    int n_inputs;
    struct arena *arena;
};

/* The different sets of slots that a function uses, over all micro-batches. */
struct order_variants {
    int n;
    const int *of;    /* by micro-batch; NULL: m % n */
    const int *first; /* by variant: the first micro-batch of it; NULL: the variant's number */
};

/* The tables are in the arena; program and arena must outlive them. */
void order_open(struct order *order, const struct program *program, struct arena *arena);

/* The index of the user of a value, or of the base of a view, or of the first part of it in which
 * the value is; ORDER_NO_USER if no async op touches it, or id is 0. */
int order_user(const struct order *order, int id, int micro_batch);

/* The users of all parts in which the value is; likewise, with none. Returns how many. */
int order_users_of(const struct order *order, int id, int micro_batch,
                   int users[PROGRAM_MAX_PARTS]);

/* The users of an op's operands, each once, in the order of the operands. Returns how many. */
int order_users(const struct order *order, const struct op *op, int micro_batch,
                int users[ORDER_MAX_USERS]);

/* The number of a value's slots: 1 if it is in no stash. */
int order_n_slots(const struct program *program, int id);

/*
 * The variants of a function: at most the least common multiple of the n_slots of the stashes that
 * it touches whose slots are m % n, times the n_slots of those with a table (one table a chunk:
 * stash_share.c), and at most the number of micro-batches. Tables are in order's arena.
 */
struct order_variants order_variants(const struct order *order, int function);

/* The variant of a micro-batch (-1: not for a micro-batch), and one micro-batch of a variant. */
static inline int order_variant(const struct order_variants *variants, int micro_batch)
{
    if (micro_batch < 0)
        return 0;
    return variants->of ? variants->of[micro_batch] : micro_batch % variants->n;
}
static inline int order_variant_first(const struct order_variants *variants, int variant)
{
    return variants->first ? variants->first[variant] : variant;
}

/*
 * How many times, at most `most`, the n actions before action i are repeated from i on, each time
 * shifted by `shift` micro-batches.
 */
int order_count_rounds(const struct entry *entry, int i, int n, int shift, int most);

/* Actions begin .. begin + n - 1 of an entry are done n_times in a row, each time shifted by
 * `shift` micro-batches (actions that are not for a micro-batch are repeated unchanged). */
struct order_rounds {
    int begin, n, shift, n_times;
};

/* The actions of an entry as such parts, one after the other; a part that does not repeat has
 * n_times 1. In the arena. */
const struct order_rounds *order_list_rounds(const struct entry *entry, int *n_parts,
                                             struct arena *arena);

/* 1 + the last micro-batch of these parts of an entry. */
int order_count_micro_batches(const struct entry *entry, const struct order_rounds *parts,
                              int n_parts);

/*
 * completed_at[i] is the op of the function before which ops[i] is known to be complete, whatever
 * the timing: ops from there on may write to its operands' memory. i itself for ops that run at
 * once; n_ops if only the function's end waits for it, where it touches values of SCOPE_PASS.
 */
void order_completion(const struct program *program, int function, int *completed_at);

/* The streams that a function's end waits for, as a set of bits. */
unsigned order_drains(const struct program *program, int function, const int *completed_at);

#endif
