/*
 * Attentions of shapes that fill several tiles of a GPU's kernels in both directions, with rows
 * that can be read in wide pieces and rows that can not; chunks of a cache, and its segments.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/acts.h"
#include "support/op_case.h"
#include "support/op_facts.h"

struct form {
    int n_heads, n_kv_heads, head_dim, sequences, seq_len;
    int window, alibi, document;
    double p, scale; /* scale 0: 1 / sqrt(head_dim) */
    int dense;
};

static struct op_attributes attributes_of(const struct form *f)
{
    return (struct op_attributes){ .n_heads = f->n_heads,
                                   .n_kv_heads = f->n_kv_heads,
                                   .head_dim = f->head_dim,
                                   .seq_len = f->seq_len,
                                   .scale = f->scale != 0 ? f->scale : 1 / sqrt(f->head_dim),
                                   .window = f->window,
                                   .alibi = f->alibi,
                                   .p = f->p,
                                   .seed = 5,
                                   .rng_site = 11 };
}

static struct op_case *tiles_case(enum op_kind kind, const struct form *f, enum dtype act)
{
    struct op_attributes a = attributes_of(f);
    struct op_case *c = op_case_create(kind, &a);
    int64_t rows = (int64_t)f->sequences * f->seq_len;
    int sample = kind == OP_ATTENTION_GRAD ? 6 : 3;

    c->dense = f->dense;
    op_case_attention(c, rows, act);
    if (f->p > 0) {
        op_case_input(c, sample, f->sequences, 1, DTYPE_I64, 0);
        for (int s = 0; s < f->sequences; s++)
            tensor_set(&c->op.in[sample], s, 0, 1e12 + s);
    }
    if (f->document) {
        op_case_input(c, sample + 2, rows, 1, DTYPE_I32, 0);
        for (int64_t row = 0; row < rows; row++)
            tensor_set(&c->op.in[sample + 2], row, 0,
                       (double)(row % f->seq_len / f->document * f->document));
    }
    return c;
}

static void check(const struct form *f)
{
    for (int i_act = 0; i_act < N_ACTS; i_act++) {
        enum dtype act = act_at(i_act);
        struct op_case *c = tiles_case(OP_ATTENTION, f, act);

        op_case_check(c, attention_tolerance(act, 3e-6));
        op_case_destroy(c);
        c = tiles_case(OP_ATTENTION_GRAD, f, act);
        op_case_fill_saved(c, tiles_case(OP_ATTENTION, f, act));
        op_case_check(c, attention_tolerance(act, 5e-6));
        op_case_destroy(c);
    }
}

