/*
 * split.c - the backward in two
 */
#include "program/passes.h"

/* Marks by value: something that stays in the backward reads it, or a view of it. */
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

    /* Backwards, so that whether something is read is known when its maker comes. */
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
