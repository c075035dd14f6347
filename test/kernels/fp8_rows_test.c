/*
 * fp8_rows_test.c - codes that ops make of the rows which products of fp8 read
 *
 * They are those of what the op stores, which is as without codes; and a product of them has the
 * bits of one that rounds its rows itself.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/coded_product.h"
#include "support/e4m3.h"

static const enum op_kind kinds[] = { OP_RMSNORM,       OP_LAYERNORM,    OP_ADD_RMSNORM,
                                      OP_ADD_LAYERNORM, OP_RMSNORM_GRAD, OP_LAYERNORM_GRAD,
                                      OP_SWIGLU,        OP_SWIGLU_GRAD,  OP_GELU,
                                      OP_GELU_GRAD };

enum { N_KINDS = sizeof kinds / sizeof *kinds };

/* Of rows: columns of one block and less, of several, of more than a tile or a thread's registers
 * hold. */
static const struct size {
    int64_t rows, cols;
} sizes[] = { { 5, 32 }, { 1, 128 }, { 70, 144 }, { 9, 1024 }, { 2, 4104 }, { 1, 17000 } };

enum { N_SIZES = sizeof sizes / sizeof *sizes };

enum coding { PLAIN, BY_BLOCKS, BY_ROWS };

struct shape {
    int64_t rows, cols;
    enum dtype dtype;
};

/* What an operand of the catalogue has: a row or all rows, as many columns as all or one. */
static struct shape shape_of(const struct op_operand *operand, const struct size *size,
                             enum dtype res)
{
    struct shape s = { operand->rows == DIM_T ? size->rows : 1,
                       operand->cols == DIM_ONE  ? 1
                       : operand->cols == DIM_2F ? 2 * size->cols
                                                 : size->cols,
                       DTYPE_BF16 };

    if (operand->type == TYPE_F32)
        s.dtype = DTYPE_F32;
    if (operand->type == TYPE_STREAM)
        s.dtype = res;
    return s;
}

static struct op_case *make(enum op_kind kind, const struct size *size, enum dtype res,
                            enum coding coding)
{
    const struct op_info *info = op_info(kind);
    struct op_case *c = op_case_create(kind, &(struct op_attributes){ .eps = 1e-5 });
    int codes = info->codes_output - 1;

    for (int k = 0; k < info->n_inputs; k++) {
        struct shape s = shape_of(&info->inputs[k], size, res);

        op_case_input(c, k, s.rows, s.cols, s.dtype, 1);
    }
    for (int k = 0; k < codes; k++) {
        struct shape s = shape_of(&info->outputs[k], size, res);

        if (!(info->outputs[k].flags & OPERAND_CAST) || res == DTYPE_F32)
            op_case_output(c, k, s.rows, s.cols, s.dtype);
    }
    const struct tensor *rounded = &c->op.out[ops_rounded_output(&c->op)];
    if (coding == BY_BLOCKS)
        op_case_output(c, codes, rounded->rows, rounded->cols, DTYPE_U8);
    if (coding != PLAIN)
        op_case_output(c, codes + 1, rounded->rows,
                       coding == BY_BLOCKS ? (rounded->cols + 127) / 128 : 1, DTYPE_F32);
    return c;
}

static uint8_t code_at(const struct tensor *codes, int64_t row, int64_t col)
{
    return ((const uint8_t *)codes->data)[row * codes->stride + col];
}

/* A block of one row: from col on. */
static void check_block(const struct op_case *c, int64_t row, int64_t col, int64_t n, int64_t block)
{
    const struct tensor *x = &c->op.out[ops_rounded_output(&c->op)];
    const struct tensor *codes = &c->op.out[op_info(c->op.kind)->codes_output - 1];
    double most = 0;

    for (int64_t i = col; i < col + n; i++)
        most = fmax(most, fabs(tensor_get(x, row, i)));
    if (tensor_get(codes + 1, row, block) != most)
        fail_msg("%s: the largest of row %ld, block %ld is %g, wanted %g", op_name(c->op.kind),
                 (long)row, (long)block, tensor_get(codes + 1, row, block), most);
    float scale = (float)most / 448.0f;
    for (int64_t i = col; i < col + n && tensor_given(codes); i++) {
        float quotient = (float)tensor_get(x, row, i) / scale;
        int wanted = e4m3_nearest(fabs((double)quotient)) | (signbit(quotient) ? 0x80 : 0);

        if (code_at(codes, row, i) != wanted)
            fail_msg("%s: the code at %ld, %ld is 0x%02x, wanted 0x%02x", op_name(c->op.kind),
                     (long)row, (long)i, code_at(codes, row, i), wanted);
    }
}

