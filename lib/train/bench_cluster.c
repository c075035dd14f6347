/*
 * bench_cluster.c - steps of narrowed models, alone and with all ranks, and collectives
 */
#include "train/bench_cluster.h"

#include <math.h>
#include <unistd.h>

#include "base/num.h"
#include "plan/price_impl.h"

enum { N_WARM = 2, N_LAYERS_MAX = 8, N_ROUNDS = 10 };
#define COLLECTIVE_BYTES ((size_t)64 << 20)
#define BUS_BYTES ((size_t)16 << 20)

/* ---- the jobs that are measured ---- */

static int divide(int n, int by)
{
    return max_int(1, n / by);
}

/* What one of tp ranks has of the model, as a model of one rank; a micro-batch in `parts`. */
static struct job narrow(const struct job *job, int tp, int parts)
{
    struct job narrow = *job;
    struct model_spec *m = &narrow.model;

    m->n_layers = min_int(m->n_layers, N_LAYERS_MAX);
    m->n_heads = divide(m->n_heads, tp);
    m->n_kv_heads = divide(m->n_kv_heads, tp);
    m->ffn_size = divide(m->ffn_size, tp);
    m->expert_ffn_size = divide(m->expert_ffn_size, tp);
    m->vocab_size = (m->vocab_size + tp - 1) / tp;
    if (narrow.train.micro_batch % parts == 0)
        narrow.train.micro_batch /= parts;
    else
        narrow.data.seq_len = divide(narrow.data.seq_len, parts);
    narrow.parallel.tp = narrow.parallel.pp = narrow.parallel.dp = narrow.parallel.chunks = 1;
    narrow.parallel.zero = narrow.parallel.zero_group = 0;
    narrow.parallel.schedule = PIPELINE_1F1B;
    narrow.parallel.stages = narrow.parallel.micro_batches = (struct job_counts){ NULL, 0 };
    narrow.parallel.gradient_sum = GRADIENT_SUM_LATE;
    narrow.recompute = RECOMPUTE_NONE;
    narrow.n_micro_batches = 2;
    narrow.train.global_batch = 2 * narrow.train.micro_batch;
    narrow.world_size = 1;
    return narrow;
}

/* The engine of this rank without the others. */
static int isolate(struct engine *alone, const struct engine *engine, struct err *err)
{
    *alone = *engine;
    alone->rank.world_rank = 0;
    alone->rank.world_size = 1;
    alone->worker = NULL;
    return comm_self_create(&alone->comm, err);
}

/* ---- what a step says ---- */

static double sum_ops(const struct bench *bench)
{
    double sum = 0;

    for (int i = 0; i < bench->n_ops; i++)
        sum += bench->ops[i].seconds;
    return sum;
}

static void add_ops(struct bench_cluster *c, const struct bench *bench)
{
    for (int i = 0; i < bench->n_ops; i++) {
        const struct bench_op *op = &bench->ops[i];

        if (op_has_kernel(op->shape.kind) && op->seconds > 0)
            price_table_add_op(&c->table, &op->shape, 1e9 * op->seconds / op->n_runs);
    }
}

static double jitter_of(const struct bench *bench)
{
    double mean = 0, square = 0;

    for (int i = 0; i < bench->n_steps; i++)
        mean += bench->step_seconds[i] / bench->n_steps;
    for (int i = 0; i < bench->n_steps; i++)
        square += pow(bench->step_seconds[i] / mean - 1, 2) / bench->n_steps;
    return sqrt(square);
}

/* Of a step as in training: what no op accounts for, an op. */
static double host_op_of(struct bench *bench)
{
    double step = bench_median(bench->step_seconds, bench->n_steps);
    int n_runs = 0;

    for (int i = 0; i < bench->n_ops; i++)
        n_runs += bench->ops[i].n_runs;
    return fmax(0, step - sum_ops(bench)) / max_int(1, n_runs);
}

/* ---- measuring ---- */

static bool can_divide(const struct job *job, int tp)
{
    struct err ignored;

    return !job_check_tp(&job->model, tp, "tp", &ignored);
}

