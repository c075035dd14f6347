/*
 * large_case.c - see the header
 */
#include "support/large_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/num.h"
#include "base/str.h"
#include "support/acts.h"
#include "support/large_operand.h"
#include "support/op_case.h"

enum { POISON = 0xff, TIMED_RUNS = 3 };

/* ---- running ---- */

static int wait_for(struct large_case *c, struct err *err)
{
    return device_of(c)->ops->wait(device_of(c), DEVICE_COMPUTE, err);
}

static int run_once(struct large_case *c, struct device_event *events[2], struct err *err)
{
    struct device *device = device_of(c);
    const struct op_info *info = op_info(c->op.kind);

    for (int i = 0; i < info->n_inputs; i++)
        if (tensor_given(&c->op.in[i]) && info->inputs[i].flags & OPERAND_UPDATED)
            large_fill(c, i);
    for (int i = 0; i < info->n_outputs; i++)
        if (tensor_given(&c->op.out[i]))
            device->ops->fill(device, DEVICE_COMPUTE, c->op.out[i].data, POISON,
                              tensor_bytes(&c->op.out[i]));
    if (wait_for(c, err) < 0)
        return -1;
    if (events[0])
        device->ops->event_record(device, DEVICE_COMPUTE, events[0]);
    double begin = clock_seconds();
    kernels_run(c->kernels, &c->call, KERNELS_FIRST);
    if (events[0])
        device->ops->event_record(device, DEVICE_COMPUTE, events[1]);
    if (wait_for(c, err) < 0)
        return -1;
    double took =
        events[0] ? device->ops->seconds(device, events[0], events[1]) : clock_seconds() - begin;
    c->seconds = c->seconds == 0 || took < c->seconds ? took : c->seconds;
    return 0;
}

/* ---- every element ---- */

/* Sums of squares of the tensor's blocks, in host memory, or its elements where it is none of fp32
 * or bf16; NULL: the device failed. */
static double *digest(struct large_case *c, const struct tensor *t, int64_t *n, struct err *err)
{
    struct large_case sums = { .kernels = c->kernels, .op = { .kind = OP_SUMSQ } };
    int is_summed = t->dtype == DTYPE_F32 || t->dtype == DTYPE_BF16;
    double *result = NULL;

    *n = (int64_t)(tensor_bytes(t) + sizeof *result - 1) / (int64_t)sizeof *result;
    if (!is_summed) {
        result = calloc((size_t)*n, sizeof *result);
        CHECK(result);
        device_of(c)->ops->copy(device_of(c), DEVICE_COMPUTE, result, t->data, tensor_bytes(t));
        return wait_for(c, err) < 0 ? NULL : result;
    }
    *n = ceil_div(t->rows * t->stride, OPS_NORM_BLOCK);
    sums.op.in[0] = *t;
    sums.op.in[0].cols = sums.op.in[0].stride = t->rows * t->stride;
    sums.op.in[0].rows = 1;
    sums.op.out[0] = (struct tensor){ .rows = 1, .cols = *n, .stride = *n, .dtype = DTYPE_F64 };
    if (large_allocate(&sums, &sums.op.out[0], err) < 0)
        return NULL;
    sums.call.op = sums.op;
    if (kernels_prepare(c->kernels, &sums.call, err) == 0) {
        kernels_run(c->kernels, &sums.call, KERNELS_FIRST);
        result = wait_for(c, err) < 0 ? NULL : large_fetch(&sums, &sums.op.out[0]);
        kernels_release(c->kernels, &sums.call);
    }
    large_release(&sums, &sums.op.out[0]);
    return result;
}

/* Of what the op writes, one after the other: n digests of sizes. */
#define DIGESTS (OPS_MAX_INPUTS + OPS_MAX_OUTPUTS)
struct digests {
    double *at[DIGESTS];
    int64_t n[DIGESTS];
    const struct tensor *of[DIGESTS];
};

static int make_digests(struct large_case *c, struct digests *d, struct err *err)
{
    const struct op_info *info = op_info(c->op.kind);

    *d = (struct digests){ .n = { 0 } };
    for (int i = 0; i < info->n_inputs; i++)
        if (info->inputs[i].flags & OPERAND_UPDATED && tensor_given(&c->op.in[i]))
            d->of[i] = &c->op.in[i];
    for (int i = 0; i < info->n_outputs; i++)
        if (tensor_given(&c->op.out[i]))
            d->of[OPS_MAX_INPUTS + i] = &c->op.out[i];
    for (int i = 0; i < DIGESTS; i++)
        if (d->of[i] && !(d->at[i] = digest(c, d->of[i], &d->n[i], err)))
            return -1;
    return 0;
}

static void release_digests(struct digests *d)
{
    for (int i = 0; i < DIGESTS; i++)
        free(d->at[i]);
}

static void say(struct large_case *c, const char *format, const char *name, long long a,
                long long b)
{
    if (!c->worst[0])
        snprintf(c->worst, sizeof c->worst, format, name, a, b);
}

static const char *name_of(const struct large_case *c, int digest)
{
    const struct op_info *info = op_info(c->op.kind);

    return digest < OPS_MAX_INPUTS ? info->inputs[digest].name
                                   : info->outputs[digest - OPS_MAX_INPUTS].name;
}

