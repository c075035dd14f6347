/*
 * elementwise.cu - activations and small data movements: each output element on its own
 *
 * Work lies as elements.cuh says. Bound by memory; swiglu's exp and division are some 30
 * instructions an element, which just hide behind bf16's six bytes.
 */
#include "cuda/column_sums.cuh"
#include "cuda/elements.cuh"
#include "cuda/fp8_rows.cuh"

/* ---- the functions -----------------------------------------------------------------------------
 */

#define GELU_ROOT 0.79788456080286536f /* sqrt(2 / pi) */
#define GELU_CUBE 0.044715f

static __device__ __forceinline__ float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static __device__ __forceinline__ float gelu_tanh(float x)
{
    return tanhf(GELU_ROOT * fmaf(GELU_CUBE * x * x, x, x));
}

static __device__ __forceinline__ float gelu_slope(float x)
{
    float t = gelu_tanh(x), inner = GELU_ROOT * fmaf(3.0f * GELU_CUBE * x, x, 1.0f);

    return fmaf(0.5f * x * (1.0f - t * t), inner, 0.5f * (1.0f + t));
}

template <typename T, int PACK> struct swiglu {
    enum { N = PACK };
    struct operands {
        raw_pack<T, N> gate, up;
    };
    rows_of<T> gu, y;
    int64_t f;

    __device__ __forceinline__ void load(operands *o, int64_t row, int64_t col) const
    {
        load_raw<T, N>(gu.row(row) + col, &o->gate);
        load_raw<T, N>(gu.row(row) + f + col, &o->up);
    }
    __device__ __forceinline__ void store(operands *o, int64_t row, int64_t col) const
    {
        float gate[N], up[N];

        floats_of<T, N>(o->gate, gate);
        floats_of<T, N>(o->up, up);
#pragma unroll
        for (int i = 0; i < N; i++)
            up[i] = gate[i] * sigmoid(gate[i]) * up[i];
        store_floats<T, N>(y.row(row) + col, up);
    }
};

template <typename T, int PACK> struct swiglu_grad {
    enum { N = PACK };
    struct operands {
        raw_pack<T, N> dy, gate, up;
    };
    rows_of<T> dy, gu, dgu;
    int64_t f;

    __device__ __forceinline__ void load(operands *o, int64_t row, int64_t col) const
    {
        load_raw<T, N>(dy.row(row) + col, &o->dy);
        load_raw<T, N>(gu.row(row) + col, &o->gate);
        load_raw<T, N>(gu.row(row) + f + col, &o->up);
    }
    __device__ __forceinline__ void store(operands *o, int64_t row, int64_t col) const
    {
        float g[N], gate[N], up[N];

        floats_of<T, N>(o->dy, g);
        floats_of<T, N>(o->gate, gate);
        floats_of<T, N>(o->up, up);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float z = gate[i], s = sigmoid(z);

            gate[i] = g[i] * up[i] * s * fmaf(z, 1.0f - s, 1.0f);
            up[i] = g[i] * z * s;
        }
        store_floats<T, N>(dgu.row(row) + col, gate);
        store_floats<T, N>(dgu.row(row) + f + col, up);
    }
};

template <typename T, int PACK> struct gelu {
    enum { N = PACK };
    struct operands {
        raw_pack<T, N> x;
    };
    rows_of<T> x, y;

    __device__ __forceinline__ void load(operands *o, int64_t row, int64_t col) const
    {
        load_raw<T, N>(x.row(row) + col, &o->x);
    }
    __device__ __forceinline__ void store(operands *o, int64_t row, int64_t col) const
    {
        float v[N];

        floats_of<T, N>(o->x, v);
#pragma unroll
        for (int i = 0; i < N; i++)
            v[i] = 0.5f * v[i] * (1.0f + gelu_tanh(v[i]));
        store_floats<T, N>(y.row(row) + col, v);
    }
};

template <typename T, int PACK> struct gelu_grad {
    enum { N = PACK };
    struct operands {
        raw_pack<T, N> dy, x;
    };
    rows_of<T> dy, x, dx;

    __device__ __forceinline__ void load(operands *o, int64_t row, int64_t col) const
    {
        load_raw<T, N>(dy.row(row) + col, &o->dy);
        load_raw<T, N>(x.row(row) + col, &o->x);
    }
    __device__ __forceinline__ void store(operands *o, int64_t row, int64_t col) const
    {
        float g[N], v[N];

        floats_of<T, N>(o->dy, g);
        floats_of<T, N>(o->x, v);
#pragma unroll
        for (int i = 0; i < N; i++)
            g[i] = g[i] * gelu_slope(v[i]);
        store_floats<T, N>(dx.row(row) + col, g);
    }
};

