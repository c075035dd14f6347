/*
 * preflight.c - the checks in their order, and what ranks tell each other
 */
#include "train/preflight.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/num.h"
#include "launch/excluded.h"
#include "train/bench_impl.h"
#include "train/preflight_impl.h"
#include "train/signals.h"

#define POLL_MICROSECONDS 1000
#define QUICK_SECONDS 2.0
#define FULL_SECONDS 60.0
#define AGAIN_SECONDS 0.25 /* at least, of what seemed slow */
/* What seems slow is measured again: other processes may have had the cores, or the network. */
enum { N_CONFIRMATIONS = 2 };

bool preflight_is_stopped(void)
{
    return signals_pending() != 0;
}

/* That a check may take: as given, or by mode. */
static double most_seconds(const struct preflight_request *request)
{
    return request->seconds > 0 ? request->seconds
           : request->is_full   ? FULL_SECONDS
                                : QUICK_SECONDS;
}

double preflight_product_seconds(const struct preflight_check *check)
{
    double seconds = most_seconds(check->request);

    return check->own->n_repetitions ? fmax(AGAIN_SECONDS, fmin(seconds, QUICK_SECONDS)) : seconds;
}

double preflight_seconds(const struct preflight_check *check)
{
    double seconds = most_seconds(check->request);

    return check->request->is_full ? seconds : fmin(1, seconds);
}

void preflight_beat(struct preflight_check *check)
{
    progress_beat(check->progress);
}

/* ---- exchanges ---- */

struct gathering {
    struct comm_group *group;
    const void *own;
    void *all;
    size_t n_bytes;
};

static int gather(void *argument, struct err *err)
{
    const struct gathering *g = argument;

    return comm_all_gather(g->group, g->own, g->all, g->n_bytes, err);
}

int preflight_gather(struct preflight_check *check, const void *own, void *all, size_t n_bytes,
                     struct err *err)
{
    struct gathering g = { check->world, own, all, n_bytes };

    if (!check->world) {
        memcpy(all, own, n_bytes);
        return 0;
    }
    uint64_t ticket = worker_post(check->engine->worker, 0, gather, &g);
    while (!worker_done(check->engine->worker, ticket)) {
        preflight_beat(check);
        usleep(POLL_MICROSECONDS);
    }
    return worker_wait(check->engine->worker, ticket, err);
}

/* All ranks know all ranks; whether to go on: no rank has a signal. */
static int share(struct preflight_check *check, bool *goes_on, struct err *err)
{
    struct preflight *p = check->result;

    check->own->signal = signals_pending();
    if (preflight_gather(check, check->own, p->ranks, sizeof *check->own, err))
        return -1;
    for (int i = 0; i < p->n_ranks; i++)
        p->signal = max_int(p->signal, p->ranks[i].signal);
    preflight_take_medians(p, check->arena);
    *goes_on = !p->signal;
    return 0;
}

int preflight_agree(struct engine *engine, int *failed, struct err *err)
{
    struct comm_group *world;
    double any = *failed;

    if (engine->rank.world_size == 1)
        return 0;
    if (bench_group_open_world(&world, engine, err) || bench_largest(engine, world, &any, err))
        return -1;
    *failed = any > 0;
    return 0;
}

/* ---- who a rank is ---- */

static void copy_text(char *to, size_t size, const char *from)
{
    snprintf(to, size, "%s", from);
    str_make_printable(to);
}

/* "NVIDIA H200 (GPU 3)": which one of a machine's it is makes no difference to its speed. */
static uint64_t kind_of(const struct preflight_rank *own, int n_sharing)
{
    const char *index = strstr(own->device, " (GPU ");
    size_t n = index ? (size_t)(index - own->device) : strlen(own->device);

    return XXH3_64bits(own->device, n) ^ own->kernels ^ (uint64_t)n_sharing;
}

static int describe(struct preflight_check *check, struct err *err)
{
    struct engine *engine = check->engine;
    struct preflight_rank *own = check->own;
    const char *kernels = kernels_identity(engine->kernels);
    const char *device = device_is_host(engine->device) ? "cpu" : engine->device->description;
    int n = engine->rank.local_size;
    int *peers = arena_array(check->arena, int, max_int(1, n));

    *own = (struct preflight_rank){ .local_rank = engine->rank.local_rank,
                                    .local_size = max_int(1, n),
                                    .n_threads = 1 };
    copy_text(own->host, sizeof own->host, launch_host());
    copy_text(own->device, sizeof own->device, device);
    copy_text(own->pci, sizeof own->pci, engine->gpu);
    own->kernels = XXH3_64bits(kernels, strlen(kernels));
    own->kind = kind_of(own, engine->n_sharing);
    if (device_is_host(engine->device))
        own->n_threads = pool_n_threads(engine->pool);
    peers[0] = engine->rank.world_rank;
    if (n > 1 && launch_local_peers(peers, n, err))
        return -1;
    own->node = peers[0];
    return 0;
}

