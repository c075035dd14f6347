/*
 * law_rig.c - trainers as threads, a dataset of random tokens, hashes of what comes out
 */
#include "support/law_rig.h"
#include "support/test_device.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/halves.h"
#include "base/num.h"
#include "base/rng.h"
#include "comm/comm.h"
#include "data/instruct/samples.h"
#include "data/stream/indexed_writer.h"
#include "support/temporary.h"
#include "train/recheck.h"
#include "train/trainer.h"

#define VOCAB 64
#define N_RANKS_MAX 8

static char folder[256], dataset[300], samples[300]; /* of law_setup */

void law_write_dataset(const char *prefix)
{
    struct indexed_writer writer;
    struct err err;
    int32_t ids[512];

    if (indexed_writer_open(&writer, prefix, VOCAB, &err) < 0)
        fail_msg("%s", err.text);
    for (int document = 0; document < 12; document++) {
        int n = 100 + 37 * document % 400;

        for (int i = 0; i < n; i++)
            ids[i] =
                (int32_t)(rng_at(7, RNG_TEST, (uint64_t)document, (uint64_t)i).word[0] % VOCAB);
        if (indexed_writer_add(&writer, ids, n, &err) < 0)
            fail_msg("%s", err.text);
    }
    if (indexed_writer_finish(&writer, &err) < 0)
        fail_msg("%s", err.text);
}

void law_write_samples(const char *prefix)
{
    struct indexed_writer writer;
    struct err err;
    int32_t ids[20];
    uint8_t learned[20];

    if (samples_writer_open(&writer, prefix, VOCAB, &err) < 0)
        fail_msg("%s", err.text);
    for (uint64_t sample = 0; sample < 60; sample++) {
        int n = 2 + (int)(sample * sample % 19);

        for (int i = 0; i < n; i++) {
            ids[i] = (int32_t)(rng_at(8, RNG_TEST, sample, (uint64_t)i).word[0] % VOCAB);
            learned[i] = i == n - 1 || i > 3 + (int)(sample % 5);
        }
        if (samples_writer_add(&writer, ids, learned, n, &err) < 0)
            fail_msg("%s", err.text);
    }
    if (indexed_writer_finish(&writer, &err) < 0)
        fail_msg("%s", err.text);
}

int law_setup(void **state)
{
    (void)state;
    if (temporary_folder(folder, sizeof folder))
        return -1;
    snprintf(dataset, sizeof dataset, "%s/tokens", folder);
    law_write_dataset(dataset);
    snprintf(samples, sizeof samples, "%s/samples", folder);
    law_write_samples(samples);
    return 0;
}

const char *law_samples(void)
{
    return samples;
}

int law_teardown(void **state)
{
    struct err err;

    (void)state;
    return file_remove_tree(folder, &err);
}

struct law_case law_base(const char *model, const char *dtype)
{
    return (struct law_case){ .folder = folder,
                              .dataset = dataset,
                              .model = model,
                              .dtype = dtype,
                              .n_ranks = 1,
                              .n_threads = 1,
                              .recompute = "none",
                              .gradient_sum = "late" };
}

void law_must_equal(const char *what, const struct law_outcome *wanted,
                    const struct law_outcome *got)
{
    for (int i = 0; i < LAW_STEPS; i++) {
        if (memcmp(&wanted->loss[i], &got->loss[i], sizeof got->loss[i]) != 0)
            fail_msg("%s: step %d: loss %a, wanted %a", what, i + 1, got->loss[i], wanted->loss[i]);
        if (memcmp(&wanted->norm[i], &got->norm[i], sizeof got->norm[i]) != 0)
            fail_msg("%s: step %d: norm %a, wanted %a", what, i + 1, got->norm[i], wanted->norm[i]);
    }
    if (wanted->parameters != got->parameters)
        fail_msg("%s: the final parameters differ", what);
    if (wanted->states != got->states)
        fail_msg("%s: the final masters and moments differ", what);
    if (wanted->numerics != got->numerics)
        fail_msg("%s: the numerics differ", what);
}

