/*
 * watcher_deaths.c - ranks that ended, here and on other nodes
 *
 * The ranks are not children of the watcher. A pidfd says that a rank ended; the mark that
 * launch_leave and launch_abort make in its slot says whether it left in order or has reported its
 * failure itself. The signal or exit status is in /proc as long as the process is a zombie, that
 * is, until the launcher reaps it (mpirun and srun report it as well).
 */
#include <signal.h>
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
    w->has_notices = true;
    w->notices = death_notices_open(w->start->options.log_folder, id);
}

void watcher_post_notice(const struct watcher *w, const struct death *death)
{
    char text[256];

    if (w->notices && w->phase == WATCHING && w->end_at <= 0)
        death_notices_post(w->notices, death_notice(death, text, sizeof text));
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

struct death watcher_death_of(const struct watcher *w, int i, enum death_kind kind)
{
    return (struct death){ .kind = kind, .rank = w->ranks[i].world_rank, .host = w->host };
}

/* How rank i, which has just ended, did so, if it can be seen. */
static struct death find_death(const struct watcher *w, int i)
{
    struct proc_stat stat;
    struct death death = { .kind = DEATH_UNSEEN };

    if (!proc_stat(w->ranks[i].pid, &stat) && stat.state == 'Z' && stat.wait_status)
        death = death_of_rank(stat.wait_status, false);
    death.rank = w->ranks[i].world_rank;
    death.host = w->host;
    death.after_sigterm = w->terminated;
    return death;
}

void watcher_terminate(struct watcher *w, const struct death *death, double now)
{
    char text[1600];

    watcher_open_log(w);
    log_error("%s: terminating the ranks of %s", death_sentence(death, text, sizeof text), w->host);
    watcher_post_notice(w, death);
    watcher_record_death(w, death);
    watcher_begin_ending(w, now);
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

/* The first death is reported and ends the others; those that follow are counted. */
static void report_death(struct watcher *w, int i)
{
    char seen[PROGRESS_TEXT_BYTES + 96], gpu[512], text[1600], tail[WATCHER_TAIL_BYTES + 1];
    struct death death = find_death(w, i); /* before the launcher reaps it */

    rank_gpu_look(&w->page->places[i].slot, &w->gpus);
    watcher_read_notices(w, clock_seconds(), WATCHER_NOTICE_SECONDS);
    if (w->phase != WATCHING || w->end_at > 0) {
        w->n_more++; /* a consequence of another death, perhaps on another node */
        return;
    }
    setpgid(0, 0); /* launchers now kill the first rank's group, which the watcher has to outlive */
    watcher_post_notice(w, &death);
    watcher_read_tail(w, i, tail);
    watcher_open_log(w);
    death.last_seen = progress_describe(w->ranks[i].slot, seen, sizeof seen);
    death.gpu = rank_gpu_death(w->ranks[i].slot, gpu, sizeof gpu);
    log_error("%s%s%s", death_sentence(&death, text, sizeof text),
              tail[0] ? "; its last lines:\n" : "", tail);
    watcher_record_death(w, &death);
    w->n_told++;
}

/* The rank has reported its failure itself; it does not know what its GPU had to do with it. */
static void report_failure(struct watcher *w, int i)
{
    struct death death = watcher_death_of(w, i, DEATH_FAILED);
    char gpu[512], text[1600];

    if (w->phase != WATCHING || w->end_at > 0)
        return;
    watcher_post_notice(w, &death);
    rank_gpu_look_at_death(&w->page->places[i].slot, &w->gpus);
    death.gpu = rank_gpu_death(w->ranks[i].slot, gpu, sizeof gpu);
    watcher_record_death(w, &death);
    if (!*death.gpu)
        return;
    watcher_open_log(w);
    log_error("%s", death_sentence(&death, text, sizeof text));
}

int watcher_take_ends(struct watcher *w, double now)
{
    int n_here = 0;

    for (int i = 0; i < w->n; i++) {
        struct hang_rank *rank = &w->ranks[i];
        int end = atomic_load(&rank->slot->end);

        if (rank->running && has_ended(w, i)) {
            /* The mark was made before the end was: look again. */
            end = atomic_load(&rank->slot->end);
            rank->running = false;
            if (w->pidfds[i] >= 0)
                close(w->pidfds[i]);
            w->pidfds[i] = -1;
            if (end == PROGRESS_RUNS)
                report_death(w, i);
            else if (end != PROGRESS_LEFT)
                report_failure(w, i);
            if (end != PROGRESS_LEFT && w->end_at <= 0)
                w->end_at = now + WATCHER_GRACE_SECONDS;
        }
        n_here += rank->running && end != PROGRESS_LEFT;
    }
    return n_here;
}
