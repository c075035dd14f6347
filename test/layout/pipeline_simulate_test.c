/*
 * pipeline_simulate_test.c - simulated times are the papers' closed forms, and a second simulator's
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/num.h"
#include "layout/pipeline.h"

#define STAGES_MAX 128
#define MICRO_BATCHES_MAX 64

static void fill(int64_t *costs, int64_t cost)
{
    for (int stage = 0; stage < STAGES_MAX; stage++)
        costs[stage] = cost;
}

/* Build and run with equal stages and no transfer time. */
static struct pipeline_timing run(struct pipeline *pipeline, const struct pipeline_spec *spec,
                                  int64_t f, int64_t i, int64_t w, struct arena *arena)
{
    int64_t fs[STAGES_MAX], is[STAGES_MAX], ws[STAGES_MAX];
    struct pipeline_costs costs = { .f = fs, .i = is, .w = ws };
    struct pipeline_timing timing;
    struct err err;

    fill(fs, f);
    fill(is, i);
    fill(ws, w);
    assert_int_equal(pipeline_build(pipeline, spec, arena, &err), 0);
    assert_int_equal(pipeline_simulate(&timing, pipeline, &costs, arena, &err), 0);
    return timing;
}

/* ---- bubbles ---- */

/*
 * F, I and W are a stage's, so a rank's are v times that. Where the bubble is known in closed form:
 *
 *   gpipe, 1f1b     (p-1)(F+B), any F and B. Narayanan et al. 2021, arXiv:2104.04473, §2.2.1;
 *                   also Huang et al. 2019, arXiv:1811.06965, §2.3
 *   interleaved     (p-1)(F+B)/v of the rank's F and B. The same, §2.2.2; p divides m
 *   breadth-first   the same. Lamy-Poirier 2023, arXiv:2211.05953; m >= p
 *   zb-h1           (p-1)(F+I-W). Qi et al. 2023, arXiv:2401.10241, §2.3, F = I = W; m >= p
 *   zb-h2           (p-1)(F+I-2W). The same; m >= 2p-1
 *   zb-v            0. The same, §6; F = I = W, m >= 2p-1
 *   dynamic         as interleaved where all sizes are 1
 *
 * -1 where it is not known.
 */
static int64_t closed_form(const struct pipeline_spec *spec, int64_t f, int64_t i, int64_t w)
{
    int p = spec->n_ranks, v = spec->n_chunks, m = spec->n_micro_batches;
    int equal = f == i && i == w;

    switch (spec->kind) {
    case PIPELINE_GPIPE:
    case PIPELINE_1F1B:
        return (p - 1) * (f + i + w);
    case PIPELINE_INTERLEAVED:
    case PIPELINE_DYNAMIC:
        return v == 1 || m % p == 0 ? (p - 1) * (f + i + w) : -1;
    case PIPELINE_BREADTH_FIRST:
        return v == 1 || m >= p ? (p - 1) * (f + i + w) : -1;
    case PIPELINE_ZB_H1:
        return equal && m >= p ? (p - 1) * (f + i - w) : -1;
    case PIPELINE_ZB_H2:
        return equal && m >= 2 * p - 1 ? (p - 1) * (f + i - 2 * w) : -1;
    case PIPELINE_ZB_V:
        return equal && m >= 2 * p - 1 ? 0 : -1;
    default:
        return -1;
    }
}

static int check_bubble(const struct pipeline_spec *spec, int64_t f, int64_t i, int64_t w)
{
    int64_t expected = closed_form(spec, f, i, w);
    struct arena arena = { 0 };
    struct pipeline pipeline;
    struct pipeline_timing timing;
    int64_t work = (int64_t)spec->n_micro_batches * spec->n_chunks * (f + i + w);

    if (expected < 0)
        return 0;
    timing = run(&pipeline, spec, f, i, w, &arena);
    if (timing.bubble != expected || timing.span != work + expected)
        fail_msg("%s p %d v %d m %d, F %d I %d W %d: bubble %d, closed form %d",
                 pipeline_name(spec->kind), spec->n_ranks, spec->n_chunks, spec->n_micro_batches,
                 (int)f, (int)i, (int)w, (int)timing.bubble, (int)expected);
    for (int rank = 0; rank < spec->n_ranks; rank++)
        assert_int_equal(timing.ranks[rank].busy, work);
    arena_release(&arena);
    return 1;
}

