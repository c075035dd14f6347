/*
 * slices.c - a rank's cells as a checkpoint's slices
 */
#include "weights/slices.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "config/tuning.h"
#include "layout/axes.h"
#include "weights/rectangles.h"

enum { N_STATES = 4 };

/* Whose view it is. */
struct owner {
    struct slices *slices;
    const struct run *run;
    const struct program *program;
    const struct mesh_place *place;
    int n_states; /* the master; its moments and average */
    enum slices_of of;
};

static bool is_left_out(const struct owner *o, int parameter)
{
    const struct parameter *p = &o->program->parameters[parameter];

    return (o->of == SLICES_OF_TRAINED && !p->trainable) ||
           (o->of == SLICES_OF_MODEL && tuning_is_adapter(p->name));
}

static void add(struct slices *slices, const struct store_slice *slice)
{
    slices->slices =
        arena_grow(&slices->arena, slices->slices, sizeof *slice, &slices->capacity, slices->n + 1);
    slices->slices[slices->n++] = *slice;
}

/* Elements [begin, end) of the rank's part of a parameter, of each of its states. */
static void add_elements(const struct owner *o, int parameter, const struct parameter_part *part,
                         int64_t begin, int64_t end)
{
    static const char *const suffixes[N_STATES] = { "", ".m", ".v", SLICES_EMA };
    const struct parameter *p = &o->program->parameters[parameter];
    struct tensor_rectangle r;
    int cells[N_STATES] = { part->master, part->moment1, part->moment2, part->ema };
    struct store_slice slice = { .n_dims = p->n_dims };

    rectangles_whole(o->program, parameter, &slice.rows, &slice.cols);
    for (int k = 0; k < o->n_states; k++) {
        /* A frozen parameter has no moments. A weight without a master has the run's dtype; moments
         * have their own. */
        if (!cells[k])
            continue;
        char *data = run_data(o->run, cells[k], 0);
        char *low = !k && part->low ? run_data(o->run, part->low, 0) : NULL;
        enum dtype dtype = o->program->values[cells[k]].dtype;

        slice.dtype = low ? DTYPE_F32 : dtype;
        slice.name = arena_printf(&o->slices->arena, "%s%s", p->name, suffixes[k]);
        struct rectangle_walk walk = rectangle_walk(o->program, parameter, o->place, begin, end);
        while (rectangle_next(&walk, &r)) {
            rectangle_to_slice(&r, &slice);
            slice.stride = r.stride;
            size_t at = (size_t)(part->offset + r.local - part->begin) * dtype_bytes(dtype);
            slice.data = data + at;
            slice.low = low ? low + at : NULL;
            add(o->slices, &slice);
        }
    }
}

int slices_part_number(const struct program *p, const struct mesh_place *place, int parameter,
                       int *n)
{
    int number = 0;

    *n = 1;
    for (int axis = 0; axis < N_AXES; axis++)
        if (p->mesh.size[axis] > 1 &&
            program_parameter_is_split(p, parameter, (enum mesh_axis)axis)) {
            number = number * p->mesh.size[axis] + place->of[axis];
            *n *= p->mesh.size[axis];
        }
    return number;
}

/* The scales of its moments' blocks, which are of the elements of a part in their order: a tensor
 * has a row for each part. */
static void add_scales(const struct owner *o, int parameter, const struct parameter_part *part)
{
    const struct parameter *p = &o->program->parameters[parameter];
    const int cells[] = { part->m_scale, part->v_scale };
    static const char *const suffixes[] = { ".m.scale", ".v.scale" };
    int n_parts, number = slices_part_number(o->program, o->place, parameter, &n_parts);

    for (int k = 0; k < 2 && part->begin < part->end && o->n_states > 1; k++) {
        if (!cells[k])
            continue;
        add(o->slices,
            &(struct store_slice){
                .name = arena_printf(&o->slices->arena, "%s%s", p->name, suffixes[k]),
                .dtype = DTYPE_F32,
                .n_dims = 2,
                .rows = n_parts,
                .cols = ceil_div(p->rows * p->cols, OPS_STATE_BLOCK),
                .row_begin = number,
                .row_end = number + 1,
                .col_begin = part->begin / OPS_STATE_BLOCK,
                .col_end = ceil_div(part->end, OPS_STATE_BLOCK),
                .data = (float *)run_data(o->run, cells[k], 0) + part->offset / OPS_STATE_BLOCK });
    }
}

static void add_all(const struct owner *o)
{
    for (int i = 0; i < o->program->n_parameters; i++) {
        struct parameter_part part = program_parameter_part(o->program, i, o->place);

        if (is_left_out(o, i))
            continue;
        add_elements(o, i, &part, part.begin, part.end);
        add_scales(o, i, &part);
    }
}

void slices_to_read(struct slices *slices, const struct run *run, const struct program *program,
                    const struct mesh_place *place, enum slices_of of)
{
    struct owner owner = { slices, run, program, place, N_STATES, of };

    add_all(&owner);
}

void slices_of_masters(struct slices *slices, const struct run *run, const struct program *program,
                       const struct mesh_place *place)
{
    struct owner owner = { slices, run, program, place, 1, SLICES_OF_MODEL };

    add_all(&owner);
}

