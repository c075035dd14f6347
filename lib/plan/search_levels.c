/*
 * search_levels.c - numbers of recomputed layers that fit each pipeline rank's memory
 *
 * They are chosen with the sums of layers' costs (levels.h), whose bytes are off by some per cent;
 * then the largest ranks are compiled with them, and the numbers are chosen again with what the
 * sums were off by, until they stay.
 */
#include <string.h>

#include "base/num.h"
#include "plan/search_impl.h"

enum { N_ROUNDS_MAX = 4 };

/* ---- the choice by sums ---- */

static void fill_layer(struct level_layer *layer, const struct levels_request *r, int stage, int i)
{
    for (int level = 0; level < N_RECOMPUTE_LEVELS; level++) {
        const struct layer_cost *whole = r->whole->of[level][stage]->layers[i];
        const struct layer_cost *timed = r->split ? r->split->of[level][stage]->layers[i] : whole;

        layer->ns[level] = timed->f + timed->i + timed->w;
        layer->slot_bytes[level] = whole->slot_bytes;
        layer->handed_bytes[level] = max_i64(0, timed->slot_bytes - whole->slot_bytes);
    }
}

static void choose_of_rank(struct search *search, struct layout_candidate *c,
                           const struct levels_request *r, int rank)
{
    const struct pipeline_spec *spec = &r->pipeline->spec;
    struct pipeline_slots peak = pipeline_peak(r->pipeline, rank);
    struct arena arena = { 0 };
    struct level_chunk *chunks = arena_array(&arena, struct level_chunk, spec->n_chunks);
    struct level_problem problem = { .chunks = chunks,
                                     .n_chunks = spec->n_chunks,
                                     .n_slots = peak.f_to_w,
                                     .n_handed = peak.i_to_w };
    int64_t cells = r->fixed_bytes + c->sums_off_bytes;
    struct level_counts counts;

    for (int k = 0; k < spec->n_chunks; k++) {
        int stage = pipeline_stage_of(spec, rank, k), n = r->first[stage + 1] - r->first[stage];
        struct layer_cost ends = search_ends_of_stage(search, r->whole, spec, stage);
        struct level_layer *layers = arena_array(&arena, struct level_layer, n);

        cells += ends.weight_bytes + ends.gradient_bytes + ends.state_bytes;
        for (int i = 0; i < n; i++) {
            int layer = r->first[stage] + i;
            const struct layer_cost *cost = r->whole->of[LEVEL_NONE][stage]->layers[layer];

            fill_layer(&layers[i], r, stage, layer);
            cells += cost->weight_bytes + cost->gradient_bytes + cost->state_bytes;
        }
        chunks[k] = (struct level_chunk){ layers, n, ends.slot_bytes + r->boundary_bytes };
    }
    problem.available = (int64_t)search_available(search, r->mesh, rank) - cells;
    levels_choose(&counts, &problem);
    for (int k = 0; k < spec->n_chunks; k++) {
        int stage = pipeline_stage_of(spec, rank, k), n = chunks[k].n_layers;

        c->full[stage] = min_int(counts.n_full, n);
        c->selective[stage] = min_int(counts.n_selective, n - c->full[stage]);
    }
    arena_release(&arena);
}

void search_choose_levels(struct search *search, struct layout_candidate *c,
                          const struct levels_request *request)
{
    for (int rank = 0; rank < c->layout.pp; rank++)
        choose_of_rank(search, c, request, rank);
}

bool search_are_levels_plain(const struct layout_candidate *c, const struct search *search)
{
    int n_full = 0, n_selective = 0, n = search->request->job->model.n_layers;

    for (int i = 0; i < c->layout.full_layers.n; i++) {
        n_full += c->full[i];
        n_selective += c->selective[i];
    }
    return n_full + n_selective == 0 || n_full == n || n_selective == n;
}

/* ---- the choice by programs ---- */

/* What a candidate's levels were, and what they took. */
struct kept_levels {
    int *full, *selective;
    size_t bytes; /* 0: there were none */
};

static void keep_levels(struct kept_levels *kept, const struct layout_candidate *c)
{
    size_t n_bytes = sizeof *c->full * (size_t)c->layout.full_layers.n;

    memcpy(kept->full, c->full, n_bytes);
    memcpy(kept->selective, c->selective, n_bytes);
    kept->bytes = c->estimate_bytes;
}

static bool are_kept(const struct kept_levels *kept, const struct layout_candidate *c)
{
    size_t n_bytes = sizeof *c->full * (size_t)c->layout.full_layers.n;

    return !memcmp(kept->full, c->full, n_bytes) && !memcmp(kept->selective, c->selective, n_bytes);
}

static void give_levels(struct layout_candidate *c, const struct kept_levels *kept)
{
    size_t n_bytes = sizeof *c->full * (size_t)c->layout.full_layers.n;

    memcpy(c->full, kept->full, n_bytes);
    memcpy(c->selective, kept->selective, n_bytes);
}

/* Of the largest rank, in bytes of its own devices. */
static int64_t find_sums_off(const struct search *search, const struct layout_candidate *c)
{
    const struct mesh mesh = search_mesh(search, &c->layout);
    double available = (double)search_available(search, &mesh, c->largest.ranks[0]);

    return (int64_t)(((double)c->estimate_bytes - (double)c->largest.bytes[0]) * available /
                     (double)search->available);
}

int search_measure_levels(struct search *search, struct layout_candidate *c, struct err *err)
{
    struct arena arena = { 0 };
    int n = c->layout.full_layers.n;
    struct kept_levels before = { arena_array(&arena, int, n), arena_array(&arena, int, n), 0 };
    struct kept_levels best = { arena_array(&arena, int, n), arena_array(&arena, int, n), 0 };
    int status = search_measure_bytes(search, c, err);
    bool is_same = false;

    for (int i = 0; i < N_ROUNDS_MAX && !status && !is_same; i++) {
        keep_levels(&before, c);
        if (c->estimate_bytes <= search->available)
            keep_levels(&best, c);
        c->sums_off_bytes = find_sums_off(search, c);
        search_estimate(search, c);
        is_same = are_kept(&before, c);
        if (is_same)
            c->estimate_bytes = before.bytes;
        else
            status = search_measure_bytes(search, c, err);
    }
    c->are_levels_kept = true;
    if (!status && best.bytes && c->estimate_bytes > search->available) {
        give_levels(c, &best);
        search_estimate(search, c);
        c->estimate_bytes = best.bytes;
    }
    arena_release(&arena);
    return status;
}
