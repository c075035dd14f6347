/*
 * recompute.c - which values of the forward are kept for the backward, and recomputation of the
 * others
 *
 * A value that the backward reads and that is not kept is recomputed by a copy of its op, of phase
 * R, directly before its first reader; inputs of that copy that are not kept are recomputed in the
 * same way. Recomputation is driven by demand, so the last linear of a block, whose output no
 * backward op reads, is never repeated. The copies are the same ops on the same bits, and dropout
 * takes its random numbers by position (base/rng.h), so results have the same bits in every mode.
 *
 *     W  down.weight.grad += linear_dw %87, %48          with swiglu dropped:
 *     ->
 *     R  %114 = swiglu %38
 *     W  down.weight.grad += linear_dw %87, %114
 *
 * The modes are Megatron-LM's: full recomputation keeps the inputs of layers (Chen et al. 2016),
 * selective recomputation drops what is cheap to compute (Korthikanti et al. 2022; with attention
 * in one kernel that keeps row statistics, those are norms, activations, dropout and casts). What
 * is gathered over tp, or keys and values over cp, is as many times the rank's share of it, so it
 * is gathered again in every mode (Korthikanti et al. 2022, section 4.2.2).
 */
#include <stdbool.h>
#include <string.h>

#include "layout/axes.h"
#include "program/passes.h"

struct remake {
    struct program *program;
    const struct recompute_levels *levels;
    struct keep_set others; /* of ops of no layer that has a set */
    int forward, backward;
    int n_values;
    int *producer; /* by value: index of the forward op that writes it, -1 if none does */
    int *remade;   /* by value: its copy in the backward, 0 if there is none yet */
};

/* The kinds whose recomputation costs a read and a write of memory. */
static struct bitset cheap_ops(void)
{
    struct bitset kinds = { 0 };

    for (int kind = 0; kind < N_OP_KINDS; kind++)
        if (op_info((enum op_kind)kind)->traits & TRAIT_CHEAP)
            bitset_add(&kinds, kind);
    return kinds;
}

/* The add and norm that a fused kind consists of; NULL for others. */
static const struct op_fusion *parts_of(enum op_kind kind)
{
    const struct op_fusion *fusion = op_info(kind)->fusion;

    return fusion && fusion->fused == kind ? fusion : NULL;
}

/* The output of a fused op that is the sum: the last but for codes. */
static int sum_output(enum op_kind kind)
{
    return op_plain_outputs(op_info(kind)) - 1;
}

enum op_kind recompute_kind_of(const struct op *op, int output)
{
    const struct op_fusion *parts = parts_of(op->kind);

    if (parts && output == sum_output(op->kind))
        return OP_ADD;
    if (output > 0)
        return N_OP_KINDS;
    if (op->kind == OP_ATTENTION_PART || op->kind == OP_ATTENTION_END)
        return OP_ATTENTION;
    if (op->kind == OP_LINEAR_FP8)
        return OP_LINEAR;
    if (op->kind == OP_EXPERT_LINEAR_FP8)
        return OP_EXPERT_LINEAR;
    return parts ? parts->norm : op->kind;
}

static bool accumulates(const struct program *p, const struct op *op)
{
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        if (program_accumulates(p, op, k))
            return true;
    return false;
}

struct keep_set recompute_keep_set(enum recompute_kind kind, const struct bitset *ops)
{
    switch (kind) {
    case RECOMPUTE_KIND_SELECTIVE:
        return (struct keep_set){ .dropped = cheap_ops() };
    case RECOMPUTE_KIND_LIST:
        return (struct keep_set){ .dropped = *ops };
    default:
        return (struct keep_set){ .full = kind == RECOMPUTE_KIND_FULL };
    }
}

static const struct keep_set *set_of(const struct remake *r, int layer)
{
    const struct recompute_levels *levels = r->levels;
    int at = layer - levels->first_layer;

    return layer >= 0 && at >= 0 && at < levels->n_layers ? &levels->sets[levels->set_of_layer[at]]
                                                          : &r->others;
}

