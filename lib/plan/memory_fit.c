/*
 * memory_fit.c - the choice, compiled until it fits
 */
#include <stdio.h>
#include <string.h>

#include "base/num.h"
#include "base/str.h"
#include "plan/islands.h"
#include "plan/memory_fit_impl.h"

/* ---- a choice as options of the compiler ---- */

/* Sets of former choices make room. */
static void drop_unused_sets(struct fitting *f)
{
    unsigned char new_number[N_SETS_MAX] = { 0 };
    bool is_used[N_SETS_MAX] = { false };
    int n = 0;

    for (int layer = 0; layer < f->job.model.n_layers; layer++)
        is_used[f->set_of_layer[layer]] = true;
    for (int i = 0; i < f->n_sets; i++) {
        if (!is_used[i])
            continue;
        f->sets[n] = f->sets[i];
        new_number[i] = (unsigned char)n++;
    }
    for (int layer = 0; layer < f->job.model.n_layers; layer++)
        f->set_of_layer[layer] = new_number[f->set_of_layer[layer]];
    f->n_sets = n;
    f->last.rank = 0;
}

static unsigned char number_of_set(struct fitting *f, const struct keep_set *set)
{
    int i = 0;

    while (i < f->n_sets && memcmp(&f->sets[i], set, sizeof *set))
        i++;
    if (i == N_SETS_MAX) {
        drop_unused_sets(f);
        i = f->n_sets;
    }
    CHECK(i < N_SETS_MAX);
    if (i == f->n_sets)
        f->sets[f->n_sets++] = *set;
    return (unsigned char)i;
}

static void take_layers(struct fitting_rank *r, const struct memory_choice *choice)
{
    struct fitting *f = r->f;
    struct memory_fit_rank *of = &f->ranks[r->pp_rank];

    of->activation_bytes = 0;
    for (int i = 0; i < r->n_layers && !f->has_levels; i++) {
        const struct keep_front *front = &f->fronts.fronts[f->fronts.front_of_layer[r->layers[i]]];
        const struct memory_layer_choice *layer = &choice->layers[0][r->places[i]];
        const struct keep_point *point = &front->points[layer->point];
        struct keep_set set;

        memset(&set, 0, sizeof set);
        set.full = point->set.full;
        set.dropped = point->set.dropped;
        for (int k = 0; k < point->n_parts; k++) {
            if (layer->away >> k & 1)
                of->activation_bytes += point->parts[k].n_bytes;
            if (r->problem.may_move_parts)
                bitset_add(&set.away, (int)point->parts[k].kind);
        }
        f->set_of_layer[r->layers[i]] = number_of_set(f, &set);
    }
}

/* How many bytes go the solver says, which ones the pass. */
static void allow_parts(struct fitting_rank *r)
{
    struct rank_offload *offload = &r->f->offload[r->pp_rank];
    int64_t n_bytes = r->f->ranks[r->pp_rank].activation_bytes;

    offload->activation_bytes = (size_t)n_bytes;
    for (int i = 0; i < r->n_layers && !n_bytes && !r->f->has_levels; i++) {
        struct keep_set set = r->f->sets[r->f->set_of_layer[r->layers[i]]];

        memset(&set.away, 0, sizeof set.away);
        r->f->set_of_layer[r->layers[i]] = number_of_set(r->f, &set);
    }
}

static void take_cells(struct fitting_rank *r, const struct memory_choice *choice)
{
    for (int kind = 0; kind < N_AWAY_KINDS; kind++) {
        const struct cell_list *cells = &r->cells[kind];
        int n_groups = choice->n_away[memory_class_of((enum away_kind)kind)];
        int n = n_groups ? cells->ends[n_groups - 1] : 0;

        r->away[kind] = 0;
        for (int i = 0; i < n; i++)
            r->away[kind] += cells->bytes[i];
    }
}

/* ---- rounds ---- */

static int try_choice(struct fitting_rank *r, const struct memory_choice *choice, struct err *err)
{
    take_layers(r, choice);
    allow_parts(r);
    take_cells(r, choice);
    r->f->offload[r->pp_rank].updates_on_host = choice->is_host_update;
    return memory_compile_choice(r, err);
}

