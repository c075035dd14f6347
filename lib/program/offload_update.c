/*
 * offload_update.c - the optimizer runs on the host, where its states are
 *
 * An op whose states (master, moments) all have homes in host memory works on the homes. Of its
 * other operands those that have a home there are taken there, too; any other is staged: copied to
 * host memory ahead of the op, and what the op writes of it is copied back behind it.
 *
 *     U  scalars.on_host = to_host scalars                                once a function
 *     U  %71 = to_host layers.0.up.weight.grad
 *     U  %72 = to_host layers.1.up.weight.grad                            travels meanwhile
 *     U  %73 = adamw %71, scalars.on_host, ..., ~layers.0.up.m.home, ~layers.0.up.v.home
 *     U  layers.0.up.weight = to_device %73                               travels during the next
 *     U  %74 = to_host layers.2.up.weight.grad
 *     U  %75 = adamw %72, scalars.on_host, ..., ~layers.1.up.m.home, ~layers.1.up.v.home
 *     U  layers.1.up.weight = to_device %75
 *     U  await layers.0.up.weight                                         %73's memory is free
 *
 * So host memory has at a time what two ops read and what three write. Ops on large cells are cut
 * before (offload_cut.c): a piece travels while another is computed. An op some of whose states
 * are in the device's memory, or in a file, stays as it is: what is away of them is streamed
 * through the device's memory.
 */
#include <stdbool.h>
#include <string.h>

#include "program/offload_impl.h"

enum {
    N_OPERANDS = OPS_MAX_INPUTS + OPS_MAX_OUTPUTS,
    N_UNDER_WAY = 2, /* ops whose results are on their way back at a time */
};

/* What an operand is in host memory. */
struct stand_in {
    int copy;         /* 0: there is no such operand */
    bool comes, goes; /* copied there ahead, back behind */
};

struct moved_op {
    int at, comes_at; /* the op, and ahead of which op what it reads is copied */
    struct stand_in operands[N_OPERANDS];
};

struct update_moves {
    struct program *program;
    struct arena arena;
    int *at_home;        /* by value: its place in its base's home; 0: not made yet */
    int *held, *held_in; /* by value: a copy that the host keeps; 1 + the function that makes it */
    int function;
    struct moved_op *list;
    int n;
    struct op *ops; /* the function as it becomes */
    int n_ops, capacity;
};

static int operand(const struct op *op, int k)
{
    return k < OPS_MAX_INPUTS ? op->in[k] : op->out[k - OPS_MAX_INPUTS];
}

static unsigned flags_of(const struct op *op, int k)
{
    const struct op_info *info = op_info(op->kind);

    return k < OPS_MAX_INPUTS ? info->inputs[k].flags : info->outputs[k - OPS_MAX_INPUTS].flags;
}

/* ---- which ops move ---- */

static bool is_at_home(const struct program *p, int id)
{
    int home = p->values[program_whole(p, id)].home;

    return home && p->values[home].space == SPACE_HOST;
}

static bool is_state(const struct program *p, int id)
{
    return offload_kind_of(&p->values[program_whole(p, id)]) == AWAY_STATES;
}

static bool moves(const struct program *p, const struct op *op)
{
    int n_states = 0;

    if (!(op_info(op->kind)->traits & TRAIT_ON_HOST))
        return false;
    for (int k = 0; k < N_OPERANDS; k++) {
        int id = operand(op, k);

        if (!id || !is_state(p, id))
            continue;
        if (!is_at_home(p, id))
            return false;
        n_states++;
    }
    return n_states > 0;
}

/* ---- what stands in for operands ---- */

