/*
 * self_attention.c - norms and rotation of heads, the exchanges of context parallelism, attention
 *
 *     qkv of the rank's rows, all heads of its tensor-parallel part
 *       rows_to_heads      ulysses: all rows of 1 / u of these heads; with fastseq qkv is of these
 *                          already, computed from gathered rows
 *       head_norm, rope
 *       gather_sequence    cp: keys and values of all rows, or
 *       gather_window          of those that a window sees
 *       attention
 *       heads_to_rows      ulysses: the rank's rows, all heads
 */
#include "model/self_attention_impl.h"

#include <math.h>
#include <stdbool.h>

#include "base/num.h"

/* The query heads that the rank attends with, when heads are exchanged. */
static int n_heads(const struct emitter *e)
{
    return e->b->spec->n_heads / e->tp / e->ulysses;
}

static int n_kv_heads(const struct emitter *e)
{
    return max_int(1, e->b->spec->n_kv_heads / e->tp / e->ulysses);
}

/* The attributes of attention and of the ops on its heads. */
static struct op_attributes head_attributes(const struct emitter *e)
{
    const struct model_spec *s = e->b->spec;

    return (struct op_attributes){ .n_heads = n_heads(e),
                                   .n_kv_heads = n_kv_heads(e),
                                   .head_dim = s->head_dim,
                                   .seq_len = e->b->seq_len / e->keys,
                                   .cache_len = e->b->cache_len,
                                   .window = model_spec_window(s, e->layer),
                                   .alibi = s->position == POSITION_ALIBI ? s->n_heads : 0,
                                   .scale = 1.0 / sqrt((double)s->head_dim) };
}

/* Attention's operands, as views of columns. */
struct qkv_columns {
    int q, k, v;
};

/* A view of all rows of x, and n of its columns from `first` on. */
static int columns_of(const struct emitter *e, int x, int64_t first, int64_t n)
{
    struct value all = e->b->program->values[x];

    return program_view(e->b->program, x, first, all.rows, n, all.stride);
}

/* qk: the value with q's and k's columns: the product of all three, or its heads after norms and
 * rotation. */
static struct qkv_columns heads_of(const struct emitter *e, int qkv, int qk)
{
    int64_t q_cols = (int64_t)n_heads(e) * e->b->spec->head_dim;
    int64_t kv_cols = (int64_t)n_kv_heads(e) * e->b->spec->head_dim;

    return (struct qkv_columns){ .q = columns_of(e, qk, 0, q_cols),
                                 .k = columns_of(e, qk, q_cols, kv_cols),
                                 .v = columns_of(e, qkv, q_cols + kv_cols, kv_cols) };
}

/* The cell of a layer's keys or values of all positions, one for all functions. */
static int cache_cell(const struct emitter *e, enum model_cache which)
{
    static const char *const names[N_MODEL_CACHES] = { "keys", "values" };
    const struct model_builder *b = e->b;
    struct program *p = b->program;
    int *cell = &b->caches[e->layer][which];

    if (!*cell)
        *cell = program_cell(p, ROLE_CACHE,
                             arena_printf(&p->arena, "layers.%d.%s", e->layer, names[which]),
                             (int64_t)b->n_sequences * b->cache_len,
                             (int64_t)n_kv_heads(e) * b->spec->head_dim, b->dtype);
    if (e->tp > 1)
        p->values[*cell].spread[axes_tensor()] = SPREAD_COLS;
    return *cell;
}

static int attention_over_cache(const struct emitter *e, struct qkv_columns heads)
{
    const struct model_builder *b = e->b;
    const struct ports *ports = &b->program->ports;
    int keys = cache_cell(e, MODEL_KEYS), values = cache_cell(e, MODEL_VALUES);
    int out = value(e, heads.q, cols_of(e, heads.q), b->dtype);
    emit(e, (struct op){ .kind = OP_ATTENTION_CACHED,
                         .attributes = head_attributes(e),
                         .in = { [ATTENTION_CACHED_Q] = heads.q,
                                 [ATTENTION_CACHED_K] = heads.k,
                                 [ATTENTION_CACHED_V] = heads.v,
                                 [ATTENTION_CACHED_POSITION] = ports->positions,
                                 [ATTENTION_CACHED_KEYS] = keys,
                                 [ATTENTION_CACHED_VALUES] = values,
                                 [ATTENTION_CACHED_HEAD_OFFSET] = b->parts.heads,
                                 [ATTENTION_CACHED_SEGMENT] = ports->segment,
                                 [ATTENTION_CACHED_SEGMENTS] = ports->segments },
                         .out = { [ATTENTION_CACHED_OUT] = out } });
    return out;
}

