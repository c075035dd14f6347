/*
 * interrupt_test.c - what an interrupted process says, what it removes, and how it ends
 */
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/interrupt.h"
#include "support/child.h"

static char folder[64];
static char said[512];

static const char *path_of(const char *name)
{
    static char paths[8][128];
    static int n;
    char *path = paths[n++ % 8];

    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static void touch(const char *name)
{
    int fd = open(path_of(name), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    close(fd);
}

static int is_there(const char *name)
{
    return access(path_of(name), F_OK) == 0;
}

struct interrupted {
    void (*work)(void);
    int number;
};

static void be_interrupted(void *context)
{
    const struct interrupted *i = context;

    i->work();
    raise(i->number);
    _exit(7);
}

/* How a process ends that does `work` and gets the signal; what it said is in said. */
static int end_of(void (*work)(void), int number)
{
    return child_run(be_interrupted, &(struct interrupted){ work, number }, said, sizeof said);
}

static void catch_alone(void)
{
    interrupt_catch("go on");
}

static void catch_silently(void)
{
    interrupt_catch(NULL);
}

static void ignore_hangups(void)
{
    signal(SIGHUP, SIG_IGN);
    catch_alone();
}

/* A loop of a shell ends only if its command was ended by the signal, and did not exit. */
static void it_says_so_and_ends_by_the_signal(void **state)
{
    (void)state;
    assert_int_equal(end_of(catch_alone, SIGINT), -SIGINT);
    assert_string_equal(said, "lmtrain: interrupted by SIGINT: go on\n");
    assert_int_equal(end_of(catch_alone, SIGTERM), -SIGTERM);
    assert_string_equal(said, "lmtrain: interrupted by SIGTERM: go on\n");
    assert_int_equal(end_of(catch_silently, SIGHUP), -SIGHUP);
    assert_string_equal(said, "lmtrain: interrupted by SIGHUP\n");
    assert_int_equal(end_of(ignore_hangups, SIGHUP), 7);
    assert_string_equal(said, "");
}

static void mark_some(void)
{
    interrupt_catch(NULL);
    interrupt_mark(path_of("half"));
    const char *whole = path_of("whole");
    interrupt_mark(whole);
    interrupt_forget(whole);
    interrupt_forget(NULL);
    interrupt_mark(path_of("nowhere"));
    interrupt_mark(path_of("scratch"));
    interrupt_mark(path_of("link"));
}

static void mark_many(void)
{
    static char paths[40][128];

    interrupt_catch(NULL);
    for (int i = 0; i < 40; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/many-%d", folder, i);
        interrupt_mark(paths[i]);
    }
}

static void what_is_half_written_is_removed(void **state)
{
    char name[32];

    (void)state;
    touch("half");
    touch("whole");
    touch("outside");
    assert_int_equal(mkdir(path_of("scratch"), 0700), 0);
    for (int i = 0; i < 300; i++) { /* more than one look at a folder gives */
        snprintf(name, sizeof name, "scratch/of-a-longer-name-%d", i);
        touch(name);
    }
    assert_int_equal(symlink(path_of("outside"), path_of("link")), 0);
    assert_int_equal(end_of(mark_some, SIGTERM), -SIGTERM);
    assert_false(is_there("half"));
    assert_true(is_there("whole"));
    assert_false(is_there("scratch"));
    assert_false(is_there("link"));
    assert_true(is_there("outside"));
    for (int i = 0; i < 40; i++) {
        snprintf(name, sizeof name, "many-%d", i);
        touch(name);
    }
    assert_int_equal(end_of(mark_many, SIGTERM), -SIGTERM);
    assert_false(is_there("many-0"));
    assert_false(is_there("many-15"));
    assert_true(is_there("many-16"));
}

static int set_up(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/lmtrain-interrupt-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int tear_down(void **state)
{
    struct err ignored;

    (void)state;
    return file_remove_tree(folder, &ignored);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_says_so_and_ends_by_the_signal),
        cmocka_unit_test(what_is_half_written_is_removed),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
