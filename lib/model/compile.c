/*
 * compile.c - the order of the passes
 */
#include "model/compile.h"

#include <string.h>

#include "base/num.h"
#include "layout/axes.h"
#include "layout/stage.h"
#include "model/model.h"

static void one_action(struct program *p, enum entry_kind kind, int function)
{
    struct entry *entry = &p->entries[kind];

    entry->actions = arena_array(&p->arena, struct action, 1);
    entry->actions[entry->n_actions++] =
        (struct action){ .kind = ACTION_RUN, .function = (int16_t)function };
}

/* ---- the stages of a rank ---- */

struct compiling {
    const struct compile_train *options;
    struct program *program;
    struct model_builder builder;
    struct pipeline_spec spec;
    struct pipeline pipeline;
    int n_chunks, n_stages;
    const int *first_layer; /* [n_stages + 1] */
    struct model_chunk *chunks;
    int n_sizes, *sizes, *size_of;     /* of micro-batches: sequences, increasing; by micro-batch */
    struct chunk_functions *of_sizes;  /* [n_sizes][n_chunks] */
    struct chunk_functions *functions; /* of the size at hand */
    int *boundary, *value;             /* by chunk: what its forward reads and gives */
    int *gradient, *gradient_in;       /* by chunk: of what it gives, and of what it reads */
    int first_trained; /* stage: those before it have no trainable parameter, and no backward */
    int is_held;       /* weights are gathered for a while by hold_weights (zero 3) */
};

static struct model_chunk chunk_of(const struct compiling *c, int rank, int chunk)
{
    int stage = pipeline_stage_of(&c->spec, rank, chunk);

    return (struct model_chunk){ stage, c->n_stages, c->first_layer[stage],
                                 c->first_layer[stage + 1] };
}

/* Is the stage of this chunk's `step` next (or before: -1) on this rank too? Its chunk, or -1. */
static int neighbour(const struct compiling *c, int chunk, int step)
{
    int stage = c->chunks[chunk].stage + step;

    if (stage < 0 || stage >= c->n_stages ||
        pipeline_rank_of(&c->spec, stage) != c->options->pipeline.rank)
        return -1;
    return pipeline_chunk_of(&c->spec, stage);
}

static int longest_of(const struct compile_train *o)
{
    return max_int(o->longest, o->seq_len);
}

/* Parameters count as FLOPs do: each is multiplied once a token; the head's twice as many times as
 * others have for their forward alone, as its loss is forward and backward in one. */
static int cut_stages(struct compiling *c, struct err *err)
{
    const struct model_spec *m = c->options->model;
    struct arena *arena = &c->program->arena;
    int64_t *layers = arena_array(arena, int64_t, m->n_layers);
    int *by_cost = arena_array(arena, int, c->n_stages), *first;
    const int *counts = by_cost;
    int64_t attention = (int64_t)m->n_heads * m->head_dim;
    struct stage_costs costs = { .n_layers = m->n_layers,
                                 .layers = layers,
                                 .head = parameters_count_head(m) };

    for (int i = 0; i < m->n_layers; i++)
        layers[i] =
            parameters_count_matmul(m, i) +
            (int64_t)((double)attention * 2 * model_spec_keys(m, i, longest_of(c->options)));
    if (c->options->pipeline.stage_layers) {
        counts = c->options->pipeline.stage_layers;
        if (stage_check(counts, c->n_stages, c->n_stages, m->n_layers, err))
            return -1;
    } else if (stage_split(by_cost, c->n_stages, &costs, arena, err)) {
        return -1;
    }
    first = arena_array(arena, int, c->n_stages + 1);
    for (int i = 0; i < c->n_stages; i++)
        first[i + 1] = first[i] + counts[i];
    c->first_layer = first;
    return 0;
}

/* The smallest size of micro-batches above this one. */
static int next_size(const struct compile_train *o, int above)
{
    int next = o->micro_batch;

    for (int m = 0; m < o->n_micro_batches && o->micro_batches; m++)
        if (o->micro_batches[m] > above && o->micro_batches[m] < next)
            next = o->micro_batches[m];
    return next;
}

