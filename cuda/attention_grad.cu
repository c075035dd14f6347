/*
 * attention_grad.cu - the backward of attention, without atomics (after Dao 2023, section
 * 3.1.2)
 *
 * Three kernels, each of which writes what is its own, once:
 *
 *   delta   a warp a row and head: the sum of dout * out, kept in scratch
 *   dkv     a block is a tile of keys of one kv head, which its warps have as rows, and walks the
 *           head's query heads and the tiles of queries that see it: S' = K Q' and V dO' in
 *           registers become P' and dS', then dV += P' dO and dK += dS' Q
 *   dq      a block is a tile of queries, as in the forward: S and dO V', then dQ += dS K
 *
 * So scores are made twice and there are seven products for the usual five; in exchange sums have
 * one order, need no fp32 copy of dq in memory and neither P nor dS ever goes through shared
 * memory. Scores are made by the same products in the same order as in the forward, so P is its P.
 *
 * Heads wider than 128 do not leave room for both gradients: there a block of dkv has a half of
 * their columns.
 *
 * Over a part of the keys (attention_part_grad) the kernels are the same but for what dq begins with
 * and how gradients are stored; so are bits.
 */
#include "cuda/attention_dkv.cuh"
#include "cuda/attention_dq.cuh"

/* ---- delta ---- */

enum { DELTA_WARPS = 8 };

template <typename T>
__global__ void __launch_bounds__(DELTA_WARPS * 32)
    delta_kernel(attention_args a, grad_rows<T> rows, int64_t n_pairs)
{
    constexpr int EACH = 16 / (int)sizeof(T);
    int64_t pair = (int64_t)blockIdx.x * DELTA_WARPS + threadIdx.x / 32;
    int lane = (int)threadIdx.x % 32;
    float sum = 0;

    if (pair >= n_pairs)
        return;
    int64_t row = pair / a.n_heads, col = pair % a.n_heads * a.value_dim;
    const T *x = rows.dout.row(row) + col, *y = rows.out.row(row) + col;
    for (int i = lane * EACH; i < a.value_dim; i += 32 * EACH) {
        packed<T, EACH> u = {}, v = {};

        if (a.wide) {
            u = *(const packed<T, EACH> *)(x + i);
            v = *(const packed<T, EACH> *)(y + i);
        } else {
            for (int j = 0; j < EACH && i + j < a.value_dim; j++) {
                u.at[j] = x[i + j];
                v.at[j] = y[i + j];
            }
        }
        for (int j = 0; j < EACH; j++)
            sum = fmaf(to_float(u.at[j]), to_float(v.at[j]), sum);
    }
    sum = warp_sum(sum);
    if (!lane)
        rows.delta[pair] = sum;
}

/* ---- launching ---- */

/* dout and what follows it, in the order of attention_grad's inputs. */
static const struct tensor *grad_inputs(const struct op_shape *op)
{
    static_assert(ATTENTION_PART_GRAD_LSE - ATTENTION_PART_GRAD_DOUT == ATTENTION_GRAD_LSE,
                  "in one order");
    return op->kind == OP_ATTENTION_PART_GRAD ? &op->in[ATTENTION_PART_GRAD_DOUT]
                                              : &op->in[ATTENTION_GRAD_DOUT];
}

/* Of a part, dq is part_dq_kernel's, and what is fp32 of the others part_dkv_kernel's. */
template <typename T> static grad_rows<T> grad_rows_of(const struct kernel_call *call)
{
    const struct tensor *in = grad_inputs(&call->op), *out = call->op.out;

    return grad_rows<T>{
        cuda_rows<T>(&in[ATTENTION_GRAD_DOUT]),    cuda_rows<T>(&in[ATTENTION_GRAD_Q]),
        cuda_rows<T>(&in[ATTENTION_GRAD_K]),       cuda_rows<T>(&in[ATTENTION_GRAD_V]),
        cuda_rows<T>(&in[ATTENTION_GRAD_OUT]),     cuda_rows<T>(&out[ATTENTION_GRAD_DQ]),
        cuda_rows<T>(&out[ATTENTION_GRAD_DK]),     cuda_rows<T>(&out[ATTENTION_GRAD_DV]),
        cuda_rows<float>(&in[ATTENTION_GRAD_LSE]), (float *)call->scratch
    };
}

