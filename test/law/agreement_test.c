/*
 * agreement_test.c - layouts whose numerics differ agree
 *
 * Loss and every gradient of one step in fp32, put together from the ranks' parts: against PyTorch's
 * goldens for tp 1, 2 and 4 with and without sequence parallel, with dp and pp; and, for a
 * vocabulary that no degree divides, up to 8 data-parallel ranks, and micro-batches of several
 * sequences, as many each or not, against one rank's with one each. Per tensor the largest difference is at most 1e-5 of the largest element. Ranks are threads.
 */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/num.h"
#include "ckpt/safetensors.h"
#include "comm/comm.h"
#include "golden/fill.h"
#include "model/compile.h"
#include "run/run.h"
#include "support/tiny_model.h"
#include "train/fill.h"

#define TOLERANCE 1e-5
#define N_RANKS_MAX 8
#define N_PARAMETERS_MAX 32
#define N_SEQUENCES_MAX 16
#define N_ROWS_MAX (N_SEQUENCES_MAX * GOLDEN_SEQ_LEN)

struct layout {
    int tp, dp, pp;
    int sequence_parallel, early;
    enum recompute_kind recompute;
};

/* A whole gradient. */
struct gradient {
    char name[64];
    int64_t n;
    float *data;
};

struct outcome {
    double loss, norm;
    struct gradient gradients[N_PARAMETERS_MAX];
    int n_gradients;
};

struct experiment {
    struct model_spec spec;
    struct layout layout;
    struct mesh mesh;
    int n_sequences, n_learned;
    const int *sizes; /* of n_sizes micro-batches; NULL: 1 each */
    int n_sizes;
    int32_t tokens[N_ROWS_MAX], targets[N_ROWS_MAX];
    struct comm_hub *hub;
    pthread_mutex_t lock; /* of outcome */
    struct outcome outcome;
};

struct rank {
    struct experiment *experiment;
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
    return mesh_coordinate(&r->experiment->mesh, r->number, axis);
}

/* ---- a rank's part of a whole tensor ---- */

/* Vectors are rows of one. */
static void copy_part(const struct rank *r, int parameter, float *part, float *whole, int to_whole)
{
    const struct parameter *q = &r->program.parameters[parameter];
    int n = program_parameter_n_ranges(&r->program, parameter);
    int by_cols = q->split.along == SPREAD_COLS;

    for (int i = 0; i < n; i++) {
        struct parameter_range range =
            program_parameter_range(&r->program, parameter, coordinate(r, AXIS_TP), i);

        for (int64_t row = 0; row < (by_cols ? q->rows : range.n); row++) {
            int64_t at = by_cols ? row * q->cols + range.local : (range.local + row) * q->cols;
            int64_t at_whole =
                by_cols ? row * q->whole_cols + range.whole : (range.whole + row) * q->whole_cols;
            size_t n_bytes = sizeof(float) * (size_t)(by_cols ? range.n : q->cols);

            if (to_whole)
                memcpy(whole + at_whole, part + at, n_bytes);
            else
                memcpy(part + at, whole + at_whole, n_bytes);
        }
    }
}

static void fill(struct rank *r)
{
    fill_constants(r->run, &r->program, &r->experiment->spec);
    for (int i = 0; i < r->program.n_parameters; i++) {
        const struct parameter *q = &r->program.parameters[i];
        int64_t n = q->whole_rows * q->whole_cols;
        float *whole = malloc(sizeof *whole * (size_t)n);

        golden_fill(q->name, whole, n);
        copy_part(r, i, run_data(r->run, q->weight, 0), whole, 0);
        free(whole);
    }
}

static struct gradient *whole_gradient(struct outcome *o, const struct parameter *q)
{
    for (int i = 0; i < o->n_gradients; i++)
        if (!strcmp(o->gradients[i].name, q->name))
            return &o->gradients[i];
    CHECK(o->n_gradients < N_PARAMETERS_MAX);
    struct gradient *g = &o->gradients[o->n_gradients++];
    snprintf(g->name, sizeof g->name, "%s", q->name);
    g->n = q->whole_rows * q->whole_cols;
    g->data = calloc((size_t)g->n, sizeof *g->data);
    return g;
}