/* Cells that leave last stay after all where there is room: what is used most often first. */
static int fill_room(struct fitting_rank *r, struct err *err)
{
    static const enum away_kind order[] = { AWAY_WEIGHTS, AWAY_GRADIENTS, AWAY_STATES };
    struct memory_fit_rank *of = &r->f->ranks[r->pp_rank];
    int64_t limit = memory_device_limit(r->f->request, r->pp_rank);

    for (size_t k = 0; k < sizeof order / sizeof *order; k++) {
        const struct cell_list *cells = &r->cells[order[k]];
        size_t before = r->away[order[k]], room = (size_t)(limit - of->device_bytes), away = 0;
        int n = 0;

        while (away < before)
            away += cells->bytes[n++];
        while (n && before - away + cells->bytes[n - 1] <= room)
            away -= cells->bytes[--n];
        if (away == before)
            continue;
        r->away[order[k]] = away;
        if (memory_compile_choice(r, err) < 0)
            return -1;
        if (of->device_bytes <= limit)
            continue;
        r->away[order[k]] = before;
        if (memory_compile_choice(r, err) < 0)
            return -1;
    }
    return 0;
}

/* Without a limit all that is named leaves. */
static int64_t budget_of(const struct fitting_rank *r)
{
    int64_t limit = memory_device_limit(r->f->request, r->pp_rank);

    if (limit)
        return limit;
    return r->f->job.memory.offload == OFFLOAD_LIST ? 0 : INT64_MAX / 4;
}

static bool is_better(const struct memory_choice *a, const struct memory_choice *b)
{
    return a->ns != b->ns ? a->ns < b->ns : a->moved_bytes < b->moved_bytes;
}

/*
 * Between a budget of the sums that is known to fit, and one that is not. The first guess is the
 * limit itself.
 */
static int fit_rank(struct fitting_rank *r, struct err *err)
{
    struct memory_fit_rank *of = &r->f->ranks[r->pp_rank];
    int64_t limit = memory_device_limit(r->f->request, r->pp_rank), budget = budget_of(r);
    int64_t fits = -1, too_much = INT64_MAX;
    struct memory_choice best = { .fits = false };
    int n_over = 0; /* rounds that did not fit, one after the other */

    for (int round = 0; round < N_ROUNDS_MAX; round++) {
        struct memory_choice choice;

        r->problem.budget_bytes = budget;
        memory_solve(&choice, &r->problem, r->f->arena);
        if (try_choice(r, &choice, err) < 0)
            return -1;
        if (!limit || of->device_bytes <= limit) {
            if (!best.fits || is_better(&choice, &best))
                best = choice;
            best.fits = true;
            fits = max_i64(fits, budget);
            n_over = 0;
            if (!choice.ns && !choice.moved_bytes)
                break; /* nothing is better */
        } else {
            if (!choice.fits)
                break; /* the least there is */
            /* With so much as the choice had it would be the same. */
            budget = min_i64(budget, choice.bytes);
            too_much = min_i64(too_much, budget);
        }
        int64_t off = limit ? limit - of->device_bytes : 0;
        int64_t next = budget + (off < 0 ? off * (1 << n_over++) : off);
        if (next <= fits || next >= too_much)
            next = too_much == INT64_MAX ? fits
                   : fits < 0            ? too_much / 2
                                         : fits + (too_much - fits) / 2;
        if (next == budget || (fits >= 0 && (next - fits) < limit / 512))
            break;
        budget = next;
    }
    of->choice = best;
    if (!best.fits)
        return 1;
    if (try_choice(r, &best, err) < 0)
        return -1;
    return limit ? fill_room(r, err) : 0;
}

/* Of a kind of layer the point that keeps fewest bytes where what may leave has left. */
static struct memory_layer_choice least_of_kind(const struct memory_layer_kind *kind, bool may_move)
{
    struct memory_layer_choice least = { 0 };
    int64_t fewest = INT64_MAX;

    for (int i = 0; i < kind->n_points; i++) {
        const struct memory_point *point = &kind->points[i];
        int64_t n_bytes = point->slot_bytes;

        for (int k = 0; k < point->n_parts && may_move; k++)
            n_bytes -= point->parts[k];
        if (n_bytes >= fewest)
            continue;
        fewest = n_bytes;
        least.point = i;
        least.away = may_move ? (uint32_t)((UINT64_C(1) << point->n_parts) - 1) : 0;
    }
    return least;
}

