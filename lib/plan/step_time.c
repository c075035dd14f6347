/*
 * step_time.c - prices of all ops of all pipeline ranks, simulated
 */
#include "plan/step_time.h"

#include <math.h>
#include <stdlib.h>

#include "base/num.h"
#include "plan/islands.h"
#include "plan/price_impl.h"
#include "plan/programs.h"
#include "program/order.h"

/* The ranks that are simulated: of each stage the one that is first on all other axes. */
struct pricing {
    const struct job *job;
    struct prices prices;
    struct mesh mesh;
    int rank;   /* in the world */
    int stride; /* from a rank to that of the next stage; below 0: that comes before it */
    int pp_rank;
    const struct program *program;
    struct arena *arena;
    int64_t apart_ns; /* of compute since its last collective */
    double *ns;  /* [N_PRICE_SOURCES]: of all ops of the step, by source; NULL: not asked for */
    int *n_runs; /* in the step, by function of the program; where ns is */
};

static bool is_transfer(const struct op *op)
{
    return op->kind == OP_SEND || op->kind == OP_RECEIVE;
}

/* ---- prices ---- */

/* All ranks of the node that lie between this rank and the next stage's send at the same time. */
static struct price price_stage_transfer(const struct pricing *p, const struct op *op,
                                         const struct op_shape *shape, bool *uses_nic)
{
    const struct tensor *t = op->kind == OP_SEND ? &shape->in[OPS_FIRST] : &shape->out[OPS_FIRST];
    int64_t n_bytes = tensor_elements(t) * (int64_t)dtype_bytes(t->dtype);
    int n_stages = p->job->parallel.pp;
    int peer = (p->pp_rank + op->attributes.peer + n_stages) % n_stages;
    int to = p->rank + (peer - p->pp_rank) * p->stride;
    int n_sharing = min_int(abs(p->stride), p->prices.cluster->islands[p->prices.island].per_node);

    *uses_nic = transfer_level(p->prices.cluster, p->rank, to) >= LEVEL_RAIL;
    return price_transfer(&p->prices, p->rank, to, n_bytes, n_sharing);
}

static struct price price_exchange(struct pricing *p, const struct op *op,
                                   const struct op_shape *shape, bool *uses_nic)
{
    const struct cluster *cluster = p->prices.cluster;
    struct group_shape group = collective_group(cluster, &p->mesh, p->rank, op->attributes.axis);
    struct price price = price_collective(&p->prices, &group, shape);

    *uses_nic = collective_uses_nic(&group);
    if (group.n < 2)
        return price;
    price.ns += price_lateness(&p->prices, p->apart_ns);
    p->apart_ns = 0;
    return price;
}

static struct simulated_op price(struct pricing *p, const struct op *op, int n_runs)
{
    const struct cluster *cluster = p->prices.cluster;
    struct op_shape shape = program_op_shape(p->program, op);
    bool uses_nic = false, is_exchange = op_is_collective(op->kind);
    struct price price;

    if (is_transfer(op)) {
        price = price_stage_transfer(p, op, &shape, &uses_nic);
    } else if (is_exchange) {
        price = price_exchange(p, op, &shape, &uses_nic);
    } else {
        price = price_op(&p->prices, &shape);
        if (cluster->slow.factor > 0 && cluster->slow.stage == p->pp_rank)
            price.ns = llround((double)price.ns * cluster->slow.factor);
        p->apart_ns += price.ns;
    }
    if (p->ns)
        p->ns[price.source] += (double)price.ns * n_runs;
    return (struct simulated_op){ .ns = price.ns,
                                  .issue_ns = price.issue_ns,
                                  .class = time_class_of(op),
                                  .source = price.source,
                                  .bound = price.bound,
                                  .slowdown = !is_exchange || !order_is_async(op) ? 0
                                              : uses_nic ? cluster->software.overlap_nic
                                                         : cluster->software.overlap_fast };
}

static const struct simulated_op *price_function(struct pricing *p, int function)
{
    const struct function *f = &p->program->functions[function];
    struct simulated_op *ops = arena_array(p->arena, struct simulated_op, f->n_ops);

    for (int i = 0; i < f->n_ops; i++)
        ops[i] = price(p, &f->ops[i], p->n_runs ? p->n_runs[function] : 0);
    return ops;
}

static int *count_runs(const struct program *program, struct arena *arena)
{
    const struct entry *step = &program->entries[ENTRY_STEP];
    int *n_runs = arena_array(arena, int, program->n_functions);

    for (int i = 0; i < step->n_actions; i++)
        if (step->actions[i].kind == ACTION_RUN)
            n_runs[step->actions[i].function]++;
    return n_runs;
}

