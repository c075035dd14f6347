/*
 * check.c - whether an op's operands fit its kind
 *
 * The dimensions of an op are solved operand by operand, in the catalogue's order: the first that
 * has a letter binds it, all others must agree. A derived dimension (2f, sequences, blocks) is
 * computed once what it derives from is bound, and else binds that backwards.
 */
#include <stdio.h>

#include "base/num.h"
#include "ops/rules_impl.h"

#define UNBOUND (-1)

struct solver {
    const struct op_shape *op;
    const struct op_info *info;
    int64_t dims[N_DIMS];
    int act;    /* dtype that TYPE_ACT or TYPE_MOVED was bound to, or UNBOUND */
    int stream; /* that TYPE_STREAM was bound to, or UNBOUND */
    struct err *err;
};

static int has_heads(enum op_kind kind)
{
    return kind == OP_ROPE || kind == OP_ROPE_GRAD || kind == OP_HEAD_NORM ||
           kind == OP_HEAD_NORM_GRAD || kind == OP_ATTENTION || kind == OP_ATTENTION_GRAD ||
           kind == OP_ATTENTION_CACHED || kind == OP_GATHER_HEADS || kind == OP_GATHER_HEADS_GRAD;
}

enum cached_input { CACHED_SEGMENT = 5, CACHED_SEGMENTS };

/* Number of the input `begin` of attentions, 0 for other kinds. */
static int first_head_input(enum op_kind kind)
{
    return kind == OP_ATTENTION          ? 2
           : kind == OP_ATTENTION_GRAD   ? 5
           : kind == OP_ATTENTION_CACHED ? 4
                                         : 0;
}

/* Rows from anywhere in the micro-batch on, not whole sequences. */
static int has_part_of_rows(const struct op_shape *op)
{
    return (op->kind == OP_DROPOUT || op->kind == OP_DROPOUT_GRAD) && tensor_given(&op->in[2]) &&
           !op->attributes.by_columns;
}

static int has_vocabulary(enum op_kind kind)
{
    return kind == OP_LOGIT_STATS || kind == OP_CROSS_ENTROPY;
}

static int has_sequences(enum op_kind kind)
{
    return kind == OP_ATTENTION || kind == OP_ATTENTION_GRAD || kind == OP_ATTENTION_CACHED ||
           kind == OP_DROPOUT || kind == OP_DROPOUT_GRAD;
}

static int has_eps(enum op_kind kind)
{
    return kind == OP_RMSNORM || kind == OP_LAYERNORM || kind == OP_ADD_RMSNORM ||
           kind == OP_ADD_LAYERNORM || kind == OP_HEAD_NORM || kind == OP_NORMALIZE_ROWS ||
           kind == OP_NORMALIZE_ROWS_GRAD || kind == OP_ADAMW;
}

static int check_heads(const struct solver *s)
{
    const struct op_attributes *a = &s->op->attributes;
    const char *name = s->info->name;
    int even = s->op->kind == OP_ROPE || s->op->kind == OP_ROPE_GRAD;

    if (a->n_heads < 1)
        return err_set(s->err, ERR_FAILED, "%s: n_heads is %d, wanted at least 1", name,
                       a->n_heads);
    if (a->n_kv_heads < 1 || a->n_heads % a->n_kv_heads)
        return err_set(s->err, ERR_FAILED, "%s: n_kv_heads is %d, wanted a divisor of n_heads %d",
                       name, a->n_kv_heads, a->n_heads);
    if (a->head_dim < 1 || a->head_dim > OPS_HEAD_DIM_MAX || (even && a->head_dim % 2))
        return err_set(s->err, ERR_FAILED, "%s: head_dim is %d, wanted 1..%d%s", name, a->head_dim,
                       OPS_HEAD_DIM_MAX, even ? " and even" : "");
    return 0;
}

