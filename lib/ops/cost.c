/*
 * cost.c - operations and bytes of an op
 *
 * Ops with products (linear, attention, head) count their products alone: what is added by biases,
 * softmax and norms inside them is under a hundredth. All others count their arithmetic by element,
 * exp, tanh, sqrt and division as one each; they are bound by bytes anyway.
 */
#include "base/num.h"
#include "ops/ops.h"

/*
 * Pairs (query, key) that causal attention looks at, over all sequences and heads. Where documents
 * begin is known at run time only: this counts none.
 */
static double causal_pairs(const struct op_shape *op, double tokens)
{
    double seq_len = op->attributes.seq_len, window = op->attributes.window;

    if (window < 1 || window > seq_len)
        window = seq_len;
    /* The first `window` queries see one more each, all others as many. */
    return tokens * (window - window * (window - 1) / (2 * seq_len)) * op->attributes.n_heads;
}

/* Rows of one sequence's cache that its queries may look at: a bound. */
static int cache_rows(const struct op_attributes *a)
{
    return a->window ? min_int(a->cache_len, a->window + a->seq_len - 1) : a->cache_len;
}

/* Operations for each element of the first input. */
static double flops_an_element(enum op_kind kind)
{
    switch (kind) {
    case OP_EMBED_DW:
    case OP_ADD:
    case OP_ADD_BIAS:
    case OP_SCALE:
    case OP_BIAS_GRAD:
    case OP_ACCUMULATE:
    case OP_ALL_REDUCE:
    case OP_SUM_RUNS:
    case OP_GRADIENT_NORM: /* a bound where the order leaves padding out */
        return 1;
    case OP_DROPOUT:
    case OP_DROPOUT_GRAD:
    case OP_SUMSQ:
        return 2;
    case OP_ROUTER:
        return 6;
    case OP_ROPE:
    case OP_ROPE_GRAD:
    case OP_LOGIT_STATS:
        return 3;
    case OP_RMSNORM:
    case OP_HEAD_NORM: /* of v's heads, too: a bound */
    case OP_NORMALIZE_ROWS:
        return 4;
    case OP_NORMALIZE_ROWS_GRAD:
        return 6;
    case OP_ADD_RMSNORM:
        return 5;
    case OP_SWIGLU:
        return 2.5; /* 5 for a pair of gate and up */
    case OP_LAYERNORM:
        return 8;
    case OP_ADD_LAYERNORM:
        return 9;
    case OP_RMSNORM_GRAD:
    case OP_HEAD_NORM_GRAD:
    case OP_GELU:
        return 10;
    case OP_SWIGLU_GRAD:
        return 11;
    case OP_LAYERNORM_GRAD:
    case OP_ADAMW:
        return 15;
    case OP_GELU_GRAD:
        return 18;
    default:
        return 0;
    }
}

static double lora_flops(const struct op_shape *op)
{
    double flops = 0;

    for (int i = 0; i < OPS_LORA_PARTS; i++)
        if (tensor_given(&op->in[2 + 2 * i]))
            flops += 2 * (double)op->in[0].rows * (double)tensor_elements(&op->in[2 + 2 * i]);
    return flops;
}

