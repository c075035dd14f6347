/*
 * report_fixture.h - a fresh folder for each test of report, and what a file holds
 */
#ifndef TEST_REPORT_REPORT_FIXTURE_H
#define TEST_REPORT_REPORT_FIXTURE_H

/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/str.h"

#define assert_ok(call, err) \
    do { \
        if ((call) != 0) \
            fail_msg("%s", (err)->text); \
    } while (0)

/* Paths and contents; freed by the teardown. */
static struct arena fixture_arena;

static inline int fixture_setup(void **state)
{
    const char *base = getenv("TMPDIR");

    *state = arena_printf(&fixture_arena, "%s/lmtrain-test-XXXXXX", base && *base ? base : "/tmp");
    return mkdtemp(*state) ? 0 : -1;
}

static inline int fixture_teardown(void **state)
{
    struct err err;
    int failed = file_remove_tree(*state, &err);

    arena_release(&fixture_arena);
    return failed;
}

static inline const char *fixture_path(const char *folder, const char *name)
{
    return arena_printf(&fixture_arena, "%s/%s", folder, name);
}

/* All of a file, with a 0 behind it. */
static inline char *fixture_read(const char *path, size_t *n_bytes)
{
    struct err err = { 0 };
    char *data, *copy;

    assert_ok(file_read(path, 1 << 24, ERR_DATA, &data, n_bytes, &err), &err);
    copy = arena_strndup(&fixture_arena, data, *n_bytes);
    free(data);
    return copy;
}

/* The index-th file of folder whose name begins so, in name order; NULL if there are not so many.
 */
static inline const char *fixture_find(const char *folder, const char *prefix, int index)
{
    struct dirent **entries;
    const char *found = NULL;
    int n = scandir(folder, &entries, NULL, alphasort);

    assert_true(n >= 0);
    for (int i = 0; i < n; i++) {
        if (str_starts_with(entries[i]->d_name, prefix) && index-- == 0)
            found = fixture_path(folder, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    return found;
}

#endif
