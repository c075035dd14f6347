/*
 * verify_parts.c - what is written piece by piece is read only where all of its pieces are there
 */
#include "base/num.h"
#include "program/verify_walk_impl.h"

void verify_open_parts(struct verify_walk *w, struct arena *arena)
{
    const struct program *p = w->program;
    int n = 1;

    w->parts_at = arena_array(arena, int, p->n_values);
    for (int id = 1; id < p->n_values; id++)
        if (program_base(p, id) == id && program_n_parts(p, id) > 1) {
            w->parts_at[id] = n;
            n += program_n_parts(p, id);
        }
    w->part_run = arena_array(arena, int, n);
    w->n_written = arena_array(arena, int64_t, n);
}

/* Elements of a part; the last of a period may have fewer rows. A group is written at once: 1. */
static int64_t part_elements(const struct value *base, int part)
{
    if (base->n_groups)
        return 1;
    int64_t rows = min_i64(base->part_rows, base->part_period - part * base->part_rows);

    return rows * base->cols * (base->rows / base->part_period);
}

/* What is written piece by piece is read only where all pieces of its parts are there. A function
 * that writes none of them has them from another. */
int verify_parts(const struct verify_walk *w, const struct function *f, const struct op *op, int id)
{
    const struct program *p = w->program;
    int base = program_base(p, id), at = w->parts_at[base];
    struct value_parts parts = program_parts(p, id);

    bool is_written_here = false;
    for (int i = 0; at && i < program_n_parts(p, base); i++)
        is_written_here |= w->part_run[at + i] == w->run;
    if (!is_written_here)
        return 0;
    for (int i = parts.first; i < parts.first + parts.n; i++)
        if (w->part_run[at + i] != w->run ||
            w->n_written[at + i] < part_elements(&p->values[base], i))
            return verify_complain(p, f, op, id, "is read before all of it is written", w->err);
    return 0;
}

/* Elements of a part that a value of several parts has: of whole periods, or of rows of one. */
static int64_t elements_in(const struct value *base, const struct value *v, int part)
{
    int64_t rows = v->rows, row = v->offset / base->stride % base->part_period;
    int64_t begin = part * base->part_rows,
            end = min_i64(begin + base->part_rows, base->part_period);

    if (v->stride != base->stride || rows >= base->part_period)
        return part_elements(base, part) / base->cols * min_i64(v->cols, base->cols);
    return max_i64(0, min_i64(end, row + rows) - max_i64(begin, row)) * v->cols;
}

void verify_note_parts(const struct verify_walk *w, int id)
{
    const struct program *p = w->program;
    int base = program_base(p, id), at = w->parts_at[base];
    const struct value *v = &p->values[id];
    struct value_parts parts = program_parts(p, id);

    for (int i = parts.first; at && i < parts.first + parts.n; i++) {
        if (w->part_run[at + i] != w->run)
            w->n_written[at + i] = 0;
        w->part_run[at + i] = w->run;
        w->n_written[at + i] += p->values[base].n_groups ? 1
                                : parts.n == 1           ? v->rows * v->cols
                                                         : elements_in(&p->values[base], v, i);
    }
}

int verify_all_parts(const struct verify_walk *w, const struct function *f)
{
    const struct program *p = w->program;
    char text[32];

    for (int id = 1; id < p->n_values; id++) {
        int n_whole = 0, n_begun = 0, n = w->parts_at[id] ? program_n_parts(p, id) : 0;

        for (int i = 0; i < n; i++) {
            bool is_begun = w->part_run[w->parts_at[id] + i] == w->run;

            n_begun += is_begun;
            n_whole +=
                is_begun && w->n_written[w->parts_at[id] + i] >= part_elements(&p->values[id], i);
        }
        if (n_begun && n_whole < n)
            return err_set(w->err, ERR_FAILED,
                           "program: %s: only %d of %d slices of %s are written", f->name, n_whole,
                           n, verify_value_text(p, id, text, sizeof text));
    }
    return 0;
}
