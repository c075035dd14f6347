/*
 * gpu_sizes.c - see the header; and a backend that has sizes alone
 */
#include "kernels/gpu_sizes.h"

#include <stdlib.h>

#include "kernels/kernels.h"

/* ---- products ---- */

enum { WORKSPACE_LEAST = 64 << 10, WORKSPACE_MOST = 32 << 20 };

size_t gpu_product_bias_bytes(const struct gpu_product *p)
{
    bool is_rounded = p->biased && p->out != DTYPE_F32;

    return is_rounded ? align_up((size_t)p->n * dtype_bytes(p->out), GPU_PRODUCT_ALIGNMENT) : 0;
}

size_t gpu_product_workspace_bytes(const struct gpu_product *p)
{
    int64_t wanted = round_up(p->m * p->n * 4, GPU_PRODUCT_ALIGNMENT);

    return (size_t)min_i64(max_i64(wanted, WORKSPACE_LEAST), WORKSPACE_MOST);
}

static size_t apart_bytes(const struct gpu_product *p)
{
    int64_t ld = round_up(p->n, GPU_APART_MULTIPLE);

    return gpu_product_is_apart(p) ? align_up((size_t)(p->m * ld) * sizeof(float), 64) : 0;
}

/* Scratch is aligned to 64 only. */
size_t gpu_product_scratch_bytes(const struct gpu_product *p)
{
    return gpu_product_bias_bytes(p) + gpu_product_workspace_bytes(p) + apart_bytes(p) +
           GPU_PRODUCT_ALIGNMENT - 64;
}

static size_t column_sums(int64_t n_rows, int64_t n_cols)
{
    return (size_t)(ceil_div(n_rows, gpu_column_block_rows(n_rows)) * n_cols) * sizeof(double);
}

static size_t linear(const struct op_shape *given)
{
    const struct op_shape in_rows = op_in_rows(given), *op = &in_rows;
    const struct tensor *out = &op->out[LINEAR_Y];
    struct gpu_product p = { out->rows, out->cols, op->in[LINEAR_X].dtype, out->dtype,
                             op->kind == OP_LINEAR && tensor_given(&op->in[LINEAR_B]) };
    size_t product = gpu_product_scratch_bytes(&p), sums = 0;

    if (op->kind == OP_LINEAR_DW && tensor_given(&op->out[LINEAR_DW_DB]))
        sums = column_sums(op->in[LINEAR_DW_DY].rows, op->in[LINEAR_DW_DY].cols);
    return product > sums ? product : sums;
}

static size_t larger(size_t most, int64_t m, int64_t n, enum dtype in, enum dtype out)
{
    struct gpu_product p = { m, n, in, out, 0 };
    size_t n_bytes = gpu_product_scratch_bytes(&p);

    return n_bytes > most ? n_bytes : most;
}

struct gpu_fp8_operand gpu_fp8_operand_of(const struct op_shape *op, int input)
{
    const struct tensor *x = &op->in[input];
    bool is_dw = op->kind == OP_LINEAR_DW_FP8, is_weight = !is_dw && input == LINEAR_W;
    bool has_one = op->attributes.fp8 == FP8_TENSOR;
    struct gpu_fp8_operand o = { .is_transposed =
                                     is_dw || (op->kind == OP_LINEAR_DX_FP8 && is_weight),
                                 .is_square = is_weight && !has_one };
    int64_t n_tiles = ceil_div(x->rows, OPS_FP8_BLOCK) * ceil_div(x->cols, OPS_FP8_BLOCK);

    o.lines = o.is_transposed ? x->cols : x->rows;
    if (!has_one && !o.is_square)
        o.lines = round_up(o.lines, GPU_FP8_LINES_MULTIPLE);
    o.k = round_up(o.is_transposed ? x->rows : x->cols, OPS_FP8_BLOCK);
    int64_t n_blocks = o.k / OPS_FP8_BLOCK;
    int64_t n_scales = has_one       ? 1
                       : o.is_square ? ceil_div(o.lines, OPS_FP8_BLOCK) * round_up(n_blocks, 4)
                                     : o.lines * n_blocks;
    o.is_there = !is_weight && x->dtype == DTYPE_U8 && o.lines == x->rows && o.k == x->cols &&
                 (x->rows == 1 || x->stride == 0 || x->stride == x->cols);
    o.code_bytes = o.is_there ? 0 : align_up((size_t)(o.lines * o.k), GPU_PRODUCT_ALIGNMENT);
    o.scale_bytes = align_up((size_t)n_scales * sizeof(float), GPU_PRODUCT_ALIGNMENT);
    o.all_bytes = o.code_bytes + o.scale_bytes;
    if (has_one)
        o.all_bytes += align_up((size_t)n_tiles * sizeof(uint32_t), GPU_PRODUCT_ALIGNMENT);
    return o;
}

