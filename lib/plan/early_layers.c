/*
 * early_layers.c - a few numbers of layers, each compiled and simulated
 */
#include "plan/early_layers.h"

#include "base/num.h"
#include "plan/memory_fit.h"
#include "plan/programs.h"
#include "plan/step_time.h"

static bool has_prices(const struct job *job)
{
    struct arena arena = { 0 };
    struct cluster cluster;
    bool has = memory_known_cluster(&cluster, job, &arena) &&
               cluster_n_devices(&cluster) >= job->world_size;

    arena_release(&arena);
    return has;
}

bool early_layers_are_open(const struct job *job)
{
    return job->memory.recompute_early < 0 && compile_recomputes_as_said(job) &&
           job->parallel.pp > 1 && !job->parallel.replica_micro_batches.n && has_prices(job);
}

static bool fits(const struct program *programs, int n, const int64_t *limits)
{
    for (int rank = 0; rank < n; rank++)
        if (limits && limits[rank] &&
            (int64_t)program_space_bytes(&programs[rank], SPACE_DEVICE) > limits[rank])
            return false;
    return true;
}

/* *ns: of a step with so many layers; -1: it does not fit. */
static int time_step(int64_t *ns, const struct job *job, int n_layers, struct kernels *kernels,
                     const struct cluster *cluster, const int64_t *limits, struct err *err)
{
    int n = job->parallel.pp;
    struct arena arena = { 0 };
    struct program *programs = arena_array(&arena, struct program, n);
    struct step_replica all = { ALL_DATA_RANKS, programs };
    struct job early = *job;
    struct simulated_step step;

    early.memory.recompute_early = n_layers;
    int status = programs_compile_unverified(programs, &early, kernels, err);
    *ns = -1;
    if (!status && (!n_layers || fits(programs, n, limits))) {
        status = step_time_simulate(&step, &early, &all, 1, cluster, NULL, NULL, &arena, err);
        *ns = status ? -1 : step.ns;
    }
    for (int rank = 0; rank < n; rank++)
        program_release(&programs[rank]);
    arena_release(&arena);
    return status;
}

/* Layers of the stage that has most. */
static int most_layers(const struct job *job)
{
    int n_stages = job->parallel.pp * max_int(1, job->parallel.chunks);
    int most = (int)ceil_div(job->model.n_layers, n_stages);

    for (int i = 0; i < job->parallel.stages.n; i++)
        most = max_int(most, job->parallel.stages.values[i]);
    return most;
}

int early_layers_find(int *n_layers, const struct job *job, struct kernels *kernels,
                      const int64_t *limits, struct err *err)
{
    struct arena arena = { 0 };
    struct cluster cluster;
    int64_t without, ns = -1;

    *n_layers = 0;
    CHECK(memory_known_cluster(&cluster, job, &arena));
    int status = time_step(&without, job, 0, kernels, &cluster, limits, err);
    for (int n = most_layers(job); n > 0 && !status && ns < 0; n /= 2) {
        status = time_step(&ns, job, n, kernels, &cluster, limits, err);
        if (!status && ns >= 0 && ns < without)
            *n_layers = n;
    }
    arena_release(&arena);
    return status;
}