/* All that may leave does. */
static int take_all(struct fitting_rank *r, struct err *err)
{
    const struct memory_problem *p = &r->problem;
    struct memory_choice *choice = &r->f->ranks[r->pp_rank].choice;
    struct memory_layer_choice **layers =
        arena_array(r->f->arena, struct memory_layer_choice *, p->n_chunks);

    for (int c = 0; c < p->n_chunks; c++) {
        layers[c] = arena_array(r->f->arena, struct memory_layer_choice, p->chunks[c].n_layers);
        for (int i = 0; i < p->chunks[c].n_layers; i++)
            layers[c][i] =
                least_of_kind(&p->kinds[p->chunks[c].kind_of_layer[i]], p->may_move_parts);
    }
    *choice =
        (struct memory_choice){ .layers = layers, .is_host_update = !p->may_update_on_device };
    for (int class = 0; class < N_MEMORY_CLASSES; class ++)
        choice->n_away[class] = p->groups[class].n;
    r->f->offload[r->pp_rank].n_fewer_ahead = N_FEWER_AHEAD;
    return try_choice(r, choice, err);
}

/* Whether nothing is to be chosen: all that is kept fits, as it is compiled. */
static bool keeps_all(struct fitting_rank *r)
{
    struct memory_fit_rank *of = &r->f->ranks[r->pp_rank];
    int64_t limit = memory_device_limit(r->f->request, r->pp_rank);
    struct memory_layer_choice **layers = arena_new(r->f->arena, struct memory_layer_choice *);

    if (budget_of(r) == 0 || (limit && of->device_bytes > limit))
        return false;
    *layers = arena_array(r->f->arena, struct memory_layer_choice, r->problem.chunks[0].n_layers);
    of->choice =
        (struct memory_choice){ .fits = true, .layers = layers, .bytes = of->device_bytes };
    memory_note_cells(r);
    return true;
}

/* Whatever the limits are. */
static int take_least(struct fitting_rank *r, struct err *err)
{
    struct memory_choice *choice = &r->f->ranks[r->pp_rank].choice;

    r->f->offload[r->pp_rank].n_fewer_ahead = N_FEWER_AHEAD;
    r->problem.budget_bytes = 0;
    memory_solve(choice, &r->problem, r->f->arena);
    return try_choice(r, choice, err);
}

/* What would need less. */
static const char *hints(const struct job *job)
{
    static const char *const texts[2][2] = { { "", "recompute: auto, " },
                                             { "memory.offload: auto, ",
                                               "memory.offload: auto, recompute: auto, " } };

    bool has_levels = job->recompute_layers.full.n || job->recompute_layers.selective.n;

    return texts[job->memory.offload != OFFLOAD_AUTO]
                [job->recompute != RECOMPUTE_AUTO && !has_levels];
}

static int refuse(struct fitting_rank *r, struct err *err)
{
    struct memory_fit_rank *of = &r->f->ranks[r->pp_rank];
    struct program program = { 0 };
    struct fullest_op fullest;
    char least[32], limit[32], at[32], layer[32] = "";
    int failed = memory_compile_rank(r, &program, err) < 0;

    if (!failed) {
        program_fullest_op(&program, &fullest);
        if (fullest.layer >= 0)
            snprintf(layer, sizeof layer, ", layer %d,", fullest.layer);
        err_set(
            err, ERR_DEVICE,
            "pipeline rank %d needs at least %s of the device's memory, and may take %s: most "
            "of it in %s of %s%s with %s beside what stays (hint: %s%smore ranks)",
            r->pp_rank, str_bytes(least, sizeof least, (size_t)of->device_bytes),
            str_bytes(limit, sizeof limit, (size_t)memory_device_limit(r->f->request, r->pp_rank)),
            op_info(fullest.kind)->name, fullest.function, layer,
            str_bytes(at, sizeof at, fullest.bytes), hints(&r->f->job),
            r->f->job.train.micro_batch > 1 ? "a smaller train.micro_batch, " : "");
    }
    program_release(&program);
    return -1;
}

