/*
 * file_test.c - who may read what is made, what is never written through, what never hangs
 */
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"

static char folder[256];
static char paths[4][512];

/* folder/name; up to four stay valid at once. */
static const char *in(const char *name)
{
    static int at;
    char *path = paths[at++ % 4];

    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static unsigned mode_of(const char *path)
{
    struct stat stat_buffer;

    assert_int_equal(lstat(path, &stat_buffer), 0);
    return stat_buffer.st_mode & 0777;
}

static int setup(void **state)
{
    const char *temporary = getenv("TMPDIR");

    (void)state;
    snprintf(folder, sizeof folder, "%s/lmtrain-file.XXXXXX", temporary ? temporary : "/tmp");
    return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state)
{
    struct err err;

    (void)state;
    file_share(FILE_PRIVATE);
    umask(022);
    return file_remove_tree(folder, &err);
}

/* Whatever the umask: no less than asked, and no more. */
static void test_modes(void **state)
{
    static const unsigned files[] = { 0600, 0640, 0644 }, folders[] = { 0700, 0750, 0755 };
    static const mode_t umasks[] = { 0, 022, 077, 0777 };
    struct err err = { 0 };

    (void)state;
    for (int sharing = FILE_PRIVATE; sharing <= FILE_ALL; sharing++)
        for (int i = 0; i < 4; i++) {
            umask(umasks[i]);
            file_share((enum file_sharing)sharing);
            assert_int_equal(file_make_folders(in("a/b"), &err), 0);
            assert_int_equal(file_make_folder(in("a/b/c"), &err), 0);
            assert_int_equal(file_write(in("a/written"), "x", 1, &err), 0);
            int fd = file_open_write(in("a/opened"), O_WRONLY | O_APPEND, &err);
            assert_true(fd >= 0);
            close(fd);
            umask(022);
            assert_int_equal(mode_of(in("a")), folders[sharing]);
            assert_int_equal(mode_of(in("a/b")), folders[sharing]);
            assert_int_equal(mode_of(in("a/b/c")), folders[sharing]);
            assert_int_equal(mode_of(in("a/written")), files[sharing]);
            assert_int_equal(mode_of(in("a/opened")), files[sharing]);
            assert_int_equal(file_remove_tree(in("a"), &err), 0);
        }
}

/* Exports: what the umask leaves, and an existing file keeps what it has. */
static void test_modes_by_umask(void **state)
{
    static const mode_t umasks[] = { 0, 022, 077, 027 };
    struct err err = { 0 };

    (void)state;
    assert_int_equal(file_share(FILE_UMASK), FILE_PRIVATE);
    for (int i = 0; i < 4; i++) {
        umask(umasks[i]);
        assert_int_equal(file_make_folders(in("a/b"), &err), 0);
        assert_int_equal(file_write(in("a/written"), "x", 1, &err), 0);
        assert_int_equal(file_write(in("a/written"), "y", 1, &err), 0);
        close(file_open_write(in("a/opened"), O_WRONLY | O_APPEND, &err));
        assert_int_equal(mode_of(in("a")), 0777 & ~umasks[i]);
        assert_int_equal(mode_of(in("a/b")), 0777 & ~umasks[i]);
        assert_int_equal(mode_of(in("a/written")), 0666 & ~umasks[i]);
        assert_int_equal(mode_of(in("a/opened")), 0666 & ~umasks[i]);
        assert_int_equal(chmod(in("a/opened"), 0600), 0);
        close(file_open_write(in("a/opened"), O_WRONLY | O_APPEND, &err));
        assert_int_equal(mode_of(in("a/opened")), 0600);
        assert_int_equal(file_remove_tree(in("a"), &err), 0);
    }
    umask(022);
    assert_int_equal(file_share(FILE_PRIVATE), FILE_UMASK);
}

/* A process that has ended and is waited for: its number is free. */
static pid_t dead_process(void)
{
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0)
        _exit(0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    return pid;
}

static void test_parts_of_dead_processes_are_swept(void **state)
{
    struct err err = { 0 };
    long dead = dead_process(), alive = getppid();
    const char *kept[] = { "swept/x", "swept/x.part-", "swept/x.part-12a", "swept/.part-1" };
    char path[64];

    (void)state;
    file_sweep_parts(in("nothing"));
    assert_int_equal(file_make_folder(in("swept"), &err), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(file_write(in(kept[i]), "x", 1, &err), 0);
    snprintf(path, sizeof path, "swept/x.part-%ld", alive);
    assert_int_equal(file_write(in(path), "x", 1, &err), 0);
    snprintf(path, sizeof path, "swept/x.part-1.part-%ld", dead);
    assert_int_equal(file_write(in(path), "x", 1, &err), 0);
    file_sweep_parts(in("swept"));
    assert_false(file_exists(in(path)));
    for (int i = 0; i < 4; i++)
        assert_true(file_exists(in(kept[i])));
    snprintf(path, sizeof path, "swept/x.part-%ld", alive);
    assert_true(file_exists(in(path)));
    assert_int_equal(file_remove_tree(in("swept"), &err), 0);
}

static void test_a_folder_that_exists(void **state)
{
    struct err err = { 0 };

    (void)state;
    assert_int_equal(mkdir(in("old"), 0700), 0);
    file_share(FILE_GROUP);
    assert_int_equal(file_make_folders(in("old"), &err), 0);
    assert_int_equal(mode_of(in("old")), 0700);
    file_share_folder(in("old"));
    assert_int_equal(mode_of(in("old")), 0750);
    /* Rights are given and not taken. */
    file_share(FILE_PRIVATE);
    file_share_folder(in("old"));
    assert_int_equal(mode_of(in("old")), 0750);
    file_share_folder(in("nothing"));
}

/* A run that goes on for the group does so in files that were its owner's. */
static void test_a_file_that_exists(void **state)
{
    struct err err = { 0 };

    (void)state;
    for (int sharing = FILE_PRIVATE; sharing <= FILE_ALL; sharing++) {
        static const unsigned modes[] = { 0600, 0640, 0644 };

        file_share((enum file_sharing)sharing);
        close(file_open_write(in("grows"), O_WRONLY | O_APPEND, &err));
        assert_int_equal(mode_of(in("grows")), modes[sharing]);
    }
    file_share(FILE_PRIVATE);
    close(file_open_write(in("grows"), O_WRONLY | O_APPEND, &err));
    assert_int_equal(mode_of(in("grows")), 0644);
}

static void test_nothing_is_written_through_a_link(void **state)
{
    struct err err = { 0 };
    char *data;
    size_t n_bytes;

    (void)state;
    assert_int_equal(file_write(in("victim"), "precious", 8, &err), 0);
    assert_int_equal(symlink(in("victim"), in("link")), 0);
    assert_int_equal(file_open_write(in("link"), O_WRONLY | O_APPEND, &err), -1);
    assert_int_equal(errno, ELOOP);
    assert_int_equal(err.code, ERR_FAILED);
    assert_non_null(strstr(err.text, "is a symbolic link"));
    assert_int_equal(file_open_write(in("link"), O_WRONLY | O_EXCL, &err), -1);
    assert_non_null(strstr(err.text, "is a symbolic link"));
    /* Written whole, the link goes and what it pointed to stays. */
    assert_int_equal(file_write(in("link"), "new", 3, &err), 0);
    assert_int_equal(file_read(in("victim"), 100, ERR_DATA, &data, &n_bytes, &err), 0);
    assert_string_equal(data, "precious");
    free(data);

    assert_int_equal(mkdir(in("real"), 0700), 0);
    assert_int_equal(symlink(in("real"), in("folder-link")), 0);
    assert_int_equal(file_make_folders(in("folder-link"), &err), 0);
    assert_int_equal(file_make_folder(in("folder-link"), &err), -1);
    assert_non_null(strstr(err.text, "is a symbolic link"));
    assert_int_equal(symlink(in("nowhere"), in("dangling")), 0);
    assert_int_equal(file_make_folder(in("dangling"), &err), -1);
    assert_non_null(strstr(err.text, "is a symbolic link"));
    assert_int_equal(file_make_folder(in("folder-link/new"), &err), 0);
    assert_int_equal(file_make_folder(in("victim"), &err), -1);
    assert_non_null(strstr(err.text, "is not a folder"));
    assert_int_equal(file_make_folders("", &err), -1);
}

static void test_what_is_no_file(void **state)
{
    struct err err = { 0 };
    char *data;
    size_t n_bytes;
    struct file_map map;

    (void)state;
    assert_int_equal(mkfifo(in("pipe"), 0600), 0);
    assert_int_equal(mkdir(in("sub"), 0700), 0);
    assert_int_equal(file_open_write(in("pipe"), O_WRONLY | O_APPEND, &err), -1);
    assert_non_null(strstr(err.text, "is not a file"));
    assert_int_equal(file_open_write(in("pipe"), O_RDWR, &err), -1);
    assert_int_equal(file_open_write(in("sub"), O_WRONLY | O_APPEND, &err), -1);
    assert_non_null(strstr(err.text, "is not a file"));
    assert_int_equal(file_open_write("/dev/null", O_WRONLY, &err), -1);
    assert_int_equal(file_map_open(&map, in("pipe"), &err), -1);
    assert_int_equal(file_map_open(&map, in("sub"), &err), -1);
    assert_int_equal(file_read(in("sub"), 100, ERR_CONFIG, &data, &n_bytes, &err), -1);
    assert_non_null(strstr(err.text, "is a folder"));
    assert_int_equal(file_read("/dev/zero", 100000, ERR_CONFIG, &data, &n_bytes, &err), -1);
    assert_int_equal(err.code, ERR_CONFIG);
    assert_non_null(strstr(err.text, "longer than 100000 bytes"));
    assert_int_equal(file_read("/proc/self/status", 1 << 20, ERR_DATA, &data, &n_bytes, &err), 0);
    assert_true(n_bytes > 100);
    free(data);
}

static void *write_slowly(void *path)
{
    struct timespec pause = { 0, 20000000 };
    int fd = open(path, O_WRONLY);

    for (int i = 0; fd >= 0 && i < 5; i++) {
        nanosleep(&pause, NULL);
        if (write(fd, "abcd", 4) != 4)
            break;
    }
    close(fd);
    return NULL;
}

/* As with `lmtrain plan <(make-a-job)`: whatever is written comes, and its end is the end. */
static void test_a_pipe_is_read_to_its_end(void **state)
{
    struct err err = { 0 };
    char *data;
    size_t n_bytes;
    pthread_t writer;
    const char *path = in("slow");

    (void)state;
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(pthread_create(&writer, NULL, write_slowly, (void *)(uintptr_t)path), 0);
    assert_int_equal(file_read(path, 1000, ERR_CONFIG, &data, &n_bytes, &err), 0);
    pthread_join(writer, NULL);
    assert_int_equal(n_bytes, 20);
    assert_string_equal(data, "abcdabcdabcdabcdabcd");
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_modes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_modes_by_umask, setup, teardown),
        cmocka_unit_test_setup_teardown(test_parts_of_dead_processes_are_swept, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_file_that_exists, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_folder_that_exists, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nothing_is_written_through_a_link, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_is_no_file, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_pipe_is_read_to_its_end, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
