/*
 * mlflow_test.c - the queue and the thread of mlflow.h, with a folder in the place of a server
 */
#include "report_fixture.h"

#include <ftw.h>
#include <stdatomic.h>

#include "report/mlflow.h"

#define DEADLINE_SECONDS 60

/* How many lines the metric has, and the last of them; of the only run of the only experiment. */
static int count_lines(const char *path, char *last, size_t size)
{
    FILE *file = fopen(path, "re");
    char line[256];
    int n = 0;

    while (file && fgets(line, sizeof line, file)) {
        snprintf(last, size, "%s", line);
        n++;
    }
    if (file)
        fclose(file);
    return n;
}

static char found[4096];
static const char *wanted;

static int match(const char *path, const struct stat *status, int kind, struct FTW *place)
{
    (void)status, (void)kind, (void)place;
    if (str_ends_with(path, wanted))
        snprintf(found, sizeof found, "%s", path);
    return 0;
}

/* The file below the folder whose path ends so; "" if there is none. */
static const char *find_below(const char *folder, const char *end)
{
    found[0] = '\0';
    wanted = end;
    assert_int_equal(nftw(folder, match, 8, FTW_PHYS), 0);
    return found;
}

static bool may_wait(void *context)
{
    atomic_fetch_add((atomic_int *)context, 1);
    return true;
}

static bool may_not_wait(void *context)
{
    (void)context;
    return false;
}

static struct mlflow *open_run(void **state, const char *url)
{
    static const struct mlflow_param params[] = { { "optimizer.lr", "3.0e-4" },
                                                  { "train.steps", "12" } };
    const struct mlflow_options options = { .url = url,
                                            .experiment = "an experiment",
                                            .run_name = "a run",
                                            .run_file = fixture_path(*state, "run_id"),
                                            .params = params,
                                            .n_params = 2 };
    struct mlflow *mlflow;
    struct err err;

    assert_ok(mlflow_open(&mlflow, &options, &err), &err);
    return mlflow;
}

static void a_folder_gets_all(void **state)
{
    const char *store = fixture_path(*state, "store");
    struct mlflow *mlflow = open_run(state, store);
    atomic_int n_asked = 0;
    char last[256] = "", text[64];

    for (int step = 1; step <= 3000; step++) {
        const struct events_scalar scalars[] = { { "train/loss", 1.0 / step },
                                                 { "train/nan", NAN } };

        mlflow_put(mlflow, step, scalars, 2);
    }
    mlflow_close(mlflow, MLFLOW_FINISHED, DEADLINE_SECONDS, may_wait, &n_asked);
    assert_int_equal(count_lines(find_below(store, "/metrics/train/loss"), last, sizeof last),
                     3000);
    snprintf(text, sizeof text, " %d\n", 3000);
    assert_true(str_ends_with(last, text));
    assert_string_equal(find_below(store, "/metrics/train/nan"), "");
    assert_int_equal(count_lines(find_below(store, "/params/optimizer.lr"), last, sizeof last), 1);
    assert_string_equal(last, "3.0e-4");

    /* Gone on with it is the same run. */
    mlflow = open_run(state, store);
    mlflow_put(mlflow, 3001, &(struct events_scalar){ "train/loss", 0.5 }, 1);
    mlflow_close(mlflow, MLFLOW_KILLED, DEADLINE_SECONDS, may_wait, &n_asked);
    assert_int_equal(count_lines(find_below(store, "/metrics/train/loss"), last, sizeof last),
                     3001);
}

/* What cannot be reached keeps neither the steps nor the end waiting. */
static void nothing_is_waited_for(void **state)
{
    struct err err;

    assert_ok(file_write(fixture_path(*state, "file"), "x", 1, &err), &err);
    struct mlflow *mlflow = open_run(state, fixture_path(*state, "file/store"));

    for (int i = 0; i < MLFLOW_WAITING_MAX + 10; i++)
        mlflow_put(mlflow, i, &(struct events_scalar){ "loss", 1 }, 1);
    mlflow_close(mlflow, MLFLOW_FAILED, DEADLINE_SECONDS, may_not_wait, NULL);
    mlflow_put(NULL, 1, NULL, 0);
    mlflow_close(NULL, MLFLOW_FAILED, 1, may_not_wait, NULL);
}

int main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_folder_gets_all),
        TEST(nothing_is_waited_for),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