/* The same part of the base's home. */
static int part_of_home(struct update_moves *m, int id)
{
    struct program *p = m->program;
    struct value v = p->values[id];
    int home = p->values[program_whole(p, id)].home;

    if (!v.base)
        return home;
    if (m->at_home[id])
        return m->at_home[id];
    int part = program_view(p, home, v.offset, v.rows, v.cols, v.stride);
    memcpy(p->values[part].spread, v.spread, sizeof v.spread);
    p->values[part].shard_axis = v.shard_axis;
    p->values[part].outer_shard_axis = v.outer_shard_axis;
    p->values[part].name = v.name ? arena_printf(&p->arena, "%s.home", v.name) : NULL;
    m->at_home[id] = part;
    return part;
}

/* A dense value like it; a cell if it has a name. */
static int host_copy(struct program *p, int id, const char *name)
{
    struct value v = p->values[id];

    CHECK(v.rows <= 1 || v.stride == v.cols);
    int copy = name ? program_cell(p, ROLE_HOME, name, v.rows, v.cols, v.dtype)
                    : program_host_value(p, v.rows, v.cols, v.dtype);
    p->values[copy].space = SPACE_HOST;
    memcpy(p->values[copy].spread, v.spread, sizeof v.spread);
    return copy;
}

/* Scalars and tables, which all ops read: copied once a function. */
static struct stand_in hold(struct update_moves *m, int id)
{
    struct program *p = m->program;
    const struct value *v = &p->values[id];
    bool comes = m->held_in[id] != 1 + m->function;

    if (!m->held[id])
        m->held[id] = host_copy(p, id,
                                v->name ? arena_printf(&p->arena, "%s.on_host", v->name)
                                        : arena_printf(&p->arena, "%d.on_host", id));
    m->held_in[id] = 1 + m->function;
    return (struct stand_in){ .copy = m->held[id], .comes = comes };
}

static struct stand_in stand_in_for(struct update_moves *m, const struct op *op, int k)
{
    struct program *p = m->program;
    int id = operand(op, k);
    unsigned flags = flags_of(op, k);

    if (!id)
        return (struct stand_in){ 0 };
    if (is_at_home(p, id))
        return (struct stand_in){ .copy = part_of_home(m, id) };
    bool is_written = k >= OPS_MAX_INPUTS || (flags & OPERAND_UPDATED);
    enum cell_role role = p->values[program_whole(p, id)].role;
    if (!is_written && (role == ROLE_SCALAR || role == ROLE_CONSTANT))
        return hold(m, id);
    return (struct stand_in){ .copy = host_copy(p, id, NULL),
                              .comes = k < OPS_MAX_INPUTS || (flags & OPERAND_STAYS),
                              .goes = is_written };
}

/* ---- where it is copied ---- */

static bool writes(const struct program *p, const struct op *op, int base)
{
    for (int k = 0; k < N_OPERANDS; k++)
        if (program_base(p, operand(op, k)) == base &&
            (k >= OPS_MAX_INPUTS || (flags_of(op, k) & OPERAND_UPDATED)))
            return true;
    return false;
}

/* Ahead of the op that moves before it, unless what it reads is written since. */
static int comes_at(const struct update_moves *m, const struct function *f, int i)
{
    const struct moved_op *moved = &m->list[i];

    if (!i)
        return moved->at;
    for (int at = m->list[i - 1].at; at < moved->at; at++)
        for (int k = 0; k < N_OPERANDS; k++)
            if (moved->operands[k].comes &&
                writes(m->program, &f->ops[at],
                       program_base(m->program, operand(&f->ops[moved->at], k))))
                return moved->at;
    return m->list[i - 1].at;
}

static void list_moved(struct update_moves *m, const struct function *f)
{
    m->list = arena_array(&m->arena, struct moved_op, f->n_ops);
    m->n = 0;
    for (int i = 0; i < f->n_ops; i++) {
        if (!moves(m->program, &f->ops[i]))
            continue;
        struct moved_op *moved = &m->list[m->n];
        moved->at = i;
        for (int k = 0; k < N_OPERANDS; k++)
            moved->operands[k] = stand_in_for(m, &f->ops[i], k);
        moved->comes_at = comes_at(m, f, m->n++);
    }
}

/* ---- the function as it becomes ---- */

