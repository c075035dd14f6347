/*
 * expert_linear_test.c - the products of experts against the reference, and each expert's against
 * the product of its rows alone, bit for bit: on the CPU linear's; on a GPU, where linear is a
 * vendor's, that of a single expert; and whatever other rows there are
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/op_case.h"
#include "support/test_device.h"

enum { LISTED = 6 };

/* Rows of experts, some of which have none (as those beyond the list), and their products' extents;
 * gap: columns behind each row. */
static const struct size {
    int m;
    int rows[LISTED];
    int64_t n, k;
    int gap;
} sizes[] = {
    { 1, { 1 }, 1, 1, 3 },
    { 3, { 0, 5, 0 }, 7, 33, 3 },
    { 4, { 17, 0, 1, 40 }, 50, 20, 3 },
    { 6, { 3, 130, 2, 0, 9, 8 }, 60, 49, 3 },
    { 2, { 0, 140 }, 136, 8, 8 },   /* from here on rows are of 16 bytes */
    { 3, { 5, 0, 67 }, 8, 328, 8 }, /* k: several stages around */
    { 6, { 0, 1, 129, 0, 70, 1 }, 72, 72, 16 },
};

#define COUNT(x) (int)(sizeof(x) / sizeof *(x))
#define N_SIZES COUNT(sizes)

/* So many experts that a GPU takes wide tiles: of forward, dx and dw. */
static const struct size wide_sizes[] = {
    { 130, { 0, 3, 129, 0, 0, 2 }, 488, 8, 8 },
    { 130, { 0, 3, 129, 0, 0, 2 }, 8, 488, 8 },
    { 130, { 0, 3, 0, 0, 0, 2 }, 8, 488, 8 },
};

static int rows_of(const struct size *s, int e)
{
    return e < LISTED ? s->rows[e] : 0;
}

static int64_t n_rows(const struct size *s)
{
    int64_t n = 0;

    for (int e = 0; e < s->m; e++)
        n += rows_of(s, e);
    return n;
}

static struct op_case *products(enum op_kind kind, const struct size *s, enum dtype act)
{
    struct op_case *c = op_case_create(kind, &(struct op_attributes){ 0 });
    int is_dw = kind == OP_EXPERT_LINEAR_DW, ends = is_dw ? 2 : 1, end = 0;

    c->gap = s->gap;
    op_case_input(c, 0, n_rows(s), kind == OP_EXPERT_LINEAR ? s->k : s->n, act, 1);
    op_case_input(c, ends, 1, s->m, DTYPE_I32, 0);
    if (is_dw)
        op_case_input(c, 1, n_rows(s), s->k, act, 1);
    else
        op_case_input(c, 2, s->m * s->n, s->k, act, 1);
    if (is_dw)
        op_case_output(c, 0, s->m * s->n, s->k, DTYPE_F32);
    else
        op_case_output(c, 0, n_rows(s), kind == OP_EXPERT_LINEAR ? s->n : s->k, act);
    for (int e = 0; e < s->m; e++)
        tensor_set(&c->op.in[ends], 0, e, end += rows_of(s, e));
    return c;
}

static const enum op_kind kinds[] = { OP_EXPERT_LINEAR, OP_EXPERT_LINEAR_DX, OP_EXPERT_LINEAR_DW };

static void check_size(enum op_kind kind, const struct size *s)
{
    for (int i_act = 0; i_act < N_ACTS; i_act++) {
        struct op_case *c = products(kind, s, act_at(i_act));

        op_case_check(c, 3e-6);
        op_case_destroy(c);
    }
}

static void test_products(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++)
        for (int s = 0; s < N_SIZES; s++)
            check_size(kinds[kind], &sizes[s]);
}

static void test_wide_tiles(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++)
        check_size(kinds[kind], &wide_sizes[kind]);
}

/* The same bits wherever rows begin. */
static void test_alignment_does_not_matter(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++)
        for (int i_act = 0; i_act < N_ACTS; i_act++) {
            struct size s = sizes[N_SIZES - 1];
            struct op_case *wide = products(kinds[kind], &s, act_at(i_act)), *odd;
            const struct tensor *out = &wide->op.out[0];

            s.gap = 3;
            odd = products(kinds[kind], &s, act_at(i_act));
            op_case_run(wide, 2, RUN_FIRST);
            op_case_run(odd, 2, RUN_FIRST);
            for (int64_t row = 0; row < out->rows; row++)
                for (int64_t col = 0; col < out->cols; col++)
                    assert_true(tensor_get(out, row, col) == tensor_get(&odd->op.out[0], row, col));
            op_case_destroy(wide);
            op_case_destroy(odd);
        }
}

