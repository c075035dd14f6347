/*
 * update.c - the gradient norm and the optimizer, as ops
 *
 * The norm's block sums lie in one vector, parameters in name order, so that its total does not
 * depend on how the program was built or laid out.
 */
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "program/passes.h"

struct update {
    struct program *program;
    int function;
    const struct update_options *options;
};

static void emit(const struct update *u, struct op op)
{
    op.phase = PHASE_U;
    op.layer = -1;
    program_emit(u->program, u->function, &op);
}

static int by_name(const void *a, const void *b, void *context)
{
    const struct parameter *parameters = context;

    return strcmp(parameters[*(const int *)a].name, parameters[*(const int *)b].name);
}

/* Indices of the trainable parameters, in name order. */
static int *trainable_by_name(struct program *p, int *n)
{
    int *order = arena_array(&p->arena, int, p->n_parameters + 1);

    *n = 0;
    for (int i = 0; i < p->n_parameters; i++)
        if (p->parameters[i].n_gradients)
            order[(*n)++] = i;
    qsort_r(order, (size_t)*n, sizeof *order, by_name, p->parameters);
    return order;
}

/* Every use of a tied parameter into the first one's accumulator, in use order. */
static void sum_uses(const struct update *u, const struct parameter *parameter)
{
    for (int use = 1; use < parameter->n_gradients; use++)
        emit(u, (struct op){ .kind = OP_ACCUMULATE,
                             .in = { parameter->gradients[use] },
                             .out = { parameter->gradients[0] },
                             .first = FIRST_NEVER });
}

static void gradient_norm(const struct update *u, const int *order, int n)
{
    struct program *p = u->program;
    int64_t n_blocks = 0;

    for (int i = 0; i < n; i++) {
        const struct parameter *q = &p->parameters[order[i]];
        n_blocks += ceil_div(q->rows * q->cols, OPS_NORM_BLOCK);
    }
    int sums = program_value(p, 1, n_blocks, DTYPE_F64);
    int64_t offset = 0;
    for (int i = 0; i < n; i++) {
        struct parameter *q = &p->parameters[order[i]];
        int64_t blocks = ceil_div(q->rows * q->cols, OPS_NORM_BLOCK);

        q->norm_blocks = program_view(p, sums, offset, 1, blocks, blocks);
        emit(u,
             (struct op){ .kind = OP_SUMSQ, .in = { q->gradients[0] }, .out = { q->norm_blocks } });
        offset += blocks;
    }
    p->ports.norm = program_cell(p, ROLE_SCALAR, "gradient_norm", 1, 1, DTYPE_F64);
    p->ports.factor = program_cell(p, ROLE_SCALAR, "clip_factor", 1, 1, DTYPE_F32);
    p->ports.skip = program_cell(p, ROLE_SCALAR, "skip", 1, 1, DTYPE_I32);
    emit(u, (struct op){ .kind = OP_GRADIENT_NORM,
                         .attributes.clip = u->options->clip,
                         .in = { sums },
                         .out = { p->ports.norm, p->ports.factor, p->ports.skip } });
}

static int state_cell(struct program *p, const struct parameter *q, enum cell_role role,
                      const char *suffix)
{
    char *name = arena_printf(&p->arena, "%s.%s", q->name, suffix);

    return program_cell(p, role, name, q->rows, q->cols, DTYPE_F32);
}

static void optimizer(const struct update *u, int index)
{
    struct program *p = u->program;
    struct parameter q = p->parameters[index];
    int is_fp32 = p->values[q.weight].dtype == DTYPE_F32;

    q.master = is_fp32 ? q.weight : state_cell(p, &q, ROLE_MASTER, "master");
    q.moment1 = state_cell(p, &q, ROLE_MOMENT1, "m");
    q.moment2 = state_cell(p, &q, ROLE_MOMENT2, "v");
    p->parameters[index] = q;
    emit(u,
         (struct op){ .kind = OP_ADAMW,
                      .attributes = { .beta1 = u->options->beta1,
                                      .beta2 = u->options->beta2,
                                      .eps = u->options->eps,
                                      .weight_decay = q.n_dims > 1 ? u->options->weight_decay : 0 },
                      .in = { q.gradients[0], p->ports.scalars, p->ports.factor, p->ports.skip,
                              q.master, q.moment1, q.moment2 },
                      .out = { is_fp32 ? 0 : q.weight } });
}

void build_update(struct program *program, int update, const struct update_options *options)
{
    struct update u = { program, update, options };
    int n;
    int *order = trainable_by_name(program, &n);

    program->ports.scalars =
        program_cell(program, ROLE_SCALAR, "scalars", 1, OPS_N_SCALARS, DTYPE_F32);
    program->ports.loss_total = program->ports.loss;
    if (program->mesh.size[AXIS_DP] > 1) {
        program->ports.loss_total =
            program_cell(program, ROLE_SCALAR, "loss_total", 1, 1, DTYPE_F64);
        emit(&u, (struct op){ .kind = OP_ALL_REDUCE_SCALAR,
                              .attributes.axis = AXIS_DP,
                              .in = { program->ports.loss },
                              .out = { program->ports.loss_total },
                              .stream = STREAM_DP_REDUCE });
    }
    for (int i = 0; i < n; i++)
        sum_uses(&u, &program->parameters[order[i]]);
    gradient_norm(&u, order, n);
    for (int i = 0; i < n; i++)
        optimizer(&u, order[i]);
}