static void compare_digests(struct large_case *c, const struct digests *a, const struct digests *b)
{
    for (int i = 0; i < DIGESTS; i++)
        for (int64_t k = 0; a->of[i] && k < a->n[i]; k++) {
            if (memcmp(&a->at[i][k], &b->at[i][k], sizeof(double)))
                say(c, "%s: a second run has other bits in block %lld of %lld", name_of(c, i), k,
                    a->n[i]);
            if (isnan(a->at[i][k]))
                say(c, "%s: something in block %lld of %lld was not written, or is NaN",
                    name_of(c, i), k, a->n[i]);
        }
}

static void check_guard(struct large_case *c, const struct tensor *t, const char *name)
{
    unsigned char guard[GUARD_BYTES];
    struct device *device = device_of(c);

    if (!tensor_given(t))
        return;
    device->ops->copy(device, DEVICE_COMPUTE, guard, (char *)t->data + tensor_bytes(t),
                      sizeof guard);
    for (int i = 0; i < GUARD_BYTES; i++)
        if (guard[i] != GUARD)
            say(c, "%s: byte %lld behind its %lld was overwritten", name, i,
                (long long)tensor_bytes(t));
}

/* ---- a sample ---- */

static void compare_element(struct large_case *c, const char *name, int64_t row, int64_t col,
                            double got, double wanted, double limit)
{
    c->n_samples++;
    c->error2 += (got - wanted) * (got - wanted);
    c->reference2 += wanted * wanted;
    if (!(fabs(got - wanted) <= limit) && !c->worst[0])
        snprintf(c->worst, sizeof c->worst, "%s[%lld, %lld] is %.7g, wanted %.7g within %.2g", name,
                 (long long)row, (long long)col, got, wanted, limit);
}

void large_compare(struct large_case *c, const char *name, const struct tensor *got,
                   const struct large_picks *rows, const struct large_picks *cols,
                   const struct tensor *wanted, double tolerance, int n_roundings, double slack)
{
    size_t row_bytes = (size_t)got->cols * dtype_bytes(got->dtype);
    struct tensor row = { .rows = 1, .cols = got->cols, .stride = got->cols, .dtype = got->dtype };
    double top = 0;

    row.data = malloc(row_bytes);
    CHECK(row.data);
    CHECK(wanted->rows == n_picked(rows, got->rows));
    CHECK(wanted->cols == n_picked(cols, got->cols));
    for (int64_t r = 0; r < wanted->rows; r++)
        for (int64_t k = 0; k < wanted->cols; k++)
            top = fmax(top, fabs(tensor_get(wanted, r, k)));
    for (int64_t r = 0; r < wanted->rows; r++) {
        int64_t at = pick(rows, r) * got->stride;

        device_of(c)->ops->copy(device_of(c), DEVICE_COMPUTE, row.data,
                                (char *)got->data + (size_t)at * dtype_bytes(got->dtype),
                                row_bytes);
        for (int64_t k = 0; k < wanted->cols; k++) {
            double b = tensor_get(wanted, r, k);

            compare_element(c, name, pick(rows, r), pick(cols, k),
                            tensor_get(&row, 0, pick(cols, k)), b,
                            tolerance * top + n_roundings * act_rounding(got->dtype, b) + slack);
        }
    }
    free(row.data);
}

/* ---- the whole of it ---- */

static size_t needed_bytes(const struct large_case *c)
{
    size_t n = c->scratch_bytes;

    for (int i = 0; i < OPS_MAX_INPUTS; i++)
        n += tensor_bytes(&c->op.in[i]);
    for (int i = 0; i < OPS_MAX_OUTPUTS; i++)
        n += tensor_bytes(&c->op.out[i]);
    return n;
}

static int open_case(struct large_case *c, struct err *err)
{
    const struct op_info *info = op_info(c->op.kind);
    struct tensor scratch = { .rows = 1,
                              .cols = (int64_t)c->scratch_bytes,
                              .stride = (int64_t)c->scratch_bytes,
                              .dtype = DTYPE_U8 };

    for (int i = 0; i < info->n_inputs; i++)
        if (large_allocate(c, &c->op.in[i], err) < 0)
            return -1;
    for (int i = 0; i < info->n_outputs; i++)
        if (large_allocate(c, &c->op.out[i], err) < 0)
            return -1;
    if (large_allocate(c, &scratch, err) < 0)
        return -1;
    c->call = (struct kernel_call){ .op = c->op, .scratch = scratch.data };
    return kernels_prepare(c->kernels, &c->call, err);
}

static void close_case(struct large_case *c, int is_prepared)
{
    struct tensor scratch = { .data = c->call.scratch };

    if (is_prepared)
        kernels_release(c->kernels, &c->call);
    for (int i = 0; i < OPS_MAX_INPUTS; i++) {
        large_release(c, &c->op.in[i]);
        free(c->in[i].host.data);
    }
    for (int i = 0; i < OPS_MAX_OUTPUTS; i++)
        large_release(c, &c->op.out[i]);
    large_release(c, &scratch);
}