template <typename T, int PACK> struct scaled {
    enum { N = PACK };
    struct operands {
        raw_pack<T, N> x;
    };
    rows_of<T> x, y;
    float factor;

    __device__ __forceinline__ void load(operands *o, int64_t row, int64_t col) const
    {
        load_raw<T, N>(x.row(row) + col, &o->x);
    }
    __device__ __forceinline__ void store(operands *o, int64_t row, int64_t col) const
    {
        float v[N];

        floats_of<T, N>(o->x, v);
#pragma unroll
        for (int i = 0; i < N; i++)
            v[i] = v[i] * factor;
        store_floats<T, N>(y.row(row) + col, v);
    }
};

/* y = a + b; where one_row is set, b is a row that all of a's are given. */
template <typename A, typename B, int PACK> struct sum {
    enum { N = PACK };
    struct operands {
        raw_pack<A, N> a;
        raw_pack<B, N> b;
    };
    rows_of<A> a;
    rows_of<B> b;
    rows_of<A> y;
    int one_row;

    __device__ __forceinline__ void load(operands *o, int64_t row, int64_t col) const
    {
        load_raw<A, N>(a.row(row) + col, &o->a);
        load_raw<B, N>(b.row(one_row ? 0 : row) + col, &o->b);
    }
    __device__ __forceinline__ void store(operands *o, int64_t row, int64_t col) const
    {
        float u[N], v[N];

        floats_of<A, N>(o->a, u);
        floats_of<B, N>(o->b, v);
#pragma unroll
        for (int i = 0; i < N; i++)
            u[i] = u[i] + v[i];
        store_floats<A, N>(y.row(row) + col, u);
    }
};

/* Without index: row by row, from one dtype to another; with it: its rows of x. */
template <typename X, typename Y, int PACK> struct moved {
    enum { N = PACK };
    struct operands {
        raw_pack<X, N> x;
    };
    rows_of<X> x;
    rows_of<Y> y;
    rows_of<int32_t> index;
    int64_t n_rows; /* of x */

    __device__ __forceinline__ void load(operands *o, int64_t row, int64_t col) const
    {
        if (index.at) {
            row = *index.row(row);
            device_check(row >= 0 && row < n_rows);
        }
        load_raw<X, N>(x.row(row) + col, &o->x);
    }
    __device__ __forceinline__ void store(operands *o, int64_t row, int64_t col) const
    {
        float v[N];

        floats_of<X, N>(o->x, v);
        store_floats<Y, N>(y.row(row) + col, v);
    }
};

/* ---- with codes --------------------------------------------------------------------------------
 */

/* Which rows are coded: what the function writes at a column, and n_parts - 1 times n_cols behind
 * it. */
struct coded_elements {
    rows_of<bf16> x;
    fp8_rows coded;
    int64_t n_rows, n_cols;
    int n_parts, cols_on_x;
};

/* The packs of one row that a thread has stored, read again while they are in the caches. */
template <int N>
static __device__ __forceinline__ void code_elements(const coded_elements &c, int64_t row,
                                                     int64_t col)
{
    bool is_there = row < c.n_rows && col < c.n_cols;
    int lanes = min((int)blockDim.x, OPS_FP8_BLOCK / N);
    uint32_t most = 0;

    for (int part = 0; part < c.n_parts; part++) {
        int64_t at = part * c.n_cols + col;
        float x[N] = {};

        if (is_there)
            load_floats<bf16, N>(c.x.row(row) + at, x);
        uint32_t size = code_pack<N>(c.coded, row, at, x, is_there ? N : 0, lanes);
        most = size > most ? size : most;
    }
    if (c.coded.codes)
        return;
    lanes = min((int)blockDim.x, 32);
    most = largest_among(most, lanes);
    if (threadIdx.x % lanes == 0 && is_there)
        atomicMax((uint32_t *)c.coded.most + row * c.coded.most_stride, most);
}

/* elements_kernel, but that all threads of a warp stay together. */
template <typename F>
static __global__ void __launch_bounds__(ELEMENT_THREADS)
    coded_elements_kernel(F f, coded_elements c)
{
    int64_t across = c.cols_on_x ? blockIdx.x : blockIdx.y;
    int64_t down = c.cols_on_x ? blockIdx.y : blockIdx.x;
    int64_t col = (across * blockDim.x + threadIdx.x) * F::N;
    int64_t row = down * blockDim.y * ELEMENT_ROWS + threadIdx.y;
    typename F::operands operands[ELEMENT_ROWS];

#pragma unroll
    for (int i = 0; i < ELEMENT_ROWS; i++)
        if (row + i * blockDim.y < c.n_rows && col < c.n_cols)
            f.load(&operands[i], row + i * blockDim.y, col);
#pragma unroll
    for (int i = 0; i < ELEMENT_ROWS; i++)
        if (row + i * blockDim.y < c.n_rows && col < c.n_cols)
            f.store(&operands[i], row + i * blockDim.y, col);
#pragma unroll
    for (int i = 0; i < ELEMENT_ROWS; i++)
        code_elements<F::N>(c, row + i * blockDim.y, col);
}

