/*
 * hang.c - beats, clocks, and the report
 *
 * A rank that waits for a rank that has not reached the same place is not to blame, however long it
 * waits. A rank that waits for none such is a root: it computes, or all ranks it waits for have
 * arrived and the communication does not complete. A hang is a root without progress. As ranks wait
 * only for ranks that are behind them, every chain of waiting ranks ends in a root.
 */
#include "launch/watch/hang_impl.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "launch/watch/rank_gpu_impl.h"

enum { N_LINES_MAX = 8, N_RANGES_MAX = 8 };

/*
 * Looks are 0.25 s apart. A longer gap means that this process was stopped, perhaps with the ranks,
 * or that the machine is overloaded: the gap does not count.
 */
static const double gap_seconds = 1;

/* Ranks without progress for less than this are not examined. */
static const double worth_seconds = 0.5;

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

void hang_watch_restart_rank(struct hang_watch *watch, int rank, double now)
{
    watch->since[rank] = now;
}

static void skip(struct hang_watch *watch, double seconds)
{
    for (int rank = 0; rank < watch->n_ranks; rank++)
        watch->since[rank] += seconds;
}

/* ---- the culprit ---- */

static const struct progress_slot *slot_of(const struct hang_watch *watch, int rank)
{
    return watch->ranks[rank].slot;
}

/* A rank that is stopped by a signal is not waiting: others wait for it. */
static int is_waiting(const struct hang_watch *watch, int rank)
{
    return atomic_load(&slot_of(watch, rank)->waits) && !watch->ranks[rank].stopped;
}

static uint64_t position_of(const struct hang_watch *watch, int rank)
{
    return atomic_load(&slot_of(watch, rank)->position);
}

static int has_left(const struct hang_watch *watch, int rank)
{
    return atomic_load(&slot_of(watch, rank)->end) != PROGRESS_RUNS;
}

static int takes_part(const struct hang_watch *watch, int rank)
{
    return watch->ranks[rank].running && !has_left(watch, rank);
}

static int in_group(const struct progress_slot *waiter, int world_rank)
{
    int first = atomic_load(&waiter->group_first), stride = atomic_load(&waiter->group_stride);
    int size = atomic_load(&waiter->group_size), distance = world_rank - first;
    int n_runs = atomic_load(&waiter->group_n_runs), apart = atomic_load(&waiter->group_apart);

    if (size <= 0 || stride <= 0)
        return 1;
    if (distance >= 0 && apart > 0 && distance / apart < n_runs)
        distance %= apart;
    return distance >= 0 && distance % stride == 0 && distance / stride < size;
}

/* Whether the waiting rank waits for other, which has not arrived yet. */
static int waits_for(const struct hang_watch *watch, int waiter, int other)
{
    const struct progress_slot *slot = slot_of(watch, waiter);
    uint64_t awaits = atomic_load(&slot->awaits);

    if (other == waiter || !takes_part(watch, other) ||
        !in_group(slot, watch->ranks[other].world_rank))
        return 0;
    if (!awaits || watch->ranks[other].stopped)
        return !is_waiting(watch, other);
    return position_of(watch, other) < awaits;
}

static int is_root(const struct hang_watch *watch, int rank)
{
    if (!takes_part(watch, rank))
        return 0;
    for (int other = 0; is_waiting(watch, rank) && other < watch->n_ranks; other++)
        if (waits_for(watch, rank, other))
            return 0;
    return 1;
}

/* Whether root a is more to blame than root b. */
static int is_worse(const struct hang_watch *watch, int a, int b)
{
    int a_waits = is_waiting(watch, a);

    if (b < 0)
        return 1;
    if (a_waits && is_waiting(watch, b) && position_of(watch, a) != position_of(watch, b))
        return position_of(watch, a) < position_of(watch, b);
    if (a_waits != is_waiting(watch, b) && watch->since[a] - watch->since[b] < 1 &&
        watch->since[b] - watch->since[a] < 1)
        return !a_waits;
    return watch->since[a] < watch->since[b];
}

/* Whether every running rank is stopped by a signal. */
static int all_stopped(const struct hang_watch *watch)
{
    for (int rank = 0; rank < watch->n_ranks; rank++)
        if (takes_part(watch, rank) && !watch->ranks[rank].stopped)
            return 0;
    return 1;
}

