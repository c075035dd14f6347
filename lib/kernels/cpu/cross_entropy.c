/*
 * cross_entropy.c - logit_stats and cross_entropy: the loss of logits whose vocabulary lies in
 * parts on several ranks
 *
 * Milakov & Gimelshein 2018 for joining maxima and sums; Shoeybi et al. 2019, section 3, for the
 * vocabulary in parts. Each rank reads its part twice: for its statistics, whose few numbers ranks
 * exchange in between, and for the gradient. Bound by exp in fp32, as the head is.
 *
 * Numerics: a row is softmax_impl.h's, its parts are joined in fp64 in order of rank. One part
 * gives what head_cross_entropy makes of the same logits but for the sum, which is rounded to fp32
 * on its way through stats. Losses of rows are kept in fp64 and added in row order.
 */
#include <math.h>

#include "base/num.h"
#include "kernels/cpu/rows_impl.h"
#include "kernels/cpu/softmax_impl.h"

enum { STAT_MAX, STAT_SUM, STAT_TARGET };

/* Which tokens the columns are. */
struct vocab_part {
    int64_t begin, n; /* n: columns of tokens that exist; padding follows */
    int64_t vocab;
};

static struct vocab_part part_of(const struct op_shape *op, const struct tensor *begin)
{
    struct vocab_part part = { .vocab = op->attributes.vocab_size };

    if (tensor_given(begin))
        part.begin = *(const int32_t *)begin->data;
    CHECK(part.begin >= 0);
    part.n = min_i64(op->in[LOGIT_STATS_LOGITS].cols, max_i64(0, part.vocab - part.begin));
    return part;
}

#define NO_COLUMN (-1)

/* The target's column, or NO_COLUMN where that is another rank's; target >= 0. */
static int64_t target_column(const struct vocab_part *part, int32_t target)
{
    int64_t column = target - part->begin;

    CHECK(target < part->vocab);
    return column >= 0 && column < part->n ? column : NO_COLUMN;
}

/* ---- statistics ---- */

struct stats_run {
    const struct op_shape *op;
    struct vocab_part part;
};

CPU_INLINE void stats_row(const struct stats_run *run, int64_t row)
{
    const float *logits = float_row(&run->op->in[LOGIT_STATS_LOGITS], row);
    int32_t target = *(const int32_t *)cpu_row(&run->op->in[LOGIT_STATS_TARGET], row);
    float *stats = float_row_mut(&run->op->out[LOGIT_STATS_STATS], row);
    int64_t n = run->part.n, column = target < 0 ? NO_COLUMN : target_column(&run->part, target);
    float max = n > 0 ? logit_max(logits, n) : -INFINITY;

    stats[STAT_MAX] = max;
    /* Where all are -infinity the sum is of zeros, not of what infinities leave. */
    stats[STAT_SUM] = (float)logit_exp_sum(logits, NULL, n, max == -INFINITY ? 0.0f : max);
    stats[STAT_TARGET] = column == NO_COLUMN ? 0.0f : logits[column];
}

CPU_INLINE void stats_tile_body(void *context, int64_t tile)
{
    const struct stats_run *run = context;
    int64_t end = min_i64(run->op->in[LOGIT_STATS_LOGITS].rows, (tile + 1) * LOGIT_ROWS_A_TILE);

    for (int64_t row = tile * LOGIT_ROWS_A_TILE; row < end; row++)
        stats_row(run, row);
}

CPU_TILES(stats_tile);

static void logit_stats_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    struct stats_run run = { .op = op, .part = part_of(op, &op->in[LOGIT_STATS_OFFSET]) };

    (void)first;
    pool_run(kernels->pool, ceil_div(op->in[LOGIT_STATS_LOGITS].rows, LOGIT_ROWS_A_TILE),
             stats_tile[cpu_of(kernels)->isa], &run);
}

/* ---- loss and gradient ---- */

struct loss_run {
    const struct op_shape *op;
    struct vocab_part part;
    double *nll, *squares; /* of each row; squares: NULL where there are none */
    float scale;
    double z;
};

/* Of a whole row, all parts together. */
struct joined {
    float max, target;
    double sum, lse;
};

static struct joined join(const struct op_shape *op, int64_t row)
{
    const struct tensor *stats = &op->in[CROSS_ENTROPY_STATS];
    int64_t n_rows = op->in[CROSS_ENTROPY_LOGITS].rows;
    const float *part = float_row(stats, row);
    struct joined all = { .max = part[STAT_MAX] };

