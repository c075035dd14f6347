/*
 * dispatch.c - rows to their experts and back: expert_order, dispatch, combine, expert_swiglu
 *
 * All but the order are cut by tokens, about 16k elements a tile; a token's rows are written or
 * read by its tile alone; choices of other ranks' experts have no row. Bound by memory. The order
 * is a counting sort of T s small integers by one thread: some tens of microseconds, where the
 * experts take as many milliseconds.
 */
#include <string.h>

#include "kernels/cpu/rows_impl.h"

static const int32_t *int_row(const struct tensor *t, int64_t row)
{
    return (const int32_t *)t->data + row * t->stride;
}

/* ---- the order ---- */

/* Of m experts from `begin` on, out of n. */
struct expert_range {
    int32_t begin, m, n;
};

static struct expert_range range_of(const struct op_shape *op)
{
    const struct tensor *begin = &op->in[EXPERT_ORDER_BEGIN];
    struct expert_range range = { .m = (int32_t)op->out[EXPERT_ORDER_ENDS].cols };

    range.n = range.m;
    if (tensor_given(begin)) {
        range.begin = *(const int32_t *)begin->data;
        range.n = op->attributes.n_experts;
    }
    CHECK(range.begin >= 0 && range.begin <= range.n - range.m);
    return range;
}

/* Its number in the range; -1: it is another's. */
static int32_t own_expert(const struct expert_range *range, int32_t e)
{
    return e >= range->begin && e < range->begin + range->m ? e - range->begin : -1;
}

static void count(const struct tensor *experts, int32_t *ends, const struct expert_range *range)
{
    int64_t m = range->m;

    memset(ends, 0, (size_t)m * sizeof *ends);
    for (int64_t t = 0; t < experts->rows; t++)
        for (int64_t i = 0; i < experts->cols; i++) {
            int32_t e = int_row(experts, t)[i];

            CHECK(e >= -1 && e < range->n);
            if (own_expert(range, e) >= 0)
                ends[own_expert(range, e)]++;
        }
    for (int64_t e = 1; e < m; e++)
        ends[e] += ends[e - 1];
}

/* From the last choice to the first, each expert's rows from its end on: which is what remains. */
static void expert_order_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct tensor *experts = &call->op.in[EXPERT_ORDER_EXPERT],
                        *place = &call->op.out[EXPERT_ORDER_PLACE];
    struct expert_range range = range_of(&call->op);
    int32_t *ends = call->op.out[EXPERT_ORDER_ENDS].data, *next = call->scratch;

    (void)kernels;
    (void)first;
    count(experts, ends, &range);
    memcpy(next, ends, (size_t)range.m * sizeof *next);
    for (int64_t t = experts->rows; t-- > 0;)
        for (int64_t i = experts->cols; i-- > 0;) {
            int32_t e = own_expert(&range, int_row(experts, t)[i]);

            ((int32_t *)place->data)[t * place->stride + i] = e < 0 ? -1 : --next[e];
        }
}

static size_t expert_order_scratch_bytes(struct kernels *kernels, const struct op_shape *op)
{
    (void)kernels;
    return (size_t)op->out[EXPERT_ORDER_ENDS].cols * sizeof(int32_t);
}

/* ---- by tokens ---- */

struct moving {
    const struct op_shape *op;
    const struct tensor *place;
    int64_t rows_a_tile;
    int64_t n_rows;     /* of experts */
    int64_t begin, end; /* of these, what it is about */
};

/* The row of a choice, or -1; and of the experts' that it is about. */
static int32_t any_row_of(const struct moving *m, int64_t t, int64_t i)
{
    int32_t row = int_row(m->place, t)[i];

    CHECK(row >= -1 && row < m->n_rows);
    return row;
}

static int32_t row_of(const struct moving *m, int64_t t, int64_t i)
{
    int32_t row = any_row_of(m, t, i);

    return row >= m->begin && row < m->end ? row : -1;
}

/* ends: NULL, or as the op has them. */
static void run_by_tokens(struct kernels *kernels, const struct op_shape *op,
                          const struct tensor *place, const struct tensor *ends,
                          const struct tensor *rows, int64_t cols, pool_tile_fn tile)
{
    struct moving m = { op,         place, max_i64(1, ELEMENTS_A_TILE / (cols * place->cols)),
                        rows->rows, 0,     rows->rows };
    int64_t first = op->attributes.first;

    if (op->attributes.experts) {
        const int32_t *end = ends->data;

        m.begin = first ? end[first - 1] : 0;
        m.end = end[first + op->attributes.experts - 1];
    }
    pool_run(kernels->pool, ceil_div(place->rows, m.rows_a_tile), tile, &m);
}

