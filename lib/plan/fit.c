/*
 * fit.c - the largest rank against what the device has
 */
#include "plan/fit.h"

#include "program/passes.h"

size_t plan_available_bytes(const struct device_spec *device, double share)
{
    double usable =
        (double)device->memory * (share > 0 ? share : PLAN_MEMORY_SHARE) - (double)device->reserve;

    return usable > 0 ? (size_t)usable : 0;
}

struct plan_fit plan_judge(const struct plan *plan, const struct device_spec *device)
{
    struct plan_fit fit = { .available = plan_available_bytes(device, 0) };

    for (int i = 0; i < plan->job->parallel.pp; i++) {
        size_t n = program_memory_bytes(&plan->programs[i]);

        fit.needed = n > fit.needed ? n : fit.needed;
    }
    fit.fits = fit.needed <= fit.available;
    return fit;
}
