/*
 * slice_experts.c - what goes to experts on other ranks travels while other experts compute
 *
 * The ops from the exchange of rows to their return are cut into groups of a rank's experts. An
 * expert has all of its rows in one group, in the order that they have without, so that no bit
 * changes and sums over rows (a weight's gradient) need none of it. Of two groups of experts:
 *
 *     F  %s = send_rows %x                     F  %s[group 0] = send_rows %x         experts 0, 1
 *     F  %r = dispatch place, %s               F  %s[group 1] = send_rows %x         experts 2, 3
 *     F  %g = expert_linear %r, gate_up   ->   F  %r[group 0] = dispatch place, %s[group 0]
 *     F  %h = expert_swiglu %g                 F  %g[group 0] = expert_linear %r[group 0], gate_up
 *     F  %y = expert_linear %h, down           ...
 *     F  %b = return_rows %y                   F  %b[group 0] = return_rows %y[group 0]
 *                                              F  %r[group 1] = dispatch place, %s[groups 0:2]
 *                                              ...
 *
 * A token's row is sent once to each rank, with the first group that needs it: a group reads what
 * came with those before it, too. All groups have their rows in one memory, of the size that it has
 * without groups: which are whose is known at run time alone (program.h: groups).
 */
#include "base/num.h"
#include "layout/axes.h"
#include "program/order.h"
#include "program/slice_impl.h"

static bool is_exchange(enum op_kind kind)
{
    return kind == OP_SEND_ROWS || kind == OP_RETURN_ROWS;
}

void slice_find_experts(struct slicer *s)
{
    s->ends = arena_array(&s->arena, int, s->program->n_values);
    s->grouped = arena_array(&s->arena, int, s->program->n_values);
    for (int i = 0; i < s->function->n_ops; i++) {
        const struct op *op = &s->function->ops[i];
        const struct op_info *info = op_info(op->kind);

        s->has_exchange |= is_exchange(op->kind);
        for (int k = 0; k < ORDER_N_OPERANDS && info->ends_input; k++)
            if (slice_operand(op, k) && slice_operand_info(op, k)->rows == info->routed_rows)
                s->ends[slice_operand(op, k)] = op->in[info->ends_input - 1];
    }
}

/* The operand that says where experts' rows end, in ops that need it for groups alone; -1. */
static int ends_operand(enum op_kind kind)
{
    switch (kind) {
    case OP_DISPATCH:
        return DISPATCH_ENDS;
    case OP_EXPERT_SWIGLU:
        return EXPERT_SWIGLU_ENDS;
    case OP_EXPERT_SWIGLU_GRAD:
        return EXPERT_SWIGLU_GRAD_ENDS;
    default:
        return -1;
    }
}

/* These ends, by what reads or writes the same rows: 0: none does. */
static int ends_of(const struct slicer *s, const struct op *op)
{
    switch (op->kind) {
    case OP_DISPATCH:
        return s->ends[op->out[DISPATCH_Y]];
    case OP_EXPERT_SWIGLU:
        return s->ends[op->in[EXPERT_SWIGLU_GU]];
    case OP_EXPERT_SWIGLU_GRAD:
        return s->ends[op->out[EXPERT_SWIGLU_GRAD_DGU]];
    default:
        return op->in[EXPERT_LINEAR_ENDS];
    }
}

bool slice_can_be_groups(const struct program *p, int id)
{
    const struct value *v = &p->values[id];

    return !v->base && !v->over && !v->part_rows && v->role == ROLE_NONE && v->stride == v->cols;
}

int slice_experts(const struct slicer *s, const struct op *op)
{
    const struct value *values = s->program->values;
    bool is_product = op->kind == OP_EXPERT_LINEAR || op->kind == OP_EXPERT_LINEAR_DX ||
                      op->kind == OP_EXPERT_LINEAR_FP8 || op->kind == OP_EXPERT_LINEAR_DX_FP8;

    if (!s->has_exchange || op->attributes.experts)
        return 0;
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        if (op->out[k] && !slice_can_be_groups(s->program, op->out[k]))
            return 0;
    if (is_exchange(op->kind))
        return op->attributes.n_experts / mesh_size(&s->program->mesh, op->attributes.axis);
    if (!is_product && ends_operand(op->kind) < 0)
        return 0;
    return (int)values[ends_of(s, op)].cols;
}

bool slice_is_between_experts(const struct slicer *s, const struct op *op)
{
    return slice_experts(s, op) || op->kind == OP_PAGE_OUT || op->kind == OP_PAGE_IN;
}

int slice_groups_for(int n_experts, int n)
{
    int groups = min_int(min_int(n, n_experts), PROGRAM_MAX_PARTS);

    while (groups > 1 && n_experts % groups)
        groups--;
    return groups > 1 ? groups : 0;
}

/* The op on one of n groups; ends: given where it has them for that alone. */
struct op slice_group(const struct slicer *s, const struct op *op, int group, int n)
{
    struct op own = *op;
    int experts = slice_experts(s, op) / n, k = ends_operand(op->kind);

    own.attributes.first = group * experts;
    own.attributes.experts = experts;
    own.attributes.n_rows = (op->attributes.n_rows + n - 1) / n;
    if (k >= 0)
        own.in[k] = ends_of(s, op);
    return own;
}

void slice_emit_group(struct slicer *s, int function, const struct slice_task *task)
{
    int n = slice_count(s, task->op), group = task->slice;
    struct op op = slice_group(s, &s->function->ops[task->op], group, n);
    struct program *p = s->program;

    for (int k = 0; k < OPS_MAX_INPUTS; k++) {
        bool has_groups =
            op.in[k] && !p->values[op.in[k]].base && p->values[op.in[k]].n_groups == n;
        bool is_sent = op.kind == OP_DISPATCH && k == DISPATCH_X;

        if (has_groups)
            op.in[k] = program_groups(p, op.in[k], n, is_sent ? 0 : group, is_sent ? group + 1 : 1,
                                      p->values[op.in[k]].rows);
    }
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        if (op.out[k])
            op.out[k] = program_groups(p, op.out[k], n, group, 1, p->values[op.out[k]].rows);
    program_emit(p, function, &op);
}
