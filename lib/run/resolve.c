/*
 * resolve.c - from value ids to addresses, once for each function and slot
 */
#include <stdio.h>
#include <string.h>

#include "run/run_impl.h"

static void *value_data(const struct run *run, int id, int slot)
{
    const struct value *v = &run->program->values[id];
    size_t offset = v->place_bytes;

    if (v->scope == SCOPE_STASH)
        offset += (size_t)slot * run->program->slot_bytes;
    if (v->own)
        offset += (size_t)run->coordinate[v->own - 1] * program_value_bytes(run->program, id);
    return run->memory.segment[v->segment] + offset;
}

void *run_data(const struct run *run, int value, int slot)
{
    CHECK(value > 0);
    CHECK(value < run->program->n_values);
    CHECK(slot < run->program->n_slots);
    return value_data(run, value, slot);
}

static struct tensor operand(const struct run *run, int id, int slot)
{
    const struct value *v = &run->program->values[id];

    if (!id)
        return (struct tensor){ 0 };
    return (struct tensor){ value_data(run, id, slot), v->rows, v->cols, v->stride, v->dtype };
}

/* Base values that some collective of the program touches. */
static char *find_touched(struct run *run)
{
    const struct program *p = run->program;
    char *touched = arena_array(&run->arena, char, p->n_values);

    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; i < p->functions[f].n_ops; i++) {
            const struct op *op = &p->functions[f].ops[i];

            if (!op_is_collective(op->kind))
                continue;
            for (int k = 0; k < OPS_MAX_INPUTS; k++)
                touched[program_base(p, op->in[k])] = 1;
            for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
                touched[program_base(p, op->out[k])] = 1;
        }
    touched[0] = 0;
    return touched;
}

static void list_shared_inputs(struct run *run, const char *touched)
{
    const struct program *p = run->program;
    int *list = arena_array(&run->arena, int, p->n_values);

    for (int id = 1; id < p->n_values; id++)
        if (touched[id] && p->values[id].role == ROLE_INPUT)
            list[run->n_shared_inputs++] = id;
    run->shared_inputs = list;
}

static void list_touches(struct run *run, const struct op *op, const char *touched,
                         struct resolved_op *out)
{
    int ids[OPS_MAX_INPUTS + OPS_MAX_OUTPUTS], n = 0;

    for (int k = 0; k < OPS_MAX_INPUTS + OPS_MAX_OUTPUTS; k++) {
        int id = k < OPS_MAX_INPUTS ? op->in[k] : op->out[k - OPS_MAX_INPUTS];
        int base = program_base(run->program, id);

        if (base && touched[base])
            ids[n++] = base;
    }
    int *list = arena_array(&run->arena, int, n);
    memcpy(list, ids, sizeof *list * (size_t)n);
    out->touches = list;
    out->n_touches = n;
}

/* Is this the last op of f that touches base? */
static int dies_at(const struct program *p, const struct function *f, int index, int base)
{
    for (int i = index + 1; i < f->n_ops; i++) {
        for (int k = 0; k < OPS_MAX_INPUTS; k++)
            if (program_base(p, f->ops[i].in[k]) == base)
                return 0;
        for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
            if (program_base(p, f->ops[i].out[k]) == base)
                return 0;
    }
    return 1;
}

static int writes_base(const struct program *p, const struct function *f, int base)
{
    for (int i = 0; i < f->n_ops; i++)
        for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
            if (program_base(p, f->ops[i].out[k]) == base)
                return 1;
    return 0;
}

/* Plain values die after their last use: pass values in every function, stash values where read
 * only. */
static void list_dead(struct run *run, const struct function *f, int index, int slot,
                      const char *touched, struct resolved_op *out)
{
    const struct program *p = run->program;
    const struct op *op = &f->ops[index];
    struct dead_range *dead =
        arena_array(&run->arena, struct dead_range, OPS_MAX_INPUTS + OPS_MAX_OUTPUTS);
    int n = 0;

    for (int k = 0; k < OPS_MAX_INPUTS + OPS_MAX_OUTPUTS; k++) {
        int id = k < OPS_MAX_INPUTS ? op->in[k] : op->out[k - OPS_MAX_INPUTS];
        int base = program_base(p, id);

        /* What a collective touches may still be read when the next op runs. */
        if (!base || touched[base] || p->values[base].role != ROLE_NONE ||
            !dies_at(p, f, index, base))
            continue;
        if (p->values[base].scope == SCOPE_STASH && writes_base(p, f, base))
            continue;
        dead[n++] =
            (struct dead_range){ value_data(run, base, slot), program_value_bytes(p, base) };
    }
    out->dead = dead;
    out->n_dead = n;
}

