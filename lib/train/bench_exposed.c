/*
 * bench_exposed.c - what each rank's steps waited for
 */
#include <string.h>

#include "train/bench_impl.h"

/* A rank's list. */
struct exposed_list {
    int n;
    struct run_exposed items[BENCH_MAX_EXPOSED];
};

struct exposed_exchange {
    struct comm_group *world;
    const struct exposed_list *own;
    struct exposed_list *all;
};

static int exchange(void *argument, struct err *err)
{
    struct exposed_exchange *e = argument;

    return comm_all_gather(e->world, e->own, e->all, sizeof *e->own, err);
}

/* The row of this kind over this axis, which is made where there is none. */
static struct bench_exposed_row *row_of(struct bench *bench, const struct run_exposed *item,
                                        int capacity, int n_ranks)
{
    int i = 0;

    while (i < bench->n_exposed_rows &&
           (bench->exposed_rows[i].kind != item->kind || bench->exposed_rows[i].axis != item->axis))
        i++;
    if (i == capacity)
        return NULL;
    if (i == bench->n_exposed_rows)
        bench->exposed_rows[bench->n_exposed_rows++] =
            (struct bench_exposed_row){ item->kind, item->axis,
                                        arena_array(&bench->arena, double, n_ranks) };
    return &bench->exposed_rows[i];
}

int bench_gather_exposed(struct bench *bench, struct engine *engine, struct err *err)
{
    int n_ranks = engine->rank.world_size, capacity = 2 * BENCH_MAX_EXPOSED;
    struct exposed_exchange e = { 0 };
    struct exposed_list own;

    bench->n_exposed_rows = 0;
    if (n_ranks == 1)
        return 0;
    memset(&own, 0, sizeof own);
    own.n = bench->n_exposed;
    memcpy(own.items, bench->exposed, sizeof *own.items * (size_t)own.n);
    e.own = &own;
    e.all = arena_array(&bench->arena, struct exposed_list, n_ranks);
    if (bench_group_open_world(&e.world, engine, err) < 0 ||
        worker_call(engine->worker, exchange, &e, err) < 0)
        return -1;
    bench->exposed_rows = arena_array(&bench->arena, struct bench_exposed_row, capacity);
    for (int rank = 0; rank < n_ranks; rank++)
        for (int i = 0; i < e.all[rank].n; i++) {
            struct bench_exposed_row *row = row_of(bench, &e.all[rank].items[i], capacity, n_ranks);

            if (row)
                row->seconds[rank] += e.all[rank].items[i].seconds;
        }
    return 0;
}
