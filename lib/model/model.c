/*
 * model.c - the decoder, op by op
 *
 * The residual stream and its gradient are of a dtype of their own (fp32, or bf16); everything
 * between a norm and the next residual add is in the run's dtype. Each layer's input is marked as a
 * boundary for full recomputation.
 *
 * Over tp, enter_tp_region and leave_tp_region delimit what is divided: heads, FFN, vocabulary. The
 * collectives of the backward follow from them (differentiate.c).
 */
#include <math.h>
#include <string.h>

#include "base/num.h"
#include "config/fp8_layers.h"
#include "layout/axes.h"
#include "model/logits_impl.h"
#include "model/lora_impl.h"
#include "model/mixture_impl.h"
#include "model/self_attention_impl.h"

/* y, the product of x and the module's matrix, plus the adapters of this matrix. */
int emit_with_lora(const struct emitter *e, enum module_id module, int x, int y)
{
    return lora_emit(e->b, &(struct lora_site){ e->function, e->layer, module, x, y, 0, 0 });
}

static bool is_of_experts(enum module_id module)
{
    return module == MODULE_EXPERTS_GATE_UP || module == MODULE_EXPERTS_DOWN;
}

bool emit_in_fp8(const struct emitter *e, enum module_id module, int64_t rows, int64_t cols)
{
    const struct fp8_choice *fp8 = &e->b->fp8;
    struct parameter_id id = parameters_id(e->b->spec, module, PART_WEIGHT, e->layer);

    if (e->end != MODEL_TRAIN || fp8->recipe == FP8_NONE ||
        !fp8_has_layer(fp8, e->b->spec, e->layer) || rows % OPS_FP8_MULTIPLE ||
        cols % OPS_FP8_MULTIPLE)
        return false;
    if (!fp8->by_product)
        e->b->program->parameters[model_parameter(e->b, id)].in_fp8 =
            is_of_experts(module) && fp8->recipe == FP8_TENSOR ? IN_FP8_BY_RANK : IN_FP8;
    return true;
}

int emit_linear(const struct emitter *e, enum module_id module, int x, int bias)
{
    int weight = weight_of(e, module);
    const struct value *w = &e->b->program->values[weight];
    bool in_fp8 = emit_in_fp8(e, module, w->rows, w->cols);
    int y = value(e, x, w->rows, e->b->dtype);

    emit(e, (struct op){ .kind = in_fp8 ? OP_LINEAR_FP8 : OP_LINEAR,
                         .attributes = { .fp8 = in_fp8 ? e->b->fp8.recipe : FP8_NONE,
                                         .wide_dw = in_fp8 && e->b->fp8.wide_dw,
                                         .e5m2_dy = in_fp8 && e->b->fp8.e5m2_dy },
                         .in = { [LINEAR_X] = x, [LINEAR_W] = weight, [LINEAR_B] = bias },
                         .out = { [LINEAR_Y] = y } });
    return y;
}

/* The last linear of a block, whose input is divided among ranks: its output leaves the region into
 * the residual stream. */
static int linear_to_residual(const struct emitter *e, enum module_id module, int x)
{
    int bias = bias_of(e, module);

    if (e->tp == 1)
        return emit_with_lora(e, module, x, emit_linear(e, module, x, bias));
    int sum = leave_tp_region(e, emit_with_lora(e, module, x, emit_linear(e, module, x, 0)));
    if (!bias)
        return sum;
    int y = value(e, sum, cols_of(e, sum), dtype_of(e, sum));
    emit(e, (struct op){ .kind = OP_ADD_BIAS,
                         .in = { [ADD_BIAS_X] = sum, [ADD_BIAS_B] = bias },
                         .out = { [ADD_BIAS_Y] = y } });
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
                             .in = { [RMSNORM_X] = x, [RMSNORM_W] = weight },
                             .out = { [RMSNORM_Y] = y, [RMSNORM_RSTD] = rstd } });
        return y;
    }
    int mean = value(e, x, 1, DTYPE_F32);
    emit(
        e,
        (struct op){
            .kind = OP_LAYERNORM,
            .attributes.eps = s->norm_eps,
            .in = { [LAYERNORM_X] = x, [LAYERNORM_W] = weight, [LAYERNORM_B] = bias_of(e, module) },
            .out = { [LAYERNORM_Y] = y, [LAYERNORM_MEAN] = mean, [LAYERNORM_RSTD] = rstd } });
    return y;
}

