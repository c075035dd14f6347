/*
 * critical_path.c - the walk back
 */
#include "plan/critical_path.h"

#include <stdlib.h>

#include "base/num.h"
#include "plan/timeline_impl.h"

/* A rank's spans, each list by end. */
struct track {
    const struct timeline_span **compute, **beside;
    int n_compute, n_beside;
};

struct walk {
    const struct timeline *timeline;
    struct critical_path *path;
    struct track *tracks;     /* as ranks; empty of other steps and kinds */
    struct printing flows;    /* whose ends are all that is used */
    struct flow_end **starts; /* of the flows' ends, by rank and begin */
    int64_t first;
};

/* ---- what there is ---- */

static int compare_ends(const void *pa, const void *pb)
{
    const struct timeline_span *a = *(const struct timeline_span *const *)pa;
    const struct timeline_span *b = *(const struct timeline_span *const *)pb;

    return (a->end > b->end) - (a->end < b->end);
}

static struct track make_track(const struct timeline_rank *r, struct arena *arena)
{
    struct track t = { .compute = arena_array(arena, const struct timeline_span *, r->n),
                       .beside = arena_array(arena, const struct timeline_span *, r->n) };

    for (int i = 0; i < r->n; i++) {
        if (r->spans[i].end <= r->spans[i].begin)
            continue;
        if (r->spans[i].stream == STREAM_COMPUTE)
            t.compute[t.n_compute++] = &r->spans[i];
        else
            t.beside[t.n_beside++] = &r->spans[i];
    }
    if (t.n_compute)
        qsort(t.compute, (size_t)t.n_compute, sizeof *t.compute, compare_ends);
    if (t.n_beside)
        qsort(t.beside, (size_t)t.n_beside, sizeof *t.beside, compare_ends);
    return t;
}

