/*
 * gpu_loss_test.c - ranks whose GPU is hot or breaks, as their supervisor tells of them
 *
 * Ranks here compute nothing; NVML is played (nvml_stub.c), so an Xid comes when a rank says so.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "launch/watch/rank_gpu.h"
#include "support/nvml_script.h"
#include "support/run_job.h"

#define HOT "1.busy 100\n1.sm 210\n1.sm_max 1980\n1.watts 120\n1.celsius 92\n1.throttle 0x40\n"

/* ---- the ranks: 0 and 1 have the GPUs 0 and 1 of their node ---- */

static void take_gpu(const struct launch_rank *rank)
{
    char pci[32];

    snprintf(pci, sizeof pci, "0000:%02x:00.0", 0x17 + rank->world_rank % 2);
    rank_gpu_set(progress_join(rank->local_rank), pci);
}

static int attempt(void)
{
    const char *text = getenv("LMTRAIN_ATTEMPT");

    return text ? (int)strtol(text, NULL, 10) : 0;
}

static void wait_for_ever(void)
{
    for (;;)
        pause();
}

/* The GPU breaks when its daemon has seen it. */
static void break_gpu(const char *xid)
{
    sleep(2);
    nvml_script(xid);
}

static int play(const char *scenario)
{
    struct launch_rank rank;
    struct err err;

    run_job_note_pid(getpid());
    if (launch_join(&rank, &err))
        return 1;
    if (attempt() && rank.world_rank == 0)
        nvml_script("gpus 2\n"); /* all is well again, and Xids are not told anew */
    CHECK(!launch_fence(30, &err));
    take_gpu(&rank);
    if (rank.world_rank == 0)
        printf("attempt %d of %d ranks\n", attempt(), rank.world_size);
    fflush(stdout);
    run_job_publish(&rank, "attention layers.9", 0);
    if (attempt()) {
        CHECK(!launch_fence(30, &err));
        return run_job_leave(0);
    }
    if (rank.world_rank != 1 && !strcmp(scenario, "last")) {
        CHECK(!launch_fence(30, &err));
        _exit(ERR_PEER);
    }
    if (rank.world_rank != 1 || !strcmp(scenario, "hot"))
        wait_for_ever();
    break_gpu(!strcmp(scenario, "contained") ? "gpus 2\nxid 1 48\nxid 1 45\nxid 1 94\n"
              : !strcmp(scenario, "ecc")     ? "gpus 2\nxid 1 48\nxid 1 63\n"
                                             : "gpus 2\nxid 1 79\n");
    if (!strcmp(scenario, "stuck"))
        wait_for_ever();
    if (!strcmp(scenario, "last")) {
        sleep(2);
        CHECK(!launch_fence(30, &err));
        usleep(50000);
        _exit(ERR_PEER);
    }
    if (!strcmp(scenario, "overcome")) {
        for (int i = 0; i < 90; i++, usleep(200000))
            run_job_publish(&rank, "attention layers.9", 0);
        _exit(3);
    }
    if (!strcmp(scenario, "peer")) /* NCCL gives up before CUDA notices */
        _exit(ERR_PEER);
    launch_abort(ERR_DEVICE, "wait: cudaErrorLaunchFailure (unspecified launch failure)");
}

/* ---- the tests ---- */

static void run(const struct job_plan *plan, struct job_result *result, int status)
{
    nvml_script("gpus 2\n");
    run_job(plan, result);
    if (result->status != status)
        fail_msg("%s: status %d, not %d; stderr:\n%s", plan->scenario, result->status, status,
                 result->err);
}

static void a_hang_tells_of_a_hot_gpu(void **state)
{
    struct job_result result;

    (void)state;
    nvml_script("gpus 2\n0.busy 100\n0.sm 1980\n" HOT);
    run_job(&(struct job_plan){ "hot", 2, .hang_seconds = 4, .hang_abort_seconds = 5 }, &result);
    assert_int_equal(result.status, ERR_PEER);
    run_job_check_says(&result, "  rank 1: GPU 1 (0000:18:00.0) at 100 % and 210 of 1980 MHz, 120 "
                                "W, 92 degrees Celsius: thermal slowdown by hardware\n"
                                "  rank 0: GPU 0 (0000:17:00.0) at 100 % and 1980 MHz\n");
    run_job_check_clean(&result);
}

static void a_device_error_is_told_with_its_xid(void **state)
{
    struct job_result result;

    (void)state;
    run(&(struct job_plan){ "lost", 2, .n_restarts = 1 }, &result, ERR_DEVICE);
    run_job_check_says(&result, "rank 1 on ");
    run_job_check_says(&result, "failed with status 4: wait: cudaErrorLaunchFailure (unspecified "
                                "launch failure) (last seen: in attention layers.9");
    run_job_check_says(&result, "; GPU 1 (0000:18:00.0, GPU-00000000-0000-0000-0000-000000000001): "
                                "Xid 79, the GPU has fallen off the bus (hint: drain the node");
    assert_null(strstr(result.err, "restarting"));
    run_job_check_clean(&result);
}

