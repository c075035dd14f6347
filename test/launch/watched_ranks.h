/*
 * watched_ranks.h - a node's ranks that a test plays, with their watcher, and what they leave
 */
#ifndef TEST_LAUNCH_WATCHED_RANKS_H
#define TEST_LAUNCH_WATCHED_RANKS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "launch/launch.h"
#include "launch/watch/watch_page_impl.h"
#include "launch/watch/watcher.h"

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

static inline void say_where(int rank, const char *text, int waits, uint64_t position)
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

static inline void wait_for_ever(void)
{
    for (;;)
        pause();
}

/* All ranks of the node have joined once the page's name is gone. */
static inline void wait_for_all(void)
{
    while (!access(page_path, F_OK))
        usleep(1000);
}

/* The first rank to come makes the watcher: let that be rank 0. */
static inline void wait_for_rank_0(int rank)
{
    while (rank && access(page_path, F_OK))
        usleep(1000);
}

/* Each call is a line of FOLDER/record, "EVENT STEP TEXT". */
static inline void record_trouble(void *context, const char *event, int64_t step, double at,
                                  const char *text)
{
    char path[128];

    snprintf(path, sizeof path, "%s/record", (const char *)context);
    FILE *file = fopen(path, "ae");
    CHECK(file && at > 1e9);
    fprintf(file, "%s %lld %s\n", event, (long long)step, text);
    fclose(file);
}

static inline void play_rank(const struct play *play, int rank)
{
    struct watcher_options options = {
        play->hang_seconds, play->hang_abort_seconds, folder, NULL, record_trouble, folder
    };
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

static inline void read_screen(int fd)
{
    size_t n = 0;
    ssize_t got;

    while (n < sizeof screen - 1 && (got = read(fd, screen + n, sizeof screen - 1 - n)) > 0)
        n += (size_t)got;
    screen[n] = '\0';
}

static inline pid_t start_rank(const struct play *play, int rank, const int ends[2])
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
static inline void reap_all(const pid_t *ranks, int n)
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
static inline void run(const struct play *play)
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

static inline int setup(void **state)
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

static inline int teardown(void **state)
{
    struct err err;

    (void)state;
    unlink(page_path);
    return file_remove_tree(folder, &err);
}

static inline void assert_says(const char *words)
{
    if (!strstr(screen, words))
        fail_msg("'%s' is not in:\n%s", words, screen);
}

/* How many lines of the record of this and earlier plays begin like this. */
static inline int count_recorded(const char *beginning)
{
    char path[128], line[4096];
    int n = 0;

    snprintf(path, sizeof path, "%s/record", folder);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        n += !strncmp(line, beginning, strlen(beginning));
    if (file)
        fclose(file);
    return n;
}

static inline const char *read_log(int rank)
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

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

#endif
