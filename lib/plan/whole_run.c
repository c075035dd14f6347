/*
 * whole_run.c - see the header
 */
#include "plan/whole_run.h"

#include <math.h>

#include "base/num.h"
#include "plan/islands.h"

#define DAY_SECONDS 86400.0

/* ---- checkpoints ---- */

/* Of a parameter, its master, moments and average, on all ranks that have parts of them. */
static double parameter_bytes(const struct program *program, int i)
{
    const struct parameter *p = &program->parameters[i];
    const struct mesh_place first = { .of = { 0 } };
    struct parameter_part part = program_parameter_part(program, i, &first);
    const int cells[] = { part.master, part.low, part.moment1, part.moment2, part.ema };
    double n_bytes = 0;

    for (size_t k = 0; k < sizeof cells / sizeof *cells; k++)
        if (cells[k])
            n_bytes += (double)dtype_bytes(program->values[cells[k]].dtype);
    n_bytes += (double)(!!part.m_scale + !!part.v_scale) * sizeof(float) / OPS_STATE_BLOCK;
    return n_bytes * (double)p->whole_rows * (double)p->whole_cols;
}

/* Of all stages; adapters of a model that lies elsewhere are saved without it. */
static double checkpoint_bytes(const struct plan *plan)
{
    const struct job *job = plan->job;
    bool are_trained_alone = job->lora.rank && job->train.init;
    double n_bytes = 0;

    for (int stage = 0; stage < job->parallel.pp; stage++) {
        const struct program *program = &plan->programs[stage];

        for (int i = 0; i < program->n_parameters; i++)
            if (!program->parameters[i].is_copy &&
                (program->parameters[i].trainable || !are_trained_alone))
                n_bytes += parameter_bytes(program, i);
    }
    return n_bytes;
}

/* How many ranks keep, and at a resume read, the same. */
static int n_copies(const struct job *job)
{
    if (!job->parallel.zero)
        return job->parallel.dp;
    return job->parallel.zero_group ? job->parallel.dp / job->parallel.zero_group : 1;
}

static double host_rate(const struct cluster *cluster)
{
    const struct device_spec *device = cluster->islands[0].device;
    double rate =
        cluster->links.host_bandwidth > 0 ? cluster->links.host_bandwidth : device->host_link;

    return device->is_cpu ? 0 : rate / max_int(1, cluster->links.host_shared_by);
}

static double longer_of(double n_bytes, double storage, double share, double host)
{
    return fmax(n_bytes / storage, host > 0 ? share / host : 0);
}

static void find_checkpoints(struct whole_run *run, const struct plan *plan,
                             const struct cluster *cluster, const struct step_time *time)
{
    const struct job *job = plan->job;
    const struct simulated_rank *busiest = &time->simulated.ranks[time->simulated.busiest];
    double n_bytes = checkpoint_bytes(plan), n_read = n_bytes * n_copies(job);
    double beside = (double)(time->simulated.ns - busiest->of[TIME_UPDATE]) / 1e9;
    int64_t every = job->checkpoint.every_steps;

    run->checkpoints.bytes = n_bytes;
    if (run->n_steps)
        run->checkpoints.n = 1 + (every ? (run->n_steps - 1) / every : 0);
    if (cluster->links.storage_write > 0) {
        run->checkpoints.save_seconds = longer_of(n_bytes, cluster->links.storage_write,
                                                  n_bytes / job->world_size, host_rate(cluster));
        run->checkpoints.stall_seconds = fmax(0, run->checkpoints.save_seconds - beside);
    }
    if (cluster->links.storage_read > 0)
        run->checkpoints.load_seconds = longer_of(n_read, cluster->links.storage_read,
                                                  n_read / job->world_size, host_rate(cluster));
}

/* ---- all of it ---- */

/* Sum of a quantity of each rank's device; 0 if it is not known of all. */
static double sum_devices(const struct cluster *cluster, int n_ranks, size_t member)
{
    double sum = 0;

    for (int i = 0; i < cluster->n_islands; i++) {
        const struct cluster_island *island = &cluster->islands[i];
        int64_t n = islands_count(cluster, i, 0, n_ranks);
        double each = *(const double *)((const char *)island + member);

        if (n && !(each > 0))
            return 0;
        sum += (double)n * each;
    }
    return sum;
}

void whole_run_find(struct whole_run *run, const struct plan *plan, const struct cluster *cluster,
                    const struct step_time *time)
{
    const struct job *job = plan->job;
    struct plan_flops flops = plan_count_flops(plan);
    double steps = (double)job->train.steps, hours;

    *run = (struct whole_run){ .n_steps = job->train.steps };
    find_checkpoints(run, plan, cluster, time);
    run->tokens = steps * (double)job->train.global_batch * (double)job->data.seq_len;
    run->seconds = steps * (double)time->ns / 1e9;
    if (run->n_steps)
        run->seconds += (double)(run->checkpoints.n - 1) * run->checkpoints.stall_seconds +
                        run->checkpoints.save_seconds;
    run->device_days = run->seconds / DAY_SECONDS * job->world_size;
    run->model_flops = steps * flops.model;
    run->megatron_flops = steps * flops.megatron;
    run->device_days_at_peak = run->megatron_flops /
                               islands_peak(cluster, job->world_size, job->train.dtype) /
                               DAY_SECONDS * job->world_size;
    hours = run->seconds / 3600;
    run->kilowatt_hours =
        hours / 1000 *
        sum_devices(cluster, job->world_size, offsetof(struct cluster_island, watts));
    run->price = hours * sum_devices(cluster, job->world_size,
                                     offsetof(struct cluster_island, price_per_hour));
}