/* What of a sequence a head sees, and how it weighs distance. */
static int check_sight(const struct solver *s)
{
    const struct op_attributes *a = &s->op->attributes;
    const struct tensor *begin = &s->op->in[first_head_input(s->op->kind)];

    if (a->window < 0)
        return err_set(s->err, ERR_FAILED, "%s: window is %d, wanted at least 0", s->info->name,
                       a->window);
    if (a->alibi && a->alibi < a->n_heads)
        return err_set(s->err, ERR_FAILED, "%s: alibi is %d, wanted 0 or at least n_heads %d",
                       s->info->name, a->alibi, a->n_heads);
    if (a->alibi > a->n_heads && !tensor_given(begin))
        return err_set(s->err, ERR_FAILED,
                       "%s: begin is missing, wanted where %d heads are a part of %d",
                       s->info->name, a->n_heads, a->alibi);
    return 0;
}

/* One kv head, its columns divided evenly. */
static int check_group(const struct solver *s)
{
    const struct op_attributes *a = &s->op->attributes;

    if (a->n_kv_heads != 1)
        return err_set(s->err, ERR_FAILED, "%s: n_kv_heads is %d, wanted 1", s->info->name,
                       a->n_kv_heads);
    if (a->group < 2 || a->head_dim % a->group)
        return err_set(s->err, ERR_FAILED, "%s: group is %d, wanted a divisor of head_dim %d",
                       s->info->name, a->group, a->head_dim);
    return 0;
}

/* Moments alike; where even the master is bf16 all are, and it is the weight. */
static int check_states(const struct solver *s)
{
    const struct tensor *master = &s->op->in[4], *m = &s->op->in[5], *v = &s->op->in[6];

    if (m->dtype != v->dtype || (master->dtype != DTYPE_F32 && master->dtype != m->dtype))
        return err_set(s->err, ERR_FAILED, "adamw: master, m and v are %s, %s and %s, wanted %s",
                       dtype_name(master->dtype), dtype_name(m->dtype), dtype_name(v->dtype),
                       "m as v, and a master of fp32 or as these");
    if (tensor_given(&s->op->out[0]) && master->dtype != DTYPE_F32)
        return err_set(s->err, ERR_FAILED, "adamw: weight is given, wanted none: the master is %s",
                       dtype_name(master->dtype));
    return 0;
}

static int check_attributes(const struct solver *s)
{
    const struct op_attributes *a = &s->op->attributes;
    const char *name = s->info->name;
    enum op_kind kind = s->op->kind;

    if (has_heads(kind) && check_heads(s))
        return -1;
    if (first_head_input(kind) && check_sight(s))
        return -1;
    if ((kind == OP_GATHER_HEADS || kind == OP_GATHER_HEADS_GRAD) && check_group(s))
        return -1;
    if (has_vocabulary(kind) && a->vocab_size < 1)
        return err_set(s->err, ERR_FAILED, "%s: vocab_size is %d, wanted at least 1", name,
                       a->vocab_size);
    if (has_sequences(kind) && a->seq_len < 1)
        return err_set(s->err, ERR_FAILED, "%s: seq_len is %d, wanted at least 1", name,
                       a->seq_len);
    if (kind == OP_ATTENTION_CACHED && a->cache_len < 1)
        return err_set(s->err, ERR_FAILED, "%s: cache_len is %d, wanted at least 1", name,
                       a->cache_len);
    if (kind == OP_ATTENTION_CACHED &&
        tensor_given(&s->op->in[CACHED_SEGMENT]) != tensor_given(&s->op->in[CACHED_SEGMENTS]))
        return err_set(s->err, ERR_FAILED, "%s: segment and segments come together", name);
    if ((kind == OP_HEAD_CROSS_ENTROPY || kind == OP_HEAD_LOSS) && a->chunk < 1)
        return err_set(s->err, ERR_FAILED, "%s: chunk is %d, wanted at least 1", name, a->chunk);
    if (has_sequences(kind) && !(a->p >= 0 && a->p < 1))
        return err_set(s->err, ERR_FAILED, "%s: p is %g, wanted 0 <= p < 1", name, a->p);
    if (has_eps(kind) && !(a->eps >= 0))
        return err_set(s->err, ERR_FAILED, "%s: eps is %g, wanted at least 0", name, a->eps);
    if (kind == OP_ADAMW && !(a->beta1 >= 0 && a->beta1 < 1 && a->beta2 >= 0 && a->beta2 < 1))
        return err_set(s->err, ERR_FAILED, "%s: betas are %g and %g, wanted 0 <= beta < 1", name,
                       a->beta1, a->beta2);
    if ((unsigned)a->axis >= N_AXES)
        return err_set(s->err, ERR_FAILED, "%s: axis is %d, wanted 0..%d", name, (int)a->axis,
                       N_AXES - 1);
    return 0;
}

