/*
 * rank_watch.c - samples of all ranks' own times, and what rank 0 finds in them
 */
#include "train/rank_watch.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/num.h"
#include "launch/excluded.h"
#include "layout/axes.h"
#include "train/trainer_impl.h"

enum { HOST_BYTES = LAUNCH_HOST_BYTES };

/* What a rank sends of a sample. */
struct sample {
    struct straggler_times times;
    float exposed; /* seconds of a step, of all steps since the sample before */
    int32_t n_steps;
};

/* What a rank sends of its ops, where any rank computes on a host. */
struct op_sample {
    int32_t n_steps;
    float seconds[N_OP_KINDS];
};

struct rank_watch {
    struct arena arena;
    struct trainer *trainer;
    bool is_host;      /* the ranks compute there: every step is measured */
    bool has_op_times; /* some rank does */
    bool is_measuring; /* on a GPU: the step at hand */
    bool is_warm;      /* the first sample is over: it has steps that load code and touch memory */
    double interval;   /* seconds, between samples */
    double sampled_at;
    struct sample *samples;       /* [world_size] */
    struct op_sample *op_samples; /* [world_size]; NULL without has_op_times */
    /* Rank 0 alone. */
    struct stragglers *stragglers;
    struct straggler_times *times;      /* [world_size] */
    struct straggler_finding *findings; /* [2 * world_size] */
    struct rank_exposed most_exposed;   /* of the last sample */
    struct rank_op_times op_times;
    char (*hosts)[HOST_BYTES]; /* [world_size] */
};

/* Micro-batches of a step of the rank. */
static int n_micro_batches(const struct job *job, const struct mesh *mesh, int rank)
{
    const struct job_counts *counts = &job->parallel.replica_micro_batches;

    return counts->n ? counts->values[mesh_data_rank(mesh, rank)] : job->n_micro_batches;
}

/* Equal for ranks with equal work: they run the same stage on as many micro-batches. Of experts
 * some get more tokens than others. */
static int work_of(const struct job *job, const struct mesh *mesh, int rank)
{
    int stage = mesh_coordinate(mesh, rank, axes_stages());
    enum mesh_axis experts = axes_exchange(mesh, job->moe.expert_tp == EXPERT_TP_ONE);

    return (n_micro_batches(job, mesh, rank) * mesh->size[axes_stages()] + stage) *
               mesh_size(mesh, experts) +
           mesh_coordinate(mesh, rank, experts);
}

int rank_watch_create(struct rank_watch **out, struct trainer *trainer, const struct job *job,
                      struct err *err)
{
    const struct mesh *mesh = &trainer_program(trainer)->mesh;
    int n = trainer->world_size;
    char host[HOST_BYTES] = "";

    *out = NULL;
    if (n < 2 || job->train.straggler_ratio <= 0)
        return 0;
    struct rank_watch *w = calloc(1, sizeof *w);
    CHECK(w);
    int *work = arena_array(&w->arena, int, n);
    for (int rank = 0; rank < n; rank++)
        work[rank] = work_of(job, mesh, rank);
    w->trainer = trainer;
    w->is_host = device_is_host(run_device(trainer_run(trainer)));
    w->interval = job->train.straggler_seconds / STRAGGLER_WINDOW;
    w->sampled_at = clock_seconds();
    w->samples = arena_array(&w->arena, struct sample, n);
    w->hosts = arena_alloc_array(&w->arena, HOST_BYTES, (size_t)n);
    strncpy(host, launch_host(), sizeof host - 1);
    int64_t any_host = w->is_host;
    if (trainer_gather(trainer, host, w->hosts, HOST_BYTES, err) < 0 ||
        trainer_agree(trainer, &any_host, err) < 0 ||
        (w->is_host && trainer_measure(trainer, true, err) < 0)) {
        rank_watch_destroy(w);
        return -1;
    }
    w->has_op_times = any_host != 0;
    if (any_host)
        w->op_samples = arena_array(&w->arena, struct op_sample, n);
    if (trainer->world_rank == 0) {
        w->stragglers = stragglers_create(work, n, job->train.straggler_ratio);
        w->times = arena_array(&w->arena, struct straggler_times, n);
        w->findings = arena_array(&w->arena, struct straggler_finding, 2 * n);
        w->most_exposed.rank = -1;
    }
    *out = w;
    return 0;
}

void rank_watch_destroy(struct rank_watch *w)
{
    if (!w)
        return;
    stragglers_destroy(w->stragglers);
    arena_release(&w->arena);
    free(w);
}

