/*
 * watcher_test.c - processes that play the ranks of a node under a launcher that is not ours
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "launch/launch.h"
#include "launch/watch/death_notices_impl.h"
#include "launch/watch/rank_gpu.h"
#include "launch/watch/watch_page_impl.h"
#include "launch/watch/watcher.h"
#include "launch/watch/watcher_impl.h"
#include "support/nvml_script.h"

enum { N_MAX = 8, DEADLINE_SECONDS = 60 };

struct play {
    int n_ranks, world_size;
    double hang_seconds, hang_abort_seconds;
    void (*act)(int rank); /* between joining and leaving */
    int kill_all;          /* the parent kills all ranks once they have joined */
};

static char folder[64], page_path[512], screen[1 << 16];
static int statuses[N_MAX];
static atomic_int *n_playing; /* ranks that have joined, in memory that all share */
static int n_orphans;         /* watchers that nobody but init would have reaped */
static double seconds; /* from the last rank's end until the last holder of the screen is gone */

/* ---- the ranks ---- */

static void say_where(int rank, const char *text, int waits, uint64_t position)
{
    struct progress_slot *slot = progress_join(rank);
    struct progress_meeting meeting = { .position = 9 };

    atomic_store(&slot->step, 7);
    atomic_store(&slot->op, 2);
    atomic_store(&slot->position, position);
    if (waits)
        progress_wait(slot, text, &meeting);
    else
        progress_publish(slot, text, 0);
}

static void wait_for_ever(void)
{
    for (;;)
        pause();
}

/* All ranks of the node have joined once the page's name is gone. */
static void wait_for_all(void)
{
    while (!access(page_path, F_OK))
        usleep(1000);
}

/* The first rank to come makes the watcher: let that be rank 0. */
static void wait_for_rank_0(int rank)
{
    while (rank && access(page_path, F_OK))
        usleep(1000);
}

static void play_rank(const struct play *play, int rank)
{
    struct watcher_options options = { play->hang_seconds, play->hang_abort_seconds, folder };
    struct launch_rank self = { .world_rank = rank,
                                .world_size = play->world_size ? play->world_size : play->n_ranks,
                                .local_rank = rank,
                                .local_size = play->n_ranks,
                                .under_pmix = 1 };
    char number[16];
    struct err err;

    alarm(DEADLINE_SECONDS);
    snprintf(number, sizeof number, "%d", rank);
    setenv("PMIX_RANK", number, 1);
    wait_for_rank_0(rank);
    CHECK(watcher_start(&options, &err) == 0);
    CHECK(watcher_join(&self, &err) == 0);
    wait_for_all();
    atomic_fetch_add(n_playing, 1);
    play->act(rank);
    launch_leave();
    exit(0);
}

/* ---- their parent ---- */

static void read_screen(int fd)
{
    size_t n = 0;
    ssize_t got;

    while (n < sizeof screen - 1 && (got = read(fd, screen + n, sizeof screen - 1 - n)) > 0)
        n += (size_t)got;
    screen[n] = '\0';
}

static pid_t start_rank(const struct play *play, int rank, const int ends[2])
{
    pid_t child = fork();

    if (!child) {
        close(ends[0]);
        dup2(ends[1], STDOUT_FILENO);
        dup2(ends[1], STDERR_FILENO);
        close(ends[1]);
        play_rank(play, rank);
    }
    return child;
}

/* Ranks, and the watcher as one that was left to us. */
static void reap_all(const pid_t *ranks, int n)
{
    double last_rank = 0;
    pid_t pid;
    int status;

    n_orphans = 0;
    while ((pid = waitpid(-1, &status, 0)) > 0) {
        n_orphans++;
        for (int i = 0; i < n; i++)
            if (ranks[i] == pid) {
                statuses[i] = status;
                last_rank = clock_seconds();
                n_orphans--;
            }
    }
    assert_int_equal(errno, ECHILD);
    seconds = clock_seconds() - last_rank;
}

/* Play to the end. Checks what holds always: all is gone, and soon. */
static void run(const struct play *play)
{
    pid_t ranks[N_MAX];
    int ends[2];

    alarm(2 * DEADLINE_SECONDS);
    atomic_store(n_playing, 0);
    assert_int_equal(pipe(ends), 0);
    for (int rank = 0; rank < play->n_ranks; rank++)
        ranks[rank] = start_rank(play, rank, ends);
    close(ends[1]);
    if (play->kill_all) {
        while (atomic_load(n_playing) < play->n_ranks)
            usleep(100);
        for (int rank = 0; rank < play->n_ranks; rank++)
            kill(ranks[rank], SIGKILL);
    }
    read_screen(ends[0]); /* ends when nobody holds the other end any more */
    close(ends[0]);
    reap_all(ranks, play->n_ranks);
    alarm(0);
    assert_true(seconds < 5);
    assert_int_equal(access(page_path, F_OK), -1);
}

