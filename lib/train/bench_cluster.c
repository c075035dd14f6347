/*
 * bench_cluster.c - steps of narrowed models, alone and with all ranks, and exchanges
 */
#include "train/bench_cluster.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/num.h"
#include "plan/price_impl.h"
#include "report/progress_line.h"
#include "train/bench_impl.h"

enum { N_WARM = 2, N_LAYERS_MAX = 8, N_ROUNDS = 20, N_STAGES_OF_ALL = 5 };
#define COLLECTIVE_BYTES ((size_t)64 << 20)
#define BUS_BYTES ((size_t)16 << 20)

/* What one measurement is made of. */
struct cluster_benchmark {
    struct bench_cluster *cluster;
    const struct job *job;
    struct engine *engine, *alone; /* with all ranks; this rank for itself */
    int n_steps;
    struct comm_group *world; /* NULL: one rank */
    struct arena *arena;
    struct progress_line line;
    int stage, n_stages;
};

/* On standard error of rank 0. */
static void tell(struct cluster_benchmark *b, const char *what)
{
    char left[PROGRESS_LEFT_BYTES], part[64];

    b->stage++;
    if (b->engine->rank.world_rank || !(b->line.is_terminal || progress_line_is_due(&b->line)))
        return;
    snprintf(part, sizeof part, "%d of %d", b->stage, b->n_stages);
    const char *const texts[] = { "measuring", part, what,
                                  progress_line_left(&b->line, b->stage - 1, b->n_stages, left) };
    progress_line_show(&b->line, texts, 4);
}

/* ---- the jobs that are measured ---- */

static int divide(int n, int by)
{
    return max_int(1, n / by);
}

/* What one of tp ranks has of the model, and of sequences one of cp, as a job of one rank; a
 * micro-batch in `parts`. */
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
    narrow.data.seq_len = divide(narrow.data.seq_len, narrow.parallel.cp);
    narrow.parallel.cp = narrow.parallel.ep = 1;
    narrow.parallel.cp_kind = CP_AUTO;
    narrow.parallel.cp_sizes = (struct cp_sizes){ 0, 0 };
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

/* Of a step; and for how long its threads had a core. Whole steps: where ranks share cores they
 * take turns for longer than an op lasts. */
struct rank_seconds {
    double wall, cpu;
};

static struct rank_seconds median_step(struct bench *bench)
{
    return (struct rank_seconds){ bench_median(bench->step_seconds, bench->n_steps),
                                  bench_median(bench->cpu_seconds, bench->n_steps) };
}

static void add_ops(struct bench_cluster *c, const struct bench *bench)
{
    for (int i = 0; i < bench->n_ops; i++) {
        const struct bench_op *op = &bench->ops[i];

        if (op_has_kernel(op->shape.kind) && op->seconds > 0)
            price_table_add_op(&c->table, &op->shape, 1e9 * op->seconds / op->n_runs,
                               1e9 * op->cpu_seconds / op->n_runs);
    }
}

/* Of a step, without those that others on the machine disturbed: by the median of what steps are
 * off their median, which of a normal distribution is .67 sigma. */
static double jitter_of(const struct bench *bench, struct arena *arena)
{
    int n = bench->n_steps;
    double *steps = arena_array(arena, double, n), *off = arena_array(arena, double, n);

    memcpy(steps, bench->step_seconds, sizeof *steps * (size_t)n);
    double median = bench_median(steps, n);
    for (int i = 0; i < n; i++)
        off[i] = fabs(bench->step_seconds[i] / median - 1);
    return 1.4826 * bench_median(off, n);
}

/* ---- measuring ---- */

static bool can_divide(const struct job *job, int tp)
{
    struct err ignored;

    return !job_check_tp(&job->model, tp, "tp", &ignored);
}

/* What micro-batches are divided into, one after the other. Slices are eighths and less, of which
 * products take longer a token. */
static const int parts_of[] = { 1, 2, 8 };
enum { N_PARTS = sizeof parts_of / sizeof *parts_of };

/* Of tensor-parallel ranks: those of a node, or of the job if it has more. */
static int most_tensor_ranks(const struct job *job, const struct bench_nodes *nodes)
{
    return max_int(nodes->per_node, job->parallel.tp);
}

/* How many models this rank measures alone. */
static int count_models(const struct job *job, int n_ranks)
{
    int n = 0;

    for (int tp = 1; tp <= n_ranks; tp *= 2)
        n += can_divide(job, tp) ? N_PARTS : 0;
    return n;
}

/* Steps of a program that has no number of its own: so many, and so long. */
enum { N_STEPS_LEAST = 10, N_STEPS_MOST = 400 };
#define SECONDS_LEAST 1.0
enum { N_TOGETHER_LEAST = 5, N_TOGETHER_MOST = 20 };

/* One disturbance of a short measurement would be in all prices. */
static int run_long_enough(struct bench *bench, const struct job *job, struct cluster_benchmark *b,
                           struct err *err)
{
    int n = b->n_steps ? b->n_steps : N_STEPS_LEAST;

