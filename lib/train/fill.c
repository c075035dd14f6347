/*
 * fill.c - initial parameters and constants
 */
#include "train/fill.h"

#include <string.h>

#include "base/num.h"
#include "base/rng.h"
#include "train/rectangles.h"
#include "train/rope.h"

#define FILL_BLOCK ((int64_t)1 << 14) /* elements a tile */
#define FILL_PART 1024                /* at a time, where they are rounded */

struct fill {
    const struct program *program;
    int index; /* the parameter's */
    const struct parameter *parameter;
    int tp_rank;
    uint64_t seed, name;
    int64_t whole_cols;
    int64_t begin, end; /* elements of the rank's part */
    float *data;        /* of begin */
    uint16_t *rounded;  /* or, of a frozen one that is not fp32 */
    enum dtype dtype;   /* and its dtype */
};

/* Uniform numbers: element i is word i % 4 of the block at i / 4. */
static float uniform(const struct fill *f, int64_t i)
{
    struct rng_block block = rng_at(f->seed, RNG_INIT, f->name, (uint64_t)i / 4);
    float bound = (float)f->parameter->init_std;

    return bound * (2 * rng_uniform(block.word[i % 4]) - 1);
}

/* Elements [first, first + n) of the whole parameter; normals as rng_normals numbers them. */
static void initial(const struct fill *f, int64_t first, int64_t n, float *out)
{
    const struct rng_series series = { f->seed, RNG_INIT, f->name };
    float std = (float)f->parameter->init_std;
    enum init_kind init = f->parameter->init;

    if (init == INIT_NORMAL) {
        rng_normals(out, n, &series, first);
        for (int64_t i = 0; i < n; i++)
            out[i] *= std;
        return;
    }
    for (int64_t i = 0; i < n; i++)
        out[i] = init == INIT_UNIFORM ? uniform(f, first + i) : init == INIT_ONES ? 1 : 0;
}

/* Of the program's 16-bit dtype. */
static uint16_t rounded_to(enum dtype dtype, float x)
{
    return dtype == DTYPE_F16 ? fp16_from_float(x) : bf16_from_float(x);
}

static void initial_rounded(const struct fill *f, int64_t first, int64_t n, uint16_t *out)
{
    float part[FILL_PART];

    for (int64_t at = 0; at < n; at += FILL_PART) {
        int64_t here = min_i64(n - at, FILL_PART);

        initial(f, first + at, here, part);
        for (int64_t i = 0; i < here; i++)
            out[at + i] = rounded_to(f->dtype, part[i]);
    }
}

static void fill_tile(void *context, int64_t tile, int thread)
{
    const struct fill *f = context;
    int64_t begin = f->begin + tile * FILL_BLOCK, end = min_i64(f->end, begin + FILL_BLOCK);
    struct rectangle_walk walk = rectangle_walk(f->program, f->index, f->tp_rank, begin, end);
    struct rectangle r;

    (void)thread;
    /* What no rectangle has is padding. */
    if (f->rounded)
        memset(f->rounded + begin - f->begin, 0, (size_t)(end - begin) * sizeof *f->rounded);
    else
        memset(f->data + begin - f->begin, 0, (size_t)(end - begin) * sizeof *f->data);
    while (rectangle_next(&walk, &r))
        for (int64_t row = 0; row < r.rows; row++) {
            int64_t at = r.local + row * r.stride - f->begin;
            int64_t first = (r.row + row) * f->whole_cols + r.col;

            if (f->rounded)
                initial_rounded(f, first, r.cols, f->rounded + at);
            else
                initial(f, first, r.cols, f->data + at);
        }
}

void fill_parameters(struct run *run, const struct program *program, int dp_rank, int tp_rank,
                     struct pool *pool, uint64_t seed)
{
    int64_t rows, cols;

    for (int i = 0; i < program->n_parameters; i++) {
        const struct parameter *p = &program->parameters[i];
        struct parameter_part part = program_parameter_part(program, i, dp_rank);

        int is_fp32 = program->values[part.master].dtype == DTYPE_F32;
        float *data = run_data(run, part.master, 0);
        uint16_t *rounded = run_data(run, part.master, 0);

        CHECK(is_fp32 || !p->trainable);
        run_beat(run); /* the first touch of much memory takes its time */
        rectangles_whole(program, i, &rows, &cols);
        struct fill fill = { .program = program,
                             .index = i,
                             .parameter = p,
                             .tp_rank = tp_rank,
                             .whole_cols = cols,
                             .seed = seed,
                             .name = rng_hash_name(p->name),
                             .begin = part.begin,
                             .end = part.end,
                             .dtype = program->values[part.master].dtype,
                             .data = is_fp32 ? data + part.offset : NULL,
                             .rounded = is_fp32 ? NULL : rounded + part.offset };
        pool_run(pool, ceil_div(part.end - part.begin, FILL_BLOCK), fill_tile, &fill);
    }
    fill_weights_from_masters(run, program, dp_rank, pool);
}

struct rounding {
    const float *master;
    uint16_t *weight;
    enum dtype dtype;
    int64_t n;
};

static void round_tile(void *context, int64_t tile, int thread)
{
    const struct rounding *r = context;
    int64_t begin = tile * FILL_BLOCK, end = min_i64(r->n, begin + FILL_BLOCK);

    (void)thread;
    for (int64_t i = begin; i < end; i++)
        r->weight[i] = rounded_to(r->dtype, r->master[i]);
}

void fill_weights_from_masters(struct run *run, const struct program *program, int dp_rank,
                               struct pool *pool)
{
    for (int i = 0; i < program->n_parameters; i++) {
        struct parameter_part part = program_parameter_part(program, i, dp_rank);

        run_beat(run);
        if (part.master == part.weight)
            continue;
        struct rounding rounding = { (float *)run_data(run, part.master, 0) + part.offset,
                                     (uint16_t *)run_data(run, part.weight, 0) + part.offset,
                                     program->values[part.weight].dtype, part.end - part.begin };
        CHECK(rounding.dtype == DTYPE_BF16 || rounding.dtype == DTYPE_F16);
        pool_run(pool, ceil_div(rounding.n, FILL_BLOCK), round_tile, &rounding);
    }
}

void fill_constants(struct run *run, const struct program *program, const struct model_spec *spec)
{
    int id = program->ports.rope_table;

    if (id) {
        const struct value *v = &program->values[id];

        rope_fill(run_data(run, id, 0), v->rows, (int)v->cols, spec);
    }
}