/* A gradient's out and lse must be what the forward made of its q, k and v. */
static int fill_saved(struct large_case *c, struct err *err)
{
    struct large_item item = { .shape = { .kind = OP_ATTENTION } };
    struct large_case forward = { .item = &item, .kernels = c->kernels };
    struct device_event *none[2] = { NULL };
    int is_prepared = 0, status = -1;

    forward.op = item.shape;
    forward.op.attributes = c->op.attributes;
    for (int i = 0; i < 3; i++) {
        forward.op.in[i] = c->op.in[1 + i];
        forward.in[i] = c->in[1 + i];
    }
    forward.op.out[0] = c->op.in[4];
    forward.op.out[1] = c->op.in[5];
    forward.scratch_bytes = kernels_scratch_bytes(c->kernels, &forward.op);
    if (open_case(&forward, err) == 0) {
        is_prepared = 1;
        for (int i = 0; i < 3; i++)
            large_fill(&forward, i);
        status = run_once(&forward, none, err);
    }
    for (int i = 0; i < 2 && !status; i++) {
        c->in[4 + i].host = forward.op.out[i];
        c->in[4 + i].host.data = large_fetch(&forward, &forward.op.out[i]);
        large_fill(c, 4 + i);
    }
    for (int i = 0; i < 3; i++)
        forward.in[i].host.data = NULL;
    close_case(&forward, is_prepared);
    return status;
}

static int fill_all(struct large_case *c, struct err *err)
{
    for (int i = 0; i < op_info(c->op.kind)->n_inputs; i++)
        if (tensor_given(&c->op.in[i]))
            large_make(c, i);
    return c->op.kind == OP_ATTENTION_GRAD ? fill_saved(c, err) : 0;
}

static int measure(struct large_case *c, struct err *err)
{
    struct device *device = device_of(c);
    struct device_event *events[2] = { NULL }, *none[2] = { NULL };
    struct digests first = { .n = { 0 } }, second = { .n = { 0 } };
    const struct op_info *info = op_info(c->op.kind);
    int status = fill_all(c, err) < 0 || run_once(c, none, err) < 0 ? -1 : 0;

    if (!status)
        status = make_digests(c, &first, err);
    if (!status && large_check(c) < 0)
        snprintf(c->worst, sizeof c->worst, "there is no reference for it (large_reference.c)");
    c->seconds = 0;
    for (int i = 0; i < 2 && !status && device->ops->event_create; i++)
        status = device->ops->event_create(device, 1, &events[i], err);
    for (int i = 0; i < TIMED_RUNS && !status; i++)
        status = run_once(c, events, err);
    if (!status)
        status = make_digests(c, &second, err);
    if (!status)
        compare_digests(c, &first, &second);
    for (int i = 0; i < info->n_inputs && !status; i++)
        check_guard(c, &c->op.in[i], info->inputs[i].name);
    for (int i = 0; i < info->n_outputs && !status; i++)
        check_guard(c, &c->op.out[i], info->outputs[i].name);
    for (int i = 0; i < 2 && device->ops->event_destroy; i++)
        device->ops->event_destroy(device, events[i]);
    release_digests(&first);
    release_digests(&second);
    return status;
}

enum large_verdict large_run(const struct large_item *item, struct kernels *kernels, int *is_lost,
                             char *text, size_t size)
{
    struct large_case c = { .item = item, .op = item->shape, .kernels = kernels };
    size_t free_bytes = kernels->device->ops->memory(kernels->device).free_bytes;
    char needed[32], left[32];
    struct err err = { 0 }, ignored;

    c.scratch_bytes = kernels_scratch_bytes(kernels, &c.op);
    *is_lost = 0;
    if (free_bytes && needed_bytes(&c) > free_bytes / 8 * 7) {
        snprintf(text, size, "it takes %s, and %s are free",
                 str_bytes(needed, sizeof needed, needed_bytes(&c)),
                 str_bytes(left, sizeof left, free_bytes));
        return LARGE_SKIPPED;
    }
    int is_prepared = open_case(&c, &err) == 0;
    int status = is_prepared ? measure(&c, &err) : -1;
    *is_lost = status < 0 && kernels->device->ops->wait(kernels->device, DEVICE_COMPUTE, &ignored);
    close_case(&c, is_prepared);
    if (status < 0)
        snprintf(text, size, "%s", err.text);
    else
        snprintf(text, size, "%.3f ms, %.1f TFLOP/s, %.0f GB/s; %lld samples, error %.1e%s%s",
                 c.seconds * 1e3, op_flops(&c.op) / c.seconds * 1e-12,
                 op_bytes(&c.op) / c.seconds * 1e-9, (long long)c.n_samples,
                 sqrt(c.error2 / (c.reference2 > 0 ? c.reference2 : 1)), c.worst[0] ? ": " : "",
                 c.worst);
    /* Where cuDNN alone may do it, what it does not take is no failure. */
    if (!is_prepared && item->attention && !strcmp(item->attention, "cudnn"))
        return LARGE_SKIPPED;
    return status < 0 || c.worst[0] ? LARGE_FAILED : LARGE_OK;
}