static void solver_init(struct solver *s, const struct op_shape *op, struct err *err)
{
    const struct op_attributes *a = &op->attributes;
    int64_t h = a->n_heads, g = a->n_kv_heads, e = a->head_dim;

    *s = (struct solver){
        .op = op, .info = op_info(op->kind), .act = UNBOUND, .stream = UNBOUND, .err = err
    };
    for (int i = 0; i < N_DIMS; i++)
        s->dims[i] = UNBOUND;
    s->dims[DIM_ONE] = 1;
    s->dims[DIM_THREE] = 3;
    s->dims[DIM_SCALARS] = OPS_N_SCALARS;
    s->dims[DIM_STATS] = OPS_N_STATS;
    if (has_heads(op->kind)) {
        s->dims[DIM_C] = (h + 2 * g) * e;
        s->dims[DIM_H] = h;
        s->dims[DIM_QK_HEADS] = h + g;
        s->dims[DIM_E] = e;
        s->dims[DIM_HE] = h * e;
        s->dims[DIM_GE] = g * e;
        s->dims[DIM_C_PART] = a->group ? h * e + 2 * e / a->group : UNBOUND;
    }
}

/* The dimension's value if it is known or follows from known ones, else UNBOUND. */
static int64_t known(const struct solver *s, enum dim dim)
{
    const int64_t *d = s->dims;
    const struct op_attributes *a = &s->op->attributes;

    switch (dim) {
    case DIM_FREE:
        return UNBOUND;
    case DIM_2F:
        return d[DIM_F] == UNBOUND ? UNBOUND : 2 * d[DIM_F];
    case DIM_SEQUENCES:
        return d[DIM_T] == UNBOUND || has_part_of_rows(s->op) ? UNBOUND : d[DIM_T] / a->seq_len;
    case DIM_CACHE:
        if (tensor_given(&s->op->in[CACHED_SEGMENTS]))
            return a->cache_len;
        return d[DIM_T] == UNBOUND ? UNBOUND : d[DIM_T] / a->seq_len * a->cache_len;
    case DIM_1M:
        return d[DIM_M] == UNBOUND ? UNBOUND : 1 + d[DIM_M];
    case DIM_TS:
        return d[DIM_T] == UNBOUND || d[DIM_S] == UNBOUND ? UNBOUND : d[DIM_T] * d[DIM_S];
    case DIM_MN:
        return d[DIM_M] == UNBOUND || d[DIM_N] == UNBOUND ? UNBOUND : d[DIM_M] * d[DIM_N];
    case DIM_BLOCKS:
        return ceil_div(d[DIM_R] * d[DIM_D], OPS_NORM_BLOCK);
    default:
        return d[dim];
    }
}

static const char *dim_text(char *buffer, size_t size, int64_t value)
{
    if (value == UNBOUND)
        snprintf(buffer, size, "*");
    else
        snprintf(buffer, size, "%lld", (long long)value);
    return buffer;
}

static int wrong_shape(const struct solver *s, const char *operand, const struct tensor *t,
                       const struct operand_rule *rule)
{
    char rows[24], cols[24];

    return err_set(s->err, ERR_FAILED, "%s: %s is [%lld x %lld], wanted [%s x %s]", s->info->name,
                   operand, (long long)t->rows, (long long)t->cols,
                   dim_text(rows, sizeof rows, known(s, rule->rows)),
                   dim_text(cols, sizeof cols, known(s, rule->cols)));
}

