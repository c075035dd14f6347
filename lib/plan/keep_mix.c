/*
 * keep_mix.c - steps along the hulls of all kinds, the best for its time first
 */
#include "plan/keep_mix.h"

#include <string.h>

#include "base/err.h"
#include "base/num.h"

/* ---- the hull ---- */

static int64_t bytes_of(const struct mix_point *p, int n_slots, int n_handed)
{
    return n_slots * p->slot_bytes + n_handed * p->handed_bytes;
}

/* What the middle one of three points saves of the time of the straight line between the others. */
static double gain_of(const struct mix_point *a, const struct mix_point *middle,
                      const struct mix_point *b, int n_slots, int n_handed)
{
    double first = (double)bytes_of(a, n_slots, n_handed);
    double width = first - (double)bytes_of(b, n_slots, n_handed);
    double part = first - (double)bytes_of(middle, n_slots, n_handed);

    return (double)a->ns + (double)(b->ns - a->ns) * part / width - (double)middle->ns;
}

static int thin(struct mix_point *points, int n, int n_slots, int n_handed, int n_max)
{
    while (n > n_max) {
        int least = 1;

        for (int i = 2; i + 1 < n; i++)
            if (gain_of(&points[i - 1], &points[i], &points[i + 1], n_slots, n_handed) <
                gain_of(&points[least - 1], &points[least], &points[least + 1], n_slots, n_handed))
                least = i;
        memmove(&points[least], &points[least + 1], sizeof *points * (size_t)(n - least - 1));
        n--;
    }
    return n;
}

int keep_mix_hull(struct mix_point *points, int n, int n_slots, int n_handed, int n_max)
{
    int n_kept = 0;

    for (int i = 0; i < n; i++) {
        struct mix_point p = points[i];

        if (n_kept &&
            bytes_of(&p, n_slots, n_handed) >= bytes_of(&points[n_kept - 1], n_slots, n_handed))
            continue;
        while (n_kept && points[n_kept - 1].ns == p.ns)
            n_kept--;
        while (n_kept > 1 &&
               gain_of(&points[n_kept - 2], &points[n_kept - 1], &p, n_slots, n_handed) <= 0)
            n_kept--;
        points[n_kept++] = p;
    }
    return thin(points, n_kept, n_slots, n_handed, n_max < 2 ? 2 : n_max);
}

/* ---- steps ---- */

/* The layers of a group: n_next of them have the point after `at` of its hull, the others this. */
struct mix_place {
    int at, n_next;
};

struct mixing {
    const struct mix_problem *problem;
    struct mix_kind *hulls;   /* by kind */
    struct mix_place *places; /* by group */
};

/* A layer from one point to another. */
struct mix_step {
    const struct mix_point *from, *to;
    int group;
};

static int64_t saved_bytes(const struct mixing *m, const struct mix_step *step)
{
    const struct mix_problem *p = m->problem;

    return bytes_of(step->from, p->n_slots, p->n_handed) -
           bytes_of(step->to, p->n_slots, p->n_handed);
}

static int64_t added_ns(const struct mixing *m, const struct mix_step *step)
{
    return m->problem->groups[step->group].n_chunks * (step->to->ns - step->from->ns);
}

static double rate_of(const struct mixing *m, const struct mix_step *step)
{
    return (double)saved_bytes(m, step) / (double)max_i64(1, added_ns(m, step));
}

static void add_point(struct mix_sum *sum, const struct mix_point *point, int times)
{
    sum->ns += times * point->ns;
    sum->slot_bytes += times * point->slot_bytes;
    sum->handed_bytes += times * point->handed_bytes;
}

/* The best for its time. Returns whether there is one. */
static bool find_step(const struct mixing *m, struct mix_step *best)
{
    bool is_any = false;

    for (int g = 0; g < m->problem->n_groups; g++) {
        const struct mix_kind *hull = &m->hulls[m->problem->groups[g].kind];
        int at = m->places[g].at;

        if (!m->problem->groups[g].n_layers || at + 1 >= hull->n_points)
            continue;
        struct mix_step step = { &hull->points[at], &hull->points[at + 1], g };
        if (!is_any || rate_of(m, &step) > rate_of(m, best))
            *best = step;
        is_any = true;
    }
    return is_any;
}

