/*
 * bench.c - a job's step, run and timed
 */
#include "train/bench_impl.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/num.h"
#include "base/rng.h"
#include "layout/axes.h"
#include "plan/memory_fit.h"
#include "plan/plan.h"
#include "plan/programs.h"
#include "plan/suggest.h"
#include "progress/progress.h"
#include "train/peak.h"
#include "train/trainer.h"
#include "weights/init_weights.h"
#include "weights/inputs.h"

/* The context of the executor's loads while a benchmark runs. */
struct bench_source {
    const struct job *job;
    const struct program *program;
    struct run *run;
    int32_t *tokens, *targets, *positions; /* of the rank's rows */
    /* With context parallelism: */
    int32_t *rows, *attention_positions, *last, *ring_first, *ring_last;
    int32_t *window_first, *window_last;
    int64_t *samples;
    int64_t n_rows;
    uint64_t n_loaded;
};

/* Uniform over the vocabulary: no op's work depends on which tokens they are. */
static int load_random(void *context, int micro_batch, struct err *err)
{
    struct bench_source *s = context;
    int n_sequences = s->job->train.micro_batch;

    (void)err;
    for (int64_t i = 0; i < s->n_rows; i++) {
        struct rng_block r = rng_at(s->job->train.seed, RNG_BENCH, s->n_loaded, (uint64_t)i);

        s->tokens[i] = (int32_t)(r.word[0] % (uint32_t)s->job->model.vocab_size);
        s->targets[i] = (int32_t)(r.word[1] % (uint32_t)s->job->model.vocab_size);
    }
    for (int i = 0; i < n_sequences; i++)
        s->samples[i] = (int64_t)s->n_loaded * n_sequences + i;
    s->n_loaded++;
    struct micro_batch batch = {
        .tokens = s->tokens,
        .targets = s->targets,
        .positions = s->positions,
        .samples = s->samples,
        .rows = s->rows,
        .attention_positions = s->attention_positions,
        .last = s->last,
        .ring_first = s->ring_first,
        .ring_last = s->ring_last,
        .window_first = s->window_first,
        .window_last = s->window_last,
    };
    inputs_of_batch(s->run, s->program, &batch, micro_batch);
    return 0;
}

static void see_windows(struct bench_source *s, int cp_rank)
{
    struct context_cut cut = job_context_cut(s->job);
    int64_t seq_len = s->job->data.seq_len, pair = seq_len / cut.keys;

    for (int64_t i = 0; i < s->job->train.micro_batch * pair; i++) {
        struct context_keys keys =
            context_window_keys(cut, seq_len, s->job->model.window, cp_rank, i % pair, 0);

        s->window_first[i] = keys.first;
        s->window_last[i] = keys.last;
    }
}

/* Where the rows lie in their sequences: the rank's, and those that it attends from. */
static void place_rows(struct bench_source *s, int ulysses_rank, int cp_rank)
{
    struct context_cut cut = job_context_cut(s->job);
    int64_t seq_len = s->job->data.seq_len, pair = seq_len / cut.keys;
    int64_t n = seq_len / context_size(cut);

    for (int i = 0; i < s->job->train.micro_batch; i++) {
        context_rows(cut, seq_len, ulysses_rank, cp_rank, s->positions + i * n);
        context_pair_rows(cut, seq_len, cp_rank, s->last + i * pair);
        for (int64_t row = 0; row < n; row++)
            s->rows[i * n + row] = (int32_t)(i * seq_len) + s->positions[i * n + row];
    }
}

/* What each step of a ring has of the keys that a row sees: all of a pair's that lie before it. */
static void place_ring(struct bench_source *s, int cp_rank)
{
    struct context_cut cut = job_context_cut(s->job);
    int64_t seq_len = s->job->data.seq_len, n = s->n_rows * cut.ulysses;

    for (int step = 0; step < cut.keys; step++)
        for (int64_t i = 0; i < n; i++)
            s->ring_last[step * n + i] =
                (int32_t)context_rows_before(cut, seq_len, (cp_rank - step + cut.keys) % cut.keys,
                                             s->last[i] + 1) -
                1;
}

static void source_open(struct bench_source *s, const struct job *job,
                        const struct program *program, const struct mesh_place *place,
                        struct run *run, struct arena *arena)
{
    struct context_cut cut = job_context_cut(job);
    int64_t n_pairs = (int64_t)job->train.micro_batch * job->data.seq_len / cut.keys;
    int64_t n_rows = n_pairs / cut.ulysses;

