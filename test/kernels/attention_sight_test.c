/*
 * What a query sees of the keys before it - windows, documents - and how distance counts (ALiBi),
 * alone and together, in all attentions.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "ops/op_info.h"
#include "support/op_case.h"
#include "support/reference_ops.h"

struct form {
    int n_heads, n_kv_heads, head_dim, sequences, seq_len;
};

struct view {
    int window, alibi;
    int document; /* the longest; 0: none */
    double p;
};

enum { FORWARD_START = 5, GRAD_START = 8 };

/* Documents of 1 to `longest` rows: starts of the rows of a sequence. */
static void set_documents(const struct tensor *start, const struct form *f, int longest)
{
    for (int s = 0; s < f->sequences; s++)
        for (int row = 0, begin = 0, n = 0; row < f->seq_len; row++) {
            if (row == begin + 1 + n * (5 + s) % longest) {
                begin = row;
                n++;
            }
            tensor_set(start, (int64_t)s * f->seq_len + row, 0, begin);
        }
}

static struct op_case *sight_case(enum op_kind kind, const struct form *f, const struct view *v,
                                  enum dtype act)
{
    struct op_attributes a = { .n_heads = f->n_heads,
                               .n_kv_heads = f->n_kv_heads,
                               .head_dim = f->head_dim,
                               .seq_len = f->seq_len,
                               .scale = 1 / sqrt(f->head_dim),
                               .window = v->window,
                               .alibi = v->alibi,
                               .p = v->p,
                               .seed = 9,
                               .place = 3 };
    struct op_case *c = op_case_create(kind, &a);
    int64_t rows = (int64_t)f->sequences * f->seq_len;
    int start = kind == OP_ATTENTION_GRAD ? GRAD_START : FORWARD_START;

    op_case_attention(c, rows, act);
    if (v->p > 0)
        op_case_input(c, start - 2, f->sequences, 1, DTYPE_I64, 0);
    if (v->alibi > f->n_heads) {
        op_case_input(c, start - 1, 1, 1, DTYPE_I32, 0);
        tensor_set(&c->op.in[start - 1], 0, 0, v->alibi - f->n_heads);
    }
    if (v->document) {
        op_case_input(c, start, rows, 1, DTYPE_I32, 0);
        set_documents(&c->op.in[start], f, v->document);
    }
    return c;
}

/* out and lse of a gradient's case as the forward leaves them. */
static void fill_saved(struct op_case *grad, const struct form *f, const struct view *v,
                       enum dtype act)
{
    struct op_case *forward = sight_case(OP_ATTENTION, f, v, act);

    for (int i = 3; i < 6; i++)
        if (tensor_given(&forward->op.in[i]))
            op_case_copy(&forward->op.in[i], &grad->op.in[3 + i]);
    op_case_fill_saved(grad, forward);
}

/* Where pairs of 16 bits are multiplied, P, dS and the scaled queries are rounded to them. */
static double tolerance_of(enum dtype act, double fp32)
{
    return act == DTYPE_BF16 ? 8e-3 : act == DTYPE_F16 ? 1e-3 : fp32;
}

static void check(const struct form *f, const struct view *v, enum dtype act)
{
    struct op_case *c = sight_case(OP_ATTENTION, f, v, act);

    op_case_check(c, tolerance_of(act, 3e-6));
    op_case_destroy(c);
    c = sight_case(OP_ATTENTION_GRAD, f, v, act);
    fill_saved(c, f, v, act);
    op_case_check(c, tolerance_of(act, 4e-6));
    op_case_destroy(c);
}

/* Within a block, on its edges, over several; heads that a power of two does not number. */
static void test_views(void **state)
{
    static const struct form forms[] = {
        { 1, 1, 1, 1, 1 }, { 2, 1, 7, 3, 5 }, { 3, 3, 20, 2, 65 }, { 6, 2, 8, 1, 150 }
    };

    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        int h = forms[i].n_heads;
        const struct view views[] = {
            { .window = 1 },
            { .window = 3 },
            { .window = 64 },
            { .window = 66 },
            { .document = 1 },
            { .document = 50 },
            { .document = 100 },
            { .alibi = h },
            { .alibi = h + 5, .window = 80 },
            { .p = 0.2, .window = 70, .document = 150, .alibi = h + 3 },
        };

        for (size_t k = 0; k < sizeof views / sizeof *views; k++)
            for (int i_act = 0; i_act < N_ACTS; i_act++)
                check(&forms[i], &views[k], act_at(i_act));
    }
}

static void same_bits(const struct tensor *a, const struct tensor *b)
{
    for (int64_t row = 0; row < a->rows; row++)
        assert_memory_equal((char *)a->data + (size_t)(row * a->stride) * dtype_bytes(a->dtype),
                            (char *)b->data + (size_t)(row * b->stride) * dtype_bytes(b->dtype),
                            (size_t)a->cols * dtype_bytes(a->dtype));
}

