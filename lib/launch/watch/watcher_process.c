/*
 * watcher_process.c - the loop of a node's watcher
 *
 * The ranks are no children of ours: that they end is told by pidfds, how they end by the mark that
 * launch_leave and launch_abort make in their slots; by which signal, by their corpse, if we see it
 * before the launcher buries it (mpirun and srun tell, too). The signals by which
 * launchers end or checkpoint a job are not for us; that SIGTERM came is worth knowing, as deaths
 * after it may be its work.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/log_file.h"
#include "base/str.h"
#include "launch/fd_impl.h"
#include "launch/job_folder_impl.h"
#include "launch/node/rank_process_impl.h"
#include "launch/proc_impl.h"
#include "launch/watch/death_notices_impl.h"
#include "launch/watch/hang_impl.h"
#include "launch/watch/rank_gpu_impl.h"
#include "launch/watch/watcher_impl.h"

enum { TAIL_BYTES = 1024 };

static const double look_seconds = 0.25;
static const double soon_seconds = 0.01;  /* looks while ranks leave */
static const double leave_seconds = 2;    /* for so long after the last news of it */
static const double grace_seconds = 0.5;  /* from a death to the end of the others */
static const double kill_seconds = 0.3;   /* from SIGUSR2 to SIGKILL */
static const double elsewhere_factor = 2; /* for whom other nodes keep waiting */
static const double bound_seconds = 1;    /* between looks at the logs' sizes */
static const double notice_seconds = 0.2; /* for the log folder to take or give news */
static const double gpu_seconds = 1;      /* between looks at the ranks' GPUs */

struct watcher {
    const struct watcher_start *start;
    struct watch_page *page;
    char host[64];
    int signal_fd;
    int wake_fd;     /* -1 once the first rank is gone */
    int launcher_fd; /* readable once the launcher has ended; -1: that is known, or cannot be */
    int n;           /* ranks seen */
    struct hang_rank ranks[WATCH_RANKS_MAX];
    int pidfds[WATCH_RANKS_MAX];
    struct pollfd polls[WATCH_RANKS_MAX + 3];
    struct hang_watch hang;
    int hang_reported;
    int has_log;        /* or could not have one */
    int terminated;     /* SIGTERM came */
    int n_told, n_more; /* deaths */
    double end_at;      /* begin to end the ranks; 0: not wanted */
    enum { WATCHING, ENDING, KILLED } phase;
    double ending_since;
    double left_at;                   /* the last time that a rank left */
    struct death_notices *notices;    /* with other nodes; NULL: there are none, or not yet */
    int has_notices;                  /* or could not have */
    struct gpu_watch *gpus;           /* NULL: no rank has a GPU, so far */
    int gpu_is_told[WATCH_RANKS_MAX]; /* that it is broken */
    uint64_t beats;                   /* of all ranks, at the last look at GPUs */
    double still_since;               /* when they last changed, or a GPU broke */
};

/* ---- the ranks ---- */

/* Without a pidfd (an old kernel, no descriptors left) a rank is watched by its number. */
static void adopt(struct watcher *w, int i, double now)
{
    struct progress_slot *slot = &w->page->places[i].slot;
    pid_t pid = atomic_load(&slot->pid);

    w->ranks[i] = (struct hang_rank){ .world_rank = atomic_load(&slot->world_rank),
                                      .host = w->host,
                                      .pid = pid,
                                      .running = 1,
                                      .slot = slot };
    w->pidfds[i] = pidfd_open(pid, 0);
    w->hang.since[i] = now;
    w->hang.n_ranks = w->n = i + 1;
}

static void adopt_new(struct watcher *w, double now)
{
    uint32_t claimed = atomic_load(&w->page->n_claimed) & ~WATCH_CLOSED;

    /* A slot whose claimant has not said yet who it is comes next time. */
    while (w->n < (int)claimed && atomic_load(&w->page->places[w->n].slot.pid))
        adopt(w, w->n, now);
}

