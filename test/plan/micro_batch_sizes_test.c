/*
 * micro_batch_sizes_test.c - DPP's examples in simulation, and the search against all lists
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "plan/micro_batch_sizes.h"

enum { SIZES_MAX = 16, STAGES_MAX = 64, LIST_MAX = 128 };

struct costs {
    int64_t f[SIZES_MAX * STAGES_MAX], i[SIZES_MAX * STAGES_MAX], w[SIZES_MAX * STAGES_MAX];
    int64_t transfers[SIZES_MAX];
};

static struct micro_batch_sizes_request request_of(const struct costs *costs, int n_ranks,
                                                   int n_sequences, int n_sizes)
{
    return (struct micro_batch_sizes_request){ .n_ranks = n_ranks,
                                               .n_chunks = 1,
                                               .n_sequences = n_sequences,
                                               .n_sizes = n_sizes,
                                               .f = costs->f,
                                               .i = costs->i,
                                               .w = costs->w,
                                               .transfers = costs->transfers };
}

/* F = s, B = 2 s, with a fixed part of each. */
static void fill_linear(struct costs *costs, int n_stages, int64_t fixed, int64_t a_sequence)
{
    memset(costs, 0, sizeof *costs);
    for (int k = 0; k < SIZES_MAX; k++)
        for (int s = 0; s < n_stages; s++) {
            int at = k * n_stages + s;

            costs->f[at] = costs->i[at] = costs->w[at] = fixed + a_sequence * (k + 1);
        }
}

static int64_t time_of(const struct micro_batch_sizes_request *r, const int *sizes, int n,
                       int64_t *bubble)
{
    struct err err;
    int64_t ns;
    int sum = 0;

    for (int m = 0; m < n; m++)
        sum += sizes[m];
    assert_int_equal(sum, r->n_sequences);
    if (micro_batch_sizes_time(&ns, bubble, r, sizes, n, &err))
        fail_msg("%s", err.text);
    return ns;
}

static struct micro_batch_sizes find(const struct micro_batch_sizes_request *r, struct arena *arena)
{
    struct micro_batch_sizes found;
    struct err err;

    if (micro_batch_sizes_find(&found, r, arena, &err))
        fail_msg("%s", err.text);
    int64_t bubble;
    assert_int_equal(time_of(r, found.sizes, found.n, &bubble), found.ns);
    assert_int_equal(bubble, found.bubble);
    return found;
}

/* The example configurations of AscendSpeed's manual_mbs against micro-batches of 4: bubbles that
 * are 31 and 24 % shorter, steps 5.1 and 5.7 % faster. */
static void test_examples(void **state)
{
    static const int first[] = { 1, 2, 3, 4, 5, 5, 5, 5, 5, 5, 5, 5, 5, 4, 3, 2 };
    static const int second[] = { 1, 2, 2, 3, 4, 5, 5, 5, 5, 5, 5, 5,
                                  5, 5, 5, 5, 5, 5, 4, 4, 3, 3, 3, 2 };
    static const struct {
        const int *sizes;
        int n, n_ranks, n_sequences, shorter, faster; /* percent, and tenths of it */
    } rows[] = {
        { first, 16, 4, 64, 31, 51 },
        { second, 24, 8, 96, 24, 57 },
    };

    (void)state;
    for (int k = 0; k < 2; k++) {
        struct arena arena = { 0 };
        struct costs costs;
        int even[LIST_MAX], n_even = rows[k].n_sequences / 4;
        int64_t bubble, even_bubble;

        fill_linear(&costs, rows[k].n_ranks, 0, 1000);
        struct micro_batch_sizes_request r =
            request_of(&costs, rows[k].n_ranks, rows[k].n_sequences, 5);
        for (int m = 0; m < n_even; m++)
            even[m] = 4;
        int64_t ns = time_of(&r, rows[k].sizes, rows[k].n, &bubble);
        int64_t even_ns = time_of(&r, even, n_even, &even_bubble);
        assert_int_equal((1000 * (even_bubble - bubble) / even_bubble + 5) / 10, rows[k].shorter);
        assert_int_equal((10000 * (even_ns - ns) / ns + 5) / 10, rows[k].faster);

        struct micro_batch_sizes found = find(&r, &arena);
        assert_true(found.ns <= ns);
        assert_true(found.ns <= found.even_ns);
        arena_release(&arena);
    }
}

static int draw(uint64_t *seed, int n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (int)((*seed >> 33) % (uint64_t)n);
}