size_t gpu_fp8_padded_bytes(const struct op_shape *op)
{
    const struct tensor *y = &op->out[LINEAR_Y];
    int64_t lines = gpu_fp8_operand_of(op, LINEAR_X).lines;

    return lines > y->rows
               ? align_up((size_t)(lines * y->cols) * dtype_bytes(y->dtype), GPU_PRODUCT_ALIGNMENT)
               : 0;
}

/* Both operands, then the product; the bias' gradient comes behind it. */
static size_t linear_fp8(const struct op_shape *op)
{
    const struct tensor *out = &op->out[LINEAR_Y];
    struct gpu_product p = { max_i64(out->rows, gpu_fp8_operand_of(op, LINEAR_X).lines), out->cols,
                             DTYPE_U8, out->dtype,
                             op->kind == OP_LINEAR_FP8 && tensor_given(&op->in[LINEAR_B]) };
    size_t all = gpu_fp8_operand_of(op, LINEAR_X).all_bytes +
                 gpu_fp8_operand_of(op, LINEAR_W).all_bytes + gpu_fp8_padded_bytes(op) +
                 gpu_product_scratch_bytes(&p) + GPU_PRODUCT_ALIGNMENT - 64;
    size_t sums = 0;

    if (op->kind == OP_LINEAR_DW_FP8 && tensor_given(&op->out[LINEAR_DW_DB]))
        sums = column_sums(op->in[LINEAR_DW_DY].rows, op->in[LINEAR_DW_DY].cols);
    return all > sums ? all : sums;
}

/* Operands are the first or second of a product: rows, and weights or rows. */
struct gpu_experts_operand gpu_experts_operand_of(const struct op_shape *op, int operand)
{
    bool is_dw = op->kind == OP_EXPERT_LINEAR_DW_FP8, is_weight = !is_dw && operand;
    bool has_one = op->attributes.fp8 == FP8_TENSOR;
    int64_t m = op->in[is_dw ? EXPERT_LINEAR_DW_ENDS : EXPERT_LINEAR_ENDS].cols;
    const struct tensor *x = &op->in[is_weight ? (int)EXPERT_LINEAR_W : operand];
    struct gpu_experts_operand o = {
        .is_weight = is_weight,
        .is_transposed = is_dw || (is_weight && op->kind == OP_EXPERT_LINEAR_DX_FP8)
    };
    int64_t rows = is_weight ? x->rows / m : gpu_expert_slots(x->rows, m) * OPS_FP8_BLOCK;

    o.lines = o.is_transposed ? x->cols : rows;
    o.k = round_up(o.is_transposed ? rows : x->cols, OPS_FP8_BLOCK);
    o.n_tiles = o.k / OPS_FP8_BLOCK * ceil_div(o.lines, OPS_FP8_BLOCK);
    o.n_scales = has_one ? 1 : is_weight ? o.n_tiles : o.k / OPS_FP8_BLOCK * o.lines;
    int64_t times = is_weight ? m : 1, n_scales = has_one ? m : times * o.n_scales;
    o.code_bytes = align_up((size_t)(times * o.lines * o.k), GPU_PRODUCT_ALIGNMENT);
    o.scale_bytes = align_up((size_t)n_scales * sizeof(float), GPU_PRODUCT_ALIGNMENT);
    o.all_bytes = o.code_bytes + o.scale_bytes;
    if (has_one)
        o.all_bytes +=
            align_up((size_t)(times * o.n_tiles) * sizeof(uint32_t), GPU_PRODUCT_ALIGNMENT);
    return o;
}

static size_t experts_fp8(const struct op_shape *op)
{
    return gpu_experts_operand_of(op, 0).all_bytes + gpu_experts_operand_of(op, 1).all_bytes +
           GPU_PRODUCT_ALIGNMENT - 64;
}

/* What tiles have found. */
static size_t fp8_amax(const struct op_shape *op)
{
    const struct tensor *x = &op->in[FP8_AMAX_X];

    return (size_t)(ceil_div(x->rows, OPS_FP8_BLOCK) * ceil_div(x->cols, OPS_FP8_BLOCK)) *
           sizeof(uint32_t);
}

/* Logits of a chunk, a loss a row (and a square), and the largest of its products, of whole chunks
 * and the rest. */
