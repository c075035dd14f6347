/*
 * expert_linear.cu - expert_linear, expert_linear_dx, expert_linear_dw: a product for each expert
 *
 * Forward and dx: tiles of each expert's rows (expert_slots.cuh). dw: each expert has all tiles of
 * its gradient, its rows are the sum's k.
 *
 * Bound by the multipliers (gemm_own.cuh) where experts have a hundred rows and more each, by
 * reading w below. Blocks that run together share operands in the L2: they are of one expert, and
 * of at most BAND tiles of columns.
 */
#include "cuda/expert_slots.cuh"

enum {
    BAND = 16,
    MANY_TILES = 128 /* of 256 columns: enough to fill a GPU; of fewer, smaller ones fill more */
};

template <typename T, typename O> struct experts {
    const T *rows, *other; /* x or dy; w, or x of dw */
    O *out;
    int64_t ld_rows, ld_other, ld_out;
    const int32_t *ends;
    int n_experts;
    int64_t n_rows, n_cols; /* of the result: of all experts; of dw, of one */
    int k;                  /* not of dw */
    int64_t other_rows;     /* of w, an expert's */
    int n_slots, n_bands, band;
    int first;
    int begin, end; /* of the experts, those that have rows; not of dw */
};

/* ---- tiles -------------------------------------------------------------------------------------
 */

template <typename T, int BN, int B_BY_K, int WIDE>
__global__ void __launch_bounds__(BN) expert_rows_kernel(experts<T, T> p)
{
    CUDA_SHARED(T, shared);
    int in_band = (int)(blockIdx.x % (unsigned)p.band), rest = (int)(blockIdx.x / (unsigned)p.band);
    int slot = rest % p.n_slots, band = rest / p.n_slots;
    int64_t col = (int64_t)(band * p.band + in_band) * BN;
    int expert = find_expert(p.ends, p.n_experts, slot);
    int64_t row = begin_of(p.ends, expert) + (int64_t)(slot - slot_of(p.ends, expert)) * OWN_ROWS;
    int end = p.ends[expert];

    if (col >= p.n_cols || row >= end || expert < p.begin || expert >= p.end)
        return;
    const T *w = p.other + expert * p.other_rows * p.ld_other;
    own_tile<T> tile = { p.rows + row * p.ld_rows,
                         B_BY_K ? w + col * p.ld_other : w + col,
                         p.ld_rows,
                         p.ld_other,
                         p.k,
                         (int)(end - row),
                         (int)(p.n_cols - col) };
    own_out<T> out = { p.out + row * p.ld_out + col, NULL, p.ld_out, 0 };

    own_run<T, T, BN, 1, B_BY_K, WIDE>(tile, out, shared);
}

template <typename T, int BN, int WIDE>
__global__ void __launch_bounds__(BN) expert_dw_kernel(experts<T, float> p)
{
    CUDA_SHARED(T, shared);
    int n_row_tiles = (int)((p.n_rows + OWN_ROWS - 1) / OWN_ROWS);
    int n_col_tiles = (int)((p.n_cols + BN - 1) / BN);
    int64_t tile = blockIdx.x;
    int expert = (int)(tile / ((int64_t)n_row_tiles * n_col_tiles));
    int64_t col = tile % n_col_tiles * BN, row = tile / n_col_tiles % n_row_tiles * OWN_ROWS;
    int begin = begin_of(p.ends, expert), end = p.ends[expert];

    if (begin == end && !p.first)
        return;
    float *dw = p.out + (expert * p.n_rows + row) * p.ld_out + col;
    own_tile<T> operands = { p.rows + begin * p.ld_rows + row,
                             p.other + begin * p.ld_other + col,
                             p.ld_rows,
                             p.ld_other,
                             end - begin,
                             (int)(p.n_rows - row),
                             (int)(p.n_cols - col) };
    own_out<float> out = { dw, p.first ? NULL : dw, p.ld_out, p.ld_out };

    own_run<T, float, BN, 0, 0, WIDE>(operands, out, shared);
}

/* ---- launches ----------------------------------------------------------------------------------
 */

template <typename T, int BN, typename P>
static void launch(struct kernels *kernels, const struct kernel_call *call, int64_t n_blocks,
                   void (*kernel)(P), const P &p)
{
    size_t bytes = own_shared_bytes<T, BN>();

    CHECK(n_blocks <= INT32_MAX);
    cuda_launch(kernels, call, cuda_shape_of(n_blocks, BN, bytes), kernel, p);
}

template <typename T, int BN, int WIDE>
static void launch_rows(struct kernels *kernels, const struct kernel_call *call, experts<T, T> p)
{
    int n_tiles = (int)ceil_div(p.n_cols, BN);

    p.n_bands = (int)ceil_div(n_tiles, BAND);
    p.band = (int)ceil_div(n_tiles, p.n_bands);
    launch<T, BN>(kernels, call, (int64_t)p.n_slots * p.n_bands * p.band,
                  call->op.kind == OP_EXPERT_LINEAR ? expert_rows_kernel<T, BN, 1, WIDE>
                                                    : expert_rows_kernel<T, BN, 0, WIDE>,
                  p);
}

