/*
 * model.c - the decoder, op by op
 *
 * The residual stream and its gradient are of a dtype of their own (fp32, or bf16); everything
 * between a norm and the next residual add is in the run's dtype. Each layer's input is marked as a
 * boundary for full recomputation.
 *
 * Over tp, `enter` and `leave` stand around what is divided: heads, feed-forward, vocabulary. What
 * the backward does there follows from them (differentiate).
 */
#include "model/lora_impl.h"

#include <math.h>
#include <string.h>

#include "base/num.h"
#include "layout/axes.h"

struct emitter {
    struct model_builder *b;
    int function, layer;
    int64_t rows; /* of a micro-batch */
    int tp;       /* ranks that divide heads, feed-forward and vocabulary */
    enum model_end end;
};

/* A module's weight or bias, of the layer at hand where layers have it; 0 if there is none. */
static int parameter(const struct emitter *e, enum module_id module, enum module_part part)
{
    int at = model_parameter(e->b, parameters_id(e->b->spec, module, part, e->layer));

    return at < 0 ? 0 : e->b->program->parameters[at].weight;
}

static int weight_of(const struct emitter *e, enum module_id module)
{
    return parameter(e, module, PART_WEIGHT);
}

static int bias_of(const struct emitter *e, enum module_id module)
{
    return parameter(e, module, PART_BIAS);
}

/* With as many rows as v has. */
static int value(const struct emitter *e, int v, int64_t cols, enum dtype dtype)
{
    return program_value(e->b->program, e->b->program->values[v].rows, cols, dtype);
}

static void emit(const struct emitter *e, struct op op)
{
    op.phase = PHASE_F;
    op.layer = e->layer;
    program_emit(e->b->program, e->function, &op);
}

static int64_t cols_of(const struct emitter *e, int v)
{
    return e->b->program->values[v].cols;
}

static enum dtype dtype_of(const struct emitter *e, int v)
{
    return e->b->program->values[v].dtype;
}

/* ---- tensor parallel ---- */

static void emit_tp(const struct emitter *e, enum op_kind kind, int x, int y)
{
    emit(e, (struct op){ .kind = kind,
                         .attributes.axis = axes_tensor(),
                         .in = { x },
                         .out = { y },
                         .stream = STREAM_TP });
}

/* All rows of x, for what is divided. */
static int enter(const struct emitter *e, int x)
{
    if (e->tp == 1 || !e->b->sequence_parallel)
        return x;
    int all = program_value(e->b->program, e->rows, cols_of(e, x), dtype_of(e, x));
    emit_tp(e, OP_ALL_GATHER, x, all);
    return all;
}

/* The sum over ranks of what has been divided: the rank's rows of it, or all. */
static int leave(const struct emitter *e, int x)
{
    int64_t rows = e->b->sequence_parallel ? e->rows / e->tp : e->rows;

    if (e->tp == 1)
        return x;
    int sum = program_value(e->b->program, rows, cols_of(e, x), dtype_of(e, x));
    emit_tp(e, e->b->sequence_parallel ? OP_REDUCE_SCATTER : OP_ALL_REDUCE, x, sum);
    return sum;
}

/* What the layer's adapters of this matrix, which has read x and given y, make of y. */
static int adapted(const struct emitter *e, enum module_id module, int x, int y)
{
    return lora_emit(e->b, &(struct lora_site){ e->function, e->layer, module, x, y });
}

static int linear(const struct emitter *e, int x, int weight, int bias)
{
    int y = value(e, x, e->b->program->values[weight].rows, e->b->dtype);

    emit(e, (struct op){ .kind = OP_LINEAR, .in = { x, weight, bias }, .out = { y } });
    return y;
}

/* A block's last: of what is divided among ranks into the residual stream. */
static int linear_leaving(const struct emitter *e, enum module_id module, int x)
{
    int weight = weight_of(e, module), bias = bias_of(e, module);

    if (e->tp == 1)
        return adapted(e, module, x, linear(e, x, weight, bias));
    int sum = leave(e, adapted(e, module, x, linear(e, x, weight, 0)));
    if (!bias)
        return sum;
    int y = value(e, sum, cols_of(e, sum), dtype_of(e, sum));
    emit(e, (struct op){ .kind = OP_ADD_BIAS, .in = { sum, bias }, .out = { y } });
    return y;
}