static void hand_in(struct rank *r)
{
    struct outcome *o = &r->experiment->outcome;

    if (coordinate(r, AXIS_DP))
        return;
    pthread_mutex_lock(&r->experiment->lock);
    for (int i = 0; i < r->program.n_parameters; i++) {
        const struct parameter *q = &r->program.parameters[i];

        if (!q->is_copy)
            copy_part(r, i, run_data(r->run, q->gradients[0], 0), whole_gradient(o, q)->data, 1);
    }
    o->loss =
        *(double *)run_data(r->run, r->program.ports.loss_total, 0) / r->experiment->n_learned;
    o->norm = *(double *)run_data(r->run, r->program.ports.norm, 0);
    pthread_mutex_unlock(&r->experiment->lock);
}

/* ---- a rank's life ---- */

static int join_hub(void *argument, struct err *err)
{
    struct rank *r = argument;

    return comm_thread_create(&r->comm, r->experiment->hub, r->number, err);
}

static int leave_hub(void *argument, struct err *err)
{
    (void)err;
    comm_destroy(((struct rank *)argument)->comm);
    return 0;
}

static int compile(struct rank *r)
{
    const struct experiment *e = r->experiment;
    int largest = 1;

    for (int i = 0; i < e->n_sizes; i++)
        largest = max_int(largest, e->sizes[i]);
    struct run_scratch scratch = { r->kernels, e->mesh };
    struct compile_train options = {
        .model = &e->spec,
        .mesh = e->mesh,
        .dtype = DTYPE_F32,
        .micro_batch = largest,
        .seq_len = GOLDEN_SEQ_LEN,
        .n_micro_batches = e->sizes ? e->n_sizes : e->n_sequences / e->layout.dp,
        .micro_batches = e->sizes,
        .sequence_parallel = e->layout.sequence_parallel,
        .recompute = e->layout.recompute,
        .pipeline = { .kind = e->sizes ? PIPELINE_DYNAMIC : PIPELINE_1F1B,
                      .rank = coordinate(r, AXIS_PP) },
        .gradients = { .early = e->layout.early, .bucket_bytes = 1 << 14 },
        .update = { .clip = 1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1 },
        .scratch = run_scratch_bytes,
        .scratch_context = &scratch,
    };

    return compile_train(&r->program, &options, &r->err);
}

static void load_sequence(struct rank *r, int micro_batch, int at, int sequence)
{
    const struct experiment *e = r->experiment;
    const struct ports *ports = &r->program.ports;
    int32_t *tokens = run_data(r->run, ports->tokens, micro_batch);
    int32_t *targets = run_data(r->run, ports->targets, micro_batch);
    int32_t *positions = run_data(r->run, ports->positions, micro_batch);
    size_t n_bytes = GOLDEN_SEQ_LEN * sizeof(int32_t);

    memcpy(tokens + at * GOLDEN_SEQ_LEN, e->tokens + sequence * GOLDEN_SEQ_LEN, n_bytes);
    memcpy(targets + at * GOLDEN_SEQ_LEN, e->targets + sequence * GOLDEN_SEQ_LEN, n_bytes);
    for (int i = 0; i < GOLDEN_SEQ_LEN; i++)
        positions[at * GOLDEN_SEQ_LEN + i] = i;
    ((int64_t *)run_data(r->run, ports->samples, micro_batch))[at] = sequence;
}

/* Data-parallel ranks take neighbouring sequences, each as many. */
static int load(void *context, int micro_batch, struct err *err)
{
    struct rank *r = context;
    const struct experiment *e = r->experiment;
    int n = e->sizes ? e->sizes[micro_batch] : 1, before = e->sizes ? 0 : micro_batch;

    (void)err;
    for (int m = 0; e->sizes && m < micro_batch; m++)
        before += e->sizes[m];
    for (int i = 0; i < n; i++)
        load_sequence(r, micro_batch, i,
                      coordinate(r, AXIS_DP) * (e->n_sequences / e->layout.dp) + before + i);
    return 0;
}