static void dispatch_tile(void *context, int64_t tile, int thread)
{
    const struct moving *m = context;
    const struct tensor *x = &m->op->in[DISPATCH_X], *y = &m->op->out[DISPATCH_Y];
    int64_t end = min_i64((tile + 1) * m->rows_a_tile, x->rows);
    size_t bytes = (size_t)x->cols * dtype_bytes(x->dtype);

    (void)thread;
    for (int64_t t = tile * m->rows_a_tile; t < end; t++)
        for (int64_t i = 0; i < m->place->cols; i++)
            if (row_of(m, t, i) >= 0)
                memcpy(cpu_row(y, row_of(m, t, i)), cpu_row(x, t), bytes);
}

static void dispatch_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    (void)first;
    run_by_tokens(kernels, &call->op, &call->op.in[DISPATCH_PLACE], &call->op.in[DISPATCH_ENDS],
                  &call->op.out[DISPATCH_Y], call->op.in[DISPATCH_X].cols, dispatch_tile);
}

#define COLS_A_SUM 256

CPU_INLINE void combine_row(const struct moving *m, int64_t t, enum dtype act)
{
    const struct tensor *y = &m->op->in[COMBINE_Y];
    void *out = cpu_row(&m->op->out[COMBINE_X], t);
    float sums[COLS_A_SUM];

    for (int64_t col = 0; col < y->cols; col += COLS_A_SUM) {
        int64_t n = min_i64(COLS_A_SUM, y->cols - col), n_added = 0;

        for (int64_t i = 0; i < m->place->cols; i++) {
            int32_t at = row_of(m, t, i);

            if (at < 0)
                continue;
            const void *row = cpu_row(y, at);
            for (int64_t c = 0; c < n; c++)
                sums[c] = (n_added ? sums[c] : 0.0f) + act_get(row, col + c, act);
            n_added++;
        }
        if (!n_added)
            memset(sums, 0, (size_t)n * sizeof *sums);
        for (int64_t c = 0; c < n; c++)
            act_put(out, col + c, sums[c], act);
    }
}

CPU_INLINE void combine_tile_body(void *context, int64_t tile)
{
    const struct moving *m = context;
    int64_t end = min_i64((tile + 1) * m->rows_a_tile, m->place->rows);

    for (int64_t t = tile * m->rows_a_tile; t < end; t++)
        WITH_ACT(m->op->in[COMBINE_Y].dtype, combine_row(m, t, act));
}
CPU_TILES(combine_tile);

static void combine_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    (void)first;
    run_by_tokens(kernels, &call->op, &call->op.in[COMBINE_PLACE], NULL, &call->op.in[COMBINE_Y],
                  call->op.in[COMBINE_Y].cols, combine_tile[cpu_of(kernels)->isa]);
}

/* ---- the activation ---- */

CPU_INLINE void swiglu_row(const void *gu, void *y, float w, int64_t f, enum dtype act)
{
    INDEPENDENT_TURNS
    for (int64_t c = 0; c < f; c++) {
        float gate = act_get(gu, c, act), up = act_get(gu, f + c, act);

        act_put(y, c, gate * vec_sigmoid(gate) * up * w, act);
    }
}

CPU_INLINE void swiglu_rows(const struct moving *m, int64_t t, enum dtype act)
{
    const struct tensor *gu = &m->op->in[EXPERT_SWIGLU_GU], *y = &m->op->out[EXPERT_SWIGLU_Y];

    for (int64_t i = 0; i < m->place->cols; i++) {
        int32_t row = row_of(m, t, i);

        if (row < 0)
            continue;
        swiglu_row(cpu_row(gu, row), cpu_row(y, row),
                   float_row(&m->op->in[EXPERT_SWIGLU_WEIGHT], t)[i], y->cols, act);
    }
}

CPU_INLINE void expert_swiglu_tile_body(void *context, int64_t tile)
{
    const struct moving *m = context;
    int64_t end = min_i64((tile + 1) * m->rows_a_tile, m->place->rows);

    for (int64_t t = tile * m->rows_a_tile; t < end; t++)
        WITH_ACT(m->op->in[EXPERT_SWIGLU_GU].dtype, swiglu_rows(m, t, act));
}
CPU_TILES(expert_swiglu_tile);

