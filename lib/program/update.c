/*
 * update.c - the gradient norm and the optimizer, as ops
 *
 * The norm adds the sums of squares of each parameter's blocks, in their order, and then the
 * parameters' sums in the order of names, so that its bits do not depend on how the program was
 * built or sharded. Where buckets are sharded, a rank computes the sums of its shards' blocks, all
 * ranks gather them, and a table gives the order in which to add them, which is the same one. Ranks
 * that divide the model (tp) and stages (pp) exchange the sums of parameters. A parameter that is
 * the same on all tensor-parallel ranks counts once.
 *
 *     U  %134 = sumsq bucket.0, ...                     sums of squares of norm blocks
 *     U  gradient_norm, clip_factor, skip_update = gradient_norm %134
 *     U  weight = adamw weight.grad, scalars, clip_factor, skip_update, ~master, ~m, ~v
 *
 *     U  ema master, scalars, skip_update, ~weight.ema      the average of weights, if there is one
 *
 * A split master is the weight and a cell of low words: adamw ..., ~weight, ~m, ~v, ~master.low.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "base/rng.h"
#include "layout/axes.h"
#include "program/update_impl.h"

void update_emit(const struct update *u, struct op op)
{
    op.phase = PHASE_U;
    op.layer = -1;
    program_emit(u->program, u->function, &op);
}

/* The norm adds the parameters' sums in the order of names on every layout: the order determines
 * bits. */
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

/* Add the accumulators of all uses of a tied parameter to the first one's, in use order. */
static void sum_uses(const struct update *u, const struct parameter *parameter)
{
    for (int use = 1; use < parameter->n_gradients; use++)
        update_emit(u, (struct op){ .kind = OP_ACCUMULATE,
                                    .in = { [ACCUMULATE_X] = parameter->gradients[use] },
                                    .out = { [ACCUMULATE_Y] = parameter->gradients[0] },
                                    .first = FIRST_NEVER });
}

/*
 * Add the accumulator of the use of a tied parameter that another stage has: both send their own,
 * and both add (the order of two summands changes no bit).
 */
void update_add_other_use(const struct update *u, int peer, int own)
{
    struct program *p = u->program;
    struct value v = p->values[own];
    int other = program_value(p, v.rows, v.cols, v.dtype);
    int is_first = peer < 0; /* the first of the two stages */

    memcpy(p->values[other].spread, v.spread, sizeof v.spread);
    update_emit(u, (struct op){ .kind = OP_SEND,
                                .attributes = { .axis = axes_stages(), .peer = peer },
                                .in = { [SEND_X] = own },
                                .stream = is_first ? STREAM_B_TO_PREVIOUS : STREAM_F_TO_NEXT });
    update_emit(u, (struct op){ .kind = OP_RECEIVE,
                                .attributes = { .axis = axes_stages(), .peer = peer },
                                .out = { [RECEIVE_Y] = other },
                                .stream = is_first ? STREAM_F_FROM_PREVIOUS : STREAM_B_FROM_NEXT });
    update_emit(u, (struct op){ .kind = OP_ACCUMULATE,
                                .in = { [ACCUMULATE_X] = other },
                                .out = { [ACCUMULATE_Y] = own },
                                .first = FIRST_NEVER });
}

/* sums: of all parameters, added in their order or in that of the table. */
static void emit_norm(const struct update *u, int sums, int order)
{
    struct program *p = u->program;

    p->ports.norm = program_cell(p, ROLE_SCALAR, "gradient_norm", 1, 1, DTYPE_F64);
    p->ports.clip_factor = program_cell(p, ROLE_SCALAR, "clip_factor", 1, 1, DTYPE_F32);
    p->ports.skip_update = program_cell(p, ROLE_SCALAR, "skip_update", 1, 1, DTYPE_I32);
    update_emit(u, (struct op){ .kind = OP_GRADIENT_NORM,
                                .attributes.clip = u->options->clip,
                                .in = { [GRADIENT_NORM_SUMS] = sums,
                                        [GRADIENT_NORM_ORDER] = order,
                                        [GRADIENT_NORM_SCALE] = p->ports.gradient_scale },
                                .out = { [GRADIENT_NORM_NORM] = p->ports.norm,
                                         [GRADIENT_NORM_CLIP_FACTOR] = p->ports.clip_factor,
                                         [GRADIENT_NORM_SKIP_UPDATE] = p->ports.skip_update } });
}

