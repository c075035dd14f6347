/*
 * rectangles.c - elements of a part, as rectangles of the whole
 */
#include "weights/rectangles.h"

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

struct rectangle_walk rectangle_walk(const struct program *program, int parameter,
                                     const struct mesh_place *place, int64_t begin, int64_t end)
{
    return (struct rectangle_walk){
        .program = program, .parameter = parameter, .place = *place, .begin = begin, .end = end
    };
}

/* A rectangle of the part: what is left of a row, or as many rows as there are. */
static struct tensor_rectangle piece_of(const struct rectangle_walk *w, int64_t cols)
{
    int64_t n = w->end - w->begin;
    struct tensor_rectangle piece = { .row = w->begin / cols,
                                      .col = w->begin % cols,
                                      .stride = cols };

    piece.rows = piece.col ? 1 : max_i64(n / cols, 1);
    piece.cols = min_i64(cols - piece.col, n);
    return piece;
}

/* What the ranges have of the part's rectangle; empty where they do not meet. */
static struct tensor_rectangle cut(struct tensor_rectangle r, struct parameter_range rows,
                                   struct parameter_range cols)
{
    int64_t row = max_i64(r.row, rows.local),
            row_end = min_i64(r.row + r.rows, rows.local + rows.n);
    int64_t col = max_i64(r.col, cols.local),
            col_end = min_i64(r.col + r.cols, cols.local + cols.n);

    return (struct tensor_rectangle){ .row = row - rows.local + rows.whole,
                                      .col = col - cols.local + cols.whole,
                                      .rows = row_end - row,
                                      .cols = col_end - col,
                                      .local = row * r.stride + col,
                                      .stride = r.stride };
}

/* Ranges along the rows of rectangles are a vector's columns; it has one column. */
static struct parameter_range range_of(const struct rectangle_walk *w, enum spread along, int i)
{
    int is_vector = w->program->parameters[w->parameter].n_dims == 1;

    if (is_vector && along == SPREAD_COLS)
        return (struct parameter_range){ 0, 1, 0 };
    return program_parameter_range(w->program, w->parameter, is_vector ? SPREAD_COLS : along,
                                   &w->place, i);
}

static int n_ranges(const struct rectangle_walk *w, enum spread along)
{
    int is_vector = w->program->parameters[w->parameter].n_dims == 1;

    if (is_vector && along == SPREAD_COLS)
        return 1;
    return program_parameter_n_ranges(w->program, w->parameter, is_vector ? SPREAD_COLS : along);
}

int rectangle_next(struct rectangle_walk *w, struct tensor_rectangle *rectangle)
{
    int n_rows = n_ranges(w, SPREAD_ROWS), n_cols = n_ranges(w, SPREAD_COLS);
    int64_t rows, cols;

    rectangles_part(w->program, w->parameter, &rows, &cols);
    while (w->begin < w->end) {
        struct tensor_rectangle piece = piece_of(w, cols);

        while (w->next < n_rows * n_cols) {
            int i = w->next++;

            *rectangle = cut(piece, range_of(w, SPREAD_ROWS, i / n_cols),
                             range_of(w, SPREAD_COLS, i % n_cols));
            if (rectangle->rows > 0 && rectangle->cols > 0)
                return 1;
        }
        w->begin += piece.rows * piece.cols;
        w->next = 0;
    }
    return 0;
}

void rectangle_to_slice(const struct tensor_rectangle *rectangle, struct store_slice *slice)
{
    slice->row_begin = rectangle->row;
    slice->row_end = rectangle->row + rectangle->rows;
    slice->col_begin = rectangle->col;
    slice->col_end = rectangle->col + rectangle->cols;
}
