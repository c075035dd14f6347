/*
 * price_products.c - matrix products and attention by formula
 *
 * A product is divided into tiles of its result, one a multiprocessor at a time: the last tiles may
 * be partly empty, the last wave may leave multiprocessors without one, and each tile has a start
 * and an end that cost as much as K0 steps of its sum. Libraries choose the tile that suits the
 * shape best, so the best of a few counts. Where tiles are fewer than multiprocessors, each is
 * divided along k as well.
 */
#include <math.h>

#include "base/num.h"
#include "layout/context.h"
#include "plan/price_impl.h"

#define PRODUCT_MEMORY_REACH 0.85
#define K0 96
#define K0_F8 192
#define SPLITS_MAX 8
#define SPLIT_REACH 0.85

/* Attention that never stores scores, and its backward, where the device's file does not say:
 * shares of the peak at long sequences. */
#define ATTENTION_REACH 0.6
#define ATTENTION_GRAD_REACH 0.52
#define ATTENTION_S0 600 /* rows of a sequence at which half of that is reached */

/* Attention that does: batched products, as before FlashAttention. Passes over the scores, forward:
 * one product writes them, softmax reads and writes them, the other product reads them; backward:
 * each of four products reads or writes them once, and softmax reads two and writes one. */
#define UNFUSED_REACH 0.45
#define UNFUSED_PASSES 4
#define UNFUSED_GRAD_PASSES 7

/* Of an element of logits, by the kernel between a head's products (cuda/head.cu). */
#define LOGIT_LOSS_BYTES 8
#define LOGIT_GRAD_BYTES 12

/* Of an element of a Newton-Schulz step, by the kernels between its products. */
#define STEP_BYTES 8

/* ---- the products of each kind ---- */

static int add_product(struct product *products, int n, struct product product)
{
    if (product.m * product.n * product.k * product.times > 0)
        products[n++] = product;
    return n;
}

static int linear_products(const struct op_shape *op, struct product *products)
{
    const struct tensor *w = &op->in[LINEAR_W];

    return add_product(
        products, 0,
        (struct product){ (double)op->in[LINEAR_X].rows, (double)w->rows, (double)w->cols, 1 });
}

static int linear_dx_products(const struct op_shape *op, struct product *products)
{
    const struct tensor *w = &op->in[LINEAR_DX_W];

    return add_product(
        products, 0,
        (struct product){ (double)op->in[LINEAR_DX_DY].rows, (double)w->cols, (double)w->rows, 1 });
}

static int linear_dw_products(const struct op_shape *op, struct product *products)
{
    const struct tensor *dw = &op->out[LINEAR_DW_DW];

    return add_product(products, 0,
                       (struct product){ (double)dw->rows, (double)dw->cols,
                                         (double)op->in[LINEAR_DW_DY].rows, 1 });
}

/* Of rows that are divided evenly among experts. */
static int expert_linear_products(const struct op_shape *op, struct product *products)
{
    const struct tensor *x = &op->in[EXPERT_LINEAR_X], *w = &op->in[EXPERT_LINEAR_W];
    double m = (double)op->in[EXPERT_LINEAR_ENDS].cols;

    return add_product(
        products, 0,
        (struct product){ (double)x->rows / m, (double)w->rows / m, (double)w->cols, m });
}

static int expert_linear_dx_products(const struct op_shape *op, struct product *products)
{
    const struct tensor *dy = &op->in[EXPERT_LINEAR_DX_DY], *w = &op->in[EXPERT_LINEAR_DX_W];
    double m = (double)op->in[EXPERT_LINEAR_DX_ENDS].cols;

    return add_product(
        products, 0,
        (struct product){ (double)dy->rows / m, (double)w->cols, (double)w->rows / m, m });
}

static int expert_linear_dw_products(const struct op_shape *op, struct product *products)
{
    const struct tensor *dy = &op->in[EXPERT_LINEAR_DW_DY], *x = &op->in[EXPERT_LINEAR_DW_X];
    double m = (double)op->in[EXPERT_LINEAR_DW_ENDS].cols;

    return add_product(
        products, 0,
        (struct product){ (double)dy->cols, (double)x->cols, (double)dy->rows / m, m });
}

/* Rows of whole chunks, and of the last where that is shorter. */
struct head_chunks {
    double rows, rest;
    int n;
};

