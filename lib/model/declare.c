/*
 * declare.c - a model's parameters, inputs and constants
 *
 * Initial values are GPT-2's: normal with init_std, the projections that write to the residual
 * stream with init_std / sqrt(2 n_layers), norms 1, biases 0.
 *
 * Tensor-parallel ranks have parts (Shoeybi et al. 2019, section 3): of what reads the whole hidden
 * state the outputs, by heads and by feed-forward columns; of what gives it the inputs; of the
 * vocabulary its rows. Norms, those of heads too, learned positions, and biases that are added to
 * sums, all of them.
 */
#include <math.h>
#include <stdio.h>

#include "base/num.h"
#include "layout/axes.h"
#include "model/lora_impl.h"

static void matrix(const struct model_builder *b, const char *name, int64_t rows, int64_t cols,
                   double std)
{
    program_parameter(b->program, name, 2, rows, cols, b->dtype, INIT_NORMAL, std);
}

static void vector(const struct model_builder *b, const char *name, int64_t n, enum init_kind init)
{
    program_parameter(b->program, name, 1, 1, n, DTYPE_F32, init, 0);
}

static void norm(const struct model_builder *b, const char *name)
{
    char full[96];

    snprintf(full, sizeof full, "%s.weight", name);
    vector(b, full, b->spec->hidden_size, INIT_ONES);
    if (b->spec->norm == NORM_LAYER && b->spec->bias) {
        snprintf(full, sizeof full, "%s.bias", name);
        vector(b, full, b->spec->hidden_size, INIT_ZEROS);
    }
}

/* The parameter declared last. */
static void split(const struct model_builder *b, enum spread along, const struct parameter_split *s)
{
    struct parameter_split parts = *s;

    parts.along = along;
    program_split_parameter(b->program, b->program->n_parameters - 1, axes_tensor(), &parts);
}

static void linear(const struct model_builder *b, const char *name, int64_t rows, int64_t cols,
                   double std, int has_bias, const struct parameter_split *parts)
{
    char full[96];

    snprintf(full, sizeof full, "%s.weight", name);
    matrix(b, full, rows, cols, std);
    split(b, parts->along, parts);
    if (has_bias) {
        snprintf(full, sizeof full, "%s.bias", name);
        vector(b, full, rows, INIT_ZEROS);
        if (parts->along == SPREAD_ROWS)
            split(b, SPREAD_COLS, parts);
    }
}

/* Every rank has all experts, and of each what it would have of one feed-forward part. */
static void experts(const struct model_builder *b, int n)
{
    const struct model_spec *s = b->spec;
    int64_t hidden = s->hidden_size, ffn = s->expert_ffn_size, m = s->n_experts;
    struct parameter_split by_ffn = {
        .along = SPREAD_ROWS, .n_pieces = 2, .pieces = { ffn, ffn }, .n_repeats = s->n_experts
    };
    struct parameter_split from_ffn = { .along = SPREAD_COLS, .n_pieces = 1, .pieces = { ffn } };
    char name[64];

    snprintf(name, sizeof name, "layers.%d.router.weight", n);
    matrix(b, name, m, hidden, s->init_std);
    snprintf(name, sizeof name, "layers.%d.experts.gate_up.weight", n);
    matrix(b, name, m * 2 * ffn, hidden, s->init_std);
    split(b, SPREAD_ROWS, &by_ffn);
    snprintf(name, sizeof name, "layers.%d.experts.down.weight", n);
    matrix(b, name, m * hidden, ffn, s->init_std / sqrt(2.0 * s->n_layers));
    split(b, SPREAD_COLS, &from_ffn);
}

/* All heads share them. */
static void head_norms(const struct model_builder *b, int layer)
{
    char name[64];

    for (int i = 0; i < 2 && b->spec->qk_norm; i++) {
        snprintf(name, sizeof name, "layers.%d.%c_norm.weight", layer, "qk"[i]);
        vector(b, name, b->spec->head_dim, INIT_ONES);
    }
}

