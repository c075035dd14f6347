/*
 * keep_mix_test.c - quick choices against all assignments of points to layers
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/num.h"
#include "plan/keep_mix.h"

enum { N_KINDS = 2, N_POINTS = 4, N_LAYERS_MAX = 6, N_CASES = 600 };

static uint64_t state_of_dice = 7;

static int roll(int n)
{
    state_of_dice = state_of_dice * 6364136223846793005U + 1442695040888963407U;
    return (int)((state_of_dice >> 33) % (uint64_t)n);
}

struct instance {
    struct mix_point points[N_KINDS][N_POINTS];
    struct mix_kind kinds[N_KINDS];
    struct mix_group groups[N_KINDS];
    struct mix_problem problem;
};

/* More recomputation takes more time and keeps less, not always along a hull. */
static void make(struct instance *in)
{
    *in = (struct instance){ .problem = { .n_kinds = N_KINDS, .n_groups = N_KINDS } };
    for (int k = 0; k < N_KINDS; k++) {
        int ns = 0, kept = 100 + roll(100);

        for (int i = 0; i < N_POINTS; i++) {
            in->points[k][i] = (struct mix_point){ ns, kept, roll(10), 0 };
            ns += 1 + roll(60);
            kept -= roll(kept / 2);
        }
        in->kinds[k] = (struct mix_kind){ in->points[k], N_POINTS };
        in->groups[k] = (struct mix_group){ k, 1 + roll(N_LAYERS_MAX / 2), 1 + roll(3) };
    }
    in->problem.kinds = in->kinds;
    in->problem.groups = in->groups;
    in->problem.slot_bytes = roll(50);
    in->problem.n_slots = 1 + roll(4);
    in->problem.n_handed = roll(2);
}

/* What an assignment takes, by its number. */
static int64_t sum_of(const struct instance *in, int code, int64_t *n_bytes)
{
    const struct mix_problem *p = &in->problem;
    int64_t slot = p->slot_bytes, handed = p->handed_bytes, ns = 0;

    for (int g = 0; g < p->n_groups; g++)
        for (int i = 0; i < in->groups[g].n_layers; i++, code /= N_POINTS) {
            const struct mix_point *point = &in->points[g][code % N_POINTS];

            slot += point->slot_bytes;
            handed += point->handed_bytes;
            ns += in->groups[g].n_chunks * point->ns;
        }
    *n_bytes = p->n_slots * slot + p->n_handed * handed + p->scratch_bytes;
    return ns;
}

static int count_codes(const struct instance *in)
{
    int n = 1;

    for (int g = 0; g < in->problem.n_groups; g++)
        for (int i = 0; i < in->groups[g].n_layers; i++)
            n *= N_POINTS;
    return n;
}

/* The longest step of one layer along any of the hulls. */
static int64_t longest_step(const struct instance *in)
{
    int64_t longest = 0;

    for (int k = 0; k < N_KINDS; k++) {
        struct mix_point points[N_POINTS];

        for (int i = 0; i < N_POINTS; i++)
            points[i] = in->points[k][i];
        int n =
            keep_mix_hull(points, N_POINTS, in->problem.n_slots, in->problem.n_handed, N_POINTS);
        for (int i = 1; i < n; i++)
            longest = max_i64(longest, in->groups[k].n_chunks * (points[i].ns - points[i - 1].ns));
    }
    return longest;
}

static void test_a_choice_is_within_a_step_of_the_best(void **state)
{
    int n_fit = 0, n_best = 0;

    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        struct arena arena = { 0 };
        struct instance in;
        struct mix mix;
        int64_t most, n_bytes, best = INT64_MAX;

        make(&in);
        sum_of(&in, 0, &most);
        in.problem.available = roll((int)most + 100);
        keep_mix(&mix, &in.problem, &arena);
        for (int code = 0; code < count_codes(&in); code++) {
            int64_t ns = sum_of(&in, code, &n_bytes);

            if (n_bytes <= in.problem.available)
                best = min_i64(best, ns);
        }
        assert_true(mix.fits == (mix.n_bytes <= in.problem.available));
        assert_int_equal(mix.fits, best < INT64_MAX);
        if (mix.fits) {
            assert_true(mix.ns >= best && (mix.ns == best || mix.ns < best + longest_step(&in)));
            n_fit++;
            n_best += mix.ns == best;
        }
        arena_release(&arena);
    }
    assert_true(n_fit > N_CASES / 4 && n_best > n_fit / 2);
}

/* What layers have of scratch counts, too. */
static void test_scratch_is_counted_once(void **state)
{
    const struct mix_point points[] = { { 0, 100, 0, 10 }, { 5, 40, 0, 30 } };
    const struct mix_kind kind = { points, 2 };
    const struct mix_group group = { 0, 2, 1 };
    struct mix_problem p = { .kinds = &kind,
                             .n_kinds = 1,
                             .groups = &group,
                             .n_groups = 1,
                             .n_slots = 1,
                             .scratch_bytes = 20,
                             .available = 220 };
    struct arena arena = { 0 };
    struct mix mix;

    (void)state;
    keep_mix(&mix, &p, &arena);
    assert_true(mix.fits && !mix.ns && mix.n_bytes == 220);
    p.available = 170;
    keep_mix(&mix, &p, &arena);
    assert_true(mix.fits && mix.ns == 5 && mix.n_bytes == 170);
    p.available = 169;
    keep_mix(&mix, &p, &arena);
    assert_true(mix.fits && mix.ns == 10 && mix.n_bytes == 110);
    p.available = 109;
    keep_mix(&mix, &p, &arena);
    assert_true(!mix.fits && mix.n_bytes == 110);
    arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_choice_is_within_a_step_of_the_best),
        cmocka_unit_test(test_scratch_is_counted_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
