/*
 * op_case.c - operands with guards around them, one run, and their copies for the reference
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

enum { ALIGNMENT = 64, GAP_COLS = 3, POISON = 0xff };

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
    case DTYPE_U8:
        return ((const uint8_t *)t->data)[i];
    case DTYPE_I16:
        return ((const int16_t *)t->data)[i];
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
    case DTYPE_U8:
        ((uint8_t *)t->data)[i] = (uint8_t)value;
        break;
    case DTYPE_I16:
        ((int16_t *)t->data)[i] = (int16_t)value;
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

/* All bytes OP_CASE_GUARD, then the elements from `fill`. */
static struct tensor guarded(const struct op_case *c, int64_t rows, int64_t cols, enum dtype dtype,
                             size_t *n_bytes)
{
    struct tensor t = { .rows = rows, .cols = cols, .stride = cols, .dtype = dtype };
    unsigned char *memory;

    if (rows > 1 && cols > 1 && !c->dense)
        t.stride += c->gap ? c->gap : GAP_COLS;
    *n_bytes = align_up((size_t)(rows * t.stride) * dtype_bytes(dtype), ALIGNMENT) +
               2 * OP_CASE_GUARD_BYTES;
    memory = aligned_alloc(ALIGNMENT, *n_bytes + ALIGNMENT);
    assert_non_null(memory);
    memset(memory, OP_CASE_GUARD, *n_bytes + ALIGNMENT);
    t.data = memory + OP_CASE_GUARD_BYTES + c->skew;
    return t;
}

/* Where its memory begins, the same distance before the elements' multiple of ALIGNMENT. */
static unsigned char *memory_of(const struct tensor *t)
{
    return (unsigned char *)t->data - (uintptr_t)t->data % ALIGNMENT - OP_CASE_GUARD_BYTES;
}

static void fill_bytes(const struct tensor *t, int byte)
{
    for (int64_t row = 0; row < t->rows; row++)
        memset((char *)t->data + (size_t)(row * t->stride) * dtype_bytes(t->dtype), byte,
               (size_t)t->cols * dtype_bytes(t->dtype));
}

void op_case_fill(const struct tensor *t, uint64_t place, double scale)
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

static bool is_integer(enum dtype dtype)
{
    return dtype == DTYPE_U8 || dtype == DTYPE_I16 || dtype == DTYPE_I32 || dtype == DTYPE_I64;
}

void op_case_input(struct op_case *c, int i, int64_t rows, int64_t cols, enum dtype dtype,
                   double scale)
{
    c->op.in[i] = guarded(c, rows, cols, dtype, &c->in_bytes[i]);
    if (is_integer(dtype) || scale == 0)
        fill_bytes(&c->op.in[i], 0);
    else
        op_case_fill(&c->op.in[i], place_of(c->op.kind) + (uint64_t)i, scale);
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

void op_case_attention_sizes(struct op_case *c, int64_t rows, int64_t key_rows, enum dtype act,
                             int value_dim)
{
    const struct op_attributes *a = &c->op.attributes;
    int64_t out_cols = (int64_t)a->n_heads * value_dim;
    const int64_t cols[] = { (int64_t)a->n_heads * a->head_dim,
                             (int64_t)a->n_kv_heads * a->head_dim,
                             (int64_t)a->n_kv_heads * value_dim };
    bool is_grad = c->op.kind == OP_ATTENTION_GRAD;

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
    op_case_attention_sizes(c, rows, rows, act, value_dim);
}

void op_case_attention_keys(struct op_case *c, int64_t rows, int64_t key_rows, enum dtype act)
{
    op_case_attention_sizes(c, rows, key_rows, act, c->op.attributes.head_dim);
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

void op_case_run(struct op_case *c, int n_threads, enum run_turn turn)
{
    struct test_extent in[OPS_MAX_INPUTS], out[OPS_MAX_OUTPUTS];

    for (int i = 0; turn == RUN_FIRST && i < OPS_MAX_OUTPUTS; i++)
        if (tensor_given(&c->op.out[i]))
            fill_bytes(&c->op.out[i], POISON);
    for (int i = 0; i < OPS_MAX_INPUTS; i++)
        in[i] = extent_of(&c->op.in[i], c->in_bytes[i]);
    for (int i = 0; i < OPS_MAX_OUTPUTS; i++)
        out[i] = extent_of(&c->op.out[i], c->out_bytes[i]);
    test_device_run(&c->op, in, out, n_threads, turn == RUN_FIRST);
}

void op_case_run_on_cpu(struct op_case *c, enum run_turn turn)
{
    char *kept = test_set_aside("LMTRAIN_TEST_DEVICE", "cpu");

    op_case_run(c, 1, turn);
    test_put_back("LMTRAIN_TEST_DEVICE", kept);
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

/* ---- contents ---- */

void op_case_copy(const struct tensor *to, const struct tensor *from)
{
    for (int64_t row = 0; row < to->rows; row++)
        for (int64_t col = 0; col < to->cols; col++)
            tensor_set(to, row, col, tensor_get(from, row, col));
}

struct tensor op_case_keep(const struct tensor *t)
{
    struct tensor kept = *t;

    kept.stride = t->cols;
    kept.data = malloc((size_t)tensor_elements(t) * dtype_bytes(t->dtype));
    assert_non_null(kept.data);
    op_case_copy(&kept, t);
    return kept;
}

void op_case_fill_saved(struct op_case *grad, struct op_case *forward)
{
    struct op_shape reference = { 0 };

    for (int i = 0; i < 3; i++)
        op_case_copy(&forward->op.in[i], &grad->op.in[1 + i]);
    op_case_to_reference(forward, &reference);
    reference_run(&reference, RUN_FIRST);
    op_case_copy(&grad->op.in[4], &reference.out[0]);
    op_case_copy(&grad->op.in[5], &reference.out[1]);
    reference_release(&reference);
    op_case_destroy(forward);
}
