#include "support/layouts.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/num.h"
#include "comm/comm.h"
#include "golden/fill.h"
#include "layout/context.h"
#include "model/compile.h"
#include "model/model.h"
#include "weights/init_weights.h"

/* What the ranks of one run share. */
struct crowd {
    const struct experiment *experiment;
    struct layout layout;
    struct mesh mesh;
    int n_learned;
    struct comm_hub *hub;
    pthread_mutex_t lock; /* of outcome and of experiment->weights */
    struct outcome *outcome;
};

struct rank {
    struct crowd *crowd;
    int number;
    struct pool *pool;
    struct kernels *kernels;
    struct worker *worker;
    struct comm *comm;
    struct program program;
    struct run *run;
    struct err err;
    int failed;
};

static int coordinate(const struct rank *r, enum mesh_axis axis)
{
    return mesh_coordinate(&r->crowd->mesh, r->number, axis);
}

/* ---- a rank's part of a whole tensor ---- */

/* Cells of weights may be bf16, those of gradients are fp32. */
static void copy_row(void *part, float *whole, int64_t n, enum dtype dtype, int to_whole)
{
    CHECK(dtype == DTYPE_F32 || (dtype == DTYPE_BF16 && !to_whole));
    for (int64_t i = 0; i < n && dtype == DTYPE_BF16; i++)
        ((uint16_t *)part)[i] = bf16_from_float(whole[i]);
    if (dtype == DTYPE_F32)
        memcpy(to_whole ? whole : part, to_whole ? part : whole, sizeof(float) * (size_t)n);
}

/* Vectors are rows of one. */
static void copy_part(const struct rank *r, int parameter, int cell, float *whole, int to_whole)
{
    const struct program *p = &r->program;
    enum dtype dtype = p->values[cell].dtype;
    unsigned char *part = run_data(r->run, cell, 0);
    const struct parameter *q = &p->parameters[parameter];
    int n_rows = program_parameter_n_ranges(p, parameter, SPREAD_ROWS);
    int n_cols = program_parameter_n_ranges(p, parameter, SPREAD_COLS);
    struct mesh_place place = mesh_place(&r->crowd->mesh, r->number);

    for (int i = 0; i < n_rows * n_cols; i++) {
        struct parameter_range rows =
            program_parameter_range(p, parameter, SPREAD_ROWS, &place, i / n_cols);
        struct parameter_range cols =
            program_parameter_range(p, parameter, SPREAD_COLS, &place, i % n_cols);

        for (int64_t row = 0; row < rows.n; row++) {
            int64_t at = (rows.local + row) * q->cols + cols.local;

            copy_row(part + (size_t)at * dtype_bytes(dtype),
                     whole + (rows.whole + row) * q->whole_cols + cols.whole, cols.n, dtype,
                     to_whole);
        }
    }
}

int layout_golden_weights(void *context, const char *name, int n_dims, int64_t rows, int64_t cols,
                          float *out, struct err *err)
{
    (void)context;
    (void)n_dims;
    (void)err;
    golden_fill(name, out, rows * cols);
    return 0;
}

static int fill(struct rank *r)
{
    const struct experiment *e = r->crowd->experiment;
    int status = 0;

    init_constants(r->run, &r->program, &e->spec);
    for (int i = 0; i < r->program.n_parameters && !status; i++) {
        const struct parameter *q = &r->program.parameters[i];
        int64_t n = q->whole_rows * q->whole_cols;
        float *whole = malloc(sizeof *whole * (size_t)n);

        pthread_mutex_lock(&r->crowd->lock);
        status = e->weights(e->context, q->name, q->n_dims, q->whole_rows, q->whole_cols, whole,
                            &r->err);
        pthread_mutex_unlock(&r->crowd->lock);
        if (!status)
            copy_part(r, i, q->weight, whole, 0);
        free(whole);
    }
    return status;
}

const struct gradient *outcome_find(const struct outcome *o, const char *name)
{
    for (int i = 0; i < o->n_gradients; i++)
        if (!strcmp(o->gradients[i].name, name))
            return &o->gradients[i];
    return NULL;
}

