/*
 * attention.c - rotary positions, and attention with its gradient and its cache
 */
#include <math.h>

#include "base/num.h"
#include "ops/attention_sight_impl.h"

/* What is rotated is whole heads, of whatever number. */
static int check_whole_heads(const struct op_shape *op, struct err *err)
{
    const struct op_info *info = op_info(op->kind);
    const struct tensor *x = &op->in[OPS_FIRST];

    if (x->cols % op->attributes.head_dim)
        return err_set(err, ERR_FAILED, "%s: %s has %lld columns, wanted a multiple of head_dim %d",
                       info->name, info->inputs[0].name, (long long)x->cols,
                       op->attributes.head_dim);
    return 0;
}

static void rope_backward(struct backward *b, const struct op_node *op)
{
    int dout = b->take_gradient(b, op->out[ROPE_OUT]), x = op->in[ROPE_X], dx;

    b->new_gradients(b, &x, 1, &dx);
    b->emit(b, &(struct op_node){ .kind = OP_ROPE_GRAD,
                                  .attributes = op->attributes,
                                  .in = { [ROPE_GRAD_DOUT] = dout,
                                          [ROPE_GRAD_POSITION] = op->in[ROPE_POSITION],
                                          [ROPE_GRAD_TABLE] = op->in[ROPE_TABLE] },
                                  .out = { [ROPE_GRAD_DX] = dx } });
    b->add_gradients(b, &x, 1, &dx);
}