static int has_ended(const struct watcher *w, int i)
{
    struct pollfd poll_fd = { .fd = w->pidfds[i], .events = POLLIN };
    struct proc_stat stat;

    if (poll_fd.fd >= 0)
        return poll(&poll_fd, 1, 0) > 0;
    return proc_stat(w->ranks[i].pid, &stat) || proc_is_dead(&stat);
}

static void signal_ranks(struct watcher *w, int number)
{
    for (int i = 0; i < w->n; i++)
        if (w->ranks[i].running && w->pidfds[i] >= 0)
            pidfd_send_signal(w->pidfds[i], number, NULL, 0);
        else if (w->ranks[i].running)
            kill(w->ranks[i].pid, number);
}

static void begin_ending(struct watcher *w, double now)
{
    if (w->phase != WATCHING)
        return;
    w->phase = ENDING;
    w->ending_since = now;
    signal_ranks(w, SIGUSR2);
    signal_ranks(w, SIGCONT); /* so that a stopped one hears it */
}

/* Once the ranks know that there are other nodes. */
static void open_notices(struct watcher *w)
{
    uint64_t id = atomic_load(&w->page->launch_id);

    if (w->has_notices || !id || !w->start->options.log_folder)
        return;
    w->has_notices = 1;
    w->notices = death_notices_open(w->start->options.log_folder, id);
}

