/*
 * update.c - the gradient norm and the optimizer, as ops
 *
 * The norm adds the sums of squares of each parameter's blocks, in their order, and then the
 * parameters' sums in the order of names, so that its total does not depend on how the program was
 * built or laid out. Where buckets are sharded, a rank makes the sums of its shards' blocks, all
 * are gathered, and a table says in which order to add them: the same. Parameters' sums are what
 * tensor-parallel ranks and stages tell each other. What all tensor-parallel ranks have counts
 * once.
 */
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "base/rng.h"
#include "layout/axes.h"
#include "program/passes.h"

struct update {
    struct program *program;
    int function;
    const struct update_options *options;
    int *part_numbers; /* [N_AXES]: what own_part_number has made; 0: nothing yet */
};

static void emit(const struct update *u, struct op op)
{
    op.phase = PHASE_U;
    op.layer = -1;
    program_emit(u->program, u->function, &op);
}

/* Names order the sums of the norm on every layout: this order is numerics. */
static int by_name(const void *a, const void *b, void *context)
{
    const struct parameter *parameters = context;

    return strcmp(parameters[*(const int *)a].name, parameters[*(const int *)b].name);
}

/* Indices of the trainable parameters, in name order. */
static int *trainable_by_name(struct program *p, int *n)
{
    int *order = arena_array(&p->arena, int, p->n_parameters + 1);

    *n = 0;
    for (int i = 0; i < p->n_parameters; i++)
        if (p->parameters[i].n_gradients)
            order[(*n)++] = i;
    qsort_r(order, (size_t)*n, sizeof *order, by_name, p->parameters);
    return order;
}

/* Every use of a tied parameter into the first one's accumulator, in use order. */
static void sum_uses(const struct update *u, const struct parameter *parameter)
{
    for (int use = 1; use < parameter->n_gradients; use++)
        emit(u, (struct op){ .kind = OP_ACCUMULATE,
                             .in = { [ACCUMULATE_X] = parameter->gradients[use] },
                             .out = { [ACCUMULATE_Y] = parameter->gradients[0] },
                             .first = FIRST_NEVER });
}

/*
 * The use of a tied parameter that another stage has: both send theirs, and both get the sum, in
 * whichever order they add.
 */
static void add_other_use(const struct update *u, int peer, int own)
{
    struct program *p = u->program;
    struct value v = p->values[own];
    int other = program_value(p, v.rows, v.cols, v.dtype);
    int is_first = peer < 0; /* of the stages: sends back, gets what came round */

    memcpy(p->values[other].spread, v.spread, sizeof v.spread);
    emit(u, (struct op){ .kind = OP_SEND,
                         .attributes = { .axis = axes_stages(), .peer = peer },
                         .in = { [SEND_X] = own },
                         .stream = is_first ? STREAM_B_TO_PREVIOUS : STREAM_F_TO_NEXT });
    emit(u, (struct op){ .kind = OP_RECEIVE,
                         .attributes = { .axis = axes_stages(), .peer = peer },
                         .out = { [RECEIVE_Y] = other },
                         .stream = is_first ? STREAM_F_FROM_PREVIOUS : STREAM_B_FROM_NEXT });
    emit(u, (struct op){ .kind = OP_ACCUMULATE,
                         .in = { [ACCUMULATE_X] = other },
                         .out = { [ACCUMULATE_Y] = own },
                         .first = FIRST_NEVER });
}