    *s = (struct bench_source){ .job = job,
                                .program = program,
                                .run = run,
                                .tokens = arena_array(arena, int32_t, n_rows),
                                .targets = arena_array(arena, int32_t, n_rows),
                                .positions = arena_array(arena, int32_t, n_rows),
                                .rows = arena_array(arena, int32_t, n_rows),
                                .last = arena_array(arena, int32_t, n_pairs),
                                .ring_first = arena_array(arena, int32_t, n_pairs * cut.keys),
                                .ring_last = arena_array(arena, int32_t, n_pairs * cut.keys),
                                .window_first = arena_array(arena, int32_t, n_pairs),
                                .window_last = arena_array(arena, int32_t, n_pairs),
                                .n_rows = n_rows,
                                .samples = arena_array(arena, int64_t, job->train.micro_batch) };
    s->attention_positions = s->last;
    place_rows(s, place->of[axes_heads()], place->of[axes_keys()]);
    place_ring(s, place->of[axes_keys()]);
    if (program->ports.window_first)
        see_windows(s, place->of[axes_keys()]);
}

/* Learning rate 0: the parameters stay what a model begins with, however many steps are run. */
static void write_scalars(struct run *run, const struct program *program, int64_t tokens)
{
    float scalars[OPS_N_SCALARS] = { [SCALAR_BIAS1] = 1, [SCALAR_BIAS2] = 1, [SCALAR_UPDATE] = 1 };
    float loss_scale = 1.0f / (float)tokens, gradient_scale = 1;

    if (program->ports.gradient_scale)
        run_put(run, program->ports.gradient_scale, 0, 0, &gradient_scale, sizeof gradient_scale);
    run_put(run, program->ports.loss_scale, 0, 0, &loss_scale, sizeof loss_scale);
    run_put(run, program->ports.scalars, 0, 0, scalars, sizeof scalars);
    for (int i = 0; i < UPDATE_GROUPS_MAX; i++)
        if (program->ports.group_scalars[i])
            run_put(run, program->ports.group_scalars[i], 0, 0, scalars, sizeof scalars);
}

struct least_of_ranks {
    struct comm_group *world;
    int64_t bytes;
};

static int find_least(void *argument, struct err *err)
{
    struct least_of_ranks *least = argument;
    int64_t value = -least->bytes;
    int status = comm_agree(least->world, COMM_MAX, &value, err);

    least->bytes = -value;
    return status;
}

/* The least that a rank's device has, which all ranks choose by: programs must hold the same
 * collectives. */
static int agree_on_bytes(struct engine *engine, int64_t *bytes, struct err *err)
{
    struct least_of_ranks least = { .bytes = (int64_t)engine_available_bytes(engine) };
    int status = 0;

    if (engine->rank.world_size > 1) {
        status = bench_group_open_world(&least.world, engine, err);
        if (!status)
            status = worker_call(engine->worker, find_least, &least, err);
        if (bench_group_close(engine, least.world, err) < 0)
            status = -1;
    }
    *bytes = least.bytes;
    return status;
}

/* What is kept, computed again and away is chosen as for a run. */
static int compile_chosen(struct program *program, const struct job *job, struct engine *engine,
                          struct err *err)
{
    struct mesh mesh = job_mesh(job);
    struct job chosen = *job;
    struct arena arena = { 0 };
    bool is_shared = device_is_host(engine->device) && job->memory.offload != OFFLOAD_NONE;
    struct memory_fit_request fit = { .job = job, .kernels = engine->kernels };
    struct programs_request request = { .job = &chosen,
                                        .kernels = engine->kernels,
                                        .pp_rank = mesh_coordinate(&mesh, engine->rank.world_rank,
                                                                   axes_stages()) };
    struct memory_fit *found;
    int status =
        memory_is_chosen(job) && !is_shared ? agree_on_bytes(engine, &fit.device_bytes, err) : 0;

    if (!status)
        status = memory_fit_job(&found, &chosen, &fit, &arena, err);
    if (!status)
        status = programs_compile(program, &request, err);
    arena_release(&arena);
    return status;
}

int bench_compile(struct program *program, const struct job *job, struct engine *engine,
                  struct err *err)
{
    if (compile_chosen(program, job, engine, err) < 0 ||
        run_reserve(program, engine->kernels, progress_join(engine->rank.local_rank), err) < 0)
        return -1;
    return suggest_check(job, engine->kernels, plan_needed_bytes(program, engine->kernels),
                         engine_available_bytes(engine), err);
}

