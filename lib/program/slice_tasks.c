/*
 * slice_tasks.c - the tasks of a function that is cut into slices: what each comes after, and how
 * long it takes
 */
#include "base/num.h"
#include "program/order.h"
#include "program/slice_impl.h"

/* The shape of one op, in rows, and how many there are of a slice. */
static struct op_shape slice_shape(const struct slicer *s, int op, int slice, int *n)
{
    const struct op own = slice_op(s, op, slice), *o = &own;
    struct op_shape shape = program_op_shape(s->program, o);
    bool moves = op_is_collective(o->kind);

    *n = 1;
    if (slice < 0)
        return shape;
    if (s->slice_rows[op] < 0) {
        struct op group = slice_group(s, o, slice, slice_count(s, op));

        return program_op_shape(s->program, &group);
    }
    int64_t rows = slice_n_rows(s, op, slice);
    *n = slice_n_pieces(s, o);
    if (slice_is_in_runs(s, o))
        rows *= s->n_pieces;
    if (slice_is_joined(s, o)) {
        int n_runs = slice_n_runs(s, s->slice_rows[op]);

        rows = rows * s->n_joined / n_runs;
        *n *= n_runs;
    }
    for (int k = 0; k < ORDER_N_OPERANDS; k++) {
        const struct op_operand *info = slice_operand_info(o, k);
        struct tensor *t = k < OPS_MAX_INPUTS ? &shape.in[k] : &shape.out[k - OPS_MAX_INPUTS];

        if (slice_operand(o, k) && moves)
            t->rows = t->rows / s->period / *n * rows;
        else if (slice_operand(o, k) && slice_has_rows(info->rows))
            t->rows = rows;
    }
    return shape;
}

/* Without a device's: a core of some ten GFLOP/s and GB/s, and a link of one GB/s. */
static int64_t nominal_ns(const struct op_shape *shape, bool moves)
{
    return (int64_t)(moves ? op_bytes(shape) : op_flops(shape) / 50 + op_bytes(shape) / 10) + 1000;
}

static int64_t task_ns(const struct slicer *s, int op, int slice)
{
    const struct slice_times *times = &s->options->times;
    bool moves = op_is_collective(s->function->ops[op].kind);
    int n;
    struct op_shape shape = slice_shape(s, op, slice, &n);

    if (!times->context)
        return n * nominal_ns(&shape, moves);
    return n * (moves ? times->collective_ns : times->op_ns)(times->context, &shape);
}

/* Of what computes while it travels. */
static double task_slowdown(const struct slicer *s, int op)
{
    const struct slice_times *times = &s->options->times;
    const struct op *o = &s->function->ops[op];

    return times->slowdown && order_is_async(o)
               ? times->slowdown(times->context, o->attributes.axis)
               : 0;
}

static void come_after(struct arena *arena, struct slice_task *task, int other, int own)
{
    for (int i = 0; i < task->n_after; i++)
        if (task->after[i] == other)
            return;
    if (other == own)
        return;
    task->after =
        arena_grow(arena, task->after, sizeof *task->after, &task->capacity, task->n_after + 1);
    task->after[task->n_after++] = other;
}

/* The task comes after those that have written this, or, if it writes, read it. */
static void add_access(struct slicer *s, struct slice_tasks *t, int id, int64_t begin, int64_t end,
                       bool writes)
{
    int base = program_base(s->program, id), own = t->n - 1;
    struct slice_access *added = arena_new(&t->arena, struct slice_access);

    for (const struct slice_access *a = s->of_base[base]; a; a = a->next)
        if ((writes || a->writes) && a->begin < end && begin < a->end)
            come_after(&t->arena, &t->list[own], a->task, own);
    *added = (struct slice_access){ own, begin, end, writes, s->of_base[base] };
    s->of_base[base] = added;
}

/* Groups are counted where rows are elsewhere: what is not of a group is of all. */
static void add_group_accesses(struct slicer *s, struct slice_tasks *t, int group, int n)
{
    const struct op *op = &s->function->ops[t->list[t->n - 1].op];

    for (int k = 0; k < ORDER_N_OPERANDS; k++) {
        int id = slice_operand(op, k), base = program_base(s->program, id);
        bool is_sent = op->kind == OP_DISPATCH && k == DISPATCH_X;

        if (!id)
            continue;
        if (k >= OPS_MAX_INPUTS)
            s->grouped[base] = n;
        if (s->grouped[base] == n && id == base)
            add_access(s, t, id, is_sent ? 0 : group, group + 1, k >= OPS_MAX_INPUTS);
        else
            add_access(s, t, id, 0, max_i64(s->period, PROGRAM_MAX_PARTS), k >= OPS_MAX_INPUTS);
    }
}

