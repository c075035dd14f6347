/*
 * watcher_process.c - the loop of a node's watcher
 *
 * The signals by which launchers end or checkpoint a job are not for the watcher. SIGTERM is
 * recorded: deaths after it may be its effect.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "launch/fd_impl.h"
#include "launch/job_folder_impl.h"
#include "launch/watch/watcher_process_impl.h"

static const double look_seconds = 0.25;
static const double soon_seconds = 0.01; /* looks while ranks leave */
static const double leave_seconds = 2;   /* for so long after a rank has left */
static const double kill_seconds = 0.3;  /* from SIGUSR2 to SIGKILL */
static const double bound_seconds = 1;   /* between looks at the logs' sizes */
static const double gpu_seconds = 1;     /* between looks at the ranks' GPUs */

/* ---- the ranks ---- */

/* Without a pidfd (an old kernel, no descriptors left) a rank is watched by its number. */
static void adopt(struct watcher *w, int i, double now)
{
    struct progress_slot *slot = &w->page->places[i].slot;
    pid_t pid = atomic_load(&slot->pid);

    w->ranks[i] = (struct hang_rank){ .world_rank = atomic_load(&slot->world_rank),
                                      .host = w->host,
                                      .pid = pid,
                                      .running = true,
                                      .slot = slot };
    w->pidfds[i] = pidfd_open(pid, 0);
    w->hang.since[i] = now;
    w->hang.n_ranks = w->n = i + 1;
}

static void adopt_new(struct watcher *w, double now)
{
    uint32_t claimed = atomic_load(&w->page->n_claimed) & ~WATCH_CLOSED;

    /* A slot whose pid is not written yet is taken in the next turn. */
    while (w->n < (int)claimed && atomic_load(&w->page->places[w->n].slot.pid))
        adopt(w, w->n, now);
}

static void signal_ranks(struct watcher *w, int number)
{
    for (int i = 0; i < w->n; i++)
        if (w->ranks[i].running && w->pidfds[i] >= 0)
            pidfd_send_signal(w->pidfds[i], number, NULL, 0);
        else if (w->ranks[i].running)
            kill(w->ranks[i].pid, number);
}

void watcher_begin_ending(struct watcher *w, double now)
{
    if (w->phase != WATCHING)
        return;
    w->phase = ENDING;
    w->ending_since = now;
    signal_ranks(w, SIGUSR2);
    signal_ranks(w, SIGCONT); /* so that a stopped rank handles it */
}

/* ---- the loop ---- */

