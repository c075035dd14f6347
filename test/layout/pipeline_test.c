/*
 * pipeline_test.c - every schedule of up to 8 ranks, 4 chunks, 16 micro-batches keeps its promises
 *
 * What the promises are is said here a second time, in the slowest and plainest way (`judge`), and
 * pipeline_verify has to agree with it about our lists and about thousands of spoilt ones.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "layout/pipeline.h"

#define RANKS_MAX 8
#define CHUNKS_MAX 4
#define MICRO_BATCHES_MAX 16

/* Of dynamic: small ones first and last, odd ones between. */
static const int sizes[MICRO_BATCHES_MAX] = { 1, 2, 4, 3, 1, 5, 2, 2, 4, 4, 1, 7, 3, 2, 2, 1 };

static struct pipeline_spec spec_of(enum pipeline_kind kind, int p, int v, int m)
{
    return (struct pipeline_spec){
        .kind = kind, .n_ranks = p, .n_chunks = v, .n_micro_batches = m, .sizes = sizes
    };
}

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

/* ---- the promises, said again ---- */

#define ABSENT (-1)

/* Where each step is in its rank's list. */
struct positions {
    int at[N_STEP_KINDS][CHUNKS_MAX][MICRO_BATCHES_MAX];
};

/* 0 if a step is none, or is there twice. */
static int find_positions(struct positions *positions, const struct pipeline *pipeline, int rank)
{
    const struct pipeline_list *list = &pipeline->ranks[rank];

    memset(positions, 0xff, sizeof *positions);
    for (int k = 0; k < list->n_steps; k++) {
        const struct pipeline_step *step = &list->steps[k];
        int *at;

        if (step->chunk < 0 || step->chunk >= pipeline->spec.n_chunks || step->micro_batch < 0 ||
            step->micro_batch >= pipeline->spec.n_micro_batches)
            return 0;
        at = &positions->at[step->kind][step->chunk][step->micro_batch];
        if (*at != ABSENT)
            return 0;
        *at = k;
    }
    return 1;
}

/* Where a micro-batch's F, I and W of a chunk are; B is both I and W. 0 if not each once. */
static int places_of(int places[3], const struct positions *positions, int chunk, int m)
{
    int f = positions->at[STEP_F][chunk][m], b = positions->at[STEP_B][chunk][m];
    int i = positions->at[STEP_I][chunk][m], w = positions->at[STEP_W][chunk][m];

    places[0] = f;
    places[1] = b == ABSENT ? i : b;
    places[2] = b == ABSENT ? w : b;
    if (f == ABSENT)
        return 0;
    return b == ABSENT ? i != ABSENT && w != ABSENT : i == ABSENT && w == ABSENT;
}

static int judge_rank(const struct pipeline *pipeline, int rank)
{
    struct positions positions;

    if (!find_positions(&positions, pipeline, rank))
        return 0;
    for (int chunk = 0; chunk < pipeline->spec.n_chunks; chunk++) {
        int last[3] = { ABSENT, ABSENT, ABSENT }, now[3];

        for (int m = 0; m < pipeline->spec.n_micro_batches; m++) {
            if (!places_of(now, &positions, chunk, m) || now[0] > now[1] || now[1] > now[2])
                return 0;
            for (int what = 0; what < 3; what++)
                if (now[what] <= last[what])
                    return 0;
            memcpy(last, now, sizeof last);
        }
    }
    return 1;
}

/* Strike off what can be done next on any rank, until nothing can. */
static int judge_liveness(const struct pipeline *pipeline)
{
    static char done[2][RANKS_MAX * CHUNKS_MAX][MICRO_BATCHES_MAX];
    const struct pipeline_spec *spec = &pipeline->spec;
    int next[RANKS_MAX] = { 0 }, n_stages = spec->n_ranks * spec->n_chunks, moved = 1, all = 0;

    memset(done, 0, sizeof done);
    while (moved) {
        moved = 0;
        all = 1;
        for (int rank = 0; rank < spec->n_ranks; rank++) {
            const struct pipeline_step *step = &pipeline->ranks[rank].steps[next[rank]];
            int stage, can;

            if (next[rank] == pipeline->ranks[rank].n_steps)
                continue;
            all = 0;
            stage = pipeline_stage_of(spec, rank, step->chunk);
            if (step->kind == STEP_W)
                can = 1;
            else if (step->kind == STEP_F)
                can = stage == 0 || done[0][stage - 1][step->micro_batch];
            else
                can = stage == n_stages - 1 || done[1][stage + 1][step->micro_batch];
            if (!can)
                continue;
            if (step->kind != STEP_W)
                done[step->kind != STEP_F][stage][step->micro_batch] = 1;
            next[rank]++;
            moved = 1;
        }
    }
    return all;
}

static int judge(const struct pipeline *pipeline)
{
    for (int rank = 0; rank < pipeline->spec.n_ranks; rank++)
        if (!judge_rank(pipeline, rank))
            return 0;
    return judge_liveness(pipeline);
}

