/*
 * ranks.c - which launcher starts the ranks of a command, and with which command line
 */
#include "ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/num.h"
#include "ckpt/store.h"
#include "cmd.h"
#include "launch/slurm/slurm.h"
#include "launch/supervise.h"
#include "launch/watch/watcher.h"
#include "progress/status_file.h"
#include "report/metrics.h"

/* ---- where, and how many ---- */

/* The slots of the hosts that are no spares; a host that does not say counts as one. */
static int count_slots(const struct host_list *hosts, int n_spares)
{
    int n = 0;

    for (int i = 0; i < max_int(1, hosts->n_hosts - n_spares); i++)
        n += hosts->hosts[i].n_slots ? hosts->hosts[i].n_slots : 1;
    return n;
}

/* What the job leaves open, the place decides. */
static void count_ranks(struct ranks *ranks, const struct job *job)
{
    bool is_open = !job->ranks && !job->parallel.dp;
    int n = 0;

    if (is_open && ranks->hosts.n_hosts)
        n = count_slots(&ranks->hosts, job->launch.spares);
    else if (is_open && ranks->context == CONTEXT_ALLOCATION)
        n = slurm_ranks(job->launch.spares);
    ranks->is_open = n > 0;
    ranks->n_ranks = n ? n : cmd_n_ranks(job);
}

int ranks_find(struct ranks *ranks, const struct job *job, const char *hosts, struct arena *arena,
               struct err *err)
{
    struct ranks found = { 0 };

    if (launch_context(&found.context, err) ||
        slurm_check_args(job->launch.srun_args.values, job->launch.srun_args.n, job->source, err))
        return -1;
    if (hosts && found.context == CONTEXT_RANK)
        return err_set(err, ERR_CONFIG,
                       "--hosts is for machines without a launcher, but a launcher has started "
                       "this rank (hint: leave --hosts out)");
    /* In an allocation whose srun cannot start ranks, --hosts selects the launcher. */
    if (hosts)
        found.context = CONTEXT_PLAIN;
    if (hosts && hosts_read(&found.hosts, hosts, arena, err) < 0)
        return -1;
    found.hosts.build = cmd_build();
    found.hosts_text = hosts;
    count_ranks(&found, job);
    *ranks = found;
    return 0;
}

int ranks_are_started(const struct ranks *ranks, const struct job *job)
{
    return ranks->context != CONTEXT_RANK &&
           (ranks->context == CONTEXT_ALLOCATION || ranks->hosts.n_hosts || ranks->n_ranks > 1 ||
            job->restarts);
}

/* ---- the run's record ---- */

/* It shows hangs and deaths, as pages of `lmtrain report` do. */
static void record_trouble(const struct job *job, const char *event, int64_t step, double at,
                           const char *text)
{
    struct err err;

    if (metrics_note(job->output, step, event, at, text, &err) < 0)
        log_warn("%s", err.text);
}

/* Of a watcher; context: the job. */
static void on_watched_trouble(void *context, const char *event, int64_t step, double at,
                               const char *text)
{
    record_trouble(context, event, step, at, text);
}

/* ---- being one ---- */

int ranks_expected(void)
{
    const char *text = getenv("PMIX_RANK");
    int64_t n;

    return text && !str_to_i64(text, &n) && n > 0 && n < INT32_MAX ? (int)n : 0;
}

/* This rank failed before it joined: no other rank waits for it. */
static int fail_alone(const struct err *err)
{
    int status = cmd_fail(err);

    fflush(stderr);
    return status;
}

/* The same after it joined; does not return. */
static int fail_joined(const struct err *err)
{
    launch_abort(fail_alone(err), err->text);
}

int ranks_join(struct launch_rank *rank, const struct job *job, enum ranks_logs logs,
               struct err *err)
{
    char log_folder[4096], status_folder[4096];
    struct watcher_options options = { .hang_seconds = job->train.hang_seconds,
                                       .hang_abort_seconds = job->train.hang_abort_seconds,
                                       .log_folder = logs == RANKS_WITH_LOGS ? log_folder : NULL,
                                       .status_folder =
                                           logs == RANKS_WITH_LOGS ? status_folder : NULL,
                                       .on_trouble =
                                           logs == RANKS_WITH_LOGS ? on_watched_trouble : NULL,
                                       .context = (struct job *)(uintptr_t)job };

    snprintf(log_folder, sizeof log_folder, "%s/log", job->output);
    snprintf(status_folder, sizeof status_folder, "%s/" STATUS_FOLDER, job->output);
    if (fault_init(ranks_expected(), launch_attempt(), err) < 0)
        return fail_alone(err);
    fault_at("start", -1);
    if (watcher_start(&options, err) < 0 || launch_join(rank, err) < 0)
        return fail_alone(err);
    if (watcher_join(rank, err) < 0)
        return fail_joined(err);
    fault_at("joined", -1);
    if (job->ranks && job->ranks != rank->world_size) {
        err_set(err, ERR_CONFIG, "%s: ranks is %d, but the launcher started %d (hint: start %d)",
                job->source, job->ranks, rank->world_size, job->ranks);
        return fail_joined(err);
    }
    return 0;
}

int ranks_fail(const struct launch_rank *rank, const struct err *err)
{
    int status = cmd_fail(err);

    fflush(stderr);
    if (rank->world_size > 1)
        launch_abort(status, err->text);
    return status;
}

/* ---- starting them ---- */