static void bubbles_are_the_closed_forms(void **state)
{
    static const int64_t costs[][3] = { { 1, 1, 1 }, { 3, 3, 3 }, { 2, 5, 1 }, { 5, 1, 2 } };
    int ones[MICRO_BATCHES_MAX], n_checked[N_PIPELINE_KINDS] = { 0 };
    struct pipeline_spec spec = { .sizes = ones };
    struct err err;

    (void)state;
    for (int m = 0; m < MICRO_BATCHES_MAX; m++)
        ones[m] = 1;
    for (int kind = 0; kind < N_PIPELINE_KINDS; kind++)
        for (int p = 1; p <= 16; p++)
            for (int v = 1; v <= 4; v++)
                for (int m = 1; m <= MICRO_BATCHES_MAX; m++) {
                    spec.kind = (enum pipeline_kind)kind;
                    spec.n_ranks = p;
                    spec.n_chunks = v;
                    spec.n_micro_batches = m;
                    if (pipeline_check(&spec, &err))
                        continue;
                    /* Unequal costs for some: it is the same lists. */
                    for (int c = 0; c < (m % 8 == 0 ? 4 : 1); c++)
                        n_checked[kind] +=
                            check_bubble(&spec, costs[c][0], costs[c][1], costs[c][2]);
                }
    for (int kind = 0; kind < N_PIPELINE_KINDS; kind++)
        assert_in_range(n_checked[kind], 500, 100000);
}

/* Outside of the conditions: how much worse at most. What the header says about short steps. */
static void other_numbers_of_micro_batches(void **state)
{
    (void)state;
    for (int p = 2; p <= 8; p++)
        for (int m = 1; m <= 40; m++) {
            struct pipeline_spec flat = { PIPELINE_1F1B, p, 1, m, 0, NULL };
            struct arena arena = { 0 };
            struct pipeline pipeline;
            int64_t flat_span = run(&pipeline, &flat, 4, 4, 4, &arena).span;

            for (int v = 2; v <= 4; v += 2) {
                struct pipeline_spec spec = { PIPELINE_INTERLEAVED, p, v, m, 0, NULL };

                assert_true(run(&pipeline, &spec, 4 / v, 4 / v, 4 / v, &arena).span <= flat_span);
            }
            for (int kind = PIPELINE_ZB_H1; kind <= PIPELINE_ZB_V; kind++) {
                int v = kind == PIPELINE_ZB_V ? 2 : 1;
                struct pipeline_spec spec = { (enum pipeline_kind)kind, p, v, m, 0, NULL };

                assert_true(run(&pipeline, &spec, 4 / v, 4 / v, 4 / v, &arena).span <= flat_span);
            }
            arena_release(&arena);
        }
}

/* ---- what is held ---- */

static void expect_peak(const struct pipeline_spec *spec, int rank, int f_to_i, int f_to_w,
                        int i_to_w)
{
    struct arena arena = { 0 };
    struct pipeline pipeline;
    struct pipeline_slots peak = run(&pipeline, spec, 1, 1, 1, &arena).ranks[rank].peak;

    assert_int_equal(peak.f_to_i, f_to_i);
    assert_int_equal(peak.f_to_w, f_to_w);
    assert_int_equal(peak.i_to_w, i_to_w);
    arena_release(&arena);
}

/* Chunks' micro-batches alive on a rank: one is M_a / v. The sources are those of the bubbles. */
static void check_held(int p, int m, int r)
{
    struct pipeline_spec spec = { PIPELINE_GPIPE, p, 1, m, 0, NULL };
    int n;

    expect_peak(&spec, r, m, m, 0);
    spec.kind = PIPELINE_1F1B;
    expect_peak(&spec, r, min_int(p - r, m), min_int(p - r, m), 0);
    if (m >= p) {
        spec.kind = PIPELINE_ZB_H1;
        expect_peak(&spec, r, p - r, p, r + 1);
    }
    if (m >= 2 * p - 1) {
        spec.kind = PIPELINE_ZB_H2;
        expect_peak(&spec, r, 2 * (p - r) - 1, 2 * p - 1, 2 * r + 1);
    }
    for (spec.n_chunks = 2; spec.n_chunks <= 4; spec.n_chunks++) {
        spec.kind = PIPELINE_BREADTH_FIRST;
        expect_peak(&spec, r, m * spec.n_chunks, m * spec.n_chunks, 0);
        spec.kind = PIPELINE_INTERLEAVED;
        if (m % p)
            continue;
        n = min_int(2 * (p - 1 - r) + (spec.n_chunks - 1) * p + 1, m * spec.n_chunks);
        expect_peak(&spec, r, n, n, 0);
    }
}

