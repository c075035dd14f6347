/*
 * available_memory_test.c - control groups of both versions, made up
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/file.h"
#include "train/available_memory.h"

struct fixture {
    struct arena arena;
    char *folder;
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    const char *tmp = getenv("TMPDIR");

    f->folder = arena_printf(&f->arena, "%s/lmtrain-room.XXXXXX", tmp ? tmp : "/tmp");
    *state = f;
    return mkdtemp(f->folder) ? 0 : -1;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    struct err err;
    int failed = file_remove_tree(f->folder, &err);

    arena_release(&f->arena);
    free(f);
    return failed;
}

static void put(struct fixture *f, const char *folder, const char *name, const char *text)
{
    const char *in = arena_printf(&f->arena, "%s/%s", f->folder, folder);
    struct err err;

    if (file_make_folders(in, &err) < 0 ||
        file_write(arena_printf(&f->arena, "%s/%s", in, name), text, strlen(text), &err) < 0)
        fail_msg("%s", err.text);
}

static int64_t room(struct fixture *f, const char *groups)
{
    put(f, ".", "groups", groups);
    return available_memory_of_groups(arena_printf(&f->arena, "%s/groups", f->folder), f->folder);
}

static void the_least_of_all_levels(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(room(f, "0::/job/step\n"), -1);
    put(f, "job/step", "memory.max", "max\n");
    put(f, "job/step", "memory.current", "70\n");
    assert_int_equal(room(f, "0::/job/step\n"), -1);
    put(f, "job", "memory.max", "1000\n");
    put(f, "job", "memory.current", "400\n");
    assert_int_equal(room(f, "0::/job/step\n"), 600);
    put(f, "job/step", "memory.max", "100\n");
    assert_int_equal(room(f, "9:name=systemd:/\n0::/job/step\n"), 30);
    put(f, ".", "memory.max", "200\n");
    put(f, ".", "memory.current", "195\n");
    assert_int_equal(room(f, "0::/job/step\n"), 5);
    assert_int_equal(room(f, "0::/\n"), 5);
    assert_int_equal(room(f, "0::/not/seen/here\n"), 5);
    assert_int_equal(room(f, ""), -1);
    assert_int_equal(room(f, "lunch\n7\n"), -1);
}

/* A group that is full, of what its files keep in memory, is not full; none is 0, and not -1. */
static void what_files_keep_is_room(void **state)
{
    struct fixture *f = *state;

    put(f, "job", "memory.max", "1000\n");
    put(f, "job", "memory.current", "1000\n");
    assert_int_equal(room(f, "0::/job\n"), 0);
    put(f, "job", "memory.stat",
        "anon 300\nfile 650\ninactive_anon 1\nactive_anon 2\ninactive_file 400\nactive_file 200\n"
        "total_inactive_file 7\nslab 50\n");
    assert_int_equal(room(f, "0::/job\n"), 600);
    put(f, "job", "memory.current", "1100\n");
    assert_int_equal(room(f, "0::/job\n"), 500);
    put(f, "job", "memory.current", "10\n");
    assert_int_equal(room(f, "0::/job\n"), 1000);
}

static void version_1(void **state)
{
    struct fixture *f = *state;
    const char *groups = "5:devices:/x\n4:cpu,memory:/slurm/job_7\n3:memories:/slurm\n0::/\n";

    assert_int_equal(room(f, groups), -1);
    put(f, "memory/slurm/job_7", "memory.limit_in_bytes", "1000\n");
    put(f, "memory/slurm/job_7", "memory.usage_in_bytes", "900\n");
    put(f, "memory/slurm/job_7", "memory.stat",
        "inactive_file 1\nactive_file 2\ntotal_inactive_file 30\ntotal_active_file 40\n");
    assert_int_equal(room(f, groups), 170);
    put(f, "memory/slurm", "memory.limit_in_bytes", "9223372036854771712\n");
    put(f, "memory/slurm", "memory.usage_in_bytes", "5000\n");
    assert_int_equal(room(f, groups), 170);
    put(f, "memory/slurm", "memory.limit_in_bytes", "5100\n");
    assert_int_equal(room(f, groups), 100);
}

static void of_this_machine(void **state)
{
    (void)state;
    assert_true(available_memory() > 64000000);
}

int main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(the_least_of_all_levels),
        TEST(what_files_keep_is_room),
        TEST(version_1),
        TEST(of_this_machine),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
