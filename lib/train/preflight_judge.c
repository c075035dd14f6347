/*
 * preflight_judge.c - what the figures of all ranks say: a pure function
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/num.h"
#include "train/preflight.h"

/*
 * What is shared with other processes (memory of a machine, a network) varies more than products
 * do, whose best repetition counts. A disk is compared too, but its speed never makes a host unfit.
 */
static const double allowed[PREFLIGHT_N_WHATS] = {
    [PREFLIGHT_PRODUCT] = 1,     [PREFLIGHT_MEMORY] = 0.7, [PREFLIGHT_DISK_WRITE] = 0.3,
    [PREFLIGHT_DISK_READ] = 0.3, [PREFLIGHT_NODE] = 0.5,   [PREFLIGHT_LINK] = 0.5,
};

static const char *const subjects[PREFLIGHT_N_WHATS] = {
    [PREFLIGHT_PRODUCT] = "the product runs at",
    [PREFLIGHT_MEMORY] = "memory is copied at",
    [PREFLIGHT_DISK_WRITE] = "the disk is written at",
    [PREFLIGHT_DISK_READ] = "the disk is read at",
    [PREFLIGHT_NODE] = "all-reduce in the node runs at",
    [PREFLIGHT_LINK] = "the best link to another node has",
};

/* ---- medians ---- */