static void expert_swiglu_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    (void)first;
    run_by_tokens(kernels, &call->op, &call->op.in[EXPERT_SWIGLU_PLACE],
                  &call->op.in[EXPERT_SWIGLU_ENDS], &call->op.in[EXPERT_SWIGLU_GU],
                  call->op.out[EXPERT_SWIGLU_Y].cols, expert_swiglu_tile[cpu_of(kernels)->isa]);
}

/* n columns of a row from c on: dgu, and the summands of the weight's gradient. */
CPU_INLINE void swiglu_grad_cols(const void *dy, const void *gu, void *dgu, float w, int64_t f,
                                 int64_t c, int64_t n, float *lanes, enum dtype act)
{
    INDEPENDENT_TURNS
    for (int64_t l = 0; l < n; l++) {
        float gate = act_get(gu, c + l, act), up = act_get(gu, f + c + l, act);
        float g = act_get(dy, c + l, act), s = vec_sigmoid(gate);
        float gw = g * w;

        lanes[l] = __builtin_fmaf(g, gate * s * up, lanes[l]);
        act_put(dgu, c + l, gw * up * s * __builtin_fmaf(gate, 1.0f - s, 1.0f), act);
        act_put(dgu, f + c + l, gw * gate * s, act);
    }
}

/* A row; returns the weight's gradient. */
CPU_INLINE float swiglu_grad_row(const void *dy, const void *gu, void *dgu, float w, int64_t f,
                                 enum dtype act)
{
    float lanes[SUM_LANES] = { 0 };
    int64_t c = 0;

    for (; c + SUM_LANES <= f; c += SUM_LANES)
        swiglu_grad_cols(dy, gu, dgu, w, f, c, SUM_LANES, lanes, act);
    swiglu_grad_cols(dy, gu, dgu, w, f, c, f - c, lanes, act);
    return sum_lanes(lanes);
}

CPU_INLINE void swiglu_grad_rows(const struct moving *m, int64_t t, enum dtype act)
{
    const struct op_shape *op = m->op;

    for (int64_t i = 0; i < m->place->cols; i++) {
        int32_t row = row_of(m, t, i);
        float *dweight = float_row_mut(&op->out[EXPERT_SWIGLU_GRAD_DWEIGHT], t) + i;

        if (row < 0) {
            if (any_row_of(m, t, i) < 0 && !op->attributes.first)
                *dweight = 0;
            continue;
        }
        *dweight = swiglu_grad_row(cpu_row(&op->in[EXPERT_SWIGLU_GRAD_DY], row),
                                   cpu_row(&op->in[EXPERT_SWIGLU_GRAD_GU], row),
                                   cpu_row(&op->out[EXPERT_SWIGLU_GRAD_DGU], row),
                                   float_row(&op->in[EXPERT_SWIGLU_GRAD_WEIGHT], t)[i],
                                   op->in[EXPERT_SWIGLU_GRAD_DY].cols, act);
    }
}

CPU_INLINE void expert_swiglu_grad_tile_body(void *context, int64_t tile)
{
    const struct moving *m = context;
    int64_t end = min_i64((tile + 1) * m->rows_a_tile, m->place->rows);

    for (int64_t t = tile * m->rows_a_tile; t < end; t++)
        WITH_ACT(m->op->in[EXPERT_SWIGLU_GRAD_DY].dtype, swiglu_grad_rows(m, t, act));
}
CPU_TILES(expert_swiglu_grad_tile);

static void expert_swiglu_grad_run(struct kernels *kernels, const struct kernel_call *call,
                                   int first)
{
    (void)first;
    run_by_tokens(kernels, &call->op, &call->op.in[EXPERT_SWIGLU_GRAD_PLACE],
                  &call->op.in[EXPERT_SWIGLU_GRAD_ENDS], &call->op.in[EXPERT_SWIGLU_GRAD_GU],
                  call->op.in[EXPERT_SWIGLU_GRAD_DY].cols,
                  expert_swiglu_grad_tile[cpu_of(kernels)->isa]);
}

void cpu_register_dispatch(struct kernels_backend *table)
{
    table->entries[OP_EXPERT_ORDER] =
        (struct kernel_entry){ .run = expert_order_run,
                               .scratch_bytes = expert_order_scratch_bytes };
    table->entries[OP_DISPATCH] = (struct kernel_entry){ .run = dispatch_run };
    table->entries[OP_COMBINE] = (struct kernel_entry){ .run = combine_run };
    table->entries[OP_EXPERT_SWIGLU] = (struct kernel_entry){ .run = expert_swiglu_run };
    table->entries[OP_EXPERT_SWIGLU_GRAD] = (struct kernel_entry){ .run = expert_swiglu_grad_run };
}
