/*
 * Attention whose keys come in parts, one call a part, against attention over all of them: the same
 * bits where parts begin with blocks of keys.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "support/op_case.h"
#include "support/test_device.h"

enum { MAX_PARTS = 8, BLOCK = 64 };

/* Queries of a rank out of n_ranks: rows r and 2 n_ranks - 1 - r of 2 n_ranks chunks; 0: all. */
struct form {
    int n_heads, n_kv_heads, head_dim, value_dim, sequences, seq_len;
    int window, document;
    int rank, n_ranks;
};

/* Part i has keys cuts[i] .. cuts[i + 1] - 1 of each sequence. */
struct cuts {
    int n, at[MAX_PARTS + 1];
    bool are_aligned; /* all are multiples of BLOCK, but for the last */
};

static int n_queries(const struct form *f)
{
    return f->n_ranks ? f->seq_len / f->n_ranks : f->seq_len;
}

/* The position of the i-th query of a sequence. */
static int position_of(const struct form *f, int i)
{
    int run = n_queries(f) / 2;

    if (!f->n_ranks)
        return i;
    return i < run ? f->rank * run + i : (2 * f->n_ranks - 1 - f->rank) * run + i - run;
}

static int first_of(const struct form *f, int position)
{
    int first = f->document ? position / f->document * f->document : 0;

    return f->window ? max_int(first, position - f->window + 1) : first;
}

static struct op_attributes attributes_of(const struct form *f)
{
    return (struct op_attributes){ .n_heads = f->n_heads,
                                   .n_kv_heads = f->n_kv_heads,
                                   .head_dim = f->head_dim,
                                   .seq_len = n_queries(f),
                                   .scale = 1.3 / sqrt(f->head_dim) };
}

/* first and last as rows of the keys from `begin` on, of which there are n. */
static void set_ranges(struct op_case *c, int input, const struct form *f, int begin, int n)
{
    int64_t rows = (int64_t)f->sequences * n_queries(f);

    op_case_input(c, input, rows, 1, DTYPE_I32, 0);
    op_case_input(c, input + 1, rows, 1, DTYPE_I32, 0);
    for (int64_t row = 0; row < rows; row++) {
        int own = position_of(f, (int)(row % n_queries(f)));

        tensor_set(&c->op.in[input], row, 0, max_int(0, min_int(n, first_of(f, own) - begin)));
        tensor_set(&c->op.in[input + 1], row, 0, max_int(-1, min_int(n - 1, own - begin)));
    }
}

/* Attention over all keys, or its gradient, which then has what the forward leaves. */
static struct op_case *whole_case(enum op_kind kind, const struct form *f, enum dtype act)
{
    struct op_attributes a = attributes_of(f);
    struct op_case *c = op_case_create(kind, &a);
    bool is_grad = kind == OP_ATTENTION_GRAD;

    op_case_attention_sizes(c, (int64_t)f->sequences * n_queries(f),
                            (int64_t)f->sequences * f->seq_len, act, f->value_dim);
    set_ranges(c, is_grad ? ATTENTION_GRAD_FIRST : ATTENTION_FIRST, f, 0, f->seq_len);
    if (is_grad)
        op_case_fill_saved(c, whole_case(OP_ATTENTION, f, act));
    return c;
}

static void copy_in(struct op_case *c, int i, const struct tensor *from)
{
    op_case_input(c, i, from->rows, from->cols, from->dtype, 0);
    op_case_copy(&c->op.in[i], from);
}

/* Keys begin .. begin + n - 1 of each sequence, or their gradients. */
static void copy_keys(const struct tensor *to, const struct tensor *whole, const struct form *f,
                      int begin, int n)
{
    for (int64_t row = 0; row < to->rows; row++)
        for (int64_t col = 0; col < to->cols; col++)
            tensor_set(to, row, col,
                       tensor_get(whole, row / n * f->seq_len + begin + row % n, col));
}

static void keys_in(struct op_case *c, int i, const struct tensor *whole, const struct form *f,
                    int begin, int n)
{
    op_case_input(c, i, (int64_t)f->sequences * n, whole->cols, whole->dtype, 0);
    copy_keys(&c->op.in[i], whole, f, begin, n);
}

