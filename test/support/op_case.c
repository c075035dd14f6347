/*
 * op_case.c - see the header
 */
#include "support/op_case.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "base/rng.h"
#include "support/op_facts.h"
#include "support/test_device.h"

enum { GUARD_BYTES = 64, ALIGNMENT = 64, GAP_COLS = 3, GUARD = 0xa5, POISON = 0xff };

double tensor_get(const struct tensor *t, int64_t row, int64_t col)
{
    int64_t i = row * t->stride + col;

    switch (t->dtype) {
    case DTYPE_F32:
        return ((const float *)t->data)[i];
    case DTYPE_BF16:
        return bf16_to_float(((const uint16_t *)t->data)[i]);
    case DTYPE_F16:
        return fp16_to_float(((const uint16_t *)t->data)[i]);
    case DTYPE_F64:
        return ((const double *)t->data)[i];
    case DTYPE_I32:
        return ((const int32_t *)t->data)[i];
    case DTYPE_I64:
        return (double)((const int64_t *)t->data)[i];
    default:
        fail_msg("dtype %d", (int)t->dtype);
        return 0;
    }
}

void tensor_set(const struct tensor *t, int64_t row, int64_t col, double value)
{
    int64_t i = row * t->stride + col;

    switch (t->dtype) {
    case DTYPE_F32:
        ((float *)t->data)[i] = (float)value;
        break;
    case DTYPE_BF16:
        ((uint16_t *)t->data)[i] = bf16_from_float((float)value);
        break;
    case DTYPE_F16:
        ((uint16_t *)t->data)[i] = fp16_from_float((float)value);
        break;
    case DTYPE_F64:
        ((double *)t->data)[i] = value;
        break;
    case DTYPE_I32:
        ((int32_t *)t->data)[i] = (int32_t)value;
        break;
    case DTYPE_I64:
        ((int64_t *)t->data)[i] = (int64_t)value;
        break;
    default:
        fail_msg("dtype %d", (int)t->dtype);
    }
}

struct op_case *op_case_create(enum op_kind kind, const struct op_attributes *attributes)
{
    struct op_case *c = calloc(1, sizeof *c);

    assert_non_null(c);
    c->op.kind = kind;
    c->op.attributes = *attributes;
    return c;
}

/* All bytes GUARD, then the elements from `fill`. */
static struct tensor guarded(const struct op_case *c, int64_t rows, int64_t cols, enum dtype dtype,
                             size_t *n_bytes)
{
    struct tensor t = { .rows = rows, .cols = cols, .stride = cols, .dtype = dtype };
    unsigned char *memory;

    if (rows > 1 && cols > 1 && !c->dense)
        t.stride += c->gap ? c->gap : GAP_COLS;
    *n_bytes =
        align_up((size_t)(rows * t.stride) * dtype_bytes(dtype), ALIGNMENT) + 2 * GUARD_BYTES;
    memory = aligned_alloc(ALIGNMENT, *n_bytes + ALIGNMENT);
    assert_non_null(memory);
    memset(memory, GUARD, *n_bytes + ALIGNMENT);
    t.data = memory + GUARD_BYTES + c->skew;
    return t;
}

/* Where its memory begins, the same distance before the elements' multiple of ALIGNMENT. */
static unsigned char *memory_of(const struct tensor *t)
{
    return (unsigned char *)t->data - (uintptr_t)t->data % ALIGNMENT - GUARD_BYTES;
}

static void fill_bytes(const struct tensor *t, int byte)
{
    for (int64_t row = 0; row < t->rows; row++)
        memset((char *)t->data + (size_t)(row * t->stride) * dtype_bytes(t->dtype), byte,
               (size_t)t->cols * dtype_bytes(t->dtype));
}

static void fill_random(const struct tensor *t, uint64_t place, double scale)
{
    for (int64_t row = 0; row < t->rows; row++)
        for (int64_t col = 0; col < t->cols; col++) {
            struct rng_block b = rng_at(1, RNG_TEST, place, (uint64_t)(row * t->cols + col));

            tensor_set(t, row, col, scale * (double)rng_normal(b.word[0], b.word[1]));
        }
}

/* By its name: a kind's number changes as others come. */
static uint64_t place_of(enum op_kind kind)
{
    uint64_t place = 0;

    for (const char *c = op_info(kind)->name; *c; c++)
        place = place * 31 + (unsigned char)*c;
    return place * 16;
}

