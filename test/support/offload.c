/*
 * offload.c - see the header
 */
#include "support/offload.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "program/passes.h"

enum { N_STEPS = 3, AHEAD = 2, UNDER_WAY = 2 };

/* ---- the program ---- */

static int emit(struct offload *o, int function, struct op op)
{
    op.phase = function == o->backward ? PHASE_B : PHASE_F;
    program_emit(&o->program, function, &op);
    return op.out[0];
}

static int new_value(struct offload *o, int like)
{
    const struct value *v = &o->program.values[like];

    return program_value(&o->program, v->rows, v->cols, v->dtype);
}

static int add(struct offload *o, int function, int layer, int a, int b)
{
    return emit(o, function,
                (struct op){ .kind = OP_ADD,
                             .in = { [ADD_A] = a, [ADD_B] = b },
                             .out = { [ADD_Y] = new_value(o, a) },
                             .layer = layer });
}

static int gather(struct offload *o, int function, int layer, int x)
{
    int tp_size = o->shape.tp_size;

    if (tp_size == 1)
        return x;
    return emit(
        o, function,
        (struct op){ .kind = OP_ALL_GATHER,
                     .attributes.axis = AXIS_TP,
                     .in = { [ALL_GATHER_SHARD] = x },
                     .out = { [ALL_GATHER_FULL] = program_value(
                                  &o->program, o->shape.rows * tp_size, o->shape.cols, DTYPE_F32) },
                     .stream = STREAM_TP,
                     .layer = layer });
}

static int to_host(struct offload *o, int layer, int x)
{
    const struct value *v = &o->program.values[x];
    int y = program_host_value(&o->program, v->rows, v->cols, v->dtype);

    if (o->shape.in_file)
        o->program.values[y].space = SPACE_FILE;
    return emit(o, o->forward,
                (struct op){ .kind = OP_TO_HOST,
                             .in = { [TO_HOST_X] = x },
                             .out = { [TO_HOST_Y] = y },
                             .stream = STREAM_COPY_OUT,
                             .layer = layer });
}

static int to_device(struct offload *o, int layer, int x)
{
    return emit(o, o->backward,
                (struct op){ .kind = OP_TO_DEVICE,
                             .in = { [TO_DEVICE_X] = x },
                             .out = { [TO_DEVICE_Y] = new_value(o, x) },
                             .stream = STREAM_COPY_IN,
                             .layer = layer });
}

/* Behind its last use in the forward. */
static void keep(struct offload *o, int l)
{
    o->kept[l] = to_host(o, l, l % 2 ? gather(o, o->forward, l, o->h[l]) : o->h[l]);
}

static void build_forward(struct offload *o)
{
    int n = o->shape.n_layers;

    for (int l = 0; l < n; l++) {
        if (l > AHEAD)
            emit(o, o->forward,
                 (struct op){ .kind = OP_AWAIT, .in = { [AWAIT_X] = o->h[l - AHEAD - 1] } });
        o->h[l] = add(o, o->forward, l, l ? o->h[l - 1] : o->x, o->w[l]);
        if (l)
            keep(o, l - 1);
    }
    keep(o, n - 1);
}

static void build_backward(struct offload *o)
{
    int back[OFFLOAD_LAYERS_MAX], sum = 0, n = o->shape.n_layers;

    for (int i = 0; i < n + AHEAD; i++) {
        int arrives = n - 1 - i, l = arrives + AHEAD;

        if (arrives >= 0)
            back[arrives] = to_device(o, arrives, o->kept[arrives]);
        if (i < AHEAD)
            continue;
        int whole = l % 2 ? back[l] : gather(o, o->backward, l, back[l]);
        sum = sum ? add(o, o->backward, l, sum, whole) : whole;
    }
    emit(o, o->backward,
         (struct op){ .kind = OP_ACCUMULATE,
                      .in = { [ACCUMULATE_X] = sum },
                      .out = { [ACCUMULATE_Y] = o->total },
                      .layer = -1 });
}

