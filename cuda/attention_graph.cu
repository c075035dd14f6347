/*
 * attention_graph.cu - see attention_graph.cuh
 *
 * forward    S = scale Q K', masked; P = exp(S - max) / sum; out = P V; stats = max + log sum
 * backward   d = rows' sums of dout out; P = exp(S - stats); dV = P' dout;
 *            dS = scale P (dout V' - d); dK = dS' Q; dQ = dS K
 *            (Dao et al. 2022, appendix B). dQ comes straight out of its product, not by way of
 *            an fp32 accumulator in memory that blocks add to in any order: that is what chooses
 *            cuDNN's deterministic kernels.
 *
 * Where several heads read one key-value head, cuDNN has dK and dV of each head and then sums them.
 */
#include "cuda/attention_graph.cuh"

static cudnn_tensor operand(struct attention_graph *a, enum attention_role role,
                            cudnn_tensor tensor)
{
    CHECK(a->n_operands < ATTENTION_MAX_OPERANDS);
    a->uids[a->n_operands] = tensor;
    a->roles[a->n_operands++] = role;
    return tensor;
}

/* [batch, head, row, column] of rows that are `stride` apart. */
static cudnn_tensor heads(struct attention_graph *a, const struct attention_shape *s,
                          enum attention_role role, int n_heads, int64_t stride)
{
    int columns = attention_head_columns(s, role);
    struct cudnn_dims dims = { { s->batch, n_heads, s->seq_len, columns } };
    struct cudnn_dims strides = { { s->seq_len * stride, columns, stride, 1 } };

    return operand(a, role,
                   cudnn_add_tensor(&a->graph, CUDNN_IN_MEMORY, s->data_type, dims, strides));
}

/* The same, with rows and columns swapped. */
static cudnn_tensor heads_across(struct attention_graph *a, const struct attention_shape *s,
                                 enum attention_role role, int n_heads, int64_t stride)
{
    int columns = attention_head_columns(s, role);
    struct cudnn_dims dims = { { s->batch, n_heads, columns, s->seq_len } };
    struct cudnn_dims strides = { { s->seq_len * stride, columns, 1, stride } };

    return operand(a, role,
                   cudnn_add_tensor(&a->graph, CUDNN_IN_MEMORY, s->data_type, dims, strides));
}

static cudnn_tensor number(struct attention_graph *a, enum attention_role role)
{
    return operand(a, role, cudnn_add_float(&a->graph));
}

static struct cudnn_dims score_dims(const struct attention_shape *s)
{
    return { { s->batch, s->n_heads, s->seq_len, s->seq_len } };
}

/* One number a head and row. */
static struct cudnn_dims row_dims(const struct attention_shape *s)
{
    return { { s->batch, s->n_heads, s->seq_len, 1 } };
}

static cudnn_tensor rows_in_memory(struct attention_graph *a, const struct attention_shape *s,
                                   enum attention_role role)
{
    struct cudnn_dims dims = row_dims(s);

    return operand(
        a, role,
        cudnn_add_tensor(&a->graph, CUDNN_IN_MEMORY, DNN_DATA_FLOAT, dims, cudnn_packed(dims)));
}

/* ---- what a query sees -------------------------------------------------------------------------
 */

static cudnn_tensor index_of(struct attention_graph *a, cudnn_tensor scores, int axis)
{
    struct cudnn_dims dims = a->graph.dims[scores];
    struct cudnn_pointwise p = {};

    p.mode = DNN_POINTWISE_GEN_INDEX;
    p.data_type = DNN_DATA_FLOAT;
    p.axis = axis;
    p.x = scores;
    p.y = cudnn_add_tensor(&a->graph, CUDNN_VIRTUAL, DNN_DATA_INT32, dims, cudnn_packed(dims));
    cudnn_add_pointwise(&a->graph, &p);
    return p.y;
}

/* Scores where left `mode` right, else the fill. */
static cudnn_tensor keep_where(struct attention_graph *a, cudnn_tensor scores, int mode,
                               cudnn_tensor left, cudnn_tensor right)
{
    struct cudnn_dims dims = a->graph.dims[scores];
    struct cudnn_pointwise compare = {}, select = {};

    compare.mode = mode;
    compare.data_type = DNN_DATA_BOOLEAN;
    compare.x = left;
    compare.b = right;
    compare.y =
        cudnn_add_tensor(&a->graph, CUDNN_VIRTUAL, DNN_DATA_BOOLEAN, dims, cudnn_packed(dims));
    cudnn_add_pointwise(&a->graph, &compare);
    select.mode = DNN_POINTWISE_BINARY_SELECT;
    select.data_type = DNN_DATA_FLOAT;
    select.x = scores;
    select.b = number(a, GRAPH_FILL);
    select.condition = compare.y;
    select.y = cudnn_add_virtual(&a->graph, dims);
    cudnn_add_pointwise(&a->graph, &select);
    return select.y;
}

