/*
 * job_folder_test.c - a folder of one's own; only the dead's are swept
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "launch/job_folder_impl.h"

static char parent[64];

static int setup(void **state)
{
    const char *temporary = getenv("TMPDIR");

    (void)state;
    snprintf(parent, sizeof parent, "%.40s/folders-XXXXXX", temporary ? temporary : "/tmp");
    return mkdtemp(parent) ? 0 : -1;
}

static int teardown(void **state)
{
    struct err err;

    (void)state;
    return file_remove_tree(parent, &err);
}

/* lmtrain-UID-PID-STARTTIME-NAMESPACE, the namespace ours or not */
static const char *name_of(unsigned uid, int pid, int start, int is_ours)
{
    static char name[128];
    struct stat pids;

    assert_int_equal(stat("/proc/self/ns/pid", &pids), 0);
    snprintf(name, sizeof name, "lmtrain-%u-%d-%d-%llu", uid, pid, start,
             (unsigned long long)pids.st_ino + !is_ours);
    return name;
}

static void make(const char *name, char *path, size_t size)
{
    char inner[300];
    struct err err;

    snprintf(path, size, "%s/%s", parent, name);
    snprintf(inner, sizeof inner, "%s/inner", path);
    assert_int_equal(file_make_folders(inner, &err), 0);
}

static void test_own_folder(void **state)
{
    char path[256], again[256], tiny[8];
    struct stat stat_;
    struct err err;

    (void)state;
    assert_int_equal(job_folder_create(parent, path, sizeof path, &err), 0);
    assert_int_equal(stat(path, &stat_), 0);
    assert_int_equal(stat_.st_mode & 0777, 0700);
    job_folder_sweep(parent);
    assert_true(file_is_folder(path)); /* we live */
    assert_int_equal(job_folder_create(parent, again, sizeof again, &err), -1);
    assert_int_equal(err.code, ERR_FAILED);
    assert_int_equal(job_folder_create(parent, tiny, sizeof tiny, &err), -1);
    assert_int_equal(job_folder_create("/nowhere", again, sizeof again, &err), -1);
    job_folder_sweep("/nowhere");
}

/* A child makes a folder with something in it and dies. */
static void test_sweep(void **state)
{
    char dead[256], reused[256], other_user[256], other[256], longer[256], link_path[256],
        name[300];
    char elsewhere[256];
    int status;

    (void)state;
    pid_t child = fork();
    if (!child) {
        char path[256];
        struct err err;

        _exit(job_folder_create(parent, path, sizeof path, &err) ? 1 : 0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    make(name_of(getuid(), child, 1, 1), dead, sizeof dead);
    /* our number, but started at another time */
    make(name_of(getuid(), getpid(), 1, 1), reused, sizeof reused);
    make(name_of(getuid() + 1, child, 1, 1), other_user, sizeof other_user);
    make("something-else", other, sizeof other);
    snprintf(name, sizeof name, "%s-mine", name_of(getuid(), child, 1, 1));
    make(name, longer, sizeof longer);
    make("elsewhere", elsewhere, sizeof elsewhere);
    snprintf(link_path, sizeof link_path, "%s/%s", parent, name_of(getuid(), child, 2, 1));
    assert_int_equal(symlink(elsewhere, link_path), 0);

    job_folder_sweep(parent);
    assert_false(file_exists(dead));
    assert_false(file_exists(reused));
    assert_true(file_exists(other_user));
    assert_true(file_exists(other));
    assert_true(file_exists(longer));
    snprintf(name, sizeof name, "%s/inner", elsewhere);
    assert_true(file_exists(name)); /* no link was followed */
}

static void make_old(const char *path)
{
    const struct timespec long_ago[2] = { { .tv_sec = 1000 }, { .tv_sec = 1000 } };

    assert_int_equal(utimensat(AT_FDCWD, path, long_ago, 0), 0);
}

/* Of owners that we cannot see, the lock tells. */
static void test_other_namespaces(void **state)
{
    char young[256], held[256], gone[256];

    (void)state;
    make(name_of(getuid(), getpid(), 1, 0), young, sizeof young);
    make(name_of(getuid(), getpid(), 2, 0), held, sizeof held);
    make(name_of(getuid(), getpid(), 3, 0), gone, sizeof gone);
    make_old(held);
    make_old(gone);
    int fd = open(held, O_RDONLY | O_DIRECTORY);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
    job_folder_sweep(parent);
    assert_true(file_exists(young));
    assert_true(file_exists(held));
    assert_false(file_exists(gone));
    close(fd);
    job_folder_sweep(parent);
    assert_false(file_exists(held));
}

/* A folder's lock is its owner's for as long as that lives. */
static void test_lock(void **state)
{
    char path[256];
    struct err err;
    int ready[2], status;
    char byte;

    (void)state;
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (!child) {
        int made = job_folder_create(parent, path, sizeof path, &err);

        if (write(ready[1], path, sizeof path) != sizeof path || made)
            _exit(1);
        pause();
    }
    assert_int_equal(read(ready[0], path, sizeof path), sizeof path);
    int fd = open(path, O_RDONLY | O_DIRECTORY);
    assert_true(fd >= 0);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), -1);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
    close(fd);
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 0);
    close(ready[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_own_folder, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sweep, setup, teardown),
        cmocka_unit_test_setup_teardown(test_other_namespaces, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lock, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