    if (bench_run(bench, job, b->alone, N_WARM, n, err))
        return -1;
    double wanted = SECONDS_LEAST / median_step(bench).wall;
    if (b->n_steps || wanted <= n)
        return 0;
    bench_release(bench);
    return bench_run(bench, job, b->alone, N_WARM, (int)fmin(wanted, N_STEPS_MOST), err);
}

/* This rank: all models. *seconds: a step of the first. */
static int measure_models(struct cluster_benchmark *b, struct rank_seconds *seconds,
                          struct err *err)
{
    struct bench_cluster *c = b->cluster;

    for (int tp = 1; tp <= most_tensor_ranks(b->job, &c->nodes); tp *= 2)
        for (int i = 0; i < N_PARTS && can_divide(b->job, tp); i++) {
            static const char *const of[N_PARTS] = { "a", "half a", "an eighth of a" };
            struct job narrowed = narrow(b->job, tp, parts_of[i]);
            struct bench bench;

            tell(b,
                 arena_printf(b->arena, "ops of one of %d tensor-parallel rank%s, %s micro-batch",
                              tp, str_s(tp), of[i]));
            if (run_long_enough(&bench, &narrowed, b, err))
                return -1;
            add_ops(c, &bench);
            if (tp == 1 && i == 0) {
                c->peak = bench.ceiling;
                c->jitter = jitter_of(&bench, b->arena);
                *seconds = median_step(&bench);
            }
            bench_release(&bench);
        }
    return 0;
}

static int measure_alone(struct cluster_benchmark *b, struct rank_seconds *seconds, struct err *err)
{
    if (measure_models(b, seconds, err))
        return -1;
    tell(b, "the host's time of an op and of a step");
    if (bench_host(&b->cluster->host, b->job, b->alone, b->arena, err))
        return -1;
    tell(b, "the host's link and storage");
    return bench_links(&b->cluster->links, b->job->output, b->alone, b->arena, err);
}

/* ---- ops of all ranks ---- */

int bench_steps_together(double seconds, int n_steps)
{
    int least = n_steps ? max_int(n_steps, N_TOGETHER_LEAST) : N_STEPS_LEAST;
    int most = max_int(least, N_TOGETHER_MOST);
    double wanted = seconds > 0 ? SECONDS_LEAST / seconds : most;

    return (int)fmin(most, fmax(least, ceil(wanted)));
}

static int meet_all(void *context, struct err *err)
{
    const struct cluster_benchmark *b = context;

    return bench_barrier(b->engine, b->world, err);
}

/* seconds: of rank 0 those of a step alone; then of each rank those of a step of all. */
static int measure_together(struct cluster_benchmark *b, struct rank_seconds *seconds,
                            struct err *err)
{
    const struct bench_meeting meeting = { meet_all, b };
    struct job whole = narrow(b->job, 1, 1);
    double alone = seconds->wall;
    struct bench bench;

    tell(b, "steps while all ranks compute");
    if (bench_await(b->engine, b->world, err) || bench_largest(b->engine, b->world, &alone, err))
        return -1;
    b->cluster->n_together = bench_steps_together(alone, b->n_steps);
    if (bench_run_together(&bench, &whole, b->alone, b->cluster->n_together, &meeting, err))
        return -1;
    *seconds = median_step(&bench);
    bench_release(&bench);
    return bench_barrier(b->engine, b->world, err);
}

/* Ops that only tensor-parallel programs have (a head whose vocabulary is divided), where the ranks
 * can be divided so; less what they take from each other. */
static int measure_tensor(struct cluster_benchmark *b, struct err *err)
{
    struct bench_cluster *c = b->cluster;
    int n_ranks = b->engine->rank.world_size;
    struct job tensor = narrow(b->job, 1, 1);
    struct bench bench;
    enum price_source source;
    double shared = fmax(1, c->table.cpu_contention); /* of memory and caches, not of cores */

    tell(b, "ops of tensor-parallel ranks");
    if (!can_divide(b->job, n_ranks))
        return 0;
    tensor.parallel.tp = tensor.world_size = n_ranks;
    if (bench_run(&bench, &tensor, b->engine, N_WARM, b->n_steps ? b->n_steps : c->n_together, err))
        return -1;
    for (int i = 0; i < bench.n_ops && b->engine->rank.world_rank == 0; i++) {
        const struct bench_op *op = &bench.ops[i];

        if (op_has_kernel(op->shape.kind) && op->seconds > 0 &&
            price_table_op(&c->table, &op->shape, &source) < 0)
            price_table_add_op(&c->table, &op->shape, 1e9 * op->seconds / op->n_runs / shared,
                               1e9 * op->cpu_seconds / op->n_runs / shared);
    }
    bench_release(&bench);
    return 0;
}

/* ---- exchanges ---- */

/* Of a gather over all ranks of a node, and of as many nodes as there are: the bus at a middle
 * size, the latency at the least. */
