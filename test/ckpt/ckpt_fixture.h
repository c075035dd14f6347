/*
 * ckpt_fixture.h - folders, slices and whole saves for the tests of ckpt
 */
#ifndef TEST_CKPT_CKPT_FIXTURE_H
#define TEST_CKPT_CKPT_FIXTURE_H

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/str.h"
#include "ckpt/store.h"
#include "support/folder_fixture.h"

/* Failure with this code, and these words in the text. */
#define assert_fails(call, err, wanted_code, words) \
    do { \
        memset((err), 0, sizeof *(err)); \
        assert_int_equal((call), -1); \
        assert_int_equal((err)->code, (wanted_code)); \
        if (!strstr((err)->text, (words))) \
            fail_msg("\"%s\" is not in \"%s\"", (words), (err)->text); \
    } while (0)

static inline struct store_slice fixture_slice(const char *name, enum dtype dtype, int64_t rows,
                                               int64_t cols, int64_t r0, int64_t r1, int64_t c0,
                                               int64_t c1, void *data)
{
    return (struct store_slice){ name, dtype, cols == 1 ? 1 : 2, rows, cols, r0, r1, c0, c1, data,
                                 0,    NULL };
}

static inline struct store_slice fixture_whole(const char *name, enum dtype dtype, int64_t rows,
                                               int64_t cols, void *data)
{
    return fixture_slice(name, dtype, rows, cols, 0, rows, 0, cols, data);
}

/* The slices of one rank, saved and waited for. */
static inline void fixture_save(const char *folder, int rank, const struct store_slice *slices,
                                int n_slices)
{
    struct err err = { 0 };
    struct store_save *save;

    assert_ok(store_save_start(&save, folder, rank, slices, n_slices, &err), &err);
    assert_ok(store_save_wait(save, &err), &err);
}

/* One rank's checkpoint, committed. */
static inline void fixture_checkpoint(const char *folder, int64_t step,
                                      const struct store_slice *slices, int n_slices)
{
    struct err err = { 0 };

    fixture_save(folder, 0, slices, n_slices);
    assert_ok(store_commit(folder, 1, step, "{\"seed\": 1}", &err), &err);
}

/* Replace n bytes at offset (from the end if negative). */
static inline void fixture_poke(const char *path, off_t offset, const void *bytes, size_t n)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);

    assert_true(fd >= 0);
    assert_true(lseek(fd, offset, offset < 0 ? SEEK_END : SEEK_SET) >= 0);
    assert_int_equal(write(fd, bytes, n), (ssize_t)n);
    close(fd);
}

/* Make the file, or replace it. */
static inline void fixture_write(const char *path, const void *bytes, size_t n)
{
    struct err err = { 0 };

    assert_ok(file_write(path, bytes, n, &err), &err);
}

#endif
