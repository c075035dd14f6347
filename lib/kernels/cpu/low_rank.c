/*
 * low_rank.c - factors of low rank of a flat cell's matrices: low_rank_left, _right and _sum
 *
 * Products have one matrix of a few columns, so they are bound by reading the other one, which
 * gemm.c would copy first. A tile is OPS_FACTOR_ROWS rows (left, sum) or OPS_FACTOR_COLS columns
 * (right) of a matrix. Each element of a result is one sum in ascending order of its terms, in
 * fp32, products rounded before they are added: so neither tiles nor the instruction set show, and
 * the GPU has the same bits. LANES columns of a factor are taken together, where it has them.
 */
#include "kernels/cpu/rows_impl.h"

enum { LANES = 8, ROWS = 8, BLOCK_COLS = 128 };

typedef float lanes_f32 __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

struct factoring {
    const struct op_shape *op;
    const struct ops_factored *parts;
    int64_t n_parts;
    int rank;
    double *sums; /* of each tile: of squares of x, of what is left */
};

static struct factoring factoring_of(const struct op_shape *op)
{
    const struct tensor *parts = &op->in[LOW_RANK_LEFT_PARTS];

    _Static_assert(sizeof(struct ops_factored) == OPS_FACTORED_WORDS * sizeof(int32_t), "a table");
    return (struct factoring){ .op = op,
                               .parts = parts->data,
                               .n_parts = parts->cols / OPS_FACTORED_WORDS,
                               .rank = op->attributes.rank };
}

static int64_t row_tiles_of(const struct ops_factored *part)
{
    return part->right < 0 ? ceil_div(part->cols, OPS_FACTOR_ELEMENTS)
                           : ceil_div(part->rows, OPS_FACTOR_ROWS);
}

static int64_t col_tiles_of(const struct ops_factored *part)
{
    return part->right < 0 ? 0 : ceil_div(part->cols, OPS_FACTOR_COLS);
}

static int64_t count_tiles(const struct factoring *f,
                           int64_t (*of)(const struct ops_factored *part))
{
    int64_t n = 0;

    for (int64_t i = 0; i < f->n_parts; i++)
        n += of(&f->parts[i]);
    return n;
}

/* The part of a tile, which becomes the number of the tile in its part. */
static inline const struct ops_factored *find_tile(const struct factoring *f, int64_t *tile,
                                                   int64_t (*of)(const struct ops_factored *part))
{
    const struct ops_factored *part = f->parts;

    for (; *tile >= of(part); part++)
        *tile -= of(part);
    return part;
}

/* ---- left = x right ---- */

/* LANES columns, from `col` on, of n rows' sums, n a constant. */
CPU_INLINE void left_lanes(const float *x, const float *right, float *left,
                           const struct ops_factored *part, int rank, int n)
{
    lanes_f32 sums[ROWS];

    for (int r = 0; r < n; r++)
        sums[r] = (lanes_f32){ 0 };
    for (int64_t j = 0; j < part->cols; j++) {
        lanes_f32 q = *(const lanes_f32 *)(right + j * rank);

        for (int r = 0; r < n; r++)
            sums[r] += x[r * (int64_t)part->cols + j] * q;
    }
    for (int r = 0; r < n; r++)
        *(lanes_f32 *)(left + (int64_t)r * rank) = sums[r];
}

CPU_INLINE void left_one(const float *x, const float *right, float *left,
                         const struct ops_factored *part, int rank)
{
    float sum = 0;

    for (int64_t j = 0; j < part->cols; j++)
        sum += x[j] * right[j * rank];
    *left = sum;
}

CPU_INLINE void left_tile_body(void *context, int64_t tile)
{
    const struct factoring *f = context;
    const struct ops_factored *part = find_tile(f, &tile, row_tiles_of);
    const float *x = (const float *)f->op->in[LOW_RANK_LEFT_X].data + part->first;
    const float *right = (const float *)f->op->in[LOW_RANK_LEFT_RIGHT].data + part->right;
    float *left = (float *)f->op->out[LOW_RANK_LEFT_LEFT].data + part->left;
    int64_t row = tile * OPS_FACTOR_ROWS, end = min_i64(row + OPS_FACTOR_ROWS, part->rows);
    int rank = f->rank;

    if (part->right < 0) {
        int64_t at = tile * OPS_FACTOR_ELEMENTS;

        memcpy(left + at, x + at,
               (size_t)min_i64(OPS_FACTOR_ELEMENTS, part->cols - at) * sizeof *x);
        return;
    }
    for (int col = 0; col < rank; col += col + LANES <= rank ? LANES : 1)
        for (int64_t i = row; i < end;) {
            const float *from = x + i * part->cols;
            float *to = left + i * rank + col;

            if (col + LANES > rank) {
                left_one(from, right + col, to, part, rank);
                i++;
            } else if (i + ROWS > end) {
                left_lanes(from, right + col, to, part, rank, 1);
                i++;
            } else {
                left_lanes(from, right + col, to, part, rank, ROWS);
                i += ROWS;
            }
        }
}