/* Update the clocks; returns the longest time that a rank has made no progress. */
static double take_beats(struct hang_watch *watch, double now)
{
    double longest = 0;

    for (int rank = 0; rank < watch->n_ranks; rank++) {
        uint64_t beat = atomic_load(&slot_of(watch, rank)->beat);

        if (beat != watch->beats[rank] || !watch->ranks[rank].running)
            watch->since[rank] = now;
        watch->beats[rank] = beat;
        if (takes_part(watch, rank) && now - watch->since[rank] > longest)
            longest = now - watch->since[rank];
    }
    return longest;
}

double hang_watch_look(struct hang_watch *watch, double now, int *culprit)
{
    *culprit = -1;
    if (now - watch->last_look > gap_seconds)
        skip(watch, now - watch->last_look);
    watch->last_look = now;

    double longest = take_beats(watch, now);

    if (longest < worth_seconds)
        return longest;
    if (all_stopped(watch)) {
        hang_watch_restart(watch, now);
        return 0;
    }
    for (int rank = 0; rank < watch->n_ranks; rank++)
        if (is_root(watch, rank) && is_worse(watch, rank, *culprit))
            *culprit = rank;
    return *culprit < 0 ? 0 : now - watch->since[*culprit];
}

/* ---- the report ---- */

static void add_name(const struct hang_watch *watch, int rank, struct str *text)
{
    const struct hang_rank *r = &watch->ranks[rank];

    str_printf(text, "rank %d", r->world_rank);
    if (r->host)
        str_printf(text, " on %s", r->host);
}

/* The begin of a line: rank, activity, since when. */
static void add_rank(const struct hang_watch *watch, int rank, double now, struct str *text)
{
    char words[PROGRESS_TEXT_BYTES + 96], since[32];
    const struct hang_rank *r = &watch->ranks[rank];

    str_add(text, "  ");
    add_name(watch, rank, text);
    str_printf(text, " (pid %d): %s since %s", (int)r->pid,
               progress_describe(r->slot, words, sizeof words),
               str_duration(since, sizeof since, now - watch->since[rank]));
    if (r->stopped)
        str_add(text, ", stopped by a signal");
}

/* World ranks in ascending order as "1-3, 7", a few ranges of them. */
struct ranges {
    struct str *text;
    int first, last, n;
};

static void end_range(struct ranges *ranges)
{
    if (!ranges->n || ranges->n > N_RANGES_MAX)
        return;
    if (ranges->n == N_RANGES_MAX)
        str_add(ranges->text, ", ...");
    else if (ranges->first == ranges->last)
        str_printf(ranges->text, "%s%d", ranges->n > 1 ? ", " : "", ranges->first);
    else
        str_printf(ranges->text, "%s%d-%d", ranges->n > 1 ? ", " : "", ranges->first, ranges->last);
}

static void add_to_ranges(struct ranges *ranges, int world_rank)
{
    if (ranges->n && world_rank == ranges->last + 1) {
        ranges->last = world_rank;
        return;
    }
    end_range(ranges);
    ranges->first = ranges->last = world_rank;
    ranges->n++;
}

/* The ranks that a rank waits for, and what the one that is furthest behind does. */
static void add_awaited(const struct hang_watch *watch, int waiter, struct str *text)
{
    char words[PROGRESS_TEXT_BYTES + 96];
    struct ranges ranges = { .text = text };
    int n = 0, last = -1;

    for (int rank = 0; rank < watch->n_ranks; rank++)
        if (waits_for(watch, waiter, rank)) {
            n++;
            if (last < 0 || position_of(watch, rank) < position_of(watch, last))
                last = rank;
        }
    if (!n) {
        str_add(text,
                watch->world_size > watch->n_ranks
                    ? "; no rank of this node is behind: it waits for a rank of another node"
                    : "; all other ranks have reached it: their communication does not complete");
        return;
    }
    str_add(text, "; ");
    if (n > 1) {
        str_add(text, "ranks ");
        for (int rank = 0; rank < watch->n_ranks; rank++)
            if (waits_for(watch, waiter, rank))
                add_to_ranges(&ranges, watch->ranks[rank].world_rank);
        end_range(&ranges);
        str_add(text, " have not reached it; ");
    }
    add_name(watch, last, text);
    if (watch->ranks[last].stopped)
        str_add(text, " is stopped by a signal");
    else
        str_printf(text, "%s %s%s", n > 1 ? "" : " has not reached it: it",
                   is_waiting(watch, last) ? "" : "is ",
                   progress_describe(slot_of(watch, last), words, sizeof words));
}

