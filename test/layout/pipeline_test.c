/*
 * pipeline_test.c - every schedule of up to 8 ranks, 4 chunks, 16 micro-batches keeps its promises
 *
 * The promises are in pipeline_judge.h; broken schedules are in pipeline_refusals_test.c.
 */
#include "pipeline_judge.h"

/* The next pipeline that can be; 0 after the last. Starts from all zero but kind, n_ranks 1. */
static int next_spec(struct pipeline_spec *spec)
{
    struct err err;

    do {
        if (++spec->n_micro_batches > MICRO_BATCHES_MAX) {
            spec->n_micro_batches = 1;
            if (++spec->n_chunks > CHUNKS_MAX) {
                spec->n_chunks = 1;
                if (++spec->n_ranks > RANKS_MAX) {
                    spec->n_ranks = 1;
                    spec->kind++;
                }
            }
        }
        if (spec->kind >= N_PIPELINE_KINDS)
            return 0;
    } while (pipeline_check(spec, &err));
    return 1;
}

static const struct pipeline_spec before_first = { .n_ranks = 1, .n_chunks = 1, .sizes = sizes };

/* Of n slots each micro-batch m has m % n from one step to another: is each free when taken, and
 * would one slot less not do? Held in [from, to], ends included. */
static void check_slots(int n, const int *from, const int *to, int n_micro_batches)
{
    int most = 0;

    for (int m = 0; m < n_micro_batches; m++) {
        int alive = 0;

        for (int other = 0; other < n_micro_batches; other++) {
            int overlap = from[other] <= from[m] && from[m] <= to[other];

            alive += overlap;
            if (other != m && n > 0 && other % n == m % n)
                assert_false(overlap);
        }
        most = max_int(most, alive);
    }
    assert_int_equal(n, most);
}

static void check_rank_slots(const struct pipeline *pipeline, int rank)
{
    struct positions positions;
    int at[3][MICRO_BATCHES_MAX], n = pipeline->spec.n_micro_batches;

    assert_true(find_positions(&positions, pipeline, rank));
    for (int chunk = 0; chunk < pipeline->spec.n_chunks; chunk++) {
        struct pipeline_slots slots = pipeline_slots(pipeline, rank, chunk);

        for (int m = 0; m < n; m++) {
            int places[3];

            assert_true(places_of(places, &positions, chunk, m));
            for (int what = 0; what < 3; what++)
                at[what][m] = places[what];
        }
        check_slots(slots.f_to_i, at[0], at[1], n);
        check_slots(slots.f_to_w, at[0], at[2], n);
        if (positions.at[STEP_B][chunk][0] == ABSENT)
            check_slots(slots.i_to_w, at[1], at[2], n);
        else
            assert_int_equal(slots.i_to_w, 0);
    }
}

/* Is (start, rank) of `place` behind that of `before`: the one order that all walks are part of? */
static int is_behind(const struct pipeline *pipeline, const struct pipeline_place *place,
                     const struct pipeline_place *before)
{
    int64_t a = pipeline->starts[before->rank][before->step];
    int64_t b = pipeline->starts[place->rank][place->step];

    return a < b || (a == b && before->rank < place->rank);
}

/* Steps of another rank that a walk leaves out send nothing to this one. */
static void check_left_out(const struct pipeline *pipeline, int own, int rank, int from, int to)
{
    const struct pipeline_spec *spec = &pipeline->spec;

    for (int i = from; i < to; i++) {
        const struct pipeline_step *step = &pipeline->ranks[rank].steps[i];
        int stage = pipeline_stage_of(spec, rank, step->chunk) + (step->kind == STEP_F ? 1 : -1);

        assert_int_not_equal(rank, own);
        assert_true(step->kind == STEP_W || stage < 0 || stage == pipeline_n_stages(spec) ||
                    pipeline_rank_of(spec, stage) != own);
    }
}

/* A rank's walk: its steps, and its neighbours' that send to it, once; what its own need before
 * them. */
