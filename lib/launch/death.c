/*
 * death.c - causes, verdicts and their messages
 */
#include "launch/death_impl.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/str.h"

enum { STATUS_SIGNALLED = 128 };

/* A rank that is killed without a message is most often a victim of the kernel's OOM killer. */
static const char killed_hint[] = " (hint: out of memory? see dmesg)";

/* ---- verdicts ---- */

bool death_is_of_rank(const struct death *death)
{
    return death->kind < DEATH_NODE;
}

bool death_would_recur(int status)
{
    return status >= ERR_FAILED && status <= ERR_DEVICE;
}

bool death_may_restart(int status)
{
    return status > 0 && status != ERR_REQUEUE && !death_would_recur(status);
}

static int status_of_signal(int signal)
{
    return signal == SIGABRT ? DEATH_ABORTED_STATUS : ERR_PEER;
}

struct death death_of_rank(int wait_status, bool in_order)
{
    int status = WEXITSTATUS(wait_status);

    if (WIFSIGNALED(wait_status))
        return (struct death){ .kind = DEATH_SIGNAL, .signal = WTERMSIG(wait_status) };
    if (status && status != ERR_REQUEUE)
        return (struct death){ .kind = DEATH_EXIT, .status = status };
    return (struct death){ .kind = in_order ? DEATH_NONE : DEATH_NOT_LEFT, .status = status };
}

static struct death_verdict own(int status)
{
    return (struct death_verdict){ WEIGHT_OWN, status, !death_would_recur(status) };
}

/* A status that a rank gave itself: ERR_PEER says that it saw another rank die. */
static struct death_verdict reported(int status)
{
    struct death_verdict verdict = own(status);

    if (status == ERR_PEER)
        verdict.weight = WEIGHT_PEER;
    return verdict;
}

/*
 * Our own code aborts with an exit status. Open MPI aborts with -1 where its connection to a
 * process breaks, which is most often the death of that process.
 */
static struct death_verdict judge_abort(int status)
{
    return reported(status > 0 && status <= 255 ? status : ERR_PEER);
}

/*
 * A rank that was stopped before it could react to the signal had nothing to save: the job is
 * resumed.
 */
static struct death_verdict judge_signal(const struct death *death)
{
    return own(death->was_forwarded && !death->has_begun ? ERR_REQUEUE
                                                         : status_of_signal(death->signal));
}

static struct death_verdict judge_kind(const struct death *death)
{
    switch (death->kind) {
    case DEATH_NONE:
    case DEATH_KINDS:
        break;
    case DEATH_SIGNAL:
        return judge_signal(death);
    case DEATH_EXIT:
        return reported(death->status);
    case DEATH_NOT_LEFT: /* whatever ended it there (exit in a library) may not recur */
        return (struct death_verdict){ WEIGHT_OWN, death->status ? death->status : ERR_FAILED,
                                       true };
    case DEATH_ABORT:
        return judge_abort(death->status);
    case DEATH_GPU:
    case DEATH_GPU_HANG:
        return own(ERR_DEVICE);
    case DEATH_UNSEEN:
    case DEATH_FAILED:
    case DEATH_HANG:
    case DEATH_NODE:
    case DEATH_DAEMON_STOPPED:
    case DEATH_DAEMON_SILENT:
    case DEATH_LAUNCHER:
    case DEATH_STOP_TWICE:
        return own(ERR_PEER);
    case DEATH_STOP_UNSTARTED: /* nothing is lost: the next start resumes from the same place */
    case DEATH_STOP_EARLY:
        return own(ERR_REQUEUE);
    case DEATH_STOP_NOW:
        return own(STATUS_SIGNALLED + death->signal);
    }
    return (struct death_verdict){ WEIGHT_NONE, 0, false };
}

struct death_verdict death_judge(const struct death *death)
{
    struct death_verdict verdict = judge_kind(death);