CPU_TILES(left_tile);

static void left_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    struct factoring f = factoring_of(&call->op);

    (void)first;
    pool_run(kernels->pool, count_tiles(&f, row_tiles_of), left_tile[cpu_of(kernels)->isa], &f);
}

/* ---- right = x' left ---- */

/* Add n_rows rows to LANES columns of the factor of ROWS columns of x, n of which there are. */
CPU_INLINE void right_lanes(const float *x, int64_t stride, const float *left, int64_t n_rows,
                            int rank, float *sums, int n)
{
    lanes_f32 own[ROWS];

    for (int c = 0; c < n; c++)
        own[c] = *(const lanes_f32 *)(sums + (int64_t)c * rank);
    for (int64_t i = 0; i < n_rows; i++) {
        lanes_f32 p = *(const lanes_f32 *)(left + i * rank);

        for (int c = 0; c < n; c++)
            own[c] += x[i * stride + c] * p;
    }
    for (int c = 0; c < n; c++)
        *(lanes_f32 *)(sums + (int64_t)c * rank) = own[c];
}

CPU_INLINE void right_one(const float *x, int64_t stride, const float *left, int64_t n_rows,
                          int rank, float *sum)
{
    for (int64_t i = 0; i < n_rows; i++)
        *sum += x[i * stride] * left[i * rank];
}

CPU_INLINE void right_rows(const float *x, int64_t stride, const float *left, int64_t n_rows,
                           int rank, float *sums, int64_t n_cols)
{
    for (int64_t c = 0; c < n_cols;) {
        int n = c + ROWS <= n_cols ? ROWS : 1;

        for (int col = 0; col < rank; col += col + LANES <= rank ? LANES : 1)
            if (col + LANES > rank)
                for (int k = 0; k < n; k++)
                    right_one(x + c + k, stride, left + col, n_rows, rank,
                              sums + (c + k) * rank + col);
            else if (n == ROWS)
                right_lanes(x + c, stride, left + col, n_rows, rank, sums + c * rank + col, ROWS);
            else
                right_lanes(x + c, stride, left + col, n_rows, rank, sums + c * rank + col, 1);
        c += n;
    }
}

/* Rows in blocks, so that what is read of them stays near. */
CPU_INLINE void right_tile_body(void *context, int64_t tile)
{
    const struct factoring *f = context;
    const struct ops_factored *part = find_tile(f, &tile, col_tiles_of);
    int64_t col = tile * OPS_FACTOR_COLS, n_cols = min_i64(OPS_FACTOR_COLS, part->cols - col);
    const float *x = (const float *)f->op->in[LOW_RANK_RIGHT_X].data + part->first + col;
    const float *left = (const float *)f->op->in[LOW_RANK_RIGHT_LEFT].data + part->left;
    float *right = (float *)f->op->out[LOW_RANK_RIGHT_RIGHT].data + part->right + col * f->rank;

    memset(right, 0, (size_t)(n_cols * f->rank) * sizeof *right);
    for (int64_t i = 0; i < part->rows; i += OPS_FACTOR_ROWS)
        right_rows(x + i * part->cols, part->cols, left + i * f->rank,
                   min_i64(OPS_FACTOR_ROWS, part->rows - i), f->rank, right, n_cols);
}

CPU_TILES(right_tile);

static void right_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    struct factoring f = factoring_of(&call->op);

    (void)first;
    pool_run(kernels->pool, count_tiles(&f, col_tiles_of), right_tile[cpu_of(kernels)->isa], &f);
}

/* ---- y = left right' ---- */

/* n elements of a row of y, from columns of the factor that lie one below the other; n is at most
 * BLOCK_COLS. */
CPU_INLINE void sum_row(const float *left, const float *columns, int rank, float *y, int64_t n)
{
    float sums[BLOCK_COLS] = { 0 };

    for (int k = 0; k < rank; k++)
        for (int64_t j = 0; j < BLOCK_COLS; j++)
            sums[j] += left[k] * columns[k * BLOCK_COLS + j];
    memcpy(y, sums, (size_t)n * sizeof *y);
}

CPU_INLINE void lose(float *x, const float *y, float scale, int64_t n, double *lanes)
{
    for (int64_t j = 0; j < n; j++) {
        float left = x[j] - scale * y[j];

        lanes[j % SUM_LANES] += (double)x[j] * (double)x[j];
        lanes[SUM_LANES + j % SUM_LANES] += (double)left * (double)left;
        x[j] = left;
    }
}

