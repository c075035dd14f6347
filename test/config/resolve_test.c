/*
 * resolve_test.c - degrees, micro-batches and gradient sums from the number of ranks; what is
 * refused
 */
#include "fixture.h"

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
        assert_true(
            has_note(&j, arena_printf(&arena, "parallel.dp = %d (auto: %d ranks", world, world)));
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
    };
    struct arena arena = { 0 };
    struct err err;
    struct job j;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        read_with(&j, rows[i].parallel, "global_batch: 4", &arena);
        assert_int_equal(job_derive(&j, 1, &arena, &err), 0);
        assert_int_equal(j.parallel.gradient_sum, rows[i].sum);
    }
    arena_release(&arena);
}

static void test_mismatches(void **state)
{
    static const struct {
        const char *parallel, *train;
        int world;
        const char *text;
    } rows[] = {
        { "dp: 2", "global_batch: 8", 4,
          "j.yaml: parallel tp 1 * pp 1 * cp 1 * dp 2 is 2, but there are 4 ranks (hint: ranks: 2, "
          "or "
          "dp: auto)" },
        { "dp: 2", "global_batch: 8", 1, "is 2, but there is 1 rank (hint: ranks: 2" },
        { "tp: 2, pp: 2", "global_batch: 8", 6,
          "j.yaml: 6 ranks are not a multiple of parallel tp 2 * pp 2 * cp 1 (hint: 8 ranks)" },
        { "dp: auto", "global_batch: 8, micro_batch: 4", 3,
          "j.yaml: train.global_batch is 8, not a multiple of micro_batch 4 * dp 3 = 12 (hint: "
          "12)" },
        { "dp: auto", "global_batch: 64, micro_batch: 4", 3, "= 12 (hint: 60 or 72)" },
    };
    struct arena arena = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct err err = { 0 };
        struct job j;

        read_with(&j, rows[i].parallel, rows[i].train, &arena);
        int dp = j.parallel.dp, n_notes = j.n_notes;
        assert_int_equal(job_resolve(&j, rows[i].world, &arena, &err), -1);
        if (!strstr(err.text, rows[i].text))
            fail_msg("\"%s\", not \"%s\"", err.text, rows[i].text);
        assert_int_equal(err.code, ERR_CONFIG);
        assert_int_equal(j.parallel.dp, dp);
        assert_int_equal(j.n_notes, n_notes);
    }
    arena_release(&arena);
}

/* What cannot be run yet is read, derived and printed all the same. */
static void test_not_built(void **state)
{
    static const struct {
        const char *override, *text;
    } rows[] = {
        { "parallel.cp=2", "parallel.cp above 1" },
        { "parallel.ep=2", "parallel.ep above 1" },
        { "parallel.zero=3", "parallel.zero above 2" },
        { "parallel.reductions=fast", "parallel.reductions fast" },
        { "train.gradient_dtype=bf16", "train.gradient_dtype bf16" },
        { "recompute=auto", "recompute auto" },
    };
    struct arena arena = { 0 };
    struct err err = { 0 };
    struct job j;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(read_job_with(&j, SMALL, rows[i].override, &arena, &err), 0);
        assert_int_equal(model_spec_n_parameters(&j.model), 108864);
        assert_int_equal(job_derive(&j, 2, &arena, &err), 0);
        assert_int_equal(job_resolve(&j, 2, &arena, &err), -1);
        assert_int_equal(err.code, ERR_CONFIG);
        assert_string_equal(err.text,
                            arena_printf(&arena, "j.yaml: not built yet: %s", rows[i].text));
    }
    must_read(&j, SMALL, &arena);
    assert_int_equal(job_check_built(&j, &err), 0);
    arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dp_is_filled),
        cmocka_unit_test(test_gradient_sum),
        cmocka_unit_test(test_mismatches),
        cmocka_unit_test(test_not_built),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