/* Larger micro-batches take less time a sequence, stages differ. */
static void fill_drawn(struct costs *costs, int n_stages, uint64_t *seed)
{
    for (int k = 0; k < SIZES_MAX; k++)
        for (int s = 0; s < n_stages; s++) {
            int at = k * n_stages + s;

            costs->f[at] = 20 + draw(seed, 20) + 40 * (k + 1) + draw(seed, 20);
            costs->i[at] = 20 + draw(seed, 20) + 45 * (k + 1) + draw(seed, 20);
            costs->w[at] = 10 + draw(seed, 20) + 35 * (k + 1) + draw(seed, 20);
        }
    for (int k = 0; k < SIZES_MAX; k++)
        costs->transfers[k] = draw(seed, 10) * (k + 1);
}

/* The least of all lists that rise and fall, with no size but the largest more than three times on
 * a side. */
struct all_lists {
    const struct micro_batch_sizes_request *request;
    int sizes[LIST_MAX], n, left;
    int64_t best;
    int n_lists;
};

static bool is_allowed(const int *sizes, int n)
{
    int top = 0;

    for (int m = 0; m < n; m++)
        top = max_int(top, sizes[m]);
    for (int begin = 0, end; begin < n; begin = end) {
        for (end = begin; end < n && sizes[end] == sizes[begin];)
            end++;
        if (sizes[begin] != top && end - begin > 3)
            return false;
        if (begin > 0 && end < n && sizes[begin] < sizes[begin - 1] && sizes[begin] < sizes[end])
            return false; /* a valley */
    }
    return true;
}

static void try_all(struct all_lists *all)
{
    int64_t bubble;

    if (!all->left) {
        if (!is_allowed(all->sizes, all->n))
            return;
        all->n_lists++;
        all->best = min_i64(all->best, time_of(all->request, all->sizes, all->n, &bubble));
        return;
    }
    for (int size = 1; size <= min_int(all->left, all->request->n_sizes); size++) {
        if (all->request->is_left_out && all->request->is_left_out[size - 1])
            continue;
        all->sizes[all->n++] = size;
        all->left -= size;
        try_all(all);
        all->left += size;
        all->n--;
    }
}

static void test_is_the_best(void **state)
{
    static const bool left_out[] = { true, false, true };
    uint64_t seed = 7;

    (void)state;
    for (int k = 0; k < 24; k++) {
        struct arena arena = { 0 };
        struct costs costs;
        int n_ranks = 1 + k % 4, n_chunks = 1 + k % 3 / 2;

        fill_drawn(&costs, n_ranks * n_chunks, &seed);
        struct micro_batch_sizes_request r =
            request_of(&costs, n_ranks, 8 + k % 5 - (k % 8 == 7), 2 + k % 2);
        r.n_chunks = n_chunks;
        if (k % 8 == 7 && r.n_sizes == 3 && r.n_sequences % 2 == 0)
            r.is_left_out = left_out;
        struct all_lists all = { .request = &r, .left = r.n_sequences, .best = INT64_MAX };
        try_all(&all);
        struct micro_batch_sizes found = find(&r, &arena);
        assert_int_equal(found.ns, all.best);
        assert_int_equal(found.n_lists, all.n_lists);
        arena_release(&arena);
    }
}

/* Where each micro-batch costs as much whatever its size, few and large ones are best; where
 * nothing is fixed and there is one rank, all lists take as long. */
static void test_extremes(void **state)
{
    struct arena arena = { 0 };
    struct costs costs;

    (void)state;
    fill_linear(&costs, 1, 100, 0);
    struct micro_batch_sizes_request r = request_of(&costs, 1, 16, 8);
    struct micro_batch_sizes found = find(&r, &arena);
    assert_int_equal(found.n, 2);
    assert_int_equal(found.sizes[0], 8);
    fill_linear(&costs, 1, 0, 10);
    found = find(&r, &arena);
    assert_int_equal(found.ns, found.even_ns);
    assert_int_equal(found.bubble, 0);
    assert_int_equal(found.n_simulated, 1);
    arena_release(&arena);
}

static void test_no_list(void **state)
{
    static const bool left_out[] = { true, false };
    struct micro_batch_sizes found;
    struct arena arena = { 0 };
    struct costs costs;
    struct err err;

    (void)state;
    fill_linear(&costs, 2, 0, 10);
    struct micro_batch_sizes_request r = request_of(&costs, 2, 7, 2);
    r.is_left_out = left_out;
    assert_int_equal(micro_batch_sizes_find(&found, &r, &arena, &err), -1);
    assert_string_equal(err.text, "no list of micro-batches of 1 to 2 sequences adds up to 7");
    arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples),
        cmocka_unit_test(test_is_the_best),
        cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_no_list),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
