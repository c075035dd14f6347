/*
 * memory_ways.c - the ways of one kind of layer: each point with each set of parts that are away
 */
#include <stdlib.h>

#include "base/err.h"
#include "base/num.h"
#include "plan/memory_sums_impl.h"

/* Of more ways not all are tried, but parts leave by size. */
enum { N_WAYS_MAX = 4096 };

static int by_size(const void *a, const void *b, void *context)
{
    const struct memory_point *p = context;
    int64_t x = p->parts[*(const int *)a], y = p->parts[*(const int *)b];

    return x > y ? -1 : x < y;
}

struct memory_sum memory_sum_of(const struct memory_problem *problem,
                                const struct memory_layer_kind *kind, int point, uint32_t away)
{
    const struct memory_point *p = &kind->points[point];
    int64_t moved = 0, n_alike = max_int(1, kind->n_alike);

    for (int i = 0; i < p->n_parts; i++)
        moved += away >> i & 1 ? p->parts[i] : 0;
    return (struct memory_sum){ .bytes = p->slot_bytes - moved,
                                .ns = n_alike * p->added_ns,
                                .moved = n_alike * moved,
                                .scratch = max_i64(problem->scratch_bytes,
                                                   p->scratch_bytes + problem->stay_copies * moved),
                                .before = point,
                                .last = (int)away };
}

/* The largest parts, one more each time; then the smallest. */
static int list_by_size(const struct memory_problem *problem, const struct memory_layer_kind *kind,
                        int point, struct memory_sum *ways)
{
    const struct memory_point *p = &kind->points[point];
    int order[MEMORY_PARTS_MAX], n = 0;
    uint32_t largest = 0, smallest = 0;

    for (int i = 0; i < p->n_parts; i++)
        order[i] = i;
    qsort_r(order, (size_t)p->n_parts, sizeof *order, by_size, (void *)(uintptr_t)p);
    ways[n++] = memory_sum_of(problem, kind, point, 0);
    for (int i = 0; i < p->n_parts; i++) {
        largest |= (uint32_t)1 << order[i];
        smallest |= (uint32_t)1 << order[p->n_parts - 1 - i];
        ways[n++] = memory_sum_of(problem, kind, point, largest);
        ways[n++] = memory_sum_of(problem, kind, point, smallest);
    }
    return n;
}

static int list_all(const struct memory_problem *problem, const struct memory_layer_kind *kind,
                    int point, struct memory_sum *ways)
{
    uint32_t n = problem->may_move_parts ? (uint32_t)1 << kind->points[point].n_parts : 1;

    for (uint32_t away = 0; away < n; away++)
        ways[away] = memory_sum_of(problem, kind, point, away);
    return (int)n;
}

struct memory_sums memory_sums_of_kind(const struct memory_problem *problem,
                                       const struct memory_layer_kind *kind, struct arena *arena)
{
    struct arena scratch = { 0 };
    int64_t n_all = 0, n_by_size = 0;
    int n = 0;

    for (int i = 0; i < kind->n_points; i++) {
        CHECK(kind->points[i].n_parts <= MEMORY_PARTS_MAX);
        n_all += problem->may_move_parts ? (int64_t)1 << kind->points[i].n_parts : 1;
        n_by_size += 2 * kind->points[i].n_parts + 1;
    }
    bool is_partial = n_all > N_WAYS_MAX;
    struct memory_sum *ways =
        arena_array(&scratch, struct memory_sum, is_partial ? n_by_size : n_all);
    for (int i = 0; i < kind->n_points; i++)
        n += (is_partial ? list_by_size : list_all)(problem, kind, i, ways + n);
    struct memory_sums options = memory_sums_best(ways, n, true, n, arena);
    options.is_thinned |= is_partial;
    arena_release(&scratch);
    return options;
}
