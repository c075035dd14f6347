/*
 * op_case_check.c - one op against the reference, and against itself on other threads, instruction
 * sets and orders
 *
 * The tolerance rule, one for all: |kernel - reference| <= tolerance * the operand's largest
 * element, and one rounding to the element's dtype besides (act_rounding). The contents before a
 * run are kept (struct snapshot) and put back for each further one, so that all of them start
 * alike.
 */
#include "support/op_case.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/op_facts.h"
#include "support/test_device.h"

static void check_guards(const char *name, const struct tensor *t, size_t n_bytes)
{
    size_t element = dtype_bytes(t->dtype), stride = (size_t)t->stride * element;
    size_t row_bytes = (size_t)t->cols * element, end = stride * (size_t)t->rows;
    const unsigned char *data = t->data, *memory = data - OP_CASE_GUARD_BYTES;

    for (size_t i = 0; i < n_bytes; i++) {
        size_t at = i - OP_CASE_GUARD_BYTES;
        bool inside = i >= OP_CASE_GUARD_BYTES && at < end && at % stride < row_bytes;

        if (!inside && memory[i] != OP_CASE_GUARD)
            fail_msg("%s: byte %ld from its start was overwritten", name,
                     (long)i - OP_CASE_GUARD_BYTES);
    }
}

static double largest(const struct tensor *t)
{
    double top = 0;

    for (int64_t row = 0; row < t->rows; row++)
        for (int64_t col = 0; col < t->cols; col++)
            if (!isinf(tensor_get(t, row, col)))
                top = fmax(top, fabs(tensor_get(t, row, col)));
    return top;
}

/* Gradients of q, k and v are made of the same numbers: dq and dk may be all but 0 beside dv. */
static double scale_of(enum op_kind kind, const struct tensor *wanted, const struct op_shape *all)
{
    double top = largest(wanted);

    for (int i = 0; i < 3 && (kind == OP_ATTENTION_GRAD || kind == OP_ATTENTION_PART_GRAD); i++)
        top = fmax(top, largest(&all->out[i]));
    return top;
}

/* top: what the tolerance is of. */
static void compare(const struct op_case *c, const struct op_operand *operand,
                    const struct tensor *got, const struct tensor *wanted, double top,
                    double tolerance)
{
    for (int64_t row = 0; row < got->rows; row++)
        for (int64_t col = 0; col < got->cols; col++) {
            double a = tensor_get(got, row, col), b = tensor_get(wanted, row, col);
            double limit = tolerance * top + act_rounding(got->dtype, b);

            if (c->leaves && isnan(a) && isnan(b))
                continue;
            if (!(fabs(a - b) <= limit) && !(isinf(b) && a == b))
                fail_msg("%s: %s[%lld, %lld] is %.9g, reference %.9g, limit %.3g",
                         op_info(c->op.kind)->name, operand->name, (long long)row, (long long)col,
                         a, b, limit);
        }
}

static const char *element(const struct tensor *t, int64_t row, int64_t col)
{
    return (const char *)t->data + (size_t)(row * t->stride + col) * dtype_bytes(t->dtype);
}

/* By their bits; a NaN is equal to any, as its sign and payload are the processor's kind's. */
static int same_element(const struct tensor *a, const struct tensor *b, int64_t row, int64_t col)
{
    return memcmp(element(a, row, col), element(b, row, col), dtype_bytes(a->dtype)) == 0 ||
           (isnan(tensor_get(a, row, col)) && isnan(tensor_get(b, row, col)));
}

static void same_elements(const char *op, const char *operand, const struct tensor *a,
                          const struct tensor *b, const char *what)
{
    assert_int_equal(a->rows, b->rows);
    assert_int_equal(a->cols, b->cols);
    assert_int_equal(a->dtype, b->dtype);
    for (int64_t row = 0; row < a->rows; row++)
        for (int64_t col = 0; col < a->cols; col++)
            if (!same_element(a, b, row, col))
                fail_msg("%s: %s %s: [%lld, %lld] of %lld x %lld %s is %a, was %a", op, operand,
                         what, (long long)row, (long long)col, (long long)a->rows,
                         (long long)a->cols, dtype_name(a->dtype), tensor_get(a, row, col),
                         tensor_get(b, row, col));
}

void op_case_same(const struct tensor *a, const struct tensor *b, const char *what)
{
    same_elements("operands", "of two cases", a, b, what);
}

void op_case_same_outputs(const struct op_case *a, const struct op_case *b, const char *what)
{
    const struct op_info *info = op_info(a->op.kind);

    for (int i = 0; i < info->n_outputs; i++)
        if (tensor_given(&a->op.out[i]))
            same_elements(info->name, info->outputs[i].name, &a->op.out[i], &b->op.out[i], what);
}