static void read_faults(struct preflight_check *check)
{
    enum fault fault = fault_at("preflight", -1);

    check->is_throttled = fault == FAULT_SLOW;
    check->is_flipped = fault == FAULT_FLIP;
}

/* ---- the checks ---- */

struct check_row {
    const char *name;
    int (*run)(struct preflight_check *check, struct err *err);
    bool is_collective;
    unsigned confirmed; /* bits of enum preflight_what that are measured again where slow */
};

static const struct check_row rows[] = {
    { "product", preflight_product, false, 1u << PREFLIGHT_PRODUCT },
    { "memory patterns", preflight_memory, false, 0 },
    { "memory bandwidth", preflight_bandwidth, false, 1u << PREFLIGHT_MEMORY },
    { "disk", preflight_disk, false, 0 },
    { "links", preflight_links, true, 1u << PREFLIGHT_NODE | 1u << PREFLIGHT_LINK },
};
enum { N_ROWS = sizeof rows / sizeof *rows };

/* On standard error of rank 0, and to the watchers. */
static void begin_check(struct preflight_check *check, int i)
{
    char part[32];

    progress_phase(check->progress, arena_printf(check->arena, "preflight: %s", rows[i].name));
    if (check->engine->rank.world_rank ||
        !(check->line.is_terminal || progress_line_is_due(&check->line)))
        return;
    snprintf(part, sizeof part, "%d of %d", i + 1, N_ROWS);
    const char *const texts[] = { "preflight", part, rows[i].name };
    progress_line_show(&check->line, texts, 3);
}

static bool seems_slow(const struct preflight_check *check, int rank, unsigned confirmed)
{
    for (int what = 0; what < PREFLIGHT_N_WHATS; what++)
        if ((confirmed & 1u << what) &&
            preflight_is_slow(check->result, rank, (enum preflight_what)what,
                              check->request->min_ratio))
            return true;
    return false;
}

static bool has_slow_pair(const struct preflight_check *check)
{
    for (int i = 0; i < check->result->n_pairs; i++)
        if (preflight_pair_is_slow(check->result, i, check->request->min_ratio))
            return true;
    return false;
}

/* By the ranks that seem slow, while the others wait; by all where it is collective. */
static int confirm(struct preflight_check *check, const struct check_row *row, bool *goes_on,
                   struct err *err)
{
    for (int i = 0; i < N_CONFIRMATIONS && *goes_on; i++) {
        bool is_any = row->is_collective && has_slow_pair(check);

        for (int rank = 0; rank < check->result->n_ranks && !is_any; rank++)
            is_any = seems_slow(check, rank, row->confirmed);
        if (!is_any)
            return 0;
        if ((row->is_collective ||
             seems_slow(check, check->engine->rank.world_rank, row->confirmed)) &&
            row->run(check, err))
            return -1;
        if (share(check, goes_on, err))
            return -1;
    }
    return 0;
}

static int run_checks(struct preflight_check *check, struct err *err)
{
    bool goes_on;

    if (describe(check, err) || share(check, &goes_on, err))
        return -1;
    read_faults(check);
    for (int i = 0; i < N_ROWS && goes_on; i++) {
        if (rows[i].is_collective && !check->world)
            continue;
        begin_check(check, i);
        if (rows[i].run(check, err) || share(check, &goes_on, err) ||
            confirm(check, &rows[i], &goes_on, err))
            return -1;
    }
    return 0;
}

int preflight_run(struct preflight *preflight, const struct preflight_request *request,
                  struct engine *engine, struct arena *arena, struct err *err)
{
    int n = engine->rank.world_size;
    struct preflight_rank own;
    struct preflight_check check = { .request = request,
                                     .engine = engine,
                                     .result = preflight,
                                     .own = &own,
                                     .progress = progress_join(engine->rank.local_rank),
                                     .arena = arena };
    double begin = clock_seconds();

    *preflight =
        (struct preflight){ .n_ranks = n, .ranks = arena_array(arena, struct preflight_rank, n) };
    if (n > 1 && bench_group_open_world(&check.world, engine, err))
        return -1;
    progress_line_begin(&check.line, 2);
    int status = run_checks(&check, err);
    progress_line_end(&check.line);
    progress_phase(check.progress, "starting");
    preflight->seconds = clock_seconds() - begin;
    if (!status && !preflight->signal)
        preflight_judge(preflight, request->min_ratio, arena);
    return status;
}
