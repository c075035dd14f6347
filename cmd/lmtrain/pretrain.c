/*
 * pretrain.c - lmtrain pretrain: train a model from one job file
 */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "cmd.h"
#include "config/job.h"
#include "launch/launch.h"
#include "launch/supervise.h"
#include "train/pretrain.h"
#include "version.h"

struct request {
    struct option_list sets;
    const char *resume;
    int ranks, dry_run;
    char **argv;
    int argc;
};

static int dry_run(const struct job *job)
{
    struct str out = { 0 };

    job_print(job, &out);
    for (int i = 0; i < job->n_notes; i++)
        str_printf(&out, i ? "# %s\n" : "\n# %s\n", job->notes[i]);
    int status = cmd_plan_print(job, &out);
    if (!status)
        status = cmd_print(&out);
    str_release(&out);
    return status;
}

/* Start the ranks; each runs this command again and joins. */
static int supervise_ranks(const struct request *q, const struct job *job, int n_ranks,
                           struct arena *arena)
{
    char **argv = arena_array(arena, char *, q->argc + 2);
    char *log_folder = arena_printf(arena, "%s/log", job->output);
    struct supervise_options options = { .n_ranks = n_ranks,
                                         .argv = argv,
                                         .log_folder = log_folder,
                                         .hang_seconds = job->train.hang_seconds,
                                         .hang_abort_seconds = job->train.hang_abort_seconds };
    struct err err;

    argv[0] = arena_strdup(arena, "lmtrain");
    for (int i = 0; i < q->argc; i++)
        argv[i + 1] = q->argv[i];
    int status = supervise(&options, &err);
    return status < 0 ? cmd_fail(&err) : status;
}

/* This rank failed and others may be waiting for it: end them all. */
static int fail_alone(const struct launch_rank *rank, const struct err *err)
{
    int status = cmd_fail(err);

    fflush(stderr);
    if (rank->world_size > 1)
        launch_abort(status, err->text);
    return status;
}

static int train(const struct request *q, const struct job *job, const struct launch_rank *rank)
{
    struct engine engine;
    struct err err;

    check_set_rank(rank->world_rank);
    if (engine_open(&engine, rank, job->threads, &err) < 0)
        return fail_alone(rank, &err);
    struct pretrain_options options = {
        .job = job, .resume = q->resume, .engine = &engine, .build = LMTRAIN_VERSION
    };
    int agreed, status = pretrain(&options, &agreed, &err) < 0 ? (int)err.code : 0;
    if (!agreed)
        return fail_alone(rank, &err);
    /* What all ranks return is said once. */
    if (status && rank->world_rank == 0)
        cmd_fail(&err);
    engine_close(&engine);
    launch_leave();
    return status;
}

static int run(const struct request *q, const char *path, struct arena *arena)
{
    struct launch_rank rank = { 0, 1, 0, 1, 0 };
    struct job job;
    struct err err;

    if (job_read(&job, path, q->sets.items, q->sets.n, arena, &err) < 0)
        return cmd_fail(&err);
    if (q->ranks)
        job.ranks = q->ranks;
    int is_rank = launch_is_rank();
    if (is_rank && launch_join(&rank, &err) < 0)
        return cmd_fail(&err);
    int n_ranks = is_rank ? rank.world_size : cmd_n_ranks(&job);
    if (is_rank && job.ranks && job.ranks != n_ranks) {
        err_set(&err, ERR_CONFIG,
                "ranks is %d, this job was started with %d (hint: start it with %d)", job.ranks,
                n_ranks, job.ranks);
        return fail_alone(&rank, &err);
    }
    if (job_resolve(&job, n_ranks, arena, &err) < 0)
        return fail_alone(&rank, &err);
    if (q->dry_run)
        return dry_run(&job);
    if (!is_rank && n_ranks > 1)
        return supervise_ranks(q, &job, n_ranks, arena);
    return train(q, &job, &rank);
}

int cmd_pretrain(int argc, char **argv)
{
    struct request q = { .resume = "auto", .argc = argc, .argv = argv };
    const struct option table[] = {
        cmd_option_set(&q.sets),
        { .name = "ranks",
          .kind = OPTION_INT,
          .value = &q.ranks,
          .argument = "N",
          .min = 1,
          .max = 1000000,
          .help = "run on N ranks instead of the job's" },
        { .name = "resume",
          .kind = OPTION_TEXT,
          .value = &q.resume,
          .argument = "auto|none|DIR",
          .help = "auto: go on where the output folder's newest checkpoint is; none: refuse to; "
                  "DIR: begin from that run or checkpoint" },
        { .name = "dry-run",
          .value = &q.dry_run,
          .help = "show the resolved job and its plan, and train nothing" },
    };
    const struct options options = {
        .command = "lmtrain pretrain",
        .arguments = "JOB.yaml",
        .summary = "Train a model from scratch, or go on with a run",
        .details = "SIGTERM, SIGINT and SIGUSR1 save at the next step and leave with status 75.\n"
                   "Exit status: 0; 1 failed; 2 usage or job; 3 data or checkpoint; 4 device or\n"
                   "memory; 5 a rank died; 75 saved, start me again.\n",
        .table = table,
        .n_options = sizeof table / sizeof *table,
        .min_arguments = 1,
        .max_arguments = 1,
    };
    struct option_arguments arguments;
    struct arena arena = { 0 };
    int status = cmd_parse(&options, argc, argv, &arguments, &arena);

    if (status < 0)
        status = run(&q, arguments.items[0], &arena);
    arena_release(&arena);
    return status;
}
