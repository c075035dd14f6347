/*
 * update_shards.c - the update where ranks have shards of buckets: the norm's sums in the order
 * that whole parameters have, and one optimizer op a bucket
 *
 * A parameter need not begin at the edge of a shard, so what an optimizer knows of a parameter
 * (weight decay, the site of its random numbers) is a table with one entry a norm block. The tables
 * are constants, written as runs of equal steps.
 */
#include <math.h>
#include <stdlib.h>

#include "base/num.h"
#include "base/rng.h"
#include "layout/axes.h"
#include "program/update_impl.h"

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

/* A constant of runs: in large models it has millions of elements, but a few runs a parameter. */
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
    return b->n_elements / mesh_size(&p->mesh, b->axis) / OPS_NORM_BLOCK;
}

static void sum_shard_uses(const struct update *u, const struct bucket *b)
{
    for (int use = 1; use < b->n_uses; use++)
        update_emit(u, (struct op){ .kind = OP_ACCUMULATE,
                                    .in = { [ACCUMULATE_X] = b->shards[use] },
                                    .out = { [ACCUMULATE_Y] = b->shards[0] },
                                    .first = FIRST_NEVER });
}

/* Add runs for the positions of n blocks' sums: from block `block` of a rank's shard on, whose sums
 * begin at `at`, and then of the next ranks' shards. */
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

/* The sums of buckets that one axis shards. */
struct axis_sums {
    enum mesh_axis axis;
    int64_t n_own; /* of this rank: of its shard of the first bucket, then of the second, ... */
    int64_t first; /* where its ranks' sums begin, one rank's after the other's */
    int own;
};

enum { N_KINDS = PARAMETER_EXPERT + 1 };

/* Those of dense parameters, and, if they are sharded over another axis, of experts. */
static int list_axes(const struct program *p, struct axis_sums list[N_KINDS])
{
    int n = 0;

    for (int kind = 0; kind < N_KINDS; kind++) {
        struct axis_sums a = { .axis = axes_shard(&p->mesh, (enum parameter_kind)kind) };

        if (n && list[0].axis == a.axis)
            continue;
        for (int i = 0; i < p->n_buckets; i++)
            a.n_own += p->buckets[i].axis == a.axis ? shard_blocks(p, &p->buckets[i]) : 0;
        if (n)
            a.first = list[0].n_own * mesh_size(&p->mesh, list[0].axis);
        list[n++] = a;
    }
    return n;
}

/* Of all ranks' sums together. */
static int64_t n_all_sums(const struct program *p, const struct axis_sums *list, int n)
{
    return list[n - 1].first + list[n - 1].n_own * mesh_size(&p->mesh, list[n - 1].axis);
}

/* The position of each block's sum, with parameters in name order, among the sums of all
 * data-parallel ranks. */
static int block_order(const struct update *u, const int *order, int n,
                       const struct axis_sums *axes, int n_axes)
{
    struct program *p = u->program;
    int64_t n_blocks = 0;
    int64_t *before = arena_array(&p->arena, int64_t, p->n_buckets); /* sums of earlier buckets */
    struct growing_runs table = { 0 };

    CHECK(n_all_sums(p, axes, n_axes) <= INT32_MAX);
    for (int i = 1; i < p->n_buckets; i++)
        for (int k = 0; k < i; k++)
            before[i] +=
                p->buckets[k].axis == p->buckets[i].axis ? shard_blocks(p, &p->buckets[k]) : 0;
    for (int i = 0; i < n; i++) {
        const struct parameter *q = &p->parameters[order[i]];
        const struct bucket *b = &p->buckets[q->bucket];
        const struct axis_sums *a = b->axis == axes[0].axis ? &axes[0] : &axes[n_axes - 1];
        int64_t in_shard = shard_blocks(p, b), first = q->bucket_offset / OPS_NORM_BLOCK;
        struct block_walk walk = { a->first + first / in_shard * a->n_own + before[q->bucket],
                                   first % in_shard, in_shard, a->n_own };

        if (q->is_copy)
            continue;
        n_blocks += update_n_blocks(q);
        add_blocks(p, &table, walk, update_n_blocks(q));
    }
    return runs_cell(p, "block_order", DTYPE_I32, &table, n_blocks);
}

/* The sums of squares of this rank's shards of the axis' buckets. */
static void sum_squares(const struct update *u, const struct axis_sums *a)
{
    struct program *p = u->program;
    int64_t offset = 0;

    for (int i = 0; i < p->n_buckets; i++) {
        int64_t blocks = shard_blocks(p, &p->buckets[i]);

        if (!blocks || p->buckets[i].axis != a->axis)
            continue;
        int sums = program_view(p, a->own, offset, 1, blocks, blocks);
        update_emit(u, (struct op){ .kind = OP_SUMSQ,
                                    .in = { [SUMSQ_X] = p->buckets[i].shards[0] },
                                    .out = { [SUMSQ_SUMS] = sums } });
        offset += blocks;
    }
}