/* Whether two ranks wait at the same place for the same ranks. */
static int wait_alike(const struct hang_watch *watch, int a, int b)
{
    const struct progress_slot *x = slot_of(watch, a), *y = slot_of(watch, b);

    return x->awaits == y->awaits && x->step == y->step && x->micro_batch == y->micro_batch &&
           x->group_first == y->group_first && x->group_stride == y->group_stride &&
           x->group_size == y->group_size && x->group_n_runs == y->group_n_runs &&
           x->group_apart == y->group_apart && !strncmp(x->text, y->text, sizeof x->text);
}

/* The first of the ranks that wait as this one does. */
static int first_alike(const struct hang_watch *watch, int waiter)
{
    for (int rank = 0; rank < waiter; rank++)
        if (takes_part(watch, rank) && is_waiting(watch, rank) && wait_alike(watch, rank, waiter))
            return rank;
    return waiter;
}

static void report_others(const struct hang_watch *watch, int waiter, struct str *text)
{
    struct ranges ranges = { .text = text };
    int n = 0;

    for (int rank = waiter + 1; rank < watch->n_ranks; rank++)
        n += takes_part(watch, rank) && is_waiting(watch, rank) && wait_alike(watch, waiter, rank);
    if (!n)
        return;
    str_printf(text, "    %d more rank%s there: ", n, n == 1 ? " waits" : "s wait");
    for (int rank = waiter + 1; rank < watch->n_ranks; rank++)
        if (takes_part(watch, rank) && is_waiting(watch, rank) && wait_alike(watch, waiter, rank))
            add_to_ranges(&ranges, watch->ranks[rank].world_rank);
    end_range(&ranges);
    str_add(text, "\n");
}

static void report_working(const struct hang_watch *watch, double now, struct str *text)
{
    int n = 0;

    for (int rank = 0; rank < watch->n_ranks; rank++)
        if (takes_part(watch, rank) && !is_waiting(watch, rank) && n++ < N_LINES_MAX) {
            add_rank(watch, rank, now, text);
            str_add(text, "\n");
        }
    if (n > N_LINES_MAX)
        str_printf(text, "  %d more rank%s not wait\n", n - N_LINES_MAX,
                   n - N_LINES_MAX == 1 ? " does" : "s do");
}

static void report_waiting(const struct hang_watch *watch, double now, struct str *text)
{
    int n_places = 0, n_unsaid = 0;

    for (int rank = 0; rank < watch->n_ranks; rank++) {
        if (!takes_part(watch, rank) || !is_waiting(watch, rank))
            continue;
        if (n_places >= N_LINES_MAX) {
            n_unsaid++;
        } else if (first_alike(watch, rank) == rank) {
            n_places++;
            add_rank(watch, rank, now, text);
            add_awaited(watch, rank, text);
            str_add(text, "\n");
            report_others(watch, rank, text);
        }
    }
    if (n_unsaid)
        str_printf(text, "  %d more rank%s\n", n_unsaid, n_unsaid == 1 ? " waits" : "s wait");
}

/* One line per GPU, those that are hot, throttled or broken first. */
static void report_gpus(const struct hang_watch *watch, struct str *text)
{
    int n = 0, n_seen = 0;

    for (int is_troubled = 1; is_troubled >= 0; is_troubled--)
        for (int rank = 0; rank < watch->n_ranks; rank++) {
            char words[512];

            if (!takes_part(watch, rank) ||
                rank_gpu_is_troubled(slot_of(watch, rank)) != is_troubled ||
                !*rank_gpu_describe(slot_of(watch, rank), words, sizeof words))
                continue;
            n_seen++;
            if (n == N_LINES_MAX)
                continue;
            n++;
            str_add(text, "  ");
            add_name(watch, rank, text);
            str_printf(text, ": %s\n", words);
        }
    if (n_seen > n)
        str_printf(text, "  %d more GPU%s\n", n_seen - n, str_s(n_seen - n));
}

void hang_watch_report(const struct hang_watch *watch, double now, struct str *text)
{
    int n_ended = 0, n_left = 0;

    report_working(watch, now, text);
    report_waiting(watch, now, text);
    report_gpus(watch, text);
    for (int rank = 0; rank < watch->n_ranks; rank++) {
        n_left += has_left(watch, rank);
        n_ended += !watch->ranks[rank].running && !has_left(watch, rank);
    }
    if (n_left)
        str_printf(text, "  %d rank%s left\n", n_left, n_left == 1 ? " has" : "s have");
    if (n_ended)
        str_printf(text, "  %d rank%s ended\n", n_ended, n_ended == 1 ? " has" : "s have");
}