static void check_codes(const struct op_case *c, enum coding coding)
{
    const struct tensor *x = &c->op.out[ops_rounded_output(&c->op)];
    int64_t side = coding == BY_BLOCKS ? 128 : x->cols;

    for (int64_t row = 0; row < x->rows; row++)
        for (int64_t col = 0; col < x->cols; col += side)
            check_block(c, row, col, x->cols - col < side ? x->cols - col : side, col / side);
}

/* Beside the op without: what both write is the same. */
static void check_kind(enum op_kind kind, const struct size *size, enum dtype res,
                       enum coding coding)
{
    struct op_case *plain = make(kind, size, res, PLAIN), *coded = make(kind, size, res, coding);

    for (int threads = 1; threads <= 3; threads += 2) {
        op_case_run(plain, threads, RUN_FIRST);
        op_case_run(coded, threads, RUN_FIRST);
        for (int k = 0; k < op_plain_outputs(op_info(kind)); k++)
            if (tensor_given(&plain->op.out[k]))
                op_case_same(&coded->op.out[k], &plain->op.out[k], "depends on codes");
        if (threads > 1)
            check_codes(coded, coding);
    }
    op_case_destroy(plain);
    op_case_destroy(coded);
}

static void test_codes(void **state)
{
    (void)state;
    for (int k = 0; k < N_KINDS; k++)
        for (int i = 0; i < N_SIZES; i++)
            for (enum coding coding = BY_BLOCKS; coding <= BY_ROWS; coding++) {
                check_kind(kinds[k], &sizes[i], DTYPE_F32, coding);
                if (i == 2)
                    check_kind(kinds[k], &sizes[i], DTYPE_BF16, coding);
            }
}

/* gelu of what is negative and large is zero: a block of zeros has a scale of 0. */
static void test_zeros(void **state)
{
    struct op_case *c = make(OP_GELU, &(struct size){ 2, 256 }, DTYPE_F32, BY_BLOCKS);
    const struct tensor *codes = &c->op.out[GELU_CODES], *most = &c->op.out[GELU_MOST];

    (void)state;
    for (int64_t i = 0; i < 256; i++) {
        tensor_set(&c->op.in[GELU_X], 0, i, i < 128 ? 0 : 1);
        tensor_set(&c->op.in[GELU_X], 1, i, i == 200 ? (double)INFINITY : 1);
    }
    op_case_run(c, 2, RUN_FIRST);
    for (int64_t i = 0; i < 128; i++)
        assert_int_equal(code_at(codes, 0, i), 0);
    assert_true(tensor_get(most, 0, 0) == 0);
    assert_true(tensor_get(most, 0, 1) > 0);
    assert_true(isinf(tensor_get(most, 1, 1)));
    op_case_destroy(c);
}

/* ---- products ---- */

static struct op_case *product(enum op_kind kind, const struct tensor *x, const struct tensor *most,
                               const struct op_attributes *attributes, int64_t n)
{
    bool is_dx = kind == OP_LINEAR_DX_FP8;
    struct op_case *c = op_case_create(kind, attributes);

    c->dense = true;
    op_case_input(c, 0, x->rows, x->cols, x->dtype, 1);
    op_case_copy(&c->op.in[0], x);
    op_case_input(c, LINEAR_W, is_dx ? x->cols : n, is_dx ? n : x->cols, DTYPE_BF16, 1);
    if (most) {
        op_case_input(c, ops_fp8_most(kind, 0), most->rows, most->cols, DTYPE_F32, 1);
        op_case_copy(&c->op.in[ops_fp8_most(kind, 0)], most);
    }
    op_case_output(c, 0, x->rows, n, DTYPE_BF16);
    return c;
}

static void check_product(enum op_kind kind, enum coding coding, const struct size *size)
{
    const struct op_attributes attributes = { .fp8 = coding == BY_BLOCKS ? FP8_BLOCKWISE
                                                                         : FP8_TENSOR };
    struct op_case *rows = make(OP_GELU, size, DTYPE_F32, coding);

    op_case_run(rows, 2, RUN_FIRST);
    const struct tensor *y = &rows->op.out[GELU_Y], *most = &rows->op.out[GELU_MOST];
    struct op_case *own = product(kind, y, NULL, &attributes, 160), *given;

    given =
        product(kind, coding == BY_BLOCKS ? &rows->op.out[GELU_CODES] : y, most, &attributes, 160);
    coded_product_check(given, own, "depends on what has rounded the rows");
    op_case_destroy(rows);
}

static void test_products(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++)
        for (enum coding coding = BY_BLOCKS; coding <= BY_ROWS; coding++) {
            const enum op_kind kind = k ? OP_LINEAR_DX_FP8 : OP_LINEAR_FP8;

            check_product(kind, coding, &(struct size){ 70, 144 });
            check_product(kind, coding, &(struct size){ 72, 256 });
            check_product(kind, coding, &(struct size){ 8, 128 });
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codes),
        cmocka_unit_test(test_zeros),
        cmocka_unit_test(test_products),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
