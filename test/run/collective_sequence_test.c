/*
 * collective_sequence_test.c - exchanges of rows for heads, and of parts of sequences, over threads
 * as ranks
 *
 * Each is held, element by element, against its definition in ops.h. Whatever lies between rows
 * stays as it is, and what is exchanged both ways are duals: <u, A x> = <A' u, x>.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <math.h>

#include <cmocka.h>

#include "support/collective_play.h"

#define COUNT(x) (int)(sizeof(x) / sizeof *(x))

static const enum dtype dtypes[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F64 };

static struct tensor strided(int64_t rows, int64_t cols, int64_t padding, enum dtype dtype)
{
    return (struct tensor){ NULL, rows, cols, cols + padding, dtype };
}

static double element(const struct tensor *t, const unsigned char *data, int64_t row, int64_t col)
{
    return play_get(t->dtype, data, row * t->stride + col);
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

static void expect_duals(const struct collective_play *p, const struct collective_play *q)
{
    double room = p->shape.in[0].dtype == DTYPE_BF16 ? 0x1p-7 : 0x1p-22, one, other;
    double a = product(p, q, &one), b = product(q, p, &other);

    if (!(fabs(a - b) <= room * fmax(one, other)))
        fail_msg("%.12g and %.12g: no duals", a, b);
}

/* ---- rows and heads ---- */

enum { HEAD_DIM = 3, PART = 4 };

static const struct {
    int n, h, g;
} heads[] = {
    { 1, 4, 2 }, { 2, 4, 2 }, { 2, 4, 4 }, { 2, 4, 1 }, { 2, 2, 0 }, { 3, 6, 3 },  { 3, 6, 1 },
    { 3, 3, 0 }, { 4, 8, 2 }, { 4, 4, 1 }, { 4, 8, 8 }, { 4, 8, 0 }, { 6, 12, 2 },
};

static int64_t kv_columns(int i)
{
    return heads[i].g == 0 ? 0 : (heads[i].g < heads[i].n ? 1 : heads[i].g / heads[i].n) * HEAD_DIM;
}

/* padding: columns between rows, of both operands. */
static struct collective_play make_exchange(enum op_kind kind, int i, int sequences,
                                            enum dtype dtype, int64_t padding)
{
    int n = heads[i].n, h = heads[i].h, g = heads[i].g, is_back = kind == OP_HEADS_TO_ROWS;
    struct tensor x = strided(sequences * PART, (h + 2 * g) * HEAD_DIM, padding, dtype);
    struct tensor y =
        strided(n * sequences * PART, h / n * HEAD_DIM + 2 * kv_columns(i), 2 * padding, dtype);
    struct collective_play p = play_make(kind, n, is_back ? y : x, is_back ? x : y);

    p.shape.attributes.n_heads = h;
    p.shape.attributes.n_kv_heads = g;
    p.shape.attributes.head_dim = HEAD_DIM;
    p.shape.attributes.seq_len = PART;
    return p;
}

/* The column of all heads that is column `own` of a rank's. */
static int64_t column_of_all(int i, int rank, int64_t own)
{
    int n = heads[i].n, h = heads[i].h, g = heads[i].g;
    int64_t q = h / n * HEAD_DIM, kv = kv_columns(i);

    if (own < q)
        return rank * q + own;
    int64_t first = (g < n ? rank / (n / g) : rank * (g / n)) * HEAD_DIM;
    if (own < q + kv)
        return h * HEAD_DIM + first + own - q;
    return (h + g) * HEAD_DIM + first + own - q - kv;
}

/* The row of y where rank's row t of x is. */
static int64_t row_of_all(int n, int rank, int64_t t)
{
    return (t / PART * n + rank) * PART + t % PART;
}

static void check_rows_to_heads(const struct collective_play *p, int i)
{
    const struct tensor *x = &p->shape.in[0], *y = &p->shape.out[0];

    for (int r = 0; r < p->size; r++)
        for (int from = 0; from < p->size; from++)
            for (int64_t t = 0; t < x->rows; t++)
                for (int64_t c = 0; c < y->cols; c++)
                    play_expect(p, r, row_of_all(p->size, from, t) * y->stride + c,
                                element(x, p->before[from], t, column_of_all(i, r, c)));
    play_expect_gaps(p);
}