static void check_walk(const struct pipeline *pipeline, int own)
{
    static char done[2][RANKS_MAX * CHUNKS_MAX][MICRO_BATCHES_MAX];
    const struct pipeline_spec *spec = &pipeline->spec;
    struct pipeline_walk walk = pipeline_walk_neighbours(pipeline, own);
    struct pipeline_place place, before = { -1, 0 };
    int next[RANKS_MAX] = { 0 };

    memset(done, 0, sizeof done);
    while (pipeline_walk_next(&walk, &place)) {
        const struct pipeline_step *step = &pipeline->ranks[place.rank].steps[place.step];
        int stage = pipeline_stage_of(spec, place.rank, step->chunk);

        assert_true(before.rank < 0 || is_behind(pipeline, &place, &before));
        before = place;
        check_left_out(pipeline, own, place.rank, next[place.rank], place.step);
        assert_true(place.step >= next[place.rank]);
        next[place.rank] = place.step + 1;
        if (place.rank == own && step->kind == STEP_F && stage > 0)
            assert_true(done[0][stage - 1][step->micro_batch]);
        if (place.rank == own && (step->kind == STEP_I || step->kind == STEP_B) &&
            stage + 1 < pipeline_n_stages(spec))
            assert_true(done[1][stage + 1][step->micro_batch]);
        if (step->kind != STEP_W)
            done[step->kind != STEP_F][stage][step->micro_batch] = 1;
    }
    for (int rank = own - 1; rank <= own + 1; rank++) {
        int at = (rank + spec->n_ranks) % spec->n_ranks;

        check_left_out(pipeline, own, at, next[at], pipeline->ranks[at].n_steps);
    }
}

static void check_order(struct pipeline *pipeline, struct arena *arena)
{
    struct err err;

    assert_int_equal(pipeline_time(pipeline, arena, &err), 0);
    for (int rank = 0; rank < pipeline->spec.n_ranks; rank++)
        check_walk(pipeline, rank);
}

static void every_pipeline(void **state)
{
    struct pipeline_spec spec = before_first;
    int n_of[N_PIPELINE_KINDS] = { 0 };

    (void)state;
    while (next_spec(&spec)) {
        struct arena arena = { 0 };
        struct pipeline pipeline;
        struct err err;

        assert_int_equal(pipeline_build(&pipeline, &spec, &arena, &err), 0);
        assert_true(judge(&pipeline));
        if (pipeline_verify(&pipeline, &arena, &err))
            fail_msg("%s", err.text);
        for (int rank = 0; rank < spec.n_ranks; rank++)
            check_rank_slots(&pipeline, rank);
        check_order(&pipeline, &arena);
        n_of[spec.kind]++;
        arena_release(&arena);
    }
    for (int kind = 0; kind < N_PIPELINE_KINDS; kind++) {
        int chunked = kind == PIPELINE_INTERLEAVED || kind == PIPELINE_BREADTH_FIRST ||
                      kind == PIPELINE_DYNAMIC;

        assert_int_equal(n_of[kind], RANKS_MAX * MICRO_BATCHES_MAX * (chunked ? CHUNKS_MAX : 1));
    }
}

/* Every group that may be asked for, not only the ones that are chosen. */
static void every_group(void **state)
{
    (void)state;
    for (int p = 1; p <= 6; p++)
        for (int v = 2; v <= 4; v++)
            for (int m = 1; m <= MICRO_BATCHES_MAX; m++)
                for (int group = p; group <= MICRO_BATCHES_MAX + 1; group++) {
                    struct pipeline_spec spec = spec_of(PIPELINE_INTERLEAVED, p, v, m);
                    struct arena arena = { 0 };
                    struct pipeline pipeline;
                    struct err err;

                    spec.group = group;
                    assert_int_equal(pipeline_build(&pipeline, &spec, &arena, &err), 0);
                    assert_true(judge(&pipeline));
                    assert_int_equal(pipeline_verify(&pipeline, &arena, &err), 0);
                    arena_release(&arena);
                }
}

static void every_placement(void **state)
{
    (void)state;
    for (int v = 0; v < 2; v++)
        for (int p = 1; p <= RANKS_MAX; p++) {
            struct pipeline_spec spec = spec_of(v ? PIPELINE_ZB_V : PIPELINE_INTERLEAVED, p, 2, 1);

            for (int stage = 0; stage < 2 * p; stage++) {
                int rank = pipeline_rank_of(&spec, stage);
                int turned = v ? 2 * p - 1 - stage : stage - p;

                assert_int_equal(rank, stage < p ? stage : turned);
                assert_int_equal(pipeline_chunk_of(&spec, stage), stage >= p);
                assert_int_equal(pipeline_stage_of(&spec, rank, stage >= p), stage);
            }
        }
}

/* Megatron's order of (chunk, micro-batch) for groups of 2, and its warm-up of 4 and 2. */
static const char interleaved_2_2_4[] =
    "rank 0  F0.0 F1.0 F0.1 F1.1 F2.0 .    B0.1 -    F3.0 B1.1 -    F2.1 B0.0 -    F3.1 B1.0 -    "
    ".    B2.1 -    .    B3.1 -    B2.0 -    B3.0 -\n"
    "rank 1  .    F0.0 F1.0 F0.1 B0.1 -    F1.1 B1.1 -    F2.0 B0.0 -    F3.0 B1.0 -    F2.1 B2.1 "
    "-    F3.1 B3.1 -    B2.0 -    B3.0 -\n";