template <typename T, int BN, int WIDE>
static void launch_dw(struct kernels *kernels, const struct kernel_call *call, experts<T, float> p)
{
    launch<T, BN>(kernels, call,
                  p.n_experts * ceil_div(p.n_rows, OWN_ROWS) * ceil_div(p.n_cols, BN),
                  expert_dw_kernel<T, BN, WIDE>, p);
}

/* Tiles of 256 columns read a quarter less: where a block may have their shared memory, they are
 * not too few, and do not reach over the edge by more than an eighth of the columns. The bits are
 * the same. */
static int wants_wide_tiles(struct kernels *kernels, int64_t n_row_tiles, int64_t n_cols)
{
    int64_t n_tiles = ceil_div(n_cols, 256);

    return own_shared_bytes<bf16, 256>() <= cuda_shared_bytes_max(kernels) &&
           n_row_tiles * n_tiles >= MANY_TILES && 8 * 256 * n_tiles <= 9 * n_cols;
}

/* Whether all operands can be read 16 bytes at a time. */
static int is_wide(const struct op_shape *op)
{
    int is_dw = op->kind == OP_EXPERT_LINEAR_DW;
    const struct tensor *other = is_dw ? &op->in[EXPERT_LINEAR_DW_X] : &op->in[EXPERT_LINEAR_W];

    return cuda_is_aligned(&op->in[EXPERT_LINEAR_X], 16) &&
           cuda_is_aligned(&op->out[EXPERT_LINEAR_Y], 16) && cuda_is_aligned(other, 16);
}

template <typename T> static void run_rows(struct kernels *kernels, const struct kernel_call *call)
{
    const struct tensor *in = call->op.in, *y = &call->op.out[EXPERT_LINEAR_Y];
    experts<T, T> p = {};

    p.rows = (const T *)in[EXPERT_LINEAR_X].data;
    p.other = (const T *)in[EXPERT_LINEAR_W].data;
    p.out = (T *)y->data;
    p.ld_rows = in[EXPERT_LINEAR_X].stride;
    p.ld_other = in[EXPERT_LINEAR_W].stride;
    p.ld_out = y->stride;
    p.ends = (const int32_t *)in[EXPERT_LINEAR_ENDS].data;
    p.n_experts = (int)in[EXPERT_LINEAR_ENDS].cols;
    p.begin = (int)call->op.attributes.first;
    p.end = call->op.attributes.experts ? p.begin + call->op.attributes.experts : p.n_experts;
    p.n_rows = y->rows;
    p.n_cols = y->cols;
    p.k = (int)in[EXPERT_LINEAR_X].cols;
    p.other_rows = in[EXPERT_LINEAR_W].rows / p.n_experts;
    p.n_slots = n_expert_slots(p.n_rows, p.n_experts);
    if constexpr (sizeof(T) == 2)
        if (is_wide(&call->op) && wants_wide_tiles(kernels, p.n_slots, p.n_cols)) {
            launch_rows<T, 256, 1>(kernels, call, p);
            return;
        }
    if (is_wide(&call->op))
        launch_rows<T, 128, 1>(kernels, call, p);
    else
        launch_rows<T, 128, 0>(kernels, call, p);
}

template <typename T>
static void run_dw(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct tensor *in = call->op.in, *dw = &call->op.out[EXPERT_LINEAR_DW_DW];
    experts<T, float> p = {};

    p.rows = (const T *)in[EXPERT_LINEAR_DW_DY].data;
    p.other = (const T *)in[EXPERT_LINEAR_DW_X].data;
    p.out = (float *)dw->data;
    p.ld_rows = in[EXPERT_LINEAR_DW_DY].stride;
    p.ld_other = in[EXPERT_LINEAR_DW_X].stride;
    p.ld_out = dw->stride;
    p.ends = (const int32_t *)in[EXPERT_LINEAR_DW_ENDS].data;
    p.n_experts = (int)in[EXPERT_LINEAR_DW_ENDS].cols;
    p.n_rows = in[EXPERT_LINEAR_DW_DY].cols;
    p.n_cols = dw->cols;
    p.first = first;
    if constexpr (sizeof(T) == 2)
        if (is_wide(&call->op) &&
            wants_wide_tiles(kernels, p.n_experts * ceil_div(p.n_rows, OWN_ROWS), p.n_cols)) {
            launch_dw<T, 256, 1>(kernels, call, p);
            return;
        }
    if (is_wide(&call->op))
        launch_dw<T, 128, 1>(kernels, call, p);
    else
        launch_dw<T, 128, 0>(kernels, call, p);
}

static void expert_linear_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    cuda_with_act(call->op.in[EXPERT_LINEAR_X].dtype, [&](auto zero) {
        typedef decltype(zero) T;

        if (call->op.kind == OP_EXPERT_LINEAR_DW)
            run_dw<T>(kernels, call, first);
        else
            run_rows<T>(kernels, call);
    });
}

static int expert_dw_prepare(struct kernels *, struct kernel_call *call, struct err *err)
{
    return cuda_want_fp32(call, 0, err);
}

void cuda_register_expert_linear(struct kernels_backend *table)
{
    table->entries[OP_EXPERT_LINEAR].run = expert_linear_run;
    table->entries[OP_EXPERT_LINEAR_DX].run = expert_linear_run;
    table->entries[OP_EXPERT_LINEAR_DW].run = expert_linear_run;
    table->entries[OP_EXPERT_LINEAR_DW].prepare = expert_dw_prepare;
}