static void held_as_the_papers_say(void **state)
{
    (void)state;
    for (int p = 1; p <= 10; p++)
        for (int m = 1; m <= 24; m++)
            for (int r = 0; r < p; r++)
                check_held(p, m, r);
}

/* 2p chunks of M_a / 2 on every rank, and never more; with equal costs no rank ever waits. */
static void zb_v_holds_the_same_everywhere(void **state)
{
    (void)state;
    for (int p = 1; p <= 16; p++)
        for (int m = 1; m <= 48; m++) {
            struct pipeline_spec spec = { PIPELINE_ZB_V, p, 2, m, 0, NULL };
            struct arena arena = { 0 };
            struct pipeline pipeline;
            struct pipeline_timing timing = run(&pipeline, &spec, 1, 1, 1, &arena);

            for (int rank = 0; rank < p; rank++) {
                const struct pipeline_rank_timing *at = &timing.ranks[rank];

                assert_in_range(at->peak.f_to_w, 1, min_int(2 * p, 2 * m));
                if (m < 2 * p - 1)
                    continue;
                assert_int_equal(at->peak.f_to_w, min_int(2 * p, 2 * m));
                assert_int_equal(at->last_end - at->first_start, at->busy);
                assert_int_equal(at->first_start, rank);
            }
            arena_release(&arena);
        }
}

/* ---- the simulator ---- */

#define STEPS_MAX 4096

/* Longest paths by brute force: raise every start until all that it waits for is met. */
struct relaxed {
    int64_t start[8][STEPS_MAX];
};

static const struct pipeline_step *find(const struct pipeline *pipeline, int stage, int micro_batch,
                                        int forward, int *rank, int *index)
{
    const struct pipeline_list *list;

    *rank = pipeline_rank_of(&pipeline->spec, stage);
    list = &pipeline->ranks[*rank];
    for (*index = 0; *index < list->n_steps; ++*index) {
        const struct pipeline_step *step = &list->steps[*index];
        int is_forward = step->kind == STEP_F, is_w = step->kind == STEP_W;

        if (step->chunk == pipeline_chunk_of(&pipeline->spec, stage) &&
            step->micro_batch == micro_batch && is_forward == forward && !is_w)
            return step;
    }
    fail_msg("stage %d, micro-batch %d is missing", stage, micro_batch);
    return NULL;
}

static int64_t duration(const struct pipeline *pipeline, const struct pipeline_costs *costs,
                        int rank, const struct pipeline_step *step)
{
    int stage = pipeline_stage_of(&pipeline->spec, rank, step->chunk);
    int64_t unit = step->kind == STEP_F   ? costs->f[stage]
                   : step->kind == STEP_I ? costs->i[stage]
                   : step->kind == STEP_W ? costs->w[stage]
                                          : costs->i[stage] + costs->w[stage];

    return unit * costs->sizes[step->micro_batch];
}

/* The earliest start of a step, given all others'. */
static int64_t bound(const struct relaxed *relaxed, const struct pipeline *pipeline,
                     const struct pipeline_costs *costs, int rank, int k)
{
    const struct pipeline_step *steps = pipeline->ranks[rank].steps, *step = &steps[k];
    int stage = pipeline_stage_of(&pipeline->spec, rank, step->chunk);
    int source = step->kind == STEP_F ? stage - 1 : stage + 1, other, at;
    int64_t least = 0;

    if (k > 0)
        least = relaxed->start[rank][k - 1] + duration(pipeline, costs, rank, &steps[k - 1]);
    if (step->kind == STEP_W || source < 0 || source == pipeline_n_stages(&pipeline->spec))
        return least;
    step = find(pipeline, source, steps[k].micro_batch, step->kind == STEP_F, &other, &at);
    return max_i64(least,
                   relaxed->start[other][at] + duration(pipeline, costs, other, step) +
                       (other == rank ? 0 : costs->transfer * costs->sizes[step->micro_batch]));
}

