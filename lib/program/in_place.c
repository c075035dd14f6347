/*
 * in_place.c - an op whose input nobody reads any more writes over it
 *
 * The output stays a value of its own, so that every pass and check sees what is read of which;
 * it only says in whose memory it lies.
 */
#include <string.h>

#include "program/passes.h"

/*
 * Of each value, views counted as their bases. Functions may be copies of each other (shard.c): then
 * each must write the value, and write over it with the same output.
 */
struct overlay {
    struct program *program;
    int *function;   /* 1 + the one at hand, where that touches it */
    int *last;       /* the last op there that does */
    char *is_needed; /* a function reads what another has written, or reads it last otherwise */
    int *by;         /* the output that takes its memory, 0 none */
};

/* All of it, be it by views. */
static int writes(const struct program *p, const struct op *op, int id)
{
    int64_t n = 0;

    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        if (op->out[k] && program_whole(p, op->out[k]) == id)
            n += p->values[op->out[k]].rows * p->values[op->out[k]].cols;
    return n == p->values[id].rows * p->values[id].cols;
}

static void touch(struct overlay *o, int function, int i, int id)
{
    int value = program_whole(o->program, id);

    if (o->function[value] != 1 + function) {
        o->function[value] = 1 + function;
        o->is_needed[value] |= !writes(o->program, &o->program->functions[function].ops[i], value);
    }
    o->last[value] = i;
}

/* Values of the same extents, each its memory's only owner so far. */
static int fit(const struct program *p, int in, int out)
{
    const struct value *a = &p->values[in], *b = &p->values[out];

    return a->role == ROLE_NONE && b->role == ROLE_NONE && !a->base && !b->base &&
           a->rows == b->rows && a->cols == b->cols && a->stride == b->stride &&
           a->dtype == b->dtype && !memcmp(a->spread, b->spread, sizeof a->spread);
}

/* Does the op that touches the value last write over it? */
static int is_overlaid(const struct overlay *o, const struct op *op, int value)
{
    return op_info(op->kind)->outputs[OPS_FIRST].flags & OPERAND_IN_PLACE &&
           op->in[OPS_FIRST] == value && fit(o->program, value, op->out[OPS_FIRST]) &&
           (!o->by[value] || o->by[value] == op->out[OPS_FIRST]);
}

static void look_at(struct overlay *o, int function)
{
    const struct program *p = o->program;
    const struct function *f = &p->functions[function];

    for (int i = 0; i < f->n_ops; i++) {
        for (int k = 0; k < OPS_MAX_INPUTS; k++)
            touch(o, function, i, f->ops[i].in[k]);
        for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
            touch(o, function, i, f->ops[i].out[k]);
    }
    for (int id = 1; id < p->n_values; id++) {
        if (o->function[id] != 1 + function)
            continue;
        const struct op *last = &f->ops[o->last[id]];
        if (is_overlaid(o, last, id))
            o->by[id] = last->out[OPS_FIRST];
        else
            o->is_needed[id] = 1;
    }
}

int work_in_place(struct program *program)
{
    int n_values = program->n_values, n_in_place = 0;
    struct arena arena = { 0 };
    struct overlay o = { .program = program,
                         .function = arena_array(&arena, int, n_values),
                         .last = arena_array(&arena, int, n_values),
                         .is_needed = arena_array(&arena, char, n_values),
                         .by = arena_array(&arena, int, n_values) };

    for (int f = 0; f < program->n_functions; f++)
        look_at(&o, f);
    for (int id = 1; id < n_values; id++)
        if (o.by[id] && !o.is_needed[id]) {
            program->values[o.by[id]].over = id;
            n_in_place++;
        }
    arena_release(&arena);
    return n_in_place;
}
