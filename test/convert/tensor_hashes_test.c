/*
 * tensor_hashes_test.c - a hash of what goes by in order, and of nothing else
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <xxhash.h>

#include "convert/tensor_hashes.h"

#define N 100

static float data[N];

static void begin(struct tensor_hash *seen)
{
    for (int i = 0; i < N; i++)
        data[i] = (float)i;
    tensor_hashes_init(seen, DTYPE_F32, N);
}

static void in_order(void **state)
{
    struct tensor_hash seen;

    (void)state;
    begin(&seen);
    for (int at = 0; at < N; at += 10)
        tensor_hashes_take(&seen, at, data + at, DTYPE_F32, 10);
    assert_int_equal(seen.state, SEEN_WHOLE);
    assert_true(seen.hash == XXH3_64bits(data, sizeof data));
    /* Again, as another rank reads it: it stays. */
    tensor_hashes_take(&seen, 0, data + 3, DTYPE_F32, 10);
    assert_true(seen.hash == XXH3_64bits(data, sizeof data));
    tensor_hashes_release(&seen);
}

static void parts_twice(void **state)
{
    struct tensor_hash seen;

    (void)state;
    begin(&seen);
    tensor_hashes_take(&seen, 0, data, DTYPE_F32, 60);
    tensor_hashes_take(&seen, 0, data, DTYPE_F32, 30);
    tensor_hashes_take(&seen, 30, data + 30, DTYPE_F32, 30);
    assert_int_equal(seen.state, SEEN_SOME);
    tensor_hashes_take(&seen, 60, data + 60, DTYPE_F32, 40);
    assert_int_equal(seen.state, SEEN_WHOLE);
    assert_true(seen.hash == XXH3_64bits(data, sizeof data));
    tensor_hashes_release(&seen);
}

static void what_is_out_of_order_is_lost(void **state)
{
    struct tensor_hash seen;

    (void)state;
    begin(&seen);
    tensor_hashes_take(&seen, 0, data, DTYPE_F32, 10);
    tensor_hashes_take(&seen, 20, data + 20, DTYPE_F32, 10);
    assert_int_equal(seen.state, SEEN_LOST);
    tensor_hashes_take(&seen, 10, data + 10, DTYPE_F32, 90);
    assert_int_equal(seen.state, SEEN_LOST);
    begin(&seen);
    tensor_hashes_take(&seen, 0, data, DTYPE_F32, 60);
    tensor_hashes_take(&seen, 50, data + 50, DTYPE_F32, 20); /* begins before, ends behind */
    assert_int_equal(seen.state, SEEN_LOST);
    begin(&seen);
    tensor_hashes_take(&seen, 0, data, DTYPE_BF16, 10);
    assert_int_equal(seen.state, SEEN_LOST);
    tensor_hashes_release(&seen);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_order),
        cmocka_unit_test(parts_twice),
        cmocka_unit_test(what_is_out_of_order_is_lost),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
