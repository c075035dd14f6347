/*
 * recompute_early.c - the last layers of a stage are recomputed before the gradient of its output
 * arrives (RiPipe of MindSpeed: recomputation in the bubble)
 *
 * Recomputation reads what the forward kept and no gradient, so a rank that waits for the next
 * stage's gradient can do it meanwhile. Ops of phase R stand directly before their first reader
 * (recompute.c), most of a layer's behind the first ops that read the gradient; here those of the
 * last layers move up to the first op that reads it. What they make lives from there on, all of it
 * at one time. No bit changes: ops move, operands do not.
 *
 *     B  %91 = rmsnorm_grad %90, ...            R  %114 = rmsnorm %40, ...
 *     R  %114 = rmsnorm %40, ...           ->   R  %115 = linear %114, up.weight
 *     R  %115 = linear %114, up.weight          B  %91 = rmsnorm_grad %90, ...
 *     B  %92 = linear_dx %91, ...               B  %92 = linear_dx %91, ...
 */
#include <string.h>

#include "program/passes.h"

struct hoist {
    const struct program *program;
    struct op *ops;
    int n_ops, first; /* first: the op that waits for the gradient */
    int *maker;       /* by base value: the op that writes it, -1 if none of the function does */
    bool *moves;      /* by op */
};

static int first_reader(const struct program *p, const struct function *f, int value)
{
    for (int i = 0; i < f->n_ops; i++)
        for (int k = 0; k < OPS_MAX_INPUTS; k++)
            if (f->ops[i].in[k] && program_base(p, f->ops[i].in[k]) == program_base(p, value))
                return i;
    return f->n_ops;
}

/* A layer whose values are gathered again is not recomputed: as much would live longer. */
static bool is_recomputed(const struct hoist *h, int layer)
{
    for (int i = h->first; i < h->n_ops; i++)
        if (h->ops[i].phase == PHASE_R && h->ops[i].layer == layer &&
            !(op_info(h->ops[i].kind)->traits & TRAIT_GATHER))
            return true;
    return false;
}

/* The op that makes the input behind `first`, or -1. */
static int late_maker(const struct hoist *h, int input)
{
    int maker = input ? h->maker[program_base(h->program, input)] : -1;

    return maker >= h->first ? maker : -1;
}

/* What ops that move read moves, too; readers stand behind makers. */
static void add_makers(struct hoist *h)
{
    for (int i = h->n_ops - 1; i >= h->first; i--)
        for (int k = 0; k < OPS_MAX_INPUTS && h->moves[i]; k++) {
            int maker = late_maker(h, h->ops[i].in[k]);

            if (maker >= 0)
                h->moves[maker] = true;
        }
}

/* An op stays that is no recomputation, or that reads what stays. */
static void remove_bound(struct hoist *h)
{
    for (int i = h->first; i < h->n_ops; i++) {
        h->moves[i] &= h->ops[i].phase == PHASE_R;
        for (int k = 0; k < OPS_MAX_INPUTS; k++) {
            int maker = late_maker(h, h->ops[i].in[k]);

            h->moves[i] &= maker < 0 || h->moves[maker];
        }
    }
}

static int move(const struct hoist *h, struct arena *arena)
{
    struct op *moved = arena_array(arena, struct op, h->n_ops);
    int n = 0;

    for (int pass = 1; pass >= 0; pass--)
        for (int i = h->first; i < h->n_ops; i++)
            if (h->moves[i] == pass)
                moved[n++] = h->ops[i];
    memcpy(h->ops + h->first, moved, sizeof *moved * (size_t)n);
    n = 0;
    for (int i = h->first; i < h->n_ops; i++)
        n += h->moves[i];
    return n;
}

int recompute_early(struct program *program, int backward, int gradient, int first_layer,
                    int n_layers)
{
    const struct function *f = &program->functions[backward];
    struct arena arena = { 0 };
    struct hoist h = { .program = program,
                       .ops = f->ops,
                       .n_ops = f->n_ops,
                       .first = first_reader(program, f, gradient),
                       .maker = arena_array(&arena, int, program->n_values),
                       .moves = arena_array(&arena, bool, f->n_ops + 1) };

    for (int v = 0; v < program->n_values; v++)
        h.maker[v] = -1;
    for (int i = 0; i < h.n_ops; i++)
        for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
            if (h.ops[i].out[k])
                h.maker[program_base(program, h.ops[i].out[k])] = i;
    for (int layer = first_layer; layer < first_layer + n_layers; layer++)
        for (int i = h.first; i < h.n_ops && is_recomputed(&h, layer); i++)
            h.moves[i] |= h.ops[i].phase == PHASE_R && h.ops[i].layer == layer;
    add_makers(&h);
    remove_bound(&h);
    int n = move(&h, &arena);
    arena_release(&arena);
    return n;
}
