/*
 * declare.c - a model's parameters, inputs and constants
 *
 * config/parameters.h is the inventory of a model's parameters: those of the given chunks are
 * declared in its order, the adapters of each layer after the layer's parameters.
 */
#include <stdbool.h>
#include <string.h>

#include "base/num.h"
#include "layout/axes.h"
#include "model/model.h"

_Static_assert(MODULE_MAX_PIECES <= PARAMETER_MAX_PIECES, "all of a module's pieces are divided");

/* With fastseq, heads are divided over ulysses, too: those of a tensor-parallel rank. */
static bool is_divided_again(const struct model_builder *b, const struct parameter_spec *q)
{
    return b->fastseq && q->id.module == MODULE_QKV && q->divided == SPREAD_ROWS;
}

/* Each rank has all of as many neighbouring experts. */
static void divide_experts(const struct model_builder *b, const struct parameter_spec *q,
                           int parameter)
{
    struct parameter_split parts = { .along = SPREAD_ROWS, .n_pieces = 1, .pieces = { q->rows } };

    program_split_parameter(b->program, parameter, axes_experts(), &parts);
    parts.pieces[0] /= b->program->mesh.size[axes_experts()];
    if (b->whole_experts)
        program_split_parameter(b->program, parameter, axes_tensor(), &parts);
}

enum mesh_axis model_expert_axis(const struct model_builder *b)
{
    return axes_exchange(&b->program->mesh, b->whole_experts);
}

/* Divide the parameter declared last among ranks. A vector is one row in the program. */
static void divide(const struct model_builder *b, const struct parameter_spec *q)
{
    struct parameter_split parts = { .along = SPREAD_COLS, .n_pieces = 1, .pieces = { q->cols } };
    int last = b->program->n_parameters - 1;

    if (q->kind == PARAMETER_EXPERT)
        divide_experts(b, q, last);
    if (q->divided == SPREAD_SAME || (q->kind == PARAMETER_EXPERT && b->whole_experts))
        return;
    if (q->divided == SPREAD_ROWS) {
        parts.along = q->n_dims == 1 ? SPREAD_COLS : SPREAD_ROWS;
        parts.n_pieces = q->n_pieces;
        parts.n_repeats = q->n_repeats;
        if (q->kind == PARAMETER_EXPERT)
            parts.n_repeats /= b->program->mesh.size[axes_experts()];
        memcpy(parts.pieces, q->pieces, sizeof q->pieces);
    }
    program_split_parameter(b->program, last, axes_tensor(), &parts);
    if (!is_divided_again(b, q))
        return;
    for (int i = 0; i < parts.n_pieces; i++)
        parts.pieces[i] = ceil_div(parts.pieces[i], b->program->mesh.size[axes_tensor()]);
    program_split_parameter(b->program, last, axes_heads(), &parts);
}

/* The matrices that the rank has of a parameter of a layer that multiplies activations: each piece
 * of each expert is one. Adapters, routers, the head and tables have none. */
static struct parameter_matrices matrices_of(const struct model_builder *b,
                                             const struct parameter_spec *q,
                                             const struct parameter *declared)
{
    bool is_cut = q->divided != SPREAD_SAME && !(q->kind == PARAMETER_EXPERT && b->whole_experts);
    struct parameter_matrices m = { .by_columns = q->divided == SPREAD_COLS };
    int64_t rows = 0;
    int n_cuts = 1;

    if (q->role != PARAMETER_MATRIX || q->n_dims == 1 || !parameters_is_of_layers(q->id.module))
        return (struct parameter_matrices){ 0 };
    for (int i = 0; i < declared->n_splits && is_cut; i++)
        if (declared->splits[i].axis != axes_experts()) {
            m.cut_axes |= 1U << declared->splits[i].axis;
            n_cuts *= b->program->mesh.size[declared->splits[i].axis];
        }
    m.n_pieces = q->n_pieces;
    for (int i = 0; i < q->n_pieces; i++) {
        m.pieces[i] = m.by_columns ? q->pieces[i] : q->pieces[i] / n_cuts;
        rows += m.pieces[i];
    }
    m.n_repeats = (int)(declared->rows / rows);
    CHECK(m.n_repeats * rows == declared->rows);
    return m;
}

