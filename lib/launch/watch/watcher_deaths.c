/*
 * watcher_deaths.c - ranks that ended, here and on other nodes
 *
 * The ranks are not children of the watcher. A pidfd says that a rank ended; the mark that launch_leave
 * and launch_abort make in its slot says whether it left in order or has reported its failure itself.
 * The signal or exit status is in /proc as long as the process is a zombie, that is, until the launcher
 * reaps it (mpirun and srun report it as well).
 */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "launch/proc_impl.h"
#include "launch/watch/watcher_process_impl.h"

/* ---- notices ---- */

void watcher_open_notices(struct watcher *w)
{
    uint64_t id = atomic_load(&w->page->launch_id);

    if (w->has_notices || !id || !w->start->options.log_folder)
        return;
    w->has_notices = 1;
    w->notices = death_notices_open(w->start->options.log_folder, id);
}

void watcher_post_notice(const struct watcher *w, const char *format, ...)
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

static int has_ended(const struct watcher *w, int i)
{
    struct pollfd poll_fd = { .fd = w->pidfds[i], .events = POLLIN };
    struct proc_stat stat;

    if (poll_fd.fd >= 0)
        return poll(&poll_fd, 1, 0) > 0;
    return proc_stat(w->ranks[i].pid, &stat) || proc_is_dead(&stat);
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

void watcher_read_notices(struct watcher *w, double now, double wait_seconds)
{
    const char *text;

    if (!w->notices || w->phase != WATCHING || w->end_at > 0)
        return;
    text = death_notices_first(w->notices, wait_seconds);
    if (!text)
        return;
    setpgid(0, 0);
    watcher_open_log(w);
    log_error("%s: terminating the ranks of %s", text, w->host);
    w->n_told++;
    watcher_begin_ending(w, now);
}

static void tell_death(struct watcher *w, int i)
{
    char words[PROGRESS_TEXT_BYTES + 96], tail[WATCHER_TAIL_BYTES + 1], end[96], gpu[512];

    name_end(w->ranks[i].pid, end, sizeof end); /* first, for it vanishes */
    rank_gpu_look(&w->page->places[i].slot, &w->gpus);
    watcher_read_notices(w, clock_seconds(), WATCHER_NOTICE_SECONDS); /* it may be a consequence */
    if (w->phase != WATCHING || w->end_at > 0) {
        w->n_more++; /* a consequence */
        return;
    }
    setpgid(0, 0); /* launchers now kill the first rank's group; we want to see it out */
    watcher_post_notice(w, "rank %d on %s %s", w->ranks[i].world_rank, w->host, end);
    watcher_read_tail(w, i, tail);
    watcher_open_log(w);
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
    watcher_post_notice(w, "rank %d on %s failed", w->ranks[i].world_rank, w->host);
    rank_gpu_look_at_death(&w->page->places[i].slot, &w->gpus);
    if (!*rank_gpu_death(w->ranks[i].slot, gpu, sizeof gpu))
        return;
    watcher_open_log(w);
    log_error("rank %d on %s failed: %s", w->ranks[i].world_rank, w->host, gpu);
}

/* See who has ended, and how. Returns how many still run and have not left. */
int watcher_take_ends(struct watcher *w, double now)
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
                w->end_at = now + WATCHER_GRACE_SECONDS;
        }
        n_here += rank->running && end != PROGRESS_LEFT;
    }
    return n_here;
}
