/*
 * muon.cu - Muon's momentum and update, and Newton-Schulz steps (Jordan et al. 2024)
 *
 * lib/kernels/cpu/muon.c says which IEEE operations in which order; here the same ones are spread
 * over threads, and products are cuBLASLt's.
 *
 *   momentum, update   a thread block takes OPS_NORM_BLOCK elements, which have one decay, four
 *                      neighbours a thread at a time. Bound by memory.
 *   newton_schulz      a matrix is copied into scratch, [small x large], through tiles in shared
 *                      memory where it is turned; there the products of a step, each followed by a
 *                      kernel that adds and rounds. Bound by the tensor cores for sides of a
 *                      thousand and more, by launches below. The norm is read where it was made:
 *                      a graph replays with new ones.
 */
#include "cuda/gemm.cuh"
#include "cuda/rows.cuh"

#include <stdlib.h>

enum { MUON_THREADS = 256, MUON_WIDTH = 4, MUON_TURNS = 4 };
static_assert(MUON_THREADS * MUON_WIDTH * MUON_TURNS == OPS_NORM_BLOCK, "a block's decay is one");

/* All of one dense row, at addresses of 16 bytes. */
static bool is_flat(const struct tensor *t)
{
    return !tensor_given(t) || (cuda_is_dense(t) && (uintptr_t)t->data % 16 == 0);
}

/* The first of the four elements that a thread takes in a turn. */
static __device__ __forceinline__ int64_t element_of(int turn)
{
    return (int64_t)blockIdx.x * OPS_NORM_BLOCK +
           (turn * MUON_THREADS + (int64_t)threadIdx.x) * MUON_WIDTH;
}

/* ---- momentum ---- */

template <typename G> struct momentum {
    rows_of<G> gradient;
    rows_of<float> m;
    rows_of<bf16> u;
    const float *factor;
    const int32_t *skip;
    int64_t cols, n;
    float rest;
    int nesterov;
};

/* The direction; m becomes the next momentum. */
static __device__ __forceinline__ float momentum_of(float gradient, float factor, float rest,
                                                    int nesterov, float *m)
{
    float g = gradient * factor, mean = *m + rest * (g - *m);

    *m = mean;
    return nesterov ? mean + rest * (g - mean) : mean;
}

template <typename G>
static __device__ __forceinline__ void momentum_one(const momentum<G> &a, float factor, int skip,
                                                    int64_t i)
{
    int64_t row = i / a.cols, col = i % a.cols;
    float m = a.m.row(row)[col];
    float u = momentum_of(to_float(a.gradient.row(row)[col]), factor, a.rest, a.nesterov, &m);

    a.u.row(row)[col] = from_float<bf16>(skip ? 0.0f : u);
    if (!skip)
        a.m.row(row)[col] = m;
}

template <typename G, int WIDE>
__global__ void __launch_bounds__(MUON_THREADS) momentum_kernel(momentum<G> a)
{
    float factor = *a.factor;
    int skip = *a.skip;

#pragma unroll
    for (int turn = 0; turn < MUON_TURNS; turn++) {
        int64_t i = element_of(turn);

        if (!WIDE || i + MUON_WIDTH > a.n) {
#pragma unroll 1
            for (int64_t k = i; k < i + MUON_WIDTH && k < a.n; k++)
                momentum_one(a, factor, skip, k);
            continue;
        }
        float g[MUON_WIDTH], m[MUON_WIDTH], u[MUON_WIDTH];

        load_floats<G, MUON_WIDTH>(a.gradient.at + i, g);
        load_floats<float, MUON_WIDTH>(a.m.at + i, m);
#pragma unroll
        for (int e = 0; e < MUON_WIDTH; e++) {
            u[e] = momentum_of(g[e], factor, a.rest, a.nesterov, &m[e]);
            u[e] = skip ? 0.0f : u[e];
        }
        if (!skip)
            store_floats<float, MUON_WIDTH>(a.m.at + i, m);
        store_floats<bf16, MUON_WIDTH>(a.u.at + i, u);
    }
}