static const struct op_info rope = {
    .name = "rope",
    .family = FAMILY_ROPE,
    .n_inputs = 3,
    .inputs = {
        [ROPE_X] = { "x", DIM_T, DIM_D, TYPE_ACT, OPERAND_PLAIN },
        [ROPE_POSITION] = { "position", DIM_T, DIM_ONE, TYPE_I32, OPERAND_PLAIN },
        [ROPE_TABLE] = { "table", DIM_FREE, DIM_E, TYPE_F32, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [ROPE_OUT] = { "out", DIM_T, DIM_D, TYPE_ACT, OPERAND_IN_PLACE },
    },
    .traits = TRAIT_BY_ROWS,
    .attributes = ATTRIBUTE_HEADS | ATTRIBUTE_EVEN_HEAD,
    .feature = FEATURE_ROPE,
    .spread_form = { .data = IN(ROPE_X),
                     .rowwise = IN(ROPE_POSITION),
                     .allowed = MAY_ROWS | MAY_COLS },
    .flops_per_element = 3,
    .check = check_whole_heads,
    .backward = rope_backward,
};

static const struct op_info rope_grad = {
    .name = "rope_grad",
    .family = FAMILY_ROPE,
    .n_inputs = 3,
    .inputs = {
        [ROPE_GRAD_DOUT] = { "dout", DIM_T, DIM_D, TYPE_ACT, OPERAND_PLAIN },
        [ROPE_GRAD_POSITION] = { "position", DIM_T, DIM_ONE, TYPE_I32, OPERAND_PLAIN },
        [ROPE_GRAD_TABLE] = { "table", DIM_FREE, DIM_E, TYPE_F32, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [ROPE_GRAD_DX] = { "dx", DIM_T, DIM_D, TYPE_ACT, OPERAND_IN_PLACE },
    },
    .traits = TRAIT_BY_ROWS,
    .attributes = ATTRIBUTE_HEADS | ATTRIBUTE_EVEN_HEAD,
    .spread_form = { .data = IN(ROPE_GRAD_DOUT),
                     .rowwise = IN(ROPE_GRAD_POSITION),
                     .allowed = MAY_ROWS | MAY_COLS },
    .flops_per_element = 3,
    .check = check_whole_heads,
};

double ops_alibi_slope(int head, int n_heads)
{
    int n = 1; /* the largest power of two among them; the others go between its first slopes */

    CHECK(head >= 0);
    CHECK(head < n_heads);
    while (2 * n <= n_heads)
        n *= 2;
    return head < n ? exp2(-8.0 * (head + 1) / n) : exp2(-4.0 * (2 * (head - n) + 1) / n);
}

/* What of a sequence a head sees, and how it weighs distance. */
static int check_sight(const struct op_shape *op, const struct tensor *head_offset, struct err *err)
{
    const struct op_attributes *a = &op->attributes;
    const char *name = op_name(op->kind);

    if (a->window < 0)
        return err_set(err, ERR_FAILED, "%s: window is %d, wanted at least 0", name, a->window);
    if (a->alibi && a->alibi < a->n_heads)
        return err_set(err, ERR_FAILED, "%s: alibi is %d, wanted 0 or at least n_heads %d", name,
                       a->alibi, a->n_heads);
    if (a->alibi > a->n_heads && !tensor_given(head_offset))
        return err_set(err, ERR_FAILED,
                       "%s: head_offset is missing, wanted where %d heads are a part of %d", name,
                       a->n_heads, a->alibi);
    return 0;
}

static int check_sample(const struct op_shape *op, const struct tensor *sample, struct err *err)
{
    if (op->attributes.p > 0 && !tensor_given(sample))
        return err_set(err, ERR_FAILED, "%s: sample is missing, wanted where p is %g",
                       op_name(op->kind), op->attributes.p);
    return 0;
}

int spread_heads(const struct spread_query *q, const struct spread_form *form, int head_offset,
                 int is_numbered)
{
    int heads_split = q->in[__builtin_ctz(form->data)] == SPREAD_COLS;

    if (heads_split && (is_numbered || spread_given(q, head_offset))) {
        if (!spread_given(q, head_offset))
            return err_set(q->err, ERR_FAILED, "%s: heads are split(cols), wanted head_offset",
                           q->info->name);
        if (spread_want(q, head_offset, SPREAD_COLS))
            return -1;
        return spread_alike(q, form->data | IN(head_offset), form->rowwise, MAY_COLS);
    }
    return spread_alike(q, form->data, form->rowwise, form->allowed);
}

bool spread_has_all_keys(const struct spread_query *q, int queries, int keys)
{
    return q->in[queries] == SPREAD_ROWS && q->in[keys] == SPREAD_SAME;
}

int spread_queries(const struct spread_query *q, unsigned with_queries, int last)
{
    if (!spread_given(q, last))
        return err_set(q->err, ERR_FAILED,
                       "%s: queries are split(rows) and keys the same, wanted last", q->info->name);
    for (int i = 0; i < q->info->n_inputs; i++)
        if (spread_want(q, i, with_queries >> i & 1 ? SPREAD_ROWS : SPREAD_SAME))
            return -1;
    spread_give_all(q, SPREAD_ROWS);
    return 0;
}

double attention_pairs(const struct op_shape *op, const struct tensor *queries,
                       const struct tensor *keys)
{
    double key_len = ops_key_len(op, queries, keys), window = op->attributes.window;

    if (window < 1 || window > key_len)
        window = key_len;
    /* The first `window` positions see one more each, all others as many. */
    return (double)queries->rows * (window - window * (window - 1) / (2 * key_len)) *
           op->attributes.n_heads;
}

int check_keys(const struct op_shape *op, int q, int k, int last, struct err *err)
{
    const char *name = op_name(op->kind);
    int64_t n_sequences = op->in[q].rows / op->attributes.seq_len;

    if (op->in[k].rows % n_sequences)
        return err_set(err, ERR_FAILED, "%s: k has %lld rows, wanted a multiple of %lld sequences",
                       name, (long long)op->in[k].rows, (long long)n_sequences);
    if (op->in[k].rows != op->in[q].rows && !tensor_given(&op->in[last]))
        return err_set(err, ERR_FAILED,
                       "%s: last is missing, wanted where k has %lld rows and q %lld", name,
                       (long long)op->in[k].rows, (long long)op->in[q].rows);
    return 0;
}

static int attention_check_attributes(const struct op_shape *op, struct err *err)
{
    return check_sight(op, &op->in[ATTENTION_HEAD_OFFSET], err);
}

static int attention_check(const struct op_shape *op, struct err *err)
{
    if (check_keys(op, ATTENTION_Q, ATTENTION_K, ATTENTION_LAST, err))
        return -1;
    return check_sample(op, &op->in[ATTENTION_SAMPLE], err);
}

static int attention_spread(const struct spread_query *q)
{
    static const struct spread_form form = { IN(ATTENTION_Q) | IN(ATTENTION_K) | IN(ATTENTION_V),
                                             IN(ATTENTION_SAMPLE) | IN(ATTENTION_FIRST) |
                                                 IN(ATTENTION_LAST),
                                             MAY_ROWS | MAY_COLS };
    int is_numbered = q->op->attributes.alibi || spread_given(q, ATTENTION_SAMPLE);

    if (spread_has_all_keys(q, ATTENTION_Q, ATTENTION_K))
        return spread_queries(q, IN(ATTENTION_Q) | IN(ATTENTION_FIRST) | IN(ATTENTION_LAST),
                              ATTENTION_LAST);
    return spread_heads(q, &form, ATTENTION_HEAD_OFFSET, is_numbered);
}

static double attention_flops(const struct op_shape *op)
{
    return 2 * attention_pairs(op, &op->in[ATTENTION_Q], &op->in[ATTENTION_K]) *
           (op->attributes.head_dim + ops_value_dim(op, &op->in[ATTENTION_V]));
}

static void attention_backward(struct backward *b, const struct op_node *op)
{
    int dout = b->take_gradient(b, op->out[ATTENTION_OUT]);
    const int *qkv = &op->in[ATTENTION_Q];
    int dqkv[3];

    b->new_gradients(b, qkv, 3, dqkv);
    b->emit(b,
            &(struct op_node){ .kind = OP_ATTENTION_GRAD,
                               .attributes = op->attributes,
                               .in = { [ATTENTION_GRAD_DOUT] = dout,
                                       [ATTENTION_GRAD_Q] = op->in[ATTENTION_Q],
                                       [ATTENTION_GRAD_K] = op->in[ATTENTION_K],
                                       [ATTENTION_GRAD_V] = op->in[ATTENTION_V],
                                       [ATTENTION_GRAD_OUT] = op->out[ATTENTION_OUT],
                                       [ATTENTION_GRAD_LSE] = op->out[ATTENTION_LSE],
                                       [ATTENTION_GRAD_SAMPLE] = op->in[ATTENTION_SAMPLE],
                                       [ATTENTION_GRAD_HEAD_OFFSET] = op->in[ATTENTION_HEAD_OFFSET],
                                       [ATTENTION_GRAD_FIRST] = op->in[ATTENTION_FIRST],
                                       [ATTENTION_GRAD_LAST] = op->in[ATTENTION_LAST] },
                               .out = { [ATTENTION_GRAD_DQ] = dqkv[0],
                                        [ATTENTION_GRAD_DK] = dqkv[1],
                                        [ATTENTION_GRAD_DV] = dqkv[2] } });
    b->add_gradients(b, qkv, 3, dqkv);
}

static const struct op_info attention = {
    .name = "attention",
    .family = FAMILY_ATTENTION,
    .n_inputs = 7,
    .inputs = {
        [ATTENTION_Q] = { "q", DIM_T, DIM_HE, TYPE_ACT, OPERAND_PLAIN },
        [ATTENTION_K] = { "k", DIM_U, DIM_GE, TYPE_ACT, OPERAND_SEQUENCES },
        [ATTENTION_V] = { "v", DIM_U, DIM_GV, TYPE_ACT, OPERAND_SEQUENCES },
        [ATTENTION_SAMPLE] = { "sample", DIM_SEQUENCES, DIM_ONE, TYPE_I64, OPERAND_OPTIONAL },
        [ATTENTION_HEAD_OFFSET] = { "head_offset", DIM_ONE, DIM_ONE, TYPE_I32, OPERAND_OPTIONAL },
        [ATTENTION_FIRST] = { "first", DIM_T, DIM_ONE, TYPE_I32, OPERAND_OPTIONAL },
        [ATTENTION_LAST] = { "last", DIM_T, DIM_ONE, TYPE_I32, OPERAND_OPTIONAL },
    },
    .n_outputs = 2,
    .outputs = {
        [ATTENTION_OUT] = { "out", DIM_T, DIM_HV, TYPE_ACT, OPERAND_PLAIN },
        [ATTENTION_LSE] = { "lse", DIM_T, DIM_H, TYPE_F32, OPERAND_PLAIN },
    },
    .traits = TRAIT_BY_ROWS,
    .attributes = ATTRIBUTE_HEADS | ATTRIBUTE_SEQ_LEN | ATTRIBUTE_P,
    .feature = FEATURE_ANY_MODEL,
    .check_attributes = attention_check_attributes,
    .check = attention_check,
    .spread = attention_spread,
    .flops = attention_flops,
    .backward = attention_backward,
};

static int attention_grad_check_attributes(const struct op_shape *op, struct err *err)
{
    return check_sight(op, &op->in[ATTENTION_GRAD_HEAD_OFFSET], err);
}

static int attention_grad_check(const struct op_shape *op, struct err *err)
{
    if (check_keys(op, ATTENTION_GRAD_Q, ATTENTION_GRAD_K, ATTENTION_GRAD_LAST, err))
        return -1;
    return check_sample(op, &op->in[ATTENTION_GRAD_SAMPLE], err);
}

static int attention_grad_spread(const struct spread_query *q)
{
    static const struct spread_form form = { IN(ATTENTION_GRAD_DOUT) | IN(ATTENTION_GRAD_Q) |
                                                 IN(ATTENTION_GRAD_K) | IN(ATTENTION_GRAD_V) |
                                                 IN(ATTENTION_GRAD_OUT) | IN(ATTENTION_GRAD_LSE),
                                             IN(ATTENTION_GRAD_SAMPLE) | IN(ATTENTION_GRAD_FIRST) |
                                                 IN(ATTENTION_GRAD_LAST),
                                             MAY_ROWS | MAY_COLS };
    static const unsigned with_queries = IN(ATTENTION_GRAD_DOUT) | IN(ATTENTION_GRAD_Q) |
                                         IN(ATTENTION_GRAD_OUT) | IN(ATTENTION_GRAD_LSE) |
                                         IN(ATTENTION_GRAD_FIRST) | IN(ATTENTION_GRAD_LAST);
    int is_numbered = q->op->attributes.alibi || spread_given(q, ATTENTION_GRAD_SAMPLE);

    if (spread_has_all_keys(q, ATTENTION_GRAD_Q, ATTENTION_GRAD_K)) {
        if (spread_queries(q, with_queries, ATTENTION_GRAD_LAST))
            return -1;
        q->out[ATTENTION_GRAD_DK] = q->out[ATTENTION_GRAD_DV] = SPREAD_PARTIAL;
        return 0;
    }
    return spread_heads(q, &form, ATTENTION_GRAD_HEAD_OFFSET, is_numbered);
}

/* Scores, and gradients of queries and keys; probabilities', and values' gradients. */
static double attention_grad_flops(const struct op_shape *op)
{
    return 2 * attention_pairs(op, &op->in[ATTENTION_GRAD_Q], &op->in[ATTENTION_GRAD_K]) *
           (3 * op->attributes.head_dim + 2 * ops_value_dim(op, &op->in[ATTENTION_GRAD_V]));
}

static const struct op_info attention_grad = {
    .name = "attention_grad",
    .family = FAMILY_ATTENTION,
    .n_inputs = 10,
    .inputs = {
        [ATTENTION_GRAD_DOUT] = { "dout", DIM_T, DIM_HV, TYPE_ACT, OPERAND_PLAIN },
        [ATTENTION_GRAD_Q] = { "q", DIM_T, DIM_HE, TYPE_ACT, OPERAND_PLAIN },
        [ATTENTION_GRAD_K] = { "k", DIM_U, DIM_GE, TYPE_ACT, OPERAND_SEQUENCES },
        [ATTENTION_GRAD_V] = { "v", DIM_U, DIM_GV, TYPE_ACT, OPERAND_SEQUENCES },
        [ATTENTION_GRAD_OUT] = { "out", DIM_T, DIM_HV, TYPE_ACT, OPERAND_PLAIN },
        [ATTENTION_GRAD_LSE] = { "lse", DIM_T, DIM_H, TYPE_F32, OPERAND_PLAIN },
        [ATTENTION_GRAD_SAMPLE] = { "sample", DIM_SEQUENCES, DIM_ONE, TYPE_I64, OPERAND_OPTIONAL },
        [ATTENTION_GRAD_HEAD_OFFSET] = { "head_offset", DIM_ONE, DIM_ONE, TYPE_I32,
                                         OPERAND_OPTIONAL },
        [ATTENTION_GRAD_FIRST] = { "first", DIM_T, DIM_ONE, TYPE_I32, OPERAND_OPTIONAL },
        [ATTENTION_GRAD_LAST] = { "last", DIM_T, DIM_ONE, TYPE_I32, OPERAND_OPTIONAL },
    },
    .n_outputs = 3,
    .outputs = {
        [ATTENTION_GRAD_DQ] = { "dq", DIM_T, DIM_HE, TYPE_ACT, OPERAND_PLAIN },
        [ATTENTION_GRAD_DK] = { "dk", DIM_U, DIM_GE, TYPE_ACT, OPERAND_PLAIN },
        [ATTENTION_GRAD_DV] = { "dv", DIM_U, DIM_GV, TYPE_ACT, OPERAND_PLAIN },
    },
    .traits = TRAIT_BY_ROWS,
    .attributes = ATTRIBUTE_HEADS | ATTRIBUTE_SEQ_LEN | ATTRIBUTE_P,
    .check_attributes = attention_grad_check_attributes,
    .check = attention_grad_check,
    .spread = attention_grad_spread,
    .flops = attention_grad_flops,
};

static int attention_cached_check_attributes(const struct op_shape *op, struct err *err)
{
    const char *name = op_name(op->kind);

    if (check_sight(op, &op->in[ATTENTION_CACHED_HEAD_OFFSET], err))
        return -1;
    if (op->attributes.cache_len < 1)
        return err_set(err, ERR_FAILED, "%s: cache_len is %d, wanted at least 1", name,
                       op->attributes.cache_len);
    if (tensor_given(&op->in[ATTENTION_CACHED_SEGMENT]) !=
        tensor_given(&op->in[ATTENTION_CACHED_SEGMENTS]))
        return err_set(err, ERR_FAILED, "%s: segment and segments come together", name);
    return 0;
}

/* With segments the cache is of all rows, else of each sequence. */
static int attention_cached_check(const struct op_shape *op, struct err *err)
{
    const struct op_attributes *a = &op->attributes;
    int64_t n_caches = tensor_given(&op->in[ATTENTION_CACHED_SEGMENTS])
                           ? 1
                           : op->in[ATTENTION_CACHED_Q].rows / a->seq_len;

    if (check_rows(op, ATTENTION_CACHED_KEYS, n_caches * a->cache_len, err))
        return -1;
    return check_rows(op, ATTENTION_CACHED_VALUES, n_caches * a->cache_len, err);
}

/* Segments are of all rows. */
static int attention_cached_spread(const struct spread_query *q)
{
    static const struct spread_form form = { IN(ATTENTION_CACHED_Q) | IN(ATTENTION_CACHED_K) |
                                                 IN(ATTENTION_CACHED_V) |
                                                 IN(ATTENTION_CACHED_KEYS) |
                                                 IN(ATTENTION_CACHED_VALUES),
                                             IN(ATTENTION_CACHED_POSITION), MAY_ROWS | MAY_COLS };
    int has_segments = spread_given(q, ATTENTION_CACHED_SEGMENTS);

    if (has_segments && q->in[ATTENTION_CACHED_Q] == SPREAD_ROWS)
        return err_set(q->err, ERR_FAILED, "%s: rows are split(rows), segments are of all",
                       q->info->name);
    if (has_segments && (spread_want(q, ATTENTION_CACHED_SEGMENT, SPREAD_SAME) ||
                         spread_want(q, ATTENTION_CACHED_SEGMENTS, SPREAD_SAME)))
        return -1;
    return spread_heads(q, &form, ATTENTION_CACHED_HEAD_OFFSET, q->op->attributes.alibi);
}

/* A bound: positions are known at run time only. */
static double attention_cached_flops(const struct op_shape *op)
{
    const struct op_attributes *a = &op->attributes;
    double tokens = (double)op->in[ATTENTION_CACHED_Q].rows;
    int columns = a->head_dim + ops_value_dim(op, &op->in[ATTENTION_CACHED_V]);

    return 2 * tokens * (a->window ? min_int(a->window, a->cache_len) : a->cache_len) * a->n_heads *
           columns;
}

/* Rows of one sequence's cache that its queries may look at: a bound. */
static int cache_rows(const struct op_attributes *a)
{
    return a->window ? min_int(a->cache_len, a->window + a->seq_len - 1) : a->cache_len;
}

static void attention_cached_moved(struct op_shape *op)
{
    const struct op_attributes *a = &op->attributes;
    struct tensor *keys = &op->in[ATTENTION_CACHED_KEYS];
    struct tensor *values = &op->in[ATTENTION_CACHED_VALUES];

    keys->rows = keys->rows / a->cache_len * cache_rows(a);
    values->rows = values->rows / a->cache_len * cache_rows(a);
}

static const struct op_info attention_cached = {
    .name = "attention_cached",
    .family = FAMILY_ATTENTION,
    .n_inputs = 9,
    .inputs = {
        [ATTENTION_CACHED_Q] = { "q", DIM_T, DIM_HE, TYPE_ACT, OPERAND_PLAIN },
        [ATTENTION_CACHED_K] = { "k", DIM_T, DIM_GE, TYPE_ACT, OPERAND_PLAIN },
        [ATTENTION_CACHED_V] = { "v", DIM_T, DIM_GV, TYPE_ACT, OPERAND_PLAIN },
        [ATTENTION_CACHED_POSITION] = { "position", DIM_T, DIM_ONE, TYPE_I32, OPERAND_PLAIN },
        [ATTENTION_CACHED_KEYS] = { "keys", DIM_FREE, DIM_GE, TYPE_ACT, OPERAND_UPDATED },
        [ATTENTION_CACHED_VALUES] = { "values", DIM_FREE, DIM_GV, TYPE_ACT, OPERAND_UPDATED },
        [ATTENTION_CACHED_HEAD_OFFSET] = { "head_offset", DIM_ONE, DIM_ONE, TYPE_I32,
                                           OPERAND_OPTIONAL },
        [ATTENTION_CACHED_SEGMENT] = { "segment", DIM_T, DIM_ONE, TYPE_I32, OPERAND_OPTIONAL },
        [ATTENTION_CACHED_SEGMENTS] = { "segments", DIM_FREE, DIM_THREE, TYPE_I32,
                                        OPERAND_OPTIONAL },
    },
    .n_outputs = 1,
    .outputs = {
        [ATTENTION_CACHED_OUT] = { "out", DIM_T, DIM_HV, TYPE_ACT, OPERAND_PLAIN },
    },
    .attributes = ATTRIBUTE_HEADS | ATTRIBUTE_SEQ_LEN | ATTRIBUTE_P,
    .check_attributes = attention_cached_check_attributes,
    .check = attention_cached_check,
    .spread = attention_cached_spread,
    .flops = attention_cached_flops,
    .moved = attention_cached_moved,
};

const struct op_info *const attention_ops[N_OP_KINDS] = {
    [OP_ROPE] = &rope,
    [OP_ROPE_GRAD] = &rope_grad,
    [OP_ATTENTION] = &attention,
    [OP_ATTENTION_GRAD] = &attention_grad,
    [OP_ATTENTION_CACHED] = &attention_cached,
};