/* 16 sequences of 20 tokens a step: 16 micro-batches alone, 4 on each of 4 ranks. */
static void read_job(struct job *job, const struct law_case *law, int n_ranks, int zero, int group,
                     int pp, struct arena *arena)
{
    char text[2048], chunks[16] = "auto";
    const char *sizes = law->micro_batches;
    struct err err;

    if (law->chunks)
        snprintf(chunks, sizeof chunks, "%d", law->chunks);
    int n = snprintf(
        text, sizeof text,
        "model: %s\n"
        "data: {train: %s, seq_len: 20}\n"
        "train: {steps: %d, global_batch: %d, micro_batch: %s, dtype: %s, seed: %d}\n"
        "optimizer: {lr: 1.0e-2, warmup_steps: 2, clip: 0.5}\n"
        "recompute: %s\n"
        "parallel: {zero: %d, gradient_sum: %s, bucket_mb: %d, pp: %d, schedule: %s, chunks: %s, "
        "tp: %d, sequence_parallel: %s, cp: %d, cp_kind: %s, hold: %s, zero_group: %d, "
        "micro_batches: %s}\n"
        "debug: {poison: %s}\n"
        "output: %s/run\n",
        law_model_text(law->model), law->dataset, LAW_STEPS,
        law->global_batch ? law->global_batch : 16, sizes ? "auto" : "1", law->dtype,
        law->seed ? law->seed : 1, law->recompute, zero, law->gradient_sum,
        law->bucket_mb ? law->bucket_mb : 1, max_int(pp, 1), law->schedule ? law->schedule : "1f1b",
        chunks, max_int(law->tp, 1), law->no_sequence_parallel ? "false" : "true",
        max_int(law->cp, 1), law->cp_kind ? law->cp_kind : "auto", law->hold ? law->hold : "pass",
        group, sizes ? sizes : "none", law->poison ? "true" : "false", law->folder);

    const char *sets[12];
    char *rest = law->tuning ? arena_strdup(arena, law->tuning) : NULL, *set;
    int n_sets = 0;
    while (n_sets < 12 && (set = strsep(&rest, "|")))
        sets[n_sets++] = set;
    if (job_read_text(job, text, (size_t)n, "law.yaml", sets, n_sets, arena, &err) < 0 ||
        job_resolve(job, n_ranks, arena, &err) < 0)
        fail_msg("%s", err.text);
    job->samples.train = law->samples;
    job->keep_sets = law->keep_sets;
    job->offload = law->offload;
}

void law_job(struct job *job, const struct law_case *law, struct arena *arena)
{
    read_job(job, law, law->n_ranks, law->zero, law->zero_group, law->pp, arena);
}

/* One rank's life. */
struct rank {
    const struct law_case *law;
    const struct job *job;
    struct comm_hub *hub;
    int number;
    struct mesh_place place;
    int begin, end;       /* steps */
    char checkpoint[256]; /* begun from it if begin > 0, saved to it if end is not the last */
    struct law_outcome outcome;
    int has_whole_weights;
    int failed;
    struct err err;
};

struct comm_start_request {
    struct rank *rank;
    struct device *device;
    struct comm *comm;
};

static int join_hub(void *argument, struct err *err)
{
    struct comm_start_request *request = argument;

    if (comm_thread_create(&request->comm, request->rank->hub, request->rank->number, err) < 0)
        return -1;
    /* On GPUs collectives are staged, or with LMTRAIN_TEST_NCCL enqueued. */
    if (device_is_host(request->device) || !getenv("LMTRAIN_TEST_NCCL"))
        return 0;
    return comm_nccl_create(&request->comm, request->comm, request->device, err);
}

static int leave_hub(void *argument, struct err *err)
{
    (void)err;
    comm_destroy(argument);
    return 0;
}

/* Of the rank's part of a parameter. */
static uint64_t hash_name(const struct program *p, int parameter, const struct mesh_place *place)
{
    int number = place->of[AXIS_TP];
    const char *name = p->parameters[parameter].name;

    if (program_parameter_is_split(p, parameter, AXIS_ULYSSES))
        number += p->mesh.size[AXIS_TP] * (1 + place->of[AXIS_ULYSSES]);
    return XXH64(name, strlen(name), (uint64_t)number);
}

/* Elements [at, at + n) of a part; a master in two words as the fp32 that it is. Returns bytes. */
static size_t read_block(const struct trainer *trainer, int cell, const struct parameter_part *part,
                         int64_t at, int64_t n, void *data)
{
    size_t element = dtype_bytes(trainer_program(trainer)->values[cell].dtype);
    size_t first = (size_t)(part->offset + at - part->begin);
    uint16_t upper[OPS_NORM_BLOCK], lower[OPS_NORM_BLOCK];
    float *x = data;
    struct err err;

    CHECK(run_get(trainer_run(trainer), cell, 0, first * element, data, (size_t)n * element,
                  &err) == 0);
    if (!part->low || cell != part->master)
        return (size_t)n * element;
    memcpy(upper, data, (size_t)n * sizeof *upper);
    CHECK(run_get(trainer_run(trainer), part->low, 0, first * sizeof *lower, lower,
                  (size_t)n * sizeof *lower, &err) == 0);
    for (int64_t i = 0; i < n; i++)
        x[i] = halves_join(upper[i], lower[i]);
    return (size_t)n * sizeof *x;
}