template <typename G>
static void momentum_launch(struct kernels *kernels, const struct kernel_call *call)
{
    const struct op_shape *op = &call->op;
    const struct tensor *gradient = &op->in[MUON_MOMENTUM_GRADIENT];
    int64_t n = tensor_elements(gradient);
    momentum<G> a = { cuda_rows<G>(gradient),
                      cuda_rows<float>(&op->in[MUON_MOMENTUM_M]),
                      cuda_rows<bf16>(&op->out[MUON_MOMENTUM_U]),
                      (const float *)op->in[MUON_MOMENTUM_CLIP_FACTOR].data,
                      (const int32_t *)op->in[MUON_MOMENTUM_SKIP_UPDATE].data,
                      gradient->cols,
                      n,
                      (float)(1.0 - op->attributes.beta1),
                      op->attributes.nesterov };
    bool wide = is_flat(gradient) && is_flat(&op->in[MUON_MOMENTUM_M]) &&
                is_flat(&op->out[MUON_MOMENTUM_U]);

    cuda_launch(kernels, call, cuda_shape_of(ceil_div(n, OPS_NORM_BLOCK), MUON_THREADS),
                wide ? momentum_kernel<G, 1> : momentum_kernel<G, 0>, a);
}

static void muon_momentum_run(struct kernels *kernels, const struct kernel_call *call, int)
{
    if (call->op.in[MUON_MOMENTUM_GRADIENT].dtype == DTYPE_BF16)
        momentum_launch<bf16>(kernels, call);
    else
        momentum_launch<float>(kernels, call);
}

/* ---- the update ---- */

/* A bf16 that is rounded as an upper word is (base/halves.h): to nearest, halves away from zero. */
struct upper16 {
    uint16_t bits;
};

template <> __device__ __forceinline__ upper16 from_float<upper16>(float x)
{
    uint32_t bits = __float_as_uint(x);
    bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;

    return upper16{ (uint16_t)(is_nan ? bits >> 16 | 0x40 : (bits + 0x8000u) >> 16) };
}

/* W is the weight's type. */
template <typename W> struct muon_step {
    rows_of<bf16> x;
    rows_of<float> master;
    rows_of<W> weight; /* at NULL: there is none */
    const float *scalars;
    const int32_t *skip;
    const double *decays; /* a block's each, or NULL: weight_decay */
    int64_t cols, n;
    double weight_decay;
};

template <typename W, int WIDE>
__global__ void __launch_bounds__(MUON_THREADS) muon_update_kernel(muon_step<W> a)
{
    double lr = a.scalars[SCALAR_LR];
    float decay = (float)(1.0 - lr * (a.decays ? a.decays[blockIdx.x] : a.weight_decay));
    float step = (float)lr;

    if (*a.skip)
        return;
#pragma unroll
    for (int turn = 0; turn < MUON_TURNS; turn++) {
        int64_t i = element_of(turn);

        if (!WIDE || i + MUON_WIDTH > a.n) {
#pragma unroll 1
            for (int64_t k = i; k < i + MUON_WIDTH && k < a.n; k++) {
                int64_t row = k / a.cols, col = k % a.cols;
                float *master = a.master.row(row) + col, p = *master * decay;

                p = p - step * to_float(a.x.row(row)[col]);
                *master = p;
                if (a.weight.at)
                    a.weight.row(row)[col] = from_float<W>(p);
            }
            continue;
        }
        float x[MUON_WIDTH], p[MUON_WIDTH];

        load_floats<bf16, MUON_WIDTH>(a.x.at + i, x);
        load_floats<float, MUON_WIDTH>(a.master.at + i, p);
#pragma unroll
        for (int e = 0; e < MUON_WIDTH; e++)
            p[e] = p[e] * decay - step * x[e];
        store_floats<float, MUON_WIDTH>(a.master.at + i, p);
        if (a.weight.at)
            store_floats<W, MUON_WIDTH>(a.weight.at + i, p);
    }
}

template <typename W>
static void update_launch(struct kernels *kernels, const struct kernel_call *call)
{
    const struct op_shape *op = &call->op;
    const struct tensor *x = &op->in[MUON_UPDATE_X];
    int64_t n = tensor_elements(x);
    muon_step<W> a = { cuda_rows<bf16>(x),
                       cuda_rows<float>(&op->in[MUON_UPDATE_MASTER]),
                       cuda_rows<W>(&op->out[MUON_UPDATE_WEIGHT]),
                       (const float *)op->in[MUON_UPDATE_SCALARS].data,
                       (const int32_t *)op->in[MUON_UPDATE_SKIP_UPDATE].data,
                       cuda_rows<double>(&op->in[MUON_UPDATE_DECAY]).at,
                       x->cols,
                       n,
                       op->attributes.weight_decay };
    bool wide =
        is_flat(x) && is_flat(&op->in[MUON_UPDATE_MASTER]) && is_flat(&op->out[MUON_UPDATE_WEIGHT]);

    cuda_launch(kernels, call, cuda_shape_of(ceil_div(n, OPS_NORM_BLOCK), MUON_THREADS),
                wide ? muon_update_kernel<W, 1> : muon_update_kernel<W, 0>, a);
}

