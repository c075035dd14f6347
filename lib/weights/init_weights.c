/*
 * init_weights.c - initial parameters and constants
 */
#include "weights/init_weights.h"

#include <string.h>

#include "base/halves.h"
#include "base/num.h"
#include "base/rng.h"
#include "ckpt/convert_dtype.h"
#include "weights/rectangles.h"
#include "weights/rope_tables.h"

#define FILL_BLOCK ((int64_t)1 << 14) /* elements a tile */
#define FILL_PART 1024                /* at a time, where they are rounded */

struct fill {
    const struct program *program;
    int index; /* the parameter's */
    const struct parameter *parameter;
    const struct mesh_place *place;
    uint64_t seed, name;
    int64_t whole_cols;
    int64_t begin, end; /* elements of the rank's part */
    float *data;        /* of begin; NULL where the parameter is kept in 16 bits alone */
    uint16_t *rounded;  /* the weight, which may be all there is; or NULL */
    uint16_t *lower;    /* what it leaves out of the master, or NULL */
    enum dtype dtype;   /* of rounded */
};

/* Weights from masters, as the optimizer rounds them. */
static void round_masters(const struct program *program, enum dtype dtype, uint16_t *weights,
                          const float *masters, int64_t n)
{
    if (dtype == DTYPE_BF16 && program->half_away)
        for (int64_t i = 0; i < n; i++)
            weights[i] = halves_upper(masters[i]);
    else
        convert(dtype, weights, DTYPE_F32, masters, n);
}

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

/* to: of the first one. */
static void initial_rounded(const struct fill *f, int64_t first, int64_t n, int64_t to)
{
    float part[FILL_PART];

    for (int64_t at = 0; at < n; at += FILL_PART) {
        int64_t here = min_i64(n - at, FILL_PART);

        initial(f, first + at, here, part);
        if (f->lower)
            for (int64_t i = 0; i < here; i++) {
                f->rounded[to + at + i] = halves_upper(part[i]);
                f->lower[to + at + i] = halves_lower(part[i]);
            }
        else
            convert(f->dtype, f->rounded + to + at, DTYPE_F32, part, here);
    }
}

static void fill_tile(void *context, int64_t tile, int thread)
{
    const struct fill *f = context;
    int64_t begin = f->begin + tile * FILL_BLOCK, end = min_i64(f->end, begin + FILL_BLOCK);
    struct rectangle_walk walk = rectangle_walk(f->program, f->index, f->place, begin, end);
    struct tensor_rectangle r;

    (void)thread;
    /* What no rectangle has is padding. */
    if (f->data)
        memset(f->data + begin - f->begin, 0, (size_t)(end - begin) * sizeof *f->data);
    else
        memset(f->rounded + begin - f->begin, 0, (size_t)(end - begin) * sizeof *f->rounded);
    if (f->lower)
        memset(f->lower + begin - f->begin, 0, (size_t)(end - begin) * sizeof *f->lower);
    while (rectangle_next(&walk, &r))
        for (int64_t row = 0; row < r.rows; row++) {
            int64_t at = r.local + row * r.stride - f->begin;
            int64_t first = (r.row + row) * f->whole_cols + r.col;

            if (f->data)
                initial(f, first, r.cols, f->data + at);
            else
                initial_rounded(f, first, r.cols, at);
        }
    if (f->data && f->rounded)
        round_masters(f->program, f->dtype, f->rounded + begin - f->begin,
                      f->data + begin - f->begin, end - begin);
}

/* ---- windows -----------------------------------------------------------------------------------
 *
 * Elements of a cell that the host works on: on the host all of a part at once and in place, of a
 * GPU's, or where there is a file, as many as a buffer holds.
 */

#define WINDOW ((int64_t)256 * FILL_BLOCK)

struct windows {
    struct run *run;
    int is_host;
    struct arena arena; /* of the buffers */
    void *buffers[2];   /* of WINDOW fp32 each; NULL on the host */
};

static void windows_open(struct windows *w, struct run *run)
{
    *w = (struct windows){ .run = run,
                           .is_host = device_is_host(run_device(run)) && !run_has_file(run) };
    for (int i = 0; i < 2 && !w->is_host; i++)
        w->buffers[i] = arena_alloc(&w->arena, (size_t)WINDOW * sizeof(float));
}

static int64_t window_end(const struct windows *w, int64_t begin, int64_t end)
{
    return w->is_host ? end : min_i64(end, begin + WINDOW);
}

/* Where the host finds or puts what lies at the address. */
static void *window_at(const struct windows *w, int buffer, void *address)
{
    return w->is_host ? address : w->buffers[buffer];
}

static void window_put(const struct windows *w, int buffer, void *address, size_t n_bytes)
{
    if (!w->is_host)
        run_put_at(w->run, address, w->buffers[buffer], n_bytes);
}

static unsigned char *element_at(struct run *run, const struct program *program, int cell,
                                 int64_t element)
{
    return (unsigned char *)run_data(run, cell, 0) +
           (size_t)element * dtype_bytes(program->values[cell].dtype);
}

/* ---- weights from masters ---- */

