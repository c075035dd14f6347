/*
 * deprecated_test.c - an old key is read as its successor, with a warning; both are a mistake
 */
#include "config_fixture.h"

#include <cjson/cJSON.h>

#include "config/read_impl.h"

static const struct deprecated_key rows[] = {
    { "train.every", "train.log_every", "0.4", "0.6" },
    { "schedule.peak", "optimizer.lr", "0.3", "0.5" },
    { "model.width", "model.hidden_size", "0.4", "1.0" },
};
static const struct deprecated_keys keys = { rows, sizeof rows / sizeof *rows };

#define JOB(train, rest) \
    "model: {vocab_size: 64, hidden_size: 48, n_layers: 2, n_heads: 4, ffn_size: 72}\n" \
    "data: {train: tokens, seq_len: 16}\n" \
    "train: {steps: 20, global_batch: 8" train "}\n" rest

static int read_with(struct job *job, const char *text, const char *override, struct arena *arena,
                     struct err *err)
{
    return job_read_text_with(job, text, strlen(text), "j.yaml", &override, override != NULL, &keys,
                              arena, err);
}

static void refused(const char *text, const char *override, const char *words)
{
    struct arena arena = { 0 };
    struct job job;
    struct err err = { 0 };

    assert_int_equal(read_with(&job, text, override, &arena, &err), -1);
    assert_int_equal(err.code, ERR_CONFIG);
    assert_string_equal(err.text, words);
    arena_release(&arena);
}

static void an_old_key_is_read_as_the_new_one(void **state)
{
    struct arena arena = { 0 };
    struct job job;
    struct err err;
    struct str text = { 0 };

    (void)state;
    if (read_with(&job, JOB(", every: 7", "schedule: {peak: 0.25}\n"), NULL, &arena, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(job.train.log_every, 7);
    assert_true(job.optimizer.lr == 0.25);
    assert_int_equal(job.n_warnings, 2);
    assert_string_equal(job.warnings[0], "j.yaml:4:12: schedule.peak is deprecated since 0.3, use "
                                         "optimizer.lr; it will be removed in 0.5");
    assert_string_equal(job.warnings[1], "j.yaml:3:37: train.every is deprecated since 0.4, use "
                                         "train.log_every; it will be removed in 0.6");
    /* What is printed has the names of today, so what a run stores needs no old reader. */
    job_print(&job, &text);
    assert_non_null(strstr(str_text(&text), "  log_every: 7\n"));
    assert_null(strstr(str_text(&text), "every: 7\n  every"));
    assert_null(strstr(str_text(&text), "peak"));
    str_release(&text);
    arena_release(&arena);
}

static void an_override_may_have_it(void **state)
{
    struct arena arena = { 0 };
    struct job job;
    struct err err;

    (void)state;
    if (read_with(&job, JOB("", ""), "train.every=7", &arena, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(job.train.log_every, 7);
    assert_int_equal(job.n_warnings, 1);
    assert_string_equal(job.warnings[0], "--set train.every: train.every is deprecated since 0.4, "
                                         "use train.log_every; it will be removed in 0.6");
    /* Of a model's own file either name overrides the other. */
    if (read_with(&job,
                  "model: {from: llama-tiny, width: 96}\ndata: {train: t}\ntrain: {steps: 2}\n",
                  NULL, &arena, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(job.model.hidden_size, 96);
    arena_release(&arena);
}

static void both_are_a_mistake(void **state)
{
    (void)state;
    refused(JOB(", every: 7, log_every: 7", ""), NULL,
            "j.yaml:3:47: train.every and train.log_every are both given: the former is the "
            "deprecated name of the latter (hint: leave train.every out)");
    refused(JOB(", log_every: 7, every: 7", ""), NULL,
            "j.yaml:3:51: train.every and train.log_every are both given: the former is the "
            "deprecated name of the latter (hint: leave train.every out)");
    refused(JOB(", log_every: 7", ""), "train.every=8",
            "--set train.every: train.every and train.log_every are both given: the former is the "
            "deprecated name of the latter (hint: leave train.every out)");
}

static void its_value_is_checked_as_the_new_one(void **state)
{
    (void)state;
    refused(JOB(", every: none", ""), NULL,
            "j.yaml:3:44: train.log_every is none, not a whole number from 1 to 1000000000");
    refused(JOB("", "schedule: {peek: 1}\n"), NULL,
            "j.yaml:4:12: unknown key schedule.peek (hint: lmtrain config --explain lists all)");
}

/* Old keys hold no place that a field has, and lead to one. */
static void rows_lead_to_fields(void **state)
{
    (void)state;
    for (int i = 0; i < job_deprecated_keys.n; i++) {
        const struct deprecated_key *row = &job_deprecated_keys.items[i];

        assert_null(field_find(row->old));
        assert_non_null(field_find(row->successor));
        assert_true(row->since && row->removed_in);
    }
}

static void manual_and_schema_mark_them(void **state)
{
    struct str text = { 0 };

    (void)state;
    deprecated_manual(&keys, &text);
    assert_non_null(strstr(str_text(&text), ".SS deprecated keys\n.TP\n.B train.every\nDeprecated "
                                            "since 0.4: use\n.BR train.log_every .\nIt will be "
                                            "removed in 0.6.\n"));
    str_clear(&text);
    deprecated_manual(&(struct deprecated_keys){ NULL, 0 }, &text);
    assert_int_equal(text.length, 0);
    job_schema_with(&keys, &text);
    cJSON *schema = cJSON_Parse(str_text(&text));
    assert_non_null(schema);
    const char *at = strstr(str_text(&text), "\"every\": {\"deprecated\": true");
    assert_non_null(at);
    assert_non_null(strstr(at, "use train.log_every; it will be removed in 0.6"));
    assert_non_null(strstr(str_text(&text), "\"width\": {\"deprecated\": true"));
    assert_non_null(strstr(str_text(&text), "\n\"schedule\": {\"deprecated\": true"));
    cJSON_Delete(schema);
    str_release(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_old_key_is_read_as_the_new_one),
        cmocka_unit_test(an_override_may_have_it),
        cmocka_unit_test(both_are_a_mistake),
        cmocka_unit_test(its_value_is_checked_as_the_new_one),
        cmocka_unit_test(rows_lead_to_fields),
        cmocka_unit_test(manual_and_schema_mark_them),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