static int norm(const struct emitter *e, enum module_id module, int x, enum dtype dtype)
{
    const struct model_spec *s = e->b->spec;
    int weight = weight_of(e, module);
    int y = value(e, x, cols_of(e, x), dtype);
    int rstd = value(e, x, 1, DTYPE_F32);

    if (s->norm == NORM_RMS) {
        emit(e, (struct op){ .kind = OP_RMSNORM,
                             .attributes.eps = s->norm_eps,
                             .in = { x, weight },
                             .out = { y, rstd } });
        return y;
    }
    int mean = value(e, x, 1, DTYPE_F32);
    emit(e, (struct op){ .kind = OP_LAYERNORM,
                         .attributes.eps = s->norm_eps,
                         .in = { x, weight, bias_of(e, module) },
                         .out = { y, mean, rstd } });
    return y;
}

/* Where dropout is drawn in a layer: part of its random numbers' name, so never renumbered. */
enum dropout_place { PLACE_EMBEDDING, PLACE_ATTENTION, PLACE_ATTENTION_OUT, PLACE_FFN_OUT };

static uint64_t dropout_place(const struct emitter *e, enum dropout_place place)
{
    return (uint64_t)(e->layer + 1) << 8 | (uint64_t)place;
}

static int dropout(const struct emitter *e, int x, enum dropout_place place)
{
    double p = e->b->dropout ? e->b->spec->dropout : 0;

    if (p <= 0)
        return x;
    int y = value(e, x, cols_of(e, x), dtype_of(e, x));
    emit(e, (struct op){ .kind = OP_DROPOUT,
                         .attributes = { .p = p,
                                         .seed = e->b->seed,
                                         .place = dropout_place(e, place),
                                         .seq_len = e->b->seq_len },
                         .in = { x, e->b->program->ports.samples, e->b->parts.rows },
                         .out = { y } });
    return y;
}

static int residual_add(const struct emitter *e, int x, int delta)
{
    int sum = value(e, x, cols_of(e, x), dtype_of(e, x));

    emit(e, (struct op){ .kind = OP_ADD, .in = { x, delta }, .out = { sum } });
    return sum;
}

/* Of this rank. */
static int n_heads(const struct emitter *e)
{
    return e->b->spec->n_heads / e->tp;
}

static int n_kv_heads(const struct emitter *e)
{
    return max_int(1, e->b->spec->n_kv_heads / e->tp);
}

/* Of attention and what leads to it. */
static struct op_attributes head_attributes(const struct emitter *e)
{
    const struct model_spec *s = e->b->spec;

    return (struct op_attributes){ .n_heads = n_heads(e),
                                   .n_kv_heads = n_kv_heads(e),
                                   .head_dim = s->head_dim,
                                   .seq_len = e->b->seq_len,
                                   .cache_len = e->b->cache_len,
                                   .window = model_spec_window(s, e->layer),
                                   .alibi = s->position == POSITION_ALIBI ? s->n_heads : 0,
                                   .scale = 1.0 / sqrt((double)s->head_dim) };
}

/* The columns of q's, k's and v's heads in a product of all three. */
struct heads {
    int q, k, v;
};

static struct heads heads_of(const struct emitter *e, int qkv)
{
    struct program *p = e->b->program;
    struct value all = p->values[qkv];
    int64_t q_cols = (int64_t)n_heads(e) * e->b->spec->head_dim;
    int64_t kv_cols = (int64_t)n_kv_heads(e) * e->b->spec->head_dim;

    return (
        struct heads){ .q = program_view(p, qkv, 0, all.rows, q_cols, all.stride),
                       .k = program_view(p, qkv, q_cols, all.rows, kv_cols, all.stride),
                       .v = program_view(p, qkv, q_cols + kv_cols, all.rows, kv_cols, all.stride) };
}