/* One group of experts after the other writes what all at once do, and no other rows. */
static void check_groups(enum op_kind kind, const struct size *s, enum dtype act)
{
    struct op_case *all = products(kind, s, act), *some = products(kind, s, act);
    int n = (s->m + 1) / 2;

    op_case_run(all, 2, RUN_FIRST);
    for (int first = 0; first < s->m; first += n) {
        some->op.attributes.first = first;
        some->op.attributes.experts = n < s->m - first ? n : s->m - first;
        op_case_run(some, 2, first ? RUN_AGAIN : RUN_FIRST);
        int64_t end = (int64_t)tensor_get(&some->op.in[EXPERT_LINEAR_ENDS], 0, n - 1);
        for (int64_t row = end; !first && row < n_rows(s); row++)
            assert_true(isnan(tensor_get(&some->op.out[0], row, 0)));
    }
    op_case_same_outputs(all, some, "groups of experts");
    op_case_destroy(all);
    op_case_destroy(some);
}

static void test_groups_of_experts(void **state)
{
    (void)state;
    for (int i_act = 0; i_act < N_ACTS; i_act++)
        for (int s = 0; s < N_SIZES; s++) {
            check_groups(OP_EXPERT_LINEAR, &sizes[s], act_at(i_act));
            check_groups(OP_EXPERT_LINEAR_DX, &sizes[s], act_at(i_act));
        }
}

static void copy_rows(const struct tensor *to, const struct tensor *from, int64_t row)
{
    for (int64_t i = 0; i < to->rows; i++)
        for (int64_t col = 0; col < to->cols; col++)
            tensor_set(to, i, col, tensor_get(from, row + i, col));
}

/* Expert e's rows, from `begin` on, as a product of their own; what the op has put out before is
 * added to. */
static struct op_case *product_of(const struct op_case *all, const struct size *s, int e, int begin)
{
    const struct tensor *in = all->op.in, *out = &all->op.out[0];
    int is_dw = all->op.kind == OP_EXPERT_LINEAR_DW, is_dx = all->op.kind == OP_EXPERT_LINEAR_DX;
    enum op_kind linear = is_dw ? OP_LINEAR_DW : is_dx ? OP_LINEAR_DX : OP_LINEAR;
    int alone = test_device_is_cuda(), other = is_dw || !alone ? 1 : 2;
    struct op_case *c = op_case_create(alone ? all->op.kind : linear, &(struct op_attributes){ 0 });

    c->gap = s->gap;
    op_case_input(c, 0, rows_of(s, e), in[0].cols, in[0].dtype, 0);
    copy_rows(&c->op.in[0], &in[0], begin);
    op_case_input(c, other, is_dw ? rows_of(s, e) : s->n, s->k, in[0].dtype, 0);
    copy_rows(&c->op.in[other], &in[is_dw ? 1 : 2], is_dw ? begin : e * s->n);
    if (alone) {
        op_case_input(c, 3 - other, 1, 1, DTYPE_I32, 0);
        tensor_set(&c->op.in[3 - other], 0, 0, rows_of(s, e));
    }
    op_case_output(c, 0, is_dw ? s->n : rows_of(s, e), out->cols, out->dtype);
    copy_rows(&c->op.out[0], out, is_dw ? e * s->n : begin);
    return c;
}

/* Also on top of what is there; and where there are no rows nothing changes. */
static void check_plain(enum op_kind kind, const struct size *s, enum dtype act)
{
    struct op_case *all = products(kind, s, act), **each;
    int is_dw = kind == OP_EXPERT_LINEAR_DW, begin = 0;

    each = calloc((size_t)s->m, sizeof *each);
    assert_non_null(each);
    for (int64_t i = 0; is_dw && i < all->op.out[0].rows; i++)
        for (int64_t col = 0; col < s->k; col++)
            tensor_set(&all->op.out[0], i, col, 0.3 * (double)(i - col));
    for (int e = 0; e < s->m; begin += rows_of(s, e++))
        if (rows_of(s, e))
            each[e] = product_of(all, s, e, begin);
    op_case_run(all, 2, RUN_AGAIN);
    begin = 0;
    for (int e = 0; e < s->m; begin += rows_of(s, e++)) {
        int64_t row = is_dw ? e * s->n : begin;

        if (each[e])
            op_case_run(each[e], 3, RUN_AGAIN);
        for (int64_t i = 0; i < (is_dw ? s->n : rows_of(s, e)); i++)
            for (int64_t col = 0; col < all->op.out[0].cols; col++) {
                double got = tensor_get(&all->op.out[0], row + i, col);

                assert_true(got == (each[e] ? tensor_get(&each[e]->op.out[0], i, col)
                                            : (double)(float)(0.3 * (double)(row + i - col))));
            }
        if (each[e])
            op_case_destroy(each[e]);
    }
    free(each);
    op_case_destroy(all);
}

/* On a GPU also what wide tiles make is what narrow ones do. */
static void test_is_the_plain_product(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++)
        for (int i_act = 0; i_act < N_ACTS; i_act++) {
            check_plain(kinds[kind], &sizes[3], act_at(i_act));
            check_plain(kinds[kind], &wide_sizes[kind], act_at(i_act));
        }
}

/* ---- the rows of others ---- */

enum { OWN_ROWS = 5 };

/* Rows of the expert before; of this one, ahead of its own and behind; of the expert after; and
 * rows that no expert has. */
