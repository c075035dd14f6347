/*
 * rope.cu - rotary position embedding of heads (Su et al. 2021, eq. 34, in the halves' form); the
 * gradient is the rotation by the opposite angle
 *
 * A thread takes 16 bytes of a head's first half and the same of its second, for up to four heads
 * of one row that lie n_groups apart, so that it reads their angles once; neighbouring threads have
 * neighbouring packs of a half, then neighbouring heads. Bound by memory: heads read and written
 * once; the table's row is in the L1 after its first head.
 */
#include "cuda/rows.cuh"

enum { N_THREADS = 256, HEADS_A_THREAD = 4 };

template <typename T> struct rope {
    rows_of<T> in, out;
    rows_of<int32_t> position;
    rows_of<float> table;
    int64_t n_rows, table_rows;
    float sign; /* of the angle */
    int half, n_heads, n_groups;
};

template <int N>
static __device__ __forceinline__ void rotate(float *x, float *y, const float *cosine,
                                              const float *sine)
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        float a = x[i], b = y[i];

        x[i] = fmaf(a, cosine[i], -(b * sine[i]));
        y[i] = fmaf(b, cosine[i], a * sine[i]);
    }
}

template <typename T, int N> __global__ void __launch_bounds__(N_THREADS) rope_kernel(rope<T> r)
{
    int64_t task = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    int64_t row = task / r.n_groups;
    int group = (int)(task - row * r.n_groups), at = (int)threadIdx.x * N;
    raw_pack<T, N> first[HEADS_A_THREAD], second[HEADS_A_THREAD];
    float cosine[N], sine[N];

    if (row >= r.n_rows)
        return;
#pragma unroll
    for (int k = 0; k < HEADS_A_THREAD; k++)
        if (group + k * r.n_groups < r.n_heads) {
            const T *head = r.in.row(row) + (int64_t)(group + k * r.n_groups) * 2 * r.half + at;

            load_raw<T, N>(head, &first[k]);
            load_raw<T, N>(head + r.half, &second[k]);
        }

    int32_t position = *r.position.row(row);

    device_check(position < r.table_rows);
    /* No token: its angle doesn't matter, but must not be read from outside of the table. */
    const float *angles = r.table.row(position < 0 ? 0 : position) + at;

    load_floats<float, N>(angles, cosine);
    load_floats<float, N>(angles + r.half, sine);
#pragma unroll
    for (int i = 0; i < N; i++)
        sine[i] *= r.sign;
#pragma unroll
    for (int k = 0; k < HEADS_A_THREAD; k++) {
        int number = group + k * r.n_groups;

        if (number >= r.n_heads)
            return;
        T *head = r.out.row(row) + (int64_t)number * 2 * r.half + at;
        float x[N], y[N];

        floats_of<T, N>(first[k], x);
        floats_of<T, N>(second[k], y);
        rotate<N>(x, y, cosine, sine);
        store_floats<T, N>(head, x);
        store_floats<T, N>(head + r.half, y);
    }
}

template <typename T, int N>
static void launch(struct kernels *kernels, const struct kernel_call *call, const rope<T> &r)
{
    int width = r.half / N, slots = N_THREADS / width;
    struct cuda_shape shape = { dim3((unsigned)ceil_div(r.n_rows * r.n_groups, slots)),
                                dim3((unsigned)width, (unsigned)slots), 0 };

    cuda_launch(kernels, call, shape, rope_kernel<T, N>, r);
}

/* The gradient's operands have the forward's places. */
static void rope_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    const struct op_attributes *a = &op->attributes;

    (void)first;
    cuda_with_act(op->out[ROPE_OUT].dtype, [&](auto zero) {
        typedef decltype(zero) T;
        enum { N = 16 / sizeof(T) };
        rope<T> r = {};

        r.in = cuda_rows<T>(&op->in[ROPE_X]);
        r.out = cuda_rows<T>(&op->out[ROPE_OUT]);
        r.position = cuda_rows<int32_t>(&op->in[ROPE_POSITION]);
        r.table = cuda_rows<float>(&op->in[ROPE_TABLE]);
        r.n_rows = op->in[ROPE_X].rows;
        r.table_rows = op->in[ROPE_TABLE].rows;
        r.sign = op->kind == OP_ROPE ? 1.0f : -1.0f;
        r.half = a->head_dim / 2;
        r.n_heads = (int)(op->in[ROPE_X].cols / a->head_dim);
        r.n_groups = (int)ceil_div(r.n_heads, HEADS_A_THREAD);
        if (r.half % N == 0 && cuda_is_aligned(&op->in[ROPE_X], 16) &&
            cuda_is_aligned(&op->out[ROPE_OUT], 16) && cuda_is_aligned(&op->in[ROPE_TABLE], 16))
            launch<T, N>(kernels, call, r);
        else
            launch<T, 1>(kernels, call, r);
    });
}

void cuda_register_rope(struct kernels_backend *table)
{
    table->entries[OP_ROPE].run = rope_run;
    table->entries[OP_ROPE_GRAD].run = rope_run;
}