static unsigned char *copy_of(const struct tensor *t, size_t n_bytes)
{
    unsigned char *copy = malloc(n_bytes);

    assert_non_null(copy);
    memcpy(copy, (const char *)t->data - OP_CASE_GUARD_BYTES, n_bytes);
    return copy;
}

struct snapshot {
    unsigned char *in[OPS_MAX_INPUTS], *out[OPS_MAX_OUTPUTS];
};

static void take(const struct op_case *c, struct snapshot *s)
{
    for (int i = 0; i < OPS_MAX_INPUTS; i++)
        s->in[i] = tensor_given(&c->op.in[i]) ? copy_of(&c->op.in[i], c->in_bytes[i]) : NULL;
    for (int i = 0; i < OPS_MAX_OUTPUTS; i++)
        s->out[i] = tensor_given(&c->op.out[i]) ? copy_of(&c->op.out[i], c->out_bytes[i]) : NULL;
}

static void restore(const struct op_case *c, const struct snapshot *s)
{
    for (int i = 0; i < OPS_MAX_INPUTS; i++)
        if (s->in[i])
            memcpy((char *)c->op.in[i].data - OP_CASE_GUARD_BYTES, s->in[i], c->in_bytes[i]);
    for (int i = 0; i < OPS_MAX_OUTPUTS; i++)
        if (s->out[i])
            memcpy((char *)c->op.out[i].data - OP_CASE_GUARD_BYTES, s->out[i], c->out_bytes[i]);
}

static void drop(struct snapshot *s)
{
    for (int i = 0; i < OPS_MAX_INPUTS; i++)
        free(s->in[i]);
    for (int i = 0; i < OPS_MAX_OUTPUTS; i++)
        free(s->out[i]);
}

/* Also what lies around them. */
static void same_bytes(const struct op_case *c, const char *operand, const struct tensor *t,
                       const unsigned char *wanted, size_t n_bytes, const char *what)
{
    struct tensor other = *t;
    unsigned char *around = copy_of(t, n_bytes);

    other.data = (void *)(wanted + OP_CASE_GUARD_BYTES);
    same_elements(op_info(c->op.kind)->name, operand, t, &other, what);
    struct tensor inside = *t;
    inside.data = around + OP_CASE_GUARD_BYTES;
    for (int64_t row = 0; row < t->rows; row++)
        memcpy((void *)element(&inside, row, 0), element(&other, row, 0),
               (size_t)t->cols * dtype_bytes(t->dtype));
    if (memcmp(around, wanted, n_bytes))
        fail_msg("%s: around the elements, %s %s", op_info(c->op.kind)->name, operand, what);
    free(around);
}

/* Against the snapshot before, and the reference's results. */
static void check_results(const struct op_case *c, const struct snapshot *before,
                          const struct op_shape *reference, double tolerance)
{
    const struct op_info *info = op_info(c->op.kind);

    for (int i = 0; i < info->n_inputs; i++) {
        if (!before->in[i])
            continue;
        check_guards(info->inputs[i].name, &c->op.in[i], c->in_bytes[i]);
        if (info->inputs[i].flags & OPERAND_UPDATED)
            compare(c, &info->inputs[i], &c->op.in[i], &reference->in[i],
                    largest(&reference->in[i]), tolerance);
        else
            same_bytes(c, info->inputs[i].name, &c->op.in[i], before->in[i], c->in_bytes[i],
                       "is an input and was changed");
    }
    for (int i = 0; i < info->n_outputs; i++) {
        if (!before->out[i])
            continue;
        check_guards(info->outputs[i].name, &c->op.out[i], c->out_bytes[i]);
        compare(c, &info->outputs[i], &c->op.out[i], &reference->out[i],
                scale_of(c->op.kind, &reference->out[i], reference), tolerance);
    }
}

static void check_same(const struct op_case *c, const struct snapshot *wanted, const char *what)
{
    const struct op_info *info = op_info(c->op.kind);

    for (int i = 0; i < info->n_inputs; i++)
        if (wanted->in[i])
            same_bytes(c, info->inputs[i].name, &c->op.in[i], wanted->in[i], c->in_bytes[i], what);
    for (int i = 0; i < info->n_outputs; i++)
        if (wanted->out[i])
            same_bytes(c, info->outputs[i].name, &c->op.out[i], wanted->out[i], c->out_bytes[i],
                       what);
}