unsigned model_split_axes(const struct model_builder *b, const struct parameter_spec *q)
{
    int is_divided = q->divided != SPREAD_SAME || (q->kind == PARAMETER_EXPERT && b->whole_experts);
    int over_tensor = is_divided && b->program->mesh.size[axes_tensor()] > 1;
    int over_experts = q->kind == PARAMETER_EXPERT && b->program->mesh.size[axes_experts()] > 1;

    return (over_tensor ? 1U << axes_tensor() : 0) | (over_experts ? 1U << axes_experts() : 0) |
           (is_divided_again(b, q) ? 1U << axes_heads() : 0);
}

/* Declare a parameter; returns its handle. */
static int declare(const struct model_builder *b, const struct parameter_spec *q)
{
    int is_vector = q->n_dims == 1;
    int i = program_parameter(b->program, q->name, q->n_dims, is_vector ? 1 : q->rows,
                              is_vector ? q->rows : q->cols, b->dtype, q->init, q->init_std);

    divide(b, q);
    b->program->parameters[i].matrices = matrices_of(b, q, &b->program->parameters[i]);
    b->program->parameters[i].trainable = tuning_trains(b->tuning, q);
    b->program->parameters[i].stays_whole = q->role == PARAMETER_BALANCE;
    return 1 + i;
}

static void adapters(const struct model_builder *b, int layer)
{
    struct parameter_spec q;

    for (int m = 0; m < N_LORA_MODULES; m++)
        for (int k = 0; k < N_LORA_MATRICES; k++)
            if (tuning_adapter(b->tuning, b->spec, layer, (enum lora_module)m, (enum lora_matrix)k,
                               &q))
                b->adapters[layer][m][k] = declare(b, &q);
}

/* Declare the parameters of a layer, or those before or after all layers. */
static void parameters(const struct model_builder *b, int layer)
{
    struct parameter_spec list[LAYER_MAX_PARAMETERS];
    int n = parameters_of_layer(b->spec, layer, list);

    for (int i = 0; i < n; i++)
        b->parameters[parameters_index(list[i].id)] = declare(b, &list[i]);
}

/* A copy of the embedding, for a head that is tied to one of other chunks. */
static void copy_of_embedding(const struct model_builder *b)
{
    struct parameter_id id = parameters_head(b->spec);
    struct parameter_spec q;

    if (id.module != MODULE_EMBEDDING || b->parameters[parameters_index(id)])
        return;
    CHECK(parameters_find(b->spec, id, &q));
    b->parameters[parameters_index(id)] = declare(b, &q);
    b->program->parameters[b->program->n_parameters - 1].is_copy = 1;
}

static void declare_parameters(struct model_builder *b, const struct model_chunk *chunks,
                               int n_chunks)
{
    const struct model_spec *s = b->spec;
    struct arena *arena = &b->program->arena;

    b->parameters = arena_array(arena, int, parameters_n_indices(s));
    b->adapters = arena_alloc(arena, sizeof *b->adapters * (size_t)s->n_layers);
    b->caches = arena_alloc(arena, sizeof *b->caches * (size_t)s->n_layers);
    if (chunks[0].stage == 0)
        parameters(b, LAYER_BEFORE);
    for (int c = 0; c < n_chunks; c++)
        for (int n = chunks[c].first_layer; n < chunks[c].end_layer; n++) {
            parameters(b, n);
            adapters(b, n);
        }
    if (chunks[n_chunks - 1].stage + 1 == chunks[n_chunks - 1].n_stages) {
        parameters(b, s->n_layers);
        copy_of_embedding(b);
    }
}

int model_parameter(const struct model_builder *b, struct parameter_id id)
{
    return b->parameters[parameters_index(id)] - 1;
}

/* Of the rank's rows of a micro-batch. */
static int input(const struct model_builder *b, const char *name, enum dtype dtype)
{
    int id = program_cell(b->program, ROLE_INPUT, name, model_rows(b), 1, dtype);

    program_split_rows(b->program, id);
    return id;
}

/* n columns, one behind the other, of the rows that attention reads: where heads are exchanged
 * these are the same on their ranks. */
static int attention_input(const struct model_builder *b, const char *name, int n)
{
    struct program *p = b->program;
    int64_t rows = n * model_rows(b) * p->mesh.size[axes_heads()];
    int id = program_cell(p, ROLE_INPUT, name, rows, 1, DTYPE_I32);

    program_split_rows(p, id);
    p->values[id].spread[axes_heads()] = SPREAD_SAME;
    return id;
}

static int samples_input(const struct model_builder *b)
{
    int id = program_cell(b->program, ROLE_INPUT, "samples", b->n_sequences, 1, DTYPE_I64);

    program_split_sequences(b->program, id);
    return id;
}