static const struct gradient *whole_gradient(struct outcome *o, const struct parameter *q)
{
    const struct gradient *found = outcome_find(o, q->name);

    if (found)
        return found;
    if (o->n_gradients == o->capacity) {
        o->capacity = 2 * o->capacity + 16;
        o->gradients = realloc(o->gradients, sizeof *o->gradients * (size_t)o->capacity);
        CHECK(o->gradients);
    }
    struct gradient *g = &o->gradients[o->n_gradients++];
    snprintf(g->name, sizeof g->name, "%s", q->name);
    g->rows = q->whole_rows;
    g->cols = q->whole_cols;
    g->data = calloc((size_t)(g->rows * g->cols), sizeof *g->data);
    return g;
}

static void hand_in(struct rank *r)
{
    struct outcome *o = r->crowd->outcome;

    if (coordinate(r, AXIS_DP) || coordinate(r, AXIS_CP))
        return;
    pthread_mutex_lock(&r->crowd->lock);
    for (int i = 0; i < r->program.n_parameters; i++) {
        const struct parameter *q = &r->program.parameters[i];
        int is_anothers = coordinate(r, AXIS_ULYSSES) &&
                          !program_parameter_is_split(&r->program, i, AXIS_ULYSSES);

        if (!q->is_copy && !is_anothers && q->gradients[0])
            copy_part(r, i, q->gradients[0], whole_gradient(o, q)->data, 1);
    }
    o->loss = *(double *)run_data(r->run, r->program.ports.loss_total, 0) / r->crowd->n_learned;
    o->norm = *(double *)run_data(r->run, r->program.ports.norm, 0);
    pthread_mutex_unlock(&r->crowd->lock);
}

/* ---- a rank's life ---- */

static int join_hub(void *argument, struct err *err)
{
    struct rank *r = argument;

    return comm_thread_create(&r->comm, r->crowd->hub, r->number, err);
}

static int leave_hub(void *argument, struct err *err)
{
    (void)err;
    comm_destroy(((struct rank *)argument)->comm);
    return 0;
}

static int compile(struct rank *r)
{
    const struct experiment *e = r->crowd->experiment;
    const struct layout *l = &r->crowd->layout;
    int largest = 1;

    for (int i = 0; i < e->n_sizes; i++)
        largest = max_int(largest, e->sizes[i]);
    struct run_scratch scratch = { .kernels = r->kernels, .mesh = r->crowd->mesh };
    struct compile_train options = {
        .model = &e->spec,
        .mesh = r->crowd->mesh,
        .dtype = e->dtype,
        .micro_batch = largest,
        .seq_len = e->seq_len,
        .gathers_windows = 1,
        .n_micro_batches = e->sizes ? e->n_sizes : e->n_sequences / l->dp,
        .micro_batches = e->sizes,
        .sequence_parallel = l->sequence_parallel,
        .fastseq = l->fastseq,
        .is_packed = e->starts != NULL,
        .recompute = l->recompute,
        .pipeline = { .kind = e->sizes ? PIPELINE_DYNAMIC : PIPELINE_1F1B,
                      .rank = coordinate(r, AXIS_PP) },
        .gradients = { .early = l->early, .bucket_bytes = 1 << 14 },
        .update = { .clip = 1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1 },
        .scratch = run_scratch_bytes,
        .scratch_context = &scratch,
    };

    return compile_train(&r->program, &options, &r->err);
}

/* The rank's rows of a sequence, and, of its positions and documents, those of attention. */
static void load_sequence(struct rank *r, int micro_batch, int at, int sequence)
{
    const struct experiment *e = r->crowd->experiment;
    const struct ports *ports = &r->program.ports;
    struct context_cut cut = model_context_cut(&r->crowd->mesh);
    int n = e->seq_len / context_size(cut);
    int64_t from = (int64_t)sequence * e->seq_len;
    int32_t *tokens = run_data(r->run, ports->tokens, micro_batch);
    int32_t *targets = run_data(r->run, ports->targets, micro_batch);
    int32_t *positions = run_data(r->run, ports->positions, micro_batch);
    int32_t rows[LAYOUT_ROWS_MAX];

    CHECK(e->seq_len <= LAYOUT_ROWS_MAX);
    context_rows(cut, e->seq_len, coordinate(r, AXIS_ULYSSES), coordinate(r, AXIS_CP), rows);
    for (int i = 0; i < n; i++) {
        int32_t row = rows[i], start = e->starts ? e->starts[from + row] : 0;

        tokens[at * n + i] = e->tokens[from + row];
        targets[at * n + i] = e->targets[from + row];
        positions[at * n + i] = e->counts_locally ? i : row - start;
        if (ports->rows)
            ((int32_t *)run_data(r->run, ports->rows, micro_batch))[at * n + i] =
                at * e->seq_len + row;
    }
    ((int64_t *)run_data(r->run, ports->samples, micro_batch))[at] = sequence;
}

