/*
 * watcher_test.c - processes that play the ranks of a node under a launcher that is not ours
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/log.h"
#include "launch/launch.h"
#include "launch/watch/death_notices_impl.h"
#include "launch/watch/rank_gpu.h"
#include "launch/watch/watcher_impl.h"
#include "launch/watched_ranks.h"
#include "support/nvml_script.h"

static void act_talk(int rank)
{
    printf("stdout of %d\n", rank);
    fprintf(stderr, "stderr of %d\n", rank);
    log_warn("a warning of %d", rank);
    fflush(stdout);
}

/* Rank 0 has the screen; of others warnings come to it, and all goes to their logs. */
static void test_logs(void **state)
{
    struct stat stat_;
    char path[128];

    (void)state;
    run(&(struct play){ .n_ranks = 3, .act = act_talk });
    for (int rank = 0; rank < 3; rank++)
        assert_int_equal(statuses[rank], 0);
    assert_says("stdout of 0\n");
    assert_says("stderr of 0\n");
    assert_says("rank 1: lmtrain: warn: a warning of 1\n");
    assert_says("rank 2: lmtrain: warn: a warning of 2\n");
    assert_null(strstr(screen, "stdout of 1"));
    assert_null(strstr(screen, "stderr of 2"));
    assert_null(strstr(screen, "died"));
    assert_null(read_log(0));
    const char *log = read_log(2);
    assert_non_null(log);
    assert_non_null(strstr(log, "stdout of 2\n"));
    assert_non_null(strstr(log, "stderr of 2\n"));
    assert_non_null(strstr(log, "lmtrain: warn: a warning of 2\n"));
    snprintf(path, sizeof path, "%s/rank-1.log", folder);
    assert_int_equal(stat(path, &stat_), 0);
    assert_int_equal(stat_.st_mode & 0777, 0600);
}

static int victim;

static void act_die(int rank)
{
    say_where(rank, rank == victim ? "attention layers.3" : "reduce_scatter dp bucket.3",
              rank != victim, rank == victim ? 5 : 9);
    if (rank == victim) {
        fprintf(stderr, "last words of %d\n", rank);
        usleep(50000);
        raise(SIGKILL);
    }
    wait_for_ever();
}

static void check_death(int rank)
{
    char words[64];

    victim = rank;
    run(&(struct play){ .n_ranks = 3, .act = act_die });
    snprintf(words, sizeof words, "lmtrain: error: rank %d on ", rank);
    assert_says(words);
    assert_says("was killed by signal 9 (Killed) (last seen: in attention layers.3, step 7, "
                "micro-batch 0)");
    assert_says("2 other ranks of ");
    for (int i = 0; i < 3; i++)
        if (i == rank)
            assert_int_equal(WTERMSIG(statuses[i]), SIGKILL);
        else
            assert_int_equal(WEXITSTATUS(statuses[i]), ERR_PEER);
}

/* Also that of the rank whose child the watcher is. */
static void test_deaths(void **state)
{
    (void)state;
    check_death(1);
    assert_says("; its last lines:\nlast words of 1\n");
    check_death(0);
    /* In the run's record each is there once, with its step. */
    assert_int_equal(count_recorded("died 7 rank 1 on "), 1);
    assert_int_equal(count_recorded("died 7 rank 0 on "), 1);
    assert_int_equal(count_recorded("died "), 2);
}

static void act_bug(int rank)
{
    CHECK(rank != 1);
    wait_for_ever();
}

/* CHECK's last words come to the screen once as they are, and the death is told. */
static void test_bug(void **state)
{
    (void)state;
    run(&(struct play){ .n_ranks = 2, .act = act_bug });
    assert_says("rank 1: lmtrain: bug: ");
    assert_says("rank != 1 does not hold\n");
    assert_says("rank 1 on ");
    assert_says("was killed by signal 6 (Aborted) (last seen: starting)");
}

static void act_fail(int rank)
{
    if (rank == 1)
        launch_abort(ERR_DATA, "the data is gone");
    wait_for_ever();
}

