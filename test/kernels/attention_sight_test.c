/*
 * What a query sees of the keys before it - windows, documents, ranges - and how distance counts
 * (ALiBi), alone and together, in all attentions.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "ops/op_info.h"
#include "support/op_case.h"
#include "support/op_facts.h"

struct form {
    int n_heads, n_kv_heads, head_dim, sequences, seq_len;
};

struct view {
    int window, alibi;
    int document; /* the longest; 0: none */
    double p;
};

/* Documents of 1 to `longest` rows: the first keys of the rows of a sequence. */
static void set_documents(const struct tensor *first, const struct form *f, int longest)
{
    for (int s = 0; s < f->sequences; s++)
        for (int row = 0, begin = 0, n = 0; row < f->seq_len; row++) {
            if (row == begin + 1 + n * (5 + s) % longest) {
                begin = row;
                n++;
            }
            tensor_set(first, (int64_t)s * f->seq_len + row, 0, begin);
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
                               .rng_site = 3 };
    struct op_case *c = op_case_create(kind, &a);
    int64_t rows = (int64_t)f->sequences * f->seq_len;
    int first = kind == OP_ATTENTION_GRAD ? ATTENTION_GRAD_FIRST : ATTENTION_FIRST;

    op_case_attention(c, rows, act);
    if (v->p > 0)
        op_case_input(c, first - 2, f->sequences, 1, DTYPE_I64, 0);
    if (v->alibi > f->n_heads) {
        op_case_input(c, first - 1, 1, 1, DTYPE_I32, 0);
        tensor_set(&c->op.in[first - 1], 0, 0, v->alibi - f->n_heads);
    }
    if (v->document) {
        op_case_input(c, first, rows, 1, DTYPE_I32, 0);
        set_documents(&c->op.in[first], f, v->document);
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

static void check(const struct form *f, const struct view *v, enum dtype act)
{
    struct op_case *c = sight_case(OP_ATTENTION, f, v, act);

    op_case_check(c, attention_tolerance(act, 3e-6));
    op_case_destroy(c);
    c = sight_case(OP_ATTENTION_GRAD, f, v, act);
    fill_saved(c, f, v, act);
    op_case_check(c, attention_tolerance(act, 4e-6));
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

/* Both kinds on both forms and views: what comes out is equal to the bit. */
static void check_equal(const struct form *f, const struct view *v, const struct form *g,
                        const struct view *w)
{
    for (int kind = OP_ATTENTION; kind <= OP_ATTENTION_GRAD; kind++)
        for (int i_act = 0; i_act < N_ACTS; i_act++) {
            enum dtype act = act_at(i_act);
            struct op_case *a = sight_case((enum op_kind)kind, f, v, act);
            struct op_case *b = sight_case((enum op_kind)kind, g, w, act);

            op_case_run(a, 2, RUN_FIRST);
            op_case_run(b, 3, RUN_FIRST);
            op_case_same_outputs(a, b, "differs between the two views");
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
            int first = kind == OP_ATTENTION ? ATTENTION_FIRST : ATTENTION_GRAD_FIRST;
            struct op_case *a, *b = sight_case((enum op_kind)kind, &three, &views[v], DTYPE_F32);

            packed.document = 64;
            a = sight_case((enum op_kind)kind, &one, &packed, DTYPE_F32);
            for (int row = 0; row < 192; row++)
                tensor_set(&a->op.in[first], row, 0, row / 64 * 64);
            op_case_run(a, 2, RUN_FIRST);
            op_case_run(b, 2, RUN_FIRST);
            op_case_same_outputs(a, b, "differs between the two views");
            op_case_destroy(a);
            op_case_destroy(b);
        }
}

/* Whole blocks out of sight are not even read: what is not a number there goes nowhere. */
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
        op_case_run(c, 1, RUN_FIRST);
        for (int row = 128; row < 256; row++)
            for (int col = 0; col < 16; col++)
                assert_true(isfinite(tensor_get(&c->op.out[0], row, col)));
        op_case_destroy(c);
    }
}

/* ---- queries that are a part of their sequence, beside all its keys ---- */

/* Part `number` of n_parts: rows from number on, n_parts apart, in runs of `run` rows. */
struct part {
    int run, number, n_parts;
};

/* The two runs that context parallelism gives a rank for balance: from either end of the
 * sequence. */
static int zigzag_row(const struct part *p, int i)
{
    int far = 2 * p->n_parts - 1 - p->number;

    return i < p->run ? p->number * p->run + i : far * p->run + i - p->run;
}

static int contiguous_row(const struct part *p, int i)
{
    return p->number * p->run + i;
}

typedef int part_row(const struct part *p, int i);

/* The whole's rows of each sequence that are the part's. n: of a sequence's part. */
static void take_rows(const struct tensor *to, const struct tensor *whole, const struct form *f,
                      const struct part *p, part_row *row_of, int n)
{
    for (int s = 0; s < f->sequences; s++)
        for (int i = 0; i < n; i++)
            for (int64_t col = 0; col < whole->cols; col++)
                tensor_set(to, (int64_t)s * n + i, col,
                           tensor_get(whole, (int64_t)s * f->seq_len + row_of(p, i), col));
}

/* whole: a case with all queries, and as the forward leaves it where it is a gradient's. */
static struct op_case *part_case(const struct op_case *whole, const struct form *f,
                                 const struct part *p, part_row *row_of, int n)
{
    static const unsigned by_query[] = { 1u << ATTENTION_Q | 1u << ATTENTION_FIRST,
                                         1u << ATTENTION_GRAD_DOUT | 1u << ATTENTION_GRAD_Q |
                                             1u << ATTENTION_GRAD_OUT | 1u << ATTENTION_GRAD_LSE |
                                             1u << ATTENTION_GRAD_FIRST };
    int is_grad = whole->op.kind == OP_ATTENTION_GRAD;
    int last = is_grad ? ATTENTION_GRAD_LAST : ATTENTION_LAST;
    int64_t rows = (int64_t)f->sequences * n;
    struct op_case *c;

    c = op_case_create(whole->op.kind, &whole->op.attributes);
    c->op.attributes.seq_len = n;
    op_case_attention_keys(c, rows, (int64_t)f->sequences * f->seq_len,
                           whole->op.in[is_grad].dtype);
    op_case_input(c, last, rows, 1, DTYPE_I32, 0);
    for (int i = 0; i < last; i++) {
        const struct tensor *t = &whole->op.in[i];

        if (!tensor_given(t))
            continue;
        if (!tensor_given(&c->op.in[i]))
            op_case_input(c, i, by_query[is_grad] >> i & 1 ? rows : t->rows, t->cols, t->dtype, 0);
        if (by_query[is_grad] >> i & 1)
            take_rows(&c->op.in[i], t, f, p, row_of, n);
        else
            op_case_copy(&c->op.in[i], t);
    }
    for (int64_t row = 0; row < rows; row++)
        tensor_set(&c->op.in[last], row, 0, row_of(p, (int)(row % n)));
    return c;
}

/* Of an output: the part's rows are the whole's to the bit. */
static void check_rows_of(const struct tensor *part, const struct tensor *whole,
                          const struct form *f, const struct part *p, part_row *row_of)
{
    int n = (int)(part->rows / f->sequences);

    for (int64_t row = 0; row < part->rows; row++)
        for (int64_t col = 0; col < part->cols; col++) {
            int64_t at = row / n * f->seq_len + row_of(p, (int)(row % n));

            if (tensor_get(part, row, col) != tensor_get(whole, at, col))
                fail_msg("row %lld, col %lld: %a, wanted %a", (long long)row, (long long)col,
                         tensor_get(part, row, col), tensor_get(whole, at, col));
        }
}

static void check_part(const struct form *f, const struct view *v, const struct part *p,
                       part_row *row_of, enum dtype act)
{
    int n = row_of == zigzag_row ? 2 * p->run : p->run;
    struct op_case *whole = sight_case(OP_ATTENTION, f, v, act), *part;

    part = part_case(whole, f, p, row_of, n);
    op_case_check(part, attention_tolerance(act, 3e-6));
    op_case_run(whole, 2, RUN_FIRST);
    op_case_run(part, 3, RUN_FIRST);
    for (int i = ATTENTION_OUT; i <= ATTENTION_LSE; i++)
        check_rows_of(&part->op.out[i], &whole->op.out[i], f, p, row_of);
    op_case_destroy(whole);
    op_case_destroy(part);

    whole = sight_case(OP_ATTENTION_GRAD, f, v, act);
    fill_saved(whole, f, v, act);
    part = part_case(whole, f, p, row_of, n);
    op_case_check(part, attention_tolerance(act, 4e-6));
    op_case_run(whole, 2, RUN_FIRST);
    op_case_run(part, 3, RUN_FIRST);
    check_rows_of(&part->op.out[ATTENTION_GRAD_DQ], &whole->op.out[ATTENTION_GRAD_DQ], f, p,
                  row_of);
    op_case_destroy(whole);
    op_case_destroy(part);
}

/*
 * A query's output, and its gradient, have the bits that they have beside all other queries, in
 * whatever tile it is; keys' gradients are those of the part's queries.
 */
static void test_part_of_queries(void **state)
{
    static const struct form short_form = { 4, 2, 16, 2, 40 }, long_form = { 3, 1, 24, 1, 264 };
    static const struct part of_short[] = { { 10, 0, 2 }, { 10, 1, 2 } };
    static const struct part of_long[] = { { 33, 0, 4 }, { 33, 3, 4 } };
    const struct view views[] = { { 0 },
                                  { .p = 0.2, .window = 30, .document = 150, .alibi = 5 },
                                  { .window = 70 },
                                  { .document = 100 } };

    (void)state;
    for (int v = 0; v < 4; v++)
        for (int i = 0; i < 2; i++) {
            enum dtype act = act_at((v + i) % N_ACTS);

            check_part(&short_form, &views[v], &of_short[i], zigzag_row, act);
            check_part(&long_form, &views[v], &of_long[i], zigzag_row, act);
            check_part(&long_form, &views[v], &of_long[i], contiguous_row, act_at(v % N_ACTS));
        }
}

/* Rows that see no key, and keys that no row sees: zeros, and no sum is poisoned by them. */
static void test_rows_that_see_nothing(void **state)
{
    static const struct form f = { 2, 1, 16, 2, 70 };
    static const struct view v = { 0 };
    static const struct part p = { 70, 0, 1 };

    (void)state;
    for (int i_act = 0; i_act < N_ACTS; i_act++) {
        enum dtype act = act_at(i_act);
        struct op_case *forward = sight_case(OP_ATTENTION, &f, &v, act);
        struct op_case *grad = sight_case(OP_ATTENTION_GRAD, &f, &v, act);
        struct op_case *c[2] = { part_case(forward, &f, &p, contiguous_row, 70),
                                 part_case(grad, &f, &p, contiguous_row, 70) };
        struct op_shape saved = { 0 };

        /* The first sequence: keys from 20 on, by the rows from there on; the second: none. */
        for (int i = 0; i < 2; i++) {
            int first = i ? ATTENTION_GRAD_FIRST : ATTENTION_FIRST;

            op_case_input(c[i], first, 140, 1, DTYPE_I32, 0);
            for (int row = 0; row < 140; row++) {
                tensor_set(&c[i]->op.in[first], row, 0, row < 70 ? 20 : 70);
                tensor_set(&c[i]->op.in[first + 1], row, 0, row < 70 ? row - 1 : 69);
            }
        }
        op_case_check(c[0], attention_tolerance(act, 3e-6));
        for (int i = 0; i < 3; i++)
            op_case_copy(&c[0]->op.in[i], &c[1]->op.in[1 + i]);
        op_case_to_reference(c[0], &saved);
        reference_run(&saved, RUN_FIRST);
        op_case_copy(&c[1]->op.in[ATTENTION_GRAD_OUT], &saved.out[ATTENTION_OUT]);
        op_case_copy(&c[1]->op.in[ATTENTION_GRAD_LSE], &saved.out[ATTENTION_LSE]);
        reference_release(&saved);
        op_case_check(c[1], attention_tolerance(act, 4e-6));
        op_case_run(c[0], 1, RUN_FIRST);
        op_case_run(c[1], 1, RUN_FIRST);
        for (int row = 0; row < 140; row++) {
            int is_empty = row < 21 || row >= 70;

            assert_true((tensor_get(&c[0]->op.out[ATTENTION_OUT], row, 3) == 0) == is_empty);
            assert_true(!is_empty || tensor_get(&c[1]->op.out[ATTENTION_GRAD_DQ], row, 3) == 0);
            assert_true((tensor_get(&c[0]->op.out[ATTENTION_LSE], row, 1) == INFINITY) == is_empty);
            assert_true((tensor_get(&c[1]->op.out[ATTENTION_GRAD_DV], row, 3) == 0) ==
                        (row < 20 || row >= 69));
        }
        for (int i = 0; i < 2; i++)
            op_case_destroy(c[i]);
        op_case_destroy(forward);
        op_case_destroy(grad);
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
    op_case_run(whole, 1, RUN_FIRST);
    op_case_run(c, 1, RUN_FIRST);
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
            op_case_check(c, attention_tolerance(act_at(i_act), 2e-6));
            op_case_destroy(c);
            c = cached_case(&decode, &views[v], 40, act);
            for (int t = 0; t < 5; t++)
                tensor_set(&c->op.in[3], t, 0, t == 2 ? -1 : 9 * t + 3);
            op_case_check(c, attention_tolerance(act_at(i_act), 2e-6));
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
            op_case_check(c, attention_tolerance(act_at(i_act), 2e-6));
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
            op_case_run(whole, 2, RUN_FIRST);
            op_case_run(cached, 3, RUN_FIRST);
            op_case_same(&whole->op.out[0], &cached->op.out[0], "differs from that over a cache");
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
        cmocka_unit_test(test_part_of_queries),
        cmocka_unit_test(test_rows_that_see_nothing),
        cmocka_unit_test(test_slopes_of_a_part),
        cmocka_unit_test(test_cached),
        cmocka_unit_test(test_prefill),
        cmocka_unit_test(test_prefill_is_attention),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
