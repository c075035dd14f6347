/*
 * job_folder_test.c - a folder of one's own; only the dead's are swept
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
    snprintf(name, sizeof name, "lmtrain-%u-%d-1", (unsigned)getuid(), (int)child);
    make(name, dead, sizeof dead);
    snprintf(name, sizeof name, "lmtrain-%u-%d-1", (unsigned)getuid(), (int)getpid());
    make(name, reused, sizeof reused); /* our number, but started at another time */
    snprintf(name, sizeof name, "lmtrain-%u-%d-1", (unsigned)getuid() + 1, (int)child);
    make(name, other_user, sizeof other_user);
    make("something-else", other, sizeof other);
    snprintf(name, sizeof name, "lmtrain-%u-%d-1-mine", (unsigned)getuid(), (int)child);
    make(name, longer, sizeof longer);
    make("elsewhere", elsewhere, sizeof elsewhere);
    snprintf(link_path, sizeof link_path, "%s/lmtrain-%u-%d-2", parent, (unsigned)getuid(),
             (int)child);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_own_folder, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sweep, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