/* After an extent was found to fit: remember what it says of a letter that was still free. */
static int bind(struct solver *s, enum dim dim, int64_t extent, const char *operand)
{
    const char *name = s->info->name;

    if (dim == DIM_2F) {
        if (extent % 2)
            return err_set(s->err, ERR_FAILED, "%s: %s has %lld columns, wanted an even number",
                           name, operand, (long long)extent);
        s->dims[DIM_F] = extent / 2;
    } else if (dim == DIM_MN) {
        /* Catalogue: the experts are known by then. */
        if (extent % s->dims[DIM_M])
            return err_set(s->err, ERR_FAILED, "%s: %s has %lld rows, wanted a multiple of %lld",
                           name, operand, (long long)extent, (long long)s->dims[DIM_M]);
        s->dims[DIM_N] = extent / s->dims[DIM_M];
    } else if (dim == DIM_SIZE_N && s->dims[DIM_N] != UNBOUND) {
        if (extent % s->dims[DIM_N])
            return err_set(s->err, ERR_FAILED, "%s: %s has %lld columns, wanted a multiple of %lld",
                           name, operand, (long long)extent, (long long)s->dims[DIM_N]);
    } else if (dim == DIM_N && s->dims[DIM_SIZE_N] != UNBOUND) {
        if (s->dims[DIM_SIZE_N] % extent)
            return err_set(s->err, ERR_FAILED, "%s: %s has %lld columns, wanted a divisor of %lld",
                           name, operand, (long long)extent, (long long)s->dims[DIM_SIZE_N]);
    } else if (dim == DIM_SIZE_T && s->dims[DIM_T] != UNBOUND) {
        if (extent % s->dims[DIM_T])
            return err_set(s->err, ERR_FAILED, "%s: %s has %lld rows, wanted a multiple of %lld",
                           name, operand, (long long)extent, (long long)s->dims[DIM_T]);
    } else if (dim == DIM_T && s->dims[DIM_SIZE_T] != UNBOUND) {
        if (s->dims[DIM_SIZE_T] % extent)
            return err_set(s->err, ERR_FAILED, "%s: %s has %lld rows, wanted a divisor of %lld",
                           name, operand, (long long)extent, (long long)s->dims[DIM_SIZE_T]);
    } else if (dim == DIM_T && has_sequences(s->op->kind) && !has_part_of_rows(s->op) &&
               extent % s->op->attributes.seq_len) {
        return err_set(s->err, ERR_FAILED, "%s: %s has %lld rows, wanted a multiple of seq_len %d",
                       name, operand, (long long)extent, s->op->attributes.seq_len);
    }
    if (dim != DIM_FREE)
        s->dims[dim] = extent;
    return 0;
}

static int check_dtype(struct solver *s, const char *operand, enum dtype dtype, enum type_rule rule)
{
    const char *wanted = NULL;
    int is_float = dtype == DTYPE_F32 || dtype == DTYPE_BF16 || dtype == DTYPE_F16;

    switch (rule) {
    case TYPE_F32:
        wanted = dtype == DTYPE_F32 ? NULL : "fp32";
        break;
    case TYPE_F64:
        wanted = dtype == DTYPE_F64 ? NULL : "fp64";
        break;
    case TYPE_I32:
        wanted = dtype == DTYPE_I32 ? NULL : "i32";
        break;
    case TYPE_I64:
        wanted = dtype == DTYPE_I64 ? NULL : "i64";
        break;
    case TYPE_STREAM:
        if (s->stream != UNBOUND)
            wanted = (int)dtype == s->stream ? NULL : dtype_name((enum dtype)s->stream);
        else
            wanted = dtype == DTYPE_F32 || dtype == DTYPE_BF16 ? NULL : "fp32 or bf16";
        s->stream = (int)dtype;
        break;
    case TYPE_KEPT:
        wanted = dtype == DTYPE_F32 || dtype == DTYPE_BF16 ? NULL : "fp32 or bf16";
        break;
    case TYPE_FLOAT:
        wanted = is_float ? NULL : "fp32, bf16 or fp16";
        break;
    case TYPE_ACT_OR_F32:
        wanted = dtype == DTYPE_F32 || (int)dtype == s->act ? NULL : "fp32 or its input's dtype";
        break;
    case TYPE_ACT:
    case TYPE_MOVED:
        if (s->act != UNBOUND)
            wanted = (int)dtype == s->act ? NULL : dtype_name((enum dtype)s->act);
        else if (!is_float && !(rule == TYPE_MOVED && dtype == DTYPE_F64))
            wanted = rule == TYPE_MOVED ? "fp32, bf16, fp16 or fp64" : "fp32, bf16 or fp16";
        s->act = (int)dtype;
        break;
    }
    if (!wanted)
        return 0;
    return err_set(s->err, ERR_FAILED, "%s: %s is %s, wanted %s", s->info->name, operand,
                   dtype_name(dtype), wanted);
}