static void list_sizes(struct compiling *c)
{
    const struct compile_train *o = c->options;
    int size = 0;

    c->sizes = arena_array(&c->program->arena, int, o->n_micro_batches + 1);
    c->size_of = arena_array(&c->program->arena, int, o->n_micro_batches);
    while (size < o->micro_batch) {
        size = next_size(o, size);
        for (int m = 0; m < o->n_micro_batches; m++)
            if (!o->micro_batches || o->micro_batches[m] == size)
                c->size_of[m] = c->n_sizes;
        c->sizes[c->n_sizes++] = size;
    }
}

static struct pipeline_spec pipeline_of(const struct compile_train *o)
{
    /* Alone, no order of micro-batches needs less memory than one after the other. */
    int alone = o->mesh.size[axes_stages()] == 1;

    return (struct pipeline_spec){ .kind = alone ? PIPELINE_1F1B : o->pipeline.kind,
                                   .n_ranks = o->mesh.size[axes_stages()],
                                   .n_chunks =
                                       o->pipeline.n_chunks && !alone ? o->pipeline.n_chunks : 1,
                                   .n_micro_batches = o->n_micro_batches,
                                   .sizes = o->micro_batches };
}

int compile_pipeline(struct pipeline *pipeline, const struct compile_train *options,
                     struct arena *arena, struct err *err)
{
    struct pipeline_spec spec = pipeline_of(options);

    if (pipeline_build(pipeline, &spec, arena, err))
        return -1;
    return pipeline_time(pipeline, arena, err);
}

static int plan_stages(struct compiling *c, struct err *err)
{
    const struct compile_train *o = c->options;
    struct arena *arena = &c->program->arena;

    c->spec = pipeline_of(o);
    c->n_chunks = c->spec.n_chunks;
    if (o->pipeline.built)
        c->pipeline = *o->pipeline.built;
    else if (pipeline_build(&c->pipeline, &c->spec, arena, err))
        return -1;
    c->n_stages = pipeline_n_stages(&c->spec);
    if (cut_stages(c, err))
        return -1;
    c->chunks = arena_array(arena, struct model_chunk, c->n_chunks);
    list_sizes(c);
    c->of_sizes = arena_array(arena, struct chunk_functions, c->n_sizes * c->n_chunks);
    c->functions = c->of_sizes;
    c->boundary = arena_array(arena, int, c->n_chunks);
    c->value = arena_array(arena, int, c->n_chunks);
    c->gradient = arena_array(arena, int, c->n_chunks);
    c->gradient_in = arena_array(arena, int, c->n_chunks);
    for (int i = 0; i < c->n_chunks; i++)
        c->chunks[i] = chunk_of(c, o->pipeline.rank, i);
    return 0;
}

/* "forward 0"; "forward 0, 2 sequences" where there are other sizes too. */
static int function_named(const struct compiling *c, const char *name, int chunk)
{
    struct arena *arena = &c->program->arena;
    char *text = arena_printf(arena, "%s %d", name, chunk);
    int n = c->builder.n_sequences;

    if (c->n_sizes > 1)
        text = arena_printf(arena, "%s, %d sequence%s", text, n, n == 1 ? "" : "s");
    return program_function(c->program, text, chunk);
}

/* ---- boundaries ---- */

/* The stream to or from the rank of another stage, and in which direction that lies. */
static enum stream stream_of(const struct compiling *c, int from, int to, int forward, int sends,
                             int *peer)
{
    static const enum stream streams[2][2][2] = {
        { { STREAM_B_FROM_PREVIOUS, STREAM_B_FROM_NEXT },
          { STREAM_B_TO_PREVIOUS, STREAM_B_TO_NEXT } },
        { { STREAM_F_FROM_PREVIOUS, STREAM_F_FROM_NEXT },
          { STREAM_F_TO_PREVIOUS, STREAM_F_TO_NEXT } },
    };
    int own = pipeline_rank_of(&c->spec, from), other = pipeline_rank_of(&c->spec, to);
    /* A loop always goes on to the next rank, a V comes back. */
    int is_next = c->spec.kind == PIPELINE_ZB_V ? other > own : to > from;

    *peer = is_next ? 1 : -1;
    return streams[forward][sends][is_next];
}

