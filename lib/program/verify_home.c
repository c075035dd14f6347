/*
 * verify_home.c - values that come and go, on verify's walk
 *
 * A value with a home is read only where it was brought in the function at hand, and what a stay
 * has written is sent home. A host op reads and writes the home itself, while the value is not in
 * the device's memory, or has only been read there; once the home is written, what was brought
 * before is old.
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "program/verify_walk_impl.h"

/* A home, or a part of one. */
static bool is_home(const struct verify_walk *w, int id)
{
    return w->owners[program_base(w->program, id)] != 0;
}

/* The value that the op brings from a home, or sends to one; else 0. */
static int brought(const struct verify_walk *w, const struct op *op)
{
    int id = op->out[TO_DEVICE_Y];

    return op->kind == OP_TO_DEVICE && w->program->values[id].home &&
                   is_home(w, op->in[TO_DEVICE_X])
               ? id
               : 0;
}

static int sent_home(const struct verify_walk *w, const struct op *op)
{
    int id = op->in[TO_HOST_X];

    return op->kind == OP_TO_HOST && w->program->values[id].home && is_home(w, op->out[TO_HOST_Y])
               ? id
               : 0;
}

static unsigned char *spread_of(const struct verify_walk *w, int id)
{
    return &w->spread[(size_t)id * N_AXES];
}

/* The value whose home, or part of it, this value's home is. */
static int owner_of(const struct verify_walk *w, int id)
{
    return w->owners[program_base(w->program, w->program->values[id].home)];
}

/* What is known of its contents holds when it comes back: it is the same value, or a piece of
 * it. */
static int check_coming(struct verify_walk *w, const struct function *f, const struct op *op,
                        int id)
{
    const struct value *v = &w->program->values[id];

    if (op->in[TO_DEVICE_X] != v->home)
        return verify_complain(w->program, f, op, id, "is brought from another value's home",
                               w->err);
    if (w->unsaved[id] == w->run)
        return verify_complain(w->program, f, op, id, "is brought over what has not been sent home",
                               w->err);
    for (int other = w->first_at_home[program_whole(w->program, v->home)]; other;
         other = w->next_at_home[other])
        if (other != id && w->unsaved[other] == w->run &&
            program_overlap(w->program, v->home, w->program->values[other].home))
            return verify_complain(w->program, f, op, id,
                                   "is brought before a change of its home was sent", w->err);
    w->written[id] = w->run;
    w->n_filled[id] = v->rows * v->cols;
    if (owner_of(w, id) != id)
        memcpy(spread_of(w, id), spread_of(w, owner_of(w, id)), N_AXES);
    return 0;
}

/* Others whose homes have changed now are not here any more as they are. */
static void forget_others(struct verify_walk *w, int id, int home)
{
    const struct value *values = w->program->values;

    for (int v = w->first_at_home[program_whole(w->program, home)]; v; v = w->next_at_home[v])
        if (v != id && w->written[v] == w->run && program_overlap(w->program, values[v].home, home))
            w->written[v] = NEVER;
}

/* It may be written, and so listed, again in this run. */
static void note_saved(struct verify_walk *w, int id)
{
    int *at = &w->last_unsaved;

    while (*at && *at != id)
        at = &w->unsaved_before[*at];
    if (*at)
        *at = w->unsaved_before[id];
    w->unsaved[id] = NEVER;
}

static int check_going(struct verify_walk *w, const struct function *f, const struct op *op, int id)
{
    const struct value *v = &w->program->values[id];

    if (op->out[TO_HOST_Y] != v->home)
        return verify_complain(w->program, f, op, id, "is sent to another value's home", w->err);
    if (w->written[id] != w->run)
        return verify_complain(w->program, f, op, id, "is sent home while it is away", w->err);
    if (w->n_filled[id] < v->rows * v->cols)
        return verify_complain(w->program, f, op, id, "is sent home though only a part is here",
                               w->err);
    note_saved(w, id);
    w->written[program_base(w->program, v->home)] = WRITTEN;
    if (owner_of(w, id) != id)
        memcpy(spread_of(w, owner_of(w, id)), spread_of(w, id), N_AXES);
    forget_others(w, id, v->home);
    return 0;
}

bool verify_comes_or_goes(const struct verify_walk *w, const struct op *op)
{
    return brought(w, op) || sent_home(w, op);
}

int verify_move(struct verify_walk *w, const struct function *f, const struct op *op)
{
    int id = brought(w, op);

    return id ? check_coming(w, f, op, id) : check_going(w, f, op, sent_home(w, op));
}

/* A stay that writes it is to be followed by its way home. */
static void note_unsaved(struct verify_walk *w, int id)
{
    int base = program_base(w->program, id);
    const struct value *v = &w->program->values[id];

    if (!w->program->values[base].home)
        return;
    if (w->written[base] != w->run)
        w->n_filled[base] = 0;
    if (w->once[id] != w->run)
        w->n_filled[base] += v->rows * v->cols;
    if (w->unsaved[base] == w->run)
        return;
    w->unsaved[base] = w->run;
    w->unsaved_before[base] = w->last_unsaved;
    w->last_unsaved = base;
}

int verify_at_home(const struct verify_walk *w, const struct function *f, const struct op *op,
                   int id, const char *what)
{
    const struct value *values = w->program->values;
    char text[64];
    int v = w->first_at_home[program_whole(w->program, id)];

    while (v && !(w->unsaved[v] == w->run && program_overlap(w->program, values[v].home, id)))
        v = w->next_at_home[v];
    if (!v)
        return 0;
    snprintf(text, sizeof text, "%s before what was written is sent there", what);
    return verify_complain(w->program, f, op, id, text, w->err);
}

int verify_note_write(struct verify_walk *w, const struct function *f, const struct op *op, int id)
{
    int owner = w->owners[program_base(w->program, id)];

    if (!owner) {
        note_unsaved(w, id);
        return 0;
    }
    if (verify_at_home(w, f, op, id, "is written") < 0)
        return -1;
    forget_others(w, 0, id);
    return 0;
}

int verify_all_saved(struct verify_walk *w, const struct function *f)
{
    for (; w->last_unsaved; w->last_unsaved = w->unsaved_before[w->last_unsaved])
        if (w->unsaved[w->last_unsaved] == w->run)
            return verify_complain(w->program, f, &f->ops[f->n_ops - 1], w->last_unsaved,
                                   "is written and not sent home", w->err);
    return 0;
}

void verify_open_stays(struct verify_walk *w, struct arena *arena)
{
    const struct program *p = w->program;
    size_t n_values = (size_t)p->n_values;

    w->unsaved = arena_array(arena, int, n_values);
    w->unsaved_before = arena_array(arena, int, n_values);
    w->n_filled = arena_array(arena, int64_t, n_values);
    w->first_at_home = arena_array(arena, int, n_values);
    w->next_at_home = arena_array(arena, int, n_values);
    for (int v = 1; v < p->n_values; v++)
        if (p->values[v].home) {
            int *first = &w->first_at_home[program_whole(p, p->values[v].home)];

            w->next_at_home[v] = *first;
            *first = v;
        }
}