static void muon_update_run(struct kernels *kernels, const struct kernel_call *call, int)
{
    const struct tensor *weight = &call->op.out[MUON_UPDATE_WEIGHT];

    if (tensor_given(weight) && weight->dtype == DTYPE_BF16 && call->op.attributes.half_away) {
        update_launch<upper16>(kernels, call);
        return;
    }
    cuda_with_act(tensor_given(weight) ? weight->dtype : DTYPE_F32,
                  [&](auto zero) { update_launch<decltype(zero)>(kernels, call); });
}

/* ---- copies into scratch and back ---- */

enum { TILE = 32, TILE_ROWS = 8 };

struct copied {
    rows_of<bf16> x;
    bf16 *copy;
    int64_t rows, cols, part_rows, part_cols; /* of the matrix; of a part of it */
    int64_t first_row, part_step; /* of its first part in x; rows from one part to the next */
    int by_columns, is_transposed;
};

static __device__ __forceinline__ bf16 *element_in_x(const copied &c, int64_t row, int64_t col)
{
    int64_t part = c.by_columns ? col / c.part_cols : row / c.part_rows;

    return c.x.row(c.first_row + part * c.part_step + (c.by_columns ? row : row % c.part_rows)) +
           (c.by_columns ? col % c.part_cols : col);
}

/* Element (row, col) of the matrix as the copy has it: turned or not. */
static __device__ __forceinline__ bf16 *element_in_copy(const copied &c, int64_t row, int64_t col)
{
    return c.copy + (c.is_transposed ? col * c.rows + row : row * c.cols + col);
}

/* Neighbouring threads have neighbours in what is read, and, turned in shared memory, in what is
 * written. */
template <int IS_OUT> __global__ void __launch_bounds__(TILE *TILE_ROWS) copy_kernel(copied c)
{
    __shared__ bf16 tile[TILE][TILE + 2];
    int64_t row0 = (int64_t)blockIdx.y * TILE, col0 = (int64_t)blockIdx.x * TILE;
    int lane = (int)threadIdx.x % TILE, line = (int)threadIdx.x / TILE;
    bool turned = c.is_transposed;

    for (int k = line; k < TILE; k += TILE_ROWS) {
        int r = IS_OUT && turned ? lane : k, l = IS_OUT && turned ? k : lane;
        int64_t row = row0 + r, col = col0 + l;

        if (row < c.rows && col < c.cols)
            tile[r][l] = IS_OUT ? *element_in_copy(c, row, col) : *element_in_x(c, row, col);
    }
    __syncthreads();
    for (int k = line; k < TILE; k += TILE_ROWS) {
        int r = !IS_OUT && turned ? lane : k, l = !IS_OUT && turned ? k : lane;
        int64_t row = row0 + r, col = col0 + l;

        if (row < c.rows && col < c.cols)
            *(IS_OUT ? element_in_x(c, row, col) : element_in_copy(c, row, col)) = tile[r][l];
    }
}

/* ---- sums between products ---- */

enum { COMBINE_THREADS = 256, COMBINE_WIDTH = 8 };

struct combine {
    const bf16 *x;
    bf16 *y;
    const float *product; /* NULL: y = x / max(norm, eps) */
    const double *norm;
    double eps;
    float of, by, scale;
    int64_t n;
    int is_scaled;
};

static __device__ __forceinline__ float combined(const combine &c, float of, float x, float product)
{
    float sum = c.product ? of * x + c.by * product : x * of;

    return c.is_scaled ? sum * c.scale : sum;
}