static struct attention_args grad_args_of(const struct op_shape *op)
{
    const struct tensor *in = grad_inputs(op);
    struct attention_args a = op->kind == OP_ATTENTION_PART_GRAD
                                  ? attention_ranges_of(op, ATTENTION_PART_GRAD_FIRST)
                                  : attention_args_of(op, ATTENTION_GRAD_HEAD_OFFSET);

    a.wide = 1;
    for (int i = ATTENTION_GRAD_DOUT; i <= ATTENTION_GRAD_OUT; i++)
        a.wide = a.wide && attention_is_wide(&in[i], i == ATTENTION_GRAD_K || i == ATTENTION_GRAD_V
                                                         ? a.n_kv_heads
                                                         : a.n_heads);
    for (int i = ATTENTION_GRAD_DQ; i <= ATTENTION_GRAD_DV; i++)
        a.wide = a.wide &&
                 attention_is_wide(&op->out[i], i == ATTENTION_GRAD_DQ ? a.n_heads : a.n_kv_heads);
    return a;
}

template <typename T>
static void delta_launch(struct kernels *kernels, const struct kernel_call *call, size_t *shared)
{
    int64_t n_pairs = attention_queries(&call->op)->rows * call->op.attributes.n_heads;

    attention_launch(kernels, call, shared,
                     cuda_shape_of(ceil_div(n_pairs, DELTA_WARPS), DELTA_WARPS * 32),
                     delta_kernel<T>, grad_args_of(&call->op), grad_rows_of<T>(call), n_pairs);
}

template <typename T, int WIDTH, int DROPS>
static void grad_launch(struct kernels *kernels, const struct kernel_call *call, size_t *shared)
{
    const struct op_shape *op = &call->op;
    int64_t n_sequences = op->in[ATTENTION_GRAD_Q].rows / op->attributes.seq_len;
    struct attention_args a = grad_args_of(op);
    grad_rows<T> rows = grad_rows_of<T>(call);

    delta_launch<T>(kernels, call, shared);
    with_size<WIDTH, dkv_shape<T, WIDTH, 0>::SHARED_BYTES>(kernels, [&](auto small) {
        enum { SMALL = decltype(small)::VALUE };
        typedef dkv_shape<T, WIDTH, SMALL> dkv;

        a.n_tiles = (int)ceil_div(a.key_len, dkv::KEYS);
        attention_launch(kernels, call, shared,
                         cuda_shape_of(n_sequences * a.n_tiles * a.n_kv_heads * dkv::N_PARTS,
                                       dkv::N_THREADS, dkv::SHARED_BYTES),
                         dkv_kernel<T, WIDTH, DROPS, SMALL>, a, rows);
    });
    with_size<WIDTH, dq_shape<T, WIDTH, DROPS, 0>::SHARED_BYTES>(kernels, [&](auto small) {
        enum { SMALL = decltype(small)::VALUE };
        typedef dq_shape<T, WIDTH, DROPS, SMALL> dq;

        a.n_tiles = (int)ceil_div(a.seq_len, dq::QUERIES);
        attention_launch(
            kernels, call, shared,
            cuda_shape_of(n_sequences * a.n_tiles * a.n_heads, dq::N_THREADS, dq::SHARED_BYTES),
            dq_kernel<T, WIDTH, DROPS, SMALL>, a, rows);
    });
}