/* Each width of tiles, full and not; ends on a tile's edge, before and behind it. */
static void test_widths(void **state)
{
    static const struct form forms[] = {
        { 1, 1, 32, 1, 129, .dense = 1 }, { 3, 1, 24, 1, 66, .dense = 1 },
        { 1, 1, 64, 1, 150, .dense = 1 }, { 2, 1, 64, 1, 128, .dense = 0 },
        { 2, 1, 80, 1, 97, .dense = 1 },  { 2, 1, 128, 1, 131, .dense = 1 },
        { 1, 1, 128, 2, 33, .dense = 1 }, { 1, 1, 136, 1, 65, .dense = 1 },
        { 1, 1, 256, 1, 70, .dense = 1 }, { 1, 1, 255, 1, 40, .dense = 1 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        check(&forms[i]);
}

/* Windows and documents that leave out whole tiles, and dropout of wide ones. */
static void test_sights(void **state)
{
    static const struct form forms[] = {
        { 1, 1, 32, 1, 260, .dense = 1, .window = 70 },
        { 1, 1, 64, 1, 200, .dense = 1, .document = 50 },
        { 4, 2, 32, 1, 200, .dense = 1, .window = 100, .document = 130, .p = 0.3, .alibi = 4 },
        { 1, 1, 128, 1, 90, .dense = 1, .p = 0.1 },
        { 2, 1, 16, 2, 70, .dense = 1, .scale = -0.5 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        check(&forms[i]);
}

/* ---- with a cache ---- */

static struct op_case *cached_case(const struct form *f, int64_t cache_len, int64_t n_segments,
                                   enum dtype act)
{
    struct op_attributes a = attributes_of(f);
    int64_t rows = (int64_t)f->sequences * f->seq_len, kv = (int64_t)f->n_kv_heads * f->head_dim;
    int64_t caches = n_segments ? cache_len : f->sequences * cache_len;
    struct op_case *c;

    a.cache_len = (int)cache_len;
    c = op_case_create(OP_ATTENTION_CACHED, &a);
    c->dense = f->dense;
    op_case_attention(c, rows, act);
    op_case_input(c, 3, rows, 1, DTYPE_I32, 0);
    op_case_input(c, 4, caches, kv, act, 1);
    op_case_input(c, 5, caches, kv, act, 1);
    if (n_segments) {
        op_case_input(c, 7, rows, 1, DTYPE_I32, 0);
        op_case_input(c, 8, n_segments, 3, DTYPE_I32, 0);
    }
    return c;
}

static void same_row(const struct tensor *a, int64_t row, const struct tensor *b, int64_t other)
{
    for (int64_t col = 0; col < a->cols; col++)
        if (tensor_get(a, row, col) != tensor_get(b, other, col))
            fail_msg("row %lld is not row %lld: column %lld is %.9g and %.9g", (long long)row,
                     (long long)other, (long long)col, tensor_get(a, row, col),
                     tensor_get(b, other, col));
}

static void copy_row(const struct tensor *to, int64_t row, const struct tensor *from, int64_t other)
{
    for (int64_t col = 0; col < to->cols; col++)
        tensor_set(to, row, col, tensor_get(from, other, col));
}

/* q, k and v of a row. */
static void copy_token(const struct op_case *to, int64_t row, const struct op_case *from,
                       int64_t other)
{
    for (int i = 0; i < 3; i++)
        copy_row(&to->op.in[i], row, &from->op.in[i], other);
}

/* Wide rows; groups that leave a part of a tile free, or need several. */
static void test_cached_widths(void **state)
{
    static const struct form forms[] = {
        { 4, 1, 64, 2, 40, .dense = 1 },  { 4, 4, 128, 1, 35, .dense = 1 },
        { 70, 1, 16, 3, 2, .dense = 1 },  { 6, 2, 80, 5, 1, .dense = 1, .window = 30 },
        { 2, 1, 256, 2, 20, .dense = 1 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        for (int i_act = 0; i_act < N_ACTS; i_act++) {
            const struct form *f = &forms[i];
            struct op_case *c = cached_case(f, 100, 0, act_at(i_act));

            for (int row = 0; row < f->sequences * f->seq_len; row++)
                tensor_set(&c->op.in[3], row, 0, 45 + row % f->seq_len + row / f->seq_len);
            op_case_check(c, attention_tolerance(act_at(i_act), 2e-6));
            op_case_destroy(c);
        }
}

/*
 * A cache of several chunks: a prefill of many rows, of which a GPU's block walks all chunks; then
 * some of these rows alone, of which each chunk is a block's. Near the reference, and equal to
 * each other.
 */
static void test_chunks(void **state)
{
    enum { FROM = 600, ROWS = 520, CACHE = 1200 };
    static const int wanted[] = { 0, 423, 424, 425, 519 }; /* 424 is at position 1024 */

    (void)state;
    for (int i_act = 0; i_act < N_ACTS; i_act++)
        for (int window = 0; window <= 700; window += 700) {
            enum dtype act = act_at(i_act);
            struct form many = { 2, 1, 16, 1, ROWS, .window = window, .dense = 1 };
            struct form few = { 2, 1, 16, 1, 1, .window = window, .dense = 1 };
            struct op_case *all = cached_case(&many, CACHE, 0, act);

            for (int row = 0; row < ROWS; row++)
                tensor_set(&all->op.in[3], row, 0, FROM + row);
            op_case_run(all, 2, RUN_FIRST);
            for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
                struct op_case *one = cached_case(&few, CACHE, 0, act);

                copy_token(one, 0, all, wanted[i]);
                op_case_copy(&one->op.in[4], &all->op.in[4]);
                op_case_copy(&one->op.in[5], &all->op.in[5]);
                tensor_set(&one->op.in[3], 0, 0, FROM + wanted[i]);
                op_case_check(one, attention_tolerance(act_at(i_act), 2e-6));
                op_case_run(one, 1, RUN_FIRST);
                same_row(&one->op.out[0], 0, &all->op.out[0], wanted[i]);
                op_case_destroy(one);
            }
            op_case_destroy(all);
        }
}

/*
 * Three texts of 30 tokens that begin alike, two of them further on: with segments what is alike is
 * there once, and every row's output is what it is where each text has a cache of its own. Rows of
 * the ends come by turns.
 */
enum { N_TEXTS = 3, TEXT = 30, ALIKE = 11, ALIKE_TWO = 19, TREE_ROWS = 62 };

struct place {
    int text, position, segment;
};

/* Segment 0 is the beginning, 1 what texts 0 and 1 have in common, 2 .. 4 the ends. */
static void tree_rows(struct place rows[TREE_ROWS])
{
    int n = 0;

    for (int i = 0; i < ALIKE_TWO; i++)
        rows[n++] = (struct place){ 0, i, i < ALIKE ? 0 : 1 };
    for (int i = ALIKE; i < TEXT; i++)
        rows[n++] = (struct place){ 2, i, 4 };
    for (int i = ALIKE_TWO; i < TEXT; i++)
        for (int text = 0; text < 2; text++)
            rows[n++] = (struct place){ text, i, 2 + text };
    for (; n < TREE_ROWS; n++)
        rows[n] = (struct place){ 0, -1, 0 };
}

static void set_segments(const struct tensor *segments)
{
    static const int rows[][3] = {
        { 40, 0, -1 }, { 0, ALIKE, 0 }, { 60, ALIKE_TWO, 1 }, { 8, ALIKE_TWO, 1 }, { 19, ALIKE, 0 }
    };

    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 3; k++)
            tensor_set(segments, i, k, rows[i][k]);
}

static void test_segments(void **state)
{
    struct place rows[TREE_ROWS];

    (void)state;
    tree_rows(rows);
    for (int form = 0; form < 2 * N_ACTS; form++) {
        enum dtype act = act_at(form / 2);
        struct form f = { 4, 2, 16, N_TEXTS, TEXT, .window = form % 2 * 13, .dense = 1 };
        struct op_case *own = cached_case(&f, TEXT, 0, act), *shared;

        f.sequences = TREE_ROWS;
        f.seq_len = 1;
        shared = cached_case(&f, 80, 5, act);
        set_segments(&shared->op.in[8]);
        for (int t = 0; t < N_TEXTS * TEXT; t++) {
            int text = t / TEXT, position = t % TEXT;

            if (position < ALIKE || (text == 1 && position < ALIKE_TWO))
                copy_token(own, t, own, position);
            tensor_set(&own->op.in[3], t, 0, position);
        }
        for (int i = 0; i < TREE_ROWS; i++) {
            if (rows[i].position >= 0)
                copy_token(shared, i, own, rows[i].text * TEXT + rows[i].position);
            tensor_set(&shared->op.in[3], i, 0, rows[i].position);
            tensor_set(&shared->op.in[7], i, 0, rows[i].segment);
        }
        op_case_run(own, 2, RUN_FIRST);
        op_case_run(shared, 2, RUN_FIRST);
        for (int i = 0; i < TREE_ROWS; i++)
            if (rows[i].position >= 0)
                same_row(&shared->op.out[0], i, &own->op.out[0],
                         rows[i].text * TEXT + rows[i].position);
            else
                for (int64_t col = 0; col < 64; col++)
                    assert_true(tensor_get(&shared->op.out[0], i, col) == 0);
        op_case_destroy(own);
        op_case_destroy(shared);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_widths),        cmocka_unit_test(test_sights),
        cmocka_unit_test(test_cached_widths), cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_segments),
    };

    setenv("LMTRAIN_ATTENTION", "own", 1); /* what a vendor's library can do, too */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