/* Both kinds on both forms and views: what comes out is equal to the bit. */
static void check_equal(const struct form *f, const struct view *v, const struct form *g,
                        const struct view *w)
{
    for (int kind = OP_ATTENTION; kind <= OP_ATTENTION_GRAD; kind++)
        for (int i_act = 0; i_act < N_ACTS; i_act++) {
            enum dtype act = act_at(i_act);
            struct op_case *a = sight_case((enum op_kind)kind, f, v, act);
            struct op_case *b = sight_case((enum op_kind)kind, g, w, act);

            op_case_run(a, 2, 1);
            op_case_run(b, 3, 1);
            for (int i = 0; i < op_info(a->op.kind)->n_outputs; i++)
                same_bits(&a->op.out[i], &b->op.out[i]);
            op_case_destroy(a);
            op_case_destroy(b);
        }
}

static void test_wide_window_hides_nothing(void **state)
{
    static const struct form f = { 4, 2, 16, 2, 130 };

    (void)state;
    check_equal(&f, &(struct view){ 0 }, &f, &(struct view){ .window = 130 });
    check_equal(&f, &(struct view){ .alibi = 4 }, &f, &(struct view){ .alibi = 4, .window = 999 });
}

/* Documents that end with blocks are sequences of their own. */
static void test_documents_are_sequences(void **state)
{
    static const struct form one = { 6, 2, 16, 1, 192 }, three = { 6, 2, 16, 3, 64 };
    const struct view views[] = { { 0 }, { .window = 20 }, { .alibi = 6 } };

    (void)state;
    for (int kind = OP_ATTENTION; kind <= OP_ATTENTION_GRAD; kind++)
        for (int v = 0; v < 3; v++) {
            struct view packed = views[v];
            int start = kind == OP_ATTENTION ? FORWARD_START : GRAD_START;
            struct op_case *a, *b = sight_case((enum op_kind)kind, &three, &views[v], DTYPE_F32);

            packed.document = 64;
            a = sight_case((enum op_kind)kind, &one, &packed, DTYPE_F32);
            for (int row = 0; row < 192; row++)
                tensor_set(&a->op.in[start], row, 0, row / 64 * 64);
            op_case_run(a, 2, 1);
            op_case_run(b, 2, 1);
            for (int i = 0; i < op_info(a->op.kind)->n_outputs; i++)
                same_bits(&a->op.out[i], &b->op.out[i]);
            op_case_destroy(a);
            op_case_destroy(b);
        }
}

/* Whole blocks out of sight are not even read: what is no number there goes nowhere. */
static void test_what_nobody_sees_is_not_read(void **state)
{
    static const struct form f = { 2, 1, 8, 1, 256 };
    const struct view views[] = { { .window = 64 }, { .document = 1 } };

    (void)state;
    for (int v = 0; v < 2; v++) {
        struct op_case *c = sight_case(OP_ATTENTION, &f, &views[v], DTYPE_F32);

        for (int row = 0; row < 64; row++)
            for (int col = 0; col < 16; col++)
                tensor_set(&c->op.in[1 + col / 8], row, col % 8, NAN);
        op_case_run(c, 1, 1);
        for (int row = 128; row < 256; row++)
            for (int col = 0; col < 16; col++)
                assert_true(isfinite(tensor_get(&c->op.out[0], row, col)));
        op_case_destroy(c);
    }
}

/* A rank's heads have the slopes that they have among all. */
static void test_slopes_of_a_part(void **state)
{
    static const struct form all = { 6, 6, 8, 1, 70 }, part = { 2, 2, 8, 1, 70 };
    struct op_case *whole = sight_case(OP_ATTENTION, &all, &(struct view){ .alibi = 6 }, DTYPE_F32);
    struct op_case *c = sight_case(OP_ATTENTION, &part, &(struct view){ .alibi = 6 }, DTYPE_F32);

    (void)state;
    for (int row = 0; row < 70; row++)
        for (int col = 0; col < 48; col++)
            tensor_set(&c->op.in[col / 16], row, col % 16,
                       tensor_get(&whole->op.in[col / 16], row, 32 + col % 16));
    op_case_run(whole, 1, 1);
    op_case_run(c, 1, 1);
    for (int row = 0; row < 70; row++)
        for (int col = 0; col < 16; col++)
            assert_true(tensor_get(&c->op.out[0], row, col) ==
                        tensor_get(&whole->op.out[0], row, 32 + col));
    op_case_destroy(whole);
    op_case_destroy(c);
}

/* ---- with a cache ---- */

static struct op_case *cached_case(const struct form *f, const struct view *v, int cache_len,
                                   enum dtype act)
{
    struct op_attributes a = { .n_heads = f->n_heads,
                               .n_kv_heads = f->n_kv_heads,
                               .head_dim = f->head_dim,
                               .seq_len = f->seq_len,
                               .cache_len = cache_len,
                               .window = v->window,
                               .alibi = v->alibi,
                               .scale = 1 / sqrt(f->head_dim) };
    struct op_case *c = op_case_create(OP_ATTENTION_CACHED, &a);
    int64_t rows = (int64_t)f->sequences * f->seq_len, caches = (int64_t)f->sequences * cache_len;
    int64_t kv = (int64_t)f->n_kv_heads * f->head_dim;