static int step(struct rank *r)
{
    struct run_options options = {
        .program = &r->program, .kernels = r->kernels, .comm = r->comm, .worker = r->worker
    };
    struct run_hooks hooks = { r, load, NULL };

    if (run_create(&r->run, &options, &r->err) < 0)
        return -1;
    fill(r);
    float *scalars = run_data(r->run, r->program.ports.scalars, 0);
    scalars[SCALAR_LR] = 1e-2f;
    scalars[SCALAR_BIAS1] = 0.1f;
    scalars[SCALAR_BIAS2] = 0.05f;
    *(float *)run_data(r->run, r->program.ports.loss_scale, 0) =
        1.0f / (float)r->experiment->n_learned;
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

static void run_layout(struct experiment *e, const struct layout *layout)
{
    struct rank ranks[N_RANKS_MAX] = { { 0 } };
    pthread_t threads[N_RANKS_MAX];
    struct err err;

    e->layout = *layout;
    e->mesh = mesh_data_parallel(layout->dp);
    e->mesh.size[AXIS_TP] = layout->tp;
    e->mesh.size[AXIS_PP] = layout->pp;
    e->outcome = (struct outcome){ 0 };
    int n_ranks = mesh_world_size(&e->mesh);
    if (comm_hub_create(&e->hub, n_ranks, &err) < 0)
        fail_msg("%s", err.text);
    pthread_mutex_init(&e->lock, NULL);
    for (int i = 0; i < n_ranks; i++) {
        ranks[i] = (struct rank){ .experiment = e, .number = i };
        assert_int_equal(pthread_create(&threads[i], NULL, live, &ranks[i]), 0);
    }
    for (int i = 0; i < n_ranks; i++)
        pthread_join(threads[i], NULL);
    comm_hub_destroy(e->hub);
    pthread_mutex_destroy(&e->lock);
    for (int i = 0; i < n_ranks; i++)
        if (ranks[i].failed)
            fail_msg("tp %d, dp %d, pp %d: rank %d: %s", layout->tp, layout->dp, layout->pp, i,
                     ranks[i].err.text);
}

static void release(struct outcome *o)
{
    for (int i = 0; i < o->n_gradients; i++)
        free(o->gradients[i].data);
}

/* ---- what it is compared with ---- */

static void describe(const struct layout *l, char *out, size_t size)
{
    snprintf(out, size, "tp %d%s, dp %d, pp %d, %s sums, recompute %d", l->tp,
             l->tp == 1             ? ""
             : l->sequence_parallel ? " sequence parallel"
                                    : "",
             l->dp, l->pp, l->early ? "early" : "late", (int)l->recompute);
}

static void check_scalar(const char *what, const char *name, double got, double wanted)
{
    if (!(fabs(got - wanted) <= TOLERANCE * fabs(wanted)))
        fail_msg("%s: %s is %.9g, wanted %.9g", what, name, got, wanted);
}

static void check_gradient(const char *what, const struct gradient *got, const float *wanted)
{
    double difference = 0, largest = 0;

    for (int64_t i = 0; i < got->n; i++) {
        double error = fabs((double)got->data[i] - (double)wanted[i]);

        difference = isnan(error) ? INFINITY : fmax(difference, error);
        largest = fmax(largest, fabs((double)wanted[i]));
    }
    if (!(difference <= TOLERANCE * largest))
        fail_msg("%s: gradient of %s: error %g", what, got->name, difference / largest);
}

static void read_golden(const char *file, const char *tensor, void *out, size_t capacity)
{
    char path[256];
    struct safetensors *st;
    struct err err;

    snprintf(path, sizeof path, "test/golden/%s.safetensors", file);
    if (safetensors_open(&st, path, &err) < 0)
        fail_msg("%s", err.text);
    const struct safetensors_tensor *t = safetensors_find(&st->index, tensor);
    assert_non_null(t);
    assert_true(t->end - t->begin <= capacity);
    if (safetensors_read(st, t, 0, out, t->end - t->begin, &err) < 0)
        fail_msg("%s", err.text);
    safetensors_close(st);
}

static void check_goldens(const char *what, const char *model, const struct outcome *o)
{
    static float wanted[1 << 14];
    float loss;
    double norm;

    read_golden(model, "loss", &loss, sizeof loss);
    read_golden(model, "gradient_norm", &norm, sizeof norm);
    check_scalar(what, "loss", o->loss, (double)loss);
    check_scalar(what, "gradient norm", o->norm, norm);
    for (int i = 0; i < o->n_gradients; i++) {
        const char *name = o->gradients[i].name;
        char file[64];

        if (!strncmp(name, "layers.", 7))
            snprintf(file, sizeof file, "%s.layers.%c", model, name[7]);
        else
            snprintf(file, sizeof file, "%s", model);
        read_golden(file, name, wanted, sizeof wanted);
        check_gradient(what, &o->gradients[i], wanted);
    }
}

/* The golden models are the tiny ones without dropout, one of them tied. */
static struct model_spec golden_spec(const char *name)
{
    struct model_spec spec = tiny_spec(strcmp(name, "llama-tied") ? name : "llama");

    spec.max_seq_len = 32;
    spec.tied_embeddings = strcmp(name, "llama") != 0;
    spec.dropout = spec.attention_dropout = 0;
    return spec;
}

static void golden_model(const char *model)
{
    static const struct layout layouts[] = {
        { 1, 1, 1, 0, 0, RECOMPUTE_KIND_NONE },      { 2, 1, 1, 0, 0, RECOMPUTE_KIND_NONE },
        { 2, 1, 1, 1, 0, RECOMPUTE_KIND_NONE },      { 4, 1, 1, 0, 0, RECOMPUTE_KIND_SELECTIVE },
        { 4, 1, 1, 1, 0, RECOMPUTE_KIND_FULL },      { 1, 4, 1, 0, 0, RECOMPUTE_KIND_NONE },
        { 2, 2, 1, 1, 0, RECOMPUTE_KIND_NONE },      { 2, 2, 2, 1, 1, RECOMPUTE_KIND_SELECTIVE },
        { 4, 1, 2, 0, 0, RECOMPUTE_KIND_SELECTIVE }, { 2, 4, 1, 0, 1, RECOMPUTE_KIND_FULL },
    };
    struct experiment e = { .spec = golden_spec(model), .n_sequences = 4 };
    char what[128];

    golden_batch(GOLDEN_NO_STEP, e.spec.vocab_size, e.tokens, e.targets);
    for (int i = 0; i < GOLDEN_BATCH_ROWS; i++)
        e.n_learned += e.targets[i] >= 0;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        run_layout(&e, &layouts[i]);
        describe(&layouts[i], what, sizeof what);
        check_goldens(what, model, &e.outcome);
        release(&e.outcome);
    }
}

