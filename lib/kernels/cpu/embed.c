/*
 * embed.c - looking up rows of a table, and the gradient of that
 *
 * Both are bound by memory. The forward takes blocks of tokens. The gradient must add rows of equal
 * tokens in token order without two threads meeting: tokens with the same index are chained first
 * (one thread, T steps), then each chain is summed by the thread that has the tile of its first
 * token, and the sum goes to the table's row in one add.
 *
 * A rank that has a part of the table has its rows from `offset` on; tokens of other ranks' rows
 * are passed over as those without an index are.
 */
#include "kernels/cpu/rows_impl.h"

#define TOKENS_A_TILE 16
#define CHAIN_COLS 256 /* columns summed at a time, on the stack */

#define NO_ROW (-1)

/* Which row of the table belongs to a token, of the n_rows that are here; offset may be absent. */
static inline int64_t table_row(const struct tensor *index, int64_t token,
                                const struct tensor *offset, int64_t n_rows)
{
    int64_t row = *(const int32_t *)cpu_row(index, token);

    if (row < 0)
        return NO_ROW;
    if (!tensor_given(offset)) {
        CHECK(row < n_rows);
        return row;
    }
    row -= *(const int32_t *)offset->data;
    return row >= 0 && row < n_rows ? row : NO_ROW;
}

CPU_INLINE void embed_rows(const struct op_shape *op, int64_t row, int64_t end, enum dtype act,
                           enum dtype res)
{
    int64_t d = op->out[EMBED_X].cols;

    for (; row < end; row++) {
        int64_t index =
            table_row(&op->in[EMBED_INDEX], row, &op->in[EMBED_OFFSET], op->in[EMBED_TABLE].rows);
        void *x = cpu_row(&op->out[EMBED_X], row);
        const void *base =
            tensor_given(&op->in[EMBED_BASE]) ? cpu_row(&op->in[EMBED_BASE], row) : NULL;

        if (base && base != x)
            memcpy(x, base, (size_t)d * dtype_bytes(res));
        if (index == NO_ROW) {
            if (!base)
                memset(x, 0, (size_t)d * dtype_bytes(res));
            continue;
        }
        const void *entry = cpu_row(&op->in[EMBED_TABLE], index);

        if (base)
            for (int64_t i = 0; i < d; i++)
                act_put(x, i, act_get(x, i, res) + act_get(entry, i, act), res);
        else
            for (int64_t i = 0; i < d; i++)
                act_put(x, i, act_get(entry, i, act), res);
    }
}

CPU_INLINE void embed_tile_body(void *context, int64_t tile)
{
    const struct op_shape *op = context;
    int64_t row = tile * TOKENS_A_TILE, end = min_i64(row + TOKENS_A_TILE, op->out[EMBED_X].rows);

    WITH_ACT_AND_RES(op->in[EMBED_TABLE].dtype, op->out[EMBED_X].dtype,
                     embed_rows(op, row, end, act, res));
}

CPU_TILES(embed_tile);

static void embed(struct kernels *kernels, const struct kernel_call *call, int first)
{
    struct op_shape op = call->op;

    (void)first;
    pool_run(kernels->pool, ceil_div(op.out[EMBED_X].rows, TOKENS_A_TILE),
             embed_tile[cpu_of(kernels)->isa], &op);
}

struct chains {
    const struct op_shape *op;
    int32_t *next;    /* of each token: the next one with its index, or -1 */
    int32_t *last;    /* of each table row: its last token so far, or -1 */
    uint8_t *is_head; /* of each token */
    int first;
};

static size_t embed_dw_scratch(struct kernels *kernels, const struct op_shape *op)
{
    (void)kernels;
    return (size_t)(op->in[EMBED_DW_DX].rows + op->out[EMBED_DW_DTABLE].rows) * sizeof(int32_t) +
           (size_t)op->in[EMBED_DW_DX].rows;
}

