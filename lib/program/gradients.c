/*
 * gradients.c - what the backward of an op kind may do: take, add and emit gradients
 *
 * A value that is the same on all ranks of an axis may have a gradient that is partial there: each
 * rank has the summand of what it computed. take_gradient reduces it; a kind that is linear in its
 * gradient takes the summand (take_summand), and its result is partial in turn. Class B ops are on
 * the path to gradients of inputs, class W ops accumulate a parameter's gradient; zero-bubble
 * schedules run the two apart (split.c).
 */
#include "program/gradients.h"

#include <stdbool.h>
#include <string.h>

#include "layout/axes.h"

static struct gradient_walk *walk_of(struct backward *b)
{
    return (struct gradient_walk *)b;
}

static const struct program *program_of(const struct backward *b)
{
    return ((const struct gradient_walk *)b)->program;
}

static bool is_partial(const struct backward *b, int v, int g, enum mesh_axis axis)
{
    const struct program *p = program_of(b);

    return g && p->mesh.size[axis] > 1 && p->values[g].spread[axis] == SPREAD_PARTIAL &&
           p->values[v].spread[axis] != SPREAD_PARTIAL;
}

/* The axes on which g is partial and v is not, as a set of 1 << axis. */
static unsigned partial_axes(const struct backward *b, int v, int g)
{
    unsigned axes = 0;

    for (int axis = 0; axis < N_AXES; axis++)
        axes |= (unsigned)is_partial(b, v, g, (enum mesh_axis)axis) << axis;
    return axes;
}

static bool is_whole(const struct backward *b, int w, int y)
{
    unsigned axes = partial_axes(b, y, ((const struct gradient_walk *)b)->gradient[y]);

    for (int axis = 0; axis < N_AXES; axis++)
        if ((axes >> axis & 1) && program_of(b)->values[w].spread[axis] != SPREAD_SAME)
            return false;
    return true;
}

static bool needs_gradient(const struct backward *b, int v)
{
    return v && ((const struct gradient_walk *)b)->needs[v];
}

static enum dtype dtype_of(const struct backward *b, int v)
{
    return program_of(b)->values[v].dtype;
}

static int base_of(const struct backward *b, int v)
{
    return program_of(b)->values[v].base;
}

static int new_like(struct backward *b, int v, enum dtype dtype)
{
    const struct value *value = &program_of(b)->values[v];

    return program_value(walk_of(b)->program, value->rows, value->cols, dtype);
}

static int new_rows(struct backward *b, int v, int64_t n)
{
    struct program *p = walk_of(b)->program;

    return program_value(p, n, p->values[v].cols, p->values[v].dtype);
}

static int64_t rows_of(const struct backward *b, int v)
{
    return program_of(b)->values[v].rows;
}

static int64_t cols_of(const struct backward *b, int v)
{
    return program_of(b)->values[v].cols;
}

static const struct op_node *maker(struct backward *b, int v)
{
    struct gradient_walk *walk = walk_of(b);
    const struct function *f = &walk->program->functions[walk->forward];

    for (int i = f->n_ops - 1; i >= 0; i--)
        for (int k = 0; k < OPS_MAX_OUTPUTS; k++) {
            const struct op *op = &f->ops[i];

            if (!v || op->out[k] != v)
                continue;
            walk->made = (struct op_node){ .kind = op->kind, .attributes = op->attributes };
            memcpy(walk->made.in, op->in, sizeof op->in);
            memcpy(walk->made.out, op->out, sizeof op->out);
            return &walk->made;
        }
    return NULL;
}

static int columns(struct backward *b, int v, int64_t first, int64_t n)
{
    const struct value *value = &program_of(b)->values[v];

    return program_view(walk_of(b)->program, v, first, value->rows, n, value->stride);
}

static int local_shard(struct backward *b, int v, enum mesh_axis axis)
{
    return program_local_shard(walk_of(b)->program, NULL, v, axis);
}