/* Ours are about to end: those who wait for them on other nodes shall, too. */
static void post_notice(const struct watcher *w, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void post_notice(const struct watcher *w, const char *format, ...)
{
    char text[256];
    va_list arguments;

    if (!w->notices || w->phase != WATCHING || w->end_at > 0)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    death_notices_post(w->notices, text);
}

/* ---- deaths ---- */

/* The last lines of a rank's log, as far as they are this job's; "" if it has none. */
static void read_tail(const struct watcher *w, int i, char text[TAIL_BYTES + 1])
{
    off_t begin = atomic_load(&w->page->log_starts[i]), from = begin;
    char path[4096];
    struct stat stat;

    text[0] = '\0';
    if (begin < 0)
        return;
    snprintf(path, sizeof path, "%s/rank-%d.log", w->start->options.log_folder,
             w->ranks[i].world_rank);
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return;
    if (!fstat(fd, &stat) && stat.st_size - begin > TAIL_BYTES)
        from = stat.st_size - TAIL_BYTES;
    ssize_t n = pread(fd, text, TAIL_BYTES, from);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    char *newline = from > begin ? strchr(text, '\n') : NULL;
    if (newline) /* the first line is not whole */
        memmove(text, newline + 1, strlen(newline + 1) + 1);
    while (text[0] && text[strlen(text) - 1] == '\n')
        text[strlen(text) - 1] = '\0';
}

/* Ranks append to their logs through descriptors of their own. */
static void bound_logs(struct watcher *w)
{
    char path[4096];

    for (int i = 0; i < w->n && w->start->options.log_folder; i++) {
        if (atomic_load(&w->page->log_starts[i]) < 0)
            continue;
        snprintf(path, sizeof path, "%s/rank-%d.log", w->start->options.log_folder,
                 w->ranks[i].world_rank);
        if (log_file_bound(path))
            atomic_store(&w->page->log_starts[i], 0);
    }
}

/* From now on what we say is also in a file: the screen is the launcher's, which may be gone. */
static void open_log(struct watcher *w)
{
    char path[4096];
    struct err ignored;
    int length =
        snprintf(path, sizeof path, "%s/watcher-%s.log", w->start->options.log_folder, w->host);

    if (w->has_log || !w->start->options.log_folder || length >= (int)sizeof path)
        return;
    w->has_log = 1;
    if (file_make_folder(w->start->options.log_folder, &ignored))
        return;
    int log = file_open_write(path, O_WRONLY | O_APPEND, &ignored);
    int screen = log < 0 ? -1 : fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    if (screen >= 0) {
        dup2(log, STDERR_FILENO);
        log_set_screen(screen, "");
    }
    if (log >= 0)
        close(log);
}

/* How a rank that has just ended did, as "was killed by signal 9 (Killed)", if it can be seen. */
static const char *name_end(pid_t pid, char *buffer, size_t size)
{
    struct proc_stat stat;
    int status = !proc_stat(pid, &stat) && stat.state == 'Z' ? stat.wait_status : 0;

    if (WIFSIGNALED(status))
        snprintf(buffer, size, "was killed by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else if (WEXITSTATUS(status))
        snprintf(buffer, size, "exited with status %d", WEXITSTATUS(status));
    else
        snprintf(buffer, size, "died");
    return buffer;
}

static void read_notices(struct watcher *w, double now, double wait_seconds)
{
    const char *text;

    if (!w->notices || w->phase != WATCHING || w->end_at > 0)
        return;
    text = death_notices_first(w->notices, wait_seconds);
    if (!text)
        return;
    setpgid(0, 0);
    open_log(w);
    log_error("%s: terminating the ranks of %s", text, w->host);
    w->n_told++;
    begin_ending(w, now);
}

static void tell_death(struct watcher *w, int i)
{
    char words[PROGRESS_TEXT_BYTES + 96], tail[TAIL_BYTES + 1], end[96], gpu[512];

    name_end(w->ranks[i].pid, end, sizeof end); /* first, for it vanishes */
    rank_gpu_look(&w->page->places[i].slot, &w->gpus);
    read_notices(w, clock_seconds(), notice_seconds); /* it may be a consequence */
    if (w->phase != WATCHING || w->end_at > 0) {
        w->n_more++; /* a consequence */
        return;
    }
    setpgid(0, 0); /* launchers now kill the first rank's group; we want to see it out */
    post_notice(w, "rank %d on %s %s", w->ranks[i].world_rank, w->host, end);
    read_tail(w, i, tail);
    open_log(w);
    rank_gpu_death(w->ranks[i].slot, gpu, sizeof gpu);
    log_error("rank %d on %s %s%s (last seen: %s)%s%s%s%s", w->ranks[i].world_rank, w->host, end,
              w->terminated ? " after SIGTERM" : "",
              progress_describe(w->ranks[i].slot, words, sizeof words), *gpu ? "; " : "", gpu,
              tail[0] ? "; its last lines:\n" : "", tail);
    w->n_told++;
}

/* A rank has said itself why it ends; what its GPU has to do with it, it does not know. */
static void tell_surrender(struct watcher *w, int i)
{
    char gpu[512];

    if (w->phase != WATCHING || w->end_at > 0)
        return;
    post_notice(w, "rank %d on %s failed", w->ranks[i].world_rank, w->host);
    rank_gpu_look_at_death(&w->page->places[i].slot, &w->gpus);
    if (!*rank_gpu_death(w->ranks[i].slot, gpu, sizeof gpu))
        return;
    open_log(w);
    log_error("rank %d on %s failed: %s", w->ranks[i].world_rank, w->host, gpu);
}

/* See who has ended, and how. Returns how many still run and have not left. */
static int take_ends(struct watcher *w, double now)
{
    int n_here = 0;

    for (int i = 0; i < w->n; i++) {
        struct hang_rank *rank = &w->ranks[i];
        int end = atomic_load(&rank->slot->end);

        if (rank->running && has_ended(w, i)) {
            /* The mark was made before the end was: look again. */
            end = atomic_load(&rank->slot->end);
            rank->running = 0;
            if (w->pidfds[i] >= 0)
                close(w->pidfds[i]);
            w->pidfds[i] = -1;
            if (end == PROGRESS_RUNS)
                tell_death(w, i);
            else if (end != PROGRESS_LEFT)
                tell_surrender(w, i);
            if (end != PROGRESS_LEFT && w->end_at <= 0)
                w->end_at = now + grace_seconds;
        }
        n_here += rank->running && end != PROGRESS_LEFT;
    }
    return n_here;
}

/* ---- hangs ---- */

static void look_for_stops(struct watcher *w)
{
    for (int i = 0; i < w->n; i++) {
        struct rank_process process = { .pid = w->ranks[i].pid, .running = w->ranks[i].running };

        w->ranks[i].stopped = rank_process_state(&process) == 'T';
    }
}

static void report_hang(struct watcher *w, double still, double now)
{
    struct str text = { 0 };

    hang_watch_report(&w->hang, now, &text);
    open_log(w);
    log_warn("no progress on %s for %.0f s:\n%.*s", w->host, still,
             text.length ? (int)text.length - 1 : 0, str_text(&text));
    str_release(&text);
    w->hang_reported = 1;
}

static void watch_hangs(struct watcher *w, double now)
{
    const struct watcher_options *options = &w->start->options;
    double limit = options->hang_abort_seconds;
    int culprit;

    look_for_stops(w);
    w->hang.world_size = (int)atomic_load(&w->page->world_size);
    double still = hang_watch_look(&w->hang, now, &culprit);
    if (options->hang_seconds <= 0 || still < options->hang_seconds)
        w->hang_reported = 0;
    else if (!w->hang_reported)
        report_hang(w, still, now);
    if (limit <= 0 || culprit < 0)
        return;
    /* Who waits for other nodes may wait for one at work: its own watcher knows. */
    if (atomic_load(&w->ranks[culprit].slot->waits) && !w->ranks[culprit].stopped &&
        w->hang.world_size > w->n && !w->terminated)
        limit *= elsewhere_factor;
    if (still >= limit) {
        open_log(w);
        log_error("rank %d on %s made no progress for %.0f s: terminating the ranks of %s",
                  w->ranks[culprit].world_rank, w->host, still, w->host);
        post_notice(w, "rank %d on %s made no progress for %.0f s", w->ranks[culprit].world_rank,
                    w->host, still);
        begin_ending(w, now);
    }
}

/* ---- GPUs ---- */

/* But for those without their GPU, which could do nothing else, either. */
static int some_are_stopped(struct watcher *w)
{
    look_for_stops(w);
    for (int i = 0; i < w->n; i++)
        if (w->ranks[i].running && w->ranks[i].stopped && !rank_gpu_is_broken(w->ranks[i].slot))
            return 1;
    return 0;
}

/* Where no rank moves, one whose GPU is broken hangs in the driver; not where one is stopped by a signal. */
static void end_without_gpu(struct watcher *w, int i, double now)
{
    char gpu[512];

    if (now < w->still_since + RANK_GPU_GRACE_SECONDS || w->end_at > 0)
        return;
    if (some_are_stopped(w)) {
        w->still_since = now;
        return;
    }
    open_log(w);
    log_error("rank %d on %s lost its GPU and does not exit: %s: terminating the ranks of %s",
              w->ranks[i].world_rank, w->host, rank_gpu_death(w->ranks[i].slot, gpu, sizeof gpu),
              w->host);
    post_notice(w, "rank %d on %s lost its GPU", w->ranks[i].world_rank, w->host);
    w->n_told++;
    begin_ending(w, now);
}

static void tell_broken_gpu(struct watcher *w, int i, double now)
{
    char gpu[512];

    if (w->gpu_is_told[i])
        return;
    w->gpu_is_told[i] = 1;
    w->still_since = now; /* what stood before may have had its reason: a long op, a checkpoint */
    open_log(w);
    log_warn("rank %d on %s: %s", w->ranks[i].world_rank, w->host,
             rank_gpu_death(w->ranks[i].slot, gpu, sizeof gpu));
}

static void look_at_gpus(struct watcher *w, double now)
{
    uint64_t beats = 0;

    for (int i = 0; i < w->n; i++) {
        beats += atomic_load(&w->ranks[i].slot->beat);
        if (w->ranks[i].running)
            rank_gpu_look(&w->page->places[i].slot, &w->gpus);
    }
    if (beats != w->beats)
        w->still_since = now;
    w->beats = beats;
    for (int i = 0; i < w->n && w->phase == WATCHING; i++)
        if (w->ranks[i].running && rank_gpu_is_broken(w->ranks[i].slot)) {
            tell_broken_gpu(w, i, now);
            end_without_gpu(w, i, now);
        }
}

/* ---- the loop ---- */

static void take_signals(struct watcher *w)
{
    struct signalfd_siginfo info;

    while (read(w->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
        w->terminated |= info.ssi_signo == SIGTERM;
    /* What a launcher has told to end it kills soon, by the group; we want to see it out. */
    if (w->terminated)
        setpgid(0, 0);
}

/* Nobody else tells ranks that print nothing: they end when they miss it, perhaps never. */
static void look_for_launcher(struct watcher *w, double now)
{
    struct pollfd poll_fd = { .fd = w->launcher_fd, .events = POLLIN };

    if (w->launcher_fd < 0 || poll(&poll_fd, 1, 0) <= 0)
        return;
    close(w->launcher_fd);
    w->launcher_fd = -1;
    if (w->phase != WATCHING || w->end_at > 0)
        return;
    /* In good order it ends after its ranks; if they have all left, there is nothing to say. */
    for (int i = 0; i < w->n; i++)
        if (w->ranks[i].running && atomic_load(&w->ranks[i].slot->end) == PROGRESS_RUNS) {
            post_notice(w, "the launcher on %s is gone", w->host);
            open_log(w);
            log_error("the launcher of the ranks on %s (pid %d) is gone%s: terminating them",
                      w->host, (int)w->start->launcher, w->terminated ? " after SIGTERM" : "");
            w->n_told++;
            break;
        }
    w->end_at = now + grace_seconds;
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

/* All that came have ended or left: let nobody come any more, unless somebody just has. */
static int close_page(struct watcher *w)
{
    uint32_t n = (uint32_t)w->n;

    return atomic_compare_exchange_strong(&w->page->n_claimed, &n, n | WATCH_CLOSED);
}

static void loop(struct watcher *w)
{
    int watches = w->start->options.hang_seconds > 0 || w->start->options.hang_abort_seconds > 0;
    double next_look = 0, next_bound = 0, next_gpus = 0;

    for (;;) {
        double now = clock_seconds();

        take_signals(w);
        take_wakes(w, now);
        adopt_new(w, now);
        open_notices(w);
        read_notices(w, now, 0);
        look_for_launcher(w, now); /* before its ranks, who may end of it */
        if (!take_ends(w, now) && close_page(w))
            return;
        if (w->phase == WATCHING && w->end_at > 0 && now >= w->end_at)
            begin_ending(w, now);
        if (w->phase == ENDING && now >= w->ending_since + kill_seconds) {
            w->phase = KILLED;
            signal_ranks(w, SIGKILL);
        }
        if (watches && w->phase == WATCHING && now >= next_look) {
            watch_hangs(w, now);
            next_look = now + look_seconds * 0.9;
        }
        if (now >= next_gpus) {
            look_at_gpus(w, now);
            next_gpus = now + gpu_seconds;
        }
        if (now >= next_bound) {
            bound_logs(w);
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
        log_error("%d other rank%s of %s terminated as a result", w->n_more,
                  w->n_more == 1 ? "" : "s", w->host);
    if (w->notices)
        death_notices_flush(w->notices, notice_seconds);
    watch_page_unlink(start->path, w->page);
    job_folder_sweep(job_folder_parent());
    remove_session(w);
    _exit(0);
}