static size_t head(const struct op_shape *op)
{
    bool has_gradients = op->kind == OP_HEAD_CROSS_ENTROPY;
    const struct tensor *x = &op->in[HEAD_LOSS_X], *w = &op->in[HEAD_LOSS_W],
                        *dx = &op->out[HEAD_CROSS_ENTROPY_DX],
                        *dw = &op->out[HEAD_CROSS_ENTROPY_DW];
    int64_t chunk = op->attributes.chunk > 0 ? min_i64(op->attributes.chunk, x->rows) : x->rows;
    int64_t ld = round_up(w->rows, GPU_LOGITS_MULTIPLE), parts[] = { chunk, x->rows % chunk };
    size_t most = 0, sums = align_up((size_t)x->rows * sizeof(double), 64);

    if (has_gradients && tensor_given(&op->out[HEAD_CROSS_ENTROPY_SQUARES]))
        sums *= 2;
    for (int i = 0; i < 2; i++) {
        if (!parts[i])
            continue;
        most = larger(most, parts[i], w->rows, x->dtype, DTYPE_F32);
        if (has_gradients)
            most = larger(most, parts[i], x->cols, x->dtype, dx->dtype);
        if (has_gradients && tensor_given(dw))
            most = larger(most, w->rows, x->cols, x->dtype, dw->dtype);
    }
    return (size_t)(chunk * ld) * sizeof(float) + sums + most;
}

struct gpu_newton_schulz gpu_newton_schulz_sizes(const struct op_shape *op)
{
    struct newton_schulz_matrix m = ops_newton_schulz_matrix(op);
    struct gpu_newton_schulz s = { .small = min_i64(m.rows, m.cols),
                                   .large = max_i64(m.rows, m.cols) };
    int64_t square = s.small * s.small, whole = s.small * s.large;

    s.a = align_up((size_t)whole * 2, GPU_PRODUCT_ALIGNMENT);
    s.b = s.a + align_up((size_t)square * 2, GPU_PRODUCT_ALIGNMENT);
    s.product = s.b + align_up((size_t)square * 2, GPU_PRODUCT_ALIGNMENT);
    s.sums = s.product + align_up((size_t)whole * sizeof(float), GPU_PRODUCT_ALIGNMENT);
    s.norm = s.sums + align_up((size_t)ceil_div(whole, OPS_NORM_BLOCK) * sizeof(double), 64);
    s.library = s.norm + 64;
    s.n_bytes = s.library;
    s.n_bytes += larger(larger(larger(0, s.small, s.small, DTYPE_BF16, DTYPE_BF16), s.small,
                               s.small, DTYPE_BF16, DTYPE_F32),
                        s.small, s.large, DTYPE_BF16, DTYPE_F32);
    return s;
}

/* ---- others ---- */

int gpu_cached_chunk(const struct op_attributes *a)
{
    return (int)round_up(max_i64(GPU_CHUNK, ceil_div(a->cache_len, GPU_CHUNKS_MAX)), GPU_CHUNK);
}

int gpu_cached_chunks(const struct op_shape *op)
{
    const struct op_attributes *a = &op->attributes;
    int64_t n_packs = ceil_div(a->n_heads / a->n_kv_heads, GPU_PAIRS);

    return op->in[ATTENTION_CACHED_Q].rows * a->n_kv_heads * n_packs < GPU_FEW_BLOCKS
               ? (int)ceil_div(a->cache_len, gpu_cached_chunk(a))
               : 1;
}

static size_t cached(const struct op_shape *op)
{
    int n_chunks = gpu_cached_chunks(op);

    if (n_chunks == 1)
        return 0;
    return (size_t)op->in[ATTENTION_CACHED_Q].rows * (size_t)op->attributes.n_heads *
           (size_t)n_chunks * (size_t)(ops_value_dim(op, &op->in[ATTENTION_CACHED_V]) + 2) *
           sizeof(float);
}

static size_t norm_grad(const struct op_shape *op)
{
    bool has_db = op->kind == OP_LAYERNORM_GRAD && tensor_given(&op->out[LAYERNORM_GRAD_DB]);
    int n_sums = tensor_given(&op->out[RMSNORM_GRAD_DW]) + has_db;
    int64_t n_blocks =
        ceil_div(op->in[RMSNORM_GRAD_DY].rows, gpu_norm_block_rows(op->in[RMSNORM_GRAD_DY].rows));

    return (size_t)n_sums *
           align_up((size_t)(n_blocks * op->in[RMSNORM_GRAD_DY].cols) * sizeof(float), 64);
}

static size_t head_norm_grad(const struct op_shape *op)
{
    int64_t n_rows = op->in[HEAD_NORM_GRAD_DOUT].rows;
    int64_t n_blocks = ceil_div(n_rows, gpu_head_norm_block_rows(n_rows));

    return (size_t)(n_blocks * 2 * op->attributes.head_dim) * sizeof(float);
}

