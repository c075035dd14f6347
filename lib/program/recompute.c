/*
 * recompute.c - what the forward keeps for the backward, and how the rest is made again
 *
 * A value that the backward reads and that is not kept is remade by a copy of its op, phase R,
 * right ahead of its first reader; what that copy reads is remade the same way if it is not kept
 * either. Demand alone drives it, so the last linear of a block, which nothing reads, is never
 * remade. The copies are the same ops on the same bits, so the results are the same bits.
 *
 * What is gathered over tp is tp times what a rank needs to keep of it, so it is gathered again
 * whatever the mode (Korthikanti et al. 2022, section 4.2.2).
 */
#include <string.h>

#include "layout/axes.h"
#include "program/passes.h"

struct remake {
    struct program *program;
    int all;          /* but layers' inputs */
    uint64_t dropped; /* kinds of ops */
    int forward, backward;
    int n_values;
    int *producer; /* by value: index of the forward op that writes it, -1 if none does */
    int *remade;   /* by value: its copy in the backward, 0 if there is none yet */
};

/* Made again at the price of a read and a write. */
#define CHEAP \
    (RECOMPUTE_OP(OP_RMSNORM) | RECOMPUTE_OP(OP_LAYERNORM) | RECOMPUTE_OP(OP_HEAD_NORM) | \
     RECOMPUTE_OP(OP_SWIGLU) | RECOMPUTE_OP(OP_GELU) | RECOMPUTE_OP(OP_DISPATCH) | \
     RECOMPUTE_OP(OP_EXPERT_SWIGLU) | RECOMPUTE_OP(OP_DROPOUT) | RECOMPUTE_OP(OP_CAST))

/*
 * As which kind of op the output counts: fused ops are an add and a norm. N_OP_KINDS: row
 * statistics, which are small and kept.
 */
static enum op_kind kind_of(const struct op *op, int output)
{
    switch (op->kind) {
    case OP_ADD_RMSNORM:
        return output == 0 ? OP_RMSNORM : output == 2 ? OP_ADD : N_OP_KINDS;
    case OP_ADD_LAYERNORM:
        return output == 0 ? OP_LAYERNORM : output == 3 ? OP_ADD : N_OP_KINDS;
    default:
        return output == 0 ? op->kind : N_OP_KINDS;
    }
}

static int accumulates(const struct program *p, const struct op *op)
{
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        if (program_accumulates(p, op, k))
            return 1;
    return 0;
}

static int is_kept(const struct remake *r, int v)
{
    const struct op *op;
    int output = 0;

    if (v >= r->n_values || r->producer[v] < 0)
        return 1;
    op = &r->program->functions[r->forward].ops[r->producer[v]];
    if (accumulates(r->program, op) || op->kind == OP_RECEIVE)
        return 1;
    if (op->kind == OP_ALL_GATHER &&
        axis_role(op->attributes.axis, PARAMETER_DENSE) == SPLITS_MODEL)
        return 0;
    if (r->all || r->program->values[v].boundary)
        return r->program->values[v].boundary;
    while (op->out[output] != v)
        output++;
    enum op_kind kind = kind_of(op, output);
    return kind == N_OP_KINDS || !(r->dropped & RECOMPUTE_OP(kind));
}

/*
 * An add with a norm of which one is kept: the other alone. The sum, where it is kept, is what the
 * norm reads.
 */
static struct op without_kept(const struct remake *r, struct op op)
{
    int layer = op.kind == OP_ADD_LAYERNORM, at = layer ? 3 : 2;
    int w = op.in[2], b = op.in[3], sum = op.out[at];

    if (op.kind != OP_ADD_RMSNORM && !layer)
        return op;
    if (is_kept(r, sum)) {
        op.kind = layer ? OP_LAYERNORM : OP_RMSNORM;
        memset(op.in, 0, sizeof op.in);
        op.in[0] = sum;
        op.in[1] = w;
        op.in[2] = layer ? b : 0;
        op.out[at] = 0;
    } else if (is_kept(r, op.out[0])) {
        op.kind = OP_ADD;
        op.attributes.eps = 0;
        op.in[2] = op.in[3] = 0;
        memset(op.out, 0, sizeof op.out);
        op.out[0] = sum;
    }
    return op;
}

static struct op copy_of(const struct remake *r, int v)
{
    return without_kept(r, r->program->functions[r->forward].ops[r->producer[v]]);
}

/* An input of op that must be remade first, or 0. */
static int missing_input(const struct remake *r, const struct op *op)
{
    for (int k = 0; k < OPS_MAX_INPUTS; k++)
        if (op->in[k] && !is_kept(r, op->in[k]) && !r->remade[op->in[k]])
            return op->in[k];
    return 0;
}

static void use_remade(const struct remake *r, struct op *op)
{
    for (int k = 0; k < OPS_MAX_INPUTS; k++)
        if (op->in[k] && !is_kept(r, op->in[k]))
            op->in[k] = r->remade[op->in[k]];
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
        /* A kept output of the same op stays what the backward reads. */
        if (!is_kept(r, v))
            r->remade[v] = op.out[k];
    }
    op.phase = PHASE_R;
    program_emit(r->program, r->backward, &op);
}

/* Remake v and all that it takes: a depth-first walk with its own stack. */
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

void recompute(struct program *program, int forward, int backward, enum recompute_kind kind,
               uint64_t ops)
{
    struct remake r = { .program = program,
                        .all = kind == RECOMPUTE_KIND_FULL,
                        .dropped = kind == RECOMPUTE_KIND_SELECTIVE ? CHEAP
                                   : kind == RECOMPUTE_KIND_LIST    ? ops
                                                                    : 0,
                        .forward = forward,
                        .backward = backward,
                        .n_values = program->n_values };
    const struct function *f = &program->functions[forward];
    struct function *b = &program->functions[backward];
    int n_ops = b->n_ops;
    struct op *old = b->ops;

    if (kind == RECOMPUTE_KIND_NONE &&
        axes_size(&program->mesh, SPLITS_MODEL, PARAMETER_DENSE) == 1)
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
