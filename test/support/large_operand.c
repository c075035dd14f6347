/*
 * large_operand.c - see the header
 */
#include "support/large_operand.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "base/rng.h"
#include "support/op_case.h"

static float *table;
static int64_t n_table;

/* As bf16 has them, so that every dtype but fp16 holds them times a power of two exactly. */
void large_make_table(int64_t n)
{
    table = malloc(sizeof *table * (size_t)n);
    CHECK(table);
    n_table = n;
    for (int64_t i = 0; i < n; i++) {
        struct rng_block b = rng_at(1, RNG_TEST, 99, (uint64_t)i);

        table[i] = bf16_to_float(bf16_from_float(rng_normal(b.word[0], b.word[1])));
    }
}

static double from_table(const struct large_input *in, int64_t i)
{
    double x = in->scale * (double)table[(i + in->offset) % n_table];

    return in->is_positive ? fabs(x) : x;
}

void large_input_row(const struct large_case *c, int input, int64_t row, int64_t col, int64_t n,
                     double *out)
{
    const struct large_input *in = &c->in[input];
    int64_t at = row * c->op.in[input].stride + col;

    for (int64_t i = 0; i < n; i++)
        out[i] = in->host.data ? tensor_get(&in->host, row, col + i) : from_table(in, at + i);
}

struct tensor large_part(const struct large_case *c, int input, const struct large_picks *rows,
                         const struct large_picks *cols)
{
    const struct tensor *t = &c->op.in[input];
    int is_integer = t->dtype == DTYPE_I32 || t->dtype == DTYPE_I64;
    struct tensor part = { .rows = n_picked(rows, t->rows),
                           .cols = n_picked(cols, t->cols),
                           .dtype = is_integer ? t->dtype : DTYPE_F64 };

    if (!tensor_given(t))
        return (struct tensor){ 0 };
    part.stride = part.cols;
    part.data = malloc(tensor_bytes(&part));
    CHECK(part.data);
    for (int64_t row = 0; row < part.rows; row++)
        for (int64_t col = 0; col < part.cols; col++) {
            double x;

            large_input_row(c, input, pick(rows, row), pick(cols, col), 1, &x);
            tensor_set(&part, row, col, x);
        }
    return part;
}

/* ---- operands ---- */

static uint64_t random_at(uint64_t place, int64_t i)
{
    return rng_at(1, RNG_TEST, place, (uint64_t)i).word[0];
}

/* A token of 16 is the same one, so that some rows of a gradient are long sums. */
static int64_t random_token(int64_t i, int64_t n)
{
    return random_at(1, i) % 16 ? (int64_t)(random_at(2, i) % (uint64_t)n) : n / 3;
}

/* Few are learned: so the gradient of a head's weights is a sum over tokens that can be redone. */
static int64_t sparse_target(int64_t i, int64_t n_rows, int64_t n_vocab)
{
    int64_t every = max_i64(1, n_rows / 8);

    return i % every == every / 2 ? random_token(i, n_vocab) : -1;
}

static double scalar_at(int64_t i)
{
    static const double scalars[OPS_N_SCALARS] = {
        [SCALAR_LR] = 0x1p-7, [SCALAR_BIAS1] = 0.5, [SCALAR_BIAS2] = 0.5, [SCALAR_UPDATE] = 3
    };

    return scalars[i];
}

/* What is no random number: integers, and the host's scalars. */
static int has_own_content(const struct tensor *t, const char *name)
{
    return t->dtype == DTYPE_I32 || t->dtype == DTYPE_I64 || !strcmp(name, "scalars") ||
           !strcmp(name, "scale") || !strcmp(name, "clip_factor");
}

static double content_at(const struct large_case *c, const char *name, int64_t i)
{
    const struct op_shape *op = &c->op;

    if (!strcmp(name, "position"))
        return (double)(i % op->in[2].rows);
    if (!strcmp(name, "index"))
        return (double)random_token(i, op->kind == OP_EMBED ? op->in[1].rows : op->out[0].rows);
    if (!strcmp(name, "target"))
        return (double)sparse_target(i, op->in[0].rows, op->in[1].rows);
    if (!strcmp(name, "scalars"))
        return scalar_at(i);
    return !strcmp(name, "scale") ? 1 : !strcmp(name, "clip_factor") ? 0.5 : 0;
}

/* Products of random numbers come out near 1, squares' roots and what is divided by are
 * positive. */
