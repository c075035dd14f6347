/*
 * collective_test.c - each collective over threads as ranks, to the bit
 *
 * Sums are held against the tree as design.md defines it. Those of sequences are in
 * collective_sequence_test.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "run/collective.h"
#include "support/collective_play.h"

static const enum dtype dtypes[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F64 };
static const int sizes[] = { 1, 2, 3, 4, 5, 8 };
#define COUNT(x) (int)(sizeof(x) / sizeof *(x))

/* ---- tests ---- */

static void all_gather_of_rows(void **state)
{
    (void)state;
    for (int s = 0; s < COUNT(sizes); s++)
        for (int d = 0; d < COUNT(dtypes); d++) {
            int size = sizes[s];
            struct collective_play p = play_make(OP_ALL_GATHER, size, play_dense(3, 7, dtypes[d]),
                                                 play_dense(3 * size, 7, dtypes[d]));

            play_run(&p);
            for (int r = 0; r < size; r++)
                for (int k = 0; k < size; k++)
                    assert_memory_equal(p.out[r] + (size_t)k * p.in_bytes, p.before[k], p.in_bytes);
            play_release(&p);
        }
}

static void reduce_scatter_of_rows(void **state)
{
    (void)state;
    for (int s = 0; s < COUNT(sizes); s++)
        for (int d = 0; d < COUNT(dtypes); d++) {
            int size = sizes[s];
            struct collective_play p =
                play_make(OP_REDUCE_SCATTER, size, play_dense(3 * size, 500, dtypes[d]),
                          play_dense(3, 500, dtypes[d]));

            play_run(&p);
            for (int r = 0; r < size; r++)
                for (int i = 0; i < 3 * 500; i++)
                    play_expect(&p, r, i, play_sum_at(&p, 0, size, r * 3 * 500 + i));
            play_release(&p);
        }
}

/* A sum is complete before it is added. */
static void reduce_scatter_that_adds(void **state)
{
    (void)state;
    for (int s = 0; s < COUNT(sizes); s++) {
        int size = sizes[s];
        struct collective_play p =
            play_make(OP_REDUCE_SCATTER, size, play_dense(1, 90 * size, DTYPE_F32),
                      play_dense(1, 90, DTYPE_F32));

        p.adds = 1;
        play_run(&p);
        for (int r = 0; r < size; r++)
            for (int i = 0; i < 90; i++)
                play_expect(&p, r, i,
                            (double)((float)i + (float)play_sum_at(&p, 0, size, r * 90 + i)));
        play_release(&p);
    }
}

static void check_all_reduce(int size, int64_t rows, int64_t cols, enum dtype dtype, int in_place)
{
    struct collective_play p = play_make(OP_ALL_REDUCE, size, play_dense(rows, cols, dtype),
                                         play_dense(rows, cols, dtype));

    p.in_place = in_place;
    play_run(&p);
    for (int64_t i = 0; i < rows * cols; i++) {
        double wanted = play_sum_at(&p, 0, size, i);

        for (int r = 0; r < size; r++)
            play_expect(&p, r, i, wanted);
    }
    play_release(&p);
}

/* Small, and of parts: with and without a rest that does not divide. */
static void all_reduce(void **state)
{
    (void)state;
    for (int s = 0; s < COUNT(sizes); s++)
        for (int d = 0; d < COUNT(dtypes); d++)
            for (int in_place = 0; in_place < 2; in_place++) {
                check_all_reduce(sizes[s], 1, 1, dtypes[d], in_place);
                check_all_reduce(sizes[s], 3, 17, dtypes[d], in_place);
                check_all_reduce(sizes[s], 1200, 30, dtypes[d], in_place);
                check_all_reduce(sizes[s], 1, PLAY_N_NUMBERS, dtypes[d], in_place);
            }
}

