/*
 * program_parameter.c - the parameters of a program: each rank's part of them, and their gradients
 */

#include "base/num.h"
#include "layout/axes.h"
#include "program/program.h"

int program_parameter(struct program *program, const char *name, int n_dims, int64_t rows,
                      int64_t cols, enum dtype dtype, enum init_kind init, double init_std)
{
    struct parameter parameter = {
        .name = arena_strdup(&program->arena, name),
        .n_dims = n_dims,
        .rows = rows,
        .cols = cols,
        .whole_rows = rows,
        .whole_cols = cols,
        .init = init,
        .init_std = init_std,
        .trainable = 1,
        .bucket = -1,
    };

    CHECK(n_dims == 2 || rows == 1);
    parameter.weight =
        program_cell(program, ROLE_WEIGHT, name, rows, cols, n_dims == 1 ? DTYPE_F32 : dtype);
    program->parameters = arena_grow(&program->arena, program->parameters, sizeof parameter,
                                     &program->parameters_capacity, program->n_parameters + 1);
    program->parameters[program->n_parameters] = parameter;
    return program->n_parameters++;
}

/* The rank's extent of one piece, with padding. */
static int64_t part_of(const struct program *p, const struct parameter_split *split, int piece)
{
    return ceil_div(split->pieces[piece], p->mesh.size[split->axis]);
}

void program_split_parameter(struct program *program, int parameter, enum mesh_axis axis,
                             const struct parameter_split *split)
{
    struct parameter *q = &program->parameters[parameter];
    struct value *weight = &program->values[q->weight];
    int by_rows = split->along == SPREAD_ROWS;
    int64_t *extent = by_rows ? &q->rows : &q->cols, whole = 0, part = 0;

    if (program->mesh.size[axis] == 1 || split->along == SPREAD_SAME)
        return;
    CHECK(by_rows || split->along == SPREAD_COLS);
    CHECK(q->n_splits < PARAMETER_MAX_SPLITS);
    CHECK(!program_parameter_is_split(program, parameter, axis));
    struct parameter_split *own = &q->splits[q->n_splits++];
    *own = *split;
    own->axis = axis;
    own->n_repeats = max_int(split->n_repeats, 1);
    for (int i = 0; i < own->n_pieces; i++) {
        whole += own->n_repeats * own->pieces[i];
        part += own->n_repeats * part_of(program, own, i);
    }
    CHECK(whole == *extent);
    *extent = part;
    weight->rows = q->rows;
    weight->cols = weight->stride = q->cols;
    weight->spread[axis] = own->along;
}

int program_parameter_is_split(const struct program *program, int parameter, enum mesh_axis axis)
{
    const struct parameter *q = &program->parameters[parameter];

    for (int i = 0; i < q->n_splits; i++)
        if (q->splits[i].axis == axis)
            return 1;
    return 0;
}

enum mesh_axis program_shard_axis(const struct program *program, int parameter)
{
    return axes_shard(&program->mesh, program_parameter_is_split(program, parameter, axes_experts())
                                          ? PARAMETER_EXPERT
                                          : PARAMETER_DENSE);
}

int program_n_shards(const struct program *program, int bucket)
{
    return mesh_size(&program->mesh, program->buckets[bucket].axis);
}

int program_parameter_is_part(const struct program *program, int parameter)
{
    return program->parameters[parameter].n_splits > 0;
}

int program_parameter_n_ranges(const struct program *program, int parameter, enum spread along)
{
    const struct parameter *q = &program->parameters[parameter];
    int n = 1;

    for (int i = 0; i < q->n_splits; i++)
        if (q->splits[i].along == along)
            n *= q->splits[i].n_repeats * q->splits[i].n_pieces;
    return n;
}

/* The i-th range of one split; `whole` counts in what was split. */
static struct parameter_range range_of(const struct program *p, const struct parameter_split *split,
                                       int rank, int i)
{
    int repeat = i / split->n_pieces, piece = i % split->n_pieces;
    int64_t local = 0, whole = 0, local_repeat = 0, whole_repeat = 0;

    for (int k = 0; k < split->n_pieces; k++) {
        if (k < piece) {
            local += part_of(p, split, k);
            whole += split->pieces[k];
        }
        local_repeat += part_of(p, split, k);
        whole_repeat += split->pieces[k];
    }
    int64_t part = part_of(p, split, piece), begin = rank * part;
    int64_t n = min_i64(part, split->pieces[piece] - begin);

    return (struct parameter_range){ local + repeat * local_repeat, max_i64(n, 0),
                                     whole + repeat * whole_repeat + begin };
}

