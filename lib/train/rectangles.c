/*
 * rectangles.c - elements of a part, as rectangles of the whole
 */
#include "train/rectangles.h"

#include "base/num.h"

void rectangles_whole(const struct program *program, int parameter, int64_t *rows, int64_t *cols)
{
    const struct parameter *p = &program->parameters[parameter];

    *rows = p->n_dims == 1 ? p->whole_cols : p->whole_rows;
    *cols = p->n_dims == 1 ? 1 : p->whole_cols;
}

void rectangles_part(const struct program *program, int parameter, int64_t *rows, int64_t *cols)
{
    const struct parameter *p = &program->parameters[parameter];

    *rows = p->n_dims == 1 ? p->cols : p->rows;
    *cols = p->n_dims == 1 ? 1 : p->cols;
}

/* What the range of rows has of the part's rectangle; empty where they do not meet. */
static struct rectangle cut_rows(struct rectangle r, int64_t stride, struct parameter_range range)
{
    int64_t begin = max_i64(r.row, range.local),
            end = min_i64(r.row + r.rows, range.local + range.n);

    r.rows = end - begin;
    r.local = begin * stride + r.col;
    r.row = begin - range.local + range.whole;
    return r;
}

static struct rectangle cut_cols(struct rectangle r, int64_t stride, struct parameter_range range)
{
    int64_t begin = max_i64(r.col, range.local),
            end = min_i64(r.col + r.cols, range.local + range.n);

    r.cols = end - begin;
    r.local = r.row * stride + begin;
    r.col = begin - range.local + range.whole;
    return r;
}

struct rectangle_walk rectangle_walk(const struct program *program, int parameter, int tp_rank,
                                     int64_t begin, int64_t end)
{
    return (struct rectangle_walk){ .program = program,
                                    .parameter = parameter,
                                    .tp_rank = tp_rank,
                                    .begin = begin,
                                    .end = end,
                                    .n_ranges = program_parameter_n_ranges(program, parameter) };
}

/* A rectangle of the part: what is left of a row, or as many rows as there are. */
static struct rectangle piece_of(const struct rectangle_walk *w, int64_t cols)
{
    int64_t n = w->end - w->begin;
    struct rectangle piece = { .row = w->begin / cols, .col = w->begin % cols, .stride = cols };

    piece.rows = piece.col ? 1 : max_i64(n / cols, 1);
    piece.cols = min_i64(cols - piece.col, n);
    return piece;
}

int rectangle_next(struct rectangle_walk *w, struct rectangle *rectangle)
{
    const struct parameter *p = &w->program->parameters[w->parameter];
    int by_cols = p->split.along == SPREAD_COLS && p->n_dims == 2;
    int64_t rows, cols;

    rectangles_part(w->program, w->parameter, &rows, &cols);
    while (w->begin < w->end) {
        struct rectangle piece = piece_of(w, cols);

        while (w->range < w->n_ranges) {
            struct parameter_range range =
                program_parameter_range(w->program, w->parameter, w->tp_rank, w->range++);

            if (p->split.along == SPREAD_SAME)
                range.n = rows;
            *rectangle = by_cols ? cut_cols(piece, cols, range) : cut_rows(piece, cols, range);
            if (rectangle->rows > 0 && rectangle->cols > 0)
                return 1;
        }
        w->begin += piece.rows * piece.cols;
        w->range = 0;
    }
    return 0;
}