CPU_INLINE void sum_matrix(const struct factoring *f, const struct ops_factored *part, int64_t row,
                           double *lanes)
{
    const struct op_shape *op = f->op;
    const float *left = (const float *)op->in[LOW_RANK_SUM_LEFT].data + part->left;
    const float *right = (const float *)op->in[LOW_RANK_SUM_RIGHT].data + part->right;
    float *x = (float *)op->in[LOW_RANK_SUM_X].data + part->first;
    float *y = (float *)op->out[LOW_RANK_SUM_Y].data + part->first;
    float columns[OPS_RANK_MAX * BLOCK_COLS], scale = (float)op->attributes.scale;

    for (int64_t col = 0; col < part->cols; col += BLOCK_COLS) {
        int64_t n = min_i64(BLOCK_COLS, part->cols - col);

        memset(columns, 0, sizeof *columns * BLOCK_COLS * (size_t)f->rank);
        for (int64_t j = 0; j < n; j++)
            for (int k = 0; k < f->rank; k++)
                columns[k * BLOCK_COLS + j] = right[(col + j) * f->rank + k];
        for (int64_t i = row; i < min_i64(row + OPS_FACTOR_ROWS, part->rows); i++) {
            sum_row(left + i * f->rank, columns, f->rank, y + i * part->cols + col, n);
            lose(x + i * part->cols + col, y + i * part->cols + col, scale, n, lanes);
        }
    }
}

CPU_INLINE double add_lanes(double *lanes)
{
    for (int half = SUM_LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            lanes[l] += lanes[l + half];
    return lanes[0];
}

CPU_INLINE void sum_tile_body(void *context, int64_t tile)
{
    const struct factoring *f = context;
    double lanes[2 * SUM_LANES] = { 0 }, *sums = f->sums + 2 * tile;
    const struct ops_factored *part = find_tile(f, &tile, row_tiles_of);
    float *x = (float *)f->op->in[LOW_RANK_SUM_X].data + part->first;
    float *y = (float *)f->op->out[LOW_RANK_SUM_Y].data + part->first;
    const float *left = (const float *)f->op->in[LOW_RANK_SUM_LEFT].data + part->left;

    if (part->right >= 0) {
        sum_matrix(f, part, tile * OPS_FACTOR_ROWS, lanes);
    } else {
        int64_t at = tile * OPS_FACTOR_ELEMENTS;
        int64_t n = min_i64(OPS_FACTOR_ELEMENTS, part->cols - at);

        memcpy(y + at, left + at, (size_t)n * sizeof *y);
        for (int64_t i = 0; i < n; i++) {
            lanes[i % SUM_LANES] += (double)x[at + i] * (double)x[at + i];
            x[at + i] = 0;
        }
    }
    sums[0] = add_lanes(lanes);
    sums[1] = add_lanes(lanes + SUM_LANES);
}

CPU_TILES(sum_tile);

static size_t sum_scratch_bytes(struct kernels *kernels, const struct op_shape *op)
{
    int64_t n_parts = op->in[LOW_RANK_SUM_PARTS].cols / OPS_FACTORED_WORDS;

    (void)kernels;
    return (size_t)ops_factor_row_tiles(op->attributes.rank, n_parts,
                                        op->in[LOW_RANK_SUM_LEFT].cols) *
           2 * sizeof(double);
}

static void clear_gaps(const struct factoring *f)
{
    float *y = f->op->out[LOW_RANK_SUM_Y].data;
    int64_t at = 0, n = f->op->out[LOW_RANK_SUM_Y].cols;

    for (int64_t i = 0; i <= f->n_parts; i++) {
        const struct ops_factored *part = &f->parts[i];
        int64_t begin = i < f->n_parts ? part->first : n;

        memset(y + at, 0, (size_t)(begin - at) * sizeof *y);
        if (i < f->n_parts)
            at = begin + (int64_t)part->rows * part->cols;
    }
}

static void sum_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    struct factoring f = factoring_of(&call->op);
    double *sums = call->op.out[LOW_RANK_SUM_SUMS].data;
    int64_t n_tiles = count_tiles(&f, row_tiles_of);

    (void)first;
    f.sums = call->scratch;
    clear_gaps(&f);
    pool_run(kernels->pool, n_tiles, sum_tile[cpu_of(kernels)->isa], &f);
    sums[0] = sums[1] = 0;
    for (int64_t i = 0; i < n_tiles; i++) {
        sums[0] += f.sums[2 * i];
        sums[1] += f.sums[2 * i + 1];
    }
}

void cpu_register_low_rank(struct kernels_backend *table)
{
    table->entries[OP_LOW_RANK_LEFT] = (struct kernel_entry){ .run = left_run };
    table->entries[OP_LOW_RANK_RIGHT] = (struct kernel_entry){ .run = right_run };
    table->entries[OP_LOW_RANK_SUM] =
        (struct kernel_entry){ .run = sum_run, .scratch_bytes = sum_scratch_bytes };
}