/* sums: of all parameters, added up in their order or in that of the table. */
static void emit_norm(const struct update *u, int sums, int order)
{
    struct program *p = u->program;

    p->ports.norm = program_cell(p, ROLE_SCALAR, "gradient_norm", 1, 1, DTYPE_F64);
    p->ports.factor = program_cell(p, ROLE_SCALAR, "clip_factor", 1, 1, DTYPE_F32);
    p->ports.skip = program_cell(p, ROLE_SCALAR, "skip", 1, 1, DTYPE_I32);
    emit(u, (struct op){ .kind = OP_GRADIENT_NORM,
                         .attributes.clip = u->options->clip,
                         .in = { [GRADIENT_NORM_SUMS] = sums,
                                 [GRADIENT_NORM_ORDER] = order,
                                 [GRADIENT_NORM_SCALE] = p->ports.gradient_scale },
                         .out = { [GRADIENT_NORM_NORM] = p->ports.norm,
                                  [GRADIENT_NORM_FACTOR] = p->ports.factor,
                                  [GRADIENT_NORM_SKIP] = p->ports.skip } });
}

/* Of this rank's part. */
static int64_t n_blocks_of(const struct parameter *q)
{
    return ceil_div(q->rows * q->cols, OPS_NORM_BLOCK);
}

static int table_cell(struct program *p, const char *name, const int32_t *table, int64_t n)
{
    int cell = program_cell(p, ROLE_CONSTANT, name, 1, n, DTYPE_I32);

    p->values[cell].content = table;
    return cell;
}

/* All ranks' sums over an axis, rank by rank. own is the rank's. */
static int gather_sums(const struct update *u, int own, enum mesh_axis axis)
{
    struct program *p = u->program;

    if (p->mesh.size[axis] == 1)
        return own;
    int all = program_value(p, 1, p->values[own].cols * p->mesh.size[axis], DTYPE_F64);
    p->values[own].spread[axis] = SPREAD_COLS;
    emit(u, (struct op){ .kind = OP_ALL_GATHER,
                         .attributes.axis = axis,
                         .in = { [ALL_GATHER_SHARD] = own },
                         .out = { [ALL_GATHER_FULL] = all },
                         .stream = stream_of_axis(axis) });
    return all;
}

/* The axes whose ranks may have parts of a parameter. */
static struct axis_list model_axes(const struct program *p)
{
    return axes_of(&p->mesh, SPLITS_MODEL, PARAMETER_EXPERT);
}

/* Sums of squares, of which each rank of these axes has its own. */
static void mark_own_sums(struct program *p, int sums)
{
    struct axis_list model = model_axes(p);

    for (int i = 0; i < model.n; i++)
        p->values[sums].spread[model.axes[i]] = SPREAD_COLS;
}

/* How many parameters' sums each stage gives: as many as the one that has most. */
static int n_sums(const struct update *u, const int *order, int n)
{
    int pp_size = u->program->mesh.size[axes_stages()], most = 0;
    int *of_stage = arena_array(&u->program->arena, int, pp_size);

    for (int i = 0; i < n && pp_size == 1; i++)
        most += !u->program->parameters[order[i]].is_copy;
    for (int i = 0; i < u->options->n_norm_parts && pp_size > 1; i++)
        most = max_int(most, ++of_stage[u->options->norm_parts[i].pp_rank]);
    return most;
}

static int by_part_name(const void *a, const void *b)
{
    return strcmp(((const struct norm_part *)a)->name, ((const struct norm_part *)b)->name);
}

/* Does the number-th rank of the model's axes, of which the first varies fastest, have a part of its
 * own, and not what the first rank has as well? */
static int has_own_part(const struct program *p, const struct axis_list *model,
                        const struct norm_part *part, int number)
{
    for (int i = 0; i < model->n; i++) {
        int size = p->mesh.size[model->axes[i]];

        if (number % size && !(part->split_axes >> model->axes[i] & 1))
            return 0;
        number /= size;
    }
    return 1;
}

/*
 * Where the sums of all parameters, in name order, stand once those of all ranks do, stage by
 * stage, rank by rank, `each` of a rank. Of a parameter that is split over an axis all ranks' count.
 */
