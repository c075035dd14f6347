/*
 * memory_solver_test.c - the solver against all ways there are, and what its header promises
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "plan/memory_solver.h"

enum { N_CHUNKS_MAX = 2, N_LAYERS_MAX = 48, N_KINDS = 2, N_POINTS_MAX = 3, N_GROUPS_MAX = 3 };

static uint64_t state_of_dice = 11;

static int roll(int n)
{
    state_of_dice = state_of_dice * 6364136223846793005U + 1442695040888963407U;
    return (int)((state_of_dice >> 33) % (uint64_t)n);
}

/* ---- random instances ---- */

struct instance {
    struct memory_problem problem;
    struct memory_point points[N_KINDS][N_POINTS_MAX];
    struct memory_layer_kind kinds[N_KINDS];
    int kind_of_layer[N_CHUNKS_MAX][N_LAYERS_MAX];
    struct memory_chunk chunks[N_CHUNKS_MAX];
    struct memory_group groups[N_MEMORY_CLASSES][N_GROUPS_MAX];
};

static struct memory_traffic any_traffic(void)
{
    return (struct memory_traffic){ roll(20), roll(20) };
}

static void make_kinds(struct instance *in)
{
    for (int k = 0; k < N_KINDS; k++) {
        int ns = 0, kept = 60 + roll(60);

        in->kinds[k] = (struct memory_layer_kind){ .points = in->points[k],
                                                   .n_points = 1 + roll(N_POINTS_MAX),
                                                   .forward_ns = roll(30),
                                                   .backward_ns = roll(60),
                                                   .n_alike = roll(3) };
        for (int i = 0; i < in->kinds[k].n_points; i++) {
            struct memory_point *p = &in->points[k][i];

            *p = (struct memory_point){
                .added_ns = ns, .slot_bytes = kept, .scratch_bytes = roll(80), .n_parts = roll(3)
            };
            for (int part = 0; part < p->n_parts; part++)
                p->parts[part] = kept / 3;
            ns += roll(30);
            kept -= roll(kept);
        }
    }
}

static void make_groups(struct instance *in)
{
    for (int class = 0; class < N_MEMORY_CLASSES; class ++) {
        struct memory_groups *groups = &in->problem.groups[class];

        *groups = (struct memory_groups){ in->groups[class], roll(N_GROUPS_MAX), roll(10) };
        for (int i = 0; i < groups->n; i++) {
            struct memory_group *g = &in->groups[class][i];

            g->n_bytes = 5 + roll(40);
            g->host_ns = roll(20);
            for (int pass = 0; pass < N_MEMORY_PASSES; pass++) {
                g->traffic[pass] = any_traffic();
                g->host_traffic[pass] = any_traffic();
            }
        }
    }
}

static void make_instance(struct instance *in, int n_layers)
{
    *in = (struct instance){ .problem = { .kinds = in->kinds,
                                          .n_kinds = N_KINDS,
                                          .chunks = in->chunks,
                                          .n_chunks = 1 + roll(N_CHUNKS_MAX),
                                          .n_slots = 1 + roll(3),
                                          .n_micro_batches = 1 + roll(3),
                                          .may_move_parts = roll(3) > 0,
                                          .stay_copies = roll(3),
                                          .may_update_on_host = roll(2),
                                          .resident_bytes = 200,
                                          .scratch_bytes = roll(100),
                                          .update_ns = roll(20),
                                          .out_ns = 0.5 + roll(2),
                                          .in_ns = 0.5 + roll(2) } };
    in->problem.may_update_on_device = !in->problem.may_update_on_host || roll(2);
    make_kinds(in);
    make_groups(in);
    for (int c = 0; c < in->problem.n_chunks; c++) {
        int n = in->problem.n_chunks == 1 ? n_layers : n_layers / 2;

        in->chunks[c] = (struct memory_chunk){ in->kind_of_layer[c], n, roll(30) };
        for (int i = 0; i < n; i++)
            in->kind_of_layer[c][i] = roll(N_KINDS);
    }
}

/* ---- what a way takes, as the header's formulas say ---- */

struct tried {
    struct memory_layer_choice layers[N_CHUNKS_MAX][N_LAYERS_MAX];
    int n_away[N_MEMORY_CLASSES];
    bool is_host_update;
    int64_t bytes, ns;
};

struct totals {
    int64_t slot, scratch, added, moved, forward, backward;
};

static struct totals add_layers(const struct memory_problem *p, const struct tried *t)
{
    struct totals sum = { .scratch = p->scratch_bytes };