/* So many forwards ahead of their backwards. */
static void build_actions(struct offload *o)
{
    struct entry *step = &o->program.entries[ENTRY_STEP];
    int n = o->shape.n_micro_batches;

    step->actions = arena_array(&o->program.arena, struct action, 3 * n);
    for (int i = 0; i < n + UNDER_WAY; i++) {
        int back = i - UNDER_WAY;

        if (i < n) {
            step->actions[step->n_actions++] =
                (struct action){ .kind = ACTION_LOAD, .micro_batch = i };
            step->actions[step->n_actions++] = (struct action){ .kind = ACTION_RUN,
                                                                .function = (int16_t)o->forward,
                                                                .micro_batch = i };
        }
        if (back >= 0)
            step->actions[step->n_actions++] = (struct action){ .kind = ACTION_RUN,
                                                                .function = (int16_t)o->backward,
                                                                .micro_batch = back,
                                                                .first = back == 0 };
    }
}

static int cell(struct offload *o, enum cell_role role, const char *name, int64_t rows)
{
    int id = program_cell(&o->program, role, name, rows, o->shape.cols, DTYPE_F32);

    if (rows == o->shape.rows && o->shape.tp_size > 1)
        o->program.values[id].spread[AXIS_TP] = SPREAD_ROWS;
    return id;
}

void offload_build(struct offload *o, const struct offload_shape *shape)
{
    struct mesh mesh = mesh_data_parallel(1);

    CHECK(shape->n_layers <= OFFLOAD_LAYERS_MAX);
    *o = (struct offload){ .shape = *shape };
    mesh.size[AXIS_TP] = shape->tp_size;
    program_init(&o->program, &mesh);
    o->forward = program_function(&o->program, "forward 0", 0);
    o->backward = program_function(&o->program, "backward 0", 0);
    o->x = cell(o, ROLE_INPUT, "x", shape->rows);
    for (int l = 0; l < shape->n_layers; l++)
        o->w[l] =
            cell(o, ROLE_WEIGHT, arena_printf(&o->program.arena, "layers.%d.w", l), shape->rows);
    o->total = cell(o, ROLE_GRADIENT, "total", shape->rows * shape->tp_size);
    build_forward(o);
    build_backward(o);
    build_actions(o);
}

/* ---- numbers: small whole ones, so that sums are exact in any order ---- */

static float whole_number(int kind, int step, int64_t i)
{
    struct rng_block block = rng_at(37, RNG_TEST, (uint64_t)(1000 * step + kind), (uint64_t)i);

    return (float)(block.word[0] % 7) - 3;
}

static float x_at(int step, int micro_batch, int rank, int64_t i)
{
    return whole_number(100 + 10 * micro_batch + rank, step, i);
}

static float w_at(int layer, int rank, int64_t i)
{
    return whole_number(10 * layer + rank, -1, i);
}

static double total_at(const struct offload_shape *s, int step, int rank, int64_t i)
{
    double sum = 0;

    for (int m = 0; m < s->n_micro_batches; m++) {
        double h = (double)x_at(step, m, rank, i);

        for (int l = 0; l < s->n_layers; l++)
            sum += h += (double)w_at(l, rank, i);
    }
    return sum;
}

/* ---- the adversary ---- */

/* By whoever runs copies: threads have their own. */
static _Thread_local uint64_t adversary_state;
static const struct mover *_Atomic movers[2][2]; /* the real ones: between memories, of the file;
                                                     by whether values lie on a device */

static uint64_t draw(uint64_t n)
{
    adversary_state = adversary_state * 6364136223846793005u + 1442695040888963407u;
    return (adversary_state >> 33) % n;
}

static const struct mover *real_mover(const struct stream_op *op)
{
    const struct copy *c = (const struct copy *)op;

    return movers[file_tier_has(c->from) || file_tier_has(c->to)][op->device != NULL];
}