static void llama(void **state)
{
    (void)state;
    golden_model("llama");
}

static void llama_tied(void **state)
{
    (void)state;
    golden_model("llama-tied");
}

static void gpt2(void **state)
{
    (void)state;
    golden_model("gpt2");
}

static void check_outcome(const char *what, const struct outcome *got, const struct outcome *wanted)
{
    check_scalar(what, "loss", got->loss, wanted->loss);
    check_scalar(what, "gradient norm", got->norm, wanted->norm);
    assert_int_equal(got->n_gradients, wanted->n_gradients);
    for (int k = 0; k < wanted->n_gradients; k++) {
        const struct gradient *g = &wanted->gradients[k];
        int i = 0;

        while (i < got->n_gradients && strcmp(got->gradients[i].name, g->name) != 0)
            i++;
        assert_true(i < got->n_gradients);
        check_gradient(what, &got->gradients[i], g->data);
    }
}

/* Batches of the goldens one after the other. */
static void fill_batches(struct experiment *e, int n)
{
    for (int step = 0; step < n; step++)
        golden_batch(step, e->spec.vocab_size, e->tokens + step * GOLDEN_BATCH_ROWS,
                     e->targets + step * GOLDEN_BATCH_ROWS);
    for (int i = 0; i < n * GOLDEN_BATCH_ROWS; i++)
        e->n_learned += e->targets[i] >= 0;
}

