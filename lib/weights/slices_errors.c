/*
 * slices_errors.c - what codecs have lost, and what else they keep, as a checkpoint's slices
 *
 * Ranks that have different summands of a gradient have errors of their own: a tensor has one below
 * the other what they have of a parameter. So it has factors of ranks that have summands, or parts,
 * of their own, but for those over which the sum is: these have the same factors.
 */
#include "layout/axes.h"
#include "weights/rectangles.h"
#include "weights/slices.h"

/* Which of n ranks with different errors it is; whether it is the first with these bits. */
struct error_owner {
    int number, n;
    bool is_first;
};

/* has_parts: ranks that divide what is in the cell are different ones, too. */
static struct error_owner owner_of(const struct program *p, int cell,
                                   const struct mesh_place *place, bool has_parts)
{
    struct error_owner owner = { .n = 1, .is_first = true };

    /* Groups of data-parallel ranks, the last axis, first: numbers do not hang on how many. */
    for (int i = 0; i < N_AXES; i++) {
        int axis = (i + N_AXES - 1) % N_AXES;

        if (p->mesh.size[axis] == 1 || axis == (int)axes_stages())
            continue;
        enum spread spread = p->values[cell].spread[axis];
        if (spread == SPREAD_PARTIAL || (has_parts && spread != SPREAD_SAME)) {
            owner.number = owner.number * p->mesh.size[axis] + place->of[axis];
            owner.n *= p->mesh.size[axis];
        } else if (spread == SPREAD_SAME && place->of[axis]) {
            owner.is_first = false;
        }
    }
    return owner;
}

static const char *name_of(struct slices *slices, const struct parameter *q, int use,
                           const char *what)
{
    /* The head's gradient is complete first: it is use 0 of what one stage has whole. */
    int number = q->tied_peer ? !q->is_copy : use;

    return number ? arena_printf(&slices->arena, "%s.%s.%d", q->name, what, number)
                  : arena_printf(&slices->arena, "%s.%s", q->name, what);
}

static void add_slice(struct slices *slices, const struct store_slice *slice)
{
    slices->slices =
        arena_grow(&slices->arena, slices->slices, sizeof *slice, &slices->capacity, slices->n + 1);
    slices->slices[slices->n++] = *slice;
}

static void add_errors(struct slices *slices, const struct run *run, const struct program *p,
                       const struct mesh_place *place, int parameter, int use, bool is_saved)
{
    const struct parameter *q = &p->parameters[parameter];
    struct error_owner owner = owner_of(p, q->errors[use], place, false);
    char *data = run_data(run, q->errors[use], 0);
    struct store_slice slice = { .dtype = DTYPE_F32, .n_dims = q->n_dims };
    struct tensor_rectangle r;

    if (is_saved && !owner.is_first)
        return;
    slice.name = name_of(slices, q, use, "error");
    rectangles_whole(p, parameter, &slice.rows, &slice.cols);
    int64_t first = owner.number * slice.rows;
    slice.rows *= owner.n;
    struct rectangle_walk walk = rectangle_walk(p, parameter, place, 0, q->rows * q->cols);
    while (rectangle_next(&walk, &r)) {
        slice.row_begin = first + r.row;
        slice.row_end = first + r.row + r.rows;
        slice.col_begin = r.col;
        slice.col_end = r.col + r.cols;
        slice.stride = r.stride;
        slice.data = data + (size_t)r.local * sizeof(float);
        add_slice(slices, &slice);
    }
}

static void add_factors(struct slices *slices, const struct run *run, const struct program *p,
                        const struct mesh_place *place, int parameter, int use, bool is_saved)
{
    const struct parameter *q = &p->parameters[parameter];
    const struct value *v = &p->values[q->factors[use]];
    struct error_owner owner = owner_of(p, q->factors[use], place, true);

    if (is_saved && !owner.is_first)
        return;
    add_slice(slices, &(struct store_slice){ .name = name_of(slices, q, use, "factor"),
                                             .dtype = DTYPE_F32,
                                             .n_dims = 2,
                                             .rows = owner.n * v->rows,
                                             .cols = v->cols,
                                             .row_begin = owner.number * v->rows,
                                             .row_end = (owner.number + 1) * v->rows,
                                             .col_end = v->cols,
                                             .stride = v->cols,
                                             .data = run_data(run, q->factors[use], 0) });
}

void slices_of_errors(struct slices *slices, const struct run *run, const struct program *program,
                      const struct mesh_place *place, bool is_saved)
{
    for (int i = 0; i < program->n_parameters; i++)
        for (int use = 0; use < TENSOR_MAX_USES; use++)
            if (program->parameters[i].errors[use])
                add_errors(slices, run, program, place, i, use, is_saved);
}

void slices_of_factors(struct slices *slices, const struct run *run, const struct program *program,
                       const struct mesh_place *place, bool is_saved)
{
    for (int i = 0; i < program->n_parameters; i++)
        for (int use = 0; use < TENSOR_MAX_USES; use++)
            if (program->parameters[i].factors[use])
                add_factors(slices, run, program, place, i, use, is_saved);
}

static void clear(struct run *run, const struct program *program, int cell)
{
    if (cell)
        run_clear_at(run, run_data(run, cell, 0), program_value_bytes(program, cell));
}

void slices_clear_errors(struct run *run, const struct program *program)
{
    for (int i = 0; i < program->n_buckets; i++)
        for (int use = 0; use < program->buckets[i].n_uses; use++)
            clear(run, program, program->buckets[i].errors[use]);
}

void slices_clear_factors(struct run *run, const struct program *program)
{
    for (int i = 0; i < program->n_buckets; i++)
        for (int use = 0; use < program->buckets[i].n_uses; use++)
            clear(run, program, program->buckets[i].factors[use].kept);
}
