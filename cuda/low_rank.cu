/*
 * low_rank.cu - factors of low rank of a flat cell's matrices
 *
 * As on the CPU (lib/kernels/cpu/low_rank.c): an element of a product is one sum in the order of its
 * terms, so it has the CPU's bits; the sums of squares, and the columns of a basis, are added in
 * another order. A thread block takes TILE rows, or columns, of a matrix, which it reads tile by
 * tile into shared memory beside as many rows of the factor; a thread has every GROUPS-th column of
 * what comes out of one row. How many tiles there are is in a table of the device's, so there are as
 * many blocks as there may be. A block of basis has a matrix. Bound by reading the matrices, and, of
 * many columns, by shared memory.
 */
#include "cuda/rng.cuh"
#include "cuda/rows.cuh"

extern "C" {
#include "base/rng.h"
}

enum {
    TILE = OPS_FACTOR_ROWS,
    GROUPS = 8,
    THREADS = TILE * GROUPS,
    A_THREAD = OPS_RANK_MAX / GROUPS, /* columns of a factor */
};

struct factoring {
    float *x;
    const struct ops_factored *parts;
    int64_t n_parts, n; /* of x */
    int rank;
    const float *left, *right;
    float *out;
    double *sums; /* of each tile: of squares of x, of what is left */
    float scale;
};

static struct factoring factoring_of(const struct op_shape *op)
{
    struct factoring f = {};

    f.x = (float *)op->in[LOW_RANK_LEFT_X].data;
    f.n = op->in[LOW_RANK_LEFT_X].cols;
    f.parts = (const struct ops_factored *)op->in[LOW_RANK_LEFT_PARTS].data;
    f.n_parts = op->in[LOW_RANK_LEFT_PARTS].cols / OPS_FACTORED_WORDS;
    f.rank = op->attributes.rank;
    f.out = (float *)op->out[OPS_FIRST].data;
    f.scale = (float)op->attributes.scale;
    return f;
}

static __device__ __forceinline__ int64_t pieces(int64_t n, int64_t each)
{
    return (n + each - 1) / each;
}

static __device__ __forceinline__ int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The part of the block's tile of so many rows, or columns; NULL: there are fewer tiles. */
static __device__ const struct ops_factored *find_tile(const struct factoring &f, bool of_cols,
                                                       int64_t *tile)
{
    *tile = blockIdx.x;
    for (int64_t i = 0; i < f.n_parts; i++) {
        const struct ops_factored *part = &f.parts[i];
        int64_t n = part->right < 0 ? (of_cols ? 0 : pieces(part->cols, OPS_FACTOR_ELEMENTS))
                                    : pieces(of_cols ? part->cols : part->rows, TILE);

        if (*tile < n)
            return part;
        *tile -= n;
    }
    return NULL;
}

/* TILE rows of a factor from `row` on, of n_rows: zeros behind them. */
static __device__ void load_factor(float (*to)[OPS_RANK_MAX], const float *factor, int64_t row,
                                   int64_t n_rows, int rank)
{
    for (int i = threadIdx.x; i < TILE * rank; i += THREADS)
        to[i / rank][i % rank] = row + i / rank < n_rows ? factor[row * rank + i] : 0;
}

/* TILE x TILE elements of a matrix, likewise. */
static __device__ void load_matrix(float (*to)[TILE + 1], const float *x, int64_t row, int64_t col,
                                   const struct ops_factored *part)
{
    for (int i = threadIdx.x; i < TILE * TILE; i += THREADS) {
        int64_t r = row + i / TILE, c = col + i % TILE;

        to[i / TILE][i % TILE] = r < part->rows && c < part->cols ? x[r * part->cols + c] : 0;
    }
}

static __device__ void copy_vector(const struct factoring &f, const struct ops_factored *part,
                                   int64_t tile)
{
    int64_t at = tile * OPS_FACTOR_ELEMENTS, end = smaller(at + OPS_FACTOR_ELEMENTS, part->cols);

    for (int64_t i = at + threadIdx.x; i < end; i += THREADS)
        f.out[part->left + i] = f.x[part->first + i];
}

