/*
 * recompute.c - what the forward keeps for the backward, and how the rest is made again
 *
 * A value that the backward reads and that is not kept is remade by a copy of its op, phase R,
 * right ahead of its first reader; what that copy reads is remade the same way if it is not kept
 * either. Demand alone drives it, so the last linear of a block, which nothing reads, is never
 * remade. The copies are the same ops on the same bits, so the results are the same bits.
 */
#include <string.h>

#include "program/passes.h"

struct remake {
    struct program *program;
    enum recompute_kind kind;
    int forward, backward;
    int n_values;
    int *producer; /* by value: index of the forward op that writes it, -1 if none does */
    int *remade;   /* by value: its copy in the backward, 0 if there is none yet */
};

static int is_norm(enum op_kind kind)
{
    return kind == OP_RMSNORM || kind == OP_LAYERNORM || kind == OP_ADD_RMSNORM ||
           kind == OP_ADD_LAYERNORM;
}

/* Made again at the price of a read and a write. */
static int is_cheap(enum op_kind kind)
{
    return is_norm(kind) || kind == OP_SWIGLU || kind == OP_GELU || kind == OP_DROPOUT ||
           kind == OP_CAST;
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

    if (v >= r->n_values || r->producer[v] < 0)
        return 1;
    op = &r->program->functions[r->forward].ops[r->producer[v]];
    if (r->kind == RECOMPUTE_KIND_NONE || accumulates(r->program, op))
        return 1;
    if (r->kind == RECOMPUTE_KIND_FULL || r->program->values[v].boundary)
        return r->program->values[v].boundary;
    /* Of a cheap op its main output is dropped; row statistics and the residual sum are kept. */
    return !(is_cheap(op->kind) && op->out[0] == v);
}

/* Where op adds a residual and the sum is kept: the norm alone, reading the sum. */
static struct op without_kept_sum(const struct remake *r, struct op op)
{
    int layer = op.kind == OP_ADD_LAYERNORM;
    int sum = layer ? op.out[3] : op.out[2];

    if ((op.kind != OP_ADD_RMSNORM && !layer) || !is_kept(r, sum))
        return op;
    op.kind = layer ? OP_LAYERNORM : OP_RMSNORM;
    int w = op.in[2], b = op.in[3];
    memset(op.in, 0, sizeof op.in);
    op.in[0] = sum;
    op.in[1] = w;
    op.in[2] = layer ? b : 0;
    op.out[layer ? 3 : 2] = 0;
    return op;
}

static struct op copy_of(const struct remake *r, int v)
{
    return without_kept_sum(r, r->program->functions[r->forward].ops[r->producer[v]]);
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

void recompute(struct program *program, int forward, int backward, enum recompute_kind kind)
{
    struct remake r = { .program = program,
                        .kind = kind,
                        .forward = forward,
                        .backward = backward,
                        .n_values = program->n_values };
    const struct function *f = &program->functions[forward];
    struct function *b = &program->functions[backward];
    int n_ops = b->n_ops;
    struct op *ops = b->ops;

    if (kind == RECOMPUTE_KIND_NONE)
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
        for (int missing; (missing = missing_input(&r, &ops[i]));)
            remake_value(&r, missing, stack);
        use_remade(&r, &ops[i]);
        program_emit(program, backward, &ops[i]);
    }
}
