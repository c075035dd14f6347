/*
 * search_fronts.c - the fronts of layers (keep_sets.h) by what they depend on of a layout: the
 * tensor-parallel ranks, the micro-batch, and whose devices price them
 *
 * Whatever else a layout is, a layer's values are the same. Estimates go by few points of each
 * front, those of its hull; what a best layout is fitted with has all of them.
 */
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "plan/islands.h"
#include "plan/search_impl.h"

/* Of each hull: by what is kept, and by that with what is handed on. */
enum { N_OF_HULL = 8 };

struct front_shape {
    int tp, ep, micro_batch, island;
};

struct search_front {
    struct front_shape shape;
    bool is_possible;
    struct keep_sets sets;
    struct mix_kind *kinds; /* by front */
    struct arena arena;
};

static struct front_shape shape_of(const struct layout *l, int island)
{
    return (struct front_shape){ l->tp, l->ep, l->micro_batch, island };
}

static struct search_front *find(const struct search *search, struct front_shape shape)
{
    for (int i = 0; i < search->fronts.n; i++)
        if (!memcmp(&search->fronts.items[i]->shape, &shape, sizeof shape))
            return search->fronts.items[i];
    return NULL;
}

static struct search_front *add(struct search *search, struct front_shape shape)
{
    struct front_list *list = &search->fronts;

    list->items =
        arena_grow(search->arena, list->items, sizeof *list->items, &list->capacity, list->n + 1);
    list->items[list->n] = arena_array(search->arena, struct search_front, 1);
    list->items[list->n]->shape = shape;
    return list->items[list->n++];
}

/* ---- what a front is found for ---- */

/* One rank, or tp * cp * ep of them: what else data parallel and pipelines add is of no layer's
 * values. */
static struct job job_of(const struct search *search, struct front_shape shape)
{
    struct job job = *search->request->job;

    job.parallel.tp = shape.tp;
    job.parallel.dp = job.parallel.ep = shape.ep;
    job.parallel.pp = job.parallel.chunks = 1;
    job.parallel.zero = job.parallel.zero_group = 0;
    job.parallel.hold = HOLD_PASS;
    job.train.micro_batch = shape.micro_batch;
    job.train.global_batch = shape.micro_batch * shape.ep;
    job.world_size = shape.tp * job.parallel.cp * shape.ep;
    job.recompute = RECOMPUTE_AUTO;
    return job;
}

static int by_ns(const void *a, const void *b)
{
    const struct mix_point *x = a, *y = b;

    if (x->ns != y->ns)
        return x->ns < y->ns ? -1 : 1;
    return x->slot_bytes < y->slot_bytes ? -1 : x->slot_bytes > y->slot_bytes;
}

/* The first point, and those that estimates may need. */
static struct mix_kind thin(const struct keep_front *front, struct arena *arena)
{
    struct mix_point *all = arena_array(arena, struct mix_point, front->n_points);
    struct mix_point *hull = arena_array(arena, struct mix_point, front->n_points);
    struct mix_point *kept = arena_array(arena, struct mix_point, 1 + 2 * N_OF_HULL);
    int n = 0, n_different = 0;

    for (int i = 0; i < front->n_points; i++)
        all[i] =
            (struct mix_point){ front->points[i].added_ns, front->points[i].slot_bytes,
                                front->points[i].handed_bytes, front->points[i].scratch_bytes };
    kept[n++] = all[0];
    for (int n_handed = 0; n_handed < 2; n_handed++) {
        memcpy(hull, all, sizeof *all * (size_t)front->n_points);
        int n_hull = keep_mix_hull(hull, front->n_points, 1, n_handed, N_OF_HULL);

        memcpy(&kept[n], hull, sizeof *hull * (size_t)n_hull);
        n += n_hull;
    }
    qsort(kept, (size_t)n, sizeof *kept, by_ns);
    for (int i = 0; i < n; i++)
        if (!i || memcmp(&kept[i], &kept[n_different - 1], sizeof *kept) != 0)
            kept[n_different++] = kept[i];
    return (struct mix_kind){ kept, n_different };
}

static void fill(const struct search *search, struct search_front *front)
{
    struct job job = job_of(search, front->shape);
    struct keep_sets_request request = { .job = &job,
                                         .kernels = search->request->kernels,
                                         .cluster = search->request->cluster,
                                         .island = front->shape.island };
    struct err ignored;

    if (keep_sets_find(&front->sets, &request, &front->arena, &ignored))
        return;
    front->kinds = arena_array(&front->arena, struct mix_kind, front->sets.n_fronts);
    for (int i = 0; i < front->sets.n_fronts; i++)
        front->kinds[i] = thin(&front->sets.fronts[i], &front->arena);
    front->is_possible = true;
}

/* ---- several at the same time ---- */

struct front_filling {
    struct search *search;
    int first; /* of the list: those from it on are to be filled */
};

static void fill_one(void *context, int64_t tile, int thread)
{
    struct front_filling *f = context;

    (void)thread;
    fill(f->search, f->search->fronts.items[f->first + tile]);
}

void search_prepare_fronts(struct search *search, const struct layout_candidate *candidates, int n)
{
    struct front_filling f = { search, search->fronts.n };

    for (int i = 0; i < n; i++) {
        const struct layout *l = &candidates[i].layout;

        for (int island = 0; island < search->request->cluster->n_islands; island++)
            if (search_is_free(l) && !find(search, shape_of(l, island)))
                add(search, shape_of(l, island));
    }
    search_run_each(search, search->fronts.n - f.first, fill_one, &f);
}

static const struct search_front *front_of(const struct search *search, const struct layout *l,
                                           int island)
{
    const struct search_front *front = find(search, shape_of(l, island));

    CHECK(front);
    return front;
}

struct search_kinds search_kinds(const struct search *search, const struct layout *l, int island)
{
    const struct search_front *front = front_of(search, l, island);

    return (struct search_kinds){ front->kinds, front->sets.n_fronts, front->sets.front_of_layer };
}

bool search_has_fronts(const struct search *search, const struct layout *l)
{
    bool has = true;

    for (int island = 0; search_is_free(l) && island < search->request->cluster->n_islands;
         island++)
        has &= front_of(search, l, island)->is_possible;
    return has;
}

const struct keep_sets *search_fronts(const struct search *search, const struct layout *l,
                                      int island)
{
    return &front_of(search, l, island)->sets;
}

void search_release_fronts(struct search *search)
{
    for (int i = 0; i < search->fronts.n; i++)
        arena_release(&search->fronts.items[i]->arena);
}
