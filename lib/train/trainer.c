/*
 * trainer.c - a trainer is made: programs, data, memory, what all ranks have in common; its getters
 */
#include <stdlib.h>

#include "base/num.h"
#include "layout/axes.h"
#include "plan/memory_fit.h"
#include "plan/plan.h"
#include "plan/programs.h"
#include "plan/suggest.h"
#include "train/algo_cache.h"
#include "train/available_memory.h"
#include "train/consistency.h"
#include "train/numerics.h"
#include "train/trainer_impl.h"
#include "weights/init_weights.h"

/* ---- making it ---- */

/* One rank sees to it that the stages' programs fit each other. */
static int verify_stages(const struct trainer *t, struct err *err)
{
    struct arena arena = { 0 };
    int n = t->job->parallel.pp;

    if (n == 1 || t->world_rank)
        return 0;
    struct program *programs = arena_array(&arena, struct program, n);
    int status = programs_compile_ranks(programs, t->job, t->options.kernels, err);
    for (int i = 0; i < n; i++)
        program_release(&programs[i]);
    arena_release(&arena);
    return status;
}

/* What the host has for homes: its share of what is available, less the device if that is the
 * host's memory, too. 0: not known. */
static int64_t host_bytes(const struct trainer *t)
{
    int64_t room = available_memory();
    bool is_shared = device_is_host(t->options.kernels->device);

    if (room < 0)
        return 0;
    room /= max_int(1, t->options.n_local);
    return max_i64(1, is_shared ? room - t->job->memory.device_bytes : room);
}

/* The least of what the ranks know of; 0: none knows any. */
static int agree_on_least(struct trainer *t, int64_t *limit, struct err *err)
{
    int64_t value = *limit ? -*limit : -INT64_MAX;

    if (trainer_agree(t, &value, err) < 0)
        return -1;
    *limit = value == -INT64_MAX ? 0 : -value;
    return 0;
}

/* The least of each pipeline rank's devices. */
static int agree_on_devices(struct trainer *t, int64_t own, int64_t *limits, struct err *err)
{
    struct mesh mesh = job_mesh(t->job);
    int stage = mesh_coordinate(&mesh, t->world_rank, axes_stages()), status = 0;

    for (int i = 0; i < t->job->parallel.pp && !status; i++) {
        limits[i] = i == stage ? own : 0;
        status = agree_on_least(t, &limits[i], err);
    }
    return status;
}

/*
 * What is kept, computed again and away is chosen for each stage's device that has least: what is
 * computed again holds collectives, so its ranks choose alike. Where the device is the host's
 * memory, moving values within it makes no room, so without a limit of the job's there is none.
 */
static int choose_memory(struct trainer *t, struct err *err)
{
    bool is_shared = device_is_host(t->options.kernels->device);
    bool has_limit = !is_shared || t->job->memory.offload == OFFLOAD_NONE;
    int64_t own = has_limit ? (int64_t)t->options.available_bytes : 0;
    int64_t *limits = arena_array(&t->arena, int64_t, t->job->parallel.pp);
    struct memory_fit_request request = {
        .job = t->job,
        .kernels = t->options.kernels,
        .rank_bytes = limits,
        .host_bytes = host_bytes(t),
    };
    struct memory_fit *fit;

    if (!memory_is_chosen(t->job))
        return 0;
    if (agree_on_devices(t, own, limits, err) < 0 ||
        agree_on_least(t, &request.host_bytes, err) < 0)
        return -1;
    t->chosen = *t->job;
    if (memory_fit_job(&fit, &t->chosen, &request, &t->arena, err) < 0)
        return -1;
    t->job = &t->chosen;
    return 0;
}

