/*
 * search_moves.c - layers moved from the slowest pipeline rank to others, while that is faster
 *
 * Stages are cut by multiplications, or by the speed of their devices, before it is known what
 * recomputation, sums and waiting make of them. For the best layouts a layer at a time is taken
 * from the rank that computes longest and given to another; all stages between shift. The estimate
 * decides, so a cut is kept that the pipeline's lists are faster with.
 */
#include <string.h>

#include "base/num.h"
#include "plan/search_impl.h"

enum { N_MOVES_MAX = 4, N_TAKERS_MAX = 8 };

/* Layers of each stage [n]. */
static void list_counts(const struct search *search, const struct layout *l, int n, int *counts)
{
    const int *first = search->cuts[n];

    for (int i = 0; i < n; i++)
        counts[i] = l->stages.n ? l->stages.values[i] : first[i + 1] - first[i];
}

/* What each stage's rank computes in a micro-batch, by stage. */
static bool list_loads(struct search *search, const struct layout_candidate *c, int64_t *loads,
                       struct arena *arena)
{
    struct pipeline_spec spec = search_spec(c);
    const struct layer_cost *stages =
        search_base_stages(search, &c->layout, &spec, ALL_REPLICAS, arena);
    int n = pipeline_n_stages(&spec);

    for (int i = 0; i < n && stages; i++) {
        int rank = pipeline_rank_of(&spec, i);

        loads[i] = 0;
        for (int chunk = 0; chunk < spec.n_chunks; chunk++) {
            const struct layer_cost *s = &stages[pipeline_stage_of(&spec, rank, chunk)];

            loads[i] += s->f + s->i + s->w;
        }
    }
    return stages != NULL;
}

/* The stage with the longest load that has a layer to give, the first of equals; -1: none. */
static int find_giver(const int64_t *loads, const int *counts, int n)
{
    int giver = -1;

    for (int i = 0; i < n; i++)
        if (counts[i] > 1 && (giver < 0 || loads[i] > loads[giver]))
            giver = i;
    return giver;
}

/* The stages that compute least, at most N_TAKERS_MAX, in order of their loads. */
static int list_takers(const int64_t *loads, int n, int64_t most, int takers[N_TAKERS_MAX])
{
    int n_takers = 0;

    for (int i = 0; i < n; i++) {
        int at = n_takers;

        if (loads[i] >= most)
            continue;
        while (at > 0 && loads[i] < loads[takers[at - 1]])
            at--;
        if (at == N_TAKERS_MAX)
            continue;
        n_takers = min_int(n_takers + 1, N_TAKERS_MAX);
        memmove(&takers[at + 1], &takers[at], sizeof *takers * (size_t)(n_takers - 1 - at));
        takers[at] = i;
    }
    return n_takers;
}

/* The candidate with these layers, estimated. What it keeps is chosen again. */
static bool estimate_moved(struct search *search, const struct layout_candidate *c,
                           const int *counts, int n, struct layout_candidate *moved)
{
    *moved = *c;
    moved->layout.stages = (struct job_counts){ counts, n };
    moved->bound_ns = 0;
    moved->bound_bytes = 0;
    return search_estimate(search, moved);
}

/* One move, the best: changes counts and *best_ns. Returns whether there is one. */
static bool move_layer(struct search *search, const struct layout_candidate *c, int *counts, int n,
                       int64_t *best_ns)
{
    struct arena arena = { 0 };
    int64_t *loads = arena_array(&arena, int64_t, n);
    int takers[N_TAKERS_MAX], n_takers = 0, giver = -1, taker = -1;
    size_t most = c->estimate_bytes > search->available ? c->estimate_bytes : search->available;
    struct layout_candidate moved = *c;

    moved.layout.stages = (struct job_counts){ counts, n };
    if (list_loads(search, &moved, loads, &arena))
        giver = find_giver(loads, counts, n);
    if (giver >= 0)
        n_takers = list_takers(loads, n, loads[giver], takers);
    for (int i = 0; i < n_takers; i++) {
        counts[giver]--;
        counts[takers[i]]++;
        if (estimate_moved(search, c, counts, n, &moved) && moved.estimate_ns < *best_ns &&
            moved.estimate_bytes <= most) {
            *best_ns = moved.estimate_ns;
            taker = takers[i];
        }
        counts[giver]++;
        counts[takers[i]]--;
    }
    if (taker >= 0) {
        counts[giver]--;
        counts[taker]++;
    }
    arena_release(&arena);
    return taker >= 0;
}

void search_move_layers(struct search *search, struct layout_candidate *c, int *counts)
{
    struct pipeline_spec spec = search_spec(c);
    int n = pipeline_n_stages(&spec), n_moves = 0;
    int64_t best_ns = c->estimate_ns;
    struct layout_candidate moved;

    list_counts(search, &c->layout, n, counts);
    while (n_moves < N_MOVES_MAX && move_layer(search, c, counts, n, &best_ns))
        n_moves++;
    if (n_moves && (double)best_ns <= (double)c->estimate_ns * (1 - search->request->within) &&
        estimate_moved(search, c, counts, n, &moved)) {
        moved.bound_ns = min_i64(c->bound_ns, moved.estimate_ns);
        *c = moved;
    }
}