static struct head_chunks chunks_of(const struct op_shape *op)
{
    int64_t n_rows = op->in[HEAD_LOSS_X].rows;
    int64_t chunk = op->attributes.chunk > 0 ? min_i64(op->attributes.chunk, n_rows) : n_rows;

    return (struct head_chunks){ (double)chunk, (double)(n_rows % chunk), (int)(n_rows / chunk) };
}

/* Products of a chunk are one after the other, here and in those below. */
static int head_products(const struct op_shape *op, struct product *products)
{
    const struct tensor *w = &op->in[HEAD_LOSS_W];
    struct head_chunks chunks = chunks_of(op);
    double v = (double)w->rows, d = (double)w->cols;
    bool is_gradient = op->kind == OP_HEAD_CROSS_ENTROPY;
    int n = 0;

    for (int i = 0; i < 2; i++) {
        double rows = i ? chunks.rest : chunks.rows, times = i ? 1 : chunks.n;

        n = add_product(products, n, (struct product){ rows, v, d, times });
        if (is_gradient)
            n = add_product(products, n, (struct product){ rows, d, v, times });
        if (is_gradient && tensor_given(&op->out[HEAD_CROSS_ENTROPY_DW]))
            n = add_product(products, n, (struct product){ v, d, rows, times });
    }
    return n;
}

static int lora_products(const struct op_shape *op, struct product *products)
{
    int n = 0;

    for (int i = 0; i < OPS_LORA_PARTS; i++) {
        const struct tensor *b = &op->in[LORA_B0 + 2 * i];

        if (tensor_given(b))
            n = add_product(products, n,
                            (struct product){ (double)op->in[LORA_Y].rows, (double)b->rows,
                                              (double)b->cols, 1 });
    }
    return n;
}

/* An expert's mean of the rows. */
static int expert_lora_products(const struct op_shape *op, struct product *products)
{
    double m = (double)op->in[EXPERT_LORA_ENDS].cols;
    int n = 0;

    for (int i = 0; i < OPS_LORA_PARTS; i++) {
        const struct tensor *b = &op->in[EXPERT_LORA_B0 + 2 * i];

        if (tensor_given(b))
            n = add_product(products, n,
                            (struct product){ (double)op->in[EXPERT_LORA_Y].rows / m,
                                              (double)b->rows / m, (double)b->cols, m });
    }
    return n;
}

/* X X', A A and B X of each step and matrix, one after the other. */
static int newton_schulz_products(const struct op_shape *op, struct product *products)
{
    struct newton_schulz_matrix m = ops_newton_schulz_matrix(op);
    double s = (double)min_i64(m.rows, m.cols), l = (double)max_i64(m.rows, m.cols);
    double times = (double)m.n * op->attributes.steps;
    int n = add_product(products, 0, (struct product){ s, s, l, times });

    n = add_product(products, n, (struct product){ s, s, s, times });
    return add_product(products, n, (struct product){ s, l, s, times });
}

typedef int (*list_products_fn)(const struct op_shape *op, struct product *products);

static const list_products_fn products_of[N_OP_KINDS] = {
    [OP_LINEAR] = linear_products,
    [OP_LINEAR_DX] = linear_dx_products,
    [OP_LINEAR_DW] = linear_dw_products,
    [OP_LINEAR_FP8] = linear_products,
    [OP_LINEAR_DX_FP8] = linear_dx_products,
    [OP_LINEAR_DW_FP8] = linear_dw_products,
    [OP_EXPERT_LINEAR] = expert_linear_products,
    [OP_EXPERT_LINEAR_DX] = expert_linear_dx_products,
    [OP_EXPERT_LINEAR_DW] = expert_linear_dw_products,
    [OP_EXPERT_LINEAR_FP8] = expert_linear_products,
    [OP_EXPERT_LINEAR_DX_FP8] = expert_linear_dx_products,
    [OP_EXPERT_LINEAR_DW_FP8] = expert_linear_dw_products,
    [OP_HEAD_CROSS_ENTROPY] = head_products,
    [OP_HEAD_LOSS] = head_products,
    [OP_LORA] = lora_products,
    [OP_EXPERT_LORA] = expert_lora_products,
    [OP_NEWTON_SCHULZ] = newton_schulz_products,
};

