/*
 * dropout.c - dropout of rows, and its gradient, which is the same function of dy
 *
 * Rectangles as elementwise.c's. Bound by Philox: ten rounds for four elements.
 */
#include "kernels/cpu/dropout_impl.h"
#include "kernels/cpu/rows_impl.h"

struct dropout {
    const struct op_shape *op;
    struct tiling tiling;
    int64_t begin;     /* the first row's place in the micro-batch */
    int64_t begin_col; /* and the first column's in the whole row */
    float p, scale;
};

CPU_INLINE void dropout_row(const struct dropout *d, int64_t row, const struct rectangle *r,
                            enum dtype act)
{
    const struct op_attributes *a = &d->op->attributes;
    int64_t place = d->begin + row;
    int64_t sample = *(const int64_t *)cpu_row(&d->op->in[1], place / a->seq_len);
    uint64_t place_high = dropout_place_high(a->place, sample);
    const void *x = cpu_row(&d->op->in[0], row);
    void *y = cpu_row(&d->op->out[0], row);

    /* A tile's first column is a multiple of 4: ELEMENTS_A_TILE is. */
    for (int64_t col = r->col; col < r->col_end; col += 4) {
        struct rng_block words = dropout_words(a->seed, place_high, place % a->seq_len, col / 4);

        for (int64_t i = col; i < min_i64(col + 4, r->col_end); i++) {
            int kept = rng_uniform(words.word[i - col]) >= d->p;

            act_put(y, i, kept ? act_get(x, i, act) * d->scale : 0.0f, act);
        }
    }
}

/* The same where the first column may lie anywhere in a block of four words. */
CPU_INLINE void dropout_part_row(const struct dropout *d, int64_t row, const struct rectangle *r,
                                 enum dtype act)
{
    const struct op_attributes *a = &d->op->attributes;
    int64_t sample = *(const int64_t *)cpu_row(&d->op->in[1], row / a->seq_len);
    uint64_t place_high = dropout_place_high(a->place, sample);
    const void *x = cpu_row(&d->op->in[0], row);
    void *y = cpu_row(&d->op->out[0], row);

    for (int64_t i = r->col; i < r->col_end;) {
        int64_t whole = d->begin_col + i;
        struct rng_block words = dropout_words(a->seed, place_high, row % a->seq_len, whole / 4);

        for (int64_t lane = whole % 4; lane < 4 && i < r->col_end; lane++, i++) {
            int kept = rng_uniform(words.word[lane]) >= d->p;

            act_put(y, i, kept ? act_get(x, i, act) * d->scale : 0.0f, act);
        }
    }
}

CPU_INLINE void dropout_tile_body(void *context, int64_t tile)
{
    const struct dropout *d = context;
    struct rectangle r = tiling_at(&d->tiling, tile);

    if (d->begin_col)
        for (int64_t row = r.row; row < r.row_end; row++)
            dropout_part_row(d, row, &r, d->op->in[0].dtype);
    else
        WITH_ACT(d->op->in[0].dtype,
                 for (int64_t row = r.row; row < r.row_end; row++) dropout_row(d, row, &r, act));
}

CPU_TILES(dropout_tile);

static void dropout_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    double p = op->attributes.p;
    struct dropout d = { .op = op,
                         .tiling = tiling_of(op->in[0].rows, op->in[0].cols),
                         .p = (float)p,
                         .scale = (float)(1.0 / (1.0 - p)) };

    (void)first;
    if (op->attributes.by_columns && tensor_given(&op->in[2])) {
        d.begin_col = *(const int32_t *)op->in[2].data;
        CHECK(d.begin_col >= 0);
    } else if (tensor_given(&op->in[2])) {
        d.begin = *(const int32_t *)op->in[2].data;
        CHECK(d.begin >= 0);
        CHECK(d.begin + op->in[0].rows <= op->in[1].rows * op->attributes.seq_len);
    }
    pool_run(kernels->pool, d.tiling.n_tiles, dropout_tile[cpu_of(kernels)->isa], &d);
}

void cpu_register_dropout(struct kernels_backend *table)
{
    table->entries[OP_DROPOUT] = (struct kernel_entry){ .run = dropout_run };
    table->entries[OP_DROPOUT_GRAD] = (struct kernel_entry){ .run = dropout_run };
}