/* A layer's keys or values of all positions: one cell for all functions. */
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

static int attention_over_cache(const struct emitter *e, struct heads heads)
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
                         .out = { out } });
    return out;
}

/* Where several ranks share a kv head, and each has computed a part of its columns: all of it. */
static int whole_heads(const struct emitter *e, int qkv)
{
    struct op_attributes attributes = head_attributes(e);
    int64_t cols = (attributes.n_heads + 2 * (int64_t)attributes.n_kv_heads) * attributes.head_dim;

    if (e->tp <= e->b->spec->n_kv_heads)
        return qkv;
    int whole = value(e, qkv, cols, e->b->dtype);
    attributes.axis = axes_tensor();
    attributes.group = e->tp / e->b->spec->n_kv_heads;
    emit(e, (struct op){ .kind = OP_GATHER_HEADS,
                         .attributes = attributes,
                         .in = { qkv },
                         .out = { whole },
                         .stream = STREAM_TP });
    return whole;
}

/* Queries and keys at length sqrt(e) each, but for weights. */
static int normed_heads(const struct emitter *e, int qkv)
{
    struct op_attributes attributes = head_attributes(e);

    if (!e->b->spec->qk_norm)
        return qkv;
    int y = value(e, qkv, cols_of(e, qkv), e->b->dtype);
    int rstd = value(e, qkv, attributes.n_heads + attributes.n_kv_heads, DTYPE_F32);
    attributes.eps = e->b->spec->norm_eps;
    emit(e, (struct op){ .kind = OP_HEAD_NORM,
                         .attributes = attributes,
                         .in = { qkv, weight_of(e, MODULE_Q_NORM), weight_of(e, MODULE_K_NORM) },
                         .out = { y, rstd } });
    return y;
}

static int self_attention(const struct emitter *e, int qkv)
{
    const struct model_builder *b = e->b;
    struct op_attributes attributes = head_attributes(e);

    qkv = normed_heads(e, whole_heads(e, qkv));
    if (b->spec->position == POSITION_ROPE) {
        int turned = value(e, qkv, cols_of(e, qkv), b->dtype);
        emit(e,
             (struct op){ .kind = OP_ROPE,
                          .attributes = attributes,
                          .in = { qkv, b->program->ports.positions, b->program->ports.rope_table },
                          .out = { turned } });
        qkv = turned;
    }
    struct heads heads = heads_of(e, qkv);
    if (b->cache_len)
        return attention_over_cache(e, heads);
    attributes.p = b->dropout ? b->spec->attention_dropout : 0;
    if (attributes.p > 0) {
        attributes.seed = b->seed;
        attributes.place = dropout_place(e, PLACE_ATTENTION);
    }
    int drops = attributes.p > 0, numbered = drops || attributes.alibi;
    int out = value(e, qkv, (int64_t)attributes.n_heads * attributes.head_dim, b->dtype);
    int lse = value(e, qkv, attributes.n_heads, DTYPE_F32);
    emit(e, (struct op){ .kind = OP_ATTENTION,
                         .attributes = attributes,
                         .in = { [ATTENTION_Q] = heads.q,
                                 [ATTENTION_K] = heads.k,
                                 [ATTENTION_V] = heads.v,
                                 [ATTENTION_SAMPLE] = drops ? b->program->ports.samples : 0,
                                 [ATTENTION_HEAD_OFFSET] = numbered ? b->parts.heads : 0,
                                 [ATTENTION_START] = b->program->ports.starts },
                         .out = { [ATTENTION_OUT] = out, [ATTENTION_LSE] = lse } });
    return out;
}

static int feed_forward(const struct emitter *e, int x)
{
    const struct model_spec *s = e->b->spec;
    int gated = s->activation == ACTIVATION_SWIGLU;
    enum module_id up = gated ? MODULE_GATE_UP : MODULE_UP;
    int wide = adapted(e, up, x, linear(e, x, weight_of(e, up), bias_of(e, up)));
    int y = value(e, wide, s->ffn_size / e->tp, e->b->dtype);

    emit(e, (struct op){ .kind = gated ? OP_SWIGLU : OP_GELU, .in = { wide }, .out = { y } });
    return linear_leaving(e, MODULE_DOWN, y);
}

