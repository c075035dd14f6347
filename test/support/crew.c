/*
 * crew.c - a dataset, a job, a thread a rank
 */
#include "support/crew.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/file.h"
#include "support/law_rig.h"

struct crew {
    const struct job *job;
    struct comm_hub *hub;
    crew_fn work;
};

struct hand {
    const struct crew *crew;
    struct crew_rank *rank;
    struct comm *comm;
};

static int join_hub(void *argument, struct err *err)
{
    struct hand *hand = argument;

    return comm_thread_create(&hand->comm, hand->crew->hub, hand->rank->rank, err);
}

static int leave_hub(void *argument, struct err *err)
{
    (void)err;
    comm_destroy(argument);
    return 0;
}

static void *live(void *argument)
{
    struct hand *hand = argument;
    struct crew_rank *r = hand->rank;
    struct pool *pool = NULL;
    struct kernels *kernels = NULL;
    struct worker *worker = NULL;
    struct err ignored;

    r->status = pool_create(&pool, 2, NULL, &r->err);
    if (!r->status)
        r->status = kernels_cpu_create(&kernels, pool, NULL, &r->err);
    if (!r->status)
        r->status = worker_create(&worker, -1, &r->err);
    if (!r->status)
        r->status = worker_call(worker, join_hub, hand, &r->err);
    struct trainer_options options = { .job = hand->crew->job,
                                       .pool = pool,
                                       .kernels = kernels,
                                       .comm = hand->comm,
                                       .worker = worker,
                                       .build = r->build,
                                       .available_bytes = r->available_bytes };
    if (!r->status)
        r->status = trainer_create(&r->trainer, &options, &r->err);
    if (!r->status)
        r->status = hand->crew->work(r, &r->err);
    trainer_destroy(r->trainer);
    r->trainer = NULL;
    if (hand->comm)
        worker_call(worker, leave_hub, hand->comm, &ignored);
    worker_destroy(worker);
    kernels_destroy(kernels);
    pool_destroy(pool);
    return NULL;
}

static void read_job(struct job *job, const char *folder, int n, int zero, struct arena *arena)
{
    char text[1024];
    struct err err;
    int length =
        snprintf(text, sizeof text,
                 "model: {vocab_size: 64, hidden_size: 96, n_layers: 2, n_heads: 4, n_kv_heads: 2, "
                 "head_dim: 24, ffn_size: 144}\n"
                 "data: {train: %s/tokens, seq_len: 20}\n"
                 "train: {steps: 8, global_batch: 24, micro_batch: 1, dtype: bf16}\n"
                 "optimizer: {lr: 1.0e-2}\n"
                 "parallel: {zero: %d}\n"
                 "output: %s/run\n",
                 folder, zero, folder);

    if (job_read_text(job, text, (size_t)length, "crew.yaml", NULL, 0, arena, &err) < 0 ||
        job_resolve(job, n, arena, &err) < 0)
        fail_msg("%s", err.text);
}

void crew_run(struct crew_rank *ranks, int n, int zero, crew_fn work)
{
    const char *base = getenv("TMPDIR");
    char folder[128], prefix[160];
    struct arena arena = { 0 };
    struct job job;
    struct crew crew = { .job = &job, .work = work };
    struct hand hands[CREW_MAX];
    pthread_t threads[CREW_MAX];
    struct err err;

    assert_true(n <= CREW_MAX);
    snprintf(folder, sizeof folder, "%s/crew.XXXXXX", base && *base ? base : "/tmp");
    assert_non_null(mkdtemp(folder));
    snprintf(prefix, sizeof prefix, "%s/tokens", folder);
    law_write_dataset(prefix);
    read_job(&job, folder, n, zero, &arena);
    if (comm_hub_create(&crew.hub, n, &err) < 0)
        fail_msg("%s", err.text);
    for (int i = 0; i < n; i++) {
        ranks[i].rank = i;
        hands[i] = (struct hand){ &crew, &ranks[i], NULL };
        assert_int_equal(pthread_create(&threads[i], NULL, live, &hands[i]), 0);
    }
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    comm_hub_destroy(crew.hub);
    arena_release(&arena);
    if (file_remove_tree(folder, &err) < 0)
        fail_msg("%s", err.text);
}
