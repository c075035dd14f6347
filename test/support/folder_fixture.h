/*
 * folder_fixture.h - a fresh folder for each test, and paths in it
 */
#ifndef SUPPORT_FOLDER_FIXTURE_H
#define SUPPORT_FOLDER_FIXTURE_H

/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <stdlib.h>

#include "base/arena.h"
#include "base/file.h"

/* Success, or the error's text as the failure. */
#define assert_ok(call, err) \
    do { \
        if ((call) != 0) \
            fail_msg("%s", (err)->text); \
    } while (0)

/* What fixture_path makes; freed by the teardown. */
static struct arena fixture_arena;

/* cmocka's setup and teardown: *state is a fresh folder's name. */
static inline int fixture_setup(void **state)
{
    const char *base = getenv("TMPDIR");
    char *folder =
        arena_printf(&fixture_arena, "%s/lmtrain-test-XXXXXX", base && *base ? base : "/tmp");

    *state = folder;
    return mkdtemp(folder) ? 0 : -1;
}

static inline int fixture_teardown(void **state)
{
    struct err err;
    int failed = file_remove_tree(*state, &err);

    arena_release(&fixture_arena);
    return failed;
}

/* FOLDER/NAME, until the teardown. */
static inline const char *fixture_path(const char *folder, const char *name)
{
    return arena_printf(&fixture_arena, "%s/%s", folder, name);
}

#endif