/* ---- ours keep them ---- */

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

/* ---- what is spoilt is refused ---- */

static struct pipeline build(struct pipeline_spec spec, struct arena *arena)
{
    struct pipeline pipeline;
    struct err err;

    assert_int_equal(pipeline_build(&pipeline, &spec, arena, &err), 0);
    return pipeline;
}

struct verdicts {
    int good, bad;
};

static void compare(const struct pipeline *pipeline, struct verdicts *verdicts)
{
    struct arena scratch = { 0 };
    struct err err;
    int good = judge(pipeline);

    assert_int_equal(pipeline_verify(pipeline, &scratch, &err), good ? 0 : -1);
    *(good ? &verdicts->good : &verdicts->bad) += 1;
    arena_release(&scratch);
}

/* Two steps swapped, one written over another, one gone, another kind: for all steps of a rank. */
static void spoil_rank(struct pipeline *pipeline, int rank, struct verdicts *verdicts)
{
    struct pipeline_list *list = &pipeline->ranks[rank];
    int n = list->n_steps;

    for (int a = 0; a < n; a++) {
        struct pipeline_step kept = list->steps[a];

        for (int b = 0; b < n; b++) {
            struct pipeline_step other = list->steps[b];

            list->steps[a] = other;
            compare(pipeline, verdicts);
            list->steps[b] = kept;
            compare(pipeline, verdicts);
            list->steps[b] = other;
            list->steps[a] = kept;
        }
        for (int kind = 0; kind < N_STEP_KINDS; kind++) {
            list->steps[a].kind = (enum pipeline_step_kind)kind;
            compare(pipeline, verdicts);
        }
        list->steps[a] = kept;
        list->n_steps = a;
        compare(pipeline, verdicts);
        list->n_steps = n;
    }
}

static void spoilt_lists(void **state)
{
    struct verdicts verdicts = { 0, 0 };

    (void)state;
    for (int kind = 0; kind < N_PIPELINE_KINDS; kind++) {
        int one = kind == PIPELINE_GPIPE || kind == PIPELINE_1F1B || kind == PIPELINE_ZB_H1 ||
                  kind == PIPELINE_ZB_H2;
        struct arena arena = { 0 };
        struct pipeline pipeline =
            build(spec_of((enum pipeline_kind)kind, 3, one ? 1 : 2, 4), &arena);

        for (int rank = 0; rank < 3; rank++)
            spoil_rank(&pipeline, rank, &verdicts);
        arena_release(&arena);
    }
    assert_in_range(verdicts.good, 1000, 100000);
    assert_in_range(verdicts.bad, 1000, 100000);
}

static void expect_refusal(const struct pipeline *pipeline, const char *text)
{
    struct arena scratch = { 0 };
    struct str picture = { 0 };
    struct err err = { 0 };

    assert_int_equal(pipeline_verify(pipeline, &scratch, &err), -1);
    assert_int_equal(err.code, ERR_FAILED);
    assert_string_equal(err.text, text);
    assert_int_equal(pipeline_print(pipeline, 0, &picture, &err), -1);
    assert_string_equal(str_text(&picture), "");
    arena_release(&scratch);
}

/* The steps of a rank, as in "F0 F1 B0"; chunk 0. */
static void set_list(struct pipeline *pipeline, int rank, const char *text)
{
    struct pipeline_list *list = &pipeline->ranks[rank];

    list->n_steps = 0;
    for (const char *at = text; *at; at += at[2] ? 3 : 2) {
        enum pipeline_step_kind kind = *at == 'F'   ? STEP_F
                                       : *at == 'B' ? STEP_B
                                       : *at == 'I' ? STEP_I
                                                    : STEP_W;

        list->steps[list->n_steps++] =
            (struct pipeline_step){ .kind = kind, .micro_batch = at[1] - '0' };
    }
}

static void refusals_name_rank_and_step(void **state)
{
    static const struct {
        const char *list, *text;
    } cases[] = {
        { "F1 F0 B0 B1", "rank 1, step 0 (F1): out of order, the next of this kind in its chunk is "
                         "micro-batch 0" },
        { "F0 F1 B1 B0", "rank 1, step 2 (B1): out of order, the next of this kind in its chunk is "
                         "micro-batch 0" },
        { "F0 B0 B1 F1", "rank 1, step 2 (B1): comes before F of micro-batch 1" },
        { "F0 W0 I0 F1 B1", "rank 1, step 1 (W0): comes before I of micro-batch 0" },
        { "F0 F1 I0 B1 W0",
          "rank 1, step 3 (B1): adds to the weights' gradients before W of micro-batch 0" },
        { "F0 F1 B0 F2", "rank 1, step 3 (F2): micro-batch is not below 2" },
        { "F0 F1 I0 W0 I1",
          "rank 1, step 5 (the end of its list): chunk 0 has done F of 2, I of 2 and W of 1 "
          "micro-batches, not of all 2" },
    };
    struct arena arena = { 0 };
    struct pipeline pipeline = build(spec_of(PIPELINE_ZB_H1, 2, 1, 2), &arena);

    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        set_list(&pipeline, 1, cases[k].list);
        expect_refusal(&pipeline, cases[k].text);
    }
    set_list(&pipeline, 1, "F0 B0 F1 B1");
    set_list(&pipeline, 0, "F0 B0 F1 B1");
    pipeline.ranks[0].steps[1].chunk = 1;
    expect_refusal(&pipeline, "rank 0, step 1 (B0): chunk is not below 1");
    arena_release(&arena);
}