/* The part's call; before: the output of the one before, or NULL. */
static struct op_case *part_case(const struct op_case *whole, const struct form *f, int begin,
                                 int n, const struct op_case *before)
{
    struct op_case *c = op_case_create(OP_ATTENTION_PART, &whole->op.attributes);
    int64_t rows = whole->op.in[ATTENTION_Q].rows;

    if (before)
        copy_in(c, ATTENTION_PART_STATE, &before->op.out[ATTENTION_PART_NEXT]);
    copy_in(c, ATTENTION_PART_Q, &whole->op.in[ATTENTION_Q]);
    keys_in(c, ATTENTION_PART_K, &whole->op.in[ATTENTION_K], f, begin, n);
    keys_in(c, ATTENTION_PART_V, &whole->op.in[ATTENTION_V], f, begin, n);
    set_ranges(c, ATTENTION_PART_FIRST, f, begin, n);
    op_case_output(c, ATTENTION_PART_NEXT, rows, (int64_t)f->n_heads * (f->value_dim + 2),
                   DTYPE_F32);
    return c;
}

static struct op_case *part_grad_case(const struct op_case *whole, const struct form *f, int begin,
                                      int n, const struct op_case *before, enum dtype dkv)
{
    struct op_case *c = op_case_create(OP_ATTENTION_PART_GRAD, &whole->op.attributes);
    const struct tensor *in = whole->op.in, *dq = &whole->op.out[ATTENTION_GRAD_DQ];

    if (before)
        copy_in(c, ATTENTION_PART_GRAD_SUM, &before->op.out[ATTENTION_PART_GRAD_DQ]);
    copy_in(c, ATTENTION_PART_GRAD_DOUT, &in[ATTENTION_GRAD_DOUT]);
    copy_in(c, ATTENTION_PART_GRAD_Q, &in[ATTENTION_GRAD_Q]);
    keys_in(c, ATTENTION_PART_GRAD_K, &in[ATTENTION_GRAD_K], f, begin, n);
    keys_in(c, ATTENTION_PART_GRAD_V, &in[ATTENTION_GRAD_V], f, begin, n);
    copy_in(c, ATTENTION_PART_GRAD_OUT, &in[ATTENTION_GRAD_OUT]);
    copy_in(c, ATTENTION_PART_GRAD_LSE, &in[ATTENTION_GRAD_LSE]);
    set_ranges(c, ATTENTION_PART_GRAD_FIRST, f, begin, n);
    op_case_output(c, ATTENTION_PART_GRAD_DQ, dq->rows, dq->cols, DTYPE_F32);
    op_case_output(c, ATTENTION_PART_GRAD_DK, (int64_t)f->sequences * n, in[ATTENTION_GRAD_K].cols,
                   dkv);
    op_case_output(c, ATTENTION_PART_GRAD_DV, (int64_t)f->sequences * n, in[ATTENTION_GRAD_V].cols,
                   dkv);
    return c;
}

/* Written over its first input, the first output has the same bits. */
static void check_in_place(struct op_case *c)
{
    struct op_case *over = op_case_create(c->op.kind, &c->op.attributes);
    struct tensor own;

    for (int i = 0; i < OPS_MAX_INPUTS; i++)
        if (tensor_given(&c->op.in[i]))
            copy_in(over, i, &c->op.in[i]);
    for (int i = 0; i < OPS_MAX_OUTPUTS; i++)
        if (tensor_given(&c->op.out[i]))
            op_case_output(over, i, c->op.out[i].rows, c->op.out[i].cols, c->op.out[i].dtype);
    own = over->op.out[OPS_FIRST];
    over->op.out[OPS_FIRST] = over->op.in[OPS_FIRST];
    op_case_run(over, 2, RUN_AGAIN);
    op_case_same_outputs(over, c, "in place");
    over->op.out[OPS_FIRST] = own;
    op_case_destroy(over);
}