static int check_host(const struct fitting_rank *r, struct err *err)
{
    int64_t limit = memory_host_limit(r->f->request), taken = r->f->ranks[r->pp_rank].host_bytes;
    char text[2][32];

    if (!limit || taken <= limit)
        return 0;
    str_bytes(text[0], 32, (size_t)taken);
    str_bytes(text[1], 32, (size_t)limit);
    if (r->f->job.memory.file)
        return err_set(err, ERR_DEVICE,
                       "pipeline rank %d needs %s of the host's memory beside its file, which may "
                       "take %s (hint: a larger memory.host_bytes)",
                       r->pp_rank, text[0], text[1]);
    return err_set(err, ERR_DEVICE,
                   "pipeline rank %d sends %s from the device to the host, which may take %s "
                   "(hint: a larger memory.host_bytes%s, or memory.file: a folder on a disk)",
                   r->pp_rank, text[0], text[1],
                   memory_device_limit(r->f->request, r->pp_rank) ? " or memory.device_bytes" : "");
}

/* Where memory is short fewer copies travel at a time. Returns 1 if nothing fits. */
static int fit_with_copies(struct fitting_rank *r, struct err *err)
{
    int status = 1, most = r->f->job.memory.offload == OFFLOAD_NONE ? 0 : N_FEWER_AHEAD;

    for (int fewer = 0; status > 0 && fewer <= most; fewer++) {
        r->f->offload[r->pp_rank].n_fewer_ahead = fewer;
        status = fit_rank(r, err);
    }
    return status;
}

static int fit_moving_parts(struct fitting_rank *r, bool may_move, struct err *err)
{
    r->problem.may_move_parts = may_move;
    r->problem.lists = memory_lists_open(&r->problem, r->f->arena);
    return fit_with_copies(r, err);
}

enum { N_HOST_ROUNDS = 3 };

/* Where the host has no room for all that would leave, what is of layers is computed again instead,
 * and of cells as many leave as have a place, if that fits. */
static int fit_within_host(struct fitting_rank *r, struct err *err)
{
    int64_t limit = memory_host_limit(r->f->request);
    int status = fit_with_copies(r, err);

    if (status || !limit || r->f->ranks[r->pp_rank].host_bytes <= limit || r->f->job.memory.file ||
        !r->problem.may_move_parts)
        return status;
    r->problem.host_budget_bytes = limit;
    for (int i = 0; i < N_HOST_ROUNDS && !status; i++) {
        status = fit_moving_parts(r, false, err);
        int64_t over = r->f->ranks[r->pp_rank].host_bytes - limit;
        if (status < 0 || (!status && over <= 0))
            return status;
        r->problem.host_budget_bytes -= over;
    }
    r->problem.host_budget_bytes = 0;
    return fit_moving_parts(r, true, err);
}

static int fit_ranks(struct fitting *f, struct err *err)
{
    for (int rank = 0; rank < f->job.parallel.pp; rank++) {
        struct fitting_rank r = { .f = f, .pp_rank = rank };
        struct program program = { 0 };

        if (memory_compile_rank(&r, &program, err) < 0) {
            program_release(&program);
            return -1;
        }
        memory_problem_open(&r, &program);
        program_release(&program);
        if (!f->request->takes_least && keeps_all(&r))
            continue;
        if (!f->request->is_quick)
            memory_problem_lists(&r);
        if (f->request->takes_least) {
            if ((f->request->is_quick ? take_all : take_least)(&r, err) < 0)
                return -1;
            continue;
        }
        int status = fit_within_host(&r, err);
        if (status > 0 && f->request->or_first_misfit)
            return 0;
        if (status > 0 && f->request->or_least)
            continue;
        if (status > 0)
            return refuse(&r, err);
        if (status < 0 || check_host(&r, err) < 0)
            return -1;
    }
    return 0;
}

