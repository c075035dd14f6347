/*
 * gradient_check.c - see the header
 */
#include "support/gradient_check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int find(const struct op_operand *operands, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(operands[i].name, name))
            return i;
    return -1;
}

static double loss(const struct op_shape *forward, const struct tensor *cotangent)
{
    double sum = 0;

    reference_run(forward, RUN_FIRST);
    for (int64_t i = 0; i < tensor_elements(cotangent); i++)
        sum += ((double *)forward->out[0].data)[i] * ((double *)cotangent->data)[i];
    return sum;
}

void gradient_check_input(const struct op_shape *forward, const struct tensor *cotangent,
                          const char *name, const struct tensor *gradient)
{
    const struct op_info *info = op_info(forward->kind);
    const struct tensor *input = &forward->in[find(info->inputs, info->n_inputs, name)];
    double *x = input->data, *g = gradient->data, top = 0;

    assert_int_equal(tensor_elements(input), tensor_elements(gradient));
    for (int64_t i = 0; i < tensor_elements(gradient); i++)
        top = fmax(top, fabs(g[i]));
    assert_true(top > 0);
    for (int64_t i = 0; i < tensor_elements(input); i++) {
        double kept = x[i], above, below;

        x[i] = kept + GRADIENT_STEP;
        above = loss(forward, cotangent);
        x[i] = kept - GRADIENT_STEP;
        below = loss(forward, cotangent);
        x[i] = kept;
        if (fabs((above - below) / (2 * GRADIENT_STEP) - g[i]) > GRADIENT_TOLERANCE * top)
            fail_msg("%s: d%s[%lld] is %.9g, by differences %.9g", op_info(forward->kind)->name,
                     name, (long long)i, g[i], (above - below) / (2 * GRADIENT_STEP));
    }
}

/* Inputs of the gradient op: the output's cotangent, the forward's inputs and what it saved. */
static struct tensor gradient_input(const struct op_shape *forward, const struct tensor *cotangent,
                                    const char *name)
{
    const struct op_info *info = op_info(forward->kind);
    int i = find(info->inputs, info->n_inputs, name);

    if (i >= 0)
        return forward->in[i];
    i = find(info->outputs, info->n_outputs, name);
    if (i >= 0)
        return forward->out[i];
    if (name[0] == 'd' && !strcmp(name + 1, info->outputs[0].name))
        return *cotangent;
    if (strcmp(name, "scale") != 0 && strcmp(name, "choices") != 0 && strcmp(name, "sum") != 0)
        assert_string_equal(name, "add");
    return (struct tensor){ 0 };
}

static int is_checked[N_OP_KINDS];

int gradient_was_checked(enum op_kind kind)
{
    return is_checked[kind];
}

void gradient_check(const struct op_case *c, enum op_kind gradient_kind)
{
    const struct op_info *info = op_info(c->op.kind), *gradient_info = op_info(gradient_kind);
    struct op_shape forward = { 0 },
                    gradient = { .kind = gradient_kind, .attributes = c->op.attributes };
    struct tensor cotangent;

    op_case_to_reference(c, &forward);
    cotangent = forward.out[0];
    cotangent.data = malloc((size_t)tensor_elements(&cotangent) * sizeof(double));
    for (int64_t i = 0; i < tensor_elements(&cotangent); i++)
        ((double *)cotangent.data)[i] = sin(1.7 * (double)i + 0.3);
    reference_run(&forward, RUN_FIRST);
    for (int i = 0; i < gradient_info->n_inputs; i++)
        gradient.in[i] = gradient_input(&forward, &cotangent, gradient_info->inputs[i].name);
    for (int i = 0; i < op_plain_outputs(gradient_info); i++) {
        int input = find(info->inputs, info->n_inputs, gradient_info->outputs[i].name + 1);

        if (!strcmp(gradient_info->outputs[i].name, "copy"))
            continue;
        assert_true(input >= 0);
        gradient.out[i] = forward.in[input];
        if (tensor_given(&gradient.out[i]))
            gradient.out[i].data =
                malloc((size_t)tensor_elements(&gradient.out[i]) * sizeof(double));
    }
    reference_run(&gradient, RUN_FIRST);
    is_checked[gradient_kind] = 1;
    for (int i = 0; i < op_plain_outputs(gradient_info); i++) {
        const char *name = gradient_info->outputs[i].name + 1;

        if (tensor_given(&gradient.out[i]))
            gradient_check_input(&forward, &cotangent, name, &gradient.out[i]);
        free(gradient.out[i].data);
    }
    free(cotangent.data);
    reference_release(&forward);
}
