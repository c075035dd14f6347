/*
 * update_muon.c - Muon: the update of whole matrices
 *
 *     U  %9 = muon_momentum bucket.1:shard, clip_factor, skip_update, ~m.1:shard
 *     U  %10 = all_gather %9                             over dp: all matrices of the bucket
 *     U  %11[0:n] = scale %10[...]                       matrices of one shape side by side
 *     U  newton_schulz ~%11:own                          each rank its own ones
 *     U  %11 = all_gather %11:own                        over dp
 *     U  %10[...] = scale %11[0:n]
 *     U  weights.1:shard = muon_update %10:shard, scalars, skip_update, ~master.1:shard
 *
 * A step of Newton and Schulz needs all of a matrix. So directions are gathered over the axis that
 * shards optimizers, and of matrices whose rows or columns ranks have parts of (tp), the parts. The
 * ranks of the sharding axis, which would all compute the same, deal out the matrices of one shape
 * among them: each has as many. That is done with groups of parameters, which have up to a share of
 * all the rank's matrices in the device's memory at a time. Dealing changes no bit, as what becomes
 * of a matrix depends on the matrix alone.
 */
#include <stdbool.h>
#include <string.h>

#include "base/num.h"
#include "program/update_impl.h"

/* Of the bytes of all directions, those of a group; or so many, if that is more. */
#define GROUP_SHARE 4
#define GROUP_BYTES ((int64_t)64 << 20)

/* Matrices of one parameter that lie one after the other, and have one shape. */
struct slot {
    int direction;      /* what has them */
    int64_t offset;     /* there */
    int64_t rows, cols; /* of the rank's part of one */
    int n;
    const struct parameter *parameter;
    enum mesh_axis axis; /* over which they may be dealt out */
    bool is_dealt;
};

struct muon {
    const struct update *u;
    struct slot *slots;
    int n_slots, capacity;
};

static int n_parts_of(const struct program *p, const struct parameter *q)
{
    int n = 1;

    for (int axis = 0; axis < N_AXES; axis++)
        n *= q->matrices.cut_axes >> axis & 1 ? p->mesh.size[axis] : 1;
    return n;
}

/* Elements of the rank's part of a slot. */
static int64_t elements_of(const struct slot *s)
{
    return s->n * s->rows * s->cols;
}

/* ---- views ---- */

/* n elements of `whole` from `offset` on, as one row. */
static int flat_view(struct program *p, int whole, int64_t offset, int64_t n)
{
    int view = program_view(p, whole, offset, 1, n, n);

    for (int axis = 0; axis < N_AXES; axis++)
        p->values[view].spread[axis] = spread_flat(p->values[view].spread[axis]);
    return view;
}

/* The same as rows, of whole matrices: ranks that do not have the same ones have others. */
static int rows_view(struct program *p, int whole, int64_t offset, int64_t rows, int64_t cols)
{
    int view = program_view(p, whole, offset, rows, cols, cols);

    for (int axis = 0; axis < N_AXES; axis++)
        if (p->values[view].spread[axis] != SPREAD_SAME)
            p->values[view].spread[axis] = SPREAD_ROWS;
    return view;
}

/* ---- ops ---- */

static void copy(const struct update *u, int from, int to)
{
    update_emit(u, (struct op){ .kind = OP_SCALE,
                                .attributes.scale = 1,
                                .in = { [SCALE_X] = from },
                                .out = { [SCALE_Y] = to } });
}

static void gather(const struct update *u, int part, int whole, enum mesh_axis axis,
                   enum stream stream)
{
    update_emit(u, (struct op){ .kind = OP_ALL_GATHER,
                                .attributes.axis = axis,
                                .in = { [ALL_GATHER_SHARD] = part },
                                .out = { [ALL_GATHER_FULL] = whole },
                                .stream = stream });
}

static void steps(const struct update *u, const struct slot *s, int x)
{
    const struct muon_options *o = &u->options->muon;
    int parts = n_parts_of(u->program, s->parameter);
    bool by_columns = s->parameter->matrices.by_columns;
    double rows = (double)(s->rows * (by_columns ? 1 : parts));
    double cols = (double)(s->cols * (by_columns ? parts : 1));

    update_emit(u, (struct op){ .kind = OP_NEWTON_SCHULZ,
                                .attributes = { .matrix_rows = s->rows,
                                                .matrices = s->n,
                                                .matrix_parts = parts,
                                                .by_columns = by_columns,
                                                .coefficients = o->coefficients,
                                                .steps = o->steps,
                                                .scale = muon_scale_of(o->scale, rows, cols),
                                                .eps = NEWTON_SCHULZ_EPS },
                                .in = { [NEWTON_SCHULZ_X] = x } });
}