__global__ void __launch_bounds__(COMBINE_THREADS) combine_kernel(combine c)
{
    int64_t i = ((int64_t)blockIdx.x * COMBINE_THREADS + threadIdx.x) * COMBINE_WIDTH;
    float of = c.of, x[COMBINE_WIDTH], product[COMBINE_WIDTH] = {};

    if (!c.product) {
        double norm = *c.norm;

        of = (float)(1.0 / (norm > c.eps || norm != norm ? norm : c.eps));
    }
    if (i + COMBINE_WIDTH > c.n) {
#pragma unroll 1
        for (; i < c.n; i++)
            c.y[i] = from_float<bf16>(
                combined(c, of, to_float(c.x[i]), c.product ? c.product[i] : 0.0f));
        return;
    }
    load_floats<bf16, COMBINE_WIDTH>(c.x + i, x);
    if (c.product)
        load_floats<float, COMBINE_WIDTH>(c.product + i, product);
#pragma unroll
    for (int e = 0; e < COMBINE_WIDTH; e++)
        x[e] = combined(c, of, x[e], product[e]);
    store_floats<bf16, COMBINE_WIDTH>(c.y + i, x);
}

/* ---- the steps ---- */

/* The products of a step: X X', A A and B X. */
enum { PRODUCT_GRAM, PRODUCT_SQUARE, PRODUCT_STEP, N_STEP_PRODUCTS };

struct steps_state {
    const struct cuda_gemm *products[N_STEP_PRODUCTS];
};

struct steps_run {
    struct kernels *kernels;
    const struct kernel_call *call;
    struct gpu_newton_schulz sizes;
    struct newton_schulz_matrix matrix;
    char *scratch;
};

static struct cuda_gemm_shape step_shape(const struct gpu_newton_schulz *s, int which)
{
    struct cuda_gemm_shape shape = {};

    shape.m = s->small;
    shape.n = which == PRODUCT_STEP ? s->large : s->small;
    shape.k = which == PRODUCT_GRAM ? s->large : s->small;
    shape.in = DTYPE_BF16;
    shape.out = which == PRODUCT_GRAM ? DTYPE_BF16 : DTYPE_F32;
    shape.b_transposed = which == PRODUCT_GRAM;
    shape.lda = shape.k;
    shape.ldb = which == PRODUCT_GRAM ? s->large : shape.n;
    shape.ldc = shape.n;
    return shape;
}

static struct cuda_gemm_operands step_operands(const struct gpu_newton_schulz *s, char *scratch,
                                               int which)
{
    struct cuda_gemm_operands o = {};
    char *x = scratch + s->x, *a = scratch + s->a, *b = scratch + s->b;

    o.a = which == PRODUCT_GRAM ? x : which == PRODUCT_SQUARE ? a : b;
    o.b = which == PRODUCT_SQUARE ? a : x;
    o.c = which == PRODUCT_GRAM ? a : scratch + s->product;
    return o;
}

static int newton_schulz_prepare(struct kernels *kernels, struct kernel_call *call, struct err *err)
{
    struct gpu_newton_schulz sizes = gpu_newton_schulz_sizes(&call->op);
    struct steps_state *state = (struct steps_state *)calloc(1, sizeof *state);

    if (!state)
        return err_set(err, ERR_DEVICE, "newton_schulz: out of host memory");
    for (int i = 0; i < N_STEP_PRODUCTS; i++) {
        struct cuda_gemm_shape shape = step_shape(&sizes, i);
        struct cuda_gemm_operands operands = step_operands(&sizes, (char *)call->scratch, i);

        operands.beside = call->beside;
        if (cuda_gemm_prepare(kernels, &shape, &operands, &state->products[i], err)) {
            free(state);
            return err_add(err, "newton_schulz");
        }
    }
    call->state = state;
    return 0;
}

static void newton_schulz_release(struct kernels *, void *state)
{
    free(state);
}

static void run_product(const struct steps_run *r, int which)
{
    const struct steps_state *state = (const struct steps_state *)r->call->state;
    struct cuda_gemm_operands operands = step_operands(&r->sizes, r->scratch, which);

    operands.beside = r->call->beside;
    cuda_gemm_run(r->kernels, "newton_schulz", state->products[which], &operands,
                  r->scratch + r->sizes.library);
}

static void run_combine(const struct steps_run *r, const struct combine &c)
{
    cuda_launch(
        r->kernels, r->call,
        cuda_shape_of(ceil_div(c.n, (int64_t)COMBINE_THREADS * COMBINE_WIDTH), COMBINE_THREADS),
        combine_kernel, c);
}

