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
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/log.h"
#include "launch/fd_impl.h"
#include "launch/head/head_impl.h"
#include "launch/host_pool_impl.h"
#include "launch/stop.h"

/* So many attempts in a row that end so soon and without a step are no use. */
enum { N_FUTILE_MAX = 3 };
static const double futile_seconds = 10;

struct supervisor {
    const struct supervise_options *options;
    struct head_console console;
    sigset_t old_mask;
    int was_subreaper;
    struct host_pool pool;
    char machine[256]; /* its host, where there is no list */
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

/* A log for each rank and a link for each node. */
static void allow_files(const struct supervisor *supervisor)
{
    fd_allow(supervisor->n_ranks +
             (supervisor->options->hosts ? 8 * supervisor->pool.list.n_hosts : 0));
}

/* A killed daemon's ranks shall come to us. */
static void prepare_process(struct supervisor *supervisor)
{
    prctl(PR_GET_CHILD_SUBREAPER, &supervisor->was_subreaper);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
}

static void restore_process(const struct supervisor *supervisor)
{
    prctl(PR_SET_CHILD_SUBREAPER, supervisor->was_subreaper);
}

/* ---- whether and how to go on ---- */

static int open_pool(struct supervisor *supervisor, struct err *err)
{
    const struct supervise_options *options = supervisor->options;
    const char *text = options->hosts_text;
    struct host here = { .name = supervisor->machine };
    struct host_list list = { .n_hosts = 1, .hosts = &here };

    gethostname(supervisor->machine, sizeof supervisor->machine - 1);
    return options->hosts ? host_pool_open(&supervisor->pool, options, options->hosts,
                                           text && strchr(text, '/') ? text : "--hosts", err)
                          : host_pool_open(&supervisor->pool, options, &list, NULL, err);
}

/* The list as it is now. One that cannot be read leaves it as it was. */
static void read_hosts(struct supervisor *supervisor)
{
    struct host_pool *pool = &supervisor->pool;
    struct host_list list;
    struct err err;

    if (!supervisor->options->hosts_text)
        return;
    if (hosts_read(&list, supervisor->options->hosts_text, &pool->arena, &err)) {
        log_warn("%s; the hosts stay as they were", err.text);
        return;
    }
    list.build = pool->list.build;
    host_pool_list(pool, &list);
}

/* Choose the next attempt's hosts and ranks. Returns 0, or -1 if there is no way. */
static int choose_ranks(struct supervisor *supervisor, struct err *err)
{
    const struct supervise_options *options = supervisor->options;
    int n_possible = host_pool_choose(&supervisor->pool, supervisor->attempt, err);
    int n = options->n_ranks;

    if (n_possible < 1)
        return -1;
    if (options->again && (supervisor->attempt || n_possible < n))
        n = options->again(options->context, supervisor->attempt, n_possible, &supervisor->argv,
                           err);
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
    supervisor->attempt++;
    read_hosts(supervisor);
    if (choose_ranks(supervisor, &err)) {
        log_error("no restart: %s", err.text);
        return 0;
    }
    return 1;
}

/* ---- attempts ---- */

static int run_attempt(struct supervisor *supervisor, struct head_result *result, struct err *err)
{
    struct supervise_options options = *supervisor->options;

    if (options.hosts)
        options.hosts = &supervisor->pool.list; /* as it is now */
    allow_files(supervisor);
    return head_run(&options, &supervisor->console, supervisor->attempt, supervisor->n_ranks,
                    supervisor->argv, supervisor->pool.states, result, err);
}

/*
 * An attempt. Hosts that cannot be reached are left out of it: at a restart, or if spares replace
 * them.
 */
static int run_on_what_is_left(struct supervisor *supervisor, struct head_result *result,
                               struct err *err)
{
    for (;;) {
        struct err reason;

        if (!run_attempt(supervisor, result, err)) {
            host_pool_note(&supervisor->pool, supervisor->attempt + (result->has_advanced ? 1 : 2));
            return 0;
        }
        bool is_start = !supervisor->attempt;
        if (!host_pool_note(&supervisor->pool, supervisor->attempt + 1) ||
            (is_start && !supervisor->options->n_spares) || supervisor->console.asked_to_stop)
            return -1;
        log_warn("%s: continuing without it", err->text);
        if (choose_ranks(supervisor, &reason))
            return err_set(err, ERR_PEER, "%s", reason.text);
        if (is_start && !host_pool_is_whole(&supervisor->pool))
            return -1;
    }
}

static void record(const struct supervisor *supervisor, const char *event,
                   const struct head_trouble *trouble)
{
    const struct supervise_options *options = supervisor->options;

    if (options->on_trouble && trouble->at > 0)
        options->on_trouble(options->context, event, trouble->step, trouble->at, trouble->text);
}

static int run_attempts(struct supervisor *supervisor, struct err *err)
{
    struct head_result result;

    for (;;) {
        if (run_on_what_is_left(supervisor, &result, err))
            return -1;
        record(supervisor, "hung", &result.hung);
        record(supervisor, "died", &result.died);
        int n_ranks = supervisor->n_ranks;
        if (!shall_restart(supervisor, &result))
            return result.status;
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
    if (open_pool(&supervisor, err) || block_signals(&supervisor, err)) {
        host_pool_close(&supervisor.pool);
        return -1;
    }
    prepare_process(&supervisor);
    int status = choose_ranks(&supervisor, err);
    if (!status)
        status = screen_open(&supervisor.console.screen, err);
    if (!status)
        status = run_attempts(&supervisor, err);
    screen_close(supervisor.console.screen, supervisor.console.fd);
    restore_process(&supervisor);
    unblock_signals(&supervisor);
    host_pool_close(&supervisor.pool);
    return status;
}