/* A function of one transfer between this chunk's stage and the one `step` further. */
static int transfer(struct compiling *c, int chunk, int step, int forward, int sends, int value)
{
    static const char *const words[2][2] = { { "receive backward", "send backward" },
                                             { "receive forward", "send forward" } };
    int stage = c->chunks[chunk].stage;
    struct op op = { .kind = sends ? OP_SEND : OP_RECEIVE,
                     .attributes.axis = axes_stages(),
                     .phase = forward ? PHASE_F : PHASE_B,
                     .layer = -1 };
    int function = function_named(c, words[forward][sends], chunk);

    op.stream = stream_of(c, stage, stage + step, forward, sends, &op.attributes.peer);
    *(sends ? &op.in[SEND_X] : &op.out[RECEIVE_Y]) = value;
    program_emit(c->program, function, &op);
    return function;
}

/* The residual stream, or its gradient, between two stages. */
static int boundary_value(const struct compiling *c)
{
    struct program *p = c->program;
    int64_t rows = (int64_t)c->builder.n_sequences * c->builder.seq_len;
    int tp = c->builder.sequence_parallel ? p->mesh.size[axes_tensor()] : 1;
    int id = program_value(p, rows / tp, c->options->model->hidden_size, c->options->residual);

    program_split_rows(p, id);
    if (tp > 1)
        p->values[id].spread[axes_tensor()] = SPREAD_ROWS;
    return id;
}

/* The forwards of all chunks, with what they receive and send. */
static void emit_forwards(struct compiling *c, enum model_end end, const char *name)
{
    for (int i = 0; i < c->n_chunks; i++) {
        struct chunk_functions *f = &c->functions[i];
        int before = neighbour(c, i, -1), is_last = c->chunks[i].stage + 1 == c->n_stages;

        *f = (struct chunk_functions){ -1, -1, -1, -1, -1, -1, -1, -1 };
        c->boundary[i] = 0;
        if (c->chunks[i].stage && before < 0) {
            c->boundary[i] = boundary_value(c);
            f->receive_forward = transfer(c, i, -1, 1, 0, c->boundary[i]);
        } else if (c->chunks[i].stage) {
            c->boundary[i] = c->value[before];
        }
        f->forward = function_named(c, name, i);
        struct model_part part =
            model_forward(&c->builder, f->forward, &c->chunks[i], end, c->boundary[i]);
        c->value[i] = part.value;
        c->gradient[i] = part.gradient;
        if (!is_last && neighbour(c, i, 1) < 0)
            f->send_forward = transfer(c, i, 1, 1, 1, part.value);
    }
}

static int splits(enum pipeline_kind kind)
{
    return kind == PIPELINE_ZB_H1 || kind == PIPELINE_ZB_H2 || kind == PIPELINE_ZB_V;
}

/* The backwards, from the last chunk on. */
static void emit_backwards(struct compiling *c)
{
    struct program *p = c->program;

    for (int i = c->n_chunks - 1; i >= 0; i--) {
        struct chunk_functions *f = &c->functions[i];
        int behind = neighbour(c, i, 1);

        int has_before = c->chunks[i].stage > c->first_trained;

        if (c->chunks[i].stage < c->first_trained) {
            c->gradient[i] = 0;
        } else if (c->chunks[i].stage + 1 < c->n_stages && behind < 0) {
            c->gradient[i] = boundary_value(c);
            f->receive_backward = transfer(c, i, 1, 0, 0, c->gradient[i]);
        } else if (behind >= 0) {
            c->gradient[i] = c->gradient_in[behind];
        }
        struct gradient_seed seed = { c->value[i], c->gradient[i] };
        f->backward = function_named(c, "backward", i);
        c->gradient_in[i] =
            differentiate(p, f->forward, f->backward, &seed, 1, has_before ? c->boundary[i] : 0);
        if (!c->options->no_fuse) {
            fuse(p, f->forward);
            fuse_casts(p, f->backward);
        }
        recompute(p, f->forward, f->backward, c->options->recompute, &c->options->recompute_ops);
        f->weight = f->backward;
        if (splits(c->spec.kind)) {
            f->weight = function_named(c, "weight", i);
            split_backward(p, f->backward, f->weight);
        }
        overlap_collectives(p, f->backward);
        if (f->weight != f->backward)
            overlap_collectives(p, f->weight);
        if (has_before && neighbour(c, i, -1) < 0)
            f->send_backward = transfer(c, i, -1, 0, 1, c->gradient_in[i]);
    }
}

