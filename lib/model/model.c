/*
 * model.c - the decoder, op by op
 *
 * The residual stream and its gradient are fp32; everything between a norm and the next residual
 * add is in the run's dtype. Each layer's input is marked as a boundary for full recomputation.
 */
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/num.h"

struct emitter {
    struct model_builder *b;
    int function, layer;
    int64_t rows;
};

/* 0 if there is none. They are asked for in about the order of their declaration. */
static int parameter_weight(const struct emitter *e, const char *name)
{
    const struct program *p = e->b->program;

    for (int i = 0; i < p->n_parameters; i++) {
        int at = (e->b->parameter_asked + i) % p->n_parameters;

        if (strcmp(p->parameters[at].name, name))
            continue;
        e->b->parameter_asked = at;
        return p->parameters[at].weight;
    }
    return 0;
}

/* "layers.3.qkv.weight" */
static int layer_weight(const struct emitter *e, const char *name)
{
    char full[96];

    snprintf(full, sizeof full, "layers.%d.%s", e->layer, name);
    return parameter_weight(e, full);
}

/* "layers.3.qkv.bias"; 0 where the model has none. */
static int layer_bias(const struct emitter *e, const char *name)
{
    return e->b->spec->bias ? layer_weight(e, name) : 0;
}

static int value(const struct emitter *e, int64_t cols, enum dtype dtype)
{
    return program_value(e->b->program, e->rows, cols, dtype);
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

static int linear(const struct emitter *e, int x, int weight, int bias)
{
    int y = value(e, e->b->program->values[weight].rows, e->b->dtype);

    emit(e, (struct op){ .kind = OP_LINEAR, .in = { x, weight, bias }, .out = { y } });
    return y;
}

static int norm(const struct emitter *e, int x, int weight, int bias)
{
    const struct model_spec *s = e->b->spec;
    int y = value(e, cols_of(e, x), e->b->dtype);
    int rstd = value(e, 1, DTYPE_F32);

    if (s->norm == NORM_RMS) {
        emit(e, (struct op){ .kind = OP_RMSNORM,
                             .attributes.eps = s->norm_eps,
                             .in = { x, weight },
                             .out = { y, rstd } });
        return y;
    }
    int mean = value(e, 1, DTYPE_F32);
    emit(e, (struct op){ .kind = OP_LAYERNORM,
                         .attributes.eps = s->norm_eps,
                         .in = { x, weight, bias },
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
    int y = value(e, cols_of(e, x), dtype_of(e, x));
    emit(e, (struct op){ .kind = OP_DROPOUT,
                         .attributes = { .p = p,
                                         .seed = e->b->seed,
                                         .place = dropout_place(e, place),
                                         .seq_len = e->b->seq_len },
                         .in = { x, e->b->program->ports.samples },
                         .out = { y } });
    return y;
}

static int residual_add(const struct emitter *e, int x, int delta)
{
    int sum = value(e, cols_of(e, x), DTYPE_F32);

    emit(e, (struct op){ .kind = OP_ADD, .in = { x, delta }, .out = { sum } });
    return sum;
}

static struct op_attributes head_attributes(const struct emitter *e)
{
    const struct model_spec *s = e->b->spec;

    return (struct op_attributes){ .n_heads = s->n_heads,
                                   .n_kv_heads = s->n_kv_heads,
                                   .head_dim = s->head_dim,
                                   .seq_len = e->b->seq_len,
                                   .cache_len = e->b->cache_len,
                                   .scale = 1.0 / sqrt((double)s->head_dim) };
}

static int attention_over_cache(const struct emitter *e, int qkv)
{
    const struct model_builder *b = e->b;
    int64_t kv_cols = (int64_t)b->spec->n_kv_heads * b->spec->head_dim;
    int64_t cache_rows = (int64_t)b->n_sequences * b->cache_len;
    char name[64];
    int cells[2];

    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "layers.%d.%s", e->layer, i ? "values" : "keys");
        cells[i] = 0;
        for (int id = 1; id < b->program->n_values; id++)
            if (b->program->values[id].role == ROLE_CACHE &&
                !strcmp(b->program->values[id].name, name))
                cells[i] = id;
        if (!cells[i])
            cells[i] = program_cell(b->program, ROLE_CACHE, name, cache_rows, kv_cols, b->dtype);
    }
    int out = value(e, (int64_t)b->spec->n_heads * b->spec->head_dim, b->dtype);
    emit(e, (struct op){ .kind = OP_ATTENTION_CACHED,
                         .attributes = head_attributes(e),
                         .in = { qkv, b->program->ports.positions, cells[0], cells[1] },
                         .out = { out } });
    return out;
}

static int self_attention(const struct emitter *e, int qkv)
{
    const struct model_builder *b = e->b;
    struct op_attributes attributes = head_attributes(e);

    if (b->spec->position == POSITION_ROPE) {
        int turned = value(e, cols_of(e, qkv), b->dtype);
        emit(e,
             (struct op){ .kind = OP_ROPE,
                          .attributes = attributes,
                          .in = { qkv, b->program->ports.positions, b->program->ports.rope_table },
                          .out = { turned } });
        qkv = turned;
    }
    if (b->cache_len)
        return attention_over_cache(e, qkv);
    attributes.p = b->dropout ? b->spec->attention_dropout : 0;
    if (attributes.p > 0) {
        attributes.seed = b->seed;
        attributes.place = dropout_place(e, PLACE_ATTENTION);
    }
    int out = value(e, (int64_t)b->spec->n_heads * b->spec->head_dim, b->dtype);
    int lse = value(e, b->spec->n_heads, DTYPE_F32);
    emit(e, (struct op){ .kind = OP_ATTENTION,
                         .attributes = attributes,
                         .in = { qkv, attributes.p > 0 ? b->program->ports.samples : 0 },
                         .out = { out, lse } });
    return out;
}

static int feed_forward(const struct emitter *e, int x)
{
    const struct model_spec *s = e->b->spec;
    int gated = s->activation == ACTIVATION_SWIGLU;
    int wide = linear(e, x, layer_weight(e, gated ? "gate_up.weight" : "up.weight"),
                      layer_bias(e, gated ? "gate_up.bias" : "up.bias"));
    int y = value(e, s->ffn_size, e->b->dtype);

    emit(e, (struct op){ .kind = gated ? OP_SWIGLU : OP_GELU, .in = { wide }, .out = { y } });
    return linear(e, y, layer_weight(e, "down.weight"), layer_bias(e, "down.bias"));
}

/* Pre-norm block: x + attention(norm(x)), then + ffn(norm(.)). */
static int block(const struct emitter *e, int x)
{
    e->b->program->values[x].boundary = 1;
    int y =
        norm(e, x, layer_weight(e, "attention_norm.weight"), layer_bias(e, "attention_norm.bias"));
    int qkv = linear(e, y, layer_weight(e, "qkv.weight"), layer_bias(e, "qkv.bias"));
    int out = linear(e, self_attention(e, qkv), layer_weight(e, "attention_out.weight"),
                     layer_bias(e, "attention_out.bias"));
    x = residual_add(e, x, dropout(e, out, PLACE_ATTENTION_OUT));

    y = norm(e, x, layer_weight(e, "ffn_norm.weight"), layer_bias(e, "ffn_norm.bias"));
    return residual_add(e, x, dropout(e, feed_forward(e, y), PLACE_FFN_OUT));
}

static int embedding(const struct emitter *e)
{
    const struct ports *ports = &e->b->program->ports;
    int64_t hidden = e->b->spec->hidden_size;
    int x = value(e, hidden, DTYPE_F32);

    emit(e, (struct op){ .kind = OP_EMBED,
                         .in = { ports->tokens, parameter_weight(e, "embedding.weight") },
                         .out = { x } });
    if (e->b->spec->position == POSITION_LEARNED) {
        int sum = value(e, hidden, DTYPE_F32);
        emit(e, (struct op){ .kind = OP_EMBED,
                             .in = { ports->positions, parameter_weight(e, "position.weight"), x },
                             .out = { sum } });
        x = sum;
    }
    return dropout(e, x, PLACE_EMBEDDING);
}

static int head_weight(const struct emitter *e)
{
    return parameter_weight(e, e->b->spec->tied_embeddings ? "embedding.weight" : "head.weight");
}

/* Tokens whose logits exist at a time: about 8 M logits, whatever the vocabulary. */
static int head_chunk(const struct emitter *e)
{
    int64_t chunk = ((int64_t)1 << 23) / e->b->spec->vocab_size / 64 * 64;

    return (int)min_i64(e->rows, max_i64(64, min_i64(1024, chunk)));
}

static void train_end(const struct emitter *e, int x, int *seed_value, int *seed_gradient)
{
    struct program *p = e->b->program;
    int weight = head_weight(e), dx = value(e, cols_of(e, x), e->b->dtype);
    int dw = program_add_gradient(p, program_parameter_of(p, weight));

    p->ports.loss_scale = program_cell(p, ROLE_SCALAR, "loss_scale", 1, 1, DTYPE_F32);
    p->ports.loss = program_cell(p, ROLE_SCALAR, "loss", 1, 1, DTYPE_F64);
    emit(e, (struct op){ .kind = OP_HEAD_CROSS_ENTROPY,
                         .attributes.chunk = head_chunk(e),
                         .in = { x, weight, p->ports.targets, p->ports.loss_scale },
                         .out = { dx, dw, p->ports.loss } });
    *seed_value = x;
    *seed_gradient = dx;
}

static void evaluate_end(const struct emitter *e, int x)
{
    struct program *p = e->b->program;

    p->ports.eval_loss = program_cell(p, ROLE_SCALAR, "eval_loss", 1, 1, DTYPE_F64);
    emit(e, (struct op){ .kind = OP_HEAD_LOSS,
                         .attributes.chunk = head_chunk(e),
                         .in = { x, head_weight(e), p->ports.targets },
                         .out = { p->ports.eval_loss } });
}

static void logits_end(const struct emitter *e, int x)
{
    struct program *p = e->b->program;
    int64_t n = e->b->n_sequences;
    int rows = program_value(p, n, cols_of(e, x), e->b->dtype);

    if (!p->ports.logits) {
        p->ports.last_rows = program_cell(p, ROLE_SCALAR, "last_rows", n, 1, DTYPE_I32);
        p->ports.logits =
            program_cell(p, ROLE_SCALAR, "logits", n, e->b->spec->vocab_size, DTYPE_F32);
    }
    emit(e,
         (struct op){ .kind = OP_SELECT_ROWS, .in = { x, p->ports.last_rows }, .out = { rows } });
    emit(e, (struct op){
                .kind = OP_LINEAR, .in = { rows, head_weight(e) }, .out = { p->ports.logits } });
}

void model_forward(struct model_builder *builder, int function, enum model_end end, int *seed_value,
                   int *seed_gradient)
{
    struct emitter e = { .b = builder,
                         .function = function,
                         .layer = -1,
                         .rows = (int64_t)builder->n_sequences * builder->seq_len };
    int x = embedding(&e);

    for (e.layer = 0; e.layer < builder->spec->n_layers; e.layer++)
        x = block(&e, x);
    e.layer = -1;
    builder->program->values[x].boundary = 1;
    x = norm(&e, x, parameter_weight(&e, "final_norm.weight"),
             parameter_weight(&e, "final_norm.bias"));
    if (end == MODEL_TRAIN)
        train_end(&e, x, seed_value, seed_gradient);
    else if (end == MODEL_EVALUATE)
        evaluate_end(&e, x);
    else
        logits_end(&e, x);
}