/* What is gathered over the axis is as many times the rank's share: of tokens and heads, and of
 * keys. */
static bool is_gathered_again(enum mesh_axis axis)
{
    return axis_role(axis, PARAMETER_DENSE) == SPLITS_MODEL || axis_cuts_sequences(axis);
}

static bool has_such_axis(const struct mesh *mesh)
{
    bool has = false;

    for (int axis = 0; axis < N_AXES; axis++)
        has |= mesh->size[axis] > 1 && is_gathered_again((enum mesh_axis)axis);
    return has;
}

/* Whatever the sets are. */
enum keeping { KEPT_ALWAYS, KEPT_NEVER, KEPT_BY_SET };

static enum keeping keeping_of(const struct program *p, const struct op *op)
{
    unsigned traits = op_info(op->kind)->traits;

    if (accumulates(p, op) || (traits & TRAIT_TRANSFER))
        return KEPT_ALWAYS;
    if ((traits & TRAIT_GATHER) && is_gathered_again(op->attributes.axis))
        return KEPT_NEVER;
    return KEPT_BY_SET;
}

static bool is_kept(const struct remake *r, int v)
{
    const struct op *op;
    int output = 0;

    if (v >= r->n_values || r->producer[v] < 0)
        return true;
    op = &r->program->functions[r->forward].ops[r->producer[v]];
    enum keeping keeping = keeping_of(r->program, op);
    if (keeping != KEPT_BY_SET)
        return keeping == KEPT_ALWAYS;
    if (r->levels->drops_rows && (op_info(op->kind)->traits & TRAIT_EXPERT_ROWS))
        return false;
    const struct keep_set *set = set_of(r, op->layer);
    if (set->full || r->program->values[v].boundary)
        return r->program->values[v].boundary;
    while (op->out[output] != v)
        output++;
    enum op_kind kind = recompute_kind_of(op, output);
    return kind == N_OP_KINDS || !bitset_has(&set->dropped, (int)kind);
}

struct bitset recompute_droppable(const struct program *program, int forward, int layer)
{
    const struct function *f = &program->functions[forward];
    struct bitset kinds = { 0 };

    for (int i = 0; i < f->n_ops; i++) {
        const struct op *op = &f->ops[i];

        if (op->layer != layer || keeping_of(program, op) != KEPT_BY_SET)
            continue;
        for (int k = 0; k < OPS_MAX_OUTPUTS; k++) {
            enum op_kind kind = recompute_kind_of(op, k);
            const struct value *v = &program->values[op->out[k]];

            if (op->out[k] && kind != N_OP_KINDS && v->role == ROLE_NONE && !v->boundary)
                bitset_add(&kinds, (int)kind);
        }
    }
    return kinds;
}

/*
 * Of a fused add and norm of which one output is kept, the op of the other alone; the norm then
 * reads the kept sum.
 */
static struct op without_kept(const struct remake *r, struct op op)
{
    const struct op_fusion *parts = parts_of(op.kind);
    struct op part = op;

    if (!parts)
        return op;
    int at = sum_output(op.kind), sum = op.out[at];

    memset(part.in, 0, sizeof part.in);
    if (is_kept(r, sum)) {
        part.kind = parts->norm;
        part.in[OPS_FIRST] = sum;
        for (int k = 1; k < op_info(parts->norm)->n_inputs; k++)
            part.in[k] = op.in[k + 1];
        part.out[at] = 0;
        return part;
    }
    if (is_kept(r, op.out[OPS_FIRST])) {
        memset(part.out, 0, sizeof part.out);
        part.kind = OP_ADD;
        part.attributes.eps = 0;
        part.in[ADD_A] = op.in[ADD_A];
        part.in[ADD_B] = op.in[ADD_B];
        part.out[ADD_Y] = sum;
        return part;
    }
    return op;
}