static void all_reduce_of_scalars(void **state)
{
    (void)state;
    for (int s = 0; s < COUNT(sizes); s++) {
        struct collective_play p =
            play_make(OP_ALL_REDUCE_SCALAR, sizes[s], play_dense(1, 5, DTYPE_F64),
                      play_dense(1, 5, DTYPE_F64));

        play_run(&p);
        for (int r = 0; r < p.size; r++)
            for (int i = 0; i < 5; i++)
                play_expect(&p, r, i, play_sum_at(&p, 0, p.size, i));
        play_release(&p);
    }
}

/* ---- a kv head that several ranks share ---- */

#define TOKENS 5
#define HEADS 3
#define HEAD_DIM 12
#define Q (HEADS * HEAD_DIM)

static const struct {
    int size, group;
} shared[] = { { 2, 2 }, { 3, 3 }, { 4, 2 }, { 4, 4 }, { 8, 2 }, { 8, 4 }, { 6, 3 } };

/* padding: columns between rows, of both operands. */
static struct collective_play make_heads(enum op_kind kind, int i, enum dtype dtype, int padding)
{
    int64_t w = HEAD_DIM / shared[i].group;
    struct tensor part = { NULL, TOKENS, Q + 2 * w, Q + 2 * w + padding, dtype };
    struct tensor whole = { NULL, TOKENS, Q + 2 * HEAD_DIM, Q + 2 * HEAD_DIM + padding, dtype };
    int gathers = kind == OP_GATHER_HEADS;
    struct collective_play p =
        play_make(kind, shared[i].size, gathers ? part : whole, gathers ? whole : part);

    p.shape.attributes.n_heads = HEADS;
    p.shape.attributes.n_kv_heads = 1;
    p.shape.attributes.head_dim = HEAD_DIM;
    p.shape.attributes.group = shared[i].group;
    return p;
}

static void check_gathered(const struct collective_play *p, int r, int group)
{
    const struct tensor *in = &p->shape.in[0], *out = &p->shape.out[0];
    int w = HEAD_DIM / group, first = r / group * group;

    for (int t = 0; t < TOKENS; t++) {
        for (int c = 0; c < Q; c++)
            play_expect(p, r, t * out->stride + c,
                        play_get(in->dtype, p->before[r], t * in->stride + c));
        for (int c = 0; c < 2 * HEAD_DIM; c++) {
            int from = first + c % HEAD_DIM / w;
            int64_t at = t * in->stride + Q + c / HEAD_DIM * w + c % w;

            play_expect(p, r, t * out->stride + Q + c, play_get(in->dtype, p->before[from], at));
        }
    }
}

static void gather_heads(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(shared); i++)
        for (int padding = 0; padding < 4; padding += 3)
            for (int d = 0; d < 2; d++) {
                struct collective_play p = make_heads(OP_GATHER_HEADS, i, dtypes[d], padding);

                play_run(&p);
                for (int r = 0; r < p.size; r++)
                    check_gathered(&p, r, shared[i].group);
                play_release(&p);
            }
}

static void check_scattered(const struct collective_play *p, int r, int group)
{
    const struct tensor *in = &p->shape.in[0], *out = &p->shape.out[0];
    int w = HEAD_DIM / group, first = r / group * group;

    for (int t = 0; t < TOKENS; t++) {
        for (int c = 0; c < Q; c++)
            play_expect(p, r, t * out->stride + c,
                        play_get(in->dtype, p->before[r], t * in->stride + c));
        for (int c = 0; c < 2 * w; c++) {
            int64_t at = t * in->stride + Q + c / w * HEAD_DIM + (r - first) * w + c % w;

            play_expect(p, r, t * out->stride + Q + c, play_sum_at(p, first, group, at));
        }
    }
}

static void gather_heads_grad(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(shared); i++)
        for (int padding = 0; padding < 4; padding += 3)
            for (int d = 0; d < 2; d++) {
                struct collective_play p = make_heads(OP_GATHER_HEADS_GRAD, i, dtypes[d], padding);

                play_run(&p);
                for (int r = 0; r < p.size; r++)
                    check_scattered(&p, r, shared[i].group);
                play_release(&p);
            }
}