/* ---- parts of matrices ---- */

/* The axes that cut the parameter's matrices, the outermost first. */
static struct axis_list cuts_of(const struct parameter *q)
{
    struct axis_list list = { 0 };

    for (int i = 0; i < q->n_splits; i++)
        if (q->matrices.cut_axes >> q->splits[i].axis & 1)
            list.axes[list.n++] = q->splits[i].axis;
    return list;
}

/* All parts of the slot's matrices, to `to`, of one row: the innermost axis' first. */
static void bring(const struct update *u, const struct slot *s, int to)
{
    struct program *p = u->program;
    struct axis_list cuts = cuts_of(s->parameter);
    int part = flat_view(p, s->direction, s->offset, elements_of(s));

    if (!cuts.n)
        copy(u, part, to);
    for (int i = cuts.n - 1; i >= 0; i--) {
        int64_t n = p->values[part].cols * p->mesh.size[cuts.axes[i]];
        int whole = i ? program_value(p, 1, n, DTYPE_BF16) : to;

        gather(u, part, whole, cuts.axes[i], stream_of_axis(cuts.axes[i]));
        part = whole;
    }
}

/* The rank's part of them back, from a value of one row, or a part of it. */
static void take_back(const struct update *u, const struct slot *s, int from)
{
    struct program *p = u->program;
    struct axis_list cuts = cuts_of(s->parameter);

    /* A local shard is one of all of a value. */
    if (cuts.n && p->values[from].base) {
        int whole = program_value(p, 1, p->values[from].cols, DTYPE_BF16);

        copy(u, from, whole);
        from = whole;
    }
    for (int i = 0; i < cuts.n; i++)
        from = program_local_shard(p, NULL, from, cuts.axes[i]);
    copy(u, from, flat_view(p, s->direction, s->offset, elements_of(s)));
}

/* ---- which are dealt out ---- */

static bool is_alike(const struct slot *a, const struct slot *b)
{
    const struct parameter_matrices *x = &a->parameter->matrices, *y = &b->parameter->matrices;

    if (a->rows != b->rows || a->cols != b->cols || a->n != b->n || a->axis != b->axis ||
        x->cut_axes != y->cut_axes || (x->cut_axes && x->by_columns != y->by_columns) ||
        a->parameter->n_splits != b->parameter->n_splits)
        return false;
    for (int i = 0; i < a->parameter->n_splits; i++)
        if (a->parameter->splits[i].axis != b->parameter->splits[i].axis)
            return false;
    return true;
}

/* Spreads of rows of matrices of the slot's kind. */
static void lie_as(struct program *p, int id, const struct slot *s)
{
    for (int i = 0; i < s->parameter->n_splits; i++) {
        enum mesh_axis axis = s->parameter->splits[i].axis;

        if (!(s->parameter->matrices.cut_axes >> axis & 1))
            p->values[id].spread[axis] = SPREAD_ROWS;
    }
}

/* One slot, by all ranks that have it. */
static void compute(const struct update *u, const struct slot *s)
{
    struct program *p = u->program;
    int parts = n_parts_of(p, s->parameter);
    int64_t rows = parts * s->n * s->rows;

    if (parts == 1) {
        steps(u, s, rows_view(p, s->direction, s->offset, rows, s->cols));
        return;
    }
    int whole = program_value(p, 1, rows * s->cols, DTYPE_BF16);
    bring(u, s, whole);
    steps(u, s, rows_view(p, whole, 0, rows, s->cols));
    take_back(u, s, whole);
}

/*
 * n like slots over the axis: each rank computes `each` of them. The k-th is the (k / size)-th of
 * rank k % size; where there are none left ranks have the first one once more.
 */
static void deal(const struct update *u, struct slot *const *list, int n)
{
    struct program *p = u->program;
    const struct slot *s = list[0];
    int size = mesh_size(&p->mesh, s->axis), each = (int)ceil_div(n, size);
    int64_t rows = n_parts_of(p, s->parameter) * s->n * s->rows, elements = rows * s->cols;
    int all = program_value(p, each * size * rows, s->cols, DTYPE_BF16);

    lie_as(p, all, s);
    for (int k = 0; k < each * size; k++) {
        int at = k % size * each + k / size;
        int to = flat_view(p, all, at * elements, elements);

        if (k < n)
            bring(u, list[k], to);
        else
            copy(u, flat_view(p, all, 0, elements), to);
    }
    int own = program_local_shard(p, NULL, all, s->axis);
    steps(u, s, own);
    gather(u, own, rows_view(p, all, 0, each * size * rows, s->cols), s->axis, STREAM_DP_GATHER);
    for (int k = 0; k < n; k++) {
        int at = k % size * each + k / size;

        take_back(u, list[k], flat_view(p, all, at * elements, elements));
    }
}

