/*
 * perplexity.c - the evaluate entry over a whole dataset
 */
#include "eval/perplexity.h"

#include "base/num.h"
#include "data/loader.h"
#include "model/compile.h"
#include "train/feed.h"
#include "train/fill.h"

struct measuring {
    struct program program;
    struct run *run;
    struct loader *loader;
    int64_t n_batches;
};

static int load(void *context, int micro_batch, struct err *err)
{
    struct measuring *m = context;
    struct micro_batch batch;

    if (loader_next(m->loader, &batch, err) < 0)
        return -1;
    feed_batch(m->run, &m->program, &batch, micro_batch);
    return 0;
}

static int open_all(struct measuring *m, struct served *served, struct kernels *kernels,
                    const char *data, struct err *err)
{
    const struct job *job = &served->job;
    struct run_scratch scratch = { kernels, mesh_data_parallel(1) };
    struct loader_dataset dataset = { data, 1 };
    struct loader_options loader = { .datasets = &dataset,
                                     .n_datasets = 1,
                                     .vocab_size = job->model.vocab_size,
                                     .seq_len = job->data.seq_len,
                                     .global_batch = job->train.micro_batch,
                                     .micro_batch = job->train.micro_batch,
                                     .dp_size = 1,
                                     .seed = job->train.seed,
                                     .held_out = 1 };
    struct compile_evaluate options = { .model = &job->model,
                                        .tuning = job->tuning,
                                        .dtype = job->train.dtype,
                                        .micro_batch = job->train.micro_batch,
                                        .seq_len = job->data.seq_len,
                                        .scratch = run_scratch_bytes,
                                        .scratch_context = &scratch };
    struct run_options run = { .program = &m->program, .kernels = kernels };

    if (loader_open(&m->loader, &loader, err) < 0 ||
        compile_evaluate(&m->program, &options, err) < 0 || run_create(&m->run, &run, err) < 0)
        return -1;
    fill_constants(m->run, &m->program, &job->model);
    m->n_batches = ceil_div(loader_n_samples(m->loader), job->train.micro_batch);
    return served_load(served, m->run, &m->program, err);
}

int perplexity_measure(struct served *served, struct kernels *kernels, const char *data,
                       int64_t limit, perplexity_progress_fn on_batch, void *context,
                       struct perplexity *out, struct err *err)
{
    struct measuring m = { 0 };
    struct run_hooks hooks = { .context = &m, .load = load };
    int status = open_all(&m, served, kernels, data, err);
    int64_t n = m.n_batches, tokens = 0;

    if (!status && limit > 0)
        n = min_i64(n, ceil_div(limit, served->job.train.micro_batch));
    for (int64_t i = 0; i < n && !status; i++) {
        status = run_entry(m.run, ENTRY_EVALUATE, i == 0, &hooks, err);
        tokens += loader_step_tokens(m.loader, i);
        if (on_batch && !status)
            on_batch(context, i + 1, n);
    }
    if (!status && !tokens)
        status = err_set(err, ERR_DATA, "%s holds nothing to predict", data);
    if (!status)
        *out = (struct perplexity){
            *(double *)run_data(m.run, m.program.ports.eval_loss, 0) / (double)tokens, tokens
        };
    run_destroy(m.run);
    loader_close(m.loader);
    program_release(&m.program);
    return status;
}