/* The sum over the ranks, in their order, that have the column. */
static double sum_of_column(const struct collective_play *p, int i, int64_t row, int64_t col)
{
    const struct tensor *y = &p->shape.in[0];
    double terms[PLAY_RANKS_MAX];
    int n_terms = 0;

    for (int r = 0; r < p->size; r++)
        for (int64_t c = 0; c < y->cols; c++)
            if (column_of_all(i, r, c) == col)
                terms[n_terms++] = element(y, p->before[r], row, c);
    assert_true(n_terms > 0);
    return play_tree(y->dtype, terms, n_terms);
}

static void check_heads_to_rows(const struct collective_play *p, int i)
{
    const struct tensor *x = &p->shape.out[0];
    int64_t first = p->shape.attributes.first;

    for (int r = 0; r < p->size; r++)
        for (int64_t t = 0; t < x->rows; t++)
            for (int64_t c = 0; c < x->cols; c++)
                play_expect(p, r, t * x->stride + c,
                            sum_of_column(p, i, row_of_all(p->size, r, first + t), c));
    play_expect_gaps(p);
}

static void check_exchange(int i, int sequences, enum dtype dtype, int64_t padding)
{
    struct collective_play to = make_exchange(OP_ROWS_TO_HEADS, i, sequences, dtype, padding);
    struct collective_play back = make_exchange(OP_HEADS_TO_ROWS, i, sequences, dtype, padding);

    play_run(&to);
    check_rows_to_heads(&to, i);
    play_run(&back);
    check_heads_to_rows(&back, i);
    expect_duals(&to, &back);
    play_release(&to);
    play_release(&back);
}

static void rows_and_heads(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(heads); i++)
        for (int sequences = 1; sequences <= 3; sequences += 2)
            for (int64_t padding = 0; padding <= 3; padding += 3)
                for (int d = 0; d < 2; d++)
                    check_exchange(i, sequences, dtypes[d], padding);
}

/* ---- whole sequences ---- */

enum { COLS = 5 };

static struct collective_play make_sequence(enum op_kind kind, int size, int sequences,
                                            enum dtype dtype, int64_t padding)
{
    struct tensor part = strided(sequences * PART, COLS, padding, dtype);
    struct tensor whole = strided(size * sequences * PART, COLS, padding / 2, dtype);
    int is_back = kind == OP_SCATTER_SEQUENCE;
    struct collective_play p =
        play_make(kind, size, is_back ? whole : part, is_back ? part : whole);

    p.shape.attributes.seq_len = PART;
    return p;
}

/* Of the sequences' rows, where rank's row t is. */
static int64_t row_of_whole(const struct collective_play *p, int rank, int64_t t)
{
    int64_t s = t / PART, row = t % PART;

    if (!p->shape.attributes.zigzag)
        return (s * p->size + rank) * PART + row;
    int64_t chunk = row < PART / 2 ? rank : 2 * p->size - 1 - rank;
    return s * p->size * PART + chunk * (PART / 2) + row % (PART / 2);
}

static void check_gathered(const struct collective_play *p)
{
    const struct tensor *part = &p->shape.in[0], *whole = &p->shape.out[0];

    for (int r = 0; r < p->size; r++)
        for (int from = 0; from < p->size; from++)
            for (int64_t t = 0; t < part->rows; t++)
                for (int64_t c = 0; c < COLS; c++)
                    play_expect(p, r, row_of_whole(p, from, t) * whole->stride + c,
                                element(part, p->before[from], t, c));
    play_expect_gaps(p);
}

static void check_scattered(const struct collective_play *p)
{
    const struct tensor *whole = &p->shape.in[0], *part = &p->shape.out[0];

    for (int r = 0; r < p->size; r++)
        for (int64_t t = 0; t < part->rows; t++)
            for (int64_t c = 0; c < COLS; c++)
                play_expect(p, r, t * part->stride + c,
                            play_sum_at(p, 0, p->size, row_of_whole(p, r, t) * whole->stride + c));
    play_expect_gaps(p);
}

static void check_sequence(int size, int sequences, int zigzag, enum dtype dtype, int64_t padding)
{
    struct collective_play to = make_sequence(OP_GATHER_SEQUENCE, size, sequences, dtype, padding);
    struct collective_play back =
        make_sequence(OP_SCATTER_SEQUENCE, size, sequences, dtype, padding);

    to.shape.attributes.zigzag = back.shape.attributes.zigzag = zigzag;
    play_run(&to);
    check_gathered(&to);
    play_run(&back);
    check_scattered(&back);
    expect_duals(&to, &back);
    play_release(&to);
    play_release(&back);
}