/* The attributes of ops on all heads of the rank's rows, before heads are exchanged. */
static struct op_attributes local_head_attributes(const struct emitter *e)
{
    struct op_attributes attributes = head_attributes(e);

    attributes.n_heads = e->b->spec->n_heads / e->tp;
    attributes.n_kv_heads = max_int(1, e->b->spec->n_kv_heads / e->tp);
    attributes.seq_len = e->b->seq_len / e->keys / e->ulysses;
    return attributes;
}

/* Gather kv heads that several ranks share, of which each rank has computed a part of the
 * columns. */
static int whole_heads(const struct emitter *e, int qkv)
{
    struct op_attributes attributes = local_head_attributes(e);
    int64_t cols = (attributes.n_heads + 2 * (int64_t)attributes.n_kv_heads) * attributes.head_dim;

    if (e->tp <= e->b->spec->n_kv_heads)
        return qkv;
    int whole = value(e, qkv, cols, e->b->dtype);
    attributes.axis = axes_tensor();
    attributes.group = e->tp / e->b->spec->n_kv_heads;
    emit(e, (struct op){ .kind = OP_GATHER_HEADS,
                         .attributes = attributes,
                         .in = { [GATHER_HEADS_QKV] = qkv },
                         .out = { [GATHER_HEADS_OUT] = whole },
                         .stream = STREAM_TP });
    return whole;
}

/* Queries and keys with an RMS norm over each head (head_norm), if the model has it. */
static int normed_heads(const struct emitter *e, int qk)
{
    struct op_attributes attributes = head_attributes(e);

    if (!e->b->spec->qk_norm)
        return qk;
    int y = value(e, qk, cols_of(e, qk), e->b->dtype);
    int rstd = value(e, qk, attributes.n_heads + attributes.n_kv_heads, DTYPE_F32);
    attributes.eps = e->b->spec->norm_eps;
    emit(e, (struct op){ .kind = OP_HEAD_NORM,
                         .attributes = attributes,
                         .in = { [HEAD_NORM_QK] = qk,
                                 [HEAD_NORM_WQ] = weight_of(e, MODULE_Q_NORM),
                                 [HEAD_NORM_WK] = weight_of(e, MODULE_K_NORM) },
                         .out = { [HEAD_NORM_OUT] = y, [HEAD_NORM_RSTD] = rstd } });
    return y;
}

static int rotated_heads(const struct emitter *e, int qk)
{
    const struct ports *ports = &e->b->program->ports;

    if (e->b->spec->position != POSITION_ROPE)
        return qk;
    int positions = ports->attention_positions ? ports->attention_positions : ports->positions;
    int rotated = value(e, qk, cols_of(e, qk), e->b->dtype);
    emit(e,
         (struct op){
             .kind = OP_ROPE,
             .attributes = head_attributes(e),
             .in = { [ROPE_X] = qk, [ROPE_POSITION] = positions, [ROPE_TABLE] = ports->rope_table },
             .out = { [ROPE_OUT] = rotated } });
    return rotated;
}

/* ---- context parallelism ---- */

static void emit_cp(const struct emitter *e, enum op_kind kind,
                    const struct op_attributes *attributes, int x, int y)
{
    emit(e, (struct op){ .kind = kind,
                         .attributes = *attributes,
                         .in = { [OPS_FIRST] = x },
                         .out = { [OPS_FIRST] = y },
                         .stream = STREAM_CP });
}

/* All rows' columns of the heads that the rank attends with, from the rank's rows of all heads. */
static int rows_to_heads(const struct emitter *e, int qkv)
{
    struct op_attributes attributes = local_head_attributes(e);
    int64_t cols = (n_heads(e) + 2 * (int64_t)n_kv_heads(e)) * attributes.head_dim;

    if (e->ulysses == 1 || e->b->fastseq)
        return qkv;
    int heads = program_value(e->b->program, e->rows * e->ulysses, cols, e->b->dtype);
    attributes.axis = axes_heads();
    emit_cp(e, OP_ROWS_TO_HEADS, &attributes, qkv, heads);
    return heads;
}

/* The way back, of attention's output. */
static int heads_to_rows(const struct emitter *e, int out)
{
    struct op_attributes attributes = local_head_attributes(e);

    if (e->ulysses == 1)
        return out;
    int rows = program_value(e->b->program, e->rows,
                             (int64_t)attributes.n_heads * attributes.head_dim, e->b->dtype);
    attributes.n_kv_heads = 0;
    attributes.axis = axes_heads();
    emit_cp(e, OP_HEADS_TO_ROWS, &attributes, out, rows);
    return rows;
}