static const struct simulated_op *const *price_program(struct pricing *p)
{
    const struct program *program = p->program;
    const struct entry *step = &program->entries[ENTRY_STEP];

    p->n_runs = p->ns ? count_runs(program, p->arena) : NULL;
    const struct simulated_op **functions =
        arena_array(p->arena, const struct simulated_op *, program->n_functions);

    /* In the order of the step: how far ranks are apart in a function depends on those before. */
    p->apart_ns = PRICE_APART_NS;
    for (int i = 0; i < step->n_actions; i++)
        if (step->actions[i].kind == ACTION_RUN && !functions[step->actions[i].function])
            functions[step->actions[i].function] = price_function(p, step->actions[i].function);
    for (int i = 0; i < program->n_functions; i++)
        if (!functions[i])
            functions[i] = price_function(p, i);
    return functions;
}

/* ---- the step ---- */

static void add_constants(struct step_time *time, const struct cluster *cluster, int world_size)
{
    double spread = sqrt(2 * log(world_size));

    time->constant_ns = cluster->software.constant;
    time->jitter_ns = llround((double)(time->simulated.ns + time->constant_ns) *
                              cluster->software.jitter * spread);
    time->ns = time->simulated.ns + time->constant_ns + time->jitter_ns;
}

/* Of rank 0; nothing where a GPU computes. */
static int64_t sum_cpu(const struct plan *plan, const struct cluster *cluster, struct arena *arena)
{
    const struct program *program = &plan->programs[0];
    const struct prices prices = { .cluster = cluster,
                                   .n_computing = min_int(plan->job->world_size,
                                                          cluster->islands[0].per_node) };
    const int *n_runs = count_runs(program, arena);
    int64_t ns = 0;

    for (int f = 0; f < program->n_functions && cluster_is_cpu(cluster); f++)
        for (int i = 0; n_runs[f] && i < program->functions[f].n_ops; i++) {
            struct op_shape shape = program_op_shape(program, &program->functions[f].ops[i]);

            if (!op_is_collective(shape.kind) && op_has_kernel(shape.kind))
                ns += n_runs[f] * price_op_cpu(&prices, &shape);
        }
    return ns;
}

static void rate(struct step_time *time, const struct plan *plan, const struct cluster *cluster)
{
    const struct job *job = plan->job;
    struct plan_flops flops = plan_count_flops(plan);
    double seconds = (double)time->ns / 1e9;
    double peak = islands_peak(cluster, job->world_size, job->train.dtype);

    time->tokens_per_second = (double)job->train.global_batch * (double)job->data.seq_len / seconds;
    time->mfu = flops.model / (seconds * peak);
    time->hfu = flops.executed / (seconds * peak);
}

/* A data-parallel rank's ranks of each stage, or, for -1, those of all. */
static int simulate_replica(struct simulated_step *simulated, const struct job *job,
                            const struct program *programs, const struct cluster *cluster,
                            int replica, const struct simulate_watch *watch,
                            double shares[N_PRICE_SOURCES], struct arena *arena, struct err *err)
{
    int n = job->parallel.pp;
    double ns[N_PRICE_SOURCES] = { 0 }, all = 0;
    struct pricing p = {
        .job = job, .mesh = job_mesh(job), .arena = arena, .ns = shares ? ns : NULL
    };
    struct mesh stages = mesh_pipeline(n);
    const struct program **list = arena_array(arena, const struct program *, n);
    const struct simulated_op *const **ops =
        arena_array(arena, const struct simulated_op *const *, n);

    p.prices =
        (struct prices){ .cluster = cluster,
                         .n_computing = min_int(job->world_size, cluster->islands[0].per_node),
                         .has_graphs = true,
                         .fast_reductions = job->parallel.reductions == REDUCTIONS_FAST };
    p.stride = mesh_stride(&p.mesh, AXIS_PP);
    for (int rank = 0; rank < n; rank++) {
        struct mesh_ranks ranks = replica < 0 ? mesh_stage_ranks(&p.mesh, rank)
                                              : mesh_replica_ranks(&p.mesh, rank, replica);

        p.pp_rank = rank;
        p.rank = ranks.first;
        p.prices.island = islands_slowest(cluster, ranks, job->train.dtype);
        p.program = list[rank] = &programs[rank];
        ops[rank] = price_program(&p);
    }
    for (int i = 0; i < N_PRICE_SOURCES; i++)
        all += ns[i];
    for (int i = 0; i < N_PRICE_SOURCES && shares; i++)
        shares[i] = all > 0 ? ns[i] / all : 0;
    struct simulate_request request = {
        .programs = list, .mesh = &stages, .entry = ENTRY_STEP, .ops = ops, .watch = watch
    };
    return simulate(simulated, &request, arena, err);
}