/* padding: none, of the part alone, of both. */
static void whole_sequences(void **state)
{
    static const int sizes[] = { 1, 2, 3, 4 };

    (void)state;
    for (int i = 0; i < COUNT(sizes); i++)
        for (int sequences = 1; sequences <= 3; sequences += 2)
            for (int zigzag = 0; zigzag < 2; zigzag++)
                for (int64_t padding = 0; padding < 3; padding++)
                    for (int d = 0; d < COUNT(dtypes); d++)
                        check_sequence(sizes[i], sequences, zigzag, dtypes[d], padding);
}

/* ---- slices of their rows ---- */

/* Of all rows, those that a gather of a slice has not written are as they were. */
static void check_slice_gathered(const struct collective_play *p, int64_t first)
{
    const struct tensor *part = &p->shape.in[0], *whole = &p->shape.out[0];
    int64_t n_rows = p->shape.attributes.part_rows;

    for (int r = 0; r < p->size; r++)
        for (int from = 0; from < p->size; from++)
            for (int64_t t = 0; t < n_rows; t++)
                for (int64_t c = 0; c < COLS; c++) {
                    int64_t at = row_of_whole(p, from, t) * whole->stride + c;

                    if (t < first || t >= first + part->rows)
                        assert_true(isnan(play_get(whole->dtype, p->out[r], at)));
                    else
                        play_expect(p, r, at, element(part, p->before[from], t - first, c));
                }
}

static void check_slice_scattered(const struct collective_play *p, int64_t first)
{
    const struct tensor *whole = &p->shape.in[0], *part = &p->shape.out[0];

    for (int r = 0; r < p->size; r++)
        for (int64_t t = 0; t < part->rows; t++)
            for (int64_t c = 0; c < COLS; c++)
                play_expect(
                    p, r, t * part->stride + c,
                    play_sum_at(p, 0, p->size, row_of_whole(p, r, first + t) * whole->stride + c));
    play_expect_gaps(p);
}

/* Staged, its rows alone are copied: once from the device and once to it. */
static void check_slice_staged(const struct collective_play *p, bool is_back)
{
    const struct tensor *part = is_back ? &p->shape.out[0] : &p->shape.in[0];
    const struct tensor *whole = is_back ? &p->shape.in[0] : &p->shape.out[0];
    size_t row = (size_t)part->cols * sizeof(float);
    size_t gap = (size_t)(part->stride - part->cols) * sizeof(float);
    size_t part_bytes = (size_t)part->rows * row + (size_t)(part->rows - 1) * gap;
    size_t rows_bytes = (size_t)(whole->rows * whole->cols) * sizeof(float);

    for (int r = 0; r < p->size; r++)
        assert_int_equal(p->n_staged[r], rows_bytes + part_bytes * (is_back ? 2 : 1));
}

static void check_slice(int size, int sequences, int zigzag, int64_t first, int64_t n_rows,
                        int is_staged)
{
    for (int is_back = 0; is_back < 2; is_back++) {
        enum op_kind kind = is_back ? OP_SCATTER_SEQUENCE : OP_GATHER_SEQUENCE;
        struct collective_play p = make_sequence(kind, size, sequences, DTYPE_F32, 0);
        struct tensor *part = is_back ? &p.shape.out[0] : &p.shape.in[0];
        struct tensor *whole = is_back ? &p.shape.in[0] : &p.shape.out[0];

        p.shape.attributes.zigzag = zigzag;
        p.shape.attributes.part_rows = part->rows;
        p.shape.attributes.first = first;
        *part = strided(n_rows, COLS, 3, DTYPE_F32);
        whole->rows = size * n_rows;
        p.is_staged = is_staged;
        play_run(&p);
        if (is_back)
            check_slice_scattered(&p, first);
        else
            check_slice_gathered(&p, first);
        if (is_staged)
            check_slice_staged(&p, is_back);
        play_release(&p);
    }
}