static void layer(const struct model_builder *b, int n)
{
    const struct model_spec *s = b->spec;
    int64_t hidden = s->hidden_size, attention = (int64_t)s->n_heads * s->head_dim;
    int64_t kv = (int64_t)s->n_kv_heads * s->head_dim, ffn = s->ffn_size;
    double residual_std = s->init_std / sqrt(2.0 * s->n_layers);
    int gated = s->activation == ACTIVATION_SWIGLU;
    char name[6][64];
    static const char *const parts[6] = { "attention_norm", "qkv",     "attention_out",
                                          "ffn_norm",       "gate_up", "down" };
    struct parameter_split by_heads = { .along = SPREAD_ROWS,
                                        .n_pieces = 3,
                                        .pieces = { attention, kv, kv } };
    struct parameter_split from_heads = { .along = SPREAD_COLS,
                                          .n_pieces = 1,
                                          .pieces = { attention } };
    struct parameter_split by_ffn = { .along = SPREAD_ROWS,
                                      .n_pieces = gated ? 2 : 1,
                                      .pieces = { ffn, ffn } };
    struct parameter_split from_ffn = { .along = SPREAD_COLS, .n_pieces = 1, .pieces = { ffn } };

    for (int i = 0; i < 6; i++)
        snprintf(name[i], sizeof name[i], "layers.%d.%s", n, i == 4 && !gated ? "up" : parts[i]);
    norm(b, name[0]);
    linear(b, name[1], attention + 2 * kv, hidden, s->init_std, model_spec_has_qkv_bias(s),
           &by_heads);
    head_norms(b, n);
    linear(b, name[2], hidden, attention, residual_std, model_spec_has_output_bias(s), &from_heads);
    norm(b, name[3]);
    int has_experts = model_spec_has_experts(s, n);
    if (has_experts) {
        experts(b, n);
    } else {
        linear(b, name[4], (gated ? 2 : 1) * ffn, hidden, s->init_std, s->bias, &by_ffn);
        linear(b, name[5], hidden, ffn, residual_std, s->bias, &from_ffn);
    }
    lora_declare(b, n, "qkv", attention + 2 * kv, hidden, &by_heads);
    lora_declare(b, n, "attention_out", hidden, attention, &from_heads);
    if (has_experts)
        return;
    lora_declare(b, n, gated ? "gate_up" : "up", (gated ? 2 : 1) * ffn, hidden, &by_ffn);
    lora_declare(b, n, "down", hidden, ffn, &from_ffn);
}

static int input(const struct model_builder *b, const char *name, int64_t rows, enum dtype dtype)
{
    int id = program_cell(b->program, ROLE_INPUT, name, rows, 1, dtype);

    program_split_rows(b->program, id);
    return id;
}

/* Of a rank's own micro-batches; written by one stage each, the others hold zeros. */
static int sum_cell(struct program *p, const char *name, int64_t n)
{
    static const enum axis_role roles[] = { SPLITS_TOKENS, SPLITS_LAYERS };
    int cell = program_cell(p, ROLE_SCALAR, name, 1, n, DTYPE_F64);

    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        struct axis_list list = axes_of(&p->mesh, roles[i], PARAMETER_DENSE);

        for (int k = 0; k < list.n; k++)
            p->values[cell].spread[list.axes[k]] = SPREAD_PARTIAL;
    }
    return cell;
}

/* A row a token, of which each rank has a part. */
static void vocabulary(const struct model_builder *b, const char *name)
{
    struct parameter_split by_token = { .along = SPREAD_ROWS,
                                        .n_pieces = 1,
                                        .pieces = { b->spec->vocab_size } };

    matrix(b, name, b->spec->vocab_size, b->spec->hidden_size, b->spec->init_std);
    split(b, SPREAD_ROWS, &by_token);
}

static void embeddings(const struct model_builder *b)
{
    const struct model_spec *s = b->spec;

    vocabulary(b, "embedding.weight");
    if (s->position == POSITION_LEARNED)
        matrix(b, "position.weight", s->max_seq_len, s->hidden_size, s->init_std);
    if (s->embedding_norm)
        norm(b, "embedding_norm");
}

static void head(const struct model_builder *b, int has_embedding)
{
    const struct model_spec *s = b->spec;
    const char *name = s->tied_embeddings ? "embedding.weight" : "head.weight";

    norm(b, "final_norm");
    if (s->tied_embeddings && has_embedding)
        return;
    vocabulary(b, name);
    b->program->parameters[b->program->n_parameters - 1].is_copy = s->tied_embeddings;
}

/* Where each tensor-parallel rank's part of something begins, of `each` as many: its own of them. */
static int begins(const struct model_builder *b, const char *name, int64_t each)
{
    struct program *p = b->program;
    int tp = p->mesh.size[axes_tensor()];
    int32_t *content = arena_array(&p->arena, int32_t, tp);

    for (int i = 0; i < tp; i++)
        content[i] = (int32_t)(i * each);
    int cell = program_cell(p, ROLE_CONSTANT, name, 1, tp, DTYPE_I32);
    p->values[cell].content = content;
    return program_own_part(p, arena_printf(&p->arena, "%s:own", name), cell, axes_tensor());
}

/* Where a rank has a part of the micro-batch's rows. */
static void declare_row_parts(struct model_builder *b, const char *name, int64_t rows)
{
    if (!b->sequence_parallel)
        return;
    b->parts.rows = begins(b, name, rows / b->program->mesh.size[axes_tensor()]);
    b->parts.positions =
        program_own_part(b->program, "positions:own", b->program->ports.positions, axes_tensor());
}

