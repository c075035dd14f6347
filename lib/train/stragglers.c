/*
 * stragglers.c - medians of peers, and windows of samples
 */
#include "train/stragglers.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/err.h"

/* Own time by class, of work, and all of it. */
enum { WORK = N_STRAGGLER_CLASSES, ALL, N_VALUES };

/* A rank's samples, in a ring. */
struct rank_window {
    float own[STRAGGLER_WINDOW][N_VALUES], peers[STRAGGLER_WINDOW][N_VALUES];
    bool is_slow[STRAGGLER_WINDOW];
    int n_slow;
    bool is_straggler;
};

/* By work, of single samples; by waiting, of sums of several. */
enum series_kind { SERIES_WORK, SERIES_WAITING, N_SERIES };

struct series {
    enum series_kind kind;
    int n_merged;                      /* samples of a sum */
    struct straggler_times *sums;      /* [n_ranks] of the samples since the last sum was whole */
    int n_summed;                      /* how many these are */
    int64_t n_summed_steps;            /* of these */
    struct rank_window *windows;       /* [n_ranks] */
    int64_t n_steps[STRAGGLER_WINDOW]; /* of each sum */
    int at, n;                         /* where the next one goes; how many there are */
};

struct stragglers {
    struct arena arena;
    int n_ranks, n_stragglers;
    double ratio;
    int *order;       /* ranks, peers behind each other */
    int *group_start; /* [n_groups + 1] in order */
    int n_groups;
    struct series series[N_SERIES];
    struct sorted {
        float value;
        int rank;
    } * sorted; /* [n_ranks] scratch */
};

const char *straggler_class_name(enum straggler_class class)
{
    static const char *const names[N_STRAGGLER_CLASSES] = {
        [STRAGGLER_COMPUTE] = "compute",
        [STRAGGLER_WAITING] = "waiting",
        [STRAGGLER_INPUT] = "input",
    };

    return names[class];
}

struct ranked_work {
    int work, rank;
};

static int compare_pairs(const void *a, const void *b)
{
    const struct ranked_work *x = a, *y = b;

    return x->work != y->work ? (x->work > y->work) - (x->work < y->work)
                              : (x->rank > y->rank) - (x->rank < y->rank);
}

static void group_peers(struct stragglers *s, const int *work)
{
    struct ranked_work *pairs = arena_array(&s->arena, struct ranked_work, s->n_ranks);

    for (int rank = 0; rank < s->n_ranks; rank++)
        pairs[rank] = (struct ranked_work){ work[rank], rank };
    qsort(pairs, (size_t)s->n_ranks, sizeof *pairs, compare_pairs);
    for (int i = 0; i < s->n_ranks; i++) {
        s->order[i] = pairs[i].rank;
        if (i == 0 || pairs[i].work != pairs[i - 1].work)
            s->group_start[s->n_groups++] = i;
    }
    s->group_start[s->n_groups] = s->n_ranks;
}

struct stragglers *stragglers_create(const int *work, int n_ranks, double ratio)
{
    struct stragglers *s = calloc(1, sizeof *s);

    CHECK(s);
    s->n_ranks = n_ranks;
    s->ratio = ratio;
    s->order = arena_array(&s->arena, int, n_ranks);
    s->group_start = arena_array(&s->arena, int, n_ranks + 1);
    for (int kind = 0; kind < N_SERIES; kind++)
        s->series[kind] = (struct series){
            .kind = (enum series_kind)kind,
            .n_merged = kind == SERIES_WORK ? 1 : STRAGGLER_MERGED,
            .sums = arena_array(&s->arena, struct straggler_times, n_ranks),
            .windows = arena_array(&s->arena, struct rank_window, n_ranks),
        };
    s->sorted = arena_array(&s->arena, struct sorted, n_ranks);
    group_peers(s, work);
    return s;
}

void stragglers_destroy(struct stragglers *s)
{
    if (!s)
        return;
    arena_release(&s->arena);
    free(s);
}

/* ---- a sample ---- */

static int compare_sorted(const void *a, const void *b)
{
    const struct sorted *x = a, *y = b;

    return (x->value > y->value) - (x->value < y->value);
}

/* The median of sorted[n] without the k-th. */
static float median_without(const struct sorted *sorted, int n, int k)
{
    int half = (n - 1) / 2;
    float upper = sorted[half < k ? half : half + 1].value;

    if ((n - 1) % 2)
        return upper;
    return (upper + sorted[half - 1 < k ? half - 1 : half].value) / 2;
}

static bool has(int value, int class)
{
    return value == class || value == ALL || (value == WORK && class != STRAGGLER_WAITING);
}

static float value_of(const struct straggler_times *times, int value)
{
    float sum = 0;

    for (int class = 0; class < N_STRAGGLER_CLASSES; class ++)
        if (has(value, class))
            sum += times->of[class];
    return sum;
}

/* Own and peers' values of the ranks of a group. */
static void compare_group(struct stragglers *s, struct series *series, int group)
{
    const int *ranks = s->order + s->group_start[group];
    int n = s->group_start[group + 1] - s->group_start[group];

    for (int value = 0; value < N_VALUES; value++) {
        for (int i = 0; i < n; i++)
            s->sorted[i] = (struct sorted){ value_of(&series->sums[ranks[i]], value), ranks[i] };
        qsort(s->sorted, (size_t)n, sizeof *s->sorted, compare_sorted);
        for (int i = 0; i < n; i++) {
            struct rank_window *w = &series->windows[s->sorted[i].rank];

            w->own[series->at][value] = s->sorted[i].value;
            w->peers[series->at][value] = n > 1 ? median_without(s->sorted, n, i) : 0;
        }
    }
}

