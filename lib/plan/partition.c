/*
 * partition.c - tables over layers and devices that are left, for each number of stages
 */
#include "plan/partition.h"

#include <stdlib.h>

#include "base/num.h"

/* The best of layers begin.. on devices device.. in exactly n_stages stages. */
struct cell {
    int64_t value; /* of the objective at hand */
    int64_t slowest;
    int end, n; /* its first stage's */
};

struct solving {
    const struct partition_problem *problem;
    struct cell *cells; /* [n_stages][begin][device] */
    int64_t *costs;     /* those that stages have, in order; without those that are equal */
    int n_costs;
    int64_t cap; /* stages may take no longer */
    bool is_sum; /* value: the sum, else the slowest */
};

/* Then as many stages are left as devices, and a cell has no device of its own. */
static bool is_one_each(const struct partition_problem *p)
{
    return p->most_per_stage == 1 && !p->may_idle;
}

static struct cell *cell_at(const struct solving *s, int n_stages, int begin, int device)
{
    const struct partition_problem *p = s->problem;
    int64_t at = (int64_t)n_stages * (p->n_layers + 1) + begin;

    return &s->cells[is_one_each(p) ? at : at * (p->n_devices + 1) + device];
}

static int most_stages(const struct partition_problem *p)
{
    return min_int(p->n_layers, p->n_devices);
}

/* No stages: nothing is left. */
static void fill_ends(struct solving *s)
{
    const struct partition_problem *p = s->problem;

    for (int begin = 0; begin <= p->n_layers; begin++)
        for (int device = is_one_each(p) ? p->n_devices : 0; device <= p->n_devices; device++)
            *cell_at(s, 0, begin, device) =
                (struct cell){ .value =
                                   begin == p->n_layers && (device == p->n_devices || p->may_idle)
                                       ? 0
                                       : PARTITION_NEVER };
}

/* Returns whether the same stage with more layers may be better. */
static bool try_stage(struct solving *s, int n_stages, const struct partition_stage *stage,
                      struct cell *best)
{
    const struct partition_problem *p = s->problem;
    const struct cell *rest = cell_at(s, n_stages - 1, stage->end, stage->device + stage->n);

    if (rest->value >= PARTITION_NEVER)
        return true;
    int64_t cost = p->cost(p->context, stage, n_stages - 1);
    if (cost >= PARTITION_NEVER || cost > s->cap || cost >= best->value)
        return !p->is_monotone;
    int64_t value = s->is_sum ? rest->value + cost : max_i64(rest->value, cost);
    if (value < best->value)
        *best = (struct cell){ value, max_i64(rest->slowest, cost), stage->end, stage->n };
    return true;
}

static void fill_cell(struct solving *s, int n_stages, int begin, int device)
{
    const struct partition_problem *p = s->problem;
    struct cell best = { .value = PARTITION_NEVER };

    for (int n = 1; n <= min_int(p->most_per_stage, p->n_devices - device); n++)
        for (int end = begin + 1; end <= p->n_layers; end++) {
            struct partition_stage stage = { begin, end, device, n };

            if (!try_stage(s, n_stages, &stage, &best))
                break;
        }
    *cell_at(s, n_stages, begin, device) = best;
}

static void fill(struct solving *s)
{
    const struct partition_problem *p = s->problem;

    for (int n = 1; n <= most_stages(p); n++)
        for (int begin = 0; begin <= p->n_layers; begin++)
            for (int device = is_one_each(p) ? p->n_devices - n : 0;
                 device <= (is_one_each(p) ? p->n_devices - n : p->n_devices); device++)
                fill_cell(s, n, begin, device);
}

/* The number of stages with which all layers on all devices are best; 0: there is none. Fewer among
 * equals. */
static int best_number(const struct solving *s)
{
    const struct partition_problem *p = s->problem;
    int best = 0;

    for (int n = is_one_each(p) ? p->n_devices : 1; n <= most_stages(p); n++)
        if (cell_at(s, n, 0, 0)->value < (best ? cell_at(s, best, 0, 0)->value : PARTITION_NEVER))
            best = n;
    return best;
}