static size_t sort(int64_t n_tokens, int64_t n_rows)
{
    size_t list = align_up((size_t)n_tokens * sizeof(uint32_t), 64);
    int64_t n_counts = ceil_div(n_tokens, GPU_SORT_TILE) * GPU_SORT_DIGITS;

    return 4 * list + align_up((size_t)n_counts * sizeof(uint32_t), 64) +
           align_up((size_t)n_rows, 64);
}

/* Rows of counts: several, by blocks, of all tokens; one of each unit, if there are several. */
static int64_t n_counts(const struct tensor *experts, int64_t n_units)
{
    return n_units == 1 ? gpu_choices_blocks(experts) : n_units;
}

static size_t router(const struct op_shape *op)
{
    int64_t n_tokens = op->in[ROUTER_LOGITS].rows, m = op->in[ROUTER_LOGITS].cols;
    int64_t rows = gpu_router_unit(&op->attributes, n_tokens), n_units = n_tokens / rows;
    int64_t n_sums = n_units * ceil_div(rows, GPU_TOKENS_A_SUM);

    if (!tensor_given(&op->out[ROUTER_STATS]))
        return 0;
    return (size_t)n_tokens * GPU_NORMALIZER_BYTES + (size_t)(n_sums * m) * sizeof(double) +
           (size_t)(n_counts(&op->out[ROUTER_EXPERT], n_units) * m) * sizeof(int);
}

/* A row of counts a block, and their sums. */
static size_t counts(const struct tensor *experts, int64_t m)
{
    return (size_t)((gpu_choices_blocks(experts) + 1) * m) * sizeof(int);
}

/* Shares of each unit, and counts. */
static size_t router_grad(const struct op_shape *op)
{
    bool has_choices = tensor_given(&op->in[ROUTER_GRAD_CHOICES]);
    const struct tensor *experts = &op->in[has_choices ? ROUTER_GRAD_CHOICES : ROUTER_GRAD_EXPERT];
    const struct tensor *dlogits = &op->out[ROUTER_GRAD_DLOGITS];
    int64_t n_units = dlogits->rows / gpu_router_unit(&op->attributes, dlogits->rows);

    if (!(op->attributes.balance > 0))
        return 0;
    return (size_t)((n_counts(experts, n_units) + n_units) * dlogits->cols) * sizeof(int);
}

/* Of ops about fp8; 0 of others. */
static size_t of_fp8(const struct op_shape *op)
{
    switch (op->kind) {
    case OP_LINEAR_FP8:
    case OP_LINEAR_DX_FP8:
    case OP_LINEAR_DW_FP8:
        return linear_fp8(op);
    case OP_EXPERT_LINEAR_FP8:
    case OP_EXPERT_LINEAR_DX_FP8:
    case OP_EXPERT_LINEAR_DW_FP8:
        return experts_fp8(op);
    case OP_FP8_AMAX:
        return fp8_amax(op);
    case OP_FP8_WEIGHT_AMAX: /* of each norm block */
        return (size_t)ceil_div(tensor_elements(&op->in[OPS_FIRST]), OPS_NORM_BLOCK) *
               sizeof(uint32_t);
    default:
        return 0;
    }
}