/* Forwards and backwards of each size of micro-batches. */
static void emit_sizes(struct compiling *c)
{
    const struct model_builder whole = c->builder;
    const struct ports ports = c->program->ports;

    for (int i = 0; i < c->n_sizes; i++) {
        c->functions = c->of_sizes + i * c->n_chunks;
        if (i)
            program_repeat_uses(c->program);
        model_resize(&c->builder, c->sizes[i]);
        emit_forwards(c, MODEL_TRAIN, "forward");
        emit_backwards(c);
        c->builder = whole;
        c->program->ports = ports;
    }
}

/* ---- what all stages have to know of each other ---- */

/*
 * Parameters of a stage are those of some layers, of which LAYER_BEFORE is the first stage's and
 * n_layers the last one's.
 */
static int first_layer_of(const struct compiling *c, int stage)
{
    return stage == 0 ? LAYER_BEFORE : c->first_layer[stage];
}

static int end_layer_of(const struct compiling *c, int stage)
{
    return c->first_layer[stage + 1] + (stage + 1 == c->n_stages);
}

/* The layer's parameters that are trained, its adapters' among them. Returns how many. */
static int list_trained(const struct compiling *c, int layer,
                        struct parameter_spec list[LAYER_MAX_PARAMETERS + LAYER_MAX_ADAPTERS])
{
    const struct model_spec *s = c->options->model;
    const struct tuning *tuning = c->options->tuning;
    int n = parameters_of_layer(s, layer, list), n_trained = 0;

    for (int m = 0; m < LAYER_MAX_ADAPTERS && layer >= 0 && layer < s->n_layers; m++)
        n += tuning_adapter(tuning, s, layer, (enum lora_module)(m / N_LORA_MATRICES),
                            (enum lora_matrix)(m % N_LORA_MATRICES), &list[n]);
    for (int i = 0; i < n; i++)
        if (tuning_trains(tuning, &list[i]))
            list[n_trained++] = list[i];
    return n_trained;
}

struct norm_part_list {
    struct norm_part *parts;
    int n, capacity;
};

static void list_layer_parts(struct compiling *c, int layer, int rank, struct norm_part_list *parts)
{
    struct parameter_spec list[LAYER_MAX_PARAMETERS + LAYER_MAX_ADAPTERS];
    struct arena *arena = &c->program->arena;
    int n = list_trained(c, layer, list);

    parts->parts =
        arena_grow(arena, parts->parts, sizeof *parts->parts, &parts->capacity, parts->n + n);
    for (int i = 0; i < n; i++)
        parts->parts[parts->n++] =
            (struct norm_part){ arena_strdup(arena, list[i].name),
                                model_split_axes(&c->options->mesh, &list[i]), rank };
}

/* What each rank of the pipeline has. */
static void list_norm_parts(struct compiling *c, struct update_options *update)
{
    struct norm_part_list parts = { 0 };

    for (int rank = 0; rank < c->spec.n_ranks; rank++)
        for (int i = 0; i < c->n_chunks; i++) {
            int stage = pipeline_stage_of(&c->spec, rank, i), end = end_layer_of(c, stage);

            for (int layer = first_layer_of(c, stage); layer < end; layer++)
                list_layer_parts(c, layer, rank, &parts);
        }
    update->norm_parts = parts.parts;
    update->n_norm_parts = parts.n;
}

static void find_first_trained(struct compiling *c)
{
    struct parameter_spec list[LAYER_MAX_PARAMETERS + LAYER_MAX_ADAPTERS];
    int layer = LAYER_BEFORE, stage = 0;

    while (layer < c->options->model->n_layers && !list_trained(c, layer, list))
        layer++;
    while (stage + 1 < c->n_stages && end_layer_of(c, stage) <= layer)
        stage++;
    c->first_trained = stage;
}