static void take(struct partition *partition, const struct solving *s, int n_stages,
                 struct arena *arena)
{
    int begin = 0, device = 0;

    partition->stages = arena_array(arena, struct partition_stage, n_stages);
    partition->n = n_stages;
    partition->slowest = cell_at(s, n_stages, 0, 0)->slowest;
    partition->sum = 0;
    for (int i = 0; i < n_stages; i++) {
        const struct cell *c = cell_at(s, n_stages - i, begin, device);
        struct partition_stage *stage = &partition->stages[i];

        *stage = (struct partition_stage){ begin, c->end, device, c->n };
        partition->sum += s->problem->cost(s->problem->context, stage, n_stages - 1 - i);
        begin = c->end;
        device += c->n;
    }
}

/* ---- the step ---- */

static int compare(const void *pa, const void *pb)
{
    int64_t a = *(const int64_t *)pa, b = *(const int64_t *)pb;

    return (a > b) - (a < b);
}

/* All that stages can take, at least `least`: the caps that matter. */
static void list_costs(struct solving *s, int64_t least, struct arena *scratch)
{
    const struct partition_problem *p = s->problem;
    int capacity = 0, n = 0;

    for (int begin = 0; begin < p->n_layers; begin++)
        for (int end = begin + 1; end <= p->n_layers; end++)
            for (int device = 0; device < p->n_devices; device++)
                for (int k = 1; k <= min_int(p->most_per_stage, p->n_devices - device); k++)
                    for (int behind = 0; behind < most_stages(p); behind++) {
                        struct partition_stage stage = { begin, end, device, k };
                        int64_t cost = p->cost(p->context, &stage, behind);

                        if (cost < least || cost >= PARTITION_NEVER)
                            continue;
                        s->costs =
                            arena_grow(scratch, s->costs, sizeof *s->costs, &capacity, n + 1);
                        s->costs[n++] = cost;
                    }
    if (n)
        qsort(s->costs, (size_t)n, sizeof *s->costs, compare);
    for (int i = 0; i < n; i++)
        if (!i || s->costs[i] != s->costs[i - 1])
            s->costs[s->n_costs++] = s->costs[i];
}

/* The best sum below each cap; with a higher cap nothing can be below the slowest that it allows
 * and the least sum there is. */
static void find_step(struct partition *best, struct solving *s, struct arena *arena,
                      struct arena *scratch)
{
    int64_t others = s->problem->n_micro_batches - 1, least = best->slowest, least_sum;

    s->is_sum = true;
    s->cap = PARTITION_NEVER;
    fill(s);
    least_sum = cell_at(s, best_number(s), 0, 0)->value;
    best->objective = best->sum + others * best->slowest;
    list_costs(s, least, scratch);
    for (int i = 0; i < s->n_costs && least_sum + others * s->costs[i] < best->objective; i++) {
        s->cap = s->costs[i];
        fill(s);
        int n = best_number(s);
        const struct cell *c = cell_at(s, n, 0, 0);
        if (!n || c->value + others * c->slowest >= best->objective)
            continue;
        best->objective = c->value + others * c->slowest;
        take(best, s, n, arena);
    }
}

void partition_find(struct partition *partition, const struct partition_problem *problem,
                    struct arena *arena)
{
    struct arena scratch = { 0 };
    struct solving s = { .problem = problem, .cap = PARTITION_NEVER };

    *partition = (struct partition){ .objective = PARTITION_NEVER };
    s.cells = arena_array(&scratch, struct cell,
                          (int64_t)(most_stages(problem) + 1) * (problem->n_layers + 1) *
                              (is_one_each(problem) ? 1 : problem->n_devices + 1));
    fill_ends(&s);
    fill(&s);
    int n = best_number(&s);
    if (n) {
        take(partition, &s, n, arena);
        partition->objective = partition->slowest;
        if (problem->n_micro_batches > 0)
            find_step(partition, &s, arena, &scratch);
    }
    arena_release(&scratch);
}