static void relax(struct relaxed *relaxed, const struct pipeline *pipeline,
                  const struct pipeline_costs *costs)
{
    int moved = 1;

    for (int rank = 0; rank < pipeline->spec.n_ranks; rank++)
        for (int k = 0; k < pipeline->ranks[rank].n_steps; k++)
            relaxed->start[rank][k] = 0;
    while (moved) {
        moved = 0;
        for (int rank = 0; rank < pipeline->spec.n_ranks; rank++)
            for (int k = 0; k < pipeline->ranks[rank].n_steps; k++) {
                int64_t least = bound(relaxed, pipeline, costs, rank, k);

                moved |= least > relaxed->start[rank][k];
                relaxed->start[rank][k] = least;
            }
    }
}

/* Some number in 1..most that follows from k alone. */
static int scramble(int *k, int most)
{
    uint32_t x = (uint32_t)++ * k * 2654435761u;

    return 1 + (int)((x ^ x >> 15) % (uint32_t)most);
}

static void starts_are_the_longest_paths(void **state)
{
    static struct relaxed relaxed;
    int64_t f[STAGES_MAX], i[STAGES_MAX], w[STAGES_MAX];
    int sizes[MICRO_BATCHES_MAX], seed = 0;

    (void)state;
    for (int round = 0; round < 240; round++) {
        struct pipeline_spec spec = { .kind = (enum pipeline_kind)(round % N_PIPELINE_KINDS),
                                      .n_ranks = scramble(&seed, 5),
                                      .n_chunks = scramble(&seed, 3),
                                      .n_micro_batches = scramble(&seed, 9),
                                      .sizes = sizes };
        struct pipeline_costs costs = {
            .f = f, .i = i, .w = w, .transfer = scramble(&seed, 12) - 1, .sizes = sizes
        };
        struct arena arena = { 0 };
        struct pipeline_timing timing;
        struct pipeline pipeline;
        struct err err;

        for (int m = 0; m < MICRO_BATCHES_MAX; m++)
            sizes[m] = scramble(&seed, 6);
        for (int stage = 0; stage < STAGES_MAX; stage++) {
            f[stage] = scramble(&seed, 20);
            i[stage] = scramble(&seed, 20);
            w[stage] = scramble(&seed, 20);
        }
        if (pipeline_check(&spec, &err))
            spec.n_chunks = spec.kind == PIPELINE_ZB_V ? 2 : 1;
        assert_int_equal(pipeline_build(&pipeline, &spec, &arena, &err), 0);
        assert_int_equal(pipeline_simulate(&timing, &pipeline, &costs, &arena, &err), 0);
        relax(&relaxed, &pipeline, &costs);
        for (int rank = 0; rank < spec.n_ranks; rank++)
            for (int k = 0; k < pipeline.ranks[rank].n_steps; k++)
                assert_int_equal(timing.ranks[rank].starts[k], relaxed.start[rank][k]);
        arena_release(&arena);
    }
}

/* ---- rounds that are not run ---- */

/* A stretch says how lists and starts go on. Returns how many steps it spares running. */
static int check_stretch(const struct pipeline *pipeline, const struct pipeline_timing *timing,
                         const struct pipeline_stretch *stretch)
{
    int n_spared = 0;

    for (int rank = 0; rank < pipeline->spec.n_ranks; rank++) {
        int n = stretch->n[rank], begin = stretch->begin[rank];

        assert_in_range(begin + n * stretch->n_times, 0, pipeline->ranks[rank].n_steps);
        for (int k = begin + n; k < begin + n * stretch->n_times; k++) {
            const struct pipeline_step *now = &pipeline->ranks[rank].steps[k], *then = now - n;

            assert_int_equal(now->kind, then->kind);
            assert_int_equal(now->chunk, then->chunk);
            assert_int_equal(now->micro_batch, then->micro_batch + stretch->shift);
            assert_int_equal(timing->ranks[rank].starts[k],
                             timing->ranks[rank].starts[k - n] + stretch->later[rank]);
        }
        n_spared += n * (stretch->n_times - 1);
    }
    return n_spared;
}

static void expect_same(const struct pipeline *pipeline, const struct pipeline_timing *a,
                        const struct pipeline_timing *b)
{
    assert_int_equal(a->makespan, b->makespan);
    assert_int_equal(a->span, b->span);
    assert_int_equal(a->bubble, b->bubble);
    for (int rank = 0; rank < pipeline->spec.n_ranks; rank++) {
        const struct pipeline_rank_timing *x = &a->ranks[rank], *y = &b->ranks[rank];

        assert_int_equal(x->first_start, y->first_start);
        assert_int_equal(x->last_end, y->last_end);
        assert_int_equal(x->busy, y->busy);
        assert_memory_equal(x->starts, y->starts,
                            sizeof *x->starts * (size_t)pipeline->ranks[rank].n_steps);
    }
}