/* ---- experts ---- */

/* A token's weights and experts, its rows of those sorted by expert, and where an expert's end. */
struct routes {
    int weight, expert, place, ends;
};

/* The layer's part of the step's stats, one for all sizes of micro-batches; 0 where nobody reads
 * them. */
static int stats_of_layer(const struct emitter *e)
{
    struct program *p = e->b->program;
    int64_t n = 1 + (int64_t)e->b->spec->n_experts;
    int64_t at = model_spec_n_expert_layers(e->b->spec, e->layer) * n;

    if (e->end != MODEL_TRAIN)
        return 0;
    for (int id = 1; id < p->n_values; id++)
        if (p->values[id].base == p->ports.router_stats && p->values[id].offset == at)
            return id;
    return program_view(p, p->ports.router_stats, at, 1, n, n);
}

/*
 * The experts that a layer's rows go to. Where the balance is of all layers together they are rows of
 * one value, which the gradient of each router reads whole: the chunk must have all layers.
 */
static int choices_of_layer(const struct emitter *e, int logits)
{
    struct model_builder *b = e->b;
    const struct model_spec *s = b->spec;
    int64_t rows = b->program->values[logits].rows, cols = s->n_active_experts;
    int n_layers = model_spec_n_expert_layers(s, s->n_layers);
    int before = model_spec_n_expert_layers(s, e->layer);

    if (e->end != MODEL_TRAIN || !(s->router_balance > 0) ||
        s->router_balance_kind != ROUTER_BALANCE_POOLED)
        return value(e, logits, cols, DTYPE_I32);
    if (!b->choices) {
        b->choices = program_value(b->program, n_layers * rows, cols, DTYPE_I32);
        memcpy(b->program->values[b->choices].spread, b->program->values[logits].spread,
               sizeof b->program->values[logits].spread);
    }
    return program_view(b->program, b->choices, before * rows * cols, rows, cols, cols);
}

/* From the rank's rows of a norm's output. The balance is that of all the micro-batch's rows. */
static struct routes route(const struct emitter *e, int y)
{
    const struct model_spec *s = e->b->spec;
    int logits = value(e, y, s->n_experts, DTYPE_F32);

    emit(e, (struct op){
                .kind = OP_LINEAR, .in = { y, weight_of(e, MODULE_ROUTER) }, .out = { logits } });
    logits = enter(e, logits);
    struct routes r = { .weight = value(e, logits, s->n_active_experts, DTYPE_F32),
                        .expert = choices_of_layer(e, logits),
                        .place = value(e, logits, s->n_active_experts, DTYPE_I32),
                        .ends = program_value(e->b->program, 1, s->n_experts, DTYPE_I32) };
    struct op_attributes attributes = { .normalize = s->router_normalize };
    if (e->end == MODEL_TRAIN && s->router_balance > 0)
        attributes.balance =
            s->router_balance * (double)e->b->n_sequences / (double)e->b->global_batch;
    emit(e, (struct op){ .kind = OP_ROUTER,
                         .attributes = attributes,
                         .in = { logits },
                         .out = { r.weight, r.expert, stats_of_layer(e) } });
    emit(e, (struct op){ .kind = OP_EXPERT_ORDER, .in = { r.expert }, .out = { r.place, r.ends } });
    return r;
}

static int expert_linear(const struct emitter *e, int x, int ends, int weight)
{
    int64_t n = e->b->program->values[weight].rows / e->b->spec->n_experts;
    int y = value(e, x, n, e->b->dtype);

    emit(e, (struct op){ .kind = OP_EXPERT_LINEAR, .in = { x, ends, weight }, .out = { y } });
    return y;
}