struct rounding {
    const struct program *program;
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
    round_masters(r->program, r->dtype, r->weight + begin, r->master + begin, end - begin);
}

/* Of elements [begin, begin + n) of the part, whose masters the host has. */
static void round_window(const struct windows *w, const struct program *program,
                         const struct parameter_part *part, int64_t begin, int64_t n,
                         const float *masters, struct pool *pool)
{
    unsigned char *weights =
        element_at(w->run, program, part->weight, part->offset + begin - part->begin);
    struct rounding rounding = { program, masters, window_at(w, 1, weights),
                                 program->values[part->weight].dtype, n };

    CHECK(rounding.dtype == DTYPE_BF16 || rounding.dtype == DTYPE_F16);
    pool_run(pool, ceil_div(n, FILL_BLOCK), round_tile, &rounding);
    window_put(w, 1, weights, (size_t)n * sizeof(uint16_t));
}

int init_weights_from_masters(struct run *run, const struct program *program,
                              const struct mesh_place *place, struct pool *pool, struct err *err)
{
    struct windows w;
    int status = 0;

    windows_open(&w, run);
    for (int i = 0; i < program->n_parameters && !status; i++) {
        struct parameter_part part = program_parameter_part(program, i, place);

        run_beat(run);
        if (part.master == part.weight)
            continue;
        for (int64_t begin = part.begin, end; begin < part.end && !status; begin = end) {
            unsigned char *address =
                element_at(run, program, part.master, part.offset + begin - part.begin);
            float *masters = window_at(&w, 0, address);

            end = window_end(&w, begin, part.end);
            if (!w.is_host)
                status =
                    run_get_at(run, masters, address, (size_t)(end - begin) * sizeof(float), err);
            if (!status)
                round_window(&w, program, &part, begin, end - begin, masters, pool);
        }
    }
    arena_release(&w.arena);
    return status;
}

/* ---- the beginning ---- */

/* Elements [begin, end) of a parameter's part, and their weights while they are near. */
static void fill_window(const struct windows *w, struct fill *fill,
                        const struct parameter_part *part, int64_t begin, int64_t end,
                        struct pool *pool)
{
    const struct program *program = fill->program;
    enum dtype dtype = program->values[part->master].dtype;
    int has_weight = part->master != part->weight;
    int64_t element = part->offset + begin - part->begin;
    unsigned char *address = element_at(w->run, program, part->master, element);
    unsigned char *weights = element_at(w->run, program, part->weight, element);
    unsigned char *lower = part->low ? element_at(w->run, program, part->low, element) : NULL;

    CHECK(dtype == DTYPE_F32 || !has_weight);
    fill->begin = begin;
    fill->end = end;
    fill->data = dtype == DTYPE_F32 ? window_at(w, 0, address) : NULL;
    fill->rounded = NULL;
    fill->lower = lower ? window_at(w, 1, lower) : NULL;
    if (has_weight)
        fill->rounded = window_at(w, 1, weights);
    else if (!fill->data)
        fill->rounded = window_at(w, 0, address);
    fill->dtype = program->values[part->weight].dtype;
    CHECK(!fill->rounded || fill->dtype == DTYPE_BF16 || fill->dtype == DTYPE_F16);
    pool_run(pool, ceil_div(end - begin, FILL_BLOCK), fill_tile, fill);
    window_put(w, 0, address, (size_t)(end - begin) * dtype_bytes(dtype));
    if (has_weight)
        window_put(w, 1, weights, (size_t)(end - begin) * dtype_bytes(fill->dtype));
    if (lower)
        window_put(w, 1, lower, (size_t)(end - begin) * sizeof *fill->lower);
}

void init_parameters(struct run *run, const struct program *program, const struct mesh_place *place,
                     struct pool *pool, uint64_t seed)
{
    struct windows w;
    int64_t rows, cols;

    windows_open(&w, run);
    for (int i = 0; i < program->n_parameters; i++) {
        const struct parameter *p = &program->parameters[i];
        struct parameter_part part = program_parameter_part(program, i, place);

        run_beat(run); /* the first touch of much memory takes its time */
        rectangles_whole(program, i, &rows, &cols);
        struct fill fill = { .program = program,
                             .index = i,
                             .parameter = p,
                             .place = place,
                             .whole_cols = cols,
                             .seed = seed,
                             .name = rng_hash_name(p->name) };
        for (int64_t begin = part.begin, end; begin < part.end; begin = end) {
            end = window_end(&w, begin, part.end);
            fill_window(&w, &fill, &part, begin, end, pool);
        }
    }
    arena_release(&w.arena);
}

void init_constants(struct run *run, const struct program *program, const struct model_spec *spec)
{
    int id = program->ports.rope_table;
    struct arena arena = { 0 };

    if (!id)
        return;
    const struct value *v = &program->values[id];
    float *table = arena_alloc(&arena, program_value_bytes(program, id));
    rope_table_fill(table, v->rows, (int)v->cols, spec);
    run_put(run, id, 0, 0, table, program_value_bytes(program, id));
    arena_release(&arena);
}