int step_time_simulate(struct simulated_step *simulated, const struct job *job,
                       const struct program *programs, const struct cluster *cluster,
                       const struct simulate_watch *watch, double shares[N_PRICE_SOURCES],
                       struct arena *arena, struct err *err)
{
    return simulate_replica(simulated, job, programs, cluster, -1, watch, shares, arena, err);
}

/* ---- replicas with different numbers of micro-batches ---- */

/* Whether an earlier one has as many, on devices of the same kinds. */
static bool is_like_earlier(const struct job *job, const struct cluster *cluster, int replica)
{
    const int *counts = job->parallel.replica_micro_batches.values;
    const struct mesh mesh = job_mesh(job);
    enum dtype dtype = job->train.dtype;

    for (int r = 0; r < replica; r++) {
        bool is_like = counts[r] == counts[replica];

        for (int s = 0; s < job->parallel.pp && is_like; s++)
            is_like = islands_slowest(cluster, mesh_replica_ranks(&mesh, s, r), dtype) ==
                      islands_slowest(cluster, mesh_replica_ranks(&mesh, s, replica), dtype);
        if (is_like)
            return true;
    }
    return false;
}

/* The programs of so many micro-batches. */
static int simulate_count(struct simulated_step *simulated, const struct plan *plan,
                          const struct cluster *cluster, int replica,
                          double shares[N_PRICE_SOURCES], struct arena *arena, struct err *err)
{
    struct job job = *plan->job;
    struct program *programs = arena_array(arena, struct program, job.parallel.pp);

    job.n_micro_batches = job.parallel.replica_micro_batches.values[replica];
    int status = programs_compile_unverified(programs, &job, plan->kernels, err);
    if (!status)
        status =
            simulate_replica(simulated, &job, programs, cluster, replica, NULL, shares, arena, err);
    for (int i = 0; i < job.parallel.pp; i++)
        program_release(&programs[i]);
    return status;
}

/* All wait for the slowest when gradients are summed. */
static int simulate_slowest(struct step_time *time, const struct plan *plan,
                            const struct cluster *cluster, struct arena *arena, struct err *err)
{
    for (int r = 0; r < plan->job->parallel.replica_micro_batches.n; r++) {
        struct step_time of_replica = { .ns = 0 };

        if (is_like_earlier(plan->job, cluster, r))
            continue;
        if (simulate_count(&of_replica.simulated, plan, cluster, r, of_replica.shares, arena, err))
            return -1;
        if (of_replica.simulated.ns > time->simulated.ns)
            *time = of_replica;
    }
    return 0;
}

int64_t step_time_boundary_bytes(const struct job *job)
{
    int64_t n = (int64_t)job->train.micro_batch * job->data.seq_len * job->model.hidden_size *
                (int64_t)dtype_bytes(job->train.residual);

    return n / (job->parallel.sequence_parallel ? job->parallel.tp : 1);
}

int64_t step_time_boundary_ns(const struct job *job, const struct cluster *cluster)
{
    struct mesh mesh = job_mesh(job);
    struct prices prices = { .cluster = cluster };
    int stride = mesh_stride(&mesh, AXIS_PP);
    int64_t n_bytes = step_time_boundary_bytes(job), most = 0;
    int n_sharing = min_int(abs(stride), cluster->islands[0].per_node);

    for (int rank = 0; rank + 1 < job->parallel.pp; rank++) {
        int from = mesh_stage_ranks(&mesh, rank).first;

        most = max_i64(most, price_transfer(&prices, from, from + stride, n_bytes, n_sharing).ns);
    }
    return most;
}

int step_time_predict(struct step_time *time, const struct plan *plan,
                      const struct cluster *cluster, struct arena *arena, struct err *err)
{
    *time = (struct step_time){ .ns = 0 };
    if (plan->job->parallel.replica_micro_batches.n
            ? simulate_slowest(time, plan, cluster, arena, err)
            : step_time_simulate(&time->simulated, plan->job, plan->programs, cluster, NULL,
                                 time->shares, arena, err))
        return -1;
    add_constants(time, cluster, plan->job->world_size);
    time->cpu_ns = sum_cpu(plan, cluster, arena);
    rate(time, plan, cluster);
    return 0;
}