static int compile(struct trainer *t, struct err *err)
{
    const struct trainer_options *o = &t->options;
    struct mesh mesh = job_mesh(t->job);
    int pp_rank = mesh_coordinate(&mesh, t->world_rank, axes_stages());

    progress_phase(o->progress, "compiling the step");
    if (choose_memory(t, err) < 0)
        return -1;
    struct programs_by_length programs = { .longest = &t->program };
    struct programs_request request = { .job = t->job, .kernels = o->kernels, .pp_rank = pp_rank };
    int status = programs_compile_by_length(&programs, &request, &t->arena, err);
    t->shorter = programs.shorter;
    t->n_shorter = programs.n_shorter;
    t->lengths = programs.lengths;
    return status < 0 ? status : verify_stages(t, err);
}

static size_t free_bytes(const struct trainer *t)
{
    struct device *device = t->options.kernels->device;

    return device->ops->memory(device).free_bytes;
}

/* Refused before anything is allocated, with what would help; what vendors' libraries took for
 * themselves since `before` were free, on this rank and on those that share the device with it, is
 * not their programs' to have. */
static int check_fit(struct trainer *t, size_t before, struct err *err)
{
    size_t available = t->options.available_bytes, after = free_bytes(t);
    size_t taken = before > after ? (before - after) / (size_t)max_int(1, t->options.n_sharing) : 0;

    if (available)
        available = available > taken ? available - taken : 1;
    return suggest_check(t->job, t->options.kernels,
                         plan_needed_bytes(&t->program, t->options.kernels), available, err);
}

static int open_run(struct trainer *t, struct err *err)
{
    struct run_options options = { .program = &t->program,
                                   .shorter = t->shorter,
                                   .n_shorter = t->n_shorter,
                                   .kernels = t->options.kernels,
                                   .pool = t->options.pool,
                                   .comm = t->options.comm,
                                   .worker = t->options.worker,
                                   .progress = t->options.progress,
                                   .poison = t->job->poison,
                                   .fast = t->job->parallel.reductions == REDUCTIONS_FAST,
                                   .node_ranks = job_node_ranks(t->job),
                                   .file_folder = t->job->memory.file,
                                   .link_bytes_per_s = t->job->memory.link_rate,
                                   .file_bytes_per_s = t->job->memory.file_rate };

    progress_phase(t->options.progress, "allocating and preparing kernels");
    if (run_create(&t->run, &options, err) < 0)
        return -1;
    int experts = t->program.ports.router_stats_total;
    if (experts)
        t->expert_stats = arena_alloc(&t->arena, program_value_bytes(&t->program, experts));
    int dropped = t->program.ports.dropped_total;
    if (dropped)
        t->dropped = arena_alloc(&t->arena, program_value_bytes(&t->program, dropped));
    progress_phase(t->options.progress, "filling the parameters");
    init_constants(t->run, &t->program, &t->job->model);
    init_parameters(t->run, &t->program, &t->place, t->options.pool, t->job->train.seed);
    return 0;
}

/* The build first: another one may print the same job otherwise. */
static int check_same_job(struct trainer *t, struct err *err)
{
    struct str text = { 0 };

    if (consistency_text(t, "the version of lmtrain", t->options.build ? t->options.build : "",
                         "install one build on all hosts", err) < 0)
        return -1;
    job_print(t->job, &text);
    int status = consistency_text(
        t, "the job", str_text(&text),
        "start all ranks with the same job file, --set and working directory", err);
    str_release(&text);
    return status;
}

/* By which slices of collectives are chosen and ordered, and what is done ahead. */
static int check_same_prices(struct trainer *t, struct err *err)
{
    const struct job *job = t->job;
    struct str text = { 0 };

    if (!programs_go_by_prices(job) || (!job->cluster && !job->searched.cluster))
        return 0;
    memory_cluster_text(job, &text);
    int status =
        consistency_text(t, "the cluster with its tables", str_text(&text),
                         "copy the file of cluster and that of its tables to all hosts, or leave "
                         "the key cluster out",
                         err);
    str_release(&text);
    return status;
}