/* The rank itself only saw its peers go; its GPU says that it is the cause. */
static void a_peer_error_of_a_broken_gpu_is_its_own(void **state)
{
    struct job_result result;

    (void)state;
    run(&(struct job_plan){ .scenario = "peer", .n_ranks = 2 }, &result, ERR_PEER);
    run_job_check_says(&result, "rank 1 on ");
    run_job_check_says(&result, "Xid 79, the GPU has fallen off the bus");
    run_job_check_clean(&result);
}

/* All ranks gave up for their peers, the one with the broken GPU last, and none runs any more. */
static void a_broken_gpu_is_blamed_after_its_rank_has_ended(void **state)
{
    struct job_result result;

    (void)state;
    run(&(struct job_plan){ .scenario = "last", .n_ranks = 2 }, &result, ERR_DEVICE);
    run_job_check_says(&result, "rank 1 on ");
    run_job_check_says(&result, "lost its GPU (last seen: in attention layers.9");
    run_job_check_says(&result, "Xid 79, the GPU has fallen off the bus");
    run_job_check_clean(&result);
}

/* In the driver for good, with hangs not watched: told at once, and ended. */
static void a_rank_that_hangs_on_a_lost_gpu_is_ended(void **state)
{
    struct job_result result;

    (void)state;
    run(&(struct job_plan){ .scenario = "stuck", .n_ranks = 2 }, &result, ERR_DEVICE);
    run_job_check_says(&result, "warn: rank 1 on ");
    run_job_check_says(&result, "lost its GPU and does not exit (last seen: in attention layers.9");
    run_job_check_clean(&result);
}

/* Longer than one that stands still would live: it ends as it will. */
static void a_rank_that_goes_on_is_left_alone(void **state)
{
    struct job_result result;

    (void)state;
    run(&(struct job_plan){ .scenario = "overcome", .n_ranks = 2 }, &result, 3);
    run_job_check_says(&result, "warn: rank 1 on ");
    run_job_check_says(&result, "exited with status 3");
    run_job_check_clean(&result);
}

/* Xid 48 is of the same error and 45 a consequence; 94 says that the GPU can be used again. */
static void a_contained_error_is_worth_a_restart(void **state)
{
    struct job_result result;

    (void)state;
    run(&(struct job_plan){ "contained", 2, .n_restarts = 1 }, &result, 0);
    run_job_check_says(&result, "Xid 94, an uncorrectable ECC error, contained to one program");
    run_job_check_says(&result, "restarting (1 of 1)");
    assert_string_equal(result.out, "attempt 0 of 2 ranks\nattempt 1 of 2 ranks\n");
    run_job_check_clean(&result);
}

static void an_uncontained_ecc_error_is_not(void **state)
{
    struct job_result result;

    (void)state;
    run(&(struct job_plan){ "ecc", 2, .n_restarts = 1 }, &result, ERR_DEVICE);
    run_job_check_says(&result, "Xid 48, a double-bit ECC error in the GPU's memory (hint: there "
                                "is no Xid 94 for a contained error: drain the node");
    assert_null(strstr(result.err, "restarting"));
    run_job_check_clean(&result);
}

static int all_that_are_possible(void *context, int attempt, int n_possible, char *const **argv,
                                 struct err *err)
{
    (void)context;
    (void)attempt;
    (void)argv;
    (void)err;
    return n_possible;
}

static void a_restart_leaves_the_broken_host_out(void **state)
{
    struct job_result result;

    (void)state;
    run(&(struct job_plan){ "lost", 2, .n_restarts = 1, .hosts = "alpha:1,beta:1",
                            .again = all_that_are_possible },
        &result, 0);
    run_job_check_says(&result, "rank 1 on beta failed with status 4");
    run_job_check_says(&result, "restarting (1 of 1) from the newest checkpoint, with 1 rank");
    assert_string_equal(result.out, "attempt 0 of 2 ranks\nattempt 1 of 1 ranks\n");
    run_job_check_clean(&result);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hang_tells_of_a_hot_gpu),
        cmocka_unit_test(a_device_error_is_told_with_its_xid),
        cmocka_unit_test(a_peer_error_of_a_broken_gpu_is_its_own),
        cmocka_unit_test(a_broken_gpu_is_blamed_after_its_rank_has_ended),
        cmocka_unit_test(a_rank_that_hangs_on_a_lost_gpu_is_ended),
        cmocka_unit_test(a_rank_that_goes_on_is_left_alone),
        cmocka_unit_test(a_contained_error_is_worth_a_restart),
        cmocka_unit_test(an_uncontained_ecc_error_is_not),
        cmocka_unit_test(a_restart_leaves_the_broken_host_out),
    };

    run_job_as_daemon(argc, argv);
    if (argc > 1 && run_job_is_rank())
        return play(argv[1]);
    return cmocka_run_group_tests(tests, nvml_script_begin, nvml_script_end);
}