int bench_open_run(struct run **run, const struct bench *bench, const struct job *job,
                   struct engine *engine, struct err *err)
{
    struct run_options options = {
        .program = &bench->program,
        .kernels = engine->kernels,
        .pool = engine->pool,
        .comm = engine->comm,
        .worker = engine->worker,
        .progress = engine->rank.under_pmix ? progress_join(engine->rank.local_rank) : NULL,
        .timed = 1,
        .fast = job->parallel.reductions == REDUCTIONS_FAST,
        .node_ranks = job_node_ranks(job),
        .file_folder = job->memory.file,
        .link_bytes_per_s = job->memory.link_rate,
        .file_bytes_per_s = job->memory.file_rate,
    };

    if (run_create(run, &options, err) < 0)
        return -1;
    init_constants(*run, &bench->program, &job->model);
    struct mesh_place place = mesh_place(&bench->program.mesh, engine->rank.world_rank);
    init_parameters(*run, &bench->program, &place, engine->pool, job->train.seed);
    return 0;
}

/* ---- what there is to measure ---- */

static int count_runs(const struct program *program, int function)
{
    const struct entry *step = &program->entries[ENTRY_STEP];
    int n = 0;

    for (int i = 0; i < step->n_actions; i++)
        n += step->actions[i].kind == ACTION_RUN && step->actions[i].function == function;
    return n;
}