/* Whether so many bytes less are needed after the step. */
static bool is_enough(const struct mixing *m, const struct mix *mix, const struct mix_step *step,
                      int64_t wanted)
{
    return saved_bytes(m, step) - max_i64(0, step->to->scratch_bytes - mix->scratch_bytes) >=
           wanted;
}

/* The fastest that is enough: the step on the hull, which is, or one to another point. */
static struct mix_step find_last(const struct mixing *m, const struct mix *mix,
                                 struct mix_step best, int64_t wanted)
{
    for (int g = 0; g < m->problem->n_groups; g++) {
        const struct mix_group *group = &m->problem->groups[g];
        const struct mix_kind *kind = &m->problem->kinds[group->kind];
        const struct mix_place *place = &m->places[g];

        for (int i = 0; i < 2; i++) {
            if (!(i ? place->n_next : group->n_layers - place->n_next))
                continue;
            struct mix_step step = { &m->hulls[group->kind].points[place->at + i], NULL, g };
            for (int to = 0; to < kind->n_points; to++) {
                step.to = &kind->points[to];
                if (added_ns(m, &step) < added_ns(m, &best) && is_enough(m, mix, &step, wanted))
                    best = step;
            }
        }
    }
    return best;
}

static void take_step(struct mixing *m, struct mix *mix, const struct mix_step *step)
{
    struct mix_place *place = &m->places[step->group];

    add_point(&mix->sums[step->group], step->from, -1);
    add_point(&mix->sums[step->group], step->to, 1);
    mix->scratch_bytes = max_i64(mix->scratch_bytes, step->to->scratch_bytes);
    if (++place->n_next == m->problem->groups[step->group].n_layers)
        *place = (struct mix_place){ place->at + 1, 0 };
}

static void count(const struct mix_problem *p, struct mix *mix)
{
    int64_t slot = p->slot_bytes, handed = p->handed_bytes;

    mix->ns = 0;
    for (int g = 0; g < p->n_groups; g++) {
        slot += mix->sums[g].slot_bytes;
        handed += mix->sums[g].handed_bytes;
        mix->ns += p->groups[g].n_chunks * mix->sums[g].ns;
    }
    mix->n_bytes = p->n_slots * slot + p->n_handed * handed + mix->scratch_bytes;
    mix->fits = mix->n_bytes <= p->available;
}

/* Each with the first point of its hull. */
static void open_mix(struct mixing *m, struct mix *mix)
{
    const struct mix_problem *p = m->problem;

    mix->scratch_bytes = p->scratch_bytes;
    for (int g = 0; g < p->n_groups; g++) {
        const struct mix_point *first = &m->hulls[p->groups[g].kind].points[0];

        add_point(&mix->sums[g], first, p->groups[g].n_layers);
        if (p->groups[g].n_layers)
            mix->scratch_bytes = max_i64(mix->scratch_bytes, first->scratch_bytes);
    }
    count(p, mix);
}

void keep_mix(struct mix *mix, const struct mix_problem *p, struct arena *arena)
{
    struct mixing m = { .problem = p,
                        .hulls = arena_array(arena, struct mix_kind, p->n_kinds),
                        .places = arena_array(arena, struct mix_place, p->n_groups) };
    struct mix_step step;

    *mix = (struct mix){ .sums = arena_array(arena, struct mix_sum, p->n_groups) };
    for (int k = 0; k < p->n_kinds; k++) {
        const struct mix_kind *kind = &p->kinds[k];
        struct mix_point *points = arena_array(arena, struct mix_point, kind->n_points);

        CHECK(kind->n_points > 0);
        memcpy(points, kind->points, sizeof *points * (size_t)kind->n_points);
        m.hulls[k].n_points =
            keep_mix_hull(points, kind->n_points, p->n_slots, p->n_handed, kind->n_points);
        m.hulls[k].points = points;
    }
    open_mix(&m, mix);
    while (!mix->fits && find_step(&m, &step)) {
        int64_t over = mix->n_bytes - p->available;

        if (is_enough(&m, mix, &step, over))
            step = find_last(&m, mix, step, over);
        take_step(&m, mix, &step);
        count(p, mix);
    }
}
