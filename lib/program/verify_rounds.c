/*
 * verify_rounds.c - rounds of a step that verify need not walk
 *
 * A step of many micro-batches is mostly one round of actions, repeated with the micro-batches
 * shifted. The walk of verify.c uses micro-batches only by their distance to each other (the
 * contents of slots are checked by verify_stash.c). So if a round has left everything that the
 * checks look at as it found it, but for the shift, the next round, which has the same actions,
 * finds the same and leaves the same: none of the rounds that follow can be refused, and the state
 * after the last of them is the present state, shifted.
 */
#include <stdbool.h>
#include <string.h>

#include "base/num.h"
#include "program/verify_walk_impl.h"

/* ---- whether a round leaves the state as it found it, shifted ---- */

/* Whether it has started from zero since its last sum over ranks began; -1: it never did. */
static int is_current(const struct verify_walk *w, int id)
{
    if (w->started[id] == NEVER)
        return -1;
    return w->started[id] == 1 + w->reduced[program_base(w->program, id)];
}

static bool is_accumulated_later(const struct verify_walk *now, const struct verify_walk *then,
                                 int id, int shift)
{
    int was_touched = now->once[id] > then->run && now->accumulated[id] != NEVER;

    return now->accumulated[id] == then->accumulated[id] + (was_touched ? shift : 0) &&
           is_current(now, id) == is_current(then, id);
}

static bool is_same(const struct verify_walk *now, const struct verify_walk *then)
{
    size_t n = (size_t)now->program->n_values;

    return !memcmp(now->last_started, then->last_started, n * sizeof(int)) &&
           !memcmp(now->started_before, then->started_before, n * sizeof(int)) &&
           !memcmp(now->gathered, then->gathered, n * sizeof(int)) &&
           !memcmp(now->spread, then->spread, n * N_AXES);
}

static bool has_moved_on(const struct verify_walk *now, const struct verify_walk *then, int shift)
{
    if (!is_same(now, then))
        return false;
    for (int id = 1; id < now->program->n_values; id++)
        if (!is_accumulated_later(now, then, id, shift))
            return false;
    return true;
}

/* ---- skipping ---- */

static void move_on(struct verify_walk *w, const struct verify_walk *then, int n_micro_batches)
{
    for (int id = 1; id < w->program->n_values; id++)
        if (w->accumulated[id] != then->accumulated[id])
            w->accumulated[id] += n_micro_batches;
}

static void copy(struct arena *arena, int **to, const int *from, int n)
{
    if (!*to)
        *to = arena_array(arena, int, n);
    memcpy(*to, from, sizeof **to * (size_t)n);
}

static void take(struct rounds *r, const struct verify_walk *w)
{
    int n = w->program->n_values;
    struct verify_walk *then = &r->then;

    then->run = w->run;
    then->program = w->program;
    copy(r->arena, &then->accumulated, w->accumulated, n);
    copy(r->arena, &then->started, w->started, n);
    copy(r->arena, &then->reduced, w->reduced, n);
    copy(r->arena, &then->last_started, w->last_started, n);
    copy(r->arena, &then->started_before, w->started_before, n);
    copy(r->arena, &then->gathered, w->gathered, n);
    if (!then->spread)
        then->spread = arena_array(r->arena, unsigned char, n *N_AXES);
    memcpy(then->spread, w->spread, (size_t)n * N_AXES);
}

/* Move to the part of the entry that has action i. */
static const struct order_rounds *part_of(struct rounds *r, int i)
{
    while (i >= r->parts->begin + r->parts->n * r->parts->n_times)
        r->parts++;
    return r->parts;
}

static int n_rounds_left(const struct order_rounds *part, int i)
{
    return (part->begin + part->n * part->n_times - i) / part->n;
}

int rounds_to_skip(struct rounds *r, struct verify_walk *w, int i)
{
    const struct order_rounds *part = part_of(r, i);
    int n = r->n_actions, n_rounds = n_rounds_left(part, i);

    if (n && i < r->action + n)
        return 0;
    r->n_actions = 0;
    /* The last round walked may have been the last of its part. */
    if (n && r->action >= part->begin && n_rounds > 0 && has_moved_on(w, &r->then, part->shift)) {
        move_on(w, &r->then, n_rounds * part->shift);
        return n_rounds * n;
    }
    if (n_rounds < 2 || part->n_times < 2)
        return 0;
    r->action = i;
    r->n_actions = part->n;
    take(r, w);
    return 0;
}