/* Rank 0 wants its backward before it has sent what rank 1's waits for. */
static void a_deadlock_names_who_waits(void **state)
{
    struct arena arena = { 0 };
    struct pipeline pipeline = build(spec_of(PIPELINE_ZB_H1, 2, 1, 2), &arena);

    (void)state;
    set_list(&pipeline, 0, "F0 B0 F1 B1");
    set_list(&pipeline, 1, "F0 F1 B0 B1");
    expect_refusal(&pipeline,
                   "the schedule deadlocks: rank 0, step 1 (B0), waits for the backward "
                   "of stage 1 on rank 1; rank 1, step 1 (F1), waits for F of stage 0 on "
                   "rank 0");
    arena_release(&arena);
}

static void what_cannot_be(void **state)
{
    static const int bad_sizes[] = { 1, 0, 2 };
    static const struct {
        struct pipeline_spec spec;
        const char *text;
    } cases[] = {
        { { PIPELINE_GPIPE, 2, 2, 4, 0, NULL },
          "schedule gpipe runs 1 chunk on each rank, not 2 (hint: 1 chunk, or schedule "
          "breadth-first)" },
        { { PIPELINE_1F1B, 2, 3, 4, 0, NULL },
          "schedule 1f1b runs 1 chunk on each rank, not 3 (hint: 1 chunk, or schedule "
          "interleaved)" },
        { { PIPELINE_ZB_V, 2, 3, 4, 0, NULL },
          "schedule zb-v runs 2 chunks on each rank, not 3 (hint: 2 chunks, or schedule "
          "interleaved)" },
        { { PIPELINE_ZB_V, 2, 1, 4, 0, NULL },
          "schedule zb-v runs 2 chunks on each rank, not 1 (hint: 2 chunks, or schedule 1f1b, "
          "zb-h1 "
          "or zb-h2)" },
        { { PIPELINE_INTERLEAVED, 0, 2, 4, 0, NULL },
          "a pipeline of 0 ranks: 1 to 1024 are allowed (hint: 1)" },
        { { PIPELINE_INTERLEAVED, 2, 65, 4, 0, NULL },
          "a pipeline of 65 chunks per rank: 1 to 64 are allowed (hint: 64)" },
        { { PIPELINE_1F1B, 2, 1, 0, 0, NULL },
          "a pipeline of 0 micro-batches: 1 to 131072 are allowed (hint: 1)" },
        { { PIPELINE_INTERLEAVED, 4, 2, 8, 3, NULL },
          "groups of 3 micro-batches leave ranks of a pipeline of 4 without work (hint: at least "
          "4)" },
        { { PIPELINE_ZB_H1, 4, 1, 8, 4, NULL },
          "schedule zb-h1 has no groups of micro-batches, but group is 4 (hint: leave it out, or "
          "use schedule interleaved)" },
        { { PIPELINE_DYNAMIC, 2, 1, 3, 0, NULL },
          "schedule dynamic needs the sizes of the micro-batches (hint: micro_batches: [1, 2, 4, "
          "4, "
          "2, 1], or schedule interleaved)" },
        { { PIPELINE_DYNAMIC, 2, 1, 3, 0, bad_sizes },
          "micro-batch 1 has 0 sequences, but must have 1 or more (hint: leave it out, or 1)" },
        { { PIPELINE_INTERLEAVED, 64, 16, 16384, 0, NULL },
          "64 ranks of 16 chunks with 16384 micro-batches are up to 50331648 steps, but at most "
          "8388608 are allowed (hint: larger micro-batches, at most 2730 of them)" },
    };

    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        struct arena arena = { 0 };
        struct pipeline pipeline;
        struct err err = { 0 };

        assert_int_equal(pipeline_build(&pipeline, &cases[k].spec, &arena, &err), -1);
        assert_int_equal(err.code, ERR_CONFIG);
        assert_string_equal(err.text, cases[k].text);
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
        cmocka_unit_test(spoilt_lists),
        cmocka_unit_test(refusals_name_rank_and_step),
        cmocka_unit_test(a_deadlock_names_who_waits),
        cmocka_unit_test(what_cannot_be),
    };

    return cmocka_run_group_tests_name("pipeline", tests, NULL, NULL);
}