/* Who told why it fails is not said to have died, but the others are ended. */
static void test_abort(void **state)
{
    (void)state;
    run(&(struct play){ .n_ranks = 2, .act = act_fail });
    assert_int_equal(WEXITSTATUS(statuses[1]), ERR_DATA);
    assert_int_equal(WEXITSTATUS(statuses[0]), ERR_PEER);
    assert_says("rank 1: lmtrain: error: the data is gone\n");
    assert_null(strstr(screen, "died"));
}

static void test_all_killed(void **state)
{
    (void)state;
    run(&(struct play){ .n_ranks = 4, .act = act_die, .kill_all = 1 });
    assert_says(" was killed by signal 9 (Killed) (last seen: ");
    assert_says("3 other ranks of ");
}

/* Rank 1's GPU falls off the bus; rank 0 has none. */
static void lose_gpu(int rank)
{
    say_where(rank, "attention layers.3", 0, 5);
    if (rank == 1) {
        rank_gpu_set(progress_join(rank), "0000:18:00.0");
        sleep(2);
        nvml_script("gpus 2\nxid 1 79\n");
    }
}

static void act_give_up_gpu(int rank)
{
    lose_gpu(rank);
    if (rank == 1)
        launch_abort(ERR_DEVICE, "wait: cudaErrorLaunchFailure");
    wait_for_ever();
}

static void act_hang_on_gpu(int rank)
{
    lose_gpu(rank);
    wait_for_ever();
}

/* One that says an error of CUDA's, and one that says nothing any more: its GPU's Xid is told. */
static void test_lost_gpu(void **state)
{
    nvml_script_begin(state);
    nvml_script("gpus 2\n");
    run(&(struct play){ .n_ranks = 2, .act = act_give_up_gpu });
    assert_says("failed: GPU 1 (0000:18:00.0, GPU-00000000-0000-0000-0000-000000000001): Xid 79, "
                "the GPU has fallen off the bus (hint: drain the node");
    nvml_script("gpus 2\n");
    run(&(struct play){ .n_ranks = 2, .act = act_hang_on_gpu });
    assert_says("warn: rank 1 on ");
    assert_says(" lost its GPU and does not exit: GPU 1 (0000:18:00.0");
    nvml_script_end(state);
}

/* Rank 2 hangs, and does not hear SIGUSR2 either. */
static void act_hang(int rank)
{
    sigset_t all;

    if (rank == 2) {
        sigfillset(&all);
        sigprocmask(SIG_SETMASK, &all, NULL);
    }
    say_where(rank, rank == 2 ? "attention layers.9" : "reduce_scatter dp bucket.3", rank != 2,
              rank == 2 ? 5 : 9);
    wait_for_ever();
}

static void test_hang(void **state)
{
    (void)state;
    run(&(struct play){
        .n_ranks = 3, .act = act_hang, .hang_seconds = 1, .hang_abort_seconds = 2 });
    assert_says("lmtrain: warn: no progress on ");
    assert_says("): waits in reduce_scatter dp bucket.3, step 7, micro-batch 0 since ");
    assert_says("has not reached it: it is in attention layers.9, step 7, micro-batch 0\n");
    assert_says("rank 2 on ");
    assert_says(" made no progress for ");
    assert_int_equal(WEXITSTATUS(statuses[0]), ERR_PEER);
    assert_int_equal(WEXITSTATUS(statuses[1]), ERR_PEER);
    assert_int_equal(WTERMSIG(statuses[2]), SIGKILL);
    assert_int_equal(count_recorded("hung 7   rank 2 on "), 1);
    assert_int_equal(count_recorded("died 7 rank 2 on "), 1);
}

static void act_wait_for_others(int rank)
{
    say_where(rank, "all_gather dp x", 1, 9);
    wait_for_ever();
}

static void act_linger(int rank)
{
    (void)rank;
    usleep(1500000); /* longer than from one look at the news to the next */
}