static __global__ void __launch_bounds__(ELEMENT_THREADS)
    zero_sizes_kernel(float *most, int64_t stride, int64_t n)
{
    int64_t row = (int64_t)blockIdx.x * ELEMENT_THREADS + threadIdx.x;

    if (row < n)
        most[row * stride] = 0;
}

/* cuda_elements of a function that writes one of N columns, or of n_parts times as many. */
template <typename F>
static void launch_elements(struct kernels *kernels, const struct kernel_call *call, F f,
                            int64_t n_rows, int64_t n_cols)
{
    const struct tensor *x = &call->op.out[OPS_FIRST];
    coded_elements c = {
        cuda_rows<bf16>(x), cuda_fp8_rows(&call->op), n_rows, n_cols, (int)(x->cols / n_cols), 0
    };
    bool has_whole = c.n_parts == 1 || n_cols % OPS_FP8_BLOCK == 0 || !c.coded.codes;

    if (F::N < OPS_FP8_BLOCK / 16 || !c.coded.most || !has_whole) {
        cuda_elements(kernels, call, f, n_rows, n_cols);
        if (c.coded.most)
            cuda_code_rows(kernels, call);
        return;
    }
    if constexpr (F::N == OPS_FP8_BLOCK / 16) {
        struct cuda_shape shape =
            elements_shape(n_rows, ceil_div(n_cols, (int64_t)F::N), &c.cols_on_x);

        if (!c.coded.codes)
            cuda_launch(kernels, call,
                        cuda_shape_of(ceil_div(n_rows, (int64_t)ELEMENT_THREADS), ELEMENT_THREADS),
                        zero_sizes_kernel, c.coded.most, c.coded.most_stride, n_rows);
        cuda_launch(kernels, call, shape, coded_elements_kernel<F>, f, c);
    }
}

/* ---- launching ---------------------------------------------------------------------------------
 */

/* Whether each of the call's operands can be taken 16 bytes at a time. */
static int is_wide(const struct op_shape *op)
{
    int wide = 1;

    for (int i = 0; i < 2; i++)
        if (op->in[i].dtype != DTYPE_I32)
            wide = wide && cuda_is_aligned(&op->in[i], 16);
    int codes = op_info(op->kind)->codes_output - 1;
    if (codes > 0)
        wide = wide && cuda_is_aligned(&op->out[codes], 8);
    return wide && cuda_is_aligned(&op->out[OPS_FIRST], 16);
}

static void activation_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct tensor *in = call->op.in, *out = &call->op.out[OPS_FIRST];
    int64_t rows = out->rows, cols = out->cols, f = in[SWIGLU_GRAD_DY].cols;
    float factor = (float)call->op.attributes.scale;

    (void)first;
    cuda_with_act(out->dtype, [&](auto zero) {
        typedef decltype(zero) T;
        rows_of<T> a = cuda_rows<T>(&in[OPS_FIRST]), b = cuda_rows<T>(&in[SWIGLU_GRAD_GU]),
                   y = cuda_rows<T>(out);
        auto with = [&](auto pack) {
            enum { N = decltype(pack)::N };

            switch (call->op.kind) {
            case OP_SWIGLU:
                return launch_elements(kernels, call, swiglu<T, N>{ a, y, cols }, rows, cols);
            case OP_SWIGLU_GRAD:
                return launch_elements(kernels, call, swiglu_grad<T, N>{ a, b, y, f }, rows, f);
            case OP_GELU:
                return launch_elements(kernels, call, gelu<T, N>{ a, y }, rows, cols);
            case OP_GELU_GRAD:
                return launch_elements(kernels, call, gelu_grad<T, N>{ a, b, y }, rows, cols);
            default:
                return cuda_elements(kernels, call, scaled<T, N>{ a, y, factor }, rows, cols);
            }
        };

        if (is_wide(&call->op))
            with(pack_of<T>());
        else
            with(pack_of_one());
    });
}