/* Sums over a rank's micro-batches; one stage adds to each, on the others it stays zero. */
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

/* A constant [1 x n] of 0, each, 2 each, ... */
static int ascending(const struct model_builder *b, const char *name, int n, int64_t each)
{
    struct program *p = b->program;
    int32_t *content = arena_array(&p->arena, int32_t, n);

    for (int i = 0; i < n; i++)
        content[i] = (int32_t)(i * each);
    int cell = program_cell(p, ROLE_CONSTANT, name, 1, n, DTYPE_I32);
    p->values[cell].content = content;
    return cell;
}

/* A constant with the offset of each part over the axis, `each` apart, and its local shard: this
 * rank's offset. */
static int begins_over(const struct model_builder *b, enum mesh_axis axis, const char *name,
                       int64_t each)
{
    struct program *p = b->program;
    int cell = ascending(b, name, mesh_size(&p->mesh, axis), each);

    return program_local_shard(p, arena_printf(&p->arena, "%s:local", name), cell, axis);
}

static int begins(const struct model_builder *b, const char *name, int64_t each)
{
    return begins_over(b, axes_tensor(), name, each);
}

/* The same of the heads that a rank attends with: over tp, and over ulysses in each part. */
static int head_begins(const struct model_builder *b)
{
    struct program *p = b->program;
    int tp = p->mesh.size[axes_tensor()], ulysses = p->mesh.size[axes_heads()];
    int cell = ascending(b, "head_begin", tp * ulysses, b->spec->n_heads / (tp * ulysses));

    if (tp > 1)
        cell = program_local_shard(p, ulysses > 1 ? "head_begin:tp" : "head_begin:local", cell,
                                   axes_tensor());
    if (ulysses > 1)
        cell = program_local_shard(p, "head_begin:local", cell, axes_heads());
    return cell;
}

/* For ranks that have a part of the micro-batch's rows. */
static void declare_row_parts(struct model_builder *b, const char *name, int64_t rows)
{
    if (!b->sequence_parallel)
        return;
    b->parts.rows = begins(b, name, rows / b->program->mesh.size[axes_tensor()]);
    b->parts.positions = program_local_shard(b->program, "positions:local",
                                             b->program->ports.positions, axes_tensor());
}

/* Whether attention must know which of all heads are the rank's. */
static bool has_numbered_heads(const struct model_builder *b)
{
    return (b->dropout && b->spec->attention_dropout > 0) || b->spec->position == POSITION_ALIBI;
}

static void declare_parts(struct model_builder *b, int64_t rows)
{
    const struct model_spec *s = b->spec;
    int tp = b->program->mesh.size[axes_tensor()], ulysses = b->program->mesh.size[axes_heads()];

    enum mesh_axis experts = model_expert_axis(b);
    int n = mesh_size(&b->program->mesh, experts);

    if (b->capacity_factor > 0 && s->n_experts)
        b->parts.none = ascending(b, "no_expert_before", 1, 0);
    if (n > 1 && s->n_experts)
        b->parts.experts = begins_over(b, experts, "expert_begin", s->n_experts / n);
    if (tp > 1) {
        b->parts.vocabulary = begins(b, "vocabulary_begin", ceil_div(s->vocab_size, tp));
        declare_row_parts(b, "row_begin", rows);
    }
    if (tp * ulysses > 1 && has_numbered_heads(b))
        b->parts.heads = head_begins(b);
    if (tp == 1)
        return;
    if (b->dropout && b->tuning && b->tuning->has_lora && b->tuning->dropout > 0) {
        int64_t attention = (int64_t)s->n_heads * s->head_dim;

        b->parts.attention_cols = begins(b, "attention_begin", ceil_div(attention, tp));
        b->parts.ffn_cols = begins(b, "ffn_begin", ceil_div(s->ffn_size, tp));
        if (s->n_experts && s->shared_ffn_size)
            b->parts.shared_cols = begins(b, "shared_begin", ceil_div(s->shared_ffn_size, tp));
    }
}

/* Whether elements of rows are dropped, by random numbers of the row's place. */
static bool drops_rows(const struct model_builder *b)
{
    return b->dropout &&
           (b->spec->dropout > 0 || (b->tuning && b->tuning->has_lora && b->tuning->dropout > 0));
}

/* Whether some layer fetches the keys of its window alone. */
static bool has_windows(const struct model_builder *b, const struct model_chunk *chunks,
                        int n_chunks)
{
    for (int i = 0; i < n_chunks; i++)
        for (int layer = chunks[i].first_layer; layer < chunks[i].end_layer; layer++)
            if (model_gathered_window(b, layer))
                return true;
    return false;
}

