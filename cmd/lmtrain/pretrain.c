/*
 * pretrain.c - lmtrain pretrain: train a model from one job file
 */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "cmd.h"
#include "config/job.h"
#include "launch/launch.h"
#include "ranks.h"
#include "train/pretrain.h"
#include "train/signals.h"

struct request {
    struct option_list sets;
    const char *resume, *hosts;
    int ranks, dry_run;
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

static int train(const struct request *q, const struct job *job, const struct launch_rank *rank)
{
    struct engine engine;
    struct err err;

    if (engine_open(&engine, rank, job->threads, &err) < 0)
        return ranks_fail(rank, &err);
    struct pretrain_options options = {
        .job = job, .resume = q->resume, .engine = &engine, .build = cmd_build()
    };
    int agreed, status = pretrain(&options, &agreed, &err) < 0 ? (int)err.code : 0;
    if (!agreed)
        return ranks_fail(rank, &err);
    /* What all ranks return is said once. */
    if (status && rank->world_rank == 0)
        cmd_fail(&err);
    engine_close(&engine);
    launch_leave();
    return status;
}

static int run_rank(const struct request *q, struct job *job, struct arena *arena)
{
    struct launch_rank rank;
    struct err err;

    /* Who asks a job to stop while it starts shall be heard at its first step's end. */
    signals_catch();
    int status = ranks_join(&rank, job, 0, &err);
    if (status)
        return status;
    if (job_resolve(job, rank.world_size, arena, &err) < 0)
        return ranks_fail(&rank, &err);
    return train(q, job, &rank);
}

/* Before anybody makes a file in the run's folder: the head its logs, a rank all else. */
static void share_output(const struct job *job)
{
    static const enum file_sharing sharings[] = {
        [OUTPUT_PRIVATE] = FILE_PRIVATE, [OUTPUT_GROUP] = FILE_GROUP, [OUTPUT_ALL] = FILE_ALL
    };

    file_share(sharings[job->output_mode]);
}

static int run(const struct request *q, const char *path, struct arena *arena)
{
    struct ranks ranks;
    struct job job;
    struct err err;

    if (job_read(&job, path, q->sets.items, q->sets.n, arena, &err) < 0)
        return cmd_fail(&err);
    if (q->ranks)
        job.ranks = q->ranks;
    if (ranks_find(&ranks, &job, q->hosts, arena, &err) < 0)
        return cmd_fail(&err);
    share_output(&job);
    if (ranks.where == WHERE_RANK && !q->dry_run)
        return run_rank(q, &job, arena);
    if (job_resolve(&job, ranks.n_ranks, arena, &err) < 0)
        return cmd_fail(&err);
    if (q->dry_run)
        return dry_run(&job);
    if (!ranks_are_started(&ranks, &job))
        return run_rank(q, &job, arena);
    struct ranks_command command = {
        .name = "pretrain", .job_path = path, .sets = &q->sets, .resume = q->resume
    };
    return ranks_start(&ranks, &job, &command, arena);
}

int cmd_pretrain(int argc, char **argv)
{
    struct request q = { .resume = "auto" };
    const struct option table[] = {
        cmd_option_set(&q.sets),
        { .name = "ranks",
          .kind = OPTION_INT,
          .value = &q.ranks,
          .argument = "N",
          .min = 1,
          .max = 1000000,
          .help = "run on N ranks instead of the job's" },
        { .name = "hosts",
          .kind = OPTION_TEXT,
          .value = &q.hosts,
          .argument = "FILE|HOST,...",
          .help = "run on these machines, reached by ssh: a list, or a file with one a line; "
                  "HOST:N gives a host N ranks, else all get equal shares" },
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
        .details =
            "SIGTERM, SIGINT, SIGHUP and SIGUSR1 save at the next step and leave with status 75.\n"
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