static int norm_order(const struct update *u, int each)
{
    struct program *p = u->program;
    struct axis_list model = model_axes(p);
    int n = u->options->n_norm_parts, at = 0;
    int n_ranks = axes_size(&p->mesh, SPLITS_MODEL, PARAMETER_EXPERT);
    struct norm_part *parts = arena_array(&p->arena, struct norm_part, n);
    int *next = arena_array(&p->arena, int, p->mesh.size[axes_stages()]);
    int32_t *table = arena_array(&p->arena, int32_t, n * n_ranks);

    memcpy(parts, u->options->norm_parts, sizeof *parts * (size_t)n);
    qsort(parts, (size_t)n, sizeof *parts, by_part_name);
    for (int i = 0; i < n; i++) {
        int k = next[parts[i].pp_rank]++;

        for (int rank = 0; rank < n_ranks; rank++)
            if (has_own_part(p, &model, &parts[i], rank))
                table[at++] = (parts[i].pp_rank * n_ranks + rank) * each + k;
    }
    return table_cell(p, "norm_order", table, at);
}

/*
 * The norm, from the sums of blocks: those of this rank's parameters in name order, or, where
 * blocks says so, in the order of that table.
 */
static void norm_of_blocks(const struct update *u, const int *order, int n, int sums, int blocks)
{
    struct program *p = u->program;
    int each = n_sums(u, order, n), k = 0;
    int32_t *ends = arena_array(&p->arena, int32_t, each);
    int64_t end = 0;

    for (int i = 0; i < n; i++)
        if (!p->parameters[order[i]].is_copy)
            ends[k++] = (int32_t)(end += n_blocks_of(&p->parameters[order[i]]));
    CHECK(end <= INT32_MAX);
    for (; k < each; k++)
        ends[k] = (int32_t)end;
    int own = program_value(p, 1, each, DTYPE_F64);
    emit(u, (struct op){ .kind = OP_SUM_RUNS,
                         .in = { [SUM_RUNS_X] = sums,
                                 [SUM_RUNS_ENDS] = table_cell(p, "norm_ends", ends, each),
                                 [SUM_RUNS_ORDER] = blocks },
                         .out = { [SUM_RUNS_Y] = own } });
    struct axis_list model = model_axes(p);
    int all = own;
    for (int i = 0; i < model.n; i++)
        all = gather_sums(u, all, model.axes[i]);
    all = gather_sums(u, all, axes_stages());
    emit_norm(u, all, all == own ? 0 : norm_order(u, each));
}

/* Of a stage all of whose parameters are frozen. */
static int no_sums(struct program *p)
{
    static const double zero[1] = { 0 };
    int cell = program_cell(p, ROLE_CONSTANT, "no_sums", 1, 1, DTYPE_F64);

    p->values[cell].content = zero;
    return cell;
}

static void gradient_norm(const struct update *u, const int *order, int n)
{
    struct program *p = u->program;
    int64_t n_blocks = 0, offset = 0;

    for (int i = 0; i < n; i++)
        if (!p->parameters[order[i]].is_copy)
            n_blocks += n_blocks_of(&p->parameters[order[i]]);
    int sums = n_blocks ? program_value(p, 1, n_blocks, DTYPE_F64) : no_sums(p);
    mark_own_sums(p, sums);
    for (int i = 0; i < n; i++) {
        struct parameter *q = &p->parameters[order[i]];
        int64_t blocks = n_blocks_of(q);

        if (q->is_copy)
            continue;
        int own = program_view(p, sums, offset, 1, blocks, blocks);
        emit(u, (struct op){ .kind = OP_SUMSQ,
                             .in = { [SUMSQ_X] = q->gradients[0] },
                             .out = { [SUMSQ_SUMS] = own } });
        offset += blocks;
    }
    norm_of_blocks(u, order, n, sums, 0);
}

/* ---- states ---- */

/* Whether the weight is what the optimizer updates: no copy of more digits is kept beside it. */
static int is_master(const struct update *u, enum dtype weight)
{
    return weight == DTYPE_F32 || u->options->states != DTYPE_F32;
}

static struct op_attributes adamw_attributes(const struct update *u, double weight_decay)
{
    const struct update_options *o = u->options;