/* Gathers and transfers need none; sums of many ranks' large values no more than some of them. */
static void scratch(void **state)
{
    struct collective_play p =
        play_make(OP_ALL_GATHER, 4, play_dense(3, 7, DTYPE_F32), play_dense(12, 7, DTYPE_F32));
    int64_t n = 1 << 20;

    (void)state;
    assert_int_equal(collective_scratch_bytes(&p.shape, 4, 0), 0);
    p = play_make(OP_ALL_REDUCE, 4, play_dense(1, n, DTYPE_BF16), play_dense(1, n, DTYPE_BF16));
    assert_int_equal(collective_scratch_bytes(&p.shape, 4, 0), 2 * n);
    assert_int_equal(collective_scratch_bytes(&p.shape, 1024, 0), 2 * n);
    p.shape.in[0] = p.shape.out[0] = play_dense(1, 16, DTYPE_F32);
    assert_int_equal(collective_scratch_bytes(&p.shape, 4, 0), 4 * 16 * 4);
    /* Of heads the pieces of those that share one, however many ranks there are. */
    p.shape.attributes.head_dim = 16;
    p.shape.attributes.group = 2;
    p.shape.kind = OP_GATHER_HEADS_GRAD;
    p.shape.out[0].rows = 1000;
    assert_true(collective_scratch_bytes(&p.shape, 8, 0) <= 2 * 2 * 1000 * 16 * 4 + 512);
    assert_int_equal(collective_scratch_bytes(&p.shape, 2, 0), 2 * 2 * 1000 * 16 * 4);
}

/* ---- by node ---- */

static const struct {
    int size, n;
} nodes[] = { { 4, 2 }, { 8, 2 }, { 8, 4 } };

static struct collective_play make_by_node(enum op_kind kind, int i, struct tensor in,
                                           struct tensor out)
{
    struct collective_play p = play_make(kind, nodes[i].size, in, out);

    assert_true(collective_goes_by_node(&p.shape, nodes[i].size, nodes[i].n, false));
    p.n_on_node = nodes[i].n;
    return p;
}

static void gathers_go_by_node(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(nodes); i++)
        for (int d = 0; d < COUNT(dtypes); d++) {
            int size = nodes[i].size;
            struct collective_play p =
                make_by_node(OP_ALL_GATHER, i, play_dense(4, 1501, dtypes[d]),
                             play_dense(4 * size, 1501, dtypes[d]));

            play_run(&p);
            for (int r = 0; r < size; r++)
                for (int k = 0; k < size; k++)
                    assert_memory_equal(p.out[r] + (size_t)k * p.in_bytes, p.before[k], p.in_bytes);
            play_release(&p);
        }
}

/* Sums of bf16 on nodes of two are no fewer bytes. */
static bool is_by_node(int i, enum dtype dtype)
{
    return dtype == DTYPE_F32 || nodes[i].n > 2;
}

static void check_scatter_by_node(int i, enum dtype dtype, int adds)
{
    int size = nodes[i].size;
    int64_t part = 4001;
    struct collective_play p = make_by_node(OP_REDUCE_SCATTER, i, play_dense(1, part * size, dtype),
                                            play_dense(1, part, dtype));

    p.adds = adds;
    play_run(&p);
    for (int r = 0; r < size; r++)
        for (int64_t k = 0; k < part; k++) {
            unsigned char number[8];
            double sum = play_sum_at(&p, 0, size, r * part + k), before = (double)k;

            if (dtype == DTYPE_BF16) {
                uint16_t rounded = bf16_from_float((float)sum), old = bf16_from_float((float)k);

                memcpy(number, &rounded, sizeof rounded);
                sum = play_get(dtype, number, 0);
                before = (double)bf16_to_float(old);
            }
            play_expect(&p, r, k, adds ? (double)((float)before + (float)sum) : sum);
        }
    play_release(&p);
}

static void sums_go_by_node(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(nodes); i++)
        for (int d = 0; d < 2; d++)
            for (int adds = 0; adds < 2 && is_by_node(i, dtypes[d]); adds++)
                check_scatter_by_node(i, dtypes[d], adds);
}