/* Norm blocks of this rank's part of the parameter. */
int64_t update_n_blocks(const struct parameter *q)
{
    return ceil_div(q->rows * q->cols, OPS_NORM_BLOCK);
}

static int table_cell(struct program *p, const char *name, const int32_t *table, int64_t n)
{
    int cell = program_cell(p, ROLE_CONSTANT, name, 1, n, DTYPE_I32);

    p->values[cell].content = table;
    return cell;
}

int update_gather_sums(const struct update *u, int own, enum mesh_axis axis, int all)
{
    struct program *p = u->program;
    int size = mesh_size(&p->mesh, axis);

    if (size == 1)
        return own;
    if (!all)
        all = program_value(p, 1, p->values[own].cols * size, DTYPE_F64);
    program_spread_over(p, own, axis, SPREAD_COLS);
    update_emit(u, (struct op){ .kind = OP_ALL_GATHER,
                                .attributes.axis = axis,
                                .in = { [ALL_GATHER_SHARD] = own },
                                .out = { [ALL_GATHER_FULL] = all },
                                .stream = stream_of_axis(axis) });
    return all;
}

static bool has_axis(const struct axis_list *list, enum mesh_axis axis)
{
    for (int i = 0; i < list->n; i++)
        if (list->axes[i] == axis)
            return true;
    return false;
}

/* The axes whose ranks may have parts of a parameter: those of the model, and others over which
 * some parameter of any stage is split. */
static struct axis_list model_axes(const struct update *u)
{
    struct axis_list list = axes_of(&u->program->mesh, SPLITS_MODEL, PARAMETER_EXPERT);
    unsigned split = 0;

    for (int i = 0; i < u->options->n_norm_parts; i++)
        split |= u->options->norm_parts[i].split_axes;
    for (int axis = 0; axis < N_AXES; axis++)
        if ((split >> axis & 1) && !has_axis(&list, (enum mesh_axis)axis))
            list.axes[list.n++] = (enum mesh_axis)axis;
    return list;
}

/* Mark sums of squares that differ between the ranks of these axes. */
void update_mark_local_sums(const struct update *u, int sums)
{
    struct axis_list model = model_axes(u);

    for (int i = 0; i < model.n; i++)
        u->program->values[sums].spread[model.axes[i]] = SPREAD_COLS;
}

/* The number of sums that each stage contributes: that of the stage with most parameters. */
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

/* Whether the number-th rank of the model's axes (the first varies fastest) has a part of the
 * parameter that the ranks before it do not have. */
static bool has_split_part(const struct program *p, const struct axis_list *model,
                           const struct norm_part *part, int number)
{
    for (int i = 0; i < model->n; i++) {
        int size = p->mesh.size[model->axes[i]];

        if (number % size && !(part->split_axes >> model->axes[i] & 1))
            return false;
        number /= size;
    }
    return true;
}

/*
 * The table of positions, in name order, of all parameters' sums among the gathered ones, which are
 * stage by stage, rank by rank, `each` of a rank. A parameter that is split over an axis has a sum
 * on each of its ranks.
 */
static int norm_order(const struct update *u, int each)
{
    struct program *p = u->program;
    struct axis_list model = model_axes(u);
    int n = u->options->n_norm_parts, at = 0, n_ranks = 1;
    struct norm_part *parts = arena_array(&p->arena, struct norm_part, n);
    int *next = arena_array(&p->arena, int, p->mesh.size[axes_stages()]);

    for (int i = 0; i < model.n; i++)
        n_ranks *= p->mesh.size[model.axes[i]];
    int32_t *table = arena_array(&p->arena, int32_t, n * n_ranks);
    memcpy(parts, u->options->norm_parts, sizeof *parts * (size_t)n);
    qsort(parts, (size_t)n, sizeof *parts, by_part_name);
    for (int i = 0; i < n; i++) {
        int k = next[parts[i].pp_rank]++;

        for (int rank = 0; rank < n_ranks; rank++)
            if (has_split_part(p, &model, &parts[i], rank))
                table[at++] = (parts[i].pp_rank * n_ranks + rank) * each + k;
    }
    return table_cell(p, "norm_order", table, at);
}

/*
 * The norm, from the sums of blocks: in the order of this rank's parameters by name, or, if there
 * is a table `blocks`, in its order.
 */