    return (struct op_attributes){ .beta1 = o->beta1,
                                   .beta2 = o->beta2,
                                   .eps = o->eps,
                                   .weight_decay = weight_decay,
                                   .seed = o->states == DTYPE_F32 ? 0 : o->seed };
}

/* The one axis of the model over which this gradient is split; N_AXES if there is none. */
static enum mesh_axis split_axis(const struct program *p, int gradient)
{
    struct axis_list model = model_axes(p);
    enum mesh_axis axis = N_AXES;

    for (int i = 0; i < model.n; i++)
        if (p->values[gradient].spread[model.axes[i]] != SPREAD_SAME) {
            CHECK(axis == N_AXES);
            axis = model.axes[i];
        }
    return axis;
}

/*
 * What is rounded stochastically on ranks that each have a part of it: the number of the part. 0
 * where none is read.
 */
static int own_part_number(const struct update *u, int gradient)
{
    struct program *p = u->program;
    enum mesh_axis axis = u->options->states == DTYPE_F32 ? N_AXES : split_axis(p, gradient);

    if (axis == N_AXES)
        return 0;
    if (u->part_numbers[axis])
        return u->part_numbers[axis];
    int n = p->mesh.size[axis];
    int32_t *numbers = arena_array(&p->arena, int32_t, n);
    for (int i = 0; i < n; i++)
        numbers[i] = i;
    u->part_numbers[axis] =
        program_own_part(p, "part_number:own", table_cell(p, "part_number", numbers, n), axis);
    return u->part_numbers[axis];
}

static uint64_t place_of(const struct parameter *q)
{
    CHECK(n_blocks_of(q) <= OPS_PLACE_BLOCKS);
    return ops_place(rng_hash_name(q->name));
}

static int state_cell(const struct update *u, const struct parameter *q, enum cell_role role,
                      const char *suffix)
{
    struct program *p = u->program;
    char *name = arena_printf(&p->arena, "%s.%s", q->name, suffix);
    enum dtype dtype = role == ROLE_MASTER ? DTYPE_F32 : u->options->states;
    int cell = program_cell(p, role, name, q->rows, q->cols, dtype);

    memcpy(p->values[cell].spread, p->values[q->weight].spread, sizeof p->values[cell].spread);
    return cell;
}

static void optimizer(const struct update *u, int index)
{
    struct program *p = u->program;
    struct parameter q = p->parameters[index];
    int has_master = !is_master(u, p->values[q.weight].dtype);
    struct op_attributes attributes =
        adamw_attributes(u, q.n_dims > 1 ? u->options->weight_decay : 0);

    if (u->options->states != DTYPE_F32)
        attributes.place = place_of(&q);
    q.master = has_master ? state_cell(u, &q, ROLE_MASTER, "master") : q.weight;
    q.moment1 = state_cell(u, &q, ROLE_MOMENT1, "m");
    q.moment2 = state_cell(u, &q, ROLE_MOMENT2, "v");
    p->parameters[index] = q;
    int part = own_part_number(u, q.gradients[0]);
    emit(u, (struct op){ .kind = OP_ADAMW,
                         .attributes = attributes,
                         .in = { [ADAMW_GRADIENT] = q.gradients[0],
                                 [ADAMW_SCALARS] = p->ports.scalars,
                                 [ADAMW_FACTOR] = p->ports.factor,
                                 [ADAMW_SKIP] = p->ports.skip,
                                 [ADAMW_MASTER] = q.master,
                                 [ADAMW_M] = q.moment1,
                                 [ADAMW_V] = q.moment2,
                                 [ADAMW_PART] = part },
                         .out = { [ADAMW_WEIGHT] = has_master ? q.weight : 0 } });
}

/* ---- on shards ---- */

struct growing_runs {
    struct content_run *runs;
    int n, capacity;
};

static void add_runs(struct program *p, struct growing_runs *g, const struct content_run *runs)
{
    if (!runs->n || !runs->n_times)
        return;
    g->runs = arena_grow(&p->arena, g->runs, sizeof *g->runs, &g->capacity, g->n + 1);
    g->runs[g->n++] = *runs;
}

