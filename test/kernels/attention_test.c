#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "ops/op_info.h"
#include "support/op_case.h"
#include "support/op_facts.h"

struct form {
    int n_heads, n_kv_heads, head_dim, sequences, seq_len;
};

/* Within a block, on its edges, over several; groups below and above the heads of a tile; wide
 * heads. */
static const struct form forms[] = {
    { 1, 1, 1, 1, 1 },   { 2, 1, 7, 3, 5 },    { 4, 2, 16, 2, 64 },
    { 3, 3, 20, 2, 65 }, { 10, 2, 8, 1, 130 }, { 2, 1, 256, 1, 70 },
};

#define N_FORMS (int)(sizeof forms / sizeof *forms)

static struct op_case *attention_case_values(enum op_kind kind, const struct form *f,
                                             enum dtype act, double p, int value_dim)
{
    struct op_attributes a = { .n_heads = f->n_heads,
                               .n_kv_heads = f->n_kv_heads,
                               .head_dim = f->head_dim,
                               .seq_len = f->seq_len,
                               .scale = 1 / sqrt(f->head_dim),
                               .p = p,
                               .seed = 9,
                               .rng_site = 3 };
    struct op_case *c = op_case_create(kind, &a);
    int sample = kind == OP_ATTENTION_GRAD ? 6 : 3;

    op_case_attention_values(c, (int64_t)f->sequences * f->seq_len, act, value_dim);
    if (p > 0) {
        op_case_input(c, sample, f->sequences, 1, DTYPE_I64, 0);
        for (int s = 0; s < f->sequences; s++)
            tensor_set(&c->op.in[sample], s, 0, 77 + s);
    }
    return c;
}

static struct op_case *attention_case(enum op_kind kind, const struct form *f, enum dtype act,
                                      double p)
{
    return attention_case_values(kind, f, act, p, f->head_dim);
}

static void test_attention(void **state)
{
    (void)state;
    for (int f = 0; f < N_FORMS; f++)
        for (int i_act = 0; i_act < N_ACTS; i_act++)
            for (int drop = 0; drop < 2; drop++) {
                struct op_case *c =
                    attention_case(OP_ATTENTION, &forms[f], act_at(i_act), drop ? 0.2 : 0);

                op_case_check(c, attention_tolerance(act_at(i_act), 2e-6));
                op_case_destroy(c);
            }
}

static void test_attention_grad(void **state)
{
    (void)state;
    for (int f = 0; f < N_FORMS; f++)
        for (int i_act = 0; i_act < N_ACTS; i_act++)
            for (int drop = 0; drop < 2; drop++) {
                enum dtype act = act_at(i_act);
                double p = drop ? 0.2 : 0;
                struct op_case *c = attention_case(OP_ATTENTION_GRAD, &forms[f], act, p);

                op_case_fill_saved(c, attention_case(OP_ATTENTION, &forms[f], act, p));
                op_case_check(c, attention_tolerance(act_at(i_act), 3e-6));
                op_case_destroy(c);
            }
}

/* ---- values of another width ---- */

static const struct {
    struct form form;
    int value_dim;
} valued[] = {
    { { 4, 2, 24, 2, 65 }, 16 }, /* narrower, as multi-head latent attention has them */
    { { 2, 1, 16, 1, 130 }, 40 },
    { { 3, 3, 5, 2, 7 }, 1 },
    { { 2, 2, 192, 1, 70 }, 128 },
};

static void test_values_of_another_width(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof valued / sizeof *valued; f++)
        for (int i_act = 0; i_act < N_ACTS; i_act++)
            for (int drop = 0; drop < 2; drop++) {
                const struct form *form = &valued[f].form;
                enum dtype act = act_at(i_act);
                double p = drop ? 0.2 : 0;
                int width = valued[f].value_dim;
                struct op_case *c = attention_case_values(OP_ATTENTION, form, act, p, width);

                op_case_check(c, attention_tolerance(act, 2e-6));
                op_case_destroy(c);
                c = attention_case_values(OP_ATTENTION_GRAD, form, act, p, width);
                op_case_fill_saved(c, attention_case_values(OP_ATTENTION, form, act, p, width));
                op_case_check(c, attention_tolerance(act, 3e-6));
                op_case_destroy(c);
            }
}