/* a + b -> y with a's dtype that of y, and packs of the shorter dtype. */
template <typename A, typename B>
static void add_launch(struct kernels *kernels, const struct kernel_call *call)
{
    const struct tensor *in = call->op.in, *y = &call->op.out[ADD_Y];
    rows_of<A> a = cuda_rows<A>(&in[ADD_A]), out = cuda_rows<A>(y);
    rows_of<B> b = cuda_rows<B>(&in[ADD_B]);
    int one_row = call->op.kind == OP_ADD_BIAS;
    enum { N = 16 / (sizeof(A) < sizeof(B) ? sizeof(A) : sizeof(B)) };

    if (is_wide(&call->op))
        cuda_elements(kernels, call, sum<A, B, N>{ a, b, out, one_row }, y->rows, y->cols);
    else
        cuda_elements(kernels, call, sum<A, B, 1>{ a, b, out, one_row }, y->rows, y->cols);
}

static void add_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    (void)first;
    cuda_with_act(call->op.in[ADD_B].dtype, [&](auto zero) {
        typedef decltype(zero) T;

        if (call->op.out[ADD_Y].dtype == DTYPE_F32)
            add_launch<float, T>(kernels, call);
        else
            add_launch<T, T>(kernels, call);
    });
}

static void add_bias_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    (void)first;
    cuda_with_act(call->op.out[ADD_BIAS_Y].dtype,
                  [&](auto zero) { add_launch<decltype(zero), float>(kernels, call); });
}

/* What comes first is taken as it is: as a reduction leaves it, a zero's sign included. */
template <typename T, int N>
static void accumulate_launch(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct tensor *out = &call->op.out[ACCUMULATE_Y];
    rows_of<T> x = cuda_rows<T>(&call->op.in[ACCUMULATE_X]), y = cuda_rows<T>(out);

    if (first)
        cuda_elements(kernels, call, moved<T, T, N>{ x, y, {}, 0 }, out->rows, out->cols);
    else
        cuda_elements(kernels, call, sum<T, T, N>{ y, x, y, 0 }, out->rows, out->cols);
}

static void accumulate_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    cuda_with_act(call->op.out[ACCUMULATE_Y].dtype, [&](auto zero) {
        typedef decltype(zero) T;

        if (is_wide(&call->op))
            accumulate_launch<T, 16 / sizeof(T)>(kernels, call, first & 1);
        else
            accumulate_launch<T, 1>(kernels, call, first & 1);
    });
}

template <typename X, typename Y>
static void move_launch(struct kernels *kernels, const struct kernel_call *call)
{
    const struct tensor *in = call->op.in, *out = &call->op.out[SELECT_ROWS_Y];
    rows_of<X> x = cuda_rows<X>(&in[SELECT_ROWS_X]);
    rows_of<Y> y = cuda_rows<Y>(out);
    rows_of<int32_t> index = cuda_rows<int32_t>(&in[SELECT_ROWS_INDEX]);
    enum { N = 16 / (sizeof(X) < sizeof(Y) ? sizeof(X) : sizeof(Y)) };

    if (is_wide(&call->op))
        cuda_elements(kernels, call, moved<X, Y, N>{ x, y, index, in[SELECT_ROWS_X].rows },
                      out->rows, out->cols);
    else
        cuda_elements(kernels, call, moved<X, Y, 1>{ x, y, index, in[SELECT_ROWS_X].rows },
                      out->rows, out->cols);
}

static void cast_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    (void)first;
    cuda_with_act(call->op.in[CAST_X].dtype, [&](auto from) {
        cuda_with_act(call->op.out[CAST_Y].dtype,
                      [&](auto to) { move_launch<decltype(from), decltype(to)>(kernels, call); });
    });
}

static void select_rows_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    (void)first;
    cuda_with_act(call->op.out[SELECT_ROWS_Y].dtype,
                  [&](auto zero) { move_launch<decltype(zero), decltype(zero)>(kernels, call); });
}

static void bias_grad_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    cuda_column_sums(kernels, call, &call->op.in[BIAS_GRAD_DY], &call->op.out[BIAS_GRAD_DB],
                     call->scratch, first & 1);
}

static void await_run(struct kernels *, const struct kernel_call *, int)
{
}

void cuda_register_elementwise(struct kernels_backend *table)
{
    table->entries[OP_SWIGLU].run = activation_run;
    table->entries[OP_SWIGLU_GRAD].run = activation_run;
    table->entries[OP_GELU].run = activation_run;
    table->entries[OP_GELU_GRAD].run = activation_run;
    table->entries[OP_SCALE].run = activation_run;
    table->entries[OP_ADD].run = add_run;
    table->entries[OP_ADD_BIAS].run = add_bias_run;
    table->entries[OP_CAST].run = cast_run;
    table->entries[OP_SELECT_ROWS].run = select_rows_run;
    table->entries[OP_ACCUMULATE].run = accumulate_run;
    table->entries[OP_BIAS_GRAD].run = bias_grad_run;
    table->entries[OP_AWAIT].run = await_run;
}
