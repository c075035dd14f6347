/*
 * prometheus_test.c - the text, its escapes, and the exchange of the file
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "report/prometheus.h"
#include "support/temporary.h"

static struct prometheus_run example(void)
{
    return (struct prometheus_run){ .run = "runs/a",
                                    .is_running = true,
                                    .step = 40,
                                    .steps = 300,
                                    .loss = 5.25,
                                    .grad_norm = 0.5,
                                    .lr = 3e-4,
                                    .tokens = 1 << 20,
                                    .tokens_per_s = 12400.5,
                                    .step_s = 0.125,
                                    .mfu = 0.41,
                                    .skipped = 1,
                                    .restarts = 2,
                                    .run_seconds = 100,
                                    .useful_seconds = 87.5,
                                    .save_seconds = -1,
                                    .save_blocked_seconds = 0.75,
                                    .slowest_rank = -1 };
}

static const char *print(const struct prometheus_run *run, struct str *out)
{
    str_clear(out);
    prometheus_print(run, out);
    return str_text(out);
}

static void has(const char *text, const char *line)
{
    if (!strstr(text, line))
        fail_msg("no \"%s\" in:\n%s", line, text);
}

static void test_text(void **state)
{
    struct prometheus_run run = example();
    struct str out = { 0 };
    const char *text = print(&run, &out);

    (void)state;
    has(text, "# HELP lmtrain_step Training steps done.\n# TYPE lmtrain_step gauge\n"
              "lmtrain_step{run=\"runs/a\"} 40\n");
    has(text, "# TYPE lmtrain_restarts_total counter\nlmtrain_restarts_total{run=\"runs/a\"} 2\n");
    has(text, "\nlmtrain_learning_rate{run=\"runs/a\"} 0.0003\n");
    has(text, "\nlmtrain_goodput_ratio{run=\"runs/a\"} 0.875\n");
    has(text, "\nlmtrain_running{run=\"runs/a\"} 1\n");
    assert_null(strstr(text, "lmtrain_save_seconds"));
    assert_null(strstr(text, "slowest"));
    assert_int_equal(text[out.length - 1], '\n');

    run.save_seconds = 2.5;
    run.slowest_rank = 3;
    run.slowest_host = "node\"2";
    run.slowest_ratio = 1.5;
    run.loss = NAN;
    run.grad_norm = INFINITY;
    run.run = "a \\ \"b\"\nc";
    text = print(&run, &out);
    has(text, "\nlmtrain_save_seconds{run=\"a \\\\ \\\"b\\\"\\nc\"} 2.5\n");
    has(text,
        "\nlmtrain_slowest_rank_ratio{run=\"a \\\\ \\\"b\\\"\\nc\",rank=\"3\",host=\"node\\\"2\"} "
        "1.5\n");
    has(text, "} NaN\n");
    has(text, "} +Inf\n");
    str_release(&out);
}

static void test_goodput(void **state)
{
    struct prometheus_run run = { .useful_seconds = 1 };

    (void)state;
    assert_true(prometheus_goodput(&run) == 0);
    run.run_seconds = 4;
    assert_true(prometheus_goodput(&run) == 0.25);
    run.run_seconds = 0.5; /* a clock that was set back */
    assert_true(prometheus_goodput(&run) == 1);
}

static void test_file(void **state)
{
    struct prometheus_run run = example();
    struct err err;
    struct stat stats;
    char folder[256], path[300], missing[310], *text;
    size_t n_bytes;

    (void)state;
    assert_int_equal(temporary_folder(folder, sizeof folder), 0);
    snprintf(path, sizeof path, "%s/run.prom", folder);
    for (int i = 0; i < 2; i++) {
        run.step += i;
        assert_int_equal(prometheus_write(path, &run, &err), 0);
        assert_int_equal(stat(path, &stats), 0);
        assert_int_equal(stats.st_mode & 0777, 0644);
    }
    assert_int_equal(file_read(path, 1 << 16, ERR_DATA, &text, &n_bytes, &err), 0);
    has(text, "\nlmtrain_step{run=\"runs/a\"} 41\n");
    free(text);
    snprintf(missing, sizeof missing, "%s.part", path);
    assert_int_equal(access(missing, F_OK), -1);

    snprintf(missing, sizeof missing, "%s/none/run.prom", folder);
    assert_int_equal(prometheus_write(missing, &run, &err), -1);
    assert_int_equal(err.code, ERR_FAILED);
    has(err.text, "none/run.prom");
    assert_int_equal(file_remove_tree(folder, &err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_goodput),
        cmocka_unit_test(test_file),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