    for (int c = 0; c < p->n_chunks; c++) {
        int64_t slot = p->chunks[c].slot_bytes;

        for (int i = 0; i < p->chunks[c].n_layers; i++) {
            const struct memory_layer_kind *kind = &p->kinds[p->chunks[c].kind_of_layer[i]];
            const struct memory_point *point = &kind->points[t->layers[c][i].point];
            int64_t away = 0, n = p->n_micro_batches * (int64_t)max_int(1, kind->n_alike);

            for (int part = 0; part < point->n_parts; part++)
                away += t->layers[c][i].away >> part & 1 ? point->parts[part] : 0;
            slot += point->slot_bytes - away;
            sum.scratch = max_i64(sum.scratch, point->scratch_bytes + p->stay_copies * away);
            sum.added += n * point->added_ns;
            sum.moved += n * away;
            sum.forward += n * kind->forward_ns;
            sum.backward += n * kind->backward_ns;
        }
        sum.slot = max_i64(sum.slot, slot);
    }
    return sum;
}

static void price(const struct memory_problem *p, struct tried *t)
{
    const struct totals sum = add_layers(p, t);
    int64_t hides[] = { sum.forward, sum.backward + sum.added, p->update_ns };
    struct memory_traffic traffic[N_MEMORY_PASSES] = { { sum.moved, 0 }, { 0, sum.moved } };

    t->ns = sum.added;
    t->bytes = p->resident_bytes + p->n_slots * sum.slot + sum.scratch;
    for (int class = 0; class < N_MEMORY_CLASSES; class ++)
        for (int i = 0; i < t->n_away[class]; i++) {
            const struct memory_group *g = &p->groups[class].items[i];
            bool on_host = class == MEMORY_STATES && t->is_host_update;

            t->bytes += (i ? 0 : p->groups[class].buffer_bytes) - g->n_bytes;
            t->ns += on_host ? g->host_ns : 0;
            hides[MEMORY_UPDATE] += on_host ? g->host_ns : 0;
            for (int pass = 0; pass < N_MEMORY_PASSES; pass++) {
                traffic[pass].out += (on_host ? g->host_traffic : g->traffic)[pass].out;
                traffic[pass].in += (on_host ? g->host_traffic : g->traffic)[pass].in;
            }
        }
    for (int pass = 0; pass < N_MEMORY_PASSES; pass++) {
        double out = (double)traffic[pass].out * p->out_ns;
        double in = (double)traffic[pass].in * p->in_ns;

        t->ns += max_i64(0, (int64_t)(out > in ? out : in) - hides[pass]);
    }
}

/* ---- all ways ---- */

struct least {
    int64_t ns, bytes; /* of the fastest that fits, INT64_MAX: none; of the smallest of all */
};

static void try_groups(const struct memory_problem *p, struct tried *t, struct least *least)
{
    const struct memory_groups *g = p->groups;

    for (int code = 0; code < (g[0].n + 1) * (g[1].n + 1) * (g[2].n + 1) * 2; code++) {
        int rest = code / 2;

        t->is_host_update = code % 2;
        for (int class = 0; class < N_MEMORY_CLASSES; class ++) {
            t->n_away[class] = rest % (g[class].n + 1);
            rest /= g[class].n + 1;
        }
        if (t->n_away[MEMORY_STATES] &&
            !(t->is_host_update ? p->may_update_on_host : p->may_update_on_device))
            continue;
        price(p, t);
        least->bytes = min_i64(least->bytes, t->bytes);
        if (t->bytes <= p->budget_bytes)
            least->ns = min_i64(least->ns, t->ns);
    }
}

/* The next way of the layers, as an odometer; false behind the last. */
static bool advance(const struct memory_problem *p, struct tried *t)
{
    for (int c = 0; c < p->n_chunks; c++)
        for (int i = 0; i < p->chunks[c].n_layers; i++) {
            const struct memory_layer_kind *kind = &p->kinds[p->chunks[c].kind_of_layer[i]];
            struct memory_layer_choice *l = &t->layers[c][i];

            if (p->may_move_parts && ++l->away < 1U << kind->points[l->point].n_parts)
                return true;
            l->away = 0;
            if (++l->point < kind->n_points)
                return true;
            l->point = 0;
        }
    return false;
}

static struct least least_of_all(const struct memory_problem *p)
{
    struct least least = { INT64_MAX, INT64_MAX };
    struct tried t = { .ns = 0 };

    do {
        try_groups(p, &t, &least);
    } while (advance(p, &t));
    return least;
}

/* ---- tests ---- */

