/*
 * cross_entropy_test.c - logit_stats and cross_entropy over parts of a vocabulary, against the
 * reference and against the head that has it whole
 *
 * The head's x is the identity, so its logits are w' to the bit and its dw the logits' gradient.
 * What it shares with cross_entropy are the exponentials; sums differ by their roundings.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "support/op_case.h"

/* Vocabularies that parts do not divide; the second leaves its fourth part none, the last but one
 * crosses two blocks of the sum. The last has rows without gaps and parts of whole lines. */
static const struct form {
    int tokens, vocab;
} forms[] = { { 1, 1 }, { 5, 9 }, { 7, 37 }, { 12, 64 }, { 6, 2501 }, { 2, 10240 } };

enum { MOST_PARTS = 4 };

#define N_FORMS (int)(sizeof forms / sizeof *forms)
#define SCALE 0.3125
#define PADDING 1e30 /* a logit there would take all */

static int is_dense(const struct form *f)
{
    return f->vocab % 1024 == 0;
}

static int target_of(const struct form *f, int t)
{
    return t % 3 == 1 ? -1 : t * 7919 % f->vocab;
}

/* Fits bf16, and fp16, so that a head in them has the same. */
static double logit_of(int t, int64_t v)
{
    return (double)bf16_to_float(
        bf16_from_float((float)(6 * sin(0.7 * (double)v + 1.3 * t) + (double)(v * 31 % 17) / 4)));
}

static int64_t part_cols(const struct form *f, int n_parts)
{
    return ceil_div(f->vocab, n_parts);
}

static void fill_logits(const struct op_case *c, const struct form *f, int64_t begin)
{
    const struct tensor *logits = &c->op.in[0];

    for (int t = 0; t < f->tokens; t++)
        for (int64_t j = 0; j < logits->cols; j++)
            tensor_set(logits, t, j, begin + j < f->vocab ? logit_of(t, begin + j) : PADDING);
}

static void fill_targets(const struct op_case *c, int input, const struct form *f)
{
    for (int t = 0; t < f->tokens; t++)
        tensor_set(&c->op.in[input], t, 0, target_of(f, t));
}

static void set_begin(struct op_case *c, int input, int64_t begin)
{
    op_case_input(c, input, 1, 1, DTYPE_I32, 0);
    tensor_set(&c->op.in[input], 0, 0, (double)begin);
}

/* begin is left out where there is one part. */
static struct op_case *stats_case_of(const struct form *f, int part, int n_parts, int dense)
{
    struct op_attributes a = { .vocab_size = f->vocab };
    struct op_case *c = op_case_create(OP_LOGIT_STATS, &a);
    int64_t cols = part_cols(f, n_parts);

    c->dense = dense;
    op_case_input(c, 0, f->tokens, cols, DTYPE_F32, 1);
    op_case_input(c, 1, f->tokens, 1, DTYPE_I32, 0);
    if (n_parts > 1)
        set_begin(c, 2, part * cols);
    op_case_output(c, 0, f->tokens, OPS_N_STATS, DTYPE_F32);
    fill_logits(c, f, part * cols);
    fill_targets(c, 1, f);
    return c;
}

static struct op_case *stats_case(const struct form *f, int part, int n_parts)
{
    return stats_case_of(f, part, n_parts, is_dense(f));
}

/* With the statistics that logit_stats makes of all parts. */
static struct op_case *loss_case_with(const struct form *f, int part, int n_parts, enum dtype act,
                                      double z)
{
    struct op_attributes a = { .vocab_size = f->vocab, .z = z };
    struct op_case *c = op_case_create(OP_CROSS_ENTROPY, &a);
    int64_t cols = part_cols(f, n_parts);

    c->dense = is_dense(f);
    op_case_input(c, 0, f->tokens, cols, DTYPE_F32, 1);
    op_case_input(c, 1, n_parts * f->tokens, OPS_N_STATS, DTYPE_F32, 0);
    op_case_input(c, 2, f->tokens, 1, DTYPE_I32, 0);
    op_case_input(c, 3, 1, 1, DTYPE_F32, 0);
    tensor_set(&c->op.in[3], 0, 0, SCALE);
    if (n_parts > 1)
        set_begin(c, 4, part * cols);
    if (act != N_DTYPES)
        op_case_output(c, 0, f->tokens, cols, act);
    op_case_output(c, 1, 1, 1, DTYPE_F64);
    if (z > 0)
        op_case_output(c, 2, 1, 1, DTYPE_F64);
    fill_logits(c, f, part * cols);
    fill_targets(c, 2, f);
    for (int p = 0; p < n_parts; p++) {
        struct op_case *stats = stats_case(f, p, n_parts);

        op_case_run(stats, 1, RUN_FIRST);
        for (int t = 0; t < f->tokens; t++)
            for (int i = 0; i < OPS_N_STATS; i++)
                tensor_set(&c->op.in[1], p * f->tokens + t, i, tensor_get(&stats->op.out[0], t, i));
        op_case_destroy(stats);
    }
    return c;
}

