/*
 * plan.c - compiling all pipeline ranks, and sums over their programs
 */
#include "plan/plan.h"

#include "base/num.h"
#include "kernels/gpu_sizes.h"
#include "layout/axes.h"
#include "plan/fit.h"
#include "plan/islands.h"
#include "plan/memory_fit.h"
#include "plan/programs.h"
#include "program/recheck_piece.h"

/* The backend that the job would use here. A GPU backend is used for sizes alone and needs no
 * GPU. */
static int make_kernels(struct plan *plan, struct err *err)
{
    enum job_device device = plan->job->device;

    if (device == JOB_DEVICE_CUDA || (device == JOB_DEVICE_AUTO && device_cuda_seen()))
        return kernels_gpu_sizes_create(&plan->kernels, err);
    return kernels_cpu_create(&plan->kernels, plan->pool, NULL, err);
}

/* The programs of a plan that has its job and kernels. */
static int take_programs(struct plan *plan, bool are_run, struct err *err)
{
    int pp_size = plan->job->parallel.pp;

    plan->programs = arena_array(&plan->arena, struct program, pp_size);
    if ((are_run ? programs_compile_ranks : programs_compile_unverified)(plan->programs, plan->job,
                                                                         plan->kernels, err) < 0)
        return -1;
    for (int i = 0; i < pp_size; i++)
        if (program_memory_bytes(&plan->programs[i]) >
            program_memory_bytes(&plan->programs[plan->shown]))
            plan->shown = i;
    return 0;
}

/* What is kept, computed again and away, where the job leaves it open. */
static int choose_memory(struct plan *plan, struct err *err)
{
    const struct job *job = plan->job;
    struct memory_fit_request request = { .job = job, .kernels = plan->kernels };

    if (!memory_is_chosen(job))
        return 0;
    if (job->rates)
        request.rank_bytes = plan_limits(job, job->rates, job->search.memory_share, &plan->arena);
    struct job *chosen = arena_array(&plan->arena, struct job, 1);
    *chosen = *plan->job;
    if (memory_fit_job(&plan->memory, chosen, &request, &plan->arena, err) < 0)
        return -1;
    plan->job = chosen;
    return 0;
}

int plan_open_with(struct plan *plan, const struct job *job, struct kernels *kernels,
                   struct err *err)
{
    *plan = (struct plan){ .job = job, .kernels = kernels };
    if (choose_memory(plan, err) < 0)
        return -1;
    return take_programs(plan, false, err);
}

int plan_open(struct plan *plan, const struct job *job, int n_threads, int rank, struct err *err)
{
    struct mesh mesh = job_mesh(job);

    *plan = (struct plan){ .job = job };
    if (pool_create(&plan->pool, job->threads ? job->threads : n_threads, NULL, err) < 0 ||
        make_kernels(plan, err) < 0 || choose_memory(plan, err) < 0 ||
        take_programs(plan, true, err) < 0)
        return -1;
    if (rank >= 0)
        plan->shown = mesh_coordinate(&mesh, rank, axes_stages());
    return 0;
}

void plan_close(struct plan *plan)
{
    for (int i = 0; plan->programs && i < plan->job->parallel.pp; i++)
        program_release(&plan->programs[i]);
    if (plan->pool)
        kernels_destroy(plan->kernels);
    pool_destroy(plan->pool);
    arena_release(&plan->arena);
}

size_t plan_needed_bytes(const struct program *program, const struct kernels *kernels)
{
    return kernels_are_gpu(kernels) ? program_space_bytes(program, SPACE_DEVICE)
                                    : program_memory_bytes(program);
}

/* Of one rank, in all functions: each runs once a step that has such ops. */
static double newton_schulz_flops(const struct program *p)
{
    double total = 0;

    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; i < p->functions[f].n_ops; i++) {
            struct op_shape shape = program_op_shape(p, &p->functions[f].ops[i]);

            total += shape.kind == OP_NEWTON_SCHULZ ? op_flops(&shape) : 0;
        }
    return total;
}

struct plan_flops plan_count_flops(const struct plan *plan)
{
    const struct job *job = plan->job;
    double tokens = (double)job->train.global_batch * job->data.seq_len, of_stages = 0, steps = 0;
    double n_replicas = (double)job_all_micro_batches(job) / job->n_micro_batches;

    for (int i = 0; i < job->parallel.pp; i++) {
        of_stages += program_entry_flops(&plan->programs[i], ENTRY_STEP);
        steps += newton_schulz_flops(&plan->programs[i]);
    }
    return (struct plan_flops){
        /* Programs are those of the data-parallel rank with most micro-batches. */
        .executed = of_stages * job->parallel.tp * job->parallel.cp * n_replicas,
        .newton_schulz = steps * job->parallel.tp * job->parallel.cp * n_replicas,
        .model = model_spec_flops_per_token(&job->model, job->data.seq_len) * tokens,
        .megatron = model_spec_megatron_flops_per_token(&job->model, job->data.seq_len,
                                                        job->recompute == RECOMPUTE_FULL) *
                    tokens,
    };
}

struct plan_recheck plan_count_recheck(const struct plan *plan)
{
    const struct program *shown = &plan->programs[plan->shown];
    double of_stages = 0;

    for (int i = 0; i < plan->job->parallel.pp; i++)
        of_stages += program_entry_flops(&plan->programs[i], ENTRY_RECHECK);
    size_t piece = plan->job->parallel.zero ? recheck_piece_bytes(shown) : 0;
    return (struct plan_recheck){
        .flops =
            of_stages * plan->job->parallel.tp * plan->job->parallel.cp * plan->job->parallel.dp,
        .hashed_bytes = 2 * program_entry_written_bytes(shown, ENTRY_RECHECK),
        .device_bytes = piece,
        .host_bytes = 2 * piece,
    };
}

size_t plan_library_bytes(const struct plan *plan, size_t device_bytes)
{
    const struct program *p = &plan->programs[plan->shown];
    size_t most = 0;

    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; i < p->functions[f].n_ops; i++) {
            struct op_shape shape = program_op_shape(p, &p->functions[f].ops[i]);
            size_t n_bytes = gpu_library_bytes(&shape, device_bytes);

            most = n_bytes > most ? n_bytes : most;
        }
    return most;
}
