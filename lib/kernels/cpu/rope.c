/*
 * rope.c - rotary position embedding of heads (Su et al. 2021, eq. 34, in the halves' form)
 *
 * A tile is a block of rows with all of their heads: the table's row of an angle is read once for
 * all of them. Bound by memory. The gradient is the rotation by the opposite angle.
 */
#include "kernels/cpu/rows_impl.h"

#define ROPE_ROWS 16

struct rope {
    const struct op_shape *op;
    float sign; /* of the angle */
};

CPU_INLINE void rope_row(const struct rope *r, int64_t row, enum dtype act)
{
    const struct op_attributes *a = &r->op->attributes;
    int32_t position = *(const int32_t *)cpu_row(&r->op->in[ROPE_POSITION], row);
    const char *in = cpu_row(&r->op->in[ROPE_X], row);
    char *out = cpu_row(&r->op->out[ROPE_OUT], row);
    int64_t half = a->head_dim / 2, n = r->op->in[ROPE_X].cols;

    CHECK(position < r->op->in[ROPE_TABLE].rows);
    /* No token: its angle doesn't matter, but must not be read from outside of the table. */
    const float *cosine = float_row(&r->op->in[ROPE_TABLE], position < 0 ? 0 : position);
    const float *sine = cosine + half;

    for (int64_t at = 0; at < n; at += a->head_dim) {
        INDEPENDENT_TURNS
        for (int64_t i = 0; i < half; i++) {
            float x = act_get(in, at + i, act), y = act_get(in, at + half + i, act);
            float s = sine[i] * r->sign;

            act_put(out, at + i, __builtin_fmaf(x, cosine[i], -(y * s)), act);
            act_put(out, at + half + i, __builtin_fmaf(y, cosine[i], x * s), act);
        }
    }
}

CPU_INLINE void rope_tile_body(void *context, int64_t tile)
{
    const struct rope *r = context;
    int64_t row = tile * ROPE_ROWS, end = min_i64(row + ROPE_ROWS, r->op->in[ROPE_X].rows);

    WITH_ACT(r->op->in[ROPE_X].dtype, for (; row < end; row++) rope_row(r, row, act));
}

CPU_TILES(rope_tile);

static void rope_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    struct rope r = { .op = &call->op, .sign = call->op.kind == OP_ROPE ? 1.0f : -1.0f };

    (void)first;
    pool_run(kernels->pool, ceil_div(call->op.in[ROPE_X].rows, ROPE_ROWS),
             rope_tile[cpu_of(kernels)->isa], &r);
}

void cpu_register_rope(struct kernels_backend *table)
{
    table->entries[OP_ROPE] = (struct kernel_entry){ .run = rope_run };
    table->entries[OP_ROPE_GRAD] = (struct kernel_entry){ .run = rope_run };
}