static void add_op(struct update_moves *m, struct op op)
{
    m->ops = arena_grow(&m->program->arena, m->ops, sizeof op, &m->capacity, m->n_ops + 1);
    m->ops[m->n_ops++] = op;
}

static struct op copy_near(const struct op *op, enum op_kind kind, int from, int to)
{
    struct op copy = { .kind = kind,
                       .phase = op->phase,
                       .stream = kind == OP_TO_HOST ? STREAM_COPY_OUT : STREAM_COPY_IN,
                       .layer = op->layer,
                       .first = FIRST_ALWAYS };

    copy.in[kind == OP_TO_HOST ? (int)TO_HOST_X : (int)TO_DEVICE_X] = from;
    copy.out[kind == OP_TO_HOST ? (int)TO_HOST_Y : (int)TO_DEVICE_Y] = to;
    return copy;
}

static void add_coming(struct update_moves *m, const struct op *op, const struct moved_op *moved)
{
    for (int k = 0; k < N_OPERANDS; k++)
        if (moved->operands[k].comes)
            add_op(m, copy_near(op, OP_TO_HOST, operand(op, k), moved->operands[k].copy));
}

static void add_going(struct update_moves *m, const struct op *op, const struct moved_op *moved)
{
    for (int k = 0; k < N_OPERANDS; k++)
        if (moved->operands[k].goes)
            add_op(m, copy_near(op, OP_TO_DEVICE, moved->operands[k].copy, operand(op, k)));
}

/* What the op has written is back. A value with a home is in the device's memory only while it is
 * used: such copies end with the function. */
static void add_awaits(struct update_moves *m, const struct op *op, const struct moved_op *moved)
{
    for (int k = 0; k < N_OPERANDS; k++) {
        int id = operand(op, k);
        struct op await = { .kind = OP_AWAIT, .phase = op->phase, .layer = op->layer };

        if (!moved->operands[k].goes || m->program->values[program_whole(m->program, id)].home)
            continue;
        await.first = FIRST_ALWAYS;
        await.in[AWAIT_X] = id;
        add_op(m, await);
    }
}

static void add_moved(struct update_moves *m, struct op op, const struct moved_op *moved)
{
    for (int k = 0; k < OPS_MAX_INPUTS; k++)
        op.in[k] = moved->operands[k].copy;
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        op.out[k] = moved->operands[OPS_MAX_INPUTS + k].copy;
    add_op(m, op);
}

static void rewrite(struct update_moves *m, struct function *f)
{
    int next = 0, coming = 0;

    m->ops = NULL;
    m->n_ops = m->capacity = 0;
    for (int i = 0; i < f->n_ops; i++) {
        bool is_moved = next < m->n && m->list[next].at == i;

        if (is_moved && next >= N_UNDER_WAY) {
            const struct moved_op *before = &m->list[next - N_UNDER_WAY];

            add_awaits(m, &f->ops[before->at], before);
        }
        for (; coming < m->n && m->list[coming].comes_at == i; coming++)
            add_coming(m, &f->ops[m->list[coming].at], &m->list[coming]);
        if (!is_moved) {
            add_op(m, f->ops[i]);
            continue;
        }
        add_moved(m, f->ops[i], &m->list[next]);
        add_going(m, &f->ops[i], &m->list[next]);
        next++;
    }
    f->ops = m->ops;
    f->n_ops = m->n_ops;
    f->capacity = m->capacity;
}

void offload_update(const struct offload *o)
{
    struct program *program = o->program;
    struct update_moves m = { .program = program };

    offload_cut_moved(o, moves);
    m.at_home = arena_array(&m.arena, int, program->n_values);
    m.held = arena_array(&m.arena, int, program->n_values);
    m.held_in = arena_array(&m.arena, int, program->n_values);
    for (; m.function < program->n_functions; m.function++) {
        struct function *f = &program->functions[m.function];

        list_moved(&m, f);
        if (m.n)
            rewrite(&m, f);
    }
    arena_release(&m.arena);
}