bool price_is_product(enum op_kind kind)
{
    return products_of[kind] != NULL;
}

int price_list_products(const struct op_shape *op, struct product products[N_PRODUCTS_MAX])
{
    return products_of[op->kind](op, products);
}

/* ---- the efficiency of a shape ---- */

struct tile {
    double m, n, reach;
};

struct wave {
    double n_sms, n_splits;
};

static const struct tile tiles[] = {
    { 256, 128, 1 }, { 128, 256, 1 }, { 128, 128, 0.93 }, { 128, 64, 0.8 }, { 64, 64, 0.6 },
};

/* Each tile divided along k into n_splits, which are summed at the end. */
static double tile_efficiency(const struct product *p, const struct tile *tile, double k0,
                              struct wave wave)
{
    double n_tiles = p->times * ceil(p->m / tile->m) * ceil(p->n / tile->n) * wave.n_splits;
    double full = p->times * p->m * p->n / (tile->m * tile->n) * wave.n_splits;
    double k = p->k / wave.n_splits, reach = tile->reach * (wave.n_splits > 1 ? SPLIT_REACH : 1);

    return reach * full / (ceil(n_tiles / wave.n_sms) * wave.n_sms) * k / (k + k0);
}

static double best_of_tile(const struct product *p, const struct tile *tile, double k0, int n_sms)
{
    double n_tiles = p->times * ceil(p->m / tile->m) * ceil(p->n / tile->n);
    double n_splits = fmin(SPLITS_MAX, floor(n_sms / n_tiles));
    double whole = tile_efficiency(p, tile, k0, (struct wave){ n_sms, 1 });

    if (n_splits < 2)
        return whole;
    return fmax(whole, tile_efficiency(p, tile, k0, (struct wave){ n_sms, n_splits }));
}

double price_product_efficiency(const struct product *product, enum device_format format, int n_sms)
{
    double k0 = format == FORMAT_F8 || format == FORMAT_F4 ? K0_F8 : K0, best = 0;

    if (n_sms < 1)
        return 1;
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++)
        best = fmax(best, best_of_tile(product, &tiles[i], k0, n_sms));
    return fmin(1, best);
}

/* ---- time ---- */

static const struct cluster_island *island_of(const struct prices *prices)
{
    return &prices->cluster->islands[prices->island];
}

enum device_format price_format(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_BF16:
        return FORMAT_BF16;
    case DTYPE_F16:
        return FORMAT_F16;
    case DTYPE_U8:
        return FORMAT_F8;
    default:
        return FORMAT_F32;
    }
}

double price_peak(const struct prices *prices, enum device_format format, double *reach)
{
    const struct cluster_island *island = island_of(prices);
    int f = (int)format;

    while (f > 0 && !(island->device->peak[f] > 0))
        f--;
    while (f < N_DEVICE_FORMATS - 1 && !(island->device->peak[f] > 0))
        f++;
    CHECK(island->device->peak[f] > 0);
    double in_step = island->device->step_reach[f], alone = island->device->kernel_reach[f];
    *reach = in_step > 0 ? in_step : alone > 0 ? alone : 1;
    return island->device->peak[f];
}

double price_memory_ns(const struct prices *prices, double n_bytes, double reach)
{
    double bandwidth = reach * island_of(prices)->device->hbm;

    CHECK(bandwidth > 0);
    return 1e9 * n_bytes / bandwidth;
}

static bool is_head(enum op_kind kind)
{
    return kind == OP_HEAD_CROSS_ENTROPY || kind == OP_HEAD_LOSS;
}

/* Logits are written by one product, changed, and read by others; each chunk has its own. */
static double logits_ns(const struct prices *prices, const struct op_shape *op)
{
    double n_logits = (double)op->in[HEAD_LOSS_X].rows * (double)op->in[HEAD_LOSS_W].rows;
    int each = op->kind == OP_HEAD_LOSS ? LOGIT_LOSS_BYTES : LOGIT_GRAD_BYTES;

    return price_memory_ns(prices, n_logits * each, MEMORY_REACH);
}

