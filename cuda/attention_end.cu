/*
 * attention_end.cu - what is left when all parts of the keys have been attended to: outputs by their
 * sums, and dq times the scale
 *
 * A thread has an element, neighbouring threads neighbouring ones of a row. Bound by memory.
 */
#include "cuda/attention.cuh"

enum { END_THREADS = 256 };

template <typename T> struct end_rows {
    rows_of<float> state, lse; /* state: of dq its sums */
    rows_of<T> out;
    int64_t n_elements; /* of out */
    int n_heads, value_dim;
    float scale;
};

template <typename T> __global__ void __launch_bounds__(END_THREADS) end_kernel(end_rows<T> rows)
{
    int64_t i = (int64_t)blockIdx.x * END_THREADS + threadIdx.x, n_cols = rows.n_heads;

    n_cols *= rows.value_dim;
    if (i >= rows.n_elements)
        return;
    int64_t row = i / n_cols, col = i % n_cols, head = col / rows.value_dim;
    const float *state = rows.state.row(row);
    float max = state[n_cols + head], sum = state[n_cols + rows.n_heads + head];

    rows.out.row(row)[col] = from_float<T>(state[col] * (sum > 0 ? 1.0f / sum : 0.0f));
    if (col % rows.value_dim == 0)
        rows.lse.row(row)[head] = sum > 0 ? max + logf(sum) : CUDART_INF_F;
}

template <typename T>
__global__ void __launch_bounds__(END_THREADS) dq_end_kernel(end_rows<T> rows, int64_t n_cols)
{
    int64_t i = (int64_t)blockIdx.x * END_THREADS + threadIdx.x;

    if (i < rows.n_elements)
        rows.out.row(i / n_cols)[i % n_cols] =
            from_float<T>(rows.state.row(i / n_cols)[i % n_cols] * rows.scale);
}

static void end_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    const struct tensor *out = &op->out[OPS_FIRST];
    int64_t n_elements = out->rows * out->cols;
    struct cuda_shape shape = cuda_shape_of(ceil_div(n_elements, END_THREADS), END_THREADS);

    (void)first;
    cuda_with_act(out->dtype, [&](auto zero) {
        typedef decltype(zero) T;
        end_rows<T> rows = {};

        rows.state = cuda_rows<float>(&op->in[OPS_FIRST]);
        rows.out = cuda_rows<T>(out);
        rows.n_elements = n_elements;
        rows.scale = (float)op->attributes.scale;
        if (op->kind == OP_ATTENTION_DQ_END) {
            cuda_launch(kernels, call, shape, dq_end_kernel<T>, rows, out->cols);
            return;
        }
        rows.lse = cuda_rows<float>(&op->out[ATTENTION_END_LSE]);
        rows.n_heads = op->attributes.n_heads;
        rows.value_dim = (int)(out->cols / rows.n_heads);
        cuda_launch(kernels, call, shape, end_kernel<T>, rows);
    });
}

void cuda_register_attention_end(struct kernels_backend *table)
{
    table->entries[OP_ATTENTION_END].run = end_run;
    table->entries[OP_ATTENTION_DQ_END].run = end_run;
}