/* OF_COLS: right = x' left, else left = x right. */
template <bool OF_COLS>
static __global__ void __launch_bounds__(THREADS) product_kernel(struct factoring f)
{
    __shared__ float matrix[TILE][TILE + 1];
    __shared__ float factor[TILE][OPS_RANK_MAX];
    int64_t tile;
    const struct ops_factored *part = find_tile(f, OF_COLS, &tile);

    if (!part)
        return;
    if (part->right < 0) {
        copy_vector(f, part, tile);
        return;
    }
    int64_t own = tile * TILE, n_own = OF_COLS ? part->cols : part->rows;
    int64_t n_terms = OF_COLS ? part->rows : part->cols;
    const float *from = OF_COLS ? f.left + part->left : f.right + part->right;
    float *to = f.out + (OF_COLS ? part->right : part->left);
    int row = threadIdx.x / GROUPS, group = threadIdx.x % GROUPS;
    float sums[A_THREAD] = {};

    for (int64_t at = 0; at < n_terms; at += TILE) {
        load_matrix(matrix, f.x + part->first, OF_COLS ? at : own, OF_COLS ? own : at, part);
        load_factor(factor, from, at, n_terms, f.rank);
        __syncthreads();
        for (int k = 0; k < TILE && at + k < n_terms; k++) {
            float x = OF_COLS ? matrix[k][row] : matrix[row][k];

#pragma unroll
            for (int c = 0; c < A_THREAD; c++)
                if (c * GROUPS + group < f.rank)
                    sums[c] += x * factor[k][c * GROUPS + group];
        }
        __syncthreads();
    }
#pragma unroll
    for (int c = 0; c < A_THREAD; c++)
        if (c * GROUPS + group < f.rank && own + row < n_own)
            to[(own + row) * f.rank + c * GROUPS + group] = sums[c];
}

static void left_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    struct factoring f = factoring_of(&call->op);
    int64_t n = call->op.out[LOW_RANK_LEFT_LEFT].cols;

    (void)first;
    f.right = (const float *)call->op.in[LOW_RANK_LEFT_RIGHT].data;
    cuda_launch(kernels, call, cuda_shape_of(ops_factor_row_tiles(f.rank, f.n_parts, n), THREADS),
                product_kernel<false>, f);
}

static void right_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    struct factoring f = factoring_of(&call->op);
    int64_t n = call->op.out[LOW_RANK_RIGHT_RIGHT].cols;

    (void)first;
    f.left = (const float *)call->op.in[LOW_RANK_RIGHT_LEFT].data;
    cuda_launch(kernels, call, cuda_shape_of(f.n_parts + n / ((int64_t)f.rank * TILE), THREADS),
                product_kernel<true>, f);
}

/* ---- the sum ---- */

/* Of all threads; shared is what is between calls. */
static __device__ double add_all(double own, double *shared)
{
    shared[threadIdx.x] = own;
    __syncthreads();
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half)
            shared[threadIdx.x] += shared[threadIdx.x + half];
        __syncthreads();
    }
    double all = shared[0];
    __syncthreads();
    return all;
}

static __device__ void sum_matrix(const struct factoring &f, const struct ops_factored *part,
                                  int64_t row, double *of_x, double *of_left)
{
    __shared__ float left[TILE][OPS_RANK_MAX];
    __shared__ float right[TILE][OPS_RANK_MAX + 1];
    int col = threadIdx.x % TILE;

    load_factor(left, f.left + part->left, row, part->rows, f.rank);
    for (int64_t at = 0; at < part->cols; at += TILE) {
        for (int i = threadIdx.x; i < TILE * f.rank; i += THREADS)
            right[i / f.rank][i % f.rank] =
                at + i / f.rank < part->cols ? f.right[part->right + at * f.rank + i] : 0;
        __syncthreads();
        for (int r = threadIdx.x / TILE; r < TILE; r += THREADS / TILE) {
            float y = 0;

            if (row + r >= part->rows || at + col >= part->cols)
                continue;
            for (int k = 0; k < f.rank; k++)
                y += left[r][k] * right[col][k];
            int64_t i = part->first + (row + r) * part->cols + at + col;
            float x = f.x[i], lost = x - f.scale * y;
            f.out[i] = y;
            f.x[i] = lost;
            *of_x += (double)x * (double)x;
            *of_left += (double)lost * (double)lost;
        }
        __syncthreads();
    }
}