/* Keys up to the query's own; with a window those within it: column + window > row. */
static cudnn_tensor mask(struct attention_graph *a, const struct attention_shape *s,
                         cudnn_tensor scores)
{
    enum { ROW = 2, COLUMN };
    cudnn_tensor row = index_of(a, scores, ROW), column = index_of(a, scores, COLUMN);
    cudnn_tensor seen = keep_where(a, scores, DNN_POINTWISE_CMP_GE, row, column);

    if (!s->window)
        return seen;
    row = index_of(a, seen, ROW);
    column = index_of(a, seen, COLUMN);
    column = cudnn_pointwise_of(&a->graph, DNN_POINTWISE_ADD, column, number(a, GRAPH_WINDOW));
    return keep_where(a, seen, DNN_POINTWISE_CMP_GT, column, row);
}

/* scale Q K' */
static cudnn_tensor scaled_scores(struct attention_graph *a, const struct attention_shape *s,
                                  cudnn_tensor q, cudnn_tensor k_across, cudnn_tensor scale)
{
    cudnn_tensor scores = cudnn_add_virtual(&a->graph, score_dims(s));

    cudnn_add_matmul(&a->graph, q, k_across, scores);
    return cudnn_pointwise_of(&a->graph, DNN_POINTWISE_MUL, scores, scale);
}

/* ---- forward -----------------------------------------------------------------------------------
 */

static cudnn_tensor reduced(struct attention_graph *a, const struct attention_shape *s, int mode,
                            cudnn_tensor x)
{
    cudnn_tensor y = cudnn_add_virtual(&a->graph, row_dims(s));

    cudnn_add_reduction(&a->graph, mode, x, y);
    return y;
}

/* Of scores, as the data type that the second product reads; stats is written. */
static cudnn_tensor softmax(struct attention_graph *a, const struct attention_shape *s,
                            cudnn_tensor scores)
{
    struct cudnn_graph *g = &a->graph;
    cudnn_tensor max = reduced(a, s, DNN_REDUCE_TENSOR_MAX, scores);
    cudnn_tensor less = cudnn_pointwise_of(g, DNN_POINTWISE_SUB, scores, max);
    cudnn_tensor exps = cudnn_pointwise_of(g, DNN_POINTWISE_EXP, less, 0);
    cudnn_tensor sum = reduced(a, s, DNN_REDUCE_TENSOR_ADD, exps);
    struct cudnn_pointwise stats = {}, divide = {};

    stats.mode = DNN_POINTWISE_ADD;
    stats.data_type = DNN_DATA_FLOAT;
    stats.x = max;
    stats.b = cudnn_pointwise_of(g, DNN_POINTWISE_LOG, sum, 0);
    stats.y = rows_in_memory(a, s, GRAPH_STATS);
    cudnn_add_pointwise(g, &stats);
    divide.mode = DNN_POINTWISE_DIV;
    divide.data_type = DNN_DATA_FLOAT;
    divide.x = exps;
    divide.b = sum;
    divide.y = cudnn_add_tensor(g, CUDNN_VIRTUAL, s->data_type, score_dims(s),
                                cudnn_packed(score_dims(s)));
    cudnn_add_pointwise(g, &divide);
    return divide.y;
}

static void build_forward(struct attention_graph *a, const struct attention_shape *s)
{
    cudnn_tensor q = heads(a, s, GRAPH_Q, s->n_heads, s->q_stride);
    cudnn_tensor k = heads_across(a, s, GRAPH_K, s->n_kv_heads, s->k_stride);
    cudnn_tensor v = heads(a, s, GRAPH_V, s->n_kv_heads, s->v_stride);
    cudnn_tensor out = heads(a, s, GRAPH_OUT, s->n_heads, s->out_stride);
    cudnn_tensor scores = scaled_scores(a, s, q, k, number(a, GRAPH_SCALE));

    cudnn_add_matmul(&a->graph, softmax(a, s, mask(a, s, scores)), v, out);
}

/* ---- backward ----------------------------------------------------------------------------------
 */

/* Rows' sums of dout out. */
static cudnn_tensor sums_of_products(struct attention_graph *a, const struct attention_shape *s,
                                     cudnn_tensor dout, cudnn_tensor out)
{
    struct cudnn_graph *g = &a->graph;
    cudnn_tensor sums =
        reduced(a, s, DNN_REDUCE_TENSOR_ADD, cudnn_pointwise_of(g, DNN_POINTWISE_MUL, dout, out));
    struct cudnn_pointwise p = {};

    /* The pattern has the inverse of dropout's scale here: there is none. */
    p.mode = DNN_POINTWISE_MUL;
    p.data_type = DNN_DATA_FLOAT;
    p.x = sums;
    p.b = number(a, GRAPH_ONE);
    p.y = rows_in_memory(a, s, GRAPH_SUMS);
    cudnn_add_pointwise(g, &p);
    return p.y;
}