/* "attention layers.9", "reduce_scatter dp bucket.3": what the hang report calls it. */
static void describe_op(const struct program *p, const struct op *op,
                        char text[PROGRESS_TEXT_BYTES])
{
    const char *kind = op_info(op->kind)->name;
    const char *name = p->values[program_base(p, op->in[0])].name;
    const char *axis = op_is_collective(op->kind) ? axis_name(op->attributes.axis) : "";
    const char *space = axis[0] ? " " : "";

    /* A collective's cell says more than its layer, and has the layer in its name. */
    if (op->layer >= 0 && !(axis[0] && name))
        snprintf(text, PROGRESS_TEXT_BYTES, "%s%s%s layers.%d", kind, space, axis, op->layer);
    else
        snprintf(text, PROGRESS_TEXT_BYTES, "%s%s%s%s%s", kind, space, axis, name ? " " : "",
                 name ? name : "");
}

static void resolve_op(struct run *run, const struct op *op, int slot, struct resolved_op *out)
{
    struct op_shape shape = { .kind = op->kind, .attributes = op->attributes };

    for (int k = 0; k < OPS_MAX_INPUTS; k++)
        shape.in[k] = operand(run, op->in[k], slot);
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        shape.out[k] = operand(run, op->out[k], slot);
    out->call.op = shape;
    out->call.scratch = run->memory.segment[SEGMENT_LIBRARY];
    out->first = op->first;
    out->layer = op->layer;
    out->is_async = op_is_collective(op->kind);
    out->collective = (struct collective){ .kind = op->kind,
                                           .group = run->groups[op->attributes.axis],
                                           .in = shape.in[0],
                                           .out = shape.out[0],
                                           .scratch = run->memory.segment[SEGMENT_COMM] };
    describe_op(run->program, op, out->text);
}

static int has_pass_operand(const struct program *p, const struct op *op)
{
    for (int k = 0; k < OPS_MAX_INPUTS; k++)
        if (op->in[k] && p->values[op->in[k]].scope == SCOPE_PASS)
            return 1;
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        if (op->out[k] && p->values[op->out[k]].scope == SCOPE_PASS)
            return 1;
    return 0;
}

static int resolve_function(struct run *run, int function, int slot, const char *touched,
                            struct err *err)
{
    const struct function *f = &run->program->functions[function];
    struct resolved_function *r = resolved(run, function, slot);

    r->ops = arena_array(&run->arena, struct resolved_op, f->n_ops);
    for (int i = 0; i < f->n_ops; i++) {
        struct resolved_op *op = &r->ops[i];

        resolve_op(run, &f->ops[i], slot, op);
        list_touches(run, &f->ops[i], touched, op);
        if (run->options.poison)
            list_dead(run, f, i, slot, touched, op);
        r->n_ops = i + 1;
        if (op->is_async)
            r->drains |= has_pass_operand(run->program, &f->ops[i]);
        else if (slot > 0)
            op->call.state = resolved(run, function, 0)->ops[i].call.state;
        else if (kernels_prepare(run->options.kernels, &op->call, err) < 0)
            return err_add(err, "%s", f->name);
        progress_beat(run->progress);
    }
    return 0;
}

int resolve(struct run *run, struct err *err)
{
    const struct program *p = run->program;
    char *touched = find_touched(run);

    list_shared_inputs(run, touched);
    run->users = arena_array(&run->arena, struct resolved_op *, p->n_values);
    run->functions =
        arena_array(&run->arena, struct resolved_function, p->n_functions * p->n_slots);
    for (int f = 0; f < p->n_functions; f++)
        for (int slot = 0; slot < p->n_slots; slot++)
            if (resolve_function(run, f, slot, touched, err) < 0)
                return -1;
    return 0;
}

void resolve_release(struct run *run)
{
    const struct program *p = run->program;

    for (int f = 0; run->functions && f < p->n_functions; f++) {
        struct resolved_function *r = resolved(run, f, 0);

        for (int i = 0; i < r->n_ops; i++)
            if (!r->ops[i].is_async)
                kernels_release(run->options.kernels, &r->ops[i].call);
    }
}
