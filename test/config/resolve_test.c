/*
 * resolve_test.c - degrees, micro-batches and gradient sums from the number of ranks; what is
 * refused
 */
#include "config_fixture.h"

static void read_with(struct job *job, const char *parallel, const char *train, struct arena *arena)
{
    must_read(
        job,
        arena_printf(arena,
                     "{model: llama-tiny, data: {train: a}, parallel: {%s}, train: {steps: 9, %s}}",
                     parallel, train),
        arena);
}

static void test_dp_is_filled(void **state)
{
    struct arena arena = { 0 };
    struct err err = { 0 };
    struct job j;

    (void)state;
    read_with(&j, "dp: auto", "global_batch: 48, micro_batch: 4", &arena);
    int n_read = j.n_notes;
    for (int world = 1; world <= 4; world++) {
        assert_int_equal(job_resolve(&j, world, &arena, &err), 0);
        assert_int_equal(j.world_size, world);
        assert_int_equal(j.parallel.dp, world);
        assert_int_equal(j.n_micro_batches, 12 / world);
        /* Resolving again replaces the notes of before. */
        assert_int_equal(j.n_notes, n_read + 3);
        assert_true(has_note(&j, arena_printf(&arena, "parallel.dp = %d (auto: %d rank%s", world,
                                              world, str_s(world))));
        assert_true(has_note(&j, "n_micro_batches = "));
        assert_true(has_note(&j, "parallel.gradient_sum = late (auto: zero 0)"));
    }
    read_with(&j, "tp: 2, pp: 2", "global_batch: 48, micro_batch: 4", &arena);
    assert_int_equal(job_derive(&j, 8, &arena, &err), 0);
    assert_int_equal(j.parallel.dp, 2);
    assert_int_equal(j.n_micro_batches, 6);
    read_with(&j, "dp: 3", "global_batch: 48, micro_batch: 4", &arena);
    assert_int_equal(job_resolve(&j, 3, &arena, &err), 0);
    assert_false(has_note(&j, "parallel.dp"));
    arena_release(&arena);
}

static void test_gradient_sum(void **state)
{
    static const struct {
        const char *parallel;
        enum gradient_sum sum;
    } rows[] = {
        { "zero: 0", GRADIENT_SUM_LATE },
        { "zero: 1", GRADIENT_SUM_LATE },
        { "zero: 2", GRADIENT_SUM_EARLY },
        { "zero: 3", GRADIENT_SUM_EARLY },
        { "zero: 3, gradient_sum: late", GRADIENT_SUM_LATE },
        { "zero: 0, gradient_sum: early", GRADIENT_SUM_EARLY },
        { "zero: 2, gradient_sum: auto", GRADIENT_SUM_EARLY },
        { "zero: 0, schedule: fold3d", GRADIENT_SUM_LATE },
        { "zero: 2, schedule: fold3d", GRADIENT_SUM_LATE },
        { "zero: 3, schedule: breadth-first", GRADIENT_SUM_EARLY },
    };
    struct arena arena = { 0 };
    struct err err;
    struct job j;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        read_with(&j, rows[i].parallel, "global_batch: 4", &arena);
        assert_int_equal(job_derive(&j, 1, &arena, &err), 0);
        assert_int_equal(j.parallel.gradient_sum, rows[i].sum);
        if (strstr(rows[i].parallel, "fold3d"))
            assert_int_equal(j.parallel.schedule, PIPELINE_BREADTH_FIRST);
    }
    arena_release(&arena);
}

struct mismatch {
    const char *parallel, *train;
    int world;
    const char *text;
};

/* Refused with that text, and nothing is changed. */
static void must_mismatch(const struct mismatch *row, struct arena *arena)
{
    struct err err = { 0 };
    struct job j;

    read_with(&j, row->parallel, row->train, arena);
    int dp = j.parallel.dp, n_notes = j.n_notes;
    assert_int_equal(job_resolve(&j, row->world, arena, &err), -1);
    if (!strstr(err.text, row->text))
        fail_msg("\"%s\", not \"%s\"", err.text, row->text);
    assert_int_equal(err.code, ERR_CONFIG);
    assert_int_equal(j.parallel.dp, dp);
    assert_int_equal(j.n_notes, n_notes);
}

