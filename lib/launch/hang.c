/*
 * hang.c - beats, clocks, and the report
 */
#include "launch/hang_impl.h"

#include <stdlib.h>

#include "base/err.h"

enum { N_WAITING_SHOWN = 8 };

/* Between two looks lies a quarter second; this much more and we were stopped ourselves. */
static const double gap_seconds = 5;

void hang_watch_init(struct hang_watch *watch, int n_ranks, const struct hang_rank *ranks,
                     double now)
{
    *watch = (struct hang_watch){ .n_ranks = n_ranks, .ranks = ranks };
    watch->beats = calloc((size_t)n_ranks, sizeof *watch->beats);
    watch->since = calloc((size_t)n_ranks, sizeof *watch->since);
    CHECK(watch->beats);
    CHECK(watch->since);
    hang_watch_restart(watch, now);
}

void hang_watch_release(struct hang_watch *watch)
{
    free(watch->beats);
    free(watch->since);
    *watch = (struct hang_watch){ 0 };
}

void hang_watch_restart(struct hang_watch *watch, double now)
{
    watch->last_look = now;
    for (int rank = 0; rank < watch->n_ranks; rank++)
        watch->since[rank] = now;
}

static int is_waiting(const struct hang_watch *watch, int rank)
{
    return atomic_load(&watch->ranks[rank].slot->waits) != 0;
}

/* Whether every running rank is stopped by a signal. */
static int all_stopped(const struct hang_watch *watch)
{
    for (int rank = 0; rank < watch->n_ranks; rank++)
        if (watch->ranks[rank].running && !watch->ranks[rank].stopped)
            return 0;
    return 1;
}

/* Whether rank a is more to blame than b: who waits for nobody first, then who stands longest. */
static int is_worse(const struct hang_watch *watch, int a, int b)
{
    if (b < 0)
        return 1;
    if (is_waiting(watch, a) != is_waiting(watch, b))
        return !is_waiting(watch, a);
    return watch->since[a] < watch->since[b];
}

double hang_watch_look(struct hang_watch *watch, double now, int *culprit)
{
    double longest = 0;

    *culprit = -1;
    if (now - watch->last_look > gap_seconds)
        hang_watch_restart(watch, now);
    watch->last_look = now;
    for (int rank = 0; rank < watch->n_ranks; rank++) {
        uint64_t beat = atomic_load(&watch->ranks[rank].slot->beat);

        if (beat != watch->beats[rank])
            watch->since[rank] = now;
        watch->beats[rank] = beat;
        if (!beat || !watch->ranks[rank].running)
            continue;
        if (now - watch->since[rank] > longest)
            longest = now - watch->since[rank];
        if (is_worse(watch, rank, *culprit))
            *culprit = rank;
    }
    if (longest > 1 && all_stopped(watch)) {
        hang_watch_restart(watch, now);
        return 0;
    }
    return longest;
}

static void report_rank(const struct hang_watch *watch, int rank, double now, struct str *text)
{
    char words[PROGRESS_TEXT_BYTES + 96], since[32];
    const struct hang_rank *r = &watch->ranks[rank];

    str_printf(text, "  rank %d (pid %d): %s", r->world_rank, (int)r->pid,
               progress_describe(r->slot, words, sizeof words));
    str_printf(text, " since %s", str_duration(since, sizeof since, now - watch->since[rank]));
    str_add(text, r->stopped ? ", stopped by a signal\n" : "\n");
}

void hang_watch_report(const struct hang_watch *watch, double now, struct str *text)
{
    int n_waiting = 0, n_ended = 0;

    for (int rank = 0; rank < watch->n_ranks; rank++)
        if (!watch->ranks[rank].running)
            n_ended++;
        else if (!is_waiting(watch, rank))
            report_rank(watch, rank, now, text);
    for (int rank = 0; rank < watch->n_ranks; rank++)
        if (watch->ranks[rank].running && is_waiting(watch, rank))
            if (n_waiting++ < N_WAITING_SHOWN)
                report_rank(watch, rank, now, text);
    if (n_waiting > N_WAITING_SHOWN)
        str_printf(text, "  %d more ranks wait\n", n_waiting - N_WAITING_SHOWN);
    if (n_ended)
        str_printf(text, "  %d ranks have ended\n", n_ended);
}
