/*
 * attention_end.c - what is left when all parts of the keys have been attended to: outputs by their
 * sums, and dq times the scale
 *
 * A tile is a block of rows. Bound by memory.
 */
#include "kernels/cpu/attention_impl.h"

#define END_ROWS 16

CPU_INLINE void end_head(const struct op_shape *op, int64_t row, int head, enum dtype act)
{
    int n_heads = op->attributes.n_heads;
    int64_t value_dim = op->out[ATTENTION_END_OUT].cols / n_heads, begin = head * value_dim;
    const float *state = float_row(&op->in[ATTENTION_END_STATE], row);
    const float *max = state + n_heads * value_dim, *sum = max + n_heads;
    void *out = cpu_row(&op->out[ATTENTION_END_OUT], row);
    float inverse = sum[head] > 0 ? 1.0f / sum[head] : 0.0f;

    for (int64_t i = begin; i < begin + value_dim; i++)
        act_put(out, i, state[i] * inverse, act);
    float_row_mut(&op->out[ATTENTION_END_LSE], row)[head] =
        sum[head] > 0 ? max[head] + logf(sum[head]) : INFINITY;
}

CPU_INLINE void end_row(const struct op_shape *op, int64_t row, enum dtype act)
{
    for (int head = 0; head < op->attributes.n_heads; head++)
        end_head(op, row, head, act);
}

CPU_INLINE void attention_end_tile_body(void *context, int64_t tile)
{
    const struct op_shape *op = context;
    const struct tensor *out = &op->out[ATTENTION_END_OUT];
    int64_t row = tile * END_ROWS, end = min_i64(row + END_ROWS, out->rows);

    WITH_ACT(out->dtype, for (; row < end; row++) end_row(op, row, act));
}

CPU_TILES(attention_end_tile);

CPU_INLINE void scale_row(const struct op_shape *op, int64_t row, enum dtype act)
{
    const float *sum = float_row(&op->in[ATTENTION_DQ_END_SUM], row);
    void *dq = cpu_row(&op->out[ATTENTION_DQ_END_DQ], row);
    float scale = (float)op->attributes.scale;

    INDEPENDENT_TURNS
    for (int64_t i = 0; i < op->out[ATTENTION_DQ_END_DQ].cols; i++)
        act_put(dq, i, sum[i] * scale, act);
}

CPU_INLINE void attention_dq_end_tile_body(void *context, int64_t tile)
{
    const struct op_shape *op = context;
    const struct tensor *dq = &op->out[ATTENTION_DQ_END_DQ];
    int64_t row = tile * END_ROWS, end = min_i64(row + END_ROWS, dq->rows);

    WITH_ACT(dq->dtype, for (; row < end; row++) scale_row(op, row, act));
}

CPU_TILES(attention_dq_end_tile);

static void attention_end_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    (void)first;
    pool_run(kernels->pool, ceil_div(call->op.out[OPS_FIRST].rows, END_ROWS),
             (call->op.kind == OP_ATTENTION_END ? attention_end_tile
                                                : attention_dq_end_tile)[cpu_of(kernels)->isa],
             (void *)&call->op);
}

void cpu_register_attention_end(struct kernels_backend *table)
{
    table->entries[OP_ATTENTION_END] = (struct kernel_entry){ .run = attention_end_run };
    table->entries[OP_ATTENTION_DQ_END] = (struct kernel_entry){ .run = attention_end_run };
}