static void test_mismatches(void **state)
{
    static const struct mismatch rows[] = {
        { "dp: 2", "global_batch: 8", 4,
          "j.yaml:1:54: parallel tp 1 * pp 1 * cp 1 * dp 2 is 2, but there are 4 ranks (hint: "
          "ranks: "
          "2, "
          "or "
          "dp: auto)" },
        { "dp: 2", "global_batch: 8", 1, "is 2, but there is 1 rank (hint: ranks: 2" },
        { "tp: 2, pp: 2", "global_batch: 8", 6,
          "j.yaml:1:54: 6 ranks are not a multiple of parallel tp 2 * pp 2 * cp 1 (hint: 8 "
          "ranks)" },
        { "dp: auto", "global_batch: 8, micro_batch: 4", 3,
          "j.yaml:1:93: train.global_batch is 8, not a multiple of micro_batch 4 * dp 3 = 12 "
          "(hint: "
          "12)" },
        { "dp: auto", "global_batch: 64, micro_batch: 4", 3, "= 12 (hint: 60 or 72)" },
        { "zero: 1, zero_group: 4", "global_batch: 48", 6,
          "j.yaml:1:71: parallel.zero_group is 4, does not divide dp 6 (hint: 2)" },
        { "zero: 3, zero_group: 8", "global_batch: 64", 4,
          "parallel.zero_group is 8, does not divide dp 4 (hint: 4 or less, powers of two)" },
        { "zero: 3, zero_group: 2", "global_batch: 60", 5,
          "parallel.zero_group is 2, does not divide dp 5 (hint: 0)" },
        { "zero: 3, zero_group: 2", "global_batch: 64", 1,
          "parallel.zero_group is 2, does not divide dp 1 (hint: 0)" },
        { "pp: 2, schedule: interleaved", "global_batch: 64", 2,
          "j.yaml:1:54: parallel pp 2 * chunks 2 is 4 stages, the model has 2 layers (hint: "
          "parallel.pp: 1)" },
        { "pp: 2, schedule: zb-v, chunks: 3", "global_batch: 64", 2,
          "j.yaml:1:81: parallel: schedule zb-v runs 2 chunks on each rank, not 3 (hint: 2 "
          "chunks" },
        { "pp: 2, schedule: zb-v, chunks: 1", "global_batch: 64", 2,
          "j.yaml:1:81: parallel: schedule zb-v runs 2 chunks on each rank, not 1 (hint: 2 "
          "chunks" },
        { "pp: 2, schedule: gpipe, chunks: 2", "global_batch: 64", 2,
          "parallel: schedule gpipe runs 1 chunk on each rank, not 2 (hint: 1 chunk" },
        { "pp: 2, stages: [1, 2]", "global_batch: 64", 2,
          "j.yaml:1:65: parallel.stages: the stages have 3 layers, but the model has 2 (hint: 1 in "
          "the "
          "last "
          "stage" },
        { "pp: 2, stages: [2]", "global_batch: 64", 2,
          "j.yaml:1:65: parallel.stages: layers are given for 1 stage, but the pipeline has 2" },
        { "schedule: dynamic, micro_batches: [1, 2, 1]", "global_batch: 10", 2,
          "j.yaml:1:84: parallel.micro_batches add up to 4 sequences, times dp 2 is 8, but "
          "train.global_batch is 10 (hint: global_batch: 8, or a list that adds up to 5)" },
        { "schedule: dynamic, micro_batches: [1, 2, 1]", "global_batch: 7", 2,
          "but train.global_batch is 7 (hint: global_batch: 8)" },
        { "pp: 2, schedule: dynamic, micro_batches: [1, 2, 1]", "global_batch: 4", 2,
          "parallel pp 2 * chunks 2 is 4 stages, the model has 2 layers (hint: " },
    };
    struct arena arena = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        must_mismatch(&rows[i], &arena);
    arena_release(&arena);
}

/* The list says how many there are, the largest is micro_batch, and dp must be as it was. */
static void test_given_micro_batches(void **state)
{
    struct arena arena = { 0 };
    struct err err;
    struct job j;

    (void)state;
    read_with(&j, "schedule: dynamic, micro_batches: [1, 3, 2]", "global_batch: 12", &arena);
    assert_int_equal(j.train.micro_batch, 3);
    assert_true(has_note(&j, "train.micro_batch = 3 (the largest of parallel.micro_batches)"));
    assert_int_equal(job_resolve(&j, 2, &arena, &err), 0);
    assert_int_equal(j.n_micro_batches, 3);
    assert_int_equal(j.parallel.chunks, 1);
    assert_int_equal(job_fit_ranks(&j, 7), 2);
    assert_int_equal(job_fit_ranks(&j, 1), 0);
    read_with(&j, "schedule: dynamic, micro_batches: [1, 3, 2]", "global_batch: 6, micro_batch: 3",
              &arena);
    assert_int_equal(job_resolve(&j, 1, &arena, &err), 0);
    arena_release(&arena);
}

static void test_sharding(void **state)
{
    struct arena arena = { 0 };
    struct err err;
    struct job j;

    (void)state;
    read_with(&j, "zero: 1, zero_group: 2", "global_batch: 48, micro_batch: 1", &arena);
    assert_int_equal(job_derive(&j, 4, &arena, &err), 0);
    assert_int_equal(j.parallel.zero_group, 2);
    assert_false(has_note(&j, "shards nothing"));
    /* Fewer ranks are whole groups still. */
    assert_int_equal(job_fit_ranks(&j, 5), 4);
    assert_int_equal(job_fit_ranks(&j, 3), 2);
    assert_int_equal(job_fit_ranks(&j, 1), 0);
    j.parallel.zero_group = 0;
    assert_int_equal(job_fit_ranks(&j, 3), 3);
    read_with(&j, "zero: 2", "global_batch: 48", &arena);
    assert_int_equal(job_derive(&j, 1, &arena, &err), 0);
    assert_true(has_note(&j, "parallel.zero = 2 shards nothing: dp is 1"));
    /* A place of an override is named like one of the file. */
    assert_int_equal(read_job_with(&j, SMALL, "parallel={zero: 1, zero_group: 8}", &arena, &err),
                     0);
    assert_int_equal(job_derive(&j, 4, &arena, &err), -1);
    assert_non_null(strstr(err.text, "--set parallel"));
    arena_release(&arena);
}

/* All that is offered can be run. */
static void test_not_built(void **state)
{
    struct arena arena = { 0 };
    struct err err = { 0 };
    struct job j;

    (void)state;
    must_read(&j, SMALL, &arena);
    assert_int_equal(job_check_built(&j, &err), 0);
    arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dp_is_filled), cmocka_unit_test(test_gradient_sum),
        cmocka_unit_test(test_mismatches),   cmocka_unit_test(test_given_micro_batches),
        cmocka_unit_test(test_sharding),     cmocka_unit_test(test_not_built),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
