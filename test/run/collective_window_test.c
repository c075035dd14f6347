/*
 * collective_window_test.c - what windows see of neighbours' rows, over threads as ranks
 *
 * Both kinds are held, element by element, against their definition in ops.h, for windows of a row
 * to those of a chunk, and against each other.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/collective_play.h"

#define COUNT(x) (int)(sizeof(x) / sizeof *(x))

enum { COLS = 3 };

static const enum dtype dtypes[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F64 };

struct form {
    int size, sequences, chunk, window;
    int64_t part_padding, seen_padding; /* columns between rows */
    enum dtype dtype;
};

static struct collective_play make(enum op_kind kind, const struct form *f)
{
    struct tensor part = { NULL, (int64_t)f->sequences * 2 * f->chunk, COLS, COLS + f->part_padding,
                           f->dtype };
    struct tensor seen = { NULL, f->sequences * 2 * ops_window_rows(f->chunk, f->window), COLS,
                           COLS + f->seen_padding, f->dtype };
    int is_back = kind == OP_SCATTER_WINDOW;
    struct collective_play p =
        play_make(kind, f->size, is_back ? seen : part, is_back ? part : seen);

    p.shape.attributes.seq_len = 2 * f->chunk;
    p.shape.attributes.window = f->window;
    return p;
}

static int chunk_of(const struct form *f, int rank, int i)
{
    return i ? 2 * f->size - 1 - rank : rank;
}

static int rank_of(const struct form *f, int chunk)
{
    return chunk < f->size ? chunk : 2 * f->size - 1 - chunk;
}

/* Where row `row` of sequence s is on the rank that has it. */
static int64_t row_of_part(const struct form *f, int s, int64_t row)
{
    int chunk = (int)(row / f->chunk);

    return ((int64_t)2 * s + (chunk >= f->size)) * f->chunk + row % f->chunk;
}

/* Where it is in the span of a chunk, on the rank that has the chunk. */
static int64_t row_of_span(const struct form *f, int s, int64_t row, int chunk)
{
    int64_t span = ops_window_rows(f->chunk, f->window);

    return (2 * s + (chunk >= f->size)) * span + row - ops_window_begin(f->chunk, f->window, chunk);
}

static double element(const struct tensor *t, const unsigned char *data, int64_t row, int64_t col)
{
    return play_get(t->dtype, data, row * t->stride + col);
}

static void check_gathered(const struct collective_play *p, const struct form *f)
{
    const struct tensor *part = &p->shape.in[0], *seen = &p->shape.out[0];
    int64_t span = ops_window_rows(f->chunk, f->window);

    for (int r = 0; r < p->size; r++)
        for (int64_t t = 0; t < seen->rows; t++)
            for (int64_t c = 0; c < COLS; c++) {
                int s = (int)(t / (2 * span)), chunk = chunk_of(f, r, t % (2 * span) >= span);
                int64_t row = ops_window_begin(f->chunk, f->window, chunk) + t % span;
                double wanted = 0;

                if (row >= 0 && row > chunk * f->chunk - f->window && row < (chunk + 1) * f->chunk)
                    wanted = element(part, p->before[rank_of(f, (int)(row / f->chunk))],
                                     row_of_part(f, s, row), c);
                play_expect(p, r, t * seen->stride + c, wanted);
            }
    play_expect_gaps(p);
}

static void check_scattered(const struct collective_play *p, const struct form *f)
{
    const struct tensor *seen = &p->shape.in[0], *part = &p->shape.out[0];

    for (int s = 0; s < f->sequences; s++)
        for (int64_t row = 0; row < (int64_t)2 * f->size * f->chunk; row++)
            for (int64_t c = 0; c < COLS; c++) {
                int chunk = (int)(row / f->chunk), next = chunk + 1, r = rank_of(f, chunk);
                double terms[2] = { element(seen, p->before[r], row_of_span(f, s, row, chunk), c) };
                int n = 1;

                if (next < 2 * f->size && row > next * f->chunk - f->window)
                    terms[n++] =
                        element(seen, p->before[rank_of(f, next)], row_of_span(f, s, row, next), c);
                play_expect(p, r, row_of_part(f, s, row) * part->stride + c,
                            play_tree(part->dtype, terms, n));
            }
    play_expect_gaps(p);
}

/* Of what ranks got from p and gave to q, summed; `size` becomes the sum of the absolute values. */
static double product(const struct collective_play *p, const struct collective_play *q,
                      double *size)
{
    const struct tensor *out = &p->shape.out[0], *in = &q->shape.in[0];
    double sum = 0;

    *size = 0;
    for (int r = 0; r < p->size; r++)
        for (int64_t t = 0; t < in->rows; t++)
            for (int64_t c = 0; c < in->cols; c++) {
                double x = element(out, p->out[r], t, c) * element(in, q->before[r], t, c);

                sum += x;
                *size += fabs(x);
            }
    return sum;
}

static void check(const struct form *f)
{
    struct collective_play to = make(OP_GATHER_WINDOW, f), back = make(OP_SCATTER_WINDOW, f);
    double room = f->dtype == DTYPE_BF16 ? 0x1p-7 : 0x1p-22, one, other;

    play_run(&to);
    check_gathered(&to, f);
    play_run(&back);
    check_scattered(&back, f);
    double a = product(&to, &back, &one), b = product(&back, &to, &other);
    if (!(fabs(a - b) <= room * fmax(one, other)))
        fail_msg("%.12g and %.12g: no duals", a, b);
    play_release(&to);
    play_release(&back);
}

static void windows(void **state)
{
    static const struct {
        int chunk, window;
    } cases[] = { { 1, 1 },  { 3, 1 },   { 3, 2 },   { 3, 3 },    { 21, 5 },   { 64, 5 },
                  { 64, 1 }, { 64, 64 }, { 70, 65 }, { 128, 65 }, { 130, 130 } };

    (void)state;
    for (int i = 0; i < COUNT(cases); i++)
        for (int size = 1; size <= 4; size++)
            for (int sequences = 1; sequences <= 3; sequences += 2) {
                int n = i + size + sequences;

                check(&(struct form){ size, sequences, cases[i].chunk, cases[i].window, n % 3,
                                      n % 2, dtypes[n % COUNT(dtypes)] });
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows),
    };

    return cmocka_run_group_tests(tests, play_fill_numbers, NULL);
}
