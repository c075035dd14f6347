/*
 * head.c - head_cross_entropy and head_loss: the last linear and the loss, a chunk of tokens at a
 * time
 *
 * For each chunk: logits = x w' in scratch (fp32); each row becomes, in place, its gradient in act;
 * then dx = dlogits w and dw += dlogits' x. The loss of each row is kept in fp64 and added in row
 * order.
 *
 * Numerics: chunks are added to dw one after the other, in order (and each rounded, where dw is
 * bf16), so `chunk` is part of the numerics, as is the call's number of rows; threads are not. A
 * row's are softmax_impl.h's.
 *
 * 16-bit gradients are written over the fp32 logits that they come from: row stride stays that of
 * the logits, so it counts twice as many elements. Rows are padded by a cache line, so that a
 * vocabulary that is a power of two does not put a column into one cache set.
 */
#include <math.h>
#include <string.h>

#include "base/num.h"
#include "kernels/cpu/gemm_impl.h"
#include "kernels/cpu/rows_impl.h"
#include "kernels/cpu/softmax_impl.h"

enum { PRODUCT_LOGITS, PRODUCT_DX, PRODUCT_DW, N_PRODUCTS };

struct head_shape {
    const struct tensor *x, *w, *target, *dx, *dw, *loss, *squares;
    int backward;
    int64_t chunk;                  /* rows of a whole one */
    int64_t ld;                     /* fp32 elements from one row of logits to the next */
    size_t logits_bytes, nll_bytes; /* nll_bytes: as many again for squares */
};

static struct head_shape head_shape(const struct op_shape *op)
{
    int backward = op->kind == OP_HEAD_CROSS_ENTROPY;
    struct head_shape h = {
        .x = &op->in[HEAD_LOSS_X],
        .w = &op->in[HEAD_LOSS_W],
        .target = &op->in[HEAD_LOSS_TARGET],
        .dx = backward ? &op->out[HEAD_CROSS_ENTROPY_DX] : NULL,
        .dw = backward && tensor_given(&op->out[HEAD_CROSS_ENTROPY_DW])
                  ? &op->out[HEAD_CROSS_ENTROPY_DW]
                  : NULL,
        .loss = &op->out[backward ? HEAD_CROSS_ENTROPY_LOSS : HEAD_LOSS_LOSS],
        .squares = backward && tensor_given(&op->out[HEAD_CROSS_ENTROPY_SQUARES])
                       ? &op->out[HEAD_CROSS_ENTROPY_SQUARES]
                       : NULL,
        .backward = backward,
    };

    h.chunk = op->attributes.chunk > 0 ? min_i64(op->attributes.chunk, h.x->rows) : h.x->rows;
    h.ld = round_up(h.w->rows, LOGIT_LANES) + LOGIT_LANES;
    h.logits_bytes = (size_t)(h.chunk * h.ld) * sizeof(float);
    h.nll_bytes = align_up((size_t)h.x->rows * sizeof(double), 64);
    return h;
}

/* rows: of the chunk, all but the last of which are whole. */
static struct cpu_gemm_shape product_shape(const struct head_shape *h, int product, int64_t rows)
{
    enum dtype act = h->x->dtype;
    int64_t d = h->x->cols, vocab = h->w->rows;
    int64_t ldl = act == DTYPE_F32 ? h->ld : 2 * h->ld;

    switch (product) {
    case PRODUCT_LOGITS:
        return (struct cpu_gemm_shape){ .m = rows,
                                        .n = vocab,
                                        .k = d,
                                        .in = act,
                                        .out = DTYPE_F32,
                                        .b_transposed = 1,
                                        .lda = h->x->stride,
                                        .ldb = h->w->stride,
                                        .ldc = h->ld };
    case PRODUCT_DX:
        return (struct cpu_gemm_shape){ .m = rows,
                                        .n = d,
                                        .k = vocab,
                                        .in = act,
                                        .out = act,
                                        .lda = ldl,
                                        .ldb = h->w->stride,
                                        .ldc = h->dx->stride };
    default:
        return (struct cpu_gemm_shape){ .m = vocab,
                                        .n = d,
                                        .k = rows,
                                        .in = act,
                                        .out = h->dw->dtype,
                                        .a_transposed = 1,
                                        .accumulate = 1,
                                        .lda = ldl,
                                        .ldb = h->x->stride,
                                        .ldc = h->dw->stride };
    }
}

static size_t head_scratch_bytes(struct kernels *kernels, const struct op_shape *op)
{
    struct head_shape h = head_shape(op);
    const int64_t rows[] = { h.chunk, h.x->rows % h.chunk };
    int n_products = h.dw ? N_PRODUCTS : h.backward ? PRODUCT_DW : PRODUCT_DX;
    size_t most = 0;

    for (int i = 0; i < 2; i++)
        for (int product = 0; rows[i] && product < n_products; product++) {
            struct cpu_gemm_shape shape = product_shape(&h, product, rows[i]);
            size_t bytes = cpu_gemm_scratch_bytes(cpu_of(kernels), &shape);

            most = bytes > most ? bytes : most;
        }
    return h.logits_bytes + (h.squares ? 2 : 1) * h.nll_bytes + most;
}

/* ---- a row of logits ---- */

/* *max: the largest logit; *sum: that of the exponentials left in row. */
CPU_INLINE void exp_row_body(float *row, int64_t n, float *max, double *sum)
{
    *max = logit_max(row, n);
    *sum = logit_exp_sum(row, row, n, *max);
}

CPU_VARIANTS(exp_row, (float *row, int64_t n, float *max, double *sum), (row, n, max, sum));