static int check_operand(struct solver *s, const struct op_operand *operand,
                         const struct operand_rule *rule, const struct tensor *t)
{
    if (!tensor_given(t)) {
        if (operand->flags & OPERAND_OPTIONAL)
            return 0;
        return err_set(s->err, ERR_FAILED, "%s: %s is missing", s->info->name, operand->name);
    }

    int64_t rows = known(s, rule->rows), cols = known(s, rule->cols);

    if ((rows != UNBOUND && rows != t->rows) || (cols != UNBOUND && cols != t->cols) || t->cols < 1)
        return wrong_shape(s, operand->name, t, rule);
    if ((t->data || t->stride) && t->rows > 1 && t->stride < t->cols)
        return err_set(s->err, ERR_FAILED,
                       "%s: %s has a stride of %lld, wanted at least its %lld columns",
                       s->info->name, operand->name, (long long)t->stride, (long long)t->cols);
    if ((unsigned)t->dtype >= N_DTYPES)
        return err_set(s->err, ERR_FAILED, "%s: %s has dtype %d, which is none", s->info->name,
                       operand->name, (int)t->dtype);
    if (bind(s, rule->rows, t->rows, operand->name) || bind(s, rule->cols, t->cols, operand->name))
        return -1;
    return check_dtype(s, operand->name, t->dtype, rule->type);
}

/* What a part of something needs to know of the whole. */
static int check_parts(const struct solver *s)
{
    const struct op_shape *op = s->op;
    const struct tensor *in = op->in, *out = op->out;
    const char *name = s->info->name;

    if ((op->kind == OP_ALL_GATHER || op->kind == OP_REDUCE_SCATTER) && in[0].cols != out[0].cols) {
        if (in[0].rows != out[0].rows)
            return err_set(s->err, ERR_FAILED, "%s: [%lld x %lld] and [%lld x %lld] differ in both",
                           name, (long long)in[0].rows, (long long)in[0].cols,
                           (long long)out[0].rows, (long long)out[0].cols);
        if (in[0].rows != 1)
            return err_set(s->err, ERR_FAILED, "%s: %s has %lld rows, wanted 1 or equal columns",
                           name, s->info->inputs[0].name, (long long)in[0].rows);
    }
    if (has_part_of_rows(op) && in[0].rows > in[1].rows * op->attributes.seq_len)
        return err_set(s->err, ERR_FAILED, "%s: %s has %lld rows, wanted at most the %lld of %s",
                       name, s->info->inputs[0].name, (long long)in[0].rows,
                       (long long)in[1].rows * op->attributes.seq_len, s->info->inputs[1].name);
    if (op->kind == OP_CROSS_ENTROPY && in[1].rows != in[0].rows && !tensor_given(&in[4]))
        return err_set(s->err, ERR_FAILED,
                       "%s: begin is missing, wanted where stats has %lld parts", name,
                       (long long)(in[1].rows / in[0].rows));
    return 0;
}

/* Of a product's columns each part has its pair, or none. */
static int check_lora(const struct solver *s)
{
    const struct op_shape *op = s->op;
    const char *name = s->info->name;
    int64_t n = 0;

    for (int i = 0; i < OPS_LORA_PARTS; i++) {
        const struct tensor *h = &op->in[1 + 2 * i], *b = &op->in[2 + 2 * i];
        int part = op->attributes.parts[i];

        n += part;
        if (part < 0 || tensor_given(h) != tensor_given(b))
            return err_set(s->err, ERR_FAILED, "%s: h%d and b%d, wanted both or none", name, i, i);
        if (tensor_given(h) && (b->rows != part || b->cols != h->cols))
            return err_set(s->err, ERR_FAILED, "%s: b%d is [%lld x %lld], wanted [%d x %lld]", name,
                           i, (long long)b->rows, (long long)b->cols, part, (long long)h->cols);
    }
    if (n != op->out[0].cols)
        return err_set(s->err, ERR_FAILED, "%s: parts have %lld columns, wanted %lld", name,
                       (long long)n, (long long)op->out[0].cols);
    return 0;
}

