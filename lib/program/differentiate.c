/*
 * differentiate.c - the backward of a forward, by reverse-mode differentiation over ops
 *
 * The forward's ops are visited from the last to the first. gradient[v] is the value that holds the
 * sum of v's gradients seen so far; when an op is visited all readers of its outputs have been, so
 * these sums are complete and the op kind's backward (ops/backward.h) emits the ops for the
 * gradients of its inputs. It assumes that ops follow what they read, and that a value is written
 * once. It promises that the sum over several readers has one order, the reverse of reading, so
 * that the bits do not depend on how the program was built; and that nothing is emitted for what
 * leads to no trainable parameter.
 *
 *     F  %26 = linear %24, qkv.weight
 *     F  %28 = rope %26, positions, rope_table
 *     ->
 *     B  %101 = rope_grad %98, positions, rope_table     %98 is the gradient of %28
 *     B  %102 = linear_dx %101, qkv.weight               class B: the gradient of an input
 *     W  qkv.weight.grad += linear_dw %101, %24          class W: the gradient of a parameter
 *
 * The classes B and W are those of zero-bubble schedules (Qi et al. 2023): split.c divides the
 * backward by them. Collectives follow from spreads: a gradient that is partial over an axis (each
 * rank has a summand) is all-reduced where an op needs the sum (gradients.c), which for tensor
 * parallelism gives the operators f and g of Shoeybi et al. 2019.
 */
#include <stdbool.h>
#include <string.h>

#include "program/gradients.h"
#include "program/passes.h"

/* needs[v]: v depends on a trainable parameter. One pass is enough, since ops follow what they
 * read. */
static char *find_needs(struct program *program, int forward, int boundary)
{
    const struct function *f = &program->functions[forward];
    char *needs = arena_array(&program->arena, char, program->n_values);

    for (int i = 0; i < program->n_parameters; i++)
        needs[program->parameters[i].weight] = (char)program->parameters[i].trainable;
    needs[boundary] = boundary != 0; /* earlier stages may have trainable parameters */
    for (int i = 0; i < f->n_ops; i++) {
        int any = 0;

        for (int k = 0; k < OPS_MAX_INPUTS; k++)
            any |= needs[program_whole(program, f->ops[i].in[k])];
        for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
            if (f->ops[i].out[k] && any)
                needs[f->ops[i].out[k]] = 1;
    }
    needs[0] = 0;
    return needs;
}

static bool has_gradient(const struct gradient_walk *walk, const struct op *op)
{
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        if (op->out[k] && walk->gradient[op->out[k]])
            return true;
    return false;
}

int differentiate(struct program *program, int forward, int backward,
                  const struct gradient_seed *seeds, int n_seeds, int boundary)
{
    struct gradient_walk walk = {
        .program = program,
        .forward = forward,
        .backward = backward,
        .n_values = program->n_values,
        .gradient = arena_array(&program->arena, int, program->n_values),
        .needs = find_needs(program, forward, boundary),
        .parts = arena_array(&program->arena, int, program->n_values),
        .n_written = arena_array(&program->arena, int64_t, program->n_values),
        .gathered = arena_array(&program->arena, int, program->n_values),
    };

    gradient_walk_init(&walk);
    for (int i = 0; i < n_seeds; i++)
        if (walk.needs[seeds[i].value])
            walk.gradient[seeds[i].value] = seeds[i].gradient;
    for (int i = program->functions[forward].n_ops - 1; i >= 0; i--) {
        /* A copy, because emitting may reallocate the tables. */
        struct op op = program->functions[forward].ops[i];

        if (has_gradient(&walk, &op))
            gradient_emit(&walk, &op);
    }
    for (int v = 0; v < walk.n_values; v++)
        CHECK(!walk.parts[v] || !walk.needs[v]);
    return boundary ? walk.gradient[boundary] : 0;
}