static void declare_parts(struct model_builder *b, int64_t rows)
{
    const struct model_spec *s = b->spec;
    int tp = b->program->mesh.size[axes_tensor()];

    if (tp == 1)
        return;
    b->parts.vocabulary = begins(b, "vocabulary_begin", ceil_div(s->vocab_size, tp));
    declare_row_parts(b, "row_begin", rows);
    if ((b->dropout && s->attention_dropout > 0) || s->position == POSITION_ALIBI)
        b->parts.heads = begins(b, "head_begin", s->n_heads / tp);
    if (b->dropout && b->tuning && b->tuning->has_lora && b->tuning->dropout > 0) {
        int64_t attention = (int64_t)s->n_heads * s->head_dim;

        b->parts.attention_cols = begins(b, "attention_begin", ceil_div(attention, tp));
        b->parts.ffn_cols = begins(b, "ffn_begin", ceil_div(s->ffn_size, tp));
    }
}

void model_declare(struct model_builder *b, const struct model_chunk *chunks, int n_chunks)
{
    const struct model_spec *s = b->spec;
    struct program *p = b->program;
    int64_t rows = (int64_t)b->n_sequences * b->seq_len;

    if (chunks[0].stage == 0)
        embeddings(b);
    for (int c = 0; c < n_chunks; c++)
        for (int n = chunks[c].first_layer; n < chunks[c].end_layer; n++)
            layer(b, n);
    if (chunks[n_chunks - 1].stage + 1 == chunks[n_chunks - 1].n_stages)
        head(b, chunks[0].stage == 0);

    if (b->tuning)
        for (int i = 0; i < p->n_parameters; i++)
            p->parameters[i].trainable = tuning_trains(b->tuning, p->parameters[i].name);

    p->ports.tokens = input(b, "tokens", rows, DTYPE_I32);
    p->ports.positions = input(b, "positions", rows, DTYPE_I32);
    if (b->is_packed)
        p->ports.starts = input(b, "starts", rows, DTYPE_I32);
    if (!b->cache_len) {
        p->ports.targets = input(b, "targets", rows, DTYPE_I32);
        p->ports.samples = input(b, "samples", b->n_sequences, DTYPE_I64);
    }
    if (s->position == POSITION_ROPE)
        p->ports.rope_table =
            program_cell(p, ROLE_CONSTANT, "rope_table", b->max_positions, s->head_dim, DTYPE_F32);
    declare_parts(b, rows);
}

void model_resize(struct model_builder *b, int n_sequences)
{
    struct program *p = b->program;
    int *ports[] = { &p->ports.tokens, &p->ports.positions, &p->ports.targets, &p->ports.samples,
                     &p->ports.starts };
    int64_t rows = (int64_t)n_sequences * b->seq_len;

    if (n_sequences == b->n_sequences)
        return;
    CHECK(n_sequences < b->n_sequences);
    for (size_t i = 0; i < sizeof ports / sizeof *ports; i++) {
        if (!*ports[i])
            continue;
        const char *whole = p->values[*ports[i]].name;
        int64_t n = ports[i] == &p->ports.samples ? n_sequences : rows;

        *ports[i] = program_view(p, *ports[i], 0, n, 1, 1);
        p->values[*ports[i]].name = arena_printf(&p->arena, "%s:first%d", whole, n_sequences);
    }
    b->n_sequences = n_sequences;
    declare_row_parts(b, arena_printf(&p->arena, "row_begin.%d", n_sequences), rows);
}

void model_declare_loss(struct model_builder *b)
{
    struct program *p = b->program;

    p->ports.loss_scale = program_cell(p, ROLE_SCALAR, "loss_scale", 1, 1, DTYPE_F32);
    if (b->dtype == DTYPE_F16)
        p->ports.gradient_scale = program_cell(p, ROLE_SCALAR, "gradient_scale", 1, 1, DTYPE_F32);
    p->ports.loss = sum_cell(p, "loss", 1);
    if (b->spec->n_experts)
        p->ports.router_stats = sum_cell(p, "router_stats",
                                         model_spec_n_expert_layers(b->spec, b->spec->n_layers) *
                                             (1 + (int64_t)b->spec->n_experts));
}

void model_declare_evaluation(struct model_builder *b)
{
    struct program *p = b->program;

    /* The head in parts wants it, whatever it is. */
    if (p->mesh.size[axes_tensor()] > 1 && !p->ports.loss_scale)
        p->ports.loss_scale = program_cell(p, ROLE_SCALAR, "loss_scale", 1, 1, DTYPE_F32);
    p->ports.eval_loss = sum_cell(p, "eval_loss", 1);
}