size_t gpu_scratch_bytes(const struct op_shape *op)
{
    switch (op->kind) {
    case OP_LINEAR:
    case OP_LINEAR_DX:
    case OP_LINEAR_DW:
        return linear(op);
    case OP_HEAD_CROSS_ENTROPY:
    case OP_HEAD_LOSS:
        return head(op);
    case OP_CROSS_ENTROPY:
        return (size_t)op->in[CROSS_ENTROPY_LOGITS].rows * sizeof(double) *
               (tensor_given(&op->out[CROSS_ENTROPY_SQUARES]) ? 2 : 1);
    case OP_BIAS_GRAD:
        return column_sums(op->in[BIAS_GRAD_DY].rows, op->in[BIAS_GRAD_DY].cols);
    case OP_EMBED_DW:
        return sort(op->in[EMBED_DW_DX].rows, op->out[EMBED_DW_DTABLE].rows);
    case OP_RMSNORM_GRAD:
    case OP_LAYERNORM_GRAD:
        return norm_grad(op);
    case OP_HEAD_NORM_GRAD:
        return head_norm_grad(op);
    case OP_ATTENTION_GRAD: /* the own kernels' delta */
        return (size_t)op->in[ATTENTION_GRAD_Q].rows * (size_t)op->attributes.n_heads *
               sizeof(float);
    case OP_ATTENTION_PART_GRAD:
        return (size_t)op->in[ATTENTION_PART_GRAD_Q].rows * (size_t)op->attributes.n_heads *
               sizeof(float);
    case OP_ATTENTION_CACHED:
        return cached(op);
    case OP_ROUTER:
        return router(op);
    case OP_ROUTER_GRAD:
        return router_grad(op);
    case OP_EXPERT_ORDER:
        return counts(&op->in[EXPERT_ORDER_EXPERT], op->out[EXPERT_ORDER_ENDS].cols);
    case OP_NEWTON_SCHULZ:
        return gpu_newton_schulz_sizes(op).n_bytes;
    case OP_TOP_K:
        return (size_t)op->in[TOP_K_PARTS].cols * sizeof(double);
    case OP_LOW_RANK_BASIS:
        return (size_t)op->in[LOW_RANK_BASIS_X].cols * sizeof(double);
    case OP_LOW_RANK_SUM:
        return (size_t)ops_factor_row_tiles(op->attributes.rank,
                                            op->in[LOW_RANK_SUM_PARTS].cols / OPS_FACTORED_WORDS,
                                            op->in[LOW_RANK_SUM_LEFT].cols) *
               2 * sizeof(double);
    case OP_ENCODE_ROWS:
        return (size_t)op->in[ENCODE_ROWS_X].rows * (sizeof(int32_t) + 1);
    case OP_DECODE_ROWS:
        return (size_t)op->out[DECODE_ROWS_Y].rows *
               (size_t)(op->attributes.joined ? 1 : op->in[DECODE_ROWS_CODES].rows) *
               (sizeof(int32_t) + 1);
    case OP_ENCODE:
        return (size_t)(op->out[ENCODE_CODES].rows *
                        ops_code_tiles(op->in[ENCODE_X].cols / op->out[ENCODE_CODES].rows)) *
               2 * sizeof(double);
    default:
        return of_fp8(op);
    }
}

/* ---- what vendors' libraries take ---- */

size_t gpu_library_bytes(const struct op_shape *op, size_t gpu_bytes)
{
    const struct op_attributes *a = &op->attributes;
    bool is_grad = op->kind == OP_ATTENTION_GRAD;
    const struct tensor *q = &op->in[is_grad ? ATTENTION_GRAD_Q : ATTENTION_Q];

    if (op->kind != OP_ATTENTION && !is_grad)
        return 0;
    int value_dim = ops_value_dim(op, &op->in[is_grad ? ATTENTION_GRAD_V : ATTENTION_V]);
    if (q->dtype == DTYPE_F32 || a->p > 0 || a->alibi ||
        tensor_given(&op->in[is_grad ? ATTENTION_GRAD_FIRST : ATTENTION_FIRST]) ||
        tensor_given(&op->in[is_grad ? ATTENTION_GRAD_LAST : ATTENTION_LAST]) || a->head_dim % 8 ||
        a->head_dim > 128 || value_dim % 8 || value_dim > 128)
        return 0;
    size_t rows = (size_t)q->rows * (size_t)a->n_heads * sizeof(float), s = (size_t)a->seq_len;
    size_t group = (size_t)(a->n_heads / a->n_kv_heads);
    size_t smallest = group * (s * s * 2 + s * (size_t)a->head_dim * sizeof(float));
    size_t whole = (size_t)(q->rows / a->seq_len) * (size_t)a->n_kv_heads * smallest;

    if (!is_grad)
        return rows;
    if (smallest > gpu_attention_most_bytes(gpu_bytes))
        return 0;
    size_t most = smallest > GPU_ATTENTION_WANTED_BYTES ? smallest : GPU_ATTENTION_WANTED_BYTES;
    return 2 * rows + (whole < most ? whole : most);
}

/* ---- a backend of sizes ---- */

static size_t scratch_of(struct kernels *kernels, const struct op_shape *op)
{
    (void)kernels;
    return gpu_scratch_bytes(op);
}

static void destroy(struct kernels *kernels)
{
    free(kernels);
}

int kernels_gpu_sizes_create(struct kernels **kernels, struct err *err)
{
    static struct kernels_backend table = { .name = "cuda", .destroy = destroy };

    *kernels = calloc(1, sizeof **kernels);
    if (!*kernels)
        return err_set(err, ERR_DEVICE, "out of host memory");
    for (int kind = 0; kind < N_OP_KINDS; kind++)
        table.entries[kind].scratch_bytes = scratch_of;
    (*kernels)->backend = &table;
    (*kernels)->identity = "cuda";
    return 0;
}