static const struct neighbours {
    int before, ahead, behind, after, left_over;
} neighbours[] = {
    { 1, 0, 0, 0, 0 },
    { 0, 1, 0, 0, 1 },
    { 3, 2, 30, 7, 9 },
    { 130, 123, 40, 5, 100 },
};

/* So many that a product is cut along k, too, where it is long. */
static const struct neighbours many = { 3, 1090, 20, 6, 2 };

static void fill_rows(const struct tensor *t, int64_t row, int64_t n, uint64_t place)
{
    struct tensor rows = *t;

    rows.data = (char *)t->data + (size_t)(row * t->stride) * dtype_bytes(t->dtype);
    rows.rows = n;
    op_case_fill(&rows, place, 1);
}

/* The product of OWN_ROWS rows, the same in all cases, as the second of three experts'. What no
 * expert has is no number. */
static struct op_case *product_among(enum op_kind kind, enum dtype act, const struct size *s,
                                     const struct neighbours *w)
{
    const int rows[LISTED] = { w->before, w->ahead + OWN_ROWS + w->behind, w->after };
    struct size all = { 3, { rows[0], rows[1], rows[2] + w->left_over }, s->n, s->k, s->gap };
    struct op_case *c = products(kind, &all, act);
    int is_dw = kind == OP_EXPERT_LINEAR_DW;

    c->leaves = 1;
    tensor_set(&c->op.in[is_dw ? 2 : 1], 0, 2, rows[0] + rows[1] + rows[2]);
    for (int i = 0; i < 1 + is_dw; i++) {
        const struct tensor *in = &c->op.in[i];

        for (int64_t row = in->rows - w->left_over; row < in->rows; row++)
            for (int64_t col = 0; col < in->cols; col++)
                tensor_set(in, row, col, (double)NAN);
        fill_rows(in, rows[0] + w->ahead, OWN_ROWS, 900 + (uint64_t)i);
    }
    if (!is_dw)
        op_case_fill(&c->op.in[2], 902, 1);
    return c;
}

static void left_over_rows_are_as_they_were(const struct tensor *y, int64_t n)
{
    for (int64_t row = y->rows - n; row < y->rows; row++)
        for (int64_t col = 0; col < y->cols; col++)
            assert_true(isnan(tensor_get(y, row, col)));
}

static void check_among(enum op_kind kind, enum dtype act, const struct size *s,
                        const struct neighbours *w)
{
    static const struct neighbours nobody;
    struct op_case *alone = product_among(kind, act, s, &nobody);
    struct op_case *among = product_among(kind, act, s, w);
    int is_dw = kind == OP_EXPERT_LINEAR_DW;
    int64_t n = is_dw ? s->n : OWN_ROWS, row = is_dw ? s->n : 0;
    int64_t place = is_dw ? s->n : w->before + w->ahead;
    const struct tensor *out = &among->op.out[0];

    op_case_run(alone, 1, RUN_FIRST);
    op_case_run(among, 3, RUN_FIRST);
    for (int64_t i = 0; i < n; i++)
        for (int64_t col = 0; col < out->cols; col++)
            assert_true(tensor_get(out, place + i, col) ==
                        tensor_get(&alone->op.out[0], row + i, col));
    if (!is_dw)
        left_over_rows_are_as_they_were(out, w->left_over);
    op_case_destroy(alone);
    op_case_destroy(among);
}

/*
 * A row of y or dx has the same bits whichever rows lie beside it, of its expert or of others, and
 * so has an expert's dw whatever others have: as experts are divided among more ranks, or fewer,
 * their rows are others. Rows behind the last expert's are not read, and not written.
 */
static void test_other_rows_do_not_matter(void **state)
{
    static const struct size widths[] = { { .n = 7, .k = 33, .gap = 3 },
                                          { .n = 24, .k = 72, .gap = 8 },
                                          { .n = 8, .k = 1100, .gap = 8 },
                                          { .n = 1100, .k = 8, .gap = 8 } };

    (void)state;
    for (int kind = 0; kind < 3; kind++)
        for (int i_act = 0; i_act < N_ACTS; i_act++)
            for (int i = 0; i < (test_device_is_cuda() ? 2 : COUNT(widths)); i++) {
                for (int w = 0; w < COUNT(neighbours); w++) {
                    struct neighbours others = neighbours[w];

                    if (kinds[kind] == OP_EXPERT_LINEAR_DW)
                        others.ahead = others.behind = 0;
                    check_among(kinds[kind], act_at(i_act), &widths[i], &others);
                }
                if (kinds[kind] != OP_EXPERT_LINEAR_DW && !test_device_is_cuda())
                    check_among(kinds[kind], act_at(i_act), &widths[i], &many);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_wide_tiles),
        cmocka_unit_test(test_groups_of_experts),
        cmocka_unit_test(test_alignment_does_not_matter),
        cmocka_unit_test(test_is_the_plain_product),
        cmocka_unit_test(test_other_rows_do_not_matter),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