/* As the gradients' norm, by the same kernels. */
static void run_norm(const struct steps_run *r)
{
    const struct gpu_newton_schulz *s = &r->sizes;
    int64_t n_blocks = ceil_div(s->small * s->large, OPS_NORM_BLOCK);
    double *norm = (double *)(r->scratch + s->norm);
    struct kernel_call call = {};

    call.op.kind = OP_SUMSQ;
    call.op.in[SUMSQ_X] = tensor{ r->scratch + s->x, s->small, s->large, s->large, DTYPE_BF16 };
    call.op.out[SUMSQ_SUMS] = tensor{ r->scratch + s->sums, 1, n_blocks, n_blocks, DTYPE_F64 };
    r->kernels->backend->entries[OP_SUMSQ].run(r->kernels, &call, 0);
    call = kernel_call{};
    call.op.kind = OP_GRADIENT_NORM;
    call.op.in[GRADIENT_NORM_SUMS] =
        tensor{ r->scratch + s->sums, 1, n_blocks, n_blocks, DTYPE_F64 };
    call.op.out[GRADIENT_NORM_NORM] = tensor{ norm, 1, 1, 1, DTYPE_F64 };
    call.op.out[GRADIENT_NORM_CLIP_FACTOR] = tensor{ norm + 1, 1, 1, 1, DTYPE_F32 };
    call.op.out[GRADIENT_NORM_SKIP_UPDATE] = tensor{ norm + 2, 1, 1, 1, DTYPE_I32 };
    r->kernels->backend->entries[OP_GRADIENT_NORM].run(r->kernels, &call, 0);
}

static void run_steps(const struct steps_run *r)
{
    const struct op_attributes *at = &r->call->op.attributes;
    const struct gpu_newton_schulz *s = &r->sizes;
    int64_t square = s->small * s->small, whole = s->small * s->large;
    bf16 *x = (bf16 *)(r->scratch + s->x), *a = (bf16 *)(r->scratch + s->a),
         *b = (bf16 *)(r->scratch + s->b);
    const float *product = (const float *)(r->scratch + s->product);

    run_norm(r);
    run_combine(r, combine{ x, x, NULL, (const double *)(r->scratch + s->norm), at->eps, 0, 0, 0,
                            whole, 0 });
    for (int i = 0; i < at->steps; i++) {
        struct newton_schulz_step step = newton_schulz_step(at->coefficients, i);

        run_product(r, PRODUCT_GRAM);
        run_product(r, PRODUCT_SQUARE);
        run_combine(r,
                    combine{ a, b, product, NULL, 0, (float)step.b, (float)step.c, 0, square, 0 });
        run_product(r, PRODUCT_STEP);
        run_combine(r, combine{ x, x, product, NULL, 0, (float)step.a, 1, (float)at->scale, whole,
                                i + 1 == at->steps });
    }
}

static void run_copy(const struct steps_run *r, int64_t number, bool is_out)
{
    const struct op_shape *op = &r->call->op;
    const struct op_attributes *a = &op->attributes;
    const struct tensor *x = &op->in[NEWTON_SCHULZ_X];
    int64_t slot = number / a->matrices, of_slot = number % a->matrices;
    copied c = { cuda_rows<bf16>(x),
                 (bf16 *)(r->scratch + r->sizes.x),
                 r->matrix.rows,
                 r->matrix.cols,
                 a->matrix_rows,
                 x->cols,
                 (slot * a->matrix_parts * a->matrices + of_slot) * a->matrix_rows,
                 a->matrices * a->matrix_rows,
                 a->by_columns,
                 r->matrix.rows > r->matrix.cols };
    struct cuda_shape shape = { dim3((unsigned)ceil_div(c.cols, TILE),
                                     (unsigned)ceil_div(c.rows, TILE)),
                                dim3(TILE * TILE_ROWS), 0 };

    cuda_launch(r->kernels, r->call, shape, is_out ? copy_kernel<1> : copy_kernel<0>, c);
}

static void newton_schulz_run(struct kernels *kernels, const struct kernel_call *call, int)
{
    struct steps_run r = { kernels, call, gpu_newton_schulz_sizes(&call->op),
                           ops_newton_schulz_matrix(&call->op), (char *)call->scratch };

    for (int64_t number = 0; number < r.matrix.n; number++) {
        run_copy(&r, number, false);
        run_steps(&r);
        run_copy(&r, number, true);
    }
}

void cuda_register_muon(struct kernels_backend *table)
{
    struct kernel_entry entry = {};

    table->entries[OP_MUON_MOMENTUM].run = muon_momentum_run;
    table->entries[OP_MUON_UPDATE].run = muon_update_run;
    entry.run = newton_schulz_run;
    entry.prepare = newton_schulz_prepare;
    entry.release = newton_schulz_release;
    table->entries[OP_NEWTON_SCHULZ] = entry;
}
