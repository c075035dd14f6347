/*
 * stages.c - the stages of a pipeline as one rank sees them: its chunks, the layers of each, sizes
 * of micro-batches, and what stages need to know of each other
 */
#include <string.h>

#include "base/num.h"
#include "layout/axes.h"
#include "layout/stage.h"
#include "model/compile_impl.h"

static struct model_chunk chunk_of(const struct compiling *c, int rank, int chunk)
{
    int stage = pipeline_stage_of(&c->spec, rank, chunk);

    return (struct model_chunk){ stage, c->n_stages, c->first_layer[stage],
                                 c->first_layer[stage + 1] };
}

/* The chunk of the stage `step` (1, -1) after this chunk's if it is on this rank too, or -1. */
int stages_neighbour(const struct compiling *c, int chunk, int step)
{
    int stage = c->chunks[chunk].stage + step;

    if (stage < 0 || stage >= c->n_stages ||
        pipeline_rank_of(&c->spec, stage) != c->options->pipeline.rank)
        return -1;
    return pipeline_chunk_of(&c->spec, stage);
}

int stages_longest(const struct compile_train *o)
{
    return max_int(o->longest, o->seq_len);
}

/* Costs are multiplications a token: one for each parameter, and those of attention. The head's op
 * has its backward in the forward, but in total it multiplies each parameter as often as others
 * do. */
int model_cut_stages(const struct model_spec *m, int seq_len, int n_stages, int *counts,
                     struct arena *scratch, struct err *err)
{
    int64_t *layers = arena_array(scratch, int64_t, m->n_layers);
    int64_t attention = (int64_t)m->n_heads * m->head_dim;
    struct stage_costs costs = { .n_layers = m->n_layers,
                                 .layers = layers,
                                 .head = parameters_count_head(m) };

    for (int i = 0; i < m->n_layers; i++)
        layers[i] = parameters_count_matmul(m, i) +
                    (int64_t)((double)attention * 2 * model_spec_keys(m, i, seq_len));
    return stage_split(counts, n_stages, &costs, scratch, err);
}

/* No stage has more layers to recompute than it has. */
static int check_recomputed(const struct compiling *c, struct err *err)
{
    const struct compile_train *o = c->options;

    for (int i = 0; i < c->n_stages; i++) {
        int n_layers = c->first_layer[i + 1] - c->first_layer[i];
        int n = (o->full_layers ? o->full_layers[i] : 0) +
                (o->selective_layers ? o->selective_layers[i] : 0);

        if (n > n_layers)
            return err_set(err, ERR_CONFIG,
                           "recompute_layers has %d layer%s of stage %d, which has %d (hint: %d or "
                           "fewer, full and selective together)",
                           n, str_s(n), i, n_layers, n_layers);
    }
    return 0;
}

static int cut_stages(struct compiling *c, struct err *err)
{
    const struct model_spec *m = c->options->model;
    struct arena *arena = &c->program->arena;
    int *by_cost = arena_array(arena, int, c->n_stages), *first;
    const int *counts = by_cost;

    if (c->options->pipeline.stage_layers) {
        counts = c->options->pipeline.stage_layers;
        if (stage_check(counts, c->n_stages, c->n_stages, m->n_layers, err))
            return -1;
    } else if (model_cut_stages(m, stages_longest(c->options), c->n_stages, by_cost, arena, err)) {
        return -1;
    }
    first = arena_array(arena, int, c->n_stages + 1);
    for (int i = 0; i < c->n_stages; i++)
        first[i + 1] = first[i] + counts[i];
    c->first_layer = first;
    return check_recomputed(c, err);
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
    /* With one stage, 1F1B (one micro-batch after the other) needs the least memory. */
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

int stages_plan(struct compiling *c, struct err *err)
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
    c->n_variants = 1;
    c->of_sizes =
        arena_array(arena, struct chunk_functions, COMPILE_MAX_VARIANTS * c->n_sizes * c->n_chunks);
    c->functions = c->of_sizes;
    c->boundary = arena_array(arena, int, c->n_chunks);
    c->value = arena_array(arena, int, c->n_chunks);
    c->gradient = arena_array(arena, int, c->n_chunks);
    c->gradient_in = arena_array(arena, int, c->n_chunks);
    for (int i = 0; i < c->n_chunks; i++)
        c->chunks[i] = chunk_of(c, o->pipeline.rank, i);
    return 0;
}

/* ---- what stages need to know of each other ---- */

/*
 * The parameters of a stage are those of layers first_layer_of .. end_layer_of - 1; LAYER_BEFORE is
 * on the first stage, n_layers, which is after the layers, on the last.
 */
static int first_layer_of(const struct compiling *c, int stage)
{
    return stage == 0 ? LAYER_BEFORE : c->first_layer[stage];
}

static int end_layer_of(const struct compiling *c, int stage)
{
    return c->first_layer[stage + 1] + (stage + 1 == c->n_stages);
}

/* List the layer's trainable parameters, adapters included. Returns how many. */
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
                                model_split_axes(&c->builder, &list[i]), rank };
}

/* List the parameters of all ranks of the pipeline. */
void stages_norm_parts(struct compiling *c, struct update_options *update)
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

void stages_find_trained(struct compiling *c)
{
    struct parameter_spec list[LAYER_MAX_PARAMETERS + LAYER_MAX_ADAPTERS];
    int layer = LAYER_BEFORE, stage = 0;

    while (layer < c->options->model->n_layers && !list_trained(c, layer, list))
        layer++;
    while (stage + 1 < c->n_stages && end_layer_of(c, stage) <= layer)
        stage++;
    c->first_trained = stage;
}

/* Set tied_peer of an embedding and of the head that is tied to it, on the first and last rank of
 * the pipeline. */
void stages_tie(struct compiling *c)
{
    struct program *p = c->program;
    int first = pipeline_rank_of(&c->spec, 0), last = pipeline_rank_of(&c->spec, c->n_stages - 1);

    if (!c->options->model->tied_embeddings || first == last)
        return;
    int table = model_parameter(&c->builder, parameters_head(c->options->model));
    /* The axis is a ring: the last rank is the one before the first. */
    if (table >= 0)
        p->parameters[table].tied_peer = c->options->pipeline.rank == first ? -1 : 1;
}