template <typename T, int WIDTH>
static void part_grad_launch(struct kernels *kernels, const struct kernel_call *call,
                             size_t *shared)
{
    const struct op_shape *op = &call->op;
    int64_t n_sequences = op->in[ATTENTION_PART_GRAD_Q].rows / op->attributes.seq_len;
    struct attention_args a = grad_args_of(op);
    grad_rows<T> rows = grad_rows_of<T>(call);
    rows_of<float> dk = cuda_rows<float>(&op->out[ATTENTION_PART_GRAD_DK]);
    rows_of<float> dv = cuda_rows<float>(&op->out[ATTENTION_PART_GRAD_DV]);

    delta_launch<T>(kernels, call, shared);
    with_size<WIDTH, dkv_shape<T, WIDTH, 0>::SHARED_BYTES>(kernels, [&](auto small) {
        enum { SMALL = decltype(small)::VALUE };
        typedef dkv_shape<T, WIDTH, SMALL> dkv;

        a.n_tiles = (int)ceil_div(a.key_len, dkv::KEYS);
        struct cuda_shape shape =
            cuda_shape_of(n_sequences * a.n_tiles * a.n_kv_heads * dkv::N_PARTS, dkv::N_THREADS,
                          dkv::SHARED_BYTES);

        if (op->out[ATTENTION_PART_GRAD_DK].dtype == op->in[ATTENTION_PART_GRAD_K].dtype)
            attention_launch(kernels, call, shared, shape, dkv_kernel<T, WIDTH, 0, SMALL>, a, rows);
        else
            attention_launch(kernels, call, shared, shape, part_dkv_kernel<T, WIDTH, SMALL>, a,
                             rows, dk, dv);
    });
    with_size<WIDTH, dq_shape<T, WIDTH, 1, 0>::SHARED_BYTES>(kernels, [&](auto small) {
        enum { SMALL = decltype(small)::VALUE };
        typedef dq_shape<T, WIDTH, 1, SMALL> dq;

        a.n_tiles = (int)ceil_div(a.seq_len, dq::QUERIES);
        attention_launch(
            kernels, call, shared,
            cuda_shape_of(n_sequences * a.n_tiles * a.n_heads, dq::N_THREADS, dq::SHARED_BYTES),
            part_dq_kernel<T, WIDTH, SMALL>, a, rows,
            cuda_rows<float>(&op->in[ATTENTION_PART_GRAD_SUM]),
            cuda_rows<float>(&op->out[ATTENTION_PART_GRAD_DQ]));
    });
}

static void grad(struct kernels *kernels, const struct kernel_call *call, size_t *shared)
{
    const struct op_attributes *at = &call->op.attributes;

    cuda_with_act(attention_queries(&call->op)->dtype, [&](auto zero) {
        typedef decltype(zero) T;

        attention_with_width(&call->op, [&](auto width) {
            if (call->op.kind == OP_ATTENTION_PART_GRAD)
                part_grad_launch<T, decltype(width)::VALUE>(kernels, call, shared);
            else if (at->p > 0)
                grad_launch<T, decltype(width)::VALUE, 1>(kernels, call, shared);
            else
                grad_launch<T, decltype(width)::VALUE, 0>(kernels, call, shared);
        });
    });
}

static void attention_grad_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    (void)first;
    if (call->state)
        cudnn_attention_run(cuda_of(kernels), call, (struct cudnn_attention *)call->state);
    else
        grad(kernels, call, NULL);
}

static int attention_grad_prepare(struct kernels *kernels, struct kernel_call *call,
                                  struct err *err)
{
    int is_taken = attention_prepare_cudnn(kernels, call, err);
    size_t shared = 0;

    if (is_taken)
        return is_taken < 0 ? -1 : 0;
    grad(kernels, call, &shared);
    return cuda_want_shared(kernels, call, shared, err);
}

static void part_grad_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    (void)first;
    grad(kernels, call, NULL);
}

static int part_grad_prepare(struct kernels *kernels, struct kernel_call *call, struct err *err)
{
    size_t shared = 0;

    grad(kernels, call, &shared);
    return cuda_want_shared(kernels, call, shared, err);
}

void cuda_register_attention_grad(struct kernels_backend *table)
{
    struct kernel_entry *entry = &table->entries[OP_ATTENTION_GRAD];

    entry->run = attention_grad_run;
    entry->prepare = attention_grad_prepare;
    entry->release = attention_release_cudnn;
    entry = &table->entries[OP_ATTENTION_PART_GRAD];
    entry->run = part_grad_run;
    entry->prepare = part_grad_prepare;
}