/* Of what all ranks of the sharding axis have, the elements of those rows that this one saves. */
static void share_rows(const struct owner *o, int parameter, int64_t *begin, int64_t *end)
{
    enum mesh_axis axis = program_shard_axis(o->program, parameter);
    int64_t size = mesh_size(&o->program->mesh, axis);
    int64_t rank = mesh_place_on(&o->program->mesh, o->place, axis);
    int64_t n = min_i64(size, SLICES_SAVERS_MAX), share = ceil_div(rank * n, size), rows, cols;

    rectangles_part(o->program, parameter, &rows, &cols);
    if (rows < n && rank == 0)
        return;
    if (rows < n || share == n || share * size / n != rank) {
        *end = *begin;
        return;
    }
    *begin = rows * share / n * cols;
    *end = rows * (share + 1) / n * cols;
}

/* Whether another rank has the same part: a lower one of an axis over which it is not split. */
static bool is_another_ranks(const struct owner *o, int parameter)
{
    for (int i = 0; i < N_AXES; i++) {
        enum mesh_axis axis = (enum mesh_axis)i;
        int is_copied = !axis_covers(program_shard_axis(o->program, parameter), axis) &&
                        axis != axes_stages() &&
                        !program_parameter_is_split(o->program, parameter, axis);

        if (is_copied && o->place->of[axis])
            return true;
    }
    return false;
}

void slices_to_save(struct slices *slices, const struct run *run, const struct program *program,
                    const struct mesh_place *place, enum slices_of of)
{
    struct owner owner = { slices, run, program, place, N_STATES, of };

    for (int i = 0; i < program->n_parameters; i++) {
        const struct parameter *p = &program->parameters[i];
        struct parameter_part part = program_parameter_part(program, i, place);
        int64_t begin = part.begin, end = part.end;

        if (p->is_copy || is_another_ranks(&owner, i) || is_left_out(&owner, i))
            continue;
        if (p->bucket < 0)
            share_rows(&owner, i, &begin, &end);
        add_elements(&owner, i, &part, begin, end);
        /* Blocks go over the edges of rows that ranks with all of a parameter divide. */
        if (p->bucket >= 0 || !mesh_place_on(&program->mesh, place, program_shard_axis(program, i)))
            add_scales(&owner, i, &part);
    }
}

void slices_make_whole(struct slices *slices)
{
    int n = 0;

    for (int i = 0; i < slices->n; i++) {
        struct store_slice s = slices->slices[i];

        if (s.row_begin == s.row_end || s.col_begin == s.col_end)
            continue;
        s.name =
            arena_printf(&slices->arena, "%s@%lld:%lld,%lld:%lld", s.name, (long long)s.row_begin,
                         (long long)s.row_end, (long long)s.col_begin, (long long)s.col_end);
        s.rows = s.row_end - s.row_begin;
        s.cols = s.col_end - s.col_begin;
        s.row_begin = s.col_begin = 0;
        s.row_end = s.rows;
        s.col_end = s.cols;
        slices->slices[n++] = s;
    }
    slices->n = n;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct store_slice *)a)->name, ((const struct store_slice *)b)->name);
}

void slices_keep_once(struct slices *slices)
{
    int n = 0;

    if (slices->n)
        qsort(slices->slices, (size_t)slices->n, sizeof *slices->slices, compare_names);
    for (int i = 0; i < slices->n; i++)
        if (!n || compare_names(&slices->slices[n - 1], &slices->slices[i]))
            slices->slices[n++] = slices->slices[i];
    slices->n = n;
}

void slices_release(struct slices *slices)
{
    arena_release(&slices->arena);
}

static void clear_scales(struct run *run, const struct parameter_part *part)
{
    const int cells[] = { part->m_scale, part->v_scale };

    for (int k = 0; k < 2; k++)
        if (cells[k])
            run_clear_at(run, (float *)run_data(run, cells[k], 0) + part->offset / OPS_STATE_BLOCK,
                         (size_t)ceil_div(part->end - part->begin, OPS_STATE_BLOCK) *
                             sizeof(float));
}

static void clear(struct run *run, const struct program *program, const struct mesh_place *place,
                  bool only_split)
{
    for (int i = 0; i < program->n_parameters; i++) {
        struct parameter_part part = program_parameter_part(program, i, place);
        int cells[] = { part.master, part.moment1, part.moment2, part.low, part.ema };

        if (only_split && !program_parameter_is_part(program, i))
            continue;
        for (size_t k = 0; k < sizeof cells / sizeof *cells; k++) {
            if (!cells[k])
                continue;
            char *data = run_data(run, cells[k], 0);
            size_t element = dtype_bytes(program->values[cells[k]].dtype);
            run_clear_at(run, data + (size_t)part.offset * element,
                         (size_t)(part.end - part.begin) * element);
        }
        clear_scales(run, &part);
    }
}

void slices_clear(struct run *run, const struct program *program, const struct mesh_place *place)
{
    clear(run, program, place, false);
}

void slices_clear_split(struct run *run, const struct program *program,
                        const struct mesh_place *place)
{
    clear(run, program, place, true);
}