static void emit(struct backward *b, const struct op_node *node)
{
    struct gradient_walk *walk = walk_of(b);
    struct op op = { .kind = node->kind,
                     .attributes = node->attributes,
                     .phase = node->gradient_of == GRADIENT_OF_PARAMETERS ? PHASE_W : PHASE_B,
                     .layer = walk->layer };

    memcpy(op.in, node->in, sizeof op.in);
    memcpy(op.out, node->out, sizeof op.out);
    if (op_is_collective(op.kind))
        op.stream = stream_of_axis(op.attributes.axis);
    program_emit(walk->program, walk->backward, &op);
}

static int all_parts(struct backward *b, int v)
{
    struct gradient_walk *walk = walk_of(b);
    struct program *p = walk->program;
    int all = walk->gathered[v] ? walk->gathered[v] : v;

    for (int axis = 0; axis < N_AXES && !walk->gathered[v]; axis++) {
        if (p->mesh.size[axis] == 1 || !axis_cuts_sequences((enum mesh_axis)axis) ||
            p->values[all].spread[axis] != SPREAD_ROWS)
            continue;
        const struct value part = p->values[all];
        int gathered = program_value(p, part.rows * p->mesh.size[axis], part.cols, part.dtype);

        emit(b, &(struct op_node){ .kind = OP_ALL_GATHER,
                                   .attributes.axis = (enum mesh_axis)axis,
                                   .in = { [ALL_GATHER_SHARD] = all },
                                   .out = { [ALL_GATHER_FULL] = gathered } });
        all = gathered;
    }
    walk->gathered[v] = all;
    return all;
}

static int sum_of_ranks(struct backward *b, int v)
{
    const struct program *p = program_of(b);

    for (int axis = 0; axis < N_AXES; axis++) {
        if (p->mesh.size[axis] == 1 || p->values[v].spread[axis] != SPREAD_PARTIAL)
            continue;
        int sum = backward_like(b, v);
        emit(b, &(struct op_node){ .kind = OP_ALL_REDUCE_SCALAR,
                                   .attributes.axis = (enum mesh_axis)axis,
                                   .in = { [ALL_REDUCE_SCALAR_X] = v },
                                   .out = { [ALL_REDUCE_SCALAR_Y] = sum } });
        v = sum;
    }
    return v;
}

/* g, reduced over every axis on which it is partial and v is not. */
static int reduce_if_partial(struct backward *b, int v, int g)
{
    for (int axis = 0; axis < N_AXES; axis++) {
        if (!is_partial(b, v, g, (enum mesh_axis)axis))
            continue;
        int sum = backward_like(b, g);
        emit(b, &(struct op_node){ .kind = OP_ALL_REDUCE,
                                   .attributes.axis = (enum mesh_axis)axis,
                                   .in = { [ALL_REDUCE_X] = g },
                                   .out = { [ALL_REDUCE_Y] = sum } });
        g = sum;
    }
    return g;
}

static int take_summand(struct backward *b, int v)
{
    struct gradient_walk *walk = walk_of(b);
    int gradient = walk->gradient[v];

    walk->gradient[v] = 0;
    return gradient;
}

static int take_gradient(struct backward *b, int v)
{
    return reduce_if_partial(b, v, take_summand(b, v));
}

static int cast(struct backward *b, int v, enum dtype dtype)
{
    if (dtype_of(b, v) == dtype)
        return v;
    int copy = new_like(b, v, dtype);
    emit(b,
         &(struct op_node){ .kind = OP_CAST, .in = { [CAST_X] = v }, .out = { [CAST_Y] = copy } });
    return copy;
}

/* The sum of two gradients of v, in v's dtype. One add op computes in fp32 too, so casts are left
 * out where all dtypes are equal: the bits are the same. */
static int sum_of(struct backward *b, int v, int before, int g)
{
    enum dtype dtype = dtype_of(b, v);
    int alike = dtype_of(b, before) == dtype && dtype_of(b, g) == dtype;

    before = alike ? before : cast(b, before, DTYPE_F32);
    int sum = new_like(b, v, alike ? dtype : DTYPE_F32);
    emit(b, &(struct op_node){ .kind = OP_ADD,
                               .in = { [ADD_A] = before, [ADD_B] = g },
                               .out = { [ADD_Y] = sum } });
    return cast(b, sum, dtype);
}

