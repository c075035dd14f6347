/*
 * elementwise.c - activations and small data movements: each output element on its own
 *
 * swiglu is silu(gate) * up (Shazeer 2020, eq. 6); gelu is the tanh form (Hendrycks and Gimpel
 * 2016, section 2). A tile is a rectangle of about 16k elements (rows_impl.h), so that one wide row
 * is shared too. Bound by memory, but for swiglu and gelu in fp32, whose exp takes about as long.
 */
#include "kernels/cpu/fp8_rows_impl.h"

/* ---- the functions -----------------------------------------------------------------------------
 */

#define GELU_ROOT 0.79788456080286536f /* sqrt(2 / pi) */
#define GELU_CUBE 0.044715f

CPU_INLINE float gelu_of(float x)
{
    float t = vec_tanh(GELU_ROOT * __builtin_fmaf(GELU_CUBE * x * x, x, x));

    return 0.5f * x * (1.0f + t);
}

CPU_INLINE float gelu_slope(float x)
{
    float t = vec_tanh(GELU_ROOT * __builtin_fmaf(GELU_CUBE * x * x, x, x));
    float inner = GELU_ROOT * __builtin_fmaf(3.0f * GELU_CUBE * x, x, 1.0f);

    return __builtin_fmaf(0.5f * x * (1.0f - t * t), inner, 0.5f * (1.0f + t));
}

CPU_INLINE void swiglu_row(const struct op_shape *op, int64_t row, const struct tile_bounds *r,
                           enum dtype act)
{
    int64_t f = op->out[SWIGLU_Y].cols;
    const void *gu = cpu_row(&op->in[SWIGLU_GU], row);
    void *y = cpu_row(&op->out[SWIGLU_Y], row);

    INDEPENDENT_TURNS
    for (int64_t i = r->col; i < r->col_end; i++) {
        float gate = act_get(gu, i, act), up = act_get(gu, f + i, act);

        act_put(y, i, gate * vec_sigmoid(gate) * up, act);
    }
}

CPU_INLINE void swiglu_grad_row(const struct op_shape *op, int64_t row, const struct tile_bounds *r,
                                enum dtype act)
{
    int64_t f = op->in[SWIGLU_GRAD_DY].cols;
    const void *dy = cpu_row(&op->in[SWIGLU_GRAD_DY], row),
               *gu = cpu_row(&op->in[SWIGLU_GRAD_GU], row);
    void *dgu = cpu_row(&op->out[SWIGLU_GRAD_DGU], row);

    INDEPENDENT_TURNS
    for (int64_t i = r->col; i < r->col_end; i++) {
        float gate = act_get(gu, i, act), up = act_get(gu, f + i, act);
        float g = act_get(dy, i, act), s = vec_sigmoid(gate);

        act_put(dgu, i, g * up * s * __builtin_fmaf(gate, 1.0f - s, 1.0f), act);
        act_put(dgu, f + i, g * gate * s, act);
    }
}

CPU_INLINE void gelu_row(const struct op_shape *op, int64_t row, const struct tile_bounds *r,
                         enum dtype act)
{
    const void *x = cpu_row(&op->in[GELU_X], row);
    void *y = cpu_row(&op->out[GELU_Y], row);

    INDEPENDENT_TURNS
    for (int64_t i = r->col; i < r->col_end; i++)
        act_put(y, i, gelu_of(act_get(x, i, act)), act);
}

CPU_INLINE void gelu_grad_row(const struct op_shape *op, int64_t row, const struct tile_bounds *r,
                              enum dtype act)
{
    const void *dy = cpu_row(&op->in[GELU_GRAD_DY], row), *x = cpu_row(&op->in[GELU_GRAD_X], row);
    void *dx = cpu_row(&op->out[GELU_GRAD_DX], row);

    INDEPENDENT_TURNS
    for (int64_t i = r->col; i < r->col_end; i++)
        act_put(dx, i, act_get(dy, i, act) * gelu_slope(act_get(x, i, act)), act);
}

CPU_INLINE void add_row(const struct op_shape *op, int64_t row, const struct tile_bounds *r,
                        enum dtype act)
{
    const float *a = float_row(&op->in[ADD_A], row);
    const void *b = cpu_row(&op->in[ADD_B], row);
    float *y = float_row_mut(&op->out[ADD_Y], row);

    INDEPENDENT_TURNS
    for (int64_t i = r->col; i < r->col_end; i++)
        y[i] = a[i] + act_get(b, i, act);
}

