/*
 * report_fixture.h - a fresh folder for each test of report, and what a file holds
 */
#ifndef TEST_REPORT_REPORT_FIXTURE_H
#define TEST_REPORT_REPORT_FIXTURE_H

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/str.h"
#include "support/folder_fixture.h"

/* Doubles: cmocka's comparisons are of floats. */
static inline bool near_double(double a, double b, double most)
{
    return fabs(a - b) <= most;
}

static inline bool same_double(double a, double b)
{
    return near_double(a, b, 0);
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