/* Rows that see no key of the part have what they had; ranges: number of `first`. */
static void check_kept(const struct op_case *c, int ranges)
{
    const struct tensor *before = &c->op.in[OPS_FIRST], *after = &c->op.out[OPS_FIRST];

    for (int64_t row = 0; row < after->rows; row++)
        if (tensor_get(&c->op.in[ranges], row, 0) > tensor_get(&c->op.in[ranges + 1], row, 0))
            assert_memory_equal((float *)before->data + row * before->stride,
                                (float *)after->data + row * after->stride,
                                (size_t)after->cols * sizeof(float));
}

static void near(const struct tensor *a, const struct tensor *b, double tolerance)
{
    double top = 0;

    for (int64_t row = 0; row < a->rows; row++)
        for (int64_t col = 0; col < a->cols; col++)
            if (isfinite(tensor_get(b, row, col)))
                top = fmax(top, fabs(tensor_get(b, row, col)));
    for (int64_t row = 0; row < a->rows; row++)
        for (int64_t col = 0; col < a->cols; col++) {
            double x = tensor_get(a, row, col), y = tensor_get(b, row, col);

            if (x != y && !(fabs(x - y) <= tolerance * top + 2 * act_rounding(a->dtype, y)))
                fail_msg("row %lld, column %lld: %g, wanted %g", (long long)row, (long long)col, x,
                         y);
        }
}

static void same_or_near(const struct tensor *a, const struct tensor *b, bool is_same,
                         double tolerance)
{
    if (is_same)
        op_case_same(a, b, "differs from that over all keys");
    else
        near(a, b, tolerance);
}

/* k calls and an end against one; is_checked: each call against its reference, too. */
static void forward_chain(const struct form *f, const struct cuts *cuts, enum dtype act,
                          bool is_checked)
{
    struct op_case *whole = whole_case(OP_ATTENTION, f, act), *c = NULL;
    struct op_case *end = op_case_create(OP_ATTENTION_END, &whole->op.attributes);
    bool is_same = cuts->are_aligned && !test_device_is_cuda();

    op_case_run(whole, 2, RUN_FIRST);
    for (int i = 0; i < cuts->n; i++) {
        struct op_case *before = c;

        c = part_case(whole, f, cuts->at[i], cuts->at[i + 1] - cuts->at[i], before);
        if (is_checked)
            op_case_check(c, attention_tolerance(act, 5e-6));
        op_case_run(c, 1 + i % 3, RUN_FIRST);
        if (before) {
            check_in_place(c);
            check_kept(c, ATTENTION_PART_FIRST);
            op_case_destroy(before);
        }
    }
    copy_in(end, ATTENTION_END_STATE, &c->op.out[ATTENTION_PART_NEXT]);
    for (int i = ATTENTION_END_OUT; i <= ATTENTION_END_LSE; i++)
        op_case_output(end, i, whole->op.out[i].rows, whole->op.out[i].cols,
                       whole->op.out[i].dtype);
    if (is_checked)
        op_case_check(end, 2e-6);
    op_case_run(end, 3, RUN_FIRST);
    for (int i = ATTENTION_END_OUT; i <= ATTENTION_END_LSE; i++)
        same_or_near(&end->op.out[i], &whole->op.out[i], is_same, attention_tolerance(act, 5e-6));
    op_case_destroy(c);
    op_case_destroy(end);
    op_case_destroy(whole);
}

/* A part's dk or dv against the whole's; what is fp32 is rounded first. */
static void check_keys_of(const struct tensor *part, const struct tensor *whole,
                          const struct form *f, int begin, int n)
{
    struct op_case *c = op_case_create(OP_CAST, &(struct op_attributes){ 0 });

    op_case_input(c, CAST_X, part->rows, part->cols, whole->dtype, 0);
    op_case_output(c, CAST_Y, part->rows, part->cols, whole->dtype);
    op_case_copy(&c->op.in[CAST_X], part);
    copy_keys(&c->op.out[CAST_Y], whole, f, begin, n);
    op_case_same(&c->op.in[CAST_X], &c->op.out[CAST_Y], "keys' gradients differ");
    op_case_destroy(c);
}

