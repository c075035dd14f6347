/*
 * memory_lists.c - the lists of sums that a rank's answer is looked for in, by scratch
 *
 * They do not depend on the budget, so what is asked of a rank several times makes each once.
 */
#include <stdlib.h>

#include "base/num.h"
#include "plan/memory_sums_impl.h"

/* The options of each kind that have no more scratch. */
static void list_capped(const struct memory_lists *all, struct way_lists *lists, int64_t cap)
{
    const struct memory_problem *p = all->problem;
    struct arena *arena = all->arena;
    const int bound = MEMORY_OPTIONS_MAX;

    lists->options = arena_array(arena, struct memory_sums, p->n_kinds);
    for (int k = 0; k < p->n_kinds; k++) {
        struct memory_sum *items = arena_array(arena, struct memory_sum, all->options[k].n);
        int n = 0;

        for (int i = 0; i < all->options[k].n; i++)
            if (all->options[k].items[i].scratch <= cap)
                items[n++] = all->options[k].items[i];
        lists->options[k] = memory_sums_best(items, n, false, bound, arena);
        lists->options[k].is_thinned |= all->options[k].is_thinned;
    }
}

/* The last lists are longer: what they have is what there is to choose from. Each way of them is
 * tried with each number of groups. */
static int last_max(const struct memory_problem *p)
{
    int64_t n_groups = ((int64_t)min_int(p->groups[MEMORY_GRADIENTS].n, MEMORY_COUNTS_MAX) + 1) *
                       ((int64_t)min_int(p->groups[MEMORY_WEIGHTS].n, MEMORY_COUNTS_MAX) + 1);

    return (int)max_i64(MEMORY_SUMS_MAX, MEMORY_LAST_MAX / n_groups);
}

static void make_lists(const struct memory_lists *all, struct way_lists *lists, int64_t cap)
{
    const struct memory_problem *p = all->problem;
    struct arena *arena = all->arena;
    int n_max = p->may_move_parts ? MEMORY_SUMS_MAX / 2 : MEMORY_SUMS_MAX, n_last = last_max(p);

    list_capped(all, lists, cap);
    lists->of_layers = arena_array(arena, struct memory_sums *, p->n_chunks);
    lists->of_chunks = arena_array(arena, struct memory_sums, p->n_chunks + 1);
    lists->of_chunks[0] = (struct memory_sums){ arena_new(arena, struct memory_sum), 1, false };
    for (int c = 0; c < p->n_chunks; c++) {
        const struct memory_chunk *chunk = &p->chunks[c];
        struct memory_sums *of = arena_array(arena, struct memory_sums, chunk->n_layers + 1);

        of[0] = (struct memory_sums){ arena_new(arena, struct memory_sum), 1, false };
        of[0].items[0].bytes = chunk->slot_bytes;
        for (int i = 0; i < chunk->n_layers; i++) {
            bool is_last = p->n_chunks == 1 && i + 1 == chunk->n_layers;

            of[i + 1] = memory_sums_add(&of[i], &lists->options[chunk->kind_of_layer[i]],
                                        is_last ? n_last : n_max, arena);
        }
        lists->of_chunks[c + 1] = memory_sums_join(&lists->of_chunks[c], &of[chunk->n_layers],
                                                   c + 1 == p->n_chunks ? n_last : n_max, arena);
        lists->of_layers[c] = of;
    }
}

static int descending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return x > y ? -1 : x < y;
}

static bool is_used(const struct memory_problem *p, int kind)
{
    for (int c = 0; c < p->n_chunks; c++)
        for (int i = 0; i < p->chunks[c].n_layers; i++)
            if (p->chunks[c].kind_of_layer[i] == kind)
                return true;
    return false;
}

/* All amounts of scratch that the rank may have, from the largest on; none below the floor, or
 * below what a kind has at least. */
static int list_caps(const struct memory_lists *all, int64_t **caps)
{
    const struct memory_problem *p = all->problem;
    int64_t least = p->scratch_bytes;
    int n = 0, n_left = 0;

    for (int k = 0; k < p->n_kinds; k++) {
        int64_t of_kind = INT64_MAX;

        if (!is_used(p, k))
            all->options[k].n = 0;
        n += all->options[k].n;
        for (int i = 0; i < all->options[k].n; i++)
            of_kind = min_i64(of_kind, all->options[k].items[i].scratch);
        least = max_i64(least, all->options[k].n ? of_kind : 0);
    }
    *caps = arena_array(all->arena, int64_t, n + 1);
    (*caps)[n_left++] = least;
    for (int k = 0; k < p->n_kinds; k++)
        for (int i = 0; i < all->options[k].n; i++)
            if (all->options[k].items[i].scratch > least)
                (*caps)[n_left++] = all->options[k].items[i].scratch;
    qsort(*caps, (size_t)n_left, sizeof **caps, descending);
    n = 0;
    for (int i = 0; i < n_left; i++)
        if (!i || (*caps)[i] != (*caps)[n - 1])
            (*caps)[n++] = (*caps)[i];
    return n;
}

struct memory_lists *memory_lists_open(const struct memory_problem *problem, struct arena *arena)
{
    struct memory_lists *all = arena_new(arena, struct memory_lists);
    struct memory_problem *copy = arena_new(arena, struct memory_problem);

    *copy = *problem;
    *all = (struct memory_lists){ .problem = copy, .arena = arena };
    all->options = arena_array(arena, struct memory_sums, problem->n_kinds);
    for (int k = 0; k < problem->n_kinds; k++)
        all->options[k] = memory_sums_of_kind(problem, &problem->kinds[k], arena);
    all->n_caps = list_caps(all, &all->caps);
    all->of_caps = arena_array(arena, struct way_lists, all->n_caps);
    return all;
}

const struct way_lists *memory_lists_of(struct memory_lists *all, int cap)
{
    if (!all->of_caps[cap].of_chunks)
        make_lists(all, &all->of_caps[cap], all->caps[cap]);
    return &all->of_caps[cap];
}