/* This rank alone: all models. *together: the ops of a step of the first. */
static int measure_alone(struct bench_cluster *c, const struct job *job, struct engine *alone,
                         int n_ranks, int n_steps, double *seconds, struct err *err)
{
    for (int tp = 1; tp <= n_ranks; tp *= 2)
        for (int parts = 1; parts <= 2 && can_divide(job, tp); parts++) {
            struct job narrowed = narrow(job, tp, parts);
            struct bench bench;

            if (bench_run(&bench, &narrowed, alone, N_WARM, n_steps, err))
                return -1;
            add_ops(c, &bench);
            if (tp == 1 && parts == 1) {
                c->peak = bench.ceiling;
                c->jitter = jitter_of(&bench);
                c->host_op_seconds = host_op_of(&bench);
                *seconds = sum_ops(&bench);
            }
            bench_release(&bench);
        }
    return 0;
}

static int measure_together(const struct job *job, struct engine *alone, int n_steps,
                            double *seconds, struct err *err)
{
    struct job whole = narrow(job, 1, 1);
    struct bench bench;

    if (bench_run(&bench, &whole, alone, N_WARM, n_steps, err))
        return -1;
    *seconds = sum_ops(&bench);
    bench_release(&bench);
    return 0;
}

/* Ops that only tensor-parallel programs have (a head whose vocabulary is divided), where the ranks
 * can be divided so; less what they take from each other. */
static int measure_tensor(struct bench_cluster *c, const struct job *job, struct engine *engine,
                          int n_steps, struct err *err)
{
    int n_ranks = engine->rank.world_size;
    struct job tensor = narrow(job, 1, 1);
    struct bench bench;
    enum price_source source;

    if (!can_divide(job, n_ranks))
        return 0;
    tensor.parallel.tp = tensor.world_size = n_ranks;
    if (bench_run(&bench, &tensor, engine, N_WARM, n_steps, err))
        return -1;
    for (int i = 0; i < bench.n_ops && engine->rank.world_rank == 0; i++) {
        const struct bench_op *op = &bench.ops[i];

        if (op_has_kernel(op->shape.kind) && op->seconds > 0 &&
            price_table_op(&c->table, &op->shape, &source) < 0)
            price_table_add_op(&c->table, &op->shape,
                               1e9 * op->seconds / op->n_runs / fmax(1, c->table.contention));
    }
    bench_release(&bench);
    return 0;
}

static int wait_for_all(void *context, struct err *err)
{
    struct comm_group *group = context;

    return comm_barrier(group, err);
}

struct world_group {
    struct engine *engine;
    struct comm_group *group;
};

static int open_world(void *context, struct err *err)
{
    struct world_group *w = context;
    int n = w->engine->rank.world_size;
    struct arena arena = { 0 };
    int *ranks = arena_array(&arena, int, n);

    for (int i = 0; i < n; i++)
        ranks[i] = i;
    /* A channel of its own, behind those of the axes, the trainer's and the benchmarks'. */
    int status = comm_group_create(&w->group, w->engine->comm, ranks, n, N_AXES + 40, err);
    arena_release(&arena);
    return status;
}

static int measure_collectives(struct bench_cluster *c, struct engine *engine, struct arena *arena,
                               struct err *err)
{
    struct bench_collective *list;
    int n, world_size = engine->rank.world_size;
    size_t least = SIZE_MAX, nearest = SIZE_MAX;

    if (bench_collectives(engine, COLLECTIVE_BYTES, N_ROUNDS, &list, &n, arena, err))
        return -1;
    for (int i = 0; i < n && engine->rank.world_rank == 0; i++) {
        const struct bench_collective *b = &list[i];

        price_table_add_collective(&c->table, b->kind, b->n_ranks, (int64_t)b->n_bytes,
                                   1e9 * b->seconds);
        if (b->kind != OP_ALL_GATHER || b->n_ranks != world_size)
            continue;
        size_t off = b->n_bytes > BUS_BYTES ? b->n_bytes - BUS_BYTES : BUS_BYTES - b->n_bytes;
        if (off < nearest) {
            nearest = off;
            c->bus_bytes_per_second = b->bus_bytes_per_second;
        }
        if (b->n_bytes < least) {
            least = b->n_bytes;
            c->latency_seconds = b->best_seconds;
        }
    }
    return 0;
}