static int check_router(const struct solver *s)
{
    const struct op_shape *op = s->op;
    const char *name = s->info->name;
    int grad = op->kind == OP_ROUTER_GRAD;
    int64_t slots = grad ? op->in[0].cols : op->out[0].cols;
    int64_t experts = grad ? op->out[0].cols : op->in[0].cols;

    if (slots > experts)
        return err_set(s->err, ERR_FAILED, "%s: weight has %lld columns, wanted at most %lld", name,
                       (long long)slots, (long long)experts);
    if (!grad)
        return 0;
    if (!(op->attributes.balance >= 0))
        return err_set(s->err, ERR_FAILED, "%s: balance is %g, wanted at least 0", name,
                       op->attributes.balance);
    if ((!op->attributes.normalize || op->attributes.balance > 0) && !tensor_given(&op->in[3]))
        return err_set(s->err, ERR_FAILED,
                       "%s: logits is missing, wanted where weights are not normalized or "
                       "balance is %g",
                       name, op->attributes.balance);
    return 0;
}

/* What no single operand can say. */
static int check_whole(const struct solver *s)
{
    const struct op_shape *op = s->op;
    const char *name = s->info->name;
    int sample = op->kind == OP_ATTENTION ? 1 : op->kind == OP_ATTENTION_GRAD ? 4 : 0;

    if (sample && op->attributes.p > 0 && !tensor_given(&op->in[sample]))
        return err_set(s->err, ERR_FAILED, "%s: sample is missing, wanted where p is %g", name,
                       op->attributes.p);
    if (s->stream == DTYPE_BF16 && s->act != UNBOUND && s->act != DTYPE_BF16)
        return err_set(s->err, ERR_FAILED, "%s: a residual stream of bf16 beside %s, wanted bf16",
                       name, dtype_name((enum dtype)s->act));
    if (op->kind == OP_LORA && check_lora(s))
        return -1;
    if (op->kind == OP_ADD &&
        (op->in[0].dtype != op->out[0].dtype ||
         (op->out[0].dtype != DTYPE_F32 && op->in[1].dtype != op->out[0].dtype)))
        return err_set(s->err, ERR_FAILED, "%s: %s + %s is %s, wanted fp32, or all bf16 or fp16",
                       name, dtype_name(op->in[0].dtype), dtype_name(op->in[1].dtype),
                       dtype_name(op->out[0].dtype));
    if ((op->kind == OP_ROUTER || op->kind == OP_ROUTER_GRAD) && check_router(s))
        return -1;
    if (op->kind == OP_CAST && op->in[0].dtype == op->out[0].dtype)
        return err_set(s->err, ERR_FAILED, "%s: y is %s, wanted another dtype than x", name,
                       dtype_name(op->out[0].dtype));
    for (int i = s->info->n_inputs; i < OPS_MAX_INPUTS; i++)
        if (tensor_given(&op->in[i]))
            return err_set(s->err, ERR_FAILED, "%s: has an input %d, wanted %d in all", name, i + 1,
                           s->info->n_inputs);
    for (int i = s->info->n_outputs; i < OPS_MAX_OUTPUTS; i++)
        if (tensor_given(&op->out[i]))
            return err_set(s->err, ERR_FAILED, "%s: has an output %d, wanted %d in all", name,
                           i + 1, s->info->n_outputs);
    return 0;
}

int op_check(const struct op_shape *op, struct err *err)
{
    struct solver s;

    if ((unsigned)op->kind >= N_OP_KINDS)
        return err_set(err, ERR_FAILED, "op kind is %d, wanted 0..%d", (int)op->kind,
                       N_OP_KINDS - 1);

    const struct op_rules *rules = op_rules(op->kind);

    solver_init(&s, op, err);
    if (check_attributes(&s))
        return -1;
    for (int i = 0; i < s.info->n_inputs; i++)
        if (check_operand(&s, &s.info->inputs[i], &rules->inputs[i], &op->in[i]))
            return -1;
    for (int i = 0; i < s.info->n_outputs; i++)
        if (check_operand(&s, &s.info->outputs[i], &rules->outputs[i], &op->out[i]))
            return -1;
    if (op->kind == OP_ADAMW && check_states(&s))
        return -1;
    return check_parts(&s) || check_whole(&s) ? -1 : 0;
}