/* What is between the products of steps: A, what is added to it, and B; X, that, and the next X. */
static double steps_ns(const struct prices *prices, const struct op_shape *op)
{
    struct newton_schulz_matrix m = ops_newton_schulz_matrix(op);
    double s = (double)min_i64(m.rows, m.cols), l = (double)max_i64(m.rows, m.cols);

    return price_memory_ns(prices, (double)m.n * op->attributes.steps * s * (s + l) * STEP_BYTES,
                           MEMORY_REACH);
}

/* Products that are one launch each, however many there are. */
static bool come_alone(enum op_kind kind)
{
    return is_head(kind) || kind == OP_NEWTON_SCHULZ;
}

static bool is_of_experts(enum op_kind kind)
{
    return kind == OP_EXPERT_LINEAR_FP8 || kind == OP_EXPERT_LINEAR_DX_FP8 ||
           kind == OP_EXPERT_LINEAR_DW_FP8;
}

/* Between experts' rows and weights stand their ends. */
static int rounded_operand(const struct op_shape *op, int i)
{
    bool has_ends = is_of_experts(op->kind) && op->kind != OP_EXPERT_LINEAR_DW_FP8;

    return i && has_ends ? (int)EXPERT_LINEAR_W : i;
}

/* Rows that what made them has rounded as the library wants them. */
static bool is_rounded(const struct tensor *x, bool is_weight)
{
    return !is_weight && x->dtype == DTYPE_U8 && x->cols % OPS_FP8_BLOCK == 0;
}

/* Whether the operand's largest element is found by the product, not an operand. */
static bool is_measured(const struct op_shape *op, int i)
{
    if (op->attributes.fp8 != FP8_TENSOR || op->in[rounded_operand(op, i)].dtype == DTYPE_U8)
        return false;
    return is_of_experts(op->kind) || !tensor_given(&op->in[ops_fp8_most(op->kind, i)]);
}

/* Both operands are read, and written and read as codes, before the product; those are read twice
 * whose largest element is to be found. */
static double rounding_ns(const struct prices *prices, const struct op_shape *op)
{
    double n_bytes = 0;

    for (int i = 0; i < OPS_FP8_OPERANDS; i++) {
        const struct tensor *x = &op->in[rounded_operand(op, i)];

        n_bytes += (double)tensor_elements(x) * (is_rounded(x, i == LINEAR_W) ? 0
                                                 : x->dtype == DTYPE_U8       ? 3
                                                 : is_measured(op, i)         ? 6
                                                                              : 4);
    }
    return price_memory_ns(prices, n_bytes, MEMORY_REACH);
}

struct formula price_products(const struct prices *prices, const struct op_shape *op)
{
    bool in_fp8 = op->attributes.fp8 != FP8_NONE;
    /* Our own multipliers of experts are those of 16 bits (cuda/mma.cuh). */
    enum device_format format =
        in_fp8 && !is_of_experts(op->kind) ? FORMAT_F8 : price_format(op->in[OPS_FIRST].dtype);
    struct product products[N_PRODUCTS_MAX];
    double reach, peak = price_peak(prices, format, &reach), flop_ns = 0;
    int n = price_list_products(op, products), n_kernels = max_int(1, n);

    for (int i = 0; i < n; i++) {
        const struct product *p = &products[i];
        struct product launched = { p->m, p->n, p->k, come_alone(op->kind) ? 1 : p->times };
        int n_sms = island_of(prices)->device->n_sms;
        double efficiency = price_product_efficiency(&launched, format, n_sms);

        flop_ns += 1e9 * 2 * p->m * p->n * p->k * p->times / (peak * reach * efficiency);
    }
    struct formula formula =
        price_longer(flop_ns, price_memory_ns(prices, op_bytes(op), PRODUCT_MEMORY_REACH));
    if (is_head(op->kind)) {
        struct head_chunks chunks = chunks_of(op);

        formula.ns += logits_ns(prices, op);
        n_kernels = (n_kernels / (chunks.rest > 0 ? 2 : 1) + 1) * (chunks.n + (chunks.rest > 0));
    }
    if (op->kind == OP_NEWTON_SCHULZ) {
        formula.ns += steps_ns(prices, op);
        n_kernels = (int)(5 * products[0].times); /* three products and two sums each */
    }
    if (in_fp8) {
        formula.ns += rounding_ns(prices, op);
        for (int i = 0; i < OPS_FP8_OPERANDS; i++)
            n_kernels +=
                op->attributes.fp8 != FP8_TENSOR || op->in[rounded_operand(op, i)].dtype == DTYPE_U8
                    ? 1
                : is_measured(op, i) ? 3
                                     : 2;
    }
    formula.n_kernels = n_kernels;
    return formula;
}