struct starter {
    const struct job *job;
    const struct ranks_command *command;
    struct arena *arena;
    int n_ranks; /* the job's */
    int n_now;   /* of the last attempt */
    bool is_open;
};

static char **build_argv(const struct starter *s, int n_ranks, const char *resume)
{
    const struct option_list *sets = s->command->sets;
    int n = 0, n_more = 0;

    while (s->command->more && s->command->more[n_more])
        n_more++;
    char **argv = arena_array(s->arena, char *, 2 * sets->n + n_more + 13);

    argv[n++] = arena_strdup(s->arena, "lmtrain");
    argv[n++] = arena_strdup(s->arena, s->command->name);
    if (s->command->subcommand)
        argv[n++] = arena_strdup(s->arena, s->command->subcommand);
    if (s->command->job_path)
        argv[n++] = arena_strdup(s->arena, s->command->job_path);
    for (int i = 0; i < sets->n; i++) {
        argv[n++] = arena_strdup(s->arena, "--set");
        argv[n++] = arena_strdup(s->arena, sets->items[i]);
    }
    if (n_ranks != s->n_ranks) {
        argv[n++] = arena_strdup(s->arena, "--set");
        argv[n++] = arena_strdup(s->arena, "parallel.dp=auto");
    }
    argv[n++] = arena_strdup(s->arena, "--ranks");
    argv[n++] = arena_printf(s->arena, "%d", n_ranks);
    if (resume) {
        argv[n++] = arena_strdup(s->arena, "--resume");
        argv[n++] = arena_strdup(s->arena, resume);
    }
    for (int i = 0; i < n_more; i++)
        argv[n++] = arena_strdup(s->arena, s->command->more[i]);
    argv[n] = NULL;
    return argv;
}

/* From where a restart goes on: the run's own newest checkpoint, or as the first attempt began. */
static const char *restart_from(const struct starter *s)
{
    struct err none;

    return store_newest(s->job->output, s->arena, &none) ? "auto" : s->command->resume;
}

/* An attempt has another number of ranks than the one before. */
static void tell_number(const struct starter *s, int n_ranks)
{
    const struct job *job = s->job;
    int dp = n_ranks / (job->parallel.tp * job->parallel.pp * job->parallel.cp);

    if (n_ranks < s->n_ranks)
        log_warn("%d of %d ranks %s left: parallel.dp is now %d; the global batch is unchanged, "
                 "the numerics change",
                 n_ranks, s->n_ranks, n_ranks == 1 ? "is" : "are", dp);
    else if (n_ranks == s->n_ranks)
        log_warn("all %d ranks are back: parallel.dp is %d again, and so are the numerics", n_ranks,
                 dp);
    else
        log_warn("%d ranks instead of %d, as the hosts have room for them: parallel.dp is now %d; "
                 "the global batch is unchanged, the numerics change",
                 n_ranks, s->n_ranks, dp);
}

/* As many ranks as the job says; where it does not say, as many as the hosts offer by now. */
static int again(void *context, int attempt, int n_possible, char *const **argv, struct err *err)
{
    struct starter *s = context;
    bool may_fit = n_possible < s->n_ranks || (s->is_open && n_possible > s->n_ranks);
    int n_ranks = may_fit ? job_fit_ranks(s->job, n_possible) : s->n_ranks;

    if (!n_ranks) {
        err_set(err, ERR_PEER,
                "the job cannot continue with %d rank%s: parallel tp %d * pp %d * cp %d",
                n_possible, str_s(n_possible), s->job->parallel.tp, s->job->parallel.pp,
                s->job->parallel.cp);
        return 0;
    }
    if (n_ranks != s->n_now)
        tell_number(s, n_ranks);
    s->n_now = n_ranks;
    *argv = build_argv(s, n_ranks, attempt ? restart_from(s) : s->command->resume);
    return n_ranks;
}

static void on_trouble(void *context, const char *event, int64_t step, double at, const char *text)
{
    const struct starter *s = context;

    record_trouble(s->job, event, step, at, text);
}

int ranks_start(const struct ranks *ranks, const struct job *job,
                const struct ranks_command *command, struct arena *arena)
{
    struct starter starter = {
        job, command, arena, ranks->n_ranks, ranks->n_ranks, ranks->is_open
    };
    bool keeps = !command->keeps_nothing;
    struct supervise_options options = {
        .n_ranks = ranks->n_ranks,
        .argv = build_argv(&starter, ranks->n_ranks, command->resume),
        .log_folder = keeps ? arena_printf(arena, "%s/log", job->output) : NULL,
        .hang_seconds = job->train.hang_seconds,
        .hang_abort_seconds = job->train.hang_abort_seconds,
        .hosts = ranks->hosts.n_hosts ? &ranks->hosts : NULL,
        .hosts_text = ranks->hosts_text,
        .n_spares = job->launch.spares,
        .output = keeps ? job->output : NULL,
        .srun_args = job->launch.srun_args.values,
        .n_srun_args = job->launch.srun_args.n,
        .stop_words = command->stop_words,
        .n_restarts = keeps ? job->restarts : 0,
        .again = again,
        .on_trouble = keeps ? on_trouble : NULL,
        .context = &starter
    };
    struct err err;
    /* A rule that cannot be read is refused here, once: no rank is -1. */
    int status = fault_init(-1, 0, &err) < 0            ? -1
                 : ranks->context == CONTEXT_ALLOCATION ? slurm_run(&options, &err)
                                                        : supervise(&options, &err);

    return status < 0 ? cmd_fail(&err) : status;
}