/* The sums of two axes, gathered side by side. */
static int gather_side_by_side(const struct update *u, struct axis_sums *axes, int n)
{
    struct program *p = u->program;
    int all = program_value(p, 1, n_all_sums(p, axes, n), DTYPE_F64);

    update_mark_local_sums(u, all);
    for (int i = 0; i < n; i++) {
        int size = mesh_size(&p->mesh, axes[i].axis);
        int64_t n_sums = axes[i].n_own * size;

        if (!n_sums)
            continue;
        int part = program_view(p, all, axes[i].first, 1, n_sums, n_sums);
        axes[i].own = size == 1 ? part : program_value(p, 1, axes[i].n_own, DTYPE_F64);
        update_mark_local_sums(u, axes[i].own);
        sum_squares(u, &axes[i]);
        update_gather_sums(u, axes[i].own, axes[i].axis, part);
    }
    return all;
}

static void shard_norm(const struct update *u, const int *order, int n)
{
    struct program *p = u->program;
    struct axis_sums axes[N_KINDS];
    int n_axes = list_axes(p, axes), all;

    if (!n_all_sums(p, axes, n_axes)) {
        update_norm(u, order, n);
        return;
    }
    if (n_axes > 1) {
        all = gather_side_by_side(u, axes, n_axes);
    } else {
        axes[0].own = program_value(p, 1, axes[0].n_own, DTYPE_F64);
        update_mark_local_sums(u, axes[0].own);
        sum_squares(u, &axes[0]);
        all = update_gather_sums(u, axes[0].own, axes[0].axis, 0);
    }
    update_norm_of_blocks(u, order, n, all, block_order(u, order, n, axes, n_axes));
}

static int shard_state(const struct update *u, int number, enum cell_role role, const char *name,
                       enum dtype dtype)
{
    struct program *p = u->program;
    char *full = arena_printf(&p->arena, "%s.%d:shard", name, number);
    const struct bucket *b = &p->buckets[number];
    int64_t n = b->n_elements / program_n_shards(p, number);
    int cell = program_cell(p, role, full, 1, n, dtype);

    program_spread_over(p, cell, b->axis, SPREAD_COLS);
    program_lie_like(p, cell, b->shards[0], b->axis);
    return cell;
}

/* The scales of the blocks of a bucket's state; 0 where it has none. */
static int shard_scale(const struct update *u, int number, int state, const char *name)
{
    struct program *p = u->program;
    const struct bucket *b = &p->buckets[number];

    if (!state || !optimizer_is_scaled(p->values[state].dtype))
        return 0;
    int cell = program_cell(p, ROLE_SCALE, arena_printf(&p->arena, "%s.%d:shard", name, number), 1,
                            p->values[state].cols / OPS_STATE_BLOCK, DTYPE_F32);
    program_spread_over(p, cell, b->axis, SPREAD_COLS);
    program_lie_like(p, cell, b->shards[0], b->axis);
    return cell;
}

/* The order of parameters in a bucket is that of completion, not of names. */
static int by_bucket_offset(const void *a, const void *b)
{
    const struct parameter *x = *(const struct parameter *const *)a;
    const struct parameter *y = *(const struct parameter *const *)b;

    return x->bucket_offset != y->bucket_offset ? (x->bucket_offset < y->bucket_offset ? -1 : 1)
                                                : 0;
}

/* The parameters of a bucket, by their offset in it. */
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

/* This rank's shard of a table with one number for each of a bucket's blocks. */
static int blocks_cell(const struct update *u, int number, const char *name,
                       const struct growing_runs *table)
{
    struct program *p = u->program;
    const struct bucket *b = &p->buckets[number];
    char *whole = arena_printf(&p->arena, "%s.%d", name, number);
    int cell = runs_cell(p, whole, DTYPE_F64, table, b->n_elements / OPS_NORM_BLOCK);

    /* Of the rank's part of them. */
    program_lie_like(p, cell, b->shards[0], b->axis);
    if (program_n_shards(p, number) == 1)
        return cell;
    return program_local_shard(p, arena_printf(&p->arena, "%s:shard", whole), cell, b->axis);
}

/* How all parameters of a bucket are updated, but for their decay, which is that of the first. */
static struct parameter_update update_of_bucket(const struct update *u, int number)
{
    int n;
    const struct parameter **list = members_of(u->program, number, &n);
    struct parameter_update how = parameter_update_of(u->options, list[0]);

    for (int i = 1; i < n; i++) {
        CHECK(parameter_update_of(u->options, list[i]).optimizer == how.optimizer);
        CHECK(list[i]->group == how.group);
    }
    return how;
}

/* The table of the weight decay of a bucket's blocks; 0 if all its parameters have the same.
 * *largest: of them. */