/* As 16 bits over the same memory: an element is read before anything is written on it. */
CPU_INLINE void scale_row_narrow(float *row, int64_t n, float factor, enum dtype act)
{
    uint16_t *to = (uint16_t *)(void *)row;
    uint16_t block[LOGIT_LANES];
    int64_t i = 0;

    for (; i + LOGIT_LANES <= n; i += LOGIT_LANES) {
        for (int j = 0; j < LOGIT_LANES; j++)
            act_put(block, j, row[i + j] * factor, act);
        memcpy(to + i, block, sizeof block);
    }
    for (; i < n; i++) {
        act_put(block, 0, row[i] * factor, act);
        memcpy(to + i, block, sizeof block[0]);
    }
}

/* dtype: what the row becomes. */
CPU_INLINE void scale_row_body(float *row, int64_t n, float factor, enum dtype dtype)
{
    if (dtype == DTYPE_F32)
        for (int64_t i = 0; i < n; i++)
            row[i] *= factor;
    else if (dtype == DTYPE_BF16)
        scale_row_narrow(row, n, factor, DTYPE_BF16);
    else
        scale_row_narrow(row, n, factor, DTYPE_F16);
}

CPU_VARIANTS(scale_row, (float *row, int64_t n, float factor, enum dtype dtype),
             (row, n, factor, dtype));

struct rows_run {
    struct cpu_kernels *cpu;
    const struct head_shape *h;
    float *logits;
    void *gemm_scratch;
    double *nll, *squares; /* of all rows; squares: NULL where there are none */
    int64_t start, rows;   /* the chunk */
    float scale;
    double z;
};

/* Row i of the chunk: its loss, and its gradient in place of the logits. */
static void do_row(const struct rows_run *run, int64_t i)
{
    const struct head_shape *h = run->h;
    int32_t target = *(const int32_t *)cpu_row(h->target, run->start + i);
    int64_t vocab = h->w->rows;
    enum dtype act = h->x->dtype;
    float *row = run->logits + i * h->ld;
    float max, logit, at_target;
    double sum, log_sum, lse, pull;

    CHECK(target < vocab);
    run->nll[run->start + i] = 0;
    if (run->squares)
        run->squares[run->start + i] = 0;
    if (target < 0) {
        memset(row, 0, (size_t)vocab * sizeof(float));
        return;
    }
    logit = row[target];
    exp_row[run->cpu->isa](row, vocab, &max, &sum);
    log_sum = log(sum);
    lse = (double)max + log_sum;
    run->nll[run->start + i] = logit_nll(logit, max, log_sum);
    if (!h->backward)
        return;
    if (run->squares)
        run->squares[run->start + i] = lse * lse;
    pull = logit_pull(run->z, lse);
    at_target = logit_gradient_at_target(row[target], sum, pull, run->scale);
    scale_row[run->cpu->isa](row, vocab, logit_factor(sum, pull, run->scale), act);
    act_put(row, target, at_target, act);
}

static void rows_tile(void *context, int64_t tile, int thread)
{
    const struct rows_run *run = context;
    int64_t end = min_i64(run->rows, (tile + 1) * LOGIT_ROWS_A_TILE);

    (void)thread;
    for (int64_t i = tile * LOGIT_ROWS_A_TILE; i < end; i++)
        do_row(run, i);
}

/* ---- the call ---- */

static void run_product(const struct rows_run *run, int product, const void *a, const void *b,
                        void *c, int first)
{
    const struct head_shape *h = run->h;
    struct cpu_gemm_shape shape = product_shape(h, product, run->rows);
    struct cpu_gemm_operands operands = { .a = a, .b = b, .c = c, .first = first };

    cpu_gemm_run(run->cpu, &shape, &operands, run->gemm_scratch);
}

static void run_chunk(const struct rows_run *run, int first)
{
    const struct head_shape *h = run->h;
    const void *x = cpu_row(h->x, run->start);

    run_product(run, PRODUCT_LOGITS, x, h->w->data, run->logits, 1);
    pool_run(run->cpu->base.pool, ceil_div(run->rows, LOGIT_ROWS_A_TILE), rows_tile, (void *)run);
    if (!h->backward)
        return;
    run_product(run, PRODUCT_DX, run->logits, h->w->data, cpu_row(h->dx, run->start), 1);
    if (h->dw)
        run_product(run, PRODUCT_DW, run->logits, x, h->dw->data, first);
}

static void head_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    struct head_shape h = head_shape(&call->op);
    int first_dw = first >> 1 & 1, first_loss = first >> (h.backward ? 2 : 0) & 1;
    char *scratch = call->scratch, *nll = scratch + h.logits_bytes, *squares = nll + h.nll_bytes;
    struct rows_run run = { .cpu = cpu_of(kernels),
                            .h = &h,
                            .logits = (float *)call->scratch,
                            .gemm_scratch = h.squares ? squares + h.nll_bytes : squares,
                            .nll = (double *)(void *)nll,
                            .squares = h.squares ? (double *)(void *)squares : NULL,
                            .z = call->op.attributes.z };

    run.scale = h.backward ? *(const float *)call->op.in[HEAD_CROSS_ENTROPY_SCALE].data : 1.0f;
    for (run.start = 0; run.start < h.x->rows; run.start += h.chunk) {
        run.rows = min_i64(h.chunk, h.x->rows - run.start);
        run_chunk(&run, first_dw && run.start == 0);
    }
    logit_add_rows(h.loss, run.nll, h.x->rows, first_loss);
    if (h.squares)
        logit_add_rows(h.squares, run.squares, h.x->rows, first >> 3 & 1);
}

void cpu_register_head(struct kernels_backend *table)
{
    struct kernel_entry entry = { .run = head_run, .scratch_bytes = head_scratch_bytes };

    table->entries[OP_HEAD_CROSS_ENTROPY] = entry;
    table->entries[OP_HEAD_LOSS] = entry;
}