static int dropout(const struct emitter *e, int x, enum dropout_site site)
{
    double p = e->b->dropout ? e->b->spec->dropout : 0;

    if (p <= 0)
        return x;
    int y = value(e, x, cols_of(e, x), dtype_of(e, x));
    emit(e, (struct op){ .kind = OP_DROPOUT,
                         .attributes = { .p = p,
                                         .seed = e->b->seed,
                                         .rng_site = rng_site_of(e, site),
                                         .seq_len = e->b->seq_len },
                         .in = { [DROPOUT_X] = x,
                                 [DROPOUT_SAMPLE] = e->b->program->ports.samples,
                                 [DROPOUT_OFFSET] = e->b->parts.rows,
                                 [DROPOUT_ROW] = e->b->program->ports.rows },
                         .out = { [DROPOUT_Y] = y } });
    return y;
}

int emit_residual_add(const struct emitter *e, int x, int delta)
{
    int sum = value(e, x, cols_of(e, x), dtype_of(e, x));

    emit(e, (struct op){
                .kind = OP_ADD, .in = { [ADD_A] = x, [ADD_B] = delta }, .out = { [ADD_Y] = sum } });
    return sum;
}

static int feed_forward(const struct emitter *e, int x)
{
    const struct model_spec *s = e->b->spec;
    int gated = s->activation == ACTIVATION_SWIGLU;
    enum module_id up = gated ? MODULE_GATE_UP : MODULE_UP;
    int ffn_hidden = emit_with_lora(e, up, x, emit_linear(e, up, x, bias_of(e, up)));
    int y = value(e, ffn_hidden, s->ffn_size / e->tp, e->b->dtype);

    emit(e, (struct op){ .kind = gated ? OP_SWIGLU : OP_GELU,
                         .in = { [OPS_FIRST] = ffn_hidden },
                         .out = { [OPS_FIRST] = y } });
    return linear_to_residual(e, MODULE_DOWN, y);
}

/* Pre-norm block: x + attention(norm(x)), then + ffn(norm(.)). */
static int block(const struct emitter *e, int x)
{
    e->b->program->values[x].boundary = 1;
    enum dtype dtype = e->b->dtype;
    int qkv_x = enter_tp_region(e, norm(e, MODULE_ATTENTION_NORM, x, dtype));
    qkv_x = self_attention_input(e, qkv_x);
    int qkv = emit_linear(e, MODULE_QKV, qkv_x, bias_of(e, MODULE_QKV));
    qkv = emit_with_lora(e, MODULE_QKV, qkv_x, qkv);
    int out = linear_to_residual(e, MODULE_ATTENTION_OUT, self_attention(e, qkv));
    x = emit_residual_add(e, x, dropout(e, out, SITE_ATTENTION_OUT));

    int y = norm(e, MODULE_FFN_NORM, x, dtype);
    out = model_spec_has_experts(e->b->spec, e->layer) ? mixture_emit(e, y)
                                                       : feed_forward(e, enter_tp_region(e, y));
    return emit_residual_add(e, x, dropout(e, out, SITE_FFN_OUT));
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
                         .out = { [EMBED_X] = x } });
    x = leave_tp_region(e, x);
    if (e->b->spec->position == POSITION_LEARNED) {
        int sum = value(e, x, hidden, dtype_of(e, x));
        emit(e, (struct op){ .kind = OP_EMBED,
                             .in = { [EMBED_INDEX] = positions,
                                     [EMBED_TABLE] = weight_of(e, MODULE_POSITION),
                                     [EMBED_BASE] = x },
                             .out = { [EMBED_X] = sum } });
        x = sum;
    }
    if (e->b->spec->embedding_norm) {
        /* In the residual stream's dtype, and kept as a layer's input is. */
        e->b->program->values[x].boundary = 1;
        x = norm(e, MODULE_EMBEDDING_NORM, x, dtype_of(e, x));
    }
    return e->b->spec->embedding_dropout ? dropout(e, x, SITE_EMBEDDING) : x;
}

