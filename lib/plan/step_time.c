/*
 * step_time.c - prices of all ops of all pipeline ranks, simulated
 */
#include "plan/step_time.h"

#include <math.h>
#include <stdlib.h>

#include "base/num.h"
#include "plan/islands.h"
#include "plan/price_impl.h"
#include "plan/replica_programs.h"
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
    struct group_shape group = price_group(&p->prices, &p->mesh, p->rank, op->attributes.axis);
    struct price price = price_collective(&p->prices, &group, shape);

    *uses_nic = collective_uses_nic(&group);
    if (group.n < 2)
        return price;
    price.ns += price_lateness(&p->prices, p->apart_ns);
    p->apart_ns = 0;
    return price;
}

/* Of an op that is no exchange. */
static struct price price_own(const struct pricing *p, const struct op *op,
                              const struct op_shape *shape)
{
    const struct value *values = p->program->values;

    if (program_is_host_op(p->program, op))
        return price_host_op(&p->prices, shape);
    if (op->kind == OP_TO_HOST && values[op->out[OPS_FIRST]].space == SPACE_FILE)
        return price_file_copy(&p->prices, shape, true);
    if (op->kind == OP_TO_DEVICE && values[op->in[OPS_FIRST]].space == SPACE_FILE)
        return price_file_copy(&p->prices, shape, false);
    return price_op(&p->prices, shape);
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
        price = price_own(p, op, &shape);
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
                                  .slowdown = is_exchange && order_is_async(op)
                                                  ? collective_slowdown(cluster, uses_nic)
                                                  : 0 };
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

/* Prices of all ops of one data-parallel rank's, or all ranks', stages: every n_replicas-th. */
static void price_replica(struct pricing *p, const struct step_replica *replica, int n_replicas,
                          const struct program **programs, const struct simulated_op *const **ops)
{
    for (int rank = 0; rank < p->job->parallel.pp; rank++) {
        struct mesh_ranks ranks = replica->data_rank < 0
                                      ? mesh_stage_ranks(&p->mesh, rank)
                                      : mesh_replica_ranks(&p->mesh, rank, replica->data_rank);

        p->pp_rank = rank;
        p->rank = ranks.first;
        p->prices.island = islands_slowest(p->prices.cluster, ranks, p->job->train.dtype);
        p->program = programs[rank * n_replicas] = &replica->programs[rank];
        ops[rank * n_replicas] = price_program(p);
    }
}

/* With ranks that compute for this share of the step. */
static struct pricing pricing_of(const struct job *job, const struct cluster *cluster, double busy,
                                 struct arena *arena)
{
    struct pricing p = { .job = job, .mesh = job_mesh(job), .arena = arena };

    p.prices = prices_of_job(job, cluster);
    p.prices.busy = busy;
    p.stride = mesh_stride(&p.mesh, AXIS_PP);
    return p;
}

const struct simulated_op *const *const *step_time_prices(const struct job *job,
                                                          const struct program *programs,
                                                          const struct cluster *cluster,
                                                          struct arena *arena)
{
    struct pricing p = pricing_of(job, cluster, 1, arena);
    struct step_replica all = { ALL_DATA_RANKS, programs };
    int n = job->parallel.pp;
    const struct program **list = arena_array(arena, const struct program *, n);
    const struct simulated_op *const **ops =
        arena_array(arena, const struct simulated_op *const *, n);

    price_replica(&p, &all, 1, list, ops);
    return ops;
}

/* The same share of all ranks. */
static int simulate_busy(struct simulated_step *simulated, const struct job *job,
                         const struct step_replica *replicas, int n_replicas,
                         const struct cluster *cluster, double busy,
                         const struct simulate_watch *watch, double shares[N_PRICE_SOURCES],
                         struct arena *arena, struct err *err)
{
    int n = job->parallel.pp * n_replicas;
    double ns[N_PRICE_SOURCES] = { 0 }, all = 0;
    struct pricing p = pricing_of(job, cluster, busy, arena);
    struct mesh mesh = mesh_pipeline(job->parallel.pp);
    const struct program **programs = arena_array(arena, const struct program *, n);
    const struct simulated_op *const **ops =
        arena_array(arena, const struct simulated_op *const *, n);

    mesh.size[AXIS_DP] = n_replicas;
    p.ns = shares ? ns : NULL;
    for (int i = 0; i < n_replicas; i++)
        price_replica(&p, &replicas[i], n_replicas, programs + i, ops + i);
    for (int i = 0; i < N_PRICE_SOURCES; i++)
        all += ns[i];
    for (int i = 0; i < N_PRICE_SOURCES && shares; i++)
        shares[i] = all > 0 ? ns[i] / all : 0;
    struct simulate_request request = { .programs = programs,
                                        .mesh = &mesh,
                                        .entry = ENTRY_STEP,
                                        .ops = ops,
                                        .in_full = n_replicas > 1,
                                        .watch = watch };
    return simulate(simulated, &request, arena, err);
}

