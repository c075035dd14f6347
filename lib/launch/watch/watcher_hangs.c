/*
 * watcher_hangs.c - ranks of a node that make no progress, or have lost their GPU
 */
#include "base/log.h"
#include "base/str.h"
#include "launch/node/rank_process_impl.h"
#include "launch/watch/watcher_process_impl.h"

static const double elsewhere_factor =
    2; /* of hang_abort_seconds: for ranks that wait for other nodes */

/* ---- hangs ---- */

static void look_for_stops(struct watcher *w)
{
    for (int i = 0; i < w->n; i++) {
        struct rank_process process = { .pid = w->ranks[i].pid, .running = w->ranks[i].running };

        w->ranks[i].stopped = rank_process_state(&process) == 'T';
    }
}

/* A rank that waits for other nodes is not behind: those record it. All may wait: then rank 0's. */
static bool is_recorded_here(const struct watcher *w, int culprit)
{
    bool has_first = false;

    for (int i = 0; i < w->n; i++)
        has_first |= w->ranks[i].world_rank == 0;
    return has_first || w->hang.world_size <= w->n ||
           (culprit >= 0 && !atomic_load(&w->ranks[culprit].slot->waits));
}

static void report_hang(struct watcher *w, double still, int culprit, double now)
{
    struct str text = { 0 };

    hang_watch_report(&w->hang, now, &text);
    watcher_open_log(w);
    log_warn("no progress on %s for %.0f s:\n%.*s", w->host, still,
             text.length ? (int)text.length - 1 : 0, str_text(&text));
    if (is_recorded_here(w, culprit))
        watcher_record_hang(w, str_text(&text));
    str_release(&text);
    w->hang_reported = true;
}

void watcher_watch_hangs(struct watcher *w, double now)
{
    const struct watcher_options *options = &w->start->options;
    double limit = options->hang_abort_seconds;
    int culprit;

    look_for_stops(w);
    w->hang.world_size = (int)atomic_load(&w->page->world_size);
    double still = hang_watch_look(&w->hang, now, &culprit);
    if (options->hang_seconds <= 0 || still < options->hang_seconds)
        w->hang_reported = false;
    else if (!w->hang_reported)
        report_hang(w, still, culprit, now);
    if (limit <= 0 || culprit < 0)
        return;
    /*
     * A rank that waits for another node may wait for a rank that works: the watcher there decides
     * first.
     */
    if (atomic_load(&w->ranks[culprit].slot->waits) && !w->ranks[culprit].stopped &&
        w->hang.world_size > w->n && !w->terminated)
        limit *= elsewhere_factor;
    if (still >= limit) {
        struct death death = watcher_death_of(w, culprit, DEATH_HANG);

        death.seconds = still;
        watcher_terminate(w, &death, now);
    }
}

/* ---- GPUs ---- */

/* Ranks without their GPU do not count: stopped or not, they make no progress. */
static int some_are_stopped(struct watcher *w)
{
    look_for_stops(w);
    for (int i = 0; i < w->n; i++)
        if (w->ranks[i].running && w->ranks[i].stopped && !rank_gpu_is_broken(w->ranks[i].slot))
            return 1;
    return 0;
}

/*
 * If no rank makes progress, one whose GPU is broken hangs in the driver; unless one is stopped by
 * a signal.
 */
static void end_without_gpu(struct watcher *w, int i, double now)
{
    char gpu[512];

    if (now < w->still_since + RANK_GPU_GRACE_SECONDS || w->end_at > 0)
        return;
    if (some_are_stopped(w)) {
        w->still_since = now;
        return;
    }
    struct death death = watcher_death_of(w, i, DEATH_GPU_HANG);
    death.gpu = rank_gpu_death(w->ranks[i].slot, gpu, sizeof gpu);
    w->n_told++;
    watcher_terminate(w, &death, now);
}

static void tell_broken_gpu(struct watcher *w, int i, double now)
{
    char gpu[512];

    if (w->gpu_is_told[i])
        return;
    w->gpu_is_told[i] = true;
    w->still_since =
        now; /* what took long before may have had its reason: a long op, a checkpoint */
    watcher_open_log(w);
    log_warn("rank %d on %s: %s", w->ranks[i].world_rank, w->host,
             rank_gpu_death(w->ranks[i].slot, gpu, sizeof gpu));
}

void watcher_look_at_gpus(struct watcher *w, double now)
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
