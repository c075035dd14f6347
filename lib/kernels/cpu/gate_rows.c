/*
 * gate_rows.c - gate_rows, gate_rows_grad: each row times the sigmoid of its own gate
 *
 * A tile is some rows. A gate's gradient is a sum along its row, in fp32 and in lanes.
 */
#include "kernels/cpu/rows_impl.h"

struct gating {
    const struct op_shape *op;
    int64_t rows, cols, rows_a_tile;
};

CPU_INLINE void gate_row(const struct gating *g, int64_t row, enum dtype act)
{
    const void *x = cpu_row(&g->op->in[GATE_ROWS_X], row);
    void *y = cpu_row(&g->op->out[GATE_ROWS_Y], row);
    float s = vec_sigmoid(*float_row(&g->op->in[GATE_ROWS_GATE], row));

    INDEPENDENT_TURNS
    for (int64_t i = 0; i < g->cols; i++)
        act_put(y, i, s * act_get(x, i, act), act);
}

CPU_INLINE void gate_grad_row(const struct gating *g, int64_t row, enum dtype act)
{
    const void *dy = cpu_row(&g->op->in[GATE_ROWS_GRAD_DY], row),
               *x = cpu_row(&g->op->in[GATE_ROWS_GRAD_X], row);
    void *dx = cpu_row(&g->op->out[GATE_ROWS_GRAD_DX], row);
    float s = vec_sigmoid(*float_row(&g->op->in[GATE_ROWS_GRAD_GATE], row));
    float lanes[SUM_LANES] = { 0 };
    int64_t i = 0;

    for (; i + SUM_LANES <= g->cols; i += SUM_LANES)
        for (int l = 0; l < SUM_LANES; l++) {
            float d = act_get(dy, i + l, act);

            lanes[l] = __builtin_fmaf(d, act_get(x, i + l, act), lanes[l]);
            act_put(dx, i + l, s * d, act);
        }
    for (int l = 0; i < g->cols; i++, l++) {
        float d = act_get(dy, i, act);

        lanes[l] = __builtin_fmaf(d, act_get(x, i, act), lanes[l]);
        act_put(dx, i, s * d, act);
    }
    *float_row_mut(&g->op->out[GATE_ROWS_GRAD_DGATE], row) = s * (1 - s) * sum_lanes(lanes);
}

CPU_INLINE void gate_rows_tile_body(void *context, int64_t tile)
{
    const struct gating *g = context;
    int64_t end = min_i64((tile + 1) * g->rows_a_tile, g->rows);

    for (int64_t row = tile * g->rows_a_tile; row < end; row++)
        WITH_ACT(g->op->in[GATE_ROWS_X].dtype, gate_row(g, row, act));
}
CPU_TILES(gate_rows_tile);

CPU_INLINE void gate_rows_grad_tile_body(void *context, int64_t tile)
{
    const struct gating *g = context;
    int64_t end = min_i64((tile + 1) * g->rows_a_tile, g->rows);

    for (int64_t row = tile * g->rows_a_tile; row < end; row++)
        WITH_ACT(g->op->in[GATE_ROWS_GRAD_X].dtype, gate_grad_row(g, row, act));
}
CPU_TILES(gate_rows_grad_tile);

static void run_tiles(struct kernels *kernels, const struct op_shape *op, const struct tensor *x,
                      pool_tile_fn tile)
{
    struct gating g = { op, x->rows, x->cols, max_i64(1, ELEMENTS_A_TILE / max_i64(x->cols, 1)) };

    pool_run(kernels->pool, ceil_div(g.rows, g.rows_a_tile), tile, &g);
}

static void gate_rows_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    (void)first;
    run_tiles(kernels, &call->op, &call->op.in[GATE_ROWS_X], gate_rows_tile[cpu_of(kernels)->isa]);
}

static void gate_rows_grad_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    (void)first;
    run_tiles(kernels, &call->op, &call->op.in[GATE_ROWS_GRAD_X],
              gate_rows_grad_tile[cpu_of(kernels)->isa]);
}

void cpu_register_gate_rows(struct kernels_backend *table)
{
    table->entries[OP_GATE_ROWS] = (struct kernel_entry){ .run = gate_rows_run };
    table->entries[OP_GATE_ROWS_GRAD] = (struct kernel_entry){ .run = gate_rows_grad_run };
}