/* a, b and y are of one type. */
CPU_INLINE void add_alike_row(const struct op_shape *op, int64_t row, const struct tile_bounds *r,
                              enum dtype act)
{
    const void *a = cpu_row(&op->in[ADD_A], row), *b = cpu_row(&op->in[ADD_B], row);
    void *y = cpu_row(&op->out[ADD_Y], row);

    INDEPENDENT_TURNS
    for (int64_t i = r->col; i < r->col_end; i++)
        act_put(y, i, act_get(a, i, act) + act_get(b, i, act), act);
}

CPU_INLINE void scale_row(const struct op_shape *op, int64_t row, const struct tile_bounds *r,
                          enum dtype act)
{
    const void *x = cpu_row(&op->in[SCALE_X], row);
    void *y = cpu_row(&op->out[SCALE_Y], row);
    float factor = (float)op->attributes.scale;

    INDEPENDENT_TURNS
    for (int64_t i = r->col; i < r->col_end; i++)
        act_put(y, i, act_get(x, i, act) * factor, act);
}

CPU_INLINE void add_bias_row(const struct op_shape *op, int64_t row, const struct tile_bounds *r,
                             enum dtype act)
{
    const void *x = cpu_row(&op->in[ADD_BIAS_X], row);
    const float *b = float_row(&op->in[ADD_BIAS_B], 0);
    void *y = cpu_row(&op->out[ADD_BIAS_Y], row);

    INDEPENDENT_TURNS
    for (int64_t i = r->col; i < r->col_end; i++)
        act_put(y, i, act_get(x, i, act) + b[i], act);
}

CPU_INLINE void cast_cols(const void *x, void *y, const struct tile_bounds *r, enum dtype from,
                          enum dtype to)
{
    INDEPENDENT_TURNS
    for (int64_t i = r->col; i < r->col_end; i++)
        act_put(y, i, act_get(x, i, from), to);
}

/* act: of the output; the input is another type. */
CPU_INLINE void cast_row(const struct op_shape *op, int64_t row, const struct tile_bounds *r,
                         enum dtype act)
{
    const void *x = cpu_row(&op->in[CAST_X], row);
    void *y = cpu_row(&op->out[CAST_Y], row);

    if (op->in[CAST_X].dtype == DTYPE_BF16)
        cast_cols(x, y, r, DTYPE_BF16, act);
    else if (op->in[CAST_X].dtype == DTYPE_F16)
        cast_cols(x, y, r, DTYPE_F16, act);
    else
        cast_cols(x, y, r, DTYPE_F32, act);
}

/* What comes first is taken as it is: as a reduction leaves it, a zero's sign included. */
CPU_INLINE void accumulate_row(const struct op_shape *op, int64_t row, const struct tile_bounds *r,
                               int first, enum dtype act)
{
    const void *x = cpu_row(&op->in[ACCUMULATE_X], row);
    void *y = cpu_row(&op->out[ACCUMULATE_Y], row);

    INDEPENDENT_TURNS
    for (int64_t i = r->col; i < r->col_end; i++)
        act_put(y, i, first ? act_get(x, i, act) : act_get(y, i, act) + act_get(x, i, act), act);
}

/* ---- the tiles ---------------------------------------------------------------------------------
 */

struct elementwise {
    const struct op_shape *op;
    struct tiling tiling;
    struct fp8_rows coded;
    enum dtype act; /* what chooses a kind's loop */
    int first;
};

/* The rows of a tile; where it has parts of rows, the last step has them all (code_rows). */
CPU_INLINE void code_tile(const struct elementwise *e, const struct tile_bounds *r)
{
    for (int64_t row = r->row; row < r->row_end && e->tiling.n_col_tiles == 1; row++)
        fp8_row(&e->coded, row);
}

CPU_INLINE void code_rows_body(void *context, int64_t row)
{
    const struct elementwise *e = context;

    fp8_row(&e->coded, row);
}

CPU_TILES(code_rows);

static void elementwise(struct kernels *kernels, const struct kernel_call *call, pool_tile_fn tile,
                        int first);

