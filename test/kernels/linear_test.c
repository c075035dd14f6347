/*
 * linear_test.c - linear and its gradients against the reference; what accumulates, and where bits
 * are those of another op
 *
 * gemm_test.c holds the CPU's products to their sequence of operations, bit for bit.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/op_case.h"
#include "support/test_device.h"

/* T, k and n cross the edges of tiles, vectors and one another. */
static const struct dims {
    int64_t tokens, k, n;
} all_dims[] = {
    { 1, 1, 1 },     { 1, 64, 96 },  { 3, 5, 7 },      { 2, 300, 1 },   { 130, 1, 40 },
    { 17, 33, 129 }, { 64, 64, 64 }, { 31, 515, 260 }, { 515, 40, 31 }, { 70, 48, 600 }
};

#define N_DIMS (int)(sizeof all_dims / sizeof *all_dims)

static struct op_case *make(enum op_kind kind, struct dims d, enum dtype act, enum dtype out,
                            bool bias)
{
    struct op_case *c = op_case_create(kind, &(struct op_attributes){ 0 });
    int64_t rows = kind == OP_LINEAR_DW ? d.tokens : d.n;

    op_case_input(c, 0, d.tokens, kind == OP_LINEAR ? d.k : d.n, act, 1);
    op_case_input(c, 1, rows, d.k, act, 1);
    if (kind == OP_LINEAR_DW)
        op_case_output(c, LINEAR_DW_DW, d.n, d.k, DTYPE_F32);
    else
        op_case_output(c, 0, d.tokens, kind == OP_LINEAR ? d.n : d.k, out);
    if (bias && kind == OP_LINEAR)
        op_case_input(c, LINEAR_B, 1, d.n, DTYPE_F32, 1);
    if (bias && kind == OP_LINEAR_DW)
        op_case_output(c, LINEAR_DW_DB, 1, d.n, DTYPE_F32);
    return c;
}

/* Where the result has 16 bits a GPU rounds either the bias before it is added, or the product
 * (cuda/gemm.cuh): a second rounding. */
static double tolerance_of(const struct op_case *c)
{
    enum dtype out = c->op.out[0].dtype;
    bool twice = test_device_is_cuda() && c->op.kind == OP_LINEAR && tensor_given(&c->op.in[2]);

    return twice && out == DTYPE_BF16 ? 0x1p-7 : twice && out == DTYPE_F16 ? 0x1p-10 : 2e-6;
}

static void test_products(void **state)
{
    static const enum op_kind kinds[] = { OP_LINEAR, OP_LINEAR_DX, OP_LINEAR_DW };

    (void)state;
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < N_DIMS; i++)
            for (int i_act = 0; i_act < N_ACTS; i_act++) {
                enum dtype act = act_at(i_act);
                struct op_case *c = make(kinds[k], all_dims[i], act, act, i % 2);

                op_case_check(c, tolerance_of(c));
                op_case_destroy(c);
            }
}

/* 16-bit operands, fp32 result: logits. */
static void test_wide_results(void **state)
{
    (void)state;
    for (int i = 0; i < N_DIMS; i++) {
        struct op_case *c = make(OP_LINEAR, all_dims[i], act_at(1 + i / 2 % 2), DTYPE_F32, i % 2);

        op_case_check(c, 2e-6);
        op_case_destroy(c);
    }
}

/* Runs of rows: of whole and of broken panels, of more than a tile and a block of rows, one alone;
 * with gaps of 3 columns between them, or of whole 16 bytes. */
static const struct run_dims {
    int64_t n, rows, k, n_cols;
} all_run_dims[] = {
    { 2, 32, 64, 96 }, { 8, 1, 5, 7 },    { 3, 37, 300, 50 },  { 1, 9, 33, 17 },
    { 1, 5, 70, 60 },  { 2, 190, 40, 8 }, { 4, 300, 129, 33 }, { 5, 7, 3200, 49 },
};

#define N_RUN_DIMS (int)(sizeof all_run_dims / sizeof *all_run_dims)