static void backward_chain(const struct form *f, const struct cuts *cuts, enum dtype act,
                           bool is_checked)
{
    struct op_case *whole = whole_case(OP_ATTENTION_GRAD, f, act), *c = NULL;
    struct op_case *end = op_case_create(OP_ATTENTION_DQ_END, &whole->op.attributes);
    const struct tensor *dq = &whole->op.out[ATTENTION_GRAD_DQ];

    op_case_run(whole, 2, RUN_FIRST);
    for (int i = 0; i < cuts->n; i++) {
        int begin = cuts->at[i], n = cuts->at[i + 1] - begin;
        struct op_case *before = c;

        c = part_grad_case(whole, f, begin, n, before, i % 2 ? DTYPE_F32 : act);
        if (is_checked)
            op_case_check(c, 2 * attention_tolerance(act, 5e-6)); /* dq is not yet scaled */
        op_case_run(c, 1 + i % 3, RUN_FIRST);
        check_keys_of(&c->op.out[ATTENTION_PART_GRAD_DK], &whole->op.out[ATTENTION_GRAD_DK], f,
                      begin, n);
        check_keys_of(&c->op.out[ATTENTION_PART_GRAD_DV], &whole->op.out[ATTENTION_GRAD_DV], f,
                      begin, n);
        if (before) {
            check_in_place(c);
            check_kept(c, ATTENTION_PART_GRAD_FIRST);
            op_case_destroy(before);
        }
    }
    copy_in(end, ATTENTION_DQ_END_SUM, &c->op.out[ATTENTION_PART_GRAD_DQ]);
    op_case_output(end, ATTENTION_DQ_END_DQ, dq->rows, dq->cols, act);
    if (is_checked)
        op_case_check(end, 1e-6);
    op_case_run(end, 3, RUN_FIRST);
    same_or_near(&end->op.out[ATTENTION_DQ_END_DQ], dq, cuts->are_aligned,
                 attention_tolerance(act, 5e-6));
    op_case_destroy(c);
    op_case_destroy(end);
    op_case_destroy(whole);
}

/* k parts of about the same length; step: that of which cuts are multiples. */
static struct cuts cuts_of(int seq_len, int k, int step)
{
    struct cuts cuts = { .n = k, .at = { 0 }, .are_aligned = step % BLOCK == 0 };

    for (int i = 1; i < k; i++)
        cuts.at[i] = seq_len * i / k / step * step;
    cuts.at[k] = seq_len;
    return cuts;
}

/* Every number of parts, with parts that few or none of the queries see. */
static void test_parts(void **state)
{
    static const struct form forms[] = {
        { 4, 2, 16, 16, 1, 520, .window = 0 },
        { 3, 3, 20, 24, 1, 530, .window = 100 },
        { 2, 1, 8, 8, 2, 560, .document = 90, .rank = 1, .n_ranks = 4 },
        { 5, 1, 16, 8, 1, 612, .window = 70, .rank = 0, .n_ranks = 3 },
    };

    (void)state;
    for (int k = 1; k <= MAX_PARTS; k += test_device_is_cuda() ? 3 : 1)
        for (int i = k % 2; i < 4; i += 2) {
            const struct form *f = &forms[i];
            struct cuts aligned = cuts_of(f->seq_len, k, BLOCK);
            enum dtype act = act_at((k + i) % N_ACTS);

            forward_chain(f, &aligned, act, false);
            backward_chain(f, &aligned, act, false);
        }
}

/* Cuts within a block of keys: near, and keys' gradients have the bits all the same. */
static void test_cuts_anywhere(void **state)
{
    static const struct form forms[] = { { 4, 2, 16, 16, 1, 171, .window = 0 },
                                         { 2, 2, 24, 16, 2, 164, .rank = 1, .n_ranks = 2 } };

    (void)state;
    for (int i = 0; i < 2; i++)
        for (int i_act = 0; i_act < N_ACTS; i_act++)
            for (int k = 2; k <= 5; k += 3) {
                struct cuts cuts = cuts_of(forms[i].seq_len, k, 1);

                forward_chain(&forms[i], &cuts, act_at(i_act), false);
                backward_chain(&forms[i], &cuts, act_at(i_act), false);
            }
}

