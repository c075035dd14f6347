/*
 * fit.c - the largest rank against what the device has
 */
#include "plan/fit.h"

#include "plan/islands.h"
#include "program/passes.h"

size_t plan_available_bytes(const struct device_spec *device, double share)
{
    double usable =
        (double)device->memory * (share > 0 ? share : PLAN_MEMORY_SHARE) - (double)device->reserve;

    return usable > 0 ? (size_t)usable : 0;
}

size_t plan_limit_bytes(const struct job *job, const struct device_spec *device, double share)
{
    size_t available = plan_available_bytes(device, share);
    size_t given = (size_t)job->memory.device_bytes;

    return given && given < available ? given : available;
}

const int64_t *plan_limits(const struct job *job, const struct cluster *cluster, double share,
                           struct arena *arena)
{
    const struct mesh mesh = job_mesh(job);
    int64_t *limits = arena_array(arena, int64_t, job->parallel.pp);

    if (cluster_is_cpu(cluster) && job->memory.offload != OFFLOAD_NONE)
        return NULL;
    for (int i = 0; i < job->parallel.pp; i++)
        limits[i] = (int64_t)plan_limit_bytes(
            job, islands_smallest(cluster, mesh_stage_ranks(&mesh, i)), share);
    return limits;
}

struct plan_fit plan_judge(const struct plan *plan, const struct cluster *cluster, double share)
{
    const struct mesh mesh = job_mesh(plan->job);
    struct plan_fit worst = { 0 };

    for (int i = 0; i < plan->job->parallel.pp; i++) {
        const struct device_spec *device = islands_smallest(cluster, mesh_stage_ranks(&mesh, i));
        struct plan_fit fit = { .needed = plan_needed_bytes(&plan->programs[i], plan->kernels),
                                .available = plan_available_bytes(device, share),
                                .device = device->name,
                                .pp_rank = i };

        fit.fits = fit.needed <= fit.available;
        /* Shares of what there is, compared without dividing. */
        if (!i || (double)fit.needed * (double)worst.available >
                      (double)worst.needed * (double)fit.available)
            worst = fit;
    }
    return worst;
}