/* Products are added up in the order that suits the instruction set; attention's in bf16 alone. */
static bool isas_agree(const struct op_shape *op)
{
    switch (op->kind) {
    case OP_LINEAR:
    case OP_LINEAR_DX:
    case OP_LINEAR_DW:
    case OP_LINEAR_FP8:
    case OP_LINEAR_DX_FP8:
    case OP_LINEAR_DW_FP8:
    case OP_LORA:
    case OP_EXPERT_LINEAR:
    case OP_EXPERT_LINEAR_DX:
    case OP_EXPERT_LINEAR_DW:
    case OP_EXPERT_LINEAR_FP8:
    case OP_EXPERT_LINEAR_DX_FP8:
    case OP_EXPERT_LINEAR_DW_FP8:
    case OP_EXPERT_LORA:
    case OP_HEAD_CROSS_ENTROPY:
    case OP_HEAD_LOSS:
    case OP_NEWTON_SCHULZ:
        return false;
    case OP_ATTENTION:
    case OP_ATTENTION_GRAD:
    case OP_ATTENTION_RECEIVED:
    case OP_ATTENTION_CACHED:
        return op->in[0].dtype != DTYPE_BF16;
    case OP_ATTENTION_PART:
        return op->in[ATTENTION_PART_Q].dtype != DTYPE_BF16;
    case OP_ATTENTION_PART_GRAD:
        return op->in[ATTENTION_PART_GRAD_Q].dtype != DTYPE_BF16;
    default:
        return true;
    }
}

/* Lesser instruction sets than the one of before -> after. */
static void check_isas(struct op_case *c, enum run_turn turn, const struct snapshot *before,
                       const struct snapshot *after, const struct op_shape *reference,
                       double tolerance)
{
    static const char *const isas[] = { "plain", "avx2", "avx512" };
    char *kept = test_set_aside("LMTRAIN_CPU_ISA", isas[0]);

    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        restore(c, before);
        setenv("LMTRAIN_CPU_ISA", isas[i], 1);
        op_case_run(c, 2, turn);
        if (isas_agree(&c->op))
            check_same(c, after, "depends on the instruction set");
        else
            check_results(c, before, reference, tolerance);
    }
    test_put_back("LMTRAIN_CPU_ISA", kept);
}

static void check_threads(struct op_case *c, enum run_turn turn, const struct snapshot *before,
                          const struct snapshot *after)
{
    static const int more_threads[] = { 2, 3, 7 };

    for (size_t n = 0; n < sizeof more_threads / sizeof *more_threads; n++) {
        restore(c, before);
        op_case_run(c, more_threads[n], turn);
        check_same(c, after, "depends on the number of threads");
    }
}

/* Emulated GPUs run threads and blocks in any order and let copies land when they like: here by
 * turns in two other ways than usual; a real one does what it does. */
static void check_order(struct op_case *c, enum run_turn turn, const struct snapshot *before,
                        const struct snapshot *after)
{
    static int n_checks;
    char *order = test_set_aside("LMTRAIN_EMULATE_ORDER", n_checks++ % 2 ? "backward" : "7");
    char *blocks = test_set_aside("LMTRAIN_EMULATE_BLOCKS", "reverse");
    char *async = test_set_aside("LMTRAIN_EMULATE_ASYNC", "early");

    restore(c, before);
    op_case_run(c, 1, turn);
    test_put_back("LMTRAIN_EMULATE_ORDER", order);
    test_put_back("LMTRAIN_EMULATE_BLOCKS", blocks);
    test_put_back("LMTRAIN_EMULATE_ASYNC", async);
    check_same(c, after, "depends on the order of threads or blocks, or on when copies land");
}

static void check_from(struct op_case *c, enum run_turn turn, double tolerance)
{
    struct snapshot before, after;
    struct op_shape reference = { 0 };

    take(c, &before);
    op_case_to_reference(c, &reference);
    reference_run(&reference, turn);
    op_case_run(c, 1, turn);
    check_results(c, &before, &reference, tolerance);
    take(c, &after);
    if (test_device_is_cuda()) {
        check_order(c, turn, &before, &after);
    } else {
        check_threads(c, turn, &before, &after);
        check_isas(c, turn, &before, &after, &reference, tolerance);
    }
    restore(c, &before);
    drop(&before);
    drop(&after);
    reference_release(&reference);
}

void op_case_check(struct op_case *c, double tolerance)
{
    const struct op_info *info = op_info(c->op.kind);
    struct err err = { 0 };
    bool accumulates = false;

    if (op_check(&c->op, &err))
        fail_msg("%s", err.text);
    for (int i = 0; i < info->n_outputs; i++)
        if (tensor_given(&c->op.out[i]) &&
            info->outputs[i].flags & (OPERAND_ACCUMULATED | OPERAND_UPDATED)) {
            accumulates = true;
            op_case_fill(&c->op.out[i], 1000 + (uint64_t)i, 1);
        }
    check_from(c, RUN_FIRST, tolerance);
    if (accumulates)
        check_from(c, RUN_AGAIN, tolerance);
}

void op_case_check_cpu_bits(struct op_case *c, enum run_turn turn)
{
    struct snapshot before, here;

    take(c, &before);
    op_case_run(c, 3, turn);
    take(c, &here);
    restore(c, &before);
    op_case_run_on_cpu(c, turn);
    check_same(c, &here, "is not the CPU's with one thread");
    restore(c, &before);
    drop(&before);
    drop(&here);
}