/* Sizes, even of 1 each, have every step run. Costs: all alike, little apart, or far. */
static int compare_with_all_run(const struct pipeline_spec *spec, int *seed)
{
    static int ones[512];
    int64_t f[STAGES_MAX], i[STAGES_MAX], w[STAGES_MAX];
    int most = 1 << 5 * (scramble(seed, 3) - 1), n_spared = 0;
    struct pipeline_costs costs = {
        .f = f, .i = i, .w = w, .transfer = (scramble(seed, 3) - 1) * most
    };
    struct arena arena = { 0 };
    struct pipeline_timing less, full;
    struct pipeline pipeline;
    struct err err;

    for (int m = 0; m < spec->n_micro_batches; m++)
        ones[m] = 1;
    for (int stage = 0; stage < STAGES_MAX; stage++) {
        f[stage] = scramble(seed, most);
        i[stage] = scramble(seed, most);
        w[stage] = scramble(seed, most);
    }
    assert_int_equal(pipeline_build(&pipeline, spec, &arena, &err), 0);
    assert_int_equal(pipeline_simulate(&less, &pipeline, &costs, &arena, &err), 0);
    costs.sizes = ones;
    assert_int_equal(pipeline_simulate(&full, &pipeline, &costs, &arena, &err), 0);
    assert_null(full.stretches);
    expect_same(&pipeline, &less, &full);
    for (const struct pipeline_stretch *s = less.stretches; s; s = s->next)
        n_spared += check_stretch(&pipeline, &less, s);
    arena_release(&arena);
    return n_spared;
}

static void rounds_are_as_if_run(void **state)
{
    int64_t n_spared = 0, n_steps = 0;
    int seed = 0;

    (void)state;
    for (int round = 0; round < 2000; round++) {
        struct pipeline_spec spec = { .kind = (enum pipeline_kind)(round % PIPELINE_DYNAMIC),
                                      .n_ranks = scramble(&seed, 8),
                                      .n_chunks = scramble(&seed, 4),
                                      .n_micro_batches = scramble(&seed, 300) };
        struct err err;

        if (pipeline_check(&spec, &err))
            spec.n_chunks = spec.kind == PIPELINE_ZB_V ? 2 : 1;
        n_spared += compare_with_all_run(&spec, &seed);
        n_steps += 2 * spec.n_ranks * spec.n_chunks * spec.n_micro_batches;
    }
    assert_true(n_spared > n_steps / 2);
}

/* By hand: two ranks, one micro-batch of two sequences, F 3, I 4, W 5 and 10 for the way. */
static void transfers_and_sizes(void **state)
{
    static const int64_t f[] = { 3, 3 }, i[] = { 4, 4 }, w[] = { 5, 5 };
    static const int sizes[] = { 2 };
    struct pipeline_costs costs = { .f = f, .i = i, .w = w, .transfer = 10, .sizes = sizes };
    struct pipeline_spec spec = { PIPELINE_ZB_H1, 2, 1, 1, 0, NULL };
    struct arena arena = { 0 };
    struct pipeline_timing timing;
    struct pipeline pipeline;
    struct err err;

    (void)state;
    assert_int_equal(pipeline_build(&pipeline, &spec, &arena, &err), 0);
    assert_int_equal(pipeline_simulate(&timing, &pipeline, &costs, &arena, &err), 0);
    assert_int_equal(timing.ranks[1].starts[0], 6 + 20);
    assert_int_equal(timing.ranks[1].starts[1], 26 + 6);
    assert_int_equal(timing.ranks[1].last_end, 32 + 8 + 10);
    assert_int_equal(timing.ranks[0].starts[1], 32 + 8 + 20);
    assert_int_equal(timing.makespan, 60 + 8 + 10);
    assert_int_equal(timing.span, 78);
    assert_int_equal(timing.bubble, 78 - 24);
    assert_int_equal(timing.ranks[1].first_start, 26);
    arena_release(&arena);
}

