/*
 * embed.cu - looking up rows of a table, and the gradient of that
 *
 * The forward's work lies as elements.cuh says; it is bound by memory.
 *
 * The gradient adds rows of equal tokens in token order, one chain of adds for each table's row and
 * column, as the CPU does: equal bits. Tokens are sorted by their row (embed_sort.cu). Then a warp
 * looks at WINDOW sorted places and takes the rows whose first token is there, for 128 columns:
 * sixteen tokens' loads are in flight at a time, as a frequent token's chain is long and only its
 * columns go side by side. Bound by reading dx once and the accumulator's named rows twice; where
 * it is `first`, rows that nobody names are zeroed besides, and most of a large table's are.
 */
#include "cuda/elements.cuh"
#include "cuda/embed.cuh"

enum {
    N_THREADS = 128,
    WINDOW = 8,     /* sorted places of a warp */
    IN_FLIGHT = 16, /* tokens; divides 32 */
};

/* ---- forward ---- */

/* T: of the table, R: of the residual stream */
template <typename T, typename R, int PACK> struct embedded {
    enum { N = PACK };
    struct operands {
        raw_pack<T, N> entry;
        raw_pack<R, N> base;
        int32_t index;
    };
    struct table_rows rows;
    rows_of<T> table;
    rows_of<R> base, x;

    __device__ __forceinline__ void load(operands *o, int64_t row, int64_t col) const
    {
        o->index = table_row(rows, row);
        if (base.at)
            load_raw<R, N>(base.row(row) + col, &o->base);
        if (o->index != NO_ROW)
            load_raw<T, N>(table.row(o->index) + col, &o->entry);
    }
    __device__ __forceinline__ void store(operands *o, int64_t row, int64_t col) const
    {
        float own[N] = {}, under[N] = {};

        if (o->index != NO_ROW)
            floats_of<T, N>(o->entry, own);
        if (base.at)
            floats_of<R, N>(o->base, under);
#pragma unroll
        for (int i = 0; i < N; i++)
            if (base.at)
                own[i] = o->index == NO_ROW ? under[i] : under[i] + own[i];
        store_floats<R, N>(x.row(row) + col, own);
    }
};

static struct table_rows table_rows_of(const struct tensor *index, const struct tensor *begin,
                                       int64_t n_rows)
{
    return (struct table_rows){ cuda_rows<int32_t>(index), cuda_rows<int32_t>(begin).at, n_rows };
}

template <typename T, typename R, int N>
static void embed_launch(struct kernels *kernels, const struct kernel_call *call)
{
    const struct op_shape *op = &call->op;
    const struct tensor *x = &op->out[EMBED_X];
    embedded<T, R, N> e = {
        table_rows_of(&op->in[EMBED_INDEX], &op->in[EMBED_OFFSET], op->in[EMBED_TABLE].rows),
        cuda_rows<T>(&op->in[EMBED_TABLE]), cuda_rows<R>(&op->in[EMBED_BASE]), cuda_rows<R>(x)
    };

    cuda_elements(kernels, call, e, x->rows, x->cols);
}

static void embed_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    int wide = cuda_is_aligned(&op->in[EMBED_TABLE], 16) &&
               cuda_is_aligned(&op->in[EMBED_BASE], 16) && cuda_is_aligned(&op->out[EMBED_X], 16);

    (void)first;
    cuda_with_act_and_res(op->in[EMBED_TABLE].dtype, op->out[EMBED_X].dtype,
                          [&](auto zero, auto res) {
                              typedef decltype(zero) T;
                              typedef decltype(res) R;

                              if (wide)
                                  embed_launch<T, R, 16 / sizeof(T)>(kernels, call);
                              else
                                  embed_launch<T, R, 1>(kernels, call);
                          });
}

/* ---- gradient ---- */

/* O: of the accumulator; R: of the residual stream's gradient. */
template <typename O, typename R> struct embed_dw {
    rows_of<R> dx;
    rows_of<O> out;
    struct sorted_tokens sorted;
    int64_t n_tokens, n_rows, d;
    int first;
};

/* 32 sorted places, one a lane; what lies behind the last has no row. */
struct places {
    uint32_t row;
    int32_t token;
};

template <typename O, typename R>
static __device__ __forceinline__ struct places places_at(const embed_dw<O, R> &e, int64_t begin)
{
    int64_t mine = begin + threadIdx.x % 32;
    struct places p = { (uint32_t)e.n_rows, 0 };

    if (mine < e.n_tokens) {
        p.row = e.sorted.row[mine];
        p.token = e.sorted.token[mine];
    }
    return p;
}

/* Add dx's rows of n tokens, lane `from`'s and those of the lanes behind it, at a lane's
 * columns. */
template <typename O, typename R, int N>
static __device__ __forceinline__ void add_tokens(const embed_dw<O, R> &e, int32_t token, int from,
                                                  int n, int64_t col, int starts, float (&sum)[N])
{
    for (int begin = 0; begin < n; begin += IN_FLIGHT) {
        float x[IN_FLIGHT][N];

#pragma unroll
        for (int k = 0; k < IN_FLIGHT; k++) {
            int32_t own = __shfl_sync(0xffffffffu, token, from + begin + k);

            if (begin + k < n && col < e.d)
                load_floats<R, N>(e.dx.row(own) + col, x[k]);
        }
#pragma unroll
        for (int k = 0; k < IN_FLIGHT; k++)
            if (begin + k < n && col < e.d)
#pragma unroll
                for (int i = 0; i < N; i++)
                    sum[i] = starts && begin + k == 0 ? x[k][i] : sum[i] + x[k][i];
    }
}