/* Shazeer et al. 2017, without noise, and without a capacity: no token is dropped. */
static int mixture(const struct emitter *e, int y)
{
    const struct model_spec *s = e->b->spec;
    struct program *p = e->b->program;
    struct routes r = route(e, y);
    int64_t n_rows = e->rows * s->n_active_experts;
    int x = enter(e, y), rows = program_value(p, n_rows, s->hidden_size, e->b->dtype);

    emit(e, (struct op){ .kind = OP_DISPATCH, .in = { r.place, x }, .out = { rows } });
    int wide = expert_linear(e, rows, r.ends, weight_of(e, MODULE_EXPERTS_GATE_UP));
    int h = value(e, wide, s->expert_ffn_size / e->tp, e->b->dtype);
    emit(e,
         (struct op){ .kind = OP_EXPERT_SWIGLU, .in = { r.weight, r.place, wide }, .out = { h } });
    int out = expert_linear(e, h, r.ends, weight_of(e, MODULE_EXPERTS_DOWN));
    int sum = program_value(p, e->rows, s->hidden_size, e->b->dtype);
    emit(e, (struct op){ .kind = OP_COMBINE, .in = { r.place, out }, .out = { sum } });
    return leave(e, sum);
}

/* Pre-norm block: x + attention(norm(x)), then + ffn(norm(.)). */
static int block(const struct emitter *e, int x)
{
    e->b->program->values[x].boundary = 1;
    enum dtype dtype = e->b->dtype;
    int entered = enter(e, norm(e, MODULE_ATTENTION_NORM, x, dtype));
    int qkv = linear(e, entered, weight_of(e, MODULE_QKV), bias_of(e, MODULE_QKV));
    qkv = adapted(e, MODULE_QKV, entered, qkv);
    int out = linear_leaving(e, MODULE_ATTENTION_OUT, self_attention(e, qkv));
    x = residual_add(e, x, dropout(e, out, PLACE_ATTENTION_OUT));

    int y = norm(e, MODULE_FFN_NORM, x, dtype);
    out =
        model_spec_has_experts(e->b->spec, e->layer) ? mixture(e, y) : feed_forward(e, enter(e, y));
    return residual_add(e, x, dropout(e, out, PLACE_FFN_OUT));
}

static int embedding(const struct emitter *e)
{
    const struct ports *ports = &e->b->program->ports;
    int64_t hidden = e->b->spec->hidden_size;
    int positions = e->b->parts.positions ? e->b->parts.positions : ports->positions;
    int x = program_value(e->b->program, e->rows, hidden, e->b->residual);

    emit(e, (struct op){ .kind = OP_EMBED,
                         .in = { [EMBED_INDEX] = ports->tokens,
                                 [EMBED_TABLE] = weight_of(e, MODULE_EMBEDDING),
                                 [EMBED_OFFSET] = e->b->parts.vocabulary },
                         .out = { x } });
    x = leave(e, x);
    if (e->b->spec->position == POSITION_LEARNED) {
        int sum = value(e, x, hidden, dtype_of(e, x));
        emit(e, (struct op){ .kind = OP_EMBED,
                             .in = { [EMBED_INDEX] = positions,
                                     [EMBED_TABLE] = weight_of(e, MODULE_POSITION),
                                     [EMBED_BASE] = x },
                             .out = { sum } });
        x = sum;
    }
    if (e->b->spec->embedding_norm) {
        /* As wide as the residual stream, and kept as a layer's input is. */
        e->b->program->values[x].boundary = 1;
        x = norm(e, MODULE_EMBEDDING_NORM, x, dtype_of(e, x));
    }
    return e->b->spec->embedding_dropout ? dropout(e, x, PLACE_EMBEDDING) : x;
}

/* Row lengths of the head below this count as this: torch.nn.functional.normalize's. */
#define HEAD_ROW_MIN 1e-12

/* What logits are made with: the head's weight, or that with rows of length 1. */
struct head {
    int weight, rows, lengths; /* rows is weight, and lengths 0, where nothing is normalised */
};

static struct head head_of(const struct emitter *e)
{
    struct head h = { .weight = weight_of(e, parameters_head(e->b->spec).module) };

