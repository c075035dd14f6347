/*
 * head.cu - head_cross_entropy and head_loss: the last linear and the loss, a chunk of tokens at a
 * time
 *
 * For each chunk: logits = x w' in scratch (fp32); a kernel, a block a row, reads a row for its
 * largest and sum, and again to write its gradient in act over it; then dx = dlogits w and dw +=
 * dlogits' x. Products are nearly all of it; the rows' kernel is bound by memory (10 to 12 bytes an
 * element), or by L2 where the chunk's logits fit there.
 *
 * Numerics: chunks are added to dw one after the other, in order, so `chunk` is part of the
 * numerics, as is the call's number of rows. The loss of each row is kept in fp64, and all of them
 * are added by one tree, whatever the chunk.
 *
 * 16-bit gradients are written over the fp32 logits that they come from: row stride stays that of
 * the logits, so it counts twice as many elements.
 */
#include <stdlib.h>

#include "cuda/gemm.cuh"
#include "cuda/softmax.cuh"

enum { PRODUCT_LOGITS, PRODUCT_DX, PRODUCT_DW, N_PRODUCTS };

struct head_shape {
    const struct tensor *x, *w, *target, *dx, *dw, *loss, *squares;
    const char *name;
    int backward, n_products;
    int64_t chunk;                     /* rows of a whole one */
    int64_t ld;                        /* fp32 elements from one row of logits to the next */
    size_t logits_bytes, losses_bytes; /* losses_bytes: as many again for squares */
};

/* Prepared products of whole chunks, and of the last where that is shorter. */
struct head_state {
    const struct cuda_gemm *products[2][N_PRODUCTS];
};

static struct head_shape head_shape(const struct op_shape *op)
{
    struct head_shape h = {};

    h.backward = op->kind == OP_HEAD_CROSS_ENTROPY;
    h.name = op_info(op->kind)->name;
    h.x = &op->in[HEAD_LOSS_X];
    h.w = &op->in[HEAD_LOSS_W];
    h.target = &op->in[HEAD_LOSS_TARGET];
    h.dx = h.backward ? &op->out[HEAD_CROSS_ENTROPY_DX] : NULL;
    h.dw = h.backward && tensor_given(&op->out[HEAD_CROSS_ENTROPY_DW])
               ? &op->out[HEAD_CROSS_ENTROPY_DW]
               : NULL;
    h.loss = h.backward ? &op->out[HEAD_CROSS_ENTROPY_LOSS] : &op->out[HEAD_LOSS_LOSS];
    h.squares = h.backward && tensor_given(&op->out[HEAD_CROSS_ENTROPY_SQUARES])
                    ? &op->out[HEAD_CROSS_ENTROPY_SQUARES]
                    : NULL;
    h.n_products = h.dw ? PRODUCT_DW + 1 : h.dx ? PRODUCT_DX + 1 : PRODUCT_LOGITS + 1;
    h.chunk = op->attributes.chunk > 0 ? min_i64(op->attributes.chunk, h.x->rows) : h.x->rows;
    h.ld = round_up(h.w->rows, GPU_LOGITS_MULTIPLE);
    h.logits_bytes = (size_t)(h.chunk * h.ld) * sizeof(float);
    h.losses_bytes = align_up((size_t)h.x->rows * sizeof(double), 64);
    return h;
}

/* rows: of the chunk. */
static struct cuda_gemm_shape product_shape(const struct head_shape *h, int product, int64_t rows)
{
    int64_t d = h->x->cols, vocab = h->w->rows;
    int64_t ld_gradient = h->ld * (int64_t)(sizeof(float) / dtype_bytes(h->x->dtype));
    struct cuda_gemm_shape s = {};