static struct op_case *make_runs(enum op_kind kind, struct run_dims d, enum dtype act, bool bias)
{
    struct op_case *c = op_case_create(kind, &(struct op_attributes){ .run_rows = d.rows });
    int64_t in = kind == OP_LINEAR ? d.k : d.n_cols, out = kind == OP_LINEAR ? d.n_cols : d.k;

    c->gap = d.rows % 2 ? 3 : 64;
    op_case_input(c, 0, d.n, d.rows * in, act, 1);
    op_case_input(c, 1, d.n_cols, d.k, act, 1);
    op_case_output(c, 0, d.n, d.rows * out, act);
    if (bias && kind == OP_LINEAR)
        op_case_input(c, LINEAR_B, 1, d.n_cols, DTYPE_F32, 1);
    return c;
}

static void test_runs(void **state)
{
    (void)state;
    for (int is_dx = 0; is_dx < 2; is_dx++)
        for (int i = 0; i < N_ACTS * N_RUN_DIMS; i++) {
            enum op_kind kind = is_dx ? OP_LINEAR_DX : OP_LINEAR;
            struct op_case *c =
                make_runs(kind, all_run_dims[i / N_ACTS], act_at(i % N_ACTS), i / N_ACTS % 2);

            op_case_check(c, tolerance_of(c));
            op_case_destroy(c);
        }
}

/* out += contribution is the finished contribution, then one fp32 add: bit for bit. */
static void check_accumulates(const struct dims *d, enum dtype act)
{
    struct op_case *wanted = make(OP_LINEAR_DW, *d, act, DTYPE_F32, true);
    struct op_case *c = make(OP_LINEAR_DW, *d, act, DTYPE_F32, true);

    op_case_run(wanted, 2, RUN_FIRST);
    for (int i = 0; i < 2; i++) {
        const struct tensor *out = &c->op.out[i], *product = &wanted->op.out[i];

        op_case_fill(out, 99, 1);
        for (int64_t row = 0; row < out->rows; row++)
            for (int64_t col = 0; col < out->cols; col++) {
                float sum = (float)tensor_get(out, row, col) + (float)tensor_get(product, row, col);

                tensor_set(product, row, col, (double)sum);
            }
    }
    op_case_run(c, 3, RUN_AGAIN);
    op_case_same_outputs(c, wanted, "is not the product added once");
    op_case_destroy(wanted);
    op_case_destroy(c);
}

/* bias_grad is linear_dw's db, to the bit, first and on top of what is there. */
static void check_bias_grad(const struct dims *d, enum dtype act)
{
    struct op_case *dw = make(OP_LINEAR_DW, *d, act, DTYPE_F32, true);
    struct op_case *alone = op_case_create(OP_BIAS_GRAD, &(struct op_attributes){ 0 });

    op_case_input(alone, BIAS_GRAD_DY, d->tokens, d->n, act, 0);
    op_case_copy(&alone->op.in[BIAS_GRAD_DY], &dw->op.in[0]);
    op_case_output(alone, BIAS_GRAD_DB, 1, d->n, DTYPE_F32);
    for (int turn = RUN_FIRST; turn >= RUN_AGAIN; turn--) {
        op_case_run(dw, 2, (enum run_turn)turn);
        op_case_run(alone, 3, (enum run_turn)turn);
        op_case_same(&alone->op.out[0], &dw->op.out[LINEAR_DW_DB], "is not linear_dw's db");
    }
    op_case_destroy(dw);
    op_case_destroy(alone);
}

/* Of each instruction set; those that the machine lacks are its best once more. */
static void test_bits(void **state)
{
    static const char *const isas[] = { "plain", "avx2", "avx512", "avx512_bf16" };

    (void)state;
    for (int isa = test_device_is_cuda() ? 3 : 0; isa < 4; isa++) {
        char *kept = test_set_aside("LMTRAIN_CPU_ISA", isas[isa]);

        for (int i = 0; i < N_DIMS; i++) {
            check_accumulates(&all_dims[i], act_at(i % N_ACTS));
            check_bias_grad(&all_dims[i], act_at(i % N_ACTS));
        }
        test_put_back("LMTRAIN_CPU_ISA", kept);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_wide_results),
        cmocka_unit_test(test_runs),
        cmocka_unit_test(test_bits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