    h.rows = h.weight;
    if (!e->b->spec->normalized_head)
        return h;
    h.rows = value(e, h.weight, cols_of(e, h.weight), dtype_of(e, h.weight));
    h.lengths = value(e, h.weight, 1, DTYPE_F32);
    emit(e, (struct op){ .kind = OP_NORMALIZE_ROWS,
                         .attributes.eps = HEAD_ROW_MIN,
                         .in = { h.weight },
                         .out = { h.rows, h.lengths } });
    return h;
}

/* Where the gradient of the head's rows goes: the parameter's, or what that is made of. */
static int rows_gradient(const struct emitter *e, const struct head *h, int dw)
{
    return h->lengths && dw ? value(e, h->weight, cols_of(e, h->weight), DTYPE_F32) : dw;
}

static void emit_head_gradient(const struct emitter *e, const struct head *h, int drows, int dw)
{
    if (drows != dw)
        emit(e, (struct op){ .kind = OP_NORMALIZE_ROWS_GRAD,
                             .attributes.eps = HEAD_ROW_MIN,
                             .in = { drows, h->weight, h->lengths },
                             .out = { dw } });
}

/*
 * Tokens whose logits exist at a time. Each chunk adds to all of the head's gradient, so a chunk
 * must have work enough for that, and for packing the weights: a processor's caches want few logits,
 * but tokens enough; a GPU's memory takes many.
 */
static int head_chunk(const struct emitter *e)
{
    int64_t logits = e->b->head_logits ? e->b->head_logits : MODEL_HEAD_LOGITS;
    int64_t vocabulary = ceil_div(e->b->spec->vocab_size, e->tp);
    int64_t most = e->b->head_logits ? e->rows : 1024, chunk = logits / vocabulary / 64 * 64;

    return (int)min_i64(e->rows, max_i64(MODEL_HEAD_TOKENS, min_i64(most, chunk)));
}

/* ---- the vocabulary in parts ---- */

/* One piece of the rows. */
struct head_piece {
    int x, target, weight;
    int dx, dw; /* 0 where only the loss is wanted; dw where the head is frozen */
    int loss;
    enum first_mode first;
};

/*
 * The logits of a rank's tokens; what all ranks' are to be known by; their gradients, and what
 * follows from these for the rank: a summand of x's gradient, and its rows of the weight's.
 */
static void emit_head_piece(const struct emitter *e, const struct head_piece *h)
{
    struct program *p = e->b->program;
    struct op_attributes attributes = { .vocab_size = e->b->spec->vocab_size };
    int logits = value(e, h->x, p->values[h->weight].rows, DTYPE_F32);
    int stats = value(e, h->x, OPS_N_STATS, DTYPE_F32);
    int all = program_value(p, e->tp * p->values[h->x].rows, OPS_N_STATS, DTYPE_F32);
    int dlogits = h->dx ? value(e, h->x, p->values[h->weight].rows, e->b->dtype) : 0;

    emit(e, (struct op){ .kind = OP_LINEAR, .in = { h->x, h->weight }, .out = { logits } });
    emit(e, (struct op){ .kind = OP_LOGIT_STATS,
                         .attributes = attributes,
                         .in = { logits, h->target, e->b->parts.vocabulary },
                         .out = { stats } });
    emit_tp(e, OP_ALL_GATHER, stats, all);
    emit(e,
         (struct op){ .kind = OP_CROSS_ENTROPY,
                      .attributes = attributes,
                      .in = { [CROSS_ENTROPY_LOGITS] = logits,
                              [CROSS_ENTROPY_STATS] = all,
                              [CROSS_ENTROPY_TARGET] = h->target,
                              [CROSS_ENTROPY_SCALE] = p->ports.loss_scale,
                              [CROSS_ENTROPY_OFFSET] = e->b->parts.vocabulary },
                      .out = { [CROSS_ENTROPY_DLOGITS] = dlogits, [CROSS_ENTROPY_LOSS] = h->loss },
                      .first = h->first });
    if (!h->dx)
        return;
    emit(e, (struct op){ .kind = OP_LINEAR_DX, .in = { dlogits, h->weight }, .out = { h->dx } });
    if (h->dw)
        emit(e, (struct op){ .kind = OP_LINEAR_DW,
                             .in = { dlogits, h->x },
                             .out = { h->dw },
                             .first = h->first });
}

