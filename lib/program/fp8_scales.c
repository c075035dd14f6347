/*
 * fp8_scales.c - one scale of a tensor, of which ranks may have parts
 *
 * With the recipe `tensor` a product of fp8 needs the largest element of each operand before it
 * rounds the first one. The pass makes it a value of its own where ranks have parts of the tensor
 * (those that divide a matrix, or the sequences of a micro-batch), and where several products read
 * the same operand, or where the op that makes it finds that of each row (fp8_codes.c). Each rank
 * finds those of its part; all ranks then have all of them, of which the product takes the largest:
 * no order matters, and there is no rounding, so the scale is that of the whole tensor.
 *
 *     F  %30 = fp8_amax %26                                     same dp, split(rows) tp
 *     F  %31 = all_gather %30  over tp
 *     F  %27 = linear_fp8 %26, attention_out.weight, -, %31, ...
 *
 * Other data-parallel ranks have other micro-batches, which are tensors of their own; and so is a
 * rank's summand of a sum.
 */
#include "layout/axes.h"
#include "program/passes.h"

struct scale_join {
    struct program *program;
    bool has_weights, is_fused;
    int *n_readers; /* by value: operands of products that it is */
    int *most;      /* by value: what products read; 0: nothing yet */
};

static bool has_one_scale(const struct op *op)
{
    bool is_product =
        op->kind == OP_LINEAR_FP8 || op->kind == OP_LINEAR_DX_FP8 || op->kind == OP_LINEAR_DW_FP8;

    return is_product && op->attributes.fp8 == FP8_TENSOR;
}

/* Whether the axis' ranks have parts of the tensor. */
static bool is_cut(const struct program *p, const struct value *v, enum mesh_axis axis)
{
    bool is_other = axis_role(axis, PARAMETER_DENSE) == SPLITS_TOKENS && !axis_cuts_sequences(axis);

    return mesh_size(&p->mesh, axis) > 1 &&
           (v->spread[axis] == SPREAD_COLS || (v->spread[axis] == SPREAD_ROWS && !is_other));
}

static bool is_part(const struct program *p, int value)
{
    for (int axis = 0; axis < N_AXES; axis++)
        if (is_cut(p, &p->values[value], (enum mesh_axis)axis))
            return true;
    return false;
}

static void count_readers(struct scale_join *s, int function)
{
    const struct function *f = &s->program->functions[function];

    for (int i = 0; i < f->n_ops; i++)
        for (int k = 0; k < OPS_FP8_OPERANDS && has_one_scale(&f->ops[i]); k++)
            s->n_readers[f->ops[i].in[k]]++;
}

/* In front of ops[index]; returns how many ops that are. of_rows: what the op that makes x has
 * found; 0: nothing. */
static int emit_most(struct scale_join *s, int function, int index, int x, int of_rows)
{
    struct program *p = s->program;
    const struct op reader = p->functions[function].ops[index];
    struct op op = { .kind = OP_FP8_AMAX, .phase = reader.phase, .layer = reader.layer };
    int most = of_rows, n = 0;

    if (!most) {
        most = program_value(p, 1, 1, DTYPE_F32);
        op.in[FP8_AMAX_X] = x;
        op.out[FP8_AMAX_MOST] = most;
        program_insert(p, function, index + n++, &op);
    }
    for (int axis = 0; axis < N_AXES; axis++) {
        struct value v = p->values[most];

        if (!is_cut(p, &p->values[x], (enum mesh_axis)axis))
            continue;
        int all = program_value(p, v.rows * mesh_size(&p->mesh, (enum mesh_axis)axis), 1, v.dtype);
        op = (struct op){ .kind = OP_ALL_GATHER,
                          .attributes.axis = (enum mesh_axis)axis,
                          .in = { [ALL_GATHER_SHARD] = most },
                          .out = { [ALL_GATHER_FULL] = all },
                          .phase = reader.phase,
                          .stream = stream_of_axis((enum mesh_axis)axis),
                          .layer = reader.layer };
        program_insert(p, function, index + n++, &op);
        most = all;
    }
    s->most[x] = most;
    return n;
}

/* Whether it is found ahead, though the op that makes x does not find it. */
static bool wants_most(const struct scale_join *s, int x)
{
    return s->n_readers[x] > 1 || is_part(s->program, x);
}

static void scale_function(struct scale_join *s, int function)
{
    struct program *p = s->program;

    for (int i = 0; i < p->functions[function].n_ops; i++)
        for (int k = 0; k < OPS_FP8_OPERANDS && has_one_scale(&p->functions[function].ops[i]);
             k++) {
            int x = p->functions[function].ops[i].in[k];

            if (!s->has_weights && p->values[x].role == ROLE_WEIGHT)
                continue;
            if (!s->most[x]) {
                int of_rows = s->is_fused ? fp8_most_of_rows(p, function, i, x) : 0;

                if (!of_rows && !wants_most(s, x))
                    continue;
                i += emit_most(s, function, i, x, of_rows);
            }
            struct op *op = &p->functions[function].ops[i];
            op->in[ops_fp8_most(op->kind, k)] = s->most[x];
        }
}

void fp8_scales(struct program *program, const struct chunk_functions *chunk, bool has_weights,
                bool is_fused)
{
    struct scale_join s = { .program = program, .has_weights = has_weights, .is_fused = is_fused };
    const int functions[] = { chunk->forward, chunk->backward, chunk->weight };
    int n = chunk->weight == chunk->backward ? 2 : 3;

    s.n_readers = arena_array(&program->arena, int, program->n_values);
    s.most = arena_array(&program->arena, int, program->n_values);
    for (int i = 0; i < n; i++)
        count_readers(&s, functions[i]);
    for (int i = 0; i < n; i++)
        scale_function(&s, functions[i]);
}