static void chain(const struct chains *c)
{
    int64_t n_tokens = c->op->in[EMBED_DW_DX].rows, n_rows = c->op->out[EMBED_DW_DTABLE].rows;

    for (int64_t row = 0; row < n_rows; row++)
        c->last[row] = -1;
    for (int64_t t = 0; t < n_tokens; t++) {
        int64_t index =
            table_row(&c->op->in[EMBED_DW_INDEX], t, &c->op->in[EMBED_DW_OFFSET], n_rows);

        c->next[t] = -1;
        c->is_head[t] = index != NO_ROW && c->last[index] < 0;
        if (index == NO_ROW)
            continue;
        if (!c->is_head[t])
            c->next[c->last[index]] = (int32_t)t;
        c->last[index] = (int32_t)t;
    }
}

CPU_INLINE void add_sum(void *out, int64_t col, const float *sum, int64_t n, int first,
                        enum dtype act)
{
    for (int64_t i = 0; i < n; i++)
        act_put(out, col + i, first ? sum[i] : act_get(out, col + i, act) + sum[i], act);
}

/* res: dx's dtype. */
CPU_INLINE void sum_chain(const struct chains *c, int64_t head, enum dtype res)
{
    const struct op_shape *op = c->op;
    const struct tensor *dx = &op->in[EMBED_DW_DX];
    int64_t index = table_row(&op->in[EMBED_DW_INDEX], head, &op->in[EMBED_DW_OFFSET],
                              op->out[EMBED_DW_DTABLE].rows);
    void *out = cpu_row(&op->out[EMBED_DW_DTABLE], index);
    float sum[CHAIN_COLS];

    for (int64_t col = 0; col < dx->cols; col += CHAIN_COLS) {
        int64_t n = min_i64(CHAIN_COLS, dx->cols - col);

        for (int64_t i = 0; i < n; i++)
            sum[i] = act_get(cpu_row(dx, head), col + i, res);
        for (int64_t t = c->next[head]; t >= 0; t = c->next[t]) {
            const void *row = cpu_row(dx, t);

            for (int64_t i = 0; i < n; i++)
                sum[i] += act_get(row, col + i, res);
        }
        WITH_ACT(op->out[EMBED_DW_DTABLE].dtype, add_sum(out, col, sum, n, c->first, act));
    }
}

CPU_INLINE void embed_dw_tile_body(void *context, int64_t tile)
{
    const struct chains *c = context;
    int64_t end = min_i64((tile + 1) * TOKENS_A_TILE, c->op->in[EMBED_DW_DX].rows);

    for (int64_t t = tile * TOKENS_A_TILE; t < end; t++)
        if (c->is_head[t])
            WITH_ACT(c->op->in[EMBED_DW_DX].dtype, sum_chain(c, t, act));
}

CPU_TILES(embed_dw_tile);

/* Rows that no token names; the others are about to be written whole. */
static void zero_tile(void *context, int64_t tile, int thread)
{
    const struct chains *c = context;
    const struct tensor *out = &c->op->out[EMBED_DW_DTABLE];
    int64_t end = min_i64((tile + 1) * TOKENS_A_TILE, out->rows);

    (void)thread;
    for (int64_t row = tile * TOKENS_A_TILE; row < end; row++)
        if (c->last[row] < 0)
            memset(cpu_row(out, row), 0, (size_t)out->cols * dtype_bytes(out->dtype));
}

static void embed_dw(struct kernels *kernels, const struct kernel_call *call, int first)
{
    int64_t n_tokens = call->op.in[EMBED_DW_DX].rows, n_rows = call->op.out[EMBED_DW_DTABLE].rows;
    int32_t *next = call->scratch;
    struct chains c = { .op = &call->op,
                        .next = next,
                        .last = next + n_tokens,
                        .is_head = (uint8_t *)(next + n_tokens + n_rows),
                        .first = first };

    chain(&c);
    if (first)
        pool_run(kernels->pool, ceil_div(n_rows, TOKENS_A_TILE), zero_tile, &c);
    pool_run(kernels->pool, ceil_div(n_tokens, TOKENS_A_TILE), embed_dw_tile[cpu_of(kernels)->isa],
             &c);
}

void cpu_register_embed(struct kernels_backend *table)
{
    table->entries[OP_EMBED] = (struct kernel_entry){ .run = embed };
    table->entries[OP_EMBED_DW] =
        (struct kernel_entry){ .run = embed_dw, .scratch_bytes = embed_dw_scratch };
}
