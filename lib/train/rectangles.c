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

int rectangles_of(const struct program *program, int parameter, int tp_rank, int64_t begin,
                  int64_t end, struct rectangle *rectangles)
{
    const struct parameter *p = &program->parameters[parameter];
    struct parameter_range ranges[PARAMETER_MAX_PIECES];
    int n_ranges = program_parameter_ranges(program, parameter, tp_rank, ranges), n = 0;
    int by_cols = p->split.along == SPREAD_COLS && p->n_dims == 2;
    int64_t rows, cols;

    rectangles_part(program, parameter, &rows, &cols);
    if (p->split.along == SPREAD_SAME)
        ranges[0] = (struct parameter_range){ 0, rows, 0 };
    while (begin < end) {
        /* A rectangle of the part: what is left of a row, or as many rows as there are. */
        struct rectangle piece = { .row = begin / cols, .col = begin % cols, .stride = cols };

        piece.rows = piece.col ? 1 : max_i64((end - begin) / cols, 1);
        piece.cols = min_i64(cols - piece.col, end - begin);
        for (int i = 0; i < n_ranges; i++) {
            struct rectangle r =
                by_cols ? cut_cols(piece, cols, ranges[i]) : cut_rows(piece, cols, ranges[i]);

            if (r.rows > 0 && r.cols > 0)
                rectangles[n++] = r;
        }
        begin += piece.rows * piece.cols;
    }
    CHECK(n <= RECTANGLES_MAX);
    return n;
}
