/*
 * supervise.c - attempts at a job, until one ends well or it is no use
 *
 * Every attempt has new daemons, for a process can be a PMIx server but once. Signals stay blocked
 * all the time and are read in the attempts' loops; one that comes between two attempts is read in
 * the next one's.
 */
#include "launch/supervise.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/log.h"
#include "launch/fd_impl.h"
#include "launch/head/head_impl.h"
#include "launch/stop.h"

/* So many attempts in a row that end so soon and without a step are no use. */
enum { N_FUTILE_MAX = 3 };
static const double futile_seconds = 10;

struct supervisor {
    const struct supervise_options *options;
    struct head_console console;
    sigset_t old_mask;
    int was_subreaper;
    bool *is_gone; /* by host */
    int n_ranks, attempt, n_restarted, n_futile;
    int64_t best_step; /* of all attempts */
    char *const *argv;
};

/* ---- the process ---- */

static int block_signals(struct supervisor *supervisor, struct err *err)
{
    static const int signals[] = { SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGTSTP };
    sigset_t mask;

    sigemptyset(&mask);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        sigaddset(&mask, signals[i]);
    if (stop_hangup_is_ignored())
        sigdelset(&mask, SIGHUP);
    /* Who is started with SIGCHLD ignored cannot wait for children. */
    signal(SIGCHLD, SIG_DFL);
    supervisor->console.fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (supervisor->console.fd < 0)
        return err_set_errno(err, ERR_FAILED, "signalfd");
    /* Blocked as well: a reader of our output that is gone must not kill us before the ranks. */
    sigaddset(&mask, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &mask, &supervisor->old_mask);
    return 0;
}

static void unblock_signals(struct supervisor *supervisor)
{
    struct signalfd_siginfo info;

    while (read(supervisor->console.fd, &info, sizeof info) > 0)
        ;
    close(supervisor->console.fd);
    pthread_sigmask(SIG_SETMASK, &supervisor->old_mask, NULL);
}

/* A log for each rank and a link for each node; and a killed daemon's ranks shall come to us. */
static void prepare_process(struct supervisor *supervisor)
{
    const struct supervise_options *options = supervisor->options;

    fd_allow(options->n_ranks + (options->hosts ? 8 * options->hosts->n_hosts : 0));
    prctl(PR_GET_CHILD_SUBREAPER, &supervisor->was_subreaper);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
}

static void restore_process(const struct supervisor *supervisor)
{
    prctl(PR_SET_CHILD_SUBREAPER, supervisor->was_subreaper);
}

/* ---- whether and how to go on ---- */

/* How many ranks the machines that are left can have. */
static int count_possible(const struct supervisor *supervisor)
{
    const struct supervise_options *options = supervisor->options;
    int n = 0, *n_ranks_of;
    struct err ignored;

    if (!options->hosts)
        return options->n_ranks;
    n_ranks_of = calloc((size_t)options->hosts->n_hosts, sizeof *n_ranks_of);
    CHECK(n_ranks_of);
    /* Where a host's slots are not said, it takes what it was dealt at first. */
    bool dealt = !hosts_deal(options->hosts, options->n_ranks, n_ranks_of, &ignored);

    for (int i = 0; dealt && i < options->hosts->n_hosts; i++)
        if (!supervisor->is_gone[i]) {
            int n_slots = options->hosts->hosts[i].n_slots;

            n += n_slots ? n_slots : n_ranks_of[i];
        }
    free(n_ranks_of);
    return n < options->n_ranks ? n : options->n_ranks;
}

/* Choose the next attempt's ranks. Returns 0, or -1 if there is no way. */
static int choose_ranks(struct supervisor *supervisor, struct err *err)
{
    const struct supervise_options *options = supervisor->options;
    int n_possible = count_possible(supervisor), n = options->n_ranks;

    if (n_possible < 1)
        return err_set(err, ERR_PEER, "no host is left");
    if (options->again)
        n = options->again(options->context, n_possible, &supervisor->argv, err);
    else if (n_possible < n)
        return err_set(err, ERR_PEER,
                       "%d ranks are more than the %d for which the remaining hosts have room",
                       options->n_ranks, n_possible);
    if (n <= 0)
        return -1;
    CHECK(n <= n_possible);
    supervisor->n_ranks = n;
    return 0;
}

