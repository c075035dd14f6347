/*
 * trained.c - one rank, one thread of it
 */
#include "support/trained.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "support/law_rig.h"

static const char *model_text(const char *model)
{
    if (!strcmp(model, "gpt2"))
        return "{vocab_size: 64, hidden_size: 32, n_layers: 2, n_heads: 2, ffn_size: 80, "
               "max_seq_len: 256, norm: layernorm, position: learned, activation: gelu, bias: "
               "true, "
               "tied_embeddings: true}";
    return "{vocab_size: 64, hidden_size: 48, n_layers: 2, n_heads: 4, n_kv_heads: 2, "
           "head_dim: 12, ffn_size: 72, norm: rmsnorm, position: rope, activation: swiglu}";
}

static void read_job(struct trained *rig, const char *model, const char *const *overrides)
{
    char text[1024];
    struct err err;
    int n_overrides = 0;
    int n = snprintf(text, sizeof text,
                     "model: %s\n"
                     "data: {train: %s/tokens, seq_len: 16}\n"
                     "train: {steps: 20, global_batch: 8, micro_batch: 2, dtype: fp32}\n"
                     "eval: {data: %s/tokens}\n"
                     "optimizer: {lr: 1.0e-2, warmup_steps: 2}\n"
                     "output: %s/run\n",
                     model_text(model), rig->folder, rig->folder, rig->folder);

    while (overrides && overrides[n_overrides])
        n_overrides++;
    if (job_read_text(&rig->job, text, (size_t)n, "trained.yaml", overrides, n_overrides,
                      &rig->arena, &err) < 0)
        fail_msg("%s", err.text);
    rig->job.samples.train = rig->samples;
    if (job_resolve(&rig->job, 1, &rig->arena, &err) < 0)
        fail_msg("%s", err.text);
}

void trained_open(struct trained *rig, const char *model, const char *const *overrides)
{
    const char *base = getenv("TMPDIR");
    struct err err;

    memset(rig, 0, sizeof *rig);
    snprintf(rig->folder, sizeof rig->folder, "%.40s/lmtrain-test-XXXXXX",
             base && *base ? base : "/tmp");
    if (!mkdtemp(rig->folder))
        fail_msg("%s cannot be made", rig->folder);
    law_write_dataset(trained_path(rig, "tokens"));
    if (pool_create(&rig->pool, 1, NULL, &err) < 0 ||
        kernels_cpu_create(&rig->kernels, rig->pool, NULL, &err) < 0 ||
        comm_self_create(&rig->comm, &err) < 0)
        fail_msg("%s", err.text);
    trained_again(rig, model, overrides);
}

void trained_again(struct trained *rig, const char *model, const char *const *overrides)
{
    struct trainer_options options = {
        .job = &rig->job,
        .pool = rig->pool,
        .comm = rig->comm,
        .kernels = rig->kernels,
        .accept_numerics = rig->accept_numerics,
    };
    struct err err;

    trainer_destroy(rig->trainer);
    rig->trainer = NULL;
    read_job(rig, model, overrides);
    if (trainer_create(&rig->trainer, &options, &err) < 0)
        fail_msg("%s", err.text);
}

double trained_steps(struct trained *rig, int n)
{
    struct trainer_result result = { 0 };
    struct err err;

    for (int i = 0; i < n; i++)
        if (trainer_step(rig->trainer, &result, &err) < 0)
            fail_msg("%s", err.text);
    return result.loss;
}

const char *trained_save(struct trained *rig, const char *name)
{
    const char *path = trained_path(rig, name);
    struct err err;

    if (trainer_save(rig->trainer, path, "{\"best_eval\":1.5}", &err) < 0 ||
        trainer_save_finish(rig->trainer, &err) < 0)
        fail_msg("%s", err.text);
    return path;
}

const char *trained_path(struct trained *rig, const char *name)
{
    return arena_printf(&rig->arena, "%s/%s", rig->folder, name);
}

void trained_close(struct trained *rig)
{
    struct err err;

    trainer_destroy(rig->trainer);
    comm_destroy(rig->comm);
    kernels_destroy(rig->kernels);
    pool_destroy(rig->pool);
    file_remove_tree(rig->folder, &err);
    arena_release(&rig->arena);
}