/* Piece by piece, so that the logits never exist whole. */
static void emit_head_pieces(const struct emitter *e, int x, int weight, int dx, int dw, int loss)
{
    struct program *p = e->b->program;
    int64_t cols = cols_of(e, x), chunk = head_chunk(e);

    for (int64_t row = 0; row < e->rows; row += chunk) {
        int64_t n = min_i64(chunk, e->rows - row);

        emit_head_piece(e, &(struct head_piece){
                               .x = program_view(p, x, row * cols, n, cols, cols),
                               .target = program_view(p, p->ports.targets, row, n, 1, 1),
                               .weight = weight,
                               .dx = dx ? program_view(p, dx, row * cols, n, cols, cols) : 0,
                               .dw = dw,
                               .loss = loss,
                               .first = row ? FIRST_NEVER : FIRST_MICRO_BATCH,
                           });
    }
}

/* Returns the gradient of x, or, of what x was gathered from. */
static int train_end(const struct emitter *e, int x)
{
    struct program *p = e->b->program;
    struct head h = head_of(e);
    int dx = value(e, x, cols_of(e, x), e->b->dtype);
    int dw = program_add_gradient(p, program_parameter_of(p, h.weight));
    int drows = rows_gradient(e, &h, dw);

    if (e->tp > 1) {
        memcpy(p->values[dx].spread, p->values[x].spread, sizeof p->values[dx].spread);
        p->values[dx].spread[axes_tensor()] = SPREAD_PARTIAL;
        emit_head_pieces(e, x, h.rows, dx, drows, p->ports.loss);
        emit_head_gradient(e, &h, drows, dw);
        /* Summed here, so that the rank's rows are all that the backward finds. */
        return leave(e, dx);
    }
    emit(e, (struct op){ .kind = OP_HEAD_CROSS_ENTROPY,
                         .attributes.chunk = head_chunk(e),
                         .in = { x, h.rows, p->ports.targets, p->ports.loss_scale },
                         .out = { dx, drows, p->ports.loss } });
    emit_head_gradient(e, &h, drows, dw);
    return dx;
}

static void evaluate_end(const struct emitter *e, int x)
{
    struct program *p = e->b->program;

    int rows = head_of(e).rows;

    if (e->tp > 1) {
        emit_head_pieces(e, x, rows, 0, 0, p->ports.eval_loss);
        return;
    }
    emit(e, (struct op){ .kind = OP_HEAD_LOSS,
                         .attributes.chunk = head_chunk(e),
                         .in = { x, rows, p->ports.targets },
                         .out = { p->ports.eval_loss } });
}

/* Each rank's part of the columns, [n x c], one after the other: [tp n x c]. */
static void gather_parts(const struct emitter *e, int own, int all)
{
    struct program *p = e->b->program;
    int64_t n = p->values[own].rows * p->values[own].cols;

    emit_tp(e, OP_ALL_GATHER, program_view(p, own, 0, 1, n, n),
            program_view(p, all, 0, 1, e->tp * n, e->tp * n));
}

static void logits_end(const struct emitter *e, int x)
{
    struct program *p = e->b->program;
    int64_t n = e->b->n_sequences;
    int rows = program_value(p, n, cols_of(e, x), e->b->dtype), head = head_of(e).rows;
    int64_t own = p->values[head].rows; /* of the vocabulary */

    if (!p->ports.logits) {
        p->ports.last_rows = program_cell(p, ROLE_SCALAR, "last_rows", n, 1, DTYPE_I32);
        p->ports.logits = program_cell(p, ROLE_SCALAR, "logits", e->tp * n, own, DTYPE_F32);
    }
    emit(e,
         (struct op){ .kind = OP_SELECT_ROWS, .in = { x, p->ports.last_rows }, .out = { rows } });
    int logits = e->tp > 1 ? program_value(p, n, own, DTYPE_F32) : p->ports.logits;
    emit(e, (struct op){ .kind = OP_LINEAR, .in = { rows, head }, .out = { logits } });
    if (e->tp > 1)
        gather_parts(e, logits, p->ports.logits);
}