/*
 * The sum of the hashes of blocks of a cell whose element `offset` is the parameter's `begin`:
 * shards' edges are blocks' edges, so the sum over shards is that of the whole.
 */
static uint64_t hash_blocks(const struct trainer *trainer, uint64_t hash, int cell, int which,
                            struct parameter_part part)
{
    float data[OPS_NORM_BLOCK];
    uint64_t sum = 0;

    CHECK(part.begin == part.end || part.begin % OPS_NORM_BLOCK == 0);
    for (int64_t at = part.begin; at < part.end; at += OPS_NORM_BLOCK) {
        int64_t n = min_i64(OPS_NORM_BLOCK, part.end - at);
        uint64_t name[3] = { hash, (uint64_t)which, (uint64_t)at };

        size_t n_bytes = read_block(trainer, cell, &part, at, n, data);
        sum += XXH64(data, n_bytes, XXH64(name, sizeof name, 0));
    }
    return sum;
}

/* Under zero 3 no rank has them all. */
static int has_whole_weights(const struct program *p)
{
    return p->values[p->parameters[0].weight].role == ROLE_WEIGHT;
}

/* Whether all ranks of ep have it, and the first of them tells. */
static int another_tells(const struct program *p, int parameter, const struct mesh_place *place)
{
    return place->of[AXIS_EP] && !program_parameter_is_split(p, parameter, AXIS_EP);
}

/* Of what this rank has of its weights; a tied head's copy is the same parameter once more. */
static uint64_t hash_weights(const struct trainer *trainer, const struct mesh_place *place)
{
    const struct program *p = trainer_program(trainer);
    uint64_t sum = 0;

    for (int i = 0; i < p->n_parameters; i++) {
        const struct parameter *q = &p->parameters[i];
        struct parameter_part part = program_parameter_part(p, i, place);
        int cell = has_whole_weights(p) ? q->weight : part.weight;

        part.low = 0;
        if (!has_whole_weights(p) && q->stays_whole && place->of[AXIS_DP])
            continue; /* one rank tells */
        if ((has_whole_weights(p) || q->stays_whole) && another_tells(p, i, place))
            continue;
        if (has_whole_weights(p))
            part = (struct parameter_part){ .end = q->rows * q->cols };
        if (!q->is_copy)
            sum += hash_blocks(trainer, hash_name(p, i, place), cell, 3, part);
    }
    return sum;
}

/* Of the masters, moments and averages that this rank keeps. */
static uint64_t hash_states(const struct trainer *trainer, const struct mesh_place *place)
{
    const struct program *p = trainer_program(trainer);
    uint64_t sum = 0;

    for (int i = 0; i < p->n_parameters; i++) {
        struct parameter_part part = program_parameter_part(p, i, place);
        enum { N_STATES = 4 };
        int cells[N_STATES] = { part.master, part.moment1, part.moment2, part.ema };

        if (p->parameters[i].bucket < 0 && another_tells(p, i, place))
            continue;
        /* What is frozen has no states, and its weight is with the others; some optimizers have
         * one moment. */
        for (int k = 0; k < N_STATES && !p->parameters[i].is_copy && p->parameters[i].trainable;
             k++)
            sum += cells[k] ? hash_blocks(trainer, hash_name(p, i, place), cells[k], k, part) : 0;
    }
    return sum;
}

/* A recheck that finds something ends the run. */
static int compare_gradients(void *recheck, struct err *err)
{
    struct recheck_finding finding;

    return recheck_gradients(recheck, &finding, err);
}

static int step_once(struct trainer *trainer, struct recheck *recheck,
                     struct trainer_result *result, struct err *err)
{
    struct recheck_finding finding;

    return trainer_step(trainer, result, err) < 0 ? -1 : recheck_update(recheck, &finding, err);
}

