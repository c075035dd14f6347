/*
 * machine_peak.c - a few products and a few walks through memory
 */
#include "train/machine_peak.h"

#include <hwloc.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/num.h"

#define TILE_BYTES ((size_t)1 << 20)
#define MIN_TILES 128          /* of each buffer: 128 MiB */
#define MAX_TILES 512          /* of it: half a GiB, where caches are larger than that */
#define CACHE_TIMES 2          /* a buffer's size over that of the last-level caches */
#define TILES_A_THREAD 4       /* of a window: so that no thread waits long for the last tile */
#define WALKED_TILES (6 * 128) /* by each kind of walk, or twice the buffer */

struct peak_walk {
    uint64_t *from, *to;
    int64_t n_tiles; /* of each buffer, whole windows */
    int64_t
        n_window; /* tiles timed at once: short, so that on a busy machine some run undisturbed */
    int64_t first_tile; /* of the window */
    uint64_t sums[64];  /* so that reading is not left out */
};

static size_t tile_offset(const struct peak_walk *walk, int64_t tile)
{
    return (size_t)(walk->first_tile + tile) * (TILE_BYTES / sizeof *walk->from);
}

static void read_tile(void *context, int64_t tile, int thread)
{
    struct peak_walk *walk = context;
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
    struct peak_walk *walk = context;
    size_t at = tile_offset(walk, tile);

    (void)thread;
    memcpy(walk->to + at, walk->from + at, TILE_BYTES);
}

static void change_tile(void *context, int64_t tile, int thread)
{
    struct peak_walk *walk = context;
    uint64_t *x = walk->to + tile_offset(walk, tile);

    (void)thread;
    for (size_t i = 0; i < TILE_BYTES / sizeof *x; i++)
        x[i] ^= 0x5555555555555555u;
}

/* A page lies where the thread runs that touches it first. */
static void touch_tile(void *context, int64_t tile, int thread)
{
    struct peak_walk *walk = context;
    size_t at = tile_offset(walk, tile);

    (void)thread;
    memset(walk->from + at, 1, TILE_BYTES);
    memset(walk->to + at, 2, TILE_BYTES);
}

static double best_bandwidth(struct pool *pool, struct peak_walk *walk)
{
    static const struct {
        pool_tile_fn fn;
        double n_passes; /* bytes moved for each byte of a buffer */
    } kinds[] = { { touch_tile, 0 }, { read_tile, 1 }, { copy_tile, 2 }, { change_tile, 2 } };
    double best = 0, window_bytes = (double)walk->n_window * (double)TILE_BYTES;

    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        int64_t n_walked = kind == 0 ? walk->n_tiles : max_i64(2 * walk->n_tiles, WALKED_TILES);

        for (int64_t at = 0; at < n_walked; at += walk->n_window) {
            double begin = clock_seconds();

            walk->first_tile = at % walk->n_tiles;
            pool_run(pool, walk->n_window, kinds[kind].fn, walk);
            double speed = kinds[kind].n_passes * window_bytes / (clock_seconds() - begin);
            best = speed > best ? speed : best;
        }
    }
    return best;
}

/* Bytes of all last-level caches that this process may use, 0 if unknown. */
static size_t cache_bytes(void)
{
    static const hwloc_obj_type_t levels[] = { HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L2CACHE };
    hwloc_topology_t topology;
    size_t total = 0;

    if (hwloc_topology_init(&topology))
        return 0;
    hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
    for (int i = 0; i < 2; i++)
        hwloc_topology_set_type_filter(topology, levels[i], HWLOC_TYPE_FILTER_KEEP_ALL);
    if (hwloc_topology_load(topology) == 0)
        for (int i = 0; i < 2 && !total; i++) {
            hwloc_obj_t cache = NULL;

            while ((cache = hwloc_get_next_obj_by_type(topology, levels[i], cache)))
                total += (size_t)cache->attr->cache.size;
        }
    hwloc_topology_destroy(topology);
    return total;
}

int64_t machine_peak_tiles(size_t caches_bytes, int n_ranks, int n_threads, size_t available_bytes)
{
    int64_t n_window = (int64_t)n_threads * TILES_A_THREAD;
    int64_t n = ceil_div((int64_t)(CACHE_TIMES * caches_bytes / TILE_BYTES), n_ranks);

    n = min_i64(max_i64(n, MIN_TILES), MAX_TILES);
    /* Two buffers, which leave half of the memory to other processes. */
    if (available_bytes)
        n = min_i64(n, (int64_t)(available_bytes / TILE_BYTES / 4));
    return round_up(max_i64(n, 1), n_window);
}

/* ---- a GPU's ---- */

#define COPIED_BYTES ((size_t)1 << 30)
#define COPY_ROUNDS 10