static int measure_all(struct bench_cluster *c, const struct job *job, struct engine *engine,
                       struct engine *alone, int n_steps, struct arena *arena, struct err *err)
{
    struct world_group world = { .engine = engine };
    int n_ranks = engine->rank.world_size;
    double by_one = 0, by_all = 0;

    if (n_ranks > 1 && worker_call(engine->worker, open_world, &world, err))
        return -1;
    if (engine->rank.world_rank == 0 &&
        measure_alone(c, job, alone, n_ranks, n_steps, &by_one, err))
        return -1;
    if (n_ranks == 1)
        return 0;
    if (worker_call(engine->worker, wait_for_all, world.group, err) ||
        measure_together(job, alone, n_steps, &by_all, err) ||
        worker_call(engine->worker, wait_for_all, world.group, err))
        return -1;
    c->table.contention = by_one > 0 ? by_all / by_one : 0;
    if (measure_tensor(c, job, engine, n_steps, err))
        return -1;
    return measure_collectives(c, engine, arena, err);
}

static int64_t memory_of(const struct engine *engine)
{
    if (!device_is_host(engine->device))
        return (int64_t)engine->device->ops->memory(engine->device).total_bytes;
    return (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE) /
           max_int(1, engine->rank.world_size);
}

int bench_cluster(struct bench_cluster *cluster, const struct job *job, struct engine *engine,
                  int n_steps, struct arena *arena, struct err *err)
{
    struct engine alone;

    *cluster = (struct bench_cluster){ .table = { .arena = arena } };
    cluster->table.machine = arena_strdup(arena, kernels_identity(engine->kernels));
    cluster->n_threads = engine->pool ? pool_n_threads(engine->pool) : 0;
    cluster->memory_bytes = memory_of(engine);
    if (isolate(&alone, engine, err))
        return -1;
    int status = measure_all(cluster, job, engine, &alone, n_steps, arena, err);
    comm_destroy(alone.comm);
    return status;
}

/* ---- its file ---- */

void bench_cluster_print(const struct bench_cluster *c, const struct engine *engine,
                         enum dtype dtype, const char *tables, struct str *out)
{
    const char *format = device_format_name(price_format(dtype));
    int n = engine->rank.world_size;
    double bus = c->bus_bytes_per_second > 0 ? c->bus_bytes_per_second : c->peak.bytes_per_second;

    str_printf(out, "# %s; %d rank%s of %d thread%s, measured by lmtrain bench cluster\n",
               c->table.machine, n, str_s(n), c->n_threads, str_s(c->n_threads));
    str_printf(out, "islands:\n  - nodes: 1\n    per_node: %d\n    device:\n", n);
    if (device_is_host(engine->device))
        str_add(out, "      cpu: true\n");
    str_printf(out, "      memory: %lld MiB\n      hbm: %.3f GB/s\n",
               (long long)(c->memory_bytes >> 20), c->peak.bytes_per_second / 1e9);
    if (dtype == DTYPE_F32)
        str_printf(out,
                   "      peak: {fp32: %.6f TFLOP/s}\n      kernel_reach: {fp32: 1}\n"
                   "      step_reach: {fp32: 1}\n",
                   c->peak.f32_flops / 1e12);
    else
        str_printf(out,
                   "      peak: {fp32: %.6f TFLOP/s, %s: %.6f TFLOP/s}\n"
                   "      kernel_reach: {fp32: 1, %s: 1}\n      step_reach: {fp32: 1, %s: 1}\n",
                   c->peak.f32_flops / 1e12, format, c->peak.flops / 1e12, format, format);
    str_printf(out, "      fast: {bus: %.3f GB/s, link: %.3f GB/s, latency: %lld ns, domain: %d}\n",
               bus / 1e9, bus / 1e9, (long long)max_i64(1, llround(1e9 * c->latency_seconds)), n);
    str_printf(out,
               "software: {host_op: %lld ns, constant: 100 us, jitter: %.4f, "
               "overlap: {fast: 0.5, nic: 0.5}}\n",
               (long long)max_i64(1, llround(1e9 * c->host_op_seconds)), fmax(1e-4, c->jitter));
    str_printf(out, "tables: %s\n", tables);
}