static void add_run(struct program *p, struct growing_runs *g, double first, double step, int64_t n)
{
    add_runs(p, g, &(struct content_run){ first, step, 0, n, 1 });
}

/* Millions of elements, in large models, of a few runs a parameter. */
static int runs_cell(struct program *p, const char *name, enum dtype dtype,
                     const struct growing_runs *g, int64_t n)
{
    int cell = program_cell(p, ROLE_CONSTANT, name, 1, n, dtype);
    struct content_runs *runs = arena_new(&p->arena, struct content_runs);

    *runs = (struct content_runs){ g->runs, g->n };
    p->values[cell].runs = runs;
    return cell;
}

/* Blocks of one rank's shard of the bucket's gradients. */
static int64_t shard_blocks(const struct program *p, const struct bucket *b)
{
    if (!b->n_uses)
        return 0;
    return b->n_elements / p->mesh.size[axes_shard()] / OPS_NORM_BLOCK;
}

static void sum_shard_uses(const struct update *u, const struct bucket *b)
{
    for (int use = 1; use < b->n_uses; use++)
        emit(u, (struct op){ .kind = OP_ACCUMULATE,
                             .in = { [ACCUMULATE_X] = b->shards[use] },
                             .out = { [ACCUMULATE_Y] = b->shards[0] },
                             .first = FIRST_NEVER });
}

/* Where blocks' sums stand: from block `block` of a rank's shard on, whose sums begin at `at`, and
 * then of those of the next ranks. */
struct block_walk {
    int64_t at, block;
    int64_t in_shard, n_own; /* blocks of each shard; sums of each rank */
};

static void add_blocks(struct program *p, struct growing_runs *g, struct block_walk w, int64_t n)
{
    int64_t n_first = w.block ? min_i64(n, w.in_shard - w.block) : 0;

    add_run(p, g, (double)(w.at + w.block), 1, n_first);
    if (w.block)
        w.at += w.n_own;
    int64_t n_whole = (n - n_first) / w.in_shard;
    add_runs(p, g, &(struct content_run){ (double)w.at, 1, (double)w.n_own, w.in_shard, n_whole });
    w.at += n_whole * w.n_own;
    add_run(p, g, (double)w.at, 1, (n - n_first) % w.in_shard);
}

/*
 * Where each block's sum stands once all data-parallel ranks' are one after the other, parameters
 * in name order: a rank's n_own sums are those of its shard of bucket 0, then of bucket 1, ...
 */
static int block_order(const struct update *u, const int *order, int n, int64_t n_own)
{
    struct program *p = u->program;
    int64_t n_blocks = 0;
    int64_t *before = arena_array(&p->arena, int64_t, p->n_buckets); /* sums of earlier buckets */
    struct growing_runs table = { 0 };

    CHECK(n_own * p->mesh.size[axes_shard()] <= INT32_MAX);
    for (int i = 1; i < p->n_buckets; i++)
        before[i] = before[i - 1] + shard_blocks(p, &p->buckets[i - 1]);
    for (int i = 0; i < n; i++) {
        const struct parameter *q = &p->parameters[order[i]];
        int64_t in_shard = shard_blocks(p, &p->buckets[q->bucket]);
        int64_t first = q->bucket_offset / OPS_NORM_BLOCK;
        struct block_walk walk = { first / in_shard * n_own + before[q->bucket], first % in_shard,
                                   in_shard, n_own };

        if (q->is_copy)
            continue;
        n_blocks += n_blocks_of(q);
        add_blocks(p, &table, walk, n_blocks_of(q));
    }
    return runs_cell(p, "block_order", DTYPE_I32, &table, n_blocks);
}

