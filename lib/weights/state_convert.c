/*
 * state_convert.c - see the header
 */
#include "weights/state_convert.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/num.h"
#include "base/str.h"
#include "ops/state_codes.h"
#include "weights/rectangles.h"
#include "weights/slices.h"

static const float signed_values[] = {
#include "ops/state_codes_signed.inc"
};
static const float unsigned_values[] = {
#include "ops/state_codes_unsigned.inc"
};

/* A moment of the rank's part of a parameter. */
struct moment {
    const struct run *run;
    const struct program *program;
    const struct mesh_place *place;
    int parameter, cell, scale; /* scale: of codes here, else 0 */
    bool is_signed;
    struct parameter_part part;
    char name[256];
    int64_t n, n_blocks; /* elements, blocks */
    float *x, *scales;
    uint8_t *codes;
};

bool state_convert_wants(const struct store *store, const struct store_slice *slice)
{
    const struct store_slice *there = store_find(store, slice->name);

    if (str_ends_with(slice->name, ".scale"))
        return !there;
    return there && (there->dtype == DTYPE_U8) != (slice->dtype == DTYPE_U8);
}

/* ---- codes ---- */

static const float *values_of(const struct moment *m, int *n)
{
    *n = m->is_signed ? STATE_CODES_SIGNED : STATE_CODES_UNSIGNED;
    return m->is_signed ? signed_values : unsigned_values;
}

static float value_of(const struct moment *m, uint8_t code)
{
    int n;
    const float *values = values_of(m, &n);

    return code < n ? values[code] : -values[STATE_CODES_UNSIGNED - code];
}