void update_norm_of_blocks(const struct update *u, const int *order, int n, int sums, int blocks)
{
    struct program *p = u->program;
    int each = n_sums(u, order, n), k = 0;
    int32_t *ends = arena_array(&p->arena, int32_t, each);
    int64_t end = 0;

    for (int i = 0; i < n; i++)
        if (!p->parameters[order[i]].is_copy)
            ends[k++] = (int32_t)(end += update_n_blocks(&p->parameters[order[i]]));
    CHECK(end <= INT32_MAX);
    for (; k < each; k++)
        ends[k] = (int32_t)end;
    int own = program_value(p, 1, each, DTYPE_F64);
    update_emit(u, (struct op){ .kind = OP_SUM_RUNS,
                                .in = { [SUM_RUNS_X] = sums,
                                        [SUM_RUNS_ENDS] = table_cell(p, "norm_ends", ends, each),
                                        [SUM_RUNS_ORDER] = blocks },
                                .out = { [SUM_RUNS_Y] = own } });
    struct axis_list model = model_axes(u);
    int all = own;
    for (int i = 0; i < model.n; i++)
        all = update_gather_sums(u, all, model.axes[i], 0);
    all = update_gather_sums(u, all, axes_stages(), 0);
    emit_norm(u, all, all == own ? 0 : norm_order(u, each));
}

/* A stage may have frozen parameters only: then its sum is zero. */
static int no_sums(struct program *p)
{
    static const double zero[1] = { 0 };
    int cell = program_cell(p, ROLE_CONSTANT, "no_sums", 1, 1, DTYPE_F64);

    p->values[cell].content = zero;
    return cell;
}

void update_norm(const struct update *u, const int *order, int n)
{
    struct program *p = u->program;
    int64_t n_blocks = 0, offset = 0;

    for (int i = 0; i < n; i++)
        if (!p->parameters[order[i]].is_copy)
            n_blocks += update_n_blocks(&p->parameters[order[i]]);
    int sums = n_blocks ? program_value(p, 1, n_blocks, DTYPE_F64) : no_sums(p);
    update_mark_local_sums(u, sums);
    for (int i = 0; i < n; i++) {
        struct parameter *q = &p->parameters[order[i]];
        int64_t blocks = update_n_blocks(q);

        if (q->is_copy)
            continue;
        int own = program_view(p, sums, offset, 1, blocks, blocks);
        update_emit(u, (struct op){ .kind = OP_SUMSQ,
                                    .in = { [SUMSQ_X] = q->gradients[0] },
                                    .out = { [SUMSQ_SUMS] = own } });
        offset += blocks;
    }
    update_norm_of_blocks(u, order, n, sums, 0);
}

/* ---- states ---- */

bool update_rounds_by_chance(const struct update *u)
{
    return u->options->states == DTYPE_BF16;
}

/* Whether the optimizer updates the weight itself, without an fp32 master. */
int update_is_master(const struct update *u, enum dtype weight)
{
    return weight == DTYPE_F32 || update_rounds_by_chance(u) || update_has_low(u, weight);
}

int update_has_low(const struct update *u, enum dtype weight)
{
    return weight == DTYPE_BF16 && u->options->split;
}

struct op_attributes update_attributes(const struct update *u, const struct parameter_update *how)
{
    const struct update_options *o = u->options;

    return (struct op_attributes){ .beta1 = how->optimizer->momentum > 0 ? o->momentum : o->beta1,
                                   .beta2 = o->beta2,
                                   .eps = o->eps,
                                   .weight_decay = how->weight_decay,
                                   .nesterov = how->optimizer->momentum > 0 && o->nesterov,
                                   .half_away = o->half_away,
                                   .seed = update_rounds_by_chance(u) ? o->seed : 0 };
}

/* The axes of the model over which this gradient is split, as a set of 1 << axis, but for that over
 * which a bucket is sharded. */
static unsigned split_axes(const struct update *u, int gradient, enum mesh_axis shard_axis)
{
    struct axis_list model = model_axes(u);
    unsigned split = 0;

    for (int i = 0; i < model.n; i++)
        if (u->program->values[gradient].spread[model.axes[i]] != SPREAD_SAME &&
            !axis_covers(shard_axis, model.axes[i]))
            split |= 1U << model.axes[i];
    return split;
}