static void sum_window(const struct series *series, int rank, int n_peers,
                       struct straggler_finding *finding)
{
    const struct rank_window *w = &series->windows[rank];
    double own[N_VALUES] = { 0 }, peers[N_VALUES] = { 0 };

    *finding = (struct straggler_finding){ .rank = rank, .n_peers = n_peers };
    for (int i = 0; i < series->n; i++) {
        finding->n_steps += series->n_steps[i];
        for (int value = 0; value < N_VALUES; value++) {
            own[value] += (double)w->own[i][value];
            peers[value] += (double)w->peers[i][value];
        }
    }
    int by = series->kind == SERIES_WORK ? WORK : ALL;
    finding->ratio = peers[by] > 0 ? own[by] / peers[by] : 0;
    for (int class = 0; class < N_STRAGGLER_CLASSES; class ++) {
        enum straggler_class most = finding->class;

        if (has(by, class) && own[class] - peers[class] > own[most] - peers[most])
            finding->class = (enum straggler_class) class;
        finding->own[class] = own[class] / (double)finding->n_steps;
        finding->peers[class] = peers[class] / (double)finding->n_steps;
    }
}

/* In the sum at hand: by work; or by waiting, where that is more of the difference than work is. */
static bool is_slow(const struct stragglers *s, const struct series *series,
                    const struct rank_window *w)
{
    const float *own = w->own[series->at], *peers = w->peers[series->at];
    int by = series->kind == SERIES_WORK ? WORK : ALL;

    if (peers[by] <= 0 || (double)own[by] <= s->ratio * (double)peers[by])
        return false;
    return by == WORK ||
           own[STRAGGLER_WAITING] - peers[STRAGGLER_WAITING] > own[WORK] - peers[WORK];
}

/* With the sum at hand. */
static void judge(const struct stragglers *s, const struct series *series, struct rank_window *w)
{
    bool slow = is_slow(s, series, w);

    w->n_slow += slow - w->is_slow[series->at];
    w->is_slow[series->at] = slow;
    w->is_straggler = w->n_slow >= (w->is_straggler ? STRAGGLER_FAST : STRAGGLER_SLOW);
}

static int n_peers_of(const struct stragglers *s, int group)
{
    return s->group_start[group + 1] - s->group_start[group] - 1;
}

/* By any series. */
static bool is_straggler(const struct stragglers *s, int rank)
{
    for (int kind = 0; kind < N_SERIES; kind++)
        if (s->series[kind].windows[rank].is_straggler)
            return true;
    return false;
}

/* A sum is whole. Returns how many findings there are now. */
static int add_sum(struct stragglers *s, struct series *series, struct straggler_finding *findings,
                   int n)
{
    series->n_steps[series->at] = series->n_summed_steps;
    if (series->n < STRAGGLER_WINDOW)
        series->n++;
    for (int group = 0; group < s->n_groups; group++) {
        compare_group(s, series, group);
        for (int i = s->group_start[group]; i < s->group_start[group + 1]; i++) {
            int rank = s->order[i];
            bool was = is_straggler(s, rank);

            judge(s, series, &series->windows[rank]);
            if (is_straggler(s, rank) == was)
                continue;
            sum_window(series, rank, n_peers_of(s, group), &findings[n]);
            findings[n++].is_over = was;
            s->n_stragglers += was ? -1 : 1;
        }
    }
    series->at = (series->at + 1) % STRAGGLER_WINDOW;
    return n;
}

int stragglers_add(struct stragglers *s, const struct straggler_times *times, int64_t n_steps,
                   struct straggler_finding *findings)
{
    int n = 0;

    for (int kind = 0; kind < N_SERIES; kind++) {
        struct series *series = &s->series[kind];

        for (int rank = 0; rank < s->n_ranks; rank++)
            for (int class = 0; class < N_STRAGGLER_CLASSES; class ++)
                series->sums[rank].of[class] += times[rank].of[class];
        series->n_summed_steps += n_steps;
        if (++series->n_summed < series->n_merged)
            continue;
        n = add_sum(s, series, findings, n);
        series->n_summed = 0;
        series->n_summed_steps = 0;
        memset(series->sums, 0, sizeof *series->sums * (size_t)s->n_ranks);
    }
    return n;
}

bool stragglers_slowest(const struct stragglers *s, struct straggler_finding *slowest)
{
    const struct series *series = &s->series[SERIES_WORK];
    bool is_found = false;

    if (series->n < STRAGGLER_WINDOW)
        return false;
    for (int group = 0; group < s->n_groups; group++) {
        int n_peers = n_peers_of(s, group);

        for (int i = 0; i <= n_peers && n_peers; i++) {
            struct straggler_finding finding;

            sum_window(series, s->order[s->group_start[group] + i], n_peers, &finding);
            if (is_found && finding.ratio <= slowest->ratio)
                continue;
            *slowest = finding;
            is_found = true;
        }
    }
    return is_found;
}

int stragglers_count(const struct stragglers *s)
{
    return s->n_stragglers;
}