static void load_attention(struct rank *r, int micro_batch, int at, int sequence)
{
    const struct experiment *e = r->crowd->experiment;
    const struct ports *ports = &r->program.ports;
    struct context_cut cut = model_context_cut(&r->crowd->mesh);
    int n = e->seq_len / cut.keys, n_local = n / cut.ulysses;
    const int ids[] = { ports->attention_positions, ports->starts, ports->last };
    int32_t rows[LAYOUT_ROWS_MAX], *inputs[3] = { 0 };

    for (int k = 0; k < 3; k++)
        if (ids[k])
            inputs[k] = (int32_t *)run_data(r->run, ids[k], micro_batch) + at * n;
    context_pair_rows(cut, e->seq_len, coordinate(r, AXIS_CP), rows);
    for (int i = 0; i < n; i++) {
        int32_t start = e->starts ? e->starts[(int64_t)sequence * e->seq_len + rows[i]] : 0;

        if (inputs[0])
            inputs[0][i] = e->counts_locally ? i % n_local : rows[i] - start;
        if (inputs[1])
            inputs[1][i] = start;
        if (inputs[2])
            inputs[2][i] = rows[i];
        if (ports->window_first) {
            struct context_keys keys = context_window_keys(cut, e->seq_len, e->spec.window,
                                                           coordinate(r, AXIS_CP), i, start);

            ((int32_t *)run_data(r->run, ports->window_first, micro_batch))[at * n + i] =
                keys.first;
            ((int32_t *)run_data(r->run, ports->window_last, micro_batch))[at * n + i] = keys.last;
        }
    }
}

/* Data-parallel ranks take neighbouring sequences, each as many. */
static int load(void *context, int micro_batch, struct err *err)
{
    struct rank *r = context;
    const struct experiment *e = r->crowd->experiment;
    int n = e->sizes ? e->sizes[micro_batch] : 1, before = e->sizes ? 0 : micro_batch;

    (void)err;
    for (int m = 0; e->sizes && m < micro_batch; m++)
        before += e->sizes[m];
    before += coordinate(r, AXIS_DP) * (e->n_sequences / r->crowd->layout.dp);
    for (int i = 0; i < n; i++) {
        load_sequence(r, micro_batch, i, before + i);
        load_attention(r, micro_batch, i, before + i);
    }
    return 0;
}

static int step(struct rank *r)
{
    struct run_options options = {
        .program = &r->program, .kernels = r->kernels, .comm = r->comm, .worker = r->worker
    };
    struct run_hooks hooks = { .context = r, .load = load };

    if (run_create(&r->run, &options, &r->err) < 0 || fill(r) < 0)
        return -1;
    float *scalars = run_data(r->run, r->program.ports.scalars, 0);
    scalars[SCALAR_LR] = 1e-2f;
    scalars[SCALAR_BIAS1] = 0.1f;
    scalars[SCALAR_BIAS2] = 0.05f;
    *(float *)run_data(r->run, r->program.ports.loss_scale, 0) = 1.0f / (float)r->crowd->n_learned;
    if (r->program.ports.gradient_scale)
        *(float *)run_data(r->run, r->program.ports.gradient_scale, 0) = 1;
    const struct experiment *e = r->crowd->experiment;
    if (e->begin)
        e->begin(e->context, r->number, r->run, &r->program);
    if (run_entry(r->run, ENTRY_STEP, 0, &hooks, &r->err) < 0)
        return -1;
    hand_in(r);
    return 0;
}