static void take_signals(struct watcher *w)
{
    struct signalfd_siginfo info;

    while (read(w->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
        w->terminated |= info.ssi_signo == SIGTERM;
    /*
     * A launcher sends SIGKILL soon after SIGTERM, to the group, which the watcher has to outlive.
     */
    if (w->terminated)
        setpgid(0, 0);
}

/* Ranks that print nothing do not notice the end of their launcher: the watcher terminates them. */
static void look_for_launcher(struct watcher *w, double now)
{
    struct pollfd poll_fd = { .fd = w->launcher_fd, .events = POLLIN };
    char text[256];

    if (w->launcher_fd < 0 || poll(&poll_fd, 1, 0) <= 0)
        return;
    close(w->launcher_fd);
    w->launcher_fd = -1;
    if (w->phase != WATCHING || w->end_at > 0)
        return;
    /*
     * In order a launcher ends after its ranks; if they have all left, there is nothing to report.
     */
    for (int i = 0; i < w->n; i++)
        if (w->ranks[i].running && atomic_load(&w->ranks[i].slot->end) == PROGRESS_RUNS) {
            struct death death = { .kind = DEATH_LAUNCHER,
                                   .host = w->host,
                                   .pid = (int)w->start->launcher,
                                   .after_sigterm = w->terminated };

            watcher_post_notice(w, &death);
            watcher_record_death(w, &death);
            watcher_open_log(w);
            log_error("%s: terminating them", death_sentence(&death, text, sizeof text));
            w->n_told++;
            break;
        }
    w->end_at = now + WATCHER_GRACE_SECONDS;
}

static void take_wakes(struct watcher *w, double now)
{
    char bytes[64];
    ssize_t n = w->wake_fd < 0 ? -1 : read(w->wake_fd, bytes, sizeof bytes);

    if (n > 0)
        w->left_at = now;
    if (n == 0) {
        close(w->wake_fd);
        w->wake_fd = -1;
    }
}

static void wait_for_events(struct watcher *w, double now)
{
    double due = look_seconds;
    int n = 0;

    w->polls[n++] = (struct pollfd){ .fd = w->signal_fd, .events = POLLIN };
    w->polls[n++] = (struct pollfd){ .fd = w->wake_fd, .events = POLLIN };
    w->polls[n++] = (struct pollfd){ .fd = w->launcher_fd, .events = POLLIN };
    for (int i = 0; i < w->n; i++)
        w->polls[n++] = (struct pollfd){ .fd = w->pidfds[i], .events = POLLIN };
    if (w->left_at > 0 && now - w->left_at < leave_seconds)
        due = soon_seconds;
    if (w->phase == WATCHING && w->end_at > 0 && w->end_at - now < due)
        due = w->end_at - now;
    if (w->phase == ENDING && w->ending_since + kill_seconds - now < due)
        due = w->ending_since + kill_seconds - now;
    poll(w->polls, (nfds_t)n, due <= 0 ? 0 : (int)(due * 1000) + 1);
}

/*
 * All known ranks have ended or left: close the page, unless another rank has just claimed a slot.
 */
static int close_page(struct watcher *w)
{
    uint32_t n = (uint32_t)w->n;

    return atomic_compare_exchange_strong(&w->page->n_claimed, &n, n | WATCH_CLOSED);
}

static void loop(struct watcher *w)
{
    bool watches = w->start->options.hang_seconds > 0 || w->start->options.hang_abort_seconds > 0;
    double next_look = 0, next_bound = 0, next_gpus = 0;

    for (;;) {
        double now = clock_seconds();

        take_signals(w);
        take_wakes(w, now);
        adopt_new(w, now);
        watcher_open_notices(w);
        watcher_read_notices(w, now, 0);
        look_for_launcher(w, now); /* before its ranks, which may end as a result */
        if (!watcher_take_ends(w, now) && close_page(w))
            return;
        if (w->phase == WATCHING && w->end_at > 0 && now >= w->end_at)
            watcher_begin_ending(w, now);
        if (w->phase == ENDING && now >= w->ending_since + kill_seconds) {
            w->phase = KILLED;
            signal_ranks(w, SIGKILL);
        }
        if (watches && w->phase == WATCHING && now >= next_look) {
            watcher_watch_hangs(w, now);
            next_look = now + look_seconds * 0.9;
        }
        if (now >= next_gpus) {
            watcher_look_at_gpus(w, now);
            watcher_put_status(w, now);
            next_gpus = now + gpu_seconds;
        }
        if (now >= next_bound) {
            watcher_bound_logs(w);
            next_bound = now + bound_seconds;
        }
        wait_for_events(w, now);
    }
}

/* ---- start ---- */

/* All descriptors but stderr and ours: what the launcher gave the rank is the rank's. */
static void close_others(const struct watcher_start *start)
{
    int low = start->lock_fd < start->wake_fd ? start->lock_fd : start->wake_fd;
    int high = start->lock_fd < start->wake_fd ? start->wake_fd : start->lock_fd;
    int null = open("/dev/null", O_RDWR);

    if (null >= 0) {
        dup2(null, STDIN_FILENO);
        dup2(null, STDOUT_FILENO);
    }
    if (low > 3)
        close_range(3, (unsigned)low - 1, 0);
    if (high > low + 1)
        close_range((unsigned)low + 1, (unsigned)high - 1, 0);
    close_range((unsigned)high + 1, ~0u, 0);
}

static void take_over(struct watcher *w)
{
    static const int numbers[] = { SIGTERM, SIGINT,  SIGHUP,  SIGUSR1, SIGUSR2,
                                   SIGQUIT, SIGALRM, SIGPIPE, SIGTSTP };
    sigset_t mask;

    prctl(PR_SET_NAME, "lmtrain-watch");
    prctl(PR_SET_PDEATHSIG, 0);
    sigemptyset(&mask);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        signal(numbers[i], SIG_DFL);
        sigaddset(&mask, numbers[i]);
    }
    sigprocmask(SIG_SETMASK, &mask, NULL);
    w->signal_fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    fcntl(w->wake_fd, F_SETFL, O_NONBLOCK);
    gethostname(w->host, sizeof w->host - 1);
}

/*
 * What mpirun, or its daemon on this node, leaves if it was killed: its session folder, whose last
 * part is pid.PROCESS. In good order it removes that itself.
 */
static void remove_session(const struct watcher *w)
{
    const char *path = getenv("OMPI_MCA_orte_jobfam_session_dir");
    const char *slash = path ? strrchr(path, '/') : NULL;
    char name[32], top[4096];
    struct stat stat;
    struct err ignored;

    snprintf(name, sizeof name, "/pid.%d", (int)w->start->launcher);
    if (!slash || strcmp(slash, name) != 0 || !kill(w->start->launcher, 0) || errno != ESRCH)
        return;
    if (lstat(path, &stat) || !S_ISDIR(stat.st_mode) || stat.st_uid != geteuid())
        return;
    file_remove_tree(path, &ignored);
    snprintf(top, sizeof top, "%.*s", (int)(slash - path), path);
    rmdir(top); /* if it was the last */
}

void watcher_run(const struct watcher_start *start)
{
    struct watcher *w = calloc(1, sizeof *w);
    char text[128];

    CHECK(w);
    w->start = start;
    w->page = start->page;
    w->wake_fd = start->wake_fd;
    close_others(start);
    take_over(w);
    fd_allow(WATCH_RANKS_MAX);
    w->launcher_fd = start->launcher > 1 ? pidfd_open(start->launcher, 0) : -1;
    for (int i = 0; i < WATCH_RANKS_MAX; i++)
        w->pidfds[i] = -1;
    hang_watch_init(&w->hang, WATCH_RANKS_MAX, w->ranks, clock_seconds());
    w->hang.n_ranks = 0;
    loop(w);
    if (w->n_told && w->n_more)
        log_error("%s", death_consequences(w->n_more, w->host, text, sizeof text));
    watcher_put_status(w, clock_seconds());
    status_file_close(w->status, WATCHER_NOTICE_SECONDS);
    if (w->notices)
        death_notices_flush(w->notices, WATCHER_NOTICE_SECONDS);
    watcher_flush_record(w, 4 * WATCHER_NOTICE_SECONDS); /* it waits for notices twice */
    watch_page_unlink(start->path, w->page);
    job_folder_sweep(job_folder_parent());
    remove_session(w);
    _exit(0);
}