static struct op_case *loss_case(const struct form *f, int part, int n_parts, enum dtype act)
{
    return loss_case_with(f, part, n_parts, act, 0);
}

static void test_stats(void **state)
{
    (void)state;
    for (int f = 0; f < N_FORMS; f++)
        for (int n = 1; n <= MOST_PARTS; n++)
            for (int part = 0; part < n && part * part_cols(&forms[f], n) < forms[f].vocab;
                 part++) {
                struct op_case *c = stats_case(&forms[f], part, n);

                op_case_check(c, 2e-6);
                op_case_destroy(c);
            }
}

/* Whether rows can be read in whole lines is not to be seen. */
static void test_strides_change_no_bit(void **state)
{
    (void)state;
    for (int f = 0; f < N_FORMS; f++) {
        struct op_case *dense = stats_case_of(&forms[f], 0, 1, 1);
        struct op_case *apart = stats_case_of(&forms[f], 0, 1, 0);

        op_case_run(dense, 1, RUN_FIRST);
        op_case_run(apart, 1, RUN_FIRST);
        for (int t = 0; t < forms[f].tokens; t++)
            for (int i = 0; i < OPS_N_STATS; i++)
                assert_true(tensor_get(&dense->op.out[0], t, i) ==
                            tensor_get(&apart->op.out[0], t, i));
        op_case_destroy(dense);
        op_case_destroy(apart);
    }
}

/* A part of padding alone, and one of impossible tokens, add nothing to the sum. */
static void test_empty_parts(void **state)
{
    struct op_case *padding = stats_case(&forms[1], 3, 4), *none = stats_case(&forms[2], 1, 4);
    struct op_case *parts[] = { padding, none };

    (void)state;
    for (int t = 0; t < forms[2].tokens; t++)
        for (int64_t j = 0; j < none->op.in[0].cols; j++)
            tensor_set(&none->op.in[0], t, j, -INFINITY);
    for (int i = 0; i < 2; i++) {
        const struct tensor *stats = &parts[i]->op.out[0];

        fill_targets(parts[i], 1, &(struct form){ (int)stats->rows, 1 });
        op_case_run(parts[i], 2, RUN_FIRST);
        for (int64_t t = 0; t < stats->rows; t++) {
            assert_true(tensor_get(stats, t, 0) == -INFINITY);
            assert_true(tensor_get(stats, t, 1) == 0);
            assert_true(tensor_get(stats, t, 2) == 0);
        }
        op_case_destroy(parts[i]);
    }
}

static void test_loss(void **state)
{
    (void)state;
    for (int f = 0; f < N_FORMS; f++)
        for (int n = 1; n <= MOST_PARTS; n++)
            for (int i = 0; i <= N_ACTS; i++) {
                struct op_case *c =
                    loss_case(&forms[f], n - 1, n, i < N_ACTS ? act_at(i) : N_DTYPES);
                struct op_case *with_z =
                    loss_case_with(&forms[f], n - 1, n, i < N_ACTS ? act_at(i) : N_DTYPES, 0.03);

                op_case_check(c, 3e-6);
                op_case_check(with_z, 3e-6);
                op_case_destroy(c);
                op_case_destroy(with_z);
            }
}

/* ---- against the head ---- */

static struct op_case *head_case(const struct form *f, enum dtype act)
{
    struct op_attributes a = { .chunk = f->tokens };
    struct op_case *c = op_case_create(OP_HEAD_CROSS_ENTROPY, &a);

    op_case_input(c, 0, f->tokens, f->tokens, act, 0);
    op_case_input(c, 1, f->vocab, f->tokens, act, 0);
    op_case_input(c, 2, f->tokens, 1, DTYPE_I32, 0);
    op_case_input(c, 3, 1, 1, DTYPE_F32, 0);
    op_case_output(c, 0, f->tokens, f->tokens, act);
    op_case_output(c, 1, f->vocab, f->tokens, DTYPE_F32);
    op_case_output(c, 2, 1, 1, DTYPE_F64);
    tensor_set(&c->op.in[3], 0, 0, SCALE);
    fill_targets(c, 2, f);
    for (int t = 0; t < f->tokens; t++) {
        tensor_set(&c->op.in[0], t, t, 1);
        for (int64_t v = 0; v < f->vocab; v++)
            tensor_set(&c->op.in[1], v, t, logit_of(t, v));
    }
    op_case_run(c, 2, RUN_FIRST);
    return c;
}

/* relative: what the sum of a row may differ by. */
static void same_gradient(const struct form *f, const struct op_case *head,
                          const struct op_case *part, int64_t begin, double relative)
{
    const struct tensor *dlogits = &part->op.out[0];

    for (int t = 0; t < f->tokens; t++)
        for (int64_t j = 0; j < dlogits->cols; j++) {
            double got = tensor_get(dlogits, t, j), limit, wanted = 0;

            if (begin + j < f->vocab)
                wanted = tensor_get(&head->op.out[1], begin + j, t);
            limit = relative * (begin + j == target_of(f, t) ? SCALE : fabs(wanted));
            limit += 2 * act_rounding(dlogits->dtype, wanted);
            if (!(fabs(got - wanted) <= limit))
                fail_msg("vocabulary %d from %lld: dlogits[%d, %lld] is %.9g, the head's %.9g",
                         f->vocab, (long long)begin, t, (long long)j, got, wanted);
        }
}