/* Where more ranks are elsewhere, these may wait for one of them: they are given twice the time. */
static void test_other_nodes(void **state)
{
    (void)state;
    run(&(struct play){ .n_ranks = 2,
                        .world_size = 4,
                        .act = act_wait_for_others,
                        .hang_seconds = 1,
                        .hang_abort_seconds = 1.5 });
    assert_says("no rank of this node is behind: it waits for a rank of another node\n");
    const char *at = strstr(screen, "made no progress for ");
    assert_non_null(at);
    assert_true(strtod(at + strlen("made no progress for "), NULL) >= 3);
}

/* ---- other nodes' watchers ---- */

/* What watchers have told, all of them, or "". */
static const char *told_others(void)
{
    static char text[1024];
    char path[128];

    snprintf(path, sizeof path, "%s/watchers", folder);
    FILE *file = fopen(path, "re");
    text[file ? fread(text, 1, sizeof text - 1, file) : 0] = '\0';
    if (file)
        fclose(file);
    return text;
}

static void act_killed_elsewhere(int rank)
{
    uint64_t id;
    size_t n_bytes = sizeof id;
    struct err err;

    if (rank == 0) {
        CHECK(launch_get(WATCHER_ID_KEY, 0, &id, &n_bytes, 0, &err) == 0);
        struct death_notices *notices = death_notices_open(folder, id);
        CHECK(notices);
        death_notices_post(notices, "rank 3 on elsewhere died");
        death_notices_flush(notices, DEADLINE_SECONDS);
    }
    act_wait_for_others(rank);
}

/* What breaks on another node ends this node's ranks, and is named as the cause. */
static void test_hear_others(void **state)
{
    (void)state;
    run(&(struct play){ .n_ranks = 2, .world_size = 4, .act = act_killed_elsewhere });
    assert_says("rank 3 on elsewhere died: terminating the ranks of ");
    assert_says("2 other ranks of ");
    for (int rank = 0; rank < 2; rank++)
        assert_int_equal(WEXITSTATUS(statuses[rank]), ERR_PEER);
    /* It is the other node's to record. */
    assert_int_equal(count_recorded("died "), 0);
}

static void act_one_killed(int rank)
{
    if (rank == 1)
        raise(SIGKILL);
    wait_for_ever();
}

/* And the other way; but nobody is told where all ranks are here. */
static void test_tell_others(void **state)
{
    (void)state;
    run(&(struct play){ .n_ranks = 2, .act = act_one_killed });
    assert_string_equal(told_others(), "");
    run(&(struct play){ .n_ranks = 2, .world_size = 4, .act = act_one_killed });
    assert_non_null(strstr(told_others(), "rank 1 on "));
    run(&(struct play){ .n_ranks = 2, .world_size = 4, .act = act_fail });
    assert_non_null(strstr(told_others(), "rank 1 on "));
    assert_non_null(strstr(told_others(), " failed"));
    assert_int_equal(count_recorded("died 0 rank 1 on "), 3);
    /* Another launch's news are none. */
    run(&(struct play){ .n_ranks = 2, .world_size = 4, .act = act_linger });
    assert_string_equal(screen, "");
}

static void act_leave_in_turn(int rank)
{
    usleep(100000 * (unsigned)rank);
}

/* Who leaves in good order, however early, is no death and no hang. */
static void test_leaving(void **state)
{
    (void)state;
    run(&(struct play){
        .n_ranks = 4, .act = act_leave_in_turn, .hang_seconds = 10, .hang_abort_seconds = 10 });
    assert_string_equal(screen, "");
    assert_int_equal(n_orphans, 0);
    for (int rank = 0; rank < 4; rank++)
        assert_int_equal(statuses[rank], 0);
}

int main(void)
{
    n_playing =
        mmap(NULL, sizeof *n_playing, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(n_playing != MAP_FAILED);

    const struct CMUnitTest tests[] = {
        TEST(test_logs),        TEST(test_deaths),  TEST(test_bug),         TEST(test_abort),
        TEST(test_all_killed),  TEST(test_hang),    TEST(test_other_nodes), TEST(test_hear_others),
        TEST(test_tell_others), TEST(test_leaving), TEST(test_lost_gpu),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
