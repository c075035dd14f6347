/*
 * gpu_sizes_test.c - what is planned of vendors' libraries is cut as they are
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include "kernels/gpu_sizes.h"

#define GIB ((size_t)1 << 30)

static void limits(void **state)
{
    (void)state;
    assert_int_equal(gpu_attention_most_bytes(8 * GIB), GIB);
    assert_int_equal(gpu_attention_most_bytes(40 * GIB), 2 * GIB);
    assert_int_equal(gpu_attention_most_bytes(80 * GIB), 4 * GIB);
    assert_int_equal(gpu_attention_most_bytes(80 * GIB - 1), 4 * GIB);
    assert_int_equal(gpu_attention_most_bytes(140 * GIB), 8 * GIB);
}

/* The gradient of attention of one head over a sequence. */
static size_t planned(int seq_len, size_t gpu_bytes)
{
    struct op_shape op = { .kind = OP_ATTENTION_GRAD };
    enum { HEAD_DIM = 128 };

    op.attributes.n_heads = op.attributes.n_kv_heads = 1;
    op.attributes.head_dim = HEAD_DIM;
    op.attributes.seq_len = seq_len;
    op.in[1] = (struct tensor){ NULL, seq_len, 3 * HEAD_DIM, 3 * HEAD_DIM, DTYPE_BF16 };
    return gpu_library_bytes(&op, gpu_bytes);
}

/* A smallest piece is cuDNN's up to the limit that the kernels have, and no further. */
static void smallest_pieces(void **state)
{
    (void)state;
    assert_in_range(planned(46000, 80 * GIB), 39 * GIB / 10, 4 * GIB); /* dS: 3.94 GiB */
    assert_int_equal(planned(47000, 80 * GIB), 0);                     /* 4.11 */
    assert_in_range(planned(47000, 140 * GIB), 4 * GIB, 42 * GIB / 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limits),
        cmocka_unit_test(smallest_pieces),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