/* Each layer as the first point of its kind. */
static void open_sets(struct fitting *f)
{
    int n_layers = f->job.model.n_layers;

    f->sets = arena_array(f->arena, struct keep_set, N_SETS_MAX);
    f->set_of_layer = arena_array(f->arena, unsigned char, n_layers);
    f->last.set_of_layer = arena_array(f->arena, unsigned char, n_layers);
    for (int i = 0; i < n_layers; i++) {
        struct keep_set set;

        memset(&set, 0, sizeof set);
        const struct keep_point *first = &f->fronts.fronts[f->fronts.front_of_layer[i]].points[0];
        set.full = first->set.full;
        set.dropped = first->set.dropped;
        f->set_of_layer[i] = number_of_set(f, &set);
    }
    if (!f->has_levels)
        f->job.keep_sets = (struct layer_keep_sets){ f->sets, f->set_of_layer };
}

static int64_t least_limit(const struct memory_fit_request *request)
{
    int64_t least = memory_device_limit(request, 0);

    for (int rank = 1; rank < request->job->parallel.pp; rank++)
        least = min_i64(least, memory_device_limit(request, rank));
    return least;
}

/* What is checked again of a shard's update is found in one op on all of it
 * (train/recheck_optimizer.c): then it is not cut. */
static int64_t piece_bytes(const struct job *job, int64_t limit)
{
    if (job->train.recheck_every > 0 && job->parallel.zero)
        return INT64_MAX / 16;
    return limit ? max_i64(PIECE_LEAST, min_i64(PIECE_BYTES, limit / PIECE_PART)) : PIECE_BYTES;
}

int memory_island(const struct cluster *cluster, const struct job *job)
{
    const struct mesh_ranks all = { .n = max_int(1, job->world_size), .n_runs = 1 };

    return islands_slowest(cluster, all, job->train.dtype);
}

int memory_fit_solved(struct memory_fit *fit, const struct memory_fit_request *request,
                      struct arena *arena, struct err *err)
{
    struct cluster *own = arena_array(arena, struct cluster, 1);
    struct fitting f = { .request = request,
                         .cluster = request->cluster ? request->cluster : own,
                         .job = *request->job,
                         .arena = arena };
    int pp = f.job.parallel.pp;

    if (!request->cluster && memory_cluster(own, &f.job, request->kernels, arena, err) < 0)
        return -1;
    struct keep_sets_request sets = { .job = &f.job,
                                      .kernels = request->kernels,
                                      .cluster = f.cluster,
                                      .island = memory_island(f.cluster, &f.job),
                                      .is_fixed = f.job.recompute != RECOMPUTE_AUTO };
    if (request->reuse && request->reuse->fronts)
        f.fronts = *request->reuse->fronts;
    else if (keep_sets_find(&f.fronts, &sets, arena, err) < 0)
        return -1;
    f.offload = arena_array(arena, struct rank_offload, pp);
    f.ranks = arena_array(arena, struct memory_fit_rank, pp);
    f.listed = arena_array(arena, struct memory_problem, pp);
    for (int r = 0; r < pp; r++)
        f.ranks[r].limit_bytes = memory_device_limit(request, r);
    f.job.offload = f.offload;
    f.piece_bytes = piece_bytes(&f.job, least_limit(request));
    for (int r = 0; r < pp; r++)
        f.offload[r].piece_bytes = (size_t)f.piece_bytes;
    f.has_levels = f.job.recompute != RECOMPUTE_AUTO &&
                   (f.job.recompute_layers.full.n || f.job.recompute_layers.selective.n);
    open_sets(&f);
    if (fit_ranks(&f, err) < 0)
        return -1;
    struct keep_sets *fronts = arena_array(arena, struct keep_sets, 1);
    *fronts = f.fronts;
    if (request->reuse)
        request->reuse->fronts = fronts;
    *fit = (struct memory_fit){ .keep_sets = f.job.keep_sets,
                                .offload = f.offload,
                                .ranks = f.ranks,
                                .fronts = fronts,
                                .limit_bytes = least_limit(request),
                                .host_limit_bytes = memory_host_limit(request) };
    return 0;
}

int memory_fit(struct memory_fit *fit, const struct memory_fit_request *request,
               struct arena *arena, struct err *err)
{
    if (memory_fit_solved(fit, request, arena, err) < 0)
        return err->code == ERR_DEVICE && memory_take_placement(fit, request, arena) ? 0 : -1;
    memory_take_fastest(fit, request, arena);
    return 0;
}
