/*
 * common_test.c - what all commands say alike when they are called wrongly
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "cmd.h"

/* What a call writes to stderr; *status is what it returns. */
static const char *said(int (*call)(int argc, char **argv), char **argv, int *status)
{
    static char text[4096];
    FILE *file = tmpfile();
    int argc = 0, old = dup(STDERR_FILENO);

    while (argv[argc])
        argc++;
    assert_non_null(file);
    fflush(stderr);
    dup2(fileno(file), STDERR_FILENO);
    *status = call(argc, argv);
    fflush(stderr);
    dup2(old, STDERR_FILENO);
    close(old);
    rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return text;
}

static void the_number_of_ranks_has_many_names(void **state)
{
    static char *const names[] = { "--world", "--world=4", "--np", "--nproc-per-node=2",
                                   "--world-size" };
    int status;

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *argv[] = { "pretrain", "job.yaml", names[i], "4", NULL };
        const char *text = said(cmd_pretrain, argv, &status);

        assert_int_equal(status, ERR_CONFIG);
        if (!strstr(text, "(hint: --ranks)"))
            fail_msg("%s: %s", names[i], text);
    }
    /* Behind -- it is a file; and where it is an option it is one, with a warning. */
    char *file[] = { "pretrain", "--", "--world", NULL };
    assert_non_null(strstr(said(cmd_pretrain, file, &status), "--world: No such file"));
    char *plan[] = { "plan", "--world", "2", "nowhere.yaml", NULL };
    const char *text = said(cmd_plan, plan, &status);
    assert_non_null(strstr(text, "nowhere.yaml: No such file"));
    assert_non_null(strstr(text, "warn: --world is deprecated since 0.1, use --ranks; it "
                                 "will be removed in 0.3"));
    char *both[] = { "plan", "--ranks", "2", "--world", "2", "nowhere.yaml", NULL };
    text = said(cmd_plan, both, &status);
    assert_int_equal(status, ERR_CONFIG);
    assert_non_null(strstr(text, "lmtrain plan: --world and --ranks are both given"));
}

static void a_family_asks_for_a_member(void **state)
{
    char *nothing[] = { "data", NULL }, *wrong[] = { "data", "tokenise", NULL };
    int status;

    (void)state;
    assert_string_equal(
        said(cmd_data, nothing, &status),
        "lmtrain: data: give tokenize, merge, inspect, preview or rows (hint: lmtrain data -h)\n");
    assert_int_equal(status, ERR_CONFIG);
    assert_string_equal(
        said(cmd_data, wrong, &status),
        "lmtrain: data tokenise: give tokenize, merge, inspect, preview or rows (hint: "
        "lmtrain data tokenize)\n");
}

static void a_model_that_is_not_there(void **state)
{
    char *generate[] = { "generate", "--model", "/nonexistent", "--prompt", "x", NULL };
    char *eval[] = { "eval", "--model", "/nonexistent", NULL };
    int status;

    (void)state;
    assert_non_null(strstr(said(cmd_generate, generate, &status), "/nonexistent does not exist"));
    assert_int_equal(status, ERR_DATA);
    assert_non_null(strstr(said(cmd_eval, eval, &status), "/nonexistent does not exist"));
    assert_int_equal(status, ERR_DATA);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_number_of_ranks_has_many_names),
        cmocka_unit_test(a_family_asks_for_a_member),
        cmocka_unit_test(a_model_that_is_not_there),
    };

    return cmocka_run_group_tests_name("common", tests, NULL, NULL);
}