static void *live(void *argument)
{
    struct rank *r = argument;
    struct err ignored;
    int status = pool_create(&r->pool, 1, NULL, &r->err);

    if (!status)
        status = kernels_cpu_create(&r->kernels, r->pool, NULL, &r->err);
    if (!status)
        status = worker_create(&r->worker, -1, &r->err);
    if (!status)
        status = worker_call(r->worker, join_hub, r, &r->err);
    if (!status)
        status = compile(r);
    if (!status)
        status = step(r);
    run_destroy(r->run);
    program_release(&r->program);
    if (r->comm)
        worker_call(r->worker, leave_hub, r, &ignored);
    worker_destroy(r->worker);
    kernels_destroy(r->kernels);
    pool_destroy(r->pool);
    r->failed = status < 0;
    return NULL;
}

static int count_learned(const struct experiment *e)
{
    int n = 0;

    for (int64_t i = 0; i < (int64_t)e->n_sequences * e->seq_len; i++)
        n += e->targets[i] >= 0;
    return n;
}

static int run_ranks(struct crowd *crowd, int n_ranks, struct err *err)
{
    struct rank ranks[LAYOUT_RANKS_MAX] = { { 0 } };
    pthread_t threads[LAYOUT_RANKS_MAX];
    char what[128];

    layout_describe(&crowd->layout, what, sizeof what);
    for (int i = 0; i < n_ranks; i++) {
        ranks[i] = (struct rank){ .crowd = crowd, .number = i };
        CHECK(pthread_create(&threads[i], NULL, live, &ranks[i]) == 0);
    }
    for (int i = 0; i < n_ranks; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < n_ranks; i++)
        if (ranks[i].failed)
            return err_set(err, ERR_FAILED, "%s: rank %d: %s", what, i, ranks[i].err.text);
    return 0;
}

struct mesh layout_mesh(const struct layout *layout)
{
    struct mesh mesh = mesh_data_parallel(layout->dp);

    mesh.size[AXIS_TP] = layout->tp;
    mesh.size[AXIS_PP] = layout->pp;
    mesh.size[AXIS_ULYSSES] = max_int(1, layout->ulysses);
    mesh.size[AXIS_CP] = max_int(1, layout->keys);
    return mesh;
}

int layout_run(const struct experiment *e, const struct layout *layout, struct outcome *outcome,
               struct err *err)
{
    struct crowd crowd = { .experiment = e,
                           .layout = *layout,
                           .mesh = layout_mesh(layout),
                           .n_learned = count_learned(e),
                           .outcome = outcome };

    *outcome = (struct outcome){ 0 };
    int n_ranks = mesh_world_size(&crowd.mesh);
    CHECK(n_ranks <= LAYOUT_RANKS_MAX);
    if (comm_hub_create(&crowd.hub, n_ranks, err) < 0)
        return -1;
    pthread_mutex_init(&crowd.lock, NULL);
    int status = run_ranks(&crowd, n_ranks, err);
    comm_hub_destroy(crowd.hub);
    pthread_mutex_destroy(&crowd.lock);
    if (status < 0)
        outcome_release(outcome);
    return status;
}

void outcome_release(struct outcome *o)
{
    for (int i = 0; i < o->n_gradients; i++)
        free(o->gradients[i].data);
    free(o->gradients);
    *o = (struct outcome){ 0 };
}

void layout_describe(const struct layout *l, char *out, size_t size)
{
    struct mesh mesh = layout_mesh(l);
    char cut[64] = "";

    if (mesh.size[AXIS_ULYSSES] * mesh.size[AXIS_CP] > 1)
        snprintf(cut, sizeof cut, "%s %d, keys %d, ", l->fastseq ? "fastseq" : "ulysses",
                 mesh.size[AXIS_ULYSSES], mesh.size[AXIS_CP]);
    snprintf(out, size, "%stp %d%s, dp %d, pp %d, %s sums, recompute %d", cut, l->tp,
             l->tp == 1             ? ""
             : l->sequence_parallel ? " sequence parallel"
                                    : "",
             l->dp, l->pp, l->early ? "early" : "late", (int)l->recompute);
}