/* 67 tokens, dropout where the model has it: one rank's loss and gradients. */
static void odd_vocabulary(const char *model, double dropout)
{
    static const struct layout layouts[] = {
        { 2, 1, 1, 0, 0, RECOMPUTE_KIND_NONE }, { 2, 1, 1, 1, 0, RECOMPUTE_KIND_NONE },
        { 4, 1, 1, 0, 0, RECOMPUTE_KIND_FULL }, { 4, 1, 1, 1, 0, RECOMPUTE_KIND_NONE },
        { 1, 2, 1, 0, 0, RECOMPUTE_KIND_NONE }, { 1, 4, 1, 0, 0, RECOMPUTE_KIND_NONE },
        { 1, 8, 1, 0, 0, RECOMPUTE_KIND_NONE }, { 4, 2, 1, 1, 0, RECOMPUTE_KIND_SELECTIVE },
    };
    static const struct layout alone = { .tp = 1, .dp = 1, .pp = 1 };
    struct experiment e = { .spec = golden_spec(model), .n_sequences = 8 };
    char what[128];

    e.spec.vocab_size = 67;
    e.spec.dropout = e.spec.attention_dropout = dropout;
    fill_batches(&e, 2);
    run_layout(&e, &alone);
    struct outcome wanted = e.outcome;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        run_layout(&e, &layouts[i]);
        describe(&layouts[i], what, sizeof what);
        check_outcome(what, &e.outcome, &wanted);
        release(&e.outcome);
    }
    release(&wanted);
}

static void odd_llama(void **state)
{
    (void)state;
    odd_vocabulary("llama", 0);
}

static void odd_gpt2_with_dropout(void **state)
{
    (void)state;
    odd_vocabulary("gpt2", 0.1);
}

/* The same sequences, some at a time: only the order of sums is another. */
static void given_sizes(const char *model, double dropout)
{
    static const int ramps[] = { 1, 2, 4, 4, 2, 1, 2 }, mixed[] = { 3, 5, 1, 3, 4 };
    static const struct layout layouts[] = {
        { 1, 1, 1, 0, 0, RECOMPUTE_KIND_NONE },
        { 1, 1, 2, 0, 0, RECOMPUTE_KIND_SELECTIVE },
        { 2, 1, 1, 0, 0, RECOMPUTE_KIND_NONE },
        { 2, 1, 2, 1, 0, RECOMPUTE_KIND_FULL },
    };
    struct experiment e = { .spec = golden_spec(model), .n_sequences = 16 };
    char text[128], what[160];

    e.spec.dropout = e.spec.attention_dropout = dropout;
    fill_batches(&e, 4);
    run_layout(&e, &layouts[0]);
    struct outcome wanted = e.outcome;
    for (int k = 0; k < 8; k++) {
        const struct layout *layout = &layouts[k / 2];

        e.sizes = k % 2 ? mixed : ramps;
        e.n_sizes = k % 2 ? 5 : 7;
        run_layout(&e, layout);
        describe(layout, text, sizeof text);
        snprintf(what, sizeof what, "%s sizes, %s", k % 2 ? "mixed" : "ramps", text);
        check_outcome(what, &e.outcome, &wanted);
        release(&e.outcome);
    }
    release(&wanted);
}

static void sizes_of_micro_batches(void **state)
{
    (void)state;
    given_sizes("llama", 0);
    given_sizes("llama-tied", 0);
    given_sizes("gpt2", 0.1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama),
        cmocka_unit_test(llama_tied),
        cmocka_unit_test(gpt2),
        cmocka_unit_test(odd_llama),
        cmocka_unit_test(odd_gpt2_with_dropout),
        cmocka_unit_test(sizes_of_micro_batches),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
