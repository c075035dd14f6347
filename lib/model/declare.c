/*
 * declare.c - a model's parameters, inputs and constants
 *
 * Initial values are GPT-2's: normal with init_std, the projections that write to the residual
 * stream with init_std / sqrt(2 n_layers), norms 1, biases 0.
 */
#include <math.h>
#include <stdio.h>

#include "model/model.h"

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

static void linear(const struct model_builder *b, const char *name, int64_t rows, int64_t cols,
                   double std)
{
    char full[96];

    snprintf(full, sizeof full, "%s.weight", name);
    matrix(b, full, rows, cols, std);
    if (b->spec->bias) {
        snprintf(full, sizeof full, "%s.bias", name);
        vector(b, full, rows, INIT_ZEROS);
    }
}

static void layer(const struct model_builder *b, int n)
{
    const struct model_spec *s = b->spec;
    int64_t hidden = s->hidden_size, attention = (int64_t)s->n_heads * s->head_dim;
    int64_t qkv = attention + 2 * (int64_t)s->n_kv_heads * s->head_dim;
    double residual_std = s->init_std / sqrt(2.0 * s->n_layers);
    int gated = s->activation == ACTIVATION_SWIGLU;
    char name[6][64];
    static const char *const parts[6] = { "attention_norm", "qkv",     "attention_out",
                                          "ffn_norm",       "gate_up", "down" };

    for (int i = 0; i < 6; i++)
        snprintf(name[i], sizeof name[i], "layers.%d.%s", n, i == 4 && !gated ? "up" : parts[i]);
    norm(b, name[0]);
    linear(b, name[1], qkv, hidden, s->init_std);
    linear(b, name[2], hidden, attention, residual_std);
    norm(b, name[3]);
    linear(b, name[4], (gated ? 2 : 1) * (int64_t)s->ffn_size, hidden, s->init_std);
    linear(b, name[5], hidden, s->ffn_size, residual_std);
}

static int input(const struct model_builder *b, const char *name, int64_t rows, enum dtype dtype)
{
    int id = program_cell(b->program, ROLE_INPUT, name, rows, 1, dtype);

    if (b->program->mesh.size[AXIS_DP] > 1)
        b->program->values[id].spread[AXIS_DP] = SPREAD_ROWS;
    return id;
}

/* Of a rank's own micro-batches; written by the last stage, others hold zeros. */
static int sum_cell(struct program *p, const char *name)
{
    static const enum mesh_axis axes[] = { AXIS_DP, AXIS_PP };
    int cell = program_cell(p, ROLE_SCALAR, name, 1, 1, DTYPE_F64);

    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++)
        if (p->mesh.size[axes[i]] > 1)
            p->values[cell].spread[axes[i]] = SPREAD_PARTIAL;
    return cell;
}

static void embeddings(const struct model_builder *b)
{
    const struct model_spec *s = b->spec;

    matrix(b, "embedding.weight", s->vocab_size, s->hidden_size, s->init_std);
    if (s->position == POSITION_LEARNED)
        matrix(b, "position.weight", s->max_seq_len, s->hidden_size, s->init_std);
}

static void head(const struct model_builder *b, int has_embedding)
{
    const struct model_spec *s = b->spec;
    const char *name = s->tied_embeddings ? "embedding.weight" : "head.weight";

    norm(b, "final_norm");
    if (s->tied_embeddings && has_embedding)
        return;
    matrix(b, name, s->vocab_size, s->hidden_size, s->init_std);
    b->program->parameters[b->program->n_parameters - 1].is_copy = s->tied_embeddings;
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

    p->ports.tokens = input(b, "tokens", rows, DTYPE_I32);
    p->ports.positions = input(b, "positions", rows, DTYPE_I32);
    if (!b->cache_len) {
        p->ports.targets = input(b, "targets", rows, DTYPE_I32);
        p->ports.samples = input(b, "samples", b->n_sequences, DTYPE_I64);
    }
    if (s->position == POSITION_ROPE)
        p->ports.rope_table =
            program_cell(p, ROLE_CONSTANT, "rope_table", b->max_positions, s->head_dim, DTYPE_F32);
}

void model_declare_loss(struct model_builder *b)
{
    struct program *p = b->program;

    p->ports.loss_scale = program_cell(p, ROLE_SCALAR, "loss_scale", 1, 1, DTYPE_F32);
    p->ports.loss = sum_cell(p, "loss");
}

void model_declare_evaluation(struct model_builder *b)
{
    b->program->ports.eval_loss = sum_cell(b->program, "eval_loss");
}
