/*
 * same_bits.c - see the header
 */
#include "support/same_bits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ops/op_info.h"

void op_case_run_on_cpu(struct op_case *c, int first)
{
    const char *device = getenv("LMTRAIN_TEST_DEVICE");
    char *kept = device ? strdup(device) : NULL;

    unsetenv("LMTRAIN_TEST_DEVICE");
    op_case_run(c, 1, first);
    if (kept)
        setenv("LMTRAIN_TEST_DEVICE", kept, 1);
    free(kept);
}

static const char *at(const struct tensor *t, int64_t row, int64_t col)
{
    return (const char *)t->data + (size_t)(row * t->stride + col) * dtype_bytes(t->dtype);
}

static void same(const char *op, const char *name, const struct tensor *a, const struct tensor *b,
                 const char *what)
{
    assert_int_equal(a->rows, b->rows);
    assert_int_equal(a->cols, b->cols);
    for (int64_t row = 0; row < a->rows; row++)
        for (int64_t col = 0; col < a->cols; col++)
            if (memcmp(at(a, row, col), at(b, row, col), dtype_bytes(a->dtype)) != 0)
                fail_msg("%s: %s[%lld, %lld] of %lld x %lld %s is %a, %s %a", op, name,
                         (long long)row, (long long)col, (long long)a->rows, (long long)a->cols,
                         dtype_name(a->dtype), tensor_get(a, row, col), what,
                         tensor_get(b, row, col));
}

void op_case_same_outputs(const struct op_case *a, const struct op_case *b, const char *what)
{
    const struct op_info *info = op_info(a->op.kind);

    for (int i = 0; i < info->n_outputs; i++)
        same(info->name, info->outputs[i].name, &a->op.out[i], &b->op.out[i], what);
}
