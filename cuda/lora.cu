/*
 * lora.cu - lora, expert_lora: low-rank adapters' products added to what they adapt
 *
 * One kernel for all parts: a block has OWN_ROWS x 128 of one part of out, and multiplies h b'
 * there (gemm_own.cuh) with y as the addend, so y is read and out written once and nothing comes
 * between. Bound by memory, ranks being small. Blocks that follow one another are of the same rows:
 * they share h. A part without adapters is copied. Of experts' rows blocks have a slot's
 * (expert_slots.cuh), with the b of its expert.
 */
#include "cuda/expert_slots.cuh"

enum { COLS = 128 };

template <typename T> struct lora_part {
    const T *h, *b; /* or none */
    int64_t ld_h, ld_b;
    int k;
    int64_t col, n; /* in y and out */
    int tile;       /* the first of its tiles of columns */
};

template <typename T> struct lora {
    const T *y;
    T *out;
    int64_t ld_y, ld_out, n_rows;
    int n_tiles;         /* of columns */
    const int32_t *ends; /* expert_lora's */
    int n_experts;
    lora_part<T> parts[OPS_LORA_PARTS];
};

/* What own_put would write of a product that is zero, but for the sign of a zero. */
template <typename T, int WIDE>
static __device__ __forceinline__ void copy_tile(const own_tile<T> &t, const own_out<T> &out)
{
    enum { N = WIDE ? 16 / sizeof(T) : 1, PACKS = COLS / N };
    int rows = min(t.rows, (int)OWN_ROWS), cols = min(t.cols, (int)COLS);

#pragma unroll 4
    for (int i = (int)threadIdx.x; i < rows * PACKS; i += COLS) {
        int64_t row = i / PACKS, col = i % PACKS * N;

        if (col < cols)
            *(packed<T, N> *)(out.c + row * out.ldc + col) =
                *(const packed<T, N> *)(out.add + row * out.ld_add + col);
    }
}

/* Rows [row, end) and the tile's columns, with the expert's b. */
template <typename T, int WIDE>
static __device__ __forceinline__ void lora_tile(const lora<T> &p, int tile, int64_t row,
                                                 int64_t end, int expert, T *shared)
{
    int part = 0;

    for (int i = 1; i < OPS_LORA_PARTS; i++)
        if (p.parts[i].n && tile >= p.parts[i].tile)
            part = i;
    const lora_part<T> &at = p.parts[part];
    int64_t col = (int64_t)(tile - at.tile) * COLS, whole = at.col + col;
    own_tile<T> operands = { at.h + row * at.ld_h,
                             at.b + (expert * at.n + col) * at.ld_b,
                             at.ld_h,
                             at.ld_b,
                             at.k,
                             (int)(end - row),
                             (int)(at.n - col) };
    own_out<T> out = { p.out + row * p.ld_out + whole, p.y + row * p.ld_y + whole, p.ld_out,
                       p.ld_y };

    if (at.k)
        own_run<T, T, COLS, 1, 1, WIDE>(operands, out, shared);
    else
        copy_tile<T, WIDE>(operands, out);
}

template <typename T, int WIDE> __global__ void __launch_bounds__(COLS) lora_kernel(lora<T> p)
{
    CUDA_SHARED(T, shared);
    int tile = (int)(blockIdx.x % (unsigned)p.n_tiles);
    int64_t row = (int64_t)(blockIdx.x / (unsigned)p.n_tiles) * OWN_ROWS;

    lora_tile<T, WIDE>(p, tile, row, p.n_rows, 0, shared);
}

template <typename T, int WIDE>
__global__ void __launch_bounds__(COLS) expert_lora_kernel(lora<T> p)
{
    CUDA_SHARED(T, shared);
    int tile = (int)(blockIdx.x % (unsigned)p.n_tiles);
    int slot = (int)(blockIdx.x / (unsigned)p.n_tiles);
    int expert = find_expert(p.ends, p.n_experts, slot);
    int64_t row = begin_of(p.ends, expert) + (int64_t)(slot - slot_of(p.ends, expert)) * OWN_ROWS;
    int end = p.ends[expert];

    if (row < end)
        lora_tile<T, WIDE>(p, tile, row, end, expert, shared);
}

template <typename T, int WIDE>
static void launch(struct kernels *kernels, const struct kernel_call *call, const lora<T> &p)
{
    size_t bytes = own_shared_bytes<T, COLS>();
    int64_t n = p.ends ? n_expert_slots(p.n_rows, p.n_experts) : ceil_div(p.n_rows, OWN_ROWS);

    CHECK(n * p.n_tiles <= INT32_MAX);
    cuda_launch(kernels, call, cuda_shape_of(n * p.n_tiles, COLS, bytes),
                p.ends ? expert_lora_kernel<T, WIDE> : lora_kernel<T, WIDE>, p);
}

/* Pairs of h and b begin with this input. */
static int first_pair(const struct op_shape *op)
{
    return op->kind == OP_EXPERT_LORA ? (int)EXPERT_LORA_H0 : (int)LORA_H0;
}

/* Whether all parts of all operands can be read 16 bytes at a time. */
static int is_wide(const struct op_shape *op)
{
    int wide = cuda_is_aligned(&op->out[LORA_OUT], 16) && cuda_is_aligned(&op->in[LORA_Y], 16);

    for (int i = 0; i < 2 * OPS_LORA_PARTS; i++)
        wide = wide && cuda_is_aligned(&op->in[first_pair(op) + i], 16);
    for (int i = 0; i < OPS_LORA_PARTS; i++)
        wide = wide &&
               (size_t)op->attributes.parts[i] * dtype_bytes(op->out[LORA_OUT].dtype) % 16 == 0;
    return wide;
}

template <typename T> static lora<T> lora_of(const struct op_shape *op)
{
    lora<T> p = {};
    int64_t col = 0;

    p.y = (const T *)op->in[LORA_Y].data;
    p.out = (T *)op->out[LORA_OUT].data;
    p.ld_y = op->in[LORA_Y].stride;
    p.ld_out = op->out[LORA_OUT].stride;
    p.n_rows = op->in[LORA_Y].rows;
    if (op->kind == OP_EXPERT_LORA) {
        p.ends = (const int32_t *)op->in[EXPERT_LORA_ENDS].data;
        p.n_experts = (int)op->in[EXPERT_LORA_ENDS].cols;
    }
    for (int i = 0; i < OPS_LORA_PARTS; i++) {
        const struct tensor *h = &op->in[first_pair(op) + 2 * i], *b = h + 1;
        lora_part<T> *part = &p.parts[i];

        part->col = col;
        part->n = op->attributes.parts[i];
        part->tile = p.n_tiles;
        col += part->n;
        p.n_tiles += (int)ceil_div(part->n, COLS);
        if (!tensor_given(h))
            continue;
        part->h = (const T *)h->data;
        part->b = (const T *)b->data;
        part->ld_h = h->stride;
        part->ld_b = b->stride;
        part->k = (int)h->cols;
    }
    return p;
}

static void lora_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    (void)first;
    cuda_with_act(call->op.out[LORA_OUT].dtype, [&](auto zero) {
        typedef decltype(zero) T;
        lora<T> p = lora_of<T>(&call->op);

        if (is_wide(&call->op))
            launch<T, 1>(kernels, call, p);
        else
            launch<T, 0>(kernels, call, p);
    });
}

void cuda_register_lora(struct kernels_backend *table)
{
    table->entries[OP_LORA].run = lora_run;
    table->entries[OP_EXPERT_LORA].run = lora_run;
}
