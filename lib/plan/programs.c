/*
 * programs.c - the programs of a job's ranks
 */
#include "plan/programs.h"

#include "config/sequence_lengths.h"
#include "layout/axes.h"
#include "model/model.h"
#include "plan/memory_fit.h"
#include "plan/price.h"
#include "run/run.h"

#define COPY_LATENCY_NS 10000

/* Programs of shorter sequences lie within the longest one's places. */
static int compile_shorter(struct programs_by_length *programs, struct compile_train *options,
                           struct err *err)
{
    options->watch = NULL;
    for (int i = 0; i < programs->n_shorter; i++) {
        options->seq_len = programs->lengths[i];
        if (compile_train(&programs->shorter[i], options, err) < 0 ||
            place_within(&programs->shorter[i], programs->longest, err) < 0)
            return err_add(err, "sequences of %d", programs->lengths[i]);
    }
    return 0;
}

/* ---- when values that are away come and go ---- */

static int64_t op_ns(void *context, const struct op_shape *shape)
{
    return price_op(context, shape).ns;
}

/* Programs of several lengths have one order of ops, so there copies are posted by it alone. */
static int time_copies(struct copy_times *times, const struct programs_request *request,
                       struct arena *arena, struct err *err)
{
    struct cluster *cluster = arena_array(arena, struct cluster, 1);
    struct prices *prices = arena_array(arena, struct prices, 1);

    if (memory_cluster(cluster, request->job, request->kernels, arena, err) < 0)
        return -1;
    *prices = (struct prices){ .cluster = cluster };
    double rate = cluster->links.host_bandwidth > 0 ? cluster->links.host_bandwidth
                                                    : cluster->islands[0].device->host_link;
    *times = (struct copy_times){ op_ns, prices, rate, rate, COPY_LATENCY_NS };
    return 0;
}

/* ---- what slices, and weights gathered ahead, are chosen by ---- */

struct slice_prices {
    struct prices prices;
    struct mesh mesh;
    int64_t beside_ns; /* of a collective, where sums of gradients travel beside it */
};

static int64_t slice_op_ns(void *context, const struct op_shape *shape)
{
    return price_op(&((struct slice_prices *)context)->prices, shape).ns;
}

static int64_t slice_collective_ns(void *context, const struct op_shape *shape)
{
    const struct slice_prices *p = context;
    struct group_shape group = price_group(&p->prices, &p->mesh, 0, shape->attributes.axis);

    return price_collective(&p->prices, &group, shape).ns + p->beside_ns;
}

static double slice_slowdown(void *context, enum mesh_axis axis)
{
    const struct slice_prices *p = context;
    struct group_shape group = price_group(&p->prices, &p->mesh, 0, axis);

    return collective_slowdown(p->prices.cluster, collective_uses_nic(&group));
}

/* All ranks of a group must order their collectives alike, so that these are prices of a cluster
 * that the job names, or none: what a rank finds of its own machine may differ. */
static void time_slices(struct slice_times *times, const struct job *job, const struct mesh *mesh,
                        struct arena *arena)
{
    struct cluster *cluster = arena_array(arena, struct cluster, 1);
    struct slice_prices *p = arena_array(arena, struct slice_prices, 1);

    if (!memory_known_cluster(cluster, job, arena) ||
        cluster_n_devices(cluster) < mesh_world_size(mesh))
        return;
    p->prices = prices_of_job(job, cluster);
    p->mesh = *mesh;
    if (axes_size(mesh, SPLITS_TOKENS, PARAMETER_DENSE) > 1)
        p->beside_ns = price_beside(&p->prices);
    *times = (struct slice_times){ slice_op_ns, slice_collective_ns, slice_slowdown, p };
}

static bool slices_by_prices(const struct job *job)
{
    return job->parallel.overlap != JOB_OVERLAP_NONE &&
           (job_has_overlap(job) || job->parallel.cp > 1);
}

static bool gathers_by_prices(const struct job *job)
{
    return job->parallel.zero && job->parallel.dp > 1 && job->parallel.prefetch < 0;
}

bool programs_go_by_prices(const struct job *job)
{
    return slices_by_prices(job) || gathers_by_prices(job) ||
           (job->parallel.pp > 1 && compile_recomputes_as_said(job) &&
            (job->memory.recompute_early < 0 || job->memory.recompute_early_chosen));
}