/* From every row on, of every length: within a chunk, over the edges of chunks and sequences. */
static void slices_of_parts(void **state)
{
    (void)state;
    for (int size = 1; size <= 3; size++)
        for (int sequences = 1; sequences <= 3; sequences += 2)
            for (int zigzag = 0; zigzag < 2; zigzag++)
                for (int64_t first = 0; first < sequences * PART; first++)
                    for (int64_t n = 1; first + n <= sequences * PART; n += 1 + n / 4)
                        check_slice(size, sequences, zigzag, first, n, (int)((first + n) % 2));
}

/* Of all rows, those of other slices are as they were. */
static void check_slice_of_heads(const struct collective_play *p, int i)
{
    const struct tensor *x = &p->shape.in[0], *y = &p->shape.out[0];
    int64_t n_rows = p->shape.attributes.part_rows, first = p->shape.attributes.first;

    for (int r = 0; r < p->size; r++)
        for (int from = 0; from < p->size; from++)
            for (int64_t t = 0; t < n_rows; t++)
                for (int64_t c = 0; c < y->cols; c++) {
                    int64_t at = row_of_all(p->size, from, t) * y->stride + c;

                    if (t < first || t >= first + x->rows)
                        assert_true(isnan(play_get(y->dtype, p->out[r], at)));
                    else
                        play_expect(p, r, at,
                                    element(x, p->before[from], t - first, column_of_all(i, r, c)));
                }
}

static void check_exchange_slice(int i, int sequences, int64_t first, int64_t n_rows, int is_staged)
{
    for (int is_back = 0; is_back < 2; is_back++) {
        enum op_kind kind = is_back ? OP_HEADS_TO_ROWS : OP_ROWS_TO_HEADS;
        struct collective_play p = make_exchange(kind, i, sequences, DTYPE_F32, 0);
        struct tensor *x = is_back ? &p.shape.out[0] : &p.shape.in[0];
        struct tensor *y = is_back ? &p.shape.in[0] : &p.shape.out[0];

        p.shape.attributes.part_rows = x->rows;
        p.shape.attributes.first = first;
        *x = strided(n_rows, x->cols, 3, DTYPE_F32);
        y->rows = heads[i].n * n_rows;
        p.is_staged = is_staged;
        play_run(&p);
        if (is_back)
            check_heads_to_rows(&p, i);
        else
            check_slice_of_heads(&p, i);
        if (is_staged)
            check_slice_staged(&p, is_back);
        play_release(&p);
    }
}

/* Within a rank's part of a sequence, over the edges of sequences. */
static void slices_of_heads(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(heads); i++)
        for (int sequences = 1; sequences <= 3; sequences += 2)
            for (int64_t first = 0; first < sequences * PART; first += 1 + first / 3)
                for (int64_t n = 1; first + n <= sequences * PART; n += 1 + n / 3)
                    check_exchange_slice(i, sequences, first, n, (int)((first + n) % 2));
}

/* ---- a neighbour's ---- */

static void check_rotation(int size, int peer, enum dtype dtype, struct tensor x, struct tensor y)
{
    struct collective_play p = play_make(OP_ROTATE, size, x, y);

    p.shape.in[0].dtype = p.shape.out[0].dtype = dtype;
    p.shape.attributes.peer = peer;
    play_run(&p);
    for (int r = 0; r < size; r++)
        for (int64_t t = 0; t < x.rows; t++)
            for (int64_t c = 0; c < x.cols; c++)
                play_expect(&p, r, t * y.stride + c,
                            element(&p.shape.in[0], p.before[(r + peer + size) % size], t, c));
    play_expect_gaps(&p);
    play_release(&p);
}

/* Columns between the rows of neither, either, or both. */
static void rotations(void **state)
{
    (void)state;
    for (int size = 1; size <= 4; size++)
        for (int peer = -1; peer <= 1; peer += 2)
            for (int d = 0; d < COUNT(dtypes); d++)
                for (int i = 0; i < 4; i++)
                    check_rotation(size, peer, dtypes[d],
                                   strided(PART, COLS, i & 1 ? 3 : 0, dtypes[d]),
                                   strided(PART, COLS, i & 2 ? 2 : 0, dtypes[d]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_and_heads),  cmocka_unit_test(whole_sequences),
        cmocka_unit_test(slices_of_parts), cmocka_unit_test(slices_of_heads),
        cmocka_unit_test(rotations),
    };

    return cmocka_run_group_tests(tests, play_fill_numbers, NULL);
}