    for (int64_t at = row + n_rows; at < stats->rows; at += n_rows) {
        part = float_row(stats, at);
        all.max = part[STAT_MAX] > all.max ? part[STAT_MAX] : all.max;
    }
    for (int64_t at = row; at < stats->rows; at += n_rows) {
        part = float_row(stats, at);
        all.sum += (double)part[STAT_SUM] * exp((double)part[STAT_MAX] - (double)all.max);
        all.target += part[STAT_TARGET];
    }
    return all;
}

CPU_INLINE void gradient_row(const struct loss_run *run, int64_t row, const struct joined *all,
                             int32_t target, enum dtype act)
{
    const float *logits = float_row(&run->op->in[CROSS_ENTROPY_LOGITS], row);
    void *dlogits = cpu_row(&run->op->out[CROSS_ENTROPY_DLOGITS], row);
    int64_t column = target_column(&run->part, target), n = run->part.n;
    double pull = logit_pull(run->z, all->lse);
    float factor = logit_factor(all->sum, pull, run->scale), max = all->max, at_target = 0;

    if (column != NO_COLUMN)
        at_target =
            logit_gradient_at_target(vec_exp(logits[column] - max), all->sum, pull, run->scale);
    INDEPENDENT_TURNS
    for (int64_t i = 0; i < n; i++)
        act_put(dlogits, i, vec_exp(logits[i] - max) * factor, act);
    for (int64_t i = n; i < run->op->out[CROSS_ENTROPY_DLOGITS].cols; i++)
        act_put(dlogits, i, 0.0f, act);
    if (column != NO_COLUMN)
        act_put(dlogits, column, at_target, act);
}

CPU_INLINE void loss_row(const struct loss_run *run, int64_t row)
{
    const struct tensor *dlogits = &run->op->out[CROSS_ENTROPY_DLOGITS];
    int32_t target = *(const int32_t *)cpu_row(&run->op->in[CROSS_ENTROPY_TARGET], row);
    struct joined all;
    double log_sum;

    run->nll[row] = 0;
    if (run->squares)
        run->squares[row] = 0;
    if (target < 0) {
        if (tensor_given(dlogits))
            memset(cpu_row(dlogits, row), 0, (size_t)dlogits->cols * dtype_bytes(dlogits->dtype));
        return;
    }
    all = join(run->op, row);
    log_sum = log(all.sum);
    all.lse = (double)all.max + log_sum;
    run->nll[row] = logit_nll(all.target, all.max, log_sum);
    if (run->squares)
        run->squares[row] = all.lse * all.lse;
    if (!tensor_given(dlogits))
        return;
    WITH_ACT(dlogits->dtype, gradient_row(run, row, &all, target, act));
}

CPU_INLINE void loss_tile_body(void *context, int64_t tile)
{
    const struct loss_run *run = context;
    int64_t end = min_i64(run->op->in[CROSS_ENTROPY_LOGITS].rows, (tile + 1) * LOGIT_ROWS_A_TILE);

    for (int64_t row = tile * LOGIT_ROWS_A_TILE; row < end; row++)
        loss_row(run, row);
}

CPU_TILES(loss_tile);

static size_t cross_entropy_scratch_bytes(struct kernels *kernels, const struct op_shape *op)
{
    int n_sums = tensor_given(&op->out[CROSS_ENTROPY_SQUARES]) ? 2 : 1;

    (void)kernels;
    return (size_t)(n_sums * op->in[CROSS_ENTROPY_LOGITS].rows) * sizeof(double);
}

static void cross_entropy_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    const struct tensor *squares = &op->out[CROSS_ENTROPY_SQUARES];
    int64_t n_rows = op->in[CROSS_ENTROPY_LOGITS].rows;
    double *rows = call->scratch;
    struct loss_run run = { .op = op,
                            .part = part_of(op, &op->in[CROSS_ENTROPY_OFFSET]),
                            .nll = rows,
                            .squares = tensor_given(squares) ? rows + n_rows : NULL,
                            .scale = *(const float *)op->in[CROSS_ENTROPY_SCALE].data,
                            .z = op->attributes.z };

    pool_run(kernels->pool, ceil_div(n_rows, LOGIT_ROWS_A_TILE), loss_tile[cpu_of(kernels)->isa],
             &run);
    logit_add_rows(&op->out[CROSS_ENTROPY_LOSS], run.nll, n_rows, first >> 1 & 1);
    if (run.squares)
        logit_add_rows(squares, run.squares, n_rows, first >> 2 & 1);
}

void cpu_register_cross_entropy(struct kernels_backend *table)
{
    table->entries[OP_LOGIT_STATS] = (struct kernel_entry){ .run = logit_stats_run };
    table->entries[OP_CROSS_ENTROPY] =
        (struct kernel_entry){ .run = cross_entropy_run,
                               .scratch_bytes = cross_entropy_scratch_bytes };
}
