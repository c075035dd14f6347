/*
 * watch_page_test.c - the page that a node's ranks share with their watcher: old, strange, unwanted
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/log.h"
#include "launch/launch.h"
#include "launch/watch/watch_page_impl.h"
#include "launch/watch/watcher.h"
#include "launch/watched_ranks.h"

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
    struct watcher_options options = { 1, 1, folder, NULL, NULL, NULL };
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_leftovers),
        TEST(test_hostile_page),
        TEST(test_not_ours),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
