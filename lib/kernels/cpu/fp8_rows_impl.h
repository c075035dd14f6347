/*
 * fp8_rows_impl.h - codes of rows that products of fp8 read, made by the op that makes the rows
 * (codes_output of ops/op_info.h)
 *
 * What is rounded is what was stored: bf16 that is still in the first-level cache. Scales and codes
 * have the bits of linear_fp8.c's own.
 */
#ifndef KERNELS_CPU_FP8_ROWS_IMPL_H
#define KERNELS_CPU_FP8_ROWS_IMPL_H

#include "kernels/cpu/fp8_blocks_impl.h"

struct fp8_rows {
    const struct tensor *x, *codes, *most; /* most NULL: nothing is rounded; codes: blockwise */
};

static inline struct fp8_rows fp8_rows_of(const struct op_shape *op)
{
    int codes = op_info(op->kind)->codes_output - 1;
    struct fp8_rows rows = { 0 };

    if (codes < 0 || !tensor_given(&op->out[codes + 1]))
        return rows;
    rows.x = &op->out[ops_rounded_output(op)];
    rows.codes = tensor_given(&op->out[codes]) ? &op->out[codes] : NULL;
    rows.most = &op->out[codes + 1];
    return rows;
}

/* A whole row. */
CPU_INLINE void fp8_row(const struct fp8_rows *r, int64_t row)
{
    int64_t d = r->x->cols, side = r->codes ? OPS_FP8_BLOCK : d;
    const uint16_t *x = cpu_row(r->x, row);
    float *most = float_row_mut(r->most, row);

    for (int64_t col = 0; col < d; col += side) {
        int64_t n = min_i64(side, d - col);
        uint32_t bits = (uint32_t)fp8_larger(0, x + col, n) << 16;

        *most++ = vec_from_bits(bits);
        if (r->codes)
            fp8_codes((uint8_t *)cpu_row(r->codes, row) + col, x + col, e4m3_scale(bits), n);
    }
}

#endif