static void choose_numbers(struct large_case *c, int i)
{
    const char *name = op_info(c->op.kind)->inputs[i].name;
    const struct tensor *t = &c->op.in[i];
    struct large_input *in = &c->in[i];
    int is_weight = !strcmp(name, "w") && t->rows > 1;
    int64_t n_terms = c->op.kind == OP_LINEAR_DX ? t->rows : t->cols;

    in->offset = (int64_t)(random_at(3, i) % (uint64_t)n_table);
    in->scale = is_weight ? exp2(-round(log2((double)n_terms) / 2)) : 1;
    in->is_positive = !strcmp(name, "rstd") || !strcmp(name, "v") || !strcmp(name, "sums");
}

static void write_host(struct large_case *c, int i, const void *content)
{
    struct tensor *host = &c->in[i].host;
    const char *name = op_info(c->op.kind)->inputs[i].name;

    *host = c->op.in[i];
    host->stride = host->cols;
    host->data = malloc(tensor_bytes(host));
    CHECK(host->data);
    if (content) {
        memcpy(host->data, content, tensor_bytes(host));
        return;
    }
    for (int64_t row = 0; row < host->rows; row++)
        for (int64_t col = 0; col < host->cols; col++)
            tensor_set(host, row, col, content_at(c, name, row * host->cols + col));
}

/* All of the table, as it is from the operand's first element on. */
static void write_table(const struct large_input *in, const struct tensor *flat)
{
    for (int64_t k = 0, i = in->offset; k < n_table; k++, i = i + 1 < n_table ? i + 1 : 0) {
        float x = (float)in->scale * table[i];

        x = in->is_positive ? fabsf(x) : x;
        if (flat->dtype == DTYPE_F32)
            ((float *)flat->data)[k] = x;
        else if (flat->dtype == DTYPE_BF16)
            ((uint16_t *)flat->data)[k] = bf16_from_float(x);
        else
            tensor_set(flat, 0, k, (double)x);
    }
}

/* The table once from the host, then what there is again and again. */
static void fill_from_table(struct large_case *c, int i)
{
    struct device *device = device_of(c);
    struct tensor flat = c->op.in[i];
    unsigned char *to = flat.data;
    size_t n_bytes = tensor_bytes(&flat), done;

    flat = (struct tensor){ .rows = 1, .cols = n_table, .stride = n_table, .dtype = flat.dtype };
    done = tensor_bytes(&flat);
    flat.data = malloc(done);
    CHECK(flat.data);
    write_table(&c->in[i], &flat);
    done = done < n_bytes ? done : n_bytes;
    device->ops->copy(device, DEVICE_COMPUTE, to, flat.data, done);
    for (; done < n_bytes; done *= 2)
        device->ops->copy(device, DEVICE_COMPUTE, to + done, to,
                          done < n_bytes - done ? done : n_bytes - done);
    free(flat.data);
}

void large_fill(struct large_case *c, int i)
{
    struct device *device = device_of(c);
    const struct tensor *t = &c->op.in[i], *host = &c->in[i].host;

    if (!host->data)
        fill_from_table(c, i);
    else
        for (int64_t row = 0; row < (t->stride == t->cols ? 1 : t->rows); row++)
            device->ops->copy(device, DEVICE_COMPUTE,
                              (char *)t->data + (size_t)(row * t->stride) * dtype_bytes(t->dtype),
                              (char *)host->data + (size_t)(row * t->cols) * dtype_bytes(t->dtype),
                              t->stride == t->cols ? tensor_bytes(host)
                                                   : (size_t)t->cols * dtype_bytes(t->dtype));
}

void large_make(struct large_case *c, int i)
{
    choose_numbers(c, i);
    if (c->item->content[i] || has_own_content(&c->op.in[i], op_info(c->op.kind)->inputs[i].name))
        write_host(c, i, c->item->content[i]);
    large_fill(c, i);
}

int large_allocate(struct large_case *c, struct tensor *t, struct err *err)
{
    struct device *device = device_of(c);
    size_t n_bytes = tensor_bytes(t);
    void *memory;

    if (!tensor_given(t))
        return 0;
    if (device->ops->allocate(device, n_bytes + GUARD_BYTES, &memory, err) < 0)
        return -1;
    t->data = memory;
    device->ops->fill(device, DEVICE_COMPUTE, (char *)t->data + n_bytes, GUARD, GUARD_BYTES);
    return 0;
}

void large_release(struct large_case *c, struct tensor *t)
{
    if (t->data)
        device_of(c)->ops->release(device_of(c), t->data);
    t->data = NULL;
}

void *large_fetch(const struct large_case *c, const struct tensor *t)
{
    void *to = malloc(tensor_bytes(t));

    CHECK(to);
    CHECK(t->stride == t->cols);
    device_of(c)->ops->copy(device_of(c), DEVICE_COMPUTE, to, t->data, tensor_bytes(t));
    return to;
}
