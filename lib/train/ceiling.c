/*
 * ceiling.c - a few products and a few walks through memory
 */
#include "train/ceiling.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

#define WALK_BYTES ((size_t)128 << 20) /* of each buffer: more than any cache holds */
#define TILE_BYTES ((size_t)1 << 20)
#define WINDOW_TILES 16 /* timed at once: short, so that on a busy machine some run undisturbed */
#define N_WALKS 6       /* of each kind; the best window counts */

struct walk {
    uint64_t *from, *to;
    int64_t first_tile; /* of the window */
    uint64_t sums[64];  /* so that reading is not left out */
};

static size_t tile_offset(const struct walk *walk, int64_t tile)
{
    return (size_t)(walk->first_tile + tile) * (TILE_BYTES / sizeof *walk->from);
}

static void read_tile(void *context, int64_t tile, int thread)
{
    struct walk *walk = context;
    const uint64_t *x = walk->from + tile_offset(walk, tile);
    uint64_t sums[8] = { 0 };

    for (size_t i = 0; i < TILE_BYTES / sizeof *x; i += 8)
        for (int k = 0; k < 8; k++)
            sums[k] ^= x[i + (size_t)k];
    for (int k = 0; k < 8; k++)
        walk->sums[thread % 64] ^= sums[k];
}

static void copy_tile(void *context, int64_t tile, int thread)
{
    struct walk *walk = context;
    size_t at = tile_offset(walk, tile);

    (void)thread;
    memcpy(walk->to + at, walk->from + at, TILE_BYTES);
}

static void change_tile(void *context, int64_t tile, int thread)
{
    struct walk *walk = context;
    uint64_t *x = walk->to + tile_offset(walk, tile);

    (void)thread;
    for (size_t i = 0; i < TILE_BYTES / sizeof *x; i++)
        x[i] ^= 0x5555555555555555u;
}

static double best_bandwidth(struct pool *pool, struct walk *walk)
{
    static const struct {
        pool_tile_fn fn;
        double n_passes; /* bytes moved for each byte of a buffer */
    } kinds[] = { { read_tile, 1 }, { copy_tile, 2 }, { change_tile, 2 } };
    const int64_t n_tiles = (int64_t)(WALK_BYTES / TILE_BYTES);
    double best = 0;

    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
        for (int64_t at = 0; at < N_WALKS * n_tiles; at += WINDOW_TILES) {
            double begin = clock_seconds();

            walk->first_tile = at % n_tiles;
            pool_run(pool, WINDOW_TILES, kinds[kind].fn, walk);
            double speed =
                kinds[kind].n_passes * WINDOW_TILES * TILE_BYTES / (clock_seconds() - begin);
            best = speed > best ? speed : best;
        }
    return best;
}

static int measure_memory(struct engine *engine, double *bytes_per_second, struct err *err)
{
    struct walk walk = { .from = aligned_alloc(4096, WALK_BYTES),
                         .to = aligned_alloc(4096, WALK_BYTES) };
    int status = -1;

    if (!walk.from || !walk.to)
        err_set(err, ERR_DEVICE, "out of host memory");
    else {
        memset(walk.from, 1, WALK_BYTES);
        memset(walk.to, 2, WALK_BYTES);
        *bytes_per_second = best_bandwidth(engine->pool, &walk);
        status = 0;
    }
    free(walk.from);
    free(walk.to);
    return status;
}

/* The best of a product that lies in caches, one that hardly does, and one of a model's shape. */
static int measure_products(struct engine *engine, enum dtype dtype, double *flops, struct err *err)
{
    static const struct {
        int64_t shape[3];
        int n_rounds;
    } products[] = { { { 512, 512, 512 }, 48 },
                     { { 1024, 1024, 1024 }, 12 },
                     { { 1024, 4096, 768 }, 8 } };

    *flops = 0;
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        double reached;

        if (engine_product_flops(engine, dtype, products[i].shape, products[i].n_rounds, &reached,
                                 err) < 0)
            return -1;
        *flops = reached > *flops ? reached : *flops;
    }
    return 0;
}

int ceiling_measure(struct ceiling *ceiling, struct engine *engine, enum dtype dtype,
                    struct err *err)
{
    struct ceiling measured;

    if (measure_products(engine, dtype, &measured.flops, err) < 0)
        return -1;
    measured.f32_flops = measured.flops;
    if (dtype != DTYPE_F32 && engine_peak_flops(engine, DTYPE_F32, &measured.f32_flops, err) < 0)
        return -1;
    if (measure_memory(engine, &measured.bytes_per_second, err) < 0)
        return -1;
    *ceiling = measured;
    return 0;
}

double ceiling_seconds(const struct ceiling *ceiling, const struct op_shape *op)
{
    double peak = op->in[0].dtype == DTYPE_F32 ? ceiling->f32_flops : ceiling->flops;
    double compute = op_is_collective(op->kind) ? 0 : op_flops(op) / peak;
    double memory = op_bytes(op) / ceiling->bytes_per_second;

    return compute > memory ? compute : memory;
}