/* Other streams get on meanwhile. What was copied is not there any more at once. */
static int turn_late(struct stream_op *op, struct err *err)
{
    struct copy *c = (struct copy *)op;

    if (!adversary_state)
        adversary_state = (uint64_t)(uintptr_t)op;
    if (draw(8))
        return COMM_MOVING;
    int progress = real_mover(op)->turn(op, err);
    if (progress == COMM_DONE && !op->device && !file_tier_has(c->from))
        memset((void *)(uintptr_t)c->from, 0xff, c->n_bytes);
    return progress;
}

static int enqueue_late(struct stream_op *op, struct err *err)
{
    struct copy *c = (struct copy *)op;

    if (real_mover(op)->enqueue(op, err) < 0)
        return -1;
    op->device->ops->fill(op->device, op->queue, (void *)(uintptr_t)c->from, 0xff, c->n_bytes);
    return 0;
}

static const struct mover late = { turn_late, enqueue_late };

/* ---- a rank ---- */

struct rank {
    const struct offload_play *play;
    struct comm_hub *hub;
    int number, step, n_wrong;
    int n_allowed; /* cores, before one is taken for compute */
    struct offload offload;
    struct run *run;
};

static void disturb(struct rank *r)
{
    for (int f = 0; f < r->offload.program.n_functions; f++)
        for (int m = 0; m < r->run->functions[f].n; m++) {
            struct resolved_function *function = &r->run->functions[f].list[m];

            for (int i = 0; i < function->n_ops; i++) {
                struct resolved_op *op = &function->ops[i];

                if (!op->is_async && r->play->forgets_waits)
                    op->n_users = 0;
                if (!op->is_async || op_is_collective(op->call.op.kind))
                    continue;
                bool is_of_file = file_tier_has(op->copy.from) || file_tier_has(op->copy.to);
                movers[is_of_file][op->stream_op.device != NULL] = op->stream_op.mover;
                if (r->play->seed)
                    op->stream_op.mover = &late;
            }
        }
}

static int load(void *context, int micro_batch, struct err *err)
{
    struct rank *r = context;
    const struct offload_shape *s = &r->play->shape;
    int64_t n = s->rows * s->cols;
    float *x = malloc((size_t)n * sizeof *x);

    (void)err;
    CHECK(x);
    for (int64_t i = 0; i < n; i++)
        x[i] = x_at(r->step, micro_batch, r->number, i);
    run_put(r->run, r->offload.x, micro_batch, 0, x, (size_t)n * sizeof *x);
    free(x);
    return 0;
}

static void fill_weights(struct rank *r)
{
    const struct offload_shape *s = &r->play->shape;
    int64_t n = s->rows * s->cols;
    float *w = malloc((size_t)n * sizeof *w);

    CHECK(w);
    for (int l = 0; l < s->n_layers; l++) {
        for (int64_t i = 0; i < n; i++)
            w[i] = w_at(l, r->number, i);
        run_put(r->run, r->offload.w[l], 0, 0, w, (size_t)n * sizeof *w);
    }
    free(w);
}

static void count_wrong(struct rank *r)
{
    const struct offload_shape *s = &r->play->shape;
    int64_t part = s->rows * s->cols, n = part * s->tp_size;
    float *total = malloc((size_t)n * sizeof *total);
    struct err err;

    CHECK(total);
    CHECK(run_get(r->run, r->offload.total, 0, 0, total, (size_t)n * sizeof *total, &err) == 0);
    for (int64_t i = 0; i < n; i++)
        r->n_wrong += (double)total[i] != total_at(s, r->step, (int)(i / part), i % part);
    free(total);
}

static int count_cores(void *n_cores, struct err *err)
{
    cpu_set_t cores;

    (void)err;
    CHECK(sched_getaffinity(0, sizeof cores, &cores) == 0);
    *(int *)n_cores = CPU_COUNT(&cores);
    return 0;
}