static int decay_table(const struct update *u, int number, double *largest)
{
    int n;
    const struct parameter **list = members_of(u->program, number, &n);
    struct growing_runs table = { 0 };
    double least = INFINITY;
    int64_t at = 0;

    *largest = 0;
    for (int i = 0; i < n; i++) {
        double decay = parameter_update_of(u->options, list[i]).weight_decay;

        *largest = fmax(*largest, decay);
        least = fmin(least, decay);
    }
    if (least >= *largest)
        return 0;
    for (int i = 0; i < n; i++) {
        int64_t begin = list[i]->bucket_offset / OPS_NORM_BLOCK;

        add_run(u->program, &table, 0, 0, begin - at);
        add_run(u->program, &table, parameter_update_of(u->options, list[i]).weight_decay, 0,
                update_n_blocks(list[i]));
        at = begin + update_n_blocks(list[i]);
    }
    return blocks_cell(u, number, "decay", &table);
}

/* The table of the rng sites of a bucket's blocks, for stochastic rounding; 0 if nothing is rounded
 * so. */
static int rng_site_table(const struct update *u, int number)
{
    int n;
    const struct parameter **list = members_of(u->program, number, &n);
    struct growing_runs table = { 0 };
    int64_t at = 0;

    if (!update_rounds_by_chance(u))
        return 0;
    for (int i = 0; i < n; i++) {
        int64_t begin = list[i]->bucket_offset / OPS_NORM_BLOCK;

        add_run(u->program, &table, 0, 0, begin - at);
        add_run(u->program, &table, (double)update_rng_site(list[i]), 1, update_n_blocks(list[i]));
        at = begin + update_n_blocks(list[i]);
    }
    return blocks_cell(u, number, "rng_site", &table);
}

static void shard_optimizer(const struct update *u, int number)
{
    struct program *p = u->program;
    struct bucket *b = &p->buckets[number];
    enum dtype weight = p->values[b->weight_shard].dtype;
    int has_master = !update_is_master(u, weight);
    struct parameter_update how = update_of_bucket(u, number);
    enum dtype states = optimizer_state_dtype(how.optimizer, u->options->states);
    int decay = decay_table(u, number, &how.weight_decay);
    int rng_site = rng_site_table(u, number), part = update_part_number(u, b->shards[0], b->axis);

    b->master =
        has_master ? shard_state(u, number, ROLE_MASTER, "master", DTYPE_F32) : b->weight_shard;
    if (update_has_low(u, weight))
        b->low = shard_state(u, number, ROLE_MASTER, "master.low", DTYPE_I16);
    b->moment1 = shard_state(u, number, ROLE_MOMENT1, "m", states);
    if (how.optimizer->has_v)
        b->moment2 = shard_state(u, number, ROLE_MOMENT2, "v", states);
    if (u->options->ema > 0)
        b->ema = shard_state(u, number, ROLE_EMA, "ema", DTYPE_F32);
    if (how.optimizer->kind == OP_MUON_UPDATE) {
        update_muon_add(u, &(struct muon_target){ .bucket = number,
                                                  .gradient = b->shards[0],
                                                  .moment = b->moment1,
                                                  .master = b->master,
                                                  .weight = has_master ? b->weight_shard : 0,
                                                  .scalars = update_scalars_of(u, how.group),
                                                  .average = b->ema,
                                                  .decay = decay,
                                                  .weight_decay = how.weight_decay });
        return;
    }
    b->m_scale = shard_scale(u, number, b->moment1, "m.scale");
    b->v_scale = shard_scale(u, number, b->moment2, "v.scale");
    update_emit(u, (struct op){ .kind = how.optimizer->kind,
                                .attributes = update_attributes(u, &how),
                                .in = { [OPTIMIZER_GRADIENT] = b->shards[0],
                                        [OPTIMIZER_SCALARS] = update_scalars_of(u, how.group),
                                        [OPTIMIZER_CLIP_FACTOR] = p->ports.clip_factor,
                                        [OPTIMIZER_SKIP_UPDATE] = p->ports.skip_update,
                                        [OPTIMIZER_MASTER] = b->master,
                                        [OPTIMIZER_M] = b->moment1,
                                        [OPTIMIZER_V] = b->moment2,
                                        [OPTIMIZER_DECAY] = decay,
                                        [OPTIMIZER_RNG_SITE] = rng_site,
                                        [OPTIMIZER_PART] = part,
                                        [OPTIMIZER_LOW] = b->low,
                                        [OPTIMIZER_M_SCALE] = b->m_scale,
                                        [OPTIMIZER_V_SCALE] = b->v_scale },
                                .out = { [OPTIMIZER_WEIGHT] = has_master ? b->weight_shard : 0 } });
    if (b->ema)
        update_average(u, b->master, b->low, b->ema);
}

void update_shards(const struct update *u, const int *order, int n)
{
    struct program *p = u->program;

    for (int i = 0; i < p->n_buckets; i++)
        sum_shard_uses(u, &p->buckets[i]);
    for (int i = 0; i < n; i++)
        if (p->parameters[order[i]].tied_peer)
            update_add_other_use(u, p->parameters[order[i]].tied_peer,
                                 p->buckets[p->parameters[order[i]].bucket].shards[0]);
    shard_norm(u, order, n);
    for (int i = 0; i < p->n_buckets; i++)
        if (p->buckets[i].n_uses)
            shard_optimizer(u, i);
        else
            p->buckets[i].master = p->buckets[i].weight_shard;
}
