/*
 * check.c - whether an op's operands fit its kind
 *
 * The dimensions of an op are solved operand by operand, in the row's order: the first that has a
 * letter binds it, all others must agree. A derived dimension (2f, sequences, blocks) is computed
 * once what it derives from is bound, and else binds that backwards. What the row's operands cannot
 * say, the functions of the kind check.
 */
#include <stdio.h>

#include "base/num.h"
#include "ops/family_impl.h"

#define UNBOUND (-1)

struct solver {
    const struct op_shape *op;
    const struct op_info *info;
    int64_t dims[N_DIMS];
    int act;    /* dtype that TYPE_ACT, TYPE_MOVED or TYPE_ANY was bound to, or UNBOUND */
    int stream; /* that TYPE_STREAM was bound to, or UNBOUND */
    struct err *err;
};

static int check_heads(const struct solver *s)
{
    const struct op_attributes *a = &s->op->attributes;
    const char *name = s->info->name;
    int even = s->info->attributes & ATTRIBUTE_EVEN_HEAD;

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

static int check_attributes(const struct solver *s)
{
    const struct op_attributes *a = &s->op->attributes;
    unsigned used = s->info->attributes;
    const char *name = s->info->name;

    if ((used & ATTRIBUTE_HEADS) && check_heads(s))
        return -1;
    if ((used & ATTRIBUTE_VOCAB_SIZE) && a->vocab_size < 1)
        return err_set(s->err, ERR_FAILED, "%s: vocab_size is %d, wanted at least 1", name,
                       a->vocab_size);
    if ((used & ATTRIBUTE_SEQ_LEN) && a->seq_len < 1)
        return err_set(s->err, ERR_FAILED, "%s: seq_len is %d, wanted at least 1", name,
                       a->seq_len);
    if ((used & ATTRIBUTE_CHUNK) && a->chunk < 1)
        return err_set(s->err, ERR_FAILED, "%s: chunk is %d, wanted at least 1", name, a->chunk);
    if ((used & ATTRIBUTE_P) && !(a->p >= 0 && a->p < 1))
        return err_set(s->err, ERR_FAILED, "%s: p is %g, wanted 0 <= p < 1", name, a->p);
    if ((used & ATTRIBUTE_EPS) && !(a->eps >= 0))
        return err_set(s->err, ERR_FAILED, "%s: eps is %g, wanted at least 0", name, a->eps);
    if ((unsigned)a->axis >= N_GROUP_AXES)
        return err_set(s->err, ERR_FAILED, "%s: axis is %d, wanted 0..%d", name, (int)a->axis,
                       N_GROUP_AXES - 1);
    return s->info->check_attributes ? s->info->check_attributes(s->op, s->err) : 0;
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
    s->dims[DIM_TWO] = 2;
    s->dims[DIM_THREE] = 3;
    s->dims[DIM_SCALARS] = OPS_N_SCALARS;
    s->dims[DIM_STATS] = OPS_N_STATS;
    if (s->info->attributes & ATTRIBUTE_HEADS) {
        s->dims[DIM_C] = (h + 2 * g) * e;
        s->dims[DIM_QK] = (h + g) * e;
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

    switch (dim) {
    case DIM_FREE:
        return UNBOUND;
    case DIM_2F:
        return d[DIM_F] == UNBOUND ? UNBOUND : 2 * d[DIM_F];
    case DIM_HV:
        return d[DIM_GV] == UNBOUND
                   ? UNBOUND
                   : d[DIM_GV] / s->op->attributes.n_kv_heads * s->op->attributes.n_heads;
    case DIM_STATE:
        return d[DIM_GV] == UNBOUND ? UNBOUND
                                    : known(s, DIM_HV) + 2 * (int64_t)s->op->attributes.n_heads;
    case DIM_SEQUENCES:
        return d[DIM_T] == UNBOUND ? UNBOUND : d[DIM_T] / s->op->attributes.seq_len;
    case DIM_1M:
        return d[DIM_M] == UNBOUND ? UNBOUND : 1 + d[DIM_M];
    case DIM_TS:
        return d[DIM_T] == UNBOUND || d[DIM_S] == UNBOUND ? UNBOUND : d[DIM_T] * d[DIM_S];
    case DIM_MN:
        return d[DIM_M] == UNBOUND || d[DIM_N] == UNBOUND ? UNBOUND : d[DIM_M] * d[DIM_N];
    case DIM_BLOCKS:
        return ceil_div(d[DIM_R] * d[DIM_D], OPS_NORM_BLOCK);
    case DIM_STATE_BLOCKS:
        return ceil_div(d[DIM_R] * d[DIM_D], OPS_STATE_BLOCK);
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

static int wrong_shape(const struct solver *s, const struct op_operand *operand,
                       const struct tensor *t)
{
    char rows[24], cols[24];

    return err_set(s->err, ERR_FAILED, "%s: %s is [%lld x %lld], wanted [%s x %s]", s->info->name,
                   operand->name, (long long)t->rows, (long long)t->cols,
                   dim_text(rows, sizeof rows, known(s, operand->rows)),
                   dim_text(cols, sizeof cols, known(s, operand->cols)));
}

/* Value heads of one width, which those of the output have, too; a state's have a maximum and a sum
 * besides. */
static int bind_values(struct solver *s, enum dim dim, int64_t extent, const char *operand)
{
    const struct op_attributes *a = &s->op->attributes;
    int64_t n = dim == DIM_GV ? a->n_kv_heads : a->n_heads;
    int64_t width = extent / n - (dim == DIM_STATE ? 2 : 0);

    if (extent % n)
        return err_set(s->err, ERR_FAILED, "%s: %s has %lld columns, wanted a multiple of %lld",
                       s->info->name, operand, (long long)extent, (long long)n);
    if (width < 1 || width > OPS_HEAD_DIM_MAX)
        return err_set(s->err, ERR_FAILED, "%s: %s has heads of %lld columns, wanted 1..%d",
                       s->info->name, operand, (long long)width, OPS_HEAD_DIM_MAX);
    s->dims[DIM_GV] = width * a->n_kv_heads;
    return 0;
}

/* Bind a dimension that was still free to the value that follows from an extent. */
static int bind(struct solver *s, enum dim dim, int64_t extent, const char *operand)
{
    const char *name = s->info->name;

    if (dim == DIM_2F) {
        if (extent % 2)
            return err_set(s->err, ERR_FAILED, "%s: %s has %lld columns, wanted an even number",
                           name, operand, (long long)extent);
        s->dims[DIM_F] = extent / 2;
    } else if (dim == DIM_GV || dim == DIM_HV || dim == DIM_STATE) {
        return bind_values(s, dim, extent, operand);
    } else if (dim == DIM_MN) {
        /* In each such row the experts are known by then. */
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
    } else if (dim == DIM_T && (s->info->attributes & ATTRIBUTE_SEQ_LEN) &&
               !s->op->attributes.part_rows && extent % s->op->attributes.seq_len) {
        return err_set(s->err, ERR_FAILED, "%s: %s has %lld rows, wanted a multiple of seq_len %d",
                       name, operand, (long long)extent, s->op->attributes.seq_len);
    }
    if (dim != DIM_FREE)
        s->dims[dim] = extent;
    return 0;
}

static int check_dtype(struct solver *s, const char *operand, enum dtype dtype,
                       enum operand_type rule)
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
    case TYPE_U8:
        wanted = dtype == DTYPE_U8 ? NULL : "u8";
        break;
    case TYPE_I16:
        wanted = dtype == DTYPE_I16 ? NULL : "i16";
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
    case TYPE_STATE:
        wanted = is_float || dtype == DTYPE_U8 ? NULL : "fp32, bf16, fp16 or u8";
        break;
    case TYPE_FLOAT:
        wanted = is_float ? NULL : "fp32, bf16 or fp16";
        break;
    case TYPE_ACT_OR_F32:
        wanted = dtype == DTYPE_F32 || (int)dtype == s->act ? NULL : "fp32 or its input's dtype";
        break;
    case TYPE_ACT_OR_U8:
        wanted = dtype == DTYPE_U8 || s->act == UNBOUND || (int)dtype == s->act
                     ? NULL
                     : "u8 or its input's dtype";
        if (dtype != DTYPE_U8)
            s->act = (int)dtype;
        break;
    case TYPE_ANY:
        wanted = s->act == UNBOUND || (int)dtype == s->act ? NULL : dtype_name((enum dtype)s->act);
        s->act = (int)dtype;
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

static int check_operand(struct solver *s, const struct op_operand *operand, const struct tensor *t)
{
    if (!tensor_given(t)) {
        if (operand->flags & OPERAND_OPTIONAL)
            return 0;
        return err_set(s->err, ERR_FAILED, "%s: %s is missing", s->info->name, operand->name);
    }

    int64_t rows = known(s, operand->rows), cols = known(s, operand->cols);

    if ((rows != UNBOUND && rows != t->rows) || (cols != UNBOUND && cols != t->cols) || t->cols < 1)
        return wrong_shape(s, operand, t);
    if ((t->data || t->stride) && t->rows > 1 && t->stride < t->cols)
        return err_set(s->err, ERR_FAILED,
                       "%s: %s has a stride of %lld, wanted at least its %lld columns",
                       s->info->name, operand->name, (long long)t->stride, (long long)t->cols);
    if ((unsigned)t->dtype >= N_DTYPES)
        return err_set(s->err, ERR_FAILED, "%s: %s has the unknown dtype %d", s->info->name,
                       operand->name, (int)t->dtype);
    if (bind(s, operand->rows, t->rows, operand->name) ||
        bind(s, operand->cols, t->cols, operand->name))
        return -1;
    return check_dtype(s, operand->name, t->dtype, operand->type);
}

int check_rows(const struct op_shape *op, int input, int64_t rows, struct err *err)
{
    const struct op_info *info = op_info(op->kind);
    const struct tensor *t = &op->in[input];

    if (!tensor_given(t) || t->rows == rows)
        return 0;
    return err_set(err, ERR_FAILED, "%s: %s is [%lld x %lld], wanted [%lld x %lld]", info->name,
                   info->inputs[input].name, (long long)t->rows, (long long)t->cols,
                   (long long)rows, (long long)t->cols);
}

int ops_rounded_output(const struct op_shape *op)
{
    int given[OPS_MAX_OUTPUTS];

    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        given[k] = tensor_given(&op->out[k]);
    return op_rounded_output(op_info(op->kind), given);
}

/* Codes, and what their scales are made of (op_info.h). */
static int check_codes(const struct op_shape *op, struct err *err)
{
    const struct op_info *info = op_info(op->kind);
    int codes = info->codes_output - 1, rounded = ops_rounded_output(op);
    const struct tensor *most = &op->out[codes + 1], *x = &op->out[rounded];
    bool has_codes = tensor_given(&op->out[codes]);
    int64_t n = has_codes ? (x->cols + OPS_FP8_BLOCK - 1) / OPS_FP8_BLOCK : 1;

    if (!tensor_given(most) && !has_codes)
        return 0;
    if (!tensor_given(most) || !tensor_given(x))
        return err_set(err, ERR_FAILED, "%s: %s is missing, with codes", info->name,
                       info->outputs[tensor_given(x) ? codes + 1 : rounded].name);
    if (x->dtype != DTYPE_BF16)
        return err_set(err, ERR_FAILED, "%s: %s is %s, wanted bf16, with codes", info->name,
                       info->outputs[rounded].name, dtype_name(x->dtype));
    if (most->cols != n)
        return err_set(err, ERR_FAILED, "%s: most is [%lld x %lld], wanted [%lld x %lld]",
                       info->name, (long long)most->rows, (long long)most->cols, (long long)x->rows,
                       (long long)n);
    return 0;
}

/* What no single operand can say. */
static int check_whole(const struct solver *s)
{
    const struct op_shape *op = s->op;
    const char *name = s->info->name;

    if (s->stream == DTYPE_BF16 && s->act != UNBOUND && s->act != DTYPE_BF16)
        return err_set(s->err, ERR_FAILED, "%s: a residual stream of bf16 beside %s, wanted bf16",
                       name, dtype_name((enum dtype)s->act));
    for (int i = s->info->n_inputs; i < OPS_MAX_INPUTS; i++)
        if (tensor_given(&op->in[i]))
            return err_set(s->err, ERR_FAILED, "%s: has an input %d, wanted %d in all", name, i + 1,
                           s->info->n_inputs);
    for (int i = s->info->n_outputs; i < OPS_MAX_OUTPUTS; i++)
        if (tensor_given(&op->out[i]))
            return err_set(s->err, ERR_FAILED, "%s: has an output %d, wanted %d in all", name,
                           i + 1, s->info->n_outputs);
    if (s->info->codes_output && check_codes(op, s->err))
        return -1;
    return s->info->check ? s->info->check(op, s->err) : 0;
}

int op_check(const struct op_shape *op, struct err *err)
{
    struct op_shape in_rows;
    struct solver s;

    if ((unsigned)op->kind >= N_OP_KINDS)
        return err_set(err, ERR_FAILED, "op kind is %d, wanted 0..%d", (int)op->kind,
                       N_OP_KINDS - 1);
    if (check_row_runs(op, err))
        return -1;
    in_rows = op_in_rows(op);
    op = &in_rows;

    solver_init(&s, op, err);
    if (check_attributes(&s))
        return -1;
    for (int i = 0; i < s.info->n_inputs; i++)
        if (check_operand(&s, &s.info->inputs[i], &op->in[i]))
            return -1;
    for (int i = 0; i < s.info->n_outputs; i++)
        if (check_operand(&s, &s.info->outputs[i], &op->out[i]))
            return -1;
    return check_whole(&s);
}
