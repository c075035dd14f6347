/*
 * search_fit.c - what a layout's ranks keep, compute again and send away, as a run of it has it
 *
 * Where the largest ranks fit with all that is kept, nothing is to be chosen; else memory_fit.h
 * chooses, with the fronts that the search has. What a rank takes does not depend on how many
 * micro-batches follow each other, so where nothing leaves the device, few are compiled.
 */
#include <string.h>

#include "base/num.h"
#include "plan/fit.h"
#include "plan/search_impl.h"

bool search_is_fitted(const struct search *search, const struct layout *l)
{
    return search_is_free(l) || search->request->job->memory.offload != OFFLOAD_NONE;
}

/* ---- choices ---- */

void search_open_choice(struct search *search, struct layout_candidate *c)
{
    struct choice_list *list = &search->choices;

    if (c->choice)
        return;
    list->items =
        arena_grow(search->arena, list->items, sizeof *list->items, &list->capacity, list->n + 1);
    c->choice = arena_array(search->arena, struct search_choice, 1);
    list->items[list->n++] = c->choice;
}

void search_release_choices(struct search *search)
{
    for (int i = 0; i < search->choices.n; i++)
        arena_release(&search->choices.items[i]->arena);
}

/* A copy, since the fit's arena has all that was looked at. */
static void take_choice(struct search_choice *choice, const struct memory_fit *fit,
                        const struct job *job)
{
    int n_layers = job->model.n_layers, n_sets = 0, pp = job->parallel.pp;
    struct rank_offload *offload = arena_array(&choice->arena, struct rank_offload, pp);

    if (fit->keep_sets.set_of_layer) {
        unsigned char *of_layer = arena_array(&choice->arena, unsigned char, n_layers);

        memcpy(of_layer, fit->keep_sets.set_of_layer, sizeof *of_layer * (size_t)n_layers);
        for (int i = 0; i < n_layers; i++)
            n_sets = max_int(n_sets, of_layer[i] + 1);
        struct keep_set *sets = arena_array(&choice->arena, struct keep_set, n_sets);
        memcpy(sets, fit->keep_sets.sets, sizeof *sets * (size_t)n_sets);
        choice->keep_sets = (struct layer_keep_sets){ sets, of_layer };
    }
    memcpy(offload, fit->offload, sizeof *offload * (size_t)pp);
    choice->offload = offload;
}

/* ---- the fit ---- */

/* In bytes of the first island's devices. */
static size_t largest_bytes(const struct search *search, const struct memory_fit *fit,
                            const struct mesh *mesh, int pp)
{
    size_t most = 0;

    for (int rank = 0; rank < pp; rank++) {
        size_t n_bytes =
            search_scale_bytes(search, mesh, rank, (size_t)fit->ranks[rank].device_bytes);

        most = n_bytes > most ? n_bytes : most;
    }
    return most;
}

static void note_added(struct search_choice *choice, const struct memory_fit *fit, int pp,
                       double times)
{
    choice->recompute_ns = choice->moved_bytes = 0;
    for (int rank = 0; rank < pp; rank++) {
        const struct memory_choice *of = &fit->ranks[rank].choice;

        choice->recompute_ns =
            max_i64(choice->recompute_ns, (int64_t)(times * (double)of->recompute_ns));
        choice->moved_bytes = max_i64(choice->moved_bytes, of->moved_bytes);
    }
}

static int choose(const struct search *search, struct layout_candidate *c, struct err *err)
{
    const struct search_request *r = search->request;
    const struct mesh mesh = search_mesh(search, &c->layout);
    struct memory_reuse reuse = { 0 };
    struct arena arena = { 0 };
    struct memory_fit fit;
    struct job job;
    struct memory_fit_request request = {
        .job = &job, .kernels = r->kernels, .or_first_misfit = true, .reuse = &reuse
    };

    int status = search_short_job(search, c, &job, &arena, err);
    if (!status)
        request.rank_bytes = plan_limits(&job, r->cluster, r->memory_share, &arena);
    if (!status && search_is_free(&c->layout))
        reuse.fronts = search_fronts(search, &c->layout, memory_island(r->cluster, &job));
    double times = status ? 1 : (double)c->n_micro_batches / job.n_micro_batches;
    if (!status)
        status = memory_fit(&fit, &request, &arena, err);
    if (!status) {
        take_choice(c->choice, &fit, &job);
        c->estimate_bytes = largest_bytes(search, &fit, &mesh, c->layout.pp);
        note_added(c->choice, &fit, c->layout.pp, times);
    }
    c->is_measured = !status;
    arena_release(&arena);
    return status;
}

int search_fit(const struct search *search, struct layout_candidate *c, bool may_keep,
               struct err *err)
{
    struct search_choice *choice = c->choice;

    choice->is_kept = false;
    if (may_keep && search->request->job->memory.offload == OFFLOAD_NONE) {
        struct layout_candidate kept = *c;

        kept.layout.recompute = RECOMPUTE_NONE;
        if (search_measure_bytes(search, &kept, err))
            return -1;
        if (kept.estimate_bytes <= search->available) {
            c->estimate_bytes = kept.estimate_bytes;
            c->is_measured = choice->is_kept = true;
            return 0;
        }
    }
    return choose(search, c, err);
}

void search_give_choice(const struct layout_candidate *c, struct job *job)
{
    if (!c->choice)
        return;
    /* Nothing else is to be chosen. */
    job->recompute = RECOMPUTE_NONE;
    job->memory.offload = OFFLOAD_NONE;
    job->memory.device_bytes = 0;
    job->keep_sets = c->choice->keep_sets;
    job->offload = c->choice->offload;
}
