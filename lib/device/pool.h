/*
 * pool.h - the compute threads of one rank
 *
 * A pool runs a function over tiles 0..n-1 on its threads, the caller being thread 0, and returns
 * when all are done. The assignment of tiles to threads is unspecified: a tile's work must depend
 * on the tile alone, so that results are equal for every number of threads (design.md §5). Waiting
 * is passive after a short spin, so that other processes get the core.
 */
#ifndef DEVICE_POOL_H
#define DEVICE_POOL_H

#include <stdint.h>

#include "base/err.h"

struct pool;

/* tile: which; thread: 0..n_threads-1, for per-thread scratch only. */
typedef void (*pool_tile_fn)(void *context, int64_t tile, int thread);

/*
 * n_threads >= 1 in all, so n_threads - 1 are made. cores: where each is bound, or NULL for
 * unbound.
 */
int pool_create(struct pool **pool, int n_threads, const int *cores, struct err *err);
void pool_destroy(struct pool *pool);
int pool_n_threads(const struct pool *pool);

/*
 * Let the calling thread run where the pool's creator could run before it was bound. For threads
 * that are no pool's: one that is started by a bound thread is bound to the same core, and would
 * take turns with what that computes.
 */
void pool_spread(const struct pool *pool);

/* Seconds of CPU time that the pool's threads, and the calling one, have taken so far. */
double pool_cpu_seconds(const struct pool *pool);

/* Run fn on tiles 0..n_tiles-1. One caller at a time; not from within a tile. Allocates nothing. */
void pool_run(struct pool *pool, int64_t n_tiles, pool_tile_fn fn, void *context);

#endif
