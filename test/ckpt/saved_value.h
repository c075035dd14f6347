/*
 * saved_value.h - a checkpoint of two ranks whose one tensor has the same value everywhere
 */
#ifndef TEST_CKPT_SAVED_VALUE_H
#define TEST_CKPT_SAVED_VALUE_H

#include "ckpt_fixture.h"

enum { ROWS = 512, COLS = 64, WORLD = 2 };

/* Save and commit w = value by two ranks; 0 or -1. */
static inline int save_value(const char *folder, int64_t step, float value, struct err *err)
{
    static float data[ROWS * COLS];
    struct store_save *saves[WORLD];
    int failed = 0;

    for (int i = 0; i < ROWS * COLS; i++)
        data[i] = value;
    for (int rank = 0; rank < WORLD; rank++) {
        struct store_slice slice =
            fixture_slice("w", DTYPE_F32, ROWS, COLS, rank * ROWS / WORLD,
                          (rank + 1) * ROWS / WORLD, 0, COLS, data + rank * ROWS / WORLD * COLS);

        if (store_save_start(&saves[rank], folder, rank, &slice, 1, err) < 0)
            return -1;
    }
    for (int rank = 0; rank < WORLD; rank++)
        failed |= store_save_wait(saves[rank], err);
    return failed ? -1 : store_commit(folder, WORLD, step, "{}", err);
}

/* The value that all of w has; fails if elements differ or the checkpoint is damaged. */
static inline float read_value(const char *folder, int64_t *step)
{
    static float data[ROWS * COLS];
    struct store_slice want = fixture_whole("w", DTYPE_F32, ROWS, COLS, data);
    struct err err = { 0 };
    struct store *store;

    assert_ok(store_open(&store, folder, &err), &err);
    assert_ok(store_verify(store, NULL, NULL, &err), &err);
    assert_ok(store_read(store, &want, &err), &err);
    *step = store_step(store);
    store_close(store);
    for (int i = 1; i < ROWS * COLS; i++)
        assert_true(data[i] == data[0]);
    return data[0];
}

#endif