/* After an attempt that failed: whether it makes sense to go on, with words if not. */
static int shall_restart(struct supervisor *supervisor, const struct head_result *result)
{
    const struct supervise_options *options = supervisor->options;
    struct err err;

    /* Where the first attempt began is not known if it ended too soon for a second look. */
    if (result->has_advanced || result->seconds >= futile_seconds ||
        (supervisor->attempt && result->best_step > supervisor->best_step))
        supervisor->n_futile = 0;
    else
        supervisor->n_futile++;
    if (result->best_step > supervisor->best_step)
        supervisor->best_step = result->best_step;
    if (!result->may_restart || options->n_restarts <= 0 || supervisor->console.asked_to_stop)
        return 0;
    if (supervisor->n_restarted >= options->n_restarts) {
        log_error("no restart: all %d of %d restarts are used", supervisor->n_restarted,
                  options->n_restarts);
        return 0;
    }
    if (supervisor->n_futile >= N_FUTILE_MAX) {
        log_error(
            "no restart: %d times in a row the job failed within %.0f s without completing a step",
            supervisor->n_futile, futile_seconds);
        return 0;
    }
    if (choose_ranks(supervisor, &err)) {
        log_error("no restart: %s", err.text);
        return 0;
    }
    return 1;
}

/* ---- attempts ---- */

static int run_attempt(struct supervisor *supervisor, struct head_result *result, struct err *err)
{
    return head_run(supervisor->options, &supervisor->console, supervisor->attempt,
                    supervisor->n_ranks, supervisor->argv, supervisor->is_gone, result, err);
}

static int count_gone(const struct supervisor *supervisor)
{
    int n = 0;

    for (int i = 0; supervisor->options->hosts && i < supervisor->options->hosts->n_hosts; i++)
        n += supervisor->is_gone[i];
    return n;
}

/* An attempt; hosts that cannot be reached any more are left out of a restart. */
static int run_on_what_is_left(struct supervisor *supervisor, struct head_result *result,
                               struct err *err)
{
    for (;;) {
        int n_gone = count_gone(supervisor);

        if (!run_attempt(supervisor, result, err))
            return 0;
        if (!supervisor->attempt || count_gone(supervisor) == n_gone ||
            supervisor->console.asked_to_stop)
            return -1;
        log_warn("%s: continuing without it", err->text);
        if (choose_ranks(supervisor, err))
            return -1;
    }
}

static int run_attempts(struct supervisor *supervisor, struct err *err)
{
    struct head_result result;

    for (;;) {
        if (run_on_what_is_left(supervisor, &result, err))
            return -1;
        int n_ranks = supervisor->n_ranks;
        if (!shall_restart(supervisor, &result))
            return result.status;
        supervisor->attempt++;
        supervisor->n_restarted++;
        if (supervisor->n_ranks != n_ranks)
            log_warn("restarting (%d of %d) from the newest checkpoint, with %d rank%s",
                     supervisor->n_restarted, supervisor->options->n_restarts, supervisor->n_ranks,
                     str_s(supervisor->n_ranks));
        else
            log_warn("restarting (%d of %d) from the newest checkpoint", supervisor->n_restarted,
                     supervisor->options->n_restarts);
    }
}

int supervise(const struct supervise_options *options, struct err *err)
{
    struct supervisor supervisor = {
        .options = options, .n_ranks = options->n_ranks, .argv = options->argv, .best_step = -1
    };

    CHECK(options->n_ranks > 0);
    if (block_signals(&supervisor, err))
        return -1;
    if (options->hosts)
        supervisor.is_gone = calloc((size_t)options->hosts->n_hosts, sizeof(bool));
    CHECK(!options->hosts || supervisor.is_gone);
    prepare_process(&supervisor);
    int status = screen_open(&supervisor.console.screen, err);
    if (!status)
        status = run_attempts(&supervisor, err);
    screen_close(supervisor.console.screen, supervisor.console.fd);
    restore_process(&supervisor);
    unblock_signals(&supervisor);
    free(supervisor.is_gone);
    return status;
}