static int train(struct rank *r, struct trainer *trainer, struct err *err)
{
    struct recheck *recheck = NULL;
    struct trainer_result result;
    struct numerics_differences differences = { 0 };
    int status = recheck_create(&recheck, trainer, err);

    if (!status && r->begin)
        status = trainer_restore(trainer, r->checkpoint, &differences, err);
    numerics_differences_release(&differences);
    if (recheck)
        trainer_set_gate(trainer, compare_gradients, recheck);
    for (int step = r->begin; step < r->end && !status; step++) {
        if (r->law->before_step)
            r->law->before_step(trainer, &r->place, step);
        status = step_once(trainer, recheck, &result, err);
        r->outcome.loss[step] = result.loss;
        r->outcome.norm[step] = result.grad_norm;
    }
    if (!status && r->law->before_step)
        r->law->before_step(trainer, &r->place, r->end);
    if (!status && r->end < LAW_STEPS)
        status = trainer_save(trainer, r->checkpoint, NULL, err);
    if (!status)
        status = trainer_save_finish(trainer, err);
    if (!status)
        status = trainer_gather_weights(trainer, err);
    r->outcome.numerics = trainer_numerics(trainer);
    r->outcome.n_reruns = trainer_n_reruns(trainer);
    r->outcome.parameters = hash_weights(trainer, &r->place);
    r->has_whole_weights = has_whole_weights(trainer_program(trainer));
    r->outcome.states = hash_states(trainer, &r->place);
    recheck_destroy(recheck);
    return status;
}

static int make_and_train(struct rank *r, const struct trainer_options *options, struct err *err)
{
    struct trainer *trainer = NULL;
    int status = trainer_create(&trainer, options, err);

    if (!status)
        status = train(r, trainer, err);
    trainer_destroy(trainer);
    return status;
}

/* A rank that is a thread. */
static void *live(void *argument)
{
    struct rank *r = argument;
    struct pool *pool = NULL;
    struct kernels *kernels = NULL;
    struct worker *worker = NULL;
    struct device *device = device_host();
    struct comm_start_request request = { .rank = r };
    int status = pool_create(&pool, r->law->n_threads, NULL, &r->err);

    if (!status)
        status = test_device_create(&device, &kernels, pool, &r->err);
    request.device = device;
    if (!status && !r->hub)
        status = comm_self_create(&request.comm, &r->err);
    if (!status && r->hub) {
        status = worker_create(&worker, -1, &r->err);
        if (!status)
            status = worker_call(worker, join_hub, &request, &r->err);
    }
    struct trainer_options options = {
        .job = r->job, .pool = pool, .kernels = kernels, .comm = request.comm, .worker = worker
    };
    if (!status)
        status = make_and_train(r, &options, &r->err);
    struct err ignored;
    if (worker && request.comm)
        worker_call(worker, leave_hub, request.comm, &ignored);
    else
        comm_destroy(request.comm);
    worker_destroy(worker);
    kernels_destroy(kernels);
    device_destroy(device);
    pool_destroy(pool);
    r->failed = status < 0;
    return NULL;
}

/* Whether two ranks have parts of one copy of the model. */
static int share_a_copy(const struct rank *x, const struct rank *y)
{
    const struct mesh_place *a = &x->place, *b = &y->place;

    return a->of[AXIS_REPLICA] == b->of[AXIS_REPLICA] && a->of[AXIS_CP] == b->of[AXIS_CP] &&
           (a->of[AXIS_ULYSSES] == b->of[AXIS_ULYSSES] || x->job->parallel.cp_kind == CP_FASTSEQ);
}

/*
 * The run's weights and states: the sum over its stages, and over shards, where the data-parallel
 * ranks do not all have the same.
 */
static void share(struct rank *ranks, int n_ranks, int zero)
{
    struct law_outcome sum[N_RANKS_MAX] = { 0 };

    for (int i = 0; i < n_ranks; i++)
        for (int k = 0; k < n_ranks; k++) {
            int same = ranks[i].place.of[AXIS_DP] == ranks[k].place.of[AXIS_DP];
            int shared = !ranks[i].has_whole_weights;

            if (!share_a_copy(&ranks[i], &ranks[k]))
                continue;

            sum[i].parameters += same || shared ? ranks[k].outcome.parameters : 0;
            sum[i].states += same || zero ? ranks[k].outcome.states : 0;
        }
    for (int i = 0; i < n_ranks; i++) {
        ranks[i].outcome.parameters = sum[i].parameters;
        ranks[i].outcome.states = sum[i].states;
    }
}