/* How many end before the time, or, with `also`, at it. */
static int count_ended(const struct timeline_span **spans, int n, int64_t time, bool also)
{
    int low = 0, high = n;

    while (low < high) {
        int middle = low + (high - low) / 2;

        if (spans[middle]->end < time || (also && spans[middle]->end == time))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int compare_starts(const void *pa, const void *pb)
{
    const struct flow_end *a = *(struct flow_end *const *)pa;
    const struct flow_end *b = *(struct flow_end *const *)pb;

    if (a->pid != b->pid)
        return a->pid < b->pid ? -1 : 1;
    if (a->tid != b->tid)
        return a->tid < b->tid ? -1 : 1;
    return (a->begin > b->begin) - (a->begin < b->begin);
}

/* The end of a flow that the span of the rank is, or NULL: a copy. */
static struct flow_end *end_of(const struct walk *w, int rank, const struct timeline_span *span)
{
    const struct timeline_rank *r = &w->timeline->ranks[rank];
    struct flow_end wanted = { .pid = timeline_pid(r),
                               .tid = (int)span->stream,
                               .begin = timeline_begin(r, span) };
    struct flow_end *key = &wanted;
    struct flow_end **found = w->flows.n_ends ? bsearch(&key, w->starts, (size_t)w->flows.n_ends,
                                                        sizeof *w->starts, compare_starts)
                                              : NULL;

    return found ? *found : NULL;
}

/* ---- the walk ---- */

static void add(const struct walk *w, int rank, const struct timeline_span *span, int64_t ns)
{
    w->path->of[span->class] += ns;
    w->path->ranks[rank] += ns;
    for (int i = 0; i < N_PRICE_BOUNDS; i++)
        if (span->bound == price_bound_name((enum price_bound)i))
            w->path->bound[i] += ns;
}

static int rank_of(const struct walk *w, const struct flow_end *end)
{
    for (int i = 0; i < w->timeline->n; i++)
        if (timeline_pid(&w->timeline->ranks[i]) == end->pid && w->tracks[i].n_compute)
            return i;
    return -1;
}

static bool is_wait(const struct timeline_span *span)
{
    return span->op < 0 && span->class != TIME_ISSUE && span->class != TIME_OVERLAP;
}

/* What the rank has to do with this time: an op of it has ended then (2), or something beside
 * compute has (1), or nothing, and it is none that others wait for (0). */
static int activity_of(const struct walk *w, int rank, int64_t time)
{
    const struct track *t = &w->tracks[rank];
    int n = count_ended(t->compute, t->n_compute, time, true);

    if (n && t->compute[n - 1]->end == time && !is_wait(t->compute[n - 1]))
        return 2;
    n = count_ended(t->beside, t->n_beside, time, true);
    return n && t->beside[n - 1]->end == time;
}

/* The member of the flow that began last, and when; of several the one that was most active
 * then. */
static int last_member(const struct walk *w, const struct flow_end *end, int64_t *begin)
{
    const struct flow_end *first = end, *past = w->flows.ends + w->flows.n_ends;
    int latest = -1;

    while (first > w->flows.ends && timeline_is_same_flow(first - 1, end))
        first--;
    *begin = INT64_MIN;
    for (const struct flow_end *m = first; m < past && timeline_is_same_flow(m, end); m++) {
        int rank = rank_of(w, m);
        int64_t time = rank < 0 ? INT64_MIN : m->begin - w->timeline->ranks[rank].shift;

        if (rank < 0 || time < *begin ||
            (time == *begin && latest >= 0 &&
             activity_of(w, latest, time) >= activity_of(w, rank, time)))
            continue;
        latest = rank;
        *begin = time;
    }
    return latest;
}

/* What ran beside compute and ended last, in the wait until `time`; NULL: nothing. */
static const struct timeline_span *find_awaited(const struct track *t,
                                                const struct timeline_span *wait, int64_t time)
{
    int n = count_ended(t->beside, t->n_beside, time, true);

    return n && t->beside[n - 1]->end > wait->begin ? t->beside[n - 1] : NULL;
}

/* The rank is at the span, until `time`. Returns the rank whose time it is from *begin back: of a
 * wait the last one to begin what is waited for. */
static int go_back(const struct walk *w, int rank, const struct timeline_span *span, int64_t time,
                   int64_t *begin)
{
    const struct timeline_span *awaited =
        is_wait(span) ? find_awaited(&w->tracks[rank], span, time) : NULL;

    if (awaited) {
        const struct flow_end *end = end_of(w, rank, awaited);
        int64_t since = awaited->begin;
        int last = end ? last_member(w, end, &since) : rank;

        if (last >= 0 && since < time) {
            *begin = max_i64(since, w->first);
            add(w, rank, awaited, time - *begin);
            w->path->n_changes += last != rank;
            return last;
        }
    }
    *begin = span->begin;
    add(w, rank, span, time - *begin);
    w->path->unexplained += is_wait(span) ? time - *begin : 0;
    return rank;
}

static void walk_back(const struct walk *w, int rank, int64_t time)
{
    while (time > w->first) {
        const struct track *t = &w->tracks[rank];
        int n = count_ended(t->compute, t->n_compute, time, false);
        const struct timeline_span *span = n < t->n_compute ? t->compute[n] : NULL;

        if (span && span->begin < time) {
            rank = go_back(w, rank, span, time, &time);
            continue;
        }
        int64_t before = n ? t->compute[n - 1]->end : w->first;
        w->path->idle += time - before;
        w->path->ranks[rank] += time - before;
        time = before;
    }
}

static int64_t last_end_of(const struct track *t)
{
    int64_t compute = t->n_compute ? t->compute[t->n_compute - 1]->end : INT64_MIN;
    int64_t beside = t->n_beside ? t->beside[t->n_beside - 1]->end : INT64_MIN;

    return max_i64(compute, beside);
}

/* The rank that ends last, of several the one that is most active then; -1: there is none. */
static int find_last(const struct walk *w)
{
    int last = -1;

    for (int i = 0; i < w->timeline->n; i++) {
        int64_t end = last_end_of(&w->tracks[i]);
        int64_t most = last < 0 ? INT64_MIN : last_end_of(&w->tracks[last]);

        if (!w->tracks[i].n_compute || end < most ||
            (end == most && last >= 0 && activity_of(w, last, end) >= activity_of(w, i, end)))
            continue;
        last = i;
    }
    return last;
}

static int64_t first_begin(const struct walk *w)
{
    int64_t first = INT64_MAX;

    for (int i = 0; i < w->timeline->n; i++) {
        const struct track *t = &w->tracks[i];

        for (int k = 0; k < t->n_compute; k++)
            first = min_i64(first, t->compute[k]->begin);
        for (int k = 0; k < t->n_beside; k++)
            first = min_i64(first, t->beside[k]->begin);
    }
    return first;
}

void critical_path_find(struct critical_path *path, const struct timeline *timeline, int64_t step,
                        bool is_measured, struct arena *arena)
{
    struct arena scratch = { 0 };
    struct walk w = { .timeline = timeline,
                      .path = path,
                      .tracks = arena_array(&scratch, struct track, timeline->n),
                      .flows = { .timeline = timeline } };

    *path = (struct critical_path){ .step = step,
                                    .is_measured = is_measured,
                                    .ranks = arena_array(arena, int64_t, timeline->n) };
    for (int i = 0; i < timeline->n; i++)
        if (timeline->ranks[i].step == step && timeline->ranks[i].is_measured == is_measured)
            w.tracks[i] = make_track(&timeline->ranks[i], &scratch);
    timeline_find_flows(&w.flows);
    w.starts = arena_array(&scratch, struct flow_end *, w.flows.n_ends);
    for (int i = 0; i < w.flows.n_ends; i++)
        w.starts[i] = &w.flows.ends[i];
    if (w.flows.n_ends)
        qsort(w.starts, (size_t)w.flows.n_ends, sizeof *w.starts, compare_starts);
    int last = find_last(&w);
    if (last >= 0) {
        w.first = first_begin(&w);
        path->ns = last_end_of(&w.tracks[last]) - w.first;
        walk_back(&w, last, w.first + path->ns);
    }
    arena_release(&w.flows.arena);
    arena_release(&scratch);
}
