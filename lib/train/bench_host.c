/*
 * bench_host.c - what steps take that no op accounts for
 *
 * In steps of a model so small that its ops are short: more micro-batches show what an op costs the
 * host, and steps of a trainer, with its data and its scalars, what a step does.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/num.h"
#include "base/rng.h"
#include "data/stream/indexed_writer.h"
#include "train/bench_impl.h"
#include "train/trainer.h"

enum { SEQ_LEN = 16, VOCAB_SIZE = 256, N_TOKENS = 1 << 16 };
enum { N_WARM = 5, N_STEPS = 200, MICRO_BATCHES = 5 };

/* ---- the job ---- */

static int read_job(struct job *job, const struct job *like, const char *prefix,
                    int n_micro_batches, struct arena *arena, struct err *err)
{
    const char *text =
        arena_printf(arena,
                     "model: llama-tiny\ndata: {train: \"%s\", seq_len: %d}\noutput: none\n"
                     "train: {steps: %d, micro_batch: 1, global_batch: %d, dtype: fp32}\n",
                     prefix, SEQ_LEN, N_WARM + N_STEPS, n_micro_batches);

    if (job_read_text(job, text, strlen(text), "the host's time", NULL, 0, arena, err) ||
        job_resolve(job, 1, arena, err))
        return -1;
    job->device = like->device;
    job->threads = like->threads;
    return 0;
}

static int write_tokens(const char *prefix, struct err *err)
{
    struct indexed_writer writer;
    int32_t *ids = malloc(N_TOKENS * sizeof *ids);

    if (!ids)
        return err_set(err, ERR_DEVICE, "out of host memory");
    for (int i = 0; i < N_TOKENS; i++)
        ids[i] = (int32_t)(rng_at(1, RNG_BENCH, 0, (uint64_t)i).word[0] % VOCAB_SIZE);
    int status = indexed_writer_open(&writer, prefix, VOCAB_SIZE, err);
    if (!status && indexed_writer_add(&writer, ids, N_TOKENS, err)) {
        indexed_writer_abandon(&writer);
        status = -1;
    } else if (!status) {
        status = indexed_writer_finish(&writer, err);
    }
    free(ids);
    return status;
}

/* ---- its steps ---- */

/* Of the least disturbed step, of its ops, and how many these are. */
struct short_step {
    double seconds, op_seconds;
    int n_ops;
};

static double least(const double *numbers, int n)
{
    double least = numbers[0];

    for (int i = 1; i < n; i++)
        least = fmin(least, numbers[i]);
    return least;
}

static int run_step(struct short_step *step, const struct job *job, struct engine *alone,
                    struct err *err)
{
    struct bench bench;

    if (bench_run(&bench, job, alone, N_WARM, N_STEPS, err))
        return -1;
    *step = (struct short_step){ .seconds = least(bench.step_seconds, bench.n_steps) };
    for (int i = 0; i < bench.n_ops; i++) {
        step->op_seconds += bench.ops[i].seconds;
        step->n_ops += bench.ops[i].n_runs;
    }
    bench_release(&bench);
    return 0;
}

static int time_trainer(double *seconds, const struct job *job, struct engine *alone,
                        struct err *err)
{
    const struct trainer_options options = {
        .job = job, .pool = alone->pool, .kernels = alone->kernels, .comm = alone->comm
    };
    struct trainer_result result;
    struct trainer *trainer;
    double samples[N_STEPS];
    int status = trainer_create(&trainer, &options, err);

    if (status)
        return -1;
    for (int i = -N_WARM; i < N_STEPS && !status; i++) {
        double begin = clock_seconds();

        status = trainer_step(trainer, &result, err);
        samples[max_int(0, i)] = clock_seconds() - begin;
    }
    trainer_destroy(trainer);
    if (!status)
        *seconds = least(samples, N_STEPS);
    return status;
}

static int measure(struct bench_host *host, const struct job *like, struct engine *alone,
                   const char *prefix, struct arena *arena, struct err *err)
{
    struct short_step few, many;
    struct job one, several;
    double seconds;

    if (read_job(&one, like, prefix, 1, arena, err) ||
        read_job(&several, like, prefix, MICRO_BATCHES, arena, err) ||
        run_step(&few, &one, alone, err) || run_step(&many, &several, alone, err) ||
        time_trainer(&seconds, &one, alone, err))
        return -1;
    double more = many.seconds - few.seconds - (many.op_seconds - few.op_seconds);
    host->op_seconds = fmax(0, more / (many.n_ops - few.n_ops));
    host->step_seconds = fmax(0, seconds - few.op_seconds - few.n_ops * host->op_seconds);
    return 0;
}

int bench_host(struct bench_host *host, const struct job *like, struct engine *alone,
               struct arena *arena, struct err *err)
{
    const char *temporary = getenv("TMPDIR");
    char *folder = arena_printf(arena, "%s/lmtrain-bench-XXXXXX", temporary ? temporary : "/tmp");

    if (!mkdtemp(folder))
        return err_set_errno(err, ERR_FAILED, "cannot make the folder %s (hint: TMPDIR)", folder);
    const char *prefix = arena_printf(arena, "%s/tokens", folder);
    int status = write_tokens(prefix, err);
    if (!status)
        status = measure(host, like, alone, prefix, arena, err);
    unlink(arena_printf(arena, "%s.bin", prefix));
    unlink(arena_printf(arena, "%s.idx", prefix));
    rmdir(folder);
    return status;
}