/* What the choice says of itself is what its layers and groups take. */
static void check_promise(const struct memory_problem *p, const struct memory_choice *choice)
{
    struct tried t = { .is_host_update = choice->is_host_update };

    memcpy(t.n_away, choice->n_away, sizeof t.n_away);
    for (int c = 0; c < p->n_chunks; c++)
        memcpy(t.layers[c], choice->layers[c],
               sizeof *choice->layers[c] * (size_t)p->chunks[c].n_layers);
    price(p, &t);
    assert_int_equal(choice->ns, t.ns);
    assert_true(choice->bytes >= t.bytes); /* a layer may have less scratch than its cap */
    assert_int_equal(choice->fits, choice->bytes <= p->budget_bytes);
    for (int c = 0; c < p->n_chunks; c++)
        for (int i = 0; i < p->chunks[c].n_layers; i++)
            for (int j = 0; j < i; j++) {
                int kind = p->chunks[c].kind_of_layer[i];
                const struct memory_point *points = p->kinds[kind].points;

                if (p->chunks[c].kind_of_layer[j] == kind)
                    assert_true(points[t.layers[c][i].point].added_ns <=
                                points[t.layers[c][j].point].added_ns);
            }
}

static struct memory_choice solve(struct memory_problem *p, int64_t budget, struct arena *arena)
{
    struct memory_choice choice;

    p->budget_bytes = budget;
    memory_solve(&choice, p, arena);
    check_promise(p, &choice);
    return choice;
}

static void nothing_is_better(void **state)
{
    int n_fit = 0, n_mixed = 0, n_not = 0;

    (void)state;
    for (int n = 0; n < 200; n++) {
        struct arena arena = { 0 };
        struct instance in;

        make_instance(&in, 1 + roll(n % 10 ? 3 : 4));
        struct memory_choice choice = solve(&in.problem, 200 + roll(700), &arena);
        struct least least = least_of_all(&in.problem);
        assert_false(choice.is_thinned);
        assert_int_equal(choice.fits, least.ns < INT64_MAX);
        if (choice.fits)
            assert_int_equal(choice.ns, least.ns);
        else
            assert_int_equal(choice.bytes, least.bytes);
        n_fit += choice.fits;
        n_not += !choice.fits;
        n_mixed += choice.fits && choice.moved_bytes && choice.recompute_ns;
        arena_release(&arena);
    }
    assert_true(n_fit > 60 && n_not > 10 && n_mixed > 10);
}

/* Six layers that only recompute: all assignments of points to layers. */
static void six_layers_without_links(void **state)
{
    (void)state;
    for (int n = 0; n < 60; n++) {
        struct arena arena = { 0 };
        struct instance in;

        make_instance(&in, 6);
        in.problem.may_move_parts = false;
        memset(in.problem.groups, 0, sizeof in.problem.groups);
        struct memory_choice choice = solve(&in.problem, 300 + roll(1200), &arena);
        struct least least = least_of_all(&in.problem);
        assert_int_equal(choice.fits, least.ns < INT64_MAX);
        assert_int_equal(choice.fits ? choice.ns : choice.bytes,
                         choice.fits ? least.ns : least.bytes);
        assert_int_equal(choice.moved_bytes, 0);
        assert_int_equal(choice.ns, choice.recompute_ns);
        arena_release(&arena);
    }
}

/* The least budget with which an answer is as fast is what it takes: with one byte less it is
 * slower, or there is none. More is never slower. */
static void budgets_have_edges(void **state)
{
    (void)state;
    for (int n = 0; n < 8; n++) {
        struct arena arena = { 0 };
        struct instance in;
        int64_t before = INT64_MAX;

        make_instance(&in, 1 + roll(6));
        int64_t low = solve(&in.problem, 0, &arena).bytes;
        int64_t high = solve(&in.problem, INT64_MAX / 2, &arena).bytes;
        assert_false(solve(&in.problem, low - 1, &arena).fits);
        for (int64_t budget = low; budget <= high + 1; budget++) {
            struct memory_choice choice = solve(&in.problem, budget, &arena);

            assert_true(choice.fits);
            assert_true(choice.ns <= before);
            before = choice.ns;
        }
        assert_int_equal(before, solve(&in.problem, INT64_MAX / 2, &arena).ns);
        assert_int_equal(before, 0);
        arena_release(&arena);
    }
}

/* Copies that a pass hides cost nothing, so nothing is recomputed; where there is room, nothing
 * moves. */