static int is_integer(enum dtype dtype)
{
    return dtype == DTYPE_I32 || dtype == DTYPE_I64;
}

void op_case_input(struct op_case *c, int i, int64_t rows, int64_t cols, enum dtype dtype,
                   double scale)
{
    c->op.in[i] = guarded(c, rows, cols, dtype, &c->in_bytes[i]);
    if (is_integer(dtype))
        fill_bytes(&c->op.in[i], 0);
    else
        fill_random(&c->op.in[i], place_of(c->op.kind) + (uint64_t)i, scale);
}

void op_case_output(struct op_case *c, int i, int64_t rows, int64_t cols, enum dtype dtype)
{
    c->op.out[i] = guarded(c, rows, cols, dtype, &c->out_bytes[i]);
    fill_bytes(&c->op.out[i], POISON);
}

void op_case_attention(struct op_case *c, int64_t rows, enum dtype act)
{
    op_case_attention_values(c, rows, act, c->op.attributes.head_dim);
}

static void attention_operands(struct op_case *c, int64_t rows, int64_t key_rows, enum dtype act,
                               int value_dim)
{
    const struct op_attributes *a = &c->op.attributes;
    int64_t out_cols = (int64_t)a->n_heads * value_dim;
    const int64_t cols[] = { (int64_t)a->n_heads * a->head_dim,
                             (int64_t)a->n_kv_heads * a->head_dim,
                             (int64_t)a->n_kv_heads * value_dim };
    int is_grad = c->op.kind == OP_ATTENTION_GRAD;

    for (int i = 0; i < 3; i++) {
        int64_t n = i ? key_rows : rows;

        op_case_input(c, is_grad + i, n, cols[i], act, 1);
        if (is_grad)
            op_case_output(c, i, n, cols[i], act);
    }
    if (is_grad) {
        op_case_input(c, 0, rows, out_cols, act, 1);
        op_case_input(c, 4, rows, out_cols, act, 1);
        op_case_input(c, 5, rows, a->n_heads, DTYPE_F32, 1);
        return;
    }
    op_case_output(c, 0, rows, out_cols, act);
    if (c->op.kind == OP_ATTENTION)
        op_case_output(c, 1, rows, a->n_heads, DTYPE_F32);
}

void op_case_attention_values(struct op_case *c, int64_t rows, enum dtype act, int value_dim)
{
    attention_operands(c, rows, rows, act, value_dim);
}

void op_case_attention_keys(struct op_case *c, int64_t rows, int64_t key_rows, enum dtype act)
{
    attention_operands(c, rows, key_rows, act, c->op.attributes.head_dim);
}

static void free_guarded(const struct tensor *t)
{
    if (tensor_given(t))
        free(memory_of(t));
}

void op_case_destroy(struct op_case *c)
{
    for (int i = 0; i < OPS_MAX_INPUTS; i++)
        free_guarded(&c->op.in[i]);
    for (int i = 0; i < OPS_MAX_OUTPUTS; i++)
        free_guarded(&c->op.out[i]);
    free(c);
}

/* ---- running ---- */

static struct test_extent extent_of(const struct tensor *t, size_t n_bytes)
{
    struct test_extent extent = { NULL, n_bytes };

    if (tensor_given(t))
        extent.begin = memory_of(t);
    return extent;
}

void op_case_run(struct op_case *c, int n_threads, int first)
{
    struct test_extent in[OPS_MAX_INPUTS], out[OPS_MAX_OUTPUTS];

    for (int i = 0; first && i < OPS_MAX_OUTPUTS; i++)
        if (tensor_given(&c->op.out[i]))
            fill_bytes(&c->op.out[i], POISON);
    for (int i = 0; i < OPS_MAX_INPUTS; i++)
        in[i] = extent_of(&c->op.in[i], c->in_bytes[i]);
    for (int i = 0; i < OPS_MAX_OUTPUTS; i++)
        out[i] = extent_of(&c->op.out[i], c->out_bytes[i]);
    test_device_run(&c->op, in, out, n_threads, first);
}

static void to_double(const struct tensor *t, struct tensor *out)
{
    *out = *t;
    if (!tensor_given(t))
        return;
    out->stride = t->cols;
    if (!is_integer(t->dtype))
        out->dtype = DTYPE_F64;
    out->data = calloc((size_t)tensor_elements(t), dtype_bytes(out->dtype));
    assert_non_null(out->data);
    for (int64_t row = 0; row < t->rows; row++)
        for (int64_t col = 0; col < t->cols; col++)
            tensor_set(out, row, col, tensor_get(t, row, col));
}

