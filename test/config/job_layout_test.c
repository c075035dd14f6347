/*
 * job_layout_test.c - the table of a layout's fields: there and back, in a job's file, what modes
 * leave open
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "config/fields_impl.h"
#include "config/job_layout.h"

#define MODEL \
    "model: {vocab_size: 64, hidden_size: 64, n_layers: 8, n_heads: 4, ffn_size: 128}," \
    " data: {train: a, seq_len: 16}, train: {steps: 1, global_batch: 32, micro_batch: 1}"

static void read_job(struct job *job, const char *text, struct arena *arena)
{
    struct err err;

    if (job_read_text(job, text, strlen(text), "job.yaml", NULL, 0, arena, &err))
        fail_msg("%s", err.text);
}

static void test_each_key_is_a_field_of_a_job(void **state)
{
    const struct layout none = { 0 };

    (void)state;
    for (int i = 0; i < N_LAYOUT_KEYS; i++) {
        enum layout_key key = (enum layout_key)i;
        const struct field *field = field_find(layout_field(key));

        assert_non_null(field);
        assert_int_equal(field->type == FIELD_COUNTS, layout_list(&none, key) != NULL);
        assert_non_null(strstr(layout_field(key), layout_word(key)));
    }
}

static void test_a_job_gets_the_layout_and_has_it(void **state)
{
    static const int stages[] = { 3, 1, 1, 3 }, counts[] = { 5, 3 };
    const struct layout layout = { .tp = 2,
                                   .pp = 2,
                                   .dp = 2,
                                   .ep = 2,
                                   .chunks = 2,
                                   .schedule = PIPELINE_INTERLEAVED,
                                   .zero = 3,
                                   .zero_group = 2,
                                   .bucket_mb = 7,
                                   .micro_batch = 4,
                                   .recompute = RECOMPUTE_FULL,
                                   .hold = HOLD_RUN,
                                   .order = ORDER_PIPELINES,
                                   .stages = { stages, 4 },
                                   .counts = { counts, 2 } };
    struct arena arena = { 0 };
    struct str value = { 0 };
    struct job job;

    (void)state;
    read_job(&job, "{" MODEL "}", &arena);
    layout_apply(&job, &layout);
    const struct layout of_job = layout_of_job(&job);
    assert_int_equal(layout_compare(&of_job, &layout), 0);
    assert_ptr_equal(of_job.stages.values, stages);
    assert_int_equal(of_job.counts.n, 2);
    assert_int_equal(job.parallel.dp_given && job.parallel.chunks_given, 1);
    layout_print_value(&job, LAYOUT_STAGES, &value);
    layout_print_value(&job, LAYOUT_HOLD, &value);
    assert_string_equal(str_text(&value), "[3, 1, 1, 3]run");
    str_release(&value);
    arena_release(&arena);
}

/* Each key decides where all before it are equal. */
static void test_layouts_are_compared_in_the_order_of_keys(void **state)
{
    struct layout a = { .tp = 1, .micro_batch = 9 }, b = { .tp = 2, .micro_batch = 1 };

    (void)state;
    assert_true(layout_compare(&a, &b) < 0);
    assert_true(layout_compare(&b, &a) > 0);
    b.tp = 1;
    assert_true(layout_compare(&a, &b) > 0);
    b.micro_batch = 9;
    assert_int_equal(layout_compare(&a, &b), 0);
    b.stages = (struct job_counts){ (const int[]){ 3, 5 }, 2 };
    assert_true(layout_compare(&a, &b) < 0);
    a.stages = (struct job_counts){ (const int[]){ 4, 4 }, 2 };
    assert_true(layout_compare(&a, &b) > 0);
}

static void test_modes_leave_open_what_is_not_given(void **state)
{
    struct arena arena = { 0 };
    struct job job;

    (void)state;
    read_job(&job, "{" MODEL "}", &arena);
    for (int key = 0; key < N_LAYOUT_KEYS; key++)
        assert_false(layout_is_open(&job, (enum layout_key)key));
    read_job(&job, "{" MODEL ", recompute: full, parallel: {mode: semi, tp: 2}}", &arena);
    assert_false(layout_is_open(&job, LAYOUT_TP));
    assert_false(layout_is_open(&job, LAYOUT_RECOMPUTE));
    assert_false(layout_is_open(&job, LAYOUT_MICRO_BATCH));
    assert_true(layout_is_open(&job, LAYOUT_PP));
    assert_true(layout_is_unset(&job, "parallel.pp"));
    assert_false(layout_is_unset(&job, "parallel.tp"));
    assert_false(layout_is_unset(&job, "train.steps"));
    read_job(&job, "{" MODEL ", parallel: {mode: data}}", &arena);
    assert_false(layout_is_open(&job, LAYOUT_PP));
    assert_true(layout_is_open(&job, LAYOUT_ZERO));
    assert_true(layout_is_unset(&job, "parallel.pp"));
    /* Experts are divided where there are any. */
    read_job(&job, "{" MODEL ", parallel: auto}", &arena);
    assert_false(layout_is_open(&job, LAYOUT_EP));
    job.model.n_experts = 4;
    assert_true(layout_is_open(&job, LAYOUT_EP));
    job.parallel.mode = PARALLEL_DATA;
    assert_false(layout_is_open(&job, LAYOUT_EP));
    read_job(&job, "{" MODEL ", parallel: {mode: auto, ep: 2}}", &arena);
    job.model.n_experts = 4;
    assert_false(layout_is_open(&job, LAYOUT_EP));
    arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_key_is_a_field_of_a_job),
        cmocka_unit_test(test_a_job_gets_the_layout_and_has_it),
        cmocka_unit_test(test_layouts_are_compared_in_the_order_of_keys),
        cmocka_unit_test(test_modes_leave_open_what_is_not_given),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
