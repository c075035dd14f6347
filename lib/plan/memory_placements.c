/*
 * memory_placements.c - the solver's choice beside placements that others made their own
 *
 * The solver (memory_solver.h) adds up bytes and times by pass; a step of the compiled program is
 * what simulate.h says, where copies also wait for memory and for each other. So what is chosen has
 * to be faster in the simulation than what is known to work elsewhere, under the same limits, each
 * with what the solver has computed again for it, and with nothing, little or all of layers:
 *
 *     ZeRO-Offload  gradients and states leave, as much as must, and the host runs the optimizer
 *     Gemini        gradients, states and weights leave, as much as must
 *
 * Each is the choice of memory_fit.h for a job that allows no more, so it is compiled until it
 * fits, too.
 */
#include "base/num.h"
#include "plan/memory_fit_impl.h"
#include "plan/plan.h"
#include "plan/programs.h"
#include "plan/step_time.h"

static const struct placement {
    const char *name;
    bool leaves[N_OFFLOAD_KINDS];
    enum memory_update update; /* UPDATE_AUTO: as the job says */
} placements[] = {
    { "ZeRO-Offload", { [OFFLOAD_OPTIMIZER] = true, [OFFLOAD_GRADIENTS] = true }, UPDATE_HOST },
    { "Gemini",
      { [OFFLOAD_OPTIMIZER] = true, [OFFLOAD_GRADIENTS] = true, [OFFLOAD_WEIGHTS] = true },
      UPDATE_AUTO },
};

static const enum recompute_mode levels[] = { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL };

enum {
    N_PLACEMENTS = sizeof placements / sizeof *placements,
    N_RECOMPUTE = sizeof levels / sizeof *levels
};

struct comparison {
    const struct memory_fit_request *request;
    const struct cluster *cluster;
    struct memory_fit *best;
    struct arena *arena;
};

/* ---- how long a step takes ---- */

static bool fits(const struct comparison *c, const struct program *p, const struct memory_fit *fit,
                 int pp_rank)
{
    int64_t device = fit->ranks[pp_rank].limit_bytes, host = fit->host_limit_bytes;

    return (!device || (int64_t)program_space_bytes(p, SPACE_DEVICE) <= device) &&
           (!host || c->request->job->memory.file ||
            (int64_t)program_space_bytes(p, SPACE_HOST) <= host);
}

/* Nanoseconds of a step of the job with the choice; -1: it does not fit, or cannot be said. */
static int64_t time_step(const struct comparison *c, const struct memory_fit *fit)
{
    struct arena arena = { 0 };
    struct job job = *c->request->job;
    int pp = job.parallel.pp;
    struct plan plan = { .job = &job,
                         .kernels = c->request->kernels,
                         .programs = arena_array(&arena, struct program, pp) };
    struct step_time time = { .ns = -1 };
    struct err ignored;
    bool is_good;

    job.keep_sets = fit->keep_sets;
    job.offload = fit->offload;
    is_good = !programs_compile_unverified(plan.programs, &job, plan.kernels, &ignored);
    for (int rank = 0; rank < pp && is_good; rank++)
        is_good = fits(c, &plan.programs[rank], fit, rank);
    if (is_good && step_time_predict(&time, &plan, c->cluster, &arena, &ignored) < 0)
        time.ns = -1;
    for (int rank = 0; rank < pp; rank++)
        program_release(&plan.programs[rank]);
    arena_release(&arena);
    return time.ns;
}

/* ---- placements ---- */

/* The job with the placement's kinds and no others; false: it does not allow them. */
static bool restrict_job(struct job *job, const struct placement *placement)
{
    const struct job asked = *job;

    job->memory.offload = OFFLOAD_LIST;
    job->memory.offload_kinds = (struct bitset){ { 0 } };
    for (int kind = 0; kind < N_OFFLOAD_KINDS; kind++) {
        if (!placement->leaves[kind])
            continue;
        if (asked.memory.offload == OFFLOAD_LIST && !bitset_has(&asked.memory.offload_kinds, kind))
            return false;
        bitset_add(&job->memory.offload_kinds, kind);
    }
    if (placement->update == UPDATE_AUTO)
        return true;
    job->memory.update = placement->update;
    return asked.memory.update == UPDATE_AUTO || asked.memory.update == placement->update;
}

