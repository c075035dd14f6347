/*
 * fill.c - initial parameters and constants
 */
#include "train/fill.h"

#include <math.h>

#include "base/num.h"
#include "base/rng.h"

#define FILL_BLOCK \
    ((int64_t)1 << 14) /* elements a tile: even, so that a pair of normals stays whole */

struct fill {
    const struct parameter *parameter;
    uint64_t seed, name;
    float *data;
    int64_t n;
};

/* Element i is the normal of word pair (i / 2, i % 2) of the block at i / 2. */
static float initial(const struct fill *f, int64_t i)
{
    if (f->parameter->init == INIT_ONES)
        return 1;
    if (f->parameter->init == INIT_ZEROS)
        return 0;
    struct rng_block block = rng_at(f->seed, RNG_INIT, f->name, (uint64_t)i / 2);
    int pair = (int)(i % 2) * 2;

    return (float)f->parameter->init_std * rng_normal(block.word[pair], block.word[pair + 1]);
}

static void fill_tile(void *context, int64_t tile, int thread)
{
    const struct fill *f = context;
    int64_t end = min_i64(f->n, (tile + 1) * FILL_BLOCK);

    (void)thread;
    for (int64_t i = tile * FILL_BLOCK; i < end; i++)
        f->data[i] = initial(f, i);
}

void fill_parameters(struct run *run, const struct program *program, struct pool *pool,
                     uint64_t seed)
{
    for (int i = 0; i < program->n_parameters; i++) {
        const struct parameter *p = &program->parameters[i];
        int cell = p->master ? p->master : p->weight;

        CHECK(program->values[cell].dtype == DTYPE_F32);
        struct fill fill = { p, seed, rng_hash_name(p->name), run_data(run, cell, 0),
                             p->rows * p->cols };
        pool_run(pool, ceil_div(fill.n, FILL_BLOCK), fill_tile, &fill);
    }
    fill_weights_from_masters(run, program);
}

void fill_weights_from_masters(struct run *run, const struct program *program)
{
    for (int i = 0; i < program->n_parameters; i++) {
        const struct parameter *p = &program->parameters[i];

        if (!p->master || p->master == p->weight)
            continue;
        const float *master = run_data(run, p->master, 0);
        uint16_t *weight = run_data(run, p->weight, 0);
        CHECK(program->values[p->weight].dtype == DTYPE_BF16);
        for (int64_t k = 0; k < p->rows * p->cols; k++)
            weight[k] = bf16_from_float(master[k]);
    }
}

void fill_constants(struct run *run, const struct program *program, const struct model_spec *spec)
{
    int id = program->ports.rope_table;

    if (!id)
        return;
    const struct value *v = &program->values[id];
    float *table = run_data(run, id, 0);
    int64_t half = v->cols / 2;

    for (int64_t position = 0; position < v->rows; position++)
        for (int64_t i = 0; i < half; i++) {
            /* Frequencies in fp32 as HF makes them, angles and their cosines from those. */
            float frequency =
                (float)(1.0 / pow(spec->rope_theta, (double)(2 * i) / (double)v->cols));
            float angle = (float)position * frequency;

            table[position * v->cols + i] = (float)cos((double)angle);
            table[position * v->cols + half + i] = (float)sin((double)angle);
        }
}