/* This rank's row of a constant with a number for each rank of the axis. */
static int number_of_rank(const struct update *u, const struct slot *s, const int32_t *numbers)
{
    struct program *p = u->program;
    char *name = arena_printf(&p->arena, "muon_part.%d", p->n_values);
    int cell = program_cell(p, ROLE_CONSTANT, name, mesh_size(&p->mesh, s->axis), 1, DTYPE_I32);

    p->values[cell].content = numbers;
    lie_as(p, cell, s);
    return program_local_shard(p, arena_printf(&p->arena, "%s:local", name), cell, s->axis);
}

static void select_part(const struct update *u, int from, int numbers, int to)
{
    update_emit(u, (struct op){ .kind = OP_SELECT_ROWS,
                                .in = { [SELECT_ROWS_X] = from, [SELECT_ROWS_INDEX] = numbers },
                                .out = { [SELECT_ROWS_Y] = to } });
}

/*
 * The same of fewer slots than ranks: `each` neighbouring ranks compute one of them, and each of
 * these sends a part of what becomes of it, so that as much travels as there is. Ranks that are
 * left over do as the first.
 *
 *     slots   | A         | B         |          4 ranks, 2 slots
 *     rank    A     A     B     B                compute
 *     sent    A:0   A:1   B:0   B:1
 */
static void deal_among_many(const struct update *u, struct slot *const *list, int n)
{
    struct program *p = u->program;
    const struct slot *s = list[0];
    int size = mesh_size(&p->mesh, s->axis), each = size / n;
    int64_t rows = n_parts_of(p, s->parameter) * s->n * s->rows, elements = rows * s->cols;
    int64_t part_elements = ceil_div(elements, each);
    int all = program_value(p, n, elements, DTYPE_BF16);
    int own = program_value(p, each, part_elements, DTYPE_BF16);
    int part = program_value(p, 1, part_elements, DTYPE_BF16);
    int sent = program_value(p, size, part_elements, DTYPE_BF16);
    int32_t *slots = arena_array(&p->arena, int32_t, size);
    int32_t *parts = arena_array(&p->arena, int32_t, size);

    for (int rank = 0; rank < n * each; rank++) {
        slots[rank] = rank / each;
        parts[rank] = rank % each;
    }
    lie_as(p, all, s);
    lie_as(p, own, s);
    program_spread_over(p, own, s->axis, SPREAD_ROWS);
    for (int k = 0; k < n; k++)
        bring(u, list[k], flat_view(p, all, k * elements, elements));
    select_part(u, rows_view(p, all, 0, n, elements), number_of_rank(u, s, slots),
                rows_view(p, own, 0, 1, elements));
    steps(u, s, rows_view(p, own, 0, rows, s->cols));
    select_part(u, own, number_of_rank(u, s, parts), part);
    gather(u, part, sent, s->axis, STREAM_DP_GATHER);
    for (int k = 0; k < n; k++)
        take_back(u, list[k], flat_view(p, sent, k * each * part_elements, elements));
}

static void compute_slots(struct muon *m)
{
    struct arena *arena = &m->u->program->arena;
    struct slot **alike = arena_array(arena, struct slot *, m->n_slots);

    for (int i = 0; i < m->n_slots; i++) {
        int n = 0;

        for (int k = i; k < m->n_slots && !m->slots[i].is_dealt; k++)
            if (!m->slots[k].is_dealt && is_alike(&m->slots[i], &m->slots[k]))
                alike[n++] = &m->slots[k];
        for (int k = 0; k < n; k++)
            alike[k]->is_dealt = true;
        int n_ranks = mesh_size(&m->u->program->mesh, m->slots[i].axis);
        if (n > 1 && n < n_ranks)
            deal_among_many(m->u, alike, n);
        else if (n > 1 && n_ranks > 1)
            deal(m->u, alike, n);
        else
            for (int k = 0; k < n; k++)
                compute(m->u, alike[k]);
    }
    m->n_slots = 0;
}

/* ---- targets ---- */

/* A parameter's matrices: pieces of one size as one slot, but where each may have another owner;
 * others as one each. */
static void add_slots(struct muon *m, const struct parameter *q, const struct slot *like)
{
    const struct parameter_matrices *matrices = &q->matrices;
    struct slot s = *like;
    bool is_even = matrices->n_repeats > 1 || mesh_size(&m->u->program->mesh, like->axis) == 1;

    s.parameter = q;
    s.cols = q->cols;
    for (int i = 1; i < matrices->n_pieces; i++)
        is_even &= matrices->pieces[i] == matrices->pieces[0];
    int n = is_even ? 1 : matrices->n_pieces * matrices->n_repeats;
    for (int i = 0; i < n; i++) {
        s.rows = matrices->pieces[i % matrices->n_pieces];
        s.n = is_even ? matrices->n_pieces * matrices->n_repeats : 1;
        m->slots =
            arena_grow(&m->u->program->arena, m->slots, sizeof s, &m->capacity, m->n_slots + 1);
        m->slots[m->n_slots++] = s;
        s.offset += elements_of(&s);
    }
}