/* What ranks choose together, and what they compute, is of kernels that are alike. */
static int check_same_kernels(struct trainer *t, struct err *err)
{
    return consistency_text(
        t, "the description of the kernels", kernels_identity(t->options.kernels),
        "use the same kind of CPU and GPU and the same versions of the GPU libraries "
        "on all hosts, or set LMTRAIN_CPU_ISA to what all hosts support",
        err);
}

/* Data, which is of each rank's host; and what was chosen for all. */
static int check_same_numerics(struct trainer *t, struct err *err)
{
    struct kernels *kernels = t->options.kernels;
    struct str choices = { 0 };

    kernels_choices_print(kernels, &choices);
    numerics_describe(t->job, loader_fingerprint(t->train), kernels_identity(kernels),
                      str_text(&choices), &t->description);
    str_release(&choices);
    t->numerics = numerics_hash(&t->description);
    return consistency_text(t, "the description of the numerics", str_text(&t->description),
                            "use the same data on all hosts", err);
}

static int choose_kernels(struct trainer *t, struct err *err)
{
    size_t before = free_bytes(t);
    int status = algo_cache_make(t, err);

    return status ? status : trainer_settle(t, check_fit(t, before, err), err);
}

int trainer_create(struct trainer **out, const struct trainer_options *options, struct err *err)
{
    struct trainer *t = calloc(1, sizeof *t);

    if (!t)
        return err_set(err, ERR_DEVICE, "out of host memory");
    t->options = *options;
    t->job = options->job;
    t->save_took[0] = t->save_took[1] = -1;
    t->loss_scale = trainer_initial_loss_scale(t->job);
    t->world_size = comm_world_size(options->comm);
    t->world_rank = comm_world_rank(options->comm);
    int status = trainer_join(t, err);
    if (!status)
        status = check_same_job(t, err);
    if (!status)
        status = check_same_prices(t, err);
    if (!status)
        status = check_same_kernels(t, err);
    if (!status)
        status = trainer_settle(t, compile(t, err), err);
    if (!status)
        status = choose_kernels(t, err);
    if (!status) {
        t->place = mesh_place(&t->program.mesh, t->world_rank);
        status = trainer_open_data(t, err);
        if (!status)
            status = trainer_open_held_out(t, err);
        status = trainer_settle(t, status, err);
    }
    if (!status)
        status = check_same_numerics(t, err);
    if (!status)
        status = trainer_settle(t, open_run(t, err), err);
    if (status < 0) {
        trainer_destroy(t);
        return -1;
    }
    *out = t;
    return 0;
}

void trainer_destroy(struct trainer *t)
{
    if (!t)
        return;
    trainer_drop_save(t);
    trainer_close_trace(t);
    run_destroy(t->run);
    loader_close(t->train);
    for (int i = 0; i < t->n_held_out_sets; i++)
        loader_close(t->held_out_sets[i].loader);
    program_release(&t->program);
    for (int i = 0; i < t->n_shorter; i++)
        program_release(&t->shorter[i]);
    arena_release(&t->arena);
    str_release(&t->description);
    str_release(&t->save_state);
    free(t->restored_extra);
    free(t->numerics_changes);
    free(t);
}

/* ---- getters ---- */

int trainer_gather_weights(struct trainer *t, struct err *err)
{
    t->is_gathered = true;
    return run_entry(t->run, ENTRY_GATHER, 0, NULL, err);
}

/* ---- properties of a trainer ---- */

int64_t trainer_step_number(const struct trainer *t)
{
    return t->step;
}

int64_t trainer_tokens(const struct trainer *t)
{
    return t->tokens;
}

int64_t trainer_n_reruns(const struct trainer *t)
{
    return t->n_reruns;
}

int64_t trainer_n_skipped(const struct trainer *t)
{
    return t->n_skipped;
}

uint64_t trainer_numerics(const struct trainer *t)
{
    return t->numerics;
}

const struct program *trainer_program(const struct trainer *t)
{
    return &t->program;
}

struct run *trainer_run(const struct trainer *t)
{
    return t->run;
}

const char *trainer_restored_extra(const struct trainer *t)
{
    return t->restored_extra;
}