    op_case_attention(c, rows, act);
    op_case_input(c, 3, rows, 1, DTYPE_I32, 0);
    op_case_input(c, 4, caches, kv, act, 1);
    op_case_input(c, 5, caches, kv, act, 1);
    if (v->alibi > f->n_heads) {
        op_case_input(c, 6, 1, 1, DTYPE_I32, 0);
        tensor_set(&c->op.in[6], 0, 0, v->alibi - f->n_heads);
    }
    return c;
}

/* A prefill from position 3 on with rows that are no tokens, and a step of decoding. */
static void test_cached(void **state)
{
    static const struct form prefill = { 6, 2, 20, 3, 9 }, decode = { 6, 2, 16, 5, 1 };
    static const struct view views[] = { { .window = 1 },
                                         { .window = 7 },
                                         { .window = 99 },
                                         { .alibi = 6 },
                                         { .alibi = 11, .window = 8 } };

    (void)state;
    for (size_t v = 0; v < sizeof views / sizeof *views; v++)
        for (int i_act = 0; i_act < N_ACTS; i_act++) {
            enum dtype act = act_at(i_act);
            struct op_case *c = cached_case(&prefill, &views[v], 30, act);

            for (int t = 0; t < 27; t++)
                tensor_set(&c->op.in[3], t, 0, t / 9 == 1 && t % 9 > 6 ? -1 : t % 9 + 3 * (t / 9));
            op_case_check(c, tolerance_of(act_at(i_act), 2e-6));
            op_case_destroy(c);
            c = cached_case(&decode, &views[v], 40, act);
            for (int t = 0; t < 5; t++)
                tensor_set(&c->op.in[3], t, 0, t == 2 ? -1 : 9 * t + 3);
            op_case_check(c, tolerance_of(act_at(i_act), 2e-6));
            op_case_destroy(c);
        }
}

/*
 * Prefills of several blocks: from 0 on; from within a block on; with rows that are no tokens at
 * either end, or no others.
 */
static void test_prefill(void **state)
{
    static const struct form form = { 6, 2, 20, 4, 70 };
    static const struct view views[] = { { 0 }, { .window = 30 }, { .alibi = 11, .window = 100 } };

    (void)state;
    for (size_t v = 0; v < sizeof views / sizeof *views; v++)
        for (int i_act = 0; i_act < N_ACTS; i_act++) {
            struct op_case *c = cached_case(&form, &views[v], 130, act_at(i_act));

            for (int i = 0; i < 70; i++) {
                tensor_set(&c->op.in[3], i, 0, i);
                tensor_set(&c->op.in[3], 70 + i, 0, i < 68 ? 53 + i : -1);
                tensor_set(&c->op.in[3], 140 + i, 0, i < 3 ? -1 : i - 3);
                tensor_set(&c->op.in[3], 210 + i, 0, -1);
            }
            op_case_check(c, tolerance_of(act_at(i_act), 2e-6));
            op_case_destroy(c);
        }
}

/* Over an empty cache, whatever memory that has, it is attention to the bit. */
static void test_prefill_is_attention(void **state)
{
    static const struct form f = { 6, 2, 16, 2, 130 };
    static const struct view views[] = { { 0 }, { .window = 40 }, { .alibi = 6 } };

    (void)state;
    for (int v = 0; v < 3; v++)
        for (int i_act = 0; i_act < N_ACTS; i_act++) {
            enum dtype act = act_at(i_act);
            struct op_case *whole = sight_case(OP_ATTENTION, &f, &views[v], act);
            struct op_case *cached = cached_case(&f, &views[v], 150, act);

            for (int i = 0; i < 3; i++)
                op_case_copy(&cached->op.in[i], &whole->op.in[i]);
            for (int row = 0; row < 260; row++)
                tensor_set(&cached->op.in[3], row, 0, row % 130);
            for (int row = 0; row < 300; row++)
                for (int col = 0; col < 32; col++) {
                    tensor_set(&cached->op.in[4], row, col, NAN);
                    tensor_set(&cached->op.in[5], row, col, NAN);
                }
            op_case_run(whole, 2, 1);
            op_case_run(cached, 3, 1);
            same_bits(&whole->op.out[0], &cached->op.out[0]);
            op_case_destroy(whole);
            op_case_destroy(cached);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_views),
        cmocka_unit_test(test_wide_window_hides_nothing),
        cmocka_unit_test(test_documents_are_sequences),
        cmocka_unit_test(test_what_nobody_sees_is_not_read),
        cmocka_unit_test(test_slopes_of_a_part),
        cmocka_unit_test(test_cached),
        cmocka_unit_test(test_prefill),
        cmocka_unit_test(test_prefill_is_attention),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