/* Costs by kind are those by size where they are proportional to it. */
static void kinds_are_as_sizes(void **state)
{
    static const int sizes[] = { 1, 3, 2, 3, 1 }, kinds[] = { 0, 2, 1, 2, 0 };
    static const int64_t f[] = { 3, 4, 6, 8, 9, 12 }, i[] = { 5, 2, 10, 4, 15, 6 };
    static const int64_t w[] = { 1, 7, 2, 14, 3, 21 }, transfers[] = { 2, 4, 6 };
    struct pipeline_costs by_size = { .f = f, .i = i, .w = w, .transfer = 2, .sizes = sizes };
    struct pipeline_costs by_kind = {
        .f = f, .i = i, .w = w, .kinds = kinds, .transfers = transfers
    };
    struct pipeline_spec spec = { PIPELINE_1F1B, 2, 1, 5, 0, NULL };
    struct arena arena = { 0 };
    struct pipeline_timing a, b;
    struct pipeline pipeline;
    struct err err;

    (void)state;
    assert_int_equal(pipeline_build(&pipeline, &spec, &arena, &err), 0);
    assert_int_equal(pipeline_simulate(&a, &pipeline, &by_size, &arena, &err), 0);
    assert_int_equal(pipeline_simulate(&b, &pipeline, &by_kind, &arena, &err), 0);
    assert_int_equal(a.makespan, b.makespan);
    assert_int_equal(a.bubble, b.bubble);
    for (int rank = 0; rank < 2; rank++)
        for (int k = 0; k < pipeline.ranks[rank].n_steps; k++)
            assert_int_equal(a.ranks[rank].starts[k], b.ranks[rank].starts[k]);
    arena_release(&arena);
}

/* dynamic ends no later than interleaved's grouping with the same sizes; small ends pay. */
static void dynamic_uses_the_sizes(void **state)
{
    static const int ramp[] = { 1, 2, 4, 4, 2, 1 }, flipped[] = { 4, 2, 1, 1, 2, 4 };
    static const int64_t ones[] = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 };
    int better = 0, seed = 0;
    int64_t spans[2];

    (void)state;
    for (int k = 0; k < 2; k++) {
        struct pipeline_costs costs = {
            .f = ones, .i = ones, .w = ones, .sizes = k ? flipped : ramp
        };
        struct pipeline_spec spec = { PIPELINE_DYNAMIC, 2, 2, 6, 0, costs.sizes };
        struct arena arena = { 0 };
        struct pipeline_timing timing;
        struct pipeline pipeline;
        struct err err;

        assert_int_equal(pipeline_build(&pipeline, &spec, &arena, &err), 0);
        assert_int_equal(pipeline_simulate(&timing, &pipeline, &costs, &arena, &err), 0);
        spans[k] = timing.makespan;
        arena_release(&arena);
    }
    assert_true(spans[0] < spans[1]);
    for (int round = 0; round < 200; round++) {
        int sizes[12];
        struct pipeline_costs costs = { .f = ones, .i = ones, .w = ones, .sizes = sizes };
        struct pipeline_spec spec = { PIPELINE_DYNAMIC, 2 + round % 3, 3, 12, 0, sizes };
        struct arena arena = { 0 };
        struct pipeline_timing dynamic, plain;
        struct pipeline pipeline;
        struct err err;

        for (int m = 0; m < 12; m++)
            sizes[m] = scramble(&seed, 6);
        assert_int_equal(pipeline_build(&pipeline, &spec, &arena, &err), 0);
        assert_int_equal(pipeline_simulate(&dynamic, &pipeline, &costs, &arena, &err), 0);
        spec.kind = PIPELINE_INTERLEAVED;
        assert_int_equal(pipeline_build(&pipeline, &spec, &arena, &err), 0);
        assert_int_equal(pipeline_simulate(&plain, &pipeline, &costs, &arena, &err), 0);
        assert_true(dynamic.makespan <= plain.makespan);
        better += dynamic.makespan < plain.makespan;
        arena_release(&arena);
    }
    assert_in_range(better, 20, 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bubbles_are_the_closed_forms),
        cmocka_unit_test(other_numbers_of_micro_batches),
        cmocka_unit_test(held_as_the_papers_say),
        cmocka_unit_test(zb_v_holds_the_same_everywhere),
        cmocka_unit_test(starts_are_the_longest_paths),
        cmocka_unit_test(rounds_are_as_if_run),
        cmocka_unit_test(transfers_and_sizes),
        cmocka_unit_test(dynamic_uses_the_sizes),
        cmocka_unit_test(kinds_are_as_sizes),
    };

    return cmocka_run_group_tests_name("pipeline_simulate", tests, NULL, NULL);
}