/* Steps begin .. end - 1 on n_ranks ranks. */
static void run_part(const struct law_case *law, int n_ranks, int zero, int group, int pp,
                     int begin, int end, struct law_outcome *outcome)
{
    struct rank ranks[N_RANKS_MAX] = { { 0 } };
    pthread_t threads[N_RANKS_MAX];
    struct comm_hub *hub = NULL;
    struct arena arena = { 0 };
    struct job job;
    struct err err;

    assert_true(n_ranks <= N_RANKS_MAX);
    read_job(&job, law, n_ranks, zero, group, pp, &arena);
    struct mesh mesh = job_mesh(&job);
    if (n_ranks > 1 && comm_hub_create(&hub, n_ranks, &err) < 0)
        fail_msg("%s", err.text);
    for (int i = 0; i < n_ranks; i++) {
        ranks[i] = (struct rank){ .law = law,
                                  .job = &job,
                                  .hub = hub,
                                  .number = i,
                                  .place = mesh_place(&mesh, i),
                                  .begin = begin,
                                  .end = end,
                                  .outcome = *outcome };
        snprintf(ranks[i].checkpoint, sizeof ranks[i].checkpoint, "%s/step-%08d", law->folder,
                 begin ? begin : end);
        assert_int_equal(pthread_create(&threads[i], NULL, live, &ranks[i]), 0);
    }
    for (int i = 0; i < n_ranks; i++)
        pthread_join(threads[i], NULL);
    comm_hub_destroy(hub);
    for (int i = 0; i < n_ranks; i++)
        if (ranks[i].failed)
            fail_msg("rank %d: %s", i, ranks[i].err.text);
    share(ranks, n_ranks, zero);
    for (int i = 0; i < n_ranks; i++) {
        if (memcmp(&ranks[i].outcome, &ranks[0].outcome, sizeof ranks[0].outcome) != 0)
            fail_msg("rank %d has other results than rank 0", i);
    }
    *outcome = ranks[0].outcome;
    arena_release(&arena);
}

int law_left_out(void)
{
    static int number;
    const char *sanitized = getenv("LMTRAIN_SANITIZED");

    return sanitized && !strcmp(sanitized, "1") && number++ % 10;
}

struct law_outcome law_run(const struct law_case *law)
{
    struct law_outcome outcome = { 0 };

    if (!law->stop_after) {
        run_part(law, law->n_ranks, law->zero, law->zero_group, law->pp, 0, LAW_STEPS, &outcome);
        return outcome;
    }
    run_part(law, law->n_ranks, law->zero, law->zero_group, law->pp, 0, law->stop_after, &outcome);
    struct law_case after = *law;
    after.tuning = law->tuning_after ? law->tuning_after : law->tuning;
    run_part(&after, law->n_ranks_after ? law->n_ranks_after : law->n_ranks,
             law->zero_after ? law->zero_after - 1 : law->zero,
             law->zero_group_after ? law->zero_group_after - 1 : law->zero_group,
             law->pp_after ? law->pp_after : law->pp, law->stop_after, LAW_STEPS, &outcome);
    return outcome;
}

struct law_outcome law_reference(struct law_case base)
{
    base.n_threads = 1;
    base.recompute = "none";
    return law_run(&base);
}

int law_play_rank(const struct law_case *law, const struct launch_rank *launched,
                  struct law_outcome *outcome, struct err *err)
{
    struct arena arena = { 0 };
    struct engine engine;
    struct job job;

    read_job(&job, law, launched->world_size, law->zero, law->zero_group, law->pp, &arena);
    struct rank rank = { .law = law,
                         .job = &job,
                         .number = launched->world_rank,
                         .place.of[AXIS_DP] = launched->world_rank,
                         .end = LAW_STEPS };
    const struct engine_request request = { law->n_threads, JOB_DEVICE_CPU };
    int status = engine_open(&engine, launched, &request, err);
    if (!status) {
        struct trainer_options options = { .job = &job,
                                           .pool = engine.pool,
                                           .kernels = engine.kernels,
                                           .comm = engine.comm,
                                           .worker = engine.worker };

        status = make_and_train(&rank, &options, err);
        engine_close(&engine);
    }
    *outcome = rank.outcome;
    arena_release(&arena);
    return status;
}

void law_must_run_alike(const struct law_case *c, const struct law_outcome *wanted)
{
    struct law_outcome got;
    char what[400];

    if (law_left_out())
        return;
    got = law_run(c);
    snprintf(what, sizeof what,
             "%s %s %s, ranks %d, pp %d, tp %d, zero %d, bucket_mb %d, %s, after %d zero %d %s",
             c->model, c->dtype, c->gradient_sum, c->n_ranks, max_int(c->pp, 1), max_int(c->tp, 1),
             c->zero, c->bucket_mb, c->tuning ? c->tuning : "", c->stop_after, c->zero_after - 1,
             c->tuning_after ? c->tuning_after : "");
    law_must_equal(what, wanted, &got);
}
