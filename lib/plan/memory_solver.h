/*
 * memory_solver.h - what leaves a rank's device and what is computed again, so that the rest fits
 *
 * Pure arithmetic on one pipeline rank. Each layer has one of its kind's points (keep_sets.h): a
 * time that it adds, the bytes of its slot, and parts of those that may rest elsewhere. Whole
 * groups of optimizer states, gradients and weights may rest elsewhere too, the first ones of each
 * class. Wanted is the least time that fits the budget.
 *
 *   bytes = resident + n_slots * (largest chunk: its own + its layers' slots less what is away)
 *         + max(scratch floor, any layer's scratch + stay_copies * what of it is away)
 *         - groups that are away + buffers of their classes
 *   ns    = n_micro_batches * (added by layers, each as often as there are such)
 *         + of each pass: max(0, link - time of the pass) + what the host takes longer to update
 *   link  = max(bytes out * out_ns, bytes in * in_ns): both directions at the same time
 *
 * Of equal times the one is taken that moves least, then the one with fewest bytes. Copies cost
 * nothing as far as the pass that they travel in (forward, backward, update) is as long. What is
 * kept leaves in the forward and comes back in the backward.
 *
 * The answer is the best of all there are: layers are added one by one to a list of sums of which
 * none is worse than another in every respect. A list of more than MEMORY_SUMS_MAX (half of that,
 * if parts may move), or a kind of layer with more than MEMORY_OPTIONS_MAX ways, is thinned, and of
 * many groups not all numbers are tried, but all about the best of some. Then single layers are
 * given other ways for as long as that is better, and the answer says that it is thinned. More
 * budget never gives a slower answer, as long as it does not.
 */
#ifndef PLAN_MEMORY_SOLVER_H
#define PLAN_MEMORY_SOLVER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"

#define MEMORY_SUMS_MAX 1024
#define MEMORY_LAST_MAX 16384
#define MEMORY_OPTIONS_MAX 96
#define MEMORY_PARTS_MAX 24

enum travel_pass { MEMORY_FORWARD, MEMORY_BACKWARD, MEMORY_UPDATE, N_MEMORY_PASSES };

/* Bytes over the link in all runs of a pass in a step. */
struct memory_traffic {
    int64_t out, in;
};

struct memory_point {
    int64_t added_ns, slot_bytes; /* of a micro-batch */
    int64_t scratch_bytes;        /* within the layer's backward */
    /* Bytes of slot_bytes that may rest elsewhere, each by itself. */
    int64_t parts[MEMORY_PARTS_MAX];
    int n_parts;
};

struct memory_layer_kind {
    const struct memory_point *points; /* the first is taken where several are as good */
    int n_points;
    int64_t forward_ns, backward_ns; /* of a micro-batch, without what points add */
    /* What a layer of the kind adds and moves, so many layers do: those of chunks that share its
     * slot, and therefore keep the same. 0: one. */
    int n_alike;
};

struct memory_chunk {
    const int *kind_of_layer;
    int n_layers;
    int64_t slot_bytes; /* beside the layers */
};

enum memory_class { MEMORY_STATES, MEMORY_GRADIENTS, MEMORY_WEIGHTS, N_MEMORY_CLASSES };

struct memory_group {
    int64_t n_bytes; /* that are free while it is away */
    struct memory_traffic traffic[N_MEMORY_PASSES];
    /* Of states that the host updates: the traffic is this, and the time, which it takes longer
     * than the device, is added to the update. */
    struct memory_traffic host_traffic[N_MEMORY_PASSES];
    int64_t host_ns;
};

/* Groups leave in their order. */
struct memory_groups {
    const struct memory_group *items;
    int n;                /* 0: none may leave */
    int64_t buffer_bytes; /* on the device, once a group is away */
};

struct memory_lists;

struct memory_problem {
    const struct memory_layer_kind *kinds;
    int n_kinds;
    const struct memory_chunk *chunks;
    int n_chunks;
    int n_slots, n_micro_batches;
    bool may_move_parts; /* else kept values stay on the device */
    int stay_copies;     /* of a layer's parts that are away: on the device within its passes */
    struct memory_groups groups[N_MEMORY_CLASSES];
    bool may_update_on_device, may_update_on_host; /* states that are away; one at least */
    int64_t resident_bytes; /* all but slots and scratch, with all groups on the device */
    int64_t scratch_bytes;  /* the floor: of everything but the layers' backward */
    int64_t update_ns;      /* of the update, all on the device */
    double out_ns, in_ns;   /* of a byte, over the link */
    int64_t budget_bytes;
    int64_t host_budget_bytes;  /* of cells that are away; 0: no limit */
    struct memory_lists *lists; /* of a problem with other bytes and groups alone; NULL: none yet */
};

struct memory_layer_choice {
    int point;
    uint32_t away; /* parts, by bit */
};

struct memory_choice {
    bool fits; /* else what follows takes the fewest bytes that were found */
    struct memory_layer_choice *const
        *layers;                  /* [chunk][layer]: what recomputes least comes last */
    int n_away[N_MEMORY_CLASSES]; /* groups */
    bool is_host_update;
    int64_t bytes;
    int64_t ns; /* the sum of: */
    int64_t recompute_ns, host_ns, stall_ns[N_MEMORY_PASSES];
    int64_t moved_bytes; /* over the link in a step, both directions together */
    bool is_thinned;
};

/*
 * What answers for several budgets have in common: the problem's `lists`, in the arena. They serve
 * problems that differ in resident_bytes, budget_bytes, prices of copies, and groups, as long as
 * there are as many of these.
 */
struct memory_lists *memory_lists_open(const struct memory_problem *problem, struct arena *arena);

/* The choice's lists are in the arena. */
void memory_solve(struct memory_choice *choice, const struct memory_problem *problem,
                  struct arena *arena);

#endif