/* A head tied to an embedding on another rank: the first and the last of the pipeline. */
static void tie_stages(struct compiling *c)
{
    struct program *p = c->program;
    int first = pipeline_rank_of(&c->spec, 0), last = pipeline_rank_of(&c->spec, c->n_stages - 1);

    if (!c->options->model->tied_embeddings || first == last)
        return;
    int table = model_parameter(&c->builder, parameters_head(c->options->model));
    /* The last rank is the one before the first. */
    if (table >= 0)
        p->parameters[table].tied_peer = c->options->pipeline.rank == first ? -1 : 1;
}

/* ---- entries ---- */

/* Scalars summed over the ranks of an axis. */
static int sum_over(struct program *p, int function, enum mesh_axis axis, int value,
                    const char *name)
{
    int sum = program_cell(p, ROLE_SCALAR, name, 1, p->values[value].cols, DTYPE_F64);

    memcpy(p->values[sum].spread, p->values[value].spread, sizeof p->values[sum].spread);
    program_emit(p, function,
                 &(struct op){ .kind = OP_ALL_REDUCE_SCALAR,
                               .attributes.axis = axis,
                               .in = { [ALL_REDUCE_SCALAR_X] = value },
                               .out = { [ALL_REDUCE_SCALAR_Y] = sum },
                               .phase = PHASE_U,
                               .stream = stream_of_axis(axis),
                               .layer = -1 });
    return sum;
}

static const char *name_of_sum(struct program *p, enum mesh_axis axis, const char *name)
{
    if (axis == axes_shard())
        return name;
    return arena_printf(&p->arena, "%s_all_%s", name, axis_places(axis));
}

/* Over the axes of tokens, one after the other, and stages: each rank's summand is counted once. */
static int sum_over_all(struct program *p, int function, int value, const char *name)
{
    struct axis_list tokens = axes_of(&p->mesh, SPLITS_TOKENS, PARAMETER_DENSE);
    struct axis_list stages = axes_of(&p->mesh, SPLITS_LAYERS, PARAMETER_DENSE);

    for (int i = 0; i < tokens.n; i++)
        value = sum_over(p, function, tokens.axes[i], value, name_of_sum(p, tokens.axes[i], name));
    for (int i = 0; i < stages.n; i++)
        value = sum_over(p, function, stages.axes[i], value, name_of_sum(p, stages.axes[i], name));
    return value;
}

/* The evaluation's own forward, on the same inputs (the largest size), and its sum over ranks. */
static void build_evaluate(struct compiling *c)
{
    struct program *p = c->program;
    int dropout = c->builder.dropout;

    c->builder.dropout = 0;
    model_declare_evaluation(&c->builder);
    emit_forwards(c, MODEL_EVALUATE, "evaluate");
    c->builder.dropout = dropout;
    for (int i = 0; i < c->n_chunks; i++)
        fuse(p, c->functions[i].forward);
    schedule_forward(p, ENTRY_EVALUATE, c->functions, c->n_chunks);
    p->ports.eval_total = p->ports.eval_loss;
    if (axes_size(&p->mesh, SPLITS_TOKENS, PARAMETER_DENSE) == 1 &&
        axes_size(&p->mesh, SPLITS_LAYERS, PARAMETER_DENSE) == 1)
        return;
    int end = program_function(p, "evaluate end", 0);
    p->ports.eval_total = sum_over_all(p, end, p->ports.eval_loss, "eval_total");
    one_action(p, ENTRY_EVALUATE_END, end);
}

/* Weights in buckets, from zero 1 on. Returns what gathers them all for a step, or -1. */
static int shard_parameters(struct compiling *c)
{
    const struct shard_options *o = &c->options->gradients;
    struct program *p = c->program;

    if (!o->zero || p->mesh.size[axes_shard()] == 1)
        return -1;
    c->is_held = o->zero == 3 && !hold_is_step(o->hold, c->n_chunks);
    if (c->is_held) {
        if (c->options->tuning)
            shard_frozen(p, c->functions, c->n_chunks, o);
        shard_weights(p);
        return -1;
    }
    int gather = program_function(p, "gather", 0);
    gather_parameters(p, c->functions, c->n_chunks, gather);
    one_action(p, ENTRY_GATHER, gather);
    p->entries[ENTRY_GATHER].actions[0].micro_batch = -1;
    return gather;
}

