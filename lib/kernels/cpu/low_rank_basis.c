/*
 * low_rank_basis.c - orthonormal columns in place of those of factors
 *
 * A tile is a matrix: modified Gram-Schmidt in fp64, each column normalised and taken out of those
 * behind it. Of a column that hangs on those before no more than OPS_DEPENDENT of what it was is
 * left. Random numbers in its place are freed of those before, twice, as little may be left of
 * them, too. Infinities and NaNs go on, through the sum, to the gradient's norm.
 */
#include "base/rng.h"
#include "kernels/cpu/rows_impl.h"

#include <math.h>

struct basing {
    const struct op_shape *op;
    double *columns; /* of each part's matrix, one below the other, where its elements are in x */
};

CPU_INLINE double dot(const double *a, const double *b, int64_t n)
{
    double lanes[SUM_LANES] = { 0 };
    int64_t i = 0;

    for (; i + SUM_LANES <= n; i += SUM_LANES)
        for (int l = 0; l < SUM_LANES; l++)
            lanes[l] += a[i + l] * b[i + l];
    for (; i < n; i++)
        lanes[i % SUM_LANES] += a[i] * b[i];
    for (int half = SUM_LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            lanes[l] += lanes[l + half];
    return lanes[0];
}

/* Take what b has of the unit vector a out of it. */
CPU_INLINE void take_out(const double *a, double *b, int64_t n)
{
    double of_a = dot(a, b, n);

    for (int64_t i = 0; i < n; i++)
        b[i] -= of_a * a[i];
}

/* Column k of those of n rows becomes a random one, orthogonal to those before. */
CPU_INLINE void fill(double *columns, int k, int64_t n)
{
    double *own = columns + k * n;

    for (int64_t i = 0; i < n; i++)
        own[i] = (double)rng_uniform(rng_at(0, RNG_BASIS, (uint64_t)k, (uint64_t)i).word[0]) - 0.5;
    for (int again = 0; again < 2; again++)
        for (int before = 0; before < k; before++)
            take_out(columns + before * n, own, n);
}

CPU_INLINE void make_basis(double *columns, int64_t n, int rank, int fills)
{
    double norms[OPS_RANK_MAX];

    for (int k = 0; k < rank; k++)
        norms[k] = sqrt(dot(columns + k * n, columns + k * n, n));
    for (int k = 0; k < rank; k++) {
        double *own = columns + k * n, norm = sqrt(dot(own, own, n));

        bool is_dependent = norm <= OPS_DEPENDENT * norms[k] && isfinite(norms[k]);
        if (is_dependent && fills) {
            fill(columns, k, n);
            norm = sqrt(dot(own, own, n));
        }
        for (int64_t i = 0; i < n; i++)
            own[i] = is_dependent && !fills ? 0 : own[i] / norm;
        for (int behind = k + 1; behind < rank; behind++)
            take_out(own, columns + behind * n, n);
    }
}

CPU_INLINE void basis_tile_body(void *context, int64_t tile)
{
    const struct basing *b = context;
    const int32_t *part = (const int32_t *)b->op->in[LOW_RANK_BASIS_PARTS].data + 2 * tile;
    const float *x = (const float *)b->op->in[LOW_RANK_BASIS_X].data + part[0];
    float *y = (float *)b->op->out[LOW_RANK_BASIS_Y].data + part[0];
    double *columns = b->columns + part[0];
    int64_t n = part[1];
    int rank = b->op->attributes.rank;

    for (int64_t i = 0; i < n; i++)
        for (int k = 0; k < rank; k++)
            columns[k * n + i] = (double)x[i * rank + k];
    make_basis(columns, n, rank, b->op->attributes.fills);
    for (int64_t i = 0; i < n; i++)
        for (int k = 0; k < rank; k++)
            y[i * rank + k] = (float)columns[k * n + i];
}

CPU_TILES(basis_tile);

static size_t basis_scratch_bytes(struct kernels *kernels, const struct op_shape *op)
{
    (void)kernels;
    return (size_t)op->in[LOW_RANK_BASIS_X].cols * sizeof(double);
}

static void copy_gaps(const struct op_shape *op)
{
    const int32_t *parts = op->in[LOW_RANK_BASIS_PARTS].data;
    const float *x = op->in[LOW_RANK_BASIS_X].data;
    int64_t n_parts = op->in[LOW_RANK_BASIS_PARTS].cols / 2, at = 0;
    float *y = op->out[LOW_RANK_BASIS_Y].data;

    for (int64_t i = 0; i <= n_parts; i++) {
        int64_t begin = i < n_parts ? parts[2 * i] : op->in[LOW_RANK_BASIS_X].cols;

        memcpy(y + at, x + at, (size_t)(begin - at) * sizeof *y);
        if (i < n_parts)
            at = begin + (int64_t)parts[2 * i + 1] * op->attributes.rank;
    }
}

static void basis_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    struct basing b = { &call->op, call->scratch };

    (void)first;
    copy_gaps(&call->op);
    pool_run(kernels->pool, call->op.in[LOW_RANK_BASIS_PARTS].cols / 2,
             basis_tile[cpu_of(kernels)->isa], &b);
}

void cpu_register_low_rank_basis(struct kernels_backend *table)
{
    table->entries[OP_LOW_RANK_BASIS] =
        (struct kernel_entry){ .run = basis_run, .scratch_bytes = basis_scratch_bytes };
}
