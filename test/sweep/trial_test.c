/*
 * trial_test.c - a trial's process: its environment, how it ended, what it said last
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "support/temporary.h"
#include "sweep/trial.h"

static char folder[64], path[128];

static const char *last_of(const char *log)
{
    static char text[256];
    FILE *file = fopen(path, "we");

    assert_non_null(file);
    fputs(log, file);
    fclose(file);
    trial_last_line(path, text, sizeof text);
    return text;
}

static void the_line_that_says_why(void **state)
{
    (void)state;
    assert_string_equal(last_of(""), "");
    assert_string_equal(last_of("a\nlmtrain: error: job.yaml: b\n\n"), "job.yaml: b");
    assert_string_equal(last_of("done: step 12\r\n"), "done: step 12");
    assert_string_equal(
        last_of(
            "lmtrain: error: rank 1 on n was killed by signal 9; its last lines:\n"
            "x\nlmtrainy\nlmtrain: warn: z\nlmtrain: error: 1 other rank terminated as a result\n"),
        "rank 1 on n was killed by signal 9");
    assert_string_equal(last_of("lmtrain: error: rank 1 died; its last lines:\nx\n"
                                "lmtrain: the disk is full\n"),
                        "the disk is full");
    assert_string_equal(last_of("\033[2Jtitle\n"), "?[2Jtitle");
    /* Only the end of a long log is read. */
    char log[10001];
    memset(log, 'a', sizeof log);
    memcpy(log + sizeof log - 6, "\nend\n", 6);
    assert_string_equal(last_of(log), "end");
}

static void what_may_end_otherwise(void **state)
{
    static const int died[] = { 5, 134, 137, 139, 143 }, refused[] = { 0, 1, 2, 3, 4, 75 };

    (void)state;
    for (size_t i = 0; i < sizeof died / sizeof *died; i++)
        assert_true(trial_died(died[i]));
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        assert_false(trial_died(refused[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_line_that_says_why),
        cmocka_unit_test(what_may_end_otherwise),
    };
    struct err err;

    if (temporary_folder(folder, sizeof folder) < 0)
        return 1;
    snprintf(path, sizeof path, "%s/log", folder);
    int status = cmocka_run_group_tests(tests, NULL, NULL);
    file_remove_tree(folder, &err);
    return status;
}