/* ---- attention ---- */

/* Which inputs are queries and keys. */
static const struct attention_inputs {
    bool is_attention, is_grad;
    int q, k;
} attentions[N_OP_KINDS] = {
    [OP_ATTENTION] = { true, false, ATTENTION_Q, ATTENTION_K },
    [OP_ATTENTION_GRAD] = { true, true, ATTENTION_GRAD_Q, ATTENTION_GRAD_K },
    [OP_ATTENTION_CACHED] = { true, false, ATTENTION_CACHED_Q, ATTENTION_CACHED_K },
    [OP_ATTENTION_PART] = { true, false, ATTENTION_PART_Q, ATTENTION_PART_K },
    [OP_ATTENTION_PART_GRAD] = { true, true, ATTENTION_PART_GRAD_Q, ATTENTION_PART_GRAD_K },
};

bool price_is_attention(enum op_kind kind)
{
    return attentions[kind].is_attention;
}

static const struct tensor *queries_of(const struct op_shape *op)
{
    return &op->in[attentions[op->kind].q];
}

/* Keys that a query is held against, masked ones too. */
static int key_len(const struct op_shape *op)
{
    if (op->kind == OP_ATTENTION_CACHED)
        return op->attributes.cache_len;
    return ops_key_len(op, queries_of(op), &op->in[attentions[op->kind].k]);
}

/* How much more than the mean of all ranks the one with most pairs computes, where queries are a
 * rank's part of their sequence: windows make ends of sequences unlike their middles. */
static double imbalance(const struct op_shape *op)
{
    int64_t seq_len = op->attributes.seq_len, n_keys = key_len(op);
    struct context_cut cut = { 1, (int)(n_keys / max_i64(1, seq_len)) };

    if (op->kind == OP_ATTENTION_CACHED || cut.keys < 2 || !context_divides(cut, n_keys))
        return 1;
    return context_balance(cut, n_keys, op->attributes.window);
}

/* Scores of all pairs are written, and softmax and products read and write them: batched products,
 * and passes over a matrix of scores for each head. */
static struct formula unfused_attention(const struct prices *prices, const struct op_shape *op)
{
    const struct op_attributes *a = &op->attributes;
    double pairs = (double)queries_of(op)->rows * key_len(op) * a->n_heads, reach;
    double peak = price_peak(prices, price_format(queries_of(op)->dtype), &reach);
    bool is_grad = attentions[op->kind].is_grad;
    double n_products = is_grad ? 4 : 2, n_passes = is_grad ? UNFUSED_GRAD_PASSES : UNFUSED_PASSES;
    double flop_ns = 1e9 * n_products * 2 * pairs * a->head_dim / (UNFUSED_REACH * peak);
    double pass_ns =
        price_memory_ns(prices, pairs * (double)dtype_bytes(queries_of(op)->dtype), MEMORY_REACH);

    return (struct formula){ .ns = flop_ns + n_passes * pass_ns,
                             .n_kernels = (int)(n_products + 1),
                             .bound = n_passes * pass_ns > flop_ns ? BOUND_BYTES : BOUND_FLOPS };
}

static double attention_reach(const struct device_spec *device, bool is_grad)
{
    if (is_grad)
        return device->attention_grad > 0 ? device->attention_grad : ATTENTION_GRAD_REACH;
    return device->attention > 0 ? device->attention : ATTENTION_REACH;
}

struct formula price_attention(const struct prices *prices, const struct op_shape *op)
{
    double rows = key_len(op), reach;
    double peak = price_peak(prices, price_format(queries_of(op)->dtype), &reach);
    if (prices->cluster->software.has_unfused_attention && op->kind != OP_ATTENTION_CACHED)
        return unfused_attention(prices, op);
    double share = attention_reach(island_of(prices)->device, attentions[op->kind].is_grad) * rows /
                   (rows + ATTENTION_S0);

    double flop_ns = 1e9 * op_flops(op) * imbalance(op) / (share * peak);
    return price_longer(flop_ns, price_memory_ns(prices, op_bytes(op), MEMORY_REACH));
}
