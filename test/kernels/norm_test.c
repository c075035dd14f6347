#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "support/op_case.h"

static const struct op_attributes attributes = { .eps = 1e-5 };
/* The last ones' rows have no gaps, are whole multiples of 16 bytes long, and too long for a warp,
 * for a block of four, of eight, and for any. */
static const int64_t sizes[][2] = { { 1, 1 },    { 7, 33 },   { 150, 100 },
                                    { 65, 257 }, { 600, 40 }, { 9, 1032 },
                                    { 5, 4104 }, { 3, 8200 }, { 2, 16400 } };

#define N_SIZES (int)(sizeof sizes / sizeof *sizes)

/* So that sums of two are bf16's: what the norm reads of a sum that is stored in bf16 is the
 * reference's. */
static void make_coarse(const struct tensor *t)
{
    for (int64_t row = 0; row < t->rows; row++)
        for (int64_t col = 0; col < t->cols; col++)
            tensor_set(t, row, col, fmax(-4, fmin(4, round(8 * tensor_get(t, row, col)) / 8)));
}

/* types: of the residual stream and what is beside it (acts.h) */
static struct op_case *forward(enum op_kind kind, int64_t rows, int64_t d, int types, int bias)
{
    enum dtype act = act_beside(types), res = residual_at(types);

    struct op_case *c = op_case_create(kind, &attributes);
    int adds = kind == OP_ADD_RMSNORM || kind == OP_ADD_LAYERNORM;
    int layer = kind == OP_LAYERNORM || kind == OP_ADD_LAYERNORM;

    c->dense = d % 8 == 0;
    op_case_input(c, 0, rows, d, res, 2);
    if (adds)
        op_case_input(c, 1, rows, d, act, 1);
    op_case_input(c, 1 + adds, 1, d, DTYPE_F32, 1);
    if (bias)
        op_case_input(c, 2 + adds, 1, d, DTYPE_F32, 1);
    op_case_output(c, 0, rows, d, act);
    op_case_output(c, 1, rows, 1, DTYPE_F32);
    if (layer)
        op_case_output(c, 2, rows, 1, DTYPE_F32);
    if (adds)
        op_case_output(c, 2 + layer, rows, d, res);
    return c;
}

static void test_forward(void **state)
{
    static const enum op_kind kinds[] = { OP_RMSNORM, OP_LAYERNORM, OP_ADD_RMSNORM,
                                          OP_ADD_LAYERNORM };

    (void)state;
    for (int k = 0; k < 4; k++)
        for (int s = 0; s < N_SIZES; s++)
            for (int types = 0; types < N_RESIDUALS; types++)
                for (int bias = 0; bias <= k % 2; bias++) {
                    struct op_case *c = forward(kinds[k], sizes[s][0], sizes[s][1], types, bias);

                    if (k > 1 && residual_at(types) == DTYPE_BF16) {
                        make_coarse(&c->op.in[0]);
                        make_coarse(&c->op.in[1]);
                    }
                    /* Of one column LayerNorm's output is 0 or the bias, rstd 1 / sqrt(eps). */
                    op_case_check(c, 3e-6);
                    op_case_destroy(c);
                }
}

static void grad_case(enum op_kind kind, int64_t rows, int64_t d, int types, int extras)
{
    enum dtype act = act_beside(types), res = residual_at(types);
    struct op_case *c = op_case_create(kind, &attributes);
    int layer = kind == OP_LAYERNORM_GRAD;

    c->dense = d % 8 == 0;
    op_case_input(c, 0, rows, d, act, 1);
    op_case_input(c, 1, rows, d, res, 1);
    op_case_input(c, 2, 1, d, DTYPE_F32, 1);
    op_case_input(c, 3, rows, 1, DTYPE_F32, 0.3);
    if (layer)
        op_case_input(c, 4, rows, 1, DTYPE_F32, 1);
    if (extras)
        op_case_input(c, 4 + layer, rows, d, res, 1);
    op_case_output(c, 0, rows, d, res);
    op_case_output(c, 1, 1, d, DTYPE_F32);
    if (layer && extras)
        op_case_output(c, 2, 1, d, DTYPE_F32);
    if (extras)
        op_case_output(c, 2 + layer, rows, d, act);
    op_case_check(c, 2e-6);
    op_case_destroy(c);
}