static void add_accesses(struct slicer *s, struct slice_tasks *t, int slice)
{
    const struct slice_task *task = &t->list[t->n - 1];
    const struct op own = slice_op(s, task->op, slice), *op = &own;

    if (s->slice_rows[task->op] < 0) {
        add_group_accesses(s, t, slice, slice_count(s, task->op));
        return;
    }

    for (int k = 0; k < ORDER_N_OPERANDS; k++) {
        const struct op_operand *info = slice_operand_info(op, k);
        int64_t begin = 0, end = s->period;

        if (!slice_operand(op, k))
            continue;
        if (slice >= 0 && (op_is_collective(op->kind) || slice_has_rows(info->rows))) {
            begin = slice * s->slice_rows[task->op];
            end = begin + slice_n_rows(s, task->op, slice);
        }
        if (s->grouped[program_base(s->program, slice_operand(op, k))]) {
            begin = 0;
            end = PROGRAM_MAX_PARTS;
        }
        bool writes = k >= OPS_MAX_INPUTS || (info->flags & OPERAND_UPDATED);
        add_access(s, t, slice_operand(op, k), begin, end, writes);
    }
}

/* Whether the op adds to what cells keep. */
static bool is_of_sums(const struct op *op)
{
    for (int k = OPS_MAX_INPUTS; k < ORDER_N_OPERANDS; k++)
        if (slice_operand(op, k) && (slice_operand_info(op, k)->flags & OPERAND_ACCUMULATED))
            return true;
    return false;
}

/* Sums keep the order that they have. */
static void come_after_sums(struct slice_tasks *t)
{
    if (t->last_sum)
        come_after(&t->arena, &t->list[t->n - 1], t->last_sum - 1, t->n - 1);
    t->last_sum = t->n;
}

static void add_task(struct slicer *s, struct slice_tasks *t, int op, int slice)
{
    const struct op own = slice_op(s, op, slice), *o = &own;

    t->list[t->n++] = (struct slice_task){
        .op = op,
        .slice = slice,
        .stream = order_is_async(o) ? (int)o->stream : STREAM_COMPUTE,
        .is_cheap = !(op_info(o->kind)->traits & TRAIT_PRODUCT) && o->kind != OP_ATTENTION &&
                    o->kind != OP_ATTENTION_GRAD,
        .may_wait = slice_only_accumulates(s->program, o),
        .ns = task_ns(s, op, slice),
        .slowdown = task_slowdown(s, op),
    };
    add_accesses(s, t, slice);
    if (s->options->experts_alone && is_of_sums(o))
        come_after_sums(t);
    if (slice >= 0 || !order_is_async(o))
        return;
    if (t->last_posted[o->stream])
        come_after(&t->arena, &t->list[t->n - 1], t->last_posted[o->stream] - 1, t->n - 1);
    t->last_posted[o->stream] = t->n;
}

static void forget(struct slicer *s, int base)
{
    s->of_base[base] = NULL;
    s->grouped[base] = 0;
}

struct slice_tasks slice_list_tasks(struct slicer *s, int begin, int end)
{
    struct slice_tasks t = { 0 };
    int n = 0;

    for (int i = begin; i < end; i++)
        n += slice_count(s, i) + 1;
    t.list = arena_array(&t.arena, struct slice_task, n);
    for (int i = begin; i < end; i++) {
        for (int slice = 0; slice < slice_count(s, i); slice++)
            add_task(s, &t, i, s->slice_rows[i] ? slice : -1);
        if (s->slice_rows[i] && slice_is_split(&s->function->ops[i]))
            add_task(s, &t, i, -1);
    }
    for (int i = begin; i < end; i++)
        for (int k = 0; k < ORDER_N_OPERANDS; k++)
            forget(s, program_base(s->program, slice_operand(&s->function->ops[i], k)));
    return t;
}

void slice_release_tasks(struct slice_tasks *t)
{
    arena_release(&t->arena);
}