static struct op copy_of(const struct remake *r, int v)
{
    return without_kept(r, r->program->functions[r->forward].ops[r->producer[v]]);
}

/* An input of op, or its base, that must be recomputed first, or 0. */
static int missing_input(const struct remake *r, const struct op *op)
{
    for (int k = 0; k < OPS_MAX_INPUTS; k++) {
        int v = program_whole(r->program, op->in[k]);

        if (v && !is_kept(r, v) && !r->remade[v])
            return v;
    }
    return 0;
}

/* The recomputed copy of a value or of a view. */
static int remade_input(const struct remake *r, int v)
{
    const struct value view = r->program->values[v];

    if (view.base && !r->remade[v])
        r->remade[v] = program_view(r->program, r->remade[view.base], view.offset, view.rows,
                                    view.cols, view.stride);
    return r->remade[v];
}

static void use_remade(const struct remake *r, struct op *op)
{
    for (int k = 0; k < OPS_MAX_INPUTS; k++)
        if (op->in[k] && !is_kept(r, program_whole(r->program, op->in[k])))
            op->in[k] = remade_input(r, op->in[k]);
}

static void emit_copy(struct remake *r, struct op op)
{
    use_remade(r, &op);
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++) {
        int v = op.out[k];

        if (!v)
            continue;
        struct value value = r->program->values[v];
        op.out[k] = program_value(r->program, value.rows, value.cols, value.dtype);
        /* The backward goes on reading the kept outputs of the same op. */
        if (!is_kept(r, v))
            r->remade[v] = op.out[k];
    }
    op.phase = PHASE_R;
    program_emit(r->program, r->backward, &op);
}

/* Recompute v and everything it needs: a depth-first walk with its own stack. */
static void remake_value(struct remake *r, int v, int *stack)
{
    int depth = 0;

    stack[depth++] = v;
    while (depth > 0) {
        struct op op = copy_of(r, stack[depth - 1]);
        int missing = missing_input(r, &op);

        if (missing) {
            CHECK(depth < r->n_values);
            stack[depth++] = missing;
            continue;
        }
        if (!r->remade[stack[depth - 1]])
            emit_copy(r, op);
        depth--;
    }
}

static bool drops_nothing(const struct keep_set *set)
{
    return !set->full && bitset_is_empty(&set->dropped);
}

static bool has_work(const struct remake *r)
{
    bool has =
        r->levels->drops_rows || !drops_nothing(&r->others) || has_such_axis(&r->program->mesh);

    for (int i = 0; i < r->levels->n_layers; i++)
        has |= !drops_nothing(&r->levels->sets[r->levels->set_of_layer[i]]);
    return has;
}

void recompute(struct program *program, int forward, int backward,
               const struct recompute_levels *levels)
{
    struct remake r = { .program = program,
                        .levels = levels,
                        .others = recompute_keep_set(levels->kind, &levels->ops),
                        .forward = forward,
                        .backward = backward,
                        .n_values = program->n_values };
    const struct function *f = &program->functions[forward];
    struct function *b = &program->functions[backward];
    int n_ops = b->n_ops;
    struct op *old = b->ops;

    if (!has_work(&r))
        return;
    r.producer = arena_array(&program->arena, int, r.n_values);
    r.remade = arena_array(&program->arena, int, r.n_values);
    for (int v = 0; v < r.n_values; v++)
        r.producer[v] = -1;
    for (int i = 0; i < f->n_ops; i++)
        for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
            if (f->ops[i].out[k] && program->values[f->ops[i].out[k]].role == ROLE_NONE)
                r.producer[f->ops[i].out[k]] = i;

    int *stack = arena_array(&program->arena, int, r.n_values);
    b->ops = NULL;
    b->n_ops = b->capacity = 0;
    for (int i = 0; i < n_ops; i++) {
        for (int missing; (missing = missing_input(&r, &old[i]));)
            remake_value(&r, missing, stack);
        use_remade(&r, &old[i]);
        program_emit(program, backward, &old[i]);
    }
}
