/*
 * perplexity.c - the evaluate entry over a whole dataset
 */
#include "eval/perplexity.h"

#include <string.h>

#include "base/num.h"
#include "data/stream/loader.h"
#include "model/compile.h"
#include "serve/score.h"
#include "weights/init_weights.h"
#include "weights/inputs.h"

struct measuring {
    const struct replica *replica;
    struct program program;
    struct run *run;
    struct scorer *scorer; /* of an ensemble, in place of both */
    struct loader *loader;
    int micro_batch, seq_len;
    int64_t n_batches;    /* of the dataset; replicas take turns */
    int64_t batch_tokens; /* of the batch that was loaded last */
};

/*
 * The result of a batch. Losses are summed in the order of batches, whichever rank has computed
 * them.
 */
struct batch_loss {
    double loss;
    int64_t tokens;
};

static int load(void *context, int micro_batch, struct err *err)
{
    struct measuring *m = context;
    struct micro_batch batch;

    if (loader_next(m->loader, &batch, err) < 0)
        return -1;
    m->batch_tokens = 0;
    for (int64_t i = 0; i < m->program.values[m->program.ports.targets].rows; i++)
        m->batch_tokens += batch.targets[i] != LABEL_IGNORED;
    inputs_of_batch(m->run, &m->program, &batch, micro_batch);
    return 0;
}

static int compile(struct program *program, void *options, const struct mesh *mesh, int pp_rank,
                   struct err *err)
{
    struct compile_evaluate *evaluate = options;
    struct run_scratch *scratch = evaluate->serving.scratch_context;

    evaluate->serving.mesh = scratch->mesh = *mesh;
    evaluate->serving.pp_rank = pp_rank;
    return compile_evaluate(program, evaluate, err);
}

static int open_all(struct measuring *m, struct served *served, struct kernels *kernels,
                    const char *data, struct err *err)
{
    const struct job *job = &served->job;
    struct run_scratch scratch = { .kernels = kernels, .mesh = mesh_data_parallel(1) };
    int n = replica_count(served->replica);
    struct loader_dataset dataset = { data, 1 };
    struct loader_options loader = { .datasets = &dataset,
                                     .n_datasets = 1,
                                     .vocab_size = job->model.vocab_size,
                                     .seq_len = job->data.seq_len,
                                     .global_batch = job->train.micro_batch * n,
                                     .micro_batch = job->train.micro_batch,
                                     .dp_rank = replica_number(served->replica),
                                     .dp_size = n,
                                     .seed = job->train.seed,
                                     .held_out = 1 };
    struct compile_evaluate options = { .serving.model = &job->model,
                                        .serving.tuning = job->tuning,
                                        .serving.dtype = job->train.dtype,
                                        .micro_batch = job->train.micro_batch,
                                        .seq_len = job->data.seq_len,
                                        .serving.scratch = run_scratch_bytes,
                                        .serving.scratch_context = &scratch };
    struct run_options run = { .program = &m->program, .kernels = kernels };

    m->replica = served->replica;
    m->micro_batch = job->train.micro_batch;
    m->seq_len = job->data.seq_len;
    served_run_options(served, &run);
    if (loader_open(&m->loader, &loader, err) < 0)
        return -1;
    m->n_batches = ceil_div(loader_n_samples(m->loader), job->train.micro_batch);
    if (served->n_members)
        return scorer_create(&m->scorer, served, kernels,
                             &(struct scorer_options){ .max_positions = m->seq_len }, err);
    if (replica_compile(m->replica, &m->program, compile, &options, err) < 0 ||
        run_create(&m->run, &run, err) < 0)
        return -1;
    init_constants(m->run, &m->program, &job->model);
    return served_load(served, m->run, &m->program, err);
}

/* The window with its targets as one text: they are its tokens, one place on. */
static int window_text(const struct measuring *m, const struct micro_batch *batch, int window,
                       int32_t *text, struct score *out, struct err *err)
{
    const int32_t *targets = batch->targets + (size_t)window * (size_t)m->seq_len;
    int n = 0;

    while (n < m->seq_len && targets[n] != LABEL_IGNORED)
        n++;
    for (int i = n; i < m->seq_len; i++)
        if (targets[i] != LABEL_IGNORED)
            return err_set(err, ERR_DATA,
                           "a window has tokens without loss before others (hint: an ensemble "
                           "needs token files of plain text)");
    memcpy(text, batch->tokens + (size_t)window * (size_t)m->seq_len, (size_t)n * sizeof *text);
    if (n)
        text[n] = targets[n - 1];
    *out = (struct score){ .tokens = text, .n = n + 1, .n_scored = n };
    return 0;
}

