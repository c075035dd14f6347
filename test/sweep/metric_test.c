/*
 * metric_test.c - the newest value of a metric at a step, from lines of all kinds
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "support/temporary.h"
#include "sweep/metric.h"

static const char lines[] =
    "{\"step\": 0, \"event\": \"started\", \"text\": \"eval_loss\", \"time\": 1}\n"
    "{\"step\": 1, \"loss\": 8.5, \"loss_hex\": \"0x1.1p+3\", \"nested\": {\"loss\": 3}}\n"
    "{\"step\": 4, \"eval_loss\": 8.3, \"eval_loss_hex\": \"0x1.0999999999999p+3\"}\n"
    "{\"step\": 4, \"eval_loss\": 1.0, \"eval_set\": \"kjv\"}\n"
    "{\"step\": 4, \"eval_loss\": 3.0, \"eval_set\": \"code\"}\n"
    "{\"step\": 8, \"loss\": null, \"loss_hex\": \"nan\"}\n"
    "{\"step\": 8, \"eval_loss\": 7.0, \"eval_loss_hex\": \"0x1.cp+2\"}\n"
    "{\"step\": 9, \"lo";

static const char sets_alone[] = "{\"step\": 4, \"eval_loss\": 1.0, \"eval_set\": \"kjv\"}\n"
                                 "{\"step\": 4, \"eval_loss\": 4.0, \"eval_set\": \"code\"}\n"
                                 "{\"step\": 8, \"eval_loss\": 2.0, \"eval_set\": \"kjv\"}\n"
                                 "{\"step\": 8, \"eval_loss\": 3.0, \"eval_set\": \"code\"}\n";

static char folder[512];

static struct metric_value read_at(const char *text, const char *metric, int64_t step)
{
    char path[600];
    struct metric_value value;
    struct err err;

    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    assert_int_equal(file_write(path, text, strlen(text), &err), 0);
    assert_int_equal(metric_read(folder, metric, step, &value, &err), 0);
    return value;
}

static void must_be(struct metric_value got, int64_t step, double value)
{
    assert_int_equal(got.step, step);
    assert_true(got.value == value);
}

static void the_newest_value_counts(void **state)
{
    (void)state;
    must_be(read_at(lines, "eval.loss", INT64_MAX), 8, 7.0);
    must_be(read_at(lines, "eval_loss", 7), 4, 0x1.0999999999999p+3);
    must_be(read_at(lines, "loss", 3), 1, 8.5);
    assert_int_equal(read_at(lines, "eval.loss", 3).step, -1);
    assert_int_equal(read_at(lines, "gain", INT64_MAX).step, -1);
    assert_int_equal(read_at(lines, "loss", 0).newest, 8);
    struct metric_value not_finite = read_at(lines, "loss", INT64_MAX);
    assert_int_equal(not_finite.step, 8);
    assert_true(isnan(not_finite.value));
}

static void held_out_sets_have_names(void **state)
{
    (void)state;
    must_be(read_at(lines, "eval.kjv.loss", INT64_MAX), 4, 1.0);
    must_be(read_at(lines, "eval.code.loss", INT64_MAX), 4, 3.0);
    must_be(read_at(sets_alone, "eval.loss", 7), 4, 2.5);
    must_be(read_at(sets_alone, "eval.loss", 8), 8, 2.5);
    must_be(read_at(sets_alone, "eval.kjv.loss", 8), 8, 2.0);
    assert_int_equal(read_at(sets_alone, "eval.jvk.loss", 8).step, -1);
}

static void a_run_without_the_file_has_no_values(void **state)
{
    struct metric_value value;
    struct err err;

    (void)state;
    assert_int_equal(metric_read("/nowhere", "loss", 1, &value, &err), 0);
    assert_int_equal(value.step, -1);
    assert_int_equal(value.newest, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_newest_value_counts),
        cmocka_unit_test(held_out_sets_have_names),
        cmocka_unit_test(a_run_without_the_file_has_no_values),
    };

    struct err err;

    if (temporary_folder(folder, sizeof folder) < 0)
        return 1;
    int status = cmocka_run_group_tests(tests, NULL, NULL);
    file_remove_tree(folder, &err);
    return status;
}
