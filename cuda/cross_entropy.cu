/*
 * cross_entropy.cu - logit_stats and cross_entropy: the loss of logits whose vocabulary lies in
 * parts on several ranks
 *
 * Shoeybi et al. 2019, section 3. Each rank reads its part twice, a block a row: for its
 * statistics, whose few numbers ranks exchange in between, and for the gradient. Bound by memory.
 *
 * Numerics: a row's parts are joined in fp64 in order of rank, so that all ranks have the loss to
 * the same bits. Losses of rows are kept in fp64, and added by one tree.
 */
#include "cuda/softmax.cuh"

enum { STAT_MAX, STAT_SUM, STAT_TARGET };

/* Which tokens the columns are; begin is read on the device. */
struct vocab_columns {
    const int32_t *begin; /* NULL: 0 */
    int64_t cols, vocab;
};

static struct vocab_columns part_of(const struct op_shape *op, const struct tensor *begin)
{
    struct vocab_columns part = { tensor_given(begin) ? (const int32_t *)begin->data : NULL,
                                  op->in[LOGIT_STATS_LOGITS].cols, op->attributes.vocab_size };

    return part;
}

static __device__ __forceinline__ int64_t part_begin(const struct vocab_columns &part)
{
    return part.begin ? *part.begin : 0;
}

/* Columns of tokens that exist; padding follows. */
static __device__ __forceinline__ int64_t part_columns(const struct vocab_columns &part,
                                                       int64_t begin)
{
    int64_t n = part.vocab - begin;

    return n < 0 ? 0 : n < part.cols ? n : part.cols;
}

/* ---- statistics ---- */

template <int WIDE>
__global__ void __launch_bounds__(SOFTMAX_THREADS, SOFTMAX_BLOCKS)
    stats_kernel(rows_of<const float> logits, rows_of<const int32_t> targets, rows_of<float> stats,
                 struct vocab_columns part)
{
    const float *row = logits.row(blockIdx.x);
    int64_t begin = part_begin(part), n = part_columns(part, begin);
    int64_t target = *targets.row(blockIdx.x), column = target - begin;
    struct softmax_row all = softmax_read<WIDE>(row, n);
    float *to = stats.row(blockIdx.x);

    if (threadIdx.x)
        return;
    to[STAT_MAX] = all.max;
    to[STAT_SUM] = (float)all.sum;
    /* A target that there is not makes the loss NaN. */
    to[STAT_TARGET] = target >= part.vocab                       ? NAN
                      : target >= 0 && column >= 0 && column < n ? row[column]
                                                                 : 0.0f;
}

static void logit_stats_run(struct kernels *kernels, const struct kernel_call *call, int)
{
    const struct op_shape *op = &call->op;
    const struct tensor *logits = &op->in[LOGIT_STATS_LOGITS];

    cuda_launch(
        kernels, call, cuda_shape_of(logits->rows, SOFTMAX_THREADS),
        cuda_is_aligned(logits, 16) ? stats_kernel<1> : stats_kernel<0>,
        cuda_rows<const float>(logits), cuda_rows<const int32_t>(&op->in[LOGIT_STATS_TARGET]),
        cuda_rows<float>(&op->out[LOGIT_STATS_STATS]), part_of(op, &op->in[LOGIT_STATS_OFFSET]));
}

/* ---- loss and gradient ---- */

/* Of a whole row, all parts together. */
struct joined {
    float max, target;
    double sum, lse;
};

static __device__ inline struct joined join(rows_of<const float> stats, int64_t row, int64_t n_rows,
                                            int64_t n_stats)
{
    struct joined all = { stats.row(row)[STAT_MAX], 0, 0, 0 };

    for (int64_t at = row + n_rows; at < n_stats; at += n_rows)
        all.max = fmaxf(all.max, stats.row(at)[STAT_MAX]);
    for (int64_t at = row; at < n_stats; at += n_rows) {
        const float *part = stats.row(at);

        all.sum += (double)part[STAT_SUM] * exp((double)part[STAT_MAX] - (double)all.max);
        all.target += part[STAT_TARGET];
    }
    return all;
}

