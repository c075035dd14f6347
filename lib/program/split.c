/*
 * split.c - the backward in two functions, B and W, for zero-bubble schedules (Qi et al. 2023)
 *
 * An op of class W moves to the function `weight`; a recomputed op (phase R) moves with it if only
 * moved ops read it. Everything else stays, in the same order. What a moved op reads of the
 * backward lives from one function to the other and is therefore placed in the stash (place.c).
 *
 *     backward: B linear_dx, R rmsnorm, W linear_dw, B rmsnorm_grad
 *     ->
 *     backward: B linear_dx, B rmsnorm_grad        weight: R rmsnorm, W linear_dw
 */
#include "program/passes.h"

/* Mark, by value, what an op that stays in the backward reads, directly or as a view. */
static void mark_inputs(const struct program *p, const struct op *op, char *read)
{
    for (int k = 0; k < OPS_MAX_INPUTS; k++)
        read[program_whole(p, op->in[k])] = 1;
}

static int makes_what_is_read(const struct program *p, const struct op *op, const char *read)
{
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        if (op->out[k] && (read[program_whole(p, op->out[k])] || read[program_base(p, op->out[k])]))
            return 1;
    return 0;
}

void split_backward(struct program *program, int backward, int weight)
{
    struct function *b = &program->functions[backward];
    char *read = arena_array(&program->arena, char, program->n_values);
    char *moves = arena_array(&program->arena, char, b->n_ops);
    int n_ops = b->n_ops, n_left = 0;
    struct op *ops = b->ops;

    /* In reverse, so that all readers of a value are seen before the op that writes it. */
    for (int i = n_ops - 1; i >= 0; i--) {
        moves[i] = ops[i].phase == PHASE_W ||
                   (ops[i].phase == PHASE_R && !makes_what_is_read(program, &ops[i], read));
        if (!moves[i])
            mark_inputs(program, &ops[i], read);
    }
    for (int i = 0; i < n_ops; i++)
        if (moves[i])
            program_emit(program, weight, &ops[i]);
    b = &program->functions[backward];
    for (int i = 0; i < n_ops; i++)
        if (!moves[i])
            b->ops[n_left++] = b->ops[i];
    b->n_ops = n_left;
}