/* Values padded by zeros to the width of keys: what is not zero has the same bits. */
static void test_width_changes_no_bit(void **state)
{
    static const struct form form = { 4, 2, 24, 1, 130 };
    enum { WIDTH = 16 };

    (void)state;
    for (int i_act = 0; i_act < N_ACTS; i_act++) {
        struct op_case *narrow =
            attention_case_values(OP_ATTENTION, &form, act_at(i_act), 0, WIDTH);
        struct op_case *whole = attention_case(OP_ATTENTION, &form, act_at(i_act), 0);

        for (int i = 0; i < 2; i++)
            op_case_copy(&whole->op.in[i], &narrow->op.in[i]);
        for (int64_t row = 0; row < form.seq_len; row++)
            for (int64_t col = 0; col < whole->op.in[2].cols; col++)
                tensor_set(&whole->op.in[2], row, col,
                           col % 24 < WIDTH
                               ? tensor_get(&narrow->op.in[2], row, col / 24 * WIDTH + col % 24)
                               : 0);
        op_case_run(narrow, 2, RUN_FIRST);
        op_case_run(whole, 1, RUN_FIRST);
        for (int64_t row = 0; row < form.seq_len; row++)
            for (int64_t col = 0; col < narrow->op.out[0].cols; col++)
                assert_true(tensor_get(&narrow->op.out[0], row, col) ==
                            tensor_get(&whole->op.out[0], row, col / WIDTH * 24 + col % WIDTH));
        op_case_destroy(narrow);
        op_case_destroy(whole);
    }
}

/* ---- heads in parts ---- */

/* One head's columns: the whole's to the part's or, with check, compared. */
static void heads_columns(const struct tensor *whole, int64_t whole_head, const struct tensor *part,
                          int64_t part_head, int64_t n_cols, int check)
{
    for (int64_t row = 0; row < whole->rows; row++)
        for (int64_t i = 0; i < n_cols; i++) {
            double value = tensor_get(whole, row, whole_head * n_cols + i);

            if (!check)
                tensor_set(part, row, part_head * n_cols + i, value);
            else if (tensor_get(part, row, part_head * n_cols + i) != value)
                fail_msg("head %lld of the whole differs at (%lld, %lld)", (long long)whole_head,
                         (long long)row, (long long)i);
        }
}

/* Operand `t` of the whole, of which the part has some heads. */
static void each_head(const struct tensor *whole, const struct tensor *part, const struct form *f,
                      int n_parts, int number, int check)
{
    int64_t head_cols = whole->cols == f->n_heads ? 1 : f->head_dim; /* lse has one a head */
    int64_t n = whole->cols / head_cols / n_parts;

    for (int64_t k = 0; k < n; k++)
        heads_columns(whole, number * n + k, part, k, head_cols, check);
}

static struct op_case *heads_part(const struct op_case *whole, const struct form *f, int n_parts,
                                  int number, enum dtype act)
{
    struct form of_part = *f;
    int n_data = whole->op.kind == OP_ATTENTION_GRAD ? 6 : 3;
    struct op_case *c;

    of_part.n_heads /= n_parts;
    of_part.n_kv_heads /= n_parts;
    c = attention_case(whole->op.kind, &of_part, act, whole->op.attributes.p);
    op_case_input(c, n_data + 1, 1, 1, DTYPE_I32, 0);
    tensor_set(&c->op.in[n_data + 1], 0, 0, number * of_part.n_heads);
    for (int i = 0; i < n_data; i++)
        each_head(&whole->op.in[i], &c->op.in[i], f, n_parts, number, 0);
    return c;
}

static void check_heads(enum op_kind kind, const struct form *f, int n_parts, enum dtype act)
{
    struct op_case *whole = attention_case(kind, f, act, 0.3);

    if (kind == OP_ATTENTION_GRAD)
        op_case_fill_saved(whole, attention_case(OP_ATTENTION, f, act, 0.3));
    op_case_run(whole, 2, RUN_FIRST);
    for (int part = 0; part < n_parts; part++) {
        struct op_case *c = heads_part(whole, f, n_parts, part, act);

        if (part == 1)
            op_case_check(c, attention_tolerance(act, 3e-6));
        op_case_run(c, 3, RUN_FIRST);
        for (int i = 0; i < op_info(kind)->n_outputs; i++)
            each_head(&whole->op.out[i], &c->op.out[i], f, n_parts, part, 1);
        op_case_destroy(c);
    }
    op_case_destroy(whole);
}