/* The nearest value to a magnitude of at most 1, of two as near the smaller. */
static int nearest(const float *values, int n, float x)
{
    int low = 0, high = n - 1;

    while (low < high) {
        int middle = (low + high) / 2;

        if (x > STATE_CODES_EDGE(values[middle], values[middle + 1]))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static uint8_t code_of(const struct moment *m, float x, float top)
{
    int n;
    const float *values = values_of(m, &n);
    float share = fabsf(x) / (top > 0 ? top : 1.0f);
    int k = nearest(values, n, share <= 1.0f ? share : 1.0f);

    if (!m->is_signed)
        return (uint8_t)(k + (k == 0 && x > 0));
    return (uint8_t)(x >= 0 ? k : k < STATE_CODES_SIGNED - 1 ? -k : 2 - STATE_CODES_SIGNED);
}

static void encode(struct moment *m)
{
    for (int64_t block = 0; block < m->n_blocks; block++) {
        int64_t first = block * OPS_STATE_BLOCK, end = min_i64(first + OPS_STATE_BLOCK, m->n);
        float top = 0;

        for (int64_t i = first; i < end; i++)
            top = fabsf(m->x[i]) > top ? fabsf(m->x[i]) : top;
        m->scales[block] = top;
        for (int64_t i = first; i < end; i++)
            m->codes[i] = code_of(m, m->x[i], top);
    }
}

static void decode(struct moment *m)
{
    for (int64_t i = 0; i < m->n; i++)
        m->x[i] = value_of(m, m->codes[i]) * m->scales[i / OPS_STATE_BLOCK];
}

/* ---- a checkpoint's ---- */

/* The rank's elements, by dtype: of data. */
static int read_elements(const struct moment *m, struct store *store, enum dtype dtype, void *data,
                         struct err *err)
{
    struct store_slice slice = { .name = m->name,
                                 .dtype = dtype,
                                 .n_dims = m->program->parameters[m->parameter].n_dims };
    struct rectangle_walk walk =
        rectangle_walk(m->program, m->parameter, m->place, m->part.begin, m->part.end);
    struct tensor_rectangle r;

    rectangles_whole(m->program, m->parameter, &slice.rows, &slice.cols);
    while (rectangle_next(&walk, &r)) {
        rectangle_to_slice(&r, &slice);
        slice.stride = r.stride;
        slice.data = (char *)data + (size_t)(r.local - m->part.begin) * dtype_bytes(dtype);
        if (store_read(store, &slice, err) < 0)
            return -1;
    }
    return 0;
}

static int read_scales(const struct moment *m, struct store *store, struct err *err)
{
    const struct parameter *p = &m->program->parameters[m->parameter];
    char name[sizeof m->name + 8];
    int n_parts, number = slices_part_number(m->program, m->place, m->parameter, &n_parts);

    snprintf(name, sizeof name, "%s.scale", m->name);
    const struct store_slice *there = store_find(store, name);
    struct store_slice slice = { .name = name,
                                 .dtype = DTYPE_F32,
                                 .n_dims = 2,
                                 .rows = n_parts,
                                 .cols = ceil_div(p->rows * p->cols, OPS_STATE_BLOCK),
                                 .row_begin = number,
                                 .row_end = number + 1,
                                 .col_begin = m->part.begin / OPS_STATE_BLOCK,
                                 .col_end = ceil_div(m->part.end, OPS_STATE_BLOCK),
                                 .data = m->scales };
    if (there && there->rows != slice.rows)
        return err_set(
            err, ERR_CONFIG,
            "optimizer states are in blocks of parameters' parts, of which %.200s has "
            "%lld in the checkpoint and %lld here (hint: resume with the parallel.tp and "
            "parallel.cp that it was saved with, and change these later)",
            name, (long long)there->rows, (long long)slice.rows);
    return store_read(store, &slice, err);
}

/* ---- the run's ---- */

static void put(const struct moment *m, struct run *run, int cell, int64_t at, enum dtype dtype,
                const void *data, int64_t n)
{
    char *to = run_data(m->run, cell, 0);

    run_put_at(run, to + (size_t)at * dtype_bytes(dtype), data, (size_t)n * dtype_bytes(dtype));
}

static void put_numbers(struct moment *m, struct run *run)
{
    uint16_t *halves = (uint16_t *)(void *)m->x; /* in place: each is behind what is still read */

    if (m->program->values[m->cell].dtype == DTYPE_F32) {
        put(m, run, m->cell, m->part.offset, DTYPE_F32, m->x, m->n);
        return;
    }
    for (int64_t i = 0; i < m->n; i++) {
        float x = m->x[i];

        halves[i] = bf16_from_float(x);
    }
    put(m, run, m->cell, m->part.offset, DTYPE_BF16, halves, m->n);
}

static int convert(struct moment *m, struct run *run, struct store *store, struct err *err)
{
    if (m->scale) {
        if (read_elements(m, store, DTYPE_F32, m->x, err) < 0)
            return -1;
        encode(m);
        put(m, run, m->cell, m->part.offset, DTYPE_U8, m->codes, m->n);
        put(m, run, m->scale, m->part.offset / OPS_STATE_BLOCK, DTYPE_F32, m->scales, m->n_blocks);
        return 0;
    }
    if (read_elements(m, store, DTYPE_U8, m->codes, err) < 0 || read_scales(m, store, err) < 0)
        return -1;
    decode(m);
    put_numbers(m, run);
    return 0;
}

static int convert_moment(struct moment *m, struct run *run, struct store *store, struct err *err)
{
    int status = -1;

    m->x = calloc((size_t)m->n, sizeof *m->x);
    m->codes = calloc((size_t)m->n, 1);
    m->scales = calloc((size_t)m->n_blocks, sizeof *m->scales);
    if (m->x && m->codes && m->scales)
        status = convert(m, run, store, err);
    else
        err_set(err, ERR_DEVICE, "out of host memory");
    free(m->x);
    free(m->codes);
    free(m->scales);
    return status;
}

int state_convert(struct run *run, const struct program *program, const struct mesh_place *place,
                  struct store *store, struct err *err)
{
    int n = 0;

    for (int i = 0; i < program->n_parameters; i++) {
        struct parameter_part part = program_parameter_part(program, i, place);
        const int cells[] = { part.moment1, part.moment2 },
                  scales[] = { part.m_scale, part.v_scale };

        for (int k = 0; k < 2 && part.begin < part.end; k++) {
            struct moment m = { .run = run,
                                .program = program,
                                .place = place,
                                .parameter = i,
                                .cell = cells[k],
                                .is_signed = k == 0,
                                .part = part,
                                .n = part.end - part.begin };

            snprintf(m.name, sizeof m.name, "%s.%c", program->parameters[i].name, "mv"[k]);
            const struct store_slice *there = cells[k] ? store_find(store, m.name) : NULL;
            bool is_coded = cells[k] && program->values[cells[k]].dtype == DTYPE_U8;
            if (!there || (there->dtype == DTYPE_U8) == is_coded)
                continue;
            m.scale = is_coded ? scales[k] : 0;
            m.n_blocks = ceil_div(m.n, OPS_STATE_BLOCK);
            if (convert_moment(&m, run, store, err) < 0)
                return -1;
            n++;
        }
    }
    return n;
}
