/*
 * verify_rounds.c - the rounds of a step that a walk need not walk
 *
 * A step of many micro-batches is for the most part one round of actions, over and over, each time
 * a few micro-batches later. The checks of verify.c know micro-batches only by their distance to
 * each other and by the slots that they fall into. So if a round has left all that the checks ask
 * about as it had found it, but for being so many micro-batches later, then the next one, the same
 * round, finds the same answers as it did and leaves the same again: none of those that follow can
 * be refused, and what the last of them leaves is what there is now, so many micro-batches later.
 */
#include <string.h>

#include "base/num.h"
#include "layout/axes.h"
#include "program/verify_walk_impl.h"

int walk_slots_of(const struct program *program, int id)
{
    const struct value *v = &program->values[id];

    return v->scope == SCOPE_STASH && program->n_stashes ? program->stashes[v->stash].n_slots : 1;
}

static int is_later(const struct action *now, const struct action *before, int shift)
{
    struct action moved = *before;

    moved.micro_batch += shift;
    return !memcmp(&moved, now, sizeof moved);
}

int verify_count_rounds(const struct entry *entry, int i, int n, int shift, int most)
{
    int n_same = 0;

    if (n < 1 || i < n)
        return 0;
    while (i + n_same < entry->n_actions && n_same / n < most &&
           is_later(&entry->actions[i + n_same], &entry->actions[i + n_same - n], shift))
        n_same++;
    return n_same / n;
}

/* ---- one round later, is it all the same? ---- */

/* Of values in a stash it is asked which micro-batch's they are. */
static int is_written_later(const struct walk *now, const struct walk *then, int id, int shift)
{
    const int *a = &then->written[then->slots_at[id]], *b = &now->written[now->slots_at[id]];
    const struct value *v = &now->program->values[id];
    int n = walk_slots_of(now->program, id);

    /* Of others it is asked whether they ever were, or in this run: then they will be found so. */
    if (v->base || v->scope != SCOPE_STASH)
        return 1;
    for (int s = 0; s < n; s++)
        if (b[(s + shift) % n] != (a[s] == NEVER ? NEVER : a[s] + shift))
            return 0;
    return 1;
}

/* Has it been added up anew since its last sum over ranks was begun? -1: never was. */
static int is_current(const struct walk *w, int id)
{
    if (w->started[id] == NEVER)
        return -1;
    return w->started[id] == 1 + w->reduced[program_base(w->program, id)];
}

static int is_accumulated_later(const struct walk *now, const struct walk *then, int id, int shift)
{
    int was_touched = now->once[id] > then->run && now->accumulated[id] != NEVER;

    return now->accumulated[id] == then->accumulated[id] + (was_touched ? shift : 0) &&
           is_current(now, id) == is_current(then, id);
}

static int is_same(const struct walk *now, const struct walk *then)
{
    size_t n = (size_t)now->program->n_values;

    return !memcmp(now->last_started, then->last_started, n * sizeof(int)) &&
           !memcmp(now->started_before, then->started_before, n * sizeof(int)) &&
           !memcmp(now->gathered, then->gathered, n * sizeof(int)) &&
           !memcmp(now->spread, then->spread, n * N_AXES);
}

static int has_moved_on(const struct walk *now, const struct walk *then, int shift)
{
    if (!is_same(now, then))
        return 0;
    for (int id = 1; id < now->program->n_values; id++)
        if (!is_written_later(now, then, id, shift) || !is_accumulated_later(now, then, id, shift))
            return 0;
    return 1;
}

/* ---- then leave some out ---- */

static void move_on(struct walk *w, struct walk *then, int n_micro_batches)
{
    const struct program *p = w->program;

    for (int id = 1; id < p->n_values; id++) {
        int *to = &w->written[w->slots_at[id]], *from = &then->written[w->slots_at[id]];
        int n = walk_slots_of(p, id);

        if (w->accumulated[id] != then->accumulated[id])
            w->accumulated[id] += n_micro_batches;
        if (p->values[id].base || p->values[id].scope != SCOPE_STASH)
            continue;
        memcpy(from, to, sizeof *to * (size_t)n);
        for (int s = 0; s < n; s++)
            to[(s + n_micro_batches) % n] = from[s] == NEVER ? NEVER : from[s] + n_micro_batches;
    }
}

static void copy(struct arena *arena, int **to, const int *from, int n)
{
    if (!*to)
        *to = arena_array(arena, int, n);
    memcpy(*to, from, sizeof **to * (size_t)n);
}

static void take(struct rounds *r, const struct walk *w, int action, int micro_batch)
{
    int n = w->program->n_values;
    struct walk *then = &r->then;

    then->run = w->run;
    then->program = w->program;
    then->slots_at = w->slots_at;
    then->once = w->once; /* not asked about */
    copy(r->arena, &then->written, w->written, w->n_slots);
    copy(r->arena, &then->accumulated, w->accumulated, n);
    copy(r->arena, &then->started, w->started, n);
    copy(r->arena, &then->reduced, w->reduced, n);
    copy(r->arena, &then->last_started, w->last_started, n);
    copy(r->arena, &then->started_before, w->started_before, n);
    copy(r->arena, &then->gathered, w->gathered, n);
    if (!then->spread)
        then->spread = arena_array(r->arena, unsigned char, n *N_AXES);
    memcpy(then->spread, w->spread, (size_t)n * N_AXES);
    r->is_taken = 1;
    r->action = action;
    r->micro_batch = micro_batch;
}

int rounds_to_skip(struct rounds *r, struct walk *w, const struct entry *e, int i)
{
    int micro_batch = e->actions[i].micro_batch;
    int shift = micro_batch - r->micro_batch, n = i - r->action;
    /* Interleaved stages take as many micro-batches at a time as there are ranks. */
    int longest = axes_size(&w->program->mesh, SPLITS_LAYERS, PARAMETER_DENSE);
    int repeats = r->is_taken && shift > 0 && verify_count_rounds(e, i, n, shift, 1);

    if (repeats && has_moved_on(w, &r->then, shift)) {
        int n_rounds = verify_count_rounds(e, i, n, shift, e->n_actions);

        move_on(w, &r->then, n_rounds * shift);
        r->is_taken = 0;
        return n_rounds * n;
    }
    /* Little is lost where there is none: a copy of the marks is cheaper than a round. */
    if (!r->is_taken || repeats || shift < 1 || shift >= longest)
        take(r, w, i, micro_batch);
    return 0;
}
