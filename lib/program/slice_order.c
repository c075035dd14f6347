/*
 * slice_order.c - in which order slices run, so that collectives travel under what is computed
 */
#include "program/slice_impl.h"

#include <string.h>

#include "base/num.h"
#include "program/program.h"
#include "program/slowdown.h"

/* How many ops ahead of the first that is left a task may be; and one that waits for nothing. */
enum { WINDOW = 12, NEAR = 2 };

struct play {
    const struct slice_task *tasks;
    int n, first;  /* of the tasks that are left */
    bool is_deep;  /* of two that can begin, that of the later op; else that of the earlier one */
    bool by_slice; /* of those that may be posted, the first of the lowest slice; else the first */
    int64_t now;
    struct slow_time streams[N_STREAMS]; /* of what was posted last, without a gap */
    int64_t *end;                        /* by task; NOT_YET */
};

#define NOT_YET ((int64_t)-1)

/* When what the task comes after has ended; NOT_YET where some of it is not in the order. */
static int64_t ready_at(const struct play *p, const struct slice_task *task)
{
    int64_t at = 0;

    for (int i = 0; i < task->n_after; i++) {
        if (p->end[task->after[i]] == NOT_YET)
            return NOT_YET;
        at = max_i64(at, p->end[task->after[i]]);
    }
    return at;
}

static bool is_posted(const struct slice_task *task)
{
    return task->stream != STREAM_COMPUTE;
}

/* The op of the first that is left and that something waits for. */
static int first_needed(const struct play *p)
{
    int i = p->first;

    while (i + 1 < p->n && (p->tasks[i].may_wait || p->end[i] != NOT_YET))
        i++;
    return p->tasks[i].op;
}

/* Of those that may be posted; -1: none. What waits for nothing would only take memory early. */
static int find_posted(const struct play *p, int near)
{
    int last = p->tasks[p->first].op, needed = first_needed(p), best = -1;

    for (int i = p->first; i < p->n && p->tasks[i].op < last + WINDOW; i++) {
        const struct slice_task *task = &p->tasks[i];

        if (is_posted(task) && p->end[i] == NOT_YET && ready_at(p, task) != NOT_YET &&
            (task->n_after || task->op <= needed + near) &&
            (best < 0 || (p->by_slice && task->slice < p->tasks[best].slice)))
            best = i;
    }
    return best;
}

/* Whether a is to run rather than b, a task before it, which can begin at those times. */
static bool is_better(const struct play *p, const struct slice_task *a, int64_t a_at,
                      const struct slice_task *b, int64_t b_at)
{
    if (a->may_wait != b->may_wait)
        return a->may_wait ? b_at - a_at > a->ns / 4 : a_at - b_at <= b->ns / 4;
    if (a_at != b_at)
        return a_at < b_at;
    if (a->is_cheap != b->is_cheap)
        return a->is_cheap;
    return p->is_deep && a->op > b->op;
}

static int find_computed(const struct play *p, int64_t *at)
{
    int best = -1, last = p->tasks[p->first].op;

    for (int i = p->first; i < p->n && p->tasks[i].op < last + WINDOW; i++) {
        const struct slice_task *task = &p->tasks[i];
        int64_t ready = is_posted(task) || p->end[i] != NOT_YET ? NOT_YET : ready_at(p, task);

        if (ready == NOT_YET)
            continue;
        ready = max_i64(ready, p->now);
        if (best < 0 || is_better(p, task, ready, &p->tasks[best], *at)) {
            best = i;
            *at = ready;
        }
    }
    return best;
}

static void post(struct play *p, int i)
{
    const struct slice_task *task = &p->tasks[i];
    struct slow_time *stream = &p->streams[task->stream];
    int64_t begin = max_i64(max_i64(ready_at(p, task), stream->end), p->now);

    if (begin > stream->end)
        stream->begin = begin;
    p->end[i] = stream->end = begin + task->ns;
    stream->slowdown = task->slowdown;
}

static int64_t play(const struct slice_task *tasks, int n, bool is_deep, bool by_slice, int *order)
{
    struct arena arena = { 0 };
    struct play p = { .tasks = tasks,
                      .n = n,
                      .is_deep = is_deep,
                      .by_slice = by_slice,
                      .end = arena_array(&arena, int64_t, n) };
    int64_t last = 0;

    for (int i = 0; i < n; i++)
        p.end[i] = NOT_YET;
    for (int at = 0; at < n; at++) {
        int64_t begin = 0;
        int i = find_posted(&p, NEAR);

        if (i < 0 && (i = find_computed(&p, &begin)) >= 0)
            p.now = p.end[i] = slowdown_end(p.streams, N_STREAMS, begin, tasks[i].ns);
        else
            post(&p, i = i < 0 ? find_posted(&p, WINDOW) : i);
        last = max_i64(last, p.end[i]);
        order[at] = i;
        while (p.first < n && p.end[p.first] != NOT_YET)
            p.first++;
    }
    arena_release(&arena);
    return last;
}

int64_t slice_order(const struct slice_task *tasks, int n, int *order)
{
    struct arena arena = { 0 };
    int *other = arena_array(&arena, int, n);
    int64_t least = play(tasks, n, false, false, order);

    for (int way = 1; way < 4; way++) {
        int64_t ns = play(tasks, n, way & 1, way & 2, other);

        if (ns >= least)
            continue;
        least = ns;
        memcpy(order, other, sizeof *order * (size_t)n);
    }
    arena_release(&arena);
    return least;
}
