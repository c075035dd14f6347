/*
 * offload_points.c - where in a function copies are posted, and where their end is awaited
 *
 * With the times of ops and copies, by gaps.h; else one op ahead: a copy to the device is posted
 * where the op begins that needs the one before it, and what left is awaited two copies later.
 */
#include <string.h>

#include "base/num.h"
#include "program/gaps.h"
#include "program/offload_impl.h"

/* That travel at a time, of the largest size. */
enum { N_COPIES_AHEAD = 2 };

/* ---- points, without times ---- */

/* The first op of the stays that begin `back` ops of that kind before stay i. */
static int first_of_group(const struct visits *s, int i, int back)
{
    int at = s->list[i].first;

    for (; i >= 0 && back; i--)
        if (s->list[i].first < at) {
            at = s->list[i].first;
            back--;
        }
    return back ? 0 : at;
}

/* The first op of the stays `ahead` groups later; n_ops: there are none. */
static int first_ahead(const struct visits *s, int i, int ahead, int n_ops)
{
    int at = s->list[i].first;

    for (; i < s->n && ahead; i++)
        if (s->list[i].first > at) {
            at = s->list[i].first;
            ahead--;
        }
    return ahead ? n_ops : at;
}

static void point_by_order(struct visits *s, int n_ops)
{
    for (int i = 0; i < s->n; i++) {
        s->list[i].bring_at = first_of_group(s, i, 1);
        s->list[i].await_at = first_ahead(s, i, 2, n_ops);
    }
}

/* ---- points, by the times of ops and copies ---- */

/* Of a visit: before it, from the period's begin on, the value is at home, and behind it again. */
enum { GAP_BEFORE, GAP_BEHIND, N_GAPS };

static void list_gaps(const struct offload *o, const struct visits *s, int n_ops, struct gap *gaps)
{
    for (int i = 0; i < s->n; i++) {
        const struct visit *v = &s->list[i];
        int64_t n_bytes = v->is_home ? 0 : (int64_t)program_value_bytes(o->program, v->value);
        bool is_clean = v->last_write < 0;

        /* What comes into being is not brought. */
        gaps[N_GAPS * i + GAP_BEFORE] = (struct gap){
            .n_bytes = offload_is_brought(o, v) ? n_bytes : 0, .from = -1, .to = v->first
        };
        gaps[N_GAPS * i + GAP_BEHIND] =
            (struct gap){ .n_bytes = n_bytes,
                          .from = v->last,
                          .to = n_ops,
                          .clean = is_clean,
                          .n_early = is_clean ? 0 : v->last - v->last_write };
    }
}

void offload_list_times(const struct offload *o, const struct function *f, int64_t *ns)
{
    const struct copy_times *times = &o->options->times;

    for (int i = 0; i < f->n_ops; i++) {
        struct op_shape shape = program_op_shape(o->program, &f->ops[i]);

        ns[i] = f->ops[i].stream == STREAM_COMPUTE && op_has_kernel(f->ops[i].kind)
                    ? times->op_ns(times->context, &shape)
                    : 0;
    }
}

/*
 * A period is this function alone, since its end waits for copies of what is in scratch memory.
 * What is on its way takes memory, too: no more than some of the largest copies beside what the
 * fullest op must have.
 */
static void point_by_times(const struct offload *o, struct visits *s, const struct function *f)
{
    const struct copy_times *times = &o->options->times;
    int64_t *ns = arena_array(o->arena, int64_t, f->n_ops), all = 0, largest = 0;
    int64_t *resident = arena_array(o->arena, int64_t, f->n_ops);
    struct gap *gaps = arena_array(o->arena, struct gap, N_GAPS * s->n);
    bool *away = arena_array(o->arena, bool, N_GAPS * s->n);
    struct gap_problem problem = { .n_ops = f->n_ops,
                                   .ns = ns,
                                   .resident = resident,
                                   .n_gaps = N_GAPS * s->n,
                                   .gaps = gaps,
                                   .out_rate = times->out_rate,
                                   .in_rate = times->in_rate,
                                   .latency_ns = times->latency_ns };
    struct gap_schedule schedule;
    struct err err;
    int fullest;

    offload_list_times(o, f, ns);
    list_gaps(o, s, f->n_ops, gaps);
    for (int i = 0; i < s->n; i++) {
        int64_t n_bytes =
            s->list[i].is_home ? 0 : (int64_t)program_value_bytes(o->program, s->list[i].value);

        all += n_bytes;
        largest = max_i64(largest, n_bytes);
    }
    for (int i = 0; i < f->n_ops; i++)
        resident[i] = all;
    memset(away, 1, sizeof *away * (size_t)problem.n_gaps);
    problem.capacity = gaps_floor(&problem, &fullest) +
                       max_int(0, N_COPIES_AHEAD - o->options->rank.n_fewer_ahead) * largest;
    CHECK(gaps_time(&schedule, &problem, away, o->arena, &err) == 0);
    for (int i = 0; i < s->n; i++) {
        s->list[i].bring_at = schedule.in_issue[N_GAPS * i + GAP_BEFORE];
        s->list[i].await_at = schedule.out_await[N_GAPS * i + GAP_BEHIND];
    }
}

/* ---- both ---- */

static bool is_beside(const struct program *p, const struct visit *a, const struct visit *b)
{
    return a->value != b->value &&
           program_overlap(p, p->values[a->value].home, p->values[b->value].home);
}

/*
 * Values whose homes overlap (a cell and its pieces): what one writes is at home before another is
 * brought. chain: by visit 1 + the one before it whose home is in the same value, 0 none.
 */
static int behind_others(const struct offload *o, const struct visits *s, int i, const int *chain)
{
    int earliest = 0;

    for (int k = chain[i] - 1; k >= 0; k = chain[k] - 1)
        if (is_beside(o->program, &s->list[k], &s->list[i]))
            earliest = max_int(earliest, s->list[k].is_home ? s->list[k].last + 1
                                                            : s->list[k].last_write + 1);
    return earliest;
}

static int *chain_homes(const struct offload *o, const struct visits *s)
{
    const struct program *p = o->program;
    int *newest = arena_array(o->arena, int, p->n_values),
        *chain = arena_array(o->arena, int, s->n);

    for (int i = 0; i < s->n; i++) {
        int home = program_whole(p, p->values[s->list[i].value].home);

        chain[i] = newest[home];
        newest[home] = 1 + i;
    }
    return chain;
}

/* A stay begins behind the one before of the same value, and has left where the next begins. */
static void keep_apart(const struct offload *o, struct visits *s, int n_ops)
{
    const int *chain = chain_homes(o, s);

    for (int i = 0; i < s->n; i++) {
        struct visit *v = &s->list[i];
        int earliest = v->before ? s->list[v->before - 1].last + 1 : 0;

        earliest = max_int(earliest, behind_others(o, s, i, chain));
        if (v->is_home)
            v->bring_at = v->first;
        else if (offload_is_brought(o, v))
            v->bring_at = min_int(max_int(v->bring_at, earliest), v->first);
        else
            v->bring_at = -1;
    }
    for (int i = 0; i < s->n; i++) {
        struct visit *v = &s->list[i];
        int latest = v->after ? s->list[v->after - 1].bring_at : n_ops;

        v->await_at = min_int(max_int(v->await_at, v->last + 1), latest);
    }
}

void offload_find_points(const struct offload *o, struct visits *visits, const struct function *f)
{
    if (o->options->times.op_ns)
        point_by_times(o, visits, f);
    else
        point_by_order(visits, f->n_ops);
    keep_apart(o, visits, f->n_ops);
}
