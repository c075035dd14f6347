/*
 * micro_batch_sizes.c - lists that rise and fall, by their lower bound
 *
 * The bound of a list: on each rank all its work, after the forwards of the first micro-batch on
 * the ranks before it, and before the backwards of the last one there.
 */
#include "plan/micro_batch_sizes.h"

#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "layout/pipeline.h"

enum { LEVELS_MAX = 5, OUTER_MAX = 3 };
#define STEPS_MAX ((int64_t)16 << 20) /* simulated: about a second */

/* How often each level stands before the largest, and behind; of the largest before alone. */
struct size_list {
    int64_t bound;
    int n;
    short top; /* the largest size */
    unsigned char before[LEVELS_MAX], behind[LEVELS_MAX];
    int n_top;
};

struct finding {
    const struct micro_batch_sizes_request *request;
    struct arena *arena;
    struct size_list *list;
    int n, capacity;
    int levels[LEVELS_MAX], n_levels; /* of the largest size that is tried */
    /* [n_sizes][n_ranks]: all work of a micro-batch; the forwards and the backwards of the first
     * chunk on the ranks before */
    int64_t *work, *ramp, *drain;
};

/* ---- bounds ---- */

static void sum_costs(struct finding *f)
{
    const struct micro_batch_sizes_request *r = f->request;
    int n = r->n_sizes * r->n_ranks, n_stages = r->n_ranks * r->n_chunks;

    f->work = arena_array(f->arena, int64_t, n);
    f->ramp = arena_array(f->arena, int64_t, n);
    f->drain = arena_array(f->arena, int64_t, n);
    for (int k = 0; k < r->n_sizes; k++) {
        int64_t ramp = 0, drain = 0;

        for (int rank = 0; rank < r->n_ranks; rank++) {
            int at = k * r->n_ranks + rank, first = k * n_stages + rank;

            f->ramp[at] = ramp;
            f->drain[at] = drain;
            ramp += r->f[first] + r->transfers[k];
            drain += r->i[first] + r->w[first] + r->transfers[k];
            for (int chunk = 0; chunk < r->n_chunks; chunk++) {
                int stage = first + chunk * r->n_ranks;

                f->work[at] += r->f[stage] + r->i[stage] + r->w[stage];
            }
        }
    }
}

/* The sizes of a list; returns how many. sizes NULL: counted alone. */
static int spell(const struct finding *f, const struct size_list *c, int *sizes)
{
    int n = 0;

    for (int i = 0; i < f->n_levels; i++)
        for (int k = 0; k < (i + 1 < f->n_levels ? c->before[i] : c->n_top); k++, n++)
            if (sizes)
                sizes[n] = f->levels[i];
    for (int i = f->n_levels - 2; i >= 0; i--)
        for (int k = 0; k < c->behind[i]; k++, n++)
            if (sizes)
                sizes[n] = f->levels[i];
    return n;
}

static int first_level(const struct finding *f, const unsigned char *counts)
{
    int i = 0;

    while (i + 1 < f->n_levels && !counts[i])
        i++;
    return i;
}

static int64_t bound_of(const struct finding *f, const struct size_list *c)
{
    int n_ranks = f->request->n_ranks;
    const int64_t *ramp = f->ramp + (f->levels[first_level(f, c->before)] - 1) * n_ranks;
    const int64_t *drain = f->drain + (f->levels[first_level(f, c->behind)] - 1) * n_ranks;
    int64_t bound = 0;

    for (int rank = 0; rank < n_ranks; rank++) {
        int64_t ns = ramp[rank] + drain[rank];

        for (int i = 0; i < f->n_levels; i++) {
            int n = i + 1 < f->n_levels ? c->before[i] + c->behind[i] : c->n_top;

            ns += n * f->work[(f->levels[i] - 1) * n_ranks + rank];
        }
        bound = max_i64(bound, ns);
    }
    return bound;
}

/* ---- lists ---- */

/* The sizes of lists whose largest is `top`; 0: there are none. */
static int choose_levels(struct finding *f, int top)
{
    const bool *left_out = f->request->is_left_out;
    int *all = arena_array(f->arena, int, top), n = 0;

    for (int size = 1; size <= top; size++)
        if (!left_out || !left_out[size - 1])
            all[n++] = size;
    f->n_levels = 0;
    if (!n || all[n - 1] != top)
        return 0;
    f->n_levels = min_int(n, LEVELS_MAX);
    for (int i = 0; i < f->n_levels; i++)
        f->levels[i] = all[f->n_levels > 1 ? i * (n - 1) / (f->n_levels - 1) : n - 1];
    return f->n_levels;
}

static void add_candidate(struct finding *f, struct size_list *c)
{
    c->n = spell(f, c, NULL);
    if (c->n > PIPELINE_MICRO_BATCHES_MAX)
        return;
    c->bound = bound_of(f, c);
    f->list = arena_grow(f->arena, f->list, sizeof *f->list, &f->capacity, f->n + 1);
    f->list[f->n++] = *c;
}

/* All lists of the levels: their counts as the digits of one number. */
static void list_candidates(struct finding *f, int top)
{
    int n_outer = 2 * (f->n_levels - 1), n_sequences = f->request->n_sequences;

    for (int number = 0; number < 1 << 2 * n_outer; number++) {
        struct size_list c = { .top = (short)top };
        int left = n_sequences;

        for (int k = 0; k < n_outer; k++) {
            int count = number >> 2 * k & OUTER_MAX;

            (k % 2 ? c.behind : c.before)[k / 2] = (unsigned char)count;
            left -= count * f->levels[k / 2];
        }
        if (left < top || left % top)
            continue;
        c.n_top = left / top;
        add_candidate(f, &c);
    }
}