/*
 * The values that are read several times are the residual stream and outputs of norms (by router
 * and experts, or by a matrix and its adapter). One reader's gradient may be partial where the
 * other's is not: both are then reduced before they are added.
 */
static void add_gradient(struct backward *b, int v, int g)
{
    struct gradient_walk *walk = walk_of(b);
    int before = walk->gradient[v];

    if (!needs_gradient(b, v))
        return;
    if (before && partial_axes(b, v, before) != partial_axes(b, v, g)) {
        before = reduce_if_partial(b, v, before);
        g = reduce_if_partial(b, v, g);
    }
    walk->gradient[v] = before ? sum_of(b, v, before, g) : g;
}

/* The gradient of the base, of which the gradient of a view is a part. */
static int parts_of(struct backward *b, int base)
{
    int *parts = &walk_of(b)->parts[base];

    if (!*parts)
        *parts = backward_like(b, base);
    return *parts;
}

static void new_gradients(struct backward *b, const int *x, int n, int *dx)
{
    struct program *p = walk_of(b)->program;

    for (int i = 0; i < n; i++) {
        struct value v = p->values[x[i]];

        dx[i] = v.base ? program_view(p, parts_of(b, v.base), v.offset, v.rows, v.cols, v.stride)
                       : backward_like(b, x[i]);
    }
}

/* A part of the base's gradient was written. When all parts are, it is added as a gradient of the
 * base. */
static void add_part(struct backward *b, int base, int dx)
{
    struct gradient_walk *walk = walk_of(b);
    struct program *p = walk->program;
    int whole = p->values[dx].base;
    int64_t n_elements = p->values[whole].rows * p->values[whole].cols;

    CHECK(whole == walk->parts[base]);
    for (int other = whole + 1; other < dx; other++)
        CHECK(p->values[other].base != whole || !program_overlap(p, other, dx));
    walk->n_written[base] += p->values[dx].rows * p->values[dx].cols;
    if (walk->n_written[base] < n_elements)
        return;
    memcpy(p->values[whole].spread, p->values[dx].spread, sizeof p->values->spread);
    walk->parts[base] = 0;
    walk->n_written[base] = 0;
    add_gradient(b, base, whole);
}

static void add_gradients(struct backward *b, const int *x, int n, const int *dx)
{
    for (int i = 0; i < n; i++) {
        int base = program_of(b)->values[x[i]].base;

        if (base)
            add_part(b, base, dx[i]);
        else
            add_gradient(b, x[i], dx[i]);
    }
}

static int accumulator(struct backward *b, int w)
{
    struct program *p = walk_of(b)->program;
    int parameter = w ? program_parameter_of(p, w) : -1;

    return parameter < 0 ? 0 : program_add_gradient(p, parameter);
}

void gradient_walk_init(struct gradient_walk *walk)
{
    walk->calls = (struct backward){
        .take_gradient = take_gradient,
        .take_summand = take_summand,
        .add_gradient = add_gradient,
        .needs_gradient = needs_gradient,
        .new_gradients = new_gradients,
        .add_gradients = add_gradients,
        .accumulator = accumulator,
        .is_whole = is_whole,
        .is_partial = is_partial,
        .dtype = dtype_of,
        .new_like = new_like,
        .new_rows = new_rows,
        .rows = rows_of,
        .cols = cols_of,
        .maker = maker,
        .cast = cast,
        .columns = columns,
        .local_shard = local_shard,
        .all_parts = all_parts,
        .sum = sum_of_ranks,
        .base = base_of,
        .emit = emit,
        .gradient_scale = walk->program->ports.gradient_scale,
    };
}

void gradient_emit(struct gradient_walk *walk, const struct op *op)
{
    const struct op_info *info = op_info(op->kind);
    struct op_node node = { .kind = op->kind, .attributes = op->attributes };

    CHECK(info->backward);
    memcpy(node.in, op->in, sizeof node.in);
    memcpy(node.out, op->out, sizeof node.out);
    walk->layer = op->layer;
    info->backward(&walk->calls, &node);
}
