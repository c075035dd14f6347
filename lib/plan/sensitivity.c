/*
 * sensitivity.c - see the header
 */
#include "plan/sensitivity.h"

#include "plan/changes.h"

/* What is predicted: parts, a slow rank, other layouts. */
enum { SLOW_RANK = N_DEVICE_PARTS, FIRST_CHANGE, N_VARIATIONS = FIRST_CHANGE + N_CHANGES };

const char *device_part_name(enum device_part part)
{
    static const char *const names[N_DEVICE_PARTS] = { "products", "memory", "fast link", "NICs" };

    return names[part];
}

/* A copy in the arena, of all islands and their devices. */
static struct cluster make_faster(const struct cluster *cluster, enum device_part part,
                                  struct arena *arena)
{
    const double by = SENSITIVITY_FASTER;
    struct cluster faster = *cluster;

    faster.islands = arena_array(arena, struct cluster_island, cluster->n_islands);
    faster.faster.products = part == PART_PRODUCTS ? by : 1;
    faster.faster.memory = part == PART_MEMORY ? by : 1;
    faster.faster.links = part == PART_FAST_LINK ? by : 1;
    faster.links.fast_bus *= part == PART_FAST_LINK ? by : 1;
    for (int i = 0; i < cluster->n_islands; i++) {
        struct device_spec *device = arena_array(arena, struct device_spec, 1);

        *device = *cluster->islands[i].device;
        for (int f = 0; f < N_DEVICE_FORMATS && part == PART_PRODUCTS; f++)
            device->step_reach[f] *= by;
        device->hbm *= part == PART_MEMORY ? by : 1;
        device->fast_bus *= part == PART_FAST_LINK ? by : 1;
        device->fast_link *= part == PART_FAST_LINK ? by : 1;
        faster.islands[i] = cluster->islands[i];
        faster.islands[i].device = device;
        faster.islands[i].nic *= part == PART_NIC ? by : 1;
    }
    return faster;
}

/* ---- one variation each ---- */

struct variations {
    const struct plan *plan;
    const struct cluster *cluster;
    const struct step_time *time;
    bool fits; /* the plan */
    struct variation {
        bool is_made; /* with: */
        int64_t ns;
        struct plan_fit fit;
        struct str change;
        struct err err;
        int status;
    } of[N_VARIATIONS];
};

static void predict_hardware(struct variations *v, int which, struct arena *arena)
{
    struct variation *variation = &v->of[which];
    struct cluster cluster = *v->cluster;
    struct step_time time;

    if (which == SLOW_RANK) {
        cluster.slow.stage = v->time->simulated.busiest;
        cluster.slow.factor = SENSITIVITY_SLOWER;
    } else {
        cluster = make_faster(v->cluster, (enum device_part)which, arena);
    }
    variation->status = step_time_predict(&time, v->plan, &cluster, arena, &variation->err);
    variation->ns = time.ns;
    variation->is_made = true;
}

static bool fits_roomier(const struct plan_fit *fit)
{
    return !fit->fits && fit->needed <= fit->available + SENSITIVITY_MEMORY;
}

/* Only that with half the micro-batches is of interest wherever it fits. */
static void predict_layout(struct variations *v, enum change change, struct arena *arena)
{
    struct variation *variation = &v->of[FIRST_CHANGE + (int)change];
    struct plan plan = { 0 };
    struct step_time time;
    struct job job;
    struct err ignored;

    if ((!v->fits && change != CHANGE_MICRO_BATCH) ||
        !changes_make(&job, v->plan->job, change, arena))
        return;
    if (!plan_open_with(&plan, &job, v->plan->kernels, &ignored)) {
        variation->fit = plan_judge(&plan, v->cluster, 0);
        if ((change == CHANGE_MICRO_BATCH || fits_roomier(&variation->fit)) &&
            !step_time_predict(&time, &plan, v->cluster, arena, &ignored)) {
            variation->is_made = true;
            variation->ns = time.ns;
            changes_describe(v->plan->job, &job, &variation->change);
        }
    }
    plan_close(&plan);
}

static void predict_variation(void *context, int64_t tile, int thread)
{
    struct arena arena = { 0 };
    int which = (int)tile;

    (void)thread;
    if (which < FIRST_CHANGE)
        predict_hardware(context, which, &arena);
    else
        predict_layout(context, (enum change)(which - FIRST_CHANGE), &arena);
    arena_release(&arena);
}

/* ---- all of them ---- */

static struct other_layout take(const struct variation *variation, struct arena *arena)
{
    return (struct other_layout){ .change = arena_strdup(arena, str_text(&variation->change)),
                                  .ns = variation->ns,
                                  .fit = variation->fit };
}

static void take_layouts(struct sensitivity *s, const struct variations *v, struct arena *arena)
{
    const struct variation *best = NULL;

    for (int i = FIRST_CHANGE; i < N_VARIATIONS; i++) {
        const struct variation *variation = &v->of[i];

        if (variation->is_made && v->fits && fits_roomier(&variation->fit) &&
            variation->ns < (best ? best->ns : v->time->ns))
            best = variation;
    }
    if (best)
        s->roomier = take(best, arena);
    if (v->of[FIRST_CHANGE + CHANGE_MICRO_BATCH].is_made)
        s->halved = take(&v->of[FIRST_CHANGE + CHANGE_MICRO_BATCH], arena);
}

int sensitivity_find(struct sensitivity *s, const struct plan *plan, const struct cluster *cluster,
                     const struct step_time *time, struct arena *arena, struct err *err)
{
    struct variations v = {
        .plan = plan, .cluster = cluster, .time = time, .fits = plan_judge(plan, cluster, 0).fits
    };
    int status = 0;

    *s = (struct sensitivity){ .slow_ns = 0 };
    pool_run(plan->pool, N_VARIATIONS, predict_variation, &v);
    for (int i = 0; i < FIRST_CHANGE; i++) {
        if (v.of[i].status && !status)
            *err = v.of[i].err;
        status = v.of[i].status ? -1 : status;
    }
    for (int i = 0; i < N_DEVICE_PARTS; i++)
        s->faster_ns[i] = v.of[i].ns;
    s->slow_ns = v.of[SLOW_RANK].ns;
    take_layouts(s, &v, arena);
    for (int i = 0; i < N_VARIATIONS; i++)
        str_release(&v.of[i].change);
    return status;
}