/* A rank's heads drop what the same heads of the whole drop: equal bits. */
static void test_heads_in_parts(void **state)
{
    static const struct form grouped = { 8, 4, 12, 2, 70 }, alone = { 6, 3, 8, 1, 130 };

    (void)state;
    for (int kind = OP_ATTENTION; kind <= OP_ATTENTION_GRAD; kind++)
        for (int i_act = 0; i_act < N_ACTS; i_act++) {
            enum dtype act = act_at(i_act);

            check_heads((enum op_kind)kind, &grouped, 2, act);
            check_heads((enum op_kind)kind, &grouped, 4, act);
            check_heads((enum op_kind)kind, &alone, 3, act);
        }
}

/* Scores far beyond exp's range. */
static void test_large_scores(void **state)
{
    struct form f = { 1, 1, 4, 1, 130 };
    struct op_case *c = attention_case(OP_ATTENTION, &f, DTYPE_F32, 0);

    (void)state;
    for (int64_t row = 0; row < 130; row++)
        for (int64_t col = 0; col < 8; col++)
            tensor_set(&c->op.in[col / 4], row, col % 4,
                       40 * tensor_get(&c->op.in[col / 4], row, col % 4));
    op_case_check(c, 2e-4);
    op_case_destroy(c);
}

/* ---- with a cache ------------------------------------------------------------------------------
 */

static struct op_case *cached_case_values(const struct form *f, int cache_len, enum dtype act,
                                          int value_dim)
{
    struct op_attributes a = { .n_heads = f->n_heads,
                               .n_kv_heads = f->n_kv_heads,
                               .head_dim = f->head_dim,
                               .seq_len = f->seq_len,
                               .cache_len = cache_len,
                               .scale = 1 / sqrt(f->head_dim) };
    struct op_case *c = op_case_create(OP_ATTENTION_CACHED, &a);
    int64_t rows = (int64_t)f->sequences * f->seq_len;
    int64_t kv = (int64_t)f->n_kv_heads * f->head_dim;

    op_case_attention_values(c, rows, act, value_dim);
    op_case_input(c, 3, rows, 1, DTYPE_I32, 0);
    op_case_input(c, 4, (int64_t)f->sequences * cache_len, kv, act, 1);
    op_case_input(c, 5, (int64_t)f->sequences * cache_len, (int64_t)f->n_kv_heads * value_dim, act,
                  1);
    return c;
}

static struct op_case *cached_case(const struct form *f, int cache_len, enum dtype act)
{
    return cached_case_values(f, cache_len, act, f->head_dim);
}

static void test_cached_values_of_another_width(void **state)
{
    static const struct form prefill = { 4, 2, 24, 3, 9 }, decode = { 6, 2, 16, 5, 1 };

    (void)state;
    for (int i_act = 0; i_act < N_ACTS; i_act++)
        for (int is_wide = 0; is_wide < 2; is_wide++) {
            enum dtype act = act_at(i_act);
            struct op_case *c = cached_case_values(&prefill, 30, act, is_wide ? 40 : 16);

            for (int t = 0; t < 27; t++)
                tensor_set(&c->op.in[3], t, 0, t % 9 + 2 * (t / 9));
            op_case_check(c, attention_tolerance(act, 2e-6));
            op_case_destroy(c);
            c = cached_case_values(&decode, 40, act, is_wide ? 24 : 3);
            for (int t = 0; t < 5; t++)
                tensor_set(&c->op.in[3], t, 0, t == 2 ? -1 : 9 * t + 3);
            op_case_check(c, attention_tolerance(act, 2e-6));
            op_case_destroy(c);
        }
}