static __global__ void __launch_bounds__(THREADS) sum_kernel(struct factoring f)
{
    __shared__ double squares[THREADS];
    double of_x = 0, of_left = 0;
    int64_t tile;
    const struct ops_factored *part = find_tile(f, false, &tile);

    if (part && part->right >= 0) {
        sum_matrix(f, part, tile * TILE, &of_x, &of_left);
    } else if (part) {
        int64_t at = tile * OPS_FACTOR_ELEMENTS;
        int64_t end = smaller(at + OPS_FACTOR_ELEMENTS, part->cols);

        for (int64_t i = at + threadIdx.x; i < end; i += THREADS) {
            float x = f.x[part->first + i];

            of_x += (double)x * (double)x;
            f.out[part->first + i] = f.left[part->left + i];
            f.x[part->first + i] = 0;
        }
    }
    of_x = add_all(of_x, squares);
    of_left = add_all(of_left, squares);
    if (threadIdx.x == 0) {
        f.sums[2 * blockIdx.x] = of_x;
        f.sums[2 * blockIdx.x + 1] = of_left;
    }
}

/* A block has what lies behind a part, the last one what lies before the first. */
static __global__ void __launch_bounds__(THREADS) clear_gaps_kernel(struct factoring f)
{
    int64_t i = blockIdx.x, at = 0, end = f.n;

    if (i < f.n_parts)
        at = f.parts[i].first + (int64_t)f.parts[i].rows * f.parts[i].cols;
    if (i == f.n_parts)
        end = f.parts[0].first;
    else if (i + 1 < f.n_parts)
        end = f.parts[i + 1].first;
    for (at += threadIdx.x; at < end; at += THREADS)
        f.out[at] = 0;
}

/* Two threads: each adds its own of all tiles, in order. */
static __global__ void add_sums_kernel(const double *tiles, int64_t n, double *sums)
{
    double all = 0;

    for (int64_t i = 0; i < n; i++)
        all += tiles[2 * i + threadIdx.x];
    sums[threadIdx.x] = all;
}

static void sum_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    struct factoring f = factoring_of(&call->op);
    int64_t n_tiles = ops_factor_row_tiles(f.rank, f.n_parts, call->op.in[LOW_RANK_SUM_LEFT].cols);

    (void)first;
    f.left = (const float *)call->op.in[LOW_RANK_SUM_LEFT].data;
    f.right = (const float *)call->op.in[LOW_RANK_SUM_RIGHT].data;
    f.sums = (double *)call->scratch;
    cuda_launch(kernels, call, cuda_shape_of(f.n_parts + 1, THREADS), clear_gaps_kernel, f);
    cuda_launch(kernels, call, cuda_shape_of(n_tiles, THREADS), sum_kernel, f);
    cuda_launch(kernels, call, cuda_shape_of(1, 2), add_sums_kernel, (const double *)f.sums,
                n_tiles, (double *)call->op.out[LOW_RANK_SUM_SUMS].data);
}

/* ---- a basis ---- */

struct basing {
    const float *x;
    const int32_t *parts;
    int64_t n_parts, n;
    int rank, fills;
    float *y;
    double *columns; /* of each part's matrix, one below the other, where its elements are in x */
};

static __device__ double dot(const double *a, const double *b, int64_t n, double *shared)
{
    double sum = 0;

    for (int64_t i = threadIdx.x; i < n; i += THREADS)
        sum += a[i] * b[i];
    return add_all(sum, shared);
}

/* Take what b has of the unit vector a out of it. */
static __device__ void take_out(const double *a, double *b, int64_t n, double *shared)
{
    double of_a = dot(a, b, n, shared);

    for (int64_t i = threadIdx.x; i < n; i += THREADS)
        b[i] -= of_a * a[i];
}