/* All lanes of a warp go along, also those behind the last column: the tokens are told by them. */
template <typename O, typename R, int N>
__global__ void __launch_bounds__(N_THREADS) embed_dw_kernel(embed_dw<O, R> e)
{
    int64_t begin = ((int64_t)blockIdx.x * N_THREADS + threadIdx.x) / 32 * WINDOW;
    int lane = (int)threadIdx.x % 32;
    int64_t col = ((int64_t)blockIdx.y * 32 + lane) * N;
    struct places here = places_at(e, begin);
    uint32_t before = __shfl_up_sync(0xffffffffu, here.row, 1);
    int starts = lane < WINDOW && here.row < e.n_rows;

    if (starts && !lane && begin)
        before = e.sorted.row[begin - 1];
    starts = starts && (begin + lane == 0 || here.row != before);
    for (unsigned left = __ballot_sync(0xffffffffu, starts); left; left &= left - 1) {
        int from = __ffs((int)left) - 1;
        uint32_t row = __shfl_sync(0xffffffffu, here.row, from);
        unsigned equal = __ballot_sync(0xffffffffu, here.row == row);
        float sum[N] = {}, old[N] = {};
        O *out = e.out.row(row) + col;

        if (!e.first && col < e.d)
            load_floats<O, N>(out, old);
        add_tokens<O, R, N>(e, here.token, from, __popc(equal), col, 1, sum);
        for (int64_t next = begin + 32; equal >> 31; next += 32) {
            struct places more = places_at(e, next);

            equal = __ballot_sync(0xffffffffu, more.row == row);
            add_tokens<O, R, N>(e, more.token, 0, __popc(equal), col, 0, sum);
        }
#pragma unroll
        for (int i = 0; i < N; i++)
            sum[i] = e.first ? sum[i] : old[i] + sum[i];
        if (col < e.d)
            store_floats<O, N>(out, sum);
    }
}

/* Rows that no token names; the others are about to be written whole. */
template <typename O, int PACK> struct zeroed {
    enum { N = PACK };
    struct operands {
        int named;
    };
    rows_of<O> out;
    const uint8_t *named;

    __device__ __forceinline__ void load(operands *o, int64_t row, int64_t) const
    {
        o->named = named[row];
    }
    __device__ __forceinline__ void store(operands *o, int64_t row, int64_t col) const
    {
        const float zeros[N] = {};

        if (!o->named)
            store_floats<O, N>(out.row(row) + col, zeros);
    }
};

template <typename O, typename R, int N>
static void embed_dw_launch(struct kernels *kernels, const struct kernel_call *call,
                            const embed_dw<O, R> &e)
{
    struct cuda_shape shape =
        cuda_shape_of_rows(ceil_div(e.n_tokens, WINDOW * (N_THREADS / 32)), e.d, 32, N);

    if (e.first)
        cuda_elements(kernels, call, zeroed<O, N>{ e.out, e.sorted.named }, e.n_rows, e.d);
    shape.block = dim3(N_THREADS);
    cuda_launch(kernels, call, shape, embed_dw_kernel<O, R, N>, e);
}

template <typename O, typename R>
static void embed_dw_as(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_shape *op = &call->op;
    embed_dw<O, R> e = {};

    e.dx = cuda_rows<R>(&op->in[EMBED_DW_DX]);
    e.out = cuda_rows<O>(&op->out[EMBED_DW_DTABLE]);
    e.n_tokens = op->in[EMBED_DW_DX].rows;
    e.n_rows = op->out[EMBED_DW_DTABLE].rows;
    e.d = op->in[EMBED_DW_DX].cols;
    e.first = first & 1;
    e.sorted = cuda_sort_tokens(kernels, call,
                                table_rows_of(&op->in[EMBED_DW_INDEX], &op->in[EMBED_DW_OFFSET],
                                              op->out[EMBED_DW_DTABLE].rows),
                                e.n_tokens, call->scratch);
    if (cuda_is_aligned(&op->in[EMBED_DW_DX], 16) && cuda_is_aligned(&op->out[EMBED_DW_DTABLE], 16))
        embed_dw_launch<O, R, 4>(kernels, call, e);
    else
        embed_dw_launch<O, R, 1>(kernels, call, e);
}

static void embed_dw_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    int bf16_table = call->op.out[EMBED_DW_DTABLE].dtype == DTYPE_BF16;

    if (call->op.in[EMBED_DW_DX].dtype == DTYPE_BF16)
        bf16_table ? embed_dw_as<bf16, bf16>(kernels, call, first)
                   : embed_dw_as<float, bf16>(kernels, call, first);
    else
        bf16_table ? embed_dw_as<bf16, float>(kernels, call, first)
                   : embed_dw_as<float, float>(kernels, call, first);
}

void cuda_register_embed(struct kernels_backend *table)
{
    table->entries[OP_EMBED].run = embed_run;
    table->entries[OP_EMBED_DW].run = embed_dw_run;
}
