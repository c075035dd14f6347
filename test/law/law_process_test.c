/*
 * law_process_test.c - 4 ranks as processes under our server have the bits of 4 ranks as threads
 *
 * The test supervises itself: a rank plays the law's run over MPI and leaves its outcome in a file,
 * which is compared with what the same run gives with threads for ranks.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "support/law_rig.h"
#include "support/run_job.h"
#include "support/temporary.h"

static char folder[256], dataset[300];

static struct law_case case_of(const char *scenario)
{
    int early = !strcmp(scenario, "early"), zero = !strcmp(scenario, "zero 1");

    return (struct law_case){ .folder = folder,
                              .dataset = dataset,
                              .model = "llama",
                              .dtype = "bf16",
                              .recompute = early ? "full" : "none",
                              .gradient_sum = early ? "early" : "late",
                              .zero = zero,
                              .n_ranks = 4,
                              .n_threads = 1 };
}

static int play(const char *scenario)
{
    const char *shared = getenv("TEST_FOLDER");
    struct law_case law = case_of(scenario);
    struct law_outcome outcome;
    struct launch_rank rank;
    struct err err;
    char path[160];

    snprintf(folder, sizeof folder, "%s", getenv("LAW_FOLDER"));
    snprintf(dataset, sizeof dataset, "%s/tokens", folder);
    int status = launch_join(&rank, &err);
    if (!status)
        status = law_play_rank(&law, &rank, &outcome, &err);
    snprintf(path, sizeof path, "%s/outcome.%d", shared, rank.world_rank);
    if (!status)
        status = file_write(path, &outcome, sizeof outcome, &err);
    if (status < 0)
        launch_abort(ERR_FAILED, err.text);
    launch_leave();
    return 0;
}

/* What a rank left behind. */
static struct law_outcome outcome_of(const struct job_result *result, int rank)
{
    struct law_outcome outcome;
    char path[160], *data;
    size_t n_bytes;
    struct err err;

    snprintf(path, sizeof path, "%s/outcome.%d", result->folder, rank);
    if (file_read(path, 1 << 16, ERR_DATA, &data, &n_bytes, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(n_bytes, sizeof outcome);
    memcpy(&outcome, data, sizeof outcome);
    free(data);
    return outcome;
}

static void compare(const char *scenario)
{
    struct job_plan plan = { .scenario = scenario, .n_ranks = 4 };
    struct law_case law = case_of(scenario);
    struct law_outcome threads = law_run(&law);
    struct job_result result;
    uint64_t states = 0;

    run_job(&plan, &result);
    if (result.status)
        fail_msg("status %d: %s%s", result.status, result.out, result.err);
    for (int rank = 0; rank < plan.n_ranks; rank++) {
        struct law_outcome own = outcome_of(&result, rank);

        assert_memory_equal(own.loss, threads.loss, sizeof threads.loss);
        assert_memory_equal(own.norm, threads.norm, sizeof threads.norm);
        assert_true(own.parameters == threads.parameters);
        assert_true(own.numerics == threads.numerics);
        states = law.zero || rank == 0 ? states + own.states : states;
    }
    assert_true(states == threads.states);
    run_job_check_clean(&result);
}

static void late(void **state)
{
    (void)state;
    compare("late");
}

static void early(void **state)
{
    (void)state;
    compare("early");
}

static void zero_one(void **state)
{
    (void)state;
    compare("zero 1");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(late), cmocka_unit_test(early),
                                        cmocka_unit_test(zero_one) };
    struct err err;

    if (run_job_is_rank())
        return play(argc > 1 ? argv[1] : "");
    if (temporary_folder(folder, sizeof folder))
        return 1;
    setenv("LAW_FOLDER", folder, 1);
    snprintf(dataset, sizeof dataset, "%s/tokens", folder);
    law_write_dataset(dataset);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    file_remove_tree(folder, &err);
    return failed;
}