static int64_t elements_of_target(const struct program *p, const struct muon_target *t)
{
    if (t->bucket >= 0)
        return p->buckets[t->bucket].n_elements;
    return p->parameters[t->parameter].rows * p->parameters[t->parameter].cols;
}

/* The direction of all the target's matrices, from its momentum. */
static int direction_of(const struct update *u, const struct muon_target *t)
{
    struct program *p = u->program;
    struct value gradient = p->values[t->gradient];
    int own = program_value(p, gradient.rows, gradient.cols, DTYPE_BF16);

    update_emit(u, (struct op){ .kind = OP_MUON_MOMENTUM,
                                .attributes = { .beta1 = u->options->muon.momentum,
                                                .nesterov = u->options->muon.nesterov },
                                .in = { [MUON_MOMENTUM_GRADIENT] = t->gradient,
                                        [MUON_MOMENTUM_CLIP_FACTOR] = p->ports.clip_factor,
                                        [MUON_MOMENTUM_SKIP_UPDATE] = p->ports.skip_update,
                                        [MUON_MOMENTUM_M] = t->moment },
                                .out = { [MUON_MOMENTUM_U] = own } });
    if (t->bucket < 0 || program_n_shards(p, t->bucket) == 1)
        return own;
    int whole = program_value(p, 1, p->buckets[t->bucket].n_elements, DTYPE_BF16);
    gather(u, own, whole, p->buckets[t->bucket].axis, STREAM_DP_GATHER);
    return whole;
}

static void begin_target(struct muon *m, struct muon_target *t)
{
    struct program *p = m->u->program;
    struct slot s = { .direction = direction_of(m->u, t) };

    t->direction = s.direction;
    if (t->bucket < 0) {
        s.axis = program_shard_axis(p, t->parameter);
        add_slots(m, &p->parameters[t->parameter], &s);
        return;
    }
    s.axis = p->buckets[t->bucket].axis;
    for (int i = 0; i < p->n_parameters; i++)
        if (p->parameters[i].bucket == t->bucket) {
            s.offset = p->parameters[i].bucket_offset;
            add_slots(m, &p->parameters[i], &s);
        }
}

static void end_target(const struct update *u, const struct muon_target *t)
{
    struct program *p = u->program;
    int x = t->direction;

    if (t->bucket >= 0 && program_n_shards(p, t->bucket) > 1)
        x = program_local_shard(p, NULL, x, p->buckets[t->bucket].axis);
    update_emit(u, (struct op){ .kind = OP_MUON_UPDATE,
                                .attributes = { .weight_decay = t->weight_decay,
                                                .half_away = u->options->half_away },
                                .in = { [MUON_UPDATE_X] = x,
                                        [MUON_UPDATE_SCALARS] = t->scalars,
                                        [MUON_UPDATE_SKIP_UPDATE] = p->ports.skip_update,
                                        [MUON_UPDATE_MASTER] = t->master,
                                        [MUON_UPDATE_DECAY] = t->decay },
                                .out = { [MUON_UPDATE_WEIGHT] = t->weight } });
    if (t->average)
        update_average(u, t->master, 0, t->average);
}

void update_muon_add(const struct update *u, const struct muon_target *target)
{
    struct muon_targets *t = u->muon;

    t->list = arena_grow(&u->program->arena, t->list, sizeof *target, &t->capacity, t->n + 1);
    t->list[t->n++] = *target;
}

void update_muon(const struct update *u)
{
    struct muon_target *targets = u->muon->list;
    struct muon m = { .u = u };
    int64_t all = 0, most, taken;
    int n = u->muon->n;

    for (int i = 0; i < n; i++)
        all += elements_of_target(u->program, &targets[i]);
    most = max_i64(all / GROUP_SHARE, GROUP_BYTES / 2);
    if (mesh_size(&u->program->mesh, axes_shard(&u->program->mesh, PARAMETER_DENSE)) == 1)
        most = 0; /* there is nothing to deal out */
    for (int begin = 0, end; begin < n; begin = end) {
        taken = 0;
        for (end = begin; end < n && (end == begin || taken < most); end++) {
            taken += elements_of_target(u->program, &targets[end]);
            begin_target(&m, &targets[end]);
        }
        compute_slots(&m);
        for (int i = begin; i < end; i++)
            end_target(u, &targets[i]);
    }
}