/* Prefill with two rows that are no tokens, and one step of decoding at different positions. */
static void test_cached(void **state)
{
    static const struct form prefill = { 4, 2, 20, 3, 9 }, decode = { 6, 2, 16, 5, 1 };

    (void)state;
    for (int i_act = 0; i_act < N_ACTS; i_act++) {
        struct op_case *c = cached_case(&prefill, 30, act_at(i_act));

        for (int t = 0; t < 27; t++)
            tensor_set(&c->op.in[3], t, 0, t / 9 == 1 && t % 9 > 6 ? -1 : t % 9 + 2 * (t / 9));
        op_case_check(c, attention_tolerance(act_at(i_act), 2e-6));
        op_case_destroy(c);
        c = cached_case(&decode, 40, act_at(i_act));
        for (int t = 0; t < 5; t++)
            tensor_set(&c->op.in[3], t, 0, t == 2 ? -1 : 9 * t + 3);
        op_case_check(c, attention_tolerance(act_at(i_act), 2e-6));
        op_case_destroy(c);
    }
}

/* Prefill over an empty cache is attention. */
static void test_cached_is_attention(void **state)
{
    static const struct form f = { 4, 2, 16, 2, 20 };
    struct op_case *whole = attention_case(OP_ATTENTION, &f, DTYPE_F32, 0);
    struct op_case *cached = cached_case(&f, 24, DTYPE_F32);

    (void)state;
    for (int64_t row = 0; row < 40; row++)
        tensor_set(&cached->op.in[3], row, 0, (double)(row % 20));
    for (int i = 0; i < 3; i++)
        op_case_copy(&cached->op.in[i], &whole->op.in[i]);
    op_case_run(whole, 1, RUN_FIRST);
    op_case_run(cached, 2, RUN_FIRST);
    for (int64_t row = 0; row < 40; row++)
        for (int64_t col = 0; col < 64; col++)
            assert_true(fabs(tensor_get(&whole->op.out[0], row, col) -
                             tensor_get(&cached->op.out[0], row, col)) < 2e-6);
    op_case_destroy(whole);
    op_case_destroy(cached);
}

static void copy_rows(const struct tensor *to, const struct tensor *from, int64_t first, int64_t n)
{
    for (int64_t row = 0; row < n; row++)
        for (int64_t col = 0; col < to->cols; col++)
            tensor_set(to, row, col, tensor_get(from, first + row, col));
}

/* A row's bits are the same whether it comes alone or with those before it. */
static void test_decoding_is_prefill(void **state)
{
    static const struct form all = { 6, 2, 20, 1, 70 }, one = { 6, 2, 20, 1, 1 };
    static const int rows[] = { 0, 1, 15, 16, 63, 64, 69 };

    (void)state;
    for (int i_act = 0; i_act < N_ACTS; i_act++) {
        struct op_case *prefill = cached_case(&all, 80, act_at(i_act));

        for (int t = 0; t < all.seq_len; t++)
            tensor_set(&prefill->op.in[3], t, 0, t);
        op_case_run(prefill, 2, RUN_FIRST);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            struct op_case *c = cached_case(&one, 80, act_at(i_act));

            for (int k = 0; k < 3; k++)
                copy_rows(&c->op.in[k], &prefill->op.in[k], rows[i], 1);
            tensor_set(&c->op.in[3], 0, 0, rows[i]);
            copy_rows(&c->op.in[4], &prefill->op.in[4], 0, rows[i]);
            copy_rows(&c->op.in[5], &prefill->op.in[5], 0, rows[i]);
            op_case_run(c, 1, RUN_FIRST);
            for (int64_t col = 0; col < c->op.out[0].cols; col++)
                assert_true(tensor_get(&c->op.out[0], 0, col) ==
                            tensor_get(&prefill->op.out[0], rows[i], col));
            op_case_destroy(c);
        }
        op_case_destroy(prefill);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_attention_grad),
        cmocka_unit_test(test_large_scores),
        cmocka_unit_test(test_cached),
        cmocka_unit_test(test_cached_is_attention),
        cmocka_unit_test(test_heads_in_parts),
        cmocka_unit_test(test_decoding_is_prefill),
        cmocka_unit_test(test_values_of_another_width),
        cmocka_unit_test(test_width_changes_no_bit),
        cmocka_unit_test(test_cached_values_of_another_width),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