/* The same of an ensemble: by the scores of its windows. */
static int score_batch(struct measuring *m, struct batch_loss *out, struct err *err)
{
    struct micro_batch batch;
    struct arena arena = { 0 };
    struct score *scores = arena_array(&arena, struct score, m->micro_batch);
    int n = 0, status = loader_next(m->loader, &batch, err);

    *out = (struct batch_loss){ 0 };
    for (int w = 0; w < m->micro_batch && !status; w++) {
        status = window_text(m, &batch, w, arena_array(&arena, int32_t, m->seq_len + 1), &scores[n],
                             err);
        n += !status && scores[n].n_scored > 0;
    }
    if (!status && n)
        status = scorer_run(m->scorer, scores, n, NULL, NULL, NULL, err);
    for (int i = 0; i < n && !status; i++) {
        out->loss -= scores[i].log_likelihood;
        out->tokens += scores[i].n_scored;
    }
    arena_release(&arena);
    return status;
}

/* This replica's turn: the batch's loss, summed over the stages. */
static int run_batch(struct measuring *m, struct batch_loss *out, struct err *err)
{
    struct run_hooks hooks = { .context = m, .load = load };

    if (run_entry(m->run, ENTRY_EVALUATE, 1, &hooks, err) < 0 ||
        run_entry(m->run, ENTRY_EVALUATE_END, 1, NULL, err) < 0)
        return -1;
    out->tokens = m->batch_tokens;
    return run_get(m->run, m->program.ports.eval_total, 0, 0, &out->loss, sizeof out->loss, err);
}

/* Batches [0, n): replica r has r, r + R, ... Their losses to `own`, one after the other. */
static int run_batches(struct measuring *m, int64_t n, perplexity_progress_fn on_batch,
                       void *context, struct str *own, struct err *err)
{
    int n_replicas = replica_count(m->replica);

    for (int64_t i = replica_number(m->replica); i < n; i += n_replicas) {
        struct batch_loss loss;

        if ((m->scorer ? score_batch(m, &loss, err) : run_batch(m, &loss, err)) < 0)
            return -1;
        str_add_bytes(own, &loss, sizeof loss);
        if (on_batch && replica_is_first(m->replica))
            on_batch(context, min_i64(i + n_replicas, n), n);
    }
    return 0;
}

/* In the order of the batches: the bits do not depend on how many replicas there are. */
static struct perplexity sum_batches(const struct str *all, int64_t n, int n_replicas)
{
    struct perplexity sum = { 0 };

    CHECK(all->length == (size_t)n * sizeof(struct batch_loss));
    for (int64_t i = 0; i < n; i++) {
        int64_t number = i % n_replicas, at = i / n_replicas;
        struct batch_loss loss;

        /* Of replicas before it, those that were dealt one more, and the rest. */
        at += number * (n / n_replicas) + min_i64(number, n % n_replicas);
        memcpy(&loss, all->data + (size_t)at * sizeof loss, sizeof loss);
        sum.loss += loss.loss;
        sum.tokens += loss.tokens;
    }
    return sum;
}

int perplexity_measure(struct served *served, struct kernels *kernels, const char *data,
                       int64_t limit, perplexity_progress_fn on_batch, void *context,
                       struct perplexity *out, struct err *err)
{
    struct measuring m = { 0 };
    struct str own = { 0 }, all = { 0 };
    int status = open_all(&m, served, kernels, data, err);
    int64_t n = m.n_batches;

    if (!status && limit > 0)
        n = min_i64(n, ceil_div(limit, served->job.train.micro_batch));
    if (!status)
        status = run_batches(&m, n, on_batch, context, &own, err);
    if (!status)
        status = replica_collect(m.replica, &own, &all, err);
    if (!status) {
        struct perplexity sum = sum_batches(&all, n, replica_count(m.replica));

        if (sum.tokens)
            *out = (struct perplexity){ sum.loss / (double)sum.tokens, sum.tokens };
        else
            status = err_set(err, ERR_DATA, "%s has no tokens to predict", data);
    }
    str_release(&own);
    str_release(&all);
    scorer_destroy(m.scorer);
    run_destroy(m.run);
    loader_close(m.loader);
    program_release(&m.program);
    return status;
}