static int finish(struct program *p, program_scratch_fn scratch, void *context, struct err *err)
{
    work_in_place(p);
    if (scratch)
        program_size_scratch(p, scratch, context);
    place(p);
    return verify(p, err);
}

/* Sequences that all data-parallel ranks see in a step. */
static int64_t global_batch(const struct compile_train *o)
{
    int64_t n = 0;

    for (int m = 0; m < o->n_micro_batches; m++)
        n += o->micro_batches ? o->micro_batches[m] : o->micro_batch;
    return n * mesh_data_size(&o->mesh);
}

int compile_train(struct program *program, const struct compile_train *options, struct err *err)
{
    struct compiling c = { .options = options,
                           .program = program,
                           .builder = { .program = program,
                                        .spec = options->model,
                                        .dtype = options->dtype,
                                        .residual = options->residual,
                                        .n_sequences = options->micro_batch,
                                        .seq_len = options->seq_len,
                                        .dropout = 1,
                                        .sequence_parallel = options->sequence_parallel &&
                                                             options->mesh.size[axes_tensor()] > 1,
                                        .max_positions = longest_of(options),
                                        .seed = options->seed,
                                        .tuning = options->tuning,
                                        .is_packed = options->is_packed,
                                        .head_logits = options->head_logits,
                                        .global_batch = global_batch(options) } };
    struct update_options update_options = options->update;

    program_init(program, &options->mesh);
    program->gradient_dtype = options->gradient_dtype;
    if (plan_stages(&c, err) ||
        (options->tuning && tuning_check(options->tuning, options->model, err)))
        return -1;
    model_declare(&c.builder, c.chunks, c.n_chunks);
    tie_stages(&c);
    if (options->tuning && c.n_stages > 1)
        find_first_trained(&c);
    model_declare_loss(&c.builder);
    emit_sizes(&c);
    int update = program_function(program, "update", 0);
    struct shard_options sharding = options->gradients;
    sharding.n_sizes = c.n_sizes;
    sharding.last_size = c.size_of[options->n_micro_batches - 1];
    shard_gradients(program, c.of_sizes, c.n_chunks, update, &sharding);
    int gather = shard_parameters(&c);
    if (axes_size(&options->mesh, SPLITS_LAYERS, PARAMETER_EXPERT) > 1 ||
        axes_size(&options->mesh, SPLITS_MODEL, PARAMETER_EXPERT) > 1)
        list_norm_parts(&c, &update_options);
    program->ports.loss_total = sum_over_all(program, update, program->ports.loss, "loss_total");
    if (program->ports.router_stats)
        program->ports.router_stats_total =
            sum_over_all(program, update, program->ports.router_stats, "router_stats_total");
    build_update(program, update, &update_options);
    schedule_step(program, &c.pipeline, options->pipeline.rank, c.of_sizes, c.size_of, gather,
                  update);
    build_evaluate(&c);
    if (c.is_held)
        hold_weights(program, options->gradients.hold);
    return finish(program, options->scratch, options->scratch_context, err);
}

/* ---- what is not trained ---- */

/* A rank's stage, as training would cut it; one micro-batch goes through. */
struct serving {
    const struct model_spec *model;
    const struct tuning *tuning;
    struct mesh mesh;
    int pp_rank;
    enum dtype dtype;
    int n_sequences, seq_len, longest, cache_len;
    struct compile_train stages;
};

static int begin_serving(struct compiling *c, struct serving *s, struct program *program,
                         struct err *err)
{
    struct mesh mesh = s->mesh.size[axes_tensor()] ? s->mesh : mesh_data_parallel(1);