void model_declare(struct model_builder *b, const struct model_chunk *chunks, int n_chunks)
{
    const struct model_spec *s = b->spec;
    struct program *p = b->program;
    struct context_cut cut = model_context_cut(&p->mesh);

    declare_parameters(b, chunks, n_chunks);
    p->ports.tokens = input(b, "tokens", DTYPE_I32);
    p->ports.positions = input(b, "positions", DTYPE_I32);
    if (cut.ulysses > 1)
        p->ports.attention_positions = attention_input(b, "attention_positions", 1);
    if (b->is_packed)
        p->ports.starts = attention_input(b, "starts", 1);
    if (cut.keys > 1)
        p->ports.last = attention_input(b, "last", 1);
    if (cut.keys > 1 && b->has_ring) {
        p->ports.ring_first = attention_input(b, "ring_first", cut.keys);
        p->ports.ring_last = attention_input(b, "ring_last", cut.keys);
    }
    if (has_windows(b, chunks, n_chunks)) {
        p->ports.window_first = attention_input(b, "window_first", 1);
        p->ports.window_last = attention_input(b, "window_last", 1);
    }
    if (context_size(cut) > 1 && drops_rows(b))
        p->ports.rows = input(b, "rows", DTYPE_I32);
    if (!b->cache_len) {
        p->ports.targets = input(b, "targets", DTYPE_I32);
        p->ports.samples = samples_input(b);
    }
    if (s->position == POSITION_ROPE)
        p->ports.rope_table =
            program_cell(p, ROLE_CONSTANT, "rope_table", b->max_positions, s->head_dim, DTYPE_F32);
    declare_parts(b, model_rows(b));
}

void model_resize(struct model_builder *b, int n_sequences)
{
    struct program *p = b->program;
    int *const ports[] = { &p->ports.tokens,       &p->ports.positions,
                           &p->ports.targets,      &p->ports.samples,
                           &p->ports.starts,       &p->ports.rows,
                           &p->ports.last,         &p->ports.attention_positions,
                           &p->ports.ring_first,   &p->ports.ring_last,
                           &p->ports.window_first, &p->ports.window_last };

    if (n_sequences == b->n_sequences)
        return;
    CHECK(n_sequences < b->n_sequences);
    for (size_t i = 0; i < sizeof ports / sizeof *ports; i++) {
        if (!*ports[i])
            continue;
        const char *whole = p->values[*ports[i]].name;
        int64_t n = p->values[*ports[i]].rows / b->n_sequences * n_sequences;

        *ports[i] = program_view(p, *ports[i], 0, n, 1, 1);
        p->values[*ports[i]].name = arena_printf(&p->arena, "%s:first%d", whole, n_sequences);
    }
    b->n_sequences = n_sequences;
    declare_row_parts(b, arena_printf(&p->arena, "row_begin.%d", n_sequences), model_rows(b));
}

void model_declare_loss(struct model_builder *b)
{
    struct program *p = b->program;

    p->ports.loss_scale = program_cell(p, ROLE_SCALAR, "loss_scale", 1, 1, DTYPE_F32);
    if (b->dtype == DTYPE_F16)
        p->ports.gradient_scale = program_cell(p, ROLE_SCALAR, "gradient_scale", 1, 1, DTYPE_F32);
    p->ports.loss = sum_cell(p, "loss", 1);
    if (b->z_loss > 0)
        p->ports.squares = sum_cell(p, "squares", 1);
    if (b->spec->n_experts)
        p->ports.router_stats = sum_cell(p, "router_stats",
                                         model_spec_n_expert_layers(b->spec, b->spec->n_layers) *
                                             (1 + (int64_t)b->spec->n_experts));
    if (b->spec->n_experts && b->capacity_factor > 0)
        p->ports.dropped =
            sum_cell(p, "dropped", model_spec_n_expert_layers(b->spec, b->spec->n_layers));
}

void model_declare_evaluation(struct model_builder *b)
{
    struct program *p = b->program;

    /* The vocabulary-parallel head needs it in any case. */
    if (p->mesh.size[axes_tensor()] > 1 && !p->ports.loss_scale)
        p->ports.loss_scale = program_cell(p, ROLE_SCALAR, "loss_scale", 1, 1, DTYPE_F32);
    p->ports.eval_loss = sum_cell(p, "eval_loss", 1);
}