/* Each call by itself, against its reference. */
static void test_each_call(void **state)
{
    static const struct form forms[] = { { 3, 1, 16, 20, 1, 140, .window = 50 },
                                         { 2, 2, 7, 7, 2, 72, .rank = 1, .n_ranks = 2 } };

    (void)state;
    for (int i = 0; i < 2; i++)
        for (int i_act = 0; i_act < N_ACTS; i_act++) {
            struct cuts cuts = cuts_of(forms[i].seq_len, 3, 1);

            forward_chain(&forms[i], &cuts, act_at(i_act), true);
            backward_chain(&forms[i], &cuts, act_at(i_act), true);
        }
}

/* Sums that are -0 stay so in rows that see nothing, beside rows that see something. */
static void test_negative_zeros(void **state)
{
    static const struct form f = { 2, 1, 16, 16, 1, 130, .window = 0 };

    (void)state;
    for (int i_act = 0; i_act < N_ACTS; i_act++) {
        struct op_case *whole = whole_case(OP_ATTENTION, &f, act_at(i_act));
        struct op_case *grad = whole_case(OP_ATTENTION_GRAD, &f, act_at(i_act));
        struct op_case *before[2] = { part_case(whole, &f, 0, 70, NULL),
                                      part_grad_case(grad, &f, 0, 70, NULL, DTYPE_F32) };
        struct op_case *c[2];

        for (int i = 0; i < 2; i++) {
            const struct tensor *sums = &before[i]->op.out[OPS_FIRST];

            for (int64_t row = 0; row < sums->rows; row++)
                for (int64_t col = 0; col < 32; col++)
                    tensor_set(sums, row, col, -0.0);
            for (int64_t row = 0; row < sums->rows; row++)
                for (int64_t col = 32; col < sums->cols; col++)
                    tensor_set(sums, row, col, 1);
        }
        c[0] = part_case(whole, &f, 70, 60, before[0]);
        c[1] = part_grad_case(grad, &f, 70, 60, before[1], DTYPE_F32);
        op_case_run(c[0], 1, RUN_FIRST);
        op_case_run(c[1], 1, RUN_FIRST);
        check_kept(c[0], ATTENTION_PART_FIRST);
        check_kept(c[1], ATTENTION_PART_GRAD_FIRST);
        for (int i = 0; i < 2; i++) {
            op_case_destroy(before[i]);
            op_case_destroy(c[i]);
        }
        op_case_destroy(whole);
        op_case_destroy(grad);
    }
}

/* Without ranges it is causal attention. */
static void test_without_ranges(void **state)
{
    static const struct form f = { 2, 1, 16, 16, 2, 130, .window = 0 };
    struct cuts one = cuts_of(f.seq_len, 1, BLOCK);

    (void)state;
    for (int i_act = 0; i_act < N_ACTS; i_act++) {
        struct op_case *whole = whole_case(OP_ATTENTION, &f, act_at(i_act));
        struct op_case *c = part_case(whole, &f, 0, one.at[1], NULL);
        struct op_case *bare = part_case(whole, &f, 0, one.at[1], NULL);
        struct tensor ranges[2];

        memcpy(ranges, &bare->op.in[ATTENTION_PART_FIRST], sizeof ranges);
        memset(&bare->op.in[ATTENTION_PART_FIRST], 0, sizeof ranges);
        op_case_run(c, 1, RUN_FIRST);
        op_case_run(bare, 2, RUN_FIRST);
        op_case_same_outputs(c, bare, "differs without ranges");
        memcpy(&bare->op.in[ATTENTION_PART_FIRST], ranges, sizeof ranges);
        op_case_destroy(c);
        op_case_destroy(bare);
        op_case_destroy(whole);
    }
}

static int run_all(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),          cmocka_unit_test(test_cuts_anywhere),
        cmocka_unit_test(test_each_call),      cmocka_unit_test(test_negative_zeros),
        cmocka_unit_test(test_without_ranges),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    setenv("LMTRAIN_ATTENTION", "own", 1); /* what a vendor's library can do, too */
    return test_device_is_cuda() ? run_all() : test_each_isa(run_all);
}