/* Copies within its memory, each byte read once and written once. */
static int time_copies(struct device *device, unsigned char *memory, struct device_event *events[2],
                       double *best_seconds, struct err *err)
{
    *best_seconds = 1e30;
    for (int i = 0; i < COPY_ROUNDS; i++) {
        device->ops->event_record(device, DEVICE_COMPUTE, events[0]);
        device->ops->copy(device, DEVICE_COMPUTE, memory + COPIED_BYTES, memory, COPIED_BYTES);
        device->ops->event_record(device, DEVICE_COMPUTE, events[1]);
        if (device->ops->wait(device, DEVICE_COMPUTE, err) < 0)
            return -1;
        double took = device->ops->seconds(device, events[0], events[1]);
        *best_seconds = took < *best_seconds ? took : *best_seconds;
    }
    return 0;
}

static int measure_gpu_memory(struct device *device, double *bytes_per_second, struct err *err)
{
    struct device_event *events[2] = { NULL };
    void *memory;
    double seconds = 1;

    if (device->ops->allocate(device, 2 * COPIED_BYTES, &memory, err) < 0)
        return -1;
    int status = device->ops->event_create(device, 1, &events[0], err);
    if (!status)
        status = device->ops->event_create(device, 1, &events[1], err);
    if (!status)
        status = time_copies(device, memory, events, &seconds, err);
    *bytes_per_second = 2 * (double)COPIED_BYTES / seconds;
    for (int i = 0; i < 2; i++)
        device->ops->event_destroy(device, events[i]);
    device->ops->release(device, memory);
    return status;
}

int machine_peak_memory(struct engine *engine, double *bytes_per_second, struct err *err)
{
    if (!device_is_host(engine->device))
        return measure_gpu_memory(engine->device, bytes_per_second, err);
    int n_threads = pool_n_threads(engine->pool);
    struct peak_walk walk = { .n_window = (int64_t)n_threads * TILES_A_THREAD };
    int status = -1;

    walk.n_tiles = machine_peak_tiles(cache_bytes(), max_int(1, engine->rank.local_size), n_threads,
                                      engine_available_bytes(engine));
    walk.from = aligned_alloc(4096, (size_t)walk.n_tiles * TILE_BYTES);
    walk.to = aligned_alloc(4096, (size_t)walk.n_tiles * TILE_BYTES);
    if (!walk.from || !walk.to)
        err_set(err, ERR_DEVICE, "out of host memory");
    else {
        *bytes_per_second = best_bandwidth(engine->pool, &walk);
        status = 0;
    }
    free(walk.from);
    free(walk.to);
    return status;
}

/* ---- products ---- */

struct measured_product {
    int64_t shape[3];
    int n_rounds;
};

/* The best of a product that lies in caches, one that hardly does, and one of a model's shape. */
static int measure_products(struct engine *engine, enum dtype dtype, double *flops, struct err *err)
{
    static const struct measured_product of_host[] = { { { 512, 512, 512 }, 48 },
                                                       { { 1024, 1024, 1024 }, 12 },
                                                       { { 1024, 4096, 768 }, 8 } };
    static const struct measured_product of_gpu[] = { { { 8192, 8192, 8192 }, 8 },
                                                      { { 4096, 4096, 4096 }, 16 },
                                                      { { 8192, 4096, 14336 }, 8 } };
    const struct measured_product *products = engine_is_large(engine) ? of_gpu : of_host;

    *flops = 0;
    for (size_t i = 0; i < sizeof of_host / sizeof *of_host; i++) {
        double reached;

        if (engine_product_flops(engine, dtype, products[i].shape, products[i].n_rounds, &reached,
                                 err) < 0)
            return -1;
        *flops = reached > *flops ? reached : *flops;
    }
    return 0;
}

int machine_peak_measure(struct machine_peak *ceiling, struct engine *engine, enum dtype dtype,
                         struct err *err)
{
    struct machine_peak measured;

    if (measure_products(engine, dtype, &measured.flops, err) < 0)
        return -1;
    measured.f32_flops = measured.flops;
    if (dtype != DTYPE_F32 && engine_peak_flops(engine, DTYPE_F32, &measured.f32_flops, err) < 0)
        return -1;
    if (machine_peak_memory(engine, &measured.bytes_per_second, err) < 0)
        return -1;
    *ceiling = measured;
    return 0;
}

double machine_peak_seconds(const struct machine_peak *ceiling, const struct op_shape *op)
{
    double peak = op->in[0].dtype == DTYPE_F32 ? ceiling->f32_flops : ceiling->flops;
    double compute = op_has_kernel(op->kind) ? op_flops(op) / peak : 0;
    double memory = op_bytes(op) / ceiling->bytes_per_second;

    return compute > memory ? compute : memory;
}
