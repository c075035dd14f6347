/*
 * dropout.c - dropout of rows, and its gradient, which is the same function of dy
 *
 * Srivastava et al. 2014, scaled by 1 / (1 - p) in training. Tiles are elementwise.c's rectangles.
 * Bound by Philox: ten rounds for four elements; the mask is computed again and never stored.
 */
#include "kernels/cpu/dropout_impl.h"
#include "kernels/cpu/rows_impl.h"

struct dropout {
    const struct op_shape *op;
    struct tiling tiling;
    int64_t begin;     /* the first row's place in the micro-batch, or among the numbers, */
    int64_t begin_col; /* or the first column's in the whole row; the other is 0 */
    int64_t n_places;  /* rows of the micro-batch */
    float p, scale;
};

/* Of a row in the micro-batch. */
CPU_INLINE int64_t dropout_place_of(const struct dropout *d, int64_t row)
{
    const struct tensor *numbers = &d->op->in[DROPOUT_ROW];
    int64_t place = d->begin + row;

    if (tensor_given(numbers))
        place = *(const int32_t *)cpu_row(numbers, place);
    CHECK(place >= 0);
    CHECK(place < d->n_places);
    return place;
}

CPU_INLINE void dropout_row(const struct dropout *d, int64_t row, const struct tile_bounds *r,
                            enum dtype act)
{
    const struct op_attributes *a = &d->op->attributes;
    int64_t place = dropout_place_of(d, row);
    int64_t sample = *(const int64_t *)cpu_row(&d->op->in[DROPOUT_SAMPLE], place / a->seq_len);
    const struct dropout_series series = { a->seed, dropout_place_high(a->rng_site, sample), d->p,
                                           d->scale };
    const void *x = cpu_row(&d->op->in[DROPOUT_X], row);
    void *y = cpu_row(&d->op->out[DROPOUT_Y], row);

    /* The first column may lie anywhere in a quad of the whole row. */
    for (int64_t col = r->col, n; col < r->col_end; col += n) {
        int64_t quad = (d->begin_col + col) / 4, skip = (d->begin_col + col) % 4;
        float factors[DROPOUT_ELEMENTS];

        n = min_i64(DROPOUT_ELEMENTS - skip, r->col_end - col);
        dropout_factors(factors, &series, dropout_place_low(place % a->seq_len, quad));
        for (int64_t i = 0; i < n; i++) {
            float factor = factors[skip + i];

            act_put(y, col + i, factor != 0 ? act_get(x, col + i, act) * factor : 0.0f, act);
        }
    }
}

CPU_INLINE void dropout_tile_body(void *context, int64_t tile)
{
    const struct dropout *d = context;
    struct tile_bounds r = tiling_at(&d->tiling, tile);

    WITH_ACT(d->op->in[DROPOUT_X].dtype,
             for (int64_t row = r.row; row < r.row_end; row++) dropout_row(d, row, &r, act));
}

CPU_TILES(dropout_tile);

static void dropout_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    const struct tensor *numbers = &op->in[DROPOUT_ROW];
    double p = op->attributes.p;
    struct dropout d = { .op = op,
                         .tiling = tiling_of(op->in[DROPOUT_X].rows, op->in[DROPOUT_X].cols),
                         .n_places = op->in[DROPOUT_SAMPLE].rows * op->attributes.seq_len,
                         .p = (float)p,
                         .scale = (float)(1.0 / (1.0 - p)) };

    (void)first;
    if (op->attributes.by_columns && tensor_given(&op->in[DROPOUT_OFFSET])) {
        d.begin_col = *(const int32_t *)op->in[DROPOUT_OFFSET].data;
        CHECK(d.begin_col >= 0);
    } else if (tensor_given(&op->in[DROPOUT_OFFSET])) {
        d.begin = *(const int32_t *)op->in[DROPOUT_OFFSET].data;
        CHECK(d.begin >= 0);
        CHECK(d.begin + op->in[DROPOUT_X].rows <=
              (tensor_given(numbers) ? numbers->rows : d.n_places));
    }
    pool_run(kernels->pool, d.tiling.n_tiles, dropout_tile[cpu_of(kernels)->isa], &d);
}

void cpu_register_dropout(struct kernels_backend *table)
{
    table->entries[OP_DROPOUT] = (struct kernel_entry){ .run = dropout_run };
    table->entries[OP_DROPOUT_GRAD] = (struct kernel_entry){ .run = dropout_run };
}
