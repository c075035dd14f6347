/*
 * pipeline_refusals_test.c - schedules that break a promise are refused, and say where
 */
#include "pipeline_judge.h"

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
          "5242880 are allowed (hint: larger micro-batches, at most 1706 of them)" },
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
        cmocka_unit_test(spoilt_lists),
        cmocka_unit_test(refusals_name_rank_and_step),
        cmocka_unit_test(a_deadlock_names_who_waits),
        cmocka_unit_test(what_cannot_be),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