static void test_grads(void **state)
{
    (void)state;
    for (int s = 0; s < N_SIZES; s++)
        for (int types = 0; types < N_RESIDUALS; types++)
            for (int extras = 0; extras < 2; extras++) {
                grad_case(OP_RMSNORM_GRAD, sizes[s][0], sizes[s][1], types, extras);
                grad_case(OP_LAYERNORM_GRAD, sizes[s][0], sizes[s][1], types, extras);
            }
}

static void fused_case(enum op_kind fused, enum op_kind alone, int types)
{
    enum { ROWS = 37, D = 70 };
    enum dtype act = act_beside(types), res = residual_at(types);
    int layer = alone == OP_LAYERNORM;
    struct op_case *both = forward(fused, ROWS, D, types, layer);
    struct op_case *add = op_case_create(OP_ADD, &attributes);
    struct op_case *norm = forward(alone, ROWS, D, types, layer);

    op_case_input(add, 0, ROWS, D, res, 1);
    op_case_input(add, 1, ROWS, D, act, 1);
    op_case_output(add, 0, ROWS, D, res);
    op_case_copy(&add->op.in[0], &both->op.in[0]);
    op_case_copy(&add->op.in[1], &both->op.in[1]);
    op_case_run(add, 2, RUN_FIRST);
    op_case_copy(&norm->op.in[0], &add->op.out[0]);
    op_case_copy(&norm->op.in[1], &both->op.in[2]);
    if (layer)
        op_case_copy(&norm->op.in[2], &both->op.in[3]);
    op_case_run(norm, 2, RUN_FIRST);
    op_case_run(both, 2, RUN_FIRST);
    for (int i = 0; i < 2 + layer; i++)
        op_case_same(&norm->op.out[i], &both->op.out[i], "differs where the sum is fused");
    op_case_same(&add->op.out[0], &both->op.out[2 + layer], "differs where it is fused");
    op_case_destroy(both);
    op_case_destroy(add);
    op_case_destroy(norm);
}

static void test_fused_is_its_parts(void **state)
{
    (void)state;
    for (int types = 0; types < N_RESIDUALS; types++) {
        fused_case(OP_ADD_RMSNORM, OP_RMSNORM, types);
        fused_case(OP_ADD_LAYERNORM, OP_LAYERNORM, types);
    }
}

/* A norm's gradient with a copy, and the same without and a cast of it. */
static void copy_case(int layer, enum dtype act)
{
    enum { ROWS = 37, D = 72 };
    struct op_case *cases[2], *cast = op_case_create(OP_CAST, &attributes);

    for (int k = 0; k < 2; k++) {
        struct op_case *c =
            op_case_create(layer ? OP_LAYERNORM_GRAD : OP_RMSNORM_GRAD, &attributes);

        op_case_input(c, 0, ROWS, D, act, 1);
        op_case_input(c, 1, ROWS, D, DTYPE_F32, 1);
        op_case_input(c, 2, 1, D, DTYPE_F32, 1);
        for (int i = 3; i < 4 + layer; i++)
            op_case_input(c, i, ROWS, 1, DTYPE_F32, 0.3);
        op_case_input(c, 4 + layer, ROWS, D, DTYPE_F32, 1);
        op_case_output(c, 0, ROWS, D, DTYPE_F32);
        op_case_output(c, 1, 1, D, DTYPE_F32);
        if (k)
            op_case_output(c, 2 + layer, ROWS, D, act);
        op_case_run(c, 2, RUN_FIRST);
        cases[k] = c;
    }
    op_case_input(cast, 0, ROWS, D, DTYPE_F32, 1);
    op_case_output(cast, 0, ROWS, D, act);
    op_case_copy(&cast->op.in[0], &cases[0]->op.out[0]);
    op_case_run(cast, 2, RUN_FIRST);
    for (int i = 0; i < 2; i++)
        op_case_same(&cases[0]->op.out[i], &cases[1]->op.out[i], "differs where there is a copy");
    op_case_same(&cast->op.out[0], &cases[1]->op.out[2 + layer], "is not the copy");
    op_case_destroy(cases[0]);
    op_case_destroy(cases[1]);
    op_case_destroy(cast);
}

static void test_copy_is_a_cast(void **state)
{
    (void)state;
    for (int layer = 0; layer < 2; layer++) {
        copy_case(layer, DTYPE_BF16);
        copy_case(layer, DTYPE_F16);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),
        cmocka_unit_test(test_grads),
        cmocka_unit_test(test_fused_is_its_parts),
        cmocka_unit_test(test_copy_is_a_cast),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