static void shard_norm(const struct update *u, const int *order, int n)
{
    struct program *p = u->program;
    int64_t n_own = 0, offset = 0;

    for (int i = 0; i < p->n_buckets; i++)
        n_own += shard_blocks(p, &p->buckets[i]);
    if (!n_own) {
        gradient_norm(u, order, n);
        return;
    }
    int own = program_value(p, 1, n_own, DTYPE_F64);
    mark_own_sums(p, own);
    for (int i = 0; i < p->n_buckets; i++) {
        int64_t blocks = shard_blocks(p, &p->buckets[i]);
        if (!blocks)
            continue;
        int sums = program_view(p, own, offset, 1, blocks, blocks);
        emit(u, (struct op){ .kind = OP_SUMSQ,
                             .in = { [SUMSQ_X] = p->buckets[i].shards[0] },
                             .out = { [SUMSQ_SUMS] = sums } });
        offset += blocks;
    }
    int all = gather_sums(u, own, axes_shard());
    norm_of_blocks(u, order, n, all, block_order(u, order, n, n_own));
}

static int shard_state(const struct update *u, int number, enum cell_role role, const char *name)
{
    struct program *p = u->program;
    char *full = arena_printf(&p->arena, "%s.%d:shard", name, number);
    int64_t n = p->buckets[number].n_elements / p->mesh.size[axes_shard()];
    int cell =
        program_cell(p, role, full, 1, n, role == ROLE_MASTER ? DTYPE_F32 : u->options->states);

    p->values[cell].spread[axes_shard()] = SPREAD_COLS;
    program_lie_like(p, cell, p->buckets[number].shards[0]);
    return cell;
}

/* Parameters of a bucket lie in it in any order. */
static int by_bucket_offset(const void *a, const void *b)
{
    const struct parameter *x = *(const struct parameter *const *)a;
    const struct parameter *y = *(const struct parameter *const *)b;

    return x->bucket_offset != y->bucket_offset ? (x->bucket_offset < y->bucket_offset ? -1 : 1)
                                                : 0;
}

/* The parameters of a bucket, in their order there. */
static const struct parameter **members_of(struct program *p, int number, int *n)
{
    const struct parameter **list =
        arena_array(&p->arena, const struct parameter *, p->n_parameters);

    *n = 0;
    for (int i = 0; i < p->n_parameters; i++)
        if (p->parameters[i].bucket == number)
            list[(*n)++] = &p->parameters[i];
    qsort(list, (size_t)*n, sizeof *list, by_bucket_offset);
    return list;
}

/* The rank's own part of a number for each of a bucket's blocks. */
static int blocks_cell(const struct update *u, int number, const char *name,
                       const struct growing_runs *table)
{
    struct program *p = u->program;
    const struct bucket *b = &p->buckets[number];
    char *whole = arena_printf(&p->arena, "%s.%d", name, number);
    int cell = runs_cell(p, whole, DTYPE_F64, table, b->n_elements / OPS_NORM_BLOCK);

    /* Of the rank's part of them. */
    program_lie_like(p, cell, b->shards[0]);
    return program_own_part(p, arena_printf(&p->arena, "%s:shard", whole), cell, axes_shard());
}

/* The weight decay of a bucket's blocks, or 0 and *uniform where all its parameters' is the same. */
static int decay_table(const struct update *u, int number, double *uniform)
{
    int n, n_decaying = 0;
    const struct parameter **list = members_of(u->program, number, &n);
    struct growing_runs table = { 0 };
    int64_t at = 0;

    for (int i = 0; i < n; i++)
        n_decaying += list[i]->n_dims > 1;
    *uniform = n_decaying ? u->options->weight_decay : 0;
    if (n_decaying == 0 || n_decaying == n)
        return 0;
    for (int i = 0; i < n; i++) {
        int64_t begin = list[i]->bucket_offset / OPS_NORM_BLOCK;

        add_run(u->program, &table, 0, 0, begin - at);
        add_run(u->program, &table, list[i]->n_dims > 1 ? u->options->weight_decay : 0, 0,
                n_blocks_of(list[i]));
        at = begin + n_blocks_of(list[i]);
    }
    return blocks_cell(u, number, "decay", &table);
}

