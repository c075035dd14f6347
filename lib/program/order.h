/*
 * order.h - what waits for what where a program is run
 *
 * Said once, for run, which waits so, for verify, which proves that nobody waits for ever and that
 * nothing lies over what is in use, and for who asks when what will be done.
 *
 * A rank does the actions of an entry one after the other, and the ops of a function in the order
 * of the list. An op that is *given* (order_is_async) is handed to its stream, and the rank goes
 * on; every other op is run at once. What waits:
 *
 *  - Of one stream, ops begin and are done in the order in which they were given.
 *  - Of ops that touch one value, whatever comes later waits for the one given last: an op that is
 *    run at once waits for it ahead of its own work, a given one begins after it is done. A value is
 *    a base value, in the slot of its micro-batch (where stashes share slots: whatever lies at its
 *    place of the slot); for each that given ops touch one is kept, its *user*. As each begins after
 *    its predecessor, the last one vouches for all before.
 *  - An op that is bound to the same slots as before (order_variant) is given again only once it is
 *    done, and a stream takes no more than ORDER_MAX_POSTED that are not.
 *  - A load writes inputs: it waits for the users of those.
 *  - The end of a function waits for the streams whose ops are known to be done only there and touch
 *    values that die with the function (order_drains).
 *  - A gate waits for all streams, and for all ranks to come to it.
 *  - A given op that moves bytes between spaces is done when it has run.
 *  - A given op that moves bytes between ranks is done when all of them have begun it: the n-th
 *    collective that a rank begins over an axis and stream is that of its group's other ranks, the
 *    n-th send of a channel is its n-th receive's. Nothing is buffered.
 *
 * Slots and the places of values follow from this: place.c and verify_memory.c derive lifetimes
 * from it, each in its own way.
 */
#ifndef PROGRAM_ORDER_H
#define PROGRAM_ORDER_H

#include "program/program.h"

enum {
    ORDER_NO_USER = -1,
    ORDER_MAX_USERS = OPS_MAX_INPUTS + OPS_MAX_OUTPUTS, /* of one op */
    ORDER_MAX_AFTER = 4,    /* ops of other streams that a given op begins after */
    ORDER_MAX_POSTED = 256, /* as N_RING of comm/worker.c */
};

/* Whether the op is given to a stream, or else run at once. */
int order_is_async(const struct op *op);
int order_has_async(const struct program *program);

/*
 * The stream whose communicator this one's ops go over. What goes one way through the pipeline
 * shares one, on whatever streams: a send and its receive have to. Others have one each.
 */
enum stream order_group_of(enum stream stream);

/* A program's users: the tables say where each is kept, by whoever walks the program. */
struct order {
    const struct program *program;
    int n_micro_batches; /* of all entries */
    int n_users;
    const struct order_rounds *parts[N_ENTRIES]; /* of each entry */
    int n_parts[N_ENTRIES];
    int *users_at; /* by base value: where those of its slots begin, or ORDER_NO_USER; one for all
                          values at one place of slots that stashes share */
    const int *inputs; /* that given ops touch: a load waits for their users */
    int n_inputs;
    struct arena *arena;
};

/* The sets of slots that a function is bound to, as its micro-batches come by. */
struct order_variants {
    int n;
    const int *of;    /* by micro-batch; NULL: m % n */
    const int *first; /* by variant: the first micro-batch of it; NULL: the variant's number */
};

/* The tables live in the arena, the program and the arena as long. */
void order_open(struct order *order, const struct program *program, struct arena *arena);

/* Where the user of a value, or of the base of a view, is kept; ORDER_NO_USER if no given op touches
 * it, or id is 0. */
int order_user(const struct order *order, int id, int micro_batch);

/* The users of what an op touches, each once, in the order of its operands. Returns how many. */
int order_users(const struct order *order, const struct op *op, int micro_batch,
                int users[ORDER_MAX_USERS]);

/* How many micro-batches a value has slots for: 1 where it is in no stash. */
int order_n_slots(const struct program *program, int id);

/*
 * The variants of a function: at most the least common multiple of the n_slots of the stashes that
 * it touches whose slots are m % n, times the n_slots of those whose slots a table says (one table
 * a chunk: stash_share.c), and at most all micro-batches. What is made lives in order's arena.
 */
struct order_variants order_variants(const struct order *order, int function);

/* Which of them a micro-batch is bound to (-1: where there is none), and one that it is for. */
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
 * How many times, at most `most`, the n actions before action i are done again from there on, each
 * time `shift` micro-batches later than the time before.
 */
int order_count_rounds(const struct entry *entry, int i, int n, int shift, int most);

/* Actions begin .. begin + n - 1 of an entry are done n_times in a row, each time `shift`
 * micro-batches later than the time before (what is of no micro-batch comes again as it is). */
struct order_rounds {
    int begin, n, shift, n_times;
};

/* The actions of an entry as such parts, one after the other: what does not repeat is done once.
 * In the arena. */
const struct order_rounds *order_list_rounds(const struct entry *entry, int *n_parts,
                                             struct arena *arena);

/* Behind the last micro-batch of these parts of an entry. */
int order_count_micro_batches(const struct entry *entry, const struct order_rounds *parts,
                              int n_parts);

/*
 * completed_at[i] is the op of the function ahead of which ops[i] is known to be done, whatever the
 * timing: so what is written from there on may lie in its operands' memory. i itself for what runs
 * at once; n_ops if only the function's end waits for it, where it touches values of SCOPE_PASS.
 */
void order_completion(const struct program *program, int function, int *completed_at);

/* The streams that a function's end waits for, by bits. */
unsigned order_drains(const struct program *program, int function, const int *completed_at);

#endif