    CHECK(mesh_data_size(&mesh) == 1);
    s->stages = (struct compile_train){ .model = s->model,
                                        .mesh = mesh,
                                        .micro_batch = s->n_sequences,
                                        .seq_len = s->seq_len,
                                        .longest = s->longest,
                                        .n_micro_batches = 1,
                                        .pipeline = { .kind = PIPELINE_1F1B, .rank = s->pp_rank } };
    *c = (struct compiling){ .options = &s->stages,
                             .program = program,
                             .builder = { .program = program,
                                          .spec = s->model,
                                          .dtype = s->dtype,
                                          .n_sequences = s->n_sequences,
                                          .seq_len = s->seq_len,
                                          .cache_len = s->cache_len,
                                          .max_positions = s->longest,
                                          .tuning = s->tuning } };
    program_init(program, &mesh);
    if (plan_stages(c, err))
        return -1;
    model_declare(&c->builder, c->chunks, c->n_chunks);
    return 0;
}

/* An entry that goes through all stages. */
static void serve(struct compiling *c, enum entry_kind entry, enum model_end end, const char *name)
{
    emit_forwards(c, end, name);
    for (int i = 0; i < c->n_chunks; i++)
        fuse(c->program, c->functions[i].forward);
    schedule_forward(c->program, entry, c->functions, c->n_chunks);
}

static int has_head(const struct compiling *c)
{
    return c->chunks[c->n_chunks - 1].stage + 1 == c->n_stages;
}

int compile_evaluate(struct program *program, const struct compile_evaluate *options,
                     struct err *err)
{
    struct serving serving = { .model = options->model,
                               .tuning = options->tuning,
                               .mesh = options->mesh,
                               .pp_rank = options->pp_rank,
                               .dtype = options->dtype,
                               .n_sequences = options->micro_batch,
                               .seq_len = options->seq_len,
                               .longest = options->seq_len };
    struct compiling c;

    if (begin_serving(&c, &serving, program, err))
        return -1;
    build_evaluate(&c);
    return finish(program, options->scratch, options->scratch_context, err);
}

int compile_generate(struct program *program, const struct compile_generate *options,
                     struct err *err)
{
    struct serving serving = { .model = options->model,
                               .tuning = options->tuning,
                               .mesh = options->mesh,
                               .pp_rank = options->pp_rank,
                               .dtype = options->dtype,
                               .n_sequences = options->n_sequences,
                               .seq_len = options->prefill_len,
                               .longest = options->cache_len,
                               .cache_len = options->cache_len };
    struct compiling c;

    if (begin_serving(&c, &serving, program, err))
        return -1;
    serve(&c, ENTRY_PREFILL, MODEL_LOGITS, "prefill");

    /* One row a sequence: the first rows of the same inputs. */
    struct ports whole = program->ports;
    program->ports.tokens = program_view(program, whole.tokens, 0, options->n_sequences, 1, 1);
    program->ports.positions =
        program_view(program, whole.positions, 0, options->n_sequences, 1, 1);
    c.builder.seq_len = 1;
    serve(&c, ENTRY_DECODE, MODEL_LOGITS, "decode");
    program->ports.tokens = whole.tokens;
    program->ports.positions = whole.positions;
    return finish(program, options->scratch, options->scratch_context, err);
}

int compile_score(struct program *program, const struct compile_score *options, struct err *err)
{
    struct serving serving = { .model = options->model,
                               .tuning = options->tuning,
                               .mesh = options->mesh,
                               .pp_rank = options->pp_rank,
                               .dtype = options->dtype,
                               .n_sequences = 1,
                               .seq_len = options->n_rows,
                               .longest = options->max_positions,
                               .cache_len = options->cache_rows };
    struct compiling c;

    if (begin_serving(&c, &serving, program, err))
        return -1;
    program->ports.segment =
        program_cell(program, ROLE_SCALAR, "segment", options->n_rows, 1, DTYPE_I32);
    program->ports.segments =
        program_cell(program, ROLE_SCALAR, "segments", options->n_segments, 3, DTYPE_I32);
    serve(&c, ENTRY_FEED, MODEL_STREAM, "feed");
    if (has_head(&c)) {
        int score = program_function(program, "score", 0);

        model_score(&c.builder, score, options->n_asked);
        one_action(program, ENTRY_SCORE, score);
    }
    return finish(program, options->scratch, options->scratch_context, err);
}