static void stream_end(const struct emitter *e, int x)
{
    struct program *p = e->b->program;

    if (!p->ports.stream)
        p->ports.stream = program_cell(p, ROLE_SCALAR, "stream", e->rows, cols_of(e, x), DTYPE_F32);
    emit(e, (struct op){ .kind = OP_ACCUMULATE,
                         .in = { [ACCUMULATE_X] = x },
                         .out = { [ACCUMULATE_Y] = p->ports.stream },
                         .first = FIRST_ALWAYS });
}

void model_score(struct model_builder *builder, int function, int n_rows)
{
    struct program *p = builder->program;
    int tp = p->mesh.size[axes_tensor()];
    struct emitter e = { .b = builder,
                         .function = function,
                         .layer = -1,
                         .tp = tp,
                         .ulysses = 1,
                         .keys = 1,
                         .rows = n_rows };
    int x = program_value(p, n_rows, builder->spec->hidden_size, DTYPE_F32);

    p->ports.query_rows = program_cell(p, ROLE_SCALAR, "query_rows", n_rows, 1, DTYPE_I32);
    p->ports.target_tokens = program_cell(p, ROLE_SCALAR, "target_tokens", n_rows, 1, DTYPE_I32);
    p->ports.stats =
        program_cell(p, ROLE_SCALAR, "stats", (int64_t)tp * n_rows, OPS_N_STATS, DTYPE_F32);
    emit(&e,
         (struct op){
             .kind = OP_SELECT_ROWS,
             .in = { [SELECT_ROWS_X] = p->ports.stream, [SELECT_ROWS_INDEX] = p->ports.query_rows },
             .out = { [SELECT_ROWS_Y] = x } });
    x = norm(&e, MODULE_FINAL_NORM, x, builder->dtype);
    int head = logits_rows(&e);
    int logits = program_value(p, n_rows, p->values[head].rows, DTYPE_F32);
    int stats = tp > 1 ? program_value(p, n_rows, OPS_N_STATS, DTYPE_F32) : p->ports.stats;
    emit(&e, (struct op){ .kind = OP_LINEAR,
                          .in = { [LINEAR_X] = x, [LINEAR_W] = head },
                          .out = { [LINEAR_Y] = logits } });
    emit(&e, (struct op){ .kind = OP_LOGIT_STATS,
                          .attributes.vocab_size = builder->spec->vocab_size,
                          .in = { [LOGIT_STATS_LOGITS] = logits,
                                  [LOGIT_STATS_TARGET] = p->ports.target_tokens,
                                  [LOGIT_STATS_OFFSET] = builder->parts.vocabulary },
                          .out = { [LOGIT_STATS_STATS] = stats } });
    if (tp > 1)
        emit_tp(&e, OP_ALL_GATHER, stats, p->ports.stats);
}

struct context_cut model_context_cut(const struct mesh *mesh)
{
    return (struct context_cut){ mesh->size[axes_heads()], mesh->size[axes_keys()] };
}

int64_t model_rows(const struct model_builder *b)
{
    return (int64_t)b->n_sequences * b->seq_len /
           context_size(model_context_cut(&b->program->mesh));
}

struct model_part model_forward(struct model_builder *builder, int function,
                                const struct model_chunk *chunk, enum model_end end, int boundary)
{
    const struct mesh *mesh = &builder->program->mesh;
    struct emitter e = { .b = builder,
                         .function = function,
                         .layer = -1,
                         .tp = mesh->size[axes_tensor()],
                         .ulysses = mesh->size[axes_heads()],
                         .keys = mesh->size[axes_keys()],
                         .end = end,
                         .rows = model_rows(builder) };
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
    x = enter_tp_region(&e, x);
    if (end == MODEL_TRAIN)
        part.gradient = logits_train(&e, x);
    else if (end == MODEL_EVALUATE)
        logits_evaluate(&e, x);
    else
        logits_last(&e, x);
    return part;
}

struct model_chunk model_whole(const struct model_spec *spec)
{
    return (struct model_chunk){ .n_stages = 1, .end_layer = spec->n_layers };
}