/* Whether slices that prices have chosen need more of the device's memory than the job may take. */
static bool is_cut_too_large(const struct program *program, const struct compile_train *options,
                             const struct job *job)
{
    bool is_cut = false;

    for (const struct slice_site *site = program->slice_sites; site; site = site->next)
        is_cut |= site->n_slices > 1;
    return is_cut && options->overlap.kind == OVERLAP_AUTO && job->memory.device_bytes &&
           (int64_t)program_space_bytes(program, SPACE_DEVICE) > job->memory.device_bytes;
}

int programs_compile_by_length(struct programs_by_length *programs,
                               const struct programs_request *request, struct arena *arena,
                               struct err *err)
{
    const struct job *job = request->job;
    struct compile_train options = compile_job(job, request->pp_rank);
    /* What ops need beside their operands: where comm adds, sums over ranks need less. */
    struct run_scratch scratch = { request->kernels, options.mesh,
                                   job->parallel.reductions == REDUCTIONS_FAST,
                                   job_node_ranks(job) };

    programs->lengths = NULL;
    programs->n_shorter = 0;
    /* Ranks that exchange rows of tokens have as many of them. */
    if (job->samples.train && !job->data.packing && job->parallel.ep == 1) {
        programs->lengths = lengths_of_job(job, &programs->n_shorter, arena);
        programs->n_shorter--;
    }
    options.shortest = programs->n_shorter ? programs->lengths[0] : 0;
    programs->shorter = arena_array(arena, struct program, programs->n_shorter);
    options.longest = options.seq_len;
    options.head_logits = kernels_are_gpu(request->kernels) ? MODEL_HEAD_LOGITS_GPU : 0;
    options.scratch = run_scratch_bytes;
    options.scratch_context = &scratch;
    options.pipeline.built = request->built;
    options.watch = request->watch;
    options.unverified = request->unverified;
    if (options.offload && !programs->n_shorter &&
        time_copies(&options.copy_times, request, arena, err) < 0)
        return -1;
    /* Programs of several lengths have one order of ops. */
    if (programs->n_shorter)
        options.overlap.kind = OVERLAP_NONE;
    if (options.overlap.kind != OVERLAP_NONE && slices_by_prices(job))
        time_slices(&options.overlap.times, job, &options.mesh, arena);
    if (gathers_by_prices(job))
        time_slices(&options.ahead.times, job, &options.mesh, arena);
    if (compile_train(programs->longest, &options, err) < 0)
        return -1;
    if (is_cut_too_large(programs->longest, &options, job)) {
        options.overlap.kind = OVERLAP_NONE;
        program_release(programs->longest);
        if (compile_train(programs->longest, &options, err) < 0)
            return -1;
    }
    return compile_shorter(programs, &options, err);
}

int programs_compile(struct program *program, const struct programs_request *request,
                     struct err *err)
{
    struct programs_by_length programs = { .longest = program };
    struct arena arena = { 0 };
    int status = programs_compile_by_length(&programs, request, &arena, err);

    for (int i = 0; i < programs.n_shorter; i++)
        program_release(&programs.shorter[i]);
    arena_release(&arena);
    return status;
}

static int compile_ranks(struct program *programs, struct programs_request request, struct err *err)
{
    struct arena arena = { 0 };
    struct compile_train options = compile_job(request.job, 0);
    struct pipeline pipeline;
    int n = request.job->parallel.pp;

    for (int i = 0; i < n; i++)
        programs[i] = (struct program){ 0 };
    request.built = &pipeline;
    int status = compile_pipeline(&pipeline, &options, &arena, err);
    for (; request.pp_rank < n && !status; request.pp_rank++)
        status = programs_compile(&programs[request.pp_rank], &request, err);
    arena_release(&arena);
    return status;
}

int programs_compile_unverified(struct program *programs, const struct job *job,
                                struct kernels *kernels, struct err *err)
{
    struct programs_request request = { .job = job, .kernels = kernels, .unverified = true };

    return compile_ranks(programs, request, err);
}

int programs_compile_ranks(struct program *programs, const struct job *job, struct kernels *kernels,
                           struct err *err)
{
    struct mesh stages = mesh_pipeline(job->parallel.pp);
    struct arena arena = { 0 };
    const struct program **list = arena_array(&arena, const struct program *, job->parallel.pp);
    struct programs_request request = { .job = job, .kernels = kernels };
    int status = compile_ranks(programs, request, err);

    for (int i = 0; i < job->parallel.pp; i++)
        list[i] = &programs[i];
    if (!status)
        status = verify_ranks(list, &stages, err);
    arena_release(&arena);
    return status;
}