/* The numbers of all parts, and of these the rank's: its shard over one axis after the other. */
static int part_number(struct program *p, unsigned split)
{
    int n = 1, cell;

    for (int axis = 0; axis < N_AXES; axis++)
        n *= split >> axis & 1 ? p->mesh.size[axis] : 1;
    int32_t *numbers = arena_array(&p->arena, int32_t, n);
    for (int i = 0; i < n; i++)
        numbers[i] = i;
    cell = table_cell(p, "part_number", numbers, n);
    for (int axis = 0; axis < N_AXES; axis++)
        if (split >> axis & 1)
            cell = program_local_shard(p, split >> axis == 1 ? "part_number:local" : NULL, cell,
                                       (enum mesh_axis)axis);
    return cell;
}

/*
 * The value that has the number of this rank's part, for stochastic rounding of a parameter whose
 * ranks have different parts, not counting shards over the axis; 0 if it is not needed.
 */
int update_part_number(const struct update *u, int gradient, enum mesh_axis shard_axis)
{
    unsigned split = update_rounds_by_chance(u) ? split_axes(u, gradient, shard_axis) : 0;

    if (split && !u->part_numbers[split])
        u->part_numbers[split] = part_number(u->program, split);
    return split ? u->part_numbers[split] : 0;
}

uint64_t update_rng_site(const struct parameter *q)
{
    CHECK(update_n_blocks(q) <= OPS_RNG_SITE_BLOCKS);
    return ops_rng_site(rng_hash_name(q->name));
}

void update_average(const struct update *u, int master, int low, int average)
{
    const struct ports *ports = &u->program->ports;

    update_emit(u, (struct op){ .kind = OP_EMA,
                                .attributes.rate = 1 - u->options->ema,
                                .in = { [EMA_X] = master,
                                        [EMA_SCALARS] = ports->scalars,
                                        [EMA_SKIP_UPDATE] = ports->skip_update,
                                        [EMA_AVERAGE] = average,
                                        [EMA_LOW] = low } });
}

static int state_cell(const struct update *u, const struct parameter *q, enum cell_role role,
                      const char *suffix, enum dtype dtype)
{
    struct program *p = u->program;
    char *name = arena_printf(&p->arena, "%s.%s", q->name, suffix);
    int cell = program_cell(p, role, name, q->rows, q->cols, dtype);

    memcpy(p->values[cell].spread, p->values[q->weight].spread, sizeof p->values[cell].spread);
    return cell;
}

/* The scales of a state's blocks; 0 where it has none. */
static int scale_cell(const struct update *u, const struct parameter *q, int state,
                      const char *suffix)
{
    struct program *p = u->program;
    int64_t n = ceil_div(q->rows * q->cols, OPS_STATE_BLOCK);

    if (!state || !optimizer_is_scaled(p->values[state].dtype))
        return 0;
    int cell = program_cell(p, ROLE_SCALE, arena_printf(&p->arena, "%s.%s", q->name, suffix), 1, n,
                            DTYPE_F32);
    memcpy(p->values[cell].spread, p->values[q->weight].spread, sizeof p->values[cell].spread);
    return cell;
}

static void optimizer(const struct update *u, int index)
{
    struct program *p = u->program;
    struct parameter q = p->parameters[index];
    enum dtype weight = p->values[q.weight].dtype;
    int has_master = !update_is_master(u, weight);
    struct parameter_update how = parameter_update_of(u->options, &q);
    enum dtype states = optimizer_state_dtype(how.optimizer, u->options->states);
    struct op_attributes attributes = update_attributes(u, &how);

    if (update_rounds_by_chance(u))
        attributes.rng_site = update_rng_site(&q);
    q.master = has_master ? state_cell(u, &q, ROLE_MASTER, "master", DTYPE_F32) : q.weight;
    q.low = update_has_low(u, weight) ? state_cell(u, &q, ROLE_MASTER, "master.low", DTYPE_I16) : 0;
    q.moment1 = state_cell(u, &q, ROLE_MOMENT1, "m", states);
    if (how.optimizer->has_v)
        q.moment2 = state_cell(u, &q, ROLE_MOMENT2, "v", states);
    q.m_scale = scale_cell(u, &q, q.moment1, "m.scale");
    q.v_scale = scale_cell(u, &q, q.moment2, "v.scale");
    q.ema = u->options->ema > 0 ? state_cell(u, &q, ROLE_EMA, "ema", DTYPE_F32) : 0;
    p->parameters[index] = q;
    if (how.optimizer->kind == OP_MUON_UPDATE) {
        update_muon_add(u, &(struct muon_target){ .parameter = index,
                                                  .bucket = -1,
                                                  .gradient = q.gradients[0],
                                                  .moment = q.moment1,
                                                  .master = q.master,
                                                  .weight = has_master ? q.weight : 0,
                                                  .scalars = update_scalars_of(u, how.group),
                                                  .average = q.ema,
                                                  .weight_decay = how.weight_decay });
        return;
    }
    int part = update_part_number(u, q.gradients[0], program_shard_axis(p, index));
    update_emit(u, (struct op){ .kind = how.optimizer->kind,
                                .attributes = attributes,
                                .in = { [OPTIMIZER_GRADIENT] = q.gradients[0],
                                        [OPTIMIZER_SCALARS] = update_scalars_of(u, how.group),
                                        [OPTIMIZER_CLIP_FACTOR] = p->ports.clip_factor,
                                        [OPTIMIZER_SKIP_UPDATE] = p->ports.skip_update,
                                        [OPTIMIZER_MASTER] = q.master,
                                        [OPTIMIZER_M] = q.moment1,
                                        [OPTIMIZER_V] = q.moment2,
                                        [OPTIMIZER_PART] = part,
                                        [OPTIMIZER_LOW] = q.low,
                                        [OPTIMIZER_M_SCALE] = q.m_scale,
                                        [OPTIMIZER_V_SCALE] = q.v_scale },
                                .out = { [OPTIMIZER_WEIGHT] = has_master ? q.weight : 0 } });
    if (q.ema)
        update_average(u, q.master, q.low, q.ema);
}

