/*
 * lora.c - lora, expert_lora: low-rank adapters' products added to what they adapt (Hu et al. 2021,
 * eq. 3)
 *
 * A block of rows at a time: h b' of each part by gemm.c into fp32 scratch, then one add and one
 * rounding an element. Bound by memory, ranks being small: y is read and out written once, and the
 * products of a block stay in cache.
 *
 * Of experts each one's rows are treated so, with its own b. How many it has is known at run time
 * only: scratch is of the largest block.
 *
 * Numerics: gemm's sums do not depend on the rows computed together, so neither does the result.
 */
#include "kernels/cpu/gemm_impl.h"
#include "kernels/cpu/rows_impl.h"

#define LORA_ROWS 128 /* of a block */

struct lora {
    const struct op_shape *op;
    const float *product; /* of the part at hand, [rows x width]; NULL: copied */
    int64_t expert;
    int64_t begin, rows; /* the block */
    int64_t col, width;  /* the part */
    struct tiling tiling;
};

/* A part's h and b. */
struct lora_pair {
    const struct tensor *h, *b;
};

static struct lora_pair pair_of(const struct op_shape *op, int part)
{
    bool is_of_experts = op->kind == OP_EXPERT_LORA;

    return (struct lora_pair){ &op->in[(is_of_experts ? EXPERT_LORA_H0 : LORA_H0) + 2 * part],
                               &op->in[(is_of_experts ? EXPERT_LORA_B0 : LORA_B0) + 2 * part] };
}

static struct cpu_gemm_shape product_shape(const struct op_shape *op, int part, int64_t rows)
{
    const struct tensor *h = pair_of(op, part).h, *b = pair_of(op, part).b;

    return (struct cpu_gemm_shape){ .m = rows,
                                    .n = op->attributes.parts[part],
                                    .k = h->cols,
                                    .in = h->dtype,
                                    .out = DTYPE_F32,
                                    .b_transposed = 1,
                                    .lda = h->stride,
                                    .ldb = b->stride,
                                    .ldc = op->attributes.parts[part] };
}

static int64_t widest(const struct op_shape *op)
{
    int64_t most = 0;

    for (int i = 0; i < OPS_LORA_PARTS; i++)
        most = max_i64(most, op->attributes.parts[i]);
    return most;
}

static size_t product_bytes(const struct op_shape *op)
{
    return align_up((size_t)(min_i64(LORA_ROWS, op->in[LORA_Y].rows) * widest(op)) * sizeof(float),
                    64);
}

static size_t lora_scratch_bytes(struct kernels *kernels, const struct op_shape *op)
{
    int64_t rows = op->in[LORA_Y].rows;
    const int64_t sizes[] = { min_i64(LORA_ROWS, rows), rows % LORA_ROWS };
    size_t most = 0;

    for (int i = 0; i < OPS_LORA_PARTS; i++)
        for (int k = 0; k < 2; k++) {
            if (!tensor_given(pair_of(op, i).h) || !sizes[k])
                continue;
            struct cpu_gemm_shape shape = product_shape(op, i, sizes[k]);
            size_t bytes = cpu_gemm_scratch_bytes(cpu_of(kernels), &shape);

            most = bytes > most ? bytes : most;
        }
    return product_bytes(op) + most;
}

static size_t expert_lora_scratch_bytes(struct kernels *kernels, const struct op_shape *op)
{
    size_t most = 0;

    for (int i = 0; i < OPS_LORA_PARTS; i++) {
        if (!tensor_given(pair_of(op, i).h))
            continue;
        struct cpu_gemm_shape shape =
            product_shape(op, i, min_i64(LORA_ROWS, op->in[EXPERT_LORA_Y].rows));
        size_t bytes = cpu_gemm_scratch_most(cpu_of(kernels), &shape);

        most = bytes > most ? bytes : most;
    }
    return product_bytes(op) + most;
}

CPU_INLINE void lora_row(const struct lora *l, int64_t row, const struct tile_bounds *r,
                         enum dtype act)
{
    const void *y = cpu_row(&l->op->in[LORA_Y], l->begin + row);
    void *out = cpu_row(&l->op->out[LORA_OUT], l->begin + row);
    const float *product = l->product ? l->product + row * l->width : NULL;

    if (product)
        INDEPENDENT_TURNS
    for (int64_t i = r->col; i < r->col_end; i++)
        act_put(out, l->col + i, act_get(y, l->col + i, act) + product[i], act);
    else INDEPENDENT_TURNS for (int64_t i = r->col; i < r->col_end; i++)
        act_put(out, l->col + i, act_get(y, l->col + i, act), act);
}

CPU_INLINE void lora_tile_body(void *context, int64_t tile)
{
    const struct lora *l = context;
    struct tile_bounds r = tiling_at(&l->tiling, tile);

    WITH_ACT(l->op->in[LORA_Y].dtype,
             for (int64_t row = r.row; row < r.row_end; row++) lora_row(l, row, &r, act));
}

CPU_TILES(lora_tile);

static void run_part(struct kernels *kernels, const struct kernel_call *call, struct lora *l,
                     int part)
{
    const struct op_shape *op = &call->op;
    const struct tensor *h = pair_of(op, part).h, *b = pair_of(op, part).b;

    l->width = op->attributes.parts[part];
    l->product = NULL;
    if (tensor_given(h)) {
        struct cpu_gemm_shape shape = product_shape(op, part, l->rows);
        struct cpu_gemm_operands operands = { .a = cpu_row(h, l->begin),
                                              .b = cpu_row(b, l->expert * l->width),
                                              .c = call->scratch,
                                              .first = 1 };

        cpu_gemm_run(cpu_of(kernels), &shape, &operands, (char *)call->scratch + product_bytes(op));
        l->product = call->scratch;
    }
    l->tiling = tiling_of(l->rows, l->width);
    pool_run(kernels->pool, l->tiling.n_tiles, lora_tile[cpu_of(kernels)->isa], l);
    l->col += l->width;
}

/* Rows [begin, end), which are of one expert. */
static void run_rows(struct kernels *kernels, const struct kernel_call *call, struct lora *l,
                     int64_t begin, int64_t end)
{
    for (l->begin = begin; l->begin < end; l->begin += LORA_ROWS) {
        l->rows = min_i64(LORA_ROWS, end - l->begin);
        l->col = 0;
        for (int part = 0; part < OPS_LORA_PARTS; part++)
            if (call->op.attributes.parts[part])
                run_part(kernels, call, l, part);
    }
}

static void lora_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    struct lora l = { .op = &call->op };

    (void)first;
    run_rows(kernels, call, &l, 0, call->op.in[LORA_Y].rows);
}

static void expert_lora_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct tensor *ends = &call->op.in[EXPERT_LORA_ENDS];
    struct lora l = { .op = &call->op };
    int64_t begin = 0;

    (void)first;
    for (; l.expert < ends->cols; l.expert++) {
        int64_t end = ((const int32_t *)ends->data)[l.expert];

        CHECK(begin <= end && end <= call->op.in[EXPERT_LORA_Y].rows);
        run_rows(kernels, call, &l, begin, end);
        begin = end;
    }
}

void cpu_register_lora(struct kernels_backend *table)
{
    table->entries[OP_LORA] =
        (struct kernel_entry){ .run = lora_run, .scratch_bytes = lora_scratch_bytes };
    table->entries[OP_EXPERT_LORA] =
        (struct kernel_entry){ .run = expert_lora_run, .scratch_bytes = expert_lora_scratch_bytes };
}