    s.in = h->x->dtype;
    s.m = product == PRODUCT_DW ? vocab : rows;
    s.n = product == PRODUCT_LOGITS ? vocab : d;
    s.k = product == PRODUCT_LOGITS ? d : product == PRODUCT_DX ? vocab : rows;
    s.lda = product == PRODUCT_LOGITS ? h->x->stride : ld_gradient;
    s.ldb = product == PRODUCT_DW ? h->x->stride : h->w->stride;
    s.a_transposed = product == PRODUCT_DW;
    s.b_transposed = product == PRODUCT_LOGITS;
    switch (product) {
    case PRODUCT_LOGITS:
        s.out = DTYPE_F32;
        s.ldc = h->ld;
        break;
    case PRODUCT_DX:
        s.out = h->dx->dtype;
        s.ldc = h->dx->stride;
        break;
    default:
        s.out = h->dw->dtype;
        s.ldc = h->dw->stride;
    }
    return s;
}

/* ---- preparing ---- */

/* An address that is no more aligned than the rows at which any chunk begins. */
static void *chunk_address(const struct head_shape *h, const struct tensor *t)
{
    size_t step = (size_t)(h->chunk * t->stride) * dtype_bytes(t->dtype);

    return (void *)((uintptr_t)t->data | (h->chunk < t->rows ? step : 0));
}

static struct cuda_gemm_operands prepared_operands(const struct head_shape *h, int product,
                                                   void *logits)
{
    struct cuda_gemm_operands o = {};

    o.a = product == PRODUCT_LOGITS ? chunk_address(h, h->x) : logits;
    o.b = product == PRODUCT_DW ? chunk_address(h, h->x) : h->w->data;
    o.c = product == PRODUCT_LOGITS ? logits
          : product == PRODUCT_DX   ? chunk_address(h, h->dx)
                                    : h->dw->data;
    return o;
}

static int head_prepare(struct kernels *kernels, struct kernel_call *call, struct err *err)
{
    struct head_shape h = head_shape(&call->op);
    const int64_t rows[] = { h.chunk, h.x->rows % h.chunk };
    struct head_state *state = (struct head_state *)calloc(1, sizeof *state);

    if (!state)
        return err_set(err, ERR_DEVICE, "%s: out of host memory", h.name);
    for (int i = 0; i < 2; i++)
        for (int product = 0; rows[i] && product < h.n_products; product++) {
            struct cuda_gemm_shape shape = product_shape(&h, product, rows[i]);
            struct cuda_gemm_operands operands = prepared_operands(&h, product, call->scratch);

            if (cuda_gemm_prepare(kernels, &shape, &operands, &state->products[i][product], err)) {
                free(state);
                return err_add(err, "%s", h.name);
            }
        }
    call->state = state;
    return 0;
}

static void head_release(struct kernels *, void *state)
{
    free(state);
}

/* ---- rows ---- */

/* A row's loss, and its gradient over its logits. A target that there is not makes the loss NaN. */
template <typename T, int BACKWARD>
__global__ void __launch_bounds__(SOFTMAX_THREADS, SOFTMAX_BLOCKS)
    head_rows_kernel(float *logits, int64_t ld, int64_t vocab, rows_of<const int32_t> targets,
                     const float *scale, double *losses, struct softmax_z z)
{
    enum { N = 16 / sizeof(T) };
    float *row = logits + blockIdx.x * ld;
    int64_t target = *targets.row(blockIdx.x);
    float logit = target < vocab ? row[target < 0 ? 0 : target] : NAN, at_target = 0;
    struct softmax_row all;
    double log_sum, lse, pull;

    if (target < 0) {
        if (!threadIdx.x) {
            losses[blockIdx.x] = 0;
            softmax_put_square(z, blockIdx.x, 0);
        }
        if (BACKWARD)
            softmax_zero<T, N>((T *)row, vocab);
        return;
    }
    all = softmax_read<1>(row, vocab);
    if (!BACKWARD) {
        if (!threadIdx.x)
            losses[blockIdx.x] = softmax_loss(logit, all.max, log(all.sum));
        return;
    }
    log_sum = !threadIdx.x || z.coefficient > 0 ? log(all.sum) : 0;
    lse = (double)all.max + log_sum;
    if (!threadIdx.x) {
        losses[blockIdx.x] = softmax_loss(logit, all.max, log_sum);
        softmax_put_square(z, blockIdx.x, lse);
    }
    pull = softmax_pull(z, lse);
    at_target = softmax_at_target(expf(logit - all.max), all.sum, pull, *scale);
    softmax_gradient<T, N>((T *)row, row, vocab, vocab, all.max,
                           softmax_factor(all.sum, pull, *scale), target, at_target);
}