static void take_link(const struct bench_collective *list, int n, struct price_span span,
                      struct bench_link *link)
{
    size_t least = SIZE_MAX, nearest = SIZE_MAX;

    for (int i = 0; i < n; i++) {
        const struct bench_collective *e = &list[i];
        size_t off = e->n_bytes > BUS_BYTES ? e->n_bytes - BUS_BYTES : BUS_BYTES - e->n_bytes;

        if (e->kind != OP_ALL_GATHER || e->per_node != span.per_node || e->n_nodes != span.n_nodes)
            continue;
        if (off < nearest) {
            nearest = off;
            link->bytes_per_second = e->bus_bytes_per_second;
        }
        if (e->n_bytes < least) {
            least = e->n_bytes;
            link->latency_seconds = e->quiet_seconds;
        }
    }
}

static int measure_collectives(struct cluster_benchmark *b, struct err *err)
{
    struct bench_cluster *c = b->cluster;
    struct bench_collective *list;
    int n;

    tell(b, "collectives");
    if (bench_collectives(b->engine, &c->nodes, COLLECTIVE_BYTES, N_ROUNDS, &list, &n, b->arena,
                          err))
        return -1;
    for (int i = 0; i < n && b->engine->rank.world_rank == 0; i++)
        price_table_add_collective(&c->table, list[i].kind,
                                   (struct price_span){ list[i].per_node, list[i].n_nodes },
                                   (int64_t)list[i].n_bytes, 1e9 * list[i].quiet_seconds);
    take_link(list, n, (struct price_span){ c->nodes.per_node, 1 }, &c->fast);
    take_link(list, n, (struct price_span){ c->nodes.per_node, c->nodes.n }, &c->net);
    return 0;
}

static int measure_transfers(struct cluster_benchmark *b, struct err *err)
{
    struct bench_cluster *c = b->cluster;
    struct bench_exchanges *x = &c->exchanges;

    tell(b, "transfers");
    if (bench_transfers(x, b->engine, &c->nodes, COLLECTIVE_BYTES, N_ROUNDS, b->arena, err))
        return -1;
    for (int i = 0; i < x->n_transfers; i++)
        price_table_add_transfer(&c->table, x->transfers[i].is_across,
                                 (int64_t)x->transfers[i].n_bytes, 1e9 * x->transfers[i].seconds);
    c->table.late_ns = 1e9 * x->late_seconds;
    tell(b, "compute beside exchanges");
    if (bench_overlap(x, b->engine, &c->nodes, b->job->train.dtype, err))
        return -1;
    c->table.beside_ns = 1e9 * x->beside_seconds;
    return 0;
}

static int measure_all(struct cluster_benchmark *b, struct err *err)
{
    struct bench_cluster *c = b->cluster;
    struct rank_seconds by_one = { 0, 0 }, by_all = { 0, 0 };

    if (b->engine->rank.world_size > 1 && bench_group_open_world(&b->world, b->engine, err))
        return -1;
    if (b->engine->rank.world_rank == 0 && measure_alone(b, &by_one, err))
        return -1;
    if (b->engine->rank.world_size == 1)
        return 0;
    by_all = by_one;
    if (measure_together(b, &by_all, err))
        return -1;
    c->table.contention = by_one.wall > 0 ? by_all.wall / by_one.wall : 0;
    c->table.cpu_contention = by_one.cpu > 0 ? by_all.cpu / by_one.cpu : 0;
    return measure_tensor(b, err) || measure_collectives(b, err) || measure_transfers(b, err) ? -1
                                                                                              : 0;
}

static int64_t memory_of(const struct engine *engine)
{
    if (!device_is_host(engine->device))
        return (int64_t)engine->device->ops->memory(engine->device).total_bytes;
    return (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE) /
           max_int(1, engine->rank.local_size);
}

int bench_cluster(struct bench_cluster *cluster, const struct job *job, struct engine *engine,
                  int n_steps, struct arena *arena, struct err *err)
{
    struct engine alone;
    struct cluster_benchmark b = { .cluster = cluster,
                                   .job = job,
                                   .engine = engine,
                                   .alone = &alone,
                                   .n_steps = n_steps,
                                   .arena = arena };

    *cluster = (struct bench_cluster){ .table = { .arena = arena },
                                       .exchanges = { .overlap = -1, .overlap_nic = -1 } };
    cluster->table.machine = arena_strdup(arena, kernels_identity(engine->kernels));
    cluster->n_threads = engine->pool ? pool_n_threads(engine->pool) : 0;
    cluster->memory_bytes = memory_of(engine);
    if (bench_find_nodes(&cluster->nodes, engine, err) || isolate(&alone, engine, err))
        return -1;
    b.n_stages = count_models(job, most_tensor_ranks(job, &cluster->nodes)) + 2 +
                 (engine->rank.world_size > 1 ? N_STAGES_OF_ALL : 0);
    progress_line_begin(&b.line, 2);
    int status = measure_all(&b, err);
    progress_line_end(&b.line);
    comm_destroy(alone.comm);
    return status;
}