/* Of name_rows(e, r). */
#define ELEMENTWISE(name) \
    CPU_INLINE void name##_tile_body(void *context, int64_t tile) \
    { \
        const struct elementwise *e = context; \
        struct tile_bounds r = tiling_at(&e->tiling, tile); \
\
        name##_rows(e, &r); \
        if (e->coded.most) \
            code_tile(e, &r); \
    } \
    CPU_TILES(name##_tile); \
\
    static void name##_run(struct kernels *kernels, const struct kernel_call *call, int first) \
    { \
        elementwise(kernels, call, name##_tile[cpu_of(kernels)->isa], first); \
    }

/* Of name_row(op, row, r, act). */
#define ELEMENTWISE_ACT(name) \
    CPU_INLINE void name##_rows(const struct elementwise *e, const struct tile_bounds *r) \
    { \
        WITH_ACT(e->act, for (int64_t row = r->row; row < r->row_end; row++) \
                             name##_row(e->op, row, r, act)); \
    } \
    ELEMENTWISE(name)

/* Which operand's dtype chooses the loop, and whose extents are cut. */
static void elementwise(struct kernels *kernels, const struct kernel_call *call, pool_tile_fn tile,
                        int first)
{
    const struct op_shape *op = &call->op;
    int grad = op->kind == OP_SWIGLU_GRAD;
    const struct tensor *cut = grad ? &op->in[SWIGLU_GRAD_DY] : &op->out[OPS_FIRST];
    const struct tensor *typed = op->kind == OP_ADD ? &op->in[ADD_B] : &op->out[OPS_FIRST];
    struct elementwise e = {
        .op = op,
        .tiling = tiling_of(cut->rows, cut->cols),
        .coded = fp8_rows_of(op),
        .act = typed->dtype,
        .first = first,
    };

    pool_run(kernels->pool, e.tiling.n_tiles, tile, &e);
    if (e.coded.most && e.tiling.n_col_tiles > 1)
        pool_run(kernels->pool, e.coded.x->rows, code_rows[cpu_of(kernels)->isa], &e);
}

ELEMENTWISE_ACT(swiglu)
ELEMENTWISE_ACT(swiglu_grad)
ELEMENTWISE_ACT(gelu)
ELEMENTWISE_ACT(gelu_grad)
ELEMENTWISE_ACT(add)
ELEMENTWISE_ACT(add_alike)
ELEMENTWISE_ACT(scale)
ELEMENTWISE_ACT(add_bias)
ELEMENTWISE_ACT(cast)

CPU_INLINE void accumulate_rows(const struct elementwise *e, const struct tile_bounds *r)
{
    if (e->first)
        WITH_ACT(e->act, for (int64_t row = r->row; row < r->row_end; row++)
                             accumulate_row(e->op, row, r, 1, act));
    else
        WITH_ACT(e->act, for (int64_t row = r->row; row < r->row_end; row++)
                             accumulate_row(e->op, row, r, 0, act));
}

ELEMENTWISE(accumulate)

static void any_add_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    if (call->op.out[ADD_Y].dtype != DTYPE_F32)
        add_alike_run(kernels, call, first);
    else
        add_run(kernels, call, first);
}

static void select_rows_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    size_t bytes = (size_t)op->out[SELECT_ROWS_Y].cols * dtype_bytes(op->out[SELECT_ROWS_Y].dtype);

    (void)kernels;
    (void)first;
    for (int64_t row = 0; row < op->out[SELECT_ROWS_Y].rows; row++) {
        int32_t index = *(const int32_t *)cpu_row(&op->in[SELECT_ROWS_INDEX], row);

        CHECK(index >= 0 && index < op->in[SELECT_ROWS_X].rows);
        memcpy(cpu_row(&op->out[SELECT_ROWS_Y], row), cpu_row(&op->in[SELECT_ROWS_X], index),
               bytes);
    }
}

static void await_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    (void)kernels;
    (void)call;
    (void)first;
}

void cpu_register_elementwise(struct kernels_backend *table)
{
    table->entries[OP_SWIGLU] = (struct kernel_entry){ .run = swiglu_run };
    table->entries[OP_SWIGLU_GRAD] = (struct kernel_entry){ .run = swiglu_grad_run };
    table->entries[OP_GELU] = (struct kernel_entry){ .run = gelu_run };
    table->entries[OP_GELU_GRAD] = (struct kernel_entry){ .run = gelu_grad_run };
    table->entries[OP_ADD] = (struct kernel_entry){ .run = any_add_run };
    table->entries[OP_SCALE] = (struct kernel_entry){ .run = scale_run };
    table->entries[OP_ADD_BIAS] = (struct kernel_entry){ .run = add_bias_run };
    table->entries[OP_CAST] = (struct kernel_entry){ .run = cast_run };
    table->entries[OP_ACCUMULATE] = (struct kernel_entry){ .run = accumulate_run };
    table->entries[OP_SELECT_ROWS] = (struct kernel_entry){ .run = select_rows_run };
    table->entries[OP_AWAIT] = (struct kernel_entry){ .run = await_run };
}
