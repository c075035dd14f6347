/*
 * slurm_args_test.c - further arguments of srun
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <string.h>
#include <cmocka.h>

#include "launch/slurm/slurm.h"

static void arguments_that_contradict_are_refused(void **state)
{
    static const char *const wrong[] = {
        "-n4",
        "--ntasks=4",
        "--ntask=4",
        "-N",
        "--nodes=2",
        "--mpi=pmi2",
        "-K",
        "-K0",
        "-un4",
        "--export=NONE",
        "-x",
        "--nodelist=n1",
        "-wn1",
        "--exclude=n1",
        "--kill-on-bad-exit=1",
        "--cpus-per-task=2",
        "-e",
        "--output=x",
    };
    static const char *const right[] = { "--container-image=x.sqsh",
                                         "--container-mounts=/a:/b",
                                         "--gpus-per-task=1",
                                         "--network=single_node_vni",
                                         "--cpu-bind=cores",
                                         "--gpu-bind=closest",
                                         "-v",
                                         "-t10",
                                         "--overlap",
                                         "--mem=0",
                                         "--wait=30" };
    static const char *const none[] = { "n1", "--", "-", "" };
    struct err err;

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (!slurm_check_args(&wrong[i], 1, "job.yaml", &err))
            fail_msg("%s is accepted", wrong[i]);
        assert_int_equal(err.code, ERR_CONFIG);
        assert_non_null(strstr(err.text, wrong[i]));
        assert_non_null(strstr(err.text, "job.yaml: launch.srun_args: "));
    }
    for (size_t i = 0; i < sizeof right / sizeof *right; i++)
        if (slurm_check_args(&right[i], 1, "job.yaml", &err))
            fail_msg("%s", err.text);
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        assert_int_equal(slurm_check_args(&none[i], 1, "job.yaml", &err), -1);
        assert_non_null(strstr(err.text, "is no option (hint: "));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arguments_that_contradict_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