/* A copy that took turns with compute on its core would make it slower. */
static void check_spread(const struct run *run, int n_allowed)
{
    struct err err;
    int n_own, n_copying;

    CHECK(count_cores(&n_own, &err) == 0);
    CHECK(n_own == 1);
    CHECK(run->owns_worker);
    CHECK(worker_call(run->worker, count_cores, &n_copying, &err) == 0);
    CHECK(n_copying == n_allowed);
}

static void run_steps(struct rank *r, struct kernels *kernels, struct comm *comm,
                      struct worker *worker)
{
    struct program *p = &r->offload.program;
    struct run_scratch scratch = { .kernels = kernels, .mesh = p->mesh };
    struct run_hooks hooks = { .context = r, .load = load };
    struct err err;

    program_size_scratch(p, run_scratch_bytes, &scratch);
    place(p);
    CHECK(verify(p, &err) == 0);
    struct run_options options = {
        .program = p,
        .kernels = kernels,
        .comm = comm,
        .worker = worker,
        .poison = r->play->poison,
        .file_folder = r->play->folder,
        .link_bytes_per_s = r->play->link_bytes_per_s,
        .file_bytes_per_s = r->play->file_bytes_per_s,
    };
    CHECK(run_create(&r->run, &options, &err) == 0);
    CHECK(r->run->enqueues == (r->play->way == OFFLOAD_ENQUEUED));
    if (r->play->bound)
        check_spread(r->run, r->n_allowed);
    disturb(r);
    fill_weights(r);
    for (r->step = 0; r->step < N_STEPS; r->step++) {
        CHECK(run_entry(r->run, ENTRY_STEP, 0, &hooks, &err) == 0);
        count_wrong(r);
    }
    run_destroy(r->run);
}

static void *play_rank(void *argument)
{
    struct rank *r = argument;
    const struct offload_play *play = r->play;
    struct device *device = device_host();
    struct comm *comm = NULL;
    struct worker *worker = NULL;
    struct kernels *kernels;
    struct pool *pool;
    struct err err;
    int core = sched_getcpu();

    offload_build(&r->offload, &play->shape);
    CHECK(count_cores(&r->n_allowed, &err) == 0);
    CHECK(pool_create(&pool, 1, play->bound ? &core : NULL, &err) == 0);
    CHECK(play->bound || worker_create(&worker, -1, &err) == 0);
    CHECK(play->alone || comm_thread_create(&comm, r->hub, r->number, &err) == 0);
    if (play->way != OFFLOAD_ON_HOST) {
        CHECK(device_cuda_open(&device, 0, &err) == 0);
        CHECK(kernels_cuda_create(&kernels, device, &err) == 0);
    } else {
        CHECK(kernels_cpu_create(&kernels, pool, NULL, &err) == 0);
    }
    if (comm && play->way == OFFLOAD_ENQUEUED)
        CHECK(comm_nccl_create(&comm, comm, device, &err) == 0);
    run_steps(r, kernels, comm, worker);
    worker_destroy(worker);
    if (comm)
        comm_destroy(comm);
    kernels_destroy(kernels);
    device_destroy(device);
    pool_destroy(pool);
    program_release(&r->offload.program);
    return NULL;
}

int offload_run(const struct offload_play *play)
{
    static struct rank ranks[OFFLOAD_TP_MAX];
    pthread_t threads[OFFLOAD_TP_MAX];
    int n_ranks = play->shape.tp_size, n_wrong = 0;
    struct comm_hub *hub;
    struct err err;

    CHECK(n_ranks <= OFFLOAD_TP_MAX);
    adversary_state = play->seed;
    CHECK(comm_hub_create(&hub, n_ranks, &err) == 0);
    for (int i = 0; i < n_ranks; i++) {
        ranks[i] = (struct rank){ .play = play, .hub = hub, .number = i };
        CHECK(pthread_create(&threads[i], NULL, play_rank, &ranks[i]) == 0);
    }
    for (int i = 0; i < n_ranks; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
        n_wrong += ranks[i].n_wrong;
    }
    comm_hub_destroy(hub);
    return n_wrong;
}