static int setup(void **state)
{
    char name[64];
    struct err err;

    (void)state;
    snprintf(folder, sizeof folder, "/tmp/lmtrain-watcher-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(name, sizeof name, "watcher-test-%d", (int)getpid());
    setenv("PMIX_NAMESPACE", name, 1);
    unsetenv(PROGRESS_VARIABLE);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    assert_int_equal(watch_page_path(page_path, sizeof page_path, &err), 0);
    return 0;
}

static int teardown(void **state)
{
    struct err err;

    (void)state;
    unlink(page_path);
    return file_remove_tree(folder, &err);
}

static void assert_says(const char *words)
{
    if (!strstr(screen, words))
        fail_msg("'%s' is not in:\n%s", words, screen);
}

static const char *read_log(int rank)
{
    static char text[4096];
    char path[128];
    FILE *file;

    snprintf(path, sizeof path, "%s/rank-%d.log", folder, rank);
    file = fopen(path, "re");
    if (!file)
        return NULL;
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return text;
}

/* ---- tests ---- */

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

/* Rank 2 hangs, and does not hear SIGUSR2 either. */
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

/* ---- the page ---- */

static void test_leftovers(void **state)
{
    struct watch_page *first, *second, *third;
    char other[600];
    struct err err;
    int lock, none;

    (void)state;
    assert_int_equal(watch_page_open(page_path, &first, &lock, &err), 0);
    assert_true(lock >= 0);
    assert_int_equal(watch_page_open(page_path, &second, &none, &err), 0);
    assert_int_equal(none, -1);
    struct progress_slot *a = watch_page_claim(first, 5), *b = watch_page_claim(second, 6);
    assert_ptr_equal(a, &first->places[0].slot);
    assert_ptr_equal(b, &second->places[1].slot);
    assert_int_equal(first->places[1].slot.world_rank, 6);
    atomic_fetch_or(&first->n_claimed, WATCH_CLOSED);
    assert_null(watch_page_claim(second, 7));
    atomic_fetch_and(&first->n_claimed, ~WATCH_CLOSED);
    while (watch_page_claim(second, 8))
        ;
    assert_int_equal(second->n_claimed, WATCH_RANKS_MAX);

    /* Whoever held it is gone: the next one makes it anew, and removes only its own name. */
    close(lock);
    assert_int_equal(watch_page_open(page_path, &third, &lock, &err), 0);
    assert_true(lock >= 0);
    assert_int_equal(third->n_claimed, 0);
    watch_page_unlink(page_path, first);
    assert_int_equal(access(page_path, F_OK), 0);
    watch_page_sweep(page_path);
    assert_int_equal(access(page_path, F_OK), 0); /* it is in use */
    snprintf(other, sizeof other, "%s0", page_path);
    assert_int_equal(rename(page_path, other), 0);
    close(lock);
    watch_page_sweep(page_path);
    assert_int_equal(access(other, F_OK), -1);
    watch_page_close(first);
    watch_page_close(second);
    watch_page_close(third);
    watch_page_close(NULL);
}

/* A file of that name that is no page of ours: the job goes on without a watcher. */
static void test_hostile_page(void **state)
{
    pid_t child;
    int ends[2], status;

    (void)state;
    int fd = open(page_path, O_WRONLY | O_CREAT | O_EXCL, 0666);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "x", 1), 1);
    close(fd);
    assert_int_equal(pipe(ends), 0);
    child = fork();
    if (!child) {
        struct watcher_options options = { 0 };
        struct launch_rank self = { .world_size = 1, .local_size = 1, .under_pmix = 1 };
        struct err err;

        dup2(ends[1], STDERR_FILENO);
        setenv("PMIX_RANK", "0", 1);
        CHECK(!watcher_start(&options, &err));
        CHECK(!watcher_join(&self, &err));
        launch_leave();
        exit(0);
    }
    close(ends[1]);
    read_screen(ends[0]);
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_says("is not a progress page of this user");
    unlink(page_path);
}

/* Under our own supervisor, and for who is no rank, nothing is made. */
static void test_not_ours(void **state)
{
    struct watcher_options options = { 1, 1, folder };
    struct launch_rank self = { .world_rank = 1, .world_size = 2, .local_size = 2 };
    struct err err;

    (void)state;
    unsetenv("PMIX_RANK");
    assert_int_equal(watcher_start(&options, &err), 0);
    assert_int_equal(watcher_join(&self, &err), 0);
    setenv("PMIX_RANK", "1", 1);
    setenv(PROGRESS_VARIABLE, "/nowhere", 1);
    assert_int_equal(watcher_start(&options, &err), 0);
    self.under_pmix = 1;
    assert_int_equal(watcher_join(&self, &err), 0);
    unsetenv("PMIX_RANK");
    assert_int_equal(access(page_path, F_OK), -1);
    assert_null(read_log(1));
    unsetenv(PROGRESS_VARIABLE);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    n_playing =
        mmap(NULL, sizeof *n_playing, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(n_playing != MAP_FAILED);

    const struct CMUnitTest tests[] = {
        TEST(test_logs),        TEST(test_deaths),      TEST(test_bug),
        TEST(test_abort),       TEST(test_all_killed),  TEST(test_hang),
        TEST(test_other_nodes), TEST(test_hear_others), TEST(test_tell_others),
        TEST(test_leaving),     TEST(test_leftovers),   TEST(test_hostile_page),
        TEST(test_not_ours),    TEST(test_lost_gpu),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