static void stream_end(const struct emitter *e, int x)
{
    struct program *p = e->b->program;

    if (!p->ports.stream)
        p->ports.stream = program_cell(p, ROLE_SCALAR, "stream", e->rows, cols_of(e, x), DTYPE_F32);
    emit(e, (struct op){ .kind = OP_ACCUMULATE,
                         .in = { x },
                         .out = { p->ports.stream },
                         .first = FIRST_ALWAYS });
}

void model_score(struct model_builder *builder, int function, int n_rows)
{
    struct program *p = builder->program;
    int tp = p->mesh.size[axes_tensor()];
    struct emitter e = {
        .b = builder, .function = function, .layer = -1, .tp = tp, .rows = n_rows
    };
    int x = program_value(p, n_rows, builder->spec->hidden_size, DTYPE_F32);

    p->ports.asked = program_cell(p, ROLE_SCALAR, "asked", n_rows, 1, DTYPE_I32);
    p->ports.hoped = program_cell(p, ROLE_SCALAR, "hoped", n_rows, 1, DTYPE_I32);
    p->ports.stats =
        program_cell(p, ROLE_SCALAR, "stats", (int64_t)tp * n_rows, OPS_N_STATS, DTYPE_F32);
    emit(&e, (struct op){
                 .kind = OP_SELECT_ROWS, .in = { p->ports.stream, p->ports.asked }, .out = { x } });
    x = norm(&e, MODULE_FINAL_NORM, x, builder->dtype);
    int head = head_of(&e).rows;
    int logits = program_value(p, n_rows, p->values[head].rows, DTYPE_F32);
    int stats = tp > 1 ? program_value(p, n_rows, OPS_N_STATS, DTYPE_F32) : p->ports.stats;
    emit(&e, (struct op){ .kind = OP_LINEAR, .in = { x, head }, .out = { logits } });
    emit(&e, (struct op){ .kind = OP_LOGIT_STATS,
                          .attributes.vocab_size = builder->spec->vocab_size,
                          .in = { logits, p->ports.hoped, builder->parts.vocabulary },
                          .out = { stats } });
    if (tp > 1)
        emit_tp(&e, OP_ALL_GATHER, stats, p->ports.stats);
}

struct model_part model_forward(struct model_builder *builder, int function,
                                const struct model_chunk *chunk, enum model_end end, int boundary)
{
    struct emitter e = { .b = builder,
                         .function = function,
                         .layer = -1,
                         .tp = builder->program->mesh.size[axes_tensor()],
                         .end = end,
                         .rows = (int64_t)builder->n_sequences * builder->seq_len };
    struct model_part part = { 0 };
    int x = chunk->stage == 0 ? embedding(&e) : boundary;

    builder->choices = 0;
    CHECK(chunk->n_stages == 1 || builder->spec->router_balance_kind != ROUTER_BALANCE_POOLED ||
          !(builder->spec->router_balance > 0) || end != MODEL_TRAIN);
    for (e.layer = chunk->first_layer; e.layer < chunk->end_layer; e.layer++)
        x = block(&e, x);
    e.layer = -1;
    part.value = x;
    if (chunk->stage + 1 < chunk->n_stages)
        return part;
    if (end == MODEL_STREAM) {
        stream_end(&e, x);
        return part;
    }
    builder->program->values[x].boundary = 1;
    x = norm(&e, MODULE_FINAL_NORM, x, builder->dtype);
    part.value = x;
    x = enter(&e, x);
    if (end == MODEL_TRAIN)
        part.gradient = train_end(&e, x);
    else if (end == MODEL_EVALUATE)
        evaluate_end(&e, x);
    else
        logits_end(&e, x);
    return part;
}

struct model_chunk model_whole(const struct model_spec *spec)
{
    return (struct model_chunk){ .n_stages = 1, .end_layer = spec->n_layers };
}