/* ---- on whole parameters ---- */

static void update_parameters(const struct update *u, const int *order, int n)
{
    for (int i = 0; i < n; i++) {
        const struct parameter *q = &u->program->parameters[order[i]];

        sum_uses(u, q);
        if (q->tied_peer)
            update_add_other_use(u, q->tied_peer, q->gradients[0]);
    }
    update_norm(u, order, n);
    for (int i = 0; i < n; i++)
        optimizer(u, order[i]);
}

void build_update(struct program *program, int update, const struct update_options *options)
{
    int part_numbers[1 << N_AXES] = { 0 };
    struct muon_targets muon = { 0 };
    struct update u = { program, update, options, part_numbers, &muon };
    int n;
    int *order = trainable_by_name(program, &n);

    program->half_away = options->half_away;
    update_declare_scalars(&u);
    /* gather_parameters or zero3_shard_weights has run. */
    if (program->n_buckets && program->buckets[0].weight_shard)
        update_shards(&u, order, n);
    else
        update_parameters(&u, order, n);
    update_muon(&u);
}

/* The op that writes ports.skip_update. */
static int end_of_norm(const struct program *p, int update)
{
    const struct function *f = &p->functions[update];
    int end = 0;

    while (end < f->n_ops && f->ops[end].out[GRADIENT_NORM_SKIP_UPDATE] != p->ports.skip_update)
        end++;
    CHECK(end < f->n_ops);
    return end;
}

void update_move_behind_norm(struct program *p, int update, int first, int n, bool is_before)
{
    struct op *ops = p->functions[update].ops;
    int to = end_of_norm(p, update) + !is_before - n;
    struct op *moved = arena_array(&p->arena, struct op, n);

    CHECK(first <= to);
    memcpy(moved, ops + first, sizeof *moved * (size_t)n);
    memmove(ops + first, ops + first + n, sizeof *moved * (size_t)(to - first));
    memcpy(ops + to, moved, sizeof *moved * (size_t)n);
}

void split_optimizer(struct program *p, int update)
{
    int optimizer = program_function(p, "optimizer", 0), end = end_of_norm(p, update);
    struct function *from = &p->functions[update], *to = &p->functions[optimizer];
    struct entry *entry = &p->entries[ENTRY_STEP];
    struct action *actions = arena_array(&p->arena, struct action, entry->n_actions + 2);

    to->n_ops = to->capacity = from->n_ops - end - 1;
    to->ops = arena_array(&p->arena, struct op, to->n_ops + 1);
    memcpy(to->ops, from->ops + end + 1, (size_t)to->n_ops * sizeof *to->ops);
    from->n_ops = end + 1;
    memcpy(actions, entry->actions, (size_t)entry->n_actions * sizeof *actions);
    entry->actions = actions;
    actions[entry->n_actions++] =
        (struct action){ .kind = ACTION_GATE, .first = 1, .micro_batch = -1 };
    actions[entry->n_actions++] = (struct action){
        .kind = ACTION_RUN, .first = 0, .function = (int16_t)optimizer, .micro_batch = -1
    };
}