void op_case_to_reference(const struct op_case *c, struct op_shape *reference)
{
    reference->kind = c->op.kind;
    reference->attributes = c->op.attributes;
    for (int i = 0; i < OPS_MAX_INPUTS; i++)
        to_double(&c->op.in[i], &reference->in[i]);
    for (int i = 0; i < OPS_MAX_OUTPUTS; i++)
        to_double(&c->op.out[i], &reference->out[i]);
}

void reference_release(struct op_shape *reference)
{
    for (int i = 0; i < OPS_MAX_INPUTS; i++)
        free(reference->in[i].data);
    for (int i = 0; i < OPS_MAX_OUTPUTS; i++)
        free(reference->out[i].data);
}

/* ---- comparing ---- */

static void check_guards(const char *name, const struct tensor *t, size_t n_bytes)
{
    size_t element = dtype_bytes(t->dtype), stride = (size_t)t->stride * element;
    size_t row_bytes = (size_t)t->cols * element, end = stride * (size_t)t->rows;
    const unsigned char *data = t->data, *memory = data - GUARD_BYTES;

    for (size_t i = 0; i < n_bytes; i++) {
        size_t at = i - GUARD_BYTES;
        int inside = i >= GUARD_BYTES && at < end && at % stride < row_bytes;

        if (!inside && memory[i] != GUARD)
            fail_msg("%s: byte %ld from its start was overwritten", name, (long)i - GUARD_BYTES);
    }
}

static double largest(const struct tensor *t)
{
    double top = 0;

    for (int64_t row = 0; row < t->rows; row++)
        for (int64_t col = 0; col < t->cols; col++)
            top = fmax(top, fabs(tensor_get(t, row, col)));
    return top;
}

/* Gradients of q, k and v are made of the same numbers: dq and dk may be all but 0 beside dv. */
static double scale_of(enum op_kind kind, const struct tensor *wanted, const struct op_shape *all)
{
    double top = largest(wanted);

    for (int i = 0; i < 3 && kind == OP_ATTENTION_GRAD; i++)
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

            if (!(fabs(a - b) <= limit) && !(isinf(b) && a == b))
                fail_msg("%s: %s[%lld, %lld] is %.9g, reference %.9g, limit %.3g",
                         op_info(c->op.kind)->name, operand->name, (long long)row, (long long)col,
                         a, b, limit);
        }
}

static unsigned char *copy_of(const struct tensor *t, size_t n_bytes)
{
    unsigned char *copy = malloc(n_bytes);

    assert_non_null(copy);
    memcpy(copy, (const char *)t->data - GUARD_BYTES, n_bytes);
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
            memcpy((char *)c->op.in[i].data - GUARD_BYTES, s->in[i], c->in_bytes[i]);
    for (int i = 0; i < OPS_MAX_OUTPUTS; i++)
        if (s->out[i])
            memcpy((char *)c->op.out[i].data - GUARD_BYTES, s->out[i], c->out_bytes[i]);
}

static void drop(struct snapshot *s)
{
    for (int i = 0; i < OPS_MAX_INPUTS; i++)
        free(s->in[i]);
    for (int i = 0; i < OPS_MAX_OUTPUTS; i++)
        free(s->out[i]);
}