static void try_placement(struct comparison *c, const struct placement *placement,
                          const struct keep_sets *fronts)
{
    struct memory_fit_request request = *c->request;
    struct memory_reuse reuse = { .fronts = fronts };
    struct job job = *c->request->job;
    struct memory_fit found;
    struct err ignored;

    request.job = &job;
    request.reuse = &reuse;
    if (!restrict_job(&job, placement) ||
        memory_fit_solved(&found, &request, c->arena, &ignored) < 0)
        return;
    int64_t ns = time_step(c, &found);
    if (ns < 0 || ns >= c->best->simulated_ns)
        return;
    found.placement = placement->name;
    found.simulated_ns = ns;
    found.solved_ns = c->best->solved_ns;
    *c->best = found;
}

/* Layers that all keep what the level says; NULL: it cannot be said. */
static const struct keep_sets *find_level(const struct comparison *c, enum recompute_mode level)
{
    struct keep_sets *fronts = arena_array(c->arena, struct keep_sets, 1);
    struct job job = *c->request->job;
    struct keep_sets_request request = {
        .job = &job, .kernels = c->request->kernels, .cluster = c->cluster, .is_fixed = true
    };
    struct err ignored;

    job.recompute = level;
    return keep_sets_find(fronts, &request, c->arena, &ignored) < 0 ? NULL : fronts;
}

static void try_level(struct comparison *c, const struct keep_sets *fronts)
{
    for (int i = 0; i < N_PLACEMENTS; i++)
        try_placement(c, &placements[i], fronts);
}

/* fronts: of the job; NULL: not known yet. */
static void try_levels(struct comparison *c, const struct keep_sets *fronts)
{
    try_level(c, fronts);
    for (int i = 0; i < N_RECOMPUTE && c->request->job->recompute == RECOMPUTE_AUTO; i++) {
        const struct keep_sets *of_level = find_level(c, levels[i]);

        if (of_level)
            try_level(c, of_level);
    }
}

/* ---- whether there is anything to compare ---- */

static bool has_left(const struct memory_fit *fit, int pp)
{
    bool has = false;

    for (int rank = 0; rank < pp; rank++) {
        for (int kind = 0; kind < N_AWAY_KINDS; kind++)
            has |= fit->ranks[rank].away_bytes[kind] > 0;
        has |= fit->ranks[rank].activation_bytes > 0;
    }
    return has;
}

/* False: there is no cluster that the job can be simulated on. */
static bool open_comparison(struct comparison *c, struct memory_fit *fit,
                            const struct memory_fit_request *request, struct arena *arena)
{
    struct cluster *own = arena_array(arena, struct cluster, 1);
    struct err ignored;

    *c = (struct comparison){ request, request->cluster ? request->cluster : own, fit, arena };
    if (!request->cluster &&
        memory_cluster(own, request->job, request->kernels, arena, &ignored) < 0)
        return false;
    return cluster_n_devices(c->cluster) >= request->job->world_size;
}

int64_t memory_simulate(struct memory_fit *fit, const struct memory_fit_request *request)
{
    struct arena arena = { 0 };
    struct comparison c;

    if (!fit->simulated_ns && open_comparison(&c, fit, request, &arena))
        fit->simulated_ns = max_i64(0, time_step(&c, fit));
    arena_release(&arena);
    return fit->simulated_ns;
}

void memory_take_fastest(struct memory_fit *fit, const struct memory_fit_request *request,
                         struct arena *arena)
{
    struct comparison c;

    if (request->takes_least || !fit->limit_bytes || !has_left(fit, request->job->parallel.pp) ||
        !open_comparison(&c, fit, request, arena))
        return;
    int64_t ns = time_step(&c, fit);
    if (ns < 0)
        return;
    fit->simulated_ns = fit->solved_ns = ns;
    try_levels(&c, fit->fronts);
}

bool memory_take_placement(struct memory_fit *fit, const struct memory_fit_request *request,
                           struct arena *arena)
{
    struct comparison c;

    if (request->takes_least || request->job->memory.offload == OFFLOAD_NONE ||
        !open_comparison(&c, fit, request, arena))
        return false;
    *fit = (struct memory_fit){ .simulated_ns = INT64_MAX };
    try_levels(&c, NULL);
    return fit->placement != NULL;
}