static void list_ops(struct bench *bench)
{
    const struct program *p = &bench->program;
    int capacity = 0;

    for (int f = 0; f < p->n_functions; f++)
        capacity += p->functions[f].n_ops;
    bench->ops = arena_array(&bench->arena, struct bench_op, capacity);
    for (int f = 0; f < p->n_functions; f++) {
        int n_runs = count_runs(p, f);

        for (int i = 0; n_runs && i < p->functions[f].n_ops; i++) {
            struct bench_op *op = &bench->ops[bench->n_ops++];

            *op = (struct bench_op){ .function = f, .op = i, .n_runs = n_runs };
            struct op_shape shape = program_op_shape(p, &p->functions[f].ops[i]);

            op->shape = op_in_rows(&shape);
            op->flops = n_runs * op_flops(&op->shape);
            op->bytes = n_runs * op_bytes(&op->shape);
            op->light_seconds = n_runs * machine_peak_seconds(&bench->ceiling, &op->shape);
        }
    }
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double bench_median(double *numbers, int n)
{
    CHECK(n > 0);
    qsort(numbers, (size_t)n, sizeof *numbers, compare);
    return n % 2 ? numbers[n / 2] : (numbers[n / 2 - 1] + numbers[n / 2]) / 2;
}

/* ---- measuring it ---- */

/* Until all that the step gave to the device is done. */
struct step_seconds {
    double wall, cpu;
};

static int run_step(struct run *run, const struct pool *pool, const struct run_hooks *hooks,
                    struct step_seconds *seconds, struct err *err)
{
    struct device *device = run_device(run);

    run_clear_times(run);
    double cpu = pool_cpu_seconds(pool), begin = clock_seconds();
    if (run_entry(run, ENTRY_STEP, 0, hooks, err) < 0 ||
        device->ops->wait(device, DEVICE_COMPUTE, err) < 0)
        return -1;
    *seconds = (struct step_seconds){ clock_seconds() - begin, pool_cpu_seconds(pool) - cpu };
    return 0;
}

/* What the last step waited for. */
static void add_exposed(struct bench *bench, const struct run *run)
{
    struct run_exposed list[BENCH_MAX_EXPOSED];
    int n = run_list_exposed(run, list, BENCH_MAX_EXPOSED);

    for (int i = 0; i < n; i++) {
        int k = 0;

        while (k < bench->n_exposed &&
               (bench->exposed[k].kind != list[i].kind || bench->exposed[k].axis != list[i].axis))
            k++;
        if (k == BENCH_MAX_EXPOSED)
            continue;
        if (k == bench->n_exposed)
            bench->exposed[bench->n_exposed++] =
                (struct run_exposed){ list[i].kind, list[i].axis, 0 };
        bench->exposed[k].seconds += list[i].seconds;
    }
}

static int measure_steps(struct bench *bench, struct run *run, const struct pool *pool,
                         const struct run_hooks *hooks, int n_warm, struct err *err)
{
    int n = bench->n_steps;
    double *waits = arena_array(&bench->arena, double, n);
    struct step_seconds seconds;

    if (run_entry(run, ENTRY_GATHER, 0, NULL, err) < 0 ||
        run_step(run, pool, hooks, &seconds, err) < 0)
        return -1;
    bench->first_seconds = seconds.wall;
    for (int i = 0; i < n_warm; i++)
        if (run_step(run, pool, hooks, &seconds, err) < 0)
            return -1;
    for (int i = 0; i < n; i++) {
        if (run_step(run, pool, hooks, &seconds, err) < 0)
            return -1;
        bench->step_seconds[i] = seconds.wall;
        bench->cpu_seconds[i] = seconds.cpu;
        waits[i] = run_wait_seconds(run);
        add_exposed(bench, run);
    }
    bench->wait_seconds = bench_median(waits, n);
    for (int i = 0; i < bench->n_exposed; i++)
        bench->exposed[i].seconds /= n;
    run_sort_exposed(bench->exposed, bench->n_exposed);
    return 0;
}

static int measure_ops(struct bench *bench, struct run *run, const struct pool *pool,
                       const struct run_hooks *hooks, struct err *err)
{
    int n = bench->n_steps;
    double *wall = arena_array(&bench->arena, double, (int64_t)n * bench->n_ops);
    double *cpu = arena_array(&bench->arena, double, (int64_t)n * bench->n_ops);

    run_set_timed(run, 1);
    for (int i = 0; i < n; i++) {
        struct step_seconds seconds;

        if (run_step(run, pool, hooks, &seconds, err) < 0)
            return -1;
        bench->timed_seconds[i] = seconds.wall;
        for (int k = 0; k < bench->n_ops; k++) {
            wall[k * n + i] = run_op_seconds(run, bench->ops[k].function, bench->ops[k].op);
            cpu[k * n + i] = run_op_cpu_seconds(run, bench->ops[k].function, bench->ops[k].op);
        }
    }
    for (int k = 0; k < bench->n_ops; k++) {
        bench->ops[k].seconds = bench_median(wall + k * n, n);
        bench->ops[k].cpu_seconds = bench_median(cpu + k * n, n);
    }
    return 0;
}

enum { N_WARM_TOGETHER = 2 };

static int run_and_measure(struct bench *bench, const struct job *job, struct engine *engine,
                           int n_warm, const struct bench_meeting *meeting, struct err *err)
{
    struct progress_slot *progress = progress_join(engine->rank.local_rank);
    struct bench_source source;
    struct run *run;

    progress_phase(progress, "measuring the machine");
    if (bench_compile(&bench->program, job, engine, err) < 0 ||
        machine_peak_measure(&bench->ceiling, engine, job->train.dtype, err) < 0 ||
        peak_find(engine, job->train.dtype, &bench->peak_flops, err) < 0 ||
        bench_open_run(&run, bench, job, engine, err) < 0)
        return -1;
    if (engine->rank.world_size == 1)
        bench->peak_flops = bench->ceiling.flops;
    progress_phase(progress, "between steps");
    struct mesh_place place = mesh_place(&bench->program.mesh, engine->rank.world_rank);
    source_open(&source, job, &bench->program, &place, run, &bench->arena);
    write_scalars(run, &bench->program, bench->tokens);
    list_ops(bench);
    struct run_hooks hooks = { .context = &source, .load = load_random };
    int status = meeting ? meeting->meet(meeting->context, err) : 0;
    if (!status)
        status = measure_steps(bench, run, engine->pool, &hooks, n_warm, err);
    if (!status && !meeting)
        status = measure_ops(bench, run, engine->pool, &hooks, err);
    run_destroy(run);
    return status;
}

static int run_bench(struct bench *bench, const struct job *job, struct engine *engine, int n_warm,
                     const struct bench_meeting *meeting, struct err *err)
{
    int n_steps = bench->n_steps;

    bench->tokens = (int64_t)job->train.global_batch * job->data.seq_len;
    bench->step_seconds = arena_array(&bench->arena, double, n_steps);
    bench->timed_seconds = arena_array(&bench->arena, double, n_steps);
    bench->cpu_seconds = arena_array(&bench->arena, double, n_steps);
    if (run_and_measure(bench, job, engine, n_warm, meeting, err) < 0) {
        bench_release(bench);
        return -1;
    }
    return 0;
}

int bench_run(struct bench *bench, const struct job *job, struct engine *engine, int n_warm,
              int n_steps, struct err *err)
{
    CHECK(n_steps >= 1);
    *bench = (struct bench){ .n_steps = n_steps };
    return run_bench(bench, job, engine, n_warm, NULL, err);
}

int bench_run_together(struct bench *bench, const struct job *job, struct engine *engine,
                       int n_steps, const struct bench_meeting *meeting, struct err *err)
{
    CHECK(n_steps >= 1);
    *bench = (struct bench){ .n_steps = n_steps };
    return run_bench(bench, job, engine, N_WARM_TOGETHER, meeting, err);
}

void bench_release(struct bench *bench)
{
    program_release(&bench->program);
    arena_release(&bench->arena);
    memset(bench, 0, sizeof *bench);
}