/* Column k becomes a random one, orthogonal to those before. */
static __device__ void fill(double *columns, int k, int64_t n, double *shared)
{
    double *own = columns + k * n;

    for (int64_t i = threadIdx.x; i < n; i += THREADS) {
        uint32_t word = cuda_philox((uint64_t)RNG_BASIS << 56, (uint64_t)i, (uint64_t)k).x;

        own[i] = (double)((float)(word >> 8) * (1.0f / 16777216)) - 0.5;
    }
    for (int again = 0; again < 2; again++)
        for (int before = 0; before < k; before++)
            take_out(columns + before * n, own, n, shared);
}

/* A thread has the same rows of all columns, so they meet only where sums are made. */
static __global__ void __launch_bounds__(THREADS) basis_kernel(struct basing b)
{
    __shared__ double shared[THREADS];
    __shared__ double norms[OPS_RANK_MAX];
    int64_t first = b.parts[2 * blockIdx.x], n = b.parts[2 * blockIdx.x + 1];
    double *columns = b.columns + first;

    for (int64_t i = threadIdx.x; i < n; i += THREADS)
        for (int k = 0; k < b.rank; k++)
            columns[k * n + i] = (double)b.x[first + i * b.rank + k];
    for (int k = 0; k < b.rank; k++) {
        double norm = sqrt(dot(columns + k * n, columns + k * n, n, shared));

        if (threadIdx.x == 0)
            norms[k] = norm;
    }
    __syncthreads();
    for (int k = 0; k < b.rank; k++) {
        double *own = columns + k * n, norm = sqrt(dot(own, own, n, shared));

        bool is_dependent = norm <= OPS_DEPENDENT * norms[k] && norms[k] < 1e300;
        if (is_dependent && b.fills) {
            fill(columns, k, n, shared);
            norm = sqrt(dot(own, own, n, shared));
        }
        for (int64_t i = threadIdx.x; i < n; i += THREADS)
            own[i] = is_dependent && !b.fills ? 0 : own[i] / norm;
        for (int behind = k + 1; behind < b.rank; behind++)
            take_out(own, columns + behind * n, n, shared);
    }
    for (int64_t i = threadIdx.x; i < n; i += THREADS)
        for (int k = 0; k < b.rank; k++)
            b.y[first + i * b.rank + k] = (float)columns[k * n + i];
}

/* What lies behind a part, and, by the last block, before the first. */
static __global__ void __launch_bounds__(THREADS) copy_gaps_kernel(struct basing b)
{
    int64_t i = blockIdx.x, at = 0, end = b.n;

    if (i < b.n_parts)
        at = b.parts[2 * i] + (int64_t)b.parts[2 * i + 1] * b.rank;
    if (i == b.n_parts)
        end = b.parts[0];
    else if (i + 1 < b.n_parts)
        end = b.parts[2 * (i + 1)];
    for (at += threadIdx.x; at < end; at += THREADS)
        b.y[at] = b.x[at];
}

static void basis_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    struct basing b = {};

    (void)first;
    b.x = (const float *)op->in[LOW_RANK_BASIS_X].data;
    b.parts = (const int32_t *)op->in[LOW_RANK_BASIS_PARTS].data;
    b.n_parts = op->in[LOW_RANK_BASIS_PARTS].cols / 2;
    b.n = op->in[LOW_RANK_BASIS_X].cols;
    b.rank = op->attributes.rank;
    b.fills = op->attributes.fills;
    b.y = (float *)op->out[LOW_RANK_BASIS_Y].data;
    b.columns = (double *)call->scratch;
    cuda_launch(kernels, call, cuda_shape_of(b.n_parts + 1, THREADS), copy_gaps_kernel, b);
    cuda_launch(kernels, call, cuda_shape_of(b.n_parts, THREADS), basis_kernel, b);
}

void cuda_register_low_rank(struct kernels_backend *table)
{
    table->entries[OP_LOW_RANK_BASIS].run = basis_run;
    table->entries[OP_LOW_RANK_LEFT].run = left_run;
    table->entries[OP_LOW_RANK_RIGHT].run = right_run;
    table->entries[OP_LOW_RANK_SUM].run = sum_run;
}
