/*
 * doctor_cluster.c - lmtrain doctor --cluster: the check that a run makes with preflight, by itself
 */
#include <string.h>

#include "cmd.h"
#include "doctor_impl.h"
#include "ranks.h"
#include "train/preflight.h"

/* What a job says that only shows where and how: the rest of this one is never used. */
static const char any_job[] = "model: {vocab_size: 256, hidden_size: 64, n_layers: 1, n_heads: 1, "
                              "ffn_size: 64}\ndata: {train: none}\ntrain: {steps: 1}\noutput: .\n";

static int read_job(const struct doctor_cluster *q, const char *path, struct job *job,
                    struct arena *arena, struct err *err)
{
    int status = path ? job_read(job, path, q->sets.items, q->sets.n, arena, err)
                      : job_read_text(job, any_job, sizeof any_job - 1, "doctor", q->sets.items,
                                      q->sets.n, arena, err);

    if (!status && q->ranks)
        job->ranks = q->ranks;
    return status;
}

/* 0; 1: something is slow; 4: bits are wrong, or differ. */
static int status_of(const struct preflight *preflight)
{
    return preflight->worst == PREFLIGHT_OK     ? 0
           : preflight->worst == PREFLIGHT_SLOW ? ERR_FAILED
                                                : ERR_DEVICE;
}

/* On rank 0, whose status is the command's; the others' is 0. */
static int print_result(const struct preflight *preflight, bool as_json)
{
    struct str out = { 0 };

    if (as_json) {
        preflight_print_json(preflight, &out);
    } else {
        preflight_print(preflight, &out);
        if (!preflight->n_findings)
            str_printf(&out, "%d rank%s: no fault found\n", preflight->n_ranks,
                       str_s(preflight->n_ranks));
    }
    int status = cmd_print(&out);
    str_release(&out);
    return status ? status : status_of(preflight);
}

static int run_rank(const struct doctor_cluster *q, const struct job *job, struct arena *arena)
{
    const struct engine_request request = { job->threads, job->device };
    const struct preflight_request check = { .is_full = q->is_full,
                                             .min_ratio = job->preflight.min_ratio,
                                             .seconds = job->preflight.seconds,
                                             .dtype = job->train.dtype,
                                             .output = job->output };
    struct preflight preflight;
    struct launch_rank rank;
    struct engine engine;
    struct err err;
    int status = ranks_join(&rank, job, RANKS_WITHOUT_LOGS, &err);

    if (status)
        return status;
    if (engine_open(&engine, &rank, &request, &err) < 0 ||
        preflight_run(&preflight, &check, &engine, arena, &err) < 0)
        return ranks_fail(&rank, &err);
    if (rank.world_rank == 0)
        status = print_result(&preflight, q->as_json);
    engine_close(&engine);
    launch_leave();
    return status;
}

static int start(const struct doctor_cluster *q, const struct ranks *ranks, const struct job *job,
                 const char *path, struct arena *arena)
{
    const char *more[] = { "--cluster", NULL, NULL, NULL };
    const struct ranks_command command = { .name = "doctor",
                                           .job_path = path,
                                           .sets = &q->sets,
                                           .more = more,
                                           .stop_words = "the check is abandoned",
                                           .keeps_nothing = true };
    int n = 1;

    if (q->is_full)
        more[n++] = "--full";
    if (q->as_json)
        more[n++] = "--json";
    return ranks_start(ranks, job, &command, arena);
}

int doctor_cluster(const struct doctor_cluster *q, const char *path, struct arena *arena)
{
    struct ranks ranks;
    struct job job;
    struct err err;

    if (read_job(q, path, &job, arena, &err) < 0)
        return cmd_fail(&err);
    job.restarts = 0;
    if (ranks_find(&ranks, &job, q->hosts, arena, &err) < 0)
        return cmd_fail(&err);
    return ranks_are_started(&ranks, &job) ? start(q, &ranks, &job, path, arena)
                                           : run_rank(q, &job, arena);
}
