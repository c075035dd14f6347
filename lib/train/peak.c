/*
 * peak.c - windows of products that begin at one moment
 */
#include "train/peak.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/file.h"
#include "progress/progress.h"

#define START_MARGIN_SECONDS 1e-3 /* for the last rank to learn of the moment */
#define WINDOW_SECONDS 4e-3
#define LARGE_WINDOW_SECONDS 0.1 /* where a product takes 10 ms or more */
#define PEAK_CHANNEL 1024        /* none of the trainer's, the executor's or the replicas' */

/* ---- sums ---- */

/* Whether an earlier rank is of the same node. */
static bool is_counted(const struct peak_part *parts, int rank)
{
    for (int i = 0; i < rank; i++)
        if (parts[i].node == parts[rank].node)
            return true;
    return false;
}

double peak_stated(const struct peak_part *parts, int n_ranks)
{
    double sum = 0;

    for (int i = 0; i < n_ranks; i++) {
        int n_sharing = 0;

        for (int k = 0; k < n_ranks; k++)
            n_sharing += k == i || (parts[i].hardware && parts[k].hardware == parts[i].hardware &&
                                    parts[k].node == parts[i].node);
        if (parts[i].stated <= 0)
            return 0;
        sum += parts[i].stated / n_sharing;
    }
    return sum;
}

double peak_measured(const struct peak_part *parts, int n_ranks, double window_seconds)
{
    double sum = 0;

    for (int i = 0; i < n_ranks; i++) {
        double best = 0;

        if (is_counted(parts, i))
            continue;
        for (int window = 0; window < PEAK_WINDOWS; window++) {
            double flops = 0;

            for (int k = i; k < n_ranks; k++)
                flops += parts[k].node == parts[i].node ? parts[k].flops[window] : 0;
            best = flops > best ? flops : best;
        }
        sum += best / window_seconds;
    }
    return sum;
}

/* ---- all ranks ---- */

struct peak {
    struct engine *engine;
    struct comm_group *all;
    struct peak_part mine, *parts;
};

static int make_group(void *argument, struct err *err)
{
    struct peak *peak = argument;
    int n = peak->engine->rank.world_size, *ranks = calloc((size_t)n, sizeof *ranks);

    CHECK(ranks);
    for (int i = 0; i < n; i++)
        ranks[i] = i;
    int status = comm_group_create(&peak->all, peak->engine->comm, ranks, n, PEAK_CHANNEL, err);
    free(ranks);
    return status;
}

static int gather_parts(void *argument, struct err *err)
{
    struct peak *peak = argument;

    return comm_all_gather(peak->all, &peak->mine, peak->parts, sizeof peak->mine, err);
}

static int call(struct peak *peak, worker_fn fn, struct err *err)
{
    struct progress_slot *progress =
        peak->engine->rank.under_pmix ? progress_join(peak->engine->rank.local_rank) : NULL;

    progress_meet(progress, "measuring the machine on all ranks");
    int status =
        peak->engine->worker ? worker_call(peak->engine->worker, fn, peak, err) : fn(peak, err);
    progress_phase(progress, "starting");
    return status;
}

/* The kernel's id of this boot; 0 if unknown: all ranks are then taken to be on one node. */
static uint64_t node_of(void)
{
    char *text = NULL;
    size_t n_bytes = 0;
    struct err ignored;

    if (file_read("/proc/sys/kernel/random/boot_id", 4096, ERR_FAILED, &text, &n_bytes, &ignored))
        return 0;
    uint64_t node = XXH3_64bits(text, n_bytes);
    free(text);
    return node;
}

/* When the next window begins: the same moment on all ranks of a node. */
static int agree_on_start(void *context, double *start, struct err *err)
{
    struct peak *peak = context;

    peak->mine.now = clock_seconds();
    if (call(peak, gather_parts, err) < 0)
        return -1;
    *start = peak->mine.now;
    for (int i = 0; i < peak->engine->rank.world_size; i++)
        if (peak->parts[i].node == peak->mine.node && peak->parts[i].now > *start)
            *start = peak->parts[i].now;
    *start += START_MARGIN_SECONDS;
    return 0;
}

static int find_together(struct peak *peak, enum dtype dtype, double *flops, struct err *err)
{
    int n = peak->engine->rank.world_size;
    double seconds = engine_is_large(peak->engine) ? LARGE_WINDOW_SECONDS : WINDOW_SECONDS;

    if (call(peak, make_group, err) < 0 || call(peak, gather_parts, err) < 0)
        return -1;
    *flops = peak_stated(peak->parts, n);
    if (*flops > 0)
        return 0;
    struct engine_windows windows = {
        .n = PEAK_WINDOWS, .seconds = seconds, .agree = agree_on_start, .context = peak
    };
    if (engine_window_flops(peak->engine, dtype, &windows, peak->mine.flops, err) < 0 ||
        call(peak, gather_parts, err) < 0)
        return -1;
    *flops = peak_measured(peak->parts, n, seconds);
    return 0;
}

int peak_find(struct engine *engine, enum dtype dtype, double *flops, struct err *err)
{
    struct peak peak = { .engine = engine,
                         .mine = { .node = node_of(),
                                   .hardware = engine->device->hardware,
                                   .stated = engine_stated_flops(engine, dtype) } };

    if (engine->rank.world_size == 1)
        return engine_mfu_flops(engine, dtype, flops, err);
    peak.parts = calloc((size_t)engine->rank.world_size, sizeof *peak.parts);
    CHECK(peak.parts);
    int status = find_together(&peak, dtype, flops, err);
    free(peak.parts);
    return status;
}