/* The intersection of a range of a part with a range of what the part was taken from. */
static struct parameter_range range_within(struct parameter_range inner,
                                           struct parameter_range outer)
{
    int64_t begin = max_i64(inner.whole, outer.local);
    int64_t end = min_i64(inner.whole + inner.n, outer.local + outer.n);

    return (struct parameter_range){ inner.local + begin - inner.whole, max_i64(end - begin, 0),
                                     outer.whole + begin - outer.local };
}

struct parameter_range program_parameter_range(const struct program *program, int parameter,
                                               enum spread along, const struct mesh_place *place,
                                               int i)
{
    const struct parameter *q = &program->parameters[parameter];
    int64_t extent = along == SPREAD_ROWS ? q->whole_rows : q->whole_cols;
    struct parameter_range range = { 0, extent, 0 };

    /* The ranges of a split are cut by those of the split before, whose parts it divides. */
    for (int k = 0; k < q->n_splits; k++) {
        const struct parameter_split *split = &q->splits[k];
        int n = split->n_repeats * split->n_pieces;

        if (split->along != along)
            continue;
        range = range_within(range_of(program, split, place->of[split->axis], i % n), range);
        i /= n;
    }
    return range;
}

struct parameter_part program_parameter_part(const struct program *program, int parameter,
                                             const struct mesh_place *place)
{
    const struct parameter *p = &program->parameters[parameter];
    int64_t n = p->rows * p->cols;

    if (p->bucket < 0)
        return (struct parameter_part){ .end = n,
                                        .master = p->master ? p->master : p->weight,
                                        .moment1 = p->moment1,
                                        .moment2 = p->moment2,
                                        .weight = p->weight,
                                        .low = p->low,
                                        .m_scale = p->m_scale,
                                        .v_scale = p->v_scale,
                                        .ema = p->ema };
    const struct bucket *b = &program->buckets[p->bucket];
    int64_t shard = b->n_elements / program_n_shards(program, p->bucket);
    int64_t first = mesh_place_on(&program->mesh, place, b->axis) * shard - p->bucket_offset;
    int64_t begin = min_i64(max_i64(first, 0), n), end = max_i64(min_i64(first + shard, n), begin);

    return (struct parameter_part){ .begin = begin,
                                    .end = end,
                                    .offset = begin < end ? begin - first : 0,
                                    .master = b->master,
                                    .moment1 = b->moment1,
                                    .moment2 = b->moment2,
                                    .weight = b->weight_shard,
                                    .low = b->low,
                                    .m_scale = b->m_scale,
                                    .v_scale = b->v_scale,
                                    .ema = b->ema };
}

int program_parameter_of(const struct program *program, int weight)
{
    for (int i = 0; i < program->n_parameters; i++)
        if (program->parameters[i].weight == weight)
            return i;
    return -1;
}

int program_add_gradient(struct program *program, int parameter)
{
    struct parameter *p = &program->parameters[parameter];

    if (!p->trainable)
        return 0;
    if (p->n_uses_found < p->n_gradients)
        return p->gradients[p->n_uses_found++];
    CHECK(p->n_gradients < TENSOR_MAX_USES);
    const char *name = p->n_gradients
                           ? arena_printf(&program->arena, "%s.grad.%d", p->name, p->n_gradients)
                           : arena_printf(&program->arena, "%s.grad", p->name);
    int cell = program_cell(program, ROLE_GRADIENT, name, p->rows, p->cols,
                            p->n_dims > 1 ? program->gradient_dtype : DTYPE_F32);
    p->gradients[p->n_gradients++] = cell;
    p->n_uses_found = p->n_gradients;
    return cell;
}

void program_repeat_uses(struct program *program)
{
    for (int i = 0; i < program->n_parameters; i++) {
        CHECK(program->parameters[i].n_uses_found == program->parameters[i].n_gradients);
        program->parameters[i].n_uses_found = 0;
    }
}