/* All parts have the loss to the same bits, as it is the same on all ranks. */
static void parts_agree(const struct form *f, int n_parts, enum dtype act)
{
    struct op_case *head = head_case(f, act);
    /* One part has the head's own sum, rounded to fp32; several add it in another order. */
    double relative = n_parts == 1 ? 0x1p-22 : 2e-6, wanted = tensor_get(&head->op.out[2], 0, 0);
    double loss = 0;

    for (int part = 0; part < n_parts; part++) {
        struct op_case *c = loss_case(f, part, n_parts, act);
        double got;

        op_case_run(c, 3, RUN_FIRST);
        got = tensor_get(&c->op.out[1], 0, 0);
        assert_true(fabs(got - wanted) <= f->tokens * relative);
        assert_true(part == 0 || got == loss);
        loss = got;
        same_gradient(f, head, c, part * part_cols(f, n_parts), relative);
        op_case_destroy(c);
    }
    op_case_destroy(head);
}

static void test_parts_are_the_head(void **state)
{
    (void)state;
    for (int f = 0; f < N_FORMS; f++)
        for (int n = 1; n <= MOST_PARTS; n++) {
            parts_agree(&forms[f], n, DTYPE_F32);
            parts_agree(&forms[f], n, DTYPE_BF16);
            parts_agree(&forms[f], n, DTYPE_F16);
        }
}

/* ---- edges ---- */

static void test_accumulates_finished_losses(void **state)
{
    struct op_case *c = loss_case(&forms[2], 1, 2, DTYPE_F32);
    struct op_case *alone = loss_case(&forms[2], 0, 2, N_DTYPES);
    double loss;

    (void)state;
    op_case_run(c, 2, RUN_FIRST);
    loss = tensor_get(&c->op.out[1], 0, 0);
    tensor_set(&c->op.out[1], 0, 0, 1234.5);
    op_case_run(c, 3, RUN_AGAIN);
    assert_true(tensor_get(&c->op.out[1], 0, 0) == 1234.5 + loss);
    op_case_run(alone, 1, RUN_FIRST);
    assert_true(tensor_get(&alone->op.out[1], 0, 0) == loss);
    op_case_destroy(c);
    op_case_destroy(alone);
}

/* Logits of +-1e4 in different parts neither overflow nor lose the loss. */
static void test_large_logits(void **state)
{
    static const struct form f = { 1, 2 };
    static const double logits[] = { -1e4, 1e4 };

    (void)state;
    for (int part = 0; part < 2; part++) {
        struct op_case *c = loss_case(&f, part, 2, DTYPE_F32);

        tensor_set(&c->op.in[0], 0, 0, logits[part]);
        for (int p = 0; p < 2; p++) {
            tensor_set(&c->op.in[1], p, 0, logits[p]);
            tensor_set(&c->op.in[1], p, 1, 1);
            tensor_set(&c->op.in[1], p, 2, p == 0 ? logits[0] : 0);
        }
        op_case_run(c, 1, RUN_FIRST);
        assert_true(tensor_get(&c->op.out[1], 0, 0) == 2e4);
        assert_true(tensor_get(&c->op.out[0], 0, 0) == (part ? SCALE : -SCALE));
        op_case_destroy(c);
    }
}

/* Row 0 has a target, row 1 none: a NaN in another rank's part of row 0 is in this rank's loss. */
static void test_nan_reaches_the_loss(void **state)
{
    (void)state;
    for (int row = 0; row < 2; row++)
        for (int column = 0; column < 12; column += 11) {
            struct op_case *stats = stats_case(&forms[2], 1, 3);
            struct op_case *c = loss_case(&forms[2], 0, 3, DTYPE_F32);

            tensor_set(&stats->op.in[0], row, column, (double)NAN);
            op_case_run(stats, 1, RUN_FIRST);
            for (int i = 0; i < OPS_N_STATS; i++)
                tensor_set(&c->op.in[1], forms[2].tokens + row, i,
                           tensor_get(&stats->op.out[0], row, i));
            op_case_run(c, 2, RUN_FIRST);
            assert_int_equal(isnan(tensor_get(&c->op.out[1], 0, 0)) != 0, row == 0);
            for (int64_t j = 0; j < c->op.out[0].cols; j++)
                assert_int_equal(isnan(tensor_get(&c->op.out[0], row, j)) != 0, row == 0);
            op_case_destroy(stats);
            op_case_destroy(c);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stats),
        cmocka_unit_test(test_strides_change_no_bit),
        cmocka_unit_test(test_empty_parts),
        cmocka_unit_test(test_loss),
        cmocka_unit_test(test_parts_are_the_head),
        cmocka_unit_test(test_accumulates_finished_losses),
        cmocka_unit_test(test_large_logits),
        cmocka_unit_test(test_nan_reaches_the_loss),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