struct loss_arguments {
    rows_of<const float> logits, stats;
    rows_of<const int32_t> targets;
    const float *scale;
    double *losses;
    int64_t n_rows, n_stats;
    struct vocab_columns part;
    struct softmax_z z;
};

/* dlogits.at is NULL where only the loss is wanted. One thread joins: exp in fp64 is long. */
template <typename T, int N>
__global__ void __launch_bounds__(SOFTMAX_THREADS)
    loss_kernel(struct loss_arguments a, rows_of<T> dlogits)
{
    int64_t row = blockIdx.x, target = *a.targets.row(row), begin, column, n;
    __shared__ struct joined all;
    float at_target = 0;
    double pull;

    if (target < 0) {
        if (!threadIdx.x) {
            a.losses[row] = 0;
            softmax_put_square(a.z, row, 0);
        }
        if (dlogits.at)
            softmax_zero<T, N>(dlogits.row(row), a.part.cols);
        return;
    }
    if (!threadIdx.x) {
        all = join(a.stats, row, a.n_rows, a.n_stats);
        all.lse = log(all.sum);
        a.losses[row] = softmax_loss(all.target, all.max, all.lse);
        all.lse += (double)all.max;
        softmax_put_square(a.z, row, all.lse);
    }
    if (!dlogits.at)
        return;
    __syncthreads();
    begin = part_begin(a.part);
    n = part_columns(a.part, begin);
    column = target - begin;
    pull = softmax_pull(a.z, all.lse);
    if (column >= 0 && column < n)
        at_target =
            softmax_at_target(expf(a.logits.row(row)[column] - all.max), all.sum, pull, *a.scale);
    else
        column = -1;
    softmax_gradient<T, N>(dlogits.row(row), a.logits.row(row), n, a.part.cols, all.max,
                           softmax_factor(all.sum, pull, *a.scale), column, at_target);
}

static void cross_entropy_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    const struct tensor *logits = &op->in[CROSS_ENTROPY_LOGITS],
                        *dlogits = &op->out[CROSS_ENTROPY_DLOGITS];
    const struct tensor *squares = &op->out[CROSS_ENTROPY_SQUARES];
    double *losses = (double *)call->scratch;
    int wide = cuda_is_aligned(logits, 16) && cuda_is_aligned(dlogits, 16);
    struct loss_arguments a = { cuda_rows<const float>(logits),
                                cuda_rows<const float>(&op->in[CROSS_ENTROPY_STATS]),
                                cuda_rows<const int32_t>(&op->in[CROSS_ENTROPY_TARGET]),
                                (const float *)op->in[CROSS_ENTROPY_SCALE].data,
                                losses,
                                logits->rows,
                                op->in[CROSS_ENTROPY_STATS].rows,
                                part_of(op, &op->in[CROSS_ENTROPY_OFFSET]),
                                { op->attributes.z,
                                  tensor_given(squares) ? losses + logits->rows : NULL } };

    cuda_with_act(tensor_given(dlogits) ? dlogits->dtype : DTYPE_F32, [&](auto zero) {
        typedef decltype(zero) T;

        cuda_launch(kernels, call, cuda_shape_of(logits->rows, SOFTMAX_THREADS),
                    wide ? loss_kernel<T, 16 / sizeof(T)> : loss_kernel<T, 1>, a,
                    cuda_rows<T>(dlogits));
    });
    cuda_sum_losses(kernels, call, a.losses, logits->rows, &op->out[CROSS_ENTROPY_LOSS],
                    first >> 1 & 1);
    if (a.z.squares)
        cuda_sum_losses(kernels, call, a.z.squares, logits->rows, squares, first >> 2 & 1);
}

void cuda_register_cross_entropy(struct kernels_backend *table)
{
    table->entries[OP_LOGIT_STATS].run = logit_stats_run;
    table->entries[OP_CROSS_ENTROPY].run = cross_entropy_run;
}