/* ---- the call ---- */

struct head_run {
    struct kernels *kernels;
    const struct kernel_call *call;
    struct head_shape h;
    float *logits;
    double *losses, *squares; /* of all rows; squares: NULL where there are none */
    void *product_scratch;
};

static char *row_at(const struct tensor *t, int64_t row)
{
    return (char *)t->data + (size_t)(row * t->stride) * dtype_bytes(t->dtype);
}

static void run_product(const struct head_run *run, int64_t rows, int product, const void *a,
                        const void *b, void *c, int add)
{
    const struct head_state *state = (const struct head_state *)run->call->state;
    struct cuda_gemm_operands operands = {};

    operands.a = a;
    operands.b = b;
    operands.c = c;
    operands.add = add;
    operands.beside = run->call->beside;
    cuda_gemm_run(run->kernels, run->h.name, state->products[rows != run->h.chunk][product],
                  &operands, run->product_scratch);
}

static void run_rows(const struct head_run *run, int64_t start, int64_t rows)
{
    const struct head_shape *h = &run->h;
    rows_of<const int32_t> targets = { (const int32_t *)row_at(h->target, start),
                                       h->target->stride };
    const float *scale =
        h->backward ? (const float *)run->call->op.in[HEAD_CROSS_ENTROPY_SCALE].data : NULL;

    struct softmax_z z = { run->call->op.attributes.z, run->squares ? run->squares + start : NULL };

    cuda_with_act(h->x->dtype, [&](auto zero) {
        typedef decltype(zero) T;

        cuda_launch(run->kernels, run->call, cuda_shape_of(rows, SOFTMAX_THREADS),
                    h->backward ? head_rows_kernel<T, 1> : head_rows_kernel<T, 0>, run->logits,
                    h->ld, h->w->rows, targets, scale, run->losses + start, z);
    });
}

static void run_chunk(const struct head_run *run, int64_t start, int64_t rows, int add_dw)
{
    const struct head_shape *h = &run->h;
    const char *x = row_at(h->x, start);

    run_product(run, rows, PRODUCT_LOGITS, x, h->w->data, run->logits, 0);
    run_rows(run, start, rows);
    if (h->dx)
        run_product(run, rows, PRODUCT_DX, run->logits, h->w->data, row_at(h->dx, start), 0);
    if (h->dw)
        run_product(run, rows, PRODUCT_DW, run->logits, x, h->dw->data, add_dw);
}

static void head_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    struct head_shape h = head_shape(&call->op);
    char *scratch = (char *)call->scratch, *losses = scratch + h.logits_bytes;
    char *squares = losses + h.losses_bytes;
    struct head_run run = { kernels,
                            call,
                            h,
                            (float *)scratch,
                            (double *)losses,
                            h.squares ? (double *)squares : NULL,
                            h.squares ? squares + h.losses_bytes : squares };
    int first_dw = first >> 1 & 1, first_loss = first >> (h.backward ? 2 : 0) & 1;

    for (int64_t start = 0; start < h.x->rows; start += h.chunk)
        run_chunk(&run, start, min_i64(h.chunk, h.x->rows - start), start > 0 || !first_dw);
    cuda_sum_losses(kernels, call, run.losses, h.x->rows, h.loss, first_loss);
    if (h.squares)
        cuda_sum_losses(kernels, call, run.squares, h.x->rows, h.squares, first >> 3 & 1);
}

void cuda_register_head(struct kernels_backend *table)
{
    struct kernel_entry entry = {};

    entry.run = head_run;
    entry.prepare = head_prepare;
    entry.release = head_release;
    table->entries[OP_HEAD_CROSS_ENTROPY] = entry;
    table->entries[OP_HEAD_LOSS] = entry;
}