/* The share of the step in which ranks compute. */
static double busy_share(const struct simulated_step *s)
{
    double computing = 0;

    for (int i = 0; i < s->n_ranks; i++) {
        for (int class = TIME_PRODUCTS; class <= TIME_UPDATE; class ++)
            computing += (double)s->ranks[i].of[class];
        computing += (double)s->ranks[i].of[TIME_OVERLAP];
    }
    return computing / ((double)s->n_ranks * (double)max_i64(1, s->ns));
}

/* How long ops take depends on how many ranks compute beside, and that on how long they take. */
enum { N_BUSY_ROUNDS = 3 };

int step_time_simulate(struct simulated_step *simulated, const struct job *job,
                       const struct step_replica *replicas, int n_replicas,
                       const struct cluster *cluster, const struct simulate_watch *watch,
                       double shares[N_PRICE_SOURCES], struct arena *arena, struct err *err)
{
    bool is_shared = cluster->table && cluster->table->contention > 1 && job->parallel.pp > 1;
    double busy = 1;

    for (int i = 0; i < N_BUSY_ROUNDS && is_shared; i++) {
        if (simulate_busy(simulated, job, replicas, n_replicas, cluster, busy, NULL, NULL, arena,
                          err))
            return -1;
        busy = busy_share(simulated);
    }
    return simulate_busy(simulated, job, replicas, n_replicas, cluster, busy, watch, shares, arena,
                         err);
}

/* ---- replicas with different numbers of micro-batches ---- */

static bool is_like(const struct job *job, const struct cluster *cluster, int a, int b)
{
    const struct mesh mesh = job_mesh(job);
    enum dtype dtype = job->train.dtype;
    bool is_like = replica_micro_batches(job, a) == replica_micro_batches(job, b);

    for (int s = 0; s < job->parallel.pp && is_like; s++)
        is_like = islands_slowest(cluster, mesh_replica_ranks(&mesh, s, a), dtype) ==
                  islands_slowest(cluster, mesh_replica_ranks(&mesh, s, b), dtype);
    return is_like;
}

int step_time_replicas(struct step_replica *replicas, int *of_data_rank,
                       struct replica_programs *programs, const struct cluster *cluster,
                       struct err *err)
{
    const struct job *job = programs->plan->job;
    int n = 0;

    if (!job->parallel.replica_micro_batches.n) {
        replicas[0] = (struct step_replica){ ALL_DATA_RANKS, programs->plan->programs };
        return 1;
    }
    for (int rank = 0; rank < job->parallel.dp; rank++) {
        int i = 0;

        while (i < n && !is_like(job, cluster, replicas[i].data_rank, rank))
            i++;
        of_data_rank[rank] = i;
        if (i < n)
            continue;
        replicas[n] = (struct step_replica){ rank, replica_programs_find(programs, rank, err) };
        if (!replicas[n++].programs)
            return -1;
    }
    return n;
}

/* Of a step of several replicas that of the one that waits least, whose times are shown. */
static void take_busiest(struct step_time *time, const struct step_replica *replicas,
                         int n_replicas)
{
    struct simulated_step *s = &time->simulated;
    int replica = s->busiest % n_replicas;

    s->busiest /= n_replicas;
    s->n_ranks /= n_replicas;
    for (int i = 0; i < s->n_ranks; i++)
        s->ranks[i] = s->ranks[i * n_replicas + replica];
    time->replica = replicas[replica].data_rank;
}

int64_t step_time_boundary_bytes(const struct job *job)
{
    int64_t n = (int64_t)job->train.micro_batch * job->data.seq_len * job->model.hidden_size *
                (int64_t)dtype_bytes(job->train.residual);

    return n / job->parallel.cp / (job->parallel.sequence_parallel ? job->parallel.tp : 1);
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
    int dp = plan->job->parallel.dp;
    struct step_replica *replicas = arena_array(arena, struct step_replica, dp);
    int *ignored = arena_array(arena, int, dp);
    struct replica_programs programs;

    *time = (struct step_time){ .ns = 0 };
    replica_programs_init(&programs, plan);
    int n = step_time_replicas(replicas, ignored, &programs, cluster, err);
    int status = n < 0 ? -1
                       : step_time_simulate(&time->simulated, plan->job, replicas, n, cluster, NULL,
                                            time->shares, arena, err);
    if (!status) {
        take_busiest(time, replicas, n);
        add_constants(time, cluster, plan->job->world_size);
        time->cpu_ns = sum_cpu(plan, cluster, arena);
        rate(time, plan, cluster);
    }
    replica_programs_release(&programs);
    return status;
}
