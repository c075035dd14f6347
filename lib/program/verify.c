/*
 * verify.c - what can be known to be right before a step runs
 *
 * Each op is checked alone (shapes, spreads), each function for its order (written once, and before it is
 * read; nothing that lives overlaps), and each entry by walking its actions as run will: a stash value
 * must be of the micro-batch that reads it, an accumulator must see the micro-batches in increasing
 * order, and memory that holds sums still owed to other ranks must not be read as if it were whole.
 */
#include <stdio.h>

#include "base/num.h"
#include "program/passes.h"

struct walk {
    const struct program *program;
    struct err *err;
    const char *entry;
    int micro_batch, slot;
    int *written;           /* by base value (stash: + slot): 1 + micro-batch (+1 if none) that wrote it */
    int *accumulated;       /* by value: 1 + last micro-batch added */
    unsigned char *spread;  /* by base value and axis: as last written */
};

static const char *value_text(const struct program *p, int id, char *buffer, size_t size)
{
    if (p->values[id].name)
        return p->values[id].name;
    snprintf(buffer, size, "%%%d", id);
    return buffer;
}

static int complain(const struct program *p, const struct function *f, const struct op *op,
                    int value, const char *what, struct err *err)
{
    char text[32];

    return err_set(err, ERR_FAILED, "program: %s: %s (layer %d): %s %s", f->name,
                   op_info(op->kind)->name, op->layer, value_text(p, value, text, sizeof text),
                   what);
}

static int is_collective(enum op_kind kind)
{
    return kind == OP_ALL_GATHER || kind == OP_REDUCE_SCATTER || kind == OP_ALL_REDUCE_SCALAR;
}

static int check_spreads(const struct program *p, const struct function *f, const struct op *op,
                         const struct op_shape *shape, struct err *err)
{
    static const char *const axes[N_AXES] = { "dp", "tp", "pp", "cp", "ep" };

    for (int axis = 0; axis < N_AXES; axis++) {
        enum spread in[OPS_MAX_INPUTS], out[OPS_MAX_OUTPUTS] = { SPREAD_SAME };

        if (p->mesh.size[axis] == 1)
            continue;
        for (int k = 0; k < OPS_MAX_INPUTS; k++)
            in[k] = p->values[op->in[k]].spread[axis];
        int on_axis = is_collective(op->kind) && (int)op->attributes.axis == axis;
        if (op_spread(shape, on_axis, in, out, err) < 0)
            return err_add(err, "program: %s: over %s", f->name, axes[axis]);
        for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
            if (op->out[k] && p->values[op->out[k]].spread[axis] != out[k])
                return complain(p, f, op, op->out[k], "does not have the spread its op gives",
                                err);
    }
    return 0;
}

static int check_ops(const struct program *p, const struct function *f, struct err *err)
{
    for (int i = 0; i < f->n_ops; i++) {
        struct op_shape shape = program_op_shape(p, &f->ops[i]);

        if (op_check(&shape, err) < 0)
            return err_add(err, "program: %s", f->name);
        if (check_spreads(p, f, &f->ops[i], &shape, err) < 0)
            return -1;
    }
    return 0;
}

/* ---- memory: live values of a function must not overlap ---- */

struct live {
    int first, last;
    size_t begin, end;
    int value;
};

static void extend(const struct program *p, struct live *lives, int id, int begin, int end)
{
    int v = program_base(p, id);

    if (!v || p->values[v].scope != SCOPE_PASS || p->values[v].role != ROLE_NONE)
        return;
    struct live *l = &lives[v];
    if (!l->value)
        *l = (struct live){ begin, end, p->values[v].place_bytes,
                            p->values[v].place_bytes + program_value_bytes(p, v), v };
    l->first = min_int(l->first, begin);
    l->last = max_int(l->last, end);
}

static int check_overlap(const struct program *p, const struct function *f, struct arena *arena,
                         struct err *err)
{
    struct live *lives = arena_array(arena, struct live, p->n_values);
    int n = 0;

    for (int i = 0; i < f->n_ops; i++) {
        int end = f->ops[i].stream == STREAM_COMPUTE ? i : f->n_ops;

        for (int k = 0; k < OPS_MAX_INPUTS; k++)
            extend(p, lives, f->ops[i].in[k], i, end);
        for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
            extend(p, lives, f->ops[i].out[k], i, end);
    }
    for (int v = 0; v < p->n_values; v++)
        if (lives[v].value)
            lives[n++] = lives[v];
    for (int a = 0; a < n; a++)
        for (int b = 0; b < a; b++) {
            const struct live *x = &lives[a], *y = &lives[b];

            if (x->first <= y->last && y->first <= x->last && x->begin < y->end &&
                y->begin < x->end)
                return err_set(err, ERR_FAILED, "program: %s: %%%d and %%%d overlap in memory",
                               f->name, x->value, y->value);
        }
    return 0;
}

/* ---- order: walk an entry's actions as run does ---- */