bool rank_watch_step(struct rank_watch *w)
{
    struct err ignored;

    if (!w)
        return false;
    if (w->is_measuring)
        trainer_measure(w->trainer, false, &ignored);
    w->is_measuring = false;
    return w->trainer->world_rank == 0 && clock_seconds() - w->sampled_at >= w->interval;
}

/* On rank 0. */
static void compare(struct rank_watch *w, rank_watch_report_fn report, void *context)
{
    int n = 0;

    for (int rank = 0; rank < w->trainer->world_size; rank++)
        w->times[rank] = w->samples[rank].times;
    n = stragglers_add(w->stragglers, w->times, w->samples[0].n_steps, w->findings);
    for (int i = 0; i < n; i++)
        report(context, &w->findings[i], w->hosts[w->findings[i].rank]);
}

/* On rank 0. */
static void find_most_exposed(struct rank_watch *w)
{
    struct rank_exposed *most = &w->most_exposed;

    *most = (struct rank_exposed){ .rank = -1 };
    for (int rank = 0; rank < w->trainer->world_size; rank++)
        if (most->rank < 0 || (double)w->samples[rank].exposed > most->seconds)
            *most = (struct rank_exposed){ rank, (double)w->samples[rank].exposed };
}

int rank_watch_gather_op_times(struct rank_watch *w, struct err *err)
{
    if (!w || !w->has_op_times)
        return 0;
    struct run_op_times own = run_take_op_times(trainer_run(w->trainer));
    struct op_sample sample = { .n_steps = own.n_steps };

    for (int kind = 0; kind < N_OP_KINDS; kind++)
        sample.seconds[kind] = (float)own.seconds[kind];
    if (trainer_gather(w->trainer, &sample, w->op_samples, sizeof sample, err) < 0)
        return -1;
    for (int rank = 0; rank < w->trainer->world_size; rank++) {
        w->op_times.n_rank_steps += w->op_samples[rank].n_steps;
        for (int kind = 0; kind < N_OP_KINDS; kind++)
            w->op_times.seconds[kind] += (double)w->op_samples[rank].seconds[kind];
    }
    return 0;
}

struct rank_op_times rank_watch_take_op_times(struct rank_watch *w)
{
    struct rank_op_times times = w->op_times;

    w->op_times = (struct rank_op_times){ 0 };
    return times;
}

int rank_watch_sample(struct rank_watch *w, rank_watch_report_fn report, void *context,
                      struct err *err)
{
    if (!w)
        return 0;
    struct trainer_times times = trainer_take_times(w->trainer);
    struct sample own = { .n_steps = times.n_steps };

    own.times.of[STRAGGLER_COMPUTE] = (float)times.compute;
    own.times.of[STRAGGLER_WAITING] = (float)times.waiting;
    own.times.of[STRAGGLER_INPUT] = (float)times.input;
    own.exposed = times.n_all_steps ? (float)(times.exposed / times.n_all_steps) : 0;
    if (trainer_gather(w->trainer, &own, w->samples, sizeof own, err) < 0)
        return -1;
    if (rank_watch_gather_op_times(w, err) < 0)
        return -1;
    w->sampled_at = clock_seconds();
    if (w->stragglers)
        find_most_exposed(w);
    if (w->stragglers && w->is_warm && w->samples[0].n_steps)
        compare(w, report, context);
    w->is_warm |= w->samples[0].n_steps > 0;
    if (w->is_host)
        return 0;
    /* Of a rank that cannot measure nothing is known, which is no reason to end the run. */
    struct err why;
    w->is_measuring = trainer_measure(w->trainer, true, &why) == 0;
    if (!w->is_measuring)
        log_warn("the rank's own time is not measured: %s", why.text);
    return 0;
}

struct rank_exposed rank_watch_most_exposed(const struct rank_watch *w)
{
    return w && w->stragglers ? w->most_exposed : (struct rank_exposed){ .rank = -1 };
}

bool rank_watch_slowest(const struct rank_watch *w, struct straggler_finding *slowest,
                        const char **host)
{
    if (!w || !w->stragglers || !stragglers_slowest(w->stragglers, slowest))
        return false;
    *host = w->hosts[slowest->rank];
    return true;
}

int rank_watch_n_stragglers(const struct rank_watch *w)
{
    return w && w->stragglers ? stragglers_count(w->stragglers) : 0;
}