/* Which block of which parameter each of a bucket's is: to round by. 0: nobody asks. */
static int place_table(const struct update *u, int number)
{
    int n;
    const struct parameter **list = members_of(u->program, number, &n);
    struct growing_runs table = { 0 };
    int64_t at = 0;

    if (u->options->states == DTYPE_F32)
        return 0;
    for (int i = 0; i < n; i++) {
        int64_t begin = list[i]->bucket_offset / OPS_NORM_BLOCK;

        add_run(u->program, &table, 0, 0, begin - at);
        add_run(u->program, &table, (double)place_of(list[i]), 1, n_blocks_of(list[i]));
        at = begin + n_blocks_of(list[i]);
    }
    return blocks_cell(u, number, "place", &table);
}

static void shard_optimizer(const struct update *u, int number)
{
    struct program *p = u->program;
    struct bucket *b = &p->buckets[number];
    int has_master = !is_master(u, p->values[b->own_weights].dtype);
    double weight_decay;
    int decay = decay_table(u, number, &weight_decay);
    int place = place_table(u, number), part = own_part_number(u, b->shards[0]);

    b->master = has_master ? shard_state(u, number, ROLE_MASTER, "master") : b->own_weights;
    b->moment1 = shard_state(u, number, ROLE_MOMENT1, "m");
    b->moment2 = shard_state(u, number, ROLE_MOMENT2, "v");
    emit(u, (struct op){ .kind = OP_ADAMW,
                         .attributes = adamw_attributes(u, weight_decay),
                         .in = { [ADAMW_GRADIENT] = b->shards[0],
                                 [ADAMW_SCALARS] = p->ports.scalars,
                                 [ADAMW_FACTOR] = p->ports.factor,
                                 [ADAMW_SKIP] = p->ports.skip,
                                 [ADAMW_MASTER] = b->master,
                                 [ADAMW_M] = b->moment1,
                                 [ADAMW_V] = b->moment2,
                                 [ADAMW_DECAY] = decay,
                                 [ADAMW_RNG_SITE] = place,
                                 [ADAMW_PART] = part },
                         .out = { [ADAMW_WEIGHT] = has_master ? b->own_weights : 0 } });
}

static void update_shards(const struct update *u, const int *order, int n)
{
    struct program *p = u->program;

    for (int i = 0; i < p->n_buckets; i++)
        sum_shard_uses(u, &p->buckets[i]);
    for (int i = 0; i < n; i++)
        if (p->parameters[order[i]].tied_peer)
            add_other_use(u, p->parameters[order[i]].tied_peer,
                          p->buckets[p->parameters[order[i]].bucket].shards[0]);
    shard_norm(u, order, n);
    for (int i = 0; i < p->n_buckets; i++)
        if (p->buckets[i].n_uses)
            shard_optimizer(u, i);
        else
            p->buckets[i].master = p->buckets[i].own_weights;
}

/* ---- on whole parameters ---- */

static void update_parameters(const struct update *u, const int *order, int n)
{
    for (int i = 0; i < n; i++) {
        const struct parameter *q = &u->program->parameters[order[i]];

        sum_uses(u, q);
        if (q->tied_peer)
            add_other_use(u, q->tied_peer, q->gradients[0]);
    }
    gradient_norm(u, order, n);
    for (int i = 0; i < n; i++)
        optimizer(u, order[i]);
}

void build_update(struct program *program, int update, const struct update_options *options)
{
    int part_numbers[N_AXES] = { 0 };
    struct update u = { program, update, options, part_numbers };
    int n;
    int *order = trainable_by_name(program, &n);

    program->ports.scalars =
        program_cell(program, ROLE_SCALAR, "scalars", 1, OPS_N_SCALARS, DTYPE_F32);
    /* gather_parameters or shard_weights has been there. */
    if (program->n_buckets && program->buckets[0].own_weights)
        update_shards(&u, order, n);
    else
        update_parameters(&u, order, n);
}