/* No multiple: groups of 3 and 2. */
static const char interleaved_2_2_5[] =
    "rank 0  F0.0 F1.0 F2.0 F0.1 F1.1 F2.1 .    B0.1 -    F3.0 B1.1 -    F4.0 B2.1 -    F3.1 B0.0 "
    "-    F4.1 B1.0 -    .    B2.0 -    .    B3.1 -    B4.1 -    B3.0 -    B4.0 -\n"
    "rank 1  .    F0.0 F1.0 F2.0 F0.1 B0.1 -    F1.1 B1.1 -    F2.1 B2.1 -    F3.0 B0.0 -    F4.0 "
    "B1.0 -    F3.1 B2.0 -    F4.1 B3.1 -    B4.1 -    B3.0 -    B4.0 -\n";

static const char zb_h1_3_4[] = "rank 0  F0 F1 F2 .  .  I0 W0 F3 I1 W1 I2 W2 I3 W3\n"
                                "rank 1  .  F0 F1 .  I0 F2 I1 W0 F3 I2 W1 I3 W2 W3\n"
                                "rank 2  .  .  F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3\n";

/* Busy from its first step to its last on both ranks. */
static const char zb_v_2_3[] =
    "rank 0  F0.0 F1.0 F2.0 F0.1 I0.1 W0.1 F1.1 I1.1 W1.1 I0.0 W0.0 F2.1 I2.1 W2.1 I1.0 W1.0 I2.0 "
    "W2.0\n"
    "rank 1  .    F0.0 F0.1 F1.0 F1.1 I0.1 W0.1 F2.0 I0.0 W0.0 F2.1 I1.1 W1.1 I1.0 I2.1 I2.0 W1.0 "
    "W2.1 W2.0\n";

/* Too few micro-batches for that. */
static const char zb_v_2_2[] =
    "rank 0  F0.0 F1.0 .    F0.1 I0.1 W0.1 F1.1 I1.1 W1.1 I0.0 W0.0 I1.0 W1.0\n"
    "rank 1  .    F0.0 F0.1 F1.0 F1.1 I0.1 W0.1 I0.0 I1.1 I1.0 W0.0 W1.1 W1.0\n";

static const char cut[] = "rank 0  F0 F1 .  .  B0 ...\n"
                          "rank 1  .  F0 B0 -  F1 ...\n";

/* Micro-batch 1 has two sequences. */
static const char dynamic_2_3[] = "rank 0  F0 F1 -  .  B0 -  F2 .  .  .  B1 -  -  -  B2 -\n"
                                  "rank 1  .  F0 B0 -  F1 -  B1 -  -  -  F2 B2 -\n";

static void pictures(void **state)
{
    static const struct {
        enum pipeline_kind kind;
        int p, v, m, n_units;
        const char *text;
    } cases[] = {
        { PIPELINE_INTERLEAVED, 2, 2, 4, 0, interleaved_2_2_4 },
        { PIPELINE_INTERLEAVED, 2, 2, 5, 0, interleaved_2_2_5 },
        { PIPELINE_ZB_H1, 3, 1, 4, 0, zb_h1_3_4 },
        { PIPELINE_ZB_V, 2, 2, 3, 0, zb_v_2_3 },
        { PIPELINE_ZB_V, 2, 2, 2, 0, zb_v_2_2 },
        { PIPELINE_1F1B, 2, 1, 3, 5, cut },
        { PIPELINE_DYNAMIC, 2, 1, 3, 0, dynamic_2_3 },
    };

    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        static const int small[] = { 1, 2, 1, 1 };
        struct pipeline_spec spec = spec_of(cases[k].kind, cases[k].p, cases[k].v, cases[k].m);
        struct arena arena = { 0 };
        struct str text = { 0 };
        struct pipeline pipeline;
        struct err err;

        spec.sizes = small;
        assert_int_equal(pipeline_build(&pipeline, &spec, &arena, &err), 0);
        assert_int_equal(pipeline_print(&pipeline, cases[k].n_units, &text, &err), 0);
        assert_string_equal(str_text(&text), cases[k].text);
        str_release(&text);
        arena_release(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pipeline),
        cmocka_unit_test(every_group),
        cmocka_unit_test(every_placement),
        cmocka_unit_test(pictures),
    };

    return cmocka_run_group_tests_name("pipeline", tests, NULL, NULL);
}