static int compare(const void *a, const void *b)
{
    const struct size_list *x = a, *y = b;

    if (x->bound != y->bound)
        return x->bound < y->bound ? -1 : 1;
    if (x->n != y->n)
        return x->n < y->n ? -1 : 1;
    if (x->top != y->top)
        return x->top < y->top ? -1 : 1;
    int order = memcmp(x->before, y->before, sizeof x->before);
    return order ? order : memcmp(x->behind, y->behind, sizeof x->behind);
}

/* ---- times ---- */

int micro_batch_sizes_time(int64_t *ns, int64_t *bubble,
                           const struct micro_batch_sizes_request *request, const int *sizes, int n,
                           struct err *err)
{
    struct arena arena = { 0 };
    int *kinds = arena_array(&arena, int, n);
    struct pipeline_spec spec = { .kind = PIPELINE_DYNAMIC,
                                  .n_ranks = request->n_ranks,
                                  .n_chunks = request->n_chunks,
                                  .n_micro_batches = n,
                                  .group = request->n_chunks == 1 ? request->n_ranks : 0,
                                  .sizes = sizes };
    struct pipeline_costs costs = { .f = request->f,
                                    .i = request->i,
                                    .w = request->w,
                                    .kinds = kinds,
                                    .transfers = request->transfers };
    struct pipeline pipeline;
    struct pipeline_timing timing;

    for (int m = 0; m < n; m++)
        kinds[m] = sizes[m] - 1;
    int status = pipeline_build(&pipeline, &spec, &arena, err);
    if (!status)
        status = pipeline_simulate(&timing, &pipeline, &costs, &arena, err);
    if (!status) {
        *ns = timing.makespan;
        *bubble = timing.bubble;
    }
    arena_release(&arena);
    return status;
}

/* Of lists of one size. */
static int find_even(struct micro_batch_sizes *found, const struct finding *f, int *sizes,
                     struct err *err)
{
    const struct micro_batch_sizes_request *r = f->request;

    for (int size = 1; size <= r->n_sizes; size++) {
        int n = r->n_sequences / size;
        int64_t ns, bubble;

        if (r->n_sequences % size || (r->is_left_out && r->is_left_out[size - 1]))
            continue;
        for (int m = 0; m < n; m++)
            sizes[m] = size;
        if (micro_batch_sizes_time(&ns, &bubble, r, sizes, n, err))
            return -1;
        if (found->even && ns > found->even_ns)
            continue;
        found->even = size;
        found->even_ns = ns;
        found->even_bubble = bubble;
    }
    return 0;
}

static int find_best(struct micro_batch_sizes *found, struct finding *f, int *sizes,
                     struct err *err)
{
    /* With chunks some groupings are simulated, too, to choose one. */
    int groupings = f->request->n_chunks > 1 ? 6 : 1;
    int64_t n_steps = 0, of_one = 2LL * f->request->n_ranks * f->request->n_chunks * groupings;

    for (int i = 0; i < f->n && n_steps < STEPS_MAX; i++) {
        const struct size_list *c = &f->list[i];
        int64_t ns, bubble;

        if (found->n && c->bound >= found->ns)
            break;
        choose_levels(f, c->top);
        int n = spell(f, c, sizes);
        if (micro_batch_sizes_time(&ns, &bubble, f->request, sizes, n, err))
            return -1;
        n_steps += of_one * n;
        found->n_simulated++;
        if (found->n && ns >= found->ns)
            continue;
        memcpy(found->sizes, sizes, sizeof *sizes * (size_t)n);
        found->n = n;
        found->ns = ns;
        found->bubble = bubble;
    }
    return 0;
}

/* Simulations may end before the best list of one size is reached. */
static void take_even(struct micro_batch_sizes *found, int n_sequences)
{
    if (!found->even || (found->n && found->ns <= found->even_ns))
        return;
    found->n = n_sequences / found->even;
    for (int m = 0; m < found->n; m++)
        found->sizes[m] = found->even;
    found->ns = found->even_ns;
    found->bubble = found->even_bubble;
}

int micro_batch_sizes_find(struct micro_batch_sizes *found,
                           const struct micro_batch_sizes_request *request, struct arena *arena,
                           struct err *err)
{
    struct arena scratch = { 0 };
    struct finding f = { .request = request, .arena = &scratch };
    int *sizes = arena_array(&scratch, int, request->n_sequences + 1);
    int status;

    *found =
        (struct micro_batch_sizes){ .sizes = arena_array(arena, int, request->n_sequences + 1) };
    sum_costs(&f);
    for (int top = 1; top <= request->n_sizes; top++)
        if (choose_levels(&f, top))
            list_candidates(&f, top);
    if (f.n)
        qsort(f.list, (size_t)f.n, sizeof *f.list, compare);
    found->n_lists = f.n;
    status = find_even(found, &f, sizes, err);
    if (!status)
        status = find_best(found, &f, sizes, err);
    if (!status)
        take_even(found, request->n_sequences);
    if (!status && !found->n)
        status =
            err_set(err, ERR_CONFIG, "no list of micro-batches of 1 to %d sequences adds up to %d",
                    request->n_sizes, request->n_sequences);
    arena_release(&scratch);
    return status;
}