static void links_are_free_while_they_hide(void **state)
{
    struct memory_point points[] = {
        { .added_ns = 0, .slot_bytes = 100, .parts = { 60, 40 }, .n_parts = 2 },
        { .added_ns = 50, .slot_bytes = 40, .parts = { 40 }, .n_parts = 1 },
    };
    const struct memory_layer_kind kind = {
        .points = points, .n_points = 2, .forward_ns = 100, .backward_ns = 200
    };
    const int kinds[8] = { 0 };
    const struct memory_chunk chunk = { kinds, 8, 0 };
    struct memory_problem p = { .kinds = &kind,
                                .n_kinds = 1,
                                .chunks = &chunk,
                                .n_chunks = 1,
                                .n_slots = 1,
                                .n_micro_batches = 2,
                                .may_move_parts = true,
                                .may_update_on_device = true,
                                .out_ns = 1,
                                .in_ns = 1 };
    struct arena arena = { 0 };

    (void)state;
    struct memory_choice choice = solve(&p, 800, &arena);
    assert_int_equal(choice.moved_bytes, 0);
    assert_int_equal(choice.ns, 0);
    choice = solve(&p, 799, &arena);
    assert_int_equal(choice.moved_bytes, 2 * 2 * 40);
    assert_int_equal(choice.ns, 0);
    choice = solve(&p, 0, &arena);
    assert_true(choice.fits);
    assert_int_equal(choice.ns, 0);
    p.out_ns = 4; /* 25 bytes of a layer are hidden */
    choice = solve(&p, 600, &arena);
    assert_int_equal(choice.ns, 0);
    choice = solve(&p, 320, &arena);
    assert_true(choice.recompute_ns > 0);
    p.may_move_parts = false;
    choice = solve(&p, 320, &arena);
    assert_int_equal(choice.recompute_ns, 2 * 8 * 50);
    assert_false(solve(&p, 319, &arena).fits);
    arena_release(&arena);
}

/* As many layers and ways as a large model has: it is done at once, and says that it was thinned.
 * More budget is not slower then, either. */
static void large_ranks_are_thinned(void **state)
{
    enum { N_LARGE = N_LAYERS_MAX, N_WAYS = 10 };
    struct memory_point points[N_WAYS];
    struct memory_layer_kind kind = {
        .points = points, .n_points = N_WAYS, .forward_ns = 1000000, .backward_ns = 2000000
    };
    int kinds[N_LARGE] = { 0 };
    struct memory_chunk chunk = { kinds, N_LARGE, 0 };
    struct memory_problem p = { .kinds = &kind,
                                .n_kinds = 1,
                                .chunks = &chunk,
                                .n_chunks = 1,
                                .n_slots = 4,
                                .n_micro_batches = 8,
                                .may_move_parts = true,
                                .may_update_on_device = true,
                                .out_ns = 0.02,
                                .in_ns = 0.02 };
    struct arena arena = { 0 };
    int64_t before = INT64_MAX;

    (void)state;
    for (int i = 0; i < N_WAYS; i++) {
        int64_t kept = 300000007 - 29000011 * i;

        points[i] = (struct memory_point){ .added_ns = 70001 * i * i + 31 * i,
                                           .slot_bytes = kept,
                                           .parts = { kept / 3, kept / 5 },
                                           .n_parts = 2 };
    }
    bool is_thinned = false;
    for (int64_t budget = 5000000000; budget < 60000000000; budget += 5000000000) {
        struct memory_choice choice = solve(&p, budget, &arena);

        assert_true(choice.fits);
        assert_true(choice.ns <= before);
        before = choice.ns;
        is_thinned |= choice.is_thinned;
    }
    assert_true(is_thinned);
    arena_release(&arena);
}

/* Of many groups not all numbers are tried; what is found is hardly worse. */
static void many_groups_are_tried_in_part(void **state)
{
    enum { N_MANY = 90 };
    struct memory_group gradients[N_MANY] = { 0 }, weights[N_MANY] = { 0 };

    (void)state;
    for (int i = 0; i < N_MANY; i++) {
        gradients[i].n_bytes = 40 + roll(20);
        gradients[i].traffic[MEMORY_BACKWARD] = (struct memory_traffic){ 200, 200 };
        weights[i].n_bytes = 20 + roll(10);
        weights[i].traffic[MEMORY_FORWARD].in = weights[i].traffic[MEMORY_BACKWARD].in = 90;
    }
    for (int n = 0; n < 10; n++) {
        struct arena arena = { 0 };
        struct instance in;

        make_instance(&in, 3);
        in.problem.may_move_parts = false;
        in.problem.groups[MEMORY_STATES].n = 0;
        in.problem.groups[MEMORY_GRADIENTS] = (struct memory_groups){ gradients, N_MANY, 50 };
        in.problem.groups[MEMORY_WEIGHTS] = (struct memory_groups){ weights, N_MANY, 50 };
        in.problem.resident_bytes = 8000;
        struct memory_choice choice = solve(&in.problem, 2500 + roll(6000), &arena);
        struct least least = least_of_all(&in.problem);
        assert_true(choice.fits && choice.is_thinned);
        assert_true(choice.ns >= least.ns && choice.ns <= least.ns + least.ns / 50);
        arena_release(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_better),       cmocka_unit_test(six_layers_without_links),
        cmocka_unit_test(budgets_have_edges),      cmocka_unit_test(links_are_free_while_they_hide),
        cmocka_unit_test(large_ranks_are_thinned), cmocka_unit_test(many_groups_are_tried_in_part),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
