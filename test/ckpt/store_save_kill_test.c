/*
 * store_save_kill_test.c - a checkpoint exists whole or not at all, wherever a save is killed
 */
#include "saved_value.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "base/rng.h"

/*
 * The calls that change a folder, put in front of the C library's, so that a test can die just
 * before any of them (in a write: half way through).
 */
static atomic_int n_calls;
static int die_at = -1;
static int no_exchange; /* as on file systems that cannot */

static int is_last_call(void)
{
    return die_at >= 0 && atomic_fetch_add(&n_calls, 1) == die_at;
}

static void die(void)
{
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

static void maybe_die(void)
{
    if (is_last_call())
        die();
}

int rename(const char *from, const char *to)
{
    maybe_die();
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    maybe_die();
    if (no_exchange && flags == RENAME_EXCHANGE) {
        errno = EINVAL;
        return -1;
    }
    return (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, flags);
}

int unlink(const char *path)
{
    maybe_die();
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

int remove(const char *path)
{
    maybe_die();
    if (syscall(SYS_unlinkat, AT_FDCWD, path, 0) == 0)
        return 0;
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
}

int fsync(int fd)
{
    maybe_die();
    return (int)syscall(SYS_fsync, fd);
}

ssize_t write(int fd, const void *data, size_t n_bytes)
{
    if (!is_last_call())
        return syscall(SYS_write, fd, data, n_bytes);
    syscall(SYS_write, fd, data, n_bytes / 2);
    die();
    return -1;
}

static void step_folder(char *path, size_t size, const char *checkpoints, int64_t step)
{
    snprintf(path, size, "%s/step-%08lld", checkpoints, (long long)step);
}

/* Save step with value and tell that it is done; ends the process if it fails. */
static void save_and_report(const char *checkpoints, int64_t step, float value, int report)
{
    struct err err = { 0 };
    char path[4096];

    step_folder(path, sizeof path, checkpoints, step);
    if (save_value(path, step, value, &err) < 0 ||
        syscall(SYS_write, report, &step, sizeof step) != sizeof step)
        _exit(1);
}

/* Saves step after step, each twice (so that one replaces another), until it is killed. */
static void save_for_ever(const char *checkpoints, int64_t step, int report)
{
    struct err err = { 0 };

    for (;; step++) {
        save_and_report(checkpoints, step, (float)step, report);
        save_and_report(checkpoints, step, (float)step + 0.5f, report);
        if (store_clean(checkpoints, 2, &err) < 0)
            _exit(2);
    }
}

/* One of each: a first save, a second, a replacement, a removal. */
static void save_a_few(const char *checkpoints, int64_t step, int report)
{
    struct err err = { 0 };

    save_and_report(checkpoints, step, (float)step, report);
    save_and_report(checkpoints, step + 1, (float)step + 1, report);
    save_and_report(checkpoints, step + 1, (float)step + 1.5f, report);
    if (store_clean(checkpoints, 1, &err) < 0)
        _exit(2);
    _exit(0);
}

/*
 * Fork a saver and, if wait_ns is not negative, kill it after that time. *last is the last step
 * that it said was saved, or -1. Returns whether it was killed, by whomever.
 */
static int run_saver(void (*saver)(const char *, int64_t, int), const char *checkpoints,
                     int64_t step, long wait_ns, int64_t *last)
{
    struct timespec wait = { .tv_nsec = wait_ns };
    int64_t reported;
    int ends[2], status;

    *last = -1;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(ends[0]);
        saver(checkpoints, step, ends[1]);
    }
    close(ends[1]);
    if (wait_ns >= 0) {
        nanosleep(&wait, NULL);
        kill(child, SIGKILL);
    }
    while (read(ends[0], &reported, sizeof reported) == sizeof reported)
        *last = reported;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    return WIFSIGNALED(status);
}

/* The newest checkpoint of run, whole, and one of the two values that a step is saved with; or 0.
 */
static int64_t check_newest(const char *run)
{
    struct arena arena = { 0 };
    struct err err = { 0 };
    const char *path = store_newest(run, &arena, &err);
    int64_t step = 0;

    if (path) {
        float value = read_value(path, &step);

        assert_true(value == (float)step || value == (float)step + 0.5f);
    }
    arena_release(&arena);
    return step;
}

/*
 * The promise: whenever it is killed, what was once reported as saved is there, the newest
 * checkpoint is whole, and saving goes on from it.
 */
static void a_kill_at_any_moment_leaves_a_whole_checkpoint(void **state)
{
    enum { N_KILLS = 40 };
    const char *given = getenv("LMTRAIN_TEST_SEED");
    uint64_t seed = (uint64_t)time(NULL) ^ (uint64_t)getpid() << 32;
    const char *checkpoints = fixture_path(*state, "run/checkpoints");
    int64_t newest = 0, last;
    struct err err = { 0 };

    if (given)
        seed = strtoull(given, NULL, 10);
    print_message("LMTRAIN_TEST_SEED=%llu\n", (unsigned long long)seed);
    assert_ok(file_make_folders(checkpoints, &err), &err);
    for (int round = 0; round < N_KILLS; round++) {
        struct rng_block random = rng_at(seed, RNG_TEST, 0, (uint64_t)round);
        /* Where a machine is slow, the longer the more rounds have saved nothing. */
        long ns = random.word[0] % 30000000 * (newest ? 1L : 1L + round % 30);

        run_saver(save_for_ever, checkpoints, newest + 1, ns, &last);
        int64_t step = check_newest(fixture_path(*state, "run"));
        assert_true(step >= last);
        assert_true(step >= newest);
        newest = step;
        assert_ok(store_clean(checkpoints, 2, &err), &err);
        assert_int_equal(check_newest(fixture_path(*state, "run")), newest);
    }
    assert_true(newest > 0);
}

/* The same promise before each single call that changes anything, until the saver gets through. */
static void die_at_each_call(const char *run)
{
    const char *checkpoints = fixture_path(run, "checkpoints");
    struct err err = { 0 };
    int64_t last;
    int killed = 1;

    for (int call = 0; killed; call++) {
        assert_true(call < 1000);
        die_at = call;
        killed = run_saver(save_a_few, checkpoints, 1, -1, &last);
        die_at = -1;
        int64_t step = check_newest(run);
        assert_true(step >= last);
        /* Older ones, too, are whole or do not stand under their name. */
        for (int64_t old = 1; old < step; old++) {
            char path[4096];
            int64_t found;

            step_folder(path, sizeof path, checkpoints, old);
            assert_true(!file_exists(path) || read_value(path, &found) == (float)old);
        }
        assert_ok(store_clean(checkpoints, 1, &err), &err);
        assert_int_equal(check_newest(run), step);
        assert_ok(file_remove_tree(checkpoints, &err), &err);
        if (!killed)
            assert_true(call > 50 && step == 2);
    }
}

static void a_kill_before_each_call_leaves_a_whole_checkpoint(void **state)
{
    die_at_each_call(*state);
}

static void and_where_names_cannot_be_exchanged(void **state)
{
    no_exchange = 1;
    die_at_each_call(*state);
    no_exchange = 0;
}

static void a_save_replaces_one_of_its_name(void **state)
{
    const char *folder = fixture_path(*state, "step-1");
    struct err err = { 0 };
    int64_t step;

    assert_ok(save_value(folder, 1, 1, &err), &err);
    assert_ok(save_value(folder, 1, 3, &err), &err);
    assert_true(read_value(folder, &step) == 3);
    assert_false(file_exists(fixture_path(*state, "step-1.partial")));
    assert_ok(save_value(fixture_path(*state, "step-2//"), 2, 4, &err), &err);
    assert_true(read_value(fixture_path(*state, "step-2"), &step) == 4);
}

static void a_save_replaces_one_where_names_cannot_be_exchanged(void **state)
{
    const char *folder = fixture_path(*state, "step-1");
    struct err err = { 0 };
    int64_t step;

    assert_ok(save_value(folder, 1, 1, &err), &err);
    no_exchange = 1;
    int failed = save_value(folder, 1, 3, &err);
    no_exchange = 0;
    assert_ok(failed, &err);
    assert_true(read_value(folder, &step) == 3);
    assert_false(file_exists(fixture_path(*state, "step-1.partial")));
    assert_false(file_exists(fixture_path(*state, "step-1.replaced")));
}

int main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_kill_at_any_moment_leaves_a_whole_checkpoint),
        TEST(a_kill_before_each_call_leaves_a_whole_checkpoint),
        TEST(and_where_names_cannot_be_exchanged),
        TEST(a_save_replaces_one_of_its_name),
        TEST(a_save_replaces_one_where_names_cannot_be_exchanged),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