int self_attention_input(const struct emitter *e, int x)
{
    struct op_attributes attributes = { .seq_len = e->b->seq_len / e->keys / e->ulysses,
                                        .axis = axes_heads() };

    if (!e->b->fastseq)
        return x;
    int all = program_value(e->b->program, e->rows * e->ulysses, cols_of(e, x), dtype_of(e, x));
    emit_cp(e, OP_GATHER_SEQUENCE, &attributes, x, all);
    return all;
}

/* What sees keys by their numbers in sequences, dropout or slopes, has whole sequences. */
int model_gathered_window(const struct model_builder *b, int layer)
{
    int window = model_spec_window(b->spec, layer);

    if (!b->gathers_windows || b->spec->attention_dropout > 0 ||
        b->spec->position == POSITION_ALIBI ||
        !context_has_window(model_context_cut(&b->program->mesh), b->shortest, window))
        return 0;
    return window;
}

/* Keys, or values, that windows see. */
static int keys_of_window(const struct emitter *e, int x, int window)
{
    struct op_attributes attributes = { .seq_len = e->b->seq_len / e->keys,
                                        .window = window,
                                        .axis = axes_keys() };
    int64_t spans = 2 * ops_window_rows(attributes.seq_len / 2, window);
    int seen = program_value(e->b->program, e->b->n_sequences * spans, cols_of(e, x), e->b->dtype);

    emit_cp(e, OP_GATHER_WINDOW, &attributes, x, seen);
    return seen;
}

/* Keys, or values, of whole sequences, or of windows. */
static int gathered_keys(const struct emitter *e, int x)
{
    struct op_attributes attributes = { .seq_len = e->b->seq_len / e->keys,
                                        .zigzag = true,
                                        .axis = axes_keys() };
    int window = model_gathered_window(e->b, e->layer);

    if (e->keys == 1)
        return x;
    if (window)
        return keys_of_window(e, x, window);
    int all = program_value(e->b->program, (int64_t)e->b->n_sequences * e->b->seq_len,
                            cols_of(e, x), e->b->dtype);
    emit_cp(e, OP_GATHER_SEQUENCE, &attributes, x, all);
    return all;
}

/* Values need no rotation: they travel while keys are rotated. 0: they are not gathered. */
static int gathered_values(const struct emitter *e, int qkv)
{
    return e->keys > 1 ? gathered_keys(e, heads_of(e, qkv, qkv).v) : 0;
}

int self_attention(const struct emitter *e, int qkv)
{
    const struct model_builder *b = e->b;
    struct op_attributes attributes = head_attributes(e);
    int64_t n = attributes.n_heads + attributes.n_kv_heads;

    qkv = rows_to_heads(e, whole_heads(e, qkv));
    int qk = qkv, all_values = gathered_values(e, qkv);
    if (b->spec->qk_norm || b->spec->position == POSITION_ROPE)
        qk = rotated_heads(e, normed_heads(e, columns_of(e, qkv, 0, n * attributes.head_dim)));
    struct qkv_columns heads = heads_of(e, qkv, qk);
    if (b->cache_len)
        return attention_over_cache(e, heads);
    heads.k = gathered_keys(e, heads.k);
    heads.v = all_values ? all_values : heads.v;
    attributes.p = b->dropout ? b->spec->attention_dropout : 0;
    if (attributes.p > 0) {
        attributes.seed = b->seed;
        attributes.rng_site = rng_site_of(e, SITE_ATTENTION);
    }
    const struct ports *ports = &b->program->ports;
    bool is_window = model_gathered_window(b, e->layer) > 0;
    int first = is_window ? ports->window_first : ports->starts;
    int last = is_window ? ports->window_last : ports->last;
    int drops = attributes.p > 0, numbered = drops || attributes.alibi;
    int out = value(e, qkv, (int64_t)attributes.n_heads * attributes.head_dim, b->dtype);
    int lse = value(e, qkv, attributes.n_heads, DTYPE_F32);
    emit(e, (struct op){ .kind = OP_ATTENTION,
                         .attributes = attributes,
                         .in = { [ATTENTION_Q] = heads.q,
                                 [ATTENTION_K] = heads.k,
                                 [ATTENTION_V] = heads.v,
                                 [ATTENTION_SAMPLE] = drops ? ports->samples : 0,
                                 [ATTENTION_HEAD_OFFSET] = numbered ? b->parts.heads : 0,
                                 [ATTENTION_FIRST] = first,
                                 [ATTENTION_LAST] = last },
                         .out = { [ATTENTION_OUT] = out, [ATTENTION_LSE] = lse } });
    return heads_to_rows(e, out);
}