static void all_reduces_go_by_node(void **state)
{
    static const int64_t lengths[] = { 36000, PLAY_N_NUMBERS };

    (void)state;
    for (int i = 0; i < COUNT(nodes); i++)
        for (int d = 0; d < 2; d++)
            for (int k = 0; k < 4 && is_by_node(i, dtypes[d]); k++) {
                struct tensor x = play_dense(1, lengths[k / 2], dtypes[d]);
                struct collective_play p = make_by_node(OP_ALL_REDUCE, i, x, x);

                p.in_place = k % 2;
                play_run(&p);
                for (int64_t at = 0; at < x.cols; at++) {
                    double wanted = play_sum_at(&p, 0, p.size, at);

                    for (int r = 0; r < p.size; r++)
                        play_expect(&p, r, at, wanted);
                }
                play_release(&p);
            }
}

static void what_goes_by_node(void **state)
{
    struct tensor large = play_dense(1, 80000, DTYPE_F32), small = play_dense(1, 1000, DTYPE_F32);
    struct tensor half = play_dense(1, 80000, DTYPE_BF16);
    struct collective_play p = play_make(OP_ALL_REDUCE, 8, large, large);

    (void)state;
    assert_true(collective_goes_by_node(&p.shape, 8, 4, false));
    assert_true(collective_goes_by_node(&p.shape, 8, 4, true));
    /* All ranks on one node, or each on its own; and where the tree has no such part. */
    assert_false(collective_goes_by_node(&p.shape, 8, 8, false));
    assert_false(collective_goes_by_node(&p.shape, 8, 1, false));
    assert_false(collective_goes_by_node(&p.shape, 9, 3, false));
    /* Each rank sends the terms of 10000 numbers to four others, then 10000 numbers; by node to
     * one other. */
    assert_int_equal(collective_bytes_between_nodes(&p.shape, 8, 4, false, false),
                     4 * 2 * 4 * 40000);
    assert_int_equal(collective_bytes_between_nodes(&p.shape, 8, 4, true, true), 4 * 2 * 40000);
    /* Codes of gradients: a row for each rank, or a rank's row for all. */
    p = play_make(OP_EXCHANGE_CODES, 8, play_dense(8, 500, DTYPE_U8), play_dense(8, 500, DTYPE_U8));
    assert_int_equal(collective_bytes_between_nodes(&p.shape, 8, 4, true, true), 4 * 4 * 500);
    p = play_make(OP_GATHER_CODES, 8, play_dense(1, 100, DTYPE_I32), play_dense(8, 100, DTYPE_I32));
    assert_int_equal(collective_bytes_between_nodes(&p.shape, 8, 4, false, false), 4 * 4 * 400);
    assert_int_equal(collective_bytes_between_nodes(&p.shape, 8, 4, true, true), 4 * 400);
    p = play_make(OP_ALL_REDUCE, 8, half, half);
    assert_true(collective_goes_by_node(&p.shape, 8, 4, false));
    assert_false(collective_goes_by_node(&p.shape, 8, 4, true));
    assert_false(collective_goes_by_node(&p.shape, 8, 2, false));
    p = play_make(OP_ALL_REDUCE, 8, small, small);
    assert_false(collective_goes_by_node(&p.shape, 8, 4, false));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_gather_of_rows),       cmocka_unit_test(reduce_scatter_of_rows),
        cmocka_unit_test(reduce_scatter_that_adds), cmocka_unit_test(all_reduce),
        cmocka_unit_test(all_reduce_of_scalars),    cmocka_unit_test(gather_heads),
        cmocka_unit_test(gather_heads_grad),        cmocka_unit_test(scratch),
        cmocka_unit_test(gathers_go_by_node),       cmocka_unit_test(sums_go_by_node),
        cmocka_unit_test(all_reduces_go_by_node),   cmocka_unit_test(what_goes_by_node),
    };

    return cmocka_run_group_tests(tests, play_fill_numbers, NULL);
}
