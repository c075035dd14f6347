/*
 * updates.c - what test/oracle/optimizers.py holds against libraries: updates by an optimizer's
 * kernel
 *
 *     updates OPTIMIZER STATES N_STEPS N LR BETA1 BETA2 EPS WEIGHT_DECAY NESTEROV
 *
 * OPTIMIZER and STATES are words of optimizer.name and optimizer.states. Standard input: fp32
 * parameters [N], then gradients [N_STEPS x N]. Standard output: parameters [N] after each step;
 * then, as they are kept, m [N], the scales of its blocks, v and its scales, where there are any.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/num.h"
#include "device/pool.h"
#include "kernels/kernels.h"
#include "ops/optimizers.h"

#define INPUT_MAX ((size_t)1 << 28)

struct play {
    struct op_shape op;
    int64_t n_steps, n;
    double lr;
    float scalars[OPS_N_SCALARS], factor;
    int32_t skip;
    struct kernels *kernels;
};

static struct tensor dense(void *data, int64_t cols, enum dtype dtype)
{
    return (struct tensor){ .data = data, .rows = 1, .cols = cols, .stride = cols, .dtype = dtype };
}

static struct tensor zeros(int64_t cols, enum dtype dtype)
{
    void *data = calloc((size_t)cols, dtype_bytes(dtype));

    CHECK(data);
    return dense(data, cols, dtype);
}

static void write_tensor(const struct tensor *t)
{
    if (tensor_given(t))
        fwrite(t->data, dtype_bytes(t->dtype), (size_t)t->cols, stdout);
}

static int parse(struct play *p, char **argv)
{
    const struct choice *name = choice_find(optimizer_choices, argv[1]);
    const struct choice *states = choice_find(optimizer_states_choices, argv[2]);

    if (!name || !states)
        return -1;
    const struct optimizer_row *row = optimizer_row((enum optimizer_rule)name->value);
    enum dtype state = optimizer_state_dtype(row, (enum dtype)states->value);
    p->n_steps = strtol(argv[3], NULL, 10);
    p->n = strtol(argv[4], NULL, 10);
    p->lr = strtod(argv[5], NULL);
    p->op = (struct op_shape){ .kind = row->kind,
                               .attributes = { .beta1 = strtod(argv[6], NULL),
                                               .beta2 = strtod(argv[7], NULL),
                                               .eps = strtod(argv[8], NULL),
                                               .weight_decay = strtod(argv[9], NULL),
                                               .nesterov = !strcmp(argv[10], "1") } };
    if (p->n < 1 || p->n_steps < 1 || !optimizer_allows(row, (enum dtype)states->value) ||
        state == DTYPE_BF16)
        return -1;
    p->op.in[OPTIMIZER_M] = zeros(p->n, state);
    if (row->has_v)
        p->op.in[OPTIMIZER_V] = zeros(p->n, state);
    for (int k = 0; k < 1 + row->has_v && optimizer_is_scaled(state); k++)
        p->op.in[k ? OPTIMIZER_V_SCALE : OPTIMIZER_M_SCALE] =
            zeros(ceil_div(p->n, OPS_STATE_BLOCK), DTYPE_F32);
    p->op.in[OPTIMIZER_SCALARS] = dense(p->scalars, OPS_N_SCALARS, DTYPE_F32);
    p->op.in[OPTIMIZER_CLIP_FACTOR] = dense(&p->factor, 1, DTYPE_F32);
    p->op.in[OPTIMIZER_SKIP_UPDATE] = dense(&p->skip, 1, DTYPE_I32);
    p->factor = 1;
    return 0;
}

static int play_step(struct play *p, float *gradient, int64_t step, struct err *err)
{
    struct kernel_call call = { 0 };

    p->op.in[OPTIMIZER_GRADIENT] = dense(gradient, p->n, DTYPE_F32);
    p->scalars[SCALAR_LR] = (float)p->lr;
    p->scalars[SCALAR_BIAS1] = (float)(1 - pow(p->op.attributes.beta1, (double)step));
    p->scalars[SCALAR_BIAS2] = (float)(1 - pow(p->op.attributes.beta2, (double)step));
    p->scalars[SCALAR_UPDATE] = (float)step;
    call.op = p->op;
    if (kernels_prepare(p->kernels, &call, err) < 0)
        return -1;
    kernels_run(p->kernels, &call, KERNELS_FIRST);
    kernels_release(p->kernels, &call);
    write_tensor(&p->op.in[OPTIMIZER_MASTER]);
    return 0;
}

static int play(struct play *p, struct err *err)
{
    size_t n = (size_t)p->n, n_bytes;
    char *data;
    int status = 0;

    if (file_read("/dev/stdin", INPUT_MAX, ERR_DATA, &data, &n_bytes, err) < 0)
        return -1;
    CHECK(n_bytes == (1 + (size_t)p->n_steps) * n * sizeof(float));
    float *numbers = (float *)(void *)data;
    p->op.in[OPTIMIZER_MASTER] = dense(numbers, p->n, DTYPE_F32);
    for (int64_t step = 1; step <= p->n_steps && !status; step++)
        status = play_step(p, numbers + (size_t)step * n, step, err);
    write_tensor(&p->op.in[OPTIMIZER_M]);
    write_tensor(&p->op.in[OPTIMIZER_M_SCALE]);
    write_tensor(&p->op.in[OPTIMIZER_V]);
    write_tensor(&p->op.in[OPTIMIZER_V_SCALE]);
    free(data);
    return status;
}

int main(int argc, char **argv)
{
    struct play p = { 0 };
    struct pool *pool = NULL;
    struct err err;

    if (argc != 11 || parse(&p, argv) < 0) {
        fprintf(stderr, "usage: updates OPTIMIZER STATES N_STEPS N LR BETA1 BETA2 EPS WEIGHT_DECAY "
                        "NESTEROV\n");
        return 2;
    }
    int status = pool_create(&pool, 2, NULL, &err) < 0 ||
                 kernels_cpu_create(&p.kernels, pool, NULL, &err) < 0 || play(&p, &err) < 0;
    if (status)
        fprintf(stderr, "updates: %s\n", err.text);
    kernels_destroy(p.kernels);
    pool_destroy(pool);
    free(p.op.in[OPTIMIZER_M].data);
    free(p.op.in[OPTIMIZER_V].data);
    free(p.op.in[OPTIMIZER_M_SCALE].data);
    free(p.op.in[OPTIMIZER_V_SCALE].data);
    return status || fflush(stdout) != 0;
}