    /*
     * A broken GPU makes its host unfit; if that is the only machine, a restart would fail again.
     */
    if (verdict.weight != WEIGHT_NONE && death->gpu_is_broken)
        verdict.may_restart = death->has_other_hosts;
    else if (verdict.weight != WEIGHT_NONE && death->gpu_is_reusable)
        verdict.may_restart = true;
    return verdict;
}

bool death_is_consequence(bool is_running, int wait_status, bool in_order)
{
    return is_running || death_of_rank(wait_status, in_order).kind != DEATH_NONE;
}

/* ---- srun ---- */

int death_status_of_srun_task(const char *how)
{
    static const char exited[] = "Exited with exit code ";

    if (str_starts_with(how, exited)) {
        long status = strtol(how + strlen(exited), NULL, 10);

        return status > 0 && status <= 255 ? (int)status : ERR_PEER;
    }
    return str_starts_with(how, "Aborted") ? DEATH_ABORTED_STATUS : ERR_PEER;
}

int death_status_of_srun(int wait_status, int first_status, bool has_lost_nodes)
{
    int status = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status)
                                        : STATUS_SIGNALLED + WTERMSIG(wait_status);

    /* A step that was not even launched on all nodes ends with 1. */
    if (status && status != ERR_REQUEUE && has_lost_nodes)
        return ERR_PEER;
    if (status < STATUS_SIGNALLED)
        return status; /* of the ranks, or what one aborted with */
    if (first_status && first_status < STATUS_SIGNALLED)
        return first_status;
    if (status == DEATH_ABORTED_STATUS || first_status == DEATH_ABORTED_STATUS)
        return DEATH_ABORTED_STATUS;
    return ERR_PEER;
}

/* ---- texts ---- */

/* "with rank 3", "with ranks 4 to 7" */
static const char *name_ranks(const struct death *death, char *buffer, size_t size)
{
    if (death->n_ranks == 1)
        snprintf(buffer, size, "with rank %d", death->first_rank);
    else
        snprintf(buffer, size, "with ranks %d to %d", death->first_rank,
                 death->first_rank + death->n_ranks - 1);
    return buffer;
}

/* "node b is lost (its link closed), with ranks 4 to 7; its last message: ..." */
static void describe_node(const struct death *death, char *buffer, size_t size)
{
    char ranks[64], why[512];

    if (death->signal)
        snprintf(why, sizeof why, "its daemon was killed by signal %d, %s", death->signal,
                 strsignal(death->signal));
    else if (death->text)
        snprintf(why, sizeof why, "%s", death->text);
    else
        snprintf(why, sizeof why, "no heartbeat from its daemon for %.0f s", death->seconds);
    snprintf(buffer, size, "node %s is lost (%s), %s%s%s", death->host, why,
             name_ranks(death, ranks, sizeof ranks),
             death->last_message ? "; its last message: " : "",
             death->last_message ? death->last_message : "");
}

static void describe_rank(const struct death *death, char *buffer, size_t size)
{
    switch (death->kind) {
    case DEATH_UNSEEN:
        snprintf(buffer, size, "died");
        break;
    case DEATH_SIGNAL:
        snprintf(buffer, size, "was killed by signal %d (%s)%s", death->signal,
                 strsignal(death->signal),
                 death->was_forwarded ? ", which was forwarded to it" : "");
        break;
    case DEATH_EXIT:
        snprintf(buffer, size, "exited with status %d", death->status);
        break;
    case DEATH_NOT_LEFT:
        snprintf(buffer, size, "exited with status %d without leaving the job", death->status);
        break;
    case DEATH_ABORT:
        snprintf(buffer, size, "failed with status %d: %.1023s", death->status, death->text);
        break;
    case DEATH_FAILED:
        snprintf(buffer, size, "failed");
        break;
    case DEATH_HANG:
        snprintf(buffer, size, "made no progress for %.0f s", death->seconds);
        break;
    case DEATH_GPU:
        snprintf(buffer, size, "lost its GPU");
        break;
    case DEATH_GPU_HANG:
        snprintf(buffer, size, "lost its GPU and does not exit");
        break;
    default:
        buffer[0] = '\0';
        break;
    }
}