static void same_bytes(const struct op_case *c, const char *operand, const struct tensor *t,
                       const unsigned char *wanted, size_t n_bytes, const char *what)
{
    if (memcmp((const char *)t->data - GUARD_BYTES, wanted, n_bytes))
        fail_msg("%s: %s %s", op_info(c->op.kind)->name, operand, what);
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
static int isas_agree(const struct op_shape *op)
{
    switch (op->kind) {
    case OP_LINEAR:
    case OP_LINEAR_DX:
    case OP_LINEAR_DW:
    case OP_LORA:
    case OP_EXPERT_LINEAR:
    case OP_EXPERT_LINEAR_DX:
    case OP_EXPERT_LINEAR_DW:
    case OP_HEAD_CROSS_ENTROPY:
    case OP_HEAD_LOSS:
        return 0;
    case OP_ATTENTION:
    case OP_ATTENTION_GRAD:
    case OP_ATTENTION_CACHED:
        return op->in[0].dtype != DTYPE_BF16;
    default:
        return 1;
    }
}

/* Set the variable; returns what it was, for put_back. */
static char *set_aside(const char *name, const char *value)
{
    const char *was = getenv(name);
    char *kept = was ? strdup(was) : NULL;

    setenv(name, value, 1);
    return kept;
}

static void put_back(const char *name, char *kept)
{
    if (kept)
        setenv(name, kept, 1);
    else
        unsetenv(name);
    free(kept);
}

/* Lesser instruction sets than the one of before -> after. */
static void check_isas(struct op_case *c, int first, const struct snapshot *before,
                       const struct snapshot *after, const struct op_shape *reference,
                       double tolerance)
{
    static const char *const isas[] = { "plain", "avx2", "avx512" };
    char *kept = set_aside("LMTRAIN_CPU_ISA", isas[0]);

    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        restore(c, before);
        setenv("LMTRAIN_CPU_ISA", isas[i], 1);
        op_case_run(c, 2, first);
        if (isas_agree(&c->op))
            check_same(c, after, "depends on the instruction set");
        else
            check_results(c, before, reference, tolerance);
    }
    put_back("LMTRAIN_CPU_ISA", kept);
}

static void check_threads(struct op_case *c, int first, const struct snapshot *before,
                          const struct snapshot *after)
{
    static const int more_threads[] = { 2, 3, 7 };

    for (size_t n = 0; n < sizeof more_threads / sizeof *more_threads; n++) {
        restore(c, before);
        op_case_run(c, more_threads[n], first);
        check_same(c, after, "depends on the number of threads");
    }
}

/* Emulated GPUs run threads and blocks in any order and let copies land when they like: here by
 * turns in two other ways than usual; a real one does what it does. */
static void check_order(struct op_case *c, int first, const struct snapshot *before,
                        const struct snapshot *after)
{
    static int turn;
    char *order = set_aside("LMTRAIN_EMULATE_ORDER", turn++ % 2 ? "backward" : "7");
    char *blocks = set_aside("LMTRAIN_EMULATE_BLOCKS", "reverse");
    char *async = set_aside("LMTRAIN_EMULATE_ASYNC", "early");

    restore(c, before);
    op_case_run(c, 1, first);
    put_back("LMTRAIN_EMULATE_ORDER", order);
    put_back("LMTRAIN_EMULATE_BLOCKS", blocks);
    put_back("LMTRAIN_EMULATE_ASYNC", async);
    check_same(c, after, "depends on the order of threads or blocks, or on when copies land");
}

static void check_from(struct op_case *c, int first, double tolerance)
{
    struct snapshot before, after;
    struct op_shape reference = { 0 };

    take(c, &before);
    op_case_to_reference(c, &reference);
    reference_run(&reference, first);
    op_case_run(c, 1, first);
    check_results(c, &before, &reference, tolerance);
    take(c, &after);
    if (test_device_is_cuda()) {
        check_order(c, first, &before, &after);
    } else {
        check_threads(c, first, &before, &after);
        check_isas(c, first, &before, &after, &reference, tolerance);
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
    int accumulates = 0;

    if (op_check(&c->op, &err))
        fail_msg("%s", err.text);
    for (int i = 0; i < info->n_outputs; i++)
        if (tensor_given(&c->op.out[i]) &&
            info->outputs[i].flags & (OPERAND_ACCUMULATED | OPERAND_UPDATED)) {
            accumulates = 1;
            fill_random(&c->op.out[i], 1000 + (uint64_t)i, 1);
        }
    check_from(c, 1, tolerance);
    if (accumulates)
        check_from(c, 0, tolerance);
}

void op_case_copy(const struct tensor *to, const struct tensor *from)
{
    for (int64_t row = 0; row < to->rows; row++)
        for (int64_t col = 0; col < to->cols; col++)
            tensor_set(to, row, col, tensor_get(from, row, col));
}

void op_case_fill_saved(struct op_case *grad, struct op_case *forward)
{
    struct op_shape reference = { 0 };

    for (int i = 0; i < 3; i++)
        op_case_copy(&forward->op.in[i], &grad->op.in[1 + i]);
    op_case_to_reference(forward, &reference);
    reference_run(&reference, 1);
    op_case_copy(&grad->op.in[4], &reference.out[0]);
    op_case_copy(&grad->op.in[5], &reference.out[1]);
    reference_release(&reference);
    op_case_destroy(forward);
}
