/*
 * pretrain_preflight.c - what a run does with hosts that are unfit
 *
 * All ranks have the same figures, hence the same answer. With restarts an unfit host is excluded,
 * and the attempt ends with ERR_PEER, which the launcher restarts on other hosts; an excluded host
 * is not used again, so this ends.
 */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/num.h"
#include "launch/excluded.h"
#include "train/preflight.h"
#include "train/pretrain_impl.h"

struct unfit {
    struct preflight result;
    struct str hosts; /* unfit ones: "b, c" */
    int n_hosts;      /* of them */
    int n_fit;        /* ranks of the other hosts */
};

/*
 * Whether a finding makes its host unfit: a slow disk does not, since others write to it as well.
 * Hosts that are only suspect wait for those whose bits are wrong.
 */
static bool is_unfit(const struct unfit *u, const struct preflight_finding *f)
{
    switch (f->fault) {
    case PREFLIGHT_SLOW:
        return f->what != PREFLIGHT_DISK_WRITE && f->what != PREFLIGHT_DISK_READ;
    case PREFLIGHT_SUSPECT:
        return u->result.worst == PREFLIGHT_SUSPECT;
    default:
        return f->fault == PREFLIGHT_WRONG;
    }
}

static const char *reason_of_host(const struct unfit *u, const char *host)
{
    const struct preflight *p = &u->result;

    for (int i = 0; i < p->n_findings; i++)
        if (is_unfit(u, &p->findings[i]) && !strcmp(p->ranks[p->findings[i].rank].host, host))
            return p->findings[i].text;
    return NULL;
}

/* Whether the host has no rank before this one. */
static bool is_first_of_host(const struct preflight *p, int rank)
{
    for (int i = 0; i < rank; i++)
        if (!strcmp(p->ranks[i].host, p->ranks[rank].host))
            return false;
    return true;
}

static void count_unfit(struct unfit *u)
{
    const struct preflight *p = &u->result;

    for (int rank = 0; rank < p->n_ranks; rank++) {
        bool is_fit = !reason_of_host(u, p->ranks[rank].host);

        u->n_fit += is_fit;
        if (is_fit || !is_first_of_host(p, rank))
            continue;
        str_printf(&u->hosts, "%s%s", u->n_hosts++ ? ", " : "", p->ranks[rank].host);
    }
}

/* ---- rank 0 ---- */

static void report(struct pretrain *p, const struct preflight *result)
{
    struct str text = { 0 }, summary = { 0 };
    char path[PATH_BYTES];
    struct err err;

    preflight_print_summary(result, &summary);
    preflight_print(result, &text);
    log_info("preflight: %d rank%s checked\n%.*s", result->n_ranks, str_s(result->n_ranks),
             (int)text.length - 1, str_text(&text));
    str_clear(&text);
    preflight_print_json(result, &text);
    if (pretrain_path(p, path, "preflight.json", &err) ||
        file_write(path, str_text(&text), text.length, &err))
        log_warn("%s: the preflight's figures are not kept", err.text);
    p->preflight = arena_strdup(&p->arena, str_text(&summary));
    str_release(&summary);
    str_release(&text);
}

/* Whether a restart leaves the host out: not if it is listed already and was used all the same. */
static int exclude(const struct pretrain *p, const struct unfit *u, struct err *err)
{
    const struct preflight *result = &u->result;
    struct excluded_hosts list;
    struct arena arena = { 0 };
    int status = excluded_read(&list, p->job->output, &arena, err);

    for (int rank = 0; rank < result->n_ranks && !status; rank++) {
        const char *host = result->ranks[rank].host, *reason = reason_of_host(u, host);

        if (!reason || !is_first_of_host(result, rank))
            continue;
        if (excluded_find(&list, host))
            status = err_set(err, ERR_DEVICE, "%s is excluded, and was used all the same", host);
        else
            status = excluded_add(p->job->output, host, reason, err);
    }
    arena_release(&arena);
    return status;
}

/* An attempt that ends here has opened no metrics yet. Lines of earlier attempts stay. */
static void note_end(const struct pretrain *p, const char *text)
{
    struct metrics *metrics;
    struct err err;

    if (metrics_open(&metrics, p->job->output, INT64_MAX, &err)) {
        log_warn("%s", err.text);
        return;
    }
    if (metrics_event(metrics, 0, "preflight", text, &err))
        log_warn("%s", err.text);
    metrics_close(metrics);
}

/* ---- what all ranks conclude ---- */

/* Whether the job could continue without the unfit hosts; slow ones are better than none. */
static bool can_exclude(const struct pretrain *p, const struct unfit *u)
{
    const struct job *job = p->job;

    if (job->restarts <= 0 || u->result.worst == PREFLIGHT_SUSPECT || !u->n_fit)
        return false;
    return u->result.worst == PREFLIGHT_WRONG || job->launch.spares >= u->n_hosts ||
           job_fit_ranks(job, u->n_fit) > 0;
}

static int refuse(struct pretrain *p, const struct unfit *u, enum err_code code, struct err *err)
{
    p->agreed = 1;
    if (p->is_first)
        note_end(p, p->preflight);
    return err_set(err, code, "preflight: %s %s unfit: %s%s", str_text(&u->hosts),
                   u->n_hosts > 1 ? "are" : "is", u->result.findings[0].text,
                   code == ERR_PEER ? "" : " (hint: leave it out of --hosts; preflight: off)");
}

/* Rank 0's exclusion, known to all. */
static int exclude_on_all(struct pretrain *p, const struct unfit *u, struct err *err)
{
    struct err why = { 0 };
    int failed = p->is_first ? exclude(p, u, &why) : 0;

    if (preflight_agree(p->options->engine, &failed, err))
        return -1;
    if (!failed)
        return refuse(p, u, ERR_PEER, err);
    if (p->is_first)
        log_warn("%s", why.text);
    return refuse(p, u, ERR_DEVICE, err);
}

static int conclude(struct pretrain *p, struct unfit *u, struct err *err)
{
    bool is_full = p->job->preflight.mode == PREFLIGHT_FULL;

    count_unfit(u);
    if (!u->n_hosts)
        return 0;
    if (can_exclude(p, u))
        return exclude_on_all(p, u, err);
    if (u->result.worst > PREFLIGHT_SLOW || is_full)
        return refuse(p, u, ERR_DEVICE, err);
    if (p->is_first)
        log_warn("preflight: %s is slow, the run continues: %s (hint: preflight: full refuses it, "
                 "restarts: N excludes it)",
                 str_text(&u->hosts), u->result.findings[0].text);
    return 0;
}

int pretrain_preflight(struct pretrain *p, struct err *err)
{
    const struct job *job = p->job;
    const struct preflight_request request = { .is_full = job->preflight.mode == PREFLIGHT_FULL,
                                               .min_ratio = job->preflight.min_ratio,
                                               .seconds = job->preflight.seconds,
                                               .dtype = job->train.dtype,
                                               .output = job->output };
    struct unfit unfit = { .n_hosts = 0 };
    struct arena arena = { 0 };

    if (job->preflight.mode == PREFLIGHT_OFF)
        return 0;
    int status = preflight_run(&unfit.result, &request, p->options->engine, &arena, err);
    if (!status && unfit.result.signal) {
        p->agreed = 1;
        status = err_set(err, ERR_REQUEUE,
                         "stopped by a signal in the preflight check: the same command starts "
                         "from the beginning");
    } else if (!status) {
        if (p->is_first)
            report(p, &unfit.result);
        status = conclude(p, &unfit, err);
    }
    str_release(&unfit.hosts);
    arena_release(&arena);
    return status;
}