static void describe_stop(const struct death *death, char *buffer, size_t size)
{
    char by[128];

    if (death->signal)
        snprintf(by, sizeof by, "signal %d (%s)", death->signal, strsignal(death->signal));
    else
        snprintf(by, sizeof by, "a signal");
    if (death->kind == DEATH_STOP_UNSTARTED)
        snprintf(buffer, size, "stopped by %s before any rank was started", by);
    else if (death->kind == DEATH_STOP_EARLY)
        snprintf(buffer, size, "stopped by %s before the ranks were started", by);
    else if (death->kind == DEATH_STOP_NOW)
        snprintf(buffer, size, "interrupted by %s: %s", by, death->text);
    else
        snprintf(buffer, size, "terminated immediately by a second signal");
}

const char *death_predicate(const struct death *death, char *buffer, size_t size)
{
    switch (death->kind) {
    case DEATH_NODE:
        describe_node(death, buffer, size);
        break;
    case DEATH_DAEMON_STOPPED:
        snprintf(
            buffer, size,
            "the daemon of node %s (pid %d) has been stopped by a signal for %.0f s: its ranks "
            "cannot be monitored (hint: kill -CONT %d)",
            death->host, death->pid, death->seconds, death->pid);
        break;
    case DEATH_DAEMON_SILENT:
        snprintf(
            buffer, size,
            "no heartbeat from the daemon of node %s for %.0f s: its ranks cannot be monitored",
            death->host, death->seconds);
        break;
    case DEATH_LAUNCHER:
        snprintf(buffer, size, "the launcher of the ranks on %s (pid %d) is gone", death->host,
                 death->pid);
        break;
    case DEATH_STOP_UNSTARTED:
    case DEATH_STOP_EARLY:
    case DEATH_STOP_NOW:
    case DEATH_STOP_TWICE:
        describe_stop(death, buffer, size);
        break;
    default:
        describe_rank(death, buffer, size);
        break;
    }
    return buffer;
}

static bool has_killed_hint(const struct death *death)
{
    return death->signal == SIGKILL && !death->after_sigterm &&
           (death->kind == DEATH_SIGNAL || death->kind == DEATH_NODE);
}

const char *death_sentence(const struct death *death, char *buffer, size_t size)
{
    struct str text = { 0 };
    char words[1300];

    if (death_is_of_rank(death))
        str_printf(&text, "rank %d on %s ", death->rank, death->host);
    str_add(&text, death_predicate(death, words, sizeof words));
    if (death->after_sigterm)
        str_add(&text, " after SIGTERM");
    if (death->last_seen)
        str_printf(&text, " (last seen: %s)", death->last_seen);
    if (death->gpu && *death->gpu)
        str_printf(&text, "%s%s", death->last_seen ? "; " : ": ", death->gpu);
    if (has_killed_hint(death))
        str_add(&text, killed_hint);
    snprintf(buffer, size, "%s", str_text(&text));
    str_release(&text);
    return buffer;
}

const char *death_notice(const struct death *death, char *buffer, size_t size)
{
    struct death brief = *death;
    char words[1300];

    if (brief.kind == DEATH_GPU_HANG)
        brief.kind = DEATH_GPU;
    if (brief.kind == DEATH_LAUNCHER)
        snprintf(buffer, size, "the launcher on %s is gone", brief.host);
    else if (death_is_of_rank(&brief))
        snprintf(buffer, size, "rank %d on %s %s", brief.rank, brief.host,
                 death_predicate(&brief, words, sizeof words));
    else
        death_predicate(&brief, buffer, size);
    return buffer;
}

const char *death_silent_node(const char *host, double seconds, char *buffer, size_t size)
{
    snprintf(buffer, size, "; no heartbeat from node %s for %.0f s", host, seconds);
    return buffer;
}

const char *death_consequences(int n_ranks, const char *host, char *buffer, size_t size)
{
    snprintf(buffer, size, "%d other rank%s%s%s terminated as a result", n_ranks, str_s(n_ranks),
             host ? " of " : "", host ? host : "");
    return buffer;
}