static int *written_of(const struct walk *w, int base)
{
    int slot = w->program->values[base].scope == SCOPE_STASH ? w->slot : 0;

    return &w->written[(size_t)slot * (size_t)w->program->n_values + (size_t)base];
}

static unsigned char *spread_of(const struct walk *w, int base)
{
    return &w->spread[(size_t)base * N_AXES];
}

static int must_be_written(const struct value *v)
{
    return v->role == ROLE_NONE || v->role == ROLE_GRADIENT || v->role == ROLE_INPUT;
}

static int check_read(const struct walk *w, const struct function *f, const struct op *op, int id)
{
    const struct program *p = w->program;
    int base = program_base(p, id);
    const struct value *v = &p->values[base];

    if (!must_be_written(v))
        return 0;
    if (!*written_of(w, base))
        return complain(p, f, op, id, "is read before it is written", w->err);
    if (v->scope == SCOPE_STASH && *written_of(w, base) != w->micro_batch + 2)
        return complain(p, f, op, id, "is of another micro-batch: its slot was reused too early",
                        w->err);
    for (int axis = 0; axis < N_AXES; axis++)
        if (p->mesh.size[axis] > 1 && spread_of(w, base)[axis] == SPREAD_PARTIAL &&
            p->values[id].spread[axis] != SPREAD_PARTIAL)
            return complain(p, f, op, id, "is read as whole while sums over ranks are owed", w->err);
    return 0;
}

static int check_write(struct walk *w, const struct function *f, const struct op *op, int k,
                       char *once)
{
    const struct program *p = w->program;
    int id = op->out[k], base = program_base(p, id);
    const struct value *v = &p->values[base];
    int accumulated = (op_info(op->kind)->outputs[k].flags & OPERAND_ACCUMULATED) != 0;

    if (v->role == ROLE_NONE && once[id])
        return complain(p, f, op, id, "is written twice", w->err);
    once[id] = 1;
    if (accumulated && op->first == FIRST_MICRO_BATCH) {
        if (w->micro_batch + 1 <= w->accumulated[id] - 1)
            return complain(p, f, op, id, "takes micro-batches out of order", w->err);
        w->accumulated[id] = w->micro_batch + 2;
    }
    *written_of(w, base) = w->micro_batch + 2;
    for (int axis = 0; axis < N_AXES; axis++)
        spread_of(w, base)[axis] = (unsigned char)p->values[id].spread[axis];
    return 0;
}

static int walk_function(struct walk *w, int function, struct arena *arena)
{
    const struct program *p = w->program;
    const struct function *f = &p->functions[function];
    char *once = arena_array(arena, char, p->n_values);

    for (int id = 1; id < p->n_values; id++)
        if (p->values[id].role == ROLE_NONE && p->values[id].scope == SCOPE_PASS)
            *written_of(w, program_base(p, id)) = 0;
    for (int i = 0; i < f->n_ops; i++) {
        const struct op *op = &f->ops[i];

        for (int k = 0; k < OPS_MAX_INPUTS; k++)
            if (op->in[k] && check_read(w, f, op, op->in[k]) < 0)
                return -1;
        for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
            if (op->out[k] && check_write(w, f, op, k, once) < 0)
                return -1;
    }
    return 0;
}

static int walk_entry(const struct program *p, enum entry_kind kind, struct arena *arena,
                      struct err *err)
{
    size_t n_values = (size_t)p->n_values, n_slots = (size_t)max_int(p->n_slots, 1);
    struct walk w = { .program = p, .err = err, .entry = entry_name(kind) };

    w.written = arena_array(arena, int, n_values * n_slots);
    w.accumulated = arena_array(arena, int, n_values);
    w.spread = arena_array(arena, unsigned char, n_values * N_AXES);
    for (int i = 0; i < p->entries[kind].n_actions; i++) {
        const struct action *a = &p->entries[kind].actions[i];
        struct arena scratch = { 0 };
        int failed = 0;

        w.micro_batch = a->micro_batch;
        w.slot = a->slot;
        CHECK(a->slot < (int)n_slots);
        if (a->kind == ACTION_LOAD)
            for (int id = 1; id < p->n_values; id++)
                if (p->values[id].role == ROLE_INPUT)
                    *written_of(&w, program_base(p, id)) = a->micro_batch + 2;
        if (a->kind == ACTION_RUN)
            failed = walk_function(&w, a->function, &scratch);
        arena_release(&scratch);
        if (failed)
            return err_add(err, "%s, micro-batch %d", w.entry, a->micro_batch);
    }
    return 0;
}

int verify(const struct program *program, struct err *err)
{
    struct arena arena = { 0 };
    int status = 0;

    for (int f = 0; !status && f < program->n_functions; f++) {
        status = check_ops(program, &program->functions[f], err);
        if (!status)
            status = check_overlap(program, &program->functions[f], &arena, err);
    }
    for (int e = 0; !status && e < N_ENTRIES; e++)
        status = walk_entry(program, (enum entry_kind)e, &arena, err);
    arena_release(&arena);
    return status;
}