/* The transpose of something like scores, as the data type that products read. */
static cudnn_tensor across(struct attention_graph *a, const struct attention_shape *s,
                           cudnn_tensor x)
{
    struct cudnn_dims strides = cudnn_packed(score_dims(s));
    cudnn_tensor y;

    strides.at[2] = 1;
    strides.at[3] = s->seq_len;
    y = cudnn_add_tensor(&a->graph, CUDNN_VIRTUAL, s->data_type, score_dims(s), strides);
    cudnn_add_reshape(&a->graph, x, y);
    return y;
}

/* dK or dV: x' y of each head, then the sum over those that share a key-value head. */
static void product_of_heads(struct attention_graph *a, const struct attention_shape *s,
                             cudnn_tensor x, cudnn_tensor y, enum attention_role role)
{
    int64_t stride = role == GRAPH_DK ? s->dk_stride : s->dv_stride;
    cudnn_tensor x_across = across(a, s, x), each = 0;
    struct cudnn_dims dims = { { s->batch, s->n_heads, s->seq_len,
                                 attention_head_columns(s, role) } };

    if (s->n_heads == s->n_kv_heads) {
        cudnn_add_matmul(&a->graph, x_across, y, heads(a, s, role, s->n_kv_heads, stride));
        return;
    }
    each = cudnn_add_tensor(&a->graph, CUDNN_VIRTUAL, s->data_type, dims, cudnn_packed(dims));
    cudnn_add_matmul(&a->graph, x_across, y, each);
    cudnn_add_reduction(&a->graph, DNN_REDUCE_TENSOR_ADD, each,
                        heads(a, s, role, s->n_kv_heads, stride));
}

/* K as rows again: a view of the transposed operand. */
static cudnn_tensor k_as_rows(struct attention_graph *a, const struct attention_shape *s,
                              cudnn_tensor k_across)
{
    struct cudnn_dims dims = { { s->batch, s->n_kv_heads, s->seq_len, s->head_dim } };
    struct cudnn_dims strides = { { s->seq_len * s->k_stride, s->head_dim, s->k_stride, 1 } };
    cudnn_tensor k = cudnn_add_tensor(&a->graph, CUDNN_VIRTUAL, s->data_type, dims, strides);

    cudnn_add_reshape(&a->graph, k_across, k);
    return k;
}

static void build_backward(struct attention_graph *a, const struct attention_shape *s)
{
    struct cudnn_graph *g = &a->graph;
    cudnn_tensor q = heads(a, s, GRAPH_Q, s->n_heads, s->q_stride);
    cudnn_tensor k = heads_across(a, s, GRAPH_K, s->n_kv_heads, s->k_stride);
    cudnn_tensor v = heads_across(a, s, GRAPH_V, s->n_kv_heads, s->v_stride);
    cudnn_tensor out = heads(a, s, GRAPH_OUT, s->n_heads, s->out_stride);
    cudnn_tensor dout = heads(a, s, GRAPH_DOUT, s->n_heads, s->dout_stride);
    cudnn_tensor scale = number(a, GRAPH_SCALE);
    cudnn_tensor sums = sums_of_products(a, s, dout, out);
    cudnn_tensor scores = scaled_scores(a, s, q, k, scale), p, dp;

    scores = cudnn_pointwise_of(g, DNN_POINTWISE_SUB, scores, rows_in_memory(a, s, GRAPH_STATS));
    p = cudnn_pointwise_of(g, DNN_POINTWISE_EXP, mask(a, s, scores), 0);
    product_of_heads(a, s, p, dout, GRAPH_DV);
    dp = cudnn_add_virtual(g, score_dims(s));
    cudnn_add_matmul(g, dout, v, dp);
    dp = cudnn_pointwise_of(g, DNN_POINTWISE_SUB, dp, sums);
    dp = cudnn_pointwise_of(g, DNN_POINTWISE_MUL, dp, p);
    dp = cudnn_pointwise_of(g, DNN_POINTWISE_MUL, dp, scale);
    product_of_heads(a, s, dp, q, GRAPH_DK);
    cudnn_add_matmul(g, dp, k_as_rows(a, s, k), heads(a, s, GRAPH_DQ, s->n_heads, s->dq_stride));
}

void attention_graph_build(struct attention_graph *graph, const struct attention_shape *shape)
{
    graph->n_operands = 0;
    if (shape->grad)
        build_backward(graph, shape);
    else
        build_forward(graph, shape);
}