double op_flops(const struct op_shape *op)
{
    const struct tensor *in = op->in, *out = op->out;
    double tokens = (double)in[0].rows, e = op->attributes.head_dim;

    switch (op->kind) {
    case OP_LINEAR:
    case OP_LINEAR_DX:
        return 2 * tokens * (double)in[1].rows * (double)in[1].cols;
    case OP_EXPERT_LINEAR:
    case OP_EXPERT_LINEAR_DX: /* each row meets one expert */
        return 2 * tokens * (double)in[2].rows / (double)in[1].cols * (double)in[2].cols;
    case OP_EXPERT_LINEAR_DW:
        return 2 * tokens * (double)in[0].cols * (double)in[1].cols;
    case OP_EXPERT_SWIGLU:
        return 6 * (double)tensor_elements(&out[0]);
    case OP_EXPERT_SWIGLU_GRAD:
        return 14 * (double)tensor_elements(&in[2]);
    case OP_COMBINE:
        return (double)tensor_elements(&in[1]);
    case OP_ROUTER_GRAD:
        return 4 * (double)tensor_elements(&out[0]);
    case OP_LINEAR_DW:
        return 2 * tokens * (double)out[0].rows * (double)out[0].cols;
    case OP_LORA:
        return lora_flops(op);
    case OP_HEAD_LOSS:
        return 2 * tokens * (double)in[1].rows * (double)in[1].cols;
    case OP_HEAD_CROSS_ENTROPY:
        return (tensor_given(&out[1]) ? 6 : 4) * tokens * (double)in[1].rows * (double)in[1].cols;
    case OP_ATTENTION:
        return 2 * 2 * causal_pairs(op, tokens) * e;
    case OP_ATTENTION_GRAD:
        return 5 * 2 * causal_pairs(op, tokens) * e;
    case OP_ATTENTION_CACHED: /* a bound: positions are known at run time only */
        return 2 * 2 * tokens *
               (op->attributes.window ? min_int(op->attributes.window, op->attributes.cache_len)
                                      : op->attributes.cache_len) *
               op->attributes.n_heads * e;
    case OP_EMBED:
        return tensor_given(&in[2]) ? (double)tensor_elements(&in[2]) : 0;
    case OP_CROSS_ENTROPY: /* without a gradient it looks at statistics alone */
        return tensor_given(&out[0]) ? 3 * (double)tensor_elements(&in[0]) : 0;
    case OP_REDUCE_SCATTER: /* each rank adds its summands of what it gets */
    case OP_GATHER_HEADS_GRAD:
        return (double)(tensor_elements(&in[0]) - tensor_elements(&out[0]));
    default:
        return flops_an_element(op->kind) * (double)tensor_elements(&in[0]);
    }
}

/* Of what rope rotates the heads of q and k alone: those of v stay where they are, in place. */
static void leave_values(const struct op_shape *op, int is_first, struct tensor *t)
{
    const struct op_attributes *a = &op->attributes;

    if ((op->kind == OP_ROPE || op->kind == OP_ROPE_GRAD) && is_first)
        t->cols = (int64_t)(a->n_heads + a->n_kv_heads) * a->head_dim;
}

static double tensor_moved(const struct tensor *t, unsigned flags)
{
    double bytes = (double)tensor_elements(t) * (double)dtype_bytes(t->dtype);

    return flags & (OPERAND_ACCUMULATED | OPERAND_UPDATED) ? 2 * bytes : bytes;
}

double op_bytes(const struct op_shape *op)
{
    const struct op_info *info = op_info(op->kind);
    double bytes = 0;

    for (int i = 0; i < info->n_inputs; i++) {
        struct tensor t = op->in[i];

        /* Of a table only the looked-up rows are read. */
        if (op->kind == OP_EMBED && i == 1)
            t.rows = op->in[0].rows;
        if (op->kind == OP_SELECT_ROWS && i == 0)
            t.rows = op->in[1].rows;
        if (op->kind == OP_ATTENTION_CACHED && (i == 2 || i == 3))
            t.rows = t.rows / op->attributes.cache_len * cache_rows(&op->attributes);
        if (op->kind == OP_CROSS_ENTROPY && i == 0)
            t.rows = op->out[0].rows;
        leave_values(op, i == 0, &t);
        bytes += tensor_moved(&t, info->inputs[i].flags);
    }
    for (int i = 0; i < info->n_outputs; i++) {
        struct tensor t = op->out[i];

        if (op->kind == OP_EMBED_DW && t.rows > op->in[0].rows)
            t.rows = op->in[0].rows;
        leave_values(op, i == 0, &t);
        bytes += tensor_moved(&t, info->outputs[i].flags);
    }
    return bytes;
}