static int compare_numbers(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Whether figures of two ranks compare. Disks and links do not depend on the device. */
static bool is_alike(const struct preflight_rank *a, const struct preflight_rank *b,
                     enum preflight_what what)
{
    switch (what) {
    case PREFLIGHT_PRODUCT:
    case PREFLIGHT_MEMORY:
        return a->kind == b->kind && (what == PREFLIGHT_PRODUCT || a->local_size == b->local_size);
    case PREFLIGHT_NODE:
        return a->kind == b->kind && a->local_size == b->local_size;
    default:
        return true;
    }
}

/* numbers: memory for one of each rank. */
static double median_of(const struct preflight *p, int rank, enum preflight_what what,
                        double *numbers)
{
    int n = 0;

    for (int i = 0; i < p->n_ranks; i++)
        if (p->ranks[i].speed[what] > 0 && is_alike(&p->ranks[rank], &p->ranks[i], what))
            numbers[n++] = p->ranks[i].speed[what];
    qsort(numbers, (size_t)n, sizeof *numbers, compare_numbers);
    return n ? numbers[n / 2] : 0;
}

static double median_of_pairs(const struct preflight *p)
{
    double *numbers = malloc(sizeof *numbers * (size_t)(p->n_pairs + 1));

    CHECK(numbers);
    for (int i = 0; i < p->n_pairs; i++)
        numbers[i] = p->pairs[i].bytes_per_second;
    qsort(numbers, (size_t)p->n_pairs, sizeof *numbers, compare_numbers);
    double median = p->n_pairs ? numbers[p->n_pairs / 2] : 0;
    free(numbers);
    return median;
}

void preflight_take_medians(struct preflight *p, struct arena *arena)
{
    double *numbers = malloc(sizeof *numbers * (size_t)p->n_ranks);

    CHECK(numbers);
    if (!p->medians)
        p->medians = arena_alloc(arena, sizeof *p->medians * (size_t)p->n_ranks);
    for (int what = 0; what < PREFLIGHT_N_WHATS; what++)
        for (int rank = 0; rank < p->n_ranks; rank++) {
            enum preflight_what of = (enum preflight_what)what;
            int like = 0; /* in most clusters all are like the first */

            while (like < rank && !is_alike(&p->ranks[like], &p->ranks[rank], of))
                like++;
            p->medians[rank][what] =
                like < rank ? p->medians[like][what] : median_of(p, rank, of, numbers);
        }
    free(numbers);
    p->pair_median = median_of_pairs(p);
}

bool preflight_pair_is_slow(const struct preflight *p, int pair, double min_ratio)
{
    return p->pairs[pair].bytes_per_second < p->pair_median * min_ratio * allowed[PREFLIGHT_LINK];
}

bool preflight_is_slow(const struct preflight *p, int rank, enum preflight_what what,
                       double min_ratio)
{
    double speed = p->ranks[rank].speed[what];

    return speed > 0 && speed < p->medians[rank][what] * min_ratio * allowed[what];
}

/* ---- findings ---- */

struct judgement {
    struct preflight *p;
    struct arena *arena;
    double min_ratio;
    int capacity;
};

static void add(struct judgement *j, enum preflight_fault fault, int rank, enum preflight_what what,
                const char *why)
{
    struct preflight *p = j->p;
    const struct preflight_rank *r = &p->ranks[rank];

    p->findings =
        arena_grow(j->arena, p->findings, sizeof *p->findings, &j->capacity, p->n_findings + 1);
    p->findings[p->n_findings++] =
        (struct preflight_finding){ fault, rank, what,
                                    arena_printf(j->arena, "rank %d on %s (%s%s%s): %s", rank,
                                                 r->host, r->device, *r->pci ? ", " : "", r->pci,
                                                 why) };
    p->worst = fault > p->worst ? fault : p->worst;
}

/* What a rank knows to be wrong by itself. */
static bool judge_errors(struct judgement *j, int rank)
{
    const struct preflight_rank *r = &j->p->ranks[rank];
    const struct preflight_errors *e = &r->errors;

    if (e->n_exact)
        add(j, PREFLIGHT_WRONG, rank, PREFLIGHT_PRODUCT,
            arena_printf(j->arena,
                         "wrong bits: %" PRId64 " elements of a product are not what whole numbers "
                         "give, the first at %" PRId64 ", where bits 0x%" PRIx32 " differ",
                         e->n_exact, e->exact_at, e->exact_bits));
    if (e->n_differing)
        add(j, PREFLIGHT_WRONG, rank, PREFLIGHT_PRODUCT,
            arena_printf(j->arena,
                         "wrong bits: %d of %d repetitions of the same product differ from the "
                         "others",
                         e->n_differing, r->n_repetitions));
    if (e->n_memory)
        add(j, PREFLIGHT_WRONG, rank, PREFLIGHT_MEMORY,
            arena_printf(j->arena,
                         "wrong bits: %" PRIu64 " 64-bit word%s of %s memory not as "
                         "written, the first at offset 0x%" PRIx64 ", where bits 0x%016" PRIx64
                         " differ",
                         e->n_memory, str_s((int64_t)e->n_memory),
                         e->is_device_memory ? "device" : "host", e->memory_at, e->memory_bits));
    if (e->n_disk)
        add(j, PREFLIGHT_WRONG, rank, PREFLIGHT_DISK_READ,
            arena_printf(j->arena, "wrong bits: %d pieces of a file are not what was written",
                         e->n_disk));
    return e->n_exact || e->n_differing || e->n_memory || e->n_disk;
}

/* Hashes of ranks with equal kernels that are not wrong by themselves: more than half decide. */
static void judge_hash(struct judgement *j, int rank)
{
    const struct preflight *p = j->p;
    const struct preflight_rank *r = &p->ranks[rank];
    int n = 0, n_alike = 0, n_most = 0, other = -1;

    for (int i = 0; i < p->n_ranks; i++) {
        const struct preflight_rank *peer = &p->ranks[i];
        int n_same = 0;

        if (peer->kernels != r->kernels || peer->errors.n_exact || peer->errors.n_differing)
            continue;
        n++;
        n_alike += peer->hash == r->hash;
        other = peer->hash != r->hash && other < 0 ? i : other;
        for (int k = 0; k < p->n_ranks && peer->hash != r->hash; k++)
            n_same += p->ranks[k].kernels == r->kernels && p->ranks[k].hash == peer->hash;
        n_most = max_int(n_most, n_same);
    }
    if (n_alike == n || 2 * n_alike > n)
        return;
    if (2 * n_most > n)
        add(j, PREFLIGHT_WRONG, rank, PREFLIGHT_PRODUCT,
            arena_printf(j->arena,
                         "wrong bits: %d of %d ranks with the same kernels agree on "
                         "another result of a product",
                         n_most, n));
    else
        add(j, PREFLIGHT_SUSPECT, rank, PREFLIGHT_PRODUCT,
            arena_printf(j->arena,
                         "its result of a product differs from rank %d's on %s, and no majority "
                         "decides which is wrong",
                         other, p->ranks[other].host));
}

static void judge_speeds(struct judgement *j, int rank)
{
    const struct preflight_rank *r = &j->p->ranks[rank];

    for (int what = 0; what < PREFLIGHT_N_WHATS; what++) {
        char speed[32], of_kind[32];
        double median = j->p->medians[rank][what];

        if (!preflight_is_slow(j->p, rank, (enum preflight_what)what, j->min_ratio))
            continue;
        const char *unit = what == PREFLIGHT_PRODUCT ? "GFLOP/s" : "GB/s";
        snprintf(speed, sizeof speed, "%.3g %s", 1e-9 * r->speed[what], unit);
        snprintf(of_kind, sizeof of_kind, "%.3g %s", 1e-9 * median, unit);
        add(j, PREFLIGHT_SLOW, rank, (enum preflight_what)what,
            arena_printf(j->arena, "slow: %s %s%s, %.0f %% of the median %s", subjects[what], speed,
                         what == PREFLIGHT_PRODUCT && r->n_threads > 1 ? " a thread" : "",
                         100 * r->speed[what] / median, of_kind));
    }
}

static int compare_findings(const void *a, const void *b)
{
    const struct preflight_finding *x = a, *y = b;

    return x->fault != y->fault ? (x->fault < y->fault) - (x->fault > y->fault)
           : x->rank != y->rank ? x->rank - y->rank
                                : (int)x->what - (int)y->what;
}

void preflight_judge(struct preflight *p, double min_ratio, struct arena *arena)
{
    struct judgement j = { .p = p, .arena = arena, .min_ratio = min_ratio };

    p->n_findings = 0;
    p->worst = PREFLIGHT_OK;
    p->min_ratio = min_ratio;
    preflight_take_medians(p, arena);
    for (int rank = 0; rank < p->n_ranks; rank++) {
        if (!judge_errors(&j, rank))
            judge_hash(&j, rank);
        judge_speeds(&j, rank);
    }
    if (p->n_findings)
        qsort(p->findings, (size_t)p->n_findings, sizeof *p->findings, compare_findings);
}

enum preflight_fault preflight_fault_of(const struct preflight *p, int rank)
{
    enum preflight_fault worst = PREFLIGHT_OK;

    for (int i = 0; i < p->n_findings; i++)
        if (p->findings[i].rank == rank && p->findings[i].fault > worst)
            worst = p->findings[i].fault;
    return worst;
}
